/* SPDX-License-Identifier: Apache-2.0
 *
 * attention_backward, pairs: clusters of two whose CTAs have 128 keys each. A CTA makes half of
 * dQ's columns over the keys of both, so half as much is added to the workspace. One thread has the
 * copy engine bring dS to the other CTA as soon as it is there (send_ds). The warpgroup of dQ
 * begins with its own keys, and then no longer needs their dS, and goes on with those of the other
 * CTA, some 900 cycles later. dQ then takes the place of the dS that has come.
 *
 * Of block of rows n, with place p = n % 2. A and B are the two CTAs, and the same happens with A
 * and B exchanged. (n): the phase of that block.
 *
 *     A's consumers  dS to A.ds[p]                                        arrive at A.ds_full[p]
 *     A's send_ds    waits for A.ds_full[p] (n); for A.dsx_full[p]
 *                    (n - 2), in whose next phase it expects the bytes
 *                    that come here; for A.dq_empty[p] (n - 2): B's
 *                    sender has read B.dq[p]. Copies A.ds[p] to B.dq[p]   bytes: B.dsx_full[p] (n)
 *     A's WG of dQ   waits for A.ds_full[p]; product over its own keys    4 at A.ds_empty[p]
 *                    waits for A.dsx_full[p] (n): B's dS is in A.dq[p]    1 at B.ds_empty[p]
 *                    product over B's keys (kx); all warps are behind
 *                    it; dQ to A.dq[p]                                    4 at A.dq_full[p]
 *     A's sender     adds A.dq[p] to the workspace; when it is read       1 at B.dq_empty[p]
 */
#ifndef FFA_BACKWARD_PAIRS_H
#define FFA_BACKWARD_PAIRS_H

#include "backward_consumer.h"

namespace {

/* Copies this CTA's dS of each block of rows to the other CTA, to the place that held the other's
 * dQ of two blocks before. */
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
            /* Else the arrival would count in that phase. The other CTA's bytes cannot come this
             * early, as it waits until the dQ that lies there is read. */
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

/* The CTA's piece of dQ, of the block of rows at `at`, whose own dS is there. It does not wait for
 * dq_empty: the other CTA's send_ds did, before it sent the dS that dQ goes over. */
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
    if (threadIdx.x % 128 == 0) /* the other CTA's dS has left it */
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
