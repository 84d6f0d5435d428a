/* SPDX-License-Identifier: Apache-2.0
 *
 * A mask counted in a grid of bins, for pictures. Invariant: the cells of all bins together are the
 * mask's area, and counts are exact, whatever the bins. Trick: the cells of an interval left of a
 * key are a sum of min(bound, key) over its rows, which has a closed form, so a bin is the
 * difference of four such sums and no row is visited.
 */
#include "mask/mask_picture.h"

int64_t grid_bound(int64_t tokens, int32_t bins, int32_t index)
{
    return tokens * index / bins;
}

/* The bin of a token: the last one whose bound is not above it. */
static int32_t bin_of(int64_t tokens, int32_t bins, int64_t token)
{
    return (int32_t)(((token + 1) * bins - 1) / tokens);
}

/* Sum over i < n of min(at + step * i, x). */
static int64_t sum_min(int64_t at, int32_t step, int64_t n, int64_t x)
{
    int64_t below = x - at < 0 ? 0 : x - at < n ? x - at : n;

    if (!step)
        return n * (at < x ? at : x);
    return below * at + (below % 2 ? (below - 1) / 2 * below : below / 2 * (below - 1)) +
           (n - below) * x;
}

/* Add the cells of `rows` rows, whose first one attends [lo, hi), to one row of the grid. */
static void grid_add(struct grid *grid, int64_t seqlen_k, int32_t row_bin,
                     const struct normal_interval *at, int64_t rows)
{
    int64_t *cells = grid->cells + (int64_t)row_bin * grid->columns;
    int32_t first = bin_of(seqlen_k, grid->columns, at->lo);
    int32_t last = bin_of(seqlen_k, grid->columns, at->hi - 1 + at->hi_step * (rows - 1));

    for (int32_t column = first; column <= last; column++) {
        int64_t x0 = grid_bound(seqlen_k, grid->columns, column);
        int64_t x1 = grid_bound(seqlen_k, grid->columns, column + 1);

        cells[column] +=
            sum_min(at->hi, at->hi_step, rows, x1) - sum_min(at->hi, at->hi_step, rows, x0) -
            sum_min(at->lo, at->lo_step, rows, x1) + sum_min(at->lo, at->lo_step, rows, x0);
    }
}

static void grid_add_segment(struct grid *grid, const ffa_mask_shape *shape,
                             const struct normal *normal, const struct normal_segment *segment)
{
    for (int64_t row = segment->row_begin; row < segment->row_end;) {
        int32_t bin = bin_of(shape->seqlen_q, grid->rows, row);
        int64_t bound = grid_bound(shape->seqlen_q, grid->rows, bin + 1);
        int64_t end = bound < segment->row_end ? bound : segment->row_end;
        int32_t down = (int32_t)(row - segment->row_begin);

        for (int32_t i = 0; i < segment->interval_count; i++) {
            const struct normal_interval at =
                normal_interval_at(&normal->intervals[segment->interval_begin + i], down);

            grid_add(grid, shape->seqlen_k, bin, &at, end - row);
        }
        row = end;
    }
}

ffa_status grid_build(struct grid *out, const ffa_mask *mask, int32_t head, ffa_error *err)
{
    const struct normal *normal = &mask->lists[head].normal;

    assert(out->rows >= 1 && out->rows <= mask->shape.seqlen_q);
    assert(out->columns >= 1 && out->columns <= mask->shape.seqlen_k);
    out->cells = mem_array((size_t)out->rows * (size_t)out->columns, sizeof *out->cells);
    if (!out->cells)
        return error_nomem(err, "the grid of a picture");
    for (int64_t i = 0; i < normal->segment_count; i++)
        grid_add_segment(out, &mask->shape, normal, &normal->segments[i]);
    return FFA_OK;
}

void grid_finish(struct grid *grid)
{
    mem_free(grid->cells);
    grid->cells = NULL;
}

int64_t grid_cell_size(const struct grid *grid, const ffa_mask_shape *shape, int32_t row,
                       int32_t column)
{
    return (grid_bound(shape->seqlen_q, grid->rows, row + 1) -
            grid_bound(shape->seqlen_q, grid->rows, row)) *
           (grid_bound(shape->seqlen_k, grid->columns, column + 1) -
            grid_bound(shape->seqlen_k, grid->columns, column));
}
