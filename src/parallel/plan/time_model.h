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

/* Cells of tiles that a band visits in the keys [begin, end): on a diagonal, half a tile a row more
 * than it attends. */
int64_t model_visited(const struct band *band, int64_t begin, int64_t end);

/* Add to cells [parts->count] what the query rows [begin, end) visit in each part of the keys. */
void model_add_visited(int64_t *cells, const struct bands *bands, int64_t begin, int64_t end,
                       const struct parts *parts);

#endif
