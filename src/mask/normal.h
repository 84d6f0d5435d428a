/* SPDX-License-Identifier: Apache-2.0
 *
 * The normal form of a mask: its cells as disjoint intervals of keys. Every plan begins with it.
 *
 * The query axis is cut into segments; within one, every row attends the same number of key
 * intervals, whose bounds move by 0 or 1 key a row. Intervals of a row are non-empty, ascending,
 * and apart: hi of one < lo of the next (touching ones are merged). So each attended cell lies in
 * exactly one interval, whatever the slices overlapped. Rows in no segment attend nothing.
 */
#ifndef FFA_MASK_NORMAL_H
#define FFA_MASK_NORMAL_H

#include "base/base.h"
#include <ffa/mask.h>

/* Row r of the segment attends [lo + lo_step * (r - row_begin), hi + hi_step * (r - row_begin)). */
struct normal_interval {
    int32_t lo, hi;           /* at the segment's first row */
    int32_t lo_step, hi_step; /* 0 or 1 */
};

struct normal_segment {
    int32_t row_begin, row_end;
    int64_t interval_begin; /* index into intervals */
    int32_t interval_count; /* >= 1 */
    int32_t pad_;
};

struct normal {
    struct normal_segment *segments; /* ascending, disjoint */
    int64_t segment_count;
    struct normal_interval *intervals;
    int64_t interval_count;
    int64_t area; /* attended cells */
};

/* The interval as it is `rows` rows further on, inside its segment. */
static inline struct normal_interval normal_interval_at(const struct normal_interval *interval,
                                                        int32_t rows)
{
    struct normal_interval at = *interval;

    at.lo += at.lo_step * rows;
    at.hi += at.hi_step * rows;
    return at;
}

/* slices: already checked against the shape. The result does not depend on their order.
 * Fails with FFA_NOMEM, FFA_UNSUPPORTED (more than 2^26 intervals). */
ffa_status normal_build(struct normal *out, const ffa_slice *slices, int64_t slice_count,
                        ffa_error *err);
/* The same, thinning the slices after work_max steps: for tests, which cannot wait for what
 * normal_build allows. */
ffa_status normal_build_within(struct normal *out, const ffa_slice *slices, int64_t slice_count,
                               int64_t work_max, ffa_error *err);
void normal_finish(struct normal *normal);

/* The normal form of the mask with its sides exchanged: key k of `from` is row k of *out, and row r
 * its key r. Costs about what it writes.
 * Fails with FFA_NOMEM, FFA_UNSUPPORTED (as normal_build). */
ffa_status normal_transpose(struct normal *out, const struct normal *from, ffa_error *err);

/* The same cells with intervals cut at keys: none has keys on both sides of one of ends [count],
 * which ascend. In *out, and nowhere else, intervals of a row may touch, at an end. For
 * normal_finish. Fails with FFA_NOMEM, FFA_UNSUPPORTED (as normal_build). */
ffa_status normal_cut(struct normal *out, const struct normal *from, const int32_t *ends,
                      int32_t count, ffa_error *err);

/* The invariant above, for tests and after build in debug; FFA_BUG names the segment. */
ffa_status normal_check(const struct normal *normal, const ffa_mask_shape *shape, ffa_error *err);

/* ---- for those who write one, segment by segment ---- */

struct normal_writer {
    struct normal *out;
    int64_t segment_capacity, interval_capacity;
};

/* Append one interval of the segment that begins at `row`. */
ffa_status normal_add_interval(struct normal_writer *writer, const struct normal_interval *interval,
                               int64_t row, ffa_error *err);
/* Append the segment [row_begin, row_end) over the intervals from `first`, or let the last segment
 * go on in it. */
ffa_status normal_add_segment(struct normal_writer *writer, int64_t row_begin, int64_t row_end,
                              int64_t first, ffa_error *err);
/* When all segments are written: join segments of one row, whose slopes are free, to their
 * neighbours, and sum the area. */
void normal_complete(struct normal *normal);

/* Exact number of cells of one slice, closed form. */
int64_t slice_area(const ffa_slice *slice);
/* Whether the slice attends cell (row, key): the one rule of mask.h. */
bool slice_has(const ffa_slice *slice, int64_t row, int64_t key);

#endif
