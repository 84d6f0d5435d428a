/* SPDX-License-Identifier: Apache-2.0
 *
 * Device memory, copies, and the stopwatch.
 *
 * Each function makes the device current for its call. An upload goes by way of pinned memory
 * (upload_ring.h), which a graph would read at every replay, so it is refused while the stream
 * captures.
 */
#include "gpu/gpu_internal.h"

ffa_status gpu_alloc(struct gpu_device *device, void **out, int64_t bytes, ffa_error *err)
{
    *out = NULL;
    GPU_ON_DEVICE(device, cudaMalloc(out, (size_t)bytes), "allocate device memory", err);
}

void gpu_free(struct gpu_device *device, void *memory)
{
    bool is_pushed = false;

    if (!memory)
        return;
    (void)gpu_enter(device, &is_pushed, NULL);
    (void)device->cuda->cudaFree(memory);
    gpu_leave(device, is_pushed);
}

ffa_status gpu_alloc_enqueue(struct gpu_device *device, void **out, int64_t bytes,
                             ffa_stream stream, ffa_error *err)
{
    *out = NULL;
    GPU_ON_DEVICE(device, cudaMallocAsync(out, (size_t)bytes, stream), "allocate device memory",
                  err);
}

ffa_status gpu_free_enqueue(struct gpu_device *device, void *memory, ffa_stream stream,
                            ffa_error *err)
{
    if (!memory)
        return FFA_OK;
    GPU_ON_DEVICE(device, cudaFreeAsync(memory, stream), "free device memory", err);
}

ffa_status gpu_copy(struct gpu_device *device, void *dst, const void *src, int64_t bytes,
                    ffa_error *err)
{
    bool is_pushed = false;
    ffa_status rc;

    FFA_TRY(gpu_enter(device, &is_pushed, err));
    GPU_TRY(device, cudaMemcpy(dst, src, (size_t)bytes, cudaMemcpyDefault), "copy memory", err);
    /* From pageable memory it returns when the bytes are staged, and streams do not wait for it. */
    GPU_TRY(device, cudaStreamSynchronize(NULL), "copy memory", err);
out:
    gpu_leave(device, is_pushed);
    return rc;
}

ffa_status gpu_upload_enqueue(struct gpu_device *device, void *dst, const void *src, int64_t bytes,
                              ffa_stream stream, ffa_error *err)
{
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    bool is_pushed = false;
    ffa_status rc;

    FFA_TRY(gpu_enter(device, &is_pushed, err));
    GPU_TRY(device, cudaStreamIsCapturing(stream, &capture), "query the stream", err);
    if (capture != cudaStreamCaptureStatusNone) {
        rc = error_fail(err, FFA_INVALID, 0,
                        "the stream is capturing a graph: upload the plan before the capture");
        goto out;
    }
    rc = upload_ring_enqueue(&device->uploads, dst, src, bytes, stream, err);
out:
    gpu_leave(device, is_pushed);
    return rc;
}

ffa_status gpu_fill_enqueue(struct gpu_device *device, void *dst, int byte, int64_t bytes,
                            ffa_stream stream, ffa_error *err)
{
    GPU_ON_DEVICE(device, cudaMemsetAsync(dst, byte, (size_t)bytes, stream), "fill device memory",
                  err);
}

ffa_status gpu_synchronize(struct gpu_device *device, ffa_error *err)
{
    GPU_ON_DEVICE(device, cudaDeviceSynchronize(), "finish the device's work", err);
}

ffa_status gpu_time_begin(struct gpu_device *device, ffa_stream stream, ffa_error *err)
{
    bool is_pushed = false;
    ffa_status rc;

    FFA_TRY(gpu_enter(device, &is_pushed, err));
    if (!device->begin)
        GPU_TRY(device, cudaEventCreate(&device->begin), "create an event", err);
    if (!device->end)
        GPU_TRY(device, cudaEventCreate(&device->end), "create an event", err);
    GPU_TRY(device, cudaEventRecord(device->begin, stream), "record an event", err);
    device->is_timing = true;
out:
    gpu_leave(device, is_pushed);
    return rc;
}

ffa_status gpu_time_end(struct gpu_device *device, ffa_stream stream, float *ms, ffa_error *err)
{
    bool is_pushed = false;
    ffa_status rc;

    *ms = 0.0f;
    if (!device->is_timing)
        return error_fail(err, FFA_INVALID, 0, "the stopwatch was not started");
    device->is_timing = false;
    FFA_TRY(gpu_enter(device, &is_pushed, err));
    GPU_TRY(device, cudaEventRecord(device->end, stream), "record an event", err);
    GPU_TRY(device, cudaEventSynchronize(device->end), "wait for an event", err);
    GPU_TRY(device, cudaEventElapsedTime(ms, device->begin, device->end), "read the events", err);
out:
    gpu_leave(device, is_pushed);
    return rc;
}
