/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans that a CUDA graph replays: the graph has the launches of one plan, and runs them on the
 * image of another, which was uploaded to the same buffer.
 *
 * Invariant: of two plans, one like the other, all that launches are made of is equal: kernels,
 * grids, arguments, memsets, the layout of workspaces. What depends on the mask beyond its shape is
 * in the image (tile_plan.h), but for the order of the backward pass, which decides how many parts
 * the workspace has. It is found for the tiles of the first plan, which the others share, so that
 * it is the same whichever of them is asked first, with whichever heads. And but for the heads of a
 * forward L2 group: the graph keeps those of the plan that it was captured with, and any are right
 * for any image. Where tiles are split, all of them are, so that as many rows are combined for any
 * mask.
 */
#include "attention/attention.h"

/* The largest capacity whose records the image's header can count. */
#define CAPACITY_MAX ((int64_t)1 << 35)

_Static_assert(CAPACITY_MAX / PLAN_RECORD_BYTES <= INT32_MAX, "records are counted");

static ffa_status capacity_check(const ffa_plan_opts *opts, ffa_error *err)
{
    if (opts->capacity_bytes < 0 || opts->capacity_bytes > CAPACITY_MAX)
        return error_fail(err, FFA_INVALID, 0, "plan: capacity_bytes is %lld, not in [0, %lld]",
                          (long long)opts->capacity_bytes, (long long)CAPACITY_MAX);
    return FFA_OK;
}

static ffa_status like_mask_check(const ffa_plan *like, const ffa_mask *mask, ffa_error *err)
{
    const ffa_mask_shape *shape = &like->forward.shape;

    if (ffa_mask_seqlen_q(mask) != shape->seqlen_q || ffa_mask_seqlen_k(mask) != shape->seqlen_k ||
        ffa_mask_head_count(mask) != like->heads_in_mask)
        return error_fail(
            err, FFA_INVALID, 0,
            "plan: the mask has %lld x %lld tokens and %d lists, that of `like` %lld x "
            "%lld and %d",
            (long long)ffa_mask_seqlen_q(mask), (long long)ffa_mask_seqlen_k(mask),
            (int)ffa_mask_head_count(mask), (long long)shape->seqlen_q, (long long)shape->seqlen_k,
            like->heads_in_mask);
    return FFA_OK;
}

/* Launches are of kernels that other calls made; here is what a plan knows of them. */
static ffa_status like_kernels_check(const ffa_plan *like, const ffa_kernels *kernels,
                                     ffa_error *err)
{
    const struct tile_plan *backward = &like->backward;
    const struct plan_choice *choice = &like->choice;
    const bool has_backward = backward->tile_m > 0;
    const char *differs = NULL;

    if (kernels_are_loaded(kernels) != (like->image_data != NULL))
        differs = "a backend";
    else if (like->split_heads && !kernels_take_splits(kernels))
        differs = "kernels for splits";
    else if (!kernels_forward_of(kernels_forward(kernels, like->split_heads > 0), &like->forward))
        differs = "forward tiles";
    else if (kernels->has_backward != has_backward)
        differs = "passes";
    else if (has_backward && (kernels->backward[0].tile_m != backward->tile_m ||
                              kernels->backward[0].tile_n != backward->tile_n ||
                              kernels->is_deterministic != backward->on_grid))
        differs = "backward tiles";
    else if (kernels->pack_heads != choice->pack_heads || kernels->heads_q != choice->heads_q ||
             kernels->heads_kv != choice->heads_kv)
        differs = "heads";
    if (differs)
        return error_fail(err, FFA_INVALID, 0,
                          "plan: `like` was made with other kernels: they have %s that these have "
                          "not",
                          differs);
    return FFA_OK;
}

ffa_status plan_replay_check(ffa_plan_opts *opts, const ffa_kernels *kernels, const ffa_mask *mask,
                             ffa_error *err)
{
    const ffa_plan *like = opts->like;
    ffa_status rc = FFA_OK;

    if (like && !like->capacity_bytes) {
        rc = error_fail(err, FFA_INVALID, 0, "plan: `like` was made without capacity_bytes");
        goto out;
    }
    if (like && opts->capacity_bytes && opts->capacity_bytes != like->capacity_bytes) {
        rc = error_fail(err, FFA_INVALID, 0, "plan: capacity_bytes is %lld, that of `like` %lld",
                        (long long)opts->capacity_bytes, (long long)like->capacity_bytes);
        goto out;
    }
    if (like) {
        opts->capacity_bytes = like->capacity_bytes;
        opts->flags |= like->flags;
        opts->backward_parts_max = like->choice.parts_max;
        if (opts->heads_q && like->split_heads && opts->heads_q != like->split_heads) {
            rc = error_fail(err, FFA_INVALID, 0, "plan: heads_q is %d, `like` was split for %d",
                            opts->heads_q, like->split_heads);
            goto out;
        }
        opts->heads_q = like->split_heads;
        FFA_TRY(like_mask_check(like, mask, err));
        FFA_TRY(like_kernels_check(like, kernels, err));
    }
    rc = capacity_check(opts, err);
out:
    return rc;
}

/* A copy of what backward_order_find reads. */
static ffa_status reference_create(struct plan_reference **out, const struct tile_plan *backward,
                                   ffa_error *err)
{
    struct plan_reference *reference = mem_array(1, sizeof *reference);
    ffa_status rc;

    *out = NULL;
    if (!reference)
        return error_nomem(err, "the plan's order");
    FFA_TRY(tile_copy_work(&reference->backward, backward, err));
    atomic_init(&reference->owners, 1);
    *out = reference;
    reference = NULL;
out:
    mem_free(reference);
    return rc;
}

ffa_status plan_reference_take(ffa_plan *plan, const ffa_plan *like, ffa_error *err)
{
    if (!plan->capacity_bytes || !plan->backward.tile_m)
        return FFA_OK;
    if (!like)
        return reference_create(&plan->reference, &plan->backward, err);
    plan->reference = like->reference;
    plan->backward.is_unlocked = plan->reference->backward.is_unlocked;
    atomic_fetch_add(&plan->reference->owners, 1);
    return FFA_OK;
}

void plan_reference_release(struct plan_reference *reference)
{
    if (!reference || atomic_fetch_sub(&reference->owners, 1) != 1)
        return;
    tile_finish(&reference->backward);
    mem_free(reference);
}

int64_t plan_tiles_most(const ffa_plan *plan, const struct tile_plan *tiles)
{
    const int64_t parts = tiles == &plan->forward && plan->split_heads ? plan->split_parts_max : 1;
    const int64_t owned = tile_own_length(tiles) * plan->heads_in_mask * parts;
    const int64_t records = plan->capacity_bytes / PLAN_RECORD_BYTES;

    if (!plan->capacity_bytes)
        return tiles->tile_count;
    return owned < records ? owned : records;
}

int32_t plan_blocks(const ffa_plan *plan, int64_t work, int32_t room)
{
    return !plan->capacity_bytes && work < room ? (int32_t)work : room;
}
