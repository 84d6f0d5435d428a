/* SPDX-License-Identifier: Apache-2.0
 *
 * Locks across fork(). Every guarded lock is held while the process forks, so that the child finds
 * the data behind it whole; the child makes all locks anew, drops what it must not share, and goes
 * on. Locks are taken in the order of their addresses; a lock that cannot be had in time is left
 * alone.
 */
#include "base/fork.h"

#include <time.h>

/* A holder that takes longer is stuck, or is the very thread that forks. */
enum { PATIENCE_S = 5 };

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static struct fork_guard *list; /* under list_lock; by address of the lock */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void before(void)
{
    struct timespec until;

    (void)pthread_mutex_lock(&list_lock);
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PATIENCE_S;
    for (struct fork_guard *guard = list; guard; guard = guard->next)
        guard->is_held = pthread_mutex_timedlock(guard->lock, &until) == 0;
}

static void in_parent(void)
{
    for (struct fork_guard *guard = list; guard; guard = guard->next)
        if (guard->is_held)
            (void)pthread_mutex_unlock(guard->lock);
    (void)pthread_mutex_unlock(&list_lock);
}

static void in_child(void)
{
    for (struct fork_guard *guard = list; guard; guard = guard->next) {
        (void)pthread_mutex_init(guard->lock, NULL);
        if (guard->in_child)
            guard->in_child(guard->object);
    }
    (void)pthread_mutex_unlock(&list_lock);
}

static void arm(void)
{
    (void)pthread_atfork(before, in_parent, in_child);
}

void fork_guard_add(struct fork_guard *guard, pthread_mutex_t *lock, void (*child)(void *object),
                    void *object)
{
    struct fork_guard **at = &list;

    (void)pthread_once(&once, arm);
    guard->lock = lock;
    guard->in_child = child;
    guard->object = object;
    (void)pthread_mutex_lock(&list_lock);
    while (*at && (uintptr_t)(*at)->lock < (uintptr_t)lock)
        at = &(*at)->next;
    guard->next = *at;
    *at = guard;
    (void)pthread_mutex_unlock(&list_lock);
}

void fork_guard_remove(struct fork_guard *guard)
{
    struct fork_guard **at = &list;

    if (!guard->lock)
        return;
    (void)pthread_mutex_lock(&list_lock);
    while (*at != guard)
        at = &(*at)->next;
    *at = guard->next;
    (void)pthread_mutex_unlock(&list_lock);
    *guard = (struct fork_guard){ 0 };
}
