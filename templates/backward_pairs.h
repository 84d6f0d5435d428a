/* SPDX-License-Identifier: Apache-2.0
 *
 * attention_backward, pairs: clusters of two whose blocks have 128 keys each. A block makes half of
 * dQ's columns over the keys of both, so half as much is added to the workspace. One thread has the
 * copy engine bring dS to the other block as soon as it is there (send_ds). The warpgroup of dQ
 * begins with its own keys, and then no longer needs their dS, and goes on with those of the other
 * block, some 900 cycles later. dQ then takes the place of the dS that has come.
 */
#ifndef FFA_BACKWARD_PAIRS_H
#define FFA_BACKWARD_PAIRS_H

#include "backward_consumer.h"

namespace {

/* Brings each block's dS to the other block, whose place for it is that of the dQ of two blocks
 * before. */
FFA_DEVICE void send_ds(const shared_view &smem)
{
    const barriers bars = smem.bars();
    ring<tile_slots> tile_at;
    position at;

    for (;; tile_at.next()) {
        wait(bars, bars.tile_full(tile_at.slot), tile_at.parity, at_tile_full_producer);
        const backward_tile_slot *slot = smem.slot(tile_at.slot);
        if (slot->tile.count < 0)
            break;
        for (bool is_last = slot->tile.sweep_count == 0; !is_last;) {
            const int place = (int)at.ds_slot();
            const uint32_t before = at.ds_parity() ^ 1; /* of two blocks before */
            wait(bars, bars.ds_full(place), at.ds_parity(), at_ds_full);
            fence_proxy_async();
            is_last = ld_shared(smem.block_flags(at.count)) & BACKWARD_BLOCK_LAST;
            wait(bars, bars.dsx_full(place), before, at_dsx_full);
            mbarrier_arrive_expect_tx(bars.dsx_full(place), own_ds_bytes); /* what comes here */
            wait(bars, bars.dq_empty(place), before, at_dq_empty);
            cp_async_bulk_at(smem.dq(place), smem.ds(place), bars.dsx_full(place), own_ds_bytes,
                             cluster_rank() ^ 1);
            at.next();
        }
        mbarrier_arrive(bars.tile_empty(tile_at.slot));
    }
}

/* The block's piece of dQ, of the block of rows at `at`, whose own dS is there. */
FFA_DEVICE void pair_piece_run(const shared_view &smem, const position &at, int flags)
{
    const barriers bars = smem.bars();
    const int place = (int)at.ds_slot();
    float dq[32];

    dq_issue<64>(dq, smem.ds(place), smem.k() + piece_panel(0) * kv_panel_bytes);
    wgmma_wait<0>();
    touch(dq);
    if (elect_one())
        mbarrier_arrive(bars.ds_empty(place));
    wait(bars, bars.dsx_full(place), at.ds_parity(), at_dsx_full);
    if (threadIdx.x % 128 == 0) /* the other block's dS has left it */
        mbarrier_arrive_at(bars.ds_empty(place), cluster_rank() ^ 1);
    __syncwarp();
    dq_issue<64>(dq, smem.dq(place), smem.kx(), 1);
    wgmma_wait<0>();
    touch(dq);
    if (flags & BACKWARD_BLOCK_LAST && elect_one())
        mbarrier_arrive(bars.kv_empty());
    warpgroup_sync(consumers); /* all warps have read the dS that dQ goes over */
    copy_dq<64>(smem, dq, dq_place(smem, place, 64), flags, smem.block(at.count), 0, place);
}

}

#endif
