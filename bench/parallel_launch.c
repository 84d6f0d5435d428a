/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks that are processes: who starts them, how they meet, and how all end when one does.
 *
 * Each process watches the others on a thread of its own, as its ranks may be in calls that wait
 * for one that is gone. The process that started them waits until all have ended, kills what does
 * not end by itself, and takes the folder away where they met. They die with it.
 */
#include "parallel_case.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    MEETING_MS = 600000, /* ranks wait while the first one measures the whole */
    LOOK_MS = 100,
    GRACE_MS = 10000, /* of ranks, to end once one of them has failed */
    NUMBER_BYTES = 16
};

/* ---- a process ---- */

static pthread_t watcher;
static atomic_bool is_leaving;

static int code_of(ffa_status status)
{
    return status == FFA_OK ? 0 : 1;
}

/* The lowest rank that is left says who was lost. */
void end_if_lost(void)
{
    ffa_error err = { FFA_OK, 0, "" };
    int32_t lost;

    if (!bench.processes)
        return;
    lost = rendezvous_lost(bench.processes->rendezvous, &err);
    if (lost < 0)
        return;
    bench.meeting->give_up(bench.meeting, &err);
    fflush(stdout);
    if (bench.first == (lost == 0))
        fprintf(stderr, "bench_parallel: %s\n", err.message);
    _exit(1);
}

static void *watch(void *user)
{
    const struct timespec pause = { .tv_nsec = LOOK_MS * 1000000 };

    (void)user;
    while (!atomic_load(&is_leaving)) {
        end_if_lost();
        (void)nanosleep(&pause, NULL);
    }
    return NULL;
}

void join_processes(const struct rendezvous_place *place)
{
    ffa_error err;

    must(process_meeting_open(&bench.processes, options.rendezvous, place, MEETING_MS, code_of,
                              &err),
         "meet", &err);
    bench.meeting = &bench.processes->meeting;
    bench.first = place->rank;
    bench.here = 1;
    start(&watcher, watch, NULL);
}

int leave_processes(int status)
{
    int32_t code = status;
    ffa_error err;

    atomic_store(&is_leaving, true);
    (void)pthread_join(watcher, NULL);
    /* Whoever still watches would take the end of a rank with results that differ for a loss. */
    meet(bench.first);
    must(rendezvous_agree(bench.processes->rendezvous, &code, &err), "leave", &err);
    process_meeting_close(bench.processes);
    return code;
}

/* ---- starting processes ---- */

struct launch {
    pid_t children[RANKS_MAX]; /* 0: it has ended */
    int32_t ranks, running;
    int status; /* of the first that failed; 0 */
    bool has_killed;
    char folder[4096];
};

static void make_folder(struct launch *launch)
{
    const char *root = getenv("TMPDIR");

    (void)snprintf(launch->folder, sizeof launch->folder, "%s/bench_parallel.XXXXXX",
                   root && *root ? root : "/tmp");
    if (!mkdtemp(launch->folder))
        fail(launch->folder, strerror(errno));
}

static void remove_folder(const struct launch *launch)
{
    DIR *dir = opendir(launch->folder);
    const struct dirent *entry;

    while (dir && (entry = readdir(dir)) != NULL)
        if (entry->d_name[0] != '.')
            (void)unlinkat(dirfd(dir), entry->d_name, 0);
    if (dir)
        (void)closedir(dir);
    (void)rmdir(launch->folder);
}

/* In the child: this program again, as a rank. */
_Noreturn static void become_rank(const struct launch *launch, char *const *argv, int32_t rank,
                                  pid_t parent)
{
    char ranks[NUMBER_BYTES], number[NUMBER_BYTES];
    const char *const more[] = {
        "--ranks", ranks, "--rank", number, "--rendezvous", launch->folder
    };
    const size_t more_count = sizeof more / sizeof *more;
    const char **all;
    size_t count = 0;

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    (void)snprintf(ranks, sizeof ranks, "%d", launch->ranks);
    (void)snprintf(number, sizeof number, "%d", rank);
    while (argv[count])
        count++;
    all = memory((count + more_count + 1) * sizeof *all);
    memcpy(all, argv, count * sizeof *all);
    memcpy(all + count, more, sizeof more);
    all[count + more_count] = NULL;
    (void)execv("/proc/self/exe", (char *const *)(uintptr_t)all);
    fail("execv", strerror(errno));
}

static void start_ranks(struct launch *launch, char *const *argv, const sigset_t *before)
{
    const pid_t parent = getpid();

    for (int32_t r = 0; r < launch->ranks; r++) {
        const pid_t child = fork();

        if (child == 0) {
            (void)sigprocmask(SIG_SETMASK, before, NULL);
            become_rank(launch, argv, r, parent);
        }
        if (child < 0) {
            fprintf(stderr, "bench_parallel: cannot start rank %d: %s\n", r, strerror(errno));
            launch->status = 1;
            return;
        }
        launch->children[r] = child;
        launch->running++;
    }
}

/* One that a signal ended could say nothing itself. */
static void note_end(struct launch *launch, int32_t rank, int status)
{
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;

    launch->children[rank] = 0;
    launch->running--;
    if (WIFSIGNALED(status))
        fprintf(stderr, "bench_parallel: rank %d was ended by signal %d%s\n", rank,
                WTERMSIG(status), launch->has_killed ? ", as it did not end by itself" : "");
    launch->status = launch->status ? launch->status : code;
}

static void reap(struct launch *launch, int flags)
{
    int status;

    for (int32_t r = 0; r < launch->ranks; r++)
        if (launch->children[r] && waitpid(launch->children[r], &status, flags) > 0)
            note_end(launch, r, status);
}

static void kill_rest(struct launch *launch)
{
    launch->has_killed = true;
    for (int32_t r = 0; r < launch->ranks; r++)
        if (launch->children[r])
            (void)kill(launch->children[r], SIGKILL);
}

/* Until all have ended. The signal that ends this process, which ranks end with; 0. */
static int wait_for_ranks(struct launch *launch, const sigset_t *signals)
{
    const struct timespec look = { .tv_nsec = LOOK_MS * 1000000 };
    double failed_ms = 0;

    while (launch->running > 0) {
        const int number = sigtimedwait(signals, NULL, &look);

        if (number > 0 && number != SIGCHLD) {
            kill_rest(launch);
            for (int32_t r = 0; r < launch->ranks; r++)
                if (launch->children[r])
                    (void)waitpid(launch->children[r], NULL, 0);
            return number;
        }
        reap(launch, WNOHANG);
        if (launch->status && !failed_ms)
            failed_ms = now_ms();
        if (failed_ms && now_ms() - failed_ms > GRACE_MS) {
            kill_rest(launch);
            reap(launch, 0);
        }
    }
    return 0;
}

/* Of a signal that is ignored, as after nohup, nobody waits. */
static void add_signal(sigset_t *signals, int number)
{
    struct sigaction action;

    if (sigaction(number, NULL, &action) != 0 || action.sa_handler != SIG_IGN)
        (void)sigaddset(signals, number);
}

int launch_processes(char *const *argv, int32_t ranks)
{
    struct launch launch = { .ranks = ranks };
    sigset_t signals, before;
    int number;

    make_folder(&launch);
    (void)sigemptyset(&signals);
    (void)sigaddset(&signals, SIGCHLD);
    add_signal(&signals, SIGINT);
    add_signal(&signals, SIGTERM);
    add_signal(&signals, SIGHUP);
    (void)sigprocmask(SIG_BLOCK, &signals, &before);
    fflush(stdout);
    start_ranks(&launch, argv, &before);
    number = wait_for_ranks(&launch, &signals);
    remove_folder(&launch);
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    if (number)
        (void)raise(number);
    return number ? 1 : launch.status;
}
