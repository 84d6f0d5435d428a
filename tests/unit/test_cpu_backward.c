/* SPDX-License-Identifier: Apache-2.0
 *
 * The backward pass of the CPU backend against the fp64 oracle: dtypes, heads, layouts, random
 * masks, caps and sinks; rows and keys of nothing; NaN rules; thread counts; faults.
 */
#include "cli/oracle_backward.h"
#include "cpu/cpu.h"
#include "support/attention_case.h"
#include "support/low_precision.h"
#include "support/mask_cases.h"

#include <check.h>
#include <math.h>
#include <stdio.h>

/* ---- one run ---- */

struct problem {
    struct attention_case test;
    struct attention_gradients gradients;
    struct oracle_backward_case reference;
    ffa_slice_list lists[8];
    float sink[16], dsink[16];
    ffa_mask *mask;
};

static void problem_init_v(struct problem *p, const struct attention_shape *shape,
                           int32_t head_dim_v, ffa_dtype grad_dtype, struct rng *rng)
{
    attention_case_init_v(&p->test, shape, head_dim_v, rng);
    attention_gradients_init(&p->gradients, &p->test, grad_dtype, rng);
    p->reference = (struct oracle_backward_case){
        .forward = { .shape = shape->mask,
                     .lists = p->lists,
                     .list_count = 1,
                     .head_dim = shape->head_dim,
                     .head_dim_v = head_dim_v,
                     .dtype = shape->dtype,
                     .threads = 2,
                     .args = &p->test.args },
        .grad_dtype = grad_dtype,
        .dout = p->gradients.dout,
        .dq = p->gradients.dq,
        .dk = p->gradients.dk,
        .dv = p->gradients.dv,
    };
}

static void problem_init(struct problem *p, const struct attention_shape *shape,
                         ffa_dtype grad_dtype, struct rng *rng)
{
    problem_init_v(p, shape, 0, grad_dtype, rng);
}

/* All lists of the mask hold the first slices: half as many in each further one. */
static void set_mask(struct problem *p, const ffa_slice *slices, int64_t count, int32_t list_count)
{
    for (int32_t l = 0; l < list_count; l++)
        p->lists[l] = (ffa_slice_list){ slices, count / (l + 1) };
    p->reference.forward.list_count = list_count;
    ck_assert_int_eq(
        ffa_mask_create_per_head(&p->mask, &p->test.shape.mask, p->lists, list_count, NULL),
        FFA_OK);
}

static void problem_finish(struct problem *p)
{
    ffa_mask_destroy(p->mask);
    attention_gradients_finish(&p->gradients);
    attention_case_finish(&p->test);
}

static struct cpu_backward call_of(struct problem *p, const struct backward_plan *plan,
                                   int32_t threads, bool fp64)
{
    return (struct cpu_backward){ .plan = plan,
                                  .args = &p->test.args,
                                  .dout = p->gradients.dout,
                                  .dq = p->gradients.dq,
                                  .dk = p->gradients.dk,
                                  .dv = p->gradients.dv,
                                  .dsink = p->reference.dsink,
                                  .dtype = p->test.shape.dtype,
                                  .grad_dtype = p->gradients.grad_dtype,
                                  .head_dim = p->test.shape.head_dim,
                                  .head_dim_v = p->test.head_dim_v,
                                  .threads = threads,
                                  .fp64 = fp64 };
}

/* Forward, for out and lse. */
static void run_forward(struct problem *p, bool fp64)
{
    const struct tile_options opts = { 32, 32, false, false };
    struct tile_plan plan;
    const struct cpu_forward call = { .plan = &plan,
                                      .args = &p->test.args,
                                      .dtype = p->test.shape.dtype,
                                      .head_dim = p->test.shape.head_dim,
                                      .head_dim_v = p->test.head_dim_v,
                                      .threads = 2,
                                      .fp64 = fp64 };

    ck_assert_int_eq(tile_build(&plan, p->mask, &opts, NULL), FFA_OK);
    ck_assert_int_eq(cpu_forward(&call, NULL), FFA_OK);
    tile_finish(&plan);
}

static void run_backward(struct problem *p, const struct tile_options *opts, int32_t threads,
                         bool fp64)
{
    struct backward_plan plan;
    struct cpu_backward call;

    ck_assert_int_eq(backward_build(&plan, p->mask, opts, NULL), FFA_OK);
    call = call_of(p, &plan, threads, fp64);
    ck_assert_int_eq(cpu_backward(&call, NULL), FFA_OK);
    backward_finish(&plan);
}

/* With out and lse from a forward pass in fp64, not those of the backend. */
static void compare(struct problem *p, const char *name)
{
    const struct oracle_backward_tolerance tolerance =
        oracle_backward_tolerance_of(p->test.shape.dtype);
    struct oracle_gradients want;
    struct oracle_backward_report report;

    ck_assert_int_eq(oracle_backward(&want, &p->reference, NULL), FFA_OK);
    oracle_backward_compare(&report, &p->reference, &want, &tolerance);
    ck_assert_msg(report.passed, "%s: %s (NaN %lld, unwritten %lld)", name, report.reason,
                  (long long)report.nan_count, (long long)report.unwritten_count);
    oracle_gradients_finish(&want);
}

/* ---- random masks, dtypes, heads, layouts ---- */

static const ffa_dtype dtypes[] = { FFA_BF16, FFA_FP16, FFA_FP32, FFA_FP64 };
static const int32_t heads[][2] = { { 8, 8 }, { 4, 2 }, { 6, 1 }, { 1, 1 } };
static const int32_t dims[] = { 64, 128, 8, 24 };
enum { ROUNDS = 24 };

static void random_case(ffa_dtype dtype, uint64_t seed)
{
    struct rng rng = { seed };
    const int32_t *layout = heads[rng_range(&rng, 0, 3)];
    struct mask_case drawn = mask_case_random(&rng, 90, 16);
    const struct attention_shape shape = {
        .mask = drawn.shape,
        .dtype = dtype,
        .heads_q = layout[0],
        .heads_kv = layout[1],
        .head_dim = dims[seed % 4],
        .layout = (enum attention_layout)rng_range(&rng, 0, LAYOUT_COUNT - 1),
    };
    const struct tile_options opts = { (int32_t)rng_range(&rng, 1, 4) * 16,
                                       (int32_t)rng_range(&rng, 1, 4) * 16,
                                       rng_range(&rng, 0, 1) == 0, rng_range(&rng, 0, 1) == 0 };
    const ffa_dtype grad_dtype = rng_range(&rng, 0, 2) || dtype == FFA_FP64 ? dtype : FFA_FP32;
    struct problem p = { 0 };
    char name[64];

    snprintf(name, sizeof name, "dtype %d, seed %llu", (int)dtype, (unsigned long long)seed);
    problem_init_v(&p, &shape, seed % 3 ? 0 : dims[seed / 3 % 4], grad_dtype, &rng);
    set_mask(&p, drawn.slices, drawn.count, rng_range(&rng, 0, 2) ? 1 : layout[1]);
    if (rng_range(&rng, 0, 3) == 0)
        p.test.args.softcap = 2;
    if (rng_range(&rng, 0, 3) == 0) {
        for (int32_t i = 0; i < 16; i++)
            p.sink[i] = (float)rng_bell(&rng);
        p.test.args.sink = p.sink;
        p.test.args.sink_count = (int32_t)rng_range(&rng, 1, 2);
        p.reference.dsink = p.dsink;
    }
    run_forward(&p, seed % 2 == 0);
    oracle_backward_poison(&p.reference);
    run_backward(&p, &opts, 2, seed % 2 == 0);
    compare(&p, name);
    problem_finish(&p);
    free(drawn.slices);
}

START_TEST(as_the_oracle)
{
    for (uint64_t seed = 1; seed <= ROUNDS; seed++)
        random_case(dtypes[_i], seed + 100 * (uint64_t)_i);
}
END_TEST

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
    struct problem p = { 0 };
    char why[160];

    ck_assert_int_eq(ffa_mask_parse(&p.mask, plain_cases[_i / 2].text, NULL), FFA_OK);
    shape.mask = p.mask->shape;
    problem_init_v(&p, &shape, _i % 3 ? 0 : 24, dtype, &rng);
    p.lists[0] = ffa_mask_slices(p.mask, 0);
    p.test.args.softcap = plain_cases[_i / 2].softcap;
    p.test.args.sink_count = plain_cases[_i / 2].sinks;
    p.test.args.sink = plain_cases[_i / 2].sinks ? p.sink : NULL;
    run_forward(&p, false);
    run_backward(&p, &opts, 2, false);
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
    problem_finish(&p);
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

/* ---- masks of the file ---- */

enum { CELLS_MAX = 60000 }; /* attended: what a debug build under a sanitizer does in a second */

START_TEST(cases_as_the_oracle)
{
    struct mask_cases cases = mask_cases_load();
    const struct tile_options opts = { 48, 64, false, false };
    int64_t ran = 0;

    for (int64_t i = _i; i < cases.count; i += 4) {
        const struct mask_case *from = &cases.at[i];
        const struct attention_shape shape = { from->shape, dtypes[_i], 2, 1, 8, LAYOUT_TOKENS };
        struct rng rng = { 11 };
        struct problem p = { 0 };

        if (from->area > CELLS_MAX)
            continue;
        problem_init(&p, &shape, dtypes[_i], &rng);
        set_mask(&p, from->slices, from->count, 1);
        run_forward(&p, false);
        oracle_backward_poison(&p.reference);
        run_backward(&p, &opts, 2, false);
        compare(&p, from->name);
        problem_finish(&p);
        ran++;
    }
    ck_assert_int_ge(ran, 4);
    mask_cases_free(&cases);
}
END_TEST

/* A longer mask, of which the oracle computes samples only, from the backend's own out and lse. */
START_TEST(samples_as_the_oracle)
{
    struct mask_cases cases = mask_cases_load();
    const struct mask_case *from = mask_cases_find(&cases, "varlen_causal_4096");
    const struct attention_shape shape = { from->shape, FFA_BF16, 2, 1, 4, LAYOUT_TOKENS };
    const struct tile_options opts = { 64, 128, false, false };
    struct rng rng = { 12 };
    struct oracle_sample *rows, *keys;
    struct problem p = { 0 };

    problem_init(&p, &shape, FFA_BF16, &rng);
    set_mask(&p, from->slices, from->count, 1);
    run_forward(&p, false);
    run_backward(&p, &opts, 2, false);
    p.reference.use_out = true;
    p.reference.forward.sample_count =
        oracle_samples(&p.reference.forward, opts.tile_m, 1, 96, &rows);
    p.reference.key_sample_count =
        oracle_key_samples(&p.reference.forward, opts.tile_n, 1, 96, &keys);
    ck_assert_int_gt(p.reference.forward.sample_count, 80);
    ck_assert_int_gt(p.reference.key_sample_count, 70);
    p.reference.forward.samples = rows;
    p.reference.key_samples = keys;
    compare(&p, from->name);
    free(rows);
    free(keys);
    problem_finish(&p);
    mask_cases_free(&cases);
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
        struct problem p = { 0 };

        problem_init(&p, &shape, dtypes[d], &rng);
        set_mask(&p, odd[_i].slices, 4, 1);
        run_forward(&p, false);
        oracle_backward_poison(&p.reference);
        run_backward(&p, &opts, 2, false);
        compare(&p, odd[_i].name);
        problem_finish(&p);
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
    struct problem p = { 0 };
    struct oracle_gradients want;

    problem_init(&p, &shape, FFA_FP32, &rng);
    set_mask(&p, &nan_rows[_i].slice, 1, 1);
    spoil(&p.test.args.q, 2, 20, 40);
    spoil(&p.test.args.k, 1, 20, 40);
    spoil(&p.test.args.v, 1, 20, 40);
    spoil(&p.gradients.dout, 2, 20, 40);
    run_forward(&p, false);
    oracle_backward_poison(&p.reference);
    run_backward(&p, &opts, 1, false);
    ck_assert_int_eq(oracle_backward(&want, &p.reference, NULL), FFA_OK);

    check_numbers(&p.gradients.dq, 2, &want.dq, "dq");
    check_numbers(&p.gradients.dk, 1, &want.dk, "dk");
    check_numbers(&p.gradients.dv, 1, &want.dv, "dv");
    oracle_gradients_finish(&want);
    problem_finish(&p);
}
END_TEST

/* ---- threads ---- */

START_TEST(the_number_of_threads_changes_nothing)
{
    static const int32_t threads[] = { 2, 3, 8, 64 };
    const ffa_slice slices[] = { { 0, 110, 0, 130, FFA_SLICE_CAUSAL, 0 },
                                 { 30, 110, 60, 120, FFA_SLICE_INVCAUSAL, 0 } };
    const struct attention_shape shape = { { 110, 130 }, dtypes[_i], 4, 2, 24, LAYOUT_TOKENS };
    const struct tile_options opts = { 32, 48, false, false };
    const size_t element = (size_t[]){ 2, 2, 4, 8 }[_i];
    const size_t bytes[] = { 110 * 4 * 24 * element, 130 * 2 * 24 * element };
    struct rng rng = { 8 };
    struct problem p = { 0 };
    void *kept[3];

    problem_init(&p, &shape, dtypes[_i], &rng);
    set_mask(&p, slices, 2, 1);
    run_forward(&p, false);
    run_backward(&p, &opts, 1, false);
    for (size_t g = 0; g < 3; g++) {
        kept[g] = malloc(bytes[g > 0]);
        memcpy(kept[g], p.gradients.memory[g + 1], bytes[g > 0]);
    }
    for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
        oracle_backward_poison(&p.reference);
        run_backward(&p, &opts, threads[t], false);
        for (size_t g = 0; g < 3; g++)
            ck_assert_mem_eq(p.gradients.memory[g + 1], kept[g], bytes[g > 0]);
    }
    for (size_t g = 0; g < 3; g++)
        free(kept[g]);
    problem_finish(&p);
}
END_TEST

/* ---- no memory ---- */

START_TEST(any_allocation_may_fail)
{
    const ffa_slice slice = { 0, 50, 0, 50, FFA_SLICE_CAUSAL, 0 };
    const struct attention_shape shape = { { 50, 50 }, FFA_BF16, 2, 1, 8, LAYOUT_TOKENS };
    const struct tile_options opts = { 16, 16, false, false };
    struct rng rng = { 9 };
    struct backward_plan plan;
    struct cpu_backward call;
    struct problem p = { 0 };
    long nth = 1;

    problem_init(&p, &shape, FFA_BF16, &rng);
    set_mask(&p, &slice, 1, 1);
    run_forward(&p, false);
    ck_assert_int_eq(backward_build(&plan, p.mask, &opts, NULL), FFA_OK);
    call = call_of(&p, &plan, 4, false);
    for (;; nth++) {
        ffa_error err = { FFA_OK, 0, "" };
        ffa_status rc;

        fault_arm(FAULT_ALLOC, nth);
        rc = cpu_backward(&call, &err);
        if (!fault_fired())
            break;
        ck_assert_int_eq(rc, FFA_NOMEM);
        ck_assert_str_ne(err.message, "");
    }
    ck_assert_int_eq(nth, 7); /* the workers, delta, and each worker's scratch */
    fault_arm(FAULT_ALLOC, 0);
    compare(&p, "after the faults");
    backward_finish(&plan);
    problem_finish(&p);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cpu, backward");
    TCase *tc = tcase_create("cpu, backward");
    SRunner *runner;
    int failed;

    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, as_the_oracle, 0, 4);
    tcase_add_loop_test(tc, errors_are_bounded_by_plain_operators, 0,
                        2 * sizeof plain_cases / sizeof *plain_cases);
    tcase_add_test(tc, a_bound_by_plain_operators_is_twice_their_error);
    tcase_add_loop_test(tc, cases_as_the_oracle, 0, 4);
    tcase_add_test(tc, samples_as_the_oracle);
    tcase_add_loop_test(tc, odd_shapes_as_the_oracle, 0, sizeof odd / sizeof *odd);
    tcase_add_loop_test(tc, what_is_not_attended_never_reaches_a_gradient, 0,
                        sizeof nan_rows / sizeof *nan_rows);
    tcase_add_loop_test(tc, the_number_of_threads_changes_nothing, 0, 4);
    tcase_add_test(tc, any_allocation_may_fail);
    suite_add_tcase(suite, tc);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
