/* SPDX-License-Identifier: Apache-2.0
 *
 * Streaming softmax over the sweeps of one tile (Milakov and Gimelshein 2018; FlashAttention).
 * Included by cpu_forward_f32.c and cpu_forward_f64.c, which define REAL, its functions and the
 * names.
 *
 * The loops that cost run over keys or over head_dim without a reduction, so they vectorise without
 * reassociation: every result is a fixed sequence of rounded operations, whatever the thread.
 * A row only ever reads the keys and values it attends.
 */
#include "cpu/cpu_forward.h"

#include "cpu/cpu_math.h"

/* ---- scratch ---- */

static int32_t value_dim(const struct cpu_forward *call)
{
    return call->head_dim_v ? call->head_dim_v : call->head_dim;
}

size_t forward_bytes(const struct cpu_forward *call)
{
    const size_t m = (size_t)call->plan->tile_m, n = (size_t)call->plan->tile_n;
    const size_t d = (size_t)call->head_dim + (size_t)value_dim(call);

    return (m * d + n * d + n + 2 * m + (size_t)call->head_dim) * sizeof(REAL) +
           2 * m * sizeof(int32_t);
}

void forward_place(const struct cpu_forward *call, struct forward_scratch *scratch)
{
    const size_t m = (size_t)call->plan->tile_m, n = (size_t)call->plan->tile_n;
    const size_t d = (size_t)call->head_dim, dv = (size_t)value_dim(call);
    REAL *at = scratch->memory;

    scratch->q = at;
    scratch->out = at += m * d;
    scratch->keys = at += m * dv;
    scratch->values = at += n * d;
    scratch->scores = at += n * dv;
    scratch->top = at += n;
    scratch->sum = at += m;
    scratch->line = at += m;
    scratch->begin = (int32_t *)(void *)(at + d);
    scratch->end = scratch->begin + m;
}

/* ---- one block ---- */

/* Keys [k, k + count) of the kv head, both operands. */
static void load_block(const struct cpu_forward *call, int32_t kv_head, int64_t k, int32_t count,
                       struct forward_scratch *scratch)
{
    const struct cpu_tensor *keys = &call->args.k, *values = &call->args.v;
    const int32_t n = call->plan->tile_n, d = call->head_dim, dv = value_dim(call);
    REAL *restrict to = scratch->keys;
    REAL *row = scratch->values, *line = scratch->line;

    for (int32_t j = 0; j < count; j++) {
        load(call->dtype, keys->data, (k + j) * keys->token_stride + kv_head * keys->head_stride, d,
             line);
        for (int32_t c = 0; c < d; c++)
            to[(int64_t)c * n + j] = line[c];
    }
    for (int32_t j = 0; j < count; j++, row += dv)
        load(call->dtype, values->data,
             (k + j) * values->token_stride + kv_head * values->head_stride, dv, row);
}

/* Keys [from, to) of the loaded block for row r of the tile. */
static void add_keys(const struct cpu_forward *call, int32_t r, int32_t from, int32_t to,
                     struct forward_scratch *scratch)
{
    const int32_t d = call->head_dim;
    REAL *restrict scores = scratch->scores;
    const int32_t dv = value_dim(call);
    REAL *restrict out = (REAL *)scratch->out + (int64_t)r * dv;
    REAL *top = (REAL *)scratch->top + r, *sum = (REAL *)scratch->sum + r;
    REAL next = *top, shift, keep, added = 0;

    score((const REAL *)scratch->q + (int64_t)r * d, scratch->keys, call->plan->tile_n, d, from, to,
          (REAL)call->args.softmax_scale, scores);
    if (call->args.softcap > 0)
        cap_scores((REAL)call->args.softcap, from, to, scores);
    for (int32_t j = from; j < to; j++)
        next = scores[j] > next ? scores[j] : next;
    shift = next == -(REAL)INFINITY ? 0 : next; /* -inf - -inf is no number */

    keep = REAL_EXP(*top - shift);
    for (int32_t j = from; j < to; j++) {
        scores[j] = REAL_EXP(scores[j] - shift);
        added += scores[j];
    }
    if (keep != 1)
        for (int32_t c = 0; c < dv; c++)
            out[c] *= keep;
    *sum = *sum * keep + added;
    *top = next;
    gather(scores, scratch->values, dv, from, to, out);
}

/* ---- one sweep, one tile ---- */

static void run_sweep(const struct cpu_forward *call, const struct plan_tile *tile,
                      const struct plan_sweep *sweep, int32_t kv_head,
                      struct forward_scratch *scratch)
{
    const int32_t n = call->plan->tile_n;

    sweep_bounds(call->plan, tile, sweep, scratch->begin, scratch->end);
    for (int64_t k = sweep->begin; k < sweep->end; k += n) {
        const int32_t count = (int32_t)(sweep->end - k < n ? sweep->end - k : n);
        const bool full = k >= sweep->full_begin && k + n <= sweep->full_end;

        load_block(call, kv_head, k, count, scratch);
        for (int32_t r = 0; r < tile->count; r++) {
            const int64_t lo = full ? 0 : scratch->begin[r] - k;
            const int64_t hi = full ? n : scratch->end[r] - k;
            const int32_t from = (int32_t)(lo > 0 ? lo : 0);
            const int32_t to = (int32_t)(hi < count ? hi : count);

            if (from < to)
                add_keys(call, r, from, to, scratch);
        }
    }
}

static ffa_dtype lse_dtype(const struct cpu_forward *call)
{
    return lse_dtype_of(call->lse_dtype, call->dtype);
}

static REAL sink_of(const struct cpu_forward *call, int32_t s, int32_t head)
{
    return load_lse(lse_dtype(call), call->args.sink, (int64_t)s * call->args.heads_q + head);
}

/* Sinks join the row's sum; top is raised where one is above it. Returns what out must be scaled
 * with for the new top. */
static REAL add_sinks(const struct cpu_forward *call, int32_t head, REAL *top, REAL *sum)
{
    REAL next = *top, keep;

    for (int32_t s = 0; s < call->args.sink_count; s++) {
        const REAL logit = sink_of(call, s, head);

        next = logit > next ? logit : next;
    }
    if (next == -(REAL)INFINITY)
        return 1;
    keep = REAL_EXP(*top - next);
    *sum *= keep;
    for (int32_t s = 0; s < call->args.sink_count; s++)
        *sum += REAL_EXP(sink_of(call, s, head) - next);
    *top = next;
    return keep;
}

/* Weights of what was there and of what is new; *lse becomes that of both. An empty pair has lse
 * -inf and weighs nothing. */
static void merge_rows(REAL old, REAL *lse, REAL *was, REAL *is)
{
    const REAL top = old > *lse ? old : *lse;
    REAL sum;

    if (top == -(REAL)INFINITY)
        return;
    *was = REAL_EXP(old - top);
    *is = REAL_EXP(*lse - top);
    sum = *was + *is;
    *was /= sum;
    *is /= sum;
    *lse = top + REAL_LOG(sum);
}

/* flags: of the tile */
static void write_row(const struct cpu_forward *call, int64_t row, int32_t r, int32_t head,
                      uint16_t flags, const struct forward_scratch *scratch)
{
    const struct cpu_tensor *out = &call->args.out, *lse = &call->args.lse;
    const REAL *from = (const REAL *)scratch->out + (int64_t)r * value_dim(call);
    const int64_t at = row * out->token_stride + head * out->head_stride;
    const int64_t lse_at = row * lse->token_stride + head * lse->head_stride;
    const int64_t packed = row * call->args.heads_q + head;
    const bool is_first = !(flags & PLAN_TILE_MERGES), is_last = !(flags & PLAN_TILE_CONTINUES);
    const struct cpu_tensor *const partial = call->partial;
    const ffa_dtype partial_dtype = call->dtype == FFA_FP64 ? FFA_FP64 : FFA_FP32;
    const int64_t partial_at =
        partial ? row * partial->token_stride + head * partial->head_stride : 0;
    const int64_t out_step = call->sum_stride ? call->sum_stride : value_dim(call);
    const int64_t lse_step = call->sum_stride ? call->sum_stride : 1;
    REAL *const sum_out = (REAL *)call->sum_out + (call->sum_out ? packed * out_step : 0);
    REAL *const sum_lse = (REAL *)call->sum_lse + (call->sum_lse ? packed * lse_step : 0);
    REAL top = ((const REAL *)scratch->top)[r], sum = ((const REAL *)scratch->sum)[r];
    const ffa_dtype out_dtype = call->out_dtype ? call->out_dtype : call->dtype;
    REAL keep = 1; /* what the sinks leave of the scale of `from` */
    REAL was = 0, is = 1, here;

    if (is_first && call->args.sink_count > 0)
        keep = add_sinks(call, head, &top, &sum);

    /* sum is 0 where no key has weight: out is 0, lse -inf. A NaN is not 0, and stays. */
    here = sum == 0 ? -(REAL)INFINITY : top + REAL_LOG(sum);
    if (!is_first && !partial)
        merge_rows(*sum_lse, &here, &was, &is);
    else if (!is_first || call->accumulate)
        merge_rows(load_lse(lse_dtype(call), lse->data, lse_at), &here, &was, &is);
    for (int32_t c = 0; c < value_dim(call); c++) {
        REAL value = sum == 0 ? 0 : from[c] * keep / sum * is, old = 0;

        if (was != 0 && is_first)
            load(out_dtype, out->data, at + c, 1, &old);
        else if (was != 0 && partial)
            load(partial_dtype, partial->data, partial_at + c, 1, &old);
        else if (was != 0)
            old = sum_out[c];
        value += was * old;
        if (is_last)
            store(out_dtype, out->data, at + c, (double)value);
        else if (partial)
            store(partial_dtype, partial->data, partial_at + c, (double)value);
        else
            sum_out[c] = value;
    }
    if (!is_last && !partial)
        *sum_lse = here;
    else
        store(lse_dtype(call), lse->data, lse_at, (double)here);
}

/* Threads raise a head's maximum in any order. */
static void raise_float(float *at, float top)
{
    float seen;

    __atomic_load(at, &seen, __ATOMIC_RELAXED);
    while (top > seen &&
           !__atomic_compare_exchange(at, &seen, &top, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

static void raise_double(double *at, double top)
{
    double seen;

    __atomic_load(at, &seen, __ATOMIC_RELAXED);
    while (top > seen &&
           !__atomic_compare_exchange(at, &seen, &top, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

static void raise_max(const struct cpu_forward *call, const struct plan_tile *tile, int32_t head,
                      const struct forward_scratch *scratch)
{
    REAL top = -(REAL)INFINITY;

    for (int32_t r = 0; r < tile->count; r++) {
        const REAL of_row = ((const REAL *)scratch->top)[r];

        top = of_row > top ? of_row : top;
    }
    if (lse_dtype(call) == FFA_FP64)
        raise_double((double *)call->max_logits + head, (double)top);
    else
        raise_float((float *)call->max_logits + head, (float)top);
}

void forward_tile(const struct cpu_forward *call, const struct plan_tile *tile, int32_t head,
                  struct forward_scratch *scratch)
{
    const int32_t d = call->head_dim;
    const int32_t kv_head = head / (call->args.heads_q / call->args.heads_kv);
    const struct cpu_tensor *q = &call->args.q;

    assert(!tile->flags || call->partial || call->sum_out);
    for (int32_t r = 0; r < tile->count; r++) {
        load(call->dtype, q->data, (tile->begin + r) * q->token_stride + head * q->head_stride, d,
             (REAL *)scratch->q + (int64_t)r * d);
        ((REAL *)scratch->top)[r] = -(REAL)INFINITY;
        ((REAL *)scratch->sum)[r] = 0;
    }
    memset(scratch->out, 0, (size_t)tile->count * (size_t)value_dim(call) * sizeof(REAL));
    for (int32_t s = 0; s < tile->sweep_count; s++)
        run_sweep(call, tile, &call->plan->sweeps[tile->sweep_begin + s], kv_head, scratch);
    if (call->max_logits)
        raise_max(call, tile, head, scratch);
    for (int32_t r = 0; r < tile->count; r++)
        write_row(call, (int64_t)tile->begin + r, r, head, tile->flags, scratch);
}
