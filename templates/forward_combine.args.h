/* SPDX-License-Identifier: Apache-2.0
 *
 * Launch arguments of forward_combine, read by host (C17) and device (C++17). Pointers are device
 * addresses; strides count elements.
 */
#ifndef FFA_FORWARD_COMBINE_ARGS_H
#define FFA_FORWARD_COMBINE_ARGS_H

#include "tile_plan.h"

struct forward_combine_args {
    const struct plan_split *rows; /* [row_count] */
    const float *part_out;         /* [part rows][heads_q][head_dim_v] */
    const float *part_lse;         /* [part rows][heads_q], natural logarithm */
    void *out;
    float *lse;
    long long out_token_stride, out_head_stride;
    long long lse_token_stride, lse_head_stride;
    const float *sink; /* [sink_count][heads_q], natural logarithm */
    int sink_count;
    int row_count;
    int heads_q;
    int head_dim_v; /* a multiple of 8, at most 256 */
};

#ifdef __cplusplus
static_assert(sizeof(forward_combine_args) == 96, "host and device disagree");
#else
_Static_assert(sizeof(struct forward_combine_args) == 96, "host and device disagree");
#endif

enum { COMBINE_THREADS = 256 };

#endif
