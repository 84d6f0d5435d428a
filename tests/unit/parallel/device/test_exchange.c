/* SPDX-License-Identifier: Apache-2.0
 *
 * Exchanges of rows on a GPU without kernels: the public calls, tables, windows and communicators
 * as they are, and in place of row_copy and row_reduce plain loops that run in the order of the
 * stream. (tests/device/test_exchange.c has the kernels themselves.)
 */
#include "attention/row_kernels.h"
#include "gpu/device_memory.h"
#include "support/exchange_ranks.h"
#include "support/fake_gpu.h"
#include "support/suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the device ---- */

static ffa_context contexts[EXCHANGE_RANKS];

ffa_context *env_context(int32_t rank)
{
    contexts[rank].gpu = fake_gpu(rank);
    return &contexts[rank];
}

ffa_status env_alloc(ffa_context *context, void **out, int64_t bytes, ffa_error *err)
{
    return gpu_alloc(context->gpu, out, bytes, err);
}

void env_free(ffa_context *context, void *memory)
{
    gpu_free(context->gpu, memory);
}

ffa_status env_copy(ffa_context *context, void *to, const void *from, int64_t bytes,
                    ffa_copy_direction direction, ffa_error *err)
{
    (void)context;
    (void)direction;
    (void)err;
    memcpy(to, from, (size_t)bytes);
    return FFA_OK;
}

ffa_status env_stream(ffa_context *context, ffa_stream *out, ffa_error *err)
{
    struct gpu_stream *stream;
    const ffa_status rc = gpu_stream_create(&stream, context->gpu, 0, err);

    *out = rc == FFA_OK ? gpu_stream_handle(stream) : NULL;
    return rc;
}

void env_stream_free(ffa_context *context, ffa_stream stream)
{
    (void)context;
    gpu_stream_destroy((struct gpu_stream *)(void *)stream);
}

ffa_status env_synchronize(ffa_context *context, ffa_stream stream, ffa_error *err)
{
    return gpu_stream_synchronize(context->gpu, stream, err);
}

struct upload_op {
    void *to;
    size_t bytes;
    unsigned char from[];
};

static void upload(void *user)
{
    struct upload_op *op = user;

    memcpy(op->to, op->from, op->bytes);
    free(op);
}

ffa_status gpu_upload_enqueue(struct gpu_device *device, void *dst, const void *src, int64_t bytes,
                              ffa_stream stream, ffa_error *err)
{
    struct upload_op *op = malloc(sizeof *op + (size_t)bytes);

    (void)device;
    (void)err;
    op->to = dst;
    op->bytes = (size_t)bytes;
    memcpy(op->from, src, (size_t)bytes);
    fake_gpu_launch(stream, upload, op);
    return FFA_OK;
}

/* ---- memory ----
 *
 * In a broken group peers may pull what is being written: bytes are atomic. */

static void put(void *to, const void *from, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        __atomic_store_n((unsigned char *)to + i, ((const unsigned char *)from)[i],
                         __ATOMIC_RELAXED);
}

static void get(void *to, const void *from, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        ((unsigned char *)to)[i] =
            __atomic_load_n((const unsigned char *)from + i, __ATOMIC_RELAXED);
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

static void copy_run(const struct row_copy_rows *t, const struct row_run *run)
{
    const int64_t bytes = t->element_bytes;
    unsigned char element[sizeof(int64_t)];

    for (int64_t r = 0; r < run->rows; r++)
        for (int32_t h = 0; h < t->heads; h++)
            for (int64_t c = 0; c < t->columns; c++) {
                const long long index = run->from + r;
                unsigned char *to =
                    (unsigned char *)t->to +
                    bytes * ((run->to + r) * t->to_token_stride + h * t->to_head_stride + c);

                if (t->is_fill || !t->from)
                    memcpy(element, t->is_fill ? (const void *)&t->fill : &index, (size_t)bytes);
                else
                    get(element,
                        (const unsigned char *)t->from +
                            bytes * (index * t->from_token_stride + h * t->from_head_stride + c),
                        (size_t)bytes);
                put(to, element, (size_t)bytes);
            }
}

static void copy(void *user)
{
    struct row_copy_call *call = user;
    const struct row_run all = { 0, 0, call->rows, 0 };

    for (int32_t t = 0; t < call->count; t++)
        for (int32_t i = 0; i < (call->runs ? call->run_count : 1); i++)
            copy_run(&call->tensors[t], call->runs ? &call->runs[i] : &all);
    free(call);
}

ffa_status row_copy_check(const struct ffa_kernels *kernels, const struct row_copy_call *call,
                          ffa_error *err)
{
    (void)kernels;
    for (int32_t t = 0; t < call->count; t++)
        if (!call->tensors[t].to)
            return error_fail(err, FFA_INVALID, 0, "row_copy: to is NULL");
    return FFA_OK;
}

ffa_status row_copy_enqueue(const struct ffa_kernels *kernels, const struct row_copy_call *call,
                            ffa_stream stream, ffa_error *err)
{
    struct row_copy_call *op = malloc(sizeof *op);

    (void)kernels;
    (void)err;
    *op = *call;
    fake_gpu_launch(stream, copy, op);
    return FFA_OK;
}

/* ---- reductions ---- */

static float load(const void *base, int64_t at, ffa_dtype dtype)
{
    const int64_t bytes = (int64_t)ffa_dtype_bytes(dtype);
    unsigned char element[sizeof(float)];

    get(element, (const unsigned char *)base + at * bytes, (size_t)bytes);
    return number_load((int32_t)dtype, element);
}

static void store(void *base, int64_t at, ffa_dtype dtype, float value)
{
    const int64_t bytes = (int64_t)ffa_dtype_bytes(dtype);
    unsigned char element[sizeof(float)];

    number_store((int32_t)dtype, element, value);
    put((unsigned char *)base + at * bytes, element, (size_t)bytes);
}

static void reduce_element(const struct row_reduce_call *call, const struct row_segment *s,
                           int64_t j, int32_t h, int64_t c)
{
    const struct row_reduce_rows *t = &call->tensors[0];
    const struct row_reduce_lse *l = &call->lse;
    const bool is_lse = call->types.op == ROW_REDUCE_LSE;
    const int64_t row = s->row + j;
    float value =
        load(t->own, row * t->own_token_stride + h * t->own_head_stride + c, call->types.input);
    float lse =
        is_lse ? load(l->own, row * l->own_token_stride + h * l->own_head_stride, FFA_FP32) : 0;
    double sum = is_lse ? exp((double)lse) : 0, total = isinf(lse) ? 0 : sum * (double)value;

    for (int i = 0; i < s->count; i++) {
        const int64_t from = call->sources[s->first + i] + j;
        const float more =
            load(t->received, from * t->received_token_stride + h * t->received_head_stride + c,
                 call->types.input);

        value += more;
        if (is_lse)
            lse = load(l->received, from * l->received_token_stride + h * l->received_head_stride,
                       FFA_FP32);
        if (is_lse && !isinf(lse)) {
            sum += exp((double)lse);
            total += exp((double)lse) * (double)more;
        }
    }
    if (call->types.op == ROW_REDUCE_AVG)
        value /= (float)(1 + s->count);
    if (is_lse)
        value = sum > 0 ? (float)(total / sum) : 0;
    store(t->out, row * t->out_token_stride + h * t->out_head_stride + c, call->types.output,
          value);
    if (is_lse)
        store(l->out, row * l->out_token_stride + h * l->out_head_stride, FFA_FP32,
              (float)log(sum));
}

static void reduce(void *user)
{
    struct row_reduce_call *call = user;
    const struct row_segment all = { 0, (int)call->rows, 0, 0 };

    for (int32_t s = 0; s < (call->segments ? call->segment_count : 1); s++) {
        const struct row_segment *segment = call->segments ? &call->segments[s] : &all;

        for (int64_t j = 0; j < segment->rows; j++)
            for (int32_t h = 0; h < call->tensors[0].heads; h++)
                for (int64_t c = 0; c < call->tensors[0].columns; c++)
                    reduce_element(call, segment, j, h, c);
    }
    free(call);
}

ffa_status row_reduce_check(const struct ffa_kernels *kernels, const struct row_reduce_call *call,
                            ffa_error *err)
{
    (void)kernels;
    return call->kernel ? FFA_OK : error_fail(err, FFA_INVALID, 0, "row_reduce: no kernel");
}

ffa_status row_reduce_enqueue(const struct ffa_kernels *kernels, const struct row_reduce_call *call,
                              ffa_stream stream, ffa_error *err)
{
    struct row_reduce_call *op = malloc(sizeof *op);

    (void)kernels;
    (void)err;
    *op = *call;
    fake_gpu_launch(stream, reduce, op);
    return FFA_OK;
}

/* ---- kernels that are nothing but loaded ---- */

ffa_status row_copy_load(struct ffa_kernels *kernels, ffa_error *err)
{
    (void)err;
    kernels->row_copy = malloc(1);
    kernels->row_copy_runs = malloc(1);
    return FFA_OK;
}

void rows_kernels_unload(struct ffa_kernels *kernels)
{
    free(kernels->row_copy);
    free(kernels->row_copy_runs);
}

ffa_status row_reduce_load(struct gpu_kernel **out, const struct ffa_kernels *kernels,
                           const struct row_reduce_types *types, ffa_error *err)
{
    (void)kernels;
    (void)types;
    (void)err;
    *out = malloc(1);
    return FFA_OK;
}

void gpu_kernel_unload(struct gpu_kernel *kernel)
{
    free(kernel);
}

/* ---- the tests ---- */

enum { ALL = FFA_ROW_KERNELS_SUM | FFA_ROW_KERNELS_AVG | FFA_ROW_KERNELS_LSE };

static const struct exchange_types types[] = {
    { FFA_FP32, 0, ALL },
    { FFA_FP32, FFA_BF16, ALL },
    { FFA_BF16, 0, FFA_ROW_KERNELS_SUM | FFA_ROW_KERNELS_AVG },
    { FFA_FP32, FFA_FP16, FFA_ROW_KERNELS_SUM },
};
enum { TYPES = sizeof types / sizeof *types };

START_TEST(dispatched_rows)
{
    rows_case((uint64_t)_i + 1, &types[_i % TYPES]);
    ck_assert_int_eq(fake_gpu_allocated(), 0);
}
END_TEST

START_TEST(groups)
{
    group_case((uint64_t)_i + 1, &types[_i % TYPES]);
    ck_assert_int_eq(fake_gpu_allocated(), 0);
}
END_TEST

START_TEST(bad_calls_are_refused)
{
    rows_refusals();
    group_refusals();
}
END_TEST

START_TEST(a_rank_that_does_not_call)
{
    group_absent();
}
END_TEST

START_TEST(ranks_that_differ)
{
    group_other_call();
}
END_TEST

/* The options that select kernels. */
START_TEST(bad_kernels_are_refused)
{
    static const struct {
        ffa_row_kernels_opts opts;
        const char *text;
    } bad[] = {
        { { .dtype = FFA_FP64, .reduces = ALL }, "dtype is 4" },
        { { .dtype = FFA_FP32 }, "dtype is 3, reduces 0x0" },
        { { .reduces = ALL }, "dtype is 0" },
        { { .dtype = FFA_BF16, .wire_dtype = FFA_FP16, .reduces = ALL }, "wire_dtype is 2" },
        { { .wire_dtype = FFA_BF16 }, "wire_dtype is 1" },
    };
    ffa_context cpu = { .gpu = NULL };
    ffa_row_kernels *kernels;
    ffa_error err;

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ffa_row_kernels_opts opts = bad[i].opts;

        opts.struct_size = sizeof opts;
        ck_assert_int_eq(ffa_row_kernels_create(&kernels, env_context(0), &opts, &err),
                         FFA_INVALID);
        ck_assert_msg(strstr(err.message, bad[i].text) != NULL, "%s", err.message);
        ck_assert_ptr_null(kernels);
    }
    ck_assert_int_eq(ffa_row_kernels_create(&kernels, &cpu, NULL, &err), FFA_UNSUPPORTED);
    ck_assert_int_eq(ffa_row_kernels_create(&kernels, env_context(0), NULL, &err), FFA_OK);
    ffa_row_kernels_destroy(kernels);
}
END_TEST

/* ---- creation where memory or the device fails ---- */

static ffa_status create_rows(const ffa_dispatch *dispatch, ffa_error *err)
{
    static const int64_t cu_tokens[] = { 0, 30, 90 };
    ffa_parallel_rows_opts opts = FFA_PARALLEL_ROWS_OPTS_INIT;
    ffa_row_kernels *kernels;
    ffa_parallel_rows *rows = NULL;
    ffa_status rc = ffa_row_kernels_create(&kernels, env_context(0), NULL, err);

    opts.rank = 1;
    opts.shift = 7;
    opts.cu_tokens = cu_tokens;
    opts.document_count = 2;
    if (rc == FFA_OK)
        rc = ffa_parallel_rows_create(&rows, dispatch, kernels, &opts, err);
    ck_assert_int_eq(rows != NULL, rc == FFA_OK);
    ffa_parallel_rows_destroy(rows);
    ffa_row_kernels_destroy(kernels);
    return rc;
}

/* Two ranks that cast to each other, and to themselves. */
static ffa_status create_group(ffa_error *err)
{
    static const int64_t rows[] = { 3, 5 }, begin[] = { 0, 2, 3 }, sums[] = { 3, 3, 5, 5 };
    static const int32_t dst[] = { 0, 1, 1 }, src[] = { 0, 1, 0, 1 };
    const ffa_group_lists lists[] = {
        { .input_rows = rows,
          .dst_begin = begin,
          .dst = dst,
          .output_rows = sums,
          .src = src,
          .input_count = 2,
          .output_count = 2 },
        { .input_rows = rows,
          .dst_begin = begin,
          .dst = dst,
          .output_rows = sums,
          .src = src,
          .input_count = 2,
          .output_count = 4 },
    };
    ffa_row_kernels *kernels = NULL;
    ffa_group *group;
    ffa_group_device *device = NULL;
    ffa_status rc = ffa_group_create(&group, lists, 2, err);

    if (rc == FFA_OK)
        rc = ffa_row_kernels_create(&kernels, env_context(0), NULL, err);
    if (rc == FFA_OK)
        rc = ffa_group_device_create(&device, group, 1, kernels, err);
    ck_assert_int_eq(device != NULL, rc == FFA_OK);
    ffa_group_device_destroy(device);
    ffa_row_kernels_destroy(kernels);
    ffa_group_destroy(group);
    return rc;
}

static const enum fault_kind faults[] = { FAULT_ALLOC, FAULT_GPU };

START_TEST(creation_fails_whole)
{
    const ffa_mask_shape shape = { 90, 90 };
    const ffa_topology topology = { 2, 0 };
    ffa_dispatch_opts opts = FFA_DISPATCH_OPTS_INIT;
    ffa_dispatch *dispatch;
    ffa_mask *mask;
    ffa_error err;

    opts.flags = FFA_DISPATCH_CHUNK_EXACT;
    opts.chunk_tokens = 11;
    ck_assert_int_eq(ffa_mask_causal(&mask, &shape, &err), FFA_OK);
    ck_assert_int_eq(
        ffa_dispatch_create(&dispatch, &(ffa_dispatch_mask){ mask, 1 }, 1, &topology, &opts, &err),
        FFA_OK);
    for (int i = 0; i < 4; i++) {
        const enum fault_kind kind = faults[i / 2];
        long nth = 1;

        for (;; nth++) {
            ffa_status rc;

            fault_arm(kind, nth);
            rc = i % 2 ? create_group(&err) : create_rows(dispatch, &err);
            if (!fault_fired()) {
                ck_assert_int_eq(rc, FFA_OK);
                break;
            }
            ck_assert_int_eq(rc, kind == FAULT_ALLOC ? FFA_NOMEM : FFA_GPU);
        }
        fault_arm(kind, 0);
        ck_assert_int_gt(nth, 4);
    }
    ffa_dispatch_destroy(dispatch);
    ffa_mask_destroy(mask);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("exchange");
    TCase *tc = tcase_create("exchange");
    int rc;

    tcase_set_timeout(tc, 300);
    tcase_add_unchecked_fixture(tc, NULL, kernels_free);
    tcase_add_loop_test(tc, dispatched_rows, 0, 14);
    tcase_add_loop_test(tc, groups, 0, 14);
    tcase_add_test(tc, bad_calls_are_refused);
    tcase_add_test(tc, bad_kernels_are_refused);
    tcase_add_test(tc, creation_fails_whole);
    tcase_add_test(tc, a_rank_that_does_not_call);
    tcase_add_test(tc, ranks_that_differ);
    suite_add_tcase(suite, tc);
    rc = suite_run(suite);
    kernels_free();
    return rc;
}
