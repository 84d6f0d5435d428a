/* SPDX-License-Identifier: Apache-2.0
 *
 * Bundles: what goes in comes out, byte for byte, twice; and whatever befalls one in use costs a
 * compile at most.
 */
#include "base/digest.h"
#include "cache/store.h"
#include "support/fixture.h"
#include "support/suite.h"
#include "support/tmpdir.h"

#include <check.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define NO_NVRTC "/nonexistent/libnvrtc.so"

enum { NOBODY = 65534 };

static char *folder; /* of the test, 0700 */
static struct watch watch;

static void setup(void)
{
    folder = tmpdir_make();
    watch = (struct watch){ .warning = "" };
}

static void teardown(void)
{
    tmpdir_remove(folder);
}

/* ---- stores with made-up kernels ---- */

static char *in_folder(const char *name)
{
    return tmpdir_path(folder, name);
}

/* Kernels begin, begin + step, ... below end. */
static void fill(const char *path, int begin, int end, int step, const char *toolchain)
{
    struct store_opts opts = { .path = path };
    struct store *store;

    ck_assert_int_eq(store_open(&store, &opts, NULL), FFA_OK);
    for (int i = begin; i < end; i += step) {
        struct jit_kernel kernel = fixture_kernel(i, toolchain, i % 2 ? "sm_100a" : "sm_90a");

        store_put(store, &kernel);
        jit_kernel_finish(&kernel);
    }
    ck_assert_uint_eq(store_error_count(store), 0);
    store_close(store);
}

static ffa_cache *open_cache(const char *path, uint32_t flags)
{
    ffa_error err = { FFA_OK, 0, "" };
    ffa_cache *cache;

    ck_assert_msg(ffa_cache_open(&cache, path, flags, &err) == FFA_OK, "%s", err.message);
    return cache;
}

/* The bundle of a whole store; the caller frees the name. */
static char *export_all(const char *from, const char *to)
{
    ffa_error err = { FFA_OK, 0, "" };
    ffa_cache *cache = open_cache(from, FFA_CACHE_READONLY);
    char *path;

    (void)mkdir(to, 0700);
    ck_assert_msg(ffa_bundle_export(&path, cache, to, NULL, NULL, &err) == FFA_OK, "%s",
                  err.message);
    ffa_cache_close(cache);
    return path;
}

static ffa_status find_in(struct store *store, int number)
{
    struct jit_kernel want = fixture_kernel(number, "", ""), got;
    struct jit_request request = fixture_request(&want);
    struct store_query query = { .request = &request, .toolchain = "" };
    ffa_status rc = store_find(store, &query, &got, NULL);

    if (rc == FFA_OK) {
        ck_assert_uint_eq(got.cubin_bytes, want.cubin_bytes);
        ck_assert_mem_eq(got.cubin, want.cubin, want.cubin_bytes);
    }
    jit_kernel_finish(&got);
    jit_kernel_finish(&want);
    return rc;
}

static struct store *open_bundle(const char *path)
{
    struct store_opts opts = { .path = path, .mode = STORE_BUNDLE, .log = watch_log(&watch) };
    struct store *store;

    ck_assert_int_eq(store_open(&store, &opts, NULL), FFA_OK);
    return store;
}

static void run_sql(const char *path, const char *sql)
{
    ck_assert_int_eq(chmod(path, 0600), 0);
    fixture_sql(path, sql);
}

/* ---- exporting ---- */

START_TEST(export_is_reproducible)
{
    char *a = in_folder("a.ffadb"), *b = in_folder("b.ffadb");
    char *first, *again, *other, *bytes[2], *manifests[2];
    size_t count[2];
    ffa_bundle_info info = FFA_BUNDLE_INFO_INIT;
    ffa_cache *cache;
    struct stat stat;

    fill(a, 0, 20, 1, "nvrtc 13.0 a");
    fill(b, 10, 20, 1, "nvrtc 13.0 a"); /* the same in another order, and at another time */
    fill(b, 0, 10, 1, "nvrtc 13.0 a");
    run_sql(b, "UPDATE kernel SET used_s = used_s + 99");
    first = export_all(a, folder);
    ck_assert_int_eq(lstat(first, &stat), 0);
    ck_assert_uint_eq(stat.st_mode & 0777, 0444);
    bytes[0] = tmpdir_read(first, &count[0]);
    again = export_all(a, folder);
    ck_assert_str_eq(first, again);
    bytes[1] = tmpdir_read(again, &count[1]);
    ck_assert_uint_eq(count[0], count[1]);
    ck_assert_mem_eq(bytes[0], bytes[1], count[0]);

    cache = open_cache(first, 0);
    ck_assert_int_eq(ffa_bundle_info_get(cache, &info, NULL), FFA_OK);
    ck_assert_int_eq(info.kernels, 20);
    ck_assert_int_eq(info.blobs, 20);
    ck_assert_int_eq(info.blob_bytes, 20 * FIXTURE_CUBIN_BYTES);
    ck_assert_int_eq(info.file_bytes, (int64_t)count[0]);
    ck_assert_int_gt(info.created_s, 0);
    ck_assert_int_eq(strncmp(strrchr(first, '/'), "/ffa-", 5), 0);
    ck_assert_int_eq(strncmp(strrchr(first, '/') + 5, info.digest, 32), 0);
    ck_assert_int_eq(ffa_bundle_manifest(cache, &manifests[0], NULL), FFA_OK);
    ffa_cache_close(cache);

    other = export_all(b, folder); /* the same kernels: the same manifest and name */
    ck_assert_str_eq(first, other);
    cache = open_cache(b, 0);
    ck_assert_int_eq(ffa_bundle_manifest(cache, &manifests[1], NULL), FFA_OK);
    ck_assert_str_eq(manifests[0], manifests[1]);
    ck_assert_int_eq(ffa_bundle_info_get(cache, &info, NULL), FFA_INVALID);
    ffa_cache_close(cache);
    for (int i = 0; i < 2; i++) {
        ffa_free(manifests[i]);
        free(bytes[i]);
    }
    ffa_free(first);
    ffa_free(again);
    ffa_free(other);
    free(a);
    free(b);
}
END_TEST

/* A bundle names the library that exported it, and how many of its kernels that one can find. */
START_TEST(bundles_say_what_they_fit)
{
    char *a = in_folder("a.ffadb"), *path, ours[33];
    ffa_bundle_info info = FFA_BUNDLE_INFO_INIT, exported = FFA_BUNDLE_INFO_INIT;
    ffa_context_opts opts = fixture_opts(a, FFA_TEST_SLOW_NVRTC, NULL);
    ffa_kernel_info kernel;
    ffa_context *context;
    ffa_error err;
    ffa_cache *cache;

    ffa_templates_digest(ours);
    for (int step = 0; step < 2; step++) {
        if (step == 0)
            opts.templates_dir = NULL; /* the library's own texts */
        else
            fill(a, 0, 2, 1, "nvrtc 13.0 a");
        context = fixture_open(&opts);
        ck_assert_int_eq(fixture_find(&kernel, context, NULL, &err), FFA_OK);
        ffa_close(context);
        cache = open_cache(a, FFA_CACHE_READONLY);
        ck_assert_int_eq(ffa_bundle_export(&path, cache, folder, NULL, &exported, &err), FFA_OK);
        ffa_cache_close(cache);
        cache = open_cache(path, FFA_CACHE_READONLY);
        ck_assert_int_eq(ffa_bundle_info_get(cache, &info, &err), FFA_OK);
        ffa_cache_close(cache);
        ck_assert(!memcmp(&info, &exported, sizeof info));
        ck_assert_int_eq(info.kernels, step ? 3 : 1);
        ck_assert_int_eq(info.fitting, 1);
        ck_assert_str_eq(info.library_version, ffa_version());
        ck_assert_str_eq(info.templates_digest, step ? "" : ours);
        ck_assert_int_eq(chmod(path, 0600), 0);
        run_sql(path, "DELETE FROM meta WHERE name = 'library_version'; "
                      "DELETE FROM meta WHERE name = 'templates_digest'");
        cache = open_cache(path, FFA_CACHE_READONLY);
        ck_assert_int_eq(ffa_bundle_info_get(cache, &info, &err), FFA_OK); /* of an older library */
        ffa_cache_close(cache);
        ck_assert(!info.library_version[0] && !info.templates_digest[0] && info.fitting == 1);
        ffa_free(path);
    }
    free(a);
}
END_TEST

/* One line is what sha256sum says of the cubin, and the manifest's own is the digest. */
START_TEST(manifest_is_what_others_compute)
{
    char *store = in_folder("a.ffadb"), *path, *manifest, *line, *file = in_folder("x");
    char command[512], said[70] = "";
    struct jit_kernel kernel = fixture_kernel(4, "nvrtc 13.0 a", "sm_90a");
    ffa_bundle_info info = FFA_BUNDLE_INFO_INIT;
    ffa_cache *cache;
    FILE *pipe;

    fill(store, 4, 5, 1, "nvrtc 13.0 a");
    path = export_all(store, folder);
    cache = open_cache(path, 0);
    ck_assert_int_eq(ffa_bundle_manifest(cache, &manifest, NULL), FFA_OK);
    ck_assert_int_eq(ffa_bundle_info_get(cache, &info, NULL), FFA_OK);
    ck_assert_int_eq(strncmp(manifest, "# ffa manifest 1", 16), 0);
    line = strchr(manifest, '\n') + 1;
    for (int i = 0; i < 2; i++) {
        if (i == 0)
            tmpdir_write(file, kernel.cubin, kernel.cubin_bytes);
        else
            tmpdir_write_text(file, manifest);
        text_copy(command, "sha256sum %s", file);
        pipe = popen(command, "r");
        ck_assert_ptr_nonnull(pipe);
        ck_assert_uint_eq(fread(said, 1, 64, pipe), 64);
        ck_assert_int_eq(pclose(pipe), 0);
        ck_assert_int_eq(strncmp(said, i ? info.digest : line, 64), 0);
    }
    text_copy(command, "  %s nvrtc 13.0 a\n", kernel.info.key);
    ck_assert_str_eq(line + 64, command);
    ffa_free(manifest);
    ffa_cache_close(cache);
    ffa_free(path);
    free(file);
    free(store);
    jit_kernel_finish(&kernel);
}
END_TEST

static const struct {
    ffa_bundle_filter filter;
    int kernels; /* 0: FFA_NOT_FOUND */
} filter_cases[] = {
    { { .arch = NULL }, 11 },
    { { .arch = "sm_90a" }, 6 },
    { { .arch = "sm_100a" }, 5 },
    { { .arch = "sm_90" }, 0 },
    { { .toolchain = "nvrtc 13.0 b" }, 1 },
    { { .toolchain = "nvrtc 13.0 b", .arch = "sm_100a" }, 0 },
    { { .template_name = "attention_forward", .arch = "sm_90a" }, 6 },
    { { .template_name = "attention" }, 0 },
};

START_TEST(export_and_import_filter)
{
    char *store = in_folder("a.ffadb"), *target = in_folder("b.ffadb"), *path;
    ffa_bundle_filter filter = filter_cases[_i].filter;
    int want = filter_cases[_i].kernels;
    ffa_bundle_info info = FFA_BUNDLE_INFO_INIT;
    ffa_bundle_report report = FFA_BUNDLE_REPORT_INIT;
    ffa_cache *cache, *into;

    fill(store, 0, 10, 1, "nvrtc 13.0 a");
    fill(store, 0, 1, 1, "nvrtc 13.0 b");
    filter.struct_size = (uint32_t)sizeof filter;
    cache = open_cache(store, 0);
    ck_assert_int_eq(ffa_bundle_export(&path, cache, folder, &filter, &info, NULL),
                     want ? FFA_OK : FFA_NOT_FOUND);
    ck_assert_int_eq(path != NULL, want != 0);
    ck_assert_int_eq(info.kernels, want);
    into = open_cache(target, FFA_CACHE_CREATE);
    ck_assert_int_eq(ffa_bundle_import(into, cache, &filter, &report, NULL), FFA_OK);
    ck_assert_int_eq(report.added, want);
    ffa_cache_close(into);
    ffa_cache_close(cache);
    ffa_free(path);
    free(target);
    free(store);
}
END_TEST

/* ---- merging and comparing ---- */

struct seen {
    int sides[4];
};

static int see(void *user, ffa_bundle_side side, const ffa_cache_entry *entry)
{
    struct seen *seen = user;

    ck_assert_uint_eq(entry->struct_size, sizeof *entry);
    ck_assert_int_eq(entry->cubin_bytes, FIXTURE_CUBIN_BYTES);
    seen->sides[side]++;
    return 0;
}

/* Two halves, made apart, are the whole. */
START_TEST(two_shards_are_one_whole)
{
    char *even = in_folder("even.ffadb"), *odd = in_folder("odd.ffadb");
    char *whole = in_folder("whole.ffadb"), *merged = in_folder("merged.ffadb");
    char *paths[4], *sub = in_folder("sub"), *manifests[2];
    ffa_bundle_difference difference = FFA_BUNDLE_DIFFERENCE_INIT;
    struct seen seen = { { 0 } };
    ffa_bundle_report report = FFA_BUNDLE_REPORT_INIT;
    ffa_cache *into, *from, *a, *b;

    fill(even, 0, 40, 2, "nvrtc 13.0 a");
    fill(odd, 1, 40, 2, "nvrtc 13.0 a");
    fill(whole, 0, 40, 1, "nvrtc 13.0 a");
    paths[0] = export_all(even, folder);
    paths[1] = export_all(odd, folder);
    into = open_cache(merged, FFA_CACHE_CREATE);
    for (int i = 0; i < 4; i++) { /* the second time there is nothing to do */
        from = open_cache(paths[i % 2], 0);
        ck_assert_int_eq(ffa_bundle_import(into, from, NULL, &report, NULL), FFA_OK);
        ck_assert_int_eq(report.added, i < 2 ? 20 : 0);
        ck_assert_int_eq(report.present, i < 2 ? 0 : 20);
        ck_assert_int_eq(report.conflicts + report.bad, 0);
        ffa_cache_close(from);
    }
    ffa_cache_close(into);
    paths[2] = export_all(merged, folder);
    paths[3] = export_all(whole, sub);
    ck_assert_str_eq(strrchr(paths[2], '/'), strrchr(paths[3], '/'));
    a = open_cache(paths[2], 0);
    b = open_cache(paths[3], 0);
    ck_assert_int_eq(ffa_bundle_diff(a, b, &difference, see, &seen, NULL), FFA_OK);
    ck_assert_int_eq(difference.same, 40);
    ck_assert_int_eq(seen.sides[1] + seen.sides[2] + seen.sides[3], 0);
    ck_assert_int_eq(ffa_bundle_manifest(a, &manifests[0], NULL), FFA_OK);
    ck_assert_int_eq(ffa_bundle_manifest(b, &manifests[1], NULL), FFA_OK);
    ck_assert_str_eq(manifests[0], manifests[1]);
    ffa_cache_close(b);
    b = open_cache(paths[0], 0);
    ck_assert_int_eq(ffa_bundle_diff(a, b, &difference, see, &seen, NULL), FFA_OK);
    ck_assert_int_eq(difference.same, 20);
    ck_assert_int_eq(difference.only_a, 20);
    ck_assert_int_eq(difference.only_b + difference.different, 0);
    ck_assert_int_eq(ffa_bundle_diff(b, a, &difference, NULL, NULL, NULL), FFA_OK);
    ck_assert_int_eq(difference.only_b, 20);
    ffa_cache_close(a);
    ffa_cache_close(b);
    for (int i = 0; i < 2; i++)
        ffa_free(manifests[i]);
    for (int i = 0; i < 4; i++)
        ffa_free(paths[i]);
    free(even);
    free(odd);
    free(whole);
    free(merged);
    free(sub);
}
END_TEST

/* The same key and toolchain with other bytes: ours stays, and it is said. */
START_TEST(conflicts_keep_what_was_there)
{
    char *ours = in_folder("a.ffadb"), *theirs = in_folder("b.ffadb");
    struct jit_kernel kernel = fixture_kernel(0, "nvrtc 13.0 a", "sm_90a");
    struct store_opts opts = { .path = theirs };
    ffa_bundle_difference difference = FFA_BUNDLE_DIFFERENCE_INIT;
    ffa_bundle_report report = FFA_BUNDLE_REPORT_INIT;
    struct seen seen = { { 0 } };
    struct store *store;
    ffa_cache *a, *b;

    fill(ours, 0, 2, 1, "nvrtc 13.0 a");
    fill(theirs, 1, 3, 1, "nvrtc 13.0 a");
    ((char *)kernel.cubin)[17] ^= 1;
    ck_assert_int_eq(store_open(&store, &opts, NULL), FFA_OK);
    store_put(store, &kernel);
    store_close(store);
    jit_kernel_finish(&kernel);
    a = open_cache(ours, 0);
    b = open_cache(theirs, 0);
    ck_assert_int_eq(ffa_bundle_diff(a, b, &difference, see, &seen, NULL), FFA_OK);
    ck_assert_int_eq(difference.same, 1);
    ck_assert_int_eq(difference.different, 1);
    ck_assert_int_eq(difference.only_b, 1);
    ck_assert_int_eq(seen.sides[FFA_BUNDLE_DIFFERENT], 1);
    ck_assert_int_eq(seen.sides[FFA_BUNDLE_ONLY_B], 1);
    ck_assert_int_eq(ffa_bundle_import(a, b, NULL, &report, NULL), FFA_OK);
    ck_assert_int_eq(report.added, 1);
    ck_assert_int_eq(report.present, 1);
    ck_assert_int_eq(report.conflicts, 1);
    ffa_cache_close(a);
    ffa_cache_close(b);
    opts.path = ours;
    ck_assert_int_eq(store_open(&store, &opts, NULL), FFA_OK);
    ck_assert_int_eq(find_in(store, 0), FFA_OK); /* checks the bytes */
    store_close(store);
    free(ours);
    free(theirs);
}
END_TEST

/* ---- verifying ---- */

static const struct {
    const char *name, *sql;
    ffa_status want;
    int bad, missing;
    const char *says;
} verify_cases[] = {
    { "whole", "SELECT 1", FFA_OK, 0, 0, NULL },
    { "flipped byte",
      "UPDATE blob SET data = CAST(replace(hex(data), 'A', 'B') AS BLOB) WHERE id = 2", FFA_OK, 1,
      0, NULL },
    { "facts", "UPDATE kernel SET threads = 7 WHERE id < 3", FFA_OK, 2, 0, NULL },
    { "a kernel less", "DELETE FROM kernel WHERE id = 3", FFA_OK, 0, 1, NULL },
    { "all gone", "DELETE FROM kernel", FFA_OK, 0, 5, NULL },
    { "another manifest", "UPDATE meta SET value = value || 'x' WHERE name = 'manifest'", FFA_CACHE,
      0, 0, "its manifest is not what was exported" },
    { "no manifest", "DELETE FROM meta", FFA_CACHE, 0, 0, "its manifest is not" },
};

START_TEST(verify_finds_what_changed)
{
    char *store = in_folder("a.ffadb"), *path;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_bundle_verdict verdict = FFA_BUNDLE_VERDICT_INIT;
    ffa_cache *cache;

    fill(store, 0, 5, 1, "nvrtc 13.0 a");
    path = export_all(store, folder);
    run_sql(path, verify_cases[_i].sql);
    cache = open_cache(path, 0);
    ck_assert_msg(ffa_bundle_verify(cache, &verdict, NULL, NULL, &err) == verify_cases[_i].want,
                  "%s: %s", verify_cases[_i].name, err.message);
    ck_assert_msg(verdict.bad == verify_cases[_i].bad, "%s", verify_cases[_i].name);
    ck_assert_msg(verdict.missing == verify_cases[_i].missing, "%s: %d", verify_cases[_i].name,
                  (int)verdict.missing);
    if (verify_cases[_i].says)
        ck_assert_msg(strstr(err.message, verify_cases[_i].says), "%s", err.message);
    ffa_cache_close(cache);
    cache = open_cache(store, 0);
    ck_assert_int_eq(ffa_bundle_verify(cache, &verdict, NULL, NULL, &err), FFA_INVALID);
    ffa_cache_close(cache);
    ffa_free(path);
    free(store);
}
END_TEST

/* What verify_cases do to a bundle, and what an import says of it. */
static const struct {
    ffa_status want;
    int added, bad;
    const char *says;
} import_cases[] = {
    { FFA_OK, 5, 0, NULL },
    { FFA_OK, 4, 1, NULL },
    { FFA_OK, 3, 2, NULL },
    { FFA_CACHE, 0, 0, "was changed: 0 kernels are not as its manifest lists them, 1 are missing" },
    { FFA_CACHE, 0, 0, "5 are missing; nothing is imported from it" },
    { FFA_CACHE, 0, 0, "its manifest is not what was exported" },
    { FFA_CACHE, 0, 0, "its manifest is not what was exported" },
};
_Static_assert(sizeof import_cases / sizeof *import_cases ==
                   sizeof verify_cases / sizeof *verify_cases,
               "one for the other");

START_TEST(import_checks_the_manifest)
{
    char *store = in_folder("a.ffadb"), *target = in_folder("b.ffadb"), *path;
    ffa_bundle_report report = FFA_BUNDLE_REPORT_INIT;
    ffa_cache_stats stats = FFA_CACHE_STATS_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_cache *from, *into;

    fill(store, 0, 5, 1, "nvrtc 13.0 a");
    path = export_all(store, folder);
    run_sql(path, verify_cases[_i].sql);
    from = open_cache(path, FFA_CACHE_READONLY);
    into = open_cache(target, FFA_CACHE_CREATE);
    ck_assert_msg(ffa_bundle_import(into, from, NULL, &report, &err) == import_cases[_i].want,
                  "%s: %s", verify_cases[_i].name, err.message);
    ck_assert_int_eq(report.added, import_cases[_i].added);
    ck_assert_int_eq(report.bad, import_cases[_i].bad);
    if (import_cases[_i].says)
        ck_assert_msg(strstr(err.message, import_cases[_i].says), "%s", err.message);
    ck_assert_int_eq(ffa_cache_stats_get(into, &stats, NULL), FFA_OK);
    ck_assert_int_eq(stats.kernels, import_cases[_i].added);
    ffa_cache_close(into);
    ffa_cache_close(from);
    ffa_free(path);
    free(target);
    free(store);
}
END_TEST

START_TEST(import_of_the_wanted_digest_only)
{
    char *store = in_folder("a.ffadb"), *target = in_folder("b.ffadb"), *path, *again = NULL;
    ffa_bundle_filter filter = FFA_BUNDLE_FILTER_INIT;
    ffa_bundle_info info = FFA_BUNDLE_INFO_INIT;
    ffa_bundle_report report = FFA_BUNDLE_REPORT_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_cache *from, *into, *own;
    char digest[65];

    fill(store, 0, 5, 1, "nvrtc 13.0 a");
    path = export_all(store, folder);
    from = open_cache(path, FFA_CACHE_READONLY);
    into = open_cache(target, FFA_CACHE_CREATE);
    own = open_cache(store, FFA_CACHE_READONLY);
    ck_assert_int_eq(ffa_bundle_info_get(from, &info, NULL), FFA_OK);
    text_copy(digest, "%s", info.digest);
    filter.digest = digest;
    digest[63] = digest[63] == '0' ? '1' : '0';
    ck_assert_int_eq(ffa_bundle_import(into, from, &filter, &report, &err), FFA_CACHE);
    ck_assert_msg(strstr(err.message, "is not the one that is wanted: its digest is ") &&
                      strstr(err.message, info.digest) && strstr(err.message, digest),
                  "%s", err.message);
    ck_assert_int_eq(report.added, 0);
    filter.digest = "12";
    ck_assert_int_eq(ffa_bundle_import(into, from, &filter, &report, &err), FFA_INVALID);
    filter.digest = info.digest;
    ck_assert_int_eq(ffa_bundle_import(into, own, &filter, &report, &err), FFA_INVALID);
    ck_assert_msg(strstr(err.message, "is a store, which has none"), "%s", err.message);
    ck_assert_int_eq(ffa_bundle_export(&again, own, folder, &filter, NULL, &err), FFA_INVALID);
    ck_assert_ptr_null(again);
    ck_assert_int_eq(ffa_bundle_import(into, from, &filter, &report, &err), FFA_OK);
    ck_assert_int_eq(report.added, 5);
    ffa_cache_close(own);
    ffa_cache_close(into);
    ffa_cache_close(from);
    ffa_free(path);
    free(target);
    free(store);
}
END_TEST

/* What a signal handler sets ends an export, which leaves nothing, and an import. */
START_TEST(both_can_be_stopped)
{
    char *store = in_folder("a.ffadb"), *target = in_folder("b.ffadb"), *out = in_folder("out");
    ffa_bundle_filter filter = FFA_BUNDLE_FILTER_INIT;
    ffa_bundle_report report = FFA_BUNDLE_REPORT_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    volatile int stop = 1;
    ffa_cache *from, *into;
    char *path;

    fill(store, 0, 5, 1, "nvrtc 13.0 a");
    ck_assert_int_eq(mkdir(out, 0700), 0);
    from = open_cache(store, FFA_CACHE_READONLY);
    into = open_cache(target, FFA_CACHE_CREATE);
    filter.stop = &stop;
    ck_assert_int_eq(ffa_bundle_export(&path, from, out, &filter, NULL, &err), FFA_TIMEOUT);
    ck_assert_ptr_null(path);
    ck_assert_int_eq(ffa_bundle_import(into, from, &filter, &report, &err), FFA_TIMEOUT);
    ck_assert_str_eq(err.message, "stopped");
    ck_assert_int_eq(report.added, 0);
    ck_assert_int_eq(rmdir(out), 0); /* it is empty */
    stop = 0;
    ck_assert_int_eq(ffa_bundle_import(into, from, &filter, &report, &err), FFA_OK);
    ck_assert_int_eq(report.added, 5);
    ffa_cache_close(into);
    ffa_cache_close(from);
    free(out);
    free(target);
    free(store);
}
END_TEST

/* Structs that the library fills say how large the caller's are. */
START_TEST(outputs_have_sizes)
{
    char *store = in_folder("a.ffadb"), *path;
    struct {
        ffa_bundle_verdict verdict;
        char after[8];
    } small = { .verdict = { .struct_size = offsetof(ffa_bundle_verdict, bad) }, .after = "after" };
    ffa_bundle_verdict none = { .struct_size = 0 };
    ffa_bundle_difference no_difference = { .struct_size = 0 };
    ffa_bundle_report no_report = { .struct_size = 3 };
    ffa_cache_verdict no_verdict = { .struct_size = 0xcdcdcdcd };
    ffa_cache *bundle, *own;

    fill(store, 0, 5, 1, "nvrtc 13.0 a");
    path = export_all(store, folder);
    bundle = open_cache(path, FFA_CACHE_READONLY);
    own = open_cache(store, 0);
    small.verdict.bad = 77;
    ck_assert_int_eq(ffa_bundle_verify(bundle, &small.verdict, NULL, NULL, NULL), FFA_OK);
    ck_assert_int_eq(small.verdict.checked, 5);
    ck_assert_int_eq(small.verdict.bad, 77); /* beyond what the caller has */
    ck_assert_int_eq(ffa_bundle_verify(bundle, &none, NULL, NULL, NULL), FFA_INVALID);
    ck_assert_int_eq(ffa_bundle_diff(bundle, own, &no_difference, NULL, NULL, NULL), FFA_INVALID);
    ck_assert_int_eq(ffa_bundle_import(own, bundle, NULL, &no_report, NULL), FFA_INVALID);
    ck_assert_int_eq(ffa_cache_verify(own, &no_verdict, NULL, NULL, NULL), FFA_INVALID);
    ffa_cache_close(own);
    ffa_cache_close(bundle);
    ffa_free(path);
    free(store);
}
END_TEST

/* Somebody who knows XXH3 changes a cubin and all its sums: SHA-256 tells. */
START_TEST(manifest_guards_against_more_than_accidents)
{
    char *mine = in_folder("a.ffadb"), *evil = in_folder("b.ffadb"), *paths[2], sql[1024];
    struct jit_kernel kernel = fixture_kernel(0, "nvrtc 13.0 a", "sm_90a");
    struct store_opts opts = { .path = evil };
    ffa_bundle_verdict verdict = FFA_BUNDLE_VERDICT_INIT;
    char *other = in_folder("c.ffadb");
    ffa_error err = { FFA_OK, 0, "" };
    struct store *store;
    ffa_cache *cache, *into;

    fill(mine, 0, 3, 1, "nvrtc 13.0 a");
    fill(evil, 1, 3, 1, "nvrtc 13.0 a");
    memset(kernel.cubin, 0x90, kernel.cubin_bytes);
    ck_assert_int_eq(store_open(&store, &opts, NULL), FFA_OK);
    store_put(store, &kernel);
    store_close(store);
    paths[0] = export_all(mine, folder);
    paths[1] = export_all(evil, folder);
    ck_assert_str_ne(paths[0], paths[1]);
    text_copy(sql,
              "ATTACH '%s' AS mine; UPDATE meta SET value = (SELECT value FROM mine.meta m WHERE "
              "m.name = meta.name)",
              paths[0]);
    run_sql(paths[1], sql);
    cache = open_cache(paths[1], 0);
    ck_assert_int_eq(ffa_bundle_verify(cache, &verdict, NULL, NULL, NULL), FFA_OK);
    ck_assert_int_eq(verdict.checked, 3);
    ck_assert_int_eq(verdict.bad, 1);
    into = open_cache(other, FFA_CACHE_CREATE);
    ck_assert_int_eq(ffa_bundle_import(into, cache, NULL, NULL, &err), FFA_CACHE);
    ck_assert_msg(strstr(err.message, "1 kernels are not as its manifest lists them"), "%s",
                  err.message);
    ffa_cache_close(into);
    free(other);
    ffa_cache_close(cache);
    for (int i = 0; i < 2; i++)
        ffa_free(paths[i]);
    jit_kernel_finish(&kernel);
    free(mine);
    free(evil);
}
END_TEST

START_TEST(misuse_is_refused)
{
    char *store = in_folder("a.ffadb"), *path, *nowhere = in_folder("not/there"), *text;
    ffa_bundle_filter filter = FFA_BUNDLE_FILTER_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_bundle_difference difference = FFA_BUNDLE_DIFFERENCE_INIT;
    ffa_cache *cache, *bundle, *again;
    ffa_bundle_report report = FFA_BUNDLE_REPORT_INIT;

    fill(store, 0, 3, 1, "nvrtc 13.0 a");
    cache = open_cache(store, 0);
    ck_assert_int_eq(ffa_bundle_export(NULL, cache, folder, NULL, NULL, &err), FFA_INVALID);
    ck_assert_int_eq(ffa_bundle_export(&path, NULL, folder, NULL, NULL, &err), FFA_INVALID);
    ck_assert_int_eq(ffa_bundle_export(&path, cache, "", NULL, NULL, &err), FFA_INVALID);
    ck_assert_int_eq(ffa_bundle_export(&path, cache, nowhere, NULL, NULL, &err), FFA_CACHE);
    ck_assert_ptr_null(path);
    ck_assert_msg(strstr(err.message, "No such file"), "%s", err.message);
    filter.flags = 1;
    ck_assert_int_eq(ffa_bundle_export(&path, cache, folder, &filter, NULL, &err), FFA_UNSUPPORTED);
    ck_assert_int_eq(ffa_bundle_manifest(NULL, &text, &err), FFA_INVALID);
    ck_assert_int_eq(ffa_bundle_diff(cache, cache, &difference, NULL, NULL, &err), FFA_INVALID);
    again = open_cache(store, FFA_CACHE_READONLY);
    ck_assert_int_eq(ffa_bundle_import(cache, again, NULL, NULL, &err), FFA_INVALID);
    ck_assert_msg(strstr(err.message, "are one file"), "%s", err.message);
    path = export_all(store, folder);
    bundle = open_cache(path, 0);
    ck_assert_int_eq(ffa_bundle_import(bundle, cache, NULL, &report, &err), FFA_CACHE);
    ck_assert_msg(strstr(err.message, "never changes"), "%s", err.message);
    ck_assert_int_eq(ffa_bundle_import(again, bundle, NULL, &report, &err), FFA_CACHE);
    ck_assert_msg(strstr(err.message, "read-only"), "%s", err.message);
    ck_assert_int_eq(ffa_cache_clear(bundle, NULL, &err), FFA_CACHE);
    ffa_cache_close(bundle);
    ffa_cache_close(again);
    ffa_cache_close(cache);
    ffa_free(path);
    free(nowhere);
    free(store);
}
END_TEST

/* ---- trust, and what befalls a bundle in use ---- */

static void befall_nothing(char *path)
{
    (void)path;
}

static void befall_mode(char *path)
{
    ck_assert_int_eq(chmod(path, 0666), 0);
}

static void befall_group(char *path)
{
    ck_assert_int_eq(chmod(path, 0464), 0);
}

static void befall_folder_mode(char *path)
{
    (void)path;
    ck_assert_int_eq(chmod(folder, 0777), 0);
}

static void befall_owner(char *path)
{
    ck_assert_int_eq(chown(path, NOBODY, NOBODY), 0);
}

static void befall_gone(char *path)
{
    ck_assert_int_eq(unlink(path), 0);
}

/* The path becomes a link to the bundle under another name, in a folder of mode `mode`. */
static void move_behind_link(char *path, mode_t mode, const char *to)
{
    char *sub = in_folder("sub"), *target = tmpdir_path(sub, "real.ffadb");

    ck_assert_int_eq(mkdir(sub, 0700), 0);
    ck_assert_int_eq(rename(path, target), 0);
    ck_assert_int_eq(symlink(to ? to : target, path), 0);
    ck_assert_int_eq(chmod(sub, mode), 0);
    free(target);
    free(sub);
}

static void befall_link(char *path)
{
    move_behind_link(path, 0755, NULL);
}

static void befall_relative_link(char *path)
{
    move_behind_link(path, 0755, "sub/real.ffadb");
}

static void befall_link_to_open_folder(char *path)
{
    move_behind_link(path, 0777, NULL);
}

static void befall_link_to_itself(char *path)
{
    move_behind_link(path, 0755, path);
}

static void befall_link_of_another(char *path)
{
    move_behind_link(path, 0755, NULL);
    ck_assert_int_eq(lchown(path, NOBODY, NOBODY), 0);
}

static void befall_store(char *path)
{
    char *store = in_folder("a.ffadb");

    ck_assert_int_eq(unlink(path), 0);
    tmpdir_copy(store, path);
    ck_assert_int_eq(chmod(path, 0600), 0);
    free(store);
}

static void befall_newer(char *path)
{
    run_sql(path, "PRAGMA user_version = 99");
}

static void befall_text(char *path)
{
    ck_assert_int_eq(unlink(path), 0);
    tmpdir_write_text(path, "not a bundle");
    ck_assert_int_eq(chmod(path, 0644), 0);
}

static void befall_cut(char *path)
{
    struct stat stat;

    ck_assert_int_eq(lstat(path, &stat), 0);
    ck_assert_int_eq(chmod(path, 0600), 0);
    ck_assert_int_eq(truncate(path, stat.st_size / 2), 0);
    ck_assert_int_eq(chmod(path, stat.st_mode & 0777), 0);
}

static void befall_folder(char *path)
{
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(mkdir(path, 0700), 0);
}

static const struct {
    const char *name;
    void (*befall)(char *path);
    const char *says; /* NULL: it is used */
    bool needs_root;
} trust_cases[] = {
    { "whole", befall_nothing, NULL, false },
    { "others can write it", befall_mode, "chmod go-w", false },
    { "its group can write it", befall_group, "chmod go-w", false },
    { "others can write its folder", befall_folder_mode, "its folder can be written", false },
    { "another owner", befall_owner, "belongs to user 65534", true },
    { "not there", befall_gone, "there is no bundle", false },
    { "a link", befall_link, NULL, false },
    { "a relative link", befall_relative_link, NULL, false },
    { "a link to where others write", befall_link_to_open_folder, "folder can be written", false },
    { "a link to itself", befall_link_to_itself, "symbolic links", false },
    { "a link of another user", befall_link_of_another, "a link on the way", true },
    { "a store", befall_store, "not a bundle; export", false },
    { "a newer schema", befall_newer, "schema 99, this library reads up to", false },
    { "a text", befall_text, "not a database", false },
    { "cut in half", befall_cut, "malformed", false },
    { "a folder", befall_folder, "no regular file", false },
};

START_TEST(bundles_are_trusted_or_ignored)
{
    char *store = in_folder("a.ffadb"), *path;
    bool is_used = !trust_cases[_i].says;
    ffa_error err = { FFA_OK, 0, "" };
    struct store *bundle;
    ffa_cache *cache;
    ffa_status rc;

    if (trust_cases[_i].needs_root && geteuid() != 0)
        return; /* only root can give files away */
    fill(store, 0, 3, 1, "nvrtc 13.0 a");
    path = export_all(store, folder);
    trust_cases[_i].befall(path);
    bundle = open_bundle(path);
    for (int i = 0; i < 3; i++)
        ck_assert_msg(find_in(bundle, i) == (is_used ? FFA_OK : FFA_NOT_FOUND), "%s: %s",
                      trust_cases[_i].name, watch.warning);
    ck_assert_msg(watch.lines[FFA_LOG_WARNING] == (is_used ? 0 : 1), "%s: %s", trust_cases[_i].name,
                  watch.warning);
    ck_assert_uint_ge(store_error_count(bundle), is_used ? 0 : 1);
    if (!is_used)
        ck_assert_msg(strstr(watch.warning, trust_cases[_i].says), "%s: %s", trust_cases[_i].name,
                      watch.warning);
    store_close(bundle);
    /* The functions of maintenance, and the command's, trust what a context does. */
    rc = ffa_cache_open(&cache, path, FFA_CACHE_READONLY | FFA_CACHE_FOLLOW_LINKS, &err);
    is_used = is_used || trust_cases[_i].befall == befall_store;
    ck_assert_msg((rc == FFA_OK) == is_used, "%s: %s", trust_cases[_i].name, err.message);
    ffa_cache_close(cache);
    free(path);
    free(store);
}
END_TEST

/* A new one of another content under the same name: readers keep theirs, new ones get the new. */
START_TEST(replaced_under_a_reader)
{
    char *a = in_folder("a.ffadb"), *b = in_folder("b.ffadb"), *paths[2];
    struct store *reader, *later;

    fill(a, 0, 40, 1, "nvrtc 13.0 a");
    fill(b, 40, 80, 1, "nvrtc 13.0 a");
    paths[0] = export_all(a, folder);
    paths[1] = export_all(b, folder);
    reader = open_bundle(paths[0]);
    ck_assert_int_eq(find_in(reader, 0), FFA_OK);
    ck_assert_int_eq(rename(paths[1], paths[0]), 0);
    for (int i = 0; i < 40; i++)
        ck_assert_int_eq(find_in(reader, i), FFA_OK);
    later = open_bundle(paths[0]);
    ck_assert_int_eq(find_in(later, 0), FFA_NOT_FOUND);
    ck_assert_int_eq(find_in(later, 79), FFA_OK);
    ck_assert_int_eq(unlink(paths[0]), 0);
    ck_assert_int_eq(find_in(later, 78), FFA_OK);
    ck_assert_int_eq(watch.lines[FFA_LOG_WARNING], 0);
    store_close(later);
    store_close(reader);
    for (int i = 0; i < 2; i++)
        ffa_free(paths[i]);
    free(a);
    free(b);
}
END_TEST

/* Overwritten in place, as nobody should: the right kernel or none, and one warning. */
START_TEST(overwritten_under_a_reader)
{
    char *a = in_folder("a.ffadb"), *path;
    struct store *reader;
    size_t bytes;
    char *file;
    int found = 0;

    fill(a, 0, 40, 1, "nvrtc 13.0 a");
    path = export_all(a, folder);
    reader = open_bundle(path);
    ck_assert_int_eq(find_in(reader, 0), FFA_OK);
    file = tmpdir_read(path, &bytes);
    memset(file + 16384, 0x5a, bytes - 16384);
    ck_assert_int_eq(chmod(path, 0644), 0);
    tmpdir_write(path, file, bytes);
    for (int i = 1; i < 40; i++)
        found += find_in(reader, i) == FFA_OK;
    ck_assert_int_lt(found, 39);
    ck_assert_int_ge(watch.lines[FFA_LOG_WARNING], 1);
    store_close(reader);
    free(file);
    free(path);
    free(a);
}
END_TEST

/* A bad entry is passed over, and the bundle stays as it is: it is not ours to mend. */
START_TEST(quarantine_is_for_the_own_layer)
{
    char *a = in_folder("a.ffadb"), *path, *before, *after;
    struct store *reader;
    size_t bytes[2];

    fill(a, 0, 3, 1, "nvrtc 13.0 a");
    path = export_all(a, folder);
    run_sql(path, "UPDATE kernel SET threads = 1 WHERE registers = 101");
    ck_assert_int_eq(chmod(path, 0644), 0); /* writable, for all that file modes say */
    before = tmpdir_read(path, &bytes[0]);
    reader = open_bundle(path);
    ck_assert_int_eq(find_in(reader, 0), FFA_OK);
    ck_assert_int_eq(find_in(reader, 1), FFA_NOT_FOUND);
    ck_assert_int_eq(find_in(reader, 2), FFA_OK);
    ck_assert_uint_eq(store_bad_count(reader), 1);
    ck_assert_uint_eq(store_error_count(reader), 0);
    store_close(reader);
    after = tmpdir_read(path, &bytes[1]);
    ck_assert_uint_eq(bytes[0], bytes[1]);
    ck_assert_mem_eq(before, after, bytes[0]);
    free(after);
    free(before);
    free(path);
    free(a);
}
END_TEST

/* A name that a URI would take apart. */
START_TEST(names_need_no_care)
{
    char *a = in_folder("a.ffadb"), *path, *odd = in_folder("a?b#c%41 &mode=rw.ffadb");
    struct store *reader;

    fill(a, 0, 1, 1, "nvrtc 13.0 a");
    path = export_all(a, folder);
    ck_assert_int_eq(rename(path, odd), 0);
    reader = open_bundle(odd);
    ck_assert_int_eq(find_in(reader, 0), FFA_OK);
    ck_assert_int_eq(watch.lines[FFA_LOG_WARNING], 0);
    store_close(reader);
    ck_assert_int_eq(chdir(folder), 0);
    reader = open_bundle(strrchr(odd, '/') + 1);
    ck_assert_int_eq(find_in(reader, 0), FFA_OK);
    store_close(reader);
    free(odd);
    free(path);
    free(a);
}
END_TEST

/* ---- contexts ---- */

static ffa_context *open_context(const char *store, const char *const *bundles, int64_t count,
                                 uint32_t flags, const char *nvrtc)
{
    ffa_context_opts opts = fixture_opts(store, nvrtc, &watch);

    opts.bundles = bundles;
    opts.bundle_count = count;
    opts.flags = flags;
    return fixture_open(&opts);
}

static ffa_kernel_info compile(ffa_context *context, const char *setting)
{
    ffa_kernel_info info;

    (void)fixture_find(&info, context, setting, NULL);
    return info;
}

/* Built here, exported, and used elsewhere: read-only, with no compiler and none allowed. */
START_TEST(bundle_answers_without_a_compiler)
{
    char *store = in_folder("a.ffadb"), *other = in_folder("b.ffadb");
    ffa_context_stats stats = FFA_CONTEXT_STATS_INIT;
    ffa_context_info info = FFA_CONTEXT_INFO_INIT;
    const char *bundles[2];
    ffa_context *context;

    context = open_context(store, NULL, 0, 0, FFA_TEST_SLOW_NVRTC);
    ck_assert_int_eq(compile(context, NULL).layer, FFA_LAYER_COMPILED);
    ffa_close(context);
    bundles[1] = export_all(store, folder);
    bundles[0] = "/nonexistent/bundle.ffadb";
    for (int i = 0; i < 2; i++) { /* with a store of its own, and in memory only */
        context = open_context(i ? NULL : other, bundles, 2, FFA_OPEN_NEVER_COMPILE, NO_NVRTC);
        ck_assert_int_eq(compile(context, NULL).layer, FFA_LAYER_BUNDLE);
        ck_assert_int_eq(compile(context, NULL).layer, FFA_LAYER_TABLE);
        ck_assert_int_eq(compile(context, "head_dim=64").layer, FFA_LAYER_NONE);
        ck_assert_int_eq(ffa_context_stats_get(context, &stats, NULL), FFA_OK);
        ck_assert_uint_eq(stats.hits_bundle, 1);
        ck_assert_uint_eq(stats.hits_store, 0);
        ck_assert_uint_eq(stats.misses, 1);
        ck_assert_uint_eq(stats.store_errors, 1);
        ck_assert_int_eq(ffa_context_info_get(context, &info, NULL), FFA_OK);
        ck_assert_int_eq(info.bundle_count, 2);
        ck_assert_int_eq(info.bundles_used, 1);
        ck_assert_int_eq(watch.lines[FFA_LOG_WARNING], 1 + i);
        ck_assert_msg(strstr(watch.warning, "there is no bundle"), "%s", watch.warning);
        ffa_close(context);
    }
    ffa_free((char *)bundles[1]);
    free(other);
    free(store);
}
END_TEST

/* The store before bundles, bundles in their order; but the open compiler's own kernel first. */
/* What a bundle answered is in the own store afterwards, if that was asked for and can be. */
START_TEST(hits_are_copied_on_demand)
{
    char *source = in_folder("source.ffadb"), *own = in_folder("own.ffadb");
    const char *bundle;
    ffa_context *context;

    context = open_context(source, NULL, 0, 0, FFA_TEST_SLOW_NVRTC);
    ck_assert_int_eq(compile(context, NULL).layer, FFA_LAYER_COMPILED);
    ffa_close(context);
    bundle = export_all(source, folder);

    context = open_context(own, &bundle, 1, 0, NO_NVRTC);
    ck_assert_int_eq(compile(context, NULL).layer, FFA_LAYER_BUNDLE);
    ffa_close(context);
    context = open_context(own, &bundle, 1, FFA_OPEN_COPY_HITS | FFA_OPEN_CACHE_READONLY, NO_NVRTC);
    ck_assert_int_eq(compile(context, NULL).layer, FFA_LAYER_BUNDLE);
    ffa_close(context);
    context = open_context(own, &bundle, 1, FFA_OPEN_COPY_HITS, NO_NVRTC);
    ck_assert_int_eq(compile(context, NULL).layer, FFA_LAYER_BUNDLE); /* not copied so far */
    ffa_close(context);
    context = open_context(own, NULL, 0, FFA_OPEN_NEVER_COMPILE, NO_NVRTC);
    ck_assert_int_eq(compile(context, NULL).layer, FFA_LAYER_STORE);
    ffa_close(context);
    ck_assert_int_eq(watch.lines[FFA_LOG_WARNING], 0);
    ffa_free((char *)(uintptr_t)bundle);
    free(own);
    free(source);
}
END_TEST

START_TEST(layers_have_an_order)
{
    static const char *const toolchains[] = { "nvrtc 12.8 first", "nvrtc 12.9 second" };
    char *stores[2] = { in_folder("a.ffadb"), in_folder("b.ffadb") };
    char *own = in_folder("own.ffadb");
    const char *bundles[3];
    ffa_context *context;

    for (int i = 0; i < 2; i++) {
        struct store_opts opts = { .path = stores[i] };
        struct jit_kernel kernel = { .cubin_bytes = 0 };
        ffa_kernel_info info;
        struct store *store;
        ffa_compiled *compiled;
        ffa_compile_request request = FFA_COMPILE_REQUEST_INIT;

        request.template_name = "attention_forward";
        context = open_context(NULL, NULL, 0, 0, FFA_TEST_SLOW_NVRTC);
        ck_assert_int_eq(ffa_compile(&compiled, context, &request, NULL), FFA_OK);
        info = (ffa_kernel_info)FFA_KERNEL_INFO_INIT;
        ck_assert_int_eq(ffa_compiled_info(compiled, &info, NULL), FFA_OK);
        kernel.info = info;
        text_copy(kernel.info.toolchain, "%s", toolchains[i]);
        kernel.cubin = (void *)(uintptr_t)ffa_compiled_cubin(compiled, &kernel.cubin_bytes);
        kernel.record = (char *)(uintptr_t)ffa_compiled_record(compiled);
        ck_assert_int_eq(store_open(&store, &opts, NULL), FFA_OK);
        store_put(store, &kernel);
        store_close(store);
        ffa_compiled_destroy(compiled);
        ffa_close(context);
        bundles[i] = export_all(stores[i], folder);
    }

    context = open_context(own, bundles, 2, 0, NO_NVRTC);
    ck_assert_str_eq(compile(context, NULL).toolchain, toolchains[0]);
    ffa_close(context);
    bundles[2] = bundles[0];
    context = open_context(own, bundles + 1, 2, 0, NO_NVRTC);
    ck_assert_str_eq(compile(context, NULL).toolchain, toolchains[1]);
    ffa_close(context);

    /* The exact policy finds none of them, and compiles into the own store. */
    context = open_context(own, bundles, 2, FFA_OPEN_EXACT_TOOLCHAIN, FFA_TEST_SLOW_NVRTC);
    ck_assert_int_eq(compile(context, NULL).layer, FFA_LAYER_COMPILED);
    ffa_close(context);
    context = open_context(own, bundles, 2, 0, NO_NVRTC);
    ck_assert_int_eq(compile(context, NULL).layer, FFA_LAYER_STORE);
    ffa_close(context);

    /* What the open compiler built is in the last layer: it is taken from there all the same. */
    ffa_free((char *)bundles[1]);
    bundles[1] = export_all(own, folder);
    context = open_context(stores[0], bundles, 2, 0, FFA_TEST_SLOW_NVRTC);
    ck_assert_int_eq(ffa_context_open_compiler(context, NULL), FFA_OK);
    ck_assert_int_eq(compile(context, NULL).layer, FFA_LAYER_BUNDLE);
    ffa_close(context);
    ck_assert_int_eq(watch.lines[FFA_LOG_WARNING], 0);
    for (int i = 0; i < 2; i++) {
        ffa_free((char *)bundles[i]);
        free(stores[i]);
    }
    free(own);
}
END_TEST

START_TEST(options_are_checked)
{
    ffa_context_opts opts = FFA_CONTEXT_OPTS_INIT;
    const char *bundles[] = { "a", NULL, "" };
    ffa_error err = { FFA_OK, 0, "" };
    ffa_context *context;

    opts.bundle_count = 1;
    ck_assert_int_eq(ffa_open(&context, FFA_DEVICE_CPU, &opts, &err), FFA_INVALID);
    ck_assert_msg(strstr(err.message, "bundles is NULL"), "%s", err.message);
    opts.bundles = bundles;
    opts.bundle_count = 65;
    ck_assert_int_eq(ffa_open(&context, FFA_DEVICE_CPU, &opts, &err), FFA_INVALID);
    ck_assert_msg(strstr(err.message, "bundle_count is 65, not in [0, 64]"), "%s", err.message);
    opts.bundle_count = 2;
    ck_assert_int_eq(ffa_open(&context, FFA_DEVICE_CPU, &opts, &err), FFA_INVALID);
    ck_assert_msg(strstr(err.message, "bundles[1] is NULL"), "%s", err.message);
    bundles[1] = "";
    ck_assert_int_eq(ffa_open(&context, FFA_DEVICE_CPU, &opts, &err), FFA_INVALID);
    ck_assert_msg(strstr(err.message, "bundles[1] is empty"), "%s", err.message);
}
END_TEST

/* ---- faults ---- */

static const enum fault_kind fault_kinds[] = { FAULT_ALLOC, FAULT_SQLITE, FAULT_FILE };

START_TEST(every_failure_is_clean)
{
    char *store = in_folder("a.ffadb"), *target = in_folder("b.ffadb"), *out = in_folder("out");
    long nth;

    fill(store, 0, 2, 1, "nvrtc 13.0 a");
    ck_assert_int_eq(mkdir(out, 0700), 0);
    for (nth = 1; nth < 500; nth++) {
        ffa_error err = { FFA_OK, 0, "" };
        ffa_bundle_difference difference = FFA_BUNDLE_DIFFERENCE_INIT;
        ffa_bundle_verdict verdict = FFA_BUNDLE_VERDICT_INIT;
        ffa_cache *cache = open_cache(store, 0), *into = open_cache(target, FFA_CACHE_CREATE);
        ffa_cache *bundle = NULL;
        char *path = NULL;
        ffa_status rc;
        bool fired;

        fault_arm(fault_kinds[_i], nth);
        rc = ffa_bundle_export(&path, cache, out, NULL, NULL, &err);
        ck_assert_int_eq(rc == FFA_OK, path != NULL);
        if (rc == FFA_OK)
            rc = ffa_cache_open(&bundle, path, 0, &err);
        if (rc == FFA_OK)
            rc = ffa_bundle_verify(bundle, &verdict, NULL, NULL, &err);
        if (rc == FFA_OK)
            rc = ffa_bundle_import(into, bundle, NULL, NULL, &err);
        if (rc == FFA_OK)
            rc = ffa_bundle_diff(into, bundle, &difference, NULL, NULL, &err);
        fired = fault_fired();
        fault_arm(fault_kinds[_i], 0);
        ck_assert_msg(rc == (!fired                           ? FFA_OK
                             : fault_kinds[_i] == FAULT_ALLOC ? FFA_NOMEM
                                                              : FFA_CACHE),
                      "%ld: %s", nth, err.message);
        ck_assert_int_eq(rc == FFA_OK, err.message[0] == '\0');
        ffa_free(path);
        ffa_cache_close(bundle);
        ffa_cache_close(into);
        ffa_cache_close(cache);
        if (!fired)
            break;
    }
    ck_assert_int_gt(nth, 3);
    ck_assert_int_lt(nth, 500);
    /* Nothing is left behind but the bundle. */
    ck_assert_int_ne(rmdir(out), 0);
    free(export_all(store, out));
    ck_assert_int_eq(chdir(out), 0);
    ck_assert_int_eq(system("test $(ls -A | wc -l) = 1"), 0);
    free(out);
    free(target);
    free(store);
}
END_TEST

static int count_of(size_t bytes, size_t row)
{
    return (int)(bytes / row);
}

int main(void)
{
    Suite *suite = suite_create("bundle");
    TCase *tc = tcase_create("bundle");

    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, export_is_reproducible);
    tcase_add_test(tc, bundles_say_what_they_fit);
    tcase_add_test(tc, manifest_is_what_others_compute);
    tcase_add_loop_test(tc, export_and_import_filter, 0,
                        count_of(sizeof filter_cases, sizeof *filter_cases));
    tcase_add_test(tc, two_shards_are_one_whole);
    tcase_add_test(tc, conflicts_keep_what_was_there);
    tcase_add_loop_test(tc, verify_finds_what_changed, 0,
                        count_of(sizeof verify_cases, sizeof *verify_cases));
    tcase_add_loop_test(tc, import_checks_the_manifest, 0,
                        sizeof import_cases / sizeof *import_cases);
    tcase_add_test(tc, import_of_the_wanted_digest_only);
    tcase_add_test(tc, both_can_be_stopped);
    tcase_add_test(tc, outputs_have_sizes);
    tcase_add_test(tc, manifest_guards_against_more_than_accidents);
    tcase_add_test(tc, misuse_is_refused);
    tcase_add_loop_test(tc, bundles_are_trusted_or_ignored, 0,
                        count_of(sizeof trust_cases, sizeof *trust_cases));
    tcase_add_test(tc, replaced_under_a_reader);
    tcase_add_test(tc, overwritten_under_a_reader);
    tcase_add_test(tc, quarantine_is_for_the_own_layer);
    tcase_add_test(tc, names_need_no_care);
    tcase_add_test(tc, bundle_answers_without_a_compiler);
    tcase_add_test(tc, hits_are_copied_on_demand);
    tcase_add_test(tc, layers_have_an_order);
    tcase_add_test(tc, options_are_checked);
    tcase_add_loop_test(tc, every_failure_is_clean, 0,
                        count_of(sizeof fault_kinds, sizeof *fault_kinds));
    tcase_set_timeout(tc, 60);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
