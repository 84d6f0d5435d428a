/* SPDX-License-Identifier: Apache-2.0
 *
 * Bands: cut, moved and counted in O(1). Invariant: a function that makes a band makes it tight, so
 * an empty band is seen at once and areas of parts add up to the area of the whole. Tricks: a band
 * is a system of bounds on q, k and k - q, and tightening it is one step of a shortest-path
 * closure; its area is a difference of triangular numbers, taken modulo 2^64.
 */
#include "mask/band.h"

/* Three differences (q - 0, k - 0, k - q), each bound implied by the other two at most once: the
 * closure of a system of three nodes is one step. */
bool band_shrink(struct band *band)
{
    const struct band in = *band;

    band->q_begin = max64(in.q_begin, in.k_begin - in.hi);
    band->q_end = min64(in.q_end, in.k_end - in.lo);
    band->k_begin = max64(in.k_begin, in.q_begin + in.lo);
    band->k_end = min64(in.k_end, in.q_end + in.hi);
    band->lo = max64(in.lo, in.k_begin - (in.q_end - 1));
    band->hi = min64(in.hi, in.k_end - 1 - in.q_begin);
    return in.q_begin < in.q_end && in.k_begin < in.k_end && band->q_begin < band->q_end &&
           band->k_begin < band->k_end && band->lo <= band->hi;
}

bool band_from_slice(struct band *out, const ffa_slice *slice)
{
    *out = (struct band){
        .q_begin = slice->q_begin,
        .q_end = slice->q_end,
        .k_begin = slice->k_begin,
        .k_end = slice->k_end,
        .lo = slice->type & 2 ? slice->k_begin - slice->q_begin : BAND_LO_NONE,
        .hi = slice->type & 1 ? slice->k_end - slice->q_end : BAND_HI_NONE,
    };
    return band_shrink(out);
}

bool band_cut_q(struct band *out, const struct band *in, int64_t begin, int64_t end)
{
    struct band part = *in;

    part.q_begin = max64(in->q_begin, begin);
    part.q_end = min64(in->q_end, end);
    *out = part;
    return band_shrink(out);
}

bool band_cut_k(struct band *out, const struct band *in, int64_t begin, int64_t end)
{
    struct band part = *in;

    part.k_begin = max64(in->k_begin, begin);
    part.k_end = min64(in->k_end, end);
    *out = part;
    return band_shrink(out);
}

struct band band_translate(const struct band *band, int64_t q, int64_t k)
{
    return (struct band){ band->q_begin + q, band->q_end + q,  band->k_begin + k,
                          band->k_end + k,   band->lo + k - q, band->hi + k - q };
}

/* ---- area ---- */

/* 0 + 1 + ... + (x - 1). Below 2^64 for x < 2^32; sums of it are taken modulo 2^64, and what is
 * asked for is below 2^62. */
static uint64_t triangle(int64_t x)
{
    const uint64_t n = x > 0 ? (uint64_t)x : 0;

    return n % 2 ? n * ((n - 1) / 2) : n ? n / 2 * (n - 1) : 0;
}

/* Cells of the box with k - q <= d: the sum over its rows of (a, a + 1, ...) cut to [0, keys]. */
static uint64_t cells_upto(const struct band *box, int64_t d)
{
    const int64_t a = box->q_begin + d + 1 - box->k_begin;
    const int64_t rows = box->q_end - box->q_begin;
    const int64_t keys = box->k_end - box->k_begin;

    return triangle(a + rows) - triangle(a) - triangle(a + rows - keys) + triangle(a - keys);
}

int64_t band_area(const struct band *band)
{
    struct band tight = *band;

    if (!band_shrink(&tight))
        return 0;
    return (int64_t)(cells_upto(&tight, tight.hi) - cells_upto(&tight, tight.lo - 1));
}

/* ---- lists ---- */

ffa_status bands_add(struct bands *bands, const struct band *band, ffa_error *err)
{
    if (!mem_grow((void **)&bands->at, &bands->capacity, bands->count + 1, sizeof *bands->at))
        return error_nomem(err, "bands");
    bands->at[bands->count++] = *band;
    return FFA_OK;
}

/* Row r attends [lo + lo_step * (r - row_begin), hi + hi_step * (r - row_begin)). */
static struct band band_of_interval(const struct normal_segment *rows,
                                    const struct normal_interval *keys)
{
    const int32_t last = rows->row_end - rows->row_begin - 1;
    struct band band = {
        .q_begin = rows->row_begin,
        .q_end = rows->row_end,
        .k_begin = keys->lo,
        .k_end = normal_interval_at(keys, last).hi,
        .lo = keys->lo_step ? (int64_t)keys->lo - rows->row_begin : BAND_LO_NONE,
        .hi = keys->hi_step ? (int64_t)keys->hi - 1 - rows->row_begin : BAND_HI_NONE,
    };

    (void)band_shrink(&band); /* no interval of a normal form is empty */
    return band;
}

ffa_status bands_add_normal(struct bands *bands, const struct normal *normal, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    if (!mem_grow((void **)&bands->at, &bands->capacity, bands->count + normal->interval_count,
                  sizeof *bands->at))
        return error_nomem(err, "bands");
    for (int64_t s = 0; s < normal->segment_count; s++) {
        const struct normal_segment *rows = &normal->segments[s];

        for (int32_t i = 0; i < rows->interval_count; i++) {
            const struct band band =
                band_of_interval(rows, &normal->intervals[rows->interval_begin + i]);

            FFA_TRY(bands_add(bands, &band, err));
        }
    }
out:
    return rc;
}

void bands_finish(struct bands *bands)
{
    mem_free(bands->at);
    *bands = (struct bands){ 0 };
}

int64_t bands_find(const struct bands *bands, int64_t row)
{
    int64_t low = 0, high = bands->count;

    while (low < high) {
        const int64_t middle = low + (high - low) / 2;

        if (bands->at[middle].q_end <= row)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}
