/* SPDX-License-Identifier: Apache-2.0
 *
 * An entry's record holds its request: the lines spec.<row>=<value> are its settings. It can be
 * rebuilt where these still lead to its key, which covers the template's text, and by the toolchain
 * that built it. Which toolchain is here shows with the first compile.
 */
#include "cli/rebuild.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SETTINGS_MAX = 64 };

/* An entry that leads to its own key. */
struct candidate {
    char *key, *toolchain, *template_name, *arch, *record;
    uint64_t rank; /* the sample are those of the lowest */
};

struct candidates {
    struct candidate *at;
    size_t count, capacity;
    ffa_error *err;
    uint64_t seed;
};

bool rebuild_read_percent(const char *text, int64_t *out)
{
    char *end = NULL;

    errno = 0;
    *out = strtoll(text, &end, 10);
    return end != text && errno == 0 && (end[0] == '\0' || strcmp(end, "%") == 0) && *out >= 1 &&
           *out <= 100;
}

/* ---- the entries ---- */

/* FNV-1a, then mixed. */
static uint64_t rank_of(uint64_t seed, const char *key)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325) ^ (seed * UINT64_C(0x9e3779b97f4a7c15));

    for (; *key; key++)
        hash = (hash ^ (unsigned char)*key) * UINT64_C(0x100000001b3);
    hash = (hash ^ (hash >> 33)) * UINT64_C(0xff51afd7ed558ccd);
    return hash ^ (hash >> 33);
}

static void candidate_finish(struct candidate *candidate)
{
    free(candidate->key);
    free(candidate->toolchain);
    free(candidate->template_name);
    free(candidate->arch);
    free(candidate->record);
}

static void candidates_finish(struct candidates *list)
{
    for (size_t i = 0; i < list->count; i++)
        candidate_finish(&list->at[i]);
    free(list->at);
}

static int keep(void *user, const ffa_cache_entry *entry)
{
    struct candidates *list = user;
    struct candidate *candidate;

    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? 2 * list->capacity : 64;
        void *grown = realloc(list->at, capacity * sizeof *list->at);

        if (!grown)
            return list->err->status = FFA_NOMEM;
        list->at = grown;
        list->capacity = capacity;
    }
    candidate = &list->at[list->count++];
    *candidate =
        (struct candidate){ strdup(entry->key),           strdup(entry->toolchain),
                            strdup(entry->template_name), strdup(entry->arch),
                            strdup(entry->record),        rank_of(list->seed, entry->key) };
    if (!candidate->key || !candidate->toolchain || !candidate->template_name || !candidate->arch ||
        !candidate->record)
        return list->err->status = FFA_NOMEM;
    return 0;
}

static int by_rank(const void *a, const void *b)
{
    const struct candidate *x = a;
    const struct candidate *y = b;
    int order = strcmp(x->key, y->key);

    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    return order ? order : strcmp(x->toolchain, y->toolchain);
}

/* ---- from a record back to the request ---- */

struct request {
    ffa_compile_request request;
    const char *settings[SETTINGS_MAX]; /* into `text` */
    char *text;
};

static bool request_init(struct request *out, const struct candidate *candidate)
{
    static const char prefix[] = "spec.";

    *out =
        (struct request){ .request = FFA_COMPILE_REQUEST_INIT, .text = strdup(candidate->record) };
    if (!out->text)
        return false;
    for (char *line = out->text, *next; line; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        if (strncmp(line, prefix, strlen(prefix)) == 0 && out->request.setting_count < SETTINGS_MAX)
            out->settings[out->request.setting_count++] = line + strlen(prefix);
    }
    out->request.template_name = candidate->template_name;
    out->request.arch = candidate->arch;
    out->request.settings = out->settings;
    out->request.flags = FFA_COMPILE_FORCE;
    return true;
}

static bool leads_to_its_key(ffa_context *context, const struct candidate *candidate)
{
    struct request request;
    char key[33] = "";
    bool leads = request_init(&request, candidate) &&
                 ffa_compile_key(context, &request.request, key, NULL, NULL) == FFA_OK &&
                 strcmp(key, candidate->key) == 0;

    free(request.text);
    return leads;
}

/* ---- comparing ---- */

static ffa_status compare(ffa_cache *cache, const struct candidate *candidate,
                          const ffa_compiled *compiled, bool *same, ffa_error *err)
{
    size_t built_bytes = 0;
    const void *built = ffa_compiled_cubin(compiled, &built_bytes);
    size_t stored_bytes = 0;
    void *stored = NULL;
    ffa_status rc =
        ffa_cache_cubin(cache, candidate->key, candidate->toolchain, &stored, &stored_bytes, err);

    *same = rc == FFA_OK && built_bytes == stored_bytes && memcmp(built, stored, built_bytes) == 0;
    ffa_free(stored);
    return rc == FFA_CACHE ? FFA_OK : rc; /* one that is damaged is not the same, either */
}

/* Compile one; `toolchain` receives what did. Fails with what would fail for all others, too. */
static ffa_status try_one(const struct cli *cli, ffa_cache *cache, ffa_context *context,
                          const struct candidate *candidate, struct rebuild *rebuild,
                          char toolchain[64], ffa_error *err)
{
    ffa_kernel_info info = FFA_KERNEL_INFO_INIT;
    ffa_compiled *compiled = NULL;
    struct request request;
    bool same = false;
    ffa_status rc = request_init(&request, candidate) ? FFA_OK : (err->status = FFA_NOMEM);

    if (rc == FFA_OK)
        rc = ffa_compile(&compiled, context, &request.request, err);
    if (rc == FFA_COMPILE) {
        cli_note(cli, "%s does not compile: %s", candidate->key, err->message);
        rebuild->failed++;
        rc = FFA_OK;
        goto out;
    }
    if (rc == FFA_OK)
        rc = ffa_compiled_info(compiled, &info, err);
    if (rc != FFA_OK)
        goto out;
    (void)snprintf(toolchain, 64, "%s", info.toolchain);
    if (strcmp(info.toolchain, candidate->toolchain) != 0)
        goto out; /* the first only: then it is known which ones to leave out */
    rc = compare(cache, candidate, compiled, &same, err);
    if (rc != FFA_OK)
        goto out;
    if (same) {
        rebuild->same++;
    } else {
        cli_line(stderr, "different: %s (%s)", candidate->key, candidate->toolchain);
        (void)json_array_append_new(rebuild->different_keys, json_string(candidate->key));
        rebuild->different++;
    }
out:
    ffa_compiled_destroy(compiled);
    free(request.text);
    return rc;
}

/* How many of this toolchain make the sample. */
static int64_t goal_of(const struct candidates *list, const char *toolchain,
                       struct rebuild *rebuild)
{
    int64_t count = 0;

    for (size_t i = 0; i < list->count; i++)
        count += strcmp(list->at[i].toolchain, toolchain) == 0;
    rebuild->other_toolchains = (int64_t)list->count - count;
    return (count * rebuild->percent + 99) / 100;
}

static ffa_status try_sample(const struct cli *cli, ffa_cache *cache, ffa_context *context,
                             const struct candidates *list, struct rebuild *rebuild, ffa_error *err)
{
    char toolchain[64] = "";
    int64_t goal = INT64_MAX;
    ffa_status rc = FFA_OK;

    for (size_t i = 0; i < list->count && rc == FFA_OK; i++) {
        if (rebuild->same + rebuild->different + rebuild->failed >= goal)
            break;
        if (toolchain[0] && strcmp(list->at[i].toolchain, toolchain) != 0)
            continue;
        rc = try_one(cli, cache, context, &list->at[i], rebuild, toolchain, err);
        if (toolchain[0])
            goal = goal_of(list, toolchain, rebuild);
    }
    return rc;
}

int rebuild_run(const struct cli *cli, ffa_cache *cache, struct rebuild *rebuild)
{
    ffa_error err = { FFA_OK, 0, "out of memory" };
    struct candidates list = { .err = &err, .seed = (uint64_t)rebuild->seed };
    ffa_context *context = NULL;
    size_t kept = 0;
    int status = cli_open(cli, &context, FFA_DEVICE_CPU, FFA_OPEN_CACHE_READONLY);

    if (status != CLI_PARSE_GO)
        return status;
    if (ffa_cache_list(cache, NULL, keep, &list, &err) != FFA_OK || err.status != FFA_OK)
        goto failed;
    for (size_t i = 0; i < list.count; i++) {
        if (leads_to_its_key(context, &list.at[i])) {
            list.at[kept++] = list.at[i];
        } else {
            candidate_finish(&list.at[i]);
            rebuild->other_templates++;
        }
    }
    list.count = kept;
    if (list.count)
        qsort(list.at, list.count, sizeof *list.at, by_rank);
    if (try_sample(cli, cache, context, &list, rebuild, &err) != FFA_OK)
        goto failed;
    goto out;
failed:
    status = cli_fail(cli, &err);
out:
    candidates_finish(&list);
    ffa_close(context);
    return status;
}
