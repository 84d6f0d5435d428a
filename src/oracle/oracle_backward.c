/* SPDX-License-Identifier: Apache-2.0
 *
 * The backward oracle. It goes kv head by kv head: first the rows of the head's query heads (lse,
 * delta, and dq of the rows asked for), then, query head by query head, the keys asked for. Threads
 * share the work of each step. Invariant: one thread adds up a line of a result, in ascending order
 * of tokens.
 */
#include "oracle/oracle_backward.h"

#include "oracle/oracle_elements.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a row's weights and gradients hang on. */
struct row_sums {
    double lse, delta;
    double dlse;    /* gradient by lse */
    double squares; /* of the terms of delta and dlse */
};

struct backward {
    const struct oracle_backward_case *test;
    struct oracle_gradients *out;
    double scale, cap;
    bool all_rows;                    /* sums of all rows are asked for */
    int32_t kv_head, head;            /* of the step */
    double *keys, *values;            /* [seqlen_k][head_dim, values: head_dim_v]: of kv_head */
    double *q, *dout;                 /* [seqlen_q][head_dim, dout: head_dim_v]: of head */
    double *key_squares;              /* [seqlen_k]: each one's product with itself */
    double *q_squares, *dout_squares; /* [seqlen_q] */
    struct row_sums *sums;            /* [seqlen_q]: of head */
    int64_t *row_at;                  /* [seqlen_q]: index in dq, or -1 */
    atomic_llong next;
};

struct backward_worker {
    struct backward *backward;
    void (*step)(struct backward_worker *worker, int64_t item);
    int64_t count;     /* items of the step */
    uint8_t *attended; /* [seqlen_k or seqlen_q, whichever is more] */
    double *weights;   /* [seqlen_k] */
    double *grads;     /* [seqlen_k]: dp */
    double *bends;     /* [seqlen_k]: slope of the cap */
    double *squares;   /* [seqlen_k]: of the terms of dp */
    pthread_t thread;
    bool started;
};

/* ---- cells ---- */

/* The score of one cell, and the slope of the cap there. */
static double score_of(const struct backward *backward, const double *q, const double *key,
                       double *bend)
{
    const double score = backward->scale * oracle_dot(q, key, backward->test->forward.head_dim);
    double capped;

    *bend = 1;
    if (!(backward->cap > 0))
        return score;
    capped = tanh(score / backward->cap);
    *bend = 1 - capped * capped;
    return backward->cap * capped;
}

static const ffa_slice_list *list_of(const struct backward *backward)
{
    const struct oracle_case *test = &backward->test->forward;

    return &test->lists[test->list_count == 1 ? 0 : backward->kv_head];
}

/* One boolean a key of the row. */
static void mark_keys(const struct backward *backward, int64_t row, uint8_t *attended)
{
    const ffa_slice_list *list = list_of(backward);

    memset(attended, 0, (size_t)backward->test->forward.shape.seqlen_k);
    for (int64_t s = 0; s < list->count; s++) {
        const ffa_slice *slice = &list->slices[s];
        const int64_t i = row - slice->q_begin, sq = slice->q_end - slice->q_begin;
        const int64_t lo = slice->k_begin + (slice->type & 2 ? i : 0);
        const int64_t hi = slice->k_end - (slice->type & 1 ? sq - 1 - i : 0);

        for (int64_t k = lo; i >= 0 && i < sq && k < hi; k++)
            attended[k] = 1;
    }
}

/* One boolean a row of the key, by the same rule. */
static void mark_rows(const struct backward *backward, int64_t key, uint8_t *attended)
{
    const ffa_slice_list *list = list_of(backward);

    memset(attended, 0, (size_t)backward->test->forward.shape.seqlen_q);
    for (int64_t s = 0; s < list->count; s++) {
        const ffa_slice *slice = &list->slices[s];
        const int64_t sq = slice->q_end - slice->q_begin;

        if (key < slice->k_begin || key >= slice->k_end)
            continue;
        for (int64_t i = 0; i < sq; i++) {
            const int64_t lo = slice->k_begin + (slice->type & 2 ? i : 0);
            const int64_t hi = slice->k_end - (slice->type & 1 ? sq - 1 - i : 0);

            if (lo <= key && key < hi)
                attended[slice->q_begin + i] = 1;
        }
    }
}

/* ---- rows: lse, delta, dq ---- */

/* log(sum exp) of the scores in weights, and of the head's sinks. */
static double lse_of(const struct backward_worker *worker)
{
    const struct backward *backward = worker->backward;
    const struct oracle_case *test = &backward->test->forward;
    const int32_t sinks = test->args->sink_count;
    const int64_t keys = test->shape.seqlen_k;
    double top = -INFINITY, sum = 0;

    for (int64_t k = 0; k < keys; k++)
        if (worker->attended[k])
            top = worker->weights[k] > top ? worker->weights[k] : top;
    for (int32_t s = 0; s < sinks; s++)
        top = fmax(top, oracle_sink(test, s, backward->head));
    top = top == -INFINITY ? 0 : top;
    for (int64_t k = 0; k < keys; k++)
        if (worker->attended[k])
            sum += exp(worker->weights[k] - top);
    for (int32_t s = 0; s < sinks; s++)
        sum += exp(oracle_sink(test, s, backward->head) - top);
    return sum == 0 ? -INFINITY : top + log(sum);
}

/* weights: exp(score - lse) of attended keys; returns lse, the given one if any. */
static double row_weights(struct backward_worker *worker, const double *q, const double *given)
{
    const struct backward *backward = worker->backward;
    const int64_t keys = backward->test->forward.shape.seqlen_k;
    const int32_t dim = backward->test->forward.head_dim;
    double lse;

    for (int64_t k = 0; k < keys; k++)
        if (worker->attended[k])
            worker->weights[k] = score_of(backward, q, backward->keys + k * dim, &worker->bends[k]);
    lse = given ? *given : lse_of(worker);
    for (int64_t k = 0; k < keys; k++)
        if (worker->attended[k])
            worker->weights[k] = lse == -INFINITY ? 0 : exp(worker->weights[k] - lse);
    return lse;
}

static double given_lse(const struct backward *backward, int64_t row)
{
    const ffa_forward_args *args = backward->test->forward.args;

    return oracle_read(oracle_lse_dtype(&backward->test->forward), args->lse.data,
                       oracle_offset(&args->lse, args->heads_q, 1, row, backward->head));
}

/* 0 where there is none, and of a row whose lse is -inf: nothing changes that. */
static double dlse_of(const struct backward *backward, int64_t row, double lse)
{
    const struct oracle_backward_case *test = backward->test;
    const int32_t heads = test->forward.args->heads_q;

    if (!test->dlse.data || lse == -INFINITY)
        return 0;
    return oracle_read(oracle_lse_dtype(&test->forward), test->dlse.data,
                       oracle_offset(&test->dlse, heads, 1, row, backward->head));
}

/* The row's sums are complete but for what lse brings. */
static void add_dlse(const struct backward *backward, int64_t row)
{
    struct row_sums *sums = &backward->sums[row];

    sums->dlse = dlse_of(backward, row, sums->lse);
    sums->squares += sums->dlse * sums->dlse;
}

static void given_delta(const struct backward *backward, int64_t row)
{
    const struct oracle_case *test = &backward->test->forward;
    const int32_t dim_v = oracle_value_dim(test);
    const int64_t at =
        oracle_offset(&test->args->out, test->args->heads_q, dim_v, row, backward->head);
    const double *dout = backward->dout + row * dim_v;
    double delta = 0, squares = 0;

    for (int32_t c = 0; c < dim_v; c++) {
        const double term =
            oracle_read(oracle_out_dtype(test), test->args->out.data, at + c) * dout[c];

        delta += term;
        squares += term * term;
    }
    backward->sums[row].delta = delta;
    backward->sums[row].squares = squares;
}

static void row_gradient(struct backward_worker *worker, int64_t row, int64_t at)
{
    const struct backward *backward = worker->backward;
    const int32_t dim = backward->test->forward.head_dim;
    const struct row_sums *sums = &backward->sums[row];
    struct oracle_gradient *dq = &backward->out->dq;
    double *sum = dq->at + at * dim, squares = 0;

    for (int64_t k = 0; k < backward->test->forward.shape.seqlen_k; k++) {
        const double *key = backward->keys + k * dim;
        double slope, ds;

        if (!worker->attended[k])
            continue;
        slope = backward->scale * worker->bends[k] * worker->weights[k];
        ds = slope * (worker->grads[k] - sums->delta + sums->dlse);
        oracle_add(sum, ds, key, dim);
        squares += slope * slope * (worker->squares[k] + sums->squares) * backward->key_squares[k];
        dq->touched[at] = 1;
    }
    dq->terms[at] = sqrt(squares);
}

static void run_row(struct backward_worker *worker, int64_t row)
{
    const struct backward *backward = worker->backward;
    const struct oracle_case *test = &backward->test->forward;
    const int32_t dim = test->head_dim, dim_v = oracle_value_dim(test);
    const double *dout = backward->dout + row * dim_v;
    const bool use_out = backward->test->use_out;
    struct row_sums *sums = &backward->sums[row];
    double delta = 0, squares = 0;

    if (use_out) {
        sums->lse = given_lse(backward, row);
        given_delta(backward, row);
        add_dlse(backward, row);
    }
    if (backward->row_at[row] < 0 && (use_out || !backward->all_rows))
        return;
    mark_keys(backward, row, worker->attended);
    sums->lse = row_weights(worker, backward->q + row * dim, use_out ? &sums->lse : NULL);
    for (int64_t k = 0; k < test->shape.seqlen_k; k++)
        if (worker->attended[k]) {
            worker->grads[k] =
                oracle_dot_squares(dout, backward->values + k * dim_v, dim_v, &worker->squares[k]);
            delta += worker->weights[k] * worker->grads[k];
            squares += worker->weights[k] * worker->weights[k] * worker->squares[k];
        }
    if (!use_out) {
        sums->delta = delta;
        sums->squares = squares;
        add_dlse(backward, row);
    }
    if (backward->row_at[row] >= 0)
        row_gradient(worker, row, backward->row_at[row]);
}

/* ---- keys: dk, dv ---- */

/* Adds what the query head of the step gives to sample `at`. */
static void run_key(struct backward_worker *worker, int64_t at)
{
    const struct backward *backward = worker->backward;
    const struct oracle_sample sample = oracle_sample_of_key(backward->test, at);
    const int32_t dim = backward->test->forward.head_dim;
    const int32_t dim_v = oracle_value_dim(&backward->test->forward);
    const double *key = backward->keys + sample.row * dim;
    const double *value = backward->values + sample.row * dim_v;
    struct oracle_gradient *dk = &backward->out->dk, *dv = &backward->out->dv;
    double *sum_k = dk->at + at * dim, *sum_v = dv->at + at * dim_v;
    double squares_k = 0, squares_v = 0;

    if (sample.head != backward->kv_head)
        return;
    mark_rows(backward, sample.row, worker->attended);
    for (int64_t r = 0; r < backward->test->forward.shape.seqlen_q; r++) {
        const double *q = backward->q + r * dim, *dout = backward->dout + r * dim_v;
        const struct row_sums *sums = &backward->sums[r];
        double bend, p, slope, squares, ds;

        if (!worker->attended[r])
            continue;
        p = score_of(backward, q, key, &bend);
        p = sums->lse == -INFINITY ? 0 : exp(p - sums->lse);
        slope = backward->scale * bend * p;
        ds = slope * (oracle_dot_squares(dout, value, dim_v, &squares) - sums->delta + sums->dlse);
        oracle_add(sum_k, ds, q, dim);
        oracle_add(sum_v, p, dout, dim_v);
        squares_k += slope * slope * (squares + sums->squares) * backward->q_squares[r];
        squares_v += p * p * backward->dout_squares[r];
        dk->touched[at] = dv->touched[at] = 1;
    }
    dk->terms[at] = hypot(dk->terms[at], sqrt(squares_k));
    dv->terms[at] = hypot(dv->terms[at], sqrt(squares_v));
}

/* ---- dsink ---- */

static void sink_gradient(const struct backward *backward)
{
    const struct oracle_backward_case *test = backward->test;
    const ffa_forward_args *args = test->forward.args;
    struct oracle_gradient *dsink = &backward->out->dsink;

    for (int32_t s = 0; s < args->sink_count; s++) {
        const int64_t at = (int64_t)s * args->heads_q + backward->head;
        double sum = 0, squares = 0;

        for (int64_t r = 0; r < test->forward.shape.seqlen_q; r++) {
            const struct row_sums *sums = &backward->sums[r];
            const double weight =
                sums->lse == -INFINITY
                    ? 0
                    : exp(oracle_sink(&test->forward, s, backward->head) - sums->lse);

            sum += weight * (sums->dlse - sums->delta);
            squares += weight * weight * sums->squares;
        }
        dsink->at[at] = sum;
        dsink->terms[at] = sqrt(squares);
        dsink->touched[at] = 1;
    }
}

/* ---- steps ---- */

static void *run(void *user)
{
    struct backward_worker *worker = user;
    long long item;

    while ((item = atomic_fetch_add(&worker->backward->next, 1)) < worker->count)
        worker->step(worker, item);
    return NULL;
}

static void run_step(struct backward_worker *workers, int32_t threads,
                     void (*step)(struct backward_worker *, int64_t), int64_t count)
{
    atomic_store(&workers[0].backward->next, 0);
    for (int32_t i = 0; i < threads; i++) {
        workers[i].step = step;
        workers[i].count = count;
        workers[i].started = i > 0 && !pthread_create(&workers[i].thread, NULL, run, &workers[i]);
    }
    run(&workers[0]);
    for (int32_t i = 1; i < threads; i++)
        if (workers[i].started)
            pthread_join(workers[i].thread, NULL);
}

/* squares: each token's product with itself; NULL: not asked for. */
static void convert(const struct oracle_backward_case *test, const ffa_tensor *tensor,
                    int64_t tokens, int32_t heads, int32_t dim, int32_t head, double *to,
                    double *squares)
{
    for (int64_t t = 0; t < tokens; t++, to += dim) {
        for (int32_t c = 0; c < dim; c++)
            to[c] = oracle_read(test->forward.dtype, tensor->data,
                                oracle_offset(tensor, heads, dim, t, head) + c);
        if (squares)
            squares[t] = oracle_dot(to, to, dim);
    }
}

static void run_head(struct backward *backward, struct backward_worker *workers, int32_t threads,
                     bool with_keys)
{
    const struct oracle_backward_case *test = backward->test;
    const ffa_forward_args *args = test->forward.args;
    const int64_t rows = test->forward.shape.seqlen_q;
    bool with_rows = false;

    for (int64_t r = 0; r < rows; r++)
        backward->row_at[r] = -1;
    for (int64_t i = 0; i < backward->out->dq.count; i++) {
        const struct oracle_sample sample = oracle_sample_of_row(test, i);

        if (sample.head == backward->head) {
            backward->row_at[sample.row] = i;
            with_rows = true;
        }
    }
    backward->all_rows = with_keys || test->dsink;
    if (!with_rows && !backward->all_rows)
        return;
    convert(test, &args->q, rows, args->heads_q, test->forward.head_dim, backward->head,
            backward->q, backward->q_squares);
    convert(test, &test->dout, rows, args->heads_q, oracle_value_dim(&test->forward),
            backward->head, backward->dout, backward->dout_squares);
    run_step(workers, threads, run_row, rows);
    if (test->dsink)
        sink_gradient(backward);
    if (with_keys)
        run_step(workers, threads, run_key, backward->out->dk.count);
}

static void run_all(struct backward *backward, struct backward_worker *workers, int32_t threads)
{
    const struct oracle_backward_case *test = backward->test;
    const ffa_forward_args *args = test->forward.args;
    const int64_t keys = test->forward.shape.seqlen_k;
    const int32_t group = args->heads_q / args->heads_kv;

    for (int32_t kv = 0; kv < args->heads_kv; kv++) {
        bool with_keys = false;

        backward->kv_head = kv;
        for (int64_t i = 0; i < backward->out->dk.count && !with_keys; i++)
            with_keys = oracle_sample_of_key(test, i).head == kv;
        convert(test, &args->k, keys, args->heads_kv, test->forward.head_dim, kv, backward->keys,
                backward->key_squares);
        convert(test, &args->v, keys, args->heads_kv, oracle_value_dim(&test->forward), kv,
                backward->values, NULL);
        for (int32_t h = kv * group; h < (kv + 1) * group; h++) {
            backward->head = h;
            run_head(backward, workers, threads, with_keys);
        }
    }
}

/* ---- memory ---- */

static bool gradient_create(struct oracle_gradient *gradient, int64_t count, int32_t dim)
{
    gradient->count = count;
    gradient->at = calloc((size_t)count * (size_t)dim + 1, sizeof *gradient->at);
    gradient->terms = calloc((size_t)count + 1, sizeof *gradient->terms);
    gradient->touched = calloc((size_t)count + 1, 1);
    return gradient->at && gradient->terms && gradient->touched;
}

static bool prepare(struct backward *backward, struct backward_worker *workers, int32_t threads)
{
    const struct oracle_backward_case *test = backward->test;
    const ffa_forward_args *args = test->forward.args;
    const size_t rows = (size_t)test->forward.shape.seqlen_q;
    const size_t keys = (size_t)test->forward.shape.seqlen_k;
    const int32_t dim = test->forward.head_dim, dim_v = oracle_value_dim(&test->forward);
    const size_t row_bytes = (size_t)dim * sizeof(double);
    const size_t row_bytes_v = (size_t)dim_v * sizeof(double);
    const int64_t dq_count = test->forward.samples ? test->forward.sample_count
                                                   : test->forward.shape.seqlen_q * args->heads_q;
    const int64_t dk_count =
        test->key_samples ? test->key_sample_count : test->forward.shape.seqlen_k * args->heads_kv;
    bool ok = gradient_create(&backward->out->dq, dq_count, dim);

    ok = gradient_create(&backward->out->dk, dk_count, dim) && ok;
    ok = gradient_create(&backward->out->dv, dk_count, dim_v) && ok;
    ok = gradient_create(&backward->out->dsink,
                         test->dsink ? (int64_t)args->sink_count * args->heads_q : 0, 1) &&
         ok;
    backward->keys = malloc(keys * row_bytes);
    backward->values = malloc(keys * row_bytes_v);
    backward->q = malloc(rows * row_bytes);
    backward->dout = malloc(rows * row_bytes_v);
    backward->key_squares = malloc(keys * sizeof *backward->key_squares);
    backward->q_squares = malloc(rows * sizeof *backward->q_squares);
    backward->dout_squares = malloc(rows * sizeof *backward->dout_squares);
    backward->sums = malloc(rows * sizeof *backward->sums);
    backward->row_at = malloc(rows * sizeof *backward->row_at);
    ok = ok && backward->keys && backward->values && backward->q && backward->dout &&
         backward->key_squares && backward->q_squares && backward->dout_squares && backward->sums &&
         backward->row_at;
    for (int32_t i = 0; i < threads; i++) {
        workers[i].backward = backward;
        workers[i].attended = malloc(keys > rows ? keys : rows);
        workers[i].weights = malloc(keys * sizeof *workers[i].weights);
        workers[i].grads = malloc(keys * sizeof *workers[i].grads);
        workers[i].bends = malloc(keys * sizeof *workers[i].bends);
        workers[i].squares = malloc(keys * sizeof *workers[i].squares);
        ok = ok && workers[i].squares;
        ok =
            ok && workers[i].attended && workers[i].weights && workers[i].grads && workers[i].bends;
    }
    return ok;
}

ffa_status oracle_backward(struct oracle_gradients *out, const struct oracle_backward_case *test,
                           ffa_error *err)
{
    struct backward_worker workers[ORACLE_THREADS_MAX] = { 0 };
    struct oracle_gradients gradients = { 0 };
    struct backward backward = { .test = test,
                                 .out = &gradients,
                                 .scale = oracle_scale(&test->forward),
                                 .cap = test->forward.args->softcap };
    const int32_t threads = oracle_threads(&test->forward);
    ffa_status rc = FFA_NOMEM;

    *out = (struct oracle_gradients){ 0 };
    if (!prepare(&backward, workers, threads)) {
        if (err) {
            err->status = FFA_NOMEM;
            snprintf(err->message, sizeof err->message, "no memory for the reference");
        }
        goto out;
    }
    run_all(&backward, workers, threads);
    *out = gradients;
    gradients = (struct oracle_gradients){ 0 };
    rc = FFA_OK;
out:
    for (int32_t i = 0; i < threads; i++) {
        free(workers[i].attended);
        free(workers[i].weights);
        free(workers[i].grads);
        free(workers[i].bends);
        free(workers[i].squares);
    }
    free(backward.keys);
    free(backward.values);
    free(backward.q);
    free(backward.dout);
    free(backward.key_squares);
    free(backward.q_squares);
    free(backward.dout_squares);
    free(backward.sums);
    free(backward.row_at);
    oracle_gradients_finish(&gradients);
    return rc;
}

static void gradient_free(struct oracle_gradient *gradient)
{
    free(gradient->at);
    free(gradient->terms);
    free(gradient->touched);
}

void oracle_gradients_finish(struct oracle_gradients *gradients)
{
    gradient_free(&gradients->dq);
    gradient_free(&gradients->dk);
    gradient_free(&gradients->dv);
    gradient_free(&gradients->dsink);
    *gradients = (struct oracle_gradients){ 0 };
}
