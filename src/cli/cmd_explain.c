/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa explain: which layer has a kernel, and if none, why. Compiles nothing and writes nothing.
 *
 * A key is a hash of its record, so two keys differ exactly where their records do. Where no layer
 * has the key, the entry of the store whose record differs in the fewest lines is the nearest one,
 * and those lines are the explanation.
 */
#include "cli/entries.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINES_MAX = 128 };

/* A line that differs between two records: `here` in the requested one, `there` in the other. */
struct difference {
    char name[96];
    char here[64], there[64]; /* empty: that record has no such line */
};

struct nearest {
    char *key, *toolchain, *record; /* NULL: the store has no entry */
    int distance;                   /* lines that differ */
};

struct findings {
    const struct cli *cli;
    const ffa_compile_request *request;
    char arch[16];
    char key[33];
    char *record;
    ffa_kernel_info info; /* layer NONE: a miss */
    struct cli_place place;
    struct nearest nearest;
    char failed_at[32]; /* when it failed to compile; empty: no failure is noted */
    char failed_message[256];
};

/* ---- records ---- */

/* A line's name and value. A record may have several lines "option=...", so there the whole line is
 * the name. */
struct line {
    const char *name, *value;
    size_t name_bytes, value_bytes;
};

static const char *next_line(const char *at, struct line *out)
{
    size_t bytes = strcspn(at, "\n");
    const char *equals = memchr(at, '=', bytes);

    *out = (struct line){ .name = at, .name_bytes = bytes, .value = "" };
    if (equals && strncmp(at, "option=", 7) != 0) {
        out->name_bytes = (size_t)(equals - at);
        out->value = equals + 1;
        out->value_bytes = bytes - out->name_bytes - 1;
    }
    return at[bytes] ? at + bytes + 1 : at + bytes;
}

static bool find_line(const char *record, const struct line *wanted, struct line *out)
{
    while (*record) {
        record = next_line(record, out);
        if (out->name_bytes == wanted->name_bytes &&
            memcmp(out->name, wanted->name, wanted->name_bytes) == 0)
            return true;
    }
    return false;
}

static void put_value(char out[64], const struct line *line)
{
    (void)snprintf(out, 64, "%.*s", (int)(line->value_bytes ? line->value_bytes : 3),
                   line->value_bytes ? line->value : "set");
}

/* Append to `out` (NULL: only count) the lines of `one` that differ in `other`, from index `count`
 * on; returns the new count. `is_here`: `one` is the requested record, and lines count that are
 * absent from `other` or have another value there. Otherwise only absent lines count, so that two
 * calls with the records exchanged count each difference once. */
static int differ(const char *one, const char *other, bool is_here, struct difference *out,
                  int count)
{
    struct line line, same;

    while (*one && count < LINES_MAX) {
        bool is_there;

        one = next_line(one, &line);
        is_there = find_line(other, &line, &same);
        if (is_there && (!is_here || (same.value_bytes == line.value_bytes &&
                                      memcmp(same.value, line.value, line.value_bytes) == 0)))
            continue;
        if (out) {
            struct difference *found = &out[count];

            *found = (struct difference){ .here = "" };
            (void)snprintf(found->name, sizeof found->name, "%.*s", (int)line.name_bytes,
                           line.name);
            put_value(is_here ? found->here : found->there, &line);
            if (is_there)
                put_value(found->there, &same);
        }
        count++;
    }
    return count;
}

static int differences(const char *here, const char *there, struct difference *out)
{
    return differ(there, here, false, out, differ(here, there, true, out, 0));
}

/* ---- looking ---- */

static void nearest_finish(struct nearest *nearest)
{
    free(nearest->key);
    free(nearest->toolchain);
    free(nearest->record);
    *nearest = (struct nearest){ 0 };
}

/* Keep the nearest entry. Entries come newest first, and of equally near ones the first stays. */
static int visit_entry(void *user, const ffa_cache_entry *entry)
{
    struct findings *found = user;
    struct nearest *nearest = &found->nearest;
    int distance = differences(found->record, entry->record, NULL);

    if (nearest->key && distance >= nearest->distance)
        return 0;
    nearest_finish(nearest);
    nearest->key = strdup(entry->key);
    nearest->toolchain = strdup(entry->toolchain);
    nearest->record = strdup(entry->record);
    nearest->distance = distance;
    if (nearest->key && nearest->toolchain && nearest->record)
        return 0;
    nearest_finish(nearest);
    return 1;
}

static int visit_failure(void *user, const ffa_cache_failure *failure)
{
    struct findings *found = user;

    if (strcmp(failure->key, found->key) != 0)
        return 0;
    entry_time(found->failed_at, failure->failed_s);
    (void)snprintf(found->failed_message, sizeof found->failed_message, "%s", failure->message);
    return 1;
}

/* Find the nearest entry and a noted failure in the store. A store that cannot be read is noted on
 * stderr. */
static void look_further(struct findings *found)
{
    ffa_error err = { FFA_OK, 0, "" };
    ffa_cache *cache = NULL;

    if (!found->place.path[0])
        return;
    if (entries_open_path(found->cli, &cache, found->place.path, FFA_CACHE_READONLY, &err) ==
        FFA_OK)
        if (ffa_cache_list(cache, NULL, visit_entry, found, &err) == FFA_OK)
            (void)ffa_cache_list_failures(cache, visit_failure, found, &err);
    if (err.status != FFA_OK && err.status != FFA_NOT_FOUND)
        cli_note(found->cli, "%s", err.message);
    ffa_cache_close(cache);
}

static ffa_status look_up(struct findings *found, ffa_context *context, ffa_error *err)
{
    ffa_context_info info = FFA_CONTEXT_INFO_INIT;
    ffa_compiled *compiled = NULL;
    ffa_status rc = ffa_context_info_get(context, &info, err);

    if (rc == FFA_OK)
        rc = ffa_compile_key(context, found->request, found->key, &found->record, err);
    if (rc != FFA_OK)
        return rc;
    (void)snprintf(found->arch, sizeof found->arch, "%s",
                   found->request->arch ? found->request->arch : info.arch);
    rc = ffa_compile(&compiled, context, found->request, err);
    if (rc == FFA_OK)
        rc = ffa_compiled_info(compiled, &found->info, err);
    ffa_compiled_destroy(compiled);
    if (rc == FFA_NOT_FOUND) {
        look_further(found);
        return FFA_OK;
    }
    return rc;
}

/* ---- saying ---- */

/* Where a row's value comes from: given in the request, the default, or chosen by the library. */
static const char *set_by(const struct findings *found, const ffa_spec_row *row)
{
    size_t bytes = strlen(row->name);

    for (int64_t i = 0; i < found->request->setting_count; i++)
        if (strncmp(found->request->settings[i], row->name, bytes) == 0 &&
            found->request->settings[i][bytes] == '=')
            return "given";
    return row->initial < row->min ? "chosen" : "default";
}

/* The row's value in the record. */
static int64_t value_of(const struct findings *found, const ffa_spec_row *row)
{
    char name[80];
    struct line wanted = { .name = name }, line;

    (void)snprintf(name, sizeof name, "spec.%s", row->name);
    wanted.name_bytes = strlen(name);
    return find_line(found->record, &wanted, &line) ? strtoll(line.value, NULL, 10) : 0;
}

static int32_t template_index(const struct findings *found)
{
    for (int32_t i = 0; i < ffa_template_count(); i++)
        if (strcmp(ffa_template_name(i), found->request->template_name) == 0)
            return i;
    return -1;
}

static const char *without_answer(void)
{
    const char *bad;

    return cli_never_compile(&bad) ? "nothing, and FFA_JIT=never forbids compiling it"
                                   : "nothing: it would be compiled";
}

static json_t *failed_object(const struct findings *found)
{
    json_t *object;

    if (!found->failed_at[0])
        return json_null();
    object = json_object();
    cli_set_text(object, "when", found->failed_at);
    cli_set_text(object, "message", found->failed_message);
    return object;
}

static json_t *nearest_object(const struct findings *found, const struct difference *list,
                              int count)
{
    json_t *object, *lines;

    if (!found->nearest.key)
        return json_null();
    object = json_object();
    lines = json_array();
    for (int i = 0; i < count; i++) {
        json_t *line = json_object();

        cli_set_text(line, "line", list[i].name);
        (void)json_object_set_new(line, "here",
                                  list[i].here[0] ? json_string(list[i].here) : json_null());
        (void)json_object_set_new(line, "there",
                                  list[i].there[0] ? json_string(list[i].there) : json_null());
        (void)json_array_append_new(lines, line);
    }
    cli_set_text(object, "key", found->nearest.key);
    cli_set_text(object, "toolchain", found->nearest.toolchain);
    (void)json_object_set_new(object, "differs", lines);
    return object;
}

static int print_object(const struct findings *found, const struct difference *list, int count)
{
    json_t *object = json_object();
    json_t *settings = json_array();
    ffa_spec_row row;

    for (int32_t r = 0; ffa_template_row(template_index(found), r, &row); r++) {
        json_t *setting = json_object();

        cli_set_text(setting, "name", row.name);
        cli_set_int(setting, "value", value_of(found, &row));
        cli_set_text(setting, "by", set_by(found, &row));
        (void)json_array_append_new(settings, setting);
    }
    cli_set_text(object, "template", found->request->template_name);
    cli_set_text(object, "arch", found->arch);
    cli_set_text(object, "key", found->key);
    (void)json_object_set_new(object, "settings", settings);
    cli_set_text(object, "layer", ffa_layer_text(found->info.layer));
    cli_set_text(object, "toolchain", found->info.toolchain);
    cli_set_text(object, "store", found->place.path);
    (void)json_object_set_new(object, "nearest", nearest_object(found, list, count));
    (void)json_object_set_new(object, "failed", failed_object(found));
    cli_set_text(object, "record", found->record);
    return cli_print_json(found->cli, object, CLI_DONE);
}

static int print_text(const struct findings *found, const struct difference *list, int count)
{
    ffa_spec_row row;

    (void)printf("template   %s for %s\nkey        %s\n", found->request->template_name,
                 found->arch, found->key);
    for (int32_t r = 0; ffa_template_row(template_index(found), r, &row); r++)
        (void)printf("%-10s %-6" PRId64 " %s\n", row.name, value_of(found, &row),
                     set_by(found, &row));
    if (found->info.layer != FFA_LAYER_NONE) {
        cli_line(stdout, "answers    the %s, with what %s built", ffa_layer_text(found->info.layer),
                 found->info.toolchain);
        return CLI_DONE;
    }
    (void)printf("answers    %s\n", without_answer());
    if (found->failed_at[0])
        cli_line(stdout, "failed     %s: %s", found->failed_at, found->failed_message);
    if (!found->nearest.key) {
        (void)printf("nearest    none: %s\n",
                     found->place.path[0] ? "the store is empty" : "there is no store");
        return CLI_DONE;
    }
    cli_line(stdout, "nearest    %s by %s, %d %s", found->nearest.key, found->nearest.toolchain,
             count, count == 1 ? "difference" : "differences");
    for (int i = 0; i < count; i++)
        cli_line(stdout, "  %-26s %s here, %s there", list[i].name,
                 list[i].here[0] ? list[i].here : "none",
                 list[i].there[0] ? list[i].there : "none");
    return CLI_DONE;
}

static int report(const struct findings *found)
{
    struct difference *list = calloc(LINES_MAX, sizeof *list);
    int count = 0;
    int status;

    if (!list)
        return cli_fail_text(found->cli, FFA_NOMEM, "no memory for the differences");
    if (found->nearest.key)
        count = differences(found->record, found->nearest.record, list);
    status = found->cli->json ? print_object(found, list, count) : print_text(found, list, count);
    free(list);
    return status;
}

int cmd_explain(struct cli *cli)
{
    ffa_compile_request request = FFA_COMPILE_REQUEST_INIT;
    struct findings found = { .cli = cli, .request = &request, .info = FFA_KERNEL_INFO_INIT };
    ffa_error err = { FFA_OK, 0, "" };
    ffa_context *context = NULL;
    const struct cli_option rows[] = {
        { "arch", CLI_TEXT, &request.arch, "ARCH",
          "look up for ARCH; default: the device's, or sm_90a", 0, 0 },
        CLI_BUNDLE_OPTION(cli),
    };
    int status = cli_parse(cli, rows, CLI_COUNT(rows), 1, 1000);

    if (status == CLI_PARSE_GO)
        status = cli_find_place(cli, &found.place);
    if (status == CLI_PARSE_GO)
        status = cli_open(cli, &context, request.arch ? FFA_DEVICE_CPU : FFA_DEVICE_AUTO,
                          FFA_OPEN_CACHE_READONLY | FFA_OPEN_NEVER_COMPILE);
    if (status != CLI_PARSE_GO)
        return status;
    request.template_name = cli->argv[0];
    request.settings = (const char *const *)(cli->argv + 1);
    request.setting_count = cli->argc - 1;
    status = look_up(&found, context, &err) == FFA_OK ? report(&found) : cli_fail(cli, &err);
    nearest_finish(&found.nearest);
    ffa_free(found.record);
    ffa_close(context);
    return status;
}
