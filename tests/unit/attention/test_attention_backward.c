/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa_backward on the CPU backend: its arguments as a caller may misuse them, plans and workspaces
 * of both passes, sums over calls, no memory; and the answers, against the fp64 oracle.
 */
#include "attention/attention.h"
#include "choose/order.h"
#include "oracle/oracle_backward.h"
#include "support/attention_case.h"
#include "support/mask_cases.h"
#include "support/suite.h"
#include "tile/ticket.h"

#include <check.h>
#include <ffa/ffa.h>
#include <math.h>
#include <stdio.h>

#define ROWS_OF(table) (int)(sizeof table / sizeof *table)

static ffa_context *context;

static void must(ffa_status rc, const ffa_error *err)
{
    ck_assert_msg(rc == FFA_OK, "%s: %s", ffa_status_text(rc), err->message);
}

static void setup(void)
{
    ffa_context_opts opts = FFA_CONTEXT_OPTS_INIT;
    ffa_error err = { FFA_OK, 0, "" };

    opts.cpu_threads = 3;
    must(ffa_open(&context, FFA_DEVICE_CPU, &opts, &err), &err);
}

static void teardown(void)
{
    ffa_close(context);
}

static ffa_mask *parse(const char *text)
{
    ffa_mask *mask = NULL;
    ffa_error err = { FFA_OK, 0, "" };

    must(*text == '{' ? ffa_mask_parse_json(&mask, text, strlen(text), &err)
                      : ffa_mask_parse(&mask, text, &err),
         &err);
    return mask;
}

/* ---- a problem: kernels, plan, tensors, and the forward pass done ---- */

struct problem {
    ffa_mask *mask;
    ffa_kernels *kernels;
    ffa_plan *plan;
    struct attention_case test;
    struct attention_gradients gradients;
    ffa_backward_args args;
    double sink[16], dsink[16]; /* room for either width */
};

struct options {
    const char *mask;
    ffa_dtype dtype;
    int32_t heads_q, heads_kv, head_dim;
    enum attention_layout layout;
    uint32_t flags; /* FFA_SPEC_..., besides FFA_SPEC_BACKWARD */
    float softcap;
    int32_t sinks;
    int32_t tile_m, tile_n;
};

static void problem_init(struct problem *p, const struct options *options)
{
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;
    struct attention_shape shape = {
        { 0, 0 },          options->dtype,    options->heads_q,
        options->heads_kv, options->head_dim, options->layout,
    };
    const ffa_dtype grad_dtype = options->flags & FFA_SPEC_GRAD_FP32 ? FFA_FP32 : options->dtype;
    struct rng rng = { 31 };
    ffa_error err = { FFA_OK, 0, "" };

    *p = (struct problem){ 0 };
    p->mask = parse(options->mask);
    shape.mask = (ffa_mask_shape){ ffa_mask_seqlen_q(p->mask), ffa_mask_seqlen_k(p->mask) };
    attention_case_init(&p->test, &shape, &rng);
    attention_gradients_init(&p->gradients, &p->test, grad_dtype, &rng);
    p->test.args.softcap = (double)options->softcap;
    p->test.args.sink_count = options->sinks;
    p->test.args.sink = options->sinks ? p->sink : NULL;
    for (int i = 0; i < 16; i++)
        attention_put(p->sink, attention_sum_dtype(options->dtype), i, rng_bell(&rng));
    spec.dtype = options->dtype;
    spec.head_dim = options->head_dim;
    spec.flags = options->flags | FFA_SPEC_BACKWARD;
    spec.flags |= options->softcap > 0 ? (uint32_t)FFA_SPEC_SOFTCAP : 0;
    spec.backward_tile_m = options->tile_m;
    spec.backward_tile_n = options->tile_n;
    must(ffa_kernels_create(&p->kernels, context, &spec, &err), &err);
    must(ffa_plan_create(&p->plan, p->kernels, p->mask, &err), &err);
    must(ffa_forward(p->kernels, p->plan, &p->test.args, NULL, &err), &err);
    p->args = attention_backward_args_of(&p->test, &p->gradients);
    p->args.dsink = options->sinks ? p->dsink : NULL;
}

static void problem_finish(struct problem *p)
{
    attention_gradients_finish(&p->gradients);
    attention_case_finish(&p->test);
    ffa_plan_destroy(p->plan);
    ffa_kernels_destroy(p->kernels);
    ffa_mask_destroy(p->mask);
}

static struct oracle_backward_case reference_of(const struct problem *p, ffa_slice_list *lists)
{
    for (int32_t i = 0; i < ffa_mask_head_count(p->mask); i++)
        lists[i] = ffa_mask_slices(p->mask, i);
    return (struct oracle_backward_case){
        .forward = { .shape = p->test.shape.mask,
                     .lists = lists,
                     .list_count = ffa_mask_head_count(p->mask),
                     .head_dim = p->test.shape.head_dim,
                     .dtype = p->test.shape.dtype,
                     .threads = 2,
                     .args = &p->test.args },
        .grad_dtype = p->gradients.grad_dtype,
        .dout = p->gradients.dout,
        .dq = p->gradients.dq,
        .dk = p->gradients.dk,
        .dv = p->gradients.dv,
        .dsink = p->args.dsink,
        .dlse = p->args.dlse,
    };
}

static void poison(struct problem *p)
{
    ffa_slice_list lists[8];
    const struct oracle_backward_case reference = reference_of(p, lists);

    oracle_backward_poison(&reference);
}

static void compare(struct problem *p, const char *name)
{
    const struct oracle_backward_tolerance tolerance =
        oracle_backward_tolerance_of(p->test.shape.dtype, p->test.shape.mask.seqlen_k);
    ffa_slice_list lists[8];
    const struct oracle_backward_case reference = reference_of(p, lists);
    struct oracle_gradients want;
    struct oracle_backward_report report;

    ck_assert_int_eq(oracle_backward(&want, &reference, NULL), FFA_OK);
    oracle_backward_compare(&report, &reference, &want, &tolerance);
    ck_assert_msg(report.passed, "%s: %s (NaN %lld, unwritten %lld)", name, report.reason,
                  (long long)report.nan_count, (long long)report.unwritten_count);
    oracle_gradients_finish(&want);
}

/* ---- answers ---- */

#define PER_HEAD                                                                                   \
    "{\"seqlen_q\":50,\"seqlen_k\":60,\"kv_heads\":[[[0,50,0,60,\"causal\"]],"                     \
    "[[0,20,0,30,0],[20,50,20,60,2]]]}"
#define SQUARES                                                                                    \
    "{\"seqlen_q\":40,\"seqlen_k\":40,\"slices\":[[0,17,0,17,\"bicausal\"],"                       \
    "[17,18,0,40,\"full\"],[20,40,39,40,\"full\"]]}"

static const struct options answers[] = {
    { "causal:70x90", FFA_BF16, 4, 2, 64, LAYOUT_TOKENS, 0, 0, 0, 0, 0 },
    { "varlen-causal:30,1,50", FFA_FP16, 6, 1, 24, LAYOUT_HEADS, 0, 0, 0, 32, 48 },
    { "window:100,left=9,right=0", FFA_FP32, 2, 2, 16, LAYOUT_PADDED, 0, 0, 0, 16, 16 },
    { "causal:60x40", FFA_FP64, 2, 1, 8, LAYOUT_TOKENS, 0, 1.5f, 2, 16, 16 },
    { PER_HEAD, FFA_BF16, 4, 2, 16, LAYOUT_TOKENS, 0, 0, 0, 16, 32 },
    { SQUARES, FFA_FP16, 2, 1, 8, LAYOUT_PADDED, 0, 0, 0, 16, 16 },
    { "full:33", FFA_BF16, 2, 1, 16, LAYOUT_TOKENS, FFA_SPEC_GRAD_FP32, 0, 1, 0, 0 },
    { "full:33", FFA_BF16, 2, 1, 16, LAYOUT_HEADS, FFA_SPEC_OUT_FP32 | FFA_SPEC_GRAD_FP32, 3.0f, 8,
      0, 0 },
    { "causal:50", FFA_BF16, 2, 1, 16, LAYOUT_TOKENS, FFA_SPEC_DETERMINISTIC, 0, 0, 0, 0 },
};

static void shape_out_as_fp32(struct problem *p, const struct options *options);

START_TEST(gradients_as_the_oracle)
{
    struct problem p;
    ffa_context_stats stats = FFA_CONTEXT_STATS_INIT;
    ffa_error err = { FFA_OK, 0, "" };

    if (answers[_i].flags & FFA_SPEC_OUT_FP32)
        shape_out_as_fp32(&p, &answers[_i]);
    else
        problem_init(&p, &answers[_i]);
    if (_i % 2)
        p.args.dlse = p.gradients.dlse;
    poison(&p);
    must(ffa_backward(p.kernels, p.plan, &p.args, NULL, &err), &err);
    compare(&p, answers[_i].mask);

    if (answers[_i].layout == LAYOUT_TOKENS) { /* strides and scale by default */
        ffa_tensor *all[] = { &p.args.q,    &p.args.k,  &p.args.v,  &p.args.out, &p.args.lse,
                              &p.args.dout, &p.args.dq, &p.args.dk, &p.args.dv };

        for (int i = 0; i < ROWS_OF(all); i++)
            all[i]->token_stride = all[i]->head_stride = FFA_CONTIGUOUS;
        p.args.softmax_scale = 0;
        poison(&p);
        must(ffa_backward(p.kernels, p.plan, &p.args, NULL, &err), &err);
        compare(&p, "defaults");
    }
    must(ffa_context_stats_get(context, &stats, &err), &err);
    ck_assert_uint_eq(stats.backward_calls, answers[_i].layout == LAYOUT_TOKENS ? 2 : 1);
    problem_finish(&p);
}
END_TEST

/* The case's out has the dtype's size: an fp32 out gets memory of its own. */
static void shape_out_as_fp32(struct problem *p, const struct options *options)
{
    struct options half = *options;
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    size_t count;

    half.flags &= ~(uint32_t)FFA_SPEC_OUT_FP32;
    problem_init(p, &half);
    count =
        (size_t)p->test.shape.mask.seqlen_q * (size_t)options->heads_q * (size_t)options->head_dim;
    free(p->test.memory[3]);
    p->test.memory[3] = calloc(count, sizeof(float));
    ck_assert_ptr_nonnull(p->test.memory[3]);
    p->test.args.out.data = p->args.out.data = p->test.memory[3];
    ffa_plan_destroy(p->plan);
    ffa_kernels_destroy(p->kernels);
    spec.dtype = options->dtype;
    spec.head_dim = options->head_dim;
    spec.flags = options->flags | FFA_SPEC_BACKWARD;
    spec.flags |= options->softcap > 0 ? (uint32_t)FFA_SPEC_SOFTCAP : 0;
    must(ffa_kernels_create(&p->kernels, context, &spec, &err), &err);
    must(ffa_plan_create(&p->plan, p->kernels, p->mask, &err), &err);
    must(ffa_forward(p->kernels, p->plan, &p->test.args, NULL, &err), &err);
}

/* ---- accumulation ---- */

static const struct options fp32_case = {
    "causal:50x60", FFA_FP32, 4, 2, 16, LAYOUT_PADDED, 0, 0, 0, 0, 0
};

static double largest_difference(const ffa_tensor *a, const ffa_tensor *b, double times,
                                 int64_t tokens, int32_t heads)
{
    double largest = 0;

    for (int64_t t = 0; t < tokens; t++)
        for (int32_t h = 0; h < heads; h++)
            for (int32_t c = 0; c < 16; c++)
                largest = fmax(largest, fabs(attention_read(a, FFA_FP32, t, h, c) -
                                             times * attention_read(b, FFA_FP32, t, h, c)));
    return largest;
}

START_TEST(accumulating_twice_is_twice)
{
    struct problem once, twice;
    ffa_error err = { FFA_OK, 0, "" };

    problem_init(&once, &fp32_case);
    problem_init(&twice, &fp32_case);
    must(ffa_backward(once.kernels, once.plan, &once.args, NULL, &err), &err);
    must(ffa_backward(twice.kernels, twice.plan, &twice.args, NULL, &err), &err);
    twice.args.flags = FFA_BACKWARD_ACCUMULATE;
    must(ffa_backward(twice.kernels, twice.plan, &twice.args, NULL, &err), &err);
    ck_assert(largest_difference(&twice.args.dq, &once.args.dq, 2, 50, 4) == 0);
    ck_assert(largest_difference(&twice.args.dk, &once.args.dk, 2, 60, 2) == 0);
    ck_assert(largest_difference(&twice.args.dv, &once.args.dv, 2, 60, 2) == 0);
    problem_finish(&once);
    problem_finish(&twice);
}
END_TEST

/* A call per half of the keys, with out, lse and dlse of the whole, as a distributed pass makes
 * them: the sums are the whole's gradients. */
START_TEST(halves_of_the_keys_make_the_whole)
{
    static const char *const halves[] = {
        "{\"seqlen_q\":50,\"seqlen_k\":60,\"slices\":[[0,50,0,30,\"full\"],[20,50,30,60,\"causal\"]"
        "]}",
        "{\"seqlen_q\":50,\"seqlen_k\":60,\"slices\":[[0,50,0,30,\"full\"]]}",
        "{\"seqlen_q\":50,\"seqlen_k\":60,\"slices\":[[20,50,30,60,\"causal\"]]}",
    };
    struct options options = fp32_case;
    struct problem whole;
    ffa_error err = { FFA_OK, 0, "" };

    options.mask = halves[0];
    problem_init(&whole, &options);
    whole.args.dlse = whole.gradients.dlse;
    for (int i = 1; i < 3; i++) {
        ffa_mask *mask = parse(halves[i]);
        ffa_plan *plan;

        must(ffa_plan_create(&plan, whole.kernels, mask, &err), &err);
        whole.args.flags = i > 1 ? (uint32_t)FFA_BACKWARD_ACCUMULATE : 0;
        must(ffa_backward(whole.kernels, plan, &whole.args, NULL, &err), &err);
        ffa_plan_destroy(plan);
        ffa_mask_destroy(mask);
    }
    compare(&whole, "two halves");
    problem_finish(&whole);
}
END_TEST

/* ---- bad arguments ---- */

enum kind { I32, I64, F64, DATA, POINTER };

static const struct {
    const char *name;
    size_t at;
    enum kind kind;
    int64_t number;
    double real;
    ffa_status want;
    const char *says;
} bad_args[] = {
#define BAD(field, kind, number, real, want, says)                                                 \
    {                                                                                              \
#field " " says, offsetof(ffa_backward_args, field), kind, number, real, want, says        \
    }
    BAD(heads_kv, I32, 0, 0, FFA_INVALID, "heads_kv is 0, not in [1, 65536]"),
    BAD(heads_q, I32, 3, 0, FFA_INVALID, "heads_q is 3, not a multiple of heads_kv = 2"),
    BAD(softmax_scale, F64, 0, (double)NAN, FFA_INVALID, "softmax_scale is nan, not a finite"),
    BAD(softmax_scale, F64, 0, 1e-60, FFA_INVALID, "softmax_scale is 1e-60: 0 as a float"),
    BAD(softcap, F64, 0, 2, FFA_INVALID, "softcap is 2, the kernels were made without it"),
    BAD(sm_margin, I32, -1, 0, FFA_INVALID, "sm_margin is -1, not in [0, "),
    BAD(sink_count, I32, 9, 0, FFA_INVALID, "sink_count is 9, not in [0, 8]"),
    BAD(sink_count, I32, 1, 0, FFA_INVALID, "sink is NULL with a sink_count of 1"),
    BAD(dsink, POINTER, 16, 0, FFA_INVALID, "dsink is given with a sink_count of 0"),
    BAD(flags, I32, 2, 0, FFA_UNSUPPORTED, "flags is 0x2, known are 0x1"),
    BAD(flags, I32, 1, 0, FFA_INVALID, "the kernels were made without FFA_SPEC_GRAD_FP32"),
    BAD(q.data, DATA, -1, 0, FFA_INVALID, "q: data is NULL"),
    BAD(out.data, DATA, -1, 0, FFA_INVALID, "out: data is NULL"),
    BAD(lse.data, DATA, -1, 0, FFA_INVALID, "lse: data is NULL"),
    BAD(dout.data, DATA, -1, 0, FFA_INVALID, "dout: data is NULL"),
    BAD(dq.data, DATA, -1, 0, FFA_INVALID, "dq: data is NULL"),
    BAD(dk.data, DATA, -1, 0, FFA_INVALID, "dk: data is NULL"),
    BAD(dv.data, DATA, -1, 0, FFA_INVALID, "dv: data is NULL"),
    BAD(dlse.data, POINTER, 2, 0, FFA_INVALID, "dlse: data is 0x2, not 4-byte aligned"),
    BAD(dout.data, DATA, 1, 0, FFA_INVALID, ", not 2-byte aligned"),
    BAD(dv.data, DATA, 1, 0, FFA_INVALID, ", not 2-byte aligned"),
    BAD(dout.token_stride, I64, -8, 0, FFA_INVALID, "dout: token_stride is -8, not in [0, "),
    BAD(dk.head_stride, I64, 15, 0, FFA_INVALID, "dk: token_stride 32 and head_stride 15 make"),
    BAD(dq.token_stride, I64, 16, 0, FFA_INVALID, "dq: token_stride 16 and head_stride 16 make"),
    BAD(dv.token_stride, I64, INT64_MAX, 0, FFA_INVALID, "dv: token_stride is 922337203685477580"),
};

static void spoil(ffa_backward_args *args, int row)
{
    unsigned char *at = (unsigned char *)args + bad_args[row].at;
    const int32_t number = (int32_t)bad_args[row].number;
    unsigned char *data;

    switch (bad_args[row].kind) {
    case I32:
        memcpy(at, &number, sizeof number);
        break;
    case I64:
        memcpy(at, &bad_args[row].number, sizeof bad_args[row].number);
        break;
    case F64:
        memcpy(at, &bad_args[row].real, sizeof bad_args[row].real);
        break;
    case DATA:
        memcpy(&data, at, sizeof data);
        data = number < 0 ? NULL : data + number;
        memcpy(at, &data, sizeof data);
        break;
    case POINTER:
        data = (unsigned char *)(uintptr_t)number;
        memcpy(at, &data, sizeof data);
        break;
    }
}

static const struct options common = {
    "causal:40x50", FFA_BF16, 4, 2, 16, LAYOUT_TOKENS, 0, 0, 0, 0, 0
};

/* Nothing is written on a failure. */
static void check_refusal(struct problem *p, const ffa_kernels *kernels, const ffa_plan *plan,
                          const ffa_backward_args *args, ffa_stream stream, ffa_status want,
                          const char *says)
{
    ffa_context_stats stats = FFA_CONTEXT_STATS_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    const unsigned char *dq = p->gradients.memory[1], *dk = p->gradients.memory[2];
    ffa_status rc;

    memset(p->gradients.memory[1], 0xa5, 40 * 4 * 16 * 2);
    memset(p->gradients.memory[2], 0xa5, 50 * 2 * 16 * 2);
    rc = ffa_backward(kernels, plan, args, stream, &err);
    ck_assert_msg(rc == want && err.status == want, "%s: %s", says, ffa_status_text(rc));
    ck_assert_msg(strstr(err.message, says), "'%s', not '%s'", err.message, says);
    for (int i = 0; i < 40 * 4 * 16 * 2; i++)
        ck_assert_msg(dq[i] == 0xa5, "%s: dq was written", says);
    for (int i = 0; i < 50 * 2 * 16 * 2; i++)
        ck_assert_msg(dk[i] == 0xa5, "%s: dk was written", says);
    must(ffa_context_stats_get(context, &stats, &err), &err);
    ck_assert_uint_eq(stats.backward_calls, 0);
}

START_TEST(arguments_are_checked)
{
    struct problem p;
    ffa_backward_args args;
    ffa_error err = { FFA_OK, 0, "" };

    problem_init(&p, &common);
    args = p.args;
    spoil(&args, _i);
    check_refusal(&p, p.kernels, p.plan, &args, NULL, bad_args[_i].want, bad_args[_i].says);
    must(ffa_backward(p.kernels, p.plan, &p.args, NULL, &err), &err);
    compare(&p, "after a refusal");
    problem_finish(&p);
}
END_TEST

START_TEST(what_belongs_together_is_checked)
{
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;
    ffa_kernels *forward_only, *other_tiles, *in_order;
    ffa_plan *forward_plan, *lists_plan, *ordered_plan;
    ffa_mask *lists = parse(PER_HEAD);
    struct problem p;
    ffa_backward_args args;
    int64_t bytes = 7;
    ffa_error err = { FFA_OK, 0, "" };

    problem_init(&p, &common);
    spec.dtype = FFA_BF16;
    spec.head_dim = 16;
    must(ffa_kernels_create(&forward_only, context, &spec, &err), &err);
    must(ffa_plan_create(&forward_plan, forward_only, p.mask, &err), &err);
    spec.flags = FFA_SPEC_BACKWARD;
    spec.backward_tile_m = 16;
    must(ffa_kernels_create(&other_tiles, context, &spec, &err), &err);
    must(ffa_plan_create(&lists_plan, p.kernels, lists, &err), &err);
    spec.backward_tile_m = 0;
    spec.flags = FFA_SPEC_BACKWARD | FFA_SPEC_DETERMINISTIC;
    must(ffa_kernels_create(&in_order, context, &spec, &err), &err);
    must(ffa_plan_create(&ordered_plan, in_order, p.mask, &err), &err);

    check_refusal(&p, NULL, p.plan, &p.args, NULL, FFA_INVALID, "kernels is NULL");
    check_refusal(&p, p.kernels, NULL, &p.args, NULL, FFA_INVALID, "plan is NULL");
    check_refusal(&p, p.kernels, p.plan, NULL, NULL, FFA_INVALID, "args is NULL");
    check_refusal(&p, forward_only, p.plan, &p.args, NULL, FFA_INVALID,
                  "the kernels were made without FFA_SPEC_BACKWARD");
    check_refusal(&p, p.kernels, forward_plan, &p.args, NULL, FFA_INVALID,
                  "the plan was made with kernels without FFA_SPEC_BACKWARD");
    check_refusal(&p, other_tiles, p.plan, &p.args, NULL, FFA_INVALID,
                  "the plan has backward tiles of 128 x 128, the kernels of 16 x 128");
    check_refusal(&p, in_order, p.plan, &p.args, NULL, FFA_INVALID,
                  "the plan was made with kernels without FFA_SPEC_DETERMINISTIC, these are of it");
    check_refusal(&p, p.kernels, ordered_plan, &p.args, NULL, FFA_INVALID,
                  "the plan was made with kernels of FFA_SPEC_DETERMINISTIC, these are without it");
    check_refusal(&p, p.kernels, p.plan, &p.args, (ffa_stream)(uintptr_t)16, FFA_INVALID,
                  "stream is 0x10 on the CPU backend");
    args = p.args;
    args.heads_kv = 1;
    check_refusal(&p, p.kernels, lists_plan, &args, NULL, FFA_INVALID,
                  "heads_kv is 1, the mask has 2 lists");
    args = p.args;
    args.partial_dk = args.dk;
    args.partial_dv = args.dv;
    check_refusal(&p, p.kernels, p.plan, &args, NULL, FFA_INVALID,
                  "partial_dk is given, the kernels were made without FFA_SPEC_STAGED");
    args = p.args;
    args.struct_size = 2;
    check_refusal(&p, p.kernels, p.plan, &args, NULL, FFA_INVALID, "struct_size is 2");

    /* The forward pass takes a plan of both, and workspaces of the CPU are nothing. */
    must(ffa_forward(forward_only, p.plan, &p.test.args, NULL, &err), &err);
    must(ffa_backward_workspace_bytes(p.kernels, p.plan, 4, 2, &bytes, &err), &err);
    ck_assert_int_eq(bytes, 0);
    bytes = 7;
    ck_assert_int_eq(ffa_backward_workspace_bytes(p.kernels, p.plan, 3, 2, &bytes, &err),
                     FFA_INVALID);
    ck_assert_int_eq(bytes, 0);
    ck_assert_int_eq(ffa_backward_workspace_bytes(forward_only, p.plan, 4, 2, &bytes, &err),
                     FFA_INVALID);
    ck_assert_int_eq(ffa_backward_workspace_bytes(p.kernels, p.plan, 4, 2, NULL, &err),
                     FFA_INVALID);
    ck_assert_int_eq(ffa_backward_workspace_bytes(NULL, p.plan, 4, 2, &bytes, &err), FFA_INVALID);
    ffa_plan_destroy(forward_plan);
    ffa_plan_destroy(lists_plan);
    ffa_plan_destroy(ordered_plan);
    ffa_kernels_destroy(forward_only);
    ffa_kernels_destroy(other_tiles);
    ffa_kernels_destroy(in_order);
    ffa_mask_destroy(lists);
    problem_finish(&p);
}
END_TEST

/* ---- plans and workspaces ---- */

/* Kernels that say they are a GPU's, as far as planning looks at them. */
static struct ffa_kernels gpu_kernels(void)
{
    const struct device_facts facts = { .name = "NVIDIA H200", .sm_count = 132 };

    return (struct ffa_kernels){ .context = context,
                                 .device = choose_device_of(&facts),
                                 .head_dim = 120,
                                 .head_dim_v = 64,
                                 .dq_columns = 128,
                                 .forward = { { .kernel = (struct gpu_kernel *)(uintptr_t)1,
                                                .tile_m = 128,
                                                .tile_n = 128 } },
                                 .forward_count = 1,
                                 .has_backward = true,
                                 .backward = { { .tile_m = 64, .tile_n = 128, .cluster = 1 } },
                                 .backward_count = 1 };
}

static int lockstep_in(const ffa_plan *plan)
{
    return ((const struct plan_header *)(const void *)plan->image_data)->lockstep;
}

/* Documents that L2 does not hold in lockstep go head by head, by the heads of the spec; where it
 * names none, and with ordered accumulation, in lockstep. Tuning has both. */
START_TEST(plans_go_in_lockstep_where_that_pays)
{
    const int both = PLAN_LOCKSTEP | PLAN_LOCKSTEP_DESCENDING;
    const struct {
        const char *mask;
        int32_t heads_q;
        bool is_deterministic;
        int want;
    } rows[] = {
        { "varlen-causal:1024*8", 64, false, both },
        { "varlen-causal:2048*16", 64, false, 0 },
        { "varlen-causal:2048*16", 8, false, both },
        { "varlen-causal:2048*16", 0, false, both },
        { "varlen-causal:2048*16", 64, true, both },
        { "causal:65536", 64, false, both },
        { "window:8192,left=1024,right=0", 64, false, 0 },
    };

    for (size_t i = 0; i < ROWS_OF(rows); i++) {
        struct ffa_kernels gpu = gpu_kernels();
        ffa_mask *mask = parse(rows[i].mask);
        ffa_error err = { FFA_OK, 0, "" };
        ffa_plan *plan;

        gpu.head_dim = gpu.head_dim_v = 128;
        gpu.dtype = FFA_BF16;
        gpu.heads_q = rows[i].heads_q;
        gpu.heads_kv = rows[i].heads_q ? 8 : 0;
        gpu.is_deterministic = rows[i].is_deterministic;
        must(ffa_plan_create(&plan, &gpu, mask, &err), &err);
        ck_assert_msg(lockstep_in(plan) == rows[i].want, "%s: %d", rows[i].mask, lockstep_in(plan));
        if (plan->backward.lockstep != TILE_LOCKSTEP_NONE && !rows[i].is_deterministic) {
            plan_force_order(plan, (struct backward_order){ 1, 1, 0 }, true);
            ck_assert_int_eq(lockstep_in(plan), 0);
            plan_force_order(plan, (struct backward_order){ 1, 1, 0 }, false);
            ck_assert_int_eq(lockstep_in(plan), both);
        }
        ffa_plan_destroy(plan);
        ffa_mask_destroy(mask);
    }
}
END_TEST

/* Without tickets, and with them. */
START_TEST(one_image_serves_both_passes)
{
    struct ffa_kernels gpu = gpu_kernels();
    ffa_mask *mask = parse("varlen-causal:300,1,40");
    ffa_plan_info info = FFA_PLAN_INFO_INIT;
    const struct plan_image *image;
    const struct tile_plan *backward;
    ffa_plan *plan;
    ffa_error err = { FFA_OK, 0, "" };

    gpu.is_deterministic = _i;
    must(ffa_plan_create(&plan, &gpu, mask, &err), &err);
    must(ffa_plan_info_get(plan, &info, &err), &err);
    backward = &plan->backward;
    ck_assert_int_eq(backward->ticket_count > 0, _i);
    must(tile_check(backward, &err), &err);
    ck_assert_int_eq(info.backward_tile_m, 64);
    ck_assert_int_eq(info.backward_tile_n, 128);
    ck_assert_int_eq(info.backward_tile_count, backward->tile_count);
    ck_assert_int_eq(info.backward_block_count, backward->block_count);
    ck_assert_int_eq(info.backward_partial_blocks, backward->partial_blocks);
    ck_assert_int_eq(info.area, backward->area);
    image = &plan->image;
    ck_assert_int_eq(image->backward.tiles_at,
                     64 + 32 * (plan->forward.tile_count + plan->forward.sweep_count +
                                plan->forward.band_count));
    ck_assert_int_eq(info.upload_bytes, image->backward.tiles_at +
                                            32 * (backward->tile_count + backward->sweep_count +
                                                  backward->band_count) +
                                            8 * backward->ticket_count);
    ck_assert_mem_eq(plan_image_tiles(&image->backward, plan->image_data), backward->tiles,
                     32 * (size_t)backward->tile_count);
    ck_assert_mem_eq(plan_image_sweeps(&image->backward, plan->image_data), backward->sweeps,
                     32 * (size_t)backward->sweep_count);
    ck_assert_mem_eq(plan_image_bands(&image->backward, plan->image_data), backward->bands,
                     32 * (size_t)backward->band_count);
    if (_i)
        ck_assert_mem_eq(plan_image_tickets(image, plan->image_data), backward->tickets,
                         8 * (size_t)backward->ticket_count);
    ffa_plan_destroy(plan);
    ffa_mask_destroy(mask);
}
END_TEST

/* What a plan says of the order is what a call with the heads of the spec takes. */
START_TEST(an_order_shows_in_the_plan)
{
    struct ffa_kernels gpu = gpu_kernels();
    ffa_plan_info info = FFA_PLAN_INFO_INIT;
    ffa_mask *mask = parse("causal:4096");
    struct backward_layout layout;
    ffa_plan *plan;
    ffa_error err = { FFA_OK, 0, "" };

    must(ffa_plan_create(&plan, &gpu, mask, &err), &err);
    must(ffa_plan_info_get(plan, &info, &err), &err);
    ck_assert_int_eq(info.backward_parts, 0); /* no heads are known */
    ck_assert_int_eq(info.l2_heads_kv, 0);
    ffa_plan_destroy(plan);
    gpu.heads_q = 8;
    gpu.heads_kv = 1;
    must(ffa_plan_create(&plan, &gpu, mask, &err), &err);
    must(ffa_plan_info_get(plan, &info, &err), &err);
    must(backward_layout_make(&layout, plan, &gpu, 8, 1, 132, &err), &err);
    ck_assert_int_eq(info.backward_parts, 8); /* test_choose.c, an H200 */
    ck_assert_int_eq(info.backward_parts, layout.order.parts);
    ck_assert_int_eq(info.backward_waves, layout.order.waves);
    ck_assert_int_eq(info.backward_l2_head_groups, 4);
    ck_assert_int_eq(info.l2_heads_kv, 1);
    ffa_plan_destroy(plan);
    ffa_mask_destroy(mask);
}
END_TEST

/* What the plan remembers of an L2 group is of the heads and SMs that it was asked for; those
 * beyond its bits are found each time. */
START_TEST(l2_groups_are_of_the_heads_asked_for)
{
    static const struct {
        int32_t tile_heads, heads_kv, sm_margin;
    } asked[] = { { 1, 32, 0 },      { 4, 8, 0 },  { 1, 32, 0 },   { 1, 32, 120 },
                  { 1, 16, 0 },      { 16, 1, 0 }, { 1, 16, 0 },   { 32, 1, 0 },
                  { 1 << 16, 2, 0 }, { 1, 2, 0 },  { 1, 32, 120 }, { 1, 32, 0 } };
    struct ffa_kernels gpu = gpu_kernels();
    ffa_mask *mask = parse("causal:8192");
    int32_t wants[sizeof asked / sizeof *asked];
    bool differ = false;
    ffa_plan *plan;
    ffa_error err = { FFA_OK, 0, "" };

    gpu.dtype = FFA_BF16;
    must(ffa_plan_create(&plan, &gpu, mask, &err), &err);
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        const struct l2_query query = {
            .heads_kv = asked[i].heads_kv,
            .tile_heads = asked[i].tile_heads,
            .tile_rows = plan->forward.tile_m,
            .key_bytes = plan->choice.token_bytes,
            .cost = plan->choice.device.costs->packed_cost,
            .sm_margin = asked[i].sm_margin,
        };
        const int32_t want = choose_l2_heads(&plan->forward, &query, &plan->choice.device);

        for (int again = 0; again < 2; again++)
            ck_assert_int_eq(
                plan_l2_heads_kv(plan, asked[i].tile_heads, asked[i].heads_kv, asked[i].sm_margin),
                want);
        differ |= want != asked[i].heads_kv;
        wants[i] = want;
    }
    ck_assert(differ);
    ck_assert_int_ne(wants[2], wants[3]); /* but for the SMs, the same question */
    ffa_plan_destroy(plan);
    ffa_mask_destroy(mask);
}
END_TEST

static const struct {
    const char *mask;
    int32_t heads_q, heads_kv, sm_count;
    int32_t parts;
    int32_t cluster;
} layouts[] = {
    { "full:128", 1, 1, 132, 1, 1 },
    { "full:128", 64, 8, 132, 8, 1 }, /* fewer items than SMs */
    { "full:2048", 64, 8, 132, 1, 1 },
    { "full:4096", 64, 8, 132, 1, 1 },   /* no tile is longer than another: nothing drifts apart */
    { "causal:4096", 64, 8, 132, 1, 1 }, /* lockstep */
    { "window:8192,left=1023,right=0", 64, 8, 132, 4, 1 }, /* ordered, all heads at once */
    { "window:8192,left=1023,right=0", 64, 8, 132, 2, 1 },
    { "causal:4096", 64, 8, 132, 4, 1 }, /* ordered */
    { "full:3040", 24, 8, 132, 3, 1 },
    { "full:16384", 96, 1, 132, 1, 1 },
    { "full:128", 12, 2, 2, 1, 1 },
    { "causal:16384", 64, 8, 132, 4, 1 },
    { "window:8192,left=128,right=0", 64, 8, 1000, 1, 1 }, /* 2 parts: two rounds, of 24 items */
    { "full:2048", 64, 8, 264, 1, 2 },                     /* as many clusters as SMs above */
    { "causal:4096", 64, 8, 264, 1, 2 },
    { "causal:4096", 64, 8, 265, 4, 2 }, /* an SM is left over; ordered */
    { "full:128", 1, 1, 1, 1, 2 },       /* a cluster at least */
};

START_TEST(workspaces_hold_what_their_parts_need)
{
    struct ffa_kernels gpu = gpu_kernels();
    ffa_mask *mask = parse(layouts[_i].mask);
    const int64_t rows = ffa_mask_seqlen_q(mask), keys = ffa_mask_seqlen_k(mask);
    const int32_t heads_q = layouts[_i].heads_q, heads_kv = layouts[_i].heads_kv;
    const int32_t cluster = layouts[_i].cluster;
    const int64_t semaphores = _i % 2 ? (rows + 63) / 64 * heads_q * cluster * 4 : 0;
    struct backward_layout layout;
    ffa_plan *plan;
    int64_t end;
    ffa_error err = { FFA_OK, 0, "" };

    gpu.backward[0].cluster = cluster;
    gpu.is_deterministic = _i % 2;
    gpu.is_staged = _i % 3 == 0; /* a stage may have sums to add, in one part, too */
    must(ffa_plan_create(&plan, &gpu, mask, &err), &err);
    must(backward_layout_make(&layout, plan, &gpu, heads_q, heads_kv, layouts[_i].sm_count, &err),
         &err);
    ck_assert_int_eq(layout.order.parts, layouts[_i].parts);
    ck_assert_int_ge(layout.stats_rows, rows + gpu.backward[0].tile_m);
    ck_assert_int_eq(layout.stats_rows % 4, 0);
    ck_assert_int_ge(layout.semaphores_at, 256);
    ck_assert_int_ge(layout.counters_bytes, layout.semaphores_at + semaphores);
    ck_assert_int_lt(layout.counters_bytes, layout.semaphores_at + semaphores + 256);
    ck_assert_int_eq(layout.counters_bytes % 16, 0);
    ck_assert_int_ge(layout.stats_at, layout.counters_bytes);
    ck_assert_int_ge(layout.dq_at, layout.stats_at + layout.stats_rows * heads_q * 2 * 4);
    ck_assert_int_eq(layout.dq_rows, (rows + 7) / 8 * 8);
    end = layout.dq_at + layout.dq_rows * heads_q * 128 * 4;
    if (layout.order.parts > 1 || gpu.is_staged) {
        const int64_t rows_bytes =
            keys * (heads_kv - layout.order.whole_heads) * layout.order.parts * 4;

        ck_assert_int_ge(layout.dk_at, end);
        ck_assert_int_ge(layout.dv_at, layout.dk_at + rows_bytes * 120);
        end = layout.dv_at + rows_bytes * 64;
    }
    ck_assert_int_ge(layout.bytes, end);
    ck_assert_int_lt(layout.bytes, end + 256);
    ck_assert_int_eq((layout.stats_at | layout.dq_at | layout.dk_at | layout.dv_at) % 256, 0);
    ffa_plan_destroy(plan);
    ffa_mask_destroy(mask);
}
END_TEST

/* Kernels with a second kernel of the gradients: a plan is for it where its tiles visit hardly
 * more and their rows stay in L2, 1 KB each, and is worked on by half as many clusters. */
static const struct {
    const char *mask;
    int32_t tile_n, ordered_tile_n;
} pair_rows[] = {
    { "full:4096", 256, 256 },
    { "causal:16384", 256, 256 }, /* 0.8 % more */
    { "causal:4096", 128, 128 },  /* 3 % more */
    { "window:16384,left=1023,right=0", 128, 128 },
    { "varlen-full:100*40", 128, 128 },
    { "varlen-full:1024*16", 128, 128 }, /* short tiles */
    { "varlen-full:2048*8", 256, 256 },
    { "full:20480", 256, 256 }, /* a third of L2 */
    { "full:40960", 128, 256 }, /* two thirds */
    { "full:65536", 128, 128 },
    { "causal:65536", 128, 256 }, /* the mean over all blocks: two thirds of the rows */
    { "varlen-full:60000,1000*6", 128, 128 },
};

static struct ffa_kernels pair_kernels(bool is_ordered)
{
    struct ffa_kernels gpu = gpu_kernels();

    gpu.head_dim = gpu.head_dim_v = 128;
    gpu.dtype = FFA_BF16;
    gpu.is_deterministic = is_ordered;
    gpu.backward[1] = (struct backward_kernel){ .tile_m = 64, .tile_n = 256, .cluster = 2 };
    gpu.backward_count = 2;
    return gpu;
}

START_TEST(masks_choose_pairs)
{
    const bool is_ordered = _i % 2;
    const int32_t tile_n = is_ordered ? pair_rows[_i / 2].ordered_tile_n : pair_rows[_i / 2].tile_n;
    struct ffa_kernels gpu = pair_kernels(is_ordered);
    ffa_mask *mask = parse(pair_rows[_i / 2].mask);
    const int32_t sm_count = gpu.device.facts.sm_count;
    struct backward_layout layout;
    int64_t bytes;
    ffa_plan *plan;
    ffa_error err = { 0 };

    must(ffa_plan_create(&plan, &gpu, mask, &err), &err);
    ck_assert_int_eq(plan->backward.tile_n, tile_n);
    ck_assert_int_eq(plan->choice.backward_at_a_time, sm_count * 128 / tile_n);
    must(backward_layout_make(&layout, plan, &gpu, 12, 2, 132, &err), &err);
    if (is_ordered)
        ck_assert_int_ge(layout.counters_bytes,
                         layout.semaphores_at +
                             ticket_grid_blocks(&plan->backward) * 12 * (tile_n / 128) * 4);
    /* Kernels that lack the tile do not take the plan. */
    gpu.backward_count = 1;
    gpu.backward[0] = gpu.backward[tile_n == 128];
    ck_assert_int_eq(ffa_backward_workspace_bytes(&gpu, plan, 12, 2, &bytes, &err), FFA_INVALID);
    ck_assert_ptr_nonnull(strstr(err.message, tile_n == 128 ? "64 x 128, the kernels of 64 x 256"
                                                            : "64 x 256, the kernels of 64 x 128"));
    ffa_plan_destroy(plan);
    ffa_mask_destroy(mask);
}
END_TEST

/* Of masks that have pairs: with a capacity, as other masks will follow; and where memory ends
 * before the choice is made. With ordered accumulation the choice is the same on every device. */
START_TEST(what_else_decides_about_pairs)
{
    struct ffa_kernels gpu = pair_kernels(_i);
    ffa_mask *mask = parse("full:20480");
    ffa_plan_opts opts = FFA_PLAN_OPTS_INIT;
    long nth = 1;
    ffa_plan *plan = NULL, *like = NULL;
    ffa_error err = { 0 };

    for (;; nth++) {
        ffa_status rc;

        fault_arm(FAULT_ALLOC, nth);
        rc = ffa_plan_create(&plan, &gpu, mask, &err);
        if (!fault_fired())
            break;
        ck_assert_int_eq(rc, FFA_NOMEM);
        ck_assert_ptr_null(plan);
    }
    fault_arm(FAULT_ALLOC, 0);
    ck_assert_int_gt(nth, 10);
    ck_assert_int_eq(plan->backward.tile_n, 256);
    ffa_plan_destroy(plan);

    gpu.device.facts.l2_bytes = 10 << 20;
    must(ffa_plan_create(&plan, &gpu, mask, &err), &err);
    ck_assert_int_eq(plan->backward.tile_n, _i ? 256 : 128);
    ffa_plan_destroy(plan);

    gpu.device.facts.l2_bytes = 0;
    opts.capacity_bytes = 1 << 20;
    must(ffa_plan_create_with(&plan, &gpu, mask, &opts, &err), &err);
    ck_assert_int_eq(plan->backward.tile_n, 128);
    opts.like = plan;
    must(ffa_plan_create_with(&like, &gpu, mask, &opts, &err), &err);
    ck_assert_int_eq(like->backward.tile_n, 128);
    ffa_plan_destroy(like);
    ffa_plan_destroy(plan);
    ffa_mask_destroy(mask);
}
END_TEST

/* Tiles of pairs are built where they may be wanted, and not where tiles are short: no mask that
 * wants pairs is passed over. */
START_TEST(pairs_are_built_where_they_may_be_wanted)
{
    const struct order_query query = { .row_bytes = 1024 };
    struct rng rng = { 30 };
    int32_t wanted = 0, passed_over = 0;
    ffa_error err = { 0 };

    for (int32_t n = 0; n < 300; n++) {
        struct mask_case from = mask_case_random(&rng, 4096, 1 + n % 8);
        struct tile_options options = { .tile_m = 64, .tile_n = 128, .on_grid = n % 2 };
        struct tile_plan alone, pairs;
        ffa_mask *mask;
        bool wants;

        must(ffa_mask_create(&mask, &from.shape, from.slices, from.count, &err), &err);
        must(backward_tiles_build(&alone, mask, &options, 4, &err), &err);
        options.tile_n = 256;
        must(backward_tiles_build(&pairs, mask, &options, 4, &err), &err);
        wants = backward_wants_pairs(&alone, &pairs, &query);
        ck_assert(!wants || backward_may_want_pairs(&alone));
        wanted += wants;
        passed_over += !backward_may_want_pairs(&alone);
        tile_finish(&alone);
        tile_finish(&pairs);
        ffa_mask_destroy(mask);
        free(from.slices);
    }
    ck_assert_int_gt(wanted, 5);
    ck_assert_int_gt(passed_over, 5);
}
END_TEST

/* Which specs have kernels of both kinds. */
static const struct {
    const char *spec;
    int32_t count;
} pair_specs[] = {
    { "head_dim=128,dtype=bf16,backward", 2 },
    { "head_dim=104,dtype=fp16,backward,deterministic", 2 },
    { "head_dim=128,dtype=bf16,backward,grad_fp32", 2 },
    { "head_dim=96,dtype=bf16,backward", 1 },
    { "head_dim=136,dtype=bf16,backward", 1 },
    { "head_dim=128:64,dtype=bf16,backward", 1 },
    { "head_dim=128,dtype=bf16,backward,softcap", 1 },
    { "head_dim=128,dtype=bf16,backward,staged", 1 },
    { "head_dim=128,dtype=bf16,backward,parallel", 1 },
    { "head_dim=128,dtype=bf16,backward,backward_tile=64x256", 1 },
};

START_TEST(specs_have_pairs)
{
    const struct choose_device device = choose_device_of(&(struct device_facts){ .sm_count = 132 });
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;
    struct ffa_kernels kernels;
    struct kernel_list list;
    ffa_error err = { 0 };

    must(ffa_attention_spec_parse(&spec, pair_specs[_i].spec, &err), &err);
    must(kernels_outline(&kernels, &list, &spec, "sm_90a", &device, &err), &err);
    ck_assert_int_eq(kernels.backward_count, pair_specs[_i].count);
}
END_TEST

/* A plan remembers its parts for one layout of heads and device, and takes no other's for them. */
START_TEST(parts_are_those_of_the_heads_that_ask)
{
    static const struct order_query asked[] = { { .group = 8, .heads_kv = 8, .at_a_time = 132 },
                                                { .group = 3, .heads_kv = 4, .at_a_time = 132 },
                                                { .group = 8, .heads_kv = 8, .at_a_time = 16 },
                                                { .group = 8, .heads_kv = 1, .at_a_time = 132 },
                                                { .group = 12, .heads_kv = 2, .at_a_time = 3 },
                                                { .group = 4096, .heads_kv = 1, .at_a_time = 132 },
                                                { .group = 1, .heads_kv = 8, .at_a_time = 132 } };
    struct ffa_kernels gpu = gpu_kernels();
    ffa_mask *mask = parse("full:8960");
    struct backward_layout layout;
    int32_t first = 0, others = 0, left_whole = 0;
    ffa_plan *plan;
    ffa_error err = { FFA_OK, 0, "" };

    must(ffa_plan_create(&plan, &gpu, mask, &err), &err);
    for (size_t i = 0; i < 4 * ROWS_OF(asked); i++) { /* each twice in a row, and again later */
        const struct order_query *query = &asked[i / 2 % ROWS_OF(asked)];
        const struct order_query same = { .group = query->group,
                                          .heads_kv = query->heads_kv,
                                          .at_a_time = query->at_a_time,
                                          .can_leave_whole = true,
                                          .row_bytes = plan->choice.row_bytes };
        const struct backward_order order = backward_order_find(&plan->backward, &same);
        const int32_t parts = order.parts;

        must(backward_layout_make(&layout, plan, &gpu, query->group * query->heads_kv,
                                  query->heads_kv, query->at_a_time, &err),
             &err);
        ck_assert_int_eq(layout.order.parts, parts);
        ck_assert_int_eq(layout.order.waves, order.waves);
        ck_assert_int_eq(layout.order.whole_heads, order.whole_heads);
        left_whole += order.whole_heads > 0;
        ck_assert_int_eq(query->group % parts, 0);
        first = i == 0 ? parts : first;
        others += parts != first;
    }
    ck_assert_int_gt(others, 0);
    ck_assert_int_gt(left_whole, 0);
    ffa_plan_destroy(plan);
    ffa_mask_destroy(mask);
}
END_TEST

START_TEST(a_workspace_beyond_all_memory_is_refused)
{
    struct ffa_kernels gpu = gpu_kernels();
    const ffa_mask_shape shape = { INT32_MAX - 1023, INT32_MAX - 1023 };
    struct backward_layout layout;
    ffa_mask *mask;
    ffa_plan *plan;
    ffa_error err = { FFA_OK, 0, "" };

    gpu.backward[0].tile_n = 1 << 20; /* few tiles */
    gpu.forward[0].tile_m = 1 << 20;
    gpu.dq_columns = 256;
    must(ffa_mask_create(&mask, &shape, NULL, 0, &err), &err);
    must(ffa_plan_create(&plan, &gpu, mask, &err), &err);
    ck_assert_int_eq(backward_layout_make(&layout, plan, &gpu, 65536, 1, 1, &err), FFA_INVALID);
    ck_assert_msg(strstr(err.message, "the workspace would need 140737421246464 rows of 1024"),
                  "%s", err.message);
    ffa_plan_destroy(plan);
    ffa_mask_destroy(mask);
}
END_TEST

/* ---- no memory ---- */

START_TEST(any_allocation_may_fail)
{
    struct ffa_kernels gpu = gpu_kernels();
    struct problem p;
    ffa_error err = { FFA_OK, 0, "" };
    long nth;

    problem_init(&p, &common);
    for (nth = 1;; nth++) {
        ffa_status rc;

        fault_arm(FAULT_ALLOC, nth);
        rc = ffa_backward(p.kernels, p.plan, &p.args, NULL, &err);
        if (!fault_fired())
            break;
        ck_assert_int_eq(rc, FFA_NOMEM);
    }
    fault_arm(FAULT_ALLOC, 0);
    ck_assert_int_gt(nth, 3);
    compare(&p, "after the faults");
    for (nth = 1;; nth++) {
        ffa_plan *plan = p.plan;
        ffa_status rc;

        fault_arm(FAULT_ALLOC, nth);
        rc = ffa_plan_create(&plan, &gpu, p.mask, &err);
        if (!fault_fired()) {
            ck_assert_int_eq(rc, FFA_OK);
            ffa_plan_destroy(plan);
            break;
        }
        ck_assert_int_eq(rc, FFA_NOMEM);
        ck_assert_ptr_null(plan);
    }
    fault_arm(FAULT_ALLOC, 0);
    ck_assert_int_gt(nth, 20);
    problem_finish(&p);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("api, backward");
    TCase *tc = tcase_create("api, backward");

    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, gradients_as_the_oracle, 0, ROWS_OF(answers));
    tcase_add_test(tc, accumulating_twice_is_twice);
    tcase_add_test(tc, halves_of_the_keys_make_the_whole);
    tcase_add_loop_test(tc, arguments_are_checked, 0, ROWS_OF(bad_args));
    tcase_add_test(tc, what_belongs_together_is_checked);
    tcase_add_test(tc, plans_go_in_lockstep_where_that_pays);
    tcase_add_loop_test(tc, one_image_serves_both_passes, 0, 2);
    tcase_add_test(tc, an_order_shows_in_the_plan);
    tcase_add_test(tc, l2_groups_are_of_the_heads_asked_for);
    tcase_add_loop_test(tc, masks_choose_pairs, 0, 2 * ROWS_OF(pair_rows));
    tcase_add_loop_test(tc, what_else_decides_about_pairs, 0, 2);
    tcase_add_test(tc, pairs_are_built_where_they_may_be_wanted);
    tcase_add_loop_test(tc, specs_have_pairs, 0, ROWS_OF(pair_specs));
    tcase_add_loop_test(tc, workspaces_hold_what_their_parts_need, 0, ROWS_OF(layouts));
    tcase_add_test(tc, parts_are_those_of_the_heads_that_ask);
    tcase_add_test(tc, a_workspace_beyond_all_memory_is_refused);
    tcase_add_test(tc, any_allocation_may_fail);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
