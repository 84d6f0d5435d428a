/* SPDX-License-Identifier: Apache-2.0
 *
 * The store against what others, the system and a file's own schema can do to it: folders that are
 * exchanged while it is opened, limits to the size of files, views without end, FIFOs, network file
 * systems, places that all users share, and what killed processes leave behind.
 */
#include "base/digest.h"
#include "base/file_limit.h"
#include "cache/bundle.h"
#include "cache/flight.h"
#include "support/fixture.h"
#include "support/suite.h"
#include "support/tmpdir.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { NOBODY = 65534 };

static char *folder; /* of the test */
static char *home;   /* folder/cache */
static char *path;   /* folder/cache/kernels.ffadb */

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

static struct store *open_at(const char *at, enum store_mode mode, struct watch *watch)
{
    struct store_opts opts = { .path = at, .mode = mode };
    struct store *store;

    if (watch)
        opts.log = watch_log(watch);
    ck_assert_int_eq(store_open(&store, &opts, NULL), FFA_OK);
    return store;
}

/* Kernel 0 of the user whose mark is the first byte of its cubin. */
static struct jit_kernel kernel_of(unsigned char mark)
{
    struct jit_kernel kernel = fixture_kernel(0, "nvrtc 13.0 a", "sm_90a");

    *(unsigned char *)kernel.cubin = mark;
    return kernel;
}

static void fill_at(const char *at, unsigned char mark)
{
    struct store *store = open_at(at, STORE_READWRITE, NULL);
    struct jit_kernel kernel = kernel_of(mark);

    store_put(store, &kernel);
    ck_assert_uint_eq(store_error_count(store), 0);
    store_close(store);
    jit_kernel_finish(&kernel);
}

/* The mark of what the store has for kernel 0; -1: nothing. */
static int mark_in(struct store *store)
{
    struct jit_kernel want = kernel_of(0), got;
    struct jit_request request = fixture_request(&want);
    struct store_query query = { .request = &request, .toolchain = "" };
    int mark = store_find(store, &query, &got, NULL) == FFA_OK ? *(unsigned char *)got.cubin : -1;

    jit_kernel_finish(&got);
    jit_kernel_finish(&want);
    return mark;
}

static int count_names(const char *at, const char *part)
{
    DIR *dir = opendir(at);
    int count = 0;

    ck_assert_ptr_nonnull(dir);
    for (struct dirent *entry; (entry = readdir(dir));)
        count += strstr(entry->d_name, part) != NULL;
    (void)closedir(dir);
    return count;
}

static void expect_exit(pid_t child)
{
    int status;

    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s %d",
                  WIFEXITED(status) ? "exit" : "signal",
                  WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

/* ---- folders that another user exchanges ---- */

enum { MINE = 'm', THEIRS = 't' };

/* Another user exchanges two folders that are in one that he may write, all the time. */
static pid_t exchange(const char *mine, const char *theirs)
{
    pid_t child = fork();

    if (child == 0) {
        if (setgid(NOBODY) != 0 || setuid(NOBODY) != 0 || prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
            _exit(1);
        while (renameat2(AT_FDCWD, mine, AT_FDCWD, theirs, RENAME_EXCHANGE) == 0)
            continue;
        _exit(2);
    }
    return child;
}

static void make_bundle(const char *store, const char *at)
{
    ffa_error err = { FFA_OK, 0, "" };
    ffa_cache *cache;
    char *bundle;

    ck_assert_msg(ffa_cache_open(&cache, store, FFA_CACHE_READONLY, &err) == FFA_OK, "%s",
                  err.message);
    ck_assert_msg(ffa_bundle_export(&bundle, cache, folder, NULL, NULL, &err) == FFA_OK, "%s",
                  err.message);
    ffa_cache_close(cache);
    ck_assert_int_eq(rename(bundle, at), 0);
    ffa_free(bundle);
}

static const enum store_mode race_modes[] = { STORE_READWRITE, STORE_READONLY, STORE_MAINTAIN,
                                              STORE_BUNDLE };

/* What was checked is what is opened: never the other's cubin, and sometimes one's own. */
START_TEST(folders_exchanged_under_open)
{
    enum { OPENS = 800 };
    bool is_bundle = race_modes[_i] == STORE_BUNDLE;
    char *shared = tmpdir_path(folder, "shared");
    char *mine = tmpdir_path(shared, "mine"), *theirs = tmpdir_path(shared, "theirs");
    char *target = tmpdir_path(mine, "kernels.ffadb"), *trap = tmpdir_path(theirs, "kernels.ffadb");
    int found = 0;
    pid_t attacker;

    if (geteuid() != 0) {
        printf("skipped: exchanged folders, as this user can be no other\n");
        goto out;
    }
    ck_assert_int_eq(chmod(folder, 0755), 0);
    ck_assert_int_eq(mkdir(shared, 0755), 0);
    ck_assert_int_eq(chmod(shared, 0777), 0);
    for (int i = 0; i < 2; i++) {
        const char *at = i ? trap : target;

        fill_at(path, i ? THEIRS : MINE);
        ck_assert_int_eq(mkdir(i ? theirs : mine, 0755), 0);
        if (is_bundle)
            make_bundle(path, at);
        else
            ck_assert_int_eq(rename(path, at), 0);
        (void)unlink(path);
    }
    ck_assert_int_eq(chown(trap, NOBODY, NOBODY), 0);
    ck_assert_int_eq(chown(theirs, NOBODY, NOBODY), 0);
    attacker = exchange(mine, theirs);
    for (int i = 0; i < OPENS; i++) {
        struct store *store = open_at(target, race_modes[_i], NULL);
        int mark = mark_in(store);

        ck_assert_msg(mark != THEIRS, "open %d of %d gave the other's cubin", i, OPENS);
        found += mark == MINE;
        store_close(store);
    }
    ck_assert_int_eq(kill(attacker, SIGKILL), 0);
    ck_assert_int_eq(waitpid(attacker, NULL, 0), attacker);
    ck_assert_int_gt(found, 0);
out:
    free(trap);
    free(target);
    free(theirs);
    free(mine);
    free(shared);
}
END_TEST

/* The folder is moved away while the store is open: what is written goes into the same folder. */
START_TEST(journal_follows_the_folder)
{
    char *moved = tmpdir_path(folder, "moved"), *at = tmpdir_path(moved, "kernels.ffadb");
    struct jit_kernel kernel = fixture_kernel(1, "a", "sm_90a");
    struct store *store;

    fill_at(path, MINE);
    store = open_at(path, STORE_MAINTAIN, NULL);
    ck_assert_int_eq(rename(home, moved), 0);
    ck_assert_int_eq(mkdir(home, 0700), 0);
    store_put(store, &kernel);
    store_close(store);
    ck_assert_int_eq(count_names(home, "kernels"), 0);
    store = open_at(at, STORE_READONLY, NULL);
    ck_assert_int_eq(mark_in(store), MINE);
    store_close(store);
    jit_kernel_finish(&kernel);
    free(at);
    free(moved);
}
END_TEST

/* Without /proc a path by names is used, if others can exchange no folder on it. */
START_TEST(without_proc_ancestors_are_checked)
{
    struct watch watch = { .warning = "" };
    char *shared = tmpdir_path(folder, "shared"), *below = tmpdir_path(shared, "below");
    char *at = tmpdir_path(below, "kernels.ffadb"), *bundle = tmpdir_path(folder, "b.ffadb");
    struct store *store;

    fill_at(path, MINE);
    fault_arm(FAULT_PROC, 1);
    store = open_at(path, STORE_READWRITE, &watch);
    ck_assert(fault_fired());
    fault_arm(FAULT_PROC, 0);
    ck_assert_msg(mark_in(store) == MINE, "%s", watch.warning);
    ck_assert_ptr_null(strstr(store->place.opened, "/proc/"));
    store_close(store);

    make_bundle(path, bundle);
    fault_arm(FAULT_PROC, 1);
    store = open_at(bundle, STORE_BUNDLE, &watch);
    fault_arm(FAULT_PROC, 0);
    ck_assert_msg(mark_in(store) == MINE, "%s", watch.warning);
    ck_assert_ptr_null(strstr(store->place.opened, "/proc/"));
    store_close(store);

    ck_assert_int_eq(mkdir(shared, 0700), 0);
    fill_at(at, MINE);
    for (int sticky = 0; sticky < 2; sticky++) {
        ck_assert_int_eq(chmod(shared, sticky ? 01777 : 0777), 0);
        fault_arm(FAULT_PROC, 1);
        store = open_at(at, STORE_READWRITE, &watch);
        fault_arm(FAULT_PROC, 0);
        ck_assert_int_eq(mark_in(store), sticky ? MINE : -1);
        store_close(store);
    }
    ck_assert_msg(strstr(watch.warning, "others can exchange folders in"), "%s", watch.warning);
    free(bundle);
    free(at);
    free(below);
    free(shared);
}
END_TEST

/* Nobody else chooses where lock files are made. */
START_TEST(locks_are_in_trusted_folders)
{
    struct flight_opts opts = { .store_path = path };
    char *locks = tmpdir_path(home, "kernels.ffadb.locks"), *other = tmpdir_path(folder, "other");
    struct flight_lock lock;
    struct flight *flight;

    ck_assert_int_eq(mkdir(home, 0700), 0);
    ck_assert_int_eq(mkdir(other, 0700), 0);
    ck_assert_int_eq(flight_open(&flight, &opts, NULL), FFA_OK);
    ck_assert_int_eq(symlink(other, locks), 0);
    ck_assert_int_eq(flight_take(flight, "0123", NULL, &lock), FLIGHT_UNAVAILABLE);
    ck_assert_int_eq(unlink(locks), 0);
    ck_assert_int_eq(mkdir(locks, 0700), 0);
    ck_assert_int_eq(chmod(locks, 0777), 0);
    ck_assert_int_eq(flight_take(flight, "0123", NULL, &lock), FLIGHT_UNAVAILABLE);
    ck_assert_int_eq(chmod(locks, 0700), 0);
    ck_assert_int_eq(chmod(home, 0777), 0);
    ck_assert_int_eq(flight_take(flight, "0123", NULL, &lock), FLIGHT_UNAVAILABLE);
    ck_assert_int_eq(chmod(home, 0700), 0);
    ck_assert_int_eq(flight_take(flight, "0123", NULL, &lock), FLIGHT_HELD);
    flight_release(&lock);
    flight_close(flight);
    ck_assert_int_eq(rmdir(other), 0);
    free(other);
    free(locks);
}
END_TEST

/* ---- a limit to the size of files ---- */

struct writer {
    struct watch watch;
    bool is_met, is_pending;
    int marks;
};

static void *write_past_the_limit(void *argument)
{
    struct writer *writer = argument;
    struct store *store = open_at(path, STORE_READWRITE, &writer->watch);
    sigset_t set;

    for (int i = 1; i < 12; i++) {
        struct jit_kernel kernel = fixture_kernel(i, "a", "sm_90a");

        store_put(store, &kernel);
        jit_kernel_finish(&kernel);
    }
    writer->marks = mark_in(store);
    store_close(store);
    (void)sigpending(&set);
    writer->is_pending = sigismember(&set, SIGXFSZ) == 1;
    (void)pthread_sigmask(SIG_BLOCK, NULL, &set);
    writer->is_pending = writer->is_pending || sigismember(&set, SIGXFSZ) == 1;
    return NULL;
}

/* What the process is like whose thread writes; limits that its first file meets, or its journal
 * and pages. SIGXFSZ ends it where it is not blocked. */
START_TEST(file_size_limit_ends_nothing)
{
    const rlim_t limits[] = { 50000, 300000 };
    pid_t child;

    if (_i == 1)
        fill_at(path, MINE);
    child = fork();
    if (child == 0) {
        struct rlimit limit = { .rlim_cur = limits[_i], .rlim_max = limits[_i] };
        static struct writer writer;
        pthread_t thread;

        if (signal(SIGXFSZ, SIG_DFL) == SIG_ERR || setrlimit(RLIMIT_FSIZE, &limit) != 0 ||
            pthread_create(&thread, NULL, write_past_the_limit, &writer) != 0 ||
            pthread_join(thread, NULL) != 0)
            _exit(2);
        if (writer.is_pending)
            _exit(3);
        if (!strstr(writer.watch.warning, "file size limit") ||
            writer.watch.lines[FFA_LOG_WARNING] != 1)
            _exit(4);
        _exit(writer.marks == (_i == 1 ? MINE : -1) ? 0 : 5);
    }
    expect_exit(child);
    ck_assert_int_eq(count_names(home, ".new-"), 0);
    if (_i == 0)
        ck_assert_int_ne(access(path, F_OK), 0);
}
END_TEST

START_TEST(export_meets_the_limit)
{
    pid_t child;

    fill_at(path, MINE);
    child = fork();
    if (child == 0) {
        struct rlimit limit = { .rlim_cur = 100000, .rlim_max = 100000 };
        ffa_error err = { FFA_OK, 0, "" };
        char *bundle = NULL;
        ffa_cache *cache;

        if (signal(SIGXFSZ, SIG_DFL) == SIG_ERR || setrlimit(RLIMIT_FSIZE, &limit) != 0 ||
            ffa_cache_open(&cache, path, FFA_CACHE_READONLY, &err) != FFA_OK)
            _exit(2);
        if (ffa_bundle_export(&bundle, cache, folder, NULL, NULL, &err) != FFA_CACHE || bundle)
            _exit(3);
        ffa_cache_close(cache);
        _exit(strstr(err.message, "file size limit") ? 0 : 4);
    }
    expect_exit(child);
    ck_assert_int_eq(count_names(folder, "ffa-"), 0);
}
END_TEST

/* One that was pending before is the caller's, and stays. Pairs of two stores may end in any
 * order. */
START_TEST(pending_signals_stay)
{
    sigset_t set, before;

    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGXFSZ);
    (void)pthread_sigmask(SIG_BLOCK, &set, &before);
    ck_assert_int_eq(pthread_kill(pthread_self(), SIGXFSZ), 0);
    file_limit_enter();
    ck_assert(!file_limit_was_met());
    file_limit_leave();
    (void)sigpending(&set);
    ck_assert_int_eq(sigismember(&set, SIGXFSZ), 1);
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGXFSZ);
    ck_assert_int_eq(sigtimedwait(&set, NULL, &(struct timespec){ 0 }), SIGXFSZ);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);

    file_limit_enter();
    file_limit_enter();
    ck_assert_int_eq(pthread_kill(pthread_self(), SIGXFSZ), 0);
    ck_assert(file_limit_was_met());
    file_limit_leave();
    ck_assert(file_limit_was_met());
    file_limit_leave();
    (void)pthread_sigmask(SIG_BLOCK, NULL, &set);
    ck_assert_int_eq(sigismember(&set, SIGXFSZ), 0);
}
END_TEST

/* ---- a schema that never ends ---- */

#define ENDLESS "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "

static const struct {
    const char *sql, *says;
} endless[] = {
    { "DROP TABLE kernel; CREATE VIEW kernel AS " ENDLESS "SELECT i AS id, i AS blob FROM n",
      "a view 'kernel'" },
    { "DROP TABLE blob; CREATE VIEW Blob AS " ENDLESS "SELECT i AS id FROM n", "a view 'Blob'" },
    { "DROP TABLE meta; CREATE VIEW meta AS " ENDLESS "SELECT i AS name, i AS value FROM n",
      "a view 'meta'" },
    { "DROP TABLE miss; CREATE VIEW miss AS " ENDLESS "SELECT i AS id FROM n", "a view 'miss'" },
    { "CREATE TRIGGER more AFTER INSERT ON blob BEGIN INSERT INTO meta " ENDLESS
      "SELECT i, i FROM n; END",
      "a trigger 'more'" },
    { "DROP TRIGGER kernel_gone; CREATE TRIGGER kernel_gone AFTER DELETE ON kernel BEGIN "
      "INSERT INTO meta " ENDLESS "SELECT i, i FROM n; END",
      "a trigger 'kernel_gone'" },
};

START_TEST(endless_schema_is_refused)
{
    struct watch watch = { .warning = "" };
    bool is_trigger = strstr(endless[_i].says, "trigger") != NULL;
    struct store *store;

    fill_at(path, MINE);
    fixture_sql(path, endless[_i].sql);
    store = open_at(path, STORE_READWRITE, &watch);
    ck_assert_int_eq(mark_in(store), -1);
    ck_assert_msg(strstr(watch.warning, endless[_i].says), "%s", watch.warning);
    store_close(store);
    /* Who only reads has no triggers run. */
    store = open_at(path, STORE_READONLY, &watch);
    ck_assert_int_eq(mark_in(store), is_trigger ? MINE : -1);
    store_close(store);
    fixture_sql(path, "PRAGMA application_id = 0x66666162");
    store = open_at(path, STORE_BUNDLE, &watch);
    ck_assert_int_eq(mark_in(store), is_trigger ? MINE : -1);
    store_close(store);
}
END_TEST

/* The second wall: no statement takes more work than any of a store does. */
START_TEST(work_has_an_end)
{
    ffa_error err = { FFA_OK, 0, "" };
    struct store *store;
    int64_t count;

    fill_at(path, MINE);
    store = open_at(path, STORE_READWRITE, NULL);
    store_lock(store);
    store->work_max = 10;
    ck_assert_int_eq(store_number(store, ENDLESS "SELECT count(*) FROM n", &count, &err),
                     FFA_CACHE);
    ck_assert_msg(strstr(err.message, "more work"), "%s", err.message);
    store_unlock(store);
    ck_assert_int_eq(mark_in(store), MINE);
    store_close(store);
}
END_TEST

/* ---- what is no regular file ---- */

static void make_fifo(const char *at)
{
    ck_assert_int_eq(mkfifo(at, 0600), 0);
}

static void make_folder(const char *at)
{
    ck_assert_int_eq(mkdir(at, 0700), 0);
}

static void make_socket(const char *at)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    int end = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int folder_fd = open(home, O_PATH | O_DIRECTORY | O_CLOEXEC);

    /* (its whole path may be longer than an address) */
    text_copy(address.sun_path, "/proc/self/fd/%d/%s", folder_fd, strrchr(at, '/') + 1);
    ck_assert_int_eq(bind(end, (struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(close(folder_fd), 0);
    ck_assert_int_eq(close(end), 0);
}

static void make_link(const char *at)
{
    ck_assert_int_eq(symlink("/dev/zero", at), 0);
}

static const struct {
    const char *kind;
    void (*make)(const char *at);
} kinds[] = {
    { "a FIFO", make_fifo },
    { "a folder", make_folder },
    { "a socket", make_socket },
    { "a symbolic link", make_link },
};
static const char *const companions[] = { "-journal", "-wal", "-shm" };
enum { KINDS = sizeof kinds / sizeof *kinds, COMPANIONS = 3 };

START_TEST(companions_are_regular_files)
{
    struct watch watch = { .warning = "" };
    struct text at = { 0 };
    struct store *store;

    text_add(&at, "%s%s", path, companions[_i / KINDS]);
    fill_at(path, MINE);
    (void)unlink(at.at);
    kinds[_i % KINDS].make(at.at);
    for (int i = 0; i < 2; i++) {
        store = open_at(path, i ? STORE_READONLY : STORE_READWRITE, &watch);
        ck_assert_int_eq(mark_in(store), -1);
        ck_assert_msg(strstr(watch.warning, kinds[_i % KINDS].kind) &&
                          strstr(watch.warning, companions[_i / KINDS]),
                      "%s", watch.warning);
        store_close(store);
    }
    text_finish(&at);
}
END_TEST

/* A FIFO that comes when the store is open already does not hang it either. */
START_TEST(fifo_comes_later)
{
    struct text at = { 0 };
    struct jit_kernel kernel = fixture_kernel(1, "a", "sm_90a");
    struct store *store;

    text_add(&at, "%s-journal", path);
    fill_at(path, MINE);
    store = open_at(path, STORE_READWRITE, NULL);
    (void)unlink(at.at);
    make_fifo(at.at);
    store_put(store, &kernel);
    ck_assert_uint_ge(store_error_count(store), 1);
    store_close(store);
    jit_kernel_finish(&kernel);
    text_finish(&at);
}
END_TEST

/* ---- advice ---- */

static const struct {
    const char *path; /* below the test's folder, or whole */
    enum store_mode mode;
    const char *says;
} harmful[] = {
    { "sticky/kernels.ffadb", STORE_READWRITE, "use a folder of your own" },
    { "sticky/b.ffadb", STORE_BUNDLE, "use a folder of your own" },
    { "/dev/null", STORE_BUNDLE, "no regular file: it is a device" },
    { "/dev/null", STORE_READONLY, "no regular file: it is a device" },
};

/* Nobody is told to take write permission from what all users share. */
START_TEST(advice_does_no_harm)
{
    struct watch watch = { .warning = "" };
    char *sticky = tmpdir_path(folder, "sticky");
    char *at = harmful[_i].path[0] == '/' ? strdup(harmful[_i].path)
                                          : tmpdir_path(folder, harmful[_i].path);

    ck_assert_int_eq(mkdir(sticky, 0700), 0);
    if (harmful[_i].path[0] != '/')
        tmpdir_write_text(at, "");
    ck_assert_int_eq(chmod(sticky, 01777), 0);
    store_close(open_at(at, harmful[_i].mode, &watch));
    ck_assert_msg(strstr(watch.warning, harmful[_i].says), "%s", watch.warning);
    ck_assert_msg(!strstr(watch.warning, "chmod"), "%s", watch.warning);
    free(at);
    free(sticky);
}
END_TEST

/* ---- maintenance on a network file system ---- */

static ffa_cache *open_on_network(uint32_t flags, ffa_status want, ffa_error *err)
{
    ffa_cache *cache;

    fault_arm(FAULT_NETWORK, 1);
    ck_assert_int_eq(ffa_cache_open(&cache, path, flags, err), want);
    fault_arm(FAULT_NETWORK, 0);
    return cache;
}

static ffa_status do_gc(ffa_cache *cache, ffa_error *err)
{
    ffa_cache_gc_opts opts = FFA_CACHE_GC_OPTS_INIT;

    opts.bytes_max = 1;
    return ffa_cache_gc(cache, &opts, NULL, NULL, NULL, err);
}

static ffa_status do_clear(ffa_cache *cache, ffa_error *err)
{
    return ffa_cache_clear(cache, NULL, err);
}

static ffa_status do_remove(ffa_cache *cache, ffa_error *err)
{
    struct jit_kernel kernel = kernel_of(MINE);
    ffa_status rc = ffa_cache_remove(cache, kernel.info.key, NULL, err);

    jit_kernel_finish(&kernel);
    return rc;
}

static ffa_status do_forget(ffa_cache *cache, ffa_error *err)
{
    return ffa_cache_forget(cache, FFA_CACHE_FAILURES | FFA_CACHE_MISSES, NULL, err);
}

static ffa_status do_import(ffa_cache *cache, ffa_error *err)
{
    char *other = tmpdir_path(home, "other.ffadb");
    ffa_cache *from;
    ffa_status rc;

    fill_at(other, MINE);
    ck_assert_int_eq(ffa_cache_open(&from, other, FFA_CACHE_READONLY, NULL), FFA_OK);
    rc = ffa_bundle_import(cache, from, NULL, NULL, err);
    ffa_cache_close(from);
    free(other);
    return rc;
}

static ffa_status (*const upkeep[])(ffa_cache *, ffa_error *) = { do_gc, do_clear, do_remove,
                                                                  do_forget, do_import };

START_TEST(network_store_is_not_maintained)
{
    ffa_error err = { FFA_OK, 0, "" };
    ffa_cache *cache;

    fill_at(path, MINE);
    cache = open_on_network(0, FFA_OK, &err);
    ck_assert_int_eq(upkeep[_i](cache, &err), FFA_CACHE);
    ck_assert_msg(strstr(err.message, "on a network file system (nfs)") &&
                      strstr(err.message, "FFA_CACHE_NETWORK"),
                  "%s", err.message);
    ffa_cache_close(cache);
    cache = open_on_network(FFA_CACHE_NETWORK, FFA_OK, &err);
    ck_assert_msg(upkeep[_i](cache, &err) == FFA_OK, "%s", err.message);
    ffa_cache_close(cache);
}
END_TEST

/* None is made there, either. */
START_TEST(network_store_is_not_made)
{
    ffa_error err = { FFA_OK, 0, "" };

    ck_assert_int_eq(mkdir(home, 0700), 0);
    ck_assert_ptr_null(open_on_network(FFA_CACHE_CREATE, FFA_CACHE, &err));
    ck_assert_msg(strstr(err.message, "FFA_CACHE_NETWORK"), "%s", err.message);
    ck_assert_int_ne(access(path, F_OK), 0);
    ck_assert_ptr_null(open_on_network(0, FFA_NOT_FOUND, &err));
    ffa_cache_close(open_on_network(FFA_CACHE_CREATE | FFA_CACHE_NETWORK, FFA_OK, &err));
    ck_assert_int_eq(access(path, F_OK), 0);
}
END_TEST

/* ---- what killed processes leave behind ---- */

/* Makers killed at any time: no file of theirs stays. */
START_TEST(killed_makers_leave_nothing)
{
    enum { ROUNDS = 40 };

    if (!tmpdir_has_unnamed_files(folder)) /* then they leave what stale_files_are_reaped reaps */
        return;
    for (int round = 0; round < ROUNDS; round++) {
        struct timespec time = { .tv_nsec = 1000000 + round * 137000 };
        pid_t child = fork();

        if (child == 0) {
            (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (;;) {
                fill_at(path, MINE);
                (void)unlink(path);
            }
        }
        (void)nanosleep(&time, NULL);
        ck_assert_int_eq(kill(child, SIGKILL), 0);
        ck_assert_int_eq(waitpid(child, NULL, 0), child);
    }
    if (access(home, F_OK) == 0)
        ck_assert_int_eq(count_names(home, ".new-"), 0);
}
END_TEST

/* What an older version left, or a file system without unnamed files. */
START_TEST(stale_files_are_reaped)
{
    struct timespec old[2] = { { .tv_sec = time(NULL) - 3600 }, { .tv_sec = time(NULL) - 3600 } };
    char *stale = tmpdir_path(home, "kernels.ffadb.new-Ab3dEf");
    char *young = tmpdir_path(home, "kernels.ffadb.new-Ab3dEg");
    char *other = tmpdir_path(home, "other.ffadb.new-Ab3dEf");

    fill_at(path, MINE);
    tmpdir_write_text(stale, "x");
    tmpdir_write_text(young, "x");
    tmpdir_write_text(other, "x");
    ck_assert_int_eq(utimensat(AT_FDCWD, stale, old, 0), 0);
    ck_assert_int_eq(utimensat(AT_FDCWD, other, old, 0), 0);
    store_close(open_at(path, STORE_READONLY, NULL));
    ck_assert_int_eq(access(stale, F_OK), 0);
    store_close(open_at(path, STORE_READWRITE, NULL));
    ck_assert_int_ne(access(stale, F_OK), 0);
    ck_assert_int_eq(access(young, F_OK), 0);
    ck_assert_int_eq(access(other, F_OK), 0);
    free(other);
    free(young);
    free(stale);
}
END_TEST

/* A bundle's and a merge's, by the next export into that folder; one that is locked is at work. */
START_TEST(export_reaps)
{
    static const char *const names[] = { ".ffa-bundle-Ab3dEf", ".ffa-merge-Ab3dEf",
                                         ".ffa-merge-Ab3dEg" };
    struct timespec old[2] = { { .tv_sec = time(NULL) - 3600 }, { .tv_sec = time(NULL) - 3600 } };
    char *bundle = tmpdir_path(folder, "bundle"), *busy = tmpdir_path(folder, names[2]);
    char *inside = tmpdir_path(folder, ".ffa-merge-Ab3dEf/kernels.ffadb");
    int lock;

    fill_at(path, MINE);
    for (int i = 0; i < 3; i++) {
        char *at = tmpdir_path(folder, names[i]);

        if (i)
            ck_assert_int_eq(mkdir(at, 0700), 0);
        else
            tmpdir_write_text(at, "x");
        if (i == 1)
            tmpdir_write_text(inside, "x");
        ck_assert_int_eq(utimensat(AT_FDCWD, at, old, 0), 0);
        free(at);
    }
    lock = open(busy, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ck_assert_int_eq(flock(lock, LOCK_EX), 0);
    make_bundle(path, bundle);
    ck_assert_int_eq(count_names(folder, ".ffa-"), 1);
    ck_assert_int_eq(access(busy, F_OK), 0);
    ck_assert_int_eq(close(lock), 0);
    free(inside);
    free(busy);
    free(bundle);
}
END_TEST

/* ---- names ---- */

/* No name is anything but a file's to SQLite. */
START_TEST(names_are_names)
{
    static const char *const names[] = { "file:k.ffadb", "file:k.ffadb?mode=memory",
                                         ":memory:",     "%41.ffadb",
                                         "k#1.ffadb",    "k?vfs=none" };

    ck_assert_int_eq(mkdir(home, 0700), 0);
    ck_assert_int_eq(chdir(home), 0);
    fill_at(names[_i], MINE);
    ck_assert_msg(access(names[_i], F_OK) == 0, "%s", names[_i]);
    {
        struct store *store = open_at(names[_i], STORE_READONLY, NULL);

        ck_assert_int_eq(mark_in(store), MINE);
        store_close(store);
    }
    ck_assert_int_eq(chdir("/"), 0);
}
END_TEST

START_TEST(urls_are_refused)
{
    static const char *const urls[] = { "s3://bucket/k", "file:///tmp/k.ffadb", "https://host/k" };
    struct watch watch = { .warning = "" };
    ffa_error err = { FFA_OK, 0, "" };
    ffa_cache *cache;

    ck_assert_int_eq(chdir(folder), 0);
    ck_assert_int_eq(ffa_cache_open(&cache, urls[_i], FFA_CACHE_CREATE, &err), FFA_INVALID);
    ck_assert_msg(strstr(err.message, "a URL"), "%s", err.message);
    store_close(open_at(urls[_i], STORE_READWRITE, &watch));
    ck_assert_msg(strstr(watch.warning, "is a URL"), "%s", watch.warning);
    ck_assert_int_eq(count_names(folder, ":"), 0);
    ck_assert_int_eq(chdir("/"), 0);
}
END_TEST

/* A path longer than SQLite takes: 512 bytes. */
START_TEST(long_paths_are_used)
{
    struct text at = { 0 };
    struct store *store;

    text_add(&at, "%s", folder);
    for (int i = 0; i < 8; i++)
        text_add(&at, "/%0100d", i);
    text_add(&at, "/kernels.ffadb");
    fill_at(at.at, MINE);
    store = open_at(at.at, STORE_READONLY, NULL);
    ck_assert_int_eq(mark_in(store), MINE);
    store_close(store);
    text_finish(&at);
}
END_TEST

/* ---- a dry run ---- */

START_TEST(dry_run_only_reads)
{
    ffa_cache_gc_opts opts = FFA_CACHE_GC_OPTS_INIT;
    ffa_cache_gc_report reports[2] = { FFA_CACHE_GC_REPORT_INIT, FFA_CACHE_GC_REPORT_INIT };
    ffa_error err = { FFA_OK, 0, "" };
    struct store *store;

    fill_at(path, MINE);
    store = open_at(path, STORE_READWRITE, NULL);
    for (int i = 1; i < 12; i++) {
        struct jit_kernel kernel = fixture_kernel(i, "a", "sm_90a");

        store_put(store, &kernel);
        jit_kernel_finish(&kernel);
    }
    store_close(store);
    opts.bytes_max = 400000;
    opts.flags = FFA_CACHE_GC_DRY_RUN;
    for (int i = 0; i < 2; i++) {
        ffa_cache *cache;

        ck_assert_int_eq(ffa_cache_open(&cache, path, i ? FFA_CACHE_READONLY : 0, &err), FFA_OK);
        ck_assert_msg(ffa_cache_gc(cache, &opts, &reports[i], NULL, NULL, &err) == FFA_OK, "%s",
                      err.message);
        ffa_cache_close(cache);
    }
    ck_assert_int_gt(reports[0].removed, 0);
    ck_assert_int_gt(reports[0].kept, 0);
    ck_assert_mem_eq(&reports[0], &reports[1], sizeof reports[0]);
    opts.flags = 0;
    {
        ffa_cache *cache;

        ck_assert_int_eq(ffa_cache_open(&cache, path, FFA_CACHE_READONLY, &err), FFA_OK);
        ck_assert_int_eq(ffa_cache_gc(cache, &opts, NULL, NULL, NULL, &err), FFA_CACHE);
        ffa_cache_close(cache);
    }
}
END_TEST

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

int main(void)
{
    Suite *suite = suite_create("walls");
    TCase *tc = tcase_create("walls");

    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, folders_exchanged_under_open, 0, COUNT(race_modes));
    tcase_add_test(tc, journal_follows_the_folder);
    tcase_add_test(tc, without_proc_ancestors_are_checked);
    tcase_add_test(tc, locks_are_in_trusted_folders);
    tcase_add_loop_test(tc, file_size_limit_ends_nothing, 0, 2);
    tcase_add_test(tc, export_meets_the_limit);
    tcase_add_test(tc, pending_signals_stay);
    tcase_add_loop_test(tc, endless_schema_is_refused, 0, COUNT(endless));
    tcase_add_test(tc, work_has_an_end);
    tcase_add_loop_test(tc, companions_are_regular_files, 0, KINDS * COMPANIONS);
    tcase_add_test(tc, fifo_comes_later);
    tcase_add_loop_test(tc, advice_does_no_harm, 0, COUNT(harmful));
    tcase_add_loop_test(tc, network_store_is_not_maintained, 0, COUNT(upkeep));
    tcase_add_test(tc, network_store_is_not_made);
    tcase_add_test(tc, killed_makers_leave_nothing);
    tcase_add_test(tc, stale_files_are_reaped);
    tcase_add_test(tc, export_reaps);
    tcase_add_loop_test(tc, names_are_names, 0, 6);
    tcase_add_loop_test(tc, urls_are_refused, 0, 3);
    tcase_add_test(tc, long_paths_are_used);
    tcase_add_test(tc, dry_run_only_reads);
    tcase_set_timeout(tc, 60);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
