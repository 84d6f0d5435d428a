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
struct end_blocks {
    int32_t ends[2];
};

static struct end_blocks end_blocks_of(const struct tile_plan *plan, int64_t tile)
{
    const struct tile_rows rows = plan->rows[tile];

    return (struct end_blocks){ { rows.begin / plan->tile_m,
                                  rows.end > 0 ? (rows.end - 1) / plan->tile_m : 0 } };
}

static void count_tiles(struct block_tiles *blocks, int64_t block_count,
                        const struct tile_plan *plan)
{
    int32_t passing = 0;

    for (int64_t t = 0; t < plan->tile_count; t++) {
        const struct end_blocks tile = end_blocks_of(plan, t);

        blocks[tile.ends[0]].at[0]++;
        blocks[tile.ends[1]].at[1]++;
        if (tile.ends[0] < tile.ends[1]) { /* by how much `passing` changes, at first */
            blocks[tile.ends[0] + 1].passing++;
            blocks[tile.ends[1]].passing--;
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
        const struct end_blocks tile = end_blocks_of(plan, t);
        const struct block_tiles *block = &blocks[tile.ends[end]];

        if (block->at[end] > 1 && block->at[end] > block->passing)
            together += plan->block_counts[t];
    }
    return together >= plan->block_count - plan->block_count / 10;
}

/* Whether all tiles with rows begin (end 0) or end (end 1) in one block, as those of one document.
 */
static bool all_are_together(const struct tile_plan *plan, int end)
{
    int32_t first = -1;

    for (int64_t t = 0; t < plan->tile_count; t++) {
        const int32_t at = end_blocks_of(plan, t).ends[end];

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

    if (plan->list_count > 1 || plan->block_count == 0 || plan->tile_count == 1)
        return FFA_OK;
    if (all_are_together(plan, 1)) {
        plan->lockstep = TILE_LOCKSTEP_DESCENDING;
        return FFA_OK;
    }
    if (all_are_together(plan, 0)) {
        plan->lockstep = TILE_LOCKSTEP_ASCENDING;
        return FFA_OK;
    }
    blocks = mem_array((size_t)block_count, sizeof *blocks);
    if (!blocks)
        return error_nomem(err, "the lockstep of a plan");
    count_tiles(blocks, block_count, plan);
    if (most_are_together(blocks, plan, 1))
        plan->lockstep = TILE_LOCKSTEP_DESCENDING;
    else if (most_are_together(blocks, plan, 0))
        plan->lockstep = TILE_LOCKSTEP_ASCENDING;
    mem_free(blocks);
    return FFA_OK;
}
