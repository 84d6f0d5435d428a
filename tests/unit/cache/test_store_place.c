/* SPDX-License-Identifier: Apache-2.0
 *
 * Stores where there is no room, where nothing may be written, and beside another SQLite in the
 * process: a kernel is compiled in memory, there is one warning, and it is counted. Each test
 * mounts what it needs in a namespace of its own, which takes root and its leave to mount.
 */
#include "base/base.h"
#include "support/fixture.h"
#include "support/suite.h"
#include "support/tmpdir.h"

#include <check.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define FIXTURES FFA_TEST_SOURCE_DIR "/tests/data/templates/"

static char *folder, *place, *store;
static struct watch watch;

static void setup(void)
{
    folder = tmpdir_make();
    place = tmpdir_path(folder, "place");
    store = tmpdir_path(place, "kernels.ffadb");
    watch = (struct watch){ .warning = "" };
    ck_assert_int_eq(mkdir(place, 0700), 0);
    ck_assert_int_eq(unsetenv("FAKE_NVRTC_MS"), 0);
    ck_assert_int_eq(unsetenv("FAKE_NVRTC_LOG"), 0);
}

static void teardown(void)
{
    (void)umount2(place, MNT_DETACH);
    free(store);
    free(place);
    tmpdir_remove(folder);
}

static ffa_context *open_context(uint32_t flags)
{
    ffa_context_opts opts = fixture_opts(store, FFA_TEST_SLOW_NVRTC, &watch);

    opts.flags = flags;
    return fixture_open(&opts);
}

static void expect(ffa_context *context, const char *setting, ffa_layer want)
{
    ffa_error err = { FFA_OK, 0, "" };
    ffa_kernel_info info;

    ck_assert_msg(fixture_find(&info, context, setting, &err) == FFA_OK, "%s", err.message);
    ck_assert_msg(info.layer == want, "%s from %s, not %s", setting, ffa_layer_text(info.layer),
                  ffa_layer_text(want));
}

static uint64_t errors_of(ffa_context *context)
{
    ffa_context_stats stats = FFA_CONTEXT_STATS_INIT;

    ck_assert_int_eq(ffa_context_stats_get(context, &stats, NULL), FFA_OK);
    return stats.store_errors;
}

/* ---- mounts ---- */

static bool own_namespace(void)
{
    return unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;
}

/* Whether this user may; prints why not. */
static bool may_mount(void)
{
    pid_t child = fork();
    int status = 1;

    if (child == 0)
        _exit(own_namespace() && mount("none", "/mnt", "tmpfs", 0, "size=64k") == 0 ? 0 : 1);
    (void)waitpid(child, &status, 0);
    if (status != 0)
        printf("skipped: a full disk and a read-only root, as mounting is not allowed here\n");
    return status == 0;
}

static void mount_place(const char *size)
{
    ck_assert_msg(own_namespace(), "%s", strerror(errno));
    ck_assert_int_eq(mount("none", place, "tmpfs", 0, size), 0);
    ck_assert_int_eq(chmod(place, 0700), 0);
}

/* Write until nothing more fits, then give `spare` bytes back. */
static void fill_up(off_t spare)
{
    char *name = tmpdir_path(place, "filler");
    int file = open(name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    char block[4096];
    off_t size = 0;
    ssize_t wrote;

    ck_assert_int_ge(file, 0);
    memset(block, 1, sizeof block);
    while ((wrote = write(file, block, sizeof block)) > 0)
        size += wrote;
    ck_assert_int_eq(errno, ENOSPC);
    ck_assert_int_eq(ftruncate(file, size > spare ? size - spare : 0), 0);
    ck_assert_int_eq(close(file), 0);
    free(name);
}

static void make_room(void)
{
    char *name = tmpdir_path(place, "filler");

    ck_assert_int_eq(unlink(name), 0);
    free(name);
}

static void check_whole(int64_t kernels)
{
    ffa_error err = { FFA_OK, 0, "" };
    ffa_cache_verdict verdict = FFA_CACHE_VERDICT_INIT;
    ffa_cache *cache;

    ck_assert_msg(ffa_cache_open(&cache, store, FFA_CACHE_READONLY, &err) == FFA_OK, "%s",
                  err.message);
    ck_assert_msg(ffa_cache_verify(cache, &verdict, NULL, NULL, &err) == FFA_OK, "%s", err.message);
    ck_assert_int_eq(verdict.bad, 0);
    if (kernels >= 0)
        ck_assert_int_eq(verdict.checked, kernels);
    ffa_cache_close(cache);
}

/* ---- a full disk ---- */

/* What is left where the disk fills up: from nothing to most of what an addition takes. */
static const off_t spares[] = { 0, 4096, 16384, 40000, 100000 };

START_TEST(disk_fills_up_while_open)
{
    ffa_context *context;

    mount_place("size=1m");
    context = open_context(0);
    expect(context, "head_dim=64", FFA_LAYER_COMPILED);
    fill_up(spares[_i]);
    expect(context, "softcap=1", FFA_LAYER_COMPILED);
    expect(context, "dtype=fp16", FFA_LAYER_COMPILED);
    expect(context, "out_fp32=1", FFA_LAYER_COMPILED);
    expect(context, "debug=1", FFA_LAYER_COMPILED);
    expect(context, "softcap=1", FFA_LAYER_TABLE);
    ck_assert_int_le(watch.lines[FFA_LOG_WARNING], 1);
    ck_assert_int_eq(watch.lines[FFA_LOG_WARNING] > 0, errors_of(context) > 0);
    if (spares[_i] == 0)
        ck_assert_int_eq(watch.lines[FFA_LOG_WARNING], 1);
    ffa_close(context);
    check_whole(-1);

    /* What was there is there; what did not fit is compiled again. */
    context = open_context(0);
    expect(context, "head_dim=64", FFA_LAYER_STORE);
    ffa_close(context);
    make_room();
    watch = (struct watch){ .warning = "" };
    context = open_context(0);
    expect(context, "tile_n=96", FFA_LAYER_COMPILED);
    ffa_close(context);
    context = open_context(0);
    expect(context, "tile_n=96", FFA_LAYER_STORE);
    ffa_close(context);
    ck_assert_msg(watch.lines[FFA_LOG_WARNING] == 0, "%s", watch.warning);
    check_whole(-1);
}
END_TEST

/* Too full for a store to be made: none is, nor half of one, until there is room. */
START_TEST(disk_is_full_from_the_start)
{
    ffa_context *context;

    mount_place("size=1m");
    fill_up(spares[_i]);
    context = open_context(0);
    expect(context, "head_dim=64", FFA_LAYER_COMPILED);
    expect(context, "head_dim=64", FFA_LAYER_TABLE);
    ck_assert_int_eq(watch.lines[FFA_LOG_WARNING], 1);
    ck_assert_uint_ge(errors_of(context), 1);
    ck_assert_int_ne(access(store, F_OK), 0);
    ffa_close(context);
    make_room();
    for (int i = 0; i < 2; i++) {
        context = open_context(0);
        expect(context, "head_dim=64", i ? FFA_LAYER_STORE : FFA_LAYER_COMPILED);
        ffa_close(context);
    }
    ck_assert_int_eq(watch.lines[FFA_LOG_WARNING], 1);
    check_whole(1);
}
END_TEST

/* ---- nothing may be written ---- */

/* It was written before: it is read, and nobody is warned of what is as it should be. */
START_TEST(readonly_mount_is_read)
{
    ffa_context_info info = FFA_CONTEXT_INFO_INIT;
    ffa_context *context;

    mount_place("size=1m");
    context = open_context(0);
    expect(context, "head_dim=64", FFA_LAYER_COMPILED);
    ffa_close(context);
    ck_assert_int_eq(mount(NULL, place, NULL, MS_REMOUNT | MS_RDONLY, NULL), 0);
    context = open_context(0);
    expect(context, "head_dim=64", FFA_LAYER_STORE);
    expect(context, "dtype=fp16", FFA_LAYER_COMPILED);
    expect(context, "dtype=fp16", FFA_LAYER_TABLE);
    ck_assert_int_eq(ffa_context_info_get(context, &info, NULL), FFA_OK);
    ck_assert_str_eq(info.store_state, "ok, read only");
    ck_assert_int_eq(watch.lines[FFA_LOG_WARNING], 0);
    ffa_close(context);
    check_whole(1);
}
END_TEST

/* Made read-only while it is open. */
START_TEST(mount_turns_readonly_while_open)
{
    ffa_context *context;

    mount_place("size=1m");
    context = open_context(0);
    expect(context, "head_dim=64", FFA_LAYER_COMPILED);
    /* Bound over itself, since a file that is open for writing keeps the mount as it is. */
    ck_assert_int_eq(mount(place, place, NULL, MS_BIND, NULL), 0);
    ck_assert_int_eq(mount(NULL, place, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL), 0);
    for (int i = 0; i < 2; i++)
        expect(context, i ? "dtype=fp16" : "softcap=1", FFA_LAYER_COMPILED);
    ck_assert_msg(watch.lines[FFA_LOG_WARNING] <= 1, "%s", watch.warning);
    ffa_close(context);
    check_whole(-1);
}
END_TEST

/* No store yet, and none can be made: one warning. */
START_TEST(readonly_mount_without_a_store)
{
    ffa_context *context;

    mount_place("size=1m");
    ck_assert_int_eq(mount(NULL, place, NULL, MS_REMOUNT | MS_RDONLY, NULL), 0);
    context = open_context(0);
    expect(context, "head_dim=64", FFA_LAYER_COMPILED);
    expect(context, "head_dim=128", FFA_LAYER_COMPILED);
    ck_assert_int_eq(watch.lines[FFA_LOG_WARNING], 1);
    ck_assert_msg(strstr(watch.warning, "Read-only file system"), "%s", watch.warning);
    ck_assert_uint_ge(errors_of(context), 1);
    ffa_close(context);
}
END_TEST

/* What `command` prints, run by the shell. */
static void say(char *out, size_t size, const char *command)
{
    FILE *pipe = popen(command, "re");
    size_t bytes;

    ck_assert_ptr_nonnull(pipe);
    bytes = fread(out, 1, size - 1, pipe);
    out[bytes] = '\0';
    ck_assert_int_eq(pclose(pipe), 0);
}

/* The whole root read-only, as in a hardened container, with and without a HOME: the command works,
 * in memory, and says why. */
START_TEST(readonly_root)
{
    static const char run[] =
        FFA_TEST_COMMAND " compile attention_forward head_dim=64 --arch sm_90a "
                         "--templates " FIXTURES "trivial --nvrtc " FFA_TEST_SLOW_NVRTC " 2>&1";
    char out[8192];

    ck_assert(own_namespace());
    ck_assert_msg(mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL) == 0, "%s",
                  strerror(errno));
    ck_assert_int_eq(unsetenv("FFA_CACHE_DIR"), 0);
    ck_assert_int_eq(unsetenv("XDG_CACHE_HOME"), 0);
    ck_assert_int_eq(unsetenv("TMPDIR"), 0);
    for (int i = 0; i < 2; i++) {
        if (i)
            ck_assert_int_eq(unsetenv("HOME"), 0);
        else
            ck_assert_int_eq(setenv("HOME", folder, 1), 0);
        say(out, sizeof out, FFA_TEST_COMMAND " cache path --explain");
        ck_assert_msg(strncmp(out, "none\n", 5) == 0 &&
                          strstr(out, "no place is left: memory only"),
                      "%s", out);
        ck_assert_msg(strstr(out, i ? "HOME: not set" : "cannot be created, skipped"), "%s", out);
        say(out, sizeof out, run);
        ck_assert_msg(strstr(out, "layer         compiled") && !strstr(out, "warning"), "%s", out);
    }
}
END_TEST

/* ---- another SQLite in the process ---- */

/* A second copy of the library has locks of its own, of which the first knows nothing; and when it
 * closes the file, the system drops the locks that the first holds on it. */
struct other {
    int (*open)(const char *, sqlite3 **, int, const char *);
    int (*exec)(sqlite3 *, const char *, int (*)(void *, int, char **, char **), void *, char **);
    int (*close)(sqlite3 *);
    atomic_bool stop;
    atomic_int rounds;
};

static void *read_with_the_other(void *argument)
{
    struct other *other = argument;

    while (!other->stop) {
        sqlite3 *db = NULL;

        if (other->open(store, &db, SQLITE_OPEN_READONLY, NULL) == SQLITE_OK)
            (void)other->exec(db, "SELECT count(*) FROM kernel", NULL, NULL, NULL);
        (void)other->close(db);
        other->rounds++;
    }
    return NULL;
}

static bool open_other(struct other *other)
{
    Dl_info ours, theirs;
    void *library;

    if (!dladdr((void *)(uintptr_t)&sqlite3_open_v2, &ours))
        return false;
    library = dlmopen(LM_ID_NEWLM, "libsqlite3.so.0", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return false;
    *(void **)&other->open = dlsym(library, "sqlite3_open_v2");
    *(void **)&other->exec = dlsym(library, "sqlite3_exec");
    *(void **)&other->close = dlsym(library, "sqlite3_close");
    return other->open && other->exec && other->close && dladdr(*(void **)&other->open, &theirs) &&
           theirs.dli_fbase != ours.dli_fbase;
}

/* Two processes write; in one, a second SQLite opens and closes the file all the time. Whatever
 * that costs, nobody gets a wrong kernel, and the store works in the end. */
START_TEST(two_copies_of_sqlite)
{
    static const char *const settings[] = { "head_dim=64", "dtype=2", "softcap=1",
                                            "out_fp32=1",  "debug=1", "tile_n=96" };
    enum { COUNT = sizeof settings / sizeof *settings, ROUNDS = 4 };
    struct other other = { .stop = false };
    ffa_context *context;
    pthread_t reader;
    pid_t writer;
    int status;

    ck_assert(open_other(&other));
    ffa_close(open_context(0));
    writer = fork();
    if (writer == 0) {
        ffa_cache *cache;

        for (;;) {
            context = open_context(0);
            for (int i = 0; i < COUNT; i++) {
                ffa_compile_request request = FFA_COMPILE_REQUEST_INIT;
                ffa_compiled *compiled;

                request.template_name = "attention_forward";
                request.settings = &settings[i];
                request.setting_count = 1;
                if (ffa_compile(&compiled, context, &request, NULL) != FFA_OK)
                    _exit(1);
                ffa_compiled_destroy(compiled);
            }
            ffa_close(context);
            if (ffa_cache_open(&cache, store, 0, NULL) == FFA_OK)
                (void)ffa_cache_clear(cache, NULL, NULL);
            ffa_cache_close(cache);
        }
    }
    ck_assert_int_eq(pthread_create(&reader, NULL, read_with_the_other, &other), 0);
    for (int round = 0; round < ROUNDS; round++) {
        context = open_context(0);
        for (int i = 0; i < COUNT; i++) {
            ffa_compile_request request = FFA_COMPILE_REQUEST_INIT;
            ffa_error err = { FFA_OK, 0, "" };
            ffa_compiled *compiled;
            const void *cubin;
            size_t bytes;

            request.template_name = "attention_forward";
            request.settings = &settings[i];
            request.setting_count = 1;
            ck_assert_msg(ffa_compile(&compiled, context, &request, &err) == FFA_OK, "%s",
                          err.message);
            cubin = ffa_compiled_cubin(compiled, &bytes);
            ck_assert(memmem(cubin, bytes, settings[i], strlen(settings[i])));
            ffa_compiled_destroy(compiled);
        }
        ffa_close(context);
    }
    other.stop = true;
    ck_assert_int_eq(pthread_join(reader, NULL), 0);
    ck_assert_int_gt(other.rounds, ROUNDS);
    ck_assert_int_eq(kill(writer, SIGKILL), 0);
    ck_assert_int_eq(waitpid(writer, &status, 0), writer);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    context = open_context(0);
    expect(context, "kv_slots=1", FFA_LAYER_COMPILED);
    ffa_close(context);
    context = open_context(0);
    expect(context, "kv_slots=1", FFA_LAYER_STORE);
    ffa_close(context);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("places");
    TCase *tc = tcase_create("places");
    struct other other;

    tcase_add_checked_fixture(tc, setup, teardown);
    if (may_mount()) {
        tcase_add_loop_test(tc, disk_fills_up_while_open, 0, (int)(sizeof spares / sizeof *spares));
        tcase_add_loop_test(tc, disk_is_full_from_the_start, 0,
                            (int)(sizeof spares / sizeof *spares));
        tcase_add_test(tc, readonly_mount_is_read);
        tcase_add_test(tc, mount_turns_readonly_while_open);
        tcase_add_test(tc, readonly_mount_without_a_store);
        tcase_add_test(tc, readonly_root);
    }
    if (open_other(&other))
        tcase_add_test(tc, two_copies_of_sqlite);
    else
        printf("skipped: two copies of SQLite, as a second cannot be loaded\n");
    tcase_set_timeout(tc, 60);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
