/* SPDX-License-Identifier: Apache-2.0
 *
 * Counting the CUDA calls that the library makes, thread by thread.
 */
#ifndef TESTS_CUDA_CALLS_H
#define TESTS_CUDA_CALLS_H

#include <ffa/context.h>

/* Calls that enqueue. What only asks, or encodes, is not among them. */
/* clang-format off */
#define CUDA_ENQUEUING(X) \
    X(cudaLaunchKernelExC) \
    X(cudaEventRecord) \
    X(cudaStreamWaitEvent) \
    X(cudaMemsetAsync) \
    X(cuMemcpyBatchAsync) \
    X(cuStreamBatchMemOp) \
    X(cuStreamWaitValue64) \
    X(cuStreamWriteValue64)
/* clang-format on */

enum cuda_call {
#define X(name) CALL_##name,
    CUDA_ENQUEUING(X)
#undef X
        CUDA_CALLS
};

struct cuda_counts {
    int calls[CUDA_CALLS]; /* by function */
    int64_t ns[CUDA_CALLS];
    int blocking;      /* calls that synchronise, allocate, free, or may wait for the device */
    const char *first; /* of these; NULL: there was none */
};

/* Count the calls that are made through this context from here on. It must be on a GPU. */
void cuda_calls_watch(ffa_context *context);
/* Of the calling thread, since its last begin. */
void cuda_calls_begin(void);
struct cuda_counts cuda_calls_end(void);
/* *to: the sums. */
void cuda_counts_add(struct cuda_counts *to, const struct cuda_counts *more);
/* Calls that enqueue, of all functions. */
int cuda_counts_enqueued(const struct cuda_counts *counts);
/* A line a function that was called: how often, and how long on average, `passes` times. */
void cuda_counts_print(const char *title, const struct cuda_counts *counts, int passes);

#endif
