/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa warm: compile a set of kernels into a store, so that no job has to. Here: the options, and
 * what is asked of the layers. What the store answers is a hit and opens no compiler; the rest is
 * the queue, which warm_build.c builds. Invariant: a kernel is waiting, a hit, built or failed, and
 * the counts say how many are which.
 */
#include "cli/bundle_fit.h"
#include "cli/clock.h"
#include "cli/entries.h"
#include "cli/jobs.h"
#include "cli/warm.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What a worker may take: a forward kernel takes 0.8 s and 120 MiB. */
enum { TIMEOUT_S = 300, MEMORY_MIB = 2048, MEMORY_MIB_MIN = 32 };

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

static int read_jobs(const struct cli *cli, const struct warm_session *session, const char *text,
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

static int check_options(struct cli *cli, struct warm_session *session)
{
    const struct warm_options *options = &session->options;
    const char *bad;
    int status, sets;

    if (options->jsonl && cli->json)
        return cli_fail_text(cli, FFA_INVALID, "--json and --jsonl exclude each other");
    sets = (options->preset != NULL) + (options->misses != NULL) + (cli->argc != 0) +
           (options->specs.count != 0);
    if (sets != 1)
        return cli_fail_text(
            cli, FFA_INVALID, "%s: see 'ffa warm --help'",
            sets ? "a manifest, --preset, --spec and --from-misses exclude each other"
                 : "a manifest, --preset, --spec or --from-misses is missing");
    if (options->list && (options->jsonl || options->dry_run))
        return cli_fail_text(cli, FFA_INVALID, "--list and %s exclude each other",
                             options->jsonl ? "--jsonl" : "--dry-run");
    if (options->dry_run && options->jsonl)
        return cli_fail_text(cli, FFA_INVALID, "--dry-run and --jsonl exclude each other");
    if (options->misses && options->archs)
        return cli_fail_text(cli, FFA_INVALID,
                             "--arch and --from-misses exclude each other: a miss has its own");
    if (options->misses && options->device)
        return cli_fail_text(
            cli, FFA_INVALID,
            "--device and --from-misses exclude each other: a miss has its kernel");
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
    if (status == CLI_PARSE_GO && !session->place.path[0] && !options->dry_run && !options->list &&
        !cli_never_compile(&bad))
        status = cli_fail_text(cli, FFA_CACHE,
                               "there is no store to warm: see 'ffa cache path --explain'");
    return status;
}

/* ---- looking up ---- */

/* Which items the layers answer: all is checked that a later look-up checks. */
static ffa_status look_up(struct warm_session *session, ffa_context *context, ffa_error *err)
{
    session->counts[WAITING] = session->item_count;
    for (int64_t i = 0; i < session->item_count; i++) {
        struct warm_item *item = &session->items[i];
        ffa_compiled *compiled = NULL;
        ffa_status rc = ffa_compile(&compiled, context, &item->kernel->request, err);

        ffa_compiled_destroy(compiled);
        if (rc == FFA_OK)
            warm_set_state(session, item, HIT);
        else if (rc == FFA_NOT_FOUND)
            session->queue[session->queue_count++] = item;
        else
            return rc;
    }
    return FFA_OK;
}

/* ---- --list, --dry-run, and where compiling is forbidden ---- */

/* What the set has, whatever any store holds. */
static int list(const struct warm_session *session)
{
    json_t *object, *kernels;

    if (!session->cli->json) {
        for (int64_t i = 0; i < session->item_count; i++)
            cli_line(stdout, "%s  %s", session->items[i].key, session->items[i].kernel->text);
        return CLI_DONE;
    }
    object = json_object();
    kernels = json_array();
    for (int64_t i = 0; i < session->item_count; i++) {
        json_t *kernel = json_object();

        warm_set_kernel(kernel, &session->items[i]);
        (void)json_array_append_new(kernels, kernel);
    }
    cli_set_int(object, "total", session->item_count);
    (void)json_object_set_new(object, "shard", warm_shard_object(&session->shard));
    (void)json_object_set_new(object, "kernels", kernels);
    return cli_print_json(session->cli, object, CLI_DONE);
}

static int dry_run(const struct warm_session *session)
{
    double seconds = warm_estimate_seconds(session, session->queue_count);
    json_t *object, *kernels;

    if (!session->cli->json) {
        for (int64_t i = 0; i < session->item_count; i++)
            cli_line(stdout, "%-8s %s  %s", session->items[i].state == HIT ? "hit" : "build",
                     session->items[i].key, session->items[i].kernel->text);
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

        warm_set_kernel(kernel, &session->items[i]);
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
    (void)json_object_set_new(object, "shard", warm_shard_object(&session->shard));
    (void)json_object_set_new(object, "kernels", kernels);
    return cli_print_json(session->cli, object, CLI_DONE);
}

/* Bundles in use that are another version's: why kernels are missing, perhaps. */
static void say_other_versions(const struct cli *cli)
{
    struct cli_bundles bundles;

    if (cli_find_bundles(cli, &bundles) != CLI_PARSE_GO)
        return;
    for (int i = 0; i < bundles.list.count; i++) {
        ffa_cache *bundle = NULL;

        if (entries_open_file(&bundle, bundles.list.at[i], NULL) == FFA_OK)
            (void)bundle_check_fit_of(cli, bundles.list.at[i], bundle);
        ffa_cache_close(bundle);
    }
}

/* FFA_JIT=never: what is missing stays so, and is listed. */
static int refuse(struct warm_session *session)
{
    int status;

    for (int64_t i = 0; i < session->queue_count; i++) {
        warm_note_failure(session, session->queue[i], "never",
                          "is in no layer, and FFA_JIT is never");
        warm_report_kernel(session, session->queue[i], 0, 0);
    }
    status = warm_finish(session);
    say_other_versions(session->cli);
    if (access(session->place.path, W_OK) == 0)
        cli_note(session->cli, "what is missing is noted: 'ffa warm --from-misses %s' builds it",
                 session->place.path);
    return status == CLI_FAILED ? CLI_NOT_FOUND : status;
}

/* ---- the session ---- */

static int prepare(struct warm_session *session)
{
    const struct warm_options *options = &session->options;
    ffa_context_info info = FFA_CONTEXT_INFO_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_context *context = NULL;
    const char *bad;
    /* What is missing is noted as missed where it will not be built. */
    const bool notes = !options->dry_run && !options->list && cli_never_compile(&bad);
    int status = cli_open(session->cli, &context, FFA_DEVICE_CPU,
                          FFA_OPEN_NEVER_COMPILE | (notes ? 0 : (uint32_t)FFA_OPEN_CACHE_READONLY));

    if (status != CLI_PARSE_GO)
        return status;
    if (ffa_context_info_get(context, &info, &err) != FFA_OK ||
        warm_read_set(session, context, info.arch, &err) != FFA_OK ||
        warm_take_shard(session, context, &err) != FFA_OK ||
        (!options->list && look_up(session, context, &err) != FFA_OK))
        status = cli_fail(session->cli, &err);
    ffa_close(context);
    return status;
}

static int run(struct warm_session *session)
{
    json_t *start = json_object();
    const char *bad;
    int status = CLI_PARSE_GO;

    cli_set_int(start, "total", session->item_count);
    cli_set_int(start, "hit", session->counts[HIT]);
    cli_set_int(start, "jobs", session->jobs);
    (void)json_object_set_new(start, "shard", warm_shard_object(&session->shard));
    cli_set_text(start, "store", session->place.path);
    warm_emit(session, "start", start);
    if (session->queue_count == 0)
        return warm_finish(session);
    if (cli_never_compile(&bad))
        return refuse(session);
    status = warm_build(session);
    return status == CLI_PARSE_GO ? warm_finish(session) : status;
}

static void session_finish(struct warm_session *session)
{
    for (int64_t i = 0; i < session->item_count; i++)
        free(session->items[i].message);
    free(session->items);
    free(session->queue);
    manifest_finish(&session->manifest);
    json_decref(session->failures);
}

int cmd_warm(struct cli *cli)
{
    struct warm_session session = { .cli = cli,
                                    .options = { .timeout_s = TIMEOUT_S },
                                    .started_us = cli_clock_us() };
    struct warm_options *options = &session.options;
    const struct cli_option rows[] = {
        { "preset", CLI_TEXT, &options->preset, "NAME",
          "training, inference, all, or a model of either such as gqa-128 or mla", 0, 0 },
        { "spec", CLI_LIST, &options->specs, "SPEC",
          "the kernels of head_dim=128,dtype=bf16,pack=8,backward; repeatable", 0, 0 },
        { "from-misses", CLI_TEXT, &options->misses, "STORE",
          "the misses noted in this store ('ffa cache misses')", 0, 0 },
        { "arch", CLI_TEXT, &options->archs, "A[,B]",
          "for these architectures; the manifest's, or sm_90a", 0, 0 },
        { "device", CLI_TEXT, &options->device, "MODEL",
          "specs' kernels by the cost table of this device model; by all tables there are", 0, 0 },
        { "jobs", CLI_TEXT, &options->jobs, "N", "workers; auto: what cores and memory allow", 0,
          0 },
        { "mem-per-job", CLI_TEXT, &options->memory, "SIZE",
          "what a worker may take to compile: 2G", 0, 0 },
        { "timeout", CLI_REAL, &options->timeout_s, "SECONDS", "a kernel's, 300", 0, 0 },
        { "deadline", CLI_REAL, &options->deadline_s, "SECONDS",
          "the session's; 0: none. Exit status 124", 0, 0 },
        { "shard", CLI_TEXT, &options->shard, "I/N",
          "shard I of N of the set; auto: the launcher's rank and size", 0, 0 },
        { "keep-going", CLI_FLAG, &options->keep_going, NULL,
          "go on after a kernel that does not compile", 0, 0 },
        { "dry-run", CLI_FLAG, &options->dry_run, NULL,
          "say what would be built, and about how long it would take", 0, 0 },
        { "list", CLI_FLAG, &options->list, NULL, "say what the set has, and look into no store", 0,
          0 },
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
    if (status == CLI_PARSE_GO)
        status = prepare(&session);
    if (status == CLI_PARSE_GO && options->list) {
        status = list(&session);
    } else if (status == CLI_PARSE_GO) {
        if (session.queue_count || options->dry_run)
            warm_estimate(&session);
        status = options->dry_run ? dry_run(&session) : run(&session);
    }
    session_finish(&session);
    return status;
}
