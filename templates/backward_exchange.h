/* SPDX-License-Identifier: Apache-2.0
 *
 * attention_backward, specialised consumers: P goes from one warpgroup to the other, and in a
 * cluster of two dS to the other CTA, through shared memory.
 */
#ifndef FFA_BACKWARD_EXCHANGE_H
#define FFA_BACKWARD_EXCHANGE_H

#include "backward_gradients.h"

namespace {

/* Where the thread's P is in shared memory. In a cluster of two that is in the place of dS: each
 * warp reads its P before it writes the dS that it makes of it, to the bytes of its own 16 keys. */
FFA_DEVICE uint32_t p_place(const shared_view &smem, int slot)
{
    return smem.p(slot) + thread_now() / 32 * 2048 + thread_now() % 32 * 16;
}

/* Gives P (with a softcap its slope) to the other warpgroup. What a thread has of P, the same
 * thread there has of dP. */
template <int count>
FFA_DEVICE void give_p(const shared_view &smem, int slot, const uint32_t (&p)[count])
{
    const uint32_t at = p_place(smem, slot);

#pragma unroll
    for (int i = 0; i < count; i += 4)
        st_shared_v4(at + i / 4 * 512, p[i], p[i + 1], p[i + 2], p[i + 3]);
}

/* The P that was given. */
template <int count> FFA_DEVICE void take_p(uint32_t (&p)[count], const shared_view &smem, int slot)
{
    const uint32_t at = p_place(smem, slot);

#pragma unroll
    for (int i = 0; i < count; i += 4) {
        uint32_t four[4];
        ld_shared_v4(four, at + i / 4 * 512);
#pragma unroll
        for (int j = 0; j < 4; ++j)
            p[i + j] = four[j];
    }
}

/* The warp's part of dS is in shared memory. In a cluster of two the copy engine brings it to the
 * other block. */
FFA_DEVICE void ds_done(const shared_view &smem, int slot)
{
    const barriers bars = smem.bars();

    if (cluster > 1)
        fence_proxy_async();
    __syncwarp();
    if (threadIdx.x % 32 != 0)
        return;
    if constexpr (cluster == 1) {
        mbarrier_arrive(bars.ds_full(slot));
    } else {
        constexpr int bytes = own_ds_bytes / 4;
        const uint32_t from = smem.ds(slot) + thread_now() / 32 * bytes;

        mbarrier_arrive_expect_tx(bars.ds_full(slot), bytes); /* what the other block copies here */
        cp_async_bulk_at(from + own_ds_bytes, from, bars.ds_full(slot), bytes, cluster_rank() ^ 1);
    }
}

}

#endif
