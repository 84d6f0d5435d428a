/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of the CUDA runtime's functions. A function that src/gpu comes to call is a row here;
 * it is then called as device->cuda->cudaName(...).
 *
 * A row must be in runtimes of CUDA 12.8 and of CUDA 13 alike, with the same type, because the
 * headers of the build and the runtime of the process may be of different versions. So there is no
 * cudaGetDeviceProperties, whose struct differs: attributes are asked for one by one.
 */
#ifndef FFA_GPU_CUDA_RUNTIME_H
#define FFA_GPU_CUDA_RUNTIME_H

#include <cuda_runtime_api.h>

#define CUDA_FUNCTIONS(X)                                                                          \
    X(cudaDeviceCanAccessPeer)                                                                     \
    X(cudaDeviceEnablePeerAccess)                                                                  \
    X(cudaDeviceGetAttribute)                                                                      \
    X(cudaDeviceGetStreamPriorityRange)                                                            \
    X(cudaDeviceSynchronize)                                                                       \
    X(cudaDriverGetVersion)                                                                        \
    X(cudaEventCreate)                                                                             \
    X(cudaEventCreateWithFlags)                                                                    \
    X(cudaEventDestroy)                                                                            \
    X(cudaEventElapsedTime)                                                                        \
    X(cudaEventQuery)                                                                              \
    X(cudaEventRecord)                                                                             \
    X(cudaEventSynchronize)                                                                        \
    X(cudaFree)                                                                                    \
    X(cudaFreeAsync)                                                                               \
    X(cudaFreeHost)                                                                                \
    X(cudaFuncSetAttribute)                                                                        \
    X(cudaGetDeviceCount)                                                                          \
    X(cudaGetDriverEntryPointByVersion)                                                            \
    X(cudaGetErrorString)                                                                          \
    X(cudaGetLastError)                                                                            \
    X(cudaHostAlloc)                                                                               \
    X(cudaIpcCloseMemHandle)                                                                       \
    X(cudaIpcGetMemHandle)                                                                         \
    X(cudaIpcOpenMemHandle)                                                                        \
    X(cudaLaunchKernelExC)                                                                         \
    X(cudaLibraryGetKernel)                                                                        \
    X(cudaLibraryLoadData)                                                                         \
    X(cudaLibraryUnload)                                                                           \
    X(cudaMalloc)                                                                                  \
    X(cudaMallocAsync)                                                                             \
    X(cudaMemcpy)                                                                                  \
    X(cudaMemcpyAsync)                                                                             \
    X(cudaMemsetAsync)                                                                             \
    X(cudaPeekAtLastError)                                                                         \
    X(cudaRuntimeGetVersion)                                                                       \
    X(cudaStreamCreateWithPriority)                                                                \
    X(cudaStreamDestroy)                                                                           \
    X(cudaStreamGetId)                                                                             \
    X(cudaStreamIsCapturing)                                                                       \
    X(cudaStreamSynchronize)                                                                       \
    X(cudaStreamWaitEvent)                                                                         \
    X(cudaThreadExchangeStreamCaptureMode)

struct gpu_runtime {
#define X(name) __typeof__(&name) name;
    CUDA_FUNCTIONS(X)
#undef X
    char path[512];
    char version[16];
    char driver[16];
};

#endif
