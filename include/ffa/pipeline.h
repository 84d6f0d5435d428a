/* SPDX-License-Identifier: Apache-2.0
 *
 * Running distributed plans: groups of ranks, and the passes over them in host memory.
 *
 * A communicator is one rank's end of a group. The loopback group lives in one process, a thread a
 * rank, over host memory: for tests, for machines without a GPU, and to see a plan run. Transfers
 * go on beside the computation and complete in an order drawn from a seed; what they have not
 * written yet holds NaN.
 *
 * When a rank fails, is cancelled, leaves or keeps another waiting for too long, the group is
 * broken: every call of every rank returns, with one status and a sentence that names the rank.
 * A broken group can only be destroyed.
 *
 * What moves is what the plan says: keys and values, or queries, whose (out, lse) and dq come back.
 *
 * (Stages of group casts behind compute: MagiAttention. First and last writes, credits and the
 * order of the backward pass: ours.)
 */
#ifndef FFA_PIPELINE_H
#define FFA_PIPELINE_H

#include <ffa/attention.h>
#include <ffa/dist_plan.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- groups of ranks ---- */

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

/*
 * Compare the plan's digest on all ranks; every rank calls it, once a mask. Fails on every rank
 * with FFA_INVALID, naming two ranks that differ; the group stays whole. FFA_INVALID for a plan of
 * another rank or group size, FFA_NOMEM: these break the group; or as a broken group does. Blocks:
 * until all ranks have called.
 */
FFA_API ffa_status ffa_dist_plan_agree(const ffa_dist_plan *plan, ffa_comm *comm, ffa_error *err);

/* ---- passes, on the CPU ---- */

/* Tensors are the rank's own rows: its chunks, ascending, packed (dist.h); shapes, strides and
 * defaults are those of attention.h, in host memory. */
typedef struct ffa_dist_args {
    uint32_t struct_size;
    int32_t heads_q;     /* a multiple of heads_kv; both up to 1024 */
    int32_t heads_kv;    /* the mask's number of lists, if that is not 1 */
    int32_t head_dim;    /* 1 to 1024 */
    int32_t dtype;       /* ffa_dtype of q, k, v, out and of dout, dq, dk, dv */
    int32_t sum_dtype;   /* FFA_FP32 or FFA_FP64: what is summed in, of lse, and of gradients on
                          * the wire; 0: FFA_FP64 for FFA_FP64 tensors, else FFA_FP32 */
    float softmax_scale; /* 0: 1 / sqrt(head_dim) */
    float softcap;       /* 0: none */
    ffa_tensor q, k, v;
    ffa_tensor out, lse; /* written forward, read backward; lse is of sum_dtype */
    const float *sink;   /* [sink_count][heads_q], the same on all ranks */
    int32_t sink_count;  /* 0 to 8 */
    int32_t threads;     /* that compute, 1 to 1024; 0: 1 */
    /* Forward, [heads_q], NULL on all ranks or on none: the largest score of each head over all
     * ranks' cells, softcap applied, sinks left out; -inf where there is none. */
    float *max_logits;
    ffa_tensor dout;       /* backward: read */
    ffa_tensor dq, dk, dv; /* backward: written */
    float *dsink; /* backward, [sink_count][heads_q], NULL on all ranks or on none: summed over all
                   * ranks */
} ffa_dist_args;
#define FFA_DIST_ARGS_INIT                                                                         \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_dist_args)                                             \
    }

/*
 * One pass of one rank; all ranks of the group call the same passes in the same order, each with
 * its own plan of the same mask. Backward needs what the forward pass left in out and lse.
 *
 * Results do not depend on the seed, on the number of threads, or on timing: every sum has a fixed
 * order, partial results join by stage, then by rank.
 *
 * Fails with FFA_INVALID: an argument, named with value and limit (the other ranks then see a
 * broken group, so that none waits for this one), or ranks whose calls differ; FFA_NOMEM; FFA_COMM
 * and FFA_TIMEOUT: the group is broken. Outputs are then unspecified. Thread: any; one call of a
 * rank at a time. Blocks: until the rank's part is done.
 */
FFA_API ffa_status ffa_dist_forward_host(const ffa_dist_plan *plan, ffa_comm *comm,
                                         const ffa_dist_args *args, ffa_error *err);
FFA_API ffa_status ffa_dist_backward_host(const ffa_dist_plan *plan, ffa_comm *comm,
                                          const ffa_dist_args *args, ffa_error *err);

#ifdef __cplusplus
}
#endif
#endif
