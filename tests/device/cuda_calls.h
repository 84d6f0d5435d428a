/* SPDX-License-Identifier: Apache-2.0
 *
 * Counting the CUDA calls that the library makes, thread by thread.
 */
#ifndef TESTS_CUDA_CALLS_H
#define TESTS_CUDA_CALLS_H

#include <ffa/context.h>

struct cuda_counts {
    int launches;      /* of kernels */
    int blocking;      /* calls that synchronise, allocate, free, or may wait for the device */
    const char *first; /* of these; NULL: there was none */
};

/* Count the calls that are made through this context from here on. It must be on a GPU. */
void cuda_calls_watch(ffa_context *context);
/* Of the calling thread, since its last begin. */
void cuda_calls_begin(void);
struct cuda_counts cuda_calls_end(void);

#endif
