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

/* What compiling it makes of a configuration, and the reason where it is left out by that. Spills
 * leave out all but the baseline. TUNE_PENDING: it says nothing of the configuration (there is no
 * compiler, or it may not be used), which may be compiled another time. */
enum tune_state tune_compiled_state(const struct tune_compiled *result, int32_t configuration,
                                    char reason[200]);

/* Compile, and tell of each configuration with its last kernel. One that fails is told of, and
 * fails nothing else. Fails with FFA_TIMEOUT (*stop), and as ffa_precompile. Blocks. */
ffa_status tune_compile(const struct tune_compile_job *job, tune_compiled_fn done, void *done_user,
                        ffa_error *err);

#endif
