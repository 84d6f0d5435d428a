/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa_plan: the tile plans of both passes, and the image of them that a device reads.
 */
#include "attention/attention.h"
#include "tile/split.h"
#include "tile/sweep.h"

#include <assert.h>

/* Kernels count keys and rows in int32, up to two tiles past the end. */
enum { GPU_TOKENS_MAX = INT32_MAX - 1023 };

static ffa_status shape_check(const ffa_mask *mask, ffa_error *err)
{
    const int64_t rows = ffa_mask_seqlen_q(mask), keys = ffa_mask_seqlen_k(mask);

    if (rows > GPU_TOKENS_MAX || keys > GPU_TOKENS_MAX)
        return error_fail(err, FFA_UNSUPPORTED, 0, "%s is %lld, GPU kernels take at most %d",
                          rows > GPU_TOKENS_MAX ? "seqlen_q" : "seqlen_k",
                          (long long)(rows > GPU_TOKENS_MAX ? rows : keys), GPU_TOKENS_MAX);
    return FFA_OK;
}

ffa_status plan_wish_import(ffa_plan_opts *out, const ffa_plan_opts *opts, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(opts_import(out, sizeof *out, opts, err));
    if (out->pad_)
        rc = error_fail(err, FFA_INVALID, 0, "plan: pad_ is %d, must be 0", out->pad_);
    else if (out->flags & ~(uint32_t)FFA_PLAN_ISOLATE)
        rc = error_fail(err, FFA_UNSUPPORTED, 0, "plan: flags is 0x%x, known are 0x%x", out->flags,
                        (unsigned)FFA_PLAN_ISOLATE);
out:
    return rc;
}

static enum tile_cuts cuts_of(bool is_isolated)
{
    return is_isolated ? TILE_CUTS_ISOLATE : TILE_CUTS_CHEAP;
}

struct tile_options plan_tile_options(const struct forward_kernel *kernel,
                                      const ffa_plan_opts *wish)
{
    return (struct tile_options){ .tile_m = kernel->tile_m,
                                  .tile_n = kernel->tile_n,
                                  .cuts = cuts_of(wish->flags & FFA_PLAN_ISOLATE) };
}

/* What the kernel would take for the tiles, of its rows, if it swept the same ranges of keys. */
static double cost_of(const struct tile_plan *tiles, const struct forward_kernel *kernel)
{
    int64_t blocks = 0;

    assert(tiles->tile_m == kernel->tile_m);
    for (int64_t i = 0; i < tiles->sweep_count; i++)
        blocks += sweep_blocks(tiles->sweeps[i].begin, tiles->sweeps[i].end, kernel->tile_n, false);
    return (double)tiles->tile_count * kernel->cost.begin +
           (double)blocks * kernel->tile_n * kernel->cost.key;
}

/* Another kernel has to save this share: with few tiles, what the model leaves out is more. */
static const double WORTH = 0.03;
/* So much may documents apart cost, without masks, */
static const double APART_COST = 1.1;
/* and whatever it is where tiles are fewer than an H200 has SMs. */
enum { APART_TILES = 132 };

/* Packed rows are few, so that tiles of a document each fill the device better; unless documents
 * are so many and so short that most rows of their tiles are empty. */
static ffa_status build_apart(struct tile_plan *tiles, const ffa_mask *mask,
                              const struct forward_kernel *kernel, struct tile_options *opts,
                              ffa_error *err)
{
    struct tile_plan together = { 0 };
    ffa_status rc;

    opts->cuts = TILE_CUTS_ISOLATE;
    FFA_TRY(tile_build(tiles, mask, TILE_OWNS_QUERIES, opts, err));
    if (tiles->tile_count <= APART_TILES ||
        tiles->tile_count * tiles->tile_m <= 2 * tiles->shape.seqlen_q * tiles->list_count)
        goto out;
    opts->cuts = TILE_CUTS_CHEAP;
    FFA_TRY(tile_build(&together, mask, TILE_OWNS_QUERIES, opts, err));
    if (cost_of(tiles, kernel) > APART_COST * cost_of(&together, kernel)) {
        const struct tile_plan apart = *tiles;

        *tiles = together;
        together = apart;
    } else {
        opts->cuts = TILE_CUTS_ISOLATE;
    }
out:
    tile_finish(&together);
    return rc;
}

/* The tiles, for the kernel that is expected to be the fastest. */
static ffa_status add_tiles(struct ffa_plan *plan, const ffa_kernels *kernels, const ffa_mask *mask,
                            const ffa_plan_opts *wish, ffa_error *err)
{
    const struct forward_kernel *best = &kernels->forward[0];
    struct tile_options opts = plan_tile_options(best, wish);
    ffa_status rc;

    if (kernels->pack_heads && kernels_on_gpu(kernels) && opts.cuts == TILE_CUTS_CHEAP)
        FFA_TRY(build_apart(&plan->forward, mask, best, &opts, err));
    else
        FFA_TRY(tile_build(&plan->forward, mask, TILE_OWNS_QUERIES, &opts, err));
    for (int32_t i = 1; i < kernels->forward_count; i++)
        if (cost_of(&plan->forward, &kernels->forward[i]) <
            (1 - WORTH) * cost_of(&plan->forward, best))
            best = &kernels->forward[i];
    if (best == &kernels->forward[0])
        goto out;
    tile_finish(&plan->forward);
    opts.tile_n = best->tile_n;
    rc = tile_build(&plan->forward, mask, TILE_OWNS_QUERIES, &opts, err);
out:
    return rc;
}

/* Split the tiles if the caller wishes it and the device has places to fill. */
static ffa_status split(struct ffa_plan *plan, const ffa_kernels *kernels,
                        const ffa_plan_opts *wish, ffa_error *err)
{
    const int32_t pack = kernels->pack_heads ? kernels->pack_heads : 1;
    int32_t heads;
    int64_t most;
    ffa_status rc = FFA_INVALID;

    if (!wish->heads_q)
        return FFA_OK;
    if (!kernels->is_split) {
        error_fail(err, rc, 0, "plan: heads_q is %d, the kernels were made without FFA_SPEC_SPLIT",
                   wish->heads_q);
        goto out;
    }
    if (wish->heads_q < 1 || wish->heads_q > 65536 ||
        wish->heads_q % (plan->heads_in_mask * pack)) {
        error_fail(
            err, rc, 0,
            "plan: heads_q is %d, not a multiple of %d lists of the mask x %d packed heads in "
            "[1, 65536]",
            wish->heads_q, plan->heads_in_mask, pack);
        goto out;
    }
    rc = FFA_OK;
    if (!kernels_on_gpu(kernels)) /* the CPU's threads take tiles as they come */
        goto out;
    heads = wish->heads_q / (plan->heads_in_mask * pack);
    most = tile_split_most(&plan->forward, heads, gpu_device_sm_count(kernels->context->gpu));
    if (most < INT64_MAX) {
        FFA_TRY(tile_split(&plan->forward, most, err));
        plan->split_heads = wish->heads_q;
    }
out:
    return rc;
}

ffa_status plan_begin(ffa_plan **out, const ffa_kernels *kernels, const ffa_mask *mask,
                      ffa_error *err)
{
    ffa_status rc = FFA_OK;

    if (kernels_on_gpu(kernels))
        FFA_TRY(shape_check(mask, err));
    *out = mem_array(1, sizeof **out);
    if (*out)
        (*out)->order = mem_array(1, sizeof *(*out)->order);
    if (!*out || !(*out)->order) {
        rc = error_nomem(err, "the plan");
        goto out;
    }
    (*out)->stage_count = 1;
    (*out)->heads_in_mask = ffa_mask_head_count(mask);
out:
    return rc;
}

struct tile_options plan_backward_options(const ffa_kernels *kernels, const ffa_plan_opts *wish)
{
    return (struct tile_options){ .tile_m = kernels->backward_tile_m,
                                  .tile_n = kernels->backward_tile_n,
                                  .cuts = cuts_of(wish->flags & FFA_PLAN_ISOLATE),
                                  .on_grid = kernels->is_deterministic };
}

/* The tiles of the backward pass, for kernels that have it. */
static ffa_status add_backward(ffa_plan *plan, const ffa_kernels *kernels, const ffa_mask *mask,
                               const ffa_plan_opts *wish, ffa_error *err)
{
    const struct tile_options opts = plan_backward_options(kernels, wish);

    return kernels->has_backward ? tile_build(&plan->backward, mask, TILE_OWNS_KEYS, &opts, err)
                                 : FFA_OK;
}

ffa_status plan_complete(ffa_plan *plan, const ffa_kernels *kernels, ffa_error *err)
{
    if (!kernels_on_gpu(kernels))
        return FFA_OK;
    plan->image = plan_image_layout(&plan->forward, &plan->backward);
    plan->image_data = mem_array((size_t)plan->image.bytes, 1);
    if (!plan->image_data)
        return error_nomem(err, "the plan's device image");
    plan_image_write(&plan->image, plan->image_data, &plan->forward, &plan->backward);
    return FFA_OK;
}

ffa_status ffa_plan_create(ffa_plan **out, const ffa_kernels *kernels, const ffa_mask *mask,
                           ffa_error *err)
{
    return ffa_plan_create_with(out, kernels, mask, NULL, err);
}

ffa_status ffa_plan_create_with(ffa_plan **out, const ffa_kernels *kernels, const ffa_mask *mask,
                                const ffa_plan_opts *plan_opts, ffa_error *err)
{
    ffa_plan_opts wish;
    struct ffa_plan *plan = NULL;
    ffa_status rc;

    if (!out)
        return error_fail(err, FFA_INVALID, 0, "ffa_plan_create: out is NULL");
    *out = NULL;
    if (!kernels || !mask)
        return error_fail(err, FFA_INVALID, 0, "ffa_plan_create: %s is NULL",
                          kernels ? "mask" : "kernels");
    FFA_TRY(plan_wish_import(&wish, plan_opts, err));
    FFA_TRY(plan_begin(&plan, kernels, mask, err));
    FFA_TRY(add_tiles(plan, kernels, mask, &wish, err));
    FFA_TRY(split(plan, kernels, &wish, err));
    FFA_TRY(add_backward(plan, kernels, mask, &wish, err));
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
    mem_free(plan->image_data);
    mem_free(plan->order);
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
    facts.upload_bytes = plan->image.bytes;
    facts.backward_tile_m = plan->backward.tile_m;
    facts.backward_tile_n = plan->backward.tile_n;
    facts.backward_tile_count = (int32_t)plan->backward.tile_count;
    facts.backward_block_count = plan->backward.block_count;
    facts.backward_partial_blocks = plan->backward.partial_blocks;
    return opts_export(info, &facts, sizeof facts, err);
}

ffa_status ffa_plan_upload(ffa_plan *plan, const ffa_kernels *kernels, void *buffer,
                           ffa_stream stream, ffa_error *err)
{
    ffa_status rc;

    if (!plan || !kernels)
        return error_fail(err, FFA_INVALID, 0, "ffa_plan_upload: %s is NULL",
                          plan ? "kernels" : "plan");
    if (!kernels_on_gpu(kernels))
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
