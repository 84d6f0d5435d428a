/* SPDX-License-Identifier: Apache-2.0
 *
 * Contexts that compile in worker processes: the same kernels as in this process, and whatever
 * befalls a worker is one failed kernel. The compiler is one that hangs, crashes and eats memory
 * when it is told to, and writes down in which process it was asked.
 */
#include "base/base.h"
#include "support/fixture.h"
#include "support/suite.h"
#include "support/tmpdir.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char *folder, *store, *asked;

static void setup(void)
{
    folder = tmpdir_make();
    store = tmpdir_path(folder, "kernels.ffadb");
    asked = tmpdir_path(folder, "asked");
    ck_assert_int_eq(setenv("FAKE_NVRTC_LOG", asked, 1), 0);
    ck_assert_int_eq(unsetenv("FAKE_NVRTC_MS"), 0);
    ck_assert_int_eq(unsetenv("FAKE_NVRTC_FAIL"), 0);
    ck_assert_int_eq(unsetenv("FAKE_NVRTC_DO"), 0);
    ck_assert_int_eq(unsetenv("FAKE_NVRTC_GATE"), 0);
    ck_assert_int_eq(unsetenv("FAKE_NVRTC_FREE"), 0);
}

static void teardown(void)
{
    /* Nothing is left running, nor unwaited for. */
    ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), -1);
    ck_assert_int_eq(errno, ECHILD);
    free(asked);
    free(store);
    tmpdir_remove(folder);
}

static ffa_context_opts options(void)
{
    ffa_context_opts opts = fixture_opts(NULL, FFA_TEST_SLOW_NVRTC, NULL);

    opts.worker_path = FFA_TEST_COMMAND;
    return opts;
}

/* Compiles, and drops what came of it. */
static ffa_status try_one(ffa_context *context, const char *setting, ffa_error *err)
{
    ffa_compiled *compiled;
    ffa_status rc = fixture_compile(&compiled, context, setting, 0, err);

    ffa_compiled_destroy(compiled);
    return rc;
}

/* The process that was last asked to compile; waits until there is one. */
static pid_t last_asked(void)
{
    long pid = 0;

    for (int i = 0; i < 60000 && pid == 0; i++) {
        FILE *file = fopen(asked, "re");

        while (file && fscanf(file, "%ld", &pid) == 1)
            ;
        if (file)
            (void)fclose(file);
        if (pid == 0)
            (void)usleep(1000);
    }
    ck_assert_int_gt(pid, 1);
    return (pid_t)pid;
}

/* ---- the same as in this process ---- */

static void expect_same(const ffa_context_opts *inside, const ffa_context_opts *outside)
{
    const ffa_context_opts *both[] = { inside, outside };
    ffa_kernel_info info[2] = { FFA_KERNEL_INFO_INIT, FFA_KERNEL_INFO_INIT };
    ffa_context *contexts[2];
    ffa_compiled *compiled[2];
    const void *cubins[2];
    size_t bytes[2];
    ffa_error err;

    for (int i = 0; i < 2; i++) {
        contexts[i] = fixture_open(both[i]);
        ck_assert_msg(fixture_compile(&compiled[i], contexts[i], "head_dim=64", FFA_COMPILE_PTX,
                                      &err) == FFA_OK,
                      "%s", err.message);
        ck_assert_int_eq(ffa_compiled_info(compiled[i], &info[i], NULL), FFA_OK);
        cubins[i] = ffa_compiled_cubin(compiled[i], &bytes[i]);
    }
    ck_assert_uint_eq(bytes[0], bytes[1]);
    ck_assert(memcmp(cubins[0], cubins[1], bytes[0]) == 0);
    ck_assert_str_eq(ffa_compiled_ptx(compiled[0]), ffa_compiled_ptx(compiled[1]));
    ck_assert_str_eq(info[0].key, info[1].key);
    ck_assert_str_eq(info[0].toolchain, info[1].toolchain);
    ck_assert_int_eq(info[0].registers, info[1].registers);
    for (int i = 0; i < 2; i++) {
        ffa_compiled_destroy(compiled[i]);
        ffa_close(contexts[i]);
    }
}

START_TEST(same_as_in_this_process)
{
    ffa_context_opts outside = options(), inside = options();

    inside.worker_path = NULL;
    expect_same(&inside, &outside);
    ck_assert_int_ne(last_asked(), getpid()); /* the second was not here */
}
END_TEST

START_TEST(same_by_the_real_compiler)
{
    ffa_context_opts outside = options(), inside = options();

    outside.nvrtc_path = inside.nvrtc_path = NULL;
    outside.worker_memory_mib = 4096;
    inside.worker_path = NULL;
    expect_same(&inside, &outside);
}
END_TEST

/* Stored by this process, and found by others. */
START_TEST(kernels_are_stored)
{
    ffa_context_opts opts = options();
    ffa_kernel_info info = FFA_KERNEL_INFO_INIT;
    ffa_compiled *compiled;
    ffa_context *context;
    ffa_error err;

    opts.cache_path = store;
    for (int i = 0; i < 2; i++) {
        context = fixture_open(&opts);
        ck_assert_int_eq(fixture_compile(&compiled, context, NULL, 0, &err), FFA_OK);
        ck_assert_int_eq(ffa_compiled_info(compiled, &info, NULL), FFA_OK);
        ck_assert_int_eq(info.layer, i ? FFA_LAYER_STORE : FFA_LAYER_COMPILED);
        ffa_compiled_destroy(compiled);
        ffa_close(context);
    }
}
END_TEST

/* ---- what befalls a worker ---- */

START_TEST(one_that_hangs_is_killed)
{
    ffa_context_opts opts = options();
    int64_t started = clock_us();
    ffa_context *context;
    ffa_error err;

    opts.worker_timeout_ms = 5000;
    context = fixture_open(&opts);
    ck_assert_int_eq(setenv("FAKE_NVRTC_MS", "60000", 1), 0);
    ck_assert_int_eq(try_one(context, NULL, &err), FFA_TIMEOUT);
    ck_assert_int_ge(clock_us() - started, 5000000);
    ck_assert_int_lt(clock_us() - started, 40000000);
    ck_assert_msg(strstr(err.message, "attention_forward.cu: took longer than 5000 ms"), "%s",
                  err.message);
    ck_assert_int_eq(kill(last_asked(), 0), -1);
    ck_assert_uint_eq(fixture_stats(context).compile_fails, 1);
    ffa_close(context);
}
END_TEST

START_TEST(one_that_crashes_is_a_failed_kernel)
{
    ffa_context_opts opts = options();
    ffa_context *context;
    ffa_error err;

    opts.cache_path = store;
    context = fixture_open(&opts);
    ck_assert_int_eq(setenv("FAKE_NVRTC_DO", "crash", 1), 0);
    ck_assert_int_eq(try_one(context, NULL, &err), FFA_COMPILE);
    ck_assert_msg(
        strstr(err.message, "its compile worker crashed (signal 6), with a limit of 2048"), "%s",
        err.message);
    /* It is not held against the kernel: the next try is one. */
    ck_assert_int_eq(unsetenv("FAKE_NVRTC_DO"), 0);
    ck_assert_int_eq(try_one(context, NULL, &err), FFA_OK);
    ck_assert_uint_eq(fixture_stats(context).compile_fails, 1);
    ck_assert_uint_eq(fixture_stats(context).compiles, 1);
    ffa_close(context);
}
END_TEST

START_TEST(memory_is_limited)
{
    ffa_context_opts opts = options();
    ffa_context *context;
    ffa_error err;
    ffa_status rc;

    opts.worker_memory_mib = 64;
    context = fixture_open(&opts);
    ck_assert_int_eq(setenv("FAKE_NVRTC_DO", "eat", 1), 0);
    rc = try_one(context, NULL, &err);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    ck_assert_int_ne(rc, FFA_OK); /* a sanitizer ends a process that is out of memory */
#else
    ck_assert_msg(rc == FFA_NOMEM, "%s", err.message);
#endif
    ck_assert_int_eq(unsetenv("FAKE_NVRTC_DO"), 0);
    ck_assert_int_eq(try_one(context, NULL, &err), FFA_OK);
    ffa_close(context);
}
END_TEST

static void *kill_the_worker(void *unused)
{
    (void)unused;
    ck_assert_int_eq(kill(last_asked(), SIGKILL), 0);
    return NULL;
}

START_TEST(one_killed_from_outside)
{
    ffa_context_opts opts = options();
    ffa_context *context = fixture_open(&opts);
    pthread_t killer;
    ffa_error err;

    ck_assert_int_eq(setenv("FAKE_NVRTC_MS", "60000", 1), 0);
    ck_assert_int_eq(pthread_create(&killer, NULL, kill_the_worker, NULL), 0);
    ck_assert_int_eq(try_one(context, NULL, &err), FFA_COMPILE);
    ck_assert_int_eq(pthread_join(killer, NULL), 0);
    ck_assert_msg(strstr(err.message, "killed from outside"), "%s", err.message);
    ffa_close(context);
}
END_TEST

/* The job is killed: its worker does not go on for nobody. */
START_TEST(worker_goes_with_its_job)
{
    ffa_context_opts opts = options();
    pid_t job, worker;
    ffa_error err;
    int status;

    ck_assert_int_eq(setenv("FAKE_NVRTC_MS", "60000", 1), 0);
    job = fork();
    if (job == 0) {
        ffa_context *context;

        (void)alarm(60);
        if (ffa_open(&context, FFA_DEVICE_CPU, &opts, NULL) == FFA_OK)
            (void)try_one(context, NULL, &err);
        _exit(1);
    }
    worker = last_asked();
    ck_assert_int_ne(worker, job);
    ck_assert_int_eq(kill(job, SIGKILL), 0);
    ck_assert_int_eq(waitpid(job, &status, 0), job);
    for (int i = 0; i < 60000 && kill(worker, 0) == 0; i++) {
        char name[64], state = 0;
        FILE *file;

        /* A zombie that nobody adopts in a container without an init is gone, too. */
        text_copy(name, "/proc/%d/stat", (int)worker);
        file = fopen(name, "re");
        if (!file || fscanf(file, "%*d %*s %c", &state) != 1 || state == 'Z') {
            if (file)
                (void)fclose(file);
            return;
        }
        (void)fclose(file);
        (void)usleep(1000);
    }
    ck_assert_int_eq(kill(worker, 0), -1);
}
END_TEST

START_TEST(compile_errors_come_with_their_log)
{
    ffa_context_opts opts = options();
    ffa_compiled *compiled;
    ffa_context *context;
    ffa_error err;

    opts.cache_path = store;
    context = fixture_open(&opts);
    ck_assert_int_eq(setenv("FAKE_NVRTC_FAIL", "1", 1), 0);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(fixture_compile(&compiled, context, NULL, 0, &err), FFA_COMPILE);
        ck_assert_msg(strstr(ffa_compiled_log(compiled), "it was told to fail"), "%s",
                      ffa_compiled_log(compiled));
        ffa_compiled_destroy(compiled);
    }
    ck_assert_uint_eq(fixture_stats(context).compile_fails, 1); /* the second was known */
    ck_assert_uint_eq(fixture_stats(context).fails_known, 1);
    ffa_close(context);
}
END_TEST

/* An NVRTC older than the architecture: this machine cannot, which is no fault of the kernel. */
START_TEST(compiler_without_the_architecture)
{
    ffa_context_opts opts = options();
    ffa_context *context;
    ffa_error err;

    opts.cache_path = store;
    if (_i)
        opts.worker_path = NULL;
    context = fixture_open(&opts);
    ck_assert_int_eq(setenv("FAKE_NVRTC_DO", "refuse", 1), 0);
    ck_assert_int_eq(try_one(context, NULL, &err), FFA_UNSUPPORTED);
    ck_assert_int_eq(unsetenv("FAKE_NVRTC_DO"), 0);
    ck_assert_int_eq(try_one(context, NULL, &err), FFA_OK);
    ck_assert_uint_eq(fixture_stats(context).fails_known, 0);
    ffa_close(context);
}
END_TEST

/* ---- what is no worker ---- */

static const struct {
    const char *script; /* NULL: nothing is there */
    ffa_status want;
    const char *says;
} impostors[] = {
    { NULL, FFA_IO, "cannot start the compile worker" },
    { "#!/bin/sh\nexit 3\n", FFA_UNSUPPORTED, "ended with status 3 instead of an answer" },
    { "#!/bin/sh\nprintf 'no message of ours, by no means' >&0\nsleep 60\n", FFA_UNSUPPORTED,
      "answer is not of this version" },
    { "#!/bin/sh\nexec 0<&-\nexec sleep 60\n", FFA_COMPILE, "its compile worker was killed" },
    { "#!/bin/sh\ncat >&0\n", FFA_UNSUPPORTED, "answer is not of this version" },
};

START_TEST(impostors_are_found_out)
{
    char *path = tmpdir_path(folder, "impostor");
    ffa_context_opts opts = options();
    int64_t started = clock_us();
    ffa_context *context;
    ffa_error err;
    ffa_status rc;

    if (impostors[_i].script) {
        tmpdir_write_text(path, impostors[_i].script);
        ck_assert_int_eq(chmod(path, 0700), 0);
    }
    opts.worker_path = path;
    opts.worker_timeout_ms = 20000;
    context = fixture_open(&opts);
    rc = try_one(context, NULL, &err);
    ck_assert_msg(rc == impostors[_i].want && strstr(err.message, impostors[_i].says), "%s: %s",
                  ffa_status_text(rc), err.message);
    ck_assert_int_lt(clock_us() - started, 15000000);
    ffa_close(context);
    free(path);
}
END_TEST

START_TEST(options_are_checked)
{
    static const struct {
        const char *path;
        uint32_t timeout_ms, memory_mib;
        const char *says;
    } cases[] = {
        { "", 0, 0, "worker_path is empty" },
        { NULL, 5, 0, "worker_timeout_ms is 5 and worker_path is NULL" },
        { NULL, 0, 64, "worker_memory_mib is 64 and worker_path is NULL" },
        { FFA_TEST_COMMAND, 0, 31, "worker_memory_mib is 31, not 0 or in [32, 1048576]" },
        { FFA_TEST_COMMAND, 0, 1u << 21, "worker_memory_mib is 2097152" },
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ffa_context_opts opts = options();
        ffa_error err = { FFA_OK, 0, "" };
        ffa_context *context;

        opts.worker_path = cases[i].path;
        opts.worker_timeout_ms = cases[i].timeout_ms;
        opts.worker_memory_mib = cases[i].memory_mib;
        ck_assert_int_eq(ffa_open(&context, FFA_DEVICE_CPU, &opts, &err), FFA_INVALID);
        ck_assert_msg(strstr(err.message, cases[i].says), "%s", err.message);
    }
}
END_TEST

/* ---- many at once, and the host's own habits ---- */

struct gate {
    const char *path;
    int compiles;
    atomic_bool is_met;
};

/* Opens the gate when that many compiles are held at it, or after half a minute. */
static void *open_when_met(void *user)
{
    struct gate *gate = user;
    int lines = 0;

    for (int i = 0; i < 60000 && lines < gate->compiles; i++) {
        FILE *file = fopen(asked, "re");

        (void)usleep(1000);
        lines = 0;
        for (int c = file ? fgetc(file) : EOF; c != EOF; c = fgetc(file))
            lines += c == '\n';
        if (file)
            (void)fclose(file);
    }
    atomic_store(&gate->is_met, lines == gate->compiles);
    tmpdir_write_text(gate->path, "open");
    return NULL;
}

/* A host that cares for no children, or for all of them. */
START_TEST(in_parallel_whatever_the_host_does_with_children)
{
    static const char *const settings[] = { "head_dim=64", "head_dim=128", "dtype=fp16",
                                            "softcap=1" };
    ffa_precompile_report report = FFA_PRECOMPILE_REPORT_INIT;
    ffa_precompile_opts how = FFA_PRECOMPILE_OPTS_INIT;
    ffa_compile_request requests[4];
    ffa_context_opts opts = options();
    ffa_context *context = fixture_open(&opts);
    ffa_error err = { FFA_OK, 0, "" };
    char *path = tmpdir_path(folder, "gate");
    struct gate gate = { .path = path, .compiles = 4 };
    pthread_t opener;

    if (_i)
        ck_assert(signal(SIGCHLD, SIG_IGN) != SIG_ERR);
    ck_assert_int_eq(setenv("FAKE_NVRTC_GATE", path, 1), 0);
    for (int i = 0; i < 4; i++) {
        requests[i] = (ffa_compile_request)FFA_COMPILE_REQUEST_INIT;
        requests[i].template_name = "attention_forward";
        requests[i].settings = &settings[i];
        requests[i].setting_count = 1;
    }
    requests[1].setting_count = 0;
    how.threads = 4;
    ck_assert_int_eq(pthread_create(&opener, NULL, open_when_met, &gate), 0);
    ck_assert_msg(ffa_precompile(context, requests, 4, &how, &report, &err) == FFA_OK, "%s",
                  err.message);
    ck_assert_int_eq(report.compiled, 4);
    ck_assert_int_eq(pthread_join(opener, NULL), 0);
    ck_assert(atomic_load(&gate.is_met)); /* not one after the other */
    ffa_close(context);
    free(path);
}
END_TEST

/* ---- a worker a thread, kept from kernel to kernel ---- */

enum { FEW = 4 };

/* What was told of FEW kernels on one thread. */
struct told {
    ffa_status status[FEW];
    int32_t worker[FEW], signal[FEW];
    bool kills_idle;      /* the worker, whenever it has answered */
    bool cuts_when_asked; /* at the first tick after a compile has begun */
    int ticks;
    volatile int stop;
};

static void hear(void *user, const ffa_precompile_event *event)
{
    struct told *told = user;
    siginfo_t info;

    if (event->index < 0) {
        ck_assert_str_eq(event->message, "");
        told->ticks++;
        if (told->cuts_when_asked && access(asked, F_OK) == 0)
            told->stop = FFA_PRECOMPILE_CUT;
        return;
    }
    ck_assert_int_eq(event->status == FFA_OK, event->info != NULL);
    told->status[event->index] = event->status;
    told->worker[event->index] = event->worker;
    told->signal[event->index] = event->worker_signal;
    if (told->kills_idle) {
        ck_assert_int_eq(kill((pid_t)event->worker, SIGKILL), 0);
        ck_assert_int_eq(waitid(P_PID, (id_t)event->worker, &info, WEXITED | WNOWAIT), 0);
    }
}

static ffa_status precompile_few(struct told *told, ffa_context *context, ffa_error *err)
{
    static const char *const settings[FEW] = { "head_dim=64", "head_dim=128", "dtype=fp16",
                                               "softcap=1" };
    ffa_precompile_opts how = FFA_PRECOMPILE_OPTS_INIT;
    ffa_compile_request few[FEW];

    for (int i = 0; i < FEW; i++) {
        few[i] = (ffa_compile_request)FFA_COMPILE_REQUEST_INIT;
        few[i].template_name = "attention_forward";
        few[i].settings = &settings[i];
        few[i].setting_count = 1;
    }
    how.threads = 1;
    how.event = hear;
    how.user = told;
    how.stop = &told->stop;
    how.tick_ms = 20;
    return ffa_precompile(context, few, FEW, &how, NULL, err);
}

START_TEST(one_worker_compiles_them_all)
{
    ffa_context_opts opts = options();
    ffa_context *context = fixture_open(&opts);
    struct told told = { .stop = 0 };
    ffa_error err = { FFA_OK, 0, "" };

    ck_assert_msg(precompile_few(&told, context, &err) == FFA_OK, "%s", err.message);
    for (int i = 0; i < FEW; i++) {
        ck_assert_int_eq(told.worker[i], told.worker[0]);
        ck_assert_int_eq(told.signal[i], 0);
    }
    ck_assert_int_gt(told.worker[0], 1);
    ck_assert_int_ne(told.worker[0], getpid());
    ck_assert_int_eq(told.worker[0], last_asked());
    ffa_close(context);
}
END_TEST

/* After a crash, after a time-out, and where the compiler says that memory ran out. */
START_TEST(a_fresh_one_takes_over)
{
    static const struct {
        const char *variable, *value;
        ffa_status status;
        int signal;
    } rows[] = { { "FAKE_NVRTC_DO", "crash", FFA_COMPILE, SIGABRT },
                 { "FAKE_NVRTC_MS", "60000", FFA_TIMEOUT, 0 },
                 { "FAKE_NVRTC_DO", "short", FFA_NOMEM, 0 } };
    ffa_context_opts opts = options();
    struct told told = { .stop = 0 };
    ffa_context *context;
    ffa_error err;

    opts.worker_timeout_ms = rows[_i].status == FFA_TIMEOUT ? 200 : 60000;
    ck_assert_int_eq(setenv(rows[_i].variable, rows[_i].value, 1), 0);
    context = fixture_open(&opts);
    ck_assert_int_ne(precompile_few(&told, context, &err), FFA_OK);
    for (int i = 0; i < FEW; i++) {
        ck_assert_int_eq(told.status[i], rows[_i].status);
        ck_assert_int_eq(told.signal[i], rows[_i].signal);
        for (int j = 0; j < i; j++)
            ck_assert_int_ne(told.worker[i], told.worker[j]);
    }
    ffa_close(context);
}
END_TEST

/* An idle worker is not killed: what it has to do at its end, it does. */
START_TEST(idle_workers_end_in_order)
{
    ffa_context_opts opts = options();
    ffa_precompile_opts how = FFA_PRECOMPILE_OPTS_INIT;
    const char *const settings[] = { "head_dim=64", "head_dim=96", "head_dim=128" };
    char *ended = tmpdir_path(folder, "ended");
    ffa_compile_request requests[3];
    ffa_context_stats stats;
    ffa_context *context;
    long asked_in = 0, ended_as = 0;
    ffa_error err = { FFA_OK, 0, "" };
    FILE *file;

    ck_assert_int_eq(setenv("FAKE_NVRTC_END", ended, 1), 0);
    for (int i = 0; i < 3; i++) {
        requests[i] = (ffa_compile_request)FFA_COMPILE_REQUEST_INIT;
        requests[i].template_name = "attention_forward";
        requests[i].settings = &settings[i];
        requests[i].setting_count = 1;
    }
    how.threads = 1;
    context = fixture_open(&opts);
    ck_assert_msg(ffa_precompile(context, requests, 3, &how, NULL, &err) == FFA_OK, "%s",
                  err.message);
    stats = fixture_stats(context);
    ck_assert_uint_eq(stats.compiles, 3);
    ffa_close(context);
    asked_in = last_asked();
    file = fopen(ended, "re");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fscanf(file, "%ld", &ended_as), 1);
    ck_assert_int_eq(ended_as, asked_in);
    (void)fclose(file);
    ck_assert_int_eq(unsetenv("FAKE_NVRTC_END"), 0);
    free(ended);
}
END_TEST

/* Whatever a worker started ends with it: at a time-out, at a crash, and in order. */
START_TEST(what_a_worker_started_ends_with_it)
{
    static const char *const waits[] = { "60000", "0" };
    ffa_context_opts opts = options();
    ffa_context *context;
    ffa_error err = { FFA_OK, 0, "" };
    int file, tries = 0;

    opts.worker_timeout_ms = _i == 0 ? 5000 : 60000;
    ck_assert_int_eq(setenv("FAKE_NVRTC_MS", waits[_i], 1), 0);
    ck_assert_int_eq(setenv("FAKE_NVRTC_DO", "fork", 1), 0);
    context = fixture_open(&opts);
    ck_assert_int_eq(try_one(context, NULL, &err), _i == 0 ? FFA_TIMEOUT : FFA_OK);
    ffa_close(context);
    file = open(asked, O_RDONLY | O_CLOEXEC);
    ck_assert_int_ge(file, 0);
    /* A killed process lets go of its lock a moment later. */
    while (flock(file, LOCK_EX | LOCK_NB) != 0 && tries++ < 60000)
        (void)usleep(1000);
    ck_assert_int_lt(tries, 60000);
    (void)close(file);
}
END_TEST

/* No kernel is at fault for a worker that dies between two. */
START_TEST(one_that_dies_idle_is_replaced)
{
    ffa_context_opts opts = options();
    ffa_context *context = fixture_open(&opts);
    struct told told = { .kills_idle = true };
    ffa_error err = { FFA_OK, 0, "" };

    ck_assert_msg(precompile_few(&told, context, &err) == FFA_OK, "%s", err.message);
    for (int i = 1; i < FEW; i++)
        ck_assert_int_ne(told.worker[i], told.worker[i - 1]);
    ffa_close(context);
}
END_TEST

/* The worker goes at once, and nothing goes on behind. */
START_TEST(a_cut_ends_the_worker)
{
    ffa_cache_counters counters = FFA_CACHE_COUNTERS_INIT;
    ffa_context_opts opts = options();
    ffa_context *context;
    ffa_cache *cache;
    struct told told = { .cuts_when_asked = true };
    int64_t started = clock_us();
    ffa_error err;

    opts.cache_path = store;
    context = fixture_open(&opts);
    ck_assert_int_eq(setenv("FAKE_NVRTC_MS", "60000", 1), 0);
    ck_assert_int_eq(precompile_few(&told, context, &err), FFA_TIMEOUT);
    ck_assert_msg(strstr(err.message, "stopped with 4 of 4 kernels unfinished"), "%s", err.message);
    ck_assert_int_ge(told.ticks, 1);
    ck_assert_int_eq(told.worker[0], 0); /* nobody was told of a failure */
    ffa_close(context);
    ck_assert_int_lt(clock_us() - started, 40000000);
    ck_assert_int_eq(ffa_cache_open(&cache, store, FFA_CACHE_READONLY, NULL), FFA_OK);
    ck_assert_int_eq(ffa_cache_counters_get(cache, &counters, NULL), FFA_OK);
    ck_assert_uint_eq(counters.misses, 1);
    ck_assert_uint_eq(counters.compile_fails, 0); /* it is no failure of the kernel */
    ffa_cache_close(cache);
}
END_TEST

static const enum fault_kind fault_kinds[] = { FAULT_ALLOC, FAULT_FILE };

START_TEST(every_failure_is_clean)
{
    ffa_context_opts opts = options();
    ffa_context *context = fixture_open(&opts);
    ffa_error err;
    long nth;

    for (nth = 1; nth < 200; nth++) {
        bool fired;
        ffa_compiled *compiled;
        ffa_status rc;

        fault_arm(fault_kinds[_i], nth);
        rc = fixture_compile(&compiled, context, NULL, FFA_COMPILE_FORCE, &err);
        fired = fault_fired();
        fault_arm(fault_kinds[_i], 0);
        ffa_compiled_destroy(compiled);
        ck_assert_msg(rc == FFA_OK || fired, "%s", err.message);
        ck_assert_int_eq(rc == FFA_OK, err.message[0] == '\0');
        if (!fired)
            break;
    }
    ck_assert_int_gt(nth, 1);
    ck_assert_int_lt(nth, 200);
    ffa_close(context);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("worker");
    TCase *tc = tcase_create("worker");

    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, same_as_in_this_process);
    tcase_add_test(tc, kernels_are_stored);
    tcase_add_test(tc, one_that_hangs_is_killed);
    tcase_add_test(tc, one_that_crashes_is_a_failed_kernel);
    tcase_add_test(tc, memory_is_limited);
    tcase_add_test(tc, one_killed_from_outside);
    tcase_add_test(tc, worker_goes_with_its_job);
    tcase_add_test(tc, compile_errors_come_with_their_log);
    tcase_add_loop_test(tc, impostors_are_found_out, 0,
                        (int)(sizeof impostors / sizeof *impostors));
    tcase_add_loop_test(tc, compiler_without_the_architecture, 0, 2);
    tcase_add_test(tc, options_are_checked);
    tcase_add_loop_test(tc, in_parallel_whatever_the_host_does_with_children, 0, 2);
    tcase_add_test(tc, one_worker_compiles_them_all);
    tcase_add_loop_test(tc, a_fresh_one_takes_over, 0, 3);
    tcase_add_test(tc, idle_workers_end_in_order);
    tcase_add_loop_test(tc, what_a_worker_started_ends_with_it, 0, 2);
    tcase_add_test(tc, one_that_dies_idle_is_replaced);
    tcase_add_test(tc, a_cut_ends_the_worker);
    tcase_add_loop_test(tc, every_failure_is_clean, 0,
                        (int)(sizeof fault_kinds / sizeof *fault_kinds));
    if (watch_has_nvrtc())
        tcase_add_test(tc, same_by_the_real_compiler);
    tcase_set_timeout(tc, 180);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
