/* SPDX-License-Identifier: Apache-2.0
 *
 * Races: commands on one store at once. Who comes too late for a lock may say so; whatever the
 * order, the store is whole afterwards and has right kernels or none, and so has each bundle.
 */
#include "faults/faults.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RACERS_MAX = 6, WORDS_MAX = 16 };

struct racer {
    const char *argv[WORDS_MAX];
};

#define STORE "--store", "store/kernels.ffadb"

static struct racer racer_draw(const struct faults *faults, struct rng *rng)
{
    const char *const ffa = faults->ffa;
    const struct racer racers[] = {
        { { ffa, "warm", "set.json", "--jobs", "2", "--nvrtc", faults->nvrtc, STORE } },
        { { ffa, "compile", "attention_forward", "head_dim=256", "--arch", "sm_90a", "--nvrtc",
            faults->nvrtc, STORE } },
        { { ffa, "compile", "attention_forward", "head_dim=64", "--arch", "sm_90a", "--nvrtc",
            faults->nvrtc, STORE } },
        { { ffa, "cache", "gc", "--max-size", "1K", STORE } },
        { { ffa, "cache", "clear", STORE } },
        { { ffa, "cache", "verify", STORE } },
        { { ffa, "cache", "ls", STORE } },
        { { ffa, "bundle", "export", "--to", "bundles", STORE } },
        { { ffa, "bundle", "import", "seed/kernels.ffadb", STORE } },
    };

    return racers[rng_range(rng, 0, (int64_t)(sizeof racers / sizeof *racers) - 1)];
}

/* In a child, because fault_run waits: 0 where the command kept to its rules. */
static int race(const struct faults *faults, const struct racer *racer)
{
    static const char *const env[] = { "FAKE_NVRTC_MS=5", NULL };
    const struct fault_run run = { .argv = racer->argv, .env = env, .limit_ms = 300000 };
    const struct fault_result result = fault_run(faults, &run);
    const char *wrong = fault_check_job(&result, 0);

    if (wrong)
        (void)dprintf(STDOUT_FILENO, "%s %s: %s\n", racer->argv[1], racer->argv[2], wrong);
    return wrong ? 1 : 0;
}

const char *race_round(const struct faults *faults, struct rng *rng)
{
    const int count = (int)rng_range(rng, 2, RACERS_MAX);
    const char *wrong = reference_store(faults, fault_path(faults, "seed/kernels.ffadb"), 3);
    pid_t children[RACERS_MAX];
    bool failed = false;

    (void)reference_manifest(faults);
    (void)mkdir(fault_path(faults, "bundles"), 0755);
    if (!wrong && rng_range(rng, 0, 1))
        wrong = reference_store(faults, fault_path(faults, "store/kernels.ffadb"), 4);
    if (wrong)
        return wrong;
    for (int i = 0; i < count; i++) {
        const struct racer racer = racer_draw(faults, rng);

        children[i] = fork();
        if (children[i] < 0)
            abort();
        if (children[i] == 0)
            _exit(race(faults, &racer));
    }
    for (int i = 0; i < count; i++) {
        int status = 0;

        failed |= waitpid(children[i], &status, 0) != children[i] || status != 0;
    }
    if (failed)
        return "a command broke its rules (above)";
    return reference_check(faults, fault_path(faults, "store/kernels.ffadb"), true);
}
