/* SPDX-License-Identifier: Apache-2.0
 *
 * Two stores at once: adding one to the other, comparing them. Invariant: both locks are taken in
 * the order of their addresses, as a fork does, so that two threads cannot wait for each other.
 * Rows are added in small batches, and other writers get their turn between two.
 */
#include "cache/bundle.h"

/* Written together: few enough that others get their turn. */
enum { BATCH_ROWS = 64 };

ffa_status cache_lock_both(ffa_cache *a, ffa_cache *b, ffa_error *err)
{
    bool is_a_first = (uintptr_t)&a->store->lock < (uintptr_t)&b->store->lock;
    ffa_cache *first = is_a_first ? a : b, *second = is_a_first ? b : a;
    ffa_status rc = FFA_OK;

    if (a->store == b->store)
        return error_fail(err, FFA_INVALID, 0, "'%s' is given twice", a->store->called);
    FFA_TRY(cache_enter(first, err));
    rc = cache_enter(second, err);
    if (rc == FFA_OK && a->store->inode == b->store->inode &&
        a->store->device == b->store->device) {
        rc = error_fail(err, FFA_INVALID, 0, "'%s' and '%s' are one file", a->store->called,
                        b->store->called);
        cache_leave(second);
    }
    if (rc != FFA_OK)
        cache_leave(first);
out:
    return rc;
}

void cache_unlock_both(ffa_cache *a, ffa_cache *b)
{
    cache_leave(a);
    cache_leave(b);
}

/* ---- adding ---- */

/* What the store has for the row's key and toolchain: *same, *other, or neither. */
static ffa_status look_up(struct store *store, const struct store_row *row, bool *same, bool *other,
                          ffa_error *err)
{
    sqlite3_stmt *statement = NULL;
    bool is_row;
    ffa_status rc;

    *same = *other = false;
    FFA_TRY(store_prepare(store, &statement,
                          "SELECT b.digest" STORE_FROM "WHERE k.key = ?1 AND k.toolchain = ?2",
                          err));
    (void)sqlite3_bind_text(statement, 1, row->key, -1, SQLITE_STATIC);
    (void)sqlite3_bind_text(statement, 2, row->toolchain, -1, SQLITE_STATIC);
    FFA_TRY(store_step(store, statement, &is_row, "look up a kernel", err));
    if (is_row) {
        const char *digest = (const char *)sqlite3_column_text(statement, 0);

        *same = digest && strcmp(digest, row->digest) == 0;
        *other = digest && !*same; /* one without a cubin is replaced */
    }
out:
    (void)sqlite3_finalize(statement);
    return rc;
}

static ffa_status add_row(struct store *into, struct store_row *row, ffa_bundle_report *batch,
                          ffa_error *err)
{
    bool same, other;
    ffa_status rc;

    if (!store_row_blob_ok(row) || !store_row_seal_ok(row)) {
        batch->bad++;
        return FFA_OK;
    }
    FFA_TRY(look_up(into, row, &same, &other, err));
    batch->present += same;
    batch->conflicts += other;
    if (same || other)
        goto out;
    row->used_s = clock_unix_s(); /* wanted now; else the next eviction would take it */
    FFA_TRY(store_row_put(into, row, NULL, err));
    batch->added++;
out:
    return rc;
}

/* Under both locks. */
static ffa_status add_all(struct store *into, struct store *from, const ffa_bundle_filter *filter,
                          ffa_bundle_report *report, ffa_error *err)
{
    struct walk walk = { 0 };
    ffa_status rc;

    FFA_TRY(cache_check_writable(into, err));
    FFA_TRY(walk_open(&walk, from, filter, true, err));
    while (walk.is_row) {
        ffa_bundle_report batch = *report;

        FFA_TRY(store_run(into, "BEGIN IMMEDIATE", "begin", err));
        for (int i = 0; i < BATCH_ROWS && walk.is_row; i++) {
            FFA_TRY(filter_check_stop(filter, err));
            FFA_TRY(add_row(into, &walk.row, &batch, err));
            FFA_TRY(walk_next(&walk, err));
        }
        FFA_TRY(store_run(into, "COMMIT", "commit", err));
        *report = batch;
    }
out:
    walk_close(&walk);
    return store_rollback(into, rc);
}

/* Under lock. A store has no manifest: its entries are as good as their hashes. */
static ffa_status check_source(struct store *from, const ffa_bundle_filter *filter, ffa_error *err)
{
    if (from->is_bundle)
        return bundle_check(from, filter->digest, err);
    if (filter->digest)
        return error_fail(err, FFA_INVALID, 0,
                          "filter: digest is given, '%s' is a store, which has none", from->called);
    return FFA_OK;
}

ffa_status ffa_bundle_import(ffa_cache *into, ffa_cache *from, const ffa_bundle_filter *filter,
                             ffa_bundle_report *report, ffa_error *err)
{
    ffa_bundle_report now = { 0 };
    ffa_bundle_filter wanted;
    ffa_status rc;

    if (report)
        FFA_TRY(opts_export(report, &now, sizeof now, err));
    if (!into || !from)
        return error_fail(err, FFA_INVALID, 0, "%s is NULL", into ? "from" : "into");
    FFA_TRY(filter_import(&wanted, filter, err));
    FFA_TRY(cache_lock_both(into, from, err));
    rc = check_source(from->store, &wanted, err);
    if (rc == FFA_OK)
        rc = add_all(into->store, from->store, &wanted, &now, err);
    cache_unlock_both(into, from);
    if (report)
        (void)opts_export(report, &now, sizeof now, NULL);
out:
    return rc;
}

/* ---- comparing ---- */

static int order_of(const struct walk *a, const struct walk *b)
{
    int order;

    if (!a->is_row || !b->is_row)
        return b->is_row - a->is_row; /* whoever ended comes last */
    order = strcmp(a->row.key, b->row.key);
    return order ? order : strcmp(a->row.toolchain, b->row.toolchain);
}

/* Under both locks: two sorted walks side by side. */
static ffa_status compare(struct store *a, struct store *b, ffa_bundle_difference *out,
                          ffa_bundle_visit visit, void *user, ffa_error *err)
{
    const ffa_bundle_filter all = { 0 };
    struct walk left = { 0 }, right = { 0 };
    ffa_status rc;

    FFA_TRY(walk_open(&left, a, &all, false, err));
    FFA_TRY(walk_open(&right, b, &all, false, err));
    while (left.is_row || right.is_row) {
        int order = order_of(&left, &right);
        ffa_bundle_side side = order < 0   ? FFA_BUNDLE_ONLY_A
                               : order > 0 ? FFA_BUNDLE_ONLY_B
                                           : FFA_BUNDLE_DIFFERENT;
        ffa_cache_entry entry;
        bool is_same = order == 0 && strcmp(left.row.digest, right.row.digest) == 0;

        if (is_same)
            out->same++;
        else
            ++*(order < 0 ? &out->only_a : order > 0 ? &out->only_b : &out->different);
        cache_entry_of(&entry, order > 0 ? &right.row : &left.row);
        if (!is_same && visit && visit(user, side, &entry))
            break;
        if (order <= 0)
            FFA_TRY(walk_next(&left, err));
        if (order >= 0)
            FFA_TRY(walk_next(&right, err));
    }
out:
    walk_close(&left);
    walk_close(&right);
    return rc;
}

ffa_status ffa_bundle_diff(ffa_cache *a, ffa_cache *b, ffa_bundle_difference *out,
                           ffa_bundle_visit visit, void *user, ffa_error *err)
{
    ffa_bundle_difference now = { 0 };
    ffa_status rc;

    if (!out)
        return error_fail(err, FFA_INVALID, 0, "out is NULL");
    FFA_TRY(opts_export(out, &now, sizeof now, err));
    if (!a || !b)
        return error_fail(err, FFA_INVALID, 0, "%s is NULL", a ? "b" : "a");
    FFA_TRY(cache_lock_both(a, b, err));
    rc = compare(a->store, b->store, &now, visit, user, err);
    cache_unlock_both(a, b);
    (void)opts_export(out, &now, sizeof now, NULL);
out:
    return rc;
}
