/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa cache path|ls|show|stats|verify|rm|clear: looking after the kernel store.
 *
 * A store that is not there yet is an empty one.
 */
#include "cli/cli.h"
#include "cli/file.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* ---- path ---- */

int cmd_cache_path(struct cli *cli)
{
    struct cli_place place;
    bool wants_explain = false;
    const struct cli_option options[] = {
        { "explain", CLI_FLAG, &wants_explain, NULL, "say why, candidate by candidate", 0, 0 },
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
        (void)printf("  %s\n", place.explain[i]);
    return CLI_DONE;
}

/* ---- opening ---- */

/* Open the store: CLI_PARSE_GO with *out set, or NULL where there is none yet; else the status. */
static int open_store(const struct cli *cli, ffa_cache **out, uint32_t flags)
{
    ffa_error err = { FFA_OK, 0, "" };
    struct cli_place place;
    int status = cli_find_place(cli, &place);

    *out = NULL;
    if (status != CLI_PARSE_GO)
        return status;
    if (!place.path[0])
        return cli_fail_text(cli, FFA_CACHE,
                             "there is no store, kernels are kept in memory: see 'ffa cache path "
                             "--explain'");
    if (ffa_cache_open(out, place.path, flags, &err) == FFA_OK)
        return CLI_PARSE_GO;
    if (err.status == FFA_NOT_FOUND) {
        cli_note(cli, "no store at %s yet", place.path);
        return CLI_PARSE_GO;
    }
    return cli_fail(cli, &err);
}

/* ---- entries ---- */

static void time_text(char out[32], int64_t unix_s)
{
    time_t when = (time_t)unix_s;
    struct tm utc;

    if (!gmtime_r(&when, &utc) || strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", &utc) == 0)
        (void)snprintf(out, 32, "%" PRId64, unix_s);
}

static json_t *entry_object(const ffa_cache_entry *entry)
{
    json_t *object = json_object();
    char when[32];

    cli_set_text(object, "key", entry->key);
    cli_set_text(object, "template", entry->template_name);
    cli_set_text(object, "arch", entry->arch);
    cli_set_text(object, "toolchain", entry->toolchain);
    cli_set_text(object, "digest", entry->digest);
    cli_set_int(object, "registers", entry->registers);
    cli_set_int(object, "threads", entry->threads);
    cli_set_int(object, "shared_bytes", entry->shared_bytes);
    cli_set_int(object, "spill_bytes", entry->spill_bytes);
    cli_set_int(object, "advisories", entry->advisory_count);
    cli_set_int(object, "cubin_bytes", entry->cubin_bytes);
    cli_set_real(object, "compile_ms", (double)entry->compile_us / 1e3);
    time_text(when, entry->created_s);
    cli_set_text(object, "created", when);
    time_text(when, entry->used_s);
    cli_set_text(object, "used", when);
    cli_set_text(object, "record", entry->record);
    return object;
}

/* The values of the template's spec rows in a record, such as "head_dim=128 dtype=1". */
static void settings_text(char *out, size_t size, const ffa_cache_entry *entry)
{
    ffa_spec_row row;
    size_t used = 0;

    out[0] = '\0';
    for (int32_t t = 0; t < ffa_template_count(); t++) {
        if (strcmp(ffa_template_name(t), entry->template_name) != 0)
            continue;
        for (int32_t r = 0; ffa_template_row(t, r, &row) && used < size; r++) {
            char wanted[64];
            const char *at;

            (void)snprintf(wanted, sizeof wanted, "\nspec.%s=", row.name);
            at = strstr(entry->record, wanted);
            if (at)
                used += (size_t)snprintf(out + used, size - used, "%s%.*s", used ? " " : "",
                                         (int)strcspn(at + 6, "\n"), at + 6);
        }
    }
}

/* What a listing collects: an array, or lines. */
struct listing {
    json_t *array; /* NULL: print */
    int64_t count;
    bool is_long;
};

static void print_row(const struct listing *listing, const ffa_cache_entry *entry)
{
    char settings[256];

    if (listing->count == 0)
        (void)printf("%-32s %-18s %-7s %4s %5s %7s %6s  %s\n", "KEY", "TEMPLATE", "ARCH", "REGS",
                     "SPILL", "CUBIN", "MS", "SETTINGS");
    settings_text(settings, sizeof settings, entry);
    (void)printf("%-32s %-18s %-7s %4d %5d %7" PRId64 " %6.0f  %s\n", entry->key,
                 entry->template_name, entry->arch, entry->registers, entry->spill_bytes,
                 entry->cubin_bytes, (double)entry->compile_us / 1e3, settings);
}

static void print_entry(const ffa_cache_entry *entry)
{
    char created[32];
    char used[32];

    time_text(created, entry->created_s);
    time_text(used, entry->used_s);
    (void)printf("key           %s\ntemplate      %s for %s\ntoolchain     %s\n", entry->key,
                 entry->template_name, entry->arch, entry->toolchain);
    (void)printf("threads       %d\nregisters     %d\nshared bytes  %d\nspill bytes   %d\n",
                 entry->threads, entry->registers, entry->shared_bytes, entry->spill_bytes);
    (void)printf("advisories    %d\ncubin bytes   %" PRId64 "\ncubin digest  %s\n",
                 entry->advisory_count, entry->cubin_bytes, entry->digest);
    (void)printf("compile ms    %.1f\ncreated       %s\nused          %s\nrecord\n",
                 (double)entry->compile_us / 1e3, created, used);
    for (const char *line = entry->record; *line;) {
        size_t bytes = strcspn(line, "\n");

        (void)printf("  %.*s\n", (int)bytes, line);
        line += bytes + (line[bytes] == '\n');
    }
}

static int visit_entry(void *user, const ffa_cache_entry *entry)
{
    struct listing *listing = user;

    if (listing->array)
        (void)json_array_append_new(listing->array, entry_object(entry));
    else if (listing->is_long)
        print_entry(entry);
    else
        print_row(listing, entry);
    listing->count++;
    return 0;
}

static int finish_listing(const struct cli *cli, struct listing *listing, const char *name,
                          int status)
{
    json_t *object;

    if (!listing->array)
        return status;
    object = json_object();
    (void)json_object_set_new(object, name, listing->array);
    return cli_print_json(cli, object, status);
}

int cmd_cache_ls(struct cli *cli)
{
    struct listing listing = { 0 };
    ffa_error err = { FFA_OK, 0, "" };
    ffa_cache *cache = NULL;
    int status = cli_parse(cli, NULL, 0, 0, 0);

    if (status == CLI_PARSE_GO)
        status = open_store(cli, &cache, FFA_CACHE_READONLY);
    if (status != CLI_PARSE_GO)
        return status;
    listing.array = cli->json ? json_array() : NULL;
    if (cache && ffa_cache_list(cache, NULL, visit_entry, &listing, &err) != FFA_OK) {
        json_decref(listing.array);
        status = cli_fail(cli, &err);
    } else {
        status = finish_listing(cli, &listing, "entries", CLI_DONE);
    }
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
    struct listing listing = { .is_long = true };
    ffa_error err = { FFA_OK, 0, "" };
    const char *cubin = NULL;
    ffa_cache *cache = NULL;
    const struct cli_option options[] = {
        { "cubin", CLI_TEXT, &cubin, "FILE", "write the cubin to FILE; KEY must be whole", 0, 0 },
    };
    int status = cli_parse(cli, options, CLI_COUNT(options), 1, 1);

    if (status == CLI_PARSE_GO)
        status = open_store(cli, &cache, FFA_CACHE_READONLY);
    if (status != CLI_PARSE_GO)
        return status;
    if (!cache)
        return cli_fail_text(cli, FFA_NOT_FOUND, "no entry's key starts with '%s'", cli->argv[0]);
    listing.array = cli->json ? json_array() : NULL;
    if (ffa_cache_list(cache, cli->argv[0], visit_entry, &listing, &err) != FFA_OK ||
        (cubin && write_cubin(cache, cli->argv[0], cubin, &err) != FFA_OK)) {
        json_decref(listing.array);
        status = cli_fail(cli, &err);
    } else {
        status = finish_listing(cli, &listing, "entries", CLI_DONE);
    }
    ffa_cache_close(cache);
    return status;
}

/* ---- the whole store ---- */

static int print_stats(const struct cli *cli, const ffa_cache_stats *stats)
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
        return cli_print_json(cli, object, CLI_DONE);
    }
    (void)printf("schema       %d\nkernels      %" PRId64 "\nblobs        %" PRId64 "\n",
                 stats->schema, stats->kernels, stats->blobs);
    (void)printf("blob bytes   %" PRId64 "\nfile bytes   %" PRId64 "\nfree bytes   %" PRId64 "\n",
                 stats->blob_bytes, stats->file_bytes, stats->free_bytes);
    (void)printf("compile ms   %.1f\n", (double)stats->compile_us / 1e3);
    return CLI_DONE;
}

int cmd_cache_stats(struct cli *cli)
{
    ffa_cache_stats stats = FFA_CACHE_STATS_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_cache *cache = NULL;
    int status = cli_parse(cli, NULL, 0, 0, 0);

    if (status == CLI_PARSE_GO)
        status = open_store(cli, &cache, FFA_CACHE_READONLY);
    if (status != CLI_PARSE_GO)
        return status;
    status = cache && ffa_cache_stats_get(cache, &stats, &err) != FFA_OK ? cli_fail(cli, &err)
                                                                         : print_stats(cli, &stats);
    ffa_cache_close(cache);
    return status;
}

/* The keys of bad entries, as they are found. */
static int visit_bad(void *user, const ffa_cache_entry *entry)
{
    json_t *bad = user;

    (void)fprintf(stderr, "bad: %s (%s)\n", entry->key, entry->toolchain);
    (void)json_array_append_new(bad, json_string(entry->key));
    return 0;
}

int cmd_cache_verify(struct cli *cli)
{
    ffa_cache_verdict verdict = { 0 };
    ffa_error err = { FFA_OK, 0, "" };
    ffa_cache *cache = NULL;
    json_t *bad;
    int status = cli_parse(cli, NULL, 0, 0, 0);

    if (status == CLI_PARSE_GO)
        status = open_store(cli, &cache, FFA_CACHE_READONLY);
    if (status != CLI_PARSE_GO)
        return status;
    bad = json_array();
    if (cache && ffa_cache_verify(cache, &verdict, visit_bad, bad, &err) != FFA_OK) {
        status = cli_fail(cli, &err);
    } else if (cli->json) {
        json_t *object = json_object();

        cli_set_int(object, "checked", verdict.checked);
        cli_set_int(object, "bad", verdict.bad);
        (void)json_object_set(object, "bad_keys", bad);
        status = cli_print_json(cli, object, verdict.bad ? CLI_STORE : CLI_DONE);
    } else {
        (void)printf("checked  %" PRId64 "\nbad      %" PRId64 "\n", verdict.checked, verdict.bad);
        status = verdict.bad ? CLI_STORE : CLI_DONE;
    }
    json_decref(bad);
    ffa_cache_close(cache);
    return status;
}

static int print_removed(const struct cli *cli, int64_t removed)
{
    json_t *object;

    if (!cli->json) {
        (void)printf("removed  %" PRId64 "\n", removed);
        return CLI_DONE;
    }
    object = json_object();
    cli_set_int(object, "removed", removed);
    return cli_print_json(cli, object, CLI_DONE);
}

int cmd_cache_rm(struct cli *cli)
{
    ffa_error err = { FFA_OK, 0, "" };
    ffa_cache *cache = NULL;
    int64_t removed = 0;
    int status = cli_parse(cli, NULL, 0, 1, 1);

    if (status == CLI_PARSE_GO)
        status = open_store(cli, &cache, 0);
    if (status != CLI_PARSE_GO)
        return status;
    if (!cache)
        return cli_fail_text(cli, FFA_NOT_FOUND, "no entry's key starts with '%s'", cli->argv[0]);
    status = ffa_cache_remove(cache, cli->argv[0], &removed, &err) == FFA_OK
                 ? print_removed(cli, removed)
                 : cli_fail(cli, &err);
    ffa_cache_close(cache);
    return status;
}

int cmd_cache_clear(struct cli *cli)
{
    ffa_error err = { FFA_OK, 0, "" };
    ffa_cache *cache = NULL;
    int64_t removed = 0;
    int status = cli_parse(cli, NULL, 0, 0, 0);

    if (status == CLI_PARSE_GO)
        status = open_store(cli, &cache, 0);
    if (status != CLI_PARSE_GO)
        return status;
    status = cache && ffa_cache_clear(cache, &removed, &err) != FFA_OK
                 ? cli_fail(cli, &err)
                 : print_removed(cli, removed);
    ffa_cache_close(cache);
    return status;
}
