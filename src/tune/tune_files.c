/* SPDX-License-Identifier: Apache-2.0
 *
 * The public functions over files of sessions that were run: what was fitted from them, and files
 * from files.
 */
#include "tune/tune_files.h"

#include "choose/cost_table_json.h"
#include "tune/tune_fit.h"
#include "tune/tune_report.h"
#include <ffa/ffa.h>

enum { FILES_MAX = 1024 };

/* Tables that sessions began with are compared as texts, so each is written as this library writes
 * it: a file may have it in an older format. */
ffa_status tune_records_load(struct tune_store *store, struct tune_record **out, int32_t *count,
                             ffa_error *err)
{
    struct cost_table table;
    ffa_status rc;

    FFA_TRY(tune_store_load(store, out, count, err));
    for (int32_t i = 0; i < *count; i++) {
        char *text = (*out)[i].base_table;

        FFA_TRY(cost_table_read(&table, text, strlen(text), "base_table of a session", err));
        (*out)[i].base_table = NULL;
        mem_free(text);
        FFA_TRY(cost_table_write(&table, &(*out)[i].base_table, err));
    }
out:
    if (rc != FFA_OK) {
        tune_records_finish(*out, *count);
        *out = NULL;
        *count = 0;
    }
    return rc;
}

ffa_status tune_mask_check(const char *text, int32_t index, ffa_error *err)
{
    ffa_error why = { FFA_OK, 0, "" };
    ffa_mask *mask = NULL;
    ffa_status rc = ffa_mask_parse(&mask, text, &why);

    if (rc != FFA_OK)
        rc = error_fail(err, rc, why.native, "tune: masks[%d]: %.400s", index, why.message);
    else if (ffa_mask_head_count(mask) != 1)
        rc = error_fail(err, FFA_INVALID, 0, "tune: masks[%d] has %d lists of slices, not 1", index,
                        ffa_mask_head_count(mask));
    ffa_mask_destroy(mask);
    return rc;
}

/* ---- sessions that were run ---- */

struct ffa_tune {
    struct tune_record *records; /* [count] by id */
    int32_t count;
    struct tune_fit fit;
    char *table; /* as JSON */
    char table_digest[DIGEST_TEXT], samples_digest[DIGEST_TEXT];
};

static int by_id(const void *a, const void *b)
{
    return strcmp(((const struct tune_record *)a)->id, ((const struct tune_record *)b)->id);
}

/* Move records that *to does not have there; the others are finished with `from`. */
static ffa_status take_records(struct tune_record **to, int32_t *count, struct tune_record *from,
                               int32_t from_count, ffa_error *err)
{
    int64_t capacity = *count;

    if (!mem_grow((void **)to, &capacity, *count + from_count, sizeof **to))
        return error_nomem(err, "sessions");
    for (int32_t i = 0; i < from_count; i++) {
        bool is_known = false;

        for (int32_t k = 0; k < *count; k++)
            is_known |= !strcmp((*to)[k].id, from[i].id);
        if (is_known)
            continue;
        (*to)[(*count)++] = from[i];
        from[i] = (struct tune_record){ 0 };
    }
    if (*count)
        qsort(*to, (size_t)*count, sizeof **to, by_id);
    return FFA_OK;
}

/* Add the sessions of a file. */
static ffa_status read_file(struct tune_record **to, int32_t *count, const char *path,
                            ffa_error *err)
{
    struct tune_record *found = NULL;
    struct tune_store *store = NULL;
    int32_t found_count = 0;
    ffa_status rc;

    FFA_TRY(tune_store_open(&store, path, TUNE_STORE_READ, err));
    FFA_TRY(tune_records_load(store, &found, &found_count, err));
    rc = take_records(to, count, found, found_count, err);
out:
    tune_records_finish(found, found_count);
    tune_store_close(store);
    return rc;
}

static ffa_status read_files(struct tune_record **to, int32_t *count, const char *const *paths,
                             int64_t path_count, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    if (!paths || path_count < 1 || path_count > FILES_MAX)
        return error_fail(err, FFA_INVALID, 0, "tune: %s %lld files of sessions, not in [1, %d]",
                          paths ? "there are" : "paths is NULL, for", (long long)path_count,
                          FILES_MAX);
    for (int64_t i = 0; i < path_count && rc == FFA_OK; i++)
        rc = read_file(to, count, paths[i], err);
    return rc;
}

static ffa_status digest_samples(struct ffa_tune *tune, ffa_error *err)
{
    char *text;
    ffa_status rc = tune_samples_text(tune->records, tune->count, &text, err);

    if (rc == FFA_OK)
        digest_bytes(text, strlen(text), tune->samples_digest);
    mem_free(text);
    return rc;
}

ffa_status ffa_tune_open(ffa_tune **out, const char *const *paths, int64_t count, ffa_error *err)
{
    ffa_tune *tune = NULL;
    ffa_status rc;

    if (!out)
        return error_fail(err, FFA_INVALID, 0, "ffa_tune_open: out is NULL");
    *out = NULL;
    tune = mem_array(1, sizeof *tune);
    if (!tune)
        return error_nomem(err, "sessions");
    FFA_TRY(read_files(&tune->records, &tune->count, paths, count, err));
    FFA_TRY(tune_fit(&tune->fit, tune->records, tune->count, err));
    FFA_TRY(cost_table_write(&tune->fit.table, &tune->table, err));
    cost_table_digest(&tune->fit.table, tune->table_digest);
    FFA_TRY(digest_samples(tune, err));
    *out = tune;
    tune = NULL;
out:
    ffa_tune_destroy(tune);
    return rc;
}

void ffa_tune_destroy(ffa_tune *tune)
{
    if (!tune)
        return;
    tune_records_finish(tune->records, tune->count);
    tune_fit_finish(&tune->fit);
    mem_free(tune->table);
    mem_free(tune);
}

ffa_status ffa_tune_info_get(const ffa_tune *tune, ffa_tune_info *info, ffa_error *err)
{
    ffa_tune_info now = FFA_TUNE_INFO_INIT;

    if (!tune || !info)
        return error_fail(err, FFA_INVALID, 0, "ffa_tune_info_get: %s is NULL",
                          tune ? "info" : "tune");
    now.session_count = tune->count;
    for (int32_t i = 0; i < tune->count; i++)
        now.sample_count += tune->records[i].sample_count;
    for (int32_t i = 0; i < tune->fit.group_count; i++) {
        const struct tune_group *group = &tune->fit.groups[i];

        now.is_published |= group->is_published;
        if (i == 0 || group->gain > now.gain) {
            now.gain = group->gain;
            now.noise = group->noise;
        }
    }
    now.is_published |= tune->fit.orders.is_published;
    if (tune->fit.orders.case_count &&
        (!tune->fit.group_count || tune->fit.orders.gain > now.gain)) {
        now.gain = tune->fit.orders.gain;
        now.noise = tune->fit.orders.noise;
    }
    text_copy(now.device, "%s", tune->records[0].facts.name);
    text_copy(now.templates_digest, "%s", tune->records[0].templates_digest);
    text_copy(now.table_digest, "%s", tune->table_digest);
    text_copy(now.samples_digest, "%s", tune->samples_digest);
    return opts_export(info, &now, sizeof now, err);
}

ffa_status ffa_tune_text(const ffa_tune *tune, ffa_tune_text_kind kind, char **json, ffa_error *err)
{
    if (!tune || !json)
        return error_fail(err, FFA_INVALID, 0, "ffa_tune_text: %s is NULL", tune ? "json" : "tune");
    *json = NULL;
    switch (kind) {
    case FFA_TUNE_REPORT:
        return tune_report_text(&tune->fit, tune->records, tune->count, json, err);
    case FFA_TUNE_TABLE:
        *json = mem_strdup(tune->table);
        return *json ? FFA_OK : error_nomem(err, "a cost table");
    case FFA_TUNE_SAMPLES:
        return tune_samples_text(tune->records, tune->count, json, err);
    }
    return error_fail(err, FFA_INVALID, 0, "ffa_tune_text: kind is %d, not in [1, 3]", (int)kind);
}

/* ---- files from files ---- */

/* Whether all masks can be read again, which every later look at the file has to. */
static ffa_status check_masks(const struct tune_record *record, ffa_error *err)
{
    for (int32_t i = 0; i < record->mask_count; i++) {
        ffa_error why = { FFA_OK, 0, "" };
        const ffa_status rc = tune_mask_check(record->masks[i], i, &why);

        if (rc != FFA_OK)
            return error_fail(err, rc, why.native, "session %.32s: %.400s", record->id,
                              why.message);
    }
    return FFA_OK;
}

/* Add sessions to a file, if they go with those that it has. */
static ffa_status add_to_file(const char *path, struct tune_record *records, int32_t count,
                              int64_t *added, ffa_error *err)
{
    struct tune_record *all = NULL;
    struct tune_store *store = NULL;
    int32_t all_count = 0, known;
    ffa_status rc;

    FFA_TRY(tune_fit_check(records, count, err));
    for (int32_t i = 0; i < count; i++)
        FFA_TRY(check_masks(&records[i], err));
    FFA_TRY(tune_store_open(&store, path, TUNE_STORE_CREATE, err));
    FFA_TRY(tune_records_load(store, &all, &all_count, err));
    known = all_count;
    FFA_TRY(take_records(&all, &all_count, records, count, err));
    FFA_TRY(tune_fit_check(all, all_count, err));
    FFA_TRY(tune_store_add(store, all, all_count, err));
    if (added)
        *added = all_count - known;
out:
    tune_records_finish(all, all_count);
    tune_store_close(store);
    return rc;
}

ffa_status ffa_tune_merge(const char *path, const char *const *paths, int64_t count, int64_t *added,
                          ffa_error *err)
{
    struct tune_record *records = NULL;
    int32_t found = 0;
    ffa_status rc;

    if (added)
        *added = 0;
    FFA_TRY(read_files(&records, &found, paths, count, err));
    rc = add_to_file(path, records, found, added, err);
out:
    tune_records_finish(records, found);
    return rc;
}

ffa_status ffa_tune_import(const char *path, const char *text, size_t bytes, int64_t *added,
                           ffa_error *err)
{
    struct tune_record *records = NULL;
    int32_t found = 0;
    ffa_status rc;

    if (added)
        *added = 0;
    if (!text)
        return error_fail(err, FFA_INVALID, 0, "ffa_tune_import: text is NULL");
    FFA_TRY(tune_samples_read(&records, &found, text, bytes, err));
    rc = add_to_file(path, records, found, added, err);
out:
    tune_records_finish(records, found);
    return rc;
}
