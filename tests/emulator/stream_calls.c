/* SPDX-License-Identifier: Apache-2.0
 *
 * The runtime's functions of streams, events and graphs.
 *
 * A graph is a list of launches, host functions, copies and fills. One stream at a time captures. A
 * copy from pageable memory has read its bytes when the call returns, one to pageable memory is
 * done then, and one of pinned memory is done in the stream's order, as on a GPU. In a graph all of
 * them are done at each replay.
 */
#include "stream_calls.h"

#include "memory.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* ---- graphs ---- */

struct node {
    struct node *next;
    struct work work;
    _Alignas(64) char args[]; /* of a launch */
};

struct graph {
    struct node *first, **end;
};

/* The stream that is capturing, and the graph it fills; NULL: none is. */
static pthread_mutex_t capture_lock = PTHREAD_MUTEX_INITIALIZER;
static cudaStream_t capturing;
static struct graph *capture;

static bool is_capturing(cudaStream_t stream)
{
    bool is;

    (void)pthread_mutex_lock(&capture_lock);
    is = capture && stream == capturing;
    (void)pthread_mutex_unlock(&capture_lock);
    return is;
}

static cudaError_t append(struct graph *graph, const struct work *work)
{
    struct node *node = aligned_alloc(64, (sizeof *node + work->args_bytes + 63) / 64 * 64);

    if (!node)
        return cudaErrorMemoryAllocation;
    node->next = NULL;
    node->work = *work;
    if (work->args_bytes) {
        memcpy(node->args, work->args, work->args_bytes);
        node->work.args = node->args;
    }
    *graph->end = node;
    graph->end = &node->next;
    return cudaSuccess;
}

static uint64_t launch_number(void)
{
    static uint64_t launches;

    return __atomic_add_fetch(&launches, 1, __ATOMIC_RELAXED);
}

cudaError_t stream_call(cudaStream_t stream, const struct work *work)
{
    struct work numbered = *work;

    if (is_capturing(stream))
        return runtime_done(work->kind <= WORK_FILL ? append(capture, work)
                                                    : cudaErrorStreamCaptureUnsupported);
    if (work->kind == WORK_LAUNCH)
        numbered.number = launch_number();
    return runtime_done(stream_enqueue(stream_of(stream), &numbered));
}

EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    static _Thread_local enum cudaStreamCaptureMode now = cudaStreamCaptureModeGlobal;
    const enum cudaStreamCaptureMode before = now;

    now = *mode;
    *mode = before;
    return cudaSuccess;
}

EXPORT cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long *id)
{
    *id = stream_id(stream_of(stream));
    return cudaSuccess;
}

EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    *status = is_capturing(stream) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

EXPORT cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    struct graph *graph = calloc(1, sizeof *graph);
    cudaError_t code = cudaSuccess;

    (void)mode;
    if (!graph)
        return runtime_done(cudaErrorMemoryAllocation);
    graph->end = &graph->first;
    (void)pthread_mutex_lock(&capture_lock);
    if (capture) {
        code = cudaErrorStreamCaptureUnsupported;
    } else {
        capture = graph;
        capturing = stream;
    }
    (void)pthread_mutex_unlock(&capture_lock);
    if (code != cudaSuccess)
        free(graph);
    return runtime_done(code);
}

EXPORT cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    if (!is_capturing(stream))
        return runtime_done(cudaErrorStreamCaptureInvalidated);
    (void)pthread_mutex_lock(&capture_lock);
    *graph = (cudaGraph_t)capture;
    capture = NULL;
    (void)pthread_mutex_unlock(&capture_lock);
    return cudaSuccess;
}

/* The executable graph is the graph, which must outlive it. */
EXPORT cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph,
                                        unsigned long long flags)
{
    (void)flags;
    *exec = (cudaGraphExec_t)graph;
    return cudaSuccess;
}

EXPORT cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    const struct graph *graph = (const struct graph *)exec;
    cudaError_t code = cudaSuccess;

    for (const struct node *node = graph->first; node && code == cudaSuccess; node = node->next)
        code = stream_call(stream, &node->work);
    return code;
}

EXPORT cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    (void)exec;
    return cudaSuccess;
}

EXPORT cudaError_t cudaGraphDestroy(cudaGraph_t handle)
{
    struct graph *graph = (struct graph *)handle;

    for (struct node *node = graph->first, *next; node; node = next) {
        next = node->next;
        free(node);
    }
    free(graph);
    return cudaSuccess;
}

/* ---- streams ---- */

EXPORT cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    *stream = (cudaStream_t)stream_create(runtime_device(), !(flags & cudaStreamNonBlocking));
    runtime_live_add(LIVE_STREAMS, *stream != NULL);
    return runtime_done(*stream ? cudaSuccess : cudaErrorMemoryAllocation);
}

EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
    (void)priority;
    return cudaStreamCreateWithFlags(stream, flags);
}

EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

EXPORT cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    stream_destroy((struct stream *)stream);
    runtime_live_add(LIVE_STREAMS, -1);
    return cudaSuccess;
}

EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    return runtime_done(is_capturing(stream) ? cudaErrorStreamCaptureUnsupported
                                             : stream_finish(stream_of(stream)));
}

EXPORT cudaError_t cudaDeviceSynchronize(void)
{
    return runtime_done(streams_finish(runtime_device()));
}

EXPORT cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data)
{
    return stream_call(stream, &(struct work){ .kind = WORK_HOST, .host = function, .to = data });
}

EXPORT cudaError_t cudaMemsetAsync(void *to, int byte, size_t bytes, cudaStream_t stream)
{
    return stream_call(stream,
                       &(struct work){ .kind = WORK_FILL, .to = to, .byte = byte, .bytes = bytes });
}

/* ---- pinned memory and copies ---- */

enum { PINNED_MAX = 256 };
static pthread_mutex_t pinned_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    char *memory;
    size_t bytes;
} pinned[PINNED_MAX];

/* The place of the memory that holds this address; -1: it is not pinned. */
static int pinned_find(const char *memory)
{
    int found = -1;

    (void)pthread_mutex_lock(&pinned_lock);
    for (int i = 0; i < PINNED_MAX && found < 0; i++)
        if (pinned[i].memory && memory >= pinned[i].memory &&
            memory < pinned[i].memory + pinned[i].bytes)
            found = i;
    (void)pthread_mutex_unlock(&pinned_lock);
    return found;
}

EXPORT cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned flags)
{
    cudaError_t code = cudaMalloc(memory, bytes ? bytes : 1);
    int at = 0;

    (void)flags;
    if (code != cudaSuccess)
        return code;
    (void)pthread_mutex_lock(&pinned_lock);
    while (at < PINNED_MAX && pinned[at].memory)
        at++;
    if (at < PINNED_MAX) {
        pinned[at].memory = *memory;
        pinned[at].bytes = bytes ? bytes : 1;
    }
    (void)pthread_mutex_unlock(&pinned_lock);
    if (at < PINNED_MAX)
        return cudaSuccess;
    (void)memory_free(*memory);
    *memory = NULL;
    return runtime_done(cudaErrorMemoryAllocation);
}

EXPORT cudaError_t cudaFreeHost(void *memory)
{
    const int at = memory ? pinned_find(memory) : -1;

    if (at < 0 || pinned[at].memory != memory)
        return runtime_done(cudaErrorInvalidValue);
    (void)streams_finish(-1);
    (void)pthread_mutex_lock(&pinned_lock);
    pinned[at].memory = NULL;
    (void)pthread_mutex_unlock(&pinned_lock);
    (void)memory_free(memory);
    return cudaSuccess;
}

EXPORT cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes,
                                   enum cudaMemcpyKind kind, cudaStream_t stream)
{
    struct work work = { .kind = WORK_COPY, .to = to, .from = from, .bytes = bytes };
    const bool is_captured = is_capturing(stream);
    cudaError_t code;

    if (kind == cudaMemcpyHostToDevice && !is_captured && pinned_find(from) < 0) {
        work.args = from;
        work.args_bytes = bytes;
    }
    code = stream_call(stream, &work);
    if (code == cudaSuccess && kind == cudaMemcpyDeviceToHost && !is_captured &&
        pinned_find(to) < 0)
        code = runtime_done(stream_finish(stream_of(stream)));
    return code;
}

/* A call of the legacy stream. From pageable memory to a device it returns when the bytes are
 * staged, and between devices at once. */
EXPORT cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    struct work work = { .kind = WORK_COPY, .to = to, .from = from, .bytes = bytes };
    const bool is_from_device = memory_holds(from); /* or pinned */
    const bool is_to_device = memory_holds(to) && pinned_find(to) < 0;
    cudaError_t code;

    (void)kind;
    if (is_to_device && !is_from_device) {
        work.args = from;
        work.args_bytes = bytes;
    }
    code = stream_enqueue(stream_of(NULL), &work);
    if (code == cudaSuccess && (!is_to_device || pinned_find(from) >= 0))
        code = stream_finish(stream_of(NULL));
    return runtime_done(code);
}

/* ---- events ---- */

EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t *handle, unsigned flags)
{
    struct event *event = calloc(1, sizeof *event);

    if (event)
        event->has_time = !(flags & cudaEventDisableTiming);
    *handle = (cudaEvent_t)event;
    runtime_live_add(LIVE_EVENTS, event != NULL);
    return runtime_done(event ? cudaSuccess : cudaErrorMemoryAllocation);
}

EXPORT cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

EXPORT cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    event_drop((struct event *)event);
    runtime_live_add(LIVE_EVENTS, -1);
    return cudaSuccess;
}

EXPORT cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    return runtime_done(is_capturing(stream)
                            ? cudaErrorStreamCaptureUnsupported
                            : event_record((struct event *)event, stream_of(stream)));
}

EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    (void)flags;
    return runtime_done(is_capturing(stream)
                            ? cudaErrorStreamCaptureUnsupported
                            : event_after((struct event *)event, stream_of(stream)));
}

EXPORT cudaError_t cudaEventQuery(cudaEvent_t handle)
{
    const cudaError_t failure = streams_failure();

    if (failure != cudaSuccess)
        return runtime_done(failure);
    return runtime_done(event_is_passed((const struct event *)handle) ? cudaSuccess
                                                                      : cudaErrorNotReady);
}

EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t handle)
{
    event_finish((const struct event *)handle);
    return runtime_done(streams_failure());
}

/* Some time has always passed. */
EXPORT cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t first, cudaEvent_t last)
{
    const struct event *from = (const struct event *)first, *to = (const struct event *)last;
    int64_t ns;

    if (!from->has_time || !to->has_time || !from->mark || !to->mark)
        return runtime_done(cudaErrorInvalidResourceHandle);
    if (!event_is_passed(from) || !event_is_passed(to))
        return runtime_done(cudaErrorNotReady);
    ns = event_elapsed_ns(from, to);
    *ms = (float)(ns ? ns : 1) / 1e6f;
    return cudaSuccess;
}
