/* SPDX-License-Identifier: Apache-2.0
 *
 * The union of slices as disjoint strips, by a scan over the query rows.
 *
 * Every slice, cut to the rows where it has keys, is a strip between two lines of slope 0 or 1. At
 * one row the active strips are merged into intervals; the same pass finds `until`, the first row
 * where that picture may no longer hold: a strip begins or ends, another line becomes the lowest
 * lo or the highest hi of an interval, a gap closes, or a link that holds an interval together
 * breaks. [row, until) is one segment. `until` may come too early, never too late; segments that
 * continue the same lines are joined again.
 *
 * The trick: lines of one slope never change their order, so the active strips are kept in two
 * sorted lists, by the slope of lo, and no row sorts anything.
 *
 * Where very many slices cover the same cells, nearly all rows at which strips begin and end change
 * nothing. A scan that looks at far more strips than it finds intervals is given up. The strips are
 * then thinned: some at a time are replaced by the normal form of those. The scan begins again with
 * what is left.
 */
#include "mask/normal.h"

/* What 1 GiB of intervals holds; a mask beyond it is no mask a kernel could read. */
enum { NORMAL_INTERVALS_MAX = 1 << 26 };

/* Bands looked at before thinning is tried, a few milliseconds, and how many for each strip and
 * each interval found beyond that; strips thinned together. */
enum { WORK_MIN = 1 << 20, WORK_EACH = 64, THIN_STRIPS = 64 };

/* Row r, row_begin <= r < row_end, attends [lo_base + lo_step * r, hi_base + hi_step * r), which is
 * not empty. */
struct strip {
    int64_t lo_base, hi_base;
    int32_t row_begin, row_end;
    int32_t lo_step, hi_step;
};

struct active {
    struct strip **at; /* ascending lo_base */
    int64_t count;
};

struct scan {
    struct strip *strips; /* by row_begin, then lo_step, then lo_base */
    int64_t strip_count;
    int64_t started;         /* strips before it are active or over */
    struct active active[2]; /* by lo_step */
    int64_t row, until;
    int64_t work; /* strips looked at */
    struct normal_writer writer;
};

/* Bands of one row that overlap or touch. By slope: the lowest lo (INT64_MAX: none) and the strip
 * with the highest hi (NULL: none). */
struct group {
    int64_t lo[2];
    struct strip *top[2];
};

static const struct group group_empty = { { INT64_MAX, INT64_MAX }, { NULL, NULL } };

static int64_t strip_lo(const struct strip *strip, int64_t row)
{
    return strip->lo_base + strip->lo_step * row;
}

static int64_t strip_hi(const struct strip *strip, int64_t row)
{
    return strip->hi_base + strip->hi_step * row;
}

int64_t slice_area(const ffa_slice *slice)
{
    int64_t sq = slice->q_end - slice->q_begin;
    int64_t sk = slice->k_end - slice->k_begin;
    int64_t n, first;

    switch (slice->type) {
    case FFA_SLICE_CAUSAL:
    case FFA_SLICE_INVCAUSAL:
        /* n rows of first, first - 1, ... keys; one factor is even. */
        n = min64(sq, sk);
        first = 2 * sk - n + 1;
        return n % 2 ? n * (first / 2) : n / 2 * first;
    case FFA_SLICE_BICAUSAL:
        return sk >= sq ? (sk - sq + 1) * sq : 0;
    default:
        return sq * sk;
    }
}

bool slice_has(const ffa_slice *slice, int64_t row, int64_t key)
{
    int64_t i = row - slice->q_begin;
    int64_t lo = slice->k_begin + (slice->type & 2 ? i : 0);
    int64_t hi = slice->k_end - (slice->type & 1 ? slice->q_end - 1 - row : 0);

    return slice->q_begin <= row && row < slice->q_end && lo <= key && key < hi;
}

/* ---- slices to strips ---- */

/* False where no row has a key. */
static bool strip_from_slice(struct strip *out, const ffa_slice *slice)
{
    int64_t sq = slice->q_end - slice->q_begin;
    int64_t sk = slice->k_end - slice->k_begin;
    int64_t begin = 0, end = sq;
    bool moves_lo = slice->type & 2, moves_hi = slice->type & 1;

    if (moves_lo && moves_hi)
        end = sk >= sq ? sq : 0;
    else if (moves_hi)
        begin = max64(0, sq - sk);
    else if (moves_lo)
        end = min64(sq, sk);
    if (begin >= end || sk == 0)
        return false;

    *out = (struct strip){
        .lo_base = slice->k_begin - (moves_lo ? slice->q_begin : 0),
        .hi_base = slice->k_end - (moves_hi ? slice->q_end - 1 : 0),
        .row_begin = (int32_t)(slice->q_begin + begin),
        .row_end = (int32_t)(slice->q_begin + end),
        .lo_step = moves_lo,
        .hi_step = moves_hi,
    };
    if (end - begin == 1) { /* a slope means nothing: one form for one set of cells */
        out->lo_base = strip_lo(out, out->row_begin);
        out->hi_base = strip_hi(out, out->row_begin);
        out->lo_step = out->hi_step = 0;
    }
    return true;
}

#define COMPARE(a, b) (((a) > (b)) - ((a) < (b)))

/* A total order, so that the result does not depend on the order of the slices. */
static int strip_compare(const void *left, const void *right)
{
    const struct strip *a = left, *b = right;

    if (a->row_begin != b->row_begin)
        return COMPARE(a->row_begin, b->row_begin);
    if (a->lo_step != b->lo_step)
        return COMPARE(a->lo_step, b->lo_step);
    if (a->lo_base != b->lo_base)
        return COMPARE(a->lo_base, b->lo_base);
    if (a->row_end != b->row_end)
        return COMPARE(b->row_end, a->row_end);
    if (a->hi_step != b->hi_step)
        return COMPARE(a->hi_step, b->hi_step);
    return COMPARE(b->hi_base, a->hi_base);
}

static void strips_build(struct scan *s, const ffa_slice *slices, int64_t slice_count)
{
    bool is_sorted = true;

    for (int64_t i = 0; i < slice_count; i++) {
        struct strip *strip = &s->strips[s->strip_count];

        if (!strip_from_slice(strip, &slices[i]))
            continue;
        if (s->strip_count > 0 && strip_compare(strip - 1, strip) > 0)
            is_sorted = false;
        s->strip_count++;
    }
    if (!is_sorted)
        qsort(s->strips, (size_t)s->strip_count, sizeof *s->strips, strip_compare);
}

/* ---- the active strips ---- */

static void active_drop_ended(struct active *active, int64_t row)
{
    int64_t kept = 0;

    for (int64_t i = 0; i < active->count; i++)
        if (active->at[i]->row_end > row)
            active->at[kept++] = active->at[i];
    active->count = kept;
}

/* Merge `count` strips, sorted as the list is, from the back. */
static void active_add(struct active *active, struct strip *strips, int64_t count)
{
    int64_t old = active->count;

    active->count += count;
    for (int64_t to = active->count; count > 0;) {
        if (old > 0 && active->at[old - 1]->lo_base > strips[count - 1].lo_base)
            active->at[--to] = active->at[--old];
        else
            active->at[--to] = &strips[--count];
    }
}

/* The strips that begin at s->row: first those with a lo of slope 0, then of slope 1. */
static void scan_start_strips(struct scan *s)
{
    for (int step = 0; step < 2; step++) {
        int64_t begin = s->started;

        while (s->started < s->strip_count && s->strips[s->started].row_begin == s->row &&
               s->strips[s->started].lo_step == step)
            s->started++;
        active_add(&s->active[step], s->strips + begin, s->started - begin);
    }
}

/* ---- one row ---- */

static void scan_stop_at(struct scan *s, int64_t row)
{
    assert(row > s->row);
    s->until = min64(s->until, row);
}

/* Whether `outer` has all cells of `inner` from s->row on. */
static bool strip_covers(const struct scan *s, const struct strip *outer, const struct strip *inner)
{
    int64_t first = s->row, last = inner->row_end - 1;

    return outer->row_end > last && strip_lo(outer, first) <= strip_lo(inner, first) &&
           strip_hi(outer, first) >= strip_hi(inner, first) &&
           strip_lo(outer, last) <= strip_lo(inner, last) &&
           strip_hi(outer, last) >= strip_hi(inner, last);
}

/* The first row where strip's lo is above the hi of `top`, which came before it.
 * This one side is enough. Say a gap opens between members L and, right of it, R. If the group's
 * first strip is in L, the first one of R was linked to a top in L, and that link is broken. If it
 * is in R, its lo was the lowest and has passed one of L: group_interval stops there. */
static int64_t link_end(const struct scan *s, const struct strip *top, const struct strip *strip)
{
    int64_t margin = top ? strip_hi(top, s->row) - strip_lo(strip, s->row) : -1;

    if (margin < 0)
        return s->row;
    return strip->lo_step > top->hi_step ? s->row + margin + 1 : INT64_MAX;
}

static int64_t group_hi(const struct scan *s, const struct group *group)
{
    int64_t hi = -1;

    for (int step = 0; step < 2; step++)
        if (group->top[step])
            hi = max64(hi, strip_hi(group->top[step], s->row));
    return hi;
}

/* Add a strip whose lo is at or above all before it. A strip covered for the rest of its life is
 * ended here and now: it can change nothing. */
static void group_add(struct scan *s, struct group *group, struct strip *strip)
{
    struct strip **top = &group->top[strip->hi_step];

    if (group->top[0] || group->top[1]) {
        for (int step = 0; step < 2; step++)
            if (group->top[step] && strip_covers(s, group->top[step], strip)) {
                strip->row_end = (int32_t)s->row;
                return;
            }
        scan_stop_at(s,
                     max64(link_end(s, group->top[0], strip), link_end(s, group->top[1], strip)));
    }
    scan_stop_at(s, strip->row_end);
    group->lo[strip->lo_step] = min64(group->lo[strip->lo_step], strip_lo(strip, s->row));
    if (!*top) {
        *top = strip;
    } else if (strip->hi_base > (*top)->hi_base) {
        if (strip_covers(s, strip, *top))
            (*top)->row_end = (int32_t)s->row; /* its true end already bounds `until` */
        *top = strip;
    }
}

/* The interval of a finished group. Where two lines meet, the one that leads from here on is
 * taken; where the other one will overtake it, the segment stops. */
static struct normal_interval group_interval(struct scan *s, const struct group *group)
{
    int64_t hi[2] = { -1, -1 };
    int lo_step = group->lo[1] < group->lo[0];
    int hi_step;

    for (int step = 0; step < 2; step++)
        if (group->top[step])
            hi[step] = strip_hi(group->top[step], s->row);
    hi_step = hi[1] >= hi[0];
    if (lo_step == 1 && group->lo[0] != INT64_MAX)
        scan_stop_at(s, s->row + (group->lo[0] - group->lo[1]) + 1);
    if (hi_step == 0 && hi[1] >= 0)
        scan_stop_at(s, s->row + (hi[0] - hi[1]) + 1);
    return (struct normal_interval){ (int32_t)group->lo[lo_step], (int32_t)hi[hi_step], lo_step,
                                     hi_step };
}

/* Append the group's interval to the segment that begins at intervals[first]. */
static ffa_status group_close(struct scan *s, const struct group *group, int64_t first,
                              ffa_error *err)
{
    const struct normal *out = s->writer.out;
    const struct normal_interval interval = group_interval(s, group);

    if (out->interval_count > first) {
        const struct normal_interval *before = &out->intervals[out->interval_count - 1];

        if (before->hi_step > interval.lo_step)
            scan_stop_at(s, s->row + (interval.lo - before->hi));
    }
    return normal_add_interval(&s->writer, &interval, s->row, err);
}

/* The next active strip in order of lo at s->row, or NULL. */
static struct strip *scan_next(const struct scan *s, int64_t taken[2])
{
    struct strip *flat = taken[0] < s->active[0].count ? s->active[0].at[taken[0]] : NULL;
    struct strip *moving = taken[1] < s->active[1].count ? s->active[1].at[taken[1]] : NULL;

    if (flat && (!moving || flat->lo_base <= strip_lo(moving, s->row))) {
        taken[0]++;
        return flat;
    }
    if (moving)
        taken[1]++;
    return moving;
}

/* ---- segments ---- */

static int32_t segment_rows(const struct normal_segment *segment)
{
    return segment->row_end - segment->row_begin;
}

/* Whether one line goes on into another segment, after `rows` and for `next_rows` rows: the step
 * of the joined line, or -1. With `loose`, a line of one row has no slope of its own. */
static int32_t line_joins(int32_t at, int32_t step, int32_t rows, int32_t next, int32_t next_step,
                          int32_t next_rows, bool loose)
{
    int32_t joined = step;

    if (loose && rows == 1)
        joined = next_rows == 1 ? next - at : next_step;
    else if (!(loose && next_rows == 1) && step != next_step)
        return -1;
    if (joined < 0 || joined > 1)
        return -1;
    return (int64_t)at + (int64_t)joined * rows == next ? joined : -1;
}

/* Whether b goes on where a ends, and then: give a's intervals the joined steps and rows. */
static bool segment_join(struct normal_segment *a, const struct normal_segment *b,
                         struct normal_interval *intervals, bool loose)
{
    struct normal_interval *x = intervals + a->interval_begin;
    const struct normal_interval *y = intervals + b->interval_begin;
    int32_t rows = segment_rows(a), next_rows = segment_rows(b);

    if (a->row_end != b->row_begin || a->interval_count != b->interval_count)
        return false;
    for (int32_t i = 0; i < a->interval_count; i++)
        if (line_joins(x[i].lo, x[i].lo_step, rows, y[i].lo, y[i].lo_step, next_rows, loose) < 0 ||
            line_joins(x[i].hi, x[i].hi_step, rows, y[i].hi, y[i].hi_step, next_rows, loose) < 0)
            return false;
    for (int32_t i = 0; i < a->interval_count; i++) {
        x[i].lo_step =
            line_joins(x[i].lo, x[i].lo_step, rows, y[i].lo, y[i].lo_step, next_rows, loose);
        x[i].hi_step =
            line_joins(x[i].hi, x[i].hi_step, rows, y[i].hi, y[i].hi_step, next_rows, loose);
    }
    a->row_end = b->row_end;
    return true;
}

ffa_status normal_add_interval(struct normal_writer *writer, const struct normal_interval *interval,
                               int64_t row, ffa_error *err)
{
    struct normal *out = writer->out;

    if (out->interval_count >= NORMAL_INTERVALS_MAX)
        return error_fail(err, FFA_UNSUPPORTED, 0,
                          "the mask falls into more than %d key intervals at row %lld",
                          NORMAL_INTERVALS_MAX, (long long)row);
    if (!mem_grow((void **)&out->intervals, &writer->interval_capacity, out->interval_count + 1,
                  sizeof *out->intervals))
        return error_nomem(err, "the mask's intervals");
    out->intervals[out->interval_count++] = *interval;
    return FFA_OK;
}

ffa_status normal_add_segment(struct normal_writer *writer, int64_t row_begin, int64_t row_end,
                              int64_t first, ffa_error *err)
{
    struct normal *out = writer->out;
    const struct normal_segment segment = {
        .row_begin = (int32_t)row_begin,
        .row_end = (int32_t)row_end,
        .interval_begin = first,
        .interval_count = (int32_t)(out->interval_count - first),
    };

    if (out->segment_count > 0 &&
        segment_join(&out->segments[out->segment_count - 1], &segment, out->intervals, false)) {
        out->interval_count = first;
        return FFA_OK;
    }
    if (!mem_grow((void **)&out->segments, &writer->segment_capacity, out->segment_count + 1,
                  sizeof *out->segments))
        return error_nomem(err, "the mask's segments");
    out->segments[out->segment_count++] = segment;
    return FFA_OK;
}

/* The segment that begins at s->row. Sets s->until. */
static ffa_status scan_segment(struct scan *s, ffa_error *err)
{
    struct group group = group_empty;
    int64_t first = s->writer.out->interval_count;
    int64_t taken[2] = { 0, 0 };
    ffa_status rc = FFA_OK;

    s->until = s->started < s->strip_count ? s->strips[s->started].row_begin : INT64_MAX;
    s->work += s->active[0].count + s->active[1].count;
    for (struct strip *strip; (strip = scan_next(s, taken));) {
        if ((group.top[0] || group.top[1]) && strip_lo(strip, s->row) > group_hi(s, &group)) {
            FFA_TRY(group_close(s, &group, first, err));
            group = group_empty;
        }
        group_add(s, &group, strip);
    }
    if (group.top[0] || group.top[1]) {
        FFA_TRY(group_close(s, &group, first, err));
        FFA_TRY(normal_add_segment(&s->writer, s->row, s->until, first, err));
    }
out:
    return rc;
}

static int64_t interval_area(const struct normal_interval *interval, int64_t rows)
{
    int64_t pairs = rows % 2 ? (rows - 1) / 2 * rows : rows / 2 * (rows - 1);

    return ((int64_t)interval->hi - interval->lo) * rows +
           (interval->hi_step - interval->lo_step) * pairs;
}

static int64_t normal_area(const struct normal *normal)
{
    int64_t area = 0;

    for (int64_t i = 0; i < normal->segment_count; i++) {
        const struct normal_segment *segment = &normal->segments[i];

        for (int32_t j = 0; j < segment->interval_count; j++)
            area += interval_area(&normal->intervals[segment->interval_begin + j],
                                  segment_rows(segment));
    }
    return area;
}

void normal_complete(struct normal *normal)
{
    int64_t segments = 0, intervals = 0;

    for (int64_t i = 0; i < normal->segment_count; i++) {
        struct normal_segment segment = normal->segments[i];

        if (segments > 0 &&
            segment_join(&normal->segments[segments - 1], &segment, normal->intervals, true))
            continue;
        memmove(normal->intervals + intervals, normal->intervals + segment.interval_begin,
                (size_t)segment.interval_count * sizeof *normal->intervals);
        segment.interval_begin = intervals;
        intervals += segment.interval_count;
        normal->segments[segments++] = segment;
    }
    normal->segment_count = segments;
    normal->interval_count = intervals;
    normal->area = normal_area(normal);
}

/* Scan until the end, or until more than work_max strips were looked at and far more than there
 * are results: *is_done tells. */
static ffa_status scan_run(struct scan *s, int64_t work_max, bool *is_done, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    *is_done = false;
    if (s->strip_count > 0)
        s->row = s->strips[0].row_begin;
    while (s->started < s->strip_count || s->active[0].count + s->active[1].count > 0) {
        if (s->work > work_max &&
            s->work - work_max > WORK_EACH * (s->strip_count + s->writer.out->interval_count))
            goto out;
        scan_start_strips(s);
        FFA_TRY(scan_segment(s, err));
        s->row = s->until;
        active_drop_ended(&s->active[0], s->row);
        active_drop_ended(&s->active[1], s->row);
    }
    *is_done = true;
out:
    return rc;
}

/* ---- thinning ---- */

/* A scan ends covered strips early: some before their first row. */
static void strips_drop_empty(struct scan *s)
{
    int64_t kept = 0;

    for (int64_t i = 0; i < s->strip_count; i++)
        if (s->strips[i].row_begin < s->strips[i].row_end)
            s->strips[kept++] = s->strips[i];
    s->strip_count = kept;
}

static int64_t strips_from_normal(struct strip *out, const struct normal *normal)
{
    int64_t count = 0;

    for (int64_t i = 0; i < normal->segment_count; i++) {
        const struct normal_segment *segment = &normal->segments[i];

        for (int32_t j = 0; j < segment->interval_count; j++) {
            const struct normal_interval *at = &normal->intervals[segment->interval_begin + j];

            out[count++] = (struct strip){
                .lo_base = at->lo - (int64_t)at->lo_step * segment->row_begin,
                .hi_base = at->hi - (int64_t)at->hi_step * segment->row_begin,
                .row_begin = segment->row_begin,
                .row_end = segment->row_end,
                .lo_step = at->lo_step,
                .hi_step = at->hi_step,
            };
        }
    }
    return count;
}

/* In place of some strips, those of their normal form where these are fewer. Returns how many stand
 * at `to` then; `to` may be before `begin`. */
static ffa_status thin_part(struct scan *s, int64_t begin, int64_t count, int64_t *to,
                            ffa_error *err)
{
    struct normal part = { 0 };
    struct scan one = { .strips = s->strips + begin, .strip_count = count, .writer.out = &part };
    bool is_done;
    ffa_status rc;

    one.active[0].at = s->active[0].at;
    one.active[1].at = s->active[1].at;
    FFA_TRY(scan_run(&one, INT64_MAX, &is_done, err));
    if (part.interval_count < count) {
        *to += strips_from_normal(s->strips + *to, &part);
    } else {
        memmove(s->strips + *to, one.strips, (size_t)count * sizeof *one.strips);
        *to += count;
    }
out:
    normal_finish(&part);
    return rc;
}

/* Thin all strips; *is_thinner: by a quarter at least. Begins the scan again. */
static ffa_status scan_thin(struct scan *s, bool *is_thinner, ffa_error *err)
{
    int64_t before = s->strip_count, to = 0;
    ffa_status rc = FFA_OK;

    strips_drop_empty(s);
    for (int64_t begin = 0; begin < s->strip_count; begin += THIN_STRIPS)
        FFA_TRY(thin_part(s, begin, min64(THIN_STRIPS, s->strip_count - begin), &to, err));
    s->strip_count = to;
    strips_drop_empty(s);
    qsort(s->strips, (size_t)s->strip_count, sizeof *s->strips, strip_compare);
    *is_thinner = s->strip_count <= before / 4 * 3;

    s->started = s->work = 0;
    s->active[0].count = s->active[1].count = 0;
    s->writer.out->segment_count = s->writer.out->interval_count = 0;
out:
    return rc;
}

ffa_status normal_build_within(struct normal *out, const ffa_slice *slices, int64_t slice_count,
                               int64_t work_max, ffa_error *err)
{
    struct scan s = { .writer.out = out };
    size_t count = (size_t)slice_count;
    bool is_done = false, is_thinner = true;
    ffa_status rc = FFA_OK;

    *out = (struct normal){ 0 };
    s.strips = mem_array(count, sizeof *s.strips);
    for (int step = 0; step < 2; step++)
        s.active[step].at = mem_array(count, sizeof *s.active[step].at);
    if (!s.strips || !s.active[0].at || !s.active[1].at) {
        rc = error_nomem(err, "the mask's bands");
        goto out;
    }

    strips_build(&s, slices, slice_count);
    while (!is_done) {
        FFA_TRY(scan_run(&s, is_thinner ? work_max : INT64_MAX, &is_done, err));
        if (!is_done)
            FFA_TRY(scan_thin(&s, &is_thinner, err));
    }
    normal_complete(out);
out:
    mem_free(s.strips);
    mem_free(s.active[0].at);
    mem_free(s.active[1].at);
    if (rc != FFA_OK)
        normal_finish(out);
    return rc;
}

ffa_status normal_build(struct normal *out, const ffa_slice *slices, int64_t slice_count,
                        ffa_error *err)
{
    return normal_build_within(out, slices, slice_count, WORK_MIN, err);
}

void normal_finish(struct normal *normal)
{
    mem_free(normal->segments);
    mem_free(normal->intervals);
    *normal = (struct normal){ 0 };
}

/* ---- the invariant ---- */

/* Why the interval cannot stand after `before` (NULL: the first), or NULL. Lines: what holds at the
 * first and the last row holds between. */
static const char *interval_fault(const struct normal_interval *interval,
                                  const struct normal_interval *before, int64_t rows,
                                  int64_t seqlen_k)
{
    if ((interval->lo_step | interval->hi_step) & ~1)
        return "a step is neither 0 nor 1";
    for (int64_t i = 0; i<rows; i += rows> 1 ? rows - 1 : 1) {
        int64_t lo = interval->lo + i * interval->lo_step;
        int64_t hi = interval->hi + i * interval->hi_step;

        if (lo < 0 || hi > seqlen_k)
            return "an interval leaves the keys";
        if (lo >= hi)
            return "an interval is empty";
        if (before && before->hi + i * before->hi_step >= lo)
            return "two intervals touch";
    }
    return NULL;
}

ffa_status normal_check(const struct normal *normal, const ffa_mask_shape *shape, ffa_error *err)
{
    int64_t row = 0, interval = 0;
    const char *fault = NULL;

    for (int64_t i = 0; i < normal->segment_count; i++) {
        const struct normal_segment *segment = &normal->segments[i];

        if (segment->row_begin < row || segment->row_begin >= segment->row_end ||
            segment->row_end > shape->seqlen_q)
            fault = "its rows are not ascending and inside the mask";
        else if (segment->interval_begin != interval || segment->interval_count < 1 ||
                 segment->interval_count > normal->interval_count - interval)
            fault = "its intervals do not follow those before";
        for (int32_t j = 0; !fault && j < segment->interval_count; j++) {
            const struct normal_interval *at = &normal->intervals[interval + j];

            fault =
                interval_fault(at, j > 0 ? at - 1 : NULL, segment_rows(segment), shape->seqlen_k);
        }
        if (fault)
            return error_fail(err, FFA_BUG, 0, "normal form, segment %lld: %s", (long long)i,
                              fault);
        row = segment->row_end;
        interval += segment->interval_count;
    }
    if (interval != normal->interval_count)
        return error_fail(err, FFA_BUG, 0, "normal form: %lld intervals belong to no segment",
                          (long long)(normal->interval_count - interval));
    if (normal_area(normal) != normal->area)
        return error_fail(err, FFA_BUG, 0, "normal form: area is %lld, its segments have %lld",
                          (long long)normal->area, (long long)normal_area(normal));
    return FFA_OK;
}
