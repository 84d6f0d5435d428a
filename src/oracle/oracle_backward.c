/* SPDX-License-Identifier: Apache-2.0
 *
 * The backward oracle. It goes kv head by kv head: first the rows of the head's query heads (lse,
 * delta, and dq of the rows asked for), then, query head by query head, the keys asked for. Threads
 * share the work of each step. Invariant: one thread adds up a line of a result, in ascending order
 * of tokens. Trick: a thread takes a group of rows, or of keys, and goes through what they attend,
 * or what attends them, TILE tokens at a time. So a line of a tensor is fetched once for the group,
 * and is in the nearest cache when the others of the group need it.
 */
#include "oracle/oracle_backward.h"

#include "oracle/oracle_elements.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROWS = 4,       /* rows of one head in a group */
    KEYS = 16,      /* keys of one head in a group, at most */
    KEYS_LEAST = 4, /* and where there are fewer for each thread */
    TILE = 8,       /* tokens that a group goes through together */
    BLOCK = 64      /* tokens that a thread converts to double together */
};

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
    int64_t *rows, row_count;         /* rows of head whose cells are computed, ascending */
    int64_t *keys_at, key_count;      /* indices in dk of the keys of kv_head that are asked for */
    int32_t key_group;                /* keys that a thread takes together */
    atomic_llong next;
};

struct backward_worker {
    struct backward *backward;
    void (*step)(struct backward_worker *worker, int64_t item);
    int64_t count;     /* items of the step */
    uint8_t *attended; /* [ROWS][seqlen_k] or [KEYS][seqlen_q], whichever is more */
    double *weights;   /* [ROWS][seqlen_k] */
    double *grads;     /* [ROWS][seqlen_k]: dp */
    double *bends;     /* [ROWS][seqlen_k]: slope of the cap */
    double *squares;   /* [ROWS][seqlen_k]: of the terms of dp */
    pthread_t thread;
    bool started;
};

/* ---- cells ---- */

/* The score of a cell by the product of its row and key, and the slope of the cap there. */
static double score_of(const struct backward *backward, double product, double *bend)
{
    const double score = backward->scale * product;
    double capped;

    *bend = 1;
    if (!(backward->cap > 0))
        return score;
    capped = tanh(score / backward->cap);
    *bend = 1 - capped * capped;
    return backward->cap * capped;
}

/* The attended ones of the TILE tokens from `begin` on. */
struct tile {
    int64_t tokens[TILE];
    int32_t count;
};

static struct tile tile_of(const uint8_t *attended, int64_t begin, int64_t limit)
{
    struct tile tile = { .count = 0 };

    for (int64_t t = begin; t < begin + TILE && t < limit; t++)
        if (attended[t])
            tile.tokens[tile.count++] = t;
    return tile;
}

/* lines[i]: that of token i of the tile. */
static void find_lines(const double **lines, const struct tile *tile, const double *tensor,
                       int32_t dim)
{
    for (int32_t i = 0; i < tile->count; i++)
        lines[i] = tensor + tile->tokens[i] * dim;
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

/* ---- reading ---- */

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
    const ffa_dtype out_dtype = oracle_out_dtype(test);
    const int64_t at =
        oracle_offset(&test->args->out, test->args->heads_q, dim_v, row, backward->head);
    const double *dout = backward->dout + row * dim_v;
    double delta = 0, squares = 0;

    for (int32_t c = 0; c < dim_v; c++) {
        const double term = oracle_read(out_dtype, test->args->out.data, at + c) * dout[c];

        delta += term;
        squares += term * term;
    }
    backward->sums[row].delta = delta;
    backward->sums[row].squares = squares;
}

/* With use_out: what is given of a row. */
static void read_sums(const struct backward *backward, int64_t row)
{
    backward->sums[row].lse = given_lse(backward, row);
    given_delta(backward, row);
    add_dlse(backward, row);
}

static int64_t block_end(int64_t block, int64_t tokens)
{
    return tokens < (block + 1) * BLOCK ? tokens : (block + 1) * BLOCK;
}

static void read_keys(struct backward_worker *worker, int64_t block)
{
    const struct backward *backward = worker->backward;
    const struct oracle_case *test = &backward->test->forward;
    const int32_t dim = test->head_dim, dim_v = oracle_value_dim(test);
    const int32_t heads = test->args->heads_kv, head = backward->kv_head;
    const int64_t end = block_end(block, test->shape.seqlen_k);

    for (int64_t k = block * BLOCK; k < end; k++) {
        double *key = backward->keys + k * dim;

        oracle_read_row(test, &test->args->k, heads, dim, k, head, key);
        oracle_read_row(test, &test->args->v, heads, dim_v, k, head, backward->values + k * dim_v);
        backward->key_squares[k] = oracle_dot(key, key, dim);
    }
}

static void read_rows(struct backward_worker *worker, int64_t block)
{
    const struct backward *backward = worker->backward;
    const struct oracle_case *test = &backward->test->forward;
    const int32_t dim = test->head_dim, dim_v = oracle_value_dim(test);
    const int32_t heads = test->args->heads_q, head = backward->head;
    const int64_t end = block_end(block, test->shape.seqlen_q);

    for (int64_t r = block * BLOCK; r < end; r++) {
        double *q = backward->q + r * dim, *dout = backward->dout + r * dim_v;

        oracle_read_row(test, &test->args->q, heads, dim, r, head, q);
        oracle_read_row(test, &backward->test->dout, heads, dim_v, r, head, dout);
        backward->q_squares[r] = oracle_dot(q, q, dim);
        backward->dout_squares[r] = oracle_dot(dout, dout, dim_v);
        if (backward->test->use_out)
            read_sums(backward, r);
    }
}

/* ---- groups ---- */

/* How many of `count` rows or keys are in a group; in all but the last there are `most`. */
static int32_t members_of(int64_t group, int32_t most, int64_t count)
{
    const int64_t left = count - group * most;

    return left < most ? (int32_t)left : most;
}

/* ---- rows: lse, delta, dq ---- */

/* log(sum exp) of the scores of a row, and of the head's sinks. */
static double lse_of(const struct backward *backward, const uint8_t *attended, const double *scores)
{
    const struct oracle_case *test = &backward->test->forward;
    const int32_t sinks = test->args->sink_count;
    const int64_t keys = test->shape.seqlen_k;
    double top = -INFINITY, sum = 0;

    for (int64_t k = 0; k < keys; k++)
        if (attended[k])
            top = scores[k] > top ? scores[k] : top;
    for (int32_t s = 0; s < sinks; s++)
        top = fmax(top, oracle_sink(test, s, backward->head));
    top = top == -INFINITY ? 0 : top;
    for (int64_t k = 0; k < keys; k++)
        if (attended[k])
            sum += exp(scores[k] - top);
    for (int32_t s = 0; s < sinks; s++)
        sum += exp(oracle_sink(test, s, backward->head) - top);
    return sum == 0 ? -INFINITY : top + log(sum);
}

/* Scores (in weights), bends, dp and its squares of one row of the group and the keys of a tile.
 * base: where the row's cells begin in the worker's arrays. */
static void score_tile(struct backward_worker *worker, int64_t row, int64_t base,
                       const struct tile *tile)
{
    const struct backward *backward = worker->backward;
    const int32_t dim = backward->test->forward.head_dim;
    const int32_t dim_v = oracle_value_dim(&backward->test->forward);
    const double *keys[TILE], *values[TILE];
    double products[TILE], grads[TILE], squares[TILE];

    find_lines(keys, tile, backward->keys, dim);
    find_lines(values, tile, backward->values, dim_v);
    oracle_dots(backward->q + row * dim, keys, tile->count, dim, products);
    oracle_dots_squares(backward->dout + row * dim_v, values, tile->count, dim_v, grads, squares);
    for (int32_t i = 0; i < tile->count; i++) {
        const int64_t at = base + tile->tokens[i];

        worker->weights[at] = score_of(backward, products[i], &worker->bends[at]);
        worker->grads[at] = grads[i];
        worker->squares[at] = squares[i];
    }
}

/* Scores of a row of the group to weights, exp(score - lse), and what they sum up to. */
static void soften(struct backward_worker *worker, int64_t row, int64_t base)
{
    const struct backward *backward = worker->backward;
    const uint8_t *attended = worker->attended + base;
    double *weights = worker->weights + base;
    struct row_sums *sums = &backward->sums[row];
    double delta = 0, squares = 0;

    if (!backward->test->use_out)
        sums->lse = lse_of(backward, attended, weights);
    for (int64_t k = 0; k < backward->test->forward.shape.seqlen_k; k++)
        if (attended[k]) {
            weights[k] = sums->lse == -INFINITY ? 0 : exp(weights[k] - sums->lse);
            delta += weights[k] * worker->grads[base + k];
            squares += weights[k] * weights[k] * worker->squares[base + k];
        }
    if (backward->test->use_out)
        return;
    sums->delta = delta;
    sums->squares = squares;
    add_dlse(backward, row);
}

/* Adds what the keys of a tile give to dq of one row of the group. squares: of the terms. */
static void gradient_tile(struct backward_worker *worker, int64_t row, int64_t base,
                          const struct tile *tile, double *squares)
{
    const struct backward *backward = worker->backward;
    const int32_t dim = backward->test->forward.head_dim;
    const struct row_sums *sums = &backward->sums[row];
    double *dq = backward->out->dq.at + backward->row_at[row] * dim;
    const double *keys[TILE];
    double ds[TILE];

    find_lines(keys, tile, backward->keys, dim);
    for (int32_t i = 0; i < tile->count; i++) {
        const int64_t k = tile->tokens[i], at = base + k;
        const double slope = backward->scale * worker->bends[at] * worker->weights[at];

        ds[i] = slope * (worker->grads[at] - sums->delta + sums->dlse);
        *squares +=
            slope * slope * (worker->squares[at] + sums->squares) * backward->key_squares[k];
        backward->out->dq.touched[backward->row_at[row]] = 1;
    }
    oracle_add_lines(dq, ds, keys, tile->count, dim);
}

/* dq of those rows of a group that are asked for. */
static void row_gradients(struct backward_worker *worker, const int64_t *rows, int32_t members)
{
    const struct backward *backward = worker->backward;
    const int64_t keys = backward->test->forward.shape.seqlen_k;
    double squares[ROWS] = { 0 };

    for (int64_t begin = 0; begin < keys; begin += TILE)
        for (int32_t g = 0; g < members; g++) {
            const struct tile tile = tile_of(worker->attended + g * keys, begin, keys);

            if (backward->row_at[rows[g]] >= 0)
                gradient_tile(worker, rows[g], g * keys, &tile, &squares[g]);
        }
    for (int32_t g = 0; g < members; g++)
        if (backward->row_at[rows[g]] >= 0)
            backward->out->dq.terms[backward->row_at[rows[g]]] = sqrt(squares[g]);
}

static void run_rows(struct backward_worker *worker, int64_t group)
{
    const struct backward *backward = worker->backward;
    const int64_t keys = backward->test->forward.shape.seqlen_k;
    const int64_t *rows = backward->rows + group * ROWS;
    const int32_t members = members_of(group, ROWS, backward->row_count);

    for (int32_t g = 0; g < members; g++)
        mark_keys(backward, rows[g], worker->attended + g * keys);
    for (int64_t begin = 0; begin < keys; begin += TILE)
        for (int32_t g = 0; g < members; g++) {
            const struct tile tile = tile_of(worker->attended + g * keys, begin, keys);

            score_tile(worker, rows[g], g * keys, &tile);
        }
    for (int32_t g = 0; g < members; g++)
        soften(worker, rows[g], g * keys);
    row_gradients(worker, rows, members);
}

/* ---- keys: dk, dv ---- */

/* Squares of the terms of one dk and one dv. */
struct key_squares {
    double k, v;
};

/* Adds what the rows of a tile give to dk and dv of sample `at`, which is a key of the group. */
static void key_tile(const struct backward *backward, int64_t at, const struct tile *tile,
                     struct key_squares *squares)
{
    const struct oracle_sample sample = oracle_sample_of_key(backward->test, at);
    const int32_t dim = backward->test->forward.head_dim;
    const int32_t dim_v = oracle_value_dim(&backward->test->forward);
    struct oracle_gradient *dk = &backward->out->dk, *dv = &backward->out->dv;
    const double *q[TILE], *dout[TILE];
    double p[TILE], ds[TILE], terms[TILE];

    find_lines(q, tile, backward->q, dim);
    find_lines(dout, tile, backward->dout, dim_v);
    oracle_dots(backward->keys + sample.row * dim, q, tile->count, dim, p);
    oracle_dots_squares(backward->values + sample.row * dim_v, dout, tile->count, dim_v, ds, terms);
    for (int32_t i = 0; i < tile->count; i++) {
        const int64_t r = tile->tokens[i];
        const struct row_sums *sums = &backward->sums[r];
        double bend, slope;

        p[i] = score_of(backward, p[i], &bend);
        p[i] = sums->lse == -INFINITY ? 0 : exp(p[i] - sums->lse);
        slope = backward->scale * bend * p[i];
        ds[i] = slope * (ds[i] - sums->delta + sums->dlse);
        squares->k += slope * slope * (terms[i] + sums->squares) * backward->q_squares[r];
        squares->v += p[i] * p[i] * backward->dout_squares[r];
        dk->touched[at] = dv->touched[at] = 1;
    }
    oracle_add_lines(dk->at + at * dim, ds, q, tile->count, dim);
    oracle_add_lines(dv->at + at * dim_v, p, dout, tile->count, dim_v);
}

/* Adds what the query head of the step gives to a group of the keys asked for. */
static void run_keys(struct backward_worker *worker, int64_t group)
{
    const struct backward *backward = worker->backward;
    const int64_t rows = backward->test->forward.shape.seqlen_q;
    const int64_t *keys_at = backward->keys_at + group * backward->key_group;
    const int32_t members = members_of(group, backward->key_group, backward->key_count);
    struct oracle_gradient *dk = &backward->out->dk, *dv = &backward->out->dv;
    struct key_squares squares[KEYS] = { 0 };

    for (int32_t g = 0; g < members; g++)
        mark_rows(backward, oracle_sample_of_key(backward->test, keys_at[g]).row,
                  worker->attended + g * rows);
    for (int64_t begin = 0; begin < rows; begin += TILE)
        for (int32_t g = 0; g < members; g++) {
            const struct tile tile = tile_of(worker->attended + g * rows, begin, rows);

            key_tile(backward, keys_at[g], &tile, &squares[g]);
        }
    for (int32_t g = 0; g < members; g++) {
        dk->terms[keys_at[g]] = hypot(dk->terms[keys_at[g]], sqrt(squares[g].k));
        dv->terms[keys_at[g]] = hypot(dv->terms[keys_at[g]], sqrt(squares[g].v));
    }
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

/* An item of the step is `together` of the `count` rows or keys. */
static void run_step(struct backward_worker *workers, int32_t threads,
                     void (*step)(struct backward_worker *, int64_t), int64_t count,
                     int32_t together)
{
    const int64_t items = (count + together - 1) / together;
    const int32_t needed = items < threads ? (int32_t)items : threads;

    atomic_store(&workers[0].backward->next, 0);
    for (int32_t i = 0; i < needed; i++) {
        workers[i].step = step;
        workers[i].count = items;
        workers[i].started = i > 0 && !pthread_create(&workers[i].thread, NULL, run, &workers[i]);
    }
    if (needed)
        run(&workers[0]);
    for (int32_t i = 1; i < needed; i++)
        if (workers[i].started)
            pthread_join(workers[i].thread, NULL);
}

/* Sets row_at of the head; returns whether any of its rows is asked for. */
static bool find_samples(struct backward *backward)
{
    bool found = false;

    for (int64_t r = 0; r < backward->test->forward.shape.seqlen_q; r++)
        backward->row_at[r] = -1;
    for (int64_t i = 0; i < backward->out->dq.count; i++) {
        const struct oracle_sample sample = oracle_sample_of_row(backward->test, i);

        if (sample.head == backward->head) {
            backward->row_at[sample.row] = i;
            found = true;
        }
    }
    return found;
}

/* Rows whose sums are given and whose dq is not asked for need no cells. */
static void list_rows(struct backward *backward)
{
    const bool all = backward->all_rows && !backward->test->use_out;

    backward->row_count = 0;
    for (int64_t r = 0; r < backward->test->forward.shape.seqlen_q; r++)
        if (all || backward->row_at[r] >= 0)
            backward->rows[backward->row_count++] = r;
}

static void run_head(struct backward *backward, struct backward_worker *workers, int32_t threads)
{
    const struct oracle_backward_case *test = backward->test;

    backward->all_rows = backward->key_count > 0 || test->dsink;
    if (!find_samples(backward) && !backward->all_rows)
        return;
    list_rows(backward);
    run_step(workers, threads, read_rows, test->forward.shape.seqlen_q, BLOCK);
    run_step(workers, threads, run_rows, backward->row_count, ROWS);
    if (test->dsink)
        sink_gradient(backward);
    run_step(workers, threads, run_keys, backward->key_count, backward->key_group);
}

/* Keys in a group: enough that a row is fetched for several, few enough for each thread to have
 * some. */
static int32_t key_group_of(int64_t count, int32_t threads)
{
    const int64_t share = (count + threads - 1) / threads;

    return share < KEYS_LEAST ? KEYS_LEAST : share < KEYS ? (int32_t)share : KEYS;
}

static void list_keys(struct backward *backward, int32_t threads)
{
    backward->key_count = 0;
    for (int64_t i = 0; i < backward->out->dk.count; i++)
        if (oracle_sample_of_key(backward->test, i).head == backward->kv_head)
            backward->keys_at[backward->key_count++] = i;
    backward->key_group = key_group_of(backward->key_count, threads);
}

static void run_all(struct backward *backward, struct backward_worker *workers, int32_t threads)
{
    const struct oracle_case *test = &backward->test->forward;
    const int32_t group = test->args->heads_q / test->args->heads_kv;

    for (int32_t kv = 0; kv < test->args->heads_kv; kv++) {
        backward->kv_head = kv;
        list_keys(backward, threads);
        run_step(workers, threads, read_keys, test->shape.seqlen_k, BLOCK);
        for (int32_t h = kv * group; h < (kv + 1) * group; h++) {
            backward->head = h;
            run_head(backward, workers, threads);
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
    backward->rows = malloc(rows * sizeof *backward->rows);
    backward->keys_at = malloc(((size_t)dk_count + 1) * sizeof *backward->keys_at);
    ok = ok && backward->keys && backward->values && backward->q && backward->dout &&
         backward->key_squares && backward->q_squares && backward->dout_squares && backward->sums &&
         backward->row_at && backward->rows && backward->keys_at;
    for (int32_t i = 0; i < threads; i++) {
        workers[i].backward = backward;
        workers[i].attended = malloc(ROWS * keys > KEYS * rows ? ROWS * keys : KEYS * rows);
        workers[i].weights = malloc(ROWS * keys * sizeof *workers[i].weights);
        workers[i].grads = malloc(ROWS * keys * sizeof *workers[i].grads);
        workers[i].bends = malloc(ROWS * keys * sizeof *workers[i].bends);
        workers[i].squares = malloc(ROWS * keys * sizeof *workers[i].squares);
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
    free(backward.rows);
    free(backward.keys_at);
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
