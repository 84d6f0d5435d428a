/* SPDX-License-Identifier: Apache-2.0
 *
 * What `ffa mask check` reports: exact counts, and an example of a cell covered twice.
 *
 * Nothing is counted cell by cell. Slices overlap where their areas sum to more than the union's;
 * the first slice that overlaps an earlier one is found by halving, and their common cell from the
 * few rows where two bands can be closest.
 */
#include "mask/mask.h"

static int64_t areas_sum(const ffa_slice *slices, int64_t count)
{
    int64_t sum = 0;

    for (int64_t i = 0; i < count; i++)
        sum = area_add(sum, slice_area(&slices[i]));
    return sum;
}

static int64_t empty_rows(const struct normal *normal, int64_t seqlen_q)
{
    for (int64_t i = 0; i < normal->segment_count; i++)
        seqlen_q -= normal->segments[i].row_end - normal->segments[i].row_begin;
    return seqlen_q;
}

struct range {
    int64_t begin, end;
};

static int range_compare(const void *left, const void *right)
{
    const struct range *a = left, *b = right;

    return (a->begin > b->begin) - (a->begin < b->begin);
}

/* A slice that attends anything attends each of its keys from some row. */
static ffa_status unattended_keys(int64_t *out, const struct mask_list *list, int64_t seqlen_k,
                                  ffa_error *err)
{
    struct range *ranges = mem_array((size_t)list->count, sizeof *ranges);
    int64_t count = 0, end = 0, unattended = 0;

    if (!ranges)
        return error_nomem(err, "the key ranges of the mask");
    for (int64_t i = 0; i < list->count; i++)
        if (slice_area(&list->slices[i]) > 0)
            ranges[count++] = (struct range){ list->slices[i].k_begin, list->slices[i].k_end };
    qsort(ranges, (size_t)count, sizeof *ranges, range_compare);
    for (int64_t i = 0; i < count; i++) {
        if (ranges[i].begin > end)
            unattended += ranges[i].begin - end;
        if (ranges[i].end > end)
            end = ranges[i].end;
    }
    *out = unattended + (seqlen_k - end);
    mem_free(ranges);
    return FFA_OK;
}

/* ---- a cell covered twice ---- */

static int64_t slice_lo(const ffa_slice *slice, int64_t row)
{
    return slice->k_begin + (slice->type & FFA_SLICE_INVCAUSAL ? row - slice->q_begin : 0);
}

static int64_t slice_hi(const ffa_slice *slice, int64_t row)
{
    return slice->k_end - (slice->type & FFA_SLICE_CAUSAL ? slice->q_end - 1 - row : 0);
}

/* The common keys of a row are min(hi) - max(lo) many: concave over the rows, straight between the
 * rows where the two lo or the two hi lines meet. So it is largest at one of those or at an end. */
static bool slices_meet(const ffa_slice *a, const ffa_slice *b, int64_t *row_out, int64_t *key_out)
{
    int64_t first = a->q_begin > b->q_begin ? a->q_begin : b->q_begin;
    int64_t last = (a->q_end < b->q_end ? a->q_end : b->q_end) - 1;
    int64_t lo_gap = slice_lo(b, first) - slice_lo(a, first);
    int64_t hi_gap = slice_hi(b, first) - slice_hi(a, first);
    int64_t rows[] = { first, first + (lo_gap < 0 ? -lo_gap : lo_gap),
                       first + (hi_gap < 0 ? -hi_gap : hi_gap), last };

    for (int i = 0; i < 4; i++) {
        int64_t row = rows[i];
        int64_t lo, hi;

        if (row < first || row > last)
            continue;
        lo = slice_lo(a, row) > slice_lo(b, row) ? slice_lo(a, row) : slice_lo(b, row);
        hi = slice_hi(a, row) < slice_hi(b, row) ? slice_hi(a, row) : slice_hi(b, row);
        if (lo < hi) {
            *row_out = row;
            *key_out = lo;
            return true;
        }
    }
    return false;
}

static ffa_status prefix_overlaps(bool *out, const ffa_slice *slices, int64_t count, ffa_error *err)
{
    struct normal normal;
    ffa_status rc;

    FFA_TRY(normal_build(&normal, slices, count, err));
    *out = normal.area < areas_sum(slices, count);
    normal_finish(&normal);
out:
    return rc;
}

/* The first slice that overlaps one before it, in a list that has one. */
static ffa_status first_overlapping(int64_t *out, const struct mask_list *list, ffa_error *err)
{
    int64_t apart = 1, meeting = list->count; /* prefixes of this many slices */
    ffa_status rc = FFA_OK;

    while (meeting - apart > 1) {
        int64_t middle = apart + (meeting - apart) / 2;
        bool overlaps;

        FFA_TRY(prefix_overlaps(&overlaps, list->slices, middle, err));
        if (overlaps)
            meeting = middle;
        else
            apart = middle;
    }
    *out = meeting - 1;
out:
    return rc;
}

static ffa_status overlap_find(ffa_mask_report *report, const struct mask_list *list, int32_t head,
                               ffa_error *err)
{
    int64_t later;
    ffa_status rc;

    FFA_TRY(first_overlapping(&later, list, err));
    for (int64_t i = 0; i < later; i++)
        if (slices_meet(&list->slices[i], &list->slices[later], &report->overlap_row,
                        &report->overlap_key)) {
            report->overlap_head = head;
            return FFA_OK;
        }
    rc = error_fail(err, FFA_BUG, 0, "slice %lld overlaps no slice before it", (long long)later);
out:
    return rc;
}

static ffa_status list_report(ffa_mask_report *report, const struct mask_list *list, int32_t head,
                              const ffa_mask_shape *shape, ffa_error *err)
{
    int64_t area_of_slices = areas_sum(list->slices, list->count);
    int64_t keys = 0;
    ffa_status rc;

    FFA_TRY(unattended_keys(&keys, list, shape->seqlen_k, err));
    report->area = area_add(report->area, list->normal.area);
    report->area_of_slices = area_add(report->area_of_slices, area_of_slices);
    report->empty_rows += empty_rows(&list->normal, shape->seqlen_q);
    report->unattended_keys += keys;
    for (int64_t i = 0; i < list->count; i++)
        report->empty_slices += slice_area(&list->slices[i]) == 0;
    if (report->overlap_head < 0 && area_of_slices > list->normal.area)
        FFA_TRY(overlap_find(report, list, head, err));
out:
    return rc;
}

ffa_status ffa_mask_check(const ffa_mask *mask, ffa_mask_report *report, ffa_error *err)
{
    ffa_mask_report got = { .overlap_head = -1, .overlap_row = -1, .overlap_key = -1 };
    ffa_status rc;

    if (!report)
        return error_fail(err, FFA_INVALID, 0, "report is NULL");
    FFA_TRY(opts_export(report, &got, sizeof got, err));
    if (!mask) {
        rc = error_fail(err, FFA_INVALID, 0, "mask is NULL");
        goto out;
    }
    for (int32_t i = 0; i < mask->head_count; i++)
        FFA_TRY(list_report(&got, &mask->lists[i], i, &mask->shape, err));
    rc = opts_export(report, &got, sizeof got, err);
out:
    return rc;
}
