/* SPDX-License-Identifier: Apache-2.0
 *
 * Transports: what passes need of a group of ranks, behind one table of functions.
 *
 * Work stands in lanes: what is put into one lane runs in order, and lanes run beside each other,
 * on one rank and on all. On a GPU a lane is a stream and every function returns at once. Where the
 * host itself computes, a function of LANE_COMPUTE blocks until its work is done.
 *
 * Ranks see each other's memory through windows: memory of the owner that others pull from. Ranks
 * tell each other where they are through flags: one for each (from, to, channel), whose value only
 * grows. A window slot that was lent may be written again once its borrowers have signalled so (a
 * credit). Every wait ends, by the flag or by the group's failure.
 */
#ifndef FFA_PARALLEL_RUN_COMM_H
#define FFA_PARALLEL_RUN_COMM_H

#include "base/base.h"

#include <ffa/parallel_pass.h>

enum comm_lane { LANE_FETCH, LANE_REDUCE, LANE_COMPUTE, LANE_COUNT };

enum comm_window {
    WINDOW_ROWS, /* what the rank has and others fetch, slots taken in turn by calls */
    WINDOW_SUMS, /* partial results for the owners of a stage's rows, slots in turn by stages */
    WINDOW_COUNT
};
enum { WINDOW_SLOTS = 2 };

enum comm_channel {
    CHANNEL_ROWS_READY, /* value: the call whose rows are there */
    CHANNEL_ROWS_DONE,  /* the call whose rows were pulled */
    CHANNEL_SUMS_READY, /* comm_moment() of the call and stage */
    CHANNEL_SUMS_DONE,
    CHANNEL_TOTALS_READY, /* of GPUs: the call whose totals were sent */
    CHANNEL_RELAYED,      /* of GPUs: the call whose keys of a stage a relay has received */
    CHANNEL_COUNT
};

/* Bytes of the window of `rank` to bytes of the target. */
struct comm_range {
    int64_t from, to, bytes;
    int32_t rank;
    int32_t pad_;
};

/* Ranges do not overlap in the target. */
struct comm_transfer {
    enum comm_window window;
    int32_t slot;                    /* the same on all ranks of the ranges */
    const struct comm_range *ranges; /* [count], copied */
    int64_t count;
    void *target;
};

/* How a transfer is added to what is there. */
struct comm_reduce {
    ffa_dtype dtype; /* FFA_FP32 or FFA_FP64 */
    int32_t merge;   /* 0: sums. n: items of n elements, an output of n - 1 and its lse, merged as
                      * attention over disjoint keys; lse -inf weighs nothing */
};

struct comm_ops {
    void (*destroy)(ffa_comm *comm);
    /* Memory of the rank's own window, at least that large; what it held is lost. For the host. */
    ffa_status (*window)(void **out, ffa_comm *comm, enum comm_window window, int32_t slot,
                         size_t bytes, ffa_error *err);
    /* Put into a lane: */
    ffa_status (*pull)(ffa_comm *comm, enum comm_lane lane, const struct comm_transfer *transfer,
                       ffa_error *err);
    ffa_status (*reduce)(ffa_comm *comm, enum comm_lane lane, const struct comm_transfer *transfer,
                         const struct comm_reduce *how, ffa_error *err);
    /* The content of the memory is no longer needed. */
    ffa_status (*discard)(ffa_comm *comm, enum comm_lane lane, void *at, size_t bytes,
                          ffa_error *err);
    ffa_status (*signal)(ffa_comm *comm, enum comm_lane lane, int32_t to, enum comm_channel channel,
                         uint64_t value, ffa_error *err);
    ffa_status (*wait)(ffa_comm *comm, enum comm_lane lane, int32_t from, enum comm_channel channel,
                       uint64_t value, ffa_error *err);
    /* A mark behind all that was put into the lane so far, and a lane's wait for a mark of another
     * lane. */
    uint64_t (*record)(ffa_comm *comm, enum comm_lane lane);
    ffa_status (*await)(ffa_comm *comm, enum comm_lane lane, enum comm_lane of, uint64_t mark,
                        ffa_error *err);
    /* The host waits until nothing of the rank's lanes is left, also of a broken group; then the
     * group's status. */
    ffa_status (*drain)(ffa_comm *comm, ffa_error *err);
    /* all [rank_count][bytes]. Blocks until all ranks have called: with 0 bytes a barrier. */
    ffa_status (*gather)(ffa_comm *comm, const void *mine, void *all, size_t bytes, ffa_error *err);
    /* What the rank is about to do, in words that must be those of all ranks in the same call. Does
     * not wait; ranks that differ break the group. */
    ffa_status (*enter)(ffa_comm *comm, uint64_t call, const char *words, ffa_error *err);
    /* ffa_comm_reserve and ffa_comm_status; status from any thread. */
    ffa_status (*reserve)(ffa_comm *comm, int64_t key_bytes, int64_t sum_bytes, ffa_error *err);
    ffa_status (*status)(const ffa_comm *comm, ffa_error *err);
    /* Break the group; the first reason stays. Any thread. */
    void (*cancel)(ffa_comm *comm, ffa_status status, const char *message);
};

/* Who was lent a slot, and the value whose signal gives it back; 0: nobody. */
struct comm_loan {
    uint64_t *until; /* [rank_count] */
};

struct ffa_comm {
    const struct comm_ops *ops;
    int32_t rank, rank_count;
    uint64_t call;        /* passes begun */
    char cost_digest[40]; /* of the cost table of the rank's device; "" on the CPU */
    struct comm_loan loans[WINDOW_COUNT][WINDOW_SLOTS];
};

/* For transports: what is common to all. comm_finish also after a failed comm_init. */
ffa_status comm_init(ffa_comm *comm, const struct comm_ops *ops, int32_t rank, int32_t rank_count,
                     ffa_error *err);
void comm_finish(ffa_comm *comm);

static inline uint64_t comm_moment(uint64_t call, int32_t stage)
{
    return call << 8 | (uint64_t)stage;
}

/* `rank` may read the slot until it signals `value`. */
void comm_lend(ffa_comm *comm, enum comm_window window, int32_t slot, int32_t rank, uint64_t value);
/* LANE_COMPUTE waits until nobody reads the slot. */
ffa_status comm_reclaim(ffa_comm *comm, enum comm_window window, int32_t slot, ffa_error *err);

#endif
