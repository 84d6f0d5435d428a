/* SPDX-License-Identifier: Apache-2.0
 *
 * Which received rows make which stage: computing stage i hides the fetch of the stages after it.
 *
 * A rank computes its own part, then the items it receives, in their order, cut into stages. There
 * are three lanes, each of which does one thing after another: fetch F, compute C, reduce R (of
 * gradients, or of partial outputs, where there are any). With b receive buffers in turn, for
 * stages i = 1 .. d:
 *
 *     fetch i    begins when fetch i-1 is done and stage i-b+1 (0: the own part) begins to compute
 *     compute i  begins when compute i-1, fetch i, and reduce i-b are done
 *     reduce i   begins when reduce i-1 and compute i are done
 *
 * Forward, the own part is computed first; with two buffers and nothing to reduce this is
 * max(own, F1) + max(C1, F2) + ... + max(Cd-1, Fd) + Cd. Backward, as much of the own part as
 * covers the first fetch is computed first, and the rest behind the last stage, beside the last
 * reduce.
 *
 * The least of all cuts is found by branch and bound, in integers, so that every rank finds the
 * same. (Stages by degree and the uniform split: MagiAttention's overlap solver. Exact cuts,
 * buffers and the backward order: ours.) Units: any one of time; rows.
 */
#ifndef FFA_PARALLEL_PLAN_OVERLAP_H
#define FFA_PARALLEL_PLAN_OVERLAP_H

#include "base/base.h"

/* Items to cut, at most: merge neighbours before. Stages of a split that is found, and of one that
 * is given. Receive buffers. */
enum {
    OVERLAP_ITEMS_MAX = 16,
    OVERLAP_DEGREE_MAX = 16,
    OVERLAP_STAGES_MAX = 128,
    OVERLAP_BUFFERS_MAX = 3
};

struct overlap_item {
    int64_t fetch, compute;
    int64_t reduce;
    int64_t rows;
    int64_t latency; /* of a fetch or a reduce with it; a stage's is the largest of its items */
};

struct overlap_input {
    const struct overlap_item *items; /* [count], nothing negative */
    int64_t count;
    int64_t own;      /* compute of the rank's own part */
    int64_t launch;   /* of each stage's compute */
    int64_t rows_min; /* of a stage, unless there is only one */
    int32_t buffers;  /* 2 to OVERLAP_BUFFERS_MAX */
    int32_t degree;   /* stages; 0: as many as is best, at most degree_max */
    int32_t degree_max;
    bool is_backward; /* the own part may wait until the end */
    bool has_reduce;
};

/* Stage s has the items [ends[s - 1], ends[s]), none empty. */
struct overlap_split {
    int64_t ends[OVERLAP_STAGES_MAX];
    int32_t count; /* 0: nothing is received */
    int64_t cost;
};

/* Times from the start, of one stage; of the whole where stage is the last. */
struct overlap_times {
    int64_t fetch_begin, fetch_end, compute_begin, compute_end, reduce_begin, reduce_end;
};

/* The timeline above for a given cut; its cost. times [split->count + 1], or NULL: stage 0 is the
 * own part as far as it is computed first, whose fetch and reduce take no time. */
int64_t overlap_cost(const struct overlap_input *in, const struct overlap_split *split,
                     struct overlap_times *times);
/* The least cost (ties: fewer stages, then smaller first stages). A fixed degree above the number
 * of items, or one that rows_min rules out, is lowered. Fails with FFA_INVALID beyond the limits.
 */
ffa_status overlap_solve(struct overlap_split *out, const struct overlap_input *in, ffa_error *err);
/* The reference's split for comparison: own part and items in `degree` parts of equal count within
 * one, longer ones first; degree 0: the best of 1 to degree_max. Same limits. */
ffa_status overlap_uniform(struct overlap_split *out, const struct overlap_input *in,
                           ffa_error *err);

#endif
