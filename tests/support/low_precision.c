/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention and its gradients by plain operators, each of which rounds its result to the dtype.
 *
 * One query head at a time, with full [rows][keys] matrices: scores, softmax, their derivatives,
 * three products. It is written from the formulas and shares no code with a backend, so that its
 * errors are a measure of the dtype alone.
 */
#include "support/low_precision.h"

#include "base/half.h"
#include "support/attention_case.h"
#include "support/coverage.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct operators {
    const struct oracle_backward_case *test;
    const ffa_slice_list *list;
    int64_t rows, keys;
    int32_t dim, dim_v;
    float *q, *dout;            /* [rows][columns], of a query head */
    float *k, *v;               /* [keys][columns], of a kv head */
    float *p, *tanh, *ds;       /* [rows][keys] */
    uint8_t *attended;          /* [rows][keys] */
    float *dq;                  /* [rows][columns] */
    float *dk, *dv;             /* [keys][columns], of a query head */
    float *group_dk, *group_dv; /* [keys][columns], summed over the query heads of a kv head */
};

static void *array(int64_t count, size_t size)
{
    void *memory = calloc((size_t)count, size);

    if (!memory)
        abort();
    return memory;
}

static float rounded(const struct operators *o, float value)
{
    return o->test->forward.dtype == FFA_BF16 ? bf16_to_float(bf16_from_float(value))
                                              : fp16_to_float(fp16_from_float(value));
}

static float dot(const float *a, const float *b, int32_t count)
{
    float sum = 0;

    for (int32_t c = 0; c < count; c++)
        sum += a[c] * b[c];
    return sum;
}

static void add(float *to, float weight, const float *from, int32_t count)
{
    for (int32_t c = 0; c < count; c++)
        to[c] += weight * from[c];
}

static void round_all(const struct operators *o, float *values, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        values[i] = rounded(o, values[i]);
}

static void read_head(const struct operators *o, const ffa_tensor *tensor, int64_t tokens,
                      int32_t heads, int32_t head, int32_t dim, float *to)
{
    const ffa_tensor packed = {
        .data = tensor->data,
        .token_stride =
            tensor->token_stride == FFA_CONTIGUOUS ? (int64_t)heads * dim : tensor->token_stride,
        .head_stride = tensor->head_stride == FFA_CONTIGUOUS ? dim : tensor->head_stride,
    };

    for (int64_t t = 0; t < tokens; t++)
        for (int32_t c = 0; c < dim; c++)
            to[t * dim + c] = (float)attention_read(&packed, o->test->forward.dtype, t, head, c);
}

/* ---- operators of a row ---- */

/* Set `attended` from the slices of the list. */
static void mark(struct operators *o)
{
    memset(o->attended, 0, (size_t)(o->rows * o->keys));
    for (int64_t row = 0; row < o->rows; row++)
        for (int64_t s = 0; s < o->list->count; s++) {
            int64_t lo, hi;

            if (coverage_slice_row(&o->list->slices[s], row, &lo, &hi))
                memset(o->attended + row * o->keys + lo, 1, (size_t)(hi - lo));
        }
}

/* The scaled and capped scores go to p. With a softcap, tanh(score / cap) is kept for its
 * derivative. */
static void scores(struct operators *o, int64_t row)
{
    const ffa_forward_args *args = o->test->forward.args;
    const float scale =
        (float)(args->softmax_scale > 0 ? args->softmax_scale : 1 / sqrt((double)o->dim));
    const float cap = (float)args->softcap;

    for (int64_t key = 0; key < o->keys; key++) {
        const int64_t at = row * o->keys + key;
        float s = rounded(o, dot(o->q + row * o->dim, o->k + key * o->dim, o->dim));

        s = rounded(o, s * scale);
        if (cap > 0) {
            o->tanh[at] = rounded(o, tanhf(rounded(o, s / cap)));
            s = rounded(o, cap * o->tanh[at]);
        }
        o->p[at] = s;
    }
}

/* Softmax over the attended keys and the sinks: in fp32, rounded at the end. */
static void softmax(struct operators *o, int64_t row, int32_t head)
{
    const ffa_forward_args *args = o->test->forward.args;
    const uint8_t *attended = o->attended + row * o->keys;
    const float *sink = args->sink;
    float *p = o->p + row * o->keys, top = -INFINITY, sum = 0;

    for (int64_t key = 0; key < o->keys; key++)
        top = attended[key] ? fmaxf(top, p[key]) : top;
    for (int32_t s = 0; s < args->sink_count; s++)
        top = fmaxf(top, sink[s * args->heads_q + head]);
    for (int64_t key = 0; key < o->keys; key++)
        sum += attended[key] ? expf(p[key] - top) : 0;
    for (int32_t s = 0; s < args->sink_count; s++)
        sum += expf(sink[s * args->heads_q + head] - top);
    for (int64_t key = 0; key < o->keys; key++)
        p[key] = attended[key] ? rounded(o, expf(p[key] - top) / sum) : 0;
}

/* ds: dP through the derivatives of softmax, softcap and scale. */
static void score_gradients(struct operators *o, int64_t row)
{
    const ffa_forward_args *args = o->test->forward.args;
    const float scale =
        (float)(args->softmax_scale > 0 ? args->softmax_scale : 1 / sqrt((double)o->dim));
    const float cap = (float)args->softcap;
    const float *p = o->p + row * o->keys, *slope = o->tanh + row * o->keys;
    float *ds = o->ds + row * o->keys, delta = 0;

    for (int64_t key = 0; key < o->keys; key++) {
        ds[key] = rounded(o, dot(o->dout + row * o->dim_v, o->v + key * o->dim_v, o->dim_v));
        delta += p[key] * ds[key];
    }
    for (int64_t key = 0; key < o->keys; key++) {
        ds[key] = rounded(o, p[key] * (ds[key] - delta));
        if (cap > 0) {
            ds[key] = rounded(o, ds[key] * cap);
            ds[key] = rounded(o, ds[key] * (1 - slope[key] * slope[key]));
            ds[key] = rounded(o, ds[key] / cap);
        }
        ds[key] = rounded(o, ds[key] * scale);
    }
}

/* ---- heads ---- */

/* dq, dk and dv of a query head; dk and dv are added to the sums over the kv head. */
static void products(struct operators *o)
{
    memset(o->dq, 0, (size_t)(o->rows * o->dim) * sizeof *o->dq);
    memset(o->dk, 0, (size_t)(o->keys * o->dim) * sizeof *o->dk);
    memset(o->dv, 0, (size_t)(o->keys * o->dim_v) * sizeof *o->dv);
    for (int64_t row = 0; row < o->rows; row++)
        for (int64_t key = 0; key < o->keys; key++) {
            const int64_t at = row * o->keys + key;

            if (!o->attended[at])
                continue;
            add(o->dq + row * o->dim, o->ds[at], o->k + key * o->dim, o->dim);
            add(o->dk + key * o->dim, o->ds[at], o->q + row * o->dim, o->dim);
            add(o->dv + key * o->dim_v, o->p[at], o->dout + row * o->dim_v, o->dim_v);
        }
    round_all(o, o->dq, o->rows * o->dim);
    round_all(o, o->dk, o->keys * o->dim);
    round_all(o, o->dv, o->keys * o->dim_v);
    add(o->group_dk, 1, o->dk, (int32_t)(o->keys * o->dim));
    add(o->group_dv, 1, o->dv, (int32_t)(o->keys * o->dim_v));
}

static void write_head(const struct operators *o, const ffa_tensor *tensor, int64_t tokens,
                       int32_t head, int32_t dim, const float *from)
{
    for (int64_t t = 0; t < tokens; t++)
        for (int32_t c = 0; c < dim; c++)
            attention_write(tensor, o->test->forward.dtype, t, head, c,
                            (double)rounded(o, from[t * dim + c]));
}

static void run_query_head(struct operators *o, int32_t head, const ffa_tensor *dq)
{
    const ffa_forward_args *args = o->test->forward.args;

    read_head(o, &args->q, o->rows, args->heads_q, head, o->dim, o->q);
    read_head(o, &o->test->dout, o->rows, args->heads_q, head, o->dim_v, o->dout);
    for (int64_t row = 0; row < o->rows; row++) {
        scores(o, row);
        softmax(o, row, head);
        score_gradients(o, row);
    }
    products(o);
    write_head(o, dq, o->rows, head, o->dim, o->dq);
}

static void run_kv_head(struct operators *o, int32_t kv, const struct oracle_backward_case *made)
{
    const ffa_forward_args *args = o->test->forward.args;
    const int32_t group = args->heads_q / args->heads_kv;

    o->list = &o->test->forward.lists[o->test->forward.list_count == 1 ? 0 : kv];
    mark(o);
    read_head(o, &args->k, o->keys, args->heads_kv, kv, o->dim, o->k);
    read_head(o, &args->v, o->keys, args->heads_kv, kv, o->dim_v, o->v);
    memset(o->group_dk, 0, (size_t)(o->keys * o->dim) * sizeof *o->dk);
    memset(o->group_dv, 0, (size_t)(o->keys * o->dim_v) * sizeof *o->dv);
    for (int32_t head = kv * group; head < (kv + 1) * group; head++)
        run_query_head(o, head, &made->dq);
    write_head(o, &made->dk, o->keys, kv, o->dim, o->group_dk);
    write_head(o, &made->dv, o->keys, kv, o->dim_v, o->group_dv);
}

struct oracle_backward_report low_precision_errors(const struct oracle_backward_case *test,
                                                   const struct oracle_gradients *want)
{
    const ffa_forward_args *args = test->forward.args;
    const int32_t dim = test->forward.head_dim;
    const int32_t dim_v = test->forward.head_dim_v ? test->forward.head_dim_v : dim;
    const int64_t rows = test->forward.shape.seqlen_q, keys = test->forward.shape.seqlen_k;
    const struct oracle_backward_tolerance none = { INFINITY, INFINITY, INFINITY };
    struct oracle_backward_case made = *test;
    struct oracle_backward_report report;
    struct operators o = { .test = test, .rows = rows, .keys = keys, .dim = dim, .dim_v = dim_v };
    void *const owned[] = {
        o.q = array(rows * dim, sizeof *o.q),
        o.dout = array(rows * dim_v, sizeof *o.dout),
        o.k = array(keys * dim, sizeof *o.k),
        o.v = array(keys * dim_v, sizeof *o.v),
        o.p = array(rows * keys, sizeof *o.p),
        o.tanh = array(rows * keys, sizeof *o.tanh),
        o.ds = array(rows * keys, sizeof *o.ds),
        o.attended = array(rows * keys, 1),
        o.dq = array(rows * dim, sizeof *o.dq),
        o.dk = array(keys * dim, sizeof *o.dk),
        o.dv = array(keys * dim_v, sizeof *o.dv),
        o.group_dk = array(keys * dim, sizeof *o.dk),
        o.group_dv = array(keys * dim_v, sizeof *o.dv),
        made.dq.data = array(rows * args->heads_q * dim, 2),
        made.dk.data = array(keys * args->heads_kv * dim, 2),
        made.dv.data = array(keys * args->heads_kv * dim_v, 2),
    };

    made.grad_dtype = test->forward.dtype;
    made.dsink = NULL;
    made.dq.token_stride = (int64_t)args->heads_q * dim;
    made.dk.token_stride = (int64_t)args->heads_kv * dim;
    made.dv.token_stride = (int64_t)args->heads_kv * dim_v;
    made.dq.head_stride = made.dk.head_stride = dim;
    made.dv.head_stride = dim_v;
    for (int32_t kv = 0; kv < args->heads_kv; kv++)
        run_kv_head(&o, kv, &made);
    oracle_backward_compare(&report, &made, want, &none);
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        free(owned[i]);
    return report;
}

bool low_precision_bounds(const struct oracle_backward_report *got,
                          const struct oracle_backward_report *low, char why[160])
{
    const struct {
        const char *name;
        double got, low;
    } all[] = {
        { "dq", got->dq, low->dq },      { "dk", got->dk, low->dk },
        { "dv", got->dv, low->dv },      { "a row of dq", got->row, low->row },
        { "a key", got->key, low->key }, { "a head", got->head, low->head },
    };

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!(all[i].got <= 2 * all[i].low)) {
            snprintf(why, 160, "%s is off by %.2e, by plain operators %.2e", all[i].name,
                     all[i].got, all[i].low);
            return false;
        }
    return true;
}
