/* SPDX-License-Identifier: Apache-2.0
 *
 * Tiles split over their keys, for devices that a plan's tiles would not fill.
 */
#ifndef FFA_TILE_SPLIT_H
#define FFA_TILE_SPLIT_H

#include "tile/tile.h"

/* Parts that a tile of `blocks` blocks is split into where a part may have `most` blocks; 1: it
 * stays whole. */
int64_t tile_split_parts(int64_t blocks, int64_t most);

/* Replace each tile of more than `most` blocks by parts of about equally many blocks, each over
 * some of its keys, and put each list in order again. A part is marked PLAN_TILE_PART and has its
 * part_row; splits says which parts a row has. A split plan is for kernels made for a split: its
 * parts share rows, so that tile_check refuses it. */
ffa_status tile_split(struct tile_plan *plan, int64_t most, ffa_error *err);

#endif
