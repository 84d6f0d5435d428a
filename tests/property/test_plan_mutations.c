/* SPDX-License-Identifier: Apache-2.0
 *
 * Would the tests see a wrong plan? One bound of a good plan is moved; then the integer execution
 * must differ from the slices, and the numbers of the CPU backend from the oracle's count of keys.
 *
 * The counting test: with q = 0 all scores are 0, so exp(lse) is the number of keys of the row,
 * whatever k holds. A tolerance on random scores would miss one key in a long row.
 */
#include "cli/oracle.h"
#include "cpu/cpu.h"
#include "support/attention_case.h"
#include "support/coverage.h"

#include <check.h>
#include <math.h>

enum { ROWS = 200, KEYS = 180, DIM = 8 };

static const struct tile_options opts = { 32, 16, false, false };

/* Every kind of bound occurs: both slopes, gaps, second sweeps, rows without keys, full blocks. */
static const ffa_slice slices[] = {
    { 0, 50, 0, 100, FFA_SLICE_FULL, 0 },         { 50, 110, 20, 120, FFA_SLICE_CAUSAL, 0 },
    { 50, 110, 130, 150, FFA_SLICE_FULL, 0 },     { 110, 150, 10, 130, FFA_SLICE_BICAUSAL, 0 },
    { 155, 200, 0, 160, FFA_SLICE_INVCAUSAL, 0 }, { 160, 190, 165, 180, FFA_SLICE_CAUSAL, 0 },
};
static const ffa_slice_list list = { slices, sizeof slices / sizeof *slices };

/* ---- what can be moved ---- */

enum array { TILE, SWEEP, BAND };

#define FIELD(array, type, name, by, always)                                                       \
    {                                                                                              \
#name, array, offsetof(struct type, name), by, always                                      \
    }

/* Moved full ranges change a meaning only where a block changes sides, band bounds only outside
 * full blocks: those need not be seen in every entry. */
static const struct mutation {
    const char *name;
    enum array array;
    size_t offset;
    int32_t by;
    bool always; /* seen in each entry */
} mutations[] = {
    FIELD(TILE, plan_tile, row_begin, 1, true),
    FIELD(TILE, plan_tile, row_begin, -1, true),
    FIELD(TILE, plan_tile, row_count, -1, true),
    FIELD(TILE, plan_tile, sweep_count, -1, true),
    FIELD(SWEEP, plan_sweep, k_begin, 1, true),
    FIELD(SWEEP, plan_sweep, k_end, -1, true),
    FIELD(SWEEP, plan_sweep, full_begin, -32, false),
    FIELD(SWEEP, plan_sweep, full_end, 32, false),
    FIELD(SWEEP, plan_sweep, band_count, -1, true),
    FIELD(BAND, plan_band, row_begin, 1, false),
    FIELD(BAND, plan_band, row_end, -1, false),
    FIELD(BAND, plan_band, lo, 1, false),
    FIELD(BAND, plan_band, lo, -1, false),
    FIELD(BAND, plan_band, hi, 1, false),
    FIELD(BAND, plan_band, hi, -1, false),
    FIELD(BAND, plan_band, lo_step, 1, false),
    FIELD(BAND, plan_band, lo_step, -1, false),
    FIELD(BAND, plan_band, hi_step, 1, false),
    FIELD(BAND, plan_band, hi_step, -1, false),
};

static int32_t *field_of(struct tile_plan *plan, const struct mutation *mutation, int64_t index)
{
    char *base = mutation->array == TILE    ? (char *)&plan->tiles[index]
                 : mutation->array == SWEEP ? (char *)&plan->sweeps[index]
                                            : (char *)&plan->bands[index];

    return (int32_t *)(void *)(base + mutation->offset);
}

static int64_t entries_of(const struct tile_plan *plan, enum array array)
{
    return array == TILE ? plan->tile_count : array == SWEEP ? plan->sweep_count : plan->band_count;
}

/* ---- the two checks ---- */

static bool covers(const struct tile_plan *plan)
{
    struct coverage_text why;

    return coverage_rows(plan, &list, &why);
}

/* Whether exp(lse) is the number of keys of every row, and out their mean of v, which is a line in
 * the key, so that one key for another shows, too. */
static bool counts(const struct tile_plan *plan, struct attention_case *test,
                   const struct oracle_result *want)
{
    const struct cpu_forward call = {
        .plan = plan, .args = &test->args, .dtype = FFA_FP32, .head_dim = DIM, .threads = 1
    };
    const struct oracle_case poison = { { ROWS, KEYS }, &list, 1, DIM, FFA_FP32, 1,
                                        &test->args,    NULL,  0, 0,   0 };
    ffa_error err = { FFA_OK, 0, "" };

    oracle_poison(&poison);
    ck_assert_msg(cpu_forward(&call, &err) == FFA_OK, "%s", err.message);
    for (int64_t r = 0; r < ROWS; r++) {
        const double got = exp(attention_read(&test->args.lse, FFA_FP32, r, 0, 0));
        const double mean = attention_read(&test->args.out, FFA_FP32, r, 0, 0);

        if (llround(got) != llround(exp(want->lse[r])) || isnan(got))
            return false;
        if (!(fabs(mean - want->out[r * DIM]) < 1e-3))
            return false;
    }
    return true;
}

/* ---- the test ---- */

static struct attention_case counting_case(struct rng *rng)
{
    const struct attention_shape shape = { { ROWS, KEYS }, FFA_FP32, 1, 1, DIM, LAYOUT_TOKENS };
    struct attention_case test;

    attention_case_init(&test, &shape, rng);
    for (int64_t r = 0; r < ROWS; r++)
        for (int32_t c = 0; c < DIM; c++)
            attention_write(&test.args.q, FFA_FP32, r, 0, c, 0);
    for (int64_t k = 0; k < KEYS; k++)
        attention_write(&test.args.v, FFA_FP32, k, 0, 0, (double)k);
    return test;
}

/* A moved bound may leave the plan's meaning as it is: a step of a band of one row, a full range
 * that gains no block. Such entries are told apart by the execution in integers. */
START_TEST(a_moved_bound_is_seen)
{
    const struct mutation *mutation = &mutations[_i];
    const ffa_mask_shape shape = { ROWS, KEYS };
    struct rng rng = { 3 };
    struct attention_case test = counting_case(&rng);
    const struct oracle_case reference = { shape,      &list, 1, DIM, FFA_FP32, 2,
                                           &test.args, NULL,  0, 0,   0 };
    struct oracle_result want;
    struct tile_plan plan;
    ffa_mask *mask;
    int64_t seen = 0, moved = 0;

    ck_assert_int_eq(ffa_mask_create(&mask, &shape, slices, list.count, NULL), FFA_OK);
    ck_assert_int_eq(tile_build(&plan, mask, &opts, NULL), FFA_OK);
    ck_assert_int_eq(oracle_forward(&want, &reference, NULL), FFA_OK);
    ck_assert(covers(&plan));
    ck_assert(counts(&plan, &test, &want));

    for (int64_t i = 0; i < entries_of(&plan, mutation->array); i++) {
        int32_t *value = field_of(&plan, mutation, i);
        const int32_t before = *value;
        bool covered, counted;

        *value += mutation->by;
        if (*value < 0 ||
            (mutation->array == TILE && plan.tiles[i].row_begin + plan.tiles[i].row_count > ROWS)) {
            *value = before;
            continue; /* outside the tensors */
        }
        covered = covers(&plan);
        counted = counts(&plan, &test, &want);
        ck_assert_msg(covered == counted, "%s of %lld by %d: coverage %s, numbers %s",
                      mutation->name, (long long)i, mutation->by, covered ? "good" : "bad",
                      counted ? "good" : "bad");
        moved++;
        seen += !covered;
        *value = before;
    }
    ck_assert_msg(seen > 0 && (!mutation->always || seen == moved),
                  "%s by %d: seen in %lld of %lld", mutation->name, mutation->by, (long long)seen,
                  (long long)moved);
    ck_assert(covers(&plan));

    oracle_result_finish(&want);
    tile_finish(&plan);
    ffa_mask_destroy(mask);
    attention_case_finish(&test);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("plan mutations");
    TCase *tc = tcase_create("plan mutations");
    SRunner *runner;
    int failed;

    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, a_moved_bound_is_seen, 0, sizeof mutations / sizeof *mutations);
    suite_add_tcase(suite, tc);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
