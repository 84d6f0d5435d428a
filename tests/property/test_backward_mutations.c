/* SPDX-License-Identifier: Apache-2.0
 *
 * Would the tests see a wrong backward plan? One bound of a good plan is moved; then the integer
 * execution must differ from the slices, and the gradients of the CPU backend from the oracle's.
 * In fp64 and on few tokens a single wrong cell shows in the numbers.
 */
#include "cli/oracle_backward.h"
#include "cpu/cpu.h"
#include "support/attention_case.h"
#include "support/coverage.h"

#include <check.h>
#include <math.h>

enum { ROWS = 180, KEYS = 200, DIM = 4 };

static const struct tile_options opts = { 16, 32, false, false };

/* Every kind of bound occurs: both slopes, gaps, second sweeps, keys without rows, full blocks. */
static const ffa_slice slices[] = {
    { 0, 100, 0, 50, FFA_SLICE_FULL, 0 },          { 20, 120, 50, 110, FFA_SLICE_CAUSAL, 0 },
    { 130, 150, 50, 110, FFA_SLICE_FULL, 0 },      { 10, 130, 110, 150, FFA_SLICE_INVCAUSAL, 0 },
    { 0, 160, 155, 200, FFA_SLICE_CAUSAL, 0 },     { 165, 180, 160, 190, FFA_SLICE_BICAUSAL, 0 },
    { 150, 165, 100, 130, FFA_SLICE_BICAUSAL, 0 },
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
    FIELD(TILE, backward_tile, key_begin, 1, true),
    FIELD(TILE, backward_tile, key_begin, -1, true),
    FIELD(TILE, backward_tile, key_count, -1, true),
    FIELD(TILE, backward_tile, sweep_count, -1, true),
    FIELD(SWEEP, backward_sweep, q_begin, 1, true),
    FIELD(SWEEP, backward_sweep, q_end, -1, true),
    FIELD(SWEEP, backward_sweep, full_begin, -32, false),
    FIELD(SWEEP, backward_sweep, full_end, 32, false),
    FIELD(SWEEP, backward_sweep, band_count, -1, true),
    FIELD(BAND, backward_band, key_begin, 1, false),
    FIELD(BAND, backward_band, key_end, -1, false),
    FIELD(BAND, backward_band, lo, 1, false),
    FIELD(BAND, backward_band, lo, -1, false),
    FIELD(BAND, backward_band, hi, 1, false),
    FIELD(BAND, backward_band, hi, -1, false),
    FIELD(BAND, backward_band, lo_step, 1, false),
    FIELD(BAND, backward_band, lo_step, -1, false),
    FIELD(BAND, backward_band, hi_step, 1, false),
    FIELD(BAND, backward_band, hi_step, -1, false),
};

static int32_t *field_of(struct backward_plan *plan, const struct mutation *mutation, int64_t index)
{
    char *base = mutation->array == TILE    ? (char *)&plan->tiles[index]
                 : mutation->array == SWEEP ? (char *)&plan->sweeps[index]
                                            : (char *)&plan->bands[index];

    return (int32_t *)(void *)(base + mutation->offset);
}

static int64_t entries_of(const struct backward_plan *plan, enum array array)
{
    return array == TILE ? plan->tile_count : array == SWEEP ? plan->sweep_count : plan->band_count;
}

/* ---- the two checks ---- */

static bool covers(const struct backward_plan *plan)
{
    struct coverage_text why;

    return coverage_keys(plan, &list, &why);
}

struct problem {
    struct attention_case test;
    struct attention_gradients gradients;
    struct oracle_backward_case reference;
    struct oracle_gradients want;
};

/* The largest difference that a good plan may leave: lse is stored in fp32. */
static bool is_near(const ffa_tensor *tensor, const struct oracle_gradient *want)
{
    for (int64_t i = 0; i < want->count; i++)
        for (int32_t c = 0; c < DIM; c++)
            if (!(fabs(attention_read(tensor, FFA_FP64, i, 0, c) - want->at[i * DIM + c]) < 1e-5))
                return false;
    return true;
}

static bool computes(const struct backward_plan *plan, struct problem *p)
{
    const struct cpu_backward call = { .plan = plan,
                                       .args = &p->test.args,
                                       .dout = p->gradients.dout,
                                       .dq = p->gradients.dq,
                                       .dk = p->gradients.dk,
                                       .dv = p->gradients.dv,
                                       .dtype = FFA_FP64,
                                       .grad_dtype = FFA_FP64,
                                       .head_dim = DIM,
                                       .threads = 1 };

    oracle_backward_poison(&p->reference);
    ck_assert_int_eq(cpu_backward(&call, NULL), FFA_OK);
    return is_near(&p->gradients.dq, &p->want.dq) && is_near(&p->gradients.dk, &p->want.dk) &&
           is_near(&p->gradients.dv, &p->want.dv);
}

/* ---- the test ---- */

static void problem_init(struct problem *p, const ffa_mask *mask)
{
    const struct attention_shape shape = { { ROWS, KEYS }, FFA_FP64, 1, 1, DIM, LAYOUT_TOKENS };
    struct rng rng = { 3 };
    struct tile_plan plan;
    const struct cpu_forward forward = { .plan = &plan,
                                         .args = &p->test.args,
                                         .dtype = FFA_FP64,
                                         .head_dim = DIM,
                                         .threads = 1,
                                         .fp64 = true };

    attention_case_init(&p->test, &shape, &rng);
    attention_gradients_init(&p->gradients, &p->test, FFA_FP64, &rng);
    p->test.args.softmax_scale = 0.1f; /* even weights: each cell counts */
    p->reference = (struct oracle_backward_case){
        .forward = { .shape = shape.mask,
                     .lists = &list,
                     .list_count = 1,
                     .head_dim = DIM,
                     .dtype = FFA_FP64,
                     .threads = 1,
                     .args = &p->test.args },
        .grad_dtype = FFA_FP64,
        .dout = p->gradients.dout,
        .dq = p->gradients.dq,
        .dk = p->gradients.dk,
        .dv = p->gradients.dv,
    };
    ck_assert_int_eq(tile_build(&plan, mask, &opts, NULL), FFA_OK);
    ck_assert_int_eq(cpu_forward(&forward, NULL), FFA_OK);
    tile_finish(&plan);
    ck_assert_int_eq(oracle_backward(&p->want, &p->reference, NULL), FFA_OK);
}

/* A moved bound may leave the plan's meaning as it is: a step of a band of one key, a full range
 * that gains no block. Such entries are told apart by the execution in integers. */
START_TEST(a_moved_bound_is_seen)
{
    const struct mutation *mutation = &mutations[_i];
    const ffa_mask_shape shape = { ROWS, KEYS };
    struct problem p;
    struct backward_plan plan;
    ffa_mask *mask;
    int64_t seen = 0, moved = 0;

    ck_assert_int_eq(ffa_mask_create(&mask, &shape, slices, list.count, NULL), FFA_OK);
    ck_assert_int_eq(backward_build(&plan, mask, &opts, NULL), FFA_OK);
    problem_init(&p, mask);
    ck_assert(covers(&plan));
    ck_assert(computes(&plan, &p));

    for (int64_t i = 0; i < entries_of(&plan, mutation->array); i++) {
        int32_t *value = field_of(&plan, mutation, i);
        const int32_t before = *value;
        bool covered, computed;

        *value += mutation->by;
        if (*value < 0 ||
            (mutation->array == TILE && plan.tiles[i].key_begin + plan.tiles[i].key_count > KEYS)) {
            *value = before;
            continue; /* outside the tensors */
        }
        covered = covers(&plan);
        computed = computes(&plan, &p);
        ck_assert_msg(covered == computed, "%s of %lld by %d: coverage %s, numbers %s",
                      mutation->name, (long long)i, mutation->by, covered ? "good" : "bad",
                      computed ? "good" : "bad");
        moved++;
        seen += !covered;
        *value = before;
    }
    ck_assert_msg(seen > 0 && (!mutation->always || seen == moved),
                  "%s by %d: seen in %lld of %lld", mutation->name, mutation->by, (long long)seen,
                  (long long)moved);
    ck_assert(covers(&plan));

    oracle_gradients_finish(&p.want);
    attention_gradients_finish(&p.gradients);
    attention_case_finish(&p.test);
    backward_finish(&plan);
    ffa_mask_destroy(mask);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("backward mutations");
    TCase *tc = tcase_create("backward mutations");
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
