/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests of the emulator's streams: what waits for what, and what does not.
 *
 * A stream is held by a host function that waits for a gate. Work that must not be done yet is
 * looked at after a short while, which can miss a mistake and cannot see one that is not there.
 * Each test is a process of its own, as a failure of a stream stays.
 */
#include "live.h"
#include "machine.h"
#include "runtime.h"
#include "support/suite.h"
#include "words.h"

#include <check.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 32, A_WHILE_MS = 30 };

static void must(cudaError_t code)
{
    ck_assert_msg(code == cudaSuccess, "%s", cudaGetErrorString(code));
}

static void must_too(CUresult code)
{
    ck_assert_int_eq(code, CUDA_SUCCESS);
}

static void pause_ms(int ms)
{
    const struct timespec time = { .tv_nsec = (long)ms * 1000000 };

    (void)nanosleep(&time, NULL);
}

static cudaStream_t stream_new(unsigned flags)
{
    cudaStream_t stream;

    must(cudaStreamCreateWithFlags(&stream, flags));
    return stream;
}

static cudaEvent_t event_new(void)
{
    cudaEvent_t event;

    must(cudaEventCreate(&event));
    return event;
}

/* ---- gates and steps ---- */

struct gate {
    atomic_bool is_open, is_reached;
};

static void pass_gate(void *data)
{
    struct gate *gate = data;

    atomic_store(&gate->is_reached, true);
    while (!atomic_load(&gate->is_open))
        pause_ms(1);
}

static void hold(cudaStream_t stream, struct gate *gate)
{
    must(cudaLaunchHostFunc(stream, pass_gate, gate));
}

/* Steps are numbered in the order in which they are done, from 1. */
static atomic_int steps;

static void take_step(void *data)
{
    atomic_store((atomic_int *)data, 1 + atomic_fetch_add(&steps, 1));
}

static void step(cudaStream_t stream, atomic_int *at)
{
    must(cudaLaunchHostFunc(stream, take_step, at));
}

static void check_not_yet(const atomic_int *at)
{
    pause_ms(A_WHILE_MS);
    ck_assert_int_eq(atomic_load(at), 0);
}

/* ---- order ---- */

START_TEST(a_stream_is_done_in_order)
{
    cudaStream_t stream = stream_new(cudaStreamNonBlocking);
    char from[3] = { 1, 2, 3 }, to[3] = { 0, 0, 0 };
    atomic_int first = 0, second = 0;
    struct gate gate = { 0 };

    hold(stream, &gate);
    must(cudaMemcpyAsync(to, from, 2, cudaMemcpyHostToDevice, stream));
    step(stream, &first);
    must(cudaMemsetAsync(to, 7, 1, stream));
    step(stream, &second);
    from[0] = 9; /* of pageable memory: it was read when the call returned */
    check_not_yet(&first);
    ck_assert_int_eq(to[1], 0);
    atomic_store(&gate.is_open, true);
    must(cudaStreamSynchronize(stream));
    ck_assert_int_eq(first, 1);
    ck_assert_int_eq(second, 2);
    ck_assert_int_eq(to[0], 7);
    ck_assert_int_eq(to[1], 2);
    ck_assert_int_eq(to[2], 0);
    must(cudaStreamDestroy(stream));
}
END_TEST

START_TEST(pinned_memory_is_read_when_the_copy_is_done)
{
    cudaStream_t stream = stream_new(cudaStreamNonBlocking);
    struct gate gate = { 0 };
    char *from, to = 0;

    must(cudaHostAlloc((void **)&from, 1, cudaHostAllocDefault));
    *from = 1;
    hold(stream, &gate);
    must(cudaMemcpyAsync(&to, from, 1, cudaMemcpyHostToDevice, stream));
    *from = 2;
    atomic_store(&gate.is_open, true);
    must(cudaStreamSynchronize(stream));
    ck_assert_int_eq(to, 2);
    must(cudaFreeHost(from));
}
END_TEST

static void open_late(void *data)
{
    pause_ms(A_WHILE_MS);
    *(char *)data = 5;
}

START_TEST(a_copy_to_pageable_memory_is_done_at_once)
{
    cudaStream_t stream = stream_new(cudaStreamNonBlocking);
    char from = 1, to = 0;

    must(cudaLaunchHostFunc(stream, open_late, &from));
    must(cudaMemcpyAsync(&to, &from, 1, cudaMemcpyDeviceToHost, stream));
    ck_assert_int_eq(to, 5);
}
END_TEST

START_TEST(streams_do_not_wait_for_each_other)
{
    cudaStream_t held = stream_new(cudaStreamNonBlocking), free = stream_new(cudaStreamNonBlocking);
    atomic_int first = 0, second = 0;
    struct gate gate = { 0 };

    hold(held, &gate);
    step(held, &second);
    step(free, &first);
    must(cudaStreamSynchronize(free));
    ck_assert_int_eq(first, 1);
    check_not_yet(&second);
    atomic_store(&gate.is_open, true);
    must(cudaDeviceSynchronize());
    ck_assert_int_eq(second, 2);
}
END_TEST

/* ---- the legacy stream ---- */

START_TEST(the_legacy_stream_is_ordered_with_blocking_streams)
{
    cudaStream_t held = stream_new(cudaStreamDefault), other = stream_new(cudaStreamDefault);
    atomic_int before = 0, legacy = 0, after = 0;
    struct gate gate = { 0 };

    hold(held, &gate);
    step(other, &before); /* blocking streams do not wait for each other */
    must(cudaStreamSynchronize(other));
    ck_assert_int_eq(before, 1);
    step(NULL, &legacy);
    step(other, &after);
    check_not_yet(&legacy);
    check_not_yet(&after);
    atomic_store(&gate.is_open, true);
    must(cudaStreamSynchronize(other));
    ck_assert_int_eq(legacy, 2);
    ck_assert_int_eq(after, 3);
}
END_TEST

START_TEST(non_blocking_streams_are_not_ordered_with_the_legacy_one)
{
    cudaStream_t held = stream_new(cudaStreamNonBlocking), free = stream_new(cudaStreamNonBlocking);
    atomic_int legacy = 0, other = 0;
    struct gate gate = { 0 }, legacy_gate = { 0 };
    char from = 3, to = 0;

    hold(held, &gate);
    step(NULL, &legacy);
    must(cudaMemcpy(&to, &from, 1, cudaMemcpyDefault)); /* of the legacy stream */
    ck_assert_int_eq(legacy, 1);
    ck_assert_int_eq(to, 3);
    hold(NULL, &legacy_gate);
    step(free, &other);
    must(cudaStreamSynchronize(free));
    ck_assert_int_eq(other, 2);
    atomic_store(&gate.is_open, true);
    atomic_store(&legacy_gate.is_open, true);
    must(cudaDeviceSynchronize());
}
END_TEST

START_TEST(a_copy_from_pageable_memory_is_staged)
{
    struct gate gate = { 0 };
    char from = 3, *to;

    must(cudaMalloc((void **)&to, 1));
    *to = 0;
    hold(NULL, &gate);
    must(cudaMemcpy(to, &from, 1, cudaMemcpyDefault)); /* returns before it is done */
    from = 4;
    ck_assert_int_eq(*to, 0);
    atomic_store(&gate.is_open, true);
    must(cudaStreamSynchronize(NULL));
    ck_assert_int_eq(*to, 3);
    must(cudaFree(to));
}
END_TEST

START_TEST(to_synchronise_the_legacy_stream_is_to_wait_for_blocking_streams)
{
    cudaStream_t stream = stream_new(cudaStreamDefault);
    char late = 0;

    must(cudaLaunchHostFunc(stream, open_late, &late));
    must(cudaStreamSynchronize(NULL));
    ck_assert_int_eq(late, 5);
}
END_TEST

/* ---- events ---- */

START_TEST(a_stream_waits_for_the_last_record_before_the_wait)
{
    cudaStream_t from = stream_new(cudaStreamNonBlocking), to = stream_new(cudaStreamNonBlocking);
    struct gate gate = { 0 }, next = { 0 };
    cudaEvent_t event = event_new();
    atomic_int waits = 0;

    must(cudaEventQuery(event)); /* never recorded: passed */
    must(cudaStreamWaitEvent(to, event, 0));
    must(cudaStreamSynchronize(to));
    hold(from, &gate);
    must(cudaEventRecord(event, from));
    ck_assert_int_eq(cudaEventQuery(event), cudaErrorNotReady);
    must(cudaStreamWaitEvent(to, event, 0));
    step(to, &waits);
    hold(from, &next);
    must(cudaEventRecord(event, from)); /* the wait was for the record before */
    check_not_yet(&waits);
    atomic_store(&gate.is_open, true);
    must(cudaStreamSynchronize(to));
    ck_assert_int_eq(waits, 1);
    ck_assert_int_eq(cudaEventQuery(event), cudaErrorNotReady);
    must(cudaEventDestroy(event)); /* its marks stay until they have passed */
    atomic_store(&next.is_open, true);
    must(cudaStreamSynchronize(from));
}
END_TEST

START_TEST(time_passes_between_events)
{
    cudaStream_t stream = stream_new(cudaStreamNonBlocking);
    cudaEvent_t first = event_new(), next = event_new(), last = event_new();
    struct gate gate = { 0 };
    float ms = -1.0f;
    char late = 0;

    ck_assert_int_eq(cudaEventElapsedTime(&ms, first, last), cudaErrorInvalidResourceHandle);
    must(cudaEventRecord(first, stream));
    must(cudaEventRecord(next, stream));
    must(cudaLaunchHostFunc(stream, open_late, &late));
    hold(stream, &gate);
    must(cudaEventRecord(last, stream));
    ck_assert_int_eq(cudaEventElapsedTime(&ms, first, last), cudaErrorNotReady);
    atomic_store(&gate.is_open, true);
    must(cudaEventSynchronize(last));
    must(cudaEventElapsedTime(&ms, first, last));
    ck_assert_float_ge(ms, (float)A_WHILE_MS);
    must(cudaEventElapsedTime(&ms, first, next));
    ck_assert_float_gt(ms, 0.0f);
}
END_TEST

/* ---- words ---- */

static uint64_t flag;

static CUdeviceptr address_of(const uint64_t *word)
{
    return (CUdeviceptr)(uintptr_t)word;
}

START_TEST(a_word_holds_up_its_stream_alone)
{
    cudaStream_t waits = stream_new(cudaStreamNonBlocking),
                 writes = stream_new(cudaStreamNonBlocking);
    atomic_int released = 0;

    must_too(words_wait(waits, address_of(&flag), 3, CU_STREAM_WAIT_VALUE_GEQ));
    step(waits, &released);
    must_too(words_write(writes, address_of(&flag), 2, 0));
    must(cudaStreamSynchronize(writes));
    check_not_yet(&released);
    must_too(words_write(writes, address_of(&flag), 4, 0));
    must(cudaStreamSynchronize(waits));
    ck_assert_int_eq(released, 1);
}
END_TEST

/* "There" is cyclic: a word may pass 2^64, and a poisoned one, value + 2^62, is there. */
START_TEST(words_are_compared_cyclically)
{
    static const struct {
        uint64_t word, value;
        bool is_there;
    } rows[] = {
        { 5, 5, true },          { 6, 5, true },           { 4, 5, false },
        { 1, UINT64_MAX, true }, { UINT64_MAX, 1, false }, { 5 + (1ull << 62), 5, true },
    };
    cudaStream_t waits = stream_new(cudaStreamNonBlocking),
                 writes = stream_new(cudaStreamNonBlocking);

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        atomic_int released = 0;

        must_too(words_write(writes, address_of(&flag), rows[i].word, 0));
        must(cudaStreamSynchronize(writes));
        must_too(words_wait(waits, address_of(&flag), rows[i].value, CU_STREAM_WAIT_VALUE_GEQ));
        step(waits, &released);
        if (rows[i].is_there)
            must(cudaStreamSynchronize(waits));
        else
            check_not_yet(&released);
        must_too(words_write(writes, address_of(&flag), rows[i].value, 0));
        must(cudaDeviceSynchronize());
    }
}
END_TEST

START_TEST(a_word_that_nobody_writes_fails)
{
    cudaStream_t stream = stream_new(cudaStreamNonBlocking);
    atomic_int after = 0;

    ck_assert_int_eq(setenv("FFA_EMULATOR_TIMEOUT_MS", "50", 1), 0);
    must_too(words_wait(stream, address_of(&flag), 1, CU_STREAM_WAIT_VALUE_GEQ));
    step(stream, &after);
    ck_assert_int_eq(cudaStreamSynchronize(stream), cudaErrorLaunchTimeout);
    ck_assert_int_eq(after, 0);
    ck_assert_int_eq(cudaDeviceSynchronize(), cudaErrorLaunchTimeout); /* it stays */
}
END_TEST

START_TEST(what_is_no_word_is_refused)
{
    cudaStream_t stream = stream_new(cudaStreamNonBlocking);
    CUstreamBatchMemOpParams ops[2] = { { 0 }, { 0 } };

    ck_assert_int_eq(words_wait(stream, 0, 1, CU_STREAM_WAIT_VALUE_GEQ), CUDA_ERROR_INVALID_VALUE);
    ck_assert_int_eq(words_wait(stream, address_of(&flag) + 4, 1, CU_STREAM_WAIT_VALUE_GEQ),
                     CUDA_ERROR_INVALID_VALUE);
    ck_assert_int_eq(words_wait(stream, address_of(&flag), 1, CU_STREAM_WAIT_VALUE_EQ),
                     CUDA_ERROR_INVALID_VALUE);
    ck_assert_int_eq(words_write(stream, 0, 1, 0), CUDA_ERROR_INVALID_VALUE);
    ops[0].operation = ops[1].operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    ops[0].writeValue.address = address_of(&flag);
    ops[0].writeValue.value64 = 1;
    ck_assert_int_eq(words_batch(stream, 2, ops, 0), CUDA_ERROR_INVALID_VALUE);
    ck_assert_int_eq(words_batch(stream, 0, ops, 0), CUDA_ERROR_INVALID_VALUE);
    must_too(words_batch(stream, 1, ops, 0));
    must(cudaStreamSynchronize(stream));
    ck_assert_uint_eq(flag, 1);
}
END_TEST

START_TEST(batches_of_copies)
{
    char from[2] = "ab", to[2] = "--";
    CUdeviceptr dst[] = { (CUdeviceptr)(uintptr_t)&to[1], (CUdeviceptr)(uintptr_t)&to[0] };
    CUdeviceptr src[] = { (CUdeviceptr)(uintptr_t)&from[0], (CUdeviceptr)(uintptr_t)&from[1] };
    CUmemcpyAttributes attributes = { .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM };
    cudaStream_t stream = stream_new(cudaStreamNonBlocking);
    size_t bytes[] = { 1, 1 }, first = 0, failed;
    struct gate gate = { 0 };

    ck_assert_int_eq(words_copy_batch(dst, src, bytes, 2, &attributes, &first, 1, &failed, NULL),
                     CUDA_ERROR_INVALID_VALUE);
    hold(stream, &gate);
    must_too(words_copy_batch(dst, src, bytes, 2, &attributes, &first, 1, &failed, stream));
    from[0] = 'c'; /* read in stream order */
    atomic_store(&gate.is_open, true);
    must(cudaStreamSynchronize(stream));
    ck_assert_mem_eq(to, "bc", 2);
    bytes[1] = 0;
    ck_assert_int_eq(words_copy_batch(dst, src, bytes, 2, &attributes, &first, 1, &failed, stream),
                     CUDA_ERROR_INVALID_VALUE);
    ck_assert_uint_eq(failed, 1);
}
END_TEST

/* ---- launches ---- */

static uint64_t seen;

static void polls(const void *args)
{
    (void)args;
    if (emulator_thread.x == 0) {
        while (emulator_poll(&flag) == 0)
            continue;
        __atomic_store_n(&seen, flag, __ATOMIC_RELEASE);
    }
}

static void raises(const void *args)
{
    if (emulator_thread.x == 1)
        __atomic_store_n(&flag, *(const uint64_t *)args, __ATOMIC_RELEASE);
}

static void breaks(const void *args)
{
    (void)args;
    emulator_fail("as told");
}

static void launch(void (*entry)(const void *), uint64_t value, cudaStream_t stream)
{
    static struct kernel kernels[3];
    struct kernel *kernel = &kernels[entry == polls ? 0 : entry == raises ? 1 : 2];
    const cudaLaunchConfig_t config = { .gridDim = { 1, 1, 1 },
                                        .blockDim = { THREADS, 1, 1 },
                                        .stream = stream };
    void *args[] = { &value };

    *kernel = (struct kernel){ .entry = entry, .args_bytes = sizeof value, .name = "of a test" };
    must(cudaLaunchKernelExC(&config, kernel, args));
}

/* Enqueued by one host thread, the one that waits first. */
START_TEST(launches_of_two_streams_run_at_the_same_time)
{
    cudaStream_t waits = stream_new(cudaStreamNonBlocking),
                 raising = stream_new(cudaStreamNonBlocking);

    launch(polls, 0, waits);
    launch(raises, 7, raising);
    must(cudaDeviceSynchronize());
    ck_assert_uint_eq(seen, 7);
}
END_TEST

/* With one SM, the launch that polls keeps out the one that would end it. */
START_TEST(launches_share_the_sms)
{
    cudaStream_t waits = stream_new(cudaStreamNonBlocking),
                 raising = stream_new(cudaStreamNonBlocking);
    const int64_t before = emulator_stalls();

    ck_assert_int_eq(setenv("FFA_EMULATOR_SMS", "1", 1), 0);
    ck_assert_int_eq(setenv("FFA_EMULATOR_TIMEOUT_MS", "5000", 1), 0);
    launch(polls, 0, waits);
    while (emulator_stalls() < before + 2)
        pause_ms(1);
    launch(raises, 7, raising);
    ck_assert_int_eq(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
    ck_assert_uint_eq(flag, 0);
}
END_TEST

START_TEST(a_stream_writes_what_a_launch_polls)
{
    cudaStream_t waits = stream_new(cudaStreamNonBlocking),
                 writes = stream_new(cudaStreamNonBlocking);

    launch(polls, 0, waits);
    must_too(words_write(writes, address_of(&flag), 9, 0));
    must(cudaStreamSynchronize(waits));
    ck_assert_uint_eq(seen, 9);
}
END_TEST

START_TEST(a_failure_stays_and_ends_what_waits)
{
    cudaStream_t fails = stream_new(cudaStreamNonBlocking),
                 waits = stream_new(cudaStreamNonBlocking);
    cudaEvent_t event = event_new();

    must_too(words_wait(waits, address_of(&flag), 1, CU_STREAM_WAIT_VALUE_GEQ));
    launch(breaks, 0, fails);
    ck_assert_int_eq(cudaStreamSynchronize(fails), cudaErrorLaunchFailure);
    ck_assert_int_eq(cudaStreamSynchronize(waits), cudaErrorLaunchFailure);
    ck_assert_int_eq(cudaGetLastError(), cudaErrorLaunchFailure);
    ck_assert_int_eq(cudaEventRecord(event, waits), cudaErrorLaunchFailure);
}
END_TEST

/* ---- captures ---- */

START_TEST(a_capture_does_nothing_and_each_replay_all)
{
    cudaStream_t stream = stream_new(cudaStreamNonBlocking);
    cudaEvent_t event = event_new();
    atomic_int at = 0;
    cudaGraphExec_t exec;
    cudaGraph_t graph;

    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    step(stream, &at);
    launch(raises, 11, stream);
    ck_assert_int_eq(cudaEventRecord(event, stream), cudaErrorStreamCaptureUnsupported);
    must(cudaStreamEndCapture(stream, &graph));
    must(cudaGraphInstantiate(&exec, graph, 0));
    must(cudaStreamSynchronize(stream));
    ck_assert_int_eq(at, 0);
    for (int i = 1; i <= 2; i++) {
        flag = 0;
        must(cudaGraphLaunch(exec, stream));
        must(cudaStreamSynchronize(stream));
        ck_assert_int_eq(at, i);
        ck_assert_uint_eq(flag, 11);
    }
    must(cudaGraphExecDestroy(exec));
    must(cudaGraphDestroy(graph));
}
END_TEST

/* ---- devices ---- */

START_TEST(devices_have_legacy_streams_of_their_own)
{
    atomic_int first = 0, second = 0;
    struct gate gate = { 0 };
    int count, can;

    ck_assert_int_eq(setenv("FFA_EMULATOR_DEVICES", "2", 1), 0);
    must(cudaGetDeviceCount(&count));
    ck_assert_int_eq(count, 2);
    must(cudaDeviceCanAccessPeer(&can, 0, 1));
    ck_assert(can);
    must(cudaSetDevice(0));
    must(cudaDeviceEnablePeerAccess(1, 0));
    ck_assert_int_eq(cudaDeviceEnablePeerAccess(1, 0), cudaErrorPeerAccessAlreadyEnabled);
    hold(NULL, &gate);
    step(NULL, &second);
    must(cudaSetDevice(1));
    step(NULL, &first);
    must(cudaDeviceSynchronize());
    ck_assert_int_eq(first, 1);
    ck_assert_int_eq(cudaSetDevice(2), cudaErrorInvalidDevice);
    must(cudaSetDevice(0));
    atomic_store(&gate.is_open, true);
    must(cudaDeviceSynchronize());
    ck_assert_int_eq(second, 2);
}
END_TEST

/* ---- what was given, and what was not ---- */

START_TEST(memory_that_was_never_given_is_not_freed)
{
    const cudaStream_t stream = stream_new(cudaStreamNonBlocking);
    int64_t before[LIVE_KINDS], after[LIVE_KINDS];
    char own[16];
    void *memory;

    emulator_live(before);
    must(cudaMalloc(&memory, 4096));
    ck_assert_int_eq(cudaFree(own), cudaErrorInvalidValue);
    ck_assert_int_eq(cudaFree((char *)memory + 256), cudaErrorInvalidValue);
    ck_assert_int_eq(cudaFreeAsync(own, stream), cudaErrorInvalidValue);
    emulator_live(after);
    ck_assert_int_eq(after[LIVE_ALLOCATIONS], before[LIVE_ALLOCATIONS] + 1);
    ck_assert_int_eq(after[LIVE_BYTES], before[LIVE_BYTES] + 4096);
    must(cudaFree(memory));
    ck_assert_int_eq(cudaFree(memory), cudaErrorInvalidValue);
    must(cudaFree(NULL));
    must(cudaMalloc(&memory, 4096));
    must(cudaFreeAsync(memory, stream));
    must(cudaStreamSynchronize(stream));
    emulator_live(after);
    ck_assert_mem_eq(before, after, sizeof before);
    must(cudaStreamDestroy(stream));
    emulator_live(after);
    ck_assert_int_eq(after[LIVE_STREAMS], before[LIVE_STREAMS] - 1);
}
END_TEST

static const char *const bad_settings[] = { "17", "0", "-1", "", "4x", "99999999999999999999" };

START_TEST(a_setting_out_of_its_bounds_ends_the_process)
{
    int status;
    const pid_t child = fork();

    if (child == 0) {
        (void)setenv("FFA_EMULATOR_SMS", bad_settings[_i], 1);
        _exit(runtime_sm_count() > 0 ? 0 : 2);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 1, "status %x", (unsigned)status);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("emulator_streams");
    TCase *tc = tcase_create("streams");

    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, a_stream_is_done_in_order);
    tcase_add_test(tc, pinned_memory_is_read_when_the_copy_is_done);
    tcase_add_test(tc, a_copy_to_pageable_memory_is_done_at_once);
    tcase_add_test(tc, streams_do_not_wait_for_each_other);
    tcase_add_test(tc, the_legacy_stream_is_ordered_with_blocking_streams);
    tcase_add_test(tc, non_blocking_streams_are_not_ordered_with_the_legacy_one);
    tcase_add_test(tc, a_copy_from_pageable_memory_is_staged);
    tcase_add_test(tc, to_synchronise_the_legacy_stream_is_to_wait_for_blocking_streams);
    tcase_add_test(tc, a_stream_waits_for_the_last_record_before_the_wait);
    tcase_add_test(tc, time_passes_between_events);
    tcase_add_test(tc, a_word_holds_up_its_stream_alone);
    tcase_add_test(tc, words_are_compared_cyclically);
    tcase_add_test(tc, a_word_that_nobody_writes_fails);
    tcase_add_test(tc, what_is_no_word_is_refused);
    tcase_add_test(tc, batches_of_copies);
    tcase_add_test(tc, launches_of_two_streams_run_at_the_same_time);
    tcase_add_test(tc, launches_share_the_sms);
    tcase_add_test(tc, a_stream_writes_what_a_launch_polls);
    tcase_add_test(tc, a_failure_stays_and_ends_what_waits);
    tcase_add_test(tc, a_capture_does_nothing_and_each_replay_all);
    tcase_add_test(tc, devices_have_legacy_streams_of_their_own);
    tcase_add_test(tc, memory_that_was_never_given_is_not_freed);
    tcase_add_loop_test(tc, a_setting_out_of_its_bounds_ends_the_process, 0,
                        sizeof bad_settings / sizeof *bad_settings);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
