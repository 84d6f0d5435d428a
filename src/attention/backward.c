/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa_backward, and the same over keys that arrive: check the arguments, fill three launches,
 * enqueue. In a pass in stages the first
 * launch is the first stage's, and the third the last one's: between them dq is a sum in the
 * workspace.
 *
 * A workspace, every part at a multiple of 256 bytes:
 *
 *   counter    COUNTER_BYTES, as of ffa_forward; behind it the counters of departures
 *   semaphores int32 [heads_q][cluster][blocks of tile_m rows], where deterministic
 *   stats      fp32 [heads_q][2][stats_rows]
 *   dq         fp32 [heads_q][dq_rows][head_dim of the kernels], lying as attention_backward says
 *   dk parts   fp32 [parts][heads_kv][tokens_k][head_dim], where parts > 1, and of kernels of
 *              passes in stages and of context-parallel ones; not where keys arrive, which have
 *              a window of their own for these sums
 *   dv parts   the same with head_dim_v
 *
 * Nothing in it need be initialised: the first launch sets counter, semaphores and dq to 0 and
 * writes stats. In a pass in stages that is before the first stage; a later one sets counter and
 * semaphores with a memset.
 */
#include "attention/arguments.h"
#include "attention/arriving.h"

#include "attention_backward.args.h"
#include "backward_finish.args.h"
#include "backward_prepare.args.h"
#include "cpu/cpu.h"
#include "tile/ticket.h"

#include <limits.h>
#include <math.h>

_Static_assert(offsetof(struct backward_block, flags) == BACKWARD_BLOCK_FLAGS_AT, "device layout");

enum { DEPARTURES_AT = COUNTER_BYTES / 2 }; /* in a cache line apart from the counter */

#define PART_MAX ((int64_t)1 << 56) /* bytes: no address space holds more */

/* ---- the workspace ---- */

static ffa_status layout_add(struct backward_layout *layout, int64_t *at, const char *what,
                             int64_t rows, int64_t row_bytes, ffa_error *err)
{
    *at = layout->bytes;
    if (rows > (PART_MAX - layout->bytes) / row_bytes)
        return error_fail(err, FFA_INVALID, 0,
                          "the workspace would need %lld rows of %lld bytes for %s",
                          (long long)rows, (long long)row_bytes, what);
    layout->bytes += (rows * row_bytes + 255) / 256 * 256;
    return FFA_OK;
}

/* The kernel that a plan is for; NULL: none of these, which objects_check refuses. */
static const struct backward_kernel *kernel_of(const ffa_kernels *kernels, const ffa_plan *plan)
{
    return kernels_backward_of(kernels, plan->backward.tile_m, plan->backward.tile_n);
}

ffa_status backward_layout_make(struct backward_layout *out, const ffa_plan *plan,
                                const ffa_kernels *kernels, int32_t heads_q, int32_t heads_kv,
                                int32_t sm_count, ffa_error *err)
{
    const int64_t bytes = (int64_t)sizeof(float);
    const ffa_mask_shape *shape = &plan->backward.shape;
    const struct backward_kernel *kernel = kernel_of(kernels, plan);
    struct order_query query = plan_order_query(plan, heads_q, heads_kv);
    ffa_status rc;

    /* Calls may be with other kernels, and with a margin of SMs. */
    query.at_a_time = kernels_backward_at_a_time(kernel, sm_count);
    query.can_leave_whole = kernels_can_leave_whole(kernels);
    *out = (struct backward_layout){
        .bytes = COUNTER_BYTES,
        .stats_rows = (shape->seqlen_q + plan->backward.tile_m + 3) / 4 * 4,
        .dq_rows = (shape->seqlen_q + BACKWARD_DQ_ROWS - 1) / BACKWARD_DQ_ROWS * BACKWARD_DQ_ROWS,
        .order = plan_order(plan, &query)
    };
    out->semaphores_at = out->bytes;
    if (kernels->is_deterministic)
        FFA_TRY(layout_add(out, &out->semaphores_at, "dq semaphores",
                           ticket_grid_blocks(&plan->backward) * heads_q,
                           kernel->cluster * (int64_t)sizeof(int32_t), err));
    out->counters_bytes = out->bytes;
    FFA_TRY(layout_add(out, &out->stats_at, "row statistics", out->stats_rows * heads_q, 2 * bytes,
                       err));
    FFA_TRY(layout_add(out, &out->dq_at, "dq", out->dq_rows * heads_q, bytes * kernels->dq_columns,
                       err));
    if (!plan->arriving.count &&
        (out->order.parts > 1 || kernels->is_staged || kernels->is_parallel)) {
        const int64_t rows =
            shape->seqlen_k * (heads_kv - out->order.whole_heads) * out->order.parts;

        FFA_TRY(layout_add(out, &out->dk_at, "parts of dk", rows, bytes * kernels->head_dim, err));
        FFA_TRY(
            layout_add(out, &out->dv_at, "parts of dv", rows, bytes * kernels->head_dim_v, err));
    }
out:
    return rc;
}

static ffa_status layout_of(struct backward_layout *out, const ffa_kernels *kernels,
                            const ffa_plan *plan, int32_t heads_q, int32_t heads_kv, ffa_error *err)
{
    return backward_layout_make(out, plan, kernels, heads_q, heads_kv,
                                gpu_device_sm_count(kernels->context->gpu), err);
}

static ffa_status objects_check(const ffa_kernels *kernels, const ffa_plan *plan, ffa_error *err)
{
    if (!kernels->has_backward)
        return error_fail(err, FFA_INVALID, 0, "the kernels were made without FFA_SPEC_BACKWARD");
    if (plan->arriving.count ? !plan->backward.tile_m : !plan->backward.tile_count)
        return error_fail(err, FFA_INVALID, 0,
                          "the plan was made with kernels without FFA_SPEC_BACKWARD");
    if (!kernel_of(kernels, plan))
        return error_fail(err, FFA_INVALID, 0,
                          "the plan has backward tiles of %d x %d, the kernels of %d x %d%s",
                          plan->backward.tile_m, plan->backward.tile_n, kernels->backward[0].tile_m,
                          kernels->backward[0].tile_n,
                          kernels->backward_count > 1 ? ", and pairs of blocks" : "");
    if (plan->backward.on_grid != kernels->is_deterministic)
        return error_fail(err, FFA_INVALID, 0,
                          "the plan was made with kernels %s FFA_SPEC_DETERMINISTIC, these are %s "
                          "it",
                          plan->backward.on_grid ? "of" : "without",
                          kernels->is_deterministic ? "of" : "without");
    return stage_check(kernels, plan, err);
}

static bool is_first(const ffa_plan *plan)
{
    return plan->stage == 0;
}

static bool is_last(const ffa_plan *plan)
{
    return plan->stage == plan->stage_count - 1;
}

/* What the stages share on the CPU: delta, then the sum of dq, both in what it computes in. */
struct cpu_layout {
    int64_t sum_at, bytes; /* 0: the call is a whole pass */
};

static ffa_status cpu_layout_of(struct cpu_layout *out, const ffa_kernels *kernels,
                                const ffa_plan *plan, int32_t heads_q, ffa_error *err)
{
    const int64_t lines = plan->backward.shape.seqlen_q * heads_q;
    const int64_t element = cpu_in_fp64(kernels) ? sizeof(double) : sizeof(float);

    *out = (struct cpu_layout){ 0 };
    if (plan->stage_count == 1)
        return FFA_OK;
    if (lines > PART_MAX / (element * (1 + kernels->head_dim)))
        return error_fail(err, FFA_INVALID, 0,
                          "the workspace would need %lld rows of %d numbers for dq",
                          (long long)lines, 1 + kernels->head_dim);
    out->sum_at = lines * element;
    out->bytes = out->sum_at + lines * element * kernels->head_dim;
    return FFA_OK;
}

ffa_status ffa_backward_workspace_bytes(const ffa_kernels *kernels, const ffa_plan *plan,
                                        int32_t heads_q, int32_t heads_kv, int64_t *bytes,
                                        ffa_error *err)
{
    struct backward_layout layout;
    struct cpu_layout on_cpu;
    ffa_status rc;

    if (bytes)
        *bytes = 0;
    if (!kernels || !plan || !bytes)
        return error_fail(err, FFA_INVALID, 0, "ffa_backward_workspace_bytes: %s is NULL",
                          !kernels ? "kernels"
                          : !plan  ? "plan"
                                   : "bytes");
    FFA_TRY(objects_check(kernels, plan, err));
    FFA_TRY(heads_check(heads_q, heads_kv, kernels, plan, err));
    if (kernels_are_loaded(kernels)) {
        int64_t forward_bytes;

        FFA_TRY(ffa_workspace_bytes(kernels, plan, &forward_bytes, err));
        FFA_TRY(layout_of(&layout, kernels, plan, heads_q, heads_kv, err));
        *bytes = max64(layout.bytes, forward_bytes);
    } else {
        FFA_TRY(cpu_layout_of(&on_cpu, kernels, plan, heads_q, err));
        *bytes = on_cpu.bytes;
    }
out:
    return rc;
}

/* ---- arguments ---- */

/* Before the last stage nobody looks at dq; where keys arrive nobody looks at dk and dv. */
static ffa_status backward_tensors_check(ffa_backward_args *args, const ffa_kernels *kernels,
                                         const ffa_plan *plan, const struct arriving_call *arriving,
                                         ffa_error *err)
{
    const ffa_mask_shape *shape = &plan->backward.shape;
    const bool on_gpu = kernels_are_loaded(kernels);
    const ffa_dtype dtype = kernels->dtype, out_dtype = kernels->out_dtype;
    const ffa_dtype grad_dtype = kernels->grad_dtype;
    const ffa_dtype dq_dtype = arriving && arriving->has_wide_dq ? FFA_FP32 : grad_dtype;
    const bool has_delta = arriving && arriving->delta;
    const ffa_dtype sum_dtype = sum_dtype_of(kernels);
    const int64_t rows = shape->seqlen_q, keys = shape->seqlen_k;
    const int64_t heads_q = args->heads_q, heads_kv = args->heads_kv;
    const int64_t dim = kernels->head_dim, dim_v = kernels->head_dim_v;
    ffa_tensor *const dq = is_last(plan) ? &args->dq : NULL;
    ffa_tensor *const dk = plan->arriving.count ? NULL : &args->dk;
    ffa_tensor *const dv = plan->arriving.count ? NULL : &args->dv;
    ffa_tensor *const out = has_delta ? NULL : &args->out;
    ffa_tensor *const dlse = args->dlse.data ? &args->dlse : NULL;
    ffa_tensor *const partial_dk = args->partial_dk.data ? &args->partial_dk : NULL;
    ffa_tensor *const partial_dv = args->partial_dk.data ? &args->partial_dv : NULL;
    const struct tensor_rule rules[] = {
        { &args->q, "q", rows, heads_q, dim, dtype, on_gpu, false },
        { &args->k, "k", keys, heads_kv, dim, dtype, on_gpu, false },
        { &args->v, "v", keys, heads_kv, dim_v, dtype, on_gpu, false },
        { out, "out", rows, heads_q, dim_v, out_dtype, on_gpu, false },
        { &args->lse, "lse", rows, heads_q, 1, sum_dtype, false, false },
        { dlse, "dlse", rows, heads_q, 1, sum_dtype, false, false },
        { &args->dout, "dout", rows, heads_q, dim_v, dtype, on_gpu, false },
        { dq, "dq", rows, heads_q, dim, dq_dtype, on_gpu, true },
        { dk, "dk", keys, heads_kv, dim, grad_dtype, on_gpu, true },
        { dv, "dv", keys, heads_kv, dim_v, grad_dtype, on_gpu, true },
        { partial_dk, "partial_dk", keys, heads_kv, dim, sum_dtype, on_gpu, false },
        { partial_dv, "partial_dv", keys, heads_kv, dim_v, sum_dtype, on_gpu, false },
    };

    return tensors_check(rules, sizeof rules / sizeof *rules, err);
}

static ffa_status flags_check(const ffa_backward_args *args, const ffa_kernels *kernels,
                              ffa_error *err)
{
    const size_t sum_bytes = ffa_dtype_bytes(sum_dtype_of(kernels));

    if (args->flags & ~(uint32_t)FFA_BACKWARD_ACCUMULATE)
        return error_fail(err, FFA_UNSUPPORTED, 0, "flags is 0x%x, known are 0x%x", args->flags,
                          (unsigned)FFA_BACKWARD_ACCUMULATE);
    if (args->flags & FFA_BACKWARD_ACCUMULATE && kernels->grad_dtype < FFA_FP32)
        return error_fail(err, FFA_INVALID, 0,
                          "flags has FFA_BACKWARD_ACCUMULATE, the kernels were made without "
                          "FFA_SPEC_GRAD_FP32");
    if (!args->partial_dk.data != !args->partial_dv.data)
        return error_fail(err, FFA_INVALID, 0, "partial_d%c is given without partial_d%c",
                          args->partial_dk.data ? 'k' : 'v', args->partial_dk.data ? 'v' : 'k');
    if (args->partial_dk.data && !kernels->is_staged)
        return error_fail(err, FFA_INVALID, 0,
                          "partial_dk is given, the kernels were made without FFA_SPEC_STAGED");
    if (args->dsink && !args->sink_count)
        return error_fail(err, FFA_INVALID, 0, "dsink is given with a sink_count of 0");
    if ((uintptr_t)args->dsink % sum_bytes)
        return error_fail(err, FFA_INVALID, 0, "dsink is %p, not %zu-byte aligned", args->dsink,
                          sum_bytes);
    return FFA_OK;
}

/* Import, resolve defaults, check: `args` is complete afterwards. */
static ffa_status args_import(ffa_backward_args *args, const ffa_kernels *kernels,
                              const ffa_plan *plan, const ffa_backward_args *from,
                              const struct arriving_call *arriving, ffa_error *err)
{
    struct call_options options;
    ffa_status rc;

    FFA_TRY(opts_import(args, sizeof *args, from, err));
    FFA_TRY(arriving_check(kernels, plan, arriving, err));
    FFA_TRY(objects_check(kernels, plan, err));
    FFA_TRY(heads_check(args->heads_q, args->heads_kv, kernels, plan, err));
    FFA_TRY(flags_check(args, kernels, err));
    options = CALL_OPTIONS(args);
    FFA_TRY(call_options_check(&options, kernels, err));
    args->softmax_scale = options.softmax_scale;
    rc = backward_tensors_check(args, kernels, plan, arriving, err);
out:
    return rc;
}

/* ---- the GPU ---- */

struct gpu_call {
    const ffa_kernels *kernels;
    const ffa_plan *plan;
    const struct backward_kernel *kernel; /* that the plan is for */
    const ffa_backward_args *args;
    const struct arriving_call *arriving; /* NULL: all keys are there */
    const struct backward_layout *layout;
    unsigned char *workspace;
    int32_t room; /* SMs */
};

/* Whether scores begin with lse / scale. */
static bool adds_lse(const struct gpu_call *call)
{
    const ffa_kernels *kernels = call->kernels;

    return attention_backward_adds_lse(kernels->head_dim, kernels->head_dim_v,
                                       kernels->has_softcap);
}

/* The scale of scores in an exponent. Below the limit lse / scale would leave the range of fp32;
 * scores of less than 1e30 do not count there. */
static double exponent_scale(const struct gpu_call *call)
{
    const double scale = call->args->softmax_scale;

    return adds_lse(call) ? fmax(scale, 1e-34) : scale;
}

/* What lse is multiplied with in the statistics. */
static double lse_factor(const struct gpu_call *call)
{
    return adds_lse(call) ? -1 / exponent_scale(call) : LOG2_E;
}

static struct backward_prepare_args prepare_fill(const struct gpu_call *call)
{
    const ffa_backward_args *args = call->args;
    const bool has_delta = call->arriving && call->arriving->delta;
    const ffa_tensor *dlse = has_delta ? call->arriving->delta : &args->dlse;

    return (struct backward_prepare_args){
        .out = args->out.data,
        .dout = args->dout.data,
        .lse = args->lse.data,
        .dlse = dlse->data,
        .stats = (float *)(void *)(call->workspace + call->layout->stats_at),
        .dq = (float *)(void *)(call->workspace + call->layout->dq_at),
        .out_token_stride = args->out.token_stride,
        .out_head_stride = args->out.head_stride,
        .dout_token_stride = args->dout.token_stride,
        .dout_head_stride = args->dout.head_stride,
        .lse_token_stride = args->lse.token_stride,
        .lse_head_stride = args->lse.head_stride,
        .dlse_token_stride = dlse->token_stride,
        .dlse_head_stride = dlse->head_stride,
        .tokens_q = (int)call->plan->backward.shape.seqlen_q,
        .heads_q = args->heads_q,
        .stats_rows = (int)call->layout->stats_rows,
        .dq_rows = (int)call->layout->dq_rows,
        .head_dim_v = call->kernels->head_dim_v,
        .has_delta = has_delta,
        .lse_factor = (float)lse_factor(call),
        .counters = call->workspace,
        .counter_units = call->layout->counters_bytes / 16,
    };
}

static ffa_status maps_fill(struct attention_backward_args *launch, const struct gpu_call *call,
                            ffa_error *err)
{
    const ffa_backward_args *args = call->args;
    const ffa_kernels *kernels = call->kernels;
    const struct tile_plan *plan = &call->plan->backward;
    const int64_t rows = plan->shape.seqlen_q, keys = plan->shape.seqlen_k;
    const int32_t dim = kernels->head_dim, dim_v = kernels->head_dim_v;
    const int32_t cta_keys = plan->tile_n / call->kernel->cluster;
    const int32_t heads_q = args->heads_q, heads_kv = args->heads_kv;
    const struct map_request requests[] = {
        { "q", &args->q, rows, heads_q, dim, 1, plan->tile_m },
        { "dout", &args->dout, rows, heads_q, dim_v, 1, plan->tile_m },
        { "k", &args->k, keys, heads_kv, dim, 1, cta_keys },
        { "v", &args->v, keys, heads_kv, dim_v, 1, cta_keys },
    };
    struct tensor_map *const maps[] = { &launch->q, &launch->dout, &launch->k, &launch->v };

    return maps_make(maps, kernels, requests, sizeof requests / sizeof *requests, err);
}

/* Whether the main kernel writes sums that the last one turns into dk and dv. */
static bool has_parts(const struct gpu_call *call)
{
    if (call->arriving)
        return false;
    return call->layout->order.parts > 1 || call->args->partial_dk.data ||
           call->kernels->is_parallel;
}

/* dK and dV of a row lie one behind the other in the sum window. */
static void sums_fill(struct attention_backward_args *launch, const struct gpu_call *call)
{
    const int64_t dim = call->kernels->head_dim, dim_v = call->kernels->head_dim_v;
    const int64_t heads = call->args->heads_kv;

    launch->dk = call->arriving->sums; /* parts of a sum have one place */
    launch->dv = call->arriving->sums + heads * dim;
    launch->dk_token_stride = launch->dv_token_stride = heads * (dim + dim_v);
    launch->dk_head_stride = dim;
    launch->dv_head_stride = dim_v;
    if (call->arriving->accumulates)
        launch->flags |= BACKWARD_ACCUMULATE;
    if (call->arriving->narrow) {
        launch->narrow_from = call->arriving->narrow_from;
        launch->narrow_dk = call->arriving->narrow;
        launch->narrow_dv = call->arriving->narrow + heads * dim;
        launch->narrow_dk_token_stride = launch->narrow_dv_token_stride = launch->dk_token_stride;
        launch->narrow_dk_head_stride = dim;
        launch->narrow_dv_head_stride = dim_v;
    }
}

/* Where the main kernel writes dk and dv: into the caller's tensors, into parts, or into the sum
 * window. */
static void outputs_fill(struct attention_backward_args *launch, const struct gpu_call *call)
{
    const ffa_backward_args *args = call->args;
    const int64_t keys = call->plan->backward.shape.seqlen_k;
    const int64_t dim = call->kernels->head_dim, dim_v = call->kernels->head_dim_v;
    const int64_t whole = call->layout->order.whole_heads;

    if (call->arriving) {
        sums_fill(launch, call);
        return;
    }
    if (has_parts(call)) {
        launch->dk = call->workspace + call->layout->dk_at;
        launch->dv = call->workspace + call->layout->dv_at;
        launch->dk_token_stride = dim;
        launch->dv_token_stride = dim_v;
        launch->dk_head_stride = keys * dim;
        launch->dv_head_stride = keys * dim_v;
        launch->dk_part_stride = (args->heads_kv - whole) * keys * dim;
        launch->dv_part_stride = (args->heads_kv - whole) * keys * dim_v;
        /* The kernel counts from kv head 0; those that are left whole have no parts. */
        launch->dk = (float *)launch->dk - whole * launch->dk_head_stride;
        launch->dv = (float *)launch->dv - whole * launch->dv_head_stride;
        launch->narrow_dk = args->dk.data;
        launch->narrow_dv = args->dv.data;
        launch->narrow_dk_token_stride = args->dk.token_stride;
        launch->narrow_dk_head_stride = args->dk.head_stride;
        launch->narrow_dv_token_stride = args->dv.token_stride;
        launch->narrow_dv_head_stride = args->dv.head_stride;
        return;
    }
    launch->dk = args->dk.data;
    launch->dv = args->dv.data;
    launch->dk_token_stride = args->dk.token_stride;
    launch->dk_head_stride = args->dk.head_stride;
    launch->dv_token_stride = args->dv.token_stride;
    launch->dv_head_stride = args->dv.head_stride;
    if (args->flags & FFA_BACKWARD_ACCUMULATE)
        launch->flags |= BACKWARD_ACCUMULATE;
}

/* Of backward_own_heads, of head groups; 0: own keys are divided by tile, as the tickets of ordered
 * accumulation, which know one order for all heads, need it. */
static int own_heads(const ffa_plan *plan, const struct attention_backward_args *launch)
{
    const int last = plan->arriving.group_count - 1;
    const int32_t *ends = plan->arriving.group_end;
    const int own = last > 0 ? ends[0] + ends[last] - ends[last - 1] : 0;
    const int heads = backward_head_groups(&launch->order);

    if (own == 0 || plan->backward.on_grid || heads < 2)
        return 0;
    return backward_own_heads(own, heads, launch->order.at_a_time, plan->arriving.first_share);
}

static ffa_status arriving_fill(struct attention_backward_args *launch, const struct gpu_call *call,
                                ffa_error *err)
{
    /* Each consumer warp counts each work item once, in each block of a cluster. */
    const int64_t warps =
        (int64_t)launch->tile_items * call->kernel->cluster * BACKWARD_CONSUMER_WARPS;

    launch->arrivals = arrivals_of(call->plan, call->arriving);
    launch->group_count = call->plan->arriving.group_count;
    memcpy(launch->group_end, call->plan->arriving.group_end, sizeof launch->group_end);
    launch->own_heads = own_heads(call->plan, launch);
    return departures_fill(&launch->departures, call->plan, call->arriving, warps,
                           (int *)(void *)(call->workspace + DEPARTURES_AT), err);
}

static ffa_status main_fill(struct attention_backward_args *launch, const struct gpu_call *call,
                            ffa_error *err)
{
    const ffa_backward_args *args = call->args;
    const struct tile_plan *plan = &call->plan->backward;
    const bool has_lists = call->plan->heads_in_mask > 1;
    const struct backward_order *order = &call->layout->order;
    const struct backward_item_order item_order = {
        .heads_kv = args->heads_kv,
        .group = args->heads_q / args->heads_kv,
        .parts = order->parts,
        .whole_heads = order->whole_heads,
        .waves = order->waves,
        .at_a_time = kernels_backward_at_a_time(call->kernel, call->room),
    };
    const int32_t tile_items = has_lists ? order->parts : backward_head_groups(&item_order);
    const double scale = args->softmax_scale;
    ffa_status rc;

    if (plan_tiles_most(call->plan, plan) > (INT32_MAX - 1024) / tile_items)
        return error_fail(err, FFA_INVALID, 0,
                          "%lld key tiles x %d heads are more than 2^31 work items",
                          (long long)plan_tiles_most(call->plan, plan), args->heads_q);
    *launch = (struct attention_backward_args){ .narrow_from = INT_MAX };
    FFA_TRY(maps_fill(launch, call, err));
    launch->stats = (const float *)(const void *)(call->workspace + call->layout->stats_at);
    launch->stats_rows = call->layout->stats_rows;
    launch->dq = call->workspace + call->layout->dq_at;
    launch->dq_head_stride = call->layout->dq_rows * call->kernels->dq_columns;
    launch->dq_rows = call->layout->dq_rows;
    launch->image = atomic_load(&call->plan->buffer);
    launch->dq_semaphores = (int *)(void *)(call->workspace + call->layout->semaphores_at);
    launch->counter = (int *)(void *)call->workspace;
    launch->scale = (float)scale;
    launch->head_dim = call->kernels->head_dim;
    launch->head_dim_v = call->kernels->head_dim_v;
    launch->scale_log2 = (float)(LOG2_E * exponent_scale(call));
    launch->tile_items = tile_items;
    launch->order = item_order;
    launch->flags = has_lists ? BACKWARD_LIST_PER_KV_HEAD : 0;
    launch->cap_inner = (float)softcap_inner(scale, args->softcap);
    launch->cap_outer = (float)softcap_outer(args->softcap);
    outputs_fill(launch, call);
    if (call->arriving)
        FFA_TRY(arriving_fill(launch, call, err));
out:
    return rc;
}

/* Before the last stage there are parts to sum, at the most. */
static struct backward_finish_args finish_fill(const struct gpu_call *call)
{
    const ffa_backward_args *args = call->args;
    const struct backward_layout *layout = call->layout;
    const bool has_dq = is_last(call->plan);
    const int32_t whole = layout->order.whole_heads;
    const int64_t dk_at = whole * args->dk.head_stride, dv_at = whole * args->dv.head_stride;
    const int64_t bytes = (int64_t)ffa_dtype_bytes(call->kernels->grad_dtype);

    return (struct backward_finish_args){
        .dq_sum = (const float *)(void *)(call->workspace + layout->dq_at),
        .dk_parts = (const float *)(void *)(call->workspace + layout->dk_at),
        .dv_parts = (const float *)(void *)(call->workspace + layout->dv_at),
        .dk_more = args->partial_dk.data,
        .dv_more = args->partial_dv.data,
        .dk_more_token_stride = args->partial_dk.token_stride,
        .dk_more_head_stride = args->partial_dk.head_stride,
        .dv_more_token_stride = args->partial_dv.token_stride,
        .dv_more_head_stride = args->partial_dv.head_stride,
        .dq = args->dq.data,
        .dk = (char *)args->dk.data + dk_at * bytes,
        .dv = (char *)args->dv.data + dv_at * bytes,
        .stats = (const float *)(void *)(call->workspace + layout->stats_at),
        .sink = args->sink,
        .dsink = has_dq ? args->dsink : NULL,
        .dq_token_stride = args->dq.token_stride,
        .dq_head_stride = args->dq.head_stride,
        .dk_token_stride = args->dk.token_stride,
        .dk_head_stride = args->dk.head_stride,
        .dv_token_stride = args->dv.token_stride,
        .dv_head_stride = args->dv.head_stride,
        .scale = (float)args->softmax_scale,
        .lse_unit = (float)(LOG2_E / lse_factor(call)),
        .tokens_q = has_dq ? (int)call->plan->backward.shape.seqlen_q : 0,
        .tokens_k = (int)call->plan->backward.shape.seqlen_k,
        .heads_q = args->heads_q,
        .heads_kv = args->heads_kv - whole,
        .parts = has_parts(call) ? layout->order.parts : 0,
        .stats_rows = (int)layout->stats_rows,
        .dq_rows = (int)layout->dq_rows,
        .sink_count = args->sink_count,
        .head_dim = (short)call->kernels->head_dim,
        .head_dim_v = (short)call->kernels->head_dim_v,
        .flags = args->flags & FFA_BACKWARD_ACCUMULATE ? FINISH_ACCUMULATE : 0,
    };
}

/* Launches that can be enqueued: nothing of them is refused any more. */
struct backward_launches {
    struct backward_layout layout;
    const struct gpu_kernel *kernel, *finish_kernel;
    struct backward_prepare_args prepare;
    struct attention_backward_args main;
    struct backward_finish_args finish;
    int64_t work_blocks;
    int32_t room; /* SMs */
};

static ffa_status launches_fill(struct backward_launches *out, const ffa_kernels *kernels,
                                const ffa_plan *plan, const ffa_backward_args *args,
                                const struct arriving_call *arriving, ffa_error *err)
{
    const struct backward_kernel *kernel = kernel_of(kernels, plan);
    const struct gpu_call call = { .kernels = kernels,
                                   .plan = plan,
                                   .kernel = kernel,
                                   .args = args,
                                   .arriving = arriving,
                                   .layout = &out->layout,
                                   .workspace = args->workspace,
                                   .room = gpu_device_sm_count(kernels->context->gpu) -
                                           args->sm_margin };
    ffa_status rc;

    FFA_TRY(launch_check(kernels, plan, err));
    FFA_TRY(layout_of(&out->layout, kernels, plan, args->heads_q, args->heads_kv, err));
    /* Parts are added to zeros, in fp32: not to sums that are there, nor to what is rounded once.
     */
    if (arriving && (arriving->accumulates || arriving->narrow)) {
        out->layout.order.parts = 1;
        out->layout.order.whole_heads = 0;
    }
    FFA_TRY(workspace_check(WORKSPACE(args), out->layout.bytes, err));
    FFA_TRY(main_fill(&out->main, &call, err));
    out->prepare = prepare_fill(&call);
    out->finish = finish_fill(&call);
    out->kernel = has_parts(&call) && kernel->fp32 ? kernel->fp32 : kernel->kernel;
    assert(!arriving || !arriving->has_wide_dq || kernels->finish_fp32 ||
           kernels->grad_dtype == FFA_FP32);
    out->finish_kernel = arriving && arriving->has_wide_dq && kernels->finish_fp32
                             ? kernels->finish_fp32
                             : kernels->finish;
    out->work_blocks = plan->backward.tile_count * out->main.tile_items * kernel->cluster;
    out->room = call.room;
out:
    return rc;
}

/* Of the rows of the sum window that a launch writes. */
static int64_t sums_bytes(const struct backward_launches *all, const ffa_plan *plan)
{
    return plan->backward.shape.seqlen_k * all->main.dk_token_stride * (int64_t)sizeof(float);
}

static ffa_status backward_gpu(const ffa_kernels *kernels, const ffa_plan *plan,
                               const ffa_backward_args *args, const struct arriving_call *arriving,
                               ffa_stream stream, ffa_error *err)
{
    struct backward_launches all;
    ffa_status rc;

    FFA_TRY(launches_fill(&all, kernels, plan, args, arriving, err));
    if (is_first(plan) && !(arriving && arriving->is_prepared))
        FFA_TRY(gpu_kernel_enqueue(kernels->prepare, all.room, &all.prepare, stream, err));
    if (!is_first(plan))
        FFA_TRY(gpu_fill_enqueue(kernels->context->gpu, args->workspace, 0,
                                 all.layout.counters_bytes, stream, err));
    if (arriving && all.main.order.parts > 1) /* parts are added to it */
        FFA_TRY(gpu_fill_enqueue(kernels->context->gpu, arriving->sums, 0, sums_bytes(&all, plan),
                                 stream, err));
    if (all.work_blocks > 0) /* no keys may be there and none arrive */
        FFA_TRY(gpu_kernel_enqueue(all.kernel, plan_blocks(plan, all.work_blocks, all.room),
                                   &all.main, stream, err));
    if (is_last(plan) || all.finish.parts)
        FFA_TRY(gpu_kernel_enqueue(all.finish_kernel, all.room, &all.finish, stream, err));
out:
    return rc;
}

/* ---- the CPU ---- */

/* Every stage works on all rows. */
static ffa_status row_flags_make(uint8_t **out, const ffa_plan *plan, ffa_error *err)
{
    const int64_t tile_m = plan->backward.tile_m;
    const size_t blocks = (size_t)((plan->backward.shape.seqlen_q + tile_m - 1) / tile_m);

    *out = mem_array(blocks, 1);
    if (!*out)
        return error_nomem(err, "the rows of a stage");
    memset(*out,
           (is_first(plan) ? 0 : PLAN_TILE_MERGES) | (is_last(plan) ? 0 : PLAN_TILE_CONTINUES),
           blocks);
    return FFA_OK;
}

static ffa_status backward_cpu(const ffa_kernels *kernels, const ffa_plan *plan,
                               const ffa_backward_args *args, ffa_stream stream, ffa_error *err)
{
    const struct cpu_tensor partial_dk = CPU_TENSOR(args->partial_dk);
    const struct cpu_tensor partial_dv = CPU_TENSOR(args->partial_dv);
    struct cpu_backward call = {
        .plan = &plan->backward,
        .args = CPU_ARGS(*args),
        .dout = CPU_TENSOR(args->dout),
        .dlse = CPU_TENSOR(args->dlse),
        .dq = CPU_TENSOR(args->dq),
        .dk = CPU_TENSOR(args->dk),
        .dv = CPU_TENSOR(args->dv),
        .partial_dk = partial_dk.data ? &partial_dk : NULL,
        .partial_dv = partial_dk.data ? &partial_dv : NULL,
        .dsink = is_last(plan) ? args->dsink : NULL,
        .dtype = kernels->dtype,
        .grad_dtype = kernels->grad_dtype,
        .lse_dtype = sum_dtype_of(kernels),
        .out_dtype = kernels->out_dtype,
        .head_dim = kernels->head_dim,
        .head_dim_v = kernels->head_dim_v,
        .threads = kernels->context->cpu_threads,
        .fp64 = cpu_in_fp64(kernels),
        .accumulate = (args->flags & FFA_BACKWARD_ACCUMULATE) != 0,
    };

    struct cpu_layout layout;
    uint8_t *row_flags = NULL;
    ffa_status rc;

    FFA_TRY(cpu_stream_check(stream, err));
    FFA_TRY(cpu_layout_of(&layout, kernels, plan, args->heads_q, err));
    FFA_TRY(workspace_check(WORKSPACE(args), layout.bytes, err));
    if (layout.bytes) {
        FFA_TRY(row_flags_make(&row_flags, plan, err));
        call.row_flags = row_flags;
        call.delta = args->workspace;
        call.sum_dq = (char *)args->workspace + layout.sum_at;
        if (is_first(plan))
            FFA_TRY(cpu_backward_delta(&call, args->workspace, err));
    }
    rc = cpu_backward(&call, err);
out:
    mem_free(row_flags);
    return rc;
}

/* arriving: NULL where all keys are there. */
static ffa_status backward_enqueue(const ffa_kernels *kernels, const ffa_plan *plan,
                                   const ffa_backward_args *args_in,
                                   const struct arriving_call *arriving, ffa_stream stream,
                                   ffa_error *err)
{
    ffa_backward_args args;
    ffa_status rc;

    FFA_TRY(args_import(&args, kernels, plan, args_in, arriving, err));
    if (kernels_are_loaded(kernels))
        FFA_TRY(backward_gpu(kernels, plan, &args, arriving, stream, err));
    else
        FFA_TRY(backward_cpu(kernels, plan, &args, stream, err));
    atomic_fetch_add_explicit(&kernels->context->stats.backward_calls, 1, memory_order_relaxed);
out:
    return rc;
}

ffa_status ffa_backward(const ffa_kernels *kernels, const ffa_plan *plan,
                        const ffa_backward_args *args, ffa_stream stream, ffa_error *err)
{
    if (!kernels || !plan || !args)
        return error_fail(err, FFA_INVALID, 0, "ffa_backward: %s is NULL",
                          !kernels ? "kernels"
                          : !plan  ? "plan"
                                   : "args");
    return backward_enqueue(kernels, plan, args, NULL, stream, err);
}

static ffa_status sums_check(const ffa_plan *plan, const struct arriving_call *call, ffa_error *err)
{
    if ((!call->sums && plan->backward.shape.seqlen_k > 0) || (uintptr_t)call->sums % 16 ||
        !call->owner_at)
        return error_fail(err, FFA_INVALID, 0, "backward over arriving keys: %s is %s",
                          call->owner_at ? "sums" : "owner_at",
                          call->owner_at && call->sums ? "not 16-byte aligned" : "NULL");
    if ((uintptr_t)call->narrow % 4)
        return error_fail(err, FFA_INVALID, 0,
                          "backward over arriving keys: narrow is not 4-byte aligned");
    return FFA_OK;
}

ffa_status backward_check_arriving(const ffa_kernels *kernels, const ffa_plan *plan,
                                   const ffa_backward_args *args_in,
                                   const struct arriving_call *call, ffa_error *err)
{
    struct backward_launches launches;
    ffa_backward_args args;
    ffa_status rc;

    FFA_TRY(sums_check(plan, call, err));
    FFA_TRY(args_import(&args, kernels, plan, args_in, call, err));
    rc = launches_fill(&launches, kernels, plan, &args, call, err);
out:
    return rc;
}

ffa_status backward_enqueue_arriving(const ffa_kernels *kernels, const ffa_plan *plan,
                                     const ffa_backward_args *args,
                                     const struct arriving_call *call, ffa_stream stream,
                                     ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(sums_check(plan, call, err));
    rc = backward_enqueue(kernels, plan, args, call, stream, err);
out:
    return rc;
}

ffa_status backward_prepare_moved(const ffa_kernels *kernels, const ffa_plan *plan,
                                  const ffa_backward_args *args_in,
                                  const struct arriving_call *call, ffa_stream stream,
                                  ffa_error *err)
{
    struct backward_launches launches;
    ffa_backward_args args;
    ffa_status rc;

    FFA_TRY(args_import(&args, kernels, plan, args_in, call, err));
    FFA_TRY(launches_fill(&launches, kernels, plan, &args, call, err));
    rc = gpu_kernel_enqueue(kernels->prepare, launches.room, &launches.prepare, stream, err);
out:
    return rc;
}

ffa_status backward_delta_find(ffa_tensor *out, const ffa_kernels *kernels, const ffa_plan *plan,
                               const ffa_backward_args *args_in, const struct arriving_call *call,
                               ffa_error *err)
{
    struct backward_launches launches;
    ffa_backward_args args;
    ffa_status rc;

    *out = (ffa_tensor)FFA_TENSOR_INIT(NULL);
    FFA_TRY(args_import(&args, kernels, plan, args_in, call, err));
    FFA_TRY(launches_fill(&launches, kernels, plan, &args, call, err));
    out->data = launches.prepare.stats + launches.layout.stats_rows;
    out->token_stride = 1;
    out->head_stride = 2 * launches.layout.stats_rows;
out:
    return rc;
}
