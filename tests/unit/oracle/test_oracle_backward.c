/* SPDX-License-Identifier: Apache-2.0
 *
 * The backward oracle: against finite differences of the forward oracle, by hand, sample by sample;
 * and what its comparison finds.
 */
#include "oracle/oracle_backward.h"
#include "support/attention_case.h"
#include "support/suite.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- finite differences ---- */

static const struct {
    const char *name;
    ffa_mask_shape shape;
    ffa_slice slices[3];
    int32_t heads_q, heads_kv;
    double scale, softcap; /* scale 0: the default */
    int32_t sinks;
    bool has_dlse;
} differences[] = {
    { "full", { 5, 6 }, { { 0, 5, 0, 6, 0, 0 } }, 1, 1, 0, 0, 0, false },
    { "causal", { 5, 7 }, { { 0, 5, 0, 7, 1, 0 } }, 1, 1, 0, 0, 0, false },
    { "causal, the first rows empty", { 7, 4 }, { { 0, 7, 0, 4, 1, 0 } }, 1, 1, 0, 0, 0, false },
    { "inverse causal", { 5, 6 }, { { 0, 5, 0, 6, 2, 0 } }, 1, 1, 0, 0, 0, false },
    { "bicausal", { 5, 8 }, { { 0, 5, 0, 8, 3, 0 } }, 1, 1, 0, 0, 0, false },
    { "the diagonal", { 5, 5 }, { { 0, 5, 0, 5, 3, 0 } }, 1, 1, 0, 0, 0, false },
    { "a union that covers cells twice",
      { 6, 6 },
      { { 0, 6, 0, 4, 0, 0 }, { 2, 6, 1, 6, 1, 0 }, { 0, 3, 0, 3, 1, 0 } },
      1,
      1,
      0,
      0,
      0,
      false },
    { "grouped heads", { 4, 5 }, { { 0, 4, 0, 5, 1, 0 } }, 6, 2, 0, 0, 0, false },
    { "a scale", { 4, 5 }, { { 0, 4, 0, 5, 0, 0 } }, 2, 1, 1.7, 0, 0, false },
    { "a cap", { 4, 5 }, { { 0, 4, 0, 5, 1, 0 } }, 2, 1, 0.9, 1.5, 0, false },
    { "sinks", { 5, 4 }, { { 1, 5, 0, 4, 1, 0 } }, 4, 2, 0, 0, 2, false },
    { "a cap and a sink", { 4, 4 }, { { 0, 4, 0, 4, 2, 0 } }, 2, 2, 0.6, 2.5, 1, false },
    { "a loss of lse", { 5, 7 }, { { 0, 5, 0, 7, 1, 0 } }, 4, 2, 0, 0, 0, true },
    { "of lse, the first rows empty", { 7, 4 }, { { 0, 7, 0, 4, 1, 0 } }, 2, 1, 0, 0, 0, true },
    { "of lse, rows of sinks only", { 7, 4 }, { { 0, 7, 0, 4, 1, 0 } }, 2, 2, 0, 1.5, 2, true },
};

enum { DIM = 3, DIM_V = 5, SINKS_MAX = 2, HEADS_MAX = 6 };

struct problem {
    struct attention_case test;
    struct attention_gradients gradients;
    ffa_slice_list list;
    double sink[SINKS_MAX * HEADS_MAX], dsink[SINKS_MAX * HEADS_MAX];
    struct oracle_backward_case backward;
};

static void problem_init(struct problem *p, int row)
{
    const struct attention_shape shape = {
        differences[row].shape,    FFA_FP64, differences[row].heads_q,
        differences[row].heads_kv, DIM,      row % 2 ? LAYOUT_HEADS : LAYOUT_PADDED
    };
    struct rng rng = { (uint64_t)row + 1 };

    attention_case_init_v(&p->test, &shape, row % 3 == 1 ? DIM_V : 0, &rng);
    attention_gradients_init(&p->gradients, &p->test, FFA_FP64, &rng);
    p->list = (ffa_slice_list){ differences[row].slices, 3 };
    for (int32_t i = 0; i < SINKS_MAX * HEADS_MAX; i++)
        p->sink[i] = rng_bell(&rng);
    p->test.args.softmax_scale = differences[row].scale;
    p->test.args.softcap = differences[row].softcap;
    p->test.args.sink = differences[row].sinks ? p->sink : NULL;
    p->test.args.sink_count = differences[row].sinks;
    p->backward = (struct oracle_backward_case){
        .forward = { .shape = shape.mask,
                     .lists = &p->list,
                     .list_count = 1,
                     .head_dim = DIM,
                     .head_dim_v = p->test.head_dim_v,
                     .dtype = FFA_FP64,
                     .threads = 1,
                     .args = &p->test.args },
        .grad_dtype = FFA_FP64,
        .dout = p->gradients.dout,
        .dq = p->gradients.dq,
        .dk = p->gradients.dk,
        .dv = p->gradients.dv,
        .dsink = differences[row].sinks ? p->dsink : NULL,
        .dlse = differences[row].has_dlse ? p->gradients.dlse : (ffa_tensor){ 0 },
    };
}

static void problem_finish(struct problem *p)
{
    attention_gradients_finish(&p->gradients);
    attention_case_finish(&p->test);
}

/* The sum of out * dout, and of lse * dlse, of which dq, dk and dv are the gradients. */
static double loss(const struct problem *p)
{
    const struct oracle_case *forward = &p->backward.forward;
    const int32_t heads = forward->args->heads_q;
    const int32_t dim = p->test.head_dim_v;
    struct oracle_result result;
    double sum = 0;

    ck_assert_int_eq(oracle_forward(&result, forward, NULL), FFA_OK);
    for (int64_t i = 0; i < result.count; i++) {
        for (int32_t c = 0; c < dim; c++)
            sum += result.out[i * dim + c] *
                   attention_read(&p->gradients.dout, FFA_FP64, i / heads, (int32_t)(i % heads), c);
        if (p->backward.dlse.data && result.lse[i] != -INFINITY)
            sum += result.lse[i] *
                   attention_read(&p->gradients.dlse, FFA_FP64, i / heads, (int32_t)(i % heads), 0);
    }
    oracle_result_finish(&result);
    return sum;
}

/* Central differences: h^2 and 1e-16 / h are both about 1e-10. */
static void check_tensor(struct problem *p, const ffa_tensor *tensor, int64_t tokens, int32_t heads,
                         int32_t dim, const struct oracle_gradient *got, const char *name)
{
    const double h = 1e-5;

    ck_assert_int_eq(got->count, tokens * heads);
    for (int64_t i = 0; i < got->count; i++)
        for (int32_t c = 0; c < dim; c++) {
            const int64_t token = i / heads;
            const int32_t head = (int32_t)(i % heads);
            const double before = attention_read(tensor, FFA_FP64, token, head, c);
            double up, down;

            attention_write(tensor, FFA_FP64, token, head, c, before + h);
            up = loss(p);
            attention_write(tensor, FFA_FP64, token, head, c, before - h);
            down = loss(p);
            attention_write(tensor, FFA_FP64, token, head, c, before);
            ck_assert_msg(fabs((up - down) / (2 * h) - got->at[i * dim + c]) < 1e-8,
                          "%s of token %lld, head %d: %.12g, differences give %.12g", name,
                          (long long)token, head, got->at[i * dim + c], (up - down) / (2 * h));
        }
}

static void check_sinks(struct problem *p, const struct oracle_gradient *got)
{
    for (int32_t i = 0; i < p->test.args.sink_count * p->test.args.heads_q; i++) {
        const double before = p->sink[i], h = 1e-5;
        double up, down, slope;

        p->sink[i] = before + h;
        up = loss(p);
        p->sink[i] = before - h;
        down = loss(p);
        p->sink[i] = before;
        slope = (up - down) / (2 * h);
        ck_assert_msg(fabs(slope - got->at[i]) < 1e-8, "dsink %d: %.9g, differences give %.9g", i,
                      got->at[i], slope);
    }
}

START_TEST(as_finite_differences)
{
    struct problem p;
    struct oracle_gradients got;

    problem_init(&p, _i);
    ck_assert_int_eq(oracle_backward(&got, &p.backward, NULL), FFA_OK);
    check_tensor(&p, &p.test.args.q, differences[_i].shape.seqlen_q, differences[_i].heads_q, DIM,
                 &got.dq, "dq");
    check_tensor(&p, &p.test.args.k, differences[_i].shape.seqlen_k, differences[_i].heads_kv, DIM,
                 &got.dk, "dk");
    check_tensor(&p, &p.test.args.v, differences[_i].shape.seqlen_k, differences[_i].heads_kv,
                 p.test.head_dim_v, &got.dv, "dv");
    if (differences[_i].sinks)
        check_sinks(&p, &got.dsink);
    oracle_gradients_finish(&got);
    problem_finish(&p);
}
END_TEST

/* ---- out and lse that are given, samples ---- */

/* Exact ones change nothing; sampled lines are lines of the whole. */
START_TEST(given_out_and_samples)
{
    static const struct oracle_sample rows[] = { { 3, 0, 0 }, { 0, 1, 0 }, { 2, 1, 0 } };
    static const struct oracle_sample keys[] = { { 4, 0, 0 }, { 1, 0, 0 } };
    struct problem p;
    struct oracle_result forward;
    struct oracle_gradients all, some;

    problem_init(&p, 9);
    ck_assert_int_eq(oracle_forward(&forward, &p.backward.forward, NULL), FFA_OK);
    ck_assert_int_eq(oracle_backward(&all, &p.backward, NULL), FFA_OK);
    for (int64_t i = 0; i < forward.count; i++) {
        attention_write(&p.test.args.lse, FFA_FP64, i / 2, (int32_t)(i % 2), 0, forward.lse[i]);
        for (int32_t c = 0; c < DIM; c++)
            attention_write(&p.test.args.out, FFA_FP64, i / 2, (int32_t)(i % 2), c,
                            forward.out[i * DIM + c]);
    }
    p.backward.forward.samples = rows;
    p.backward.forward.sample_count = 3;
    p.backward.key_samples = keys;
    p.backward.key_sample_count = 2;
    for (int32_t pass = 0; pass < 2; pass++) {
        const double tolerance = pass ? 1e-6 : 0; /* lse is stored in fp32 */

        p.backward.use_out = pass;
        ck_assert_int_eq(oracle_backward(&some, &p.backward, NULL), FFA_OK);
        ck_assert_int_eq(some.dq.count, 3);
        ck_assert_int_eq(some.dk.count, 2);
        for (int32_t c = 0; c < DIM; c++) {
            for (int32_t i = 0; i < 3; i++)
                ck_assert_double_le(fabs(some.dq.at[i * DIM + c] -
                                         all.dq.at[(rows[i].row * 2 + rows[i].head) * DIM + c]),
                                    tolerance);
            for (int32_t i = 0; i < 2; i++) {
                ck_assert_double_le(
                    fabs(some.dk.at[i * DIM + c] - all.dk.at[keys[i].row * DIM + c]), tolerance);
                ck_assert_double_le(
                    fabs(some.dv.at[i * DIM + c] - all.dv.at[keys[i].row * DIM + c]), tolerance);
            }
        }
        oracle_gradients_finish(&some);
    }
    oracle_gradients_finish(&all);
    oracle_result_finish(&forward);
    problem_finish(&p);
}
END_TEST

/* ---- groups and tiles ---- */

enum { LONG_ROWS = 45, LONG_KEYS = 70, LONG_DIM = 20, LONG_SAMPLES = 30 };

static void check_lines(const struct oracle_gradient *some, const struct oracle_sample *samples,
                        const struct oracle_gradient *all, int32_t heads)
{
    for (int64_t i = 0; i < some->count; i++) {
        const int64_t at = samples[i].row * heads + samples[i].head;

        ck_assert_mem_eq(some->at + i * LONG_DIM, all->at + at * LONG_DIM,
                         LONG_DIM * sizeof *all->at);
        ck_assert_mem_eq(some->terms + i, all->terms + at, sizeof *all->terms);
        ck_assert_uint_eq(some->touched[i], all->touched[at]);
    }
}

/* Other groups, by other samples or numbers of threads, give the same bits. */
START_TEST(groups_change_nothing)
{
    static const ffa_slice parts[] = { { 0, 20, 3, 64, FFA_SLICE_CAUSAL, 0 },
                                       { 13, 43, 5, 50, FFA_SLICE_INVCAUSAL, 0 },
                                       { 30, 44, 40, 69, FFA_SLICE_FULL, 0 } };
    const ffa_slice_list union_of = { parts, 3 };
    const struct attention_shape shape = {
        { LONG_ROWS, LONG_KEYS }, FFA_FP32, 4, 2, LONG_DIM, LAYOUT_PADDED
    };
    struct rng rng = { 8 };
    struct oracle_sample rows[LONG_SAMPLES], keys[LONG_SAMPLES];
    struct attention_case test;
    struct attention_gradients gradients;
    struct oracle_backward_case backward;
    struct oracle_gradients all, some;

    attention_case_init(&test, &shape, &rng);
    attention_gradients_init(&gradients, &test, FFA_FP32, &rng);
    for (int32_t i = 0; i < LONG_SAMPLES; i++) {
        rows[i] = (struct oracle_sample){ (7 * i + 3) % LONG_ROWS, i % 4, 0 };
        keys[i] = (struct oracle_sample){ (11 * i + 5) % LONG_KEYS, i % 2, 0 };
    }
    backward = (struct oracle_backward_case){ .forward = { .shape = shape.mask,
                                                           .lists = &union_of,
                                                           .list_count = 1,
                                                           .head_dim = LONG_DIM,
                                                           .dtype = FFA_FP32,
                                                           .threads = 1,
                                                           .args = &test.args },
                                              .dout = gradients.dout };
    ck_assert_int_eq(oracle_backward(&all, &backward, NULL), FFA_OK);
    backward.forward.samples = rows;
    backward.forward.sample_count = LONG_SAMPLES;
    backward.key_samples = keys;
    backward.key_sample_count = LONG_SAMPLES;
    for (int32_t threads = 1; threads < 5; threads++) {
        backward.forward.threads = threads;
        ck_assert_int_eq(oracle_backward(&some, &backward, NULL), FFA_OK);
        check_lines(&some.dq, rows, &all.dq, 4);
        check_lines(&some.dk, keys, &all.dk, 2);
        check_lines(&some.dv, keys, &all.dv, 2);
        oracle_gradients_finish(&some);
    }
    oracle_gradients_finish(&all);
    attention_gradients_finish(&gradients);
    attention_case_finish(&test);
}
END_TEST

/* ---- comparison ---- */

enum { ROWS = 9, KEYS = 8, WIDE = 6, HEADS = 4, HEADS_KV = 2 };

/* Row 8 attends nothing, key 7 is attended by none. */
static const ffa_slice slices[] = { { 0, 8, 0, 6, FFA_SLICE_FULL, 0 },
                                    { 2, 8, 1, 7, FFA_SLICE_CAUSAL, 0 } };
static const ffa_slice_list list = { slices, 2 };
static const ffa_dtype dtypes[] = { FFA_BF16, FFA_FP16, FFA_FP32, FFA_FP64 };

enum damage {
    NONE,
    ONE_ELEMENT,
    ONE_HEAD,
    WHOLE,
    OF_NOTHING,
    A_NAN,
    AN_INFINITY,
    UNWRITTEN,
};

static const struct {
    const char *name;
    enum damage damage;
    const char *tensor;
    int64_t token; /* blamed; -1: none in particular */
    int32_t head;
} damages[] = {
    { "nothing", NONE, NULL, -1, -1 },
    { "one element of dq", ONE_ELEMENT, "dq", 4, 2 },
    { "one element of dk", ONE_ELEMENT, "dk", 5, 1 },
    { "one element of dv", ONE_ELEMENT, "dv", 6, 0 },
    { "a head of dq", ONE_HEAD, "dq", -1, 3 },
    { "a head of dv", ONE_HEAD, "dv", -1, 1 },
    { "all of dk", WHOLE, "dk", -1, -1 },
    { "all of dq", WHOLE, "dq", -1, -1 },
    { "dq of a row without keys", OF_NOTHING, "dq", 8, 1 },
    { "dk of a key without rows", OF_NOTHING, "dk", 7, 0 },
    { "dv of a key without rows", OF_NOTHING, "dv", 7, 1 },
    { "a NaN", A_NAN, "dk", 3, 1 },
    { "an infinity", AN_INFINITY, "dq", 3, 1 },
    { "never written", UNWRITTEN, "dv", 0, 0 },
};

static void scale_all(const ffa_tensor *tensor, ffa_dtype dtype, int64_t tokens, int32_t from,
                      int32_t to, double factor)
{
    for (int64_t t = 0; t < tokens; t++)
        for (int32_t h = from; h < to; h++)
            for (int32_t c = 0; c < WIDE; c++)
                attention_write(tensor, dtype, t, h, c,
                                factor * attention_read(tensor, dtype, t, h, c));
}

static void do_damage(struct oracle_backward_case *test, int row)
{
    const char *name = damages[row].tensor;
    const bool is_dq = name && !strcmp(name, "dq");
    const ffa_tensor *tensor = is_dq                         ? &test->dq
                               : name && !strcmp(name, "dk") ? &test->dk
                                                             : &test->dv;
    const ffa_dtype dtype = test->grad_dtype;
    const struct oracle_backward_tolerance tolerance = oracle_backward_tolerance_of(dtype, KEYS);
    const int64_t tokens = is_dq ? ROWS : KEYS, token = damages[row].token;
    const int32_t heads = is_dq ? HEADS : HEADS_KV, head = damages[row].head;
    struct oracle_backward_case poison = *test;
    void *kept[2];

    switch (damages[row].damage) {
    case NONE:
        break;
    case ONE_ELEMENT:
        attention_write(tensor, dtype, token, head, 0,
                        20 * tolerance.line + 1.1 * attention_read(tensor, dtype, token, head, 0));
        break;
    case ONE_HEAD: /* each line within its limit, the head is not */
        scale_all(tensor, dtype, tokens, head, head + 1, 1 + 1.5 * tolerance.head);
        break;
    case WHOLE: /* each head within its limit, all together not */
        scale_all(tensor, dtype, tokens, 0, heads, 1 + 1.5 * tolerance.whole);
        break;
    case OF_NOTHING:
        attention_write(tensor, dtype, token, head, 4, 1e-5);
        break;
    case A_NAN:
        attention_write(tensor, dtype, token, head, 3, NAN);
        break;
    case AN_INFINITY:
        attention_write(tensor, dtype, token, head, 3, INFINITY);
        break;
    case UNWRITTEN:
        kept[0] = calloc(ROWS * HEADS * WIDE, sizeof(double));
        kept[1] = calloc(KEYS * HEADS * WIDE, sizeof(double));
        poison.dq = (ffa_tensor)FFA_TENSOR_INIT(kept[0]);
        poison.dk = (ffa_tensor)FFA_TENSOR_INIT(kept[1]);
        oracle_backward_poison(&poison);
        free(kept[0]);
        free(kept[1]);
        break;
    }
}

static void copy_gradient(const struct oracle_gradient *from, const ffa_tensor *to, ffa_dtype dtype,
                          int32_t heads)
{
    for (int64_t i = 0; i < from->count; i++)
        for (int32_t c = 0; c < WIDE; c++)
            attention_write(to, dtype, i / heads, (int32_t)(i % heads), c, from->at[i * WIDE + c]);
}

START_TEST(errors_are_found_and_named)
{
    for (int32_t d = 0; d < 4; d++) {
        const struct attention_shape shape = {
            { ROWS, KEYS }, dtypes[d], HEADS, HEADS_KV, WIDE, d % 2 ? LAYOUT_HEADS : LAYOUT_TOKENS
        };
        const struct oracle_backward_tolerance tolerance =
            oracle_backward_tolerance_of(dtypes[d], KEYS);
        struct rng rng = { 4 };
        struct attention_case test;
        struct attention_gradients gradients;
        struct oracle_backward_case backward;
        struct oracle_backward_report report;
        struct oracle_gradients want;

        attention_case_init(&test, &shape, &rng);
        attention_gradients_init(&gradients, &test, dtypes[d], &rng);
        backward = (struct oracle_backward_case){
            .forward = { .shape = shape.mask,
                         .lists = &list,
                         .list_count = 1,
                         .head_dim = WIDE,
                         .dtype = dtypes[d],
                         .threads = 2,
                         .args = &test.args },
            .grad_dtype = dtypes[d],
            .dout = gradients.dout,
            .dq = gradients.dq,
            .dk = gradients.dk,
            .dv = gradients.dv,
        };
        ck_assert_int_eq(oracle_backward(&want, &backward, NULL), FFA_OK);
        copy_gradient(&want.dq, &backward.dq, dtypes[d], HEADS);
        copy_gradient(&want.dk, &backward.dk, dtypes[d], HEADS_KV);
        copy_gradient(&want.dv, &backward.dv, dtypes[d], HEADS_KV);
        do_damage(&backward, _i);
        oracle_backward_compare(&report, &backward, &want, &tolerance);
        ck_assert_int_eq(report.compared, ROWS * HEADS + 2 * KEYS * HEADS_KV);
        ck_assert_msg(report.passed == (damages[_i].damage == NONE), "%s, dtype %d: '%s'",
                      damages[_i].name, (int)dtypes[d], report.reason);
        if (damages[_i].tensor)
            ck_assert_msg(report.bad_tensor && !strcmp(report.bad_tensor, damages[_i].tensor),
                          "%s, dtype %d: %s", damages[_i].name, (int)dtypes[d], report.reason);
        ck_assert_msg(report.bad_token == damages[_i].token && report.bad_head == damages[_i].head,
                      "%s, dtype %d: %s", damages[_i].name, (int)dtypes[d], report.reason);
        ck_assert_int_eq(!report.passed, report.reason[0] != 0);
        ck_assert_int_eq(report.nan_count,
                         damages[_i].damage == A_NAN || damages[_i].damage == AN_INFINITY);
        ck_assert_int_eq(report.unwritten_count,
                         damages[_i].damage == UNWRITTEN ? KEYS * HEADS_KV * WIDE : 0);
        oracle_gradients_finish(&want);
        attention_gradients_finish(&gradients);
        attention_case_finish(&test);
    }
}
END_TEST

/* ---- samples of keys ---- */

START_TEST(key_samples_hold_what_matters)
{
    const ffa_slice bounds[] = { { 0, 70, 0, 70000, 1, 0 }, { 70, 200, 70000, 131072, 0, 0 } };
    const ffa_slice_list lists = { bounds, 2 };
    ffa_forward_args args = FFA_FORWARD_ARGS_INIT;
    const struct oracle_case test = { .shape = { 200, 131072 },
                                      .lists = &lists,
                                      .list_count = 1,
                                      .head_dim = 64,
                                      .dtype = FFA_BF16,
                                      .threads = 1,
                                      .args = &args };
    static const int64_t keys[] = { 0, 1, 69999, 70000, 70001, 131071 };
    struct oracle_sample *samples;
    uint32_t found = 0;
    int64_t count;

    args.heads_q = 6;
    args.heads_kv = 2;
    count = oracle_key_samples(&test, 128, 42, 512, &samples);
    ck_assert_int_ge(count, 450);
    for (int64_t i = 0; i < count; i++) {
        ck_assert(samples[i].row >= 0 && samples[i].row < 131072);
        ck_assert(samples[i].head >= 0 && samples[i].head < 2);
        for (uint32_t k = 0; k < 6; k++)
            found |= (uint32_t)(samples[i].row == keys[k]) << k;
    }
    ck_assert_uint_eq(found, 0x3f);
    free(samples);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("oracle, backward");
    TCase *tc = tcase_create("oracle, backward");

    tcase_add_loop_test(tc, as_finite_differences, 0, sizeof differences / sizeof *differences);
    tcase_add_test(tc, given_out_and_samples);
    tcase_add_test(tc, groups_change_nothing);
    tcase_add_loop_test(tc, errors_are_found_and_named, 0, sizeof damages / sizeof *damages);
    tcase_add_test(tc, key_samples_hold_what_matters);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
