/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions of the CUDA runtime that the device tests call themselves: streams of their own and
 * graphs. They come from the runtime that the library found, since nothing links one.
 */
#ifndef FFA_TESTS_CUDA_CALLS_H
#define FFA_TESTS_CUDA_CALLS_H

#include <cuda_runtime_api.h>

#define CUDA_CALLS(X)                                                                              \
    X(cudaGraphDestroy)                                                                            \
    X(cudaGraphExecDestroy)                                                                        \
    X(cudaGraphInstantiate)                                                                        \
    X(cudaGraphLaunch)                                                                             \
    X(cudaStreamBeginCapture)                                                                      \
    X(cudaStreamCreateWithFlags)                                                                   \
    X(cudaStreamDestroy)                                                                           \
    X(cudaStreamEndCapture)                                                                        \
    X(cudaStreamSynchronize)

struct cuda_calls {
#define X(name) __typeof__(&name) name;
    CUDA_CALLS(X)
#undef X
};

/* A test that calls this runs where there is a device, so failing to find one ends the test. */
const struct cuda_calls *cuda_calls(void);

#endif
