/* SPDX-License-Identifier: Apache-2.0
 *
 * stages_build: rank by rank, received rows are counted by grains of keys, grains are joined to
 * items, and items are cut into stages. Invariant: a stage is a range of the rank's ordered rows,
 * and together the stages of a rank are all its ordered rows. Tricks: the solver's work grows with
 * 2^items, so it is given twelve items of about equal time, however many pieces there are; only
 * grains that a rank owns or receives are looked at, and what one costs is kept for the next, which
 * mostly is like it.
 */
#include "parallel/plan/stages.h"

#include "mask/mask.h"
#include "parallel/plan/rank_tiles.h"

enum {
    GRAINS = 128,    /* of all keys, at least, where they are long enough */
    GRAIN_ROWS = 128 /* a grain's rows are multiples of it, but at the end of a chunk */
};
/* The time of one grain, of which there are millions at most, ends here. */
#define GRAIN_NS_MAX ((int64_t)1 << 40)

/* All keys, cut fine: grain g has the keys [bounds[g], bounds[g + 1]), of one owner. */
struct grains {
    int64_t *bounds; /* [count + 1] */
    int64_t count;
    int32_t *owner; /* [count] */
};

/* A grain of which a rank receives something. */
struct grain_work {
    int64_t rows;  /* received */
    int64_t cells; /* visited, of all lists */
};

/* What is found out about one rank, one after the other. */
struct rank_work {
    const struct stages_input *in;
    const struct grains *grains;
    struct visits visits;          /* of grains */
    struct grain_work *near, *far; /* [grains]: of the rank's node, and of others, ascending */
    int64_t near_count, far_count;
    int64_t own_cells, all_cells;
    const struct rounds *rounds;
};

/* ---- what travels ---- */

/* Bytes of a row on the wire: what is fetched, and what is reduced to its owner. Partial results
 * travel in fp32 inside a node, with lse and delta in fp32 always. */
struct wire {
    int64_t fetch, reduce;
};

static struct wire wire_of(const struct rank_work *w, bool is_backward, bool is_network)
{
    const ffa_parallel_model *m = &w->in->opts->model;
    const int64_t bytes = m->element_bytes, partial = is_network ? bytes : 4;
    const int64_t d = m->head_dim, dv = w->in->opts->head_dim_v;
    const int64_t keys = m->heads_kv * (d + dv), queries = m->heads_q;

    if (!w->in->moves_queries) /* k and v; dk and dv */
        return (struct wire){ keys * bytes, is_backward ? keys * partial : 0 };
    if (is_backward) /* q and dout, lse and delta; dq */
        return (struct wire){ queries * ((d + dv) * bytes + 8), queries * d * partial };
    return (struct wire){ queries * d * bytes, queries * (dv * partial + 4) }; /* q; (out, lse) */
}

static int64_t wire_ns(const ffa_parallel_model *m, int64_t rows, int64_t row_bytes,
                       bool is_network)
{
    return model_scaled(rows, row_bytes * 1000,
                        is_network ? m->network_mbytes_s : m->node_mbytes_s);
}

/* ---- grains ---- */

static void grains_finish(struct grains *grains)
{
    mem_free(grains->bounds);
    mem_free(grains->owner);
}

static ffa_status grains_build(struct grains *out, const struct layout *keys, ffa_error *err)
{
    const int64_t parts = (GRAINS + keys->count - 1) / keys->count;

    out->bounds = mem_array((size_t)(keys->count * parts) + 1, sizeof *out->bounds);
    out->owner = mem_array((size_t)(keys->count * parts), sizeof *out->owner);
    if (!out->bounds || !out->owner)
        return error_nomem(err, "grains of keys");
    for (int64_t c = 0; c < keys->count; c++) {
        const int64_t rows = keys->bounds[c + 1] - keys->bounds[c];
        const int64_t step =
            (rows + parts * GRAIN_ROWS - 1) / (parts * GRAIN_ROWS) * (int64_t)GRAIN_ROWS;

        for (int64_t at = keys->bounds[c]; at < keys->bounds[c + 1]; at += step) {
            out->owner[out->count] = keys->rank_of[c];
            out->bounds[out->count++] = at;
        }
    }
    out->bounds[out->count] = keys->bounds[keys->count];
    return FFA_OK;
}

/* ---- one rank ---- */

static int64_t take_cells(struct rank_work *w, int64_t grain)
{
    const int64_t cells = visits_take(&w->visits, grain);

    w->all_cells = area_add(w->all_cells, cells);
    return cells;
}

/* The rank's own keys [begin, end), which are whole grains. */
static void weigh_own(struct rank_work *w, int64_t begin, int64_t end)
{
    const struct grains *grains = w->grains;

    for (int64_t g = parts_find(&w->visits.parts, begin);
         g < grains->count && grains->bounds[g] < end; g++)
        w->own_cells = area_add(w->own_cells, take_cells(w, g));
}

static void weigh_received(struct rank_work *w, int32_t rank, const struct rank_need *need)
{
    const struct grains *grains = w->grains;

    for (int64_t g = parts_find(&w->visits.parts, need->begin);
         g < grains->count && grains->bounds[g] < need->end; g++) {
        const bool is_near = rank_needs_is_near(w->in->needs, grains->owner[g], rank);
        struct grain_work *list = is_near ? w->near : w->far;
        int64_t *count = is_near ? &w->near_count : &w->far_count;
        const int64_t rows =
            min64(need->end, grains->bounds[g + 1]) - max64(need->begin, grains->bounds[g]);

        if (g < w->visits.next) /* the range before ends in this grain, too */
            list[*count - 1].rows += rows;
        else
            list[(*count)++] = (struct grain_work){ rows, take_cells(w, g) };
    }
}

/* Rows and cells of each grain that the rank owns or receives. */
static void weigh(struct rank_work *w, int32_t rank)
{
    const struct layout *queries = w->in->in->queries, *keys = w->in->in->keys;
    const struct rank_needs *needs = w->in->needs;
    int64_t own = keys->rank_begin[rank];

    w->near_count = w->far_count = 0;
    w->own_cells = w->all_cells = 0;
    for (int64_t i = queries->rank_begin[rank]; i < queries->rank_begin[rank + 1]; i++) {
        const int64_t chunk = queries->rank_chunks[i];

        for (int64_t l = 0; l < w->in->list_count; l++)
            visits_add(&w->visits, &w->in->lists[l], queries->bounds[chunk],
                       queries->bounds[chunk + 1]);
    }
    if (keys->is_replicated)
        weigh_own(w, 0, keys->bounds[keys->count]);
    for (int64_t i = needs->begin[rank]; !keys->is_replicated; i++) {
        const bool is_end = i == needs->begin[rank + 1];

        for (; own < keys->rank_begin[rank + 1]; own++) {
            const int64_t chunk = keys->rank_chunks[own];

            if (!is_end && keys->bounds[chunk] > needs->at[i].begin)
                break;
            weigh_own(w, keys->bounds[chunk], keys->bounds[chunk + 1]);
        }
        if (is_end)
            break;
        weigh_received(w, rank, &needs->at[i]);
    }
    (void)visits_take(&w->visits, w->grains->count);
}

/* ---- what tiles cost besides ---- */

/* Whether tiles of a pass are of received rows: then those of own rows are in the own part, else
 * all are of the rank's rows that stay, and each launch begins them again. */
static bool is_received(const struct rank_work *w, bool is_backward)
{
    return is_backward != w->in->moves_queries;
}

/* Begins of the tiles that are no stage's. */
static int64_t begin_ns(const struct rank_work *w, int32_t rank, bool is_backward)
{
    const struct layout *keys = w->in->in->keys, *queries = w->in->in->queries;
    const int64_t rows = !is_received(w, is_backward) ? queries->rank_tokens[rank]
                         : keys->is_replicated        ? keys->bounds[keys->count]
                                                      : keys->rank_tokens[rank];

    return model_compute_ns(w->in->opts, w->in->list_count,
                            model_begin_cells(w->in->opts, w->in->list_count, rows, is_backward),
                            is_backward);
}

/* Cells that a launch of each stage adds to it, or to the begin of one that is a grain's. */
static int64_t received_begin_cells(const struct rank_work *w, int64_t rows, bool is_backward)
{
    return is_received(w, is_backward)
               ? model_begin_cells(w->in->opts, w->in->list_count, rows, is_backward)
               : 0;
}

/* Own keys into the window, by a launch, where there are other ranks. */
static int64_t copy_ns(const struct rank_work *w, int32_t rank)
{
    const ffa_parallel_plan_opts *opts = w->in->opts;
    const ffa_parallel_model *m = &opts->model;
    const int64_t row_bytes =
        (int64_t)m->heads_kv * (m->head_dim + opts->head_dim_v) * m->element_bytes;

    if (!opts->window_mbytes_s || w->in->needs->topology.rank_count == 1)
        return 0;
    return model_scaled(w->in->in->keys->rank_tokens[rank], row_bytes * 1000,
                        opts->window_mbytes_s) +
           m->launch_ns;
}

/* Compute of all of the rank's cells and tiles. */
static int64_t work_ns(const struct rank_work *w, int32_t rank, bool is_backward)
{
    const int64_t cells =
        area_add(w->all_cells, received_begin_cells(w, w->in->needs->rows[rank], is_backward));

    return model_compute_ns(w->in->opts, w->in->list_count, cells, is_backward) +
           begin_ns(w, rank, is_backward);
}

/* What grains cost in a pass; that of the last one is kept. */
struct grain_price {
    const struct rank_work *w;
    struct wire wire[2]; /* near, far */
    bool is_backward;
    bool is_far; /* of the last one */
    struct grain_work work;
    struct overlap_item item;
};

static void price_start(struct grain_price *price, const struct rank_work *w, bool is_backward)
{
    *price = (struct grain_price){ .w = w,
                                   .wire = { wire_of(w, is_backward, false),
                                             wire_of(w, is_backward, true) },
                                   .is_backward = is_backward };
}

static const struct overlap_item *price_of(struct grain_price *price, const struct grain_work *work,
                                           bool is_far)
{
    const ffa_parallel_plan_opts *opts = price->w->in->opts;
    const struct wire *wire = &price->wire[is_far];
    const int64_t cells =
        area_add(work->cells, received_begin_cells(price->w, work->rows, price->is_backward));

    if (work->rows == price->work.rows && work->cells == price->work.cells &&
        is_far == price->is_far)
        return &price->item;
    price->work = *work;
    price->is_far = is_far;
    price->item = (struct overlap_item){
        .fetch = min64(wire_ns(&opts->model, work->rows, wire->fetch, is_far), GRAIN_NS_MAX),
        .compute =
            min64(model_compute_ns(opts, price->w->in->list_count, cells, price->is_backward),
                  GRAIN_NS_MAX),
        .reduce = min64(wire_ns(&opts->model, work->rows, wire->reduce, is_far), GRAIN_NS_MAX),
        .rows = work->rows,
        .latency = is_far ? opts->model.network_latency_ns : opts->model.node_latency_ns,
    };
    return &price->item;
}

static int64_t weight_of(const struct overlap_item *item)
{
    return item->fetch + item->compute + 1;
}

static void item_add(struct overlap_item *item, const struct overlap_item *one)
{
    item->fetch = min64(item->fetch + one->fetch, MODEL_NS_MAX);
    item->compute = min64(item->compute + one->compute, MODEL_NS_MAX);
    item->reduce = min64(item->reduce + one->reduce, MODEL_NS_MAX);
    item->rows += one->rows;
    item->latency = max64(item->latency, one->latency);
}

/* Join grains to at most RANK_STAGES_MAX items of about equal time. ends [RANK_STAGES_MAX]: ordered
 * rows. */
static void make_items(const struct rank_work *w, struct overlap_input *input,
                       struct overlap_item *items, int64_t *ends)
{
    int64_t total = 0, done = 0, row = 0, next = 0;
    struct grain_price price;

    price_start(&price, w, input->is_backward);
    for (int64_t i = 0; i < w->near_count; i++)
        total += weight_of(price_of(&price, &w->near[i], false));
    for (int64_t i = 0; i < w->far_count; i++)
        total += weight_of(price_of(&price, &w->far[i], true));
    for (int64_t i = 0; i < w->near_count + w->far_count; i++) {
        const bool is_far = i >= w->near_count;
        const struct overlap_item *one =
            price_of(&price, is_far ? &w->far[i - w->near_count] : &w->near[i], is_far);

        if (done >= next &&
            input->count < RANK_STAGES_MAX) { /* (the total may be beyond model_scaled) */
            items[input->count++] = (struct overlap_item){ 0 };
            next = model_scaled(total, input->count, RANK_STAGES_MAX);
        }
        item_add(&items[input->count - 1], one);
        done += weight_of(one);
        row += one->rows;
        ends[input->count - 1] = row;
    }
}

enum { STAGE_NS = 500 }; /* what a further stage of a launch costs: a batch, a flag */

/* Waves of work items of a rank's forward pass that is one launch: a query tile of a head each. */
static int64_t waves_of(const struct rank_work *w, int32_t rank)
{
    const ffa_parallel_plan_opts *opts = w->in->opts;
    const int64_t tiles = (w->in->in->queries->rank_tokens[rank] + opts->tile_m - 1) / opts->tile_m;

    return max64(1, tiles * opts->model.heads_q / opts->sms);
}

/* Forward: what tiles visit beyond the cells that were counted, as their rows attend different
 * keys, and the last wave. Backward passes show no such wave (docs/figures.md). */
static int64_t tiles_ns(const struct rank_work *w, int32_t rank)
{
    const ffa_parallel_plan_opts *opts = w->in->opts;
    const struct layout *queries = w->in->in->queries;
    struct rank_tiles tiles = { 0 };

    if (!rank_tiles_count(opts) || w->in->moves_queries ||
        queries->rank_tokens[rank] / opts->tile_m > RANK_TILES_MAX)
        return 0;
    for (int64_t l = 0; l < w->in->list_count; l++)
        rank_tiles_add(&tiles, &w->in->lists[l], queries, rank, opts->tile_m);
    return rank_tiles_ns(&tiles, opts, w->in->list_count, w->all_cells);
}

/* Of a pass that is one launch, what the solver cuts: forward, its first wave. Other waves have all
 * keys. (Where queries move, each stage has a launch.) */
static void take_wave(struct stage_cut *out, struct overlap_input *input,
                      struct overlap_item *items, const struct rank_work *w, int32_t rank)
{
    const int64_t waves =
        input->is_backward || w->in->moves_queries ? 1 : waves_of(w, rank); /* of one launch */
    int64_t all = input->own, wave;

    input->launch = STAGE_NS;
    input->buffers = OVERLAP_BUFFERS_MAX;
    input->own /= waves;
    wave = input->own;
    for (int64_t i = 0; i < input->count; i++) {
        all += items[i].compute;
        items[i].compute /= waves;
        wave += items[i].compute;
    }
    out->waves = waves;
    out->rest_ns = all - wave + (input->is_backward ? 0 : tiles_ns(w, rank));
}

static ffa_status cut_init(struct stage_cut *out, int32_t stages, ffa_error *err)
{
    const size_t count = (size_t)stages;

    out->count = stages;
    out->begins = mem_array(5 * count, sizeof *out->begins);
    if (!out->begins)
        return error_nomem(err, "the stages of ranks");
    out->ends = out->begins + count;
    out->fetch_ns = out->ends + count;
    out->compute_ns = out->fetch_ns + count;
    out->reduce_ns = out->compute_ns + count;
    return FFA_OK;
}

static ffa_status cut(struct stage_cut *out, const struct rank_work *w, int32_t rank,
                      bool is_backward, ffa_error *err)
{
    const ffa_parallel_plan_opts *opts = w->in->opts;
    const int32_t wanted = is_backward ? opts->backward_stages : opts->forward_stages;
    struct overlap_item items[RANK_STAGES_MAX];
    struct overlap_input input = {
        .items = items,
        .launch = opts->model.launch_ns,
        .buffers = opts->buffers,
        .rows_min = opts->stage_rows_min,
        .degree = (int32_t)min64(wanted < 0 ? 1 : wanted, RANK_STAGES_MAX),
        .degree_max = opts->stages_max,
        .is_backward = is_backward,
        .has_reduce = is_backward || w->in->moves_queries,
    };
    struct overlap_split split, uniform;
    const int64_t begin = begin_ns(w, rank, is_backward);
    int64_t ends[RANK_STAGES_MAX] = { 0 };
    struct overlap_item whole[RANK_STAGES_MAX];
    ffa_status rc;

    input.own = min64(model_compute_ns(opts, w->in->list_count, w->own_cells, is_backward) + begin,
                      MODEL_NS_MAX);
    make_items(w, &input, items, ends);
    memcpy(whole, items, sizeof whole);
    out->own_ns = input.own;
    out->copy_ns = copy_ns(w, rank);
    out->waves = 1;
    if (opts->sms)
        take_wave(out, &input, items, w, rank);
    else if (!is_received(w, is_backward))
        input.launch += begin;
    FFA_TRY(overlap_uniform(&uniform, &input, err));
    FFA_TRY(overlap_solve(&split, &input, err));
    FFA_TRY(cut_init(out, split.count, err));
    out->cost_ns = out->copy_ns + split.cost + out->rest_ns;
    out->uniform_ns = out->copy_ns + uniform.cost + out->rest_ns;
    out->work_ns = work_ns(w, rank, is_backward);
    for (int32_t s = 0; s < split.count; s++) {
        int64_t latency = 0;

        out->begins[s] = s ? out->ends[s - 1] : 0;
        out->ends[s] = ends[split.ends[s] - 1];
        out->compute_ns[s] = input.launch;
        for (int64_t i = s ? split.ends[s - 1] : 0; i < split.ends[s]; i++) {
            out->fetch_ns[s] += items[i].fetch;
            out->compute_ns[s] += whole[i].compute;
            out->reduce_ns[s] += items[i].reduce;
            latency = max64(latency, items[i].latency);
        }
        out->fetch_ns[s] += latency;
        out->reduce_ns[s] += input.has_reduce ? latency : 0;
    }
out:
    return rc;
}

/* ---- rounds ---- */

/* Of a launch, behind the last whole wave: what SMs without work items wait. */
static int64_t tail_ns(const struct rank_work *w, int32_t rank, int64_t compute, int64_t keys,
                       bool is_backward)
{
    const ffa_parallel_plan_opts *opts = w->in->opts;
    const int64_t rows = w->in->in->queries->rank_tokens[rank];
    const int64_t tiles = is_backward ? (keys + opts->backward_n - 1) / opts->backward_n
                                      : (rows + opts->tile_m - 1) / opts->tile_m;
    const int64_t items =
        max64(tiles * (is_backward ? opts->model.heads_kv : opts->model.heads_q), 1);
    const int64_t idle = opts->sms ? (opts->sms - items % opts->sms) % opts->sms : 0;

    return model_scaled(compute, idle, items);
}

static struct overlap_item part_of(const struct overlap_item *item, int64_t rows)
{
    return (struct overlap_item){ .fetch = model_scaled(item->fetch, rows, item->rows),
                                  .compute = model_scaled(item->compute, rows, item->rows),
                                  .reduce = model_scaled(item->reduce, rows, item->rows),
                                  .rows = rows,
                                  .latency = item->latency };
}

/* What each round costs: grains are taken apart where a round ends. items [rounds->count]. */
static void price_rounds(const struct rank_work *w, const struct rank_rounds *rounds,
                         bool is_backward, struct overlap_item *items)
{
    struct grain_price price;
    int64_t row = 0;

    price_start(&price, w, is_backward);
    for (int64_t i = 0; i < w->near_count + w->far_count; i++) {
        const bool is_far = i >= w->near_count;
        const struct overlap_item *one =
            price_of(&price, is_far ? &w->far[i - w->near_count] : &w->near[i], is_far);

        for (int64_t left = one->rows, rows; left > 0; left -= rows) {
            int64_t end;
            const int32_t stage = rank_rounds_stage(rounds, row, &end);
            struct overlap_item some;

            rows = min64(left, end - row);
            some = part_of(one, rows);
            item_add(&items[stage], &some);
            row += rows;
        }
    }
}

/* No item is longer, so that a timeline of ROUNDS_MAX adds up. */
#define ROUND_NS_MAX (MODEL_NS_MAX / 16)

static ffa_status cut_rounds(struct stage_cut *out, const struct rank_work *w, int32_t rank,
                             bool is_backward, ffa_error *err)
{
    const ffa_parallel_plan_opts *opts = w->in->opts;
    const struct rounds_input in = { w->in->in->queries, w->in->in->keys, w->in->needs, opts };
    const struct rank_rounds rounds = rounds_of(w->rounds, &in, rank);
    struct overlap_item items[ROUNDS_MAX] = { { 0 } };
    struct overlap_split split = { .count = rounds.count };
    struct overlap_input input = { .items = items,
                                   .count = rounds.count,
                                   .launch = opts->model.launch_ns,
                                   .buffers = 2,
                                   .has_reduce = is_backward };
    ffa_status rc;

    FFA_TRY(cut_init(out, rounds.count, err));
    out->half_rows = rounds.half_rows;
    out->own_ns = model_compute_ns(opts, w->in->list_count, w->own_cells, is_backward);
    *(is_received(w, is_backward) ? &out->own_ns : &input.launch) +=
        min64(begin_ns(w, rank, is_backward), ROUND_NS_MAX);
    out->copy_ns = copy_ns(w, rank);
    out->waves = 1;
    out->work_ns = work_ns(w, rank, is_backward);
    price_rounds(w, &rounds, is_backward, items);
    for (int32_t s = 0; s < rounds.count; s++) {
        struct overlap_item *item = &items[s];

        split.ends[s] = s + 1;
        item->compute += tail_ns(w, rank, item->compute, item->rows, is_backward);
        item->fetch = min64(item->fetch, ROUND_NS_MAX);
        item->compute = min64(item->compute, ROUND_NS_MAX);
        item->reduce = min64(item->reduce, ROUND_NS_MAX);
        out->begins[s] = (s + rounds.first) % rounds.count * rounds.half_rows;
        out->ends[s] = min64(out->begins[s] + rounds.half_rows, w->in->needs->rows[rank]);
        out->fetch_ns[s] = item->fetch + item->latency;
        out->compute_ns[s] = item->compute + input.launch;
        out->reduce_ns[s] = is_backward ? item->reduce + item->latency : 0;
    }
    input.own = min64(out->own_ns, ROUND_NS_MAX);
    out->cost_ns = out->uniform_ns = out->copy_ns + overlap_cost(&input, &split, NULL);
out:
    return rc;
}

static ffa_status rank_work_init(struct rank_work *w, ffa_error *err)
{
    const struct parts parts = { w->grains->bounds, w->grains->count };
    const ffa_status rc = visits_init(&w->visits, &parts, err);

    if (rc != FFA_OK)
        return rc;
    w->near = mem_array((size_t)parts.count, sizeof *w->near);
    w->far = mem_array((size_t)parts.count, sizeof *w->far);
    return w->near && w->far ? FFA_OK : error_nomem(err, "the stages of ranks");
}

static void rank_work_finish(struct rank_work *w)
{
    visits_finish(&w->visits);
    mem_free(w->near);
    mem_free(w->far);
}

ffa_status stages_build(struct stages *out, const struct stages_input *in, ffa_error *err)
{
    const int32_t ranks = in->needs->topology.rank_count;
    const bool has_backward = !(in->opts->flags & FFA_PARALLEL_FORWARD_ONLY);
    struct grains grains = { 0 };
    struct rank_work w = { .in = in, .grains = &grains, .rounds = &out->rounds };
    const struct rounds_input rounds = { in->in->queries, in->in->keys, in->needs, in->opts };
    ffa_status (*cut_rank)(struct stage_cut *, const struct rank_work *, int32_t, bool,
                           ffa_error *);
    ffa_status rc;

    *out = (struct stages){ .ranks = ranks };
    FFA_TRY(rounds_find(&out->rounds, &rounds, err));
    cut_rank = out->rounds.stage_rows ? cut_rounds : cut;
    FFA_TRY(grains_build(&grains, in->in->keys, err));
    FFA_TRY(rank_work_init(&w, err));
    out->forward = mem_array((size_t)ranks, sizeof *out->forward);
    out->backward = has_backward ? mem_array((size_t)ranks, sizeof *out->backward) : NULL;
    if (!out->forward || (has_backward && !out->backward)) {
        rc = error_nomem(err, "the stages of ranks");
        goto out;
    }
    for (int32_t r = 0; r < ranks; r++) {
        weigh(&w, r);
        FFA_TRY(cut_rank(&out->forward[r], &w, r, false, err));
        if (has_backward)
            FFA_TRY(cut_rank(&out->backward[r], &w, r, true, err));
    }
out:
    grains_finish(&grains);
    rank_work_finish(&w);
    if (rc != FFA_OK)
        stages_finish(out);
    return rc;
}

void stages_finish(struct stages *stages)
{
    for (int32_t r = 0; r < stages->ranks; r++) {
        if (stages->forward)
            mem_free(stages->forward[r].begins);
        if (stages->backward)
            mem_free(stages->backward[r].begins);
    }
    rounds_finish(&stages->rounds);
    mem_free(stages->forward);
    mem_free(stages->backward);
    *stages = (struct stages){ 0 };
}
