/* SPDX-License-Identifier: Apache-2.0
 *
 * lockstep_find: how many tiles begin in each block of query rows, end there, and pass over it.
 */
#include "tile/lockstep.h"

/* Of each block of query rows: tiles of both ends, and those that begin before it and end after it.
 */
struct block_tiles {
    int32_t at[2]; /* that begin (0) and end (1) in it */
    int32_t passing;
};

/* The blocks of query rows where a tile begins and ends. Of a tile without rows 0 and 0. */
struct span {
    int32_t ends[2];
};

static struct span span_of(const struct tile_plan *plan, const struct plan_tile *tile)
{
    const struct plan_sweep *sweeps = &plan->sweeps[tile->sweep_begin];

    if (tile->sweep_count == 0)
        return (struct span){ { 0, 0 } };
    return (struct span){ { sweeps[0].begin / plan->tile_m,
                            (sweeps[tile->sweep_count - 1].end - 1) / plan->tile_m } };
}

static void count_tiles(struct block_tiles *blocks, int64_t block_count,
                        const struct tile_plan *plan)
{
    int32_t passing = 0;

    for (int64_t t = 0; t < plan->tile_count; t++) {
        const struct span span = span_of(plan, &plan->tiles[t]);

        blocks[span.ends[0]].at[0]++;
        blocks[span.ends[1]].at[1]++;
        if (span.ends[0] < span.ends[1]) { /* by how much `passing` changes, at first */
            blocks[span.ends[0] + 1].passing++;
            blocks[span.ends[1]].passing--;
        }
    }
    for (int64_t b = 0; b < block_count; b++)
        blocks[b].passing = passing += blocks[b].passing;
}

/* Whether nine in ten blocks of a plan are of tiles that begin (end 0) or end (end 1) with others,
 * where fewer tiles pass. */
static bool most_are_together(const struct block_tiles *blocks, const struct tile_plan *plan,
                              int end)
{
    int64_t together = 0;

    for (int64_t t = 0; t < plan->tile_count; t++) {
        const struct span span = span_of(plan, &plan->tiles[t]);
        const struct block_tiles *block = &blocks[span.ends[end]];

        if (block->at[end] > 1 && block->at[end] > block->passing)
            together += plan->block_counts[t];
    }
    return together >= plan->block_count - plan->block_count / 10;
}

static ffa_status set_lockstep(struct tile_plan *plan, enum tile_lockstep lockstep, ffa_error *err)
{
    plan->documents = mem_array((size_t)plan->tile_count, sizeof *plan->documents);
    if (!plan->documents)
        return error_nomem(err, "the lockstep of a plan");
    for (int64_t t = 0; t < plan->tile_count; t++)
        plan->documents[t] =
            span_of(plan, &plan->tiles[t]).ends[lockstep == TILE_LOCKSTEP_DESCENDING];
    plan->lockstep = lockstep;
    return FFA_OK;
}

/* Whether all tiles with rows begin (end 0) or end (end 1) in one block, as those of one document.
 */
static bool all_are_together(const struct tile_plan *plan, int end)
{
    int32_t first = -1;

    for (int64_t t = 0; t < plan->tile_count; t++) {
        const int32_t at = span_of(plan, &plan->tiles[t]).ends[end];

        if (plan->tiles[t].sweep_count == 0)
            continue;
        if (first >= 0 && at != first)
            return false;
        first = at;
    }
    return true;
}

ffa_status lockstep_find(struct tile_plan *plan, ffa_error *err)
{
    const int64_t block_count = (plan->shape.seqlen_q + plan->tile_m - 1) / plan->tile_m;
    struct block_tiles *blocks;
    ffa_status rc = FFA_OK;

    if (plan->list_count > 1 || plan->block_count == 0 || plan->tile_count == 1)
        return FFA_OK;
    if (all_are_together(plan, 1))
        return set_lockstep(plan, TILE_LOCKSTEP_DESCENDING, err);
    if (all_are_together(plan, 0))
        return set_lockstep(plan, TILE_LOCKSTEP_ASCENDING, err);
    blocks = mem_array((size_t)block_count, sizeof *blocks);
    if (!blocks)
        return error_nomem(err, "the lockstep of a plan");
    count_tiles(blocks, block_count, plan);
    if (most_are_together(blocks, plan, 1))
        rc = set_lockstep(plan, TILE_LOCKSTEP_DESCENDING, err);
    else if (most_are_together(blocks, plan, 0))
        rc = set_lockstep(plan, TILE_LOCKSTEP_ASCENDING, err);
    mem_free(blocks);
    return rc;
}
