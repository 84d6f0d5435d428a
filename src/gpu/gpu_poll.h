/* SPDX-License-Identifier: Apache-2.0
 *
 * What a thread needs that looks on while streams of the device wait: reading and writing device
 * memory on a stream of its own, beside graph captures of other threads.
 */
#ifndef FFA_GPU_GPU_POLL_H
#define FFA_GPU_GPU_POLL_H

#include "gpu/gpu.h"

/* Captures of other threads are not disturbed by what the calling thread does from now on. */
ffa_status gpu_capture_relax(struct gpu_device *device, ffa_error *err);
/* Copy device memory to pageable host memory, in the order of the stream, and wait for the stream.
 */
ffa_status gpu_read(struct gpu_device *device, ffa_stream stream, void *host, const void *src,
                    int64_t bytes, ffa_error *err);
/* Copy pageable host memory to device memory in the order of the stream. The driver has taken the
 * bytes when the call returns; it may wait for the stream. A copy engine does it, never a kernel.
 */
ffa_status gpu_send(struct gpu_device *device, ffa_stream stream, void *dst, const void *host,
                    int64_t bytes, ffa_error *err);

#endif
