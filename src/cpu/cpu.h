/* SPDX-License-Identifier: Apache-2.0
 *
 * The CPU backend: executes the same tile plan as the GPU, multi-threaded, in fp32 or fp64.
 */
#ifndef FFA_CPU_CPU_H
#define FFA_CPU_CPU_H

#include "base/base.h"
#include "tile/backward.h"
#include <ffa/attention.h>

/* args: checked, strides and scale resolved (none 0). */
struct cpu_forward {
    const struct tile_plan *plan;
    const ffa_forward_args *args;
    ffa_dtype dtype; /* of q, k and v */
    int32_t head_dim;
    int32_t threads;     /* >= 1 */
    bool fp64;           /* accumulate in fp64 (always so for FFA_FP64 tensors) */
    ffa_dtype out_dtype; /* 0: dtype */
    bool accumulate;     /* merge with what out and lse hold */
};

ffa_status cpu_forward(const struct cpu_forward *call, ffa_error *err);

/* args: as of the forward pass, whose out and lse it holds; checked, strides and scale resolved, as
 * are those of dout and the gradients. Rows and keys without attended cells get zeros. */
struct cpu_backward {
    const struct backward_plan *plan;
    const ffa_forward_args *args;
    ffa_tensor dout;       /* of `dtype` */
    ffa_tensor dq, dk, dv; /* of `grad_dtype` */
    float *dsink;          /* [sink_count][heads_q], or NULL */
    ffa_dtype dtype, grad_dtype;
    ffa_dtype out_dtype; /* of args->out; 0: dtype */
    int32_t head_dim;
    int32_t threads; /* >= 1 */
    bool fp64;       /* accumulate in fp64 (always so for FFA_FP64 tensors) */
};

ffa_status cpu_backward(const struct cpu_backward *call, ffa_error *err);

#endif
