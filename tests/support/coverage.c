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

static void plan_row(const struct tile_plan *plan, const struct plan_tile *tile, int64_t row,
                     struct keys_list *got)
{
    for (int32_t s = 0; s < tile->sweep_count; s++) {
        const struct plan_sweep *sweep = &plan->sweeps[tile->sweep_begin + s];
        const struct keys all = { sweep->begin, sweep->end };
        struct keys full;

        full_blocks(all.lo, all.hi, sweep->full_begin, sweep->full_end, plan->tile_n, &full);
        add_keys(got, full.lo, full.hi);
        for (int32_t b = 0; b < sweep->band_count; b++) {
            const struct plan_band *band = &plan->bands[tile->band_begin + sweep->band_begin + b];
            const int64_t skip = row - band->begin;

            if (row >= band->begin && row < band->end)
                add_partial(got, band->lo + band->lo_step * skip, band->hi + band->hi_step * skip,
                            &all, &full);
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

        for (int64_t r = tile->begin; r < (int64_t)tile->begin + tile->count; r++) {
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

/* line: "row" or "key"; `index` of it has the intervals. */
static bool compare_line(const struct keys_list *got, const struct keys_list *want, int32_t list,
                         const char *line, int64_t index, struct coverage_text *why)
{
    if (got->count != want->count) {
        snprintf(why->at, sizeof why->at, "list %d, %s %lld: %lld intervals, the slices give %lld",
                 list, line, (long long)index, (long long)got->count, (long long)want->count);
        return false;
    }
    for (int64_t i = 0; i < got->count; i++)
        if (got->at[i].lo != want->at[i].lo || got->at[i].hi != want->at[i].hi) {
            snprintf(why->at, sizeof why->at,
                     "list %d, %s %lld: [%lld, %lld), the slices give [%lld, %lld)", list, line,
                     (long long)index, (long long)got->at[i].lo, (long long)got->at[i].hi,
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
        ok = unite(&got, true) ? compare_line(&got, &want, list, "row", r, why)
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

            for (int64_t k = sweep->begin; k < sweep->end; k += plan->tile_n)
                count_block(plan, tile, sweep, k, counts);
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

/* ---- the backward plan, by keys ---- */

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

/* Where the first block of a sweep starts. */
static int64_t first_row(const struct tile_plan *plan, const struct plan_sweep *sweep)
{
    return plan->on_grid ? sweep->begin / plan->tile_m * plan->tile_m : sweep->begin;
}

static void plan_key(const struct tile_plan *plan, const struct plan_tile *tile, int64_t key,
                     struct keys_list *got)
{
    for (int32_t s = 0; s < tile->sweep_count; s++) {
        const struct plan_sweep *sweep = &plan->sweeps[tile->sweep_begin + s];
        const struct keys all = { sweep->begin, sweep->end };
        struct keys full;

        full_blocks(first_row(plan, sweep), all.hi, sweep->full_begin, sweep->full_end,
                    plan->tile_m, &full);
        add_keys(got, full.lo, full.hi);
        for (int32_t b = 0; b < sweep->band_count; b++) {
            const struct plan_band *band = &plan->bands[tile->band_begin + sweep->band_begin + b];
            const int64_t skip = key - band->begin;

            if (key >= band->begin && key < band->end)
                add_partial(got, band->lo + band->lo_step * skip, band->hi + band->hi_step * skip,
                            &all, &full);
        }
    }
}

static bool fail_key(struct coverage_text *why, int32_t list, int64_t key, const char *what)
{
    snprintf(why->at, sizeof why->at, "list %d, key %lld: %s", list, (long long)key, what);
    return false;
}

/* owners[key]: 1 + the tile of the key. */
static bool find_key_owners(const struct tile_plan *plan, int32_t list, int32_t *owners,
                            struct coverage_text *why)
{
    memset(owners, 0, (size_t)plan->shape.seqlen_k * sizeof *owners);
    for (int32_t t = plan->list_begin[list]; t < plan->list_begin[list + 1]; t++) {
        const struct plan_tile *tile = &plan->tiles[t];

        for (int64_t k = tile->begin; k < (int64_t)tile->begin + tile->count; k++) {
            if (k < 0 || k >= plan->shape.seqlen_k)
                return fail_key(why, list, k, "a tile leaves the keys");
            if (owners[k])
                return fail_key(why, list, k, "two tiles own the key");
            owners[k] = t + 1;
        }
    }
    for (int64_t k = 0; k < plan->shape.seqlen_k; k++)
        if (!owners[k])
            return fail_key(why, list, k, "no tile owns the key");
    return true;
}

/* The slices with keys in the tile, so that few are asked about each key. */
static ffa_slice_list slices_near(const struct plan_tile *tile, const ffa_slice_list *slices,
                                  ffa_slice *near)
{
    int64_t count = 0;

    for (int64_t i = 0; i < slices->count; i++)
        if (slices->slices[i].k_begin < (int64_t)tile->begin + tile->count &&
            slices->slices[i].k_end > tile->begin)
            near[count++] = slices->slices[i];
    return (ffa_slice_list){ near, count };
}

static bool list_keys(const struct tile_plan *plan, const ffa_slice_list *slices, int32_t list,
                      int32_t *owners, struct coverage_text *why)
{
    struct keys_list got = { 0 }, want = { 0 };
    ffa_slice *memory = malloc((size_t)(slices->count + 1) * sizeof *memory);
    ffa_slice_list near = { 0 };
    int32_t owner = 0; /* `near` is of */
    bool ok = find_key_owners(plan, list, owners, why);

    for (int64_t k = 0; ok && k < plan->shape.seqlen_k; k++) {
        const struct plan_tile *tile = &plan->tiles[owners[k] - 1];

        if (owners[k] != owner)
            near = slices_near(tile, slices, memory);
        owner = owners[k];
        got.count = want.count = 0;
        for (int64_t i = 0; i < near.count; i++) {
            int64_t lo, hi;

            if (slice_key(&near.slices[i], k, &lo, &hi))
                add_keys(&want, lo, hi);
        }
        plan_key(plan, tile, k, &got);
        unite(&want, false);
        ok = unite(&got, true) ? compare_line(&got, &want, list, "key", k, why)
                               : fail_key(why, list, k, "a row is computed twice");
    }
    free(memory);
    free(got.at);
    free(want.at);
    return ok;
}

bool coverage_keys(const struct tile_plan *plan, const ffa_slice_list *lists,
                   struct coverage_text *why)
{
    int32_t *owners = malloc((size_t)plan->shape.seqlen_k * sizeof *owners);
    bool ok = true;

    for (int32_t list = 0; ok && list < plan->list_count; list++)
        ok = list_keys(plan, &lists[list], list, owners, why);
    free(owners);
    return ok;
}

/* ---- the backward plan, by cells ---- */

/* Count the cells of one block, the rows from q on of the sweep, row by row. */
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

bool coverage_backward_cells(const struct tile_plan *plan, const ffa_slice_list *lists,
                             struct coverage_text *why)
{
    const size_t cells = (size_t)(plan->shape.seqlen_q * plan->shape.seqlen_k);
    uint8_t *counts = malloc(cells);
    bool ok = true;

    for (int32_t list = 0; ok && list < plan->list_count; list++) {
        memset(counts, 0, cells);
        for (int32_t t = plan->list_begin[list]; t < plan->list_begin[list + 1]; t++) {
            const struct plan_tile *tile = &plan->tiles[t];

            for (int32_t s = 0; s < tile->sweep_count; s++) {
                const struct plan_sweep *sweep = &plan->sweeps[tile->sweep_begin + s];

                for (int64_t q = first_row(plan, sweep); q < sweep->end; q += plan->tile_m)
                    count_rows(plan, tile, sweep, q, counts);
            }
        }
        ok = compare_cells(&plan->shape, &lists[list], list, counts, why);
    }
    free(counts);
    return ok;
}

/* ---- turns ---- */

/* A sweep's visits, block by block: the rows of turn i are those from turns[i].row up to the turn
 * before, the first one's up to the sweep's end. next[block]: the turn that is awaited. */
static bool sweep_turns(const struct tile_plan *plan, const struct plan_sweep *sweep, int64_t *next,
                        struct coverage_text *why)
{
    int64_t end = (sweep->end + plan->tile_m - 1) / plan->tile_m;

    for (int32_t i = 0; i < sweep->ticket_count; i++) {
        const struct plan_ticket *turn = &plan->tickets[sweep->ticket_begin + i];
        const int64_t begin = turn->row / plan->tile_m;

        if (turn->row % plan->tile_m || begin >= end)
            return fail(why, 0, turn->row, "a turn that is not of blocks below the one before");
        for (int64_t block = begin; block < end; block++)
            if (next[block]++ != turn->before)
                return fail(why, 0, block * plan->tile_m, "a visit out of turn");
        end = begin;
    }
    return end * plan->tile_m <= sweep->begin && (end + 1) * plan->tile_m > sweep->begin
               ? true
               : fail(why, 0, sweep->begin, "turns that are not of the blocks of their sweep");
}

bool coverage_turns(const struct tile_plan *plan, struct coverage_text *why)
{
    const int64_t blocks = plan->shape.seqlen_q / plan->tile_m + 1;
    int64_t *next = calloc((size_t)blocks, sizeof *next);
    bool ok = true;

    for (int32_t list = 0; ok && list < plan->list_count; list++) {
        memset(next, 0, (size_t)blocks * sizeof *next);
        for (int32_t t = plan->list_begin[list]; ok && t < plan->list_begin[list + 1]; t++)
            for (int32_t s = plan->tiles[t].sweep_count - 1; ok && s >= 0; s--)
                ok = sweep_turns(plan, &plan->sweeps[plan->tiles[t].sweep_begin + s], next, why);
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
                    plan_key(backward, &backward->tiles[t], k, &rows);
            ok = unite(&want, true) && unite(&rows, true)
                     ? compare_line(&rows, &want, list, "key", k, why)
                     : fail_key(why, list, k, "a row is computed twice");
        }
    free(rows.at);
    free(want.at);
    return ok;
}
