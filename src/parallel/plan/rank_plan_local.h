/* SPDX-License-Identifier: Apache-2.0
 *
 * The cells of one rank in its key window: all phases of a pass as one mask, for a pass that is one
 * launch.
 *
 * The key window has the rows of the rank's own keys, then those received at stage 1, stage 2, and
 * so on. Row i of the receive buffer of stage s is row stage_ends[s - 1] + i of the window.
 */
#ifndef FFA_PARALLEL_PLAN_RANK_PLAN_LOCAL_H
#define FFA_PARALLEL_PLAN_RANK_PLAN_LOCAL_H

#include "parallel/plan/rank_plan.h"

struct rank_local {
    ffa_mask_shape shape; /* query rows of the rank; rows of the key window */
    struct bands *lists;  /* [list_count]: disjoint */
    int32_t list_count;
    int32_t stage_count;                 /* own keys, and those of each stage that receives */
    int64_t stage_ends[TILE_STAGES_MAX]; /* [stage_count] ascending; the last is seqlen_k */
    /* Backward: own keys that come before the first stage where own keys are divided by tile, of
     * any list: [first_count] ranges [begin, end), ascending and apart. Forward: none. */
    int64_t (*first)[2];
    int64_t first_count;
    double first_share; /* backward: of the own keys' work, that comes before the first stage where
                         * they are divided by kv head */
};

/* Of a pass that was planned in one round, of a plan in which keys move; outlines have all that is
 * needed. For rank_local_finish; zero on failure. Fails with FFA_INVALID and FFA_NOMEM. */
ffa_status rank_plan_local(struct rank_local *out, const ffa_parallel_plan *plan, bool is_backward,
                           ffa_error *err);
/* Launches of a pass over GPUs: 1, or one a stage. */
int32_t rank_plan_rounds(const ffa_parallel_plan *plan, bool is_backward);
/* The cells of one round, likewise. In rounds, the keys of a later one than the first are those of
 * its stage alone: stage 0 is empty. */
ffa_status rank_plan_round(struct rank_local *out, const ffa_parallel_plan *plan, bool is_backward,
                           int32_t round, ffa_error *err);
/* Where queries move: the cells of one phase, own query rows or those received at a stage, with the
 * rank's own keys, which are its only stage. */
ffa_status rank_plan_moved(struct rank_local *out, const ffa_parallel_plan *plan, bool is_backward,
                           int32_t phase, ffa_error *err);
void rank_local_finish(struct rank_local *local);

#endif
