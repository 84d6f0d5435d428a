/* SPDX-License-Identifier: Apache-2.0
 *
 * What both passes of a rank share: arguments, the rank's rows for others, the stages that arrive,
 * and the partial results that go back.
 *
 * What moves are keys with values, or queries (backward with dout, lse and delta). All that belongs
 * to one row lies together in a window and in a stage's buffer, so that a run of rows is one range
 * of bytes. Stage s (from 1) lies in buffer (s - 1) % buffers. It is fetched as soon as the stage
 * that was there before it is computed, so up to `buffers` - 1 stages ahead.
 */
#ifndef FFA_PARALLEL_RUN_RANK_PASS_H
#define FFA_PARALLEL_RUN_RANK_PASS_H

#include "cpu/cpu.h"
#include "parallel/plan/rank_plan.h"
#include "parallel/run/comm.h"

enum { STAGE_BUFFERS_MAX = 3, MOVED_MAX = 4 };

/* One of the tensors whose rows move. */
struct moved {
    ffa_tensor tensor;
    int32_t heads, dim;
    int64_t element; /* bytes */
    int64_t offset;  /* bytes, in a row of a window */
};

struct rank_pass {
    const ffa_parallel_plan *plan;
    const struct plan_pass *pass;
    ffa_comm *comm;
    ffa_parallel_args args; /* resolved: strides, scale, sum_dtype, threads */
    bool fp64;              /* sums */
    int64_t tokens;         /* query rows of the rank */
    int64_t element;        /* bytes of the dtype */
    int64_t sum_element;    /* bytes of sum_dtype */
    struct moved moved[MOVED_MAX];
    int32_t moved_count;
    int64_t row_bytes;    /* of all that moves */
    int64_t rows;         /* of the rank's buffer, of what moves */
    int64_t result_bytes; /* of a row that goes back */
    uint64_t call;
    void *buffers[STAGE_BUFFERS_MAX];
    int32_t buffer_count;
    bool *is_source;           /* [ranks]: whose rows were waited for */
    struct comm_range *ranges; /* scratch */
    int64_t range_capacity;
    uint64_t fetched[OVERLAP_STAGES_MAX + 1];  /* marks of LANE_FETCH, by stage */
    uint64_t computed[OVERLAP_STAGES_MAX + 1]; /* of LANE_COMPUTE */
};

/* Check, tell the other ranks, allocate. rank_pass_close whether or not this succeeds. */
ffa_status rank_pass_open(struct rank_pass *p, const ffa_parallel_plan *plan, ffa_comm *comm,
                          const ffa_parallel_args *args, bool is_backward, ffa_error *err);
/* Release the rank's lanes and buffers; after a failure, the other ranks, too. Returns rc. */
ffa_status rank_pass_close(struct rank_pass *p, ffa_comm *comm, ffa_status rc, const ffa_error *why,
                           ffa_error *err);

/* Rows of the tensor move. To be called before rank_pass_publish. */
void rank_pass_move(struct rank_pass *p, const ffa_tensor *tensor, int32_t heads, int32_t dim,
                    int64_t element);
/* Allocate the buffers of stages; copy the rank's rows to where others pull them from. */
ffa_status rank_pass_publish(struct rank_pass *p, ffa_error *err);
/* Before `phase` is computed: fetch the stages that may be fetched now, and wait for its rows. */
ffa_status rank_pass_advance(struct rank_pass *p, int32_t phase, ffa_error *err);
void rank_pass_computed(struct rank_pass *p, int32_t phase);

/* Element `at` of an array of sum_dtype. */
double rank_pass_sum_read(const struct rank_pass *p, const void *array, size_t at);
void rank_pass_sum_write(const struct rank_pass *p, void *array, size_t at, double value);

/* Arguments of the CPU backend, of the rank's own tensors. */
struct cpu_args rank_pass_cpu_args(const struct rank_pass *p);
bool rank_pass_is_stage(const struct rank_pass *p, int32_t phase);
/* What moved, as it lies in the buffer of a stage. */
struct cpu_tensor rank_pass_arrived(const struct rank_pass *p, int32_t stage, int32_t which);

/* Memory for the partial results of a stage; then tell their owners that they are there. */
ffa_status rank_pass_results(struct rank_pass *p, int32_t stage, void **out, ffa_error *err);
ffa_status rank_pass_signal_results(struct rank_pass *p, int32_t stage, ffa_error *err);
/* Add to `target` what others compute of the rank's rows, by stage, then by rank: that fixes the
 * order of every sum. Begins when the own phase is computed. *mark: of LANE_REDUCE, behind all. */
ffa_status rank_pass_reduce(struct rank_pass *p, void *target, const struct comm_reduce *how,
                            uint64_t *mark, ffa_error *err);

#endif
