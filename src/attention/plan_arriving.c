/* SPDX-License-Identifier: Apache-2.0
 *
 * plan_create_arriving: the bands of a rank's rows become a mask, and its tiles are those that
 * ffa_plan_create would make, cut and ordered by stages (struct tile_stages). Invariant: a plan
 * whose keys are all of one stage, and all or none of them first, has the tiles of ffa_plan_create,
 * so that a pass of one rank is the pass of one GPU.
 */
#include "attention/arriving.h"

#include "mask/band_mask.h"
#include "tile/staged.h"
#include "tile/tile_stages.h"

#include <assert.h>

static ffa_status keys_check(const struct arriving_keys *keys, ffa_error *err)
{
    const int64_t most = max64(keys->shape.seqlen_q, keys->shape.seqlen_k);

    if (most > INT32_MAX)
        return error_fail(
            err, FFA_UNSUPPORTED, 0, "arriving keys: %lld rows and %lld keys, limit %d",
            (long long)keys->shape.seqlen_q, (long long)keys->shape.seqlen_k, INT32_MAX);
    if (keys->stage_count < 1 || keys->stage_count > TILE_STAGES_MAX)
        return error_fail(err, FFA_INVALID, 0, "arriving keys: %d stages, not in [1, %d]",
                          keys->stage_count, TILE_STAGES_MAX);
    return FFA_OK;
}

static ffa_status kernels_check(const ffa_kernels *kernels, bool is_backward, ffa_error *err)
{
    if (kernels->is_split)
        return error_fail(err, FFA_INVALID, 0,
                          "arriving keys: the kernels were made with FFA_SPEC_SPLIT");
    if (is_backward && !kernels->has_backward)
        return error_fail(err, FFA_INVALID, 0,
                          "arriving keys: the kernels were made without FFA_SPEC_BACKWARD");
    return FFA_OK;
}

/* A key, or -1 where it is none of [0, seqlen_k]: tile_stages_hold refuses that. */
static int32_t key_of(const struct arriving_keys *keys, int64_t key)
{
    return key < 0 || key > keys->shape.seqlen_k ? -1 : (int32_t)key;
}

/* The stages as tiles have them. first: [keys->first_count], written here; NULL where there are
 * none, as in a forward pass. */
static ffa_status stages_make(struct tile_stages *out, struct tile_range *first,
                              const struct arriving_keys *keys, ffa_error *err)
{
    assert(first || !keys->first_count);
    *out = (struct tile_stages){ .count = keys->stage_count,
                                 .first = first,
                                 .first_count = keys->first_count };
    for (int32_t s = 0; s < keys->stage_count; s++)
        out->ends[s] = key_of(keys, keys->stage_ends[s]);
    for (int64_t i = 0; i < keys->first_count; i++)
        first[i] =
            (struct tile_range){ key_of(keys, keys->first[i][0]), key_of(keys, keys->first[i][1]) };
    if (!tile_stages_hold(out, keys->shape.seqlen_k))
        return error_fail(err, FFA_INVALID, 0,
                          "arriving keys: the ends of %d stages, or the ranges that come first, do "
                          "not ascend in %lld keys",
                          keys->stage_count, (long long)keys->shape.seqlen_k);
    return FFA_OK;
}

static ffa_status build_tiles(ffa_plan *plan, const ffa_kernels *kernels, const ffa_mask *mask,
                              const struct tile_stages *stages, bool is_backward, ffa_error *err)
{
    const ffa_plan_opts opts = FFA_PLAN_OPTS_INIT;
    const struct tile_options tiles = plan_backward_options(kernels, &kernels->backward[0], &opts);

    if (is_backward)
        return tile_build_arriving(&plan->backward, mask, TILE_OWNS_KEYS, &tiles, stages, err);
    return plan_choose_arriving(plan, kernels, mask, stages, err);
}

static void note_stages(ffa_plan *plan, const struct tile_stages *stages)
{
    plan->arriving.count = stages->count;
    for (int32_t s = 0; s < stages->count; s++)
        plan->arriving.stage_end[s] = stages->ends[s];
    for (int64_t t = 0; t < plan->backward.tile_count; t++)
        plan->arriving.stage_tiles[tile_stage_of(stages, plan->backward.tiles[t].begin)]++;
    if (plan->backward.list_count > 1 || plan->backward.tile_count == 0 || stages->count == 1)
        return;
    plan->arriving.group_count = stages->count + 1;
    for (int64_t t = 0; t < plan->backward.tile_count; t++)
        for (int32_t g = tile_group_of(stages, plan->backward.tiles[t].begin); g <= stages->count;
             g++)
            plan->arriving.group_end[g] = (int32_t)t + 1;
}

/* is_partial: all forward tiles leave fp32 results. */
static ffa_status create(ffa_plan **out, const ffa_kernels *kernels,
                         const struct arriving_keys *keys, bool is_backward, bool is_partial,
                         ffa_error *err)
{
    struct tile_range *first = mem_array((size_t)keys->first_count, sizeof *first);
    struct tile_stages stages;
    struct ffa_plan *plan = NULL;
    ffa_mask mask = { 0 };
    ffa_status rc;

    *out = NULL;
    if (!first) {
        rc = error_nomem(err, "the stages of a plan");
        goto out;
    }
    FFA_TRY(kernels_check(kernels, is_backward, err));
    FFA_TRY(keys_check(keys, err));
    FFA_TRY(stages_make(&stages, first, keys, err));
    FFA_TRY(band_mask_init(&mask, &keys->shape, keys->lists, keys->list_count, err));
    FFA_TRY(plan_begin(&plan, kernels, &mask, err));
    FFA_TRY(build_tiles(plan, kernels, &mask, &stages, is_backward, err));
    plan_settle_lockstep(plan);
    note_stages(plan, &stages);
    plan->arriving.first_share = keys->first_share;
    for (int64_t t = 0; is_partial && t < plan->forward.tile_count; t++)
        plan->forward.tiles[t].flags |= PLAN_TILE_CONTINUES;
    FFA_TRY(plan_complete(plan, kernels, err));
    *out = plan;
    plan = NULL;
out:
    ffa_plan_destroy(plan);
    band_mask_finish(&mask);
    mem_free(first);
    return rc;
}

ffa_status plan_create_arriving(ffa_plan **out, const ffa_kernels *kernels,
                                const struct arriving_keys *keys, bool is_backward, ffa_error *err)
{
    return create(out, kernels, keys, is_backward, false, err);
}

/* ---- queries that move ---- */

ffa_status plan_create_moved(ffa_plan **out, const ffa_kernels *kernels,
                             const struct arriving_keys *launches, int32_t count, bool is_backward,
                             ffa_error *err)
{
    ffa_status rc = FFA_OK;

    for (int32_t i = 0; i < count; i++)
        out[i] = NULL;
    if (!kernels->is_staged) {
        rc = error_fail(err, FFA_INVALID, 0,
                        "queries move: the kernels were made without FFA_SPEC_STAGED");
        goto out;
    }
    for (int32_t i = 0; i < count; i++) {
        FFA_TRY(create(&out[i], kernels, &launches[i], is_backward, !is_backward, err));
        if (!is_backward) {
            out[i]->stage = i;
            out[i]->stage_count = count;
        }
    }
out:
    for (int32_t i = 0; rc != FFA_OK && i < count; i++) {
        ffa_plan_destroy(out[i]);
        out[i] = NULL;
    }
    return rc;
}

/* ---- rounds ---- */

/* The forward tiles of all rounds: query tiles are the same in each. */
static ffa_status build_rounds(ffa_plan **plans, const ffa_kernels *kernels,
                               const struct arriving_keys *rounds, int32_t count, ffa_error *err)
{
    const ffa_plan_opts plan_opts = FFA_PLAN_OPTS_INIT;
    const struct tile_options tiles = plan_tile_options(&kernels->forward[0], &plan_opts);
    const struct staged_options opts = { .list_count = rounds[0].list_count, .forward = &tiles };
    struct staged_plan *built = mem_array((size_t)count, sizeof *built);
    struct stage_cells *cells = mem_array((size_t)count, sizeof *cells);
    struct tile_stages *stages = mem_array((size_t)count, sizeof *stages);
    ffa_status rc = FFA_OK;

    if (!built || !cells || !stages) {
        rc = error_nomem(err, "the rounds of a plan");
        goto out;
    }
    for (int32_t r = 0; r < count; r++) {
        FFA_TRY(stages_make(&stages[r], NULL, &rounds[r], err));
        cells[r] = (struct stage_cells){ .shape = rounds[r].shape,
                                         .lists = rounds[r].lists,
                                         .arriving = &stages[r] };
    }
    FFA_TRY(staged_build(built, cells, count, &opts, err));
    for (int32_t r = 0; r < count; r++) {
        plans[r]->choice.tiles.cuts = tiles.cuts;
        plans[r]->forward = built[r].forward;
        note_stages(plans[r], &stages[r]);
    }
out:
    mem_free(built);
    mem_free(cells);
    mem_free(stages);
    return rc;
}

static ffa_status begin_round(ffa_plan **out, const ffa_kernels *kernels,
                              const struct arriving_keys *keys, ffa_error *err)
{
    ffa_mask mask = { 0 };
    ffa_status rc;

    FFA_TRY(keys_check(keys, err));
    FFA_TRY(band_mask_init(&mask, &keys->shape, keys->lists, keys->list_count, err));
    rc = plan_begin(out, kernels, &mask, err);
out:
    band_mask_finish(&mask);
    return rc;
}

static ffa_status create_forward(ffa_plan **out, const ffa_kernels *kernels,
                                 const struct arriving_keys *rounds, int32_t count, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(kernels_check(kernels, false, err));
    for (int32_t r = 0; r < count; r++)
        FFA_TRY(begin_round(&out[r], kernels, &rounds[r], err));
    FFA_TRY(build_rounds(out, kernels, rounds, count, err));
    for (int32_t r = 0; r < count; r++)
        FFA_TRY(plan_complete(out[r], kernels, err));
out:
    return rc;
}

ffa_status plan_create_rounds(ffa_plan **out, const ffa_kernels *kernels,
                              const struct arriving_keys *rounds, int32_t count, bool is_backward,
                              ffa_error *err)
{
    ffa_status rc = FFA_OK;

    for (int32_t r = 0; r < count; r++)
        out[r] = NULL;
    if (count > 1 && !kernels->is_staged) {
        rc =
            error_fail(err, FFA_INVALID, 0,
                       "a pass in %d rounds: the kernels were made without FFA_SPEC_STAGED", count);
        goto out;
    }
    if (count > 1 && !is_backward)
        FFA_TRY(create_forward(out, kernels, rounds, count, err));
    else
        for (int32_t r = 0; r < count; r++)
            FFA_TRY(plan_create_arriving(&out[r], kernels, &rounds[r], is_backward, err));
    for (int32_t r = 0; r < count; r++) {
        out[r]->stage = r;
        out[r]->stage_count = count;
    }
out:
    for (int32_t r = 0; rc != FFA_OK && r < count; r++) {
        ffa_plan_destroy(out[r]);
        out[r] = NULL;
    }
    return rc;
}
