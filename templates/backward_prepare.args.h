/* SPDX-License-Identifier: Apache-2.0
 *
 * Launch arguments of backward_prepare, read by host (C17) and device (C++17). Pointers are device
 * addresses; strides count elements.
 */
#ifndef FFA_BACKWARD_PREPARE_ARGS_H
#define FFA_BACKWARD_PREPARE_ARGS_H

struct backward_prepare_args {
    const void *out, *dout; /* [tokens_q][heads_q][head_dim_v] */
    const float *lse;       /* [tokens_q][heads_q], natural log */
    /* [tokens_q][heads_q], subtracted from delta; NULL: none. has_delta: delta itself. */
    const float *dlse;
    float *stats; /* [heads_q][2][stats_rows], as attention_backward.args.h says */
    float *dq;    /* [heads_q][dq_rows x head_dim of the specialisation], in panels, set to 0 */
    long long out_token_stride, out_head_stride;
    long long dout_token_stride, dout_head_stride;
    long long lse_token_stride, lse_head_stride;
    long long dlse_token_stride, dlse_head_stride;
    int tokens_q;
    int heads_q;
    int stats_rows;   /* a multiple of 4, at least tokens_q */
    int dq_rows;      /* at least tokens_q */
    int head_dim_v;   /* padded: columns of out and dout */
    int has_delta;    /* 1: out and dout are not read */
    float lse_factor; /* the lse of stats is lse times this (attention_backward_adds_lse) */
    /* Set to 0 for attention_backward: its counter, and the dq semaphores behind it. Aligned to 16
     * bytes, and so many times 16 bytes. */
    void *counters;
    long long counter_units;
};

#ifdef __cplusplus
static_assert(sizeof(backward_prepare_args) == 160, "host and device disagree");
#else
_Static_assert(sizeof(struct backward_prepare_args) == 160, "host and device disagree");
#endif

#endif
