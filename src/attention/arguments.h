/* SPDX-License-Identifier: Apache-2.0
 *
 * The arguments that ffa_forward and ffa_backward share: checks, and what launches are made of.
 */
#ifndef FFA_ATTENTION_ARGUMENTS_H
#define FFA_ATTENTION_ARGUMENTS_H

#include "attention/attention.h"
#include "tensor/tensor.h"

#define LOG2_E 1.4426950408889634

enum { COUNTER_BYTES = 256 }; /* of a workspace: the counters, alone in their cache lines */

/* The softcap as kernels have it: a score s = q k becomes outer * tanh, in log2 units, with
 * tanh = 1 - 2 / (1 + 2^(inner * s)). Without softcap both are 0. */
static inline double softcap_inner(double softmax_scale, double softcap)
{
    return softcap > 0 ? 2.0 * LOG2_E * softmax_scale / softcap : 0;
}

static inline double softcap_outer(double softcap)
{
    return LOG2_E * softcap;
}

/* Of lse, dlse, sinks, dsink, max_logits and partial sums. */
ffa_dtype sum_dtype_of(const ffa_kernels *kernels);
/* That kernels can run the plan's stage. */
ffa_status stage_check(const ffa_kernels *kernels, const ffa_plan *plan, ffa_error *err);

/* That kernels and plan are for calls with these heads. */
ffa_status heads_check(int32_t heads_q, int32_t heads_kv, const ffa_kernels *kernels,
                       const ffa_plan *plan, ffa_error *err);

struct call_options {
    double softmax_scale, softcap;
    const void *sink;
    int32_t sink_count, sm_margin;
};

/* Of either pass's arguments. */
#define CALL_OPTIONS(from)                                                                         \
    ((struct call_options){ .softmax_scale = (from)->softmax_scale,                                \
                            .softcap = (from)->softcap,                                            \
                            .sink = (from)->sink,                                                  \
                            .sink_count = (from)->sink_count,                                      \
                            .sm_margin = (from)->sm_margin })

/* Fill in the default scale, and check. */
ffa_status call_options_check(struct call_options *options, const ffa_kernels *kernels,
                              ffa_error *err);

struct workspace {
    void *data;
    int64_t bytes;
};
/* Of either pass's arguments. */
#define WORKSPACE(from) (&(const struct workspace){ (from)->workspace, (from)->workspace_bytes })

/* That it is there, aligned, and has the bytes; a call that needs none does not look at it. */
ffa_status workspace_check(const struct workspace *workspace, int64_t bytes_needed, ffa_error *err);

/* The CPU backend: whether it computes in fp64, and that a call has no stream. */
bool cpu_in_fp64(const ffa_kernels *kernels);
ffa_status cpu_stream_check(ffa_stream stream, ffa_error *err);

/* That the plan is on the kernels' device. */
ffa_status launch_check(const ffa_kernels *kernels, const ffa_plan *plan, ffa_error *err);

/* What the copy engine is to know of a tensor of the kernels' dtype: boxes of 64 columns x
 * box_heads x box_rows. */
struct map_request {
    const char *name; /* for messages */
    const ffa_tensor *tensor;
    int64_t tokens, heads;
    int32_t head_dim;
    int32_t box_heads, box_rows;
};
/* Make the maps of `count` requests. A tensor without tokens has none: nobody loads it, and it gets
 * a copy of another one's, as kernels prefetch them all. */
ffa_status maps_make(struct tensor_map *const *maps, const ffa_kernels *kernels,
                     const struct map_request *requests, size_t count, ffa_error *err);

#endif
