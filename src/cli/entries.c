/* SPDX-License-Identifier: Apache-2.0
 *
 * What the commands that look into stores and bundles share: open one, list its entries.
 *
 * One visitor serves every listing. It appends to a JSON array where there is one, and prints to
 * stdout where there is none: a row of a table, whose header comes before the first row, or all
 * facts of the entry.
 */
#include "cli/entries.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* ---- opening ---- */

ffa_status entries_open_path(const struct cli *cli, ffa_cache **out, const char *path,
                             uint32_t flags, ffa_error *err)
{
    return ffa_cache_open(out, path,
                          flags | (cli->shared ? (uint32_t)FFA_CACHE_GROUP : 0) |
                              (cli->network ? (uint32_t)FFA_CACHE_NETWORK : 0),
                          err);
}

int entries_open_store(const struct cli *cli, ffa_cache **out, uint32_t flags)
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
    if (entries_open_path(cli, out, place.path, flags, &err) == FFA_OK)
        return CLI_PARSE_GO;
    if (err.status == FFA_NOT_FOUND) {
        cli_note(cli, "no store at %s yet", place.path);
        return CLI_PARSE_GO;
    }
    return cli_fail(cli, &err);
}

ffa_status entries_open_file(ffa_cache **out, const char *path, ffa_error *err)
{
    return ffa_cache_open(out, path, FFA_CACHE_READONLY | FFA_CACHE_FOLLOW_LINKS, err);
}

/* ---- entries ---- */

void entry_time(char out[32], int64_t unix_s)
{
    time_t when = (time_t)unix_s;
    struct tm utc;

    if (!gmtime_r(&when, &utc) || strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", &utc) == 0)
        (void)snprintf(out, 32, "%" PRId64, unix_s);
}

void entry_set_time(json_t *object, const char *key, int64_t unix_s)
{
    char when[32];

    entry_time(when, unix_s);
    cli_set_text(object, key, when);
}

json_t *entry_object(const ffa_cache_entry *entry)
{
    json_t *object = json_object();

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
    entry_set_time(object, "created", entry->created_s);
    entry_set_time(object, "used", entry->used_s);
    cli_set_text(object, "record", entry->record);
    return object;
}

void entry_settings(char *out, size_t size, const ffa_cache_entry *entry)
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

static void print_row(const struct entry_list *list, const ffa_cache_entry *entry)
{
    char settings[256];

    if (list->count == 0)
        (void)printf("%-32s %-18s %-7s %4s %5s %7s %6s  %s\n", "KEY", "TEMPLATE", "ARCH", "REGS",
                     "SPILL", "CUBIN", "MS", "SETTINGS");
    entry_settings(settings, sizeof settings, entry);
    cli_line(stdout, "%-32s %-18s %-7s %4d %5d %7" PRId64 " %6.0f  %s", entry->key,
             entry->template_name, entry->arch, entry->registers, entry->spill_bytes,
             entry->cubin_bytes, (double)entry->compile_us / 1e3, settings);
}

static void print_entry(const ffa_cache_entry *entry)
{
    char created[32];
    char used[32];

    entry_time(created, entry->created_s);
    entry_time(used, entry->used_s);
    cli_line(stdout, "key           %s", entry->key);
    cli_line(stdout, "template      %s for %s", entry->template_name, entry->arch);
    cli_line(stdout, "toolchain     %s", entry->toolchain);
    (void)printf("threads       %d\nregisters     %d\nshared bytes  %d\nspill bytes   %d\n",
                 entry->threads, entry->registers, entry->shared_bytes, entry->spill_bytes);
    (void)printf("advisories    %d\ncubin bytes   %" PRId64 "\n", entry->advisory_count,
                 entry->cubin_bytes);
    cli_line(stdout, "cubin digest  %s", entry->digest);
    (void)printf("compile ms    %.1f\ncreated       %s\nused          %s\nrecord\n",
                 (double)entry->compile_us / 1e3, created, used);
    for (const char *line = entry->record; *line;) {
        size_t bytes = strcspn(line, "\n");

        cli_line(stdout, "  %.*s", (int)bytes, line);
        line += bytes + (line[bytes] == '\n');
    }
}

int entry_list_add(struct entry_list *list, json_t *object)
{
    (void)json_array_append_new(list->array, object);
    list->count++;
    return 0;
}

int entry_list_visit(void *user, const ffa_cache_entry *entry)
{
    struct entry_list *list = user;

    if (list->array)
        return entry_list_add(list, entry_object(entry));
    if (list->is_long)
        print_entry(entry);
    else
        print_row(list, entry);
    list->count++;
    return 0;
}

int entry_list_finish(const struct cli *cli, struct entry_list *list, const char *name,
                      ffa_status rc, const ffa_error *err)
{
    json_t *object;

    if (rc != FFA_OK) {
        json_decref(list->array);
        return cli_fail(cli, err);
    }
    if (!list->array)
        return CLI_DONE;
    object = json_object();
    (void)json_object_set_new(object, name, list->array);
    return cli_print_json(cli, object, CLI_DONE);
}

int entries_print_removed(const struct cli *cli, int64_t removed)
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

int entries_visit_bad(void *user, const ffa_cache_entry *entry)
{
    json_t *bad = user;

    cli_line(stderr, "bad: %s (%s)", entry->key, entry->toolchain);
    (void)json_array_append_new(bad, json_string(entry->key));
    return 0;
}
