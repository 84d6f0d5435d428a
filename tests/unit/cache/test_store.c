/* SPDX-License-Identifier: Apache-2.0
 *
 * The store under everything that befalls files: the right kernel or none, one warning, no crash.
 */
#include "base/digest.h"
#include "cache/flight.h"
#include "cache/store.h"
#include "cache/store_internal.h"
#include "cache/store_place.h"
#include "support/fixture.h"
#include "support/suite.h"
#include "support/tmpdir.h"

#include <check.h>
#include <elf.h>
#include <grp.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { NOBODY = 65534 };

static char *folder; /* of the test */
static char *path;   /* folder/cache/kernels.ffadb */
static char *home;   /* folder/cache */

static void setup(void)
{
    folder = tmpdir_make();
    home = tmpdir_path(folder, "cache");
    path = tmpdir_path(home, "kernels.ffadb");
}

static void teardown(void)
{
    free(path);
    free(home);
    tmpdir_remove(folder);
}

static int count_of(size_t bytes, size_t row)
{
    return (int)(bytes / row);
}

/* ---- kernels to store ---- */

static void name_of(char key[33], int number)
{
    char text[32];

    text_copy(text, "kernel %d", number);
    digest_bytes(text, strlen(text), key);
}

static struct store *open_store(enum store_mode mode, struct watch *watch)
{
    struct store_opts opts = { .path = path, .mode = mode };
    struct store *store;

    if (watch)
        opts.log = watch_log(watch);
    ck_assert_int_eq(store_open(&store, &opts, NULL), FFA_OK);
    return store;
}

static void put(struct store *store, int number, const char *toolchain)
{
    struct jit_kernel kernel = fixture_kernel(number, toolchain, "sm_90a");

    store_put(store, &kernel);
    jit_kernel_finish(&kernel);
}

/* The status of looking kernel `number` up; what is found must be that very kernel. */
static ffa_status find(struct store *store, int number, const char *toolchain, bool exact,
                       char got_toolchain[47])
{
    struct jit_kernel want = fixture_kernel(number, "", "sm_90a"), got;
    struct jit_request request = fixture_request(&want);
    struct store_query query = { .request = &request, .toolchain = toolchain, .exact = exact };
    const bool is_there = store_has(store, &query);
    ffa_status rc = store_find(store, &query, &got, NULL);

    if (rc == FFA_OK) {
        ck_assert(is_there);
        ck_assert_uint_eq(got.cubin_bytes, want.cubin_bytes);
        ck_assert_mem_eq(got.cubin, want.cubin, want.cubin_bytes);
        ck_assert_str_eq(got.record, want.record);
        ck_assert_str_eq(got.info.key, want.info.key);
        ck_assert_int_eq(got.info.registers, want.info.registers);
        ck_assert_int_eq(got.info.threads, want.info.threads);
        if (got_toolchain)
            memcpy(got_toolchain, got.info.toolchain, 47);
    } else {
        ck_assert_ptr_null(got.cubin);
    }
    jit_kernel_finish(&got);
    jit_kernel_finish(&want);
    return rc;
}

static ffa_status find_any(struct store *store, int number)
{
    return find(store, number, "", false, NULL);
}

/* Whether there is an entry, sound or not. */
static bool has(struct store *store, int number, const char *toolchain, bool exact)
{
    struct jit_kernel want = fixture_kernel(number, "", "sm_90a");
    struct jit_request request = fixture_request(&want);
    const struct store_query query = { .request = &request,
                                       .toolchain = toolchain,
                                       .exact = exact };
    const bool is_there = store_has(store, &query);

    jit_kernel_finish(&want);
    return is_there;
}

/* A store with kernels 0 to count - 1. */
static void fill(int count)
{
    struct store *store = open_store(STORE_READWRITE, NULL);

    for (int i = 0; i < count; i++)
        put(store, i, "nvrtc 13.0 a");
    store_close(store);
}

/* The file is whole by SQLite's account and by ours. */
static void check_whole(void)
{
    ffa_error err = { FFA_OK, 0, "" };
    ffa_cache_verdict verdict = FFA_CACHE_VERDICT_INIT;
    ffa_cache *cache;

    ck_assert_msg(ffa_cache_open(&cache, path, 0, &err) == FFA_OK, "%s", err.message);
    ck_assert_msg(ffa_cache_verify(cache, &verdict, NULL, NULL, &err) == FFA_OK, "%s", err.message);
    ck_assert_int_eq(verdict.bad, 0);
    ffa_cache_close(cache);
}

/* ---- plain use ---- */

START_TEST(what_is_put_is_found)
{
    struct watch watch = { .warning = "" };
    struct store *store = open_store(STORE_READWRITE, &watch);
    char state[160];
    struct stat stat;

    ck_assert_int_eq(find_any(store, 0), FFA_NOT_FOUND);
    put(store, 0, "nvrtc 13.0 a");
    put(store, 1, "nvrtc 13.0 a");
    ck_assert_int_eq(find_any(store, 0), FFA_OK);
    ck_assert_int_eq(find_any(store, 1), FFA_OK);
    ck_assert_int_eq(find_any(store, 2), FFA_NOT_FOUND);
    ck_assert(has(store, 1, "", false) && !has(store, 2, "", false));
    store_state(store, state, sizeof state);
    ck_assert_str_eq(state, "ok");
    ck_assert_int_eq(lstat(path, &stat), 0);
    ck_assert_uint_eq(stat.st_mode & 0777, 0600);
    ck_assert_int_eq(lstat(home, &stat), 0);
    ck_assert_uint_eq(stat.st_mode & 0777, 0700);
    store_close(store);

    store = open_store(STORE_READWRITE, &watch);
    ck_assert_int_eq(find_any(store, 1), FFA_OK);
    store_close(store);
    store = open_store(STORE_READONLY, &watch);
    ck_assert_int_eq(find_any(store, 1), FFA_OK);
    put(store, 5, "nvrtc 13.0 a");
    ck_assert_int_eq(find_any(store, 5), FFA_NOT_FOUND);
    store_state(store, state, sizeof state);
    ck_assert_str_eq(state, "ok, read only");
    ck_assert_uint_eq(store_error_count(store), 0);
    store_close(store);
    ck_assert_int_eq(watch.lines[FFA_LOG_WARNING], 0);
}
END_TEST

START_TEST(memory_only_and_absent)
{
    struct watch watch = { .warning = "" };
    struct store_opts opts = { .log = watch_log(&watch) };
    struct store *store;
    char state[160];

    ck_assert_int_eq(store_open(&store, &opts, NULL), FFA_OK);
    put(store, 0, "x");
    ck_assert_int_eq(find_any(store, 0), FFA_NOT_FOUND);
    ck_assert(!has(store, 0, "x", false));
    store_state(store, state, sizeof state);
    ck_assert_str_eq(state, "memory only");
    ck_assert_str_eq(store_path(store), "");
    store_close(store);

    store = open_store(STORE_READONLY, &watch);
    ck_assert_int_eq(find_any(store, 0), FFA_NOT_FOUND);
    ck_assert_int_eq(store_check(store, NULL), FFA_NOT_FOUND);
    store_close(store);
    ck_assert_int_ne(access(path, F_OK), 0);
    ck_assert_int_eq(watch.lines[FFA_LOG_WARNING], 0);
}
END_TEST

START_TEST(toolchain_prefers_or_decides)
{
    struct store *store = open_store(STORE_READWRITE, NULL);
    char got[47];

    put(store, 0, "old");
    put(store, 0, "new");
    ck_assert_int_eq(find(store, 0, "", false, got), FFA_OK);
    ck_assert_str_eq(got, "new");
    ck_assert_int_eq(find(store, 0, "old", false, got), FFA_OK);
    ck_assert_str_eq(got, "old");
    ck_assert_int_eq(find(store, 0, "third", false, got), FFA_OK);
    ck_assert_str_eq(got, "new");
    ck_assert_int_eq(find(store, 0, "old", true, got), FFA_OK);
    ck_assert_str_eq(got, "old");
    ck_assert_int_eq(find(store, 0, "third", true, got), FFA_NOT_FOUND);
    ck_assert(has(store, 0, "third", false) && has(store, 0, "old", true));
    ck_assert(!has(store, 0, "third", true));
    store_close(store);
}
END_TEST

START_TEST(equal_cubins_are_stored_once)
{
    ffa_cache_stats stats = FFA_CACHE_STATS_INIT;
    ffa_cache *cache;

    struct store *store = open_store(STORE_READWRITE, NULL);
    put(store, 0, "a");
    put(store, 0, "b");
    put(store, 0, "b");
    store_close(store);
    ck_assert_int_eq(ffa_cache_open(&cache, path, 0, NULL), FFA_OK);
    ck_assert_int_eq(ffa_cache_stats_get(cache, &stats, NULL), FFA_OK);
    ck_assert_int_eq(stats.kernels, 2);
    ck_assert_int_eq(stats.blobs, 1);
    ck_assert_int_eq(stats.blob_bytes, FIXTURE_CUBIN_BYTES);
    ffa_cache_close(cache);
}
END_TEST

START_TEST(cap_evicts_the_longest_unused)
{
    enum { COUNT = 40, CAP = 1 << 20 };
    struct store_opts opts = { .path = path, .bytes_max = CAP };
    struct store *store;
    struct stat stat;
    int kept = 0;

    fill(10);
    fixture_sql(path, "UPDATE kernel SET used_s = used_s - 864000 * (10 - id)");
    ck_assert_int_eq(store_open(&store, &opts, NULL), FFA_OK);
    ck_assert_int_eq(find_any(store, 0), FFA_OK); /* used today, from here on */
    for (int i = 10; i < COUNT; i++) {
        put(store, i, "a");
        ck_assert_int_eq(find_any(store, i), FFA_OK);
    }
    for (int i = 0; i < COUNT; i++)
        kept += find_any(store, i) == FFA_OK;
    ck_assert_int_ge(kept, 10);
    ck_assert_int_lt(kept, 20);
    ck_assert_int_eq(find_any(store, 1), FFA_NOT_FOUND); /* the longest unused */
    ck_assert_int_eq(lstat(path, &stat), 0);
    ck_assert_int_le(stat.st_size, CAP + 2 * 65536);
    ck_assert_uint_eq(store_error_count(store), 0);
    store_close(store);
}
END_TEST

START_TEST(use_is_noted_once_a_day)
{
    struct watch watch = { .warning = "" };
    struct store *store;
    struct stat before, after;

    fill(1);
    store = open_store(STORE_READWRITE, &watch);
    ck_assert_int_eq(lstat(path, &before), 0);
    ck_assert_int_eq(find_any(store, 0), FFA_OK);
    ck_assert_int_eq(lstat(path, &after), 0);
    ck_assert_int_eq(before.st_mtim.tv_nsec, after.st_mtim.tv_nsec);
    store_close(store);
    fixture_sql(path, "UPDATE kernel SET used_s = 1000");
    store = open_store(STORE_READWRITE, &watch);
    ck_assert_int_eq(find_any(store, 0), FFA_OK);
    store_close(store);
    fixture_sql(
        path, "CREATE TABLE checked (ok CHECK (ok)); INSERT INTO checked SELECT used_s > 1000 FROM "
              "kernel");
}
END_TEST

/* The clock was ahead and is set back: what was used then is no better than the rest. */
START_TEST(uses_in_the_future_are_uses_now)
{
    enum { CAP = 1 << 20 };
    struct store_opts opts = { .path = path, .bytes_max = CAP };
    struct store *store;

    fill(10);
    fixture_sql(path, "UPDATE kernel SET used_s = used_s + 864000000");
    ck_assert_int_eq(store_open(&store, &opts, NULL), FFA_OK);
    ck_assert_int_eq(find_any(store, 9), FFA_OK); /* notes the use, once */
    for (int i = 10; i < 40; i++) {
        put(store, i, "a");
        ck_assert_int_eq(find_any(store, i), FFA_OK);
    }
    for (int i = 30; i < 40; i++)
        ck_assert_msg(find_any(store, i) == FFA_OK, "%d", i);
    ck_assert_int_eq(find_any(store, 0), FFA_NOT_FOUND);
    ck_assert_uint_eq(store_error_count(store), 0);
    store_close(store);
}
END_TEST

/* A hundred thousand entries: opening, looking up and adding stay quick, and the cap is held. */
START_TEST(a_hundred_thousand_entries)
{
    enum { CAP = 40 << 20 };
    struct store_opts opts = { .path = path, .bytes_max = CAP };
    ffa_cache_stats stats = FFA_CACHE_STATS_INIT;
    struct store *store;
    ffa_cache *cache;
    int64_t started;
    clock_t worked;

    fill(1);
    fixture_sql(path,
                "BEGIN; "
                "WITH RECURSIVE n (i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < 100000) "
                "INSERT INTO blob (id, digest, bytes, data) SELECT i, printf('%032x', i), 200, "
                "randomblob(200) FROM n; "
                "INSERT INTO kernel SELECT b.id, b.digest, k.toolchain, b.id, k.seal, k.template, "
                "k.arch, k.record, 1, 1, 0, 0, 1, 1, k.created_s, k.used_s - b.id FROM kernel k, "
                "blob b WHERE b.id > 1; COMMIT");
    started = clock_us();
    worked = clock();
    ck_assert_int_eq(store_open(&store, &opts, NULL), FFA_OK);
    ck_assert_int_eq(find_any(store, 0), FFA_OK);
    ck_assert_int_eq(find_any(store, 1), FFA_NOT_FOUND);
    ck_assert_int_lt(clock() - worked, CLOCKS_PER_SEC / 2); /* whatever else runs */
    for (int i = 1; i <= 20; i++) {
        put(store, i, "a");
        ck_assert_int_eq(find_any(store, i), FFA_OK);
    }
    ck_assert_int_lt(clock_us() - started, 20000000);
    ck_assert_int_eq(find_any(store, 0), FFA_OK);
    ck_assert_uint_eq(store_error_count(store), 0);
    store_close(store);
    ck_assert_int_eq(ffa_cache_open(&cache, path, FFA_CACHE_READONLY, NULL), FFA_OK);
    ck_assert_int_eq(ffa_cache_stats_get(cache, &stats, NULL), FFA_OK);
    ck_assert_int_gt(stats.kernels, 20);
    ck_assert_int_lt(stats.kernels, 100000);
    ck_assert_int_le(stats.file_bytes - stats.free_bytes, CAP);
    ffa_cache_close(cache);
}
END_TEST

/* A cubin that says which architecture it is for, where CUDA 12 and where CUDA 13 says it. */
static const struct {
    unsigned char abi;
    uint32_t flags;
    ffa_status want; /* on sm_90a */
} arch_cases[] = {
    { 8, 0x06005a04, FFA_OK }, { 8, 0x06005004, FFA_NOT_FOUND }, { 8, 0x06006402, FFA_NOT_FOUND },
    { 7, 0x005a055a, FFA_OK }, { 7, 0x00500550, FFA_NOT_FOUND }, { 9, 0x06005004, FFA_OK },
};

START_TEST(cubin_of_another_architecture)
{
    struct jit_kernel kernel = fixture_kernel(0, "a", "sm_90a"), got;
    struct watch watch = { .warning = "" };
    struct store *store = open_store(STORE_READWRITE, &watch);
    struct jit_request request = fixture_request(&kernel);
    struct store_query query = { .request = &request, .toolchain = "" };
    Elf64_Ehdr head = { .e_machine = EM_CUDA, .e_flags = arch_cases[_i].flags };
    bool is_bad = arch_cases[_i].want != FFA_OK;

    memcpy(head.e_ident, ELFMAG, SELFMAG);
    head.e_ident[EI_ABIVERSION] = arch_cases[_i].abi;
    memcpy(kernel.cubin, &head, sizeof head);
    store_put(store, &kernel);
    for (int i = 0; i < 2; i++) { /* a bad one is gone the second time, and told of once */
        ck_assert_int_eq(store_find(store, &query, &got, NULL), arch_cases[_i].want);
        jit_kernel_finish(&got);
    }
    ck_assert_uint_eq(store_bad_count(store), is_bad);
    ck_assert_int_eq(watch.lines[FFA_LOG_WARNING], is_bad);
    ck_assert(!strstr(watch.warning, "for another architecture") == !is_bad);
    put(store, 0, "a"); /* it is compiled again */
    ck_assert_int_eq(find_any(store, 0), FFA_OK);
    store_close(store);
    jit_kernel_finish(&kernel);
}
END_TEST

/* ---- damage ---- */

static void damage_blob_byte(void)
{
    size_t bytes;
    char *file = tmpdir_read(path, &bytes);
    struct jit_kernel kernel = fixture_kernel(0, "", "sm_90a");
    unsigned char *at = memmem(file, bytes, (char *)kernel.cubin + 40000, 200);

    ck_assert_ptr_nonnull(at);
    at[100] ^= 4;
    tmpdir_write(path, file, bytes);
    jit_kernel_finish(&kernel);
    free(file);
}

static void damage_cut_half(void)
{
    struct stat stat;

    ck_assert_int_eq(lstat(path, &stat), 0);
    ck_assert_int_eq(truncate(path, stat.st_size / 2 + 7), 0);
}

static void damage_cut_50(void)
{
    ck_assert_int_eq(truncate(path, 50), 0);
}

static void damage_cut_all(void)
{
    ck_assert_int_eq(truncate(path, 0), 0);
}

static void damage_zeros(void)
{
    char *zeros = calloc(100000, 1);

    tmpdir_write(path, zeros, 100000);
    free(zeros);
}

static void damage_text(void)
{
    char *text = malloc(100000);

    memset(text, 'x', 100000);
    tmpdir_write(path, text, 100000);
    free(text);
}

static void damage_foreign(void)
{
    ck_assert_int_eq(unlink(path), 0);
    fixture_sql(path, "CREATE TABLE precious (data); INSERT INTO precious VALUES (1)");
    ck_assert_int_eq(chmod(path, 0600), 0);
}

static void damage_newer(void)
{
    fixture_sql(path, "PRAGMA user_version = 3; ALTER TABLE kernel RENAME TO kernel2");
}

static void damage_no_table(void)
{
    fixture_sql(path, "DROP TABLE kernel");
}

/* Every page but the first. */
static void damage_pages(void)
{
    size_t bytes;
    char *file = tmpdir_read(path, &bytes);

    memset(file + 16384, 0xa5, bytes - 16384);
    tmpdir_write(path, file, bytes);
    free(file);
}

/* The root of the schema; the header before it stays. */
static void damage_schema_root(void)
{
    size_t bytes;
    char *file = tmpdir_read(path, &bytes);

    memset(file + 100, 0xff, 60);
    tmpdir_write(path, file, bytes);
    free(file);
}

static void damage_facts(void)
{
    fixture_sql(path, "UPDATE kernel SET threads = 1024");
}

static void damage_record(void)
{
    fixture_sql(path, "UPDATE kernel SET record = 'number=7'");
}

static void damage_digest(void)
{
    fixture_sql(path, "UPDATE blob SET digest = '0' || digest");
}

static void damage_blob_gone(void)
{
    fixture_sql(path, "DELETE FROM blob");
}

static void damage_length(void)
{
    fixture_sql(path, "UPDATE blob SET bytes = bytes - 1");
}

static void damage_mode_file(void)
{
    ck_assert_int_eq(chmod(path, 0666), 0);
}

static void damage_mode_folder(void)
{
    ck_assert_int_eq(chmod(home, 0770), 0);
}

static void damage_symlink_file(void)
{
    char *other = tmpdir_path(folder, "other.ffadb");

    ck_assert_int_eq(rename(path, other), 0);
    ck_assert_int_eq(symlink(other, path), 0);
    free(other);
}

static void damage_symlink_folder(void)
{
    char *other = tmpdir_path(folder, "other");

    ck_assert_int_eq(rename(home, other), 0);
    ck_assert_int_eq(symlink(other, home), 0);
    free(other);
}

static void damage_is_folder(void)
{
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(mkdir(path, 0700), 0);
}

static void damage_owner(void)
{
    ck_assert_int_eq(chown(path, NOBODY, NOBODY), 0);
}

enum after {
    HEALS, /* what is put afterwards is found again */
    KEPT,  /* somebody's data, or waits for a hand: not used, and the file does not change */
    UNUSED
};

static const struct {
    const char *name;
    void (*damage)(void);
    const char *says; /* in the warning; NULL: none is due */
    enum after after;
    int errors, bad;
} damage_cases[] = {
    { "a flipped byte in a cubin", damage_blob_byte, "length or hash of the cubin", HEALS, 0, 1 },
    { "wrong length", damage_length, "length or hash of the cubin", HEALS, 0, 1 },
    { "cubin gone", damage_blob_gone, "length or hash of the cubin", HEALS, 0, 1 },
    { "another digest", damage_digest, "length or hash of the cubin", HEALS, 0, 1 },
    { "changed facts", damage_facts, "facts do not match", HEALS, 0, 1 },
    { "changed record", damage_record, "facts do not match", HEALS, 0, 1 },
    { "cut in half", damage_cut_half, "malformed", HEALS, 1, 0 },
    { "cut inside the header", damage_cut_50, "not a kernel store", KEPT, 1, 0 },
    { "cut to nothing", damage_cut_all, NULL, HEALS, 0, 0 },
    { "zeros", damage_zeros, "not a database", HEALS, 1, 0 },
    { "a text file", damage_text, "not a kernel store", KEPT, 1, 0 },
    { "another program's database", damage_foreign, "another program's", KEPT, 1, 0 },
    { "a newer schema", damage_newer, "schema 3, this library reads up to 2", KEPT, 1, 0 },
    { "a table is missing", damage_no_table, "no such table", KEPT, 1, 0 },
    { "damaged pages", damage_pages, "malformed", HEALS, 1, 0 },
    { "a damaged schema", damage_schema_root, "malformed", HEALS, 1, 0 },
    { "others can write the file", damage_mode_file, "chmod go-w", KEPT, 1, 0 },
    { "others can write the folder", damage_mode_folder, "chmod go-w", KEPT, 1, 0 },
    { "the file is a link", damage_symlink_file, "its file is a symbolic link", UNUSED, 1, 0 },
    { "the folder is a link", damage_symlink_folder, "its folder is a symbolic", UNUSED, 1, 0 },
    { "a folder", damage_is_folder, "no regular file", UNUSED, 1, 0 },
    { "another owner", damage_owner, "belongs to user 65534", KEPT, 1, 0 },
};

START_TEST(damage_costs_a_compile)
{
    struct watch watch = { .warning = "" };
    size_t before_bytes = 0, after_bytes = 0;
    char *before = NULL, *after;
    struct store *store;
    bool heals = damage_cases[_i].after == HEALS;
    char state[160];

    if (damage_cases[_i].damage == damage_owner && geteuid() != 0)
        return; /* only root can give files away */
    fill(3);
    damage_cases[_i].damage();
    if (damage_cases[_i].after == KEPT)
        before = tmpdir_read(path, &before_bytes);

    store = open_store(STORE_READWRITE, &watch);
    ck_assert_msg(find_any(store, 0) == FFA_NOT_FOUND, "%s", damage_cases[_i].name);
    put(store, 0, "b");
    ck_assert_msg(find_any(store, 0) == (heals ? FFA_OK : FFA_NOT_FOUND), "%s",
                  damage_cases[_i].name);
    store_state(store, state, sizeof state);
    ck_assert_msg((strcmp(state, "ok") == 0) == heals, "%s: %s", damage_cases[_i].name, state);
    ck_assert_msg(store_error_count(store) == (uint64_t)damage_cases[_i].errors, "%s: %d errors",
                  damage_cases[_i].name, (int)store_error_count(store));
    ck_assert_msg(store_bad_count(store) == (uint64_t)damage_cases[_i].bad, "%s: %d bad",
                  damage_cases[_i].name, (int)store_bad_count(store));
    ck_assert_msg(watch.lines[FFA_LOG_WARNING] == (damage_cases[_i].says ? 1 : 0), "%s: %s",
                  damage_cases[_i].name, watch.warning);
    if (damage_cases[_i].says)
        ck_assert_msg(strstr(watch.warning, damage_cases[_i].says), "%s: %s", damage_cases[_i].name,
                      watch.warning);
    store_close(store);

    if (heals) {
        store = open_store(STORE_READWRITE, &watch);
        ck_assert_int_eq(find_any(store, 0), FFA_OK);
        ck_assert_msg(watch.lines[FFA_LOG_WARNING] == (damage_cases[_i].says ? 1 : 0), "%s: %s",
                      damage_cases[_i].name, watch.warning);
        store_close(store);
    }
    if (before) {
        after = tmpdir_read(path, &after_bytes);
        ck_assert_uint_eq(before_bytes, after_bytes);
        ck_assert_mem_eq(before, after, after_bytes);
        free(after);
        free(before);
    }
}
END_TEST

/* Any page overwritten, each in its turn: the right kernels, or none, whichever page it is. */
START_TEST(any_page_may_be_lost)
{
    size_t bytes;
    char *whole, *broken;

    fill(3);
    whole = tmpdir_read(path, &bytes);
    broken = malloc(bytes);
    for (size_t at = 0; at + 16384 <= bytes; at += 16384) {
        struct watch watch = { .warning = "" };
        struct store *store;

        memcpy(broken, whole, bytes);
        for (size_t i = at; i < at + 16384; i++)
            broken[i] = (char)(i * 2654435761u >> 13);
        tmpdir_write(path, broken, bytes);
        ck_assert_int_eq(chmod(path, 0600), 0);
        store = open_store(STORE_READWRITE, &watch);
        for (int i = 0; i < 3; i++) {
            (void)find_any(store, i);
            put(store, i, "b");
            ck_assert(find_any(store, i) == FFA_OK || at == 0);
        }
        ck_assert_int_le(watch.lines[FFA_LOG_WARNING], 2);
        store_close(store);
    }
    free(broken);
    free(whole);
}
END_TEST

/* ---- things that happen while it is open ---- */

START_TEST(deleted_under_us)
{
    struct watch watch = { .warning = "" };
    struct store *store = open_store(STORE_READWRITE, &watch);

    put(store, 0, "a");
    ck_assert_int_eq(unlink(path), 0);
    put(store, 1, "a"); /* into a new file */
    ck_assert_int_eq(find_any(store, 1), FFA_OK);
    ck_assert_int_eq(watch.lines[FFA_LOG_WARNING], 1);
    ck_assert_uint_eq(store_error_count(store), 1);
    store_close(store);
    store = open_store(STORE_READWRITE, &watch);
    ck_assert_int_eq(find_any(store, 1), FFA_OK);
    store_close(store);
}
END_TEST

START_TEST(folder_deleted_under_us)
{
    struct watch watch = { .warning = "" };
    struct store *store = open_store(STORE_READWRITE, &watch);
    char *journal = tmpdir_path(home, "kernels.ffadb-journal");

    put(store, 0, "a");
    ck_assert_int_eq(unlink(path), 0);
    (void)unlink(journal);
    ck_assert_int_eq(rmdir(home), 0);
    put(store, 1, "a");
    ck_assert_int_eq(find_any(store, 1), FFA_OK);
    ck_assert_int_eq(watch.lines[FFA_LOG_WARNING], 1);
    store_close(store);
    free(journal);
}
END_TEST

START_TEST(replaced_under_us)
{
    struct watch watch = { .warning = "" };
    struct store *first, *second;
    char *aside = tmpdir_path(home, "aside");

    first = open_store(STORE_READWRITE, &watch);
    put(first, 0, "a");
    ck_assert_int_eq(rename(path, aside), 0);
    second = open_store(STORE_READWRITE, &watch);
    put(second, 1, "a");
    put(first, 2, "a"); /* finds that its file moved, goes on in the new one */
    ck_assert_int_eq(find_any(second, 2), FFA_OK);
    ck_assert_int_eq(find_any(first, 1), FFA_OK);
    ck_assert_int_eq(watch.lines[FFA_LOG_WARNING], 1);
    store_close(first);
    store_close(second);
    free(aside);
}
END_TEST

/* Another process holds the file for good: a look-up is a miss, an addition is given up. */
START_TEST(locked_by_another)
{
    struct watch watch = { .warning = "" };
    struct store *store;
    sqlite3 *db;

    fill(1);
    store = open_store(STORE_READWRITE, &watch);
    ck_assert_int_eq(sqlite3_open(path, &db), SQLITE_OK);
    ck_assert_int_eq(sqlite3_exec(db, "BEGIN EXCLUSIVE", NULL, NULL, NULL), SQLITE_OK);
    ck_assert_int_eq(find_any(store, 0), FFA_NOT_FOUND);
    ck_assert_uint_eq(store_error_count(store), 1);
    ck_assert_int_eq(sqlite3_exec(db, "COMMIT", NULL, NULL, NULL), SQLITE_OK);
    ck_assert_int_eq(sqlite3_close(db), SQLITE_OK);
    ck_assert_int_eq(find_any(store, 0), FFA_OK);
    ck_assert_int_eq(watch.lines[FFA_LOG_WARNING], 1);
    store_close(store);
}
END_TEST

/* The same while it is opened: what was locked then is tried again. */
START_TEST(locked_when_opened)
{
    struct watch watch = { .warning = "" };
    struct store *store;
    sqlite3 *db;

    fill(1);
    ck_assert_int_eq(sqlite3_open(path, &db), SQLITE_OK);
    ck_assert_int_eq(sqlite3_exec(db, "BEGIN EXCLUSIVE", NULL, NULL, NULL), SQLITE_OK);
    store = open_store(STORE_READWRITE, &watch);
    ck_assert_int_eq(find_any(store, 0), FFA_NOT_FOUND);
    put(store, 1, "a");
    ck_assert_int_eq(sqlite3_close(db), SQLITE_OK);
    ck_assert_int_eq(find_any(store, 0), FFA_OK);
    ck_assert_int_eq(find_any(store, 1), FFA_NOT_FOUND);
    ck_assert_int_eq(watch.lines[FFA_LOG_WARNING], 1);
    store_close(store);
}
END_TEST

/* Counts the troubles of a store, but for those of a writer that the others keep waiting. */
static void note_trouble(void *user, ffa_log_level level, const char *module, const char *line)
{
    (void)level;
    (void)module;
    *(int *)user += strstr(line, "reason=") && !strstr(line, "database is locked");
}

/* A writer gives up where it has waited for so long as the store says, and no sooner; here it tries
 * again. */
static bool put_at_last(struct store *store, int number)
{
    for (int i = 0; i < 100; i++) {
        const uint64_t errors = store_error_count(store);
        const int64_t started = clock_us();

        put(store, number, "a");
        if (store_check(store, NULL) == FFA_OK && store_error_count(store) == errors)
            return true;
        if (clock_us() - started < STORE_BUSY_AGAIN_MS * 900)
            return false;
    }
    return false;
}

/* Processes that open, make and fill one store at once. */
START_TEST(many_writers)
{
    enum { WRITERS = 4, EACH = 6 };
    struct watch watch = { .warning = "" };
    struct store *store;
    pid_t children[WRITERS];
    int status;

    for (int w = 0; w < WRITERS; w++) {
        children[w] = fork();
        if (children[w] == 0) {
            int troubles = 0;
            const struct store_opts opts = { .path = path,
                                             .mode = STORE_READWRITE,
                                             .log = { .fn = note_trouble, .user = &troubles } };
            bool is_put = true;

            if (store_open(&store, &opts, NULL) != FFA_OK)
                _exit(1);
            for (int i = 0; i < EACH; i++) {
                is_put = put_at_last(store, i * WRITERS + w) && is_put;
                is_put = put_at_last(store, 1000 + i) && is_put; /* all write these */
            }
            store_close(store);
            _exit(troubles || !is_put ? 1 : 0);
        }
    }
    for (int w = 0; w < WRITERS; w++) {
        ck_assert_int_eq(waitpid(children[w], &status, 0), children[w]);
        ck_assert_int_eq(status, 0);
    }
    store = open_store(STORE_READWRITE, &watch);
    for (int i = 0; i < WRITERS * EACH; i++)
        ck_assert_int_eq(find_any(store, i), FFA_OK);
    for (int i = 0; i < EACH; i++)
        ck_assert_int_eq(find_any(store, 1000 + i), FFA_OK);
    ck_assert_int_eq(watch.lines[FFA_LOG_WARNING], 0);
    store_close(store);
}
END_TEST

/* Sixty writers at once, killed at any moment, thirty times: the store is whole after each round.
 */
START_TEST(killed_writers)
{
    enum { WRITERS = 60, ROUNDS = 30 };
    struct watch watch = { .warning = "" };
    struct store *store;
    int status;

    fill(1);
    for (int round = 0; round < ROUNDS; round++) {
        pid_t children[WRITERS];

        for (int c = 0; c < WRITERS; c++) {
            children[c] = fork();
            if (children[c] == 0) {
                store = open_store(STORE_READWRITE, NULL);
                for (int i = 1;; i++)
                    put(store, i % 50, "a");
            }
        }
        (void)usleep((useconds_t)(round * 1000));
        for (int c = 0; c < WRITERS; c++)
            ck_assert_int_eq(kill(children[c], SIGKILL), 0);
        for (int c = 0; c < WRITERS; c++)
            ck_assert_int_eq(waitpid(children[c], &status, 0), children[c]);
        store = open_store(STORE_READWRITE, &watch);
        ck_assert_int_eq(find_any(store, 0), FFA_OK);
        put(store, 100 + round, "a");
        ck_assert_int_eq(find_any(store, 100 + round), FFA_OK);
        store_close(store);
        check_whole();
    }
    ck_assert_msg(watch.lines[FFA_LOG_WARNING] == 0, "%s", watch.warning);
}
END_TEST

/* No room: what does not fit is not stored, what was there is found, and there is one warning. */
START_TEST(disk_is_full)
{
    struct watch watch = { .warning = "" };
    pid_t child;
    int status;

    fill(3);
    child = fork();
    if (child == 0) {
        struct rlimit limit = { .rlim_cur = 300000, .rlim_max = 300000 };
        struct store *store;
        int found = 0;

        if (signal(SIGXFSZ, SIG_IGN) == SIG_ERR || setrlimit(RLIMIT_FSIZE, &limit) != 0)
            _exit(2);
        store = open_store(STORE_READWRITE, &watch);
        for (int i = 3; i < 20; i++)
            put(store, i, "a");
        for (int i = 0; i < 20; i++)
            found += find_any(store, i) == FFA_OK;
        if (found < 3 || found > 6)
            _exit(3);
        if (watch.lines[FFA_LOG_WARNING] != 1 || store_error_count(store) < 1)
            _exit(4);
        store_close(store);
        _exit(0);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %d", WEXITSTATUS(status));
    check_whole();
}
END_TEST

/* A store of the first version: used as it is by readers, brought up to date by writers. */
START_TEST(older_schema_is_used)
{
    struct watch watch = { .warning = "" };
    struct store *store;

    fill(2);
    fixture_sql(path, "DROP TABLE failure; DROP TABLE miss; PRAGMA user_version = 1");
    store = open_store(STORE_READONLY, &watch);
    ck_assert_int_eq(find_any(store, 1), FFA_OK);
    store_close(store);
    fixture_sql(path, "CREATE TABLE checked (ok CHECK (ok)); "
                      "INSERT INTO checked SELECT user_version = 1 FROM pragma_user_version; "
                      "DROP TABLE checked");
    for (int i = 0; i < 2; i++) {
        store = open_store(STORE_READWRITE, &watch);
        ck_assert_int_eq(find_any(store, 1), FFA_OK);
        put(store, 2 + i, "a");
        ck_assert_int_eq(find_any(store, 2 + i), FFA_OK);
        store_close(store);
    }
    fixture_sql(
        path, "CREATE TABLE checked (ok CHECK (ok)); "
              "INSERT INTO checked SELECT user_version = 2 FROM pragma_user_version; "
              "INSERT INTO checked SELECT count(*) = 0 FROM failure; "
              "INSERT INTO checked SELECT application_id = 0x6666616b FROM pragma_application_id; "
              "DROP TABLE checked");
    ck_assert_int_eq(watch.lines[FFA_LOG_WARNING], 0);
    check_whole();
}
END_TEST

/* Not root: a folder without write permission. */
static int use_as_nobody(void)
{
    struct watch watch = { .warning = "" };
    struct store *store;

    if (geteuid() == 0 && (setegid(NOBODY) != 0 || seteuid(NOBODY) != 0))
        return 2;
    store = open_store(STORE_READWRITE, &watch);
    if (find_any(store, 0) != FFA_OK)
        return 3;
    put(store, 1, "a");
    if (find_any(store, 1) != FFA_NOT_FOUND || find_any(store, 0) != FFA_OK)
        return 4;
    put(store, 2, "a");
    if (store_error_count(store) < 1 || watch.lines[FFA_LOG_WARNING] != 1)
        return 5;
    store_close(store);
    return 0;
}

START_TEST(folder_cannot_be_written)
{
    char *journal = tmpdir_path(home, "kernels.ffadb-journal");
    pid_t child;
    int status;

    fill(1);
    (void)unlink(journal);
    free(journal);
    if (geteuid() == 0) {
        ck_assert_int_eq(chown(home, NOBODY, NOBODY), 0);
        ck_assert_int_eq(chown(path, NOBODY, NOBODY), 0);
        ck_assert_int_eq(chmod(folder, 0755), 0);
    }
    ck_assert_int_eq(chmod(home, 0500), 0);
    child = fork();
    if (child == 0)
        _exit(use_as_nobody());
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(chmod(home, 0700), 0);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %d", WEXITSTATUS(status));
}
END_TEST

/* ---- a store of a group ---- */

enum { GROUP = 54321, ALICE = 54001, BOB = 54002, EVE = 54003 };

/* What a user does with the store; 0: as is right. */
typedef int (*deed)(void);

static struct store *open_shared(bool of_group, struct watch *watch)
{
    struct store_opts opts = { .path = path, .of_group = of_group, .log = watch_log(watch) };
    struct store *store = NULL;

    (void)store_open(&store, &opts, NULL);
    return store;
}

/* Whether a lock can be taken, whoever made its file. */
static bool can_lock(void)
{
    struct flight_opts opts = { .store_path = path, .of_group = true };
    struct flight_lock lock = { .file = -1 };
    struct flight *flight;
    bool ok = flight_open(&flight, &opts, NULL) == FFA_OK;

    ok = ok && flight_take(flight, "0123", NULL, &lock) == FLIGHT_HELD;
    flight_release(&lock);
    flight_close(flight);
    return ok;
}

static int make_it(void)
{
    struct watch watch = { .warning = "" };
    struct store *store = open_shared(true, &watch);

    put(store, 0, "a");
    if (find_any(store, 0) != FFA_OK || watch.lines[FFA_LOG_WARNING] || !can_lock())
        return 1;
    store_close(store);
    return 0;
}

static int use_it(void)
{
    struct watch watch = { .warning = "" };
    struct store *store = open_shared(true, &watch);

    if (find_any(store, 0) != FFA_OK)
        return 1;
    put(store, 1, "a");
    if (find_any(store, 1) != FFA_OK || watch.lines[FFA_LOG_WARNING] || !can_lock())
        return 2;
    store_close(store);
    return 0;
}

static int mistrust_it(void)
{
    for (int i = 0; i < 2; i++) { /* not asked to trust the group; and asked */
        struct watch watch = { .warning = "" };
        struct store *store = open_shared(i, &watch);
        bool is_member = getegid() == GROUP;

        if (i == 1 && is_member)
            continue;
        if (find_any(store, 0) != FFA_NOT_FOUND || watch.lines[FFA_LOG_WARNING] != 1 ||
            !strstr(watch.warning, "is not trusted"))
            return 1 + i;
        store_close(store);
    }
    return 0;
}

static void as_user(uid_t user, gid_t group, deed what)
{
    pid_t child = fork();
    int status;

    if (child == 0) {
        (void)umask(077); /* the store's modes do not hang on it */
        if (setgroups(1, &group) != 0 || setgid(group) != 0 || setuid(user) != 0)
            _exit(100);
        _exit(what());
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "user %d: %d", (int)user,
                  WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
}

/* Needs root, to be others. */
START_TEST(group_shares_a_store)
{
    char *locks = tmpdir_path(home, "kernels.ffadb.locks");
    struct stat stat;

    if (geteuid() != 0) {
        printf("skipped: a store of a group, as this user can be no other\n");
        free(locks);
        return;
    }
    ck_assert_int_eq(chmod(folder, 0755), 0);
    ck_assert_int_eq(mkdir(home, 0700), 0);
    ck_assert_int_eq(chown(home, 0, GROUP), 0);
    ck_assert_int_eq(chmod(home, 02775), 0);
    as_user(ALICE, GROUP, make_it);
    ck_assert_int_eq(lstat(path, &stat), 0);
    ck_assert_uint_eq(stat.st_mode & 07777, 0660);
    ck_assert_uint_eq(stat.st_gid, GROUP);
    ck_assert_int_eq(lstat(locks, &stat), 0);
    ck_assert_uint_eq(stat.st_mode & 07777, 02770);
    as_user(BOB, GROUP, use_it);
    as_user(ALICE, GROUP, use_it);
    as_user(BOB, GROUP, mistrust_it);
    as_user(EVE, EVE, mistrust_it);
    ck_assert_int_eq(chmod(path, 0666), 0); /* to all is too much */
    as_user(EVE, EVE, mistrust_it);
    free(locks);
}
END_TEST

/* A folder that is made is the group's, as far as its parent lets it. */
START_TEST(folder_is_made_for_the_group)
{
    struct watch watch = { .warning = "" };
    struct store *store = open_shared(true, &watch);
    struct stat stat;

    ck_assert_int_eq(lstat(home, &stat), 0);
    ck_assert_uint_eq(stat.st_mode & 07777, 02770);
    ck_assert_int_eq(lstat(path, &stat), 0);
    ck_assert_uint_eq(stat.st_mode & 07777, 0660);
    put(store, 0, "a");
    store_close(store);
    store = open_shared(false, &watch);
    ck_assert_int_eq(find_any(store, 0), FFA_NOT_FOUND);
    ck_assert_msg(strstr(watch.warning, "chmod go-w"), "%s", watch.warning);
    store_close(store);
}
END_TEST

/* ---- network file systems ---- */

static const struct {
    uint32_t type;
    const char *name; /* NULL: local */
} place_cases[] = {
    { 0x6969, "nfs" },
    { 0x0bd00bd0, "lustre" },
    { 0xff534d42, "cifs" },
    { 0x47504653, "gpfs" },
    { 0x01021994, NULL } /* tmpfs */,
    { 0xef53, NULL } /* ext4 */,
    { 0x58465342, NULL } /* xfs */,
    { 0x794c7630, NULL } /* overlayfs */,
};

START_TEST(network_types_are_known)
{
    const char *name = place_network_name(place_cases[_i].type);

    if (place_cases[_i].name) {
        ck_assert_ptr_nonnull(name);
        ck_assert_str_eq(name, place_cases[_i].name);
    } else {
        ck_assert_ptr_null(name);
    }
}
END_TEST

/* What is there is read; nothing is made; with the option all is as ever. */
START_TEST(network_store_is_read)
{
    struct watch watch = { .warning = "" };
    struct store_opts opts = { .path = path, .log = watch_log(&watch) };
    struct store *store;
    char state[160];

    fault_arm(FAULT_NETWORK, 1);
    store = open_store(STORE_READWRITE, &watch);
    ck_assert(fault_fired());
    put(store, 0, "a");
    ck_assert_int_eq(find_any(store, 0), FFA_NOT_FOUND);
    ck_assert_int_eq(store_check(store, NULL), FFA_CACHE);
    ck_assert_int_ne(access(path, F_OK), 0);
    ck_assert_int_eq(watch.lines[FFA_LOG_WARNING], 1);
    ck_assert_msg(strstr(watch.warning, "network file system (nfs)"), "%s", watch.warning);
    store_close(store);

    fill(2);
    fault_arm(FAULT_NETWORK, 1);
    store = open_store(STORE_READWRITE, &watch);
    ck_assert_int_eq(find_any(store, 0), FFA_OK);
    put(store, 7, "a");
    ck_assert_int_eq(find_any(store, 7), FFA_NOT_FOUND);
    store_state(store, state, sizeof state);
    ck_assert_str_eq(state, "ok, read only: on a network file system (nfs)");
    ck_assert_uint_eq(store_error_count(store), 1);
    ck_assert_int_eq(watch.lines[FFA_LOG_WARNING], 2);
    store_close(store);

    fault_arm(FAULT_NETWORK, 1); /* who only reads is told, and not warned */
    store = open_store(STORE_READONLY, &watch);
    ck_assert_int_eq(find_any(store, 0), FFA_OK);
    store_state(store, state, sizeof state);
    ck_assert_str_eq(state, "ok, read only: on a network file system (nfs)");
    ck_assert_int_eq(watch.lines[FFA_LOG_WARNING], 2);
    store_close(store);

    fault_arm(FAULT_NETWORK, 1);
    opts.on_network = true;
    ck_assert_int_eq(store_open(&store, &opts, NULL), FFA_OK);
    ck_assert(!fault_fired());
    fault_arm(FAULT_NETWORK, 0);
    put(store, 7, "a");
    ck_assert_int_eq(find_any(store, 7), FFA_OK);
    ck_assert_int_eq(watch.lines[FFA_LOG_WARNING], 2);
    store_close(store);
}
END_TEST

/* ---- faults ---- */

static const enum fault_kind fault_kinds[] = { FAULT_ALLOC, FAULT_SQLITE, FAULT_FILE };

START_TEST(every_failure_is_clean)
{
    struct jit_kernel kernel = fixture_kernel(0, "a", "sm_90a");
    struct jit_request request = fixture_request(&kernel);
    struct store_query query = { .request = &request, .toolchain = "" };
    long nth;

    for (nth = 1; nth < 500; nth++) {
        struct store_opts opts = { .path = path };
        struct jit_kernel got = { 0 };
        struct store *store = NULL;
        ffa_error err = { FFA_OK, 0, "" };
        ffa_status rc;
        bool fired;

        (void)unlink(path);
        fault_arm(fault_kinds[_i], nth);
        rc = store_open(&store, &opts, &err);
        if (rc == FFA_OK) {
            store_put(store, &kernel);
            rc = store_find(store, &query, &got, &err);
        }
        fired = fault_fired();
        fault_arm(fault_kinds[_i], 0);
        ck_assert_msg(rc == FFA_OK || rc == FFA_NOT_FOUND ||
                          (rc == FFA_NOMEM && fault_kinds[_i] == FAULT_ALLOC),
                      "%ld: %s", nth, err.message);
        jit_kernel_finish(&got);
        store_close(store);

        store = open_store(STORE_READWRITE, NULL); /* the next one works */
        store_put(store, &kernel);
        ck_assert_int_eq(find_any(store, 0), FFA_OK);
        ck_assert_uint_eq(store_error_count(store), 0);
        store_close(store);
        if (!fired)
            break;
    }
    ck_assert_int_gt(nth, 3);
    ck_assert_int_lt(nth, 500);
    jit_kernel_finish(&kernel);
}
END_TEST

/* ---- looking after it ---- */

struct seen {
    int count, bad;
    char keys[64][33];
};

static int see(void *user, const ffa_cache_entry *entry)
{
    struct seen *seen = user;

    text_copy(seen->keys[seen->count], "%s", entry->key);
    ck_assert_str_eq(entry->template_name, "attention_forward");
    ck_assert_int_eq(entry->compile_us, 12345);
    ck_assert_int_eq(entry->cubin_bytes, FIXTURE_CUBIN_BYTES);
    ck_assert_int_gt(entry->created_s, 0);
    seen->bad += entry->is_bad;
    return ++seen->count == 64;
}

START_TEST(entries_are_listed_checked_removed)
{
    struct jit_kernel kernel = fixture_kernel(0, "", "sm_90a");
    ffa_cache_stats stats = FFA_CACHE_STATS_INIT;
    struct seen seen = { .count = 0 };
    ffa_cache_verdict verdict = FFA_CACHE_VERDICT_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_cache *cache;
    int64_t removed;
    void *cubin;
    size_t bytes;
    char key[33];

    fill(5);
    damage_blob_byte();
    ck_assert_msg(ffa_cache_open(&cache, path, 0, &err) == FFA_OK, "%s", err.message);
    ck_assert_int_eq(ffa_cache_list(cache, NULL, see, &seen, NULL), FFA_OK);
    ck_assert_int_eq(seen.count, 5);
    name_of(key, 4);
    ck_assert_str_eq(seen.keys[0], key); /* the newest first */

    seen.count = 0;
    ck_assert_int_eq(ffa_cache_list(cache, key, see, &seen, NULL), FFA_OK);
    ck_assert_int_eq(seen.count, 1);
    ck_assert_int_eq(ffa_cache_list(cache, "ffffffffffffffff", see, &seen, NULL), FFA_NOT_FOUND);
    ck_assert_int_eq(ffa_cache_list(cache, "xyz", see, &seen, NULL), FFA_INVALID);
    ck_assert_int_eq(ffa_cache_list(cache, "'; DROP TABLE kernel", see, &seen, NULL), FFA_INVALID);

    seen.count = 0;
    ck_assert_int_eq(ffa_cache_verify(cache, &verdict, see, &seen, NULL), FFA_OK);
    ck_assert_int_eq(verdict.checked, 5);
    ck_assert_int_eq(verdict.bad, 1);
    ck_assert_int_eq(seen.bad, 1);
    ck_assert_str_eq(seen.keys[0], kernel.info.key);

    ck_assert_int_eq(ffa_cache_cubin(cache, kernel.info.key, NULL, &cubin, &bytes, &err),
                     FFA_CACHE);
    ck_assert_int_eq(ffa_cache_cubin(cache, key, "nvrtc 13.0 a", &cubin, &bytes, &err), FFA_OK);
    ck_assert_uint_eq(bytes, FIXTURE_CUBIN_BYTES);
    ffa_free(cubin);
    ck_assert_int_eq(ffa_cache_cubin(cache, key, "another", &cubin, &bytes, &err), FFA_NOT_FOUND);

    ck_assert_int_eq(ffa_cache_remove(cache, key, &removed, NULL), FFA_OK);
    ck_assert_int_eq(removed, 1);
    ck_assert_int_eq(ffa_cache_remove(cache, key, &removed, NULL), FFA_NOT_FOUND);
    ck_assert_int_eq(ffa_cache_remove(cache, "", &removed, NULL), FFA_INVALID);
    ck_assert_int_eq(ffa_cache_stats_get(cache, &stats, NULL), FFA_OK);
    ck_assert_int_eq(stats.kernels, 4);
    ck_assert_int_eq(stats.blobs, 4);
    ck_assert_int_eq(stats.schema, 2);
    ck_assert_int_eq(ffa_cache_clear(cache, &removed, NULL), FFA_OK);
    ck_assert_int_eq(removed, 4);
    ck_assert_int_eq(ffa_cache_stats_get(cache, &stats, NULL), FFA_OK);
    ck_assert_int_eq(stats.kernels + stats.blobs + stats.free_bytes, 0);
    ffa_cache_close(cache);
    jit_kernel_finish(&kernel);
}
END_TEST

/* Two keys that begin alike. */
START_TEST(removal_wants_one_key)
{
    struct store *store = open_store(STORE_READWRITE, NULL);
    ffa_error err = { FFA_OK, 0, "" };
    ffa_cache *cache;
    char key[33];
    int64_t removed;

    for (int i = 0; i < 20; i++)
        put(store, i, "a"); /* more than there are first digits */
    put(store, 3, "b");
    store_close(store);
    ck_assert_int_eq(ffa_cache_open(&cache, path, 0, NULL), FFA_OK);
    for (char digit[2] = "0"; digit[0] <= '9'; digit[0]++)
        if (ffa_cache_remove(cache, digit, &removed, &err) == FFA_INVALID)
            break;
    ck_assert_ptr_nonnull(strstr(err.message, "keys, not one"));
    name_of(key, 3);
    ck_assert_int_eq(ffa_cache_remove(cache, key, &removed, &err), FFA_OK);
    ck_assert_int_eq(removed, 2); /* both toolchains */
    ffa_cache_close(cache);
}
END_TEST

START_TEST(maintenance_refuses)
{
    ffa_cache_verdict verdict = FFA_CACHE_VERDICT_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_cache *cache;

    ck_assert_int_eq(ffa_cache_open(NULL, path, 0, &err), FFA_INVALID);
    ck_assert_int_eq(ffa_cache_open(&cache, NULL, 0, &err), FFA_INVALID);
    ck_assert_int_eq(ffa_cache_open(&cache, "", 0, &err), FFA_INVALID);
    ck_assert_int_eq(ffa_cache_open(&cache, path, 1u << 31, &err), FFA_UNSUPPORTED);
    ck_assert_int_eq(ffa_cache_open(&cache, path, 0, &err), FFA_NOT_FOUND);
    ck_assert_ptr_null(cache);
    ck_assert_msg(strstr(err.message, "there is no store"), "%s", err.message);
    fill(1);
    ck_assert_int_eq(ffa_cache_open(&cache, path, FFA_CACHE_READONLY, &err), FFA_OK);
    ck_assert_int_eq(ffa_cache_clear(cache, NULL, &err), FFA_CACHE);
    ck_assert_msg(strstr(err.message, "read-only"), "%s", err.message);
    ck_assert_int_eq(ffa_cache_verify(cache, NULL, NULL, NULL, &err), FFA_INVALID);
    ck_assert_int_eq(ffa_cache_list(cache, NULL, NULL, NULL, &err), FFA_INVALID);
    ck_assert_int_eq(ffa_cache_verify(cache, &verdict, NULL, NULL, &err), FFA_OK);
    ck_assert_int_eq(verdict.bad, 0);
    ffa_cache_close(cache);
    ffa_cache_close(NULL);
    damage_cut_half();
    ck_assert_int_eq(ffa_cache_open(&cache, path, 0, &err), FFA_CACHE);
    ck_assert_msg(strstr(err.message, "malformed; if it is a store, remove it"), "%s", err.message);
    ck_assert_int_eq(unlink(path), 0);
    fill(1);
    damage_newer();
    ck_assert_int_eq(ffa_cache_open(&cache, path, 0, &err), FFA_CACHE);
    ck_assert_msg(strstr(err.message, "schema 3"), "%s", err.message);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("store");
    TCase *tc = tcase_create("store");

    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, what_is_put_is_found);
    tcase_add_test(tc, memory_only_and_absent);
    tcase_add_test(tc, toolchain_prefers_or_decides);
    tcase_add_test(tc, equal_cubins_are_stored_once);
    tcase_add_test(tc, cap_evicts_the_longest_unused);
    tcase_add_test(tc, use_is_noted_once_a_day);
    tcase_add_loop_test(tc, damage_costs_a_compile, 0,
                        count_of(sizeof damage_cases, sizeof *damage_cases));
    tcase_add_test(tc, any_page_may_be_lost);
    tcase_add_test(tc, deleted_under_us);
    tcase_add_test(tc, folder_deleted_under_us);
    tcase_add_test(tc, replaced_under_us);
    tcase_add_test(tc, locked_by_another);
    tcase_add_test(tc, locked_when_opened);
    tcase_add_test(tc, many_writers);
    tcase_add_test(tc, killed_writers);
    tcase_add_test(tc, disk_is_full);
    tcase_add_test(tc, group_shares_a_store);
    tcase_add_test(tc, folder_is_made_for_the_group);
    tcase_add_test(tc, network_store_is_read);
    tcase_add_loop_test(tc, network_types_are_known, 0,
                        count_of(sizeof place_cases, sizeof *place_cases));
    tcase_add_test(tc, older_schema_is_used);
    tcase_add_test(tc, uses_in_the_future_are_uses_now);
    tcase_add_loop_test(tc, cubin_of_another_architecture, 0,
                        count_of(sizeof arch_cases, sizeof *arch_cases));
    tcase_add_test(tc, a_hundred_thousand_entries);
    tcase_add_test(tc, folder_cannot_be_written);
    tcase_add_loop_test(tc, every_failure_is_clean, 0,
                        count_of(sizeof fault_kinds, sizeof *fault_kinds));
    tcase_add_test(tc, entries_are_listed_checked_removed);
    tcase_add_test(tc, removal_wants_one_key);
    tcase_add_test(tc, maintenance_refuses);
    tcase_set_timeout(tc, 60);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
