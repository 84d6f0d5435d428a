/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading and writing device memory from a thread that looks on.
 *
 * A watchdog must come through while every SM polls and other streams wait. So nothing here uses
 * the legacy default stream, which waits for blocking streams, a kernel (a fill can be one), or a
 * function that allocates, which may wait for the device.
 */
#include "gpu/gpu_poll.h"

#include "gpu/gpu_internal.h"

ffa_status gpu_capture_relax(struct gpu_device *device, ffa_error *err)
{
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;

    return gpu_status(device->cuda, device->cuda->cudaThreadExchangeStreamCaptureMode(&mode),
                      "change the capture mode", err);
}

ffa_status gpu_read(struct gpu_device *device, ffa_stream stream, void *host, const void *src,
                    int64_t bytes, ffa_error *err)
{
    bool is_pushed = false;
    ffa_status rc;

    FFA_TRY(gpu_enter(device, &is_pushed, err));
    GPU_TRY(device, cudaMemcpyAsync(host, src, (size_t)bytes, cudaMemcpyDeviceToHost, stream),
            "read device memory", err);
    GPU_TRY(device, cudaStreamSynchronize(stream), "wait for a stream", err);
out:
    gpu_leave(device, is_pushed);
    return rc;
}

ffa_status gpu_send(struct gpu_device *device, ffa_stream stream, void *dst, const void *host,
                    int64_t bytes, ffa_error *err)
{
    bool is_pushed = false;
    ffa_status rc;

    FFA_TRY(gpu_enter(device, &is_pushed, err));
    GPU_TRY(device, cudaMemcpyAsync(dst, host, (size_t)bytes, cudaMemcpyHostToDevice, stream),
            "write device memory", err);
out:
    gpu_leave(device, is_pushed);
    return rc;
}
