/* SPDX-License-Identifier: Apache-2.0
 *
 * One attention case of `ffa run`: tensors, kernels, plan and memory, and the calls on them.
 *
 * Each tensor is there twice, on the host and in the context's memory (which is host memory on the
 * CPU backend), with one extent for both. Inputs that are made up are the same on every machine.
 */
#include "cli/run_case.h"

#include "base/half.h"
#include "cli/file.h"
#include "cli/fits.h"
#include "cli/npy.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const tensor_names[RUN_TENSORS] = { "q",    "k",  "v",  "out", "lse",   "sink",
                                                       "dout", "dq", "dk", "dv",  "dsink", "dlse" };

const char *run_tensor_name(enum run_tensor tensor)
{
    return tensor_names[tensor];
}

const char *run_dtype_name(ffa_dtype dtype)
{
    switch (dtype) {
    case FFA_BF16:
        return "bf16";
    case FFA_FP16:
        return "fp16";
    case FFA_FP32:
        return "fp32";
    case FFA_FP64:
        return "fp64";
    }
    return "unknown";
}

/* ---- elements ---- */

double run_element(const void *array, ffa_dtype dtype, int64_t index)
{
    switch (dtype) {
    case FFA_BF16:
        return (double)bf16_to_float(((const uint16_t *)array)[index]);
    case FFA_FP16:
        return (double)fp16_to_float(((const uint16_t *)array)[index]);
    case FFA_FP32:
        return (double)((const float *)array)[index];
    case FFA_FP64:
        break;
    }
    return ((const double *)array)[index];
}

static void put_element(void *array, ffa_dtype dtype, int64_t index, double value)
{
    switch (dtype) {
    case FFA_BF16:
        ((uint16_t *)array)[index] = bf16_from_float((float)value);
        return;
    case FFA_FP16:
        ((uint16_t *)array)[index] = fp16_from_float((float)value);
        return;
    case FFA_FP32:
        ((float *)array)[index] = (float)value;
        return;
    case FFA_FP64:
        break;
    }
    ((double *)array)[index] = value;
}

/* ---- shapes ---- */

struct extent {
    int64_t shape[3]; /* [tokens][heads][head_dim]; lse [tokens][heads], sinks [sinks][heads] */
    int32_t dims;
    ffa_dtype dtype;
    int64_t count;
    int64_t bytes;
};

/* tokens <= 2^31, heads and head_dim are bounded by the command's options: no product overflows. */
static struct extent extent_of(const struct run_shape *shape, enum run_tensor tensor)
{
    bool is_key = tensor == RUN_K || tensor == RUN_V || tensor == RUN_DK || tensor == RUN_DV;
    bool is_sink = tensor == RUN_SINK || tensor == RUN_DSINK;
    bool is_value = tensor == RUN_V || tensor == RUN_OUT || tensor == RUN_DV || tensor == RUN_DOUT;
    bool is_flat = tensor == RUN_LSE || tensor == RUN_DLSE || is_sink;
    bool is_empty = (tensor >= RUN_DOUT && !(shape->spec_flags & FFA_SPEC_BACKWARD)) ||
                    (tensor == RUN_DLSE && !shape->has_dlse);
    struct extent extent = {
        .shape = { is_empty  ? 0
                   : is_sink ? shape->sinks
                   : is_key  ? shape->tokens_k
                             : shape->tokens_q,
                   is_key ? shape->heads_kv : shape->heads_q,
                   is_value ? shape->head_dim_v : shape->head_dim },
        .dims = is_flat ? 2 : 3,
        .dtype = is_flat && shape->dtype != FFA_FP64 ? FFA_FP32 : shape->dtype,
    };

    extent.count = extent.shape[0] * extent.shape[1];
    if (extent.dims == 3)
        extent.count *= extent.shape[2];
    extent.bytes = extent.count * (int64_t)ffa_dtype_bytes(extent.dtype);
    return extent;
}

/* ---- life ---- */

static ffa_status allocate(struct run_case *run, ffa_error *err)
{
    ffa_tensor *tensors[RUN_SINK] = { &run->args.q, &run->args.k, &run->args.v, &run->args.out,
                                      &run->args.lse };
    ffa_status rc;

    for (int i = 0; i < RUN_TENSORS; i++) {
        struct extent extent = extent_of(&run->shape, (enum run_tensor)i);

        run->host[i] = calloc((size_t)extent.bytes + 1, 1); /* some may be empty */
        if (!run->host[i])
            return cli_error(err, FFA_NOMEM, 0, "no memory for the %" PRId64 " bytes of %s",
                             extent.bytes, tensor_names[i]);
        rc = ffa_device_alloc(&run->device[i], run->context, extent.bytes, err);
        if (rc != FFA_OK)
            return rc;
        if (i < RUN_SINK)
            tensors[i]->data = run->device[i];
    }
    run->args.sink_count = run->shape.sinks;
    run->args.sink = run->shape.sinks ? run->device[RUN_SINK] : NULL;
    return FFA_OK;
}

/* Each tensor is on the host, and on the CPU backend the context's memory is the host's, too; ranks
 * have rows of their own besides. */
static ffa_status tensors_fit(const struct run_case *run, bool has_ranks, ffa_error *err)
{
    ffa_context_info info = FFA_CONTEXT_INFO_INIT;
    int64_t bytes = 0;

    for (int i = 0; i < RUN_TENSORS; i++)
        bytes += extent_of(&run->shape, (enum run_tensor)i).bytes;
    (void)ffa_context_info_get(run->context, &info, NULL);
    return cli_fits(bytes * (info.device >= 0 ? 1 : has_ranks ? 3 : 2), "the tensors", err);
}

static ffa_status prepare(struct run_case *run, ffa_error *err)
{
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;
    ffa_plan_info info = FFA_PLAN_INFO_INIT;
    ffa_plan_opts plan_opts = FFA_PLAN_OPTS_INIT;
    ffa_status rc;

    spec.dtype = run->shape.dtype;
    spec.head_dim = run->shape.head_dim;
    spec.head_dim_v = run->shape.head_dim_v;
    spec.pack_heads = run->shape.pack_heads;
    spec.split = run->shape.split;
    spec.heads_q = run->shape.heads_q;
    spec.heads_kv = run->shape.heads_kv;
    spec.flags = run->shape.spec_flags;
    spec.backward_tile_m = run->shape.backward_tile_m;
    spec.backward_tile_n = run->shape.backward_tile_n;
    plan_opts.flags = run->shape.plan_flags;
    plan_opts.backward_parts_max = run->shape.parts_max;
    plan_opts.heads_q = spec.flags & FFA_SPEC_SPLIT ? run->shape.heads_q : 0;
    rc = ffa_kernels_create(&run->kernels, run->context, &spec, err);
    if (rc == FFA_OK)
        rc = ffa_plan_create_with(&run->plan, run->kernels, run->mask, &plan_opts, err);
    if (rc == FFA_OK)
        rc = ffa_plan_info_get(run->plan, &info, err);
    if (rc == FFA_OK)
        rc = ffa_device_alloc(&run->plan_buffer, run->context, info.upload_bytes, err);
    if (rc == FFA_OK)
        rc = ffa_plan_upload(run->plan, run->kernels, run->plan_buffer, NULL, err);
    if (rc == FFA_OK && run->shape.spec_flags & FFA_SPEC_BACKWARD)
        rc = ffa_backward_workspace_bytes(run->kernels, run->plan, run->shape.heads_q,
                                          run->shape.heads_kv, &run->workspace_bytes, err);
    else if (rc == FFA_OK)
        rc = ffa_workspace_bytes(run->kernels, run->plan, &run->workspace_bytes, err);
    if (rc == FFA_OK)
        rc = ffa_device_alloc(&run->workspace, run->context, run->workspace_bytes, err);
    run->args.workspace = run->workspace;
    run->args.workspace_bytes = run->workspace_bytes;
    return rc;
}

ffa_status run_case_init(struct run_case *run, ffa_context *context, const ffa_mask *mask,
                         const struct run_shape *shape, bool has_ranks, ffa_error *err)
{
    ffa_status rc;

    *run = (struct run_case){ .context = context, .mask = mask, .shape = *shape };
    run->args = (ffa_forward_args)FFA_FORWARD_ARGS_INIT;
    run->args.heads_q = shape->heads_q;
    run->args.heads_kv = shape->heads_kv;
    rc = tensors_fit(run, has_ranks, err);
    if (rc == FFA_OK)
        rc = prepare(run, err);
    return rc == FFA_OK ? allocate(run, err) : rc;
}

void run_case_finish(struct run_case *run)
{
    for (int i = 0; i < RUN_TENSORS; i++) {
        free(run->host[i]);
        if (run->device[i])
            ffa_device_free(run->context, run->device[i]);
    }
    if (run->plan_buffer)
        ffa_device_free(run->context, run->plan_buffer);
    if (run->workspace)
        ffa_device_free(run->context, run->workspace);
    run_ranks_destroy(run->ranks);
    ffa_plan_destroy(run->plan);
    ffa_kernels_destroy(run->kernels);
    memset(run, 0, sizeof *run);
}

/* ---- inputs and outputs ---- */

/* splitmix64 (Steele et al. 2014) of a counter: element i needs no element before it. */
static uint64_t mix(uint64_t seed, uint64_t index)
{
    uint64_t z = seed + (index + 1) * 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* The sum of four uniform numbers of 16 bits, scaled to variance 1: exact integers up to the last
 * product, so no machine's libm has a say. */
static double draw(uint64_t seed, uint64_t index)
{
    uint64_t bits = mix(seed, index);
    int64_t sum =
        (int64_t)((bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48)) -
        INT64_C(131070); /* its mean: 2 * 65535 */

    return (double)sum * (1.7320508075688772 / 65536.0);
}

void run_case_fill(struct run_case *run, enum run_tensor tensor, uint64_t seed)
{
    struct extent extent = extent_of(&run->shape, tensor);
    uint64_t own = mix(seed, (uint64_t)tensor);

    for (int64_t i = 0; i < extent.count; i++)
        put_element(run->host[tensor], extent.dtype, i, draw(own, (uint64_t)i));
}

/* The type a tensor of `dtype` has in a file. */
static enum npy_type file_type(ffa_dtype dtype)
{
    switch (dtype) {
    case FFA_BF16:
        return NPY_UINT16;
    case FFA_FP16:
        return NPY_FLOAT16;
    case FFA_FP32:
        return NPY_FLOAT32;
    case FFA_FP64:
        break;
    }
    return NPY_FLOAT64;
}

static ffa_status take_array(struct run_case *run, enum run_tensor tensor, const struct npy *array,
                             const char *path, bool *rounded, ffa_error *err)
{
    struct extent extent = extent_of(&run->shape, tensor);
    enum npy_type wanted = file_type(extent.dtype);
    bool can_round = ffa_dtype_bytes(extent.dtype) == 2;
    ffa_status rc =
        npy_expect(array, path, extent.shape, extent.dims, "[tokens][heads][head_dim]", err);

    if (rc != FFA_OK)
        return rc;
    if (array->type == wanted) {
        memcpy(run->host[tensor], array->data, (size_t)extent.bytes);
        return FFA_OK;
    }
    if (array->type != NPY_FLOAT32 || !can_round)
        return cli_error(err, FFA_INVALID, 0, "%s: the dtype is %s: %s%s wanted for %s in %s", path,
                         npy_type_name(array->type), npy_type_name(wanted),
                         can_round ? " or float32" : "", tensor_names[tensor],
                         run_dtype_name(extent.dtype));
    for (int64_t i = 0; i < extent.count; i++)
        put_element(run->host[tensor], extent.dtype, i, (double)((const float *)array->data)[i]);
    *rounded = true;
    return FFA_OK;
}

ffa_status run_case_read(struct run_case *run, enum run_tensor tensor, const char *path,
                         bool *rounded, ffa_error *err)
{
    struct npy array;
    ffa_status rc = npy_read(&array, path, err);

    *rounded = false;
    if (rc == FFA_OK)
        rc = take_array(run, tensor, &array, path, rounded, err);
    npy_finish(&array);
    return rc;
}

ffa_status run_case_write(const struct run_case *run, enum run_tensor tensor, const char *path,
                          ffa_error *err)
{
    struct extent extent = extent_of(&run->shape, tensor);
    struct npy array = {
        .type = file_type(extent.dtype),
        .dims = extent.dims,
        .count = extent.count,
        .data = run->host[tensor],
    };

    memcpy(array.shape, extent.shape, sizeof extent.shape);
    return npy_write(path, &array, err);
}

/* ---- calls ---- */

struct oracle_case run_case_oracle(const struct run_case *run, ffa_forward_args *args,
                                   ffa_slice_list *lists)
{
    *args = run->args;
    args->q.data = run->host[RUN_Q];
    args->k.data = run->host[RUN_K];
    args->v.data = run->host[RUN_V];
    args->out.data = run->host[RUN_OUT];
    args->lse.data = run->host[RUN_LSE];
    args->sink = run->shape.sinks ? run->host[RUN_SINK] : NULL;
    for (int32_t i = 0; i < ffa_mask_head_count(run->mask); i++)
        lists[i] = ffa_mask_slices(run->mask, i);
    return (struct oracle_case){
        .shape = { run->shape.tokens_q, run->shape.tokens_k },
        .lists = lists,
        .list_count = ffa_mask_head_count(run->mask),
        .head_dim = run->shape.head_dim,
        .head_dim_v = run->shape.head_dim_v,
        .dtype = run->shape.dtype,
        .args = args,
    };
}

struct oracle_backward_case run_case_oracle_backward(const struct run_case *run,
                                                     ffa_forward_args *args, ffa_slice_list *lists)
{
    return (struct oracle_backward_case){
        .forward = run_case_oracle(run, args, lists),
        .grad_dtype = run->shape.dtype,
        .dout = FFA_TENSOR_INIT(run->host[RUN_DOUT]),
        .dlse = FFA_TENSOR_INIT(run->shape.has_dlse ? run->host[RUN_DLSE] : NULL),
        .dq = FFA_TENSOR_INIT(run->host[RUN_DQ]),
        .dk = FFA_TENSOR_INIT(run->host[RUN_DK]),
        .dv = FFA_TENSOR_INIT(run->host[RUN_DV]),
        .dsink = run->shape.sinks ? run->host[RUN_DSINK] : NULL,
    };
}

ffa_status run_case_upload(struct run_case *run, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    for (int i = 0; i < RUN_TENSORS && rc == FFA_OK; i++)
        rc = ffa_device_copy(run->context, run->device[i], run->host[i],
                             extent_of(&run->shape, (enum run_tensor)i).bytes, FFA_TO_DEVICE, err);
    return rc;
}

ffa_status run_case_forward(struct run_case *run, int calls, float *ms, ffa_error *err)
{
    ffa_status rc;

    if (run->ranks)
        return run_ranks_pass(run->ranks, false, calls, ms, err);
    rc = ffa_device_time_begin(run->context, NULL, err);
    for (int i = 0; i < calls && rc == FFA_OK; i++)
        rc = ffa_forward(run->kernels, run->plan, &run->args, NULL, err);
    if (rc == FFA_OK)
        rc = ffa_device_time_end(run->context, NULL, ms, err);
    *ms /= (float)calls;
    return rc;
}

ffa_status run_case_backward(struct run_case *run, int calls, float *ms, ffa_error *err)
{
    const ffa_forward_args *from = &run->args;
    ffa_backward_args args = FFA_BACKWARD_ARGS_INIT;
    ffa_status rc;

    args.heads_q = from->heads_q;
    args.heads_kv = from->heads_kv;
    args.softmax_scale = from->softmax_scale;
    args.q = from->q;
    args.k = from->k;
    args.v = from->v;
    args.out = from->out;
    args.lse = from->lse;
    args.dout.data = run->device[RUN_DOUT];
    args.dlse.data = run->shape.has_dlse ? run->device[RUN_DLSE] : NULL;
    args.dq.data = run->device[RUN_DQ];
    args.dk.data = run->device[RUN_DK];
    args.dv.data = run->device[RUN_DV];
    args.dsink = run->shape.sinks ? run->device[RUN_DSINK] : NULL;
    args.sink = from->sink;
    args.sink_count = from->sink_count;
    args.softcap = from->softcap;
    args.sm_margin = from->sm_margin;
    args.workspace = run->workspace;
    args.workspace_bytes = run->workspace_bytes;

    if (run->ranks)
        return run_ranks_pass(run->ranks, true, calls, ms, err);
    rc = ffa_device_time_begin(run->context, NULL, err);
    for (int i = 0; i < calls && rc == FFA_OK; i++)
        rc = ffa_backward(run->kernels, run->plan, &args, NULL, err);
    if (rc == FFA_OK)
        rc = ffa_device_time_end(run->context, NULL, ms, err);
    *ms /= (float)calls;
    return rc;
}

ffa_status run_case_download(struct run_case *run, ffa_error *err)
{
    ffa_status rc = ffa_device_synchronize(run->context, err);

    for (int i = RUN_OUT; i < RUN_TENSORS && rc == FFA_OK; i++)
        rc =
            ffa_device_copy(run->context, run->host[i], run->device[i],
                            extent_of(&run->shape, (enum run_tensor)i).bytes, FFA_FROM_DEVICE, err);
    return rc;
}

ffa_status run_case_backward_again(struct run_case *run, bool *is_same, ffa_error *err)
{
    static const enum run_tensor gradients[] = { RUN_DQ, RUN_DK, RUN_DV, RUN_DSINK };
    float ms;
    ffa_status rc = run_case_backward(run, 1, &ms, err);

    *is_same = true;
    if (rc == FFA_OK)
        rc = ffa_device_synchronize(run->context, err);
    for (size_t i = 0; i < sizeof gradients / sizeof *gradients && rc == FFA_OK; i++) {
        const int64_t bytes = extent_of(&run->shape, gradients[i]).bytes;
        void *again;

        if (bytes == 0) /* no sinks */
            continue;
        again = malloc((size_t)bytes);
        rc = again ? ffa_device_copy(run->context, again, run->device[gradients[i]], bytes,
                                     FFA_FROM_DEVICE, err)
                   : (err->status = FFA_NOMEM);
        if (rc == FFA_OK && memcmp(again, run->host[gradients[i]], (size_t)bytes) != 0)
            *is_same = false;
        free(again);
    }
    if (rc == FFA_OK && run->ranks)
        rc = run_ranks_all(run->ranks, is_same, err);
    return rc;
}

double run_case_cells(const struct run_case *run)
{
    double heads_a_list = (double)run->shape.heads_q / ffa_mask_head_count(run->mask);

    return (double)ffa_mask_area(run->mask, -1) * heads_a_list;
}

double run_case_flops(const struct run_case *run)
{
    return 2.0 * run_case_cells(run) * (run->shape.head_dim + run->shape.head_dim_v);
}

double run_case_backward_flops(const struct run_case *run)
{
    return 2.0 * run_case_cells(run) * (3 * run->shape.head_dim + 2 * run->shape.head_dim_v);
}
