/* SPDX-License-Identifier: Apache-2.0
 *
 * Which kernels a group gets: costs by the library's own model of a pass (tune_model.h), and sets
 * of up to three kernels.
 *
 * A table's costs and kernels are found by all laps. What that gains is judged by cross-validation:
 * they are found anew by each half of the final's laps, and what those choose is timed by the other
 * half, where a kernel that was lucky in the first one is not. Thread: any.
 */
#ifndef FFA_TUNE_TUNE_SETS_H
#define FFA_TUNE_TUNE_SETS_H

#include "tune/tune_times.h"

#define TUNE_RESIDUAL_MAX 0.2 /* of a kernel that may be chosen by its costs */

/* Fit costs to the times that tune_times_find has found, by all laps, and by each half of them. The
 * group has kernels, as for all functions here but tune_sets_finish(), which is called whatever the
 * outcome. Fails with FFA_NOMEM, and as choose_tiles does. */
ffa_status tune_sets_fit(struct tune_work *work, ffa_error *err);
void tune_sets_finish(struct tune_work *work);

/* A set of kernels, the first for all masks. */
struct tune_set {
    int32_t at[TUNE_KERNELS_MAX];
    int32_t count;
};

/* What the best set of so many kernels is good for: judged by the laps that it was not found by,
 * the mean of the halves. */
struct tune_verdict {
    struct tune_set set; /* by all laps */
    double score;        /* by tune_set_score; HUGE_VAL: one of the halves finds no set */
    double noise;        /* of that, or of the set's own gain, if that is more */
    bool is_found;
};
/* More kernels than one, if what they gain is beyond the noise: ties go to fewer. */
struct tune_verdict tune_sets_choose(const struct tune_work *work);

/* The kernel of the set that a plan would be for in a case, by the costs of a finding. */
int32_t tune_set_choice(const struct tune_work *work, const struct tune_finding *by,
                        const struct tune_set *set, int32_t c);
/* The mean logarithm of the time of what is chosen, as a share of the baseline's. us: those of the
 * finding, or those that judge it. */
double tune_set_score(const struct tune_work *work, const struct tune_finding *by,
                      const struct tune_set *set, const double *us);
/* Of the gain of what the set chooses in a case. */
double tune_set_noise(const struct tune_work *work, const struct tune_finding *by,
                      const struct tune_set *set, int32_t c);
/* What 1 of the costs takes, in microseconds. Other constants of the table are in the same unit, so
 * it stays what it was by a kernel of the base that was measured, one whose key costs 1 if there is
 * any; else it is a key of the fastest kernel. Of those that the model fits; 0: it fits none. */
double tune_unit(const struct tune_work *work, const struct tune_finding *by);

/* Whether a tile of a table is of the columns and the packing of a group. */
static inline bool tune_is_of(const struct cost_tile *tile, const struct tune_group *group)
{
    return tile->head_dim == group->head_dim && tile->head_dim_v == group->head_dim_v &&
           (tile->packed != 0) == group->is_packed;
}

#endif
