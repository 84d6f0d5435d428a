/* SPDX-License-Identifier: Apache-2.0
 *
 * A distributed plan executed in integers: which token each row of a phase is, and every cell that
 * its tile plans compute.
 */
#ifndef TESTS_DIST_RUN_H
#define TESTS_DIST_RUN_H

#include "parallel/plan/rank_plan.h"

/* The tokens of a phase's rows. */
struct parallel_operands {
    int64_t *queries, *keys;
    int64_t *moved; /* the one of them that travels */
};

/* The token in a row of a rank's buffer, or -1. */
int64_t parallel_token(const struct layout *layout, int32_t rank, int64_t row);
/* Aborts where receives do not fill the receive buffer row by row. parallel_operands_finish(). */
void parallel_operands_init(struct parallel_operands *out, const ffa_parallel_plan *plan,
                            const struct plan_pass *pass, int32_t phase);
void parallel_operands_finish(struct parallel_operands *operands);

/* Rows of the phase's operands. */
typedef void (*parallel_cell)(void *user, int32_t list, int64_t q_row, int64_t k_row);
/* Every cell that the phase computes, as often as it does. */
void parallel_each_cell(const struct plan_phase *phase, bool is_backward, parallel_cell cell,
                        void *user);

#endif
