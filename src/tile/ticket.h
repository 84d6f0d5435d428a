/* SPDX-License-Identifier: Apache-2.0
 *
 * Ordered accumulation of dq: the tickets of a backward plan (tile_plan.h). A block of query rows
 * is visited by many tiles, each adding to dq; a ticket says how many visits of the block come
 * before one, so that a kernel that waits for its ticket adds in the order of the plan. Tickets are
 * few: one a sweep where the mask is full or causal, at most one for every other block in a window.
 */
#ifndef FFA_TILE_TICKET_H
#define FFA_TILE_TICKET_H

#include "tile/tile.h"

/* Blocks of the grid that the query rows lie on: counters of visits for one query head. */
int64_t ticket_grid_blocks(const struct tile_plan *plan);
/* Fill in the tickets of a backward plan on a grid. */
ffa_status ticket_build(struct tile_plan *plan, ffa_error *err);
/* That every ticket is the number of visits before it; FFA_BUG otherwise, FFA_NOMEM. */
ffa_status ticket_check(const struct tile_plan *plan, ffa_error *err);

#endif
