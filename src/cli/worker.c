/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa compile-worker: what pool.c starts. Reads requests from stdin, one JSON object a line, and
 * answers each with one line on what was stdout when it began:
 *   {"template": "...", "settings": ["name=value", ...], "arch": "sm_90a"}
 *   {"layer": "compiled", "compile_us": 812345}
 *   {"reason": "compile", "message": "...", "log": "..."}
 * Ends with its stdin, and with its parent.
 */
#include "cli/manifest.h"

#include "base/limit.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

enum { LOG_BYTES_MAX = 8192 };

/* From here on, what a compiler prints goes to stderr, and only answers to the one we return. */
static int take_stdout(void)
{
    int answers = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);

    if (answers >= 0 && dup2(STDERR_FILENO, STDOUT_FILENO) < 0) {
        (void)close(answers);
        return -1;
    }
    return answers;
}

static const char *reason_of(ffa_status status)
{
    switch (status) {
    case FFA_COMPILE:
        return "compile";
    case FFA_NOMEM:
        return "memory";
    case FFA_UNSUPPORTED:
        return "environment";
    default:
        return "error";
    }
}

static json_t *failure(const ffa_error *err, const char *log)
{
    json_t *object = json_object();
    char cut[LOG_BYTES_MAX];

    (void)snprintf(cut, sizeof cut, "%s", log ? log : "");
    cli_set_text(object, "reason", reason_of(err->status));
    cli_set_text(object, "message", err->message);
    cli_set_text(object, "log", cut);
    return object;
}

static json_t *answer_to(ffa_context *context, const struct wish *wish)
{
    ffa_kernel_info info = FFA_KERNEL_INFO_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_compiled *compiled = NULL;
    json_t *object;

    if (ffa_compile(&compiled, context, &wish->request, &err) != FFA_OK ||
        ffa_compiled_info(compiled, &info, &err) != FFA_OK) {
        object = failure(&err, ffa_compiled_log(compiled));
    } else {
        object = json_object();
        cli_set_text(object, "layer", ffa_layer_text(info.layer));
        cli_set_int(object, "compile_us", info.compile_us);
    }
    ffa_compiled_destroy(compiled);
    return object;
}

static json_t *answer_line(ffa_context *context, const char *line, size_t bytes)
{
    json_t *json = json_loadb(line, bytes, 0, NULL);
    ffa_error err = { FFA_INVALID, 0, "the request is no JSON" };
    struct wish wish = { 0 };
    json_t *object;

    if (json && wish_init(&wish, json, &err) == FFA_OK)
        object = answer_to(context, &wish);
    else
        object = failure(&err, NULL);
    json_decref(json);
    return object;
}

static bool send_answer(int answers, json_t *object)
{
    char *text = json_dumps(object, JSON_COMPACT);
    FILE *file = NULL;
    bool ok = false;
    int copy = text ? fcntl(answers, F_DUPFD_CLOEXEC, 3) : -1;

    if (copy >= 0)
        file = fdopen(copy, "w");
    if (file) {
        ok = fputs(text, file) != EOF && fputc('\n', file) != EOF;
        ok = fclose(file) == 0 && ok;
    } else if (copy >= 0) {
        (void)close(copy);
    }
    free(text);
    json_decref(object);
    return ok;
}

int cmd_worker(struct cli *cli)
{
    int64_t memory_bytes = 0, parent = 0;
    ffa_context *context = NULL;
    char *line = NULL;
    size_t size = 0;
    int answers;
    const struct cli_option rows[] = {
        { "memory-bytes", CLI_INT, &memory_bytes, "N", "what a compile may take; 0: no limit", 0,
          INT64_MAX },
        { "parent", CLI_INT, &parent, "PID", "end with this process", 0, INT32_MAX },
    };
    int status = cli_parse(cli, rows, CLI_COUNT(rows), 0, 0);

    if (status != CLI_PARSE_GO)
        return status;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (parent && getppid() != (pid_t)parent)
        return CLI_FAILED;
    (void)setrlimit(RLIMIT_CORE, &(struct rlimit){ 0, 0 });
    answers = take_stdout();
    if (answers < 0)
        return cli_fail_text(cli, FFA_IO, "the way back to the session is closed");
    status = cli_open(cli, &context, FFA_DEVICE_CPU, 0);
    if (status != CLI_PARSE_GO)
        return status;
    limit_memory(memory_bytes);
    status = CLI_DONE;
    for (ssize_t bytes; status == CLI_DONE && (bytes = getline(&line, &size, stdin)) > 0;)
        if (!send_answer(answers, answer_line(context, line, (size_t)bytes)))
            status = CLI_FAILED;
    free(line);
    ffa_close(context);
    (void)close(answers);
    return status;
}

/* What a context with worker_path starts. */
int cmd_kernel_worker(struct cli *cli)
{
    int status = cli_parse(cli, NULL, 0, 0, 0);

    return status == CLI_PARSE_GO ? ffa_worker_main() : status;
}
