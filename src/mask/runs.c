/* SPDX-License-Identifier: Apache-2.0
 *
 * From rows of cells to slices.
 *
 * A run of attended keys goes on in the next row where both of its bounds stay or move by one key,
 * as they did before. Such runs of consecutive rows are a track, and a track is exactly one slice
 * of one of the four types. So slices are disjoint, and what a builder made of few slices comes
 * back as few.
 *
 * Invariant: the tracks of a row are apart, as its runs are. A run that begins at key b can go on
 * only from a track that began at b - 1 or b, and there is at most one of these. One walk over both
 * lists finds all.
 */
#include "mask/runs.h"

ffa_status row_runs_add(struct row_runs *runs, int64_t begin, int64_t end, ffa_error *err)
{
    if (runs->count > 0 && runs->at[runs->count - 1].end == begin) {
        runs->at[runs->count - 1].end = end;
        return FFA_OK;
    }
    if (!mem_grow((void **)&runs->at, &runs->capacity, runs->count + 1, sizeof *runs->at))
        return error_nomem(err, "the runs of a row");
    runs->at[runs->count++] = (struct run){ begin, end };
    return FFA_OK;
}

/* The first cell from `at` on that is not zero, or `count`. */
static int64_t next_set(const uint8_t *cells, int64_t at, int64_t count)
{
    for (uint64_t eight; at + 8 <= count; at += 8) {
        memcpy(&eight, cells + at, sizeof eight);
        if (eight)
            break;
    }
    while (at < count && !cells[at])
        at++;
    return at;
}

static int64_t next_clear(const uint8_t *cells, int64_t at, int64_t count)
{
    const uint8_t *clear = memchr(cells + at, 0, (size_t)(count - at));

    return clear ? clear - cells : count;
}

ffa_status row_runs_scan(struct row_runs *runs, const uint8_t *cells, int64_t count, int64_t key,
                         ffa_error *err)
{
    ffa_status rc = FFA_OK;

    for (int64_t at = next_set(cells, 0, count); at < count; at = next_set(cells, at, count)) {
        const int64_t end = next_clear(cells, at, count);

        FFA_TRY(row_runs_add(runs, key + at, key + end, err));
        at = end;
    }
out:
    return rc;
}

/* ---- tracks ---- */

static ffa_status track_close(struct tracker *tracker, const struct track *track, ffa_error *err)
{
    const int32_t type = (track->begin_step == 1 ? FFA_SLICE_INVCAUSAL : 0) |
                         (track->end_step == 1 ? FFA_SLICE_CAUSAL : 0);

    return slices_add(
        tracker->out,
        (ffa_slice){ track->q_begin, tracker->row + 1, track->k_begin, track->last.end, type, 0 },
        err);
}

static bool bound_goes_on(int32_t step, int64_t moved)
{
    return step < 0 ? moved == 0 || moved == 1 : moved == step;
}

static bool track_goes_on(const struct track *track, const struct run *run)
{
    return bound_goes_on(track->begin_step, run->begin - track->last.begin) &&
           bound_goes_on(track->end_step, run->end - track->last.end);
}

/* The track of a run: `before` with one more row, or a new one where that is NULL. */
static ffa_status next_add(struct tracks *next, const struct track *before, const struct run *run,
                           int64_t row, ffa_error *err)
{
    struct track track = { row, run->begin, *run, -1, -1 };

    if (before) {
        track = *before;
        track.begin_step = (int32_t)(run->begin - before->last.begin);
        track.end_step = (int32_t)(run->end - before->last.end);
        track.last = *run;
    }
    if (!mem_grow((void **)&next->at, &next->capacity, next->count + 1, sizeof *next->at))
        return error_nomem(err, "the runs of a row");
    next->at[next->count++] = track;
    return FFA_OK;
}

/* One row; tracker->row is the row before. */
static ffa_status tracker_row(struct tracker *tracker, int64_t row, const struct row_runs *runs,
                              ffa_error *err)
{
    struct tracks *open = &tracker->open, *next = &tracker->next, swap;
    int64_t track = 0;
    ffa_status rc = FFA_OK;

    next->count = 0;
    for (int64_t i = 0; i < runs->count; i++) {
        const struct track *before = NULL;

        while (track < open->count && open->at[track].last.begin + 1 < runs->at[i].begin)
            FFA_TRY(track_close(tracker, &open->at[track++], err));
        if (track < open->count && track_goes_on(&open->at[track], &runs->at[i]))
            before = &open->at[track++];
        FFA_TRY(next_add(next, before, &runs->at[i], row, err));
    }
    while (track < open->count)
        FFA_TRY(track_close(tracker, &open->at[track++], err));
    swap = *open;
    *open = *next;
    *next = swap;
    tracker->row = row;
out:
    return rc;
}

ffa_status tracker_rows(struct tracker *tracker, int64_t begin, int64_t end,
                        const struct row_runs *runs, ffa_error *err)
{
    /* After three equal rows no bound moves any more, and the rest only lengthens the tracks. */
    const int64_t moving = min64(end, begin + 3);
    const struct row_runs none = { NULL, 0, 0 };
    ffa_status rc = FFA_OK;

    if (tracker->open.count > 0 && tracker->row + 1 < begin)
        FFA_TRY(tracker_row(tracker, tracker->row + 1, &none, err));
    for (int64_t row = begin; row < moving; row++)
        FFA_TRY(tracker_row(tracker, row, runs, err));
    tracker->row = end - 1;
out:
    return rc;
}

static int slice_compare(const void *left, const void *right)
{
    const ffa_slice *a = left, *b = right;

    if (a->q_begin != b->q_begin)
        return a->q_begin < b->q_begin ? -1 : 1;
    return (a->k_begin > b->k_begin) - (a->k_begin < b->k_begin);
}

ffa_status tracker_finish(struct tracker *tracker, ffa_status rc, ffa_error *err)
{
    for (int64_t i = 0; i < tracker->open.count && rc == FFA_OK; i++)
        rc = track_close(tracker, &tracker->open.at[i], err);
    if (rc == FFA_OK && tracker->out->count > 0)
        qsort(tracker->out->at, (size_t)tracker->out->count, sizeof *tracker->out->at,
              slice_compare);
    mem_free(tracker->open.at);
    mem_free(tracker->next.at);
    return rc;
}
