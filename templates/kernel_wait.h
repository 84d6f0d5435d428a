/* SPDX-License-Identifier: Apache-2.0
 *
 * How threads of the attention kernels wait: positions in ring buffers, waits on mbarriers, the
 * watchdog of debug kernels, and the barrier of one warpgroup.
 *
 * `barriers` is a pass's struct of mbarrier addresses (forward_layout.h, backward_layout.h). Its
 * is_debug says whether this is a debug kernel, keys_arrive whether its keys do (arrivals.h); its
 * watch() is the address of two words in shared memory: which wait takes too long, and how many
 * threads have finished.
 */
#ifndef FFA_KERNEL_WAIT_H
#define FFA_KERNEL_WAIT_H

#include "ptx.h"

/* A position in a ring of `count` slots; `parity` is that of the full barrier's current phase. Who
 * reads a slot waits for its full barrier with `parity`. Who fills it waits for its empty barrier
 * with `parity ^ 1`: of a barrier that was just initialised the phase before the first counts as
 * complete, so that the first round does not wait. */
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

/* In a debug kernel a wait of more than about a second leaves its name in shared memory, where the
 * watchdog finds it; again and again where keys arrive, as there the watchdog may not believe the
 * first one. tries_max: a power of two. (A call to printf here would spill the accumulators.) */
template <typename barriers>
FFA_DEVICE void wait_report(const barriers &bars, int tries, int tries_max, int name)
{
    if (barriers::is_debug &&
        (barriers::keys_arrive ? (tries & (tries_max - 1)) == tries_max - 1 : tries == tries_max))
        st_shared(bars.watch(), (uint32_t)name << 16 | threadIdx.x);
}

/* Waits until the phase of that parity is complete. The thread may sleep on the barrier. */
template <typename barriers>
FFA_DEVICE void wait(const barriers &bars, uint32_t bar, uint32_t parity, int name)
{
    for (int tries = 0; !mbarrier_try_wait_parity(bar, parity); ++tries)
        wait_report(bars, tries, 1 << 20, name);
}

/* For a thread whose warp has other threads at work: it must not sleep on the barrier. */
template <typename barriers>
FFA_DEVICE void wait_beside(const barriers &bars, uint32_t bar, uint32_t parity, int name)
{
    for (int tries = 0; !mbarrier_test_wait_parity(bar, parity); ++tries) {
        wait_report(bars, tries, 1 << 22, name);
        __nanosleep(20);
    }
}

/* Debug kernels: one of the threads that the watchdog counts has finished. */
template <typename barriers> FFA_DEVICE void watch_finished(const barriers &bars)
{
    atom_shared_add(bars.watch() + 4, 1);
}

/* The watchdog: one thread, until `count` threads have finished. report(thread, name) prints which
 * thread waits for what. patience_ms, where keys arrive: that other ranks may take. All of a block
 * wait for what one of its threads waits for, so no report counts before that time is over. */
template <typename barriers, typename function>
FFA_DEVICE void watchdog_run(const barriers &bars, uint32_t count, int patience_ms, function report)
{
    const unsigned long long begin = barriers::keys_arrive ? clock_ns() : 0;

    while (ld_shared(bars.watch() + 4) < count) {
        const uint32_t stuck = ld_shared(bars.watch());
        if (barriers::keys_arrive && stuck && clock_ns() - begin < patience_ms * 1000000ull) {
            st_shared(bars.watch(), 0u);
        } else if (stuck) {
            report((int)(stuck & 0xffff), (int)(stuck >> 16));
            __trap();
        }
        __nanosleep(1000);
    }
}

/* Named barriers 1 to 3, one for each consumer warpgroup, and in a pair of the backward pass one
 * for that of dQ. */
FFA_DEVICE void warpgroup_sync(int warpgroup)
{
    if (warpgroup == 0)
        bar_sync<1, 128>();
    else if (warpgroup == 1)
        bar_sync<2, 128>();
    else
        bar_sync<3, 128>();
}

#endif
