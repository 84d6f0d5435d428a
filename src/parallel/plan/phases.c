/* SPDX-License-Identifier: Apache-2.0
 *
 * phases_build: what one rank does in each phase of both passes. A phase is the spans of keys it
 * works on; the bands of the rank's rows, cut to these spans and moved to the rows of its buffer,
 * are the phase's cells, of which staged_build makes the tiles. So all that a phase computes
 * follows from its spans, and what a rank sends follows from the receives of the others.
 */
#include "parallel/plan/phases.h"

#include "parallel/plan/relays.h"
#include "parallel/plan/spans.h"
#include "tile/staged.h"

/* As in plan_tables, "keys" are what moves and "queries" what stays; what is written into the plan
 * has its own names. */
struct build {
    ffa_parallel_plan *plan;
    const struct plan_tables *tables;
    const struct rank_needs *needs;
    const struct stages *stages;
    const struct layout *queries, *keys; /* keys are what moves */
    struct bands *lists;   /* [list_count]: query rows of the rank's buffer, keys of the sequence */
    struct cut_list *cuts; /* [list_count]; queries do not move */
    uint8_t *needed;       /* [own keys]: whether another rank receives the row */
    struct rank_receives receives; /* of the rank */
    struct rank_receives sends;    /* what other ranks receive of it, by rank */
    int64_t *send_begin;           /* [ranks + 1]: into sends */
    /* Of a phase, by what lies packed in its buffer: own keys, or those received from the rank's
     * node; those received from other nodes. */
    struct spans near, far;
};

/* ---- the rank's rows of the mask ---- */

/* Rows of `from` in the rank's chunks, numbered as in its buffer. */
static ffa_status local_rows(struct normal *out, const struct normal *from,
                             const struct layout *queries, int32_t rank, ffa_error *err)
{
    struct normal_writer writer = { .out = out };
    int64_t s = 0;
    ffa_status rc = FFA_OK;

    for (int64_t i = queries->rank_begin[rank]; i < queries->rank_begin[rank + 1]; i++) {
        const int64_t chunk = queries->rank_chunks[i];
        const int64_t begin = queries->bounds[chunk], end = queries->bounds[chunk + 1];
        const int64_t shift = queries->local[chunk] - begin;

        while (s < from->segment_count && from->segments[s].row_end <= begin)
            s++;
        for (int64_t t = s; t < from->segment_count && from->segments[t].row_begin < end; t++) {
            const struct normal_segment *segment = &from->segments[t];
            const int64_t row_begin = max64(segment->row_begin, begin);
            const int32_t skip = (int32_t)(row_begin - segment->row_begin);
            const int64_t first = out->interval_count;

            for (int32_t k = 0; k < segment->interval_count; k++) {
                const struct normal_interval one =
                    normal_interval_at(&from->intervals[segment->interval_begin + k], skip);

                FFA_TRY(normal_add_interval(&writer, &one, row_begin + shift, err));
            }
            FFA_TRY(normal_add_segment(&writer, row_begin + shift,
                                       min64(segment->row_end, end) + shift, first, err));
        }
    }
    normal_complete(out);
out:
    return rc;
}

/* The rank's rows, with query tiles for all phases: chosen for the rows over all their keys. */
static ffa_status find_rows(struct build *b, ffa_error *err)
{
    const ffa_parallel_plan *plan = b->plan;
    const struct tile_options opts = { .tile_m = plan->opts.tile_m, .tile_n = plan->opts.tile_n };
    const int32_t rows = (int32_t)b->queries->rank_tokens[plan->rank];
    struct normal normal = { 0 };
    ffa_status rc = FFA_OK;

    for (int32_t l = 0; l < plan->list_count; l++) {
        normal_finish(&normal);
        FFA_TRY(local_rows(&normal, plan_tables_normal(b->tables, l), b->queries, plan->rank, err));
        b->plan->area = area_add(b->plan->area, normal.area);
        if (!b->tables->moves_queries)
            FFA_TRY(staged_cuts(&b->cuts[l], &normal, rows, &opts, err));
        FFA_TRY(bands_add_normal(&b->lists[l], &normal, err));
    }
out:
    normal_finish(&normal);
    return rc;
}

/* What other ranks receive of the rank's keys. */
static ffa_status find_sends(struct build *b, ffa_error *err)
{
    const int32_t ranks = b->needs->topology.rank_count;
    ffa_status rc = FFA_OK;

    b->send_begin = mem_array((size_t)ranks + 1, sizeof *b->send_begin);
    if (!b->send_begin)
        return error_nomem(err, "the sends of a rank");
    for (int32_t r = 0; r < ranks; r++) {
        FFA_TRY(rank_receives_from(&b->sends, b->needs, r, b->plan->rank, err));
        b->send_begin[r + 1] = b->sends.count;
    }
    for (int64_t i = 0; i < b->sends.count; i++)
        b->plan->sent_rows += b->sends.at[i].end - b->sends.at[i].begin;
out:
    return rc;
}

/* Own keys that another rank receives. Many receive the same, so ranges are joined first. */
static ffa_status find_needed(struct build *b, ffa_error *err)
{
    struct range *rows = mem_array((size_t)b->sends.count, sizeof *rows);
    int64_t count = b->sends.count;

    if (!rows)
        return error_nomem(err, "the sends of a rank");
    for (int64_t i = 0; i < count; i++) {
        const struct rank_receive *send = &b->sends.at[i];

        rows[i] = (struct range){ send->source_row, send->source_row + send->end - send->begin };
    }
    count = ranges_join(rows, count);
    for (int64_t i = 0; i < count; i++)
        memset(b->needed + rows[i].begin, 1, (size_t)(rows[i].end - rows[i].begin));
    mem_free(rows);
    return FFA_OK;
}

/* ---- one phase ---- */

static void own_spans(struct build *b)
{
    const struct layout *keys = b->keys;
    const int32_t rank = b->plan->rank;

    b->near.count = b->far.count = 0;
    if (keys->is_replicated) {
        spans_add(&b->near, (struct span){ 0, keys->bounds[keys->count], 0 });
        return;
    }
    for (int64_t i = keys->rank_begin[rank]; i < keys->rank_begin[rank + 1]; i++) {
        const int64_t chunk = keys->rank_chunks[i];

        spans_add(&b->near, (struct span){ keys->bounds[chunk], keys->bounds[chunk + 1],
                                           keys->local[chunk] });
    }
}

/* Rows of the stage whose ordered rows begin at `begin`. */
static ffa_status add_part(struct transfer_copies *copies, const struct rank_receive *part,
                           int64_t begin, int32_t source, ffa_error *err)
{
    const struct transfer_copy copy = { .source_row = part->source_row,
                                        .row = part->row - begin,
                                        .rows = part->end - part->begin,
                                        .source = source };

    return transfer_copies_add(copies, &copy, err);
}

/* The spans and copies of the stage with the ordered rows [begin, end). Rows of the node stand
 * before those of the network, so copies are collected by class. */
static ffa_status stage_receives(struct build *b, struct plan_phase *phase, int64_t begin,
                                 int64_t end, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    b->near.count = b->far.count = 0;
    for (int near = 1; near >= 0; near--)
        for (int64_t i = 0; i < b->receives.count; i++) {
            const struct rank_receive *receive = &b->receives.at[i];
            struct rank_receive part;

            if (receive->is_near != near || !rank_receive_cut(&part, receive, begin, end))
                continue;
            FFA_TRY(add_part(&phase->receives, &part, begin, part.owner, err));
            spans_add(near ? &b->near : &b->far,
                      (struct span){ part.begin, part.end, part.row - begin });
        }
    phase->rows = end - begin;
out:
    return rc;
}

/* The band with queries and keys exchanged. */
static struct band band_turn(const struct band *band)
{
    return (struct band){ band->k_begin, band->k_end, band->q_begin,
                          band->q_end,   -band->hi,   -band->lo };
}

/* The bands of a phase, from the spans of its keys. */
static ffa_status phase_bands(struct build *b, struct plan_phase *phase, ffa_error *err)
{
    const int32_t lists = b->plan->list_count;
    ffa_status rc = FFA_OK;

    phase->lists = mem_array((size_t)lists, sizeof *phase->lists);
    if (!phase->lists)
        return error_nomem(err, "the bands of a stage");
    for (int32_t l = 0; l < lists; l++) {
        struct bands *bands = &phase->lists[l];

        for (int64_t i = 0; i < b->lists[l].count; i++) {
            FFA_TRY(spans_cut(bands, &b->lists[l].at[i], &b->near, err));
            FFA_TRY(spans_cut(bands, &b->lists[l].at[i], &b->far, err));
        }
        for (int64_t i = 0; b->tables->moves_queries && i < bands->count; i++)
            bands->at[i] = band_turn(&bands->at[i]);
    }
out:
    return rc;
}

/* Spans, receives and bands of phase p; own_last is the same as own. */
static ffa_status phase_rows(struct build *b, struct plan_pass *pass, const struct stage_cut *cut,
                             int32_t p, ffa_error *err)
{
    struct plan_phase *phase = &pass->phases[p];
    ffa_status rc = FFA_OK;

    if (p == 0 || p > cut->count) {
        own_spans(b);
        phase->rows = b->keys->rank_tokens[b->plan->rank];
    } else {
        FFA_TRY(stage_receives(b, phase, cut->begins[p - 1], cut->ends[p - 1], err));
        phase->fetch_ns = cut->fetch_ns[p - 1];
        phase->compute_ns = cut->compute_ns[p - 1];
        phase->reduce_ns = cut->reduce_ns[p - 1];
        pass->buffer_rows = max64(pass->buffer_rows, phase->rows);
    }
    rc = phase_bands(b, phase, err);
out:
    return rc;
}

/* The tiles of `count` phases of a pass from phase `first` on, from their bands. */
static ffa_status build_tiles(const struct build *b, struct plan_pass *pass, int32_t first,
                              int32_t count, const struct staged_options *opts, ffa_error *err)
{
    struct plan_phase *phases = &pass->phases[first];
    const int64_t rows = b->queries->rank_tokens[b->plan->rank];
    struct stage_cells *stages = mem_array((size_t)count, sizeof *stages);
    struct staged_plan *plans = mem_array((size_t)count, sizeof *plans);
    ffa_status rc;

    if (!stages || !plans) {
        rc = error_nomem(err, "the tiles of stages");
        goto out;
    }
    for (int32_t p = 0; p < count; p++) {
        const struct plan_phase *phase = &phases[p];

        stages[p].shape = b->tables->moves_queries ? (ffa_mask_shape){ phase->rows, rows }
                                                   : (ffa_mask_shape){ rows, phase->rows };
        stages[p].lists = phase->lists;
    }
    FFA_TRY(staged_build(plans, stages, count, opts, err));
    for (int32_t p = 0; p < count; p++) {
        phases[p].tiles = plans[p].forward;
        phases[p].key_tiles = plans[p].backward;
    }
out:
    mem_free(stages);
    mem_free(plans);
    return rc;
}

/* The pass with its times, and room for phases: so many of own keys, and one a stage. */
static ffa_status pass_init(struct plan_pass *pass, const struct stage_cut *cut, int32_t own_phases,
                            ffa_error *err)
{
    const int32_t phases = own_phases + cut->count;

    pass->stage_count = cut->count;
    pass->half_rows = cut->half_rows;
    pass->copy_ns = cut->copy_ns;
    pass->cost_ns = cut->cost_ns;
    pass->uniform_ns = cut->uniform_ns;
    pass->phases = mem_array((size_t)phases, sizeof *pass->phases);
    if (!pass->phases)
        return error_nomem(err, "stages");
    pass->phase_count = phases;
    return FFA_OK;
}

/* ---- forward ---- */

/* Where queries move: partial results, but for own rows that nobody else works on. */
static void flag_partial(const struct build *b)
{
    const struct plan_pass *pass = &b->plan->forward;

    for (int32_t p = 0; p < pass->phase_count; p++)
        for (int64_t t = 0; t < pass->phases[p].tiles.tile_count; t++) {
            struct plan_tile *tile = &pass->phases[p].tiles.tiles[t];

            if (p > 0 || memchr(b->needed + tile->begin, 1, (size_t)tile->count))
                tile->flags = PLAN_TILE_CONTINUES;
        }
}

static ffa_status build_forward(struct build *b, ffa_error *err)
{
    const struct stage_cut *cut = &b->stages->forward[b->plan->rank];
    const struct tile_options tiles = { .tile_m = b->plan->opts.tile_m,
                                        .tile_n = b->plan->opts.tile_n };
    const struct staged_options opts = { .list_count = b->plan->list_count,
                                         .forward = &tiles,
                                         .cuts = b->cuts,
                                         .has_own_rows = b->tables->moves_queries,
                                         .counts_only = b->plan->is_outline };
    struct plan_pass *pass = &b->plan->forward;
    ffa_status rc;

    FFA_TRY(pass_init(pass, cut, 1, err));
    pass->phases[0].compute_ns = cut->own_ns;
    for (int32_t p = 0; p < pass->phase_count; p++)
        FFA_TRY(phase_rows(b, pass, cut, p, err));
    FFA_TRY(build_tiles(b, pass, 0, pass->phase_count, &opts, err));
    if (b->tables->moves_queries)
        flag_partial(b);
out:
    return rc;
}

/* ---- backward ---- */

/* The tiles of `from` whose keep is `which`, with their sweeps and bands, in the order of tiles. */
static ffa_status take_tiles(struct tile_plan *out, const struct tile_plan *from,
                             const uint8_t *keep, uint8_t which, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(tile_init_like(out, from, err));
    out->sweeps = mem_array((size_t)from->sweep_count, sizeof *out->sweeps);
    out->bands = mem_array((size_t)from->band_count, sizeof *out->bands);
    if (!out->sweeps || !out->bands) {
        rc = error_nomem(err, "the key tiles of a stage");
        goto out;
    }
    for (int32_t l = 0; l < from->list_count; l++) {
        for (int64_t t = from->list_begin[l]; t < from->list_begin[l + 1]; t++) {
            struct plan_tile tile = from->tiles[t];

            if (keep[t] != which)
                continue;
            if (tile.sweep_count) { /* each sweep has a band */
                memcpy(out->sweeps + out->sweep_count, from->sweeps + tile.sweep_begin,
                       (size_t)tile.sweep_count * sizeof *out->sweeps);
                memcpy(out->bands + out->band_count, from->bands + tile.band_begin,
                       (size_t)tile.band_count * sizeof *out->bands);
            }
            tile.sweep_begin = (int32_t)out->sweep_count;
            tile.band_begin = (int32_t)out->band_count;
            out->sweep_count += tile.sweep_count;
            out->band_count += tile.band_count;
            out->block_count += from->block_counts[t];
            out->block_counts[out->tile_count] = from->block_counts[t];
            out->tiles[out->tile_count++] = tile;
        }
        out->list_begin[l + 1] = (int32_t)out->tile_count;
    }
out:
    return rc;
}

/* early [tiles]: those computed while the first stage is fetched: tiles that no other rank needs,
 * then others where these do not cover the fetch. Returns their time. Where queries move, tiles of
 * own keys add to dq of own rows, which all may be needed: any will do. */
static int64_t choose_early(uint8_t *early, const struct build *b, const struct tile_plan *all,
                            int64_t budget_ns)
{
    int64_t sum = 0;

    for (int needed = 0; needed <= 1; needed++)
        for (int64_t t = 0; t < all->tile_count && sum < budget_ns; t++) {
            const struct plan_tile *tile = &all->tiles[t];
            const bool is_needed = !b->tables->moves_queries &&
                                   memchr(b->needed + tile->begin, 1, (size_t)tile->count);
            const int64_t cells = (int64_t)all->block_counts[t] * all->tile_m * all->tile_n;

            if (is_needed != needed)
                continue;
            early[t] = 1;
            sum = area_add(sum, model_compute_ns(&b->plan->opts, all->list_count, cells, true));
        }
    return sum;
}

static ffa_status split_own(struct build *b, const struct stage_cut *cut, ffa_error *err)
{
    struct plan_pass *pass = &b->plan->backward;
    struct plan_phase *first = &pass->phases[0], *last = &pass->phases[pass->phase_count - 1];
    struct tile_plan all = first->key_tiles;
    uint8_t *early = mem_array((size_t)all.tile_count, 1);
    ffa_status rc;

    first->key_tiles = (struct tile_plan){ 0 };
    if (!early) {
        rc = error_nomem(err, "the key tiles of a stage");
        goto out;
    }
    first->compute_ns = choose_early(early, b, &all, cut->count > 0 ? cut->fetch_ns[0] : INT64_MAX);
    first->compute_ns = min64(first->compute_ns, cut->own_ns);
    last->compute_ns = cut->own_ns - first->compute_ns;
    FFA_TRY(take_tiles(&first->key_tiles, &all, early, 1, err));
    rc = take_tiles(&last->key_tiles, &all, early, 0, err);
out:
    mem_free(early);
    tile_finish(&all);
    return rc;
}

/* Which partial gradients come in between the first phase and the last: see rank_plan.h. */
static void flag_key_tiles(const struct build *b)
{
    const struct plan_pass *pass = &b->plan->backward;
    const bool all_needed = b->keys->is_replicated && b->needs->topology.rank_count > 1;

    for (int32_t p = 0; p < pass->phase_count; p++)
        for (int64_t t = 0; t < pass->phases[p].key_tiles.tile_count; t++) {
            struct plan_tile *tile = &pass->phases[p].key_tiles.tiles[t];
            const bool is_own = p == 0 || p > pass->stage_count;

            if (b->tables->moves_queries) /* `needed` is of query rows */
                tile->flags = PLAN_TILE_MERGES | PLAN_TILE_CONTINUES;
            else if (!is_own || all_needed ||
                     memchr(b->needed + tile->begin, 1, (size_t)tile->count))
                tile->flags = p > pass->stage_count ? PLAN_TILE_MERGES : PLAN_TILE_CONTINUES;
        }
}

static ffa_status build_backward(struct build *b, ffa_error *err)
{
    const struct stage_cut *cut = &b->stages->backward[b->plan->rank];
    const struct tile_options tiles = { .tile_m = b->plan->opts.backward_m,
                                        .tile_n = b->plan->opts.backward_n };
    struct staged_options opts = { .list_count = b->plan->list_count, .backward = &tiles };
    struct plan_pass *pass = &b->plan->backward;
    ffa_status rc;

    FFA_TRY(pass_init(pass, cut, 2, err));
    for (int32_t p = 0; p < pass->phase_count; p++)
        FFA_TRY(phase_rows(b, pass, cut, p, err));
    FFA_TRY(build_tiles(b, pass, 0, 1, &opts, err)); /* tiles in any case: they are divided */
    FFA_TRY(split_own(b, cut, err));
    opts.counts_only = b->plan->is_outline;
    FFA_TRY(build_tiles(b, pass, 1, cut->count, &opts, err));
    flag_key_tiles(b);
out:
    return rc;
}

/* ---- what others fetch ---- */

static ffa_status send_to(const struct build *b, struct plan_pass *pass, int32_t rank,
                          const struct stage_cut *cut, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    for (int64_t i = b->send_begin[rank]; i < b->send_begin[rank + 1]; i++)
        for (int32_t s = 0; s < cut->count; s++) {
            struct rank_receive part;

            if (rank_receive_cut(&part, &b->sends.at[i], cut->begins[s], cut->ends[s]))
                FFA_TRY(add_part(&pass->sends[s], &part, cut->begins[s], rank, err));
        }
    for (int32_t s = 0; s < cut->count; s++)
        pass->stage_begins[(int64_t)rank * pass->step_count + s] = stage_window_row(cut, s);
out:
    return rc;
}

static ffa_status build_sends(const struct build *b, struct plan_pass *pass,
                              const struct stage_cut *cuts, ffa_error *err)
{
    const int32_t ranks = b->needs->topology.rank_count;
    ffa_status rc = FFA_OK;

    for (int32_t r = 0; r < ranks; r++) {
        pass->slowest_ns = max64(pass->slowest_ns, cuts[r].cost_ns);
        pass->work_ns = area_add(pass->work_ns, cuts[r].work_ns);
        pass->work_most_ns = max64(pass->work_most_ns, cuts[r].work_ns);
        pass->step_count = cuts[r].count > pass->step_count ? cuts[r].count : pass->step_count;
    }
    pass->sends = mem_array((size_t)pass->step_count, sizeof *pass->sends);
    pass->stage_begins =
        mem_array((size_t)ranks * (size_t)pass->step_count, sizeof *pass->stage_begins);
    if (!pass->sends || !pass->stage_begins) {
        rc = error_nomem(err, "copies");
        goto out;
    }
    for (int32_t r = 0; r < ranks; r++)
        FFA_TRY(send_to(b, pass, r, &cuts[r], err));
out:
    return rc;
}

/* Of a pass over GPUs: an outline is not run, rounds and queries that move have no relays. */
static ffa_status build_relays(const struct build *b, struct plan_pass *pass,
                               const struct stage_cut *cuts, ffa_error *err)
{
    const ffa_parallel_plan *plan = b->plan;

    if (plan->is_outline || b->tables->moves_queries || b->stages->rounds.stage_rows > 0 ||
        b->keys->is_replicated)
        return FFA_OK;
    return relays_build(&pass->relays, b->needs, cuts, plan->rank, err);
}

/* ---- all of it ---- */

/* The rank's rows, keys and copies, before any phase. */
static ffa_status build_init(struct build *b, ffa_error *err)
{
    const size_t lists = (size_t)b->plan->list_count;
    const int32_t rank = b->plan->rank;
    size_t spans;
    ffa_status rc;

    FFA_TRY(rank_receives_build(&b->receives, b->needs, rank, err));
    FFA_TRY(find_sends(b, err));
    spans = (size_t)max64(b->receives.count, b->keys->count);
    b->lists = mem_array(lists, sizeof *b->lists);
    b->cuts = mem_array(lists, sizeof *b->cuts);
    b->needed = mem_array((size_t)b->keys->rank_tokens[rank], 1);
    b->near.at = mem_array(spans, sizeof *b->near.at);
    b->far.at = mem_array(spans, sizeof *b->far.at);
    if (!b->lists || !b->cuts || !b->needed || !b->near.at || !b->far.at) {
        rc = error_nomem(err, "stages");
        goto out;
    }
    FFA_TRY(find_needed(b, err));
    rc = find_rows(b, err);
out:
    return rc;
}

static void build_finish(struct build *b)
{
    for (int32_t l = 0; l < b->plan->list_count; l++) {
        if (b->lists)
            bands_finish(&b->lists[l]);
        if (b->cuts)
            cut_finish(&b->cuts[l]);
    }
    mem_free(b->lists);
    mem_free(b->cuts);
    mem_free(b->needed);
    rank_receives_finish(&b->receives);
    rank_receives_finish(&b->sends);
    mem_free(b->send_begin);
    mem_free(b->near.at);
    mem_free(b->far.at);
}

ffa_status phases_build(ffa_parallel_plan *plan, const struct plan_tables *tables, ffa_error *err)
{
    struct build b = { .plan = plan,
                       .tables = tables,
                       .needs = &tables->rank_needs,
                       .stages = &tables->stages,
                       .queries = tables->in.queries,
                       .keys = tables->in.keys };
    ffa_status rc;

    FFA_TRY(build_init(&b, err));
    FFA_TRY(build_forward(&b, err));
    FFA_TRY(build_sends(&b, &plan->forward, b.stages->forward, err));
    FFA_TRY(build_relays(&b, &plan->forward, b.stages->forward, err));
    if (!b.stages->backward)
        goto out;
    FFA_TRY(build_backward(&b, err));
    FFA_TRY(build_sends(&b, &plan->backward, b.stages->backward, err));
    rc = build_relays(&b, &plan->backward, b.stages->backward, err);
out:
    build_finish(&b);
    return rc;
}

void phases_finish(struct plan_pass *pass, int32_t list_count)
{
    for (int32_t p = 0; pass->phases && p < pass->phase_count; p++) {
        struct plan_phase *phase = &pass->phases[p];

        transfer_copies_finish(&phase->receives);
        for (int32_t l = 0; phase->lists && l < list_count; l++)
            bands_finish(&phase->lists[l]);
        mem_free(phase->lists);
        tile_finish(&phase->tiles);
        tile_finish(&phase->key_tiles);
    }
    for (int32_t s = 0; pass->sends && s < pass->step_count; s++)
        transfer_copies_finish(&pass->sends[s]);
    mem_free(pass->phases);
    mem_free(pass->sends);
    mem_free(pass->stage_begins);
    relays_finish(&pass->relays);
    *pass = (struct plan_pass){ 0 };
}
