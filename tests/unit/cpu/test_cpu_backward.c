/* SPDX-License-Identifier: Apache-2.0
 *
 * The backward pass of the CPU backend against the fp64 oracle and against plain operators: shapes
 * that break others, rows and keys of nothing, NaN rules. (test_cpu.c has what both passes share.)
 */
#include "support/cpu_case.h"
#include "support/low_precision.h"
#include "support/suite.h"

#include <check.h>
#include <math.h>

static const ffa_dtype dtypes[] = { FFA_BF16, FFA_FP16, FFA_FP32, FFA_FP64 };
static const struct tile_options forward_opts = { 32, 32, false, false };

/* ---- the same mathematics in low precision ---- */

static const struct {
    const char *text;
    float softcap;
    int32_t sinks;
} plain_cases[] = {
    { "causal:90", 0, 0 },
    { "window:100x130,left=30,right=9", 0, 0 },
    { "varlen-full:40,1,60", 3, 0 },
    { "causal:70x50", 0, 2 }, /* the first rows attend the sinks only */
};

/* Plain operators in bf16 and fp16 are off by some roundings: enough to bound a backend by, and
 * little enough to be the same mathematics. The backend stays below them, as it rounds less. */
START_TEST(errors_are_bounded_by_plain_operators)
{
    const ffa_dtype dtype = _i % 2 ? FFA_FP16 : FFA_BF16;
    const double unit = dtype == FFA_BF16 ? 1.0 / 256 : 1.0 / 2048; /* between numbers at 1 */
    const struct tile_options opts = { 32, 48, TILE_CUTS_CHEAP, false };
    struct attention_shape shape = { { 0, 0 }, dtype, 4, 2, 64, LAYOUT_PADDED };
    struct oracle_backward_report report, plain;
    struct oracle_gradients want;
    struct rng rng = { 21 };
    struct cpu_case p;
    ffa_mask *mask;
    char why[160];

    ck_assert_int_eq(ffa_mask_parse(&mask, plain_cases[_i / 2].text, NULL), FFA_OK);
    shape.mask = mask->shape;
    cpu_case_init(&p, &shape, _i % 3 ? 0 : 24, dtype, &rng);
    p.mask = mask;
    p.lists[0] = ffa_mask_slices(mask, 0);
    p.test.args.softcap = plain_cases[_i / 2].softcap;
    p.test.args.sink_count = plain_cases[_i / 2].sinks;
    p.test.args.sink = plain_cases[_i / 2].sinks ? p.sink : NULL;
    cpu_case_forward(&p, &forward_opts, 2, false);
    cpu_case_backward(&p, &opts, 2, false);
    ck_assert_int_eq(oracle_backward(&want, &p.reference, NULL), FFA_OK);
    oracle_backward_compare(&report, &p.reference, &want,
                            &(struct oracle_backward_tolerance){ 1, 1, 1 });
    plain = low_precision_errors(&p.reference, &want);
    ck_assert_msg(plain.dq > 0.25 * unit && plain.dq < 3 * unit, "dq %.2e", plain.dq);
    ck_assert_msg(plain.dk > 0.25 * unit && plain.dk < 3 * unit, "dk %.2e", plain.dk);
    ck_assert_msg(plain.dv > 0.25 * unit && plain.dv < 3 * unit, "dv %.2e", plain.dv);
    ck_assert_int_eq(plain.nan_count, 0);
    ck_assert_msg(low_precision_bounds(&report, &plain, why), "%s: %s", plain_cases[_i / 2].text,
                  why);
    oracle_gradients_finish(&want);
    cpu_case_finish(&p);
}
END_TEST

START_TEST(a_bound_by_plain_operators_is_twice_their_error)
{
    const struct oracle_backward_report plain = {
        .dq = 1, .dk = 2, .dv = 3, .row = 4, .key = 5, .head = 6
    };
    const struct oracle_backward_report twice = {
        .dq = 2, .dk = 4, .dv = 6, .row = 8, .key = 10, .head = 12
    };
    struct oracle_backward_report got = twice;
    double *fields[] = { &got.dq, &got.dk, &got.dv, &got.row, &got.key, &got.head };
    char why[160];

    ck_assert(low_precision_bounds(&twice, &plain, why));
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        got = twice;
        *fields[i] *= 1.01;
        ck_assert(!low_precision_bounds(&got, &plain, why));
        ck_assert_str_ne(why, "");
        *fields[i] = NAN;
        ck_assert(!low_precision_bounds(&got, &plain, why));
    }
}
END_TEST

/* ---- shapes that break others ---- */

static const struct {
    const char *name;
    ffa_mask_shape shape;
    ffa_slice slices[4];
} odd[] = {
    { "a bicausal square: dq and dk are 0, dv is dout",
      { 40, 40 },
      { { 0, 40, 0, 40, FFA_SLICE_BICAUSAL, 0 } } },
    { "bicausal squares side by side",
      { 40, 40 },
      { { 0, 17, 0, 17, 3, 0 }, { 17, 40, 17, 40, 3, 0 }, { 0, 17, 20, 37, 3, 0 } } },
    { "a bicausal band", { 30, 50 }, { { 0, 30, 0, 50, FFA_SLICE_BICAUSAL, 0 } } },
    { "one row", { 20, 33 }, { { 7, 8, 0, 33, FFA_SLICE_FULL, 0 } } },
    { "one key", { 33, 20 }, { { 0, 33, 7, 8, FFA_SLICE_FULL, 0 } } },
    { "one cell of each type",
      { 20, 20 },
      { { 0, 1, 3, 4, 0, 0 },
        { 4, 5, 4, 5, 1, 0 },
        { 9, 10, 2, 3, 2, 0 },
        { 19, 20, 19, 20, 3, 0 } } },
    { "one row and one key, causal",
      { 20, 20 },
      { { 0, 20, 5, 6, 1, 0 }, { 3, 4, 0, 20, 1, 0 }, { 8, 9, 0, 20, 2, 0 } } },
    { "nothing at all", { 20, 20 }, { { 0 } } },
};

START_TEST(odd_shapes_as_the_oracle)
{
    const struct tile_options opts = { 16, 16, false, false };

    for (int32_t d = 0; d < 4; d++) {
        const struct attention_shape shape = { odd[_i].shape, dtypes[d], 2, 1, 8, LAYOUT_PADDED };
        struct rng rng = { 13 };
        struct cpu_case p;

        cpu_case_init(&p, &shape, 0, dtypes[d], &rng);
        cpu_case_set_mask(&p, odd[_i].slices, 4, 1);
        cpu_case_forward(&p, &forward_opts, 2, false);
        cpu_case_backward(&p, &opts, 2, false);
        cpu_case_compare_gradients(&p, odd[_i].name);
        cpu_case_finish(&p);
    }
}
END_TEST

/* ---- what is not attended ---- */

static const struct {
    const char *name;
    ffa_slice slice;
} nan_rows[] = {
    { "diagonal", { 0, 40, 0, 40, FFA_SLICE_BICAUSAL, 0 } },
    { "causal", { 0, 40, 0, 40, FFA_SLICE_CAUSAL, 0 } },
    { "inverse causal", { 0, 40, 0, 40, FFA_SLICE_INVCAUSAL, 0 } },
    { "one block", { 8, 20, 8, 20, FFA_SLICE_FULL, 0 } },
};

static void spoil(const ffa_tensor *tensor, int32_t head_count, int64_t from, int64_t to)
{
    for (int64_t t = from; t < to; t++)
        for (int32_t h = 0; h < head_count; h++)
            for (int32_t c = 0; c < 8; c++)
                attention_write(tensor, FFA_FP32, t, h, c, c % 2 ? (double)INFINITY : NAN);
}

static void check_numbers(const ffa_tensor *tensor, int32_t head_count,
                          const struct oracle_gradient *want, const char *name)
{
    for (int64_t i = 0; i < want->count; i++)
        for (int32_t c = 0; c < 8; c++) {
            const double got =
                attention_read(tensor, FFA_FP32, i / head_count, (int32_t)(i % head_count), c);

            ck_assert_msg(isfinite(got) == isfinite(want->at[i * 8 + c]), "%s, line %lld: %g", name,
                          (long long)i, got);
        }
}

/* Rows from 20 on, and keys from 20 on, hold NaN and Inf: what does not attend them is as if they
 * did not. The oracle never looks at cells that are not attended. */
START_TEST(what_is_not_attended_never_reaches_a_gradient)
{
    const struct attention_shape shape = { { 40, 40 }, FFA_FP32, 2, 1, 8, LAYOUT_HEADS };
    const struct tile_options opts = { 16, 16, false, false };
    struct rng rng = { 5 };
    struct cpu_case p;
    struct oracle_gradients want;

    cpu_case_init(&p, &shape, 0, FFA_FP32, &rng);
    cpu_case_set_mask(&p, &nan_rows[_i].slice, 1, 1);
    spoil(&p.test.args.q, 2, 20, 40);
    spoil(&p.test.args.k, 1, 20, 40);
    spoil(&p.test.args.v, 1, 20, 40);
    spoil(&p.gradients.dout, 2, 20, 40);
    cpu_case_forward(&p, &forward_opts, 2, false);
    cpu_case_backward(&p, &opts, 1, false);
    ck_assert_int_eq(oracle_backward(&want, &p.reference, NULL), FFA_OK);

    check_numbers(&p.gradients.dq, 2, &want.dq, "dq");
    check_numbers(&p.gradients.dk, 1, &want.dk, "dk");
    check_numbers(&p.gradients.dv, 1, &want.dv, "dv");
    oracle_gradients_finish(&want);
    cpu_case_finish(&p);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cpu, backward");
    TCase *tc = tcase_create("cpu, backward");

    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, errors_are_bounded_by_plain_operators, 0,
                        2 * sizeof plain_cases / sizeof *plain_cases);
    tcase_add_test(tc, a_bound_by_plain_operators_is_twice_their_error);
    tcase_add_loop_test(tc, odd_shapes_as_the_oracle, 0, sizeof odd / sizeof *odd);
    tcase_add_loop_test(tc, what_is_not_attended_never_reaches_a_gradient, 0,
                        sizeof nan_rows / sizeof *nan_rows);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
