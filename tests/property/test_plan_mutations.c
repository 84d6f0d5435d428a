/* SPDX-License-Identifier: Apache-2.0
 *
 * Would the tests see a wrong plan? One bound of a good plan is moved; then the integer execution
 * must differ from the slices, and the numbers of the CPU backend from the oracle's.
 *
 * Forward by counting: with q = 0 all scores are 0, so exp(lse) is the number of keys of the row,
 * whatever k holds. A tolerance on random scores would miss one key in a long row. Backward by
 * gradients in fp64: on few tokens a single wrong cell shows in them.
 */
#include "cpu/cpu.h"
#include "oracle/oracle_backward.h"
#include "support/attention_case.h"
#include "support/coverage.h"
#include "support/plan_fields.h"
#include "support/suite.h"

#include <check.h>
#include <math.h>

enum { DIM = 8 };

/* Every kind of bound occurs: both slopes, gaps, second sweeps, rows (keys, backward) of nothing,
 * full blocks. */
static const ffa_slice forward_slices[] = {
    { 0, 50, 0, 100, FFA_SLICE_FULL, 0 },         { 50, 110, 20, 120, FFA_SLICE_CAUSAL, 0 },
    { 50, 110, 130, 150, FFA_SLICE_FULL, 0 },     { 110, 150, 10, 130, FFA_SLICE_BICAUSAL, 0 },
    { 155, 200, 0, 160, FFA_SLICE_INVCAUSAL, 0 }, { 160, 190, 165, 180, FFA_SLICE_CAUSAL, 0 },
};
static const ffa_slice backward_slices[] = {
    { 0, 100, 0, 50, FFA_SLICE_FULL, 0 },          { 20, 120, 50, 110, FFA_SLICE_CAUSAL, 0 },
    { 130, 150, 50, 110, FFA_SLICE_FULL, 0 },      { 10, 130, 110, 150, FFA_SLICE_INVCAUSAL, 0 },
    { 0, 160, 155, 200, FFA_SLICE_CAUSAL, 0 },     { 165, 180, 160, 190, FFA_SLICE_BICAUSAL, 0 },
    { 150, 165, 100, 130, FFA_SLICE_BICAUSAL, 0 },
};

static const struct {
    ffa_mask_shape shape;
    struct tile_options opts;
    ffa_slice_list list;
} subjects[AXES] = {
    { { 200, 180 },
      { 32, 16, false, false },
      { forward_slices, sizeof forward_slices / sizeof *forward_slices } },
    { { 180, 200 },
      { 16, 32, false, false },
      { backward_slices, sizeof backward_slices / sizeof *backward_slices } },
};

/* ---- what can be moved ---- */

/* Moved full ranges change a meaning only where a block changes sides, band bounds only outside
 * full blocks: those need not be seen in every entry. */
static const struct mutation {
    const char *name;
    enum plan_array array;
    size_t offset;
    int32_t by;
    bool always; /* seen in each entry */
} mutations[] = {
    { "row_begin", TILE_FIELD(begin), 1, true },
    { "row_begin", TILE_FIELD(begin), -1, true },
    { "row_count", TILE_FIELD(count), -1, true },
    { "sweep_count", TILE_FIELD(sweep_count), -1, true },
    { "k_begin", SWEEP_FIELD(begin), 1, true },
    { "k_end", SWEEP_FIELD(end), -1, true },
    { "full_begin", SWEEP_FIELD(full_begin), -32, false },
    { "full_end", SWEEP_FIELD(full_end), 32, false },
    { "band_count", SWEEP_FIELD(band_count), -1, true },
    { "row_begin", BAND_FIELD(begin), 1, false },
    { "row_end", BAND_FIELD(end), -1, false },
    { "lo", BAND_FIELD(lo), 1, false },
    { "lo", BAND_FIELD(lo), -1, false },
    { "hi", BAND_FIELD(hi), 1, false },
    { "hi", BAND_FIELD(hi), -1, false },
    { "lo_step", BAND_FIELD(lo_step), 1, false },
    { "lo_step", BAND_FIELD(lo_step), -1, false },
    { "hi_step", BAND_FIELD(hi_step), 1, false },
    { "hi_step", BAND_FIELD(hi_step), -1, false },
};
enum { MUTATIONS = sizeof mutations / sizeof *mutations };

/* ---- the numbers ---- */

struct problem {
    struct attention_case test;
    struct attention_gradients gradients;
    struct oracle_backward_case reference;
    struct oracle_result want;
    struct oracle_gradients want_gradients;
};

static void problem_init(struct problem *p, enum tile_axis axis, const ffa_mask *mask)
{
    const ffa_dtype dtype = axis == TILE_OWNS_QUERIES ? FFA_FP32 : FFA_FP64;
    const struct attention_shape shape = { subjects[axis].shape, dtype, 1, 1, DIM, LAYOUT_TOKENS };
    struct rng rng = { 3 };
    struct tile_plan plan;

    *p = (struct problem){ 0 };
    attention_case_init(&p->test, &shape, &rng);
    attention_gradients_init(&p->gradients, &p->test, dtype, &rng);
    p->reference = (struct oracle_backward_case){ .forward = { .shape = shape.mask,
                                                               .lists = &subjects[axis].list,
                                                               .list_count = 1,
                                                               .head_dim = DIM,
                                                               .dtype = dtype,
                                                               .threads = 1,
                                                               .args = &p->test.args },
                                                  .grad_dtype = dtype,
                                                  .dout = p->gradients.dout,
                                                  .dq = p->gradients.dq,
                                                  .dk = p->gradients.dk,
                                                  .dv = p->gradients.dv };
    if (axis == TILE_OWNS_QUERIES) {
        for (int64_t r = 0; r < shape.mask.seqlen_q; r++)
            for (int32_t c = 0; c < DIM; c++)
                attention_write(&p->test.args.q, FFA_FP32, r, 0, c, 0);
        for (int64_t k = 0; k < shape.mask.seqlen_k; k++)
            attention_write(&p->test.args.v, FFA_FP32, k, 0, 0, (double)k);
        ck_assert_int_eq(oracle_forward(&p->want, &p->reference.forward, NULL), FFA_OK);
        return;
    }
    p->test.args.softmax_scale = 0.1f; /* even weights: each cell counts */
    ck_assert_int_eq(tile_build(&plan, mask, TILE_OWNS_QUERIES, &subjects[axis].opts, NULL),
                     FFA_OK);
    ck_assert_int_eq(cpu_forward(&(struct cpu_forward){ .plan = &plan,
                                                        .args = CPU_ARGS(p->test.args),
                                                        .dtype = FFA_FP64,
                                                        .head_dim = DIM,
                                                        .threads = 1,
                                                        .fp64 = true },
                                 NULL),
                     FFA_OK);
    tile_finish(&plan);
    ck_assert_int_eq(oracle_backward(&p->want_gradients, &p->reference, NULL), FFA_OK);
}

static void problem_finish(struct problem *p)
{
    oracle_result_finish(&p->want);
    oracle_gradients_finish(&p->want_gradients);
    attention_gradients_finish(&p->gradients);
    attention_case_finish(&p->test);
}

/* Whether exp(lse) is the number of keys of every row, and out their mean of v, which is a line in
 * the key, so that one key for another shows, too. */
static bool counts(const struct tile_plan *plan, const struct problem *p)
{
    const ffa_forward_args *args = &p->test.args;
    const struct cpu_forward call = {
        .plan = plan, .args = CPU_ARGS(*args), .dtype = FFA_FP32, .head_dim = DIM, .threads = 1
    };

    oracle_poison(&p->reference.forward);
    ck_assert_int_eq(cpu_forward(&call, NULL), FFA_OK);
    for (int64_t r = 0; r < plan->shape.seqlen_q; r++) {
        const double got = exp(attention_read(&args->lse, FFA_FP32, r, 0, 0));
        const double mean = attention_read(&args->out, FFA_FP32, r, 0, 0);

        if (llround(got) != llround(exp(p->want.lse[r])) || isnan(got))
            return false;
        if (!(fabs(mean - p->want.out[r * DIM]) < 1e-3))
            return false;
    }
    return true;
}

/* The largest difference that a good plan may leave: lse is stored in fp32. */
static bool is_near(const ffa_tensor *tensor, const struct oracle_gradient *want)
{
    for (int64_t i = 0; i < want->count; i++)
        for (int32_t c = 0; c < DIM; c++)
            if (!(fabs(attention_read(tensor, FFA_FP64, i, 0, c) - want->at[i * DIM + c]) < 1e-5))
                return false;
    return true;
}

static bool differentiates(const struct tile_plan *plan, const struct problem *p)
{
    const struct cpu_backward call = { .plan = plan,
                                       .args = CPU_ARGS(p->test.args),
                                       .dout = CPU_TENSOR(p->gradients.dout),
                                       .dq = CPU_TENSOR(p->gradients.dq),
                                       .dk = CPU_TENSOR(p->gradients.dk),
                                       .dv = CPU_TENSOR(p->gradients.dv),
                                       .dtype = FFA_FP64,
                                       .grad_dtype = FFA_FP64,
                                       .head_dim = DIM,
                                       .threads = 1 };

    oracle_backward_poison(&p->reference);
    ck_assert_int_eq(cpu_backward(&call, NULL), FFA_OK);
    return is_near(&p->gradients.dq, &p->want_gradients.dq) &&
           is_near(&p->gradients.dk, &p->want_gradients.dk) &&
           is_near(&p->gradients.dv, &p->want_gradients.dv);
}

/* ---- the test ---- */

static bool covers(const struct tile_plan *plan)
{
    struct coverage_text why;

    return coverage_lines(plan, &subjects[plan->axis].list, &why);
}

static bool computes(const struct tile_plan *plan, const struct problem *p)
{
    return plan->axis == TILE_OWNS_QUERIES ? counts(plan, p) : differentiates(plan, p);
}

/* A moved bound may leave the plan's meaning as it is: a step of a band of one row, a full range
 * that gains no block. Such entries are told apart by the execution in integers. */
START_TEST(a_moved_bound_is_seen)
{
    const enum tile_axis axis = (enum tile_axis)(_i / MUTATIONS);
    const struct mutation *mutation = &mutations[_i % MUTATIONS];
    const int64_t lines =
        axis == TILE_OWNS_QUERIES ? subjects[axis].shape.seqlen_q : subjects[axis].shape.seqlen_k;
    struct problem p;
    struct tile_plan plan;
    ffa_mask *mask;
    int64_t seen = 0, moved = 0;

    ck_assert_int_eq(ffa_mask_create(&mask, &subjects[axis].shape, subjects[axis].list.slices,
                                     subjects[axis].list.count, NULL),
                     FFA_OK);
    ck_assert_int_eq(tile_build(&plan, mask, axis, &subjects[axis].opts, NULL), FFA_OK);
    problem_init(&p, axis, mask);
    ck_assert(covers(&plan));
    ck_assert(computes(&plan, &p));

    for (int64_t i = 0; i < plan_records(&plan, mutation->array); i++) {
        int32_t *value = plan_field(&plan, mutation->array, mutation->offset, i);
        const int32_t before = *value;
        bool covered, computed;

        *value += mutation->by;
        if (*value < 0 ||
            (mutation->array == PLAN_TILES && plan.tiles[i].begin + plan.tiles[i].count > lines)) {
            *value = before;
            continue; /* outside the tensors */
        }
        covered = covers(&plan);
        computed = computes(&plan, &p);
        ck_assert_msg(covered == computed, "%s, %s of %lld by %d: coverage %s, numbers %s",
                      axis_names[axis], mutation->name, (long long)i, mutation->by,
                      covered ? "good" : "bad", computed ? "good" : "bad");
        moved++;
        seen += !covered;
        *value = before;
    }
    ck_assert_msg(seen > 0 && (!mutation->always || seen == moved),
                  "%s, %s by %d: seen in %lld of %lld", axis_names[axis], mutation->name,
                  mutation->by, (long long)seen, (long long)moved);
    ck_assert(covers(&plan));

    problem_finish(&p);
    tile_finish(&plan);
    ffa_mask_destroy(mask);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("plan mutations");
    TCase *tc = tcase_create("plan mutations");

    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, a_moved_bound_is_seen, 0, AXES * MUTATIONS);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
