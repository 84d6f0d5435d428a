/* SPDX-License-Identifier: Apache-2.0
 *
 * Tiles split over their keys, for devices that a plan's tiles would not fill.
 */
#ifndef FFA_TILE_SPLIT_H
#define FFA_TILE_SPLIT_H

#include "tile/tile.h"

enum { TILE_PARTS_MAX = 1024 };

/* Parts that a tile of `blocks` blocks is split into where a part may have `most` blocks; 1: it
 * stays whole. */
int64_t tile_split_parts(int64_t blocks, int64_t most);

/* Replace each tile of more than `most` blocks by parts of about equally many blocks, each over
 * some of its keys, and sort each list of tiles again. A part is marked PLAN_TILE_PART, and
 * part_row says where its fp32 rows lie; plan->splits says which parts make up a row. Only kernels
 * made for a split take such a plan. tile_check refuses it, because parts share query rows. */
ffa_status tile_split(struct tile_plan *plan, int64_t most, ffa_error *err);

/* The same for a plan that is replayed with other masks: every tile is split, into parts_max parts
 * at most, be it one (most INT64_MAX: one). So every row is in plan->splits, and how many these are
 * does not depend on the mask; nor does part_row_count, which has room for parts_max parts of each
 * row. */
ffa_status tile_split_all(struct tile_plan *plan, int64_t most, int32_t parts_max, ffa_error *err);

#endif
