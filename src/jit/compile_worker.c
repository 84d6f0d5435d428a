/* SPDX-License-Identifier: Apache-2.0
 *
 * Both ends of a compile worker. A worker has one socket, its standard input: it answers one
 * request after another until the socket is closed. A request is the whole job, text and options,
 * so a worker knows nothing of templates and keys. A message is a head (what it is, how long it is)
 * and a body of numbers and texts.
 *
 * Invariant: a worker is used again only after a whole answer; whatever else comes, a time-out, a
 * death, bytes of no message, ends it, so that an answer is never taken for that of another job.
 * A worker leads a process group of its own, and whatever it started ends with it. One that is idle
 * ends by itself, in order; only one that is at work, or does not end, is killed.
 */
#include "jit/compile_worker.h"

#include "base/limit.h"

#include <ffa/kernel.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
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

/* ---- messages ---- */

static const char magic[8] = "ffaw\0\0\0\2"; /* the last byte: the version */
enum { MESSAGE_BYTES_MAX = 1 << 28, HEADERS_MAX = 1024 };

struct head {
    char magic[sizeof magic];
    uint64_t bytes; /* of the body */
};

static void put_number(struct text *body, int64_t number)
{
    text_add_bytes(body, &number, sizeof number);
}

/* NULL is told from "". */
static void put_bytes(struct text *body, const void *bytes, size_t count)
{
    put_number(body, bytes ? (int64_t)count : -1);
    if (bytes) {
        text_add_bytes(body, bytes, count);
        text_add_bytes(body, "", 1);
    }
}

static void put_text(struct text *body, const char *text)
{
    put_bytes(body, text, text ? strlen(text) : 0);
}

/* What came, read from its beginning. */
struct body {
    const char *at;
    size_t left;
    bool is_bad;
};

static int64_t take_number(struct body *body)
{
    int64_t number = 0;

    body->is_bad |= body->left < sizeof number;
    if (body->is_bad)
        return 0;
    memcpy(&number, body->at, sizeof number);
    body->at += sizeof number;
    body->left -= sizeof number;
    return number;
}

/* Into the body, and terminated there. */
static const char *take_bytes(struct body *body, size_t *count)
{
    int64_t bytes = take_number(body);
    const char *at = body->at;

    *count = 0;
    if (bytes == -1 || body->is_bad)
        return NULL;
    if (bytes < 0 || (uint64_t)bytes >= body->left || at[bytes] != '\0') {
        body->is_bad = true;
        return NULL;
    }
    *count = (size_t)bytes;
    body->at += bytes + 1;
    body->left -= (size_t)bytes + 1;
    return at;
}

static const char *take_text(struct body *body)
{
    size_t count;

    return take_bytes(body, &count);
}

/* ---- bytes over a socket, until a time ---- */

enum moved { MOVED_ALL, MOVED_END, MOVED_LATE };
enum { CUT_POLL_MS = 20 }; /* how often a cut is looked for */

/* How long to wait; both may be absent. */
struct patience {
    int64_t deadline_us; /* 0: none */
    const atomic_bool *is_cut;
};

/* Milliseconds for poll(); 0 where it is too late. */
static int wait_ms(const struct patience *patience)
{
    int64_t ms = INT32_MAX;

    if (patience->is_cut && atomic_load(patience->is_cut))
        return 0;
    if (patience->deadline_us) {
        int64_t left_us = patience->deadline_us - clock_us();

        ms = left_us <= 0 ? 0 : left_us / 1000 + 1;
    }
    if (patience->is_cut && ms > CUT_POLL_MS)
        ms = CUT_POLL_MS;
    return ms > INT32_MAX ? INT32_MAX : (int)ms;
}

static bool wait_ready(int socket, short events, const struct patience *patience)
{
    struct pollfd poll_for = { .fd = socket, .events = events };

    for (;;) {
        int ms = wait_ms(patience);

        if (ms == 0)
            return false;
        if (poll(&poll_for, 1, ms) > 0)
            return true;
    }
}

static enum moved move_bytes(int socket, bool is_sending, char *bytes, size_t count,
                             const struct patience *patience)
{
    while (count) {
        ssize_t moved;

        if (!wait_ready(socket, is_sending ? POLLOUT : POLLIN, patience))
            return MOVED_LATE;
        moved = is_sending ? send(socket, bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT)
                           : recv(socket, bytes, count, MSG_DONTWAIT);
        if (moved < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (moved <= 0)
            return MOVED_END;
        bytes += moved;
        count -= (size_t)moved;
    }
    return MOVED_ALL;
}

static enum moved send_body(int socket, struct text *body, const struct patience *patience)
{
    struct head head = { .bytes = body->bytes };
    enum moved moved;

    memcpy(head.magic, magic, sizeof magic);
    moved = move_bytes(socket, true, (char *)&head, sizeof head, patience);
    return moved == MOVED_ALL ? move_bytes(socket, true, body->at, body->bytes, patience) : moved;
}

/* *out: the caller's to free. FFA_TIMEOUT; FFA_IO: it ended before; FFA_UNSUPPORTED: no message of
 * ours; FFA_NOMEM. */
static ffa_status receive_body(int socket, char **out, size_t *bytes,
                               const struct patience *patience)
{
    struct head head;
    enum moved moved = move_bytes(socket, false, (char *)&head, sizeof head, patience);

    *out = NULL;
    if (moved != MOVED_ALL)
        return moved == MOVED_LATE ? FFA_TIMEOUT : FFA_IO;
    if (memcmp(head.magic, magic, sizeof magic) != 0 || head.bytes > MESSAGE_BYTES_MAX)
        return FFA_UNSUPPORTED;
    *bytes = (size_t)head.bytes;
    *out = mem_array(*bytes + 1, 1);
    if (!*out)
        return FFA_NOMEM;
    moved = move_bytes(socket, false, *out, *bytes, patience);
    return moved == MOVED_ALL ? FFA_OK : moved == MOVED_LATE ? FFA_TIMEOUT : FFA_IO;
}

/* ---- the worker's end ---- */

/* A list of texts; the caller frees it. NULL, and a bad body, for one that is none. */
static const char **take_list(struct body *body, int *count)
{
    int64_t wanted = take_number(body);
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
        list[i] = take_text(body);
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
static ffa_status compile_request(struct workbench *bench, struct body *body,
                                  struct nvrtc_output *out, ffa_error *err)
{
    int64_t parent = take_number(body), memory_bytes = take_number(body);
    const char *path = take_text(body);
    const char *name = take_text(body), *text = take_text(body);
    struct nvrtc_job job = { .name = name, .text = text };
    int count;
    const char **names = take_list(body, &job.header_count);
    const char **headers = take_list(body, &count);
    const char **options = take_list(body, &job.option_count);
    ffa_status rc = FFA_OK;

    job.want_ptx = take_number(body);
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

static enum moved answer_request(struct workbench *bench, struct body *body)
{
    static const struct patience endless = { 0 };
    struct nvrtc_output out = { 0 };
    ffa_error err = { FFA_OK, 0, "" };
    struct text answer = { 0 };
    ffa_status rc = compile_request(bench, body, &out, &err);
    enum moved moved;

    put_number(&answer, rc);
    put_number(&answer, err.native);
    put_text(&answer, err.message);
    put_number(&answer, out.is_final);
    put_text(&answer, out.log);
    put_text(&answer, out.ptx);
    put_bytes(&answer, out.cubin, out.cubin_bytes);
    moved = answer.failed ? MOVED_END : send_body(STDIN_FILENO, &answer, &endless);
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
        struct body body = { 0 };
        char *bytes;
        ffa_status rc = receive_body(STDIN_FILENO, &bytes, &body.left, &endless);

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
    put_number(body, getpid());
    put_number(body, opts->memory_bytes);
    put_text(body, nvrtc_path);
    put_text(body, job->name);
    put_text(body, job->text);
    put_number(body, job->header_count);
    for (int i = 0; i < job->header_count; i++)
        put_text(body, job->header_names[i]);
    put_number(body, job->header_count);
    for (int i = 0; i < job->header_count; i++)
        put_text(body, job->headers[i]);
    put_number(body, job->option_count);
    for (int i = 0; i < job->option_count; i++)
        put_text(body, job->options[i]);
    put_number(body, job->want_ptx);
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

static ffa_status read_answer(struct body *body, struct nvrtc_output *out, ffa_error *err)
{
    int64_t status = take_number(body);
    int32_t native = (int32_t)take_number(body);
    const char *message = take_text(body);
    const char *log, *ptx, *cubin;
    size_t log_bytes, ptx_bytes, cubin_bytes;
    bool failed = false;

    out->is_final = take_number(body);
    log = take_bytes(body, &log_bytes);
    ptx = take_bytes(body, &ptx_bytes);
    cubin = take_bytes(body, &cubin_bytes);
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
    moved = send_body(worker->socket, request, &patience);
    rc = moved == MOVED_ALL ? receive_body(worker->socket, answer, bytes, &patience)
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
    struct body body = { 0 };
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
