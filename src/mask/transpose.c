/* SPDX-License-Identifier: Apache-2.0
 *
 * The normal form with rows and keys exchanged.
 *
 * Down a key, cells switch on and off. Where they switch is a curve over the keys, made of lines
 * (toggles): flat where a segment begins or ends, sloped where a bound of a segment moves. At one
 * key, lines of "on" and "off" alternate, so the nth of each bound the nth interval of rows, and
 * no two lines of a kind cross: between keys where one begins or ends, the picture is a segment.
 */
#include "mask/normal.h"

/* Keys [key_begin, key_end) switch at row + step * (key - key_begin). */
struct toggle {
    int32_t key_begin, key_end;
    int32_t row, step; /* 0 or 1 */
};

/* Lines of one kind. */
struct toggles {
    struct toggle *at; /* by key_begin, then row, once all are found */
    int64_t count, capacity;
    int64_t started; /* lines before it are active or over */
    struct toggle *active;
    int64_t active_count, active_capacity;
};

struct transpose {
    const struct normal *from;
    struct toggles on, off;
    struct normal_writer writer;
};

/* The intervals of one row. */
struct row {
    const struct normal_interval *at;
    int32_t count;
    int32_t skip; /* rows since that of `at` */
};

static int32_t row_lo(const struct row *row, int32_t i)
{
    return normal_interval_at(&row->at[i], row->skip).lo;
}

static int32_t row_hi(const struct row *row, int32_t i)
{
    return normal_interval_at(&row->at[i], row->skip).hi;
}

/* ---- finding the lines ---- */

/* Whether the line goes on in `next`; one of a single key has any slope. */
static bool toggle_join(struct toggle *line, const struct toggle *next)
{
    const int32_t keys = line->key_end - line->key_begin;
    const bool one = keys == 1, next_one = next->key_end - next->key_begin == 1;
    const int32_t step = !one ? line->step : !next_one ? next->step : next->row - line->row;

    if (line->key_end != next->key_begin || (step != 0 && step != 1) ||
        next->row != line->row + step * keys || (!next_one && next->step != step))
        return false;
    line->key_end = next->key_end;
    line->step = step;
    return true;
}

static ffa_status toggle_add(struct toggles *toggles, int32_t key_begin, int32_t key_end,
                             int32_t row, int32_t step, ffa_error *err)
{
    const struct toggle toggle = { key_begin, key_end, row, step };

    assert(key_begin < key_end);
    if (toggles->count > 0 && toggle_join(&toggles->at[toggles->count - 1], &toggle))
        return FFA_OK;
    if (!mem_grow((void **)&toggles->at, &toggles->capacity, toggles->count + 1,
                  sizeof *toggles->at))
        return error_nomem(err, "the mask's columns");
    toggles->at[toggles->count++] = toggle;
    return FFA_OK;
}

/* Keys of a that are not in b switch at `row`. */
static ffa_status add_difference(struct toggles *toggles, const struct row *a, const struct row *b,
                                 int32_t row, ffa_error *err)
{
    int32_t first = 0;
    ffa_status rc = FFA_OK;

    for (int32_t i = 0; i < a->count; i++) {
        const int32_t end = row_hi(a, i);
        int32_t key = row_lo(a, i);

        while (first < b->count && row_hi(b, first) <= key)
            first++;
        for (int32_t j = first; j < b->count && row_lo(b, j) < end; j++) {
            if (key < row_lo(b, j))
                FFA_TRY(toggle_add(toggles, key, row_lo(b, j), row, 0, err));
            key = row_hi(b, j);
        }
        if (key < end)
            FFA_TRY(toggle_add(toggles, key, end, row, 0, err));
    }
out:
    return rc;
}

/* The keys that bounds inside the segment pass. */
static ffa_status add_slopes(struct transpose *t, const struct normal_segment *segment,
                             ffa_error *err)
{
    const int32_t moves = segment->row_end - segment->row_begin - 1;
    ffa_status rc = FFA_OK;

    for (int32_t i = 0; moves > 0 && i < segment->interval_count; i++) {
        const struct normal_interval *at = &t->from->intervals[segment->interval_begin + i];

        if (at->lo_step)
            FFA_TRY(toggle_add(&t->off, at->lo, at->lo + moves, segment->row_begin + 1, 1, err));
        if (at->hi_step)
            FFA_TRY(toggle_add(&t->on, at->hi, at->hi + moves, segment->row_begin + 1, 1, err));
    }
out:
    return rc;
}

static ffa_status find_toggles(struct transpose *t, ffa_error *err)
{
    const struct row none = { NULL, 0, 0 };
    struct row before = none;
    int32_t end = 0; /* of the segment before */
    ffa_status rc = FFA_OK;

    for (int64_t s = 0; s < t->from->segment_count; s++) {
        const struct normal_segment *segment = &t->from->segments[s];
        struct row row = { &t->from->intervals[segment->interval_begin], segment->interval_count,
                           0 };

        if (end < segment->row_begin) {
            FFA_TRY(add_difference(&t->off, &before, &none, end, err));
            before = none;
        }
        FFA_TRY(add_difference(&t->off, &before, &row, segment->row_begin, err));
        FFA_TRY(add_difference(&t->on, &row, &before, segment->row_begin, err));
        FFA_TRY(add_slopes(t, segment, err));
        row.skip = segment->row_end - segment->row_begin - 1;
        before = row;
        end = segment->row_end;
    }
    FFA_TRY(add_difference(&t->off, &before, &none, end, err));
out:
    return rc;
}

/* ---- key by key ---- */

static int toggle_compare(const void *left, const void *right)
{
    const struct toggle *a = left, *b = right;

    return a->key_begin != b->key_begin
               ? (a->key_begin > b->key_begin) - (a->key_begin < b->key_begin)
               : (a->row > b->row) - (a->row < b->row);
}

static void toggles_sort(struct toggles *toggles)
{
    for (int64_t i = 1; i < toggles->count; i++)
        if (toggle_compare(&toggles->at[i - 1], &toggles->at[i]) > 0) {
            qsort(toggles->at, (size_t)toggles->count, sizeof *toggles->at, toggle_compare);
            return;
        }
}

static int32_t row_at(const struct toggle *line, int64_t key)
{
    return line->row + line->step * (int32_t)(key - line->key_begin);
}

static int64_t next_key(const struct toggles *toggles)
{
    return toggles->started < toggles->count ? toggles->at[toggles->started].key_begin : INT64_MAX;
}

/* Active lines at `key`, ascending in rows: drop what is over, merge what begins, from the back. */
static ffa_status activate(struct toggles *toggles, int64_t key, ffa_error *err)
{
    int64_t kept = 0, begin = toggles->started;

    for (int64_t i = 0; i < toggles->active_count; i++)
        if (toggles->active[i].key_end > key)
            toggles->active[kept++] = toggles->active[i];
    while (next_key(toggles) == key)
        toggles->started++;
    toggles->active_count = kept + toggles->started - begin;
    if (!mem_grow((void **)&toggles->active, &toggles->active_capacity, toggles->active_count,
                  sizeof *toggles->active))
        return error_nomem(err, "the mask's columns");

    for (int64_t to = toggles->active_count, add = toggles->started; add > begin;) {
        if (kept > 0 && row_at(&toggles->active[kept - 1], key) > toggles->at[add - 1].row)
            toggles->active[--to] = toggles->active[--kept];
        else
            toggles->active[--to] = toggles->at[--add];
    }
    return FFA_OK;
}

static int64_t first_end(const struct toggles *toggles, int64_t until)
{
    for (int64_t i = 0; i < toggles->active_count; i++)
        if (toggles->active[i].key_end < until)
            until = toggles->active[i].key_end;
    return until;
}

/* The segment that begins at `key`; *until: the first key where another may begin. */
static ffa_status write_segment(struct transpose *t, int64_t key, int64_t *until, ffa_error *err)
{
    const int64_t first = t->writer.out->interval_count;
    ffa_status rc = FFA_OK;

    *until = next_key(&t->on) < next_key(&t->off) ? next_key(&t->on) : next_key(&t->off);
    *until = first_end(&t->on, first_end(&t->off, *until));
    assert(t->on.active_count == t->off.active_count);
    for (int64_t i = 0; i < t->on.active_count; i++) {
        const struct toggle *on = &t->on.active[i], *off = &t->off.active[i];
        const bool one = *until - key == 1; /* a slope means nothing: as normal_build has it */
        const struct normal_interval interval = { row_at(on, key), row_at(off, key),
                                                  one ? 0 : on->step, one ? 0 : off->step };

        FFA_TRY(normal_add_interval(&t->writer, &interval, key, err));
    }
    if (t->on.active_count > 0)
        FFA_TRY(normal_add_segment(&t->writer, key, *until, first, err));
out:
    return rc;
}

ffa_status normal_transpose(struct normal *out, const struct normal *from, ffa_error *err)
{
    struct transpose t = { .from = from, .writer.out = out };
    int64_t key;
    ffa_status rc;

    *out = (struct normal){ 0 };
    FFA_TRY(find_toggles(&t, err));
    toggles_sort(&t.on);
    toggles_sort(&t.off);
    for (key = next_key(&t.on); key < INT64_MAX;) {
        int64_t until;

        FFA_TRY(activate(&t.on, key, err));
        FFA_TRY(activate(&t.off, key, err));
        FFA_TRY(write_segment(&t, key, &until, err));
        key = until;
    }
    normal_complete(out);
    assert(out->area == from->area);
out:
    mem_free(t.on.at);
    mem_free(t.on.active);
    mem_free(t.off.at);
    mem_free(t.off.active);
    if (rc != FFA_OK)
        normal_finish(out);
    return rc;
}
