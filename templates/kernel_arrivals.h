/* SPDX-License-Identifier: Apache-2.0
 *
 * How attention kernels (forward the producer, backward the scheduler) wait for keys that arrive
 * while the kernel runs (arrivals.h), and how the backward pass says that gradients are complete.
 *
 * Other processors write keys and flags, so that the flag is read with ld.acquire.sys. The copy
 * engine reads the keys, through another proxy than the thread that reads the flag: a proxy fence
 * stands between.
 */
#ifndef FFA_KERNEL_ARRIVALS_H
#define FFA_KERNEL_ARRIVALS_H

#include "arrivals.h"
#include "kernel_wait.h"

/* The stage of a key, where keys arrive. */
FFA_DEVICE int stage_find(const arrivals &a, int key)
{
    int stage = 0;

#pragma unroll 1
    while (stage + 1 < a.count && key >= a.stage_end[stage])
        ++stage;
    return stage;
}

/* Waits for the keys of a stage other than 0 that has some. `name`: as of wait(). */
template <typename barriers>
FFA_DEVICE void stage_wait(const barriers &bars, const arrivals &a, int stage, int name)
{
    for (int tries = 0; (long long)(ld_acquire_sys(a.flags + stage) - a.value) < 0; ++tries) {
        wait_report(bars, tries, 1 << 20, name);
        __nanosleep(100);
    }
    fence_proxy_async_all();
}

/* Waits for the next stage, unless it is empty. stage: the last one that is there. */
template <typename barriers>
FFA_DEVICE void stage_wait_next(const barriers &bars, const arrivals &a, int &stage, int name)
{
    if (a.stage_end[++stage] > a.stage_end[stage - 1])
        stage_wait(bars, a, stage, name);
}

/* A warp's stores of a tile's gradients are done: counts up the counter of the tile's stage. The
 * last warp of all tells the owners of the stage's keys. tile_begin: the tile's first key. All
 * lanes of the warp. */
FFA_DEVICE void gradients_depart(const arrivals &a, const departures &d, int tile_begin)
{
    __syncwarp();
    if (threadIdx.x % 32 != 0 || a.count == 0)
        return;
    const int stage = stage_find(a, tile_begin);
    if (d.expected[stage] == 0)
        return;
    if (atomic_add_release_gpu(d.counters + stage, 1) + 1 != d.expected[stage])
        return;
    fence_acq_rel_sys();
    for (int i = d.owner_at[stage]; i < d.owner_at[stage + 1]; ++i)
        st_release_sys(d.blocks[d.owners[i]] + d.slot + stage, d.value);
}

#endif
