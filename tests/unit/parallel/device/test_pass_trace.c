/* SPDX-License-Identifier: Apache-2.0
 *
 * Traces of passes on a GPU without kernels: spans in the order of their lanes and without gaps,
 * what has no room, capacities, refusals, and events that cannot be made.
 */
#include "parallel/device/pass_trace.h"

#include "base/base.h"
#include "service/context.h"
#include "support/fake_gpu.h"
#include "support/suite.h"

#include <check.h>
#include <ffa/ffa.h>
#include <string.h>
#include <unistd.h>

struct pass {
    ffa_context context;
    struct comm_device comm; /* its two streams only */
    struct gpu_stream *stream;
    ffa_parallel_trace *trace;
};

static void pass_open(struct pass *pass)
{
    memset(pass, 0, sizeof *pass);
    pass->context.gpu = fake_gpu(0);
    ck_assert_int_eq(gpu_stream_create(&pass->stream, pass->context.gpu, 0, NULL), FFA_OK);
    ck_assert_int_eq(gpu_stream_create(&pass->comm.fetch, pass->context.gpu, 0, NULL), FFA_OK);
    ck_assert_int_eq(gpu_stream_create(&pass->comm.reduce, pass->context.gpu, 0, NULL), FFA_OK);
    ck_assert_int_eq(ffa_parallel_trace_create(&pass->trace, &pass->context, NULL), FFA_OK);
}

static void pass_close(struct pass *pass)
{
    ffa_parallel_trace_destroy(pass->trace);
    gpu_stream_destroy(pass->stream);
    gpu_stream_destroy(pass->comm.fetch);
    gpu_stream_destroy(pass->comm.reduce);
}

/* What other lanes do before the caller's stream begins has no length: here nothing does. */
static void begin(struct pass *pass)
{
    ck_assert_int_eq(
        pass_trace_begin(pass->trace, &pass->comm, gpu_stream_handle(pass->stream), NULL), FFA_OK);
    ck_assert_int_eq(
        gpu_stream_synchronize(pass->context.gpu, gpu_stream_handle(pass->stream), NULL), FFA_OK);
}

static void mark(struct pass *pass, ffa_parallel_lane lane, ffa_parallel_span_kind kind,
                 int32_t stage, int32_t rank, int64_t bytes)
{
    const struct pass_mark mark = { stage, rank, bytes };

    ck_assert_int_eq(pass_trace_mark(pass->trace, lane, kind, &mark, NULL), FFA_OK);
}

static void end(struct pass *pass)
{
    ck_assert_int_eq(pass_trace_end(pass->trace, NULL), FFA_OK);
    ck_assert_int_eq(
        gpu_stream_synchronize(pass->context.gpu, gpu_stream_handle(pass->stream), NULL), FFA_OK);
}

static int32_t get(const struct pass *pass, ffa_parallel_span spans[FFA_PARALLEL_SPANS_MAX])
{
    ffa_error err = { FFA_OK, 0, "" };
    int32_t count = -1;

    ffa_parallel_span_init(&spans[0], sizeof spans[0]);
    ck_assert_msg(!ffa_parallel_trace_get(pass->trace, spans, FFA_PARALLEL_SPANS_MAX, &count, &err),
                  "%s", err.message);
    return count;
}

static void sleep_a_little(void *user)
{
    (void)user;
    usleep(5000);
}

/* ---- spans ---- */

START_TEST(spans_stand_by_lane_without_gaps)
{
    static const struct {
        int32_t lane, kind, stage, rank;
        int64_t bytes;
    } want[] = {
        { FFA_PARALLEL_LANE_COMPUTE, FFA_PARALLEL_SPAN_PUBLISH, -1, -1, 64 },
        { FFA_PARALLEL_LANE_COMPUTE, FFA_PARALLEL_SPAN_ATTENTION, -1, -1, 0 },
        { FFA_PARALLEL_LANE_FETCH, FFA_PARALLEL_SPAN_WAIT, 1, 3, 0 },
        { FFA_PARALLEL_LANE_FETCH, FFA_PARALLEL_SPAN_COPY, 1, 3, 4096 },
        { FFA_PARALLEL_LANE_REDUCE, FFA_PARALLEL_SPAN_COPY, 2, 1, 128 },
    };
    ffa_parallel_span spans[FFA_PARALLEL_SPANS_MAX];
    struct pass pass;

    pass_open(&pass);
    begin(&pass);
    mark(&pass, FFA_PARALLEL_LANE_COMPUTE, FFA_PARALLEL_SPAN_PUBLISH, -1, -1, 64);
    mark(&pass, FFA_PARALLEL_LANE_FETCH, FFA_PARALLEL_SPAN_WAIT, 1, 3, 0);
    fake_gpu_launch(gpu_stream_handle(pass.comm.fetch), sleep_a_little, NULL);
    mark(&pass, FFA_PARALLEL_LANE_FETCH, FFA_PARALLEL_SPAN_COPY, 1, 3, 4096);
    mark(&pass, FFA_PARALLEL_LANE_COMPUTE, FFA_PARALLEL_SPAN_ATTENTION, -1, -1, 0);
    mark(&pass, FFA_PARALLEL_LANE_REDUCE, FFA_PARALLEL_SPAN_COPY, 2, 1, 128);
    end(&pass);
    ck_assert_int_eq(get(&pass, spans), sizeof want / sizeof *want);
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        ck_assert_uint_eq(spans[i].struct_size, sizeof spans[i]);
        ck_assert_int_eq(spans[i].lane, want[i].lane);
        ck_assert_int_eq(spans[i].kind, want[i].kind);
        ck_assert_int_eq(spans[i].stage, want[i].stage);
        ck_assert_int_eq(spans[i].rank, want[i].rank);
        ck_assert_int_eq(spans[i].bytes, want[i].bytes);
        ck_assert_double_ge(spans[i].begin_us, 0.0);
        ck_assert_double_le(spans[i].begin_us, spans[i].end_us);
    }
    ck_assert_double_eq(spans[0].begin_us, 0.0);
    ck_assert_double_eq(spans[1].begin_us, spans[0].end_us);
    ck_assert_double_eq(spans[3].begin_us, spans[2].end_us);
    ck_assert_double_ge(spans[3].end_us - spans[3].begin_us, 4000.0);
    pass_close(&pass);
}
END_TEST

START_TEST(a_pass_is_recorded_anew)
{
    ffa_parallel_span spans[FFA_PARALLEL_SPANS_MAX];
    struct pass pass;
    int32_t count = -1;

    pass_open(&pass);
    ck_assert_int_eq(ffa_parallel_trace_get(pass.trace, NULL, 0, &count, NULL), FFA_OK);
    ck_assert_int_eq(count, 0); /* no pass yet */
    ck_assert_int_eq(get(&pass, spans), 0);
    for (int n = 3; n > 0; n--) {
        begin(&pass);
        for (int i = 0; i < n; i++)
            mark(&pass, FFA_PARALLEL_LANE_FETCH, FFA_PARALLEL_SPAN_COPY, n, i, n * 100);
        end(&pass);
        ck_assert_int_eq(get(&pass, spans), n);
        ck_assert_int_eq(spans[n - 1].stage, n);
        ck_assert_int_eq(spans[n - 1].rank, n - 1);
        ck_assert_int_eq(spans[n - 1].bytes, n * 100);
    }
    pass_close(&pass);
}
END_TEST

START_TEST(what_has_no_room_is_the_last_span)
{
    ffa_parallel_span spans[FFA_PARALLEL_SPANS_MAX];
    int64_t bytes = 0;
    struct pass pass;

    pass_open(&pass);
    begin(&pass);
    for (int32_t s = 1; s < COMM_STAGES_MAX; s++) {
        mark(&pass, FFA_PARALLEL_LANE_FETCH, FFA_PARALLEL_SPAN_WAIT, s, s, 0);
        mark(&pass, FFA_PARALLEL_LANE_FETCH, FFA_PARALLEL_SPAN_COPY, s, s, 1);
    }
    for (int32_t i = 0; i < 300; i++) {
        mark(&pass, FFA_PARALLEL_LANE_REDUCE, FFA_PARALLEL_SPAN_WAIT, 1, i, 0);
        if (i == 299)
            fake_gpu_launch(gpu_stream_handle(pass.comm.reduce), sleep_a_little, NULL);
        mark(&pass, FFA_PARALLEL_LANE_REDUCE, FFA_PARALLEL_SPAN_COPY, 1, i, 10);
    }
    end(&pass);
    ck_assert_int_eq(get(&pass, spans), 30 + 74);
    for (int i = 0; i < 30; i++) /* 15 stages are all there */
        ck_assert_int_eq(spans[i].stage, 1 + i / 2);
    for (int i = 30; i < 104; i++)
        bytes += spans[i].bytes;
    ck_assert_int_eq(bytes, 3000);
    ck_assert_int_eq(spans[102].rank, 36);
    ck_assert_int_eq(spans[103].kind, FFA_PARALLEL_SPAN_COPY);
    ck_assert_int_eq(spans[103].stage, -1);
    ck_assert_int_eq(spans[103].rank, -1);
    ck_assert_double_ge(spans[103].end_us - spans[103].begin_us, 4000.0);
    pass_close(&pass);
}
END_TEST

/* ---- refusals ---- */

static void refused(const struct pass *pass, ffa_parallel_span *spans, int32_t capacity,
                    const char *message)
{
    ffa_error err = { FFA_OK, 0, "" };
    int32_t count = -1;

    ck_assert_int_eq(ffa_parallel_trace_get(pass->trace, spans, capacity, &count, &err),
                     FFA_INVALID);
    ck_assert_str_eq(err.message, message);
}

START_TEST(capacities)
{
    ffa_parallel_span spans[3] = { FFA_PARALLEL_SPAN_INIT };
    struct {
        ffa_parallel_span span;
        int64_t newer;
    } wide[2] = { { .span = FFA_PARALLEL_SPAN_INIT } };
    struct pass pass;
    int32_t count = -1;

    pass_open(&pass);
    begin(&pass);
    mark(&pass, FFA_PARALLEL_LANE_COMPUTE, FFA_PARALLEL_SPAN_ATTENTION, -1, -1, 0);
    mark(&pass, FFA_PARALLEL_LANE_FETCH, FFA_PARALLEL_SPAN_COPY, 1, 7, 5);
    end(&pass);
    refused(&pass, spans, 1, "capacity is 1, the pass has 2 spans");
    refused(&pass, spans, -1, "capacity is -1, not at least 0");
    refused(&pass, NULL, 3, "spans is NULL, capacity is 3");
    ck_assert_int_eq(ffa_parallel_trace_get(pass.trace, NULL, 0, &count, NULL), FFA_OK);
    ck_assert_int_eq(count, 2);
    spans[2].rank = 99;
    ck_assert_int_eq(ffa_parallel_trace_get(pass.trace, spans, 3, &count, NULL), FFA_OK);
    ck_assert_int_eq(spans[1].rank, 7);
    ck_assert_int_eq(spans[2].rank, 99); /* left as it was */
    ck_assert_int_eq(ffa_parallel_trace_get(pass.trace, spans, 2, &count, NULL), FFA_OK);
    wide[0].span.struct_size = (uint32_t)sizeof wide[0]; /* of a newer caller */
    ck_assert_int_eq(ffa_parallel_trace_get(pass.trace, &wide[0].span, 2, &count, NULL), FFA_OK);
    ck_assert_int_eq(wide[1].span.rank, 7);
    spans[0].struct_size = 12;
    refused(&pass, spans, 3, "struct_size is 12, not a multiple of 8: start from the _INIT macro");
    ck_assert_int_eq(ffa_parallel_trace_get(NULL, spans, 3, &count, NULL), FFA_INVALID);
    ck_assert_int_eq(ffa_parallel_trace_get(pass.trace, spans, 3, NULL, NULL), FFA_INVALID);
    pass_close(&pass);
}
END_TEST

struct held {
    const uint64_t *word;
    uint64_t until;
};

static void hold(void *user)
{
    const struct held *held = user;

    while (fake_gpu_load(held->word) < held->until)
        usleep(100);
}

START_TEST(a_pass_that_is_not_over_is_refused)
{
    static const ffa_parallel_lane lanes[] = { FFA_PARALLEL_LANE_COMPUTE, FFA_PARALLEL_LANE_FETCH,
                                               FFA_PARALLEL_LANE_REDUCE };
    ffa_parallel_span spans[2] = { FFA_PARALLEL_SPAN_INIT };
    uint64_t word = 0;
    struct held held;
    struct pass pass;

    pass_open(&pass);
    for (uint64_t i = 0; i < 3; i++) {
        struct gpu_stream *const streams[] = { pass.stream, pass.comm.fetch, pass.comm.reduce };

        begin(&pass);
        held = (struct held){ &word, i + 1 };
        fake_gpu_launch(gpu_stream_handle(streams[i]), hold, &held);
        mark(&pass, lanes[i], FFA_PARALLEL_SPAN_WAIT, -1, -1, 0);
        ck_assert_int_eq(pass_trace_end(pass.trace, NULL), FFA_OK);
        refused(&pass, spans, 2, "the pass is not over: synchronise its stream first");
        fake_gpu_store(&word, i + 1);
        end(&pass); /* the caller's stream waits for all lanes */
        ck_assert_int_eq(get(&pass, (ffa_parallel_span[FFA_PARALLEL_SPANS_MAX]){ 0 }), 1);
    }
    pass_close(&pass);
}
END_TEST

START_TEST(arguments_of_create)
{
    ffa_context cpu = { 0 };
    ffa_error err = { FFA_OK, 0, "" };
    ffa_parallel_trace *trace = (ffa_parallel_trace *)(void *)&cpu;
    struct pass pass;

    ck_assert_int_eq(ffa_parallel_trace_create(&trace, &cpu, &err), FFA_UNSUPPORTED);
    ck_assert_ptr_null(trace);
    ck_assert_str_eq(err.message, "the context has no GPU: passes on the CPU have no trace");
    ck_assert_int_eq(ffa_parallel_trace_create(NULL, &cpu, &err), FFA_INVALID);
    ck_assert_int_eq(ffa_parallel_trace_create(&trace, NULL, &err), FFA_INVALID);
    ffa_parallel_trace_destroy(NULL);
    pass_open(&pass);
    ck_assert(pass_trace_is_of(pass.trace, fake_gpu(0)));
    ck_assert(!pass_trace_is_of(pass.trace, fake_gpu(1)));
    pass_close(&pass);
    /* Without a trace nothing is done. */
    ck_assert_int_eq(pass_trace_begin(NULL, NULL, NULL, NULL), FFA_OK);
    ck_assert_int_eq(pass_trace_mark(NULL, FFA_PARALLEL_LANE_FETCH, FFA_PARALLEL_SPAN_COPY,
                                     &(struct pass_mark){ 0 }, NULL),
                     FFA_OK);
    ck_assert_int_eq(pass_trace_end(NULL, NULL), FFA_OK);
}
END_TEST

START_TEST(creation_that_fails_leaves_nothing)
{
    static const enum fault_kind kinds[] = { FAULT_ALLOC, FAULT_GPU };
    ffa_parallel_trace *trace;
    ffa_context context = { 0 };
    long nth = 1;

    context.gpu = fake_gpu(0);
    for (;; nth++) {
        ffa_error err = { FFA_OK, 0, "" };
        ffa_status rc;

        fault_arm(kinds[_i], nth);
        rc = ffa_parallel_trace_create(&trace, &context, &err);
        if (!fault_fired())
            break;
        ck_assert_int_eq(rc, kinds[_i] == FAULT_ALLOC ? FFA_NOMEM : FFA_GPU);
        ck_assert_ptr_null(trace);
        ck_assert_str_ne(err.message, "");
    }
    fault_arm(kinds[_i], 0);
    ck_assert_ptr_nonnull(trace);
    ck_assert_int_gt(nth, 1);
    ffa_parallel_trace_destroy(trace);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pass_trace");
    TCase *tc = tcase_create("pass_trace");

    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, spans_stand_by_lane_without_gaps);
    tcase_add_test(tc, a_pass_is_recorded_anew);
    tcase_add_test(tc, what_has_no_room_is_the_last_span);
    tcase_add_test(tc, capacities);
    tcase_add_test(tc, a_pass_that_is_not_over_is_refused);
    tcase_add_test(tc, arguments_of_create);
    tcase_add_loop_test(tc, creation_that_fails_leaves_nothing, 0, 2);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
