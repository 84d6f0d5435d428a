/* SPDX-License-Identifier: Apache-2.0
 *
 * The costs of a kernel's tiles from times of it. The model is the one that plans choose by
 * (choose_tiles_time). Thread: any.
 */
#ifndef FFA_TUNE_TUNE_MODEL_H
#define FFA_TUNE_TUNE_MODEL_H

#include "choose/tile_choice.h"

/* One mask with one kernel. */
struct tune_timed {
    const struct tile_plan *tiles; /* as plans of the kernel have them */
    int32_t heads;                 /* that run each tile, or packs of heads */
    double us;                     /* measured */
};

struct tune_model {
    const struct tune_timed *timed; /* [count] of one kernel */
    int32_t count;
    double begin; /* where to begin, in keys */
    const struct choose_device *device;
};

/* In microseconds. */
struct tune_costs {
    struct tile_cost tile;
    double call;     /* what a call takes whatever its tiles */
    double residual; /* the mean error of the model, as a share of the time */
};

struct tune_costs tune_model_fit(const struct tune_model *model);

/* What the model says, in the unit of the cost. */
double tune_model_time(const struct tune_timed *timed, struct tile_cost cost,
                       const struct choose_device *device);

#endif
