/* SPDX-License-Identifier: Apache-2.0
 *
 * backward_build: the tile plan of the transposed mask (tile_build_transposed), written in the
 * words of backward_plan.h. "Turned" is such a plan: its rows are keys, its keys are query rows.
 */
#include "tile/backward.h"

/* ---- the words of both plans ---- */

static struct backward_tile tile_from(const struct plan_tile *turned)
{
    return (struct backward_tile){ .key_begin = turned->row_begin,
                                   .key_count = turned->row_count,
                                   .sweep_begin = turned->sweep_begin,
                                   .sweep_count = turned->sweep_count,
                                   .band_begin = turned->band_begin,
                                   .band_count = turned->band_count,
                                   .block_count = turned->block_count,
                                   .list = turned->list };
}

static struct plan_tile tile_turn(const struct backward_tile *tile)
{
    return (struct plan_tile){ .row_begin = tile->key_begin,
                               .row_count = tile->key_count,
                               .sweep_begin = tile->sweep_begin,
                               .sweep_count = tile->sweep_count,
                               .band_begin = tile->band_begin,
                               .band_count = tile->band_count,
                               .block_count = tile->block_count,
                               .list = (uint16_t)tile->list };
}

static struct backward_sweep sweep_from(const struct plan_sweep *turned)
{
    return (struct backward_sweep){ .q_begin = turned->k_begin,
                                    .q_end = turned->k_end,
                                    .full_begin = turned->full_begin,
                                    .full_end = turned->full_end,
                                    .band_begin = turned->band_begin,
                                    .band_count = turned->band_count };
}

static struct plan_sweep sweep_turn(const struct backward_sweep *sweep)
{
    return (struct plan_sweep){ .k_begin = sweep->q_begin,
                                .k_end = sweep->q_end,
                                .full_begin = sweep->full_begin,
                                .full_end = sweep->full_end,
                                .band_begin = sweep->band_begin,
                                .band_count = sweep->band_count };
}

static struct backward_band band_from(const struct plan_band *turned)
{
    return (struct backward_band){ .key_begin = turned->row_begin,
                                   .key_end = turned->row_end,
                                   .lo = turned->lo,
                                   .hi = turned->hi,
                                   .lo_step = turned->lo_step,
                                   .hi_step = turned->hi_step };
}

static struct plan_band band_turn(const struct backward_band *band)
{
    return (struct plan_band){ .row_begin = band->key_begin,
                               .row_end = band->key_end,
                               .lo = band->lo,
                               .hi = band->hi,
                               .lo_step = band->lo_step,
                               .hi_step = band->hi_step };
}

/* ---- build ---- */

ffa_status backward_build(struct backward_plan *out, const ffa_mask *mask,
                          const struct tile_options *opts, ffa_error *err)
{
    const struct tile_options turned_opts = { .tile_m = opts->tile_n,
                                              .tile_n = opts->tile_m,
                                              .cuts = opts->cuts };
    struct tile_plan turned = { 0 };
    struct backward_plan plan = { .shape = mask->shape,
                                  .tile_m = opts->tile_m,
                                  .tile_n = opts->tile_n,
                                  .list_count = mask->head_count };
    ffa_status rc;

    *out = (struct backward_plan){ 0 };
    FFA_TRY(tile_build_transposed(&turned, mask, &turned_opts, err));
    plan.tile_count = turned.tile_count;
    plan.sweep_count = turned.sweep_count;
    plan.band_count = turned.band_count;
    plan.block_count = turned.block_count;
    plan.partial_blocks = turned.partial_blocks;
    plan.area = turned.area;
    plan.tiles = mem_array((size_t)plan.tile_count, sizeof *plan.tiles);
    plan.sweeps = mem_array((size_t)plan.sweep_count, sizeof *plan.sweeps);
    plan.bands = mem_array((size_t)plan.band_count, sizeof *plan.bands);
    if (!plan.tiles || !plan.sweeps || !plan.bands) {
        rc = error_nomem(err, "the tiles of a backward plan");
        goto out;
    }
    for (int64_t i = 0; i < plan.tile_count; i++)
        plan.tiles[i] = tile_from(&turned.tiles[i]);
    for (int64_t i = 0; i < plan.sweep_count; i++)
        plan.sweeps[i] = sweep_from(&turned.sweeps[i]);
    for (int64_t i = 0; i < plan.band_count; i++)
        plan.bands[i] = band_from(&turned.bands[i]);
    plan.list_begin = turned.list_begin;
    turned.list_begin = NULL;
    *out = plan;
    plan = (struct backward_plan){ 0 };
out:
    tile_finish(&turned);
    backward_finish(&plan);
    return rc;
}

void backward_finish(struct backward_plan *plan)
{
    if (!plan)
        return;
    mem_free(plan->list_begin);
    mem_free(plan->tiles);
    mem_free(plan->sweeps);
    mem_free(plan->bands);
    *plan = (struct backward_plan){ 0 };
}

/* ---- check ---- */

static bool nothing_between(const struct backward_plan *plan)
{
    for (int64_t i = 0; i < plan->sweep_count; i++)
        if (plan->sweeps[i].pad_[0] || plan->sweeps[i].pad_[1])
            return false;
    for (int64_t i = 0; i < plan->band_count; i++)
        if (plan->bands[i].pad_[0] || plan->bands[i].pad_[1])
            return false;
    return true;
}

ffa_status backward_check(const struct backward_plan *plan, ffa_error *err)
{
    struct tile_plan turned = { .shape = { plan->shape.seqlen_k, plan->shape.seqlen_q },
                                .tile_m = plan->tile_n,
                                .tile_n = plan->tile_m,
                                .list_count = plan->list_count,
                                .list_begin = plan->list_begin,
                                .tile_count = plan->tile_count,
                                .sweep_count = plan->sweep_count,
                                .band_count = plan->band_count,
                                .block_count = plan->block_count,
                                .partial_blocks = plan->partial_blocks,
                                .area = plan->area };
    ffa_error found = { FFA_OK, 0, "" };
    ffa_status rc;

    turned.tiles = mem_array((size_t)plan->tile_count, sizeof *turned.tiles);
    turned.sweeps = mem_array((size_t)plan->sweep_count, sizeof *turned.sweeps);
    turned.bands = mem_array((size_t)plan->band_count, sizeof *turned.bands);
    if (!turned.tiles || !turned.sweeps || !turned.bands) {
        rc = error_nomem(err, "the check of a backward plan");
        goto out;
    }
    for (int64_t i = 0; i < plan->tile_count; i++)
        turned.tiles[i] = tile_turn(&plan->tiles[i]);
    for (int64_t i = 0; i < plan->sweep_count; i++)
        turned.sweeps[i] = sweep_turn(&plan->sweeps[i]);
    for (int64_t i = 0; i < plan->band_count; i++)
        turned.bands[i] = band_turn(&plan->bands[i]);
    rc = nothing_between(plan) ? tile_check(&turned, &found)
                               : error_fail(&found, FFA_BUG, 0, "padding is not zero");
    if (rc != FFA_OK)
        error_fail(err, rc, 0, "backward plan, its rows being keys and its keys rows: %s",
                   found.message);
out:
    mem_free(turned.tiles);
    mem_free(turned.sweeps);
    mem_free(turned.bands);
    return rc;
}
