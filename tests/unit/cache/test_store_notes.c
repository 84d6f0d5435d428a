/* SPDX-License-Identifier: Apache-2.0
 *
 * What a store remembers besides kernels: compiles that failed, and misses.
 */
#include "cache/store.h"
#include "support/fixture.h"
#include "support/suite.h"
#include "support/tmpdir.h"

#include <check.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define FAILS "it was told to fail"

static char *folder, *path, *asked;
static struct watch watch;

static void setup(void)
{
    folder = tmpdir_make();
    path = tmpdir_path(folder, "kernels.ffadb");
    asked = tmpdir_path(folder, "asked");
    watch = (struct watch){ .warning = "" };
    ck_assert_int_eq(setenv("FAKE_NVRTC_LOG", asked, 1), 0);
    ck_assert_int_eq(setenv("FAKE_NVRTC_FAIL", "1", 1), 0);
    ck_assert_int_eq(unsetenv("FAKE_NVRTC_MS"), 0);
}

static void teardown(void)
{
    free(asked);
    free(path);
    tmpdir_remove(folder);
}

static ffa_context *open_context(uint32_t flags, uint32_t failure_age_s)
{
    ffa_context_opts opts = fixture_opts(path, FFA_TEST_SLOW_NVRTC, &watch);

    opts.flags = flags;
    opts.failure_age_s = failure_age_s;
    return fixture_open(&opts);
}

/* The status; a compile that failed must bring its log. */
static ffa_status compile(ffa_context *context, const char *setting, ffa_error *err)
{
    ffa_compiled *compiled;
    ffa_status rc = fixture_compile(&compiled, context, setting, 0, err);

    if (rc == FFA_COMPILE)
        ck_assert_ptr_nonnull(strstr(ffa_compiled_log(compiled), FAILS));
    ffa_compiled_destroy(compiled);
    return rc;
}

/* One context for one compile. */
static ffa_status once(uint32_t flags, uint32_t failure_age_s, const char *setting,
                       ffa_context_stats *stats)
{
    ffa_context *context = open_context(flags, failure_age_s);
    ffa_context_stats own = FFA_CONTEXT_STATS_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_status rc = compile(context, setting, &err);

    if (rc == FFA_COMPILE)
        ck_assert_ptr_nonnull(strstr(err.message, FAILS));
    ck_assert_int_eq(ffa_context_stats_get(context, &own, NULL), FFA_OK);
    ffa_close(context);
    if (stats)
        *stats = own;
    return rc;
}

static ffa_cache *open_cache(void)
{
    ffa_error err = { FFA_OK, 0, "" };
    ffa_cache *cache;

    ck_assert_msg(ffa_cache_open(&cache, path, 0, &err) == FFA_OK, "%s", err.message);
    return cache;
}

static ffa_cache_stats stats_of(void)
{
    ffa_cache_stats stats = FFA_CACHE_STATS_INIT;
    ffa_cache *cache = open_cache();

    ck_assert_int_eq(ffa_cache_stats_get(cache, &stats, NULL), FFA_OK);
    ffa_cache_close(cache);
    return stats;
}

/* ---- failures ---- */

static int see_failure(void *user, const ffa_cache_failure *failure)
{
    int *seen = user;

    ck_assert_ptr_nonnull(strstr(failure->message, FAILS));
    ck_assert_ptr_nonnull(strstr(failure->log, FAILS));
    ck_assert_ptr_nonnull(strstr(failure->record, "spec.head_dim="));
    ck_assert_str_eq(failure->template_name, "attention_forward");
    ck_assert_str_eq(failure->arch, "sm_90a");
    ck_assert_int_eq(strncmp(failure->toolchain, "nvrtc 13.0 ", 11), 0);
    ck_assert_int_gt(failure->failed_s, 0);
    ++*seen;
    return 0;
}

START_TEST(failures_are_not_tried_again)
{
    ffa_context_stats stats;
    ffa_cache *cache;
    int seen = 0;
    int64_t removed;

    ck_assert_int_eq(once(0, 0, NULL, &stats), FFA_COMPILE);
    ck_assert_uint_eq(stats.compile_fails, 1);
    ck_assert_uint_eq(stats.fails_known, 0);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(once(0, 0, NULL, &stats), FFA_COMPILE);
        ck_assert_uint_eq(stats.compile_fails, 0);
        ck_assert_uint_eq(stats.fails_known, 1);
    }
    ck_assert_int_eq(tmpdir_lines(asked), 1);
    ck_assert_int_eq(once(0, 0, "head_dim=64", NULL), FFA_COMPILE); /* another key */
    ck_assert_int_eq(tmpdir_lines(asked), 2);
    ck_assert_int_eq(once(FFA_OPEN_RETRY_FAILED, 0, NULL, &stats), FFA_COMPILE);
    ck_assert_int_eq(tmpdir_lines(asked), 3);
    ck_assert_int_eq(stats_of().failures, 2);

    cache = open_cache();
    ck_assert_int_eq(ffa_cache_list_failures(cache, see_failure, &seen, NULL), FFA_OK);
    ck_assert_int_eq(seen, 2);
    ck_assert_int_eq(ffa_cache_forget(cache, FFA_CACHE_FAILURES, &removed, NULL), FFA_OK);
    ck_assert_int_eq(removed, 2);
    ffa_cache_close(cache);
    ck_assert_int_eq(once(0, 0, NULL, &stats), FFA_COMPILE);
    ck_assert_int_eq(tmpdir_lines(asked), 4);
    ck_assert_int_eq(watch.lines[FFA_LOG_WARNING], 0);
}
END_TEST

/* Too old, of a clock that was ahead, or of another compiler: tried again. */
static const struct {
    const char *sql;
    uint32_t age_s;
    bool is_tried;
} age_cases[] = {
    { "UPDATE failure SET failed_s = failed_s - 200", 0, false },
    { "UPDATE failure SET failed_s = failed_s - 301", 0, true },
    { "UPDATE failure SET failed_s = failed_s - 301", 3600, false },
    { "UPDATE failure SET failed_s = failed_s - 20", 10, true },
    { "UPDATE failure SET failed_s = failed_s + 1000", 0, true },
    { "UPDATE failure SET toolchain = 'nvrtc 12.9 x'", 0, true },
    { "DROP TABLE failure; DROP TABLE miss; PRAGMA user_version = 1", 0, true },
};

START_TEST(failures_have_an_age)
{
    ck_assert_int_eq(once(0, 0, NULL, NULL), FFA_COMPILE);
    fixture_sql(path, age_cases[_i].sql);
    ck_assert_int_eq(once(0, age_cases[_i].age_s, NULL, NULL), FFA_COMPILE);
    ck_assert_msg(tmpdir_lines(asked) == 1 + age_cases[_i].is_tried, "%s", age_cases[_i].sql);
}
END_TEST

/* It compiles after all: the note goes. */
START_TEST(success_forgets_a_failure)
{
    ck_assert_int_eq(once(0, 0, NULL, NULL), FFA_COMPILE);
    ck_assert_int_eq(unsetenv("FAKE_NVRTC_FAIL"), 0);
    ck_assert_int_eq(once(FFA_OPEN_RETRY_FAILED, 0, NULL, NULL), FFA_OK);
    ck_assert_int_eq(stats_of().failures, 0);
    ck_assert_int_eq(stats_of().kernels, 1);
}
END_TEST

/* Eight processes and one that fails: they wait, and believe the first. */
START_TEST(processes_share_a_failure)
{
    enum { PROCESSES = 8 };
    pid_t children[PROCESSES];
    int status;

    ck_assert_int_eq(setenv("FAKE_NVRTC_MS", "200", 1), 0);
    for (int i = 0; i < PROCESSES; i++) {
        children[i] = fork();
        if (children[i] == 0)
            _exit(once(0, 0, NULL, NULL) == FFA_COMPILE ? 0 : 1);
    }
    for (int i = 0; i < PROCESSES; i++) {
        ck_assert_int_eq(waitpid(children[i], &status, 0), children[i]);
        ck_assert_int_eq(status, 0);
    }
    ck_assert_int_eq(tmpdir_lines(asked), 1);
}
END_TEST

/* ---- misses ---- */

static int see_miss(void *user, const ffa_cache_miss *miss)
{
    int *seen = user;

    ck_assert_uint_eq(strlen(miss->key), 32);
    ck_assert_str_eq(miss->template_name, "attention_forward");
    ck_assert_str_eq(miss->arch, "sm_90a");
    ck_assert_ptr_nonnull(strstr(miss->record, "spec.head_dim="));
    ck_assert_int_le(miss->first_s, miss->last_s);
    *seen += (int)miss->noted;
    return 0;
}

static int noted(void)
{
    ffa_cache *cache = open_cache();
    int seen = 0;

    ck_assert_int_eq(ffa_cache_list_misses(cache, see_miss, &seen, NULL), FFA_OK);
    ffa_cache_close(cache);
    return seen;
}

START_TEST(misses_are_noted_where_none_may_compile)
{
    ffa_context *context = open_context(FFA_OPEN_NEVER_COMPILE, 0);
    int64_t removed;
    ffa_cache *cache;

    for (int i = 0; i < 5; i++) {
        ck_assert_int_eq(compile(context, NULL, NULL), FFA_NOT_FOUND);
        ck_assert_int_eq(compile(context, "head_dim=64", NULL), FFA_NOT_FOUND);
    }
    ffa_close(context);
    ck_assert_int_eq(noted(), 2);
    ck_assert_int_eq(stats_of().misses, 2);
    fixture_sql(path, "UPDATE miss SET first_s = first_s - 4000, last_s = last_s - 4000");
    ck_assert_int_eq(once(FFA_OPEN_NEVER_COMPILE, 0, NULL, NULL), FFA_NOT_FOUND);
    ck_assert_int_eq(noted(), 3);
    fixture_sql(
        path, "UPDATE miss SET first_s = 0, last_s = last_s + 90000"); /* the clock was set back */
    ck_assert_int_eq(once(FFA_OPEN_NEVER_COMPILE, 0, NULL, NULL), FFA_NOT_FOUND);
    ck_assert_int_eq(noted(), 4);
    cache = open_cache();
    ck_assert_int_eq(ffa_cache_forget(cache, FFA_CACHE_MISSES | FFA_CACHE_FAILURES, &removed, NULL),
                     FFA_OK);
    ck_assert_int_eq(removed, 2);
    ffa_cache_close(cache);
    ck_assert_int_eq(tmpdir_lines(asked), 0);
    ck_assert_int_eq(watch.lines[FFA_LOG_WARNING], 0);
}
END_TEST

START_TEST(misses_are_noted_on_demand)
{
    ck_assert_int_eq(unsetenv("FAKE_NVRTC_FAIL"), 0);
    ck_assert_int_eq(once(0, 0, NULL, NULL), FFA_OK);
    ck_assert_int_eq(noted(), 0);
    ck_assert_int_eq(once(FFA_OPEN_LOG_MISSES, 0, NULL, NULL), FFA_OK);
    ck_assert_int_eq(noted(), 0); /* a hit */
    ck_assert_int_eq(once(FFA_OPEN_LOG_MISSES, 0, "head_dim=64", NULL), FFA_OK);
    ck_assert_int_eq(noted(), 1);
    ck_assert_int_eq(once(FFA_OPEN_LOG_MISSES | FFA_OPEN_CACHE_READONLY, 0, "tile_n=64", NULL),
                     FFA_OK);
    ck_assert_int_eq(noted(), 1);
}
END_TEST

/* However many there are, the newest are kept, and not more than so many. */
START_TEST(notes_are_bounded)
{
    ck_assert_int_eq(once(FFA_OPEN_LOG_MISSES, 0, NULL, NULL), FFA_COMPILE);
    fixture_sql(path,
                "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000) "
                "INSERT INTO miss (key, template, arch, record, noted, first_s, last_s) SELECT "
                "printf('%032x', i), 't', 'a', 'r', 1, i, i FROM n");
    fixture_sql(
        path,
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1200) "
        "INSERT INTO failure (key, toolchain, template, arch, record, message, log, failed_s) "
        "SELECT printf('%032x', i), 'c', 't', 'a', 'r', 'm', 'l', i FROM n");
    for (int i = 0; i < 8; i++) {
        char setting[32];

        text_copy(setting, "tile_n=%d", 64 + 16 * i);
        (void)once(FFA_OPEN_LOG_MISSES, 0, setting, NULL);
    }
    ck_assert_int_lt(stats_of().misses, 4600);
    ck_assert_int_lt(stats_of().failures, 1001);
    ck_assert_int_gt(stats_of().failures, 700);
    fixture_sql(
        path,
        "CREATE TABLE checked (ok CHECK (ok)); INSERT INTO checked SELECT min(last_s) > 1 FROM "
        "miss; INSERT INTO checked SELECT min(failed_s) > 1 FROM failure");
}
END_TEST

START_TEST(misuse_is_refused)
{
    ffa_error err = { FFA_OK, 0, "" };
    ffa_cache *cache;
    int seen = 0;

    ck_assert_int_eq(once(0, 0, NULL, NULL), FFA_COMPILE);
    cache = open_cache();
    ck_assert_int_eq(ffa_cache_forget(NULL, 1, NULL, &err), FFA_INVALID);
    ck_assert_int_eq(ffa_cache_forget(cache, 0, NULL, &err), FFA_INVALID);
    ck_assert_int_eq(ffa_cache_forget(cache, 4, NULL, &err), FFA_INVALID);
    ck_assert_int_eq(ffa_cache_list_misses(cache, NULL, NULL, &err), FFA_INVALID);
    ck_assert_int_eq(ffa_cache_list_failures(NULL, see_failure, &seen, &err), FFA_INVALID);
    ffa_cache_close(cache);
    ck_assert_int_eq(ffa_cache_open(&cache, path, FFA_CACHE_READONLY, NULL), FFA_OK);
    ck_assert_int_eq(ffa_cache_forget(cache, 1, NULL, &err), FFA_CACHE);
    ffa_cache_close(cache);

    /* A store of the first version, read only: it has no notes, and is none the worse. */
    fixture_sql(path, "DROP TABLE failure; DROP TABLE miss; PRAGMA user_version = 1");
    ck_assert_int_eq(ffa_cache_open(&cache, path, FFA_CACHE_READONLY, NULL), FFA_OK);
    ck_assert_int_eq(ffa_cache_list_failures(cache, see_failure, &seen, &err), FFA_OK);
    ck_assert_int_eq(seen, 0);
    ffa_cache_close(cache);
    ck_assert_int_eq(stats_of().schema, 2); /* opened to be written: brought up to date */
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("notes");
    TCase *tc = tcase_create("notes");

    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, failures_are_not_tried_again);
    tcase_add_loop_test(tc, failures_have_an_age, 0, (int)(sizeof age_cases / sizeof *age_cases));
    tcase_add_test(tc, success_forgets_a_failure);
    tcase_add_test(tc, processes_share_a_failure);
    tcase_add_test(tc, misses_are_noted_where_none_may_compile);
    tcase_add_test(tc, misses_are_noted_on_demand);
    tcase_add_test(tc, notes_are_bounded);
    tcase_add_test(tc, misuse_is_refused);
    tcase_set_timeout(tc, 60);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
