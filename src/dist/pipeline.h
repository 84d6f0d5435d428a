/* SPDX-License-Identifier: Apache-2.0
 *
 * What the passes share: arguments, the rank's keys for others, and the stages that arrive.
 *
 * A window and a stage buffer hold rows [2][heads_kv][head_dim]: the key, then the value, so that
 * a run of rows is one range of bytes. Stage s (from 1) lies in buffer (s - 1) % buffers and is
 * fetched as soon as the stage there before it is computed, `buffers` - 1 stages ahead.
 */
#ifndef FFA_DIST_PIPELINE_H
#define FFA_DIST_PIPELINE_H

#include "comm/comm.h"
#include "cpu/cpu.h"
#include "dist/plan.h"

enum { STAGE_BUFFERS_MAX = 3 };

struct pipeline {
    const ffa_dist_plan *plan;
    const struct plan_pass *pass;
    ffa_comm *comm;
    ffa_dist_args args;   /* resolved: strides, scale, sum_dtype, threads */
    bool fp64;            /* sums */
    int64_t tokens;       /* query rows of the rank */
    int64_t element;      /* bytes of the dtype */
    int64_t sum_element;  /* bytes of sum_dtype */
    int64_t row_elements; /* of a key and its value */
    uint64_t call;
    void *buffers[STAGE_BUFFERS_MAX];
    int32_t buffer_count;
    bool *is_source;           /* [ranks]: its keys were waited for */
    struct comm_range *ranges; /* scratch */
    int64_t range_capacity;
    uint64_t fetched[OVERLAP_STAGES_MAX + 1];  /* tickets of LANE_FETCH, by stage */
    uint64_t computed[OVERLAP_STAGES_MAX + 1]; /* of LANE_COMPUTE */
};

/* Check, tell the other ranks, allocate. pipeline_close whether or not this succeeds. */
ffa_status pipeline_open(struct pipeline *p, const ffa_dist_plan *plan, ffa_comm *comm,
                         const ffa_dist_args *args, bool is_backward, ffa_error *err);
/* Release the rank's lanes and buffers; after a failure, the other ranks, too. Returns rc. */
ffa_status pipeline_close(struct pipeline *p, ffa_comm *comm, ffa_status rc, const ffa_error *why,
                          ffa_error *err);

/* Copy the rank's keys and values to where others pull them from. */
ffa_status pipeline_publish(struct pipeline *p, ffa_error *err);
/* What may be fetched once `phase` is about to be computed; then wait for its own rows. */
ffa_status pipeline_advance(struct pipeline *p, int32_t phase, ffa_error *err);
void pipeline_computed(struct pipeline *p, int32_t phase);

/* Arguments of the CPU backend with the keys of the phase: the rank's own, or those in a buffer. */
ffa_forward_args pipeline_args(const struct pipeline *p, int32_t phase);
/* Room for `count` ranges; NULL: no memory. */
struct comm_range *pipeline_ranges(struct pipeline *p, int64_t count);

#endif
