/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa_forward: check the arguments, fill the launch, enqueue. And ffa_attention on top of it.
 */
#include "api/attention.h"

#include "attention_forward.args.h"
#include "cpu/cpu.h"

#include <math.h>

/* The K and V of the heads worked on at a time should stay in L2 (50 MB on an H200), with room for
 * Q and out passing through. */
enum { SECTION_BYTES = 32 << 20 };

enum { SINKS_MAX = 8 };

enum { WORKSPACE_BYTES = 256 }; /* the counters, alone in their cache lines */

#define LOG2_E 1.4426950408889634

/* The largest stride the copy engine takes is below 2^40 bytes. */
#define STRIDE_MAX ((int64_t)1 << 38)
/* No address space holds more, and offsets in elements and bytes stay far from 2^63. */
#define EXTENT_MAX ((int64_t)1 << 56)

struct tensor_rule {
    const char *name;
    int64_t tokens;
    int64_t heads;
    int64_t head_dim; /* 1 for lse */
    size_t element_bytes;
    bool needs_alignment; /* moved by the copy engine or in 16-byte stores */
    bool is_output;       /* rows must not overlap */
};

/* Fill in the default, then check. A stride that is never taken (of one token, of one head) may be
 * anything: frameworks leave any number there. */
static ffa_status stride_check(int64_t *stride, const char *which, int64_t standard, int64_t count,
                               const struct tensor_rule *rule, ffa_error *err)
{
    const int64_t multiple = rule->needs_alignment ? (int64_t)(16 / rule->element_bytes) : 1;

    if (!*stride || count == 1)
        *stride = standard;
    if (*stride < 0 || *stride > STRIDE_MAX || *stride % multiple)
        return error_fail(
            err, FFA_INVALID, 0, "%s: %s is %lld, not a multiple of %lld in [0, %lld] elements",
            rule->name, which, (long long)*stride, (long long)multiple, (long long)STRIDE_MAX);
    if (*stride > EXTENT_MAX / count)
        return error_fail(err, FFA_INVALID, 0, "%s: %s is %lld, times %lld over %lld elements",
                          rule->name, which, (long long)*stride, (long long)count,
                          (long long)EXTENT_MAX);
    return FFA_OK;
}

/* Two rows share an element: the smaller stride steps inside a row, or the larger one inside what
 * the smaller one spans. */
static bool rows_overlap(const ffa_tensor *tensor, const struct tensor_rule *rule)
{
    const bool by_token =
        rule->heads == 1 || (rule->tokens > 1 && tensor->token_stride < tensor->head_stride);
    const int64_t near = by_token ? tensor->token_stride : tensor->head_stride;
    const int64_t near_count = by_token ? rule->tokens : rule->heads;
    const int64_t far = by_token ? tensor->head_stride : tensor->token_stride;
    const int64_t far_count = by_token ? rule->heads : rule->tokens;

    return (near_count > 1 && near < rule->head_dim) ||
           (far_count > 1 && far < (near_count - 1) * near + rule->head_dim);
}

static ffa_status tensor_check(ffa_tensor *tensor, const struct tensor_rule *rule, ffa_error *err)
{
    const size_t unit = rule->needs_alignment ? 16 : rule->element_bytes;
    ffa_status rc;

    if (!tensor->data)
        return error_fail(err, FFA_INVALID, 0, "%s: data is NULL", rule->name);
    if ((uintptr_t)tensor->data % unit)
        return error_fail(err, FFA_INVALID, 0, "%s: data is %p, not %zu-byte aligned", rule->name,
                          tensor->data, unit);
    FFA_TRY(stride_check(&tensor->token_stride, "token_stride", rule->heads * rule->head_dim,
                         rule->tokens, rule, err));
    FFA_TRY(
        stride_check(&tensor->head_stride, "head_stride", rule->head_dim, rule->heads, rule, err));
    if (rule->is_output && rows_overlap(tensor, rule))
        rc = error_fail(err, FFA_INVALID, 0,
                        "%s: token_stride %lld and head_stride %lld make its rows of %lld overlap",
                        rule->name, (long long)tensor->token_stride, (long long)tensor->head_stride,
                        (long long)rule->head_dim);
out:
    return rc;
}

static ffa_status tensors_check(ffa_forward_args *args, const ffa_kernels *kernels,
                                const ffa_mask_shape *shape, ffa_error *err)
{
    const bool on_gpu = kernels->forward != NULL;
    const size_t bytes = ffa_dtype_bytes(kernels->dtype);
    const int64_t rows = shape->seqlen_q, keys = shape->seqlen_k, dim = kernels->head_dim;
    const int64_t dim_v = kernels->head_dim_v;
    const struct tensor_rule rules[] = {
        { "q", rows, args->heads_q, dim, bytes, on_gpu, false },
        { "k", keys, args->heads_kv, dim, bytes, on_gpu, false },
        { "v", keys, args->heads_kv, dim_v, bytes, on_gpu, false },
        { "out", rows, args->heads_q, dim_v, ffa_dtype_bytes(kernels->out_dtype), on_gpu, true },
        { "lse", rows, args->heads_q, 1, sizeof(float), false, true },
    };
    ffa_tensor *const tensors[] = { &args->q, &args->k, &args->v, &args->out, &args->lse };
    ffa_status rc = FFA_OK;

    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        FFA_TRY(tensor_check(tensors[i], &rules[i], err));
out:
    return rc;
}

/* Flags, softcap, sinks and max_logits. */
static ffa_status options_check(const ffa_forward_args *args, const ffa_kernels *kernels,
                                ffa_error *err)
{
    if (args->flags & ~(uint32_t)FFA_FORWARD_ACCUMULATE)
        return error_fail(err, FFA_UNSUPPORTED, 0, "flags is 0x%x, known are 0x%x", args->flags,
                          (unsigned)FFA_FORWARD_ACCUMULATE);
    if (args->flags & FFA_FORWARD_ACCUMULATE && kernels->out_dtype < FFA_FP32)
        return error_fail(err, FFA_INVALID, 0,
                          "flags has FFA_FORWARD_ACCUMULATE, the kernels were made without "
                          "FFA_SPEC_OUT_FP32");
    if (!(args->softcap >= 0.0f) || isinf(args->softcap))
        return error_fail(err, FFA_INVALID, 0, "softcap is %g, not a finite number above 0 (or 0)",
                          (double)args->softcap);
    if ((args->softcap > 0.0f) != kernels->has_softcap)
        return error_fail(err, FFA_INVALID, 0, "softcap is %g, the kernels were made %s it",
                          (double)args->softcap, kernels->has_softcap ? "for" : "without");
    if (args->sink_count < 0 || args->sink_count > SINKS_MAX)
        return error_fail(err, FFA_INVALID, 0, "sink_count is %d, not in [0, %d]", args->sink_count,
                          SINKS_MAX);
    if ((args->sink != NULL) != (args->sink_count > 0))
        return error_fail(err, FFA_INVALID, 0, "sink is %s with a sink_count of %d",
                          args->sink ? "given" : "NULL", args->sink_count);
    if ((uintptr_t)args->sink % sizeof(float))
        return error_fail(err, FFA_INVALID, 0, "sink is %p, not %zu-byte aligned",
                          (const void *)args->sink, sizeof(float));
    if ((args->max_logits != NULL) != kernels->has_max_logits)
        return error_fail(
            err, FFA_INVALID, 0, "max_logits is %s, the kernels were made %s FFA_SPEC_MAX_LOGITS",
            args->max_logits ? "given" : "NULL", kernels->has_max_logits ? "with" : "without");
    if ((uintptr_t)args->max_logits % sizeof(float))
        return error_fail(err, FFA_INVALID, 0, "max_logits is %p, not %zu-byte aligned",
                          (void *)args->max_logits, sizeof(float));
    return FFA_OK;
}

/* What kernels are given are products of these, as floats. */
static ffa_status scale_check(const ffa_forward_args *args, ffa_error *err)
{
    const double scale = (double)args->softmax_scale, cap = (double)args->softcap;

    if (isinf((float)(LOG2_E * scale)))
        return error_fail(err, FFA_INVALID, 0, "softmax_scale is %g: beyond a float in log2 units",
                          scale);
    if (cap > 0 && (isinf((float)(2.0 * LOG2_E * scale / cap)) || isinf((float)(LOG2_E * cap))))
        return error_fail(err, FFA_INVALID, 0,
                          "softcap is %g with a softmax_scale of %g: their quotient or the cap in "
                          "log2 units is beyond a float",
                          cap, scale);
    return FFA_OK;
}

/* Import, resolve defaults, check: `args` is complete afterwards. */
static ffa_status args_import(ffa_forward_args *args, const ffa_kernels *kernels,
                              const ffa_plan *plan, const ffa_forward_args *from, ffa_error *err)
{
    const bool on_gpu = kernels->forward != NULL;
    const int32_t sm_count = on_gpu ? gpu_device_sm_count(kernels->context->gpu) : 1;
    ffa_status rc;

    FFA_TRY(opts_import(args, sizeof *args, from, err));
    rc = FFA_INVALID;
    if (args->heads_kv < 1 || args->heads_kv > 65536) {
        error_fail(err, rc, 0, "heads_kv is %d, not in [1, 65536]", args->heads_kv);
        goto out;
    }
    if (args->heads_q < 1 || args->heads_q > 65536 || args->heads_q % args->heads_kv) {
        error_fail(err, rc, 0, "heads_q is %d, not a multiple of heads_kv = %d in [1, 65536]",
                   args->heads_q, args->heads_kv);
        goto out;
    }
    if (plan->heads_in_mask > 1 && plan->heads_in_mask != args->heads_kv) {
        error_fail(err, rc, 0, "heads_kv is %d, the plan's mask has %d lists of slices",
                   args->heads_kv, plan->heads_in_mask);
        goto out;
    }
    if (plan->tiles.tile_m != kernels->tile_m || plan->tiles.tile_n != kernels->tile_n) {
        error_fail(err, rc, 0, "the plan has tiles of %d x %d, the kernels of %d x %d",
                   plan->tiles.tile_m, plan->tiles.tile_n, kernels->tile_m, kernels->tile_n);
        goto out;
    }
    if (!(args->softmax_scale >= 0.0f) || isinf(args->softmax_scale)) {
        error_fail(err, rc, 0, "softmax_scale is %g, not a finite number above 0 (or 0: default)",
                   (double)args->softmax_scale);
        goto out;
    }
    if (args->sm_margin < 0 || args->sm_margin >= sm_count) {
        if (on_gpu || args->sm_margin < 0) {
            error_fail(err, rc, 0, "sm_margin is %d, not in [0, %d]", args->sm_margin,
                       sm_count - 1);
            goto out;
        }
    }
    FFA_TRY(options_check(args, kernels, err));
    if (args->softmax_scale == 0.0f)
        args->softmax_scale = (float)(1.0 / sqrt((double)kernels->head_dim));
    FFA_TRY(scale_check(args, err));
    rc = tensors_check(args, kernels, &plan->tiles.shape, err);
out:
    return rc;
}

static ffa_status map_make(struct tensor_map *map, const ffa_kernels *kernels, const char *name,
                           const ffa_tensor *tensor, int64_t tokens, int64_t heads,
                           int32_t head_dim, int32_t box_rows, ffa_error *err)
{
    const struct gpu_tensor desc = {
        .name = name,
        .data = tensor->data,
        .tokens = tokens,
        .heads = heads,
        .head_dim = head_dim,
        .token_stride = tensor->token_stride,
        .head_stride = tensor->head_stride,
        .is_fp16 = kernels->dtype == FFA_FP16,
        .box_rows = box_rows,
    };

    return gpu_tensor_map(map, kernels->context->gpu, &desc, err);
}

static ffa_status forward_gpu(const ffa_kernels *kernels, const ffa_plan *plan,
                              const ffa_forward_args *args, void *workspace, ffa_stream stream,
                              ffa_error *err)
{
    const struct tile_plan *tiles = &plan->tiles;
    const int32_t group = args->heads_q / args->heads_kv;
    const bool has_lists = plan->heads_in_mask > 1;
    const int64_t work = tiles->tile_count * (has_lists ? group : args->heads_q);
    const int64_t kv_head_bytes =
        tiles->shape.seqlen_k * (kernels->head_dim + kernels->head_dim_v) * 2;
    const int64_t section_kv = kv_head_bytes < SECTION_BYTES ? SECTION_BYTES / kv_head_bytes : 1;
    const int32_t room = gpu_device_sm_count(kernels->context->gpu) - args->sm_margin;
    const unsigned char *buffer = atomic_load(&plan->buffer);
    const int device = gpu_device_ordinal(kernels->context->gpu);
    struct attention_forward_args launch = { 0 };
    ffa_status rc;

    if (!buffer)
        return error_fail(err, FFA_INVALID, 0, "the plan was not uploaded: call ffa_plan_upload");
    if (atomic_load(&plan->device) != device)
        return error_fail(err, FFA_INVALID, 0,
                          "the plan was uploaded to device %d last, the kernels are on device %d",
                          atomic_load(&plan->device), device);
    if (!workspace || (uintptr_t)workspace % 16)
        return error_fail(err, FFA_INVALID, 0, "workspace is %p, not 16-byte aligned", workspace);
    if (work > INT32_MAX - 1024)
        return error_fail(err, FFA_INVALID, 0,
                          "%lld tiles x %d heads are more than 2^31 work items",
                          (long long)tiles->tile_count, args->heads_q);
    FFA_TRY(map_make(&launch.q, kernels, "q", &args->q, tiles->shape.seqlen_q, args->heads_q,
                     kernels->head_dim, kernels->tile_m, err));
    FFA_TRY(map_make(&launch.k, kernels, "k", &args->k, tiles->shape.seqlen_k, args->heads_kv,
                     kernels->head_dim, kernels->tile_n, err));
    FFA_TRY(map_make(&launch.v, kernels, "v", &args->v, tiles->shape.seqlen_k, args->heads_kv,
                     kernels->head_dim_v, kernels->tile_n, err));
    launch.out = args->out.data;
    launch.partial = args->out.data; /* the kernel takes the one its out has the type of */
    launch.partial_token_stride = args->out.token_stride;
    launch.partial_head_stride = args->out.head_stride;
    launch.head_dim_v = kernels->head_dim_v;
    launch.max_logits = args->max_logits;
    launch.lse = args->lse.data;
    launch.tiles = (const struct plan_tile *)(const void *)buffer;
    launch.sweeps = (const struct plan_sweep *)(const void *)(launch.tiles + tiles->tile_count);
    launch.bands = (const struct plan_band *)(const void *)(launch.sweeps + tiles->sweep_count);
    launch.counters = workspace;
    launch.out_token_stride = args->out.token_stride;
    launch.out_head_stride = args->out.head_stride;
    launch.lse_token_stride = args->lse.token_stride;
    launch.lse_head_stride = args->lse.head_stride;
    launch.scale_log2 = (float)((double)args->softmax_scale * LOG2_E);
    launch.work_count = (int32_t)work;
    launch.tile_count = (int32_t)tiles->tile_count;
    launch.heads_q = args->heads_q;
    launch.group = group;
    launch.section_heads =
        section_kv < args->heads_kv ? (int32_t)section_kv * group : args->heads_q;
    launch.flags = (has_lists ? FORWARD_LIST_PER_KV_HEAD : 0) |
                   (args->flags & FFA_FORWARD_ACCUMULATE ? FORWARD_ACCUMULATE : 0);
    launch.sink = args->sink;
    launch.sink_count = args->sink_count;
    if (args->softcap > 0.0f) {
        launch.cap_inner =
            (float)(2.0 * LOG2_E * (double)args->softmax_scale / (double)args->softcap);
        launch.cap_outer = (float)(LOG2_E * (double)args->softcap);
    }
    if (args->max_logits && !(args->flags & FFA_FORWARD_ACCUMULATE))
        FFA_TRY(gpu_fill_enqueue(kernels->context->gpu, args->max_logits, 0xff,
                                 args->heads_q * (int64_t)sizeof(float), stream, err));
    FFA_TRY(gpu_kernel_enqueue(kernels->forward, work < room ? (int32_t)work : room, &launch,
                               stream, err));
out:
    return rc;
}

ffa_status ffa_forward(const ffa_kernels *kernels, const ffa_plan *plan,
                       const ffa_forward_args *args_in, void *workspace, ffa_stream stream,
                       ffa_error *err)
{
    ffa_forward_args args;
    ffa_status rc;

    if (!kernels || !plan || !args_in)
        return error_fail(err, FFA_INVALID, 0, "ffa_forward: %s is NULL",
                          !kernels ? "kernels"
                          : !plan  ? "plan"
                                   : "args");
    FFA_TRY(args_import(&args, kernels, plan, args_in, err));
    if (kernels->forward) {
        FFA_TRY(forward_gpu(kernels, plan, &args, workspace, stream, err));
    } else {
        const struct cpu_forward call = {
            .plan = &plan->tiles,
            .args = &args,
            .dtype = kernels->dtype,
            .out_dtype = kernels->out_dtype,
            .accumulate = (args.flags & FFA_FORWARD_ACCUMULATE) != 0,
            .head_dim = kernels->head_dim,
            .head_dim_v = kernels->head_dim_v,
            .max_logits = args.max_logits,
            .threads = kernels->context->cpu_threads,
            .fp64 = kernels->dtype == FFA_FP64 ||
                    (kernels->context->opts.flags & FFA_OPEN_CPU_FP64) != 0,
        };

        if (stream) {
            rc = error_fail(err, FFA_INVALID, 0, "stream is %p on the CPU backend, must be NULL",
                            (void *)stream);
            goto out;
        }
        for (int32_t h = 0; args.max_logits && !call.accumulate && h < args.heads_q; h++)
            args.max_logits[h] = -INFINITY;
        FFA_TRY(cpu_forward(&call, err));
    }
    atomic_fetch_add_explicit(&kernels->context->stats.forward_calls, 1, memory_order_relaxed);
out:
    return rc;
}

ffa_status ffa_workspace_bytes(const ffa_kernels *kernels, const ffa_plan *plan, int64_t *bytes,
                               ffa_error *err)
{
    if (bytes)
        *bytes = 0;
    if (!kernels || !plan || !bytes)
        return error_fail(err, FFA_INVALID, 0, "ffa_workspace_bytes: %s is NULL",
                          !kernels ? "kernels"
                          : !plan  ? "plan"
                                   : "bytes");
    *bytes = kernels->forward ? WORKSPACE_BYTES : 0;
    return FFA_OK;
}

ffa_status ffa_workspace_init(const ffa_kernels *kernels, void *workspace, int64_t bytes,
                              ffa_stream stream, ffa_error *err)
{
    if (!kernels)
        return error_fail(err, FFA_INVALID, 0, "ffa_workspace_init: kernels is NULL");
    if (!kernels->forward)
        return FFA_OK;
    if (!workspace || (uintptr_t)workspace % 16)
        return error_fail(err, FFA_INVALID, 0, "workspace is %p, not 16-byte aligned", workspace);
    if (bytes < WORKSPACE_BYTES)
        return error_fail(err, FFA_INVALID, 0, "workspace has %lld bytes, needs %d",
                          (long long)bytes, WORKSPACE_BYTES);
    return gpu_fill_enqueue(kernels->context->gpu, workspace, 0, WORKSPACE_BYTES, stream, err);
}
