/* SPDX-License-Identifier: Apache-2.0
 *
 * What ffa_forward and ffa_backward ask of their arguments but for the tensors (tensor/tensor.h):
 * stage, heads, scale, softcap, sinks, workspace. Invariant: a check changes nothing but the
 * defaults that it fills in, so that a call that is refused has enqueued nothing.
 */
#include "attention/arguments.h"

#include "tensor_map.h"

#include <math.h>

ffa_dtype sum_dtype_of(const ffa_kernels *kernels)
{
    return kernels->dtype == FFA_FP64 ? FFA_FP64 : FFA_FP32;
}

ffa_status stage_check(const ffa_kernels *kernels, const ffa_plan *plan, ffa_error *err)
{
    if (plan->stage_count > 1 && !kernels->is_staged)
        return error_fail(err, FFA_INVALID, 0,
                          "the plan is stage %d of %d, the kernels were made without "
                          "FFA_SPEC_STAGED",
                          plan->stage, plan->stage_count);
    return FFA_OK;
}

/* Softcap and sinks. */
static ffa_status extras_check(const struct call_options *options, const ffa_kernels *kernels,
                               ffa_error *err)
{
    const size_t bytes = ffa_dtype_bytes(sum_dtype_of(kernels));

    if (!(options->softcap >= 0) || isinf(options->softcap))
        return error_fail(err, FFA_INVALID, 0, "softcap is %g, not a finite number above 0 (or 0)",
                          options->softcap);
    if ((options->softcap > 0) != kernels->has_softcap)
        return error_fail(err, FFA_INVALID, 0, "softcap is %g, the kernels were made %s it",
                          options->softcap, kernels->has_softcap ? "for" : "without");
    if (options->sink_count < 0 || options->sink_count > FFA_SINKS_MAX)
        return error_fail(err, FFA_INVALID, 0, "sink_count is %d, not in [0, %d]",
                          options->sink_count, FFA_SINKS_MAX);
    if ((options->sink != NULL) != (options->sink_count > 0))
        return error_fail(err, FFA_INVALID, 0, "sink is %s with a sink_count of %d",
                          options->sink ? "given" : "NULL", options->sink_count);
    if ((uintptr_t)options->sink % bytes)
        return error_fail(err, FFA_INVALID, 0, "sink is %p, not %zu-byte aligned", options->sink,
                          bytes);
    return FFA_OK;
}

/* What computes in fp32 is given these, and products of them, as floats. */
static ffa_status scale_check(const struct call_options *options, const ffa_kernels *kernels,
                              ffa_error *err)
{
    const double scale = options->softmax_scale, cap = options->softcap;

    if (kernels->dtype == FFA_FP64)
        return FFA_OK;
    if ((float)scale == 0.0f || (cap > 0 && (float)cap == 0.0f))
        return error_fail(err, FFA_INVALID, 0, "%s is %g: 0 as a float",
                          (float)scale == 0.0f ? "softmax_scale" : "softcap",
                          (float)scale == 0.0f ? scale : cap);
    if (isinf((float)(LOG2_E * scale)))
        return error_fail(err, FFA_INVALID, 0, "softmax_scale is %g: beyond a float in log2 units",
                          scale);
    if (isinf((float)softcap_inner(scale, cap)) || isinf((float)softcap_outer(cap)))
        return error_fail(err, FFA_INVALID, 0,
                          "softcap is %g with a softmax_scale of %g: their quotient or the cap in "
                          "log2 units is beyond a float",
                          cap, scale);
    return FFA_OK;
}

ffa_status heads_check(int32_t heads_q, int32_t heads_kv, const ffa_kernels *kernels,
                       const ffa_plan *plan, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(check_heads("", heads_q, heads_kv, FFA_HEADS_MAX, err));
    FFA_TRY(check_mask_lists("", plan->heads_in_mask, heads_kv, err));
    if (kernels->heads_q && (heads_q != kernels->heads_q || heads_kv != kernels->heads_kv))
        rc = error_fail(err, FFA_INVALID, 0,
                        "heads are %d:%d, the kernels were made for heads_q %d and heads_kv %d",
                        heads_q, heads_kv, kernels->heads_q, kernels->heads_kv);
out:
    return rc;
}

ffa_status call_options_check(struct call_options *options, const ffa_kernels *kernels,
                              ffa_error *err)
{
    const bool on_gpu = kernels_are_loaded(kernels);
    const int32_t margin_max = on_gpu ? gpu_device_sm_count(kernels->context->gpu) - 1 : INT32_MAX;
    ffa_status rc;

    if (!(options->softmax_scale >= 0) || isinf(options->softmax_scale))
        return error_fail(err, FFA_INVALID, 0,
                          "softmax_scale is %g, not a finite number above 0 (or 0: default)",
                          options->softmax_scale);
    if (options->sm_margin < 0 || options->sm_margin > margin_max)
        return error_fail(err, FFA_INVALID, 0, "sm_margin is %d, not in [0, %d]",
                          options->sm_margin, margin_max);
    FFA_TRY(extras_check(options, kernels, err));
    if (options->softmax_scale == 0)
        options->softmax_scale = 1.0 / sqrt((double)kernels->head_dim);
    rc = scale_check(options, kernels, err);
out:
    return rc;
}

/* ---- what a launch needs of a plan, a workspace and a tensor ---- */

ffa_status workspace_check(const struct workspace *workspace, int64_t bytes_needed, ffa_error *err)
{
    if (bytes_needed == 0)
        return FFA_OK;
    if (!workspace->data)
        return error_fail(err, FFA_INVALID, 0, "workspace is NULL, the call needs %lld bytes of it",
                          (long long)bytes_needed);
    if ((uintptr_t)workspace->data % 16)
        return error_fail(err, FFA_INVALID, 0, "workspace is %p, not 16-byte aligned",
                          workspace->data);
    if (workspace->bytes < bytes_needed)
        return error_fail(err, FFA_INVALID, 0, "workspace_bytes is %lld, the call needs %lld",
                          (long long)workspace->bytes, (long long)bytes_needed);
    return FFA_OK;
}

bool cpu_in_fp64(const ffa_kernels *kernels)
{
    return kernels->dtype == FFA_FP64 || (kernels->context->opts.flags & FFA_OPEN_CPU_FP64) != 0;
}

ffa_status cpu_stream_check(ffa_stream stream, ffa_error *err)
{
    return stream ? error_fail(err, FFA_INVALID, 0, "stream is %p on the CPU backend, must be NULL",
                               (void *)stream)
                  : FFA_OK;
}

ffa_status launch_check(const ffa_kernels *kernels, const ffa_plan *plan, ffa_error *err)
{
    const int device = gpu_device_ordinal(kernels->context->gpu);

    if (!atomic_load(&plan->buffer))
        return error_fail(err, FFA_INVALID, 0, "the plan was not uploaded: call ffa_plan_upload");
    if (atomic_load(&plan->device) != device)
        return error_fail(err, FFA_INVALID, 0,
                          "the plan was uploaded to device %d last, the kernels are on device %d",
                          atomic_load(&plan->device), device);
    return FFA_OK;
}

static ffa_status map_make(struct tensor_map *map, const ffa_kernels *kernels,
                           const struct map_request *request, ffa_error *err)
{
    const struct gpu_tensor desc = {
        .name = request->name,
        .data = request->tensor->data,
        .element = kernels->dtype == FFA_FP16 ? GPU_FP16 : GPU_BF16,
        .dims = { request->head_dim, request->heads, request->tokens },
        .strides = { request->tensor->head_stride, request->tensor->token_stride },
        .box = { 64, request->box_heads, request->box_rows },
    };

    return gpu_tensor_map(map, kernels->context->gpu, &desc, err);
}

ffa_status maps_make(struct tensor_map *const *maps, const ffa_kernels *kernels,
                     const struct map_request *requests, size_t count, ffa_error *err)
{
    const struct tensor_map *any = NULL;
    ffa_status rc = FFA_OK;

    for (size_t i = 0; i < count; i++) {
        if (!requests[i].tokens)
            continue;
        FFA_TRY(map_make(maps[i], kernels, &requests[i], err));
        any = maps[i];
    }
    for (size_t i = 0; any && i < count; i++)
        if (!requests[i].tokens)
            *maps[i] = *any;
out:
    return rc;
}
