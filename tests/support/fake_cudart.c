/* SPDX-License-Identifier: Apache-2.0
 *
 * A CUDA runtime that can be opened, and no more: every function writes FAKE_VERSION to its first
 * argument, cudaDriverGetVersion FAKE_DRIVER. With FAKE_LACKS it has its version and nothing else.
 *
 * The names are given to the assembler only, so that they do not clash with CUDA's declarations.
 */
#include "gpu/cuda_runtime.h"

#ifndef FAKE_DRIVER
#define FAKE_DRIVER FAKE_VERSION
#endif

#define X(name)                                                                                    \
    int fake_##name(int *first) __asm__(#name) __attribute__((visibility("default")));             \
    int fake_##name(int *first)                                                                    \
    {                                                                                              \
        *first = #name[4] == 'D' && #name[5] == 'r' ? FAKE_DRIVER : FAKE_VERSION;                  \
        return 0;                                                                                  \
    }
#ifdef FAKE_LACKS
X(cudaRuntimeGetVersion)
#else
CUDA_FUNCTIONS(X)
#endif
