/* SPDX-License-Identifier: Apache-2.0
 *
 * Building the queue of `ffa warm`: one call of ffa_precompile on a context with compile workers.
 * Signals and failures end it early by one flag: a signal cuts, so that workers are killed and what
 * was built is kept; a failure that others would repeat drains.
 */
#include "cli/clock.h"
#include "cli/file.h"
#include "cli/interrupt.h"
#include "cli/warm.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MEMORY_MIB_MAX = 1 << 20 }; /* of ffa_context_opts; more is no limit either */

/* ---- what befell a kernel ---- */

/* Why a kernel failed, in a word, and in a sentence that names this command's options. */
static const char *describe_failure(const struct warm_session *session,
                                    const ffa_precompile_event *event, char *text, size_t size)
{
    long long mib = (long long)(session->memory_bytes >> 20);

    if (event->worker_signal == SIGKILL) {
        (void)snprintf(text, size,
                       "its worker was killed from outside (signal 9: somebody, or the system, "
                       "short of memory)");
        return "killed";
    }
    if (event->worker_signal) {
        (void)snprintf(text, size,
                       "its worker crashed: signal %d (%s), with a limit of %lld MiB "
                       "(--mem-per-job)",
                       (int)event->worker_signal, strsignal(event->worker_signal), mib);
        return "crash";
    }
    if (event->worker_status >= 0) {
        (void)snprintf(text, size, "its worker ended with status %d instead of an answer",
                       (int)event->worker_status);
        return "crash";
    }
    if (event->status == FFA_TIMEOUT) {
        (void)snprintf(text, size, "took longer than %g s (--timeout): its worker was killed",
                       session->options.timeout_s);
        return "timeout";
    }
    if (event->status == FFA_NOMEM) {
        (void)snprintf(text, size, "out of memory: a worker may take %lld MiB (--mem-per-job)",
                       mib);
        return "memory";
    }
    (void)snprintf(text, size, "%s", event->message);
    return event->status == FFA_COMPILE                                  ? "compile"
           : event->status == FFA_UNSUPPORTED || event->status == FFA_IO ? "environment"
                                                                         : "error";
}

static void show_progress(struct warm_session *session, int workers)
{
    int64_t built = session->counts[BUILT];
    double seconds = (double)(cli_clock_us() - session->build_started_us) / 1e6;
    struct progress_counts counts = { .total = session->item_count,
                                      .hit = session->counts[HIT],
                                      .built = built,
                                      .failed = session->counts[FAILED],
                                      .workers = workers };

    /* Its own pace, once there is one. */
    counts.eta_s = built ? (double)session->counts[WAITING] * seconds / (double)built
                         : warm_estimate_seconds(session, session->counts[WAITING]);
    progress_show(&session->progress, &counts);
}

/* ---- building ---- */

/* Atomically: a signal that comes meanwhile must not be lost. */
static void drain(void)
{
    sig_atomic_t go_on = 0;

    (void)__atomic_compare_exchange_n(&interrupt_stop, &go_on, FFA_PRECOMPILE_DRAIN, false,
                                      __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

/* What the machine lacks, it lacks for all kernels; a template that does not compile probably will
 * not with other values. A lost worker says nothing of the next kernel. */
static bool ends_session(const struct warm_session *session, const struct warm_item *item)
{
    return strcmp(item->reason, "environment") == 0 ||
           (strcmp(item->reason, "compile") == 0 && !session->options.keep_going);
}

static void on_event(void *user, const ffa_precompile_event *event)
{
    struct warm_session *session = user;
    struct warm_item *item = event->index < 0 ? NULL : session->queue[event->index];
    char text[640];

    if (item && event->status != FFA_OK) {
        if (event->log[0] && session->cli->verbose)
            cli_text(stderr, event->log);
        warm_note_failure(session, item, describe_failure(session, event, text, sizeof text), text);
        if (ends_session(session, item))
            drain();
    } else if (item) {
        warm_set_state(session, item, event->info->layer == FFA_LAYER_COMPILED ? BUILT : HIT);
    }
    if (item)
        warm_report_kernel(session, item, event->worker, event->info ? event->info->compile_us : 0);
    show_progress(session, event->busy);
}

/* The end of a session whose kernels were not all tried. */
static enum warm_end end_of(const ffa_precompile_report *report)
{
    if (!report->unfinished)
        return END_ALL;
    return interrupt_stop == FFA_PRECOMPILE_CUT ? END_INTERRUPTED
           : interrupt_stop                     ? END_STOPPED
                                                : END_TIMED_OUT;
}

static ffa_status build(struct warm_session *session, ffa_context *context, ffa_error *err)
{
    double spent_us = (double)(cli_clock_us() - session->started_us);
    double left_ms = session->options.deadline_s * 1e3 - spent_us / 1e3;
    ffa_precompile_report report = FFA_PRECOMPILE_REPORT_INIT;
    ffa_precompile_opts opts = FFA_PRECOMPILE_OPTS_INIT;
    ffa_compile_request *requests = calloc((size_t)session->queue_count + 1, sizeof *requests);
    struct interrupt kept;
    ffa_status rc;

    if (!requests)
        return cli_error(err, FFA_NOMEM, 0, "no memory for the queue");
    for (int64_t i = 0; i < session->queue_count; i++)
        requests[i] = session->queue[i]->kernel->request;
    opts.threads = (uint32_t)session->jobs;
    if (session->options.deadline_s > 0)
        opts.deadline_ms = left_ms < 1 ? 1 : (int64_t)left_ms;
    opts.stop = &interrupt_stop;
    opts.event = on_event;
    opts.user = session;
    opts.tick_ms = progress_tick_us(&session->progress) / 1000;
    session->build_started_us = cli_clock_us();
    interrupt_take(&kept);
    rc = ffa_precompile(context, requests, session->queue_count, &opts, &report, err);
    progress_clear(&session->progress);
    session->end = end_of(&report);
    interrupt_give_back(&kept);
    free(requests);
    return report.requested ? FFA_OK : rc;
}

int warm_build(struct warm_session *session)
{
    int64_t mib = session->memory_bytes >> 20;
    double timeout_ms = ceil(session->options.timeout_s * 1e3);
    const struct cli_workers workers = {
        .timeout_ms = (uint32_t)timeout_ms,
        .memory_mib = (uint32_t)(mib < MEMORY_MIB_MAX ? mib : MEMORY_MIB_MAX),
    };
    ffa_error err = { FFA_OK, 0, "" };
    ffa_context *context = NULL;
    int status = cli_open_with_workers(session->cli, &context, FFA_DEVICE_CPU, &workers);

    if (status != CLI_PARSE_GO)
        return status;
    status = cli_check_store(session->cli, context);
    if (status == CLI_PARSE_GO && build(session, context, &err) != FFA_OK)
        status = cli_fail(session->cli, &err);
    ffa_close(context);
    return status;
}
