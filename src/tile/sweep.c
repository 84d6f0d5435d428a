/* SPDX-License-Identifier: Apache-2.0
 *
 * sweep_cost and sweep_emit. Common masks give a tile one sweep: every interval touches the union
 * of those before it. That case is walked without sorting or scratch memory; the rest goes through
 * pieces (sweep.h). Both ways find the same sweeps.
 */
#include "tile/sweep.h"

/* ---- clipping ---- */

/* The interval, on those rows of the segment that lie in [begin, end). */
static struct plan_band clip(const struct normal_segment *segment,
                             const struct normal_interval *interval, int32_t begin, int32_t end)
{
    const int32_t from = max32(segment->row_begin, begin);
    const struct normal_interval at = normal_interval_at(interval, from - segment->row_begin);

    return (struct plan_band){ .begin = from,
                               .end = min32(segment->row_end, end),
                               .lo = at.lo,
                               .hi = at.hi,
                               .lo_step = at.lo_step,
                               .hi_step = at.hi_step };
}

/* Bounds move forwards only, so the last row's are the largest. */
static int32_t last_lo(const struct plan_band *band)
{
    return band->lo + band->lo_step * (band->end - band->begin - 1);
}

static int32_t last_hi(const struct plan_band *band)
{
    return band->hi + band->hi_step * (band->end - band->begin - 1);
}

static int64_t blocks_of(const struct sweep_work *work, int32_t begin, int32_t end)
{
    return sweep_blocks(begin, end, work->block_size, work->on_grid);
}

/* Whether keys that meet at `key` are of two stages. */
static bool is_stage_end(const struct sweep_work *work, int32_t key)
{
    for (int32_t s = 0; work->stages && s < work->stages->count; s++)
        if (work->stages->ends[s] == key)
            return true;
    return false;
}

/* ---- one sweep: no scratch ---- */

struct key_union {
    int32_t k_begin, k_end;
    bool empty;
};

static bool key_union_join(const struct sweep_work *work, struct key_union *keys, int32_t k_begin,
                           int32_t k_end)
{
    if (keys->empty) {
        *keys = (struct key_union){ k_begin, k_end, false };
        return true;
    }
    if (k_begin > keys->k_end || k_end < keys->k_begin)
        return false;
    if ((k_begin == keys->k_end && is_stage_end(work, k_begin)) ||
        (k_end == keys->k_begin && is_stage_end(work, k_end)))
        return false;
    keys->k_begin = min32(keys->k_begin, k_begin);
    keys->k_end = max32(keys->k_end, k_end);
    return true;
}

/* ---- pieces ---- */

/* As mem_grow, from a capacity that stays. */
static bool grow_one(void **at, int64_t capacity, int64_t need, size_t size)
{
    return mem_grow(at, &capacity, need, size);
}

/* The capacity is set with the last array, when all others have it. */
static bool grow_pieces(struct sweep_work *work, int64_t need)
{
    const int64_t from = work->piece_capacity;

    return grow_one((void **)&work->pieces, from, need, sizeof *work->pieces) &&
           grow_one((void **)&work->order, from, need, sizeof *work->order) &&
           grow_one((void **)&work->merged, from, need, sizeof *work->merged) &&
           grow_one((void **)&work->run_ends, from, need, sizeof *work->run_ends) &&
           grow_one((void **)&work->sweeps, from, need, sizeof *work->sweeps) &&
           mem_grow((void **)&work->open, &work->piece_capacity, need, sizeof *work->open);
}

/* Fills pieces, and order with one ascending run a segment; run_ends [*runs]: where runs end. */
static ffa_status collect(struct sweep_work *work, const struct sweep_rows *rows, int64_t *runs,
                          ffa_error *err)
{
    const struct normal *normal = work->normal;
    int64_t count = 0;

    *runs = 0;
    for (int64_t s = rows->segment;
         s < normal->segment_count && normal->segments[s].row_begin < rows->end; s++) {
        const struct normal_segment *segment = &normal->segments[s];

        if (!grow_pieces(work, count + segment->interval_count))
            return error_nomem(err, "the pieces of a tile");
        for (int32_t i = 0; i < segment->interval_count; i++) {
            const struct plan_band band = clip(
                segment, &normal->intervals[segment->interval_begin + i], rows->begin, rows->end);

            work->order[count] = count;
            work->pieces[count++] =
                (struct sweep_piece){ band.lo, last_hi(&band), (int32_t)*runs, 0 };
        }
        work->run_ends[(*runs)++] = count;
    }
    work->piece_count = count;
    return FFA_OK;
}

static void merge_two(struct sweep_work *work, int64_t a, int64_t a_end, int64_t b_end)
{
    int64_t b = a_end;

    for (int64_t to = a; to < b_end; to++) {
        const bool take_a = b == b_end || (a < a_end && work->pieces[work->order[a]].k_begin <=
                                                            work->pieces[work->order[b]].k_begin);

        work->merged[to] = work->order[take_a ? a++ : b++];
    }
}

/* Merge neighbouring runs until one is left. Stable: ties keep the lower row first. */
static void sort_pieces(struct sweep_work *work, int64_t runs)
{
    while (runs > 1) {
        int64_t begin = 0, left = 0;
        int64_t *swap = work->order;

        for (int64_t r = 0; r < runs; r += 2) {
            const int64_t middle = work->run_ends[r];
            const int64_t end = r + 1 < runs ? work->run_ends[r + 1] : middle;

            merge_two(work, begin, middle, end);
            work->run_ends[left++] = end;
            begin = end;
        }
        runs = left;
        work->order = work->merged;
        work->merged = swap;
    }
}

static bool is_used(const uint64_t *used, int32_t segment)
{
    return used[segment / 64] >> (segment % 64) & 1;
}

/* The open sweep that the piece makes longer by the fewest blocks; of those, the one that reaches
 * furthest; -1: none. Closes sweeps that end before the piece, or where its stage begins, since
 * later pieces begin no earlier. */
static int64_t find_open(struct sweep_work *work, const struct sweep_piece *piece, int64_t words,
                         int64_t *open_count)
{
    const bool begins_stage = is_stage_end(work, piece->k_begin);
    int64_t best = -1, best_cost = INT64_MAX, kept = 0;

    for (int64_t i = 0; i < *open_count; i++) {
        const int64_t at = work->open[i];
        const struct sweep_range *range = &work->sweeps[at];
        int64_t cost;

        if (range->k_end < piece->k_begin + begins_stage)
            continue;
        work->open[kept++] = at;
        if (is_used(&work->used[at * words], piece->segment))
            continue;
        cost = blocks_of(work, range->k_begin, max32(range->k_end, piece->k_end)) -
               blocks_of(work, range->k_begin, range->k_end);
        if (cost < best_cost || (cost == best_cost && range->k_end > work->sweeps[best].k_end)) {
            best = at;
            best_cost = cost;
        }
    }
    *open_count = kept;
    return best;
}

/* Give every piece its sweep. */
static ffa_status assign(struct sweep_work *work, int64_t segments, ffa_error *err)
{
    const int64_t words = (segments + 63) / 64;
    int64_t open_count = 0;

    work->sweep_count = 0;
    if (!mem_grow((void **)&work->used, &work->used_capacity, work->piece_count * words,
                  sizeof *work->used))
        return error_nomem(err, "the sweeps of a tile");

    for (int64_t i = 0; i < work->piece_count; i++) {
        struct sweep_piece *piece = &work->pieces[work->order[i]];
        int64_t at = find_open(work, piece, words, &open_count);

        if (at < 0) {
            at = work->sweep_count++;
            work->sweeps[at] = (struct sweep_range){ piece->k_begin, piece->k_end, 0, 0 };
            memset(&work->used[at * words], 0, (size_t)words * sizeof *work->used);
            work->open[open_count++] = at;
        }
        work->sweeps[at].k_end = max32(work->sweeps[at].k_end, piece->k_end);
        work->used[at * words + piece->segment / 64] |= (uint64_t)1 << (piece->segment % 64);
        piece->sweep = (int32_t)at;
    }
    return FFA_OK;
}

static ffa_status build_pieces(struct sweep_work *work, const struct sweep_rows *rows,
                               ffa_error *err)
{
    int64_t runs;
    ffa_status rc;

    FFA_TRY(collect(work, rows, &runs, err));
    sort_pieces(work, runs);
    FFA_TRY(assign(work, runs, err));
out:
    return rc;
}

/* ---- cost ---- */

static ffa_status cost_of_pieces(struct sweep_work *work, const struct sweep_rows *rows,
                                 int64_t *blocks, ffa_error *err)
{
    ffa_status rc;

    *blocks = 0;
    FFA_TRY(build_pieces(work, rows, err));
    for (int64_t i = 0; i < work->sweep_count; i++)
        *blocks += blocks_of(work, work->sweeps[i].k_begin, work->sweeps[i].k_end);
out:
    return rc;
}

/* Sweeps of rows inside one segment are its intervals. */
static int64_t cost_of_segment(const struct sweep_work *work, const struct normal_segment *segment,
                               int32_t begin, int32_t end)
{
    int64_t blocks = 0;

    for (int32_t i = 0; i < segment->interval_count; i++) {
        const struct plan_band band =
            clip(segment, &work->normal->intervals[segment->interval_begin + i], begin, end);

        blocks += blocks_of(work, band.lo, last_hi(&band));
    }
    return blocks;
}

ffa_status sweep_cost(struct sweep_work *work, const struct sweep_rows *rows, const int32_t *ends,
                      int32_t end_count, int64_t *blocks, ffa_error *err)
{
    const struct normal *normal = work->normal;
    struct key_union before = { 0, 0, true }; /* of the segments that ended already */
    bool one_sweep = true;
    int64_t s = rows->segment;
    ffa_status rc = FFA_OK;

    for (int32_t e = 0; e < end_count; e++) {
        struct key_union keys;

        for (; one_sweep && s < normal->segment_count && normal->segments[s].row_end <= ends[e];
             s++) {
            const struct normal_segment *segment = &normal->segments[s];
            struct plan_band band;

            if (segment->interval_count > 1) {
                one_sweep = false;
                break;
            }
            band = clip(segment, &normal->intervals[segment->interval_begin], rows->begin,
                        segment->row_end);
            one_sweep = key_union_join(work, &before, band.lo, last_hi(&band));
        }
        keys = before;
        if (one_sweep && s < normal->segment_count && normal->segments[s].row_begin < ends[e]) {
            const struct normal_segment *segment = &normal->segments[s];

            if (keys.empty) {
                blocks[e] = cost_of_segment(work, segment, rows->begin, ends[e]);
                continue;
            }
            if (segment->interval_count == 1) {
                const struct plan_band band = clip(
                    segment, &normal->intervals[segment->interval_begin], rows->begin, ends[e]);

                if (key_union_join(work, &keys, band.lo, last_hi(&band))) {
                    blocks[e] = blocks_of(work, keys.k_begin, keys.k_end);
                    continue;
                }
            }
        } else if (one_sweep) {
            blocks[e] = keys.empty ? 0 : blocks_of(work, keys.k_begin, keys.k_end);
            continue;
        }
        FFA_TRY(cost_of_pieces(work, &(struct sweep_rows){ rows->begin, ends[e], rows->segment },
                               &blocks[e], err));
    }
out:
    return rc;
}

/* ---- emit ---- */

/* Whether a bound continues along one line from one band to the next; a single row has any step. */
static bool line_goes_on(int32_t from, int32_t from_step, int32_t from_rows, int32_t to,
                         int32_t to_step, int32_t to_rows, int32_t *step)
{
    *step = from_rows > 1 ? from_step : to_rows > 1 ? to_step : to - from;
    /* (a sum might be one past INT32_MAX) */
    return (*step == 0 || *step == 1) && to - from == *step * from_rows &&
           (to_rows == 1 || to_step == *step);
}

static bool band_join(struct plan_band *band, const struct plan_band *next)
{
    const int32_t rows = band->end - band->begin;
    const int32_t next_rows = next->end - next->begin;
    int32_t lo_step, hi_step;

    if (band->end != next->begin ||
        !line_goes_on(band->lo, band->lo_step, rows, next->lo, next->lo_step, next_rows,
                      &lo_step) ||
        !line_goes_on(band->hi, band->hi_step, rows, next->hi, next->hi_step, next_rows, &hi_step))
        return false;
    band->lo_step = lo_step;
    band->hi_step = hi_step;
    band->end = next->end;
    return true;
}

/* Fill in the sweep's record, and add its blocks to the plan's and to *blocks. */
static void finish_sweep(struct sweep_sink *sink, const struct sweep_rows *rows,
                         const struct plan_band *bands, struct plan_sweep *sweep, int64_t *blocks)
{
    const int32_t block_size = tile_block_size(sink->plan);
    int32_t covered = 0, full_begin = 0, full_end = INT32_MAX;
    int64_t all;

    sweep->begin = INT32_MAX;
    sweep->end = 0;
    for (int32_t i = 0; i < sweep->band_count; i++) {
        covered += bands[i].end - bands[i].begin;
        sweep->begin = min32(sweep->begin, bands[i].lo);
        sweep->end = max32(sweep->end, last_hi(&bands[i]));
        full_begin = max32(full_begin, last_lo(&bands[i]));
        full_end = min32(full_end, bands[i].hi);
    }
    all = sweep_blocks(sweep->begin, sweep->end, block_size, sink->plan->on_grid);
    sweep->full_begin = sweep->full_end = sweep->begin;
    if (covered == rows->end - rows->begin && full_begin < full_end) {
        sweep->full_begin = full_begin;
        sweep->full_end = full_end;
    }
    *blocks += all;
    sink->plan->block_count += all;
    sink->plan->partial_blocks += all - sweep_full_blocks(sweep, block_size, sink->plan->on_grid);
}

static ffa_status grow_sink(struct sweep_sink *sink, int64_t sweeps, int64_t bands, ffa_error *err)
{
    struct tile_plan *plan = sink->plan;

    if (plan->sweep_count + sweeps > INT32_MAX || plan->band_count + bands > INT32_MAX)
        return error_fail(err, FFA_INVALID, 0, "plan has more than %d sweeps or bands", INT32_MAX);
    if (!mem_grow((void **)&plan->sweeps, &sink->sweep_capacity, plan->sweep_count + sweeps,
                  sizeof *plan->sweeps) ||
        !mem_grow((void **)&plan->bands, &sink->band_capacity, plan->band_count + bands,
                  sizeof *plan->bands))
        return error_nomem(err, "the sweeps of a plan");
    return FFA_OK;
}

/* Whether the rows have one interval each, all touching: one sweep of *bands bands. */
static bool collect_one(const struct sweep_work *work, const struct sweep_rows *rows,
                        int64_t *bands)
{
    const struct normal *normal = work->normal;
    struct key_union keys = { 0, 0, true };
    int64_t s = rows->segment;

    for (; s < normal->segment_count && normal->segments[s].row_begin < rows->end; s++) {
        const struct normal_segment *segment = &normal->segments[s];
        struct plan_band band;

        if (segment->interval_count > 1)
            return false;
        band = clip(segment, &normal->intervals[segment->interval_begin], rows->begin, rows->end);
        if (!key_union_join(work, &keys, band.lo, last_hi(&band)))
            return false;
    }
    *bands = s - rows->segment;
    return true;
}

static ffa_status emit_one(struct sweep_work *work, const struct sweep_rows *rows, int64_t count,
                           struct sweep_sink *sink, int64_t *blocks, ffa_error *err)
{
    const struct normal *normal = work->normal;
    struct tile_plan *plan = sink->plan;
    struct plan_band *bands;
    int32_t used = 0;
    ffa_status rc;

    FFA_TRY(grow_sink(sink, 1, count, err));
    bands = &plan->bands[plan->band_count];
    for (int64_t s = rows->segment; s < rows->segment + count; s++) {
        const struct normal_segment *segment = &normal->segments[s];
        const struct plan_band band =
            clip(segment, &normal->intervals[segment->interval_begin], rows->begin, rows->end);

        if (!used || !band_join(&bands[used - 1], &band))
            bands[used++] = band;
    }
    plan->sweeps[plan->sweep_count] = (struct plan_sweep){ .band_count = used };
    finish_sweep(sink, rows, bands, &plan->sweeps[plan->sweep_count], blocks);
    plan->sweep_count++;
    plan->band_count += used;
out:
    return rc;
}

/* Put each piece's band behind those of its sweep, in the order of rows; a band that continues the
 * one before is joined to it. Sweep i has room for all its pieces, from band_begin on. */
static void place_bands(struct sweep_work *work, const struct sweep_rows *rows,
                        struct plan_band *bands)
{
    const struct normal *normal = work->normal;
    int64_t at = 0;

    for (int64_t i = 0; i < work->piece_count; i++)
        work->sweeps[work->pieces[i].sweep].band_count++;
    for (int64_t i = 0; i < work->sweep_count; i++) {
        work->sweeps[i].band_begin = at;
        at += work->sweeps[i].band_count;
        work->sweeps[i].band_count = 0;
    }

    at = 0;
    for (int64_t s = rows->segment; at < work->piece_count; s++) {
        const struct normal_segment *segment = &normal->segments[s];

        for (int32_t i = 0; i < segment->interval_count; i++, at++) {
            struct sweep_range *range = &work->sweeps[work->pieces[at].sweep];
            struct plan_band *end = &bands[range->band_begin + range->band_count];
            const struct plan_band band = clip(
                segment, &normal->intervals[segment->interval_begin + i], rows->begin, rows->end);

            if (!range->band_count || !band_join(end - 1, &band)) {
                *end = band;
                range->band_count++;
            }
        }
    }
}

static ffa_status emit_pieces(struct sweep_work *work, const struct sweep_rows *rows,
                              struct sweep_sink *sink, int64_t *blocks, ffa_error *err)
{
    struct tile_plan *plan = sink->plan;
    struct plan_band *bands;
    int64_t used = 0;
    ffa_status rc;

    FFA_TRY(build_pieces(work, rows, err));
    FFA_TRY(grow_sink(sink, work->sweep_count, work->piece_count, err));
    bands = &plan->bands[plan->band_count];
    place_bands(work, rows, bands);
    for (int64_t i = 0; i < work->sweep_count; i++) {
        const struct sweep_range *range = &work->sweeps[i];
        struct plan_sweep *sweep = &plan->sweeps[plan->sweep_count++];

        memmove(&bands[used], &bands[range->band_begin], (size_t)range->band_count * sizeof *bands);
        *sweep = (struct plan_sweep){ .band_begin = (int32_t)used,
                                      .band_count = (int32_t)range->band_count };
        finish_sweep(sink, rows, &bands[used], sweep, blocks);
        assert(sweep->begin == range->k_begin && sweep->end == range->k_end);
        used += range->band_count;
    }
    plan->band_count += used;
out:
    return rc;
}

ffa_status sweep_emit(struct sweep_work *work, const struct sweep_rows *rows,
                      struct sweep_sink *sink, struct plan_tile *tile, int32_t *blocks,
                      ffa_error *err)
{
    struct tile_plan *plan = sink->plan;
    const int64_t sweep_begin = plan->sweep_count, band_begin = plan->band_count;
    int64_t visited = 0, bands = 0;
    ffa_status rc = FFA_OK;

    assert(rows->begin < rows->end && rows->end - rows->begin <= tile_size(plan));
    if (!collect_one(work, rows, &bands))
        FFA_TRY(emit_pieces(work, rows, sink, &visited, err));
    else if (bands)
        FFA_TRY(emit_one(work, rows, bands, sink, &visited, err));

    if (visited > INT32_MAX) {
        rc = error_fail(err, FFA_INVALID, 0, "tile at row %d visits %lld blocks of keys, limit %d",
                        rows->begin, (long long)visited, INT32_MAX);
        goto out;
    }
    *tile = (struct plan_tile){ .begin = rows->begin,
                                .count = rows->end - rows->begin,
                                .sweep_begin = (int32_t)sweep_begin,
                                .sweep_count = (int32_t)(plan->sweep_count - sweep_begin),
                                .band_begin = (int32_t)band_begin,
                                .band_count = (int32_t)(plan->band_count - band_begin) };
    *blocks = (int32_t)visited;
out:
    return rc;
}

void sweep_finish(struct sweep_work *work)
{
    mem_free(work->pieces);
    mem_free(work->order);
    mem_free(work->merged);
    mem_free(work->run_ends);
    mem_free(work->sweeps);
    mem_free(work->open);
    mem_free(work->used);
    *work = (struct sweep_work){ 0 };
}
