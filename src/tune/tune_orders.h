/* SPDX-License-Identifier: Apache-2.0
 *
 * What backward sessions say about the orders of a backward pass: mask by mask, how much faster the
 * best one is than the one that is chosen; and the constants with which the fast ones are chosen.
 * Sessions are compared as in tune_fit.h, through the baseline. Thread: any.
 */
#ifndef FFA_TUNE_TUNE_ORDERS_H
#define FFA_TUNE_TUNE_ORDERS_H

#include "cache/tune_store.h"
#include "choose/order.h"

#define TUNE_GAIN_MIN 0.003 /* below that, no gain is worth another table: of tiles, too */

/* An order, and whether it is without the lockstep that its mask's tiles can go in. */
struct tune_order {
    struct backward_order of;
    bool is_unlocked;
};

/* An order with one mask. */
struct tune_order_time {
    struct tune_order order;
    double us;          /* the baseline's, times its share */
    double gain, noise; /* time of the baseline / its own - 1, and what it may be off by */
    bool is_final;      /* it was in the final; else heats have dropped it, and its time is rough */
    /* Of the final, the gain in the laps that constants are searched with, and in the others, which
     * judge them: what was searched with luck has none there. Else `gain`. */
    double searched, judged, judged_noise;
};

/* One mask with the heads, dtype and columns of a session. */
struct tune_order_case {
    char mask[TUNE_MASK_BYTES];
    int32_t head_dim, head_dim_v, dtype, heads_q, heads_kv;
    int32_t is_deterministic;
    int32_t tile_m, tile_n, cluster;
    int32_t samples; /* of the baseline */
    double baseline_us;
    /* The baseline's, as the sessions kept it; parts 0: they did not. */
    struct tune_baseline kept;
    /* The sessions had orders with lockstep: its tiles can go in it, and could when it was timed.
     */
    bool has_lockstep;
    bool is_unlocked; /* and what is chosen does not: as backward_keeps_lockstep says. (The baseline
                       * is taken to have been likewise.) */
    /* That, or the choice by the table that the sessions began with. */
    struct backward_order chosen;
    struct backward_order fitted; /* by the constants that were found */
    /* Of that, as measured in the laps that judge, over the choice by the constants of before. */
    double fitted_us, fitted_gain, fitted_noise;
    int32_t time_count;
    struct tune_order_time *times; /* [time_count] owned, the fastest of the final first */
};

struct tune_orders {
    int32_t session_count;
    int32_t case_count;
    struct tune_order_case *cases; /* [case_count] owned */
    double best_gain; /* of the best order of each case that plans can choose, at least 0; the
                         geometric mean */
    struct order_costs before, costs; /* of the table that sessions began with; that were found */
    double gain, noise;               /* of these over those, likewise, in the laps that judge */
    bool is_published;                /* the table has them */
    char reason[160];                 /* why not; "" */
};

/* records [count]: of one device model, in a fixed order; forward ones are passed over. *out:
 * caller's, tune_orders_finish(). table: the one that sessions began with, but for its tiles; its
 * constants of orders become those that are published. Fails with FFA_NOMEM, and as ffa_mask_parse
 * and tile_build. */
ffa_status tune_orders_fit(struct tune_orders *out, const struct tune_record *const *records,
                           int32_t count, struct cost_table *table, ffa_error *err);
void tune_orders_finish(struct tune_orders *orders);

/* ---- the two halves of it ---- */

/* Search the constants with which backward_order_find chooses what was measured to be fast, and
 * publish them where their gain is above the noise (tune_order_fit.c). orders: with its cases,
 * their times and what is chosen; sm_count: of the device. Fails as tune_orders_fit. */
ffa_status tune_order_costs_fit(struct tune_orders *orders, int32_t sm_count,
                                struct cost_table *table, ffa_error *err);
/* What an order query asks of a case, and its tiles. *out: zero, the caller's, tile_finish(). */
struct order_query tune_order_query(const struct tune_order_case *of, int32_t sm_count,
                                    const struct cost_table *costs);
ffa_status tune_order_tiles(struct tile_plan *out, const struct tune_order_case *of,
                            ffa_error *err);

/* The constants of a table's `order`, one by one; NULL past the last. */
struct tune_order_constant {
    const char *name; /* "l2_misses[1]" */
    size_t offset;    /* of a double in struct order_costs */
    double most;      /* of what a search tries */
    bool is_ordered;  /* it is of deterministic passes only */
};
const struct tune_order_constant *tune_order_constant_at(int32_t index);
double tune_order_constant(const struct order_costs *costs, int32_t index);

#endif
