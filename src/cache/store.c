/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening a store: make it when absent, check that the file is ours and whole, put a damaged one
 * aside. store_trust.c decides whether its place is to be trusted, store_make.c makes files.
 *
 * Invariant: what was checked is what is opened. The folder stays open as long as the connection,
 * and SQLite is given paths through its descriptor. Only SQLite opens the file itself: closing any
 * other descriptor of it would drop the locks that another connection of this process holds.
 */
#include "cache/store_internal.h"

#include "base/file_limit.h"
#include "base/tempfile.h"
#include "cache/store_place.h"
#include "cache/store_vfs.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- SQLite, and what it says ---- */

void store_call(char out[STORE_CALLED], const char *path)
{
    size_t bytes = strlen(path);
    const char *end = bytes < STORE_CALLED ? path : path + bytes - (STORE_CALLED - 4);

    while (((unsigned char)*end & 0xc0) == 0x80) /* amid a character */
        end++;
    text_format(out, STORE_CALLED, "%s%s", bytes < STORE_CALLED ? "" : "...", end);
}

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
    if ((code & 0xff) == SQLITE_INTERRUPT)
        text = "it takes more work than in any store";
    else if ((code & 0xff) == SQLITE_IOERR && file_limit_was_met())
        text = "the file size limit of this process (ulimit -f) is reached";
    return error_fail(err, (code & 0xff) == SQLITE_NOMEM ? FFA_NOMEM : FFA_CACHE, code,
                      "%s '%s': cannot %s: %s", store_kind(store), store->called, doing, text);
}

ffa_status store_prepare(struct store *store, sqlite3_stmt **out, const char *sql, ffa_error *err)
{
    *out = NULL;
    store->work = 0;
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
    store->work = 0;
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
    if (store->db) {
        (void)sqlite3_close(store->db);
        store_vfs_drop();
    }
    store->db = NULL;
    store->is_writable = false;
}

ffa_status store_rollback(struct store *store, ffa_status rc)
{
    if (rc != FFA_OK && store->db && !sqlite3_get_autocommit(store->db))
        (void)sqlite3_exec(store->db, "ROLLBACK", NULL, NULL, NULL);
    return rc;
}

/* SQLite calls this once every STORE_WORK_STEP instructions; not 0 ends the statement. */
static int watch_work(void *user)
{
    struct store *store = user;

    return ++store->work > store->work_max;
}

void store_set_limits(struct store *store)
{
    static const struct {
        int option, value;
    } rows[] = {
        { SQLITE_DBCONFIG_DEFENSIVE, 1 },
        { SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0 },
        { SQLITE_DBCONFIG_ENABLE_VIEW, 0 },
        { SQLITE_DBCONFIG_ENABLE_TRIGGER, 0 }, /* until check_schema has seen them */
    };

    (void)sqlite3_extended_result_codes(store->db, 1);
    (void)sqlite3_busy_timeout(store->db, store->busy_ms);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        (void)sqlite3_db_config(store->db, rows[i].option, rows[i].value, NULL);
    sqlite3_progress_handler(store->db, STORE_WORK_STEP, watch_work, store);
}

static ffa_status check_library(const struct store *store, ffa_error *err)
{
    if (sqlite3_libversion_number() < 3037000)
        return error_fail(err, FFA_CACHE, 0, "store '%s': SQLite %s is older than 3.37",
                          store->called, sqlite3_libversion());
    if (sqlite3_threadsafe() == 0)
        return error_fail(err, FFA_CACHE, 0, "store '%s': this SQLite is built without threads",
                          store->called);
    return FFA_OK;
}

static ffa_status open_uri(struct store *store, const char *uri, int flags, ffa_error *err)
{
    const char *vfs = store_vfs_take();
    ffa_status rc;

    if (!vfs)
        return error_fail(err, FFA_CACHE, 0, "%s '%s': this SQLite has no VFS for Unix",
                          store_kind(store), store->called);
    store->work = 0;
    FFA_TRY(store_sql(
        store, sqlite3_open_v2(uri, &store->db, flags | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_URI, vfs),
        "open it", err));
    store_set_limits(store);
out:
    if (!store->db) /* SQLite may give a handle also where it fails */
        store_vfs_drop();
    return rc;
}

ffa_status store_open_new(struct store *store, int file, ffa_error *err)
{
    char uri[64];
    ffa_status rc;

    FFA_TRY(check_library(store, err));
    text_copy(uri, "file:/ffa-new?descriptor=%d", file);
    rc = open_uri(store, uri, SQLITE_OPEN_READWRITE, err);
out:
    return rc;
}

/* The file of the place, by a URI that says of a bundle that it never changes: no locks, no look
 * for a journal. */
static ffa_status open_file(struct store *store, bool writable, ffa_error *err)
{
    char *path = store_place_path(&store->place, "");
    struct text uri = { 0 };
    ffa_status rc;

    text_add(&uri, "file:");
    for (const char *c = path ? path : ""; *c; c++)
        text_add(&uri, strchr("%?#", *c) ? "%%%02X" : "%c", (unsigned char)*c);
    text_add(&uri, "%s", store->mode == STORE_BUNDLE ? "?mode=ro&immutable=1" : "");
    FFA_TRY(path && !uri.failed ? check_library(store, err) : error_nomem(err, "a path"));
    rc = open_uri(store, uri.at, writable ? SQLITE_OPEN_READWRITE : SQLITE_OPEN_READONLY, err);
out:
    text_finish(&uri);
    mem_free(path);
    return rc;
}

/* network: the kind of file system, where that forbids writing. */
static ffa_status open_store(struct store *store, const struct stat *file, const char *network,
                             ffa_error *err)
{
    bool is_writer = !network && (store->mode == STORE_READWRITE || store->mode == STORE_MAINTAIN);
    ffa_status rc;

    FFA_TRY(open_file(store, is_writer, err));
    store->is_writable = is_writer && !sqlite3_db_readonly(store->db, "main");
    store->device = file->st_dev;
    store->inode = file->st_ino;
    FFA_TRY(store_check_header(store, err));
    store->is_writable = store->is_writable && !store->is_bundle;
    FFA_TRY(store_check_schema(store, err));
    FFA_TRY(store_set_up(store, err));
out:
    if (rc != FFA_OK)
        store_close_db(store);
    return rc;
}

static bool is_damage(const ffa_error *why)
{
    return why->status == FFA_CACHE &&
           ((why->native & 0xff) == SQLITE_CORRUPT || (why->native & 0xff) == SQLITE_NOTADB);
}

/* ---- the lock ---- */

void store_lock(struct store *store)
{
    (void)pthread_mutex_lock(&store->lock);
    file_limit_enter();
}

void store_unlock(struct store *store)
{
    file_limit_leave();
    (void)pthread_mutex_unlock(&store->lock);
}

/* ---- attach, detach ---- */

/* Whether the place is on a network file system whose stores are only read. The sentence says what
 * would let this caller write. */
static ffa_status check_network(struct store *store, bool is_there, ffa_error *err)
{
    if (store->mode == STORE_BUNDLE || store->on_network)
        return FFA_OK;
    store->network = place_network(store->place.folder);
    if (!store->network || store->mode == STORE_READONLY)
        return FFA_OK;
    (void)store_fail_network(store, err);
    if (store->mode == STORE_READWRITE && is_there && !store->is_network_told)
        store_trouble(store, "store_on_network", err);
    store->is_network_told = true;
    return is_there ? FFA_OK : FFA_CACHE; /* nothing there to be read */
}

/* Enter the place, and make a store where there is none and one is wanted. */
static ffa_status find_file(struct store *store, struct stat *file, ffa_error *err)
{
    ffa_error network = { 0 };
    ffa_status rc;

    if (place_is_url(store->path))
        return error_fail(err, FFA_CACHE, 0, "%s '%s' is a URL, not a path: give a file on a disk",
                          store_kind(store), store->called);
    if (store->mode != STORE_BUNDLE &&
        strlen(strrchr(store->path, '/') + 1) + strlen("-journal") > NAME_MAX)
        return error_fail(err, FFA_CACHE, ENAMETOOLONG,
                          "store '%s': its name has %zu bytes, more than %zu: its journal's has "
                          "%zu more, up to %d",
                          store->called, strlen(strrchr(store->path, '/') + 1),
                          NAME_MAX - strlen("-journal"), strlen("-journal"), NAME_MAX);
    rc = store->follows_links ? store_enter_bundle_place(store, file, err)
                              : store_enter_place(store, file, err);
    if (rc != FFA_OK && rc != FFA_NOT_FOUND)
        return rc;
    if (check_network(store, rc == FFA_OK, &network) != FFA_OK)
        return rc == FFA_NOT_FOUND && !store_is_maker(store)
                   ? rc
                   : error_fail(err, network.status, 0, "%s", network.message);
    if (!store->network && (store->mode == STORE_READWRITE || store->mode == STORE_MAINTAIN) &&
        store_reap(store) != FFA_OK)
        return error_nomem(err, "a path");
    if (rc == FFA_NOT_FOUND && store_is_maker(store)) {
        rc = store_make(store, err);
        if (rc == FFA_OK)
            rc = store_enter_place(store, file, err);
    }
    return rc;
}

/* A file that SQLite finds damaged: put aside by those who make stores, else told of. FFA_OK: there
 * is room for a new one. */
static ffa_status handle_damage(struct store *store, const struct stat *file, ffa_error *why)
{
    ffa_error found = *why;
    ffa_status rc;

    if (store->mode != STORE_READWRITE)
        return error_fail(why, FFA_CACHE, found.native,
                          store->mode == STORE_BUNDLE ? "%.400s; copy or export the bundle again"
                          : store->follows_links /* it may be a bundle */
                              ? "%.400s"
                              : "%.400s; if it is a store, remove it: kernels are built again",
                          found.message);
    rc = store_put_aside(store, file, why);
    if (rc == FFA_OK)
        store_trouble(store, "store_damaged", &found);
    return rc;
}

/* Under lock. Bounded: each round either succeeds, fails for good, or removed what was in the way.
 */
static ffa_status attach(struct store *store, ffa_error *err)
{
    enum { ROUNDS = 3 };
    ffa_error why = { 0 };
    struct stat file;
    ffa_status rc = FFA_CACHE;

    store_close_db(store);
    for (int round = 0; round < ROUNDS && rc != FFA_OK; round++) {
        rc = find_file(store, &file, &why);
        if (rc != FFA_OK)
            break;
        rc = open_store(store, &file, store->network, &why);
        if (rc != FFA_OK && (!is_damage(&why) || handle_damage(store, &file, &why) != FFA_OK))
            break;
    }
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

/* Whether what opens the folder does not lead there: /proc was unmounted, or the root changed. */
static bool is_cut_off(const struct store_place *place)
{
    struct stat here, there;

    return place->opened && (fstat(place->folder, &here) != 0 || stat(place->opened, &there) != 0 ||
                             here.st_ino != there.st_ino || here.st_dev != there.st_dev);
}

/* Whether the path no longer leads to the file that is open. */
static bool is_gone(const struct store *store)
{
    struct stat now;

    return is_cut_off(&store->place) ||
           fstatat(store->start, store->path, &now,
                   store->follows_links ? 0 : AT_SYMLINK_NOFOLLOW) != 0 ||
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
    if (damaged && !gone && store_put_aside(store, &file, &trouble) != FFA_OK) {
        store->why = trouble;
        return false;
    }
    return attach(store, NULL) == FFA_OK;
}

/* Path and folder; "name" becomes "./name". */
static ffa_status name_of(struct store *store, const char *path, ffa_error *err)
{
    struct text text = { 0 };
    char *slash;

    text_add(&text, "%s%s", strchr(path, '/') ? "" : "./", path);
    store->path = text_take(&text);
    store->folder = mem_strdup(store->path);
    if (!store->path || !store->folder)
        return error_nomem(err, "a path");
    store_call(store->called, store->path);
    slash = strrchr(store->folder, '/');
    slash[slash == store->folder] = '\0';
    if (*store->path != '/') {
        int start = descriptor_above_standard(open(".", O_PATH | O_DIRECTORY | O_CLOEXEC));

        store->start = start >= 0 ? start : AT_FDCWD;
    }
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
    store->follows_links = opts->mode == STORE_BUNDLE || opts->follow_links;
    store->busy_ms = STORE_BUSY_MS;
    store->work_max = STORE_WORK_MAX;
    store->place.folder = -1;
    store->start = AT_FDCWD;
    store->bytes_max = opts->bytes_max ? opts->bytes_max : (uint64_t)1 << 30;
    store->log = opts->log;
    (void)pthread_mutex_init(&store->lock, NULL);
    fork_guard_add(&store->guard, &store->lock, store_in_child, store);
    if (opts->path) {
        FFA_TRY(name_of(store, opts->path, err));
        /* SQLite is entered under a guarded lock only: it has locks of its own that a fork would
         * leave locked. */
        store_lock(store);
        rc = attach(store, &why);
        store_unlock(store);
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
    store_lock(store);
    store_close_db(store);
    store_leave_place(&store->place);
    if (store->start >= 0)
        (void)close(store->start);
    store_unlock(store);
    fork_guard_remove(&store->guard);
    (void)pthread_mutex_destroy(&store->lock);
    mem_free(store->folder);
    mem_free(store->path);
    mem_free(store);
}

ffa_status store_check(struct store *store, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    store_lock(store);
    if (!store->db && !(store->is_forked && store_in_use(store)))
        rc = store->path
                 ? error_fail(err, store->why.status, store->why.native, "%s", store->why.message)
                 : error_fail(err, FFA_NOT_FOUND, 0, "there is no store: memory only");
    store_unlock(store);
    return rc;
}

bool store_is_writable(struct store *store)
{
    bool is_writable;

    store_lock(store);
    is_writable = store_in_use(store) && store->is_writable;
    store_unlock(store);
    return is_writable;
}

void store_state(struct store *store, char *out, size_t size)
{
    store_lock(store);
    (void)store_in_use(store);
    (void)snprintf(out, size, "%s%s%s%s",
                   !store->path         ? "memory only"
                   : !store->db         ? store->why.message
                   : store->is_writable ? "ok"
                                        : "ok, read only",
                   store->db && store->network ? ": on a network file system (" : "",
                   store->db && store->network ? store->network : "",
                   store->db && store->network ? ")" : "");
    store_unlock(store);
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
