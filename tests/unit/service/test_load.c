/* SPDX-License-Identifier: Apache-2.0
 *
 * Loading what was resolved, with a driver made up here that refuses cubins by their toolchain: who
 * answers next, what is said, and that nobody's entry is removed.
 */
#include "cache/bundle.h"
#include "service/context.h"
#include "support/fixture.h"
#include "support/suite.h"
#include "support/tmpdir.h"

#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define NEWER "nvrtc 99.0 newer"
#define OLDER "nvrtc 12.8 older"

static char *folder, *store;
static struct watch watch;

static void setup(void)
{
    folder = tmpdir_make();
    store = tmpdir_path(folder, "kernels.ffadb");
    watch = (struct watch){ .warning = "" };
}

static void teardown(void)
{
    free(store);
    tmpdir_remove(folder);
}

static ffa_context_opts options(void)
{
    return fixture_opts(store, FFA_TEST_SLOW_NVRTC, &watch);
}

/* A driver that refuses what a toolchain built; "": what any built. */
struct driver {
    const char *refuses;
    ffa_status fails; /* FFA_OK: it refuses; else it fails for another reason */
    atomic_int loads, refusals;
};

static ffa_status load(void *user, const struct resolved *found, bool *is_refused, ffa_error *err)
{
    struct driver *driver = user;

    atomic_fetch_add(&driver->loads, 1);
    *is_refused = false;
    if (driver->fails != FFA_OK)
        return error_fail(err, driver->fails, 2, "the device is gone");
    if (!driver->refuses || !strstr(found->info.toolchain, driver->refuses))
        return FFA_OK;
    *is_refused = true;
    atomic_fetch_add(&driver->refusals, 1);
    return error_fail(err, FFA_GPU, 209, "no kernel image is available");
}

static struct jit_request request_of(ffa_context *context)
{
    ffa_compile_request public = FFA_COMPILE_REQUEST_INIT;
    struct jit_request request;
    ffa_error err = { FFA_OK, 0, "" };
    uint32_t flags;

    public.template_name = "attention_forward";
    ck_assert_msg(context_import_request(&request, &flags, context, &public, &err) == FFA_OK, "%s",
                  err.message);
    return request;
}

static ffa_status try_load(struct resolved *out, ffa_context *context, struct driver *driver,
                           ffa_error *err)
{
    struct jit_request request = request_of(context);
    ffa_status rc = context_load(out, context, &request, load, driver, err);

    jit_request_finish(&request);
    return rc;
}

/* Put the same kernel, as another toolchain would have built it, into the store at `path`. */
static void plant(const char *path, const char *toolchain)
{
    ffa_context_opts opts = fixture_opts(NULL, FFA_TEST_SLOW_NVRTC, NULL);
    ffa_context *context = fixture_open(&opts);
    struct driver driver = { .refuses = NULL };
    struct jit_kernel kernel;
    struct resolved found;
    struct store *to;

    ck_assert_int_eq(try_load(&found, context, &driver, NULL), FFA_OK);
    kernel = *found.kernel;
    kernel.cubin = malloc(kernel.cubin_bytes);
    memcpy(kernel.cubin, found.cubin, kernel.cubin_bytes);
    if (toolchain) {
        text_copy(kernel.info.toolchain, "%s", toolchain);
        memcpy((char *)kernel.cubin + kernel.cubin_bytes - 2, toolchain + 7, 2);
    }
    ck_assert_int_eq(
        store_open(&to, &(struct store_opts){ .path = path, .mode = STORE_READWRITE }, NULL),
        FFA_OK);
    store_put(to, &kernel);
    ck_assert_uint_eq(store_error_count(to), 0);
    store_close(to);
    free(kernel.cubin);
    ffa_close(context);
}

/* The toolchains of the store's entries, one after the other. */
static int add_toolchain(void *user, const ffa_cache_entry *entry)
{
    text_add(user, "[%.12s]", entry->toolchain);
    return 0;
}

static char *toolchains(void)
{
    struct text text = { 0 };
    ffa_cache *cache;

    ck_assert_int_eq(ffa_cache_open(&cache, store, FFA_CACHE_READONLY, NULL), FFA_OK);
    ck_assert_int_eq(ffa_cache_list(cache, NULL, add_toolchain, &text, NULL), FFA_OK);
    ffa_cache_close(cache);
    return text_take(&text);
}

static void expect_toolchains(int count, const char *one)
{
    char *all = toolchains();
    int found = 0;

    for (const char *at = all; (at = strchr(at, '[')); at++)
        found++;
    ck_assert_msg(found == count && strstr(all, one), "%s", all);
    free(all);
}

START_TEST(a_refused_store_row_is_compiled_here)
{
    ffa_context_opts opts = options();
    struct driver driver = { .refuses = "newer" };
    struct resolved found;
    ffa_context *context;
    ffa_error err = { 0 };

    plant(store, NEWER);
    context = fixture_open(&opts);
    ck_assert_msg(try_load(&found, context, &driver, &err) == FFA_OK, "%s", err.message);
    ck_assert_int_eq(found.info.layer, FFA_LAYER_COMPILED);
    ck_assert_int_eq(driver.loads, 2);
    ck_assert_msg(strstr(watch.warning, "event=kernel_refused") && strstr(watch.warning, NEWER) &&
                      strstr(watch.warning, "no kernel image"),
                  "%s", watch.warning);
    /* The table now has the one that loads. */
    ck_assert_int_eq(try_load(&found, context, &driver, &err), FFA_OK);
    ck_assert_int_eq(found.info.layer, FFA_LAYER_TABLE);
    ck_assert_int_eq(driver.refusals, 1);
    ffa_close(context);

    /* The other's entry is still there; the next process finds ours. */
    expect_toolchains(2, "[nvrtc 99.0 n");
    context = fixture_open(&opts);
    ck_assert_int_eq(try_load(&found, context, &driver, &err), FFA_OK);
    ck_assert_int_eq(found.info.layer, FFA_LAYER_STORE);
    ck_assert_int_eq(driver.refusals, 1);
    ffa_close(context);
}
END_TEST

/* Of the open compiler's own toolchain, the bundle's kernel comes before the store's. */
START_TEST(a_refused_bundle_gives_way_to_the_store)
{
    char *other = tmpdir_path(folder, "other.ffadb"), *bundle;
    ffa_context_opts opts = options();
    struct driver driver = { .refuses = "13.0" };
    struct resolved found;
    ffa_context *context;
    ffa_error err = { 0 };
    ffa_cache *cache;

    plant(other, NULL);
    plant(store, OLDER);
    ck_assert_int_eq(ffa_cache_open(&cache, other, FFA_CACHE_READONLY, &err), FFA_OK);
    ck_assert_int_eq(ffa_bundle_export(&bundle, cache, folder, NULL, NULL, &err), FFA_OK);
    ffa_cache_close(cache);
    opts.bundles = (const char *const[]){ bundle };
    opts.bundle_count = 1;
    opts.flags = FFA_OPEN_NEVER_COMPILE;
    context = fixture_open(&opts);
    ck_assert_int_eq(ffa_context_open_compiler(context, &err), FFA_OK);
    ck_assert_msg(try_load(&found, context, &driver, &err) == FFA_OK, "%s", err.message);
    ck_assert_int_eq(found.info.layer, FFA_LAYER_STORE);
    ck_assert_str_eq(found.info.toolchain, OLDER);
    ck_assert_int_eq(driver.refusals, 1);
    ck_assert_msg(strstr(watch.warning, "layer=bundle"), "%s", watch.warning);
    ffa_close(context);
    expect_toolchains(1, "[nvrtc 12.8 o");
    ffa_free(bundle);
    free(other);
}
END_TEST

START_TEST(all_rows_are_tried_before_a_compile)
{
    ffa_context_opts opts = options();
    struct driver driver = { .refuses = "9" }; /* 99.0 and 98.0 */
    struct resolved found;
    ffa_context *context;

    plant(store, OLDER);
    plant(store, "nvrtc 98.0 newer");
    plant(store, NEWER);
    opts.flags = FFA_OPEN_NEVER_COMPILE;
    context = fixture_open(&opts);
    ck_assert_int_eq(try_load(&found, context, &driver, NULL), FFA_OK);
    ck_assert_str_eq(found.info.toolchain, OLDER);
    ck_assert_int_eq(driver.refusals, 2);
    ffa_close(context);
    expect_toolchains(3, "[nvrtc 99.0 n");
}
END_TEST

/* There is an end to trying: then it is compiled. */
START_TEST(refused_rows_without_end_are_compiled)
{
    ffa_context_opts opts = options();
    struct driver driver = { .refuses = "newer" };
    struct resolved found;
    ffa_context *context;

    for (int i = 0; i < TABLE_REFUSED_MAX + 4; i++) {
        char toolchain[32];

        text_copy(toolchain, "nvrtc 9%02d newer", i);
        plant(store, toolchain);
    }
    context = fixture_open(&opts);
    ck_assert_int_eq(try_load(&found, context, &driver, NULL), FFA_OK);
    ck_assert_int_eq(found.info.layer, FFA_LAYER_COMPILED);
    ck_assert_int_eq(driver.refusals, TABLE_REFUSED_MAX);
    ffa_close(context);
}
END_TEST

START_TEST(where_nothing_may_be_compiled_the_refusal_is_said)
{
    ffa_context_opts opts = options();
    struct driver driver = { .refuses = "newer" };
    struct resolved found;
    ffa_context *context;
    ffa_error err = { 0 };

    plant(store, NEWER);
    opts.flags = FFA_OPEN_NEVER_COMPILE;
    context = fixture_open(&opts);
    ck_assert_int_eq(try_load(&found, context, &driver, &err), FFA_NOT_FOUND);
    ck_assert_msg(strstr(err.message, "the driver refuses kernel ") &&
                      strstr(err.message, NEWER ": no kernel image is available") &&
                      strstr(err.message, "FFA_OPEN_NEVER_COMPILE is set"),
                  "%s", err.message);
    ffa_close(context);
}
END_TEST

START_TEST(a_refused_compile_is_the_end)
{
    ffa_context_opts opts = options();
    ffa_context_stats stats = FFA_CONTEXT_STATS_INIT;
    struct driver driver = { .refuses = "" };
    struct resolved found;
    ffa_context *context;
    ffa_error err = { 0 };

    plant(store, NEWER);
    context = fixture_open(&opts);
    for (int round = 0; round < 2; round++) {
        ck_assert_int_eq(try_load(&found, context, &driver, &err), FFA_UNSUPPORTED);
        ck_assert_msg(strstr(err.message, "the driver refuses kernel ") &&
                          strstr(err.message, "nvrtc 13.0"),
                      "%s", err.message);
        ck_assert_int_eq(err.native, 209);
    }
    ck_assert_int_eq(driver.loads, 3);
    (void)ffa_context_stats_get(context, &stats, NULL);
    ck_assert_uint_eq(stats.compiles, 1);
    ffa_close(context);
}
END_TEST

START_TEST(a_device_that_fails_refuses_nothing)
{
    ffa_context_opts opts = options();
    struct driver driver = { .fails = FFA_GPU };
    struct resolved found;
    ffa_context *context;
    ffa_error err = { 0 };

    plant(store, NEWER);
    context = fixture_open(&opts);
    ck_assert_int_eq(try_load(&found, context, &driver, &err), FFA_GPU);
    ck_assert_str_eq(err.message, "the device is gone");
    ck_assert_int_eq(driver.loads, 1);
    driver.fails = FFA_OK;
    ck_assert_int_eq(try_load(&found, context, &driver, &err), FFA_OK);
    ck_assert_int_eq(found.info.layer, FFA_LAYER_TABLE);
    ck_assert_str_eq(found.info.toolchain, NEWER);
    ffa_close(context);
}
END_TEST

struct loader {
    ffa_context *context;
    struct driver *driver;
    ffa_status rc;
};

static void *load_in_thread(void *argument)
{
    struct loader *loader = argument;
    struct resolved found;

    loader->rc = try_load(&found, loader->context, loader->driver, NULL);
    return NULL;
}

START_TEST(threads_that_meet_a_refusal_compile_once)
{
    enum { THREADS = 8 };
    ffa_context_opts opts = options();
    ffa_context_stats stats = FFA_CONTEXT_STATS_INIT;
    struct driver driver = { .refuses = "newer" };
    struct loader loaders[THREADS];
    pthread_t threads[THREADS];
    ffa_context *context;

    plant(store, NEWER);
    context = fixture_open(&opts);
    for (int i = 0; i < THREADS; i++) {
        loaders[i] = (struct loader){ context, &driver, FFA_BUG };
        ck_assert_int_eq(pthread_create(&threads[i], NULL, load_in_thread, &loaders[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        (void)pthread_join(threads[i], NULL);
        ck_assert_int_eq(loaders[i].rc, FFA_OK);
    }
    (void)ffa_context_stats_get(context, &stats, NULL);
    ck_assert_uint_eq(stats.compiles, 1);
    ffa_close(context);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("load");
    TCase *tcase = tcase_create("load");

    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, a_refused_store_row_is_compiled_here);
    tcase_add_test(tcase, a_refused_bundle_gives_way_to_the_store);
    tcase_add_test(tcase, all_rows_are_tried_before_a_compile);
    tcase_add_test(tcase, refused_rows_without_end_are_compiled);
    tcase_add_test(tcase, where_nothing_may_be_compiled_the_refusal_is_said);
    tcase_add_test(tcase, a_refused_compile_is_the_end);
    tcase_add_test(tcase, a_device_that_fails_refuses_nothing);
    tcase_add_test(tcase, threads_that_meet_a_refusal_compile_once);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
