/* SPDX-License-Identifier: Apache-2.0
 *
 * Into how many parts a backward pass splits the query heads of a kv head.
 *
 * A work item is a key tile and a part. Many parts are many short items, which leave no SM idle at
 * the end, and whose blocks pass over the same Q, dO and dq together; but each part has a sum of dk
 * and dv of its own, in fp32, to be written and added up. backward_parts weighs the three by a
 * model of one pass. Its figures were fitted to measurements on an H200: parts 1, 2, 4 and 8 of
 * full, causal, window and packed masks of 2k to 16k tokens, heads 64:8, head_dim 128.
 */
#ifndef FFA_TILE_PARTS_H
#define FFA_TILE_PARTS_H

#include "tile/backward.h"

struct parts_query {
    int32_t group, heads_kv; /* query heads of a kv head, kv heads */
    int32_t at_a_time;       /* tiles worked on: SMs, or pairs of them; >= 1 */
};

/* The divisor of the group that is expected to take the least time. */
int32_t backward_parts(const struct backward_plan *plan, const struct parts_query *query);
/* When the last tile is done, in blocks, if each SM (or pair) takes the next item as soon as it is
 * free, the tiles one after another: `parts` divides the group. A queue of up to 32 items an SM,
 * and 1024 SMs; beyond, what they take on average and half of one. (A kernel takes sections of
 * streams one after another, which is near enough.) */
double backward_makespan(const struct backward_plan *plan, const struct parts_query *query,
                         int32_t parts);

#endif
