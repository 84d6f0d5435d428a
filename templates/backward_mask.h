/* SPDX-License-Identifier: Apache-2.0
 *
 * attention_backward: masks of partial blocks, and operands in shared memory made ready: rows and
 * keys that nobody attends become 0 there, as their NaNs must not meet a P or dS of 0.
 */
#ifndef FFA_BACKWARD_MASK_H
#define FFA_BACKWARD_MASK_H

#include "backward_cluster.h"
#include "backward_visits.h"
#include "kernel_mask.h"

namespace {

/* The thread's index in its warpgroup, read again: what is derived from it does not then occupy
 * registers over the loop. Reading takes time, so this is for what happens rarely, and where
 * registers are short. */
FFA_DEVICE int thread_now()
{
    return (int)((uint32_t)thread_index() % 128);
}

/* Which of its columns, query rows of a partial block, attend a thread's two keys: [lo, hi). */
struct mask_bounds {
    int lo[2], hi[2];
};

FFA_DEVICE mask_bounds bounds_find(const attention_backward_args &a, const backward_tile_slot *slot,
                                   const backward_block &block, int warpgroup)
{
    const int thread = thread_now(), lane = thread % 32;
    const int tile_key = warpgroup * 64 + thread / 32 * 16 + lane / 4;
    const plan_sweep sweep = tile_sweep(a, slot, block.flags / BACKWARD_BLOCK_SWEEP);
    const int key = slot->tile.begin + tile_key;
    const int first = block_row(block) + lane % 4 * 2; /* the thread's first column */
    mask_bounds bounds = { { 0, 0 }, { 0, 0 } };       /* none */

#pragma unroll 1 /* for the sake of registers */
    for (int i = 0; i < sweep.band_count; ++i) {
        const plan_band band = tile_band(a, slot, sweep.band_begin + i);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int d = key + 8 * r - band.begin;
            if (d >= 0 && key + 8 * r < band.end) {
                bounds.lo[r] = band.lo + band.lo_step * d - first;
                bounds.hi[r] = band.hi + band.hi_step * d - first;
            }
        }
    }
    return bounds;
}

/* Rows [rows - tail, rows) of a tile in shared memory become 0; zero_head: rows [0, head). Every
 * warpgroup writes all of them. That is no race that matters, as all write zeros. */
template <int rows, int count> FFA_DEVICE void zero_tail(uint32_t tile, int tail)
{
#pragma unroll 1 /* here and below, for the sake of compile time */
    for (int i = (rows - tail) * 8 + thread_now(); i < rows * 8; i += 128)
#pragma unroll 1
        for (int panel = 0; panel < count; ++panel)
            st_shared_v4_zero(tile + panel * rows * 128 + i * 16);
}

template <int rows, int count> FFA_DEVICE void zero_head(uint32_t tile, int head)
{
#pragma unroll 1
    for (int i = thread_now(); i < head * 8; i += 128)
#pragma unroll 1
        for (int panel = 0; panel < count; ++panel)
            st_shared_v4_zero(tile + panel * rows * 128 + i * 16);
}

/* Rows of a block outside its sweep become 0. */
template <int count>
FFA_DEVICE void zero_rows(const backward_block &block, uint32_t tile, int warpgroup)
{
    zero_tail<tile_m, count>(tile, block_row(block) + tile_m - block.row_end);
    zero_head<tile_m, count>(tile, rows_before(block));
    fence_proxy_async();
    warpgroup_sync(warpgroup);
}

/* Waits for the Q of the block at `at`. Its record is there, too: returns the block's flags. */
FFA_DEVICE int q_wait(const shared_view &smem, const position &at)
{
    const barriers bars = smem.bars();

    wait(bars, bars.q_full(at.slot()), at.parity(), at_q_full);
    return (int)ld_shared(smem.block_flags(at.count));
}

/* Rows of Q outside the sweep, and their statistics, become 0. */
FFA_DEVICE void q_cut(const shared_view &smem, const position &at, int flags, int warpgroup)
{
    if (!(flags & BACKWARD_BLOCK_CUT))
        return;
    const backward_block block = *smem.block(at.count);
    const int row = block_row(block) + thread_now();
    if (thread_now() < tile_m && (row < block.row_begin || row >= block.row_end)) {
        st_shared(smem.stats(at.slot()) + 4 * thread_now(), 0);
        st_shared(smem.stats_d(at.slot()) + 4 * thread_now(), 0);
    }
    zero_rows<panels>(block, smem.q(at.slot()), warpgroup);
}

/* Waits for the dO of the block. Rows outside the sweep become 0. */
FFA_DEVICE void dout_ready(const shared_view &smem, const position &at, int flags, int warpgroup)
{
    const barriers bars = smem.bars();

    wait(bars, bars.dout_full(at.dout_slot()), at.dout_parity(), at_dout_full);
    if (flags & BACKWARD_BLOCK_CUT)
        zero_rows<v_panels>(*smem.block(at.count), smem.dout(at.dout_slot()), warpgroup);
}

/* Clusters of two: the thread's key becomes 0 in what this block has of the other one's K. */
FFA_DEVICE void zero_other_k(const shared_view &smem)
{
#pragma unroll 1
    for (int i = 0; i < 8 * kx_panels; ++i)
        st_shared_v4_zero(smem.kx() + i / 8 * kv_panel_bytes + thread_now() % cta_keys * 128 +
                          i % 8 * 16);
}

/* Waits for K and V of the tile. Rows of keys that no query row attends, and of keys past the
 * tile's end, become 0. Each thread looks after one key (of 64 keys, two threads after the same),
 * and every warpgroup writes all of them. */
FFA_DEVICE void kv_ready(const attention_backward_args &a, const shared_view &smem,
                         const backward_tile_slot *slot, int warpgroup)
{
    const barriers bars = smem.bars();
    const int key = slot->tile.begin + thread_now() % cta_keys;
    const int key_there = cluster > 1 ? key + keys_to_other() : key;
    bool is_attended = false, is_attended_there = false;

    for (int i = 0; i < slot->tile.band_count; ++i) {
        const plan_band band = tile_band(a, slot, i);
        is_attended |= key >= band.begin && key < band.end;
        is_attended_there |= key_there >= band.begin && key_there < band.end;
    }
    wait(bars, bars.k_full(), slot->kv_parity, at_kv_full);
    wait(bars, bars.v_full(), slot->kv_parity, at_kv_full);
    if (!is_attended)
#pragma unroll 1
        for (int i = 0; i < 8 * (panels > v_panels ? panels : v_panels); ++i) {
            const int at = i / 8 * kv_panel_bytes + thread_now() % cta_keys * 128 + i % 8 * 16;
            if (i < 8 * panels)
                st_shared_v4_zero(smem.k() + at);
            if (i < 8 * v_panels)
                st_shared_v4_zero(smem.v() + at);
        }
    if (cluster > 1 && !is_attended_there)
        zero_other_k(smem);
    fence_proxy_async();
    warpgroup_sync(warpgroup);
}

}

#endif
