/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa doctor: devices, libraries, store and bundles, as this machine has them. A bug report begins
 * with its output. It changes nothing.
 *
 * Everything is examined first (struct findings) and then printed, as text or JSON. What cannot be
 * opened is a finding, not a failure; the exit status tells only of a bad store or bundle. NCCL is
 * looked for by its soname alone, because nothing in this version uses it yet.
 */
#include "cli/bundle_fit.h"
#include "cli/cli.h"
#include "cli/entries.h"
#include "cli/file.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { DEVICES_MAX = 64, TABLES_MAX = 192 };

/* One of the bundles in use. */
struct bundle_finding {
    const char *path;
    ffa_bundle_info info;
    ffa_error problem;
};

struct findings {
    ffa_version_info versions;
    ffa_context_info chosen; /* what FFA_DEVICE_AUTO opens */
    struct cli_place place;
    ffa_context_info devices[DEVICES_MAX];
    ffa_error device_problem; /* of the first device that could not be opened */
    ffa_error nvrtc_problem;
    ffa_error store_problem;
    ffa_cache_stats store;
    ffa_cache_verdict verdict;
    struct cli_bundles named;
    struct bundle_finding bundles[CLI_LIST_MAX];
    ffa_cost_table_info tables[TABLES_MAX], table; /* all of the choice, and the device's */
    int table_count;
    int device_count;
    bool never_compile;
    bool store_is_there;
    char nccl_path[512];
    char nccl_version[32];
    char nccl_problem[256];
};

/* ---- looking ---- */

static void look_for_devices(const struct cli *cli, struct findings *found)
{
    ffa_context_opts opts = FFA_CONTEXT_OPTS_INIT;

    opts.cudart_path = cli->cudart;
    for (int ordinal = 0; ordinal < DEVICES_MAX; ordinal++) {
        ffa_context_info *info = &found->devices[found->device_count];
        ffa_error err = { FFA_OK, 0, "" };
        ffa_context *context = NULL;

        if (ffa_open(&context, ordinal, &opts, &err) != FFA_OK) {
            if (found->device_problem.status == FFA_OK)
                found->device_problem = err;
            /* No such ordinal, no driver or no runtime, and not a device without a kernel. */
            if (err.status != FFA_UNSUPPORTED || !found->versions.cudart_path[0])
                return;
            continue;
        }
        *info = (ffa_context_info)FFA_CONTEXT_INFO_INIT;
        if (ffa_context_info_get(context, info, NULL) == FFA_OK)
            found->device_count++;
        ffa_close(context);
    }
}

static void look_for_nccl(struct findings *found)
{
    int (*version)(int *) = NULL;
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    Dl_info where;
    int code = 0;

    if (!library) {
        (void)snprintf(found->nccl_problem, sizeof found->nccl_problem, "%s", dlerror());
        return;
    }
    *(void **)&version = dlsym(library, "ncclGetVersion");
    if (!version || version(&code) != 0)
        (void)snprintf(found->nccl_problem, sizeof found->nccl_problem,
                       "libnccl.so.2 does not say its version");
    else
        (void)snprintf(found->nccl_version, sizeof found->nccl_version, "%d.%d.%d", code / 10000,
                       code / 100 % 100, code % 100);
    if (version && dladdr(*(void **)&version, &where))
        (void)snprintf(found->nccl_path, sizeof found->nccl_path, "%s", where.dli_fname);
    (void)dlclose(library);
}

static void look_at_store(const struct cli *cli, struct findings *found)
{
    ffa_cache *cache = NULL;
    ffa_error err = { FFA_OK, 0, "" };

    if (!found->place.path[0])
        return;
    found->store = (ffa_cache_stats)FFA_CACHE_STATS_INIT;
    found->verdict = (ffa_cache_verdict)FFA_CACHE_VERDICT_INIT;
    if (entries_open_path(cli, &cache, found->place.path, FFA_CACHE_READONLY, &err) != FFA_OK) {
        if (err.status != FFA_NOT_FOUND)
            found->store_problem = err;
        return;
    }
    found->store_is_there = true;
    if (ffa_cache_stats_get(cache, &found->store, &err) != FFA_OK ||
        ffa_cache_verify(cache, &found->verdict, NULL, NULL, &err) != FFA_OK)
        found->store_problem = err;
    else if (found->verdict.bad)
        (void)snprintf(found->store_problem.message, sizeof found->store_problem.message,
                       "%" PRId64 " of %" PRId64 " entries are bad and will be compiled again: see "
                       "'ffa cache verify'",
                       found->verdict.bad, found->verdict.checked);
    if (found->verdict.bad)
        found->store_problem.status = FFA_CACHE;
    ffa_cache_close(cache);
}

static void look_at_bundle(struct bundle_finding *found)
{
    ffa_bundle_verdict verdict = FFA_BUNDLE_VERDICT_INIT;
    ffa_cache *cache = NULL;
    ffa_error err = { FFA_OK, 0, "" };

    found->info = (ffa_bundle_info)FFA_BUNDLE_INFO_INIT;
    if (entries_open_file(&cache, found->path, &err) != FFA_OK ||
        ffa_bundle_info_get(cache, &found->info, &err) != FFA_OK ||
        ffa_bundle_verify(cache, &verdict, NULL, NULL, &err) != FFA_OK)
        found->problem = err;
    else if (verdict.bad || verdict.missing)
        (void)cli_error(&found->problem, FFA_CACHE, 0,
                        "%" PRId64 " of %" PRId64 " entries are bad, %" PRId64
                        " are missing: see 'ffa bundle verify'",
                        verdict.bad, verdict.checked, verdict.missing);
    ffa_cache_close(cache);
}

static bool look_at_bundles(struct findings *found)
{
    bool all_sound = true;

    for (int i = 0; i < found->named.list.count; i++) {
        found->bundles[i].path = found->named.list.at[i];
        look_at_bundle(&found->bundles[i]);
        all_sound = all_sound && found->bundles[i].problem.status == FFA_OK;
    }
    return all_sound;
}

static int look_at_versions(const struct cli *cli, struct findings *found)
{
    ffa_context_opts opts = FFA_CONTEXT_OPTS_INIT;
    ffa_error err = { FFA_OK, 0, "" };

    opts.cudart_path = cli->cudart;
    opts.nvrtc_path = cli->nvrtc;
    found->versions = (ffa_version_info)FFA_VERSION_INFO_INIT;
    if (ffa_version_info_get(&found->versions, &opts, &err) == FFA_OK)
        return CLI_PARSE_GO;
    return cli_fail(cli, &err);
}

static int visit_table(void *user, const ffa_cost_table_info *table)
{
    struct findings *found = user;

    if (found->table_count < TABLES_MAX)
        found->tables[found->table_count++] = *table;
    return 0;
}

/* Open the context that other commands would open with these options. */
static int look_at_choice(const struct cli *cli, struct findings *found)
{
    ffa_context *context = NULL;
    int status = cli_open(cli, &context, FFA_DEVICE_AUTO, FFA_OPEN_CACHE_READONLY);

    if (status != CLI_PARSE_GO)
        return status;
    if (!found->never_compile)
        (void)ffa_context_open_compiler(context, &found->nvrtc_problem);
    found->chosen = (ffa_context_info)FFA_CONTEXT_INFO_INIT;
    (void)ffa_context_info_get(context, &found->chosen, NULL);
    found->table = (ffa_cost_table_info)FFA_COST_TABLE_INFO_INIT;
    (void)ffa_cost_table_get(context, NULL, &found->table, NULL, NULL);
    (void)ffa_cost_tables_list(context, visit_table, found, NULL);
    ffa_close(context);
    return CLI_PARSE_GO;
}

/* ---- saying ---- */

static const char *backend_of(const struct findings *found)
{
    return found->chosen.device >= 0 ? "cuda" : "cpu";
}

static const char *why_backend(const struct findings *found)
{
    if (found->chosen.device >= 0)
        return "a kernel exists for this device";
    return found->device_problem.message[0] ? found->device_problem.message : "there is no device";
}

static const char *compiler_state(const struct findings *found)
{
    return found->never_compile                    ? "not used: FFA_JIT=never"
           : found->nvrtc_problem.status == FFA_OK ? "ok"
                                                   : found->nvrtc_problem.message;
}

static const char *runtime_state(const struct findings *found)
{
    return found->versions.cudart_path[0] ? "ok" : found->device_problem.message;
}

static const char *store_state(const struct findings *found)
{
    if (found->store_problem.status != FFA_OK)
        return found->store_problem.message;
    if (!found->place.path[0])
        return "memory only";
    if (strstr(found->chosen.store_state, "on a network file system"))
        return found->chosen.store_state;
    return found->store_is_there ? "ok" : "does not exist yet: the first compile creates it";
}

static json_t *devices_array(const struct findings *found)
{
    json_t *array = json_array();

    for (int i = 0; i < found->device_count; i++) {
        json_t *device = json_object();

        cli_set_int(device, "ordinal", found->devices[i].device);
        cli_set_text(device, "name", found->devices[i].device_name);
        cli_set_text(device, "arch", found->devices[i].arch);
        cli_set_int(device, "sm_count", found->devices[i].sm_count);
        (void)json_array_append_new(array, device);
    }
    return array;
}

static const char *bundle_state(const struct bundle_finding *bundle)
{
    return bundle->problem.status == FFA_OK ? "ok" : bundle->problem.message;
}

static json_t *bundles_array(const struct findings *found)
{
    json_t *array = json_array();

    for (int i = 0; i < found->named.list.count; i++) {
        const struct bundle_finding *bundle = &found->bundles[i];
        json_t *object = json_object();

        cli_set_text(object, "path", bundle->path);
        cli_set_text(object, "state", bundle_state(bundle));
        cli_set_text(object, "digest", bundle->info.digest);
        cli_set_int(object, "kernels", bundle->info.kernels);
        bundle_set_fit(object, &bundle->info);
        (void)json_array_append_new(array, object);
    }
    return array;
}

static bool is_devices(const struct findings *found, const ffa_cost_table_info *table)
{
    return !table->skipped[0] && strcmp(table->path, found->table.path) == 0 &&
           strcmp(table->digest, found->table.digest) == 0;
}

/* What comes of a table on this machine. */
static void say_use(char out[320], const struct findings *found, const ffa_cost_table_info *table)
{
    const char *source = ffa_cost_source_text((ffa_cost_source)found->table.source);

    if (table->skipped[0])
        (void)snprintf(out, 320, "not used: %s", table->skipped);
    else if (found->chosen.device < 0)
        (void)snprintf(out, 320, "not used: the CPU needs none");
    else if (!is_devices(found, table))
        (void)snprintf(out, 320, "not used on this device");
    else
        (void)snprintf(out, 320, "used (%s)", source);
}

static json_t *tables_array(const struct findings *found)
{
    json_t *array = json_array();

    for (int i = 0; i < found->table_count; i++) {
        const ffa_cost_table_info *table = &found->tables[i];
        json_t *object = json_object();

        cli_set_text(object, "device", table->device_name);
        cli_set_text(object, "digest", table->digest);
        cli_set_text(object, "source", ffa_cost_source_text((ffa_cost_source)table->source));
        cli_set_text(object, "origin", table->origin);
        cli_set_text(object, "path", table->path);
        (void)json_object_set_new(
            object, "used", json_boolean(found->chosen.device >= 0 && is_devices(found, table)));
        cli_set_text(object, "skipped", table->skipped);
        (void)json_array_append_new(array, object);
    }
    return array;
}

static void print_tables(const struct findings *found)
{
    for (int i = 0; i < found->table_count; i++) {
        const ffa_cost_table_info *table = &found->tables[i];
        char use[320];

        say_use(use, found, table);
        cli_line(stdout, "costs      %s%s%.16s%s%s",
                 table->device_name[0] ? table->device_name : "unknown",
                 table->digest[0] ? ", " : "", table->digest, ", ",
                 table->path[0] ? table->path : "built in");
        if (table->origin[0])
            cli_line(stdout, "           %s", table->origin);
        cli_line(stdout, "           %s", use);
    }
}

static json_t *as_object(const struct findings *found)
{
    json_t *object = json_object();
    json_t *cudart = json_object();
    json_t *nvrtc = json_object();
    json_t *nccl = json_object();
    json_t *store = json_object();

    cli_set_text(object, "version", ffa_version());
    cli_set_text(object, "commit", found->versions.commit);
    cli_set_text(object, "templates_digest", found->versions.templates_digest);
    cli_set_text(object, "cuda_built", found->versions.cuda_built);
    cli_set_text(object, "backend", backend_of(found));
    cli_set_text(object, "backend_reason", why_backend(found));
    cli_set_text(object, "arch", found->chosen.arch);
    cli_set_int(object, "cpu_threads", found->chosen.cpu_threads);
    (void)json_object_set_new(object, "devices", devices_array(found));

    cli_set_text(cudart, "path", found->versions.cudart_path);
    cli_set_text(cudart, "version", found->versions.cudart_version);
    cli_set_text(cudart, "driver", found->versions.driver_version);
    cli_set_text(cudart, "state", runtime_state(found));
    (void)json_object_set_new(object, "cudart", cudart);

    cli_set_text(nvrtc, "path", found->chosen.nvrtc_path);
    cli_set_text(nvrtc, "version", found->chosen.nvrtc_version);
    cli_set_text(nvrtc, "state", compiler_state(found));
    (void)json_object_set_new(object, "nvrtc", nvrtc);

    cli_set_text(nccl, "path", found->nccl_path);
    cli_set_text(nccl, "version", found->nccl_version);
    cli_set_text(nccl, "state", found->nccl_problem[0] ? found->nccl_problem : "ok");
    (void)json_object_set_new(object, "nccl", nccl);

    cli_set_text(store, "path", found->place.path);
    cli_set_text(store, "chosen_by", found->place.chosen_by);
    cli_set_text(store, "state", store_state(found));
    cli_set_int(store, "kernels", found->store.kernels);
    cli_set_int(store, "file_bytes", found->store.file_bytes);
    (void)json_object_set_new(object, "store", store);
    (void)json_object_set_new(object, "bundles", bundles_array(found));
    (void)json_object_set_new(object, "cost_tables", tables_array(found));
    return object;
}

static void print_findings(const struct findings *found)
{
    cli_line(stdout, "ffa        %s, commit %s, templates %s", found->versions.version,
             found->versions.commit, found->versions.templates_digest);
    cli_line(stdout, "backend    %s: %s", backend_of(found), why_backend(found));
    (void)printf("cpu        %d threads\n", found->chosen.cpu_threads);
    for (int i = 0; i < found->device_count; i++)
        cli_line(stdout, "device %-3d %s, %s, %d SMs", found->devices[i].device,
                 found->devices[i].device_name, found->devices[i].arch, found->devices[i].sm_count);
    (void)printf("compiles   for %s unless told otherwise\n", found->chosen.arch);
    if (found->versions.cudart_path[0])
        cli_line(stdout, "cudart     %s, %s, driver %s", found->versions.cudart_version,
                 found->versions.cudart_path,
                 found->versions.driver_version[0] ? found->versions.driver_version : "not there");
    else
        cli_line(stdout, "cudart     %s", runtime_state(found));
    if (found->chosen.nvrtc_path[0])
        cli_line(stdout, "nvrtc      %s, %s", found->chosen.nvrtc_version,
                 found->chosen.nvrtc_path);
    else
        cli_line(stdout, "nvrtc      %s", compiler_state(found));
    if (found->nccl_problem[0])
        cli_line(stdout, "nccl       %s", found->nccl_problem);
    else
        cli_line(stdout, "nccl       %s, %s", found->nccl_version, found->nccl_path);
    cli_line(stdout, "store      %s (chosen by %s)",
             found->place.path[0] ? found->place.path : "none", found->place.chosen_by);
    if (found->store_is_there)
        cli_line(stdout, "           %s: %" PRId64 " kernels, %" PRId64 " bytes, all checked",
                 store_state(found), found->store.kernels, found->store.file_bytes);
    else
        cli_line(stdout, "           %s", store_state(found));
    for (int i = 0; i < found->named.list.count; i++) {
        const struct bundle_finding *bundle = &found->bundles[i];

        cli_line(stdout, "bundle     %s", bundle->path);
        if (bundle->problem.status == FFA_OK)
            cli_line(stdout, "           %s: %" PRId64 " kernels, digest %s, all checked",
                     bundle_state(bundle), bundle->info.kernels, bundle->info.digest);
        if (bundle->problem.status == FFA_OK && bundle->info.fitting < bundle->info.kernels)
            cli_line(stdout,
                     "           %" PRId64 " of them for this version: see 'ffa bundle verify'",
                     bundle->info.fitting);
        if (bundle->problem.status != FFA_OK)
            cli_line(stdout, "           %s", bundle_state(bundle));
    }
    print_tables(found);
}

int cmd_doctor(struct cli *cli)
{
    struct findings found = { 0 };
    const char *bad;
    const struct cli_option rows[] = { CLI_BUNDLE_OPTION(cli) };
    int status = cli_parse(cli, rows, CLI_COUNT(rows), 0, 0);

    if (status == CLI_PARSE_GO)
        status = cli_find_place(cli, &found.place);
    if (status == CLI_PARSE_GO)
        status = cli_find_bundles(cli, &found.named);
    if (status != CLI_PARSE_GO)
        return status;
    status = look_at_versions(cli, &found);
    if (status != CLI_PARSE_GO)
        return status;
    found.never_compile = cli_never_compile(&bad);
    look_for_devices(cli, &found);
    status = look_at_choice(cli, &found);
    if (status != CLI_PARSE_GO)
        return status;
    look_for_nccl(&found);
    look_at_store(cli, &found);
    status = look_at_bundles(&found) && found.store_problem.status == FFA_OK ? CLI_DONE : CLI_STORE;
    if (cli->json)
        return cli_print_json(cli, as_object(&found), status);
    print_findings(&found);
    return status;
}
