/* SPDX-License-Identifier: Apache-2.0
 *
 * Communicators: groups of ranks, and the transports between them.
 *
 * A communicator is one rank's end of a group. The loopback transport lives in one process, a
 * thread a rank, over host memory: for tests, for machines without a GPU, and to see a plan run.
 * Transfers run beside the computation and complete in an order drawn from a seed; what they have
 * not written yet holds NaN.
 *
 * When a rank fails, is cancelled, leaves, or keeps another one waiting for too long, the group is
 * broken: every call of every rank returns, with one status and a sentence that names the rank. A
 * broken group can only be destroyed.
 */
#ifndef FFA_COMM_H
#define FFA_COMM_H

#include <ffa/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Thread: one call of a rank at a time; ffa_comm_cancel from any thread. */
typedef struct ffa_comm ffa_comm;

typedef struct ffa_loopback_opts {
    uint32_t struct_size;
    int32_t delay;      /* times a transfer may be passed over by others, 0 to 1000; 0: never */
    uint64_t seed;      /* of the order of transfers; results do not depend on it */
    int64_t timeout_ms; /* that one rank waits for another, 1 to 2^40; 0: 60000 */
} ffa_loopback_opts;
#define FFA_LOOPBACK_OPTS_INIT                                                                     \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_loopback_opts)                                         \
    }
FFA_API void ffa_loopback_opts_init(ffa_loopback_opts *opts, size_t bytes);

/*
 * Make a group of ranks in this process.
 *
 * out         [rank_count], receives the ends; all NULL on failure. Owner: caller, each by
 *             ffa_comm_destroy().
 * rank_count  1 to 256.
 * opts        NULL: all defaults.
 *
 * Fails with FFA_INVALID; FFA_UNSUPPORTED: an option newer than this library; FFA_NOMEM. Thread:
 * any. Blocks: no. The group has one thread of its own until its last end is destroyed.
 */
FFA_API ffa_status ffa_loopback_create(ffa_comm **out, int32_t rank_count,
                                       const ffa_loopback_opts *opts, ffa_error *err);
/* The rank leaves: ranks that wait for it, now or later, break the group. NULL is allowed. */
FFA_API void ffa_comm_destroy(ffa_comm *comm);

/* -1 and 0 for NULL. */
FFA_API int32_t ffa_comm_rank(const ffa_comm *comm);
FFA_API int32_t ffa_comm_rank_count(const ffa_comm *comm);

/* Break the group with FFA_COMM; why: part of the message all ranks see, or NULL. Thread: any,
 * also while the rank is in a call. Blocks: no. */
FFA_API void ffa_comm_cancel(ffa_comm *comm, const char *why);

#ifdef __cplusplus
}
#endif
#endif
