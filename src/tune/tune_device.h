/* SPDX-License-Identifier: Apache-2.0
 *
 * What a tuning session asks of a device: a table of functions, so that tests have a device with
 * known times. tune_gpu.h has the real one.
 *
 * Indices are those of the session's record. Statuses say what became of a configuration:
 * FFA_TIMEOUT it hangs, FFA_GPU it died, FFA_COMPILE, FFA_INVALID and FFA_UNSUPPORTED it cannot be
 * had; any other failure is the session's. What compiling came to is read by tune_compiled_state
 * (tune_compile.h). Thread: one at a time.
 */
#ifndef FFA_TUNE_TUNE_DEVICE_H
#define FFA_TUNE_TUNE_DEVICE_H

#include "cache/tune_store.h"

struct tune_compiled {
    ffa_status status;
    int32_t registers, shared_bytes, spill_bytes; /* -1: not known */
    const char *key, *message;
};

/* Told of each configuration that is compiled, or failed to. */
typedef void (*tune_compiled_fn)(void *user, int32_t configuration,
                                 const struct tune_compiled *compiled);

struct tune_reading {
    double us; /* one call */
    int32_t calls;
    int32_t clock_mhz, power_w, temperature_c; /* 0: not known */
    struct tune_baseline order;                /* of a backward pass: the one that it had */
};

struct tune_device {
    void *user;
    int64_t (*now_us)(void *user);
    /* Compile the configurations which [count], apart from this process where that can be; `done`
     * is called by any thread, one at a time. Ends early, with FFA_TIMEOUT, where *stop is set;
     * NULL: it never is. */
    ffa_status (*compile)(void *user, const struct tune_record *record, const int32_t *which,
                          int32_t count, const volatile int *stop, tune_compiled_fn done,
                          void *done_user, ffa_error *err);
    /* Load a configuration; nothing runs. One that is prepared stays so. */
    ffa_status (*prepare)(void *user, const struct tune_record *record, int32_t configuration,
                          ffa_error *err);
    /* Whether its results are right on a small ragged mask; else `reason` says in what not. */
    ffa_status (*check)(void *user, const struct tune_record *record, int32_t configuration,
                        bool *is_right, char reason[200], ffa_error *err);
    /* Time calls with a mask; each begins with cold buffers. */
    ffa_status (*run)(void *user, const struct tune_record *record, int32_t configuration,
                      int32_t mask, struct tune_reading *out, ffa_error *err);
    /* After FFA_TIMEOUT or FFA_GPU: whether the device can be used again in this process. */
    bool (*recover)(void *user);
};

#endif
