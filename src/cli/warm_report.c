/* SPDX-License-Identifier: Apache-2.0
 *
 * What `ffa warm` says: a line or an event a kernel, the failures, the result at the end.
 * Invariant: stdout has data only, one JSON object with --json, one a line with --jsonl; the bar is
 * cleared before anything else is written.
 */
#include "cli/clock.h"
#include "cli/entries.h"
#include "cli/warm.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUESS_MS = 1000 }; /* what a compile takes until a store knows better */

/* ---- estimates ---- */

struct estimate {
    int64_t count, us;
};

static int visit_estimate(void *user, const ffa_cache_entry *entry)
{
    struct estimate *estimate = user;

    estimate->us += entry->compile_us;
    estimate->count++;
    return 0;
}

void warm_estimate(struct warm_session *session)
{
    struct estimate sum = { 0 };
    ffa_cache *cache = NULL;

    if (session->place.path[0] && entries_open_path(session->cli, &cache, session->place.path,
                                                    FFA_CACHE_READONLY, NULL) == FFA_OK)
        (void)ffa_cache_list(cache, NULL, visit_estimate, &sum, NULL);
    ffa_cache_close(cache);
    session->guess_count = sum.count;
    session->guess_ms = sum.count ? (double)sum.us / 1e3 / (double)sum.count : (double)GUESS_MS;
}

double warm_estimate_seconds(const struct warm_session *session, int64_t kernels)
{
    int64_t workers = kernels < session->jobs ? kernels : session->jobs;

    return workers ? (double)kernels * session->guess_ms / 1e3 / (double)workers : 0;
}

/* ---- one kernel ---- */

void warm_set_state(struct warm_session *session, struct warm_item *item, enum warm_state state)
{
    session->counts[item->state]--;
    item->state = state;
    session->counts[state]++;
}

void warm_set_kernel(json_t *object, const struct warm_item *item)
{
    json_t *settings = json_object_get(item->kernel->json, "settings");

    cli_set_text(object, "template", item->kernel->request.template_name);
    cli_set_text(object, "arch", item->kernel->request.arch);
    (void)json_object_set(object, "settings", settings);
    cli_set_text(object, "key", item->key);
}

void warm_emit(const struct warm_session *session, const char *event, json_t *object)
{
    json_t *line = json_object();

    cli_set_text(line, "event", event);
    (void)json_object_update(line, object);
    if (session->options.jsonl && cli_put_json(line, JSON_COMPACT))
        (void)fflush(stdout);
    json_decref(line);
    json_decref(object);
}

void warm_report_kernel(struct warm_session *session, const struct warm_item *item, int32_t worker,
                        int64_t compile_us)
{
    static const char *const words[] = { "waiting", "hit", "built", "failed" };
    json_t *object = json_object();

    progress_clear(&session->progress);
    if (item->state == BUILT && !session->cli->json && !session->options.jsonl) {
        cli_line(stdout, "built    %" PRId64 "/%" PRId64 "  %s  %s  %.0f ms",
                 session->item_count - session->counts[WAITING], session->item_count, item->key,
                 item->kernel->text, (double)compile_us / 1e3);
        (void)fflush(stdout);
    }
    if (item->state == FAILED)
        cli_note(session->cli, "failed: %s: %s", item->kernel->text, item->message);
    cli_set_text(object, "result", words[item->state]);
    warm_set_kernel(object, item);
    cli_set_int(object, "worker", worker);
    if (item->state == BUILT)
        cli_set_real(object, "compile_ms", (double)compile_us / 1e3);
    if (item->state == FAILED) {
        cli_set_text(object, "reason", item->reason);
        cli_set_text(object, "message", item->message);
    }
    warm_emit(session, "kernel", object);
}

void warm_note_failure(struct warm_session *session, struct warm_item *item, const char *reason,
                       const char *message)
{
    json_t *object = json_object();

    warm_set_state(session, item, FAILED);
    (void)snprintf(item->reason, sizeof item->reason, "%s", reason);
    item->message = strdup(message);
    warm_set_kernel(object, item);
    cli_set_text(object, "reason", reason);
    cli_set_text(object, "message", message);
    (void)json_array_append_new(session->failures, object);
}

/* ---- results ---- */

/* A worker uses what it compiled even where the store refuses it: look whether it is there. */
static int64_t count_unstored(struct warm_session *session)
{
    ffa_error err = { FFA_OK, 0, "" };
    int64_t missing = 0;
    ffa_cache *cache;

    if (session->counts[BUILT] == 0)
        return 0;
    if (entries_open_path(session->cli, &cache, session->place.path, FFA_CACHE_READONLY, &err) !=
        FFA_OK) {
        cli_note(session->cli, "%s", err.message);
        return session->counts[BUILT];
    }
    for (int64_t i = 0; i < session->item_count; i++) {
        void *cubin = NULL;
        size_t bytes;

        if (session->items[i].state != BUILT)
            continue;
        missing +=
            ffa_cache_cubin(cache, session->items[i].key, NULL, &cubin, &bytes, &err) != FFA_OK;
        ffa_free(cubin);
    }
    ffa_cache_close(cache);
    return missing;
}

static bool has_failed_by(const struct warm_session *session, const char *reason)
{
    for (int64_t i = 0; i < session->item_count; i++)
        if (session->items[i].state == FAILED && strcmp(session->items[i].reason, reason) == 0)
            return true;
    return false;
}

static int exit_status(const struct warm_session *session, int64_t unstored)
{
    if (session->end == END_INTERRUPTED)
        return CLI_INTERRUPTED;
    if (session->end == END_TIMED_OUT)
        return CLI_TIMED_OUT;
    if (has_failed_by(session, "environment"))
        return CLI_ENVIRONMENT;
    if (unstored)
        return CLI_STORE;
    return session->counts[FAILED] ? CLI_FAILED : CLI_DONE;
}

static const char *end_text(int status)
{
    switch (status) {
    case CLI_DONE:
        return "done";
    case CLI_INTERRUPTED:
        return "interrupted";
    case CLI_TIMED_OUT:
        return "timed out";
    case CLI_STORE:
        return "not stored";
    default:
        return "failed";
    }
}

json_t *warm_shard_object(const struct cli_shard *shard)
{
    json_t *object;

    if (!shard->from[0])
        return json_null();
    object = json_object();
    cli_set_int(object, "index", shard->index);
    cli_set_int(object, "count", shard->count);
    cli_set_text(object, "from", shard->from);
    return object;
}

static json_t *result_object(const struct warm_session *session, int status, double seconds)
{
    json_t *object = json_object();

    cli_set_text(object, "end", end_text(status));
    cli_set_int(object, "total", session->item_count);
    cli_set_int(object, "hit", session->counts[HIT]);
    cli_set_int(object, "built", session->counts[BUILT]);
    cli_set_int(object, "failed", session->counts[FAILED]);
    cli_set_int(object, "not_tried", session->counts[WAITING]);
    cli_set_real(object, "seconds", seconds);
    cli_set_int(object, "jobs", session->jobs);
    (void)json_object_set_new(object, "shard", warm_shard_object(&session->shard));
    cli_set_text(object, "store", session->place.path);
    (void)json_object_set(object, "failures", session->failures);
    return object;
}

static void print_result(const struct warm_session *session, double seconds)
{
    (void)printf("hit      %" PRId64 "\nbuilt    %" PRId64 "\nfailed   %" PRId64 "\n",
                 session->counts[HIT], session->counts[BUILT], session->counts[FAILED]);
    if (session->counts[WAITING])
        (void)printf("left     %" PRId64 "\n", session->counts[WAITING]);
    (void)printf("seconds  %.2f\n", seconds);
    cli_line(stdout, "store    %s", session->place.path[0] ? session->place.path : "none");
}

/* Of the first kernel that did not compile: the command that shows all of its log. */
static void say_command(const struct warm_session *session)
{
    const struct cli *cli = session->cli;
    const struct warm_item *item = NULL;
    char command[512];
    size_t at;

    for (int64_t i = session->item_count - 1; i >= 0; i--)
        if (session->items[i].state == FAILED && strcmp(session->items[i].reason, "compile") == 0)
            item = &session->items[i];
    if (!item)
        return;
    at = (size_t)snprintf(command, sizeof command, "ffa compile %s",
                          item->kernel->request.template_name);
    for (int64_t i = 0; i < item->kernel->request.setting_count && at < sizeof command; i++)
        at += (size_t)snprintf(command + at, sizeof command - at, " %s", item->kernel->settings[i]);
    cli_note(cli, "to see all of it: %s --arch %s%s%s%s%s", command, item->kernel->request.arch,
             cli->templates ? " --templates " : "", cli->templates ? cli->templates : "",
             cli->nvrtc ? " --nvrtc " : "", cli->nvrtc ? cli->nvrtc : "");
}

static void say_end(const struct warm_session *session, int64_t unstored)
{
    const struct cli *cli = session->cli;
    long long waiting = (long long)session->counts[WAITING];

    if (session->end == END_INTERRUPTED)
        cli_note(cli, "interrupted: what was built is kept, %lld are left", waiting);
    if (session->end == END_TIMED_OUT)
        cli_note(cli, "--deadline %g s has passed: what was built is kept, %lld are left",
                 session->options.deadline_s, waiting);
    if (session->end == END_STOPPED)
        cli_note(cli, "stopped: %lld are left%s", waiting,
                 has_failed_by(session, "compile") ? "; --keep-going tries them all the same" : "");
    say_command(session);
    if (unstored)
        cli_note(cli, "%lld of the kernels that were built are not in the store: see 'ffa doctor'",
                 (long long)unstored);
}

int warm_finish(struct warm_session *session)
{
    double seconds = (double)(cli_clock_us() - session->started_us) / 1e6;
    int64_t unstored = count_unstored(session);
    int status = exit_status(session, unstored);

    say_end(session, unstored);
    if (session->cli->json)
        return cli_print_json(session->cli, result_object(session, status, seconds), status);
    if (session->options.jsonl)
        warm_emit(session, "end", result_object(session, status, seconds));
    else
        print_result(session, seconds);
    return status;
}
