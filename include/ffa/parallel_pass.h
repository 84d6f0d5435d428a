/* SPDX-License-Identifier: Apache-2.0
 *
 * Context-parallel passes: one rank's forward and backward pass by its plan (parallel_plan.h), over
 * a communicator (comm.h), in host memory.
 *
 * What moves is what the plan says: keys and values, or queries, whose (out, lse) pairs and dq come
 * back.
 *
 * (Stages of group casts behind compute: MagiAttention. First and last writes, credits and the
 * order of the backward pass: ours.)
 */
#ifndef FFA_PARALLEL_PASS_H
#define FFA_PARALLEL_PASS_H

#include <ffa/attention.h>
#include <ffa/comm.h>
#include <ffa/parallel_plan.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Compare the plan's digest on all ranks; every rank calls it, once a mask. Fails on every rank
 * with FFA_INVALID, naming two ranks that differ; the group stays whole. FFA_INVALID for a plan of
 * another rank or group size, FFA_NOMEM: these break the group; or as a broken group does. Blocks:
 * until all ranks have called.
 */
FFA_API ffa_status ffa_parallel_plan_agree(const ffa_parallel_plan *plan, ffa_comm *comm,
                                           ffa_error *err);

/* ---- passes, on the CPU ---- */

/* Tensors are the rank's own rows: its chunks, ascending, packed (parallel_rows.h); shapes, strides
 * and defaults are those of attention.h, in host memory. data may be NULL where the rank has no
 * rows. */
typedef struct ffa_parallel_args {
    uint32_t struct_size;
    int32_t heads_q;      /* a multiple of heads_kv; both up to 1024 */
    int32_t heads_kv;     /* the mask's number of lists, if that is not 1 */
    int32_t head_dim;     /* 1 to 1024 */
    int32_t dtype;        /* ffa_dtype of q, k, v, out and of dout, dq, dk, dv */
    int32_t sum_dtype;    /* FFA_FP32 or FFA_FP64: what is summed in, of lse, dlse, sinks, dsink
                           * and max_logits, and of gradients on the wire; 0: FFA_FP64 for FFA_FP64
                           * tensors, else FFA_FP32 */
    double softmax_scale; /* 0: 1 / sqrt(head_dim) */
    double softcap;       /* 0: none */
    ffa_tensor q, k, v;
    ffa_tensor out, lse; /* written forward, read backward; lse is of sum_dtype */
    const void *sink;    /* [sink_count][heads_q], of sum_dtype, the same on all ranks */
    int32_t sink_count;  /* 0 to 8 */
    int32_t threads;     /* that compute, 1 to 1024; 0: 1 */
    /* Forward, [heads_q], of sum_dtype, NULL on all ranks or on none: the largest score of each
     * head over all ranks' cells, softcap applied, sinks left out; -inf where there is none. */
    void *max_logits;
    ffa_tensor dout;       /* backward: read */
    ffa_tensor dq, dk, dv; /* backward: written */
    void *dsink; /* backward, [sink_count][heads_q], of sum_dtype, NULL on all ranks or on none:
                  * summed over all ranks */
    /* Backward: the gradient of the loss by lse, as in attention.h, of the rank's rows; read, of
     * sum_dtype. data NULL: none; other ranks may have one. */
    ffa_tensor dlse;
    int32_t head_dim_v; /* of v, out, dout and dv, 1 to 1024; 0: head_dim */
    int32_t pad_;
} ffa_parallel_args;
#define FFA_PARALLEL_ARGS_INIT                                                                     \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_parallel_args), .q = FFA_TENSOR_INIT(NULL),            \
        .k = FFA_TENSOR_INIT(NULL), .v = FFA_TENSOR_INIT(NULL), .out = FFA_TENSOR_INIT(NULL),      \
        .lse = FFA_TENSOR_INIT(NULL), .dout = FFA_TENSOR_INIT(NULL), .dq = FFA_TENSOR_INIT(NULL),  \
        .dk = FFA_TENSOR_INIT(NULL), .dv = FFA_TENSOR_INIT(NULL), .dlse = FFA_TENSOR_INIT(NULL)    \
    }
FFA_API void ffa_parallel_args_init(ffa_parallel_args *args, size_t bytes);

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
FFA_API ffa_status ffa_parallel_forward_host(const ffa_parallel_plan *plan, ffa_comm *comm,
                                             const ffa_parallel_args *args, ffa_error *err);
FFA_API ffa_status ffa_parallel_backward_host(const ffa_parallel_plan *plan, ffa_comm *comm,
                                              const ffa_parallel_args *args, ffa_error *err);

#ifdef __cplusplus
}
#endif
#endif
