/* SPDX-License-Identifier: Apache-2.0
 *
 * What all transports share: loans of window slots, and the public functions of a communicator.
 * Invariant: a slot is written only when no rank may still read it. A loan is the value that its
 * borrower will signal; reclaiming a slot waits for the values of all its loans.
 */
#include "parallel/run/comm.h"

ffa_status comm_init(ffa_comm *comm, const struct comm_ops *ops, int32_t rank, int32_t rank_count,
                     ffa_error *err)
{
    comm->ops = ops;
    comm->rank = rank;
    comm->rank_count = rank_count;
    for (int w = 0; w < WINDOW_COUNT; w++)
        for (int s = 0; s < WINDOW_SLOTS; s++) {
            comm->loans[w][s].until = mem_array((size_t)rank_count, sizeof(uint64_t));
            if (!comm->loans[w][s].until)
                return error_nomem(err, "the loans of a communicator");
        }
    return FFA_OK;
}

void comm_finish(ffa_comm *comm)
{
    for (int w = 0; w < WINDOW_COUNT; w++)
        for (int s = 0; s < WINDOW_SLOTS; s++)
            mem_free(comm->loans[w][s].until);
}

void comm_lend(ffa_comm *comm, enum comm_window window, int32_t slot, int32_t rank, uint64_t value)
{
    comm->loans[window][slot].until[rank] = value;
}

ffa_status comm_reclaim(ffa_comm *comm, enum comm_window window, int32_t slot, ffa_error *err)
{
    static const enum comm_channel done[WINDOW_COUNT] = { CHANNEL_ROWS_DONE, CHANNEL_SUMS_DONE };
    uint64_t *until = comm->loans[window][slot].until;
    ffa_status rc = FFA_OK;

    for (int32_t r = 0; r < comm->rank_count; r++) {
        if (!until[r])
            continue;
        FFA_TRY(comm->ops->wait(comm, LANE_COMPUTE, r, done[window], until[r], err));
        until[r] = 0;
    }
out:
    return rc;
}

/* ---- public ---- */

void ffa_comm_destroy(ffa_comm *comm)
{
    if (comm)
        comm->ops->destroy(comm);
}

int32_t ffa_comm_rank(const ffa_comm *comm)
{
    return comm ? comm->rank : -1;
}

int32_t ffa_comm_rank_count(const ffa_comm *comm)
{
    return comm ? comm->rank_count : 0;
}

void ffa_comm_cancel(ffa_comm *comm, const char *why)
{
    char message[sizeof(((ffa_error *)0)->message)];

    if (!comm)
        return;
    text_copy(message, "cancelled at rank %d%s%s", comm->rank, why ? ": " : "", why ? why : "");
    comm->ops->cancel(comm, FFA_COMM, message);
}

ffa_status ffa_comm_reserve(ffa_comm *comm, int64_t key_bytes, int64_t sum_bytes, ffa_error *err)
{
    if (!comm)
        return error_fail(err, FFA_INVALID, 0, "comm is NULL");
    return comm->ops->reserve(comm, key_bytes, sum_bytes, err);
}

ffa_status ffa_comm_status(const ffa_comm *comm, ffa_error *err)
{
    if (!comm)
        return error_fail(err, FFA_INVALID, 0, "comm is NULL");
    return comm->ops->status(comm, err);
}
