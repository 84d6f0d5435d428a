/* SPDX-License-Identifier: Apache-2.0
 *
 * What an exchange launches: rows into the window, out of it, and added in it. Invariant: every row
 * that is added has been rounded to the dtype that rows travel in, a rank's own too, so that
 * results do not depend on where a row was computed.
 */
#include "parallel/device/exchange.h"

#include "tensor/tensor.h"

/* ---- launches ---- */

static void add_copy(struct row_launch *launches, int *count, const struct row_copy_call *call)
{
    assert(*count < EXCHANGE_LAUNCHES);
    if (call->rows > 0)
        launches[(*count)++] = (struct row_launch){ .is_reduce = false, .as.copy = *call };
}

static void add_reduce(struct row_launch *launches, int *count, const struct row_reduce_call *call)
{
    assert(*count < EXCHANGE_LAUNCHES);
    if (call->rows > 0)
        launches[(*count)++] = (struct row_launch){ .is_reduce = true, .as.reduce = *call };
}

/* ---- views ---- */

static unsigned char *window_at(const struct exchange_call *call, int64_t at)
{
    return call->window ? call->window + at : NULL;
}

/* Rows of the window, in elements of the wire. */
static ffa_tensor wire_rows(const struct exchange_call *call)
{
    ffa_tensor tensor = FFA_TENSOR_INIT(call->window);

    tensor.token_stride = call->wire->row_bytes / call->wire->wire_bytes;
    tensor.head_stride = call->wire->columns;
    return tensor;
}

/* Packed rows in the window, of fp32. */
static ffa_tensor wide_rows(const struct exchange_call *call)
{
    ffa_tensor tensor = FFA_TENSOR_INIT(window_at(call, call->room.wide_at));

    tensor.token_stride = call->wire->heads * call->wire->columns;
    tensor.head_stride = call->wire->columns;
    return tensor;
}

/* lse as rows of [1][heads]. */
static struct row_copy_rows lse_rows(const struct wire *wire, const void *from, int64_t from_stride,
                                     void *to, int64_t to_stride)
{
    return (struct row_copy_rows){ .from = from,
                                   .to = to,
                                   .from_token_stride = from_stride,
                                   .from_head_stride = wire->heads,
                                   .to_token_stride = to_stride,
                                   .to_head_stride = wire->heads,
                                   .columns = wire->heads,
                                   .heads = 1,
                                   .element_bytes = (int32_t)sizeof(float) };
}

static int64_t lse_stride(const struct wire *wire)
{
    return wire->row_bytes / (int64_t)sizeof(float);
}

struct row_copy_call row_copy_of(const struct wire *wire, const ffa_tensor *from,
                                 const ffa_tensor *to, const unsigned char *buffer,
                                 const struct run_table *runs)
{
    return (struct row_copy_call){
        .tensors = { { .from = from->data,
                       .to = to->data,
                       .from_token_stride = from->token_stride,
                       .from_head_stride = from->head_stride,
                       .to_token_stride = to->token_stride,
                       .to_head_stride = to->head_stride,
                       .columns = wire->columns,
                       .heads = wire->heads,
                       .element_bytes = wire->element_bytes } },
        .count = 1,
        .run_count = (int32_t)runs->count,
        .rows = runs->rows,
        .runs = (const struct row_run *)(const void *)(buffer + runs->at),
    };
}

/* Without a table: rows [0, rows) to [0, rows). */
static struct row_copy_call all_rows_of(struct row_copy_call call, int64_t rows)
{
    call.runs = NULL;
    call.run_count = 0;
    call.rows = rows;
    return call;
}

/* Rows [0, rows) in another dtype. */
static struct row_reduce_call cast_of(const struct exchange_call *call, const ffa_tensor *from,
                                      const ffa_tensor *to, int64_t rows, bool is_narrow)
{
    const ffa_row_kernels *kernels = call->kernels;

    return (struct row_reduce_call){
        .kernel = is_narrow ? kernels->narrow : kernels->widen,
        .types = { is_narrow ? kernels->dtype : kernels->wire,
                   is_narrow ? kernels->wire : kernels->dtype, ROW_REDUCE_SUM, 0 },
        .tensors = { { .own = from->data,
                       .out = to->data,
                       .own_token_stride = from->token_stride,
                       .own_head_stride = from->head_stride,
                       .out_token_stride = to->token_stride,
                       .out_head_stride = to->head_stride,
                       .columns = call->wire->columns,
                       .heads = call->wire->heads } },
        .count = 1,
        .rows = rows,
    };
}

/* ---- into the window ---- */

static bool is_narrowed(const struct wire *wire)
{
    return wire->wire_bytes != wire->element_bytes;
}

static void publish_narrow(struct exchange_call *call, const ffa_tensor *from)
{
    const struct exchange *x = call->exchange;
    const ffa_tensor to = wire_rows(call), wide = wide_rows(call);
    struct row_reduce_call cast = cast_of(call, from, &to, x->published_rows, true);

    if (x->publish.count > 0) {
        const struct row_copy_call copy =
            row_copy_of(call->wire, from, &wide, call->buffer, &x->publish);

        add_copy(call->publish, &call->publish_count, &copy);
        cast = cast_of(call, &wide, &to, x->published_rows, true);
    }
    add_reduce(call->publish, &call->publish_count, &cast);
}

void exchange_publish(struct exchange_call *call, const ffa_tensor *from, const float *lse)
{
    const struct exchange *x = call->exchange;
    const struct wire *wire = call->wire;
    const ffa_tensor to = wire_rows(call);
    struct row_copy_call copy = row_copy_of(wire, from, &to, call->buffer, &x->publish);

    if (x->publish.count == 0)
        copy = all_rows_of(copy, x->published_rows);
    if (is_narrowed(wire)) {
        publish_narrow(call, from);
        copy.count = 0;
    }
    if (wire->has_lse)
        copy.tensors[copy.count++] =
            lse_rows(wire, lse, wire->heads, window_at(call, wire->lse_at), lse_stride(wire));
    if (copy.count > 0)
        add_copy(call->publish, &call->publish_count, &copy);
}

/* ---- out of the window ---- */

/* The others' rows are pulled to where they belong. */
static void place_own(struct exchange_call *call, const ffa_tensor *from, const ffa_tensor *to)
{
    const struct row_copy_call copy =
        row_copy_of(call->wire, from, to, call->buffer, &call->exchange->own);

    call->direct = to->data;
    add_copy(call->own, &call->own_count, &copy);
}

void exchange_place(struct exchange_call *call, const ffa_tensor *from, const ffa_tensor *to,
                    float *lse)
{
    const struct wire *wire = call->wire;
    const ffa_tensor rows = wire_rows(call);
    struct row_copy_call copy = row_copy_of(wire, &rows, to, call->buffer, &call->exchange->place);

    if (wire_is_direct(wire, to)) {
        place_own(call, from, to);
        return;
    }
    if (wire->has_lse)
        copy.tensors[copy.count++] =
            lse_rows(wire, window_at(call, wire->lse_at), lse_stride(wire), lse, wire->heads);
    add_copy(call->take, &call->take_count, &copy);
}

void exchange_fill(struct exchange_call *call, const ffa_tensor *to, const struct run_table *runs,
                   uint64_t fill)
{
    struct row_copy_call copy = row_copy_of(call->wire, to, to, call->buffer, runs);

    copy.tensors[0].from = NULL;
    copy.tensors[0].is_fill = true;
    copy.tensors[0].fill = fill;
    add_copy(call->take, &call->take_count, &copy);
}

/* ---- sums ---- */

/* The accumulators' lse is read while the result's is written: it is copied first. */
static void keep_lse(struct exchange_call *call, const float *lse)
{
    const struct wire *wire = call->wire;
    const struct row_copy_call copy = {
        .tensors = { lse_rows(wire, lse, wire->heads, window_at(call, call->room.lse_at),
                              wire->heads) },
        .count = 1,
        .rows = call->exchange->output_rows,
    };

    add_copy(call->take, &call->take_count, &copy);
}

static struct row_reduce_lse reduce_lse(const struct exchange_call *call, float *lse)
{
    const struct wire *wire = call->wire;

    return (struct row_reduce_lse){
        .own = (const float *)(const void *)window_at(call, call->room.lse_at),
        .received = (const float *)(const void *)window_at(call, wire->lse_at),
        .out = lse,
        .own_token_stride = wire->heads,
        .own_head_stride = 1,
        .received_token_stride = lse_stride(wire),
        .received_head_stride = 1,
        .out_token_stride = wire->heads,
        .out_head_stride = 1,
    };
}

/* What is added, in the dtype that it is added in. */
static ffa_tensor added_rows(struct exchange_call *call)
{
    const ffa_tensor rows = wire_rows(call), wide = wide_rows(call);
    struct row_reduce_call cast;

    if (!is_narrowed(call->wire))
        return rows;
    cast = cast_of(call, &rows, &wide, call->exchange->window_rows, false);
    add_reduce(call->take, &call->take_count, &cast);
    return wide;
}

static void add_rows(struct exchange_call *call, ffa_reduce_op op, const ffa_tensor *own,
                     const ffa_tensor *to, float *lse)
{
    const struct exchange *x = call->exchange;
    const struct wire *wire = call->wire;
    const ffa_tensor added = added_rows(call);
    const int64_t own_at = x->own_row * added.token_stride * wire->element_bytes;
    struct row_reduce_call reduce = {
        .kernel = call->kernels->ops[op],
        .types = row_kernels_types(call->kernels, op),
        .tensors = { { .own = own ? own->data : (unsigned char *)added.data + own_at,
                       .received = added.data,
                       .out = to->data,
                       .own_token_stride = own ? own->token_stride : added.token_stride,
                       .own_head_stride = own ? own->head_stride : added.head_stride,
                       .received_token_stride = added.token_stride,
                       .received_head_stride = added.head_stride,
                       .out_token_stride = to->token_stride,
                       .out_head_stride = to->head_stride,
                       .columns = wire->columns,
                       .heads = wire->heads } },
        .count = 1,
        .segment_count = (int32_t)x->segment_count,
        .rows = x->output_rows,
        .segments = (const struct row_segment *)(const void *)(call->buffer + x->segments_at),
        .sources = (const int64_t *)(const void *)(call->buffer + x->added_at),
    };

    if (wire->has_lse) {
        keep_lse(call, lse);
        reduce.lse = reduce_lse(call, lse);
    }
    add_reduce(call->take, &call->take_count, &reduce);
}

void exchange_add(struct exchange_call *call, ffa_reduce_op op, const ffa_tensor *own,
                  const ffa_tensor *to, float *lse)
{
    if (call->exchange->segment_count > 0)
        add_rows(call, op, own, to, lse);
}
