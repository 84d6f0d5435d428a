/* SPDX-License-Identifier: Apache-2.0
 *
 * When work is done that SMs take item by item, each the next one as soon as it is free (list
 * scheduling). Times are in any unit.
 */
#ifndef FFA_CHOOSE_MAKESPAN_H
#define FFA_CHOOSE_MAKESPAN_H

#include "base/base.h"

enum { MAKESPAN_PLACES_MAX = 1024 };

/* Zero but for `places`: all are free at 0. */
struct makespan {
    int32_t places;                      /* SMs, or clusters: 1 to MAKESPAN_PLACES_MAX */
    double last;                         /* when the last item is done */
    double free_at[MAKESPAN_PLACES_MAX]; /* a heap */
};

/* The next item, which takes so long, goes to the place that is free first. */
void makespan_take(struct makespan *makespan, double time);

#endif
