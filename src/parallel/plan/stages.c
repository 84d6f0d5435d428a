/* SPDX-License-Identifier: Apache-2.0
 *
 * stages_build: rank by rank, received rows are counted by grains of keys, grains are joined to
 * items, and items are cut into stages. Invariant: a stage is a range of the rank's ordered rows,
 * and together the stages of a rank are all its ordered rows. Trick: the solver's work grows with
 * 2^items, so it is given twelve items of about equal time, however many pieces there are.
 */
#include "parallel/plan/stages.h"

#include "mask/mask.h"

enum {
    ITEMS = 12,      /* that are cut into stages: 2^11 cuts */
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

/* What is found out about one rank, one after the other. */
struct rank_work {
    const struct stages_input *in;
    const struct grains *grains;
    int64_t *rows;  /* [grains]: received */
    int64_t *cells; /* [grains]: visited, of all lists */
    int64_t *order; /* [grains]: those of which something is received, in the order of stages */
    int64_t order_count, node_count; /* of order, those of the rank's node */
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
    const int64_t keys = (int64_t)m->heads_kv * m->head_dim;
    const int64_t queries = (int64_t)m->heads_q * m->head_dim;

    if (!w->in->moves_queries) /* k and v; dk and dv */
        return (struct wire){ 2 * keys * bytes, is_backward ? 2 * keys * partial : 0 };
    if (is_backward) /* q and dout, lse and delta; dq */
        return (struct wire){ 2 * queries * bytes + 8 * (int64_t)m->heads_q, queries * partial };
    return (struct wire){ queries * bytes, queries * partial + 4 * (int64_t)m->heads_q };
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

static bool is_network(const struct rank_work *w, int64_t grain, int32_t rank)
{
    const int32_t width = w->in->transfer->topology.ranks_per_node;

    return w->grains->owner[grain] / width != rank / width;
}

/* Rows and cells of each grain; the ordered rows of the rank's receives. */
static void weigh(struct rank_work *w, int64_t *ordered, int32_t rank)
{
    const struct transfer *t = w->in->transfer;
    const struct layout *queries = w->in->in->queries;
    const struct parts grains = { w->grains->bounds, w->grains->count };
    const int32_t width = t->topology.ranks_per_node;
    int64_t grain = 0, near = 0, far = 0;

    memset(w->rows, 0, (size_t)w->grains->count * sizeof *w->rows);
    memset(w->cells, 0, (size_t)w->grains->count * sizeof *w->cells);
    for (int64_t i = queries->rank_begin[rank]; i < queries->rank_begin[rank + 1]; i++) {
        const int64_t chunk = queries->rank_chunks[i];

        for (int64_t l = 0; l < w->in->list_count; l++)
            model_add_visited(w->cells, &w->in->lists[l], queries->bounds[chunk],
                              queries->bounds[chunk + 1], &grains);
    }
    for (int64_t i = t->receive_begin[rank]; i < t->receive_begin[rank + 1]; i++) {
        const struct transfer_piece *piece = &t->pieces[t->receives[i].piece];
        int64_t *next = piece->owner / width == rank / width ? &near : &far;

        ordered[i] = *next;
        *next += piece->end - piece->begin;
        while (w->grains->bounds[grain + 1] <= piece->begin)
            grain++;
        for (int64_t g = grain; g < w->grains->count && w->grains->bounds[g] < piece->end; g++)
            w->rows[g] += min64(piece->end, w->grains->bounds[g + 1]) -
                          max64(piece->begin, w->grains->bounds[g]);
    }
    for (int64_t i = t->receive_begin[rank]; i < t->receive_begin[rank + 1]; i++)
        if (t->pieces[t->receives[i].piece].owner / width != rank / width)
            ordered[i] += near;
    w->order_count = 0;
    for (int is_far = 0; is_far < 2; is_far++) {
        for (int64_t g = 0; g < w->grains->count; g++)
            if (w->rows[g] > 0 && is_network(w, g, rank) == (is_far == 1))
                w->order[w->order_count++] = g;
        if (is_far == 0)
            w->node_count = w->order_count;
    }
}

/* Join grains to at most ITEMS items of about equal time. ends [ITEMS]: ordered rows. */
static void make_items(const struct rank_work *w, struct overlap_input *input,
                       struct overlap_item *items, int64_t *ends)
{
    const ffa_parallel_plan_opts *opts = w->in->opts;
    const bool back = input->is_backward;
    int64_t total = 0, done = 0, row = 0;

    for (int round = 0; round < 2; round++) { /* weigh, then join */
        for (int64_t i = 0; i < w->order_count; i++) {
            const int64_t g = w->order[i];
            const bool far = i >= w->node_count;
            const struct wire wire = wire_of(w, back, far);
            const struct overlap_item one = {
                .fetch = min64(wire_ns(&opts->model, w->rows[g], wire.fetch, far), GRAIN_NS_MAX),
                .compute = min64(model_compute_ns(opts, w->in->list_count, w->cells[g], back),
                                 GRAIN_NS_MAX),
                .reduce = min64(wire_ns(&opts->model, w->rows[g], wire.reduce, far), GRAIN_NS_MAX),
                .rows = w->rows[g],
                .latency = far ? opts->model.network_latency_ns : opts->model.node_latency_ns,
            };
            const int64_t weight = one.fetch + one.compute + 1;
            struct overlap_item *item;

            if (round == 0) {
                total += weight;
                continue;
            }
            if (input->count == 0 || done >= model_scaled(total, input->count, ITEMS))
                items[input->count++] = (struct overlap_item){ 0 };
            item = &items[input->count - 1];
            item->fetch = min64(item->fetch + one.fetch, MODEL_NS_MAX);
            item->compute = min64(item->compute + one.compute, MODEL_NS_MAX);
            item->reduce = min64(item->reduce + one.reduce, MODEL_NS_MAX);
            item->rows += one.rows;
            item->latency = max64(item->latency, one.latency);
            done += weight;
            row += one.rows;
            ends[input->count - 1] = row;
        }
    }
}

static ffa_status cut(struct stage_cut *out, const struct rank_work *w, int32_t rank,
                      bool is_backward, ffa_error *err)
{
    const ffa_parallel_plan_opts *opts = w->in->opts;
    const int32_t wanted = is_backward ? opts->backward_stages : opts->forward_stages;
    struct overlap_item items[ITEMS];
    struct overlap_input input = {
        .items = items,
        .launch = opts->model.launch_ns,
        .buffers = opts->buffers,
        .rows_min = opts->stage_rows_min,
        .degree = (int32_t)min64(wanted < 0 ? 1 : wanted, ITEMS),
        .degree_max = opts->stages_max,
        .is_backward = is_backward,
        .has_reduce = is_backward || w->in->moves_queries,
    };
    struct overlap_split split, uniform;
    int64_t ends[ITEMS] = { 0 }, own_cells = 0, all_cells = 0;
    ffa_status rc;

    for (int64_t g = 0; g < w->grains->count; g++)
        all_cells = area_add(all_cells, w->cells[g]);
    for (int64_t g = 0; g < w->grains->count; g++)
        if (w->in->in->keys->is_replicated || w->grains->owner[g] == rank)
            own_cells = area_add(own_cells, w->cells[g]);
    input.own = model_compute_ns(opts, w->in->list_count, own_cells, is_backward);
    make_items(w, &input, items, ends);
    FFA_TRY(overlap_uniform(&uniform, &input, err));
    FFA_TRY(overlap_solve(&split, &input, err));
    *out = (struct stage_cut){
        .count = split.count, .cost_ns = split.cost, .uniform_ns = uniform.cost, .own_ns = input.own
    };
    out->work_ns = model_compute_ns(opts, w->in->list_count, all_cells, is_backward);
    for (int32_t s = 0; s < split.count; s++) {
        int64_t latency = 0;

        out->ends[s] = ends[split.ends[s] - 1];
        out->compute_ns[s] = input.launch;
        for (int64_t i = s ? split.ends[s - 1] : 0; i < split.ends[s]; i++) {
            out->fetch_ns[s] += items[i].fetch;
            out->compute_ns[s] += items[i].compute;
            out->reduce_ns[s] += items[i].reduce;
            latency = max64(latency, items[i].latency);
        }
        out->fetch_ns[s] += latency;
        out->reduce_ns[s] += input.has_reduce ? latency : 0;
    }
out:
    return rc;
}

ffa_status stages_build(struct stages *out, const struct stages_input *in, ffa_error *err)
{
    const int32_t ranks = in->transfer->topology.rank_count;
    const bool has_backward = !(in->opts->flags & FFA_PARALLEL_FORWARD_ONLY);
    struct grains grains = { 0 };
    struct rank_work w = { .in = in, .grains = &grains };
    ffa_status rc;

    *out = (struct stages){ 0 };
    FFA_TRY(grains_build(&grains, in->in->keys, err));
    out->row = mem_array((size_t)in->transfer->receive_begin[ranks], sizeof *out->row);
    out->forward = mem_array((size_t)ranks, sizeof *out->forward);
    out->backward = has_backward ? mem_array((size_t)ranks, sizeof *out->backward) : NULL;
    w.rows = mem_array((size_t)grains.count, sizeof *w.rows);
    w.cells = mem_array((size_t)grains.count, sizeof *w.cells);
    w.order = mem_array((size_t)grains.count, sizeof *w.order);
    if (!out->row || !out->forward || (has_backward && !out->backward) || !w.rows || !w.cells ||
        !w.order) {
        rc = error_nomem(err, "the stages of ranks");
        goto out;
    }
    for (int32_t r = 0; r < ranks; r++) {
        weigh(&w, out->row, r);
        FFA_TRY(cut(&out->forward[r], &w, r, false, err));
        if (has_backward)
            FFA_TRY(cut(&out->backward[r], &w, r, true, err));
    }
out:
    grains_finish(&grains);
    mem_free(w.rows);
    mem_free(w.cells);
    mem_free(w.order);
    if (rc != FFA_OK)
        stages_finish(out);
    return rc;
}

void stages_finish(struct stages *stages)
{
    mem_free(stages->row);
    mem_free(stages->forward);
    mem_free(stages->backward);
    *stages = (struct stages){ 0 };
}
