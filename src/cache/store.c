/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening a store: make it when absent, check that the file is ours and whole, put a damaged one
 * aside. store_trust.c decides whether its place is to be trusted.
 *
 * Invariant: nobody ever sees half a store, because a new one is made under a temporary name and
 * linked into place. Only SQLite opens the file itself: closing any other descriptor of it would
 * drop the locks that another connection of this process holds.
 */
#include "cache/store_internal.h"

#include "base/embedded.h"
#include "cache/store_place.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- SQLite, and what it says ---- */

ffa_status store_sql(struct store *store, int code, const char *doing, ffa_error *err)
{
    const char *text = store->db ? sqlite3_errmsg(store->db) : sqlite3_errstr(code);

    if (fault_here(FAULT_SQLITE)) {
        code = SQLITE_IOERR;
        text = sqlite3_errstr(code);
    }
    if (code == SQLITE_OK || code == SQLITE_ROW || code == SQLITE_DONE)
        return FFA_OK;
    if (store->db && sqlite3_extended_errcode(store->db) != SQLITE_OK &&
        (sqlite3_extended_errcode(store->db) & 0xff) == (code & 0xff))
        code = sqlite3_extended_errcode(store->db);
    return error_fail(err, (code & 0xff) == SQLITE_NOMEM ? FFA_NOMEM : FFA_CACHE, code,
                      "%s '%s': cannot %s: %s", store_kind(store), store->path, doing, text);
}

ffa_status store_prepare(struct store *store, sqlite3_stmt **out, const char *sql, ffa_error *err)
{
    *out = NULL;
    return store_sql(store, sqlite3_prepare_v2(store->db, sql, -1, out, NULL), "prepare", err);
}

ffa_status store_step(struct store *store, sqlite3_stmt *statement, bool *row, const char *doing,
                      ffa_error *err)
{
    int code = sqlite3_step(statement);

    *row = code == SQLITE_ROW;
    return store_sql(store, code, doing, err);
}

ffa_status store_run(struct store *store, const char *sql, const char *doing, ffa_error *err)
{
    return store_sql(store, sqlite3_exec(store->db, sql, NULL, NULL, NULL), doing, err);
}

ffa_status store_number(struct store *store, const char *sql, int64_t *out, ffa_error *err)
{
    sqlite3_stmt *statement = NULL;
    bool row = false;
    ffa_status rc;

    *out = 0;
    FFA_TRY(store_prepare(store, &statement, sql, err));
    FFA_TRY(store_step(store, statement, &row, "read", err));
    if (row)
        *out = sqlite3_column_int64(statement, 0);
out:
    (void)sqlite3_finalize(statement);
    return rc;
}

/* ---- the file ---- */

void store_close_db(struct store *store)
{
    (void)sqlite3_close(store->db);
    store->db = NULL;
    store->is_writable = false;
}

ffa_status store_rollback(struct store *store, ffa_status rc)
{
    if (rc != FFA_OK && store->db && !sqlite3_get_autocommit(store->db))
        (void)sqlite3_exec(store->db, "ROLLBACK", NULL, NULL, NULL);
    return rc;
}

static ffa_status open_db(struct store *store, const char *name, bool writable, ffa_error *err)
{
    int flags = (writable ? SQLITE_OPEN_READWRITE : SQLITE_OPEN_READONLY) | SQLITE_OPEN_NOMUTEX |
                (store->mode == STORE_BUNDLE ? SQLITE_OPEN_URI : 0);
    ffa_status rc;

    if (sqlite3_libversion_number() < 3037000)
        return error_fail(err, FFA_CACHE, 0, "store '%s': SQLite %s is older than 3.37",
                          store->path, sqlite3_libversion());
    if (sqlite3_threadsafe() == 0)
        return error_fail(err, FFA_CACHE, 0, "store '%s': this SQLite is built without threads",
                          store->path);
    FFA_TRY(store_sql(store, sqlite3_open_v2(name, &store->db, flags, NULL), "open it", err));
    (void)sqlite3_extended_result_codes(store->db, 1);
    (void)sqlite3_busy_timeout(store->db, store->busy_ms);
    (void)sqlite3_db_config(store->db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    (void)sqlite3_db_config(store->db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);
out:
    return rc;
}

ffa_status store_begin_file(struct store *store, char *name, int64_t created_s, ffa_error *err)
{
    int file = fault_here(FAULT_FILE) ? (errno = EIO, -1) : mkostemp(name, O_CLOEXEC);
    char sql[96];
    ffa_status rc;

    if (file < 0) {
        rc = store_file_trouble(store, "make", name, err);
        *name = '\0';
        return rc;
    }
    (void)close(file);
    FFA_TRY(open_db(store, name, true, err));
    FFA_TRY(store_run(store,
                      "PRAGMA page_size=16384; PRAGMA secure_delete=ON; "
                      "PRAGMA journal_mode=MEMORY; BEGIN IMMEDIATE",
                      "begin", err));
    FFA_TRY(store_run(store, embedded_schema.text, "write the schema", err));
    text_copy(sql, "INSERT INTO meta VALUES ('created_s', '%lld')", (long long)created_s);
    rc = store_run(store, sql, "write the schema", err);
out:
    return rc;
}

static ffa_status write_new(struct store *store, char *name, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(store_begin_file(store, name, clock_unix_s(), err));
    FFA_TRY(store_run(store, "COMMIT", "commit the schema", err));
out:
    store_close_db(store);
    return rc;
}

/* replace: an empty file is in the way. */
static ffa_status make_store(struct store *store, bool replace, ffa_error *err)
{
    struct text name = { 0 };
    ffa_status rc;

    text_add(&name, "%s.new-XXXXXX", store->path);
    if (name.failed) {
        text_finish(&name);
        return error_nomem(err, "a path");
    }
    FFA_TRY(write_new(store, name.at, err));
    if (store->of_group && chmod(name.at, 0660) != 0) {
        rc = store_file_trouble(store, "hand to its group", name.at, err);
        goto out;
    }
    if (fault_here(FAULT_FILE)) {
        errno = EIO;
        rc = store_file_trouble(store, "put in place", store->path, err);
        goto out;
    }
    /* EEXIST: another process was faster, and its store is as good. Some file systems have no
     * links; renaming there may replace a store made this instant, which costs a compile. */
    if (!replace && (link(name.at, store->path) == 0 || errno == EEXIST))
        goto out;
    if (rename(name.at, store->path) != 0)
        rc = store_file_trouble(store, "put in place", store->path, err);
out:
    (void)unlink(name.at);
    text_finish(&name);
    return rc;
}

/* Whose file is it? Both numbers are read before any table is touched. */
static ffa_status check_header(struct store *store, ffa_error *err)
{
    int64_t application, schema;
    ffa_status rc;

    FFA_TRY(store_number(store, "PRAGMA application_id", &application, err));
    FFA_TRY(store_number(store, "PRAGMA user_version", &schema, err));
    store->schema = schema;
    store->is_bundle = application == STORE_BUNDLE_APPLICATION;
    if ((application != STORE_APPLICATION && !store->is_bundle) || schema < 1)
        rc = error_fail(err, FFA_CACHE, 0,
                        "'%s' is another program's database, not a kernel store; choose another "
                        "path",
                        store->path);
    else if (schema > STORE_SCHEMA)
        rc = error_fail(err, FFA_CACHE, 0,
                        "%s '%s' has schema %lld, this library reads up to %d; use a newer "
                        "library or another path",
                        store_kind(store), store->path, (long long)schema, STORE_SCHEMA);
    else if (store->is_bundle && store->mode == STORE_READWRITE)
        rc = error_fail(err, FFA_CACHE, 0,
                        "'%s' is a bundle, which nothing is added to; choose another path for the "
                        "store and give it as a bundle",
                        store->path);
    else if (!store->is_bundle && store->mode == STORE_BUNDLE)
        rc = error_fail(err, FFA_CACHE, 0,
                        "'%s' is a store that may change, not a bundle; export a bundle from it",
                        store->path);
out:
    return rc;
}

/* Add what an older schema lacks. Another process may do the same: the statements change nothing
 * the second time. */
static ffa_status upgrade(struct store *store, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(store_run(store, "BEGIN IMMEDIATE", "begin", err));
    FFA_TRY(store_number(store, "PRAGMA user_version", &store->schema, err));
    if (store->schema < STORE_SCHEMA)
        FFA_TRY(store_run(store, embedded_schema.text, "bring its schema up to date", err));
    FFA_TRY(store_run(store, "COMMIT", "commit the schema", err));
    FFA_TRY(store_number(store, "PRAGMA user_version", &store->schema, err));
out:
    return store_rollback(store, rc);
}

static ffa_status set_up(struct store *store, ffa_error *err)
{
    sqlite3_stmt *statement = NULL;
    ffa_status rc;

    FFA_TRY(store_run(store,
                      "PRAGMA mmap_size=0; PRAGMA synchronous=NORMAL; PRAGMA temp_store=MEMORY; "
                      "PRAGMA cell_size_check=ON",
                      "set it up", err));
    if (store->is_writable)
        FFA_TRY(store_run(store, "PRAGMA journal_mode=TRUNCATE", "set its journal", err));
    if (store->is_writable && store->schema < STORE_SCHEMA)
        FFA_TRY(upgrade(store, err));
    /* Tables and columns are all there. */
    FFA_TRY(store_prepare(store, &statement, "SELECT " STORE_COLUMNS_AND_DATA STORE_FROM, err));
out:
    (void)sqlite3_finalize(statement);
    return rc;
}

/* A bundle by a URI that says that it never changes: no locks, no look for a journal. */
static ffa_status open_bundle(struct store *store, const char *target, ffa_error *err)
{
    struct text uri = { 0 };
    ffa_status rc;

    text_add(&uri, "file:");
    for (const char *c = target; *c; c++)
        text_add(&uri, strchr("%?#", *c) ? "%%%02X" : "%c", (unsigned char)*c);
    text_add(&uri, "?mode=ro&immutable=1");
    rc = uri.failed ? error_nomem(err, "a path") : open_db(store, uri.at, false, err);
    text_finish(&uri);
    return rc;
}

/* target: of a bundle. network: the kind of file system, where that forbids writing. */
static ffa_status open_store(struct store *store, const struct stat *file, const char *target,
                             const char *network, ffa_error *err)
{
    bool is_writer = !network && (store->mode == STORE_READWRITE || store->mode == STORE_MAINTAIN);
    ffa_status rc;

    FFA_TRY(target ? open_bundle(store, target, err) : open_db(store, store->path, is_writer, err));
    store->is_writable = is_writer && !sqlite3_db_readonly(store->db, "main");
    store->device = file->st_dev;
    store->inode = file->st_ino;
    FFA_TRY(check_header(store, err));
    store->is_writable = store->is_writable && !store->is_bundle;
    FFA_TRY(set_up(store, err));
out:
    if (rc != FFA_OK)
        store_close_db(store);
    return rc;
}

/* ---- a damaged file ---- */

static bool is_damage(const ffa_error *why)
{
    return why->status == FFA_CACHE &&
           ((why->native & 0xff) == SQLITE_CORRUPT || (why->native & 0xff) == SQLITE_NOTADB);
}

/* Whether a file begins as a store does, or with zeros, as a crash may leave it. Anything else is
 * other data. Only for files that no connection of this process has open. */
static bool is_ours(const char *path)
{
    static const unsigned char zeros[100];
    unsigned char head[100] = { 0 };
    FILE *file = fopen(path, "re");
    size_t bytes = file ? fread(head, 1, sizeof head, file) : 0;

    if (file)
        (void)fclose(file);
    if (bytes == 0)
        return false;
    if (memcmp(head, zeros, sizeof head) == 0)
        return true;
    return bytes == sizeof head && memcmp(head, "SQLite format 3", 16) == 0 && head[68] == 0x66 &&
           head[69] == 0x66 && head[70] == 0x61 && head[71] == 0x6b;
}

/* Rename to "<path>.damaged", the journal with it: a journal left behind would be played back into
 * the next store. */
static ffa_status put_aside(struct store *store, const struct stat *file, ffa_error *err)
{
    static const char *const endings[] = { "-journal", "" };
    struct stat now;
    ffa_status rc = FFA_OK;

    /* Another process may have put it aside, and made a new one, meanwhile. */
    if (lstat(store->path, &now) != 0 || now.st_ino != file->st_ino || now.st_dev != file->st_dev)
        return FFA_OK;
    if (!is_ours(store->path))
        return error_fail(err, FFA_CACHE, 0,
                          "'%s' is not a kernel store, or is damaged from its first bytes; remove "
                          "it or choose another path",
                          store->path);
    for (size_t i = 0; i < 2 && rc == FFA_OK; i++) {
        struct text from = { 0 }, to = { 0 };

        text_add(&from, "%s%s", store->path, endings[i]);
        text_add(&to, "%s.damaged%s", store->path, endings[i]);
        if (from.failed || to.failed)
            rc = error_nomem(err, "a path");
        else if ((rename(from.at, to.at) != 0 && errno != ENOENT) || fault_here(FAULT_FILE))
            rc = store_file_trouble(store, "put aside", from.at, err);
        text_finish(&from);
        text_finish(&to);
    }
    return rc;
}

/* ---- attach, detach ---- */

/* Under lock. Bounded: each round either succeeds, fails for good, or removed what was in the way.
 */
static ffa_status attach(struct store *store, ffa_error *err)
{
    enum { ROUNDS = 3 };
    ffa_error why = { 0 }, aside;
    const char *network = NULL;
    char *target = NULL;
    struct stat file;
    ffa_status rc = FFA_OK;

    store_close_db(store);
    for (int round = 0; round < ROUNDS; round++) {
        mem_free(target);
        target = NULL;
        rc = store->mode == STORE_BUNDLE ? store_check_bundle_place(store, &file, &target, &why)
                                         : store_check_place(store, &file, &why);
        if ((store->mode == STORE_READWRITE || store->mode == STORE_READONLY) &&
            !store->on_network && (rc == FFA_OK || rc == FFA_NOT_FOUND))
            store->network = place_network(store->folder);
        network = store->mode == STORE_READWRITE ? store->network : NULL;
        if (network) {
            (void)error_fail(&why, FFA_CACHE, 0,
                             "store '%s' is on a network file system (%s) and is only read; use a "
                             "folder on a local disk, or a bundle, or set FFA_OPEN_NETWORK_STORE",
                             store->path, network);
            if (rc == FFA_OK && !store->is_network_told)
                store_trouble(store, "store_on_network", &why);
            store->is_network_told = true;
            rc = rc == FFA_OK ? FFA_OK : FFA_CACHE; /* nothing there to be read */
        }
        if (rc == FFA_NOT_FOUND && store_is_maker(store)) {
            rc = make_store(store, why.native == 0, &why);
            if (rc == FFA_OK)
                rc = store_check_place(store, &file, &why);
        }
        if (rc != FFA_OK)
            break;
        rc = open_store(store, &file, target, network, &why);
        if (rc == FFA_OK || !is_damage(&why))
            break;
        if (store->mode != STORE_READWRITE) {
            aside = why;
            rc = error_fail(&why, FFA_CACHE, aside.native,
                            store->mode == STORE_BUNDLE
                                ? "%.400s; copy or export the bundle again"
                                : "%.400s; if it is a store, remove it: kernels are built again",
                            aside.message);
            break;
        }
        rc = put_aside(store, &file, &aside);
        if (rc != FFA_OK) {
            why = aside;
            break;
        }
        store_trouble(store, "store_damaged", &why);
        rc = FFA_CACHE;
    }
    mem_free(target);
    store->is_forked = false;
    store->why = rc == FFA_OK ? (ffa_error){ 0 } : why;
    return rc == FFA_OK ? FFA_OK : error_fail(err, rc, why.native, "%s", why.message);
}

static bool is_busy(const ffa_error *why)
{
    return why->status == FFA_CACHE && (why->native & 0xff) == SQLITE_BUSY;
}

bool store_in_use(struct store *store)
{
    return store->db ||
           ((store->is_forked || is_busy(&store->why)) && attach(store, NULL) == FFA_OK);
}

/* The connection is the parent's: using or closing it here could harm the parent's file. It is left
 * alone, and the file is opened again when it is needed. Counts of errors are the parent's, too. */
static void store_in_child(void *object)
{
    struct store *store = object;

    store->is_forked = store->db != NULL;
    store->db = NULL;
    atomic_store(&store->bad, 0);
    atomic_store(&store->errors, 0);
    store->is_writable = false;
}

void store_trouble(struct store *store, const char *event, const ffa_error *why)
{
    if (is_busy(why)) {
        store->busy_ms = STORE_BUSY_AGAIN_MS;
        if (store->db)
            (void)sqlite3_busy_timeout(store->db, store->busy_ms);
    }
    atomic_fetch_add(&store->errors, 1);
    log_line(&store->log, store->is_warned ? FFA_LOG_DEBUG : FFA_LOG_WARNING, "cache",
             "event=%s path=%s reason=\"%s\"", event, store->path, why->message);
    store->is_warned = true;
}

/* Whether the path no longer leads to the file that is open. */
static bool is_gone(const struct store *store)
{
    struct stat now;

    return (store->mode == STORE_BUNDLE ? stat : lstat)(store->path, &now) != 0 ||
           now.st_ino != store->inode || now.st_dev != store->device;
}

bool store_recover(struct store *store, const ffa_error *why)
{
    bool gone = is_gone(store);
    bool damaged = is_damage(why);
    struct stat file = { .st_dev = store->device, .st_ino = store->inode };
    ffa_error trouble;

    store_trouble(store, damaged ? "store_damaged" : gone ? "store_gone" : "store_error", why);
    if (store->mode == STORE_BUNDLE && (gone || damaged)) {
        /* Replaced: the new one may do. Overwritten in place: it will not. */
        store_close_db(store);
        store->why = *why;
        return gone && attach(store, NULL) == FFA_OK;
    }
    if (store->mode != STORE_READWRITE || !(gone || damaged))
        return false;
    store_close_db(store);
    if (damaged && !gone && put_aside(store, &file, &trouble) != FFA_OK) {
        store->why = trouble;
        return false;
    }
    return attach(store, NULL) == FFA_OK;
}

/* Path and folder. "name" becomes "./name", so that SQLite takes no name for one of its own. */
static ffa_status name_of(struct store *store, const char *path, ffa_error *err)
{
    struct text text = { 0 };
    char *slash;

    text_add(&text, "%s%s", strchr(path, '/') ? "" : "./", path);
    store->path = text_take(&text);
    store->folder = mem_strdup(store->path);
    if (!store->path || !store->folder)
        return error_nomem(err, "a path");
    slash = strrchr(store->folder, '/');
    slash[slash == store->folder] = '\0';
    return FFA_OK;
}

ffa_status store_open(struct store **out, const struct store_opts *opts, ffa_error *err)
{
    struct store *store = mem_array(1, sizeof *store);
    ffa_error why = { 0 };
    ffa_status rc = FFA_OK;

    *out = NULL;
    if (!store)
        return error_nomem(err, "the store");
    store->mode = opts->mode;
    store->may_create = opts->create;
    store->on_network = opts->on_network;
    store->of_group = opts->of_group;
    store->busy_ms = STORE_BUSY_MS;
    store->bytes_max = opts->bytes_max ? opts->bytes_max : (uint64_t)1 << 30;
    store->log = opts->log;
    (void)pthread_mutex_init(&store->lock, NULL);
    fork_guard_add(&store->guard, &store->lock, store_in_child, store);
    if (opts->path) {
        FFA_TRY(name_of(store, opts->path, err));
        /* SQLite is entered under a guarded lock only: it has locks of its own that a fork would
         * leave locked. */
        (void)pthread_mutex_lock(&store->lock);
        rc = attach(store, &why);
        (void)pthread_mutex_unlock(&store->lock);
        if (rc == FFA_NOMEM) {
            rc = error_fail(err, FFA_NOMEM, why.native, "%s", why.message);
            goto out;
        }
        /* A read-only store that is not there yet is no trouble; a bundle was meant to be. */
        if (rc != FFA_OK && store->mode != STORE_MAINTAIN &&
            (rc != FFA_NOT_FOUND || store->mode == STORE_BUNDLE))
            store_trouble(store, "store_unusable", &why);
        rc = FFA_OK;
    }
    *out = store;
    store = NULL;
out:
    store_close(store);
    return rc;
}

void store_close(struct store *store)
{
    if (!store)
        return;
    (void)pthread_mutex_lock(&store->lock);
    store_close_db(store);
    (void)pthread_mutex_unlock(&store->lock);
    fork_guard_remove(&store->guard);
    (void)pthread_mutex_destroy(&store->lock);
    mem_free(store->folder);
    mem_free(store->path);
    mem_free(store);
}

ffa_status store_check(struct store *store, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    (void)pthread_mutex_lock(&store->lock);
    if (!store->db && !(store->is_forked && store_in_use(store)))
        rc = store->path
                 ? error_fail(err, store->why.status, store->why.native, "%s", store->why.message)
                 : error_fail(err, FFA_NOT_FOUND, 0, "there is no store: memory only");
    (void)pthread_mutex_unlock(&store->lock);
    return rc;
}

bool store_is_writable(struct store *store)
{
    bool is_writable;

    (void)pthread_mutex_lock(&store->lock);
    is_writable = store_in_use(store) && store->is_writable;
    (void)pthread_mutex_unlock(&store->lock);
    return is_writable;
}

void store_state(struct store *store, char *out, size_t size)
{
    (void)pthread_mutex_lock(&store->lock);
    (void)store_in_use(store);
    (void)snprintf(out, size, "%s%s%s%s",
                   !store->path         ? "memory only"
                   : !store->db         ? store->why.message
                   : store->is_writable ? "ok"
                                        : "ok, read only",
                   store->db && store->network ? ": on a network file system (" : "",
                   store->db && store->network ? store->network : "",
                   store->db && store->network ? ")" : "");
    (void)pthread_mutex_unlock(&store->lock);
}

const char *store_path(const struct store *store)
{
    return store->path ? store->path : "";
}

uint64_t store_bad_count(const struct store *store)
{
    return atomic_load(&store->bad);
}

uint64_t store_error_count(const struct store *store)
{
    return atomic_load(&store->errors);
}
