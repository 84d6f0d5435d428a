/* SPDX-License-Identifier: Apache-2.0
 *
 * From samples to a cost table: what a tile of each configuration costs, and which kernels, up to
 * three, a group gets: of so many columns, for packed heads or heads apart.
 *
 * The time of a pass is that of the library's own model (makespan.h): each work item costs `begin`
 * and `key` for each key of its blocks. Sessions of several machines of one device model, or of
 * several specs, are fitted together; the result is the same whatever their order. Thread: any.
 */
#ifndef FFA_TUNE_TUNE_FIT_H
#define FFA_TUNE_TUNE_FIT_H

#include "cache/tune_store.h"
#include "choose/tile_choice.h"
#include "tune/tune_orders.h"

enum {
    TUNE_KERNELS_MAX = 3 /* of a group */,
    TUNE_TILE_GROUPS_MAX = 50 /* columns of q and v, twice */
};

/* One mask with the heads and dtype of a session. */
struct tune_case {
    char mask[TUNE_MASK_BYTES];
    int32_t dtype, heads_q, heads_kv;
    int32_t samples;    /* of the baseline */
    double baseline_us; /* the median of what the library chooses now */
    double chosen_us;   /* of the kernel that the fitted costs choose */
    int32_t chosen;     /* its index in kernels; -1: no kernel can be chosen */
    double gain, noise; /* baseline_us / chosen_us - 1, and what it may be off by */
};

/* A configuration with samples of all cases, or the baseline where that has one kernel, and the
 * costs that fit them. */
struct tune_kernel {
    int32_t consumers, tile_n;
    double begin_us, key_us;
    double call_us;  /* what a call takes beside its tiles */
    double residual; /* the mean error of the model, as a share of the time */
    double relative; /* the mean over all cases of its time, as a share of the baseline's */
    int32_t rank;    /* in the table: 0 the first; -1: not in it */
    struct tile_cost cost;
};

/* What sessions say about the kernels of one group of a table's tiles. */
struct tune_group {
    int32_t head_dim, head_dim_v; /* columns */
    bool is_packed;
    int32_t session_count;
    int32_t case_count, kernel_count;
    struct tune_case *cases;     /* [case_count] owned */
    struct tune_kernel *kernels; /* [kernel_count] owned, the fastest over all cases first */
    double gain, noise; /* over the cases, the geometric mean, by cross-validation: what each half
                         * of the final's laps chooses is timed by the other half */
    bool is_published;  /* the table has these kernels; else those of the base */
    char reason[160];   /* why not; "" */
};

struct tune_fit {
    struct cost_table table;
    struct tune_group groups[TUNE_TILE_GROUPS_MAX];
    int32_t group_count;
    struct tune_orders orders; /* of backward sessions */
};

/*
 * Fit. records [count]: checked, of one device model, templates digest and base table, a copy of
 * which the table starts as. *out: caller's, tune_fit_finish().
 * Fails as tune_fit_check, with FFA_NOMEM, and as ffa_mask_parse and cost_table_read.
 */
ffa_status tune_fit(struct tune_fit *out, const struct tune_record *records, int32_t count,
                    ffa_error *err);
void tune_fit_finish(struct tune_fit *fit);

/* Whether sessions may be fitted together. FFA_INVALID, naming what differs. */
ffa_status tune_fit_check(const struct tune_record *records, int32_t count, ffa_error *err);

#endif
