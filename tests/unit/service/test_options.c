/* SPDX-License-Identifier: Apache-2.0
 *
 * Softcap, sinks and max_logits on the CPU backend, alone and together, against the oracle.
 */
#include "oracle/oracle.h"
#include "support/attention_case.h"
#include "support/mask_cases.h"
#include "support/suite.h"

#include <check.h>
#include <ffa/ffa.h>
#include <math.h>
#include <stdlib.h>

enum { HEADS_Q = 4, HEADS_KV = 2 };

static const struct {
    const char *name;
    float softcap;
    int32_t sink_count;
    float sink_scale; /* logits are normal times this */
} options[] = {
    { "none", 0, 0, 0 },
    { "softcap, scores in its linear part", 50, 0, 0 },
    { "softcap, scores at its ends", 0.25f, 0, 0 },
    { "one sink", 0, 1, 1 },
    { "eight sinks", 0, 8, 1 },
    { "sinks above most scores", 0, 3, 4 },
    { "both", 2, 2, 1 },
};
static const int32_t value_dims[] = { 0, 24, 128 }; /* 0: as head_dim */

static const ffa_dtype dtypes[] = { FFA_BF16, FFA_FP16, FFA_FP32, FFA_FP64 };

static void run_case(ffa_context *context, const struct mask_case *from, int option,
                     ffa_dtype dtype, struct rng *rng)
{
    struct attention_shape shape = { from->shape, dtype, HEADS_Q, HEADS_KV, 64, LAYOUT_TOKENS };
    double tops[HEADS_Q], sink[FFA_SINKS_MAX * HEADS_Q]; /* room for either width */
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;
    struct oracle_tolerance tolerance = oracle_tolerance_of(dtype);
    struct attention_case host;
    struct oracle_case test;
    struct oracle_result want = { 0 };
    struct oracle_report report;
    ffa_slice_list list;
    ffa_mask *mask = NULL;
    ffa_error err = { 0 };

    attention_case_init_v(&host, &shape, value_dims[option % 3], rng);
    for (int i = 0; i < options[option].sink_count * HEADS_Q; i++)
        attention_put(sink, attention_sum_dtype(dtype), i,
                      rng_normal(rng) * (double)options[option].sink_scale);
    host.args.softcap = (double)options[option].softcap;
    host.args.sink_count = options[option].sink_count;
    host.args.sink = options[option].sink_count ? sink : NULL;
    spec.dtype = dtype;
    spec.head_dim = shape.head_dim;
    spec.head_dim_v = host.head_dim_v;
    spec.flags = FFA_SPEC_MAX_LOGITS;
    spec.flags |= options[option].softcap > 0 ? (uint32_t)FFA_SPEC_SOFTCAP : 0;
    host.args.max_logits = tops;
    ck_assert_int_eq(ffa_mask_create(&mask, &from->shape, from->slices, from->count, &err), FFA_OK);
    list = ffa_mask_slices(mask, 0);
    test = (struct oracle_case){ .shape = from->shape,
                                 .lists = &list,
                                 .list_count = 1,
                                 .head_dim = shape.head_dim,
                                 .head_dim_v = host.head_dim_v,
                                 .dtype = dtype,
                                 .args = &host.args };
    oracle_poison(&test);
    ck_assert_msg(ffa_attention(context, mask, &spec, &host.args, NULL, &err) == FFA_OK, "%s",
                  err.message);
    ck_assert_int_eq(oracle_forward(&want, &test, &err), FFA_OK);
    oracle_compare(&report, &test, &want, &tolerance);
    ck_assert_msg(report.passed, "%s, dtype %d: out %.2e row %.2e lse %.2e: %s",
                  options[option].name, (int)dtype, report.out, report.row, report.lse,
                  report.reason);
    oracle_result_finish(&want);
    ffa_mask_destroy(mask);
    attention_case_finish(&host);
}

START_TEST(options_match_the_oracle)
{
    ffa_context_opts opts = FFA_CONTEXT_OPTS_INIT;
    ffa_context *context = NULL;
    struct rng rng = { 31 };

    opts.flags = FFA_OPEN_CPU_FP64;
    opts.cpu_threads = 2;
    ck_assert_int_eq(ffa_open(&context, FFA_DEVICE_CPU, &opts, NULL), FFA_OK);
    for (int i = 0; i < 12; i++) {
        struct mask_case from = mask_case_random(&rng, 160, 6);

        run_case(context, &from, _i, dtypes[i % 4], &rng);
        free(from.slices);
    }
    ffa_close(context);
}
END_TEST

/* One query, one key, one sink: by hand. */
START_TEST(a_sink_takes_its_share)
{
    const float q = 0, k = 1, sink = 0; /* score 0, so key and sink weigh the same */
    float v[8] = { 6, 6, 6, 6, 6, 6, 6, 6 }, zeros[8] = { q }, ones[8] = { k };
    float out[8], lse;
    const ffa_mask_shape size = { 1, 1 };
    ffa_forward_args args = FFA_FORWARD_ARGS_INIT;
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;
    ffa_context *context = NULL;
    ffa_mask *mask = NULL, *empty = NULL;

    ck_assert_int_eq(ffa_open(&context, FFA_DEVICE_CPU, NULL, NULL), FFA_OK);
    ck_assert_int_eq(ffa_mask_full(&mask, &size, NULL), FFA_OK);
    ck_assert_int_eq(ffa_mask_create(&empty, &size, NULL, 0, NULL), FFA_OK);
    spec.dtype = FFA_FP32;
    spec.head_dim = 8;
    args.heads_q = args.heads_kv = 1;
    args.q.data = zeros;
    args.k.data = ones;
    args.v.data = v;
    args.out.data = out;
    args.lse.data = &lse;
    args.sink = &sink;
    args.sink_count = 1;
    ck_assert_int_eq(ffa_attention(context, mask, &spec, &args, NULL, NULL), FFA_OK);
    ck_assert_float_eq_tol(out[3], 3.0f, 1e-6f);
    ck_assert_float_eq_tol(lse, 0.693147f, 1e-6f);
    ck_assert_int_eq(ffa_attention(context, empty, &spec, &args, NULL, NULL), FFA_OK);
    ck_assert_float_eq(out[3], 0.0f);
    ck_assert_float_eq(lse, 0.0f);
    ffa_mask_destroy(mask);
    ffa_mask_destroy(empty);
    ffa_close(context);
}
END_TEST

/* A mask cut in two by keys: the second call merges into what the first left, which is what one
 * call gives. Rows that attend nothing in the first start from lse = -inf beside a NaN. */
START_TEST(accumulated_halves_make_the_whole)
{
    static const ffa_slice whole[] = { { 0, 90, 0, 120, FFA_SLICE_CAUSAL, 0 },
                                       { 90, 100, 0, 40, FFA_SLICE_FULL, 0 } };
    static const ffa_slice first[] = { { 60, 90, 0, 90, FFA_SLICE_FULL, 0 },
                                       { 0, 60, 0, 90, FFA_SLICE_CAUSAL, 0 } };
    static const ffa_slice second[] = { { 60, 90, 90, 120, FFA_SLICE_CAUSAL, 0 },
                                        { 90, 100, 0, 40, FFA_SLICE_FULL, 0 } };
    const ffa_dtype dtype = dtypes[_i];
    struct attention_shape shape = { { 105, 120 }, dtype, HEADS_Q, HEADS_KV, 64, LAYOUT_TOKENS };
    const size_t out_count = 105 * HEADS_Q * 64;
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;
    struct oracle_tolerance tolerance = oracle_tolerance_of(dtype);
    const ffa_slice_list list = { whole, 2 };
    struct oracle_result want = { 0 };
    struct oracle_report report;
    struct oracle_case test;
    struct attention_case host;
    ffa_context_opts opts = FFA_CONTEXT_OPTS_INIT;
    ffa_context *context = NULL;
    ffa_mask *parts[2] = { NULL, NULL };
    struct rng rng = { 77 };
    ffa_error err = { 0 };
    double tops[HEADS_Q]; /* room for either width */
    void *wide = calloc(out_count, 8);

    opts.flags = FFA_OPEN_CPU_FP64;
    ck_assert_int_eq(ffa_open(&context, FFA_DEVICE_CPU, &opts, NULL), FFA_OK);
    attention_case_init(&host, &shape, &rng);
    host.args.out.data = wide;
    host.args.max_logits = tops;
    spec.dtype = dtype;
    spec.head_dim = 64;
    spec.flags = FFA_SPEC_MAX_LOGITS;
    spec.flags |= dtype == FFA_FP64 ? 0 : (uint32_t)FFA_SPEC_OUT_FP32;
    test = (struct oracle_case){ .shape = shape.mask,
                                 .lists = &list,
                                 .list_count = 1,
                                 .head_dim = 64,
                                 .dtype = dtype,
                                 .args = &host.args,
                                 .out_dtype = dtype == FFA_FP64 ? FFA_FP64 : FFA_FP32 };
    oracle_poison(&test);
    ck_assert_int_eq(ffa_mask_create(&parts[0], &shape.mask, first, 2, NULL), FFA_OK);
    ck_assert_int_eq(ffa_mask_create(&parts[1], &shape.mask, second, 2, NULL), FFA_OK);
    ck_assert_msg(ffa_attention(context, parts[0], &spec, &host.args, NULL, &err) == FFA_OK, "%s",
                  err.message);
    for (int64_t row = 90; row < 105; row++) /* a pair with lse = -inf is not read */
        for (int32_t h = 0; h < HEADS_Q; h++)
            attention_write(&host.args.out, test.out_dtype, row, h, 5, NAN);
    host.args.flags = FFA_FORWARD_ACCUMULATE;
    ck_assert_msg(ffa_attention(context, parts[1], &spec, &host.args, NULL, &err) == FFA_OK, "%s",
                  err.message);
    ck_assert_int_eq(oracle_forward(&want, &test, &err), FFA_OK);
    oracle_compare(&report, &test, &want, &tolerance);
    ck_assert_msg(report.passed, "dtype %d: out %.2e row %.2e lse %.2e: %s", (int)dtype, report.out,
                  report.row, report.lse, report.reason);
    oracle_result_finish(&want);
    spec.flags = FFA_SPEC_MAX_LOGITS;
    if (dtype != FFA_FP64 && dtype != FFA_FP32)
        ck_assert_int_eq(ffa_attention(context, parts[1], &spec, &host.args, NULL, &err),
                         FFA_INVALID);
    for (int i = 0; i < 2; i++)
        ffa_mask_destroy(parts[i]);
    attention_case_finish(&host);
    free(wide);
    ffa_close(context);
}
END_TEST

static const struct {
    const char *name;
    uint32_t spec_flags;
    double softcap;
    int32_t sink_count;
    bool has_sink;
    const char *says;
    int tops_at; /* byte of max_logits in memory; 0: none given */
} refusals[] = {
    { "softcap without kernels for it", 0, 30, 0, false, "made without", 0 },
    { "kernels for softcap without it", FFA_SPEC_SOFTCAP, 0, 0, false, "made for", 0 },
    { "negative softcap", FFA_SPEC_SOFTCAP, -1, 0, false, "softcap is -1", 0 },
    { "softcap is no number", FFA_SPEC_SOFTCAP, NAN, 0, false, "softcap is", 0 },
    { "softcap too small for the scale", FFA_SPEC_SOFTCAP, 1e-42, 0, false, "beyond a float", 0 },
    { "softcap of no float", FFA_SPEC_SOFTCAP, 1e-60, 0, false, "softcap is 1e-60: 0 as a float",
      0 },
    { "too many sinks", 0, 0, 9, true, "sink_count is 9, not in [0, 8]", 0 },
    { "sinks without a count", 0, 0, 0, true, "sink is given with a sink_count of 0", 0 },
    { "a count without sinks", 0, 0, 2, false, "sink is NULL with a sink_count of 2", 0 },
    { "max_logits without kernels for it", 0, 0, 0, false, "max_logits is given, the kernels",
      128 },
    { "kernels for max_logits without it", FFA_SPEC_MAX_LOGITS, 0, 0, false, "max_logits is NULL",
      0 },
    { "max_logits misaligned", FFA_SPEC_MAX_LOGITS, 0, 0, false, "not 4-byte aligned", 130 },
};

START_TEST(bad_options_are_refused)
{
    float memory[64] = { 0 };
    const ffa_mask_shape size = { 1, 1 };
    ffa_forward_args args = FFA_FORWARD_ARGS_INIT;
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;
    ffa_context *context = NULL;
    ffa_mask *mask = NULL;
    ffa_error err = { 0 };

    ck_assert_int_eq(ffa_open(&context, FFA_DEVICE_CPU, NULL, NULL), FFA_OK);
    ck_assert_int_eq(ffa_mask_full(&mask, &size, NULL), FFA_OK);
    spec.dtype = FFA_FP32;
    spec.head_dim = 8;
    spec.flags = refusals[_i].spec_flags;
    args.heads_q = args.heads_kv = 1;
    args.q.data = args.k.data = args.v.data = memory;
    args.out.data = memory + 8;
    args.lse.data = memory + 16;
    args.softcap = refusals[_i].softcap;
    args.sink_count = refusals[_i].sink_count;
    args.sink = refusals[_i].has_sink ? memory + 24 : NULL;
    if (refusals[_i].tops_at)
        args.max_logits = (float *)(void *)((char *)memory + refusals[_i].tops_at);
    ck_assert_msg(ffa_attention(context, mask, &spec, &args, NULL, &err) == FFA_INVALID, "%s",
                  refusals[_i].name);
    ck_assert_msg(strstr(err.message, refusals[_i].says), "%s: %s", refusals[_i].name, err.message);
    ffa_mask_destroy(mask);
    ffa_close(context);
}
END_TEST

/* No row attends anything, or what it attends is no number: there is no largest logit. */
START_TEST(no_logit_is_minus_infinity)
{
    float memory[64] = { 0 }, top;
    const ffa_mask_shape size = { 1, 1 };
    ffa_forward_args args = FFA_FORWARD_ARGS_INIT;
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;
    ffa_context *context = NULL;
    ffa_mask *masks[2] = { NULL, NULL };

    ck_assert_int_eq(ffa_open(&context, FFA_DEVICE_CPU, NULL, NULL), FFA_OK);
    ck_assert_int_eq(ffa_mask_create(&masks[0], &size, NULL, 0, NULL), FFA_OK);
    ck_assert_int_eq(ffa_mask_full(&masks[1], &size, NULL), FFA_OK);
    spec.dtype = FFA_FP32;
    spec.head_dim = 8;
    spec.flags = FFA_SPEC_MAX_LOGITS;
    args.heads_q = args.heads_kv = 1;
    args.q.data = args.k.data = args.v.data = memory;
    args.out.data = memory + 8;
    args.lse.data = memory + 16;
    args.max_logits = &top;
    for (int i = 0; i < 2; i++) {
        memory[3] = i ? NAN : 0;
        top = 5;
        ck_assert_int_eq(ffa_attention(context, masks[i], &spec, &args, NULL, NULL), FFA_OK);
        ck_assert_float_eq(top, -INFINITY);
        ffa_mask_destroy(masks[i]);
    }
    ffa_close(context);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("options");
    TCase *tc = tcase_create("options");

    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, options_match_the_oracle, 0, sizeof options / sizeof *options);
    tcase_add_test(tc, a_sink_takes_its_share);
    tcase_add_loop_test(tc, accumulated_halves_make_the_whole, 0, 4);
    tcase_add_loop_test(tc, bad_options_are_refused, 0, sizeof refusals / sizeof *refusals);
    tcase_add_test(tc, no_logit_is_minus_infinity);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
