/* SPDX-License-Identifier: Apache-2.0
 *
 * One call of a pass over GPUs, and what a transport does in it.
 *
 * pass_run.c checks the arguments, copies the rank's own keys into its key window, launches, and
 * adds sums. What brings keys and sums from rank to rank is a struct pass_transport. Nothing of
 * either blocks the host, allocates or synchronises.
 */
#ifndef FFA_PARALLEL_DEVICE_PASS_RUN_H
#define FFA_PARALLEL_DEVICE_PASS_RUN_H

#include "attention/attention.h"
#include "parallel/device/pass_totals.h"
#include "parallel/device/pass_trace.h"

struct pass_run {
    ffa_parallel_pass *pass;
    const struct pass_moves *moves;
    const struct pass_transport *transport;
    const struct pass_sums *sums; /* as the transport brings them; of a forward pass that moves no
                                   * queries, empty */
    const ffa_kernels *kernels;
    struct comm_device *comm;
    ffa_parallel_args args; /* resolved */
    ffa_stream stream;
    bool is_backward;
    uint64_t call;
    int64_t columns;     /* of a row of a window: of k and v of all heads */
    int64_t key_bytes;   /* of a row of the key window */
    int64_t sum_bytes;   /* of a row of the sum window, fp32 */
    bool is_narrow;      /* sums travel in the dtype of the tensors, else in fp32 */
    int64_t wire_bytes;  /* of a row of sums that travels */
    int64_t totals_at;   /* of this rank's totals in the workspace, behind that of the launches */
    int64_t received_at; /* of what pass_fp32_bytes has in the workspace, behind them */
    struct pass_totals totals;
    int32_t round;           /* of the launch that is filled in; 0 of a pass in one */
    struct comm_batch fetch; /* words of the fetch stream, of a transport that puts them together */
};

/* In the order of a call. All that a launch waits for is enqueued before it, so that it cannot
 * stand behind the launch in a hardware queue. */
struct pass_transport {
    /* The caller's stream waits until nothing reads the own key window any more. */
    ffa_status (*reclaim_keys)(struct pass_run *run, ffa_error *err);
    /* The own keys are in the key window once the caller's stream is here. Enqueue that others get
     * them and that their keys come, stage by stage, each with its arrival flag; neither where all
     * ranks have kept keys. Backward the caller's stream then waits until nothing reads the own sum
     * window any more. */
    ffa_status (*bring_keys)(struct pass_run *run, ffa_error *err);
    /* Backward, after the launch: others get their sums, and the caller's stream waits until those
     * of the own keys are in the workspace, at received_at. */
    ffa_status (*bring_sums)(struct pass_run *run, ffa_error *err);
    /* Where queries move, and no kernel says so: the results of a stage are in the sum window once
     * the caller's stream is here. */
    ffa_status (*tell_results)(struct pass_run *run, int32_t stage, ffa_error *err);
    /* Of a pass in rounds, in place of bring_keys and bring_sums; NULL: the transport has none. */
    const struct pass_rounds *rounds;
};

/* In the order of pass_rounds.c. Rounds and steps: see struct pass_moves. */
struct pass_rounds {
    /* The own keys are in the key window once the caller's stream is here: others get them.
     * Backward, as bring_keys. */
    ffa_status (*open_keys)(struct pass_run *run, ffa_error *err);
    /* Enqueue that the round's keys come into their half of the ring, where pass->launched of that
     * half is done, with the arrival flag of stage 1; with the last round's, that own readers may
     * be told so. */
    ffa_status (*bring_keys)(struct pass_run *run, int32_t round, ffa_error *err);
    /* Backward, from round 2 on: the caller's stream waits until nothing reads the sums of the
     * round before the last one, which the next launch overwrites. */
    ffa_status (*reclaim_sums)(struct pass_run *run, int32_t round, ffa_error *err);
    /* Backward: the caller's stream waits until what others summed of own keys in a step is in the
     * workspace. pass->added: what was there before was added. The last step: others may write
     * their sum windows again. */
    ffa_status (*bring_sums)(struct pass_run *run, int32_t step, ffa_error *err);
};

/* pass_pull.c: ranks pull from each other's windows with the copy engines. */
extern const struct pass_transport pass_pull;
/* pass_exchange.c: ranks send and receive over NCCL. */
extern const struct pass_transport pass_exchange;
/* pass_relay.c: ranks send and receive over NCCL between nodes, and pull inside them. */
extern const struct pass_transport pass_relay;
/* What pass_relay adds to sums that it relays: addend `index` of the pass. */
struct row_reduce_call pass_relay_addend(const struct pass_run *run, int32_t index);

/* ---- keys that are kept (pass_kept.c): all of kept_keys of the call, if any ---- */

ffa_status pass_kept_check(const struct pass_run *run, ffa_error *err);
/* Forward, behind the launch. */
ffa_status pass_kept_save(const struct pass_run *run, ffa_error *err);
/* Backward, before the launch: the received keys are in the key window, and have arrived. */
ffa_status pass_kept_restore(const struct pass_run *run, ffa_error *err);

/* ---- a pass in rounds (pass_rounds.c) ---- */

/* From the copy of own keys on, to the last launch, and backward to the sums of own keys, in fp32
 * in the sum window. */
ffa_status pass_rounds_forward(struct pass_run *run, ffa_error *err);
ffa_status pass_rounds_backward(struct pass_run *run, ffa_error *err);
/* The sums of own keys that the sum window has, as dk and dv; and with those of a step added. */
struct row_reduce_call pass_rounds_sums(const struct pass_run *run);
struct row_reduce_call pass_rounds_step(const struct pass_run *run, int32_t step);

/* ---- a pass in which queries move (pass_queries.c) ---- */

/* That the launches will find nothing wrong with the call. */
ffa_status pass_queries_check(const struct pass_run *run, ffa_error *err);
/* From the copy of own rows to the last launch. */
ffa_status pass_queries_compute(struct pass_run *run, ffa_error *err);
/* Received results are in the workspace: add them to own ones. */
ffa_status pass_queries_add(const struct pass_run *run, ffa_error *err);

/* pass_run.c: the rows of `own`, if any, go to the key window, and then to others, from where
 * theirs come. */
ffa_status pass_run_open_windows(struct pass_run *run, const struct row_copy_call *own,
                                 ffa_error *err);

/* pass_run.c: the launch of run->round, on the caller's stream. */
/* What the calls of all phases have in common: heads, softmax, and the workspace. */
ffa_forward_args pass_run_forward_args(const struct pass_run *run);
ffa_backward_args pass_run_backward_args(const struct pass_run *run);

ffa_status pass_run_attend(const struct pass_run *run, ffa_error *err);
ffa_status pass_run_differentiate(struct pass_run *run, ffa_error *err);
/* Of dk or dv: received and own sums, and where they go. */
struct row_reduce_rows pass_run_reduced(const struct pass_run *run, const ffa_tensor *out,
                                        bool is_v);

/* The value of a round's flags. */
static inline int32_t pass_run_behind(const struct pass_run *run, int32_t round)
{
    return run->moves->round_most - 1 - round;
}

static inline uint64_t pass_run_value(const struct pass_run *run, int32_t round)
{
    return run->call - (uint64_t)pass_run_behind(run, round);
}

/* ---- what transports share ---- */

/* NULL where the rank's window has no rows. */
static inline unsigned char *pass_run_window(const struct pass_run *run, enum comm_window window,
                                             int32_t rank)
{
    return run->comm->windows[window][rank];
}

/* Whether there are sums, or partial results, of the rows of others. */
static inline bool pass_run_has_sums(const struct pass_run *run)
{
    return run->is_backward || run->pass->moves_queries;
}

/* Whether the pass takes received keys from kept_keys: no key travels then. */
static inline bool pass_run_has_kept(const struct pass_run *run)
{
    return run->is_backward && run->args.kept_keys;
}

static inline unsigned char *pass_run_own_window(const struct pass_run *run,
                                                 enum comm_window window)
{
    return pass_run_window(run, window, run->comm->comm.rank);
}

/* The sums that a rank has for others, rows of wire_bytes. */
static inline unsigned char *pass_run_sent_sums(const struct pass_run *run, int32_t rank)
{
    return pass_run_window(run, WINDOW_SUMS, rank) + run->sums->kept_rows[rank] * run->sum_bytes;
}

static inline unsigned char *pass_run_received_sums(const struct pass_run *run)
{
    return (unsigned char *)run->args.workspace + run->received_at; /* in rounds: the fp32 out */
}

/* Of copies [count]: their stage, their bytes, and the rank that they come from where it is one. No
 * copies: of no stage. */
struct pass_mark pass_run_mark_of(const struct pass_copy *copies, int64_t count, int64_t row_bytes);

/* What the lane did since its last mark. */
static inline ffa_status pass_run_mark(const struct pass_run *run, ffa_parallel_lane lane,
                                       ffa_parallel_span_kind kind, const struct pass_mark *of,
                                       ffa_error *err)
{
    return pass_trace_mark(run->args.trace, lane, kind, of, err);
}

static inline ffa_status pass_run_mark_compute(const struct pass_run *run,
                                               ffa_parallel_span_kind kind, int64_t bytes,
                                               ffa_error *err)
{
    return pass_run_mark(run, FFA_PARALLEL_LANE_COMPUTE, kind, &(struct pass_mark){ -1, -1, bytes },
                         err);
}

#endif
