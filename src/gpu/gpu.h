/* SPDX-License-Identifier: Apache-2.0
 *
 * The only user of the CUDA runtime, which it opens: devices, kernels and their launches, tensor
 * maps, memory.
 *
 * A function named _enqueue only enqueues on its stream. Every call leaves the caller's current
 * device as it was. CUDA's errors become FFA_GPU, or FFA_NOMEM where memory ran out.
 */
#ifndef FFA_GPU_GPU_H
#define FFA_GPU_GPU_H

#include "base/base.h"
#include "base/device_facts.h"
#include <ffa/context.h>

/* ---- the CUDA runtime ---- */

struct gpu_runtime;

/* Find and open the CUDA runtime, as cuda_library_open does. *out: caller's, gpu_runtime_close()
 * after its devices are closed; the library itself stays loaded. FFA_UNSUPPORTED, which says what
 * was tried; FFA_NOMEM. Needs no driver. */
ffa_status gpu_runtime_open(struct gpu_runtime **out, const char *path, ffa_error *err);
void gpu_runtime_close(struct gpu_runtime *cuda);
/* Borrowed until the runtime is closed. */
const char *gpu_runtime_path(const struct gpu_runtime *cuda);
const char *gpu_runtime_version(const struct gpu_runtime *cuda); /* "13.0" */
const char *gpu_runtime_driver(const struct gpu_runtime *cuda);  /* likewise; "": there is none */

/* ---- devices ---- */

struct gpu_device;

/* The ordinal of the first device a kernel exists for (compute capability 9.0), or -1. */
int gpu_device_pick(const struct gpu_runtime *cuda);
/* Open a device; *out: caller's, gpu_device_close(). May create its primary context and block for
 * it. Fails with FFA_GPU (no driver), FFA_INVALID (ordinal out of range), FFA_UNSUPPORTED (no
 * kernel exists for the device, or the driver is too old), FFA_NOMEM. */
ffa_status gpu_device_open(struct gpu_device **out, const struct gpu_runtime *cuda, int ordinal,
                           ffa_error *err);
void gpu_device_close(struct gpu_device *device);
/* Devices of the process, of any kind. */
int gpu_device_count(const struct gpu_device *device);
int gpu_device_ordinal(const struct gpu_device *device);
/* Borrowed until the device is closed. */
const struct device_facts *gpu_device_facts(const struct gpu_device *device);
const char *gpu_device_name(const struct gpu_device *device);
const char *gpu_device_arch(const struct gpu_device *device); /* "sm_90a" */
int gpu_device_sm_count(const struct gpu_device *device);

/* ---- kernels ---- */

struct gpu_kernel;

struct gpu_kernel_desc {
    const void *cubin;
    size_t cubin_bytes;
    const char *entry;
    int32_t threads;
    int32_t shared_bytes; /* dynamic, a block */
    int32_t cluster;      /* blocks of a cluster; 1: none */
};

/* Load a cubin on the device. The driver copies it, so `cubin` need not outlive the call.
 * *out: caller's, gpu_kernel_unload() before the device closes. *is_refused: it failed because the
 * driver does not take this cubin (of a newer toolkit, for another device, without the entry);
 * another cubin of the same kernel may do. */
ffa_status gpu_kernel_load(struct gpu_kernel **out, struct gpu_device *device,
                           const struct gpu_kernel_desc *desc, bool *is_refused, ffa_error *err);
void gpu_kernel_unload(struct gpu_kernel *kernel);

/* Enqueue one launch whose only argument is the struct at `args`, copied at once. The grid has
 * `blocks` blocks, rounded down to whole clusters, but at least one cluster. */
ffa_status gpu_kernel_enqueue(const struct gpu_kernel *kernel, int32_t blocks, const void *args,
                              ffa_stream stream, ffa_error *err);

/* ---- tensor maps: how the copy engine finds a tensor's elements ---- */

struct tensor_map; /* templates/tensor_map.h */

enum gpu_element { GPU_BF16, GPU_FP16 };

struct gpu_tensor {
    const char *name; /* for messages */
    const void *data;
    enum gpu_element element;
    int64_t dims[3];    /* innermost first */
    int64_t strides[2]; /* elements, of the outer two */
    int32_t box[3];
};

/* Encode a tensor map. Host work only, under a microsecond. Elements outside the tensor read as
 * zero. */
ffa_status gpu_tensor_map(struct tensor_map *out, const struct gpu_device *device,
                          const struct gpu_tensor *tensor, ffa_error *err);

/* ---- memory and streams; a NULL stream is the legacy default stream ---- */

ffa_status gpu_alloc(struct gpu_device *device, void **out, int64_t bytes, ffa_error *err);
void gpu_free(struct gpu_device *device, void *memory);
/* The same in stream order; ffa_attention uses it. */
ffa_status gpu_alloc_enqueue(struct gpu_device *device, void **out, int64_t bytes,
                             ffa_stream stream, ffa_error *err);
ffa_status gpu_free_enqueue(struct gpu_device *device, void *memory, ffa_stream stream,
                            ffa_error *err);
/* Copy between any two of host and device memory. Blocks until done. */
ffa_status gpu_copy(struct gpu_device *device, void *dst, const void *src, int64_t bytes,
                    ffa_error *err);
/* Enqueue a copy from host memory, which is not needed after the call. Does not wait for the
 * stream, but where very many uploads are under way (upload_ring.h). FFA_INVALID while the stream
 * captures a graph. Thread: any. */
ffa_status gpu_upload_enqueue(struct gpu_device *device, void *dst, const void *src, int64_t bytes,
                              ffa_stream stream, ffa_error *err);
ffa_status gpu_fill_enqueue(struct gpu_device *device, void *dst, int byte, int64_t bytes,
                            ffa_stream stream, ffa_error *err);
ffa_status gpu_synchronize(struct gpu_device *device, ffa_error *err);

/* ---- one stopwatch a device: two events, created at first use ---- */

ffa_status gpu_time_begin(struct gpu_device *device, ffa_stream stream, ffa_error *err);
/* Blocks until the events have passed. */
ffa_status gpu_time_end(struct gpu_device *device, ffa_stream stream, float *ms, ffa_error *err);

#endif
