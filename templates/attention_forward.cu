/* SPDX-License-Identifier: Apache-2.0
 *
 * attention_forward: out = softmax(scale * q k^T on the mask) v, and lse, for sm_90a.
 *
 * Persistent blocks take work items (a tile with a head) from a counter. Each owns its output rows
 * and writes them once. A block is a producer warpgroup (warp 0: copies; warp 1: scheduler) and
 * `consumers` warpgroups of 64 query rows each. The consumers walk the tile's sweeps from the last
 * block of keys to the first, and for each block they
 *
 *     issue S = Q K^T; rescale O if the shift moved; issue O += P V of the block before;
 *     wait for S; softmax: S becomes P; wait for O
 *
 * One warpgroup's exponentials then run under the other's matrix products, and its own under its
 * O += P V. No barrier orders the warpgroups.
 *
 *     forward_layout.h     constants, shared memory, barriers
 *     forward_schedule.h   rasterisation order, scheduler
 *     forward_loads.h      producer
 *     forward_rows.h       packed heads: which query row and head a row of a tile is
 *     forward_mask.h       the walk over a tile's blocks, masks
 *     forward_products.h   Q K^T, P V
 *     forward_softmax.h    softmax without maxima
 *     forward_stores.h     out, lse, merges, largest scores
 *
 * docs/kernels.md explains the whole, docs/lab-notes.md what was tried. (Algorithm:
 * FlashAttention-3, Shah et al. 2024. Plans and masks: tile_plan.h.)
 */
#include "forward_schedule.h"

#include "forward_loads.h"
#include "forward_stores.h"

namespace {

FFA_DEVICE void consumer_run(const attention_forward_args &a, const shared_view &smem,
                             int warpgroup, int thread)
{
    const barriers bars = smem.bars();
    const int lane = thread % 32;
    const bool is_leader = lane == 0;
    ring<tile_slots> tile_at;
    ring<kv_slots> k_next, v_next;

    for (;; tile_at.next()) {
        wait(bars, bars.tile_full(tile_at.slot), tile_at.parity, at_tile_full_consumer);
        const forward_tile_slot *slot = smem.slot(tile_at.slot);
        if (slot->tile.count == 0)
            break;

        float o[o_regs];
        softmax_state st = softmax_begin(slot->tile.count * pack_of(a) - tile_row());

        if (slot->tile.sweep_count > 0) {
            const uint64_t q = descriptor_k_major(smem.q(q_slot(tile_at)) + warpgroup * 64 * 128);
            float s[s_regs];
            uint32_t p[p_regs];
            bool is_first = true;
            cursor c;

            c.sweep_index = 0;
            cursor_enter(c, a, slot);
            wait(bars, bars.q_full(q_slot(tile_at)), q_parity(tile_at), at_q_full);
            wait(bars, bars.k_full(k_next.slot), k_next.parity, at_k_full);
            scores_issue(s, smem, q, k_next);
            wgmma_wait<0>();
            touch(s);
            if (is_leader)
                mbarrier_arrive(bars.k_empty(k_next.slot));
            k_next.next();
            cap_scores(s, a);
            if (!c.is_full())
                mask_scores(s, c);
            note_tops(s, st);
            softmax_step(s, st, scores_scale(a));
            st.has_rescale = false; /* there is no O yet */
            convert_p(p, s);

            for (int tail = c.tail; cursor_next(c, a, slot); tail = c.tail) {
                wait(bars, bars.k_full(k_next.slot), k_next.parity, at_k_full);
                scores_issue(s, smem, q, k_next);
                rescale_o(o, st);
                output_issue(o, p, smem, v_next, tail, is_first, warpgroup, thread);
                wgmma_wait<1>();
                touch(s);
                softmax_block(s, st, c, a, smem.q(q_slot(tile_at)) + warpgroup * 64 * 128,
                              smem.k(k_next.slot), thread);
                __syncwarp();
                if (is_leader)
                    mbarrier_arrive(bars.k_empty(k_next.slot));
                k_next.next();
                wgmma_wait<0>();
                touch(o);
                touch(p);
                if (is_leader)
                    mbarrier_arrive(bars.v_empty(v_next.slot));
                v_next.next();
                convert_p(p, s);
                is_first = false;
            }
            if (is_leader)
                mbarrier_arrive(bars.q_empty(q_slot(tile_at)));

            rescale_o(o, st);
            output_issue(o, p, smem, v_next, c.tail, is_first, warpgroup, thread);
            wgmma_wait<0>();
            touch(o);
            if (is_leader)
                mbarrier_arrive(bars.v_empty(v_next.slot));
            v_next.next();
        } else {
            wait(bars, bars.q_full(q_slot(tile_at)), q_parity(tile_at), at_q_full);
            if (is_leader)
                mbarrier_arrive(bars.q_empty(q_slot(tile_at)));
            set_zero(o);
        }
        const bool is_part = spec::split && slot->tile.flags & PLAN_TILE_PART;
        const tile_rows rows = { is_part ? slot->tile.part_row : slot->tile.begin, slot->tile.count,
                                 tile_row(), slot->head,
                                 has_partial || spec::split ? slot->tile.flags : 0 };
        __syncwarp();
        if (is_leader)
            mbarrier_arrive(bars.tile_empty(tile_at.slot));
        store_rows(a, o, st, rows, lane);
    }
    if (spec::debug && is_leader)
        watch_finished(bars);
}

}

extern "C" __global__ void __launch_bounds__(threads, 1)
    attention_forward(const __grid_constant__ attention_forward_args a)
{
    extern __shared__ char shared_bytes[];
    const uint32_t base = shared_address(shared_bytes);
    const uint32_t pad = shared_pad(base);
    const shared_view smem{ base + pad, shared_bytes + pad };
    const barriers bars = smem.bars();
    const int warpgroup = warpgroup_index();
    const int warp = warp_index();
    const int lane = (int)threadIdx.x % 32;

    if (threadIdx.x == 0)
        barriers_init(bars);
    if (spec::packed) { /* rows that no box of Q fills are zeros: NaNs there would send
                         * their warp through scores_again in each block */
        for (int i = (int)threadIdx.x; i < q_slots * q_bytes / 16; i += threads)
            st_shared_v4_zero(smem.q(0) + i * 16);
        fence_proxy_async();
    }
    __syncthreads();

    if (warpgroup == 0) {
        producer_registers<consumers>();
        if (warp == 1)
            scheduler_run(a, smem, lane);
        else if (warp == 0 && lane == 0)
            producer_run(a, smem);
        else if (spec::debug && warp == 2 && lane == 0)
            watchdog_run(bars, 4 * consumers, a.arrivals.patience_ms, watchdog_report);
    } else {
        consumer_registers<consumers>();
        consumer_run(a, smem, warpgroup - 1, (int)threadIdx.x % 128);
    }
}
