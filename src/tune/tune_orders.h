/* SPDX-License-Identifier: Apache-2.0
 *
 * What backward sessions say about the orders of a backward pass, mask by mask: how much faster the
 * best one is than the one that is chosen. Sessions are compared as in tune_fit.h, through the
 * baseline. Thread: any.
 */
#ifndef FFA_TUNE_TUNE_ORDERS_H
#define FFA_TUNE_TUNE_ORDERS_H

#include "cache/tune_store.h"
#include "choose/order.h"

/* An order, and whether it is without the lockstep that its mask's tiles would go in. */
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
};

/* One mask with the heads, dtype and columns of a session. */
struct tune_order_case {
    char mask[TUNE_MASK_BYTES];
    int32_t head_dim, head_dim_v, dtype, heads_q, heads_kv;
    int32_t is_deterministic;
    int32_t tile_m, tile_n, cluster;
    int32_t samples; /* of the baseline */
    double baseline_us;
    struct backward_order chosen; /* by the table that the sessions began with */
    int32_t time_count;
    struct tune_order_time *times; /* [time_count] owned, the fastest of the final first */
};

struct tune_orders {
    int32_t session_count;
    int32_t case_count;
    struct tune_order_case *cases; /* [case_count] owned */
    double best_gain;              /* of the best order of each case, the geometric mean */
    double gain, noise;            /* of the table's constants over those of before, likewise */
    bool is_published;
    char reason[160]; /* why not; "" */
};

/* records [count]: of one device model, in a fixed order; forward ones are passed over. *out:
 * caller's, tune_orders_finish(). table: the one that sessions began with, but for its tiles.
 * Fails with FFA_NOMEM, and as ffa_mask_parse and tile_build. */
ffa_status tune_orders_fit(struct tune_orders *out, const struct tune_record *const *records,
                           int32_t count, struct cost_table *table, ffa_error *err);
void tune_orders_finish(struct tune_orders *orders);

#endif
