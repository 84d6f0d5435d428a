/* SPDX-License-Identifier: Apache-2.0
 *
 * The mask object: checks slices, keeps them, and builds their normal form at once, so that a mask
 * that exists is a mask every plan can use.
 */
#include "mask/mask.h"

#include <stdio.h>

const char *slice_type_name(int32_t type)
{
    static const char *const names[] = { "full", "causal", "invcausal", "bicausal" };

    return type >= 0 && type < (int32_t)(sizeof names / sizeof *names) ? names[type] : NULL;
}

ffa_status mask_check_shape(const ffa_mask_shape *shape, ffa_error *err)
{
    const char *names[] = { "seqlen_q", "seqlen_k" };
    int64_t tokens[2];

    if (!shape)
        return error_fail(err, FFA_INVALID, 0, "shape is NULL");
    tokens[0] = shape->seqlen_q;
    tokens[1] = shape->seqlen_k;
    for (int i = 0; i < 2; i++)
        if (tokens[i] < 1 || tokens[i] > TOKENS_MAX)
            return error_fail(err, FFA_INVALID, 0, "%s is %lld, not in [1, %lld]", names[i],
                              (long long)tokens[i], (long long)TOKENS_MAX);
    return FFA_OK;
}

/* Where a slice came from, for messages: "slice 7" or "head 2, slice 7". */
struct place {
    int32_t head; /* -1: the mask has one list */
    int64_t slice;
};

static ffa_status slice_fail(const struct place *place, ffa_error *err, const char *what)
{
    if (place->head >= 0)
        return error_fail(err, FFA_INVALID, 0, "head %d, slice %lld: %s", place->head,
                          (long long)place->slice, what);
    return error_fail(err, FFA_INVALID, 0, "slice %lld: %s", (long long)place->slice, what);
}

/* axis: 'q' or 'k'. */
static ffa_status range_check(int64_t begin, int64_t end, char axis, int64_t tokens,
                              const struct place *place, ffa_error *err)
{
    char what[128];

    if (begin < 0)
        text_copy(what, "%c_begin is %lld, not in [0, %lld]", axis, (long long)begin,
                  (long long)tokens);
    else if (end > tokens)
        text_copy(what, "%c_end is %lld, not in [0, %lld] (seqlen_%c)", axis, (long long)end,
                  (long long)tokens, axis);
    else if (end < begin)
        text_copy(what, "%c_end is %lld, less than %c_begin, %lld", axis, (long long)end, axis,
                  (long long)begin);
    else
        return FFA_OK;
    return slice_fail(place, err, what);
}

static ffa_status slice_check(const ffa_slice *slice, const ffa_mask_shape *shape,
                              const struct place *place, ffa_error *err)
{
    ffa_status rc;
    char what[64];

    FFA_TRY(range_check(slice->q_begin, slice->q_end, 'q', shape->seqlen_q, place, err));
    FFA_TRY(range_check(slice->k_begin, slice->k_end, 'k', shape->seqlen_k, place, err));
    if (!slice_type_name(slice->type)) {
        text_copy(what, "type is %d, not in [0, 3]", slice->type);
        rc = slice_fail(place, err, what);
    }
out:
    return rc;
}

static ffa_status list_check(const ffa_slice_list *list, const ffa_mask_shape *shape, int32_t head,
                             ffa_error *err)
{
    ffa_status rc = FFA_OK;
    char where[24] = "";

    if (head >= 0)
        text_copy(where, "head %d, ", head);
    if (list->count < 0 || list->count > SLICES_MAX)
        return error_fail(err, FFA_INVALID, 0, "%sslice count is %lld, not in [0, %lld]", where,
                          (long long)list->count, (long long)SLICES_MAX);
    if (!list->slices && list->count > 0)
        return error_fail(err, FFA_INVALID, 0, "%sslices is NULL, but their count is %lld", where,
                          (long long)list->count);
    for (int64_t i = 0; i < list->count; i++)
        FFA_TRY(slice_check(&list->slices[i], shape, &(struct place){ head, i }, err));
out:
    return rc;
}

static ffa_status list_init(struct mask_list *out, const ffa_slice_list *list, ffa_error *err)
{
    out->slices = mem_array((size_t)list->count, sizeof *out->slices);
    if (!out->slices)
        return error_nomem(err, "the mask's slices");
    for (int64_t i = 0; i < list->count; i++) {
        out->slices[i] = list->slices[i];
        out->slices[i].pad_ = 0;
    }
    out->count = list->count;
    return normal_build(&out->normal, out->slices, out->count, err);
}

/* Refuse what cannot fit before any of it is built. */
static ffa_status lists_fit(const ffa_slice_list *lists, int32_t list_count, ffa_error *err)
{
    int64_t count = 0;
    char what[64];

    for (int32_t i = 0; i < list_count; i++)
        count += lists[i].count;
    text_copy(what, "a mask of %lld slices", (long long)count);
    return mem_check(count * MASK_SLICE_BYTES, what, err);
}

/* is_shared: one list for all heads, not named in messages. */
static ffa_status mask_create(ffa_mask **out, const ffa_mask_shape *shape,
                              const ffa_slice_list *lists, int32_t list_count, bool is_shared,
                              ffa_error *err)
{
    ffa_mask *mask = NULL;
    ffa_status rc;

    FFA_TRY(mask_check_shape(shape, err));
    for (int32_t i = 0; i < list_count; i++)
        FFA_TRY(list_check(&lists[i], shape, is_shared ? -1 : i, err));
    FFA_TRY(lists_fit(lists, list_count, err));

    mask = mem_array(1, sizeof *mask);
    if (mask)
        mask->lists = mem_array((size_t)list_count, sizeof *mask->lists);
    if (!mask || !mask->lists) {
        rc = error_nomem(err, "the mask");
        goto out;
    }
    mask->shape = *shape;
    mask->head_count = list_count;
    for (int32_t i = 0; i < list_count; i++) {
        FFA_TRY(list_init(&mask->lists[i], &lists[i], err));
        assert(normal_check(&mask->lists[i].normal, shape, NULL) == FFA_OK);
    }
    *out = mask;
    mask = NULL;
out:
    ffa_mask_destroy(mask);
    return rc;
}

ffa_status ffa_mask_create(ffa_mask **out, const ffa_mask_shape *shape, const ffa_slice *slices,
                           int64_t slice_count, ffa_error *err)
{
    ffa_slice_list list = { slices, slice_count };

    if (!out)
        return error_fail(err, FFA_INVALID, 0, "out is NULL");
    *out = NULL;
    return mask_create(out, shape, &list, 1, true, err);
}

ffa_status ffa_mask_create_per_head(ffa_mask **out, const ffa_mask_shape *shape,
                                    const ffa_slice_list *lists, int32_t heads_kv, ffa_error *err)
{
    if (!out)
        return error_fail(err, FFA_INVALID, 0, "out is NULL");
    *out = NULL;
    if (!lists)
        return error_fail(err, FFA_INVALID, 0, "lists is NULL");
    if (heads_kv < 1 || heads_kv > HEADS_KV_MAX)
        return error_fail(err, FFA_INVALID, 0, "heads_kv is %d, not in [1, %d]", heads_kv,
                          HEADS_KV_MAX);
    return mask_create(out, shape, lists, heads_kv, false, err);
}

void ffa_mask_destroy(ffa_mask *mask)
{
    if (!mask)
        return;
    for (int32_t i = 0; mask->lists && i < mask->head_count; i++) {
        mem_free(mask->lists[i].slices);
        normal_finish(&mask->lists[i].normal);
    }
    mem_free(mask->lists);
    mem_free(mask);
}

/* ---- facts: of a NULL mask, or a head it has not, 0 ---- */

int64_t ffa_mask_seqlen_q(const ffa_mask *mask)
{
    return mask ? mask->shape.seqlen_q : 0;
}

int64_t ffa_mask_seqlen_k(const ffa_mask *mask)
{
    return mask ? mask->shape.seqlen_k : 0;
}

int32_t ffa_mask_head_count(const ffa_mask *mask)
{
    return mask ? mask->head_count : 0;
}

ffa_slice_list ffa_mask_slices(const ffa_mask *mask, int32_t head)
{
    ffa_slice_list none = { NULL, 0 };

    if (!mask || head < 0 || head >= mask->head_count)
        return none;
    return (ffa_slice_list){ mask->lists[head].slices, mask->lists[head].count };
}

int64_t area_add(int64_t a, int64_t b)
{
    return a > INT64_MAX - b ? INT64_MAX : a + b;
}

int64_t ffa_mask_area(const ffa_mask *mask, int32_t head)
{
    int64_t area = 0;

    if (!mask || head < -1 || head >= mask->head_count)
        return 0;
    if (head >= 0)
        return mask->lists[head].normal.area;
    for (int32_t i = 0; i < mask->head_count; i++)
        area = area_add(area, mask->lists[i].normal.area);
    return area;
}
