/* SPDX-License-Identifier: Apache-2.0
 *
 * Options from an environment, which is a list made up here: which place is taken and why, bundles,
 * and what is refused.
 */
#include "service/context.h"
#include "support/suite.h"
#include "support/tmpdir.h"

#include <check.h>
#include <stdio.h>
#include <unistd.h>

static char *folder;

static void setup(void)
{
    folder = tmpdir_make();
    ck_assert_int_eq(chdir(folder), 0);
    tmpdir_write_text("file", "no folder can be made below it");
}

static void teardown(void)
{
    tmpdir_remove(folder);
}

/* "name=value" one after the other; a '@' in a value is the test's folder. */
struct made_up {
    const char *variables[6];
    char value[8192]; /* the last one asked for: only until the next */
};

static const char *get(void *user, const char *name)
{
    struct made_up *made_up = user;
    const size_t bytes = strlen(name);

    memset(made_up->value, 'x', sizeof made_up->value - 1);
    for (int i = 0; i < 6 && made_up->variables[i]; i++) {
        const char *at = made_up->variables[i];
        size_t used = 0;

        if (strncmp(at, name, bytes) != 0 || at[bytes] != '=')
            continue;
        for (at += bytes + 1; *at && used < sizeof made_up->value - 256; at++)
            if (*at == '@') {
                memcpy(made_up->value + used, folder, strlen(folder));
                used += strlen(folder);
            } else {
                made_up->value[used++] = *at;
            }
        made_up->value[used] = '\0';
        return made_up->value;
    }
    return NULL;
}

static const struct {
    const char *name;
    struct made_up made_up;
    const char *path; /* below the folder; "": memory only */
    const char *chosen_by;
    const char *reason; /* one of them */
} place_cases[] = {
    { "nothing is set", { { NULL }, "" }, "", "nothing", "TMPDIR: not set" },
    { "all are empty",
      { { "FFA_CACHE_DIR=", "HOME=", "FFA_BUNDLES=", "FFA_JIT=" }, "" },
      "",
      "nothing",
      "no place is left: memory only" },
    { "as given",
      { { "FFA_CACHE_DIR=@/a", "HOME=@" }, "" },
      "/a/kernels.ffadb",
      "FFA_CACHE_DIR",
      "FFA_CACHE_DIR: chosen, @/a/kernels.ffadb" },
    { "the desktop's",
      { { "XDG_CACHE_HOME=@/x", "HOME=@" }, "" },
      "/x/ffa/kernels.ffadb",
      "XDG_CACHE_HOME",
      "FFA_CACHE_DIR: not set" },
    { "the home's",
      { { "XDG_CACHE_HOME=relative", "HOME=@" }, "" },
      "/.cache/ffa/kernels.ffadb",
      "HOME",
      "XDG_CACHE_HOME: 'relative' is not an absolute path, skipped" },
    { "no home",
      { { "HOME=@/file", "FFA_JIT=auto" }, "" },
      "",
      "nothing",
      "HOME: '@/file/.cache/ffa' does not exist and cannot be created, skipped" },
};

static bool has_reason(const ffa_environment_info *info, const char *reason)
{
    struct text wanted = { 0 };
    bool found = false;

    for (; *reason; reason++)
        text_add(&wanted, *reason == '@' ? "%s" : "%.1s", *reason == '@' ? folder : reason);
    for (int32_t i = 0; i < info->reason_count; i++)
        found = found || strcmp(info->reasons[i], wanted.at) == 0;
    text_finish(&wanted);
    return found;
}

START_TEST(the_store_has_a_place)
{
    struct made_up made_up = place_cases[_i].made_up;
    ffa_environment_info info = FFA_ENVIRONMENT_INFO_INIT;
    ffa_context_opts opts = FFA_CONTEXT_OPTS_INIT;
    ffa_environment *environment;
    ffa_error err = { FFA_OK, 0, "" };

    opts.flags = FFA_OPEN_LOG_MISSES;
    opts.nvrtc_path = "kept";
    ck_assert_msg(ffa_context_opts_from_environment(&opts, &environment, get, &made_up, &err) ==
                      FFA_OK,
                  "%s", err.message);
    ck_assert_int_eq(ffa_environment_info_get(environment, &info, &err), FFA_OK);
    ck_assert_str_eq(info.chosen_by, place_cases[_i].chosen_by);
    if (place_cases[_i].path[0]) {
        ck_assert_str_eq(opts.cache_path, info.store_path);
        ck_assert_int_eq(strncmp(info.store_path, folder, strlen(folder)), 0);
        ck_assert_str_eq(info.store_path + strlen(folder), place_cases[_i].path);
    } else {
        ck_assert_ptr_null(opts.cache_path);
        ck_assert_str_eq(info.store_path, "");
    }
    ck_assert_msg(has_reason(&info, place_cases[_i].reason), "%s: %s", place_cases[_i].name,
                  info.reasons[info.reason_count - 1]);
    ck_assert_uint_eq(opts.flags, FFA_OPEN_LOG_MISSES);
    ck_assert_str_eq(opts.nvrtc_path, "kept");
    ck_assert_int_eq(opts.bundle_count, 0);
    ck_assert_ptr_null(opts.cost_tables);
    ffa_environment_destroy(environment);
}
END_TEST

START_TEST(bundles_and_never_compile)
{
    struct made_up made_up = { { "FFA_BUNDLES=:a.ffadb::/b/c.ffadb:", "FFA_JIT=never",
                                 "FFA_CACHE_DIR=@/a", "FFA_COST_TABLES=@/tables" },
                               "" };
    ffa_context_opts opts = FFA_CONTEXT_OPTS_INIT;
    ffa_environment *environment;
    ffa_context *context;
    ffa_error err = { FFA_OK, 0, "" };

    ck_assert_int_eq(ffa_context_opts_from_environment(&opts, &environment, get, &made_up, &err),
                     FFA_OK);
    ck_assert_int_eq(opts.bundle_count, 2);
    ck_assert_str_eq(opts.bundles[0], "a.ffadb");
    ck_assert_str_eq(opts.bundles[1], "/b/c.ffadb");
    ck_assert_uint_eq(opts.flags, FFA_OPEN_NEVER_COMPILE);
    ck_assert_ptr_nonnull(strstr(opts.cost_tables, "/tables"));
    ck_assert_msg(ffa_open(&context, FFA_DEVICE_CPU, &opts, &err) == FFA_OK, "%s", err.message);
    ffa_environment_destroy(environment); /* the context has its own copies */
    ffa_close(context);
    ffa_environment_destroy(NULL);
}
END_TEST

static const struct {
    const char *variable, *says;
} refused_cases[] = {
    /* the last two with 5000 x behind them */
    { "FFA_JIT=sometimes", "FFA_JIT is 'sometimes', not never or auto" },
    { "FFA_CACHE_DIR=s3://bucket/key", "FFA_CACHE_DIR is 's3://bucket/key', a URL" },
    { "FFA_CACHE_DIR=", "FFA_CACHE_DIR is 5000 bytes long, not in [1, 4081]" },
    { "FFA_COST_TABLES=", "FFA_COST_TABLES is 5000 bytes long, not in [1, 4095]" },
};

START_TEST(what_means_nothing_is_refused)
{
    char longest[5100] = "";
    struct made_up made_up = { { refused_cases[_i].variable }, "" };
    ffa_context_opts opts = FFA_CONTEXT_OPTS_INIT;
    ffa_environment *environment = (void *)&opts;
    ffa_error err = { FFA_OK, 0, "" };

    if (_i >= 2) {
        const size_t bytes = strlen(refused_cases[_i].variable);

        memset(longest, 'x', bytes + 5000);
        memcpy(longest, refused_cases[_i].variable, bytes);
        made_up.variables[0] = longest;
    }
    ck_assert_int_eq(ffa_context_opts_from_environment(&opts, &environment, get, &made_up, &err),
                     FFA_INVALID);
    ck_assert_ptr_null(environment);
    ck_assert_ptr_null(opts.cache_path);
    ck_assert_msg(strstr(err.message, refused_cases[_i].says), "%s", err.message);
}
END_TEST

START_TEST(arguments_are_checked)
{
    struct made_up made_up = { { NULL }, "" };
    ffa_environment_info info = { .struct_size = 0 };
    ffa_context_opts opts = FFA_CONTEXT_OPTS_INIT, none = { .struct_size = 0 };
    ffa_environment *environment;

    ck_assert_int_eq(ffa_context_opts_from_environment(NULL, &environment, get, &made_up, NULL),
                     FFA_INVALID);
    ck_assert_int_eq(ffa_context_opts_from_environment(&opts, NULL, get, &made_up, NULL),
                     FFA_INVALID);
    ck_assert_int_eq(ffa_context_opts_from_environment(&opts, &environment, NULL, NULL, NULL),
                     FFA_INVALID);
    ck_assert_int_eq(ffa_context_opts_from_environment(&none, &environment, get, &made_up, NULL),
                     FFA_INVALID);
    ck_assert_int_eq(ffa_context_opts_from_environment(&opts, &environment, get, &made_up, NULL),
                     FFA_OK);
    ck_assert_int_eq(ffa_environment_info_get(environment, &info, NULL), FFA_INVALID);
    ck_assert_int_eq(ffa_environment_info_get(NULL, &info, NULL), FFA_INVALID);
    ffa_environment_destroy(environment);
}
END_TEST

START_TEST(every_failure_is_clean)
{
    struct made_up made_up = { { "FFA_BUNDLES=a:b", "HOME=@" }, "" };
    long nth;

    for (nth = 1; nth < 100; nth++) {
        ffa_context_opts opts = FFA_CONTEXT_OPTS_INIT;
        ffa_environment *environment = NULL;
        ffa_status rc;
        bool fired;

        fault_arm(FAULT_ALLOC, nth);
        rc = ffa_context_opts_from_environment(&opts, &environment, get, &made_up, NULL);
        fired = fault_fired();
        fault_arm(FAULT_ALLOC, 0);
        ck_assert_int_eq(rc, fired ? FFA_NOMEM : FFA_OK);
        ck_assert_int_eq(environment == NULL, fired);
        ffa_environment_destroy(environment);
        if (!fired)
            break;
    }
    ck_assert_int_gt(nth, 3);
    ck_assert_int_lt(nth, 100);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("environment");
    TCase *tc = tcase_create("environment");

    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, the_store_has_a_place, 0, sizeof place_cases / sizeof *place_cases);
    tcase_add_test(tc, bundles_and_never_compile);
    tcase_add_loop_test(tc, what_means_nothing_is_refused, 0,
                        sizeof refused_cases / sizeof *refused_cases);
    tcase_add_test(tc, arguments_are_checked);
    tcase_add_test(tc, every_failure_is_clean);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
