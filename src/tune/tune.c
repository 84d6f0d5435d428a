/* SPDX-License-Identifier: Apache-2.0
 *
 * The public functions that run sessions: options, the records of a spec's passes, and which of
 * them a file has already.
 *
 * A spec with a backward pass has two sessions, the second of the orders of that pass. Both are in
 * the file before either runs, so that one that was killed goes on with both.
 */
#include "choose/cost_table_json.h"
#include "gpu/gpu_stream.h"
#include "tune/tune_compile.h"
#include "tune/tune_files.h"
#include "tune/tune_fit.h"
#include "tune/tune_gpu.h"
#include "tune/tune_race.h"
#include "tune/tune_report.h"
#include "tune/tune_session.h"
#include "tune/tune_space.h"
#include <ffa/ffa.h>

#include <unistd.h>

enum { BUDGET_MS = 300000, RUN_TIMEOUT_MS = 10000, PASSES = 2, PARTS_MAX = 64 };

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
    const uint32_t known = FFA_TUNE_RESUME | FFA_TUNE_COMPILE_ONLY | FFA_TUNE_BACKWARD_ONLY;
    const uint32_t exclusive = FFA_TUNE_RESUME | FFA_TUNE_COMPILE_ONLY;
    const struct bounded fields[] = {
        { "mask_count", opts->mask_count, 0, TUNE_MASKS_MAX },
        { "tile_count", opts->tile_count, 0, TUNE_CONFIGURATIONS_MAX },
        { "budget_ms", opts->budget_ms, 0, INT32_MAX },
        { "run_timeout_ms", opts->run_timeout_ms, 0, INT32_MAX },
        { "part_count", opts->part_count, 0, PARTS_MAX },
        { "part", opts->part, 0, max64(0, (int64_t)opts->part_count - 1) },
    };

    if (opts->flags & ~known)
        return error_fail(err, FFA_UNSUPPORTED, 0, "tune: flags is 0x%x, only 0x%x is known",
                          opts->flags, known);
    if ((opts->flags & exclusive) == exclusive)
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
    ffa_status rc;

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
    rc = tune_mask_check(text, record->mask_count, err);
    if (rc == FFA_OK)
        text_copy(record->masks[record->mask_count++], "%s", text);
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
    digest_number(&digest, record->dtype);
    digest_number(&digest, record->heads_q);
    digest_number(&digest, record->pack_heads);
    digest_number(&digest, record->backward_tile_m);
    digest_number(&digest, record->is_deterministic);
    digest_final(&digest, record->id);
}

/* ---- the sessions of a spec ---- */

/* What a session is of: the forward kernels of the spec, or its backward pass. */
static ffa_status build_space(struct tune_record *record, const ffa_attention_spec *spec,
                              const char *arch, bool is_backward,
                              const struct choose_device *device, const ffa_tune_opts *opts,
                              ffa_error *err)
{
    ffa_attention_spec forward = *spec;
    ffa_status rc;

    if (is_backward)
        return tune_space_build_orders(record, spec, arch, device, err);
    if (spec->flags & FFA_SPEC_BACKWARD)
        forward.flags &= ~(uint32_t)(FFA_SPEC_BACKWARD | FFA_SPEC_DETERMINISTIC);
    FFA_TRY(tune_space_build(record, &forward, arch, device, err));
    if (opts->tile_count)
        rc = tune_space_keep(record, opts->tiles, opts->tile_count, err);
out:
    return rc;
}

/* A session as it begins. */
static ffa_status make_record(struct tune_record *record, ffa_context *context,
                              const ffa_attention_spec *spec, bool is_backward,
                              const ffa_tune_opts *opts, ffa_error *err)
{
    struct choose_device device;
    ffa_status rc;

    FFA_TRY(context_choose_model(&device, context, opts->device, err));
    FFA_TRY(add_masks(record, opts, err));
    FFA_TRY(build_space(record, spec, context->arch, is_backward, &device, opts, err));
    if (opts->part_count)
        tune_space_keep_part(record, opts->part, opts->part_count);
    FFA_TRY(cost_table_write(device.costs, &record->base_table, err));
    record->facts = device.facts;
    record->budget_us = 1000 * (opts->budget_ms ? opts->budget_ms : BUDGET_MS);
    if (spec->flags & FFA_SPEC_BACKWARD && !(opts->flags & FFA_TUNE_BACKWARD_ONLY))
        record->budget_us /= PASSES;
    record->started_s = clock_unix_s();
    ffa_templates_digest(record->templates_digest);
    text_copy(record->library_version, "%s", ffa_version());
    name_session(record, context);
out:
    return rc;
}

/* The sessions of a spec: of its forward kernels, and of the orders of its backward pass where it
 * has one. */
struct sessions {
    struct tune_record records[PASSES];
    bool is_left_out[PASSES]; /* there is nothing to measure, or it was measured before */
    bool is_resumed[PASSES], was_over[PASSES]; /* before this call */
    int count;
};

static void sessions_finish(struct sessions *sessions)
{
    for (int i = 0; i < PASSES; i++)
        tune_record_finish(&sessions->records[i]);
}

/* Whether there is nothing to measure. */
static bool sessions_are_left_out(const struct sessions *sessions)
{
    for (int i = 0; i < sessions->count; i++)
        if (!sessions->is_left_out[i])
            return false;
    return true;
}

static ffa_status sessions_make(struct sessions *out, ffa_context *context,
                                const ffa_attention_spec *spec, const ffa_tune_opts *opts,
                                ffa_error *err)
{
    ffa_status rc = FFA_OK;

    out->count = spec->flags & FFA_SPEC_BACKWARD ? PASSES : 1;
    for (int i = 0; i < out->count; i++) {
        FFA_TRY(make_record(&out->records[i], context, spec, i > 0, opts, err));
        out->is_left_out[i] = (opts->part_count && out->records[i].configuration_count == 1) ||
                              (i == 0 && opts->flags & FFA_TUNE_BACKWARD_ONLY);
    }
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
    if (opts->flags & FFA_TUNE_BACKWARD_ONLY && !(spec->flags & FFA_SPEC_BACKWARD))
        rc = error_fail(err, FFA_INVALID, 0,
                        "tune: only the backward session is asked for, of a spec without a "
                        "backward pass");
    else if (!context->gpu && !opts->device)
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
    struct sessions sessions = { 0 };
    int64_t samples[PASSES];
    ffa_attention_spec spec;
    ffa_tune_opts opts;
    int first;
    ffa_status rc;

    if (!json)
        return error_fail(err, FFA_INVALID, 0, "ffa_tune_preview: json is NULL");
    *json = NULL;
    FFA_TRY(import(&spec, &opts, context, spec_in, opts_in, err));
    FFA_TRY(sessions_make(&sessions, context, &spec, &opts, err));
    for (int i = 0; i < sessions.count; i++) {
        set_states(&sessions.records[i], TUNE_CHECKED); /* if all of them may race */
        samples[i] = tune_race_left(&sessions.records[i]);
        set_states(&sessions.records[i], TUNE_PENDING);
    }
    first = opts.flags & FFA_TUNE_BACKWARD_ONLY ? 1 : 0;
    rc = tune_preview_text(&sessions.records[first], &samples[first], sessions.count - first, json,
                           err);
out:
    sessions_finish(&sessions);
    return rc;
}

/* ---- the sessions of a file ---- */

static bool is_same_spec(const struct tune_record *a, const struct tune_record *b)
{
    return a->head_dim == b->head_dim && a->head_dim_v == b->head_dim_v && a->dtype == b->dtype &&
           a->heads_q == b->heads_q && a->heads_kv == b->heads_kv &&
           a->pack_heads == b->pack_heads && tune_is_backward(a) == tune_is_backward(b) &&
           a->is_deterministic == b->is_deterministic;
}

/* The session of the same spec and pass; `count`: there is none. */
static int32_t find_same(const struct tune_record *all, int32_t count,
                         const struct tune_record *record)
{
    int32_t at = 0;

    while (at < count && !is_same_spec(&all[at], record))
        at++;
    return at;
}

static bool has_same_configurations(const struct tune_record *a, const struct tune_record *b)
{
    bool is_same = a->configuration_count == b->configuration_count;

    for (int32_t i = 0; is_same && i < a->configuration_count; i++) {
        const struct tune_configuration *x = &a->configurations[i], *y = &b->configurations[i];

        is_same = x->consumers == y->consumers && x->tile_n == y->tile_n && x->parts == y->parts &&
                  x->waves == y->waves && x->whole_heads == y->whole_heads &&
                  x->is_unlocked == y->is_unlocked;
    }
    return is_same;
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
    else if (((opts->tile_count && !tune_is_backward(found)) || opts->part_count) &&
             !has_same_configurations(found, wanted))
        what = tune_is_backward(found) ? "list of orders" : "list of tiles";
    if (!what)
        return FFA_OK;
    return error_fail(err, FFA_INVALID, 0,
                      "tune: session %.8s has another %s; begin another session in another file",
                      found->id, what);
}

/* A session is of no use in a file where those that are there cannot be fitted with it: neither
 * could be shown nor exported. */
static ffa_status check_beside(const struct tune_record *all, int32_t count,
                               const struct tune_record *record, ffa_error *err)
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
    return FFA_OK;
}

static ffa_status fail_known(const struct tune_record *found, ffa_error *err)
{
    return error_fail(err, FFA_INVALID, 0,
                      "tune: the file has session %.8s of this spec: resume it, or choose another "
                      "file",
                      found->id);
}

/* Take over the file's session, to go on with it. */
static ffa_status take_over(struct tune_record *record, struct tune_record *found,
                            const ffa_tune_opts *opts, ffa_error *err)
{
    const int64_t budget_us = record->budget_us;
    struct tune_record made;
    ffa_status rc;

    FFA_TRY(check_resumed(found, record, opts, err));
    made = *record;
    *record = *found;
    *found = made;
    if (opts->budget_ms)
        record->budget_us = max64(record->budget_us, budget_us);
out:
    return rc;
}

/* Of a spec whose backward pass is asked for, too, the forward session may be there; with
 * FFA_TUNE_RESUME if it is over. It is then left as it is, whatever it was begun with. */
static bool may_be_known(const struct sessions *sessions, int index, const ffa_tune_opts *opts,
                         const struct tune_record *found)
{
    return sessions->count > 1 && index == 0 &&
           (!(opts->flags & FFA_TUNE_RESUME) || (found->ended_s != 0 && !opts->join_path));
}

/* What a file says of a session that is asked for. Without FFA_TUNE_RESUME none of the spec may be
 * there. */
static ffa_status look_up(struct sessions *sessions, int index, struct tune_record *all,
                          int32_t count, const ffa_tune_opts *opts, ffa_error *err)
{
    struct tune_record *record = &sessions->records[index];
    const int32_t at = find_same(all, count, record);
    ffa_status rc = FFA_OK;

    if (at == count)
        return check_beside(all, count, record, err);
    if (may_be_known(sessions, index, opts, &all[at])) {
        sessions->is_left_out[0] = true;
        record->spent_us = all[at].spent_us;
    } else if (opts->flags & FFA_TUNE_RESUME) {
        rc = take_over(record, &all[at], opts, err);
    } else {
        rc = fail_known(&all[at], err);
    }
    sessions->is_resumed[index] = true;
    sessions->was_over[index] = record->ended_s != 0;
    return rc;
}

/* Find the sessions in the file, and add those that are not there. */
static ffa_status sessions_find(struct sessions *sessions, struct tune_store *store,
                                const ffa_tune_opts *opts, ffa_error *err)
{
    struct tune_record *all;
    int32_t count, known = 0;
    ffa_status rc;

    FFA_TRY(tune_records_load(store, &all, &count, err));
    for (int i = 0; i < sessions->count; i++)
        known += !sessions->is_left_out[i] && find_same(all, count, &sessions->records[i]) < count;
    if (!known && opts->flags & FFA_TUNE_RESUME && !opts->join_path)
        rc = error_fail(err, FFA_NOT_FOUND, 0,
                        "tune: the file has no session of this spec to resume");
    for (int i = 0; i < sessions->count && rc == FFA_OK; i++)
        if (!sessions->is_left_out[i])
            rc = look_up(sessions, i, all, count, opts, err);
    for (int i = 0; i < sessions->count && rc == FFA_OK; i++)
        if (!sessions->is_left_out[i])
            rc = tune_store_add(store, &sessions->records[i], 1, err);
    tune_records_finish(all, count);
out:
    return rc;
}

/* The sessions of a file, none where it is not there. */
static ffa_status load_if_there(const char *path, struct tune_record **out, int32_t *count,
                                ffa_error *err)
{
    struct tune_store *store = NULL;
    ffa_status rc;

    *out = NULL;
    *count = 0;
    if (!path || access(path, F_OK) != 0)
        return FFA_OK;
    FFA_TRY(tune_store_open(&store, path, TUNE_STORE_READ, err));
    rc = tune_records_load(store, out, count, err);
out:
    tune_store_close(store);
    return rc;
}

/* Whether the file that the sessions are merged into later takes them; those that it has, and that
 * are not begun in the session's own file, are left out. */
static ffa_status sessions_check_join(struct sessions *sessions, const ffa_tune_opts *opts,
                                      ffa_error *err)
{
    struct tune_record *joined = NULL, *own = NULL;
    int32_t count = 0, own_count = 0;
    ffa_status rc;

    FFA_TRY(load_if_there(opts->join_path, &joined, &count, err));
    if (count)
        FFA_TRY(load_if_there(opts->session_path, &own, &own_count, err));
    for (int i = 0; i < sessions->count && rc == FFA_OK; i++) {
        const struct tune_record *record = &sessions->records[i];
        const int32_t at = find_same(joined, count, record);

        if (sessions->is_left_out[i])
            continue;
        rc = check_beside(joined, count, record, err);
        if (rc != FFA_OK || at == count)
            continue;
        if (opts->flags & FFA_TUNE_RESUME || may_be_known(sessions, i, opts, &joined[at]))
            sessions->is_left_out[i] = find_same(own, own_count, record) == own_count;
        else
            rc = fail_known(&joined[at], err);
    }
out:
    tune_records_finish(joined, count);
    tune_records_finish(own, own_count);
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
    if (session.must_restart)
        rc = FFA_GPU; /* FFA_TIMEOUT is what *stop gives */
    if (err)
        err->status = rc;
out:
    tune_gpu_close(gpu);
    return rc;
}

/* Facts that only an open meter knows. */
static ffa_status describe(struct sessions *sessions, ffa_context *context, ffa_error *err)
{
    struct tune_gpu *gpu = NULL;
    ffa_status rc = tune_gpu_open(&gpu, context, RUN_TIMEOUT_MS, err);

    for (int i = 0; i < sessions->count && rc == FFA_OK; i++)
        tune_gpu_describe(gpu, &sessions->records[i]);
    tune_gpu_close(gpu);
    return rc;
}

/* What the forward session leaves of its half goes to the backward one; all where it is left out,
 * and where both are resumed what it has not spent. Sharing again, in a process that goes on, gives
 * no more. */
static void share_budget(struct sessions *sessions, const ffa_tune_opts *opts)
{
    const struct tune_record *forward = &sessions->records[0];
    struct tune_record *backward = &sessions->records[1];
    /* Begun together, both have half of it; a forward session may have been begun alone. */
    const bool are_alike = sessions->is_resumed[0] == sessions->is_resumed[1];
    const int64_t total_us = opts->budget_ms ? 1000 * opts->budget_ms
                             : are_alike     ? PASSES * forward->budget_us
                                             : backward->budget_us + forward->budget_us;

    if (opts->flags & FFA_TUNE_BACKWARD_ONLY)
        return;
    if (!sessions->is_left_out[0] && (opts->budget_ms || !sessions->was_over[0]))
        backward->budget_us = max64(backward->budget_us, total_us - forward->spent_us);
    else if (sessions->is_left_out[0] && sessions->is_resumed[1])
        backward->budget_us =
            max64(backward->budget_us, opts->budget_ms * 1000 - forward->spent_us);
    else if (sessions->is_left_out[0])
        backward->budget_us *= PASSES;
}

static ffa_status run_all(struct sessions *sessions, ffa_context *context, struct tune_store *store,
                          const ffa_tune_opts *opts, ffa_tune_outcome *outcome, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    for (int i = 0; i < sessions->count && rc == FFA_OK; i++) {
        if (i > 0)
            share_budget(sessions, opts);
        if (!sessions->is_left_out[i])
            rc = run_session(context, store, &sessions->records[i], opts, outcome, err);
        /* One that is over had a part of this budget where the backward session goes on, too. */
        if (!sessions->is_left_out[i] || sessions->is_resumed[PASSES - 1])
            outcome->spent_ms += sessions->records[i].spent_us / 1000;
    }
    outcome->is_over = rc == FFA_OK;
    return rc;
}

/* ---- compiling only ---- */

struct telling {
    const ffa_tune_opts *opts;
    struct tune_record *record;
    int64_t done, total;
    ffa_status rc; /* the first failure that is of no configuration */
    ffa_error err;
};

static void tell_compiled(void *user, int32_t configuration, const struct tune_compiled *result)
{
    struct telling *telling = user;
    const struct tune_configuration *of = &telling->record->configurations[configuration];
    char reason[200];
    const enum tune_state state = tune_compiled_state(result, configuration, reason);
    const ffa_tune_event event = {
        .struct_size = (uint32_t)sizeof event,
        .phase = FFA_TUNE_COMPILE,
        .configuration = configuration,
        .done = ++telling->done,
        .total = telling->total,
        .is_backward = tune_is_backward(telling->record),
        .tile_m = 64 * of->consumers,
        .tile_n = of->tile_n,
        .state = tune_state_text(state),
        .reason = reason,
    };

    if (state == TUNE_PENDING && telling->rc == FFA_OK)
        telling->rc = error_fail(&telling->err, result->status, 0, "%s", result->message);
    if (telling->opts->event)
        telling->opts->event(telling->opts->user, &event);
}

static ffa_status compile_only(ffa_context *context, struct tune_record *record,
                               const ffa_tune_opts *opts, ffa_error *err)
{
    /* All of a backward session have the kernels of the baseline. */
    const int32_t count = tune_is_backward(record) ? 1 : record->configuration_count;
    struct telling telling = { .opts = opts, .record = record, .total = count };
    int32_t which[TUNE_CONFIGURATIONS_MAX];
    const struct tune_compile_job job = { .context = context,
                                          .device = opts->device,
                                          .record = record,
                                          .which = which,
                                          .count = count,
                                          .stop = opts->stop };
    ffa_status rc;

    for (int32_t i = 0; i < count; i++)
        which[i] = i;
    rc = tune_compile(&job, tell_compiled, &telling, err);
    if (telling.rc != FFA_OK)
        rc = error_fail(err, telling.rc, telling.err.native, "%s", telling.err.message);
    return rc;
}

static ffa_status measure(struct sessions *sessions, ffa_context *context,
                          const ffa_tune_opts *opts, ffa_tune_outcome *outcome, ffa_error *err)
{
    const bool makes_file = !(opts->flags & FFA_TUNE_RESUME) || opts->join_path;
    struct tune_store *store = NULL;
    ffa_status rc;

    FFA_TRY(describe(sessions, context, err));
    FFA_TRY(sessions_check_join(sessions, opts, err));
    outcome->is_over = sessions_are_left_out(sessions);
    if (outcome->is_over)
        goto out;
    FFA_TRY(tune_store_open(&store, opts->session_path,
                            makes_file ? TUNE_STORE_CREATE : TUNE_STORE_WRITE, err));
    FFA_TRY(sessions_find(sessions, store, opts, err));
    rc = run_all(sessions, context, store, opts, outcome, err);
out:
    tune_store_close(store);
    return rc;
}

ffa_status ffa_tune_run(ffa_context *context, const ffa_attention_spec *spec_in,
                        const ffa_tune_opts *opts_in, ffa_tune_outcome *outcome, ffa_error *err)
{
    ffa_tune_outcome now = FFA_TUNE_OUTCOME_INIT;
    struct sessions sessions = { 0 };
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
    FFA_TRY(sessions_make(&sessions, context, &spec, &opts, err));
    if (opts.flags & FFA_TUNE_COMPILE_ONLY) {
        for (int i = opts.flags & FFA_TUNE_BACKWARD_ONLY ? 1 : 0; i < sessions.count; i++)
            FFA_TRY(compile_only(context, &sessions.records[i], &opts, err));
        now.is_over = 1;
    } else {
        rc = measure(&sessions, context, &opts, &now, err);
    }
out:
    sessions_finish(&sessions);
    if (outcome) {
        ffa_error ignored;

        (void)opts_export(outcome, &now, sizeof now, &ignored);
    }
    return rc;
}
