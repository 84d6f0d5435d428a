/* SPDX-License-Identifier: Apache-2.0
 *
 * One attention problem run by many ranks, threads of this process, and put together again.
 */
#ifndef TESTS_RANKS_H
#define TESTS_RANKS_H

#include "support/attention_case.h"
#include <ffa/parallel_dispatch.h>
#include <ffa/parallel_pass.h>

#include <stdbool.h>

enum { RANKS_HERE = 16 };

struct ranks_run;
/* Told before a rank's passes, from its thread, to make it misbehave. False: it does not run. */
typedef bool (*ranks_hook)(struct ranks_run *run, int32_t rank);

struct ranks_run {
    /* Given: the whole problem. Results go to its tensors. */
    struct attention_case *test;
    struct attention_gradients *gradients; /* NULL: forward only */
    const ffa_mask *mask;
    ffa_dispatch_opts dispatch;
    ffa_parallel_plan_opts plan;
    ffa_loopback_opts loopback;
    int32_t rank_count, ranks_per_node;
    ffa_dtype sum_dtype;
    int32_t passes; /* forward and backward so often; 0: 1 */
    int32_t threads;
    bool wants_max, wants_dsink;
    ranks_hook hook;
    const ffa_mask *other_mask; /* of another layer: dispatched together, and run before `mask`, on
                                 * the same group; NULL: none */
    int64_t other_weight;
    const ffa_mask *odd_mask; /* what odd_rank plans instead; NULL: all plan the same */
    int32_t odd_rank;
    int32_t bad_rank; /* calls with too many heads; 0: none */
    long alloc_fault; /* the nth allocation from when ranks run fails; 0: none */
    bool skips_agree; /* no ffa_parallel_plan_agree before the passes */
    /* Results. */
    double *lse;               /* [seqlen_q][heads_q] */
    float *max_logits, *dsink; /* of rank 0; [heads_q], [sinks][heads_q] */
    ffa_comm *comms[RANKS_HERE];
    ffa_status status[RANKS_HERE];
    ffa_error errors[RANKS_HERE];
    int32_t stages[RANKS_HERE]; /* forward */
    int32_t moves[RANKS_HERE];  /* ffa_parallel_moves */
};

/* Runs all ranks; ranks_finish frees. Dispatch and group must come to be; ranks may fail. */
void ranks_run_all(struct ranks_run *run);
void ranks_finish(struct ranks_run *run);

#endif
