/* SPDX-License-Identifier: Apache-2.0
 *
 * One rank of `ffa run --ranks --backend cuda`: kernels, pass, communicator, and its rows on a GPU.
 *
 * Ranks are threads of one process. They share the contexts, one a GPU, in turn; where several
 * ranks share a GPU each gets its part of the SMs.
 */
#ifndef FFA_CLI_RUN_GPU_RANK_H
#define FFA_CLI_RUN_GPU_RANK_H

#include "cli/run_case.h"
#include "cli/timeline.h"

/* Where the ranks of a process meet: all wait until each has come. */
struct run_meeting;

struct run_meeting *run_meeting_create(int32_t ranks); /* NULL: no memory */
void run_meeting_destroy(struct run_meeting *meeting);
/* all [ranks][bytes], in the order of ranks. 0, or 1 once a rank gave up. */
int run_meeting_gather(struct run_meeting *meeting, int32_t rank, const void *mine, void *all,
                       size_t bytes);
/* Nobody waits for this rank any longer. */
void run_meeting_give_up(struct run_meeting *meeting);

struct run_gpu_rank;

struct run_gpu_rank_opts {
    int32_t rank, ranks;
    ffa_context **contexts; /* [context_count], borrowed */
    int32_t context_count;
    const struct run_shape *shape;
    double softmax_scale, softcap;
    const void *sink;              /* host, fp32 [sinks][heads_q], read by each pass */
    const ffa_parallel_plan *plan; /* of the rank; read during create */
    int64_t rows[RUN_TENSORS];     /* of each tensor that the rank has; 0 of the others */
    struct run_meeting *meeting;   /* borrowed */
    bool wants_spans;              /* of the last call of each pass */
};

/* SMs that each of so many ranks on so many contexts computes on. */
int32_t run_gpu_rank_sms(ffa_context *context, int32_t ranks, int32_t contexts);

/* Every rank calls it; *out for run_gpu_rank_destroy whether or not it succeeds. */
ffa_status run_gpu_rank_create(struct run_gpu_rank **out, const struct run_gpu_rank_opts *opts,
                               ffa_error *err);
void run_gpu_rank_destroy(struct run_gpu_rank *rank);
/* Every rank calls it, with its rows in host memory, of which it reads inputs and writes outputs of
 * the pass. *us: of the calls, between two meetings of all ranks. */
ffa_status run_gpu_rank_pass(struct run_gpu_rank *rank, void *const rows[RUN_TENSORS],
                             bool is_backward, int calls, int64_t *us, ffa_error *err);
/* What the last calls did, as wants_spans asks; borrowed until the next pass of the rank. */
struct timeline_rank run_gpu_rank_timeline(const struct run_gpu_rank *rank);
/* What the rank's pass needs. */
ffa_parallel_pass_info run_gpu_rank_info(const struct run_gpu_rank *rank);

#endif
