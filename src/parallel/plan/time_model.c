/* SPDX-License-Identifier: Apache-2.0
 *
 * The model of compute time: cells of tiles, and what tiles cost besides, times operations a cell
 * over a rate. Invariant: integers only, and every product is saturated before it can overflow, so
 * all ranks get the same times from the same options. Cells are counted without looking at tiles: a
 * band costs its area and, on a diagonal, half a tile a row.
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
    const int64_t d = m->head_dim, dv = opts->head_dim_v;
    /* Products of head_dim: q k and, backward, dq and dk; of head_dim_v: p v, or dout v and dv. */
    const int64_t flops = (is_backward ? 6 * d + 4 * dv : 2 * (d + dv)) * m->heads_q;
    const int64_t gflops = is_backward ? m->backward_gflops : m->forward_gflops;

    return model_scaled(cells, max64(flops * FS_PER_NS / list_count / gflops, 1), FS_PER_NS);
}

int64_t model_begin_cells(const ffa_parallel_plan_opts *opts, int64_t list_count, int64_t rows,
                          bool is_backward)
{
    const int64_t begin = is_backward ? opts->backward_begin_rows : opts->forward_begin_keys;

    return rows * begin * list_count; /* at most 2^31, 2^16 and 2^10 of them */
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

/* ---- visits ---- */

ffa_status visits_init(struct visits *out, const struct parts *parts, ffa_error *err)
{
    *out = (struct visits){ .parts = *parts,
                            .cells = mem_array((size_t)parts->count, sizeof *out->cells),
                            .rows = mem_array((size_t)parts->count + 1, sizeof *out->rows) };
    return out->cells && out->rows ? FFA_OK : error_nomem(err, "the visits of a rank");
}

void visits_finish(struct visits *visits)
{
    mem_free(visits->cells);
    mem_free(visits->rows);
    *visits = (struct visits){ 0 };
}

/* The first part that begins at the key or behind it; the number of parts: none. */
static int64_t part_from(const struct parts *parts, int64_t key)
{
    const int64_t part = parts_find(parts, key);

    return parts->at[part] < key ? part + 1 : part;
}

static void add_crossed(struct visits *v, const struct band *band, int64_t from, int64_t to)
{
    const struct parts *parts = &v->parts;

    for (int64_t p = from; p < to && parts->at[p] < band->k_end; p++)
        v->cells[p] = area_add(v->cells[p], model_visited(band, parts->at[p], parts->at[p + 1]));
}

void visits_add(struct visits *visits, const struct bands *bands, int64_t begin, int64_t end)
{
    const struct parts *parts = &visits->parts;

    for (int64_t b = bands_find(bands, begin); b < bands->count && bands->at[b].q_begin < end;
         b++) {
        int64_t first, whole, behind;
        struct band cut;

        if (!band_cut_q(&cut, &bands->at[b], begin, end))
            continue;
        /* All rows attend the keys [last row + lo, first row + hi], in so far as the band has them.
         */
        first = parts_find(parts, cut.k_begin);
        whole = part_from(parts, max64(cut.k_begin, cut.q_end - 1 + cut.lo));
        behind = min64(cut.k_end, cut.q_begin + cut.hi + 1);
        behind = behind < parts->at[parts->count] ? parts_find(parts, behind) : parts->count;
        if (whole >= behind) {
            add_crossed(visits, &cut, first, parts->count);
            continue;
        }
        add_crossed(visits, &cut, first, whole);
        visits->rows[whole] += cut.q_end - cut.q_begin;
        visits->rows[behind] -= cut.q_end - cut.q_begin;
        add_crossed(visits, &cut, behind, parts->count);
    }
}

int64_t visits_take(struct visits *visits, int64_t part)
{
    const bool is_end = part == visits->parts.count;
    int64_t cells = 0;

    if (part != visits->next) { /* nobody visits the parts left out: the rows end there */
        visits->rows[visits->next] = 0;
        visits->now = 0;
    }
    visits->now += visits->rows[part];
    visits->rows[part] = 0;
    visits->next = is_end ? 0 : part + 1;
    if (is_end)
        return 0;
    if (__builtin_mul_overflow(visits->now, visits->parts.at[part + 1] - visits->parts.at[part],
                               &cells))
        cells = INT64_MAX;
    cells = area_add(visits->cells[part], cells);
    visits->cells[part] = 0;
    return cells;
}
