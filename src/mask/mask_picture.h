/* SPDX-License-Identifier: Apache-2.0
 *
 * What the pictures of a mask share: a coarse grid over it, with exact counts.
 */
#ifndef FFA_MASK_MASK_PICTURE_H
#define FFA_MASK_MASK_PICTURE_H

#include "mask/mask.h"

/* rows x columns bins of (almost) equal size; cells[row * columns + column]: attended cells. */
struct grid {
    int32_t rows, columns; /* at most the mask's queries and keys; set by the caller */
    int64_t *cells;
};

ffa_status grid_build(struct grid *out, const ffa_mask *mask, int32_t head, ffa_error *err);
void grid_finish(struct grid *grid);
/* First token of bin `index` of `bins`. */
int64_t grid_bound(int64_t tokens, int32_t bins, int32_t index);
/* Cells of the mask in one cell of the grid. */
int64_t grid_cell_size(const struct grid *grid, const ffa_mask_shape *shape, int32_t row,
                       int32_t column);

/* FFA_INVALID for a NULL mask or a head it has not. */
ffa_status picture_check(const ffa_mask *mask, int32_t head, ffa_error *err);

#endif
