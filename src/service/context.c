/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa_context: options are checked and copied once; then come compiler, layers and device. It knows
 * nothing of what kernels compute: rooms above keep their objects in it by context_keep. Invariant:
 * a context closes in the reverse order, so that an object may use all that was there when it was
 * made, and a context that is half open closes by the same function.
 */
#include "service/context.h"

#include "gpu/gpu.h"
#include "gpu/gpu_stream.h"

#include <stdio.h>
#include <unistd.h>

enum {
    KNOWN_FLAGS = FFA_OPEN_NEVER_COMPILE | FFA_OPEN_EXACT_TOOLCHAIN | FFA_OPEN_CPU_FP64 |
                  FFA_OPEN_CACHE_READONLY | FFA_OPEN_LOG_MISSES | FFA_OPEN_RETRY_FAILED |
                  FFA_OPEN_NETWORK_STORE | FFA_OPEN_GROUP_STORE | FFA_OPEN_COPY_HITS,
    CPU_THREADS_MAX = 1024,
    WORKER_MIB_MIN = 32,
    WORKER_MIB_MAX = 1 << 20,
    BUNDLES_MAX = 64
};

/* The options that are paths: all are copied, none may be empty. */
static const struct {
    const char *name;
    size_t at;
} path_options[] = {
    { "cache_path", offsetof(ffa_context_opts, cache_path) },
    { "templates_dir", offsetof(ffa_context_opts, templates_dir) },
    { "nvrtc_path", offsetof(ffa_context_opts, nvrtc_path) },
    { "nccl_path", offsetof(ffa_context_opts, nccl_path) },
    { "worker_path", offsetof(ffa_context_opts, worker_path) },
    { "cudart_path", offsetof(ffa_context_opts, cudart_path) },
    { "cost_tables", offsetof(ffa_context_opts, cost_tables) },
};
enum { PATH_OPTIONS = sizeof path_options / sizeof *path_options };

static const char **path_option(ffa_context_opts *opts, int index)
{
    return (const char **)((char *)opts + path_options[index].at);
}

static ffa_status check_options(ffa_context_opts *opts, ffa_error *err)
{
    if (opts->flags & ~(uint32_t)KNOWN_FLAGS)
        return error_fail(err, FFA_UNSUPPORTED, 0, "flags is 0x%x, known are 0x%x", opts->flags,
                          (unsigned)KNOWN_FLAGS);
    if (opts->cpu_threads > CPU_THREADS_MAX)
        return error_fail(err, FFA_INVALID, 0, "cpu_threads is %u, not in [0, %d]",
                          opts->cpu_threads, CPU_THREADS_MAX);
    for (int i = 0; i < PATH_OPTIONS; i++)
        if (*path_option(opts, i) && !**path_option(opts, i))
            return error_fail(err, FFA_INVALID, 0, "%s is empty; NULL is the default",
                              path_options[i].name);
    if ((opts->worker_timeout_ms || opts->worker_memory_mib) && !opts->worker_path)
        return error_fail(err, FFA_INVALID, 0, "%s is %u and worker_path is NULL",
                          opts->worker_timeout_ms ? "worker_timeout_ms" : "worker_memory_mib",
                          opts->worker_timeout_ms ? opts->worker_timeout_ms
                                                  : opts->worker_memory_mib);
    if (opts->worker_memory_mib &&
        (opts->worker_memory_mib < WORKER_MIB_MIN || opts->worker_memory_mib > WORKER_MIB_MAX))
        return error_fail(err, FFA_INVALID, 0, "worker_memory_mib is %u, not 0 or in [%d, %d]",
                          opts->worker_memory_mib, WORKER_MIB_MIN, WORKER_MIB_MAX);
    if (opts->bundle_count < 0 || opts->bundle_count > BUNDLES_MAX)
        return error_fail(err, FFA_INVALID, 0, "bundle_count is %lld, not in [0, %d]",
                          (long long)opts->bundle_count, BUNDLES_MAX);
    if (opts->bundle_count && !opts->bundles)
        return error_fail(err, FFA_INVALID, 0, "bundles is NULL, bundle_count is %lld",
                          (long long)opts->bundle_count);
    for (int64_t i = 0; i < opts->bundle_count; i++)
        if (!opts->bundles[i] || !*opts->bundles[i])
            return error_fail(err, FFA_INVALID, 0, "bundles[%lld] is %s", (long long)i,
                              opts->bundles[i] ? "empty" : "NULL");
    return FFA_OK;
}

/* The context owns its strings from here on; those not copied are NULL, so that closing is safe. */
static ffa_status copy_options(ffa_context *context, ffa_context_opts *opts, ffa_error *err)
{
    context->opts = *opts;
    context->opts.bundles = NULL; /* whoever opens them copies their names */
    for (int i = 0; i < PATH_OPTIONS; i++)
        *path_option(&context->opts, i) = NULL;
    for (int i = 0; i < PATH_OPTIONS; i++) {
        char *copy = mem_strdup(*path_option(opts, i));

        if (!copy && *path_option(opts, i))
            return error_nomem(err, path_options[i].name);
        *path_option(&context->opts, i) = copy;
    }
    context->log = (struct log){ .fn = opts->log, .user = opts->log_user };
    return FFA_OK;
}

/* FFA_DEVICE_AUTO. To have no CUDA runtime is no failure, but one that was named is missed. */
static int pick_device(ffa_context *context)
{
    ffa_error why = { FFA_OK, 0, "" };

    if (gpu_runtime_open(&context->cuda, context->opts.cudart_path, &why) == FFA_OK)
        return gpu_device_pick(context->cuda); /* -1 is the CPU */
    log_line(&context->log, context->opts.cudart_path ? FFA_LOG_WARNING : FFA_LOG_INFO, "gpu",
             "event=no_cuda_runtime reason=\"%s\"", why.message);
    return FFA_DEVICE_CPU;
}

static ffa_status open_device(ffa_context *context, int device, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    if (device == FFA_DEVICE_AUTO)
        device = pick_device(context);
    else if (device >= 0)
        FFA_TRY(gpu_runtime_open(&context->cuda, context->opts.cudart_path, err));
    if (device >= 0)
        FFA_TRY(gpu_device_open(&context->gpu, context->cuda, device, err));
    text_copy(context->arch, "%s", context->gpu ? gpu_device_arch(context->gpu) : JIT_ARCH_DEFAULT);
out:
    return rc;
}

/* After copy_options: the strings are the context's. */
static ffa_status make_compiler(ffa_context *context, ffa_error *err)
{
    const ffa_context_opts *opts = &context->opts;

    return jit_create(&context->jit,
                      &(struct jit_opts){ .templates_dir = opts->templates_dir,
                                          .nvrtc_path = opts->nvrtc_path,
                                          .worker_path = opts->worker_path,
                                          .worker_timeout_ms = opts->worker_timeout_ms,
                                          .worker_memory_mib = opts->worker_memory_mib },
                      &context->log, err);
}

static int32_t threads_of(const ffa_context_opts *opts)
{
    long cores = opts->cpu_threads ? (long)opts->cpu_threads : sysconf(_SC_NPROCESSORS_ONLN);

    return cores < 1 ? 1 : cores > CPU_THREADS_MAX ? CPU_THREADS_MAX : (int32_t)cores;
}

/* ---- objects of other rooms ---- */

struct context_object *context_keep(ffa_context *context, const struct context_kind *kind,
                                    const void *wanted, struct context_object *fresh)
{
    struct context_object *object;

    (void)pthread_mutex_lock(&context->kept_lock);
    for (object = context->kept; object; object = object->next)
        if (object->kind == kind && kind->matches(object, wanted))
            break;
    if (!object && fresh) {
        fresh->kind = kind;
        fresh->next = context->kept;
        context->kept = fresh;
        object = fresh;
    }
    (void)pthread_mutex_unlock(&context->kept_lock);
    return object;
}

/* ---- threads of ours ---- */

void context_enter(ffa_context *context)
{
    (void)pthread_mutex_lock(&context->work_lock);
    context->workers++;
    (void)pthread_mutex_unlock(&context->work_lock);
}

void context_leave(ffa_context *context)
{
    (void)pthread_mutex_lock(&context->work_lock);
    context->workers--;
    (void)pthread_cond_broadcast(&context->work_done);
    (void)pthread_mutex_unlock(&context->work_lock);
}

static void await_workers(ffa_context *context)
{
    (void)pthread_mutex_lock(&context->work_lock);
    while (context->workers > 0)
        (void)pthread_cond_wait(&context->work_done, &context->work_lock);
    (void)pthread_mutex_unlock(&context->work_lock);
}

/* Threads and counts are the parent's: it adds them to the store's sums when it closes. */
static void work_in_child(void *object)
{
    ffa_context *context = object;

    context->workers = 0;
    memset(&context->stats, 0, sizeof context->stats);
    (void)pthread_cond_init(&context->work_done, NULL);
}

ffa_status ffa_open(ffa_context **out, int device, const ffa_context_opts *opts, ffa_error *err)
{
    ffa_context *context = NULL;
    ffa_context_opts given;
    ffa_status rc;

    if (!out)
        return error_fail(err, FFA_INVALID, 0, "out is NULL");
    *out = NULL;
    if (device < FFA_DEVICE_AUTO)
        return error_fail(err, FFA_INVALID, 0,
                          "device is %d, not an ordinal, FFA_DEVICE_CPU (%d) or FFA_DEVICE_AUTO "
                          "(%d)",
                          device, FFA_DEVICE_CPU, FFA_DEVICE_AUTO);
    FFA_TRY(opts_import(&given, sizeof given, opts, err));
    FFA_TRY(check_options(&given, err));
    context = mem_array(1, sizeof *context);
    if (!context) {
        rc = error_nomem(err, "a context");
        goto out;
    }
    (void)pthread_mutex_init(&context->kept_lock, NULL); /* cannot fail with default attributes */
    (void)pthread_mutex_init(&context->work_lock, NULL);
    (void)pthread_cond_init(&context->work_done, NULL);
    fork_guard_add(&context->work_guard, &context->work_lock, work_in_child, context);
    fork_guard_add(&context->kept_guard, &context->kept_lock, NULL, NULL);
    FFA_TRY(copy_options(context, &given, err));
    context->cpu_threads = threads_of(&given);
    FFA_TRY(make_compiler(context, err));
    FFA_TRY(table_create(&context->cache.table, err));
    FFA_TRY(store_open(
        &context->cache.store,
        &(struct store_opts){
            .path = context->opts.cache_path,
            .mode = given.flags & FFA_OPEN_CACHE_READONLY ? STORE_READONLY : STORE_READWRITE,
            .on_network = given.flags & FFA_OPEN_NETWORK_STORE,
            .of_group = given.flags & FFA_OPEN_GROUP_STORE,
            .bytes_max = given.cache_bytes_max,
            .log = context->log,
        },
        err));
    FFA_TRY(
        cache_open_bundles(&context->cache, given.bundles, given.bundle_count, &context->log, err));
    if (context->opts.cache_path)
        FFA_TRY(flight_open(&context->cache.flight,
                            &(struct flight_opts){ .store_path = context->opts.cache_path,
                                                   .wait_ms = given.lock_wait_ms,
                                                   .of_group = given.flags & FFA_OPEN_GROUP_STORE,
                                                   .log = context->log },
                            err));
    FFA_TRY(cost_tables_open(&context->costs,
                             &(struct cost_tables_opts){ .path = context->opts.cost_tables,
                                                         .store_path = context->opts.cache_path,
                                                         .log = context->log },
                             err));
    FFA_TRY(open_device(context, device, err));
    *out = context;
    context = NULL;
out:
    ffa_close(context);
    return rc;
}

static void leave_counts(ffa_context *context)
{
    struct context_stats *stats = &context->stats;

    if (context->cache.store)
        store_count(context->cache.store,
                    &(ffa_cache_counters){ .hits_table = atomic_load(&stats->hits_table),
                                           .hits_store = atomic_load(&stats->hits_store),
                                           .hits_bundle = atomic_load(&stats->hits_bundle),
                                           .misses = atomic_load(&stats->misses),
                                           .compiles = atomic_load(&stats->compiles),
                                           .compile_fails = atomic_load(&stats->compile_fails),
                                           .compile_us = atomic_load(&stats->compile_us),
                                           .saved_us = atomic_load(&stats->saved_us) });
}

static void destroy_kept(ffa_context *context)
{
    while (context->kept) {
        struct context_object *object = context->kept;

        context->kept = object->next;
        object->kind->destroy(object);
    }
}

void ffa_close(ffa_context *context)
{
    if (!context)
        return;
    await_workers(context);
    fork_guard_remove(&context->work_guard);
    (void)pthread_cond_destroy(&context->work_done);
    (void)pthread_mutex_destroy(&context->work_lock);
    destroy_kept(context);
    fork_guard_remove(&context->kept_guard);
    (void)pthread_mutex_destroy(&context->kept_lock);
    gpu_device_close(context->gpu);
    gpu_runtime_close(context->cuda);
    flight_close(context->cache.flight);
    cache_close_bundles(&context->cache);
    leave_counts(context);
    store_close(context->cache.store);
    table_destroy(context->cache.table);
    cost_tables_close(context->costs);
    jit_destroy(context->jit);
    for (int i = 0; i < PATH_OPTIONS; i++)
        mem_free((char *)*path_option(&context->opts, i));
    mem_free(context);
}

ffa_status ffa_context_info_get(ffa_context *context, ffa_context_info *info, ffa_error *err)
{
    ffa_context_info now = { .device = FFA_DEVICE_CPU };

    if (!context || !info)
        return error_fail(err, FFA_INVALID, 0, "%s is NULL", context ? "info" : "context");
    text_copy(now.device_name, "cpu");
    if (context->gpu) {
        now.device = gpu_device_ordinal(context->gpu);
        now.sm_count = gpu_device_sm_count(context->gpu);
        now.device_count = gpu_device_count(context->gpu);
        text_copy(now.device_name, "%s", gpu_device_name(context->gpu));
        (void)gpu_device_identity(context->gpu, now.device_uuid, NULL);
    }
    now.cpu_threads = context->cpu_threads;
    if (context->cuda) {
        text_copy(now.cudart_path, "%s", gpu_runtime_path(context->cuda));
        text_copy(now.cudart_version, "%s", gpu_runtime_version(context->cuda));
        text_copy(now.driver_version, "%s", gpu_runtime_driver(context->cuda));
    }
    text_copy(now.arch, "%s", context->arch);
    text_copy(now.nvrtc_path, "%s", jit_nvrtc_path(context->jit));
    text_copy(now.nvrtc_version, "%s", jit_nvrtc_version(context->jit));
    text_copy(now.store_path, "%s", store_path(context->cache.store));
    store_state(context->cache.store, now.store_state, sizeof now.store_state);
    now.bundle_count = (int32_t)context->cache.bundle_count;
    now.bundles_used = (int32_t)cache_bundles_in_use(&context->cache);
    return opts_export(info, &now, sizeof now, err);
}

ffa_status ffa_context_open_compiler(ffa_context *context, ffa_error *err)
{
    if (!context)
        return error_fail(err, FFA_INVALID, 0, "context is NULL");
    return jit_open_compiler(context->jit, err);
}

ffa_status ffa_context_stats_get(ffa_context *context, ffa_context_stats *stats, ffa_error *err)
{
    ffa_context_stats now = { 0 };
    struct flight_counts flight = { 0 };

    if (!context || !stats)
        return error_fail(err, FFA_INVALID, 0, "%s is NULL", context ? "stats" : "context");
    if (context->cache.flight)
        flight = flight_counts(context->cache.flight);
    now.hits_table = atomic_load(&context->stats.hits_table);
    now.hits_store = atomic_load(&context->stats.hits_store);
    now.hits_bundle = atomic_load(&context->stats.hits_bundle);
    now.misses = atomic_load(&context->stats.misses);
    now.compiles = atomic_load(&context->stats.compiles);
    now.compile_fails = atomic_load(&context->stats.compile_fails);
    now.compile_us = atomic_load(&context->stats.compile_us);
    now.fails_known = atomic_load(&context->stats.fails_known);
    now.forward_calls = atomic_load(&context->stats.forward_calls);
    now.backward_calls = atomic_load(&context->stats.backward_calls);
    now.store_bad = cache_bad_count(&context->cache);
    now.store_errors = cache_error_count(&context->cache);
    now.lock_waits = flight.waits;
    now.lock_timeouts = flight.timeouts;
    now.waited_us = flight.waited_us;
    now.lock_errors = flight.errors;
    return opts_export(stats, &now, sizeof now, err);
}
