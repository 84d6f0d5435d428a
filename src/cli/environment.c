/* SPDX-License-Identifier: Apache-2.0
 *
 * What flags and environment variables decide: where the kernel store is, how a context is opened,
 * which shard of a launch this process has, and what stderr can show.
 *
 * No other file of the command reads an environment variable. What the variables mean for a context
 * the library says (ffa_context_opts_from_environment), so that bindings mean the same; --store
 * stands above them.
 */
#include "cli/cli.h"
#include "cli/rendezvous.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char store_file[] = "kernels.ffadb";

static void explain(struct cli_place *place, const char *format, ...) FFA_PRINTF(2, 3);

static void explain(struct cli_place *place, const char *format, ...)
{
    va_list args;

    if (place->explain_count == CLI_COUNT(place->explain))
        return;
    va_start(args, format);
    (void)vsnprintf(place->explain[place->explain_count], sizeof place->explain[0], format, args);
    va_end(args);
    place->explain_count++;
}

static bool is_folder(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* Which variables the library is shown. */
enum { SHOW_STORE = 1, SHOW_BUNDLES = 2, SHOW_JIT = 4, SHOW_COSTS = 8 };

static const char *get_variable(void *shown, const char *name)
{
    const int of = strcmp(name, "FFA_BUNDLES") == 0       ? SHOW_BUNDLES
                   : strcmp(name, "FFA_JIT") == 0         ? SHOW_JIT
                   : strcmp(name, "FFA_COST_TABLES") == 0 ? SHOW_COSTS
                                                          : SHOW_STORE;

    return *(const int *)shown & of ? getenv(name) : NULL;
}

static ffa_status read_environment(ffa_context_opts *opts, ffa_environment **out, int shown,
                                   ffa_error *err)
{
    *opts = (ffa_context_opts)FFA_CONTEXT_OPTS_INIT;
    return ffa_context_opts_from_environment(opts, out, get_variable, &shown, err);
}

static int take_option(const struct cli *cli, struct cli_place *place)
{
    size_t bytes = strlen(cli->store);

    (void)snprintf(place->chosen_by, sizeof place->chosen_by, "--store");
    if (strcmp(cli->store, "none") == 0) {
        explain(place, "--store: chosen, memory only");
        return CLI_PARSE_GO;
    }
    if (bytes == 0)
        return cli_fail_text(cli, FFA_INVALID, "--store is empty");
    if (is_folder(cli->store) || cli->store[bytes - 1] == '/')
        (void)snprintf(place->path, sizeof place->path, "%s%s%s", cli->store,
                       cli->store[bytes - 1] == '/' ? "" : "/", store_file);
    else
        (void)snprintf(place->path, sizeof place->path, "%s", cli->store);
    explain(place, "--store: chosen, %s", place->path);
    return CLI_PARSE_GO;
}

/* What names no place is refused. */
static int check_store(const struct cli *cli)
{
    const size_t most = CLI_PATH_BYTES - sizeof store_file - 1;
    const char *value = cli->store;
    size_t scheme;

    if (strlen(value) > most)
        return cli_fail_text(cli, FFA_INVALID, "--store is %zu bytes long, not in [1, %zu]",
                             strlen(value), most);
    scheme = strspn(value, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+.-");
    if (scheme && strncmp(value + scheme, "://", 3) == 0)
        return cli_fail_text(cli, FFA_INVALID,
                             "--store is '%s', a URL: give a folder or file on a disk of this "
                             "machine, and move kernels as bundles",
                             value);
    return CLI_PARSE_GO;
}

/* What the variables say, as the library reads them. */
static int take_variables(const struct cli *cli, struct cli_place *place)
{
    ffa_environment_info info = FFA_ENVIRONMENT_INFO_INIT;
    ffa_environment *environment;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_context_opts opts;

    if (read_environment(&opts, &environment, SHOW_STORE, &err) != FFA_OK ||
        ffa_environment_info_get(environment, &info, &err) != FFA_OK)
        return cli_fail(cli, &err);
    (void)snprintf(place->path, sizeof place->path, "%s", info.store_path);
    (void)snprintf(place->chosen_by, sizeof place->chosen_by, "%s", info.chosen_by);
    for (int32_t i = 0; i < info.reason_count; i++)
        explain(place, "%s", info.reasons[i]);
    ffa_environment_destroy(environment);
    return CLI_PARSE_GO;
}

int cli_find_place(const struct cli *cli, struct cli_place *place)
{
    int status = CLI_PARSE_GO;

    memset(place, 0, sizeof *place);
    if (cli->shared && strcmp(cli->shared, "group") != 0)
        return cli_fail_text(cli, FFA_INVALID, "--shared is '%s', not group", cli->shared);
    if (cli->store) {
        status = check_store(cli);
        return status == CLI_PARSE_GO ? take_option(cli, place) : status;
    }
    explain(place, "--store: not given");
    return take_variables(cli, place);
}

bool cli_never_compile(const char **bad)
{
    ffa_environment *environment;
    ffa_context_opts opts;
    const ffa_status rc = read_environment(&opts, &environment, SHOW_JIT, NULL);

    ffa_environment_destroy(environment);
    *bad = rc == FFA_INVALID ? getenv("FFA_JIT") : NULL;
    return rc == FFA_OK && opts.flags & FFA_OPEN_NEVER_COMPILE;
}

/* The paths into bundles->names, and after those of --bundle. */
static int add_bundles(const struct cli *cli, struct cli_bundles *bundles,
                       const ffa_context_opts *opts)
{
    size_t used = 0;

    for (int64_t i = 0; i < opts->bundle_count; i++) {
        const size_t bytes = strlen(opts->bundles[i]) + 1;

        if (bundles->list.count == CLI_LIST_MAX)
            return cli_fail_text(cli, FFA_INVALID,
                                 "--bundle and FFA_BUNDLES name more than %d bundles",
                                 CLI_LIST_MAX);
        if (bytes > sizeof bundles->names - used)
            return cli_fail_text(cli, FFA_INVALID, "FFA_BUNDLES is longer than %zu bytes",
                                 sizeof bundles->names - 1);
        memcpy(bundles->names + used, opts->bundles[i], bytes);
        bundles->list.at[bundles->list.count++] = bundles->names + used;
        used += bytes;
    }
    return CLI_PARSE_GO;
}

int cli_find_bundles(const struct cli *cli, struct cli_bundles *bundles)
{
    const int shown = cli->uses_bundles ? SHOW_BUNDLES : 0;
    ffa_environment *environment;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_context_opts opts;
    int status;

    bundles->list = cli->bundles;
    if (read_environment(&opts, &environment, shown, &err) != FFA_OK)
        return cli_fail(cli, &err);
    status = add_bundles(cli, bundles, &opts);
    ffa_environment_destroy(environment);
    return status;
}

/* Print the library's log on stderr: warnings always, the rest with --verbose. An error also comes
 * back as a status, and the command prints that. */
static void print_log(void *user, ffa_log_level level, const char *module, const char *line)
{
    static const char *const names[] = { "error", "warning", "info", "debug" };
    const struct cli *cli = user;

    if (level != FFA_LOG_WARNING && !cli->verbose)
        return;
    cli_line(stderr, "ffa: %s: %s: %s", names[level <= FFA_LOG_DEBUG ? level : 3], module, line);
}

/* --cost-tables, or else FFA_COST_TABLES. *owner: of the path, ffa_environment_destroy(). */
static int find_cost_tables(const struct cli *cli, const char **path, ffa_environment **owner)
{
    ffa_error err = { FFA_OK, 0, "" };
    ffa_context_opts opts;

    *path = NULL;
    *owner = NULL;
    if (cli->cost_tables && !*cli->cost_tables)
        return cli_fail_text(cli, FFA_INVALID, "--cost-tables is empty");
    if (!cli->cost_tables && read_environment(&opts, owner, SHOW_COSTS, &err) != FFA_OK)
        return cli_fail(cli, &err);
    *path = cli->cost_tables ? cli->cost_tables : opts.cost_tables;
    return CLI_PARSE_GO;
}

/* workers: NULL to compile in this process. */
static int open_context(const struct cli *cli, ffa_context **out, int device, uint32_t flags,
                        const struct cli_workers *workers)
{
    ffa_context_opts opts = FFA_CONTEXT_OPTS_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    struct cli_bundles bundles;
    struct cli_place place;
    ffa_environment *owner;
    const char *bad;
    int status;

    *out = NULL;
    status = cli_find_place(cli, &place);
    if (status == CLI_PARSE_GO)
        status = cli_find_bundles(cli, &bundles);
    if (status != CLI_PARSE_GO)
        return status;
    opts.flags = flags | (cli_never_compile(&bad) ? (uint32_t)FFA_OPEN_NEVER_COMPILE : 0) |
                 (cli->shared ? (uint32_t)FFA_OPEN_GROUP_STORE : 0) |
                 (cli->network ? (uint32_t)FFA_OPEN_NETWORK_STORE : 0);
    if (bad)
        return cli_fail_text(cli, FFA_INVALID, "FFA_JIT is '%s', not never or auto", bad);
    opts.cache_path = place.path[0] ? place.path : NULL;
    opts.templates_dir = cli->templates;
    opts.nvrtc_path = cli->nvrtc;
    opts.cudart_path = cli->cudart;
    opts.bundles = bundles.list.at;
    opts.bundle_count = bundles.list.count;
    status = find_cost_tables(cli, &opts.cost_tables, &owner);
    if (status != CLI_PARSE_GO)
        return status;
    if (workers) {
        opts.worker_path = "/proc/self/exe";
        opts.worker_timeout_ms = workers->timeout_ms;
        opts.worker_memory_mib = workers->memory_mib;
    }
    opts.log = print_log;
    opts.log_user = (void *)(uintptr_t)cli;
    (void)ffa_open(out, device, &opts, &err);
    ffa_environment_destroy(owner);
    if (*out)
        return CLI_PARSE_GO;
    status = cli_fail(cli, &err);
    /* That a device cannot be opened is about this machine, so the run is not a failed one. */
    return err.status == FFA_GPU ? CLI_ENVIRONMENT : status;
}

int cli_open(const struct cli *cli, ffa_context **out, int device, uint32_t flags)
{
    return open_context(cli, out, device, flags, NULL);
}

int cli_open_with_workers(const struct cli *cli, ffa_context **out, int device,
                          const struct cli_workers *workers)
{
    return open_context(cli, out, device, 0, workers);
}

int cli_check_store(const struct cli *cli, ffa_context *context)
{
    ffa_context_info info = FFA_CONTEXT_INFO_INIT;
    ffa_error err = { FFA_OK, 0, "" };

    if (ffa_context_info_get(context, &info, &err) != FFA_OK)
        return cli_fail(cli, &err);
    if (strcmp(info.store_state, "ok") != 0)
        return cli_fail_text(cli, FFA_CACHE, "the store cannot be written: %s", info.store_state);
    return CLI_PARSE_GO;
}

/* ---- shards of a launch ---- */

const char *cli_variable(void *user, const char *name)
{
    (void)user;
    return getenv(name);
}

/* Read a whole number in [0, max]; *end receives the first character after it. */
static bool read_number(const char *text, int64_t max, int64_t *out, const char **end)
{
    char *stop;
    long long number;

    errno = 0;
    number = strtoll(text, &stop, 10);
    *end = stop;
    *out = number;
    return stop != text && errno == 0 && number >= 0 && number <= max;
}

static bool read_variable(const char *name, int64_t min, int64_t max, int64_t *out)
{
    const char *value = getenv(name);
    const char *end;

    return value && read_number(value, max, out, &end) && *end == '\0' && *out >= min;
}

/* What the launcher's variables say; false: they are not whole, or make no sense. */
static bool read_launch(const struct launcher *launcher, struct cli_shard *out)
{
    int64_t local;

    if (!read_variable(launcher->count, 1, INT32_MAX, &out->count) ||
        !read_variable(launcher->rank, 0, out->count - 1, &out->index))
        return false;
    if (read_variable(launcher->local_count, 1, INT32_MAX, &local))
        out->local = local;
    (void)snprintf(out->from, sizeof out->from, "%s, %s", launcher->rank, launcher->count);
    return true;
}

/* Say why read_launch gave false; the exit status. A wrong rank would build another's shard. */
static int refuse_launch(const struct cli *cli, const struct launcher *launcher)
{
    const char *set, *unset;
    int64_t number;

    rendezvous_half(launcher, cli_variable, NULL, &set, &unset);
    if (unset)
        return cli_fail_text(cli, FFA_INVALID, "--shard auto: %s is '%s', and %s is not set", set,
                             getenv(set), unset);
    if (!read_variable(launcher->count, 1, INT32_MAX, &number))
        return cli_fail_text(cli, FFA_INVALID,
                             "--shard auto: %s is '%s', not a whole number in [1, %d]",
                             launcher->count, getenv(launcher->count), INT32_MAX);
    return cli_fail_text(
        cli, FFA_INVALID, "--shard auto: %s is '%s', not a whole number in [0, %lld), of %s",
        launcher->rank, getenv(launcher->rank), (long long)number, launcher->count);
}

int cli_find_shard(const struct cli *cli, const char *text, struct cli_shard *out)
{
    struct cli_shard launch = { .count = 1, .local = 1 };
    const struct launcher *launcher = rendezvous_launcher(cli_variable, NULL);
    const char *end;

    *out = launch;
    if (text && strcmp(text, "auto") != 0) {
        if (!read_number(text, INT32_MAX, &out->index, &end) || *end++ != '/' ||
            !read_number(end, INT32_MAX, &out->count, &end) || *end || out->index >= out->count)
            return cli_fail_text(cli, FFA_INVALID,
                                 "--shard is '%s', not auto or I/N with 0 <= I < N", text);
        (void)snprintf(out->from, sizeof out->from, "--shard");
        return CLI_PARSE_GO;
    }
    if (!launcher) {
        if (text)
            cli_note(cli, "--shard auto: no launcher has set its variables, so all is taken");
        return CLI_PARSE_GO;
    }
    if (!read_launch(launcher, &launch))
        return text ? refuse_launch(cli, launcher) : CLI_PARSE_GO;
    if (text) {
        *out = launch;
        cli_note(cli, "shard %lld of %lld, by %s", (long long)out->index, (long long)out->count,
                 out->from);
    } else if (launch.count > 1) {
        /* A batch script has its launcher's variables, too, and is one task. */
        cli_note(cli, "all of the set; of %lld tasks, by %s, each takes a shard with --shard auto",
                 (long long)launch.count, launch.from);
    }
    return CLI_PARSE_GO;
}

/* ---- the ranks of a launch ---- */

const char *cli_find_rendezvous(const char *folder)
{
    const char *variable = getenv("FFA_RENDEZVOUS");

    return folder ? folder : variable && variable[0] ? variable : NULL;
}

const char *cli_find_nccl(const char *file)
{
    const char *variable = getenv("FFA_NCCL");

    return file ? file : variable && variable[0] ? variable : NULL;
}

/* ---- the terminal ---- */

void cli_find_terminal(bool *can_draw, bool *has_colour)
{
    const char *term = getenv("TERM");
    const char *no_colour = getenv("NO_COLOR");

    *can_draw = isatty(STDERR_FILENO) && term && term[0] && strcmp(term, "dumb") != 0;
    *has_colour = *can_draw && !(no_colour && no_colour[0]);
}
