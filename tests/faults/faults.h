/* SPDX-License-Identifier: Apache-2.0
 *
 * The fault suite: what befalls files, processes and inputs, drawn from a seed.
 *
 * A section is a kind of fault; a round is one draw of it, which follows from (seed, section,
 * round) alone and can be run by itself. After each round the store must hold right kernels or
 * none, by the reference, and a session that may compile must have them all.
 */
#ifndef TESTS_FAULTS_H
#define TESTS_FAULTS_H

#include "support/rng.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct faults {
    const char *ffa;   /* the command */
    const char *nvrtc; /* the compiler of tests/support/slow_nvrtc.c */
    const char *shim;  /* the library of shim.c */
    char work[512];    /* a private folder; each round begins with it empty */
    bool verbose;
};

/* One round. Returns NULL, or what went wrong (a text that lives until the next call). */
typedef const char *(*fault_round)(const struct faults *faults, struct rng *rng);

const char *damage_round(const struct faults *faults, struct rng *rng);
const char *kill_round(const struct faults *faults, struct rng *rng);
const char *signal_round(const struct faults *faults, struct rng *rng);
const char *errno_round(const struct faults *faults, struct rng *rng);
const char *memory_round(const struct faults *faults, struct rng *rng);
const char *mask_round(const struct faults *faults, struct rng *rng);
const char *race_round(const struct faults *faults, struct rng *rng);
const char *input_round(const struct faults *faults, struct rng *rng);
/* How many inputs there are; a round draws one of them, in a long run all come up. */
int64_t input_count(const struct faults *faults);

/* ---- what rounds are made of ---- */

/* A sentence for fault_round, printf-like. */
const char *fault_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* "<work>/<name>", in one of eight buffers that take turns. */
const char *fault_path(const struct faults *faults, const char *name);
/* One of `count` texts. */
const char *fault_draw(struct rng *rng, const char *const *texts, size_t count);

struct fault_run {
    const char *const *argv;  /* NULL-terminated; argv[0] is the program */
    const char *const *env;   /* NULL-terminated "NAME=value" beside the usual ones; NULL: none */
    int64_t file_bytes_max;   /* RLIMIT_FSIZE; 0: none */
    int64_t memory_bytes_max; /* RLIMIT_AS; 0: none */
    int signal;               /* sent after signal_after_us; 0: none */
    bool to_group;            /* to the process and its workers */
    int64_t signal_after_us;
    int64_t limit_ms; /* after that it counts as hung; 0: 180 s */
};

struct fault_result {
    int status;     /* exit status; -1: ended by a signal */
    int signal;     /* that ended it */
    bool is_hung;   /* was killed at limit_ms */
    char err[4096]; /* the begin of stderr */
    char out[4096]; /* and of stdout */
};

/* Run a program in a process group of its own, in the work folder, stdin from /dev/null. */
struct fault_result fault_run(const struct faults *faults, const struct fault_run *run);
/* NULL, or what no command may do: hang, die of a signal it was not sent (`sent`: 0 or that one),
 * exit with a status that is not in its table, fail without a sentence, write raw control
 * characters to a terminal. */
const char *fault_check(const struct fault_result *result, int sent);

/* The same of a command line that is right: it may fail, but not as one that is none. */
const char *fault_check_job(const struct fault_result *result, int sent);

/* ---- the reference (reference.c) ---- */

enum { FAULT_KERNELS = 6 };
/* Make what each kernel's cubin must be, in memory. */
const char *reference_make(const struct faults *faults);
/* A store at `path` with the first `count` kernels. */
const char *reference_store(const struct faults *faults, const char *path, int count);
/* The store at `path`, whatever happened to it, in a process of its own: nothing that it answers is
 * wrong, and a session that may compile has every kernel. is_whole: the file must then be a store
 * without a bad entry, too. */
const char *reference_check(const struct faults *faults, const char *path, bool is_whole);
/* The same of a bundle, read in place beside an empty store, and imported. */
const char *reference_check_bundle(const struct faults *faults, const char *bundle);
/* NULL, or the name of a file in `folder` that a dead writer left. */
const char *reference_leftover(const char *folder);
/* The setting of attention_forward that makes kernel `index`: "head_dim=64". */
const char *reference_setting(int index);
/* A manifest of all kernels for `ffa warm`, written to the work folder; its path. */
const char *reference_manifest(const struct faults *faults);

#endif
