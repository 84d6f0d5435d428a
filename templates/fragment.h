/* SPDX-License-Identifier: Apache-2.0
 *
 * What the attention kernels share: their rings and barriers, and masks on scores in wgmma's
 * accumulator layout (wgmma.h), where a thread has two rows.
 */
#ifndef FFA_FRAGMENT_H
#define FFA_FRAGMENT_H

#include "ptx.h"

/* A position in a ring of `count` slots; `parity` is that of the full barrier's current phase. */
template <int count> struct ring {
    int slot = 0;
    uint32_t parity = 0;
    FFA_DEVICE_MEMBER void next()
    {
        if (++slot == count) {
            slot = 0;
            parity ^= 1;
        }
    }
};

/* Named barriers 1 to 3, one a consumer warpgroup. */
FFA_DEVICE void warpgroup_sync(int warpgroup)
{
    if (warpgroup == 0)
        bar_sync<1, 128>();
    else if (warpgroup == 1)
        bar_sync<2, 128>();
    else
        bar_sync<3, 128>();
}

/* Columns of the thread's two rows outside their [lo, hi) become -inf; both less the thread's first
 * column. Most partial blocks are cut at one side only. */
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
