/* SPDX-License-Identifier: Apache-2.0
 *
 * phases_build: one rank's phases from the tables of all ranks. First its rows of the mask, with
 * query rows numbered as in its buffer; then, phase by phase, the keys at hand as spans, the mask
 * cut to them, and tiles; last, what others fetch from it in each step. Invariant: the bands of all
 * phases together are the rank's rows of the mask, each cell once. Trick: keys at hand are spans of
 * consecutive keys in consecutive rows of a buffer, so cutting a band to a buffer is a cut and a
 * shift.
 */
#include "parallel/plan/phases.h"

#include "mask/mask.h"
#include "tile/cut.h"

/* As in plan_tables, "keys" are what moves and "queries" what stays; what is written into the plan
 * has its own names. */
struct build {
    ffa_parallel_plan *plan;
    const struct plan_tables *tables;
    const struct transfer *transfer;
    const struct stages *stages;
    const struct layout *queries, *keys; /* keys are what moves */
    struct bands *lists;   /* [list_count]: query rows of the rank's buffer, keys of the sequence */
    struct cut_list *cuts; /* [list_count]; queries do not move */
    uint8_t *needed;       /* [own keys]: whether another rank receives the row */
    struct spans spans;    /* scratch: as many as chunks or receives of the rank */
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
                struct normal_interval one = from->intervals[segment->interval_begin + k];

                one.lo += one.lo_step * skip;
                one.hi += one.hi_step * skip;
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
    const struct cut_shape shape = { .rows = (int32_t)b->queries->rank_tokens[plan->rank],
                                     .tile_size = plan->opts.tile_m };
    struct normal normal = { 0 };
    struct sweep_work work = { .block_size = plan->opts.tile_n };
    ffa_status rc = FFA_OK;

    for (int32_t l = 0; l < plan->list_count; l++) {
        normal_finish(&normal);
        FFA_TRY(local_rows(&normal, plan_tables_normal(b->tables, l), b->queries, plan->rank, err));
        b->plan->area = area_add(b->plan->area, normal.area);
        work.normal = &normal;
        if (!b->tables->moves_queries)
            FFA_TRY(cut_build(&b->cuts[l], &work, &shape, err));
        FFA_TRY(bands_add_normal(&b->lists[l], &normal, err));
    }
out:
    normal_finish(&normal);
    sweep_finish(&work);
    return rc;
}

/* Own keys that another rank receives. */
static void find_needed(struct build *b)
{
    const struct transfer *t = b->transfer;
    const int32_t rank = b->plan->rank;

    for (int64_t i = t->send_begin[rank]; i < t->send_begin[rank + 1]; i++) {
        const struct transfer_piece *piece = &t->pieces[t->sends[i]];

        if (piece->receiver_count > 0)
            memset(b->needed + piece->source_row, 1, (size_t)(piece->end - piece->begin));
    }
}

/* ---- bands to tile plans ---- */

/* At most three slices: between two turns each bound of the band moves with the rows, or stands. */
static int32_t slices_of(ffa_slice out[3], const struct band *band)
{
    const int64_t lo_turn = band->k_begin - band->lo;   /* from here on the lower bound moves */
    const int64_t hi_turn = band->k_end - band->hi - 1; /* from here on the upper one does not */
    const int64_t first = min64(lo_turn, hi_turn), second = max64(lo_turn, hi_turn);
    const int64_t rows[4] = { band->q_begin, min64(max64(first, band->q_begin), band->q_end),
                              min64(max64(second, band->q_begin), band->q_end), band->q_end };
    int32_t count = 0;

    for (int i = 0; i < 3; i++) {
        const bool lo_moves = rows[i] >= lo_turn, hi_moves = rows[i] < hi_turn;

        if (rows[i] == rows[i + 1])
            continue;
        out[count++] = (ffa_slice){
            .q_begin = rows[i],
            .q_end = rows[i + 1],
            .k_begin = lo_moves ? rows[i] + band->lo : band->k_begin,
            .k_end = hi_moves ? rows[i + 1] + band->hi : band->k_end,
            .type = (lo_moves ? FFA_SLICE_INVCAUSAL : 0) | (hi_moves ? FFA_SLICE_CAUSAL : 0),
        };
    }
    return count;
}

static ffa_status normal_from_bands(struct normal *out, const struct bands *bands, ffa_error *err)
{
    ffa_slice *slices = mem_array((size_t)bands->count * 3, sizeof *slices);
    int64_t count = 0;
    ffa_status rc;

    if (!slices)
        return error_nomem(err, "the mask of a stage");
    for (int64_t i = 0; i < bands->count; i++)
        count += slices_of(slices + count, &bands->at[i]);
    rc = normal_build(out, slices, count, err);
    mem_free(slices);
    return rc;
}

/* The mask of a phase, from its bands. */
static ffa_status mask_init(ffa_mask *out, const struct build *b, const struct plan_phase *phase,
                            ffa_error *err)
{
    const int64_t rows = b->queries->rank_tokens[b->plan->rank];
    ffa_status rc = FFA_OK;

    *out = (ffa_mask){ .shape = { rows, phase->rows },
                       .head_count = b->plan->list_count,
                       .lists = mem_array((size_t)b->plan->list_count, sizeof *out->lists) };
    if (b->tables->moves_queries)
        out->shape = (ffa_mask_shape){ phase->rows, rows };
    if (!out->lists)
        return error_nomem(err, "the mask of a stage");
    for (int32_t l = 0; l < out->head_count; l++)
        FFA_TRY(normal_from_bands(&out->lists[l].normal, &phase->lists[l], err));
out:
    return rc;
}

static void mask_finish(ffa_mask *mask)
{
    for (int32_t l = 0; mask->lists && l < mask->head_count; l++)
        normal_finish(&mask->lists[l].normal);
    mem_free(mask->lists);
}

/* ---- one phase ---- */

static ffa_status add_copy(struct transfer_copies *copies, const struct transfer_copy *copy,
                           ffa_error *err)
{
    struct transfer_copy *last = copies->count > 0 ? &copies->at[copies->count - 1] : NULL;

    if (last && last->source == copy->source && last->source_row + last->rows == copy->source_row &&
        last->row + last->rows == copy->row) {
        last->rows += copy->rows;
        return FFA_OK;
    }
    if (!mem_grow((void **)&copies->at, &copies->capacity, copies->count + 1, sizeof *copies->at))
        return error_nomem(err, "copies");
    copies->at[copies->count++] = *copy;
    return FFA_OK;
}

static void own_spans(struct build *b)
{
    const struct layout *keys = b->keys;
    const int32_t rank = b->plan->rank;

    b->spans.count = 0;
    if (keys->is_replicated) {
        spans_add(&b->spans, (struct span){ 0, keys->bounds[keys->count], 0 });
        return;
    }
    for (int64_t i = keys->rank_begin[rank]; i < keys->rank_begin[rank + 1]; i++) {
        const int64_t chunk = keys->rank_chunks[i];

        spans_add(&b->spans, (struct span){ keys->bounds[chunk], keys->bounds[chunk + 1],
                                            keys->local[chunk] });
    }
}

/* The part of a receive inside the ordered rows [begin, end): its keys, and rows from begin. */
static bool part_of(struct span *out, const struct build *b, int64_t receive, int64_t begin,
                    int64_t end)
{
    const struct transfer_receive *r = &b->transfer->receives[receive];
    const struct transfer_piece *piece = &b->transfer->pieces[r->piece];
    const int64_t row = b->stages->row[receive];
    const int64_t from = max64(row, begin), to = min64(row + piece->end - piece->begin, end);

    *out = (struct span){ piece->begin + from - row, piece->begin + to - row, from - begin };
    return from < to;
}

/* The spans and copies of the stage with the ordered rows [begin, end). Rows of the node stand
 * before those of the network, so copies are collected by class. */
static ffa_status stage_receives(struct build *b, struct plan_phase *phase, int64_t begin,
                                 int64_t end, ffa_error *err)
{
    const struct transfer *t = b->transfer;
    const int32_t rank = b->plan->rank, width = t->topology.ranks_per_node;
    ffa_status rc = FFA_OK;

    b->spans.count = 0;
    for (int far = 0; far < 2; far++)
        for (int64_t i = t->receive_begin[rank]; i < t->receive_begin[rank + 1]; i++) {
            const struct transfer_piece *piece = &t->pieces[t->receives[i].piece];
            struct span part;

            if ((piece->owner / width != rank / width) != (far == 1) ||
                !part_of(&part, b, i, begin, end))
                continue;
            FFA_TRY(add_copy(&phase->receives,
                             &(struct transfer_copy){ .source_row = piece->source_row + part.begin -
                                                                    piece->begin,
                                                      .row = part.row,
                                                      .rows = part.end - part.begin,
                                                      .source = piece->owner },
                             err));
        }
    for (int64_t i = t->receive_begin[rank]; i < t->receive_begin[rank + 1]; i++) {
        struct span part;

        if (part_of(&part, b, i, begin, end))
            spans_add(&b->spans, part);
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

        for (int64_t i = 0; i < b->lists[l].count; i++)
            FFA_TRY(spans_cut(bands, &b->lists[l].at[i], 0, &b->spans, err));
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
        FFA_TRY(stage_receives(b, phase, p > 1 ? cut->ends[p - 2] : 0, cut->ends[p - 1], err));
        phase->fetch_ns = cut->fetch_ns[p - 1];
        phase->compute_ns = cut->compute_ns[p - 1];
        phase->reduce_ns = cut->reduce_ns[p - 1];
        pass->buffer_rows = max64(pass->buffer_rows, phase->rows);
    }
    rc = phase_bands(b, phase, err);
out:
    return rc;
}

/* ---- forward ---- */

static ffa_status forward_tiles(struct build *b, struct plan_phase *phase, ffa_error *err)
{
    const ffa_parallel_plan *plan = b->plan;
    const struct tile_options opts = { .tile_m = plan->opts.tile_m, .tile_n = plan->opts.tile_n };
    ffa_mask mask = { 0 };
    ffa_status rc;

    FFA_TRY(mask_init(&mask, b, phase, err));
    if (b->tables->moves_queries)
        FFA_TRY(tile_build(&phase->tiles, &mask, TILE_OWNS_QUERIES, &opts, err));
    else
        FFA_TRY(tile_build_at(&phase->tiles, &mask, TILE_OWNS_QUERIES, &opts, b->cuts, err));
    phase->flags = mem_array((size_t)phase->tiles.tile_count, sizeof *phase->flags);
    if (!phase->flags)
        rc = error_nomem(err, "the flags of tiles");
out:
    mask_finish(&mask);
    return rc;
}

/* Which of the list's tiles begins at the row. */
static int64_t tile_index(const struct cut_list *cuts, int32_t row)
{
    int64_t low = 0, high = cuts->count;

    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;

        if (cuts->begins[middle] <= row)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* first, last [tiles of the list]: phases that work on each; first > last: none. */
static void flag_list(const struct build *b, int32_t list, int32_t *first, int32_t *last)
{
    const struct plan_pass *pass = &b->plan->forward;
    const struct cut_list *cuts = &b->cuts[list];

    for (int64_t i = 0; i < cuts->count; i++) {
        first[i] = INT32_MAX;
        last[i] = -1;
    }
    for (int set = 0; set < 2; set++)
        for (int32_t p = 0; p < pass->phase_count; p++) {
            const struct plan_phase *phase = &pass->phases[p];

            for (int64_t t = phase->tiles.list_begin[list]; t < phase->tiles.list_begin[list + 1];
                 t++) {
                const struct plan_tile *tile = &phase->tiles.tiles[t];
                const int64_t i = tile_index(cuts, tile->begin);

                if (set == 0) {
                    if (tile->sweep_count == 0)
                        continue;
                    first[i] = first[i] < p ? first[i] : p;
                    last[i] = p;
                    continue;
                }
                if (last[i] < 0 && p == 0)
                    phase->flags[t] = TILE_TOUCHED | TILE_FIRST | TILE_LAST;
                else if (tile->sweep_count > 0)
                    phase->flags[t] = (uint8_t)(TILE_TOUCHED | (first[i] == p ? TILE_FIRST : 0) |
                                                (last[i] == p ? TILE_LAST : 0));
            }
        }
}

/* Where queries move: partial results, but for own rows that nobody else works on. */
static void flag_partial(const struct build *b)
{
    const struct plan_pass *pass = &b->plan->forward;

    for (int32_t p = 0; p < pass->phase_count; p++)
        for (int64_t t = 0; t < pass->phases[p].tiles.tile_count; t++) {
            const struct plan_tile *tile = &pass->phases[p].tiles.tiles[t];
            const bool is_last = p == 0 && !memchr(b->needed + tile->begin, 1, (size_t)tile->count);

            pass->phases[p].flags[t] =
                (uint8_t)(TILE_TOUCHED | TILE_FIRST | (is_last ? TILE_LAST : 0));
        }
}

static ffa_status flag_tiles(const struct build *b, ffa_error *err)
{
    int64_t most = 0;
    int32_t *phases;

    if (b->tables->moves_queries) {
        flag_partial(b);
        return FFA_OK;
    }
    for (int32_t l = 0; l < b->plan->list_count; l++)
        most = max64(most, b->cuts[l].count);
    phases = mem_array((size_t)most * 2, sizeof *phases);
    if (!phases)
        return error_nomem(err, "the flags of tiles");
    for (int32_t l = 0; l < b->plan->list_count; l++)
        flag_list(b, l, phases, phases + most);
    mem_free(phases);
    return FFA_OK;
}

static ffa_status build_forward(struct build *b, ffa_error *err)
{
    const struct stage_cut *cut = &b->stages->forward[b->plan->rank];
    struct plan_pass *pass = &b->plan->forward;
    ffa_status rc = FFA_OK;

    pass->stage_count = cut->count;
    pass->cost_ns = cut->cost_ns;
    pass->uniform_ns = cut->uniform_ns;
    pass->phases = mem_array((size_t)cut->count + 1, sizeof *pass->phases);
    if (!pass->phases) {
        rc = error_nomem(err, "stages");
        goto out;
    }
    pass->phase_count = cut->count + 1;
    pass->phases[0].compute_ns = cut->own_ns;
    for (int32_t p = 0; p < pass->phase_count; p++) {
        FFA_TRY(phase_rows(b, pass, cut, p, err));
        FFA_TRY(forward_tiles(b, &pass->phases[p], err));
    }
    rc = flag_tiles(b, err);
out:
    return rc;
}

/* ---- backward ---- */

static ffa_status backward_tiles(struct tile_plan *out, const struct build *b,
                                 const struct plan_phase *phase, ffa_error *err)
{
    const ffa_parallel_plan *plan = b->plan;
    const struct tile_options opts = { .tile_m = plan->opts.backward_m,
                                       .tile_n = plan->opts.backward_n };
    ffa_mask mask = { 0 };
    ffa_status rc;

    FFA_TRY(mask_init(&mask, b, phase, err));
    if (mask.shape.seqlen_k > 0) {
        rc = tile_build(out, &mask, TILE_OWNS_KEYS, &opts, err);
        goto out;
    }
    *out = (struct tile_plan){ .shape = mask.shape,
                               .tile_m = opts.tile_m,
                               .tile_n = opts.tile_n,
                               .list_count = plan->list_count };
    out->list_begin = mem_array((size_t)plan->list_count + 1, sizeof *out->list_begin);
    if (!out->list_begin)
        rc = error_nomem(err, "the key tiles of a stage");
out:
    mask_finish(&mask);
    return rc;
}

/* The tiles of `from` whose keep is `which`, with their sweeps and bands. */
static ffa_status take_tiles(struct tile_plan *out, const struct tile_plan *from,
                             const uint8_t *keep, uint8_t which, ffa_error *err)
{
    *out = (struct tile_plan){
        .shape = from->shape,
        .tile_m = from->tile_m,
        .tile_n = from->tile_n,
        .list_count = from->list_count,
        .list_begin = mem_array((size_t)from->list_count + 1, sizeof *out->list_begin),
        .tiles = mem_array((size_t)from->tile_count, sizeof *out->tiles),
        .sweeps = mem_array((size_t)from->sweep_count, sizeof *out->sweeps),
        .bands = mem_array((size_t)from->band_count, sizeof *out->bands),
    };
    if (!out->list_begin || !out->tiles || !out->sweeps || !out->bands)
        return error_nomem(err, "the key tiles of a stage");
    for (int32_t l = 0; l < from->list_count; l++) {
        for (int64_t t = from->list_begin[l]; t < from->list_begin[l + 1]; t++) {
            struct plan_tile tile = from->tiles[t];

            if (keep[t] != which)
                continue;
            memcpy(out->sweeps + out->sweep_count, from->sweeps + tile.sweep_begin,
                   (size_t)tile.sweep_count * sizeof *out->sweeps);
            memcpy(out->bands + out->band_count, from->bands + tile.band_begin,
                   (size_t)tile.band_count * sizeof *out->bands);
            tile.sweep_begin = (int32_t)out->sweep_count;
            tile.band_begin = (int32_t)out->band_count;
            out->sweep_count += tile.sweep_count;
            out->band_count += tile.band_count;
            out->block_count += tile.block_count;
            out->tiles[out->tile_count++] = tile;
        }
        out->list_begin[l + 1] = (int32_t)out->tile_count;
    }
    return FFA_OK;
}

/* early [tiles]: those computed while the first stage is fetched: tiles that no other rank needs,
 * then others where these do not cover the fetch. Returns their time. Where queries move, tiles of
 * own keys add to dq of own rows, which all may be needed: any will do. */
static int64_t choose_early(uint8_t *early, const struct build *b, const struct tile_plan *all,
                            int64_t budget_ns)
{
    int64_t sum = 0;

    for (int pass = 0; pass < 2; pass++)
        for (int64_t t = 0; t < all->tile_count && sum < budget_ns; t++) {
            const struct plan_tile *tile = &all->tiles[t];
            const bool is_needed = !b->tables->moves_queries &&
                                   memchr(b->needed + tile->begin, 1, (size_t)tile->count);
            const int64_t cells = (int64_t)tile->block_count * all->tile_m * all->tile_n;

            if (is_needed != (pass == 1))
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
    struct tile_plan all = { 0 };
    uint8_t *early = NULL;
    ffa_status rc;

    FFA_TRY(backward_tiles(&all, b, first, err));
    early = mem_array((size_t)all.tile_count, 1);
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

static ffa_status build_backward(struct build *b, ffa_error *err)
{
    const struct stage_cut *cut = &b->stages->backward[b->plan->rank];
    struct plan_pass *pass = &b->plan->backward;
    ffa_status rc = FFA_OK;

    pass->stage_count = cut->count;
    pass->cost_ns = cut->cost_ns;
    pass->uniform_ns = cut->uniform_ns;
    pass->phases = mem_array((size_t)cut->count + 2, sizeof *pass->phases);
    if (!pass->phases) {
        rc = error_nomem(err, "stages");
        goto out;
    }
    pass->phase_count = cut->count + 2;
    for (int32_t p = 0; p < pass->phase_count; p++) {
        FFA_TRY(phase_rows(b, pass, cut, p, err));
        if (p > 0 && p <= cut->count)
            FFA_TRY(backward_tiles(&pass->phases[p].key_tiles, b, &pass->phases[p], err));
    }
    rc = split_own(b, cut, err);
out:
    return rc;
}

/* ---- what others fetch ---- */

static ffa_status build_sends(const struct build *b, struct plan_pass *pass,
                              const struct stage_cut *cuts, ffa_error *err)
{
    const struct transfer *t = b->transfer;
    ffa_status rc = FFA_OK;

    for (int32_t r = 0; r < t->topology.rank_count; r++) {
        pass->slowest_ns = max64(pass->slowest_ns, cuts[r].cost_ns);
        pass->work_ns = area_add(pass->work_ns, cuts[r].work_ns);
        pass->work_most_ns = max64(pass->work_most_ns, cuts[r].work_ns);
    }
    for (int32_t r = 0; r < t->topology.rank_count; r++)
        pass->step_count = cuts[r].count > pass->step_count ? cuts[r].count : pass->step_count;
    pass->sends = mem_array((size_t)pass->step_count, sizeof *pass->sends);
    if (!pass->sends) {
        rc = error_nomem(err, "copies");
        goto out;
    }
    for (int32_t r = 0; r < t->topology.rank_count; r++)
        for (int64_t i = t->receive_begin[r]; i < t->receive_begin[r + 1]; i++) {
            const struct transfer_piece *piece = &t->pieces[t->receives[i].piece];

            if (piece->owner != b->plan->rank)
                continue;
            for (int32_t s = 0; s < cuts[r].count; s++) {
                struct span part;

                if (!part_of(&part, b, i, s ? cuts[r].ends[s - 1] : 0, cuts[r].ends[s]))
                    continue;
                FFA_TRY(add_copy(&pass->sends[s],
                                 &(struct transfer_copy){ .source_row = piece->source_row +
                                                                        part.begin - piece->begin,
                                                          .row = part.row,
                                                          .rows = part.end - part.begin,
                                                          .source = r },
                                 err));
            }
        }
out:
    return rc;
}

/* ---- all of it ---- */

ffa_status phases_build(ffa_parallel_plan *plan, const struct plan_tables *tables, ffa_error *err)
{
    const struct transfer *transfer = &tables->transfer;
    const int64_t receives =
        transfer->receive_begin[plan->rank + 1] - transfer->receive_begin[plan->rank];
    const size_t lists = (size_t)plan->list_count;
    struct build b = { .plan = plan,
                       .tables = tables,
                       .transfer = transfer,
                       .stages = &tables->stages,
                       .queries = tables->in.queries,
                       .keys = tables->in.keys };
    ffa_status rc;

    b.lists = mem_array(lists, sizeof *b.lists);
    b.cuts = mem_array(lists, sizeof *b.cuts);
    b.needed = mem_array((size_t)b.keys->rank_tokens[plan->rank], 1);
    b.spans.at = mem_array((size_t)max64(receives, b.keys->count), sizeof *b.spans.at);
    if (!b.lists || !b.cuts || !b.needed || !b.spans.at) {
        rc = error_nomem(err, "stages");
        goto out;
    }
    if (!b.keys->is_replicated)
        find_needed(&b);
    FFA_TRY(find_rows(&b, err));
    FFA_TRY(build_forward(&b, err));
    FFA_TRY(build_sends(&b, &plan->forward, b.stages->forward, err));
    if (!b.stages->backward)
        goto out;
    FFA_TRY(build_backward(&b, err));
    rc = build_sends(&b, &plan->backward, b.stages->backward, err);
out:
    for (size_t l = 0; l < lists; l++) {
        if (b.lists)
            bands_finish(&b.lists[l]);
        if (b.cuts)
            cut_finish(&b.cuts[l]);
    }
    mem_free(b.lists);
    mem_free(b.cuts);
    mem_free(b.needed);
    mem_free(b.spans.at);
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
        mem_free(phase->flags);
        tile_finish(&phase->key_tiles);
    }
    for (int32_t s = 0; pass->sends && s < pass->step_count; s++)
        transfer_copies_finish(&pass->sends[s]);
    mem_free(pass->phases);
    mem_free(pass->sends);
    *pass = (struct plan_pass){ 0 };
}
