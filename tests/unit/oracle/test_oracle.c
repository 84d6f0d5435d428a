/* SPDX-License-Identifier: Apache-2.0
 *
 * The oracle against closed forms, and its comparison against errors put in by hand.
 */
#include "oracle/oracle.h"
#include "support/attention_case.h"
#include "support/suite.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 12, KEYS = 10, HEADS = 4, DIM = 5 };

/* Overlaps: rows 2 to 7 meet keys 3 to 5 in two slices. Rows 10 and 11 attend nothing. */
static const ffa_slice slices[] = {
    { 0, 8, 0, 6, FFA_SLICE_FULL, 0 },
    { 2, 8, 3, 10, FFA_SLICE_CAUSAL, 0 },
    { 8, 10, 0, 10, FFA_SLICE_INVCAUSAL, 0 },
    { 8, 10, 4, 4, FFA_SLICE_FULL, 0 },
};
static const ffa_slice_list list = { slices, 4 };
/* Keys that each row attends, counted by hand. */
static const int32_t counts[ROWS] = { 6, 6, 6, 6, 7, 8, 9, 10, 10, 9, 0, 0 };

static const ffa_dtype dtypes[] = { FFA_BF16, FFA_FP16, FFA_FP32, FFA_FP64 };

static void init(struct attention_case *test, struct oracle_case *reference, ffa_dtype dtype,
                 enum attention_layout layout)
{
    const struct attention_shape shape = { { ROWS, KEYS }, dtype, HEADS, 2, DIM, layout };
    struct rng rng = { 1 };

    attention_case_init(test, &shape, &rng);
    *reference = (struct oracle_case){ .shape = shape.mask,
                                       .lists = &list,
                                       .list_count = 1,
                                       .head_dim = DIM,
                                       .dtype = dtype,
                                       .threads = 2,
                                       .args = &test->args };
}

/* What is compared with the reference is the reference, as the dtype holds it. */
static void copy_result(struct attention_case *test, const struct oracle_result *want)
{
    for (int64_t r = 0; r < ROWS; r++)
        for (int32_t h = 0; h < HEADS; h++) {
            for (int32_t c = 0; c < DIM; c++)
                attention_write(&test->args.out, test->shape.dtype, r, h, c,
                                want->out[(r * HEADS + h) * DIM + c]);
            attention_write(&test->args.lse, attention_sum_dtype(test->shape.dtype), r, h, 0,
                            want->lse[r * HEADS + h]);
        }
}

/* ---- values ---- */

START_TEST(equal_scores_count_keys_and_average_values)
{
    for (int layout = 0; layout < LAYOUT_COUNT; layout++) {
        struct attention_case test;
        struct oracle_case reference;
        struct oracle_result want;

        init(&test, &reference, dtypes[_i], (enum attention_layout)layout);
        for (int64_t r = 0; r < ROWS; r++)
            for (int32_t h = 0; h < HEADS; h++)
                for (int32_t c = 0; c < DIM; c++)
                    attention_write(&test.args.q, dtypes[_i], r, h, c, 0);
        for (int64_t k = 0; k < KEYS; k++)
            for (int32_t h = 0; h < 2; h++)
                for (int32_t c = 0; c < DIM; c++)
                    attention_write(&test.args.v, dtypes[_i], k, h, c,
                                    c == 0   ? (double)k
                                    : c == 1 ? (double)h
                                             : 1);
        ck_assert_int_eq(oracle_forward(&want, &reference, NULL), FFA_OK);
        ck_assert_int_eq(want.count, ROWS * HEADS);
        for (int64_t i = 0; i < want.count; i++) {
            const int64_t row = i / HEADS;
            const double *out = want.out + i * DIM;

            if (!counts[row]) {
                ck_assert(want.lse[i] == -INFINITY && out[0] == 0 && out[4] == 0);
                continue;
            }
            ck_assert_double_eq_tol(want.lse[i], log(counts[row]), 1e-14);
            ck_assert_double_eq_tol(out[1], (double)(i % HEADS / 2), 1e-14);
            ck_assert_double_eq_tol(out[2], 1, 1e-14);
            /* Rows 0 to 8 attend the keys from 0 on, row 9 those from 1 on. */
            ck_assert_double_eq_tol(out[0], (counts[row] - 1) / 2.0 + (row == 9), 1e-14);
        }
        oracle_result_finish(&want);
        attention_case_finish(&test);
    }
}
END_TEST

START_TEST(two_keys_by_hand)
{
    double q[] = { 2, 1 }, k[] = { 1, 3, -1, 0.5 }, v[] = { 1, 0, 0, 1 }, out[2];
    double lse[1];
    const ffa_slice slice = { 0, 1, 0, 2, FFA_SLICE_FULL, 0 };
    const ffa_slice_list full = { &slice, 1 };
    ffa_forward_args args = FFA_FORWARD_ARGS_INIT;
    const struct oracle_case test = { { 1, 2 }, &full, 1, 2, FFA_FP64, 1, &args, NULL, 0, 0, 0, 0 };
    struct oracle_result want;
    double a, b;

    args.heads_q = args.heads_kv = 1;
    args.q.data = q;
    args.k.data = k;
    args.v.data = v;
    args.out.data = out;
    args.lse.data = lse;
    for (int pass = 0; pass < 2; pass++) {
        const double scale = pass ? 0.25 : 1 / sqrt(2);

        args.softmax_scale = pass ? 0.25f : 0; /* 0: the default */
        ck_assert_int_eq(oracle_forward(&want, &test, NULL), FFA_OK);
        a = exp(5 * scale);
        b = exp(-1.5 * scale);
        ck_assert_double_eq_tol(want.lse[0], log(a + b), 1e-14);
        ck_assert_double_eq_tol(want.out[0], a / (a + b), 1e-14);
        ck_assert_double_eq_tol(want.out[1], b / (a + b), 1e-14);
        oracle_result_finish(&want);
    }
}
END_TEST

START_TEST(halves_are_read_by_their_definition)
{
    static const struct {
        ffa_dtype dtype;
        uint16_t bits;
        double value;
    } halves[] = {
        { FFA_BF16, 0x3f80, 1 },        { FFA_BF16, 0xc049, -3.140625 },
        { FFA_BF16, 0x0001, 0x1p-133 }, { FFA_BF16, 0x7f7f, 0x1.fep127 },
        { FFA_FP16, 0x3c00, 1 },        { FFA_FP16, 0xc248, -3.140625 },
        { FFA_FP16, 0x0001, 0x1p-24 },  { FFA_FP16, 0x83ff, -1023 * 0x1p-24 },
        { FFA_FP16, 0x0400, 0x1p-14 },  { FFA_FP16, 0x7bff, 65504 },
        { FFA_FP16, 0x7c00, INFINITY }, { FFA_BF16, 0xff80, -INFINITY },
    };
    const ffa_slice slice = { 0, 1, 0, 1, FFA_SLICE_FULL, 0 };
    const ffa_slice_list full = { &slice, 1 };

    for (size_t i = 0; i < sizeof halves / sizeof *halves; i++) {
        uint16_t zero = 0, value = halves[i].bits, out = 0;
        float lse;
        ffa_forward_args args = FFA_FORWARD_ARGS_INIT;
        const struct oracle_case test = { { 1, 1 }, &full, 1, 1, halves[i].dtype, 1, &args, NULL,
                                          0,        0,     0, 0 };
        struct oracle_result want;

        args.heads_q = args.heads_kv = 1;
        args.q.data = args.k.data = &zero;
        args.v.data = &value;
        args.out.data = &out;
        args.lse.data = &lse;
        ck_assert_int_eq(oracle_forward(&want, &test, NULL), FFA_OK);
        ck_assert_msg(want.out[0] == halves[i].value, "%04x read as %a", halves[i].bits,
                      want.out[0]);
        oracle_result_finish(&want);
    }
}
END_TEST

START_TEST(samples_are_rows_of_the_whole)
{
    static const struct oracle_sample samples[] = { { 0, 0, 0 },  { 9, 0, 0 }, { 7, 1, 0 },
                                                    { 11, 3, 0 }, { 8, 3, 0 }, { 3, 2, 0 } };
    struct attention_case test;
    struct oracle_case reference;
    struct oracle_result all, some;

    init(&test, &reference, FFA_FP32, LAYOUT_HEADS);
    ck_assert_int_eq(oracle_forward(&all, &reference, NULL), FFA_OK);
    reference.samples = samples;
    reference.sample_count = 6;
    ck_assert_int_eq(oracle_forward(&some, &reference, NULL), FFA_OK);
    ck_assert_int_eq(some.count, 6);
    for (int64_t i = 0; i < 6; i++) {
        const int64_t at = samples[i].row * HEADS + samples[i].head;

        ck_assert(some.lse[i] == all.lse[at]);
        ck_assert_mem_eq(some.out + i * DIM, all.out + at * DIM, DIM * sizeof(double));
    }
    oracle_result_finish(&all);
    oracle_result_finish(&some);
    attention_case_finish(&test);
}
END_TEST

/* ---- comparison ---- */

enum damage {
    NONE,
    ONE_ELEMENT,
    WHOLE_OUT,
    LSE,
    LSE_EMPTY,
    OUT_EMPTY,
    A_NAN,
    AN_INFINITY,
    LSE_NAN,
    UNWRITTEN_OUT,
    UNWRITTEN_LSE
};

static const struct {
    const char *name;
    enum damage damage;
    int64_t row; /* blamed; -1: none in particular */
    int32_t head;
} damages[] = {
    { "nothing", NONE, -1, -1 },
    { "one element", ONE_ELEMENT, 4, 2 },
    { "a little of everything", WHOLE_OUT, -1, -1 },
    { "one lse", LSE, 5, 1 },
    { "lse of a row without keys", LSE_EMPTY, 10, 3 },
    { "out of a row without keys", OUT_EMPTY, 11, 0 },
    { "a NaN", A_NAN, 6, 3 },
    { "an infinity", AN_INFINITY, 6, 0 },
    { "a NaN in lse", LSE_NAN, 2, 2 },
    { "never written, out", UNWRITTEN_OUT, 0, 0 },
    { "never written, lse", UNWRITTEN_LSE, 0, 0 },
};

static void scale_out(struct attention_case *test, double factor)
{
    const ffa_tensor *out = &test->args.out;
    const ffa_dtype dtype = test->shape.dtype;

    for (int64_t r = 0; r < ROWS; r++)
        for (int32_t h = 0; h < HEADS; h++)
            for (int32_t c = 0; c < DIM; c++)
                attention_write(out, dtype, r, h, c, attention_read(out, dtype, r, h, c) * factor);
}

static void damage(struct attention_case *test, enum damage damage, int64_t row, int32_t head)
{
    const ffa_tensor *out = &test->args.out, *lse = &test->args.lse;
    const ffa_dtype dtype = test->shape.dtype, sum_dtype = attention_sum_dtype(dtype);
    const struct oracle_tolerance tolerance = oracle_tolerance_of(dtype);
    struct oracle_case poison = { { ROWS, KEYS }, &list, 1, DIM, dtype, 1,
                                  &test->args,    NULL,  0, 0,   0,     0 };
    struct attention_case kept;

    switch (damage) {
    case NONE:
        break;
    case ONE_ELEMENT:
        attention_write(out, dtype, row, head, 0,
                        20 * tolerance.row + 1.1 * attention_read(out, dtype, row, head, 0));
        break;
    case WHOLE_OUT: /* each row within its limit, all together not */
        scale_out(test, 1 + 2.5 * tolerance.out);
        break;
    case LSE:
        attention_write(lse, sum_dtype, row, head, 0,
                        attention_read(lse, sum_dtype, row, head, 0) + 5 * tolerance.lse);
        break;
    case LSE_EMPTY:
        attention_write(lse, sum_dtype, row, head, 0, -1e30);
        break;
    case OUT_EMPTY:
        attention_write(out, dtype, row, head, 4, 1e-5);
        break;
    case A_NAN:
        attention_write(out, dtype, row, head, 3, NAN);
        break;
    case AN_INFINITY:
        attention_write(out, dtype, row, head, 3, INFINITY);
        break;
    case LSE_NAN:
        attention_write(lse, sum_dtype, row, head, 0, NAN);
        break;
    case UNWRITTEN_OUT:
    case UNWRITTEN_LSE:
        kept = *test;
        if (damage == UNWRITTEN_OUT)
            kept.args.lse.data = calloc(ROWS * HEADS * 4, sizeof(double));
        else
            kept.args.out.data = calloc(ROWS * HEADS * 4 * DIM, sizeof(double));
        poison.args = &kept.args;
        oracle_poison(&poison);
        free(damage == UNWRITTEN_OUT ? kept.args.lse.data : kept.args.out.data);
        break;
    }
}

START_TEST(errors_are_found_and_named)
{
    for (int32_t d = 0; d < 4; d++) {
        const struct oracle_tolerance tolerance = oracle_tolerance_of(dtypes[d]);
        struct attention_case test;
        struct oracle_case reference;
        struct oracle_result want;
        struct oracle_report report;

        init(&test, &reference, dtypes[d], d % 2 ? LAYOUT_HEADS : LAYOUT_TOKENS);
        ck_assert_int_eq(oracle_forward(&want, &reference, NULL), FFA_OK);
        copy_result(&test, &want);
        damage(&test, damages[_i].damage, damages[_i].row, damages[_i].head);
        oracle_compare(&report, &reference, &want, &tolerance);
        ck_assert_int_eq(report.compared, ROWS * HEADS);
        ck_assert_msg(report.passed == (damages[_i].damage == NONE), "%s, dtype %d: %s",
                      damages[_i].name, (int)dtypes[d], report.reason);
        ck_assert_int_eq(report.bad_row, damages[_i].row);
        ck_assert_int_eq(report.bad_head, damages[_i].head);
        ck_assert_int_eq(!report.passed, report.reason[0] != 0);
        ck_assert_int_eq(report.nan_count, damages[_i].damage == A_NAN ||
                                               damages[_i].damage == AN_INFINITY ||
                                               damages[_i].damage == LSE_NAN);
        ck_assert_int_eq(report.unwritten_count,
                         damages[_i].damage == UNWRITTEN_OUT   ? ROWS * HEADS * DIM
                         : damages[_i].damage == UNWRITTEN_LSE ? ROWS * HEADS
                                                               : 0);
        oracle_result_finish(&want);
        attention_case_finish(&test);
    }
}
END_TEST

/* ---- samples ---- */

START_TEST(samples_hold_what_matters)
{
    const ffa_slice bounds[] = { { 0, 70000, 0, 70000, 1, 0 }, { 70000, 131072, 0, 9, 0, 0 } };
    const ffa_slice_list lists = { bounds, 2 };
    ffa_forward_args args = FFA_FORWARD_ARGS_INIT;
    const struct oracle_case test = {
        { 131072, 131072 }, &lists, 1, 64, FFA_BF16, 1, &args, NULL, 0, 0, 0, 0
    };
    static const int64_t rows[] = { 0, 1, 69999, 70000, 70001, 131071 };
    struct oracle_sample *one, *two, *other;
    int64_t count, aligned = 0;
    uint32_t found = 0;

    args.heads_q = 6;
    args.heads_kv = 2;
    count = oracle_samples(&test, 128, 42, 512, &one);
    ck_assert_int_ge(count, 480); /* a few are drawn twice */
    ck_assert_int_eq(oracle_samples(&test, 128, 42, 512, &two), count);
    ck_assert_mem_eq(one, two, (size_t)count * sizeof *one);
    ck_assert_int_gt(oracle_samples(&test, 128, 43, 512, &other), 0);
    ck_assert_mem_ne(one, other, 100 * sizeof *one);
    for (int64_t i = 0; i < count; i++) {
        ck_assert(one[i].row >= 0 && one[i].row < 131072 && one[i].head >= 0 && one[i].head < 6);
        ck_assert(!i || one[i].head > one[i - 1].head ||
                  (one[i].head == one[i - 1].head && one[i].row > one[i - 1].row));
        aligned += one[i].row % 128 == 0 || one[i].row % 128 == 127;
        for (uint32_t r = 0; r < 6; r++)
            found |= (uint32_t)(one[i].row == rows[r]) << r;
    }
    ck_assert_uint_eq(found, 0x3f);
    ck_assert_int_ge(aligned, 60);
    free(one);
    free(two);
    free(other);
}
END_TEST

/* More bounds than samples, fewer rows than samples. */
START_TEST(samples_of_odd_shapes)
{
    ffa_slice *many = calloc(5000, sizeof *many);
    ffa_slice_list lists = { many, 5000 };
    ffa_forward_args args = FFA_FORWARD_ARGS_INIT;
    struct oracle_case test = {
        { 10000, 10000 }, &lists, 1, 64, FFA_BF16, 1, &args, NULL, 0, 0, 0, 0
    };
    struct oracle_sample *samples;
    int64_t count;

    args.heads_q = args.heads_kv = 1;
    for (int64_t i = 0; i < 5000; i++)
        many[i] = (ffa_slice){ 2 * i, 2 * i + 2, 2 * i, 2 * i + 2, 0, 0 };
    count = oracle_samples(&test, 64, 1, 512, &samples);
    ck_assert(count > 400 && count <= 512);
    free(samples);

    test.shape.seqlen_q = 3;
    lists.count = 1;
    count = oracle_samples(&test, 64, 1, 512, &samples);
    ck_assert_int_eq(count, 3);
    free(samples);
    free(many);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("oracle");
    TCase *tc = tcase_create("oracle");

    tcase_add_loop_test(tc, equal_scores_count_keys_and_average_values, 0, 4);
    tcase_add_test(tc, two_keys_by_hand);
    tcase_add_test(tc, halves_are_read_by_their_definition);
    tcase_add_test(tc, samples_are_rows_of_the_whole);
    tcase_add_loop_test(tc, errors_are_found_and_named, 0, sizeof damages / sizeof *damages);
    tcase_add_test(tc, samples_hold_what_matters);
    tcase_add_test(tc, samples_of_odd_shapes);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
