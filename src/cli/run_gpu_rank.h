/* SPDX-License-Identifier: Apache-2.0
 *
 * One rank of `ffa run --ranks --backend cuda`: kernels, pass, communicator, and its rows on a GPU.
 *
 * Ranks are threads of one process, or processes. Where several share a GPU each gets its part of
 * the SMs.
 */
#ifndef FFA_CLI_RUN_GPU_RANK_H
#define FFA_CLI_RUN_GPU_RANK_H

#include "cli/run_case.h"
#include "cli/run_meeting.h"
#include "cli/timeline.h"

struct run_gpu_rank;

struct run_gpu_rank_opts {
    int32_t rank, ranks;
    ffa_context *context; /* of its GPU, borrowed */
    int32_t sharing;      /* ranks of a GPU, at most */
    int64_t timeout_ms;   /* of the communicator */
    int32_t transport;    /* ffa_transport, as asked for */
    int32_t wire_dtype;   /* of ffa_parallel_args */
    int32_t per_node;     /* ranks of a node, where they relay; 0: those of a host */
    const char *nccl;     /* the file of NCCL; NULL: as it is found */
    const struct run_shape *shape;
    double softmax_scale, softcap;
    const void *sink;              /* host, fp32 [sinks][heads_q], read by each pass */
    void *dsink;                   /* host, the same shape, written by each backward; NULL: none */
    const ffa_parallel_plan *plan; /* of the rank; read during create */
    bool is_staged;                /* the plan is in rounds, or moves queries */
    bool keeps_keys;               /* kept_keys of ffa_parallel_args */
    int64_t rows[RUN_TENSORS];     /* of each tensor that the rank has; 0 of the others */
    struct run_meeting *meeting;   /* borrowed */
    bool wants_spans;              /* of the last call of each pass */
};

/* SMs of the context's GPU that each of `sharing` ranks computes on. */
int32_t run_gpu_rank_sms(ffa_context *context, int32_t sharing);

/* Every rank calls it; *out for run_gpu_rank_destroy whether or not it succeeds. */
ffa_status run_gpu_rank_create(struct run_gpu_rank **out, const struct run_gpu_rank_opts *opts,
                               ffa_error *err);
void run_gpu_rank_destroy(struct run_gpu_rank *rank);
/* Every rank calls it, with its rows in host memory, of which it reads inputs and writes outputs of
 * the pass. *us: of the calls of the slowest rank, after a start together. */
ffa_status run_gpu_rank_pass(struct run_gpu_rank *rank, void *const rows[RUN_TENSORS],
                             bool is_backward, int calls, int64_t *us, ffa_error *err);
/* What the last calls did, as wants_spans asks; borrowed, and each pass writes its part. */
const struct timeline_rank *run_gpu_rank_timeline(const struct run_gpu_rank *rank);
/* ffa_transport, as it came to be. */
int32_t run_gpu_rank_transport(const struct run_gpu_rank *rank);
/* What the rank's pass needs. */
ffa_parallel_pass_info run_gpu_rank_info(const struct run_gpu_rank *rank);

#endif
