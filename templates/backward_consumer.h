/* SPDX-License-Identifier: Apache-2.0
 *
 * attention_backward: what all kinds of consumer share: how a tile begins and ends, and what
 * becomes of a specialised consumer's piece of dQ. (Main loops: attention_backward.cu,
 * backward_specialised.h.)
 */
#ifndef FFA_BACKWARD_CONSUMER_H
#define FFA_BACKWARD_CONSUMER_H

#include "backward_arrivals.h"
#include "backward_dq.h"
#include "backward_gradients.h"
#include "backward_products.h"
#include "backward_stores.h"

namespace {

FFA_DEVICE bool is_warp_leader()
{
    return threadIdx.x % 32 == 0;
}

/* The warp has read the record. */
FFA_DEVICE void tile_release(const barriers &bars, const ring<tile_slots> &at)
{
    __syncwarp();
    if (is_warp_leader())
        mbarrier_arrive(bars.tile_empty(at.slot));
}

FFA_DEVICE void consumer_finish(const barriers &bars)
{
    if (spec::debug && is_warp_leader())
        watch_finished(bars);
}

/* Specialised consumers: copies the warpgroup's piece of dQ of the block before the one at `at`,
 * whose flags are `flags`.
 */
template <int count>
FFA_DEVICE void copy_piece(const shared_view &smem, float (&dq)[count], const position &at,
                           uint32_t to, int flags, int warpgroup)
{
    const uint32_t before = at.before();

    dq_place_wait(smem.bars(), before % 2, warpgroup);
    copy_dq<2 * count>(smem, dq, to, flags, smem.block(before), 0, warpgroup);
}

/* Makes dQ of a tile's last block, which lags behind the loop, and gives K and V back. `at`: past
 * that block, whose dS is in `ds`. */
template <bool has_dq, int count>
FFA_DEVICE void last_piece(const shared_view &smem, float (&dq)[count], const ring<ds_slots> &ds,
                           const position &at, uint32_t to, int flags, int warpgroup)
{
    const barriers bars = smem.bars();

    if (has_dq || is_warp_leader())
        wait(bars, bars.ds_full(ds.slot), ds.parity, at_ds_full);
    if constexpr (has_dq) {
        if (cluster == 1)
            fence_proxy_async();
        piece_issue(dq, smem, ds.slot, warpgroup);
        wgmma_wait<0>();
        touch(dq);
    }
    if (is_warp_leader()) {
        release(bars.ds_empty(ds.slot));
        mbarrier_arrive(bars.kv_empty());
    }
    if constexpr (has_dq)
        copy_piece(smem, dq, at, to, flags, warpgroup);
}

}

#endif
