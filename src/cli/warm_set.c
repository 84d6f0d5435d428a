/* SPDX-License-Identifier: Apache-2.0
 *
 * The set of `ffa warm` and the shard of it. Invariant: a shard follows from the set and the two
 * numbers of --shard alone, whatever any store holds: shards of equal sets are disjoint and cover
 * the whole. Kernels are shared out by what compiling them takes, so that shards end together.
 */
#include "cli/cmd_misses.h"
#include "cli/file.h"
#include "cli/warm.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

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

static ffa_status read_manifest(struct warm_session *session, const char *arch, ffa_error *err)
{
    const char *name = session->cli->argv[0];
    char *text = NULL;
    size_t bytes = 0;
    ffa_status rc = read_all(name, &text, &bytes, err);

    if (rc == FFA_OK)
        rc =
            manifest_read(&session->manifest, name, text, bytes, session->options.archs, arch, err);
    free(text);
    return rc;
}

static ffa_status read_preset(struct warm_session *session, const char *arch, ffa_error *err)
{
    const struct warm_options *options = &session->options;
    json_t *root = NULL;
    ffa_status rc = preset_make(&root, options->preset, err);

    if (rc == FFA_OK)
        rc = manifest_read_json(&session->manifest, options->preset, root, options->archs, arch,
                                err);
    json_decref(root);
    return rc;
}

static ffa_status read_specs(struct warm_session *session, const char *arch, ffa_error *err)
{
    const struct warm_options *options = &session->options;
    json_t *specs = json_array();
    ffa_status rc;

    for (int i = 0; i < options->specs.count; i++)
        (void)json_array_append_new(specs, json_string(options->specs.at[i]));
    rc = manifest_read_specs(&session->manifest, specs, options->archs, arch, err);
    json_decref(specs);
    return rc;
}

ffa_status warm_read_set(struct warm_session *session, ffa_context *context, const char *arch,
                         ffa_error *err)
{
    const struct warm_options *options = &session->options;

    session->manifest.context = context;
    session->manifest.device = options->device;
    return options->misses        ? read_misses(session, context, err)
           : options->preset      ? read_preset(session, arch, err)
           : options->specs.count ? read_specs(session, arch, err)
                                  : read_manifest(session, arch, err);
}

/* ---- the shard ---- */

/* What a compile takes, in tenths of an attention kernel's: the passes beside it take a tenth. It
 * follows from the request alone, as all tasks have to share out alike. */
static int64_t weight_of(const ffa_compile_request *request)
{
    enum { WHOLE = 10, TENTH = 1 };

    return strncmp(request->template_name, "attention_", strlen("attention_")) == 0 ? WHOLE : TENTH;
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

static void add_item(struct warm_session *session, const struct keyed *keyed)
{
    struct warm_item *item = &session->items[session->item_count++];

    item->kernel = session->manifest.at[keyed->at];
    (void)snprintf(item->key, sizeof item->key, "%s", keyed->key);
}

/* Each kernel, heavy ones first, goes to the shard that has the least so far. */
static ffa_status share_out(struct warm_session *session, const struct keyed *keyed, int64_t count,
                            ffa_error *err)
{
    const int64_t shards = session->shard.count < count ? session->shard.count : count;
    int64_t *loads = calloc((size_t)shards + 1, sizeof *loads);
    unsigned char *is_ours = calloc((size_t)count + 1, 1);
    int64_t next = 0;

    if (!loads || !is_ours) {
        free(loads);
        free(is_ours);
        return cli_error(err, FFA_NOMEM, 0, "no memory for %lld shards", (long long)shards);
    }
    for (int is_light = 0; is_light < 2; is_light++)
        for (int64_t i = 0; i < count; i++) {
            const ffa_compile_request *request = &session->manifest.at[keyed[i].at]->request;
            const int64_t weight = weight_of(request);

            if ((weight == 1) != is_light)
                continue;
            next = 0;
            for (int64_t shard = 1; shard < shards; shard++)
                if (loads[shard] < loads[next])
                    next = shard;
            loads[next] += weight;
            is_ours[i] = next == session->shard.index;
        }
    for (int64_t i = 0; i < count; i++)
        if (is_ours[i])
            add_item(session, &keyed[i]);
    free(loads);
    free(is_ours);
    return FFA_OK;
}

ffa_status warm_take_shard(struct warm_session *session, ffa_context *context, ffa_error *err)
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
    rc = share_out(session, keyed, distinct, err);
out:
    free(keyed);
    return rc;
}
