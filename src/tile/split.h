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
 * some of its keys, and sort each list of tiles again. A part is marked PLAN_TILE_PART, and
 * part_row says where its fp32 rows lie; plan->splits says which parts make up a row. Only kernels
 * made for a split take such a plan. tile_check refuses it, because parts share query rows. */
ffa_status tile_split(struct tile_plan *plan, int64_t most, ffa_error *err);

#endif
