/* SPDX-License-Identifier: Apache-2.0
 *
 * Processes that want the same kernel at once: one compiles, whatever happens to it or its lock.
 * The compiler is one that sleeps and counts, so that these tests need no NVRTC and no luck.
 */
#include "cache/flight.h"

#include "support/fixture.h"
#include "support/suite.h"
#include "support/tmpdir.h"

#include <check.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define KEY "0123456789abcdef0123456789abcdef"

enum { PROCESSES = 8 };

static char *folder, *home, *store, *locks, *asked;
static struct watch watch;

static void setup(void)
{
    folder = tmpdir_make();
    home = tmpdir_path(folder, "cache");
    store = tmpdir_path(home, "kernels.ffadb");
    locks = tmpdir_path(home, "kernels.ffadb.locks");
    asked = tmpdir_path(folder, "asked");
    watch = (struct watch){ .warning = "" };
    ck_assert_int_eq(setenv("FAKE_NVRTC_LOG", asked, 1), 0);
    ck_assert_int_eq(unsetenv("FAKE_NVRTC_MS"), 0);
    ck_assert_int_eq(unsetenv("FAKE_NVRTC_FAIL"), 0);
    ck_assert_int_eq(unsetenv("FAKE_NVRTC_GATE"), 0);
    ck_assert_int_eq(unsetenv("FAKE_NVRTC_FREE"), 0);
}

static void teardown(void)
{
    free(asked);
    free(locks);
    free(store);
    free(home);
    tmpdir_remove(folder);
}

static ffa_context *open_context(uint32_t lock_wait_ms)
{
    ffa_context_opts opts = fixture_opts(store, FFA_TEST_SLOW_NVRTC, &watch);

    opts.lock_wait_ms = lock_wait_ms;
    return fixture_open(&opts);
}

static ffa_layer compile(ffa_context *context, const char *setting)
{
    ffa_kernel_info info;

    (void)fixture_find(&info, context, setting, NULL);
    return info.layer;
}

static void wait_until_asked(int times)
{
    for (int i = 0; i < 60000 && tmpdir_lines(asked) < times; i++)
        (void)usleep(1000);
    ck_assert_int_ge(tmpdir_lines(asked), times);
}

/* What processes tell each other. */
struct shared {
    pthread_barrier_t start;
    atomic_int stored, compiled, wrong, waits, misses, warnings;
};

static struct shared *share(unsigned processes)
{
    struct shared *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_barrierattr_t attributes;

    ck_assert_ptr_ne(shared, MAP_FAILED);
    (void)pthread_barrierattr_init(&attributes);
    (void)pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    ck_assert_int_eq(pthread_barrier_init(&shared->start, &attributes, processes), 0);
    (void)pthread_barrierattr_destroy(&attributes);
    return shared;
}

/* Each in a process: open, want the kernel, say where it came from. */
static struct shared *race(int processes)
{
    struct shared *shared = share((unsigned)processes);
    pid_t children[PROCESSES];
    int status;

    for (int i = 0; i < processes; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            ffa_context *context = open_context(0);
            ffa_context_stats stats;
            ffa_layer layer;

            (void)pthread_barrier_wait(&shared->start);
            layer = compile(context, NULL);
            stats = fixture_stats(context);
            shared->stored += layer == FFA_LAYER_STORE;
            shared->compiled += layer == FFA_LAYER_COMPILED;
            shared->wrong += layer != FFA_LAYER_STORE && layer != FFA_LAYER_COMPILED;
            shared->waits += (int)stats.lock_waits;
            shared->misses += (int)stats.misses;
            shared->warnings += watch.lines[FFA_LOG_WARNING];
            ffa_close(context);
            _exit(0);
        }
    }
    for (int i = 0; i < processes; i++) {
        ck_assert_int_eq(waitpid(children[i], &status, 0), children[i]);
        ck_assert_int_eq(status, 0);
    }
    return shared;
}

static void stop_sharing(struct shared *shared)
{
    (void)pthread_barrier_destroy(&shared->start);
    (void)munmap(shared, sizeof *shared);
}

/* A process that takes the lock of KEY and keeps it until it is killed. */
static pid_t hold(void)
{
    struct flight_opts opts = { .store_path = store };
    struct shared *shared = share(2);
    pid_t child = fork();

    if (child == 0) {
        struct flight_lock lock;
        struct flight *flight;

        (void)mkdir(home, 0700);
        if (flight_open(&flight, &opts, NULL) != FFA_OK ||
            flight_take(flight, KEY, NULL, &lock) != FLIGHT_HELD)
            _exit(1);
        (void)pthread_barrier_wait(&shared->start);
        (void)pause();
    }
    (void)pthread_barrier_wait(&shared->start);
    stop_sharing(shared);
    return child;
}

static void kill_child(pid_t child)
{
    int status;

    ck_assert_int_eq(kill(child, SIGKILL), 0);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFSIGNALED(status));
}

/* ---- one compile ---- */

START_TEST(eight_processes_compile_once)
{
    struct shared *shared;

    ck_assert_int_eq(setenv("FAKE_NVRTC_MS", "1000", 1), 0);
    shared = race(PROCESSES);
    ck_assert_int_eq(tmpdir_lines(asked), 1);
    ck_assert_int_eq(shared->compiled, 1);
    ck_assert_int_eq(shared->stored, PROCESSES - 1);
    ck_assert_int_eq(shared->wrong + shared->warnings, 0);
    ck_assert_int_eq(shared->misses, 1);
    ck_assert_int_gt(shared->waits, 0);
    stop_sharing(shared);
}
END_TEST

/* However close they come: no sleep in the compiler, many rounds. */
START_TEST(quick_compiles_happen_once)
{
    for (int round = 0; round < 8; round++) {
        struct shared *shared = race(4);

        ck_assert_int_eq(shared->compiled, 1);
        ck_assert_int_eq(shared->stored, 3);
        ck_assert_int_eq(tmpdir_lines(asked), round + 1);
        ck_assert_int_eq(shared->wrong + shared->warnings, 0);
        stop_sharing(shared);
        ck_assert_int_eq(unlink(store), 0);
    }
}
END_TEST

struct crowd {
    ffa_context *context;
    pthread_barrier_t start;
    atomic_int right;
};

static void *want_one(void *argument)
{
    struct crowd *crowd = argument;
    ffa_layer layer;

    (void)pthread_barrier_wait(&crowd->start);
    layer = compile(crowd->context, NULL);
    crowd->right += layer == FFA_LAYER_TABLE || layer == FFA_LAYER_COMPILED;
    return NULL;
}

/* Threads wait for the entry of the table: only one of them touches a lock. */
START_TEST(threads_share_one_lock)
{
    struct crowd crowd = { .context = open_context(0) };
    pthread_t threads[PROCESSES];

    ck_assert_int_eq(setenv("FAKE_NVRTC_MS", "50", 1), 0);
    (void)pthread_barrier_init(&crowd.start, NULL, PROCESSES);
    for (int i = 0; i < PROCESSES; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, want_one, &crowd), 0);
    for (int i = 0; i < PROCESSES; i++)
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    (void)pthread_barrier_destroy(&crowd.start);
    ck_assert_int_eq(crowd.right, PROCESSES);
    ck_assert_int_eq(tmpdir_lines(asked), 1);
    ck_assert_uint_eq(fixture_stats(crowd.context).lock_waits, 0);
    ffa_close(crowd.context);
}
END_TEST

/* ---- the holder ---- */

/* Its compile would take ten minutes: killed, and the next one gets on with its own at once. */
START_TEST(killed_holder_frees_the_lock)
{
    ffa_context *context;
    int64_t started;
    pid_t child;

    ck_assert_int_eq(setenv("FAKE_NVRTC_MS", "600000", 1), 0);
    child = fork();
    if (child == 0) {
        (void)compile(open_context(0), NULL);
        _exit(1);
    }
    wait_until_asked(1);
    ck_assert_int_eq(setenv("FAKE_NVRTC_MS", "0", 1), 0);
    context = open_context(0);
    kill_child(child);
    started = clock_us();
    ck_assert_int_eq(compile(context, NULL), FFA_LAYER_COMPILED);
    ck_assert_int_lt(clock_us() - started, 30000000);
    ck_assert_int_eq(tmpdir_lines(asked), 2);
    ffa_close(context);
    ck_assert_int_eq(watch.lines[FFA_LOG_WARNING], 0);
}
END_TEST

/* A holder, and the one that waits for it. */
struct held {
    const struct flight *flight;
    pid_t holder;
};

static void *kill_when_waited_for(void *argument)
{
    const struct held *held = argument;

    while (flight_counts(held->flight).waits == 0)
        (void)usleep(1000);
    kill_child(held->holder);
    return NULL;
}

/* The same for one who is waiting already. */
START_TEST(killed_holder_wakes_the_waiting)
{
    struct flight_opts opts = { .store_path = store, .log = watch_log(&watch) };
    struct flight_counts counts;
    struct flight_lock lock;
    struct flight *flight;
    struct held held = { .holder = hold() };
    pthread_t killer;
    const int64_t started = clock_us();

    ck_assert_int_eq(flight_open(&flight, &opts, NULL), FFA_OK);
    held.flight = flight;
    ck_assert_int_eq(pthread_create(&killer, NULL, kill_when_waited_for, &held), 0);
    ck_assert_int_eq(flight_take(flight, KEY, NULL, &lock), FLIGHT_HELD);
    ck_assert_int_lt(clock_us() - started, 30000000);
    ck_assert_int_eq(pthread_join(killer, NULL), 0);
    counts = flight_counts(flight);
    ck_assert_uint_eq(counts.waits, 1);
    ck_assert_uint_eq(counts.timeouts + counts.errors, 0);
    ck_assert_uint_gt(counts.waited_us, 0);
    flight_release(&lock);
    ck_assert_int_eq(flight_take(flight, KEY, NULL, &lock), FLIGHT_HELD);
    flight_release(&lock);
    flight_release(&lock);
    flight_close(flight);
    ck_assert_int_eq(watch.lines[FFA_LOG_WARNING], 0);
}
END_TEST

/* A holder that never ends: wait, compile here, go on; the other's insert later is as good. */
START_TEST(wait_is_bounded)
{
    ffa_context_stats stats;
    ffa_context *context;
    int64_t started;
    pid_t child;

    ck_assert_int_eq(setenv("FAKE_NVRTC_MS", "600000", 1), 0);
    child = fork();
    if (child == 0) {
        (void)compile(open_context(0), NULL);
        _exit(1);
    }
    wait_until_asked(1);
    ck_assert_int_eq(setenv("FAKE_NVRTC_MS", "0", 1), 0);
    context = open_context(300);
    started = clock_us();
    ck_assert_int_eq(compile(context, NULL), FFA_LAYER_COMPILED);
    ck_assert_int_ge(clock_us() - started, 300000);
    ck_assert_int_lt(clock_us() - started, 30000000);
    stats = fixture_stats(context);
    ck_assert_uint_eq(stats.lock_waits, 1);
    ck_assert_uint_eq(stats.lock_timeouts, 1);
    ck_assert_uint_ge(stats.waited_us, 300000);
    ck_assert_uint_eq(stats.lock_errors, 0);
    ck_assert_int_eq(watch.lines[FFA_LOG_WARNING], 1);
    ck_assert_msg(strstr(watch.warning, "event=lock_timeout"), "%s", watch.warning);
    ffa_close(context);
    kill_child(child);
    context = open_context(0); /* it was stored all the same */
    ck_assert_int_eq(compile(context, NULL), FFA_LAYER_STORE);
    ffa_close(context);
}
END_TEST

/* Both compile (the wait of one expired), both insert: one row, and it is found. */
START_TEST(insert_lost_to_another_writer)
{
    ffa_cache_stats stats = FFA_CACHE_STATS_INIT;
    char *gate = tmpdir_path(folder, "gate");
    ffa_context *context;
    ffa_cache *cache;
    pid_t child;
    int status;

    ck_assert_int_eq(setenv("FAKE_NVRTC_GATE", gate, 1), 0);
    child = fork();
    if (child == 0)
        _exit(compile(open_context(0), NULL) == FFA_LAYER_COMPILED ? 0 : 1);
    wait_until_asked(1);
    context = open_context(1);
    ck_assert_int_eq(unsetenv("FAKE_NVRTC_GATE"), 0);
    ck_assert_int_eq(compile(context, NULL), FFA_LAYER_COMPILED);
    ck_assert_uint_eq(fixture_stats(context).lock_timeouts, 1);
    tmpdir_write_text(gate, "open");
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    ck_assert_uint_eq(fixture_stats(context).store_errors, 0);
    ffa_close(context);
    ck_assert_int_eq(tmpdir_lines(asked), 2);
    ck_assert_int_eq(ffa_cache_open(&cache, store, 0, NULL), FFA_OK);
    ck_assert_int_eq(ffa_cache_stats_get(cache, &stats, NULL), FFA_OK);
    ck_assert_int_eq(stats.kernels, 1);
    ck_assert_int_eq(stats.blobs, 1);
    ffa_cache_close(cache);
    free(gate);
}
END_TEST

/* ---- the files ---- */

START_TEST(lock_files_stay_and_are_few)
{
    ffa_context *context = open_context(0);
    char name[8];
    struct stat stat;

    ck_assert_int_eq(compile(context, NULL), FFA_LAYER_COMPILED);
    ck_assert_int_eq(compile(context, "head_dim=64"), FFA_LAYER_COMPILED);
    ffa_close(context);
    ck_assert_int_eq(lstat(locks, &stat), 0);
    ck_assert_uint_eq(stat.st_mode & 0777, 0700);
    ck_assert_uint_le(stat.st_nlink, 2);
    for (int i = 0, files = 0; i < 256; i++) {
        char *file;

        text_copy(name, "%02x", (unsigned)i);
        file = tmpdir_path(locks, name);
        if (lstat(file, &stat) == 0) {
            files++;
            ck_assert_uint_eq(stat.st_mode & 0777, 0600);
            ck_assert_int_eq(stat.st_size, 0);
        }
        free(file);
        ck_assert_int_le(files, 2);
        ck_assert(files > 0 || i < 255);
    }
}
END_TEST

/* A wait that is cut ends at once, without a warning, and nothing is held. */
START_TEST(a_wait_can_be_cut)
{
    struct flight_opts opts = { .store_path = store, .wait_ms = 60000, .log = watch_log(&watch) };
    struct flight_lock first, second;
    int64_t started = clock_us();
    atomic_bool is_cut = true;
    struct flight *flight;

    ck_assert_int_eq(mkdir(home, 0700), 0);
    ck_assert_int_eq(flight_open(&flight, &opts, NULL), FFA_OK);
    ck_assert_int_eq(flight_take(flight, KEY, &is_cut, &first), FLIGHT_HELD); /* no wait, no cut */
    ck_assert_int_eq(flight_take(flight, KEY, &is_cut, &second), FLIGHT_CUT);
    ck_assert_int_eq(second.file, -1);
    ck_assert_int_lt(clock_us() - started, 30000000);
    ck_assert_int_eq(watch.lines[FFA_LOG_WARNING], 0);
    ck_assert_uint_eq(flight_counts(flight).timeouts, 0);
    flight_release(&second);
    flight_release(&first);
    flight_close(flight);
}
END_TEST

/* Who waits for a file that is removed under it takes the lock of the new one. */
START_TEST(deleted_lock_file_is_harmless)
{
    struct flight_opts opts = { .store_path = store, .wait_ms = 200, .log = watch_log(&watch) };
    struct flight_lock first, second;
    struct flight *flight;
    char *file = tmpdir_path(locks, "01");

    ck_assert_int_eq(mkdir(home, 0700), 0);
    ck_assert_int_eq(flight_open(&flight, &opts, NULL), FFA_OK);
    ck_assert_int_eq(flight_take(flight, KEY, NULL, &first), FLIGHT_HELD);
    ck_assert_int_eq(flight_take(flight, KEY, NULL, &second), FLIGHT_TIMEOUT);
    ck_assert_int_eq(second.file, -1);
    ck_assert_int_eq(unlink(file), 0);
    ck_assert_int_eq(flight_take(flight, KEY, NULL, &second),
                     FLIGHT_HELD); /* one compile too many */
    flight_release(&first);
    ck_assert_int_eq(flight_take(flight, KEY, NULL, &first), FLIGHT_TIMEOUT);
    flight_release(&second);
    ck_assert_int_eq(unlink(file), 0);
    ck_assert_int_eq(rmdir(locks), 0);
    ck_assert_int_eq(flight_take(flight, KEY, NULL, &first), FLIGHT_HELD);
    flight_release(&first);
    flight_close(flight);
    free(file);
}
END_TEST

static void *unlink_later(void *argument)
{
    (void)usleep(100000);
    (void)unlink(argument);
    return NULL;
}

/* The file goes while its holder compiles and another waits: both are served, nothing hangs. */
START_TEST(lock_file_deleted_during_a_compile)
{
    char *pattern[256], name[8];
    pid_t remover =
        -1; /* a process: with a thread beside it, race() would fork into a held allocator */
    struct shared *shared;

    ck_assert_int_eq(setenv("FAKE_NVRTC_MS", "300", 1), 0);
    shared = race(1); /* so that the file is there; whichever of the 256 it is */
    stop_sharing(shared);
    ck_assert_int_eq(unlink(store), 0);
    for (int i = 0; i < 256; i++) {
        text_copy(name, "%02x", (unsigned)i);
        pattern[i] = tmpdir_path(locks, name);
        if (access(pattern[i], F_OK) == 0 && (remover = fork()) == 0) {
            (void)unlink_later(pattern[i]);
            _exit(0);
        }
    }
    shared = race(3);
    ck_assert_int_gt(remover, 0);
    ck_assert_int_eq(waitpid(remover, NULL, 0), remover);
    ck_assert_int_eq(shared->wrong + shared->warnings, 0);
    ck_assert_int_eq(shared->stored + shared->compiled, 3);
    ck_assert_int_le(shared->compiled, 2);
    stop_sharing(shared);
    for (int i = 0; i < 256; i++)
        free(pattern[i]);
}
END_TEST

/* No folder for locks: compile without, warn once, count each. */
START_TEST(no_locks_no_harm)
{
    ffa_context *context = open_context(0);

    tmpdir_write_text(locks, "in the way");
    ck_assert_int_eq(compile(context, NULL), FFA_LAYER_COMPILED);
    ck_assert_int_eq(compile(context, "head_dim=64"), FFA_LAYER_COMPILED);
    ck_assert_uint_eq(fixture_stats(context).lock_errors, 2);
    ck_assert_uint_eq(fixture_stats(context).store_errors, 0);
    ck_assert_int_eq(watch.lines[FFA_LOG_WARNING], 1);
    ck_assert_msg(strstr(watch.warning, "event=lock_unavailable"), "%s", watch.warning);
    ffa_close(context);
    context = open_context(0);
    ck_assert_int_eq(compile(context, NULL), FFA_LAYER_STORE);
    ffa_close(context);
}
END_TEST

/* A link where a lock file should be is not followed. */
START_TEST(linked_lock_file_is_refused)
{
    struct flight_opts opts = { .store_path = store, .log = watch_log(&watch) };
    char *file = tmpdir_path(locks, "01"), *target = tmpdir_path(folder, "target");
    struct flight_lock lock;
    struct flight *flight;

    ck_assert_int_eq(mkdir(home, 0700), 0);
    ck_assert_int_eq(mkdir(locks, 0700), 0);
    ck_assert_int_eq(symlink(target, file), 0);
    ck_assert_int_eq(flight_open(&flight, &opts, NULL), FFA_OK);
    ck_assert_int_eq(flight_take(flight, KEY, NULL, &lock), FLIGHT_UNAVAILABLE);
    ck_assert_int_ne(access(target, F_OK), 0);
    flight_close(flight);
    free(target);
    free(file);
}
END_TEST

/* Neither a read-only store nor never-compile nor memory only asks for a lock. */
START_TEST(only_who_compiles_for_the_store_locks)
{
    ffa_context_opts opts = fixture_opts(store, FFA_TEST_SLOW_NVRTC, &watch);
    ffa_context *context;
    ffa_error err = { FFA_OK, 0, "" };

    ffa_close(open_context(0));
    for (int i = 0; i < 3; i++) {
        opts.cache_path = i ? store : NULL;
        opts.flags = (uint32_t[]){ 0, FFA_OPEN_CACHE_READONLY, FFA_OPEN_NEVER_COMPILE }[i];
        ck_assert_int_eq(ffa_open(&context, FFA_DEVICE_CPU, &opts, &err), FFA_OK);
        ck_assert_int_eq(compile(context, NULL), i < 2 ? FFA_LAYER_COMPILED : FFA_LAYER_NONE);
        ck_assert_uint_eq(fixture_stats(context).lock_errors + fixture_stats(context).lock_waits,
                          0);
        ffa_close(context);
    }
    ck_assert_int_ne(access(locks, F_OK), 0);
    ck_assert_int_eq(watch.lines[FFA_LOG_WARNING], 0);
}
END_TEST

static const enum fault_kind fault_kinds[] = { FAULT_ALLOC, FAULT_FILE };

START_TEST(every_failure_is_clean)
{
    struct flight_opts opts = { .store_path = store };
    long nth;

    ck_assert_int_eq(mkdir(home, 0700), 0);
    for (nth = 1; nth < 50; nth++) {
        struct flight_lock lock = { .file = -1 };
        struct flight *flight;
        ffa_status rc;
        bool fired;

        fault_arm(fault_kinds[_i], nth);
        rc = flight_open(&flight, &opts, NULL);
        if (rc == FFA_OK)
            (void)flight_take(flight, KEY, NULL, &lock);
        fired = fault_fired();
        fault_arm(fault_kinds[_i], 0);
        ck_assert(rc == FFA_OK || (rc == FFA_NOMEM && !flight));
        flight_release(&lock);
        flight_close(flight);
        if (!fired)
            break;
    }
    ck_assert_int_gt(nth, 1);
    ck_assert_int_lt(nth, 50);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("flight");
    TCase *tc = tcase_create("flight");

    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, eight_processes_compile_once);
    tcase_add_test(tc, quick_compiles_happen_once);
    tcase_add_test(tc, threads_share_one_lock);
    tcase_add_test(tc, killed_holder_frees_the_lock);
    tcase_add_test(tc, killed_holder_wakes_the_waiting);
    tcase_add_test(tc, wait_is_bounded);
    tcase_add_test(tc, insert_lost_to_another_writer);
    tcase_add_test(tc, lock_files_stay_and_are_few);
    tcase_add_test(tc, a_wait_can_be_cut);
    tcase_add_test(tc, deleted_lock_file_is_harmless);
    tcase_add_test(tc, lock_file_deleted_during_a_compile);
    tcase_add_test(tc, no_locks_no_harm);
    tcase_add_test(tc, linked_lock_file_is_refused);
    tcase_add_test(tc, only_who_compiles_for_the_store_locks);
    tcase_add_loop_test(tc, every_failure_is_clean, 0,
                        (int)(sizeof fault_kinds / sizeof *fault_kinds));
    tcase_set_timeout(tc, 180);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
