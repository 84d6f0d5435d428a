/* SPDX-License-Identifier: Apache-2.0
 *
 * Sweeps of one range of query rows: the contiguous key ranges a tile visits, and which rows attend
 * what in each. A backward plan gives the transposed normal form, with keys as rows.
 *
 * A piece is one interval of one segment, clipped to the rows. Pieces are taken in ascending order
 * of their first key. A piece joins the open sweep that it overlaps or touches, unless the sweep
 * has an interval of its rows already; otherwise it opens a sweep. So a sweep has no gap in its
 * keys and at most one interval a row, by construction. Where keys arrive in stages, a piece does
 * not join a sweep that it only touches at the end of a stage.
 */
#ifndef FFA_TILE_SWEEP_H
#define FFA_TILE_SWEEP_H

#include "tile/tile.h"

/* One interval of one segment, clipped to the rows of a tile. */
struct sweep_piece {
    int32_t k_begin, k_end; /* the union over its rows */
    int32_t segment;        /* counted from the tile's first */
    int32_t sweep;
};

struct sweep_range {
    int32_t k_begin, k_end;
    int64_t band_begin, band_count; /* while bands are collected */
};

/* Scratch of one build, reused from tile to tile. */
struct sweep_work {
    /* With stages, cut at their ends: no interval has keys of two stages. */
    const struct normal *normal;
    const struct tile_stages *stages; /* that sweeps are cut at; NULL: they are not */
    int32_t block_size;
    bool on_grid;
    int64_t piece_count;
    int64_t sweep_count;
    int64_t piece_capacity;             /* of the arrays that follow, but `used` */
    struct sweep_piece *pieces;         /* by segment, then ascending */
    int64_t *order, *merged, *run_ends; /* pieces, by first key */
    struct sweep_range *sweeps;
    int64_t *open;  /* sweeps a later piece may still touch */
    uint64_t *used; /* [sweep][segment / 64]: segments with an interval in the sweep */
    int64_t used_capacity;
};

struct sweep_rows {
    int32_t begin, end;
    int64_t segment; /* the first segment that ends after `begin`; segment_count if none */
};

/* Arrays of a plan while they grow. */
struct sweep_sink {
    struct tile_plan *plan;
    int64_t sweep_capacity, band_capacity;
};

/* blocks[i]: how many blocks of block_size keys a tile of the rows [rows->begin, ends[i]) visits.
 * ends [end_count] ascend; rows->end is not read. Fails with FFA_NOMEM. */
ffa_status sweep_cost(struct sweep_work *work, const struct sweep_rows *rows, const int32_t *ends,
                      int32_t end_count, int64_t *blocks, ffa_error *err);
/* Append the sweeps and bands of `rows` to the plan. Fills *tile, all but its list, and *blocks,
 * how many it visits. Fails with FFA_NOMEM and FFA_INVALID (too many). */
ffa_status sweep_emit(struct sweep_work *work, const struct sweep_rows *rows,
                      struct sweep_sink *sink, struct plan_tile *tile, int32_t *blocks,
                      ffa_error *err);
void sweep_finish(struct sweep_work *work);

/* How many blocks of `size` cover the keys [begin, end), at least one: from `begin` on, or on the
 * grid of multiples of `size`. */
static inline int64_t sweep_blocks(int32_t begin, int32_t end, int32_t size, bool on_grid)
{
    const uint32_t skip = on_grid ? (uint32_t)begin % (uint32_t)size : 0;

    return ((uint32_t)(end - begin) + skip - 1) / (uint32_t)size + 1;
}

/* Of the blocks of a sweep: those that every owned index of its tile attends. */
static inline int64_t sweep_full_blocks(const struct plan_sweep *sweep, int32_t size, bool on_grid)
{
    const int64_t first = on_grid ? sweep->begin / size * size : sweep->begin;
    const int64_t begin = (sweep->full_begin - first + size - 1) / size;
    const int64_t end = (sweep->full_end - first) / size;

    return sweep->full_begin < sweep->full_end && begin < end ? end - begin : 0;
}

#endif
