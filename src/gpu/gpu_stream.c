/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams, events, words that streams wait for, batches of copies.
 *
 * Waits, writes and batches are the driver's: the runtime has them only in types that differ
 * between CUDA 12 and 13. Invariant: nothing that enqueues allocates: the arrays of a batch of
 * copies are the caller's, those of waits and writes lie on the stack.
 */
#include "gpu/gpu_stream.h"

#include "gpu/gpu_internal.h"

struct gpu_stream {
    struct gpu_device *device; /* not owned */
    cudaStream_t stream;
};

struct gpu_event {
    struct gpu_device *device; /* not owned */
    cudaEvent_t event;
};

/* Run one CUDA call of the driver on the device, and return its status. */
#define ON_DRIVER(device, name, arguments, doing, err)                                             \
    do {                                                                                           \
        bool is_pushed = false;                                                                    \
        ffa_status rc = gpu_enter((device), &is_pushed, (err));                                    \
        if (rc == FFA_OK)                                                                          \
            rc = gpu_driver_status((device)->driver.name arguments, #name, (doing), (err));        \
        gpu_leave((device), is_pushed);                                                            \
        return rc;                                                                                 \
    } while (0)

/* ---- streams ---- */

ffa_status gpu_stream_create(struct gpu_stream **out, struct gpu_device *device, int priority,
                             ffa_error *err)
{
    struct gpu_stream *stream = NULL;
    bool is_pushed = false;
    int least = 0, greatest = 0;
    ffa_status rc;

    *out = NULL;
    stream = mem_array(1, sizeof *stream);
    if (!stream) {
        rc = error_nomem(err, "the stream");
        goto out;
    }
    stream->device = device;
    FFA_TRY(gpu_enter(device, &is_pushed, err));
    GPU_TRY(device, cudaDeviceGetStreamPriorityRange(&least, &greatest),
            "read the device's priorities (cudaDeviceGetStreamPriorityRange)", err);
    if (priority < greatest)
        priority = greatest;
    GPU_TRY(device, cudaStreamCreateWithPriority(&stream->stream, cudaStreamNonBlocking, priority),
            "create a stream (cudaStreamCreateWithPriority)", err);
    *out = stream;
    stream = NULL;
out:
    gpu_leave(device, is_pushed);
    mem_free(stream);
    return rc;
}

void gpu_stream_destroy(struct gpu_stream *stream)
{
    bool is_pushed = false;

    if (!stream)
        return;
    (void)gpu_enter(stream->device, &is_pushed, NULL);
    (void)stream->device->cuda->cudaStreamDestroy(stream->stream);
    gpu_leave(stream->device, is_pushed);
    mem_free(stream);
}

ffa_stream gpu_stream_handle(const struct gpu_stream *stream)
{
    return stream->stream;
}

ffa_status gpu_stream_make(ffa_stream *out, struct gpu_device *device, ffa_error *err)
{
    struct gpu_stream *stream;
    ffa_status rc;

    *out = NULL;
    FFA_TRY(gpu_stream_create(&stream, device, 0, err));
    *out = stream->stream;
    mem_free(stream);
out:
    return rc;
}

void gpu_stream_drop(struct gpu_device *device, ffa_stream stream)
{
    bool is_pushed = false;

    (void)gpu_enter(device, &is_pushed, NULL);
    (void)device->cuda->cudaStreamDestroy(stream);
    gpu_leave(device, is_pushed);
}

ffa_status gpu_stream_refuse_capture(struct gpu_device *device, ffa_stream stream, const char *what,
                                     ffa_error *err)
{
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    bool is_pushed = false;
    ffa_status rc;

    FFA_TRY(gpu_enter(device, &is_pushed, err));
    GPU_TRY(device, cudaStreamIsCapturing(stream, &capture), "query the stream", err);
    if (capture != cudaStreamCaptureStatusNone)
        rc = error_fail(err, FFA_INVALID, 0,
                        "the stream is capturing a graph: %s cannot be captured", what);
out:
    gpu_leave(device, is_pushed);
    return rc;
}

ffa_status gpu_stream_id(struct gpu_device *device, ffa_stream stream, uint64_t *out,
                         ffa_error *err)
{
    unsigned long long id = 0;
    bool is_pushed = false;
    ffa_status rc;

    *out = 0;
    FFA_TRY(gpu_enter(device, &is_pushed, err));
    GPU_TRY(device, cudaStreamGetId(stream, &id), "name the stream (cudaStreamGetId)", err);
    *out = id;
out:
    gpu_leave(device, is_pushed);
    return rc;
}

ffa_status gpu_stream_synchronize(struct gpu_device *device, ffa_stream stream, ffa_error *err)
{
    GPU_ON_DEVICE(device, cudaStreamSynchronize(stream),
                  "finish a stream's work (cudaStreamSynchronize)", err);
}

/* ---- events ---- */

ffa_status gpu_event_create(struct gpu_event **out, struct gpu_device *device, bool has_time,
                            ffa_error *err)
{
    struct gpu_event *event = NULL;
    bool is_pushed = false;
    ffa_status rc;

    *out = NULL;
    event = mem_array(1, sizeof *event);
    if (!event) {
        rc = error_nomem(err, "the event");
        goto out;
    }
    event->device = device;
    FFA_TRY(gpu_enter(device, &is_pushed, err));
    GPU_TRY(device,
            cudaEventCreateWithFlags(&event->event,
                                     has_time ? cudaEventDefault : cudaEventDisableTiming),
            "create an event (cudaEventCreateWithFlags)", err);
    *out = event;
    event = NULL;
out:
    gpu_leave(device, is_pushed);
    mem_free(event);
    return rc;
}

void gpu_event_destroy(struct gpu_event *event)
{
    bool is_pushed = false;

    if (!event)
        return;
    (void)gpu_enter(event->device, &is_pushed, NULL);
    (void)event->device->cuda->cudaEventDestroy(event->event);
    gpu_leave(event->device, is_pushed);
    mem_free(event);
}

ffa_status gpu_event_record(struct gpu_event *event, ffa_stream stream, ffa_error *err)
{
    GPU_ON_DEVICE(event->device, cudaEventRecord(event->event, stream),
                  "record an event (cudaEventRecord)", err);
}

ffa_status gpu_event_wait(struct gpu_event *event, ffa_stream stream, ffa_error *err)
{
    GPU_ON_DEVICE(event->device, cudaStreamWaitEvent(stream, event->event, cudaEventWaitDefault),
                  "have a stream wait for an event (cudaStreamWaitEvent)", err);
}

/* The driver is asked: the runtime's function makes "not ready" the thread's last error. */
ffa_status gpu_event_query(const struct gpu_event *event, bool *is_done, ffa_error *err)
{
    const struct gpu_device *device = event->device;
    bool is_pushed = false;
    CUresult code;
    ffa_status rc;

    *is_done = false;
    FFA_TRY(gpu_enter(device, &is_pushed, err));
    code = device->driver.cuEventQuery(event->event);
    *is_done = code == CUDA_SUCCESS;
    rc = gpu_driver_status(code == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : code, "cuEventQuery",
                           "query an event", err);
out:
    gpu_leave(device, is_pushed);
    return rc;
}

ffa_status gpu_event_elapsed_ms(const struct gpu_event *begin, const struct gpu_event *end,
                                float *ms, ffa_error *err)
{
    *ms = 0.0f;
    GPU_ON_DEVICE(begin->device, cudaEventElapsedTime(ms, begin->event, end->event),
                  "read the time between two events (cudaEventElapsedTime)", err);
}

/* ---- words that streams wait for and write ---- */

static CUdeviceptr address_of(const void *memory)
{
    return (CUdeviceptr)(uintptr_t)memory;
}

static ffa_status needs(bool has, const char *name, ffa_error *err)
{
    return has ? FFA_OK
               : error_fail(err, FFA_UNSUPPORTED, 0,
                            "the driver has no %s of CUDA 11.7: it cannot order devices", name);
}

ffa_status gpu_wait_value(struct gpu_device *device, ffa_stream stream, const uint64_t *at,
                          uint64_t value, ffa_error *err)
{
    if (!device->driver.cuStreamWaitValue64)
        return needs(false, "cuStreamWaitValue64", err);
    ON_DRIVER(device, cuStreamWaitValue64,
              (stream, address_of(at), value, CU_STREAM_WAIT_VALUE_GEQ),
              "have a stream wait for a value", err);
}

ffa_status gpu_write_value(struct gpu_device *device, ffa_stream stream, uint64_t *at,
                           uint64_t value, ffa_error *err)
{
    if (!device->driver.cuStreamWriteValue64)
        return needs(false, "cuStreamWriteValue64", err);
    ON_DRIVER(device, cuStreamWriteValue64,
              (stream, address_of(at), value, CU_STREAM_WRITE_VALUE_DEFAULT),
              "have a stream write a value", err);
}

static CUstreamBatchMemOpParams mem_op(const struct gpu_value_op *op)
{
    CUstreamBatchMemOpParams out = { 0 };

    if (op->is_wait) {
        out.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
        out.waitValue.address = address_of(op->at);
        out.waitValue.value64 = op->value;
        out.waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
    } else {
        out.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
        out.writeValue.address = address_of(op->at);
        out.writeValue.value64 = op->value;
        out.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
    }
    return out;
}

ffa_status gpu_value_batch(struct gpu_device *device, ffa_stream stream,
                           const struct gpu_value_op *ops, int count, ffa_error *err)
{
    CUstreamBatchMemOpParams params[GPU_VALUE_BATCH_MAX];
    bool is_pushed = false;
    ffa_status rc = FFA_OK;

    if (count <= 0)
        return FFA_OK;
    FFA_TRY(needs(device->driver.cuStreamBatchMemOp != NULL, "cuStreamBatchMemOp", err));
    FFA_TRY(gpu_enter(device, &is_pushed, err));
    for (int from = 0; from < count; from += GPU_VALUE_BATCH_MAX) {
        const int left = count - from;
        const int now = left < GPU_VALUE_BATCH_MAX ? left : GPU_VALUE_BATCH_MAX;

        for (int i = 0; i < now; i++)
            params[i] = mem_op(&ops[from + i]);
        GPU_TRY_DRIVER(device, cuStreamBatchMemOp, (stream, (unsigned)now, params, 0),
                       "have a stream wait for values or write them", err);
    }
out:
    gpu_leave(device, is_pushed);
    return rc;
}

/* ---- copies ---- */

/* All copies have one set of attributes: the source is read in stream order. The driver changes
 * neither the arrays nor the attributes, but its type is not const. */
static ffa_status copy_at_once(struct gpu_device *device, ffa_stream stream, void *const *dst,
                               const void *const *src, const size_t *bytes, int64_t count,
                               ffa_error *err)
{
    /* By copy engines: an SM copy would wait for kernels that fill the SMs and wait for it. */
    CUmemcpyAttributes attributes = { .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
                                      .flags = CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE };
    size_t first = 0, failed = SIZE_MAX;
    ffa_status rc = FFA_OK;
    CUresult code;

    _Static_assert(sizeof(CUdeviceptr) == sizeof(void *), "arrays of pointers are the driver's");
    code = device->driver.cuMemcpyBatchAsync(
        (CUdeviceptr *)(uintptr_t)dst, (CUdeviceptr *)(uintptr_t)src, (size_t *)(uintptr_t)bytes,
        (size_t)count, &attributes, &first, 1, &failed, stream);
    if (code != CUDA_SUCCESS && failed < (size_t)count)
        rc = error_fail(err, FFA_GPU, (int32_t)code,
                        "cannot copy ranges of memory: cuMemcpyBatchAsync fails with code %d at "
                        "range %lld of %lld, %lld bytes from %p to %p",
                        (int)code, (long long)failed, (long long)count, (long long)bytes[failed],
                        src[failed], dst[failed]);
    else
        rc = gpu_driver_status(code, "cuMemcpyBatchAsync", "copy ranges of memory", err);
    return rc;
}

ffa_status gpu_copy_batch(struct gpu_device *device, ffa_stream stream, void *const *dst,
                          const void *const *src, const size_t *bytes, int64_t count,
                          ffa_error *err)
{
    bool is_pushed = false;
    ffa_status rc = FFA_OK;

    if (count <= 0)
        return FFA_OK;
    FFA_TRY(gpu_enter(device, &is_pushed, err));
    if (device->driver.cuMemcpyBatchAsync) {
        rc = copy_at_once(device, stream, dst, src, bytes, count, err);
        goto out;
    }
    for (int64_t i = 0; i < count; i++)
        GPU_TRY(device, cudaMemcpyAsync(dst[i], src[i], bytes[i], cudaMemcpyDefault, stream),
                "copy a range of memory (cudaMemcpyAsync)", err);
out:
    gpu_leave(device, is_pushed);
    return rc;
}
