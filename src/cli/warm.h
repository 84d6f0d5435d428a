/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of `ffa warm` share: the session, its kernels and their states.
 */
#ifndef FFA_CLI_WARM_H
#define FFA_CLI_WARM_H

#include "cli/manifest.h"
#include "cli/progress.h"

struct warm_options {
    const char *preset, *misses, *archs, *jobs, *memory, *shard, *device;
    struct cli_list specs;
    double timeout_s, deadline_s;
    bool keep_going, dry_run, list, resume, jsonl;
};

enum warm_state { WAITING, HIT, BUILT, FAILED };

/* How the building ended. */
enum warm_end {
    END_ALL,         /* every kernel was tried */
    END_STOPPED,     /* by a failure */
    END_INTERRUPTED, /* SIGINT or SIGTERM */
    END_TIMED_OUT    /* --deadline */
};

/* A kernel of this shard. */
struct warm_item {
    struct manifest_kernel *kernel; /* of `manifest` */
    char key[33];
    enum warm_state state;
    char reason[16]; /* FAILED */
    char *message;
};

struct warm_session {
    const struct cli *cli;
    struct warm_options options;
    struct cli_place place;
    struct cli_shard shard;
    struct manifest manifest; /* of the whole manifest */
    struct warm_item *items;  /* of this shard, without doubles */
    struct warm_item **queue; /* those that no layer answers */
    int64_t item_count, queue_count;
    int64_t counts[4]; /* by state */
    int64_t jobs, memory_bytes;
    int64_t started_us, build_started_us;
    double guess_ms; /* what one compile takes */
    int64_t guess_count;
    struct progress progress;
    json_t *failures;
    enum warm_end end;
};

/* ---- the set (warm_set.c) ---- */

/* Reads the manifest: of the options, one of which is there. `arch`: for kernels that name none. */
ffa_status warm_read_set(struct warm_session *session, ffa_context *context, const char *arch,
                         ffa_error *err);
/* The items: the distinct kernels of the manifest, of these our shard. */
ffa_status warm_take_shard(struct warm_session *session, ffa_context *context, ffa_error *err);

/* ---- what a session says (warm_report.c) ---- */

void warm_set_state(struct warm_session *session, struct warm_item *item, enum warm_state state);
/* The item has failed. */
void warm_note_failure(struct warm_session *session, struct warm_item *item, const char *reason,
                       const char *message);
/* An item is a hit, built or failed. worker: the process that was asked; 0: none. */
void warm_report_kernel(struct warm_session *session, const struct warm_item *item, int32_t worker,
                        int64_t compile_us);
/* One line of --jsonl: the event's name, then what it says. Takes over `object`. */
void warm_emit(const struct warm_session *session, const char *event, json_t *object);
void warm_set_kernel(json_t *object, const struct warm_item *item);
json_t *warm_shard_object(const struct cli_shard *shard);
/* What compiling took the kernels of the store, on average, as a guess for the rest. A store that
 * cannot be read knows nothing, and says so when it is to be used. */
void warm_estimate(struct warm_session *session);
double warm_estimate_seconds(const struct warm_session *session, int64_t kernels);
/* Print the result; the exit status. */
int warm_finish(struct warm_session *session);

/* ---- building (warm_build.c) ---- */

/* Build the queue. CLI_PARSE_GO once the kernels were begun, whatever came of them, else an exit
 * status. Returns with the workers gone, since closing the context waits for its threads. */
int warm_build(struct warm_session *session);

#endif
