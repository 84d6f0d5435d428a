/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory and a stopwatch of a device, or of the host where the device is NULL. Arguments were
 * checked: bytes >= 0, pointers are there where bytes > 0. All block until done.
 */
#ifndef FFA_GPU_DEVICE_MEMORY_H
#define FFA_GPU_DEVICE_MEMORY_H

#include "gpu/gpu.h"

/* Aligned to 256 bytes; 0 bytes give a pointer that may be freed. */
ffa_status device_alloc(struct gpu_device *device, void **out, int64_t bytes, ffa_error *err);
void device_free(struct gpu_device *device, void *memory); /* NULL is allowed */
ffa_status device_copy(struct gpu_device *device, void *dst, const void *src, int64_t bytes,
                       ffa_error *err);
ffa_status device_fill(struct gpu_device *device, void *dst, int byte, int64_t bytes,
                       ffa_error *err);
ffa_status device_synchronize(struct gpu_device *device, ffa_error *err);

/* A device has its own events; the host's stopwatch is the caller's. */
struct stopwatch {
    int64_t begin_us; /* 0: not started */
};
ffa_status device_time_begin(struct gpu_device *device, struct stopwatch *host, ffa_stream stream,
                             ffa_error *err);
/* FFA_INVALID where it was not started. */
ffa_status device_time_end(struct gpu_device *device, struct stopwatch *host, ffa_stream stream,
                           float *ms, ffa_error *err);

#endif
