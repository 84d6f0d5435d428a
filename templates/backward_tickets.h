/* SPDX-License-Identifier: Apache-2.0
 *
 * attention_backward, ordered accumulation: one thread waits for the ticket of each visit, ahead of
 * the sender, and passes it on when the sender says that the copy engine has added the block.
 *
 * Each block of a query head's rows has a dq semaphore, which counts the visits that have added to
 * it, and the plan says how many come before each visit (tile_plan.h). A work item waits only for
 * items that were taken before it, by a block that runs already, so some item can always go on.
 */
#ifndef FFA_BACKWARD_TICKETS_H
#define FFA_BACKWARD_TICKETS_H

#include "backward_visits.h"

namespace {

/* How many tickets have come so far, and how many of them are passed on. (A CUDA block has fewer
 * than 2^32 visits in a launch.) Their slots are used in turn. */
struct tickets_held {
    uint32_t come = 0, passed = 0;
    static FFA_DEVICE_MEMBER int slot(uint32_t count) { return (int)(count % ticket_slots); }
    static FFA_DEVICE_MEMBER uint32_t parity(uint32_t count) { return count / ticket_slots % 2; }
};

/* Passes the oldest ticket on, if the sender has said that its block is added. */
FFA_DEVICE void tickets_pass(const attention_backward_args &a, const shared_view &smem,
                             tickets_held &held)
{
    const barriers bars = smem.bars();
    const int slot = held.slot(held.passed);

    if (held.come == held.passed ||
        !mbarrier_test_wait_parity(bars.ticket_empty(slot), held.parity(held.passed)))
        return;
    const backward_ticket_slot ticket = *smem.ticket(slot);
    fence_proxy_async_global();
    st_release_gpu(a.dq_semaphores + ticket.semaphore, ticket.next);
    ++held.passed;
}

/* A ticket of the plan. The thread has too few registers to keep where they begin. */
FFA_DEVICE plan_ticket ticket_of(const attention_backward_args &a, int index)
{
    return reinterpret_cast<const plan_ticket *>(
        &plan_record<plan_sweep>(a.image, a.image->tickets_at))[index];
}

FFA_DEVICE void tickets_run(const attention_backward_args &a, const shared_view &smem)
{
    const barriers bars = smem.bars();
    const uint32_t blocks = (uint32_t)((a.dq_rows + tile_m - 1) / tile_m);
    tickets_held held;
    /* While it waits for anything, it goes on to pass tickets on. */
    const auto until = [&](wait_name name, auto is_so) {
        for (int tries = 0;; ++tries) {
            tickets_pass(a, smem, held);
            if (is_so())
                break;
            wait_report(bars, tries, 1 << 22, name);
            __nanosleep(20);
        }
    };

    for (uint32_t tile = 0;; ++tile) { /* a ring's slot and parity in one register */
        const int tile_slot = (int)(tile % tile_slots);
        until(at_tile_full_producer, [&] {
            return mbarrier_test_wait_parity(bars.tile_full(tile_slot), tile / tile_slots % 2);
        });
        const backward_tile_slot *slot = smem.slot(tile_slot);
        if (slot->tile.count < 0)
            break;
        /* Read once a run: after each look at a semaphore L1 is empty, and a read goes to L2. */
        plan_ticket ticket = {};
        int index = 0;
        visit_all(a, slot, [&](const visit &now) {
            if (now.is_first || now.row < ticket.row) {
                index = now.is_first ? tile_sweep(a, slot, now.sweep).ticket_begin : index + 1;
                ticket = ticket_of(a, index);
            }
            const uint32_t semaphore = ((uint32_t)now.head * cluster + cluster_rank()) * blocks +
                                       (uint32_t)now.row / tile_m;
            until(at_ticket_empty, [&] { return held.come - held.passed < ticket_slots; });
            until(at_semaphore,
                  [&] { return ld_acquire_gpu(a.dq_semaphores + semaphore) == ticket.before; });
            fence_proxy_async_global();
            const int slot_at = held.slot(held.come);
            *smem.ticket(slot_at) = backward_ticket_slot{ semaphore, ticket.before + 1 };
            ++held.come;
            mbarrier_arrive(bars.ticket_full(slot_at));
        });
        mbarrier_arrive(bars.tile_empty(tile_slot));
    }
    until(at_ticket_empty, [&] { return held.come == held.passed; });
}

}

#endif
