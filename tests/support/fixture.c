/* SPDX-License-Identifier: Apache-2.0
 *
 * Contexts on template texts that compile in milliseconds, and made-up kernels, for tests of the
 * store and its layers.
 *
 * A made-up kernel follows from its number alone: the same number gives the same key, facts and
 * cubin in every process.
 */
#include "support/fixture.h"

#include "base/digest.h"
#include "support/rng.h"

#include <check.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>

ffa_context_opts fixture_opts(const char *store, const char *nvrtc, struct watch *watch)
{
    ffa_context_opts opts = FFA_CONTEXT_OPTS_INIT;

    opts.templates_dir = FFA_TEST_SOURCE_DIR "/tests/data/templates/trivial";
    opts.nvrtc_path = nvrtc;
    opts.cache_path = store;
    opts.log = watch ? watch_line : NULL;
    opts.log_user = watch;
    return opts;
}

ffa_context *fixture_open(const ffa_context_opts *opts)
{
    ffa_error err = { FFA_OK, 0, "" };
    ffa_context *context;

    ck_assert_msg(ffa_open(&context, FFA_DEVICE_CPU, opts, &err) == FFA_OK, "%s", err.message);
    return context;
}

ffa_status fixture_compile(ffa_compiled **out, ffa_context *context, const char *setting,
                           uint32_t flags, ffa_error *err)
{
    ffa_compile_request request = FFA_COMPILE_REQUEST_INIT;

    if (err)
        *err = (ffa_error){ 0 };
    request.template_name = "attention_forward";
    request.settings = &setting;
    request.setting_count = setting ? 1 : 0;
    request.flags = flags;
    return ffa_compile(out, context, &request, err);
}

ffa_status fixture_find(ffa_kernel_info *info, ffa_context *context, const char *setting,
                        ffa_error *err)
{
    ffa_compiled *compiled;
    ffa_status rc = fixture_compile(&compiled, context, setting, 0, err);

    *info = (ffa_kernel_info)FFA_KERNEL_INFO_INIT;
    if (rc == FFA_OK)
        (void)ffa_compiled_info(compiled, info, NULL);
    ffa_compiled_destroy(compiled);
    return rc;
}

struct jit_kernel fixture_kernel(int number, const char *toolchain, const char *arch)
{
    struct jit_kernel kernel = { .cubin_bytes = FIXTURE_CUBIN_BYTES };
    struct rng rng = { .state = (uint64_t)number };
    char text[64];

    kernel.info = (ffa_kernel_info){ .registers = 100 + number,
                                     .shared_bytes = 1000,
                                     .threads = 384,
                                     .cubin_bytes = FIXTURE_CUBIN_BYTES,
                                     .compile_us = 12345 };
    text_copy(text, "kernel %d", number);
    digest_bytes(text, strlen(text), kernel.info.key);
    text_copy(kernel.info.toolchain, "%s", toolchain);
    text_copy(kernel.info.template_name, "attention_forward");
    text_copy(kernel.info.arch, "%s", arch);
    text_copy(text, "number=%d\n", number);
    kernel.record = strdup(text);
    kernel.cubin = malloc(FIXTURE_CUBIN_BYTES);
    for (int i = 0; i < FIXTURE_CUBIN_BYTES; i++)
        ((unsigned char *)kernel.cubin)[i] = (unsigned char)rng_next(&rng);
    return kernel;
}

struct jit_request fixture_request(const struct jit_kernel *kernel)
{
    struct jit_request request = { .record = kernel->record };

    text_copy(request.arch, "%s", kernel->info.arch);
    text_copy(request.key, "%s", kernel->info.key);
    return request;
}

ffa_context_stats fixture_stats(ffa_context *context)
{
    ffa_context_stats stats = FFA_CONTEXT_STATS_INIT;

    ck_assert_int_eq(ffa_context_stats_get(context, &stats, NULL), FFA_OK);
    return stats;
}

void fixture_sql(const char *path, const char *sql)
{
    sqlite3 *db;

    ck_assert_int_eq(sqlite3_open(path, &db), SQLITE_OK);
    ck_assert_msg(sqlite3_exec(db, sql, NULL, NULL, NULL) == SQLITE_OK, "%s", sqlite3_errmsg(db));
    ck_assert_int_eq(sqlite3_close(db), SQLITE_OK);
}
