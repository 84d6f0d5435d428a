/* SPDX-License-Identifier: Apache-2.0
 *
 * The fault suite's main program.
 *
 *   fault_suite --ffa FFA --nvrtc SLOW_NVRTC --shim SHIM [--section NAME] [--rounds N] [--seed S]
 *               [--only ROUND] [--seconds T] [--verbose]
 *
 * Rounds are counted a section; --only runs one of them, whose number a failure prints. --seconds
 * ends each section after that time, for long runs. Exit status 0: all rounds passed; 1: one did
 * not; 2: usage.
 */
#include "faults/faults.h"
#include "support/tmpdir.h"

#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct section {
    const char *name;
    const char *doc;
    fault_round round;
    int rounds; /* of a short run */
};

static const struct section sections[] = {
    { "damage", "bytes, pages, lengths and rows of stores and bundles changed", damage_round, 60 },
    { "kill", "warm sessions and their workers killed at any moment", kill_round, 8 },
    { "signals", "interrupts, and limits to the size of files", signal_round, 16 },
    { "errno", "calls of the system that fail", errno_round, 60 },
    { "memory", "address space that runs out", memory_round, 30 },
    { "races", "up to six commands at once on one store", race_round, 8 },
    { "masks", "texts and JSON of masks, mutated", mask_round, 150 },
    { "inputs", "options and operands that make no sense", input_round, 150 },
};
enum { SECTIONS = sizeof sections / sizeof *sections };

struct options {
    const char *section;
    int64_t rounds, only, seconds;
    uint64_t seed;
    char ffa[PATH_MAX], nvrtc[PATH_MAX], shim[PATH_MAX];
};

static int64_t now_ms(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* One round in a fresh folder. */
static const char *round_run(struct faults *faults, const struct section *section, uint64_t seed,
                             int64_t round)
{
    struct rng rng = { .state = seed * 1000003 + (uint64_t)(section - sections) * 8191 +
                                (uint64_t)round };
    char *folder = tmpdir_make();
    const char *wrong;

    (void)rng_next(&rng);
    (void)snprintf(faults->work, sizeof faults->work, "%s", folder);
    wrong = section->round(faults, &rng);
    tmpdir_remove(folder);
    return wrong;
}

/* Returns whether all rounds passed. */
static bool section_run(struct faults *faults, const struct section *section,
                        const struct options *options)
{
    const int64_t begin = now_ms();
    int64_t rounds = options->rounds > 0 ? options->rounds : section->rounds;
    int64_t done = 0;

    if (options->seconds > 0)
        rounds = INT64_MAX;
    for (int64_t round = 0; round < rounds; round++) {
        const char *wrong;

        if (options->only >= 0 && round != options->only) {
            if (round > options->only)
                break;
            continue;
        }
        if (options->seconds > 0 && now_ms() - begin > options->seconds * 1000)
            break;
        wrong = round_run(faults, section, options->seed, round);
        done++;
        if (wrong) {
            printf("FAILED %s: %s\n  again: --section %s --seed %" PRIu64 " --only %" PRId64 "\n",
                   section->name, wrong, section->name, options->seed, round);
            return false;
        }
    }
    printf("%-8s %6" PRId64 " rounds, %6.1f s: %s\n", section->name, done,
           (double)(now_ms() - begin) / 1e3, section->doc);
    (void)fflush(stdout);
    return true;
}

static int usage(void)
{
    (void)fprintf(stderr,
                  "usage: fault_suite --ffa FFA --nvrtc SLOW_NVRTC --shim SHIM [--section NAME]\n"
                  "           [--rounds N] [--seed S] [--only ROUND] [--seconds T] [--verbose]\n");
    return 2;
}

/* Make a path absolute, because rounds run in folders of their own. whole [PATH_MAX]: keeps it */
static bool make_absolute(const char **path, char *whole)
{
    if (!realpath(*path, whole)) {
        perror(*path);
        return false;
    }
    *path = whole;
    return true;
}

static bool options_read(struct options *options, struct faults *faults, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;

        if (strcmp(argv[i], "--verbose") == 0) {
            faults->verbose = true;
            continue;
        }
        if (!value)
            return false;
        i++;
        if (strcmp(argv[i - 1], "--ffa") == 0)
            faults->ffa = value;
        else if (strcmp(argv[i - 1], "--nvrtc") == 0)
            faults->nvrtc = value;
        else if (strcmp(argv[i - 1], "--shim") == 0)
            faults->shim = value;
        else if (strcmp(argv[i - 1], "--section") == 0)
            options->section = value;
        else if (strcmp(argv[i - 1], "--rounds") == 0)
            options->rounds = strtoll(value, NULL, 10);
        else if (strcmp(argv[i - 1], "--only") == 0)
            options->only = strtoll(value, NULL, 10);
        else if (strcmp(argv[i - 1], "--seconds") == 0)
            options->seconds = strtoll(value, NULL, 10);
        else if (strcmp(argv[i - 1], "--seed") == 0)
            options->seed = strtoull(value, NULL, 10);
        else
            return false;
    }
    return faults->ffa && faults->nvrtc && faults->shim &&
           make_absolute(&faults->ffa, options->ffa) &&
           make_absolute(&faults->nvrtc, options->nvrtc) &&
           make_absolute(&faults->shim, options->shim);
}

int main(int argc, char **argv)
{
    struct options options = { .only = -1, .seed = 1 };
    struct faults faults = { 0 };
    const char *wrong;
    bool passed = true, found = false;

    if (!options_read(&options, &faults, argc, argv))
        return usage();
    (void)signal(SIGPIPE, SIG_IGN);
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    wrong = reference_make(&faults);
    if (wrong) {
        printf("FAILED: the reference: %s\n", wrong);
        return 1;
    }
    for (int i = 0; i < SECTIONS; i++) {
        if (options.section && strcmp(options.section, sections[i].name) != 0)
            continue;
        found = true;
        passed = section_run(&faults, &sections[i], &options) && passed;
    }
    if (!found) {
        (void)fprintf(stderr, "fault_suite: no section \"%s\"\n", options.section);
        return 2;
    }
    return passed ? 0 : 1;
}
