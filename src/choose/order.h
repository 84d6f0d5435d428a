/* SPDX-License-Identifier: Apache-2.0
 *
 * In which order a backward pass goes through its work: into how many parts the query heads of a kv
 * head are divided, and how many head groups (a kv head and one of its parts) form an L2 group.
 *
 * A work item is a key tile with a head group. L2 groups come one after another; in an L2 group the
 * tiles come longest first, and each tile with all of the head groups. Many parts are many short
 * items, which leave no SM idle at the end; but each part has a sum of dk and dv of its own, in
 * fp32, to be written and added up, and an item costs something to begin and to end. Few head
 * groups in an L2 group keep their Q, dO and dq in L2; many even out tiles of different lengths.
 * backward_order_find weighs these by a model of the pass, with the constants of a cost table.
 */
#ifndef FFA_CHOOSE_ORDER_H
#define FFA_CHOOSE_ORDER_H

#include "choose/cost_table.h"
#include "choose/visits.h"
#include "tile/tile.h"
#include <ffa/kernel.h>

struct backward_order {
    int32_t parts;       /* divides the group */
    int32_t waves;       /* about so many waves of work items in an L2 group: 1 to
                          * ORDER_WAVES_MAX */
    int32_t whole_heads; /* kv heads that come first and are not divided into parts */
};

/* The share of visits that miss, of tiles of one plan that are at work together. Zero at first. */
enum { ORDER_SHARING_PLACES = 64 };
struct order_sharing {
    struct {
        int64_t at_work; /* so many tiles; 0: no answer */
        double misses;
    } at[ORDER_SHARING_PLACES];
};

/* Simulated passes of one plan, heads and device, and what its tiles share, which are most of the
 * time of backward_order_find: for who asks again with other costs. Zero at first; a later one
 * takes the place of another. */
enum { ORDER_MEMO_PLACES = 2048 };
struct order_known {
    struct backward_order order; /* parts 0: none */
    double item, makespan;       /* item_blocks, or item_blocks_ordered */
    float missed[VISIT_PERIODS]; /* visits.h */
};
struct order_memo {
    struct order_known at[ORDER_MEMO_PLACES];
    struct order_sharing sharing;
};

struct order_query {
    int32_t group, heads_kv;        /* query heads of a kv head, kv heads */
    int32_t at_a_time;              /* tiles worked on together: SMs, or clusters of two; >= 1 */
    const struct cost_table *costs; /* NULL: the default */
    /* The main kernel can store dk and dv of some kv heads in the tensors' dtype, and sums of parts
     * of others: some kv heads may be left whole. */
    bool can_leave_whole;
    int32_t parts_max;             /* 0: as many as there are query heads */
    struct order_memo *memo;       /* NULL, or the caller's, used by one thread at a time */
    int64_t row_bytes;             /* of Q, dO and the fp32 dq of one row and query head */
    int64_t l2_bytes;              /* of the device; 0: of the one that the costs are of */
    struct order_sharing *sharing; /* of backward_order_find's own; NULL */
};

static inline bool order_is_same(struct backward_order a, struct backward_order b)
{
    return a.parts == b.parts && a.waves == b.waves && a.whole_heads == b.whole_heads;
}

static inline int64_t order_row_bytes(int32_t head_dim, int32_t head_dim_v, ffa_dtype dtype)
{
    return (int64_t)(head_dim + head_dim_v) * (int64_t)ffa_dtype_bytes(dtype) +
           (int64_t)head_dim * (int64_t)sizeof(float);
}

/* Build the tiles of a backward pass, as tile_build does. Where opts leaves it open, documents are
 * apart if that saves 3 % of the work: all blocks of a tile across documents are partial, and as
 * one of the longest it comes first in its L2 group, when none of their rows are in L2. group:
 * query heads of a kv head; 0: not known, and nothing is chosen. The same in every process,
 * whatever the device and its costs. Fails as tile_build does. */
ffa_status backward_tiles_build(struct tile_plan *out, const ffa_mask *mask,
                                const struct tile_options *opts, int32_t group, ffa_error *err);
/* Whether the tiles of a plan that can go in lockstep should. Not where they begin in several waves
 * and are of so many documents that these, all heads of a kv head in lockstep, take more of L2 than
 * keeps them in it until the next tile comes by: head by head is faster there. Ordered accumulation
 * goes in lockstep in any case. */
bool backward_keeps_lockstep(const struct tile_plan *plan, const struct order_query *query);
/* Whether backward_wants_pairs has to be asked: not where all tiles of the plan with one block a
 * tile are short, as those of pairs are at most twice as long. */
bool backward_may_want_pairs(const struct tile_plan *alone);
/* Whether a pass is faster with pairs of blocks, whose tiles are those of `pairs`, than with one
 * block a tile, those of `alone`, a plan of the same mask: where pairs visit hardly more of it, and
 * what a tile goes through is not short and stays in L2. (Pairs drift apart, and what they share
 * comes from device memory again then; tickets hold them together.) With ordered accumulation the
 * same on every device. Of the query it reads row_bytes, costs and l2_bytes. */
bool backward_wants_pairs(const struct tile_plan *alone, const struct tile_plan *pairs,
                          const struct order_query *query);

/* The order that is expected to take the least time; where kv heads may be left whole, of those
 * that take as long within 1 % the one with the fewest sums of parts. */
struct backward_order backward_order_find(const struct tile_plan *plan,
                                          const struct order_query *query);
/* The share of the time that parts have to save, or one part is chosen. */
double backward_parts_worth(const struct tile_plan *plan, const struct order_query *query);
/* What the model says of an order, which backward_order_find compares: in blocks of one query head.
 */
double backward_order_time(const struct tile_plan *plan, const struct order_query *query,
                           struct backward_order order);
/* Head groups in an L2 group. In a plan with a list of tiles for each kv head the tiles of the
 * lists follow one another: there is one L2 group, of all head groups. */
int64_t backward_order_l2_group(const struct tile_plan *plan, const struct order_query *query,
                                struct backward_order order);
/* Of keys that arrive in stages: with how many of `head_groups`, at least 1, own keys come before
 * the first stage, in L2 groups of one wave; with the others they come last. first_share: of the
 * own keys' work that has to come first, at least. In lockstep a group of items that has all
 * lengths ends with its SMs in lockstep, if it has an even number of waves. */
int32_t backward_own_heads(int32_t own_tiles, int32_t head_groups, int32_t at_a_time,
                           double first_share);
/* When the last tile is done, in blocks, if each SM (or cluster) takes the next item as soon as it
 * is free. Simulated for up to 32 items an SM and 1024 SMs; beyond that, what an SM has on average
 * and half of an item. The order is found by parts of it; alone it is for tests. */
double backward_makespan(const struct tile_plan *plan, const struct order_query *query,
                         struct backward_order order);

#endif
