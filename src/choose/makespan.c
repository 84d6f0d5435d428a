/* SPDX-License-Identifier: Apache-2.0 */
#include "choose/makespan.h"

void makespan_take(struct makespan *makespan, double time)
{
    double *heap = makespan->free_at;
    const double at = heap[0] + time;
    int32_t hole = 0;

    for (int32_t child = 1; child < makespan->places; child = 2 * hole + 1) {
        if (child + 1 < makespan->places && heap[child + 1] < heap[child])
            child++;
        if (heap[child] >= at)
            break;
        heap[hole] = heap[child];
        hole = child;
    }
    heap[hole] = at;
    if (at > makespan->last)
        makespan->last = at;
}
