/* SPDX-License-Identifier: Apache-2.0
 *
 * A watched context on fixture templates, which compile in milliseconds, and what tests of the
 * store ask it for; kernels that are made up.
 */
#ifndef TESTS_FIXTURE_H
#define TESTS_FIXTURE_H

#include "jit/jit.h"
#include "support/watch.h"
#include <ffa/ffa.h>

/* Of tests/data/templates/trivial, with this store and compiler; log lines go to `watch`, which may
 * be NULL. */
ffa_context_opts fixture_opts(const char *store, const char *nvrtc, struct watch *watch);
/* Open it on the CPU; that must succeed. */
ffa_context *fixture_open(const ffa_context_opts *opts);

/* ffa_compile of attention_forward with one setting, or none (NULL). *err is cleared first. */
ffa_status fixture_compile(ffa_compiled **out, ffa_context *context, const char *setting,
                           uint32_t flags, ffa_error *err);
/* The same; *info says what came of it, zero on failure. */
ffa_status fixture_find(ffa_kernel_info *info, ffa_context *context, const char *setting,
                        ffa_error *err);

/* A kernel to store: all that is in it follows from its number. The caller's, jit_kernel_finish().
 */
enum { FIXTURE_CUBIN_BYTES = 50000 };
struct jit_kernel fixture_kernel(int number, const char *toolchain, const char *arch);
/* The completed request that the kernel answers, as far as a store reads it. Borrows; not to be
 * finished. */
struct jit_request fixture_request(const struct jit_kernel *kernel);

#endif
