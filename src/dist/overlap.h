/* SPDX-License-Identifier: Apache-2.0
 *
 * Which received keys make which stage: computing stage i hides the fetch of stage i + 1.
 *
 * A rank computes its own keys first, then the items it receives, in their order, cut into stages.
 * With two stage buffers the fetch of stage i + 1 begins when the compute of stage i does (the
 * buffer before it is free), so a forward pass of d stages takes
 *
 *     max(own, F1) + max(C1, F2) + ... + max(Cd-1, Fd) + Cd
 *
 * where F is a stage's latency plus the fetches of its items and C its launch plus their compute.
 * A backward pass computes as much of its own part as covers the first fetch, then the stages,
 * while on streams of their own stage i + 1 is fetched and stage i - 1 reduced, and the rest of its
 * own part beside the last reduce:
 *
 *     F1 + max(C1, F2) + max(C2, F3, R1) + ... + max(Cd, Rd-1) + max(own - min(own, F1), Rd)
 *
 * The least of all cuts is found by dynamic programming, in integers, so that every rank finds the
 * same. (Stages by degree and the uniform split: MagiAttention's overlap solver. Exact cuts and the
 * backward order: ours.) Units: any one of time; rows.
 */
#ifndef FFA_DIST_OVERLAP_H
#define FFA_DIST_OVERLAP_H

#include "base/base.h"

/* Cuts are found among this many items at most: merge neighbours before. Stages of a split. */
enum { OVERLAP_ITEMS_MAX = 24, OVERLAP_STAGES_MAX = 16 };

struct overlap_item {
    int64_t fetch, compute;
    int64_t reduce; /* backward */
    int64_t rows;
};

struct overlap_input {
    const struct overlap_item *items; /* [count], nothing negative */
    int64_t count;
    int64_t own;      /* compute of the rank's own keys */
    int64_t latency;  /* of each fetch, and of each reduce */
    int64_t launch;   /* of each stage's compute */
    int64_t rows_min; /* of a stage, unless there is only one */
    int32_t degree;   /* stages; 0: as many as is best, at most degree_max */
    int32_t degree_max;
    bool is_backward;
};

/* Stage s has the items [ends[s - 1], ends[s]), none empty. */
struct overlap_split {
    int64_t ends[OVERLAP_STAGES_MAX];
    int32_t count; /* 0: nothing is received */
    int64_t cost;
};

/* The formulas above for a given cut. */
int64_t overlap_cost(const struct overlap_input *in, const struct overlap_split *split);
/* The least cost (ties: fewer stages, then smaller first stages). A fixed degree above the number
 * of items, or one that rows_min rules out, is lowered. Fails with FFA_INVALID beyond the limits,
 * FFA_NOMEM. */
ffa_status overlap_solve(struct overlap_split *out, const struct overlap_input *in, ffa_error *err);
/* The reference's split for comparison: own part and items in `degree` parts of equal count within
 * one, longer ones first; degree 0: the best of 1 to degree_max. Same limits. */
ffa_status overlap_uniform(struct overlap_split *out, const struct overlap_input *in,
                           ffa_error *err);

#endif
