/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions of the CUDA runtime that the device tests call themselves, for streams of their own
 * and graphs. Nothing links the runtime, so each function is defined here and passes the call on to
 * the runtime that the library found. A function that a test comes to call is a row of CALLS.
 *
 * The runtime is opened as the library opens it, and its file is loaded by then, so RTLD_NOLOAD
 * gives the very same one.
 *
 * The calls that the library makes go through the context's table of functions. A watched context
 * has counting functions there, which pass the call on. What the library calls of the driver only
 * enqueues or asks, so it is not counted.
 */
#include "cuda_calls.h"

#include "gpu/cuda_runtime.h"
#include "gpu/gpu.h"
#include "service/context.h"

#include <check.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

static void *library(void)
{
    static void *found;
    struct gpu_runtime *cuda = NULL;
    ffa_error err;

    if (found)
        return found;
    ck_assert_msg(gpu_runtime_open(&cuda, NULL, &err) == FFA_OK, "%s", err.message);
    found = dlopen(gpu_runtime_path(cuda), RTLD_NOW | RTLD_NOLOAD);
    gpu_runtime_close(cuda);
    ck_assert_ptr_nonnull(found);
    return found;
}

/* clang-format off */
#define CALLS(X) \
    X(cudaGetLastError, (void), ()) \
    X(cudaGraphDestroy, (cudaGraph_t graph), (graph)) \
    X(cudaGraphExecDestroy, (cudaGraphExec_t exec), (exec)) \
    X(cudaGraphInstantiate, (cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags), \
      (exec, graph, flags)) \
    X(cudaGraphLaunch, (cudaGraphExec_t exec, cudaStream_t stream), (exec, stream)) \
    X(cudaLaunchHostFunc, (cudaStream_t stream, cudaHostFn_t host, void *data), (stream, host, data)) \
    X(cudaMemcpyAsync, \
      (void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream), \
      (to, from, bytes, kind, stream)) \
    X(cudaMemsetAsync, (void *to, int byte, size_t bytes, cudaStream_t stream), \
      (to, byte, bytes, stream)) \
    X(cudaSetDevice, (int device), (device)) \
    X(cudaStreamBeginCapture, (cudaStream_t stream, enum cudaStreamCaptureMode mode), (stream, mode)) \
    X(cudaStreamCreateWithFlags, (cudaStream_t *stream, unsigned flags), (stream, flags)) \
    X(cudaStreamDestroy, (cudaStream_t stream), (stream)) \
    X(cudaStreamEndCapture, (cudaStream_t stream, cudaGraph_t *graph), (stream, graph)) \
    X(cudaStreamSynchronize, (cudaStream_t stream), (stream))
/* clang-format on */

#define X(name, parameters, arguments)                                                             \
    cudaError_t name parameters                                                                    \
    {                                                                                              \
        static __typeof__(&name) function;                                                         \
                                                                                                   \
        if (!function)                                                                             \
            *(void **)&function = dlsym(library(), #name);                                         \
        ck_assert_msg(function != NULL, "the runtime has no %s", #name);                           \
        return function arguments;                                                                 \
    }
CALLS(X)
#undef X

/* ---- counting ---- */

/* clang-format off */
#define BLOCKING(X) \
    X(cudaDeviceSynchronize, (void), ()) \
    X(cudaEventCreate, (cudaEvent_t *event), (event)) \
    X(cudaEventCreateWithFlags, (cudaEvent_t *event, unsigned flags), (event, flags)) \
    X(cudaEventDestroy, (cudaEvent_t event), (event)) \
    X(cudaEventSynchronize, (cudaEvent_t event), (event)) \
    X(cudaFree, (void *memory), (memory)) \
    X(cudaFreeAsync, (void *memory, cudaStream_t stream), (memory, stream)) \
    X(cudaFreeHost, (void *memory), (memory)) \
    X(cudaHostAlloc, (void **memory, size_t bytes, unsigned flags), (memory, bytes, flags)) \
    X(cudaIpcCloseMemHandle, (void *memory), (memory)) \
    X(cudaIpcGetMemHandle, (cudaIpcMemHandle_t *handle, void *memory), (handle, memory)) \
    X(cudaIpcOpenMemHandle, (void **memory, cudaIpcMemHandle_t handle, unsigned flags), \
      (memory, handle, flags)) \
    X(cudaLibraryUnload, (cudaLibrary_t library), (library)) \
    X(cudaMalloc, (void **memory, size_t bytes), (memory, bytes)) \
    X(cudaMallocAsync, (void **memory, size_t bytes, cudaStream_t stream), (memory, bytes, stream)) \
    X(cudaMemcpy, (void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind), \
      (to, from, bytes, kind)) \
    X(cudaStreamCreateWithPriority, (cudaStream_t *stream, unsigned flags, int priority), \
      (stream, flags, priority)) \
    X(cudaStreamDestroy, (cudaStream_t stream), (stream)) \
    X(cudaStreamSynchronize, (cudaStream_t stream), (stream))
/* clang-format on */

static struct gpu_runtime table; /* as the library found it */
static _Thread_local struct cuda_counts counts;

#define X(name, parameters, arguments)                                                             \
    static cudaError_t count_##name parameters                                                     \
    {                                                                                              \
        counts.blocking++;                                                                         \
        counts.first = counts.first ? counts.first : #name;                                        \
        return table.name arguments;                                                               \
    }
BLOCKING(X)
#undef X

/* One of pageable memory may wait for the stream. */
static cudaError_t count_copy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                              cudaStream_t stream)
{
    counts.blocking++;
    counts.first = counts.first ? counts.first : "cudaMemcpyAsync";
    return table.cudaMemcpyAsync(to, from, bytes, kind, stream);
}

static cudaError_t count_launch(const cudaLaunchConfig_t *config, const void *function, void **args)
{
    counts.launches++;
    return table.cudaLaunchKernelExC(config, function, args);
}

void cuda_calls_watch(ffa_context *context)
{
    struct gpu_runtime *cuda = context->cuda;

    if (cuda->cudaLaunchKernelExC == count_launch)
        return;
    table = *cuda;
#define X(name, parameters, arguments) cuda->name = count_##name;
    BLOCKING(X)
#undef X
    cuda->cudaMemcpyAsync = count_copy;
    cuda->cudaLaunchKernelExC = count_launch;
}

void cuda_calls_begin(void)
{
    counts = (struct cuda_counts){ 0 };
}

struct cuda_counts cuda_calls_end(void)
{
    return counts;
}
