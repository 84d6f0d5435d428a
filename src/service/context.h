/* SPDX-License-Identifier: Apache-2.0
 *
 * The context: device, compiler, layers, counters, and what other rooms keep in it; and the one
 * function that turns a request into a kernel.
 */
#ifndef FFA_SERVICE_CONTEXT_H
#define FFA_SERVICE_CONTEXT_H

#include "base/base.h"
#include "base/fork.h"
#include "cache/cache.h"
#include "choose/cost_tables.h"
#include "gpu/device_memory.h"
#include "jit/jit.h"
#include <ffa/context.h>
#include <ffa/kernel.h>
#include <pthread.h>
#include <stdatomic.h>

/* The store counts its own: bad entries and errors. */
struct context_stats {
    atomic_uint_fast64_t fails_known, hits_table, hits_store, hits_bundle, misses, compiles,
        compile_fails, compile_us, forward_calls, backward_calls;
    atomic_uint_fast64_t saved_us; /* kernels from files took so long to compile */
};

/* What objects of one kind, kept in a context by another room, have in common. */
struct context_object;
struct context_kind {
    bool (*matches)(const struct context_object *object, const void *wanted);
    void (*destroy)(struct context_object *object);
};

/* The first member of such an object. */
struct context_object {
    const struct context_kind *kind;
    struct context_object *next;
};

struct ffa_context {
    ffa_context_opts opts; /* strings owned */
    struct log log;
    struct jit *jit;           /* NVRTC (opened on first use) and template text */
    struct kernel_cache cache; /* the memory table and the store */
    struct cost_tables *costs; /* built-in and tuned ones */
    struct gpu_runtime *cuda;  /* NULL where no GPU was asked for, or there is no CUDA runtime */
    struct gpu_device *gpu;    /* NULL on the CPU */
    char arch[16];             /* compiled for by default */
    int32_t cpu_threads;
    struct context_stats stats;
    pthread_mutex_t kept_lock;
    struct fork_guard kept_guard;
    struct context_object *kept; /* under kept_lock, the newest first */
    pthread_mutex_t work_lock;
    pthread_cond_t work_done;
    int32_t workers; /* under work_lock: threads of ours in the context */
    struct fork_guard work_guard;
    struct stopwatch stopwatch; /* the host's */
};

/* The context's device with its cost table; on the CPU, no device and the default. */
struct choose_device context_choose_device(const ffa_context *context);
/* A device model as its cost table describes it, or NULL: context_choose_device; on the CPU the
 * device of the default. FFA_NOT_FOUND lists the models that have tables. */
ffa_status context_choose_model(struct choose_device *out, const ffa_context *context,
                                const char *device, ffa_error *err);

/* A public request, checked, its spec resolved. *out owns nothing yet. */
ffa_status context_import_request(struct jit_request *out, uint32_t *flags, ffa_context *context,
                                  const ffa_compile_request *request, ffa_error *err);

/*
 * The object of `kind` that matches `wanted`. Where there is none: `fresh`, whose kind need not be
 * set, and which the context owns from then on and destroys when it closes, the newest first. NULL
 * where there is neither. An object stays until the context closes. Thread: any; `matches` is
 * called under a lock.
 */
struct context_object *context_keep(ffa_context *context, const struct context_kind *kind,
                                    const void *wanted, struct context_object *fresh);

/* A thread of ours works with the context until it leaves; closing waits for it. */
void context_enter(ffa_context *context);
void context_leave(ffa_context *context);

/* A kernel's bytes and facts. cubin: borrowed from the memory table, which keeps every entry until
 * the context closes. */
struct resolved {
    const struct jit_kernel *kernel; /* of the memory table; NULL: of a compile past it */
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

/* Whether a kernel is in no layer; it is then noted in the store as missed. `spec` is resolved for
 * `arch`. Compiles nothing, and counts nothing. Thread: any. */
bool context_note_missing(ffa_context *context, const struct jit_spec *spec, const char *arch);
/* Whether no layer has an entry for it. The entry is not read, and may turn out to be bad: a guess,
 * for who would look the kernel up next anyway. Thread: any. */
bool context_lacks(ffa_context *context, const struct jit_spec *spec, const char *arch);

struct precompile;
/*
 * Have `count` kernels compiled by threads of their own, one per core and at most 8, while the
 * caller goes on: whoever resolves one of them finds it, or waits until it is done. What fails is
 * told to whoever resolves it. specs: resolved for `arch`; copied. *out: NULL where no thread can
 * be had. Thread: any.
 */
void context_precompile_begin(struct precompile **out, ffa_context *context,
                              const struct jit_spec *const *specs, int32_t count, const char *arch);
/* Begin no more of them; does not wait for what is under way. NULL is allowed. */
void context_precompile_end(struct precompile *precompile);

/* Loads what was resolved; *is_refused: it failed, and another cubin of the same kernel may do. */
typedef ffa_status (*context_load_fn)(void *user, const struct resolved *found, bool *is_refused,
                                      ffa_error *err);

/*
 * Resolve a request and load it. A kernel that is refused is passed over for this context's life:
 * the cubin of another toolchain or layer takes its place, or one that is compiled here. Nobody's
 * entry is removed, as another driver may take it. FFA_UNSUPPORTED when the last resort, a kernel
 * compiled here, is refused, too. Thread: any.
 */
ffa_status context_load(struct resolved *out, ffa_context *context, struct jit_request *request,
                        context_load_fn load, void *user, ffa_error *err);

/* Compile past all layers, counted and logged. On FFA_COMPILE out->log is set; the caller finishes
 * *out in any case. */
ffa_status context_compile(struct jit_result *out, ffa_context *context,
                           struct jit_request *request, bool want_ptx, ffa_error *err);

#endif
