/* SPDX-License-Identifier: Apache-2.0
 *
 * Masks from masks: concatenation, crop, shift, union.
 *
 * Every slice is moved, or cut to a box and moved, by itself: a slice is a region, and a region cut
 * to a box is a region. Nothing compares slices with one another, so the cost is linear. A mask
 * with one list for all heads gives that list to every head.
 */
#include "mask/slices.h"

/* The list of a mask that head `head` uses. */
static const struct mask_list *list_of(const ffa_mask *mask, int32_t head)
{
    return &mask->lists[mask->head_count == 1 ? 0 : head];
}

/* The masks' number of lists: all that have more than one have the same. */
static ffa_status common_heads(const ffa_mask *const *masks, int64_t count, int32_t *heads,
                               ffa_error *err)
{
    int64_t from = 0;

    *heads = 1;
    if (!masks)
        return error_fail(err, FFA_INVALID, 0, "masks is NULL");
    if (count < 1)
        return error_fail(err, FFA_INVALID, 0, "count is %lld, less than 1", (long long)count);
    for (int64_t i = 0; i < count; i++) {
        if (!masks[i])
            return error_fail(err, FFA_INVALID, 0, "masks[%lld] is NULL", (long long)i);
        if (masks[i]->head_count == 1)
            continue;
        if (*heads != 1 && masks[i]->head_count != *heads)
            return error_fail(err, FFA_INVALID, 0,
                              "masks[%lld] has slices of %d kv heads, masks[%lld] of %d",
                              (long long)i, masks[i]->head_count, (long long)from, *heads);
        *heads = masks[i]->head_count;
        from = i;
    }
    return FFA_OK;
}

/* Room for the slices of all masks, a list a head; the memory of all of them is asked for. */
static ffa_status expect_all(struct slice_lists *lists, const ffa_mask *const *masks, int64_t count,
                             ffa_error *err)
{
    int64_t all = 0;
    ffa_status rc;

    for (int32_t head = 0; head < lists->heads; head++)
        for (int64_t i = 0; i < count; i++)
            all = area_add(all, list_of(masks[i], head)->count);
    FFA_TRY(
        mem_check(min64(all, INT64_MAX / 1024) * ((int64_t)sizeof(ffa_slice) + MASK_SLICE_BYTES),
                  "the mask of these masks", err));
    for (int32_t head = 0; head < lists->heads; head++) {
        int64_t own = 0;

        for (int64_t i = 0; i < count; i++)
            own = area_add(own, list_of(masks[i], head)->count);
        FFA_TRY(slices_expect(&lists->at[head], own, err));
    }
out:
    return rc;
}

/* ---- cutting and moving ---- */

/* From one mask's coordinates to another's: what is kept of the first, and where it goes. */
struct move {
    ffa_mask_box kept;
    ffa_mask_offset offset;
};

static bool is_inside(const ffa_slice *slice, const ffa_mask_box *box)
{
    return box->q_begin <= slice->q_begin && slice->q_end <= box->q_end &&
           box->k_begin <= slice->k_begin && slice->k_end <= box->k_end;
}

static ffa_slice slice_moved(const ffa_slice *slice, const ffa_mask_offset *offset)
{
    return (ffa_slice){ slice->q_begin + offset->q,
                        slice->q_end + offset->q,
                        slice->k_begin + offset->k,
                        slice->k_end + offset->k,
                        slice->type,
                        0 };
}

/* Append what is kept of a slice: the slice itself where nothing is cut off. */
static ffa_status slice_move(struct slices *out, const ffa_slice *slice, const struct move *move,
                             ffa_error *err)
{
    const ffa_slice moved = slice_moved(slice, &move->offset);
    struct region region;

    if (is_inside(slice, &move->kept))
        return slices_add(out, moved, err);
    region = region_from_slice(&moved);
    region.q_begin = max64(region.q_begin, move->kept.q_begin + move->offset.q);
    region.q_end = min64(region.q_end, move->kept.q_end + move->offset.q);
    region.k_begin = max64(region.k_begin, move->kept.k_begin + move->offset.k);
    region.k_end = min64(region.k_end, move->kept.k_end + move->offset.k);
    return region_add(out, &region, err);
}

static ffa_status mask_move(ffa_mask **out, const ffa_mask *mask, const struct move *move,
                            const ffa_mask_shape *shape, ffa_error *err)
{
    struct slice_lists lists = { NULL, 0 };
    ffa_status rc;

    FFA_TRY(slice_lists_init(&lists, mask->head_count, err));
    for (int32_t head = 0; head < lists.heads; head++) {
        const struct mask_list *from = list_of(mask, head);

        for (int64_t i = 0; i < from->count; i++)
            FFA_TRY(slice_move(&lists.at[head], &from->slices[i], move, err));
    }
out:
    return slice_lists_to_mask(out, shape, &lists, rc, err);
}

static ffa_status axis_check(int64_t begin, int64_t end, int64_t tokens, char axis, ffa_error *err)
{
    if (begin < 0 || begin >= tokens)
        return error_fail(err, FFA_INVALID, 0, "%c_begin is %lld, not in [0, %lld)", axis,
                          (long long)begin, (long long)tokens);
    if (end <= begin || end > tokens)
        return error_fail(err, FFA_INVALID, 0, "%c_end is %lld, not in (%lld, %lld]", axis,
                          (long long)end, (long long)begin, (long long)tokens);
    return FFA_OK;
}

ffa_status ffa_mask_crop(ffa_mask **out, const ffa_mask *mask, const ffa_mask_box *box,
                         ffa_error *err)
{
    ffa_mask_shape shape;
    struct move move;
    ffa_status rc;

    FFA_TRY(out_clear(out, err));
    if (!mask || !box) {
        rc = error_fail(err, FFA_INVALID, 0, "%s is NULL", mask ? "box" : "mask");
        goto out;
    }
    FFA_TRY(axis_check(box->q_begin, box->q_end, mask->shape.seqlen_q, 'q', err));
    FFA_TRY(axis_check(box->k_begin, box->k_end, mask->shape.seqlen_k, 'k', err));
    shape = (ffa_mask_shape){ box->q_end - box->q_begin, box->k_end - box->k_begin };
    move = (struct move){ *box, { -box->q_begin, -box->k_begin } };
    rc = mask_move(out, mask, &move, &shape, err);
out:
    return rc;
}

static ffa_status offset_check(int64_t offset, char axis, ffa_error *err)
{
    if (offset < -TOKENS_MAX || offset > TOKENS_MAX)
        return error_fail(err, FFA_INVALID, 0, "offset %c is %lld, not in [-%lld, %lld]", axis,
                          (long long)offset, (long long)TOKENS_MAX, (long long)TOKENS_MAX);
    return FFA_OK;
}

ffa_status ffa_mask_shift(ffa_mask **out, const ffa_mask *mask, const ffa_mask_offset *offset,
                          const ffa_mask_shape *shape, ffa_error *err)
{
    struct move move;
    ffa_status rc;

    FFA_TRY(out_clear(out, err));
    if (!mask || !offset) {
        rc = error_fail(err, FFA_INVALID, 0, "%s is NULL", mask ? "offset" : "mask");
        goto out;
    }
    FFA_TRY(mask_check_shape(shape, err));
    FFA_TRY(offset_check(offset->q, 'q', err));
    FFA_TRY(offset_check(offset->k, 'k', err));
    move = (struct move){ { -offset->q, shape->seqlen_q - offset->q, -offset->k,
                            shape->seqlen_k - offset->k },
                          *offset };
    rc = mask_move(out, mask, &move, shape, err);
out:
    return rc;
}

/* ---- several masks ---- */

static ffa_status concat_shape(const ffa_mask *const *masks, int64_t count, ffa_mask_shape *shape,
                               ffa_error *err)
{
    *shape = (ffa_mask_shape){ 0, 0 };
    for (int64_t i = 0; i < count; i++) {
        shape->seqlen_q += masks[i]->shape.seqlen_q;
        shape->seqlen_k += masks[i]->shape.seqlen_k;
        if (shape->seqlen_q > TOKENS_MAX || shape->seqlen_k > TOKENS_MAX)
            return error_fail(err, FFA_INVALID, 0,
                              "masks[0] to masks[%lld] have more than %lld %s in all", (long long)i,
                              (long long)TOKENS_MAX,
                              shape->seqlen_q > TOKENS_MAX ? "queries" : "keys");
    }
    return FFA_OK;
}

/* Append the list of every mask, each behind the one before where `is_diagonal`. */
static ffa_status lists_append(struct slices *out, const ffa_mask *const *masks, int64_t count,
                               int32_t head, bool is_diagonal, ffa_error *err)
{
    ffa_mask_offset offset = { 0, 0 };
    ffa_status rc = FFA_OK;

    for (int64_t i = 0; i < count; i++) {
        const struct mask_list *from = list_of(masks[i], head);

        for (int64_t j = 0; j < from->count; j++)
            FFA_TRY(slices_add(out, slice_moved(&from->slices[j], &offset), err));
        if (is_diagonal) {
            offset.q += masks[i]->shape.seqlen_q;
            offset.k += masks[i]->shape.seqlen_k;
        }
    }
out:
    return rc;
}

/* heads: of common_heads. */
static ffa_status masks_join(ffa_mask **out, const ffa_mask *const *masks, int64_t count,
                             int32_t heads, bool is_diagonal, const ffa_mask_shape *shape,
                             ffa_error *err)
{
    struct slice_lists lists = { NULL, 0 };
    ffa_status rc;

    FFA_TRY(slice_lists_init(&lists, heads, err));
    FFA_TRY(expect_all(&lists, masks, count, err));
    for (int32_t head = 0; head < heads; head++)
        FFA_TRY(lists_append(&lists.at[head], masks, count, head, is_diagonal, err));
out:
    return slice_lists_to_mask(out, shape, &lists, rc, err);
}

ffa_status ffa_mask_concat(ffa_mask **out, const ffa_mask *const *masks, int64_t count,
                           ffa_error *err)
{
    ffa_mask_shape shape;
    int32_t heads;
    ffa_status rc;

    FFA_TRY(out_clear(out, err));
    FFA_TRY(common_heads(masks, count, &heads, err));
    FFA_TRY(concat_shape(masks, count, &shape, err));
    rc = masks_join(out, masks, count, heads, true, &shape, err);
out:
    return rc;
}

ffa_status ffa_mask_union(ffa_mask **out, const ffa_mask *const *masks, int64_t count,
                          ffa_error *err)
{
    int32_t heads;
    ffa_status rc;

    FFA_TRY(out_clear(out, err));
    FFA_TRY(common_heads(masks, count, &heads, err));
    for (int64_t i = 1; i < count; i++) {
        const ffa_mask_shape *first = &masks[0]->shape, *own = &masks[i]->shape;

        if (own->seqlen_q == first->seqlen_q && own->seqlen_k == first->seqlen_k)
            continue;
        rc = error_fail(err, FFA_INVALID, 0,
                        "masks[%lld] is %lld queries x %lld keys, masks[0] %lld x %lld",
                        (long long)i, (long long)own->seqlen_q, (long long)own->seqlen_k,
                        (long long)first->seqlen_q, (long long)first->seqlen_k);
        goto out;
    }
    rc = masks_join(out, masks, count, heads, false, &masks[0]->shape, err);
out:
    return rc;
}
