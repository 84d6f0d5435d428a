/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa tune show|merge|export|import: session files, and what is made from them.
 *
 * An exported file is named by the digest of what is in it: the table by that which ranks compare,
 * the samples by that of their text.
 */
#include "cli/cli.h"
#include "cli/file.h"
#include "cli/fits.h"
#include "cli/tune_print.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { FILES_MAX = 1000, TEXT_BYTES_MAX = 1 << 30 };

int cmd_tune_show(struct cli *cli)
{
    const int status = cli_parse(cli, NULL, 0, 1, FILES_MAX);

    cli_bound_memory(); /* masks of a session may be as large as they like */
    return status == CLI_PARSE_GO
               ? tune_print_report(cli, (const char *const *)cli->argv, cli->argc, NULL)
               : status;
}

static int print_added(const struct cli *cli, const char *path, int64_t added)
{
    json_t *object;

    if (!cli->json) {
        cli_line(stdout, "%s: %" PRId64 " session%s added", path, added, added == 1 ? "" : "s");
        return CLI_DONE;
    }
    object = json_object();
    cli_set_text(object, "session", path);
    cli_set_int(object, "added", added);
    return cli_print_json(cli, object, CLI_DONE);
}

int cmd_tune_merge(struct cli *cli)
{
    ffa_error err = { FFA_OK, 0, "" };
    int64_t added;
    const int status = cli_parse(cli, NULL, 0, 2, FILES_MAX);

    if (status != CLI_PARSE_GO)
        return status;
    if (ffa_tune_merge(cli->argv[0], (const char *const *)cli->argv + 1, cli->argc - 1, &added,
                       &err) != FFA_OK)
        return cli_fail(cli, &err);
    return print_added(cli, cli->argv[0], added);
}

/* ---- export ---- */

/* Write a text of the sessions to FOLDER/NAME; *path: the caller's, free(). */
static ffa_status write_text(char **path, const ffa_tune *tune, ffa_tune_text_kind kind,
                             const char *folder, const char *name, ffa_error *err)
{
    const size_t bytes = strlen(folder) + strlen(name) + 2;
    char *text = NULL;
    ffa_status rc;

    *path = malloc(bytes);
    if (!*path)
        return cli_error(err, FFA_NOMEM, 0, "no memory for a path");
    (void)snprintf(*path, bytes, "%s/%s", folder, name);
    rc = ffa_tune_text(tune, kind, &text, err);
    if (rc == FFA_OK)
        rc = file_write(*path, text, strlen(text), err);
    ffa_free(text);
    return rc;
}

/* Whether a file is a cost table of a device model. */
static bool is_table_of(const char *path, const char *device)
{
    enum { BYTES_MAX = 1 << 20 };
    struct stat stat_of;
    json_t *root = NULL;
    const char *format, *name;
    bool is_it;

    if (stat(path, &stat_of) == 0 && S_ISREG(stat_of.st_mode) && stat_of.st_size <= BYTES_MAX)
        root = json_load_file(path, 0, NULL);
    format = json_string_value(json_object_get(root, "format"));
    name = json_string_value(json_object_get(root, "device"));
    is_it = format && name && !strcmp(format, "libffa-cost-table") && !strcmp(name, device);
    json_decref(root);
    return is_it;
}

/* Names are digests, and the first by name is the one that is used: an older table would be as
 * likely as the one that was just written. */
static void note_others(const struct cli *cli, const char *folder, const char *own,
                        const char *device)
{
    static const char ending[] = ".json";
    DIR *files = opendir(folder);
    const struct dirent *file;

    while (files && (file = readdir(files)) != NULL) {
        const size_t bytes = strlen(folder) + strlen(file->d_name) + 2;
        const size_t length = strlen(file->d_name), end = sizeof ending - 1;
        char *path;

        if (length < end || strcmp(file->d_name + length - end, ending) != 0)
            continue;
        path = malloc(bytes);
        if (!path)
            break;
        (void)snprintf(path, bytes, "%s/%s", folder, file->d_name);
        if (strcmp(path, own) != 0 && is_table_of(path, device))
            cli_note(cli,
                     "'%s' is a table of the same device model: of several in a folder the first "
                     "by name is used; remove those that are not to be",
                     path);
        free(path);
    }
    if (files)
        (void)closedir(files);
}

static int export_to(const struct cli *cli, const ffa_tune *tune, const char *folder)
{
    ffa_tune_info info = FFA_TUNE_INFO_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    char name[96], *table = NULL, *samples = NULL;
    json_t *object;
    int status = CLI_DONE;
    ffa_status rc = ffa_tune_info_get(tune, &info, &err);

    if (rc == FFA_OK && info.is_published) {
        (void)snprintf(name, sizeof name, "costs-%s.json", info.table_digest);
        rc = write_text(&table, tune, FFA_TUNE_TABLE, folder, name, &err);
    }
    if (rc == FFA_OK) {
        (void)snprintf(name, sizeof name, "sessions-%s.samples", info.samples_digest);
        rc = write_text(&samples, tune, FFA_TUNE_SAMPLES, folder, name, &err);
    }
    if (rc != FFA_OK)
        status = cli_fail(cli, &err);
    else if (!info.is_published)
        cli_note(cli, "no gain is above its noise: there is no table to export, only samples");
    if (rc == FFA_OK && table)
        note_others(cli, folder, table, info.device);
    if (rc == FFA_OK && cli->json) {
        object = json_object();
        if (table)
            cli_set_text(object, "table", table);
        cli_set_text(object, "samples", samples);
        status = cli_print_json(cli, object, CLI_DONE);
    } else if (rc == FFA_OK) {
        if (table)
            cli_line(stdout, "table    %s", table);
        cli_line(stdout, "samples  %s", samples);
    }
    free(table);
    free(samples);
    return status;
}

int cmd_tune_export(struct cli *cli)
{
    ffa_error err = { FFA_OK, 0, "" };
    const char *paths[1];
    ffa_tune *tune = NULL;
    int status = cli_parse(cli, NULL, 0, 2, 2);

    if (status != CLI_PARSE_GO)
        return status;
    cli_bound_memory();
    paths[0] = cli->argv[0];
    if (ffa_tune_open(&tune, paths, 1, &err) != FFA_OK)
        return cli_fail(cli, &err);
    status = export_to(cli, tune, cli->argv[1]);
    ffa_tune_destroy(tune);
    return status;
}

/* ---- import ---- */

/* The whole file; *text: the caller's, free(). */
static ffa_status read_text(char **text, size_t *bytes, const char *path, ffa_error *err)
{
    FILE *file = fopen(path, "rbe");
    struct stat stat_of;

    *text = NULL;
    *bytes = 0;
    if (!file || fstat(fileno(file), &stat_of) != 0 || !S_ISREG(stat_of.st_mode) ||
        stat_of.st_size > TEXT_BYTES_MAX) {
        const int code = file ? 0 : errno;

        if (file)
            (void)fclose(file);
        return cli_error(err, FFA_IO, code, "'%s' cannot be read: %s", path,
                         code ? strerror(code) : "it is no file of up to 1 GiB");
    }
    *text = malloc((size_t)stat_of.st_size + 1);
    if (*text)
        *bytes = fread(*text, 1, (size_t)stat_of.st_size, file);
    (void)fclose(file);
    return *text ? FFA_OK : cli_error(err, FFA_NOMEM, 0, "no memory for '%s'", path);
}

/* Add the sessions of a text. What is wrong in it is said with the file's name. */
static ffa_status import_file(const char *session, const char *path, int64_t *added, ffa_error *err)
{
    ffa_error why = { FFA_OK, 0, "" };
    char *text;
    size_t bytes;
    ffa_status rc = read_text(&text, &bytes, path, err);

    if (rc != FFA_OK)
        return rc;
    rc = ffa_tune_import(session, text, bytes, added, &why);
    if (rc != FFA_OK)
        rc = cli_error(err, rc, why.native, "%.200s: %.700s", path, why.message);
    free(text);
    return rc;
}

int cmd_tune_import(struct cli *cli)
{
    ffa_error err = { FFA_OK, 0, "" };
    int64_t sum = 0;
    ffa_status rc = FFA_OK;
    const int status = cli_parse(cli, NULL, 0, 2, FILES_MAX);

    if (status != CLI_PARSE_GO)
        return status;
    cli_bound_memory(); /* as for ffa tune show */
    for (int i = 1; i < cli->argc && rc == FFA_OK; i++) {
        int64_t added = 0;

        rc = import_file(cli->argv[0], cli->argv[i], &added, &err);
        sum += added;
    }
    if (rc == FFA_OK)
        return print_added(cli, cli->argv[0], sum);
    if (sum)
        cli_note(cli, "%s: %" PRId64 " session%s of the files before it added", cli->argv[0], sum,
                 sum == 1 ? "" : "s");
    return cli_fail(cli, &err);
}
