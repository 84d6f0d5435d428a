/* SPDX-License-Identifier: Apache-2.0
 *
 * What compute and transfers cost in a modelled world, the same for the library's plan and for what
 * others do. Invariant: compute is priced by the model that plans are cut by (time_model.c), so a
 * method differs from another in what it computes and moves, never in what that costs.
 */
#include "simulate/prices.h"

#include "parallel/plan/time_model.h"

#include <stdio.h>

int64_t price_compute_ns(const struct sim *sim, int64_t cells, bool is_backward)
{
    return cells > 0 ? model_compute_ns(&sim->opts, sim->list_count, cells, is_backward) +
                           sim->opts.model.launch_ns
                     : 0;
}

int64_t price_begin_cells(const struct sim *sim, int64_t rows, bool is_backward)
{
    return model_begin_cells(&sim->opts, sim->list_count, rows, is_backward);
}

struct rank_tiles price_tiles(const struct sim *sim, const struct layout *rows, int32_t rank)
{
    struct rank_tiles tiles = { 0 };

    if (rank_tiles_count(&sim->opts) &&
        rows->rank_tokens[rank] / sim->opts.tile_m <= RANK_TILES_MAX)
        for (int32_t l = 0; l < sim->list_count; l++)
            rank_tiles_add(&tiles, &sim->lists[l], rows, rank, sim->opts.tile_m);
    return tiles;
}

int64_t price_tiles_ns(const struct sim *sim, const struct rank_tiles *tiles, int64_t visited)
{
    return tiles->count ? rank_tiles_ns(tiles, &sim->opts, sim->list_count, visited) : 0;
}

int64_t price_wire_ns(const struct sim *sim, int64_t node_bytes, int64_t network_bytes)
{
    const ffa_parallel_model *m = &sim->opts.model;

    /* 10^6 bytes a second are bytes a microsecond. */
    const double node = (double)node_bytes * 1e3 / (double)m->node_mbytes_s;
    const double network = (double)network_bytes * 1e3 / (double)m->network_mbytes_s;

    return (int64_t)(node > network ? node : network);
}

int64_t price_latency_ns(const struct sim *sim, bool is_network)
{
    return is_network ? sim->opts.model.network_latency_ns : sim->opts.model.node_latency_ns;
}

int64_t price_key_bytes(const struct sim *sim, int64_t element)
{
    const ffa_parallel_model *m = &sim->opts.model;

    return ((int64_t)m->head_dim + sim->opts.head_dim_v) * m->heads_kv * element;
}

void sim_set_pass(const struct sim *sim, ffa_sim_pass *out, int64_t ns, int64_t compute_ns,
                  bool is_backward)
{
    out->ns = ns;
    out->compute_ns = compute_ns;
    out->efficiency = (double)sim->alone_ns[is_backward] /
                      ((double)sim->topology.rank_count * (double)max64(ns, 1));
}

void sim_refuse(ffa_sim_result *out, const char *format, ...)
{
    const int32_t method = out->method;
    va_list args;

    *out = (ffa_sim_result){ .method = method };
    va_start(args, format);
    (void)vsnprintf(out->why_not, sizeof out->why_not, format, args);
    va_end(args);
}
