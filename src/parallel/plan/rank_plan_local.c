/* SPDX-License-Identifier: Apache-2.0
 *
 * rank_plan_local: the bands of all phases, with the keys of each stage moved to where they lie in
 * the key window. Every cell of the rank is in exactly one phase, so the bands stay disjoint. The
 * two own phases of a backward pass have the same bands, and differ by their key tiles.
 */
#include "parallel/plan/rank_plan_local.h"

#include "parallel/plan/stages.h"

#include <math.h>
#include <stdlib.h>

_Static_assert(RANK_STAGES_MAX + 1 <= TILE_STAGES_MAX, "own keys, and those of each stage");

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

/* An own key tile, of any list. */
struct own_tile {
    struct range keys;
    int64_t blocks;
};

/* Longest first, then ascending keys. */
static int compare_work(const void *a, const void *b)
{
    const struct own_tile *x = a, *y = b;

    if (x->blocks != y->blocks)
        return (x->blocks < y->blocks) - (x->blocks > y->blocks);
    return (x->keys.begin > y->keys.begin) - (x->keys.begin < y->keys.begin);
}

/* Append the key tiles of a phase; their blocks. */
static int64_t add_own(struct own_tile *own, int64_t *count, const struct tile_plan *tiles)
{
    int64_t blocks = 0;

    for (int64_t t = 0; t < tiles->tile_count; t++) {
        const struct plan_tile *tile = &tiles->tiles[t];

        own[(*count)++] = (struct own_tile){
            .keys = { tile->begin, (int64_t)tile->begin + tile->count },
            .blocks = tiles->block_counts[t],
        };
        blocks += tiles->block_counts[t];
    }
    return blocks;
}

static ffa_status keep_first(struct rank_local *out, const struct own_tile *own, int64_t tiles,
                             ffa_error *err)
{
    struct range *ranges = mem_array((size_t)tiles, sizeof *ranges);
    int64_t count;

    if (!ranges)
        return error_nomem(err, "the first keys of a pass");
    for (int64_t t = 0; t < tiles; t++)
        ranges[t] = own[t].keys;
    count = ranges_join(ranges, tiles);
    out->first = mem_array((size_t)count, sizeof *out->first);
    for (int64_t i = 0; out->first && i < count; i++) {
        out->first[i][0] = ranges[i].begin;
        out->first[i][1] = ranges[i].end;
    }
    out->first_count = out->first ? count : 0;
    mem_free(ranges);
    return out->first ? FFA_OK : error_nomem(err, "the first keys of a pass");
}

/* How many of the longest own tiles come first: half of them, in an even number of waves where
 * there are enough, as SMs are in step after two; or more, until they take as long as `early`
 * blocks. */
static int64_t first_tiles(const struct own_tile *own, int64_t count, int64_t early,
                           const ffa_parallel_plan *plan)
{
    const int64_t heads = plan->opts.model.heads_kv / plan->list_count;
    const int64_t pair = max64(1, 2 * plan->opts.sms / max64(1, heads));
    const bool has_pairs = count >= 2 * pair;
    int64_t tiles = has_pairs ? (count / 2 + pair / 2) / pair * pair : (count + 1) / 2, blocks = 0;

    for (int64_t t = 0; t < tiles; t++)
        blocks += own[t].blocks;
    while (tiles < count && blocks < early)
        for (int64_t t = 0; tiles < count && t < (has_pairs ? pair : 1); t++)
            blocks += own[tiles++].blocks;
    return tiles;
}

/* Which own keys come first, so that both the first stage's arrival and the last sums' way to their
 * owners are under work. They are the longest: all own keys, one group after the other, still go
 * longest first. */
static ffa_status find_first(struct rank_local *out, const ffa_parallel_plan *plan, ffa_error *err)
{
    const struct plan_pass *pass = &plan->backward;
    const struct tile_plan *first = &pass->phases[0].key_tiles;
    const struct tile_plan *last = &pass->phases[pass->phase_count - 1].key_tiles;
    struct own_tile *own = mem_array((size_t)(first->tile_count + last->tile_count), sizeof *own);
    int64_t count = 0, early, all;
    ffa_status rc;

    if (!own)
        return error_nomem(err, "the first keys of a pass");
    early = add_own(own, &count, first);
    all = early + add_own(own, &count, last);
    out->first_share = fmax(0.5, all ? (double)early / (double)all : 0);
    if (count)
        qsort(own, (size_t)count, sizeof *own, compare_work);
    rc = keep_first(out, own, last->tile_count ? first_tiles(own, count, early, plan) : count, err);
    mem_free(own);
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
        rc = find_first(out, plan, err);
out:
    if (rc != FFA_OK)
        rank_local_finish(out);
    return rc;
}

ffa_status rank_plan_moved(struct rank_local *out, const ffa_parallel_plan *plan, bool is_backward,
                           int32_t phase, ffa_error *err)
{
    const struct plan_pass *pass = is_backward ? &plan->backward : &plan->forward;
    const int64_t keys = plan->keys.rank_tokens[plan->rank];
    ffa_status rc = FFA_OK;

    *out = (struct rank_local){ 0 };
    assert(plan->moves == FFA_PARALLEL_MOVE_QUERIES && phase <= pass->stage_count);
    out->shape = (ffa_mask_shape){ pass->phases[phase].rows, keys };
    out->list_count = plan->list_count;
    out->lists = mem_array((size_t)plan->list_count, sizeof *out->lists);
    if (!out->lists) {
        rc = error_nomem(err, "the bands of a rank");
        goto out;
    }
    for (int32_t l = 0; l < plan->list_count; l++)
        for (int64_t i = 0; i < pass->phases[phase].lists[l].count; i++)
            FFA_TRY(bands_add(&out->lists[l], &pass->phases[phase].lists[l].at[i], err));
    out->stage_ends[out->stage_count++] = keys;
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
