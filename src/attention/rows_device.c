/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches of row_copy and row_reduce: checks, how rows are shared out, how wide vectors are.
 *
 * Heads that follow each other without a gap on both sides become columns of one head, so that a
 * contiguous row is one range of bytes. A vector is as wide as addresses, strides and columns all
 * allow; a stride of a dimension with one index does not count. Where rows are narrower than what a
 * warp accesses at a time, an item's rows are further apart (row_items.h).
 */
#include "attention/rows_device.h"

enum { ROWS_MAX = INT32_MAX - 1023, GROUPS_MAX = 1 << 30, WARP_VECTORS = 32 };

_Static_assert(sizeof(int64_t) == sizeof(long long), "tables are of long long on the device");

/* ---- kernels ---- */

ffa_status row_reduce_load(struct gpu_kernel **out, const struct ffa_kernels *kernels,
                           const struct row_reduce_types *types, ffa_error *err)
{
    const struct setting settings[] = {
        { "input", (int32_t)types->input },
        { "output", (int32_t)types->output },
        { "op", (int32_t)types->op },
        { "received", (int32_t)types->received },
        { NULL, 0 },
    };
    struct jit_spec jit;

    *out = NULL;
    return kernel_make(out, &jit, kernels, "row_reduce", settings, err);
}

static struct row_reduce_types own_types(const struct ffa_kernels *kernels)
{
    return (struct row_reduce_types){ FFA_FP32, kernels->grad_dtype, ROW_REDUCE_SUM, 0 };
}

struct row_reduce_types row_reduce_narrow_types(const struct ffa_kernels *kernels, ffa_dtype output)
{
    return (struct row_reduce_types){ FFA_FP32, output, ROW_REDUCE_SUM, kernels->dtype };
}

ffa_status row_copy_load(struct ffa_kernels *kernels, ffa_error *err)
{
    const struct setting plain[] = { { "runs", 0 }, { NULL, 0 } };
    const struct setting runs[] = { { "runs", 1 }, { NULL, 0 } };
    struct jit_spec jit;
    ffa_status rc;

    FFA_TRY(kernel_make(&kernels->row_copy, &jit, kernels, "row_copy", plain, err));
    rc = kernel_make(&kernels->row_copy_runs, &jit, kernels, "row_copy", runs, err);
out:
    if (rc != FFA_OK)
        rows_kernels_unload(kernels);
    return rc;
}

ffa_status rows_kernels_load(struct ffa_kernels *kernels, ffa_error *err)
{
    const struct row_reduce_types types = own_types(kernels);
    const struct row_reduce_types sum = { FFA_FP32, FFA_FP32, ROW_REDUCE_SUM, 0 };
    const struct row_reduce_types max = { FFA_FP32, FFA_FP32, ROW_REDUCE_MAX, 0 };
    const struct row_reduce_types merge = { FFA_FP32, kernels->out_dtype, ROW_REDUCE_LSE, 0 };
    const struct row_reduce_types narrow = row_reduce_narrow_types(kernels, kernels->grad_dtype);
    const struct row_reduce_types narrow_sum = row_reduce_narrow_types(kernels, FFA_FP32);
    ffa_status rc;

    FFA_TRY(row_copy_load(kernels, err));
    if (kernels->has_backward) {
        FFA_TRY(row_reduce_load(&kernels->row_reduce, kernels, &types, err));
        FFA_TRY(row_reduce_load(&kernels->totals_sum, kernels, &sum, err));
        FFA_TRY(row_reduce_load(&kernels->narrow_reduce, kernels, &narrow, err));
        if (kernels->is_staged)
            FFA_TRY(row_reduce_load(&kernels->narrow_sum, kernels, &narrow_sum, err));
    }
    if (kernels->is_staged)
        FFA_TRY(row_reduce_load(&kernels->merge, kernels, &merge, err));
    if (kernels->has_max_logits)
        FFA_TRY(row_reduce_load(&kernels->totals_max, kernels, &max, err));
out:
    if (rc != FFA_OK)
        rows_kernels_unload(kernels);
    return rc;
}

void rows_kernels_unload(struct ffa_kernels *kernels)
{
    gpu_kernel_unload(kernels->row_copy);
    gpu_kernel_unload(kernels->row_copy_runs);
    gpu_kernel_unload(kernels->row_reduce);
    gpu_kernel_unload(kernels->totals_sum);
    gpu_kernel_unload(kernels->totals_max);
    gpu_kernel_unload(kernels->narrow_reduce);
    gpu_kernel_unload(kernels->narrow_sum);
    gpu_kernel_unload(kernels->merge);
    kernels->row_copy = kernels->row_copy_runs = kernels->row_reduce = NULL;
    kernels->totals_sum = kernels->totals_max = NULL;
    kernels->narrow_reduce = kernels->narrow_sum = kernels->merge = NULL;
}

/* ---- what both share ---- */

/* Rows of [heads][columns] elements, and the groups of the tensors before. */
struct extent {
    int64_t rows, columns;
    int32_t heads;
    int32_t vector_columns;
};

static ffa_status extent_check(const char *call, int64_t rows, int64_t columns, int32_t heads,
                               ffa_error *err)
{
    if (rows < 0 || rows > ROWS_MAX)
        return error_fail(err, FFA_INVALID, 0, "%s: rows is %lld, not in [0, %d]", call,
                          (long long)rows, ROWS_MAX);
    if (heads < 1)
        return error_fail(err, FFA_INVALID, 0, "%s: heads is %d, not 1 or more", call, heads);
    if (columns < 1 || columns > INT32_MAX / heads)
        return error_fail(err, FFA_INVALID, 0, "%s: columns is %lld, times %d heads not in [1, %d]",
                          call, (long long)columns, heads, INT32_MAX);
    return FFA_OK;
}

static ffa_status count_check(const char *call, const char *name, int32_t count, int32_t least,
                              int32_t most, ffa_error *err)
{
    if (count < least || count > most)
        return error_fail(err, FFA_INVALID, 0, "%s: %s is %d, not in [%d, %d]", call, name, count,
                          least, most);
    return FFA_OK;
}

/* Share out a tensor. *groups: of the tensors before it; raised by its own. */
static ffa_status items_init(struct row_items *out, int64_t *groups, const struct extent *extent,
                             ffa_error *err)
{
    const int64_t vectors = extent->columns / extent->vector_columns;
    const int64_t width = vectors * extent->heads;
    int64_t strip;
    int shift = 0;

    while (shift < ROW_SHIFT_MAX && width << shift < WARP_VECTORS)
        shift++;
    strip = (int64_t)ROW_DEPTH << shift;
    *out = (struct row_items){
        .count = (((extent->rows + strip - 1) / strip) << shift) * width,
        .rows = (int)extent->rows,
        .heads = extent->heads,
        .vectors = (int)vectors,
        .shift = shift,
    };
    *groups += (out->count + ROW_THREADS - 1) / ROW_THREADS;
    if (*groups > GROUPS_MAX)
        return error_fail(err, FFA_INVALID, 0,
                          "rows: %lld rows of %lld vectors are too many for one launch",
                          (long long)extent->rows, (long long)width);
    out->group_end = (int)*groups;
    return FFA_OK;
}

static bool all_divide(const int64_t *values, size_t count, int64_t by)
{
    for (size_t i = 0; i < count; i++)
        if (values[i] % by)
            return false;
    return true;
}

/* The stride, or 0 where it leads nowhere. */
static int64_t used_stride(int64_t stride, int64_t count)
{
    return count > 1 ? stride : 0;
}

static ffa_status launch(const struct gpu_kernel *kernel, const struct ffa_kernels *kernels,
                         int64_t groups, int32_t blocks_per_sm, const void *args, ffa_stream stream,
                         ffa_error *err)
{
    const int64_t blocks =
        (int64_t)gpu_device_sm_count(kernels->context->gpu) * (int64_t)blocks_per_sm;

    if (groups == 0)
        return FFA_OK;
    return gpu_kernel_enqueue(kernel, (int32_t)min64(groups, blocks), args, stream, err);
}

/* ---- copies ---- */

int64_t row_runs_finish(struct row_run *runs, int32_t run_count)
{
    int64_t rows = 0;

    for (int32_t i = 0; i < run_count; i++) {
        runs[i].before = rows;
        rows += runs[i].rows;
    }
    return rows;
}

static ffa_status copy_rows_check(const struct row_copy_rows *rows, int64_t row_count,
                                  ffa_error *err)
{
    const int32_t bytes = rows->element_bytes;
    ffa_status rc;

    FFA_TRY(extent_check("row_copy", row_count, rows->columns, rows->heads, err));
    if (bytes != 1 && bytes != 2 && bytes != 4 && bytes != 8)
        return error_fail(err, FFA_INVALID, 0, "row_copy: element_bytes is %d, not 1, 2, 4 or 8",
                          bytes);
    if (rows->columns > INT32_MAX / rows->heads / bytes)
        return error_fail(err, FFA_INVALID, 0,
                          "row_copy: columns is %lld: a row of %d heads has over %d bytes",
                          (long long)rows->columns, rows->heads, INT32_MAX);
    if (!rows->from && !rows->is_fill && (rows->columns != 1 || rows->heads != 1 || bytes != 8))
        return error_fail(err, FFA_INVALID, 0,
                          "row_copy: from is NULL with %lld columns of %d heads of %d bytes: the "
                          "index of a row is one of 8",
                          (long long)rows->columns, rows->heads, bytes);
    if (!rows->to && row_count > 0)
        return error_fail(err, FFA_INVALID, 0, "row_copy: to is NULL, %lld rows go there",
                          (long long)row_count);
out:
    return rc;
}

/* The widest vector that all addresses and strides of a copy allow. What is filled has at most 8
 * bytes of it at a time. */
static int32_t copy_vector_bytes(const struct row_copy_tensor *tensor, int64_t row_bytes,
                                 int32_t heads)
{
    const int64_t values[] = {
        (int64_t)(uintptr_t)tensor->from,
        (int64_t)(uintptr_t)tensor->to,
        tensor->from_token_bytes,
        tensor->to_token_bytes,
        used_stride(tensor->from_head_bytes, heads),
        used_stride(tensor->to_head_bytes, heads),
        row_bytes,
    };
    int32_t bytes = tensor->is_fill ? 8 : 16;

    while (bytes > 1 && !all_divide(values, sizeof values / sizeof *values, bytes))
        bytes /= 2;
    return bytes;
}

/* An element, as often as 8 bytes have it. */
static uint64_t repeated(uint64_t fill, int32_t element_bytes)
{
    uint64_t all = fill;

    if (element_bytes < 8)
        all &= ((uint64_t)1 << 8 * element_bytes) - 1;
    for (int32_t bytes = element_bytes; bytes < 8; bytes *= 2)
        all |= all << 8 * bytes;
    return all;
}

static ffa_status copy_tensor_init(struct row_copy_tensor *out, int64_t *groups,
                                   const struct row_copy_rows *rows, int64_t row_count,
                                   ffa_error *err)
{
    const bool is_contiguous = (rows->is_fill || rows->from_head_stride == rows->columns) &&
                               rows->to_head_stride == rows->columns && rows->heads > 1;
    const int32_t heads = is_contiguous ? 1 : rows->heads;
    const int64_t bytes = rows->element_bytes;
    struct extent extent = { .rows = row_count, .heads = heads };
    ffa_status rc;

    FFA_TRY(copy_rows_check(rows, row_count, err));
    extent.columns = bytes * rows->columns * (is_contiguous ? rows->heads : 1);
    *out = (struct row_copy_tensor){
        .from = rows->from,
        .to = rows->to,
        .from_token_bytes = rows->from_token_stride * bytes,
        .from_head_bytes = rows->from_head_stride * bytes,
        .to_token_bytes = rows->to_token_stride * bytes,
        .to_head_bytes = rows->to_head_stride * bytes,
        .is_fill = rows->is_fill,
        .fill = repeated(rows->fill, rows->element_bytes),
    };
    out->vector_bytes = rows->from || rows->is_fill ? copy_vector_bytes(out, extent.columns, heads)
                                                    : (int32_t)bytes;
    extent.vector_columns = out->vector_bytes;
    rc = items_init(&out->items, groups, &extent, err);
out:
    return rc;
}

static ffa_status copy_init(struct row_copy_args *args, int64_t *groups,
                            const struct ffa_kernels *kernels, const struct row_copy_call *call,
                            ffa_error *err)
{
    ffa_status rc;

    *groups = 0;
    *args = (struct row_copy_args){ .runs = call->runs,
                                    .run_count = call->run_count,
                                    .count = call->count };
    if (!kernels->row_copy)
        return error_fail(err, FFA_UNSUPPORTED, 0, "row_copy: the kernels were not loaded");
    FFA_TRY(count_check("row_copy", "count", call->count, 0, ROW_COPY_TENSORS_MAX, err));
    FFA_TRY(count_check("row_copy", "run_count", call->run_count,
                        call->runs && call->rows > 0 ? 1 : 0, call->runs ? INT32_MAX : 0, err));
    for (int32_t i = 0; i < call->count; i++)
        FFA_TRY(copy_tensor_init(&args->tensors[i], groups, &call->tensors[i], call->rows, err));
out:
    return rc;
}

ffa_status row_copy_check(const struct ffa_kernels *kernels, const struct row_copy_call *call,
                          ffa_error *err)
{
    struct row_copy_args args;
    int64_t groups;

    return copy_init(&args, &groups, kernels, call, err);
}

ffa_status row_copy_enqueue(const struct ffa_kernels *kernels, const struct row_copy_call *call,
                            ffa_stream stream, ffa_error *err)
{
    struct row_copy_args args;
    int64_t groups;
    ffa_status rc;

    FFA_TRY(copy_init(&args, &groups, kernels, call, err));
    rc = launch(call->runs ? kernels->row_copy_runs : kernels->row_copy, kernels, groups,
                ROW_COPY_BLOCKS, &args, stream, err);
out:
    return rc;
}

/* ---- reductions ---- */

/* Whether rows can be read and written in vectors of so many columns. */
static bool can_vectorise(const struct row_reduce_rows *rows, const struct row_reduce_types *types,
                          int32_t columns)
{
    const int64_t input = (int64_t)ffa_dtype_bytes(types->input);
    const int64_t received =
        (int64_t)ffa_dtype_bytes(types->received ? types->received : types->input);
    const int64_t output = (int64_t)ffa_dtype_bytes(types->output);
    const int64_t elements[] = {
        rows->columns,
        rows->own_token_stride,
        rows->received_token_stride,
        rows->out_token_stride,
        used_stride(rows->own_head_stride, rows->heads),
        used_stride(rows->received_head_stride, rows->heads),
        used_stride(rows->out_head_stride, rows->heads),
    };

    return all_divide(elements, sizeof elements / sizeof *elements, columns) &&
           (uintptr_t)rows->own % (uintptr_t)(columns * input) == 0 &&
           (uintptr_t)rows->received % (uintptr_t)(columns * received) == 0 &&
           (uintptr_t)rows->out % (uintptr_t)min64(16, columns * output) == 0;
}

/* Strides of a tensor that is not there do not count. */
static struct row_reduce_rows without_absent(const struct row_reduce_rows *rows)
{
    struct row_reduce_rows out = *rows;

    if (!rows->own)
        out.own_token_stride = out.own_head_stride = 0;
    if (!rows->received)
        out.received_token_stride = out.received_head_stride = 0;
    return out;
}

static ffa_status reduce_tensor_init(struct row_reduce_tensor *out, int64_t *groups,
                                     const struct row_reduce_rows *from,
                                     const struct row_reduce_types *types, int64_t row_count,
                                     ffa_error *err)
{
    const struct row_reduce_rows rows = without_absent(from);
    const int32_t columns = 16 / (int32_t)ffa_dtype_bytes(types->input);
    struct extent extent = { row_count, rows.columns, rows.heads, 1 };
    ffa_status rc;

    FFA_TRY(extent_check("row_reduce", row_count, rows.columns, rows.heads, err));
    if (row_count > 0 && ((!rows.own && types->op != ROW_REDUCE_SUM) || !rows.out)) {
        rc = error_fail(err, FFA_INVALID, 0, "row_reduce: %s is NULL, there are %lld rows",
                        rows.out ? "own" : "out", (long long)row_count);
        goto out;
    }
    if (can_vectorise(&rows, types, columns))
        extent.vector_columns = columns;
    *out = (struct row_reduce_tensor){
        .own = rows.own,
        .received = rows.received,
        .out = rows.out,
        .own_token_stride = rows.own_token_stride,
        .own_head_stride = rows.own_head_stride,
        .received_token_stride = rows.received_token_stride,
        .received_head_stride = rows.received_head_stride,
        .out_token_stride = rows.out_token_stride,
        .out_head_stride = rows.out_head_stride,
        .columns = extent.vector_columns,
    };
    rc = items_init(&out->items, groups, &extent, err);
out:
    return rc;
}

static ffa_status reduce_call_check(const struct row_reduce_call *call,
                                    const struct row_reduce_types *types, ffa_error *err)
{
    const bool is_lse = types->op == ROW_REDUCE_LSE;
    ffa_status rc;

    FFA_TRY(count_check("row_reduce", "count", call->count, 0, is_lse ? 1 : ROW_REDUCE_TENSORS_MAX,
                        err));
    FFA_TRY(count_check("row_reduce", "segment_count", call->segment_count, 0,
                        call->segments ? INT32_MAX : 0, err));
    if (is_lse && call->rows > 0 && (!call->lse.own || !call->lse.out))
        rc = error_fail(err, FFA_INVALID, 0, "row_reduce: %s of lse is NULL",
                        call->lse.own ? "out" : "own");
    else if (is_lse && call->rows > 0 && call->lse.own == call->lse.out)
        rc = error_fail(err, FFA_INVALID, 0,
                        "row_reduce: own and out of lse are both %p: a row's lse is read while "
                        "others write theirs",
                        (const void *)call->lse.own);
out:
    return rc;
}

/* What the kernel of a call was compiled for. */
static struct row_reduce_types types_of(const struct ffa_kernels *kernels,
                                        const struct row_reduce_call *call)
{
    return call->kernel ? call->types : own_types(kernels);
}

static ffa_status reduce_init(struct row_reduce_args *args, int64_t *groups,
                              const struct ffa_kernels *kernels, const struct row_reduce_call *call,
                              ffa_error *err)
{
    const struct row_reduce_types types = types_of(kernels, call);
    ffa_status rc;

    *groups = 0;
    *args = (struct row_reduce_args){
        .lse = call->lse,
        .segments = call->segments,
        .sources = (const long long *)call->sources,
        .segment_count = call->segment_count,
        .count = call->count,
    };
    if (!call->kernel && !kernels->row_reduce)
        return error_fail(err, FFA_UNSUPPORTED, 0, "row_reduce: the kernel was not loaded");
    FFA_TRY(reduce_call_check(call, &types, err));
    if (call->segments && call->segment_count == 0)
        return FFA_OK;
    for (int32_t i = 0; i < call->count; i++)
        FFA_TRY(reduce_tensor_init(&args->tensors[i], groups, &call->tensors[i], &types, call->rows,
                                   err));
out:
    return rc;
}

ffa_status row_reduce_check(const struct ffa_kernels *kernels, const struct row_reduce_call *call,
                            ffa_error *err)
{
    struct row_reduce_args args;
    int64_t groups;

    return reduce_init(&args, &groups, kernels, call, err);
}

ffa_status row_reduce_enqueue(const struct ffa_kernels *kernels, const struct row_reduce_call *call,
                              ffa_stream stream, ffa_error *err)
{
    const struct row_reduce_types types = types_of(kernels, call);
    struct row_reduce_args args;
    int64_t groups;
    ffa_status rc;

    FFA_TRY(reduce_init(&args, &groups, kernels, call, err));
    rc = launch(call->kernel ? call->kernel : kernels->row_reduce, kernels, groups,
                row_reduce_blocks((int)types.input, (int)types.op), &args, stream, err);
out:
    return rc;
}
