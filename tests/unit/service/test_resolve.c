/* SPDX-License-Identifier: Apache-2.0
 *
 * Contexts and ffa_compile: which layer answers, what is counted, what is refused.
 */
#include "support/fixture.h"
#include "support/suite.h"
#include "support/tmpdir.h"

#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIXTURES FFA_TEST_SOURCE_DIR "/tests/data/templates/"
#define NO_NVRTC "/nonexistent/libnvrtc.so"

static char *folder;
static char *store; /* folder/cache/kernels.ffadb */
static struct watch watch;

static void setup(void)
{
    char *home;

    folder = tmpdir_make();
    home = tmpdir_path(folder, "cache");
    store = tmpdir_path(home, "kernels.ffadb");
    free(home);
    watch = (struct watch){ .warning = "" };
}

static void teardown(void)
{
    free(store);
    tmpdir_remove(folder);
}

static ffa_context_opts options(void)
{
    return fixture_opts(store, NULL, &watch);
}

/* Compile and expect an answer from `layer`. */
static void expect(ffa_context *context, const char *setting, ffa_layer layer)
{
    ffa_kernel_info info = FFA_KERNEL_INFO_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_compiled *compiled;
    size_t bytes;

    ck_assert_msg(fixture_compile(&compiled, context, setting, 0, &err) == FFA_OK, "%s",
                  err.message);
    ck_assert_int_eq(ffa_compiled_info(compiled, &info, NULL), FFA_OK);
    ck_assert_str_eq(ffa_layer_text(info.layer), ffa_layer_text(layer));
    ck_assert_int_gt(info.registers, 0);
    ck_assert_int_ge(info.resolve_us, 0);
    ck_assert_str_eq(info.arch, "sm_90a");
    ck_assert_ptr_nonnull(ffa_compiled_cubin(compiled, &bytes));
    ck_assert_int_eq((int64_t)bytes, info.cubin_bytes);
    ck_assert_ptr_nonnull(strstr(ffa_compiled_record(compiled), "template=attention_forward\n"));
    ck_assert_int_eq(ffa_compiled_log(compiled)[0] != '\0', layer == FFA_LAYER_COMPILED);
    ffa_compiled_destroy(compiled);
}

static ffa_context_info info_of(ffa_context *context)
{
    ffa_context_info info = FFA_CONTEXT_INFO_INIT;

    ck_assert_int_eq(ffa_context_info_get(context, &info, NULL), FFA_OK);
    return info;
}

/* ---- layers ---- */

START_TEST(table_then_store_then_compile)
{
    ffa_context_opts opts = options();
    ffa_context *context = fixture_open(&opts);
    ffa_context_stats stats;

    expect(context, NULL, FFA_LAYER_COMPILED);
    expect(context, NULL, FFA_LAYER_TABLE);
    expect(context, "head_dim=128", FFA_LAYER_TABLE); /* the default, said */
    expect(context, "head_dim=64", FFA_LAYER_COMPILED);
    stats = fixture_stats(context);
    ck_assert_uint_eq(stats.misses, 2);
    ck_assert_uint_eq(stats.compiles, 2);
    ck_assert_uint_eq(stats.hits_table, 2);
    ck_assert_uint_eq(stats.hits_store, 0);
    ck_assert_uint_gt(stats.compile_us, 0);
    ck_assert_str_eq(info_of(context).store_state, "ok");
    ck_assert_str_eq(info_of(context).store_path, store);
    ck_assert_str_ne(info_of(context).nvrtc_version, "");
    ffa_close(context);

    /* A warmed store needs no compiler, and does not look for one. */
    opts.nvrtc_path = NO_NVRTC;
    context = fixture_open(&opts);
    expect(context, NULL, FFA_LAYER_STORE);
    expect(context, NULL, FFA_LAYER_TABLE);
    expect(context, "head_dim=64", FFA_LAYER_STORE);
    stats = fixture_stats(context);
    ck_assert_uint_eq(stats.hits_store, 2);
    ck_assert_uint_eq(stats.misses, 0);
    ck_assert_str_eq(info_of(context).nvrtc_path, "");
    ck_assert_uint_eq(stats.store_errors + stats.store_bad, 0);
    ffa_close(context);
    ck_assert_int_eq(watch.lines[FFA_LOG_WARNING], 0);
}
END_TEST

START_TEST(missing_nvrtc_is_unsupported)
{
    ffa_context_opts opts = options();
    ffa_compiled *compiled;
    ffa_context *context;
    ffa_error err;

    opts.nvrtc_path = NO_NVRTC;
    context = fixture_open(&opts);
    ck_assert_int_eq(fixture_compile(&compiled, context, NULL, 0, &err), FFA_UNSUPPORTED);
    ck_assert_msg(strstr(err.message, "no NVRTC >= 12.8"), "%s", err.message);
    ck_assert_ptr_null(compiled);
    ck_assert_int_eq(ffa_context_open_compiler(context, &err), FFA_UNSUPPORTED);
    ffa_close(context);
}
END_TEST

START_TEST(never_compile_is_kept)
{
    ffa_context_opts opts = options();
    ffa_compiled *compiled;
    ffa_context *context;
    ffa_error err;

    opts.flags = FFA_OPEN_NEVER_COMPILE;
    context = fixture_open(&opts);
    ck_assert_int_eq(fixture_compile(&compiled, context, NULL, 0, &err), FFA_NOT_FOUND);
    ck_assert_msg(strstr(err.message, "attention_forward: head_dim=128"), "%s", err.message);
    ck_assert_int_eq(fixture_compile(&compiled, context, NULL, FFA_COMPILE_FORCE, &err),
                     FFA_NOT_FOUND);
    ck_assert_uint_eq(fixture_stats(context).compiles, 0);
    ck_assert_uint_eq(fixture_stats(context).misses, 1);
    ck_assert_str_eq(info_of(context).nvrtc_path, "");
    ffa_close(context);
}
END_TEST

START_TEST(exact_toolchain_asks_for_this_nvrtc)
{
    ffa_context_opts opts = options();
    ffa_compiled *compiled;
    ffa_context *context = fixture_open(&opts);
    ffa_error err;

    expect(context, NULL, FFA_LAYER_COMPILED);
    ffa_close(context);
    opts.flags = FFA_OPEN_EXACT_TOOLCHAIN;
    context = fixture_open(&opts);
    expect(context, NULL, FFA_LAYER_STORE);
    ck_assert_str_ne(info_of(context).nvrtc_path, "");
    ffa_close(context);
    opts.nvrtc_path = NO_NVRTC;
    context = fixture_open(&opts);
    ck_assert_int_eq(fixture_compile(&compiled, context, NULL, 0, &err), FFA_UNSUPPORTED);
    ffa_close(context);
}
END_TEST

START_TEST(unusable_store_is_one_warning)
{
    ffa_context_opts opts = options();
    ffa_context *context;

    ck_assert_int_eq(chmod(folder, 0777), 0);
    tmpdir_write_text(opts.cache_path = tmpdir_path(folder, "kernels.ffadb"), "not a store");
    context = fixture_open(&opts);
    expect(context, NULL, FFA_LAYER_COMPILED);
    expect(context, NULL, FFA_LAYER_TABLE);
    ck_assert_int_eq(watch.lines[FFA_LOG_WARNING], 1);
    ck_assert_uint_eq(fixture_stats(context).store_errors, 1);
    ck_assert_ptr_nonnull(strstr(info_of(context).store_state, "chmod go-w"));
    ffa_close(context);
    free((char *)opts.cache_path);

    opts.cache_path = NULL;
    context = fixture_open(&opts);
    expect(context, NULL, FFA_LAYER_COMPILED);
    ck_assert_str_eq(info_of(context).store_state, "memory only");
    ffa_close(context);
    ck_assert_int_eq(watch.lines[FFA_LOG_WARNING], 1);
}
END_TEST

START_TEST(readonly_store_is_not_written)
{
    ffa_context_opts opts = options();
    ffa_context *context = fixture_open(&opts);

    expect(context, NULL, FFA_LAYER_COMPILED);
    ffa_close(context);
    opts.flags = FFA_OPEN_CACHE_READONLY;
    for (int i = 0; i < 2; i++) {
        context = fixture_open(&opts);
        expect(context, NULL, FFA_LAYER_STORE);
        expect(context, "head_dim=64", FFA_LAYER_COMPILED);
        ffa_close(context);
    }
    ck_assert_int_eq(watch.lines[FFA_LOG_WARNING], 0);
}
END_TEST

START_TEST(force_goes_past_all_layers)
{
    ffa_context_opts opts = options();
    ffa_kernel_info info = FFA_KERNEL_INFO_INIT;
    ffa_context *context = fixture_open(&opts);
    ffa_compiled *compiled;
    ffa_error err = { FFA_OK, 0, "" };

    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(fixture_compile(&compiled, context, NULL, FFA_COMPILE_PTX, &err), FFA_OK);
        ck_assert_int_eq(ffa_compiled_info(compiled, &info, NULL), FFA_OK);
        ck_assert_int_eq(info.layer, FFA_LAYER_COMPILED);
        ck_assert_ptr_nonnull(strstr(ffa_compiled_ptx(compiled), ".target sm_90a"));
        ck_assert_str_ne(ffa_compiled_log(compiled), "");
        ffa_compiled_destroy(compiled);
    }
    expect(context, NULL, FFA_LAYER_COMPILED); /* nothing was kept */
    ffa_close(context);
}
END_TEST

START_TEST(what_does_not_compile_keeps_its_log)
{
    ffa_context_opts opts = options();
    ffa_kernel_info info = FFA_KERNEL_INFO_INIT;
    ffa_compiled *compiled;
    ffa_context *context;
    ffa_error err;

    opts.templates_dir = FIXTURES "broken";
    context = fixture_open(&opts);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(fixture_compile(&compiled, context, NULL, 0, &err), FFA_COMPILE);
        ck_assert_msg(strstr(err.message, "attention_forward.cu(4)"), "%s", err.message);
        ck_assert_ptr_nonnull(compiled);
        ck_assert_ptr_nonnull(strstr(ffa_compiled_log(compiled), "another_one"));
        ck_assert_int_eq(ffa_compiled_info(compiled, &info, &err), FFA_INVALID);
        ck_assert_ptr_null(ffa_compiled_cubin(compiled, NULL));
        ck_assert_str_eq(ffa_compiled_ptx(compiled), "");
        ck_assert_str_eq(ffa_compiled_record(compiled), "");
        ffa_compiled_destroy(compiled);
    }
    ck_assert_uint_eq(fixture_stats(context).compile_fails, 1); /* the second is remembered */
    ck_assert_uint_eq(fixture_stats(context).fails_known, 1);
    ck_assert_uint_eq(fixture_stats(context).compiles, 0);
    ffa_close(context);
    opts.flags = FFA_OPEN_RETRY_FAILED;
    context = fixture_open(&opts);
    ck_assert_int_eq(fixture_compile(&compiled, context, NULL, 0, &err), FFA_COMPILE);
    ffa_compiled_destroy(compiled);
    ck_assert_uint_eq(fixture_stats(context).compile_fails, 1);
    ffa_close(context);
}
END_TEST

/* A changed template is another kernel; the old one stays. */
START_TEST(edited_template_is_another_key)
{
    ffa_context_opts opts = options();
    char *file = tmpdir_path(folder, "attention_forward.cu");
    ffa_context *context;

    opts.templates_dir = folder;
    for (int round = 0; round < 2; round++)
        for (int text = 0; text < 2; text++) {
            tmpdir_write_text(file, text
                                        ? "extern \"C\" __global__ void attention_forward() {}\n"
                                        : "extern \"C\" __global__ void attention_forward() { }\n");
            context = fixture_open(&opts);
            expect(context, NULL, round ? FFA_LAYER_STORE : FFA_LAYER_COMPILED);
            ffa_close(context);
        }
    free(file);
}
END_TEST

/* ---- refusals ---- */

START_TEST(options_are_checked)
{
    ffa_error err = { FFA_OK, 0, "" };
    ffa_context *context = (ffa_context *)&err;
    ffa_context_opts opts = options();

    ck_assert_int_eq(ffa_open(NULL, FFA_DEVICE_CPU, &opts, &err), FFA_INVALID);
    ck_assert_int_eq(ffa_open(&context, -3, &opts, &err), FFA_INVALID);
    ck_assert_ptr_null(context);
    ck_assert_msg(strstr(err.message, "device is -3"), "%s", err.message);
    opts.flags = 1u << 30;
    ck_assert_int_eq(ffa_open(&context, FFA_DEVICE_CPU, &opts, &err), FFA_UNSUPPORTED);
    ck_assert_msg(strstr(err.message, "flags is 0x40000000"), "%s", err.message);
    opts = options();
    opts.struct_size = 0;
    ck_assert_int_eq(ffa_open(&context, FFA_DEVICE_CPU, &opts, &err), FFA_INVALID);
    opts = options();
    opts.cpu_threads = 5000;
    ck_assert_int_eq(ffa_open(&context, FFA_DEVICE_CPU, &opts, &err), FFA_INVALID);
    ck_assert_msg(strstr(err.message, "cpu_threads is 5000, not in [0, 1024]"), "%s", err.message);
    opts = options();
    opts.cache_path = "";
    ck_assert_int_eq(ffa_open(&context, FFA_DEVICE_CPU, &opts, &err), FFA_INVALID);
    ck_assert_msg(strstr(err.message, "cache_path is empty"), "%s", err.message);
    opts = options();
    opts.templates_dir = "/nonexistent";
    ck_assert_int_eq(ffa_open(&context, FFA_DEVICE_CPU, &opts, &err), FFA_IO);
    ck_assert_ptr_null(context);
    ck_assert_int_eq(ffa_open(&context, FFA_DEVICE_CPU, NULL, NULL), FFA_OK);
    ck_assert_int_eq(ffa_context_info_get(context, NULL, &err), FFA_INVALID);
    ck_assert_int_eq(ffa_context_info_get(NULL, NULL, &err), FFA_INVALID);
    ck_assert_int_eq(ffa_context_stats_get(context, NULL, &err), FFA_INVALID);
    ck_assert_int_eq(ffa_context_open_compiler(NULL, &err), FFA_INVALID);
    ffa_close(context);
    ffa_close(NULL);
}
END_TEST

static const struct {
    ffa_compile_request request;
    const char *settings[1];
    ffa_status want;
    const char *says;
} request_cases[] = {
    { { .template_name = NULL }, { NULL }, FFA_INVALID, "template_name is NULL; known: attention" },
    { { .template_name = "x" },
      { NULL },
      FFA_INVALID,
      "no template 'x'; known: attention_forward" },
    { { .template_name = "attention_forward", .flags = 64 }, { NULL }, FFA_UNSUPPORTED, "0x40" },
    { { .template_name = "attention_forward", .setting_count = -1 },
      { NULL },
      FFA_INVALID,
      "setting_count is -1" },
    { { .template_name = "attention_forward", .setting_count = 1 },
      { "a=b" },
      FFA_INVALID,
      "no setting 'a'" },
    { { .template_name = "attention_forward", .setting_count = 1 },
      { NULL },
      FFA_INVALID,
      "not name=value" },
    { { .template_name = "attention_forward", .setting_count = 1 },
      { "head_dim=512" },
      FFA_INVALID,
      "head_dim is 512, not in [8, 256]" },
    { { .template_name = "attention_forward", .arch = "sm_70" },
      { NULL },
      FFA_UNSUPPORTED,
      "'sm_70'; supported: sm_90a" },
    { { .template_name = "attention_forward", .arch = "" },
      { NULL },
      FFA_INVALID,
      "arch is empty" },
};

START_TEST(request_is_checked)
{
    ffa_compile_request request = request_cases[_i].request;
    ffa_context_opts opts = options();
    ffa_context *context = fixture_open(&opts);
    ffa_error err = { FFA_OK, 0, "" };
    ffa_compiled *compiled;
    char *command;
    char key[33];

    request.struct_size = (uint32_t)sizeof request;
    request.settings = request_cases[_i].settings;
    ck_assert_int_eq(ffa_compile(&compiled, context, &request, &err), request_cases[_i].want);
    ck_assert_ptr_null(compiled);
    ck_assert_msg(strstr(err.message, request_cases[_i].says), "%s", err.message);
    ck_assert_int_eq(ffa_compile_command(context, &request, "t", "o", &command, &err),
                     request_cases[_i].want);
    ck_assert_ptr_null(command);
    ck_assert_int_eq(ffa_compile_key(context, &request, key, &command, &err),
                     request_cases[_i].want);
    ck_assert_str_eq(key, "");
    ck_assert_ptr_null(command);
    ck_assert_int_eq(ffa_compile(NULL, context, &request, &err), FFA_INVALID);
    ck_assert_int_eq(ffa_compile(&compiled, NULL, &request, &err), FFA_INVALID);
    ck_assert_int_eq(ffa_compile(&compiled, context, NULL, &err), FFA_INVALID);
    ffa_close(context);
}
END_TEST

/* The key says what was asked for with the choices made, whoever made them. */
START_TEST(key_without_looking)
{
    static const char *const chosen[] = { "head_dim=64" };
    static const char *const said[] = { "tile_n=128", "dtype=bf16", "head_dim=64" };
    ffa_compile_request request = FFA_COMPILE_REQUEST_INIT;
    ffa_context_opts opts = options();
    ffa_context *context = fixture_open(&opts);
    ffa_context_stats stats = FFA_CONTEXT_STATS_INIT;
    char first[33], second[33], other[33];
    char *record;

    request.template_name = "attention_forward";
    request.settings = chosen;
    request.setting_count = 1;
    ck_assert_int_eq(ffa_compile_key(context, &request, first, &record, NULL), FFA_OK);
    ck_assert_uint_eq(strlen(first), 32);
    ck_assert_msg(strstr(record, "\nspec.head_dim=64\n"), "%s", record);
    ck_assert_msg(strstr(record, "\nspec.tile_n=128\n"), "%s", record);
    ffa_free(record);
    request.settings = said;
    request.setting_count = 3;
    ck_assert_int_eq(ffa_compile_key(context, &request, second, NULL, NULL), FFA_OK);
    ck_assert_str_eq(first, second);
    request.setting_count = 2; /* head_dim is 128 then */
    ck_assert_int_eq(ffa_compile_key(context, &request, other, NULL, NULL), FFA_OK);
    ck_assert_str_ne(first, other);
    ck_assert_int_eq(ffa_compile_key(context, &request, NULL, NULL, NULL), FFA_INVALID);
    ck_assert_int_eq(ffa_context_stats_get(context, &stats, NULL), FFA_OK);
    ck_assert_uint_eq(stats.misses + stats.compiles, 0);
    ffa_close(context);
}
END_TEST

START_TEST(command_is_quoted)
{
    ffa_compile_request request = FFA_COMPILE_REQUEST_INIT;
    ffa_context_opts opts = options();
    ffa_context *context = fixture_open(&opts);
    char *command;

    request.template_name = "attention_forward";
    ck_assert_int_eq(
        ffa_compile_command(context, &request, "my folder", "it's.cubin", &command, NULL), FFA_OK);
    ck_assert_msg(strstr(command, "nvcc -cubin -gencode=arch=compute_90a,code=sm_90a -std=c++17 "
                                  "-DFFA_JIT -DFFA_SPEC_head_dim=128 ") == command,
                  "%s", command);
    ck_assert_msg(strstr(command, " -o 'it'\\''s.cubin' 'my folder/attention_forward.cu'"), "%s",
                  command);
    ffa_free(command);
    ck_assert_int_eq(ffa_compile_command(context, &request, "", "o", &command, NULL), FFA_INVALID);
    ck_assert_int_eq(ffa_compile_command(context, &request, "t", NULL, &command, NULL),
                     FFA_INVALID);
    ffa_close(context);
}
END_TEST

/* ---- faults ---- */

static const enum fault_kind fault_kinds[] = { FAULT_ALLOC, FAULT_FILE, FAULT_SQLITE, FAULT_NVRTC };

static bool is_expected(enum fault_kind kind, ffa_status rc)
{
    switch (kind) {
    case FAULT_ALLOC:
        return rc == FFA_OK || rc == FFA_NOMEM;
    case FAULT_FILE: /* template text; NVRTC's own file */
        return rc == FFA_OK || rc == FFA_IO || rc == FFA_UNSUPPORTED;
    case FAULT_NVRTC: /* at work; while it is opened */
        return rc == FFA_OK || rc == FFA_COMPILE || rc == FFA_UNSUPPORTED;
    default:
        return rc == FFA_OK;
    }
}

START_TEST(every_failure_is_clean)
{
    enum fault_kind kind = fault_kinds[_i];
    ffa_context_opts opts = options();
    long nth;

    for (nth = 1; nth < 500; nth++) {
        ffa_compiled *compiled = NULL;
        ffa_context *context = NULL;
        ffa_error err = { FFA_OK, 0, "" };
        ffa_status rc;
        bool fired;

        (void)unlink(store);
        fault_arm(kind, nth);
        rc = ffa_open(&context, FFA_DEVICE_CPU, &opts, &err);
        ck_assert_int_eq(rc == FFA_OK, context != NULL);
        if (rc == FFA_OK)
            rc = fixture_compile(&compiled, context, NULL, 0, &err);
        fired = fault_fired();
        fault_arm(kind, 0);
        ck_assert_msg(is_expected(kind, rc), "%ld: %s: %s", nth, ffa_status_text(rc), err.message);
        ck_assert_int_eq(rc == FFA_OK || rc == FFA_COMPILE, compiled != NULL);
        ck_assert_int_eq(rc == FFA_OK, err.message[0] == '\0');
        ffa_compiled_destroy(compiled);
        if (context) { /* the next call works */
            rc = fixture_compile(&compiled, context, NULL, 0, &err);
            ck_assert_msg(rc == FFA_OK, "%ld: %s", nth, err.message);
            ffa_compiled_destroy(compiled);
        }
        ffa_close(context);
        if (!fired)
            break;
    }
    ck_assert_int_gt(nth, 3);
    ck_assert_int_lt(nth, 500);
}
END_TEST

/* ---- threads ---- */

enum { THREADS = 8 };

struct crowd {
    ffa_context *context;
    pthread_barrier_t start;
    atomic_int right;
    const void *cubins[THREADS];
    atomic_int next;
};

static void *want_one(void *argument)
{
    struct crowd *crowd = argument;
    ffa_compiled *compiled;

    (void)pthread_barrier_wait(&crowd->start);
    if (fixture_compile(&compiled, crowd->context, NULL, 0, NULL) == FFA_OK)
        atomic_fetch_add(&crowd->right, 1);
    crowd->cubins[atomic_fetch_add(&crowd->next, 1)] = ffa_compiled_cubin(compiled, NULL);
    ffa_compiled_destroy(compiled);
    return NULL;
}

START_TEST(threads_share_one_compile)
{
    ffa_context_opts opts = options();
    struct crowd crowd = { .context = fixture_open(&opts) };
    pthread_t threads[THREADS];
    ffa_context_stats stats;

    (void)pthread_barrier_init(&crowd.start, NULL, THREADS);
    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, want_one, &crowd), 0);
    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    ck_assert_int_eq(crowd.right, THREADS);
    for (int i = 1; i < THREADS; i++)
        ck_assert_ptr_eq(crowd.cubins[i], crowd.cubins[0]);
    stats = fixture_stats(crowd.context);
    ck_assert_uint_eq(stats.compiles, 1);
    ck_assert_uint_eq(stats.misses, 1);
    ck_assert_uint_eq(stats.hits_table, THREADS - 1);
    (void)pthread_barrier_destroy(&crowd.start);
    ffa_close(crowd.context);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("resolve");
    TCase *tc = tcase_create("resolve");

    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, missing_nvrtc_is_unsupported);
    tcase_add_test(tc, never_compile_is_kept);
    tcase_add_test(tc, options_are_checked);
    tcase_add_loop_test(tc, request_is_checked, 0,
                        (int)(sizeof request_cases / sizeof *request_cases));
    tcase_add_test(tc, command_is_quoted);
    tcase_add_test(tc, key_without_looking);
    if (watch_has_nvrtc()) {
        tcase_add_test(tc, table_then_store_then_compile);
        tcase_add_test(tc, exact_toolchain_asks_for_this_nvrtc);
        tcase_add_test(tc, unusable_store_is_one_warning);
        tcase_add_test(tc, readonly_store_is_not_written);
        tcase_add_test(tc, force_goes_past_all_layers);
        tcase_add_test(tc, what_does_not_compile_keeps_its_log);
        tcase_add_test(tc, edited_template_is_another_key);
        tcase_add_loop_test(tc, every_failure_is_clean, 0,
                            (int)(sizeof fault_kinds / sizeof *fault_kinds));
        tcase_add_test(tc, threads_share_one_compile);
    }
    tcase_set_timeout(tc, 60);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
