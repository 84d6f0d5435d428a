/* SPDX-License-Identifier: Apache-2.0
 *
 * What a store remembers besides kernels: failures, so that a job of a thousand ranks does not try
 * the same compile a thousand times, and misses, so that they can be warmed. Invariant: both tables
 * are bounded, by dropping an eighth of the oldest rows when one is full. Both are notes: losing
 * them costs nothing but work, so nobody waits for one to be written.
 */
#include "cache/store_internal.h"

enum {
    FAILURES_MAX = 1000,
    MISSES_MAX = 4000,
    LOG_BYTES_MAX = 65536,
    MISS_PAUSE_S = 3600 /* a miss is noted again after so long */
};

void store_failure_finish(struct store_failure *failure)
{
    mem_free(failure->message);
    mem_free(failure->log);
    *failure = (struct store_failure){ 0 };
}

static void bind_text(sqlite3_stmt *statement, int at, const char *text)
{
    (void)sqlite3_bind_text(statement, at, text, -1, SQLITE_STATIC);
}

/* Keep the newest `max` rows of a table. */
static ffa_status bound(struct store *store, const char *table, const char *time, int max,
                        ffa_error *err)
{
    char sql[192];

    text_copy(sql,
              "DELETE FROM %s WHERE (SELECT count(*) FROM %s) > %d AND id IN (SELECT id FROM %s "
              "ORDER BY %s, id LIMIT %d)",
              table, table, max, table, time, max / 8);
    return store_run(store, sql, "drop old notes", err);
}

/* ---- failures ---- */

static ffa_status find_failure(struct store *store, const struct jit_request *request,
                               const char *toolchain, int64_t age_max_s, struct store_failure *out,
                               ffa_error *err)
{
    int64_t now = clock_unix_s();
    sqlite3_stmt *statement = NULL;
    const char *message, *log;
    bool is_row = false;
    ffa_status rc;

    /* One from the future is of a clock that was wrong: it says nothing about how old it is. */
    FFA_TRY(store_prepare(store, &statement,
                          "SELECT message, log, ?4 - failed_s FROM failure WHERE key = ?1 AND "
                          "toolchain = ?2 AND failed_s <= ?4 AND failed_s > ?4 - ?3",
                          err));
    bind_text(statement, 1, request->key);
    bind_text(statement, 2, toolchain);
    (void)sqlite3_bind_int64(statement, 3, age_max_s);
    (void)sqlite3_bind_int64(statement, 4, now);
    FFA_TRY(store_step(store, statement, &is_row, "look up a failure", err));
    if (!is_row) {
        rc = FFA_NOT_FOUND;
        goto out;
    }
    message = (const char *)sqlite3_column_text(statement, 0);
    log = (const char *)sqlite3_column_text(statement, 1);
    out->age_s = sqlite3_column_int64(statement, 2);
    out->message = mem_strdup(message ? message : "");
    out->log = mem_strdup(log ? log : "");
    if (!out->message || !out->log) {
        store_failure_finish(out);
        rc = error_nomem(err, "a remembered failure");
    }
out:
    (void)sqlite3_finalize(statement);
    return rc;
}

bool store_find_failure(struct store *store, const struct jit_request *request,
                        const char *toolchain, int64_t age_max_s, struct store_failure *out)
{
    ffa_status rc = FFA_NOT_FOUND;
    ffa_error why = { 0 };

    *out = (struct store_failure){ 0 };
    store_lock(store);
    if (store_in_use(store) && store->schema >= 2)
        rc = find_failure(store, request, toolchain, age_max_s, out, &why);
    if (rc == FFA_CACHE)
        (void)store_recover(store, &why);
    store_unlock(store);
    return rc == FFA_OK;
}

static ffa_status put_failure(struct store *store, const struct jit_request *request,
                              const char *toolchain, const char *message, const char *log,
                              ffa_error *err)
{
    const char *const texts[] = { request->key,  toolchain,       jit_spec_template(&request->spec),
                                  request->arch, request->record, message };
    size_t bytes = strnlen(log, LOG_BYTES_MAX);
    sqlite3_stmt *statement = NULL;
    bool is_row;
    ffa_status rc;

    FFA_TRY(store_run(store, "BEGIN IMMEDIATE", "begin", err));
    FFA_TRY(store_prepare(store, &statement,
                          "INSERT OR REPLACE INTO failure (key, toolchain, template, arch, record, "
                          "message, log, failed_s) VALUES (?,?,?,?,?,?,?,?)",
                          err));
    for (int i = 0; i < 6; i++)
        bind_text(statement, 1 + i, texts[i]);
    (void)sqlite3_bind_text(statement, 7, log, (int)bytes, SQLITE_STATIC);
    (void)sqlite3_bind_int64(statement, 8, clock_unix_s());
    FFA_TRY(store_step(store, statement, &is_row, "note a failure", err));
    (void)sqlite3_finalize(statement); /* nothing may be under way at a COMMIT */
    statement = NULL;
    FFA_TRY(bound(store, "failure", "failed_s", FAILURES_MAX, err));
    rc = store_run(store, "COMMIT", "commit", err);
out:
    (void)sqlite3_finalize(statement);
    return store_rollback(store, rc);
}

void store_put_failure(struct store *store, const struct jit_request *request,
                       const char *toolchain, const char *message, const char *log)
{
    ffa_error why = { 0 };

    store_lock(store);
    for (int round = 0; round < 2 && store_in_use(store) && store->is_writable; round++) {
        ffa_status rc = put_failure(store, request, toolchain, message, log ? log : "", &why);

        if (rc == FFA_OK || !store_recover(store, &why))
            break;
    }
    store_unlock(store);
}

/* ---- misses ---- */

/* Whether it is time to write it down: seldom, since production may ask again and again. */
static ffa_status is_due(struct store *store, const char *key, int64_t now, bool *out,
                         ffa_error *err)
{
    sqlite3_stmt *statement = NULL;
    bool is_row;
    ffa_status rc;

    FFA_TRY(store_prepare(store, &statement, "SELECT last_s FROM miss WHERE key = ?1", err));
    bind_text(statement, 1, key);
    FFA_TRY(store_step(store, statement, &is_row, "look up a miss", err));
    if (is_row) {
        int64_t last = sqlite3_column_int64(statement, 0);

        *out = now < last || now - last >= MISS_PAUSE_S;
    } else {
        *out = true;
    }
out:
    (void)sqlite3_finalize(statement);
    return rc;
}

static ffa_status note_miss(struct store *store, const struct jit_request *request, ffa_error *err)
{
    const char *const texts[] = { request->key, jit_spec_template(&request->spec), request->arch,
                                  request->record };
    int64_t now = clock_unix_s();
    sqlite3_stmt *statement = NULL;
    bool due = false, is_row;
    ffa_status rc;

    FFA_TRY(is_due(store, request->key, now, &due, err));
    if (!due)
        goto out;
    FFA_TRY(store_run(store, "BEGIN IMMEDIATE", "begin", err));
    FFA_TRY(store_prepare(store, &statement,
                          "INSERT INTO miss (key, template, arch, record, noted, first_s, last_s) "
                          "VALUES (?1, ?2, ?3, ?4, 1, ?5, ?5) ON CONFLICT (key) DO UPDATE SET "
                          "noted = noted + 1, last_s = ?5",
                          err));
    for (int i = 0; i < 4; i++)
        bind_text(statement, 1 + i, texts[i]);
    (void)sqlite3_bind_int64(statement, 5, now);
    FFA_TRY(store_step(store, statement, &is_row, "note a miss", err));
    (void)sqlite3_finalize(statement);
    statement = NULL;
    FFA_TRY(bound(store, "miss", "last_s", MISSES_MAX, err));
    rc = store_run(store, "COMMIT", "commit", err);
out:
    (void)sqlite3_finalize(statement);
    return store_rollback(store, rc);
}

void store_note_miss(struct store *store, const struct jit_request *request)
{
    ffa_error why = { 0 };

    store_lock(store);
    if (store_in_use(store) && store->is_writable) {
        /* A busy store is not waited for. */
        (void)sqlite3_busy_timeout(store->db, 0);
        if (note_miss(store, request, &why) != FFA_OK && (why.native & 0xff) != SQLITE_BUSY)
            (void)store_recover(store, &why);
        if (store->db)
            (void)sqlite3_busy_timeout(store->db, store->busy_ms);
    }
    store_unlock(store);
}
