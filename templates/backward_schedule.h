/* SPDX-License-Identifier: Apache-2.0
 *
 * attention_backward: the rasterisation order and the scheduler, which takes work items from a
 * counter and writes the records of their tiles to shared memory.
 */
#ifndef FFA_BACKWARD_SCHEDULE_H
#define FFA_BACKWARD_SCHEDULE_H

#include "backward_arrivals.h"

namespace {

/* What a work item needs of the plan's header. It is read for each item, while the counter's answer
 * is under way: the scheduler has too few registers to keep it. */
struct plan_facts {
    plan_header_pass pass;
    int lockstep; /* PLAN_LOCKSTEP... */
};

FFA_DEVICE plan_facts plan_read(const attention_backward_args &a)
{
    return plan_facts{ a.image->backward, a.image->lockstep };
}

struct work {
    int tile, head_group;
    bool is_descending; /* lockstep: from the last query row to the first */
};

/* Of what is not negative. Without signs it takes fewer registers. */
FFA_DEVICE int quotient(int dividend, int divisor)
{
    return (int)((uint32_t)dividend / (uint32_t)divisor);
}

/* The items that the work item is one of, whose head groups are all of as many query heads. */
FFA_DEVICE backward_group group_find(const attention_backward_args &a, const plan_facts &plan,
                                     int item)
{
    backward_group group = { 0, plan.pass.tile_count, 0, a.tile_items, 0, 0, 0 };

    if constexpr (spec::arrivals) { /* no kv head is left whole */
        if (a.group_count > 0)
            group = backward_group_find(&a, a.tile_items, item);
    } else {
        const int whole_items = group.tile_count * a.order.whole_heads;
        const bool is_divided = item >= whole_items;
        group.item_begin = is_divided ? whole_items : 0;
        group.head_begin = is_divided ? a.order.whole_heads : 0;
        group.head_count = is_divided ? a.tile_items - a.order.whole_heads : a.order.whole_heads;
    }
    return group;
}

/* The tile and head group of a work item. L2 groups are outermost, then tiles (longest first), then
 * the head groups of an L2 group: work items that run at the same time pass over the same Q, dO and
 * dq at nearly the same time, and find them in L2. */
FFA_DEVICE work work_find(const attention_backward_args &a, const plan_facts &plan, int item)
{
    const backward_group group = group_find(a, plan, item);
    const backward_l2_groups l2 = backward_l2_groups_find(group.tile_count, group.head_count,
                                                          a.order.waves, a.order.at_a_time);
    const int l2_group_items = group.tile_count * l2.head_groups;
    const int l2_group = quotient(item - group.item_begin, l2_group_items);
    const int rest = item - group.item_begin - l2_group * l2_group_items;
    const int first = l2_group * l2.head_groups;
    const int head_groups = min(l2.head_groups, group.head_count - first);
    const int tile = quotient(rest, head_groups);
    work found = { group.tile_begin + tile + (tile >= group.skip_at ? group.skip : 0),
                   group.head_begin + first + rest - tile * head_groups, false };

    if (plan.lockstep) {
        const int wave = l2_group * l2.waves + quotient(rest, l2.wave_items);
        found.is_descending = (wave & 1) != !!(plan.lockstep & PLAN_LOCKSTEP_DESCENDING);
    }
    return found;
}

FFA_DEVICE int scheduler_take(const attention_backward_args &a, int lane)
{
    int item = lane == 0 ? atomicAdd(a.counter, 1) : 0;

    if (scheduler_lanes == 32)
        item = __shfl_sync(0xffffffffu, item, 0);
    return item;
}

/* This may take as long as a tile, so the watchdog does not time it: whoever keeps the tile from
 * ending reports. */
FFA_DEVICE void scheduler_wait(uint32_t bar, uint32_t parity)
{
    if (!is_scheduler_alone)
        while (!mbarrier_test_wait_parity(bar, parity))
            __nanosleep(20);
    else
        while (!mbarrier_try_wait_parity(bar, parity)) {
        }
}

/* The next work item of a cluster of two: the first CTA takes it, and sends it to the second. */
FFA_DEVICE int cluster_next(const attention_backward_args &a, const barriers &bars, int lane,
                            ring<1> &handover)
{
    int item;

    if (cluster_rank() == 0) {
        item = scheduler_take(a, lane);
        scheduler_wait(bars.item_empty(), handover.parity ^ 1);
        st_async_at(bars.item(), (uint32_t)item, bars.item_full(), 1);
    } else {
        mbarrier_arrive_expect_tx(bars.item_full(), 4);
        scheduler_wait(bars.item_full(), handover.parity);
        item = (int)ld_shared(bars.item());
        mbarrier_arrive_at(bars.item_empty(), 0);
    }
    handover.next();
    return item;
}

FFA_DEVICE int scheduler_next(const attention_backward_args &a, const barriers &bars, int lane,
                              ring<1> &handover)
{
    return cluster == 1 ? scheduler_take(a, lane) : cluster_next(a, bars, lane, handover);
}

FFA_DEVICE void scheduler_run(const attention_backward_args &a, const shared_view &smem, int lane)
{
    const barriers bars = smem.bars();
    /* Each block (or cluster) begins with the item of its own index. Not in ordered accumulation:
     * there items wait for earlier ones, which must be with a block that runs already. */
    const int own_items = spec::deterministic ? 0 : (int)gridDim.x / cluster;
    ring<tile_slots> at;
    ring<1> handover;
    int item =
        spec::deterministic ? scheduler_next(a, bars, lane, handover) : (int)blockIdx.x / cluster;

    plan_facts plan = plan_read(a);

    if (lane == 0) { /* a tile before the first one, which loads nothing */
        smem.slot(1)->tile.sweep_count = 0;
        smem.slot(1)->kv_parity = 0;
    }
    for (;;) {
        scheduler_wait(bars.tile_empty(at.slot), at.parity ^ 1);
        backward_tile_slot *slot = smem.slot(at.slot);
        const backward_tile_slot *slot_before = smem.slot(at.slot ^ 1);
        const bool has_work = item < plan.pass.tile_count * a.tile_items;
        if (has_work) { /* the tile's record: this block's keys, the query heads of its head group
                         */
            const bool has_lists = a.flags & BACKWARD_LIST_PER_KV_HEAD;
            const int of_lists = quotient(item, a.order.parts);
            const work found = has_lists ? work{ of_lists, item - of_lists * a.order.parts, false }
                                         : work_find(a, plan, item);
            if (lane == 0) {
                slot->is_descending = found.is_descending;
                slot->kv_parity = slot_before->kv_parity ^ (slot_before->tile.sweep_count > 0);
            }
            plan_tile tile = plan_tile_read(a.image, plan.pass, found.tile);
            if (cluster > 1)
                keys_divide(tile);
            const int head_group = found.head_group + (has_lists ? tile.list * a.order.parts : 0);
            const int whole = spec::arrivals ? 0 : a.order.whole_heads;
            const int parts = head_group < whole ? 1 : a.order.parts;
            const int divided = max(head_group - whole, 0),
                      heads_divided = quotient(divided, parts);
            const int kv_head = min(head_group, whole) + heads_divided;
            const int part = divided - heads_divided * parts;
            if (lane == 0) {
                const int share = quotient(a.order.group, parts);
                slot->tile = tile;
                slot->kv_head = kv_head;
                slot->head_begin = kv_head * a.order.group + part * share;
                slot->head_end = slot->head_begin + share;
                slot->part = part;
                slot->heads_at_once = plan.lockstep ? share : 1;
            }
#pragma unroll 1 /* for the sake of registers */
            for (int i = lane; i < min(inline_sweeps, tile.sweep_count); i += scheduler_lanes)
                slot->sweeps[i] = plan_record<plan_sweep>(a.image, tile.sweep_begin + i);
#pragma unroll 1
            for (int i = lane; i < min(inline_bands, tile.band_count); i += scheduler_lanes)
                slot->bands[i] = plan_record<plan_band>(a.image, tile.band_begin + i);
        } else if (lane == 0) {
            slot->tile.count = -1;
        }
        if (spec::arrivals && has_work && lane == 0)
            tile_wait(a, bars, slot->tile.begin);
        mbarrier_arrive(bars.tile_full(at.slot));
        at.next();
        if (!has_work)
            break;
        /* The next item is taken when all loads of this tile are asked for, not earlier: the CTA
         * that is free first should have it, and in ordered accumulation others wait for it. */
        scheduler_wait(bars.loads_asked(), at.slot ^ 1); /* tile t has slot and phase t % 2 */
        item = own_items + scheduler_next(a, bars, lane, handover);
        plan = plan_read(a);
    }
}

}

#endif
