/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa_plan_create_stages: a plan for the keys of each stage. The tiles of both passes are
 * staged_build's (staged.h); a plan adds which stage it is, and its device image. All plans are
 * made, or none.
 */
#include "attention/attention.h"
#include "tile/staged.h"

enum { STAGE_PLANS_MAX = 4096 };

struct build {
    ffa_plan **plans;             /* [count] */
    const ffa_mask *const *masks; /* [count] */
    int32_t count;
    const ffa_kernels *kernels;
    ffa_plan_opts opts;
};

static ffa_status check(const ffa_kernels *kernels, const ffa_mask *const *masks, int32_t count,
                        ffa_error *err)
{
    if (!kernels || !masks)
        return error_fail(err, FFA_INVALID, 0, "ffa_plan_create_stages: %s is NULL",
                          kernels ? "masks" : "kernels");
    if (count < 1 || count > STAGE_PLANS_MAX)
        return error_fail(err, FFA_INVALID, 0, "count is %d, not in [1, %d]", count,
                          STAGE_PLANS_MAX);
    if (!kernels->is_staged)
        return error_fail(err, FFA_INVALID, 0, "the kernels were made without FFA_SPEC_STAGED");
    for (int32_t i = 0; i < count; i++) {
        if (!masks[i])
            return error_fail(err, FFA_INVALID, 0, "masks[%d] is NULL", i);
        if (ffa_mask_seqlen_q(masks[i]) != ffa_mask_seqlen_q(masks[0]) ||
            ffa_mask_head_count(masks[i]) != ffa_mask_head_count(masks[0]))
            return error_fail(
                err, FFA_INVALID, 0,
                "masks[%d] has %lld query rows and %d lists, masks[0] %lld and %d", i,
                (long long)ffa_mask_seqlen_q(masks[i]), (int)ffa_mask_head_count(masks[i]),
                (long long)ffa_mask_seqlen_q(masks[0]), (int)ffa_mask_head_count(masks[0]));
    }
    return FFA_OK;
}

static ffa_status build_plans(struct build *b, ffa_error *err)
{
    const struct tile_options forward = plan_tile_options(&b->kernels->forward[0], &b->opts);
    const struct tile_options backward =
        plan_backward_options(b->kernels, &b->kernels->backward[0], &b->opts);
    const struct staged_options opts = { .list_count = ffa_mask_head_count(b->masks[0]),
                                         .forward = &forward,
                                         .backward = b->kernels->has_backward ? &backward : NULL };
    struct staged_plan *plans = mem_array((size_t)b->count, sizeof *plans);
    struct stage_cells *stages = mem_array((size_t)b->count, sizeof *stages);
    ffa_status rc = FFA_OK;

    if (!plans || !stages) {
        rc = error_nomem(err, "the plans of stages");
        goto out;
    }
    for (int32_t s = 0; s < b->count; s++) {
        stages[s].mask = b->masks[s];
        FFA_TRY(plan_begin(&b->plans[s], b->kernels, b->masks[s], err));
        b->plans[s]->choice.tiles.cuts = forward.cuts;
        b->plans[s]->choice.parts_max = b->opts.backward_parts_max;
        b->plans[s]->stage = s;
        b->plans[s]->stage_count = b->count;
    }
    FFA_TRY(staged_build(plans, stages, b->count, &opts, err));
    for (int32_t s = 0; s < b->count; s++) {
        b->plans[s]->forward = plans[s].forward;
        b->plans[s]->backward = plans[s].backward;
        plan_settle_lockstep(b->plans[s]);
    }
    for (int32_t s = 0; s < b->count; s++)
        FFA_TRY(plan_complete(b->plans[s], b->kernels, err));
out:
    mem_free(plans);
    mem_free(stages);
    return rc;
}

ffa_status ffa_plan_create_stages(ffa_plan **out, const ffa_kernels *kernels,
                                  const ffa_mask *const *masks, int32_t count,
                                  const ffa_plan_opts *opts, ffa_error *err)
{
    struct build b = { .plans = out, .masks = masks, .count = count, .kernels = kernels };
    ffa_status rc;

    if (!out)
        return error_fail(err, FFA_INVALID, 0, "ffa_plan_create_stages: out is NULL");
    for (int32_t i = 0; i < count && count <= STAGE_PLANS_MAX; i++)
        out[i] = NULL;
    FFA_TRY(check(kernels, masks, count, err));
    FFA_TRY(plan_opts_import(&b.opts, opts, err));
    if (b.opts.heads_q) {
        rc =
            error_fail(err, FFA_INVALID, 0,
                       "plan: heads_q is %d, stages are not split over their keys", b.opts.heads_q);
        goto out;
    }
    if (b.opts.capacity_bytes || b.opts.like) {
        rc = error_fail(err, FFA_INVALID, 0,
                        "plan: %s is given: plans in stages are not replayed with other masks",
                        b.opts.like ? "like" : "capacity_bytes");
        goto out;
    }
    rc = build_plans(&b, err);
out:
    for (int32_t i = 0; rc != FFA_OK && i < count && count <= STAGE_PLANS_MAX; i++) {
        ffa_plan_destroy(out[i]);
        out[i] = NULL;
    }
    return rc;
}
