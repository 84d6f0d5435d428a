/* SPDX-License-Identifier: Apache-2.0
 *
 * flock() on one of 256 small files beside the store, chosen by the key. The system drops a lock
 * when its last holder ends, so there is nothing to clean up. Invariant: a lock that is held is on
 * the file that others find under its name. The files are therefore never removed here, and one
 * that was removed by hand is noticed after locking: the new file is locked instead. Folders are
 * opened one after the other and checked as a store's are, so that nobody else chooses where lock
 * files are made.
 *
 * flock() itself cannot wait for a bounded time, so it is tried again after short pauses.
 */
#include "cache/flight.h"

#include "base/fork.h"
#include "cache/store_place.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { WAIT_MS = 60000, NAP_US = 500, NAP_MAX_US = 8000, STRIPE_DIGITS = 2 };

struct flight {
    char *folder; /* of the locks */
    char *above;  /* the folder it is in: the store's */
    int start; /* where a relative path starts, whatever the working folder becomes; or AT_FDCWD */
    bool of_group;
    int64_t wait_us;
    struct log log;
    atomic_bool is_warned_error, is_warned_timeout;
    atomic_uint_fast64_t waits, timeouts, waited_us, errors;
    pthread_mutex_t lock;
    struct flight_lock *held; /* under lock */
    struct fork_guard guard;
};

/* The locks are the parent's: the child lets go of its copies, so that they end with the parent. So
 * are the counts. */
static void flight_in_child(void *object)
{
    struct flight *flight = object;

    atomic_store(&flight->waits, 0);
    atomic_store(&flight->timeouts, 0);
    atomic_store(&flight->waited_us, 0);
    atomic_store(&flight->errors, 0);
    for (; flight->held; flight->held = flight->held->next) {
        (void)close(flight->held->file);
        flight->held->file = -1;
    }
}

static void note_held(struct flight *flight, struct flight_lock *lock)
{
    lock->flight = flight;
    (void)pthread_mutex_lock(&flight->lock);
    lock->next = flight->held;
    flight->held = lock;
    (void)pthread_mutex_unlock(&flight->lock);
}

static void note_released(struct flight_lock *lock)
{
    struct flight_lock **at = &lock->flight->held;

    (void)pthread_mutex_lock(&lock->flight->lock);
    while (*at && *at != lock)
        at = &(*at)->next;
    if (*at)
        *at = lock->next;
    (void)pthread_mutex_unlock(&lock->flight->lock);
}

ffa_status flight_open(struct flight **out, const struct flight_opts *opts, ffa_error *err)
{
    struct flight *flight = mem_array(1, sizeof *flight);
    struct text folder = { 0 };
    ffa_status rc = FFA_OK;

    *out = NULL;
    text_add(&folder, "%s%s.locks", strchr(opts->store_path, '/') ? "" : "./", opts->store_path);
    if (flight) {
        flight->folder = text_take(&folder);
        flight->above = mem_strdup(flight->folder);
    }
    if (!flight || !flight->folder || !flight->above) {
        rc = error_nomem(err, "the locks");
        goto out;
    }
    /* Of "/name" it is "/". */
    strrchr(flight->above, '/')[strrchr(flight->above, '/') == flight->above] = '\0';
    flight->start = AT_FDCWD;
    if (*flight->folder != '/') {
        int start = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);

        flight->start = start >= 0 ? start : AT_FDCWD;
    }
    flight->wait_us = 1000 * (int64_t)(opts->wait_ms ? opts->wait_ms : WAIT_MS);
    flight->of_group = opts->of_group;
    flight->log = opts->log;
    (void)pthread_mutex_init(&flight->lock, NULL);
    fork_guard_add(&flight->guard, &flight->lock, flight_in_child, flight);
    *out = flight;
    flight = NULL;
out:
    text_finish(&folder);
    flight_close(flight);
    return rc;
}

void flight_close(struct flight *flight)
{
    if (!flight)
        return;
    fork_guard_remove(&flight->guard);
    if (flight->guard.lock && flight->start >= 0)
        (void)close(flight->start);
    mem_free(flight->folder);
    mem_free(flight->above);
    mem_free(flight);
}

/* "<folder>/<first digits of the key>". */
static bool name_stripe(const struct flight *flight, const char *key, struct text *name)
{
    text_add(name, "%s/%.*s", flight->folder, STRIPE_DIGITS, key);
    return !name->failed;
}

/* A folder to pass through, if it is to be trusted; -1 with errno, which is `untrusted` if it is
 * not. `at`: where a relative name starts. */
static int open_folder(const struct flight *flight, int at, const char *name, int untrusted)
{
    int folder = openat(at, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat stat;

    if (folder < 0 || (fstat(folder, &stat) == 0 && place_is_trusted(&stat, flight->of_group)))
        return folder;
    (void)close(folder);
    errno = untrusted;
    return -1;
}

/* The folder of the locks, made when it is needed, also when somebody removed it. */
static int open_locks(const struct flight *flight)
{
    const char *name = strrchr(flight->folder, '/') + 1;
    int above = open_folder(flight, flight->start, flight->above, EPERM);
    int locks = above < 0 ? -1 : open_folder(flight, above, name, EACCES);

    if (above >= 0 && locks < 0 && errno == ENOTDIR)
        errno = EEXIST; /* something else is in the way */
    if (above >= 0 && locks < 0 && errno == ENOENT) {
        bool is_made = mkdirat(above, name, 0700) == 0;

        if (is_made && flight->of_group)
            (void)!fchmodat(above, name, 02770, 0);
        if (is_made || errno == EEXIST)
            locks = open_folder(flight, above, name, EACCES);
    }
    if (above >= 0) {
        int saved = errno;

        (void)close(above);
        errno = saved;
    }
    return locks;
}

/* -1 with errno. */
static int open_file(const struct flight *flight, const char *name)
{
    int locks, file;
    struct stat stat;

    if (fault_here(FAULT_FILE)) {
        errno = EIO;
        return -1;
    }
    locks = open_locks(flight);
    if (locks < 0)
        return -1;
    file = openat(locks, strrchr(name, '/') + 1,
                  O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (file >= 0 && (fstat(file, &stat) != 0 || !S_ISREG(stat.st_mode))) {
        (void)close(file);
        file = -1;
        errno = EACCES;
    }
    /* Whatever the umask says. Those that another made are his to hand on, and he did. */
    if (flight->of_group && file >= 0)
        (void)fchmod(file, 0660);
    {
        int saved = errno;

        (void)close(locks);
        errno = saved;
    }
    return file;
}

/* Whether `name` still leads to the open file: else nobody else would meet this lock. */
static bool is_current(const struct flight *flight, int file, const char *name)
{
    struct stat mine, theirs;

    return fstat(file, &mine) == 0 &&
           fstatat(flight->start, name, &theirs, AT_SYMLINK_NOFOLLOW) == 0 &&
           mine.st_ino == theirs.st_ino && mine.st_dev == theirs.st_dev;
}

static void nap(int64_t us)
{
    struct timespec time = { .tv_nsec = (long)us * 1000 };

    (void)nanosleep(&time, NULL);
}

/* The first of a kind is a warning. */
static void tell(struct flight *flight, atomic_bool *is_warned, const char *event, const char *name,
                 const char *reason)
{
    log_line(&flight->log, atomic_exchange(is_warned, true) ? FFA_LOG_DEBUG : FFA_LOG_WARNING,
             "cache", "event=%s path=%s reason=\"%s\"", event, name, reason);
}

/* How long to wait for a lock, and whether that was needed: `count` is then one more. */
struct wait {
    atomic_uint_fast64_t *count;
    int64_t deadline_us;
    const atomic_bool *is_cut; /* NULL: never */
    bool waited;               /* another held it */
};

static enum flight_answer lock_file(int file, struct wait *wait)
{
    int64_t pause = NAP_US;

    while (flock(file, LOCK_EX | LOCK_NB) != 0) {
        if (errno == EINTR)
            continue;
        if (errno != EWOULDBLOCK)
            return FLIGHT_UNAVAILABLE;
        if (!wait->waited)
            atomic_fetch_add(wait->count, 1);
        wait->waited = true;
        if (wait->is_cut && atomic_load(wait->is_cut))
            return FLIGHT_CUT;
        if (clock_us() >= wait->deadline_us)
            return FLIGHT_TIMEOUT;
        nap(pause);
        pause = pause * 3 / 2 < NAP_MAX_US ? pause * 3 / 2 : NAP_MAX_US;
    }
    return FLIGHT_HELD;
}

static enum flight_answer take(struct flight *flight, const char *name, struct flight_lock *lock,
                               struct wait *wait)
{
    enum { ROUNDS = 100 }; /* each but the last met a file that was removed under it */
    enum flight_answer answer = FLIGHT_UNAVAILABLE;

    for (int round = 0; round < ROUNDS; round++) {
        lock->file = open_file(flight, name);
        if (lock->file < 0)
            return FLIGHT_UNAVAILABLE;
        answer = lock_file(lock->file, wait);
        if (answer == FLIGHT_HELD && is_current(flight, lock->file, name)) {
            note_held(flight, lock);
            return FLIGHT_HELD;
        }
        if (answer != FLIGHT_HELD) {
            int saved = errno;

            flight_release(lock);
            errno = saved;
            return answer;
        }
        flight_release(lock);
    }
    errno = ENOENT;
    return FLIGHT_UNAVAILABLE;
}

enum flight_answer flight_take(struct flight *flight, const char *key, const atomic_bool *is_cut,
                               struct flight_lock *lock)
{
    int64_t started = clock_us();
    enum flight_answer answer = FLIGHT_UNAVAILABLE;
    struct text name = { 0 };
    struct wait wait = { .count = &flight->waits,
                         .deadline_us = started + flight->wait_us,
                         .is_cut = is_cut };

    *lock = (struct flight_lock){ .file = -1 };
    errno = ENOMEM;
    if (name_stripe(flight, key, &name))
        answer = take(flight, name.at, lock, &wait);
    if (wait.waited)
        atomic_fetch_add(&flight->waited_us, (uint64_t)(clock_us() - started));
    if (answer == FLIGHT_UNAVAILABLE) {
        const char *reason = strerror(errno);
        bool is_place = errno == EROFS || errno == ENOSPC || errno == EDQUOT || errno == EPERM ||
                        errno == ENOENT || errno == ENOTDIR;

        atomic_fetch_add(&flight->errors, 1);
        /* What ails the place, the store will say: one warning for it is enough. */
        if (is_place)
            log_line(&flight->log, FFA_LOG_INFO, "cache",
                     "event=lock_unavailable path=%s reason=\"%s\"", flight->folder, reason);
        else
            tell(flight, &flight->is_warned_error, "lock_unavailable", flight->folder, reason);
    } else if (answer == FLIGHT_TIMEOUT) {
        atomic_fetch_add(&flight->timeouts, 1);
        tell(
            flight, &flight->is_warned_timeout, "lock_timeout", name.at,
            "another process has been compiling for longer than lock_wait_ms; compiling here, too");
    }
    text_finish(&name);
    return answer;
}

void flight_release(struct flight_lock *lock)
{
    if (lock->flight)
        note_released(lock);
    lock->flight = NULL;
    if (lock->file < 0)
        return;
    /* Not left to close(): a forked child may share the open file, and the lock with it. */
    (void)flock(lock->file, LOCK_UN);
    (void)close(lock->file);
    lock->file = -1;
}

struct flight_counts flight_counts(const struct flight *flight)
{
    return (struct flight_counts){ .waits = atomic_load(&flight->waits),
                                   .timeouts = atomic_load(&flight->timeouts),
                                   .waited_us = atomic_load(&flight->waited_us),
                                   .errors = atomic_load(&flight->errors) };
}
