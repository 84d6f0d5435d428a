/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa_device_*: arguments are checked here, and gpu/device_memory.c does the rest.
 */
#include "gpu/device_memory.h"
#include "gpu/gpu_stream.h"
#include "service/context.h"

#include <ffa/device.h>

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
    ffa_status rc;

    if (!out)
        return error_fail(err, FFA_INVALID, 0, "ffa_device_alloc: out is NULL");
    *out = NULL;
    FFA_TRY(check(context, "ffa_device_alloc", bytes, err));
    rc = device_alloc(context->gpu, out, bytes, err);
out:
    return rc;
}

void ffa_device_free(ffa_context *context, void *memory)
{
    if (context)
        device_free(context->gpu, memory);
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
    rc = device_copy(context->gpu, dst, src, bytes, err);
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
    rc = device_fill(context->gpu, dst, byte, bytes, err);
out:
    return rc;
}

ffa_status ffa_device_stream_create(ffa_stream *out, ffa_context *context, ffa_error *err)
{
    ffa_status rc;

    if (!out)
        return error_fail(err, FFA_INVALID, 0, "ffa_device_stream_create: out is NULL");
    *out = NULL;
    FFA_TRY(check(context, "ffa_device_stream_create", 0, err));
    if (context->gpu)
        rc = gpu_stream_make(out, context->gpu, err);
out:
    return rc;
}

void ffa_device_stream_destroy(ffa_context *context, ffa_stream stream)
{
    if (context && context->gpu && stream)
        gpu_stream_drop(context->gpu, stream);
}

ffa_status ffa_device_stream_synchronize(ffa_context *context, ffa_stream stream, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(check(context, "ffa_device_stream_synchronize", 0, err));
    if (context->gpu)
        rc = gpu_stream_synchronize(context->gpu, stream, err);
out:
    return rc;
}

ffa_status ffa_device_synchronize(ffa_context *context, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(check(context, "ffa_device_synchronize", 0, err));
    rc = device_synchronize(context->gpu, err);
out:
    return rc;
}

ffa_status ffa_device_time_begin(ffa_context *context, ffa_stream stream, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(check(context, "ffa_device_time_begin", 0, err));
    rc = device_time_begin(context->gpu, &context->stopwatch, stream, err);
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
    rc = device_time_end(context->gpu, &context->stopwatch, stream, ms, err);
out:
    return rc;
}
