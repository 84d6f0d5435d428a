/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa tune run: a tuning session on the GPU.
 *
 * A kernel that traps or hangs takes the device from the process. The session then goes on in a new
 * one: this process becomes it (execv), as releasing what a hanging kernel holds would wait for
 * ever. Each one leaves out the kernel that was at fault, so there are no more of them than tiles.
 */
#include "cli/amount.h"
#include "cli/cli.h"
#include "cli/clock.h"
#include "cli/file.h"
#include "cli/interrupt.h"
#include "cli/tune_print.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WORDS_MAX = 1024, LINE_BYTES = 1 << 17, QUIET_US = 10000000, TIMEOUT_S_MAX = 86400 };

struct tune_request {
    const char *session, *budget, *heads;
    struct cli_list masks, tiles;
    double compile_timeout_s, run_timeout_s; /* 0: the library's */
    int64_t device;
    bool wants_resume, is_dry;
    ffa_attention_spec spec;
    ffa_tune_opts opts;
};

/* ---- reading the request ---- */

static int read_times(const struct cli *cli, struct tune_request *request)
{
    int64_t seconds;

    if (request->budget && !amount_read_age(request->budget, &seconds))
        return cli_fail_text(cli, FFA_INVALID, "--budget is '%s', not a time such as 90, 5m or 1h",
                             request->budget);
    if (request->budget && seconds > INT32_MAX / 1000)
        return cli_fail_text(cli, FFA_INVALID, "--budget is '%s', more than %d seconds",
                             request->budget, INT32_MAX / 1000);
    if (request->budget)
        request->opts.budget_ms = 1000 * seconds;
    if (request->run_timeout_s < 0 || request->run_timeout_s > TIMEOUT_S_MAX ||
        request->compile_timeout_s < 0 || request->compile_timeout_s > TIMEOUT_S_MAX)
        return cli_fail_text(cli, FFA_INVALID, "--%s is %g, not in [0, %d] seconds",
                             request->run_timeout_s < 0 || request->run_timeout_s > TIMEOUT_S_MAX
                                 ? "run-timeout"
                                 : "timeout",
                             request->run_timeout_s < 0 || request->run_timeout_s > TIMEOUT_S_MAX
                                 ? request->run_timeout_s
                                 : request->compile_timeout_s,
                             TIMEOUT_S_MAX);
    request->opts.run_timeout_ms = (int64_t)(1e3 * request->run_timeout_s);
    return CLI_PARSE_GO;
}

static int read_request(const struct cli *cli, struct tune_request *request)
{
    ffa_error err = { FFA_OK, 0, "" };

    request->spec = (ffa_attention_spec)FFA_ATTENTION_SPEC_INIT;
    request->spec.dtype = FFA_BF16;
    request->opts = (ffa_tune_opts)FFA_TUNE_OPTS_INIT;
    if (!request->session && !request->is_dry)
        return cli_fail_text(cli, FFA_INVALID, "--session FILE is wanted: all samples go there");
    if (ffa_attention_spec_parse(&request->spec, cli->argv[0], &err) != FFA_OK)
        return cli_fail(cli, &err);
    if (request->heads &&
        !cli_heads(request->heads, &request->spec.heads_q, &request->spec.heads_kv))
        return cli_fail_text(cli, FFA_INVALID,
                             "--heads is '%s', not HQ:HK, such as 64:8 (query heads : kv heads)",
                             request->heads);
    request->opts.session_path = request->session;
    request->opts.masks = request->masks.at;
    request->opts.mask_count = request->masks.count;
    request->opts.tiles = request->tiles.at;
    request->opts.tile_count = request->tiles.count;
    request->opts.flags = request->wants_resume ? (uint32_t)FFA_TUNE_RESUME : 0;
    request->opts.stop = &interrupt_stop;
    return read_times(cli, request);
}

/* ---- progress ---- */

struct tune_progress {
    const struct cli *cli;
    int64_t last_us;
};

static void on_event(void *user, const ffa_tune_event *event)
{
    static const char *const phases[] = { "", "compile", "check", "race" };
    struct tune_progress *progress = user;
    const int64_t now_us = cli_clock_us();
    const bool is_news = event->reason && event->reason[0];
    char tile[32] = "baseline";

    if (!is_news && !progress->cli->verbose && event->done < event->total &&
        now_us - progress->last_us < QUIET_US)
        return;
    progress->last_us = now_us;
    if (event->tile_n)
        (void)snprintf(tile, sizeof tile, "%dx%d", event->tile_m, event->tile_n);
    if (event->configuration >= 0)
        cli_note(progress->cli, "%s %" PRId64 "/%" PRId64 ": %s %s%s%s", phases[event->phase],
                 event->done, event->total, tile, event->state, is_news ? ": " : "",
                 is_news ? event->reason : "");
    else if (event->phase == FFA_TUNE_RACE)
        cli_note(progress->cli, "race: %" PRId64 " of about %" PRId64 " samples, %.1f of %.1f s",
                 event->done, event->total, (double)event->spent_ms / 1e3,
                 (double)event->budget_ms / 1e3);
    else
        cli_note(progress->cli, "%s: %" PRId64 " tiles", phases[event->phase], event->total);
}

/* ---- a new process ---- */

/* The words of this process, and --resume. */
static int read_words(char *line, char *words[WORDS_MAX + 2])
{
    static char resume[] = "--resume";
    const int file = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    const ssize_t bytes = file < 0 ? -1 : read(file, line, LINE_BYTES - 1);
    bool resumes = false;
    int count = 0;

    if (file >= 0)
        (void)close(file);
    if (bytes <= 0)
        return 0;
    line[bytes] = '\0';
    for (char *at = line; at < line + bytes && count < WORDS_MAX; at += strlen(at) + 1) {
        words[count++] = at;
        resumes |= strcmp(at, resume) == 0;
    }
    if (!resumes)
        words[count++] = resume;
    words[count] = NULL;
    return count;
}

/* Returns only where that fails. */
static int start_again(const struct cli *cli, const ffa_error *why)
{
    static char line[LINE_BYTES];
    static char *words[WORDS_MAX + 2];

    cli_note(cli, "%s; going on in a new process", why->message);
    (void)fflush(stdout);
    if (read_words(line, words) > 0)
        (void)execv("/proc/self/exe", words);
    return cli_fail_text(cli, FFA_GPU,
                         "a new process cannot be started (%s): run it again with "
                         "--resume",
                         strerror(errno));
}

/* ---- the work ---- */

static int preview(const struct cli *cli, ffa_context *context, const struct tune_request *request)
{
    ffa_error err = { FFA_OK, 0, "" };
    char *text = NULL;
    int status;

    if (ffa_tune_preview(context, &request->spec, &request->opts, &text, &err) != FFA_OK)
        return cli_fail(cli, &err);
    status = tune_print_preview(cli, text);
    ffa_free(text);
    return status;
}

/* *is_lost: the device, and with it the context, must not be released. */
static int run(const struct cli *cli, ffa_context *context, struct tune_request *request,
               bool *is_lost)
{
    struct tune_progress progress = { .cli = cli };
    ffa_tune_outcome outcome = FFA_TUNE_OUTCOME_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_status rc;
    int status;

    request->opts.event = on_event;
    request->opts.user = &progress;
    rc = ffa_tune_run(context, &request->spec, &request->opts, &outcome, &err);
    *is_lost = outcome.must_restart != 0;
    if (outcome.must_restart && !interrupt_stop)
        return start_again(cli, &err);
    if (rc == FFA_OK)
        return tune_print_report(cli, &request->session, 1);
    status = cli_fail(cli, &err);
    return (rc == FFA_TIMEOUT || *is_lost) && interrupt_stop ? CLI_INTERRUPTED : status;
}

int cmd_tune_run(struct cli *cli)
{
    struct tune_request request = { 0 };
    struct interrupt kept;
    ffa_context *context = NULL;
    bool is_lost = false;
    const struct cli_option options[] = {
        { "session", CLI_TEXT, &request.session, "FILE", "where all samples are kept", 0, 0 },
        { "resume", CLI_FLAG, &request.wants_resume, NULL, "go on with the session of SPEC in FILE",
          0, 0 },
        { "heads", CLI_TEXT, &request.heads, "HQ:HK", "query and kv heads, if SPEC has none", 0,
          0 },
        { "mask", CLI_LIST, &request.masks, "MASK",
          "time this mask; repeatable; default: ten from 512 to 32,768 tokens", 0, 0 },
        { "tile", CLI_LIST, &request.tiles, "MxN",
          "time no other tiles than this; repeatable; default: all", 0, 0 },
        { "budget", CLI_TEXT, &request.budget, "TIME",
          "for timing, in all, beside compiling and checking; default: 5m", 0, 0 },
        { "device", CLI_INT, &request.device, "N", "the GPU to measure; default: 0", 0, 1023 },
        { "timeout", CLI_REAL, &request.compile_timeout_s, "SECONDS",
          "of one compile; default: 300", 0, 0 },
        { "run-timeout", CLI_REAL, &request.run_timeout_s, "SECONDS",
          "a kernel that runs longer hangs; default: 10", 0, 0 },
        { "dry-run", CLI_FLAG, &request.is_dry, NULL, "only say what would be measured", 0, 0 },
        CLI_BUNDLE_OPTION(cli),
    };
    int status = cli_parse(cli, options, CLI_COUNT(options), 1, 1);

    if (status == CLI_PARSE_GO)
        status = read_request(cli, &request);
    if (status == CLI_PARSE_GO) {
        const struct cli_workers workers = {
            .timeout_ms = (uint32_t)(1e3 * request.compile_timeout_s),
        };

        status = cli_open_with_workers(cli, &context, (int)request.device, &workers);
    }
    if (status != CLI_PARSE_GO)
        return status;
    interrupt_take(&kept);
    status =
        request.is_dry ? preview(cli, context, &request) : run(cli, context, &request, &is_lost);
    interrupt_give_back(&kept);
    if (!is_lost)
        ffa_close(context);
    return status;
}
