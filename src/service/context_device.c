/* SPDX-License-Identifier: Apache-2.0
 *
 * A context's memory and stopwatch, on its device or on the host.
 */
#include "gpu/gpu.h"
#include "service/context.h"

#include <ffa/device.h>

enum { ALIGNMENT = 256 };

static ffa_status check(const ffa_context *context, const char *name, int64_t bytes, ffa_error *err)
{
    if (!context)
        return error_fail(err, FFA_INVALID, 0, "%s: context is NULL", name);
    if (bytes < 0)
        return error_fail(err, FFA_INVALID, 0, "%s: bytes is %lld, below 0", name,
                          (long long)bytes);
    return FFA_OK;
}

ffa_status ffa_device_alloc(void **out, ffa_context *context, int64_t bytes, ffa_error *err)
{
    size_t rounded;
    ffa_status rc;

    if (!out)
        return error_fail(err, FFA_INVALID, 0, "ffa_device_alloc: out is NULL");
    *out = NULL;
    FFA_TRY(check(context, "ffa_device_alloc", bytes, err));
    if (context->gpu) {
        FFA_TRY(gpu_alloc(context->gpu, out, bytes ? bytes : 1, err));
    } else {
        rounded = ((size_t)bytes / ALIGNMENT + 1) * ALIGNMENT;
        *out = fault_here(FAULT_ALLOC) ? NULL : aligned_alloc(ALIGNMENT, rounded);
        if (!*out)
            rc = error_fail(err, FFA_NOMEM, 0, "no memory for %lld bytes", (long long)bytes);
    }
out:
    return rc;
}

void ffa_device_free(ffa_context *context, void *memory)
{
    if (!context)
        return;
    if (context->gpu)
        gpu_free(context->gpu, memory);
    else
        free(memory);
}

ffa_status ffa_device_copy(ffa_context *context, void *dst, const void *src, int64_t bytes,
                           ffa_copy_direction direction, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(check(context, "ffa_device_copy", bytes, err));
    if (direction != FFA_TO_DEVICE && direction != FFA_FROM_DEVICE) {
        rc = error_fail(err, FFA_INVALID, 0, "ffa_device_copy: direction is %d, not 0 or 1",
                        (int)direction);
        goto out;
    }
    if (bytes && (!dst || !src)) {
        rc = error_fail(err, FFA_INVALID, 0, "ffa_device_copy: %s is NULL", dst ? "src" : "dst");
        goto out;
    }
    if (!bytes)
        goto out;
    if (context->gpu)
        FFA_TRY(gpu_copy(context->gpu, dst, src, bytes, err));
    else
        memcpy(dst, src, (size_t)bytes);
out:
    return rc;
}

ffa_status ffa_device_fill(ffa_context *context, void *dst, int byte, int64_t bytes, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(check(context, "ffa_device_fill", bytes, err));
    if (byte < 0 || byte > 255) {
        rc = error_fail(err, FFA_INVALID, 0, "ffa_device_fill: byte is %d, not in [0, 255]", byte);
        goto out;
    }
    if (bytes && !dst) {
        rc = error_fail(err, FFA_INVALID, 0, "ffa_device_fill: dst is NULL");
        goto out;
    }
    if (!bytes)
        goto out;
    if (context->gpu) {
        FFA_TRY(gpu_fill_enqueue(context->gpu, dst, byte, bytes, NULL, err));
        FFA_TRY(gpu_synchronize(context->gpu, err));
    } else {
        memset(dst, byte, (size_t)bytes);
    }
out:
    return rc;
}

ffa_status ffa_device_synchronize(ffa_context *context, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(check(context, "ffa_device_synchronize", 0, err));
    if (context->gpu)
        FFA_TRY(gpu_synchronize(context->gpu, err));
out:
    return rc;
}

ffa_status ffa_device_time_begin(ffa_context *context, ffa_stream stream, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(check(context, "ffa_device_time_begin", 0, err));
    if (context->gpu)
        FFA_TRY(gpu_time_begin(context->gpu, stream, err));
    else
        context->time_begin_us = clock_us();
out:
    return rc;
}

ffa_status ffa_device_time_end(ffa_context *context, ffa_stream stream, float *ms, ffa_error *err)
{
    ffa_status rc;

    if (!ms)
        return error_fail(err, FFA_INVALID, 0, "ffa_device_time_end: ms is NULL");
    *ms = 0.0f;
    FFA_TRY(check(context, "ffa_device_time_end", 0, err));
    if (context->gpu) {
        FFA_TRY(gpu_time_end(context->gpu, stream, ms, err));
    } else if (!context->time_begin_us) {
        rc = error_fail(err, FFA_INVALID, 0, "the stopwatch was not started");
    } else {
        *ms = (float)(clock_us() - context->time_begin_us) / 1000.0f;
        context->time_begin_us = 0;
    }
out:
    return rc;
}
