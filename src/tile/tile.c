/* SPDX-License-Identifier: Apache-2.0
 *
 * tile_build: for each list of the mask, where tiles begin (cut.c), what each sweeps (sweep.c), and
 * the order of work. A backward plan is built in the same way from the transposed normal form, so
 * that both passes visit the same cells; then it gets its tickets and its lockstep.
 *
 * Where keys arrive in stages, only the axis of keys is cut. Forward that is the swept one: sweeps
 * are made of a normal form that is cut at the ends of stages, and tiles begin where they pay with
 * these sweeps. Backward tiles are cut at marks, and ordered by group, then by work.
 */
#include "tile/cut.h"
#include "tile/lockstep.h"
#include "tile/ticket.h"
#include "tile/tile_stages.h"

enum { LISTS_MAX = 65536 }; /* plan_tile.list has 16 bits */

/* A tile while tiles are ordered. */
struct weighed {
    struct plan_tile tile;
    int32_t blocks;
    int32_t group; /* backward, of keys that arrive in stages (tile_stages.h); else 0 */
};

/* Longest first, ties in the order given (ascending rows): a stable radix sort. Returns which of
 * both arrays has the result. */
static const struct weighed *order_by_work(struct weighed *from, struct weighed *to, int64_t count)
{
    enum { BITS = 11, BUCKETS = 1 << BITS };
    uint32_t top = 0;

    for (int64_t i = 0; i < count; i++)
        if ((uint32_t)from[i].blocks > top)
            top = (uint32_t)from[i].blocks;
    for (int32_t shift = 0; (uint64_t)top >> shift; shift += BITS) {
        int64_t begins[BUCKETS + 1] = { 0 };
        struct weighed *swap = from;

        for (int64_t i = 0; i < count; i++)
            begins[((top - (uint32_t)from[i].blocks) >> shift) % BUCKETS + 1]++;
        for (int32_t b = 0; b < BUCKETS; b++)
            begins[b + 1] += begins[b];
        for (int64_t i = 0; i < count; i++)
            to[begins[((top - (uint32_t)from[i].blocks) >> shift) % BUCKETS]++] = from[i];
        from = to;
        to = swap;
    }
    return from;
}

/* Append `count` tiles to the plan group by group, each in the order of work. The plan has room for
 * them; tiles has room for twice as many. */
static void add_in_order(struct tile_plan *plan, struct weighed *tiles, int64_t count)
{
    const struct weighed *ordered = order_by_work(tiles, tiles + count, count);

    for (int32_t group = 0; group <= plan->stages.count; group++)
        for (int64_t i = 0; i < count; i++) {
            if (ordered[i].group != group)
                continue;
            plan->tiles[plan->tile_count] = ordered[i].tile;
            plan->block_counts[plan->tile_count++] = ordered[i].blocks;
        }
}

struct tile_sink {
    struct sweep_sink sweeps;
    int64_t tile_capacity, count_capacity;
    int32_t *marks; /* [mark_count]: rows at which tiles begin in any case */
    int64_t mark_count;
    bool counts_only;
};

/* Room for `more` tiles. */
static ffa_status grow_tiles(struct tile_sink *sink, int64_t more, ffa_error *err)
{
    struct tile_plan *plan = sink->sweeps.plan;
    const int64_t need = plan->tile_count + more;

    if (need > INT32_MAX)
        return error_fail(err, FFA_INVALID, 0, "plan has more than %d tiles", INT32_MAX);
    if (!mem_grow((void **)&plan->tiles, &sink->tile_capacity, need, sizeof *plan->tiles) ||
        !mem_grow((void **)&plan->block_counts, &sink->count_capacity, need,
                  sizeof *plan->block_counts))
        return error_nomem(err, "the tiles of a plan");
    return FFA_OK;
}

/* The rows of tile i. *segment: where to look for their first segment; 0 before the first tile. */
static struct sweep_rows rows_of(const struct normal *normal, const struct cut_list *cuts,
                                 int64_t i, int32_t rows, int64_t *segment)
{
    const int32_t begin = cuts->begins[i];

    while (*segment < normal->segment_count && normal->segments[*segment].row_end <= begin)
        ++*segment;
    return (struct sweep_rows){ .begin = begin,
                                .end = i + 1 < cuts->count ? cuts->begins[i + 1] : rows,
                                .segment = *segment };
}

/* The same tiles one after the other, each in the place of the one before: only their blocks are
 * counted. */
static ffa_status count_tiles(struct tile_sink *sink, struct sweep_work *work,
                              const struct cut_list *cuts, int32_t rows, ffa_error *err)
{
    struct tile_plan *plan = sink->sweeps.plan;
    int64_t segment = 0;
    ffa_status rc = FFA_OK;

    for (int64_t i = 0; i < cuts->count; i++) {
        struct plan_tile tile;
        int32_t blocks;
        const struct sweep_rows of = rows_of(work->normal, cuts, i, rows, &segment);

        FFA_TRY(sweep_emit(work, &of, &sink->sweeps, &tile, &blocks, err));
        plan->sweep_count = plan->band_count = 0;
    }
out:
    return rc;
}

/* whole: the normal form of the list, uncut. given: NULL, or where the tiles begin. */
static ffa_status build_list(struct tile_sink *sink, struct sweep_work *work,
                             const struct normal *whole, const struct tile_options *opts,
                             const struct cut_list *given, int32_t list, ffa_error *err)
{
    struct tile_plan *plan = sink->sweeps.plan;
    const struct normal *normal = work->normal;
    const struct cut_shape shape = { .rows = (int32_t)tile_own_length(plan),
                                     .tile_size = tile_size(plan),
                                     .cuts = opts->cuts,
                                     .normal = whole,
                                     .marks = sink->marks,
                                     .mark_count = sink->mark_count };
    struct cut_list made = { 0 }, cuts;
    struct weighed *tiles = NULL;
    int64_t segment = 0;
    ffa_status rc = FFA_OK;

    if (!given)
        FFA_TRY(cut_build(&made, work, &shape, err));
    cuts = given ? *given : made;
    plan->area = area_add(plan->area, normal->area);
    if (sink->counts_only) {
        rc = count_tiles(sink, work, &cuts, shape.rows, err);
        goto out;
    }
    FFA_TRY(grow_tiles(sink, cuts.count, err));
    tiles = mem_array(2 * (size_t)cuts.count, sizeof *tiles);
    if (!tiles) {
        rc = error_nomem(err, "the order of tiles");
        goto out;
    }
    for (int64_t i = 0; i < cuts.count; i++) {
        const struct sweep_rows rows = rows_of(normal, &cuts, i, shape.rows, &segment);

        FFA_TRY(sweep_emit(work, &rows, &sink->sweeps, &tiles[i].tile, &tiles[i].blocks, err));
        tiles[i].tile.list = (uint16_t)list;
        tiles[i].group =
            plan->axis == TILE_OWNS_KEYS ? tile_group_of(&plan->stages, rows.begin) : 0;
    }
    add_in_order(plan, tiles, cuts.count);
    plan->list_begin[list + 1] = (int32_t)plan->tile_count;
out:
    mem_free(tiles);
    cut_finish(&made);
    return rc;
}

/* ---- build ---- */

/* What a plan is built from. */
struct source {
    const ffa_mask *mask;
    const struct tile_options *opts;
    const struct cut_list *cuts;      /* [lists]; NULL: where tile_build has them */
    const struct tile_stages *stages; /* NULL: all keys are there */
    bool counts_only;
};

/* The normal forms of a list where it is not the mask's own one that tiles are made of. */
struct forms {
    struct normal transposed; /* backward */
    struct normal cut;        /* forward, at the ends of stages */
};

static void forms_finish(struct forms *forms)
{
    normal_finish(&forms->transposed);
    normal_finish(&forms->cut);
}

/* The normal form that sweeps are made of, and the whole one, of list `list`. */
static ffa_status forms_make(struct forms *forms, struct sweep_work *work,
                             const struct normal **whole, const struct tile_plan *plan,
                             const struct normal *from, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    forms_finish(forms);
    *whole = work->normal = from;
    if (plan->axis == TILE_OWNS_KEYS) {
        FFA_TRY(normal_transpose(&forms->transposed, from, err));
        *whole = work->normal = &forms->transposed;
    } else if (plan->stages.count > 1) {
        FFA_TRY(normal_cut(&forms->cut, from, plan->stages.ends, plan->stages.count - 1, err));
        work->normal = &forms->cut;
    }
out:
    return rc;
}

static ffa_status begin(struct tile_plan *plan, struct tile_sink *sink, const struct source *from,
                        ffa_error *err)
{
    ffa_status rc = FFA_OK;

    if (from->mask->head_count > LISTS_MAX) {
        rc = error_fail(err, FFA_UNSUPPORTED, 0, "the mask has %d lists of slices, plans take %d",
                        (int)from->mask->head_count, LISTS_MAX);
        goto out;
    }
    if (from->stages) {
        FFA_TRY(tile_stages_copy(&plan->stages, from->stages, err));
        if (plan->axis == TILE_OWNS_KEYS)
            FFA_TRY(tile_stages_marks(&sink->marks, &sink->mark_count, from->stages, err));
    }
    plan->list_begin = mem_array((size_t)plan->list_count + 1, sizeof *plan->list_begin);
    if (!plan->list_begin)
        rc = error_nomem(err, "the lists of a plan");
out:
    return rc;
}

static ffa_status rows_find(struct tile_plan *plan, ffa_error *err)
{
    plan->rows = mem_array((size_t)plan->tile_count, sizeof *plan->rows);
    if (!plan->rows)
        return error_nomem(err, "the rows of a plan");
    for (int64_t t = 0; t < plan->tile_count; t++) {
        const struct plan_tile *tile = &plan->tiles[t];
        const struct plan_sweep *sweeps = &plan->sweeps[tile->sweep_begin];
        int64_t full = 0;

        for (int32_t i = 0; i < tile->sweep_count; i++)
            full += sweep_full_blocks(&sweeps[i], tile_block_size(plan), plan->on_grid);
        if (tile->sweep_count)
            plan->rows[t] = (struct tile_rows){ sweeps[0].begin, sweeps[tile->sweep_count - 1].end,
                                                plan->block_counts[t] - (int32_t)full };
    }
    return FFA_OK;
}

/* What follows from all tiles together. */
static ffa_status complete(struct tile_plan *plan, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    if (plan->axis == TILE_OWNS_KEYS) {
        if (plan->on_grid)
            FFA_TRY(ticket_build(plan, err));
        FFA_TRY(rows_find(plan, err));
        FFA_TRY(lockstep_find(plan, err));
    }
#ifndef NDEBUG
    FFA_TRY(tile_check(plan, err));
#endif
out:
    return rc;
}

static ffa_status build(struct tile_plan *out, enum tile_axis axis, const struct source *from,
                        ffa_error *err)
{
    const struct tile_options *opts = from->opts;
    struct tile_plan plan = { .shape = from->mask->shape,
                              .axis = axis,
                              .tile_m = opts->tile_m,
                              .tile_n = opts->tile_n,
                              .cuts = opts->cuts,
                              .on_grid = opts->on_grid,
                              .list_count = from->mask->head_count };
    struct tile_sink sink = { .sweeps.plan = &plan, .counts_only = from->counts_only };
    struct sweep_work work = { .block_size = tile_block_size(&plan),
                               .stages = axis == TILE_OWNS_QUERIES ? from->stages : NULL,
                               .on_grid = opts->on_grid };
    struct forms forms = { 0 };
    ffa_status rc;

    assert(opts->tile_m > 0 && opts->tile_n > 0 && from->mask->head_count > 0);
    assert(tile_own_length(&plan) >= 0 && tile_own_length(&plan) <= INT32_MAX);
    *out = (struct tile_plan){ 0 };
    FFA_TRY(begin(&plan, &sink, from, err));
    for (int32_t list = 0; list < plan.list_count; list++) {
        const struct normal *whole;

        FFA_TRY(forms_make(&forms, &work, &whole, &plan, &from->mask->lists[list].normal, err));
        FFA_TRY(build_list(&sink, &work, whole, opts, from->cuts ? &from->cuts[list] : NULL, list,
                           err));
    }
    if (!from->counts_only)
        FFA_TRY(complete(&plan, err));
    *out = plan;
    plan = (struct tile_plan){ 0 };
    rc = FFA_OK;
out:
    forms_finish(&forms);
    sweep_finish(&work);
    mem_free(sink.marks);
    tile_finish(&plan);
    return rc;
}

ffa_status tile_build_at(struct tile_plan *out, const ffa_mask *mask, enum tile_axis axis,
                         const struct tile_options *opts, const struct cut_list *cuts,
                         ffa_error *err)
{
    return build(out, axis, &(struct source){ .mask = mask, .opts = opts, .cuts = cuts }, err);
}

ffa_status tile_count(struct tile_plan *out, const ffa_mask *mask, enum tile_axis axis,
                      const struct tile_options *opts, const struct cut_list *cuts, ffa_error *err)
{
    return build(out, axis,
                 &(struct source){ .mask = mask, .opts = opts, .cuts = cuts, .counts_only = true },
                 err);
}

ffa_status tile_build(struct tile_plan *out, const ffa_mask *mask, enum tile_axis axis,
                      const struct tile_options *opts, ffa_error *err)
{
    return tile_build_at(out, mask, axis, opts, NULL, err);
}

ffa_status tile_build_arriving(struct tile_plan *out, const ffa_mask *mask, enum tile_axis axis,
                               const struct tile_options *opts, const struct tile_stages *stages,
                               ffa_error *err)
{
    return tile_build_arriving_at(out, mask, axis, opts, NULL, stages, err);
}

ffa_status tile_build_arriving_at(struct tile_plan *out, const ffa_mask *mask, enum tile_axis axis,
                                  const struct tile_options *opts, const struct cut_list *cuts,
                                  const struct tile_stages *stages, ffa_error *err)
{
    const struct source from = { .mask = mask, .opts = opts, .cuts = cuts, .stages = stages };

    assert(tile_stages_hold(stages, mask->shape.seqlen_k));
    return build(out, axis, &from, err);
}

/* ---- plans from plans ---- */

ffa_status tile_init_like(struct tile_plan *out, const struct tile_plan *from, ffa_error *err)
{
    const size_t tiles = (size_t)from->tile_count;

    *out = (struct tile_plan){
        .shape = from->shape,
        .axis = from->axis,
        .tile_m = from->tile_m,
        .tile_n = from->tile_n,
        .cuts = from->cuts,
        .on_grid = from->on_grid,
        .is_stage = true,
        .list_count = from->list_count,
        .list_begin = mem_array((size_t)from->list_count + 1, sizeof *out->list_begin),
        .tiles = mem_array(tiles, sizeof *out->tiles),
        .block_counts = mem_array(tiles, sizeof *out->block_counts),
    };
    if (out->list_begin && out->tiles && out->block_counts)
        return FFA_OK;
    tile_finish(out);
    return error_nomem(err, "the tiles of a stage");
}

static void *copy_of(const void *from, int64_t count, size_t size)
{
    void *copy = mem_array((size_t)count, size);

    if (copy && count)
        memcpy(copy, from, (size_t)count * size);
    return copy;
}

ffa_status tile_copy_work(struct tile_plan *out, const struct tile_plan *from, ffa_error *err)
{
    *out = *from;
    out->list_begin = NULL;
    out->tiles = NULL;
    out->sweeps = NULL;
    out->bands = NULL;
    out->tickets = NULL;
    out->splits = NULL;
    out->stages = (struct tile_stages){ 0 };
    out->rows = copy_of(from->rows, from->tile_count, sizeof *from->rows);
    out->block_counts = copy_of(from->block_counts, from->tile_count, sizeof *from->block_counts);
    if (out->rows && out->block_counts)
        return FFA_OK;
    tile_finish(out);
    return error_nomem(err, "the plan's order");
}

void tile_finish(struct tile_plan *plan)
{
    if (!plan)
        return;
    mem_free(plan->list_begin);
    mem_free(plan->tiles);
    mem_free(plan->block_counts);
    mem_free(plan->rows);
    mem_free(plan->sweeps);
    mem_free(plan->bands);
    mem_free(plan->tickets);
    mem_free(plan->splits);
    tile_stages_finish(&plan->stages);
    *plan = (struct tile_plan){ 0 };
}
