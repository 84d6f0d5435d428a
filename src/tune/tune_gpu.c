/* SPDX-License-Identifier: Apache-2.0
 *
 * A configuration is loaded once and stays, in a backward session one set of kernels for all; its
 * plans are made when a mask first wants them. All configurations share one set of tensors and one
 * workspace, so that none is faster for where its memory lies. Calls in a row take other parts of
 * the tensors, more than three times L2 in all, so that each begins with cold ones.
 *
 * A hang is found by asking for an event until the time is over: nothing here waits without end.
 */
#include "tune/tune_gpu.h"

#include "attention/attention.h"
#include "gpu/gpu_meter.h"
#include "gpu/gpu_stream.h"
#include "tune/tune_check.h"
#include "tune/tune_compile.h"
#include "tune/tune_space.h"
#include <ffa/attention.h>
#include <ffa/device.h>

#include <time.h>

enum {
    SETS_MAX = 64,     /* of tensors that calls in a row take */
    L2_TIMES = 3,      /* that their bytes fill */
    CALLS_MAX = 4000,  /* of one sample */
    SAMPLE_US = 40000, /* about what a sample takes at least. As many calls before it do not count:
                        * the clock follows the power of what runs */
    BACKWARD_SAMPLE_US = 20000, /* orders of one mask, one after the other, draw about the same */
    POLL_NS = 20000,
    PATTERN_BYTES = 1 << 20 /* of made-up numbers that tensors repeat */
};

/* A configuration with a mask, ready to be called. */
struct prepared {
    ffa_plan *plan;
    void *buffer;
};

struct loaded {
    ffa_kernels *kernels; /* NULL: not yet */
    struct prepared masks[TUNE_MASKS_MAX];
};

struct tune_gpu {
    ffa_context *context;
    int64_t timeout_us;
    bool is_lost; /* the device is of no more use in this process */
    struct gpu_stream *stream;
    struct gpu_event *begin, *end;
    struct gpu_meter meter;
    struct loaded loaded[TUNE_CONFIGURATIONS_MAX];
    ffa_mask *masks[TUNE_MASKS_MAX];
    void *tensors[TENSORS];
    int64_t tensor_bytes[TENSORS];
    int32_t forward_mask; /* of which out and lse are there, for a backward pass; -1: none */
    struct tune_reference references[2]; /* of checks; mask NULL: not made yet */
    void *workspace;
    int64_t workspace_bytes;
};

/* ---- waiting ---- */

static ffa_status wait_end(struct tune_gpu *gpu, ffa_error *err)
{
    const struct timespec nap = { .tv_nsec = POLL_NS };
    const int64_t deadline_us = clock_us() + gpu->timeout_us;
    bool is_done = false;
    ffa_status rc;

    FFA_TRY(gpu_event_record(gpu->end, gpu_stream_handle(gpu->stream), err));
    for (;;) {
        FFA_TRY(gpu_event_query(gpu->end, &is_done, err));
        if (is_done)
            break;
        if (clock_us() > deadline_us) {
            rc = error_fail(err, FFA_TIMEOUT, 0, "it did not end within %lld ms",
                            (long long)(gpu->timeout_us / 1000));
            break;
        }
        (void)nanosleep(&nap, NULL);
    }
out:
    if (rc != FFA_OK)
        gpu->is_lost = true;
    return rc;
}

/* ---- tensors ---- */

static int32_t sets_of(const struct tune_record *record, const ffa_mask *mask)
{
    int64_t bytes = 0;

    for (int t = 0; t < TENSORS; t++)
        bytes += tune_tensor_stride(record, mask, (enum tune_tensor)t);
    return (int32_t)min64(SETS_MAX, max64(1, L2_TIMES * record->facts.l2_bytes / bytes + 1));
}

/* Make a tensor at least so large, full of numbers. */
static ffa_status grow_tensor(struct tune_gpu *gpu, const struct tune_record *record,
                              enum tune_tensor tensor, int64_t bytes, ffa_error *err)
{
    char *pattern = NULL;
    ffa_status rc = FFA_OK;

    if (bytes <= gpu->tensor_bytes[tensor])
        return FFA_OK;
    ffa_device_free(gpu->context, gpu->tensors[tensor]);
    gpu->tensors[tensor] = NULL;
    gpu->tensor_bytes[tensor] = 0;
    FFA_TRY(ffa_device_alloc(&gpu->tensors[tensor], gpu->context, bytes, err));
    gpu->tensor_bytes[tensor] = bytes;
    if (tensor >= TENSOR_OUT)
        goto out;
    pattern = mem_array(PATTERN_BYTES, 1);
    if (!pattern) {
        rc = error_nomem(err, "tensors");
        goto out;
    }
    tune_tensor_make_up(pattern, PATTERN_BYTES, record->dtype, (uint64_t)tensor << 32);
    for (int64_t at = 0; at < bytes; at += PATTERN_BYTES)
        FFA_TRY(ffa_device_copy(gpu->context, (char *)gpu->tensors[tensor] + at, pattern,
                                min64(PATTERN_BYTES, bytes - at), FFA_TO_DEVICE, err));
out:
    mem_free(pattern);
    return rc;
}

static ffa_status parse_masks(struct tune_gpu *gpu, const struct tune_record *record,
                              ffa_error *err)
{
    ffa_status rc = FFA_OK;

    for (int32_t m = 0; m < record->mask_count && rc == FFA_OK; m++)
        if (!gpu->masks[m])
            rc = ffa_mask_parse(&gpu->masks[m], record->masks[m], err);
    return rc;
}

/* Before the first time is taken: what all masks need. */
static ffa_status make_tensors(struct tune_gpu *gpu, const struct tune_record *record,
                               ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(parse_masks(gpu, record, err));
    for (int t = 0; t < TENSORS; t++) {
        int64_t bytes = 0;

        for (int32_t m = 0; m < record->mask_count; m++)
            bytes = max64(bytes, tune_tensor_stride(record, gpu->masks[m], (enum tune_tensor)t) *
                                     sets_of(record, gpu->masks[m]));
        FFA_TRY(grow_tensor(gpu, record, (enum tune_tensor)t, bytes, err));
    }
out:
    return rc;
}

static ffa_status grow_workspace(struct tune_gpu *gpu, int64_t bytes, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    if (bytes <= gpu->workspace_bytes)
        return FFA_OK;
    ffa_device_free(gpu->context, gpu->workspace);
    gpu->workspace = NULL;
    gpu->workspace_bytes = 0;
    FFA_TRY(ffa_device_alloc(&gpu->workspace, gpu->context, bytes, err));
    gpu->workspace_bytes = bytes;
out:
    return rc;
}

/* ---- plans and calls ---- */

static const ffa_kernels *kernels_of(const struct tune_gpu *gpu, const struct tune_record *record,
                                     int32_t configuration)
{
    return gpu->loaded[tune_is_backward(record) ? 0 : configuration].kernels;
}

static void prepared_finish(struct tune_gpu *gpu, struct prepared *prepared)
{
    ffa_plan_destroy(prepared->plan);
    ffa_device_free(gpu->context, prepared->buffer);
    *prepared = (struct prepared){ 0 };
}

/* configuration: what the plan's backward pass is to follow. */
static ffa_status prepare_mask(struct tune_gpu *gpu, struct prepared *out,
                               const struct tune_record *record, int32_t configuration,
                               const ffa_mask *mask, ffa_error *err)
{
    const struct tune_configuration *of = &record->configurations[configuration];
    const ffa_kernels *kernels = kernels_of(gpu, record, configuration);
    ffa_plan_info info = FFA_PLAN_INFO_INIT;
    int64_t bytes;
    ffa_status rc;

    FFA_TRY(ffa_plan_create(&out->plan, kernels, mask, err));
    if (of->parts)
        plan_force_order(out->plan,
                         (struct backward_order){ of->parts, of->waves, of->whole_heads },
                         of->is_unlocked != 0);
    FFA_TRY(ffa_plan_info_get(out->plan, &info, err));
    if (tune_is_backward(record))
        FFA_TRY(ffa_backward_workspace_bytes(kernels, out->plan, record->heads_q, record->heads_kv,
                                             &bytes, err));
    else
        FFA_TRY(ffa_workspace_bytes(kernels, out->plan, &bytes, err));
    FFA_TRY(grow_workspace(gpu, bytes, err));
    FFA_TRY(ffa_device_alloc(&out->buffer, gpu->context, info.upload_bytes, err));
    rc = ffa_plan_upload(out->plan, kernels, out->buffer, gpu_stream_handle(gpu->stream), err);
out:
    if (rc != FFA_OK)
        prepared_finish(gpu, out);
    return rc;
}

/* A tensor of a set. */
static void *tensor_of(const struct tune_gpu *gpu, const struct tune_record *record,
                       const ffa_mask *mask, int32_t set, enum tune_tensor tensor)
{
    return (char *)gpu->tensors[tensor] + set * tune_tensor_stride(record, mask, tensor);
}

static ffa_status call_forward(struct tune_gpu *gpu, const struct tune_record *record,
                               const ffa_kernels *kernels, const ffa_plan *plan,
                               const ffa_mask *mask, int32_t set, ffa_error *err)
{
    ffa_forward_args args = FFA_FORWARD_ARGS_INIT;

    args.heads_q = record->heads_q;
    args.heads_kv = record->heads_kv;
    args.q.data = tensor_of(gpu, record, mask, set, TENSOR_Q);
    args.k.data = tensor_of(gpu, record, mask, set, TENSOR_K);
    args.v.data = tensor_of(gpu, record, mask, set, TENSOR_V);
    args.out.data = tensor_of(gpu, record, mask, set, TENSOR_OUT);
    args.lse.data = tensor_of(gpu, record, mask, set, TENSOR_LSE);
    args.workspace = gpu->workspace;
    args.workspace_bytes = gpu->workspace_bytes;
    return ffa_forward(kernels, plan, &args, gpu_stream_handle(gpu->stream), err);
}

static ffa_status call_backward(struct tune_gpu *gpu, const struct tune_record *record,
                                const ffa_kernels *kernels, const ffa_plan *plan,
                                const ffa_mask *mask, int32_t set, ffa_error *err)
{
    ffa_backward_args args = FFA_BACKWARD_ARGS_INIT;

    args.heads_q = record->heads_q;
    args.heads_kv = record->heads_kv;
    args.q.data = tensor_of(gpu, record, mask, set, TENSOR_Q);
    args.k.data = tensor_of(gpu, record, mask, set, TENSOR_K);
    args.v.data = tensor_of(gpu, record, mask, set, TENSOR_V);
    args.out.data = tensor_of(gpu, record, mask, set, TENSOR_OUT);
    args.lse.data = tensor_of(gpu, record, mask, set, TENSOR_LSE);
    args.dout.data = tensor_of(gpu, record, mask, set, TENSOR_DOUT);
    args.dq.data = tensor_of(gpu, record, mask, set, TENSOR_DQ);
    args.dk.data = tensor_of(gpu, record, mask, set, TENSOR_DK);
    args.dv.data = tensor_of(gpu, record, mask, set, TENSOR_DV);
    args.workspace = gpu->workspace;
    args.workspace_bytes = gpu->workspace_bytes;
    return ffa_backward(kernels, plan, &args, gpu_stream_handle(gpu->stream), err);
}

/* The pass that the session is of. */
static ffa_status call(struct tune_gpu *gpu, const struct tune_record *record,
                       const ffa_kernels *kernels, const ffa_plan *plan, const ffa_mask *mask,
                       int32_t set, ffa_error *err)
{
    return tune_is_backward(record) ? call_backward(gpu, record, kernels, plan, mask, set, err)
                                    : call_forward(gpu, record, kernels, plan, mask, set, err);
}

/* ---- the functions of a device ---- */

static int64_t now_us(void *user)
{
    (void)user;
    return clock_us();
}

static ffa_status compile(void *user, const struct tune_record *record, const int32_t *which,
                          int32_t count, const volatile int *stop, tune_compiled_fn done,
                          void *done_user, ffa_error *err)
{
    const struct tune_compile_job job = { .context = ((struct tune_gpu *)user)->context,
                                          .record = record,
                                          .which = which,
                                          .count = count,
                                          .stop = stop };

    return tune_compile(&job, done, done_user, err);
}

static ffa_status prepare(void *user, const struct tune_record *record, int32_t configuration,
                          ffa_error *err)
{
    struct tune_gpu *gpu = user;
    struct loaded *loaded = &gpu->loaded[tune_is_backward(record) ? 0 : configuration];
    ffa_attention_spec spec;

    if (loaded->kernels)
        return FFA_OK;
    spec = tune_space_spec(record, configuration);
    return ffa_kernels_create(&loaded->kernels, gpu->context, &spec, err);
}

/* What results of a configuration are compared with, made when it is first asked for. */
static ffa_status find_reference(struct tune_reference **out, struct tune_gpu *gpu,
                                 const struct tune_record *record, int32_t configuration,
                                 ffa_error *err)
{
    const bool has_lockstep = record->configurations[configuration].is_unlocked != 0;
    ffa_status rc = FFA_OK;

    *out = &gpu->references[has_lockstep];
    if (!(*out)->mask)
        rc = tune_reference_make(*out, record, has_lockstep, err);
    if (rc != FFA_OK)
        tune_reference_finish(*out);
    return rc;
}

/* Inputs to the device; results there are NaN, so that what is not written is found. */
static ffa_status send_tensors(struct tune_gpu *gpu, const struct tune_record *record,
                               const struct tune_reference *reference, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    gpu->forward_mask = -1;
    for (int t = 0; t < TENSORS; t++) {
        const int64_t bytes = tune_tensor_stride(record, reference->mask, (enum tune_tensor)t);

        if (!bytes)
            continue;
        FFA_TRY(grow_tensor(gpu, record, (enum tune_tensor)t, bytes, err));
        if (t < TENSOR_OUT)
            FFA_TRY(ffa_device_copy(gpu->context, gpu->tensors[t], reference->host[t], bytes,
                                    FFA_TO_DEVICE, err));
        else
            FFA_TRY(ffa_device_fill(gpu->context, gpu->tensors[t], 0xff, bytes, err));
    }
out:
    return rc;
}

static ffa_status check(void *user, const struct tune_record *record, int32_t configuration,
                        bool *is_right, char reason[200], ffa_error *err)
{
    struct tune_gpu *gpu = user;
    const ffa_kernels *kernels = kernels_of(gpu, record, configuration);
    struct tune_reference *reference;
    struct prepared prepared = { 0 };
    ffa_status rc;

    FFA_TRY(find_reference(&reference, gpu, record, configuration, err));
    FFA_TRY(send_tensors(gpu, record, reference, err));
    FFA_TRY(prepare_mask(gpu, &prepared, record, configuration, reference->mask, err));
    FFA_TRY(call_forward(gpu, record, kernels, prepared.plan, reference->mask, 0, err));
    if (tune_is_backward(record))
        FFA_TRY(call_backward(gpu, record, kernels, prepared.plan, reference->mask, 0, err));
    FFA_TRY(wait_end(gpu, err));
    for (int t = TENSOR_OUT; t < TENSORS; t++)
        if (reference->host[t])
            FFA_TRY(ffa_device_copy(gpu->context, reference->host[t], gpu->tensors[t],
                                    tune_tensor_bytes(record, reference->mask, (enum tune_tensor)t),
                                    FFA_FROM_DEVICE, err));
    *is_right = tune_reference_compare(reference, record, reason);
out:
    if (!gpu->is_lost)
        prepared_finish(gpu, &prepared);
    return rc;
}

/* Calls in a row, each with the next set; ms of all. */
static ffa_status time_calls(struct tune_gpu *gpu, const struct tune_record *record,
                             int32_t configuration, int32_t mask, int32_t calls, float *ms,
                             ffa_error *err)
{
    const ffa_kernels *kernels = kernels_of(gpu, record, configuration);
    const ffa_plan *plan = gpu->loaded[configuration].masks[mask].plan;
    const int32_t sets = sets_of(record, gpu->masks[mask]);
    ffa_status rc;

    FFA_TRY(gpu_event_record(gpu->begin, gpu_stream_handle(gpu->stream), err));
    for (int32_t i = 0; i < calls; i++)
        FFA_TRY(call(gpu, record, kernels, plan, gpu->masks[mask], i % sets, err));
    FFA_TRY(wait_end(gpu, err));
    rc = gpu_event_elapsed_ms(gpu->begin, gpu->end, ms, err);
out:
    return rc;
}

/* A backward pass reads what the forward one made of the same tensors: others would overflow, and
 * draw another power. */
static ffa_status fill_forward(struct tune_gpu *gpu, const struct tune_record *record,
                               int32_t configuration, int32_t mask, ffa_error *err)
{
    const ffa_kernels *kernels = kernels_of(gpu, record, configuration);
    const ffa_plan *plan = gpu->loaded[configuration].masks[mask].plan;
    ffa_status rc = FFA_OK;

    if (!tune_is_backward(record) || gpu->forward_mask == mask)
        return FFA_OK;
    for (int32_t set = 0; set < sets_of(record, gpu->masks[mask]) && rc == FFA_OK; set++)
        rc = call_forward(gpu, record, kernels, plan, gpu->masks[mask], set, err);
    if (rc == FFA_OK)
        rc = wait_end(gpu, err);
    if (rc == FFA_OK)
        gpu->forward_mask = mask;
    return rc;
}

/* The order that calls with a plan of a backward pass have. */
static ffa_status read_order(struct tune_baseline *out, const ffa_plan *plan, ffa_error *err)
{
    ffa_plan_info info = FFA_PLAN_INFO_INIT;
    const ffa_status rc = ffa_plan_info_get(plan, &info, err);

    *out = (struct tune_baseline){ info.backward_parts, info.backward_waves,
                                   info.backward_whole_heads };
    return rc;
}

static ffa_status run(void *user, const struct tune_record *record, int32_t configuration,
                      int32_t mask, struct tune_reading *out, ffa_error *err)
{
    const float sample_us = tune_is_backward(record) ? BACKWARD_SAMPLE_US : SAMPLE_US;
    struct tune_gpu *gpu = user;
    struct prepared *prepared = &gpu->loaded[configuration].masks[mask];
    struct gpu_meter_reading reading;
    float ms = 0;
    ffa_status rc;

    FFA_TRY(make_tensors(gpu, record, err));
    if (!prepared->plan)
        FFA_TRY(prepare_mask(gpu, prepared, record, configuration, gpu->masks[mask], err));
    if (tune_is_backward(record))
        FFA_TRY(read_order(&out->order, prepared->plan, err));
    FFA_TRY(fill_forward(gpu, record, configuration, mask, err));
    FFA_TRY(time_calls(gpu, record, configuration, mask, 1, &ms, err)); /* warms up */
    out->calls = ms > 0 ? min32(CALLS_MAX, max32(1, (int32_t)(sample_us / (1e3f * ms)))) : 1;
    for (int i = 0; i < 2; i++)
        FFA_TRY(time_calls(gpu, record, configuration, mask, out->calls, &ms, err));
    gpu_meter_read(&gpu->meter, &reading);
    out->us = 1e3 * (double)ms / out->calls;
    if (!(out->us > 0))
        out->us = 1e-3; /* the events' clock is that coarse */
    out->clock_mhz = reading.clock_mhz;
    out->power_w = reading.power_w;
    out->temperature_c = reading.temperature_c;
out:
    return rc;
}

/* CUDA's errors stay with a process, and so does a kernel that hangs. */
static bool recover(void *user)
{
    struct tune_gpu *gpu = user;

    gpu->is_lost = true;
    return false;
}

struct tune_device tune_gpu_device(struct tune_gpu *gpu)
{
    return (struct tune_device){ .user = gpu,
                                 .now_us = now_us,
                                 .compile = compile,
                                 .prepare = prepare,
                                 .check = check,
                                 .run = run,
                                 .recover = recover };
}

/* ---- opening ---- */

void tune_gpu_describe(struct tune_gpu *gpu, struct tune_record *record)
{
    struct gpu_meter_facts facts;

    gpu_meter_facts(&gpu->meter, &facts);
    record->facts = *gpu_device_facts(gpu->context->gpu);
    record->memory_bytes = facts.memory_bytes;
    record->power_limit_w = facts.power_limit_w;
    record->clock_max_mhz = facts.clock_max_mhz;
    text_copy(record->driver, "%s", facts.driver);
}

ffa_status tune_gpu_open(struct tune_gpu **out, ffa_context *context, int64_t run_timeout_ms,
                         ffa_error *err)
{
    struct tune_gpu *gpu = mem_array(1, sizeof *gpu);
    ffa_status rc;

    *out = NULL;
    if (!gpu)
        return error_nomem(err, "a tuning session");
    gpu->context = context;
    gpu->timeout_us = 1000 * run_timeout_ms;
    gpu->forward_mask = -1;
    FFA_TRY(gpu_stream_create(&gpu->stream, context->gpu, 0, err));
    FFA_TRY(gpu_event_create(&gpu->begin, context->gpu, true, err));
    FFA_TRY(gpu_event_create(&gpu->end, context->gpu, true, err));
    gpu_meter_open(&gpu->meter, context->gpu);
    *out = gpu;
    gpu = NULL;
out:
    tune_gpu_close(gpu);
    return rc;
}

void tune_gpu_close(struct tune_gpu *gpu)
{
    if (!gpu)
        return;
    gpu_meter_close(&gpu->meter);
    for (int32_t m = 0; m < TUNE_MASKS_MAX; m++)
        ffa_mask_destroy(gpu->masks[m]);
    for (int i = 0; i < 2; i++)
        tune_reference_finish(&gpu->references[i]);
    if (gpu->is_lost)
        goto out;
    for (int32_t i = 0; i < TUNE_CONFIGURATIONS_MAX; i++) {
        for (int32_t m = 0; m < TUNE_MASKS_MAX; m++)
            prepared_finish(gpu, &gpu->loaded[i].masks[m]);
        ffa_kernels_destroy(gpu->loaded[i].kernels);
    }
    for (int t = 0; t < TENSORS; t++)
        ffa_device_free(gpu->context, gpu->tensors[t]);
    ffa_device_free(gpu->context, gpu->workspace);
    gpu_event_destroy(gpu->begin);
    gpu_event_destroy(gpu->end);
    gpu_stream_destroy(gpu->stream);
out:
    mem_free(gpu);
}
