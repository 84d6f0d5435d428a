/* SPDX-License-Identifier: Apache-2.0
 *
 * staged_build: query tiles for all stages, the plan of each stage with them, then what comes
 * before and after each tile. A tile is known by the row where it begins, which is one of the cuts.
 * For each cut the first and the last stage that work on its tile are kept; from these two follow
 * the tile's flags, and whether it is in a stage's plan at all. Only tiles without sweeps are
 * dropped, so that sweeps and bands stay as they were built.
 */
#include "tile/staged.h"

#include "mask/band_mask.h"

struct build {
    const struct stage_cells *stages; /* [count] */
    int32_t count;
    const struct staged_options *opts;
    struct cut_list *found;      /* [list_count], or NULL */
    const struct cut_list *cuts; /* those given, or found */
    struct staged_plan *out;     /* [count] */
};

/* ---- the cells of a stage as a mask ---- */

/* The stage's mask, or one made of its bands. */
struct stage_mask {
    const ffa_mask *mask;
    ffa_mask made;
};

static ffa_status stage_mask_init(struct stage_mask *out, const struct build *b, int32_t stage,
                                  ffa_error *err)
{
    const struct stage_cells *cells = &b->stages[stage];

    *out = (struct stage_mask){ .mask = cells->mask };
    if (cells->mask)
        return FFA_OK;
    out->mask = &out->made;
    return band_mask_init(&out->made, &cells->shape, cells->lists, b->opts->list_count, err);
}

static void stage_mask_finish(struct stage_mask *of)
{
    band_mask_finish(&of->made);
}

/* ---- where query tiles begin ---- */

ffa_status staged_cuts(struct cut_list *out, const struct normal *normal, int32_t rows,
                       const struct tile_options *opts, ffa_error *err)
{
    const struct cut_shape shape = { .rows = rows, .tile_size = opts->tile_m, .cuts = opts->cuts };
    struct sweep_work work = { .normal = normal,
                               .block_size = opts->tile_n,
                               .on_grid = opts->on_grid };
    const ffa_status rc = cut_build(out, &work, &shape, err);

    sweep_finish(&work);
    return rc;
}

/* Add the begins of `more`, each once. */
static ffa_status cuts_join(struct cut_list *cuts, const struct cut_list *more, ffa_error *err)
{
    int32_t *begins = mem_array((size_t)(cuts->count + more->count), sizeof *begins);
    int64_t count = 0, a = 0, b = 0;

    if (!begins)
        return error_nomem(err, "the tiles of stages");
    while (a < cuts->count || b < more->count) {
        const int32_t next_a = a < cuts->count ? cuts->begins[a] : INT32_MAX;
        const int32_t next_b = b < more->count ? more->begins[b] : INT32_MAX;

        begins[count++] = next_a < next_b ? next_a : next_b;
        a += next_a <= next_b;
        b += next_b <= next_a;
    }
    cut_finish(cuts);
    *cuts = (struct cut_list){ begins, count };
    return FFA_OK;
}

/* Add the cuts of one stage's cells. */
static ffa_status find_stage_cuts(struct build *b, int32_t stage, ffa_error *err)
{
    struct stage_mask of = { 0 };
    struct cut_list cuts = { 0 };
    ffa_status rc;

    FFA_TRY(stage_mask_init(&of, b, stage, err));
    for (int32_t l = 0; l < b->opts->list_count; l++) {
        cut_finish(&cuts);
        FFA_TRY(staged_cuts(&cuts, &of.mask->lists[l].normal, (int32_t)of.mask->shape.seqlen_q,
                            b->opts->forward, err));
        FFA_TRY(cuts_join(&b->found[l], &cuts, err));
    }
out:
    cut_finish(&cuts);
    stage_mask_finish(&of);
    return rc;
}

/* The stage with most cells. */
static ffa_status find_largest(int32_t *out, const struct build *b, ffa_error *err)
{
    int64_t most = -1;
    ffa_status rc = FFA_OK;

    for (int32_t s = 0; rc == FFA_OK && s < b->count; s++) {
        struct stage_mask of;

        rc = stage_mask_init(&of, b, s, err);
        if (rc == FFA_OK && ffa_mask_area(of.mask, -1) > most) {
            most = ffa_mask_area(of.mask, -1);
            *out = s;
        }
        stage_mask_finish(&of);
    }
    return rc;
}

static ffa_status find_cuts(struct build *b, ffa_error *err)
{
    int32_t largest = 0;
    ffa_status rc = FFA_OK;

    b->found = mem_array((size_t)b->opts->list_count, sizeof *b->found);
    if (!b->found) {
        rc = error_nomem(err, "the tiles of stages");
        goto out;
    }
    b->cuts = b->found;
    if (b->opts->forward->cuts == TILE_CUTS_ISOLATE) {
        for (int32_t s = 0; s < b->count; s++)
            FFA_TRY(find_stage_cuts(b, s, err));
        goto out;
    }
    FFA_TRY(find_largest(&largest, b, err));
    rc = find_stage_cuts(b, largest, err);
out:
    return rc;
}

/* ---- which stages work on a tile ---- */

struct stage_range {
    int32_t first, last; /* -1: none does */
};

/* Of the tile that begins at `row`: ranges are those of the list's cuts. */
static struct stage_range *range_of(struct stage_range *ranges, const struct cut_list *cuts,
                                    int32_t row)
{
    const int32_t *found =
        bsearch(&row, cuts->begins, (size_t)cuts->count, sizeof *cuts->begins, compare32);

    assert(found);
    return &ranges[found - cuts->begins];
}

/* ranges: of the cuts of all lists, one list after another. */
static void find_ranges(const struct build *b, int32_t stage, struct stage_range *ranges)
{
    const struct tile_plan *plan = &b->out[stage].forward;

    for (int32_t l = 0; l < plan->list_count; ranges += b->cuts[l++].count)
        for (int64_t t = plan->list_begin[l]; t < plan->list_begin[l + 1]; t++) {
            struct stage_range *range = range_of(ranges, &b->cuts[l], plan->tiles[t].begin);

            if (!plan->tiles[t].sweep_count)
                continue;
            range->first = range->first < 0 ? stage : range->first;
            range->last = stage;
        }
}

/* Keep the tiles that the stage works on, marked. */
static void keep_tiles(const struct build *b, int32_t stage, struct stage_range *ranges)
{
    struct tile_plan *plan = &b->out[stage].forward;
    int64_t kept = 0;

    for (int32_t l = 0; l < plan->list_count; ranges += b->cuts[l++].count) {
        const int64_t begin = plan->list_begin[l], end = plan->list_begin[l + 1];

        plan->list_begin[l] = (int32_t)kept;
        for (int64_t t = begin; t < end; t++) {
            struct plan_tile tile = plan->tiles[t];
            const struct stage_range *range = range_of(ranges, &b->cuts[l], tile.begin);

            if (range->first < 0 ? stage > 0 : tile.sweep_count == 0)
                continue;
            if (range->first >= 0)
                tile.flags = (uint16_t)((range->first < stage ? PLAN_TILE_MERGES : 0) |
                                        (range->last > stage ? PLAN_TILE_CONTINUES : 0));
            plan->tiles[kept] = tile;
            plan->block_counts[kept++] = plan->block_counts[t];
        }
    }
    plan->list_begin[plan->list_count] = (int32_t)kept;
    plan->tile_count = kept;
    plan->is_stage = b->count > 1;
}

static ffa_status mark_tiles(struct build *b, ffa_error *err)
{
    struct stage_range *ranges;
    int64_t cuts = 0;
    ffa_status rc = FFA_OK;

    for (int32_t l = 0; l < b->opts->list_count; l++)
        cuts += b->cuts[l].count;
    ranges = mem_array((size_t)cuts, sizeof *ranges);
    if (!ranges) {
        rc = error_nomem(err, "the tiles of stages");
        goto out;
    }
    for (int64_t i = 0; i < cuts; i++)
        ranges[i] = (struct stage_range){ -1, -1 };
    for (int32_t s = 0; s < b->count; s++)
        find_ranges(b, s, ranges);
    for (int32_t s = 0; s < b->count; s++) {
        keep_tiles(b, s, ranges);
#ifndef NDEBUG
        FFA_TRY(tile_check(&b->out[s].forward, err));
#endif
    }
out:
    mem_free(ranges);
    return rc;
}

/* ---- build ---- */

static ffa_status build_stage(struct build *b, int32_t stage, ffa_error *err)
{
    const struct staged_options *opts = b->opts;
    ffa_status (*const build_tiles)(struct tile_plan *, const ffa_mask *, enum tile_axis,
                                    const struct tile_options *, const struct cut_list *,
                                    ffa_error *) = opts->counts_only ? tile_count : tile_build_at;
    struct stage_mask of;
    ffa_status rc;

    FFA_TRY(stage_mask_init(&of, b, stage, err));
    if (opts->forward && b->stages[stage].arriving)
        FFA_TRY(tile_build_arriving_at(&b->out[stage].forward, of.mask, TILE_OWNS_QUERIES,
                                       opts->forward, b->cuts, b->stages[stage].arriving, err));
    else if (opts->forward)
        FFA_TRY(build_tiles(&b->out[stage].forward, of.mask, TILE_OWNS_QUERIES, opts->forward,
                            b->cuts, err));
    if (opts->backward)
        FFA_TRY(build_tiles(&b->out[stage].backward, of.mask, TILE_OWNS_KEYS, opts->backward, NULL,
                            err));
out:
    stage_mask_finish(&of);
    return rc;
}

ffa_status staged_build(struct staged_plan *out, const struct stage_cells *stages, int32_t count,
                        const struct staged_options *opts, ffa_error *err)
{
    const bool shares_rows = opts->forward && !opts->has_own_rows;
    struct build b = { .stages = stages, .count = count, .opts = opts, .out = out };
    ffa_status rc = FFA_OK;

    for (int32_t s = 0; s < count; s++)
        out[s] = (struct staged_plan){ 0 };
    if (shares_rows)
        b.cuts = opts->cuts;
    if (shares_rows && !b.cuts)
        FFA_TRY(find_cuts(&b, err));
    for (int32_t s = 0; s < count; s++)
        FFA_TRY(build_stage(&b, s, err));
    if (shares_rows && !opts->counts_only)
        rc = mark_tiles(&b, err);
out:
    for (int32_t l = 0; b.found && l < opts->list_count; l++)
        cut_finish(&b.found[l]);
    mem_free(b.found);
    if (rc != FFA_OK)
        staged_finish(out, count);
    return rc;
}

void staged_finish(struct staged_plan *plans, int32_t count)
{
    for (int32_t s = 0; s < count; s++) {
        tile_finish(&plans[s].forward);
        tile_finish(&plans[s].backward);
    }
}

/* ---- what was left for later ---- */

ffa_status staged_rest(struct tile_plan *out, const struct tile_plan *from, ffa_error *err)
{
    const ffa_status rc = tile_init_like(out, from, err);

    if (rc != FFA_OK)
        return rc;
    for (int32_t l = 0; l < from->list_count; l++) {
        for (int64_t t = from->list_begin[l]; t < from->list_begin[l + 1]; t++)
            if (from->tiles[t].flags & PLAN_TILE_CONTINUES)
                out->tiles[out->tile_count++] = (struct plan_tile){ .begin = from->tiles[t].begin,
                                                                    .count = from->tiles[t].count,
                                                                    .list = from->tiles[t].list,
                                                                    .flags = PLAN_TILE_MERGES };
        out->list_begin[l + 1] = (int32_t)out->tile_count;
    }
    return FFA_OK;
}
