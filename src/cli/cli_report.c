/* SPDX-License-Identifier: Apache-2.0
 *
 * Results on stdout, diagnostics on stderr, and the exit status of each kind of failure.
 *
 * Texts from elsewhere (stores, bundles, manifests, logs of compilers) are printed by cli_line,
 * cli_text and cli_put_json only, which leave a terminal nothing to obey.
 *
 * An error is printed once, on stderr, and with --json also as an object on stdout. Every function
 * that reports returns the exit status, so that a command can return the call.
 */
#include "cli/cli.h"

#include "base/printable.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* clang-format off */
static const struct {
    ffa_status status;
    const char *name;
    int exit_status;
} statuses[] = {
    { FFA_OK,          "FFA_OK",          CLI_DONE },
    { FFA_INVALID,     "FFA_INVALID",     CLI_USAGE },
    { FFA_NOMEM,       "FFA_NOMEM",       CLI_FAILED },
    { FFA_UNSUPPORTED, "FFA_UNSUPPORTED", CLI_ENVIRONMENT },
    { FFA_COMPILE,     "FFA_COMPILE",     CLI_FAILED },
    { FFA_CACHE,       "FFA_CACHE",       CLI_STORE },
    { FFA_GPU,         "FFA_GPU",         CLI_FAILED },
    { FFA_COMM,        "FFA_COMM",        CLI_FAILED },
    { FFA_TIMEOUT,     "FFA_TIMEOUT",     CLI_TIMED_OUT },
    { FFA_BUG,         "FFA_BUG",         CLI_FAILED },
    { FFA_IO,          "FFA_IO",          CLI_FAILED },
    { FFA_NOT_FOUND,   "FFA_NOT_FOUND",   CLI_NOT_FOUND },
};
/* clang-format on */

int cli_exit_of(ffa_status status)
{
    for (int i = 0; i < CLI_COUNT(statuses); i++)
        if (statuses[i].status == status)
            return statuses[i].exit_status;
    return CLI_FAILED;
}

const char *cli_status_name(ffa_status status)
{
    for (int i = 0; i < CLI_COUNT(statuses); i++)
        if (statuses[i].status == status)
            return statuses[i].name;
    return "unknown";
}

/* The text, made printable but for `keep`, and a newline. */
static void put_printable(FILE *to, const char *text, const char *keep)
{
    const size_t size = 4 * strlen(text) + 1;
    char *printable = malloc(size);

    if (!printable) /* better nothing than as it is */
        return;
    text_printable(printable, size, text, keep);
    (void)fprintf(to, "%s\n", printable);
    free(printable);
}

/* Formatted (the caller frees); NULL: no memory. */
static char *formatted(const char *format, va_list args)
{
    va_list again;
    char *text;
    int bytes;

    va_copy(again, args);
    bytes = vsnprintf(NULL, 0, format, again);
    va_end(again);
    text = bytes < 0 ? NULL : malloc((size_t)bytes + 1);
    if (text)
        (void)vsnprintf(text, (size_t)bytes + 1, format, args);
    return text;
}

void cli_line(FILE *to, const char *format, ...)
{
    va_list args;
    char *text;

    va_start(args, format);
    text = formatted(format, args);
    va_end(args);
    if (text)
        put_printable(to, text, "");
    free(text);
}

void cli_text(FILE *to, const char *text)
{
    put_printable(to, text, "\n\t");
}

void cli_note(const struct cli *cli, const char *format, ...)
{
    va_list args;
    char *text;

    va_start(args, format);
    text = formatted(format, args);
    va_end(args);
    if (text)
        cli_line(stderr, "ffa%s%s: %s", cli->command ? " " : "",
                 cli->command ? cli->command->name : "", text);
    free(text);
}

int cli_fail(const struct cli *cli, const ffa_error *err)
{
    cli_note(cli, "%s", err->message[0] ? err->message : ffa_status_text(err->status));
    if (cli->json) {
        json_t *object = json_object();
        json_t *inner = json_object();

        cli_set_text(inner, "status", cli_status_name(err->status));
        cli_set_text(inner, "message", err->message);
        (void)json_object_set_new(object, "error", inner);
        return cli_print_json(cli, object, cli_exit_of(err->status));
    }
    return cli_exit_of(err->status);
}

int cli_fail_text(const struct cli *cli, ffa_status status, const char *format, ...)
{
    ffa_error err = { status, 0, "" };
    char said[sizeof err.message];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(said, sizeof said, format, args);
    va_end(args);
    text_printable(err.message, sizeof err.message, said, "");
    return cli_fail(cli, &err);
}

/* jansson escapes the controls below 0x20; the other characters that are not printable stand in
 * strings only, and become \uNNNN. */
bool cli_put_json(const json_t *object, size_t flags)
{
    char *text = object ? json_dumps(object, flags | JSON_REAL_PRECISION(6)) : NULL;
    bool is_done = text != NULL;

    for (const char *at = text; is_done && *at;) {
        uint32_t character = 0;
        const size_t bytes = utf8_take(at, &character);

        if (bytes == 0 || is_printable(character) || character == '\n')
            is_done = fwrite(at, 1, bytes ? bytes : 1, stdout) != 0;
        else
            is_done = fprintf(stdout, "\\u%04x", (unsigned)character) > 0;
        at += bytes ? bytes : 1;
    }
    free(text);
    return is_done && fputc('\n', stdout) != EOF;
}

int cli_print_json(const struct cli *cli, json_t *object, int exit_status)
{
    const bool is_done = cli_put_json(object, JSON_INDENT(2));

    json_decref(object);
    if (!is_done) {
        cli_note(cli, "stdout cannot be written");
        return CLI_FAILED;
    }
    return exit_status;
}

json_t *cli_real(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

void cli_set_int(json_t *object, const char *key, int64_t value)
{
    (void)json_object_set_new(object, key, json_integer(value));
}

void cli_set_real(json_t *object, const char *key, double value)
{
    (void)json_object_set_new(object, key, cli_real(value));
}

/* JSON cannot hold text that is not UTF-8, such as some file names. Replacing that one value keeps
 * the rest of the object. */
void cli_set_text(json_t *object, const char *key, const char *value)
{
    json_t *text = json_string(value ? value : "");

    (void)json_object_set_new(object, key, text ? text : json_string("(not UTF-8)"));
}
