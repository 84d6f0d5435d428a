/* SPDX-License-Identifier: Apache-2.0
 *
 * attention_backward: dk, dv, and what adds up to dq, for sm_90a.
 *
 * Persistent blocks take work items (a key tile with a head group) from a counter. A block walks
 * the query heads of the group, each head's sweeps over query rows, each sweep in blocks of tile_m
 * rows, and writes dk and dv of its keys once. It is a producer warpgroup (warp 0: copies of K and
 * Q; warp 1: scheduler, and beside it the thread that waits for tickets or a second sender; warp 2:
 * copies of V and dO; warp 3: sender of dQ) and two consumer warpgroups of 64 keys each. Scores are
 * held transposed, keys by query rows, so that P and dS are at once the register operands of dV and
 * dK:
 *
 *     P  = exp(scale * K Q^T - lse)        dV += P dO
 *     dS = P * (V dO^T - D)                dK += dS Q        dQ += dS^T K
 *
 * with D = the sum of out * dout over a row. dS goes through shared memory, because dQ sums over
 * the keys of all warpgroups. Each warpgroup computes one piece of dQ, 64 rows by 64 columns, and
 * copies it to shared memory, and the sender has the copy engine add it to the fp32 workspace. dQ
 * lags one block behind, so that a warpgroup waits for the others' dS of the block before, not of
 * this one: warpgroups drift apart by up to a block and run their exponentials under each other's
 * products. Per block a warpgroup does
 *
 *     issue S and dP; wait for S; P; issue dV; wait for dP; dS; wait for all dS of the block
 * before; dS to shared memory; issue dQ of the block before; issue dK; wait for dQ and copy it;
 * wait for dK (with 128 rows a block, or K in registers, dK is issued as soon as dS is made)
 *
 *     backward_layout.h       constants, shared memory, barriers
 *     backward_schedule.h     rasterisation order, scheduler
 *     backward_visits.h       the order in which a tile visits blocks of query rows
 *     backward_loads.h        producers
 *     backward_mask.h         masks; operands made ready
 *     backward_products.h     the five products
 *     backward_gradients.h    P and dS
 *     backward_dq.h           dQ: consumer to shared memory, sender to the workspace
 *     backward_tickets.h      ordered accumulation
 *     backward_cluster.h      clusters of two: which block has what
 *     backward_arrivals.h     context parallelism: keys that arrive, gradients that others wait for
 *     backward_consumer.h     how consumers begin and end a tile
 *     backward_specialised.h  the main loops of specialised consumers (more than 128 columns)
 *     backward_stores.h       dk, dv
 *
 * docs/kernels.md explains the whole, docs/lab-notes.md what was tried. (Algorithm:
 * FlashAttention-2 and -3, Dao 2023, Shah et al. 2024. Plans and masks: tile_plan.h.)
 */
#include "backward_loads.h"
#include "backward_schedule.h"
#include "backward_specialised.h"
#include "backward_tickets.h"

namespace {

/* With 128 rows a block, storing dS takes long, and dK, which needs no other warpgroup's dS, is at
 * work meanwhile. With 64, it is at work while dQ is copied; not where K is in registers, which was
 * measured to be faster so. */
constexpr bool dk_first = tile_m > 64 || k_kept > 0;

/* Both warpgroups: all products, for 64 keys each. piece: columns of the warpgroup's piece of dQ.
 */
template <int piece>
FFA_DEVICE void consumer_run(const attention_backward_args &a, const shared_view &smem,
                             int warpgroup)
{
    const barriers bars = smem.bars();
    const bool is_leader = is_warp_leader();
    const uint32_t my_k = smem.k() + warpgroup * 64 * 128, my_v = smem.v() + warpgroup * 64 * 128;
    const uint32_t dq_k = smem.k() + warpgroup % panels * kv_panel_bytes;
    const int dq_ds = warpgroup / panels * ds_panel_bytes;
    const thread_places my = places_find(smem, warpgroup, warpgroup * 64, piece);
    ring<tile_slots> tile_at;
    position at;
    ring<ds_slots> ds_next;
    uint32_t kv_parity = 0;

    for (;; tile_at.next()) {
        wait(bars, bars.tile_full(tile_at.slot), tile_at.parity, at_tile_full_consumer);
        const backward_tile_slot *slot = smem.slot(tile_at.slot);
        if (slot->tile.count < 0)
            break;
        float dk[dk_regs], dv[dv_regs];
        set_zero(dk);
        set_zero(dv);
        if (slot->tile.sweep_count > 0) {
            float s[s_regs], dp[s_regs], dq[piece / 2];
            float2 lse[lse_regs], d[d_regs];
            uint32_t p[p_regs], slope[p_regs], ds[p_regs];
            kept_keys<k_kept> k;
            ring<ds_slots> ds_before = ds_next;
            int flags_before = 0;

            kv_ready(a, smem, slot, kv_parity, warpgroup);
            kv_parity ^= 1;
            keys_keep(k, my_k);
            int flags = flags_early ? q_wait(smem, at) : 0;
            for (bool is_first = true, is_last = false; !is_last; is_first = false) {
                if (!flags_early)
                    flags = q_wait(smem, at);
                is_last = flags & BACKWARD_BLOCK_LAST;
                q_cut(smem, at, flags, warpgroup);
                if (flags_early) /* no branch between what is loaded and its use */
                    dout_ready(smem, at, flags, warpgroup);
                stats_load(lse, smem.stats(at.slot()) + my.stats);
                scores_issue<head_dim>(s, k, my_k, smem.q(at.slot()));
                if (!flags_early)
                    dout_ready(smem, at, flags, warpgroup);
                if constexpr (!spec::softcap)
                    scores_issue<head_dim_v>(dp, my_v, smem.dout(at.dout_slot()));
                wgmma_wait<spec::softcap ? 0 : 1>();
                touch(s);
                const stats_places stats = { smem.stats(at.slot()) + my.stats,
                                             smem.stats_d(at.slot()) + my.stats };
                make_p(p, slope, s, lse, d, stats, a, smem, at, slot, flags, warpgroup);
                if constexpr (!stats_in_turn)
                    stats_load(d, stats.d);
                if constexpr (spec::softcap) /* not before: slope has taken its registers */
                    scores_issue<head_dim_v>(dp, my_v, smem.dout(at.dout_slot()));
                gradient_issue<head_dim_v>(dv, p, smem.dout(at.dout_slot()));
                wgmma_wait<1>();
                touch(dp);
                make_ds(ds, spec::softcap ? slope : p, dp, d, stats.d);
                if constexpr (dk_first)
                    gradient_issue<head_dim>(dk, ds, smem.q(at.slot()));
                /* With the first block a dQ of old dS is computed, which nobody uses: a conditional
                 * product would make the compiler wait for all of them. */
                if (!is_first)
                    wait(bars, bars.ds_full(ds_before.slot), ds_before.parity, at_ds_full);
                /* For the other warpgroups' dS. Here the thread has no store of its own that it
                 * waits for. */
                fence_proxy_async();
                if constexpr (ds_slots < 3)
                    wait(bars, bars.ds_empty(ds_next.slot), ds_next.parity ^ 1, at_ds_empty);
                store_ds(ds, my.ds + ds_next.slot * ds_bytes);
                dq_issue<piece>(dq, smem.ds(ds_before.slot) + dq_ds, dq_k);
                __syncwarp();
                if (is_leader)
                    mbarrier_arrive(bars.ds_full(ds_next.slot));
                if constexpr (!dk_first)
                    gradient_issue<head_dim>(dk, ds, smem.q(at.slot()));
                int flags_next = 0;
                if (flags_early && !is_last) /* before dQ fills the queue to shared memory */
                    flags_next = q_wait(smem, at.after());
                if (!is_first)
                    dq_place_wait(bars, (at.count + 1) % 2, warpgroup);
                wgmma_wait<dk_first ? 0 : 1>();
                touch(dv);
                touch(p);
                touch(dq);
                if (is_leader) {
                    release(bars.dout_empty(at.dout_slot()));
                    if (ds_slots < 3 && !is_first)
                        mbarrier_arrive(bars.ds_empty(ds_before.slot));
                }
                if (!is_first)
                    copy_dq<piece>(smem, dq, my.dq, flags_before, smem.block(at.before()),
                                   warpgroup / panels * 64, warpgroup);
                wgmma_wait<0>();
                touch(dk);
                touch(ds);
                if (is_leader)
                    release(bars.q_empty(at.slot()));
                flags_before = flags;
                flags = flags_next;
                ds_before = ds_next;
                ds_next.next();
                at.next();
            }
            wait(bars, bars.ds_full(ds_before.slot), ds_before.parity, at_ds_full);
            fence_proxy_async();
            dq_issue<piece>(dq, smem.ds(ds_before.slot) + dq_ds, dq_k);
            dq_place_wait(bars, (at.count + 1) % 2, warpgroup);
            wgmma_wait<0>();
            touch(dq);
            if (is_leader) {
                if (ds_slots < 3)
                    mbarrier_arrive(bars.ds_empty(ds_before.slot));
                mbarrier_arrive(bars.kv_empty());
            }
            copy_dq<piece>(smem, dq, my.dq, flags_before, smem.block(at.before()),
                           warpgroup / panels * 64, warpgroup);
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
    consumer_finish(bars);
}

}

extern "C" __global__ void __launch_bounds__(threads, 1)
    attention_backward(const __grid_constant__ attention_backward_args a)
{
    extern __shared__ char shared_bytes[];
    const uint32_t base = shared_address(shared_bytes);
    const uint32_t pad = shared_pad(base);
    const shared_view smem{ base + pad, shared_bytes + pad };
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
        producer_registers<consumers>();
        if (warp == 1 && lane < scheduler_lanes)
            scheduler_run(a, smem, lane);
        else if (spec::deterministic && warp == 1 && lane == scheduler_lanes)
            tickets_run(a, smem);
        else if (senders > 1 && warp == 1 && lane == scheduler_lanes)
            send_dq<senders - 1>(a, smem);
        else if (warp == 0 && lane == 0)
            produce_q(a, smem);
        else if (warp == 2 && lane == 0)
            produce_dout(a, smem);
        else if (warp == 3 && lane == 0)
            send_dq<0>(a, smem);
        else if (spec::debug && warp == 3 && lane == 2)
            watchdog_run(smem.bars(), 4 * consumers + senders, a.arrivals.patience_ms,
                         watchdog_report);
    } else {
        consumer_registers<consumers>();
        if constexpr (is_specialised) {
            if (warpgroup == 1)
                consumer_run_p<tile_m>(a, smem);
            else
                consumer_run_ds<tile_m>(a, smem);
        } else if (last_columns == 64) {
            consumer_run<64>(a, smem, warpgroup - 1);
        } else if (warpgroup == 1) {
            consumer_run<64>(a, smem, 0);
        } else {
            consumer_run<last_columns>(a, smem, 1);
        }
    }
    if (cluster > 1) { /* until nobody arrives at this block's barriers or copies to it any more */
        __syncwarp();
        cluster_sync();
    }
}
