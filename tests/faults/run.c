/* SPDX-License-Identifier: Apache-2.0
 *
 * Programs run under limits, signals and a deadline, and what no command may do.
 */
#include "faults/faults.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

const char *fault_say(const char *format, ...)
{
    static char text[8192];
    char made[8192];
    va_list list;

    va_start(list, format);
    (void)vsnprintf(made, sizeof made, format, list);
    va_end(list);
    memcpy(text, made, sizeof text);
    return text;
}

const char *fault_path(const struct faults *faults, const char *name)
{
    static char paths[8][1024];
    static int next;

    next = (next + 1) % 8;
    (void)snprintf(paths[next], sizeof paths[next], "%s/%s", faults->work, name);
    return paths[next];
}

const char *fault_draw(struct rng *rng, const char *const *texts, size_t count)
{
    return texts[rng_range(rng, 0, (int64_t)count - 1)];
}

static int64_t now_us(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static void limit(int what, int64_t bytes)
{
    struct rlimit now;

    if (bytes <= 0 || getrlimit((unsigned)what, &now) != 0)
        return;
    now.rlim_cur = (rlim_t)bytes;
    (void)setrlimit((unsigned)what, &now);
}

/* In the child: never returns. */
static void become(const struct faults *faults, const struct fault_run *run, const int fds[3])
{
    char home[600], temporary[600];

    (void)setpgid(0, 0);
    (void)signal(SIGINT, SIG_DFL);
    (void)signal(SIGPIPE, SIG_DFL);
    (void)signal(SIGXFSZ, SIG_DFL);
    for (int i = 0; i < 3; i++)
        if (dup2(fds[i], i) < 0)
            _exit(126);
    (void)snprintf(home, sizeof home, "HOME=%s", faults->work);
    (void)snprintf(temporary, sizeof temporary, "TMPDIR=%s", faults->work);
    (void)putenv(home);
    (void)putenv(temporary);
    (void)unsetenv("FFA_CACHE_DIR");
    (void)unsetenv("FFA_BUNDLES");
    (void)unsetenv("FFA_COST_TABLES");
    (void)unsetenv("FFA_JIT");
    for (const char *const *env = run->env; env && *env; env++)
        (void)putenv((char *)(uintptr_t)*env);
    if (chdir(faults->work) != 0)
        _exit(126);
    limit(RLIMIT_FSIZE, run->file_bytes_max);
    limit(RLIMIT_AS, run->memory_bytes_max);
    (void)execv(run->argv[0], (char *const *)(uintptr_t)run->argv);
    _exit(126);
}

struct reader {
    int fd;
    char *to;
    size_t at, room;
};

/* Read what there is; what finds no room is dropped. Returns false at the end. */
static bool reader_step(struct reader *reader)
{
    char bytes[4096];
    ssize_t count = read(reader->fd, bytes, sizeof bytes);

    if (count < 0)
        return errno == EINTR || errno == EAGAIN;
    if (count == 0)
        return false;
    for (ssize_t i = 0; i < count && reader->at + 1 < reader->room; i++)
        reader->to[reader->at++] = bytes[i] ? bytes[i] : '?';
    reader->to[reader->at] = '\0';
    return true;
}

/* Until the child has ended: send the signal in its time, read, kill at the limit. */
static void watch(pid_t child, const struct fault_run *run, struct reader readers[2],
                  struct fault_result *result)
{
    const int64_t begin = now_us();
    const int64_t end = begin + (run->limit_ms ? run->limit_ms : 180000) * 1000;
    bool sent = run->signal == 0;
    int status = 0;

    for (;;) {
        struct pollfd polls[2] = { { .fd = readers[0].fd, .events = POLLIN },
                                   { .fd = readers[1].fd, .events = POLLIN } };
        int64_t now = now_us();
        pid_t ended;

        if (!sent && now >= begin + run->signal_after_us) {
            (void)kill(run->to_group ? -child : child, run->signal);
            sent = true;
        }
        if (now >= end) {
            result->is_hung = true;
            (void)kill(-child, SIGKILL);
        }
        (void)poll(polls, 2, 2);
        for (int i = 0; i < 2; i++)
            if (readers[i].fd >= 0 && polls[i].revents && !reader_step(&readers[i])) {
                (void)close(readers[i].fd);
                readers[i].fd = -1;
            }
        ended = waitpid(child, &status, WNOHANG);
        if (ended == child || (ended < 0 && errno != EINTR))
            break;
    }
    for (int i = 0; i < 2; i++) { /* workers that outlive it may hold the other end */
        struct pollfd last = { .fd = readers[i].fd, .events = POLLIN };

        while (readers[i].fd >= 0 && poll(&last, 1, 0) > 0 && reader_step(&readers[i]))
            ;
        if (readers[i].fd >= 0)
            (void)close(readers[i].fd);
    }
    result->status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    result->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

struct fault_result fault_run(const struct faults *faults, const struct fault_run *run)
{
    struct fault_result result = { .status = 126 };
    int out[2], err[2];
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    pid_t child;

    if (null < 0 || pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0)
        abort();
    (void)fflush(NULL);
    child = fork();
    if (child == 0)
        become(faults, run, (const int[3]){ null, out[1], err[1] });
    if (child < 0)
        abort();
    (void)setpgid(child, child);
    (void)close(out[1]);
    (void)close(err[1]);
    (void)close(null);
    watch(child, run,
          (struct reader[2]){ { out[0], result.out, 0, sizeof result.out },
                              { err[0], result.err, 0, sizeof result.err } },
          &result);
    if (faults->verbose) {
        for (const char *const *word = run->argv; *word; word++)
            printf("%s ", *word);
        printf("=> %d, signal %d\n%s", result.status, result.signal, result.err);
    }
    return result;
}

static bool is_known_status(int status)
{
    return (status >= 0 && status <= 5) || status == 124 || status == 130;
}

const char *fault_check(const struct fault_result *result, int sent)
{
    if (result->is_hung)
        return fault_say("it hung; stderr: %s", result->err);
    if (result->signal && result->signal != sent)
        return fault_say("signal %d ended it; stderr: %s", result->signal, result->err);
    if (result->signal)
        return NULL;
    if (!is_known_status(result->status))
        return fault_say("exit status %d is none of its table; stderr: %s", result->status,
                         result->err);
    for (const char *at = result->err; *at; at++)
        if (((unsigned char)*at < ' ' && *at != '\n' && *at != '\t') || *at == '\177')
            return fault_say("a control character, code %d, in stderr: %s", *at, result->err);
    if (result->status != 0 && !result->err[0] && !result->out[0])
        return fault_say("exit status %d without a word", result->status);
    if (strstr(result->err, "AddressSanitizer") || strstr(result->err, "runtime error:"))
        return fault_say("a sanitizer's report: %s", result->err);
    return NULL;
}

const char *fault_check_job(const struct fault_result *result, int sent)
{
    static const char *const says[] = { "is no option", "one operand too many", "usage is" };

    for (size_t i = 0; i < sizeof says / sizeof *says; i++)
        if (result->status == 2 && strstr(result->err, says[i]))
            return fault_say("a command line of the suite is refused: %s", result->err);
    return fault_check(result, sent);
}
