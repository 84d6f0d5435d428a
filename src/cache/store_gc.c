/* SPDX-License-Identifier: Apache-2.0
 *
 * Removing what is long unused, by age and by size, in one transaction. Invariant: a dry run is the
 * same transaction, rolled back, so that what it reports is exact. Where the store may not be
 * written, the transaction is on a copy of it in a temporary database of SQLite's.
 */
#include "cache/bundle.h"

#include <stdio.h>

struct gc {
    struct store *store;
    ffa_cache_visit visit; /* may be NULL, or stopped by then */
    void *user;
    ffa_cache_gc_report *report;
};

static ffa_status show(struct gc *gc, const char *where, ffa_error *err)
{
    sqlite3_stmt *statement = NULL;
    struct text sql = { 0 };
    bool is_row = true;
    ffa_status rc;

    text_add(&sql, "SELECT " STORE_COLUMNS STORE_FROM "WHERE %s ORDER BY k.used_s, k.id", where);
    if (sql.failed) {
        rc = error_nomem(err, "a query");
        goto out;
    }
    FFA_TRY(store_prepare(gc->store, &statement, sql.at, err));
    while (gc->visit) {
        ffa_cache_entry entry;
        struct store_row row;

        FFA_TRY(store_step(gc->store, statement, &is_row, "read an entry", err));
        if (!is_row)
            break;
        store_row_read(&row, statement, false);
        cache_entry_of(&entry, &row);
        if (gc->visit(gc->user, &entry))
            gc->visit = NULL;
    }
out:
    (void)sqlite3_finalize(statement);
    text_finish(&sql);
    return rc;
}

/* Remove the kernels k for which `where` holds; *removed: how many. */
static ffa_status take(struct gc *gc, const char *where, int64_t *removed, ffa_error *err)
{
    char sql[256];
    ffa_status rc = FFA_OK;

    if (gc->visit)
        FFA_TRY(show(gc, where, err));
    text_copy(sql, "DELETE FROM kernel AS k WHERE %s", where);
    FFA_TRY(store_run(gc->store, sql, "remove entries", err));
    *removed = sqlite3_changes(gc->store->db);
    gc->report->removed += *removed;
out:
    return rc;
}

/* Inside a transaction. Uses in the future are of a clock that was wrong, and count as now. */
static ffa_status remove_unused(struct gc *gc, const ffa_cache_gc_opts *opts, ffa_error *err)
{
    ffa_cache_gc_report *report = gc->report;
    int64_t now = clock_unix_s(), removed = 0;
    char where[160];
    ffa_status rc;

    FFA_TRY(store_bytes_used(gc->store, &report->bytes_before, err));
    if (opts->unused_s) {
        text_copy(where, "k.used_s < %lld", (long long)(now - opts->unused_s));
        FFA_TRY(take(gc, where, &removed, err));
    }
    /* In steps that go past the goal by a few kernels of many at most. */
    text_copy(where,
              "k.id IN (SELECT id FROM kernel ORDER BY min(used_s, %lld), id "
              "LIMIT 1 + (SELECT count(*) FROM kernel) / 256)",
              (long long)now);
    for (;;) {
        FFA_TRY(store_bytes_used(gc->store, &report->bytes_after, err));
        if (!opts->bytes_max || report->bytes_after <= opts->bytes_max)
            break;
        FFA_TRY(take(gc, where, &removed, err));
        if (removed == 0)
            break;
    }
    rc = store_number(gc->store, "SELECT count(*) FROM kernel", &report->kept, err);
out:
    return rc;
}

/* Under lock. */
static ffa_status collect(struct gc *gc, const ffa_cache_gc_opts *opts, ffa_error *err)
{
    struct store *store = gc->store;
    ffa_status rc;

    FFA_TRY(store_run(store, "BEGIN IMMEDIATE", "begin", err));
    FFA_TRY(remove_unused(gc, opts, err));
    if (opts->flags & FFA_CACHE_GC_DRY_RUN) {
        rc = store_run(store, "ROLLBACK", "end the dry run", err);
        goto out;
    }
    FFA_TRY(store_run(store, "COMMIT", "commit", err));
    if (gc->report->removed)
        rc = store_run(store, "VACUUM", "give space back", err);
out:
    return store_rollback(store, rc);
}

/* Under lock: a copy of the store, open in *out, which the caller finishes. */
static ffa_status copy_store(struct store *out, struct store *from, ffa_error *err)
{
    sqlite3_backup *backup = NULL;
    int code;
    ffa_status rc;

    *out = (struct store){ .path = from->path, .mode = from->mode, .work_max = from->work_max };
    store_call(out->called, from->path);
    FFA_TRY(store_sql(
        out,
        sqlite3_open_v2("", &out->db,
                        SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, NULL),
        "copy it", err));
    backup = sqlite3_backup_init(out->db, "main", from->db, "main");
    code = backup ? sqlite3_backup_step(backup, -1) : sqlite3_errcode(out->db);
    (void)sqlite3_backup_finish(backup);
    FFA_TRY(store_sql(out, code, "copy it", err));
    store_set_limits(out);
    out->is_writable = true;
    rc = store_check_schema(out, err);
out:
    return rc;
}

/* Under lock. */
static ffa_status collect_in_copy(struct gc *gc, const ffa_cache_gc_opts *opts, ffa_error *err)
{
    struct store copy = { .path = NULL };
    struct gc in_copy = *gc;
    ffa_status rc;

    in_copy.store = &copy;
    FFA_TRY(copy_store(&copy, gc->store, err));
    rc = collect(&in_copy, opts, err);
out:
    (void)sqlite3_close(copy.db);
    return rc;
}

static ffa_status import(ffa_cache_gc_opts *out, const ffa_cache_gc_opts *opts, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(opts_import(out, sizeof *out, opts, err));
    if (out->flags & ~(uint32_t)FFA_CACHE_GC_DRY_RUN)
        rc = error_fail(err, FFA_UNSUPPORTED, 0, "opts: flags is 0x%x, known are 0x%x", out->flags,
                        (unsigned)FFA_CACHE_GC_DRY_RUN);
    else if (out->bytes_max < 0 || out->unused_s < 0)
        rc = error_fail(err, FFA_INVALID, 0, "opts: %s is %lld, less than 0",
                        out->bytes_max < 0 ? "bytes_max" : "unused_s",
                        (long long)(out->bytes_max < 0 ? out->bytes_max : out->unused_s));
    else if (!out->bytes_max && !out->unused_s)
        rc = error_fail(err, FFA_INVALID, 0, "opts: neither bytes_max nor unused_s is given");
out:
    return rc;
}

ffa_status ffa_cache_gc(ffa_cache *cache, const ffa_cache_gc_opts *opts,
                        ffa_cache_gc_report *report, ffa_cache_visit visit, void *user,
                        ffa_error *err)
{
    ffa_cache_gc_report now = { 0 };
    ffa_cache_gc_opts wanted;
    struct gc gc;
    ffa_status rc;

    if (report)
        FFA_TRY(opts_export(report, &now, sizeof now, err));
    if (!cache)
        return error_fail(err, FFA_INVALID, 0, "cache is NULL");
    FFA_TRY(import(&wanted, opts, err));
    rc = cache_enter(cache, err);
    if (rc != FFA_OK)
        return rc;
    gc = (struct gc){ cache->store, visit, user, &now };
    if (cache->store->is_writable)
        rc = collect(&gc, &wanted, err);
    else if (wanted.flags & FFA_CACHE_GC_DRY_RUN && !cache->store->is_bundle)
        rc = collect_in_copy(&gc, &wanted, err);
    else
        rc = cache_check_writable(cache->store, err);
    cache_leave(cache);
    if (rc == FFA_OK && report)
        rc = opts_export(report, &now, sizeof now, err);
out:
    return rc;
}
