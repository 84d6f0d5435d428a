/* SPDX-License-Identifier: Apache-2.0
 *
 * What befalls processes: they are killed, interrupted, and told by the system that it cannot.
 */
#include "faults/faults.h"
#include "support/tmpdir.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* A command that writes, in a folder that has the store "store" and a bundle folder "bundles". */
enum { WORDS_MAX = 16 };

struct job {
    const char *argv[WORDS_MAX];
};

static struct job job_draw(const struct faults *faults, struct rng *rng)
{
    const struct job jobs[] = {
        { { faults->ffa, "warm", "set.json", "--jobs", "2", "--nvrtc", faults->nvrtc, "--store",
            "store/kernels.ffadb" } },
        { { faults->ffa, "warm", "set.json", "--jobs", "1", "--nvrtc", faults->nvrtc, "--store",
            "store/kernels.ffadb", "--keep-going" } },
        { { faults->ffa, "compile", "attention_forward", "head_dim=256", "--arch", "sm_90a",
            "--nvrtc", faults->nvrtc, "--store", "store/kernels.ffadb" } },
        { { faults->ffa, "bundle", "export", "--to", "bundles", "--store",
            "store/kernels.ffadb" } },
        { { faults->ffa, "bundle", "import", "seed/kernels.ffadb", "--store",
            "store/kernels.ffadb" } },
        { { faults->ffa, "bundle", "merge", "bundles", "seed/kernels.ffadb",
            "store/kernels.ffadb" } },
        { { faults->ffa, "cache", "gc", "--max-size", "1K", "--store", "store/kernels.ffadb" } },
        { { faults->ffa, "cache", "clear", "--store", "store/kernels.ffadb" } },
        { { faults->ffa, "cache", "verify", "--store", "store/kernels.ffadb" } },
    };

    return jobs[rng_range(rng, 0, (int64_t)(sizeof jobs / sizeof *jobs) - 1)];
}

static const char *prepare(const struct faults *faults, struct rng *rng)
{
    const char *wrong = NULL;

    (void)reference_manifest(faults);
    (void)mkdir(fault_path(faults, "bundles"), 0755);
    if (rng_range(rng, 0, 3))
        wrong = reference_store(faults, fault_path(faults, "store/kernels.ffadb"),
                                (int)rng_range(rng, 0, 4));
    if (!wrong)
        wrong = reference_store(faults, fault_path(faults, "seed/kernels.ffadb"), 3);
    return wrong;
}

/* After what was done to writers: the store is whole, and, once a session has written it, nothing
 * lies beside it. */
static const char *afterwards(const struct faults *faults)
{
    const char *wrong = reference_check(faults, fault_path(faults, "store/kernels.ffadb"), true);
    const char *left = wrong ? NULL : reference_leftover(fault_path(faults, "store"));

    return left ? fault_say("%s was left beside the store", left) : wrong;
}

const char *kill_round(const struct faults *faults, struct rng *rng)
{
    const char *const env[] = { "FAKE_NVRTC_MS=20", NULL };
    const char *wrong = prepare(faults, rng);

    for (int64_t n = rng_range(rng, 1, 4); n > 0 && !wrong; n--) {
        const struct job job = job_draw(faults, rng);
        const struct fault_run run = { .argv = job.argv,
                                       .env = env,
                                       .signal = SIGKILL,
                                       .to_group = rng_range(rng, 0, 1) != 0,
                                       .signal_after_us = rng_range(rng, 500, 200000) };
        struct fault_result result = fault_run(faults, &run);

        wrong = fault_check_job(&result, SIGKILL);
    }
    return wrong ? wrong : afterwards(faults);
}

const char *signal_round(const struct faults *faults, struct rng *rng)
{
    static const int signals[] = { SIGINT, SIGTERM, SIGHUP, 0 };
    const char *const env[] = { "FAKE_NVRTC_MS=30", NULL };
    const char *wrong = prepare(faults, rng), *left;
    const struct job job = job_draw(faults, rng);
    struct fault_run run = { .argv = job.argv,
                             .env = env,
                             .signal = signals[rng_range(rng, 0, 3)],
                             .to_group = rng_range(rng, 0, 1) != 0,
                             .signal_after_us = rng_range(rng, 500, 150000) };
    struct fault_result result;

    if (wrong)
        return wrong;
    if (!run.signal)
        run.file_bytes_max = rng_range(rng, 0, 120) * 1024 + 1;
    result = fault_run(faults, &run);
    wrong = fault_check_job(&result, run.signal);
    left = wrong ? NULL : reference_leftover(fault_path(faults, "bundles"));
    if (left && !result.signal)
        wrong = fault_say("%s was left in the bundles' folder; stderr: %s", left, result.err);
    return wrong ? wrong : afterwards(faults);
}

const char *errno_round(const struct faults *faults, struct rng *rng)
{
    static const char *const calls[] = {
        "open",   "read",  "write", "fsync", "ftruncate", "rename",
        "unlink", "mkdir", "fcntl", "stat",  "link",      "chmod"
    };
    static const int errors[] = { EIO,    ENOSPC, EACCES, EMFILE, EROFS, EDQUOT,
                                  ENOMEM, ENOENT, EPERM,  ESTALE, EINTR, 0 };
    const char *wrong = prepare(faults, rng);
    const struct job job = job_draw(faults, rng);
    char preload[1100], call[64], nth[64], error[64];
    const char *const env[] = {
        preload,           call, nth, error, "ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=0",
        "FAKE_NVRTC_MS=1", NULL
    };
    struct fault_result result;
    int code;

    if (wrong)
        return wrong;
    (void)snprintf(preload, sizeof preload, "LD_PRELOAD=%s", faults->shim);
    (void)snprintf(call, sizeof call, "SHIM_CALL=%s",
                   fault_draw(rng, calls, sizeof calls / sizeof *calls));
    (void)snprintf(nth, sizeof nth, "SHIM_NTH=%d", (int)rng_range(rng, 1, 40));
    code = errors[rng_range(rng, 0, 11)];
    /* No system interrupts a call for ever: who tries again does right. */
    if (rng_range(rng, 0, 1) && code != EINTR)
        (void)strcat(nth, "+");
    (void)snprintf(error, sizeof error, "SHIM_ERRNO=%d", code);
    result = fault_run(faults, &(struct fault_run){ .argv = job.argv, .env = env });
    wrong = fault_check_job(&result, 0);
    if (!wrong)
        wrong = reference_check(faults, fault_path(faults, "store/kernels.ffadb"), true);
    return wrong
               ? fault_say("%s %s, %s %s %s: %s", job.argv[1], job.argv[2], call, nth, error, wrong)
               : NULL;
}

/* ---- memory ---- */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define IS_SANITIZED 1 /* shadow memory is address space */
#else
#define IS_SANITIZED 0
#endif

const char *memory_round(const struct faults *faults, struct rng *rng)
{
    const struct job jobs[] = {
        { { faults->ffa, "mask", "area", "window:2000000,left=100,right=0" } },
        { { faults->ffa, "mask", "check", "varlen-causal:7*200000" } },
        { { faults->ffa, "mask", "show", "varlen-causal:100*3000" } },
        { { faults->ffa, "plan", "--mask", "varlen-causal:64*20000", "--ranks", "8" } },
        { { faults->ffa, "plan", "--mask", "causal:1048576", "--ranks", "64" } },
        { { faults->ffa, "simulate", "--mask", "causal:65536", "--ranks", "16" } },
        { { faults->ffa, "run", "--mask", "causal:128", "--backend", "cpu" } },
        { { faults->ffa, "run", "--mask", "causal:512", "--ranks", "4", "--heads", "1:1" } },
        { { faults->ffa, "compile", "attention_forward", "--arch", "sm_90a", "--nvrtc",
            faults->nvrtc, "--store", "store/kernels.ffadb" } },
        { { faults->ffa, "cache", "ls", "--store", "seed/kernels.ffadb" } },
    };
    const char *wrong = prepare(faults, rng);
    const struct job *job = &jobs[rng_range(rng, 0, (int64_t)(sizeof jobs / sizeof *jobs) - 1)];
    const struct fault_run run = { .argv = job->argv,
                                   .limit_ms = 240000,
                                   .memory_bytes_max = rng_range(rng, 24, 200) << 20 };
    struct fault_result result;

    if (wrong || IS_SANITIZED)
        return wrong;
    result = fault_run(faults, &run);
    /* Below about 24 MiB the loader itself cannot map the libraries: status 127. */
    if (result.status == 127 && strstr(result.err, "error while loading shared libraries"))
        return NULL;
    return fault_check_job(&result, 0);
}
