/* SPDX-License-Identifier: Apache-2.0
 *
 * What the schedulers of both passes share: how the last block of a launch leaves the counters for
 * the next launch.
 */
#ifndef FFA_KERNEL_SCHEDULE_H
#define FFA_KERNEL_SCHEDULE_H

#include "ffa_device.h"

/* A scheduler has taken its last item. The last one of the launch sets both counters back to 0: all
 * others have taken their last item by then. */
template <typename args> FFA_DEVICE void scheduler_finish(const args &a)
{
    if (atomicAdd(&a.counters[1], 1) == (int)gridDim.x - 1) {
        atomicExch(&a.counters[0], 0);
        atomicExch(&a.counters[1], 0);
    }
}

#endif
