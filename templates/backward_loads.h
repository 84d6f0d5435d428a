/* SPDX-License-Identifier: Apache-2.0
 *
 * attention_backward: the two producers, a thread each. One has the copy engine fetch the blocks of
 * Q with their statistics, and writes the blocks' records; the other has it fetch K and V and the
 * blocks of dO.
 */
#ifndef FFA_BACKWARD_LOADS_H
#define FFA_BACKWARD_LOADS_H

#include "backward_cluster.h"
#include "backward_visits.h"

namespace {

template <int rows, int count>
FFA_DEVICE void load_tile(const void *map, uint32_t dst, uint32_t bar, int head, int row)
{
#pragma unroll
    for (int panel = 0; panel < count; ++panel)
        cp_async_bulk_tensor_3d(dst + panel * rows * 128, map, bar, panel * 64, head, row);
}

/* A block of rows. */
template <int count>
FFA_DEVICE void load_rows(const void *map, uint32_t dst, uint32_t bar, int head, int row)
{
    if constexpr (cluster == 1)
        load_tile<tile_m, count>(map, dst, bar, head, row);
    else
        load_rows_for_both<count>(map, dst, bar, head, row);
}

FFA_DEVICE void load_k(const attention_backward_args &a, const shared_view &smem,
                       const backward_tile_slot *slot)
{
    const barriers bars = smem.bars();

    mbarrier_arrive_expect_tx(bars.k_full(), k_bytes + kx_bytes);
    load_tile<block_n, panels>(&a.k, smem.k(), bars.k_full(), slot->kv_head, slot->tile.begin);
    if constexpr (cluster > 1)
        load_other_k(a, smem, slot);
}

/* The record of a block. A tile cut short has keys past its end, which are masked in every block.
 */
FFA_DEVICE backward_block block_find(const visit &now, const plan_sweep &sweep, int key_count)
{
    const int row = now.row;
    const bool is_full =
        row >= sweep.full_begin && row + tile_m <= sweep.full_end && key_count == block_n;
    int flags = (now.is_last ? BACKWARD_BLOCK_LAST : 0) | (is_full ? BACKWARD_BLOCK_FULL : 0) |
                (row + tile_m > sweep.end ? BACKWARD_BLOCK_CUT : 0) |
                now.sweep * BACKWARD_BLOCK_SWEEP;
    int inside = row; /* the sweep */

    if (row < sweep.begin) {
        flags |= BACKWARD_BLOCK_CUT;
        inside = sweep.begin;
    }
    return backward_block{ now.head, inside, sweep.end, flags };
}

/* Which producer says that a tile's last block is asked for: that of dO, if two blocks of it are in
 * flight, as it has waited for the tile's K and V to have room, and is not further ahead. */
constexpr bool asked_by_dout = dout_slots > 1;

/* By its address in the shared window, and below offsets without signs: this producer has few
 * registers. */
FFA_DEVICE void block_store(const shared_view &smem, const position &at,
                            const backward_block &block)
{
    st_shared_v4(smem.block_flags(at.count) - BACKWARD_BLOCK_FLAGS_AT, block.head, block.row,
                 block.row_end, block.flags);
}

/* In a pair the next lane is at work, too (backward_pairs.h). */
FFA_DEVICE void q_producer_wait(const barriers &bars, uint32_t bar, uint32_t parity, wait_name name)
{
    if (is_pair)
        wait_beside(bars, bar, parity, name);
    else
        wait(bars, bar, parity, name);
}

FFA_DEVICE void produce_q(const attention_backward_args &a, const shared_view &smem)
{
    const barriers bars = smem.bars();
    ring<tile_slots> tile_at;
    position at;

    prefetch_tensormap(&a.q);
    for (;; tile_at.next()) {
        q_producer_wait(bars, bars.tile_full(tile_at.slot), tile_at.parity, at_tile_full_producer);
        const backward_tile_slot *slot = smem.slot(tile_at.slot);
        if (slot->tile.count < 0)
            break;
        visit_all(a, slot, [&](const visit &now) {
            q_producer_wait(bars, bars.q_empty(at.slot()), at.parity() ^ 1, at_q_empty);
            block_store(smem, at,
                        block_find(now, tile_sweep(a, slot, now.sweep), slot->tile.count));
            mbarrier_arrive_expect_tx(bars.q_full(at.slot()), q_bytes + stats_bytes);
            load_rows<panels>(&a.q, smem.q(at.slot()), bars.q_full(at.slot()), now.head, now.row);
            const float *stats =
                a.stats + (uint32_t)now.head * 2 * a.stats_rows + (uint32_t)now.row;
            cp_async_bulk(smem.stats(at.slot()), stats, bars.q_full(at.slot()), 4 * tile_m);
            cp_async_bulk(smem.stats_d(at.slot()), stats + a.stats_rows, bars.q_full(at.slot()),
                          4 * tile_m);
            at.next();
        });
        mbarrier_arrive(bars.tile_empty(tile_at.slot));
        if (!asked_by_dout)
            mbarrier_arrive(bars.tile_asked());
    }
}

FFA_DEVICE void produce_kv_dout(const attention_backward_args &a, const shared_view &smem)
{
    const barriers bars = smem.bars();
    ring<tile_slots> tile_at;
    position at;

    prefetch_tensormap(&a.k);
    prefetch_tensormap(&a.dout);
    prefetch_tensormap(&a.v);
    for (;; tile_at.next()) {
        wait(bars, bars.tile_full(tile_at.slot), tile_at.parity, at_tile_full_producer);
        const backward_tile_slot *slot = smem.slot(tile_at.slot);
        const int sweep_count = slot->tile.sweep_count;
        if (slot->tile.count < 0)
            break;
        if (sweep_count > 0) {
            wait(bars, bars.kv_empty(), slot->kv_parity ^ 1, at_kv_empty);
            load_k(a, smem, slot);
            mbarrier_arrive_expect_tx(bars.v_full(), v_bytes);
            load_tile<block_n, v_panels>(&a.v, smem.v(), bars.v_full(), slot->kv_head,
                                         slot->tile.begin);
        }
        visit_all(a, slot, [&](const visit &now) {
            const int slot_at = at.dout_slot();
            wait(bars, bars.dout_empty(slot_at), at.dout_parity() ^ 1, at_dout_empty);
            mbarrier_arrive_expect_tx(bars.dout_full(slot_at), dout_bytes);
            load_rows<v_panels>(&a.dout, smem.dout(slot_at), bars.dout_full(slot_at), now.head,
                                now.row);
            at.next();
        });
        mbarrier_arrive(bars.tile_empty(tile_at.slot));
        if (asked_by_dout)
            mbarrier_arrive(bars.tile_asked());
    }
}

}

#endif
