/* SPDX-License-Identifier: Apache-2.0
 *
 * row_copy and row_reduce on a GPU, against plain loops in C. Exit 77 where there is no GPU.
 * FFA_TEST_TEMPLATES=FOLDER has other templates than the library's.
 *
 * Each buffer is copied back whole and compared byte by byte, so that what must not be written is
 * seen to stay: outputs are full of a pattern before each call. Copies, sums and averages are
 * exact; lse is within rounding.
 */
#include "attention/rows_device.h"
#include "base/half.h"
#include "support/device_case.h"
#include "support/rng.h"
#include "support/suite.h"

#include <check.h>
#include <ffa/ffa.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ffa_context *context;
static struct ffa_kernels kernels;

/* ---- memory of both sides ---- */

struct buffer {
    unsigned char *host, *device;
    int64_t bytes;
};

static void ok(ffa_status rc, const ffa_error *err)
{
    ck_assert_msg(rc == FFA_OK, "%s", err->message);
}

static struct buffer buffer_of(int64_t bytes)
{
    struct buffer buffer = { .bytes = bytes + 64 };
    ffa_error err = { FFA_OK, 0, "" };
    void *device;

    buffer.host = malloc((size_t)buffer.bytes);
    ck_assert_ptr_nonnull(buffer.host);
    memset(buffer.host, 0xa5, (size_t)buffer.bytes);
    ok(gpu_alloc(context->gpu, &device, buffer.bytes, &err), &err);
    buffer.device = device;
    return buffer;
}

static void buffer_upload(const struct buffer *buffer)
{
    ffa_error err = { FFA_OK, 0, "" };

    ok(gpu_copy(context->gpu, buffer->device, buffer->host, buffer->bytes, &err), &err);
}

/* The bytes on the device; to be freed. */
static unsigned char *buffer_download(const struct buffer *buffer)
{
    unsigned char *bytes = malloc((size_t)buffer->bytes);
    ffa_error err = { FFA_OK, 0, "" };

    ck_assert_ptr_nonnull(bytes);
    ok(gpu_copy(context->gpu, bytes, buffer->device, buffer->bytes, &err), &err);
    return bytes;
}

static void buffer_free(struct buffer *buffer)
{
    gpu_free(context->gpu, buffer->device);
    free(buffer->host);
}

static void buffer_check(const struct buffer *expected)
{
    unsigned char *found = buffer_download(expected);

    for (int64_t i = 0; i < expected->bytes; i++)
        ck_assert_msg(found[i] == expected->host[i], "byte %lld is %02x, not %02x", (long long)i,
                      found[i], expected->host[i]);
    free(found);
}

/* ---- layouts ---- */

/* Of rows of [heads][columns]; what is drawn leaves gaps or none, and begins anywhere. */
struct layout {
    int64_t begin, token_stride, head_stride, elements;
};

static struct layout layout_draw(struct rng *rng, int64_t rows, int32_t heads, int64_t columns)
{
    const int64_t gap = rng_range(rng, 0, 2) ? 8 * rng_range(rng, 0, 2) : rng_range(rng, 0, 3);
    struct layout layout = { .begin = rng_range(rng, 0, 2) ? 0 : rng_range(rng, 1, 8) };

    if (rng_range(rng, 0, 3)) { /* heads in rows, else rows in heads */
        layout.head_stride = columns + gap;
        layout.token_stride = layout.head_stride * heads + gap;
    } else {
        layout.token_stride = columns + gap;
        layout.head_stride = layout.token_stride * (rows + 1);
    }
    layout.elements = layout.begin + (rows + 1) * layout.token_stride + heads * layout.head_stride;
    return layout;
}

static int64_t element_at(const struct layout *layout, int64_t row, int32_t head, int64_t column)
{
    return layout->begin + row * layout->token_stride + head * layout->head_stride + column;
}

static int64_t columns_draw(struct rng *rng)
{
    return rng_range(rng, 0, 2) ? 8 * rng_range(rng, 1, 12) : rng_range(rng, 1, 33);
}

/* ---- copies ---- */

enum { RUNS_MAX = 40 };

/* Runs of rows that are taken from ascending places and go to descending ones, some of them empty.
 * Returns how many. */
static int32_t runs_draw(struct rng *rng, struct row_run *runs, int64_t *from_rows,
                         int64_t *to_rows)
{
    const int32_t count = (int32_t)rng_range(rng, 1, RUNS_MAX);
    int64_t from = 0, to = 0;

    for (int32_t i = 0; i < count; i++) {
        runs[i].rows = rng_range(rng, 0, 3) ? rng_range(rng, 0, 9) : rng_range(rng, 0, 60);
        from += rng_range(rng, 0, 5);
        runs[i].from = from;
        from += runs[i].rows;
    }
    for (int32_t i = count - 1; i >= 0; i--) {
        to += rng_range(rng, 0, 2);
        runs[i].to = to;
        to += runs[i].rows;
    }
    *from_rows = from;
    *to_rows = to;
    return count;
}

struct copy_case {
    struct row_run runs[RUNS_MAX];
    int32_t run_count; /* 0: no table */
    int64_t rows, from_rows, to_rows;
    struct buffer from[ROW_COPY_TENSORS_MAX], to[ROW_COPY_TENSORS_MAX], table;
    struct row_copy_call call;
};

static void copy_expected(const struct copy_case *c, int t, const struct layout *from,
                          const struct layout *to)
{
    const struct row_copy_rows *rows = &c->call.tensors[t];
    const int64_t bytes = rows->element_bytes;
    const struct row_run all = { 0, 0, c->rows, 0 };

    for (int32_t i = 0; i < (c->run_count ? c->run_count : 1); i++) {
        const struct row_run *run = c->run_count ? &c->runs[i] : &all;

        for (int64_t r = 0; r < run->rows; r++)
            for (int32_t h = 0; h < rows->heads; h++) {
                const int64_t index = run->from + r;
                unsigned char *at = c->to[t].host + bytes * element_at(to, run->to + r, h, 0);

                for (int64_t e = 0; rows->is_fill && e < rows->columns; e++)
                    memcpy(at + bytes * e, &rows->fill, (size_t)bytes);
                if (rows->is_fill)
                    continue;
                if (rows->from)
                    memcpy(at, c->from[t].host + bytes * element_at(from, run->from + r, h, 0),
                           (size_t)(bytes * rows->columns));
                else
                    memcpy(at, &index, sizeof index);
            }
    }
}

static void copy_tensor_draw(struct copy_case *c, int t, struct rng *rng)
{
    struct row_copy_rows *rows = &c->call.tensors[t];
    const bool is_index = rng_range(rng, 0, 7) == 0;
    struct layout from, to;

    rows->is_fill = !is_index && rng_range(rng, 0, 7) == 0;
    rows->fill = rng_next(rng);
    rows->element_bytes = is_index ? 8 : 1 << rng_range(rng, 0, 3);
    rows->heads = is_index ? 1 : (int32_t)rng_range(rng, 1, 4);
    rows->columns = is_index ? 1 : columns_draw(rng);
    from = layout_draw(rng, c->from_rows, rows->heads, rows->columns);
    to = layout_draw(rng, c->to_rows, rows->heads, rows->columns);
    if (rng_range(rng, 0, 9) == 0)
        from.token_stride = 0;
    c->from[t] = buffer_of(from.elements * rows->element_bytes);
    c->to[t] = buffer_of(to.elements * rows->element_bytes);
    for (int64_t i = 0; i < c->from[t].bytes; i++)
        c->from[t].host[i] = (unsigned char)rng_next(rng);
    buffer_upload(&c->from[t]);
    buffer_upload(&c->to[t]);
    rows->from =
        is_index || rows->is_fill ? NULL : c->from[t].device + from.begin * rows->element_bytes;
    rows->to = c->to[t].device + to.begin * rows->element_bytes;
    rows->from_token_stride = from.token_stride;
    rows->from_head_stride = from.head_stride;
    rows->to_token_stride = to.token_stride;
    rows->to_head_stride = to.head_stride;
    copy_expected(c, t, &from, &to);
}

START_TEST(copies_are_exact)
{
    struct rng rng = { (uint64_t)_i + 1 };
    struct copy_case c = { .run_count = 0 };
    ffa_error err = { FFA_OK, 0, "" };

    if (rng_range(&rng, 0, 1)) {
        c.run_count = runs_draw(&rng, c.runs, &c.from_rows, &c.to_rows);
        c.rows = row_runs_finish(c.runs, c.run_count);
    } else {
        c.rows = c.from_rows = c.to_rows = rng_range(&rng, 0, 5) ? rng_range(&rng, 0, 150) : _i % 5;
    }
    c.table = buffer_of((int64_t)sizeof c.runs);
    memcpy(c.table.host, c.runs, sizeof c.runs);
    buffer_upload(&c.table);
    c.call.rows = c.rows;
    c.call.runs = c.run_count ? (const struct row_run *)(const void *)c.table.device : NULL;
    c.call.run_count = c.run_count;
    c.call.count = (int32_t)rng_range(&rng, 1, ROW_COPY_TENSORS_MAX);
    for (int t = 0; t < c.call.count; t++)
        copy_tensor_draw(&c, t, &rng);
    ok(row_copy_enqueue(&kernels, &c.call, NULL, &err), &err);
    ok(gpu_synchronize(context->gpu, &err), &err);
    for (int t = 0; t < c.call.count; t++) {
        buffer_check(&c.to[t]);
        buffer_free(&c.from[t]);
        buffer_free(&c.to[t]);
    }
    buffer_free(&c.table);
}
END_TEST

/* ---- reductions ---- */

enum { SEGMENTS_MAX = 12, SOURCES_MAX = 5, ROWS_MOST = 120, RECEIVED = 300 };

static float load(ffa_dtype dtype, const unsigned char *base, int64_t at)
{
    uint16_t half;
    float x;

    if (dtype == FFA_FP32) {
        memcpy(&x, base + 4 * at, sizeof x);
        return x;
    }
    memcpy(&half, base + 2 * at, sizeof half);
    return dtype == FFA_BF16 ? bf16_to_float(half) : fp16_to_float(half);
}

static void store(ffa_dtype dtype, unsigned char *base, int64_t at, float x)
{
    const uint16_t half = dtype == FFA_BF16 ? bf16_from_float(x) : fp16_from_float(x);

    if (dtype == FFA_FP32)
        memcpy(base + 4 * at, &x, sizeof x);
    else
        memcpy(base + 2 * at, &half, sizeof half);
}

static struct buffer values_draw(struct rng *rng, ffa_dtype dtype, int64_t elements)
{
    struct buffer buffer = buffer_of(elements * (int64_t)ffa_dtype_bytes(dtype));

    for (int64_t i = 0; i < elements; i++)
        store(dtype, buffer.host, i, (float)rng_bell(rng));
    buffer_upload(&buffer);
    return buffer;
}

struct reduce_tensor {
    struct layout own, received, out;
    struct buffer own_values, received_values, out_values;
};

struct reduce_case {
    struct row_segment segments[SEGMENTS_MAX];
    int64_t sources[SEGMENTS_MAX * SOURCES_MAX];
    int32_t segment_count; /* 0: no table */
    int64_t rows;
    struct reduce_tensor tensors[ROW_REDUCE_TENSORS_MAX];
    struct reduce_tensor lse; /* one column */
    struct buffer table, source_table;
    struct row_reduce_call call;
};

/* Segments with gaps between them, and before the first. */
static void segments_draw(struct reduce_case *c, struct rng *rng)
{
    const int32_t count = (int32_t)rng_range(rng, 1, SEGMENTS_MAX);
    int32_t at = 0, sources = 0;

    for (int32_t i = 0; i < count; i++) {
        struct row_segment *segment = &c->segments[i];

        at += rng_range(rng, 0, 2) ? 0 : (int32_t)rng_range(rng, 1, 5);
        *segment = (struct row_segment){ .row = at,
                                         .rows = (int)rng_range(rng, 0, 20),
                                         .first = sources,
                                         .count = (int)rng_range(rng, 0, SOURCES_MAX) };
        for (int s = 0; s < segment->count; s++)
            c->sources[sources++] = rng_range(rng, 0, RECEIVED - segment->rows);
        at += segment->rows;
    }
    c->segment_count = count;
    c->rows = min64(ROWS_MOST, at + rng_range(rng, 0, 5));
}

/* The segment of a row with its sources, or NULL where no segment has it. */
static const struct row_segment *segment_of(const struct reduce_case *c, int64_t row)
{
    for (int32_t i = 0; i < c->segment_count; i++)
        if (row >= c->segments[i].row && row < c->segments[i].row + c->segments[i].rows)
            return &c->segments[i];
    return NULL;
}

static void reduce_tensor_draw(struct reduce_tensor *out, struct rng *rng, int64_t rows,
                               int32_t heads, int64_t columns, ffa_dtype input, ffa_dtype received,
                               ffa_dtype output)
{
    out->own = layout_draw(rng, rows, heads, columns);
    out->received = layout_draw(rng, RECEIVED, heads, columns);
    out->out = layout_draw(rng, rows, heads, columns);
    out->own_values = values_draw(rng, input, out->own.elements);
    out->received_values = values_draw(rng, received, out->received.elements);
    out->out_values = buffer_of(out->out.elements * (int64_t)ffa_dtype_bytes(output));
    buffer_upload(&out->out_values);
}

static void reduce_tensor_free(struct reduce_tensor *tensor)
{
    buffer_free(&tensor->own_values);
    buffer_free(&tensor->received_values);
    buffer_free(&tensor->out_values);
}

static ffa_dtype received_of(const struct row_reduce_types *types)
{
    return types->received ? types->received : types->input;
}

static struct row_reduce_rows rows_of(const struct reduce_tensor *tensor,
                                      const struct row_reduce_types *types, int32_t heads,
                                      int64_t columns)
{
    const int64_t input = (int64_t)ffa_dtype_bytes(types->input);
    const int64_t received = (int64_t)ffa_dtype_bytes(received_of(types));
    const int64_t output = (int64_t)ffa_dtype_bytes(types->output);

    return (struct row_reduce_rows){
        .own = tensor->own_values.device + tensor->own.begin * input,
        .received = tensor->received_values.device + tensor->received.begin * received,
        .out = tensor->out_values.device + tensor->out.begin * output,
        .own_token_stride = tensor->own.token_stride,
        .own_head_stride = tensor->own.head_stride,
        .received_token_stride = tensor->received.token_stride,
        .received_head_stride = tensor->received.head_stride,
        .out_token_stride = tensor->out.token_stride,
        .out_head_stride = tensor->out.head_stride,
        .columns = columns,
        .heads = heads,
    };
}

/* What the kernel must store: the sum in fp32, in order, or the largest. */
static void sum_expected(const struct reduce_case *c, int t, const struct row_reduce_types *types)
{
    const struct reduce_tensor *tensor = &c->tensors[t];
    const struct row_reduce_rows *rows = &c->call.tensors[t];

    for (int64_t r = 0; r < c->rows; r++) {
        const struct row_segment all = { 0, (int)c->rows, 0, 0 };
        const struct row_segment *segment = c->segment_count ? segment_of(c, r) : &all;

        for (int32_t h = 0; segment && h < rows->heads; h++)
            for (int64_t e = 0; e < rows->columns; e++) {
                float sum = rows->own ? load(types->input, tensor->own_values.host,
                                             element_at(&tensor->own, r, h, e))
                                      : 0.0f;

                if (types->op == ROW_REDUCE_MAX)
                    sum = fmaxf(sum, -INFINITY);
                for (int s = 0; s < segment->count; s++) {
                    const float more =
                        load(received_of(types), tensor->received_values.host,
                             element_at(&tensor->received,
                                        c->sources[segment->first + s] + r - segment->row, h, e));

                    sum = types->op == ROW_REDUCE_MAX ? fmaxf(sum, more) : sum + more;
                }
                if (types->op == ROW_REDUCE_AVG)
                    sum /= (float)(1 + segment->count);
                store(types->output, tensor->out_values.host, element_at(&tensor->out, r, h, e),
                      sum);
            }
    }
}

static void reduce_tables(struct reduce_case *c, struct rng *rng)
{
    if (rng_range(rng, 0, 5))
        segments_draw(c, rng);
    else
        c->rows = rng_range(rng, 0, ROWS_MOST);
    c->table = buffer_of((int64_t)sizeof c->segments);
    c->source_table = buffer_of((int64_t)sizeof c->sources);
    memcpy(c->table.host, c->segments, sizeof c->segments);
    memcpy(c->source_table.host, c->sources, sizeof c->sources);
    buffer_upload(&c->table);
    buffer_upload(&c->source_table);
    c->call.rows = c->rows;
    if (c->segment_count) {
        c->call.segments = (const struct row_segment *)(const void *)c->table.device;
        c->call.sources = (const int64_t *)(const void *)c->source_table.device;
        c->call.segment_count = c->segment_count;
    }
}

/* For a maximum: some values are -inf, some NaN, as where a rank has no query rows. */
static void values_empty(struct rng *rng, struct buffer *values, int64_t elements)
{
    for (int64_t i = 0; i < elements; i++)
        if (!rng_range(rng, 0, 2))
            store(FFA_FP32, values->host, i, rng_range(rng, 0, 1) ? -INFINITY : NAN);
    buffer_upload(values);
}

static void sum_case(struct rng *rng, const struct gpu_kernel *kernel,
                     const struct row_reduce_types *types)
{
    struct reduce_case c = { .segment_count = 0 };
    ffa_error err = { FFA_OK, 0, "" };

    reduce_tables(&c, rng);
    c.call.kernel = kernel;
    c.call.types = *types;
    c.call.count = (int32_t)rng_range(rng, 1, ROW_REDUCE_TENSORS_MAX);
    for (int t = 0; t < c.call.count; t++) {
        const int32_t heads = (int32_t)rng_range(rng, 1, 3);
        const int64_t columns = columns_draw(rng);

        reduce_tensor_draw(&c.tensors[t], rng, c.rows, heads, columns, types->input,
                           received_of(types), types->output);
        c.call.tensors[t] = rows_of(&c.tensors[t], types, heads, columns);
        if (types->op == ROW_REDUCE_SUM && rng_range(rng, 0, 3) == 0)
            c.call.tensors[t].own = NULL;
        if (types->op == ROW_REDUCE_MAX) {
            values_empty(rng, &c.tensors[t].own_values, c.tensors[t].own.elements);
            values_empty(rng, &c.tensors[t].received_values, c.tensors[t].received.elements);
        }
        sum_expected(&c, t, types);
    }
    ok(row_reduce_enqueue(&kernels, &c.call, NULL, &err), &err);
    ok(gpu_synchronize(context->gpu, &err), &err);
    for (int t = 0; t < c.call.count; t++) {
        buffer_check(&c.tensors[t].out_values);
        reduce_tensor_free(&c.tensors[t]);
    }
    buffer_free(&c.table);
    buffer_free(&c.source_table);
}

START_TEST(sums_are_exact)
{
    struct rng rng = { (uint64_t)_i + 1 };
    const struct row_reduce_types types = { FFA_FP32, FFA_BF16, ROW_REDUCE_SUM, 0 };

    sum_case(&rng, NULL, &types);
}
END_TEST

static const struct row_reduce_types other_types[] = {
    { FFA_FP32, FFA_FP32, ROW_REDUCE_AVG, 0 },
    { FFA_FP32, FFA_FP16, ROW_REDUCE_SUM, 0 },
    { FFA_BF16, FFA_BF16, ROW_REDUCE_AVG, 0 },
    { FFA_FP16, FFA_FP32, ROW_REDUCE_SUM, 0 },
    { FFA_FP32, FFA_FP32, ROW_REDUCE_MAX, 0 },
    { FFA_FP32, FFA_BF16, ROW_REDUCE_SUM, FFA_BF16 },
    { FFA_FP32, FFA_FP32, ROW_REDUCE_SUM, FFA_FP16 },
    { FFA_FP32, FFA_FP32, ROW_REDUCE_SUM, FFA_BF16 },
};

START_TEST(other_types_are_exact)
{
    const struct row_reduce_types *types = &other_types[_i];
    struct rng rng = { 77 + (uint64_t)_i };
    struct gpu_kernel *kernel;
    ffa_error err = { FFA_OK, 0, "" };

    ok(row_reduce_load(&kernel, &kernels, types, &err), &err);
    for (int i = 0; i < 12; i++)
        sum_case(&rng, kernel, types);
    gpu_kernel_unload(kernel);
}
END_TEST

/* Many rounded parts of one sign: in fp32 their sum is off by less than a rounding of one of them;
 * summed in their own dtype, it would be off by a hundred times as much. */
START_TEST(rounded_rows_are_summed_in_fp32)
{
    enum { PARTS = 256, COLUMNS = 16 };
    const struct row_reduce_types types = { FFA_FP32, FFA_FP32, ROW_REDUCE_SUM,
                                            _i ? FFA_FP16 : FFA_BF16 };
    struct rng rng = { 3 };
    struct buffer own = values_draw(&rng, FFA_FP32, COLUMNS);
    struct buffer received = values_draw(&rng, types.received, PARTS * COLUMNS);
    struct buffer out = buffer_of(COLUMNS * (int64_t)sizeof(float));
    struct buffer table = buffer_of((int64_t)sizeof(struct row_segment));
    struct buffer sources = buffer_of(PARTS * (int64_t)sizeof(int64_t));
    const struct row_segment segment = { 0, 1, 0, PARTS };
    struct row_reduce_call call = { .types = types, .count = 1, .segment_count = 1, .rows = 1 };
    struct gpu_kernel *kernel;
    ffa_error err = { FFA_OK, 0, "" };

    memcpy(table.host, &segment, sizeof segment);
    for (int64_t i = 0; i < PARTS; i++)
        memcpy((char *)sources.host + i * (int64_t)sizeof i, &i, sizeof i);
    for (int64_t i = 0; i < PARTS * COLUMNS; i++)
        store(types.received, received.host, i,
              1.0f + (float)rng_range(&rng, 0, 1 << 20) * 0x1p-20f);
    buffer_upload(&table);
    buffer_upload(&sources);
    buffer_upload(&received);
    buffer_upload(&out);
    ok(row_reduce_load(&kernel, &kernels, &types, &err), &err);
    call.kernel = kernel;
    call.segments = (const struct row_segment *)(const void *)table.device;
    call.sources = (const int64_t *)(const void *)sources.device;
    call.tensors[0] = (struct row_reduce_rows){ .own = own.device,
                                                .received = received.device,
                                                .out = out.device,
                                                .own_token_stride = COLUMNS,
                                                .received_token_stride = COLUMNS,
                                                .out_token_stride = COLUMNS,
                                                .columns = COLUMNS,
                                                .heads = 1 };
    ok(row_reduce_enqueue(&kernels, &call, NULL, &err), &err);
    ok(gpu_synchronize(context->gpu, &err), &err);
    ok(gpu_copy(context->gpu, out.host, out.device, COLUMNS * (int64_t)sizeof(float), &err), &err);
    for (int64_t e = 0; e < COLUMNS; e++) {
        double want = load(FFA_FP32, own.host, e);
        const double got = load(FFA_FP32, out.host, e);

        for (int64_t p = 0; p < PARTS; p++)
            want += load(types.received, received.host, p * COLUMNS + e);
        ck_assert_msg(fabs(got - want) <= PARTS * 0x1p-24 * want, "column %d: %.9g, not %.9g",
                      (int)e, got, want);
    }
    gpu_kernel_unload(kernel);
    buffer_free(&own);
    buffer_free(&received);
    buffer_free(&out);
    buffer_free(&table);
    buffer_free(&sources);
}
END_TEST

/* Own sums are settled where they are. */
START_TEST(a_reduction_in_place)
{
    const struct row_reduce_types types = { FFA_FP32, FFA_FP32, ROW_REDUCE_SUM, 0 };
    const int64_t rows = 37, columns = 24;
    struct rng rng = { 5 };
    struct buffer own = values_draw(&rng, FFA_FP32, rows * columns);
    struct buffer received = values_draw(&rng, FFA_FP32, rows * columns);
    struct buffer table = buffer_of((int64_t)sizeof(struct row_segment));
    struct buffer sources = buffer_of((int64_t)sizeof(int64_t));
    const struct row_segment segment = { 0, (int)rows, 0, 1 };
    const int64_t first = 0;
    struct row_reduce_call call = { .types = types, .count = 1, .segment_count = 1, .rows = rows };
    struct gpu_kernel *kernel;
    ffa_error err = { FFA_OK, 0, "" };

    memcpy(table.host, &segment, sizeof segment);
    memcpy(sources.host, &first, sizeof first);
    buffer_upload(&table);
    buffer_upload(&sources);
    ok(row_reduce_load(&kernel, &kernels, &types, &err), &err);
    call.kernel = kernel;
    call.segments = (const struct row_segment *)(const void *)table.device;
    call.sources = (const int64_t *)(const void *)sources.device;
    call.tensors[0] = (struct row_reduce_rows){ .own = own.device,
                                                .received = received.device,
                                                .out = own.device,
                                                .own_token_stride = columns,
                                                .received_token_stride = columns,
                                                .out_token_stride = columns,
                                                .columns = columns,
                                                .heads = 1 };
    for (int64_t i = 0; i < rows * columns; i++)
        store(FFA_FP32, own.host, i,
              load(FFA_FP32, own.host, i) + load(FFA_FP32, received.host, i));
    ok(row_reduce_enqueue(&kernels, &call, NULL, &err), &err);
    ok(gpu_synchronize(context->gpu, &err), &err);
    buffer_check(&own);
    gpu_kernel_unload(kernel);
    buffer_free(&own);
    buffer_free(&received);
    buffer_free(&table);
    buffer_free(&sources);
}
END_TEST

/* ---- lse ---- */

/* Some lses are -inf; the outs of received rows without keys are NaN. */
static void lse_draw(struct reduce_case *c, struct rng *rng, int32_t heads)
{
    struct reduce_tensor *out = &c->tensors[0], *lse = &c->lse;

    reduce_tensor_draw(lse, rng, c->rows, heads, 1, FFA_FP32, FFA_FP32, FFA_FP32);
    for (int64_t r = 0; r < RECEIVED; r++)
        for (int32_t h = 0; h < heads; h++) {
            if (rng_range(rng, 0, 2))
                continue;
            store(FFA_FP32, lse->received_values.host, element_at(&lse->received, r, h, 0),
                  -INFINITY);
            for (int64_t e = 0; e < c->call.tensors[0].columns; e++)
                store(c->call.types.input, out->received_values.host,
                      element_at(&out->received, r, h, e), NAN);
        }
    for (int64_t r = 0; r < c->rows; r++)
        if (rng_range(rng, 0, 1))
            store(FFA_FP32, lse->own_values.host,
                  element_at(&lse->own, r, (int32_t)rng_range(rng, 0, heads - 1), 0), -INFINITY);
    buffer_upload(&lse->own_values);
    buffer_upload(&lse->received_values);
    buffer_upload(&out->received_values);
    c->call.lse = (struct row_reduce_lse){
        .own = (const float *)(const void *)lse->own_values.device + lse->own.begin,
        .received = (const float *)(const void *)lse->received_values.device + lse->received.begin,
        .out = (float *)(void *)lse->out_values.device + lse->out.begin,
        .own_token_stride = lse->own.token_stride,
        .own_head_stride = lse->own.head_stride,
        .received_token_stride = lse->received.token_stride,
        .received_head_stride = lse->received.head_stride,
        .out_token_stride = lse->out.token_stride,
        .out_head_stride = lse->out.head_stride,
    };
}

/* The results are written over what is compared, so that all that stays in the host's buffers must
 * be as it was. */
static void lse_row_check(struct reduce_case *c, const struct row_segment *segment, int64_t row,
                          int32_t head, const unsigned char *found_out,
                          const unsigned char *found_lse)
{
    struct reduce_tensor *out = &c->tensors[0], *lse = &c->lse;
    const int64_t lse_at = element_at(&lse->out, row, head, 0);
    double weights[SOURCES_MAX + 1], total = 0;
    float merged = load(FFA_FP32, found_lse, lse_at);

    weights[0] =
        exp((double)load(FFA_FP32, lse->own_values.host, element_at(&lse->own, row, head, 0)));
    total = weights[0];
    for (int s = 0; s < segment->count; s++) {
        const int64_t source = c->sources[segment->first + s] + row - segment->row;

        weights[s + 1] = exp((double)load(FFA_FP32, lse->received_values.host,
                                          element_at(&lse->received, source, head, 0)));
        total += weights[s + 1];
    }
    if (total == 0)
        ck_assert(merged == -INFINITY);
    else
        ck_assert_double_eq_tol((double)merged, log(total), 1e-5);
    store(FFA_FP32, lse->out_values.host, lse_at, merged);
    for (int64_t e = 0; e < c->call.tensors[0].columns; e++) {
        const int64_t at = element_at(&out->out, row, head, e);
        const float x = load(c->call.types.output, found_out, at);
        double sum = 0;

        if (weights[0] > 0)
            sum += weights[0] * (double)load(c->call.types.input, out->own_values.host,
                                             element_at(&out->own, row, head, e));
        for (int s = 0; s < segment->count; s++)
            if (weights[s + 1] > 0)
                sum += weights[s + 1] *
                       (double)load(c->call.types.input, out->received_values.host,
                                    element_at(&out->received,
                                               c->sources[segment->first + s] + row - segment->row,
                                               head, e));
        ck_assert_double_eq_tol((double)x, total == 0 ? 0.0 : sum / total, 1e-5);
        store(c->call.types.output, out->out_values.host, at, x);
    }
}

static void lse_case(struct rng *rng, const struct gpu_kernel *kernel,
                     const struct row_reduce_types *types)
{
    const int32_t heads = (int32_t)rng_range(rng, 1, 3);
    const int64_t columns = columns_draw(rng);
    struct reduce_case c = { .segment_count = 0 };
    unsigned char *found_out, *found_lse;
    ffa_error err = { FFA_OK, 0, "" };

    reduce_tables(&c, rng);
    c.call.kernel = kernel;
    c.call.types = *types;
    c.call.count = 1;
    reduce_tensor_draw(&c.tensors[0], rng, c.rows, heads, columns, types->input, types->input,
                       types->output);
    c.call.tensors[0] = rows_of(&c.tensors[0], types, heads, columns);
    lse_draw(&c, rng, heads);
    ok(row_reduce_enqueue(&kernels, &c.call, NULL, &err), &err);
    ok(gpu_synchronize(context->gpu, &err), &err);
    found_out = buffer_download(&c.tensors[0].out_values);
    found_lse = buffer_download(&c.lse.out_values);
    for (int64_t r = 0; r < c.rows; r++) {
        const struct row_segment all = { 0, (int)c.rows, 0, 0 };
        const struct row_segment *segment = c.segment_count ? segment_of(&c, r) : &all;

        for (int32_t h = 0; segment && h < heads; h++)
            lse_row_check(&c, segment, r, h, found_out, found_lse);
    }
    buffer_check(&c.tensors[0].out_values);
    buffer_check(&c.lse.out_values);
    free(found_out);
    free(found_lse);
    reduce_tensor_free(&c.tensors[0]);
    reduce_tensor_free(&c.lse);
    buffer_free(&c.table);
    buffer_free(&c.source_table);
}

START_TEST(lse_pairs_are_merged)
{
    const struct row_reduce_types types = { _i ? FFA_BF16 : FFA_FP32, FFA_FP32, ROW_REDUCE_LSE, 0 };
    struct rng rng = { 99 + (uint64_t)_i };
    struct gpu_kernel *kernel;
    ffa_error err = { FFA_OK, 0, "" };

    ok(row_reduce_load(&kernel, &kernels, &types, &err), &err);
    for (int i = 0; i < 12; i++)
        lse_case(&rng, kernel, &types);
    gpu_kernel_unload(kernel);
}
END_TEST

/* ---- refusals ---- */

START_TEST(bad_calls_are_refused)
{
    struct row_copy_call copy = { .count = 1, .rows = 1 };
    struct row_reduce_call reduce = { .count = 1, .rows = 1 };
    ffa_error err = { FFA_OK, 0, "" };

    copy.tensors[0] = (struct row_copy_rows){ .columns = 1, .heads = 1, .element_bytes = 3 };
    ck_assert_int_eq(row_copy_enqueue(&kernels, &copy, NULL, &err), FFA_INVALID);
    ck_assert_ptr_nonnull(strstr(err.message, "element_bytes is 3"));
    copy.tensors[0].element_bytes = 8;
    ck_assert_int_eq(row_copy_enqueue(&kernels, &copy, NULL, &err), FFA_INVALID);
    ck_assert_ptr_nonnull(strstr(err.message, "to is NULL"));
    copy.rows = -1;
    ck_assert_int_eq(row_copy_enqueue(&kernels, &copy, NULL, &err), FFA_INVALID);
    ck_assert_ptr_nonnull(strstr(err.message, "rows is -1"));
    copy.count = ROW_COPY_TENSORS_MAX + 1;
    ck_assert_int_eq(row_copy_enqueue(&kernels, &copy, NULL, &err), FFA_INVALID);
    reduce.tensors[0] = (struct row_reduce_rows){ .columns = 1, .heads = 1 };
    ck_assert_int_eq(row_reduce_enqueue(&kernels, &reduce, NULL, &err), FFA_INVALID);
    ck_assert_ptr_nonnull(strstr(err.message, "out is NULL")); /* a sum may begin with zeros */
    reduce.kernel = kernels.row_reduce;
    reduce.types = (struct row_reduce_types){ FFA_FP32, FFA_FP32, ROW_REDUCE_AVG, 0 };
    reduce.tensors[0].out = &reduce; /* nobody gets so far */
    ck_assert_int_eq(row_reduce_enqueue(&kernels, &reduce, NULL, &err), FFA_INVALID);
    ck_assert_ptr_nonnull(strstr(err.message, "own is NULL"));
    reduce.count = ROW_REDUCE_TENSORS_MAX + 1;
    ck_assert_int_eq(row_reduce_enqueue(&kernels, &reduce, NULL, &err), FFA_INVALID);
}
END_TEST

static Suite *rows_suite(void)
{
    Suite *suite = suite_create("rows");
    TCase *copy = tcase_create("copy"), *reduce = tcase_create("reduce");
    TCase *few = tcase_create("few"); /* for mutants of the kernel (tests/emulator/mutants.sh) */

    tcase_set_timeout(few, 600);
    tcase_add_loop_test(few, copies_are_exact, 0, 12);
    tcase_set_timeout(copy, 600);
    tcase_set_timeout(reduce, 600);
    tcase_add_loop_test(copy, copies_are_exact, 0, 120);
    tcase_add_test(copy, bad_calls_are_refused);
    tcase_add_loop_test(reduce, sums_are_exact, 0, 60);
    tcase_add_loop_test(reduce, other_types_are_exact, 0,
                        (int)(sizeof other_types / sizeof *other_types));
    tcase_add_test(reduce, a_reduction_in_place);
    tcase_add_loop_test(reduce, rounded_rows_are_summed_in_fp32, 0, 2);
    tcase_add_loop_test(reduce, lse_pairs_are_merged, 0, 2);
    suite_add_tcase(suite, few);
    suite_add_tcase(suite, copy);
    suite_add_tcase(suite, reduce);
    return suite;
}

int main(void)
{
    ffa_context_opts opts = FFA_CONTEXT_OPTS_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    int rc;

    opts.cache_path = getenv("FFA_TEST_STORE");
    opts.templates_dir = getenv("FFA_TEST_TEMPLATES");
    if (ffa_open(&context, 0, &opts, &err) != FFA_OK) {
        printf("skipped: no GPU that a kernel exists for: %s\n", err.message);
        return 77;
    }
    kernels = (struct ffa_kernels){ .context = context, .has_backward = true };
    kernels.grad_dtype = FFA_BF16;
    if (rows_kernels_load(&kernels, &err) != FFA_OK) {
        fprintf(stderr, "%s\n", err.message);
        ffa_close(context);
        return 1;
    }
    rc = suite_run_here(rows_suite());
    rows_kernels_unload(&kernels);
    ffa_close(context);
    return rc;
}
