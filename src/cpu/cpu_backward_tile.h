/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients over the sweeps of a backward plan. With p = exp(score - lse) and dp = v . dout,
 * ds = p (dp - delta), where delta = out . dout - dlse (FlashAttention-2, Dao 2023; lse grows by p
 * with a score, so its gradient joins as a part of delta):
 *
 *   dv = sum of p dout, dk = scale sum of ds q (a tile owns its keys and goes over the rows),
 *   dq = scale sum of ds k (an item owns its rows and goes over the tiles, in the plan's order).
 *
 * Included by cpu_backward_f32.c and cpu_backward_f64.c, which define REAL, its functions and the
 * names. Each result is written once, by one thread, from a fixed sequence of operations. Only
 * attended cells are ever looked at. Scores are computed twice, for dk and dv and for dq, instead
 * of adding into a dq that tiles share.
 */
#include "cpu/cpu_backward.h"

#include "cpu/cpu_math.h"

/* ---- scratch ---- */

static int32_t dim_v(const struct cpu_backward *call)
{
    return call->head_dim_v ? call->head_dim_v : call->head_dim;
}

static size_t larger(const struct cpu_backward *call)
{
    return (size_t)(call->plan->tile_m > call->plan->tile_n ? call->plan->tile_m
                                                            : call->plan->tile_n);
}

size_t gradient_bytes(const struct cpu_backward *call)
{
    const size_t m = (size_t)call->plan->tile_m, n = (size_t)call->plan->tile_n;
    const size_t d = (size_t)call->head_dim, dv = (size_t)dim_v(call);

    return (m * (3 * d + 2 * dv) + n * (3 * d + 2 * dv) + dv + 2 * larger(call) + 2 * m) *
               sizeof(REAL) +
           2 * n * sizeof(int32_t);
}

size_t gradient_delta_bytes(const struct cpu_backward *call)
{
    return (size_t)call->plan->shape.seqlen_q * (size_t)call->args.heads_q * sizeof(REAL);
}

void gradient_place(const struct cpu_backward *call, struct gradient_scratch *scratch)
{
    const size_t m = (size_t)call->plan->tile_m, n = (size_t)call->plan->tile_n;
    const size_t d = (size_t)call->head_dim, dv = (size_t)dim_v(call);
    REAL *at = scratch->memory;

    scratch->q = at;
    scratch->dout = at += m * d;
    scratch->q_turned = at += m * dv;
    scratch->dout_turned = at += m * d;
    scratch->sum_q = at += m * dv;
    scratch->k = at += m * d;
    scratch->k_turned = at += n * d;
    scratch->v_turned = at += n * d;
    scratch->sum_k = at += n * dv;
    scratch->sum_v = at += n * d;
    scratch->value = at += n * dv;
    scratch->p = at += dv;
    scratch->ds = at += larger(call);
    scratch->lse = at += larger(call);
    scratch->delta = at += m;
    scratch->begin = (int32_t *)(void *)(at + m);
    scratch->end = scratch->begin + n;
}

/* ---- operands ---- */

/* Tokens [from, from + count) of a head: as rows [count][d], and turned [d][stride]. */
static void load_tokens(const struct cpu_backward *call, const struct cpu_tensor *tensor, int32_t d,
                        int32_t head, int64_t from, int32_t count, int32_t stride, REAL *rows,
                        REAL *turned)
{
    for (int32_t t = 0; t < count; t++) {
        REAL *row = rows + (int64_t)t * d;

        load(call->dtype, tensor->data,
             (from + t) * tensor->token_stride + head * tensor->head_stride, d, row);
        for (int32_t c = 0; c < d; c++)
            turned[(int64_t)c * stride + t] = row[c];
    }
}

static ffa_dtype lse_dtype(const struct cpu_backward *call)
{
    return lse_dtype_of(call->lse_dtype, call->dtype);
}

static REAL lse_of(const struct cpu_backward *call, int64_t row, int32_t head)
{
    const struct cpu_tensor *lse = &call->args.lse;
    const REAL at =
        load_lse(lse_dtype(call), lse->data, row * lse->token_stride + head * lse->head_stride);

    return at == -(REAL)INFINITY ? (REAL)INFINITY : at; /* no key has weight: exp gives 0 */
}

/* The rows [from, from + count) of a query head, with their sums. */
static void load_rows(const struct cpu_backward *call, int32_t head, int64_t from, int32_t count,
                      const REAL *delta, struct gradient_scratch *scratch)
{
    const int32_t m = call->plan->tile_m;

    load_tokens(call, &call->args.q, call->head_dim, head, from, count, m, scratch->q,
                scratch->q_turned);
    load_tokens(call, &call->dout, dim_v(call), head, from, count, m, scratch->dout,
                scratch->dout_turned);
    for (int32_t r = 0; r < count; r++) {
        ((REAL *)scratch->lse)[r] = lse_of(call, from + r, head);
        ((REAL *)scratch->delta)[r] = delta[(from + r) * call->args.heads_q + head];
    }
}

/* The keys of a tile. Values are needed turned only: their rows pass through sum_v, which is
 * cleared after. */
static void load_keys(const struct cpu_backward *call, const struct plan_tile *tile,
                      int32_t kv_head, struct gradient_scratch *scratch)
{
    const int32_t n = call->plan->tile_n;

    load_tokens(call, &call->args.k, call->head_dim, kv_head, tile->begin, tile->count, n,
                scratch->k, scratch->k_turned);
    load_tokens(call, &call->args.v, dim_v(call), kv_head, tile->begin, tile->count, n,
                scratch->sum_v, scratch->v_turned);
}

/* ---- cells of one line: a key with some rows, or a row with some keys ---- */

/* On entry p holds the capped scores and ds the products dp, on return the weights and the score
 * gradients, for i in [from, to). lse_step: 1 for a key with many rows, 0 for one row. */
static void weigh(const struct cpu_backward *call, const REAL *restrict lse, int32_t lse_step,
                  const REAL *restrict delta, int32_t from, int32_t to, REAL *restrict p,
                  REAL *restrict ds)
{
    const REAL scale = (REAL)call->args.softmax_scale, cap = (REAL)call->args.softcap;

    for (int32_t i = from; i < to; i++) {
        const REAL bend = cap > 0 ? 1 - (p[i] / cap) * (p[i] / cap) : 1; /* of the cap */
        const int64_t at = (int64_t)i * lse_step;

        p[i] = REAL_EXP(p[i] - lse[at]);
        ds[i] = scale * bend * p[i] * (ds[i] - delta[at]);
    }
}

/* ---- dk, dv ---- */

/* Key j of the tile with rows [from, to) of the loaded block. */
static void add_rows(const struct cpu_backward *call, int32_t j, int32_t from, int32_t to,
                     struct gradient_scratch *scratch)
{
    const int32_t d = call->head_dim, dv = dim_v(call), m = call->plan->tile_m;
    const int64_t at = (int64_t)j * d, at_v = (int64_t)j * dv;

    score((const REAL *)scratch->k + at, scratch->q_turned, m, d, from, to,
          (REAL)call->args.softmax_scale, scratch->p);
    if (call->args.softcap > 0)
        cap_scores((REAL)call->args.softcap, from, to, scratch->p);
    score(scratch->value, scratch->dout_turned, m, dv, from, to, 1, scratch->ds);
    weigh(call, scratch->lse, 1, scratch->delta, from, to, scratch->p, scratch->ds);
    gather(scratch->p, scratch->dout, dv, from, to, (REAL *)scratch->sum_v + at_v);
    gather(scratch->ds, scratch->q, d, from, to, (REAL *)scratch->sum_k + at);
}

static void tile_sweep(const struct cpu_backward *call, const struct plan_tile *tile,
                       const struct plan_sweep *sweep, int32_t head, const REAL *delta,
                       struct gradient_scratch *scratch)
{
    const int32_t m = call->plan->tile_m, n = call->plan->tile_n;

    sweep_bounds(call->plan, tile, sweep, scratch->begin, scratch->end);
    for (int64_t q = sweep->begin; q < sweep->end; q += m) {
        const int32_t count = (int32_t)(sweep->end - q < m ? sweep->end - q : m);
        const bool full = q >= sweep->full_begin && q + m <= sweep->full_end;

        load_rows(call, head, q, count, delta, scratch);
        for (int32_t j = 0; j < tile->count; j++) {
            const int64_t lo = full ? 0 : scratch->begin[j] - q;
            const int64_t hi = full ? m : scratch->end[j] - q;
            const int32_t from = (int32_t)(lo > 0 ? lo : 0);
            const int32_t to = (int32_t)(hi < count ? hi : count);

            if (from >= to)
                continue;
            for (int32_t c = 0; c < dim_v(call); c++)
                ((REAL *)scratch->value)[c] = ((const REAL *)scratch->v_turned)[(int64_t)c * n + j];
            add_rows(call, j, from, to, scratch);
        }
    }
}

static void store_line(const struct cpu_backward *call, const struct cpu_tensor *tensor,
                       const struct cpu_tensor *partial, int32_t d, int64_t token, int32_t head,
                       const REAL *from)
{
    const int64_t at = token * tensor->token_stride + head * tensor->head_stride;

    for (int32_t c = 0; c < d; c++) {
        REAL old = 0, more = 0;

        if (call->accumulate)
            load(call->grad_dtype, tensor->data, at + c, 1, &old);
        if (partial)
            load(call->dtype == FFA_FP64 ? FFA_FP64 : FFA_FP32, partial->data,
                 token * partial->token_stride + head * partial->head_stride + c, 1, &more);
        store(call->grad_dtype, tensor->data, at + c, (double)(old + more + from[c]));
    }
}

/* A line of d columns of dq, dk or dv: added to its sum, or written, as the flags say. */
static void finish_line(const struct cpu_backward *call, const struct cpu_tensor *tensor,
                        const struct cpu_tensor *partial, int32_t d, REAL *sum, int64_t token,
                        int32_t head, uint16_t flags, REAL *line)
{
    if (flags & PLAN_TILE_MERGES)
        for (int32_t c = 0; c < d; c++)
            line[c] += sum[c];
    if (flags & PLAN_TILE_CONTINUES)
        memcpy(sum, line, (size_t)d * sizeof *line);
    else
        store_line(call, tensor, partial, d, token, head, line);
}

void gradient_tile(const struct cpu_backward *call, const struct plan_tile *tile, int32_t kv_head,
                   const void *delta, struct gradient_scratch *scratch)
{
    const int32_t group = call->args.heads_q / call->args.heads_kv;
    const int32_t d = call->head_dim, dv = dim_v(call);
    const uint16_t flags = tile->flags;
    const size_t keys = (size_t)tile->count;

    load_keys(call, tile, kv_head, scratch);
    memset(scratch->sum_k, 0, keys * (size_t)d * sizeof(REAL));
    memset(scratch->sum_v, 0, keys * (size_t)dv * sizeof(REAL));
    for (int32_t head = kv_head * group; head < (kv_head + 1) * group; head++)
        for (int32_t s = 0; s < tile->sweep_count; s++)
            tile_sweep(call, tile, &call->plan->sweeps[tile->sweep_begin + s], head, delta,
                       scratch);
    if (flags & PLAN_TILE_MERGES && call->wait && !call->waits_for_rows && !call->wait(call->user))
        return;
    for (int32_t j = 0; j < tile->count; j++) {
        const int64_t key = (int64_t)tile->begin + j;
        const int64_t at = call->sum_dk ? key * call->sum_stride + kv_head * d : 0;
        const int64_t at_v = call->sum_dv ? key * call->sum_stride + kv_head * dv : 0;

        finish_line(call, &call->dk, call->partial_dk, d, (REAL *)call->sum_dk + at, key, kv_head,
                    flags, (REAL *)scratch->sum_k + (int64_t)j * d);
        finish_line(call, &call->dv, call->partial_dv, dv, (REAL *)call->sum_dv + at_v, key,
                    kv_head, flags, (REAL *)scratch->sum_v + (int64_t)j * dv);
    }
}

/* ---- dq ---- */

/* Row r of the loaded rows with the keys [from, to) of the loaded tile. */
static void add_keys(const struct cpu_backward *call, int32_t r, int32_t from, int32_t to,
                     struct gradient_scratch *scratch)
{
    const int32_t d = call->head_dim, dv = dim_v(call), n = call->plan->tile_n;
    const int64_t at = (int64_t)r * d, at_v = (int64_t)r * dv;

    score((const REAL *)scratch->q + at, scratch->k_turned, n, d, from, to,
          (REAL)call->args.softmax_scale, scratch->p);
    if (call->args.softcap > 0)
        cap_scores((REAL)call->args.softcap, from, to, scratch->p);
    score((const REAL *)scratch->dout + at_v, scratch->v_turned, n, dv, from, to, 1, scratch->ds);
    weigh(call, (const REAL *)scratch->lse + r, 0, (const REAL *)scratch->delta + r, from, to,
          scratch->p, scratch->ds);
    gather(scratch->ds, scratch->k, d, from, to, (REAL *)scratch->sum_q + at);
}

/* One row of a block: all keys of the tile, or what the bands give. */
static void row_keys(const struct cpu_backward *call, const struct plan_tile *tile,
                     const struct plan_sweep *sweep, const struct gradient_rows *rows, int64_t row,
                     bool full, struct gradient_scratch *scratch)
{
    const int32_t r = (int32_t)(row - rows->row_begin);

    if (full) {
        add_keys(call, r, 0, tile->count, scratch);
        return;
    }
    for (int32_t b = 0; b < sweep->band_count; b++) {
        const struct plan_band *band = &call->plan->bands[tile->band_begin + sweep->band_begin + b];
        int32_t begin, end;

        plan_band_own(band, (int32_t)row, &begin, &end);
        begin = begin > tile->begin ? begin - tile->begin : 0;
        end = end - tile->begin < tile->count ? end - tile->begin : tile->count;
        if (begin < end)
            add_keys(call, r, begin, end, scratch);
    }
}

static void rows_tile(const struct cpu_backward *call, const struct plan_tile *tile,
                      const struct gradient_rows *rows, struct gradient_scratch *scratch)
{
    const int32_t m = call->plan->tile_m;
    bool loaded = false;

    for (int32_t s = 0; s < tile->sweep_count; s++) {
        const struct plan_sweep *sweep = &call->plan->sweeps[tile->sweep_begin + s];
        const int64_t begin = sweep->begin > rows->row_begin ? sweep->begin : rows->row_begin;
        const int64_t end = sweep->end < rows->row_end ? sweep->end : rows->row_end;

        if (begin < end && !loaded)
            load_keys(call, tile, rows->head / (call->args.heads_q / call->args.heads_kv), scratch);
        loaded |= begin < end;
        for (int64_t row = begin; row < end; row++) {
            const int64_t block = sweep->begin + (row - sweep->begin) / m * m;
            const bool full = block >= sweep->full_begin && block + m <= sweep->full_end;

            row_keys(call, tile, sweep, rows, row, full, scratch);
        }
    }
}

void gradient_rows_of(const struct cpu_backward *call, const struct gradient_rows *rows,
                      const void *delta, struct gradient_scratch *scratch)
{
    const struct tile_plan *plan = call->plan;
    const int32_t count = (int32_t)(rows->row_end - rows->row_begin), d = call->head_dim;
    const int32_t list =
        plan->list_count == 1 ? 0 : rows->head / (call->args.heads_q / call->args.heads_kv);
    const uint8_t flags = call->row_flags ? call->row_flags[rows->row_begin / plan->tile_m] : 0;

    load_rows(call, rows->head, rows->row_begin, count, delta, scratch);
    memset(scratch->sum_q, 0, (size_t)count * (size_t)d * sizeof(REAL));
    for (int32_t t = plan->list_begin[list]; t < plan->list_begin[list + 1]; t++)
        rows_tile(call, &plan->tiles[t], rows, scratch);
    if (flags & PLAN_TILE_MERGES && call->wait && call->waits_for_rows && !call->wait(call->user))
        return;
    for (int32_t r = 0; r < count; r++) {
        const int64_t row = rows->row_begin + r;
        const int64_t packed = call->sum_dq ? (row * call->args.heads_q + rows->head) * d : 0;

        finish_line(call, &call->dq, NULL, d, (REAL *)call->sum_dq + packed, row, rows->head, flags,
                    (REAL *)scratch->sum_q + (int64_t)r * d);
    }
}

/* ---- delta, dsink ---- */

void gradient_delta(const struct cpu_backward *call, const struct gradient_rows *rows, void *delta)
{
    const struct cpu_tensor *out = &call->args.out, *dout = &call->dout;
    const ffa_dtype out_dtype = call->out_dtype ? call->out_dtype : call->dtype;

    for (int64_t row = rows->row_begin; row < rows->row_end; row++) {
        const int64_t at = row * out->token_stride + rows->head * out->head_stride;
        const int64_t from = row * dout->token_stride + rows->head * dout->head_stride;
        const bool has_keys = lse_of(call, row, rows->head) != (REAL)INFINITY;
        REAL sum = 0;

        for (int32_t c = 0; has_keys && c < dim_v(call); c++) {
            REAL a = 0, b = 0;

            load(out_dtype, out->data, at + c, 1, &a);
            load(call->dtype, dout->data, from + c, 1, &b);
            sum += a * b;
        }
        if (has_keys && call->dlse.data)
            sum -= load_lse(lse_dtype(call), call->dlse.data,
                            row * call->dlse.token_stride + rows->head * call->dlse.head_stride);
        ((REAL *)delta)[row * call->args.heads_q + rows->head] = sum;
    }
}

void gradient_sink(const struct cpu_backward *call, int32_t head, const void *delta)
{
    const int32_t heads = call->args.heads_q;
    const ffa_dtype dtype = lse_dtype(call);

    for (int32_t s = 0; s < call->args.sink_count; s++) {
        const REAL logit = load_lse(dtype, call->args.sink, (int64_t)s * heads + head);
        REAL sum = 0;

        for (int64_t row = 0; row < call->plan->shape.seqlen_q; row++)
            sum -= REAL_EXP(logit - lse_of(call, row, head)) *
                   ((const REAL *)delta)[row * heads + head];
        store(dtype, call->dsink, (int64_t)s * heads + head, (double)sum);
    }
}
