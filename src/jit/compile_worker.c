/* SPDX-License-Identifier: Apache-2.0
 *
 * Both ends of a compile worker. A worker has one socket, its standard input: a request comes in,
 * an answer goes out, and it ends. The request is the whole job, text and options, so a worker
 * knows nothing of templates and keys. A message is a head (what it is, how long it is) and a body
 * of numbers and texts.
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
#include <unistd.h>

/* The library reads no variable; a worker gets them all, as a forked process would. */
extern char **environ;

/* ---- messages ---- */

static const char magic[8] = "ffaw\0\0\0\1"; /* the last byte: the version of the body */
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

/* deadline_us 0: none. */
static bool wait_ready(int socket, short events, int64_t deadline_us)
{
    struct pollfd poll_for = { .fd = socket, .events = events };

    for (;;) {
        int64_t left_us = deadline_us - clock_us();

        if (deadline_us && left_us <= 0)
            return false;
        if (poll(&poll_for, 1,
                 !deadline_us                          ? -1
                 : left_us > 1000 * (int64_t)INT32_MAX ? INT32_MAX
                                                       : (int)(left_us / 1000) + 1) > 0)
            return true;
    }
}

static enum moved move_bytes(int socket, bool is_sending, char *bytes, size_t count,
                             int64_t deadline_us)
{
    while (count) {
        ssize_t moved;

        if (!wait_ready(socket, is_sending ? POLLOUT : POLLIN, deadline_us))
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

static enum moved send_body(int socket, struct text *body, int64_t deadline_us)
{
    struct head head = { .bytes = body->bytes };
    enum moved moved;

    memcpy(head.magic, magic, sizeof magic);
    moved = move_bytes(socket, true, (char *)&head, sizeof head, deadline_us);
    return moved == MOVED_ALL ? move_bytes(socket, true, body->at, body->bytes, deadline_us)
                              : moved;
}

/* *out: the caller's to free. FFA_TIMEOUT; FFA_IO: it ended before; FFA_UNSUPPORTED: no message of
 * ours; FFA_NOMEM. */
static ffa_status receive_body(int socket, char **out, size_t *bytes, int64_t deadline_us)
{
    struct head head;
    enum moved moved = move_bytes(socket, false, (char *)&head, sizeof head, deadline_us);

    *out = NULL;
    if (moved != MOVED_ALL)
        return moved == MOVED_LATE ? FFA_TIMEOUT : FFA_IO;
    if (memcmp(head.magic, magic, sizeof magic) != 0 || head.bytes > MESSAGE_BYTES_MAX)
        return FFA_UNSUPPORTED;
    *bytes = (size_t)head.bytes;
    *out = mem_array(*bytes + 1, 1);
    if (!*out)
        return FFA_NOMEM;
    moved = move_bytes(socket, false, *out, *bytes, deadline_us);
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

/* What the request of `body` comes to. Not a request of ours: FFA_UNSUPPORTED. */
static ffa_status compile_request(struct body *body, struct nvrtc_output *out, ffa_error *err)
{
    int64_t parent = take_number(body), memory_bytes = take_number(body);
    const char *path = take_text(body);
    struct nvrtc_job job = { .name = take_text(body), .text = take_text(body) };
    int count;
    const char **names = take_list(body, &job.header_count);
    const char **headers = take_list(body, &count);
    const char **options = take_list(body, &job.option_count);
    struct nvrtc *nvrtc = NULL;
    ffa_status rc = FFA_OK;

    job.want_ptx = take_number(body);
    job.header_names = names;
    job.headers = headers;
    job.options = options;
    if (body->is_bad || count != job.header_count || !path || !job.name || !job.text)
        rc = error_fail(err, FFA_UNSUPPORTED, 0, "the request is not of this version");
    /* Started, and its parent gone before it could be told to go, too. */
    else if (getppid() != (pid_t)parent)
        rc = error_fail(err, FFA_IO, 0, "the process that asked is gone");
    else
        rc = nvrtc_open(&nvrtc, path, err);
    if (rc == FFA_OK) {
        limit_memory(memory_bytes);
        rc = nvrtc_compile(nvrtc, &job, out, err);
    }
    nvrtc_close(nvrtc);
    mem_free(names);
    mem_free(headers);
    mem_free(options);
    return rc;
}

int ffa_worker_main(void)
{
    struct nvrtc_output out = { 0 };
    ffa_error err = { FFA_OK, 0, "" };
    struct text answer = { 0 };
    struct body body = { 0 };
    char *bytes;
    ffa_status rc;
    enum moved moved;

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)setrlimit(RLIMIT_CORE, &(struct rlimit){ 0, 0 });
    rc = receive_body(STDIN_FILENO, &bytes, &body.left, 0);
    if (rc != FFA_OK) {
        mem_free(bytes);
        return 1;
    }
    body.at = bytes;
    rc = compile_request(&body, &out, &err);
    put_number(&answer, rc);
    put_number(&answer, err.native);
    put_text(&answer, err.message);
    put_number(&answer, out.is_final);
    put_text(&answer, out.log);
    put_text(&answer, out.ptx);
    put_bytes(&answer, out.cubin, out.cubin_bytes);
    moved = answer.failed ? MOVED_END : send_body(STDIN_FILENO, &answer, 0);
    text_finish(&answer);
    mem_free(out.log);
    mem_free(out.ptx);
    mem_free(out.cubin);
    mem_free(bytes);
    return moved == MOVED_ALL ? 0 : 1;
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

/* Of the process that asks, it takes the socket, the environment and stderr. SIGINT is blocked: a
 * ^C reaches all of a terminal's processes, and it is the asking one's to say who goes. */
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
    (void)sigfillset(&all);
    (void)posix_spawnattr_setsigmask(attributes, &blocked);
    (void)posix_spawnattr_setsigdefault(attributes, &all);
    (void)posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
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

static ffa_status start(pid_t *pid, int *socket, const struct worker_opts *opts, ffa_error *err)
{
    int ends[2] = { -1, -1 };
    int code = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0 ? 0 : errno;

    if (code == 0)
        code = spawn_on(pid, opts->path, ends[1]);
    if (ends[1] >= 0)
        (void)close(ends[1]);
    if (code == 0) {
        *socket = ends[0];
        return FFA_OK;
    }
    if (ends[0] >= 0)
        (void)close(ends[0]);
    return error_fail(err, FFA_IO, code, "cannot start the compile worker '%s': %s", opts->path,
                      strerror(code));
}

/* Take it away, dead or alive; how it ended where it ended by itself, 0 where the process was told
 * not to care for its children. */
static int finish_off(pid_t pid)
{
    int status = 0;

    (void)kill(pid, SIGKILL);
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return 0;
    return status;
}

static ffa_status blame(const struct worker_opts *opts, const char *name, int status,
                        ffa_error *err)
{
    long long mib = opts->memory_bytes >> 20;

    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
        return error_fail(err, FFA_COMPILE, 0,
                          "%s: its compile worker was killed from outside (signal 9: somebody, or "
                          "the system, short of memory)",
                          name);
    if (WIFSIGNALED(status))
        return error_fail(err, FFA_COMPILE, 0,
                          "%s: its compile worker crashed (signal %d), with a limit of %lld MiB",
                          name, WTERMSIG(status), mib);
    return error_fail(err, FFA_UNSUPPORTED, 0,
                      "'%s' ended with status %d instead of an answer: is it a compile worker of "
                      "this version of the library?",
                      opts->path, WEXITSTATUS(status));
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

ffa_status worker_compile(const struct worker_opts *opts, const char *nvrtc_path,
                          const struct nvrtc_job *job, struct nvrtc_output *out, ffa_error *err)
{
    int64_t deadline_us = clock_us() + 1000 * opts->timeout_ms;
    struct text request = { 0 };
    struct body body = { 0 };
    char *answer = NULL;
    int socket = -1, status;
    pid_t pid;
    enum moved moved;
    ffa_status rc;

    *out = (struct nvrtc_output){ 0 };
    if (!build_request(&request, opts, nvrtc_path, job)) {
        rc = error_nomem(err, "a compile worker's request");
        goto out;
    }
    FFA_TRY(start(&pid, &socket, opts, err));
    moved = send_body(socket, &request, deadline_us);
    rc = moved == MOVED_ALL ? receive_body(socket, &answer, &body.left, deadline_us)
                            : (moved == MOVED_LATE ? FFA_TIMEOUT : FFA_IO);
    body.at = answer;
    status = finish_off(pid);
    if (rc == FFA_OK)
        rc = read_answer(&body, out, err);
    else if (rc == FFA_TIMEOUT)
        rc = error_fail(err, FFA_TIMEOUT, 0,
                        "%s: took longer than %lld ms (worker_timeout_ms); its compile worker was "
                        "killed",
                        job->name, (long long)opts->timeout_ms);
    else if (rc == FFA_NOMEM)
        rc = error_nomem(err, "a compile worker's answer");
    else if (rc == FFA_UNSUPPORTED)
        rc = not_ours(err);
    else
        rc = blame(opts, job->name, status, err);
out:
    if (socket >= 0)
        (void)close(socket);
    text_finish(&request);
    mem_free(answer);
    return rc;
}
