/* SPDX-License-Identifier: Apache-2.0
 *
 * rank_plan_local: the bands of all phases, with the keys of each stage moved to where they lie in
 * the key window. Every cell of the rank is in exactly one phase, so the bands stay disjoint. The
 * two own phases of a backward pass have the same bands, and differ by their key tiles; those of
 * the first one say which own keys come first.
 */
#include "parallel/plan/rank_plan_local.h"

#include "parallel/plan/stages.h"

_Static_assert(STAGES_MAX + 1 <= TILE_STAGES_MAX, "own keys, and those of each stage");

static ffa_status add_phase(struct rank_local *out, const struct plan_phase *phase, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    for (int32_t l = 0; l < out->list_count; l++)
        for (int64_t i = 0; i < phase->lists[l].count; i++) {
            const struct band band = band_translate(&phase->lists[l].at[i], 0, out->shape.seqlen_k);

            FFA_TRY(bands_add(&out->lists[l], &band, err));
        }
    out->shape.seqlen_k += phase->rows;
    out->stage_ends[out->stage_count++] = out->shape.seqlen_k;
out:
    return rc;
}

/* The own keys of the first phase's key tiles, of all lists together. */
static ffa_status find_first(struct rank_local *out, const struct tile_plan *tiles, ffa_error *err)
{
    struct range *ranges = mem_array((size_t)tiles->tile_count, sizeof *ranges);
    int64_t count = tiles->tile_count;
    ffa_status rc = FFA_OK;

    if (!ranges) {
        rc = error_nomem(err, "the first keys of a pass");
        goto out;
    }
    for (int64_t t = 0; t < count; t++)
        ranges[t] = (struct range){ tiles->tiles[t].begin,
                                    (int64_t)tiles->tiles[t].begin + tiles->tiles[t].count };
    count = ranges_join(ranges, count);
    out->first = mem_array((size_t)count, sizeof *out->first);
    if (!out->first) {
        rc = error_nomem(err, "the first keys of a pass");
        goto out;
    }
    for (int64_t i = 0; i < count; i++) {
        out->first[i][0] = ranges[i].begin;
        out->first[i][1] = ranges[i].end;
    }
    out->first_count = count;
out:
    mem_free(ranges);
    return rc;
}

int32_t rank_plan_rounds(const ffa_parallel_plan *plan, bool is_backward)
{
    const int32_t stages = is_backward ? plan->backward.stage_count : plan->forward.stage_count;

    return plan->in_rounds && stages > 1 ? stages : 1;
}

ffa_status rank_plan_local(struct rank_local *out, const ffa_parallel_plan *plan, bool is_backward,
                           ffa_error *err)
{
    if (rank_plan_rounds(plan, is_backward) > 1)
        return error_fail(err, FFA_INVALID, 0, "the plan is in rounds");
    return rank_plan_round(out, plan, is_backward, 0, err);
}

ffa_status rank_plan_round(struct rank_local *out, const ffa_parallel_plan *plan, bool is_backward,
                           int32_t round, ffa_error *err)
{
    const struct plan_pass *pass = is_backward ? &plan->backward : &plan->forward;
    int32_t last;
    ffa_status rc = FFA_OK;

    *out = (struct rank_local){ 0 };
    if (plan->moves != FFA_PARALLEL_MOVE_KEYS)
        return error_fail(err, FFA_INVALID, 0, "the plan moves queries, not keys");
    if (pass->phase_count == 0)
        return error_fail(err, FFA_INVALID, 0, "the plan has no %s pass",
                          is_backward ? "backward" : "forward");
    out->shape.seqlen_q = plan->queries.rank_tokens[plan->rank];
    out->list_count = plan->list_count;
    out->lists = mem_array((size_t)plan->list_count, sizeof *out->lists);
    if (!out->lists) {
        rc = error_nomem(err, "the bands of a rank");
        goto out;
    }
    last = rank_plan_rounds(plan, is_backward) > 1 ? round + 1 : pass->stage_count;
    if (round > 0)
        out->stage_ends[out->stage_count++] = 0;
    for (int32_t p = round ? last : 0; p <= last; p++)
        FFA_TRY(add_phase(out, &pass->phases[p], err));
    if (is_backward && round == 0)
        rc = find_first(out, &pass->phases[0].key_tiles, err);
out:
    if (rc != FFA_OK)
        rank_local_finish(out);
    return rc;
}

void rank_local_finish(struct rank_local *local)
{
    for (int32_t l = 0; local->lists && l < local->list_count; l++)
        bands_finish(&local->lists[l]);
    mem_free(local->lists);
    mem_free(local->first);
    *local = (struct rank_local){ 0 };
}
