/* SPDX-License-Identifier: Apache-2.0
 *
 * The model of compute time: cells of tiles times operations a cell over a rate. Invariant:
 * integers only, and every product is saturated before it can overflow, so all ranks get the same
 * times from the same options. Cells are counted without looking at tiles: a band costs its area
 * and, on a diagonal, half a tile a row.
 */
#include "parallel/plan/time_model.h"

#include "mask/mask.h"

enum { HALF_TILE = 64 /* cells that a row of a diagonal wastes */ };
#define FS_PER_NS 1000000

int64_t model_scaled(int64_t count, int64_t unit, int64_t per)
{
    int64_t product;

    if (__builtin_mul_overflow(count, unit, &product))
        return count / per >= MODEL_NS_MAX / max64(unit, 1) ? MODEL_NS_MAX : count / per * unit;
    return min64(product / per, MODEL_NS_MAX);
}

int64_t model_compute_ns(const ffa_parallel_plan_opts *opts, int64_t list_count, int64_t cells,
                         bool is_backward)
{
    const ffa_parallel_model *m = &opts->model;
    const int64_t flops = (is_backward ? 10 : 4) * (int64_t)m->head_dim * m->heads_q;
    const int64_t gflops = is_backward ? m->backward_gflops : m->forward_gflops;

    return model_scaled(cells, max64(flops * FS_PER_NS / list_count / gflops, 1), FS_PER_NS);
}

int64_t model_visited(const struct band *band, int64_t begin, int64_t end)
{
    const int64_t rows = band->q_end - band->q_begin;
    struct band cut;
    int64_t cells, steps;

    begin = max64(begin, band->k_begin);
    end = min64(end, band->k_end);
    if (band->q_end - 1 + band->lo <= begin && end - 1 <= band->q_begin + band->hi)
        return rows * (end - begin);
    if (!band_cut_k(&cut, band, begin, end))
        return 0;
    cells = band_area(&cut);
    steps = HALF_TILE * min64(cut.q_end - cut.q_begin, cut.k_end - cut.k_begin);
    return min64(cells + steps, (cut.q_end - cut.q_begin) * (cut.k_end - cut.k_begin));
}

void model_add_visited(int64_t *cells, const struct bands *bands, int64_t begin, int64_t end,
                       const struct parts *parts)
{
    for (int64_t b = bands_find(bands, begin); b < bands->count && bands->at[b].q_begin < end;
         b++) {
        struct band cut;

        if (!band_cut_q(&cut, &bands->at[b], begin, end))
            continue;
        for (int64_t p = parts_find(parts, cut.k_begin);
             p < parts->count && parts->at[p] < cut.k_end; p++)
            cells[p] = area_add(cells[p], model_visited(&cut, parts->at[p], parts->at[p + 1]));
    }
}
