/* SPDX-License-Identifier: Apache-2.0
 *
 * Contexts on template texts that compile in milliseconds, and made-up kernels, for tests of the
 * store and its layers.
 */
#ifndef TESTS_FIXTURE_H
#define TESTS_FIXTURE_H

#include "jit/jit.h"
#include "support/watch.h"
#include <ffa/ffa.h>

/* Options for tests/data/templates/trivial with this store and NVRTC; log lines go to `watch`,
 * which may be NULL. */
ffa_context_opts fixture_opts(const char *store, const char *nvrtc, struct watch *watch);
/* Open a CPU context; the test fails where that fails. */
ffa_context *fixture_open(const ffa_context_opts *opts);

/* ffa_compile of attention_forward with one setting, or none (NULL). *err is cleared first. */
ffa_status fixture_compile(ffa_compiled **out, ffa_context *context, const char *setting,
                           uint32_t flags, ffa_error *err);
/* The same, for the facts alone: *info is zero on failure. */
ffa_status fixture_find(ffa_kernel_info *info, ffa_context *context, const char *setting,
                        ffa_error *err);

/* What has happened so far. */
ffa_context_stats fixture_stats(ffa_context *context);

/* Run statements on a store's file, behind the library's back. */
void fixture_sql(const char *path, const char *sql);

/* A made-up kernel to store; everything in it follows from its number. The caller's,
 * jit_kernel_finish(). */
enum { FIXTURE_CUBIN_BYTES = 50000 };
struct jit_kernel fixture_kernel(int number, const char *toolchain, const char *arch);
/* The completed request that the kernel answers, as far as a store reads it. Borrows; not to be
 * finished. */
struct jit_request fixture_request(const struct jit_kernel *kernel);

#endif
