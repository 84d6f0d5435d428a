/* SPDX-License-Identifier: Apache-2.0
 *
 * What an environment says of a context's options. The command and bindings share it, so that both
 * find one store. Invariant: the library asks the function it is given, and no environment.
 *
 * The store is at the first of FFA_CACHE_DIR, XDG_CACHE_HOME/ffa, HOME/.cache/ffa,
 * TMPDIR/ffa-<uid>; else kernels are kept in memory only. FFA_CACHE_DIR is used as given, or
 * refused: the next candidate would not be the one that was asked for. The others are conventions,
 * and one is skipped where its folder neither exists nor can be created (the HOME of a system
 * account, a read-only home).
 */
#include "cache/store_place.h"
#include "service/context.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, REASONS_MAX = 5, BUNDLES_TEXT_MAX = 1 << 20 };

static const char store_file[] = "kernels.ffadb";

struct ffa_environment {
    ffa_environment_fn get;
    void *user;
    char *store_path; /* NULL: memory only */
    const char *chosen_by;
    const char *reasons[REASONS_MAX]; /* owned */
    int32_t reason_count;
    char *bundle_text;    /* the paths, one after the other */
    const char **bundles; /* [bundle_count], into bundle_text */
    char *cost_tables;    /* NULL: not said */
    int64_t bundle_count;
};

/* A variable that is empty is as good as not set. */
static const char *value_of(const ffa_environment *environment, const char *name)
{
    const char *value = environment->get(environment->user, name);

    return value && value[0] ? value : NULL;
}

/* ---- the store ---- */

static ffa_status add_reason(ffa_environment *environment, ffa_error *err, const char *format, ...)
    FFA_PRINTF(3, 4);

static ffa_status add_reason(ffa_environment *environment, ffa_error *err, const char *format, ...)
{
    char line[PATH_BYTES + 128];
    char *copy;
    va_list args;

    va_start(args, format);
    (void)vsnprintf(line, sizeof line, format, args);
    va_end(args);
    copy = mem_strdup(line);
    if (!copy)
        return error_nomem(err, "a reason");
    assert(environment->reason_count < REASONS_MAX);
    environment->reasons[environment->reason_count++] = copy;
    return FFA_OK;
}

static bool is_folder(const char *path)
{
    struct stat at;

    return stat(path, &at) == 0 && S_ISDIR(at.st_mode);
}

/* Whether `folder`, an absolute path, exists or can be created: its nearest existing ancestor is a
 * folder that this process may write to. The path is cut on the way. */
static bool can_exist(char *folder)
{
    char *slash;

    if (is_folder(folder))
        return true;
    while ((slash = strrchr(folder, '/')) && slash != folder) {
        *slash = '\0';
        if (access(folder, F_OK) == 0)
            return is_folder(folder) && access(folder, W_OK | X_OK) == 0;
    }
    return access("/", W_OK | X_OK) == 0;
}

static ffa_status choose(ffa_environment *environment, const char *name, const char *folder,
                         ffa_error *err)
{
    struct text path = { 0 };

    text_add(&path, "%s/%s", folder, store_file);
    environment->store_path = text_take(&path);
    if (!environment->store_path)
        return error_nomem(err, "a path");
    environment->chosen_by = name;
    return add_reason(environment, err, "%s: chosen, %s", name, environment->store_path);
}

static ffa_status try_given(ffa_environment *environment, const char *name, ffa_error *err)
{
    const char *value = value_of(environment, name);
    const size_t most = PATH_BYTES - sizeof store_file - 1;

    if (!value)
        return add_reason(environment, err, "%s: not set", name);
    if (strlen(value) > most)
        return error_fail(err, FFA_INVALID, 0, "%s is %zu bytes long, not in [1, %zu]", name,
                          strlen(value), most);
    if (place_is_url(value))
        return error_fail(err, FFA_INVALID, 0,
                          "%s is '%.200s', a URL: give a folder or file on a disk of this machine, "
                          "and move kernels as bundles",
                          name, value);
    return choose(environment, name, value, err);
}

/* The folder "<value of the variable><tail>". */
static ffa_status try_convention(ffa_environment *environment, const char *name, const char *tail,
                                 ffa_error *err)
{
    const char *value = value_of(environment, name);
    char folder[PATH_BYTES], cut[PATH_BYTES];
    int bytes;

    if (environment->store_path)
        return FFA_OK;
    if (!value)
        return add_reason(environment, err, "%s: not set", name);
    if (value[0] != '/')
        return add_reason(environment, err, "%s: '%s' is not an absolute path, skipped", name,
                          value);
    bytes = snprintf(folder, sizeof folder, "%s%s", value, tail);
    if (bytes < 0 || (size_t)bytes + sizeof store_file + 1 > sizeof folder)
        return add_reason(environment, err, "%s: the path is longer than %zu bytes", name,
                          sizeof folder - sizeof store_file - 1);
    memcpy(cut, folder, sizeof cut);
    if (!can_exist(cut))
        return add_reason(environment, err,
                          "%s: '%s' does not exist and cannot be created, skipped", name, folder);
    return choose(environment, name, folder, err);
}

static ffa_status find_store(ffa_environment *environment, ffa_error *err)
{
    char of_user[32];
    ffa_status rc;

    environment->chosen_by = "nothing";
    text_copy(of_user, "/ffa-%lu", (unsigned long)getuid());
    FFA_TRY(try_given(environment, "FFA_CACHE_DIR", err));
    FFA_TRY(try_convention(environment, "XDG_CACHE_HOME", "/ffa", err));
    FFA_TRY(try_convention(environment, "HOME", "/.cache/ffa", err));
    FFA_TRY(try_convention(environment, "TMPDIR", of_user, err));
    if (!environment->store_path)
        rc = add_reason(environment, err, "no place is left: memory only");
out:
    return rc;
}

/* ---- the rest ---- */

/* FFA_BUNDLES: paths between colons; an empty one is none. */
static ffa_status find_bundles(ffa_environment *environment, ffa_error *err)
{
    const char *value = value_of(environment, "FFA_BUNDLES");
    size_t most = 1;

    if (!value)
        return FFA_OK;
    if (strlen(value) > BUNDLES_TEXT_MAX)
        return error_fail(err, FFA_INVALID, 0, "FFA_BUNDLES is %zu bytes long, not in [1, %d]",
                          strlen(value), BUNDLES_TEXT_MAX);
    for (const char *at = value; *at; at++)
        most += *at == ':';
    environment->bundle_text = mem_strdup(value);
    environment->bundles = mem_array(most, sizeof *environment->bundles);
    if (!environment->bundle_text || !environment->bundles)
        return error_nomem(err, "the bundles' paths");
    for (char *at = environment->bundle_text, *next; at; at = next) {
        next = strchr(at, ':');
        if (next)
            *next++ = '\0';
        if (*at)
            environment->bundles[environment->bundle_count++] = at;
    }
    return FFA_OK;
}

static ffa_status find_cost_tables(ffa_environment *environment, ffa_error *err)
{
    const char *value = value_of(environment, "FFA_COST_TABLES");

    if (!value)
        return FFA_OK;
    if (strlen(value) >= PATH_BYTES)
        return error_fail(err, FFA_INVALID, 0, "FFA_COST_TABLES is %zu bytes long, not in [1, %d]",
                          strlen(value), PATH_BYTES - 1);
    environment->cost_tables = mem_strdup(value);
    return environment->cost_tables ? FFA_OK : error_nomem(err, "the path of the cost tables");
}

static ffa_status find_flags(const ffa_environment *environment, uint32_t *flags, ffa_error *err)
{
    const char *value = value_of(environment, "FFA_JIT");

    if (!value || strcmp(value, "auto") == 0)
        return FFA_OK;
    if (strcmp(value, "never") != 0)
        return error_fail(err, FFA_INVALID, 0, "FFA_JIT is '%.200s', not never or auto", value);
    *flags |= FFA_OPEN_NEVER_COMPILE;
    return FFA_OK;
}

ffa_status ffa_context_opts_from_environment(ffa_context_opts *opts, ffa_environment **out,
                                             ffa_environment_fn get, void *user, ffa_error *err)
{
    ffa_environment *environment = NULL;
    ffa_context_opts now;
    ffa_status rc;

    if (!out)
        return error_fail(err, FFA_INVALID, 0, "out is NULL");
    *out = NULL;
    if (!opts || !get)
        return error_fail(err, FFA_INVALID, 0, "%s is NULL", opts ? "get" : "opts");
    FFA_TRY(opts_import(&now, sizeof now, opts, err));
    environment = mem_array(1, sizeof *environment);
    if (!environment) {
        rc = error_nomem(err, "an environment");
        goto out;
    }
    environment->get = get;
    environment->user = user;
    FFA_TRY(find_store(environment, err));
    FFA_TRY(find_bundles(environment, err));
    FFA_TRY(find_cost_tables(environment, err));
    FFA_TRY(find_flags(environment, &now.flags, err));
    now.cache_path = environment->store_path;
    now.bundles = environment->bundles;
    now.bundle_count = environment->bundle_count;
    if (environment->cost_tables)
        now.cost_tables = environment->cost_tables;
    FFA_TRY(opts_export(opts, &now, sizeof now, err));
    *out = environment;
    environment = NULL;
out:
    ffa_environment_destroy(environment);
    return rc;
}

void ffa_environment_destroy(ffa_environment *environment)
{
    if (!environment)
        return;
    for (int32_t i = 0; i < environment->reason_count; i++)
        mem_free((char *)(uintptr_t)environment->reasons[i]);
    mem_free(environment->store_path);
    mem_free(environment->bundle_text);
    mem_free(environment->bundles);
    mem_free(environment->cost_tables);
    mem_free(environment);
}

ffa_status ffa_environment_info_get(const ffa_environment *environment, ffa_environment_info *info,
                                    ffa_error *err)
{
    ffa_environment_info now = { 0 };

    if (!environment || !info)
        return error_fail(err, FFA_INVALID, 0, "%s is NULL", environment ? "info" : "environment");
    now.reason_count = environment->reason_count;
    now.store_path = environment->store_path ? environment->store_path : "";
    now.chosen_by = environment->chosen_by;
    now.reasons = environment->reasons;
    return opts_export(info, &now, sizeof now, err);
}
