/* SPDX-License-Identifier: Apache-2.0
 *
 * tile_build: for each list of the mask, where tiles begin (cut.c), what each sweeps (sweep.c),
 * and the order of work.
 */
#include "tile/cut.h"
#include "tile/ticket.h"

enum { LISTS_MAX = 65536 }; /* plan_tile.list has 16 bits */

/* Longest first, ties in the order given (ascending rows): a stable radix sort. */
static ffa_status order_tiles(struct plan_tile *tiles, int64_t count, ffa_error *err)
{
    enum { BITS = 11, BUCKETS = 1 << BITS };
    struct plan_tile *from = tiles, *to;
    struct plan_tile *scratch = mem_array((size_t)count, sizeof *scratch);
    uint64_t top = 0;

    if (!scratch)
        return error_nomem(err, "the order of tiles");
    to = scratch;
    for (int64_t i = 0; i < count; i++)
        if ((uint64_t)tiles[i].block_count > top)
            top = (uint64_t)tiles[i].block_count;

    for (int32_t shift = 0; top >> shift; shift += BITS) {
        int64_t begins[BUCKETS + 1] = { 0 };
        struct plan_tile *swap = from;

        for (int64_t i = 0; i < count; i++)
            begins[((top - (uint64_t)from[i].block_count) >> shift) % BUCKETS + 1]++;
        for (int32_t b = 0; b < BUCKETS; b++)
            begins[b + 1] += begins[b];
        for (int64_t i = 0; i < count; i++)
            to[begins[((top - (uint64_t)from[i].block_count) >> shift) % BUCKETS]++] = from[i];
        from = to;
        to = swap;
    }
    if (from != tiles)
        memcpy(tiles, from, (size_t)count * sizeof *tiles);
    mem_free(scratch);
    return FFA_OK;
}

struct tile_sink {
    struct sweep_sink sweeps;
    int64_t tile_capacity;
};

/* given: NULL, or where the tiles begin. */
static ffa_status build_list(struct tile_sink *sink, struct sweep_work *work,
                             const struct tile_options *opts, const struct cut_list *given,
                             int32_t list, ffa_error *err)
{
    struct tile_plan *plan = sink->sweeps.plan;
    const struct normal *normal = work->normal;
    const struct cut_shape shape = { .rows = (int32_t)tile_own_length(plan),
                                     .tile_size = tile_size(plan),
                                     .cuts = opts->cuts };
    struct cut_list made = { 0 }, cuts;
    struct plan_tile *tiles;
    int64_t segment = 0;
    ffa_status rc = FFA_OK;

    if (!given)
        FFA_TRY(cut_build(&made, work, &shape, err));
    cuts = given ? *given : made;
    if (plan->tile_count + cuts.count > INT32_MAX) {
        rc = error_fail(err, FFA_INVALID, 0, "plan has more than %d tiles", INT32_MAX);
        goto out;
    }
    if (!mem_grow((void **)&plan->tiles, &sink->tile_capacity, plan->tile_count + cuts.count,
                  sizeof *plan->tiles)) {
        rc = error_nomem(err, "the tiles of a plan");
        goto out;
    }
    tiles = &plan->tiles[plan->tile_count];
    for (int64_t i = 0; i < cuts.count; i++) {
        struct sweep_rows rows = { .begin = cuts.begins[i],
                                   .end = i + 1 < cuts.count ? cuts.begins[i + 1] : shape.rows };

        while (segment < normal->segment_count && normal->segments[segment].row_end <= rows.begin)
            segment++;
        rows.segment = segment;
        FFA_TRY(sweep_emit(work, &rows, &sink->sweeps, &tiles[i], err));
        tiles[i].list = (uint16_t)list;
    }
    FFA_TRY(order_tiles(tiles, cuts.count, err));
    plan->tile_count += cuts.count;
    plan->list_begin[list + 1] = (int32_t)plan->tile_count;
    plan->area = area_add(plan->area, normal->area);
out:
    cut_finish(&made);
    return rc;
}

/* ---- lockstep ---- */

/* The block of rows where a tile ends, or begins, if `first`; -1 of one that has none. */
static int64_t end_of(const struct tile_plan *plan, const struct plan_tile *tile, bool first)
{
    const struct plan_sweep *sweeps = &plan->sweeps[tile->sweep_begin];

    if (tile->sweep_count == 0)
        return -1;
    return (first ? sweeps[0].begin : sweeps[tile->sweep_count - 1].end - 1) / plan->tile_m;
}

/* Whether tiles that have nine in ten blocks end, or begin, where the longest does: the first. */
static bool most_end_together(const struct tile_plan *plan, bool first)
{
    const int64_t end = end_of(plan, plan->tiles, first);
    int64_t blocks = 0;

    for (int64_t t = 0; t < plan->tile_count; t++)
        if (end_of(plan, &plan->tiles[t], first) == end)
            blocks += plan->tiles[t].block_count;
    return blocks >= plan->block_count - plan->block_count / 10;
}

/* With several lists, neighbouring tiles belong to different heads and share no rows. */
static enum tile_lockstep lockstep_of(const struct tile_plan *plan)
{
    if (plan->list_count > 1 || plan->block_count == 0)
        return TILE_LOCKSTEP_NONE;
    if (most_end_together(plan, false))
        return TILE_LOCKSTEP_DESCENDING;
    return most_end_together(plan, true) ? TILE_LOCKSTEP_ASCENDING : TILE_LOCKSTEP_NONE;
}

/* ---- build ---- */

ffa_status tile_build_at(struct tile_plan *out, const ffa_mask *mask, enum tile_axis axis,
                         const struct tile_options *opts, const struct cut_list *cuts,
                         ffa_error *err)
{
    const bool is_transposed = axis == TILE_OWNS_KEYS;
    struct tile_plan plan = { .shape = mask->shape,
                              .axis = axis,
                              .tile_m = opts->tile_m,
                              .tile_n = opts->tile_n,
                              .on_grid = opts->on_grid,
                              .list_count = mask->head_count };
    struct tile_sink sink = { .sweeps.plan = &plan };
    struct sweep_work work = { .block_size = tile_block_size(&plan), .on_grid = opts->on_grid };
    struct normal transposed = { 0 };
    ffa_status rc;

    assert(opts->tile_m > 0 && opts->tile_n > 0 && mask->head_count > 0);
    assert(tile_own_length(&plan) > 0 && tile_own_length(&plan) <= INT32_MAX);
    *out = (struct tile_plan){ 0 };
    if (mask->head_count > LISTS_MAX) {
        rc = error_fail(err, FFA_UNSUPPORTED, 0, "the mask has %d lists of slices, plans take %d",
                        (int)mask->head_count, LISTS_MAX);
        goto out;
    }
    plan.list_begin = mem_array((size_t)plan.list_count + 1, sizeof *plan.list_begin);
    if (!plan.list_begin) {
        rc = error_nomem(err, "the lists of a plan");
        goto out;
    }
    for (int32_t list = 0; list < plan.list_count; list++) {
        work.normal = &mask->lists[list].normal;
        if (is_transposed) {
            normal_finish(&transposed);
            FFA_TRY(normal_transpose(&transposed, work.normal, err));
            work.normal = &transposed;
        }
        FFA_TRY(build_list(&sink, &work, opts, cuts ? &cuts[list] : NULL, list, err));
    }
    if (is_transposed && plan.on_grid)
        FFA_TRY(ticket_build(&plan, err));
    if (is_transposed)
        plan.lockstep = lockstep_of(&plan);
#ifndef NDEBUG
    FFA_TRY(tile_check(&plan, err));
#endif
    *out = plan;
    plan = (struct tile_plan){ 0 };
    rc = FFA_OK;
out:
    normal_finish(&transposed);
    sweep_finish(&work);
    tile_finish(&plan);
    return rc;
}

ffa_status tile_build(struct tile_plan *out, const ffa_mask *mask, enum tile_axis axis,
                      const struct tile_options *opts, ffa_error *err)
{
    return tile_build_at(out, mask, axis, opts, NULL, err);
}

void tile_finish(struct tile_plan *plan)
{
    if (!plan)
        return;
    mem_free(plan->list_begin);
    mem_free(plan->tiles);
    mem_free(plan->sweeps);
    mem_free(plan->bands);
    mem_free(plan->tickets);
    mem_free(plan->part_rows);
    mem_free(plan->splits);
    *plan = (struct tile_plan){ 0 };
}
