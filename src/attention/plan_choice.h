/* SPDX-License-Identifier: Apache-2.0
 *
 * What is chosen for a plan: its tiles when it is made, the order of calls when they ask.
 */
#ifndef FFA_ATTENTION_PLAN_CHOICE_H
#define FFA_ATTENTION_PLAN_CHOICE_H

#include "attention/kernels.h"

/* What was chosen for a plan, and by what. */
struct plan_choice {
    struct choose_device device;  /* zero, but for the default table, on the CPU */
    int32_t pack_heads;           /* 0: none */
    int32_t heads_q, heads_kv;    /* of the kernels' spec; 0: not known */
    int32_t token_bytes;          /* of K and V together, a token of a kv head */
    int32_t backward_at_a_time;   /* tiles that the device works on together */
    bool can_leave_whole;         /* as of order_query, of the kernels */
    int32_t parts_max;            /* as of order_query, of the plan's options */
    int64_t row_bytes;            /* the same, of the kernels */
    struct backward_order forced; /* the order of the backward pass; parts 0: it is found */
    struct tile_choice tiles;     /* of the forward pass */
};

struct plan_choice plan_choice_begin(const ffa_kernels *kernels);

/* The cuts that the caller's options ask for. */
enum tile_cuts plan_cuts(const ffa_plan_opts *opts);
/* What is asked about a split of calls with heads_q query heads. cost: of the kernel of the tiles
 * that may be split. */
struct split_query plan_split_query(const ffa_plan *plan, const ffa_kernels *kernels,
                                    int32_t heads_q, struct tile_cost cost);

/* Build the plan's tiles, for one of the kernels, split over their keys where they may be and that
 * fills idle SMs. Fails as tile_build does, and with FFA_INVALID (heads_q). */
ffa_status plan_choose_tiles(ffa_plan *plan, const ffa_kernels *kernels, const ffa_mask *mask,
                             const ffa_plan_opts *opts, ffa_error *err);

/* The same for keys that arrive in stages; never split. */
ffa_status plan_choose_arriving(ffa_plan *plan, const ffa_kernels *kernels, const ffa_mask *mask,
                                const struct tile_stages *stages, ffa_error *err);

/* Kv heads of a forward L2 group of calls with so many kv heads, each with `tile_heads` work items
 * a tile: its query heads, 1 of packed ones; on all SMs but sm_margin. Found once for the same
 * three. Thread: any. */
int32_t plan_l2_heads_kv(const ffa_plan *plan, int32_t tile_heads, int32_t heads_kv,
                         int32_t sm_margin);
/* The order of a backward pass of the plan, found once for the heads and the device that it is used
 * with: finding it takes up to 1 ms, a call a hundredth of that. Of a plan of arriving keys: one
 * part or two, and L2 groups of one wave. Thread: any. */
struct backward_order plan_order(const ffa_plan *plan, const struct order_query *query);

/* Of a plan that has got its backward tiles, if any: whether they go in lockstep, for the heads of
 * the kernels' spec; where these are not known, as tiles can. */
void plan_settle_lockstep(ffa_plan *plan);

/* Give the backward pass an order instead of having it found, and with `is_unlocked` no lockstep
 * (never of deterministic kernels, whose tickets follow it): for tuning. order: one that
 * backward_order_find chooses among for the kernels. Before the plan is uploaded or called with. */
void plan_force_order(ffa_plan *plan, struct backward_order order, bool is_unlocked);

/* What an order is asked for: with the kernels that the plan was made for, on all SMs. */
struct order_query plan_order_query(const ffa_plan *plan, int32_t heads_q, int32_t heads_kv);

/* Fill in what was chosen; on a GPU, also for the heads of the kernels' spec. */
void plan_choice_info(ffa_plan_info *info, const ffa_plan *plan);

#endif
