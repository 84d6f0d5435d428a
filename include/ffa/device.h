/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of a context's device and a stopwatch, for tools and tests. Frameworks bring their own.
 *
 * On a CPU context the same calls act on host memory, so one program serves both backends.
 */
#ifndef FFA_DEVICE_H
#define FFA_DEVICE_H

#include <ffa/context.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ffa_copy_direction {
    FFA_TO_DEVICE = 0,  /* src is host memory */
    FFA_FROM_DEVICE = 1 /* dst is host memory */
} ffa_copy_direction;

/* Memory of the context's device, 256-byte aligned, its contents unspecified. *out: caller's,
 * ffa_device_free() on the same context before it closes. bytes = 0 gives a pointer that may be
 * freed. Fails with FFA_INVALID (negative), FFA_NOMEM, FFA_GPU. Thread: any. Blocks. */
FFA_API ffa_status ffa_device_alloc(void **out, ffa_context *context, int64_t bytes,
                                    ffa_error *err);
/* NULL is allowed. */
FFA_API void ffa_device_free(ffa_context *context, void *memory);

/* Copy `bytes` between host and device. Ordered after work enqueued on the NULL stream. Blocks
 * until done. Fails with FFA_INVALID, FFA_GPU. Thread: any. */
FFA_API ffa_status ffa_device_copy(ffa_context *context, void *dst, const void *src, int64_t bytes,
                                   ffa_copy_direction direction, ffa_error *err);

/* Set each of `bytes` bytes to `byte` (0 to 255). With 255, elements of every floating dtype are
 * NaN. Blocks until done. Fails with FFA_INVALID, FFA_GPU. Thread: any. */
FFA_API ffa_status ffa_device_fill(ffa_context *context, void *dst, int byte, int64_t bytes,
                                   ffa_error *err);

/* A stream of the context's device that does not wait for the NULL stream, nor that one for it;
 * NULL on the CPU. *out: caller's, ffa_device_stream_destroy() on the same context before it
 * closes; work that was enqueued is still done. Fails with FFA_INVALID, FFA_NOMEM, FFA_GPU. Thread:
 * any. */
FFA_API ffa_status ffa_device_stream_create(ffa_stream *out, ffa_context *context, ffa_error *err);
/* NULL is allowed. */
FFA_API void ffa_device_stream_destroy(ffa_context *context, ffa_stream stream);
/* Wait for everything enqueued on the stream. Returns at once on the CPU. */
FFA_API ffa_status ffa_device_stream_synchronize(ffa_context *context, ffa_stream stream,
                                                 ffa_error *err);

/* Wait for everything enqueued on the device. Returns at once on the CPU. */
FFA_API ffa_status ffa_device_synchronize(ffa_context *context, ffa_error *err);

/* A context has one stopwatch. begin enqueues an event on `stream`; end enqueues another, waits for
 * it, and *ms receives the milliseconds between the two on the device. On the CPU it is wall time.
 * FFA_INVALID for an end without a begin. Thread: one at a time. */
FFA_API ffa_status ffa_device_time_begin(ffa_context *context, ffa_stream stream, ffa_error *err);
FFA_API ffa_status ffa_device_time_end(ffa_context *context, ffa_stream stream, float *ms,
                                       ffa_error *err);

#ifdef __cplusplus
}
#endif
#endif
