/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa_group_device: group cast and group reduce on GPUs. Both are exchanges, one with the copies
 * that a rank receives, one with those that it sends, backwards. Invariant: their tables depend on
 * the group alone.
 */
#include "base/digest.h"
#include "parallel/device/exchange.h"
#include "parallel/run/group.h"
#include "service/context.h"

struct ffa_group_device {
    const ffa_row_kernels *kernels;
    int64_t input_rows, output_rows;
    struct exchange cast, reduce;
    char digest[DIGEST_TEXT]; /* of the group */
    unsigned char *image;     /* what is uploaded, [image_bytes] */
    int64_t image_bytes;
    unsigned char *buffer; /* of the upload; NULL: there was none */
};

/* ---- tables ---- */

static int compare_moves(const void *a, const void *b)
{
    const struct row_move *x = a, *y = b;

    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    return (x->to > y->to) - (x->to < y->to);
}

/* The rank's copies in a table. */
static ffa_status add_moves(struct move_list *out, const struct group_table *table, int32_t rank,
                            bool is_reduce, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    for (int64_t i = table->begin[rank]; i < table->begin[rank + 1]; i++) {
        const ffa_group_copy *copy = &table->copies[i];
        const struct row_move move = { .from = is_reduce ? copy->output_row : copy->input_row,
                                       .to = is_reduce ? copy->input_row : copy->output_row,
                                       .rows = copy->rows,
                                       .rank = copy->rank };

        FFA_TRY(move_list_add(out, &move, err));
    }
    if (out->count > 0)
        qsort(out->moves, (size_t)out->count, sizeof *out->moves, compare_moves);
out:
    return rc;
}

static ffa_status build_exchange(struct exchange *out, const ffa_group *group, int32_t rank,
                                 bool is_reduce, ffa_error *err)
{
    const struct group_table *receives = is_reduce ? &group->sends : &group->receives;
    const struct group_table *sends = is_reduce ? &group->receives : &group->sends;
    const ffa_group_size *size = &group->sizes[rank];
    bool *is_reader = mem_array((size_t)group->rank_count, sizeof *is_reader);
    struct move_list list = { 0 };
    ffa_status rc = FFA_OK;

    if (!is_reader) {
        rc = error_nomem(err, "a group");
        goto out;
    }
    for (int64_t i = sends->begin[rank]; i < sends->begin[rank + 1]; i++)
        is_reader[sends->copies[i].rank] = true;
    FFA_TRY(add_moves(&list, receives, rank, is_reduce, err));
    rc = exchange_build(
        out,
        &(struct exchange_plan){ .rank = rank,
                                 .rank_count = group->rank_count,
                                 .published_rows = is_reduce ? size->output_rows : size->input_rows,
                                 .output_rows = is_reduce ? size->input_rows : size->output_rows,
                                 .moves = &list,
                                 .is_reader = is_reader,
                                 .is_added = is_reduce },
        err);
out:
    move_list_finish(&list);
    mem_free(is_reader);
    return rc;
}

/* Equal on all ranks of a group. */
static void identify(ffa_group_device *device, const ffa_group *group)
{
    struct digest digest;

    digest_init(&digest);
    digest_number(&digest, group->rank_count);
    for (int32_t r = 0; r < group->rank_count; r++)
        for (int64_t i = group->receives.begin[r]; i < group->receives.begin[r + 1]; i++) {
            const ffa_group_copy *copy = &group->receives.copies[i];
            const int64_t numbers[] = { r, copy->rank, copy->input_row, copy->output_row,
                                        copy->rows };

            digest_field(&digest, numbers, sizeof numbers);
        }
    digest_final(&digest, device->digest);
}

static ffa_status build_image(ffa_group_device *device, ffa_error *err)
{
    struct upload upload = { 0 };
    ffa_status rc;

    FFA_TRY(exchange_upload(&device->cast, &upload, err));
    FFA_TRY(exchange_upload(&device->reduce, &upload, err));
    device->image_bytes = upload.end;
    device->image = mem_array((size_t)upload.end, 1);
    if (!device->image) {
        rc = error_nomem(err, "the tables of a group");
        goto out;
    }
    upload = (struct upload){ .bytes = device->image };
    FFA_TRY(exchange_upload(&device->cast, &upload, err));
    rc = exchange_upload(&device->reduce, &upload, err);
out:
    return rc;
}

/* ---- the object ---- */

ffa_status ffa_group_device_create(ffa_group_device **out, const ffa_group *group, int32_t rank,
                                   const ffa_row_kernels *kernels, ffa_error *err)
{
    ffa_group_device *device = NULL;
    ffa_status rc;

    if (!out)
        return error_fail(err, FFA_INVALID, 0, "ffa_group_device_create: out is NULL");
    *out = NULL;
    if (!group || !kernels)
        return error_fail(err, FFA_INVALID, 0, "ffa_group_device_create: %s is NULL",
                          group ? "kernels" : "group");
    if (rank < 0 || rank >= group->rank_count)
        return error_fail(err, FFA_INVALID, 0, "rank is %d, not in [0, %d)", rank,
                          group->rank_count);
    device = mem_array(1, sizeof *device);
    if (!device) {
        rc = error_nomem(err, "a group");
        goto out;
    }
    device->kernels = kernels;
    device->input_rows = group->sizes[rank].input_rows;
    device->output_rows = group->sizes[rank].output_rows;
    identify(device, group);
    FFA_TRY(build_exchange(&device->cast, group, rank, false, err));
    FFA_TRY(build_exchange(&device->reduce, group, rank, true, err));
    FFA_TRY(exchange_prepare(&device->cast, kernels->copy.context->gpu, err));
    FFA_TRY(exchange_prepare(&device->reduce, kernels->copy.context->gpu, err));
    FFA_TRY(build_image(device, err));
    *out = device;
    device = NULL;
out:
    ffa_group_device_destroy(device);
    return rc;
}

void ffa_group_device_destroy(ffa_group_device *device)
{
    if (!device)
        return;
    exchange_finish(&device->cast);
    exchange_finish(&device->reduce);
    mem_free(device->image);
    mem_free(device);
}

ffa_status ffa_group_device_upload(ffa_group_device *device, void *buffer, ffa_stream stream,
                                   ffa_error *err)
{
    ffa_status rc = FFA_OK;

    if (!device)
        return error_fail(err, FFA_INVALID, 0, "ffa_group_device_upload: device is NULL");
    if (!buffer || (uintptr_t)buffer % 256)
        return error_fail(err, FFA_INVALID, 0,
                          "ffa_group_device_upload: buffer is %p, not 256-byte aligned", buffer);
    if (device->image_bytes > 0)
        FFA_TRY(gpu_upload_enqueue(device->kernels->copy.context->gpu, buffer, device->image,
                                   device->image_bytes, stream, err));
    device->buffer = buffer;
out:
    return rc;
}

/* ---- arguments ---- */

static ffa_status check_format(const ffa_group_format *format, ffa_error *err)
{
    int64_t bytes;

    if (!format)
        return error_fail(err, FFA_INVALID, 0, "format is NULL");
    bytes = (int64_t)ffa_dtype_bytes((ffa_dtype)format->dtype);
    if (bytes == 0)
        return error_fail(err, FFA_INVALID, 0, "format: dtype is %d, not in [1, 4]", format->dtype);
    if (format->heads < 1 || format->head_dim < 1 ||
        format->head_dim > INT32_MAX / format->heads / bytes)
        return error_fail(err, FFA_INVALID, 0, "format: %d heads of %lld elements of %lld bytes",
                          format->heads, (long long)format->head_dim, (long long)bytes);
    return FFA_OK;
}

static ffa_status check_flags(uint32_t flags, ffa_error *err)
{
    if (flags & ~FFA_GROUP_LSE)
        return error_fail(err, FFA_UNSUPPORTED, 0, "flags is 0x%x, known are 0x%x", flags,
                          FFA_GROUP_LSE);
    return FFA_OK;
}

static ffa_status check_buffer(const char *name, const char *part, const void *buffer,
                               size_t element_bytes, int64_t rows, ffa_error *err)
{
    if (!buffer && rows > 0)
        return error_fail(err, FFA_INVALID, 0, "the %s of the %s buffer of %lld rows is NULL", part,
                          name, (long long)rows);
    if ((uintptr_t)buffer % element_bytes)
        return error_fail(err, FFA_INVALID, 0,
                          "the %s of the %s buffer is %p, not %zu-byte aligned", part, name, buffer,
                          element_bytes);
    return FFA_OK;
}

static ffa_status check_object(const ffa_group_device *device, const void *from, const void *to,
                               ffa_error *err)
{
    if (!device || !from || !to)
        return error_fail(err, FFA_INVALID, 0, "%s is NULL",
                          !device ? "device"
                          : !from ? "the source"
                                  : "the target");
    if (!device->buffer)
        return error_fail(err, FFA_INVALID, 0,
                          "the group was not uploaded (ffa_group_device_upload)");
    return FFA_OK;
}

static ffa_tensor tensor_of(const ffa_group_format *format, const void *data)
{
    ffa_tensor tensor = FFA_TENSOR_INIT((void *)(uintptr_t)data);

    tensor.token_stride = format->heads * format->head_dim;
    tensor.head_stride = format->head_dim;
    return tensor;
}

static struct wire wire_of(const ffa_group_device *device, const ffa_group_format *format,
                           bool is_reduce, bool has_lse)
{
    const int32_t bytes = (int32_t)ffa_dtype_bytes((ffa_dtype)format->dtype);
    struct wire wire;

    wire_init(&wire, format->heads, format->head_dim, bytes,
              is_reduce ? (int32_t)ffa_dtype_bytes(device->kernels->wire) : bytes, has_lse);
    return wire;
}

static struct wire_room room_of(const ffa_group_device *device, const ffa_group_format *format,
                                const struct wire *wire, bool is_reduce)
{
    const ffa_tensor packed = tensor_of(format, NULL);

    if (is_reduce)
        return wire_room_of(wire, &device->reduce, true);
    return wire_is_direct(wire, &packed) ? wire_room_direct(wire, &device->cast)
                                         : wire_room_of(wire, &device->cast, false);
}

ffa_status ffa_group_device_info_get(const ffa_group_device *device, const ffa_group_format *format,
                                     uint32_t flags, ffa_group_device_info *out, ffa_error *err)
{
    ffa_group_device_info info = FFA_GROUP_DEVICE_INFO_INIT;
    struct wire wire;
    ffa_status rc;

    if (!device || !out)
        return error_fail(err, FFA_INVALID, 0, "%s is NULL", device ? "out" : "device");
    FFA_TRY(check_format(format, err));
    FFA_TRY(check_flags(flags, err));
    info.upload_bytes = device->image_bytes;
    wire = wire_of(device, format, false, flags & FFA_GROUP_LSE);
    info.cast_bytes = room_of(device, format, &wire, false).bytes;
    if (device->kernels->dtype == (ffa_dtype)format->dtype) {
        wire = wire_of(device, format, true, flags & FFA_GROUP_LSE);
        info.reduce_bytes = room_of(device, format, &wire, true).bytes;
    }
    rc = opts_export(out, &info, sizeof info, err);
out:
    return rc;
}

/* ---- calls ---- */

enum { WORDS_MAX = 128 };

static ffa_status open_call(struct exchange_call *call, ffa_group_device *device,
                            const ffa_group_format *format, const struct wire *wire, ffa_comm *comm,
                            ffa_error *err)
{
    call->kernels = device->kernels;
    call->wire = wire;
    call->buffer = device->buffer;
    call->room = room_of(device, format, wire, call->exchange == &device->reduce);
    return exchange_open(call, comm, err);
}

ffa_status ffa_group_cast(ffa_group_device *device, ffa_comm *comm, const ffa_group_format *format,
                          uint32_t flags, const ffa_group_source *input,
                          const ffa_group_target *output, ffa_stream stream, ffa_error *err)
{
    const bool has_lse = flags & FFA_GROUP_LSE;
    char words[WORDS_MAX];
    struct exchange_call call = { .stream = stream, .words = words, .name = "group cast" };
    ffa_tensor from, to;
    struct wire wire;
    ffa_status rc;

    FFA_TRY(check_object(device, input, output, err));
    FFA_TRY(check_format(format, err));
    FFA_TRY(check_flags(flags, err));
    wire = wire_of(device, format, false, has_lse);
    FFA_TRY(check_buffer("input", "data", input->data, (size_t)wire.element_bytes,
                         device->input_rows, err));
    FFA_TRY(check_buffer("output", "data", output->data, (size_t)wire.element_bytes,
                         device->output_rows, err));
    if (has_lse) {
        FFA_TRY(check_buffer("input", "lse", input->lse, sizeof(float), device->input_rows, err));
        FFA_TRY(
            check_buffer("output", "lse", output->lse, sizeof(float), device->output_rows, err));
    }
    call.exchange = &device->cast;
    FFA_TRY(open_call(&call, device, format, &wire, comm, err));
    text_copy(words, "cast of group %s, %d x %lld of %d bytes, lse %d", device->digest, wire.heads,
              (long long)wire.columns, wire.element_bytes, has_lse);
    from = tensor_of(format, input->data);
    to = tensor_of(format, output->data);
    exchange_publish(&call, &from, input->lse);
    exchange_place(&call, &from, &to, output->lse);
    rc = exchange_run(&call, err);
out:
    return rc;
}

static ffa_status check_op(const ffa_group_device *device, const ffa_group_format *format,
                           ffa_reduce_op op, ffa_error *err)
{
    const ffa_row_kernels *kernels = device->kernels;

    if (op < FFA_REDUCE_SUM || op > FFA_REDUCE_LSE)
        return error_fail(err, FFA_INVALID, 0, "op is %d, not in [0, %d]", (int)op, FFA_REDUCE_LSE);
    if (!kernels->ops[op])
        return error_fail(err, FFA_INVALID, 0, "op is %d, the kernels were made without it",
                          (int)op);
    if ((ffa_dtype)format->dtype != kernels->dtype)
        return error_fail(err, FFA_INVALID, 0, "format: dtype is %d, that of the kernels %d",
                          format->dtype, (int)kernels->dtype);
    return FFA_OK;
}

ffa_status ffa_group_reduce(ffa_group_device *device, ffa_comm *comm,
                            const ffa_group_format *format, ffa_reduce_op op,
                            const ffa_group_source *partial, const ffa_group_target *accumulator,
                            ffa_stream stream, ffa_error *err)
{
    const bool has_lse = op == FFA_REDUCE_LSE;
    char words[WORDS_MAX];
    struct exchange_call call = { .stream = stream, .words = words, .name = "group reduce" };
    ffa_tensor from, to;
    struct wire wire;
    ffa_status rc;

    FFA_TRY(check_object(device, partial, accumulator, err));
    FFA_TRY(check_format(format, err));
    FFA_TRY(check_op(device, format, op, err));
    wire = wire_of(device, format, true, has_lse);
    FFA_TRY(check_buffer("partial", "data", partial->data, (size_t)wire.element_bytes,
                         device->output_rows, err));
    FFA_TRY(check_buffer("accumulator", "data", accumulator->data, (size_t)wire.element_bytes,
                         device->input_rows, err));
    if (has_lse) {
        FFA_TRY(
            check_buffer("partial", "lse", partial->lse, sizeof(float), device->output_rows, err));
        FFA_TRY(check_buffer("accumulator", "lse", accumulator->lse, sizeof(float),
                             device->input_rows, err));
    }
    call.exchange = &device->reduce;
    FFA_TRY(open_call(&call, device, format, &wire, comm, err));
    text_copy(words, "reduce %d of group %s, %d x %lld of %d bytes, on the wire dtype %d", (int)op,
              device->digest, wire.heads, (long long)wire.columns, wire.element_bytes,
              (int)device->kernels->wire);
    from = tensor_of(format, partial->data);
    to = tensor_of(format, accumulator->data);
    exchange_publish(&call, &from, partial->lse);
    exchange_add(&call, op, &to, &to, accumulator->lse);
    rc = exchange_run(&call, err);
out:
    return rc;
}
