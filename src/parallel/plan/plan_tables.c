/* SPDX-License-Identifier: Apache-2.0
 *
 * plan_tables_build: bands, needs and stages of all ranks. Invariant: nothing here knows
 * which rank asks, so all ranks get the same tables and agree about who sends what to whom without
 * a message. Moving queries needs no code of its own: it is moving keys with the transposed mask
 * and the two layouts exchanged. Where the options leave the choice, both are built and the one
 * whose slowest rank is done first is kept.
 */
#include "parallel/plan/plan_tables.h"

#include "mask/mask.h"

void plan_tables_finish(struct plan_tables *t)
{
    for (int32_t l = 0; t->lists && l < t->list_count; l++)
        bands_finish(&t->lists[l]);
    mem_free(t->lists);
    for (int32_t l = 0; t->moves_queries && t->transposed && l < t->list_count; l++)
        normal_finish(&t->transposed[l]);
    mem_free(t->transposed);
    needs_finish(&t->needs);
    rank_needs_finish(&t->rank_needs);
    stages_finish(&t->stages);
    *t = (struct plan_tables){ 0 };
}

static ffa_status build(struct plan_tables *t, const struct plan_tables_input *in,
                        bool moves_queries, ffa_error *err)
{
    const ffa_mask *mask = in->mask;
    const struct layout *rows = moves_queries ? in->keys : in->queries;
    const struct layout *moving = moves_queries ? in->queries : in->keys;
    const struct parts chunks = layout_parts(rows);
    struct stages_input stages = { .opts = in->opts, .moves_queries = moves_queries };
    ffa_status rc;

    *t = (struct plan_tables){ .mask = mask, .moves_queries = moves_queries };
    t->lists = mem_array((size_t)mask->head_count, sizeof *t->lists);
    t->transposed = mem_array(moves_queries ? (size_t)mask->head_count : 0, sizeof *t->transposed);
    if (!t->lists || !t->transposed) {
        rc = error_nomem(err, "bands");
        goto out;
    }
    for (int32_t l = 0; l < mask->head_count; l++) {
        t->list_count = l + 1;
        if (moves_queries)
            FFA_TRY(normal_transpose(&t->transposed[l], &mask->lists[l].normal, err));
        FFA_TRY(bands_add_normal(&t->lists[l], plan_tables_normal(t, l), err));
    }
    FFA_TRY(needs_build(&t->needs, t->lists, t->list_count, &chunks, err));
    t->in = (struct rank_needs_input){ rows, moving, &t->needs, in->topology };
    FFA_TRY(rank_needs_build(&t->rank_needs, &t->in, err));
    stages.in = &t->in;
    stages.needs = &t->rank_needs;
    stages.lists = t->lists;
    stages.list_count = t->list_count;
    rc = stages_build(&t->stages, &stages, err);
out:
    return rc;
}

const struct normal *plan_tables_normal(const struct plan_tables *t, int32_t list)
{
    return t->moves_queries ? &t->transposed[list] : &t->mask->lists[list].normal;
}

/* When the slowest rank is done with both passes. */
static int64_t slowest(const struct stages *stages, int32_t ranks)
{
    int64_t most = 0;

    for (int32_t r = 0; r < ranks; r++)
        most = max64(most, stages_cost_ns(stages, r));
    return most;
}

ffa_status plan_tables_build(struct plan_tables *out, const struct plan_tables_input *in,
                             int64_t *slowest_ns, ffa_error *err)
{
    const int32_t ranks = in->topology.rank_count;
    /* Replicated keys have no owner that a query could go to. */
    const int32_t moves = in->keys->is_replicated || in->opts->memory_bytes ? FFA_PARALLEL_MOVE_KEYS
                                                                            : in->opts->moves;
    struct plan_tables other = { 0 };
    ffa_status rc;

    FFA_TRY(build(out, in, moves == FFA_PARALLEL_MOVE_QUERIES, err));
    *slowest_ns = slowest(&out->stages, ranks);
    if (moves != FFA_PARALLEL_MOVE_AUTO || out->rank_needs.begin[ranks] == 0)
        goto out;
    FFA_TRY(build(&other, in, true, err));
    if (slowest(&other.stages, ranks) < *slowest_ns) {
        const struct plan_tables keys = *out;

        *slowest_ns = slowest(&other.stages, ranks);
        *out = other;
        out->in.needs = &out->needs;
        other = keys;
    }
out:
    plan_tables_finish(&other);
    return rc;
}
