/* SPDX-License-Identifier: Apache-2.0
 *
 * attention_backward: specialised consumers, for more than 128 columns.
 *
 * dK and dV of 64 keys are then too many registers for one warpgroup. Both warpgroups have the same
 * 64 keys: the first has P and dV, the second dS and dK, and P goes from one to the other through
 * shared memory, thread to thread. The first is up to a block ahead, so that its exponentials run
 * under the other's products. Per block,
 *
 *     first:   issue S; wait for S; P; wait for dS of the block before; give P; issue its dQ;
 *              issue dV; wait for dQ and copy it; wait for dV
 *     second:  issue dP; wait for dP and P; dS; issue dQ of the block before; dS to shared memory;
 *              issue dK; wait for dQ and copy it; wait for dK
 *
 * What they wait for and give, of block n (the table of barriers: backward_layout.h):
 *
 *                      first (P)                          second (dS)
 *     waits for        q_full (n)                         q_full (n), dout_full (n)
 *     S, dP read       -                                  gives dout_empty (n)
 *     waits for        ds_full (n - 1), and in a cluster  p_full (n)
 *                      ds_empty of n's slot
 *     gives            p_full (n), q_empty (n)            -
 *     issues           dQ (n - 1)                         dQ (n - 1)
 *     then             waits for dout_full (n); issues    one CTA: waits for ds_empty of n's slot;
 *                      dV (n)                             writes dS; issues dK (n); gives ds_full
 * (n) dQ is done       gives ds_empty (n - 1); waits for dq_empty; copies; gives dq_full at the end
 * gives dout_empty (n)               gives q_empty (n)
 *
 * (P and dS to others: backward_exchange.h. Whose dQ is what: backward_pieces.h.)
 */
#ifndef FFA_BACKWARD_SPECIALISED_H
#define FFA_BACKWARD_SPECIALISED_H

#include "backward_consumer.h"
#include "backward_exchange.h"
#include "backward_pieces.h"

namespace {

/* Steps of 16 columns that a warpgroup keeps in registers over a tile (kept_keys), as many as there
 * are registers for: the first has K beside dV, the second V beside dK. */
constexpr int kept_steps(int columns, int gradient_regs)
{
    const int fitting = (144 - gradient_regs) / 4;
    return spec::softcap ? 0 : columns / 16 < fitting ? columns / 16 : fitting;
}
constexpr int k_steps_kept = kept_steps(head_dim, dv_regs);
constexpr int v_steps_kept = kept_steps(head_dim_v, dk_regs);

/* The thread's places in shared memory, kept over the loop. */
struct thread_places {
    uint32_t ds, dq, stats;
};

FFA_DEVICE thread_places places_find(const shared_view &smem, int warpgroup, int dq_columns)
{
    thread_places at = { ds_place(smem, 0), dq_place(smem, warpgroup % dq_places, dq_columns),
                         stats_place() };

    keep(at.ds);
    if constexpr (!spec::softcap) { /* it has no registers to spare */
        keep(at.dq);
        keep(at.stats);
    }
    return at;
}

/* ---- a warpgroup's piece of dQ ---- */

/* Issues the product of warpgroup w's piece, from the dS in slot `ds`: over the block's keys, and
 * in a cluster of two over those of the other block. */
template <int count>
FFA_DEVICE void piece_issue(float (&dq)[count], const shared_view &smem, int ds, int w)
{
    constexpr int steps = cta_keys / 16;
    const int columns_at = 2 * piece_column(w);
    const uint64_t a = descriptor_mn_major(smem.ds(ds), ds_panel_bytes);
    const uint64_t own = descriptor_mn_major(
        smem.k() + piece_panel(w) * kv_panel_bytes + columns_at, kv_panel_bytes);
    const uint64_t other =
        descriptor_mn_major(smem.kx() + w * kv_panel_bytes + columns_at, kv_panel_bytes);

    touch(dq);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < cluster * steps; ++step)
        wgmma<2 * count, spec::dtype>::ss_mn(
            dq, descriptor_advance(a, step * 2048),
            descriptor_advance(step < steps ? own : other, step % steps * 2048), step > 0);
    wgmma_commit();
}

/* Waits for the place of piece w of a block. parity: of the number of blocks before. */
FFA_DEVICE void dq_place_wait(const barriers &bars, uint32_t parity, int w)
{
    if (dq_places > 1)
        wait(bars, bars.dq_empty(w), parity ^ 1, at_dq_empty);
    else /* the piece before this one is the other one, of this block or the one before */
        wait(bars, bars.dq_empty(w ^ 1), w == 0 ? parity ^ 1 : parity, at_dq_empty);
}

/* The block before the one at `at`, whose record is still there when its Q slot is another
 * block's. */
FFA_DEVICE uint32_t block_before(const position &at)
{
    return (at.count ? at.count : block_slots) - 1;
}

/* Copies the warpgroup's piece of dQ of the block before the one at `at`, whose flags are `flags`.
 */
template <int count>
FFA_DEVICE void copy_piece(const shared_view &smem, float (&dq)[count], const position &at,
                           uint32_t to, int flags, int warpgroup)
{
    const uint32_t before = block_before(at);

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

/* ---- the main loops ---- */

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
            kept_keys<k_steps_kept> k;
            ring<ds_slots> ds_before = ds_next;
            int flags_before = 0;

            kv_ready(a, smem, slot, 0);
            keys_keep(k, smem.k());
            for (bool is_first = true, is_last = false; !is_last; is_first = false) {
                const int flags = q_wait(smem, at);
                is_last = flags & BACKWARD_BLOCK_LAST;
                q_cut(smem, at, flags, 0);
                stats_load(lse, smem.stats(at.slot()) + my.stats);
                keys_by_rows_issue<head_dim>(s, k, smem.k(), smem.q(at.slot()));
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
    warp_finish(bars);
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
            kept_keys<v_steps_kept> v;
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
                keys_by_rows_issue<head_dim_v>(dp, v, smem.v(), smem.dout(at.dout_slot()));
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
    warp_finish(bars);
}

}

#endif
