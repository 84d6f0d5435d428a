/* SPDX-License-Identifier: Apache-2.0
 *
 * One attention problem, run by many ranks that are threads of this process, with the results put
 * together again.
 */
#ifndef TESTS_RANKS_H
#define TESTS_RANKS_H

#include "support/attention_case.h"
#include <ffa/parallel_dispatch.h>
#include <ffa/parallel_pass.h>

#include <pthread.h>
#include <stdbool.h>

enum { RANKS_HERE = 16 };

struct ranks_run;
/* Called from a rank's thread before its passes, to make it misbehave. If it returns false, the
 * rank does not run. */
typedef bool (*ranks_hook)(struct ranks_run *run, int32_t rank);

struct ranks_run {
    /* Set by the caller: the whole problem. Results go to its tensors. */
    struct attention_case *test;
    struct attention_gradients *gradients; /* NULL: forward only */
    const ffa_mask *mask;
    ffa_dispatch_opts dispatch;
    ffa_parallel_plan_opts plan;
    ffa_loopback_opts loopback;
    int32_t rank_count, ranks_per_node;
    ffa_dtype sum_dtype;
    int32_t passes; /* how often forward and backward run; 0: once */
    int32_t threads;
    bool wants_max, wants_dsink;
    bool has_dlse; /* that of gradients, whose dtype must be sum_dtype */
    ranks_hook hook;
    const ffa_mask *other_mask; /* of another layer: in the same dispatch, and run before `mask` on
                                 * the same communicators; NULL: none */
    int64_t other_weight;
    const ffa_mask *odd_mask; /* odd_rank plans this mask instead; NULL: all plan the same */
    int32_t odd_rank;
    int32_t meeting_ranks; /* so many ranks meet once they have made their plans; 0: none meets */
    int32_t bad_rank;      /* this rank calls with too many heads; 0: none */
    long alloc_fault;      /* the nth allocation of the ranks fails; 0: none */
    bool skips_agree;      /* do not call ffa_parallel_plan_agree before the passes */
    /* Results. */
    double *lse;                /* [seqlen_q][heads_q] */
    double *max_logits, *dsink; /* of rank 0; [heads_q], [sinks][heads_q] */
    ffa_comm *comms[RANKS_HERE];
    ffa_status status[RANKS_HERE];
    ffa_error errors[RANKS_HERE];
    int32_t stages[RANKS_HERE]; /* of the forward pass */
    int32_t moves[RANKS_HERE];  /* ffa_parallel_moves */
    /* Set by ranks_run_all. */
    pthread_barrier_t meeting;
};

/* Run all ranks; ranks_finish() frees the results. The test fails where the dispatch or the
 * loopback communicators cannot be created; the passes of a rank may fail, as status says. */
void ranks_run_all(struct ranks_run *run);
void ranks_finish(struct ranks_run *run);

#endif
