/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of src/gpu share: the CUDA headers, the conversion of errors, the device.
 */
#ifndef FFA_GPU_GPU_INTERNAL_H
#define FFA_GPU_GPU_INTERNAL_H

#include "gpu/upload_ring.h"

#include <cuda.h> /* types only: the driver is reached through cudaGetDriverEntryPointByVersion */

typedef CUresult (*tensor_map_encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                                         const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                         const cuuint32_t *, CUtensorMapInterleave,
                                         CUtensorMapSwizzle, CUtensorMapL2promotion,
                                         CUtensorMapFloatOOBfill);

struct gpu_device {
    const struct gpu_runtime *cuda; /* not owned */
    int ordinal;
    struct device_facts facts;
    char arch[16];
    tensor_map_encode_fn tensor_map_encode;
    CUresult (*context_current)(CUcontext *);
    cudaEvent_t begin, end; /* NULL until the stopwatch is used */
    bool is_timing;         /* between a begin and its end */
    struct upload_ring uploads;
};

/* `doing` completes "cannot ...". */
ffa_status gpu_status(const struct gpu_runtime *cuda, cudaError_t code, const char *doing,
                      ffa_error *err);

/* Run one function of the device's CUDA runtime as FFA_TRY does. `call` is written without the
 * runtime: "cudaEventCreate(&event)". */
#define GPU_TRY(device, call, doing, err)                                                          \
    FFA_TRY(gpu_status((device)->cuda, (device)->cuda->call, (doing), (err)))

/* Make the device current, with a context. *previous receives the device that was; gpu_leave makes
 * it current again. */
ffa_status gpu_enter(const struct gpu_device *device, int *previous, ffa_error *err);
void gpu_leave(const struct gpu_device *device, int previous);

#endif
