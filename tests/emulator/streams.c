/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams and their threads.
 *
 * Invariant: a stream's first piece of work is the one that runs, or that may not run yet, and it
 * leaves the queue when it is done. Trick: all work is numbered as it is enqueued, so that the
 * order of a blocking stream and the legacy one is a comparison of the numbers of their first
 * pieces. One lock and one condition are enough for all streams: pieces of work are large.
 */
#include "streams.h"

#include "memory.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct mark {
    int users;
    bool is_passed;
    int64_t passed_ns;
};

struct item {
    struct item *next;
    uint64_t order;
    struct work work;
    _Alignas(64) char args[];
};

struct stream {
    struct stream *next;
    uint64_t id;
    int device;
    bool is_blocking, is_legacy, has_thread, is_ending;
    struct item *first, **end;
    uint64_t enqueued, finished;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct stream *streams;
static struct stream legacy[EMULATOR_DEVICES];
static uint64_t orders;
static cudaError_t failure;

static void hold(void)
{
    (void)pthread_mutex_lock(&lock);
}

static void let_go(void)
{
    (void)pthread_mutex_unlock(&lock);
}

static void wait_for_change(void)
{
    (void)pthread_cond_wait(&changed, &lock);
}

static void fail(cudaError_t code)
{
    if (failure == cudaSuccess)
        failure = code;
}

cudaError_t streams_failure(void)
{
    cudaError_t code;

    hold();
    code = failure;
    let_go();
    return code;
}

/* ---- marks; under the lock ---- */

static struct mark *mark_use(struct mark *mark)
{
    if (mark)
        mark->users++;
    return mark;
}

static void mark_drop(struct mark *mark)
{
    if (mark && --mark->users == 0)
        free(mark);
}

static void mark_wait(const struct mark *mark)
{
    while (mark && !mark->is_passed)
        wait_for_change();
}

/* ---- doing the work ---- */

/* Streams are late now and then, and now and then very late, so that what nothing orders comes in
 * another order. */
static void be_late(uint64_t order)
{
    enum { LATE = 8, VERY_LATE = 64, MOST_US = 2000, VERY_MOST_US = 20000 };
    uint64_t random = order + (uint64_t)runtime_setting("FFA_EMULATOR_SEED", 1, INT32_MAX) * 977;
    struct timespec pause = { 0 };

    random = (random ^ random >> 30) * 0xbf58476d1ce4e5b9ull;
    random = (random ^ random >> 27) * 0x94d049bb133111ebull;
    random ^= random >> 31;
    pause.tv_nsec =
        (long)(random / VERY_LATE % (random % VERY_LATE ? MOST_US : VERY_MOST_US)) * 1000;
    if (random % LATE == 0)
        (void)nanosleep(&pause, NULL);
}

static bool is_there(const uint64_t *word, uint64_t value)
{
    return (int64_t)(__atomic_load_n(word, __ATOMIC_ACQUIRE) - value) >= 0;
}

/* Holds up the stream's own thread. */
static cudaError_t word_wait(const uint64_t *word, uint64_t value)
{
    const struct timespec pause = { .tv_nsec = 50000 };
    const int64_t from_ns = runtime_now_ns(), limit_ms = runtime_timeout_ms();

    while (!is_there(word, value)) {
        if (streams_failure() != cudaSuccess)
            return cudaSuccess;
        if (runtime_now_ns() - from_ns > limit_ms * 1000000) {
            fprintf(stderr,
                    "emulator: a stream waits for the word at %p to be %llu, which is %llu\n",
                    (const void *)word, (unsigned long long)value,
                    (unsigned long long)__atomic_load_n(word, __ATOMIC_ACQUIRE));
            return cudaErrorLaunchTimeout;
        }
        (void)nanosleep(&pause, NULL);
    }
    return cudaSuccess;
}

static cudaError_t run(const struct work *work, int device)
{
    switch (work->kind) {
    case WORK_LAUNCH:
        return kernel_run(work->kernel, work->shape, work->args, work->number, device);
    case WORK_HOST:
        work->host(work->to);
        break;
    case WORK_COPY:
        memcpy(work->to, work->from, work->bytes);
        break;
    case WORK_FILL:
        memset(work->to, work->byte, work->bytes);
        break;
    case WORK_WORD_WAIT:
        return word_wait(work->to, work->value);
    case WORK_WORD_WRITE:
        __atomic_store_n((uint64_t *)work->to, work->value, __ATOMIC_RELEASE);
        break;
    case WORK_FREE:
        return memory_free(work->to) ? cudaSuccess : cudaErrorInvalidValue;
    default:
        break;
    }
    return cudaSuccess;
}

/* ---- queues; under the lock ---- */

static bool may_run(const struct stream *stream)
{
    for (const struct stream *s = streams; s && stream->is_blocking; s = s->next)
        if (s != stream && s->device == stream->device && s->is_blocking &&
            (s->is_legacy || stream->is_legacy) && s->first &&
            s->first->order < stream->first->order)
            return false;
    return true;
}

static void pop(struct stream *stream)
{
    struct item *item = stream->first;

    stream->first = item->next;
    if (!stream->first)
        stream->end = &stream->first;
    stream->finished++;
    mark_drop(item->work.mark);
    free(item);
    (void)pthread_cond_broadcast(&changed);
}

/* Do the first piece, without the lock. */
static void run_first(const struct stream *stream)
{
    const struct work *work = &stream->first->work;
    cudaError_t code;

    if (work->kind == WORK_AFTER) {
        mark_wait(work->mark);
    } else if (work->kind == WORK_PASS) {
        work->mark->is_passed = true;
        work->mark->passed_ns = runtime_now_ns();
    } else if (failure == cudaSuccess) {
        let_go();
        if (!stream->is_legacy)
            be_late(stream->first->order);
        code = run(work, stream->device);
        hold();
        if (code != cudaSuccess)
            fail(code);
    }
}

static void unlink_stream(const struct stream *stream)
{
    for (struct stream **at = &streams; *at; at = &(*at)->next)
        if (*at == stream) {
            *at = stream->next;
            return;
        }
}

static void *run_thread(void *user)
{
    struct stream *stream = user;

    hold();
    while (stream->first || !stream->is_ending) {
        if (!stream->first || !may_run(stream)) {
            wait_for_change();
            continue;
        }
        run_first(stream);
        pop(stream);
    }
    unlink_stream(stream);
    let_go();
    free(stream);
    return NULL;
}

static bool has_thread(struct stream *stream)
{
    pthread_t thread;

    if (!stream->has_thread && pthread_create(&thread, NULL, run_thread, stream) == 0) {
        stream->has_thread = true;
        (void)pthread_detach(thread);
    }
    return stream->has_thread;
}

static void start(struct stream *stream, int device, bool is_blocking)
{
    static uint64_t started;

    *stream = (struct stream){
        .next = streams, .id = ++started, .device = device, .is_blocking = is_blocking
    };
    stream->end = &stream->first;
    streams = stream;
}

/* ---- streams ---- */

struct stream *stream_create(int device, bool is_blocking)
{
    struct stream *stream = malloc(sizeof *stream);

    if (!stream)
        return NULL;
    hold();
    start(stream, device, is_blocking);
    let_go();
    return stream;
}

void stream_destroy(struct stream *stream)
{
    bool has_thread;

    hold();
    has_thread = stream->has_thread;
    stream->is_ending = true;
    if (!has_thread)
        unlink_stream(stream);
    (void)pthread_cond_broadcast(&changed);
    let_go();
    if (!has_thread)
        free(stream);
}

uint64_t stream_id(const struct stream *stream)
{
    return stream->id;
}

struct stream *stream_of(cudaStream_t handle)
{
    const int device = runtime_device();
    struct stream *stream = (struct stream *)handle;

    if (handle && handle != cudaStreamLegacy)
        return stream;
    stream = &legacy[device];
    hold();
    if (!stream->is_legacy) {
        start(stream, device, true);
        stream->is_legacy = true;
    }
    let_go();
    return stream;
}

/* Under the lock. */
static cudaError_t append(struct stream *stream, struct item *item)
{
    if (failure != cudaSuccess)
        return failure;
    if (!has_thread(stream))
        return cudaErrorMemoryAllocation;
    (void)mark_use(item->work.mark);
    item->order = ++orders;
    *stream->end = item;
    stream->end = &item->next;
    stream->enqueued++;
    (void)pthread_cond_broadcast(&changed);
    return cudaSuccess;
}

cudaError_t stream_enqueue(struct stream *stream, const struct work *work)
{
    struct item *item = aligned_alloc(64, (sizeof *item + work->args_bytes + 63) / 64 * 64);
    cudaError_t code;

    if (!item)
        return cudaErrorMemoryAllocation;
    item->next = NULL;
    item->work = *work;
    if (work->args_bytes) {
        memcpy(item->args, work->args, work->args_bytes);
        item->work.args = item->args;
        if (work->kind == WORK_COPY)
            item->work.from = item->args;
    }
    hold();
    code = append(stream, item);
    let_go();
    if (code != cudaSuccess)
        free(item);
    return code;
}

/* The legacy stream is done when the blocking streams are, so it gets work that waits for them. */
cudaError_t stream_finish(struct stream *stream)
{
    cudaError_t code = cudaSuccess;
    uint64_t until;

    if (stream->is_legacy)
        code = stream_enqueue(stream, &(struct work){ .kind = WORK_NOTHING });
    hold();
    until = stream->enqueued;
    while (stream->finished < until)
        wait_for_change();
    if (code == cudaSuccess)
        code = failure;
    let_go();
    return code;
}

static bool is_busy(int device, uint64_t until)
{
    for (const struct stream *s = streams; s; s = s->next)
        if ((device < 0 || s->device == device) && s->first && s->first->order <= until)
            return true;
    return false;
}

cudaError_t streams_finish(int device)
{
    cudaError_t code;
    uint64_t until;

    hold();
    until = orders;
    while (is_busy(device, until))
        wait_for_change();
    code = failure;
    let_go();
    return code;
}

/* ---- events ---- */

cudaError_t event_record(struct event *event, struct stream *stream)
{
    struct mark *mark = calloc(1, sizeof *mark);
    cudaError_t code;

    if (!mark)
        return cudaErrorMemoryAllocation;
    mark->users = 1;
    code = stream_enqueue(stream, &(struct work){ .kind = WORK_PASS, .mark = mark });
    hold();
    if (code == cudaSuccess) {
        mark_drop(event->mark);
        event->mark = mark;
    } else {
        mark_drop(mark);
    }
    let_go();
    return code;
}

cudaError_t event_after(struct event *event, struct stream *stream)
{
    struct work work = { .kind = WORK_AFTER };
    cudaError_t code = cudaSuccess;

    hold();
    work.mark = mark_use(event->mark);
    let_go();
    if (!work.mark)
        return cudaSuccess;
    code = stream_enqueue(stream, &work);
    hold();
    mark_drop(work.mark);
    let_go();
    return code;
}

bool event_is_passed(const struct event *event)
{
    bool is_passed;

    hold();
    is_passed = !event->mark || event->mark->is_passed;
    let_go();
    return is_passed;
}

void event_finish(const struct event *event)
{
    struct mark *mark;

    hold();
    mark = mark_use(event->mark);
    mark_wait(mark);
    mark_drop(mark);
    let_go();
}

void event_drop(struct event *event)
{
    hold();
    mark_drop(event->mark);
    let_go();
    free(event);
}

int64_t event_elapsed_ns(const struct event *from, const struct event *to)
{
    int64_t ns;

    hold();
    ns = to->mark->passed_ns - from->mark->passed_ns;
    let_go();
    return ns;
}
