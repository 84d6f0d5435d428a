/* SPDX-License-Identifier: Apache-2.0
 *
 * normal_cut: the same cells with every interval cut where a range of keys ends. The rows of a
 * segment are taken in runs in which every bound of every part moves, or stays, throughout; a run
 * ends at the next row where a bound of an interval meets an end. Segments are not joined once they
 * are written: two parts of one row each, on both sides of an end, may look like one diagonal.
 */
#include "mask/normal.h"

struct cut {
    const struct normal *from;
    const int32_t *ends; /* [count] */
    int32_t count;
    struct normal_writer writer;
};

/* In how many rows a bound of the interval meets an end first, or leaves one; at most `most`. */
static int32_t rows_to_turn(const struct cut *cut, const struct normal_interval *at, int32_t most)
{
    for (int32_t e = 0; e < cut->count; e++) {
        const int32_t end = cut->ends[e];

        if (at->lo_step && at->lo < end)
            most = min32(most, end - at->lo);
        if (at->hi_step && at->hi < end)
            most = min32(most, end - at->hi);
        else if (at->hi_step && at->hi == end)
            most = min32(most, 1);
    }
    return most;
}

/* The parts of an interval in a run of rows, ascending. */
static ffa_status add_parts(struct cut *cut, const struct normal_interval *at, int32_t row,
                            ffa_error *err)
{
    int32_t begin = 0;
    ffa_status rc = FFA_OK;

    for (int32_t e = 0; e <= cut->count && begin < at->hi; e++) {
        const int32_t end = e < cut->count ? cut->ends[e] : INT32_MAX;
        const bool lo_moves = at->lo >= begin, hi_moves = at->hi < end;
        const struct normal_interval part = { .lo = max32(at->lo, begin),
                                              .hi = min32(at->hi, end),
                                              .lo_step = lo_moves ? at->lo_step : 0,
                                              .hi_step = hi_moves ? at->hi_step : 0 };

        if (part.lo < part.hi)
            FFA_TRY(normal_add_interval(&cut->writer, &part, row, err));
        begin = end;
    }
out:
    return rc;
}

static ffa_status cut_segment(struct cut *cut, const struct normal_segment *segment, ffa_error *err)
{
    const struct normal_interval *intervals = &cut->from->intervals[segment->interval_begin];
    struct normal *out = cut->writer.out;
    ffa_status rc = FFA_OK;

    for (int32_t row = segment->row_begin, rows; row < segment->row_end; row += rows) {
        const int64_t first = out->interval_count;

        rows = segment->row_end - row;
        for (int32_t i = 0; i < segment->interval_count; i++) {
            const struct normal_interval at =
                normal_interval_at(&intervals[i], row - segment->row_begin);

            rows = rows_to_turn(cut, &at, rows);
            FFA_TRY(add_parts(cut, &at, row, err));
        }
        FFA_TRY(normal_add_segment(&cut->writer, row, (int64_t)row + rows, first, err));
    }
out:
    return rc;
}

ffa_status normal_cut(struct normal *out, const struct normal *from, const int32_t *ends,
                      int32_t count, ffa_error *err)
{
    struct cut cut = { .from = from, .ends = ends, .count = count, .writer.out = out };
    ffa_status rc = FFA_OK;

    *out = (struct normal){ .area = from->area };
    for (int64_t s = 0; s < from->segment_count; s++)
        FFA_TRY(cut_segment(&cut, &from->segments[s], err));
out:
    if (rc != FFA_OK)
        normal_finish(out);
    return rc;
}
