/* SPDX-License-Identifier: Apache-2.0
 *
 * What others do on the same mask, at the same prices: all-gather, rings, Ulysses. The sequence is
 * cut into one or two parts a rank, as those methods cut it. Invariant: cells are counted as for
 * the library's own plan (model_visited), so no method gains by being counted otherwise.
 */
#include "simulate/baselines.h"

#include "mask/mask.h"
#include "parallel/plan/time_model.h"

/* ---- work of each rank with the keys of each rank ---- */

/* Rank r has part r, and with two parts a rank also part 2n-1-r. */
struct grid {
    struct layout layout; /* of its parts */
    int64_t *bounds;      /* [count + 1] */
    int64_t *cells;       /* [ranks]: visited by one rank in the keys of each */
    int64_t attended;     /* keys of the parts that it visits */
    struct visits visits; /* the same in each part */
    int64_t count;
    int32_t ranks;
};

static int32_t owner_of(const struct grid *grid, int64_t part)
{
    return (int32_t)(part < grid->ranks ? part : grid->count - 1 - part);
}

static void grid_finish(struct grid *grid)
{
    layout_finish(&grid->layout);
    mem_free(grid->bounds);
    mem_free(grid->cells);
    visits_finish(&grid->visits);
}

static ffa_status grid_init(struct grid *grid, const struct sim *sim, int64_t parts_a_rank,
                            ffa_error *err)
{
    ffa_status rc;

    grid->ranks = sim->topology.rank_count;
    grid->count = grid->ranks * parts_a_rank;
    grid->bounds = mem_array((size_t)grid->count + 1, sizeof *grid->bounds);
    grid->cells = mem_array((size_t)grid->ranks, sizeof *grid->cells);
    if (!grid->bounds || !grid->cells)
        return error_nomem(err, "the parts of ranks");
    for (int64_t p = 0; p <= grid->count; p++)
        grid->bounds[p] =
            sim->tokens / grid->count * p + sim->tokens % grid->count * p / grid->count;
    FFA_TRY(
        layout_init(&grid->layout, &(struct parts){ grid->bounds, grid->count }, grid->ranks, err));
    for (int64_t p = 0; p < grid->count; p++)
        grid->layout.rank_of[p] = owner_of(grid, p);
    layout_index(&grid->layout);
    rc = visits_init(&grid->visits, &(struct parts){ grid->bounds, grid->count }, err);
out:
    return rc;
}

/* grid->cells of one rank; their sum. */
static int64_t weigh(struct grid *grid, const struct sim *sim, int32_t rank)
{
    int64_t sum = 0;

    memset(grid->cells, 0, (size_t)grid->ranks * sizeof *grid->cells);
    grid->attended = 0;
    for (int64_t i = 0; i < grid->count / grid->ranks; i++) {
        const int64_t p = i == 0 ? rank : grid->count - 1 - rank;

        for (int32_t l = 0; l < sim->list_count; l++)
            visits_add(&grid->visits, &sim->lists[l], grid->bounds[p], grid->bounds[p + 1]);
    }
    for (int64_t p = 0; p < grid->count; p++) {
        const int64_t cells = visits_take(&grid->visits, p);

        grid->cells[owner_of(grid, p)] += cells;
        grid->attended += cells ? grid->bounds[p + 1] - grid->bounds[p] : 0;
    }
    (void)visits_take(&grid->visits, grid->count);
    for (int32_t r = 0; r < grid->ranks; r++)
        sum += grid->cells[r];
    return sum;
}

/* Of a rank, the longest. */
static int64_t part_rows(const struct sim *sim)
{
    return (sim->tokens + sim->topology.rank_count - 1) / sim->topology.rank_count;
}

static bool has_parts(ffa_sim_result *out, const struct sim *sim, int64_t parts)
{
    if (sim->tokens >= parts)
        return true;
    sim_refuse(out, "%lld parts for %lld tokens", (long long)parts, (long long)sim->tokens);
    return false;
}

static int32_t nodes_of(const struct sim *sim)
{
    const int32_t width = sim->topology.ranks_per_node;

    return (sim->topology.rank_count + width - 1) / width;
}

/* ---- all-gather ---- */

struct gather {
    int64_t node_bytes, network_bytes; /* into one rank */
    int64_t ns;
};

/* Everything but what is here, once a node over the network, shared by the node's ports. */
static struct gather gather_of(const struct sim *sim, int64_t node_element, int64_t network_element)
{
    const int64_t width = sim->topology.ranks_per_node, ranks = sim->topology.rank_count;
    const int64_t nodes = nodes_of(sim);
    struct gather g = {
        .node_bytes = sim->tokens * price_key_bytes(sim, node_element) / ranks * (ranks - 1),
        .network_bytes =
            sim->tokens * price_key_bytes(sim, network_element) / nodes * (nodes - 1) / width,
    };

    g.node_bytes -= nodes > 1 ? g.network_bytes : 0;
    g.ns = price_wire_ns(sim, g.node_bytes, g.network_bytes) +
           (nodes - 1) * price_latency_ns(sim, true) +
           ((width < ranks ? width : ranks) - 1) * price_latency_ns(sim, false);
    return g;
}

ffa_status sim_all_gather(ffa_sim_result *out, const struct sim *sim, ffa_error *err)
{
    const int64_t element = sim->opts.model.element_bytes;
    const struct gather cast = gather_of(sim, element, element),
                        reduce = gather_of(sim, 4, element);
    struct grid grid = { 0 };
    int64_t most = 0, forward = 0, backward;
    ffa_status rc = FFA_OK;

    if (!has_parts(out, sim, 2 * (int64_t)sim->topology.rank_count))
        return FFA_OK;
    FFA_TRY(grid_init(&grid, sim, 2, err));
    for (int32_t r = 0; r < grid.ranks; r++) {
        const int64_t cells = weigh(&grid, sim, r);
        const int64_t begins = price_begin_cells(sim, part_rows(sim), false);
        const struct rank_tiles tiles = price_tiles(sim, &grid.layout, r);

        forward = max64(forward, price_compute_ns(sim, cells + begins, false) +
                                     price_tiles_ns(sim, &tiles, cells));
        most = max64(most, cells + price_begin_cells(sim, grid.attended, true));
    }
    backward = price_compute_ns(sim, most, true);
    out->node_bytes = cast.node_bytes;
    out->network_bytes = cast.network_bytes;
    sim_set_pass(sim, &out->forward, cast.ns + forward, forward, false);
    sim_set_pass(sim, &out->backward, cast.ns + backward + reduce.ns, backward, true);
out:
    grid_finish(&grid);
    return rc;
}

/* ---- rings ---- */

/* The last wave of a step's launch, whose tiles are about equal but in the first step, where some
 * attend only a few keys. */
static int64_t step_tail_ns(const struct sim *sim, int64_t step, int64_t cells, bool is_backward)
{
    const int64_t heads = sim->opts.model.heads_q / sim->list_count;
    const int64_t tiles =
        (part_rows(sim) + sim->opts.tile_m - 1) / sim->opts.tile_m * sim->list_count;

    return is_backward || step == 0 || cells == 0 || !rank_tiles_count(&sim->opts)
               ? 0
               : rank_tiles_tail_ns(&sim->opts, sim->list_count, tiles * heads, cells / tiles);
}

/* Keys go on while they are computed with; backward their gradients follow, and come home at the
 * end. steps [ranks]: the most cells of any rank in each step. */
static int64_t ring_ns(const struct sim *sim, const int64_t *steps, bool is_backward)
{
    const bool is_network = nodes_of(sim) > 1;
    const int64_t ranks = sim->topology.rank_count, element = sim->opts.model.element_bytes;
    const int64_t rows = part_rows(sim), begin = price_begin_cells(sim, rows, is_backward);
    const int64_t keys = rows * price_key_bytes(sim, element);
    const int64_t sums = rows * price_key_bytes(sim, is_network ? element : 4);
    const int64_t cast = price_latency_ns(sim, is_network) +
                         price_wire_ns(sim, is_network ? 0 : keys, is_network ? keys : 0);
    const int64_t home = price_latency_ns(sim, is_network) +
                         price_wire_ns(sim, is_network ? 0 : sums, is_network ? sums : 0);
    int64_t ns = 0;

    for (int64_t t = 0; t < ranks; t++) {
        const int64_t compute =
            price_compute_ns(sim, steps[t] ? steps[t] + begin : 0, is_backward) +
            step_tail_ns(sim, t, steps[t], is_backward);
        const int64_t travel = (t + 1 < ranks ? cast : 0) + (is_backward && t > 0 ? home : 0);

        ns = area_add(ns, max64(compute, travel));
    }
    return area_add(ns, is_backward && ranks > 1 ? home : 0);
}

ffa_status sim_ring(ffa_sim_result *out, const struct sim *sim, bool is_zigzag, ffa_error *err)
{
    const int64_t ranks = sim->topology.rank_count, parts = is_zigzag ? 2 : 1;
    const int64_t travelled = (sim->tokens + ranks - 1) / ranks * (ranks - 1) *
                              price_key_bytes(sim, sim->opts.model.element_bytes);
    struct grid grid = { 0 };
    int64_t *steps = NULL, most = 0;
    ffa_status rc = FFA_OK;

    if (!has_parts(out, sim, parts * ranks))
        return FFA_OK;
    FFA_TRY(grid_init(&grid, sim, parts, err));
    steps = mem_array((size_t)ranks, sizeof *steps);
    if (!steps) {
        rc = error_nomem(err, "the steps of a ring");
        goto out;
    }
    for (int32_t r = 0; r < grid.ranks; r++) {
        most = max64(most, weigh(&grid, sim, r));
        for (int64_t t = 0; t < ranks; t++)
            steps[t] = max64(steps[t], grid.cells[(r + ranks - t) % ranks]);
    }
    out->stages = (int32_t)ranks - 1;
    out->node_bytes = nodes_of(sim) > 1 ? 0 : travelled;
    out->network_bytes = nodes_of(sim) > 1 ? travelled : 0;
    for (int is_backward = 0; is_backward < 2; is_backward++)
        sim_set_pass(
            sim, is_backward ? &out->backward : &out->forward, ring_ns(sim, steps, is_backward),
            price_compute_ns(sim, most + price_begin_cells(sim, part_rows(sim), is_backward),
                             is_backward),
            is_backward);
out:
    mem_free(steps);
    grid_finish(&grid);
    return rc;
}

/* ---- Ulysses ---- */

/* An all-to-all of `bytes` that each rank has at its end, a share of which is its own already. */
static int64_t exchange_ns(const struct sim *sim, int64_t bytes, ffa_sim_result *count)
{
    const int64_t ranks = sim->topology.rank_count;
    const int64_t width =
        sim->topology.ranks_per_node < ranks ? sim->topology.ranks_per_node : ranks;
    const int64_t node = bytes / ranks * (width - 1), network = bytes / ranks * (ranks - width);

    if (count) {
        count->node_bytes += node;
        count->network_bytes += network;
    }
    return ranks > 1 ? price_latency_ns(sim, ranks > width) + price_wire_ns(sim, node, network) : 0;
}

ffa_status sim_ulysses(ffa_sim_result *out, const struct sim *sim, ffa_error *err)
{
    const ffa_parallel_model *m = &sim->opts.model;
    const int64_t ranks = sim->topology.rank_count, heads = m->heads_q / ranks;
    const int64_t keys_here = m->heads_kv > ranks ? m->heads_kv / ranks : 1;
    /* Of the rows of one head: of q or k, and of v or out. */
    const int64_t row = (int64_t)m->head_dim * m->element_bytes * sim->tokens;
    const int64_t row_v = (int64_t)sim->opts.head_dim_v * m->element_bytes * sim->tokens;
    const int64_t all = heads * row + keys_here * (row + row_v); /* q, k and v */
    double most = 0; /* cells of one list of 2^31 tokens times heads pass 2^63 */
    int64_t visited, forward, backward;

    (void)err;
    if (m->heads_q % ranks != 0 || (m->heads_kv > ranks && m->heads_kv % ranks != 0) ||
        (m->heads_kv < ranks && ranks % m->heads_kv != 0)) {
        sim_refuse(out, "%d:%d heads do not spread over %lld ranks", m->heads_q, m->heads_kv,
                   (long long)ranks);
        return FFA_OK;
    }
    /* Heads of one list cost the same: the rank of the heaviest lists. */
    for (int64_t r = 0; r < ranks; r++) {
        double cells = 0;

        for (int64_t h = r * heads; h < (r + 1) * heads; h++) {
            const int64_t list = sim->list_count == 1 ? 0 : h * m->heads_kv / m->heads_q;

            for (int64_t b = 0; b < sim->lists[list].count && (r == 0 || sim->list_count > 1); b++)
                cells += (double)model_visited(&sim->lists[list].at[b], 0, sim->tokens);
        }
        most = cells > most ? cells : most;
    }
    /* Cells are counted of every query head here, of every list in the model. */
    visited = (int64_t)(most / (m->heads_q / sim->list_count));
    forward =
        price_compute_ns(sim, visited + price_begin_cells(sim, sim->tokens, false) / ranks, false);
    backward =
        price_compute_ns(sim, visited + price_begin_cells(sim, sim->tokens, true) / ranks, true);
    if (sim->whole.count)
        forward += rank_tiles_tail_ns(&sim->opts, sim->list_count,
                                      sim->whole.count * m->heads_q / sim->list_count / ranks,
                                      sim->whole.least);
    /* q, k and v in, out back; dout in, dq, dk and dv back: the rest is kept. */
    sim_set_pass(sim, &out->forward,
                 exchange_ns(sim, all, out) + forward + exchange_ns(sim, row_v * heads, out),
                 forward, false);
    sim_set_pass(sim, &out->backward,
                 exchange_ns(sim, row_v * heads, NULL) + backward + exchange_ns(sim, all, NULL),
                 backward, true);
    return FFA_OK;
}
