/* SPDX-License-Identifier: Apache-2.0
 *
 * The context object, and the one function that answers "give me this kernel".
 */
#ifndef FFA_SERVICE_CONTEXT_H
#define FFA_SERVICE_CONTEXT_H

#include "base/base.h"
#include "base/fork.h"
#include "cache/cache.h"
#include "jit/jit.h"
#include <ffa/attention.h>
#include <pthread.h>
#include <stdatomic.h>

struct gpu_device; /* gpu/gpu.h */

/* The store counts its own: bad entries and errors. */
struct context_stats {
    atomic_uint_fast64_t fails_known, hits_table, hits_store, hits_bundle, misses, compiles,
        compile_fails, compile_us, forward_calls, backward_calls;
    atomic_uint_fast64_t saved_us; /* kernels from files took so long to compile */
};

/* What ffa_attention keeps, one node a spec. */
struct kept_kernels {
    ffa_attention_spec spec;
    ffa_kernels *kernels; /* owned */
    struct kept_kernels *next;
};

struct ffa_context {
    ffa_context_opts opts; /* strings owned */
    struct log log;
    struct jit *jit;           /* NVRTC (opened on first use) and template text */
    struct kernel_cache cache; /* the memory table and the store */
    struct gpu_device *gpu;    /* NULL on the CPU */
    char arch[16];             /* compiled for by default */
    int32_t cpu_threads;
    struct context_stats stats;
    pthread_mutex_t kept_lock;
    struct fork_guard kept_guard;
    pthread_mutex_t work_lock;
    pthread_cond_t work_done;
    int32_t workers; /* under work_lock: threads of ours in the context */
    struct fork_guard work_guard;
    struct kept_kernels *kept; /* under kept_lock; nodes live until the context closes */
    int64_t time_begin_us;     /* the CPU's stopwatch; 0: not started */
};

/* A public request, checked, its spec resolved. *out owns nothing yet. */
ffa_status context_import_request(struct jit_request *out, uint32_t *flags, ffa_context *context,
                                  const ffa_compile_request *request, ffa_error *err);

/* A thread of ours works with the context until it leaves; closing waits for it. */
void context_enter(ffa_context *context);
void context_leave(ffa_context *context);

/* A kernel's bytes and facts. cubin: borrowed from the memory table, which keeps every entry until
 * the context closes. */
struct resolved {
    const void *cubin;
    size_t cubin_bytes;
    const char *record; /* borrowed likewise */
    ffa_kernel_info info;
};

/* Table, then store and bundles, then the compiler (unless never-compile). The request is completed
 * on the way where the table misses; the caller finishes it. Thread: any. `log_text`, if not NULL,
 * receives the compile log (caller frees) when this call compiled, also when that failed. */
ffa_status context_resolve(struct resolved *out, ffa_context *context, struct jit_request *request,
                           char **log_text, ffa_error *err);

/* Compile past all layers, counted and logged. On FFA_COMPILE out->log is set; the caller finishes
 * *out in any case. */
ffa_status context_compile(struct jit_result *out, ffa_context *context,
                           struct jit_request *request, bool want_ptx, ffa_error *err);

#endif
