/* SPDX-License-Identifier: Apache-2.0
 *
 * The file of tuning sessions in SQLite: a rollback journal as the kernel store has it, one
 * transaction for each thing that is put.
 *
 * A writer holds the file's lock until it is closed (locking_mode=EXCLUSIVE), so that no two
 * sessions time kernels into one file, and a killed one leaves no lock behind.
 */
#include "cache/tune_store.h"

#include <sqlite3.h>
#include <sys/stat.h>

enum { APPLICATION = 0x66666174 /* 'ffat' */, SCHEMA = 4, BUSY_MS = 3000, CALLED = 144 };

static const char schema[] =
    "PRAGMA application_id = 0x66666174; PRAGMA user_version = 4;"
    "CREATE TABLE session (id TEXT PRIMARY KEY NOT NULL,"
    " head_dim INTEGER NOT NULL, dtype INTEGER NOT NULL, heads_q INTEGER NOT NULL,"
    " heads_kv INTEGER NOT NULL, pack_heads INTEGER NOT NULL, arch TEXT NOT NULL,"
    " device TEXT NOT NULL, sm_count INTEGER NOT NULL, shared_bytes_block INTEGER NOT NULL,"
    " l2_bytes INTEGER NOT NULL, memory_bytes INTEGER NOT NULL, power_limit_w INTEGER NOT NULL,"
    " clock_max_mhz INTEGER NOT NULL, driver TEXT NOT NULL, templates_digest TEXT NOT NULL,"
    " library_version TEXT NOT NULL, base_table TEXT NOT NULL, budget_us INTEGER NOT NULL,"
    " spent_us INTEGER NOT NULL, started_s INTEGER NOT NULL, ended_s INTEGER NOT NULL,"
    " trying INTEGER NOT NULL, head_dim_v INTEGER NOT NULL, backward_tile_m INTEGER NOT NULL,"
    " backward_tile_n INTEGER NOT NULL, backward_cluster INTEGER NOT NULL,"
    " is_deterministic INTEGER NOT NULL, lockstep_masks INTEGER NOT NULL) STRICT;"
    "CREATE TABLE mask (session TEXT NOT NULL, position INTEGER NOT NULL, text TEXT NOT NULL,"
    " parts INTEGER NOT NULL, waves INTEGER NOT NULL, whole_heads INTEGER NOT NULL,"
    " PRIMARY KEY (session, position)) STRICT;"
    "CREATE TABLE configuration (session TEXT NOT NULL, position INTEGER NOT NULL,"
    " consumers INTEGER NOT NULL, tile_n INTEGER NOT NULL, kv_slots INTEGER NOT NULL,"
    " registers INTEGER NOT NULL, shared_bytes INTEGER NOT NULL, spill_bytes INTEGER NOT NULL,"
    " state INTEGER NOT NULL, tries INTEGER NOT NULL, key TEXT NOT NULL, reason TEXT NOT NULL,"
    " parts INTEGER NOT NULL, waves INTEGER NOT NULL, whole_heads INTEGER NOT NULL,"
    " is_unlocked INTEGER NOT NULL,"
    " PRIMARY KEY (session, position)) STRICT;"
    "CREATE TABLE sample (session TEXT NOT NULL, lap INTEGER NOT NULL, mask INTEGER NOT NULL,"
    " configuration INTEGER NOT NULL, place INTEGER NOT NULL, calls INTEGER NOT NULL,"
    " us REAL NOT NULL, clock_mhz INTEGER NOT NULL, power_w INTEGER NOT NULL,"
    " temperature_c INTEGER NOT NULL, process INTEGER NOT NULL,"
    " PRIMARY KEY (session, lap, mask, configuration)) STRICT;";

/* What makes each schema one of the next. In a file of schema 1, head_dim_v was head_dim; up to
 * schema 2 all sessions were forward ones; up to schema 3 nobody noted which process took a sample,
 * and all count as of one, nor the order of the baseline, which is not known. */
static const char *const upgrades[SCHEMA] = {
    NULL,
    "ALTER TABLE session ADD COLUMN head_dim_v INTEGER NOT NULL DEFAULT 0;"
    "UPDATE session SET head_dim_v = head_dim; PRAGMA user_version = 2;",
    "ALTER TABLE session ADD COLUMN backward_tile_m INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE session ADD COLUMN backward_tile_n INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE session ADD COLUMN backward_cluster INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE session ADD COLUMN is_deterministic INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE session ADD COLUMN lockstep_masks INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE configuration ADD COLUMN parts INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE configuration ADD COLUMN waves INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE configuration ADD COLUMN whole_heads INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE configuration ADD COLUMN is_unlocked INTEGER NOT NULL DEFAULT 0;"
    "PRAGMA user_version = 3;",
    "ALTER TABLE sample ADD COLUMN process INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE mask ADD COLUMN parts INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE mask ADD COLUMN waves INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE mask ADD COLUMN whole_heads INTEGER NOT NULL DEFAULT 0;"
    "PRAGMA user_version = 4;",
};

struct tune_store {
    sqlite3 *db;
    int64_t version;
    char called[CALLED]; /* the path in sentences */
};

/* ---- SQLite, and what it says ---- */

static ffa_status check(const struct tune_store *store, int code, const char *doing, ffa_error *err)
{
    const char *text = store->db ? sqlite3_errmsg(store->db) : sqlite3_errstr(code);

    if (fault_here(FAULT_SQLITE)) {
        code = SQLITE_IOERR;
        text = sqlite3_errstr(code);
    }
    if (code == SQLITE_OK || code == SQLITE_ROW || code == SQLITE_DONE)
        return FFA_OK;
    if ((code & 0xff) == SQLITE_BUSY)
        text = "another session is using it";
    return error_fail(err, (code & 0xff) == SQLITE_NOMEM ? FFA_NOMEM : FFA_CACHE, code,
                      "session file '%s': cannot %s: %s", store->called, doing, text);
}

static ffa_status run(struct tune_store *store, const char *sql, const char *doing, ffa_error *err)
{
    return check(store, sqlite3_exec(store->db, sql, NULL, NULL, NULL), doing, err);
}

static ffa_status end(struct tune_store *store, ffa_status rc, ffa_error *err)
{
    if (rc == FFA_OK)
        rc = run(store, "COMMIT", "commit", err);
    if (rc != FFA_OK && !sqlite3_get_autocommit(store->db))
        (void)sqlite3_exec(store->db, "ROLLBACK", NULL, NULL, NULL);
    return rc;
}

/* A value of a row: a text, or a number. */
struct value {
    const char *text; /* NULL: `number`, or where is_real `real` */
    int64_t number;
    double real;
    bool is_real;
};
#define TEXT(value)                                                                                \
    {                                                                                              \
        .text = (value)                                                                            \
    }
#define NUMBER(value)                                                                              \
    {                                                                                              \
        .number = (value)                                                                          \
    }
#define REAL(value)                                                                                \
    {                                                                                              \
        .real = (value), .is_real = true                                                           \
    }
#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

/* Run a statement with values for its parameters, in their order. */
static ffa_status put(struct tune_store *store, const char *sql, const struct value *values,
                      int count, ffa_error *err)
{
    sqlite3_stmt *statement = NULL;
    ffa_status rc;

    FFA_TRY(check(store, sqlite3_prepare_v2(store->db, sql, -1, &statement, NULL), "prepare", err));
    for (int i = 0; i < count; i++) {
        const struct value *value = &values[i];
        const int code =
            value->text ? sqlite3_bind_text(statement, i + 1, value->text, -1, SQLITE_TRANSIENT)
            : value->is_real ? sqlite3_bind_double(statement, i + 1, value->real)
                             : sqlite3_bind_int64(statement, i + 1, value->number);

        FFA_TRY(check(store, code, "bind", err));
    }
    rc = check(store, sqlite3_step(statement), "write", err);
out:
    (void)sqlite3_finalize(statement);
    return rc;
}

static ffa_status number(struct tune_store *store, const char *sql, const char *parameter,
                         int64_t *out, ffa_error *err)
{
    sqlite3_stmt *statement = NULL;
    ffa_status rc;

    *out = 0;
    FFA_TRY(check(store, sqlite3_prepare_v2(store->db, sql, -1, &statement, NULL), "read", err));
    if (parameter)
        FFA_TRY(check(store, sqlite3_bind_text(statement, 1, parameter, -1, SQLITE_TRANSIENT),
                      "bind", err));
    FFA_TRY(check(store, sqlite3_step(statement), "read", err));
    *out = sqlite3_column_int64(statement, 0);
out:
    (void)sqlite3_finalize(statement);
    return rc;
}

/* ---- opening ---- */

/* A new file, or one of ours of this version. Both numbers are read before any table is. */
static ffa_status check_header(struct tune_store *store, enum tune_store_mode mode, bool *is_new,
                               ffa_error *err)
{
    int64_t application, objects;
    ffa_status rc;

    FFA_TRY(number(store, "PRAGMA application_id", NULL, &application, err));
    FFA_TRY(number(store, "PRAGMA user_version", NULL, &store->version, err));
    FFA_TRY(number(store, "SELECT count(*) FROM sqlite_schema", NULL, &objects, err));
    *is_new = application == 0 && store->version == 0 && objects == 0 && mode == TUNE_STORE_CREATE;
    if (*is_new)
        goto out;
    if (application != APPLICATION) {
        rc = error_fail(err, FFA_CACHE, 0,
                        "'%s' is no file of tuning sessions; choose another path", store->called);
    } else if (store->version < 1 || store->version > SCHEMA) {
        rc = error_fail(err, FFA_CACHE, 0,
                        "session file '%s' has schema %lld, this library reads 1 to %d; use a "
                        "newer library or another path",
                        store->called, (long long)store->version, SCHEMA);
    }
out:
    return rc;
}

/* Take the file's lock, and make the schema where there is none. The header is checked once more,
 * as another process may have made one meanwhile. */
static ffa_status take_file(struct tune_store *store, enum tune_store_mode mode, ffa_error *err)
{
    bool is_new;
    ffa_status rc;

    FFA_TRY(run(store, "PRAGMA locking_mode=EXCLUSIVE; PRAGMA synchronous=NORMAL", "lock it", err));
    FFA_TRY(run(store, "PRAGMA journal_mode=TRUNCATE", "set its journal", err));
    FFA_TRY(run(store, "BEGIN IMMEDIATE; COMMIT", "lock it", err));
    FFA_TRY(check_header(store, mode, &is_new, err));
    if (!is_new && store->version == SCHEMA)
        goto out;
    FFA_TRY(run(store, "BEGIN IMMEDIATE", "begin", err));
    rc = is_new ? run(store, schema, "write the schema", err) : FFA_OK;
    for (int64_t from = is_new ? SCHEMA : store->version; from < SCHEMA && rc == FFA_OK; from++)
        rc = run(store, upgrades[from], "write the schema", err);
    rc = end(store, rc, err);
    store->version = SCHEMA;
out:
    return rc;
}

static void set_limits(sqlite3 *db)
{
    (void)sqlite3_extended_result_codes(db, 1);
    (void)sqlite3_busy_timeout(db, BUSY_MS);
    (void)sqlite3_db_config(db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    (void)sqlite3_db_config(db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);
    (void)sqlite3_db_config(db, SQLITE_DBCONFIG_ENABLE_VIEW, 0, NULL);
    (void)sqlite3_db_config(db, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, NULL);
}

/* SQLite would wait for the writer of a FIFO without end. */
static ffa_status check_path(const char *path, const char *called, enum tune_store_mode mode,
                             ffa_error *err)
{
    struct stat stat_of;

    if (!path || !path[0])
        return error_fail(err, FFA_INVALID, 0, "the path of the session file is %s",
                          path ? "empty" : "NULL");
    if (stat(path, &stat_of) != 0)
        return mode == TUNE_STORE_CREATE
                   ? FFA_OK
                   : error_fail(err, FFA_NOT_FOUND, 0, "there is no session file '%s'", called);
    if (!S_ISREG(stat_of.st_mode))
        return error_fail(err, FFA_CACHE, 0, "'%s' is no regular file; choose another path",
                          called);
    return FFA_OK;
}

ffa_status tune_store_open(struct tune_store **out, const char *path, enum tune_store_mode mode,
                           ffa_error *err)
{
    /* For reading, too: what a killed writer has begun is undone by who opens the file next. */
    const int flags = SQLITE_OPEN_READWRITE | (mode == TUNE_STORE_CREATE ? SQLITE_OPEN_CREATE : 0);
    struct tune_store *store = mem_array(1, sizeof *store);
    bool is_new;
    ffa_status rc;

    *out = NULL;
    if (!store)
        return error_nomem(err, "a session file");
    text_copy(store->called, "%s", path ? path : "");
    FFA_TRY(check_path(path, store->called, mode, err));
    FFA_TRY(check(store, sqlite3_open_v2(path, &store->db, flags | SQLITE_OPEN_NOMUTEX, NULL),
                  "open it", err));
    set_limits(store->db);
    FFA_TRY(run(store, "PRAGMA mmap_size=0; PRAGMA temp_store=MEMORY; PRAGMA cell_size_check=ON",
                "set it up", err));
    /* Before anything is written: a database of someone else's keeps its journal's mode, too. */
    FFA_TRY(check_header(store, mode, &is_new, err));
    if (mode == TUNE_STORE_READ)
        FFA_TRY(run(store, "PRAGMA query_only=ON", "set it up", err));
    else
        FFA_TRY(take_file(store, mode, err));
    *out = store;
    store = NULL;
out:
    tune_store_close(store);
    return rc;
}

void tune_store_close(struct tune_store *store)
{
    if (!store)
        return;
    (void)sqlite3_close(store->db);
    mem_free(store);
}

/* ---- reading ---- */

#define SESSION_COLUMNS_1                                                                          \
    "id, head_dim, dtype, heads_q, heads_kv, pack_heads, arch, device, sm_count, "                 \
    "shared_bytes_block, l2_bytes, memory_bytes, power_limit_w, clock_max_mhz, driver, "           \
    "templates_digest, library_version, base_table, budget_us, spent_us, started_s, ended_s, "     \
    "trying"
#define SESSION_COLUMNS                                                                            \
    SESSION_COLUMNS_1                                                                              \
    ", head_dim_v, backward_tile_m, backward_tile_n, backward_cluster, is_deterministic, "         \
    "lockstep_masks"
#define CONFIGURATION_COLUMNS_1                                                                    \
    "position, consumers, tile_n, kv_slots, registers, shared_bytes, spill_bytes, state, tries, "  \
    "key, reason"
#define CONFIGURATION_COLUMNS CONFIGURATION_COLUMNS_1 ", parts, waves, whole_heads, is_unlocked"
#define SAMPLE_COLUMNS_1                                                                           \
    "lap, mask, configuration, place, calls, us, clock_mhz, power_w, temperature_c"
#define SAMPLE_COLUMNS SAMPLE_COLUMNS_1 ", process"

/* By schema; what an older one does not have is what its sessions were. */
static const char *const session_queries[SCHEMA + 1] = {
    NULL,
    "SELECT " SESSION_COLUMNS_1 ", head_dim, 0, 0, 0, 0, 0 FROM session ORDER BY id",
    "SELECT " SESSION_COLUMNS_1 ", head_dim_v, 0, 0, 0, 0, 0 FROM session ORDER BY id",
    "SELECT " SESSION_COLUMNS " FROM session ORDER BY id",
    "SELECT " SESSION_COLUMNS " FROM session ORDER BY id",
};
#define OLD_CONFIGURATIONS                                                                         \
    "SELECT " CONFIGURATION_COLUMNS_1                                                              \
    ", 0, 0, 0, 0 FROM configuration WHERE session = ?1 ORDER BY position"
#define NEW_CONFIGURATIONS                                                                         \
    "SELECT " CONFIGURATION_COLUMNS " FROM configuration WHERE session = ?1 ORDER BY position"
static const char *const configuration_queries[SCHEMA + 1] = {
    NULL, OLD_CONFIGURATIONS, OLD_CONFIGURATIONS, NEW_CONFIGURATIONS, NEW_CONFIGURATIONS,
};
#define MASKS(columns)                                                                             \
    "SELECT position, text, " columns " FROM mask WHERE session = ?1 ORDER BY position"
static const char *const mask_queries[SCHEMA + 1] = {
    NULL, MASKS("0, 0, 0"), MASKS("0, 0, 0"), MASKS("0, 0, 0"), MASKS("parts, waves, whole_heads"),
};
#define SAMPLES(columns)                                                                           \
    "SELECT " columns " FROM sample WHERE session = ?1 ORDER BY lap, mask, configuration"
static const char *const sample_queries[SCHEMA + 1] = {
    NULL,
    SAMPLES(SAMPLE_COLUMNS_1 ", 0"),
    SAMPLES(SAMPLE_COLUMNS_1 ", 0"),
    SAMPLES(SAMPLE_COLUMNS_1 ", 0"),
    SAMPLES(SAMPLE_COLUMNS),
};

static const char *text_at(sqlite3_stmt *statement, int column)
{
    const char *text = (const char *)sqlite3_column_text(statement, column);

    return text ? text : "";
}

static void read_session(struct tune_record *to, sqlite3_stmt *row)
{
    text_copy(to->id, "%s", text_at(row, 0));
    to->head_dim = sqlite3_column_int(row, 1);
    to->dtype = sqlite3_column_int(row, 2);
    to->heads_q = sqlite3_column_int(row, 3);
    to->heads_kv = sqlite3_column_int(row, 4);
    to->pack_heads = sqlite3_column_int(row, 5);
    text_copy(to->arch, "%s", text_at(row, 6));
    text_copy(to->facts.name, "%s", text_at(row, 7));
    to->facts.sm_count = sqlite3_column_int(row, 8);
    to->facts.shared_bytes_block = sqlite3_column_int(row, 9);
    to->facts.l2_bytes = sqlite3_column_int64(row, 10);
    to->memory_bytes = sqlite3_column_int64(row, 11);
    to->power_limit_w = sqlite3_column_int(row, 12);
    to->clock_max_mhz = sqlite3_column_int(row, 13);
    text_copy(to->driver, "%s", text_at(row, 14));
    text_copy(to->templates_digest, "%s", text_at(row, 15));
    text_copy(to->library_version, "%s", text_at(row, 16));
    to->base_table = mem_strdup(text_at(row, 17));
    to->budget_us = sqlite3_column_int64(row, 18);
    to->spent_us = sqlite3_column_int64(row, 19);
    to->started_s = sqlite3_column_int64(row, 20);
    to->ended_s = sqlite3_column_int64(row, 21);
    to->trying = sqlite3_column_int(row, 22);
    to->head_dim_v = sqlite3_column_int(row, 23);
    to->backward_tile_m = sqlite3_column_int(row, 24);
    to->backward_tile_n = sqlite3_column_int(row, 25);
    to->backward_cluster = sqlite3_column_int(row, 26);
    to->is_deterministic = sqlite3_column_int(row, 27);
    to->lockstep_masks = sqlite3_column_int64(row, 28);
}

static bool read_mask(struct tune_record *to, sqlite3_stmt *row)
{
    const int32_t at = to->mask_count;

    if (sqlite3_column_int(row, 0) != at || at >= TUNE_MASKS_MAX)
        return false;
    text_copy(to->masks[at], "%s", text_at(row, 1));
    to->baselines[at] =
        (struct tune_baseline){ sqlite3_column_int(row, 2), sqlite3_column_int(row, 3),
                                sqlite3_column_int(row, 4) };
    to->mask_count++;
    return true;
}

static bool read_configuration(struct tune_record *to, sqlite3_stmt *row)
{
    const int32_t at = to->configuration_count;
    const int state = sqlite3_column_int(row, 7);
    struct tune_configuration *out = &to->configurations[at];

    if (sqlite3_column_int(row, 0) != at || at >= TUNE_CONFIGURATIONS_MAX)
        return false;
    out->consumers = sqlite3_column_int(row, 1);
    out->tile_n = sqlite3_column_int(row, 2);
    out->kv_slots = sqlite3_column_int(row, 3);
    out->registers = sqlite3_column_int(row, 4);
    out->shared_bytes = sqlite3_column_int(row, 5);
    out->spill_bytes = sqlite3_column_int(row, 6);
    out->state = (enum tune_state)state;
    out->tries = sqlite3_column_int(row, 8);
    text_copy(out->key, "%s", text_at(row, 9));
    text_copy(out->reason, "%s", text_at(row, 10));
    out->parts = sqlite3_column_int(row, 11);
    out->waves = sqlite3_column_int(row, 12);
    out->whole_heads = sqlite3_column_int(row, 13);
    out->is_unlocked = sqlite3_column_int(row, 14);
    to->configuration_count++;
    return true;
}

static bool read_sample(struct tune_record *to, sqlite3_stmt *row)
{
    const struct tune_sample sample = { .lap = sqlite3_column_int(row, 0),
                                        .mask = sqlite3_column_int(row, 1),
                                        .configuration = sqlite3_column_int(row, 2),
                                        .place = sqlite3_column_int(row, 3),
                                        .calls = sqlite3_column_int(row, 4),
                                        .us = sqlite3_column_double(row, 5),
                                        .clock_mhz = sqlite3_column_int(row, 6),
                                        .power_w = sqlite3_column_int(row, 7),
                                        .temperature_c = sqlite3_column_int(row, 8),
                                        .process = sqlite3_column_int(row, 9) };

    /* A made-up file may lack the key that keeps them apart. */
    return !tune_record_find(to, sample.lap, sample.mask, sample.configuration) &&
           tune_record_add(to, &sample);
}

/* The rows of a table that belong to the session, each by `take`. */
static ffa_status read_rows(struct tune_store *store, struct tune_record *to, const char *sql,
                            bool (*take)(struct tune_record *to, sqlite3_stmt *row), ffa_error *err)
{
    sqlite3_stmt *statement = NULL;
    ffa_status rc;

    FFA_TRY(check(store, sqlite3_prepare_v2(store->db, sql, -1, &statement, NULL), "read", err));
    FFA_TRY(
        check(store, sqlite3_bind_text(statement, 1, to->id, -1, SQLITE_TRANSIENT), "bind", err));
    for (;;) {
        const int code = sqlite3_step(statement);

        FFA_TRY(check(store, code, "read", err));
        if (code != SQLITE_ROW)
            break;
        if (!take(to, statement)) {
            rc = error_fail(err, FFA_CACHE, 0,
                            "session file '%s': session %s has rows that no session writes, or "
                            "there is no memory for them; take another file",
                            store->called, to->id);
            break;
        }
    }
out:
    (void)sqlite3_finalize(statement);
    return rc;
}

static ffa_status read_parts(struct tune_store *store, struct tune_record *to, ffa_error *err)
{
    ffa_status rc;

    to->masks = mem_array(TUNE_MASKS_MAX, sizeof *to->masks);
    to->configurations = mem_array(TUNE_CONFIGURATIONS_MAX, sizeof *to->configurations);
    if (!to->masks || !to->configurations)
        return error_nomem(err, "a session");
    FFA_TRY(read_rows(store, to, mask_queries[store->version], read_mask, err));
    FFA_TRY(read_rows(store, to, configuration_queries[store->version], read_configuration, err));
    FFA_TRY(read_rows(store, to, sample_queries[store->version], read_sample, err));
    rc = tune_record_check(to, err);
out:
    return rc;
}

ffa_status tune_store_load(struct tune_store *store, struct tune_record **out, int32_t *count,
                           ffa_error *err)
{
    struct tune_record *records = NULL;
    sqlite3_stmt *statement = NULL;
    int64_t capacity = 0;
    int32_t found = 0;
    ffa_status rc;

    *out = NULL;
    *count = 0;
    FFA_TRY(check(
        store, sqlite3_prepare_v2(store->db, session_queries[store->version], -1, &statement, NULL),
        "read", err));
    for (;;) {
        const int code = sqlite3_step(statement);

        FFA_TRY(check(store, code, "read", err));
        if (code != SQLITE_ROW)
            break;
        if (!mem_grow((void **)&records, &capacity, found + 1, sizeof *records)) {
            rc = error_nomem(err, "sessions");
            goto out;
        }
        records[found] = (struct tune_record){ 0 };
        read_session(&records[found++], statement);
        FFA_TRY(read_parts(store, &records[found - 1], err));
    }
    *out = records;
    *count = found;
    records = NULL;
out:
    (void)sqlite3_finalize(statement);
    tune_records_finish(records, found);
    return rc;
}

/* ---- writing ---- */

static ffa_status put_session(struct tune_store *store, const struct tune_record *record,
                              ffa_error *err)
{
    const struct value values[] = { TEXT(record->id),
                                    NUMBER(record->head_dim),
                                    NUMBER(record->dtype),
                                    NUMBER(record->heads_q),
                                    NUMBER(record->heads_kv),
                                    NUMBER(record->pack_heads),
                                    TEXT(record->arch),
                                    TEXT(record->facts.name),
                                    NUMBER(record->facts.sm_count),
                                    NUMBER(record->facts.shared_bytes_block),
                                    NUMBER(record->facts.l2_bytes),
                                    NUMBER(record->memory_bytes),
                                    NUMBER(record->power_limit_w),
                                    NUMBER(record->clock_max_mhz),
                                    TEXT(record->driver),
                                    TEXT(record->templates_digest),
                                    TEXT(record->library_version),
                                    TEXT(record->base_table ? record->base_table : ""),
                                    NUMBER(record->budget_us),
                                    NUMBER(record->spent_us),
                                    NUMBER(record->started_s),
                                    NUMBER(record->ended_s),
                                    NUMBER(record->trying),
                                    NUMBER(record->head_dim_v),
                                    NUMBER(record->backward_tile_m),
                                    NUMBER(record->backward_tile_n),
                                    NUMBER(record->backward_cluster),
                                    NUMBER(record->is_deterministic),
                                    NUMBER(record->lockstep_masks) };

    return put(store,
               "INSERT INTO session (" SESSION_COLUMNS ") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, "
               "?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, "
               "?25, ?26, ?27, ?28, ?29)",
               values, COUNT(values), err);
}

static ffa_status put_mask(struct tune_store *store, const struct tune_record *record, int32_t mask,
                           ffa_error *err)
{
    const struct tune_baseline *of = &record->baselines[mask];
    const struct value values[] = { TEXT(record->id),  NUMBER(mask),      TEXT(record->masks[mask]),
                                    NUMBER(of->parts), NUMBER(of->waves), NUMBER(of->whole_heads) };

    return put(store,
               "INSERT OR REPLACE INTO mask (session, position, text, parts, waves, whole_heads) "
               "VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
               values, COUNT(values), err);
}

static ffa_status put_configuration(struct tune_store *store, const struct tune_record *record,
                                    int32_t index, ffa_error *err)
{
    const struct tune_configuration *of = &record->configurations[index];
    const struct value values[] = {
        TEXT(record->id),         NUMBER(index),           NUMBER(of->consumers),
        NUMBER(of->tile_n),       NUMBER(of->kv_slots),    NUMBER(of->registers),
        NUMBER(of->shared_bytes), NUMBER(of->spill_bytes), NUMBER(of->state),
        NUMBER(of->tries),        TEXT(of->key),           TEXT(of->reason),
        NUMBER(of->parts),        NUMBER(of->waves),       NUMBER(of->whole_heads),
        NUMBER(of->is_unlocked)
    };

    return put(store,
               "INSERT OR REPLACE INTO configuration (session, " CONFIGURATION_COLUMNS ") VALUES "
               "(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)",
               values, COUNT(values), err);
}

static ffa_status put_sample(struct tune_store *store, const struct tune_record *record,
                             const struct tune_sample *sample, ffa_error *err)
{
    const struct value values[] = { TEXT(record->id),        NUMBER(sample->lap),
                                    NUMBER(sample->mask),    NUMBER(sample->configuration),
                                    NUMBER(sample->place),   NUMBER(sample->calls),
                                    REAL(sample->us),        NUMBER(sample->clock_mhz),
                                    NUMBER(sample->power_w), NUMBER(sample->temperature_c),
                                    NUMBER(sample->process) };

    return put(store,
               "INSERT OR REPLACE INTO sample (session, " SAMPLE_COLUMNS ") VALUES (?1, ?2, ?3, "
               "?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
               values, COUNT(values), err);
}

static ffa_status put_state(struct tune_store *store, const struct tune_record *record,
                            ffa_error *err)
{
    const struct value values[] = { TEXT(record->id), NUMBER(record->budget_us),
                                    NUMBER(record->spent_us), NUMBER(record->ended_s),
                                    NUMBER(record->trying) };

    return put(store,
               "UPDATE session SET budget_us = ?2, spent_us = ?3, ended_s = ?4, trying = ?5 WHERE "
               "id = ?1",
               values, COUNT(values), err);
}

static ffa_status add_all(struct tune_store *store, const struct tune_record *record,
                          ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(put_session(store, record, err));
    for (int32_t i = 0; i < record->mask_count; i++)
        FFA_TRY(put_mask(store, record, i, err));
    for (int32_t i = 0; i < record->configuration_count; i++)
        FFA_TRY(put_configuration(store, record, i, err));
    for (int64_t i = 0; i < record->sample_count; i++)
        FFA_TRY(put_sample(store, record, &record->samples[i], err));
out:
    return rc;
}

static ffa_status add_unknown(struct tune_store *store, const struct tune_record *record,
                              ffa_error *err)
{
    int64_t known;
    ffa_status rc =
        number(store, "SELECT count(*) FROM session WHERE id = ?1", record->id, &known, err);

    return rc == FFA_OK && !known ? add_all(store, record, err) : rc;
}

ffa_status tune_store_add(struct tune_store *store, const struct tune_record *records,
                          int32_t count, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(run(store, "BEGIN IMMEDIATE", "begin", err));
    for (int32_t i = 0; i < count && rc == FFA_OK; i++)
        rc = add_unknown(store, &records[i], err);
    rc = end(store, rc, err);
out:
    return rc;
}

ffa_status tune_store_put_configuration(struct tune_store *store, struct tune_record *record,
                                        int32_t configuration, ffa_error *err)
{
    ffa_status rc;

    record->trying = -1;
    FFA_TRY(run(store, "BEGIN IMMEDIATE", "begin", err));
    rc = put_configuration(store, record, configuration, err);
    if (rc == FFA_OK)
        rc = put_state(store, record, err);
    rc = end(store, rc, err);
out:
    return rc;
}

ffa_status tune_store_try(struct tune_store *store, struct tune_record *record,
                          int32_t configuration, ffa_error *err)
{
    record->trying = configuration;
    return put_state(store, record, err);
}

ffa_status tune_store_put_sample(struct tune_store *store, struct tune_record *record,
                                 const struct tune_sample *sample, int32_t next, ffa_error *err)
{
    ffa_status rc;

    if (!tune_record_add(record, sample))
        return error_nomem(err, "a sample");
    record->trying = next;
    FFA_TRY(run(store, "BEGIN IMMEDIATE", "begin", err));
    rc = put_sample(store, record, sample, err);
    if (rc == FFA_OK && sample->configuration == 0)
        rc = put_mask(store, record, sample->mask, err);
    if (rc == FFA_OK)
        rc = put_state(store, record, err);
    rc = end(store, rc, err);
out:
    return rc;
}

ffa_status tune_store_put_times(struct tune_store *store, const struct tune_record *record,
                                ffa_error *err)
{
    return put_state(store, record, err);
}
