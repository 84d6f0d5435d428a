/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions of the CUDA runtime that the device tests call themselves, for streams of their own
 * and graphs. Nothing links the runtime, so each function is defined here and passes the call on to
 * the runtime that the library found. A function that a test comes to call is a row of CALLS.
 *
 * The runtime is opened as the library opens it, and its file is loaded by then, so RTLD_NOLOAD
 * gives the very same one.
 */
#include "gpu/gpu.h"

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
