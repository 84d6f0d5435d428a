/* SPDX-License-Identifier: Apache-2.0
 *
 * Compile workers: processes of this same executable ('ffa compile-worker'), each with one kernel
 * at a time, a time-out and a memory limit. A worker that crashes, hangs or is killed is one failed
 * kernel; a fresh one takes its place. Workers write the store themselves, as any process that
 * compiles does: what is finished is kept, whatever happens to the rest.
 *
 * Spawned, never forked without exec: a fork while another thread compiles hangs NVRTC.
 */
#ifndef FFA_CLI_POOL_H
#define FFA_CLI_POOL_H

#include "cli/manifest.h"

#include <sys/types.h>

enum pool_result { POOL_BUILT, POOL_HIT, POOL_FAILED };

struct pool_answer {
    enum pool_result result;
    pid_t worker;
    int64_t compile_us; /* POOL_BUILT */
    /* POOL_FAILED: "compile", "timeout", "memory", "killed", "crash", "environment", "error". */
    char reason[16];
    char message[640];
};

enum pool_end {
    POOL_ALL,         /* every wish has its answer */
    POOL_STOPPED,     /* done() said so */
    POOL_INTERRUPTED, /* SIGINT or SIGTERM */
    POOL_TIMED_OUT,   /* deadline_us */
    POOL_CANNOT       /* no worker can be started; *err says why */
};

struct pool_opts {
    const struct cli *cli;
    const char *store; /* the file */
    int64_t jobs;
    int64_t memory_bytes; /* a worker's; 0: no limit */
    int64_t timeout_us;   /* a kernel's, from the request to the answer */
    int64_t deadline_us;  /* on cli_clock_us(); 0: none */
    int64_t tick_us;      /* at most this long between two calls of tick */
    void *user;
    /* A kernel has its answer. False: start no more. */
    bool (*done)(void *user, int64_t index, const struct pool_answer *answer);
    /* Something may have changed; `workers` are at work. */
    void (*tick)(void *user, int workers);
};

enum { POOL_JOBS_MAX = 1024 };

enum pool_end pool_run(const struct pool_opts *opts, struct wish *const *wishes, int64_t count,
                       ffa_error *err);

/* How many workers this machine has cores and memory for, of `memory_bytes` each, where `share`
 * processes like this one run beside each other; at least 1. */
int64_t pool_jobs_auto(int64_t memory_bytes, int64_t share);

#endif
