/* SPDX-License-Identifier: Apache-2.0
 *
 * SIGXFSZ is blocked in the thread that writes, and taken off before it is unblocked. Invariant:
 * the handler, the mask and the pending signals of the process are afterwards what they were; a
 * SIGXFSZ that was pending before stays pending. The outermost pair of a thread does the work, so
 * that pairs may end in any order.
 */
#include "base/file_limit.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <time.h>

static _Thread_local struct {
    int depth;
    bool was_blocked, was_pending;
} mine;

static void only_this(sigset_t *set)
{
    (void)sigemptyset(set);
    (void)sigaddset(set, SIGXFSZ);
}

static bool is_pending(void)
{
    sigset_t set;

    (void)sigemptyset(&set);
    return sigpending(&set) == 0 && sigismember(&set, SIGXFSZ) == 1;
}

bool file_limit_was_met(void)
{
    return mine.depth > 0 && !mine.was_pending && is_pending();
}

void file_limit_enter(void)
{
    sigset_t set, before;
    int saved = errno;

    if (mine.depth++ > 0)
        return;
    mine.was_pending = is_pending();
    only_this(&set);
    (void)sigemptyset(&before);
    (void)pthread_sigmask(SIG_BLOCK, &set, &before);
    mine.was_blocked = sigismember(&before, SIGXFSZ) == 1;
    errno = saved;
}

void file_limit_leave(void)
{
    sigset_t set;
    int saved = errno;

    if (--mine.depth > 0)
        return;
    only_this(&set);
    if (!mine.was_pending) {
        const struct timespec at_once = { 0 };

        while (sigtimedwait(&set, NULL, &at_once) < 0 && errno == EINTR)
            continue;
    }
    if (!mine.was_blocked)
        (void)pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    errno = saved;
}
