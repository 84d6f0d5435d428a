/* SPDX-License-Identifier: Apache-2.0
 *
 * Masks on scores in wgmma's accumulator layout (wgmma.h), where a thread has two rows.
 */
#ifndef FFA_KERNEL_MASK_H
#define FFA_KERNEL_MASK_H

#include "ffa_device.h"

/* Of the thread's two rows, the columns outside [lo, hi) become -inf. Both bounds count from the
 * thread's first column. The two sides are tested apart, as most partial blocks are cut at one side
 * only. */
template <int count>
FFA_DEVICE void mask_columns(float (&s)[count], const int (&lo)[2], const int (&hi)[2])
{
    constexpr int width = 2 * count;

    if (__any_sync(0xffffffffu, hi[0] < width || hi[1] < width)) {
#pragma unroll
        for (int i = 0; i < count; ++i)
            if (i / 4 * 8 + i % 2 >= hi[i / 2 % 2])
                s[i] = neg_inf();
    }
    if (__any_sync(0xffffffffu, lo[0] > 0 || lo[1] > 0)) {
#pragma unroll
        for (int i = 0; i < count; ++i)
            if (i / 4 * 8 + i % 2 < lo[i / 2 % 2])
                s[i] = neg_inf();
    }
}

#endif
