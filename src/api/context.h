/* SPDX-License-Identifier: Apache-2.0
 *
 * The context object, and the one function that answers "give me this kernel".
 */
#ifndef FFA_API_CONTEXT_H
#define FFA_API_CONTEXT_H

#include "base/base.h"
#include "jit/jit.h"
#include <ffa/kernel.h>
#include <stdatomic.h>

struct kernel_cache; /* cache/cache.h: the memory table and the store */
struct gpu_device;   /* gpu/gpu.h */

struct context_stats {
    atomic_uint_fast64_t hits_table, hits_store, misses, compiles, compile_fails, compile_us,
        store_bad, store_errors, forward_calls;
};

struct ffa_context {
    ffa_context_opts opts; /* strings owned */
    struct log log;
    struct jit *jit;             /* NVRTC (opened on first use) and template text */
    struct kernel_cache *cache;
    struct gpu_device *gpu;      /* NULL on the CPU */
    char arch[16];               /* compiled for by default */
    int32_t cpu_threads;
    struct context_stats stats;
};

/* A kernel's bytes and facts. cubin: borrowed from the memory table, which keeps every entry until
 * the context closes. */
struct resolved {
    const void *cubin;
    size_t cubin_bytes;
    const char *record; /* borrowed likewise */
    ffa_kernel_info info;
};

/* Table, then store, then compile (unless never-compile), then store. Thread: any. `log_text`, if
 * not NULL, receives the compile log (caller frees) when a compile ran, failed ones included. */
ffa_status context_resolve(struct resolved *out, ffa_context *context, const struct jit_spec *spec,
                           const char *arch, char **log_text, ffa_error *err);

#endif
