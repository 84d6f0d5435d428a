/* SPDX-License-Identifier: Apache-2.0 */
#include "support/any_plan.h"

const char *const pass_names[PASSES] = { "forward", "backward" };

ffa_status any_plan_build(struct any_plan *plan, enum pass pass, const ffa_mask *mask,
                          const struct tile_options *opts, ffa_error *err)
{
    *plan = (struct any_plan){ .pass = pass };
    return pass == FORWARD ? tile_build(&plan->forward, mask, TILE_OWNS_QUERIES, opts, err)
                           : tile_build(&plan->backward, mask, TILE_OWNS_KEYS, opts, err);
}

ffa_status any_plan_check(const struct any_plan *plan, ffa_error *err)
{
    return plan->pass == FORWARD ? tile_check(&plan->forward, err)
                                 : tile_check(&plan->backward, err);
}

void any_plan_finish(struct any_plan *plan)
{
    tile_finish(&plan->forward);
    tile_finish(&plan->backward);
}

bool any_plan_covers(const struct any_plan *plan, const ffa_slice_list *lists,
                     struct coverage_text *why)
{
    return plan->pass == FORWARD ? coverage_rows(&plan->forward, lists, why)
                                 : coverage_keys(&plan->backward, lists, why);
}

bool any_plan_covers_cells(const struct any_plan *plan, const ffa_slice_list *lists,
                           struct coverage_text *why)
{
    return plan->pass == FORWARD ? coverage_cells(&plan->forward, lists, why)
                                 : coverage_backward_cells(&plan->backward, lists, why);
}

#define FACTS(of, line_count)                                                                      \
    (struct any_facts)                                                                             \
    {                                                                                              \
        .shape = (of)->shape, .lines = (line_count), .tile_count = (of)->tile_count,               \
        .sweep_count = (of)->sweep_count, .band_count = (of)->band_count,                          \
        .block_count = (of)->block_count, .partial_blocks = (of)->partial_blocks,                  \
        .area = (of)->area, .list_begin = (of)->list_begin                                         \
    }

struct any_facts any_plan_facts(const struct any_plan *plan)
{
    const struct tile_plan *forward = &plan->forward;
    const struct tile_plan *backward = &plan->backward;

    return plan->pass == FORWARD ? FACTS(forward, forward->shape.seqlen_q)
                                 : FACTS(backward, backward->shape.seqlen_k);
}

struct plan_tile any_plan_tile(const struct any_plan *plan, int64_t index)
{
    const struct plan_tile *from;

    if (plan->pass == FORWARD)
        return plan->forward.tiles[index];
    from = &plan->backward.tiles[index];
    return (struct plan_tile){ .begin = from->begin,
                               .count = from->count,
                               .sweep_begin = from->sweep_begin,
                               .sweep_count = from->sweep_count,
                               .band_begin = from->band_begin,
                               .band_count = from->band_count,
                               .block_count = from->block_count,
                               .list = (uint16_t)from->list };
}

struct plan_sweep any_plan_sweep(const struct any_plan *plan, int64_t index)
{
    const struct plan_sweep *from;

    if (plan->pass == FORWARD)
        return plan->forward.sweeps[index];
    from = &plan->backward.sweeps[index];
    return (struct plan_sweep){ .begin = from->begin,
                                .end = from->end,
                                .full_begin = from->full_begin,
                                .full_end = from->full_end,
                                .band_begin = from->band_begin,
                                .band_count = from->band_count };
}

struct plan_band any_plan_band(const struct any_plan *plan, int64_t index)
{
    const struct plan_band *from;

    if (plan->pass == FORWARD)
        return plan->forward.bands[index];
    from = &plan->backward.bands[index];
    return (struct plan_band){ .begin = from->begin,
                               .end = from->end,
                               .lo = from->lo,
                               .hi = from->hi,
                               .lo_step = from->lo_step,
                               .hi_step = from->hi_step };
}

int32_t *any_plan_field(struct any_plan *plan, enum plan_array array, size_t offset, int64_t index)
{
    const bool is_forward = plan->pass == FORWARD;
    char *entries[PLAN_ARRAYS] = {
        is_forward ? (char *)plan->forward.tiles : (char *)plan->backward.tiles,
        is_forward ? (char *)plan->forward.sweeps : (char *)plan->backward.sweeps,
        is_forward ? (char *)plan->forward.bands : (char *)plan->backward.bands,
        (char *)plan->backward.tickets,
    };
    const size_t bytes[PLAN_ARRAYS] = { sizeof(struct plan_tile), sizeof(struct plan_sweep),
                                        sizeof(struct plan_band), sizeof(struct plan_ticket) };

    return (int32_t *)(void *)(entries[array] + (size_t)index * bytes[array] + offset);
}

int64_t any_plan_entries(const struct any_plan *plan, enum plan_array array)
{
    const struct any_facts facts = any_plan_facts(plan);

    return array == PLAN_TILES    ? facts.tile_count
           : array == PLAN_SWEEPS ? facts.sweep_count
           : array == PLAN_BANDS  ? facts.band_count
                                  : plan->backward.ticket_count;
}
