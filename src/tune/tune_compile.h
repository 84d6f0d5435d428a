/* SPDX-License-Identifier: Apache-2.0
 *
 * Compiling the kernels of configurations, in workers where the context has them; they go to the
 * context's store. Needs no GPU.
 */
#ifndef FFA_TUNE_TUNE_COMPILE_H
#define FFA_TUNE_TUNE_COMPILE_H

#include "service/context.h"
#include "tune/tune_device.h"

struct tune_compile_job {
    ffa_context *context;
    const char *device; /* the model whose table the baseline follows; NULL: the context's */
    const struct tune_record *record;
    const int32_t *which; /* [count] configurations */
    int32_t count;
    const volatile int *stop; /* NULL: it never is */
};

/* Compile, and tell of each configuration with its last kernel. One that fails is told of, and
 * fails nothing else. Fails with FFA_TIMEOUT (*stop), and as ffa_precompile. Blocks. */
ffa_status tune_compile(const struct tune_compile_job *job, tune_compiled_fn done, void *done_user,
                        ffa_error *err);

#endif
