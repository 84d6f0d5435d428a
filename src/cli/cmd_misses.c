/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa cache misses|failures: list or remove the notes of a store; and the misses of a store as a
 * set of kernels for ffa warm.
 *
 * A miss is noted with its record, which has the value of every spec row, the chosen ones included.
 * A request made from a record is therefore the kernel that was missed, unless the text of the
 * template has changed since: then the key is another one, and the account says so.
 */
#include "cli/cmd_misses.h"

#include "cli/entries.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- as a set for ffa warm ---- */

/* The spec lines of a record, "spec.head_dim=128", are the settings of the request. */
static json_t *json_of(const ffa_cache_miss *miss)
{
    json_t *object = json_object(), *settings = json_array();

    for (const char *line = miss->record; *line;) {
        size_t bytes = strcspn(line, "\n");

        /* A line "spec.head_dim=128" is the setting "head_dim=128". */
        if (strncmp(line, "spec.", 5) == 0)
            (void)json_array_append_new(settings, json_stringn(line + 5, bytes - 5));
        line += bytes + (line[bytes] == '\n');
    }
    cli_set_text(object, "template", miss->template_name);
    (void)json_object_set_new(object, "settings", settings);
    cli_set_text(object, "arch", miss->arch);
    return object;
}

struct reading {
    struct manifest *manifest;
    ffa_context *context;
    struct misses_account *account;
    ffa_status rc;
    ffa_error *err;
};

static int take_miss(void *user, const ffa_cache_miss *miss)
{
    struct reading *reading = user;
    ffa_error ignored = { FFA_OK, 0, "" };
    char key[33];

    reading->account->noted++;
    reading->rc = manifest_add(reading->manifest, json_of(miss), reading->err);
    if (reading->rc != FFA_OK)
        return 1;
    if (ffa_compile_key(reading->context,
                        &reading->manifest->at[reading->manifest->count - 1]->request, key, NULL,
                        &ignored) != FFA_OK) {
        manifest_drop_last(reading->manifest);
        reading->account->foreign++;
    } else if (strcmp(key, miss->key) != 0) {
        reading->account->edited++;
    }
    return 0;
}

ffa_status misses_read(struct manifest *out, ffa_context *context, const char *path,
                       struct misses_account *account, ffa_error *err)
{
    struct reading reading = {
        .manifest = out, .context = context, .account = account, .err = err
    };
    ffa_cache *cache;
    ffa_status rc = entries_open_file(&cache, path, err);

    *account = (struct misses_account){ 0 };
    if (rc == FFA_OK)
        rc = ffa_cache_list_misses(cache, take_miss, &reading, err);
    ffa_cache_close(cache);
    return rc == FFA_OK ? reading.rc : rc;
}

/* ---- as a list ---- */

static void settings_of(char *out, size_t size, const char *template_name, const char *record)
{
    entry_settings(out, size,
                   &(ffa_cache_entry){ .template_name = template_name, .record = record });
}

static json_t *miss_object(const ffa_cache_miss *miss)
{
    json_t *object = json_object();

    cli_set_text(object, "key", miss->key);
    cli_set_text(object, "template", miss->template_name);
    cli_set_text(object, "arch", miss->arch);
    cli_set_int(object, "noted", miss->noted);
    entry_set_time(object, "first", miss->first_s);
    entry_set_time(object, "last", miss->last_s);
    cli_set_text(object, "record", miss->record);
    return object;
}

static int list_miss(void *user, const ffa_cache_miss *miss)
{
    struct entry_list *list = user;
    char last[32], settings[256];

    if (list->array)
        return entry_list_add(list, miss_object(miss));
    if (list->count++ == 0)
        (void)printf("%-32s %-18s %-7s %5s %-20s  %s\n", "KEY", "TEMPLATE", "ARCH", "NOTED", "LAST",
                     "SETTINGS");
    entry_time(last, miss->last_s);
    settings_of(settings, sizeof settings, miss->template_name, miss->record);
    cli_line(stdout, "%-32s %-18s %-7s %5" PRId64 " %-20s  %s", miss->key, miss->template_name,
             miss->arch, miss->noted, last, settings);
    return 0;
}

static json_t *failure_object(const ffa_cache_failure *failure)
{
    json_t *object = json_object();

    cli_set_text(object, "key", failure->key);
    cli_set_text(object, "toolchain", failure->toolchain);
    cli_set_text(object, "template", failure->template_name);
    cli_set_text(object, "arch", failure->arch);
    entry_set_time(object, "failed", failure->failed_s);
    cli_set_text(object, "message", failure->message);
    cli_set_text(object, "log", failure->log);
    cli_set_text(object, "record", failure->record);
    return object;
}

static int list_failure(void *user, const ffa_cache_failure *failure)
{
    struct entry_list *list = user;
    char when[32];

    if (list->array)
        return entry_list_add(list, failure_object(failure));
    if (list->count++ == 0)
        (void)printf("%-32s %-7s %-20s  %s\n", "KEY", "ARCH", "FAILED", "MESSAGE");
    entry_time(when, failure->failed_s);
    cli_line(stdout, "%-32s %-7s %-20s  %s", failure->key, failure->arch, when, failure->message);
    return 0;
}

/* Remove all notes of a kind and print how many there were. */
static int forget(const struct cli *cli, ffa_cache *cache, uint32_t what)
{
    ffa_error err = { FFA_OK, 0, "" };
    int64_t removed = 0;

    if (cache && ffa_cache_forget(cache, what, &removed, &err) != FFA_OK)
        return cli_fail(cli, &err);
    return entries_print_removed(cli, removed);
}

static int list_notes(const struct cli *cli, ffa_cache *cache, uint32_t what, const char *name)
{
    struct entry_list list = { .array = cli->json ? json_array() : NULL };
    ffa_error err = { FFA_OK, 0, "" };
    ffa_status rc = !cache ? FFA_OK
                    : what == FFA_CACHE_MISSES
                        ? ffa_cache_list_misses(cache, list_miss, &list, &err)
                        : ffa_cache_list_failures(cache, list_failure, &list, &err);

    return entry_list_finish(cli, &list, name, rc, &err);
}

static int notes(struct cli *cli, uint32_t what, const char *name)
{
    bool wants_forget = false;
    ffa_cache *cache = NULL;
    const struct cli_option rows[] = {
        { "forget", CLI_FLAG, &wants_forget, NULL, "remove these notes", 0, 0 },
    };
    int status = cli_parse(cli, rows, CLI_COUNT(rows), 0, 0);

    if (status == CLI_PARSE_GO)
        status = entries_open_store(cli, &cache, wants_forget ? 0 : FFA_CACHE_READONLY);
    if (status != CLI_PARSE_GO)
        return status;
    status = wants_forget ? forget(cli, cache, what) : list_notes(cli, cache, what, name);
    ffa_cache_close(cache);
    return status;
}

int cmd_cache_misses(struct cli *cli)
{
    return notes(cli, FFA_CACHE_MISSES, "misses");
}

int cmd_cache_failures(struct cli *cli)
{
    return notes(cli, FFA_CACHE_FAILURES, "failures");
}
