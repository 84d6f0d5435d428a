/* SPDX-License-Identifier: Apache-2.0
 *
 * spans_cut: a band, cut to the spans of a buffer. Invariant: the parts are disjoint and have the
 * band's cells whose keys are in the buffer. Trick: spans are packed, so those of which every row
 * attends all keys are one box of the buffer, found by two searches; only spans that an end or a
 * diagonal of the band crosses are looked at one by one.
 */
#include "parallel/plan/spans.h"

void spans_add(struct spans *spans, struct span span)
{
    struct span *last = spans->count > 0 ? &spans->at[spans->count - 1] : NULL;

    if (last && last->end == span.begin)
        last->end = span.end;
    else
        spans->at[spans->count++] = span;
}

/* The first span, from `low` on, that ends behind the key. */
static int64_t find_behind(const struct spans *spans, int64_t low, int64_t key)
{
    int64_t high = spans->count;

    while (low < high) {
        const int64_t middle = low + (high - low) / 2;

        if (spans->at[middle].end <= key)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static ffa_status add_box(struct bands *out, const struct band *band, int64_t begin, int64_t end,
                          ffa_error *err)
{
    struct band box = { .q_begin = band->q_begin,
                        .q_end = band->q_end,
                        .k_begin = begin,
                        .k_end = end,
                        .lo = BAND_LO_NONE,
                        .hi = BAND_HI_NONE };

    (void)band_shrink(&box); /* no box is empty */
    return bands_add(out, &box, err);
}

ffa_status spans_cut(struct bands *out, const struct band *band, const struct spans *spans,
                     ffa_error *err)
{
    /* Every row attends the keys [from, to). */
    const int64_t from = max64(band->k_begin, band->q_end - 1 + band->lo);
    const int64_t to = min64(band->k_end, band->q_begin + band->hi + 1);
    ffa_status rc = FFA_OK;

    for (int64_t i = find_behind(spans, 0, band->k_begin);
         i < spans->count && spans->at[i].begin < band->k_end; i++) {
        const struct span *span = &spans->at[i];
        struct band cut;

        if (span->begin >= from && span->end <= to) {
            i = find_behind(spans, i, to) - 1;
            FFA_TRY(add_box(out, band, span->row,
                            spans->at[i].row + spans->at[i].end - spans->at[i].begin, err));
            continue;
        }
        if (!band_cut_k(&cut, band, span->begin, span->end))
            continue;
        cut = band_translate(&cut, 0, span->row - span->begin);
        FFA_TRY(bands_add(out, &cut, err));
    }
out:
    return rc;
}
