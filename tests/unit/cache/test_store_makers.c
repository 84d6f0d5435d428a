/* SPDX-License-Identifier: Apache-2.0
 *
 * Making stores, and keeping hold of them: processes that replace the same empty or damaged file,
 * what a removed store left, and places that are reached otherwise later: by a relative path from
 * another working folder, by another thread than the first.
 */
#include "cache/flight.h"
#include "cache/store_internal.h"
#include "support/fixture.h"
#include "support/suite.h"
#include "support/tmpdir.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char *folder; /* of the test */
static char *home;   /* folder/cache */
static char *path;   /* folder/cache/kernels.ffadb */

static void setup(void)
{
    folder = tmpdir_make();
    home = tmpdir_path(folder, "cache");
    path = tmpdir_path(home, "kernels.ffadb");
    ck_assert_int_eq(mkdir(home, 0700), 0);
}

static void teardown(void)
{
    free(path);
    free(home);
    tmpdir_remove(folder);
}

static struct store *open_at(const char *at, enum store_mode mode, struct watch *watch)
{
    struct store_opts opts = { .path = at, .mode = mode };
    struct store *store;

    if (watch)
        opts.log = watch_log(watch);
    ck_assert_int_eq(store_open(&store, &opts, NULL), FFA_OK);
    return store;
}

static void put(struct store *store, int number)
{
    struct jit_kernel kernel = fixture_kernel(number, "nvrtc 13.0 a", "sm_90a");

    store_put(store, &kernel);
    jit_kernel_finish(&kernel);
}

static bool has(struct store *store, int number)
{
    struct jit_kernel want = fixture_kernel(number, "nvrtc 13.0 a", "sm_90a"), got;
    struct jit_request request = fixture_request(&want);
    struct store_query query = { .request = &request, .toolchain = "" };
    bool found = store_find(store, &query, &got, NULL) == FFA_OK;

    jit_kernel_finish(&got);
    jit_kernel_finish(&want);
    return found;
}

/* ---- many at once ---- */

enum { PROCESSES = 8 };

/* Processes that open the store at the same time, each of which adds the kernel of its number; how
 * many had an error. */
static int open_at_once(void)
{
    int gate[2], failed = 0;

    ck_assert_int_eq(pipe(gate), 0);
    for (int i = 0; i < PROCESSES; i++)
        if (fork() == 0) {
            struct store *store;
            bool is_bad;
            char byte;

            (void)close(gate[1]);
            (void)!read(gate[0], &byte, 1);
            store = open_at(path, STORE_READWRITE, NULL);
            put(store, i);
            is_bad = store_error_count(store) > 0 || !has(store, i);
            store_close(store);
            _exit(is_bad);
        }
    ck_assert_int_eq(close(gate[0]), 0);
    ck_assert_int_eq(close(gate[1]), 0);
    for (int i = 0; i < PROCESSES; i++) {
        int status;

        ck_assert_int_gt(wait(&status), 0);
        failed += status != 0;
    }
    return failed;
}

static int count_kernels(void)
{
    struct store *store = open_at(path, STORE_READONLY, NULL);
    int count = 0;

    for (int i = 0; i < PROCESSES; i++)
        count += has(store, i);
    store_close(store);
    return count;
}

/* One of them replaces the empty file; the others use what it made. */
START_TEST(makers_of_an_empty_file_agree)
{
    enum { ROUNDS = 4 };

    for (int round = 0; round < ROUNDS; round++) {
        (void)unlink(path);
        tmpdir_write_text(path, "");
        ck_assert_int_eq(chmod(path, 0600), 0);
        ck_assert_int_eq(open_at_once(), 0);
        ck_assert_int_eq(count_kernels(), PROCESSES);
    }
}
END_TEST

/* ---- what a removed store left ---- */

/* A process that was killed in a transaction, with its journal written. */
static void leave_journal(void)
{
    pid_t child = fork();
    int status;

    if (child == 0) {
        struct store *store = open_at(path, STORE_READWRITE, NULL);

        for (int i = 0; i < 2 * PROCESSES; i++)
            put(store, i);
        (void)store_run(store,
                        "PRAGMA cache_size=1; BEGIN IMMEDIATE; UPDATE kernel SET used_s = 1; "
                        "UPDATE blob SET data = zeroblob(length(data))",
                        "test", NULL);
        (void)sqlite3_db_cacheflush(store->db);
        (void)raise(SIGKILL);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFSIGNALED(status));
}

/* The journal is not played back into the next store, which that would damage. */
START_TEST(journal_of_a_removed_store)
{
    char *journal = tmpdir_path(home, "kernels.ffadb-journal");
    struct stat stat;
    sqlite3_stmt *statement;
    struct store *store;

    leave_journal();
    ck_assert_int_eq(lstat(journal, &stat), 0);
    ck_assert_int_gt(stat.st_size, 0);
    ck_assert_int_eq(unlink(path), 0);
    if (_i) {
        tmpdir_write_text(path, "");
        ck_assert_int_eq(chmod(path, 0600), 0);
    }
    store = open_at(path, STORE_READWRITE, NULL);
    put(store, 0);
    ck_assert(has(store, 0));
    ck_assert(!has(store, 1));
    ck_assert_uint_eq(store_error_count(store), 0);
    ck_assert_int_eq(sqlite3_prepare_v2(store->db, "PRAGMA integrity_check", -1, &statement, NULL),
                     SQLITE_OK);
    ck_assert_int_eq(sqlite3_step(statement), SQLITE_ROW);
    ck_assert_str_eq((const char *)sqlite3_column_text(statement, 0), "ok");
    ck_assert_int_eq(sqlite3_finalize(statement), SQLITE_OK);
    store_close(store);
    free(journal);
}
END_TEST

/* ---- for a group ---- */

/* The folders above that are made, too, let the group pass, and no more. */
START_TEST(group_reaches_its_store)
{
    struct store_opts opts = { .mode = STORE_READWRITE, .of_group = true };
    char *above = tmpdir_path(home, "above"), *inner = tmpdir_path(above, "inner");
    char *at = tmpdir_path(inner, "kernels.ffadb");
    mode_t mask = umask(077);
    struct store *store;
    struct stat stat;

    opts.path = at;
    ck_assert_int_eq(store_open(&store, &opts, NULL), FFA_OK);
    (void)umask(mask);
    ck_assert_uint_eq(store_error_count(store), 0);
    store_close(store);
    ck_assert_int_eq(lstat(above, &stat), 0);
    ck_assert_uint_eq(stat.st_mode & 0777, 0710);
    ck_assert_int_eq(lstat(inner, &stat), 0);
    ck_assert_uint_eq(stat.st_mode & 07777, 02770);
    free(at);
    free(inner);
    free(above);
}
END_TEST

/* ---- reached otherwise later ---- */

/* A relative path starts where the working folder was when the store was opened. */
START_TEST(working_folder_changes)
{
    struct flight_opts opts = { .store_path = "k.ffadb" };
    struct store *store;
    struct flight *flight;
    struct flight_lock lock;
    pid_t child;
    int status;

    ck_assert_int_eq(chdir(home), 0);
    store = open_at("k.ffadb", STORE_READWRITE, NULL);
    ck_assert_int_eq(flight_open(&flight, &opts, NULL), FFA_OK);
    put(store, 0);
    ck_assert_int_eq(chdir(folder), 0);
    ck_assert_int_eq(flight_take(flight, "ab00", NULL, &lock), FLIGHT_HELD);
    flight_release(&lock);
    child = fork(); /* opens it again */
    if (child == 0)
        _exit(!has(store, 0));
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    store_close(store);
    flight_close(flight);
    ck_assert_int_ne(access("k.ffadb", F_OK), 0);
    ck_assert_int_ne(access("k.ffadb.locks", F_OK), 0);
    ck_assert_int_eq(access("cache/k.ffadb.locks/ab", F_OK), 0);
    ck_assert_int_eq(chdir("/"), 0);
}
END_TEST

static void *put_late(void *user)
{
    const struct timespec nap = { .tv_nsec = 100000000 };
    struct store *store = user;

    (void)nanosleep(&nap, NULL); /* the first thread ends meanwhile */
    put(store, 1);
    _exit(store_error_count(store) > 0 || !has(store, 0) || !has(store, 1));
}

/* "/proc/self" is the first thread's. */
START_TEST(first_thread_ends)
{
    pid_t child = fork();
    int status;

    if (child == 0) {
        struct store *store = open_at(path, STORE_READWRITE, NULL);
        pthread_t thread;

        put(store, 0);
        if (pthread_create(&thread, NULL, put_late, store) != 0)
            _exit(2);
        pthread_exit(NULL);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
}
END_TEST

/* Whether this process has /proc no longer; false where it may not do that to itself. */
static bool lose_proc(void)
{
    return unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           umount2("/proc", MNT_DETACH) == 0;
}

/* The store is opened again, by the names of its folders. */
START_TEST(proc_goes_away)
{
    enum { NOT_ALLOWED = 3 };
    pid_t child = fork();
    int status;

    if (child == 0) {
        struct store *store = open_at(path, STORE_READWRITE, NULL);

        put(store, 0);
        if (!lose_proc())
            _exit(NOT_ALLOWED);
        put(store, 1);
        _exit(store_error_count(store) != 1 || !has(store, 0) || !has(store, 1));
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status));
    ck_assert(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == NOT_ALLOWED);
}
END_TEST

/* The advice about a relative link's folder is right wherever the reader stands. */
START_TEST(advice_names_the_folder_of_a_link)
{
    char *open = tmpdir_path(folder, "open"), *link = tmpdir_path(home, "link.ffadb");
    struct watch watch = { .warning = "" };

    ck_assert_int_eq(mkdir(open, 0700), 0);
    ck_assert_int_eq(chmod(open, 0777), 0);
    ck_assert_int_eq(symlink("../open/k.ffadb", link), 0);
    {
        char *bundle = tmpdir_path(open, "k.ffadb"), want[4200];

        tmpdir_write_text(bundle, "x");
        store_close(open_at(link, STORE_BUNDLE, &watch));
        (void)snprintf(want, sizeof want, "chmod go-w '%s'", open);
        ck_assert_msg(strstr(watch.warning, want), "%s", watch.warning);
        free(bundle);
    }
    free(link);
    free(open);
}
END_TEST

/* ---- sentences ---- */

/* However long the path, the reason and what to do are there. */
START_TEST(reasons_are_not_cut_off)
{
    struct watch watch = { .warning = "" };
    char name[201], *deep = strdup(home);

    memset(name, 'n', 200);
    name[200] = '\0';
    for (int i = 0; i < 3; i++) {
        char *next = tmpdir_path(deep, name);

        ck_assert_int_eq(mkdir(next, 0700), 0);
        free(deep);
        deep = next;
    }
    {
        char *at = tmpdir_path(deep, "k.ffadb");

        ck_assert_int_eq(chmod(deep, 0777), 0);
        store_close(open_at(at, STORE_READWRITE, &watch));
        ck_assert_msg(strstr(watch.warning, "its folder can be written by others (mode 777); "
                                            "chmod go-w it\""),
                      "%s", watch.warning);
        free(at);
    }
    free(deep);
}
END_TEST

/* A name that leaves no room for the journal's makes no store that nothing can be added to. */
START_TEST(name_leaves_room_for_the_journal)
{
    struct watch watch = { .warning = "" };
    char name[NAME_MAX + 1], *at;
    struct store *store;

    memset(name, 'n', sizeof name);
    name[NAME_MAX - 8 + _i] = '\0';
    at = tmpdir_path(home, name);
    store = open_at(at, STORE_READWRITE, &watch);
    put(store, 0);
    ck_assert(has(store, 0) == !_i);
    ck_assert_int_eq((int)store_error_count(store), _i);
    ck_assert_msg(!_i || strstr(watch.warning, "its name has 248 bytes, more than 247"), "%s",
                  watch.warning);
    ck_assert_int_eq(access(at, F_OK) == 0, !_i);
    store_close(store);
    free(at);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("makers");
    TCase *tc = tcase_create("makers");

    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, makers_of_an_empty_file_agree);
    tcase_add_loop_test(tc, journal_of_a_removed_store, 0, 2);
    tcase_add_test(tc, group_reaches_its_store);
    tcase_add_test(tc, working_folder_changes);
    tcase_add_test(tc, first_thread_ends);
    tcase_add_test(tc, proc_goes_away);
    tcase_add_test(tc, advice_names_the_folder_of_a_link);
    tcase_add_test(tc, reasons_are_not_cut_off);
    tcase_add_loop_test(tc, name_leaves_room_for_the_journal, 0, 2);
    tcase_set_timeout(tc, 60);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
