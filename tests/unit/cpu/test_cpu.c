/* SPDX-License-Identifier: Apache-2.0
 *
 * The CPU backend against the fp64 oracle, both passes: dtypes, heads, layouts, random masks, caps
 * and sinks; thread counts; faults. Of the forward pass: NaN rules, rows without keys, phases.
 */
#include "support/cpu_case.h"
#include "support/mask_cases.h"
#include "support/suite.h"

#include <check.h>
#include <math.h>
#include <stdio.h>

/* ---- random masks, dtypes, heads, layouts ---- */

static const ffa_dtype dtypes[] = { FFA_BF16, FFA_FP16, FFA_FP32, FFA_FP64 };
static const int32_t heads[][2] = { { 8, 8 }, { 4, 2 }, { 6, 1 }, { 1, 1 } };
static const int32_t dims[] = { 64, 128, 8, 24 };
static const int32_t value_dims[] = { 0, 0, 40, 16, 0 }; /* 0: as dims */
enum { ROUNDS = 32 };

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
                                       rng_range(&rng, 0, 1) == 0, false };
    const ffa_dtype grad_dtype = rng_range(&rng, 0, 2) || dtype == FFA_FP64 ? dtype : FFA_FP32;
    struct cpu_case c;
    char name[64];

    snprintf(name, sizeof name, "dtype %d, seed %llu", (int)dtype, (unsigned long long)seed);
    cpu_case_init(&c, &shape, value_dims[seed % 5], grad_dtype, &rng);
    cpu_case_set_mask(&c, drawn.slices, drawn.count, rng_range(&rng, 0, 2) ? 1 : layout[1]);
    if (rng_range(&rng, 0, 3) == 0)
        c.test.args.softcap = 2;
    if (rng_range(&rng, 0, 3) == 0) {
        for (int32_t i = 0; i < 16; i++)
            attention_put(c.sink, attention_sum_dtype(dtype), i, rng_bell(&rng));
        c.test.args.sink = c.sink;
        c.test.args.sink_count = (int32_t)rng_range(&rng, 1, 2);
        c.reference.dsink = c.dsink;
    }
    if (rng_range(&rng, 0, 1))
        c.reference.dlse = c.gradients.dlse;
    cpu_case_forward(&c, &opts, 2, seed % 2 == 0);
    cpu_case_compare(&c.test, c.lists, c.reference.forward.list_count, name);
    cpu_case_backward(&c, &opts, 2, seed % 2 == 0);
    cpu_case_compare_gradients(&c, name);
    cpu_case_finish(&c);
    free(drawn.slices);
}

START_TEST(as_the_oracle)
{
    for (uint64_t seed = 1; seed <= ROUNDS; seed++)
        random_case(dtypes[_i], seed + 100 * (uint64_t)_i);
}
END_TEST

/* ---- masks of the file ---- */

/* Attended: what a debug build under a sanitizer does in a second. */
enum { FORWARD_CELLS_MAX = 300000, BACKWARD_CELLS_MAX = 60000 };

START_TEST(cases_as_the_oracle)
{
    struct mask_cases cases = mask_cases_load();
    const struct tile_options opts = { 64, 48, false, false };
    int64_t forward = 0, backward = 0;

    for (int64_t i = _i; i < cases.count; i += 4) {
        const struct mask_case *from = &cases.at[i];
        const struct attention_shape shape = { from->shape, dtypes[_i], 2, 1, 8, LAYOUT_TOKENS };
        struct rng rng = { 11 };
        struct cpu_case c;

        if (from->area > FORWARD_CELLS_MAX)
            continue;
        cpu_case_init(&c, &shape, 0, dtypes[_i], &rng);
        cpu_case_set_mask(&c, from->slices, from->count, 1);
        cpu_case_forward(&c, &opts, 2, false);
        cpu_case_compare(&c.test, c.lists, 1, from->name);
        forward++;
        if (from->area <= BACKWARD_CELLS_MAX) {
            cpu_case_backward(&c, &opts, 2, false);
            cpu_case_compare_gradients(&c, from->name);
            backward++;
        }
        cpu_case_finish(&c);
    }
    ck_assert_int_ge(forward, 5);
    ck_assert_int_ge(backward, 4);
    mask_cases_free(&cases);
}
END_TEST

/* A longer mask, of which the oracle computes samples only; the gradients from the backend's own
 * out and lse. */
START_TEST(samples_as_the_oracle)
{
    struct mask_cases cases = mask_cases_load();
    const struct mask_case *from = mask_cases_find(&cases, "varlen_causal_4096");
    const struct attention_shape shape = { from->shape, FFA_BF16, 2, 1, 4, LAYOUT_TOKENS };
    const struct tile_options opts = { 64, 128, false, false };
    const struct oracle_tolerance tolerance = oracle_tolerance_of(FFA_BF16);
    struct rng rng = { 12 };
    struct oracle_sample *rows, *keys;
    struct oracle_result want;
    struct oracle_report report;
    struct oracle_case *forward;
    struct cpu_case c;

    cpu_case_init(&c, &shape, 0, FFA_BF16, &rng);
    cpu_case_set_mask(&c, from->slices, from->count, 1);
    forward = &c.reference.forward;
    cpu_case_forward(&c, &opts, 2, false);
    cpu_case_backward(&c, &opts, 2, false);
    forward->sample_count = oracle_samples(forward, opts.tile_m, 1, 128, &rows);
    c.reference.key_sample_count = oracle_key_samples(forward, opts.tile_n, 1, 96, &keys);
    ck_assert_int_gt(forward->sample_count, 100);
    ck_assert_int_gt(c.reference.key_sample_count, 70);
    forward->samples = rows;
    c.reference.key_samples = keys;
    ck_assert_int_eq(oracle_forward(&want, forward, NULL), FFA_OK);
    oracle_compare(&report, forward, &want, &tolerance);
    ck_assert_msg(report.passed, "%s", report.reason);
    ck_assert_int_eq(report.compared, forward->sample_count);
    c.reference.use_out = true;
    cpu_case_compare_gradients(&c, from->name);
    oracle_result_finish(&want);
    free(rows);
    free(keys);
    cpu_case_finish(&c);
    mask_cases_free(&cases);
}
END_TEST

/* ---- what rows do not attend ---- */

/* Row i attends key i alone, or keys below i; half of the keys and values are NaN. */
START_TEST(unattended_keys_never_reach_a_row)
{
    static const struct {
        const char *name;
        ffa_slice slice;
    } rows[] = {
        { "diagonal", { 0, 40, 0, 40, FFA_SLICE_BICAUSAL, 0 } },
        { "causal", { 0, 40, 0, 40, FFA_SLICE_CAUSAL, 0 } },
        { "inverse causal", { 0, 40, 0, 40, FFA_SLICE_INVCAUSAL, 0 } },
        { "one block", { 0, 40, 8, 20, FFA_SLICE_FULL, 0 } },
    };
    const struct attention_shape shape = { { 40, 40 }, FFA_FP32, 2, 1, 8, LAYOUT_HEADS };
    const struct tile_options opts = { 16, 16, false, false };
    const ffa_slice_list list = { &rows[_i].slice, 1 };
    struct rng rng = { 5 };
    struct attention_case test;
    struct oracle_case reference;
    struct oracle_result want;
    ffa_mask *mask;

    attention_case_init(&test, &shape, &rng);
    for (int64_t k = 1; k < 40; k += 2)
        for (int32_t c = 0; c < 8; c++) {
            attention_write(&test.args.k, FFA_FP32, k, 0, c, NAN);
            attention_write(&test.args.v, FFA_FP32, k, 0, c, c % 2 ? (double)INFINITY : NAN);
        }
    ck_assert_int_eq(ffa_mask_create(&mask, &shape.mask, &rows[_i].slice, 1, NULL), FFA_OK);
    ck_assert_int_eq(cpu_case_run(&test, mask, &opts, 1, false, NULL), FFA_OK);

    /* The oracle never looks at unattended keys: a row is NaN exactly where it attends one. */
    reference = cpu_case_oracle(&test, &list, 1);
    ck_assert_int_eq(oracle_forward(&want, &reference, NULL), FFA_OK);
    for (int64_t r = 0; r < 40; r++)
        for (int32_t h = 0; h < 2; h++) {
            const double lse =
                attention_read(&test.args.lse, attention_sum_dtype(test.shape.dtype), r, h, 0);

            ck_assert_msg(isnan(lse) == isnan(want.lse[r * 2 + h]), "%s: row %lld", rows[_i].name,
                          (long long)r);
            for (int32_t c = 0; c < 8; c++)
                ck_assert_msg(isnan(attention_read(&test.args.out, FFA_FP32, r, h, c)) ==
                                  isnan(want.out[(r * 2 + h) * 8 + c]),
                              "%s: row %lld", rows[_i].name, (long long)r);
        }
    oracle_result_finish(&want);
    attention_case_finish(&test);
    ffa_mask_destroy(mask);
}
END_TEST

START_TEST(rows_without_keys)
{
    const ffa_slice slice = { 10, 20, 0, 5, FFA_SLICE_CAUSAL, 0 }; /* rows 10 to 14: none, too */
    const struct attention_shape shape = { { 33, 7 }, dtypes[_i], 2, 2, 8, LAYOUT_PADDED };
    const struct tile_options opts = { 16, 16, false, false };
    struct rng rng = { 6 };
    struct attention_case test;
    struct oracle_case poison;
    ffa_mask *mask;

    attention_case_init(&test, &shape, &rng);
    poison = cpu_case_oracle(&test, NULL, 0);
    oracle_poison(&poison);
    ck_assert_int_eq(ffa_mask_create(&mask, &shape.mask, &slice, 1, NULL), FFA_OK);
    ck_assert_int_eq(cpu_case_run(&test, mask, &opts, 3, false, NULL), FFA_OK);
    for (int64_t r = 0; r < 33; r++)
        for (int32_t h = 0; h < 2; h++) {
            const bool empty = r < 15 || r >= 20;
            const double lse =
                attention_read(&test.args.lse, attention_sum_dtype(test.shape.dtype), r, h, 0);

            ck_assert_msg(empty == (lse == -INFINITY), "row %lld has lse %g", (long long)r, lse);
            for (int32_t c = 0; c < 8 && empty; c++)
                ck_assert(attention_read(&test.args.out, dtypes[_i], r, h, c) == 0);
        }
    attention_case_finish(&test);
    ffa_mask_destroy(mask);
}
END_TEST

/* Scores of -inf: weight 0, and no NaN from -inf - -inf; of huge size: no overflow. */
START_TEST(scores_at_the_limits)
{
    const ffa_slice slice = { 0, 3, 0, 4, FFA_SLICE_FULL, 0 };
    const struct attention_shape shape = { { 3, 4 }, FFA_FP32, 1, 1, 1, LAYOUT_TOKENS };
    const struct tile_options opts = { 16, 2, false, false };
    static const double q[] = { 1, 1e30, -1e30 };
    static const double k[] = { -INFINITY, -1e30, 1, 2 };
    struct rng rng = { 7 };
    struct attention_case test;
    ffa_mask *mask;

    attention_case_init(&test, &shape, &rng);
    for (int64_t i = 0; i < 3; i++)
        attention_write(&test.args.q, FFA_FP32, i, 0, 0, q[i]);
    for (int64_t i = 0; i < 4; i++) {
        attention_write(&test.args.k, FFA_FP32, i, 0, 0, k[i]);
        attention_write(&test.args.v, FFA_FP32, i, 0, 0, (double)i);
    }
    ck_assert_int_eq(ffa_mask_create(&mask, &shape.mask, &slice, 1, NULL), FFA_OK);
    ck_assert_int_eq(cpu_case_run(&test, mask, &opts, 1, false, NULL), FFA_OK);
    ck_assert_double_eq_tol(
        attention_read(&test.args.lse, attention_sum_dtype(test.shape.dtype), 0, 0, 0),
        2 + log1p(exp(-1)), 1e-6);
    ck_assert_double_eq_tol(attention_read(&test.args.out, FFA_FP32, 0, 0, 0),
                            (2 * exp(-1) + 3) / (1 + exp(-1)), 1e-6);
    ck_assert(attention_read(&test.args.out, FFA_FP32, 1, 0, 0) == 3);
    ck_assert(isnan(attention_read(&test.args.out, FFA_FP32, 2, 0, 0))); /* a score of +inf */
    attention_case_finish(&test);
    ffa_mask_destroy(mask);
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
    const size_t row_bytes = 110 * 4 * 24 * element, key_bytes = 130 * 2 * 24 * element;
    const size_t bytes[] = { row_bytes, 110 * 4 * sizeof(float), row_bytes, key_bytes, key_bytes };
    struct rng rng = { 8 };
    struct cpu_case c;
    void *results[5], *kept[5];

    cpu_case_init(&c, &shape, 0, dtypes[_i], &rng);
    cpu_case_set_mask(&c, slices, 2, 1);
    cpu_case_forward(&c, &opts, 1, false);
    cpu_case_backward(&c, &opts, 1, false);
    for (int i = 0; i < 5; i++) { /* out, lse, dq, dk, dv */
        results[i] = i < 2 ? c.test.memory[3 + i] : c.gradients.memory[i - 1];
        kept[i] = malloc(bytes[i]);
        memcpy(kept[i], results[i], bytes[i]);
    }
    for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
        cpu_case_forward(&c, &opts, threads[t], false);
        cpu_case_backward(&c, &opts, threads[t], false);
        for (int i = 0; i < 5; i++)
            ck_assert_mem_eq(results[i], kept[i], bytes[i]);
    }
    for (int i = 0; i < 5; i++)
        free(kept[i]);
    cpu_case_finish(&c);
}
END_TEST

/* ---- a pass in phases ---- */

enum { PHASES = 3, PHASE_ROWS = 150, PHASE_KEYS = 200, PHASE_TILES = 5 };

/* Slices [2] without what is outside the keys of the phase. */
static void cut_slices(ffa_slice *to, const ffa_slice *from, int phase)
{
    static const int64_t bounds[PHASES + 1] = { 0, 70, 110, PHASE_KEYS };

    for (int s = 0; s < 2; s++) {
        to[s] = from[s];
        to[s].k_begin = to[s].k_begin > bounds[phase] ? to[s].k_begin : bounds[phase];
        to[s].k_end = to[s].k_end < bounds[phase + 1] ? to[s].k_end : bounds[phase + 1];
        to[s].k_end = to[s].k_end > to[s].k_begin ? to[s].k_end : to[s].k_begin;
    }
}

static int64_t tile_of(const struct plan_tile *tile)
{
    return tile->begin / 32;
}

/* Keep the tiles that a phase works on, marked with what comes before and after. Tiles without work
 * anywhere are the first phase's. */
static void mark_phases(struct tile_plan *plans)
{
    int first[PHASE_TILES], last[PHASE_TILES];

    for (int t = 0; t < PHASE_TILES; t++)
        first[t] = last[t] = -1;
    for (int p = 0; p < PHASES; p++)
        for (int64_t t = 0; t < plans[p].tile_count; t++)
            if (plans[p].tiles[t].sweep_count > 0) {
                const int64_t at = tile_of(&plans[p].tiles[t]);

                first[at] = first[at] < 0 ? p : first[at];
                last[at] = p;
            }
    for (int p = 0; p < PHASES; p++) {
        int64_t kept = 0;

        for (int64_t t = 0; t < plans[p].tile_count; t++) {
            struct plan_tile tile = plans[p].tiles[t];
            const int64_t at = tile_of(&tile);

            if (tile.sweep_count == 0 && (p > 0 || first[at] >= 0))
                continue;
            if (tile.sweep_count > 0)
                tile.flags = (uint16_t)((first[at] == p ? 0 : PLAN_TILE_MERGES) |
                                        (last[at] == p ? 0 : PLAN_TILE_CONTINUES));
            plans[p].tiles[kept++] = tile;
        }
        plans[p].tile_count = kept;
        plans[p].list_begin[1] = (int32_t)kept;
    }
}

/* Rows 0-31 attend keys of the first phase only, the next of all three, the last nothing. A sink
 * enters once; what a phase may not read holds NaN. */
START_TEST(a_pass_in_phases_is_the_whole_pass)
{
    const ffa_slice slices[2] = { { 0, 100, 0, 60, FFA_SLICE_FULL, 0 },
                                  { 40, 120, 50, PHASE_KEYS, FFA_SLICE_FULL, 0 } };
    const struct attention_shape shape = {
        { PHASE_ROWS, PHASE_KEYS }, _i ? FFA_FP64 : FFA_FP32, 4, 2, 24, LAYOUT_TOKENS
    };
    const struct tile_options opts = { 32, 48, true, false };
    const float sink[4] = { -1, 0.5f, 2, -30 };
    const double sink_fp64[4] = { -1, 0.5, 2, -30 };
    const ffa_slice_list list = { slices, 2 };
    const size_t bytes = (size_t)PHASE_ROWS * 4 * 24 * sizeof(double);
    void *sum_out = malloc(bytes), *sum_lse = malloc(bytes / 24);
    double max_logits[4]; /* room for either width */
    struct tile_plan plans[PHASES];
    struct rng rng = { 12 };
    struct oracle_case reference;
    struct oracle_result want;
    struct attention_case test;

    memset(sum_out, 0xff, bytes);
    memset(sum_lse, 0xff, bytes / 24);
    attention_case_init(&test, &shape, &rng);
    test.args.sink = _i ? (const void *)sink_fp64 : sink;
    cpu_max_logits_init(max_logits, attention_sum_dtype(shape.dtype), 4);
    test.args.sink_count = 1;
    test.args.softcap = 1.5f;
    for (int p = 0; p < PHASES; p++) {
        ffa_slice cut[2];
        ffa_mask *mask;

        cut_slices(cut, slices, p);
        ck_assert_int_eq(ffa_mask_create(&mask, &shape.mask, cut, 2, NULL), FFA_OK);
        ck_assert_int_eq(tile_build(&plans[p], mask, TILE_OWNS_QUERIES, &opts, NULL), FFA_OK);
        ffa_mask_destroy(mask);
    }
    mark_phases(plans);
    for (int p = 0; p < PHASES; p++) {
        const struct cpu_forward call = { .plan = &plans[p],
                                          .args = CPU_ARGS(test.args),
                                          .dtype = shape.dtype,
                                          .head_dim = 24,
                                          .threads = 2,
                                          .max_logits = max_logits,
                                          .sum_out = sum_out,
                                          .sum_lse = sum_lse };

        ck_assert_int_eq(cpu_forward(&call, NULL), FFA_OK);
    }
    cpu_case_compare(&test, &list, 1, "phases");
    reference = cpu_case_oracle(&test, &list, 1);
    ck_assert_int_eq(oracle_forward(&want, &reference, NULL), FFA_OK);
    for (int h = 0; h < 4; h++) {
        double top = -INFINITY;

        for (int64_t row = 0; row < PHASE_ROWS; row++)
            top = fmax(top, want.top[row * 4 + h]);
        ck_assert_double_eq_tol(attention_get(max_logits, attention_sum_dtype(shape.dtype), h), top,
                                _i ? 1e-14 : 1e-6);
    }
    oracle_result_finish(&want);
    for (int p = 0; p < PHASES; p++)
        tile_finish(&plans[p]);
    attention_case_finish(&test);
    free(sum_out);
    free(sum_lse);
}
END_TEST

/* ---- no memory ---- */

struct faulty {
    struct cpu_case c;
    struct tile_plan forward;
    struct tile_plan backward;
};

static ffa_status run_forward(struct faulty *f, ffa_error *err)
{
    const struct cpu_forward call = { .plan = &f->forward,
                                      .args = CPU_ARGS(f->c.test.args),
                                      .dtype = FFA_BF16,
                                      .head_dim = 8,
                                      .threads = 4 };

    return cpu_forward(&call, err);
}

static ffa_status run_backward(struct faulty *f, ffa_error *err)
{
    const struct cpu_backward call = cpu_case_call(&f->c, &f->backward, 4, false);

    return cpu_backward(&call, err);
}

/* Returns how many allocations there are, and one. */
static long count_allocations(struct faulty *f, ffa_status (*run)(struct faulty *, ffa_error *))
{
    for (long nth = 1;; nth++) {
        ffa_error err = { FFA_OK, 0, "" };
        ffa_status rc;

        fault_arm(FAULT_ALLOC, nth);
        rc = run(f, &err);
        if (!fault_fired()) {
            fault_arm(FAULT_ALLOC, 0);
            return nth;
        }
        ck_assert_int_eq(rc, FFA_NOMEM);
        ck_assert_str_ne(err.message, "");
    }
}

START_TEST(any_allocation_may_fail)
{
    const ffa_slice slice = { 0, 50, 0, 50, FFA_SLICE_CAUSAL, 0 };
    const struct attention_shape shape = { { 50, 50 }, FFA_BF16, 2, 1, 8, LAYOUT_TOKENS };
    const struct tile_options opts = { 16, 16, false, false };
    struct rng rng = { 9 };
    struct faulty f;

    cpu_case_init(&f.c, &shape, 0, FFA_BF16, &rng);
    cpu_case_set_mask(&f.c, &slice, 1, 1);
    ck_assert_int_eq(tile_build(&f.forward, f.c.mask, TILE_OWNS_QUERIES, &opts, NULL), FFA_OK);
    ck_assert_int_eq(tile_build(&f.backward, f.c.mask, TILE_OWNS_KEYS, &opts, NULL), FFA_OK);
    /* The workers, and each one's scratch; backward delta, too. */
    ck_assert_int_eq(count_allocations(&f, run_forward), 6);
    cpu_case_compare(&f.c.test, f.c.lists, 1, "after the faults");
    ck_assert_int_eq(count_allocations(&f, run_backward), 7);
    cpu_case_compare_gradients(&f.c, "after the faults");
    tile_finish(&f.forward);
    tile_finish(&f.backward);
    cpu_case_finish(&f.c);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cpu");
    TCase *tc = tcase_create("cpu");

    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, as_the_oracle, 0, 4);
    tcase_add_loop_test(tc, cases_as_the_oracle, 0, 4);
    tcase_add_test(tc, samples_as_the_oracle);
    tcase_add_loop_test(tc, unattended_keys_never_reach_a_row, 0, 4);
    tcase_add_loop_test(tc, rows_without_keys, 0, 4);
    tcase_add_test(tc, scores_at_the_limits);
    tcase_add_loop_test(tc, the_number_of_threads_changes_nothing, 0, 4);
    tcase_add_loop_test(tc, a_pass_in_phases_is_the_whole_pass, 0, 2);
    tcase_add_test(tc, any_allocation_may_fail);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
