/* SPDX-License-Identifier: Apache-2.0
 *
 * Entries of the store: look up, check, add, evict. Invariant: nothing leaves the store unchecked.
 * The seal covers a row's facts, the digest its bytes, the record the request; an entry that fails
 * one of them is removed and counted as bad. Rows with the same bytes share a blob.
 */
#include "cache/store_internal.h"

#include "base/digest.h"
#include "jit/compile_report.h"

#include <stdio.h>

/* ---- rows ---- */

static const char *text_at(sqlite3_stmt *statement, int column)
{
    const char *text = (const char *)sqlite3_column_text(statement, column);

    return text ? text : "";
}

void store_row_read(struct store_row *row, sqlite3_stmt *statement, bool with_data)
{
    int at = 0;

    *row = (struct store_row){ 0 };
    row->id = sqlite3_column_int64(statement, at++);
    row->blob_id = sqlite3_column_int64(statement, at++);
    row->key = text_at(statement, at++);
    row->toolchain = text_at(statement, at++);
    row->seal = text_at(statement, at++);
    row->template_name = text_at(statement, at++);
    row->arch = text_at(statement, at++);
    row->record = text_at(statement, at++);
    row->digest = text_at(statement, at++);
    row->bytes = sqlite3_column_int64(statement, at++);
    row->created_s = sqlite3_column_int64(statement, at++);
    row->used_s = sqlite3_column_int64(statement, at++);
    row->compile_us = sqlite3_column_int64(statement, at++);
    row->registers = sqlite3_column_int(statement, at++);
    row->shared_bytes = sqlite3_column_int(statement, at++);
    row->spill_bytes = sqlite3_column_int(statement, at++);
    row->advisory_count = sqlite3_column_int(statement, at++);
    row->threads = sqlite3_column_int(statement, at++);
    if (with_data) {
        row->data = sqlite3_column_blob(statement, at);
        row->data_bytes = (size_t)sqlite3_column_bytes(statement, at);
    }
}

void store_row_seal(const struct store_row *row, char out[33])
{
    const char *const texts[] = { row->key,  row->toolchain, row->template_name,
                                  row->arch, row->record,    row->digest };
    const int64_t numbers[] = { row->bytes,          row->created_s,    row->compile_us,
                                row->registers,      row->shared_bytes, row->spill_bytes,
                                row->advisory_count, row->threads };
    struct digest digest;

    digest_init(&digest);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        digest_text(&digest, texts[i]);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        digest_number(&digest, numbers[i]);
    digest_final(&digest, out);
}

bool store_row_seal_ok(const struct store_row *row)
{
    char seal[DIGEST_TEXT];

    store_row_seal(row, seal);
    return strcmp(seal, row->seal) == 0;
}

bool store_row_blob_ok(const struct store_row *row)
{
    char digest[DIGEST_TEXT];

    if (!row->data || row->bytes < 0 || (uint64_t)row->bytes != row->data_bytes)
        return false;
    digest_bytes(row->data, row->data_bytes, digest);
    return strcmp(digest, row->digest) == 0;
}

static ffa_status copy_row(struct jit_kernel *out, const struct store_row *row, ffa_error *err)
{
    out->cubin = mem_array(row->data_bytes, 1);
    out->record = mem_strdup(row->record);
    if (!out->cubin || !out->record) {
        jit_kernel_finish(out);
        return error_nomem(err, "a stored kernel");
    }
    memcpy(out->cubin, row->data, row->data_bytes);
    out->cubin_bytes = row->data_bytes;
    out->info = (ffa_kernel_info){ .struct_size = (uint32_t)sizeof out->info,
                                   .registers = row->registers,
                                   .shared_bytes = row->shared_bytes,
                                   .spill_bytes = row->spill_bytes,
                                   .advisory_count = row->advisory_count,
                                   .threads = row->threads,
                                   .cubin_bytes = row->bytes,
                                   .compile_us = row->compile_us };
    text_copy(out->info.key, "%s", row->key);
    text_copy(out->info.toolchain, "%s", row->toolchain);
    text_copy(out->info.template_name, "%s", row->template_name);
    text_copy(out->info.arch, "%s", row->arch);
    return FFA_OK;
}

/* ---- looking up ---- */

/* Entries met on the way that are not what was stored; they are removed. */
struct bad_rows {
    struct {
        int64_t id;
        int64_t blob_id; /* 0: only the row is bad */
    } at[4];
    int count;
};

static void note_bad(struct store *store, struct bad_rows *bad, const struct store_row *row,
                     const char *what, int64_t blob_id)
{
    atomic_fetch_add(&store->bad, 1);
    log_line(&store->log, FFA_LOG_WARNING, "cache",
             "event=store_bad_entry path=%s key=%s toolchain=\"%s\" reason=\"%s\"", store->path,
             row->key, row->toolchain, what);
    if (bad->count < (int)(sizeof bad->at / sizeof bad->at[0])) {
        bad->at[bad->count].id = row->id;
        bad->at[bad->count++].blob_id = blob_id;
    }
}

/* A sound row with a cubin that the driver here refused: others may still use it. */
static bool is_refused(const struct store_query *query, const struct store_row *row)
{
    for (int i = 0; i < query->refused_count; i++)
        if (row->data_bytes == query->refused[i]->cubin_bytes &&
            memcmp(row->data, query->refused[i]->cubin, row->data_bytes) == 0)
            return true;
    return false;
}

/* Take the first sound row. */
static ffa_status scan(struct store *store, sqlite3_stmt *statement,
                       const struct store_query *query, struct jit_kernel *out, int64_t *used_s,
                       int64_t *id, struct bad_rows *bad, ffa_error *err)
{
    for (;;) {
        struct store_row row;
        bool is_row;
        ffa_status rc = store_step(store, statement, &is_row, "look up a kernel", err);

        if (rc != FFA_OK)
            return rc;
        if (!is_row)
            return FFA_NOT_FOUND;
        store_row_read(&row, statement, true);
        if (!store_row_blob_ok(&row)) {
            note_bad(store, bad, &row, "length or hash of the cubin does not match", row.blob_id);
        } else if (!store_row_seal_ok(&row)) {
            note_bad(store, bad, &row, "the entry's facts do not match their hash", 0);
        } else if (strcmp(row.record, query->request->record) != 0) {
            note_bad(store, bad, &row, "the record is another kernel's", 0);
        } else if (!report_may_run_on(row.data, row.data_bytes, row.arch)) {
            note_bad(store, bad, &row, "the cubin is for another architecture", 0);
        } else if (!is_refused(query, &row)) {
            *used_s = row.used_s;
            *id = row.id;
            return copy_row(out, &row, err);
        }
    }
}

static ffa_status remove_bad(struct store *store, const struct bad_rows *bad, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    for (int i = 0; i < bad->count; i++) {
        char sql[160];

        text_copy(sql, "DELETE FROM kernel WHERE id = %lld OR (blob = %lld AND %d)",
                  (long long)bad->at[i].id, (long long)bad->at[i].blob_id, bad->at[i].blob_id != 0);
        FFA_TRY(store_run(store, sql, "remove a bad entry", err));
    }
out:
    return rc;
}

/* Once a day, so that a hit seldom writes; nobody waits for it. */
static void touch(struct store *store, int64_t id, int64_t used_s)
{
    int64_t now = clock_unix_s();
    char sql[96];

    if (!store->is_writable || (now >= used_s && now - used_s < STORE_DAY_S))
        return;
    text_copy(sql, "UPDATE kernel SET used_s = %lld WHERE id = %lld", (long long)now,
              (long long)id);
    (void)sqlite3_busy_timeout(store->db, 0);
    (void)store_run(store, sql, "note a use", NULL);
    (void)sqlite3_busy_timeout(store->db, store->busy_ms);
}

static ffa_status find_once(struct store *store, const struct store_query *query,
                            struct jit_kernel *out, ffa_error *err)
{
    struct bad_rows bad = { .count = 0 };
    sqlite3_stmt *statement = NULL;
    int64_t used_s = 0, id = 0;
    ffa_status rc;

    FFA_TRY(store_prepare(store, &statement,
                          "SELECT " STORE_COLUMNS_AND_DATA STORE_FROM
                          "WHERE k.key = ?1 AND (k.toolchain = ?2 OR NOT ?3) "
                          "ORDER BY k.toolchain = ?2 DESC, k.created_s DESC, k.id DESC",
                          err));
    (void)sqlite3_bind_text(statement, 1, query->request->key, -1, SQLITE_STATIC);
    (void)sqlite3_bind_text(statement, 2, query->toolchain, -1, SQLITE_STATIC);
    (void)sqlite3_bind_int(statement, 3, query->exact);
    rc = scan(store, statement, query, out, &used_s, &id, &bad, err);
out:
    (void)sqlite3_finalize(statement);
    if (rc == FFA_OK)
        touch(store, id, used_s);
    if (bad.count && store->is_writable && (rc == FFA_OK || rc == FFA_NOT_FOUND)) {
        ffa_error why;

        if (remove_bad(store, &bad, &why) != FFA_OK)
            store_trouble(store, "store_error", &why);
    }
    return rc;
}

ffa_status store_find(struct store *store, const struct store_query *query, struct jit_kernel *out,
                      ffa_error *err)
{
    ffa_error why = { 0 };
    ffa_status rc = FFA_NOT_FOUND;

    *out = (struct jit_kernel){ 0 };
    store_lock(store);
    if (store_in_use(store))
        rc = find_once(store, query, out, &why);
    if (rc == FFA_CACHE) {
        (void)store_recover(store, &why); /* what follows is a miss in any case */
        rc = FFA_NOT_FOUND;
    }
    store_unlock(store);
    return rc == FFA_NOMEM ? error_fail(err, rc, why.native, "%s", why.message) : rc;
}

bool store_has(struct store *store, const struct store_query *query)
{
    sqlite3_stmt *statement = NULL;
    bool is_row = false;

    store_lock(store);
    if (store_in_use(store) &&
        store_prepare(store, &statement,
                      "SELECT 1 FROM kernel WHERE key = ?1 AND (toolchain = ?2 OR NOT ?3)",
                      NULL) == FFA_OK) {
        (void)sqlite3_bind_text(statement, 1, query->request->key, -1, SQLITE_STATIC);
        (void)sqlite3_bind_text(statement, 2, query->toolchain, -1, SQLITE_STATIC);
        (void)sqlite3_bind_int(statement, 3, query->exact);
        if (store_step(store, statement, &is_row, "look for a kernel", NULL) != FFA_OK)
            is_row = false;
    }
    (void)sqlite3_finalize(statement);
    store_unlock(store);
    return is_row;
}

/* ---- adding ---- */

ffa_status store_bytes_used(struct store *store, int64_t *out, ffa_error *err)
{
    int64_t pages, unused, size;
    ffa_status rc;

    FFA_TRY(store_number(store, "PRAGMA page_count", &pages, err));
    FFA_TRY(store_number(store, "PRAGMA freelist_count", &unused, err));
    FFA_TRY(store_number(store, "PRAGMA page_size", &size, err));
    *out = (pages - unused) * size;
out:
    return rc;
}

/* Inside the transaction that added `id`: longest unused go first, down to 7/8 of the cap, so that
 * not every addition evicts. */
static ffa_status evict(struct store *store, int64_t id, ffa_error *err)
{
    uint64_t goal = store->bytes_max;
    bool is_first = true;
    int64_t used;
    char sql[192];
    ffa_status rc;

    for (;;) {
        FFA_TRY(store_bytes_used(store, &used, err));
        if ((uint64_t)used <= goal)
            break;
        /* Uses in the future are of a clock that was set back: they would outlive all others. */
        text_copy(sql, "UPDATE kernel SET used_s = %lld WHERE used_s > %lld",
                  (long long)clock_unix_s(), (long long)clock_unix_s());
        if (is_first)
            FFA_TRY(store_run(store, sql, "evict", err));
        is_first = false;
        goal = store->bytes_max - store->bytes_max / 8;
        text_copy(sql,
                  "DELETE FROM kernel WHERE id IN (SELECT id FROM kernel WHERE id <> %lld "
                  "ORDER BY used_s, id LIMIT 1 + (SELECT count(*) FROM kernel) / 64)",
                  (long long)id);
        FFA_TRY(store_run(store, sql, "evict", err));
        if (sqlite3_changes(store->db) == 0)
            break;
    }
out:
    return rc;
}

static ffa_status put_blob(struct store *store, const struct store_row *row, int64_t *id,
                           ffa_error *err)
{
    sqlite3_stmt *statement = NULL;
    bool is_row = false;
    ffa_status rc;

    FFA_TRY(store_prepare(store, &statement,
                          "INSERT INTO blob (digest, bytes, data) VALUES (?1, ?2, ?3) "
                          "ON CONFLICT (digest) DO UPDATE SET bytes = ?2, data = ?3 RETURNING id",
                          err));
    (void)sqlite3_bind_text(statement, 1, row->digest, -1, SQLITE_STATIC);
    (void)sqlite3_bind_int64(statement, 2, row->bytes);
    (void)sqlite3_bind_blob64(statement, 3, row->data, row->data_bytes, SQLITE_STATIC);
    FFA_TRY(store_step(store, statement, &is_row, "add a cubin", err));
    *id = sqlite3_column_int64(statement, 0);
    /* RETURNING gives its row first; the statement ends at the next step. */
    rc = store_step(store, statement, &is_row, "add a cubin", err);
out:
    (void)sqlite3_finalize(statement);
    return rc;
}

static ffa_status put_kernel(struct store *store, const struct store_row *row, int64_t blob,
                             ffa_error *err)
{
    const char *const texts[] = { row->key,           row->toolchain, row->seal,
                                  row->template_name, row->arch,      row->record };
    const int64_t numbers[] = {
        blob,         row->registers,  row->shared_bytes, row->spill_bytes, row->advisory_count,
        row->threads, row->compile_us, row->created_s,    row->used_s
    };
    sqlite3_stmt *statement = NULL;
    bool is_row = false;
    ffa_status rc;

    FFA_TRY(store_prepare(store, &statement,
                          "INSERT INTO kernel (key, toolchain, seal, template, arch, record, blob, "
                          "registers, shared_bytes, spill_bytes, advisories, threads, compile_us, "
                          "created_s, used_s) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
                          err));
    for (int i = 0; i < 6; i++)
        (void)sqlite3_bind_text(statement, 1 + i, texts[i], -1, SQLITE_STATIC);
    for (int i = 0; i < 9; i++)
        (void)sqlite3_bind_int64(statement, 7 + i, numbers[i]);
    rc = store_step(store, statement, &is_row, "add a kernel", err);
out:
    (void)sqlite3_finalize(statement);
    return rc;
}

static ffa_status drop_kernel(struct store *store, const struct store_row *row, ffa_error *err)
{
    sqlite3_stmt *statement = NULL;
    bool is_row = false;
    ffa_status rc;

    FFA_TRY(store_prepare(store, &statement, "DELETE FROM kernel WHERE key = ?1 AND toolchain = ?2",
                          err));
    (void)sqlite3_bind_text(statement, 1, row->key, -1, SQLITE_STATIC);
    (void)sqlite3_bind_text(statement, 2, row->toolchain, -1, SQLITE_STATIC);
    rc = store_step(store, statement, &is_row, "replace a kernel", err);
out:
    (void)sqlite3_finalize(statement);
    return rc;
}

ffa_status store_row_put(struct store *store, const struct store_row *row, int64_t *id,
                         ffa_error *err)
{
    int64_t blob = 0;
    ffa_status rc;

    FFA_TRY(drop_kernel(store, row, err));
    FFA_TRY(put_blob(store, row, &blob, err));
    FFA_TRY(put_kernel(store, row, blob, err));
    if (id)
        *id = sqlite3_last_insert_rowid(store->db);
out:
    return rc;
}

/* It compiled after all. */
static ffa_status forget_failure(struct store *store, const struct store_row *row, ffa_error *err)
{
    sqlite3_stmt *statement = NULL;
    bool is_row = false;
    ffa_status rc;

    FFA_TRY(store_prepare(store, &statement,
                          "DELETE FROM failure WHERE key = ?1 AND toolchain = ?2", err));
    (void)sqlite3_bind_text(statement, 1, row->key, -1, SQLITE_STATIC);
    (void)sqlite3_bind_text(statement, 2, row->toolchain, -1, SQLITE_STATIC);
    rc = store_step(store, statement, &is_row, "forget a failure", err);
out:
    (void)sqlite3_finalize(statement);
    return rc;
}

static ffa_status put_once(struct store *store, const struct store_row *row, ffa_error *err)
{
    int64_t id = 0;
    ffa_status rc;

    FFA_TRY(store_run(store, "BEGIN IMMEDIATE", "begin", err));
    FFA_TRY(store_row_put(store, row, &id, err));
    FFA_TRY(forget_failure(store, row, err));
    FFA_TRY(evict(store, id, err));
    rc = store_run(store, "COMMIT", "commit", err);
out:
    return store_rollback(store, rc);
}

void store_put(struct store *store, const struct jit_kernel *kernel)
{
    char digest[DIGEST_TEXT], seal[DIGEST_TEXT];
    ffa_error why = { 0 };
    struct store_row row = {
        .key = kernel->info.key,
        .toolchain = kernel->info.toolchain,
        .seal = seal,
        .template_name = kernel->info.template_name,
        .arch = kernel->info.arch,
        .record = kernel->record,
        .digest = digest,
        .bytes = (int64_t)kernel->cubin_bytes,
        .created_s = clock_unix_s(),
        .compile_us = kernel->info.compile_us,
        .registers = kernel->info.registers,
        .shared_bytes = kernel->info.shared_bytes,
        .spill_bytes = kernel->info.spill_bytes,
        .advisory_count = kernel->info.advisory_count,
        .threads = kernel->info.threads,
        .data = kernel->cubin,
        .data_bytes = kernel->cubin_bytes,
    };

    row.used_s = row.created_s;
    digest_bytes(row.data, row.data_bytes, digest);
    store_row_seal(&row, seal);
    store_lock(store);
    for (int round = 0; round < 2 && store_in_use(store) && store->is_writable; round++) {
        ffa_status rc = put_once(store, &row, &why);

        if (rc == FFA_OK || !store_recover(store, &why))
            break;
    }
    store_unlock(store);
}
