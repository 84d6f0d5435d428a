/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernel store: one SQLite file, shared by processes. Never trusted blindly: a store that
 * cannot be used answers "not found", an entry that does not check out is removed.
 */
#ifndef FFA_CACHE_STORE_H
#define FFA_CACHE_STORE_H

#include "base/base.h"
#include "jit/jit.h"
#include <ffa/cache.h>

struct store;

enum store_mode {
    STORE_READWRITE, /* made when absent; damaged ones are put aside */
    STORE_READONLY,
    STORE_MAINTAIN, /* as the command opens it: never made (but see `create`), never put aside */
    STORE_BUNDLE    /* a file that never changes: no locks, no journal; may be behind links */
};

struct store_opts {
    const char *path; /* NULL: memory only */
    enum store_mode mode;
    bool on_network;    /* write on a network file system, too */
    bool of_group;      /* its group may write it */
    bool create;        /* STORE_MAINTAIN: make it when absent */
    bool follow_links;  /* STORE_READONLY: it may be behind links, as a bundle */
    uint64_t bytes_max; /* 0: 1 GiB */
    struct log log;
};

/* Only FFA_NOMEM fails. A store that cannot be used is one warning and one error counted; see
 * store_check. */
ffa_status store_open(struct store **out, const struct store_opts *opts, ffa_error *err);
void store_close(struct store *store);
/* FFA_OK when in use; else why not (FFA_NOT_FOUND: no file). */
ffa_status store_check(struct store *store, ffa_error *err);
/* Whether an addition would be tried. */
bool store_is_writable(struct store *store);
/* "ok", "memory only", or why it is not used. */
void store_state(struct store *store, char *out, size_t size);
const char *store_path(const struct store *store); /* "" for memory only */
uint64_t store_bad_count(const struct store *store);
uint64_t store_error_count(const struct store *store);

struct store_query {
    const struct jit_request *request;       /* completed: its key and record are looked up */
    const char *toolchain;                   /* preferred; "": none */
    bool exact;                              /* no other toolchain will do */
    const struct jit_kernel *const *refused; /* [refused_count] cubins that will not do */
    int refused_count;
};

/* FFA_OK with *out filled (caller finishes), FFA_NOT_FOUND or FFA_NOMEM. */
ffa_status store_find(struct store *store, const struct store_query *query, struct jit_kernel *out,
                      ffa_error *err);
/* Whether there is an entry that store_find would look at: it is not read, and may be bad. Refused
 * cubins are not looked for. */
bool store_has(struct store *store, const struct store_query *query);
/* Best effort: trouble is counted, and warned of once. */
void store_put(struct store *store, const struct jit_kernel *kernel);
/* Add to the store's sums when a context closes. Best effort, in silence; nothing for none. */
void store_count(struct store *store, const ffa_cache_counters *add);

/* A compile that failed, and would again. */
struct store_failure {
    char *message;
    char *log;
    int64_t age_s;
};
void store_failure_finish(struct store_failure *failure);
/* Whether the compile of a completed request by `toolchain` failed less than `age_max_s` ago; then
 * *out is filled. */
bool store_find_failure(struct store *store, const struct jit_request *request,
                        const char *toolchain, int64_t age_max_s, struct store_failure *out);
/* Best effort. The request is completed; log may be NULL. */
void store_put_failure(struct store *store, const struct jit_request *request,
                       const char *toolchain, const char *message, const char *log);
/* Best effort, at most once an hour a key. The request is completed. */
void store_note_miss(struct store *store, const struct jit_request *request);

#endif
