/* SPDX-License-Identifier: Apache-2.0
 *
 * What contexts counted, summed up in the store's meta table. Invariant: a look-up writes nothing;
 * there is one small write when a context closes that looked past its table. Best effort: a sum
 * that cannot be written at once is lost.
 */
#include "cache/bundle.h"
#include "cache/store.h"

#include <stddef.h>
#include <stdio.h>

static const struct {
    const char *name;
    size_t at;
} rows[] = {
    { "count_sessions", offsetof(ffa_cache_counters, sessions) },
    { "count_hits_table", offsetof(ffa_cache_counters, hits_table) },
    { "count_hits_store", offsetof(ffa_cache_counters, hits_store) },
    { "count_hits_bundle", offsetof(ffa_cache_counters, hits_bundle) },
    { "count_misses", offsetof(ffa_cache_counters, misses) },
    { "count_compiles", offsetof(ffa_cache_counters, compiles) },
    { "count_compile_fails", offsetof(ffa_cache_counters, compile_fails) },
    { "count_compile_us", offsetof(ffa_cache_counters, compile_us) },
    { "count_saved_us", offsetof(ffa_cache_counters, saved_us) },
};
enum { ROWS = sizeof rows / sizeof *rows };

static uint64_t *field_of(ffa_cache_counters *counters, int row)
{
    return (uint64_t *)(void *)((char *)counters + rows[row].at);
}

static ffa_status add_all(struct store *store, ffa_cache_counters *add, ffa_error *err)
{
    char sql[192];
    ffa_status rc;

    FFA_TRY(store_run(store, "BEGIN IMMEDIATE", "begin", err));
    for (int i = 0; i < ROWS; i++) {
        if (*field_of(add, i) == 0)
            continue;
        text_copy(sql,
                  "INSERT INTO meta VALUES ('%s', %llu) ON CONFLICT (name) DO UPDATE SET value = "
                  "CAST(value AS INTEGER) + %llu",
                  rows[i].name, (unsigned long long)*field_of(add, i),
                  (unsigned long long)*field_of(add, i));
        FFA_TRY(store_run(store, sql, "count", err));
    }
    rc = store_run(store, "COMMIT", "commit", err);
out:
    return store_rollback(store, rc);
}

void store_count(struct store *store, const ffa_cache_counters *add)
{
    ffa_cache_counters now = *add;

    if (!(add->hits_store || add->hits_bundle || add->misses || add->compiles ||
          add->compile_fails))
        return;
    now.sessions = 1;
    store_lock(store);
    if (store_in_use(store) && store->is_writable) {
        (void)sqlite3_busy_timeout(store->db, STORE_BUSY_AGAIN_MS);
        (void)add_all(store, &now, NULL);
        (void)sqlite3_busy_timeout(store->db, store->busy_ms);
    }
    store_unlock(store);
}

/* Under lock. */
static ffa_status read_all(struct store *store, ffa_cache_counters *out, ffa_error *err)
{
    char sql[96];
    ffa_status rc = FFA_OK;

    for (int i = 0; i < ROWS; i++) {
        int64_t value;

        text_copy(sql, "SELECT CAST(value AS INTEGER) FROM meta WHERE name = '%s'", rows[i].name);
        FFA_TRY(store_number(store, sql, &value, err));
        *field_of(out, i) = (uint64_t)value;
    }
out:
    return rc;
}

ffa_status ffa_cache_counters_get(ffa_cache *cache, ffa_cache_counters *counters, ffa_error *err)
{
    ffa_cache_counters now = { 0 };
    ffa_status rc;

    if (!cache || !counters)
        return error_fail(err, FFA_INVALID, 0, "%s is NULL", cache ? "counters" : "cache");
    rc = cache_enter(cache, err);
    if (rc != FFA_OK)
        return rc;
    rc = read_all(cache->store, &now, err);
    cache_leave(cache);
    return rc == FFA_OK ? opts_export(counters, &now, sizeof now, err) : rc;
}
