/* SPDX-License-Identifier: Apache-2.0
 *
 * The phases of one rank's passes: receives, sends, local bands, tile plans.
 */
#ifndef FFA_PARALLEL_PLAN_PHASES_H
#define FFA_PARALLEL_PLAN_PHASES_H

#include "parallel/plan/rank_plan.h"
#include "parallel/plan/stages.h"

/* What all ranks compute alike. In words of moving keys: where queries move, "queries" here are
 * keys, "keys" queries, and the bands those of the transposed mask. */
struct plan_tables {
    const ffa_mask *mask;
    bool moves_queries;
    int32_t list_count;
    struct normal *turned; /* [list_count], where queries move */
    struct bands *lists;   /* [list_count]: whole */
    struct needs needs;
    struct transfer_input in;
    struct transfer transfer;
    struct stages stages;
};

/* From the plan's topology, opts, queries and keys alone. tables_finish whether or not it succeeds.
 */
ffa_status tables_build(struct plan_tables *tables, const ffa_parallel_plan *plan,
                        const ffa_mask *mask, bool moves_queries, ffa_error *err);
void tables_finish(struct plan_tables *tables);
/* Of these and, where the plan may choose, those of the other move, the ones whose slowest rank is
 * done first with both passes; that time. Sets plan->moves. */
ffa_status tables_choose(struct plan_tables *out, ffa_parallel_plan *plan, const ffa_mask *mask,
                         int64_t *slowest_ns, ffa_error *err);
/* The normal form that lists were made from. */
const struct normal *tables_normal(const struct plan_tables *tables, int32_t list);

/* Fills plan->forward, backward and area from the rest of it. On failure pass_finish frees what is
 * there. */
ffa_status phases_build(ffa_parallel_plan *plan, const struct plan_tables *tables, ffa_error *err);
void pass_finish(struct plan_pass *pass, int32_t list_count);

#endif
