/* SPDX-License-Identifier: Apache-2.0
 *
 * The phases of one rank's passes: receives, sends, local bands, tile plans. Fills in what
 * rank_plan.h declares, from tables alone; nothing here calls rank_plan.c.
 */
#ifndef FFA_PARALLEL_PLAN_PHASES_H
#define FFA_PARALLEL_PLAN_PHASES_H

#include "parallel/plan/plan_tables.h"
#include "parallel/plan/rank_plan.h"

/* Fills plan->forward, backward, area and sent_rows from the rest of it. On failure phases_finish
 * frees what is there. */
ffa_status phases_build(ffa_parallel_plan *plan, const struct plan_tables *tables, ffa_error *err);
void phases_finish(struct plan_pass *pass, int32_t list_count);

#endif
