/* SPDX-License-Identifier: Apache-2.0
 *
 * attention_backward: dk, dv, and what adds up to dq, for sm_90a.
 *
 * Persistent CTAs take work items (a key tile with a head group) from a counter. A CTA walks the
 * query heads of the group, each head's sweeps over query rows, each sweep in blocks of tile_m
 * rows, and writes dk and dv of its keys once. Its warpgroups are one of producers, two consumers
 * of 64 keys each, and one that makes dQ. Of the first:
 *
 *                    plain     tile_m 128 (*)   ordered     pair       ordered pair
 *     warp 0 lane 0  Q         Q                Q K V dO    Q K V dO   Q K V dO
 *     warp 1         the scheduler: all lanes, or lane 0 (scheduler_lanes)
 *            lane 1  -         sender, piece 1  -           -          tickets
 *     warp 2 lane 0  K V dO    K V dO           tickets     send_ds    send_ds
 *     warp 3 lane 0  sender    sender, piece 0  sender      sender     sender
 *            lane 2  of debug kernels: the watchdog
 *
 * (*) neither ordered nor with keys that arrive, which are as `ordered` and `plain` say.
 * Specialised consumers are as these two, too. Scores are held transposed, keys by query rows, so
 * that P and dS are at once the register operands of dV and dK:
 *
 *     P  = exp(scale * K Q^T - lse)        dV += P dO
 *     dS = P * (V dO^T - D)                dK += dS Q        dQ += dS^T K
 *
 * with D = the sum of out * dout over a row, less dlse. lse is what S begins with: scores are
 * scale * (K Q^T - lse / scale). dS goes through shared memory, because dQ sums over the keys of
 * both consumers, to the warpgroup of dQ. It copies what it makes to shared memory, and the sender
 * has the copy engine add it to the fp32 workspace. A consumer waits only for dQ of the block two
 * before, whose slot of dS it takes, so consumers drift apart and run their exponentials under each
 * other's products. Per block,
 *
 *     consumer:  issue S, and dK of the block before; wait for S; P; wait for dK; issue dV and dP;
 *                wait for both; dS; dS to shared memory
 *     dQ:        wait for dS; two pieces of 64 rows by 64 columns, each issued, waited for, copied
 *                (in a pair one: backward_pairs.h)
 *
 *     backward_layout.h       constants, shared memory, barriers
 *     backward_schedule.h     rasterisation order, scheduler
 *     backward_visits.h       the order in which a tile visits blocks of query rows
 *     backward_loads.h        producers
 *     backward_mask.h         masks; operands made ready
 *     backward_products.h     the five products
 *     backward_gradients.h    P and dS
 *     backward_dq.h           dQ: from registers to shared memory, sender to the workspace
 *     backward_stores.h       dk, dv
 *     backward_consumer.h     what all main loops share
 *     backward_tickets.h      ordered accumulation
 *     backward_arrivals.h     context parallelism: keys that arrive, gradients that others wait for
 *
 * The main loops up to 128 columns are below. Two CTAs of 128 keys may share a tile (a spec's
 * `cluster`):
 *
 *     backward_pairs.h        dQ over the keys of both, dS from one to the other
 *
 * Above, consumers are specialised, and there is no warpgroup of dQ:
 *
 *     backward_specialised.h         their main loops
 *     backward_pieces.h              which piece of dQ each of their warpgroups has
 *     backward_exchange.h            P and dS, from one warpgroup or CTA to another
 *
 * Both kinds of clusters:
 *
 *     backward_cluster.h             which CTA has and loads what
 *
 * docs/kernels.md explains the whole, docs/lab-notes.md what was tried. (Algorithm:
 * FlashAttention-2 and -3, Dao 2023, Shah et al. 2024. Plans and masks: tile_plan.h.)
 */
#include "backward_consumer.h"
#include "backward_loads.h"
#include "backward_pairs.h"
#include "backward_schedule.h"
#include "backward_specialised.h"
#include "backward_tickets.h"

namespace {

/* Steps of 16 columns of K that a consumer keeps in registers over a tile (kept_keys): all, where
 * there is room. A softcap takes these registers. */
constexpr bool keeps_k = tile_m == 64 && head_dim + head_dim_v <= 192 && !spec::softcap;
constexpr int k_kept = keeps_k ? head_dim / 16 : 0;

/* The Q slot of the block before. */
FFA_DEVICE uint32_t q_slot_before(const position &at)
{
    return (at.count + q_slots - 1) % q_slots;
}

/* A consumer: all of the products but dQ, for its 64 keys. */
FFA_DEVICE void consumer_run(const attention_backward_args &a, const shared_view &smem,
                             int warpgroup)
{
    const barriers bars = smem.bars();
    const uint32_t my_k = smem.k() + warpgroup * 64 * 128, my_v = smem.v() + warpgroup * 64 * 128;
    uint32_t my_ds = ds_place(smem, warpgroup * 64), my_stats = stats_place();
    ring<tile_slots> tile_at;
    position at;

    keep(my_ds);
    keep(my_stats);
    for (;; tile_at.next()) {
        wait(bars, bars.tile_full(tile_at.slot), tile_at.parity, at_tile_full_consumer);
        const backward_tile_slot *slot = smem.slot(tile_at.slot);
        if (slot->tile.count < 0)
            break;
        float dk[dk_regs], dv[dv_regs];
        if (slot->tile.sweep_count > 0) {
            float s[s_regs], dp[s_regs];
            float2 lse[lse_regs], d[d_regs];
            uint32_t p[p_regs], slope[p_regs], ds[p_regs] = {};
            kept_keys<k_kept> k;
            /* Bit 0: dV has had a product of this tile, bit 1: dK. Without, a product sets it. dK
             * lags by a block, so what the first block adds to it is overwritten. */
            uint32_t begun = 0;

            kv_ready(a, smem, slot, warpgroup);
            keys_keep(k, my_k);
            int flags = q_wait(smem, at);
            q_cut(smem, at, flags, warpgroup);
            scores_begin(s, smem.stats(at.slot()) + my_stats);
            for (bool is_last = false; !is_last;) {
                is_last = flags & BACKWARD_BLOCK_LAST;
                keys_by_rows_issue<head_dim>(s, k, my_k, smem.q(at.slot()), adds_lse);
                /* With the first block, a product that nobody uses: a conditional one would make
                 * the compiler wait for all of them. */
                gradient_issue<head_dim>(dk, ds, smem.q(q_slot_before(at)), begun & 2);
                const bool is_partial = !(flags & BACKWARD_BLOCK_FULL);
                mask_bounds bounds = {};
                if (is_partial) /* while the scores are made: it is loads, one after the other */
                    bounds = bounds_find(a, slot, *smem.block(at.count), warpgroup);
                wgmma_wait<spec::softcap ? 0 : 1>(); /* a softcap needs the registers of dS */
                touch(s);
                if (is_partial)
                    mask_columns(s, bounds.lo, bounds.hi);
                make_p(p, slope, s, lse, smem.stats(at.slot()) + my_stats, a);
                wgmma_wait<0>();
                touch(dk);
                touch(ds);
                if (begun && elect_one())
                    release(bars.q_empty(q_slot_before(at)));
                dout_ready(smem, at, flags, warpgroup);
                gradient_issue<head_dim_v>(dv, p, smem.dout(at.dout_slot()), begun & 1);
                if constexpr (spec::softcap) { /* slope has dP's registers until P's are free */
                    wgmma_wait<0>();
                    touch(dv);
                    touch(p);
                }
                keys_by_rows_issue<head_dim_v>(dp, my_v, smem.dout(at.dout_slot()));
                stats_load(d, smem.stats_d(at.slot()) + my_stats);
                begun = begun << 1 | 1;
                if (!is_last) /* before dS is given: the sender reads the next record behind its dQ
                               */
                    flags = q_wait(smem, at.after());
                wait(bars, bars.ds_empty(at.ds_slot()), at.ds_parity() ^ 1, at_ds_empty);
                wgmma_wait<0>();
                touch(dv);
                touch(p);
                touch(dp);
                if (elect_one())
                    release(bars.dout_empty(at.dout_slot()));
                make_ds(ds, spec::softcap ? slope : p, dp, d, smem.stats_d(at.slot()) + my_stats);
                /* Loaded before dS is stored, after which shared memory takes long to answer.
                 * (Behind a tile's last block it may read what a copy is writing: the next tile
                 * begins S again.) */
                if (!is_last)
                    q_cut(smem, at.after(), flags, warpgroup);
                scores_begin(s, smem.stats(at.after().slot()) + my_stats);
                store_ds(ds, my_ds + at.ds_slot() * ds_bytes);
                __syncwarp();
                if (elect_one())
                    mbarrier_arrive(bars.ds_full(at.ds_slot()));
                at.next();
            }
            gradient_issue<head_dim>(dk, ds, smem.q(q_slot_before(at)), begun & 2);
            if (elect_one())
                mbarrier_arrive(bars.kv_empty());
            wgmma_wait<0>();
            touch(dk);
            touch(ds);
            if (elect_one())
                release(bars.q_empty(q_slot_before(at)));
        } else {
            set_zero(dk);
            set_zero(dv);
        }
        const int thread = thread_now(), lane = thread % 32;
        const int key = slot->tile.begin + warpgroup * 64 + thread / 32 * 16 + lane / 4;
        const int begin = slot->tile.begin, key_end = begin + slot->tile.count;
        const gradient_place dk_to = dk_find(a, slot), dv_to = dv_find(a, slot);
        tile_release(bars, tile_at);
        store_dv(a, dv, dv_to, key, key_end, lane);
        store_dk(a, dk, dk_to, key, key_end, lane);
        tile_departs(a, begin);
    }
    warp_finish(bars);
}

/* Piece w of the dQ of a block, from its dS to shared memory. */
template <int w, int columns>
FFA_DEVICE void piece_run(const shared_view &smem, const position &at, int flags)
{
    const barriers bars = smem.bars();
    const piece_shape shape = shape_find(w);
    float dq[columns / 2];

    dq_issue<columns>(dq, smem.ds(at.ds_slot()) + shape.top / 64 * ds_panel_bytes,
                      smem.k() + shape.panel * kv_panel_bytes);
    wgmma_wait<0>();
    touch(dq);
    if (w == 1 && elect_one()) {
        mbarrier_arrive(bars.ds_empty(at.ds_slot()));
        if (flags & BACKWARD_BLOCK_LAST)
            mbarrier_arrive(bars.kv_empty());
    }
    wait(bars, bars.dq_empty(w), at.count % 2 ^ 1, at_dq_empty);
    copy_dq<columns>(smem, dq, dq_place(smem, w, columns), flags, smem.block(at.count), shape.top,
                     w);
}

/* The warpgroup of dQ. It zeroes nothing: a consumer has zeroed keys that nobody attends, and
 * fenced, before its first dS. */
FFA_DEVICE void dq_run(const shared_view &smem)
{
    const barriers bars = smem.bars();
    ring<tile_slots> tile_at;
    position at;

    for (;; tile_at.next()) {
        wait(bars, bars.tile_full(tile_at.slot), tile_at.parity, at_tile_full_consumer);
        const backward_tile_slot *slot = smem.slot(tile_at.slot);
        if (slot->tile.count < 0)
            break;
        if (slot->tile.sweep_count > 0) {
            wait(bars, bars.k_full(), slot->kv_parity, at_kv_full);
            for (bool is_last = false; !is_last;) {
                wait(bars, bars.ds_full(at.ds_slot()), at.ds_parity(), at_ds_full);
                fence_proxy_async();
                const int flags = (int)ld_shared(smem.block_flags(at.count));
                is_last = flags & BACKWARD_BLOCK_LAST;
                if constexpr (is_pair) {
                    pair_piece_run(smem, at, flags);
                } else {
                    piece_run<0, 64>(smem, at, flags);
                    piece_run<1, last_columns>(smem, at, flags);
                }
                at.next();
            }
        }
        tile_release(bars, tile_at);
    }
    warp_finish(bars);
}

}

extern "C" __global__ void __launch_bounds__(threads, 1)
    attention_backward(const __grid_constant__ attention_backward_args a)
{
    extern __shared__ char shared_bytes[];
    const uint32_t base = shared_address(shared_bytes);
    const uint32_t pad = shared_pad(base);
    const shared_view smem{ base + pad, shared_bytes + pad };
    if (is_pair && pad > 0)
        __trap();
    const int warpgroup = warpgroup_index();
    const int warp = warp_index();
    const int lane = (int)threadIdx.x % 32;

    if (threadIdx.x == 0)
        barriers_init(smem.bars());
    if (cluster > 1)
        cluster_sync();
    else
        __syncthreads();

    if (warpgroup == 0) {
        setmaxnreg_dec<producer_regs>();
        if (warp == 1 && lane < scheduler_lanes)
            scheduler_run(a, smem, scheduler_lanes == 1 ? 0 : lane); /* a constant, if it can be */
        else if (spec::deterministic && warp == tickets_warp && lane == tickets_lane)
            tickets_run(a, smem);
        else if (senders > 1 && warp == 1 && lane == scheduler_lanes)
            send_dq<senders - 1>(a, smem);
        else if (warp == 0 && lane == 0)
            produce<true, has_one_producer>(a, smem);
        else if (is_pair && warp == 2 && lane == 0)
            send_ds(smem);
        else if (!has_one_producer && warp == 2 && lane == 0)
            produce<false, true>(a, smem);
        else if (warp == 3 && lane == 0)
            send_dq<0>(a, smem);
        else if (spec::debug && warp == 3 && lane == 2)
            watchdog_run(smem.bars(), 4 * (consumers + dq_warpgroups) + senders,
                         a.arrivals.patience_ms, watchdog_report);
    } else if (dq_warpgroups > 0 && warpgroup > consumers) {
        setmaxnreg_dec<dq_regs>();
        dq_run(smem);
    } else {
        setmaxnreg_inc<consumer_regs>();
        if constexpr (is_specialised) {
            if (warpgroup == 1)
                consumer_run_p<tile_m>(a, smem);
            else
                consumer_run_ds<tile_m>(a, smem);
        } else {
            consumer_run(a, smem, warpgroup - 1);
        }
    }
    if (cluster > 1) { /* until nobody arrives at this block's barriers or copies to it any more */
        __syncwarp();
        cluster_sync();
    }
}
