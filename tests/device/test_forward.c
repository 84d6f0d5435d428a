/* SPDX-License-Identifier: Apache-2.0
 *
 * The forward kernel on a GPU against the fp64 oracle. Exit 77 where there is no GPU.
 *
 * Every call has fresh random inputs and outputs poisoned with NaN. It runs twice, with equal bits,
 * and nothing is written outside the outputs.
 *
 * FFA_TEST_LEVEL is explained in device_case.h; a sample is 512 rows.
 * CK_RUN_CASE=calls|quick|chosen|unions|dims|bf16|fp16 runs a part, FFA_TEST_PART=I/N one of N
 * shares of it. FFA_TEST_STORE=PATH is a store for the kernels, which several runs can share.
 */
#include "attention/attention.h"
#include "base/half.h"
#include "oracle/oracle.h"
#include "support/device_case.h"
#include "support/stage_case.h"
#include "support/tmpdir.h"

#include "support/suite.h"
#include <check.h>
#include <cuda_runtime_api.h>
#include <ffa/ffa.h>
#include <math.h>
#include <stdio.h>
#include <unistd.h>

static ffa_context *context;
static struct mask_cases cases;
static int32_t sm_count;

enum { SAMPLES = 512 };

/* ---- one call on the device ---- */

enum { TENSORS = 6 }; /* q, k, v, out, lse, and max_logits, which has no strides */

struct device_call {
    struct attention_case host;
    ffa_forward_args args; /* the same with device pointers */
    void *memory[TENSORS];
    int64_t bytes[TENSORS];
    unsigned char *first[2]; /* out and lse of the first run */
    float tops[64];          /* max_logits, if the call has them */
    ffa_plan_info info;      /* of the last attempt */
};

static int64_t extent(const ffa_tensor *tensor, int64_t tokens, int64_t heads, int64_t dim,
                      int64_t element)
{
    return ((tokens - 1) * tensor->token_stride + (heads - 1) * tensor->head_stride + dim) *
           element;
}

static ffa_tensor *tensor_of(ffa_forward_args *args, int index)
{
    ffa_tensor *all[] = { &args->q, &args->k, &args->v, &args->out, &args->lse };

    return all[index];
}

/* Guard bytes before and after each output, which must not change. */
enum { GUARD = 256, GUARD_BYTE = 0xa5 };

static void call_init_v(struct device_call *call, const struct attention_shape *shape,
                        int32_t head_dim_v, struct rng *rng)
{
    const int64_t rows = shape->mask.seqlen_q, keys = shape->mask.seqlen_k;
    const int64_t dim = shape->head_dim;
    ffa_error err = { 0 };

    *call = (struct device_call){ 0 };
    attention_case_init_v(&call->host, shape, head_dim_v, rng);
    call->args = call->host.args;
    for (int i = 0; i < 5; i++) {
        const ffa_tensor *tensor = tensor_of(&call->host.args, i);
        const bool is_kv = i == 1 || i == 2;

        call->bytes[i] =
            extent(tensor, is_kv ? keys : rows, is_kv ? shape->heads_kv : shape->heads_q,
                   i == 4             ? 1
                   : i == 2 || i == 3 ? call->host.head_dim_v
                                      : dim,
                   i == 4 ? 4 : 2);
        must(ffa_device_alloc(&call->memory[i], context, call->bytes[i] + 2 * GUARD, &err), &err,
             "allocate");
        must(
            ffa_device_fill(context, call->memory[i], GUARD_BYTE, call->bytes[i] + 2 * GUARD, &err),
            &err, "fill");
        tensor_of(&call->args, i)->data = (char *)call->memory[i] + GUARD;
    }
}

static void call_init(struct device_call *call, const struct attention_shape *shape,
                      struct rng *rng)
{
    call_init_v(call, shape, 0, rng);
}

/* Ask for max_logits too; the attempt's spec must have FFA_SPEC_MAX_LOGITS. */
static void call_with_tops(struct device_call *call)
{
    ffa_error err = { 0 };

    ck_assert_int_le(call->args.heads_q, 64);
    call->bytes[5] = call->args.heads_q * (int64_t)sizeof(float);
    must(ffa_device_alloc(&call->memory[5], context, call->bytes[5] + 2 * GUARD, &err), &err,
         "allocate");
    must(ffa_device_fill(context, call->memory[5], GUARD_BYTE, call->bytes[5] + 2 * GUARD, &err),
         &err, "fill");
    call->args.max_logits = (float *)(void *)((char *)call->memory[5] + GUARD);
    call->host.args.max_logits = call->tops;
}

static void call_send_inputs(struct device_call *call)
{
    ffa_error err = { 0 };

    for (int i = 0; i < 3; i++)
        must(ffa_device_copy(context, tensor_of(&call->args, i)->data,
                             tensor_of(&call->host.args, i)->data, call->bytes[i], FFA_TO_DEVICE,
                             &err),
             &err, "send");
}

static void call_finish(struct device_call *call)
{
    for (int i = 0; i < TENSORS; i++)
        ffa_device_free(context, call->memory[i]);
    for (int i = 0; i < 2; i++)
        free(call->first[i]);
    attention_case_finish(&call->host);
}

static void check_guards(const struct device_call *call, const char *name)
{
    unsigned char guard[2 * GUARD];
    ffa_error err = { 0 };

    for (int i = 3; i < TENSORS && call->memory[i]; i++) {
        const char *at = call->memory[i];

        must(ffa_device_copy(context, guard, at, GUARD, FFA_FROM_DEVICE, &err), &err, "read");
        must(ffa_device_copy(context, guard + GUARD, at + GUARD + call->bytes[i], GUARD,
                             FFA_FROM_DEVICE, &err),
             &err, "read");
        for (int b = 0; b < 2 * GUARD; b++)
            ck_assert_msg(guard[b] == GUARD_BYTE, "%s: wrote beside output %d, guard byte %d", name,
                          i - 3, b);
    }
}

static int workspace_byte = 0xff; /* that workspaces are full of before each call */

/* A workspace for calls with the plan; nothing of it is prepared. */
static void workspace_init(ffa_forward_args *args, const ffa_kernels *kernels, const ffa_plan *plan)
{
    ffa_error err = { 0 };

    must(ffa_workspace_bytes(kernels, plan, &args->workspace_bytes, &err), &err, "workspace");
    must(ffa_device_alloc(&args->workspace, context, args->workspace_bytes, &err), &err,
         "workspace");
    must(ffa_device_fill(context, args->workspace, workspace_byte, args->workspace_bytes, &err),
         &err, "workspace");
}

/* Poison the outputs, run, and fetch out and lse into the host tensors. */
static void run_once(struct device_call *call, const ffa_kernels *kernels, const ffa_plan *plan,
                     const struct oracle_case *test, ffa_stream stream)
{
    ffa_error err = { 0 };

    oracle_poison(test);
    for (int i = 3; i < 5; i++)
        must(ffa_device_copy(context, tensor_of(&call->args, i)->data,
                             tensor_of(&call->host.args, i)->data, call->bytes[i], FFA_TO_DEVICE,
                             &err),
             &err, "poison");
    must(ffa_device_fill(context, call->args.workspace, workspace_byte, call->args.workspace_bytes,
                         &err),
         &err, "workspace");
    must(ffa_forward(kernels, plan, &call->args, stream, &err), &err, "forward");
    must(ffa_device_synchronize(context, &err), &err, "finish");
    if (call->args.max_logits)
        must(ffa_device_copy(context, call->tops, call->args.max_logits, call->bytes[5],
                             FFA_FROM_DEVICE, &err),
             &err, "fetch");
    for (int i = 3; i < 5; i++)
        must(ffa_device_copy(context, tensor_of(&call->host.args, i)->data,
                             tensor_of(&call->args, i)->data, call->bytes[i], FFA_FROM_DEVICE,
                             &err),
             &err, "fetch");
}

struct attempt {
    const char *name;
    const ffa_mask *mask;
    uint32_t spec_flags;
    int32_t tile_m;    /* 0: chosen */
    bool want_failure; /* the plan is made wrong: the comparison must fail */
    uint32_t plan_flags;
    int32_t pack;      /* heads a tile packs; 0: none */
    bool is_auto;      /* packing and splitting are chosen by the heads, instead of pack */
    bool is_split;     /* plan for splitting; spec_flags must have FFA_SPEC_SPLIT */
    bool is_unchecked; /* the caller compares */
    void (*mutate)(struct ffa_plan *plan);
};

static const ffa_kernels *kernels_for(const struct attention_case *of, uint32_t flags,
                                      int32_t tile_m, int32_t pack)
{
    const bool is_auto = pack == FFA_PACK_AUTO;
    enum { KEPT = 160 };
    static struct {
        ffa_dtype dtype;
        int32_t head_dim, head_dim_v, tile_m, pack;
        int32_t heads_q, heads_kv; /* is_auto */
        uint32_t flags;
        ffa_kernels *kernels;
    } kept[KEPT];
    const struct attention_shape *shape = &of->shape;
    ffa_error err = { 0 };

    for (int i = 0; i < KEPT; i++) {
        if (!kept[i].kernels) {
            ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;

            spec.dtype = shape->dtype;
            spec.head_dim = shape->head_dim;
            spec.head_dim_v = of->head_dim_v;
            spec.flags = flags;
            spec.tile_m = tile_m;
            spec.pack_heads = pack;
            spec.heads_q = is_auto ? shape->heads_q : 0;
            spec.heads_kv = is_auto ? shape->heads_kv : 0;
            must(ffa_kernels_create(&kept[i].kernels, context, &spec, &err), &err, "kernels");
            kept[i].dtype = shape->dtype;
            kept[i].head_dim = shape->head_dim;
            kept[i].head_dim_v = of->head_dim_v;
            kept[i].flags = flags;
            kept[i].tile_m = tile_m;
            kept[i].pack = pack;
            kept[i].heads_q = spec.heads_q;
            kept[i].heads_kv = spec.heads_kv;
        }
        if (kept[i].dtype == shape->dtype && kept[i].head_dim == shape->head_dim &&
            kept[i].head_dim_v == of->head_dim_v && kept[i].flags == flags &&
            kept[i].tile_m == tile_m && kept[i].pack == pack &&
            (!is_auto ||
             (kept[i].heads_q == shape->heads_q && kept[i].heads_kv == shape->heads_kv)))
            return kept[i].kernels;
    }
    ck_abort_msg("more kernels than the test keeps");
    return NULL;
}

/* Plan, run twice, compare with the oracle. The host case keeps the outputs. */
static void attempt_run(struct device_call *call, const struct attempt *attempt)
{
    const struct attention_shape *shape = &call->host.shape;
    const ffa_kernels *kernels = kernels_for(&call->host, attempt->spec_flags, attempt->tile_m,
                                             attempt->is_auto ? FFA_PACK_AUTO : attempt->pack);
    ffa_slice_list lists[64];
    struct oracle_case test = { 0 };
    struct oracle_result want = { 0 };
    struct oracle_report report;
    struct oracle_tolerance tolerance = oracle_tolerance_of(shape->dtype);
    struct oracle_sample *samples = NULL;
    ffa_plan_info info = FFA_PLAN_INFO_INIT;
    ffa_plan_opts plan_opts = FFA_PLAN_OPTS_INIT;
    void *buffer = NULL;
    ffa_plan *plan = NULL;
    ffa_error err = { 0 };

    ck_assert_int_le(ffa_mask_head_count(attempt->mask), 64);
    for (int32_t i = 0; i < ffa_mask_head_count(attempt->mask); i++)
        lists[i] = ffa_mask_slices(attempt->mask, i);
    test = (struct oracle_case){
        .shape = shape->mask,
        .lists = lists,
        .list_count = ffa_mask_head_count(attempt->mask),
        .head_dim = shape->head_dim,
        .head_dim_v = call->host.head_dim_v,
        .dtype = shape->dtype,
        .args = &call->host.args,
    };
    if (ffa_mask_area(attempt->mask, 0) * shape->heads_q > full_cells && !call->args.max_logits) {
        test.sample_count = oracle_samples(&test, 128, 1, SAMPLES, &samples);
        ck_assert_int_gt(test.sample_count, 0);
        test.samples = samples;
    }
    plan_opts.flags = attempt->plan_flags;
    plan_opts.heads_q = attempt->is_split ? shape->heads_q : 0;
    must(ffa_plan_create_with(&plan, kernels, attempt->mask, &plan_opts, &err), &err,
         attempt->name);
    if (attempt->mutate)
        attempt->mutate(plan);
    must(ffa_plan_info_get(plan, &info, &err), &err, "plan info");
    call->info = info;
    must(ffa_device_alloc(&buffer, context, info.upload_bytes, &err), &err, "plan buffer");
    workspace_init(&call->args, kernels, plan);
    must(ffa_plan_upload(plan, kernels, buffer, NULL, &err), &err, "upload");

    for (int i = 0; i < 2; i++) {
        call->first[i] = realloc(call->first[i], (size_t)call->bytes[3 + i]);
        ck_assert_ptr_nonnull(call->first[i]);
    }
    run_once(call, kernels, plan, &test, NULL);
    for (int i = 0; i < 2; i++)
        memcpy(call->first[i], tensor_of(&call->host.args, 3 + i)->data,
               (size_t)call->bytes[3 + i]);
    run_once(call, kernels, plan, &test, NULL);
    for (int i = 0; i < 2; i++)
        ck_assert_msg(!memcmp(call->first[i], tensor_of(&call->host.args, 3 + i)->data,
                              (size_t)call->bytes[3 + i]),
                      "%s: %s differs between two runs", attempt->name, i ? "lse" : "out");
    check_guards(call, attempt->name);

    if (attempt->is_unchecked)
        goto out;
    must(oracle_forward(&want, &test, &err), &err, "oracle");
    oracle_compare(&report, &test, &want, &tolerance);
    ck_assert_msg(
        report.passed != attempt->want_failure,
        "%s: heads %d:%d head_dim %d:%d dtype %d: out %.2e row %.2e lse %.2e top %.2e: %s",
        attempt->name, shape->heads_q, shape->heads_kv, shape->head_dim, call->host.head_dim_v,
        (int)shape->dtype, report.out, report.row, report.lse, report.top, report.reason);
    oracle_result_finish(&want);
out:
    free(samples);
    ffa_plan_destroy(plan);
    ffa_device_free(context, buffer);
    ffa_device_free(context, call->args.workspace);
    call->args.workspace = NULL;
}

static void run_random(const char *name, const ffa_mask *mask, struct attention_shape shape,
                       uint64_t seed)
{
    struct rng rng = { seed };
    struct device_call call;

    if (is_left_out(mask, shape.heads_q))
        return;
    shape.mask.seqlen_q = ffa_mask_seqlen_q(mask);
    shape.mask.seqlen_k = ffa_mask_seqlen_k(mask);
    call_init(&call, &shape, &rng);
    call_send_inputs(&call);
    attempt_run(&call, &(struct attempt){ .name = name, .mask = mask });
    call_finish(&call);
}

/* ---- tests ---- */

static struct attention_shape layouts[] = {
    { { 0, 0 }, FFA_BF16, 8, 8, 128, LAYOUT_TOKENS },
    { { 0, 0 }, FFA_BF16, 32, 4, 128, LAYOUT_TOKENS },
    { { 0, 0 }, FFA_BF16, 4, 2, 128, LAYOUT_HEADS },
    { { 0, 0 }, FFA_BF16, 8, 8, 64, LAYOUT_PADDED },
    { { 0, 0 }, FFA_BF16, 32, 4, 64, LAYOUT_TOKENS },
    { { 0, 0 }, FFA_BF16, 4, 2, 64, LAYOUT_TOKENS },
    { { 0, 0 }, FFA_FP16, 8, 8, 128, LAYOUT_HEADS },
    { { 0, 0 }, FFA_FP16, 32, 4, 128, LAYOUT_TOKENS },
    { { 0, 0 }, FFA_FP16, 4, 2, 128, LAYOUT_PADDED },
    { { 0, 0 }, FFA_FP16, 8, 8, 64, LAYOUT_TOKENS },
    { { 0, 0 }, FFA_FP16, 32, 4, 64, LAYOUT_HEADS },
    { { 0, 0 }, FFA_FP16, 4, 2, 64, LAYOUT_TOKENS },
};

START_TEST(mask_cases_match_the_oracle)
{
    const struct attention_shape *shape = &layouts[_i];

    long long done = 0;

    for (int64_t i = 0; i < cases.count; i++) {
        ffa_mask *mask;

        /* Filling hundreds of MB on the host would take most of the time; few heads are enough. */
        if (cases.at[i].shape.seqlen_q > 16384 && shape->heads_q > 4)
            continue;
        mask = mask_of(&cases.at[i]);
        run_random(cases.at[i].name, mask, *shape, (uint64_t)(1000 * _i + i));
        ffa_mask_destroy(mask);
        done++;
    }
    printf("  %lld mask cases, heads %d:%d, head_dim %d, %s\n", done, shape->heads_q,
           shape->heads_kv, shape->head_dim, shape->dtype == FFA_BF16 ? "bf16" : "fp16");
}
END_TEST

START_TEST(random_unions_match_the_oracle)
{
    const int rounds = (_i == 0 ? 600 : 200) / level_share;

    for (int i = 0; i < rounds; i++) {
        struct rng rng = { (uint64_t)(90000 + 1000 * _i + i) };
        struct attention_shape shape = layouts[rng_range(&rng, 0, 11)];
        struct mask_case from = mask_case_random(&rng, _i == 0 ? 300 : 900, _i == 0 ? 8 : 40);
        ffa_mask *mask = mask_of(&from);
        char name[96];

        shape.heads_kv = (int32_t)rng_range(&rng, 1, 2);
        shape.heads_q = shape.heads_kv * (int32_t)rng_range(&rng, 1, 3);
        shape.layout = (enum attention_layout)rng_range(&rng, 0, LAYOUT_COUNT - 1);
        text_copy(name, "random union %d of set %d", i, _i);
        run_random(name, mask, shape, (uint64_t)i);
        ffa_mask_destroy(mask);
        free(from.slices);
    }
}
END_TEST

/* Inputs of one row for all tokens, for all heads, or for both: the strides of a tensor map are 0.
 */
START_TEST(expanded_tensors_match_the_oracle)
{
    const int input = _i / 3, how = 1 + _i % 3; /* 1: along tokens, 2: along heads */
    ffa_mask *mask = parse("causal:300");
    struct attention_shape shape = layouts[2 + _i % 3];
    struct rng rng = { (uint64_t)(700 + _i) };
    struct device_call call;
    char name[64];

    shape.mask = (ffa_mask_shape){ 300, 300 };
    call_init(&call, &shape, &rng);
    for (int side = 0; side < 2; side++) {
        ffa_tensor *tensor = tensor_of(side ? &call.args : &call.host.args, input);

        tensor->token_stride = how & 1 ? 0 : tensor->token_stride;
        tensor->head_stride = how & 2 ? 0 : tensor->head_stride;
    }
    call_send_inputs(&call); /* all of it, though less is read */
    text_copy(name, "input %d expanded by %d", input, how);
    attempt_run(&call, &(struct attempt){ .name = name, .mask = mask });
    call_finish(&call);
    ffa_mask_destroy(mask);
}
END_TEST

static const int dirt[] = { 0x00, 0x01, 0x7f, 0xff }; /* of counters: far ahead, behind */

/* Two SMs take one work item after another, by a counter in the workspace. */
START_TEST(a_workspace_may_hold_anything)
{
    ffa_mask *mask = parse("varlen-causal:300,500,96");
    struct attention_shape shape = layouts[_i % 12];
    struct rng rng = { (uint64_t)(730 + _i) };
    struct device_call call;

    workspace_byte = dirt[_i];
    shape.mask = (ffa_mask_shape){ 896, 896 };
    call_init(&call, &shape, &rng);
    call.args.sm_margin = sm_count - 2;
    call_send_inputs(&call);
    attempt_run(&call, &(struct attempt){ .name = "dirty workspace", .mask = mask });
    call_finish(&call);
    ffa_mask_destroy(mask);
}
END_TEST

START_TEST(every_length_to_300)
{
    for (int n = 1; n <= 300; n++) {
        char text[64];
        ffa_mask *mask;

        text_copy(text, "%s:%d", _i ? "causal" : "full", n);
        mask = parse(text);
        run_random(text, mask,
                   (struct attention_shape){ { 0, 0 }, FFA_BF16, 2, 1, 128, LAYOUT_TOKENS },
                   (uint64_t)n);
        ffa_mask_destroy(mask);
    }
}
END_TEST

static const char *const specials[] = {
    "full:1",
    "causal:129",
    "full:77x1000",
    "causal:1000x77",
    "causal:300x2000",
    "window:2000,left=100,right=0",
    "window:3000,left=257,right=31",
    "varlen-causal:1,2,3,5,8,13,21,34,55,89,144,233,377,610,987",
    "varlen-full:127,129,128,1,255,257",
    "block-causal:1000,700/block=128",
    "shared-prefix:500,300,200,700",
    "global-window:2000,left=64,right=0,global=32",
    "varlen-causal:700,1300,96",
};

START_TEST(special_masks_match_the_oracle)
{
    ffa_mask *mask = parse(specials[_i]);

    for (int i = _i % level_share; i < 12; i += level_share)
        run_random(specials[_i], mask, layouts[i], (uint64_t)i);
    ffa_mask_destroy(mask);
}
END_TEST

/* How many keys a row attends, and the mean of their column c of v. */
static int64_t attended_keys(const ffa_slice_list *list, int64_t row, int64_t keys, double *mean,
                             const struct attention_case *test, int32_t kv_head, int32_t c)
{
    int64_t count = 0;

    *mean = 0;
    for (int64_t key = 0; key < keys; key++)
        for (int64_t s = 0; s < list->count; s++)
            if (slice_has(&list->slices[s], row, key)) {
                count++;
                *mean += attention_read(&test->args.v, test->shape.dtype, key, kv_head, c);
                break;
            }
    if (count)
        *mean /= (double)count;
    return count;
}

/* With q = 0 every attended key has the same weight, so exp(lse) is their number. Among thousands
 * of keys, one too many would change lse by less than any tolerance. */
START_TEST(zero_queries_count_the_keys)
{
    ffa_mask *mask = parse(specials[_i]);
    struct attention_shape shape = layouts[_i % 12];
    ffa_slice_list list = ffa_mask_slices(mask, 0);
    struct rng rng = { 4242 };
    struct device_call call;

    shape.mask = (ffa_mask_shape){ ffa_mask_seqlen_q(mask), ffa_mask_seqlen_k(mask) };
    call_init(&call, &shape, &rng);
    memset(call.host.args.q.data, 0, (size_t)call.bytes[0]);
    call_send_inputs(&call);
    attempt_run(&call, &(struct attempt){ .name = specials[_i], .mask = mask });
    for (int64_t row = 0; row < shape.mask.seqlen_q; row++) {
        double mean;
        int64_t count = attended_keys(&list, row, shape.mask.seqlen_k, &mean, &call.host, 0, 0);

        for (int32_t h = 0; h < shape.heads_q; h++) {
            double lse = attention_read(&call.host.args.lse, FFA_FP32, row, h, 0);

            ck_assert_msg(count ? llround(exp(lse)) == count : lse == -INFINITY,
                          "%s: row %lld head %d counts %.3f keys, attends %lld", specials[_i],
                          (long long)row, h, exp(lse), (long long)count);
        }
        ck_assert_msg(fabs(attention_read(&call.host.args.out, shape.dtype, row, 0, 0) - mean) <=
                          0.02 * fabs(mean) + 2e-3,
                      "%s: row %lld: mean of v", specials[_i], (long long)row);
    }
    call_finish(&call);
    ffa_mask_destroy(mask);
}
END_TEST

/* Scores far above all earlier ones: the warp must compute them again with a new shift. `_i` is
 * where the spikes are. */
START_TEST(far_scores_raise_the_shift)
{
    static const char *const texts[] = { "full:700", "causal:700",
                                         "window:900,left=300,right=100" };

    for (int t = 0; t < 3; t++)
        for (int d = 0; d < 12; d += level_step(12, 3)) {
            ffa_mask *mask = parse(texts[t]);
            struct attention_shape shape = layouts[d];
            struct rng rng = { (uint64_t)(77 + t) };
            struct device_call call;

            shape.mask = (ffa_mask_shape){ ffa_mask_seqlen_q(mask), ffa_mask_seqlen_k(mask) };
            call_init(&call, &shape, &rng);
            for (int64_t key = 0; key < shape.mask.seqlen_k; key++) {
                const double down = (double)(shape.mask.seqlen_k - key);
                const double factor = _i == 0   ? 1.0 + down / 20.0 /* rises towards key 0 */
                                      : _i == 1 ? (key % 97 == 5 ? 60.0 : 1.0)
                                                : (key == 3 ? 1000.0 : 0.01);

                for (int32_t h = 0; h < shape.heads_kv; h++)
                    for (int32_t c = 0; c < shape.head_dim; c++)
                        attention_write(
                            &call.host.args.k, shape.dtype, key, h, c,
                            factor * attention_read(&call.host.args.k, shape.dtype, key, h, c));
            }
            call_send_inputs(&call);
            attempt_run(&call, &(struct attempt){ .name = texts[t], .mask = mask });
            call_finish(&call);
            ffa_mask_destroy(mask);
        }
}
END_TEST

/* A key that no row of a tile attends never reaches the tile's results. Here no row attends the
 * keys between the attended ranges and right after them; their k and v are NaN or infinite. */
START_TEST(unattended_nan_stays_out)
{
    static const ffa_slice slices[] = {
        { 0, 200, 0, 150, FFA_SLICE_CAUSAL, 0 },
        { 200, 420, 153, 400, FFA_SLICE_FULL, 0 },
        { 420, 600, 411, 700, FFA_SLICE_BICAUSAL, 0 },
        { 600, 601, 701, 702, FFA_SLICE_FULL, 0 },
    };
    const ffa_mask_shape size = { 640, 760 };
    struct attention_shape shape = layouts[_i];
    struct rng rng = { 5 };
    struct device_call call;
    ffa_mask *mask = NULL;
    ffa_error err = { 0 };

    must(ffa_mask_create(&mask, &size, slices, 4, &err), &err, "mask");
    shape.mask = size;
    call_init(&call, &shape, &rng);
    for (int64_t key = 0; key < size.seqlen_k; key++) {
        bool attended = false;

        for (int64_t row = 0; row < size.seqlen_q && !attended; row++)
            for (int s = 0; s < 4; s++)
                attended |= slice_has(&slices[s], row, key);
        if (!attended) {
            write_row(&call.host.args.k, &shape, key, shape.heads_kv, NAN);
            write_row(&call.host.args.v, &shape, key, shape.heads_kv, key % 2 ? NAN : INFINITY);
        }
    }
    write_row(&call.host.args.q, &shape, 630, shape.heads_q, NAN); /* attends nothing */
    call_send_inputs(&call);
    attempt_run(&call, &(struct attempt){ .name = "unattended NaN", .mask = mask });
    call_finish(&call);
    ffa_mask_destroy(mask);
}
END_TEST

/* A NaN reaches the rows that attend it, and no tile that does not. */
START_TEST(attended_nan_reaches_its_rows)
{
    ffa_mask *mask = parse("varlen-full:256,256,256");
    struct attention_shape shape = layouts[0];
    struct rng rng = { 6 };
    struct device_call call;

    shape.mask = (ffa_mask_shape){ 768, 768 };
    call_init(&call, &shape, &rng);
    write_row(&call.host.args.v, &shape, 300, shape.heads_kv, NAN);
    call_send_inputs(&call);
    attempt_run(&call, &(struct attempt){ .name = "attended NaN", .mask = mask });
    for (int64_t row = 0; row < 768; row++)
        ck_assert_msg(isnan(attention_read(&call.host.args.out, shape.dtype, row, 1, 7)) ==
                          (row >= 256 && row < 512),
                      "row %lld", (long long)row);
    call_finish(&call);
    ffa_mask_destroy(mask);
}
END_TEST

/* Element c of out, or lse (c = -1). */
static double element(const struct device_call *call, int64_t row, int32_t head, int32_t c)
{
    return c < 0 ? attention_read(&call->host.args.lse, FFA_FP32, row, head, 0)
                 : attention_read(&call->host.args.out, call->host.shape.dtype, row, head, c);
}

/* In an isolated plan no document's values reach another one: each document in turn is filled with
 * NaN and infinities, and the outputs of the others stay as they were. */
START_TEST(isolated_documents_do_not_mix)
{
    static const char *const texts[] = { "varlen-causal:100,30,1,300,65",
                                         "varlen-full:100,30,300,65",
                                         "block-causal:150,100,70/block=32" };
    static const int64_t lengths[3][5] = { { 100, 30, 1, 300, 65 },
                                           { 100, 30, 300, 65 },
                                           { 150, 100, 70 } };
    ffa_mask *mask = parse(texts[_i % 3]);
    const int64_t tokens = ffa_mask_seqlen_q(mask);
    struct attention_shape shape = layouts[_i % 12];
    const struct attempt attempt = { .name = texts[_i % 3],
                                     .mask = mask,
                                     .plan_flags = FFA_PLAN_ISOLATE };
    struct attempt poisoned = attempt;
    struct rng rng = { 66 };
    struct device_call clean;
    int64_t begin = 0;

    poisoned.is_unchecked = true;
    shape.mask = (ffa_mask_shape){ tokens, tokens };
    call_init(&clean, &shape, &rng);
    call_send_inputs(&clean);
    attempt_run(&clean, &attempt);
    for (int d = 0; d < 5 && lengths[_i % 3][d]; begin += lengths[_i % 3][d++]) {
        const int64_t end = begin + lengths[_i % 3][d];
        struct device_call call;

        rng.state = 66;
        call_init(&call, &shape, &rng);
        for (int64_t row = begin; row < end; row++) {
            write_row(&call.host.args.k, &shape, row, shape.heads_kv, row % 3 ? NAN : INFINITY);
            write_row(&call.host.args.v, &shape, row, shape.heads_kv, row % 2 ? NAN : INFINITY);
            write_row(&call.host.args.q, &shape, row, shape.heads_q, row % 5 ? -INFINITY : NAN);
        }
        call_send_inputs(&call);
        attempt_run(&call, &poisoned);
        for (int64_t row = 0; row < tokens; row++)
            for (int32_t h = 0; h < shape.heads_q && (row < begin || row >= end); h++)
                for (int32_t c = -1; c < shape.head_dim; c++) {
                    const double want = element(&clean, row, h, c);

                    /* A NaN in the same warp may cause the row's scores to be computed again, with
                     * another rounding. */
                    ck_assert_msg(fabs(element(&call, row, h, c) - want) <=
                                      0.01 * fabs(want) + 1e-3,
                                  "%s: document %d reaches row %lld, column %d", attempt.name, d,
                                  (long long)row, c);
                }
        call_finish(&call);
    }
    call_finish(&clean);
    ffa_mask_destroy(mask);
}
END_TEST

START_TEST(one_mask_per_kv_head)
{
    static const ffa_slice first[] = { { 0, 500, 0, 600, FFA_SLICE_CAUSAL, 0 } };
    static const ffa_slice second[] = { { 0, 250, 0, 100, FFA_SLICE_FULL, 0 },
                                        { 100, 500, 50, 450, FFA_SLICE_BICAUSAL, 0 } };
    const ffa_slice_list lists[] = { { first, 1 }, { second, 2 } };
    const ffa_mask_shape size = { 500, 600 };
    ffa_mask *mask = NULL;
    ffa_error err = { 0 };

    must(ffa_mask_create_per_head(&mask, &size, lists, 2, &err), &err, "mask");
    run_random("one mask per kv head", mask, layouts[2], 9);
    ffa_mask_destroy(mask);
}
END_TEST

static struct plan_tile *image_tiles(struct ffa_plan *plan)
{
    return plan_image_tiles(&plan->image.forward, plan->image_data);
}

static struct plan_sweep *image_sweeps(struct ffa_plan *plan)
{
    return plan_image_sweeps(&plan->image.forward, plan->image_data);
}

static struct plan_band *image_bands(struct ffa_plan *plan)
{
    return plan_image_bands(&plan->image.forward, plan->image_data);
}

static void mutate_hi(struct ffa_plan *plan)
{
    image_bands(plan)[0].hi -= 1;
}

static void mutate_lo(struct ffa_plan *plan)
{
    image_bands(plan)[0].lo += 1;
}

static void mutate_full(struct ffa_plan *plan)
{
    image_sweeps(plan)[0].full_end = image_sweeps(plan)[0].end;
}

static void mutate_end(struct ffa_plan *plan)
{
    image_sweeps(plan)[0].end -= 64;
}

static void mutate_rows(struct ffa_plan *plan)
{
    image_tiles(plan)[0].count -= 1;
}

static const struct {
    const char *name;
    void (*mutate)(struct ffa_plan *plan);
} mutations[] = {
    { "hi of a band", mutate_hi },          { "lo of a band", mutate_lo },
    { "full_end of a sweep", mutate_full }, { "end of a sweep", mutate_end },
    { "count of a tile", mutate_rows },
};

/* The comparison can fail: it does where one bound of the plan is off by one. */
START_TEST(a_wrong_bound_is_seen)
{
    ffa_mask *mask = parse("causal:256");
    struct attention_shape shape = layouts[0];
    struct rng rng = { 8 };
    struct device_call call;

    shape.mask = (ffa_mask_shape){ 256, 256 };
    call_init(&call, &shape, &rng);
    call_send_inputs(&call);
    attempt_run(&call, &(struct attempt){ .name = mutations[_i].name,
                                          .mask = mask,
                                          .want_failure = true,
                                          .mutate = mutations[_i].mutate });
    call_finish(&call);
    ffa_mask_destroy(mask);
}
END_TEST

/* Softcap and sinks, alone and together. The spikes reach the flat ends of the softcap, and the
 * path on which scores are computed again. */
START_TEST(options_match_the_oracle)
{
    static const char *const texts[] = { "varlen-causal:700,1300,96", "window:900,left=300,right=9",
                                         "causal:100x300" };
    static const float caps[] = { 0, 0, 30, 0.5f, 4 };
    static const int32_t counts[] = { 1, 8, 0, 0, 3 };
    const int option = _i % 5;

    for (int t = level_step(_i % 3, 0); t < 3; t += level_step(3, 1)) {
        ffa_mask *mask = parse(texts[t]);
        struct attention_shape shape = layouts[_i % 12];
        struct rng rng = { (uint64_t)(500 + 10 * _i + t) };
        float sink[8 * 64];
        void *device_sink = NULL;
        ffa_error err = { 0 };
        struct device_call call;

        shape.mask = (ffa_mask_shape){ ffa_mask_seqlen_q(mask), ffa_mask_seqlen_k(mask) };
        call_init(&call, &shape, &rng);
        for (int i = 0; i < counts[option] * shape.heads_q; i++)
            sink[i] = (float)rng_normal(&rng) * (t == 1 ? 3.0f : 1.0f);
        must(ffa_device_alloc(&device_sink, context, sizeof sink, &err), &err, "allocate");
        must(ffa_device_copy(context, device_sink, sink, sizeof sink, FFA_TO_DEVICE, &err), &err,
             "send");
        for (int64_t key = 0; key < shape.mask.seqlen_k; key += 61)
            for (int32_t h = 0; h < shape.heads_kv; h++)
                attention_write(&call.host.args.k, shape.dtype, key, h, 3, 50.0);
        call.args.softcap = call.host.args.softcap = caps[option];
        call.args.sink_count = call.host.args.sink_count = counts[option];
        call.host.args.sink = counts[option] ? sink : NULL;
        call.args.sink = counts[option] ? device_sink : NULL;
        call_send_inputs(&call);
        attempt_run(&call,
                    &(struct attempt){ .name = texts[t],
                                       .mask = mask,
                                       .spec_flags = caps[option] > 0 ? FFA_SPEC_SOFTCAP : 0 });
        ffa_device_free(context, device_sink);
        call_finish(&call);
        ffa_mask_destroy(mask);
    }
}
END_TEST

/* Head dimensions that kernels compute with, smaller ones that are padded, and a head_dim_v that
 * differs from head_dim. */
static const struct {
    int32_t head_dim, head_dim_v, heads_q, heads_kv;
} dims[] = {
    { 256, 256, 4, 2 }, { 192, 192, 4, 2 }, { 192, 128, 8, 1 }, { 96, 96, 4, 4 },
    { 72, 72, 2, 1 },   { 80, 80, 4, 2 },   { 8, 8, 2, 2 },     { 40, 40, 6, 2 },
    { 104, 104, 2, 1 }, { 136, 136, 2, 1 }, { 200, 200, 2, 1 }, { 248, 248, 2, 1 },
    { 64, 256, 2, 1 },  { 256, 64, 2, 1 },  { 128, 96, 2, 1 },  { 96, 192, 2, 1 },
    { 112, 24, 2, 1 },
};
enum { DIM_COUNT = sizeof dims / sizeof *dims };

static const char *const dim_texts[] = {
    "varlen-causal:1,2,3,5,8,13,21,34,55,89,144,233,377,610,987",
    "causal:300x2000",
    "window:3000,left=257,right=31",
    "varlen-full:127,129,128,1,255,257",
};

/* The padded layout has gaps between rows, where a column too many would be read. */
START_TEST(dims_match_the_oracle)
{
    for (int t = 0; t < 4; t++)
        for (int dtype = FFA_BF16; dtype <= FFA_FP16; dtype++) {
            const struct attention_shape shape = {
                { 0, 0 },          (ffa_dtype)dtype,  dims[_i].heads_q,
                dims[_i].heads_kv, dims[_i].head_dim, (enum attention_layout)(t % LAYOUT_COUNT)
            };
            ffa_mask *mask = parse(dim_texts[t]);
            struct attention_shape of = shape;
            struct rng rng = { (uint64_t)(700 + 10 * _i + t) };
            struct device_call call;

            of.mask = (ffa_mask_shape){ ffa_mask_seqlen_q(mask), ffa_mask_seqlen_k(mask) };
            if (!is_left_out(mask, shape.heads_q)) {
                call_init_v(&call, &of, dims[_i].head_dim_v, &rng);
                call_send_inputs(&call);
                attempt_run(&call, &(struct attempt){ .name = dim_texts[t], .mask = mask });
                call_finish(&call);
            }
            ffa_mask_destroy(mask);
        }
}
END_TEST

/* Options at each head dimension: softcap, sinks and max_logits together, and spikes whose scores
 * are computed again. */
START_TEST(dims_with_options_match_the_oracle)
{
    ffa_mask *mask = parse("varlen-causal:700,1300,96");
    struct attention_shape shape = { { 2096, 2096 },    FFA_BF16,          dims[_i].heads_q,
                                     dims[_i].heads_kv, dims[_i].head_dim, LAYOUT_TOKENS };
    struct rng rng = { (uint64_t)(900 + _i) };
    float sink[2 * 8];
    void *device_sink = NULL;
    ffa_error err = { 0 };
    struct device_call call;

    call_init_v(&call, &shape, dims[_i].head_dim_v, &rng);
    call_with_tops(&call);
    for (int i = 0; i < 2 * shape.heads_q; i++)
        sink[i] = (float)rng_normal(&rng);
    must(ffa_device_alloc(&device_sink, context, sizeof sink, &err), &err, "allocate");
    must(ffa_device_copy(context, device_sink, sink, sizeof sink, FFA_TO_DEVICE, &err), &err,
         "send");
    for (int64_t key = 0; key < 2096; key += 61)
        for (int32_t h = 0; h < shape.heads_kv; h++)
            attention_write(&call.host.args.k, shape.dtype, key, h, 3, 50.0);
    call.args.softcap = call.host.args.softcap = 30;
    call.args.sink_count = call.host.args.sink_count = 2;
    call.host.args.sink = sink;
    call.args.sink = device_sink;
    call_send_inputs(&call);
    attempt_run(&call, &(struct attempt){ .name = "options",
                                          .mask = mask,
                                          .spec_flags = FFA_SPEC_SOFTCAP | FFA_SPEC_MAX_LOGITS });
    ffa_device_free(context, device_sink);
    call_finish(&call);
    ffa_mask_destroy(mask);
}
END_TEST

/* The largest logit anywhere in a tile, above and below zero, in rows that share a tile with others
 * and in blocks whose scores are computed again. Also of a mask without cells. */
START_TEST(max_logits_match_the_oracle)
{
    static const char *const texts[] = { "varlen-causal:700,3,40,257",
                                         "window:900,left=300,right=9", "causal:100x300",
                                         "full:77x1000", "causal:300x20" };
    static const double factors[] = { 1.0, 40.0, -0.02 };

    for (int t = 0; t < 5; t++)
        for (int f = level_step((t + _i) % 3, 0); f < 3; f += level_step(3, 1)) {
            ffa_mask *mask = parse(texts[t]);
            struct attention_shape shape = layouts[_i];
            struct rng rng = { (uint64_t)(800 + 10 * _i + t) };
            struct device_call call;

            shape.mask = (ffa_mask_shape){ ffa_mask_seqlen_q(mask), ffa_mask_seqlen_k(mask) };
            call_init(&call, &shape, &rng);
            call_with_tops(&call);
            for (int64_t key = 0; key < shape.mask.seqlen_k; key++)
                for (int32_t h = 0; h < shape.heads_kv && (f == 2 || key % 97 == 5); h++)
                    for (int32_t c = 0; c < shape.head_dim; c++)
                        attention_write(
                            &call.host.args.k, shape.dtype, key, h, c,
                            factors[f] * attention_read(&call.host.args.k, shape.dtype, key, h, c));
            if (f == 2) { /* all logits below zero */
                write_row(&call.host.args.k, &shape, 0, shape.heads_kv, -1.0);
                for (int64_t key = 1; key < shape.mask.seqlen_k; key++)
                    write_row(&call.host.args.k, &shape, key, shape.heads_kv,
                              -0.01 * (double)(key % 90 + 1));
                for (int64_t row = 0; row < shape.mask.seqlen_q; row++)
                    write_row(&call.host.args.q, &shape, row, shape.heads_q, 1.0);
            }
            call_send_inputs(&call);
            attempt_run(&call, &(struct attempt){ .name = texts[t],
                                                  .mask = mask,
                                                  .spec_flags = FFA_SPEC_MAX_LOGITS });
            call_finish(&call);
            ffa_mask_destroy(mask);
        }
}
END_TEST

/* fp32 out in one call, and in two calls on half of the keys each, of which the second accumulates.
 */
START_TEST(accumulated_halves_make_the_whole)
{
    static const ffa_slice whole[] = { { 0, 500, 0, 700, FFA_SLICE_CAUSAL, 0 },
                                       { 500, 600, 0, 300, FFA_SLICE_FULL, 0 } };
    static const ffa_slice halves[2][2] = {
        { { 300, 500, 0, 500, FFA_SLICE_FULL, 0 }, { 0, 300, 0, 500, FFA_SLICE_CAUSAL, 0 } },
        { { 300, 500, 500, 700, FFA_SLICE_CAUSAL, 0 }, { 500, 600, 0, 300, FFA_SLICE_FULL, 0 } },
    };
    struct attention_shape shape = layouts[_i];
    const ffa_slice_list list = { whole, 2 };
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;
    struct oracle_tolerance tolerance = oracle_tolerance_of(shape.dtype);
    const int64_t tokens = 640, row = (int64_t)shape.heads_q * shape.head_dim;
    float *host_out = calloc((size_t)(tokens * row), sizeof *host_out);
    struct oracle_case test;
    struct oracle_result want = { 0 };
    struct oracle_report report;
    struct rng rng = { 600 };
    struct device_call call;
    void *out = NULL;
    ffa_error err = { 0 };

    shape.mask = (ffa_mask_shape){ tokens, 700 };
    shape.layout = LAYOUT_TOKENS;
    call_init(&call, &shape, &rng);
    call_send_inputs(&call);
    must(ffa_device_alloc(&out, context, tokens * row * 4, &err), &err, "allocate");
    call.host.args.out =
        (ffa_tensor){ .data = host_out, .token_stride = row, .head_stride = shape.head_dim };
    call.args.out = (ffa_tensor){ .data = out, .token_stride = row, .head_stride = shape.head_dim };
    spec.dtype = shape.dtype;
    spec.head_dim = shape.head_dim;
    spec.flags = FFA_SPEC_OUT_FP32;
    test = (struct oracle_case){ .shape = shape.mask,
                                 .lists = &list,
                                 .list_count = 1,
                                 .head_dim = shape.head_dim,
                                 .dtype = shape.dtype,
                                 .args = &call.host.args,
                                 .out_dtype = FFA_FP32 };
    must(oracle_forward(&want, &test, &err), &err, "oracle");
    for (int parts = 1; parts <= 2; parts++) {
        must(ffa_device_fill(context, out, 0xff, tokens * row * 4, &err), &err, "poison");
        must(ffa_device_fill(context, call.args.lse.data, 0xff, call.bytes[4], &err), &err,
             "poison");
        for (int part = 0; part < parts; part++) {
            ffa_mask *mask = NULL;

            must(ffa_mask_create(&mask, &shape.mask, parts == 1 ? whole : halves[part], 2, &err),
                 &err, "mask");
            call.args.flags = part ? FFA_FORWARD_ACCUMULATE : 0;
            must(ffa_attention(context, mask, &spec, &call.args, NULL, &err), &err, "attention");
            ffa_mask_destroy(mask);
        }
        must(ffa_device_copy(context, host_out, out, tokens * row * 4, FFA_FROM_DEVICE, &err), &err,
             "fetch");
        must(ffa_device_copy(context, call.host.args.lse.data, call.args.lse.data, call.bytes[4],
                             FFA_FROM_DEVICE, &err),
             &err, "fetch");
        oracle_compare(&report, &test, &want, &tolerance);
        ck_assert_msg(report.passed, "%d parts: out %.2e row %.2e lse %.2e: %s", parts, report.out,
                      report.row, report.lse, report.reason);
    }
    oracle_result_finish(&want);
    ffa_device_free(context, out);
    free(host_out);
    call.host.args.out.data = call.host.memory[3];
    call_finish(&call);
}
END_TEST

/* Few query rows a slice, as in decoding: the last rows of each document attend all its keys. */
static ffa_mask *decoding_mask(struct rng *rng, int documents, int64_t rows_max)
{
    ffa_mask_shape shape = { 0, 0 };
    ffa_slice slices[32];
    ffa_mask *mask = NULL;
    ffa_error err = { 0 };

    for (int i = 0; i < documents; i++) {
        const int64_t rows = rng_range(rng, 1, rows_max), keys = rng_range(rng, 1, 700);

        slices[i] = (ffa_slice){ shape.seqlen_q,        shape.seqlen_q + rows, shape.seqlen_k,
                                 shape.seqlen_k + keys, FFA_SLICE_CAUSAL,      0 };
        shape.seqlen_q += rows;
        shape.seqlen_k += keys;
    }
    must(ffa_mask_create(&mask, &shape, slices, documents, &err), &err, "mask");
    return mask;
}

static const struct {
    int32_t heads_q, heads_kv, head_dim, head_dim_v, tile_m;
    ffa_dtype dtype;
} packs[] = {
    { 32, 4, 128, 128, 0, FFA_BF16 },  { 32, 4, 64, 64, 0, FFA_FP16 },
    { 6, 2, 128, 128, 64, FFA_BF16 },  { 5, 1, 96, 96, 0, FFA_BF16 },
    { 64, 1, 128, 128, 0, FFA_BF16 },  { 16, 1, 192, 128, 0, FFA_BF16 },
    { 14, 2, 256, 256, 64, FFA_FP16 }, { 2, 2, 72, 72, 128, FFA_BF16 },
    { 8, 2, 256, 256, 0, FFA_FP16 },   { 8, 1, 192, 192, 0, FFA_BF16 },
};

/* Packed heads, with everything that depends on the head of a row: sinks, max_logits, strides. */
START_TEST(packed_heads_match_the_oracle)
{
    for (int t = 0; t < 8; t++) {
        struct rng rng = { (uint64_t)(3000 + 10 * _i + t) };
        struct attention_shape shape = {
            { 0, 0 },           packs[_i].dtype,    packs[_i].heads_q,
            packs[_i].heads_kv, packs[_i].head_dim, (enum attention_layout)(t % LAYOUT_COUNT)
        };
        ffa_mask *mask = t == 0   ? decoding_mask(&rng, 32, 1)
                         : t < 3  ? decoding_mask(&rng, 16, 5)
                         : t < 5  ? decoding_mask(&rng, 4, 64)
                         : t == 5 ? parse("varlen-causal:1,2,3,5,8,13,21,34,55,89,144")
                         : t == 6 ? parse("window:300,left=100,right=7")
                                  : parse("shared-prefix:150,30,20,70");
        const bool has_options = t % 2 == 0;
        float sink[2 * 64];
        void *device_sink = NULL;
        struct device_call call;
        ffa_error err = { 0 };

        shape.mask = (ffa_mask_shape){ ffa_mask_seqlen_q(mask), ffa_mask_seqlen_k(mask) };
        call_init_v(&call, &shape, packs[_i].head_dim_v, &rng);
        if (has_options) {
            call_with_tops(&call);
            for (int i = 0; i < 2 * shape.heads_q; i++)
                sink[i] = (float)rng_normal(&rng);
            must(ffa_device_alloc(&device_sink, context, sizeof sink, &err), &err, "allocate");
            must(ffa_device_copy(context, device_sink, sink, sizeof sink, FFA_TO_DEVICE, &err),
                 &err, "send");
            call.args.sink_count = call.host.args.sink_count = 2;
            call.host.args.sink = sink;
            call.args.sink = device_sink;
        }
        call_send_inputs(&call);
        attempt_run(&call, &(struct attempt){ .name = "packed heads",
                                              .mask = mask,
                                              .spec_flags = has_options ? FFA_SPEC_MAX_LOGITS : 0,
                                              .tile_m = packs[_i].tile_m,
                                              .pack = shape.heads_q / shape.heads_kv });
        ffa_device_free(context, device_sink);
        call_finish(&call);
        ffa_mask_destroy(mask);
    }
}
END_TEST

static const struct {
    const char *mask;
    int32_t heads_q, heads_kv, head_dim, head_dim_v;
    bool is_packed;
    ffa_dtype dtype;
} splits[] = {
    { "full:1x20000", 8, 8, 128, 128, false, FFA_BF16 },
    { "full:3x9999", 16, 2, 128, 128, true, FFA_FP16 },
    { "causal:100x30000", 2, 2, 64, 64, false, FFA_BF16 },
    { "causal:2000", 4, 2, 256, 256, false, FFA_BF16 },
    { "window:3000,left=900,right=31", 2, 1, 72, 72, false, FFA_FP16 },
    { "varlen-causal:700,3,40,2257", 2, 1, 192, 128, false, FFA_BF16 },
    { "shared-prefix:2500,30,200,70", 6, 2, 96, 96, true, FFA_BF16 },
    { "global-window:3000,left=64,right=0,global=32", 1, 1, 128, 128, false, FFA_BF16 },
    { "full:1x200", 1, 1, 128, 128, false, FFA_BF16 }, /* too short: it is not split */
};

/* Tiles split over their keys, with sinks and max_logits, which the combining kernel has to apply.
 */
START_TEST(split_tiles_match_the_oracle)
{
    for (int o = 0; o < 2; o++) {
        struct rng rng = { (uint64_t)(5000 + 10 * _i + o) };
        ffa_mask *mask = parse(splits[_i].mask);
        struct attention_shape shape = { { ffa_mask_seqlen_q(mask), ffa_mask_seqlen_k(mask) },
                                         splits[_i].dtype,
                                         splits[_i].heads_q,
                                         splits[_i].heads_kv,
                                         splits[_i].head_dim,
                                         (enum attention_layout)((_i + o) % LAYOUT_COUNT) };
        float sink[2 * 16];
        void *device_sink = NULL;
        struct device_call call;
        ffa_error err = { 0 };

        call_init_v(&call, &shape, splits[_i].head_dim_v, &rng);
        for (int64_t key = 5; key < shape.mask.seqlen_k && o; key += 997)
            for (int32_t h = 0; h < shape.heads_kv; h++)
                attention_write(&call.host.args.k, shape.dtype, key, h, 3, 50.0);
        if (o) {
            for (int i = 0; i < 2 * shape.heads_q; i++)
                sink[i] = (float)rng_normal(&rng) * 4.0f;
            must(ffa_device_alloc(&device_sink, context, sizeof sink, &err), &err, "allocate");
            must(ffa_device_copy(context, device_sink, sink, sizeof sink, FFA_TO_DEVICE, &err),
                 &err, "send");
            call.args.sink_count = call.host.args.sink_count = 2;
            call.host.args.sink = sink;
            call.args.sink = device_sink;
            call_with_tops(&call);
        }
        call_send_inputs(&call);
        attempt_run(&call,
                    &(struct attempt){
                        .name = splits[_i].mask,
                        .mask = mask,
                        .spec_flags = FFA_SPEC_SPLIT | (o ? (uint32_t)FFA_SPEC_MAX_LOGITS : 0),
                        .pack = splits[_i].is_packed ? shape.heads_q / shape.heads_kv : 0,
                        .is_split = true });
        ffa_device_free(context, device_sink);
        call_finish(&call);
        ffa_mask_destroy(mask);
    }
}
END_TEST

/* Packing and splitting that nobody asked for, where heads are known. */
static const struct {
    const char *mask;
    int32_t heads_q, heads_kv;
    int32_t pack;
    bool is_split; /* on any device of up to 132 SMs */
} chosen[] = {
    { "full:1x9000", 1, 1, 1, true },  /* one tile of 113 blocks */
    { "full:9x7000", 4, 1, 4, true },  /* packed, and split */
    { "causal:3000", 8, 8, 1, false }, /* enough tiles */
    { "full:3x300", 45, 1, 0, false }, /* packs would leave rows of a tile empty */
};

START_TEST(what_is_chosen_matches_the_oracle)
{
    struct rng rng = { (uint64_t)(7000 + _i) };
    ffa_mask *mask = parse(chosen[_i].mask);
    struct attention_shape shape = { { ffa_mask_seqlen_q(mask), ffa_mask_seqlen_k(mask) },
                                     FFA_BF16,
                                     chosen[_i].heads_q,
                                     chosen[_i].heads_kv,
                                     192,
                                     LAYOUT_TOKENS };
    struct device_call call;

    call_init(&call, &shape, &rng);
    call_send_inputs(&call);
    attempt_run(&call, &(struct attempt){ .name = chosen[_i].mask, .mask = mask, .is_auto = true });
    ck_assert_int_eq(call.info.pack_heads, chosen[_i].pack);
    if (chosen[_i].is_split || sm_count < 8) /* 24 tiles are too few for 132 SMs */
        ck_assert_int_eq(call.info.split_heads, chosen[_i].is_split ? chosen[_i].heads_q : 0);
    ck_assert_int_ge(call.info.l2_heads_kv, 1);
    ck_assert_int_le(call.info.l2_heads_kv, chosen[_i].heads_kv);
    ck_assert_str_ne(call.info.cost_table, "");
    call_finish(&call);
    ffa_mask_destroy(mask);
}
END_TEST

/* Where nothing may be compiled, what is chosen comes to what the store has, and nothing fails:
 * heads apart if it has no packed kernels, and whole tiles if it has none of a split. */
START_TEST(kernels_that_are_chosen_may_be_missing)
{
    static const struct {
        uint32_t flags;
        int32_t pack_heads, split; /* asked for */
        int32_t want;              /* packed heads */
    } rounds[] = { { 0, 0, 0, 0 },
                   { FFA_OPEN_NEVER_COMPILE, FFA_PACK_AUTO, FFA_SPLIT_AUTO, 0 },
                   { 0, FFA_PACK_AUTO, 0, 1 },
                   { FFA_OPEN_NEVER_COMPILE, FFA_PACK_AUTO, FFA_SPLIT_AUTO, 1 } };
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;
    ffa_mask *mask = parse("full:1x20000");
    char *folder = tmpdir_make(), *store = tmpdir_path(folder, "kernels.ffadb");

    spec.dtype = FFA_BF16;
    spec.head_dim = 192;
    spec.heads_q = spec.heads_kv = 1;
    for (size_t i = 0; i < sizeof rounds / sizeof *rounds; i++) {
        ffa_plan_info info;

        spec.pack_heads = rounds[i].pack_heads;
        spec.split = rounds[i].split;
        info = info_with_store(store, rounds[i].flags, &spec, mask);
        ck_assert_int_eq(info.split_heads, 0);
        ck_assert_int_eq(info.pack_heads, rounds[i].want);
    }
    free(store);
    tmpdir_remove(folder);
    ffa_mask_destroy(mask);
}
END_TEST

/* One stage of a pass on the device: its keys are those of the whole from key_begin on. */
static void run_stage(const struct device_call *call, const ffa_kernels *kernels, ffa_plan *plan,
                      int64_t key_begin)
{
    ffa_forward_args args = call->args;
    ffa_plan_info info = FFA_PLAN_INFO_INIT;
    void *buffer = NULL;
    ffa_error err = { 0 };

    args.k.data = (uint16_t *)args.k.data + key_begin * args.k.token_stride;
    args.v.data = (uint16_t *)args.v.data + key_begin * args.v.token_stride;
    must(ffa_plan_info_get(plan, &info, &err), &err, "info");
    must(ffa_device_alloc(&buffer, context, info.upload_bytes, &err), &err, "buffer");
    workspace_init(&args, kernels, plan);
    must(ffa_plan_upload(plan, kernels, buffer, NULL, &err), &err, "upload");
    must(ffa_forward(kernels, plan, &args, NULL, &err), &err, "stage");
    must(ffa_device_synchronize(context, &err), &err, "finish");
    ffa_device_free(context, buffer);
    ffa_device_free(context, args.workspace);
}

/* A pass in stages against the oracle of the whole. `partial` is poisoned, so that the comparison
 * would fail if the first stage read it. */
static void run_stages(uint64_t seed)
{
    struct rng rng = { seed };
    struct attention_shape shape = layouts[rng_range(&rng, 0, 11)];
    const int32_t dim = (int32_t[]){ 64, 128, 256, 96 }[seed % 4];
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;
    ffa_plan_opts opts = FFA_PLAN_OPTS_INIT;
    struct oracle_tolerance tolerance = oracle_tolerance_of(shape.dtype);
    struct oracle_result want = { 0 };
    struct oracle_report report;
    struct oracle_case test;
    struct stage_case stages;
    struct device_call call;
    ffa_plan *plans[STAGE_CASE_MAX];
    static ffa_kernels *kept[2][4];
    ffa_kernels **kernels = &kept[shape.dtype == FFA_FP16][seed % 4];
    ffa_slice_list list;
    float sink[2 * 6];
    void *device_sink = NULL, *partial = NULL;
    int64_t partial_bytes;
    ffa_error err = { 0 };

    stage_case_init(&stages, &rng, 300);
    shape.mask = stages.shape;
    shape.head_dim = dim;
    shape.heads_kv = (int32_t)rng_range(&rng, 1, 2);
    shape.heads_q = shape.heads_kv * (int32_t)rng_range(&rng, 1, 3);
    call_init(&call, &shape, &rng);
    call_with_tops(&call);
    if (seed % 3 == 0) {
        for (int i = 0; i < 2 * shape.heads_q; i++)
            sink[i] = (float)rng_normal(&rng);
        must(ffa_device_alloc(&device_sink, context, sizeof sink, &err), &err, "allocate");
        must(ffa_device_copy(context, device_sink, sink, sizeof sink, FFA_TO_DEVICE, &err), &err,
             "send");
        call.args.sink_count = call.host.args.sink_count = 2;
        call.host.args.sink = sink;
        call.args.sink = device_sink;
    }
    partial_bytes = shape.mask.seqlen_q * shape.heads_q * dim * (int64_t)sizeof(float);
    must(ffa_device_alloc(&partial, context, partial_bytes, &err), &err, "allocate");
    must(ffa_device_fill(context, partial, 0xff, partial_bytes, &err), &err, "poison");
    call.args.partial.data = partial;
    call_send_inputs(&call);
    if (!*kernels) {
        spec.dtype = shape.dtype;
        spec.head_dim = dim;
        spec.flags = FFA_SPEC_STAGED | FFA_SPEC_MAX_LOGITS;
        must(ffa_kernels_create(kernels, context, &spec, &err), &err, "kernels");
    }
    opts.flags = seed % 5 ? 0 : FFA_PLAN_ISOLATE;
    must(ffa_plan_create_stages(plans, *kernels, (const ffa_mask *const *)stages.masks,
                                stages.count, &opts, &err),
         &err, "stages");
    list = ffa_mask_slices(stages.whole, 0);
    test = (struct oracle_case){ .shape = shape.mask,
                                 .lists = &list,
                                 .list_count = 1,
                                 .head_dim = dim,
                                 .dtype = shape.dtype,
                                 .args = &call.host.args };
    oracle_poison(&test);
    for (int i = 3; i < 5; i++)
        must(ffa_device_copy(context, tensor_of(&call.args, i)->data,
                             tensor_of(&call.host.args, i)->data, call.bytes[i], FFA_TO_DEVICE,
                             &err),
             &err, "poison");
    for (int32_t s = 0; s < stages.count; s++) {
        run_stage(&call, *kernels, plans[s], stages.key_begin[s]);
        ffa_plan_destroy(plans[s]);
    }
    for (int i = 3; i < 5; i++)
        must(ffa_device_copy(context, tensor_of(&call.host.args, i)->data,
                             tensor_of(&call.args, i)->data, call.bytes[i], FFA_FROM_DEVICE, &err),
             &err, "fetch");
    must(ffa_device_copy(context, call.tops, call.args.max_logits, call.bytes[5], FFA_FROM_DEVICE,
                         &err),
         &err, "fetch");
    check_guards(&call, "stages");
    must(oracle_forward(&want, &test, &err), &err, "oracle");
    oracle_compare(&report, &test, &want, &tolerance);
    ck_assert_msg(report.passed, "seed %llu, %d stages: out %.2e row %.2e lse %.2e top %.2e: %s",
                  (unsigned long long)seed, stages.count, report.out, report.row, report.lse,
                  report.top, report.reason);
    oracle_result_finish(&want);
    ffa_device_free(context, partial);
    ffa_device_free(context, device_sink);
    call_finish(&call);
    stage_case_finish(&stages);
}

START_TEST(stages_make_the_whole)
{
    for (int i = 0; i < 40; i++)
        run_stages((uint64_t)(40 * _i + i));
}
END_TEST

START_TEST(debug_kernels_agree)
{
    ffa_mask *mask = parse("varlen-causal:700,1300,96");
    struct attention_shape shape = layouts[_i];
    struct rng rng = { 10 };
    struct device_call call;

    shape.mask = (ffa_mask_shape){ 2096, 2096 };
    call_init(&call, &shape, &rng);
    call_send_inputs(&call);
    attempt_run(&call,
                &(struct attempt){ .name = "debug", .mask = mask, .spec_flags = FFA_SPEC_DEBUG });
    call_finish(&call);
    ffa_mask_destroy(mask);
}
END_TEST

START_TEST(other_tiles_agree)
{
    ffa_mask *mask = parse("varlen-causal:700,1300,96");
    struct attention_shape shape = layouts[_i * 3];
    struct rng rng = { 11 };
    struct device_call call;

    shape.mask = (ffa_mask_shape){ 2096, 2096 };
    call_init(&call, &shape, &rng);
    call_send_inputs(&call);
    attempt_run(&call, &(struct attempt){ .name = "64 rows", .mask = mask, .tile_m = 64 });
    call_finish(&call);
    ffa_mask_destroy(mask);
}
END_TEST

/* A captured call gives the right result each time it is replayed on new inputs. An upload is
 * refused while the stream captures. */
START_TEST(a_call_can_be_captured)
{
    ffa_mask *mask = parse("causal:777");
    struct attention_shape shape = layouts[1];
    const ffa_kernels *kernels;
    ffa_slice_list list = ffa_mask_slices(mask, 0);
    struct rng rng = { 12 };
    struct device_call call;
    ffa_plan_info info = FFA_PLAN_INFO_INIT;
    void *buffer = NULL;
    ffa_plan *plan = NULL;
    ffa_error err = { 0 };
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;

    shape.mask = (ffa_mask_shape){ 777, 777 };
    call_init(&call, &shape, &rng);
    call_send_inputs(&call);
    kernels = kernels_for(&call.host, 0, 0, 0);
    must(ffa_plan_create(&plan, kernels, mask, &err), &err, "plan");
    must(ffa_plan_info_get(plan, &info, &err), &err, "info");
    must(ffa_device_alloc(&buffer, context, info.upload_bytes, &err), &err, "buffer");
    workspace_init(&call.args, kernels, plan);
    ck_assert_int_eq(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    ck_assert_int_eq(ffa_forward(kernels, plan, &call.args, stream, &err), FFA_INVALID);
    must(ffa_plan_upload(plan, kernels, buffer, stream, &err), &err, "upload");

    ck_assert_int_eq(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    ck_assert_int_eq(ffa_plan_upload(plan, kernels, buffer, stream, &err), FFA_INVALID);
    must(ffa_forward(kernels, plan, &call.args, stream, &err), &err, "capture");
    ck_assert_int_eq(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    ck_assert_int_eq(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    for (int round = 0; round < 3; round++) {
        struct oracle_case test = { .shape = shape.mask,
                                    .lists = &list,
                                    .list_count = 1,
                                    .head_dim = shape.head_dim,
                                    .dtype = shape.dtype,
                                    .args = &call.host.args };
        struct oracle_tolerance tolerance = oracle_tolerance_of(shape.dtype);
        struct oracle_result want = { 0 };
        struct oracle_report report;

        attention_write(&call.host.args.q, shape.dtype, 5, 0, 0, 1.0 + round);
        call_send_inputs(&call);
        ck_assert_int_eq(cudaGraphLaunch(exec, stream), cudaSuccess);
        ck_assert_int_eq(cudaStreamSynchronize(stream), cudaSuccess);
        for (int i = 3; i < 5; i++)
            must(ffa_device_copy(context, tensor_of(&call.host.args, i)->data,
                                 tensor_of(&call.args, i)->data, call.bytes[i], FFA_FROM_DEVICE,
                                 &err),
                 &err, "fetch");
        must(oracle_forward(&want, &test, &err), &err, "oracle");
        oracle_compare(&report, &test, &want, &tolerance);
        ck_assert_msg(report.passed, "replay %d: %s", round, report.reason);
        oracle_result_finish(&want);
    }
    (void)cudaGraphExecDestroy(exec);
    (void)cudaGraphDestroy(graph);
    (void)cudaStreamDestroy(stream);
    ffa_plan_destroy(plan);
    ffa_device_free(context, buffer);
    ffa_device_free(context, call.args.workspace);
    call_finish(&call);
    ffa_mask_destroy(mask);
}
END_TEST

/* ffa_attention gives the same bits as kernels, plan and workspace do, with a scale and an
 * sm_margin.
 */
START_TEST(the_one_call_form_agrees)
{
    ffa_mask *mask = parse("varlen-causal:700,1300,96");
    struct attention_shape shape = layouts[1];
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;
    struct rng rng = { 13 };
    struct device_call call;
    ffa_error err = { 0 };

    shape.mask = (ffa_mask_shape){ 2096, 2096 };
    spec.dtype = shape.dtype;
    spec.head_dim = shape.head_dim;
    call_init(&call, &shape, &rng);
    call.host.args.softmax_scale = call.args.softmax_scale = 0.031f;
    call.args.sm_margin = sm_count / 7;
    call_send_inputs(&call);
    attempt_run(&call, &(struct attempt){ .name = "with objects", .mask = mask, .is_auto = true });
    must(ffa_device_fill(context, call.args.out.data, 0xff, call.bytes[3], &err), &err, "fill");
    must(ffa_attention(context, mask, &spec, &call.args, NULL, &err), &err, "ffa_attention");
    must(ffa_device_synchronize(context, &err), &err, "finish");
    must(ffa_device_copy(context, call.host.args.out.data, call.args.out.data, call.bytes[3],
                         FFA_FROM_DEVICE, &err),
         &err, "fetch");
    ck_assert(!memcmp(call.first[0], call.host.args.out.data, (size_t)call.bytes[3]));
    call_finish(&call);
    ffa_mask_destroy(mask);
}
END_TEST

static const struct {
    const char *name;
    int tensor;           /* -1: none */
    int64_t token_stride; /* 0: unchanged */
    int64_t offset;       /* bytes added to its pointer */
    int32_t heads_q, heads_kv, sm_margin;
    float scale;
} refusals[] = {
    { "q misaligned", 0, 0, 8, 8, 8, 0, 0 },
    { "out misaligned", 3, 0, 2, 8, 8, 0, 0 },
    { "k stride not a multiple of 8", 1, 1028, 0, 8, 8, 0, 0 },
    { "negative stride", 2, -1024, 0, 8, 8, 0, 0 },
    { "heads", -1, 0, 0, 8, 3, 0, 0 },
    { "sm_margin", -1, 0, 0, 8, 8, 100000, 0 },
    { "scale", -1, 0, 0, 8, 8, 0, -1.0f },
    { "scale is NaN", -1, 0, 0, 8, 8, 0, NAN },
};

START_TEST(bad_arguments_are_refused)
{
    ffa_mask *mask = parse("causal:64");
    struct attention_shape shape = layouts[0];
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;
    struct rng rng = { 14 };
    struct device_call call;
    ffa_error err = { 0 };
    ffa_tensor *tensor;

    shape.mask = (ffa_mask_shape){ 64, 64 };
    spec.dtype = shape.dtype;
    spec.head_dim = shape.head_dim;
    call_init(&call, &shape, &rng);
    call.args.heads_q = refusals[_i].heads_q;
    call.args.heads_kv = refusals[_i].heads_kv;
    call.args.sm_margin = refusals[_i].sm_margin;
    if (refusals[_i].scale != 0)
        call.args.softmax_scale = refusals[_i].scale;
    if (refusals[_i].tensor >= 0) {
        tensor = tensor_of(&call.args, refusals[_i].tensor);
        tensor->data = (char *)tensor->data + refusals[_i].offset;
        if (refusals[_i].token_stride)
            tensor->token_stride = refusals[_i].token_stride;
    }
    ck_assert_msg(ffa_attention(context, mask, &spec, &call.args, NULL, &err) == FFA_INVALID, "%s",
                  refusals[_i].name);
    ck_assert_str_ne(err.message, "");
    call_finish(&call);
    ffa_mask_destroy(mask);
}
END_TEST

static Suite *device_suite(void)
{
    Suite *suite = suite_create("device_forward");
    TCase *quick = tcase_create("quick"), *unions = tcase_create("unions");
    TCase *bf16 = tcase_create("bf16"), *fp16 = tcase_create("fp16"), *dim = tcase_create("dims");
    TCase *choice = tcase_create("chosen"), *tensors = tcase_create("calls");
    const int layout_count = sizeof layouts / sizeof *layouts;
    const int special_count = sizeof specials / sizeof *specials;

    add_part(quick, special_masks_match_the_oracle, 0, special_count);
    add_loop(quick, zero_queries_count_the_keys, special_count, 4);
    add_part(quick, far_scores_raise_the_shift, 0, 3);
    add_loop(quick, unattended_nan_stays_out, 12, 5);
    tcase_add_test(quick, attended_nan_reaches_its_rows);
    add_loop(quick, isolated_documents_do_not_mix, 12, 5);
    tcase_add_test(quick, one_mask_per_kv_head);
    add_part(quick, a_wrong_bound_is_seen, 0, sizeof mutations / sizeof *mutations);
    add_loop(quick, options_match_the_oracle, 60, 7);
    add_loop(quick, accumulated_halves_make_the_whole, layout_count, 5);
    add_loop(quick, max_logits_match_the_oracle, layout_count, 5);
    add_loop(dim, dims_match_the_oracle, DIM_COUNT, 3);
    add_loop(dim, dims_with_options_match_the_oracle, DIM_COUNT, 5);
    add_loop(dim, stages_make_the_whole, 4, 2);
    add_loop(dim, split_tiles_match_the_oracle, (int)(sizeof splits / sizeof *splits), 2);
    add_loop(dim, packed_heads_match_the_oracle, (int)(sizeof packs / sizeof *packs), 2);
    add_loop(quick, debug_kernels_agree, 12, 12);
    add_part(quick, other_tiles_agree, 0, 4);
    tcase_add_test(quick, a_call_can_be_captured);
    tcase_add_test(quick, the_one_call_form_agrees);
    tcase_add_loop_test(choice, what_is_chosen_matches_the_oracle, 0,
                        sizeof chosen / sizeof *chosen);
    tcase_add_test(choice, kernels_that_are_chosen_may_be_missing);
    tcase_add_loop_test(quick, bad_arguments_are_refused, 0, sizeof refusals / sizeof *refusals);
    add_part(tensors, a_workspace_may_hold_anything, 0, sizeof dirt / sizeof *dirt);
    add_loop(tensors, expanded_tensors_match_the_oracle, 9, 2);
    add_part(unions, every_length_to_300, 0, 2);
    add_part(unions, random_unions_match_the_oracle, 0, 2);
    add_part(bf16, mask_cases_match_the_oracle, 0, layout_count / 2);
    add_part(fp16, mask_cases_match_the_oracle, layout_count / 2, layout_count);
    suite_add_tcase(suite, tensors);
    suite_add_tcase(suite, quick);
    suite_add_tcase(suite, choice);
    suite_add_tcase(suite, dim);
    suite_add_tcase(suite, unions);
    suite_add_tcase(suite, bf16);
    suite_add_tcase(suite, fp16);
    return suite;
}

int main(void)
{
    ffa_context_opts opts = FFA_CONTEXT_OPTS_INIT;
    ffa_context_info info = FFA_CONTEXT_INFO_INIT;
    ffa_error err = { 0 };
    int rc;

    level_read(layouts, 12);
    opts.cache_path = getenv("FFA_TEST_STORE"); /* NULL: in memory */
    if (ffa_open(&context, FFA_DEVICE_AUTO, &opts, &err) != FFA_OK ||
        ffa_context_info_get(context, &info, &err) != FFA_OK || info.device == FFA_DEVICE_CPU) {
        printf("skipped: no GPU that a kernel exists for %s\n", err.message);
        ffa_close(context);
        return 77;
    }
    sm_count = info.sm_count;
    printf("device %d: %s\n", info.device, info.device_name);
    cases = mask_cases_load();
    rc = suite_run_here(device_suite()); /* one CUDA context for all */
    mask_cases_free(&cases);
    return rc;
}
