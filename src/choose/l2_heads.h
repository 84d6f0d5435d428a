/* SPDX-License-Identifier: Apache-2.0
 *
 * How many kv heads a forward pass works on together: an L2 group (templates/forward_schedule.h).
 *
 * Few heads at a time have few bytes of K and V under work, which stay in L2, and SMs that read the
 * same block at the same time, whose requests L2 joins. That is no faster in cycles, but saves
 * energy, and so gains clock. Many heads have many work items in a group, so that the last group's
 * come out even over the SMs.
 */
#ifndef FFA_CHOOSE_L2_HEADS_H
#define FFA_CHOOSE_L2_HEADS_H

#include "choose/cost_table.h"
#include "tile/tile.h"

struct l2_query {
    int32_t heads_kv;      /* >= 1 */
    int32_t tile_heads;    /* work items of a tile for a kv head: its query heads, or 1 of packed */
    int32_t tile_rows;     /* of the kernel: query rows of a tile times packed heads */
    int32_t key_bytes;     /* K and V together, a key of a kv head */
    struct tile_cost cost; /* of the kernel */
    int32_t sm_margin;     /* SMs of the device that are left free for others */
};

/* Kv heads of an L2 group, 1 to heads_kv, with which the pass is expected to end first. There are
 * as few groups as that takes, of one size, so that the last one is the least smaller. The plan is
 * a forward one of a list for all heads (else nothing depends on it, and it is heads_kv). Only
 * reads the plan; any thread may call it. It takes up to 0.4 ms with 3,000 tiles, and
 * grows with them. */
int32_t choose_l2_heads(const struct tile_plan *plan, const struct l2_query *query,
                        const struct choose_device *device);

/* What choose_l2_heads compares: the time of the pass with this many kv heads in an L2 group, as a
 * multiple of that of SMs which all end together and find K and V in L2. The
 * plan has tiles. For tests. */
double l2_heads_time(const struct tile_plan *plan, const struct l2_query *query,
                     const struct choose_device *device, int32_t heads);

#endif
