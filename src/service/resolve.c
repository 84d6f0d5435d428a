/* SPDX-License-Identifier: Apache-2.0
 *
 * "Give me this kernel": table, store, bundles, then compile. A table hit computes no key and takes
 * no lock; the rest runs once a kernel and context, whoever else asks meanwhile, and the compile
 * once a node: processes that miss the same key wait for the lock of the one that is at it, and
 * look again.
 */
#include "service/context.h"

#include "choose/spec_choice.h"

static ffa_status hand_out(struct resolved *out, const struct jit_kernel *kernel, ffa_layer layer,
                           int64_t started)
{
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

ffa_status context_compile(struct jit_result *out, ffa_context *context,
                           const struct jit_spec *spec, const char *arch, bool want_ptx,
                           ffa_error *err)
{
    ffa_error why = { 0 };
    ffa_status rc = jit_compile(context->jit, spec, arch, want_ptx, out, &why);
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
    if (rc == FFA_COMPILE || rc == FFA_TIMEOUT)
        count(&context->stats.compile_fails, 1);
    log_line(&context->log, FFA_LOG_ERROR, "resolve",
             "event=compile_failed template=%s arch=%s reason=\"%s\"", jit_spec_template(spec),
             arch, why.message);
    return error_fail(err, rc, why.native, "%s", why.message);
}

static ffa_status refuse_to_compile(const struct jit_spec *spec, const char *key, ffa_error *err)
{
    char values[160];

    jit_spec_text(spec, values, sizeof values);
    return error_fail(err, FFA_NOT_FOUND, 0,
                      "kernel %s (%s: %s) is in no layer, and FFA_OPEN_NEVER_COMPILE is set", key,
                      jit_spec_template(spec), values);
}

/* FFA_NOT_FOUND: in no file now, nor, if a lock was to be had, in the store once we hold it. */
static ffa_status from_files(ffa_context *context, const struct store_query *query,
                             struct jit_kernel *out, ffa_layer *layer, struct flight_lock *lock,
                             ffa_error *err)
{
    ffa_status rc = cache_find(&context->cache, query, out, layer, err);

    if (rc == FFA_NOT_FOUND && !(context->opts.flags & FFA_OPEN_NEVER_COMPILE) &&
        store_is_writable(context->cache.store) &&
        flight_take(context->cache.flight, query->key, lock) == FLIGHT_HELD) {
        rc = store_find(context->cache.store, query, out, err);
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

/* A kernel that could not be had, as the store notes it. Borrows. */
static struct jit_kernel shadow_of(const struct store_query *query, const struct jit_spec *spec,
                                   const char *arch)
{
    struct jit_kernel kernel = { .record = (char *)(uintptr_t)query->record };

    text_copy(kernel.info.key, "%s", query->key);
    text_copy(kernel.info.toolchain, "%s", query->toolchain);
    text_copy(kernel.info.template_name, "%s", jit_spec_template(spec));
    text_copy(kernel.info.arch, "%s", arch);
    return kernel;
}

static int64_t failure_age_s(const ffa_context *context)
{
    enum { AGE_S = 300 };

    return context->opts.failure_age_s ? (int64_t)context->opts.failure_age_s : AGE_S;
}

/* Whether this very compile failed lately; then the error and the log are what it said. */
static bool is_known_failure(ffa_context *context, const struct store_query *query, char **log_text,
                             ffa_error *err)
{
    struct store_failure failure;

    if (context->opts.flags & FFA_OPEN_RETRY_FAILED ||
        !store_find_failure(context->cache.store, query->key, query->toolchain,
                            failure_age_s(context), &failure))
        return false;
    count(&context->stats.fails_known, 1);
    log_line(&context->log, FFA_LOG_INFO, "resolve", "event=failure_known key=%s age_s=%lld",
             query->key, (long long)failure.age_s);
    (void)error_fail(err, FFA_COMPILE, 0, "%.380s (%lld s ago; tried again after %lld s)",
                     failure.message, (long long)failure.age_s, (long long)failure_age_s(context));
    if (log_text) {
        *log_text = failure.log;
        failure.log = NULL;
    }
    store_failure_finish(&failure);
    return true;
}

/* Compile, and note in the store what came of it. */
static ffa_status compile_and_note(struct jit_kernel *out, ffa_context *context,
                                   const struct store_query *query, const struct jit_spec *spec,
                                   const char *arch, char **log_text, ffa_error *err)
{
    struct jit_kernel shadow = shadow_of(query, spec, arch);
    struct jit_result result = { 0 };
    ffa_error why = { 0 };
    ffa_status rc = context_compile(&result, context, spec, arch, false, &why);

    if (rc == FFA_OK)
        store_put(context->cache.store, &result.kernel);
    else if (rc == FFA_COMPILE && result.is_final && *query->toolchain)
        store_put_failure(context->cache.store, &shadow, why.message, result.log);
    if (log_text) {
        *log_text = result.log;
        result.log = NULL;
    }
    *out = result.kernel;
    result.kernel = (struct jit_kernel){ 0 };
    jit_result_finish(&result);
    return rc == FFA_OK ? FFA_OK : error_fail(err, rc, why.native, "%s", why.message);
}

/* What the claimant of a missing kernel does, once. */
static ffa_status produce(struct jit_kernel *out, ffa_layer *layer, ffa_context *context,
                          const struct jit_spec *spec, const char *arch, char **log_text,
                          ffa_error *err)
{
    struct store_query query = { .exact = context->opts.flags & FFA_OPEN_EXACT_TOOLCHAIN };
    struct flight_lock lock = { .file = -1 };
    char *record = NULL;
    char key[33];
    ffa_status rc;

    FFA_TRY(jit_key(context->jit, spec, arch, key, &record, err));
    if (query.exact)
        FFA_TRY(jit_open_compiler(context->jit, err));
    query.key = key;
    query.record = record;
    query.toolchain = jit_toolchain(context->jit);
    rc = from_files(context, &query, out, layer, &lock, err);
    if (rc != FFA_NOT_FOUND)
        goto out;
    if (context->opts.flags & (FFA_OPEN_NEVER_COMPILE | FFA_OPEN_LOG_MISSES)) {
        struct jit_kernel shadow = shadow_of(&query, spec, arch);

        store_note_miss(context->cache.store, &shadow);
    }
    if (context->opts.flags & FFA_OPEN_NEVER_COMPILE) {
        rc = refuse_to_compile(spec, key, err);
        goto out;
    }
    /* Failures are one compiler's. That it cannot be opened is for the compile to say. */
    (void)jit_open_compiler(context->jit, NULL);
    query.toolchain = jit_toolchain(context->jit);
    *layer = FFA_LAYER_COMPILED;
    rc = is_known_failure(context, &query, log_text, err)
             ? FFA_COMPILE
             : compile_and_note(out, context, &query, spec, arch, log_text, err);
out:
    flight_release(&lock);
    mem_free(record);
    return rc;
}

ffa_status context_resolve(struct resolved *out, ffa_context *context, const struct jit_spec *spec,
                           const char *arch, char **log_text, ffa_error *err)
{
    int64_t started = clock_us();
    struct jit_kernel kernel = { 0 };
    const struct jit_kernel *found;
    struct jit_spec full = *spec;
    struct table_entry *claim;
    struct table_key key;
    ffa_error why = { 0 };
    ffa_layer layer;
    ffa_status rc;

    memset(out, 0, sizeof *out);
    if (log_text)
        *log_text = NULL;
    /* What is in the table was resolved: a request that is found as it is needs no more. */
    table_key_init(&key, &full, arch);
    found = table_find(context->cache.table, &key);
    if (!found) {
        FFA_TRY(choose_spec(&full, arch, err));
        table_key_init(&key, &full, arch);
        found = table_find(context->cache.table, &key);
    }
    if (!found)
        FFA_TRY(table_claim(context->cache.table, &key, &found, &claim, err));
    if (found) {
        count(&context->stats.hits_table, 1);
        return hand_out(out, found, FFA_LAYER_TABLE, started);
    }
    rc = produce(&kernel, &layer, context, &full, arch, log_text, &why);
    if (rc == FFA_OK)
        return hand_out(out, table_settle(context->cache.table, claim, &kernel), layer, started);
    table_fail(context->cache.table, claim, &why);
    rc = error_fail(err, rc, why.native, "%s", why.message);
out:
    return rc;
}
