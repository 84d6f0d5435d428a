/* SPDX-License-Identifier: Apache-2.0
 *
 * Both ends of a compile worker. A worker has one socket, its standard input: it answers one
 * request after another until the socket is closed. A request is the whole job, text and options,
 * so a worker knows nothing of templates and keys.
 *
 * Invariant: a worker is used again only after a whole answer; whatever else comes, a time-out, a
 * death, bytes of no message, ends it, so that an answer is never taken for that of another job.
 * A worker leads a process group of its own, and whatever it started ends with it. One that is idle
 * ends by itself, in order; only one that is at work, or does not end, is killed.
 */
#include "jit/compile_worker.h"

#include "base/limit.h"
#include "jit/worker_message.h"

#include <ffa/kernel.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* The library reads no variable; a worker gets them all, as a forked process would. */
extern char **environ;

/* ---- the worker's end ---- */

enum { HEADERS_MAX = 1024 };

/* A list of texts; the caller frees it. NULL, and a bad body, for one that is none. */
static const char **take_list(struct message *body, int *count)
{
    int64_t wanted = message_take_number(body);
    const char **list;

    *count = 0;
    body->is_bad |= wanted < 0 || wanted > HEADERS_MAX;
    list = body->is_bad ? NULL : mem_array((size_t)wanted, sizeof *list);
    if (!list) {
        body->is_bad = true;
        return NULL;
    }
    *count = (int)wanted;
    for (int i = 0; i < *count; i++) {
        list[i] = message_take_text(body);
        body->is_bad |= !list[i];
    }
    return list;
}

/* What a worker keeps from request to request. */
struct workbench {
    struct nvrtc *nvrtc; /* NULL until the first request */
};

/* The first request says which compiler, and how much memory all compiles may take. */
static ffa_status open_bench(struct workbench *bench, const char *path, int64_t memory_bytes,
                             ffa_error *err)
{
    ffa_status rc = FFA_OK;

    if (bench->nvrtc)
        return FFA_OK;
    FFA_TRY(nvrtc_open(&bench->nvrtc, path, err));
    limit_memory(memory_bytes);
out:
    return rc;
}

/* What the request of `body` comes to. Not a request of ours: FFA_UNSUPPORTED. */
static ffa_status compile_request(struct workbench *bench, struct message *body,
                                  struct nvrtc_output *out, ffa_error *err)
{
    int64_t parent = message_take_number(body), memory_bytes = message_take_number(body);
    const char *path = message_take_text(body);
    const char *name = message_take_text(body), *text = message_take_text(body);
    struct nvrtc_job job = { .name = name, .text = text };
    int count;
    const char **names = take_list(body, &job.header_count);
    const char **headers = take_list(body, &count);
    const char **options = take_list(body, &job.option_count);
    ffa_status rc = FFA_OK;

    job.want_ptx = message_take_number(body);
    job.header_names = names;
    job.headers = headers;
    job.options = options;
    if (body->is_bad || count != job.header_count || !path || !job.name || !job.text)
        rc = error_fail(err, FFA_UNSUPPORTED, 0, "the request is not of this version");
    /* Its parent ended after it was started and before it asked to end with it. */
    else if (getppid() != (pid_t)parent)
        rc = error_fail(err, FFA_IO, 0, "the process that asked is gone");
    else
        rc = open_bench(bench, path, memory_bytes, err);
    if (rc == FFA_OK)
        rc = nvrtc_compile(bench->nvrtc, &job, out, err);
    mem_free(names);
    mem_free(headers);
    mem_free(options);
    return rc;
}

static enum moved answer_request(struct workbench *bench, struct message *body)
{
    static const struct patience endless = { 0 };
    struct nvrtc_output out = { 0 };
    ffa_error err = { FFA_OK, 0, "" };
    struct text answer = { 0 };
    ffa_status rc = compile_request(bench, body, &out, &err);
    enum moved moved;

    message_put_number(&answer, rc);
    message_put_number(&answer, err.native);
    message_put_text(&answer, err.message);
    message_put_number(&answer, out.is_final);
    message_put_text(&answer, out.log);
    message_put_text(&answer, out.ptx);
    message_put_bytes(&answer, out.cubin, out.cubin_bytes);
    moved = answer.failed ? MOVED_END : message_send(STDIN_FILENO, &answer, &endless);
    text_finish(&answer);
    mem_free(out.log);
    mem_free(out.ptx);
    mem_free(out.cubin);
    return moved;
}

int ffa_worker_main(void)
{
    static const struct patience endless = { 0 };
    struct workbench bench = { 0 };
    enum moved moved = MOVED_ALL;
    int answered = 0;

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)setrlimit(RLIMIT_CORE, &(struct rlimit){ 0, 0 });
    while (moved == MOVED_ALL) {
        struct message body = { 0 };
        char *bytes;
        ffa_status rc = message_receive(STDIN_FILENO, &bytes, &body.left, &endless);

        body.at = bytes;
        moved = rc == FFA_OK ? answer_request(&bench, &body) : MOVED_END;
        answered += moved == MOVED_ALL;
        mem_free(bytes);
    }
    nvrtc_close(bench.nvrtc);
    return answered ? 0 : 1;
}

/* ---- the other end ---- */

static bool build_request(struct text *body, const struct worker_opts *opts, const char *nvrtc_path,
                          const struct nvrtc_job *job)
{
    message_put_number(body, getpid());
    message_put_number(body, opts->memory_bytes);
    message_put_text(body, nvrtc_path);
    message_put_text(body, job->name);
    message_put_text(body, job->text);
    message_put_number(body, job->header_count);
    for (int i = 0; i < job->header_count; i++)
        message_put_text(body, job->header_names[i]);
    message_put_number(body, job->header_count);
    for (int i = 0; i < job->header_count; i++)
        message_put_text(body, job->headers[i]);
    message_put_number(body, job->option_count);
    for (int i = 0; i < job->option_count; i++)
        message_put_text(body, job->options[i]);
    message_put_number(body, job->want_ptx);
    return !body->failed;
}

/* Of the process that asks, it takes the socket, the environment and stderr. SIGINT and SIGTERM are
 * blocked: a ^C, and what 'timeout' or a launcher sends, reaches a whole group of processes, and it
 * is the asking one's to say who goes. */
static int set_up(posix_spawn_file_actions_t *actions, posix_spawnattr_t *attributes, int socket)
{
    sigset_t blocked, all;
    int code = posix_spawn_file_actions_adddup2(actions, socket, STDIN_FILENO);

    if (code == 0)
        code = posix_spawn_file_actions_addopen(actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
#if defined(__GLIBC_PREREQ) && __GLIBC_PREREQ(2, 34)
    if (code == 0)
        code = posix_spawn_file_actions_addclosefrom_np(actions, STDERR_FILENO + 1);
#endif
    (void)sigemptyset(&blocked);
    (void)sigaddset(&blocked, SIGINT);
    (void)sigaddset(&blocked, SIGTERM);
    (void)sigfillset(&all);
    (void)posix_spawnattr_setsigmask(attributes, &blocked);
    (void)posix_spawnattr_setsigdefault(attributes, &all);
    (void)posix_spawnattr_setpgroup(attributes, 0);
    (void)posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
                                                   POSIX_SPAWN_SETPGROUP);
    return code;
}

/* An errno. */
static int spawn_on(pid_t *out, const char *path, int socket)
{
    char name[] = "kernel-worker";
    char *const args[] = { (char *)(uintptr_t)path, name, NULL };
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    int code = posix_spawn_file_actions_init(&actions);

    if (code != 0)
        return code;
    code = posix_spawnattr_init(&attributes);
    if (code == 0) {
        code = set_up(&actions, &attributes, socket);
        if (code == 0)
            code = fault_here(FAULT_FILE)
                       ? EAGAIN
                       : posix_spawn(out, path, &actions, &attributes, args, environ);
        (void)posix_spawnattr_destroy(&attributes);
    }
    (void)posix_spawn_file_actions_destroy(&actions);
    return code;
}

static ffa_status start(struct worker *worker, const struct worker_opts *opts, ffa_error *err)
{
    int ends[2] = { -1, -1 };
    int code = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0 ? 0 : errno;

    if (code == 0)
        code = spawn_on(&worker->pid, opts->path, ends[1]);
    if (ends[1] >= 0)
        (void)close(ends[1]);
    if (code == 0) {
        worker->socket = ends[0];
        return FFA_OK;
    }
    worker->pid = 0;
    if (ends[0] >= 0)
        (void)close(ends[0]);
    return error_fail(err, FFA_IO, code, "cannot start the compile worker '%s': %s", opts->path,
                      strerror(code));
}

/* Of a process: it runs; it has ended and is to be waited for; the system waited for it. */
enum life { RUNS, ENDED, GONE };

static enum life look_at(const struct worker *worker)
{
    siginfo_t info = { .si_pid = 0 };

    if (waitid(P_PID, (id_t)worker->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0)
        return GONE;
    return info.si_pid ? ENDED : RUNS;
}

/* Take the process away, dead or alive, and what it started; how it ended where it ended by itself,
 * 0 where this process was told not to care for its children. Until it is waited for, the number of
 * its group is nobody else's. */
static int finish_off(struct worker *worker)
{
    int status = 0;

    if (look_at(worker) != GONE) {
        (void)kill(-worker->pid, SIGKILL);
        (void)kill(worker->pid, SIGKILL);
    }
    while (waitpid(worker->pid, &status, 0) < 0)
        if (errno != EINTR) {
            status = 0;
            break;
        }
    if (worker->socket >= 0)
        (void)close(worker->socket);
    worker->pid = 0;
    return status;
}

/* Close the socket of an idle worker, at which it ends, and wait a while for that. */
static void dismiss(struct worker *worker)
{
    enum { PATIENCE_US = 2000000 };
    const int64_t deadline_us = clock_us() + PATIENCE_US;
    int64_t pause_us = 200;

    (void)close(worker->socket);
    worker->socket = -1;
    while (look_at(worker) == RUNS && clock_us() < deadline_us) {
        (void)nanosleep(&(struct timespec){ .tv_nsec = (long)pause_us * 1000 }, NULL);
        pause_us = min64(2 * pause_us, 20000);
    }
}

void worker_end(struct worker *worker)
{
    if (!worker->pid)
        return;
    if (!worker->is_busy)
        dismiss(worker);
    (void)finish_off(worker);
}

void worker_forget(struct worker *worker)
{
    worker->asked = 0;
    worker->signal = 0;
    worker->exit_status = -1;
}

/* One that died since its last answer is replaced: no kernel is at fault. */
static ffa_status make_ready(struct worker *worker, const struct worker_opts *opts, ffa_error *err)
{
    worker_forget(worker);
    if (worker->pid && look_at(worker) != RUNS)
        (void)finish_off(worker);
    return worker->pid ? FFA_OK : start(worker, opts, err);
}

/* It ended before its answer: how, for the message and for *worker. */
static ffa_status blame(struct worker *worker, const struct worker_opts *opts, const char *name,
                        ffa_error *err)
{
    long long mib = opts->memory_bytes >> 20;
    int status = finish_off(worker);

    if (WIFSIGNALED(status))
        worker->signal = WTERMSIG(status);
    else
        worker->exit_status = WEXITSTATUS(status);
    if (worker->signal == SIGKILL)
        return error_fail(err, FFA_COMPILE, 0,
                          "%s: its compile worker was killed from outside (signal 9: somebody, or "
                          "the system, short of memory)",
                          name);
    if (worker->signal)
        return error_fail(err, FFA_COMPILE, 0,
                          "%s: its compile worker crashed (signal %d), with a limit of %lld MiB",
                          name, worker->signal, mib);
    return error_fail(err, FFA_UNSUPPORTED, 0,
                      "'%s' ended with status %d instead of an answer: is it a compile worker of "
                      "this version of the library?",
                      opts->path, worker->exit_status);
}

static ffa_status not_ours(ffa_error *err)
{
    return error_fail(err, FFA_UNSUPPORTED, 0,
                      "a compile worker's answer is not of this version of the library");
}

static void *copy_of(const char *bytes, size_t count, bool *failed)
{
    char *copy = bytes ? mem_array(count + 1, 1) : NULL;

    if (copy)
        memcpy(copy, bytes, count);
    *failed |= bytes && !copy;
    return copy;
}

static ffa_status read_answer(struct message *body, struct nvrtc_output *out, ffa_error *err)
{
    int64_t status = message_take_number(body);
    int32_t native = (int32_t)message_take_number(body);
    const char *message = message_take_text(body);
    const char *log, *ptx, *cubin;
    size_t log_bytes, ptx_bytes, cubin_bytes;
    bool failed = false;

    out->is_final = message_take_number(body);
    log = message_take_bytes(body, &log_bytes);
    ptx = message_take_bytes(body, &ptx_bytes);
    cubin = message_take_bytes(body, &cubin_bytes);
    if (body->is_bad || !message || status < 0 || status > FFA_NOT_FOUND ||
        (status == FFA_OK && !cubin))
        return not_ours(err);
    out->log = copy_of(log, log_bytes, &failed);
    out->ptx = copy_of(ptx, ptx_bytes, &failed);
    out->cubin = copy_of(cubin, cubin_bytes, &failed);
    out->cubin_bytes = cubin_bytes;
    if (failed)
        return error_nomem(err, "a compile worker's answer");
    return status == FFA_OK ? FFA_OK : error_fail(err, (ffa_status)status, native, "%s", message);
}

static bool is_cut(const struct worker *worker)
{
    return worker->is_cut && atomic_load(worker->is_cut);
}

static ffa_status cut_off(const char *name, ffa_error *err)
{
    return error_fail(err, FFA_TIMEOUT, 0, "%s: cut off", name);
}

/* The answer to a request that was sent; whoever does not answer is ended. */
static ffa_status exchange(struct worker *worker, const struct worker_opts *opts, const char *name,
                           struct text *request, char **answer, size_t *bytes, ffa_error *err)
{
    struct patience patience = { clock_us() + 1000 * opts->timeout_ms, worker->is_cut };
    enum moved moved;
    ffa_status rc;

    worker->is_busy = true;
    moved = message_send(worker->socket, request, &patience);
    rc = moved == MOVED_ALL ? message_receive(worker->socket, answer, bytes, &patience)
                            : (moved == MOVED_LATE ? FFA_TIMEOUT : FFA_IO);
    worker->is_busy = rc != FFA_OK;
    if (rc == FFA_IO)
        return blame(worker, opts, name, err);
    if (rc != FFA_OK)
        worker_end(worker);
    if (rc == FFA_TIMEOUT && is_cut(worker))
        return cut_off(name, err);
    if (rc == FFA_TIMEOUT)
        return error_fail(
            err, rc, 0,
            "%s: took longer than %lld ms (worker_timeout_ms); its compile worker was "
            "killed",
            name, (long long)opts->timeout_ms);
    if (rc == FFA_NOMEM)
        return error_nomem(err, "a compile worker's answer");
    return rc == FFA_OK ? FFA_OK : not_ours(err);
}

ffa_status worker_compile(struct worker *worker, const struct worker_opts *opts,
                          const char *nvrtc_path, const struct nvrtc_job *job,
                          struct nvrtc_output *out, ffa_error *err)
{
    struct text request = { 0 };
    struct message body = { 0 };
    char *answer = NULL;
    ffa_status rc;

    *out = (struct nvrtc_output){ 0 };
    if (is_cut(worker))
        return cut_off(job->name, err);
    if (!build_request(&request, opts, nvrtc_path, job)) {
        rc = error_nomem(err, "a compile worker's request");
        goto out;
    }
    FFA_TRY(make_ready(worker, opts, err));
    worker->asked = worker->pid;
    FFA_TRY(exchange(worker, opts, job->name, &request, &answer, &body.left, err));
    body.at = answer;
    rc = read_answer(&body, out, err);
    if (rc != FFA_OK && !out->is_final)
        worker_end(worker);
out:
    text_finish(&request);
    mem_free(answer);
    return rc;
}
