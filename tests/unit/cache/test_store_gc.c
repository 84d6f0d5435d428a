/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa_cache_gc: what goes, in which order, and that a dry run says it exactly. And the counters.
 */
#include "base/digest.h"
#include "cache/store.h"
#include "support/fixture.h"
#include "support/suite.h"
#include "support/tmpdir.h"

#include <check.h>
#include <ffa/ffa.h>
#include <stdio.h>
#include <time.h>

enum { KERNELS = 8, CUBIN_BYTES = 50000, DAY_S = 86400 };

static char *folder;
static char *path; /* of a store with kernels 0 .. 7, used that many days ago */

static void put(struct store *store, int number)
{
    struct jit_kernel kernel = { .cubin_bytes = CUBIN_BYTES };
    char text[64];

    kernel.info = (ffa_kernel_info){ .threads = 384, .cubin_bytes = CUBIN_BYTES };
    text_copy(text, "number=%d\n", number);
    digest_bytes(text, strlen(text), kernel.info.key);
    text_copy(kernel.info.toolchain, "nvrtc test");
    text_copy(kernel.info.template_name, "attention_forward");
    text_copy(kernel.info.arch, "sm_90a");
    kernel.record = strdup(text);
    kernel.cubin = malloc(CUBIN_BYTES);
    memset(kernel.cubin, number, CUBIN_BYTES);
    store_put(store, &kernel);
    jit_kernel_finish(&kernel);
}

static void setup(void)
{
    struct store_opts opts = { 0 };
    struct store *store;
    char sql[128];

    folder = tmpdir_make();
    opts.path = path = tmpdir_path(folder, "kernels.ffadb");
    ck_assert_int_eq(store_open(&store, &opts, NULL), FFA_OK);
    for (int i = 0; i < KERNELS; i++)
        put(store, i);
    ck_assert_uint_eq(store_error_count(store), 0);
    store_close(store);
    for (int i = 0; i < KERNELS; i++) {
        text_copy(sql, "UPDATE kernel SET used_s = %lld WHERE record = 'number=%d' || char(10)",
                  (long long)time(NULL) - (long long)i * DAY_S, i);
        fixture_sql(path, sql);
    }
}

static void teardown(void)
{
    free(path);
    tmpdir_remove(folder);
}

static ffa_cache *open_cache(uint32_t flags)
{
    ffa_error err = { FFA_OK, 0, "" };
    ffa_cache *cache;

    ck_assert_msg(ffa_cache_open(&cache, path, flags, &err) == FFA_OK, "%s", err.message);
    return cache;
}

/* The numbers of what is seen, as digits. */
static int note(void *user, const ffa_cache_entry *entry)
{
    char *digits = user;
    size_t count = strlen(digits);

    ck_assert_uint_lt(count, 31);
    digits[count] = entry->record[strlen("number=")];
    digits[count + 1] = '\0';
    return 0;
}

static int stop(void *user, const ffa_cache_entry *entry)
{
    ++*(int *)user;
    return entry != NULL;
}

static const struct {
    const char *name;
    const char *before; /* SQL */
    int64_t unused_s, bytes_max;
    const char *removed; /* in this order */
} gc_cases[] = {
    { "by age", NULL, 5 * DAY_S - DAY_S / 2, 0, "765" },
    { "by age, none", NULL, 100 * DAY_S, 0, "" },
    /* 16 KiB pages: 4 for a cubin of 50000 bytes, about as many for the tables */
    { "by size", NULL, 0, 465536, "765" },
    { "by size, all", NULL, 0, 1, "76543210" },
    { "by size, none", NULL, 0, 1 << 30, "" },
    { "both", NULL, 7 * DAY_S - DAY_S / 2, 465536, "765" },
    { "a clock that was set back",
      "UPDATE kernel SET used_s = used_s + 400 * 86400 WHERE record LIKE 'number=7%'", DAY_S / 2, 0,
      "654321" },
};

START_TEST(gc_takes_the_longest_unused)
{
    ffa_cache_gc_opts opts = FFA_CACHE_GC_OPTS_INIT;
    ffa_cache_stats stats = FFA_CACHE_STATS_INIT;
    ffa_cache_gc_report dry = FFA_CACHE_GC_REPORT_INIT, wet = FFA_CACHE_GC_REPORT_INIT;
    char seen[32] = "", removed[32] = "";
    ffa_error err = { FFA_OK, 0, "" };
    ffa_cache *cache;

    if (gc_cases[_i].before)
        fixture_sql(path, gc_cases[_i].before);
    cache = open_cache(0);
    opts.unused_s = gc_cases[_i].unused_s;
    opts.bytes_max = gc_cases[_i].bytes_max;
    opts.flags = FFA_CACHE_GC_DRY_RUN;
    ck_assert_msg(ffa_cache_gc(cache, &opts, &dry, note, seen, &err) == FFA_OK, "%s", err.message);
    ck_assert_msg(strcmp(seen, gc_cases[_i].removed) == 0, "%s: %s", gc_cases[_i].name, seen);
    ck_assert_int_eq(ffa_cache_stats_get(cache, &stats, NULL), FFA_OK);
    ck_assert_int_eq(stats.kernels, KERNELS);

    opts.flags = 0;
    ck_assert_msg(ffa_cache_gc(cache, &opts, &wet, note, removed, &err) == FFA_OK, "%s",
                  err.message);
    ck_assert_str_eq(removed, seen);
    ck_assert_int_eq(wet.removed, (int64_t)strlen(removed));
    ck_assert_int_eq(wet.removed + wet.kept, KERNELS);
    ck_assert_mem_eq(&dry, &wet, sizeof dry);
    ck_assert_int_eq(ffa_cache_stats_get(cache, &stats, NULL), FFA_OK);
    ck_assert_int_eq(stats.kernels, wet.kept);
    ck_assert_int_eq(stats.blobs, wet.kept);
    ck_assert_int_eq(stats.free_bytes, 0);
    if (opts.bytes_max > 1)
        ck_assert_int_le(stats.file_bytes, opts.bytes_max);
    ffa_cache_close(cache);
}
END_TEST

START_TEST(what_stops_is_not_shown_more)
{
    ffa_cache_gc_opts opts = FFA_CACHE_GC_OPTS_INIT;
    ffa_cache *cache = open_cache(0);
    int calls = 0;

    opts.bytes_max = 1;
    ck_assert_int_eq(ffa_cache_gc(cache, &opts, NULL, stop, &calls, NULL), FFA_OK);
    ck_assert_int_eq(calls, 1);
    ffa_cache_close(cache);
}
END_TEST

static const struct {
    ffa_cache_gc_opts opts;
    uint32_t open_flags;
    ffa_status status;
    const char *message;
} bad_cases[] = {
    { FFA_CACHE_GC_OPTS_INIT, 0, FFA_INVALID, "neither" },
    { { .struct_size = sizeof(ffa_cache_gc_opts), .unused_s = -1 }, 0, FFA_INVALID, "unused_s" },
    { { .struct_size = sizeof(ffa_cache_gc_opts), .bytes_max = -1 }, 0, FFA_INVALID, "bytes_max" },
    { { .struct_size = sizeof(ffa_cache_gc_opts), .bytes_max = 1, .flags = 8 },
      0,
      FFA_UNSUPPORTED,
      "flags is 0x8" },
    { { .struct_size = sizeof(ffa_cache_gc_opts), .bytes_max = 1 },
      FFA_CACHE_READONLY,
      FFA_CACHE,
      "read-only" },
};

START_TEST(misuse_is_refused)
{
    ffa_cache_gc_report report = { .struct_size = sizeof report, .removed = 7 };
    ffa_cache *cache = open_cache(bad_cases[_i].open_flags);
    ffa_error err = { FFA_OK, 0, "" };

    ck_assert_int_eq(ffa_cache_gc(cache, &bad_cases[_i].opts, &report, NULL, NULL, &err),
                     bad_cases[_i].status);
    ck_assert_msg(strstr(err.message, bad_cases[_i].message) != NULL, "%s", err.message);
    ck_assert_int_eq(report.removed, 0);
    ffa_cache_close(cache);
}
END_TEST

START_TEST(counts_add_up)
{
    const ffa_cache_counters some = { .hits_table = 5, .hits_store = 2, .saved_us = 1000000 };
    const ffa_cache_counters idle = { .hits_table = 7 };
    struct store_opts opts = { .path = path };
    ffa_cache_counters got = FFA_CACHE_COUNTERS_INIT;
    ffa_cache *cache;
    struct store *store;

    for (int round = 0; round < 3; round++) {
        opts.mode = round == 2 ? STORE_READONLY : STORE_READWRITE;
        ck_assert_int_eq(store_open(&store, &opts, NULL), FFA_OK);
        store_count(store, &some);
        store_count(store, &idle); /* looked nothing up */
        ck_assert_uint_eq(store_error_count(store), 0);
        store_close(store);
    }
    cache = open_cache(FFA_CACHE_READONLY);
    ck_assert_int_eq(ffa_cache_counters_get(cache, &got, NULL), FFA_OK);
    ck_assert_uint_eq(got.sessions, 2);
    ck_assert_uint_eq(got.hits_table, 10);
    ck_assert_uint_eq(got.hits_store, 4);
    ck_assert_uint_eq(got.saved_us, 2000000);
    ck_assert_uint_eq(got.misses, 0);
    ck_assert_int_eq(ffa_cache_counters_get(cache, NULL, NULL), FFA_INVALID);
    ck_assert_int_eq(ffa_cache_counters_get(NULL, &got, NULL), FFA_INVALID);
    ffa_cache_close(cache);
}
END_TEST

static const enum fault_kind fault_kinds[] = { FAULT_ALLOC, FAULT_SQLITE };

START_TEST(every_failure_is_clean)
{
    ffa_cache_gc_opts opts = FFA_CACHE_GC_OPTS_INIT;
    ffa_cache_stats stats = FFA_CACHE_STATS_INIT;
    ffa_cache *cache = open_cache(0);
    char seen[32];

    opts.unused_s = DAY_S / 2;
    opts.flags = FFA_CACHE_GC_DRY_RUN; /* so that every round has something to do */
    for (long nth = 1;; nth++) {
        ffa_error err = { FFA_OK, 0, "" };
        ffa_status rc;
        bool fired;

        seen[0] = '\0';
        fault_arm(fault_kinds[_i], nth);
        rc = ffa_cache_gc(cache, &opts, NULL, note, seen, &err);
        fired = fault_fired();
        fault_arm(fault_kinds[_i], 0);
        ck_assert_int_eq(ffa_cache_stats_get(cache, &stats, NULL), FFA_OK);
        ck_assert_int_eq(stats.kernels, KERNELS);
        if (!fired) {
            ck_assert_int_eq(rc, FFA_OK);
            break;
        }
        ck_assert_int_ne(rc, FFA_OK);
        ck_assert(err.message[0] != '\0');
        ck_assert_int_lt(nth, 1000);
    }
    ffa_cache_close(cache);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gc");
    TCase *tc = tcase_create("gc");

    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, gc_takes_the_longest_unused, 0,
                        (int)(sizeof gc_cases / sizeof *gc_cases));
    tcase_add_test(tc, what_stops_is_not_shown_more);
    tcase_add_test(tc, counts_add_up);
    tcase_add_loop_test(tc, misuse_is_refused, 0, (int)(sizeof bad_cases / sizeof *bad_cases));
    tcase_add_loop_test(tc, every_failure_is_clean, 0,
                        (int)(sizeof fault_kinds / sizeof *fault_kinds));
    tcase_set_timeout(tc, 60);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
