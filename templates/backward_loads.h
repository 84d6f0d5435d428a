/* SPDX-License-Identifier: Apache-2.0
 *
 * attention_backward: the producers: two threads, or one that is both. One has the copy engine
 * fetch the blocks of Q with their statistics, and writes the blocks' records; the other has it
 * fetch K and V and the blocks of dO.
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
    load_tile<cta_keys, panels>(&a.k, smem.k(), bars.k_full(), slot->kv_head, slot->tile.begin);
    if constexpr (cluster > 1)
        load_other_k(a, smem, slot);
}

/* The record of a block. A tile cut short has keys past its end, which are masked in every block.
 */
FFA_DEVICE backward_block block_find(const visit &now, const plan_sweep &sweep, int key_count)
{
    const int row = now.row;
    const bool is_full =
        row >= sweep.full_begin && row + tile_m <= sweep.full_end && key_count == cta_keys;
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

/* Which producer, of two, says that all of a tile is asked for: with two blocks of dO in flight
 * that of dO, as that of Q is up to three blocks ahead and does not wait until K and V have room,
 * so that it would take an item a block too early. With one block in flight that of Q. */
constexpr bool asked_by_dout = has_one_producer || dout_slots > 1;

/* By its address in the shared window, and below offsets without signs: this producer has few
 * registers. */
FFA_DEVICE void block_store(const shared_view &smem, const position &at,
                            const backward_block &block)
{
    st_shared_v4(smem.block_flags(at.count) - BACKWARD_BLOCK_FLAGS_AT, block.head, block.row_begin,
                 block.row_end, block.flags);
}

FFA_DEVICE void fetch_q(const attention_backward_args &a, const shared_view &smem,
                        const backward_tile_slot *slot, const visit &now, const position &at)
{
    const barriers bars = smem.bars();
    const uint32_t q_full = bars.q_full(at.slot());

    wait(bars, bars.q_empty(at.slot()), at.parity() ^ 1, at_q_empty);
    block_store(smem, at, block_find(now, tile_sweep(a, slot, now.sweep), slot->tile.count));
    mbarrier_arrive_expect_tx(q_full, q_bytes + stats_bytes);
    load_rows<panels>(&a.q, smem.q(at.slot()), q_full, now.head, now.row);
    const float *stats = a.stats + (uint32_t)now.head * 2 * a.stats_rows + (uint32_t)now.row;
    cp_async_bulk(smem.stats(at.slot()), stats, q_full, 4 * tile_m);
    cp_async_bulk(smem.stats_d(at.slot()), stats + a.stats_rows, q_full, 4 * tile_m);
}

FFA_DEVICE void fetch_kv(const attention_backward_args &a, const shared_view &smem,
                         const backward_tile_slot *slot)
{
    const barriers bars = smem.bars();

    wait(bars, bars.kv_empty(), slot->kv_parity ^ 1, at_kv_empty);
    load_k(a, smem, slot);
    mbarrier_arrive_expect_tx(bars.v_full(), v_bytes);
    load_tile<cta_keys, v_panels>(&a.v, smem.v(), bars.v_full(), slot->kv_head, slot->tile.begin);
}

FFA_DEVICE void fetch_dout(const attention_backward_args &a, const shared_view &smem,
                           const visit &now, const position &at)
{
    const barriers bars = smem.bars();
    const int place = at.dout_slot();

    wait(bars, bars.dout_empty(place), at.dout_parity() ^ 1, at_dout_empty);
    mbarrier_arrive_expect_tx(bars.dout_full(place), dout_bytes);
    load_rows<v_panels>(&a.dout, smem.dout(place), bars.dout_full(place), now.head, now.row);
}

/* A producer: of Q and the blocks' records with `has_q`, of K, V and dO with `has_dout`. */
template <bool has_q, bool has_dout>
FFA_DEVICE void produce(const attention_backward_args &a, const shared_view &smem)
{
    const barriers bars = smem.bars();
    ring<tile_slots> tile_at;
    position at;

    if (has_q)
        prefetch_tensormap(&a.q);
    if (has_dout) {
        prefetch_tensormap(&a.k);
        prefetch_tensormap(&a.dout);
        prefetch_tensormap(&a.v);
    }
    for (;; tile_at.next()) {
        wait(bars, bars.tile_full(tile_at.slot), tile_at.parity, at_tile_full_producer);
        const backward_tile_slot *slot = smem.slot(tile_at.slot);
        if (slot->tile.count < 0)
            break;
        bool needs_kv = has_dout;
        visit_all(a, slot, [&](const visit &now) {
            if (has_q)
                fetch_q(a, smem, slot, now, at);
            if (needs_kv) /* after Q, as the tile before may still have their places */
                fetch_kv(a, smem, slot);
            needs_kv = false;
            if (has_dout)
                fetch_dout(a, smem, now, at);
            at.next();
        });
        mbarrier_arrive(bars.tile_empty(tile_at.slot));
        if (has_dout == asked_by_dout)
            mbarrier_arrive(bars.loads_asked());
    }
}

}

#endif
