/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of the store. One connection, one lock: the lock is the connection's, held
 * for one statement or one short transaction and never across a compile.
 */
#ifndef FFA_CACHE_STORE_INTERNAL_H
#define FFA_CACHE_STORE_INTERNAL_H

#include "base/fork.h"
#include "cache/store.h"

#include <pthread.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <sys/stat.h>

enum {
    STORE_CALLED = 144,                    /* a path in a sentence, two of which fit an ffa_error */
    STORE_SCHEMA = 2,                      /* 1: without the tables failure and miss */
    STORE_APPLICATION = 0x6666616b,        /* 'ffak', as in cache/schema.sql */
    STORE_BUNDLE_APPLICATION = 0x66666162, /* 'ffab': the same schema, never to change again */
    STORE_BUSY_MS = 3000,                  /* how long others are waited for */
    STORE_BUSY_AGAIN_MS = 100,             /* the same, after one wait was too short */
    STORE_DAY_S = 86400,
    STORE_WORK_STEP = 1 << 20, /* instructions of SQLite's machine */
    STORE_WORK_MAX = 4000      /* steps a statement may take: about a minute */
};

/* A folder that is open, and a file's name in it. What is there is opened through the folder's
 * descriptor, so that nobody who may exchange a folder above it can make it another's. */
struct store_place {
    int folder; /* -1: none */
    char *
        opened; /* opens the folder: "/proc/thread-self/fd/N", or its path where /proc is missing */
    char *name;
};

struct store {
    char *path;                /* NULL: memory only */
    char called[STORE_CALLED]; /* the path in sentences */
    char *folder;
    int start; /* where a relative path starts, whatever the working folder becomes; or AT_FDCWD */
    enum store_mode mode;
    bool may_create, on_network, of_group;
    bool follows_links; /* as every bundle does */
    uint64_t bytes_max;
    struct log log;
    atomic_uint_fast64_t bad, errors;
    pthread_mutex_t lock;
    /* under lock: */
    sqlite3 *db; /* NULL: not in use */
    struct store_place place;
    int64_t work, work_max; /* of the statement under way, in steps of STORE_WORK_STEP */
    int busy_ms;
    bool is_writable;
    int64_t schema;      /* of the open file */
    bool is_bundle;      /* whatever it was opened as */
    bool is_forked;      /* the handle is the parent's and was dropped */
    const char *network; /* the kind of network file system it is on and only read for; or NULL */
    bool is_network_told;
    bool is_warned;
    dev_t device; /* of the open file */
    ino_t inode;
    struct fork_guard guard;
    ffa_error why; /* not in use because of this; status FFA_OK: in use, or memory only */
};

/* ---- the place (store_trust.c) ---- */

const char *store_kind(const struct store *store); /* "store" or "bundle" */
/* Whether a store that is not there is made. */
bool store_is_maker(const struct store *store);
/* FFA_CACHE or FFA_NOMEM by errno: `doing` completes "cannot ... 'name'". */
ffa_status store_file_trouble(struct store *store, const char *doing, const char *name,
                              ffa_error *err);
/* FFA_CACHE: it is on a network file system, and what would let it be written. */
ffa_status store_fail_network(const struct store *store, ffa_error *err);
/* Open the place and look at the file, its owner and its mode. FFA_NOT_FOUND: nothing is there yet,
 * and the place is fit for it. */
ffa_status store_enter_place(struct store *store, struct stat *file, ffa_error *err);
/* A bundle is named by hand and may be behind links, as images and deployments make them. Each link
 * is checked by its owner and its folder, the file at their end like any. */
ffa_status store_enter_bundle_place(struct store *store, struct stat *file, ffa_error *err);
void store_leave_place(struct store_place *place);
/* Opens the file whose name is the place's with `ending`; the caller frees; NULL: no memory. */
char *store_place_path(const struct store_place *place, const char *ending);

/* ---- making, and putting aside (store_make.c) ---- */

/* A whole, empty store in the empty file `file`, inside a transaction: the caller commits and
 * closes both. */
ffa_status store_begin_file(struct store *store, int file, int64_t created_s, ffa_error *err);
/* In the place that was entered, where nothing is, or an empty file. */
ffa_status store_make(struct store *store, ffa_error *err);
/* Remove what killed makers left behind. Only FFA_NOMEM fails. */
ffa_status store_reap(const struct store *store);
/* Rename a damaged file to "<path>.damaged". */
ffa_status store_put_aside(struct store *store, const struct stat *file, ffa_error *err);

/* ---- the schema (store_schema.c) ---- */

/* Whose file the open one is, of which version; then bring it up to date, if it may be written. */
ffa_status store_check_header(struct store *store, ffa_error *err);
/* What stands under the names of our tables is a table, and nothing but our trigger runs when they
 * are written: a view or a trigger may be a query without end. Readers have triggers off. */
ffa_status store_check_schema(struct store *store, ffa_error *err);
ffa_status store_set_up(struct store *store, ffa_error *err);

/* ---- statements ---- */

/* What a sentence calls a path: of a long one the end, so that there is room for the reason. */
void store_call(char out[STORE_CALLED], const char *path);
/* The adapter: `doing` completes "store: cannot ...". OK, ROW and DONE are FFA_OK. */
ffa_status store_sql(struct store *store, int code, const char *doing, ffa_error *err);
ffa_status store_prepare(struct store *store, sqlite3_stmt **out, const char *sql, ffa_error *err);
/* Step once; *row: a row is there. */
ffa_status store_step(struct store *store, sqlite3_stmt *statement, bool *row, const char *doing,
                      ffa_error *err);
ffa_status store_run(struct store *store, const char *sql, const char *doing, ffa_error *err);
/* One integer, such as a pragma's. */
ffa_status store_number(struct store *store, const char *sql, int64_t *out, ffa_error *err);

/* Bytes of the file that hold something. */
ffa_status store_bytes_used(struct store *store, int64_t *out, ffa_error *err);

/* ---- the lock ---- */

/* Meanwhile no write ends the process, whatever its limit to the size of files. */
void store_lock(struct store *store);
void store_unlock(struct store *store);

/* ---- trouble ---- */

/* Under lock. Count an error; warn if it is the first. */
void store_trouble(struct store *store, const char *event, const ffa_error *why);
/* Under lock: whether the store is in use; one that was locked by another is tried again. */
bool store_in_use(struct store *store);
/* Under lock: after a failure, whether trying again makes sense: a damaged file was put aside, or
 * one that was moved or deleted under us was replaced. Counts and warns. */
bool store_recover(struct store *store, const ffa_error *why);

/* ---- files and rows ---- */

/* The new, empty file that is open as `file`, which nobody else has. It stays the caller's. */
ffa_status store_open_new(struct store *store, int file, ffa_error *err);
/* Of a connection that is new: no views, no triggers, and an end to every statement. */
void store_set_limits(struct store *store);
void store_close_db(struct store *store);
/* ROLLBACK if a transaction is open and rc is a failure; returns rc. */
ffa_status store_rollback(struct store *store, ffa_status rc);

/* One row of the kernel table with its blob. Texts are SQLite's until the next step. */
struct store_row {
    int64_t id, blob_id;
    const char *key, *toolchain, *seal, *template_name, *arch, *record, *digest;
    int64_t bytes, created_s, used_s, compile_us;
    int32_t registers, shared_bytes, spill_bytes, advisory_count, threads;
    const void *data;
    size_t data_bytes;
};
/* The columns store_row_read expects, in order; data is last. */
#define STORE_COLUMNS                                                                              \
    "k.id, k.blob, k.key, k.toolchain, k.seal, k.template, k.arch, k.record, b.digest, b.bytes, "  \
    "k.created_s, k.used_s, k.compile_us, k.registers, k.shared_bytes, k.spill_bytes, "            \
    "k.advisories, k.threads"
#define STORE_COLUMNS_AND_DATA STORE_COLUMNS ", b.data"
#define STORE_FROM " FROM kernel k LEFT JOIN blob b ON b.id = k.blob "
void store_row_read(struct store_row *row, sqlite3_stmt *statement, bool with_data);
void store_row_seal(const struct store_row *row, char out[33]);
/* Add or replace, inside the caller's transaction; *id: of the row, may be NULL. */
ffa_status store_row_put(struct store *store, const struct store_row *row, int64_t *id,
                         ffa_error *err);
bool store_row_blob_ok(const struct store_row *row);
bool store_row_seal_ok(const struct store_row *row);

#endif
