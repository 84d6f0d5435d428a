/* SPDX-License-Identifier: Apache-2.0
 *
 * The union of slices as disjoint bands, by a sweep over the query rows.
 *
 * Every slice, cut to the rows where it has keys, is a band between two lines of slope 0 or 1. At
 * one row the active bands are merged into intervals; the same pass finds `until`, the first row
 * where that picture may no longer hold: a band begins or ends, another line becomes the lowest
 * lo or the highest hi of an interval, a gap closes, or a link that holds an interval together
 * breaks. [row, until) is one segment. `until` may come too early, never too late; segments that
 * continue the same lines are joined again.
 *
 * The trick: lines of one slope never change their order, so the active bands are kept in two
 * sorted lists, by the slope of lo, and no row sorts anything.
 *
 * Where very many slices cover the same cells, nearly all rows at which bands begin and end change
 * nothing. A sweep that looks at far more bands than it finds intervals is given up, the bands are
 * thinned, some at a time, to the normal form of those, and the sweep is begun again.
 */
#include "mask/normal.h"

/* What 1 GiB of intervals holds; a mask beyond it is no mask a kernel could read. */
enum { NORMAL_INTERVALS_MAX = 1 << 26 };

/* Bands looked at before thinning is tried, a few milliseconds, and how many for each band and each
 * interval found beyond that; bands thinned together. */
enum { WORK_MIN = 1 << 20, WORK_EACH = 64, THIN_BANDS = 64 };

/* Row r, row_begin <= r < row_end, attends [lo_base + lo_step * r, hi_base + hi_step * r), which is
 * not empty. */
struct band {
    int64_t lo_base, hi_base;
    int32_t row_begin, row_end;
    int32_t lo_step, hi_step;
};

struct active {
    struct band **at; /* ascending lo_base */
    int64_t count;
};

struct sweep {
    struct band *bands; /* by row_begin, then lo_step, then lo_base */
    int64_t band_count;
    int64_t started;         /* bands before it are active or over */
    struct active active[2]; /* by lo_step */
    int64_t row, until;
    int64_t work; /* bands looked at */
    struct normal_writer writer;
};

/* Bands of one row that overlap or touch. By slope: the lowest lo (INT64_MAX: none) and the band
 * with the highest hi (NULL: none). */
struct group {
    int64_t lo[2];
    struct band *top[2];
};

static const struct group group_empty = { { INT64_MAX, INT64_MAX }, { NULL, NULL } };

static int64_t band_lo(const struct band *band, int64_t row)
{
    return band->lo_base + band->lo_step * row;
}

static int64_t band_hi(const struct band *band, int64_t row)
{
    return band->hi_base + band->hi_step * row;
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

/* ---- slices to bands ---- */

/* False where no row has a key. */
static bool band_from_slice(struct band *out, const ffa_slice *slice)
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

    *out = (struct band){
        .lo_base = slice->k_begin - (moves_lo ? slice->q_begin : 0),
        .hi_base = slice->k_end - (moves_hi ? slice->q_end - 1 : 0),
        .row_begin = (int32_t)(slice->q_begin + begin),
        .row_end = (int32_t)(slice->q_begin + end),
        .lo_step = moves_lo,
        .hi_step = moves_hi,
    };
    if (end - begin == 1) { /* a slope means nothing: one form for one set of cells */
        out->lo_base = band_lo(out, out->row_begin);
        out->hi_base = band_hi(out, out->row_begin);
        out->lo_step = out->hi_step = 0;
    }
    return true;
}

#define COMPARE(a, b) (((a) > (b)) - ((a) < (b)))

/* A total order, so that the result does not depend on the order of the slices. */
static int band_compare(const void *left, const void *right)
{
    const struct band *a = left, *b = right;

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

static void bands_build(struct sweep *s, const ffa_slice *slices, int64_t slice_count)
{
    bool is_sorted = true;

    for (int64_t i = 0; i < slice_count; i++) {
        struct band *band = &s->bands[s->band_count];

        if (!band_from_slice(band, &slices[i]))
            continue;
        if (s->band_count > 0 && band_compare(band - 1, band) > 0)
            is_sorted = false;
        s->band_count++;
    }
    if (!is_sorted)
        qsort(s->bands, (size_t)s->band_count, sizeof *s->bands, band_compare);
}

/* ---- the active bands ---- */

static void active_drop_ended(struct active *active, int64_t row)
{
    int64_t kept = 0;

    for (int64_t i = 0; i < active->count; i++)
        if (active->at[i]->row_end > row)
            active->at[kept++] = active->at[i];
    active->count = kept;
}

/* Merge `count` bands, sorted as the list is, from the back. */
static void active_add(struct active *active, struct band *bands, int64_t count)
{
    int64_t old = active->count;

    active->count += count;
    for (int64_t to = active->count; count > 0;) {
        if (old > 0 && active->at[old - 1]->lo_base > bands[count - 1].lo_base)
            active->at[--to] = active->at[--old];
        else
            active->at[--to] = &bands[--count];
    }
}

/* The bands that begin at s->row: first those with a lo of slope 0, then of slope 1. */
static void sweep_start_bands(struct sweep *s)
{
    for (int step = 0; step < 2; step++) {
        int64_t begin = s->started;

        while (s->started < s->band_count && s->bands[s->started].row_begin == s->row &&
               s->bands[s->started].lo_step == step)
            s->started++;
        active_add(&s->active[step], s->bands + begin, s->started - begin);
    }
}

/* ---- one row ---- */

static void sweep_stop_at(struct sweep *s, int64_t row)
{
    assert(row > s->row);
    s->until = min64(s->until, row);
}

/* Whether `outer` has all cells of `inner` from s->row on. */
static bool band_covers(const struct sweep *s, const struct band *outer, const struct band *inner)
{
    int64_t first = s->row, last = inner->row_end - 1;

    return outer->row_end > last && band_lo(outer, first) <= band_lo(inner, first) &&
           band_hi(outer, first) >= band_hi(inner, first) &&
           band_lo(outer, last) <= band_lo(inner, last) &&
           band_hi(outer, last) >= band_hi(inner, last);
}

/* The first row where band's lo is above the hi of `top`, which came before it.
 * This one side is enough. Say a gap opens between members L and, right of it, R. If the group's
 * first band is in L, the first one of R was linked to a top in L, and that link is broken. If it
 * is in R, its lo was the lowest and has passed one of L: group_interval stops there. */
static int64_t link_end(const struct sweep *s, const struct band *top, const struct band *band)
{
    int64_t margin = top ? band_hi(top, s->row) - band_lo(band, s->row) : -1;

    if (margin < 0)
        return s->row;
    return band->lo_step > top->hi_step ? s->row + margin + 1 : INT64_MAX;
}

static int64_t group_hi(const struct sweep *s, const struct group *group)
{
    int64_t hi = -1;

    for (int step = 0; step < 2; step++)
        if (group->top[step])
            hi = max64(hi, band_hi(group->top[step], s->row));
    return hi;
}

/* Add a band whose lo is at or above all before it. A band covered for the rest of its life is
 * ended here and now: it can change nothing. */
static void group_add(struct sweep *s, struct group *group, struct band *band)
{
    struct band **top = &group->top[band->hi_step];

    if (group->top[0] || group->top[1]) {
        for (int step = 0; step < 2; step++)
            if (group->top[step] && band_covers(s, group->top[step], band)) {
                band->row_end = (int32_t)s->row;
                return;
            }
        sweep_stop_at(s, max64(link_end(s, group->top[0], band), link_end(s, group->top[1], band)));
    }
    sweep_stop_at(s, band->row_end);
    group->lo[band->lo_step] = min64(group->lo[band->lo_step], band_lo(band, s->row));
    if (!*top) {
        *top = band;
    } else if (band->hi_base > (*top)->hi_base) {
        if (band_covers(s, band, *top))
            (*top)->row_end = (int32_t)s->row; /* its true end already bounds `until` */
        *top = band;
    }
}

/* The interval of a finished group. Where two lines meet, the one that leads from here on is
 * taken; where the other one will overtake it, the segment stops. */
static struct normal_interval group_interval(struct sweep *s, const struct group *group)
{
    int64_t hi[2] = { -1, -1 };
    int lo_step = group->lo[1] < group->lo[0];
    int hi_step;

    for (int step = 0; step < 2; step++)
        if (group->top[step])
            hi[step] = band_hi(group->top[step], s->row);
    hi_step = hi[1] >= hi[0];
    if (lo_step == 1 && group->lo[0] != INT64_MAX)
        sweep_stop_at(s, s->row + (group->lo[0] - group->lo[1]) + 1);
    if (hi_step == 0 && hi[1] >= 0)
        sweep_stop_at(s, s->row + (hi[0] - hi[1]) + 1);
    return (struct normal_interval){ (int32_t)group->lo[lo_step], (int32_t)hi[hi_step], lo_step,
                                     hi_step };
}

/* Append the group's interval to the segment that begins at intervals[first]. */
static ffa_status group_close(struct sweep *s, const struct group *group, int64_t first,
                              ffa_error *err)
{
    const struct normal *out = s->writer.out;
    const struct normal_interval interval = group_interval(s, group);

    if (out->interval_count > first) {
        const struct normal_interval *before = &out->intervals[out->interval_count - 1];

        if (before->hi_step > interval.lo_step)
            sweep_stop_at(s, s->row + (interval.lo - before->hi));
    }
    return normal_add_interval(&s->writer, &interval, s->row, err);
}

/* The next active band in order of lo at s->row, or NULL. */
static struct band *sweep_next(const struct sweep *s, int64_t taken[2])
{
    struct band *flat = taken[0] < s->active[0].count ? s->active[0].at[taken[0]] : NULL;
    struct band *moving = taken[1] < s->active[1].count ? s->active[1].at[taken[1]] : NULL;

    if (flat && (!moving || flat->lo_base <= band_lo(moving, s->row))) {
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
static ffa_status sweep_segment(struct sweep *s, ffa_error *err)
{
    struct group group = group_empty;
    int64_t first = s->writer.out->interval_count;
    int64_t taken[2] = { 0, 0 };
    ffa_status rc = FFA_OK;

    s->until = s->started < s->band_count ? s->bands[s->started].row_begin : INT64_MAX;
    s->work += s->active[0].count + s->active[1].count;
    for (struct band *band; (band = sweep_next(s, taken));) {
        if ((group.top[0] || group.top[1]) && band_lo(band, s->row) > group_hi(s, &group)) {
            FFA_TRY(group_close(s, &group, first, err));
            group = group_empty;
        }
        group_add(s, &group, band);
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

void normal_settle(struct normal *normal)
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

/* Sweep until the end, or until more than work_max bands were looked at and far more than there are
 * results: *is_done tells. */
static ffa_status sweep_run(struct sweep *s, int64_t work_max, bool *is_done, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    *is_done = false;
    if (s->band_count > 0)
        s->row = s->bands[0].row_begin;
    while (s->started < s->band_count || s->active[0].count + s->active[1].count > 0) {
        if (s->work > work_max &&
            s->work - work_max > WORK_EACH * (s->band_count + s->writer.out->interval_count))
            goto out;
        sweep_start_bands(s);
        FFA_TRY(sweep_segment(s, err));
        s->row = s->until;
        active_drop_ended(&s->active[0], s->row);
        active_drop_ended(&s->active[1], s->row);
    }
    *is_done = true;
out:
    return rc;
}

/* ---- thinning ---- */

/* A sweep ends covered bands early: some before their first row. */
static void bands_drop_empty(struct sweep *s)
{
    int64_t kept = 0;

    for (int64_t i = 0; i < s->band_count; i++)
        if (s->bands[i].row_begin < s->bands[i].row_end)
            s->bands[kept++] = s->bands[i];
    s->band_count = kept;
}

static int64_t bands_from_normal(struct band *out, const struct normal *normal)
{
    int64_t count = 0;

    for (int64_t i = 0; i < normal->segment_count; i++) {
        const struct normal_segment *segment = &normal->segments[i];

        for (int32_t j = 0; j < segment->interval_count; j++) {
            const struct normal_interval *at = &normal->intervals[segment->interval_begin + j];

            out[count++] = (struct band){
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

/* In place of some bands, those of their normal form where these are fewer. Returns how many stand
 * at `to` then; `to` may be before `begin`. */
static ffa_status thin_part(struct sweep *s, int64_t begin, int64_t count, int64_t *to,
                            ffa_error *err)
{
    struct normal part = { 0 };
    struct sweep one = { .bands = s->bands + begin, .band_count = count, .writer.out = &part };
    bool is_done;
    ffa_status rc;

    one.active[0].at = s->active[0].at;
    one.active[1].at = s->active[1].at;
    FFA_TRY(sweep_run(&one, INT64_MAX, &is_done, err));
    if (part.interval_count < count) {
        *to += bands_from_normal(s->bands + *to, &part);
    } else {
        memmove(s->bands + *to, one.bands, (size_t)count * sizeof *one.bands);
        *to += count;
    }
out:
    normal_finish(&part);
    return rc;
}

/* Thin all bands; *is_thinner: by a quarter at least. Begins the sweep again. */
static ffa_status sweep_thin(struct sweep *s, bool *is_thinner, ffa_error *err)
{
    int64_t before = s->band_count, to = 0;
    ffa_status rc = FFA_OK;

    bands_drop_empty(s);
    for (int64_t begin = 0; begin < s->band_count; begin += THIN_BANDS)
        FFA_TRY(thin_part(s, begin, min64(THIN_BANDS, s->band_count - begin), &to, err));
    s->band_count = to;
    bands_drop_empty(s);
    qsort(s->bands, (size_t)s->band_count, sizeof *s->bands, band_compare);
    *is_thinner = s->band_count <= before / 4 * 3;

    s->started = s->work = 0;
    s->active[0].count = s->active[1].count = 0;
    s->writer.out->segment_count = s->writer.out->interval_count = 0;
out:
    return rc;
}

ffa_status normal_build_within(struct normal *out, const ffa_slice *slices, int64_t slice_count,
                               int64_t work_max, ffa_error *err)
{
    struct sweep s = { .writer.out = out };
    size_t count = (size_t)slice_count;
    bool is_done = false, is_thinner = true;
    ffa_status rc = FFA_OK;

    *out = (struct normal){ 0 };
    s.bands = mem_array(count, sizeof *s.bands);
    for (int step = 0; step < 2; step++)
        s.active[step].at = mem_array(count, sizeof *s.active[step].at);
    if (!s.bands || !s.active[0].at || !s.active[1].at) {
        rc = error_nomem(err, "the mask's bands");
        goto out;
    }

    bands_build(&s, slices, slice_count);
    while (!is_done) {
        FFA_TRY(sweep_run(&s, is_thinner ? work_max : INT64_MAX, &is_done, err));
        if (!is_done)
            FFA_TRY(sweep_thin(&s, &is_thinner, err));
    }
    normal_settle(out);
out:
    mem_free(s.bands);
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
