/* SPDX-License-Identifier: Apache-2.0
 *
 * Which keys each part of the query axis attends, from bands and never from cells. Invariant: the
 * ranges of a part are ascending and apart. Trick: bands ascend in queries and the keys of any
 * consecutive rows of a band are one range, so two walks over bands and parts (count, then place)
 * give all ranges without a search.
 */
#include "parallel/dispatch/needs.h"

/* The last part that begins at or before the row. */
int64_t parts_find(const struct parts *parts, int64_t row)
{
    int64_t low = 0, high = parts->count;

    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;

        if (parts->at[middle] <= row)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* ---- lists of ranges ---- */

static int range_compare(const void *left, const void *right)
{
    const struct range *a = left, *b = right;

    if (a->begin != b->begin)
        return a->begin < b->begin ? -1 : 1;
    return (a->end > b->end) - (a->end < b->end);
}

int64_t ranges_join(struct range *ranges, int64_t count)
{
    bool is_sorted = true;
    int64_t kept = 0;

    for (int64_t i = 1; i < count; i++)
        is_sorted = is_sorted && ranges[i - 1].begin <= ranges[i].begin;
    if (!is_sorted)
        qsort(ranges, (size_t)count, sizeof *ranges, range_compare);
    for (int64_t i = 0; i < count; i++) {
        if (kept > 0 && ranges[i].begin <= ranges[kept - 1].end)
            ranges[kept - 1].end = max64(ranges[kept - 1].end, ranges[i].end);
        else
            ranges[kept++] = ranges[i];
    }
    return kept;
}

int64_t ranges_without(struct range *out, const struct range *a, int64_t a_count,
                       const struct range *b, int64_t b_count)
{
    int64_t count = 0, next = 0;

    for (int64_t i = 0; i < a_count; i++) {
        int64_t begin = a[i].begin;

        while (next < b_count && b[next].end <= begin)
            next++;
        for (int64_t j = next; j < b_count && b[j].begin < a[i].end; j++) {
            if (begin < b[j].begin)
                out[count++] = (struct range){ begin, b[j].begin };
            begin = max64(begin, b[j].end);
        }
        if (begin < a[i].end)
            out[count++] = (struct range){ begin, a[i].end };
    }
    return count;
}

/* ---- bands cut at the ends of parts ---- */

/* Keys of the rows [begin, end) of a band, which has some there: one range. */
static struct range keys_of(const struct band *band, int64_t begin, int64_t end)
{
    begin = max64(begin, band->q_begin);
    end = min64(end, band->q_end);
    return (struct range){ max64(band->k_begin, begin + band->lo),
                           min64(band->k_end, end + band->hi) };
}

static void count_pieces(int64_t *pieces, const struct bands *bands, const struct parts *parts)
{
    for (int64_t b = 0, part = 0; b < bands->count; b++) {
        const struct band *band = &bands->at[b];

        while (parts->at[part + 1] <= band->q_begin)
            part++;
        for (int64_t p = part; p < parts->count && parts->at[p] < band->q_end; p++)
            pieces[p]++;
    }
}

/* cursor[p]: where the next piece of part p goes. */
static void place_pieces(struct range *ranges, int64_t *cursor, const struct bands *bands,
                         const struct parts *parts)
{
    for (int64_t b = 0, part = 0; b < bands->count; b++) {
        const struct band *band = &bands->at[b];

        while (parts->at[part + 1] <= band->q_begin)
            part++;
        for (int64_t p = part; p < parts->count && parts->at[p] < band->q_end; p++) {
            const struct range keys = keys_of(band, parts->at[p], parts->at[p + 1]);

            ranges[cursor[p]++] = keys;
        }
    }
}

ffa_status needs_build(struct needs *out, const struct bands *lists, int64_t list_count,
                       const struct parts *parts, ffa_error *err)
{
    int64_t *cursor = mem_array((size_t)parts->count + 1, sizeof *cursor);
    int64_t total = 0, kept = 0;
    ffa_status rc = FFA_OK;

    *out = (struct needs){ .begin = mem_array((size_t)parts->count + 1, sizeof *out->begin),
                           .count = parts->count };
    if (!cursor || !out->begin) {
        rc = error_nomem(err, "the needs of chunks");
        goto out;
    }
    for (int64_t l = 0; l < list_count; l++)
        count_pieces(cursor, &lists[l], parts);
    for (int64_t p = 0; p < parts->count; p++) {
        const int64_t pieces = cursor[p];

        out->begin[p] = cursor[p] = total;
        total += pieces;
    }
    out->begin[parts->count] = total;
    out->ranges = mem_array((size_t)total, sizeof *out->ranges);
    if (!out->ranges) {
        rc = error_nomem(err, "the needs of chunks");
        goto out;
    }
    for (int64_t l = 0; l < list_count; l++)
        place_pieces(out->ranges, cursor, &lists[l], parts);
    for (int64_t p = 0; p < parts->count; p++) {
        const int64_t count =
            ranges_join(out->ranges + out->begin[p], out->begin[p + 1] - out->begin[p]);

        memmove(out->ranges + kept, out->ranges + out->begin[p],
                (size_t)count * sizeof *out->ranges);
        out->begin[p] = kept;
        kept += count;
    }
    out->begin[parts->count] = kept;
out:
    mem_free(cursor);
    if (rc != FFA_OK)
        needs_finish(out);
    return rc;
}

void needs_finish(struct needs *needs)
{
    mem_free(needs->begin);
    mem_free(needs->ranges);
    *needs = (struct needs){ 0 };
}

bool needs_add_area(int64_t *area, const struct bands *bands, const struct parts *parts,
                    int64_t weight)
{
    for (int64_t b = 0, part = 0; b < bands->count; b++) {
        while (parts->at[part + 1] <= bands->at[b].q_begin)
            part++;
        for (int64_t p = part; p < parts->count && parts->at[p] < bands->at[b].q_end; p++) {
            struct band cut;
            int64_t cells;

            (void)band_cut_q(&cut, &bands->at[b], parts->at[p], parts->at[p + 1]);
            if (__builtin_mul_overflow(band_area(&cut), weight, &cells) ||
                __builtin_add_overflow(area[p], cells, &area[p]) || area[p] > INT64_MAX / 2)
                return false;
        }
    }
    return true;
}
