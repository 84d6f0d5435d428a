/* SPDX-License-Identifier: Apache-2.0
 *
 * The forward oracle, the comparison with it, and samples for large cases. Threads take groups of
 * samples of one head from a counter. Invariant: a result is computed by one thread, in ascending
 * order of keys, from the tensors and slices alone. Trick: samples of one head share the conversion
 * of keys and values to double, and go through them TILE at a time, from the nearest cache.
 */
#include "oracle/oracle.h"

#include "oracle/oracle_elements.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    GROUP = 8, /* samples of one head that share the conversion of keys and values */
    TILE = 8   /* keys or values that are converted together */
};

/* ---- samples by number ---- */

static int64_t count_of(const struct oracle_case *test)
{
    return test->samples ? test->sample_count : test->shape.seqlen_q * test->args->heads_q;
}

/* The order of work has the rows of a head together; `index` is the place in the result. */
struct item {
    int64_t row, index;
    int32_t head;
};

static struct item item_at(const struct oracle_case *test, int64_t i)
{
    struct item item;

    if (test->samples)
        return (struct item){ test->samples[i].row, i, test->samples[i].head };
    item.head = (int32_t)(i / test->shape.seqlen_q);
    item.row = i % test->shape.seqlen_q;
    item.index = item.row * test->args->heads_q + item.head;
    return item;
}

/* ---- attention ---- */

struct work {
    const struct oracle_case *test;
    struct oracle_result *result;
    int64_t count;
    atomic_llong next;
};

struct worker {
    struct work *work;
    uint8_t *attended; /* [GROUP][seqlen_k] */
    double *scores;    /* [GROUP][seqlen_k] */
    double *q;         /* [GROUP][head_dim] */
    double *lines;     /* [TILE][head_dim or head_dim_v, whichever is more]: keys or values */
    pthread_t thread;
    bool started;
};

static int32_t kv_head_of(const struct oracle_case *test, int32_t head)
{
    return head / (test->args->heads_q / test->args->heads_kv);
}

/* One boolean a cell: a cell that several slices cover is attended once. */
static void mark_cells(const struct oracle_case *test, const struct item *item, uint8_t *attended)
{
    const ffa_slice_list *list =
        &test->lists[test->list_count == 1 ? 0 : kv_head_of(test, item->head)];

    memset(attended, 0, (size_t)test->shape.seqlen_k);
    for (int64_t s = 0; s < list->count; s++) {
        const ffa_slice *slice = &list->slices[s];
        const int64_t i = item->row - slice->q_begin;
        const int64_t sq = slice->q_end - slice->q_begin;
        const int64_t lo = slice->k_begin + (slice->type & 2 ? i : 0);
        const int64_t hi = slice->k_end - (slice->type & 1 ? sq - 1 - i : 0);

        if (i < 0 || i >= sq)
            continue;
        for (int64_t k = lo; k < hi; k++)
            attended[k] = 1;
    }
}

static bool any_attends(const struct worker *worker, int32_t members, int64_t key)
{
    const int64_t keys = worker->work->test->shape.seqlen_k;

    for (int32_t g = 0; g < members; g++)
        if (worker->attended[g * keys + key])
            return true;
    return false;
}

/* Converts the lines of a tile that any member attends. */
static void read_tile(struct worker *worker, const ffa_tensor *tensor, int32_t dim, int32_t members,
                      int32_t kv_head, int64_t begin)
{
    const struct oracle_case *test = worker->work->test;

    for (int64_t k = begin; k < begin + TILE && k < test->shape.seqlen_k; k++)
        if (any_attends(worker, members, k))
            oracle_read_row(test, tensor, test->args->heads_kv, dim, k, kv_head,
                            worker->lines + (k - begin) * dim);
}

/* The lines of a tile that one member attends, and their keys. */
struct tile {
    const double *lines[TILE];
    int64_t keys[TILE];
    int32_t count;
};

static struct tile tile_of(const struct worker *worker, int32_t dim, int32_t member, int64_t begin)
{
    const int64_t keys = worker->work->test->shape.seqlen_k;
    struct tile tile = { .count = 0 };

    for (int64_t k = begin; k < begin + TILE && k < keys; k++)
        if (worker->attended[member * keys + k]) {
            tile.lines[tile.count] = worker->lines + (k - begin) * dim;
            tile.keys[tile.count++] = k;
        }
    return tile;
}

static void score_tile(struct worker *worker, int32_t member, int64_t begin)
{
    const struct oracle_case *test = worker->work->test;
    const int32_t dim = test->head_dim;
    const double scale = oracle_scale(test), cap = test->args->softcap;
    const struct tile tile = tile_of(worker, dim, member, begin);
    double products[TILE];

    oracle_dots(worker->q + (int64_t)member * dim, tile.lines, tile.count, dim, products);
    for (int32_t i = 0; i < tile.count; i++) {
        const double score = scale * products[i];

        worker->scores[member * test->shape.seqlen_k + tile.keys[i]] =
            cap > 0 ? cap * tanh(score / cap) : score;
    }
}

static void score_group(struct worker *worker, int32_t members, int32_t kv_head)
{
    const struct oracle_case *test = worker->work->test;

    for (int64_t begin = 0; begin < test->shape.seqlen_k; begin += TILE) {
        read_tile(worker, &test->args->k, test->head_dim, members, kv_head, begin);
        for (int32_t g = 0; g < members; g++)
            score_tile(worker, g, begin);
    }
}

static double largest(const uint8_t *attended, const double *scores, int64_t keys)
{
    double top = -INFINITY;

    for (int64_t k = 0; k < keys; k++)
        if (attended[k] && scores[k] > top)
            top = scores[k];
    return top;
}

/* Scores, the largest of them `top`, to weights; returns log(sum exp). Weights and the weights of
 * the head's sinks sum to 1. */
static double soften(const struct oracle_case *test, int32_t head, const uint8_t *attended,
                     double *scores, double top)
{
    const int64_t keys = test->shape.seqlen_k;
    double sum = 0, shift;

    for (int32_t s = 0; s < test->args->sink_count; s++)
        if (oracle_sink(test, s, head) > top)
            top = oracle_sink(test, s, head);
    shift = top == -INFINITY ? 0 : top;
    for (int32_t s = 0; s < test->args->sink_count; s++)
        sum += exp(oracle_sink(test, s, head) - shift);
    for (int64_t k = 0; k < keys; k++)
        if (attended[k]) {
            scores[k] = exp(scores[k] - shift);
            sum += scores[k];
        }
    for (int64_t k = 0; k < keys && sum != 0; k++)
        if (attended[k])
            scores[k] /= sum;
    return sum == 0 ? -INFINITY : shift + log(sum);
}

static void gather_tile(struct worker *worker, const struct item *item, int32_t member,
                        int64_t begin)
{
    const struct oracle_case *test = worker->work->test;
    const int32_t dim = oracle_value_dim(test);
    const struct tile tile = tile_of(worker, dim, member, begin);
    double weights[TILE];

    for (int32_t i = 0; i < tile.count; i++)
        weights[i] = worker->scores[member * test->shape.seqlen_k + tile.keys[i]];
    oracle_add_lines(worker->work->result->out + item->index * dim, weights, tile.lines, tile.count,
                     dim);
}

static void gather_group(struct worker *worker, const struct item *items, int32_t members,
                         int32_t kv_head)
{
    const struct oracle_case *test = worker->work->test;

    for (int64_t begin = 0; begin < test->shape.seqlen_k; begin += TILE) {
        read_tile(worker, &test->args->v, oracle_value_dim(test), members, kv_head, begin);
        for (int32_t g = 0; g < members; g++)
            gather_tile(worker, &items[g], g, begin);
    }
}

static void run_group(struct worker *worker, const struct item *items, int32_t members)
{
    const struct oracle_case *test = worker->work->test;
    const int64_t keys = test->shape.seqlen_k;
    const int32_t kv_head = kv_head_of(test, items[0].head);

    for (int32_t g = 0; g < members; g++) {
        mark_cells(test, &items[g], worker->attended + g * keys);
        oracle_read_row(test, &test->args->q, test->args->heads_q, test->head_dim, items[g].row,
                        items[g].head, worker->q + (int64_t)g * test->head_dim);
    }
    score_group(worker, members, kv_head);
    for (int32_t g = 0; g < members; g++) {
        const uint8_t *attended = worker->attended + g * keys;
        double *scores = worker->scores + g * keys;
        const double top = largest(attended, scores, keys);

        worker->work->result->top[items[g].index] = top;
        worker->work->result->lse[items[g].index] =
            soften(test, items[g].head, attended, scores, top);
    }
    gather_group(worker, items, members, kv_head);
}

static void *run(void *user)
{
    struct worker *worker = user;
    struct work *work = worker->work;
    long long at;

    while ((at = atomic_fetch_add(&work->next, GROUP)) < work->count) {
        struct item items[GROUP];
        int32_t members = 0;

        for (int64_t i = at; i < at + GROUP && i < work->count; i++) {
            const struct item item = item_at(work->test, i);

            if (members && item.head != items[0].head) {
                run_group(worker, items, members);
                members = 0;
            }
            items[members++] = item;
        }
        run_group(worker, items, members);
    }
    return NULL;
}

static bool prepare(struct worker *workers, int32_t count, struct work *work)
{
    const size_t keys = (size_t)work->test->shape.seqlen_k;
    const size_t dim = (size_t)work->test->head_dim;
    const size_t dim_v = (size_t)oracle_value_dim(work->test);

    for (int32_t i = 0; i < count; i++) {
        workers[i].work = work;
        workers[i].attended = malloc(GROUP * keys);
        workers[i].scores = malloc(GROUP * keys * sizeof *workers[i].scores);
        workers[i].q = malloc(GROUP * dim * sizeof *workers[i].q);
        workers[i].lines = malloc(TILE * (dim > dim_v ? dim : dim_v) * sizeof *workers[i].lines);
        if (!workers[i].attended || !workers[i].scores || !workers[i].q || !workers[i].lines)
            return false;
    }
    return true;
}

/* No more than there are groups. */
static int32_t threads_for(const struct oracle_case *test, int64_t count)
{
    const int64_t groups = count ? (count + GROUP - 1) / GROUP : 1;
    const int32_t threads = oracle_threads(test);

    return groups < threads ? (int32_t)groups : threads;
}

ffa_status oracle_forward(struct oracle_result *out, const struct oracle_case *test, ffa_error *err)
{
    struct worker workers[ORACLE_THREADS_MAX] = { 0 };
    struct oracle_result result = { .count = count_of(test) };
    struct work work = { .test = test, .result = &result, .count = result.count };
    const int32_t threads = threads_for(test, result.count);
    ffa_status rc = FFA_NOMEM;

    *out = (struct oracle_result){ 0 };
    result.out =
        calloc((size_t)result.count * (size_t)oracle_value_dim(test) + 1, sizeof *result.out);
    result.lse = calloc((size_t)result.count + 1, sizeof *result.lse);
    result.top = calloc((size_t)result.count + 1, sizeof *result.top);
    if (!result.out || !result.lse || !result.top || !prepare(workers, threads, &work)) {
        if (err) {
            err->status = FFA_NOMEM;
            snprintf(err->message, sizeof err->message, "no memory for the reference");
        }
        goto out;
    }
    for (int32_t i = 1; i < threads; i++)
        workers[i].started = !pthread_create(&workers[i].thread, NULL, run, &workers[i]);
    run(&workers[0]);
    for (int32_t i = 1; i < threads; i++)
        if (workers[i].started)
            pthread_join(workers[i].thread, NULL);
    *out = result;
    result = (struct oracle_result){ 0 };
    rc = FFA_OK;
out:
    for (int32_t i = 0; i < threads; i++) {
        free(workers[i].attended);
        free(workers[i].scores);
        free(workers[i].q);
        free(workers[i].lines);
    }
    oracle_result_finish(&result);
    return rc;
}

void oracle_result_finish(struct oracle_result *result)
{
    free(result->out);
    free(result->lse);
    free(result->top);
    *result = (struct oracle_result){ 0 };
}

/* ---- poison ---- */

void oracle_poison(const struct oracle_case *test)
{
    const ffa_forward_args *args = test->args;
    const int32_t dim = oracle_value_dim(test);

    if (args->max_logits)
        oracle_poison_line(oracle_lse_dtype(test), args->max_logits, 0, args->heads_q);
    for (int64_t row = 0; row < test->shape.seqlen_q; row++)
        for (int32_t head = 0; head < args->heads_q; head++) {
            oracle_poison_line(oracle_out_dtype(test), args->out.data,
                               oracle_offset(&args->out, args->heads_q, dim, row, head), dim);
            oracle_poison_line(oracle_lse_dtype(test), args->lse.data,
                               oracle_offset(&args->lse, args->heads_q, 1, row, head), 1);
        }
}

/* ---- comparison ---- */

struct oracle_tolerance oracle_tolerance_of(ffa_dtype dtype)
{
    switch (dtype) {
    case FFA_BF16:
        return (struct oracle_tolerance){ 5e-3, 2e-2, 1e-3 };
    case FFA_FP16:
        return (struct oracle_tolerance){ 7e-4, 2.8e-3, 1e-3 };
    case FFA_FP32:
        return (struct oracle_tolerance){ 1e-5, 4e-5, 1e-5 };
    case FFA_FP64:
        return (struct oracle_tolerance){ 1e-12, 4e-12, 1e-12 };
    }
    return (struct oracle_tolerance){ 0 };
}

struct sums {
    double error, size; /* squared L2 of what is compared so far */
    double row_floor;   /* rows shorter than this are measured against it */
};

/* A row much shorter than the others (values that cancel) keeps the error of its terms. */
static double row_floor_of(const struct oracle_result *want, int32_t dim)
{
    double sum = 0;
    int64_t rows = 0;

    for (int64_t i = 0; i < want->count; i++) {
        const double *row = want->out + i * dim;
        const double square = oracle_dot(row, row, dim);

        if (want->lse[i] != -INFINITY && isfinite(square)) {
            sum += square;
            rows++;
        }
    }
    return rows ? 0.05 * sqrt(sum / (double)rows) : 0;
}

static void blame(struct oracle_report *report, const struct item *item, const char *what,
                  double error, double limit)
{
    if (report->bad_row >= 0)
        return;
    report->bad_row = item->row;
    report->bad_head = item->head;
    snprintf(report->reason, sizeof report->reason, "row %lld, head %d: %s is %.3g, limit %.3g",
             (long long)item->row, item->head, what, error, limit);
}

/* Squared error and size of a row; elements that are not numbers are counted instead. */
static void compare_row(struct oracle_report *report, const struct oracle_case *test,
                        const struct item *item, const double *want, double *error, double *size)
{
    const ffa_tensor *out = &test->args->out;
    const ffa_dtype dtype = oracle_out_dtype(test);
    const int32_t dim = oracle_value_dim(test);
    const int64_t at = oracle_offset(out, test->args->heads_q, dim, item->row, item->head);

    *error = *size = 0;
    for (int32_t c = 0; c < dim; c++) {
        const double got = oracle_read(dtype, out->data, at + c);

        if (isnan(got) && oracle_is_poison(dtype, out->data, at + c)) {
            report->unwritten_count++;
            blame(report, item, "an element that was never written", NAN, 0);
        } else if (isfinite(want[c]) && !isfinite(got)) {
            report->nan_count++;
            blame(report, item, "an element that should be finite", got, 0);
        } else if (!isfinite(want[c])) {
            if (isnan(want[c]) ? !isnan(got) : got != want[c])
                blame(report, item, "an element that should not be finite", got, 0);
        } else {
            *error += (got - want[c]) * (got - want[c]);
            *size += want[c] * want[c];
        }
    }
}

static void compare_lse(struct oracle_report *report, const struct oracle_case *test,
                        const struct item *item, double want,
                        const struct oracle_tolerance *tolerance)
{
    const ffa_tensor *lse = &test->args->lse;
    const int64_t at = oracle_offset(lse, test->args->heads_q, 1, item->row, item->head);
    const double got = oracle_read(oracle_lse_dtype(test), lse->data, at);
    double error;

    if (oracle_is_poison(oracle_lse_dtype(test), lse->data, at)) {
        report->unwritten_count++;
        blame(report, item, "a log-sum-exp that was never written", NAN, 0);
        return;
    }
    if (!isfinite(want)) {
        if (isnan(want) ? !isnan(got) : got != want)
            blame(report, item, "a log-sum-exp that should not be finite", got, 0);
        return;
    }
    if (!isfinite(got)) {
        report->nan_count++;
        blame(report, item, "a log-sum-exp that should be finite", got, 0);
        return;
    }
    error = fabs(got - want) / fmax(1, fabs(want));
    report->lse = fmax(report->lse, error);
    if (error > tolerance->lse)
        blame(report, item, "the error of the log-sum-exp", error, tolerance->lse);
}

static void compare_item(struct oracle_report *report, const struct oracle_case *test,
                         const struct oracle_result *want, const struct item *item,
                         const struct oracle_tolerance *tolerance, struct sums *sums)
{
    double error, size, relative;

    compare_lse(report, test, item, want->lse[item->index], tolerance);
    compare_row(report, test, item, want->out + item->index * oracle_value_dim(test), &error,
                &size);
    sums->error += error;
    sums->size += size;
    if (want->lse[item->index] == -INFINITY) {
        if (error != 0)
            blame(report, item, "the length of a row without keys", sqrt(error), 0);
        return;
    }
    relative = error == 0 ? 0 : sqrt(error) / fmax(sqrt(size), sums->row_floor);
    report->row = fmax(report->row, relative);
    if (relative > tolerance->row)
        blame(report, item, "the relative error of out", relative, tolerance->row);
}

/* Largest logits of heads, as exact as lse. */
static void compare_tops(struct oracle_report *report, const struct oracle_case *test,
                         const struct oracle_result *want, const struct oracle_tolerance *tolerance)
{
    const int32_t heads = test->args->heads_q;

    for (int32_t head = 0; head < heads; head++) {
        const struct item item = { .row = 0, .head = head };
        const double got = oracle_read(oracle_lse_dtype(test), test->args->max_logits, head);
        double top = -INFINITY, error;

        for (int64_t i = head; i < want->count; i += heads)
            top = fmax(top, want->top[i]);
        error = isinf(top) ? (got == top ? 0 : INFINITY) : fabs(got - top) / fmax(1, fabs(top));
        report->top = fmax(report->top, error);
        if (oracle_is_poison(oracle_lse_dtype(test), test->args->max_logits, head)) {
            report->unwritten_count++;
            blame(report, &item, "max_logits, which was never written,", NAN, 0);
        } else if (!(error <= tolerance->lse)) {
            blame(report, &item, "the error of max_logits", error, tolerance->lse);
        }
    }
}

void oracle_compare(struct oracle_report *report, const struct oracle_case *test,
                    const struct oracle_result *want, const struct oracle_tolerance *tolerance)
{
    struct sums sums = { .row_floor = row_floor_of(want, oracle_value_dim(test)) };

    *report = (struct oracle_report){ .compared = want->count, .bad_row = -1, .bad_head = -1 };
    for (int64_t i = 0; i < want->count; i++) {
        const struct item item = item_at(test, i);

        compare_item(report, test, want, &item, tolerance, &sums);
    }
    if (test->args->max_logits && !test->samples)
        compare_tops(report, test, want, tolerance);
    report->out = sums.error == 0 ? 0 : sqrt(sums.error / sums.size);
    report->passed = report->bad_row < 0 && report->out <= tolerance->out;
    if (report->bad_row < 0 && !report->passed)
        snprintf(report->reason, sizeof report->reason,
                 "the relative error of out over all rows is %.3g, limit %.3g", report->out,
                 tolerance->out);
}

/* ---- samples ---- */

/* splitmix64 (Steele et al. 2014). */
static uint64_t draw(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

struct rows {
    int64_t *at;
    int64_t count, capacity;
};

/* A row and its neighbours; reservoir sampling once the list is full. */
static void add_rows(struct rows *rows, int64_t *seen, int64_t row, int64_t limit, uint64_t *state)
{
    for (int64_t r = row - 1; r <= row + 1; r++) {
        if (r < 0 || r >= limit)
            continue;
        ++*seen;
        if (rows->count < rows->capacity) {
            rows->at[rows->count++] = r;
        } else {
            const int64_t at = (int64_t)(draw(state) % (uint64_t)*seen);

            if (at < rows->capacity)
                rows->at[at] = r;
        }
    }
}

static int compare_samples(const void *a, const void *b)
{
    const struct oracle_sample *x = a, *y = b;

    if (x->head != y->head)
        return x->head < y->head ? -1 : 1;
    return (x->row > y->row) - (x->row < y->row);
}

/* Rows (keys: of that side) where something changes fill at most three quarters of rows->at. */
static void special_rows(const struct oracle_case *test, bool keys, int64_t tile, struct rows *rows,
                         uint64_t *state)
{
    const int64_t limit = keys ? test->shape.seqlen_k : test->shape.seqlen_q, all = rows->capacity;
    int64_t seen = 0;

    rows->capacity = all / 2;
    for (int32_t l = 0; l < test->list_count; l++)
        for (int64_t s = 0; s < test->lists[l].count; s++) {
            const ffa_slice *slice = &test->lists[l].slices[s];

            add_rows(rows, &seen, keys ? slice->k_begin : slice->q_begin, limit, state);
            add_rows(rows, &seen, keys ? slice->k_end : slice->q_end, limit, state);
        }
    rows->capacity = rows->count + all / 4;
    seen = 0;
    for (int64_t i = 0; i < all / 12; i++)
        add_rows(rows, &seen, (int64_t)(draw(state) % (uint64_t)(limit / tile + 1)) * tile, limit,
                 state);
    rows->capacity = all;
}

static int64_t sample(const struct oracle_case *test, bool keys, int64_t tile, uint64_t seed,
                      int64_t count, struct oracle_sample **samples)
{
    const int32_t head_count = keys ? test->args->heads_kv : test->args->heads_q;
    const int64_t limit = keys ? test->shape.seqlen_k : test->shape.seqlen_q;
    uint64_t state = seed;
    const int32_t heads[] = { 0, head_count - 1, (int32_t)(draw(&state) % (uint64_t)head_count),
                              (int32_t)(draw(&state) % (uint64_t)head_count) };
    struct rows rows = { .capacity = count };
    int64_t kept = 0;

    *samples = NULL;
    rows.at = malloc((size_t)count * sizeof *rows.at);
    *samples = malloc((size_t)count * sizeof **samples);
    if (!rows.at || !*samples)
        goto out;

    special_rows(test, keys, tile, &rows, &state);
    while (rows.count < count)
        rows.at[rows.count++] = (int64_t)(draw(&state) % (uint64_t)limit);
    rows.at[count - 1] = 0;
    rows.at[count / 2] = limit - 1;
    for (int64_t i = 0; i < count; i++)
        (*samples)[i] = (struct oracle_sample){ rows.at[i], heads[i % 4], 0 };

    qsort(*samples, (size_t)count, sizeof **samples, compare_samples);
    for (int64_t i = 0; i < count; i++)
        if (!i || compare_samples(&(*samples)[i], &(*samples)[kept - 1]))
            (*samples)[kept++] = (*samples)[i];
out:
    free(rows.at);
    if (!kept) {
        free(*samples);
        *samples = NULL;
    }
    return kept;
}

int64_t oracle_samples(const struct oracle_case *test, int64_t tile_m, uint64_t seed, int64_t count,
                       struct oracle_sample **samples)
{
    return sample(test, false, tile_m, seed, count, samples);
}

int64_t oracle_key_samples(const struct oracle_case *test, int64_t tile_n, uint64_t seed,
                           int64_t count, struct oracle_sample **samples)
{
    return sample(test, true, tile_n, seed, count, samples);
}
