/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa cache path|ls|show|stats|verify|rm|clear: inspect the kernel store and remove from it.
 *
 * A store that does not exist yet reads as an empty one: the handle is then NULL, and every command
 * here reports zeros instead of failing. Only rm and clear open the store for writing.
 */
#include "cli/cli.h"
#include "cli/entries.h"
#include "cli/file.h"
#include "cli/rebuild.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { KEY_DIGITS = 32 };

/* ---- path ---- */

int cmd_cache_path(struct cli *cli)
{
    struct cli_place place;
    bool wants_explain = false;
    const struct cli_option options[] = {
        { "explain", CLI_FLAG, &wants_explain, NULL, "say why each place was chosen or skipped", 0,
          0 },
    };
    int status = cli_parse(cli, options, CLI_COUNT(options), 0, 0);

    if (status == CLI_PARSE_GO)
        status = cli_find_place(cli, &place);
    if (status != CLI_PARSE_GO)
        return status;
    if (cli->json) {
        json_t *object = json_object();
        json_t *lines = json_array();

        for (int i = 0; i < place.explain_count; i++)
            (void)json_array_append_new(lines, json_string(place.explain[i]));
        cli_set_text(object, "path", place.path);
        cli_set_text(object, "chosen_by", place.chosen_by);
        (void)json_object_set_new(object, "explain", lines);
        return cli_print_json(cli, object, CLI_DONE);
    }
    (void)printf("%s\n", place.path[0] ? place.path : "none");
    for (int i = 0; wants_explain && i < place.explain_count; i++)
        cli_line(stdout, "  %s", place.explain[i]);
    return CLI_DONE;
}

/* ---- entries ---- */

int cmd_cache_ls(struct cli *cli)
{
    struct entry_list list = { 0 };
    ffa_error err = { FFA_OK, 0, "" };
    ffa_cache *cache = NULL;
    ffa_status rc = FFA_OK;
    int status = cli_parse(cli, NULL, 0, 0, 0);

    if (status == CLI_PARSE_GO)
        status = entries_open_store(cli, &cache, FFA_CACHE_READONLY);
    if (status != CLI_PARSE_GO)
        return status;
    list.array = cli->json ? json_array() : NULL;
    if (cache)
        rc = ffa_cache_list(cache, NULL, entry_list_visit, &list, &err);
    status = entry_list_finish(cli, &list, "entries", rc, &err);
    ffa_cache_close(cache);
    return status;
}

static ffa_status write_cubin(ffa_cache *cache, const char *key, const char *path, ffa_error *err)
{
    void *cubin = NULL;
    size_t bytes = 0;
    ffa_status rc = ffa_cache_cubin(cache, key, NULL, &cubin, &bytes, err);

    if (rc == FFA_OK)
        rc = file_write(path, cubin, bytes, err);
    ffa_free(cubin);
    return rc;
}

int cmd_cache_show(struct cli *cli)
{
    struct entry_list list = { .is_long = true };
    ffa_error err = { FFA_OK, 0, "" };
    const char *cubin = NULL;
    ffa_cache *cache = NULL;
    ffa_status rc;
    const struct cli_option options[] = {
        { "cubin", CLI_TEXT, &cubin, "FILE", "write the cubin to FILE; KEY must be whole", 0, 0 },
    };
    int status = cli_parse(cli, options, CLI_COUNT(options), 1, 1);

    if (status == CLI_PARSE_GO && !cli->argv[0][0])
        status = cli_fail_text(cli, FFA_INVALID, "KEY is empty; 'ffa cache ls' lists all entries");
    if (status == CLI_PARSE_GO && cubin && strlen(cli->argv[0]) != KEY_DIGITS)
        status = cli_fail_text(cli, FFA_INVALID,
                               "KEY is '%s', not %d digits: --cubin needs the whole key",
                               cli->argv[0], KEY_DIGITS);
    if (status == CLI_PARSE_GO)
        status = entries_open_store(cli, &cache, FFA_CACHE_READONLY);
    if (status != CLI_PARSE_GO)
        return status;
    if (!cache)
        return cli_fail_text(cli, FFA_NOT_FOUND, "no entry's key starts with '%s'", cli->argv[0]);
    list.array = cli->json ? json_array() : NULL;
    rc = ffa_cache_list(cache, cli->argv[0], entry_list_visit, &list, &err);
    if (rc == FFA_OK && cubin)
        rc = write_cubin(cache, cli->argv[0], cubin, &err);
    status = entry_list_finish(cli, &list, "entries", rc, &err);
    ffa_cache_close(cache);
    return status;
}

/* ---- the whole store ---- */

static void add_counters(json_t *object, const ffa_cache_counters *counters)
{
    json_t *hits = json_object();

    cli_set_int(hits, "table", (int64_t)counters->hits_table);
    cli_set_int(hits, "store", (int64_t)counters->hits_store);
    cli_set_int(hits, "bundle", (int64_t)counters->hits_bundle);
    cli_set_int(object, "sessions", (int64_t)counters->sessions);
    (void)json_object_set_new(object, "hits", hits);
    cli_set_int(object, "misses", (int64_t)counters->misses);
    cli_set_int(object, "compiles", (int64_t)counters->compiles);
    cli_set_int(object, "failures", (int64_t)counters->compile_fails);
    cli_set_real(object, "ms_spent", (double)counters->compile_us / 1e3);
    cli_set_real(object, "ms_saved", (double)counters->saved_us / 1e3);
}

/* The failures and misses that the store lists now. The counters of the same names are totals over
 * the store's life. */
static json_t *noted_object(const ffa_cache_stats *stats)
{
    json_t *object = json_object();

    cli_set_int(object, "failures", stats->failures);
    cli_set_int(object, "misses", stats->misses);
    return object;
}

static int print_stats(const struct cli *cli, const ffa_cache_stats *stats,
                       const ffa_cache_counters *counters)
{
    if (cli->json) {
        json_t *object = json_object();

        cli_set_int(object, "schema", stats->schema);
        cli_set_int(object, "kernels", stats->kernels);
        cli_set_int(object, "blobs", stats->blobs);
        cli_set_int(object, "blob_bytes", stats->blob_bytes);
        cli_set_int(object, "file_bytes", stats->file_bytes);
        cli_set_int(object, "free_bytes", stats->free_bytes);
        cli_set_real(object, "compile_ms", (double)stats->compile_us / 1e3);
        cli_set_int(object, "oldest", stats->oldest_s);
        cli_set_int(object, "newest", stats->newest_s);
        cli_set_int(object, "bytes", stats->file_bytes - stats->free_bytes);
        add_counters(object, counters);
        (void)json_object_set_new(object, "noted", noted_object(stats));
        return cli_print_json(cli, object, CLI_DONE);
    }
    (void)printf("schema       %d\nkernels      %" PRId64 "\nblobs        %" PRId64 "\n",
                 stats->schema, stats->kernels, stats->blobs);
    (void)printf("blob bytes   %" PRId64 "\nfile bytes   %" PRId64 "\nfree bytes   %" PRId64 "\n",
                 stats->blob_bytes, stats->file_bytes, stats->free_bytes);
    (void)printf("compile ms   %.1f\n", (double)stats->compile_us / 1e3);
    (void)printf("sessions     %" PRIu64 "\nhits         %" PRIu64 " table, %" PRIu64
                 " store, %" PRIu64 " bundle\nmisses       %" PRIu64 "\n",
                 counters->sessions, counters->hits_table, counters->hits_store,
                 counters->hits_bundle, counters->misses);
    (void)printf("compiles     %" PRIu64 ", %" PRIu64
                 " failed\nms spent     %.1f\nms saved     %.1f\n",
                 counters->compiles, counters->compile_fails, (double)counters->compile_us / 1e3,
                 (double)counters->saved_us / 1e3);
    (void)printf("noted        %" PRId64 " misses, %" PRId64 " failures\n", stats->misses,
                 stats->failures);
    return CLI_DONE;
}

int cmd_cache_stats(struct cli *cli)
{
    ffa_cache_counters counters = FFA_CACHE_COUNTERS_INIT;
    ffa_cache_stats stats = FFA_CACHE_STATS_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_cache *cache = NULL;
    int status = cli_parse(cli, NULL, 0, 0, 0);

    if (status == CLI_PARSE_GO)
        status = entries_open_store(cli, &cache, FFA_CACHE_READONLY);
    if (status != CLI_PARSE_GO)
        return status;
    if (cache && (ffa_cache_stats_get(cache, &stats, &err) != FFA_OK ||
                  ffa_cache_counters_get(cache, &counters, &err) != FFA_OK))
        status = cli_fail(cli, &err);
    else
        status = print_stats(cli, &stats, &counters);
    ffa_cache_close(cache);
    return status;
}

static json_t *rebuild_object(const struct rebuild *rebuild)
{
    json_t *object = json_object();

    cli_set_int(object, "percent", rebuild->percent);
    cli_set_int(object, "seed", rebuild->seed);
    cli_set_int(object, "same", rebuild->same);
    cli_set_int(object, "different", rebuild->different);
    cli_set_int(object, "failed", rebuild->failed);
    cli_set_int(object, "other_templates", rebuild->other_templates);
    cli_set_int(object, "other_toolchains", rebuild->other_toolchains);
    (void)json_object_set(object, "different_keys", rebuild->different_keys);
    return object;
}

static void print_rebuild(const struct rebuild *rebuild)
{
    (void)printf("rebuilt  %" PRId64 ": %" PRId64 " the same, %" PRId64 " different, %" PRId64
                 " failed\n",
                 rebuild->same + rebuild->different + rebuild->failed, rebuild->same,
                 rebuild->different, rebuild->failed);
    (void)printf("skipped  %" PRId64 " of another template text, %" PRId64
                 " of another toolchain\n",
                 rebuild->other_templates, rebuild->other_toolchains);
}

static int print_verdict(const struct cli *cli, const ffa_cache_verdict *verdict, json_t *bad,
                         const struct rebuild *rebuild)
{
    int status = verdict->bad || rebuild->different ? CLI_STORE
                 : rebuild->failed                  ? CLI_FAILED
                                                    : CLI_DONE;
    json_t *object;

    if (!cli->json) {
        (void)printf("checked  %" PRId64 "\nbad      %" PRId64 "\n", verdict->checked,
                     verdict->bad);
        if (rebuild->percent)
            print_rebuild(rebuild);
        return status;
    }
    object = json_object();
    cli_set_int(object, "checked", verdict->checked);
    cli_set_int(object, "bad", verdict->bad);
    (void)json_object_set(object, "bad_keys", bad);
    if (rebuild->percent)
        (void)json_object_set_new(object, "rebuild", rebuild_object(rebuild));
    return cli_print_json(cli, object, status);
}

static int verify(const struct cli *cli, ffa_cache *cache, struct rebuild *rebuild, json_t *bad)
{
    ffa_cache_verdict verdict = FFA_CACHE_VERDICT_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    int status = CLI_PARSE_GO;

    if (cache && ffa_cache_verify(cache, &verdict, entries_visit_bad, bad, &err) != FFA_OK)
        return cli_fail(cli, &err);
    if (cache && rebuild->percent)
        status = rebuild_run(cli, cache, rebuild);
    return status == CLI_PARSE_GO ? print_verdict(cli, &verdict, bad, rebuild) : status;
}

int cmd_cache_verify(struct cli *cli)
{
    struct rebuild rebuild = { 0 };
    const char *percent = NULL;
    ffa_cache *cache = NULL;
    json_t *bad;
    const struct cli_option rows[] = {
        { "rebuild", CLI_TEXT, &percent, "N%", "compile N% of the entries again and compare", 0,
          0 },
        { "seed", CLI_INT, &rebuild.seed, "N", "choose the entries by this seed; default: 0", 0,
          INT64_MAX },
    };
    int status = cli_parse(cli, rows, CLI_COUNT(rows), 0, 0);

    if (status == CLI_PARSE_GO && percent && !rebuild_read_percent(percent, &rebuild.percent))
        status =
            cli_fail_text(cli, FFA_INVALID,
                          "--rebuild is '%s', not a share in [1%%, 100%%], such as 10%%", percent);
    if (status == CLI_PARSE_GO)
        status = entries_open_store(cli, &cache, FFA_CACHE_READONLY);
    if (status != CLI_PARSE_GO)
        return status;
    bad = json_array();
    rebuild.different_keys = json_array();
    status = verify(cli, cache, &rebuild, bad);
    json_decref(bad);
    json_decref(rebuild.different_keys);
    ffa_cache_close(cache);
    return status;
}

/* Those whose keys start with `prefix`; NULL: all. */
static int remove_entries(struct cli *cli, const char *prefix)
{
    ffa_error err = { FFA_OK, 0, "" };
    ffa_cache *cache = NULL;
    int64_t removed = 0;
    ffa_status rc = FFA_OK;
    int status = entries_open_store(cli, &cache, 0);

    if (status != CLI_PARSE_GO)
        return status;
    if (!cache && prefix)
        return cli_fail_text(cli, FFA_NOT_FOUND, "no entry's key starts with '%s'", prefix);
    if (cache)
        rc = prefix ? ffa_cache_remove(cache, prefix, &removed, &err)
                    : ffa_cache_clear(cache, &removed, &err);
    status = rc == FFA_OK ? entries_print_removed(cli, removed) : cli_fail(cli, &err);
    ffa_cache_close(cache);
    return status;
}

int cmd_cache_rm(struct cli *cli)
{
    const int status = cli_parse(cli, NULL, 0, 1, 1);

    return status == CLI_PARSE_GO ? remove_entries(cli, cli->argv[0]) : status;
}

int cmd_cache_clear(struct cli *cli)
{
    const int status = cli_parse(cli, NULL, 0, 0, 0);

    return status == CLI_PARSE_GO ? remove_entries(cli, NULL) : status;
}
