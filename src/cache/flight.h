/* SPDX-License-Identifier: Apache-2.0
 *
 * Single flight between the processes of a node: who compiles a key holds the lock of its stripe.
 * A lock only saves work. Nothing that is true depends on it, so whatever goes wrong with one, a
 * process compiles by itself and goes on.
 */
#ifndef FFA_CACHE_FLIGHT_H
#define FFA_CACHE_FLIGHT_H

#include "base/base.h"

#include <stdatomic.h>

struct flight;

struct flight_opts {
    const char *store_path; /* the locks are in the folder "<store_path>.locks" */
    uint32_t wait_ms;       /* for one lock; 0: 60 s */
    bool of_group;          /* whoever is in the folder's group may take them */
    struct log log;
};

/* Touches no file. Only FFA_NOMEM fails. */
ffa_status flight_open(struct flight **out, const struct flight_opts *opts, ffa_error *err);
void flight_close(struct flight *flight); /* no lock may be held */

enum flight_answer {
    FLIGHT_HELD,       /* flight_release() it */
    FLIGHT_TIMEOUT,    /* the holder took longer than anybody should wait */
    FLIGHT_CUT,        /* *is_cut was set meanwhile */
    FLIGHT_UNAVAILABLE /* no locks here: read-only folder, or a file system without */
};

struct flight_lock {
    int file; /* -1: not held */
    struct flight *flight;
    struct flight_lock *next; /* of those held */
};

/* Take the lock of `key` (hexadecimal), waiting while another holds it; is_cut: NULL, or ends the
 * wait when it is set. Thread: any. */
enum flight_answer flight_take(struct flight *flight, const char *key, const atomic_bool *is_cut,
                               struct flight_lock *lock);
/* A lock that is not held may be released. */
void flight_release(struct flight_lock *lock);

struct flight_counts {
    uint64_t waits;     /* locks that another held, counted when a wait begins */
    uint64_t timeouts;  /* of these: given up */
    uint64_t waited_us; /* in all that ended */
    uint64_t errors;    /* locks that could not be had at all */
};
struct flight_counts flight_counts(const struct flight *flight);

#endif
