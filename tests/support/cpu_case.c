/* SPDX-License-Identifier: Apache-2.0
 *
 * The CPU backend on one problem, without contexts and kernels, compared with the fp64 oracle.
 *
 * Outputs are poisoned before a pass, so that the comparison sees an element that was not written.
 */
#include "support/cpu_case.h"

#include <check.h>

ffa_status cpu_case_run(struct attention_case *test, const ffa_mask *mask,
                        const struct tile_options *opts, int32_t threads, bool fp64, ffa_error *err)
{
    struct tile_plan plan;
    ffa_status rc = tile_build(&plan, mask, TILE_OWNS_QUERIES, opts, err);
    const struct cpu_forward call = { .plan = &plan,
                                      .args = CPU_ARGS(test->args),
                                      .dtype = test->shape.dtype,
                                      .head_dim = test->shape.head_dim,
                                      .head_dim_v = test->head_dim_v,
                                      .threads = threads,
                                      .fp64 = fp64 };

    if (rc == FFA_OK)
        rc = cpu_forward(&call, err);
    tile_finish(&plan);
    return rc;
}

struct oracle_case cpu_case_oracle(const struct attention_case *test, const ffa_slice_list *lists,
                                   int32_t list_count)
{
    return (struct oracle_case){ .shape = test->shape.mask,
                                 .lists = lists,
                                 .list_count = list_count,
                                 .head_dim = test->shape.head_dim,
                                 .head_dim_v = test->head_dim_v,
                                 .dtype = test->shape.dtype,
                                 .threads = 2,
                                 .args = &test->args };
}

void cpu_case_compare(const struct attention_case *test, const ffa_slice_list *lists,
                      int32_t list_count, const char *name)
{
    const struct oracle_case reference = cpu_case_oracle(test, lists, list_count);
    const struct oracle_tolerance tolerance = oracle_tolerance_of(test->shape.dtype);
    struct oracle_result want;
    struct oracle_report report;

    ck_assert_int_eq(oracle_forward(&want, &reference, NULL), FFA_OK);
    oracle_compare(&report, &reference, &want, &tolerance);
    ck_assert_msg(report.passed, "%s: %s (NaN %lld, unwritten %lld)", name, report.reason,
                  (long long)report.nan_count, (long long)report.unwritten_count);
    oracle_result_finish(&want);
}

void cpu_case_init(struct cpu_case *c, const struct attention_shape *shape, int32_t head_dim_v,
                   ffa_dtype grad_dtype, struct rng *rng)
{
    *c = (struct cpu_case){ 0 };
    attention_case_init_v(&c->test, shape, head_dim_v, rng);
    attention_gradients_init(&c->gradients, &c->test, grad_dtype, rng);
    c->reference = (struct oracle_backward_case){
        .forward = { .shape = shape->mask,
                     .lists = c->lists,
                     .list_count = 1,
                     .head_dim = shape->head_dim,
                     .head_dim_v = head_dim_v,
                     .dtype = shape->dtype,
                     .threads = 2,
                     .args = &c->test.args },
        .grad_dtype = grad_dtype,
        .dout = c->gradients.dout,
        .dq = c->gradients.dq,
        .dk = c->gradients.dk,
        .dv = c->gradients.dv,
    };
}

void cpu_case_set_mask(struct cpu_case *c, const ffa_slice *slices, int64_t count,
                       int32_t list_count)
{
    for (int32_t l = 0; l < list_count; l++)
        c->lists[l] = (ffa_slice_list){ slices, count / (l + 1) };
    c->reference.forward.list_count = list_count;
    ck_assert_int_eq(
        ffa_mask_create_per_head(&c->mask, &c->test.shape.mask, c->lists, list_count, NULL),
        FFA_OK);
}

void cpu_case_finish(struct cpu_case *c)
{
    ffa_mask_destroy(c->mask);
    attention_gradients_finish(&c->gradients);
    attention_case_finish(&c->test);
}

struct cpu_backward cpu_case_call(struct cpu_case *c, const struct tile_plan *plan, int32_t threads,
                                  bool fp64)
{
    return (struct cpu_backward){ .plan = plan,
                                  .args = CPU_ARGS(c->test.args),
                                  .dout = CPU_TENSOR(c->gradients.dout),
                                  .dlse = CPU_TENSOR(c->reference.dlse),
                                  .dq = CPU_TENSOR(c->gradients.dq),
                                  .dk = CPU_TENSOR(c->gradients.dk),
                                  .dv = CPU_TENSOR(c->gradients.dv),
                                  .dsink = c->reference.dsink,
                                  .dtype = c->test.shape.dtype,
                                  .grad_dtype = c->gradients.grad_dtype,
                                  .head_dim = c->test.shape.head_dim,
                                  .head_dim_v = c->test.head_dim_v,
                                  .threads = threads,
                                  .fp64 = fp64 };
}

void cpu_case_forward(struct cpu_case *c, const struct tile_options *opts, int32_t threads,
                      bool fp64)
{
    oracle_poison(&c->reference.forward);
    ck_assert_int_eq(cpu_case_run(&c->test, c->mask, opts, threads, fp64, NULL), FFA_OK);
}

void cpu_case_backward(struct cpu_case *c, const struct tile_options *opts, int32_t threads,
                       bool fp64)
{
    struct tile_plan plan;
    struct cpu_backward call;

    oracle_backward_poison(&c->reference);
    ck_assert_int_eq(tile_build(&plan, c->mask, TILE_OWNS_KEYS, opts, NULL), FFA_OK);
    call = cpu_case_call(c, &plan, threads, fp64);
    ck_assert_int_eq(cpu_backward(&call, NULL), FFA_OK);
    tile_finish(&plan);
}

void cpu_case_compare_gradients(const struct cpu_case *c, const char *name)
{
    const struct oracle_backward_tolerance tolerance =
        oracle_backward_tolerance_of(c->test.shape.dtype, c->test.shape.mask.seqlen_k);
    struct oracle_gradients want;
    struct oracle_backward_report report;

    ck_assert_int_eq(oracle_backward(&want, &c->reference, NULL), FFA_OK);
    oracle_backward_compare(&report, &c->reference, &want, &tolerance);
    ck_assert_msg(report.passed, "%s: %s (NaN %lld, unwritten %lld)", name, report.reason,
                  (long long)report.nan_count, (long long)report.unwritten_count);
    oracle_gradients_finish(&want);
}
