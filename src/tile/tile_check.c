/* SPDX-License-Identifier: Apache-2.0
 *
 * tile_check: every invariant of tile_plan.h and tile.h, recomputed from the bands alone. Rows and
 * keys are those of a forward plan; of a backward plan, read "rows" as keys and "keys" as query
 * rows.
 */
#include "tile/ticket.h"
#include "tile/tile_stages.h"

struct key_range {
    int64_t begin, end;
};

struct check {
    const struct tile_plan *plan;
    const struct plan_tile *tile;
    int64_t index; /* of the tile */
    struct key_range *ranges;
    int64_t range_capacity;
    int64_t blocks, partial, area;
    int64_t sweeps, bands; /* of the tiles before, by list and rows */
    ffa_error *err;
};

static ffa_status bad(const struct check *check, const char *what)
{
    return error_fail(check->err, FFA_BUG, 0, "tile %lld (%s from %d): %s", (long long)check->index,
                      check->plan->axis == TILE_OWNS_KEYS ? "keys" : "rows", check->tile->begin,
                      what);
}

static int compare_ranges(const void *a, const void *b)
{
    const struct key_range *x = a, *y = b;

    return x->begin != y->begin ? (x->begin < y->begin ? -1 : 1)
                                : (x->end > y->end) - (x->end < y->end);
}

static int64_t last(int32_t first, int32_t step, const struct plan_band *band)
{
    return (int64_t)first + (int64_t)step * (band->end - band->begin - 1);
}

/* ---- one sweep ---- */

static ffa_status check_band(const struct check *check, const struct plan_band *band,
                             int32_t row_begin)
{
    const struct plan_tile *tile = check->tile;

    if (band->begin < row_begin || band->begin >= band->end ||
        band->end > tile->begin + tile->count)
        return bad(check, "bands do not ascend inside the tile");
    if ((band->lo_step & ~1) || (band->hi_step & ~1))
        return bad(check, "a band's step is not 0 or 1");
    if (band->lo < 0 || last(band->hi, band->hi_step, band) > tile_swept_length(check->plan))
        return bad(check, "a band leaves the keys");
    if (band->lo >= band->hi ||
        last(band->lo, band->lo_step, band) >= last(band->hi, band->hi_step, band))
        return bad(check, "a band has a row without keys");
    return FFA_OK;
}

/* The sweep is the union of its bands, without a gap. A band has no gap itself: its bounds move by
 * at most a key a row, and no row is empty. */
static ffa_status check_keys(struct check *check, const struct plan_sweep *sweep,
                             const struct plan_band *bands)
{
    int64_t end;

    for (int32_t i = 0; i < sweep->band_count; i++)
        check->ranges[i] =
            (struct key_range){ bands[i].lo, last(bands[i].hi, bands[i].hi_step, &bands[i]) };
    qsort(check->ranges, (size_t)sweep->band_count, sizeof *check->ranges, compare_ranges);
    end = check->ranges[0].begin;
    if (end != sweep->begin)
        return bad(check, "a sweep does not begin at its first key");
    for (int32_t i = 0; i < sweep->band_count; i++) {
        if (check->ranges[i].begin > end)
            return bad(check, "a sweep has keys that no row attends");
        if (check->ranges[i].end > end)
            end = check->ranges[i].end;
    }
    if (end != sweep->end)
        return bad(check, "a sweep does not end at its last key");
    return FFA_OK;
}

static ffa_status check_full(const struct check *check, const struct plan_sweep *sweep,
                             const struct plan_band *bands)
{
    int64_t rows = 0, begin = INT64_MIN, end = INT64_MAX;

    for (int32_t i = 0; i < sweep->band_count; i++) {
        const int64_t lo = last(bands[i].lo, bands[i].lo_step, &bands[i]);

        rows += bands[i].end - bands[i].begin;
        begin = lo > begin ? lo : begin;
        end = bands[i].hi < end ? bands[i].hi : end;
    }
    if (rows != check->tile->count || begin >= end)
        begin = end = sweep->begin;
    if (sweep->full_begin != begin || sweep->full_end != end)
        return bad(check, "the keys of a sweep that all rows attend are wrong");
    return FFA_OK;
}

static void count_blocks(struct check *check, const struct plan_sweep *sweep)
{
    const int64_t n = tile_block_size(check->plan);

    const int64_t first = check->plan->on_grid ? sweep->begin / n * n : sweep->begin;

    for (int64_t k = first; k < sweep->end; k += n) {
        check->blocks++;
        check->partial += k < sweep->full_begin || k + n > sweep->full_end;
    }
}

static ffa_status check_sweep(struct check *check, const struct plan_sweep *sweep,
                              const struct plan_band *bands)
{
    const struct tile_plan *plan = check->plan;
    int32_t row = check->tile->begin;
    ffa_status rc;

    for (int32_t i = 0; i < sweep->band_count; i++) {
        const struct plan_band *band = &bands[i];
        const int64_t rows = band->end - band->begin;
        const int64_t first = (int64_t)band->hi - band->lo;

        FFA_TRY(check_band(check, band, row));
        row = band->end;
        check->area = area_add(check->area, rows * first + rows * (rows - 1) / 2 *
                                                               (band->hi_step - band->lo_step));
    }
    FFA_TRY(check_keys(check, sweep, bands));
    if (plan->axis == TILE_OWNS_QUERIES && plan->stages.count &&
        tile_crosses_stages(&plan->stages, sweep->begin, sweep->end))
        return bad(check, "a sweep has keys of two stages");
    FFA_TRY(check_full(check, sweep, bands));
    count_blocks(check, sweep);
out:
    return rc;
}

/* ---- one tile ---- */

/* No row has a key in two sweeps. */
static ffa_status check_rows(struct check *check, const struct plan_band *bands)
{
    const struct plan_tile *tile = check->tile;

    if (tile->sweep_count < 2)
        return FFA_OK;
    for (int32_t r = tile->begin; r < tile->begin + tile->count; r++) {
        int64_t count = 0;

        for (int32_t i = 0; i < tile->band_count; i++) {
            const struct plan_band *band = &bands[i];
            const int64_t skip = (int64_t)r - band->begin;

            if (r >= band->begin && r < band->end)
                check->ranges[count++] = (struct key_range){ band->lo + band->lo_step * skip,
                                                             band->hi + band->hi_step * skip };
        }
        qsort(check->ranges, (size_t)count, sizeof *check->ranges, compare_ranges);
        for (int64_t i = 1; i < count; i++)
            if (check->ranges[i].begin < check->ranges[i - 1].end)
                return bad(check, "a row meets a key in two sweeps");
    }
    return FFA_OK;
}

/* What the model of a backward pass knows of a tile, which has so many partial blocks. */
static ffa_status check_model(struct check *check, int64_t partial)
{
    const struct tile_rows *rows = &check->plan->rows[check->index];
    const struct plan_sweep *sweeps = check->plan->sweeps;
    const int32_t first = check->tile->sweep_begin, end = first + check->tile->sweep_count;
    const bool has_rows = first < end;

    if (rows->begin != (has_rows ? sweeps[first].begin : 0) ||
        rows->end != (has_rows ? sweeps[end - 1].end : 0) || rows->partial_blocks != partial)
        return bad(check, "its rows or partial blocks are not those of its sweeps");
    return FFA_OK;
}

static ffa_status check_tile(struct check *check)
{
    const struct tile_plan *plan = check->plan;
    const struct plan_tile *tile = check->tile;
    const struct plan_band *bands = &plan->bands[tile->band_begin];
    const int64_t blocks = check->blocks, partial = check->partial;
    int32_t band = 0;
    ffa_status rc = FFA_OK;

    if (tile->count < 1 || tile->count > tile_size(plan) || tile->begin < 0 ||
        tile->begin > tile_own_length(plan) - tile->count)
        return bad(check, "rows leave the queries, or are not 1 to tile_m");
    if (plan->axis == TILE_OWNS_KEYS && plan->stages.count &&
        tile_crosses_groups(&plan->stages, tile->begin, tile->begin + tile->count))
        return bad(check, "it has keys of two groups");
    if (tile->sweep_begin < 0 || tile->sweep_count < 0 || tile->band_begin < 0 ||
        tile->band_count < 0 ||
        (int64_t)tile->sweep_begin + tile->sweep_count > plan->sweep_count ||
        (int64_t)tile->band_begin + tile->band_count > plan->band_count)
        return bad(check, "sweeps or bands leave the plan");
    if (!mem_grow((void **)&check->ranges, &check->range_capacity, tile->band_count,
                  sizeof *check->ranges))
        return error_nomem(check->err, "the check of a plan");

    for (int32_t i = 0; i < tile->sweep_count; i++) {
        const struct plan_sweep *sweep = &plan->sweeps[tile->sweep_begin + i];

        if (sweep->band_begin != band || sweep->band_count < 1 ||
            sweep->band_count > tile->band_count - band)
            return bad(check, "the bands of a sweep do not follow those of the one before");
        if (i > 0 && sweep->begin < sweep[-1].begin)
            return bad(check, "sweeps do not ascend in keys");
        FFA_TRY(check_sweep(check, sweep, &bands[band]));
        band += sweep->band_count;
    }
    if (band != tile->band_count)
        return bad(check, "the tile has bands of no sweep");
    if (check->blocks - blocks != plan->block_counts[check->index])
        return bad(check, "the number of blocks is wrong");
    FFA_TRY(check_rows(check, bands));
    if (plan->rows)
        rc = check_model(check, check->partial - partial);
out:
    return rc;
}

/* ---- one list ---- */

static int compare_rows(const void *a, const void *b)
{
    const struct plan_tile *const *x = a, *const *y = b;

    return ((*x)->begin > (*y)->begin) - ((*x)->begin < (*y)->begin);
}

/* Backward: the group of a tile; forward 0. */
static int32_t group_of(const struct check *check, const struct plan_tile *tile)
{
    const struct tile_plan *plan = check->plan;

    return plan->axis == TILE_OWNS_KEYS ? tile_group_of(&plan->stages, tile->begin) : 0;
}

static ffa_status check_order(const struct check *check, int32_t list, bool first)
{
    const struct plan_tile *tile = check->tile;
    const int32_t *blocks = &check->plan->block_counts[check->index];
    const int32_t group = group_of(check, tile);
    const int32_t before = first ? group : group_of(check, tile - 1);

    if (tile->list != list)
        return bad(check, "it stands in another list");
    if (tile->part_row)
        return bad(check, "it is no part, and has a part's row");
    if (group < before)
        return bad(check, "it is out of order: a tile of a later group stands before it");
    if (!first && group == before &&
        (blocks[0] > blocks[-1] || (blocks[0] == blocks[-1] && tile->begin <= tile[-1].begin)))
        return bad(check, "it is out of order: longest first, then lower rows");
    return FFA_OK;
}

/* By rows, each tile begins where the one before ends: its rows, its sweeps and its bands. In a
 * stage rows may lie between tiles. */
static ffa_status check_tiling(struct check *check, int32_t list, const struct plan_tile **tiles,
                               int64_t count)
{
    int64_t row = 0;

    qsort(tiles, (size_t)count, sizeof(*tiles), compare_rows);
    for (int64_t i = 0; i < count; i++) {
        check->tile = tiles[i];
        check->index = tiles[i] - check->plan->tiles;
        if (tiles[i]->begin < row || (tiles[i]->begin > row && !check->plan->is_stage))
            return bad(check, "a row before it is in no tile, or in two");
        if (tiles[i]->sweep_begin != check->sweeps || tiles[i]->band_begin != check->bands)
            return bad(check, "its sweeps or bands do not follow those of the rows before");
        row = (int64_t)tiles[i]->begin + tiles[i]->count;
        check->sweeps += tiles[i]->sweep_count;
        check->bands += tiles[i]->band_count;
    }
    if (row != tile_own_length(check->plan) && !check->plan->is_stage)
        return error_fail(check->err, FFA_BUG, 0, "list %d ends at row %lld of %lld", list,
                          (long long)row, (long long)tile_own_length(check->plan));
    return FFA_OK;
}

static ffa_status check_list(struct check *check, int32_t list)
{
    const struct tile_plan *plan = check->plan;
    const int64_t begin = plan->list_begin[list];
    const int64_t count = plan->list_begin[list + 1] - begin;
    const struct plan_tile **tiles = NULL;
    ffa_status rc = FFA_OK;

    if (begin < 0 || count < 0 || begin + count > plan->tile_count)
        return error_fail(check->err, FFA_BUG, 0, "list %d has tiles that are not the plan's",
                          list);
    tiles = mem_array((size_t)count, sizeof(*tiles));
    if (!tiles)
        return error_nomem(check->err, "the check of a plan");
    for (int64_t i = 0; i < count; i++) {
        check->tile = tiles[i] = &plan->tiles[begin + i];
        check->index = begin + i;
        FFA_TRY(check_order(check, list, i == 0));
        FFA_TRY(check_tile(check));
    }
    FFA_TRY(check_tiling(check, list, tiles, count));
out:
    mem_free((void *)tiles);
    return rc;
}

/* Fields that the plan does not use are zero: plans are compared byte by byte. */
static bool padding_is_zero(const struct tile_plan *plan)
{
    for (int64_t i = 0; !plan->tickets && i < plan->sweep_count; i++)
        if (plan->sweeps[i].ticket_begin || plan->sweeps[i].ticket_count)
            return false;
    for (int64_t i = 0; i < plan->band_count; i++)
        if (plan->bands[i].pad_[0] || plan->bands[i].pad_[1])
            return false;
    return true;
}

ffa_status tile_check(const struct tile_plan *plan, ffa_error *err)
{
    struct check check = { .plan = plan, .err = err };
    ffa_status rc = FFA_OK;

    if (plan->list_count < 1 || plan->list_begin[0] != 0 ||
        plan->list_begin[plan->list_count] != plan->tile_count) {
        rc = error_fail(err, FFA_BUG, 0, "the lists of the plan are not its %lld tiles",
                        (long long)plan->tile_count);
        goto out;
    }
    if (plan->stages.count && !tile_stages_hold(&plan->stages, plan->shape.seqlen_k)) {
        rc = error_fail(err, FFA_BUG, 0, "the stages of the plan are not its %lld keys",
                        (long long)plan->shape.seqlen_k);
        goto out;
    }
    if (!padding_is_zero(plan)) {
        rc = error_fail(err, FFA_BUG, 0, "padding is not zero");
        goto out;
    }
    for (int32_t list = 0; list < plan->list_count; list++)
        FFA_TRY(check_list(&check, list));
    if (check.sweeps != plan->sweep_count || check.bands != plan->band_count) {
        rc = error_fail(err, FFA_BUG, 0, "plan has sweeps or bands of no tile");
        goto out;
    }
    if (check.blocks != plan->block_count || check.partial != plan->partial_blocks ||
        check.area != plan->area)
        rc = error_fail(err, FFA_BUG, 0,
                        "plan counts %lld blocks, %lld partial, area %lld; its bands %lld, %lld, "
                        "%lld",
                        (long long)plan->block_count, (long long)plan->partial_blocks,
                        (long long)plan->area, (long long)check.blocks, (long long)check.partial,
                        (long long)check.area);
    else if (plan->axis == TILE_OWNS_KEYS && plan->on_grid)
        rc = ticket_check(plan, err);
out:
    mem_free(check.ranges);
    return rc;
}
