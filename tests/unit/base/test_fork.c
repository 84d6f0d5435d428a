/* SPDX-License-Identifier: Apache-2.0
 *
 * fork() with contexts, stores and bundles open, at rest and in the middle of work: parent and
 * child both go on, and neither hangs. SIGALRM ends a child that does.
 */
#include "cache/flight.h"

#include "support/fixture.h"
#include "support/suite.h"
#include "support/tmpdir.h"

#include <check.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char *folder, *store, *asked;
static struct watch watch;

static void setup(void)
{
    folder = tmpdir_make();
    store = tmpdir_path(folder, "kernels.ffadb");
    asked = tmpdir_path(folder, "asked");
    watch = (struct watch){ .warning = "" };
    ck_assert_int_eq(setenv("FAKE_NVRTC_LOG", asked, 1), 0);
    ck_assert_int_eq(unsetenv("FAKE_NVRTC_MS"), 0);
    ck_assert_int_eq(unsetenv("FAKE_NVRTC_FAIL"), 0);
}

static void teardown(void)
{
    free(asked);
    free(store);
    tmpdir_remove(folder);
}

static ffa_context *open_context(const char *nvrtc, const char *bundle)
{
    ffa_context_opts opts = fixture_opts(store, nvrtc, &watch);

    opts.bundles = &bundle;
    opts.bundle_count = bundle ? 1 : 0;
    return fixture_open(&opts);
}

static ffa_status compile(ffa_context *context, const char *setting, ffa_layer *layer)
{
    ffa_kernel_info info;
    ffa_status rc = fixture_find(&info, context, setting, NULL);

    *layer = info.layer;
    return rc;
}

static bool is_from(ffa_context *context, const char *setting, ffa_layer want)
{
    ffa_layer layer;

    return compile(context, setting, &layer) == FFA_OK && layer == want;
}

static void wait_until_asked(void)
{
    for (int i = 0; i < 60000 && access(asked, F_OK) != 0; i++)
        (void)usleep(1000);
    ck_assert_int_eq(access(asked, F_OK), 0);
}

static void expect_exit(pid_t child)
{
    int status;

    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s %d",
                  WIFEXITED(status) ? "exit" : "signal",
                  WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

/* ---- at rest ---- */

static int use_everything(ffa_context *context, ffa_cache *cache)
{
    ffa_cache_stats stats = FFA_CACHE_STATS_INIT;
    ffa_context_info info = FFA_CONTEXT_INFO_INIT;

    if (!is_from(context, NULL, FFA_LAYER_TABLE))
        return 1;
    if (!is_from(context, "head_dim=64", FFA_LAYER_BUNDLE))
        return 2;
    if (!is_from(context, "tile_n=64", FFA_LAYER_COMPILED))
        return 3;
    if (ffa_cache_stats_get(cache, &stats, NULL) != FFA_OK || stats.kernels != 2)
        return 4;
    if (ffa_context_info_get(context, &info, NULL) != FFA_OK || strcmp(info.store_state, "ok") != 0)
        return 5;
    if (watch.lines[FFA_LOG_WARNING])
        return 6;
    ffa_cache_close(cache);
    ffa_close(context);
    return 0;
}

START_TEST(child_opens_its_own)
{
    char *other = tmpdir_path(folder, "other.ffadb"), *own = store, *bundle;
    ffa_context *context;
    ffa_cache *cache;
    ffa_layer layer;
    pid_t child;

    store = other;
    context = open_context(FFA_TEST_SLOW_NVRTC, NULL);
    ck_assert_int_eq(compile(context, "head_dim=64", &layer), FFA_OK);
    ffa_close(context);
    ck_assert_int_eq(ffa_cache_open(&cache, other, 0, NULL), FFA_OK);
    ck_assert_int_eq(ffa_bundle_export(&bundle, cache, folder, NULL, NULL, NULL), FFA_OK);
    ffa_cache_close(cache);
    store = own;

    context = open_context(FFA_TEST_SLOW_NVRTC, bundle);
    ck_assert(is_from(context, NULL, FFA_LAYER_COMPILED));
    ck_assert_int_eq(ffa_cache_open(&cache, store, 0, NULL), FFA_OK);
    child = fork();
    if (child == 0) {
        (void)alarm(60);
        _exit(use_everything(context, cache));
    }
    expect_exit(child);
    /* The parent is none the worse, and finds what the child made. */
    ck_assert(is_from(context, NULL, FFA_LAYER_TABLE));
    ck_assert(is_from(context, "tile_n=64", FFA_LAYER_STORE));
    ck_assert(is_from(context, "tile_n=96", FFA_LAYER_COMPILED));
    ck_assert_int_eq(watch.lines[FFA_LOG_WARNING], 0);
    ffa_cache_close(cache);
    ffa_close(context);
    ffa_free(bundle);
    free(other);
}
END_TEST

/* What the parent counted is the parent's to add to the store's sums; the child adds its own. */
START_TEST(child_counts_its_own)
{
    ffa_cache_counters sums = FFA_CACHE_COUNTERS_INIT;
    ffa_context_stats stats = FFA_CONTEXT_STATS_INIT;
    ffa_context *context = open_context(FFA_TEST_SLOW_NVRTC, NULL);
    ffa_cache *cache;
    ffa_layer layer;

    ck_assert_int_eq(compile(context, "tile_n=96", &layer), FFA_OK);
    ffa_close(context);
    context = open_context(FFA_TEST_SLOW_NVRTC, NULL);
    ck_assert(is_from(context, "tile_n=96", FFA_LAYER_STORE));
    ck_assert(is_from(context, "tile_n=64", FFA_LAYER_COMPILED));
    for (int i = 0; i < 2; i++) { /* one that does nothing, one that does something */
        pid_t child = fork();

        if (child == 0) {
            (void)alarm(60);
            if (i == 1 && (!is_from(context, "dtype=fp16", FFA_LAYER_COMPILED) ||
                           !is_from(context, "tile_n=64", FFA_LAYER_TABLE)))
                _exit(1);
            if (ffa_context_stats_get(context, &stats, NULL) != FFA_OK ||
                stats.compiles != (uint64_t)i || stats.hits_table != (uint64_t)i ||
                stats.hits_store != 0 || stats.misses != (uint64_t)i)
                _exit(2);
            ffa_close(context);
            _exit(0);
        }
        expect_exit(child);
    }
    ck_assert_int_eq(ffa_context_stats_get(context, &stats, NULL), FFA_OK);
    ck_assert_uint_eq(stats.compiles, 1);
    ck_assert_uint_eq(stats.hits_store, 1);
    ffa_close(context);
    ck_assert_int_eq(ffa_cache_open(&cache, store, 0, NULL), FFA_OK);
    ck_assert_int_eq(ffa_cache_counters_get(cache, &sums, NULL), FFA_OK);
    ck_assert_uint_eq(sums.sessions, 3);
    ck_assert_uint_eq(sums.compiles, 3);
    ck_assert_uint_eq(sums.misses, 3);
    ck_assert_uint_eq(sums.hits_store, 1);
    ck_assert_uint_eq(sums.hits_table, 1);
    ffa_cache_close(cache);
}
END_TEST

/* The real NVRTC, used by the parent before and by the child after. */
START_TEST(child_compiles_after_the_parent)
{
    ffa_context *context = open_context(NULL, NULL);
    pid_t child;

    ck_assert(is_from(context, NULL, FFA_LAYER_COMPILED));
    child = fork();
    if (child == 0) {
        (void)alarm(60);
        _exit(is_from(context, "head_dim=64", FFA_LAYER_COMPILED) ? 0 : 1);
    }
    expect_exit(child);
    ck_assert(is_from(context, "head_dim=64", FFA_LAYER_STORE));
    ffa_close(context);
}
END_TEST

/* ---- in the middle ---- */

static void *compile_one(void *context)
{
    ffa_layer layer;

    ck_assert_int_eq(compile(context, NULL, &layer), FFA_OK);
    return NULL;
}

/* Another thread compiles: the child refuses to, the same kernel and others, and does not hang. */
START_TEST(forked_amid_a_compile)
{
    ffa_context *context = open_context(FFA_TEST_SLOW_NVRTC, NULL);
    pthread_t thread;
    ffa_layer layer;
    pid_t child;

    ck_assert(is_from(context, "head_dim=64", FFA_LAYER_COMPILED));
    ffa_close(context);
    context = open_context(FFA_TEST_SLOW_NVRTC, NULL);
    ck_assert_int_eq(unlink(asked), 0);
    ck_assert_int_eq(setenv("FAKE_NVRTC_MS", "1000", 1), 0);
    ck_assert_int_eq(pthread_create(&thread, NULL, compile_one, context), 0);
    wait_until_asked();
    child = fork();
    if (child == 0) {
        (void)alarm(60);
        if (!is_from(context, "head_dim=64", FFA_LAYER_STORE))
            _exit(1);
        /* Its own lock is waited for: the parent is still at it, and then it is in the store. */
        if (!is_from(context, NULL, FFA_LAYER_STORE))
            _exit(2);
        if (compile(context, "tile_n=64", &layer) != FFA_UNSUPPORTED)
            _exit(3);
        ffa_close(context);
        _exit(0);
    }
    expect_exit(child);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert(is_from(context, "tile_n=64", FFA_LAYER_COMPILED)); /* the parent goes on */
    ffa_close(context);
}
END_TEST

struct busy {
    ffa_context *context;
    ffa_cache *cache;
    atomic_bool stop;
};

static void *be_busy(void *argument)
{
    ffa_cache_stats stats = FFA_CACHE_STATS_INIT;
    struct busy *busy = argument;
    ffa_layer layer;

    for (int i = 0; !busy->stop; i++) {
        char setting[32];

        (void)ffa_cache_stats_get(busy->cache, &stats, NULL);
        text_copy(setting, "tile_n=%d", 16 + 16 * (i % 16));
        (void)compile(busy->context, setting, &layer);
        ffa_close(open_context(FFA_TEST_SLOW_NVRTC, NULL));
    }
    return NULL;
}

/* glibc's allocator is whole in the child of a process with threads; that of GCC's AddressSanitizer
 * is not: a lock of it that another thread held stays locked (as one of SizeClassAllocator64 did
 * here, below SQLite's malloc). There the child is left as the fork's hooks make it. */
#ifdef __SANITIZE_ADDRESS__
enum { CHILD_MAY_ALLOCATE = 0 };
#else
enum { CHILD_MAY_ALLOCATE = 1 };
#endif

/* Threads at work in every part while the process forks, again and again. */
START_TEST(forked_amid_everything)
{
    struct busy busy = { .context = open_context(FFA_TEST_SLOW_NVRTC, NULL) };
    pthread_t threads[2];
    ffa_layer layer;

    ck_assert(is_from(busy.context, NULL, FFA_LAYER_COMPILED));
    ck_assert_int_eq(ffa_cache_open(&busy.cache, store, 0, NULL), FFA_OK);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, be_busy, &busy), 0);
    for (int round = 0; round < 15; round++) {
        pid_t child = fork();

        if (child == 0) {
            ffa_cache_stats stats = FFA_CACHE_STATS_INIT;
            ffa_status rc;

            (void)alarm(60);
            if (!CHILD_MAY_ALLOCATE)
                _exit(0);
            if (!is_from(busy.context, NULL, FFA_LAYER_TABLE))
                _exit(1);
            if (ffa_cache_stats_get(busy.cache, &stats, NULL) != FFA_OK)
                _exit(2);
            rc = compile(busy.context, "head_dim=64", &layer);
            if (rc != FFA_OK && rc != FFA_UNSUPPORTED)
                _exit(3);
            _exit(0);
        }
        expect_exit(child);
    }
    busy.stop = true;
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    ffa_cache_close(busy.cache);
    ffa_close(busy.context);
    ck_assert_msg(watch.lines[FFA_LOG_WARNING] == 0, "%s", watch.warning);
}
END_TEST

/* A child lives on after its parent was killed while it held a lock: the lock is not the child's.
 */
START_TEST(lock_ends_with_its_holder)
{
    struct flight_opts opts = { .store_path = store };
    char *ready = tmpdir_path(folder, "ready");
    struct flight_lock lock;
    struct flight *flight;
    int64_t started;
    pid_t parent;
    int status, end[2];

    ck_assert_int_eq(pipe(end), 0);
    parent = fork();
    if (parent == 0) {
        if (flight_open(&flight, &opts, NULL) != FFA_OK ||
            flight_take(flight, "0123", NULL, &lock) != FLIGHT_HELD)
            _exit(1);
        if (fork() == 0) {
            char byte;

            (void)close(end[1]);
            tmpdir_write_text(ready, "");
            (void)read(end[0], &byte, 1); /* until the test is over */
            _exit(0);
        }
        (void)pause();
    }
    for (int i = 0; i < 60000 && access(ready, F_OK) != 0; i++)
        (void)usleep(1000);
    ck_assert_int_eq(kill(parent, SIGKILL), 0);
    ck_assert_int_eq(waitpid(parent, &status, 0), parent);
    ck_assert_int_eq(flight_open(&flight, &opts, NULL), FFA_OK);
    started = clock_us();
    ck_assert_int_eq(flight_take(flight, "0123", NULL, &lock), FLIGHT_HELD);
    ck_assert_int_lt(clock_us() - started, 30000000);
    ck_assert_int_eq(close(end[1]), 0);
    ck_assert_int_eq(close(end[0]), 0);
    flight_release(&lock);
    flight_close(flight);
    free(ready);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("fork");
    TCase *tc = tcase_create("fork");

    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, child_opens_its_own);
    tcase_add_test(tc, child_counts_its_own);
    tcase_add_test(tc, forked_amid_a_compile);
    tcase_add_test(tc, forked_amid_everything);
    tcase_add_test(tc, lock_ends_with_its_holder);
    if (watch_has_nvrtc())
        tcase_add_test(tc, child_compiles_after_the_parent);
    tcase_set_timeout(tc, 180);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
