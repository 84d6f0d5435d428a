/* SPDX-License-Identifier: Apache-2.0
 *
 * attention_forward: a consumer's walk over the blocks of its tile, and the mask of partial blocks.
 * The keys that each of the thread's two rows attends in a sweep are held in registers.
 */
#ifndef FFA_FORWARD_MASK_H
#define FFA_FORWARD_MASK_H

#include "forward_rows.h"
#include "kernel_mask.h"

namespace {

/* Where a consumer is in its tile's sweeps. It goes from the last block of a sweep to its first. */
struct cursor {
    int sweep_index;
    int key;                  /* first key of the block */
    int k_begin;              /* of the sweep */
    int full_begin, full_end; /* of the sweep; full_end less a block */
    int tail;                 /* rows of the block past the sweep's end */
    int lo[2], hi[2]; /* keys that the thread's two rows attend, less the thread's first column */
    FFA_DEVICE_MEMBER bool is_full() const { return key >= full_begin && key <= full_end; }
};

FFA_DEVICE void cursor_enter(cursor &c, const attention_forward_args &a,
                             const forward_tile_slot *slot)
{
    const plan_sweep sweep = tile_sweep(a, slot, c.sweep_index);
    int row[2];
    const int column = thread_index() % 4 * 2;
    const int blocks = (sweep.end - sweep.begin + tile_n - 1) / tile_n;

#pragma unroll
    for (int r = 0; r < 2; ++r)
        row[r] = slot->tile.begin + query_row(a, tile_row() + 8 * r);
    c.k_begin = sweep.begin;
    c.key = sweep.begin + (blocks - 1) * tile_n;
    c.full_begin = sweep.full_begin;
    c.full_end = sweep.full_end - tile_n;
    c.tail = c.key + tile_n - sweep.end;
    c.lo[0] = c.lo[1] = 0;
    c.hi[0] = c.hi[1] = sweep.begin - tile_n; /* nothing */
#pragma unroll 1
    for (int i = 0; i < sweep.band_count; ++i) {
        const plan_band band = tile_band(a, slot, sweep.band_begin + i);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int d = row[r] - band.begin;
            if (d >= 0 && row[r] < band.end) {
                c.lo[r] = band.lo + band.lo_step * d - column;
                c.hi[r] = band.hi + band.hi_step * d - column;
            }
        }
    }
}

/* Goes to the next block. False: the tile has no more. */
FFA_DEVICE bool cursor_next(cursor &c, const attention_forward_args &a,
                            const forward_tile_slot *slot)
{
    if (c.key != c.k_begin) {
        c.key -= tile_n;
        c.tail = 0;
        return true;
    }
    if (++c.sweep_index >= slot->tile.sweep_count)
        return false;
    cursor_enter(c, a, slot);
    return true;
}

/* Scores outside [lo, hi) of their row become -inf. */
FFA_DEVICE void mask_scores(float (&s)[s_regs], const cursor &c)
{
    const int lo[2] = { c.lo[0] - c.key, c.lo[1] - c.key };
    const int hi[2] = { c.hi[0] - c.key, c.hi[1] - c.key };

    mask_columns(s, lo, hi);
}

}

#endif
