/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa_plan: the tile plans of both passes, and the image of them that a device reads.
 */
#include "attention/attention.h"
#include "tile/split.h"

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

/* Copy `count` records of 32 bytes, tile, sweep and band alike. */
static unsigned char *image_add(unsigned char *at, const void *records, int64_t count)
{
    const size_t bytes = (size_t)count * sizeof(struct plan_tile);

    if (bytes)
        memcpy(at, records, bytes);
    return at + bytes;
}

static ffa_status image_build(struct ffa_plan *plan, ffa_error *err)
{
    const struct tile_plan *tiles = &plan->tiles;
    const struct tile_plan *backward = &plan->backward;
    const int64_t bytes = (int64_t)sizeof(struct plan_tile);
    unsigned char *at;

    plan->backward_at = bytes * (tiles->tile_count + tiles->sweep_count + tiles->band_count);
    plan->image_bytes = plan->backward_at + bytes * (backward->tile_count + backward->sweep_count +
                                                     backward->band_count);
    plan->splits_at = plan->image_bytes;
    plan->image_bytes += bytes * tiles->split_count;
    plan->turns_at = plan->image_bytes;
    plan->image_bytes += (int64_t)sizeof *backward->tickets * backward->ticket_count;
    if (plan->image_bytes == 0) /* a stage may have nothing to do */
        plan->image_bytes = bytes;
    plan->image = mem_array((size_t)plan->image_bytes, 1);
    if (!plan->image)
        return error_nomem(err, "the plan's device image");
    at = image_add(plan->image, tiles->tiles, tiles->tile_count);
    at = image_add(at, tiles->sweeps, tiles->sweep_count);
    at = image_add(at, tiles->bands, tiles->band_count);
    at = image_add(at, backward->tiles, backward->tile_count);
    at = image_add(at, backward->sweeps, backward->sweep_count);
    at = image_add(at, backward->bands, backward->band_count);
    at = image_add(at, tiles->splits, tiles->split_count);
    if (backward->ticket_count)
        memcpy(at, backward->tickets, (size_t)backward->ticket_count * sizeof *backward->tickets);
    for (int64_t t = 0; tiles->part_rows && t < tiles->tile_count; t++)
        if (tiles->tiles[t].flags & PLAN_TILE_PART)
            ((struct plan_tile *)(void *)plan->image)[t].block_count = tiles->part_rows[t];
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

/* ---- choices ---- */

/* Build the tiles for the kernel that is expected to be the fastest of `all`. */
static ffa_status build_tiles(struct tile_plan *out, enum tile_cuts *cuts,
                              const ffa_kernels *kernels, const struct forward_kernel *all,
                              int32_t count, const ffa_mask *mask, const ffa_plan_opts *wish,
                              ffa_error *err)
{
    struct tile_candidate candidates[FORWARD_KERNELS_MAX];
    const struct tile_query query = { .candidates = candidates,
                                      .candidate_count = count,
                                      .cuts = cuts_of(wish->flags & FFA_PLAN_ISOLATE),
                                      .is_packed = kernels->pack_heads && kernels_on_gpu(kernels) };
    struct tile_choice choice = { 0 };
    ffa_status rc;

    for (int32_t i = 0; i < count; i++)
        candidates[i] = (struct tile_candidate){ all[i].tile_m, all[i].tile_n, all[i].cost };
    rc = choose_tiles(out, &choice, mask, &query, &kernels->device, err);
    *cuts = choice.cuts;
    return rc;
}

static ffa_status add_tiles(struct ffa_plan *plan, const ffa_kernels *kernels, const ffa_mask *mask,
                            const ffa_plan_opts *wish, ffa_error *err)
{
    return build_tiles(&plan->tiles, &plan->choice.cuts, kernels, kernels->forward,
                       kernels->forward_count, mask, wish, err);
}

/* What runs each tile of a split: heads of one list, or packs of them. */
static int32_t split_divisor(const struct ffa_plan *plan, const ffa_kernels *kernels)
{
    return plan->heads_in_mask * (kernels->pack_heads ? kernels->pack_heads : 1);
}

/* The heads that a split is asked for. */
static ffa_status split_check(const struct ffa_plan *plan, const ffa_kernels *kernels,
                              int32_t heads_q, ffa_error *err)
{
    const int32_t pack = kernels->pack_heads ? kernels->pack_heads : 1;

    if (heads_q < 1 || heads_q > FFA_HEADS_MAX || heads_q % split_divisor(plan, kernels))
        return error_fail(
            err, FFA_INVALID, 0,
            "plan: heads_q is %d, not a multiple of %d lists of the mask x %d packed heads in "
            "[1, %d]",
            heads_q, plan->heads_in_mask, pack, FFA_HEADS_MAX);
    if (kernels->heads_q && kernels->heads_q != heads_q)
        return error_fail(err, FFA_INVALID, 0,
                          "plan: heads_q is %d, the kernels were made for heads_q %d", heads_q,
                          kernels->heads_q);
    return FFA_OK;
}

static int64_t split_most(const struct tile_plan *tiles, const struct ffa_plan *plan,
                          const ffa_kernels *kernels, int32_t heads_q)
{
    const struct split_query query = { .heads = heads_q / split_divisor(plan, kernels),
                                       .places = kernels->device.facts.sm_count,
                                       .is_asked = kernels->is_split };

    return choose_split(tiles, &query, kernels->device.costs);
}

/* Split the plan's tiles where the device has places to fill. */
static ffa_status split_asked(struct ffa_plan *plan, const ffa_kernels *kernels, int32_t heads_q,
                              ffa_error *err)
{
    const int64_t most = split_most(&plan->tiles, plan, kernels, heads_q);
    ffa_status rc = FFA_OK;

    if (most < INT64_MAX) {
        FFA_TRY(tile_split(&plan->tiles, most, err));
        plan->split_heads = heads_q;
    }
out:
    return rc;
}

/* The same for kernels that are others than those of whole tiles, with other tiles. */
static ffa_status split_auto(struct ffa_plan *plan, const ffa_kernels *kernels,
                             const ffa_mask *mask, const ffa_plan_opts *wish, int32_t heads_q,
                             ffa_error *err)
{
    struct tile_plan tiles = { 0 }, whole;
    enum tile_cuts cuts;
    int64_t most = split_most(&plan->tiles, plan, kernels, heads_q);
    ffa_status rc = FFA_OK;

    if (most == INT64_MAX)
        goto out;
    FFA_TRY(
        build_tiles(&tiles, &cuts, kernels, kernels->split, kernels->split_count, mask, wish, err));
    most = split_most(&tiles, plan, kernels, heads_q);
    if (most == INT64_MAX)
        goto out;
    FFA_TRY(tile_split(&tiles, most, err));
    whole = plan->tiles;
    plan->tiles = tiles;
    tiles = whole;
    plan->choice.cuts = cuts;
    plan->split_heads = heads_q;
out:
    tile_finish(&tiles);
    return rc;
}

/* Split the tiles if they may be, and the device has places to fill. */
static ffa_status split(struct ffa_plan *plan, const ffa_kernels *kernels, const ffa_mask *mask,
                        const ffa_plan_opts *wish, ffa_error *err)
{
    const int32_t heads_q = wish->heads_q ? wish->heads_q : kernels->heads_q;
    ffa_status rc = FFA_OK;

    if (wish->heads_q && !kernels->is_split && !kernels->may_split) {
        rc = error_fail(err, FFA_INVALID, 0,
                        "plan: heads_q is %d, the kernels were made without FFA_SPEC_SPLIT",
                        wish->heads_q);
        goto out;
    }
    if (!heads_q || !(kernels->is_split || kernels->may_split))
        goto out;
    if (wish->heads_q || kernels->is_split)
        FFA_TRY(split_check(plan, kernels, heads_q, err));
    else if (heads_q % split_divisor(plan, kernels)) /* calls with this mask are refused */
        goto out;
    if (!kernels_on_gpu(kernels)) /* the CPU's threads take tiles as they come */
        goto out;
    if (kernels->is_split)
        rc = split_asked(plan, kernels, heads_q, err);
    else if (kernels->split_count)
        rc = split_auto(plan, kernels, mask, wish, heads_q, err);
out:
    return rc;
}

static struct plan_choice choice_begin(const ffa_kernels *kernels)
{
    return (struct plan_choice){
        .device = kernels->device,
        .pack_heads = kernels->pack_heads,
        .heads_q = kernels->heads_q,
        .heads_kv = kernels->heads_kv,
        .token_bytes =
            (kernels->head_dim + kernels->head_dim_v) * (int32_t)ffa_dtype_bytes(kernels->dtype),
        .backward_at_a_time = kernels->has_backward ? kernels_backward_at_a_time(
                                                          kernels, kernels->device.facts.sm_count)
                                                    : 0,
    };
}

int64_t plan_l2_heads_kv(const ffa_plan *plan)
{
    return choose_l2_heads(&plan->choice.device,
                           plan->tiles.shape.seqlen_k * plan->choice.token_bytes);
}

/* ---- the steps of making a plan ---- */

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
    (*out)->choice = choice_begin(kernels);
    (*out)->stage_count = 1;
    (*out)->heads_in_mask = ffa_mask_head_count(mask);
out:
    return rc;
}

ffa_status plan_add_backward(ffa_plan *plan, const ffa_kernels *kernels, const ffa_mask *mask,
                             const ffa_plan_opts *wish, ffa_error *err)
{
    const struct tile_options opts = { .tile_m = kernels->backward_tile_m,
                                       .tile_n = kernels->backward_tile_n,
                                       .cuts = cuts_of(wish->flags & FFA_PLAN_ISOLATE),
                                       .on_grid = kernels->is_deterministic };

    return kernels->has_backward ? tile_build(&plan->backward, mask, TILE_OWNS_KEYS, &opts, err)
                                 : FFA_OK;
}

ffa_status plan_complete(ffa_plan *plan, const ffa_kernels *kernels, ffa_error *err)
{
    return kernels_on_gpu(kernels) ? image_build(plan, err) : FFA_OK;
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
    FFA_TRY(split(plan, kernels, mask, &wish, err));
    FFA_TRY(plan_add_backward(plan, kernels, mask, &wish, err));
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
    tile_finish(&plan->tiles);
    tile_finish(&plan->backward);
    mem_free(plan->image);
    mem_free(plan->order);
    mem_free(plan);
}

static int32_t parts_of(const struct tile_plan *tiles)
{
    int32_t parts = 0;

    for (int64_t t = 0; t < tiles->tile_count; t++)
        parts += (tiles->tiles[t].flags & PLAN_TILE_PART) != 0;
    return parts;
}

/* What was chosen; on a GPU, also for the heads of the kernels' spec. */
static void info_add_choice(ffa_plan_info *info, const ffa_plan *plan)
{
    const struct plan_choice *choice = &plan->choice;
    const bool is_known = plan->image && choice->heads_q;

    info->pack_heads = choice->pack_heads;
    info->is_isolated = choice->cuts == TILE_CUTS_ISOLATE;
    info->split_heads = plan->split_heads;
    info->split_tiles = parts_of(&plan->tiles);
    if (plan->image)
        text_copy(info->cost_table, "%.31s", choice->device.costs->device);
    if (is_known) {
        const int64_t heads_kv = plan_l2_heads_kv(plan);

        info->l2_heads_kv = (int32_t)(heads_kv < choice->heads_kv ? heads_kv : choice->heads_kv);
    }
    if (is_known && plan->backward.tile_count) {
        const struct order_query query = { choice->heads_q / choice->heads_kv, choice->heads_kv,
                                           choice->backward_at_a_time, choice->device.costs };
        const struct backward_order order = plan_order(plan, &query);

        info->backward_parts = order.parts;
        info->backward_waves = order.waves;
        info->backward_l2_head_groups =
            (int32_t)backward_order_l2_group(&plan->backward, &query, order);
    }
}

ffa_status ffa_plan_info_get(const ffa_plan *plan, ffa_plan_info *info, ffa_error *err)
{
    ffa_plan_info facts = FFA_PLAN_INFO_INIT;

    if (!plan || !info)
        return error_fail(err, FFA_INVALID, 0, "ffa_plan_info_get: %s is NULL",
                          plan ? "info" : "plan");
    facts.tile_m = plan->tiles.tile_m;
    facts.tile_n = plan->tiles.tile_n;
    facts.tile_count = (int32_t)plan->tiles.tile_count;
    facts.sweep_count = plan->tiles.sweep_count;
    facts.block_count = plan->tiles.block_count;
    facts.partial_blocks = plan->tiles.partial_blocks;
    facts.area = plan->tiles.area;
    facts.upload_bytes = plan->image_bytes;
    facts.backward_tile_m = plan->backward.tile_m;
    facts.backward_tile_n = plan->backward.tile_n;
    facts.backward_tile_count = (int32_t)plan->backward.tile_count;
    facts.backward_block_count = plan->backward.block_count;
    facts.backward_partial_blocks = plan->backward.partial_blocks;
    info_add_choice(&facts, plan);
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
    if (!plan->image)
        return error_fail(err, FFA_INVALID, 0,
                          "ffa_plan_upload: the plan was made with kernels of the CPU backend");
    if (!buffer || (uintptr_t)buffer % 16)
        return error_fail(err, FFA_INVALID, 0, "ffa_plan_upload: buffer is %p, not 16-byte aligned",
                          buffer);
    rc = gpu_upload_enqueue(kernels->context->gpu, buffer, plan->image, plan->image_bytes, stream,
                            err);
    if (rc == FFA_OK) {
        atomic_store(&plan->device, gpu_device_ordinal(kernels->context->gpu));
        atomic_store(&plan->buffer, buffer);
    }
    return rc;
}
