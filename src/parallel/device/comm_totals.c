/* SPDX-License-Identifier: Apache-2.0
 *
 * Totals of a call on GPUs: what every rank sums up for itself comes to all ranks, and each joins
 * the same numbers in the same order, so that all get the same bits.
 *
 * Invariant: two slots are enough, though nobody gives one back. A rank writes the slot of its
 * call with totals t again in call t + 2. Its stream is then past call t + 1, so every peer has
 * sent its totals of t + 1. A peer's totals of t + 1 come from its caller's stream behind what read
 * those of t.
 */
#include "parallel/device/comm_device.h"

_Static_assert(sizeof(float) * 2 == sizeof(uint64_t), "totals are counted in words of a block");

/* This rank's totals in the block of each rank, its own too. */
static ffa_status send(struct comm_device *comm, ffa_stream stream, int32_t slot, const float *mine,
                       int32_t count, ffa_error *err)
{
    const int32_t n = comm->comm.rank_count;
    const int64_t at = comm_block_totals(n, slot, comm->comm.rank);
    void *to[COMM_RANKS_MAX];
    const void *from[COMM_RANKS_MAX];
    size_t bytes[COMM_RANKS_MAX];

    for (int32_t r = 0; r < n; r++) {
        to[r] = comm->blocks[r] + at;
        from[r] = mine;
        bytes[r] = (size_t)count * sizeof *mine;
    }
    return gpu_copy_batch(comm->gpu, stream, to, from, bytes, n, err);
}

ffa_status comm_device_share_totals(const float **all, struct comm_device *comm, uint64_t call,
                                    ffa_stream stream, const float *mine, int32_t count,
                                    ffa_error *err)
{
    const int32_t n = comm->comm.rank_count;
    const int32_t slot = (int32_t)(comm->totals++ % COMM_TOTALS_SLOTS);
    uint64_t *here = comm_device_own(comm) + comm_block_totals(n, slot, 0);
    struct comm_flag flags[COMM_RANKS_MAX];
    struct comm_batch batch;
    int32_t peers = 0;
    ffa_status rc;

    assert(count >= 1 && count <= COMM_TOTALS_MAX);
    *all = (const float *)(const void *)here;
    if (comm->exchange) {
        comm_device_spoil(comm, call, here, (int64_t)n * COMM_TOTALS_MAX * (int64_t)sizeof(float));
        rc = comm_exchange_totals(comm, stream, (float *)(void *)here, mine, count, err);
        goto out;
    }
    for (int32_t r = 0; r < n; r++)
        if (r != comm->comm.rank)
            flags[peers++] = (struct comm_flag){ .channel = CHANNEL_TOTALS_READY, .rank = r };
    comm_device_spoil(comm, call, here, (int64_t)n * COMM_TOTALS_MAX * (int64_t)sizeof(float));
    comm_batch_init(&batch, comm, stream);
    FFA_TRY(send(comm, stream, slot, mine, count, err));
    FFA_TRY(comm_batch_signal(&batch, call, flags, peers, err));
    FFA_TRY(comm_batch_wait(&batch, call, flags, peers, err));
    rc = comm_batch_flush(&batch, err);
out:
    return rc;
}
