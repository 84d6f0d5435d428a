/* SPDX-License-Identifier: Apache-2.0
 *
 * What is in the file that was opened: whose it is, of which version, and that its tables are
 * tables. Invariant: nothing of the file is run or changed before it is known to be a store.
 *
 * SQLite keeps the text that made each object. The one trigger of a store is recognised by it.
 */
#include "base/embedded.h"
#include "cache/store_internal.h"

/* Whose file is it? Both numbers are read before any table is touched. */
ffa_status store_check_header(struct store *store, ffa_error *err)
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
                        store->called);
    else if (schema > STORE_SCHEMA)
        rc = error_fail(err, FFA_CACHE, 0,
                        "%s '%s' has schema %lld, this library reads up to %d; use a newer "
                        "library or another path",
                        store_kind(store), store->called, (long long)schema, STORE_SCHEMA);
    else if (store->is_bundle && store->mode == STORE_READWRITE)
        rc = error_fail(err, FFA_CACHE, 0,
                        "'%s' is a bundle, which nothing is added to; choose another path for the "
                        "store and give it as a bundle",
                        store->called);
    else if (!store->is_bundle && store->mode == STORE_BUNDLE)
        rc = error_fail(err, FFA_CACHE, 0,
                        "'%s' is a store that may change, not a bundle; export a bundle from it",
                        store->called);
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

/* Whether `sql` makes the one trigger that a store has. SQLite keeps its text from the name on. */
static bool is_own_trigger(const char *sql)
{
    static const char kept[] = "CREATE TRIGGER ", made[] = "CREATE TRIGGER IF NOT EXISTS ";
    const char *own = strstr(embedded_schema.text, made);
    size_t bytes = sql ? strlen(sql) : 0;

    return own && bytes > sizeof kept && strncmp(sql, kept, sizeof kept - 1) == 0 &&
           strncmp(own + sizeof made - 1, sql + sizeof kept - 1, bytes - (sizeof kept - 1)) == 0 &&
           own[sizeof made - 1 + bytes - (sizeof kept - 1)] == ';';
}

ffa_status store_check_schema(struct store *store, ffa_error *err)
{
    sqlite3_stmt *statement = NULL;
    bool is_row = true;
    ffa_status rc;

    FFA_TRY(store_prepare(store, &statement,
                          "SELECT type, name, sql FROM sqlite_schema WHERE type = 'trigger' OR "
                          "(lower(name) IN ('kernel', 'blob', 'meta', 'failure', 'miss') AND "
                          "(type <> 'table' OR rootpage = 0))",
                          err));
    for (;;) {
        const char *type, *name;
        bool is_trigger;

        FFA_TRY(store_step(store, statement, &is_row, "read its schema", err));
        if (!is_row)
            break;
        type = (const char *)sqlite3_column_text(statement, 0);
        name = (const char *)sqlite3_column_text(statement, 1);
        is_trigger = type && strcmp(type, "trigger") == 0;
        if (is_trigger && (!store->is_writable ||
                           is_own_trigger((const char *)sqlite3_column_text(statement, 2))))
            continue;
        rc = error_fail(err, FFA_CACHE, 0,
                        "%s '%s' has a %s '%.40s' that no kernel store has; remove the file or "
                        "choose another path",
                        store_kind(store), store->called,
                        !type                        ? "thing"
                        : strcmp(type, "table") == 0 ? "virtual table"
                                                     : type,
                        name ? name : "");
        goto out;
    }
    if (store->is_writable)
        (void)sqlite3_db_config(store->db, SQLITE_DBCONFIG_ENABLE_TRIGGER, 1, NULL);
out:
    (void)sqlite3_finalize(statement);
    return rc;
}

ffa_status store_set_up(struct store *store, ffa_error *err)
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
