/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa_forward, and the same over keys that arrive: check the arguments, fill the launch, enqueue.
 */
#include "attention/arguments.h"
#include "attention/arriving.h"

#include "attention_forward.args.h"
#include "cpu/cpu.h"
#include "forward_combine.args.h"

static ffa_status forward_tensors_check(ffa_forward_args *args, const ffa_kernels *kernels,
                                        const ffa_mask_shape *shape, ffa_error *err)
{
    const bool on_gpu = kernels_are_loaded(kernels);
    const ffa_dtype dtype = kernels->dtype, out_dtype = kernels->out_dtype;
    const ffa_dtype sum_dtype = sum_dtype_of(kernels);
    const int64_t rows = shape->seqlen_q, keys = shape->seqlen_k;
    const int64_t heads_q = args->heads_q, heads_kv = args->heads_kv;
    const int64_t dim = kernels->head_dim, dim_v = kernels->head_dim_v;
    ffa_tensor *const partial = args->partial.data ? &args->partial : NULL;
    const struct tensor_rule rules[] = {
        { partial, "partial", rows, heads_q, dim_v, sum_dtype, on_gpu, true },
        { &args->q, "q", rows, heads_q, dim, dtype, on_gpu, false },
        { &args->k, "k", keys, heads_kv, dim, dtype, on_gpu, false },
        { &args->v, "v", keys, heads_kv, dim_v, dtype, on_gpu, false },
        { &args->out, "out", rows, heads_q, dim_v, out_dtype, on_gpu, true },
        { &args->lse, "lse", rows, heads_q, 1, sum_dtype, false, true },
    };

    return tensors_check(rules, sizeof rules / sizeof *rules, err);
}

/* Flags and max_logits. */
static ffa_status own_check(const ffa_forward_args *args, const ffa_kernels *kernels,
                            ffa_error *err)
{
    const size_t bytes = ffa_dtype_bytes(sum_dtype_of(kernels));

    if (args->flags & ~(uint32_t)FFA_FORWARD_ACCUMULATE)
        return error_fail(err, FFA_UNSUPPORTED, 0, "flags is 0x%x, known are 0x%x", args->flags,
                          (unsigned)FFA_FORWARD_ACCUMULATE);
    if (args->flags & FFA_FORWARD_ACCUMULATE && kernels->out_dtype < FFA_FP32)
        return error_fail(err, FFA_INVALID, 0,
                          "flags has FFA_FORWARD_ACCUMULATE, the kernels were made without "
                          "FFA_SPEC_OUT_FP32");
    if ((args->max_logits != NULL) != kernels->has_max_logits)
        return error_fail(
            err, FFA_INVALID, 0, "max_logits is %s, the kernels were made %s FFA_SPEC_MAX_LOGITS",
            args->max_logits ? "given" : "NULL", kernels->has_max_logits ? "with" : "without");
    if ((uintptr_t)args->max_logits % bytes)
        return error_fail(err, FFA_INVALID, 0, "max_logits is %p, not %zu-byte aligned",
                          args->max_logits, bytes);
    return FFA_OK;
}

/* Which of a plan in stages, partial and the kernels go together. */
static ffa_status partial_check(const ffa_forward_args *args, const ffa_kernels *kernels,
                                const ffa_plan *plan, ffa_error *err)
{
    if (plan->stage_count > 1 && !args->partial.data)
        return error_fail(err, FFA_INVALID, 0, "partial: data is NULL, the plan is stage %d of %d",
                          plan->stage, plan->stage_count);
    if (args->partial.data && !kernels->is_staged)
        return error_fail(err, FFA_INVALID, 0,
                          "partial is given, the kernels were made without FFA_SPEC_STAGED");
    return FFA_OK;
}

/* The kernel that the plan is for. */
static ffa_status find_kernel(const struct forward_kernel **out, const ffa_kernels *kernels,
                              const ffa_plan *plan, ffa_error *err)
{
    const struct forward_list list = kernels_forward(kernels, plan->split_heads > 0);

    *out = kernels_forward_of(list, &plan->forward);
    if (*out)
        return FFA_OK;
    return error_fail(err, FFA_INVALID, 0,
                      "the plan has tiles of %d x %d, the kernels of %d x %d%s",
                      plan->forward.tile_m, plan->forward.tile_n, list.kernels[0].tile_m,
                      list.kernels[0].tile_n, list.count > 1 ? " and others" : "");
}

/* Import, resolve defaults, check: `args` and *kernel are complete afterwards. */
static ffa_status args_import(ffa_forward_args *args, const struct forward_kernel **kernel,
                              const ffa_kernels *kernels, const ffa_plan *plan,
                              const ffa_forward_args *from, const struct arriving_call *arriving,
                              ffa_error *err)
{
    struct call_options options;
    ffa_status rc;

    FFA_TRY(opts_import(args, sizeof *args, from, err));
    FFA_TRY(arriving_check(kernels, plan, arriving, err));
    FFA_TRY(heads_check(args->heads_q, args->heads_kv, kernels, plan, err));
    FFA_TRY(find_kernel(kernel, kernels, plan, err));
    if (kernels->pack_heads && kernels->pack_heads != args->heads_q / args->heads_kv) {
        rc = error_fail(err, FFA_INVALID, 0,
                        "heads_q / heads_kv is %d, the kernels were made with pack_heads %d",
                        args->heads_q / args->heads_kv, kernels->pack_heads);
        goto out;
    }
    FFA_TRY(own_check(args, kernels, err));
    FFA_TRY(stage_check(kernels, plan, err));
    FFA_TRY(partial_check(args, kernels, plan, err));
    if (plan->split_heads && !kernels_are_loaded(kernels)) {
        rc = error_fail(err, FFA_INVALID, 0,
                        "the plan was split for a GPU, the kernels are of the CPU backend");
        goto out;
    }
    if (plan->split_heads &&
        (!kernels_take_splits(kernels) || plan->split_heads != args->heads_q)) {
        rc = error_fail(err, FFA_INVALID, 0,
                        "heads_q is %d, the plan was split for %d, with kernels of FFA_SPEC_SPLIT",
                        args->heads_q, plan->split_heads);
        goto out;
    }
    options = CALL_OPTIONS(args);
    FFA_TRY(call_options_check(&options, kernels, err));
    args->softmax_scale = options.softmax_scale;
    rc = forward_tensors_check(args, kernels, &plan->forward.shape, err);
out:
    return rc;
}

/* Whether max_logits holds something already. */
static bool raises_max(const ffa_forward_args *args, const ffa_plan *plan)
{
    return args->flags & FFA_FORWARD_ACCUMULATE || plan->stage > 0;
}

/* Where the results of parts are in a workspace, as bytes from its begin. */
struct parts_layout {
    int64_t out_at, lse_at, bytes;
};

static struct parts_layout parts_layout(const ffa_kernels *kernels, const ffa_plan *plan)
{
    const int64_t rows = plan->forward.part_row_count * plan->split_heads;
    const int64_t out_bytes = rows * kernels->head_dim_v * (int64_t)sizeof(float);

    return (struct parts_layout){ .out_at = COUNTER_BYTES,
                                  .lse_at = COUNTER_BYTES + out_bytes,
                                  .bytes =
                                      COUNTER_BYTES + out_bytes + rows * (int64_t)sizeof(float) };
}

/* The second kernel of a split plan: the parts of each row. */
static ffa_status combine_gpu(const ffa_kernels *kernels, const ffa_plan *plan,
                              const ffa_forward_args *args, ffa_stream stream, ffa_error *err)
{
    const struct parts_layout layout = parts_layout(kernels, plan);
    const unsigned char *const workspace = args->workspace;
    const int64_t warps = plan->forward.split_count * args->heads_q;
    const int64_t blocks = (warps + COMBINE_THREADS / 32 - 1) / (COMBINE_THREADS / 32);
    const struct forward_combine_args launch = {
        .rows = plan_image_splits(&plan->image, atomic_load(&plan->buffer)),
        .part_out = (const float *)(const void *)(workspace + layout.out_at),
        .part_lse = (const float *)(const void *)(workspace + layout.lse_at),
        .out = args->out.data,
        .lse = args->lse.data,
        .out_token_stride = args->out.token_stride,
        .out_head_stride = args->out.head_stride,
        .lse_token_stride = args->lse.token_stride,
        .lse_head_stride = args->lse.head_stride,
        .sink = args->sink,
        .sink_count = args->sink_count,
        .row_count = (int)plan->forward.split_count,
        .heads_q = args->heads_q,
        .head_dim_v = kernels->head_dim_v,
    };

    if (blocks > INT32_MAX)
        return error_fail(err, FFA_INVALID, 0, "%lld split rows x %d heads are more than 2^31",
                          (long long)plan->forward.split_count, args->heads_q);
    return gpu_kernel_enqueue(kernels->combine, (int32_t)blocks, &launch, stream, err);
}

static ffa_status maps_fill(struct attention_forward_args *launch, const ffa_kernels *kernels,
                            const struct forward_kernel *kernel, const ffa_forward_args *args,
                            const ffa_mask_shape *shape, ffa_error *err)
{
    const int32_t pack = kernels_pack(kernels);
    const int32_t dim = kernels->head_dim, dim_v = kernels->head_dim_v;
    const struct map_request requests[] = {
        { "q", &args->q, shape->seqlen_q, args->heads_q, dim, pack, kernel->tile_m },
        { "k", &args->k, shape->seqlen_k, args->heads_kv, dim, 1, kernel->tile_n },
        { "v", &args->v, shape->seqlen_k, args->heads_kv, dim_v, 1, kernel->tile_n },
    };
    struct tensor_map *const maps[] = { &launch->q, &launch->k, &launch->v };

    return maps_make(maps, kernels, requests, sizeof requests / sizeof *requests, err);
}

/* A launch that can be enqueued: nothing of it is refused any more. */
struct forward_launch {
    struct attention_forward_args args;
    int64_t work;
    int32_t room; /* SMs */
};

static ffa_status launch_fill(struct forward_launch *out, const ffa_kernels *kernels,
                              const struct forward_kernel *kernel, const ffa_plan *plan,
                              const ffa_forward_args *args, const struct arriving_call *arriving,
                              ffa_error *err)
{
    const struct tile_plan *tiles = &plan->forward;
    const int32_t pack = kernels->pack_heads;
    /* What a tile's work items are: query heads, or kv heads with all of theirs. */
    const int32_t heads = pack ? args->heads_kv : args->heads_q;
    const int32_t group = heads / args->heads_kv;
    const bool has_lists = plan->heads_in_mask > 1;
    const int32_t tile_items = has_lists ? group : heads;
    const int64_t work = plan_tiles_most(plan, tiles) * tile_items;
    const struct parts_layout layout = parts_layout(kernels, plan);
    unsigned char *const workspace = args->workspace;
    /* With FFA_SPEC_OUT_FP32 the kernel's fp32 sums are `out` itself. */
    const ffa_tensor *partial = kernels->is_staged ? &args->partial : &args->out;
    struct attention_forward_args launch = { 0 };
    ffa_status rc;

    FFA_TRY(launch_check(kernels, plan, err));
    FFA_TRY(workspace_check(WORKSPACE(args), layout.bytes, err));
    if (work > INT32_MAX - 1024)
        return error_fail(err, FFA_INVALID, 0,
                          "%lld tiles x %d heads are more than 2^31 work items",
                          (long long)plan_tiles_most(plan, tiles), heads);
    FFA_TRY(maps_fill(&launch, kernels, kernel, args, &tiles->shape, err));
    launch.arrivals = arrivals_of(plan, arriving);
    launch.out = args->out.data;
    launch.partial = partial->data;
    launch.partial_token_stride = partial->token_stride;
    launch.partial_head_stride = partial->head_stride;
    if (plan->split_heads) {
        launch.partial = (float *)(void *)(workspace + layout.out_at);
        launch.partial_token_stride = (int64_t)args->heads_q * kernels->head_dim_v;
        launch.partial_head_stride = kernels->head_dim_v;
        launch.part_lse = (float *)(void *)(workspace + layout.lse_at);
    }
    launch.head_dim_v = kernels->head_dim_v;
    launch.max_logits = args->max_logits;
    launch.lse = args->lse.data;
    launch.image = atomic_load(&plan->buffer);
    launch.counter = args->workspace;
    launch.out_token_stride = args->out.token_stride;
    launch.out_head_stride = args->out.head_stride;
    launch.lse_token_stride = args->lse.token_stride;
    launch.lse_head_stride = args->lse.head_stride;
    launch.scale_log2 = (float)(args->softmax_scale * LOG2_E);
    launch.tile_items = tile_items;
    launch.heads_q = heads;
    launch.group = group;
    launch.l2_heads = plan_l2_heads_kv(plan, group, args->heads_kv, args->sm_margin) * group;
    launch.pack = pack;
    launch.pack_inverse = pack ? forward_pack_inverse(pack) : 0;
    launch.call_heads_q = args->heads_q;
    launch.flags = (has_lists ? FORWARD_LIST_PER_KV_HEAD : 0) |
                   (args->flags & FFA_FORWARD_ACCUMULATE ? FORWARD_ACCUMULATE : 0);
    launch.sink = args->sink;
    launch.sink_count = args->sink_count;
    launch.cap_inner = (float)softcap_inner(args->softmax_scale, args->softcap);
    launch.cap_outer = (float)softcap_outer(args->softcap);
    *out = (struct forward_launch){
        .args = launch,
        .work = work,
        .room = gpu_device_sm_count(kernels->context->gpu) - args->sm_margin,
    };
out:
    return rc;
}

static ffa_status forward_gpu(const ffa_kernels *kernels, const struct forward_kernel *kernel,
                              const ffa_plan *plan, const ffa_forward_args *args,
                              const struct arriving_call *arriving, ffa_stream stream,
                              ffa_error *err)
{
    struct forward_launch launch;
    ffa_status rc;

    FFA_TRY(launch_fill(&launch, kernels, kernel, plan, args, arriving, err));
    if (args->max_logits && !raises_max(args, plan))
        FFA_TRY(gpu_fill_enqueue(kernels->context->gpu, args->max_logits, 0xff,
                                 args->heads_q * (int64_t)sizeof(float), stream, err));
    if (plan->capacity_bytes || launch.work > launch.room) /* else no block takes a second item */
        FFA_TRY(gpu_fill_enqueue(kernels->context->gpu, args->workspace, 0, COUNTER_BYTES, stream,
                                 err));
    if (launch.work > 0) /* a stage may have nothing to do */
        FFA_TRY(gpu_kernel_enqueue(kernel->kernel, plan_blocks(plan, launch.work, launch.room),
                                   &launch.args, stream, err));
    if (plan->split_heads)
        FFA_TRY(combine_gpu(kernels, plan, args, stream, err));
out:
    return rc;
}

ffa_status ffa_plan_kernel(const ffa_plan *plan, const ffa_kernels *kernels, ffa_kernel_info *info,
                           ffa_error *err)
{
    const struct forward_kernel *kernel = NULL;
    ffa_status rc;

    if (!plan || !kernels || !info)
        return error_fail(err, FFA_INVALID, 0, "ffa_plan_kernel: %s is NULL",
                          !plan      ? "plan"
                          : !kernels ? "kernels"
                                     : "info");
    FFA_TRY(find_kernel(&kernel, kernels, plan, err));
    rc = opts_export(info, &kernel->info, sizeof kernel->info, err);
out:
    return rc;
}

static ffa_status forward_cpu(const ffa_kernels *kernels, const ffa_plan *plan,
                              const ffa_forward_args *args, ffa_stream stream, ffa_error *err)
{
    const struct cpu_tensor partial = CPU_TENSOR(args->partial);
    const struct cpu_forward call = {
        .plan = &plan->forward,
        .args = CPU_ARGS(*args),
        .dtype = kernels->dtype,
        .out_dtype = kernels->out_dtype,
        .accumulate = (args->flags & FFA_FORWARD_ACCUMULATE) != 0,
        .head_dim = kernels->head_dim,
        .head_dim_v = kernels->head_dim_v,
        .lse_dtype = sum_dtype_of(kernels),
        .max_logits = args->max_logits,
        .partial = args->partial.data ? &partial : NULL,
        .threads = kernels->context->cpu_threads,
        .fp64 = cpu_in_fp64(kernels),
    };
    ffa_status rc;

    FFA_TRY(cpu_stream_check(stream, err));
    if (args->max_logits && !raises_max(args, plan))
        cpu_max_logits_init(args->max_logits, sum_dtype_of(kernels), args->heads_q);
    rc = cpu_forward(&call, err);
out:
    return rc;
}

/* arriving: NULL where all keys are there. */
static ffa_status forward_enqueue(const ffa_kernels *kernels, const ffa_plan *plan,
                                  const ffa_forward_args *args_in,
                                  const struct arriving_call *arriving, ffa_stream stream,
                                  ffa_error *err)
{
    const struct forward_kernel *kernel = NULL;
    ffa_forward_args args;
    ffa_status rc;

    FFA_TRY(args_import(&args, &kernel, kernels, plan, args_in, arriving, err));
    if (kernel->kernel)
        FFA_TRY(forward_gpu(kernels, kernel, plan, &args, arriving, stream, err));
    else
        FFA_TRY(forward_cpu(kernels, plan, &args, stream, err));
    atomic_fetch_add_explicit(&kernels->context->stats.forward_calls, 1, memory_order_relaxed);
out:
    return rc;
}

ffa_status ffa_forward(const ffa_kernels *kernels, const ffa_plan *plan,
                       const ffa_forward_args *args, ffa_stream stream, ffa_error *err)
{
    if (!kernels || !plan || !args)
        return error_fail(err, FFA_INVALID, 0, "ffa_forward: %s is NULL",
                          !kernels ? "kernels"
                          : !plan  ? "plan"
                                   : "args");
    return forward_enqueue(kernels, plan, args, NULL, stream, err);
}

ffa_status forward_check_arriving(const ffa_kernels *kernels, const ffa_plan *plan,
                                  const ffa_forward_args *args_in, const struct arriving_call *call,
                                  ffa_error *err)
{
    const struct forward_kernel *kernel = NULL;
    struct forward_launch launch;
    ffa_forward_args args;
    ffa_status rc;

    FFA_TRY(args_import(&args, &kernel, kernels, plan, args_in, call, err));
    rc = launch_fill(&launch, kernels, kernel, plan, &args, call, err);
out:
    return rc;
}

ffa_status forward_enqueue_arriving(const ffa_kernels *kernels, const ffa_plan *plan,
                                    const ffa_forward_args *args, const struct arriving_call *call,
                                    ffa_stream stream, ffa_error *err)
{
    return forward_enqueue(kernels, plan, args, call, stream, err);
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
    *bytes = kernels_are_loaded(kernels) ? parts_layout(kernels, plan).bytes : 0;
    return FFA_OK;
}
