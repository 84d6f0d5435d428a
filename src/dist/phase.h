/* SPDX-License-Identifier: Apache-2.0
 *
 * The phases of one rank's passes: receives, sends, local bands, tile plans.
 */
#ifndef FFA_DIST_PHASE_H
#define FFA_DIST_PHASE_H

#include "dist/plan.h"
#include "dist/stages.h"

/* Fills plan->forward, backward and area from the rest of it. On failure pass_finish frees what is
 * there. */
ffa_status phases_build(ffa_dist_plan *plan, const ffa_mask *mask, const struct transfer *transfer,
                        const struct stages *stages, ffa_error *err);
void pass_finish(struct plan_pass *pass, int32_t list_count);

#endif
