/* SPDX-License-Identifier: Apache-2.0
 *
 * attention_forward: the producer. One thread has the copy engine fetch the Q of each tile, and the
 * blocks of K and V in the order in which the consumers use them. Where keys arrive during the
 * launch it waits for those of a sweep; K is loaded before V, so that one wait is for both.
 */
#ifndef FFA_FORWARD_LOADS_H
#define FFA_FORWARD_LOADS_H

#include "forward_rows.h"

namespace {

template <int count>
FFA_DEVICE void load_block(const void *map, uint32_t dst, uint32_t bar, int head, int row)
{
    mbarrier_arrive_expect_tx(bar, count * kv_panel_bytes);
#pragma unroll
    for (int panel = 0; panel < count; ++panel)
        cp_async_bulk_tensor_3d(dst + panel * kv_panel_bytes, map, bar, panel * 64, head, row);
}

FFA_DEVICE void load_q(const attention_forward_args &a, const shared_view &smem,
                       const forward_tile_slot *slot, const ring<tile_slots> &tile_at)
{
    const barriers bars = smem.bars();
    const int head = slot->head;
    const int q = q_slot(tile_at);

    wait(bars, bars.q_empty(q), q_parity(tile_at) ^ 1, at_q_empty);
    mbarrier_arrive_expect_tx(bars.q_full(q),
                              spec::packed ? panels * FORWARD_PANEL_BYTES * pack_rows(a) : q_bytes);
#pragma unroll
    for (int panel = 0; panel < panels; ++panel)
        cp_async_bulk_tensor_3d(smem.q(q) + panel * q_panel_bytes, &a.q, bars.q_full(q), panel * 64,
                                spec::packed ? head * a.pack : head, slot->tile.begin);
}

FFA_DEVICE void load_k(const attention_forward_args &a, const shared_view &smem, ring<kv_slots> &at,
                       int kv_head, int row)
{
    const barriers bars = smem.bars();

    wait(bars, bars.k_empty(at.slot), at.parity ^ 1, at_k_empty);
    load_block<panels>(&a.k, smem.k(at.slot), bars.k_full(at.slot), kv_head, row);
    at.next();
}

FFA_DEVICE void load_v(const attention_forward_args &a, const shared_view &smem, ring<kv_slots> &at,
                       int kv_head, int row)
{
    const barriers bars = smem.bars();

    wait(bars, bars.v_empty(at.slot), at.parity ^ 1, at_v_empty);
    load_block<v_panels>(&a.v, smem.v(at.slot), bars.v_full(at.slot), kv_head, row);
    at.next();
}

FFA_DEVICE void producer_run(const attention_forward_args &a, const shared_view &smem)
{
    const barriers bars = smem.bars();
    ring<tile_slots> tile_at;
    ring<kv_slots> k_next, v_next;
    int stage = 0; /* of arrivals: the last one that is there */

    prefetch_tensormap(&a.q);
    prefetch_tensormap(&a.k);
    prefetch_tensormap(&a.v);
    for (;; tile_at.next()) {
        wait(bars, bars.tile_full(tile_at.slot), tile_at.parity, at_tile_full_producer);
        const forward_tile_slot *slot = smem.slot(tile_at.slot);
        const int sweep_count = slot->tile.sweep_count;
        if (slot->tile.count == 0)
            break;
        const int kv_head = slot->head / a.group;
        int pending_row = -1; /* V lags one block behind K, as it is used later */

        load_q(a, smem, slot, tile_at);
        for (int i = 0; i < sweep_count; ++i) {
            const plan_sweep sweep = tile_sweep(a, slot, i);
            if constexpr (spec::arrivals)
                while (stage + 1 < a.arrivals.count && sweep.end > a.arrivals.stage_end[stage])
                    stage_wait_next(bars, a.arrivals, stage, at_arrival);
            const int blocks = (sweep.end - sweep.begin + tile_n - 1) / tile_n;
            for (int j = blocks - 1; j >= 0; --j) {
                const int row = sweep.begin + j * tile_n;
                load_k(a, smem, k_next, kv_head, row);
                if (pending_row >= 0)
                    load_v(a, smem, v_next, kv_head, pending_row);
                pending_row = row;
            }
        }
        mbarrier_arrive(bars.tile_empty(tile_at.slot));
        if (pending_row >= 0)
            load_v(a, smem, v_next, kv_head, pending_row);
        mbarrier_arrive(bars.loads_asked());
    }
}

}

#endif
