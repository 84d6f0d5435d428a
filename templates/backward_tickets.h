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

/* Tickets that have come and are not yet passed on: `count` slots from `at`. */
struct tickets_held {
    int count = 0;
    ring<ticket_slots> at;
};

/* Passes the oldest ticket on, if the sender has said that its block is added. */
FFA_DEVICE void tickets_pass(const attention_backward_args &a, const shared_view &smem,
                             tickets_held &held)
{
    const barriers bars = smem.bars();

    if (held.count == 0 ||
        !mbarrier_test_wait_parity(bars.ticket_empty(held.at.slot), held.at.parity))
        return;
    const backward_ticket_slot ticket = *smem.ticket(held.at.slot);
    fence_proxy_async_global();
    st_release_gpu(a.dq_semaphores + ticket.semaphore, ticket.next);
    --held.count;
    held.at.next();
}

/* The thread has too few registers to keep where the tickets begin. */
FFA_DEVICE const plan_ticket *tickets_of(const attention_backward_args &a, const plan_sweep &sweep)
{
    return reinterpret_cast<const plan_ticket *>(
               &plan_record<plan_sweep>(a.image, a.image->tickets_at)) +
           sweep.ticket_begin;
}

FFA_DEVICE void tickets_run(const attention_backward_args &a, const shared_view &smem)
{
    const barriers bars = smem.bars();
    const uint32_t blocks = (uint32_t)((a.dq_rows + tile_m - 1) / tile_m);
    ring<tile_slots> tile_at;
    ring<ticket_slots> at;
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

    for (;; tile_at.next()) {
        until(at_tile_full_producer, [&] {
            return mbarrier_test_wait_parity(bars.tile_full(tile_at.slot), tile_at.parity);
        });
        const backward_tile_slot *slot = smem.slot(tile_at.slot);
        if (slot->tile.count < 0)
            break;
        const plan_ticket *ticket = nullptr;
        plan_ticket ticket_now = {};
        int ticket_sweep = -1;
        visit_all(a, slot, [&](const visit &now, const plan_sweep &sweep) {
            const uint32_t semaphore = ((uint32_t)now.head * cluster + cluster_rank()) * blocks +
                                       (uint32_t)now.row / tile_m;
            if (now.sweep != ticket_sweep) {
                ticket_sweep = now.sweep;
                ticket = tickets_of(a, sweep);
                ticket_now = *ticket;
            } else if (now.row < ticket_now.row) {
                ticket_now = *++ticket;
            }
            until(at_ticket_empty, [&] { return held.count < ticket_slots; });
            until(at_semaphore,
                  [&] { return ld_acquire_gpu(a.dq_semaphores + semaphore) == ticket_now.before; });
            fence_proxy_async_global();
            *smem.ticket(at.slot) = backward_ticket_slot{ semaphore, ticket_now.before + 1 };
            ++held.count;
            mbarrier_arrive(bars.ticket_full(at.slot));
            at.next();
        });
        mbarrier_arrive(bars.tile_empty(tile_at.slot));
    }
    until(at_ticket_empty, [&] { return held.count == 0; });
}

}

#endif
