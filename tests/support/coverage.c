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

static bool fail(struct coverage_text *why, int32_t list, int64_t row, const char *what)
{
    snprintf(why->at, sizeof why->at, "list %d, row %lld: %s", list, (long long)row, what);
    return false;
}

/* ---- rows ---- */

/* The blocks of a sweep that a kernel runs without looking at bands: [*begin, *end). */
static void full_blocks(const struct plan_sweep *sweep, int64_t tile_n, int64_t *begin,
                        int64_t *end)
{
    const int64_t skip = (int64_t)sweep->full_begin - sweep->k_begin;
    const int64_t reach = (int64_t)sweep->full_end - sweep->k_begin;
    const int64_t first = skip > 0 ? (skip + tile_n - 1) / tile_n : 0;
    const int64_t last = reach > 0 ? reach / tile_n : 0;

    *begin = *end = sweep->k_begin;
    if (first < last) {
        *begin = sweep->k_begin + first * tile_n;
        *end = sweep->k_begin + last * tile_n;
    }
    *end = *end < sweep->k_end ? *end : sweep->k_end;
}

static void plan_row(const struct tile_plan *plan, const struct plan_tile *tile, int64_t row,
                     struct keys_list *got)
{
    for (int32_t s = 0; s < tile->sweep_count; s++) {
        const struct plan_sweep *sweep = &plan->sweeps[tile->sweep_begin + s];
        int64_t full_begin, full_end;

        full_blocks(sweep, plan->tile_n, &full_begin, &full_end);
        add_keys(got, full_begin, full_end);
        for (int32_t b = 0; b < sweep->band_count; b++) {
            const struct plan_band *band = &plan->bands[tile->band_begin + sweep->band_begin + b];
            int64_t lo = band->lo + band->lo_step * (row - band->row_begin);
            int64_t hi = band->hi + band->hi_step * (row - band->row_begin);

            if (row < band->row_begin || row >= band->row_end)
                continue;
            lo = lo < sweep->k_begin ? sweep->k_begin : lo;
            hi = hi > sweep->k_end ? sweep->k_end : hi;
            if (full_begin == full_end) {
                add_keys(got, lo, hi);
            } else {
                add_keys(got, lo, hi < full_begin ? hi : full_begin);
                add_keys(got, lo > full_end ? lo : full_end, hi);
            }
        }
    }
}

/* owners[row]: 1 + the tile of the row. */
static bool find_owners(const struct tile_plan *plan, int32_t list, int32_t *owners,
                        struct coverage_text *why)
{
    memset(owners, 0, (size_t)plan->shape.seqlen_q * sizeof *owners);
    for (int32_t t = plan->list_begin[list]; t < plan->list_begin[list + 1]; t++) {
        const struct plan_tile *tile = &plan->tiles[t];

        for (int64_t r = tile->row_begin; r < (int64_t)tile->row_begin + tile->row_count; r++) {
            if (r < 0 || r >= plan->shape.seqlen_q)
                return fail(why, list, r, "a tile leaves the queries");
            if (owners[r])
                return fail(why, list, r, "two tiles own the row");
            owners[r] = t + 1;
        }
    }
    for (int64_t r = 0; r < plan->shape.seqlen_q; r++)
        if (!owners[r])
            return fail(why, list, r, "no tile owns the row");
    return true;
}

static bool compare_row(const struct keys_list *got, const struct keys_list *want, int32_t list,
                        int64_t row, struct coverage_text *why)
{
    if (got->count != want->count)
        return fail(why, list, row, "another number of key intervals than the slices give");
    for (int64_t i = 0; i < got->count; i++)
        if (got->at[i].lo != want->at[i].lo || got->at[i].hi != want->at[i].hi) {
            snprintf(why->at, sizeof why->at,
                     "list %d, row %lld: keys [%lld, %lld), the slices give [%lld, %lld)", list,
                     (long long)row, (long long)got->at[i].lo, (long long)got->at[i].hi,
                     (long long)want->at[i].lo, (long long)want->at[i].hi);
            return false;
        }
    return true;
}

static bool list_rows(const struct tile_plan *plan, const ffa_slice_list *slices, int32_t list,
                      int32_t *owners, struct coverage_text *why)
{
    struct keys_list got = { 0 }, want = { 0 };
    bool ok = find_owners(plan, list, owners, why);

    for (int64_t r = 0; ok && r < plan->shape.seqlen_q; r++) {
        got.count = want.count = 0;
        for (int64_t i = 0; i < slices->count; i++) {
            int64_t lo, hi;

            if (coverage_slice_row(&slices->slices[i], r, &lo, &hi))
                add_keys(&want, lo, hi);
        }
        plan_row(plan, &plan->tiles[owners[r] - 1], r, &got);
        unite(&want, false);
        ok = unite(&got, true) ? compare_row(&got, &want, list, r, why)
                               : fail(why, list, r, "a key is computed twice");
    }
    free(got.at);
    free(want.at);
    return ok;
}

bool coverage_rows(const struct tile_plan *plan, const ffa_slice_list *lists,
                   struct coverage_text *why)
{
    int32_t *owners = malloc((size_t)plan->shape.seqlen_q * sizeof *owners);
    bool ok = true;

    for (int32_t list = 0; ok && list < plan->list_count; list++)
        ok = list_rows(plan, &lists[list], list, owners, why);
    free(owners);
    return ok;
}

/* ---- cells ---- */

/* Count the cells of one block, [k, end) of the sweep. */
static void count_block(const struct tile_plan *plan, const struct plan_tile *tile,
                        const struct plan_sweep *sweep, int64_t k, uint8_t *counts)
{
    const int64_t keys = plan->shape.seqlen_k;
    const int64_t end = k + plan->tile_n < sweep->k_end ? k + plan->tile_n : sweep->k_end;
    const bool full = k >= sweep->full_begin && k + plan->tile_n <= sweep->full_end;

    for (int32_t b = 0; !full && b < sweep->band_count; b++) {
        const struct plan_band *band = &plan->bands[tile->band_begin + sweep->band_begin + b];

        for (int64_t r = band->row_begin; r < band->row_end; r++) {
            const int64_t lo = band->lo + band->lo_step * (r - band->row_begin);
            const int64_t hi = band->hi + band->hi_step * (r - band->row_begin);

            for (int64_t c = k > lo ? k : lo; c < (end < hi ? end : hi); c++)
                counts[r * keys + c] = (uint8_t)(counts[r * keys + c] + 1);
        }
    }
    for (int64_t r = tile->row_begin; full && r < tile->row_begin + tile->row_count; r++)
        for (int64_t c = k; c < end; c++)
            counts[r * keys + c] = (uint8_t)(counts[r * keys + c] + 1);
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

            for (int64_t k = sweep->k_begin; k < sweep->k_end; k += plan->tile_n)
                count_block(plan, tile, sweep, k, counts);
        }
    }
    /* Take one off each attended cell, once: nothing may be left. 128 marks "taken". */
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
    for (int64_t i = 0; i < plan->shape.seqlen_q * keys; i++)
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
