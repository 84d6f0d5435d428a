/* SPDX-License-Identifier: Apache-2.0
 *
 * What a fit of a group works on: its cases, the kernels that sessions have timed with all of them,
 * and their times.
 *
 * Sessions are compared through the baseline, which each of them measures beside every
 * configuration: what is pooled over machines is the share of the baseline's time. So machines that
 * differ in speed, or that have measured different configurations, give one table. Thread: any.
 */
#ifndef FFA_TUNE_TUNE_TIMES_H
#define FFA_TUNE_TUNE_TIMES_H

#include "choose/tile_choice.h"
#include "tune/tune_fit.h"
#include "tune/tune_race.h"

/* Times and costs as some laps have them, by which a set of kernels is found. */
struct tune_finding {
    unsigned found_by, judged_by; /* enum tune_laps; judged_by 0: nothing judges it */
    struct tune_kernel *kernels;  /* [kernel_count] */
    /* [case_count][TUNE_CONFIGURATIONS_MAX], by tune_place. */
    double *us;        /* in the laps that it is found by */
    double *judged_us; /* in the laps that judge */
    double *model_us;  /* by the rounded costs */
};
enum { TUNE_WHOLE /* what a table is made of */, TUNE_HALVES, TUNE_FINDINGS = TUNE_HALVES + 2 };

/* A group under work: times of kernels in cases, and tiles of cases. */
struct tune_work {
    const struct tune_record *const *records; /* [count] of this group, by id */
    int32_t count;
    const struct cost_table *base;
    struct choose_device device;
    struct tune_group *group;
    /* Of tune_times_find, which tune_times_finish frees. */
    int32_t *masks; /* [count][case_count]: which mask of a session with a final is a case; -1 */
    /* [count][TUNE_CONFIGURATIONS_MAX]: which configuration of a session is a kernel; -1 */
    int32_t *owns;
    /* Of tune_sets_fit, which tune_sets_finish frees; the kernels of the first are the group's. */
    struct tune_finding findings[TUNE_FINDINGS];
    struct tile_plan *tiles; /* [case_count][TUNE_CONFIGURATIONS_MAX] */
};

static inline int32_t tune_place(int32_t c, int32_t kernel)
{
    return c * TUNE_CONFIGURATIONS_MAX + kernel;
}

/* Find cases and kernels of the group, in work->group; where there is none of either, kernel_count
 * is 0, and `reason` says why. work: zero but for the members up to `group`. tune_times_finish()
 * whatever the outcome. Fails with FFA_NOMEM. */
ffa_status tune_times_find(struct tune_work *work, ffa_error *err);
void tune_times_finish(struct tune_work *work);

/* A kernel in a case, pooled over the sessions that have both. */
struct tune_pooled {
    double share;     /* of the baseline's time */
    double noise;     /* of its gain */
    int32_t sessions; /* 0: none has */
};
/* Of a group with kernels. laps: an or of enum tune_laps. */
struct tune_pooled tune_pool(const struct tune_work *work, int32_t c, int32_t kernel,
                             unsigned laps);

#endif
