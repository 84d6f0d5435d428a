/* SPDX-License-Identifier: Apache-2.0
 *
 * One launch a pass over keys that arrive in stages: its plan, and its calls.
 *
 * The keys of a rank lie in one buffer, its key window: first its own, then those of each further
 * stage. A launch begins with what is there and waits for the others, stage by stage. So a plan of
 * arriving keys is the plan of a whole mask, the rank's query rows and all keys of its window, in
 * which nothing has keys of two stages, and in an order that works on early keys first.
 */
#ifndef FFA_ATTENTION_ARRIVING_H
#define FFA_ATTENTION_ARRIVING_H

#include "arrivals.h"
#include "attention/attention.h"
#include "mask/band.h"

/* ---- the plan (plan_arriving.c) ---- */

/* What a plan of arriving keys is made from. All is read while the plan is made, and not later. */
struct arriving_keys {
    ffa_mask_shape shape;      /* query rows of the rank; keys, own and received. Either may be 0 */
    const struct bands *lists; /* [list_count]: inside the shape, disjoint */
    int32_t list_count;        /* 1, or a list for each kv head */
    int32_t stage_count;       /* 1 (own keys only) to TILE_STAGES_MAX */
    /* [stage_count] ascending: keys of stage s are [stage_ends[s - 1], stage_ends[s]). Equal ends
     * make an empty stage. The last one is shape.seqlen_k. */
    const int64_t *stage_ends;
    /* Backward: the own keys [begin, end) whose tiles come first; those of all other own keys come
     * last. [first_count], ascending and disjoint. */
    const int64_t (*first)[2];
    int64_t first_count;
    double first_share; /* backward: where own keys are divided by head group instead, the share
                         * of those that come first */
};

/* The plan of one pass over keys that arrive: is_backward: it has backward tiles only, else forward
 * ones only. For ffa_plan_destroy; ffa_plan_upload works on it.
 *
 * Forward, every sweep has keys of one stage, and the sweeps of a tile stand by ascending stage.
 * The kernel is chosen among kernels->forward as ffa_plan_create does; tiles are not split.
 * Backward, every tile has keys of one stage. In a list tiles stand in groups: own keys in `first`,
 * each further stage, the other own keys; in a group, longest first. Tickets are of that order.
 *
 * Fails with FFA_INVALID (keys, or kernels without the pass or of split tiles), FFA_NOMEM and
 * FFA_UNSUPPORTED (too many keys, rows, or lists for the kernels). Thread: any. */
ffa_status plan_create_arriving(ffa_plan **out, const ffa_kernels *kernels,
                                const struct arriving_keys *keys, bool is_backward, ffa_error *err);

/* The plans of a pass in rounds: a launch each, one after another, over keys of its own; the first
 * has own keys, too. out [count], for ffa_plan_destroy; NULL on failure. Forward, out is fp32
 * between launches (ffa_forward_args.partial), and all rounds have the same query tiles; backward,
 * dq is a sum in the workspace, which all launches of the pass are given. Kernels of more than one
 * round have FFA_SPEC_STAGED. Otherwise as plan_create_arriving, and where count is 1 the same. */
ffa_status plan_create_rounds(ffa_plan **out, const ffa_kernels *kernels,
                              const struct arriving_keys *rounds, int32_t count, bool is_backward,
                              ffa_error *err);

/* The plans of a pass in which queries move: a launch each, over query rows of its own and the
 * rank's keys, all of which are there (stage_count is 1). Results are partial: forward, (out, lse)
 * in fp32 (ffa_forward_args.partial). The first launch sets max_logits, the others raise them.
 * Kernels have FFA_SPEC_STAGED. Otherwise as plan_create_rounds. */
ffa_status plan_create_moved(ffa_plan **out, const ffa_kernels *kernels,
                             const struct arriving_keys *launches, int32_t count, bool is_backward,
                             ffa_error *err);

/* ---- calls ---- */

/* One launch over keys that arrive. Device addresses, unless they say otherwise; what lies there
 * must stay until the launch is done. */
struct arriving_call {
    const uint64_t *flags; /* [stage_count] arrivals; that of stage 0 is not read */
    uint64_t value;        /* of arrivals and departures: the number of the call */
    /* Debug kernels: how long others may take before a wait counts as one for ever, as kernels do
     * not tell the two apart. 0: about a second, the time of kernels without arrivals. */
    int32_t patience_ms;
    /* Backward only. */
    float *sums; /* the sum window: for each row of the key window dK [heads_kv][head_dim], then dV
                  * [heads_kv][head_dim_v], without gaps; 16-byte aligned. Every row is written. */
    /* Not NULL: sums of keys from narrow_from on, the first of a stage, are written here, rounded
     * to the kernels' dtype, in rows like those of `sums`, and not there. 4-byte aligned. */
    uint16_t *narrow;
    int32_t narrow_from;
    uint64_t *const *blocks; /* [ranks]: the flag blocks */
    const int32_t *owners;   /* ranks: those of stage s's keys are [owner_at[s], owner_at[s + 1]) */
    const int32_t *owner_at; /* in host memory: [stage_count + 1], ascending from 0 */
    int32_t slot;            /* of this rank's stage 0 in a flag block, in words of 64 bits */
    /* Backward over rows of which others have part of the keys (plan_create_moved). */
    bool is_prepared; /* backward_prepare_moved has run, and nothing has used the workspace */
    bool accumulates; /* sums of keys are added to what `sums` holds */
    bool has_wide_dq; /* dq is fp32 */
    const ffa_tensor *delta; /* fp32 [rows][heads_q], as backward_delta_find has it; out, dlse are
                              * not looked at. NULL: it is computed */
};

/* That the call after it will find nothing wrong with its arguments; nothing is enqueued. */
ffa_status forward_check_arriving(const ffa_kernels *kernels, const ffa_plan *plan,
                                  const ffa_forward_args *args, const struct arriving_call *call,
                                  ffa_error *err);
ffa_status backward_check_arriving(const ffa_kernels *kernels, const ffa_plan *plan,
                                   const ffa_backward_args *args, const struct arriving_call *call,
                                   ffa_error *err);
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

/* Of a plan of plan_create_moved: the first kernel of the backward pass alone, which finds delta,
 * sum of out * dout - dlse, of each row. The call itself follows with is_prepared. */
ffa_status backward_prepare_moved(const ffa_kernels *kernels, const ffa_plan *plan,
                                  const ffa_backward_args *args, const struct arriving_call *call,
                                  ffa_stream stream, ffa_error *err);
/* Where it is in the workspace. */
ffa_status backward_delta_find(ffa_tensor *out, const ffa_kernels *kernels, const ffa_plan *plan,
                               const ffa_backward_args *args, const struct arriving_call *call,
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
