/* SPDX-License-Identifier: Apache-2.0
 *
 * Tiles split over their keys, for devices that a plan's tiles would not fill.
 */
#ifndef FFA_TILE_SPLIT_H
#define FFA_TILE_SPLIT_H

#include "tile/tile.h"

/* Parts that a tile is split into where a part may have `most` blocks; 1: it stays whole. */
int64_t tile_split_parts(const struct plan_tile *tile, int64_t most);

/* Replace each tile of more than `most` blocks by parts of about equal blocks, each over some of
 * its keys, and put the list in order again. Parts are marked PLAN_TILE_PART; part_rows and splits
 * say where their rows go. A split plan is a device's: its parts share rows, so that tile_check
 * refuses it. */
ffa_status tile_split(struct tile_plan *plan, int64_t most, ffa_error *err);

#endif
