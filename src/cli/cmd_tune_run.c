/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa tune run: tuning sessions on the GPU, one a spec, in one file; or only what of them needs no
 * GPU.
 *
 * A kernel that traps or hangs takes the device from the process. The session then goes on in a new
 * one: this process becomes it (execv), as releasing what a hanging kernel holds would wait for
 * ever. Each one leaves out the kernel that was at fault, so there are no more of them than tiles.
 * Sessions that were over stay over, and those to come are begun.
 */
#include "cli/amount.h"
#include "cli/cli.h"
#include "cli/clock.h"
#include "cli/interrupt.h"
#include "cli/tune_parts.h"
#include "cli/tune_print.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { QUIET_US = 10000000, TIMEOUT_S_MAX = 86400, SPECS_MAX = 32, PARTS_MAX = 64 };

struct tune_request {
    const char *session, *budget, *heads, *device, *devices, *part, *join;
    struct cli_list masks, tiles;
    double compile_timeout_s, run_timeout_s; /* 0: the library's */
    int64_t budget_ms;                       /* of all sessions; 0: the library's for each */
    int device_number;                       /* FFA_DEVICE_CPU: `device` is a model */
    bool wants_resume, is_dry, only_compiles, only_backward;
    ffa_attention_spec specs[SPECS_MAX];
    int spec_count;
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
        request->budget_ms = 1000 * seconds;
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
    request->opts.run_timeout_ms = (int64_t)ceil(1e3 * request->run_timeout_s);
    return CLI_PARSE_GO;
}

static int read_specs(const struct cli *cli, struct tune_request *request)
{
    ffa_error err = { FFA_OK, 0, "" };
    int32_t heads_q = 0, heads_kv = 0;

    if (cli->argc > SPECS_MAX)
        return cli_fail_text(cli, FFA_INVALID, "there are %d specs, more than %d", cli->argc,
                             SPECS_MAX);
    if (request->heads && !cli_heads(request->heads, &heads_q, &heads_kv))
        return cli_fail_text(cli, FFA_INVALID,
                             "--heads is '%s', not HQ:HK, such as 64:8 (query heads : kv heads)",
                             request->heads);
    for (int i = 0; i < cli->argc; i++) {
        ffa_attention_spec *spec = &request->specs[request->spec_count++];

        *spec = (ffa_attention_spec)FFA_ATTENTION_SPEC_INIT;
        spec->dtype = FFA_BF16;
        if (ffa_attention_spec_parse(spec, cli->argv[i], &err) != FFA_OK)
            return cli_fail(cli, &err);
        if (request->heads) {
            spec->heads_q = heads_q;
            spec->heads_kv = heads_kv;
        }
    }
    return CLI_PARSE_GO;
}

static int read_device(const struct cli *cli, struct tune_request *request)
{
    const char *text = request->device;
    char *end = NULL;
    long number;

    if (!text)
        return CLI_PARSE_GO;
    number = strtol(text, &end, 10);
    if (end != text && !*end && number >= 0 && number < 1024) {
        request->device_number = (int)number;
        return CLI_PARSE_GO;
    }
    if (!request->is_dry && !request->only_compiles)
        return cli_fail_text(
            cli, FFA_INVALID,
            "--device is '%s', no number of a GPU in [0, 1023]: for a device model "
            "kernels can only be compiled (--compile-only, --dry-run)",
            text);
    request->device_number = FFA_DEVICE_CPU;
    request->opts.device = text;
    return CLI_PARSE_GO;
}

static int read_part(const struct cli *cli, struct tune_request *request)
{
    ffa_tune_opts *opts = &request->opts;
    char rest;

    if (!request->part ||
        (sscanf(request->part, "%d/%d%c", &opts->part, &opts->part_count, &rest) == 2 &&
         opts->part >= 0 && opts->part < opts->part_count && opts->part_count <= PARTS_MAX))
        return CLI_PARSE_GO;
    return cli_fail_text(cli, FFA_INVALID, "--part is '%s', not I/N with 0 <= I < N <= %d",
                         request->part, PARTS_MAX);
}

/* Options that do not go together. */
static int check_request(const struct cli *cli, const struct tune_request *request)
{
    const bool measures = !request->is_dry && !request->only_compiles;

    if (request->is_dry && request->only_compiles)
        return cli_fail_text(cli, FFA_INVALID,
                             "--dry-run compiles nothing: --compile-only is more");
    if (request->is_dry && cli->json && cli->argc > 1)
        return cli_fail_text(cli, FFA_INVALID,
                             "--dry-run prints one JSON object: of one spec, not %d", cli->argc);
    if (measures && !request->session)
        return cli_fail_text(cli, FFA_INVALID, "--session FILE is wanted: all samples go there");
    if (request->only_compiles && (request->session || request->wants_resume))
        return cli_fail_text(cli, FFA_INVALID,
                             "--compile-only measures nothing: it has no session");
    if (request->part && !measures)
        return cli_fail_text(cli, FFA_INVALID, "--part is of what is measured: not with --%s",
                             request->is_dry ? "dry-run" : "compile-only");
    if (request->only_compiles && cli->store && strcmp(cli->store, "none") == 0)
        return cli_fail_text(cli, FFA_INVALID,
                             "--compile-only is for the store: not with --store none");
    if (request->devices && (!measures || request->device || request->part || request->join))
        return cli_fail_text(cli, FFA_INVALID, "--devices is for measuring, without --%s",
                             request->is_dry          ? "dry-run"
                             : request->only_compiles ? "compile-only"
                             : request->device        ? "device"
                             : request->part          ? "part"
                                                      : "join");
    return CLI_PARSE_GO;
}

static int read_request(const struct cli *cli, struct tune_request *request)
{
    int status;

    request->opts = (ffa_tune_opts)FFA_TUNE_OPTS_INIT;
    request->opts.session_path = request->only_compiles ? NULL : request->session;
    request->opts.join_path = request->join;
    request->opts.masks = request->masks.at;
    request->opts.mask_count = request->masks.count;
    request->opts.tiles = request->tiles.at;
    request->opts.tile_count = request->tiles.count;
    request->opts.flags = request->wants_resume    ? (uint32_t)FFA_TUNE_RESUME
                          : request->only_compiles ? (uint32_t)FFA_TUNE_COMPILE_ONLY
                                                   : 0;
    if (request->only_backward)
        request->opts.flags |= (uint32_t)FFA_TUNE_BACKWARD_ONLY;
    request->opts.stop = &interrupt_stop;
    status = check_request(cli, request);
    if (status == CLI_PARSE_GO)
        status = read_specs(cli, request);
    if (status == CLI_PARSE_GO)
        status = read_device(cli, request);
    if (status == CLI_PARSE_GO)
        status = read_part(cli, request);
    return status == CLI_PARSE_GO ? read_times(cli, request) : status;
}

/* ---- progress ---- */

enum { READY, SPILLED, REFUSED, ENDS };

struct tune_progress {
    const struct cli *cli;
    bool has_begun; /* something was told of */
    int64_t last_us;
    int ends[ENDS]; /* tiles that were compiled, by what became of them */
};

static void count(struct tune_progress *progress, const ffa_tune_event *event)
{
    if (event->phase == FFA_TUNE_COMPILE && event->configuration >= 0)
        progress->ends[!strcmp(event->state, "compiled")  ? READY
                       : !strcmp(event->state, "spilled") ? SPILLED
                                                          : REFUSED]++;
}

static void on_event(void *user, const ffa_tune_event *event)
{
    static const char *const phases[] = { "", "compile", "check", "race" };
    struct tune_progress *progress = user;
    const int64_t now_us = cli_clock_us();
    const bool is_news = event->reason && event->reason[0];
    const char *pass = event->is_backward ? "backward: " : "";
    char what[48] = "baseline";

    progress->has_begun = true;
    count(progress, event);
    if (!is_news && !progress->cli->verbose && event->done < event->total &&
        now_us - progress->last_us < QUIET_US)
        return;
    progress->last_us = now_us;
    if (event->tile_n)
        (void)snprintf(what, sizeof what, "%dx%d", event->tile_m, event->tile_n);
    else if (event->parts)
        tune_order_text(what, event->parts, event->waves, event->whole_heads, event->is_unlocked);
    if (event->configuration >= 0)
        cli_note(progress->cli, "%s%s %" PRId64 "/%" PRId64 ": %s %s%s%s", pass,
                 phases[event->phase], event->done, event->total, what, event->state,
                 is_news ? ": " : "", is_news ? event->reason : "");
    else if (event->phase == FFA_TUNE_RACE)
        cli_note(progress->cli, "%srace: %" PRId64 " of about %" PRId64 " samples, %.1f of %.1f s",
                 pass, event->done, event->total, (double)event->spent_ms / 1e3,
                 (double)event->budget_ms / 1e3);
    else
        cli_note(progress->cli, "%s%s: %" PRId64 " %s", pass, phases[event->phase], event->total,
                 event->is_backward ? "set of kernels" : "tiles");
}

/* ---- the work ---- */

/* Returns only where that fails. */
static int start_again(const struct cli *cli, const ffa_error *why)
{
    cli_note(cli, "%s; going on in a new process", why->message);
    (void)fflush(stdout);
    tune_parts_become("--resume");
    return cli_fail_text(cli, FFA_GPU,
                         "a new process cannot be started (%s): run it again with "
                         "--resume",
                         strerror(errno));
}

static int preview(const struct cli *cli, ffa_context *context, const struct tune_request *request)
{
    ffa_error err = { FFA_OK, 0, "" };
    ffa_tune_opts opts = request->opts;
    int status = CLI_DONE;

    opts.budget_ms = request->budget_ms / request->spec_count;
    for (int i = 0; i < request->spec_count && status == CLI_DONE; i++) {
        char *text = NULL;

        if (ffa_tune_preview(context, &request->specs[i], &opts, &text, &err) != FFA_OK)
            return cli_fail(cli, &err);
        status = tune_print_preview(cli, text);
        ffa_free(text);
    }
    return status;
}

static bool is_there(const char *path)
{
    return access(path, F_OK) == 0;
}

/* One session. Of several, one that was never begun is begun when the others are resumed: the file
 * has none of the spec, which is found before anything else. opts->user: the tune_progress. */
static ffa_status run_session(ffa_context *context, const struct tune_request *request, int index,
                              ffa_tune_opts *opts, ffa_tune_outcome *outcome, ffa_error *err)
{
    const ffa_attention_spec *spec = &request->specs[index];
    const struct tune_progress *progress = opts->user;
    ffa_status rc = ffa_tune_run(context, spec, opts, outcome, err);

    if (rc == FFA_NOT_FOUND && !progress->has_begun && opts->flags & FFA_TUNE_RESUME &&
        request->spec_count > 1 && is_there(request->session)) {
        opts->flags &= ~(uint32_t)FFA_TUNE_RESUME;
        rc = ffa_tune_run(context, spec, opts, outcome, err);
    }
    return rc;
}

/* Specs that failed. With --json stdout has one document, so what is said of each waits for it. */
struct failures {
    json_t *list;
    ffa_error first;
};

/* Say that a spec failed; the exit status. */
static int note_failure(const struct cli *cli, struct failures *failures, const char *spec,
                        const ffa_error *err)
{
    json_t *one = json_object();

    cli_note(cli, "%s", err->message);
    cli_set_text(one, "spec", spec);
    cli_set_text(one, "status", cli_status_name(err->status));
    cli_set_text(one, "message", err->message);
    (void)json_array_append_new(failures->list, one);
    if (json_array_size(failures->list) == 1)
        failures->first = *err;
    return cli_exit_of(err->status);
}

/* The document where no spec was measured or compiled: that of the first failure, which was said.
 */
static int print_failure(const struct cli *cli, struct failures *failures)
{
    const int status = cli_exit_of(failures->first.status);
    json_t *object;

    json_decref(failures->list);
    if (!cli->json)
        return status;
    object = json_object();
    (void)json_object_set_new(object, "error", json_object());
    cli_set_text(json_object_get(object, "error"), "status",
                 cli_status_name(failures->first.status));
    cli_set_text(json_object_get(object, "error"), "message", failures->first.message);
    return cli_print_json(cli, object, status);
}

/* One session with its share of the budget. *is_lost: the device, and with it the context, must not
 * be released. */
static int run_one(const struct cli *cli, ffa_context *context, const struct tune_request *request,
                   int index, int64_t *left_ms, struct failures *failures, bool *is_lost)
{
    struct tune_progress progress = { .cli = cli };
    ffa_tune_outcome outcome = FFA_TUNE_OUTCOME_INIT;
    ffa_tune_opts opts = request->opts;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_status rc;

    if (request->budget_ms)
        opts.budget_ms = *left_ms / (request->spec_count - index);
    if (request->budget_ms && opts.budget_ms < 1)
        opts.budget_ms = 1;
    opts.event = on_event;
    opts.user = &progress;
    if (request->spec_count > 1)
        cli_note(cli, "%s, %d of %d", cli->argv[index], index + 1, request->spec_count);
    rc = run_session(context, request, index, &opts, &outcome, &err);
    *left_ms -= outcome.spent_ms;
    *is_lost = outcome.must_restart != 0;
    if (outcome.must_restart && !interrupt_stop)
        return start_again(cli, &err);
    if (rc == FFA_OK)
        return CLI_DONE;
    if ((rc == FFA_TIMEOUT || *is_lost) && interrupt_stop) {
        (void)cli_fail(cli, &err);
        return CLI_INTERRUPTED;
    }
    return note_failure(cli, failures, cli->argv[index], &err);
}

/* All sessions; where one cannot be measured, the others still are. */
static int run(const struct cli *cli, ffa_context *context, const struct tune_request *request,
               bool *is_lost)
{
    struct failures failures = { .list = json_array() };
    int64_t left_ms = request->budget_ms;
    int first = CLI_DONE, done = 0, reported;

    for (int i = 0; i < request->spec_count; i++) {
        const int status = run_one(cli, context, request, i, &left_ms, &failures, is_lost);

        if (status == CLI_INTERRUPTED || *is_lost) {
            json_decref(failures.list);
            return status;
        }
        done += status == CLI_DONE;
        if (first == CLI_DONE)
            first = status;
    }
    if (!done)
        return print_failure(cli, &failures);
    if (request->part && !is_there(request->session)) { /* there are fewer tiles than parts */
        json_decref(failures.list);
        return first;
    }
    reported = tune_print_report(cli, &request->session, 1, failures.list);
    return first == CLI_DONE ? reported : first;
}

static int compile_one(const struct cli *cli, ffa_context *context,
                       const struct tune_request *request, int index, json_t *list,
                       struct failures *failures)
{
    struct tune_progress progress = { .cli = cli };
    ffa_tune_opts opts = request->opts;
    ffa_error err = { FFA_OK, 0, "" };
    json_t *object;

    opts.event = on_event;
    opts.user = &progress;
    if (ffa_tune_run(context, &request->specs[index], &opts, NULL, &err) != FFA_OK) {
        const int status = note_failure(cli, failures, cli->argv[index], &err);

        return interrupt_stop ? CLI_INTERRUPTED : status;
    }
    if (!progress.ends[READY])
        cli_note(cli, "%s: nothing was compiled", cli->argv[index]);
    if (!cli->json) {
        cli_line(stdout, "%s: %d ready, %d spilled, %d refused", cli->argv[index],
                 progress.ends[READY], progress.ends[SPILLED], progress.ends[REFUSED]);
        return progress.ends[READY] ? CLI_DONE : CLI_FAILED;
    }
    object = json_object();
    cli_set_text(object, "spec", cli->argv[index]);
    cli_set_int(object, "ready", progress.ends[READY]);
    cli_set_int(object, "spilled", progress.ends[SPILLED]);
    cli_set_int(object, "refused", progress.ends[REFUSED]);
    (void)json_array_append_new(list, object);
    return progress.ends[READY] ? CLI_DONE : CLI_FAILED;
}

static int compile_all(const struct cli *cli, ffa_context *context,
                       const struct tune_request *request)
{
    struct failures failures = { .list = json_array() };
    json_t *object = json_object(), *list = json_array();
    int status = CLI_DONE;

    (void)json_object_set_new(object, "specs", list);
    for (int i = 0; i < request->spec_count && status == CLI_DONE; i++)
        status = compile_one(cli, context, request, i, list, &failures);
    if (json_array_size(failures.list) && !json_array_size(list)) {
        json_decref(object);
        (void)print_failure(cli, &failures);
        return status;
    }
    if (json_array_size(failures.list))
        (void)json_object_set(object, "failed", failures.list);
    json_decref(failures.list);
    if (cli->json)
        return cli_print_json(cli, object, status);
    json_decref(object);
    return status;
}

/* The store is all that is left of it: it has to take what is compiled. */
static int compile_into_store(const struct cli *cli, ffa_context *context,
                              const struct tune_request *request)
{
    const int status = cli_check_store(cli, context);

    return status == CLI_PARSE_GO ? compile_all(cli, context, request) : status;
}

static int open_and_run(struct cli *cli, const struct tune_request *request)
{
    const struct cli_workers workers = { .timeout_ms =
                                             (uint32_t)ceil(1e3 * request->compile_timeout_s) };
    ffa_context *context = NULL;
    bool is_lost = false;
    int status = cli_open_with_workers(cli, &context, request->device_number, &workers);

    if (status != CLI_PARSE_GO)
        return status;
    status = request->is_dry          ? preview(cli, context, request)
             : request->only_compiles ? compile_into_store(cli, context, request)
                                      : run(cli, context, request, &is_lost);
    if (!is_lost)
        ffa_close(context);
    return status;
}

int cmd_tune_run(struct cli *cli)
{
    struct tune_request request = { 0 };
    struct interrupt kept;
    const struct cli_option options[] = {
        { "session", CLI_TEXT, &request.session, "FILE", "where all samples are kept", 0, 0 },
        { "resume", CLI_FLAG, &request.wants_resume, NULL,
          "go on with the sessions of the specs in FILE", 0, 0 },
        { "heads", CLI_TEXT, &request.heads, "HQ:HK", "query and kv heads of all specs", 0, 0 },
        { "mask", CLI_LIST, &request.masks, "MASK",
          "time this mask; repeatable; default: ten from 512 to 32,768 tokens", 0, 0 },
        { "tile", CLI_LIST, &request.tiles, "MxN",
          "time no other tiles than this; repeatable; default: all", 0, 0 },
        { "budget", CLI_TEXT, &request.budget, "TIME",
          "for timing, in all, beside compiling and checking; default: 5m a spec", 0, 0 },
        { "backward-only", CLI_FLAG, &request.only_backward, NULL,
          "of specs with a backward pass, only its orders", 0, 0 },
        { "device", CLI_TEXT, &request.device, "GPU",
          "which GPU to measure; default: 0. With --compile-only and --dry-run also a device model",
          0, 0 },
        { "devices", CLI_TEXT, &request.devices, "N,N...",
          "several GPUs of one model at once: each times a share of the tiles and orders", 0, 0 },
        { "part", CLI_TEXT, &request.part, "I/N", "time only tile or order I of each N", 0, 0 },
        { "join", CLI_TEXT, &request.join, "FILE",
          "where the sessions are added later: looked at before anything is measured", 0, 0 },
        { "timeout", CLI_REAL, &request.compile_timeout_s, "SECONDS",
          "of one compile; default: 300", 0, 0 },
        { "run-timeout", CLI_REAL, &request.run_timeout_s, "SECONDS",
          "a kernel that runs longer hangs; default: 10", 0, 0 },
        { "compile-only", CLI_FLAG, &request.only_compiles, NULL,
          "only compile what would be measured, into the store; needs no GPU", 0, 0 },
        { "dry-run", CLI_FLAG, &request.is_dry, NULL, "only say what would be measured", 0, 0 },
        CLI_BUNDLE_OPTION(cli),
    };
    int status = cli_parse(cli, options, CLI_COUNT(options), 1, SPECS_MAX + 1);

    if (status == CLI_PARSE_GO)
        status = read_request(cli, &request);
    if (status != CLI_PARSE_GO)
        return status;
    interrupt_take(&kept);
    status = request.devices
                 ? tune_parts_run(cli, request.devices, request.session, request.wants_resume)
                 : open_and_run(cli, &request);
    interrupt_give_back(&kept);
    return status;
}
