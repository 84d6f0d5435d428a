/* SPDX-License-Identifier: Apache-2.0
 *
 * The model of time: cells that a rank's tiles visit, and the nanoseconds their compute takes.
 */
#ifndef FFA_PARALLEL_PLAN_TIME_MODEL_H
#define FFA_PARALLEL_PLAN_TIME_MODEL_H

#include "parallel/dispatch/needs.h"

#include <ffa/parallel_plan.h>

/* No modelled time is longer, whatever the options say. */
#define MODEL_NS_MAX ((int64_t)1 << 55)

/* count * unit / per, at most MODEL_NS_MAX; none negative, per > 0. */
int64_t model_scaled(int64_t count, int64_t unit, int64_t per);

/* Nanoseconds of `cells` of one list in a pass. */
int64_t model_compute_ns(const ffa_parallel_plan_opts *opts, int64_t list_count, int64_t cells,
                         bool is_backward);

/* What tiles cost besides their cells, as cells, of `rows` that own tiles in each list. */
int64_t model_begin_cells(const ffa_parallel_plan_opts *opts, int64_t list_count, int64_t rows,
                          bool is_backward);

/* Cells of tiles that a band visits in the keys [begin, end): on a diagonal, half a tile a row more
 * than it attends. */
int64_t model_visited(const struct band *band, int64_t begin, int64_t end);

/* What query rows visit in each part of the keys. All zero at first, and again once every part with
 * visits has been taken. */
struct visits {
    struct parts parts;
    int64_t *cells; /* [parts]: of parts that an end or a diagonal of a band crosses */
    int64_t *rows;  /* [parts + 1]: of parts attended whole, rows by which they differ from the part
                     * before */
    int64_t now;    /* rows that attend the part taken last, whole */
    int64_t next;   /* the part behind it */
};

/* Borrows parts->at. For visits_finish whether or not it succeeds. */
ffa_status visits_init(struct visits *out, const struct parts *parts, ffa_error *err);
void visits_finish(struct visits *visits);
/* Add what the query rows [begin, end) visit. Takes time for parts crossed by an end or a diagonal,
 * not for parts attended whole. */
void visits_add(struct visits *visits, const struct bands *bands, int64_t begin, int64_t end);
/* The cells of a part, which is left without any. Parts are taken in ascending order; those that
 * nobody visits may be left out. A last call, with the number of parts, begins anew. */
int64_t visits_take(struct visits *visits, int64_t part);

#endif
