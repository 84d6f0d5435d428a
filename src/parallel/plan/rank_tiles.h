/* SPDX-License-Identifier: Apache-2.0
 *
 * The forward tiles of a rank, as the model of time sees them: query rows in the rank's order, cut
 * every tile_m rows, each with all keys that one of its rows attends; and the last wave of a
 * launch, for which the smallest tiles are left, as the longest go first.
 */
#ifndef FFA_PARALLEL_PLAN_RANK_TILES_H
#define FFA_PARALLEL_PLAN_RANK_TILES_H

#include "parallel/dispatch/layout.h"

#include <ffa/parallel_plan.h>

/* Tiles of a rank and list that are looked at, at most: planning all ranks would take long else. */
enum { RANK_TILES_MAX = 4096 };

struct rank_tiles {
    int64_t count;
    int64_t cells; /* visited: rows of a tile, the last one's too, times its keys */
    int64_t least; /* of the smallest tile */
};

/* Count those of one list on top of *tiles. */
void rank_tiles_add(struct rank_tiles *tiles, const struct bands *bands, const struct layout *rows,
                    int32_t rank, int32_t tile_m);

/* Whether the model has tiles of forward launches: it knows SMs, and what a tile costs. */
static inline bool rank_tiles_count(const ffa_parallel_plan_opts *opts)
{
    return opts->sms && opts->forward_begin_keys;
}

/* What SMs wait behind the last whole wave of so many work items, one of which has the cells
 * `least`. */
int64_t rank_tiles_tail_ns(const ffa_parallel_plan_opts *opts, int64_t list_count, int64_t items,
                           int64_t least);

/* Beyond the time of `visited` cells, of all lists: what the tiles of all lists visit more (or
 * less), and the tail. */
int64_t rank_tiles_ns(const struct rank_tiles *tiles, const ffa_parallel_plan_opts *opts,
                      int64_t list_count, int64_t visited);

#endif
