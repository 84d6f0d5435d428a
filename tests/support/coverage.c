/* SPDX-License-Identifier: Apache-2.0 */
#include "support/coverage.h"

#include <stdio.h>

struct keys {
    int64_t lo, hi;
};

struct keys_list {
    struct keys *at;
    int64_t count, capacity;
};

static void add_keys(struct keys_list *list, int64_t lo, int64_t hi)
{
    if (lo >= hi)
        return;
    if (list->count == list->capacity) {
        list->capacity = list->capacity ? 2 * list->capacity : 64;
        list->at = realloc(list->at, (size_t)list->capacity * sizeof *list->at);
        if (!list->at)
            abort();
    }
    list->at[list->count++] = (struct keys){ lo, hi };
}

static int compare_keys(const void *a, const void *b)
{
    const struct keys *x = a, *y = b;

    return x->lo != y->lo ? (x->lo < y->lo ? -1 : 1) : (x->hi > y->hi) - (x->hi < y->hi);
}

/* Sort and join what overlaps or touches. `once`: overlaps are an error (false). */
static bool unite(struct keys_list *list, bool once)
{
    int64_t kept = 0;

    if (!list->count)
        return true;
    qsort(list->at, (size_t)list->count, sizeof *list->at, compare_keys);
    for (int64_t i = 1; i < list->count; i++) {
        struct keys *last = &list->at[kept];
        const struct keys *next = &list->at[i];

        if (once && next->lo < last->hi)
            return false;
        if (next->lo > last->hi)
            list->at[++kept] = *next;
        else if (next->hi > last->hi)
            last->hi = next->hi;
    }
    list->count = kept + 1;
    return true;
}

bool coverage_slice_row(const ffa_slice *slice, int64_t row, int64_t *lo, int64_t *hi)
{
    const int64_t i = row - slice->q_begin;
    const int64_t sq = slice->q_end - slice->q_begin;

    *lo = slice->k_begin + (slice->type & 2 ? i : 0);
    *hi = slice->k_end - (slice->type & 1 ? sq - 1 - i : 0);
    return i >= 0 && i < sq && *lo < *hi;
}

/* "row" or "key": what a plan's tiles own. */
static const char *line_name(const struct tile_plan *plan)
{
    return plan->axis == TILE_OWNS_QUERIES ? "row" : "key";
}

/* line: of those that tiles own */
static bool fail(struct coverage_text *why, const struct tile_plan *plan, int32_t list,
                 int64_t line, const char *what)
{
    snprintf(why->at, sizeof why->at, "list %d, %s %lld: %s", list, line_name(plan),
             (long long)line, what);
    return false;
}

/* ---- by owned rows, or keys ---- */

/* The blocks of a sweep from `from` on that lie in [full_begin, full_end), which a kernel runs
 * without looking at bands: [*begin, *end). */
static void full_blocks(int64_t from, int64_t to, int64_t full_begin, int64_t full_end,
                        int64_t block, struct keys *full)
{
    const int64_t skip = full_begin - from, reach = full_end - from;
    const int64_t first = skip > 0 ? (skip + block - 1) / block : 0;
    const int64_t last = reach > 0 ? reach / block : 0;

    *full = (struct keys){ from, from };
    if (first < last)
        *full = (struct keys){ from + first * block, from + last * block };
    full->hi = full->hi < to ? full->hi : to;
}

/* The part of a band's interval that lies in the sweep and outside its full blocks. */
static void add_partial(struct keys_list *list, int64_t lo, int64_t hi, const struct keys *sweep,
                        const struct keys *full)
{
    lo = lo < sweep->lo ? sweep->lo : lo;
    hi = hi > sweep->hi ? sweep->hi : hi;
    if (full->lo == full->hi) {
        add_keys(list, lo, hi);
    } else {
        add_keys(list, lo, hi < full->lo ? hi : full->lo);
        add_keys(list, lo > full->hi ? lo : full->hi, hi);
    }
}

/* Where the first block of a sweep starts. */
static int64_t first_index(const struct tile_plan *plan, const struct plan_sweep *sweep)
{
    const int64_t size = tile_block_size(plan);

    return plan->on_grid ? sweep->begin / size * size : sweep->begin;
}

/* What the plan computes of an owned index of the tile. */
static void plan_line(const struct tile_plan *plan, const struct plan_tile *tile, int64_t line,
                      struct keys_list *got)
{
    for (int32_t s = 0; s < tile->sweep_count; s++) {
        const struct plan_sweep *sweep = &plan->sweeps[tile->sweep_begin + s];
        const struct keys all = { sweep->begin, sweep->end };
        struct keys full;

        full_blocks(first_index(plan, sweep), all.hi, sweep->full_begin, sweep->full_end,
                    tile_block_size(plan), &full);
        add_keys(got, full.lo, full.hi);
        for (int32_t b = 0; b < sweep->band_count; b++) {
            const struct plan_band *band = &plan->bands[tile->band_begin + sweep->band_begin + b];
            const int64_t skip = line - band->begin;

            if (line >= band->begin && line < band->end)
                add_partial(got, band->lo + band->lo_step * skip, band->hi + band->hi_step * skip,
                            &all, &full);
        }
    }
}

/* owners[line]: 1 + the tile that owns it. */
static bool find_owners(const struct tile_plan *plan, int32_t list, int32_t *owners,
                        struct coverage_text *why)
{
    const int64_t lines = tile_own_length(plan);

    memset(owners, 0, (size_t)lines * sizeof *owners);
    for (int32_t t = plan->list_begin[list]; t < plan->list_begin[list + 1]; t++) {
        const struct plan_tile *tile = &plan->tiles[t];

        for (int64_t i = tile->begin; i < (int64_t)tile->begin + tile->count; i++) {
            if (i < 0 || i >= lines)
                return fail(why, plan, list, i, "a tile leaves the axis it owns");
            if (owners[i])
                return fail(why, plan, list, i, "two tiles own it");
            owners[i] = t + 1;
        }
    }
    for (int64_t i = 0; i < lines; i++)
        if (!owners[i])
            return fail(why, plan, list, i, "no tile owns it");
    return true;
}

static bool compare_line(const struct keys_list *got, const struct keys_list *want,
                         const struct tile_plan *plan, int32_t list, int64_t line,
                         struct coverage_text *why)
{
    if (got->count != want->count) {
        snprintf(why->at, sizeof why->at, "list %d, %s %lld: %lld intervals, the slices give %lld",
                 list, line_name(plan), (long long)line, (long long)got->count,
                 (long long)want->count);
        return false;
    }
    for (int64_t i = 0; i < got->count; i++)
        if (got->at[i].lo != want->at[i].lo || got->at[i].hi != want->at[i].hi) {
            snprintf(why->at, sizeof why->at,
                     "list %d, %s %lld: [%lld, %lld), the slices give [%lld, %lld)", list,
                     line_name(plan), (long long)line, (long long)got->at[i].lo,
                     (long long)got->at[i].hi, (long long)want->at[i].lo,
                     (long long)want->at[i].hi);
            return false;
        }
    return true;
}

/* Rows [lo, hi) that attend the key: mask.h's rule, solved for the row. */
static bool slice_key(const ffa_slice *slice, int64_t key, int64_t *lo, int64_t *hi)
{
    const int64_t sq = slice->q_end - slice->q_begin;
    const int64_t first = slice->type & 1 ? key - slice->k_end + sq : 0;
    const int64_t last = slice->type & 2 ? key - slice->k_begin : sq - 1;

    *lo = slice->q_begin + (first > 0 ? first : 0);
    *hi = slice->q_begin + (last < sq ? last + 1 : sq);
    return key >= slice->k_begin && key < slice->k_end && *lo < *hi;
}

/* The slices that meet what the tile owns, so that few are asked about each line. */
static ffa_slice_list slices_near(const struct tile_plan *plan, const struct plan_tile *tile,
                                  const ffa_slice_list *slices, ffa_slice *near)
{
    const bool owns_rows = plan->axis == TILE_OWNS_QUERIES;
    int64_t count = 0;

    for (int64_t i = 0; i < slices->count; i++) {
        const ffa_slice *slice = &slices->slices[i];

        if ((owns_rows ? slice->q_begin : slice->k_begin) < (int64_t)tile->begin + tile->count &&
            (owns_rows ? slice->q_end : slice->k_end) > tile->begin)
            near[count++] = *slice;
    }
    return (ffa_slice_list){ near, count };
}

/* What the slices say of an owned index. */
static void slices_line(const struct tile_plan *plan, const ffa_slice_list *slices, int64_t line,
                        struct keys_list *want)
{
    for (int64_t i = 0; i < slices->count; i++) {
        const ffa_slice *slice = &slices->slices[i];
        int64_t lo, hi;

        if (plan->axis == TILE_OWNS_QUERIES ? coverage_slice_row(slice, line, &lo, &hi)
                                            : slice_key(slice, line, &lo, &hi))
            add_keys(want, lo, hi);
    }
}

static bool list_lines(const struct tile_plan *plan, const ffa_slice_list *slices, int32_t list,
                       int32_t *owners, struct coverage_text *why)
{
    struct keys_list got = { 0 }, want = { 0 };
    ffa_slice *memory = malloc((size_t)(slices->count + 1) * sizeof *memory);
    ffa_slice_list near = { 0 };
    int32_t owner = 0; /* `near` is of */
    bool ok = find_owners(plan, list, owners, why);

    for (int64_t i = 0; ok && i < tile_own_length(plan); i++) {
        const struct plan_tile *tile = &plan->tiles[owners[i] - 1];

        if (owners[i] != owner)
            near = slices_near(plan, tile, slices, memory);
        owner = owners[i];
        got.count = want.count = 0;
        slices_line(plan, &near, i, &want);
        plan_line(plan, tile, i, &got);
        unite(&want, false);
        ok = unite(&got, true) ? compare_line(&got, &want, plan, list, i, why)
                               : fail(why, plan, list, i, "a cell of it is computed twice");
    }
    free(memory);
    free(got.at);
    free(want.at);
    return ok;
}

bool coverage_lines(const struct tile_plan *plan, const ffa_slice_list *lists,
                    struct coverage_text *why)
{
    int32_t *owners = malloc((size_t)tile_own_length(plan) * sizeof *owners);
    bool ok = true;

    for (int32_t list = 0; ok && list < plan->list_count; list++)
        ok = list_lines(plan, &lists[list], list, owners, why);
    free(owners);
    return ok;
}

/* ---- by cells ---- */

/* Forward: count the cells of one block, the keys from k on of the sweep, band by band. */
static void count_keys(const struct tile_plan *plan, const struct plan_tile *tile,
                       const struct plan_sweep *sweep, int64_t k, uint8_t *counts)
{
    const int64_t keys = plan->shape.seqlen_k;
    const int64_t end = k + plan->tile_n < sweep->end ? k + plan->tile_n : sweep->end;
    const bool full = k >= sweep->full_begin && k + plan->tile_n <= sweep->full_end;

    for (int32_t b = 0; !full && b < sweep->band_count; b++) {
        const struct plan_band *band = &plan->bands[tile->band_begin + sweep->band_begin + b];

        for (int64_t r = band->begin; r < band->end; r++) {
            const int64_t lo = band->lo + band->lo_step * (r - band->begin);
            const int64_t hi = band->hi + band->hi_step * (r - band->begin);

            for (int64_t c = k > lo ? k : lo; c < (end < hi ? end : hi); c++)
                counts[r * keys + c] = (uint8_t)(counts[r * keys + c] + 1);
        }
    }
    for (int64_t r = tile->begin; full && r < tile->begin + tile->count; r++)
        for (int64_t c = k; c < end; c++)
            counts[r * keys + c] = (uint8_t)(counts[r * keys + c] + 1);
}

/* Backward: count the cells of one block, the rows from q on of the sweep, row by row. */
static void count_rows(const struct tile_plan *plan, const struct plan_tile *tile,
                       const struct plan_sweep *sweep, int64_t q, uint8_t *counts)
{
    const int64_t keys = plan->shape.seqlen_k;
    const int64_t end = q + plan->tile_m < sweep->end ? q + plan->tile_m : sweep->end;
    const bool full = q >= sweep->full_begin && q + plan->tile_m <= sweep->full_end;

    for (int64_t r = q > sweep->begin ? q : sweep->begin; r < end; r++) {
        for (int32_t b = 0; !full && b < sweep->band_count; b++) {
            int begin, last;

            plan_band_own(&plan->bands[tile->band_begin + sweep->band_begin + b], (int)r, &begin,
                          &last);
            for (int64_t k = begin; k < last; k++)
                counts[r * keys + k] = (uint8_t)(counts[r * keys + k] + 1);
        }
        for (int64_t k = tile->begin; full && k < tile->begin + tile->count; k++)
            counts[r * keys + k] = (uint8_t)(counts[r * keys + k] + 1);
    }
}

/* Take one off each attended cell, once: nothing may be left. 128 marks "taken". */
static bool compare_cells(const ffa_mask_shape *shape, const ffa_slice_list *slices, int32_t list,
                          uint8_t *counts, struct coverage_text *why)
{
    const int64_t keys = shape->seqlen_k;

    for (int64_t i = 0; i < slices->count; i++)
        for (int64_t r = slices->slices[i].q_begin; r < slices->slices[i].q_end; r++) {
            int64_t lo, hi;

            if (!coverage_slice_row(&slices->slices[i], r, &lo, &hi))
                continue;
            for (int64_t c = lo; c < hi; c++) {
                uint8_t *count = &counts[r * keys + c];

                if (!(*count & 128))
                    *count = (uint8_t)((*count - 1) & 127) | 128;
            }
        }
    for (int64_t i = 0; i < shape->seqlen_q * keys; i++)
        if (counts[i] & 127) {
            snprintf(why->at, sizeof why->at, "list %d, cell (%lld, %lld): %s", list,
                     (long long)(i / keys), (long long)(i % keys),
                     !(counts[i] & 128)         ? "computed, but not attended"
                     : counts[i] == (127 | 128) ? "attended, but not computed"
                                                : "computed more than once");
            return false;
        }
    return true;
}

static bool list_cells(const struct tile_plan *plan, const ffa_slice_list *slices, int32_t list,
                       uint8_t *counts, struct coverage_text *why)
{
    const int64_t keys = plan->shape.seqlen_k;

    memset(counts, 0, (size_t)(plan->shape.seqlen_q * keys));
    for (int32_t t = plan->list_begin[list]; t < plan->list_begin[list + 1]; t++) {
        const struct plan_tile *tile = &plan->tiles[t];

        for (int32_t s = 0; s < tile->sweep_count; s++) {
            const struct plan_sweep *sweep = &plan->sweeps[tile->sweep_begin + s];

            for (int64_t at = first_index(plan, sweep); at < sweep->end;
                 at += tile_block_size(plan))
                (plan->axis == TILE_OWNS_QUERIES ? count_keys : count_rows)(plan, tile, sweep, at,
                                                                            counts);
        }
    }
    return compare_cells(&plan->shape, slices, list, counts, why);
}

bool coverage_cells(const struct tile_plan *plan, const ffa_slice_list *lists,
                    struct coverage_text *why)
{
    uint8_t *counts = malloc((size_t)(plan->shape.seqlen_q * plan->shape.seqlen_k));
    bool ok = true;

    for (int32_t list = 0; ok && list < plan->list_count; list++)
        ok = list_cells(plan, &lists[list], list, counts, why);
    free(counts);
    return ok;
}

/* ---- tickets ---- */

static bool fail_row(struct coverage_text *why, int64_t row, const char *what)
{
    snprintf(why->at, sizeof why->at, "query row %lld: %s", (long long)row, what);
    return false;
}

/* A sweep's visits, block by block: the rows of ticket i are those from its row up to the ticket
 * before, the first one's up to the sweep's end. next[block]: the visits so far. */
static bool sweep_tickets(const struct tile_plan *plan, const struct plan_sweep *sweep,
                          int64_t *next, struct coverage_text *why)
{
    int64_t end = (sweep->end + plan->tile_m - 1) / plan->tile_m;

    for (int32_t i = 0; i < sweep->ticket_count; i++) {
        const struct plan_ticket *ticket = &plan->tickets[sweep->ticket_begin + i];
        const int64_t begin = ticket->row / plan->tile_m;

        if (ticket->row % plan->tile_m || begin >= end)
            return fail_row(why, ticket->row,
                            "a ticket that is not of blocks below the one before");
        for (int64_t block = begin; block < end; block++)
            if (next[block]++ != ticket->before)
                return fail_row(why, block * plan->tile_m, "a visit out of order");
        end = begin;
    }
    return end * plan->tile_m <= sweep->begin && (end + 1) * plan->tile_m > sweep->begin
               ? true
               : fail_row(why, sweep->begin, "tickets that are not of the blocks of their sweep");
}

bool coverage_tickets(const struct tile_plan *plan, struct coverage_text *why)
{
    const int64_t blocks = plan->shape.seqlen_q / plan->tile_m + 1;
    int64_t *next = calloc((size_t)blocks, sizeof *next);
    bool ok = true;

    for (int32_t list = 0; ok && list < plan->list_count; list++) {
        memset(next, 0, (size_t)blocks * sizeof *next);
        for (int32_t t = plan->list_begin[list]; ok && t < plan->list_begin[list + 1]; t++)
            for (int32_t s = plan->tiles[t].sweep_count - 1; ok && s >= 0; s--)
                ok = sweep_tickets(plan, &plan->sweeps[plan->tiles[t].sweep_begin + s], next, why);
    }
    free(next);
    return ok;
}

/* ---- both plans ---- */

/* Rows of one band of the forward plan that attend the key. */
static void band_key(const struct plan_band *band, int64_t key, struct keys_list *got)
{
    int64_t begin = band->begin, end = band->end;

    if (band->lo_step)
        end = key - band->lo + 1 < end - begin ? begin + (key - band->lo + 1) : end;
    else if (key < band->lo)
        end = begin;
    if (key >= band->hi)
        begin = band->hi_step ? begin + (key - band->hi) + 1 : end;
    add_keys(got, begin, end);
}

bool coverage_same(const struct tile_plan *forward, const struct tile_plan *backward, int64_t step,
                   struct coverage_text *why)
{
    struct keys_list rows = { 0 }, want = { 0 };
    bool ok = forward->list_count == backward->list_count;

    for (int32_t list = 0; ok && list < forward->list_count; list++)
        for (int64_t k = 0; ok && k < backward->shape.seqlen_k; k += step) {
            rows.count = want.count = 0;
            for (int32_t t = forward->list_begin[list]; t < forward->list_begin[list + 1]; t++)
                for (int32_t b = 0; b < forward->tiles[t].band_count; b++)
                    band_key(&forward->bands[forward->tiles[t].band_begin + b], k, &want);
            for (int32_t t = backward->list_begin[list]; t < backward->list_begin[list + 1]; t++)
                if (k >= backward->tiles[t].begin &&
                    k < backward->tiles[t].begin + backward->tiles[t].count)
                    plan_line(backward, &backward->tiles[t], k, &rows);
            ok = unite(&want, true) && unite(&rows, true)
                     ? compare_line(&rows, &want, backward, list, k, why)
                     : fail(why, backward, list, k, "a row is computed twice");
        }
    free(rows.at);
    free(want.at);
    return ok;
}
