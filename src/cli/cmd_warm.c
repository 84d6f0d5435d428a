/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa warm: compile a set of kernels into a store, so that no job has to. Here: the options, the
 * set and the shard of it. What the store answers is a hit and opens no compiler; the rest is the
 * queue, which warm_build.c builds. Invariant: a kernel is waiting, a hit, built or failed, and the
 * counts say how many are which.
 *
 * A shard of the set (--shard) is every Nth of its distinct kernels in the order of the manifest,
 * whatever any store holds: shards of equal manifests are disjoint and cover the whole.
 */
#include "cli/cmd_misses.h"
#include "cli/file.h"
#include "cli/jobs.h"
#include "cli/warm.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

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
static ffa_status read_misses(struct warm_session *session, ffa_context *context, ffa_error *err)
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
    rc = misses_read(&session->manifest, context, path, &account, err);
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

static ffa_status read_set(struct warm_session *session, const char *arch, ffa_error *err)
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
        rc = manifest_read(&session->manifest, name, text, bytes, options->archs, arch, err);
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

/* The distinct kernels of the manifest; of these, our shard. */
static ffa_status take_shard(struct warm_session *session, ffa_context *context, ffa_error *err)
{
    const struct manifest *manifest = &session->manifest;
    size_t room = (size_t)(manifest->count ? manifest->count : 1);
    struct keyed *keyed = calloc(room, sizeof *keyed);
    int64_t distinct = 0;
    ffa_status rc = FFA_OK;

    session->items = calloc(room, sizeof *session->items);
    session->queue = calloc(room, sizeof(struct warm_item *));
    if (!keyed || !session->items || !session->queue)
        rc = cli_error(err, FFA_NOMEM, 0, "no memory for %lld kernels", (long long)manifest->count);
    for (int64_t i = 0; i < manifest->count && rc == FFA_OK; i++) {
        keyed[i].at = i;
        rc = ffa_compile_key(context, &manifest->at[i]->request, keyed[i].key, NULL, err);
    }
    if (rc != FFA_OK)
        goto out;
    qsort(keyed, (size_t)manifest->count, sizeof *keyed, by_key);
    for (int64_t i = 0; i < manifest->count; i++)
        if (distinct == 0 || strcmp(keyed[distinct - 1].key, keyed[i].key) != 0)
            keyed[distinct++] = keyed[i];
    qsort(keyed, (size_t)distinct, sizeof *keyed, by_place);
    for (int64_t i = session->shard.index; i < distinct; i += session->shard.count) {
        struct warm_item *item = &session->items[session->item_count++];

        item->kernel = manifest->at[keyed[i].at];
        (void)snprintf(item->key, sizeof item->key, "%s", keyed[i].key);
    }
out:
    free(keyed);
    return rc;
}

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

/* ---- --dry-run, and where compiling is forbidden ---- */

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
    return status == CLI_FAILED ? CLI_NOT_FOUND : status;
}

/* ---- the session ---- */

static int prepare(struct warm_session *session)
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
        take_shard(session, context, &err) != FFA_OK || look_up(session, context, &err) != FFA_OK)
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
        cli_note(cli, "shard %lld of %lld, by %s; --shard 0/1 takes all",
                 (long long)session.shard.index, (long long)session.shard.count,
                 session.shard.from);
    if (status == CLI_PARSE_GO)
        status = prepare(&session);
    if (status == CLI_PARSE_GO) {
        if (session.queue_count || options->dry_run)
            warm_estimate(&session);
        status = options->dry_run ? dry_run(&session) : run(&session);
    }
    session_finish(&session);
    return status;
}
