/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa run --ranks: one case run by many ranks, each with its own plan and its own rows: threads of
 * this process, on the CPU over the loopback transport or on GPUs; or processes with a GPU each, of
 * which this one has one rank.
 */
#ifndef FFA_CLI_RUN_RANKS_H
#define FFA_CLI_RUN_RANKS_H

#include "cli/calibration_file.h"
#include "cli/timeline.h"

#include <ffa/ffa.h>
#include <stdbool.h>

struct run_case;
struct run_meeting;

struct run_ranks_options {
    int64_t ranks;      /* 0: not asked for */
    int64_t per_node;   /* 0: all in one */
    int64_t stages;     /* of both passes; 0: as many as is best, -1: everything is fetched first */
    int64_t moves;      /* ffa_parallel_moves */
    int64_t memory;     /* bytes of a rank's windows and workspace, at most; 0: no limit */
    int32_t transport;  /* ffa_transport, on GPUs */
    int32_t wire_dtype; /* ffa_dtype of sums that travel, on GPUs; 0: the library's */
    const char *nccl;   /* the file of NCCL; NULL: as it is found */
    int64_t delay;      /* times a transfer may be passed over by others */
    int64_t seed;       /* of the order of transfers */
    /* [context_count], borrowed: a context a GPU, which ranks take in turn; 0: the CPU. */
    ffa_context **contexts;
    int32_t context_count;
    int64_t timeout_ms; /* that ranks wait for each other; 0: the library's */
    /* Of processes: where they meet, and which rank this one has; it has one context. NULL: all
     * ranks are threads of this process. */
    struct run_meeting *meeting;
    int32_t rank;
    int32_t sharing, gpus;          /* ranks of a GPU, at most; GPUs of all ranks */
    bool wants_timeline;            /* on GPUs */
    bool keeps_keys;                /* on GPUs: kept_keys of ffa_parallel_args */
    struct calibration calibration; /* of the plan's model */
};

/* Limits of a run, over all ranks. */
struct run_ranks_facts {
    int32_t ranks, forward_stages, backward_stages, rounds;
    int64_t received_rows;
    bool moves_queries;
    int32_t gpus;                          /* 0: on the CPU */
    int32_t transport;                     /* ffa_transport; on the CPU _AUTO */
    int64_t window_bytes, workspace_bytes; /* on GPUs, most of any rank */
};

struct run_ranks;

/* The case's tensors must stay where they are; its context is the CPU's. */
ffa_status run_ranks_create(struct run_ranks **out, const struct run_case *run,
                            const struct run_ranks_options *options, ffa_error *err);
void run_ranks_destroy(struct run_ranks *ranks);
/* From the case's whole tensors to its whole tensors; *ms is the time of the slowest rank's call,
 * without taking rows apart and putting them together. Backward needs a forward pass before. */
ffa_status run_ranks_pass(struct run_ranks *ranks, bool is_backward, int calls, float *ms,
                          ffa_error *err);
struct run_ranks_facts run_ranks_facts_get(const struct run_ranks *ranks);

/* Of processes, which all call it: a pass's outputs of all ranks into the whole tensors of rank 0's
 * process; others have their own. */
ffa_status run_ranks_collect(struct run_ranks *ranks, bool is_backward, ffa_error *err);
/* What the last calls of all ranks did, as wants_timeline asks. *out: caller's, free(), and NULL on
 * failure. All processes call it. FFA_NOMEM, or as a meeting that a rank has given up. */
ffa_status run_ranks_timeline(struct run_ranks *ranks, struct timeline_rank **out, ffa_error *err);
/* The same: whether something is true of all ranks. */
ffa_status run_ranks_all(struct run_ranks *ranks, bool *is_true, ffa_error *err);
/* No more passes: ranks on GPUs leave their group, so that none waits for what another does next.
 */
void run_ranks_leave(struct run_ranks *ranks);

#endif
