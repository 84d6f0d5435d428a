/* SPDX-License-Identifier: Apache-2.0
 *
 * Which received rows make which stage, for every rank: the items that the overlap solver cuts.
 *
 * Names are those of moving keys. Where queries move, "keys" here are queries and "queries" keys,
 * and the bands are those of the transposed mask. A stage is a range of a rank's ordered rows
 * (rank_needs.h). Key
 * chunks are cut into grains; what a rank receives of a grain has one owner, and holds all that the
 * rank attends there, so its compute is counted by cells, with what tiles waste on diagonals.
 * Neighbouring grains are joined to items of about equal time. Integers throughout: every rank
 * finds the same stages of every rank.
 */
#ifndef FFA_PARALLEL_PLAN_STAGES_H
#define FFA_PARALLEL_PLAN_STAGES_H

#include "parallel/plan/overlap.h"
#include "parallel/plan/rank_needs.h"
#include "parallel/plan/rounds.h"
#include "parallel/plan/time_model.h"

#include <ffa/parallel_plan.h>

/* Items that are cut into stages, and stages of a rank that is not in rounds, at most: 2^11 cuts.
 */
enum { RANK_STAGES_MAX = 12 };

struct stages_input {
    const struct rank_needs_input *in;
    const struct rank_needs *needs; /* made from it */
    const struct bands *lists; /* of the mask, whole; a list's cells count heads_q / lists times */
    int64_t list_count;
    const ffa_parallel_plan_opts *opts; /* resolved */
    bool moves_queries;
};

/* Stages of one rank in one pass: stage s has the ordered rows [begins[s], ends[s]). They ascend,
 * but that in rounds the first one may be any, and that of row 0 then follows the last one. */
struct stage_cut {
    int64_t *begins, *ends; /* [count], as all that follow; of one block, begins' */
    int64_t *fetch_ns, *compute_ns, *reduce_ns;
    int64_t half_rows; /* in rounds: of each half of the ring, which stages take in turn; else 0 */
    int64_t own_ns;
    int64_t copy_ns; /* before all else: own keys into the window */
    /* Of a pass that is one launch: waves of work items, of which only the first one meets keys
     * under way, and the time behind it. Else 1 and 0. */
    int64_t waves, rest_ns;
    int64_t cost_ns;
    int64_t work_ns;    /* compute without launches: all of the rank's cells and tiles */
    int64_t uniform_ns; /* of the reference's even split of the same items */
    int32_t count;
};

/* Where the stage's rows begin in what the rank has room for, of received rows. */
static inline int64_t stage_window_row(const struct stage_cut *cut, int32_t stage)
{
    return cut->half_rows ? stage % 2 * cut->half_rows : cut->begins[stage];
}

struct stages {
    int32_t ranks;
    struct rounds rounds;       /* whether passes are in rounds, and what ranks need of memory */
    struct stage_cut *forward;  /* [ranks] */
    struct stage_cut *backward; /* [ranks]; NULL: not wanted */
};

/* Of a rank: both passes together. */
static inline int64_t stages_cost_ns(const struct stages *stages, int32_t rank)
{
    return stages->forward[rank].cost_ns + (stages->backward ? stages->backward[rank].cost_ns : 0);
}

ffa_status stages_build(struct stages *out, const struct stages_input *in, ffa_error *err);
void stages_finish(struct stages *stages);

#endif
