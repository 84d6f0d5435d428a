/* SPDX-License-Identifier: Apache-2.0 */
#include "support/plan_fields.h"

const char *const axis_names[AXES] = { "forward", "backward" };

int32_t *plan_field(const struct tile_plan *plan, enum plan_array array, size_t offset,
                    int64_t index)
{
    char *const arrays[PLAN_ARRAYS] = { (char *)plan->tiles, (char *)plan->block_counts,
                                        (char *)plan->rows,  (char *)plan->sweeps,
                                        (char *)plan->bands, (char *)plan->tickets };
    static const size_t bytes[PLAN_ARRAYS] = { sizeof *plan->tiles, sizeof *plan->block_counts,
                                               sizeof *plan->rows,  sizeof *plan->sweeps,
                                               sizeof *plan->bands, sizeof *plan->tickets };

    return (int32_t *)(void *)(arrays[array] + (size_t)index * bytes[array] + offset);
}

int64_t plan_records(const struct tile_plan *plan, enum plan_array array)
{
    const int64_t counts[PLAN_ARRAYS] = {
        plan->tile_count,  plan->tile_count, plan->rows ? plan->tile_count : 0,
        plan->sweep_count, plan->band_count, plan->ticket_count
    };

    return counts[array];
}
