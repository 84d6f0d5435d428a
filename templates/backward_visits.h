/* SPDX-License-Identifier: Apache-2.0
 *
 * attention_backward: the order in which a tile visits blocks of query rows. Producers, the
 * thread that waits for tickets and, through the block records, all others follow it.
 */
#ifndef FFA_BACKWARD_VISITS_H
#define FFA_BACKWARD_VISITS_H

#include "backward_layout.h"

namespace {

/* Blocks start on a grid: at multiples of the rows that lie together in dq, or, for ordered
 * accumulation, at multiples of tile_m. */
constexpr int grid = spec::deterministic ? tile_m : BACKWARD_DQ_ROWS;

/* The first row of a block, from its record, which has the first row of the sweep in it. */
FFA_DEVICE int block_row(const backward_block &block)
{
    return block.row_begin / grid * grid;
}

/* Rows of the block before the sweep. */
FFA_DEVICE int rows_before(const backward_block &block)
{
    return block.row_begin % grid;
}

/* A tile visits a block of query rows of one head. */
struct visit {
    int head, row;
    int sweep;     /* index in the tile */
    bool is_first; /* visit of the sweep with the heads that are taken at a time */
    bool is_last;  /* of the tile */
};

/* Calls f(visit) for each visit of a tile. Producers have few registers: what f needs of the sweep
 * it reads again (tile_sweep). It takes heads_at_once of the heads at a time; for these it goes
 * through the sweeps and their blocks, ascending or descending, and visits each block with all of
 * them. In ordered accumulation all heads are taken at once, and the order is descending. */
template <typename function>
FFA_DEVICE void visit_all(const attention_backward_args &a, const backward_tile_slot *slot,
                          function f)
{
    constexpr bool is_ordered = spec::deterministic;
    const bool is_descending = is_ordered || slot->is_descending;
    int first = slot->head_begin;

    do
        for (int i = 0; i < slot->tile.sweep_count; ++i) {
            const int index = is_descending ? slot->tile.sweep_count - 1 - i : i;
            const plan_sweep sweep = tile_sweep(a, slot, index);
            const int begin = sweep.begin / grid * grid;
            const int last = (sweep.end - 1 - begin) / tile_m * tile_m;

            for (int at = 0; at <= last; at += tile_m) {
                const int row = begin + (is_descending ? last - at : at);
                const bool ends = at == last && i == slot->tile.sweep_count - 1;
                int head = first;
                do
                    f(visit{ head, row, index, at == 0 && head == first,
                             ends && head == slot->head_end - 1 });
                while (++head < (is_ordered ? slot->head_end : first + slot->heads_at_once));
            }
        }
    while (!is_ordered && (first += slot->heads_at_once) < slot->head_end);
}

}

#endif
