/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions of the CUDA runtime that the device tests call themselves, for streams of their own
 * and graphs. Nothing links the runtime, so each function is defined here and passes the call on to
 * the runtime that the library found. A function that a test comes to call is a row of CALLS.
 *
 * The runtime is opened as the library opens it, and its file is loaded by then, so RTLD_NOLOAD
 * gives the very same one.
 *
 * The calls that the library makes go through two tables of functions, the context's of the runtime
 * and the device's of the driver. A watched context has counting functions there, which pass the
 * call on.
 */
#include "cuda_calls.h"

#include "gpu/cuda_runtime.h"
#include "gpu/gpu_internal.h"
#include "service/context.h"

#include <check.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdio.h>
#include <time.h>

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
    X(cudaMemGetInfo, (size_t *free_bytes, size_t *bytes), (free_bytes, bytes)) \
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

/* ---- calls that enqueue ---- */

static struct gpu_driver driver; /* as the library found it */

static int64_t now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* clang-format off */
#define RUNTIME(X) \
    X(cudaEventRecord, (cudaEvent_t event, cudaStream_t stream), (event, stream)) \
    X(cudaLaunchKernelExC, \
      (const cudaLaunchConfig_t *config, const void *function, void **args), \
      (config, function, args)) \
    X(cudaMemsetAsync, (void *to, int byte, size_t bytes, cudaStream_t stream), \
      (to, byte, bytes, stream)) \
    X(cudaStreamWaitEvent, (cudaStream_t stream, cudaEvent_t event, unsigned flags), \
      (stream, event, flags))
#define DRIVER(X) \
    X(cuMemcpyBatchAsync, \
      (CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count, \
       CUmemcpyAttributes *attributes, size_t *first, size_t kinds, size_t *failed, \
       CUstream stream), \
      (to, from, bytes, count, attributes, first, kinds, failed, stream)) \
    X(cuStreamBatchMemOp, \
      (CUstream stream, unsigned count, CUstreamBatchMemOpParams *ops, unsigned flags), \
      (stream, count, ops, flags)) \
    X(cuStreamWaitValue64, (CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned flags), \
      (stream, at, value, flags)) \
    X(cuStreamWriteValue64, (CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned flags), \
      (stream, at, value, flags))
/* clang-format on */

/* One macro for both tables would have cuda.h's own macros replace the names of the driver's. */
#define X(name, parameters, arguments)                                                             \
    static cudaError_t count_##name parameters                                                     \
    {                                                                                              \
        const int64_t begin_ns = now_ns();                                                         \
        const cudaError_t code = table.name arguments;                                             \
                                                                                                   \
        counts.ns[CALL_##name] += now_ns() - begin_ns;                                             \
        counts.calls[CALL_##name]++;                                                               \
        return code;                                                                               \
    }
RUNTIME(X)
#undef X
#define X(name, parameters, arguments)                                                             \
    static CUresult count_##name parameters                                                        \
    {                                                                                              \
        const int64_t begin_ns = now_ns();                                                         \
        const CUresult code = driver.name arguments;                                               \
                                                                                                   \
        counts.ns[CALL_##name] += now_ns() - begin_ns;                                             \
        counts.calls[CALL_##name]++;                                                               \
        return code;                                                                               \
    }
DRIVER(X)
#undef X

static void watch_driver(struct gpu_device *device)
{
    struct gpu_driver *found = &device->driver;

    if (found->cuStreamBatchMemOp == count_cuStreamBatchMemOp)
        return;
    driver = *found;
#define X(name, parameters, arguments) found->name = found->name ? count_##name : NULL;
    DRIVER(X)
#undef X
}

void cuda_calls_watch(ffa_context *context)
{
    struct gpu_runtime *cuda = context->cuda;

    watch_driver(context->gpu);
    if (cuda->cudaLaunchKernelExC == count_cudaLaunchKernelExC)
        return;
    table = *cuda;
#define X(name, parameters, arguments) cuda->name = count_##name;
    BLOCKING(X)
    RUNTIME(X)
#undef X
    cuda->cudaMemcpyAsync = count_copy;
}

void cuda_calls_begin(void)
{
    counts = (struct cuda_counts){ 0 };
}

struct cuda_counts cuda_calls_end(void)
{
    return counts;
}

/* ---- counts ---- */

void cuda_counts_add(struct cuda_counts *to, const struct cuda_counts *more)
{
    for (int i = 0; i < CUDA_CALLS; i++) {
        to->calls[i] += more->calls[i];
        to->ns[i] += more->ns[i];
    }
    to->blocking += more->blocking;
    to->first = to->first ? to->first : more->first;
}

int cuda_counts_enqueued(const struct cuda_counts *of)
{
    int sum = 0;

    for (int i = 0; i < CUDA_CALLS; i++)
        sum += of->calls[i];
    return sum;
}

void cuda_counts_print(const char *title, const struct cuda_counts *of, int passes)
{
    static const char *const names[] = {
#define X(name) #name,
        CUDA_ENQUEUING(X)
#undef X
    };

    printf("%s: %.1f calls a pass\n", title, (double)cuda_counts_enqueued(of) / passes);
    for (int i = 0; i < CUDA_CALLS; i++)
        if (of->calls[i])
            printf("    %-22s %5.1f of %6.2f us\n", names[i], (double)of->calls[i] / passes,
                   (double)of->ns[i] / of->calls[i] / 1e3);
}
