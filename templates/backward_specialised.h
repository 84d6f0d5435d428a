/* SPDX-License-Identifier: Apache-2.0
 *
 * attention_backward: specialised consumers, for more than 128 columns.
 *
 * dK and dV of 64 keys are then too many registers for one warpgroup. Both warpgroups have the same
 * 64 keys: the first has P and dV, the second dS and dK, and P goes from one to the other through
 * shared memory, thread to thread. The first is up to a block ahead, so that its exponentials run
 * under the other's products. Per block,
 *
 *     first:  issue S; wait for S; P; wait for dS of the block before; give P; issue its dQ; issue
 * dV; wait for dQ and copy it; wait for dV second: issue dP; wait for dP and P; dS; issue dQ of the
 * block before; dS to shared memory; issue dK; wait for dQ and copy it; wait for dK
 */
#ifndef FFA_BACKWARD_SPECIALISED_H
#define FFA_BACKWARD_SPECIALISED_H

#include "backward_consumer.h"

namespace {

/* P, dV, and its piece of dQ. */
template <int rows>
FFA_DEVICE void consumer_run_p(const attention_backward_args &a, const shared_view &smem)
{
    const barriers bars = smem.bars();
    const bool is_leader = is_warp_leader();
    const thread_places my = places_find(smem, 0, p_columns);
    ring<tile_slots> tile_at;
    position at;
    ring<ds_slots> ds_next;

    for (;; tile_at.next()) {
        wait(bars, bars.tile_full(tile_at.slot), tile_at.parity, at_tile_full_consumer);
        const backward_tile_slot *slot = smem.slot(tile_at.slot);
        if (slot->tile.count < 0)
            break;
        float dv[dv_regs];
        set_zero(dv);
        if (slot->tile.sweep_count > 0) {
            float s[rows / 2], dq[p_columns / 2];
            float2 lse[lse_regs];
            uint32_t p[p_regs], slope[p_regs];
            kept_keys<k_kept> k;
            ring<ds_slots> ds_before = ds_next;
            int flags_before = 0;

            kv_ready(a, smem, slot, 0);
            keys_keep(k, smem.k());
            for (bool is_first = true, is_last = false; !is_last; is_first = false) {
                const int flags = q_wait(smem, at);
                is_last = flags & BACKWARD_BLOCK_LAST;
                q_cut(smem, at, flags, 0);
                stats_load(lse, smem.stats(at.slot()) + my.stats);
                scores_issue<head_dim>(s, k, smem.k(), smem.q(at.slot()));
                wgmma_wait<0>();
                touch(s);
                if (!(flags & BACKWARD_BLOCK_FULL)) {
                    const mask_bounds bounds = bounds_find(a, slot, *smem.block(at.count), 0);
                    mask_columns(s, bounds.lo, bounds.hi);
                    stats_load(lse, smem.stats(at.slot()) + my.stats); /* again: registers */
                }
                make_p(p, slope, s, lse, smem.stats(at.slot()) + my.stats, a);
                if (cluster > 1)
                    wait(bars, bars.ds_empty(ds_next.slot), ds_next.parity ^ 1, at_ds_empty);
                /* Once dS of the block before is there, the other warpgroup has read that block's
                 * P. */
                if (!is_first)
                    wait(bars, bars.ds_full(ds_before.slot), ds_before.parity, at_ds_full);
                if (cluster ==
                    1) /* in a cluster of two, whoever made dS has fenced before copying it */
                    fence_proxy_async();
                give_p(smem, ds_next.slot, spec::softcap ? slope : p);
                __syncwarp();
                if (is_leader) {
                    mbarrier_arrive(bars.p_full());
                    release(bars.q_empty(at.slot()));
                }
                /* With the first block, dQ of old dS, which nobody uses: a conditional product
                 * would make the compiler wait for all of them. */
                if constexpr (p_has_dq)
                    piece_issue(dq, smem, ds_before.slot, 0);
                dout_ready(smem, at, flags, 0);
                gradient_issue<head_dim_v>(dv, p, smem.dout(at.dout_slot()));
                if constexpr (p_has_dq) {
                    wgmma_wait<1>();
                    touch(dq);
                }
                if (!is_first) {
                    if (is_leader)
                        release(bars.ds_empty(ds_before.slot));
                    if constexpr (p_has_dq)
                        copy_piece(smem, dq, at, my.dq, flags_before, 0);
                }
                wgmma_wait<0>();
                touch(dv);
                touch(p);
                if (is_leader)
                    release(bars.dout_empty(at.dout_slot()));
                flags_before = flags;
                ds_before = ds_next;
                ds_next.next();
                at.next();
            }
            last_piece<p_has_dq>(smem, dq, ds_before, at, my.dq, flags_before, 0);
        }
        const int thread = thread_now(), lane = thread % 32;
        const int key = slot->tile.begin + thread / 32 * 16 + lane / 4;
        const int begin = slot->tile.begin, key_end = begin + slot->tile.count;
        const gradient_place dv_to = dv_find(a, slot);
        tile_release(bars, tile_at);
        store_dv(a, dv, dv_to, key, key_end, lane);
        tile_departs(a, begin);
    }
    consumer_finish(bars);
}

/* dS, dK, and its piece of dQ. */
template <int rows>
FFA_DEVICE void consumer_run_ds(const attention_backward_args &a, const shared_view &smem)
{
    const barriers bars = smem.bars();
    const bool is_leader = is_warp_leader();
    const thread_places my = places_find(smem, 1, 64);
    ring<tile_slots> tile_at;
    position at;
    ring<ds_slots> ds_next;
    ring<1> p_next;

    for (;; tile_at.next()) {
        wait(bars, bars.tile_full(tile_at.slot), tile_at.parity, at_tile_full_consumer);
        const backward_tile_slot *slot = smem.slot(tile_at.slot);
        if (slot->tile.count < 0)
            break;
        float dk[dk_regs];
        set_zero(dk);
        if (slot->tile.sweep_count > 0) {
            float dp[rows / 2], dq[32];
            float2 d[d_regs];
            uint32_t p[p_regs], ds[p_regs];
            kept_keys<v_kept> v;
            ring<ds_slots> ds_before = ds_next;
            int flags_before = 0;

            kv_ready(a, smem, slot, 1);
            keys_keep(v, smem.v());
            for (bool is_first = true, is_last = false; !is_last; is_first = false) {
                const int flags = q_wait(smem, at);
                is_last = flags & BACKWARD_BLOCK_LAST;
                q_cut(smem, at, flags, 1);
                stats_load(d, smem.stats_d(at.slot()) + my.stats);
                dout_ready(smem, at, flags, 1);
                scores_issue<head_dim_v>(dp, v, smem.v(), smem.dout(at.dout_slot()));
                wgmma_wait<0>();
                touch(dp);
                if (is_leader)
                    release(bars.dout_empty(at.dout_slot()));
                wait(bars, bars.p_full(), p_next.parity, at_p_full);
                take_p(p, smem, ds_next.slot);
                make_ds(ds, p, dp, d, smem.stats_d(at.slot()) + my.stats);
                /* All dS of the block before is there: P was given only after that. */
                if (cluster == 1)
                    fence_proxy_async();
                piece_issue(dq, smem, ds_before.slot, 1);
                if (cluster > 1)
                    __syncwarp(); /* all lanes have read their P, where dS goes */
                else
                    wait(bars, bars.ds_empty(ds_next.slot), ds_next.parity ^ 1, at_ds_empty);
                store_ds(ds, my.ds + ds_next.slot * ds_bytes);
                gradient_issue<head_dim>(
                    dk, ds, smem.q(at.slot())); /* in a cluster under the fence of dS */
                ds_done(smem, ds_next.slot);
                wgmma_wait<1>(); /* for dQ, not for dK */
                touch(dq);
                if (!is_first) {
                    if (is_leader)
                        release(bars.ds_empty(ds_before.slot));
                    copy_piece(smem, dq, at, my.dq, flags_before, 1);
                }
                wgmma_wait<0>();
                touch(dk);
                touch(ds);
                if (is_leader)
                    release(bars.q_empty(at.slot()));
                flags_before = flags;
                ds_before = ds_next;
                ds_next.next();
                p_next.next();
                at.next();
            }
            last_piece<true>(smem, dq, ds_before, at, my.dq, flags_before, 1);
        }
        const int thread = thread_now(), lane = thread % 32;
        const int key = slot->tile.begin + thread / 32 * 16 + lane / 4;
        const int begin = slot->tile.begin, key_end = begin + slot->tile.count;
        const gradient_place dk_to = dk_find(a, slot);
        tile_release(bars, tile_at);
        store_dk(a, dk, dk_to, key, key_end, lane);
        tile_departs(a, begin);
    }
    consumer_finish(bars);
}

}

#endif
