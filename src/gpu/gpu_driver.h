/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions of the driver that src/gpu calls. The driver is not linked: the runtime is asked
 * for each function in the version whose type stands here.
 */
#ifndef FFA_GPU_GPU_DRIVER_H
#define FFA_GPU_GPU_DRIVER_H

#include "base/base.h"
#include "gpu/cuda_runtime.h"

#include <cuda.h> /* types only */

struct gpu_driver {
    /* Every driver that the runtime works with has these. */
    CUresult (*cuCtxGetCurrent)(CUcontext *);
    CUresult (*cuCtxGetDevice)(CUdevice *);
    CUresult (*cuCtxPopCurrent)(CUcontext *);
    CUresult (*cuCtxPushCurrent)(CUcontext);
    CUresult (*cuDeviceGet)(CUdevice *, int);
    CUresult (*cuDevicePrimaryCtxRetain)(CUcontext *, CUdevice);
    CUresult (*cuEventQuery)(CUevent);
    CUresult (*cuTensorMapEncodeTiled)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                                       const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                       const cuuint32_t *, CUtensorMapInterleave,
                                       CUtensorMapSwizzle, CUtensorMapL2promotion,
                                       CUtensorMapFloatOOBfill);
    /* NULL where the driver is too old, or names no devices. */
    CUresult (*cuDeviceGetName)(char *, int, CUdevice);
    CUresult (*cuDeviceGetUuid)(CUuuid *, CUdevice);
    CUresult (*cuMemcpyBatchAsync)(CUdeviceptr *, CUdeviceptr *, size_t *, size_t,
                                   CUmemcpyAttributes *, size_t *, size_t, size_t *, CUstream);
    CUresult (*cuStreamBatchMemOp)(CUstream, unsigned, CUstreamBatchMemOpParams *, unsigned);
    CUresult (*cuStreamWaitValue64)(CUstream, CUdeviceptr, cuuint64_t, unsigned);
    CUresult (*cuStreamWriteValue64)(CUstream, CUdeviceptr, cuuint64_t, unsigned);
};

/* Find the functions. FFA_UNSUPPORTED where one that every driver has is missing; FFA_GPU. */
ffa_status gpu_driver_find(struct gpu_driver *out, const struct gpu_runtime *cuda, ffa_error *err);

/* Convert an error of the driver. `call` is the function's name; `doing` completes "cannot ...". */
ffa_status gpu_driver_status(CUresult code, const char *call, const char *doing, ffa_error *err);

#endif
