/* SPDX-License-Identifier: Apache-2.0
 *
 * From a request to a kernel: table, store, bundles, compiler. Invariant: a hit in the table
 * completes no request and takes no lock. Past the table, one thread of a context works on a
 * kernel, and one process of a node compiles it: the others wait, for the table's entry or for the
 * flight lock of the key, and look again.
 */
#include "jit/compile_worker.h"
#include "service/context.h"

#include "choose/spec_choice.h"

static ffa_status hand_out(struct resolved *out, const struct jit_kernel *kernel, ffa_layer layer,
                           int64_t started)
{
    out->kernel = kernel;
    out->cubin = kernel->cubin;
    out->cubin_bytes = kernel->cubin_bytes;
    out->record = kernel->record;
    out->info = kernel->info;
    out->info.layer = layer;
    out->info.resolve_us = clock_us() - started;
    return FFA_OK;
}

static void count(atomic_uint_fast64_t *counter, uint64_t by)
{
    atomic_fetch_add_explicit(counter, by, memory_order_relaxed);
}

/* A kernel came from a file. */
static void count_hit(ffa_context *context, const struct jit_kernel *kernel, ffa_layer layer)
{
    count(layer == FFA_LAYER_BUNDLE ? &context->stats.hits_bundle : &context->stats.hits_store, 1);
    count(&context->stats.saved_us, (uint64_t)kernel->info.compile_us);
    log_line(&context->log, FFA_LOG_DEBUG, "resolve",
             "event=%s_hit key=%s template=%s toolchain=\"%s\"", ffa_layer_text(layer),
             kernel->info.key, kernel->info.template_name, kernel->info.toolchain);
}

/* Whether the job that this request is of was cut short. */
static bool is_cut(const struct jit_request *request)
{
    const struct worker *worker = request->worker;

    return worker && worker->is_cut && atomic_load(worker->is_cut);
}

ffa_status context_compile(struct jit_result *out, ffa_context *context,
                           struct jit_request *request, bool want_ptx, ffa_error *err)
{
    ffa_error why = { 0 };
    ffa_status rc = jit_compile(context->jit, request, want_ptx, out, &why);
    const ffa_kernel_info *info = &out->kernel.info;

    if (rc == FFA_OK) {
        count(&context->stats.compiles, 1);
        count(&context->stats.compile_us, (uint64_t)info->compile_us);
        log_line(&context->log, FFA_LOG_INFO, "resolve",
                 "event=compile key=%s template=%s arch=%s ms=%lld regs=%d spill_bytes=%d "
                 "advisories=%d cubin_bytes=%lld",
                 info->key, info->template_name, info->arch, (long long)info->compile_us / 1000,
                 (int)info->registers, (int)info->spill_bytes, (int)info->advisory_count,
                 (long long)info->cubin_bytes);
        return FFA_OK;
    }
    if (is_cut(request))
        return error_fail(err, rc, why.native, "%s", why.message);
    if (rc == FFA_COMPILE || rc == FFA_TIMEOUT)
        count(&context->stats.compile_fails, 1);
    log_line(&context->log, FFA_LOG_ERROR, "resolve",
             "event=compile_failed template=%s arch=%s reason=\"%s\"",
             jit_spec_template(&request->spec), request->arch, why.message);
    return error_fail(err, rc, why.native, "%s", why.message);
}

static ffa_status refuse_to_compile(const struct jit_request *request, ffa_error *err)
{
    char values[160];

    jit_spec_text(&request->spec, values, sizeof values);
    return error_fail(err, FFA_NOT_FOUND, 0,
                      "kernel %s (%s: %s) is in no layer, and FFA_OPEN_NEVER_COMPILE is set",
                      request->key, jit_spec_template(&request->spec), values);
}

/* In no file now: wait for whoever compiles the kernel, and look into the store again. */
static ffa_status look_again(ffa_context *context, const struct store_query *query,
                             struct jit_kernel *out, struct flight_lock *lock, ffa_error *err)
{
    const struct worker *worker = query->request->worker;

    if (context->opts.flags & FFA_OPEN_NEVER_COMPILE || !store_is_writable(context->cache.store))
        return FFA_NOT_FOUND;
    switch (flight_take(context->cache.flight, query->request->key, worker ? worker->is_cut : NULL,
                        lock)) {
    case FLIGHT_HELD:
        return store_find(context->cache.store, query, out, err);
    case FLIGHT_CUT:
        return error_fail(err, FFA_TIMEOUT, 0, "cut off while another process compiled kernel %s",
                          query->request->key);
    default:
        return FFA_NOT_FOUND;
    }
}

/* FFA_NOT_FOUND: in no file now, nor, if a lock was to be had, in the store once we hold it. */
static ffa_status from_files(ffa_context *context, const struct store_query *query,
                             struct jit_kernel *out, ffa_layer *layer, struct flight_lock *lock,
                             ffa_error *err)
{
    ffa_status rc = cache_find(&context->cache, query, out, layer, err);

    if (rc == FFA_NOT_FOUND) {
        rc = look_again(context, query, out, lock, err);
        if (rc == FFA_OK)
            *layer = FFA_LAYER_STORE;
    }
    if (rc == FFA_OK)
        count_hit(context, out, *layer);
    if (rc == FFA_OK && *layer == FFA_LAYER_BUNDLE && context->opts.flags & FFA_OPEN_COPY_HITS)
        store_put(context->cache.store, out);
    if (rc == FFA_NOT_FOUND)
        count(&context->stats.misses, 1);
    return rc;
}

static int64_t failure_age_s(const ffa_context *context)
{
    enum { AGE_S = 300 };

    return context->opts.failure_age_s ? (int64_t)context->opts.failure_age_s : AGE_S;
}

/* Whether this very compile failed lately; then the error and the log are what it said. */
static bool is_known_failure(ffa_context *context, const struct jit_request *request,
                             char **log_text, ffa_error *err)
{
    struct store_failure failure;

    if (context->opts.flags & FFA_OPEN_RETRY_FAILED ||
        !store_find_failure(context->cache.store, request, jit_toolchain(context->jit),
                            failure_age_s(context), &failure))
        return false;
    count(&context->stats.fails_known, 1);
    log_line(&context->log, FFA_LOG_INFO, "resolve", "event=failure_known key=%s age_s=%lld",
             request->key, (long long)failure.age_s);
    (void)error_fail(err, FFA_COMPILE, 0, "%.380s (%lld s ago; tried again after %lld s)",
                     failure.message, (long long)failure.age_s, (long long)failure_age_s(context));
    if (log_text) {
        *log_text = failure.log;
        failure.log = NULL;
    }
    store_failure_finish(&failure);
    return true;
}

/* Compile, and put into the store what came of it: the kernel, or a failure that is final. */
static ffa_status compile_and_store(struct jit_kernel *out, ffa_context *context,
                                    struct jit_request *request, char **log_text, ffa_error *err)
{
    const char *toolchain = jit_toolchain(context->jit);
    struct jit_result result = { 0 };
    ffa_error why = { 0 };
    ffa_status rc = context_compile(&result, context, request, false, &why);

    if (rc == FFA_OK)
        store_put(context->cache.store, &result.kernel);
    else if (rc == FFA_COMPILE && result.is_final && *toolchain)
        store_put_failure(context->cache.store, request, toolchain, why.message, result.log);
    if (log_text) {
        *log_text = result.log;
        result.log = NULL;
    }
    *out = result.kernel;
    result.kernel = (struct jit_kernel){ 0 };
    jit_result_finish(&result);
    return rc == FFA_OK ? FFA_OK : error_fail(err, rc, why.native, "%s", why.message);
}

/* Past the table: for the one thread that reserved the entry. */
static ffa_status produce(struct jit_kernel *out, ffa_layer *layer, ffa_context *context,
                          struct jit_request *request, char **log_text, ffa_error *err)
{
    const struct jit_kernel *refused[TABLE_REFUSED_MAX];
    struct store_query query = { .request = request,
                                 .exact = context->opts.flags & FFA_OPEN_EXACT_TOOLCHAIN,
                                 .refused = refused };
    struct flight_lock lock = { .file = -1 };
    ffa_status rc;

    FFA_TRY(jit_request_complete(request, context->jit, err));
    if (query.exact)
        FFA_TRY(jit_open_compiler(context->jit, err));
    query.toolchain = jit_toolchain(context->jit);
    query.refused_count = table_refused(context->cache.table, request, refused);
    /* With so many refused, the next would be asked for again and again. */
    rc = query.refused_count < TABLE_REFUSED_MAX
             ? from_files(context, &query, out, layer, &lock, err)
             : FFA_NOT_FOUND;
    if (rc != FFA_NOT_FOUND)
        goto out;
    if (context->opts.flags & (FFA_OPEN_NEVER_COMPILE | FFA_OPEN_LOG_MISSES))
        store_note_miss(context->cache.store, request);
    if (context->opts.flags & FFA_OPEN_NEVER_COMPILE) {
        rc = refuse_to_compile(request, err);
        goto out;
    }
    /* Failures are one compiler's, so it is opened first. If it cannot be, the compile says so. */
    (void)jit_open_compiler(context->jit, NULL);
    *layer = FFA_LAYER_COMPILED;
    rc = is_known_failure(context, request, log_text, err)
             ? FFA_COMPILE
             : compile_and_store(out, context, request, log_text, err);
out:
    flight_release(&lock);
    return rc;
}

ffa_status context_resolve(struct resolved *out, ffa_context *context, struct jit_request *request,
                           char **log_text, ffa_error *err)
{
    int64_t started = clock_us();
    struct jit_kernel kernel = { 0 };
    const struct jit_kernel *found;
    struct table_entry *reserved;
    ffa_error why = { 0 };
    ffa_layer layer = FFA_LAYER_NONE;
    ffa_status rc = FFA_OK;

    memset(out, 0, sizeof *out);
    if (log_text)
        *log_text = NULL;
    found = table_find(context->cache.table, request);
    if (!found)
        FFA_TRY(table_reserve(context->cache.table, request, &found, &reserved, err));
    if (found) {
        count(&context->stats.hits_table, 1);
        return hand_out(out, found, FFA_LAYER_TABLE, started);
    }
    rc = produce(&kernel, &layer, context, request, log_text, &why);
    kernel.info.layer = layer;
    if (rc == FFA_OK)
        return hand_out(out, table_publish(context->cache.table, reserved, &kernel), layer,
                        started);
    table_fail(context->cache.table, reserved, &why);
    rc = error_fail(err, rc, why.native, "%s", why.message);
out:
    return rc;
}

bool context_note_missing(ffa_context *context, const struct jit_spec *spec, const char *arch)
{
    struct store_query query = { .exact = context->opts.flags & FFA_OPEN_EXACT_TOOLCHAIN };
    struct jit_kernel kernel = { 0 };
    struct jit_request request;
    bool is_missing = false;
    ffa_layer layer;

    jit_request_init(&request, spec, arch);
    if (!table_find(context->cache.table, &request) &&
        jit_request_complete(&request, context->jit, NULL) == FFA_OK) {
        query.request = &request;
        query.toolchain = jit_toolchain(context->jit);
        is_missing = cache_find(&context->cache, &query, &kernel, &layer, NULL) == FFA_NOT_FOUND;
    }
    if (is_missing)
        store_note_miss(context->cache.store, &request);
    jit_kernel_finish(&kernel);
    jit_request_finish(&request);
    return is_missing;
}

bool context_lacks(ffa_context *context, const struct jit_spec *spec, const char *arch)
{
    struct store_query query = { .exact = context->opts.flags & FFA_OPEN_EXACT_TOOLCHAIN };
    struct jit_request request;
    bool is_missing = false;

    jit_request_init(&request, spec, arch);
    if (!table_find(context->cache.table, &request) &&
        jit_request_complete(&request, context->jit, NULL) == FFA_OK) {
        query.request = &request;
        query.toolchain = jit_toolchain(context->jit);
        is_missing = !cache_has(&context->cache, &query);
    }
    jit_request_finish(&request);
    return is_missing;
}

/* ---- loading ---- */

static void log_refusal(ffa_context *context, const struct resolved *found, const ffa_error *why)
{
    log_line(&context->log, FFA_LOG_WARNING, "resolve",
             "event=kernel_refused key=%s template=%s layer=%s toolchain=\"%s\" reason=\"%s\"",
             found->info.key, found->info.template_name, ffa_layer_text(found->kernel->info.layer),
             found->info.toolchain, why->message);
}

/* What a kernel failed with after others of it had been refused: both matter. */
static ffa_status fail_after(const ffa_error *refusal, ffa_status rc, const ffa_error *why,
                             ffa_error *err)
{
    if (refusal->status == FFA_OK)
        return error_fail(err, rc, why->native, "%s", why->message);
    if (rc == FFA_NOT_FOUND)
        return error_fail(err, rc, refusal->native,
                          "%.400s; no other is in a layer, and FFA_OPEN_NEVER_COMPILE is set",
                          refusal->message);
    return error_fail(err, rc, why->native, "%.250s; then: %.250s", refusal->message, why->message);
}

ffa_status context_load(struct resolved *out, ffa_context *context, struct jit_request *request,
                        context_load_fn load, void *user, ffa_error *err)
{
    ffa_error refusal = { FFA_OK, 0, "" };

    for (;;) {
        ffa_error why = { FFA_OK, 0, "" };
        bool is_refused = false;
        ffa_status rc = context_resolve(out, context, request, NULL, &why);

        if (rc != FFA_OK)
            return fail_after(&refusal, rc, &why, err);
        rc = load(user, out, &is_refused, &why);
        if (rc == FFA_OK)
            return FFA_OK;
        if (!is_refused)
            return fail_after(&refusal, rc, &why, err);
        log_refusal(context, out, &why);
        (void)error_fail(&refusal, FFA_UNSUPPORTED, why.native,
                         "the driver refuses kernel %s of %s: %s", out->info.key,
                         out->info.toolchain, why.message);
        /* It stays in the table: a second call is answered without a second compile. */
        if (out->kernel->info.layer == FFA_LAYER_COMPILED)
            return error_fail(err, FFA_UNSUPPORTED, why.native, "%s", refusal.message);
        table_refuse(context->cache.table, out->kernel);
    }
}
