/* SPDX-License-Identifier: Apache-2.0
 *
 * Launch arguments of backward_finish, read by host (C17) and device (C++17). Pointers are device
 * addresses; strides count elements.
 */
#ifndef FFA_BACKWARD_FINISH_ARGS_H
#define FFA_BACKWARD_FINISH_ARGS_H

struct backward_finish_args {
    const float *dq_sum;              /* as attention_backward.args.h says */
    const float *dk_parts, *dv_parts; /* [parts][heads_kv][tokens_k][columns of dk, of dv] */
    const float *dk_more, *dv_more;   /* with parts: added to them; both, or NULL */
    void *dq, *dk, *dv;
    const float *stats; /* [heads_q][2][stats_rows] */
    const float *sink;  /* [sink_count][heads_q], natural logarithm */
    float *dsink;       /* the same shape; NULL: not asked for */
    long long dq_token_stride, dq_head_stride;
    long long dk_token_stride, dk_head_stride;
    long long dv_token_stride, dv_head_stride;
    long long dk_more_token_stride, dk_more_head_stride;
    long long dv_more_token_stride, dv_more_head_stride;
    float scale;    /* softmax_scale: dq is multiplied with it */
    float lse_unit; /* the lse of stats times this is lse * log2(e) */
    int tokens_q;
    int tokens_k;
    int heads_q;
    int heads_kv;
    int parts; /* 0: dk and dv are complete */
    int stats_rows;
    int dq_rows;
    int sink_count;
    int flags;                  /* FINISH_... */
    short head_dim, head_dim_v; /* columns of dq and dk, and of dv */
};

#ifdef __cplusplus
static_assert(sizeof(backward_finish_args) == 216, "host and device disagree");
#else
_Static_assert(sizeof(struct backward_finish_args) == 216, "host and device disagree");
#endif

enum {
    FINISH_ACCUMULATE = 1 /* gradient fp32: dq, dk and dv are added to what they hold */
};

#endif
