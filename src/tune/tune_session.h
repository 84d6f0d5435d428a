/* SPDX-License-Identifier: Apache-2.0
 *
 * A tuning session: compile all configurations, drop those that spill, check the results of the
 * others, and race them. Each step is in the file before the next one begins, so that a session
 * that was interrupted, or killed, goes on where it was.
 */
#ifndef FFA_TUNE_TUNE_SESSION_H
#define FFA_TUNE_TUNE_SESSION_H

#include "tune/tune_device.h"
#include <ffa/tune.h>

struct tune_session {
    struct tune_store *store;   /* open for writing; borrowed, as all here */
    struct tune_record *record; /* in the store */
    const struct tune_device *device;
    const volatile int *stop;                               /* NULL: never */
    void (*event)(void *user, const ffa_tune_event *event); /* NULL: nobody is told */
    void *user;
    bool must_restart; /* out: it failed because the device is of no more use in this process; a new
                        * one goes on without the configuration that was at fault */
};

/* Run until the race is over or the budget is spent. Fails with FFA_TIMEOUT (*stop was set),
 * FFA_GPU and FFA_TIMEOUT (must_restart), FFA_UNSUPPORTED (the baseline cannot be measured), and as
 * the store and the device do; what was measured is kept then. Thread: one at a time. Blocks. */
ffa_status tune_session_run(struct tune_session *session, ffa_error *err);

#endif
