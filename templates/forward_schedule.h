/* SPDX-License-Identifier: Apache-2.0
 *
 * attention_forward: the rasterisation order and the scheduler. One warp takes work items from a
 * counter and writes the records of their tiles to shared memory, one tile ahead.
 */
#ifndef FFA_FORWARD_SCHEDULE_H
#define FFA_FORWARD_SCHEDULE_H

#include "forward_layout.h"

namespace {

struct work {
    int tile, head;
};

/* The tile and head of a work item. L2 groups of heads are outermost, then tiles (longest first),
 * then the heads of a group: work items that run at the same time share K and V in L2. */
FFA_DEVICE work work_find(const attention_forward_args &a, const plan_header_pass &plan, int item)
{
    if (a.flags & FORWARD_LIST_PER_KV_HEAD)
        return work{ item / a.group, item % a.group };
    const int l2_group_items = plan.tile_count * a.l2_heads;
    const int l2_group = item / l2_group_items;
    const int rest = item - l2_group * l2_group_items;
    const int first_head = l2_group * a.l2_heads;
    const int heads = min(a.l2_heads, a.heads_q - first_head);
    return work{ rest / heads, first_head + rest % heads };
}

/* Each lane of the warp copies one sweep and one band. */
FFA_DEVICE void tile_write(const attention_forward_args &a, const plan_header_pass &plan,
                           forward_tile_slot *slot, int item, int lane)
{
    const work w = work_find(a, plan, item);
    const plan_tile tile = plan_tile_read(a.image, plan, w.tile);

    if (lane == 0) {
        slot->tile = tile;
        slot->head = w.head + (a.flags & FORWARD_LIST_PER_KV_HEAD ? tile.list * a.group : 0);
    }
    if (lane < inline_sweeps && lane < tile.sweep_count)
        slot->sweeps[lane] = plan_record<plan_sweep>(a.image, tile.sweep_begin + lane);
    if (lane < inline_bands && lane < tile.band_count)
        slot->bands[lane] = plan_record<plan_band>(a.image, tile.band_begin + lane);
}

/* The work item after the block's first one. */
FFA_DEVICE int work_next(const attention_forward_args &a, int lane)
{
    int item = 0;

    if (lane == 0)
        item = (int)gridDim.x + atomicAdd(a.counter, 1);
    return __shfl_sync(0xffffffffu, item, 0);
}

FFA_DEVICE void scheduler_run(const attention_forward_args &a, const shared_view &smem, int lane)
{
    const barriers bars = smem.bars();
    const plan_header_pass plan = a.image->forward;
    const int work_count = plan.tile_count * a.tile_items;
    ring<tile_slots> at;
    ring<1> asked;
    int item = (int)blockIdx.x;

    for (;;) {
        wait(bars, bars.tile_empty(at.slot), at.parity ^ 1, at_tile_empty);
        forward_tile_slot *slot = smem.slot(at.slot);
        const bool has_work = item < work_count;
        if (has_work)
            tile_write(a, plan, slot, item, lane);
        else if (lane == 0)
            slot->tile.count = 0;
        mbarrier_arrive(bars.tile_full(at.slot));
        at.next();
        if (!has_work)
            break;
        /* Where there are no more items than blocks, nobody looks at the counter, and it need not
         * be 0. */
        if (work_count <= (int)gridDim.x) {
            item = work_count;
            continue;
        }
        /* The next item is taken when all loads of this one are asked for, and not earlier: the
         * block that is free first should have it. */
        wait(bars, bars.loads_asked(), asked.parity, at_loads_asked);
        asked.next();
        item = work_next(a, lane);
    }
}

}

#endif
