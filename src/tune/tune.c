/* SPDX-License-Identifier: Apache-2.0
 *
 * The public functions of tuning: options, the session's record, and objects over files of
 * sessions.
 */
#include "choose/cost_table_json.h"
#include "gpu/gpu_stream.h"
#include "tune/tune_compile.h"
#include "tune/tune_gpu.h"
#include "tune/tune_race.h"
#include "tune/tune_report.h"
#include "tune/tune_session.h"
#include "tune/tune_space.h"
#include <ffa/ffa.h>

#include <unistd.h>

enum { BUDGET_MS = 300000, RUN_TIMEOUT_MS = 10000, FILES_MAX = 1024 };

/* Tiles from a few to many a device, blocks from one to hundreds a tile, and masks of which few and
 * most blocks are partial. The first three are unlike each other. */
static const char *const default_masks[] = {
    "causal:8192", "varlen-causal:1024*8", "full:1024",  "window:8192,left=1024,right=0",
    "full:4096",   "causal:1024",          "full:16384", "varlen-causal:300*20,2192",
    "causal:512",  "causal:32768",
};

/* ---- options ---- */

static ffa_status check_opts(const ffa_tune_opts *opts, ffa_error *err)
{
    const uint32_t known = FFA_TUNE_RESUME | FFA_TUNE_COMPILE_ONLY;
    const struct bounded fields[] = {
        { "mask_count", opts->mask_count, 0, TUNE_MASKS_MAX },
        { "tile_count", opts->tile_count, 0, TUNE_CONFIGURATIONS_MAX },
        { "budget_ms", opts->budget_ms, 0, INT32_MAX },
        { "run_timeout_ms", opts->run_timeout_ms, 0, INT32_MAX },
    };

    if (opts->flags & ~known)
        return error_fail(err, FFA_UNSUPPORTED, 0, "tune: flags is 0x%x, only 0x%x is known",
                          opts->flags, known);
    if (opts->flags == known)
        return error_fail(err, FFA_INVALID, 0,
                          "tune: flags is 0x%x: what only compiles has no session to resume",
                          opts->flags);
    if (opts->flags & FFA_TUNE_COMPILE_ONLY && opts->session_path)
        return error_fail(err, FFA_INVALID, 0,
                          "tune: session_path is '%.80s', not NULL: what only compiles has no "
                          "session",
                          opts->session_path);
    if (opts->mask_count && !opts->masks)
        return error_fail(err, FFA_INVALID, 0, "tune: masks is NULL, mask_count is %lld",
                          (long long)opts->mask_count);
    if (opts->tile_count && !opts->tiles)
        return error_fail(err, FFA_INVALID, 0, "tune: tiles is NULL, tile_count is %lld",
                          (long long)opts->tile_count);
    return check_bounded(fields, sizeof fields / sizeof *fields, err);
}

static ffa_status add_mask(struct tune_record *record, const char *text, ffa_error *err)
{
    ffa_mask *mask = NULL;
    ffa_status rc = FFA_OK;

    if (!text || strlen(text) >= TUNE_MASK_BYTES || strchr(text, '@'))
        return error_fail(err, FFA_INVALID, 0,
                          "tune: masks[%d] is %.80s%s: a session keeps texts of up to %d bytes, "
                          "and no files",
                          record->mask_count, text ? text : "NULL",
                          text && strlen(text) > 80 ? "..." : "", TUNE_MASK_BYTES - 1);
    for (int32_t m = 0; m < record->mask_count; m++)
        if (!strcmp(record->masks[m], text))
            return error_fail(err, FFA_INVALID, 0, "tune: masks[%d] is masks[%d], '%.80s'",
                              record->mask_count, m, text);
    FFA_TRY(ffa_mask_parse(&mask, text, err));
    if (ffa_mask_head_count(mask) != 1)
        rc = error_fail(err, FFA_INVALID, 0, "tune: masks[%d] has %d lists of slices, not 1",
                        record->mask_count, ffa_mask_head_count(mask));
    else
        text_copy(record->masks[record->mask_count++], "%s", text);
out:
    ffa_mask_destroy(mask);
    return rc;
}

static ffa_status add_masks(struct tune_record *record, const ffa_tune_opts *opts, ffa_error *err)
{
    const int64_t count = opts->mask_count
                              ? opts->mask_count
                              : (int64_t)(sizeof default_masks / sizeof *default_masks);
    ffa_status rc = FFA_OK;

    record->masks = mem_array(TUNE_MASKS_MAX, sizeof *record->masks);
    if (!record->masks)
        return error_nomem(err, "a tuning session");
    for (int64_t i = 0; i < count && rc == FFA_OK; i++)
        rc = add_mask(record, opts->mask_count ? opts->masks[i] : default_masks[i], err);
    return rc;
}

/* No two sessions have one: the time, the process, and what is measured where. */
static void name_session(struct tune_record *record, const ffa_context *context)
{
    unsigned char uuid[16] = { 0 };
    struct digest digest;

    if (context->gpu)
        (void)gpu_device_identity(context->gpu, uuid, NULL);
    digest_init(&digest);
    digest_field(&digest, uuid, sizeof uuid);
    digest_number(&digest, clock_us());
    digest_number(&digest, clock_unix_s());
    digest_number(&digest, (int64_t)getpid());
    digest_number(&digest, record->head_dim);
    digest_number(&digest, record->head_dim_v);
    digest_number(&digest, record->heads_q);
    digest_number(&digest, record->pack_heads);
    digest_final(&digest, record->id);
}

/* A session as it begins. */
static ffa_status make_record(struct tune_record *record, ffa_context *context,
                              const ffa_attention_spec *spec, const ffa_tune_opts *opts,
                              ffa_error *err)
{
    struct choose_device device;
    ffa_status rc;

    FFA_TRY(context_choose_model(&device, context, opts->device, err));
    FFA_TRY(tune_space_build(record, spec, context->arch, &device, err));
    if (opts->tile_count)
        FFA_TRY(tune_space_keep(record, opts->tiles, opts->tile_count, err));
    FFA_TRY(add_masks(record, opts, err));
    FFA_TRY(cost_table_write(device.costs, &record->base_table, err));
    record->facts = device.facts;
    record->budget_us = 1000 * (opts->budget_ms ? opts->budget_ms : BUDGET_MS);
    record->started_s = clock_unix_s();
    ffa_templates_digest(record->templates_digest);
    text_copy(record->library_version, "%s", ffa_version());
    name_session(record, context);
out:
    return rc;
}

static ffa_status import(ffa_attention_spec *spec, ffa_tune_opts *opts, const ffa_context *context,
                         const ffa_attention_spec *spec_in, const ffa_tune_opts *opts_in,
                         ffa_error *err)
{
    ffa_status rc;

    if (!context || !spec_in || !opts_in)
        return error_fail(err, FFA_INVALID, 0, "tune: %s is NULL",
                          !context  ? "context"
                          : spec_in ? "opts"
                                    : "spec");
    FFA_TRY(opts_import(spec, sizeof *spec, spec_in, err));
    FFA_TRY(opts_import(opts, sizeof *opts, opts_in, err));
    FFA_TRY(check_opts(opts, err));
    if (!context->gpu && !opts->device)
        rc = error_fail(err, FFA_UNSUPPORTED, 0,
                        "tune: the context is of the CPU: kernels are measured on a GPU");
out:
    return rc;
}

static void set_states(struct tune_record *record, enum tune_state state)
{
    for (int32_t i = 0; i < record->configuration_count; i++)
        record->configurations[i].state = state;
}

ffa_status ffa_tune_preview(ffa_context *context, const ffa_attention_spec *spec_in,
                            const ffa_tune_opts *opts_in, char **json, ffa_error *err)
{
    struct tune_record record = { 0 };
    ffa_attention_spec spec;
    ffa_tune_opts opts;
    int64_t samples;
    ffa_status rc;

    if (!json)
        return error_fail(err, FFA_INVALID, 0, "ffa_tune_preview: json is NULL");
    *json = NULL;
    FFA_TRY(import(&spec, &opts, context, spec_in, opts_in, err));
    FFA_TRY(make_record(&record, context, &spec, &opts, err));
    set_states(&record, TUNE_CHECKED); /* if all of them may race */
    samples = tune_race_left(&record);
    set_states(&record, TUNE_PENDING);
    rc = tune_preview_text(&record, samples, json, err);
out:
    tune_record_finish(&record);
    return rc;
}

/* ---- the session of a file ---- */

static bool is_same_spec(const struct tune_record *a, const struct tune_record *b)
{
    return a->head_dim == b->head_dim && a->head_dim_v == b->head_dim_v && a->dtype == b->dtype &&
           a->heads_q == b->heads_q && a->heads_kv == b->heads_kv && a->pack_heads == b->pack_heads;
}

static bool has_same_tiles(const struct tune_record *a, const struct tune_record *b)
{
    bool is_same = a->configuration_count == b->configuration_count;

    for (int32_t i = 0; is_same && i < a->configuration_count; i++)
        is_same = a->configurations[i].consumers == b->configurations[i].consumers &&
                  a->configurations[i].tile_n == b->configurations[i].tile_n;
    return is_same;
}

/* The records of a file. Tables that sessions began with are compared as texts, so each is written
 * as this library writes it: a file may have it in an older format. */
static ffa_status records_load(struct tune_store *store, struct tune_record **out, int32_t *count,
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

/* Whether a session of the file is the one to go on with. */
static ffa_status check_resumed(const struct tune_record *found, const struct tune_record *wanted,
                                const ffa_tune_opts *opts, ffa_error *err)
{
    const char *what = NULL;

    if (strcmp(found->templates_digest, wanted->templates_digest) != 0)
        return error_fail(err, FFA_INVALID, 0,
                          "tune: session %.8s is of templates digest %s, this library's is %s: "
                          "begin another session",
                          found->id, found->templates_digest, wanted->templates_digest);
    if (strcmp(found->facts.name, wanted->facts.name) != 0)
        what = "device";
    else if (strcmp(found->base_table, wanted->base_table) != 0)
        what = "cost table";
    else if (opts->mask_count && (found->mask_count != wanted->mask_count ||
                                  memcmp(found->masks, wanted->masks,
                                         (size_t)found->mask_count * sizeof *found->masks) != 0))
        what = "list of masks";
    else if (opts->tile_count && !has_same_tiles(found, wanted))
        what = "list of tiles";
    if (!what)
        return FFA_OK;
    return error_fail(err, FFA_INVALID, 0,
                      "tune: session %.8s has another %s; begin another session in another file",
                      found->id, what);
}

/* Add a session to a file, if those that it has can be fitted with it: else neither could be shown
 * nor exported. */
static ffa_status add_session(struct tune_store *store, const struct tune_record *all,
                              int32_t count, const struct tune_record *record, ffa_error *err)
{
    for (int32_t i = 0; i < count; i++) {
        const struct tune_record both[] = { all[i], *record };
        ffa_error why = { FFA_OK, 0, "" };

        if (tune_fit_check(both, 2, &why) != FFA_OK)
            return error_fail(err, FFA_INVALID, 0,
                              "tune: the file's sessions cannot be fitted with this one: choose "
                              "another file: %s",
                              why.message);
    }
    return tune_store_add(store, record, 1, err);
}

/* Take over the session to go on with, or add the new one. *record is what is run. */
static ffa_status find_session(struct tune_store *store, struct tune_record *record,
                               const ffa_tune_opts *opts, ffa_error *err)
{
    struct tune_record *all;
    int32_t count, at = 0;
    ffa_status rc;

    FFA_TRY(records_load(store, &all, &count, err));
    while (at < count && !is_same_spec(&all[at], record))
        at++;
    if (opts->flags & FFA_TUNE_RESUME) {
        if (at == count) {
            rc = error_fail(err, FFA_NOT_FOUND, 0,
                            "tune: the file has no session of this spec to resume");
        } else {
            rc = check_resumed(&all[at], record, opts, err);
        }
        if (rc == FFA_OK) {
            const struct tune_record made = *record;

            *record = all[at];
            all[at] = made;
            if (opts->budget_ms)
                record->budget_us = 1000 * opts->budget_ms;
        }
    } else if (at < count) {
        rc = error_fail(err, FFA_INVALID, 0,
                        "tune: the file has session %.8s of this spec: resume it, or choose "
                        "another file",
                        all[at].id);
    } else {
        rc = add_session(store, all, count, record, err);
    }
    tune_records_finish(all, count);
out:
    return rc;
}

static ffa_status run_session(ffa_context *context, struct tune_store *store,
                              struct tune_record *record, const ffa_tune_opts *opts,
                              ffa_tune_outcome *outcome, ffa_error *err)
{
    struct tune_session session = { .store = store,
                                    .record = record,
                                    .stop = opts->stop,
                                    .event = opts->event,
                                    .user = opts->user };
    struct tune_device device;
    struct tune_gpu *gpu = NULL;
    ffa_status rc;

    FFA_TRY(tune_gpu_open(&gpu, context,
                          opts->run_timeout_ms ? opts->run_timeout_ms : RUN_TIMEOUT_MS, err));
    device = tune_gpu_device(gpu);
    session.device = &device;
    rc = tune_session_run(&session, err);
    outcome->must_restart = session.must_restart;
    outcome->is_over = rc == FFA_OK;
    if (session.must_restart)
        rc = FFA_GPU; /* FFA_TIMEOUT is what *stop gives */
    if (err)
        err->status = rc;
out:
    tune_gpu_close(gpu);
    return rc;
}

/* Facts that only an open meter knows. */
static ffa_status describe(struct tune_record *record, ffa_context *context, ffa_error *err)
{
    struct tune_gpu *gpu = NULL;
    ffa_status rc = tune_gpu_open(&gpu, context, RUN_TIMEOUT_MS, err);

    if (rc == FFA_OK)
        tune_gpu_describe(gpu, record);
    tune_gpu_close(gpu);
    return rc;
}

/* ---- compiling only ---- */

struct telling {
    const ffa_tune_opts *opts;
    struct tune_record *record;
    int64_t done;
};

static void tell_compiled(void *user, int32_t configuration, const struct tune_compiled *result)
{
    struct telling *telling = user;
    const struct tune_configuration *of = &telling->record->configurations[configuration];
    const bool spills = result->spill_bytes > 0 && configuration > 0;
    const ffa_tune_event event = {
        .struct_size = (uint32_t)sizeof event,
        .phase = FFA_TUNE_COMPILE,
        .configuration = configuration,
        .done = ++telling->done,
        .total = telling->record->configuration_count,
        .tile_m = 64 * of->consumers,
        .tile_n = of->tile_n,
        .state = tune_state_text(result->status != FFA_OK ? TUNE_REFUSED
                                 : spills                 ? TUNE_SPILLED
                                                          : TUNE_COMPILED),
        .reason = result->message,
    };

    if (telling->opts->event)
        telling->opts->event(telling->opts->user, &event);
}

static ffa_status compile_only(ffa_context *context, struct tune_record *record,
                               const ffa_tune_opts *opts, ffa_error *err)
{
    struct telling telling = { .opts = opts, .record = record };
    int32_t which[TUNE_CONFIGURATIONS_MAX];
    const struct tune_compile_job job = { .context = context,
                                          .device = opts->device,
                                          .record = record,
                                          .which = which,
                                          .count = record->configuration_count,
                                          .stop = opts->stop };

    for (int32_t i = 0; i < record->configuration_count; i++)
        which[i] = i;
    return tune_compile(&job, tell_compiled, &telling, err);
}

ffa_status ffa_tune_run(ffa_context *context, const ffa_attention_spec *spec_in,
                        const ffa_tune_opts *opts_in, ffa_tune_outcome *outcome, ffa_error *err)
{
    ffa_tune_outcome now = FFA_TUNE_OUTCOME_INIT;
    struct tune_record record = { 0 };
    struct tune_store *store = NULL;
    ffa_attention_spec spec;
    ffa_tune_opts opts;
    ffa_status rc;

    FFA_TRY(import(&spec, &opts, context, spec_in, opts_in, err));
    if (opts.device && !(opts.flags & FFA_TUNE_COMPILE_ONLY)) {
        rc = error_fail(err, FFA_INVALID, 0,
                        "tune: device is '%.60s', not NULL: times are those of the context's",
                        opts.device);
        goto out;
    }
    FFA_TRY(make_record(&record, context, &spec, &opts, err));
    if (opts.flags & FFA_TUNE_COMPILE_ONLY) {
        rc = compile_only(context, &record, &opts, err);
        now.is_over = rc == FFA_OK;
        goto out;
    }
    FFA_TRY(describe(&record, context, err));
    FFA_TRY(tune_store_open(&store, opts.session_path,
                            opts.flags & FFA_TUNE_RESUME ? TUNE_STORE_WRITE : TUNE_STORE_CREATE,
                            err));
    FFA_TRY(find_session(store, &record, &opts, err));
    rc = run_session(context, store, &record, &opts, &now, err);
    now.spent_ms = record.spent_us / 1000;
out:
    tune_store_close(store);
    tune_record_finish(&record);
    if (outcome) {
        ffa_error ignored;

        (void)opts_export(outcome, &now, sizeof now, &ignored);
    }
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
    FFA_TRY(records_load(store, &found, &found_count, err));
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
    for (int32_t i = 0; i < tune->fit.fit_count; i++) {
        const struct tune_group *fit = &tune->fit.fits[i];

        now.is_published |= fit->is_published;
        if (i == 0 || fit->gain > now.gain) {
            now.gain = fit->gain;
            now.noise = fit->noise;
        }
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

/* Add sessions to a file, if they go with those that it has. */
static ffa_status add_to_file(const char *path, struct tune_record *records, int32_t count,
                              int64_t *added, ffa_error *err)
{
    struct tune_record *all = NULL;
    struct tune_store *store = NULL;
    int32_t all_count = 0, known;
    ffa_status rc;

    FFA_TRY(tune_fit_check(records, count, err));
    FFA_TRY(tune_store_open(&store, path, TUNE_STORE_CREATE, err));
    FFA_TRY(records_load(store, &all, &all_count, err));
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
