/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients compared with the backward oracle's: tensor by tensor, of a tensor line by line, head
 * by head, and whole. Invariant: an element that was never written, or that is no number where the
 * reference is one, fails whatever the tolerance. Trick: errors are relative to the terms that a
 * gradient was summed of, so that values which cancel ask for no more digits than there are.
 */
#include "oracle/oracle_backward.h"

#include "oracle/oracle_elements.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- samples by number ---- */

struct oracle_sample oracle_sample_of_key(const struct oracle_backward_case *test, int64_t i)
{
    const int32_t heads = test->forward.args->heads_kv;

    if (test->key_samples)
        return test->key_samples[i];
    return (struct oracle_sample){ i / heads, (int32_t)(i % heads), 0 };
}

struct oracle_sample oracle_sample_of_row(const struct oracle_backward_case *test, int64_t i)
{
    const int32_t heads = test->forward.args->heads_q;

    if (test->forward.samples)
        return test->forward.samples[i];
    return (struct oracle_sample){ i / heads, (int32_t)(i % heads), 0 };
}

/* The sink stands where the token does. */
static struct oracle_sample sink_sample(const struct oracle_backward_case *test, int64_t i)
{
    const int32_t heads = test->forward.args->heads_q;

    return (struct oracle_sample){ i / heads, (int32_t)(i % heads), 0 };
}

/* ---- comparison ---- */

static struct oracle_backward_tolerance fp16_tolerance(int64_t keys)
{
    const double subnormal = (double)keys * 0x1p-24 / sqrt(12.0);

    return (struct oracle_backward_tolerance){ 1.2e-3 + subnormal, 2.4e-3 + 2 * subnormal,
                                               4.8e-3 + 4 * subnormal };
}

struct oracle_backward_tolerance oracle_backward_tolerance_of(ffa_dtype dtype, int64_t keys)
{
    switch (dtype) {
    case FFA_BF16:
        return (struct oracle_backward_tolerance){ 8e-3, 1.6e-2, 3.2e-2 };
    case FFA_FP16:
        return fp16_tolerance(keys);
    case FFA_FP32:
        return (struct oracle_backward_tolerance){ 2e-5, 4e-5, 8e-5 };
    case FFA_FP64:
        return (struct oracle_backward_tolerance){ 1e-11, 2e-11, 4e-11 };
    }
    return (struct oracle_backward_tolerance){ 0 };
}

/* One tensor while it is compared. */
struct compared {
    const struct oracle_backward_case *test;
    const struct oracle_backward_tolerance *tolerance;
    struct oracle_backward_report *report;
    const char *name;
    const ffa_tensor *tensor;
    const struct oracle_gradient *want;
    int32_t heads, dim;
    ffa_dtype dtype;
    struct oracle_sample (*sample)(const struct oracle_backward_case *test, int64_t i);
    double *errors, *sizes, *terms; /* [heads]: squared L2 */
    double line_floor;
    double worst_line;
};

static void blame(struct compared *c, int64_t token, int32_t head, const char *what, double error,
                  double limit)
{
    struct oracle_backward_report *report = c->report;

    if (report->bad_tensor)
        return;
    report->bad_tensor = c->name;
    report->bad_token = token;
    report->bad_head = head;
    if (token >= 0)
        snprintf(report->reason, sizeof report->reason,
                 "%s of token %lld, head %d: %s is %.3g, limit %.3g", c->name, (long long)token,
                 head, what, error, limit);
    else if (head >= 0)
        snprintf(report->reason, sizeof report->reason, "%s of head %d: %s is %.3g, limit %.3g",
                 c->name, head, what, error, limit);
    else
        snprintf(report->reason, sizeof report->reason, "%s: %s is %.3g, limit %.3g", c->name, what,
                 error, limit);
}

static void compare_line(struct compared *c, int64_t i)
{
    const int32_t dim = c->dim;
    const ffa_dtype dtype = c->dtype;
    const struct oracle_sample sample = c->sample(c->test, i);
    const int64_t at = oracle_offset(c->tensor, c->heads, dim, sample.row, sample.head);
    const double *want = c->want->at + i * dim;
    double error = 0, size = 0, relative, floor;

    for (int32_t e = 0; e < dim; e++) {
        const double got = oracle_read(dtype, c->tensor->data, at + e);

        if (isnan(got) && oracle_is_poison(dtype, c->tensor->data, at + e)) {
            c->report->unwritten_count++;
            blame(c, sample.row, sample.head, "an element that was never written", NAN, 0);
        } else if (isfinite(want[e]) && !isfinite(got)) {
            c->report->nan_count++;
            blame(c, sample.row, sample.head, "an element that should be finite", got, 0);
        } else if (!isfinite(want[e])) {
            if (isfinite(got))
                blame(c, sample.row, sample.head, "an element that should not be finite", got, 0);
        } else {
            error += (got - want[e]) * (got - want[e]);
            size += want[e] * want[e];
        }
    }
    if (!c->want->touched[i] && error != 0)
        blame(c, sample.row, sample.head, "the length of a gradient of nothing", sqrt(error), 0);
    if (isfinite(c->want->terms[i])) {
        c->errors[sample.head] += error;
        c->sizes[sample.head] += size;
        c->terms[sample.head] += c->want->terms[i] * c->want->terms[i];
    }
    if (error == 0 || !isfinite(c->want->terms[i]))
        return;
    floor = fmax(c->line_floor, 0.25 * c->want->terms[i]);
    relative = sqrt(error) / fmax(sqrt(size), floor);
    c->worst_line = fmax(c->worst_line, relative);
    if (!(relative <= c->tolerance->line))
        blame(c, sample.row, sample.head, "the relative error", relative, c->tolerance->line);
}

/* A quarter of the root mean square of lines that are numbers. */
static double line_floor_of(const struct oracle_gradient *want, int32_t dim)
{
    double sum = 0;
    int64_t lines = 0;

    for (int64_t i = 0; i < want->count; i++) {
        const double square = oracle_dot(want->at + i * dim, want->at + i * dim, dim);

        if (want->touched[i] && isfinite(square)) {
            sum += square;
            lines++;
        }
    }
    return lines ? 0.25 * sqrt(sum / (double)lines) : 0;
}

static double relative_of(double error, double size, double terms)
{
    return error == 0 ? 0 : sqrt(error) / fmax(sqrt(size), 0.25 * sqrt(terms));
}

/* Compare one tensor; returns the relative error of the whole. */
static double compare_tensor(struct compared *c)
{
    double error = 0, size = 0, terms = 0, whole;

    c->line_floor = line_floor_of(c->want, c->dim);
    for (int32_t h = 0; h < c->heads; h++)
        c->errors[h] = c->sizes[h] = c->terms[h] = 0;
    for (int64_t i = 0; i < c->want->count; i++)
        compare_line(c, i);
    c->report->compared += c->want->count;
    for (int32_t h = 0; h < c->heads; h++) {
        const double of_head = relative_of(c->errors[h], c->sizes[h], c->terms[h]);

        c->report->head = fmax(c->report->head, of_head);
        if (!(of_head <= c->tolerance->head))
            blame(c, -1, h, "the relative error", of_head, c->tolerance->head);
        error += c->errors[h];
        size += c->sizes[h];
        terms += c->terms[h];
    }
    whole = relative_of(error, size, terms);
    if (!(whole <= c->tolerance->whole))
        blame(c, -1, -1, "the relative error of all", whole, c->tolerance->whole);
    return whole;
}

void oracle_backward_compare(struct oracle_backward_report *report,
                             const struct oracle_backward_case *test,
                             const struct oracle_gradients *want,
                             const struct oracle_backward_tolerance *tolerance)
{
    const ffa_forward_args *args = test->forward.args;
    double *sums = calloc(3 * (size_t)args->heads_q, sizeof *sums);
    struct compared c = { .test = test,
                          .tolerance = tolerance,
                          .report = report,
                          .dim = test->forward.head_dim,
                          .dtype = test->grad_dtype,
                          .errors = sums,
                          .sizes = sums ? sums + args->heads_q : NULL,
                          .terms = sums ? sums + 2 * args->heads_q : NULL };

    *report = (struct oracle_backward_report){ .bad_token = -1, .bad_head = -1 };
    if (!sums) {
        snprintf(report->reason, sizeof report->reason, "no memory to compare with");
        return;
    }
    c.name = "dq";
    c.tensor = &test->dq;
    c.want = &want->dq;
    c.heads = args->heads_q;
    c.sample = oracle_sample_of_row;
    report->dq = compare_tensor(&c);
    report->row = c.worst_line;

    c.name = "dk";
    c.tensor = &test->dk;
    c.want = &want->dk;
    c.heads = args->heads_kv;
    c.sample = oracle_sample_of_key;
    c.worst_line = 0;
    report->dk = compare_tensor(&c);
    c.name = "dv";
    c.tensor = &test->dv;
    c.want = &want->dv;
    c.dim = oracle_value_dim(&test->forward);
    report->dv = compare_tensor(&c);
    report->key = c.worst_line;

    if (test->dsink) {
        /* A number a head, and of products with an out that is rounded: each term is off by
         * sqrt(head_dim) times what it would be were it an element of out. */
        const struct oracle_backward_tolerance sink_tolerance = { .whole = tolerance->head,
                                                                  .head = tolerance->line,
                                                                  .line = tolerance->line };
        const ffa_tensor dsink = FFA_TENSOR_INIT(test->dsink);

        c.name = "dsink";
        c.tensor = &dsink;
        c.want = &want->dsink;
        c.heads = args->heads_q;
        c.dim = 1;
        c.dtype = oracle_lse_dtype(&test->forward);
        c.sample = sink_sample;
        c.tolerance = &sink_tolerance;
        report->dsink = compare_tensor(&c);
    }
    report->passed = !report->bad_tensor;
    free(sums);
}

static void poison(const struct oracle_backward_case *test, const ffa_tensor *tensor,
                   int64_t tokens, int32_t heads, int32_t dim)
{
    for (int64_t t = 0; t < tokens; t++)
        for (int32_t h = 0; h < heads; h++)
            oracle_poison_line(test->grad_dtype, tensor->data,
                               oracle_offset(tensor, heads, dim, t, h), dim);
}

void oracle_backward_poison(const struct oracle_backward_case *test)
{
    const ffa_forward_args *args = test->forward.args;

    poison(test, &test->dq, test->forward.shape.seqlen_q, args->heads_q, test->forward.head_dim);
    poison(test, &test->dk, test->forward.shape.seqlen_k, args->heads_kv, test->forward.head_dim);
    poison(test, &test->dv, test->forward.shape.seqlen_k, args->heads_kv,
           oracle_value_dim(&test->forward));
    if (test->dsink)
        oracle_poison_line(oracle_lse_dtype(&test->forward), test->dsink, 0,
                           args->sink_count * args->heads_q);
}
