/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether the tiles of a backward plan go through the query rows in lockstep (enum tile_lockstep).
 *
 * Tiles of a causal mask begin at their own keys and all end at the last row. Begun at that row,
 * tiles of all lengths visit the same blocks of Q, dO and dq at nearly the same time, and find them
 * in L2; begun at their own first rows they would not. Packed documents are masks beside one
 * another: each has its own last row.
 */
#ifndef FFA_TILE_LOCKSTEP_H
#define FFA_TILE_LOCKSTEP_H

#include "tile/tile.h"

/* Sets plan->lockstep of a backward plan that has its tiles and their rows: DESCENDING where
 * nine in ten blocks are of tiles that end together, ASCENDING where they begin together; else
 * NONE, as with several lists or one tile. A tile ends together with others where, in the block of
 * rows where it ends, more tiles end than pass over it, itself not alone: all of a document's do,
 * and of a window's, which end one after the other, hardly any. Several documents take 12 bytes a
 * block of rows meanwhile. FFA_NOMEM. */
ffa_status lockstep_find(struct tile_plan *plan, ffa_error *err);

#endif
