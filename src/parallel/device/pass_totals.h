/* SPDX-License-Identifier: Apache-2.0
 *
 * Totals of a pass over GPUs: dsink, which every rank sums over its own query rows, is summed over
 * ranks; of max_logits the largest of all ranks is taken. The launches write the rank's own vector
 * into the workspace, the reduce stream brings it to all ranks, and a launch on the caller's stream
 * joins the vectors of all ranks by ascending rank.
 */
#ifndef FFA_PARALLEL_DEVICE_PASS_TOTALS_H
#define FFA_PARALLEL_DEVICE_PASS_TOTALS_H

#include "parallel/device/pass.h"

/* Of one call. */
struct pass_totals {
    int32_t count;    /* floats; 0: the call has none, or one rank has them alone */
    float *to;        /* the caller's */
    float *mine;      /* [count], in the workspace: set by the caller of pass_totals_init */
    bool is_max;      /* joined by the largest */
    const float *all; /* once shared: of each rank, COMM_TOTALS_MAX apart */
};

/* Bytes of a call's workspace, a multiple of 256, whether or not the call has totals. */
int64_t pass_totals_bytes(const ffa_parallel_pass *pass, const ffa_kernels *kernels,
                          bool is_backward, int32_t heads_q);

/* Which totals a call has. args: heads are checked. Fails with FFA_INVALID. */
ffa_status pass_totals_init(struct pass_totals *out, const ffa_parallel_pass *pass,
                            const ffa_kernels *kernels, const ffa_parallel_args *args,
                            bool is_backward, ffa_error *err);

/* The launch that writes `mine` is on `stream` now. Without totals these three do nothing. */
ffa_status pass_totals_made(const struct pass_totals *totals, const ffa_parallel_pass *pass,
                            ffa_stream stream, ffa_error *err);
/* The reduce stream sends `mine` to all ranks and waits for theirs. */
ffa_status pass_totals_share(struct pass_totals *totals, const ffa_parallel_pass *pass,
                             struct comm_device *comm, uint64_t call, ffa_error *err);
/* `stream` waits for the totals of all ranks and joins them into `to`. */
ffa_status pass_totals_join(const struct pass_totals *totals, const ffa_parallel_pass *pass,
                            const ffa_kernels *kernels, ffa_stream stream, ffa_error *err);

#endif
