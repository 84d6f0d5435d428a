/* SPDX-License-Identifier: Apache-2.0
 *
 * Passes of context parallelism in one launch: keys arrive while the kernel runs, stage after stage
 * (arrivals.h), and the backward pass tells the owners of received keys when their gradients are
 * complete.
 */
#ifndef FFA_ATTENTION_ARRIVING_H
#define FFA_ATTENTION_ARRIVING_H

#include "attention/attention.h"

/* ---- calls ---- */

/* One launch over keys that arrive. Device addresses, unless they say otherwise; what lies there
 * must stay until the launch is done. */
struct arriving_call {
    const uint64_t *flags; /* [stage_count] arrivals; that of stage 0 is not read */
    uint64_t value;        /* of arrivals and departures: the number of the call */
    /* Backward only. */
    float *sums; /* the sum window: for each row of the key window dK [heads_kv][head_dim], then dV
                  * [heads_kv][head_dim_v], without gaps; 8-byte aligned. Every row is written. */
    uint64_t *const *blocks; /* [ranks]: the flag blocks */
    const int32_t *owners;   /* ranks: those of stage s's keys are [owner_at[s], owner_at[s + 1]) */
    const int32_t *owner_at; /* in host memory: [stage_count + 1], ascending from 0 */
    int32_t slot;            /* of this rank's stage 0 in a flag block, in words of 64 bits */
};

/* As ffa_forward on a GPU, of a forward plan of arriving keys: k and v are those of the key window,
 * kernels are of FFA_SPEC_PARALLEL. Enqueues on `stream` and returns; the launch waits for flags,
 * on all SMs but sm_margin, for as long as it takes.
 * Fails as ffa_forward does, and with FFA_INVALID for a plan without arriving keys. Thread: any. */
ffa_status forward_enqueue_arriving(const ffa_kernels *kernels, const ffa_plan *plan,
                                    const ffa_forward_args *args, const struct arriving_call *call,
                                    ffa_stream stream, ffa_error *err);
/* As ffa_backward, likewise, of a backward plan of arriving keys. dk and dv of the arguments are
 * not looked at: the sums are written instead. When all of a stage's are, `value` is written to
 * word slot + stage of the flag block of each of the stage's owners. dq and dsink are written as by
 * ffa_backward. */
ffa_status backward_enqueue_arriving(const ffa_kernels *kernels, const ffa_plan *plan,
                                     const ffa_backward_args *args,
                                     const struct arriving_call *call, ffa_stream stream,
                                     ffa_error *err);

/* ---- what the two share ---- */

/* That plan, kernels and call go together. call NULL: of ffa_forward or ffa_backward. */
ffa_status arriving_check(const ffa_kernels *kernels, const ffa_plan *plan,
                          const struct arriving_call *call, ffa_error *err);
/* Of a launch; zero where call is NULL. */
struct arrivals arrivals_of(const ffa_plan *plan, const struct arriving_call *call);
/* Consumer warps that count a tile of the plan: all of its work items'. counters: device memory,
 * [ARRIVAL_STAGES_MAX], zero before the launch. Fails where a count is beyond an int. */
ffa_status departures_fill(struct departures *out, const ffa_plan *plan,
                           const struct arriving_call *call, int64_t tile_warps, int *counters,
                           ffa_error *err);

#endif
