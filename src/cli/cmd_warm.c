/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa warm: compile a set of kernels into a store, so that no job has to. What the store answers
 * is a hit and opens no compiler; the rest is built by ffa_precompile in worker processes.
 * Invariant: a kernel is waiting, a hit, built or failed, and the counts say how many are which;
 * whatever ends the session, what was built is kept.
 *
 * A share of the set (--shard) is every Nth of its distinct kernels in the order of the manifest,
 * whatever any store holds: shares of equal manifests are disjoint and cover the whole.
 */
#include "cli/cmd_misses.h"
#include "cli/entries.h"
#include "cli/file.h"
#include "cli/jobs.h"
#include "cli/manifest.h"
#include "cli/progress.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* What a compile takes until a store knows better, and what a worker may: a forward kernel takes
 * 0.8 s and 120 MiB. */
enum {
    GUESS_MS = 1000,
    TIMEOUT_S = 300,
    MEMORY_MIB = 2048,
    MEMORY_MIB_MIN = 32,
    MEMORY_MIB_MAX = 1 << 20 /* of ffa_context_opts; more is no limit either */
};

struct warm_options {
    const char *preset, *misses, *archs, *jobs, *memory, *shard;
    double timeout_s, deadline_s;
    bool keep_going, dry_run, resume, jsonl;
};

enum state { WAITING, HIT, BUILT, FAILED };

/* How the building ended. */
enum end {
    END_ALL,         /* every kernel was tried */
    END_STOPPED,     /* by a failure */
    END_INTERRUPTED, /* SIGINT or SIGTERM */
    END_TIMED_OUT    /* --deadline */
};

/* A kernel of this share. */
struct item {
    struct wish *wish; /* of `wishes` */
    char key[33];
    enum state state;
    char reason[16]; /* FAILED */
    char *message;
};

struct session {
    const struct cli *cli;
    struct warm_options options;
    struct cli_place place;
    struct cli_shard shard;
    struct wishes wishes; /* of the whole manifest */
    struct item *items;   /* of this share, without doubles */
    struct item **queue;  /* those that no layer answers */
    int64_t item_count, queue_count;
    int64_t counts[4]; /* by state */
    int64_t jobs, memory_bytes;
    int64_t started_us, build_started_us;
    double guess_ms; /* what one compile takes */
    int64_t guess_count;
    struct progress progress;
    json_t *failures;
    enum end end;
};

/* ---- options ---- */

/* "512M", "2G": bytes. */
static int read_memory(const struct cli *cli, const char *text, int64_t *out)
{
    char *end;
    long long number;
    int shift;

    *out = (int64_t)MEMORY_MIB << 20;
    if (!text)
        return CLI_PARSE_GO;
    errno = 0;
    number = strtoll(text, &end, 10);
    shift = *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
    if (end == text || errno || !shift || end[1] || number < 0 || number > (1 << 20) ||
        (number << shift >> 20) < MEMORY_MIB_MIN)
        return cli_fail_text(
            cli, FFA_INVALID,
            "--mem-per-job is '%s', not a size of at least %dM, such as 512M or 2G", text,
            MEMORY_MIB_MIN);
    *out = (int64_t)number << shift;
    return CLI_PARSE_GO;
}

static int read_jobs(const struct cli *cli, const struct session *session, const char *text,
                     int64_t *out)
{
    char *end;
    long number;

    *out = jobs_auto(session->memory_bytes, session->shard.local);
    if (!text || strcmp(text, "auto") == 0)
        return CLI_PARSE_GO;
    errno = 0;
    number = strtol(text, &end, 10);
    if (end == text || *end || errno || number < 1 || number > JOBS_MAX)
        return cli_fail_text(cli, FFA_INVALID, "--jobs is '%s', not auto or a number in [1, %d]",
                             text, JOBS_MAX);
    *out = number;
    return CLI_PARSE_GO;
}

static int check_options(struct cli *cli, struct session *session)
{
    const struct warm_options *options = &session->options;
    const char *bad;
    int status, sets;

    if (options->jsonl && cli->json)
        return cli_fail_text(cli, FFA_INVALID, "--json and --jsonl exclude each other");
    sets = (options->preset != NULL) + (options->misses != NULL) + (cli->argc != 0);
    if (sets != 1)
        return cli_fail_text(cli, FFA_INVALID, "%s: see 'ffa warm --help'",
                             sets ? "a manifest, --preset and --from-misses exclude each other"
                                  : "a manifest, --preset or --from-misses is missing");
    if (options->misses && options->archs)
        return cli_fail_text(cli, FFA_INVALID,
                             "--arch and --from-misses exclude each other: a miss has its own");
    if (!(options->timeout_s > 0) || options->timeout_s > 1e6)
        return cli_fail_text(cli, FFA_INVALID, "--timeout is %g, not in (0, 1000000]",
                             options->timeout_s);
    if (!(options->deadline_s >= 0) || options->deadline_s > 1e6)
        return cli_fail_text(cli, FFA_INVALID, "--deadline is %g, not in [0, 1000000]",
                             options->deadline_s);
    status = cli_find_shard(cli, options->shard, &session->shard);
    if (status == CLI_PARSE_GO)
        status = read_memory(cli, options->memory, &session->memory_bytes);
    if (status == CLI_PARSE_GO)
        status = read_jobs(cli, session, options->jobs, &session->jobs);
    if (status == CLI_PARSE_GO)
        status = cli_find_place(cli, &session->place);
    /* Without a store there are still bundles to look into, but nothing to build into. */
    if (status == CLI_PARSE_GO && !session->place.path[0] && !options->dry_run &&
        !cli_never_compile(&bad))
        status = cli_fail_text(cli, FFA_CACHE,
                               "there is no store to warm: see 'ffa cache path --explain'");
    return status;
}

/* ---- the set ---- */

/* All of a file, or of stdin for "-". */
static ffa_status read_all(const char *path, char **out, size_t *bytes, ffa_error *err)
{
    enum { BYTES_MAX = 16 << 20 };
    bool is_stdin = strcmp(path, "-") == 0;
    FILE *file = is_stdin ? stdin : fopen(path, "re");
    char *text = malloc(BYTES_MAX);
    ffa_status rc = FFA_OK;

    *out = NULL;
    if (!file)
        rc = cli_error(err, FFA_IO, errno, "cannot read manifest '%s': %s", path, strerror(errno));
    else if (!text)
        rc = cli_error(err, FFA_NOMEM, 0, "no memory for the manifest");
    else
        *bytes = fread(text, 1, BYTES_MAX, file);
    if (rc == FFA_OK && ferror(file))
        rc = cli_error(err, FFA_IO, errno, "cannot read manifest '%s': %s", path, strerror(errno));
    else if (rc == FFA_OK && *bytes == BYTES_MAX)
        rc = cli_error(err, FFA_INVALID, 0, "manifest '%s' is larger than 16 MiB", path);
    if (file && !is_stdin)
        (void)fclose(file);
    if (rc == FFA_OK)
        *out = text;
    else
        free(text);
    return rc;
}

/* The misses noted in the store of --from-misses, a file or a folder. */
static ffa_status read_misses(struct session *session, ffa_context *context, ffa_error *err)
{
    const char *given = session->options.misses;
    struct misses_account account;
    struct stat at;
    char path[4096];
    int bytes = snprintf(path, sizeof path, "%s%s", given,
                         stat(given, &at) == 0 && S_ISDIR(at.st_mode) ? "/kernels.ffadb" : "");
    ffa_status rc;

    if (!given[0] || bytes < 0 || (size_t)bytes >= sizeof path)
        return cli_error(err, FFA_INVALID, 0, "--from-misses is %zu bytes long, not in [1, %zu]",
                         strlen(given), sizeof path - sizeof "/kernels.ffadb");
    rc = misses_read(&session->wishes, context, path, &account, err);
    if (rc != FFA_OK)
        return rc;
    if (account.noted == 0)
        cli_note(session->cli, "no misses are noted in %s", path);
    if (account.edited)
        cli_note(session->cli, "%lld misses are of another template text: today's is built",
                 (long long)account.edited);
    if (account.foreign)
        cli_note(session->cli, "%lld misses are left out: this version has no such kernel",
                 (long long)account.foreign);
    return FFA_OK;
}

static ffa_status read_set(struct session *session, const char *arch, ffa_error *err)
{
    const struct warm_options *options = &session->options;
    const char *name = options->preset ? options->preset : session->cli->argv[0];
    const char *text;
    char *owned = NULL;
    size_t bytes = 0;
    ffa_status rc = FFA_OK;

    if (options->preset) {
        text = manifest_preset(options->preset, &bytes);
        if (!text)
            return cli_error(err, FFA_INVALID, 0,
                             "--preset is '%s', not training, inference or all", options->preset);
    } else {
        rc = read_all(name, &owned, &bytes, err);
        text = owned;
    }
    if (rc == FFA_OK)
        rc = manifest_read(&session->wishes, name, text, bytes, options->archs, arch, err);
    free(owned);
    return rc;
}

/* A key and where it stands in the manifest. */
struct keyed {
    char key[33];
    int64_t at;
};

static int by_key(const void *a, const void *b)
{
    const struct keyed *left = a, *right = b;
    int order = strcmp(left->key, right->key);

    return order ? order : (left->at > right->at) - (left->at < right->at);
}

static int by_place(const void *a, const void *b)
{
    const struct keyed *left = a, *right = b;

    return (left->at > right->at) - (left->at < right->at);
}

/* The distinct kernels of the manifest; of these, our share. */
static ffa_status take_share(struct session *session, ffa_context *context, ffa_error *err)
{
    const struct wishes *wishes = &session->wishes;
    size_t room = (size_t)(wishes->count ? wishes->count : 1);
    struct keyed *keyed = calloc(room, sizeof *keyed);
    int64_t distinct = 0;
    ffa_status rc = FFA_OK;

    session->items = calloc(room, sizeof *session->items);
    session->queue = calloc(room, sizeof(struct item *));
    if (!keyed || !session->items || !session->queue)
        rc = cli_error(err, FFA_NOMEM, 0, "no memory for %lld kernels", (long long)wishes->count);
    for (int64_t i = 0; i < wishes->count && rc == FFA_OK; i++) {
        keyed[i].at = i;
        rc = ffa_compile_key(context, &wishes->at[i]->request, keyed[i].key, NULL, err);
    }
    if (rc != FFA_OK)
        goto out;
    qsort(keyed, (size_t)wishes->count, sizeof *keyed, by_key);
    for (int64_t i = 0; i < wishes->count; i++)
        if (distinct == 0 || strcmp(keyed[distinct - 1].key, keyed[i].key) != 0)
            keyed[distinct++] = keyed[i];
    qsort(keyed, (size_t)distinct, sizeof *keyed, by_place);
    for (int64_t i = session->shard.index; i < distinct; i += session->shard.count) {
        struct item *item = &session->items[session->item_count++];

        item->wish = wishes->at[keyed[i].at];
        (void)snprintf(item->key, sizeof item->key, "%s", keyed[i].key);
    }
out:
    free(keyed);
    return rc;
}

static void set_state(struct session *session, struct item *item, enum state state)
{
    session->counts[item->state]--;
    item->state = state;
    session->counts[state]++;
}

/* Which items the layers answer: all is checked that a later look-up checks. */
static ffa_status look_up(struct session *session, ffa_context *context, ffa_error *err)
{
    session->counts[WAITING] = session->item_count;
    for (int64_t i = 0; i < session->item_count; i++) {
        struct item *item = &session->items[i];
        ffa_compiled *compiled = NULL;
        ffa_status rc = ffa_compile(&compiled, context, &item->wish->request, err);

        ffa_compiled_destroy(compiled);
        if (rc == FFA_OK)
            set_state(session, item, HIT);
        else if (rc == FFA_NOT_FOUND)
            session->queue[session->queue_count++] = item;
        else
            return rc;
    }
    return FFA_OK;
}

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

/* What compiling took the kernels of the store, on average. A store that cannot be read knows
 * nothing, and says so when it is to be used. */
static void estimate(struct session *session)
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

static double estimate_seconds(const struct session *session, int64_t kernels)
{
    int64_t workers = kernels < session->jobs ? kernels : session->jobs;

    return workers ? (double)kernels * session->guess_ms / 1e3 / (double)workers : 0;
}

/* ---- saying what happens ---- */

static void set_wish(json_t *object, const struct item *item)
{
    json_t *settings = json_object_get(item->wish->json, "settings");

    cli_set_text(object, "template", item->wish->request.template_name);
    cli_set_text(object, "arch", item->wish->request.arch);
    (void)json_object_set(object, "settings", settings);
    cli_set_text(object, "key", item->key);
}

/* One line of --jsonl: the event's name, then what it says. */
static void emit(const struct session *session, const char *event, json_t *object)
{
    json_t *line = json_object();
    char *text = NULL;

    cli_set_text(line, "event", event);
    (void)json_object_update(line, object);
    if (session->options.jsonl)
        text = json_dumps(line, JSON_COMPACT | JSON_REAL_PRECISION(6));
    if (text) {
        (void)puts(text);
        (void)fflush(stdout);
    }
    free(text);
    json_decref(line);
    json_decref(object);
}

/* worker: the process that was asked; 0: none. */
static void report_kernel(struct session *session, const struct item *item, int32_t worker,
                          int64_t compile_us)
{
    static const char *const words[] = { "waiting", "hit", "built", "failed" };
    json_t *object = json_object();

    progress_clear(&session->progress);
    if (item->state == BUILT && !session->cli->json && !session->options.jsonl) {
        (void)printf("built    %" PRId64 "/%" PRId64 "  %s  %s  %.0f ms\n",
                     session->item_count - session->counts[WAITING], session->item_count, item->key,
                     item->wish->text, (double)compile_us / 1e3);
        (void)fflush(stdout);
    }
    if (item->state == FAILED)
        cli_note(session->cli, "failed: %s: %s", item->wish->text, item->message);
    cli_set_text(object, "result", words[item->state]);
    set_wish(object, item);
    cli_set_int(object, "worker", worker);
    if (item->state == BUILT)
        cli_set_real(object, "compile_ms", (double)compile_us / 1e3);
    if (item->state == FAILED) {
        cli_set_text(object, "reason", item->reason);
        cli_set_text(object, "message", item->message);
    }
    emit(session, "kernel", object);
}

static void note_failure(struct session *session, struct item *item, const char *reason,
                         const char *message)
{
    json_t *object = json_object();

    set_state(session, item, FAILED);
    (void)snprintf(item->reason, sizeof item->reason, "%s", reason);
    item->message = strdup(message);
    set_wish(object, item);
    cli_set_text(object, "reason", reason);
    cli_set_text(object, "message", message);
    (void)json_array_append_new(session->failures, object);
}

/* Why a kernel failed, in a word, and in a sentence that names this command's options. */
static const char *describe_failure(const struct session *session,
                                    const ffa_precompile_event *event, char *text, size_t size)
{
    long long mib = (long long)(session->memory_bytes >> 20);

    if (event->worker_signal == SIGKILL) {
        (void)snprintf(text, size,
                       "its worker was killed from outside (signal 9: somebody, or the system, "
                       "short of memory)");
        return "killed";
    }
    if (event->worker_signal) {
        (void)snprintf(text, size,
                       "its worker crashed: signal %d (%s), with a limit of %lld MiB "
                       "(--mem-per-job)",
                       (int)event->worker_signal, strsignal(event->worker_signal), mib);
        return "crash";
    }
    if (event->worker_status >= 0) {
        (void)snprintf(text, size, "its worker ended with status %d instead of an answer",
                       (int)event->worker_status);
        return "crash";
    }
    if (event->status == FFA_TIMEOUT) {
        (void)snprintf(text, size, "took longer than %g s (--timeout): its worker was killed",
                       session->options.timeout_s);
        return "timeout";
    }
    if (event->status == FFA_NOMEM) {
        (void)snprintf(text, size, "out of memory: a worker may take %lld MiB (--mem-per-job)",
                       mib);
        return "memory";
    }
    (void)snprintf(text, size, "%s", event->message);
    return event->status == FFA_COMPILE                                  ? "compile"
           : event->status == FFA_UNSUPPORTED || event->status == FFA_IO ? "environment"
                                                                         : "error";
}

static void show_progress(struct session *session, int workers)
{
    int64_t built = session->counts[BUILT];
    double seconds = (double)(cli_clock_us() - session->build_started_us) / 1e6;
    struct progress_counts counts = { .total = session->item_count,
                                      .hit = session->counts[HIT],
                                      .built = built,
                                      .failed = session->counts[FAILED],
                                      .workers = workers };

    /* Its own pace, once there is one. */
    counts.eta_s = built ? (double)session->counts[WAITING] * seconds / (double)built
                         : estimate_seconds(session, session->counts[WAITING]);
    progress_show(&session->progress, &counts);
}

/* ---- building ---- */

/* What ffa_precompile looks at, set by a signal or a failure. */
static volatile sig_atomic_t stop;

static void on_signal(int number)
{
    (void)number;
    stop = FFA_PRECOMPILE_CUT;
}

static const int caught[] = { SIGINT, SIGTERM };

/* What was ignored stays so: 'nohup', a shell's '&'. */
static void signals_take(struct sigaction before[CLI_COUNT(caught)])
{
    struct sigaction action = { .sa_handler = on_signal };

    stop = 0;
    (void)sigemptyset(&action.sa_mask);
    for (int i = 0; i < CLI_COUNT(caught); i++) {
        (void)sigaction(caught[i], NULL, &before[i]);
        if (before[i].sa_handler != SIG_IGN)
            (void)sigaction(caught[i], &action, NULL);
    }
}

static void signals_give_back(const struct sigaction before[CLI_COUNT(caught)])
{
    for (int i = 0; i < CLI_COUNT(caught); i++)
        (void)sigaction(caught[i], &before[i], NULL);
}

/* What the machine lacks, it lacks for all kernels; a template that does not compile probably will
 * not with other values. A lost worker says nothing of the next kernel. */
static bool ends_session(const struct session *session, const struct item *item)
{
    return strcmp(item->reason, "environment") == 0 ||
           (strcmp(item->reason, "compile") == 0 && !session->options.keep_going);
}

static void on_event(void *user, const ffa_precompile_event *event)
{
    struct session *session = user;
    struct item *item = event->index < 0 ? NULL : session->queue[event->index];
    char text[640];

    if (item && event->status != FFA_OK) {
        if (event->log[0] && session->cli->verbose)
            (void)fprintf(stderr, "%s\n", event->log);
        note_failure(session, item, describe_failure(session, event, text, sizeof text), text);
        if (ends_session(session, item) && !stop)
            stop = FFA_PRECOMPILE_DRAIN;
    } else if (item) {
        set_state(session, item, event->info->layer == FFA_LAYER_COMPILED ? BUILT : HIT);
    }
    if (item)
        report_kernel(session, item, event->worker, event->info ? event->info->compile_us : 0);
    show_progress(session, event->busy);
}

/* The end of a session whose kernels were not all tried. */
static enum end end_of(const ffa_precompile_report *report)
{
    if (!report->unfinished)
        return END_ALL;
    return stop == FFA_PRECOMPILE_CUT ? END_INTERRUPTED : stop ? END_STOPPED : END_TIMED_OUT;
}

static ffa_status build(struct session *session, ffa_context *context, ffa_error *err)
{
    double spent_us = (double)(cli_clock_us() - session->started_us);
    double left_ms = session->options.deadline_s * 1e3 - spent_us / 1e3;
    ffa_precompile_report report = FFA_PRECOMPILE_REPORT_INIT;
    ffa_precompile_opts opts = FFA_PRECOMPILE_OPTS_INIT;
    ffa_compile_request *requests = calloc((size_t)session->queue_count + 1, sizeof *requests);
    struct sigaction before[CLI_COUNT(caught)];
    ffa_status rc;

    if (!requests)
        return cli_error(err, FFA_NOMEM, 0, "no memory for the queue");
    for (int64_t i = 0; i < session->queue_count; i++)
        requests[i] = session->queue[i]->wish->request;
    opts.threads = (uint32_t)session->jobs;
    if (session->options.deadline_s > 0)
        opts.deadline_ms = left_ms < 1 ? 1 : (int64_t)left_ms;
    opts.stop = &stop;
    opts.event = on_event;
    opts.user = session;
    opts.tick_ms = progress_tick_us(&session->progress) / 1000;
    session->build_started_us = cli_clock_us();
    signals_take(before);
    rc = ffa_precompile(context, requests, session->queue_count, &opts, &report, err);
    progress_clear(&session->progress);
    session->end = end_of(&report);
    signals_give_back(before);
    free(requests);
    return report.requested ? FFA_OK : rc;
}

/* A worker uses what it compiled even where the store refuses it: look whether it is there. */
static int64_t count_unstored(struct session *session)
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

/* ---- results ---- */

static bool has_failed_by(const struct session *session, const char *reason)
{
    for (int64_t i = 0; i < session->item_count; i++)
        if (session->items[i].state == FAILED && strcmp(session->items[i].reason, reason) == 0)
            return true;
    return false;
}

static int exit_status(const struct session *session, int64_t unstored)
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

static json_t *shard_object(const struct cli_shard *shard)
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

static json_t *result_object(const struct session *session, int status, double seconds)
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
    (void)json_object_set_new(object, "shard", shard_object(&session->shard));
    cli_set_text(object, "store", session->place.path);
    (void)json_object_set(object, "failures", session->failures);
    return object;
}

static void print_result(const struct session *session, double seconds)
{
    (void)printf("hit      %" PRId64 "\nbuilt    %" PRId64 "\nfailed   %" PRId64 "\n",
                 session->counts[HIT], session->counts[BUILT], session->counts[FAILED]);
    if (session->counts[WAITING])
        (void)printf("left     %" PRId64 "\n", session->counts[WAITING]);
    (void)printf("seconds  %.2f\nstore    %s\n", seconds,
                 session->place.path[0] ? session->place.path : "none");
}

/* Of the first kernel that did not compile: the command that shows all of its log. */
static void say_command(const struct session *session)
{
    const struct cli *cli = session->cli;
    const struct item *item = NULL;
    char command[512];
    size_t at;

    for (int64_t i = session->item_count - 1; i >= 0; i--)
        if (session->items[i].state == FAILED && strcmp(session->items[i].reason, "compile") == 0)
            item = &session->items[i];
    if (!item)
        return;
    at = (size_t)snprintf(command, sizeof command, "ffa compile %s",
                          item->wish->request.template_name);
    for (int64_t i = 0; i < item->wish->request.setting_count && at < sizeof command; i++)
        at += (size_t)snprintf(command + at, sizeof command - at, " %s", item->wish->settings[i]);
    cli_note(cli, "to see all of it: %s --arch %s%s%s%s%s", command, item->wish->request.arch,
             cli->templates ? " --templates " : "", cli->templates ? cli->templates : "",
             cli->nvrtc ? " --nvrtc " : "", cli->nvrtc ? cli->nvrtc : "");
}

static void say_end(const struct session *session, int64_t unstored)
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

static int finish(struct session *session)
{
    double seconds = (double)(cli_clock_us() - session->started_us) / 1e6;
    int64_t unstored = count_unstored(session);
    int status = exit_status(session, unstored);

    say_end(session, unstored);
    if (session->cli->json)
        return cli_print_json(session->cli, result_object(session, status, seconds), status);
    if (session->options.jsonl)
        emit(session, "end", result_object(session, status, seconds));
    else
        print_result(session, seconds);
    return status;
}

/* ---- --dry-run, and where compiling is forbidden ---- */

static int dry_run(const struct session *session)
{
    double seconds = estimate_seconds(session, session->queue_count);
    json_t *object, *kernels;

    if (!session->cli->json) {
        for (int64_t i = 0; i < session->item_count; i++)
            (void)printf("%-8s %s  %s\n", session->items[i].state == HIT ? "hit" : "build",
                         session->items[i].key, session->items[i].wish->text);
        (void)printf("hit      %" PRId64 "\nbuild    %" PRId64 "\n", session->counts[HIT],
                     session->queue_count);
        (void)printf("seconds  about %.1f: %.0f ms a kernel (%s), %" PRId64 " workers\n", seconds,
                     session->guess_ms,
                     session->guess_count ? "what those of the store took" : "a guess",
                     session->jobs);
        return CLI_DONE;
    }
    object = json_object();
    kernels = json_array();
    for (int64_t i = 0; i < session->item_count; i++) {
        json_t *kernel = json_object();

        set_wish(kernel, &session->items[i]);
        cli_set_text(kernel, "would", session->items[i].state == HIT ? "hit" : "build");
        (void)json_array_append_new(kernels, kernel);
    }
    cli_set_int(object, "total", session->item_count);
    cli_set_int(object, "hit", session->counts[HIT]);
    cli_set_int(object, "build", session->queue_count);
    cli_set_real(object, "estimate_seconds", seconds);
    cli_set_real(object, "estimate_ms_each", session->guess_ms);
    cli_set_text(object, "estimate_from", session->guess_count ? "store" : "guess");
    cli_set_int(object, "jobs", session->jobs);
    (void)json_object_set_new(object, "shard", shard_object(&session->shard));
    (void)json_object_set_new(object, "kernels", kernels);
    return cli_print_json(session->cli, object, CLI_DONE);
}

/* FFA_JIT=never: what is missing stays so, and is listed. */
static int refuse(struct session *session)
{
    int status;

    for (int64_t i = 0; i < session->queue_count; i++) {
        note_failure(session, session->queue[i], "never", "is in no layer, and FFA_JIT is never");
        report_kernel(session, session->queue[i], 0, 0);
    }
    status = finish(session);
    return status == CLI_FAILED ? CLI_NOT_FOUND : status;
}

/* ---- the session ---- */

static int prepare(struct session *session)
{
    ffa_context_info info = FFA_CONTEXT_INFO_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_context *context = NULL;
    int status = cli_open(session->cli, &context, FFA_DEVICE_CPU,
                          FFA_OPEN_CACHE_READONLY | FFA_OPEN_NEVER_COMPILE);

    if (status != CLI_PARSE_GO)
        return status;
    if (ffa_context_info_get(context, &info, &err) != FFA_OK ||
        (session->options.misses ? read_misses(session, context, &err)
                                 : read_set(session, info.arch, &err)) != FFA_OK ||
        take_share(session, context, &err) != FFA_OK || look_up(session, context, &err) != FFA_OK)
        status = cli_fail(session->cli, &err);
    ffa_close(context);
    return status;
}

/* The store must be there and take what is built before anything is. */
static int check_store(const struct session *session, ffa_context *context)
{
    ffa_context_info info = FFA_CONTEXT_INFO_INIT;
    ffa_error err = { FFA_OK, 0, "" };

    if (ffa_context_info_get(context, &info, &err) != FFA_OK)
        return cli_fail(session->cli, &err);
    if (strcmp(info.store_state, "ok") != 0)
        return cli_fail_text(session->cli, FFA_CACHE, "the store cannot be written: %s",
                             info.store_state);
    return CLI_PARSE_GO;
}

/* Returns with the workers gone, since closing the context waits for its threads. */
static int open_and_build(struct session *session)
{
    int64_t mib = session->memory_bytes >> 20;
    double timeout_ms = ceil(session->options.timeout_s * 1e3);
    const struct cli_workers workers = {
        .timeout_ms = (uint32_t)timeout_ms,
        .memory_mib = (uint32_t)(mib < MEMORY_MIB_MAX ? mib : MEMORY_MIB_MAX),
    };
    ffa_error err = { FFA_OK, 0, "" };
    ffa_context *context = NULL;
    int status = cli_open_with_workers(session->cli, &context, &workers);

    if (status != CLI_PARSE_GO)
        return status;
    status = check_store(session, context);
    if (status == CLI_PARSE_GO && build(session, context, &err) != FFA_OK)
        status = cli_fail(session->cli, &err);
    ffa_close(context);
    return status;
}

static int run(struct session *session)
{
    json_t *start = json_object();
    const char *bad;
    int status = CLI_PARSE_GO;

    cli_set_int(start, "total", session->item_count);
    cli_set_int(start, "hit", session->counts[HIT]);
    cli_set_int(start, "jobs", session->jobs);
    (void)json_object_set_new(start, "shard", shard_object(&session->shard));
    cli_set_text(start, "store", session->place.path);
    emit(session, "start", start);
    if (session->queue_count == 0)
        return finish(session);
    if (cli_never_compile(&bad))
        return refuse(session);
    status = open_and_build(session);
    return status == CLI_PARSE_GO ? finish(session) : status;
}

static void session_finish(struct session *session)
{
    for (int64_t i = 0; i < session->item_count; i++)
        free(session->items[i].message);
    free(session->items);
    free(session->queue);
    wishes_finish(&session->wishes);
    json_decref(session->failures);
}

int cmd_warm(struct cli *cli)
{
    struct session session = { .cli = cli,
                               .options = { .timeout_s = TIMEOUT_S },
                               .started_us = cli_clock_us() };
    struct warm_options *options = &session.options;
    const struct cli_option rows[] = {
        { "preset", CLI_TEXT, &options->preset, "NAME", "training, inference or all", 0, 0 },
        { "from-misses", CLI_TEXT, &options->misses, "STORE",
          "the misses noted in this store ('ffa cache misses')", 0, 0 },
        { "arch", CLI_TEXT, &options->archs, "A[,B]",
          "for these architectures; the manifest's, or sm_90a", 0, 0 },
        { "jobs", CLI_TEXT, &options->jobs, "N", "workers; auto: what cores and memory allow", 0,
          0 },
        { "mem-per-job", CLI_TEXT, &options->memory, "SIZE",
          "what a worker may take to compile: 2G", 0, 0 },
        { "timeout", CLI_REAL, &options->timeout_s, "SECONDS", "a kernel's, 300", 0, 0 },
        { "deadline", CLI_REAL, &options->deadline_s, "SECONDS",
          "the session's; 0: none. Exit status 124", 0, 0 },
        { "shard", CLI_TEXT, &options->shard, "I/N",
          "every Nth kernel from the Ith; the launcher's rank and size", 0, 0 },
        { "keep-going", CLI_FLAG, &options->keep_going, NULL,
          "go on after a kernel that does not compile", 0, 0 },
        { "dry-run", CLI_FLAG, &options->dry_run, NULL,
          "say what would be built, and about how long it would take", 0, 0 },
        { "resume", CLI_FLAG, &options->resume, NULL,
          "go on with an interrupted set; it does so anyway: what is stored is a hit", 0, 0 },
        CLI_BUNDLE_OPTION(cli),
        { "jsonl", CLI_FLAG, &options->jsonl, NULL, "print one JSON object an event", 0, 0 },
    };
    int status = cli_parse(cli, rows, CLI_COUNT(rows), 0, 1);

    if (status != CLI_PARSE_GO)
        return status;
    session.failures = json_array();
    progress_init(&session.progress, cli);
    status = check_options(cli, &session);
    if (status == CLI_PARSE_GO && session.shard.from[0] &&
        strcmp(session.shard.from, "--shard") != 0 && session.shard.count > 1)
        cli_note(cli, "share %lld of %lld, by %s; --shard 0/1 takes all",
                 (long long)session.shard.index, (long long)session.shard.count,
                 session.shard.from);
    if (status == CLI_PARSE_GO)
        status = prepare(&session);
    if (status == CLI_PARSE_GO) {
        if (session.queue_count || options->dry_run)
            estimate(&session);
        status = options->dry_run ? dry_run(&session) : run(&session);
    }
    session_finish(&session);
    return status;
}
