/* SPDX-License-Identifier: Apache-2.0
 *
 * Results on stdout, diagnostics on stderr, and the exit status of each kind of failure.
 */
#include "cli/cli.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

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

void cli_note(const struct cli *cli, const char *format, ...)
{
    va_list args;

    (void)fprintf(stderr, "ffa%s%s: ", cli->command ? " " : "",
                  cli->command ? cli->command->name : "");
    va_start(args, format);
    (void)vfprintf(stderr, format, args);
    va_end(args);
    (void)fputc('\n', stderr);
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
    va_list args;

    va_start(args, format);
    (void)vsnprintf(err.message, sizeof err.message, format, args);
    va_end(args);
    return cli_fail(cli, &err);
}

int cli_print_json(const struct cli *cli, json_t *object, int exit_status)
{
    int failed = !object || json_dumpf(object, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));

    json_decref(object);
    if (failed || fputc('\n', stdout) == EOF) {
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

/* Text that is no UTF-8 (a file name, say) must not make the whole object vanish. */
void cli_set_text(json_t *object, const char *key, const char *value)
{
    json_t *text = json_string(value ? value : "");

    (void)json_object_set_new(object, key, text ? text : json_string("(not UTF-8)"));
}

int64_t cli_clock_us(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}
