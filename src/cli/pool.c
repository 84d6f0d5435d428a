/* SPDX-License-Identifier: Apache-2.0
 *
 * One thread, one loop: hand out, wait for whatever comes first (an answer, a death, a time-out, a
 * signal, a tick), act. A worker's whole state is one socket; its end of file is its death.
 */
#include "cli/pool.h"

#include "cli/file.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LINE_BYTES_MAX = 1 << 20, ARGS_MAX = 20 };

extern char **environ;

struct worker {
    pid_t pid; /* 0: none */
    int socket;
    int64_t at; /* the wish it is at; -1: idle */
    int64_t since_us;
    char *in; /* what came of an answer so far */
    size_t bytes, size;
};

struct pool {
    const struct pool_opts *opts;
    struct wish *const *wishes;
    int64_t count, next; /* wishes, and the first not handed out */
    struct worker *workers;
    struct pollfd *polls;
    bool is_stopped;
};

/* ---- signals ---- */

static volatile sig_atomic_t signalled;

static void on_signal(int number)
{
    (void)number;
    signalled = 1;
}

static const int caught[] = { SIGINT, SIGTERM };

struct signals {
    struct sigaction before[2];
    sigset_t mask_before;
    sigset_t mask_waiting; /* as before, but with what we catch let through */
};

/* What was ignored stays so: 'nohup', a shell's '&'. Blocked but while we wait. */
static void signals_take(struct signals *signals)
{
    struct sigaction action = { .sa_handler = on_signal };
    sigset_t blocked;

    signalled = 0;
    (void)sigemptyset(&action.sa_mask);
    (void)sigemptyset(&blocked);
    for (int i = 0; i < CLI_COUNT(caught); i++) {
        (void)sigaction(caught[i], NULL, &signals->before[i]);
        if (signals->before[i].sa_handler == SIG_IGN)
            continue;
        (void)sigaddset(&blocked, caught[i]);
        (void)sigaction(caught[i], &action, NULL);
    }
    (void)sigprocmask(SIG_BLOCK, &blocked, &signals->mask_before);
    signals->mask_waiting = signals->mask_before;
    for (int i = 0; i < CLI_COUNT(caught); i++)
        (void)sigdelset(&signals->mask_waiting, caught[i]);
}

static void signals_give_back(const struct signals *signals)
{
    for (int i = 0; i < CLI_COUNT(caught); i++)
        (void)sigaction(caught[i], &signals->before[i], NULL);
    (void)sigprocmask(SIG_SETMASK, &signals->mask_before, NULL);
}

/* ---- one worker ---- */

/* Its argv: as this process was told, less what is the session's. */
static void worker_args(char *args[ARGS_MAX], const struct pool_opts *opts, char memory[32],
                        char parent[32])
{
    const struct cli *cli = opts->cli;
    const char *given[ARGS_MAX] = { "ffa",      "compile-worker", "--memory-bytes", memory,
                                    "--parent", parent,           "--store",        opts->store };
    int count = 8;

    (void)snprintf(memory, 32, "%lld", (long long)opts->memory_bytes);
    (void)snprintf(parent, 32, "%ld", (long)getpid());
    if (cli->templates) {
        given[count++] = "--templates";
        given[count++] = cli->templates;
    }
    if (cli->nvrtc) {
        given[count++] = "--nvrtc";
        given[count++] = cli->nvrtc;
    }
    if (cli->shared) {
        given[count++] = "--shared";
        given[count++] = cli->shared;
    }
    if (cli->network)
        given[count++] = "--network";
    if (cli->verbose)
        given[count++] = "--verbose";
    for (int i = 0; i < ARGS_MAX; i++)
        args[i] = (char *)(uintptr_t)given[i];
}

/* SIGINT is blocked in it: a ^C reaches all of a terminal's processes, and it is the session's to
 * say who goes. */
static int spawn(pid_t *out, int socket, char **args)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t blocked;
    int code;

    (void)sigemptyset(&blocked);
    (void)sigaddset(&blocked, SIGINT);
    if (posix_spawn_file_actions_init(&actions) != 0)
        return ENOMEM;
    if (posix_spawnattr_init(&attributes) != 0) {
        (void)posix_spawn_file_actions_destroy(&actions);
        return ENOMEM;
    }
    code = posix_spawn_file_actions_adddup2(&actions, socket, STDIN_FILENO);
    if (code == 0)
        code = posix_spawn_file_actions_adddup2(&actions, socket, STDOUT_FILENO);
    (void)posix_spawnattr_setsigmask(&attributes, &blocked);
    (void)posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    if (code == 0)
        code = posix_spawn(out, "/proc/self/exe", &actions, &attributes, args, environ);
    (void)posix_spawnattr_destroy(&attributes);
    (void)posix_spawn_file_actions_destroy(&actions);
    return code;
}

static ffa_status worker_start(struct worker *worker, const struct pool_opts *opts, ffa_error *err)
{
    char memory[32], parent[32];
    char *args[ARGS_MAX];
    int ends[2];
    int code;

    *worker = (struct worker){ .at = -1, .socket = -1 };
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        return cli_error(err, FFA_IO, errno, "cannot start a worker: %s", strerror(errno));
    worker_args(args, opts, memory, parent);
    code = spawn(&worker->pid, ends[1], args);
    (void)close(ends[1]);
    if (code != 0) {
        (void)close(ends[0]);
        worker->pid = 0;
        return cli_error(err, FFA_IO, code, "cannot start a worker: %s", strerror(code));
    }
    worker->socket = ends[0];
    return FFA_OK;
}

/* Take it away, dead or alive; how it ended, where it ended by itself. */
static int worker_end(struct worker *worker)
{
    int status = 0;

    if (!worker->pid)
        return 0;
    (void)kill(worker->pid, SIGKILL);
    while (waitpid(worker->pid, &status, 0) < 0 && errno == EINTR)
        ;
    (void)close(worker->socket);
    free(worker->in);
    *worker = (struct worker){ .at = -1, .socket = -1 };
    return status;
}

/* A request is far shorter than a socket's buffer: this does not block. A worker that is gone is
 * found out by its end of file. */
static bool worker_ask(struct worker *worker, const struct wish *wish, int64_t index)
{
    char *text = json_dumps(wish->json, JSON_COMPACT);
    size_t bytes = text ? strlen(text) : 0;

    if (!text)
        return false;
    text[bytes] = '\n'; /* in the terminator's place */
    (void)send(worker->socket, text, bytes + 1, MSG_NOSIGNAL);
    free(text);
    worker->at = index;
    worker->since_us = cli_clock_us();
    return true;
}

/* ---- answers ---- */

static void answer_fail(struct pool_answer *answer, const char *reason, const char *format, ...)
    FFA_PRINTF(3, 4);

static void answer_fail(struct pool_answer *answer, const char *reason, const char *format, ...)
{
    va_list args;

    answer->result = POOL_FAILED;
    (void)snprintf(answer->reason, sizeof answer->reason, "%s", reason);
    va_start(args, format);
    (void)vsnprintf(answer->message, sizeof answer->message, format, args);
    va_end(args);
}

static void answer_parse(struct pool_answer *answer, const struct pool_opts *opts, const char *line,
                         size_t bytes)
{
    json_t *json = json_loadb(line, bytes, 0, NULL);
    const char *layer = json_string_value(json_object_get(json, "layer"));
    const char *reason = json_string_value(json_object_get(json, "reason"));
    const char *message = json_string_value(json_object_get(json, "message"));
    const char *log = json_string_value(json_object_get(json, "log"));

    if (layer) {
        answer->result = strcmp(layer, "compiled") == 0 ? POOL_BUILT : POOL_HIT;
        answer->compile_us = json_integer_value(json_object_get(json, "compile_us"));
    } else if (reason && strcmp(reason, "memory") == 0) {
        answer_fail(answer, reason, "out of memory: a worker may take %lld MiB (--mem-per-job)",
                    (long long)(opts->memory_bytes >> 20));
    } else if (reason && message) {
        answer_fail(answer, reason, "%s", message);
    } else {
        answer_fail(answer, "crash", "its worker answered nonsense");
    }
    if (log && log[0] && opts->cli->verbose)
        (void)fprintf(stderr, "%s\n", log);
    json_decref(json);
}

static void answer_death(struct pool_answer *answer, const struct pool_opts *opts, int status)
{
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
        answer_fail(answer, "killed",
                    "its worker was killed from outside (signal 9: somebody, or the system, short "
                    "of memory)");
    else if (WIFSIGNALED(status))
        answer_fail(answer, "crash",
                    "its worker crashed: signal %d (%s), with a limit of %lld MiB (--mem-per-job)",
                    WTERMSIG(status), strsignal(WTERMSIG(status)),
                    (long long)(opts->memory_bytes >> 20));
    else
        answer_fail(answer, "crash", "its worker ended with status %d instead of an answer",
                    WEXITSTATUS(status));
}

static void settle(struct pool *pool, int64_t index, const struct pool_answer *answer)
{
    if (!pool->opts->done(pool->opts->user, index, answer))
        pool->is_stopped = true;
}

static void lose(struct pool *pool, struct worker *worker)
{
    struct pool_answer answer = { .worker = worker->pid };
    int64_t index = worker->at;

    answer_death(&answer, pool->opts, worker_end(worker));
    if (index >= 0)
        settle(pool, index, &answer);
}

static void time_out(struct pool *pool, struct worker *worker)
{
    struct pool_answer answer = { .worker = worker->pid };
    int64_t index = worker->at;

    answer_fail(&answer, "timeout", "took longer than %g s (--timeout): its worker was killed",
                (double)pool->opts->timeout_us / 1e6);
    (void)worker_end(worker);
    settle(pool, index, &answer);
}

/* Something is to be read, be it the end. */
static void listen_to(struct pool *pool, struct worker *worker)
{
    struct pool_answer answer = { .worker = worker->pid };
    char *end;
    ssize_t got;

    if (worker->size - worker->bytes < 4096) {
        char *grown =
            worker->size < LINE_BYTES_MAX ? realloc(worker->in, worker->size + 16384) : NULL;

        if (!grown) {
            lose(pool, worker);
            return;
        }
        worker->in = grown;
        worker->size += 16384;
    }
    got = recv(worker->socket, worker->in + worker->bytes, worker->size - worker->bytes,
               MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0) {
        lose(pool, worker);
        return;
    }
    worker->bytes += (size_t)got;
    end = memchr(worker->in, '\n', worker->bytes);
    if (end && worker->at >= 0) {
        int64_t index = worker->at;

        answer_parse(&answer, pool->opts, worker->in, (size_t)(end - worker->in));
        worker->bytes = 0;
        worker->at = -1;
        settle(pool, index, &answer);
    }
}

/* ---- the loop ---- */

static int count_busy(const struct pool *pool)
{
    int busy = 0;

    for (int64_t i = 0; i < pool->opts->jobs; i++)
        busy += pool->workers[i].at >= 0;
    return busy;
}

static ffa_status hand_out(struct pool *pool, ffa_error *err)
{
    for (int64_t i = 0; i < pool->opts->jobs; i++) {
        struct worker *worker = &pool->workers[i];
        ffa_status rc = FFA_OK;

        if (pool->is_stopped || pool->next == pool->count)
            break;
        if (worker->at >= 0)
            continue;
        if (!worker->pid)
            rc = worker_start(worker, pool->opts, err);
        if (rc == FFA_OK && !worker_ask(worker, pool->wishes[pool->next], pool->next))
            rc = cli_error(err, FFA_NOMEM, 0, "no memory for a request");
        if (rc == FFA_OK)
            pool->next++;
        else if (count_busy(pool) == 0)
            return rc; /* else those at work go on, and we try again */
    }
    return FFA_OK;
}

/* Until the next time-out, the deadline or a tick. */
static int64_t wait_us(const struct pool *pool, int64_t now)
{
    int64_t until = now + pool->opts->tick_us;

    if (pool->opts->deadline_us && pool->opts->deadline_us < until)
        until = pool->opts->deadline_us;
    for (int64_t i = 0; i < pool->opts->jobs; i++) {
        const struct worker *worker = &pool->workers[i];

        if (worker->at >= 0 && worker->since_us + pool->opts->timeout_us < until)
            until = worker->since_us + pool->opts->timeout_us;
    }
    return until > now ? until - now : 0;
}

static void wait_for_something(struct pool *pool, const sigset_t *mask)
{
    int64_t us = wait_us(pool, cli_clock_us()) + 1000; /* rather once late than twice early */
    struct timespec limit = { .tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000 };

    for (int64_t i = 0; i < pool->opts->jobs; i++)
        pool->polls[i] = (struct pollfd){ .fd = pool->workers[i].pid ? pool->workers[i].socket : -1,
                                          .events = POLLIN };
    if (ppoll(pool->polls, (nfds_t)pool->opts->jobs, &limit, mask) <= 0)
        return;
    for (int64_t i = 0; i < pool->opts->jobs; i++)
        if (pool->polls[i].revents)
            listen_to(pool, &pool->workers[i]);
}

static enum pool_end loop(struct pool *pool, const sigset_t *mask, ffa_error *err)
{
    const struct pool_opts *opts = pool->opts;

    for (;;) {
        int64_t now = cli_clock_us();

        if (signalled)
            return POOL_INTERRUPTED;
        if (opts->deadline_us && now >= opts->deadline_us)
            return POOL_TIMED_OUT;
        for (int64_t i = 0; i < opts->jobs; i++)
            if (pool->workers[i].at >= 0 && now >= pool->workers[i].since_us + opts->timeout_us)
                time_out(pool, &pool->workers[i]);
        if (hand_out(pool, err) != FFA_OK)
            return POOL_CANNOT;
        opts->tick(opts->user, count_busy(pool));
        if (count_busy(pool) == 0)
            return pool->is_stopped && pool->next < pool->count ? POOL_STOPPED : POOL_ALL;
        wait_for_something(pool, mask);
    }
}

enum pool_end pool_run(const struct pool_opts *opts, struct wish *const *wishes, int64_t count,
                       ffa_error *err)
{
    struct pool pool = { .opts = opts, .wishes = wishes, .count = count };
    enum pool_end end = POOL_CANNOT;
    struct signals signals;

    pool.workers = calloc((size_t)opts->jobs, sizeof *pool.workers);
    pool.polls = calloc((size_t)opts->jobs, sizeof *pool.polls);
    if (!pool.workers || !pool.polls) {
        (void)cli_error(err, FFA_NOMEM, 0, "no memory for %lld workers", (long long)opts->jobs);
        goto out;
    }
    for (int64_t i = 0; i < opts->jobs; i++)
        pool.workers[i] = (struct worker){ .at = -1, .socket = -1 };
    signals_take(&signals);
    end = loop(&pool, &signals.mask_waiting, err);
    for (int64_t i = 0; i < opts->jobs; i++)
        (void)worker_end(&pool.workers[i]);
    signals_give_back(&signals);
out:
    free(pool.workers);
    free(pool.polls);
    return end;
}

/* ---- how many ---- */

/* The number after `name` in a file; INT64_MAX where there is none. */
static int64_t number_in(const char *path, const char *name)
{
    FILE *file = fopen(path, "re");
    char line[128];
    int64_t found = INT64_MAX;

    if (!file)
        return found;
    while (fgets(line, sizeof line, file)) {
        const char *digits = line + strlen(name);
        char *end;
        long long number;

        if (strncmp(line, name, strlen(name)) != 0)
            continue;
        number = strtoll(digits, &end, 10);
        if (end != digits)
            found = number;
        break;
    }
    (void)fclose(file);
    return found;
}

int64_t pool_jobs_auto(int64_t memory_bytes, int64_t share)
{
    int64_t available_kib = number_in("/proc/meminfo", "MemAvailable:");
    int64_t allowed = number_in("/sys/fs/cgroup/memory.max", "");
    int64_t cores = sysconf(_SC_NPROCESSORS_ONLN);
    int64_t memory = available_kib < INT64_MAX / 1024 ? available_kib * 1024 : INT64_MAX;
    int64_t core_share = share;
    int64_t jobs;
    cpu_set_t mine;

    /* A launcher that binds its processes to cores has divided them already. */
    if (sched_getaffinity(0, sizeof mine, &mine) == 0 && CPU_COUNT(&mine) < cores) {
        cores = CPU_COUNT(&mine);
        core_share = 1;
    }
    if (allowed < memory)
        memory = allowed;
    jobs = cores / core_share;
    if (memory_bytes > 0 && memory / share / memory_bytes < jobs)
        jobs = memory / share / memory_bytes;
    return jobs < 1 ? 1 : jobs > POOL_JOBS_MAX ? POOL_JOBS_MAX : jobs;
}
