/* SPDX-License-Identifier: Apache-2.0
 *
 * What all ranks compute alike before any rank plans its own phases.
 */
#ifndef FFA_PARALLEL_PLAN_PLAN_TABLES_H
#define FFA_PARALLEL_PLAN_PLAN_TABLES_H

#include "parallel/plan/stages.h"

struct plan_tables_input {
    ffa_topology topology; /* resolved */
    const struct layout *queries, *keys;
    const ffa_mask *mask;
    const ffa_parallel_plan_opts *opts; /* resolved */
};

/* Names are those of moving keys. Where queries move, "queries" here are keys, "keys" queries, and
 * the bands those of the transposed mask. Borrows the mask and the layouts of its input. */
struct plan_tables {
    const ffa_mask *mask;
    bool moves_queries;
    int32_t list_count;
    struct normal *transposed; /* [list_count]: of the mask; only where queries move */
    struct bands *lists;       /* [list_count]: whole */
    struct needs needs;        /* of chunks */
    struct rank_needs_input in;
    struct rank_needs rank_needs;
    struct stages stages;
};

/* Whether queries or keys move is opts->moves; with FFA_PARALLEL_MOVE_AUTO the one whose slowest
 * rank is done first with both passes (ties: keys). *slowest_ns: that time. Call
 * plan_tables_finish whether or not it succeeds. */
ffa_status plan_tables_build(struct plan_tables *out, const struct plan_tables_input *in,
                             int64_t *slowest_ns, ffa_error *err);
void plan_tables_finish(struct plan_tables *tables);
/* The normal form that lists[list] was made from. */
const struct normal *plan_tables_normal(const struct plan_tables *tables, int32_t list);

#endif
