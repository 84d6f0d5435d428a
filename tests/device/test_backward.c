/* SPDX-License-Identifier: Apache-2.0
 *
 * The backward kernels on a GPU against the fp64 oracle, and against exact counts. Exit 77 where
 * there is no GPU.
 *
 * Every call has fresh random inputs, gradients poisoned with NaN, and a workspace full of NaN. It
 * runs twice, and the gradients have equal bits both times: dk and dv always, dq where one tile
 * holds all keys or the kernels are deterministic. Deterministic kernels run again on other numbers
 * of SMs. Nothing is written outside the gradients and the workspace.
 *
 * FFA_TEST_LEVEL is explained in device_case.h.
 * CK_RUN_CASE=calls|quick|isolated|features|stages|unions|dims|ordered|bf16|fp16 runs a part,
 * FFA_TEST_PART=I/N one of N shares of it (device_case.h); FFA_TEST_STORE=PATH is a store for the
 * kernels, which several runs can share. With FFA_TEST_BACKEND=cpu it runs on the CPU backend,
 * which tests this test; with FFA_TEST_DETERMINISTIC=1 all kernels are deterministic.
 */
#include "attention/attention.h"
#include "attention_backward.args.h"
#include "base/half.h"
#include "oracle/oracle_backward.h"
#include "support/device_case.h"
#include "support/low_precision.h"
#include "support/stage_case.h"
#include "support/suite.h"
#include "support/tmpdir.h"

#include <check.h>
#include <cuda_runtime_api.h>
#include <ffa/ffa.h>
#include <math.h>
#include <stdio.h>

static ffa_context *context;
static bool on_gpu;
static int32_t sm_count; /* 0 on the CPU */
static struct mask_cases cases;
static uint32_t all_flags; /* of all kernels */
static bool has_pairs;     /* kernels that can have pairs of blocks have them */

enum {
    SAMPLES = 192,
    TENSORS = 9,
    OUT = 3,
    LSE = 4,
    FIRST_OUTPUT = 6,
    GUARD = 256,
    GUARD_BYTE = 0xa5
};

static const char *const tensor_names[TENSORS] = { "q",    "k",  "v",  "out", "lse",
                                                   "dout", "dq", "dk", "dv" };

/* ---- one call on the device ---- */

struct device_call {
    struct attention_case host;
    struct attention_gradients gradients;
    ffa_backward_args on_host; /* with host pointers; sink and dsink are not in it */
    ffa_backward_args args;    /* the same with device pointers */
    ffa_dtype out_dtype;
    void *memory[TENSORS]; /* on the device, with guards before and after */
    int64_t bytes[TENSORS];
    unsigned char *first[3]; /* dq, dk and dv of the first run */
    float sink[8 * 64], dsink[8 * 64], first_dsink[8 * 64];
    void *device_sink, *device_dsink;
    void *device_dlse; /* NULL: the call has no dlse */
};

static ffa_tensor *tensor_of(ffa_backward_args *args, int index)
{
    ffa_tensor *all[TENSORS] = { &args->q,    &args->k,  &args->v,  &args->out, &args->lse,
                                 &args->dout, &args->dq, &args->dk, &args->dv };

    return all[index];
}

static int64_t element_bytes(const struct device_call *call, int index)
{
    return index == LSE            ? 4
           : index == OUT          ? (int64_t)ffa_dtype_bytes(call->out_dtype)
           : index >= FIRST_OUTPUT ? (int64_t)ffa_dtype_bytes(call->gradients.grad_dtype)
                                   : 2;
}

/* Columns of a tensor. */
static int32_t dim_of(const struct device_call *call, int index)
{
    const bool is_value = index == 2 || index == 3 || index == 5 || index == 8;

    return index == LSE ? 1 : is_value ? call->host.head_dim_v : call->host.shape.head_dim;
}

static void place_on_device(struct device_call *call, int index)
{
    const struct attention_shape *shape = &call->host.shape;
    const ffa_tensor *tensor = tensor_of(&call->on_host, index);
    const bool is_key = index == 1 || index == 2 || index >= 7;
    const int64_t tokens = is_key ? shape->mask.seqlen_k : shape->mask.seqlen_q;
    const int64_t heads = is_key ? shape->heads_kv : shape->heads_q;
    const int64_t elements = (tokens - 1) * tensor->token_stride +
                             (heads - 1) * tensor->head_stride + dim_of(call, index);
    ffa_error err = { 0 };

    call->bytes[index] = elements * element_bytes(call, index);
    must(ffa_device_alloc(&call->memory[index], context, call->bytes[index] + 2 * GUARD, &err),
         &err, "allocate");
    must(ffa_device_fill(context, call->memory[index], GUARD_BYTE, call->bytes[index] + 2 * GUARD,
                         &err),
         &err, "fill");
    tensor_of(&call->args, index)->data = (char *)call->memory[index] + GUARD;
}

/* dout and the gradients have grad_layout; the other tensors have the layout of the shape. */
static void call_init_v(struct device_call *call, const struct attention_shape *shape,
                        int32_t head_dim_v, ffa_dtype grad_dtype, enum attention_layout grad_layout,
                        struct rng *rng)
{
    ffa_error err = { 0 };

    *call = (struct device_call){ .out_dtype = shape->dtype };
    attention_case_init_v(&call->host, shape, head_dim_v, rng);
    call->host.shape.layout = grad_layout;
    attention_gradients_init(&call->gradients, &call->host, grad_dtype, rng);
    call->host.shape.layout = shape->layout;
    call->on_host = attention_backward_args_of(&call->host, &call->gradients);
    call->args = call->on_host;
    for (int i = 0; i < TENSORS; i++)
        place_on_device(call, i);
    for (int i = 0; i < 3; i++) {
        call->first[i] = malloc((size_t)call->bytes[FIRST_OUTPUT + i]);
        ck_assert_ptr_nonnull(call->first[i]);
    }
    must(ffa_device_alloc(&call->device_sink, context, sizeof call->sink, &err), &err, "allocate");
    must(ffa_device_alloc(&call->device_dsink, context, sizeof call->dsink, &err), &err,
         "allocate");
}

static void call_init(struct device_call *call, const struct attention_shape *shape,
                      ffa_dtype grad_dtype, enum attention_layout grad_layout, struct rng *rng)
{
    call_init_v(call, shape, 0, grad_dtype, grad_layout, rng);
}

static void call_finish(struct device_call *call)
{
    for (int i = 0; i < TENSORS; i++)
        ffa_device_free(context, call->memory[i]);
    for (int i = 0; i < 3; i++)
        free(call->first[i]);
    ffa_device_free(context, call->device_sink);
    ffa_device_free(context, call->device_dsink);
    ffa_device_free(context, call->device_dlse);
    attention_gradients_finish(&call->gradients);
    attention_case_finish(&call->host);
}

/* Give one tensor another layout, in new memory. An input keeps its values. */
static void lay_out(struct device_call *call, int index, enum attention_layout layout)
{
    const struct attention_shape *shape = &call->host.shape;
    ffa_tensor *forward[] = { &call->host.args.q, &call->host.args.k, &call->host.args.v,
                              &call->host.args.out, &call->host.args.lse };
    ffa_tensor *backward[] = { &call->gradients.dout, &call->gradients.dq, &call->gradients.dk,
                               &call->gradients.dv };
    void **memory = index < 5 ? &call->host.memory[index] : &call->gradients.memory[index - 5];
    ffa_tensor *tensor = index < 5 ? forward[index] : backward[index - 5];
    const bool is_key = index == 1 || index == 2 || index >= 7;
    const int64_t tokens = is_key ? shape->mask.seqlen_k : shape->mask.seqlen_q;
    const int32_t heads = is_key ? shape->heads_kv : shape->heads_q;
    const int32_t dim = dim_of(call, index);
    const ffa_tensor old = *tensor;
    void *old_memory = *memory;

    attention_place(tensor, memory, layout, tokens, heads, dim, element_bytes(call, index));
    for (int64_t t = 0; index < FIRST_OUTPUT && index != OUT && index != LSE && t < tokens; t++)
        for (int32_t h = 0; h < heads; h++)
            for (int32_t c = 0; c < dim; c++)
                attention_write(tensor, shape->dtype, t, h, c,
                                attention_read(&old, shape->dtype, t, h, c));
    free(old_memory);
    *tensor_of(&call->on_host, index) = *tensor_of(&call->args, index) = *tensor;
    ffa_device_free(context, call->memory[index]);
    place_on_device(call, index);
    if (index >= FIRST_OUTPUT) {
        free(call->first[index - FIRST_OUTPUT]);
        call->first[index - FIRST_OUTPUT] = malloc((size_t)call->bytes[index]);
        ck_assert_ptr_nonnull(call->first[index - FIRST_OUTPUT]);
    }
}

static void set_options(struct device_call *call, float softcap, int32_t sinks, struct rng *rng)
{
    ffa_error err = { 0 };

    for (int i = 0; i < sinks * call->host.shape.heads_q; i++)
        call->sink[i] = (float)rng_bell(rng);
    must(ffa_device_copy(context, call->device_sink, call->sink, sizeof call->sink, FFA_TO_DEVICE,
                         &err),
         &err, "send");
    call->host.args.softcap = call->args.softcap = softcap;
    call->host.args.sink_count = call->args.sink_count = sinks;
    call->host.args.sink = sinks ? call->sink : NULL;
    call->args.sink = sinks ? call->device_sink : NULL;
    call->args.dsink = sinks ? call->device_dsink : NULL;
}

static int64_t dlse_bytes(const struct device_call *call)
{
    const ffa_tensor *dlse = &call->gradients.dlse;
    const struct attention_shape *shape = &call->host.shape;

    return ((shape->mask.seqlen_q - 1) * dlse->token_stride +
            (shape->heads_q - 1) * dlse->head_stride + 1) *
           (int64_t)sizeof(float);
}

/* From here on, calls have a dlse. */
static void set_dlse(struct device_call *call)
{
    ffa_error err = { 0 };

    must(ffa_device_alloc(&call->device_dlse, context, dlse_bytes(call), &err), &err, "allocate");
    call->on_host.dlse = call->args.dlse = call->gradients.dlse;
    call->args.dlse.data = call->device_dlse;
}

/* Send dlse, once lse is there: rows of nothing ignore theirs, which is NaN. */
static void send_dlse(struct device_call *call)
{
    const struct attention_shape *shape = &call->host.shape;
    ffa_error err = { 0 };

    for (int64_t t = 0; t < shape->mask.seqlen_q; t++)
        for (int32_t h = 0; h < shape->heads_q; h++)
            if (attention_read(&call->on_host.lse, FFA_FP32, t, h, 0) == -(double)INFINITY)
                attention_write(&call->gradients.dlse, FFA_FP32, t, h, 0, (double)NAN);
    must(ffa_device_copy(context, call->device_dlse, call->gradients.dlse.data, dlse_bytes(call),
                         FFA_TO_DEVICE, &err),
         &err, "send");
}

static void send(struct device_call *call, int from, int to)
{
    ffa_error err = { 0 };

    for (int i = from; i < to; i++)
        must(ffa_device_copy(context, tensor_of(&call->args, i)->data,
                             tensor_of(&call->on_host, i)->data, call->bytes[i], FFA_TO_DEVICE,
                             &err),
             &err, "send");
}

/* Replace an expanded input, on both sides, by a copy that is as large as its shape. */
static void materialise(struct device_call *call, int index)
{
    const struct attention_shape *shape = &call->host.shape;
    const ffa_dtype dtype = index == LSE ? FFA_FP32 : index == OUT ? call->out_dtype : shape->dtype;
    const bool is_key = index == 1 || index == 2;
    const int64_t tokens = is_key ? shape->mask.seqlen_k : shape->mask.seqlen_q;
    const int32_t heads = is_key ? shape->heads_kv : shape->heads_q;
    void **memory = index < 5 ? &call->host.memory[index] : &call->gradients.memory[index - 5];
    const ffa_tensor old = *tensor_of(&call->on_host, index);
    ffa_tensor *copy = tensor_of(&call->on_host, index);
    void *old_memory = *memory;

    attention_place(copy, memory, LAYOUT_PADDED, tokens, heads, dim_of(call, index),
                    element_bytes(call, index));
    for (int64_t t = 0; t < tokens; t++)
        for (int32_t h = 0; h < heads; h++)
            for (int32_t c = 0; c < dim_of(call, index); c++)
                attention_write(copy, dtype, t, h, c, attention_read(&old, dtype, t, h, c));
    free(old_memory);
    *tensor_of(&call->args, index) = *copy;
    ffa_device_free(context, call->memory[index]);
    place_on_device(call, index);
    send(call, index, index + 1);
}

static void fetch(struct device_call *call, int from, int to)
{
    ffa_error err = { 0 };

    must(ffa_device_synchronize(context, &err), &err, "finish");
    for (int i = from; i < to; i++)
        must(ffa_device_copy(context, tensor_of(&call->on_host, i)->data,
                             tensor_of(&call->args, i)->data, call->bytes[i], FFA_FROM_DEVICE,
                             &err),
             &err, "fetch");
    must(ffa_device_copy(context, call->dsink, call->device_dsink, sizeof call->dsink,
                         FFA_FROM_DEVICE, &err),
         &err, "fetch");
}

static void check_guard(const char *memory, int64_t bytes, const char *name, const char *what)
{
    unsigned char guard[2 * GUARD];
    ffa_error err = { 0 };

    must(ffa_device_copy(context, guard, memory, GUARD, FFA_FROM_DEVICE, &err), &err, "read");
    must(ffa_device_copy(context, guard + GUARD, memory + GUARD + bytes, GUARD, FFA_FROM_DEVICE,
                         &err),
         &err, "read");
    for (int b = 0; b < 2 * GUARD; b++)
        ck_assert_msg(guard[b] == GUARD_BYTE, "%s: wrote beside %s, guard byte %d", name, what, b);
}

/* ---- kernels, plans, workspaces ---- */

static const ffa_kernels *kernels_for_v(const struct attention_shape *shape, int32_t head_dim_v,
                                        uint32_t flags)
{
    static struct {
        ffa_dtype dtype;
        int32_t head_dim, head_dim_v;
        int32_t backward_tile_n;
        uint32_t flags;
        ffa_kernels *kernels;
    } kept[512];
    const int32_t tile_n =
        has_pairs && attention_backward_may_pair(shape->head_dim, head_dim_v) ? 256 : 0;
    ffa_error err = { 0 };

    flags |= all_flags;
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        if (!kept[i].kernels) {
            ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;

            spec.dtype = shape->dtype;
            spec.head_dim = shape->head_dim;
            spec.head_dim_v = head_dim_v;
            spec.backward_tile_n = tile_n;
            spec.flags = flags | FFA_SPEC_BACKWARD;
            must(ffa_kernels_create(&kept[i].kernels, context, &spec, &err), &err, "kernels");
            kept[i].backward_tile_n = tile_n;
            kept[i].dtype = shape->dtype;
            kept[i].head_dim = shape->head_dim;
            kept[i].head_dim_v = head_dim_v;
            kept[i].flags = flags;
        }
        if (kept[i].dtype == shape->dtype && kept[i].head_dim == shape->head_dim &&
            kept[i].head_dim_v == head_dim_v && kept[i].backward_tile_n == tile_n &&
            kept[i].flags == flags)
            return kept[i].kernels;
    }
    ck_abort_msg("more kernels than the test keeps");
    return NULL;
}

static const ffa_kernels *kernels_for(const struct attention_shape *shape, uint32_t flags)
{
    return kernels_for_v(shape, shape->head_dim, flags);
}

/* What all calls of one mask need. */
struct prepared {
    const ffa_kernels *kernels;
    ffa_plan *plan;
    void *buffer, *workspace; /* the workspace has guards before and after */
    int64_t workspace_bytes;
};

static void *workspace_of(const struct prepared *ready)
{
    return (char *)ready->workspace + GUARD;
}

static int workspace_byte = 0xff; /* that workspaces are full of before each call; of it: NaN */

static void lend_workspace(ffa_backward_args *args, const struct prepared *ready)
{
    args->workspace = workspace_of(ready);
    args->workspace_bytes = ready->workspace_bytes;
}

/* Allocate the memory that calls with ready->plan need, and upload the plan. */
static void prepare_memory(struct prepared *ready, const struct attention_shape *shape)
{
    ffa_plan_info info = FFA_PLAN_INFO_INIT;
    const ffa_kernels *kernels = ready->kernels;
    ffa_error err = { 0 };

    must(ffa_plan_info_get(ready->plan, &info, &err), &err, "plan info");
    must(ffa_backward_workspace_bytes(kernels, ready->plan, shape->heads_q, shape->heads_kv,
                                      &ready->workspace_bytes, &err),
         &err, "workspace");
    must(ffa_device_alloc(&ready->buffer, context, info.upload_bytes, &err), &err, "plan buffer");
    must(ffa_device_alloc(&ready->workspace, context, ready->workspace_bytes + 2 * GUARD, &err),
         &err, "workspace");
    must(ffa_device_fill(context, ready->workspace, GUARD_BYTE, ready->workspace_bytes + 2 * GUARD,
                         &err),
         &err, "guards");
    must(
        ffa_device_fill(context, workspace_of(ready), workspace_byte, ready->workspace_bytes, &err),
        &err, "workspace");
    must(ffa_plan_upload(ready->plan, kernels, ready->buffer, NULL, &err), &err, "upload");
}

static void prepare_with(struct prepared *ready, const ffa_kernels *kernels, const ffa_mask *mask,
                         const struct attention_shape *shape, uint32_t plan_flags,
                         void (*mutate)(struct ffa_plan *plan))
{
    ffa_plan_opts opts = FFA_PLAN_OPTS_INIT;
    ffa_error err = { 0 };

    *ready = (struct prepared){ .kernels = kernels };
    opts.flags = plan_flags;
    must(ffa_plan_create_with(&ready->plan, kernels, mask, &opts, &err), &err, "plan");
    if (mutate)
        mutate(ready->plan);
    prepare_memory(ready, shape);
}

static void prepare(struct prepared *ready, const ffa_kernels *kernels, const ffa_mask *mask,
                    const struct attention_shape *shape)
{
    prepare_with(ready, kernels, mask, shape, 0, NULL);
}

static void prepared_finish(struct prepared *ready)
{
    ffa_plan_destroy(ready->plan);
    ffa_device_free(context, ready->buffer);
    ffa_device_free(context, ready->workspace);
}

/* Send the inputs and run the forward pass; out and lse are then on the device and on the host. */
static void run_forward(struct device_call *call, const struct prepared *ready)
{
    ffa_forward_args args = call->host.args;
    ffa_error err = { 0 };

    args.q = call->args.q;
    args.k = call->args.k;
    args.v = call->args.v;
    args.out = call->args.out;
    args.lse = call->args.lse;
    args.sink = call->args.sink;
    args.workspace = workspace_of(ready);
    args.workspace_bytes = ready->workspace_bytes;
    send(call, 0, 3);
    must(ffa_forward(ready->kernels, ready->plan, &args, NULL, &err), &err, "forward");
    fetch(call, 3, 5);
    send(call, 5, 6);
    if (call->device_dlse)
        send_dlse(call);
}

static struct oracle_backward_case reference_of(struct device_call *call, ffa_slice_list *lists,
                                                int32_t list_count)
{
    return (struct oracle_backward_case){
        .forward = { .shape = call->host.shape.mask,
                     .lists = lists,
                     .list_count = list_count,
                     .head_dim = call->host.shape.head_dim,
                     .head_dim_v = call->host.head_dim_v,
                     .dtype = call->host.shape.dtype,
                     .out_dtype = call->out_dtype,
                     .args = &call->host.args },
        .grad_dtype = call->gradients.grad_dtype,
        .dout = call->on_host.dout,
        .dlse = call->on_host.dlse,
        .dq = call->on_host.dq,
        .dk = call->on_host.dk,
        .dv = call->on_host.dv,
        .dsink = call->args.dsink ? call->dsink : NULL,
    };
}

/* Poison the gradients, run the backward pass, fetch the gradients. */
static void run_backward(struct device_call *call, const struct prepared *ready,
                         const struct oracle_backward_case *test, ffa_stream stream)
{
    ffa_error err = { 0 };

    oracle_backward_poison(test);
    send(call, FIRST_OUTPUT, TENSORS);
    must(ffa_device_fill(context, call->device_dsink, 0xff, sizeof call->dsink, &err), &err,
         "poison");
    lend_workspace(&call->args, ready);
    must(ffa_device_fill(context, call->args.workspace, workspace_byte, call->args.workspace_bytes,
                         &err),
         &err, "workspace");
    must(ffa_backward(ready->kernels, ready->plan, &call->args, stream, &err), &err, "backward");
    fetch(call, FIRST_OUTPUT, TENSORS);
}

/* ---- an attempt ---- */

struct attempt {
    const char *name;
    const ffa_mask *mask;
    uint32_t spec_flags, plan_flags;
    bool want_failure; /* the plan is made wrong: the comparison must fail */
    bool keep_inputs;  /* run no forward pass: the caller has set out and lse on host and device */
    void (*mutate)(struct ffa_plan *plan);
};

static void keep_first(struct device_call *call)
{
    for (int i = 0; i < 3; i++)
        memcpy(call->first[i], tensor_of(&call->on_host, FIRST_OUTPUT + i)->data,
               (size_t)call->bytes[FIRST_OUTPUT + i]);
    memcpy(call->first_dsink, call->dsink, sizeof call->dsink);
}

static void check_same(struct device_call *call, const char *name, bool with_dq)
{
    for (int i = with_dq ? 0 : 1; i < 3; i++)
        ck_assert_msg(!memcmp(call->first[i], tensor_of(&call->on_host, FIRST_OUTPUT + i)->data,
                              (size_t)call->bytes[FIRST_OUTPUT + i]),
                      "%s: %s differs between two runs", name, tensor_names[FIRST_OUTPUT + i]);
    ck_assert_msg(!memcmp(call->first_dsink, call->dsink, sizeof call->dsink),
                  "%s: dsink differs between two runs", name);
}

static void compare(struct device_call *call, struct oracle_backward_case *test,
                    const struct attempt *attempt, const ffa_plan_info *info)
{
    const struct attention_shape *shape = &call->host.shape;
    const struct oracle_backward_tolerance tolerance =
        oracle_backward_tolerance_of(shape->dtype, shape->mask.seqlen_k);
    struct oracle_sample *rows = NULL, *keys = NULL;
    struct oracle_gradients want = { 0 };
    struct oracle_backward_report report;
    ffa_error err = { 0 };

    const bool is_large =
        ffa_mask_area(attempt->mask, -1) / ffa_mask_head_count(attempt->mask) * shape->heads_q >
        full_cells;

    /* dsink is a sum of delta, which is only as exact as the kernel's out. So the oracle uses that
     * out; the forward test checks it. */
    test->use_out = is_large || test->dsink;
    if (is_large) {
        test->dsink = NULL;
        test->forward.sample_count =
            oracle_samples(&test->forward, info->backward_tile_m, 1, SAMPLES, &rows);
        test->key_sample_count =
            oracle_key_samples(&test->forward, info->backward_tile_n, 1, SAMPLES, &keys);
        ck_assert_int_gt(test->forward.sample_count, 0);
        ck_assert_int_gt(test->key_sample_count, 0);
        test->forward.samples = rows;
        test->key_samples = keys;
    }
    must(oracle_backward(&want, test, &err), &err, "oracle");
    oracle_backward_compare(&report, test, &want, &tolerance);
    ck_assert_msg(report.passed != attempt->want_failure,
                  "%s: heads %d:%d head_dim %d:%d dtype %d: dq %.2e dk %.2e dv %.2e dsink %.2e, "
                  "head %.2e row "
                  "%.2e key %.2e, NaN %lld, unwritten %lld: %s",
                  attempt->name, shape->heads_q, shape->heads_kv, shape->head_dim,
                  call->host.head_dim_v, (int)shape->dtype, report.dq, report.dk, report.dv,
                  report.dsink, report.head, report.row, report.key, (long long)report.nan_count,
                  (long long)report.unwritten_count, report.reason);
    oracle_gradients_finish(&want);
    free(rows);
    free(keys);
}

/* Deterministic kernels: dq has equal bits, too, in the run before and on fewer SMs, where other
 * work items run at the same time. On one SM they run one after another. */
static void run_on_fewer_sms(struct device_call *call, const char *name,
                             const struct prepared *ready, const struct oracle_backward_case *test)
{
    check_same(call, name, true);
    call->args.sm_margin = on_gpu ? sm_count - 1 : 0;
    run_backward(call, ready, test, NULL);
    check_same(call, name, true);
    call->args.sm_margin = sm_count / 2;
    run_backward(call, ready, test, NULL);
    check_same(call, name, true);
    call->args.sm_margin = 0;
}

/* Run the forward pass, run the backward pass twice, compare with the oracle. The gradients stay in
 * the host tensors. */
static void attempt_run(struct device_call *call, const struct attempt *attempt)
{
    ffa_plan_info info = FFA_PLAN_INFO_INIT;
    struct oracle_backward_case test;
    struct prepared ready;
    ffa_slice_list lists[64];
    ffa_error err = { 0 };

    ck_assert_int_le(ffa_mask_head_count(attempt->mask), 64);
    for (int32_t i = 0; i < ffa_mask_head_count(attempt->mask); i++)
        lists[i] = ffa_mask_slices(attempt->mask, i);
    prepare_with(&ready,
                 kernels_for_v(&call->host.shape, call->host.head_dim_v, attempt->spec_flags),
                 attempt->mask, &call->host.shape, attempt->plan_flags, attempt->mutate);
    must(ffa_plan_info_get(ready.plan, &info, &err), &err, "plan info");
    test = reference_of(call, lists, ffa_mask_head_count(attempt->mask));
    if (!attempt->keep_inputs)
        run_forward(call, &ready);
    run_backward(call, &ready, &test, NULL);
    keep_first(call);
    run_backward(call, &ready, &test, NULL);
    if ((attempt->spec_flags | all_flags) & FFA_SPEC_DETERMINISTIC)
        run_on_fewer_sms(call, attempt->name, &ready, &test);
    else
        check_same(call, attempt->name, info.backward_tile_count == 1);
    for (int i = 0; i < TENSORS; i++)
        check_guard(call->memory[i], call->bytes[i], attempt->name, tensor_names[i]);
    check_guard(ready.workspace, ready.workspace_bytes, attempt->name, "the workspace");
    compare(call, &test, attempt, &info);
    prepared_finish(&ready);
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
    call_init(&call, &shape, shape.dtype, (enum attention_layout)(seed % LAYOUT_COUNT), &rng);
    attempt_run(&call, &(struct attempt){ .name = name, .mask = mask });
    call_finish(&call);
}

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
    { { 0, 0 }, FFA_BF16, 4, 4, 96, LAYOUT_TOKENS }, /* from here on, of the part `dims` */
    { { 0, 0 }, FFA_FP16, 4, 2, 192, LAYOUT_HEADS },
    { { 0, 0 }, FFA_BF16, 4, 2, 256, LAYOUT_PADDED },
    { { 0, 0 }, FFA_FP16, 4, 2, 136, LAYOUT_TOKENS },
};
enum { LAYOUTS = 12, ALL_LAYOUTS = sizeof layouts / sizeof *layouts };

/* ---- exact counts ---- */

struct interval {
    int64_t row, begin, end;
};

static int by_row(const void *a, const void *b)
{
    const struct interval *x = a, *y = b;

    return x->row != y->row ? (x->row > y->row) - (x->row < y->row)
                            : (x->begin > y->begin) - (x->begin < y->begin);
}

/* How many keys each row attends, and how many rows attend each key, from the definition in mask.h.
 */
static void count_cells(const ffa_mask *mask, int64_t *keys_of_row, int64_t *rows_of_key)
{
    const ffa_slice_list list = ffa_mask_slices(mask, 0);
    const int64_t rows = ffa_mask_seqlen_q(mask), keys = ffa_mask_seqlen_k(mask);
    struct interval *all;
    int64_t count = 0;

    for (int64_t s = 0; s < list.count; s++)
        count += list.slices[s].q_end - list.slices[s].q_begin;
    all = malloc((size_t)(count + 1) * sizeof *all);
    ck_assert_ptr_nonnull(all);
    count = 0;
    for (int64_t s = 0; s < list.count; s++) {
        const ffa_slice *slice = &list.slices[s];

        for (int64_t row = slice->q_begin; row < slice->q_end; row++) {
            const int64_t begin = slice->k_begin + (slice->type & 2 ? row - slice->q_begin : 0);
            const int64_t end = slice->k_end - (slice->type & 1 ? slice->q_end - 1 - row : 0);

            if (begin < end)
                all[count++] = (struct interval){ row, begin, end };
        }
    }
    qsort(all, (size_t)count, sizeof *all, by_row);
    memset(keys_of_row, 0, (size_t)rows * sizeof *keys_of_row);
    memset(rows_of_key, 0, (size_t)(keys + 1) * sizeof *rows_of_key);
    for (int64_t i = 0, done = 0; i < count; i++) {
        int64_t begin = all[i].begin;

        if (i == 0 || all[i].row != all[i - 1].row)
            done = 0;
        begin = begin > done ? begin : done;
        if (begin >= all[i].end)
            continue;
        done = all[i].end;
        keys_of_row[all[i].row] += done - begin;
        rows_of_key[begin]++;
        rows_of_key[done]--;
    }
    for (int64_t key = 1; key <= keys; key++)
        rows_of_key[key] += rows_of_key[key - 1];
    free(all);
}

static void fill_columns(const struct device_call *call, int index, int64_t tokens, int32_t heads,
                         double first, double second)
{
    const ffa_tensor *tensor = tensor_of((ffa_backward_args *)&call->on_host, index);

    for (int64_t t = 0; t < tokens; t++)
        for (int32_t h = 0; h < heads; h++)
            for (int32_t c = 0; c < dim_of(call, index); c++)
                attention_write(tensor, call->host.shape.dtype, t, h, c,
                                c == 0   ? first
                                : c == 1 ? second
                                         : 0.0);
}

static void check_column(const ffa_tensor *tensor, int64_t tokens, int32_t heads, int32_t column,
                         const int64_t *want, int64_t times, const char *name, const char *what)
{
    for (int64_t t = 0; t < tokens; t++)
        for (int32_t h = 0; h < heads; h++) {
            const double got = attention_read(tensor, FFA_FP32, t, h, column);

            ck_assert_msg(got == (double)(want[t] * times),
                          "%s: %s of token %lld, head %d is %.9g, not %lld", name, what,
                          (long long)t, h, got, (long long)(want[t] * times));
        }
}

/* With lse = 0, q orthogonal to k, and out = 0, every attended cell has p = ds = 1. Then dv and dk
 * count the rows that attend a key, and dq counts the keys that a row attends, in integers that
 * fp32 holds exactly. So a single cell too many or too few is found. */
static void run_counts_v(const char *name, const ffa_mask *mask, struct attention_shape shape,
                         int32_t head_dim_v)
{
    const int64_t rows = ffa_mask_seqlen_q(mask), keys = ffa_mask_seqlen_k(mask);
    int64_t *keys_of_row = malloc((size_t)rows * sizeof *keys_of_row);
    int64_t *rows_of_key = malloc((size_t)(keys + 1) * sizeof *rows_of_key);
    struct oracle_backward_case test;
    struct prepared ready;
    ffa_slice_list lists[1] = { ffa_mask_slices(mask, 0) };
    struct rng rng = { 7 };
    struct device_call call;
    int64_t group;

    ck_assert(keys_of_row && rows_of_key);
    count_cells(mask, keys_of_row, rows_of_key);
    shape.mask = (ffa_mask_shape){ rows, keys };
    call_init_v(&call, &shape, head_dim_v, FFA_FP32, shape.layout, &rng);
    fill_columns(&call, 0, rows, shape.heads_q, 0, 1);
    fill_columns(&call, 1, keys, shape.heads_kv, 1, 0);
    fill_columns(&call, 2, keys, shape.heads_kv, 1, 0);
    fill_columns(&call, 3, rows, shape.heads_q, 0, 0);
    fill_columns(&call, 5, rows, shape.heads_q, 1, 0);
    for (int64_t t = 0; t < rows; t++)
        for (int32_t h = 0; h < shape.heads_q; h++)
            attention_write(&call.on_host.lse, FFA_FP32, t, h, 0,
                            keys_of_row[t] ? 0.0 : -(double)INFINITY);
    call.args.softmax_scale = call.host.args.softmax_scale = 1;
    send(&call, 0, FIRST_OUTPUT);
    prepare(&ready, kernels_for_v(&shape, call.host.head_dim_v, FFA_SPEC_GRAD_FP32), mask, &shape);
    test = reference_of(&call, lists, 1);
    run_backward(&call, &ready, &test, NULL);
    group = shape.heads_q / shape.heads_kv;
    check_column(&call.on_host.dv, keys, shape.heads_kv, 0, rows_of_key, group, name, "dv");
    check_column(&call.on_host.dk, keys, shape.heads_kv, 1, rows_of_key, group, name, "dk");
    check_column(&call.on_host.dq, rows, shape.heads_q, 0, keys_of_row, 1, name, "dq");
    prepared_finish(&ready);
    call_finish(&call);
    free(keys_of_row);
    free(rows_of_key);
}

static void run_counts(const char *name, const ffa_mask *mask, struct attention_shape shape)
{
    if (!is_left_out(mask, shape.heads_q))
        run_counts_v(name, mask, shape, 0);
}

/* ---- masks ---- */

START_TEST(mask_cases_match_the_oracle)
{
    const struct attention_shape *shape = &layouts[_i];
    long long done = 0;

    for (int64_t i = 0; i < cases.count; i++) {
        ffa_mask *mask;

        /* Filling hundreds of MB on the host would take most of the time: few heads are enough. */
        if (cases.at[i].shape.seqlen_q > 16384 && shape->heads_q > 4)
            continue;
        mask = mask_of(&cases.at[i]);
        run_random(cases.at[i].name, mask, *shape, (uint64_t)(1000 * _i + i));
        if (_i % 3 == 2)
            run_counts(cases.at[i].name, mask, *shape);
        ffa_mask_destroy(mask);
        done++;
    }
    printf("  %lld mask cases, heads %d:%d, head_dim %d, %s\n", done, shape->heads_q,
           shape->heads_kv, shape->head_dim, shape->dtype == FFA_BF16 ? "bf16" : "fp16");
}
END_TEST

START_TEST(random_unions_match_the_oracle)
{
    const int rounds = (_i == 0 ? 1500 : 300) / level_share;

    for (int i = 0; i < rounds; i++) {
        struct rng rng = { (uint64_t)(90000 + 10000 * _i + i) };
        struct attention_shape shape = layouts[rng_range(&rng, 0, LAYOUTS - 1)];
        struct mask_case from = mask_case_random(&rng, _i == 0 ? 300 : 900, _i == 0 ? 8 : 40);
        ffa_mask *mask = mask_of(&from);
        char name[96];

        shape.heads_kv = (int32_t)rng_range(&rng, 1, 2);
        shape.heads_q = shape.heads_kv * (int32_t)rng_range(&rng, 1, 3);
        shape.layout = (enum attention_layout)rng_range(&rng, 0, LAYOUT_COUNT - 1);
        text_copy(name, "random union %d of set %d", i, _i);
        run_counts(name, mask, shape);
        if (i % 3 == 0)
            run_random(name, mask, shape, (uint64_t)i);
        ffa_mask_destroy(mask);
        free(from.slices);
    }
}
END_TEST

START_TEST(every_length_to_300)
{
    for (int n = 1; n <= 300; n++) {
        const struct attention_shape shape = { { 0, 0 }, FFA_BF16,         2,
                                               1,        n % 2 ? 64 : 128, LAYOUT_TOKENS };
        char text[64];
        ffa_mask *mask;

        text_copy(text, "%s:%d", _i ? "causal" : "full", n);
        mask = parse(text);
        run_counts(text, mask, shape);
        if (n % 7 == 1)
            run_random(text, mask, shape, (uint64_t)n);
        ffa_mask_destroy(mask);
    }
}
END_TEST

static const char *const specials[] = {
    "full:1",
    "causal:129",
    "full:77x1000",
    "full:1000x77",
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
enum { SPECIALS = sizeof specials / sizeof *specials };

START_TEST(special_masks_match_the_oracle)
{
    ffa_mask *mask = parse(specials[_i]);

    for (int i = _i % 3; i < LAYOUTS; i += 3 * level_share) {
        run_random(specials[_i], mask, layouts[i], (uint64_t)i);
        run_counts(specials[_i], mask, layouts[i]);
    }
    ffa_mask_destroy(mask);
}
END_TEST

/* Bicausal squares, which are one diagonal, and ranges of one token, of every type. */
static const struct {
    const char *name;
    ffa_mask_shape shape;
    ffa_slice slices[4];
} odd[] = {
    { "a bicausal square", { 200, 200 }, { { 0, 200, 0, 200, FFA_SLICE_BICAUSAL, 0 } } },
    { "bicausal squares side by side",
      { 400, 400 },
      { { 0, 170, 0, 170, 3, 0 }, { 170, 400, 170, 400, 3, 0 }, { 0, 170, 200, 370, 3, 0 } } },
    { "a bicausal band", { 300, 500 }, { { 0, 300, 0, 500, FFA_SLICE_BICAUSAL, 0 } } },
    { "one row", { 200, 333 }, { { 77, 78, 0, 333, FFA_SLICE_FULL, 0 } } },
    { "one key", { 333, 200 }, { { 0, 333, 77, 78, FFA_SLICE_FULL, 0 } } },
    { "one cell of each type",
      { 200, 200 },
      { { 0, 1, 3, 4, 0, 0 },
        { 64, 65, 64, 65, 1, 0 },
        { 130, 131, 2, 3, 2, 0 },
        { 199, 200, 199, 200, 3, 0 } } },
    { "one row and one key, causal",
      { 200, 200 },
      { { 0, 200, 5, 6, 1, 0 }, { 3, 4, 0, 200, 1, 0 }, { 140, 141, 0, 200, 2, 0 } } },
    { "nothing at all", { 150, 170 }, { { 0 } } },
};
enum { ODD = sizeof odd / sizeof *odd };

START_TEST(odd_shapes_match_the_oracle)
{
    ffa_mask *mask = NULL;
    ffa_error err = { 0 };

    must(ffa_mask_create(&mask, &odd[_i].shape, odd[_i].slices, 4, &err), &err, "mask");
    for (int i = _i % level_share % LAYOUTS; i < LAYOUTS; i += level_share) {
        run_random(odd[_i].name, mask, layouts[i], (uint64_t)i);
        run_counts(odd[_i].name, mask, layouts[i]);
    }
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
    for (int i = 2; i < ALL_LAYOUTS; i += 3)
        run_random("one mask per kv head", mask, layouts[i], (uint64_t)(9 + i));
    ffa_mask_destroy(mask);
}
END_TEST

/* ---- a wrong plan ---- */

static struct plan_tile *image_tiles(struct ffa_plan *plan)
{
    return plan_image_tiles(&plan->image.backward, plan->image_data);
}

static struct plan_sweep *image_sweeps(struct ffa_plan *plan)
{
    return plan_image_sweeps(&plan->image.backward, plan->image_data);
}

static struct plan_band *image_bands(struct ffa_plan *plan)
{
    return plan_image_bands(&plan->image.backward, plan->image_data);
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
    image_sweeps(plan)[0].full_begin = image_sweeps(plan)[0].begin;
}

static void mutate_end(struct ffa_plan *plan)
{
    image_sweeps(plan)[0].end -= 64;
}

static void mutate_keys(struct ffa_plan *plan)
{
    image_tiles(plan)[0].count -= 1;
}

static const struct {
    const char *name;
    const char *mask;
    void (*mutate)(struct ffa_plan *plan);
} mutations[] = {
    { "hi of a band", "window:256,left=60,right=0", mutate_hi },
    { "lo of a band", "causal:256", mutate_lo },
    { "full_begin of a sweep", "causal:256", mutate_full },
    { "end of a sweep", "causal:256", mutate_end },
    { "count of a tile", "causal:256", mutate_keys },
};
enum { MUTATIONS = sizeof mutations / sizeof *mutations };

/* The comparison can fail: it does where one bound of the plan is off by one. */
START_TEST(a_wrong_bound_is_seen)
{
    ffa_mask *mask = parse(mutations[_i].mask);
    struct attention_shape shape = layouts[0];
    struct rng rng = { 8 };
    struct device_call call;

    shape.mask = (ffa_mask_shape){ 256, 256 };
    call_init(&call, &shape, shape.dtype, shape.layout, &rng);
    attempt_run(&call, &(struct attempt){ .name = mutations[_i].name,
                                          .mask = mask,
                                          .want_failure = true,
                                          .mutate = mutations[_i].mutate });
    call_finish(&call);
    ffa_mask_destroy(mask);
}
END_TEST

/* ---- spikes and NaN ---- */

/* Keys at the bounds of ranges get nearly all weight of their rows, so that a bound off by one
 * changes the gradients of its row and key visibly. `_i` is the mask. */
START_TEST(spikes_at_bounds_match_the_oracle)
{
    static const char *const texts[] = { "causal:700", "window:900,left=300,right=100",
                                         "varlen-full:127,129,128,1,255,257" };
    ffa_mask *mask = parse(texts[_i]);

    for (int d = level_step(_i, 0); d < LAYOUTS; d += level_step(6, 3)) {
        struct attention_shape shape = layouts[d];
        struct rng rng = { (uint64_t)(77 + d) };
        struct device_call call;

        shape.mask = (ffa_mask_shape){ ffa_mask_seqlen_q(mask), ffa_mask_seqlen_k(mask) };
        call_init(&call, &shape, shape.dtype, shape.layout, &rng);
        for (int64_t key = 0; key < shape.mask.seqlen_k; key++) {
            const bool is_spike = key % 64 < 2 || key % 64 > 61 || key % 127 < 2;

            for (int32_t h = 0; is_spike && h < shape.heads_kv; h++)
                for (int32_t c = 0; c < shape.head_dim; c++)
                    attention_write(&call.on_host.k, shape.dtype, key, h, c,
                                    3 * attention_read(&call.on_host.k, shape.dtype, key, h, c));
        }
        attempt_run(&call, &(struct attempt){ .name = texts[_i], .mask = mask });
        call_finish(&call);
    }
    ffa_mask_destroy(mask);
}
END_TEST

enum { GAP_KEYS = 1100 };
static const ffa_slice gaps[] = {
    { 0, 200, 0, 150, FFA_SLICE_CAUSAL, 0 },
    { 200, 420, 153, 400, FFA_SLICE_FULL, 0 },
    { 420, 600, 411, 700, FFA_SLICE_BICAUSAL, 0 },
    { 605, 606, 701, 702, FFA_SLICE_FULL, 0 },
};

static bool is_attended(int64_t token, bool is_key)
{
    const int64_t begin = is_key ? 0 : token, end = is_key ? 640 : token + 1;

    for (int64_t row = begin; row < end; row++)
        for (int64_t key = is_key ? token : 0; key < (is_key ? token + 1 : GAP_KEYS); key++)
            for (int s = 0; s < 4; s++)
                if (slice_has(&gaps[s], row, key))
                    return true;
    return false;
}

/* Rows of q, dout and out, and keys of k and v, that have no attended cell never reach a gradient.
 * Here they are before, between and after the attended ranges; some fill whole key tiles.
 */
START_TEST(unattended_nan_stays_out)
{
    const ffa_mask_shape size = { 640, GAP_KEYS };
    struct attention_shape shape = layouts[_i];
    struct rng rng = { 5 };
    struct prepared ready;
    struct device_call call;
    ffa_mask *mask = NULL;
    ffa_error err = { 0 };

    must(ffa_mask_create(&mask, &size, gaps, 4, &err), &err, "mask");
    shape.mask = size;
    call_init(&call, &shape, shape.dtype, shape.layout, &rng);
    prepare(&ready, kernels_for(&shape, 0), mask, &shape);
    for (int64_t key = 0; key < size.seqlen_k; key++)
        if (!is_attended(key, true)) {
            write_row(&call.on_host.k, &shape, key, shape.heads_kv, NAN);
            write_row(&call.on_host.v, &shape, key, shape.heads_kv, key % 2 ? NAN : INFINITY);
        }
    run_forward(&call, &ready);
    for (int64_t row = 0; row < size.seqlen_q; row++)
        if (!is_attended(row, false)) {
            write_row(&call.on_host.q, &shape, row, shape.heads_q, NAN);
            write_row(&call.on_host.dout, &shape, row, shape.heads_q, row % 2 ? NAN : INFINITY);
            write_row(&call.on_host.out, &shape, row, shape.heads_q, NAN);
        }
    send(&call, 0, FIRST_OUTPUT);
    attempt_run(&call,
                &(struct attempt){ .name = "unattended NaN", .mask = mask, .keep_inputs = true });
    prepared_finish(&ready);
    call_finish(&call);
    ffa_mask_destroy(mask);
}
END_TEST

/* A NaN in one token of q, k, v or dout is in the gradients where the oracle has it, and never in
 * another document. */
START_TEST(attended_nan_reaches_its_document)
{
    static const int inputs[] = { 0, 1, 2, 5 };
    /* A multiple of every tile size, because NaN may spread within a tile. */
    const int64_t length = has_pairs ? 768 : 384;
    ffa_mask *mask = parse(has_pairs ? "varlen-full:768,768,768" : "varlen-full:384,384,384");

    for (int n = _i % 4 % level_share; n < 4; n += level_share) {
        const int tensor = inputs[n];
        struct attention_shape shape = layouts[_i];
        struct rng rng = { 6 };
        struct device_call call;
        int64_t found[3] = { 0 };

        shape.mask = (ffa_mask_shape){ 3 * length, 3 * length };
        call_init(&call, &shape, shape.dtype, shape.layout, &rng);
        write_row(tensor_of(&call.on_host, tensor), &shape, length + 44,
                  tensor == 0 || tensor == 5 ? shape.heads_q : shape.heads_kv, NAN);
        attempt_run(&call, &(struct attempt){ .name = tensor_names[tensor], .mask = mask });
        for (int i = 0; i < 3; i++)
            for (int64_t t = 0; t < 3 * length; t++) {
                const ffa_tensor *gradient = tensor_of(&call.on_host, FIRST_OUTPUT + i);
                const bool is_nan = isnan(attention_read(gradient, shape.dtype, t, 1, 7));

                ck_assert_msg(!is_nan || t / length == 1, "NaN of %s in %s of token %lld",
                              tensor_names[tensor], tensor_names[FIRST_OUTPUT + i], (long long)t);
                found[i] += is_nan;
            }
        /* A NaN of q or dout reaches dq of its own row only. dv does not depend on v. */
        ck_assert_int_eq(found[0], tensor == 0 || tensor == 5 ? 1 : length);
        ck_assert_int_eq(found[1], length);
        ck_assert_int_eq(found[2], tensor == 2 ? 0 : length);
        call_finish(&call);
    }
    ffa_mask_destroy(mask);
}
END_TEST

/* Documents for isolated plans. */
static const struct {
    const char *text;
    int64_t lengths[5];
} documents[] = {
    { "varlen-causal:100,30,1,300,65", { 100, 30, 1, 300, 65 } },
    { "varlen-full:100,30,300,65", { 100, 30, 300, 65 } },
    { "block-causal:150,100,70/block=32", { 150, 100, 70 } },
};
enum { DOCUMENTS = sizeof documents / sizeof *documents };

/* Fill all inputs of the tokens [begin, end) with NaN and infinities, out and lse included. */
static void spoil_tokens(struct device_call *call, int64_t begin, int64_t end)
{
    const struct attention_shape *shape = &call->host.shape;

    for (int64_t t = begin; t < end; t++) {
        for (int i = 0; i < FIRST_OUTPUT; i++)
            if (i != LSE)
                write_row(tensor_of(&call->on_host, i), shape, t,
                          i == 1 || i == 2 ? shape->heads_kv : shape->heads_q,
                          (t + i) % 3 ? NAN : INFINITY);
        for (int32_t h = 0; h < shape->heads_q; h++)
            attention_write(&call->on_host.lse, FFA_FP32, t, h, 0, NAN);
    }
}

/* Check dq, dk and dv of the tokens [begin, end). Of a spoilt document none is finite; of any other
 * they are those of the first run, dq within rounding unless `has_order`. */
static void check_document(struct device_call *call, int64_t begin, int64_t end, bool is_spoilt,
                           bool has_order, const char *name)
{
    const struct attention_shape *shape = &call->host.shape;

    for (int i = 0; i < 3; i++) {
        const ffa_tensor *got = tensor_of(&call->on_host, FIRST_OUTPUT + i);
        const ffa_tensor want = { .data = call->first[i],
                                  .token_stride = got->token_stride,
                                  .head_stride = got->head_stride };
        const int32_t heads = i ? shape->heads_kv : shape->heads_q;

        for (int64_t t = begin; t < end; t++)
            for (int32_t h = 0; h < heads; h++)
                for (int32_t c = 0; c < shape->head_dim; c++) {
                    const double x = attention_read(got, shape->dtype, t, h, c);
                    const double y = attention_read(&want, shape->dtype, t, h, c);

                    /* dk and dv always add up in one order; dq does in deterministic kernels. */
                    ck_assert_msg(is_spoilt        ? !isfinite(x)
                                  : i || has_order ? x == y
                                                   : fabs(x - y) <= 0.01 * fabs(y) + 1e-3,
                                  "%s: %s of token %lld, head %d, column %d is %g, was %g", name,
                                  tensor_names[FIRST_OUTPUT + i], (long long)t, h, c, x, y);
                }
    }
}

/* In an isolated plan no document's values reach another one. Each document in turn is filled with
 * NaN and infinities: its gradients are not finite, those of the others stay as they were. */
START_TEST(isolated_documents_do_not_mix)
{
    const char *text = documents[_i % DOCUMENTS].text;
    const int64_t *lengths = documents[_i % DOCUMENTS].lengths;
    ffa_mask *mask = parse(text);
    const int64_t tokens = ffa_mask_seqlen_q(mask);
    struct attention_shape shape = layouts[_i % LAYOUTS];
    const uint32_t flags = _i / LAYOUTS ? FFA_SPEC_DETERMINISTIC : 0;
    struct oracle_backward_case test;
    ffa_slice_list lists[1] = { ffa_mask_slices(mask, 0) };
    struct rng rng = { 66 };
    struct prepared ready;
    struct device_call call;
    int64_t begin = 0;

    shape.mask = (ffa_mask_shape){ tokens, tokens };
    call_init(&call, &shape, shape.dtype, shape.layout, &rng);
    attempt_run(&call, &(struct attempt){ .name = text,
                                          .mask = mask,
                                          .spec_flags = flags,
                                          .plan_flags = FFA_PLAN_ISOLATE });
    prepare_with(&ready, kernels_for(&shape, flags), mask, &shape, FFA_PLAN_ISOLATE, NULL);
    test = reference_of(&call, lists, 1);
    for (int d = 0; d < 5 && lengths[d]; begin += lengths[d++]) {
        void *kept[FIRST_OUTPUT];
        int64_t other = 0;

        for (int i = 0; i < FIRST_OUTPUT; i++) {
            kept[i] = malloc((size_t)call.bytes[i]);
            ck_assert_ptr_nonnull(kept[i]);
            memcpy(kept[i], tensor_of(&call.on_host, i)->data, (size_t)call.bytes[i]);
        }
        spoil_tokens(&call, begin, begin + lengths[d]);
        send(&call, 0, FIRST_OUTPUT);
        run_backward(&call, &ready, &test, NULL);
        for (int e = 0; e < 5 && lengths[e]; other += lengths[e++])
            check_document(&call, other, other + lengths[e], e == d, flags != 0, text);
        for (int i = 0; i < FIRST_OUTPUT; i++) {
            memcpy(tensor_of(&call.on_host, i)->data, kept[i], (size_t)call.bytes[i]);
            free(kept[i]);
        }
    }
    prepared_finish(&ready);
    call_finish(&call);
    ffa_mask_destroy(mask);
}
END_TEST

/* ---- features ---- */

/* Softcap and sinks, alone and together. */
START_TEST(options_match_the_oracle)
{
    static const char *const texts[] = { "varlen-causal:700,300,96", "window:900,left=300,right=9",
                                         "causal:100x300" };
    static const float caps[] = { 0, 0, 30, 0.5f, 4 };
    static const int32_t counts[] = { 1, 8, 0, 0, 3 };
    const int option = _i % 5;

    for (int t = level_step(_i % 3, 0); t < 3; t += level_step(3, 1)) {
        ffa_mask *mask = parse(texts[t]);
        struct attention_shape shape = layouts[_i % LAYOUTS];
        struct rng rng = { (uint64_t)(500 + 10 * _i + t) };
        struct device_call call;

        shape.mask = (ffa_mask_shape){ ffa_mask_seqlen_q(mask), ffa_mask_seqlen_k(mask) };
        call_init(&call, &shape, shape.dtype, shape.layout, &rng);
        set_options(&call, caps[option], counts[option], &rng);
        attempt_run(&call,
                    &(struct attempt){ .name = texts[t],
                                       .mask = mask,
                                       .spec_flags = caps[option] > 0 ? FFA_SPEC_SOFTCAP : 0 });
        call_finish(&call);
        ffa_mask_destroy(mask);
    }
}
END_TEST

/* Check that the fp32 gradients are twice those that keep_first kept. */
static void check_twice(struct device_call *call, const char *name)
{
    for (int i = 0; i < 3; i++) {
        const float *once = (const float *)(const void *)call->first[i];
        const float *twice = tensor_of(&call->on_host, FIRST_OUTPUT + i)->data;
        double error = 0, size = 0;

        for (int64_t e = 0; e < call->bytes[FIRST_OUTPUT + i] / 4; e++)
            if (isfinite(once[e])) { /* gaps of the layout hold poison */
                error += pow((double)twice[e] - 2 * (double)once[e], 2);
                size += pow(2 * (double)once[e], 2);
            }
        ck_assert_msg(sqrt(error) <=
                          (call->host.shape.dtype == FFA_BF16 ? 4e-3 : 6e-4) * sqrt(size),
                      "%s: %s, twice, is off by %.2e", name, tensor_names[FIRST_OUTPUT + i],
                      sqrt(error / size));
    }
}

/* fp32 gradients of one call. Then of two calls on half of the keys each, both with out and lse of
 * the whole, of which the second accumulates. Then the whole is added once more, which doubles
 * them. */
START_TEST(accumulated_halves_make_the_whole)
{
    static const ffa_slice whole[] = { { 0, 500, 0, 700, FFA_SLICE_CAUSAL, 0 },
                                       { 500, 600, 0, 300, FFA_SLICE_FULL, 0 } };
    static const ffa_slice halves[2][2] = {
        { { 300, 500, 0, 500, FFA_SLICE_FULL, 0 }, { 0, 300, 0, 500, FFA_SLICE_CAUSAL, 0 } },
        { { 300, 500, 500, 700, FFA_SLICE_CAUSAL, 0 }, { 500, 600, 0, 300, FFA_SLICE_FULL, 0 } },
    };
    struct attention_shape shape = layouts[_i];
    const uint32_t flags = FFA_SPEC_GRAD_FP32;
    ffa_slice_list list = { whole, 2 };
    ffa_mask *mask = NULL, *parts[2] = { NULL, NULL };
    struct prepared ready[2], all;
    struct attempt attempt = { .name = "fp32", .spec_flags = flags };
    ffa_plan_info info = FFA_PLAN_INFO_INIT;
    struct oracle_backward_case test;
    struct rng rng = { 600 };
    struct device_call call;
    ffa_error err = { 0 };

    shape.mask = (ffa_mask_shape){ 640, 700 };
    must(ffa_mask_create(&mask, &shape.mask, whole, 2, &err), &err, "mask");
    attempt.mask = mask;
    call_init(&call, &shape, FFA_FP32, shape.layout, &rng);
    attempt_run(&call, &attempt);
    test = reference_of(&call, &list, 1);
    oracle_backward_poison(&test);
    send(&call, FIRST_OUTPUT, TENSORS);
    for (int i = 0; i < 2; i++) {
        must(ffa_mask_create(&parts[i], &shape.mask, halves[i], 2, &err), &err, "mask");
        prepare(&ready[i], kernels_for(&shape, flags), parts[i], &shape);
        call.args.flags = i ? FFA_BACKWARD_ACCUMULATE : 0;
        lend_workspace(&call.args, &ready[i]);
        must(ffa_backward(ready[i].kernels, ready[i].plan, &call.args, NULL, &err), &err, "half");
    }
    fetch(&call, FIRST_OUTPUT, TENSORS);
    attempt.name = "two halves";
    must(ffa_plan_info_get(ready[0].plan, &info, &err), &err, "plan info");
    compare(&call, &test, &attempt, &info);

    keep_first(&call);
    prepare(&all, kernels_for(&shape, flags), mask, &shape);
    lend_workspace(&call.args, &all);
    must(ffa_backward(all.kernels, all.plan, &call.args, NULL, &err), &err, "again");
    fetch(&call, FIRST_OUTPUT, TENSORS);
    check_twice(&call, "accumulated");
    prepared_finish(&all);
    for (int i = 0; i < 2; i++) {
        prepared_finish(&ready[i]);
        ffa_mask_destroy(parts[i]);
    }
    call_finish(&call);
    ffa_mask_destroy(mask);
}
END_TEST

/* ---- expanded tensors ---- */

/* The same bits as of a copy that is not expanded. One tile holds all keys, so that dq has, too. */
START_TEST(expanded_tensors_are_their_copies)
{
    const int input = _i / 3, how = 1 + _i % 3; /* 1: along tokens, 2: along heads */
    ffa_mask *mask = parse("causal:70");
    struct attention_shape shape = layouts[2 + _i % 3];
    struct device_call call;
    struct prepared ready;
    struct oracle_backward_case test;
    ffa_slice_list list = ffa_mask_slices(mask, 0);
    struct rng rng = { (uint64_t)(800 + _i) };
    char name[64];

    shape.mask = (ffa_mask_shape){ 70, 70 };
    call_init(&call, &shape, shape.dtype, shape.layout, &rng);
    prepare(&ready, kernels_for(&shape, 0), mask, &shape);
    test = reference_of(&call, &list, 1);
    run_forward(&call, &ready);
    for (int side = 0; side < 2; side++) {
        ffa_tensor *tensor = tensor_of(side ? &call.args : &call.on_host, input);

        tensor->token_stride = how & 1 ? 0 : tensor->token_stride;
        tensor->head_stride = how & 2 ? 0 : tensor->head_stride;
    }
    run_backward(&call, &ready, &test, NULL);
    keep_first(&call);
    materialise(&call, input);
    run_backward(&call, &ready, &test, NULL);
    text_copy(name, "%s expanded by %d", tensor_names[input], how);
    check_same(&call, name, true);
    prepared_finish(&ready);
    call_finish(&call);
    ffa_mask_destroy(mask);
}
END_TEST

/* The gradient of a sum over out: one number for all rows. */
START_TEST(an_expanded_gradient_matches_the_oracle)
{
    ffa_mask *mask = parse("varlen-causal:300,90");
    struct attention_shape shape = layouts[_i];
    struct device_call call;
    struct rng rng = { (uint64_t)(820 + _i) };

    shape.mask = (ffa_mask_shape){ 390, 390 };
    call_init(&call, &shape, shape.dtype, shape.layout, &rng);
    for (int32_t c = 0; c < call.host.head_dim_v; c++)
        attention_write(&call.on_host.dout, shape.dtype, 0, 0, c, 1.0);
    call.on_host.dout.token_stride = call.args.dout.token_stride = 0;
    call.on_host.dout.head_stride = call.args.dout.head_stride = 0;
    attempt_run(&call, &(struct attempt){ .name = "gradient of a sum", .mask = mask });
    call_finish(&call);
    ffa_mask_destroy(mask);
}
END_TEST

static const int dirt[] = { 0x00, 0x01, 0x7f, 0xff }; /* of counters: far ahead, behind */

/* Two SMs take one work item after another, by a counter in the workspace. */
START_TEST(a_workspace_may_hold_anything)
{
    const uint32_t flags = _i % 2 ? (uint32_t)FFA_SPEC_DETERMINISTIC : 0;
    ffa_mask *mask = parse("varlen-causal:300,90");
    struct attention_shape shape = layouts[_i / 2 + 2];
    struct device_call call;
    struct rng rng = { (uint64_t)(850 + _i) };

    workspace_byte = dirt[_i / 2];
    shape.mask = (ffa_mask_shape){ 390, 390 };
    call_init(&call, &shape, shape.dtype, shape.layout, &rng);
    call.args.sm_margin = on_gpu ? sm_count - 2 : 0;
    attempt_run(&call,
                &(struct attempt){ .name = "dirty workspace", .mask = mask, .spec_flags = flags });
    call_finish(&call);
    ffa_mask_destroy(mask);
}
END_TEST

/* ---- stages ---- */

struct staged {
    struct stage_case masks;
    struct prepared ready[STAGE_CASE_MAX];
    int32_t most; /* the stage with the largest workspace, which all stages use */
};

static void staged_init(struct staged *staged, const ffa_kernels *kernels,
                        const struct attention_shape *shape, uint32_t plan_flags)
{
    ffa_plan *plans[STAGE_CASE_MAX];
    ffa_plan_opts opts = FFA_PLAN_OPTS_INIT;
    ffa_error err = { 0 };

    opts.flags = plan_flags;
    must(ffa_plan_create_stages(plans, kernels, (const ffa_mask *const *)staged->masks.masks,
                                staged->masks.count, &opts, &err),
         &err, "stages");
    staged->most = 0;
    for (int32_t s = 0; s < staged->masks.count; s++) {
        staged->ready[s] = (struct prepared){ .kernels = kernels, .plan = plans[s] };
        prepare_memory(&staged->ready[s], shape);
        if (staged->ready[s].workspace_bytes > staged->ready[staged->most].workspace_bytes)
            staged->most = s;
    }
}

static void staged_finish(struct staged *staged)
{
    for (int32_t s = 0; s < staged->masks.count; s++)
        prepared_finish(&staged->ready[s]);
    stage_case_finish(&staged->masks);
}

/* Call the backward pass once a stage, on the stage's keys. Only the last call has a dq. */
static void run_staged(const struct device_call *call, const struct staged *staged, uint32_t flags)
{
    const int64_t grad_bytes = (int64_t)ffa_dtype_bytes(call->gradients.grad_dtype);
    ffa_error err = { 0 };

    for (int32_t s = 0; s < staged->masks.count; s++) {
        const int64_t first = staged->masks.key_begin[s];
        ffa_backward_args args = call->args;

        args.k.data = (char *)args.k.data + first * args.k.token_stride * 2;
        args.v.data = (char *)args.v.data + first * args.v.token_stride * 2;
        args.dk.data = (char *)args.dk.data + first * args.dk.token_stride * grad_bytes;
        args.dv.data = (char *)args.dv.data + first * args.dv.token_stride * grad_bytes;
        if (s < staged->masks.count - 1)
            args.dq.data = NULL;
        args.flags = flags;
        lend_workspace(&args, &staged->ready[staged->most]);
        must(ffa_backward(staged->ready[s].kernels, staged->ready[s].plan, &args, NULL, &err), &err,
             "stage");
    }
}

/* A pass in stages against the oracle of the whole. With fp32 gradients all stages are then added
 * once more, which doubles them. */
static void run_stages(uint64_t seed, int first_layout, int last_layout)
{
    struct rng rng = { seed };
    struct attention_shape shape = layouts[rng_range(&rng, first_layout, last_layout)];
    const float cap = seed % 3 == 1 ? 5 : 0;
    const ffa_dtype grad_dtype = seed % 4 == 2 ? FFA_FP32 : shape.dtype;
    uint32_t flags = FFA_SPEC_STAGED | (cap > 0 ? (uint32_t)FFA_SPEC_SOFTCAP : 0) |
                     (grad_dtype == FFA_FP32 ? (uint32_t)FFA_SPEC_GRAD_FP32 : 0);
    struct attempt attempt = { .name = "stages" };
    ffa_plan_info info = FFA_PLAN_INFO_INIT;
    struct oracle_backward_case test;
    struct prepared whole;
    struct staged staged;
    struct device_call call;
    ffa_slice_list list;
    ffa_error err = { 0 };

    flags |= seed % 5 == 3 ? (uint32_t)FFA_SPEC_DETERMINISTIC : 0;
    attempt.spec_flags = flags;
    stage_case_init(&staged.masks, &rng, 300);
    attempt.mask = staged.masks.whole;
    list = ffa_mask_slices(staged.masks.whole, 0);
    shape.mask = staged.masks.shape;
    shape.heads_kv = (int32_t)rng_range(&rng, 1, 2);
    shape.heads_q = shape.heads_kv * (int32_t)rng_range(&rng, 1, 3);
    call_init(&call, &shape, grad_dtype, (enum attention_layout)(seed % LAYOUT_COUNT), &rng);
    set_options(&call, cap, seed % 5 ? 0 : 2, &rng);
    if (seed % 2)
        set_dlse(&call);
    prepare(&whole, kernels_for(&shape, flags), staged.masks.whole, &shape);
    run_forward(&call, &whole);
    staged_init(&staged, whole.kernels, &shape, seed % 2 ? 0 : (uint32_t)FFA_PLAN_ISOLATE);
    must(ffa_plan_info_get(staged.ready[0].plan, &info, &err), &err, "plan info");

    test = reference_of(&call, &list, 1);
    oracle_backward_poison(&test);
    send(&call, FIRST_OUTPUT, TENSORS);
    must(ffa_device_fill(context, call.device_dsink, 0xff, sizeof call.dsink, &err), &err,
         "poison");
    run_staged(&call, &staged, 0);
    fetch(&call, FIRST_OUTPUT, TENSORS);
    for (int i = 0; i < TENSORS; i++)
        check_guard(call.memory[i], call.bytes[i], "stages", tensor_names[i]);
    check_guard(staged.ready[staged.most].workspace, staged.ready[staged.most].workspace_bytes,
                "stages", "the workspace");
    compare(&call, &test, &attempt, &info);
    keep_first(&call);
    if ((flags | all_flags) & FFA_SPEC_DETERMINISTIC) {
        send(&call, FIRST_OUTPUT, TENSORS);
        run_staged(&call, &staged, 0);
        fetch(&call, FIRST_OUTPUT, TENSORS);
        check_same(&call, "stages", true);
    }
    if (grad_dtype == FFA_FP32) {
        run_staged(&call, &staged, FFA_BACKWARD_ACCUMULATE);
        fetch(&call, FIRST_OUTPUT, TENSORS);
        check_twice(&call, "stages");
    }
    staged_finish(&staged);
    prepared_finish(&whole);
    call_finish(&call);
}

/* Three stages over the same keys, each with some of the rows. The first writes dk and dv in fp32,
 * the second adds to them, the third converts them to the dtype. With and without parts of head
 * groups.
 */
START_TEST(gradients_of_keys_get_the_dtype_last)
{
    static const ffa_slice slices[] = { { 0, 150, 0, 270, FFA_SLICE_FULL, 0 },
                                        { 150, 300, 10, 270, FFA_SLICE_CAUSAL, 0 },
                                        { 300, 420, 0, 200, FFA_SLICE_BICAUSAL, 0 } };
    struct attention_shape shape = layouts[_i % LAYOUTS];
    struct staged staged = { .masks = { .count = 3 } };
    const ffa_kernels *kernels, *fp32;
    ffa_slice_list list = { slices, 3 };
    struct attempt attempt = { .name = "key gradients over stages" };
    ffa_plan_info info = FFA_PLAN_INFO_INIT;
    struct oracle_backward_case test;
    struct device_call call, sums;
    struct prepared whole;
    struct rng rng = { (uint64_t)(90 + _i) };
    ffa_error err = { 0 };

    shape.heads_kv = 2;
    shape.heads_q = _i / LAYOUTS ? 6 : 2;
    shape.mask = staged.masks.shape = (ffa_mask_shape){ 420, 270 };
    for (int i = 0; i < 3; i++)
        must(ffa_mask_create(&staged.masks.masks[i], &shape.mask, &slices[i], 1, &err), &err,
             "mask");
    must(ffa_mask_create(&staged.masks.whole, &shape.mask, slices, 3, &err), &err, "mask");
    attempt.mask = staged.masks.whole;
    call_init(&call, &shape, shape.dtype, shape.layout, &rng);
    call_init(&sums, &shape, FFA_FP32, LAYOUT_PADDED, &rng);
    kernels = kernels_for(&shape, FFA_SPEC_STAGED);
    fp32 = kernels_for(&shape, FFA_SPEC_STAGED | FFA_SPEC_GRAD_FP32);
    prepare(&whole, kernels, staged.masks.whole, &shape);
    run_forward(&call, &whole);
    staged_init(&staged, kernels, &shape, 0);
    must(ffa_plan_info_get(staged.ready[0].plan, &info, &err), &err, "plan info");
    test = reference_of(&call, &list, 1);
    oracle_backward_poison(&test);
    send(&call, FIRST_OUTPUT, TENSORS);
    for (int i = 0; i < 3; i++) {
        ffa_backward_args args = call.args;

        args.dk = i < 2 ? sums.args.dk : call.args.dk;
        args.dv = i < 2 ? sums.args.dv : call.args.dv;
        if (i == 2) {
            args.partial_dk = sums.args.dk;
            args.partial_dv = sums.args.dv;
        }
        args.flags = i == 1 ? FFA_BACKWARD_ACCUMULATE : 0;
        lend_workspace(&args, &staged.ready[staged.most]);
        must(ffa_backward(i < 2 ? fp32 : kernels, staged.ready[i].plan, &args, NULL, &err), &err,
             "stage");
    }
    fetch(&call, FIRST_OUTPUT, TENSORS);
    for (int i = FIRST_OUTPUT; i < TENSORS; i++) {
        check_guard(call.memory[i], call.bytes[i], "key gradients over stages", tensor_names[i]);
        check_guard(sums.memory[i], sums.bytes[i], "sums", tensor_names[i]);
    }
    check_guard(staged.ready[staged.most].workspace, staged.ready[staged.most].workspace_bytes,
                "key gradients over stages", "the workspace");
    compare(&call, &test, &attempt, &info);
    staged_finish(&staged);
    prepared_finish(&whole);
    call_finish(&call);
    call_finish(&sums);
}
END_TEST

START_TEST(stages_make_the_whole)
{
    for (int i = 0; i < 16; i += level_step(4, 1))
        run_stages((uint64_t)(17 * _i + i), 0, LAYOUTS - 1);
}
END_TEST

START_TEST(dims_in_stages_make_the_whole)
{
    run_stages((uint64_t)_i, _i, _i);
}
END_TEST

/* An fp32 out, which a context-parallel forward pass writes. */
START_TEST(fp32_out_is_read)
{
    ffa_mask *mask = parse("varlen-causal:300,200,96");
    struct attention_shape shape = layouts[_i];
    struct rng rng = { 15 };
    struct device_call call;

    shape.mask = (ffa_mask_shape){ 596, 596 };
    call_init(&call, &shape, shape.dtype, shape.layout, &rng);
    call.out_dtype = FFA_FP32;
    lay_out(&call, OUT, shape.layout);
    attempt_run(&call, &(struct attempt){
                           .name = "fp32 out", .mask = mask, .spec_flags = FFA_SPEC_OUT_FP32 });
    call_finish(&call);
    ffa_mask_destroy(mask);
}
END_TEST

/* Every tensor is read with its own strides: one has a layout that differs from all others. */
START_TEST(strides_of_each_tensor_are_used)
{
    static const char *const texts[] = { "varlen-causal:100,129,7",
                                         "window:200x130,left=60,right=9", "full:70x190" };

    for (int layout = 0; layout < LAYOUT_COUNT; layout++) {
        ffa_mask *mask = parse(texts[layout]);
        struct attention_shape shape = layouts[(_i * LAYOUT_COUNT + layout) % LAYOUTS];
        struct rng rng = { (uint64_t)(40 + _i) };
        struct device_call call;
        char name[96];

        text_copy(name, "%s, layout %d of others %d", tensor_names[_i], layout,
                  (layout + 1) % LAYOUT_COUNT);
        shape.layout = (enum attention_layout)((layout + 1) % LAYOUT_COUNT);
        shape.heads_q = 4;
        shape.heads_kv = 2;
        shape.mask = (ffa_mask_shape){ ffa_mask_seqlen_q(mask), ffa_mask_seqlen_k(mask) };
        call_init(&call, &shape, shape.dtype, shape.layout, &rng);
        lay_out(&call, _i, (enum attention_layout)layout);
        attempt_run(&call, &(struct attempt){ .name = name, .mask = mask });
        call_finish(&call);
        ffa_mask_destroy(mask);
    }
}
END_TEST

/* Two features at a time. */
enum feature {
    CAP,
    SINKS,
    FP32_GRADIENTS,
    FP32_OUT,
    LISTS,
    ISOLATED,
    PARTS,
    ORDERED,
    LSE_LOSS,
    FEATURES
};
enum { PAIRS = FEATURES * (FEATURES - 1) / 2 };
static const char *const feature_names[] = {
    "softcap",      "sinks",     "fp32 gradients",       "fp32 out",
    "per head",     "isolation", "parts of head groups", "ordered accumulation",
    "a loss of lse"
};

static ffa_mask *lists_mask(void)
{
    static const ffa_slice first[] = { { 0, 130, 0, 160, FFA_SLICE_CAUSAL, 0 } };
    static const ffa_slice second[] = { { 0, 60, 0, 70, FFA_SLICE_FULL, 0 },
                                        { 60, 120, 80, 150, FFA_SLICE_BICAUSAL, 0 } };
    const ffa_slice_list lists[] = { { first, 1 }, { second, 2 } };
    const ffa_mask_shape size = { 130, 160 };
    ffa_mask *mask = NULL;
    ffa_error err = { 0 };

    must(ffa_mask_create_per_head(&mask, &size, lists, 2, &err), &err, "mask");
    return mask;
}

/* Run with the features a and b; equal ones mean that one alone. */
static void run_features(enum feature a, enum feature b, int index)
{
#define HAS(feature) (a == (feature) || b == (feature))
    ffa_mask *mask = HAS(LISTS) ? lists_mask() : parse("varlen-causal:90,33,140");
    struct attention_shape shape = layouts[index % LAYOUTS];
    struct rng rng = { (uint64_t)(2000 + index) };
    struct attempt attempt = { .mask = mask };
    struct device_call call;
    char name[96];

    text_copy(name, "%s with %s", feature_names[a], feature_names[b]);
    attempt.name = name;
    attempt.spec_flags = (HAS(CAP) ? (uint32_t)FFA_SPEC_SOFTCAP : 0) |
                         (HAS(FP32_GRADIENTS) ? (uint32_t)FFA_SPEC_GRAD_FP32 : 0) |
                         (HAS(FP32_OUT) ? (uint32_t)FFA_SPEC_OUT_FP32 : 0) |
                         (HAS(ORDERED) ? (uint32_t)FFA_SPEC_DETERMINISTIC : 0);
    attempt.plan_flags = HAS(ISOLATED) ? FFA_PLAN_ISOLATE : 0;
    shape.heads_kv = 2;
    shape.heads_q = HAS(PARTS) ? 12 : 2;
    shape.mask = (ffa_mask_shape){ ffa_mask_seqlen_q(mask), ffa_mask_seqlen_k(mask) };
    call_init(&call, &shape, HAS(FP32_GRADIENTS) ? FFA_FP32 : shape.dtype,
              (enum attention_layout)(index % LAYOUT_COUNT), &rng);
    if (HAS(FP32_OUT)) {
        call.out_dtype = FFA_FP32;
        lay_out(&call, OUT, shape.layout);
    }
    set_options(&call, HAS(CAP) ? 3 : 0, HAS(SINKS) ? 2 : 0, &rng);
    if (HAS(LSE_LOSS))
        set_dlse(&call);
    attempt_run(&call, &attempt);
    call_finish(&call);
    ffa_mask_destroy(mask);
#undef HAS
}

START_TEST(features_in_pairs_match_the_oracle)
{
    int index = 0;

    for (enum feature a = 0; a < FEATURES; a++)
        for (enum feature b = a + 1; b < FEATURES; b++)
            if (index++ == _i)
                run_features(a, b, _i);
}
END_TEST

/* ---- errors of plain operators as a yardstick ---- */

/* The kernels' errors are at most twice those of plain operators in the same dtype. */
START_TEST(errors_are_bounded_by_plain_operators)
{
    static const char *const texts[] = { "causal:150", "window:170,left=30,right=9",
                                         "varlen-full:60,1,100", "full:90x130", "causal:100x60" };
    struct attention_shape shape = layouts[_i % LAYOUTS];
    const bool has_cap = _i / LAYOUTS == 1, has_sinks = _i / LAYOUTS == 2;

    shape.heads_kv = 2;
    shape.heads_q = 4;
    for (int t = _i % 5 % level_share; t < 5; t += level_share) {
        ffa_mask *mask = parse(texts[t]);
        ffa_slice_list list = ffa_mask_slices(mask, 0);
        struct oracle_backward_report report, plain;
        struct oracle_gradients want = { 0 };
        struct rng rng = { (uint64_t)(800 + 10 * _i + t) };
        struct oracle_backward_case test;
        struct prepared ready;
        struct device_call call;
        char why[160];
        ffa_error err = { 0 };

        shape.mask = (ffa_mask_shape){ ffa_mask_seqlen_q(mask), ffa_mask_seqlen_k(mask) };
        call_init(&call, &shape, shape.dtype, shape.layout, &rng);
        set_options(&call, has_cap ? 3 : 0, has_sinks ? 2 : 0, &rng);
        prepare(&ready, kernels_for(&shape, has_cap ? FFA_SPEC_SOFTCAP : 0), mask, &shape);
        run_forward(&call, &ready);
        test = reference_of(&call, &list, 1);
        run_backward(&call, &ready, &test, NULL);
        test.dsink = NULL; /* low_precision.h computes none */
        must(oracle_backward(&want, &test, &err), &err, "oracle");
        oracle_backward_compare(&report, &test, &want,
                                &(struct oracle_backward_tolerance){ 1, 1, 1 });
        plain = low_precision_errors(&test, &want);
        ck_assert_msg(low_precision_bounds(&report, &plain, why), "%s: %s", texts[t], why);
        oracle_gradients_finish(&want);
        prepared_finish(&ready);
        call_finish(&call);
        ffa_mask_destroy(mask);
    }
}
END_TEST

/* ---- head dimensions ---- */

/* Head dimensions that kernels compute with, smaller ones that are padded, and a head_dim_v that
 * differs from head_dim. */
static const struct {
    int32_t head_dim, head_dim_v, heads_q, heads_kv;
} dims[] = {
    { 96, 96, 4, 4 },   { 72, 72, 2, 1 },   { 80, 80, 4, 2 },   { 8, 8, 2, 2 },
    { 40, 40, 6, 2 },   { 104, 104, 2, 1 }, { 128, 96, 2, 1 },  { 112, 24, 2, 1 },
    { 64, 128, 2, 1 },  { 24, 64, 4, 1 },   { 128, 64, 2, 2 },  { 256, 256, 4, 2 },
    { 192, 192, 4, 2 }, { 192, 128, 8, 1 }, { 136, 136, 2, 1 }, { 200, 200, 2, 1 },
    { 248, 248, 2, 1 }, { 64, 256, 2, 1 },  { 256, 64, 2, 1 },  { 96, 192, 2, 1 },
    { 256, 192, 2, 1 }, { 8, 136, 2, 1 },
};
enum { DIM_COUNT = sizeof dims / sizeof *dims, DIMS_MAX = 256 };

static struct attention_shape dims_shape(int row, const ffa_mask *mask, int dtype, int layout)
{
    return (struct attention_shape){ { ffa_mask_seqlen_q(mask), ffa_mask_seqlen_k(mask) },
                                     (ffa_dtype)dtype,
                                     dims[row].heads_q,
                                     dims[row].heads_kv,
                                     dims[row].head_dim,
                                     (enum attention_layout)layout };
}

static const char *const dims_texts[] = {
    "varlen-causal:1,2,3,5,8,13,21,34,55,89,144,233",
    "causal:77x300",
    "window:700,left=257,right=31",
    "varlen-full:127,129,128,1,255,57",
};

/* In layouts without gaps a column too many would overwrite the next row or a guard. */
START_TEST(dims_match_the_oracle)
{
    for (int t = level_share > 1 ? _i % 4 : 0; t < 4; t += level_share)
        for (int dtype = level_share > 1 ? 1 + _i / 4 % 2 : 1; dtype <= FFA_FP16;
             dtype += level_share) {
            ffa_mask *mask = parse(dims_texts[t]);
            struct attention_shape shape = dims_shape(_i, mask, dtype, (t + dtype) % LAYOUT_COUNT);
            struct rng rng = { (uint64_t)(700 + 10 * _i + t) };
            struct device_call call;

            call_init_v(&call, &shape, dims[_i].head_dim_v, shape.dtype,
                        (enum attention_layout)(t % LAYOUT_COUNT), &rng);
            attempt_run(&call, &(struct attempt){ .name = dims_texts[t], .mask = mask });
            call_finish(&call);
            if (dtype == FFA_BF16 || level_share > 1)
                run_counts_v(dims_texts[t], mask, shape, dims[_i].head_dim_v);
            ffa_mask_destroy(mask);
        }
}
END_TEST

/* Options at each head dimension: softcap, sinks and fp32 gradients. */
START_TEST(dims_with_options_match_the_oracle)
{
    /* At level 0, every fourth head dimension: each of them compiles more kernels. */
    for (int option = level_share > 1 ? _i / 4 % 4 + _i % 4 * 4 : 0; option < 4;
         option += level_share) {
        ffa_mask *mask = parse("varlen-causal:150,260,96");
        struct attention_shape shape =
            dims_shape(_i, mask, option % 2 ? FFA_FP16 : FFA_BF16, option % LAYOUT_COUNT);
        const bool is_fp32 = option > 1;
        struct rng rng = { (uint64_t)(900 + 10 * _i + option) };
        struct device_call call;

        call_init_v(&call, &shape, dims[_i].head_dim_v, is_fp32 ? FFA_FP32 : shape.dtype,
                    shape.layout, &rng);
        set_options(&call, option < 3 ? 2.0f : 0.0f, option % 3, &rng);
        attempt_run(
            &call, &(struct attempt){ .name = "options",
                                      .mask = mask,
                                      .spec_flags = (option < 3 ? (uint32_t)FFA_SPEC_SOFTCAP : 0) |
                                                    (is_fp32 ? (uint32_t)FFA_SPEC_GRAD_FP32 : 0) });
        call_finish(&call);
        ffa_mask_destroy(mask);
    }
}
END_TEST

/* Random unions of slices with random head dimensions. */
START_TEST(dims_of_random_unions)
{
    for (int i = 0; i < 60 / level_share; i++) {
        struct rng rng = { (uint64_t)(120000 + i) };
        const int32_t head_dim = 8 * (int32_t)rng_range(&rng, 1, DIMS_MAX / 8);
        const int32_t head_dim_v =
            rng_range(&rng, 0, 1) ? head_dim : 8 * (int32_t)rng_range(&rng, 1, DIMS_MAX / 8);
        const int32_t heads_kv = (int32_t)rng_range(&rng, 1, 2);
        struct mask_case from = mask_case_random(&rng, 300, 8);
        ffa_mask *mask = mask_of(&from);
        struct attention_shape shape = { from.shape,
                                         rng_range(&rng, 0, 1) ? FFA_BF16 : FFA_FP16,
                                         heads_kv * (int32_t)rng_range(&rng, 1, 3),
                                         heads_kv,
                                         head_dim,
                                         (enum attention_layout)rng_range(&rng, 0, 2) };
        struct device_call call;
        char name[96];

        text_copy(name, "random union %d", i);
        call_init_v(&call, &shape, head_dim_v, shape.dtype, shape.layout, &rng);
        attempt_run(&call, &(struct attempt){ .name = name, .mask = mask });
        call_finish(&call);
        run_counts_v(name, mask, shape, head_dim_v);
        ffa_mask_destroy(mask);
        free(from.slices);
    }
}
END_TEST

/* With few tiles, head groups are divided into parts, whose dk and dv are added up. */
START_TEST(parts_of_head_groups_match_the_oracle)
{
    static const char *const texts[] = { "full:100", "causal:1000", "window:500,left=60,right=0" };
    struct attention_shape shape = layouts[_i % 3 == 0 ? 1 : _i % 3 == 1 ? 4 : 7];
    ffa_mask *mask = parse(texts[_i / 3]);
    int64_t whole, parts;
    ffa_plan *plan = NULL;
    ffa_error err = { 0 };

    if (on_gpu) {
        const ffa_kernels *kernels = kernels_for(&shape, 0);

        must(ffa_plan_create(&plan, kernels, mask, &err), &err, "plan");
        must(ffa_backward_workspace_bytes(kernels, plan, 4, 4, &whole, &err), &err, "bytes");
        must(ffa_backward_workspace_bytes(kernels, plan, 32, 4, &parts, &err), &err, "bytes");
        /* A device with few SMs is full without parts. */
        ck_assert_msg(parts > 8 * whole || sm_count < 64, "%s: %lld bytes hold no parts",
                      texts[_i / 3], (long long)parts);
        ffa_plan_destroy(plan);
    }
    run_random(texts[_i / 3], mask, shape, (uint64_t)_i);
    run_counts(texts[_i / 3], mask, shape);
    ffa_mask_destroy(mask);
}
END_TEST

/* Some kv heads are left whole and come first: their dk and dv are stored as they are, those of the
 * others are sums of parts. Of tiles that are a little more than fill the SMs, only a part of the
 * last ones pays. */
static const struct {
    bool is_causal;
    int32_t head_dim;
    uint32_t flags;
} left_whole[] = { { false, 128, 0 }, { true, 128, 0 },
                   { true, 64, 0 },   { false, 128, FFA_SPEC_DETERMINISTIC },
                   { false, 256, 0 }, { true, 72, FFA_SPEC_SOFTCAP } };
enum { LEFT_WHOLE = sizeof left_whole / sizeof *left_whole };

static int32_t whole_heads_of(const ffa_mask *mask, const ffa_kernels *kernels,
                              const struct attention_shape *shape)
{
    struct backward_layout layout;
    ffa_plan *plan;
    ffa_error err = { 0 };

    must(ffa_plan_create(&plan, kernels, mask, &err), &err, "plan");
    must(backward_layout_make(&layout, plan, kernels, shape->heads_q, shape->heads_kv, sm_count,
                              &err),
         &err, "layout");
    ffa_plan_destroy(plan);
    return layout.order.whole_heads;
}

/* Heads and a mask with two key tiles at least, so that kv heads are left whole: which ones follows
 * from how many SMs there are. Of few SMs, causal masks in lockstep leave none idle, and sums are
 * dear beside tiles of few rows. NULL: there are none. */
static ffa_mask *mask_left_whole(char text[32], struct attention_shape *shape,
                                 const ffa_kernels *kernels, bool is_causal)
{
    const int32_t most =
        kernels_backward_at_a_time(&kernels->backward[0], sm_count) + 4; /* key tiles */

    for (int kind = !is_causal; kind < 3; kind++)
        for (int keys = 2 * kernels->backward[0].tile_n - 5;
             keys < most * kernels->backward[0].tile_n; keys += 128)
            for (shape->heads_kv = 3; shape->heads_kv <= 5; shape->heads_kv++) {
                ffa_mask *mask;

                (void)snprintf(text, 32, "%s:%dx%d", kind ? "full" : "causal",
                               kind == 2 ? 4 * keys : keys, keys);
                mask = parse(text);
                shape->heads_q = 4 * shape->heads_kv;
                if (whole_heads_of(mask, kernels, shape))
                    return mask;
                ffa_mask_destroy(mask);
            }
    return NULL;
}

START_TEST(kv_heads_left_whole_match_the_oracle)
{
    const uint32_t flags = left_whole[_i].flags;
    struct attention_shape shape = layouts[_i % LAYOUTS];
    const ffa_kernels *kernels;
    struct rng rng = { (uint64_t)_i };
    struct device_call call;
    ffa_mask *mask;
    char text[32];

    if (!on_gpu) {
        suite_skip("the CPU has no SMs that a kv head could leave idle");
        return;
    }
    shape.head_dim = left_whole[_i].head_dim;
    kernels = kernels_for(&shape, flags);
    if (kernels_backward_at_a_time(&kernels->backward[0], sm_count) == 1) {
        suite_skip("one work item at a time: no SM is ever idle");
        return;
    }
    mask = mask_left_whole(text, &shape, kernels, left_whole[_i].is_causal);
    ck_assert_msg(mask != NULL, "no kv head is left whole");
    shape.mask = (ffa_mask_shape){ ffa_mask_seqlen_q(mask), ffa_mask_seqlen_k(mask) };
    call_init(&call, &shape, shape.dtype, (enum attention_layout)(_i % LAYOUT_COUNT), &rng);
    set_options(&call, flags & FFA_SPEC_SOFTCAP ? 3.0f : 0.0f, 0, &rng);
    attempt_run(&call, &(struct attempt){ .name = text, .mask = mask, .spec_flags = flags });
    call_finish(&call);
    ffa_mask_destroy(mask);
}
END_TEST

/* ---- deterministic kernels ---- */

static const uint32_t ordered_flags[] = { 0, FFA_SPEC_GRAD_FP32, FFA_SPEC_SOFTCAP,
                                          FFA_SPEC_SOFTCAP | FFA_SPEC_GRAD_FP32 };

/* option: an index of ordered_flags. At level 0 the head dimension decides it, and the dtype is
 * bf16, because every combination compiles more kernels. */
static void run_ordered(const char *name, const ffa_mask *mask, struct attention_shape shape,
                        int64_t option, uint64_t seed)
{
    const uint32_t spec_flags = ordered_flags[level_share > 1 ? shape.head_dim / 64 % 4 : option];
    struct rng rng = { seed };
    struct device_call call;
    ffa_dtype grad_dtype;

    shape.dtype = level_share > 1 ? FFA_BF16 : shape.dtype;
    grad_dtype = spec_flags & FFA_SPEC_GRAD_FP32 ? FFA_FP32 : shape.dtype;
    shape.mask.seqlen_q = ffa_mask_seqlen_q(mask);
    shape.mask.seqlen_k = ffa_mask_seqlen_k(mask);
    call_init(&call, &shape, grad_dtype, (enum attention_layout)(seed % LAYOUT_COUNT), &rng);
    set_options(&call, spec_flags & FFA_SPEC_SOFTCAP ? 3.0f : 0.0f, (int32_t)(seed % 3), &rng);
    attempt_run(&call, &(struct attempt){ .name = name,
                                          .mask = mask,
                                          .spec_flags = spec_flags | FFA_SPEC_DETERMINISTIC });
    call_finish(&call);
}

/* Tiles that share all query rows with others, some rows, or hardly any; tiles of two sweeps;
 * sweeps that begin and end inside a block; parts of head groups, and whole groups in one work
 * item. */
static const char *const ordered_texts[] = {
    "full:600",
    "causal:700",
    "causal:300x150",
    "window:700,left=100,right=0",
    "window:600,left=250,right=31",
    "varlen-causal:1,2,3,5,8,13,21,34,55,89,144,233",
    "varlen-full:127,129,128,1,255",
    "block-causal:400,200/block=128",
    "shared-prefix:200,130,250",
    "global-window:600,left=64,right=0,global=32",
    "causal:100x6200", /* many tiles */
};
enum { ORDERED_TEXTS = sizeof ordered_texts / sizeof *ordered_texts };

START_TEST(ordered_kernels_match_the_oracle)
{
    ffa_mask *mask = parse(ordered_texts[_i]);

    for (int i = _i % LAYOUTS; i < LAYOUTS; i += level_share)
        run_ordered(ordered_texts[_i], mask, layouts[i], (_i + i) % 4, (uint64_t)(30 + i));
    ffa_mask_destroy(mask);
}
END_TEST

START_TEST(ordered_kernels_on_random_unions)
{
    for (int i = 0; i < 60; i += level_share) {
        struct rng rng = { (uint64_t)(77000 + 1000 * _i + i) };
        struct mask_case from = mask_case_random(&rng, 400, 10);
        ffa_mask *mask = mask_of(&from);
        struct attention_shape shape = layouts[rng_range(&rng, 0, LAYOUTS - 1)];
        char name[96];

        shape.head_dim = (int[]){ 64, 96, 128, 40, 192, 256 }[rng_range(&rng, 0, 5)];
        shape.heads_kv = (int32_t)rng_range(&rng, 1, 3);
        shape.heads_q = shape.heads_kv * (int32_t)rng_range(&rng, 1, 4);
        text_copy(name, "random union %d", i);
        run_ordered(name, mask, shape, rng_range(&rng, 0, 3), (uint64_t)i);
        ffa_mask_destroy(mask);
        free(from.slices);
    }
}
END_TEST

/* A plan of long tiles is for pairs of blocks without being asked. */
START_TEST(long_tiles_are_in_pairs)
{
    const uint32_t flags = _i ? (uint32_t)FFA_SPEC_DETERMINISTIC : 0;
    struct attention_shape shape = { { 2048, 512 }, FFA_BF16, 2, 1, 128, LAYOUT_TOKENS };
    ffa_mask *mask = parse("full:2048x512");
    ffa_plan_info info = FFA_PLAN_INFO_INIT;
    struct rng rng = { (uint64_t)(910 + _i) };
    struct device_call call;
    ffa_plan *plan;
    ffa_error err = { 0 };

    must(ffa_plan_create(&plan, kernels_for(&shape, flags), mask, &err), &err, "plan");
    must(ffa_plan_info_get(plan, &info, &err), &err, "info");
    ck_assert_int_eq(info.backward_tile_n, on_gpu ? 256 : 128);
    call_init(&call, &shape, shape.dtype, shape.layout, &rng);
    attempt_run(&call,
                &(struct attempt){ .name = "long tiles", .mask = mask, .spec_flags = flags });
    call_finish(&call);
    ffa_plan_destroy(plan);
    ffa_mask_destroy(mask);
}
END_TEST

/* A store that has all kernels of a spec but that of pairs: passes without order get by with one
 * block a tile; ordered ones fail, as the bits of dq would be others. */
START_TEST(the_kernel_of_pairs_may_be_missing)
{
    ffa_context_opts opts = FFA_CONTEXT_OPTS_INIT;
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;
    ffa_mask *mask = parse("full:2048x512");
    char *folder = tmpdir_make(), *store = tmpdir_path(folder, "kernels.ffadb");
    ffa_context *own = NULL;
    ffa_kernels *kernels = NULL;
    ffa_plan_info info;
    ffa_error err = { 0 };

    spec.dtype = FFA_BF16;
    spec.head_dim = 128;
    spec.flags = FFA_SPEC_BACKWARD | (_i ? (uint32_t)FFA_SPEC_DETERMINISTIC : 0);
    spec.backward_tile_m = 64;
    spec.backward_tile_n = 128;
    info = info_with_store(store, 0, &spec, mask);
    ck_assert_int_eq(info.backward_tile_n, 128);

    spec.backward_tile_m = spec.backward_tile_n = 0;
    if (_i && on_gpu) {
        opts.cache_path = store;
        opts.flags = FFA_OPEN_NEVER_COMPILE;
        must(ffa_open(&own, FFA_DEVICE_AUTO, &opts, &err), &err, "open");
        ck_assert_int_eq(ffa_kernels_create(&kernels, own, &spec, &err), FFA_NOT_FOUND);
        ck_assert_ptr_nonnull(strstr(err.message, "cluster=2"));
        ffa_close(own);
    } else {
        info = info_with_store(store, FFA_OPEN_NEVER_COMPILE, &spec, mask);
        ck_assert_int_eq(info.backward_tile_n, 128);
    }
    free(store);
    tmpdir_remove(folder);
    ffa_mask_destroy(mask);
}
END_TEST

START_TEST(ordered_kernels_on_a_mask_per_kv_head)
{
    static const ffa_slice first[] = { { 0, 500, 0, 600, FFA_SLICE_CAUSAL, 0 } };
    static const ffa_slice second[] = { { 0, 250, 0, 100, FFA_SLICE_FULL, 0 },
                                        { 100, 500, 50, 450, FFA_SLICE_BICAUSAL, 0 },
                                        { 300, 480, 0, 40, FFA_SLICE_INVCAUSAL, 0 } };
    const ffa_slice_list lists[] = { { first, 1 }, { second, 3 } };
    const ffa_mask_shape size = { 500, 600 };
    ffa_mask *mask = NULL;
    ffa_error err = { 0 };

    must(ffa_mask_create_per_head(&mask, &size, lists, 2, &err), &err, "mask");
    for (int i = 2; i < LAYOUTS; i += level_step(6, 3))
        run_ordered("a mask a kv head", mask, layouts[i], i % 4, (uint64_t)(50 + i));
    ffa_mask_destroy(mask);
}
END_TEST

/* Deterministic kernels take plans with tickets, other kernels plans without. */
START_TEST(ordered_plans_are_for_ordered_kernels)
{
    const struct attention_shape shape = { { 300, 300 }, FFA_BF16, 2, 2, 64, LAYOUT_TOKENS };
    ffa_mask *mask = parse("causal:300");
    const ffa_kernels *some[] = { kernels_for(&shape, 0),
                                  kernels_for(&shape, FFA_SPEC_DETERMINISTIC) };

    for (int i = 0; i < 2; i++) {
        ffa_plan *plan = NULL;
        ffa_error err = { 0 };
        int64_t bytes;

        must(ffa_plan_create(&plan, some[i], mask, &err), &err, "plan");
        must(ffa_backward_workspace_bytes(some[i], plan, 2, 2, &bytes, &err), &err, "bytes");
        if (some[0] != some[1]) {
            ck_assert_int_eq(ffa_backward_workspace_bytes(some[1 - i], plan, 2, 2, &bytes, &err),
                             FFA_INVALID);
            ck_assert_msg(strstr(err.message, "FFA_SPEC_DETERMINISTIC"), "%s", err.message);
        }
        ffa_plan_destroy(plan);
    }
    ffa_mask_destroy(mask);
}
END_TEST

START_TEST(debug_kernels_agree)
{
    const uint32_t more = _i % 2 ? (uint32_t)FFA_SPEC_DETERMINISTIC : 0;
    ffa_mask *mask = parse("varlen-causal:300,700,96");
    struct attention_shape shape = layouts[_i];
    struct rng rng = { 10 };
    struct device_call call;

    shape.mask = (ffa_mask_shape){ 1096, 1096 };
    call_init(&call, &shape, shape.dtype, shape.layout, &rng);
    attempt_run(&call, &(struct attempt){
                           .name = "debug", .mask = mask, .spec_flags = FFA_SPEC_DEBUG | more });
    call_finish(&call);
    ffa_mask_destroy(mask);
}
END_TEST

/* sm_margin changes which SM computes what, and, where tiles do not go in lockstep, whose direction
 * is that of a wave of SMs, no bit of dk and dv. The scale takes effect. */
START_TEST(sm_margin_and_scale_take_effect)
{
    ffa_mask *mask = parse("varlen-window:700,300,96,left=200,right=0");
    struct attention_shape shape = layouts[1];
    ffa_slice_list lists[1] = { ffa_mask_slices(mask, 0) };
    struct oracle_backward_case test;
    struct prepared ready;
    struct rng rng = { 13 };
    struct device_call call;

    shape.mask = (ffa_mask_shape){ 1096, 1096 };
    call_init(&call, &shape, shape.dtype, shape.layout, &rng);
    call.host.args.softmax_scale = call.args.softmax_scale = 1e-36f; /* lse / scale is large */
    attempt_run(&call, &(struct attempt){ .name = "a tiny scale", .mask = mask });
    call.host.args.softmax_scale = call.args.softmax_scale = 0.031f;
    attempt_run(&call, &(struct attempt){ .name = "a scale", .mask = mask });
    prepare(&ready, kernels_for(&shape, 0), mask, &shape);
    test = reference_of(&call, lists, 1);
    call.args.sm_margin = on_gpu ? sm_count - 1 - sm_count / 9 : 117;
    run_backward(&call, &ready, &test, NULL);
    check_same(&call, "sm_margin", false);
    prepared_finish(&ready);
    call_finish(&call);
    ffa_mask_destroy(mask);
}
END_TEST

/* A captured call gives the right gradients each time it is replayed on new inputs. A call of
 * deterministic kernels includes a memset. */
START_TEST(a_call_can_be_captured)
{
    const uint32_t flags = _i ? (uint32_t)FFA_SPEC_DETERMINISTIC : 0;
    ffa_mask *mask = parse("causal:391");
    struct attention_shape shape = layouts[1];
    ffa_slice_list lists[1] = { ffa_mask_slices(mask, 0) };
    const struct oracle_backward_tolerance tolerance =
        oracle_backward_tolerance_of(shape.dtype, shape.mask.seqlen_k);
    struct oracle_backward_case test;
    struct prepared ready;
    struct rng rng = { 12 };
    struct device_call call;
    ffa_error err = { 0 };
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;

    if (!on_gpu) {
        suite_skip("the CPU captures nothing");
        return;
    }
    shape.mask = (ffa_mask_shape){ 391, 391 };
    call_init(&call, &shape, shape.dtype, shape.layout, &rng);
    prepare(&ready, kernels_for(&shape, flags), mask, &shape);
    run_forward(&call, &ready);
    test = reference_of(&call, lists, 1);
    ck_assert_int_eq(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    ck_assert_int_eq(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    lend_workspace(&call.args, &ready);
    must(ffa_backward(ready.kernels, ready.plan, &call.args, stream, &err), &err, "capture");
    ck_assert_int_eq(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    ck_assert_int_eq(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    for (int round = 0; round < 3; round++) {
        struct oracle_gradients want = { 0 };
        struct oracle_backward_report report;

        attention_write(&call.on_host.q, shape.dtype, 5, 0, 0, 1.0 + round);
        attention_write(&call.on_host.dout, shape.dtype, 6, 0, 0, 1.0 + round);
        run_forward(&call, &ready);
        oracle_backward_poison(&test);
        send(&call, FIRST_OUTPUT, TENSORS);
        ck_assert_int_eq(cudaGraphLaunch(exec, stream), cudaSuccess);
        ck_assert_int_eq(cudaStreamSynchronize(stream), cudaSuccess);
        fetch(&call, FIRST_OUTPUT, TENSORS);
        test.use_out = true;
        must(oracle_backward(&want, &test, &err), &err, "oracle");
        oracle_backward_compare(&report, &test, &want, &tolerance);
        ck_assert_msg(report.passed, "replay %d: %s", round, report.reason);
        oracle_gradients_finish(&want);
    }
    (void)cudaGraphExecDestroy(exec);
    (void)cudaGraphDestroy(graph);
    (void)cudaStreamDestroy(stream);
    prepared_finish(&ready);
    call_finish(&call);
    ffa_mask_destroy(mask);
}
END_TEST

static const struct {
    const char *name;
    int tensor;           /* -1: none */
    int64_t token_stride; /* 0: unchanged */
    int64_t offset;       /* bytes added to its pointer */
    int32_t sm_margin;
    int64_t workspace, workspace_bytes; /* bytes added to its pointer, and to its size */
    const char *says;
} refusals[] = {
    { "q misaligned", 0, 0, 8, 0, 0, 0, "q: data is" },
    { "dout misaligned", 5, 0, 2, 0, 0, 0, "dout: data is" },
    { "dk misaligned", 7, 0, 8, 0, 0, 0, "dk: data is" },
    { "dq stride not a multiple of 8", 6, 1028, 0, 0, 0, 0, "dq: token_stride is 1028" },
    { "out stride not a multiple of 8", 3, 1028, 0, 0, 0, 0, "out: token_stride is 1028" },
    { "negative stride", 8, -1024, 0, 0, 0, 0, "dv: token_stride is -1024" },
    { "sm_margin", -1, 0, 0, 100000, 0, 0, "sm_margin is 100000" },
    { "workspace misaligned", -1, 0, 0, 0, 4, 0, "not 16-byte aligned" },
    { "workspace too small", -1, 0, 0, 0, 0, -1, ", the call needs " },
};
enum { REFUSALS = sizeof refusals / sizeof *refusals };

START_TEST(bad_arguments_are_refused)
{
    ffa_mask *mask = parse("causal:64");
    struct attention_shape shape = layouts[0];
    struct prepared ready;
    struct rng rng = { 14 };
    struct device_call call;
    ffa_error err = { 0 };
    ffa_status rc;

    if (!on_gpu) {
        suite_skip("what is refused is of GPUs");
        return;
    }
    shape.mask = (ffa_mask_shape){ 64, 64 };
    call_init(&call, &shape, shape.dtype, shape.layout, &rng);
    prepare(&ready, kernels_for(&shape, 0), mask, &shape);
    call.args.sm_margin = refusals[_i].sm_margin;
    if (refusals[_i].tensor >= 0) {
        ffa_tensor *tensor = tensor_of(&call.args, refusals[_i].tensor);

        tensor->data = (char *)tensor->data + refusals[_i].offset;
        if (refusals[_i].token_stride)
            tensor->token_stride = refusals[_i].token_stride;
    }
    lend_workspace(&call.args, &ready);
    call.args.workspace = (char *)call.args.workspace + refusals[_i].workspace;
    call.args.workspace_bytes += refusals[_i].workspace_bytes;
    rc = ffa_backward(ready.kernels, ready.plan, &call.args, NULL, &err);
    ck_assert_msg(rc == FFA_INVALID, "%s", refusals[_i].name);
    ck_assert_msg(strstr(err.message, refusals[_i].says), "%s: %s", refusals[_i].name, err.message);
    prepared_finish(&ready);
    call_finish(&call);
    ffa_mask_destroy(mask);
}
END_TEST

static void pairs_begin(void)
{
    has_pairs = true;
}

static void pairs_end(void)
{
    has_pairs = false;
}

/* Pairs of blocks, of kernels that can have them. */
static TCase *pairs_case(void)
{
    TCase *pairs = tcase_create("pairs");

    tcase_add_unchecked_fixture(pairs, pairs_begin, pairs_end);
    add_part(pairs, special_masks_match_the_oracle, 0, SPECIALS);
    add_part(pairs, odd_shapes_match_the_oracle, 0, ODD);
    tcase_add_test(pairs, one_mask_per_kv_head);
    add_loop(pairs, unattended_nan_stays_out, LAYOUTS, 5);
    add_loop(pairs, attended_nan_reaches_its_document, LAYOUTS, 5);
    add_loop(pairs, options_match_the_oracle, 25, 7);
    add_loop(pairs, accumulated_halves_make_the_whole, LAYOUTS, 5);
    add_loop(pairs, parts_of_head_groups_match_the_oracle, 9, 2);
    add_loop(pairs, kv_heads_left_whole_match_the_oracle, LEFT_WHOLE, 1);
    add_loop(pairs, debug_kernels_agree, LAYOUTS, LAYOUTS);
    add_loop(pairs, stages_make_the_whole, 4, 2);
    add_part(pairs, random_unions_match_the_oracle, 0, 2);
    add_part(pairs, ordered_kernels_match_the_oracle, 0, ORDERED_TEXTS);
    add_loop(pairs, ordered_kernels_on_random_unions, 4, 2);
    tcase_add_test(pairs, ordered_kernels_on_a_mask_per_kv_head);
    return pairs;
}

static Suite *device_suite(void)
{
    Suite *suite = suite_create("device_backward");
    TCase *quick = tcase_create("quick"), *unions = tcase_create("unions");
    TCase *isolated = tcase_create("isolated"), *stages = tcase_create("stages"),
          *features = tcase_create("features");
    TCase *bf16 = tcase_create("bf16"), *fp16 = tcase_create("fp16");
    TCase *dim = tcase_create("dims"), *ordered = tcase_create("ordered");
    TCase *tensors = tcase_create("calls"), *whole = tcase_create("whole");
    /* At level 0, two of the large head dimensions: each compiles more kernels. */
    const int first = level_share > 1 ? LAYOUTS + 1 : LAYOUTS,
              end = level_share > 1 ? LAYOUTS + 3 : ALL_LAYOUTS;

    add_part(quick, special_masks_match_the_oracle, 0, SPECIALS);
    add_part(quick, odd_shapes_match_the_oracle, 0, ODD);
    tcase_add_test(quick, one_mask_per_kv_head);
    if (on_gpu && !all_flags) /* a deterministic kernel would wait for ever for a missing visit */
        add_part(quick, a_wrong_bound_is_seen, 0, MUTATIONS);
    add_part(quick, spikes_at_bounds_match_the_oracle, 0, 3);
    add_loop(quick, unattended_nan_stays_out, LAYOUTS, 5);
    add_loop(quick, attended_nan_reaches_its_document, LAYOUTS, 5);
    add_loop(quick, options_match_the_oracle, 25, 7);
    add_loop(quick, accumulated_halves_make_the_whole, LAYOUTS, 5);
    add_loop(quick, fp32_out_is_read, LAYOUTS, 5);
    add_loop(quick, parts_of_head_groups_match_the_oracle, 9, 2);
    add_loop(whole, kv_heads_left_whole_match_the_oracle, LEFT_WHOLE, 1);
    add_loop(quick, debug_kernels_agree, LAYOUTS, LAYOUTS);
    tcase_add_test(quick, sm_margin_and_scale_take_effect);
    tcase_add_loop_test(quick, a_call_can_be_captured, 0, 2);
    tcase_add_loop_test(quick, bad_arguments_are_refused, 0, REFUSALS);
    add_part(tensors, a_workspace_may_hold_anything, 0, 2 * (int)(sizeof dirt / sizeof *dirt));
    add_loop(tensors, expanded_tensors_are_their_copies, 18, 2);
    add_loop(tensors, an_expanded_gradient_matches_the_oracle, LAYOUTS, 5);
    tcase_add_loop_test(tensors, long_tiles_are_in_pairs, 0, 2);
    tcase_add_loop_test(tensors, the_kernel_of_pairs_may_be_missing, 0, 2);
    add_loop(isolated, isolated_documents_do_not_mix, 2 * LAYOUTS, 5);
    add_loop(features, features_in_pairs_match_the_oracle, PAIRS, 3);
    add_loop(features, strides_of_each_tensor_are_used, TENSORS, 3);
    add_loop(features, errors_are_bounded_by_plain_operators, 3 * LAYOUTS, 7);
    add_loop(stages, stages_make_the_whole, 4, 2);
    add_loop(stages, gradients_of_keys_get_the_dtype_last, 2 * LAYOUTS, 5);
    add_part(unions, every_length_to_300, 0, 2);
    add_part(unions, random_unions_match_the_oracle, 0, 2);
    add_loop(dim, dims_match_the_oracle, DIM_COUNT, 3);
    add_loop(dim, dims_with_options_match_the_oracle, DIM_COUNT, 5);
    add_part(dim, dims_of_random_unions, 0, 1);
    add_part(dim, unattended_nan_stays_out, first, end);
    add_part(dim, attended_nan_reaches_its_document, first, end);
    add_part(dim, accumulated_halves_make_the_whole, first, end);
    add_part(dim, fp32_out_is_read, first, end);
    add_part(dim, debug_kernels_agree, first, end);
    add_part(dim, dims_in_stages_make_the_whole, first, end);
    add_part(ordered, ordered_kernels_match_the_oracle, 0, ORDERED_TEXTS);
    add_loop(ordered, ordered_kernels_on_random_unions, 4, 2);
    tcase_add_test(ordered, ordered_kernels_on_a_mask_per_kv_head);
    tcase_add_test(ordered, ordered_plans_are_for_ordered_kernels);
    add_part(bf16, mask_cases_match_the_oracle, 0, LAYOUTS / 2);
    add_part(fp16, mask_cases_match_the_oracle, LAYOUTS / 2, LAYOUTS);
    suite_add_tcase(suite, tensors);
    suite_add_tcase(suite, quick);
    suite_add_tcase(suite, whole);
    suite_add_tcase(suite, isolated);
    suite_add_tcase(suite, features);
    suite_add_tcase(suite, stages);
    suite_add_tcase(suite, unions);
    suite_add_tcase(suite, dim);
    suite_add_tcase(suite, ordered);
    suite_add_tcase(suite, pairs_case());
    suite_add_tcase(suite, bf16);
    suite_add_tcase(suite, fp16);
    return suite;
}

int main(void)
{
    ffa_context_opts opts = FFA_CONTEXT_OPTS_INIT;
    ffa_context_info info = FFA_CONTEXT_INFO_INIT;
    const char *backend = getenv("FFA_TEST_BACKEND");
    const char *deterministic = getenv("FFA_TEST_DETERMINISTIC");
    const bool wants_cpu = backend && strcmp(backend, "cpu") == 0;
    ffa_error err = { 0 };
    int rc;

    level_read(layouts, LAYOUTS);
    opts.cache_path = getenv("FFA_TEST_STORE"); /* NULL: in memory */
    if (ffa_open(&context, wants_cpu ? FFA_DEVICE_CPU : FFA_DEVICE_AUTO, &opts, &err) != FFA_OK ||
        ffa_context_info_get(context, &info, &err) != FFA_OK ||
        (info.device == FFA_DEVICE_CPU && !wants_cpu)) {
        printf("skipped: no GPU that a kernel exists for %s\n", err.message);
        ffa_close(context);
        return 77;
    }
    on_gpu = info.device != FFA_DEVICE_CPU;
    sm_count = info.sm_count;
    all_flags = deterministic && atoi(deterministic) ? (uint32_t)FFA_SPEC_DETERMINISTIC : 0;
    printf("device %d: %s\n", info.device, info.device_name);
    cases = mask_cases_load();
    rc = suite_run_here(device_suite()); /* one CUDA context for all */
    mask_cases_free(&cases);
    return rc;
}
