/* SPDX-License-Identifier: Apache-2.0
 *
 * attention_backward: dQ from registers to shared memory (copy_dq), and from there to the fp32
 * workspace (the sender: one thread, or one for each piece of a block, that has the copy engine add
 * it). Pieces of specialised consumers and of pairs: backward_pieces.h.
 */
#ifndef FFA_BACKWARD_DQ_H
#define FFA_BACKWARD_DQ_H

#include "backward_mask.h"
#include "backward_pieces.h"

namespace {

/* Piece w of a block: the panels of its first 64 rows, then those of the next ones. */
FFA_DEVICE piece_shape shape_find(int w)
{
    const int panel = w % panels, columns = panel == panels - 1 ? last_columns : 64;

    return { w / panels * 64, panel, columns, 0, columns };
}

/* Where a thread's part of a piece is in shared memory. */
FFA_DEVICE uint32_t dq_place(const shared_view &smem, int place, int columns)
{
    const uint32_t thread = threadIdx.x % 128;

    return smem.dq(place) +
           (thread / 32 * 2 * BACKWARD_DQ_ROWS * (uint32_t)columns + thread % 32 * 2) * 4;
}

/* Piece w of dQ goes to shared memory, whose place is free, as it lies in the workspace: groups of
 * 8 rows, each in runs of 8 columns, which is how a warp holds them: lane l
 * has row l / 4 and columns 2 (l % 4) and the next, floats 2 l and 2 l + 1 of the run. Rows outside
 * the block's sweep become 0, as they are added, too. to: the thread's place; top: the piece's
 * first row in the block; w: which dq_full, in a pair the place. */
template <int columns>
FFA_DEVICE void copy_dq(const shared_view &smem, float (&dq)[columns / 2], uint32_t to, int flags,
                        const backward_block *block, int top, int w)
{
    const barriers bars = smem.bars();

    if (flags & BACKWARD_BLOCK_CUT) {
        const int thread = thread_now();
        const int first = block_row(*block) + top + thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
        for (int r = 0; r < 2; ++r)
            if (first + 8 * r < block->row_begin || first + 8 * r >= block->row_end)
#pragma unroll
                for (int i = 2 * r; i < columns / 2; i += 4)
                    dq[i] = dq[i + 1] = 0.0f;
    }
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int k = 0; k < columns / 8; ++k)
            st_shared_f32x2(to + r * BACKWARD_DQ_ROWS * columns * 4 + k * 256, dq[4 * k + 2 * r],
                            dq[4 * k + 2 * r + 1]);
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        mbarrier_arrive(bars.dq_full(w));
}

/* ---- the sender ---- */

/* A piece of dQ in shared memory and in the workspace. */
struct dq_piece {
    float *to;
    uint32_t from;
    int bytes; /* <= 0: no row of it is in the sweep */
};

/* Piece w of a block, which is at `place` in shared memory. */
FFA_DEVICE dq_piece piece_find(const attention_backward_args &a, const backward_block &block, int w,
                               uint32_t place)
{
    const piece_shape shape = is_specialised || is_pair ? specialised_shape(w) : shape_find(w);
    const int top = block_row(block) + shape.top, row_bytes = shape.columns * 4;
    const int first = max(block.row_begin, top) / BACKWARD_DQ_ROWS * BACKWARD_DQ_ROWS;
    const int end = (block.row_end + BACKWARD_DQ_ROWS - 1) / BACKWARD_DQ_ROWS * BACKWARD_DQ_ROWS;

    return dq_piece{ (float *)a.dq + (long long)block.head * a.dq_head_stride +
                         (long long)shape.panel * a.dq_rows * 64 +
                         (long long)first * shape.panel_columns + shape.column * BACKWARD_DQ_ROWS,
                     place + (first - top) * row_bytes, (min(end, top + 64) - first) * row_bytes };
}

FFA_DEVICE void piece_add(const dq_piece &piece, int w)
{
    if (is_half_panel(w))
        half_panel_add(piece.to, piece.from, piece.bytes);
    else if (piece.bytes > 0)
        bulk_reduce_add_f32(piece.to, piece.from, piece.bytes);
}

/* Gives a place of dQ back: to the warpgroup that makes dQ, in a pair to the other block's dS. */
FFA_DEVICE void place_release(uint32_t dq_empty)
{
    if (is_pair)
        mbarrier_arrive_at(dq_empty, cluster_rank() ^ 1);
    else
        mbarrier_arrive(dq_empty);
}

/* dq_empty of the piece that the copy engine may still read, or 0: waits until it has read the
 * piece, and gives the place back. */
FFA_DEVICE void dq_release(uint32_t &unread)
{
    if (unread) {
        bulk_wait_read<0>();
        place_release(unread);
        unread = 0;
    }
}

/* Ordered accumulation: waits until the copy engine has added all but the last `left` pieces, and
 * says so for a block. `ticket`: ticket_empty of the block's slot, or 0. */
template <int left> FFA_DEVICE void ticket_done(uint32_t &ticket)
{
    if (spec::deterministic && ticket) {
        bulk_wait<left>();
        mbarrier_arrive(ticket);
        ticket = 0;
    }
}

/* A sender whose warp has no other thread at work may sleep on the barrier. */
template <int which>
FFA_DEVICE void sender_wait(const barriers &bars, uint32_t bar, uint32_t parity, wait_name name)
{
    if (which == 0 && !spec::debug)
        wait(bars, bar, parity, name);
    else
        wait_beside(bars, bar, parity, name);
}

/* Has the copy engine add pieces to the workspace; in ordered accumulation, when the block's ticket
 * has come. It asks for the next piece before it waits for the one before; if the next one has not
 * come, it gives up first what others wait for. Where a piece goes it finds out before the piece is
 * there, but for the first one of a tile. */
template <int which>
FFA_DEVICE void send_dq(const attention_backward_args &a, const shared_view &smem)
{
    const barriers bars = smem.bars();
    static_assert(!is_specialised || senders == 1, "all pieces of a block are its own");
    constexpr int w_begin = senders > 1 ? which : first_piece;
    constexpr int w_end = senders > 1 ? which + 1 : is_pair ? 1 : consumers;
    ring<tile_slots> tile_at;
    position at;
    uint32_t parity[consumers] = {};
    uint32_t unread = 0; /* dq_empty of the piece that the copy engine may still read */
    ring<ticket_slots> ticket_at;
    uint32_t ticket = 0; /* ticket_empty of the block that the copy engine may still add */

    for (;; tile_at.next()) {
        sender_wait<which>(bars, bars.tile_full(tile_at.slot), tile_at.parity,
                           at_tile_full_producer);
        const backward_tile_slot *slot = smem.slot(tile_at.slot);
        if (slot->tile.count < 0)
            break;
        backward_block block = {};
        bool has_block = false; /* the record of the first block is there when its dQ is */
        for (bool is_last = slot->tile.sweep_count == 0; !is_last;) {
            for (int w = w_begin; w < w_end; ++w) {
                const bool is_first = w == w_begin;
                const int place = is_pair ? (int)at.ds_slot() : w;
                const uint32_t phase = is_pair ? at.ds_parity() : parity[w];
                const uint32_t from = smem.dq(place % dq_places);
                dq_piece piece = {};
                if (has_block)
                    piece = piece_find(a, block, w, from);
                if (!mbarrier_test_wait_parity(bars.dq_full(place), phase) ||
                    (spec::deterministic && is_first &&
                     !mbarrier_test_wait_parity(bars.ticket_full(ticket_at.slot),
                                                ticket_at.parity))) {
                    dq_release(unread);
                    ticket_done<0>(ticket);
                }
                sender_wait<which>(bars, bars.dq_full(place), phase, at_dq_full);
                parity[w] ^= 1;
                if (!has_block) {
                    has_block = true;
                    block = *smem.block(at.count);
                    piece = piece_find(a, block, w, from);
                }
                if (spec::deterministic && is_first)
                    sender_wait<which>(bars, bars.ticket_full(ticket_at.slot), ticket_at.parity,
                                       at_ticket_full);
                fence_proxy_async();
                piece_add(piece, w);
                bulk_commit();
                if (unread) {
                    bulk_wait_read<1>();
                    place_release(unread);
                }
                unread = bars.dq_empty(place);
                ticket_done<1>(ticket);
            }
            if constexpr (spec::deterministic) {
                ticket = bars.ticket_empty(ticket_at.slot);
                ticket_at.next();
            }
            is_last = block.flags & BACKWARD_BLOCK_LAST;
            at.next();
            if (!is_last) /* its record is there: who made dQ, or its dS, waited for the next Q */
                block = *smem.block(at.count);
        }
        dq_release(unread);
        ticket_done<0>(ticket);
        mbarrier_arrive(bars.tile_empty(tile_at.slot));
    }
    bulk_wait<0>();
    if (spec::debug)
        watch_finished(bars);
}

}

#endif
