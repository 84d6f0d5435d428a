/* SPDX-License-Identifier: Apache-2.0
 *
 * fork() copies one thread and all memory: locks that other threads hold stay locked in the child,
 * and handles of files and databases are shared with the parent. Objects that have such things
 * register here. Before a fork all their locks are taken, so that none is at work; in the child the
 * locks are new and each object drops what it cannot share.
 */
#ifndef FFA_BASE_FORK_H
#define FFA_BASE_FORK_H

#include "base/base.h"

#include <pthread.h>

struct fork_guard {
    struct fork_guard *next;
    pthread_mutex_t *lock; /* the object's; also the order in which they are taken */
    void (*in_child)(void *object);
    void *object;
    bool is_held;
};

/* in_child may be NULL: only the lock is made new. Not under any guarded lock. */
void fork_guard_add(struct fork_guard *guard, pthread_mutex_t *lock, void (*in_child)(void *object),
                    void *object);
/* A guard that was never added (all zero) may be removed. */
void fork_guard_remove(struct fork_guard *guard);

#endif
