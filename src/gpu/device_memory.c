/* SPDX-License-Identifier: Apache-2.0
 *
 * One set of functions for device and host memory, so that callers work on both. Invariant: what a
 * call was asked for is done when it returns, on a device, too.
 */
#include "gpu/device_memory.h"

enum { HOST_ALIGNMENT = 256 };

static ffa_status host_alloc(void **out, int64_t bytes, ffa_error *err)
{
    size_t rounded = ((size_t)bytes / HOST_ALIGNMENT + 1) * HOST_ALIGNMENT;

    *out = fault_here(FAULT_ALLOC) ? NULL : aligned_alloc(HOST_ALIGNMENT, rounded);
    return *out ? FFA_OK
                : error_fail(err, FFA_NOMEM, 0, "no memory for %lld bytes", (long long)bytes);
}

ffa_status device_alloc(struct gpu_device *device, void **out, int64_t bytes, ffa_error *err)
{
    return device ? gpu_alloc(device, out, bytes ? bytes : 1, err) : host_alloc(out, bytes, err);
}

void device_free(struct gpu_device *device, void *memory)
{
    if (device)
        gpu_free(device, memory);
    else
        free(memory);
}

ffa_status device_copy(struct gpu_device *device, void *dst, const void *src, int64_t bytes,
                       ffa_error *err)
{
    if (bytes == 0)
        return FFA_OK;
    if (device)
        return gpu_copy(device, dst, src, bytes, err);
    memcpy(dst, src, (size_t)bytes);
    return FFA_OK;
}

ffa_status device_fill(struct gpu_device *device, void *dst, int byte, int64_t bytes,
                       ffa_error *err)
{
    ffa_status rc = FFA_OK;

    if (bytes == 0)
        goto out;
    if (device) {
        FFA_TRY(gpu_fill_enqueue(device, dst, byte, bytes, NULL, err));
        FFA_TRY(gpu_synchronize(device, err));
    } else {
        memset(dst, byte, (size_t)bytes);
    }
out:
    return rc;
}

ffa_status device_synchronize(struct gpu_device *device, ffa_error *err)
{
    return device ? gpu_synchronize(device, err) : FFA_OK;
}

ffa_status device_time_begin(struct gpu_device *device, struct stopwatch *host, ffa_stream stream,
                             ffa_error *err)
{
    if (device)
        return gpu_time_begin(device, stream, err);
    host->begin_us = clock_us();
    return FFA_OK;
}

ffa_status device_time_end(struct gpu_device *device, struct stopwatch *host, ffa_stream stream,
                           float *ms, ffa_error *err)
{
    if (device)
        return gpu_time_end(device, stream, ms, err);
    if (!host->begin_us)
        return error_fail(err, FFA_INVALID, 0, "the stopwatch was not started");
    *ms = (float)(clock_us() - host->begin_us) / 1000.0f;
    host->begin_us = 0;
    return FFA_OK;
}
