/* SPDX-License-Identifier: Apache-2.0
 *
 * The CPU backend: executes the same tile plan as the GPU, multi-threaded, in fp32 or fp64.
 */
#ifndef FFA_CPU_CPU_H
#define FFA_CPU_CPU_H

#include "base/base.h"
#include "tile/tile.h"
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

#endif
