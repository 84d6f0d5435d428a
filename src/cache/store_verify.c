/* SPDX-License-Identifier: Apache-2.0
 *
 * Looking after a store: opening it for maintenance, listing, checking, removing, notes
 * (include/ffa/cache.h). Invariant: each function holds the store's lock from beginning to end, so
 * that no other thread uses the connection meanwhile; visitors must not call into the cache.
 */
#include "cache/bundle.h"

#include "cache/store_place.h"

#include <stdio.h>

ffa_status ffa_cache_open(ffa_cache **out, const char *path, uint32_t flags, ffa_error *err)
{
    const uint32_t known = FFA_CACHE_READONLY | FFA_CACHE_CREATE | FFA_CACHE_GROUP |
                           FFA_CACHE_NETWORK | FFA_CACHE_FOLLOW_LINKS;
    struct store_opts opts = { .path = path,
                               .follow_links = flags & FFA_CACHE_FOLLOW_LINKS,
                               .on_network = flags & FFA_CACHE_NETWORK,
                               .of_group = flags & FFA_CACHE_GROUP };
    ffa_cache *cache = NULL;
    ffa_status rc;

    if (!out)
        return error_fail(err, FFA_INVALID, 0, "out is NULL");
    *out = NULL;
    if (!path || !*path)
        return error_fail(err, FFA_INVALID, 0, "path is %s", path ? "empty" : "NULL");
    if (flags & ~known)
        return error_fail(err, FFA_UNSUPPORTED, 0, "flags is 0x%x, known are 0x%x", flags, known);
    if (flags & FFA_CACHE_FOLLOW_LINKS && !(flags & FFA_CACHE_READONLY))
        return error_fail(err, FFA_INVALID, 0,
                          "flags has FFA_CACHE_FOLLOW_LINKS without FFA_CACHE_READONLY");
    if (place_is_url(path))
        return error_fail(err, FFA_INVALID, 0, "path is '%.200s', a URL: give a file on a disk",
                          path);
    opts.create = (flags & FFA_CACHE_CREATE) && !(flags & FFA_CACHE_READONLY);
    opts.mode = flags & FFA_CACHE_READONLY ? STORE_READONLY : STORE_MAINTAIN;
    cache = mem_array(1, sizeof *cache);
    if (!cache)
        return error_nomem(err, "a cache");
    FFA_TRY(store_open(&cache->store, &opts, err));
    FFA_TRY(store_check(cache->store, err));
    *out = cache;
    cache = NULL;
out:
    ffa_cache_close(cache);
    return rc;
}

void ffa_cache_close(ffa_cache *cache)
{
    if (!cache)
        return;
    store_close(cache->store);
    mem_free(cache);
}

/* In a child after fork() the file is opened again here. */
ffa_status cache_enter(ffa_cache *cache, ffa_error *err)
{
    struct store *store = cache->store;

    store_lock(store);
    if (store_in_use(store))
        return FFA_OK;
    (void)error_fail(err, FFA_CACHE, store->why.native, "%s", store->why.message);
    store_unlock(store);
    return FFA_CACHE;
}

void cache_leave(ffa_cache *cache)
{
    store_unlock(cache->store);
}

/* ---- arguments ---- */

/* `prefix` becomes the bounds of a range of keys: [prefix, prefix + 'g'), 'g' being past 'f'. */
struct key_range {
    char begin[40];
    char end[40];
};

static ffa_status key_range_init(struct key_range *range, const char *name, const char *prefix,
                                 ffa_error *err)
{
    size_t digits = prefix ? strlen(prefix) : 0;

    if (digits > 32 || (digits && strspn(prefix, "0123456789abcdef") != digits))
        return error_fail(err, FFA_INVALID, 0,
                          "%s is '%.40s', not at most 32 hexadecimal digits in lower case", name,
                          prefix);
    text_copy(range->begin, "%s", digits ? prefix : "");
    text_copy(range->end, "%sg", range->begin);
    return FFA_OK;
}

ffa_status cache_check_writable(const struct store *store, ffa_error *err)
{
    if (store->is_writable)
        return FFA_OK;
    if (store->network && !store->is_bundle && store->mode != STORE_READONLY)
        return store_fail_network(store, err);
    return error_fail(err, FFA_CACHE, 0, "%s '%s' %s", store->is_bundle ? "bundle" : "store",
                      store->called, store->is_bundle ? "never changes" : "is open read-only");
}

/* ---- reading ---- */

void cache_entry_of(ffa_cache_entry *entry, const struct store_row *row)
{
    *entry = (ffa_cache_entry){ .struct_size = (uint32_t)sizeof *entry,
                                .key = row->key,
                                .toolchain = row->toolchain,
                                .template_name = row->template_name,
                                .arch = row->arch,
                                .record = row->record,
                                .digest = row->digest,
                                .cubin_bytes = row->bytes,
                                .created_s = row->created_s,
                                .used_s = row->used_s,
                                .compile_us = row->compile_us,
                                .registers = row->registers,
                                .shared_bytes = row->shared_bytes,
                                .spill_bytes = row->spill_bytes,
                                .advisory_count = row->advisory_count,
                                .threads = row->threads };
}

static ffa_status read_stats(struct store *store, ffa_cache_stats *stats, ffa_error *err)
{
    int64_t pages, unused, page_bytes, schema;
    const struct {
        const char *sql;
        int64_t *out;
    } numbers[] = {
        { "SELECT count(*) FROM kernel", &stats->kernels },
        { "SELECT count(*) FROM blob", &stats->blobs },
        { "SELECT ifnull(sum(bytes), 0) FROM blob", &stats->blob_bytes },
        { "SELECT ifnull(sum(compile_us), 0) FROM kernel", &stats->compile_us },
        { "SELECT ifnull(min(created_s), 0) FROM kernel", &stats->oldest_s },
        { "SELECT ifnull(max(created_s), 0) FROM kernel", &stats->newest_s },
        { "PRAGMA page_count", &pages },
        { "PRAGMA freelist_count", &unused },
        { "PRAGMA page_size", &page_bytes },
        { "PRAGMA user_version", &schema },
        /* Since version 2: */
        { "SELECT count(*) FROM failure", &stats->failures },
        { "SELECT count(*) FROM miss", &stats->misses },
    };
    size_t count = sizeof numbers / sizeof *numbers - (store->schema < 2 ? 2 : 0);
    ffa_status rc;

    for (size_t i = 0; i < count; i++)
        FFA_TRY(store_number(store, numbers[i].sql, numbers[i].out, err));
    stats->file_bytes = pages * page_bytes;
    stats->free_bytes = unused * page_bytes;
    stats->schema = (int32_t)schema;
out:
    return rc;
}

ffa_status ffa_cache_stats_get(ffa_cache *cache, ffa_cache_stats *stats, ffa_error *err)
{
    ffa_cache_stats now = { 0 };
    ffa_status rc;

    if (!cache || !stats)
        return error_fail(err, FFA_INVALID, 0, "%s is NULL", cache ? "stats" : "cache");
    rc = cache_enter(cache, err);
    if (rc != FFA_OK)
        return rc;
    rc = read_stats(cache->store, &now, err);
    cache_leave(cache);
    return rc == FFA_OK ? opts_export(stats, &now, sizeof now, err) : rc;
}

/* Under lock: call visit for the rows of a range; with_data: only for bad ones, and count them. */
static ffa_status visit_rows(struct store *store, const struct key_range *range, bool with_data,
                             ffa_cache_verdict *verdict, ffa_cache_visit visit, void *user,
                             ffa_error *err)
{
    sqlite3_stmt *statement = NULL;
    bool is_row;
    ffa_status rc;

    FFA_TRY(store_prepare(
        store, &statement,
        with_data ? "SELECT " STORE_COLUMNS_AND_DATA STORE_FROM "WHERE k.key >= ?1 AND k.key < ?2"
                  : "SELECT " STORE_COLUMNS STORE_FROM "WHERE k.key >= ?1 AND k.key < ?2 "
                    "ORDER BY k.created_s DESC, k.id DESC",
        err));
    (void)sqlite3_bind_text(statement, 1, range->begin, -1, SQLITE_STATIC);
    (void)sqlite3_bind_text(statement, 2, range->end, -1, SQLITE_STATIC);
    for (;;) {
        ffa_cache_entry entry;
        struct store_row row;

        FFA_TRY(store_step(store, statement, &is_row, "read an entry", err));
        if (!is_row)
            break;
        verdict->checked++;
        store_row_read(&row, statement, with_data);
        cache_entry_of(&entry, &row);
        if (with_data) {
            if (store_row_blob_ok(&row) && store_row_seal_ok(&row))
                continue;
            verdict->bad++;
            entry.is_bad = 1;
        }
        if (visit && visit(user, &entry))
            break;
    }
out:
    (void)sqlite3_finalize(statement);
    return rc;
}

ffa_status ffa_cache_list(ffa_cache *cache, const char *prefix, ffa_cache_visit visit, void *user,
                          ffa_error *err)
{
    ffa_cache_verdict seen = { 0 };
    struct key_range range;
    ffa_status rc;

    if (!cache || !visit)
        return error_fail(err, FFA_INVALID, 0, "%s is NULL", cache ? "visit" : "cache");
    FFA_TRY(key_range_init(&range, "prefix", prefix, err));
    rc = cache_enter(cache, err);
    if (rc != FFA_OK)
        return rc;
    rc = visit_rows(cache->store, &range, false, &seen, visit, user, err);
    cache_leave(cache);
    if (rc == FFA_OK && range.begin[0] && seen.checked == 0)
        rc = error_fail(err, FFA_NOT_FOUND, 0, "no key starts with '%s'", range.begin);
out:
    return rc;
}

static ffa_status read_cubin(struct store *store, const char *key, const char *toolchain,
                             void **out, size_t *bytes, ffa_error *err)
{
    sqlite3_stmt *statement = NULL;
    struct store_row row;
    bool is_row;
    ffa_status rc;

    FFA_TRY(store_prepare(store, &statement,
                          "SELECT " STORE_COLUMNS_AND_DATA STORE_FROM
                          "WHERE k.key = ?1 AND (?2 IS NULL OR k.toolchain = ?2) "
                          "ORDER BY k.created_s DESC, k.id DESC LIMIT 1",
                          err));
    (void)sqlite3_bind_text(statement, 1, key, -1, SQLITE_STATIC);
    (void)sqlite3_bind_text(statement, 2, toolchain, -1, SQLITE_STATIC); /* NULL binds NULL */
    FFA_TRY(store_step(store, statement, &is_row, "read a cubin", err));
    if (!is_row) {
        rc = error_fail(err, FFA_NOT_FOUND, 0, "there is no kernel '%s'%s%s", key,
                        toolchain ? " built by " : "", toolchain ? toolchain : "");
        goto out;
    }
    store_row_read(&row, statement, true);
    if (!store_row_blob_ok(&row)) {
        rc = error_fail(err, FFA_CACHE, 0,
                        "kernel '%s': length or hash of the cubin does not match", key);
        goto out;
    }
    *out = mem_array(row.data_bytes, 1);
    if (!*out) {
        rc = error_nomem(err, "a cubin");
        goto out;
    }
    memcpy(*out, row.data, row.data_bytes);
    *bytes = row.data_bytes;
out:
    (void)sqlite3_finalize(statement);
    return rc;
}

ffa_status ffa_cache_cubin(ffa_cache *cache, const char *key, const char *toolchain, void **out,
                           size_t *bytes, ffa_error *err)
{
    ffa_status rc;

    if (!out || !bytes)
        return error_fail(err, FFA_INVALID, 0, "%s is NULL", out ? "bytes" : "out");
    *out = NULL;
    *bytes = 0;
    if (!cache || !key)
        return error_fail(err, FFA_INVALID, 0, "%s is NULL", cache ? "key" : "cache");
    rc = cache_enter(cache, err);
    if (rc != FFA_OK)
        return rc;
    rc = read_cubin(cache->store, key, toolchain, out, bytes, err);
    cache_leave(cache);
    return rc;
}

/* Under lock: what SQLite itself can tell of the file. */
ffa_status cache_check_structure(struct store *store, ffa_error *err)
{
    sqlite3_stmt *statement = NULL;
    const char *said;
    bool is_row;
    ffa_status rc;

    FFA_TRY(store_prepare(store, &statement, "PRAGMA integrity_check(1)", err));
    FFA_TRY(store_step(store, statement, &is_row, "check it", err));
    said = is_row ? (const char *)sqlite3_column_text(statement, 0) : NULL;
    if (!said || strcmp(said, "ok") != 0)
        rc = error_fail(err, FFA_CACHE, SQLITE_CORRUPT,
                        "store '%s' is damaged: %.200s; remove it, kernels are built again",
                        store->called, said ? said : "no answer");
out:
    (void)sqlite3_finalize(statement);
    return rc;
}

ffa_status ffa_cache_verify(ffa_cache *cache, ffa_cache_verdict *verdict, ffa_cache_visit visit,
                            void *user, ffa_error *err)
{
    static const struct key_range all = { "", "g" };
    ffa_cache_verdict now = { 0 };
    ffa_status rc;

    if (!cache || !verdict)
        return error_fail(err, FFA_INVALID, 0, "%s is NULL", cache ? "verdict" : "cache");
    FFA_TRY(opts_export(verdict, &now, sizeof now, err));
    FFA_TRY(cache_enter(cache, err));
    rc = visit_rows(cache->store, &all, true, &now, visit, user, err);
    if (rc == FFA_OK)
        rc = cache_check_structure(cache->store, err);
    cache_leave(cache);
    (void)opts_export(verdict, &now, sizeof now, NULL);
out:
    return rc;
}

/* ---- removing ---- */

static ffa_status remove_one(struct store *store, const struct key_range *range, int64_t *removed,
                             ffa_error *err)
{
    char where[128], sql[192];
    int64_t keys;
    ffa_status rc;

    /* Only hexadecimal digits and 'g' get here. */
    text_copy(where, "WHERE key >= '%s' AND key < '%s'", range->begin, range->end);
    FFA_TRY(store_run(store, "BEGIN IMMEDIATE", "begin", err));
    text_copy(sql, "SELECT count(DISTINCT key) FROM kernel %s", where);
    FFA_TRY(store_number(store, sql, &keys, err));
    if (keys != 1) {
        rc = keys ? error_fail(err, FFA_INVALID, 0, "prefix '%s' matches %lld keys, not one",
                               range->begin, (long long)keys)
                  : error_fail(err, FFA_NOT_FOUND, 0, "no key starts with '%s'", range->begin);
        goto out;
    }
    text_copy(sql, "DELETE FROM kernel %s", where);
    FFA_TRY(store_run(store, sql, "remove entries", err));
    *removed = sqlite3_changes(store->db);
    rc = store_run(store, "COMMIT", "commit", err);
out:
    return store_rollback(store, rc);
}

static ffa_status remove_all(struct store *store, int64_t *removed, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(store_run(store, "BEGIN IMMEDIATE", "begin", err));
    FFA_TRY(store_number(store, "SELECT count(*) FROM kernel", removed, err));
    FFA_TRY(store_run(store,
                      "DELETE FROM kernel; DELETE FROM blob; DELETE FROM failure; DELETE FROM miss",
                      "remove entries", err));
    FFA_TRY(store_run(store, "COMMIT", "commit", err));
    rc = store_run(store, "VACUUM", "give space back", err);
out:
    return store_rollback(store, rc);
}

ffa_status ffa_cache_remove(ffa_cache *cache, const char *prefix, int64_t *removed, ffa_error *err)
{
    struct key_range range;
    int64_t count = 0;
    ffa_status rc;

    if (removed)
        *removed = 0;
    if (!cache || !prefix || !*prefix)
        return error_fail(err, FFA_INVALID, 0, "%s",
                          !cache   ? "cache is NULL"
                          : prefix ? "prefix is empty"
                                   : "prefix is NULL");
    FFA_TRY(key_range_init(&range, "prefix", prefix, err));
    rc = cache_enter(cache, err);
    if (rc != FFA_OK)
        return rc;
    rc = cache_check_writable(cache->store, err);
    if (rc == FFA_OK)
        rc = remove_one(cache->store, &range, &count, err);
    cache_leave(cache);
    if (rc == FFA_OK && removed)
        *removed = count;
out:
    return rc;
}

ffa_status ffa_cache_clear(ffa_cache *cache, int64_t *removed, ffa_error *err)
{
    int64_t count = 0;
    ffa_status rc;

    if (removed)
        *removed = 0;
    if (!cache)
        return error_fail(err, FFA_INVALID, 0, "cache is NULL");
    rc = cache_enter(cache, err);
    if (rc != FFA_OK)
        return rc;
    rc = cache_check_writable(cache->store, err);
    if (rc == FFA_OK)
        rc = remove_all(cache->store, &count, err);
    cache_leave(cache);
    if (rc == FFA_OK && removed)
        *removed = count;
    return rc;
}

/* ---- notes ---- */

static const char *text_of(sqlite3_stmt *statement, int column)
{
    const char *text = (const char *)sqlite3_column_text(statement, column);

    return text ? text : "";
}

/* Under lock: step, and whether there is one more. A store of before version 2 has none. */
static ffa_status next_note(struct store *store, sqlite3_stmt **statement, const char *sql,
                            bool *is_row, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    *is_row = false;
    if (store->schema < 2)
        return FFA_OK;
    if (!*statement)
        FFA_TRY(store_prepare(store, statement, sql, err));
    rc = store_step(store, *statement, is_row, "read a note", err);
out:
    return rc;
}

/* Which notes, and the caller's function for one; the other is NULL. */
struct note_visitor {
    const char *sql;
    ffa_cache_failure_visit failure;
    ffa_cache_miss_visit miss;
    void *user;
};

static int show_failure(const struct note_visitor *visitor, sqlite3_stmt *statement)
{
    return visitor->failure(visitor->user, &(ffa_cache_failure){
                                               .struct_size = (uint32_t)sizeof(ffa_cache_failure),
                                               .key = text_of(statement, 0),
                                               .toolchain = text_of(statement, 1),
                                               .template_name = text_of(statement, 2),
                                               .arch = text_of(statement, 3),
                                               .record = text_of(statement, 4),
                                               .message = text_of(statement, 5),
                                               .log = text_of(statement, 6),
                                               .failed_s = sqlite3_column_int64(statement, 7),
                                           });
}

static int show_miss(const struct note_visitor *visitor, sqlite3_stmt *statement)
{
    return visitor->miss(visitor->user, &(ffa_cache_miss){
                                            .struct_size = (uint32_t)sizeof(ffa_cache_miss),
                                            .key = text_of(statement, 0),
                                            .template_name = text_of(statement, 1),
                                            .arch = text_of(statement, 2),
                                            .record = text_of(statement, 3),
                                            .noted = sqlite3_column_int64(statement, 4),
                                            .first_s = sqlite3_column_int64(statement, 5),
                                            .last_s = sqlite3_column_int64(statement, 6),
                                        });
}

static ffa_status list_notes(ffa_cache *cache, const struct note_visitor *visitor, ffa_error *err)
{
    sqlite3_stmt *statement = NULL;
    bool is_row = true;
    ffa_status rc;

    if (!cache || !(visitor->failure || visitor->miss))
        return error_fail(err, FFA_INVALID, 0, "%s is NULL", cache ? "visit" : "cache");
    rc = cache_enter(cache, err);
    if (rc != FFA_OK)
        return rc;
    while (is_row) {
        FFA_TRY(next_note(cache->store, &statement, visitor->sql, &is_row, err));
        if (is_row &&
            (visitor->failure ? show_failure(visitor, statement) : show_miss(visitor, statement)))
            break;
    }
out:
    (void)sqlite3_finalize(statement);
    cache_leave(cache);
    return rc;
}

ffa_status ffa_cache_list_failures(ffa_cache *cache, ffa_cache_failure_visit visit, void *user,
                                   ffa_error *err)
{
    const struct note_visitor visitor = {
        .sql = "SELECT key, toolchain, template, arch, record, message, log, failed_s "
               "FROM failure ORDER BY failed_s DESC, id DESC",
        .failure = visit,
        .user = user,
    };

    return list_notes(cache, &visitor, err);
}

ffa_status ffa_cache_list_misses(ffa_cache *cache, ffa_cache_miss_visit visit, void *user,
                                 ffa_error *err)
{
    const struct note_visitor visitor = {
        .sql = "SELECT key, template, arch, record, noted, first_s, last_s FROM miss "
               "ORDER BY last_s DESC, id DESC",
        .miss = visit,
        .user = user,
    };

    return list_notes(cache, &visitor, err);
}

static ffa_status forget(struct store *store, uint32_t what, int64_t *removed, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(store_run(store, "BEGIN IMMEDIATE", "begin", err));
    if (what & FFA_CACHE_FAILURES) {
        FFA_TRY(store_run(store, "DELETE FROM failure", "forget failures", err));
        *removed += sqlite3_changes(store->db);
    }
    if (what & FFA_CACHE_MISSES) {
        FFA_TRY(store_run(store, "DELETE FROM miss", "forget misses", err));
        *removed += sqlite3_changes(store->db);
    }
    rc = store_run(store, "COMMIT", "commit", err);
out:
    return store_rollback(store, rc);
}

ffa_status ffa_cache_forget(ffa_cache *cache, uint32_t what, int64_t *removed, ffa_error *err)
{
    const uint32_t known = FFA_CACHE_FAILURES | FFA_CACHE_MISSES;
    int64_t count = 0;
    ffa_status rc;

    if (removed)
        *removed = 0;
    if (!cache)
        return error_fail(err, FFA_INVALID, 0, "cache is NULL");
    if (!what || (what & ~known))
        return error_fail(err, FFA_INVALID, 0, "what is 0x%x, known are 0x%x", what, known);
    rc = cache_enter(cache, err);
    if (rc != FFA_OK)
        return rc;
    rc = cache_check_writable(cache->store, err);
    if (rc == FFA_OK)
        rc = forget(cache->store, what, &count, err);
    cache_leave(cache);
    if (rc == FFA_OK && removed)
        *removed = count;
    return rc;
}
