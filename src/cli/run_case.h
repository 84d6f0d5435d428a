/* SPDX-License-Identifier: Apache-2.0
 *
 * One attention case for `ffa run`: tensors on the host and on the backend, calls, and times. The
 * same code serves both backends: a CPU context's "device" memory is host memory.
 */
#ifndef FFA_CLI_RUN_CASE_H
#define FFA_CLI_RUN_CASE_H

#include "cli/run_ranks.h"
#include "oracle/oracle_backward.h"

#include <ffa/ffa.h>
#include <stdbool.h>

enum run_tensor {
    RUN_Q,
    RUN_K,
    RUN_V,
    RUN_OUT,
    RUN_LSE,
    RUN_SINK,
    RUN_DOUT, /* from here on: empty without FFA_SPEC_BACKWARD */
    RUN_DQ,
    RUN_DK,
    RUN_DV,
    RUN_DSINK,
    RUN_DLSE,
    RUN_TENSORS
};

struct run_shape {
    int64_t tokens_q, tokens_k;
    int32_t heads_q, heads_kv;
    int32_t head_dim, head_dim_v;
    int32_t pack_heads; /* of the spec, as split */
    int32_t split;
    ffa_dtype dtype;
    uint32_t spec_flags;                      /* FFA_SPEC_... */
    uint32_t plan_flags;                      /* FFA_PLAN_... */
    int32_t parts_max;                        /* of the backward pass; 0: any */
    int32_t backward_tile_m, backward_tile_n; /* 0: chosen */
    int32_t sinks;                            /* logits a head */
    bool has_dlse;                            /* lse has a gradient, too */
};

struct run_case {
    ffa_context *context; /* borrowed, as the mask */
    const ffa_mask *mask;
    struct run_shape shape;
    ffa_kernels *kernels;
    ffa_plan *plan;
    void *host[RUN_TENSORS];
    void *device[RUN_TENSORS];
    void *plan_buffer;
    void *workspace;
    int64_t workspace_bytes; /* of the pass that needs more */
    ffa_forward_args args;   /* on the device */
    struct run_ranks *ranks; /* who run the passes; NULL: one call does */
};

const char *run_tensor_name(enum run_tensor tensor);
const char *run_dtype_name(ffa_dtype dtype);
/* Element `index` of an array of `dtype`. */
double run_element(const void *array, ffa_dtype dtype, int64_t index);

/* Kernels, plan and memory; tensors are zero. has_ranks: run_ranks_create follows, whose memory is
 * asked for, too. Finish it whether or not this succeeds. */
ffa_status run_case_init(struct run_case *run, ffa_context *context, const ffa_mask *mask,
                         const struct run_shape *shape, bool has_ranks, ffa_error *err);
void run_case_finish(struct run_case *run);

/* Fill an input with numbers close to normal ones (mean 0, variance 1), the same on any machine. */
void run_case_fill(struct run_case *run, enum run_tensor tensor, uint64_t seed);
/* Read an input from a .npy file; *rounded: float32 became the case's dtype. */
ffa_status run_case_read(struct run_case *run, enum run_tensor tensor, const char *path,
                         bool *rounded, ffa_error *err);
ffa_status run_case_write(const struct run_case *run, enum run_tensor tensor, const char *path,
                          ffa_error *err);

/* What the oracle compares: host memory, everything or samples. */
struct oracle_case run_case_oracle(const struct run_case *run, ffa_forward_args *args,
                                   ffa_slice_list *lists);

/* The same of the gradients; `args` and `lists` as above. */
struct oracle_backward_case run_case_oracle_backward(const struct run_case *run,
                                                     ffa_forward_args *args, ffa_slice_list *lists);

/* Upload the inputs and poison the outputs. */
ffa_status run_case_upload(struct run_case *run, ffa_error *err);
/* `calls` calls back to back; *ms is the time of one on the device. */
ffa_status run_case_forward(struct run_case *run, int calls, float *ms, ffa_error *err);
/* The same of the backward pass, of the out and lse that are there. */
ffa_status run_case_backward(struct run_case *run, int calls, float *ms, ffa_error *err);
ffa_status run_case_download(struct run_case *run, ffa_error *err);
/* One more backward pass: whether its gradients are, bit by bit, those that were downloaded. */
ffa_status run_case_backward_again(struct run_case *run, bool *is_same, ffa_error *err);

/* Attended cells of one call over all heads, and the floating point operations of one call: two
 * products a cell forward; five backward, three of head_dim and two of head_dim_v. */
double run_case_cells(const struct run_case *run);
double run_case_flops(const struct run_case *run);
double run_case_backward_flops(const struct run_case *run);

#endif
