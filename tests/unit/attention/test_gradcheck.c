/* SPDX-License-Identifier: Apache-2.0
 *
 * The CPU backend in fp64 as a reference for gradients: ffa_backward against central differences of
 * ffa_forward, and both against the fp64 oracle to 1e-13.
 *
 * The loss is the sum of out * dout and lse * dlse. Scale, softcap, sinks and lse are numbers that
 * no float holds, so that one rounding through fp32 (6e-8) fails every row. Trick: losses are
 * subtracted element by element before they are summed, so that a difference keeps its digits.
 */
#include "oracle/oracle_backward.h"
#include "support/attention_case.h"
#include "support/suite.h"

#include <ffa/ffa.h>

#include <check.h>
#include <math.h>
#include <stdlib.h>

enum { DIM = 8, SINKS_MAX = 2, HEADS_MAX = 6, LISTS_MAX = 2 };
enum { SINKS_AND_DLSE = 7 }; /* the row of these, whose first query rows attend nothing */

static const struct {
    const char *name, *mask;
    int32_t heads_q, heads_kv, head_dim_v;
    double scale, softcap; /* scale 0: the default, 1 / sqrt(8) */
    int32_t sinks;
    bool has_dlse;
    enum attention_layout layout;
} rows[] = {
    { "plain", "full:5x6", 1, 1, 8, 0, 0, 0, false, LAYOUT_TOKENS },
    { "a scale", "causal:5x7", 2, 2, 8, 0.3, 0, 0, false, LAYOUT_HEADS },
    { "rows of nothing", "causal:9x5", 2, 1, 16, 0.7, 0, 0, true, LAYOUT_PADDED },
    { "a window", "window:8x8,left=2,right=1", 2, 1, 8, 0, 0, 0, true, LAYOUT_TOKENS },
    { "documents, grouped heads", "varlen-causal:4,1,3", 6, 2, 16, 0, 0, 0, true, LAYOUT_HEADS },
    { "a cap", "causal:6", 2, 1, 8, 0.9, 1.3, 0, false, LAYOUT_TOKENS },
    { "sinks", "causal:8x5", 4, 2, 8, 0, 0, 2, false, LAYOUT_PADDED },
    { "sinks and a loss of lse", "causal:8x5", 4, 2, 8, 0, 0, 2, true, LAYOUT_TOKENS },
    { "all", "window:9x6,left=2,right=1", 4, 2, 16, 0.6, 1.7, 2, true, LAYOUT_PADDED },
};

/* ---- a problem, with both passes run ---- */

struct problem {
    ffa_context *context;
    ffa_kernels *kernels;
    ffa_plan *plan;
    ffa_mask *mask;
    ffa_slice_list lists[LISTS_MAX];
    struct attention_case test;
    struct attention_gradients gradients;
    double sink[SINKS_MAX * HEADS_MAX], dsink[SINKS_MAX * HEADS_MAX], tops[HEADS_MAX];
    struct oracle_backward_case reference;
};

static void must(ffa_status rc, const ffa_error *err)
{
    ck_assert_msg(rc == FFA_OK, "%s", err->message);
}

static void kernels_init(struct problem *p, int row)
{
    ffa_context_opts opts = FFA_CONTEXT_OPTS_INIT;
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;
    ffa_error err = { FFA_OK, 0, "" };

    opts.cpu_threads = 1;
    spec.dtype = FFA_FP64;
    spec.head_dim = DIM;
    spec.head_dim_v = rows[row].head_dim_v;
    spec.flags = FFA_SPEC_BACKWARD | FFA_SPEC_MAX_LOGITS;
    spec.flags |= rows[row].softcap > 0 ? (uint32_t)FFA_SPEC_SOFTCAP : 0;
    must(ffa_open(&p->context, FFA_DEVICE_CPU, &opts, &err), &err);
    must(ffa_mask_parse(&p->mask, rows[row].mask, &err), &err);
    must(ffa_kernels_create(&p->kernels, p->context, &spec, &err), &err);
    must(ffa_plan_create(&p->plan, p->kernels, p->mask, &err), &err);
}

static void problem_init(struct problem *p, int row)
{
    struct attention_shape shape = { { 0, 0 },           FFA_FP64, rows[row].heads_q,
                                     rows[row].heads_kv, DIM,      rows[row].layout };
    struct rng rng = { (uint64_t)row + 70 };

    *p = (struct problem){ 0 };
    kernels_init(p, row);
    p->lists[0] = ffa_mask_slices(p->mask, 0);
    shape.mask = (ffa_mask_shape){ ffa_mask_seqlen_q(p->mask), ffa_mask_seqlen_k(p->mask) };
    attention_case_init_v(&p->test, &shape, rows[row].head_dim_v, &rng);
    attention_gradients_init(&p->gradients, &p->test, FFA_FP64, &rng);
    for (int i = 0; i < SINKS_MAX * HEADS_MAX; i++)
        p->sink[i] = rng_bell(&rng);
    p->test.args.softmax_scale = rows[row].scale;
    p->test.args.softcap = rows[row].softcap;
    p->test.args.sink = rows[row].sinks ? p->sink : NULL;
    p->test.args.sink_count = rows[row].sinks;
    p->test.args.max_logits = p->tops;
    p->reference = (struct oracle_backward_case){
        .forward = { .shape = shape.mask,
                     .lists = p->lists,
                     .list_count = 1,
                     .head_dim = DIM,
                     .head_dim_v = rows[row].head_dim_v,
                     .dtype = FFA_FP64,
                     .threads = 1,
                     .args = &p->test.args },
        .grad_dtype = FFA_FP64,
        .dout = p->gradients.dout,
        .dlse = rows[row].has_dlse ? p->gradients.dlse : (ffa_tensor)FFA_TENSOR_INIT(NULL),
        .dq = p->gradients.dq,
        .dk = p->gradients.dk,
        .dv = p->gradients.dv,
        .dsink = rows[row].sinks ? p->dsink : NULL,
    };
}

static void problem_finish(struct problem *p)
{
    attention_gradients_finish(&p->gradients);
    attention_case_finish(&p->test);
    ffa_plan_destroy(p->plan);
    ffa_kernels_destroy(p->kernels);
    ffa_mask_destroy(p->mask);
    ffa_close(p->context);
}

static void run_forward(struct problem *p)
{
    ffa_error err = { FFA_OK, 0, "" };

    must(ffa_forward(p->kernels, p->plan, &p->test.args, NULL, &err), &err);
}

static void run_backward(struct problem *p)
{
    ffa_backward_args args = attention_backward_args_of(&p->test, &p->gradients);
    ffa_error err = { FFA_OK, 0, "" };

    args.dlse = p->reference.dlse;
    args.dsink = p->reference.dsink;
    must(ffa_backward(p->kernels, p->plan, &args, NULL, &err), &err);
}

/* A row of nothing has no lse to differentiate: what dlse says of it has no effect. */
static void spoil_empty_rows(struct problem *p)
{
    for (int64_t t = 0; t < p->test.shape.mask.seqlen_q; t++)
        for (int32_t h = 0; h < p->test.shape.heads_q; h++)
            if (attention_read(&p->test.args.lse, FFA_FP64, t, h, 0) == -(double)INFINITY)
                attention_write(&p->gradients.dlse, FFA_FP64, t, h, 0, (double)NAN);
}

/* ---- against the oracle ---- */

START_TEST(both_passes_as_the_oracle)
{
    const struct oracle_tolerance out_limit = { 1e-13, 4e-13, 1e-13 };
    const struct oracle_backward_tolerance limit = { 1e-13, 2e-13, 4e-13 };
    struct oracle_backward_report gradients;
    struct oracle_gradients want_gradients;
    struct oracle_report report;
    struct oracle_result want;
    struct problem p;

    problem_init(&p, _i);
    oracle_poison(&p.reference.forward);
    oracle_backward_poison(&p.reference);
    run_forward(&p);
    spoil_empty_rows(&p);
    run_backward(&p);
    ck_assert_int_eq(oracle_forward(&want, &p.reference.forward, NULL), FFA_OK);
    oracle_compare(&report, &p.reference.forward, &want, &out_limit);
    ck_assert_msg(report.passed, "%s: %s", rows[_i].name, report.reason);
    ck_assert_int_eq(oracle_backward(&want_gradients, &p.reference, NULL), FFA_OK);
    oracle_backward_compare(&gradients, &p.reference, &want_gradients, &limit);
    ck_assert_msg(gradients.passed, "%s: %s", rows[_i].name, gradients.reason);
    oracle_gradients_finish(&want_gradients);
    oracle_result_finish(&want);
    problem_finish(&p);
}
END_TEST

/* Sinks of no weight leave rows of nothing as they are. Their dlse is NaN here, and dsink, a sum
 * over all rows, must not see it. */
START_TEST(rows_of_nothing_ignore_dlse)
{
    struct problem p;

    problem_init(&p, _i);
    for (int i = 0; i < SINKS_MAX * HEADS_MAX; i++) {
        p.sink[i] = -(double)INFINITY;
        p.dsink[i] = 5;
    }
    run_forward(&p);
    ck_assert(attention_read(&p.test.args.lse, FFA_FP64, 0, 0, 0) == -(double)INFINITY);
    spoil_empty_rows(&p);
    run_backward(&p);
    for (int32_t i = 0; i < rows[_i].sinks * rows[_i].heads_q; i++)
        ck_assert_msg(p.dsink[i] == 0, "dsink %d is %g", i, p.dsink[i]);
    problem_finish(&p);
}
END_TEST

/* ---- against differences ---- */

/* Each element's part of the loss: dout * out, and dlse * lse. Returns how many. */
static int64_t losses(struct problem *p, double *to)
{
    const struct attention_shape *shape = &p->test.shape;
    int64_t count = 0;

    run_forward(p);
    for (int64_t t = 0; t < shape->mask.seqlen_q; t++)
        for (int32_t h = 0; h < shape->heads_q; h++) {
            const double lse = attention_read(&p->test.args.lse, FFA_FP64, t, h, 0);

            for (int32_t c = 0; c < p->test.head_dim_v; c++)
                to[count++] = attention_read(&p->gradients.dout, FFA_FP64, t, h, c) *
                              attention_read(&p->test.args.out, FFA_FP64, t, h, c);
            to[count++] = !p->reference.dlse.data || lse == -(double)INFINITY
                              ? 0
                              : attention_read(&p->gradients.dlse, FFA_FP64, t, h, 0) * lse;
        }
    return count;
}

/* What the loss grows by from *x - h to *x + h. */
static double growth(struct problem *p, double *x, double h)
{
    enum { ELEMENTS_MAX = 9 * HEADS_MAX * 17 };
    const double before = *x;
    double up[ELEMENTS_MAX], down[ELEMENTS_MAX], sum = 0;
    int64_t count;

    *x = before + h;
    count = losses(p, up);
    ck_assert_int_le(count, ELEMENTS_MAX);
    *x = before - h;
    (void)losses(p, down);
    *x = before;
    for (int64_t i = 0; i < count; i++)
        sum += up[i] - down[i];
    return sum;
}

/* The central difference of fourth order: h^4 and 1e-15 / h are both about 1e-12. That of second
 * order is off by 2e-9 at its best step, 1e-6. */
static double difference(struct problem *p, double *x)
{
    const double h = 0x1p-10;

    return (8 * growth(p, x, h) - growth(p, x, 2 * h)) / (12 * h);
}

static void check(struct problem *p, double *x, double got, const char *name, const char *tensor)
{
    const double want = difference(p, x);

    ck_assert_msg(fabs(got - want) <= 1e-10 * fmax(1, fabs(want)),
                  "%s: %s is %.15g, the difference %.15g", name, tensor, got, want);
}

static void check_tensor(struct problem *p, const ffa_tensor *tensor, const ffa_tensor *gradient,
                         int64_t tokens, int32_t heads, int32_t dim, const char *name,
                         const char *what)
{
    for (int64_t t = 0; t < tokens; t++)
        for (int32_t h = 0; h < heads; h++)
            for (int32_t c = 0; c < dim; c++)
                check(p,
                      (double *)tensor->data + t * tensor->token_stride + h * tensor->head_stride +
                          c,
                      attention_read(gradient, FFA_FP64, t, h, c), name, what);
}

START_TEST(gradients_as_differences)
{
    const char *name = rows[_i].name;
    const int32_t hq = rows[_i].heads_q, hk = rows[_i].heads_kv;
    ffa_mask_shape shape;
    struct problem p;

    problem_init(&p, _i);
    shape = p.test.shape.mask;
    run_forward(&p);
    run_backward(&p);
    check_tensor(&p, &p.test.args.q, &p.gradients.dq, shape.seqlen_q, hq, DIM, name, "dq");
    check_tensor(&p, &p.test.args.k, &p.gradients.dk, shape.seqlen_k, hk, DIM, name, "dk");
    check_tensor(&p, &p.test.args.v, &p.gradients.dv, shape.seqlen_k, hk, rows[_i].head_dim_v, name,
                 "dv");
    for (int32_t i = 0; i < rows[_i].sinks * hq; i++)
        check(&p, &p.sink[i], p.dsink[i], name, "dsink");
    problem_finish(&p);
}
END_TEST

/* Without a loss of out, dk is the gradient of dlse alone: delta must not be taken twice, or not at
 * all. By hand: one query, two equal keys, so that p = 1/2, and ds = dlse / 2. */
START_TEST(a_loss_of_lse_by_hand)
{
    double q[8] = { 3 }, k[16] = { 0 }, v[16] = { 0 }, out[8], lse, dout[8] = { 0 }, dlse = 0.7;
    double dq[8], dk[16], dv[16];
    const ffa_mask_shape size = { 1, 2 };
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;
    ffa_forward_args forward = FFA_FORWARD_ARGS_INIT;
    ffa_backward_args args = FFA_BACKWARD_ARGS_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_context *context;
    ffa_kernels *kernels;
    ffa_plan *plan;
    ffa_mask *mask;

    spec.dtype = FFA_FP64;
    spec.head_dim = 8;
    spec.flags = FFA_SPEC_BACKWARD;
    must(ffa_open(&context, FFA_DEVICE_CPU, NULL, &err), &err);
    must(ffa_mask_full(&mask, &size, &err), &err);
    must(ffa_kernels_create(&kernels, context, &spec, &err), &err);
    must(ffa_plan_create(&plan, kernels, mask, &err), &err);
    forward.heads_q = forward.heads_kv = args.heads_q = args.heads_kv = 1;
    forward.softmax_scale = args.softmax_scale = 0.1;
    forward.q.data = args.q.data = q;
    forward.k.data = args.k.data = k;
    forward.v.data = args.v.data = v;
    forward.out.data = args.out.data = out;
    forward.lse.data = args.lse.data = &lse;
    args.dout.data = dout;
    args.dlse.data = &dlse;
    args.dq.data = dq;
    args.dk.data = dk;
    args.dv.data = dv;
    must(ffa_forward(kernels, plan, &forward, NULL, &err), &err);
    must(ffa_backward(kernels, plan, &args, NULL, &err), &err);
    ck_assert_double_eq_tol(lse, log(2), 1e-15);
    ck_assert_double_eq_tol(dk[0], 0.1 * 0.35 * 3, 1e-15);
    ck_assert_double_eq_tol(dk[8], 0.1 * 0.35 * 3, 1e-15);
    ck_assert(dq[0] == 0 && dv[0] == 0);
    ffa_plan_destroy(plan);
    ffa_kernels_destroy(kernels);
    ffa_mask_destroy(mask);
    ffa_close(context);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gradcheck");
    TCase *tc = tcase_create("gradcheck");

    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, both_passes_as_the_oracle, 0, sizeof rows / sizeof *rows);
    tcase_add_loop_test(tc, rows_of_nothing_ignore_dlse, SINKS_AND_DLSE, SINKS_AND_DLSE + 1);
    tcase_add_loop_test(tc, gradients_as_differences, 0, sizeof rows / sizeof *rows);
    tcase_add_test(tc, a_loss_of_lse_by_hand);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
