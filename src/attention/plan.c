/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa_plan: the tile plans of both passes, and the image of them that a device reads.
 */
#include "attention/attention.h"

/* Kernels count keys and rows in int32, up to two tiles past the end. */
enum { GPU_TOKENS_MAX = INT32_MAX - 1023 };

static ffa_status tokens_check(const ffa_mask *mask, ffa_error *err)
{
    const int64_t rows = ffa_mask_seqlen_q(mask), keys = ffa_mask_seqlen_k(mask);

    if (rows > GPU_TOKENS_MAX || keys > GPU_TOKENS_MAX)
        return error_fail(err, FFA_UNSUPPORTED, 0, "%s is %lld, GPU kernels take at most %d",
                          rows > GPU_TOKENS_MAX ? "seqlen_q" : "seqlen_k",
                          (long long)(rows > GPU_TOKENS_MAX ? rows : keys), GPU_TOKENS_MAX);
    return FFA_OK;
}

ffa_status plan_opts_import(ffa_plan_opts *out, const ffa_plan_opts *opts, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(opts_import(out, sizeof *out, opts, err));
    if (out->backward_parts_max < 0)
        rc = error_fail(err, FFA_INVALID, 0, "plan: backward_parts_max is %d, less than 0",
                        out->backward_parts_max);
    else if (out->flags & ~(uint32_t)FFA_PLAN_ISOLATE)
        rc = error_fail(err, FFA_UNSUPPORTED, 0, "plan: flags is 0x%x, known are 0x%x", out->flags,
                        (unsigned)FFA_PLAN_ISOLATE);
out:
    return rc;
}

struct tile_options plan_tile_options(const struct forward_kernel *kernel,
                                      const ffa_plan_opts *opts)
{
    return (struct tile_options){ .tile_m = kernel->tile_m,
                                  .tile_n = kernel->tile_n,
                                  .cuts = plan_cuts(opts) };
}

ffa_status plan_begin(ffa_plan **out, const ffa_kernels *kernels, const ffa_mask *mask,
                      ffa_error *err)
{
    ffa_status rc = FFA_OK;

    if (kernels_target_gpu(kernels))
        FFA_TRY(tokens_check(mask, err));
    *out = mem_array(1, sizeof **out);
    if (*out)
        (*out)->found = mem_array(1, sizeof *(*out)->found);
    if (!*out || !(*out)->found) {
        rc = error_nomem(err, "the plan");
        goto out;
    }
    (*out)->choice = plan_choice_begin(kernels);
    (*out)->stage_count = 1;
    (*out)->heads_in_mask = ffa_mask_head_count(mask);
out:
    return rc;
}

struct tile_options plan_backward_options(const ffa_kernels *kernels,
                                          const struct backward_kernel *kernel,
                                          const ffa_plan_opts *opts)
{
    return (struct tile_options){ .tile_m = kernel->tile_m,
                                  .tile_n = kernel->tile_n,
                                  .cuts = plan_cuts(opts),
                                  .on_grid = kernels->is_deterministic };
}

static ffa_status backward_build(struct tile_plan *out, const ffa_kernels *kernels,
                                 const struct backward_kernel *kernel, const ffa_mask *mask,
                                 const ffa_plan_opts *opts, ffa_error *err)
{
    const struct tile_options tiles = plan_backward_options(kernels, kernel, opts);
    const bool may_choose =
        kernels_target_gpu(kernels) && kernels->heads_q && !opts->capacity_bytes;

    return backward_tiles_build(out, mask, &tiles,
                                may_choose ? kernels->heads_q / kernels->heads_kv : 0, err);
}

/* The tiles of the backward pass, for kernels that have it. With a capacity other masks will
 * follow, so nothing is chosen for this one. */
static ffa_status add_backward(ffa_plan *plan, const ffa_kernels *kernels, const ffa_mask *mask,
                               const ffa_plan_opts *opts, ffa_error *err)
{
    struct tile_plan pairs = { 0 };
    ffa_status rc = FFA_OK;

    if (!kernels->has_backward)
        goto out;
    FFA_TRY(backward_build(&plan->backward, kernels, &kernels->backward[0], mask, opts, err));
    if (kernels->backward_count > 1 && !opts->capacity_bytes &&
        backward_may_want_pairs(&plan->backward)) {
        const struct order_query query = plan_order_query(plan, 1, 1); /* of any heads */

        FFA_TRY(backward_build(&pairs, kernels, &kernels->backward[1], mask, opts, err));
        if (backward_wants_pairs(&plan->backward, &pairs, &query)) {
            const struct tile_plan alone = plan->backward;

            plan->backward = pairs;
            pairs = alone;
            plan->choice.backward_at_a_time =
                kernels_backward_at_a_time(&kernels->backward[1], kernels->device.facts.sm_count);
        }
    }
    plan_settle_lockstep(plan);
out:
    tile_finish(&pairs);
    return rc;
}

ffa_status plan_complete(ffa_plan *plan, const ffa_kernels *kernels, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    if (!kernels_target_gpu(kernels))
        return FFA_OK;
    plan->image = plan_image_layout(&plan->forward, &plan->backward);
    FFA_TRY(plan_image_check(&plan->image, err));
    if (plan->capacity_bytes && plan->image.bytes > plan->capacity_bytes) {
        rc = error_fail(err, FFA_INVALID, 0,
                        "plan: the mask needs %lld bytes, capacity_bytes is %lld",
                        (long long)plan->image.bytes, (long long)plan->capacity_bytes);
        goto out;
    }
    plan->image_data = mem_array((size_t)plan->image.bytes, 1);
    if (!plan->image_data) {
        rc = error_nomem(err, "the plan's device image");
        goto out;
    }
    plan_image_write(&plan->image, plan->image_data, &plan->forward, &plan->backward);
out:
    return rc;
}

ffa_status ffa_plan_create(ffa_plan **out, const ffa_kernels *kernels, const ffa_mask *mask,
                           ffa_error *err)
{
    return ffa_plan_create_with(out, kernels, mask, NULL, err);
}

ffa_status ffa_plan_create_with(ffa_plan **out, const ffa_kernels *kernels, const ffa_mask *mask,
                                const ffa_plan_opts *plan_opts, ffa_error *err)
{
    ffa_plan_opts opts;
    struct ffa_plan *plan = NULL;
    ffa_status rc;

    if (!out)
        return error_fail(err, FFA_INVALID, 0, "ffa_plan_create: out is NULL");
    *out = NULL;
    if (!kernels || !mask)
        return error_fail(err, FFA_INVALID, 0, "ffa_plan_create: %s is NULL",
                          kernels ? "mask" : "kernels");
    FFA_TRY(plan_opts_import(&opts, plan_opts, err));
    FFA_TRY(plan_replay_check(&opts, kernels, mask, err));
    FFA_TRY(plan_begin(&plan, kernels, mask, err));
    plan->flags = opts.flags;
    plan->capacity_bytes = opts.capacity_bytes;
    plan->choice.parts_max = opts.backward_parts_max;
    FFA_TRY(plan_choose_tiles(plan, kernels, mask, &opts, err));
    FFA_TRY(add_backward(plan, kernels, mask, &opts, err));
    FFA_TRY(plan_reference_take(plan, opts.like, err));
    FFA_TRY(plan_complete(plan, kernels, err));
    *out = plan;
    plan = NULL;
out:
    ffa_plan_destroy(plan);
    return rc;
}

void ffa_plan_destroy(ffa_plan *plan)
{
    if (!plan)
        return;
    tile_finish(&plan->forward);
    tile_finish(&plan->backward);
    plan_reference_release(plan->reference);
    mem_free(plan->image_data);
    mem_free(plan->found);
    mem_free(plan);
}

ffa_status ffa_plan_info_get(const ffa_plan *plan, ffa_plan_info *info, ffa_error *err)
{
    ffa_plan_info facts = FFA_PLAN_INFO_INIT;

    if (!plan || !info)
        return error_fail(err, FFA_INVALID, 0, "ffa_plan_info_get: %s is NULL",
                          plan ? "info" : "plan");
    facts.tile_m = plan->forward.tile_m;
    facts.tile_n = plan->forward.tile_n;
    facts.tile_count = (int32_t)plan->forward.tile_count;
    facts.sweep_count = plan->forward.sweep_count;
    facts.block_count = plan->forward.block_count;
    facts.partial_blocks = plan->forward.partial_blocks;
    facts.area = plan->forward.area;
    facts.image_bytes = plan->image.bytes;
    facts.capacity_bytes = plan->capacity_bytes;
    facts.upload_bytes =
        plan->image_data && plan->capacity_bytes ? plan->capacity_bytes : plan->image.bytes;
    facts.backward_tile_m = plan->backward.tile_m;
    facts.backward_tile_n = plan->backward.tile_n;
    facts.backward_tile_count = (int32_t)plan->backward.tile_count;
    facts.backward_block_count = plan->backward.block_count;
    facts.backward_partial_blocks = plan->backward.partial_blocks;
    plan_choice_info(&facts, plan);
    return opts_export(info, &facts, sizeof facts, err);
}

ffa_status ffa_plan_upload(ffa_plan *plan, const ffa_kernels *kernels, void *buffer,
                           ffa_stream stream, ffa_error *err)
{
    ffa_status rc;

    if (!plan || !kernels)
        return error_fail(err, FFA_INVALID, 0, "ffa_plan_upload: %s is NULL",
                          plan ? "kernels" : "plan");
    if (!kernels_are_loaded(kernels))
        return FFA_OK;
    if (!plan->image_data)
        return error_fail(err, FFA_INVALID, 0,
                          "ffa_plan_upload: the plan was made with kernels of the CPU backend");
    if (!buffer || (uintptr_t)buffer % 16)
        return error_fail(err, FFA_INVALID, 0, "ffa_plan_upload: buffer is %p, not 16-byte aligned",
                          buffer);
    rc = gpu_upload_enqueue(kernels->context->gpu, buffer, plan->image_data, plan->image.bytes,
                            stream, err);
    if (rc == FFA_OK) {
        atomic_store(&plan->device, gpu_device_ordinal(kernels->context->gpu));
        atomic_store(&plan->buffer, buffer);
    }
    return rc;
}
