/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists of slices under construction.
 *
 * Everything with a window, and everything that is cut, is a region: a box of rows and keys between
 * two diagonals. region_add cuts it where a diagonal meets the box, so each piece is one slice
 * whose type says which bounds move. What a mask of so many slices will need is asked for before
 * the slices are built: a builder refuses at once, and not after it has filled the memory.
 */
#include "mask/slices.h"

/* From how many slices on growing asks first. */
enum { SLICES_LARGE = 1 << 18 };

static ffa_status slices_check(int64_t count, ffa_error *err)
{
    char what[64];

    if (count > SLICES_MAX)
        return error_fail(err, FFA_INVALID, 0, "the mask has more than %lld slices",
                          (long long)SLICES_MAX);
    if (count < SLICES_LARGE)
        return FFA_OK;
    text_copy(what, "a mask of %lld slices", (long long)count);
    return mem_check(count * ((int64_t)sizeof(ffa_slice) + MASK_SLICE_BYTES), what, err);
}

ffa_status slices_expect(struct slices *slices, int64_t more, ffa_error *err)
{
    ffa_status rc;

    if (more > SLICES_MAX) /* and the sum cannot overflow */
        more = SLICES_MAX + 1;
    FFA_TRY(slices_check(slices->count + more, err));
    if (!mem_grow((void **)&slices->at, &slices->capacity, slices->count + more,
                  sizeof *slices->at))
        rc = error_nomem(err, "the builder's slices");
out:
    return rc;
}

ffa_status slices_add(struct slices *slices, ffa_slice slice, ffa_error *err)
{
    ffa_status rc;

    if (slice.q_begin >= slice.q_end || slice.k_begin >= slice.k_end)
        return FFA_OK;
    if (slices->count >= slices->capacity || slices->count >= SLICES_MAX)
        FFA_TRY(
            slices_expect(slices, max64(1, min64(slices->count, SLICES_MAX - slices->count)), err));
    slices->at[slices->count++] = slice;
    rc = FFA_OK;
out:
    return rc;
}

ffa_status slices_to_mask(ffa_mask **out, const ffa_mask_shape *shape, struct slices *slices,
                          ffa_status rc, ffa_error *err)
{
    if (rc == FFA_OK)
        rc = ffa_mask_create(out, shape, slices->at, slices->count, err);
    mem_free(slices->at);
    return rc;
}

ffa_status slice_lists_init(struct slice_lists *lists, int32_t heads, ffa_error *err)
{
    lists->at = mem_array((size_t)heads, sizeof *lists->at);
    lists->heads = lists->at ? heads : 0;
    return lists->at ? FFA_OK : error_nomem(err, "the builder's lists");
}

static ffa_status lists_create(ffa_mask **out, const ffa_mask_shape *shape,
                               const struct slice_lists *lists, ffa_error *err)
{
    ffa_slice_list *views = mem_array((size_t)lists->heads, sizeof *views);
    ffa_status rc;

    if (!views)
        return error_nomem(err, "the builder's lists");
    for (int32_t i = 0; i < lists->heads; i++)
        views[i] = (ffa_slice_list){ lists->at[i].at, lists->at[i].count };
    if (lists->heads == 1)
        rc = ffa_mask_create(out, shape, views[0].slices, views[0].count, err);
    else
        rc = ffa_mask_create_per_head(out, shape, views, lists->heads, err);
    mem_free(views);
    return rc;
}

ffa_status slice_lists_to_mask(ffa_mask **out, const ffa_mask_shape *shape,
                               struct slice_lists *lists, ffa_status rc, ffa_error *err)
{
    if (rc == FFA_OK)
        rc = lists_create(out, shape, lists, err);
    for (int32_t i = 0; i < lists->heads; i++)
        mem_free(lists->at[i].at);
    mem_free(lists->at);
    return rc;
}

/* ---- regions ---- */

/* Rows [begin, end) of the region, between two of its bends. */
static ffa_status region_add_piece(struct slices *out, const struct region *region, int64_t begin,
                                   int64_t end, ffa_error *err)
{
    ffa_slice slice = { begin, end, region->k_begin, region->k_end, FFA_SLICE_FULL, 0 };

    if (begin >= end)
        return FFA_OK;
    if (begin + region->first >= region->k_begin) {
        slice.type |= FFA_SLICE_INVCAUSAL;
        slice.k_begin = begin + region->first;
    }
    if (end - 1 + region->last < region->k_end) {
        slice.type |= FFA_SLICE_CAUSAL;
        slice.k_end = end + region->last;
    }
    return slices_add(out, slice, err);
}

ffa_status region_add(struct slices *out, const struct region *region, ffa_error *err)
{
    /* Rows before `begin` lie left of the keys, rows from `end` on right of them. */
    int64_t begin = max64(region->q_begin, region->k_begin - region->last);
    int64_t end = min64(region->q_end, region->k_end - region->first);
    int64_t bends[2] = { region->k_begin - region->first, region->k_end - region->last };
    ffa_status rc;

    if (region->k_begin >= region->k_end || region->first > region->last)
        return FFA_OK;
    for (int i = 0; i < 2; i++) {
        int64_t bend = i == 0 ? min64(bends[0], bends[1]) : max64(bends[0], bends[1]);

        bend = min64(max64(bend, begin), end);
        FFA_TRY(region_add_piece(out, region, begin, bend, err));
        begin = max64(begin, bend);
    }
    rc = region_add_piece(out, region, begin, end, err);
out:
    return rc;
}

struct region region_from_slice(const ffa_slice *slice)
{
    struct region region = { slice->q_begin, slice->q_end, slice->k_begin,
                             slice->k_end,   -REGION_FAR,  REGION_FAR };

    if (slice->type & FFA_SLICE_INVCAUSAL)
        region.first = slice->k_begin - slice->q_begin;
    if (slice->type & FFA_SLICE_CAUSAL)
        region.last = slice->k_end - slice->q_end;
    return region;
}

struct region region_of_window(const ffa_slice *box, const ffa_window *window)
{
    struct region region = { box->q_begin, box->q_end,  box->k_begin,
                             box->k_end,   -REGION_FAR, REGION_FAR };
    int64_t diagonal = box->k_end - box->q_end; /* what is added to a row to reach its last key */

    if (window->left >= 0)
        region.first = diagonal - min64(window->left, TOKENS_MAX);
    if (window->right >= 0)
        region.last = diagonal + min64(window->right, TOKENS_MAX);
    return region;
}

/* ---- arguments ---- */

ffa_status out_clear(ffa_mask **out, ffa_error *err)
{
    if (!out)
        return error_fail(err, FFA_INVALID, 0, "out is NULL");
    *out = NULL;
    return FFA_OK;
}

ffa_status window_check(const ffa_window *window, ffa_error *err)
{
    if (!window)
        return error_fail(err, FFA_INVALID, 0, "window is NULL");
    if (window->left < -1)
        return error_fail(err, FFA_INVALID, 0, "window left is %lld, less than -1 (unlimited)",
                          (long long)window->left);
    if (window->right < -1)
        return error_fail(err, FFA_INVALID, 0, "window right is %lld, less than -1 (unlimited)",
                          (long long)window->right);
    return FFA_OK;
}

ffa_status count_check(int64_t value, int64_t least, const char *name, ffa_error *err)
{
    if (value < least)
        return error_fail(err, FFA_INVALID, 0, "%s is %lld, less than %lld", name, (long long)value,
                          (long long)least);
    return FFA_OK;
}

ffa_status boundaries_check(const struct boundaries *cu, int64_t count, const char *name,
                            const char *count_name, ffa_error *err)
{
    int64_t before = 0;

    if (!cu->wide && !cu->narrow)
        return error_fail(err, FFA_INVALID, 0, "%s is NULL", name);
    if (cu->wide && cu->narrow)
        return error_fail(err, FFA_INVALID, 0, "%s and %s32 are both given, not one of them", name,
                          name);
    if (count < 1 || count > TOKENS_MAX)
        return error_fail(err, FFA_INVALID, 0, "%s is %lld, not in [1, %lld]", count_name,
                          (long long)count, (long long)TOKENS_MAX);
    if (boundary_at(cu, 0) != 0)
        return error_fail(err, FFA_INVALID, 0, "%s[0] is %lld, not 0", name,
                          (long long)boundary_at(cu, 0));
    for (int64_t i = 1; i <= count; i++) {
        const int64_t at = boundary_at(cu, i);

        if (at < before)
            return error_fail(err, FFA_INVALID, 0, "%s[%lld] is %lld, less than %s[%lld], %lld",
                              name, (long long)i, (long long)at, name, (long long)i - 1,
                              (long long)before);
        before = at;
    }
    if (before < 1 || before > TOKENS_MAX)
        return error_fail(err, FFA_INVALID, 0, "%s[%lld], the tokens, is %lld, not in [1, %lld]",
                          name, (long long)count, (long long)before, (long long)TOKENS_MAX);
    return FFA_OK;
}
