/* SPDX-License-Identifier: Apache-2.0
 *
 * Passes in stages on the CPU backend: what all stages make against the oracles of the whole, and
 * what each leaves alone.
 */
#include "attention/attention.h"
#include "oracle/oracle_backward.h"
#include "support/attention_case.h"
#include "support/stage_case.h"
#include "support/suite.h"

#include <check.h>
#include <ffa/ffa.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { HEADS_Q = 4, HEADS_KV = 2, DIM = 16, SINKS = 2, ROUNDS = 60 };

static const ffa_dtype dtypes[] = { FFA_BF16, FFA_FP16, FFA_FP32, FFA_FP64 };

static ffa_context *context;
static const float poison = -77.0f; /* of partial: no sum comes to it */

static void setup(void)
{
    ffa_context_opts opts = FFA_CONTEXT_OPTS_INIT;

    opts.flags = FFA_OPEN_CPU_FP64;
    opts.cpu_threads = 2;
    ck_assert_int_eq(ffa_open(&context, FFA_DEVICE_CPU, &opts, NULL), FFA_OK);
}

static void teardown(void)
{
    ffa_close(context);
}

struct pass {
    struct stage_case masks;
    struct attention_case host; /* keys of all stages */
    ffa_kernels *kernels;
    ffa_plan *plans[STAGE_CASE_MAX];
    double *partial; /* fp32 unless the dtype is FFA_FP64 */
    struct attention_gradients gradients;
    bool has_dlse;
    void *workspace; /* of the backward pass: what the stage that needs most needs, and no more */
    int64_t workspace_bytes;
    double sink[SINKS * HEADS_Q], tops[HEADS_Q]; /* room for either width */
};

static ffa_dtype partial_dtype(const struct pass *pass)
{
    return pass->host.shape.dtype == FFA_FP64 ? FFA_FP64 : FFA_FP32;
}

/* spec_flags: besides what all passes have. */
static void pass_init(struct pass *pass, ffa_dtype dtype, uint32_t spec_flags, uint32_t plan_flags,
                      uint64_t seed)
{
    struct rng rng = { seed };
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;
    ffa_plan_opts opts = FFA_PLAN_OPTS_INIT;
    struct attention_shape shape = { { 0, 0 }, dtype, HEADS_Q, HEADS_KV, DIM, LAYOUT_TOKENS };
    ffa_error err = { 0 };

    *pass = (struct pass){ 0 };
    stage_case_init(&pass->masks, &rng, 90);
    shape.mask = pass->masks.shape;
    shape.layout = (enum attention_layout)rng_range(&rng, 0, LAYOUT_COUNT - 1);
    attention_case_init(&pass->host, &shape, &rng);
    for (int i = 0; i < SINKS * HEADS_Q; i++)
        attention_put(pass->sink, attention_sum_dtype(dtype), i, rng_normal(&rng));
    spec.dtype = dtype;
    spec.head_dim = DIM;
    spec.flags = FFA_SPEC_STAGED | FFA_SPEC_MAX_LOGITS | spec_flags;
    spec.tile_m = spec.tile_n = 16;
    if (spec_flags & FFA_SPEC_BACKWARD)
        spec.backward_tile_m = spec.backward_tile_n = 16;
    opts.flags = plan_flags;
    ck_assert_int_eq(ffa_kernels_create(&pass->kernels, context, &spec, &err), FFA_OK);
    ck_assert_msg(ffa_plan_create_stages(pass->plans, pass->kernels,
                                         (const ffa_mask *const *)pass->masks.masks,
                                         pass->masks.count, &opts, &err) == FFA_OK,
                  "%s", err.message);
    pass->partial = calloc((size_t)(shape.mask.seqlen_q * HEADS_Q * DIM), sizeof *pass->partial);
    pass->host.args.partial.data = pass->partial;
    for (int64_t i = 0; i < shape.mask.seqlen_q * HEADS_Q * DIM; i++)
        if (dtype == FFA_FP64)
            pass->partial[i] = (double)poison;
        else
            ((float *)pass->partial)[i] = poison;
    pass->host.args.max_logits = pass->tops;
    pass->host.args.sink = seed % 3 ? NULL : pass->sink;
    pass->host.args.sink_count = seed % 3 ? 0 : SINKS;
}

static void pass_finish(struct pass *pass)
{
    for (int32_t s = 0; s < pass->masks.count; s++)
        ffa_plan_destroy(pass->plans[s]);
    ffa_kernels_destroy(pass->kernels);
    attention_gradients_finish(&pass->gradients);
    free(pass->workspace);
    attention_case_finish(&pass->host);
    stage_case_finish(&pass->masks);
    free(pass->partial);
}

static ffa_status run_stage(const struct pass *pass, int32_t s, ffa_error *err)
{
    ffa_forward_args args = pass->host.args;
    const int64_t first = pass->masks.key_begin[s];
    const int64_t bytes = (int64_t)ffa_dtype_bytes(pass->host.shape.dtype);

    args.k.data = (char *)args.k.data + first * args.k.token_stride * bytes;
    args.v.data = (char *)args.v.data + first * args.v.token_stride * bytes;
    return ffa_forward(pass->kernels, pass->plans[s], &args, NULL, err);
}

/* Rows of stage s, marked 1 + the flags of their tile; of list 0. */
static void mark_rows(const struct pass *pass, int32_t s, uint8_t *rows)
{
    const struct tile_plan *plan = &pass->plans[s]->forward;

    memset(rows, 0, (size_t)pass->masks.shape.seqlen_q);
    for (int64_t t = 0; t < plan->tile_count; t++)
        memset(rows + plan->tiles[t].begin, 1 + plan->tiles[t].flags, (size_t)plan->tiles[t].count);
}

static void run_and_compare(ffa_dtype dtype, uint32_t plan_flags, uint64_t seed)
{
    struct pass pass;
    uint8_t marks[STAGE_CASE_MAX][128];
    struct oracle_tolerance tolerance = oracle_tolerance_of(dtype == FFA_FP64 ? FFA_FP32 : dtype);
    struct oracle_result want = { 0 };
    struct oracle_report report;
    struct oracle_case test;
    ffa_slice_list list;
    ffa_error err = { 0 };

    pass_init(&pass, dtype, 0, plan_flags, seed);
    list = ffa_mask_slices(pass.masks.whole, 0);
    test = (struct oracle_case){ .shape = pass.masks.shape,
                                 .lists = &list,
                                 .list_count = 1,
                                 .head_dim = DIM,
                                 .dtype = dtype,
                                 .args = &pass.host.args };
    oracle_poison(&test);
    for (int32_t s = 0; s < pass.masks.count; s++) {
        mark_rows(&pass, s, marks[s]);
        ck_assert_msg(run_stage(&pass, s, &err) == FFA_OK, "%s", err.message);
        for (int64_t row = 0; row < pass.masks.shape.seqlen_q; row++) {
            bool is_done = false, has_partial = false;
            double out, left;

            for (int32_t i = 0; i <= s; i++) {
                is_done |= marks[i][row] && !((marks[i][row] - 1) & PLAN_TILE_CONTINUES);
                has_partial |= marks[i][row] && (marks[i][row] - 1) & PLAN_TILE_CONTINUES;
            }
            out = attention_read(&pass.host.args.out, dtype, row, 1, 5);
            left = attention_read(&(ffa_tensor){ .data = pass.partial,
                                                 .token_stride = HEADS_Q * DIM,
                                                 .head_stride = DIM },
                                  partial_dtype(&pass), row, 1, 5);
            ck_assert_msg(isnan(out) == !is_done, "seed %llu, stage %d, row %lld: out is %g",
                          (unsigned long long)seed, s, (long long)row, out);
            ck_assert_msg((left != (double)poison) == has_partial,
                          "seed %llu, stage %d, row %lld: partial is %g", (unsigned long long)seed,
                          s, (long long)row, left);
        }
    }
    ck_assert_int_eq(oracle_forward(&want, &test, &err), FFA_OK);
    oracle_compare(&report, &test, &want, &tolerance);
    ck_assert_msg(report.passed, "seed %llu, dtype %d: out %.2e row %.2e lse %.2e top %.2e: %s",
                  (unsigned long long)seed, (int)dtype, report.out, report.row, report.lse,
                  report.top, report.reason);
    oracle_result_finish(&want);
    pass_finish(&pass);
}

START_TEST(stages_make_the_whole)
{
    for (int i = 0; i < ROUNDS; i++)
        run_and_compare(dtypes[_i], i % 4 ? 0 : (uint32_t)FFA_PLAN_ISOLATE,
                        (uint64_t)(100 * _i + i));
}
END_TEST

/* ---- backward ---- */

static void *at_key(const ffa_tensor *tensor, int64_t key, ffa_dtype dtype)
{
    return (char *)tensor->data + key * tensor->token_stride * (int64_t)ffa_dtype_bytes(dtype);
}

/* Stage s of the backward pass; before the last, without a dq. */
static ffa_status run_backward_stage(const struct pass *pass, int32_t s, uint32_t flags,
                                     double *dsink, ffa_error *err)
{
    ffa_backward_args args = attention_backward_args_of(&pass->host, &pass->gradients);
    const int64_t first = pass->masks.key_begin[s];
    const ffa_dtype dtype = pass->host.shape.dtype, grad_dtype = pass->gradients.grad_dtype;

    args.k.data = at_key(&args.k, first, dtype);
    args.v.data = at_key(&args.v, first, dtype);
    args.dk.data = at_key(&args.dk, first, grad_dtype);
    args.dv.data = at_key(&args.dv, first, grad_dtype);
    if (s < pass->masks.count - 1)
        args.dq.data = NULL;
    args.dsink = args.sink_count ? dsink : NULL;
    args.dlse = pass->gradients.dlse;
    if (!pass->has_dlse)
        args.dlse.data = NULL;
    args.flags = flags;
    args.workspace = pass->workspace;
    args.workspace_bytes = pass->workspace_bytes;
    return ffa_backward(pass->kernels, pass->plans[s], &args, NULL, err);
}

/* Memory that holds anything: a pass does not look at what was there. */
static void workspace_init(struct pass *pass)
{
    int64_t most = 0;

    for (int32_t s = 0; s < pass->masks.count; s++) {
        int64_t bytes = -1;

        ck_assert_int_eq(ffa_backward_workspace_bytes(pass->kernels, pass->plans[s], HEADS_Q,
                                                      HEADS_KV, &bytes, NULL),
                         FFA_OK);
        ck_assert_int_eq(bytes > 0, pass->masks.count > 1);
        most = bytes > most ? bytes : most;
    }
    pass->workspace_bytes = most;
    pass->workspace = malloc((size_t)most);
    ck_assert(pass->workspace || !most);
    if (most)
        memset(pass->workspace, 0xff, (size_t)most); /* NaN */
}

/* Whether dk of a key is still as oracle_backward_poison left it: NaN, as no gradient is. */
static bool is_poison(const struct pass *pass, const ffa_tensor *tensor, int64_t token)
{
    return isnan(attention_read(tensor, pass->gradients.grad_dtype, token, 1, 3));
}

/* What the stages so far have written, and nothing else. */
static void check_progress(const struct pass *pass, int32_t stage, const double *dsink,
                           uint64_t seed)
{
    const bool is_last = stage == pass->masks.count - 1;

    for (int64_t key = 0; key < pass->masks.shape.seqlen_k; key++)
        ck_assert_msg((is_poison(pass, &pass->gradients.dk, key) &&
                       is_poison(pass, &pass->gradients.dv, key)) ==
                          (key >= pass->masks.key_begin[stage + 1]),
                      "seed %llu, stage %d: key %lld", (unsigned long long)seed, stage,
                      (long long)key);
    for (int64_t row = 0; row < pass->masks.shape.seqlen_q; row++)
        ck_assert_msg(is_poison(pass, &pass->gradients.dq, row) == !is_last,
                      "seed %llu, stage %d: row %lld", (unsigned long long)seed, stage,
                      (long long)row);
    if (pass->host.args.sink)
        ck_assert_int_eq(isnan(attention_get(dsink, partial_dtype(pass), 1)), !is_last);
}

static void compare_gradients(const struct oracle_backward_case *test, const char *name,
                              uint64_t seed)
{
    const struct oracle_backward_tolerance tolerance =
        oracle_backward_tolerance_of(test->forward.dtype, test->forward.shape.seqlen_k);
    struct oracle_gradients want = { 0 };
    struct oracle_backward_report report;

    ck_assert_int_eq(oracle_backward(&want, test, NULL), FFA_OK);
    oracle_backward_compare(&report, test, &want, &tolerance);
    ck_assert_msg(report.passed, "%s, seed %llu: %s", name, (unsigned long long)seed,
                  report.reason);
    oracle_gradients_finish(&want);
}

/* grad_flags: 0 or FFA_SPEC_GRAD_FP32; then the pass once more is added to the first. */
static void run_backward_and_compare(ffa_dtype dtype, uint32_t grad_flags, uint32_t plan_flags,
                                     uint64_t seed)
{
    const ffa_dtype grad_dtype = grad_flags ? FFA_FP32 : dtype;
    struct rng rng = { seed + 1000 };
    double dsink[SINKS * HEADS_Q]; /* room for either width */
    struct oracle_backward_case test;
    ffa_slice_list list;
    struct pass pass;
    ffa_error err = { 0 };

    pass_init(&pass, dtype, FFA_SPEC_BACKWARD | grad_flags, plan_flags, seed);
    attention_gradients_init(&pass.gradients, &pass.host, grad_dtype, &rng);
    workspace_init(&pass);
    list = ffa_mask_slices(pass.masks.whole, 0);
    test = (struct oracle_backward_case){ .forward = { .shape = pass.masks.shape,
                                                       .lists = &list,
                                                       .list_count = 1,
                                                       .head_dim = DIM,
                                                       .dtype = dtype,
                                                       .args = &pass.host.args },
                                          .grad_dtype = grad_dtype,
                                          .dout = pass.gradients.dout,
                                          .dq = pass.gradients.dq,
                                          .dk = pass.gradients.dk,
                                          .dv = pass.gradients.dv,
                                          .dsink = pass.host.args.sink ? dsink : NULL };
    pass.has_dlse = seed % 2;
    if (pass.has_dlse)
        test.dlse = pass.gradients.dlse;
    oracle_backward_poison(&test);
    for (int32_t s = 0; s < pass.masks.count; s++)
        ck_assert_msg(run_stage(&pass, s, &err) == FFA_OK, "%s", err.message);
    for (int32_t s = 0; s < pass.masks.count; s++) {
        ck_assert_msg(run_backward_stage(&pass, s, 0, dsink, &err) == FFA_OK, "%s", err.message);
        check_progress(&pass, s, dsink, seed);
    }
    compare_gradients(&test, "stages", seed);
    for (int32_t s = 0; grad_flags && s < pass.masks.count; s++)
        ck_assert_msg(run_backward_stage(&pass, s, FFA_BACKWARD_ACCUMULATE, dsink, &err) == FFA_OK,
                      "%s", err.message);
    if (grad_flags) {
        const ffa_tensor *all[] = { &pass.gradients.dq, &pass.gradients.dk, &pass.gradients.dv };

        for (int i = 0; i < 3; i++) /* halved, it is the oracle's again */
            for (int64_t t = 0; t < (i ? pass.masks.shape.seqlen_k : pass.masks.shape.seqlen_q);
                 t++)
                for (int32_t h = 0; h < (i ? HEADS_KV : HEADS_Q); h++)
                    for (int32_t c = 0; c < DIM; c++)
                        attention_write(all[i], FFA_FP32, t, h, c,
                                        0.5 * attention_read(all[i], FFA_FP32, t, h, c));
        compare_gradients(&test, "stages, twice", seed);
    }
    pass_finish(&pass);
}

START_TEST(backward_stages_make_the_whole)
{
    for (int i = 0; i < ROUNDS / 2; i++)
        run_backward_and_compare(
            dtypes[_i], i % 3 || dtypes[_i] == FFA_FP64 ? 0 : (uint32_t)FFA_SPEC_GRAD_FP32,
            i % 4 ? 0 : (uint32_t)FFA_PLAN_ISOLATE, (uint64_t)(700 + 100 * _i + i));
}
END_TEST

/* Three stages over the same keys, each with some rows: dk and dv are fp32 from the first, added to
 * by the second, and get the dtype in the third. */
static const ffa_slice turns[3][1] = { { { 0, 30, 0, 70, FFA_SLICE_FULL, 0 } },
                                       { { 30, 60, 10, 70, FFA_SLICE_CAUSAL, 0 } },
                                       { { 60, 90, 0, 50, FFA_SLICE_BICAUSAL, 0 } } };

static ffa_kernels *turn_kernels(ffa_dtype dtype, uint32_t flags)
{
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;
    ffa_kernels *kernels;

    spec.dtype = dtype;
    spec.head_dim = DIM;
    spec.flags = FFA_SPEC_STAGED | FFA_SPEC_BACKWARD | flags;
    ck_assert_int_eq(ffa_kernels_create(&kernels, context, &spec, NULL), FFA_OK);
    return kernels;
}

START_TEST(gradients_of_keys_get_the_dtype_last)
{
    const ffa_dtype dtype = dtypes[_i], sum_dtype = dtype == FFA_FP64 ? FFA_FP64 : FFA_FP32;
    const struct attention_shape shape = {
        { 90, 70 }, dtype, HEADS_Q, HEADS_KV, DIM, LAYOUT_HEADS
    };
    const uint32_t sum_flags = dtype == FFA_FP64 ? 0 : FFA_SPEC_GRAD_FP32;
    ffa_kernels *kernels = turn_kernels(dtype, 0), *fp32 = turn_kernels(dtype, sum_flags);
    const ffa_slice whole[] = { turns[0][0], turns[1][0], turns[2][0] };
    const ffa_slice_list list = { whole, 3 };
    ffa_mask *masks[3], *mask;
    ffa_plan *plans[3], *plan;
    struct attention_case host;
    struct attention_gradients gradients, sums;
    struct oracle_backward_case test;
    struct rng rng = { 77 };
    ffa_backward_args args;
    void *workspace;
    int64_t bytes;
    ffa_error err = { 0 };

    attention_case_init(&host, &shape, &rng);
    attention_gradients_init(&gradients, &host, dtype, &rng);
    host.shape.layout = LAYOUT_PADDED;
    attention_gradients_init(&sums, &host, sum_dtype, &rng);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(ffa_mask_create(&masks[i], &shape.mask, turns[i], 1, NULL), FFA_OK);
    ck_assert_int_eq(ffa_mask_create(&mask, &shape.mask, whole, 3, NULL), FFA_OK);
    ck_assert_int_eq(ffa_plan_create(&plan, kernels, mask, NULL), FFA_OK);
    ck_assert_int_eq(
        ffa_plan_create_stages(plans, kernels, (const ffa_mask *const *)masks, 3, NULL, NULL),
        FFA_OK);
    ck_assert_int_eq(
        ffa_backward_workspace_bytes(kernels, plans[0], HEADS_Q, HEADS_KV, &bytes, NULL), FFA_OK);
    workspace = malloc((size_t)bytes);
    ck_assert_int_eq(ffa_forward(kernels, plan, &host.args, NULL, &err), FFA_OK);

    args = attention_backward_args_of(&host, &gradients);
    args.workspace = workspace;
    args.workspace_bytes = bytes;
    test = (struct oracle_backward_case){ .forward = { .shape = shape.mask,
                                                       .lists = &list,
                                                       .list_count = 1,
                                                       .head_dim = DIM,
                                                       .dtype = dtype,
                                                       .args = &host.args },
                                          .grad_dtype = dtype,
                                          .dout = gradients.dout,
                                          .dq = gradients.dq,
                                          .dk = gradients.dk,
                                          .dv = gradients.dv };
    oracle_backward_poison(&test);
    for (int i = 0; i < 3; i++) {
        args.dk = i < 2 ? sums.dk : gradients.dk;
        args.dv = i < 2 ? sums.dv : gradients.dv;
        args.partial_dk = i < 2 ? (ffa_tensor)FFA_TENSOR_INIT(NULL) : sums.dk;
        args.partial_dv = i < 2 ? (ffa_tensor)FFA_TENSOR_INIT(NULL) : sums.dv;
        args.flags = i == 1 ? FFA_BACKWARD_ACCUMULATE : 0;
        ck_assert_msg(ffa_backward(i < 2 ? fp32 : kernels, plans[i], &args, NULL, &err) == FFA_OK,
                      "%s", err.message);
    }
    compare_gradients(&test, "stages", (uint64_t)_i);

    args.partial_dv.data = NULL;
    ck_assert_int_eq(ffa_backward(kernels, plans[2], &args, NULL, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "partial_dk is given without partial_dv");
    args.partial_dv = args.partial_dk;
    args.partial_dk.data = NULL;
    ck_assert_int_eq(ffa_backward(kernels, plans[2], &args, NULL, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "partial_dv is given without partial_dk");
    args.partial_dk = args.partial_dv;
    args.partial_dk.token_stride = -8;
    ck_assert_int_eq(ffa_backward(kernels, plans[2], &args, NULL, &err), FFA_INVALID);
    ck_assert_msg(strstr(err.message, "partial_dk: token_stride is -8"), "%s", err.message);
    for (int i = 0; i < 3; i++) {
        ffa_plan_destroy(plans[i]);
        ffa_mask_destroy(masks[i]);
    }
    free(workspace);
    ffa_plan_destroy(plan);
    ffa_mask_destroy(mask);
    ffa_kernels_destroy(kernels);
    ffa_kernels_destroy(fp32);
    attention_gradients_finish(&gradients);
    attention_gradients_finish(&sums);
    attention_case_finish(&host);
}
END_TEST

/* Kernels that say they are a GPU's, as far as planning looks at them. */
static struct ffa_kernels gpu_kernels(void)
{
    const struct device_facts facts = { .name = "NVIDIA H200", .sm_count = 132 };

    return (struct ffa_kernels){ .context = context,
                                 .device = choose_device_of(&facts),
                                 .dtype = FFA_BF16,
                                 .head_dim = 128,
                                 .head_dim_v = 128,
                                 .dq_columns = 128,
                                 .forward = { { .kernel = (struct gpu_kernel *)(uintptr_t)1,
                                                .tile_m = 128,
                                                .tile_n = 128 } },
                                 .forward_count = 1,
                                 .has_backward = true,
                                 .is_staged = true,
                                 .backward = { { .tile_m = 64, .tile_n = 128, .cluster = 1 } },
                                 .backward_count = 1 };
}

/* Stages have sums of dk and dv in any case: of one part, where that is the maximum. */
START_TEST(parts_are_at_most_what_is_asked_for)
{
    static const int32_t parts[] = { 8, 1, 2 };
    struct ffa_kernels gpu = gpu_kernels();
    struct backward_layout layout;
    ffa_plan_opts opts = FFA_PLAN_OPTS_INIT;
    const ffa_mask *masks[2];
    ffa_mask *mask;
    ffa_plan *plans[2];
    ffa_error err = { 0 };

    ck_assert_int_eq(ffa_mask_parse(&mask, "full:2048", NULL), FFA_OK);
    masks[0] = masks[1] = mask;
    for (int max = 0; max < 3; max++) {
        opts.backward_parts_max = max;
        ck_assert_msg(ffa_plan_create_stages(plans, &gpu, masks, 2, &opts, &err) == FFA_OK, "%s",
                      err.message);
        for (int s = 0; s < 2; s++) {
            ck_assert_int_eq(backward_layout_make(&layout, plans[s], &gpu, 8, 1, 132, &err),
                             FFA_OK);
            ck_assert_msg(layout.order.parts == parts[max], "at most %d: %d", max,
                          layout.order.parts);
            ck_assert_int_eq(layout.bytes - layout.dk_at,
                             (int64_t)parts[max] * 2048 * (128 + 128) * 4);
            ffa_plan_destroy(plans[s]);
        }
    }
    ffa_mask_destroy(mask);
}
END_TEST

/* ---- refusals ---- */

#define REFUSED(call, says)                                                                        \
    do {                                                                                           \
        ck_assert_int_eq(call, FFA_INVALID);                                                       \
        ck_assert_msg(strstr(err.message, says), "%s", err.message);                               \
    } while (0)

START_TEST(what_does_not_belong_together)
{
    struct pass pass;
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;
    ffa_kernels *plain;
    const ffa_mask *masks[2] = { NULL, NULL };
    ffa_plan *plans[2] = { NULL, NULL };
    ffa_mask *other;
    ffa_error err = { 0 };
    uint64_t seed = 0;

    do {
        if (seed)
            pass_finish(&pass);
        pass_init(&pass, FFA_FP32, 0, 0, ++seed);
    } while (pass.masks.count < 2);
    spec.dtype = FFA_FP32;
    spec.head_dim = DIM;
    spec.tile_m = spec.tile_n = 16;
    ck_assert_int_eq(ffa_kernels_create(&plain, context, &spec, &err), FFA_OK);
    ck_assert_int_eq(ffa_mask_parse(&other, "full:7", &err), FFA_OK);
    masks[0] = pass.masks.masks[0];
    REFUSED(ffa_plan_create_stages(NULL, pass.kernels, masks, 1, NULL, &err), "out is NULL");
    REFUSED(ffa_plan_create_stages(plans, NULL, masks, 1, NULL, &err), "kernels is NULL");
    REFUSED(ffa_plan_create_stages(plans, pass.kernels, NULL, 1, NULL, &err), "masks is NULL");
    REFUSED(ffa_plan_create_stages(plans, pass.kernels, masks, 0, NULL, &err),
            "count is 0, not in [1, 4096]");
    REFUSED(ffa_plan_create_stages(plans, pass.kernels, masks, 4097, NULL, &err), "count is 4097");
    REFUSED(ffa_plan_create_stages(plans, pass.kernels, masks, 2, NULL, &err), "masks[1] is NULL");
    masks[1] = other;
    if (ffa_mask_seqlen_q(masks[0]) != 7)
        REFUSED(ffa_plan_create_stages(plans, pass.kernels, masks, 2, NULL, &err),
                "masks[1] has 7 query rows");
    REFUSED(ffa_plan_create_stages(plans, plain, masks, 1, NULL, &err), "without FFA_SPEC_STAGED");
    ck_assert_ptr_null(plans[0]);

    pass.host.args.partial.data = NULL;
    REFUSED(run_stage(&pass, 1, &err), "partial: data is NULL, the plan is stage 1 of");
    pass.host.args.partial.data = pass.partial;
    pass.host.args.partial.token_stride = 3;
    REFUSED(run_stage(&pass, 1, &err), "partial: token_stride 3");
    pass.host.args.partial.token_stride = FFA_CONTIGUOUS;
    pass.host.args.max_logits = NULL;
    REFUSED(ffa_forward(plain, pass.plans[0], &pass.host.args, NULL, &err),
            "made without FFA_SPEC_STAGED");
    spec.flags = FFA_SPEC_STAGED | FFA_SPEC_OUT_FP32;
    ffa_kernels_destroy(plain);
    REFUSED(ffa_kernels_create(&plain, context, &spec, &err), "FFA_SPEC_OUT_FP32 and");
    ffa_mask_destroy(other);
    pass_finish(&pass);
}
END_TEST

START_TEST(backward_refusals)
{
    struct pass pass;
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;
    struct rng rng = { 5 };
    ffa_kernels *plain, *staged;
    void *workspace;
    int64_t bytes;
    char says[96];
    ffa_error err = { 0 };
    uint64_t seed = 0;

    do {
        if (seed)
            pass_finish(&pass);
        pass_init(&pass, FFA_FP32, FFA_SPEC_BACKWARD, 0, ++seed);
    } while (pass.masks.count < 2);
    attention_gradients_init(&pass.gradients, &pass.host, FFA_FP32, &rng);
    workspace_init(&pass);
    staged = pass.kernels;
    spec.dtype = FFA_FP32;
    spec.head_dim = DIM;
    spec.backward_tile_m = spec.backward_tile_n = 16;
    spec.flags = FFA_SPEC_BACKWARD;
    ck_assert_int_eq(ffa_kernels_create(&plain, context, &spec, &err), FFA_OK);
    pass.kernels = plain;
    REFUSED(run_backward_stage(&pass, 0, 0, NULL, &err), "the plan is stage 0 of");
    REFUSED(ffa_backward_workspace_bytes(plain, pass.plans[1], HEADS_Q, HEADS_KV, &bytes, &err),
            "the plan is stage 1 of");
    pass.kernels = staged;
    workspace = pass.workspace;
    pass.workspace = NULL;
    REFUSED(run_backward_stage(&pass, 0, 0, NULL, &err), "workspace is NULL, the call needs");
    pass.workspace = (char *)workspace + 4;
    REFUSED(run_backward_stage(&pass, 0, 0, NULL, &err), "not 16-byte aligned");
    pass.workspace = workspace;
    bytes = pass.workspace_bytes--;
    (void)snprintf(says, sizeof says, "workspace_bytes is %lld, the call needs %lld",
                   (long long)bytes - 1, (long long)bytes);
    REFUSED(run_backward_stage(&pass, 0, 0, NULL, &err), says);
    pass.workspace_bytes = -1;
    REFUSED(run_backward_stage(&pass, 0, 0, NULL, &err), "workspace_bytes is -1, the call needs");
    pass.workspace_bytes = bytes;
    pass.gradients.dq.data = NULL;
    REFUSED(run_backward_stage(&pass, pass.masks.count - 1, 0, NULL, &err), "dq: data is NULL");
    for (long nth = 1;; nth++) {
        ffa_status rc;

        fault_arm(FAULT_ALLOC, nth);
        rc = run_backward_stage(&pass, 0, 0, NULL, &err);
        if (!fault_fired())
            break;
        ck_assert_int_eq(rc, FFA_NOMEM);
    }
    fault_arm(FAULT_ALLOC, 0);
    ffa_kernels_destroy(plain);
    pass_finish(&pass);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("stages");
    TCase *tc = tcase_create("stages");

    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, stages_make_the_whole, 0, 4);
    tcase_add_loop_test(tc, backward_stages_make_the_whole, 0, 4);
    tcase_add_loop_test(tc, gradients_of_keys_get_the_dtype_last, 0, 4);
    tcase_add_test(tc, parts_are_at_most_what_is_asked_for);
    tcase_add_test(tc, backward_refusals);
    tcase_add_test(tc, what_does_not_belong_together);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
