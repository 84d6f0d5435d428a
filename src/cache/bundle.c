/* SPDX-License-Identifier: Apache-2.0
 *
 * Bundles: exporting, the manifest, checking one.
 *
 * What makes an export reproducible: rows go in sorted, in one transaction, into a fresh file, with
 * no time in it but those of the kernels.
 */
#include "cache/bundle.h"

#include "base/tempfile.h"

#include <errno.h>
#include <fcntl.h>
#include <sha2.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static const char manifest_head[] = "# ffa manifest 1: sha256 of the cubin, key, toolchain\n";

void sha256_text(const void *bytes, size_t count, char out[SHA256_TEXT])
{
    unsigned char digest[SHA256_DIGEST_LENGTH];
    SHA2_CTX state;

    SHA256Init(&state);
    SHA256Update(&state, bytes, count);
    SHA256Final(digest, &state);
    for (size_t i = 0; i < sizeof digest; i++) {
        out[2 * i] = "0123456789abcdef"[digest[i] >> 4];
        out[2 * i + 1] = "0123456789abcdef"[digest[i] & 15];
    }
    out[SHA256_TEXT - 1] = '\0';
}

/* ---- walking ---- */

ffa_status walk_open(struct walk *walk, struct store *store, const ffa_bundle_filter *filter,
                     bool with_data, ffa_error *err)
{
    const char *const wanted[] = { filter->template_name, filter->arch, filter->toolchain };
    ffa_status rc;

    *walk = (struct walk){ .store = store, .with_data = with_data };
    FFA_TRY(store_prepare(
        store, &walk->statement,
        with_data ? "SELECT " STORE_COLUMNS_AND_DATA STORE_FROM
                    "WHERE (?1 IS NULL OR k.template = ?1) AND (?2 IS NULL OR k.arch = ?2) AND "
                    "(?3 IS NULL OR k.toolchain = ?3) ORDER BY k.key, k.toolchain"
                  : "SELECT " STORE_COLUMNS STORE_FROM
                    "WHERE (?1 IS NULL OR k.template = ?1) AND (?2 IS NULL OR k.arch = ?2) AND "
                    "(?3 IS NULL OR k.toolchain = ?3) ORDER BY k.key, k.toolchain",
        err));
    for (int i = 0; i < 3; i++)
        (void)sqlite3_bind_text(walk->statement, 1 + i, wanted[i], -1, SQLITE_TRANSIENT);
    rc = walk_next(walk, err);
out:
    return rc;
}

ffa_status walk_next(struct walk *walk, ffa_error *err)
{
    ffa_status rc = store_step(walk->store, walk->statement, &walk->is_row, "read an entry", err);

    if (rc == FFA_OK && walk->is_row)
        store_row_read(&walk->row, walk->statement, walk->with_data);
    return rc;
}

void walk_close(struct walk *walk)
{
    (void)sqlite3_finalize(walk->statement);
    *walk = (struct walk){ 0 };
}

ffa_status filter_import(ffa_bundle_filter *out, const ffa_bundle_filter *filter, ffa_error *err)
{
    enum { DIGITS = SHA256_TEXT - 1 };
    ffa_status rc;

    FFA_TRY(opts_import(out, sizeof *out, filter, err));
    if (out->flags)
        rc =
            error_fail(err, FFA_UNSUPPORTED, 0, "filter: flags is 0x%x, none is known", out->flags);
    else if (out->digest &&
             (strlen(out->digest) != DIGITS || strspn(out->digest, "0123456789abcdef") != DIGITS))
        rc = error_fail(err, FFA_INVALID, 0,
                        "filter: digest is '%.80s', not %d hexadecimal digits in lower case",
                        out->digest, DIGITS);
out:
    return rc;
}

ffa_status filter_check_stop(const ffa_bundle_filter *filter, ffa_error *err)
{
    return filter->stop && *filter->stop ? error_fail(err, FFA_TIMEOUT, 0, "stopped") : FFA_OK;
}

/* ---- the manifest ---- */

static void add_line(struct text *manifest, const struct store_row *row)
{
    char sha[SHA256_TEXT];

    sha256_text(row->data, row->data_bytes, sha);
    text_add(manifest, "%s  %s %s\n", sha, row->key, row->toolchain);
}

static bool is_sound(const struct store_row *row)
{
    return store_row_blob_ok(row) && store_row_seal_ok(row);
}

/* A value of the table meta (caller frees); NULL: not there. */
static ffa_status read_meta(struct store *store, const char *name, char **out, ffa_error *err)
{
    sqlite3_stmt *statement = NULL;
    bool is_row;
    ffa_status rc;

    *out = NULL;
    FFA_TRY(store_prepare(store, &statement, "SELECT value FROM meta WHERE name = ?1", err));
    (void)sqlite3_bind_text(statement, 1, name, -1, SQLITE_STATIC);
    FFA_TRY(store_step(store, statement, &is_row, "read what it is", err));
    if (is_row) {
        const char *value = (const char *)sqlite3_column_text(statement, 0);

        *out = mem_strdup(value ? value : "");
        if (!*out)
            rc = error_nomem(err, "a value");
    }
out:
    (void)sqlite3_finalize(statement);
    return rc;
}

static ffa_status write_meta(struct store *store, const char *name, const char *value,
                             ffa_error *err)
{
    sqlite3_stmt *statement = NULL;
    bool is_row;
    ffa_status rc;

    FFA_TRY(store_prepare(store, &statement, "INSERT OR REPLACE INTO meta VALUES (?1, ?2)", err));
    (void)sqlite3_bind_text(statement, 1, name, -1, SQLITE_STATIC);
    (void)sqlite3_bind_text(statement, 2, value, -1, SQLITE_STATIC);
    rc = store_step(store, statement, &is_row, "write what it is", err);
out:
    (void)sqlite3_finalize(statement);
    return rc;
}

/* A bundle's own, with its digest checked. */
static ffa_status read_manifest(struct store *store, char **out, char digest[SHA256_TEXT],
                                ffa_error *err)
{
    char *said = NULL;
    ffa_status rc;

    FFA_TRY(read_meta(store, "manifest", out, err));
    FFA_TRY(read_meta(store, "manifest_sha256", &said, err));
    if (*out)
        sha256_text(*out, strlen(*out), digest);
    if (!*out || !said || strcmp(said, digest) != 0) {
        mem_free(*out);
        *out = NULL;
        rc = error_fail(err, FFA_CACHE, 0,
                        "bundle '%s': its manifest is not what was exported; export it again",
                        store->called);
    }
out:
    mem_free(said);
    return rc;
}

static ffa_status make_manifest(struct store *store, char **out, ffa_error *err)
{
    struct text manifest = { 0 };
    struct walk walk = { 0 };
    ffa_status rc;

    text_add(&manifest, "%s", manifest_head);
    for (rc = walk_open(&walk, store, &(ffa_bundle_filter){ 0 }, true, err);
         rc == FFA_OK && walk.is_row; rc = walk_next(&walk, err))
        if (is_sound(&walk.row))
            add_line(&manifest, &walk.row);
    walk_close(&walk);
    if (rc == FFA_OK) {
        *out = text_take(&manifest);
        if (!*out)
            rc = error_nomem(err, "a manifest");
    }
    text_finish(&manifest);
    return rc;
}

ffa_status ffa_bundle_manifest(ffa_cache *cache, char **out, ffa_error *err)
{
    char digest[SHA256_TEXT];
    ffa_status rc;

    if (!out)
        return error_fail(err, FFA_INVALID, 0, "out is NULL");
    *out = NULL;
    if (!cache)
        return error_fail(err, FFA_INVALID, 0, "cache is NULL");
    rc = cache_enter(cache, err);
    if (rc != FFA_OK)
        return rc;
    rc = cache->store->is_bundle ? read_manifest(cache->store, out, digest, err)
                                 : make_manifest(cache->store, out, err);
    cache_leave(cache);
    return rc;
}

/* ---- what a bundle is ---- */

/* Under lock. */
static ffa_status need_bundle(const struct store *store, ffa_error *err)
{
    if (store->is_bundle)
        return FFA_OK;
    return error_fail(err, FFA_INVALID, 0, "'%s' is a store, not a bundle", store->called);
}

/* A value of meta into a fixed array; "" where there is none. */
static ffa_status read_meta_into(struct store *store, const char *name, char *out, size_t bytes,
                                 ffa_error *err)
{
    char *value = NULL;
    const ffa_status rc = read_meta(store, name, &value, err);

    text_format(out, bytes, "%s", value ? value : "");
    mem_free(value);
    return rc;
}

/* How many kernels are of this library's template texts. */
static ffa_status count_fitting(struct store *store, int64_t *out, ffa_error *err)
{
    struct walk walk = { 0 };
    ffa_status rc;

    *out = 0;
    for (rc = walk_open(&walk, store, &(ffa_bundle_filter){ 0 }, false, err);
         rc == FFA_OK && walk.is_row; rc = walk_next(&walk, err))
        *out += jit_record_is_ours(walk.row.record);
    walk_close(&walk);
    return rc;
}

static ffa_status read_info(struct store *store, ffa_bundle_info *info, ffa_error *err)
{
    int64_t pages, page_bytes, schema;
    const struct {
        const char *sql;
        int64_t *out;
    } numbers[] = {
        { "SELECT count(*) FROM kernel", &info->kernels },
        { "SELECT count(*) FROM blob", &info->blobs },
        { "SELECT ifnull(sum(bytes), 0) FROM blob", &info->blob_bytes },
        { "SELECT ifnull(max(created_s), 0) FROM kernel", &info->created_s },
        { "PRAGMA page_count", &pages },
        { "PRAGMA page_size", &page_bytes },
        { "PRAGMA user_version", &schema },
    };
    char *manifest = NULL;
    ffa_status rc;

    FFA_TRY(need_bundle(store, err));
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        FFA_TRY(store_number(store, numbers[i].sql, numbers[i].out, err));
    info->file_bytes = pages * page_bytes;
    info->schema = (int32_t)schema;
    FFA_TRY(count_fitting(store, &info->fitting, err));
    FFA_TRY(read_meta_into(store, "library_version", info->library_version,
                           sizeof info->library_version, err));
    FFA_TRY(read_meta_into(store, "templates_digest", info->templates_digest,
                           sizeof info->templates_digest, err));
    rc = read_manifest(store, &manifest, info->digest, err);
out:
    mem_free(manifest);
    return rc;
}

ffa_status ffa_bundle_info_get(ffa_cache *bundle, ffa_bundle_info *info, ffa_error *err)
{
    ffa_bundle_info now = { 0 };
    ffa_status rc;

    if (!bundle || !info)
        return error_fail(err, FFA_INVALID, 0, "%s is NULL", bundle ? "info" : "bundle");
    rc = cache_enter(bundle, err);
    if (rc != FFA_OK)
        return rc;
    rc = read_info(bundle->store, &now, err);
    cache_leave(bundle);
    return rc == FFA_OK ? opts_export(info, &now, sizeof now, err) : rc;
}

/* ---- exporting ---- */

/* Under lock of `from`: all rows, the manifest, the mark of a bundle. */
static ffa_status fill(struct store *bundle, struct store *from, const ffa_bundle_filter *filter,
                       ffa_bundle_info *info, ffa_error *err)
{
    struct text manifest = { 0 };
    struct walk walk = { 0 };
    char sql[96], templates[33];
    ffa_status rc;

    text_add(&manifest, "%s", manifest_head);
    for (rc = walk_open(&walk, from, filter, true, err); rc == FFA_OK && walk.is_row;
         rc = walk_next(&walk, err)) {
        struct store_row *row = &walk.row;

        FFA_TRY(filter_check_stop(filter, err));
        if (!is_sound(row)) {
            info->left_out++;
            continue;
        }
        add_line(&manifest, row);
        row->used_s = row->created_s;
        if (row->created_s > info->created_s)
            info->created_s = row->created_s;
        FFA_TRY(store_row_put(bundle, row, NULL, err));
        info->kernels++;
        info->fitting += jit_record_is_ours(row->record);
    }
    if (rc == FFA_OK && manifest.failed)
        rc = error_nomem(err, "a manifest");
    if (rc == FFA_OK && info->kernels == 0)
        rc = error_fail(err, FFA_NOT_FOUND, 0, "store '%s' has no kernel that is asked for",
                        from->called);
    FFA_TRY(rc);
    sha256_text(manifest.at, manifest.bytes, info->digest);
    FFA_TRY(write_meta(bundle, "manifest", manifest.at, err));
    FFA_TRY(write_meta(bundle, "manifest_sha256", info->digest, err));
    text_copy(sql, "%lld", (long long)info->created_s);
    FFA_TRY(write_meta(bundle, "created_s", sql, err));
    FFA_TRY(write_meta(bundle, "library_version", ffa_version(), err));
    if (info->fitting == info->kernels) {
        ffa_templates_digest(templates);
        FFA_TRY(write_meta(bundle, "templates_digest", templates, err));
    }
    text_copy(sql, "PRAGMA application_id = %d; COMMIT", STORE_BUNDLE_APPLICATION);
    rc = store_run(bundle, sql, "commit", err);
out:
    walk_close(&walk);
    text_finish(&manifest);
    return rc;
}

/* Make what was written the file `path` in `folder`. */
static ffa_status put_in_place(struct tempfile *file, const char *path, const char *folder,
                               ffa_error *err)
{
    int synced = -1;

    if (!tempfile_set_mode(file, 0444) || !tempfile_publish(file, strrchr(path, '/') + 1, true)) {
        char called[STORE_CALLED];

        store_call(called, path);
        return error_fail(err, errno == ENOMEM ? FFA_NOMEM : FFA_CACHE, errno,
                          "bundle '%s': cannot put it in place: %s", called, strerror(errno));
    }
    /* The name is to last as the file does; where folders cannot be synced, it does anyway. */
    synced = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (synced >= 0) {
        (void)fsync(synced);
        (void)close(synced);
    }
    return FFA_OK;
}

static ffa_status export_to(struct store *bundle, char **path, struct store *from,
                            const char *folder, const ffa_bundle_filter *filter,
                            ffa_bundle_info *info, ffa_error *err)
{
    struct tempfile file = TEMPFILE_NONE;
    struct text final = { 0 };
    ffa_status rc = FFA_OK;

    tempfile_reap(folder, ".ffa-bundle-");
    tempfile_reap_folders(folder, ".ffa-merge-", "kernels.ffadb");
    if (!tempfile_open(&file, folder, ".ffa-bundle-")) {
        rc = store_file_trouble(bundle, "make a file in", folder, err);
        goto out;
    }
    /* A time in the file would make two exports differ: the kernels' own stands in later. */
    FFA_TRY(store_begin_file(bundle, file.file, 0, err));
    FFA_TRY(fill(bundle, from, filter, info, err));
    {
        int64_t left_out = info->left_out;

        bundle->is_bundle = true;
        FFA_TRY(read_info(bundle, info, err));
        info->left_out = left_out;
    }
    text_add(&final, "%s/ffa-%.32s.ffadb", folder, info->digest);
    *path = text_take(&final);
    if (!*path) {
        rc = error_nomem(err, "a path");
        goto out;
    }
    store_close_db(bundle);
    rc = put_in_place(&file, *path, folder, err);
out:
    store_close_db(bundle);
    tempfile_discard(&file);
    if (rc != FFA_OK) {
        mem_free(*path);
        *path = NULL;
    }
    text_finish(&final);
    return rc;
}

ffa_status ffa_bundle_export(char **path, ffa_cache *from, const char *folder,
                             const ffa_bundle_filter *filter, ffa_bundle_info *info, ffa_error *err)
{
    ffa_bundle_info now = { 0 };
    ffa_bundle_filter wanted;
    struct store *bundle = NULL;
    bool is_first; /* locks are taken by address */
    ffa_status rc;

    if (!path)
        return error_fail(err, FFA_INVALID, 0, "path is NULL");
    *path = NULL;
    if (!from || !folder || !*folder)
        return error_fail(err, FFA_INVALID, 0, "%s",
                          !from    ? "from is NULL"
                          : folder ? "folder is empty"
                                   : "folder is NULL");
    FFA_TRY(filter_import(&wanted, filter, err));
    if (wanted.digest)
        return error_fail(err, FFA_INVALID, 0, "filter: digest is for ffa_bundle_import");
    FFA_TRY(store_open(&bundle, &(struct store_opts){ .mode = STORE_MAINTAIN }, err));
    bundle->path = mem_strdup(folder); /* what messages call it */
    if (!bundle->path) {
        rc = error_nomem(err, "a path");
        goto out;
    }
    store_call(bundle->called, folder);
    is_first = (uintptr_t)&bundle->lock < (uintptr_t)&from->store->lock;
    if (is_first)
        (void)pthread_mutex_lock(&bundle->lock);
    rc = cache_enter(from, err);
    if (!is_first)
        (void)pthread_mutex_lock(&bundle->lock);
    if (rc == FFA_OK) {
        rc = export_to(bundle, path, from->store, folder, &wanted, &now, err);
        cache_leave(from);
    }
    (void)pthread_mutex_unlock(&bundle->lock);
    if (rc == FFA_OK && info)
        rc = opts_export(info, &now, sizeof now, err);
out:
    store_close(bundle);
    return rc;
}

/* ---- checking ---- */

/* The line at *at is (sha, key, toolchain) of the row: 0; sorts before it: -1; after it: 1. */
static int compare_line(const char *at, const struct store_row *row, char sha[SHA256_TEXT],
                        size_t *line_bytes)
{
    enum { KEY_AT = 66, KEY_BYTES = 32, TOOLCHAIN_AT = KEY_AT + KEY_BYTES + 1 };
    size_t bytes = strcspn(at, "\n");
    size_t toolchain = strlen(row->toolchain);
    size_t common;
    int order;

    *line_bytes = bytes + (at[bytes] == '\n');
    if (bytes <= TOOLCHAIN_AT)
        return -1;
    text_format(sha, SHA256_TEXT, "%.64s", at);
    order = strncmp(at + KEY_AT, row->key, KEY_BYTES);
    common = bytes - TOOLCHAIN_AT < toolchain ? bytes - TOOLCHAIN_AT : toolchain;
    if (order == 0)
        order = memcmp(at + TOOLCHAIN_AT, row->toolchain, common);
    if (order == 0)
        order = (bytes - TOOLCHAIN_AT > toolchain) - (bytes - TOOLCHAIN_AT < toolchain);
    return order;
}

struct findings {
    ffa_bundle_verdict verdict;
    int64_t unlisted; /* of the bad: sound by themselves, but not as the manifest has them */
};

/* Rows and lines are sorted alike: one pass over both. */
static ffa_status check_rows(struct store *store, const char *manifest, struct findings *found,
                             ffa_cache_visit visit, void *user, ffa_error *err)
{
    ffa_bundle_verdict *verdict = &found->verdict;
    const char *at = manifest + strcspn(manifest, "\n");
    char sha[SHA256_TEXT], listed[SHA256_TEXT];
    bool is_stopped = false;
    struct walk walk = { 0 };
    ffa_status rc;

    at += *at == '\n';
    for (rc = walk_open(&walk, store, &(ffa_bundle_filter){ 0 }, true, err);
         rc == FFA_OK && walk.is_row && !is_stopped; rc = walk_next(&walk, err)) {
        ffa_cache_entry entry;
        size_t bytes = 0;
        int order = 1;

        for (; *at && (order = compare_line(at, &walk.row, listed, &bytes)) < 0; at += bytes)
            verdict->missing++;
        if (*at && order == 0)
            at += bytes;
        verdict->checked++;
        sha256_text(walk.row.data, walk.row.data_bytes, sha);
        if (order == 0 && is_sound(&walk.row) && strcmp(sha, listed) == 0)
            continue;
        verdict->bad++;
        found->unlisted += is_sound(&walk.row);
        cache_entry_of(&entry, &walk.row);
        entry.is_bad = 1;
        is_stopped = visit && visit(user, &entry);
    }
    for (; rc == FFA_OK && *at && !is_stopped; at += strcspn(at, "\n") + 1)
        verdict->missing++;
    walk_close(&walk);
    return rc;
}

ffa_status ffa_bundle_verify(ffa_cache *bundle, ffa_bundle_verdict *verdict, ffa_cache_visit visit,
                             void *user, ffa_error *err)
{
    char digest[SHA256_TEXT], *manifest = NULL;
    struct findings found = { 0 };
    ffa_status rc;

    if (!bundle || !verdict)
        return error_fail(err, FFA_INVALID, 0, "%s is NULL", bundle ? "verdict" : "bundle");
    rc = opts_export(verdict, &found.verdict, sizeof found.verdict, err);
    if (rc == FFA_OK)
        rc = cache_enter(bundle, err);
    if (rc != FFA_OK)
        return rc;
    FFA_TRY(need_bundle(bundle->store, err));
    FFA_TRY(read_manifest(bundle->store, &manifest, digest, err));
    FFA_TRY(check_rows(bundle->store, manifest, &found, visit, user, err));
    rc = cache_check_structure(bundle->store, err);
out:
    cache_leave(bundle);
    (void)opts_export(verdict, &found.verdict, sizeof found.verdict, NULL);
    mem_free(manifest);
    return rc;
}

ffa_status bundle_check(struct store *bundle, const char *wanted, ffa_error *err)
{
    char digest[SHA256_TEXT], *manifest = NULL;
    struct findings found = { 0 };
    ffa_status rc;

    FFA_TRY(read_manifest(bundle, &manifest, digest, err));
    if (wanted && strcmp(digest, wanted) != 0) {
        rc = error_fail(err, FFA_CACHE, 0,
                        "bundle '%s' is not the one that is wanted: its digest is %s, not %s",
                        bundle->called, digest, wanted);
        goto out;
    }
    FFA_TRY(check_rows(bundle, manifest, &found, NULL, NULL, err));
    if (found.unlisted || found.verdict.missing)
        rc =
            error_fail(err, FFA_CACHE, 0,
                       "bundle '%s' was changed: %lld kernels are not as its manifest lists them, "
                       "%lld are missing; nothing is imported from it; export it again",
                       bundle->called, (long long)found.unlisted, (long long)found.verdict.missing);
out:
    mem_free(manifest);
    return rc;
}
