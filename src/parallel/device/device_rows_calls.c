/* SPDX-License-Identifier: Apache-2.0
 *
 * The calls of ffa_parallel_rows: tensors checked against the tables, and launches. Invariant:
 * whatever a launch or the communicator would refuse is refused before the first is enqueued.
 */
#include "parallel/device/device_rows.h"
#include "tensor/tensor.h"

/* ---- arguments ---- */

static ffa_status check_format(const ffa_row_format *format, ffa_error *err)
{
    const int32_t bytes = format ? format->element_bytes : 0;

    if (!format)
        return error_fail(err, FFA_INVALID, 0, "format is NULL");
    if (bytes != 1 && bytes != 2 && bytes != 4 && bytes != 8)
        return error_fail(err, FFA_INVALID, 0, "format: element_bytes is %d, not 1, 2, 4 or 8",
                          bytes);
    if (format->heads < 1)
        return error_fail(err, FFA_INVALID, 0, "format: heads is %d, not 1 or more", format->heads);
    if (format->columns < 1 || format->columns > INT32_MAX / format->heads / bytes)
        return error_fail(err, FFA_INVALID, 0,
                          "format: columns is %lld, times %d heads of %d bytes not in [1, %d]",
                          (long long)format->columns, format->heads, bytes, INT32_MAX);
    return FFA_OK;
}

static ffa_status check_uploaded(const ffa_parallel_rows *rows, ffa_error *err)
{
    if (!rows)
        return error_fail(err, FFA_INVALID, 0, "rows is NULL");
    if (!rows->buffer)
        return error_fail(err, FFA_INVALID, 0,
                          "the rows were not uploaded (ffa_parallel_rows_upload)");
    return FFA_OK;
}

static ffa_dtype dtype_of(const ffa_tensor *tensor, int32_t element_bytes)
{
    const ffa_dtype known = (ffa_dtype)tensor->dtype;

    if (known && (int32_t)ffa_dtype_bytes(known) == element_bytes)
        return known;
    return element_bytes == 8 ? FFA_FP64 : element_bytes == 4 ? FFA_FP32 : FFA_BF16;
}

/* *out: the tensor with its strides resolved. Elements of one byte are of no dtype, and may be
 * anywhere. */
static ffa_status view_init(ffa_tensor *out, const ffa_row_format *format, const ffa_tensor *tensor,
                            int64_t tokens, const char *name, bool is_output, ffa_error *err)
{
    const uintptr_t odd = format->element_bytes == 1 && tensor ? (uintptr_t)tensor->data % 2 : 0;
    const struct tensor_rule rule = { .tensor = out,
                                      .name = name,
                                      .tokens = tokens,
                                      .heads = format->heads,
                                      .head_dim = format->columns,
                                      .dtype = tensor ? dtype_of(tensor, format->element_bytes)
                                                      : FFA_BF16,
                                      .is_output = is_output };
    ffa_status rc;

    if (!tensor)
        return error_fail(err, FFA_INVALID, 0, "%s is NULL", name);
    *out = *tensor;
    if (odd)
        out->data = (unsigned char *)out->data + 1;
    FFA_TRY(tensors_check(&rule, 1, err));
    out->data = tensor->data;
out:
    return rc;
}

struct views {
    ffa_tensor whole, local;
    struct wire wire;
};

/* whole_rows: of the tensor named by whole_name. */
static ffa_status views_init(struct views *out, const ffa_parallel_rows *rows,
                             const ffa_row_format *format, const ffa_tensor *whole,
                             const ffa_tensor *local, bool is_local_output, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(check_uploaded(rows, err));
    FFA_TRY(check_format(format, err));
    wire_init(&out->wire, format->heads, format->columns, format->element_bytes,
              format->element_bytes, false);
    FFA_TRY(view_init(&out->whole, format, whole, rows->tokens, "whole", !is_local_output, err));
    rc = view_init(&out->local, format, local, rows->local_rows, "local", is_local_output, err);
out:
    return rc;
}

/* ---- facts ---- */

static bool can_reduce(const ffa_parallel_rows *rows, const ffa_row_format *format)
{
    return rows->kernels->ops[FFA_REDUCE_SUM] &&
           (int32_t)ffa_dtype_bytes(rows->kernels->dtype) == format->element_bytes;
}

static void reduce_wire(struct wire *wire, const ffa_parallel_rows *rows,
                        const ffa_row_format *format)
{
    wire_init(wire, format->heads, format->columns, format->element_bytes,
              (int32_t)ffa_dtype_bytes(rows->kernels->wire), false);
}

ffa_status ffa_parallel_rows_info_get(const ffa_parallel_rows *rows, const ffa_row_format *format,
                                      ffa_parallel_rows_info *out, ffa_error *err)
{
    ffa_parallel_rows_info info = FFA_PARALLEL_ROWS_INFO_INIT;
    struct wire wire;
    ffa_status rc;

    if (!rows || !out)
        return error_fail(err, FFA_INVALID, 0, "%s is NULL", rows ? "out" : "rows");
    FFA_TRY(check_format(format, err));
    wire_init(&wire, format->heads, format->columns, format->element_bytes, format->element_bytes,
              false);
    info.whole_rows = rows->tokens;
    info.local_rows = rows->local_rows;
    info.upload_bytes = rows->image_bytes;
    info.undispatch_bytes = wire_room_of(&wire, &rows->undispatch, false).bytes;
    info.roll_bytes = wire_room_of(&wire, &rows->roll, false).bytes;
    info.direct_bytes = wire_room_direct(&wire, &rows->roll).bytes;
    if (can_reduce(rows, format)) {
        reduce_wire(&wire, rows, format);
        info.reduce_bytes = wire_room_of(&wire, &rows->reduce, true).bytes;
    }
    rc = opts_export(out, &info, sizeof info, err);
out:
    return rc;
}

/* ---- local calls ---- */

static ffa_status copy_rows(const ffa_parallel_rows *rows, const struct row_copy_call *call,
                            ffa_stream stream, ffa_error *err)
{
    return call->rows > 0 ? row_copy_enqueue(&rows->kernels->copy, call, stream, err) : FFA_OK;
}

static struct row_copy_call fill_of(const ffa_parallel_rows *rows, const struct wire *wire,
                                    const ffa_tensor *to, const struct run_table *runs,
                                    uint64_t fill)
{
    struct row_copy_call call = row_copy_of(wire, to, to, rows->buffer, runs);

    call.tensors[0].from = NULL;
    call.tensors[0].is_fill = true;
    call.tensors[0].fill = fill;
    return call;
}

ffa_status ffa_parallel_rows_position_ids(const ffa_parallel_rows *rows, int64_t *ids,
                                          ffa_stream stream, ffa_error *err)
{
    const ffa_row_format format = { .element_bytes = sizeof *ids, .heads = 1, .columns = 1 };
    const ffa_tensor none = { .token_stride = 1, .head_stride = 1 };
    const ffa_tensor to = FFA_TENSOR_INIT(ids);
    struct row_copy_call call;
    struct wire wire;
    ffa_tensor view;
    ffa_status rc;

    FFA_TRY(check_uploaded(rows, err));
    FFA_TRY(view_init(&view, &format, &to, rows->local_rows, "ids", true, err));
    wire_init(&wire, 1, 1, format.element_bytes, format.element_bytes, false);
    call = row_copy_of(&wire, &none, &view, rows->buffer, &rows->gather);
    rc = copy_rows(rows, &call, stream, err);
out:
    return rc;
}

ffa_status ffa_parallel_rows_dispatch(const ffa_parallel_rows *rows, const ffa_row_format *format,
                                      const ffa_tensor *whole, const ffa_tensor *local,
                                      ffa_stream stream, ffa_error *err)
{
    struct row_copy_call call;
    struct views views;
    ffa_status rc;

    FFA_TRY(views_init(&views, rows, format, whole, local, true, err));
    call = row_copy_of(&views.wire, &views.whole, &views.local, rows->buffer, &rows->gather);
    rc = copy_rows(rows, &call, stream, err);
out:
    return rc;
}

ffa_status ffa_parallel_rows_dispatch_rolled(const ffa_parallel_rows *rows,
                                             const ffa_row_format *format, const ffa_tensor *whole,
                                             const ffa_tensor *local, const uint64_t *fill,
                                             ffa_stream stream, ffa_error *err)
{
    struct row_copy_call call;
    struct views views;
    ffa_status rc;

    FFA_TRY(views_init(&views, rows, format, whole, local, true, err));
    call = row_copy_of(&views.wire, &views.whole, &views.local, rows->buffer, &rows->rolled);
    FFA_TRY(copy_rows(rows, &call, stream, err));
    if (!fill)
        goto out;
    call = fill_of(rows, &views.wire, &views.local, &rows->outside, *fill);
    rc = copy_rows(rows, &call, stream, err);
out:
    return rc;
}

ffa_status ffa_parallel_rows_scatter(const ffa_parallel_rows *rows, const ffa_row_format *format,
                                     const ffa_tensor *local, const ffa_tensor *whole,
                                     uint32_t flags, ffa_stream stream, ffa_error *err)
{
    struct row_copy_call call;
    struct views views;
    ffa_status rc;

    if (flags & ~FFA_ROWS_CLEAR)
        return error_fail(err, FFA_UNSUPPORTED, 0, "flags is 0x%x, known are 0x%x", flags,
                          FFA_ROWS_CLEAR);
    FFA_TRY(views_init(&views, rows, format, whole, local, false, err));
    call = row_copy_of(&views.wire, &views.local, &views.whole, rows->buffer, &rows->scatter);
    FFA_TRY(copy_rows(rows, &call, stream, err));
    if (!(flags & FFA_ROWS_CLEAR))
        goto out;
    call = fill_of(rows, &views.wire, &views.whole, &rows->others, 0);
    rc = copy_rows(rows, &call, stream, err);
out:
    return rc;
}

/* ---- collective calls ---- */

enum { WORDS_MAX = 128 };

/* Everything that ranks must do alike. */
static void say_call(char words[WORDS_MAX], const char *what, const ffa_parallel_rows *rows,
                     const struct wire *wire)
{
    text_format(words, WORDS_MAX, "%s of rows %s, %d x %lld of %d bytes, on the wire %d", what,
                rows->digest, wire->heads, (long long)wire->columns, wire->element_bytes,
                wire->wire_bytes);
}

/* to: what is written. */
static ffa_status open_call(struct exchange_call *call, const ffa_parallel_rows *rows,
                            struct exchange *exchange, const struct wire *wire,
                            const ffa_tensor *to, ffa_comm *comm, ffa_error *err)
{
    const bool is_added = exchange == &rows->reduce;

    call->exchange = exchange;
    call->kernels = rows->kernels;
    call->wire = wire;
    call->buffer = rows->buffer;
    call->room = !is_added && wire_is_direct(wire, to) ? wire_room_direct(wire, exchange)
                                                       : wire_room_of(wire, exchange, is_added);
    return exchange_open(call, comm, err);
}

ffa_status ffa_parallel_rows_undispatch(ffa_parallel_rows *rows, ffa_comm *comm,
                                        const ffa_row_format *format, const ffa_tensor *local,
                                        const ffa_tensor *whole, ffa_stream stream, ffa_error *err)
{
    char words[WORDS_MAX];
    struct exchange_call call = { .stream = stream, .words = words, .name = "undispatch" };
    struct views views;
    ffa_status rc;

    FFA_TRY(views_init(&views, rows, format, whole, local, false, err));
    FFA_TRY(open_call(&call, rows, &rows->undispatch, &views.wire, &views.whole, comm, err));
    say_call(words, "undispatch", rows, &views.wire);
    exchange_publish(&call, &views.local, NULL);
    exchange_place(&call, &views.local, &views.whole, NULL);
    rc = exchange_run(&call, err);
out:
    return rc;
}

ffa_status ffa_parallel_rows_roll(ffa_parallel_rows *rows, ffa_comm *comm,
                                  const ffa_row_format *format, const ffa_tensor *local,
                                  const ffa_tensor *output, const uint64_t *fill, ffa_stream stream,
                                  ffa_error *err)
{
    char words[WORDS_MAX];
    struct exchange_call call = { .stream = stream, .words = words, .name = "roll" };
    ffa_tensor from, to;
    struct wire wire;
    ffa_status rc;

    FFA_TRY(check_uploaded(rows, err));
    FFA_TRY(check_format(format, err));
    wire_init(&wire, format->heads, format->columns, format->element_bytes, format->element_bytes,
              false);
    FFA_TRY(view_init(&from, format, local, rows->local_rows, "local", false, err));
    FFA_TRY(view_init(&to, format, output, rows->local_rows, "output", true, err));
    FFA_TRY(open_call(&call, rows, &rows->roll, &wire, &to, comm, err));
    say_call(words, fill ? "roll with a fill" : "roll", rows, &wire);
    exchange_publish(&call, &from, NULL);
    exchange_place(&call, &from, &to, NULL);
    if (fill)
        exchange_fill(&call, &to, &rows->outside, *fill);
    rc = exchange_run(&call, err);
out:
    return rc;
}

static ffa_status check_reduce(const ffa_parallel_rows *rows, const ffa_row_format *format,
                               const ffa_tensor *whole, const ffa_tensor *local, ffa_error *err)
{
    const ffa_row_kernels *kernels = rows->kernels;
    const ffa_tensor *const tensors[] = { whole, local };

    if (!kernels->ops[FFA_REDUCE_SUM])
        return error_fail(err, FFA_INVALID, 0, "the kernels were made without FFA_ROW_KERNELS_SUM");
    if (!can_reduce(rows, format))
        return error_fail(err, FFA_INVALID, 0,
                          "format: element_bytes is %d, the kernels add rows of dtype %d",
                          format->element_bytes, (int)kernels->dtype);
    for (int i = 0; i < 2; i++)
        if (tensors[i]->dtype && tensors[i]->dtype != (int32_t)kernels->dtype)
            return error_fail(err, FFA_INVALID, 0, "%s: dtype is %d, that of the kernels %d",
                              i ? "local" : "whole", tensors[i]->dtype, (int)kernels->dtype);
    return FFA_OK;
}

ffa_status ffa_parallel_rows_reduce(ffa_parallel_rows *rows, ffa_comm *comm,
                                    const ffa_row_format *format, const ffa_tensor *whole,
                                    const ffa_tensor *local, ffa_stream stream, ffa_error *err)
{
    char words[WORDS_MAX];
    struct exchange_call call = { .stream = stream, .words = words, .name = "reduce" };
    struct views views;
    ffa_status rc;

    FFA_TRY(views_init(&views, rows, format, whole, local, true, err));
    FFA_TRY(check_reduce(rows, format, &views.whole, &views.local, err));
    reduce_wire(&views.wire, rows, format);
    FFA_TRY(open_call(&call, rows, &rows->reduce, &views.wire, &views.local, comm, err));
    say_call(words, "reduce", rows, &views.wire);
    exchange_publish(&call, &views.whole, NULL);
    exchange_add(&call, FFA_REDUCE_SUM, NULL, &views.local, NULL);
    rc = exchange_run(&call, err);
out:
    return rc;
}
