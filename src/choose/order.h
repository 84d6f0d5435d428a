/* SPDX-License-Identifier: Apache-2.0
 *
 * In which order a backward pass goes through its work: into how many parts the query heads of a kv
 * head are split, and how many streams, a kv head and a part each, are worked on together.
 *
 * A work item is a key tile of a stream. Sections of streams come one after another, in each the
 * tiles longest first, and of a tile the streams. Many parts are many short items, which leave no
 * SM idle at the end; but each part has a sum of dk and dv of its own, in fp32, to be written and
 * added up, and an item is begun and ended. Few streams in a section keep their Q, dO and dq in L2;
 * many even out tiles of different lengths. backward_order_find weighs them by a model of the pass,
 * whose figures were fitted to measurements on an H200: parts 1, 2, 4 and 8, sections of 1 to 4
 * rounds, of full, causal, window and packed masks of 2k to 16k tokens, heads 64:8, head_dim 128,
 * and deterministic ones of 4k and 16k, head_dim 128 and 192, causal ones of 256, too.
 */
#ifndef FFA_CHOOSE_ORDER_H
#define FFA_CHOOSE_ORDER_H

#include "tile/ticket.h"

struct order_query {
    int32_t group, heads_kv; /* query heads of a kv head, kv heads */
    int32_t at_a_time;       /* tiles worked on: SMs, or pairs of them; >= 1 */
};

struct backward_order {
    int32_t parts;  /* divides the group */
    int32_t rounds; /* 1, 2, 4: a section has about so many times the tiles at a time */
};

/* What is expected to take the least time. */
struct backward_order backward_order_find(const struct tile_plan *plan,
                                          const struct order_query *query);
/* Streams of a section; of a plan with a list for each kv head, whose tiles stand one after
 * another, there is one section, and this its streams. */
int64_t backward_order_section(const struct tile_plan *plan, const struct order_query *query,
                               struct backward_order order);
/* When the last tile is done, in blocks, if each SM (or pair) takes the next item as soon as it is
 * free. A queue of up to 32 items an SM, and 1024 SMs; beyond, what they take on average and half
 * of one. */
double backward_makespan(const struct tile_plan *plan, const struct order_query *query,
                         struct backward_order order);

#endif
