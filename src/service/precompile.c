/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa_precompile: many kernels on some threads, until a deadline or a stop. Each thread keeps one
 * compile worker, where the context has workers, from kernel to kernel.
 *
 * NVRTC cannot be stopped in this process. At the deadline the call returns, and threads in the
 * middle of a compile go on to its end, so that it is not wasted; the context waits for them when
 * it is closed. Invariant: a job is shared by the caller and its threads and freed by the last of
 * them, and once it is over, no function of the caller's is called and nothing of his is read.
 */
#include "jit/compile_worker.h"
#include "service/context.h"

#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { THREADS_MAX = 1024, THREADS_DEFAULT_MAX = 8, REQUESTS_MAX = 100000, STOP_POLL_MS = 50 };

struct precompile {
    ffa_context *context;
    struct jit_request *requests; /* [count] */
    int64_t count;
    ffa_precompile_opts opts;
    atomic_bool is_cut; /* threads give up what they are at */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* under lock: */
    int64_t next; /* the first that nobody has begun */
    int64_t done;
    bool is_over;  /* the caller is gone: no more of it, and no callback */
    int32_t users; /* threads, and the caller */
    ffa_precompile_report report;
    ffa_error first; /* the failure of the lowest index */
};

static void job_free(struct precompile *job)
{
    if (!job)
        return;
    for (int64_t i = 0; job->requests && i < job->count; i++)
        jit_request_finish(&job->requests[i]);
    mem_free(job->requests);
    (void)pthread_cond_destroy(&job->changed);
    (void)pthread_mutex_destroy(&job->lock);
    mem_free(job);
}

/* Whoever leaves last frees. */
static void job_leave(struct precompile *job)
{
    bool is_last;

    (void)pthread_mutex_lock(&job->lock);
    is_last = --job->users == 0;
    (void)pthread_mutex_unlock(&job->lock);
    if (is_last)
        job_free(job);
}

/* With room for `count` requests, none of which is set yet. NULL: no memory. */
static struct precompile *job_new(ffa_context *context, int64_t count)
{
    struct precompile *job = mem_array(1, sizeof *job);
    pthread_condattr_t attributes;

    if (!job)
        return NULL;
    (void)pthread_mutex_init(&job->lock, NULL);
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&job->changed, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    job->context = context;
    job->count = count;
    job->users = 1;
    job->report.requested = count;
    job->report.first_failed = -1;
    job->requests = mem_array((size_t)count, sizeof *job->requests);
    if (job->requests)
        return job;
    job_free(job);
    return NULL;
}

static ffa_status job_create(struct precompile **out, ffa_context *context,
                             const ffa_compile_request *requests, int64_t count,
                             const ffa_precompile_opts *opts, ffa_error *err)
{
    size_t stride = count ? requests->struct_size : 0;
    struct precompile *job = job_new(context, count);
    ffa_status rc = FFA_OK;

    *out = NULL;
    if (!job)
        return error_nomem(err, "the requests");
    job->opts = *opts;
    for (int64_t i = 0; i < count; i++) {
        /* In the caller's struct, which may be of another size than ours. */
        const char *at = (const char *)requests + (size_t)i * stride;
        ffa_error why = { 0 };
        uint32_t flags = 0;

        rc = context_import_request(&job->requests[i], &flags, context, (const void *)at, &why);
        if (rc == FFA_OK && flags)
            rc = error_fail(&why, FFA_INVALID, 0, "flags is 0x%x, not 0", flags);
        if (rc != FFA_OK) {
            rc = error_fail(err, rc, why.native, "requests[%lld]: %s", (long long)i, why.message);
            goto out;
        }
    }
    *out = job;
    job = NULL;
out:
    job_free(job);
    return rc;
}

/* Under lock. */
static int stop_wanted(const struct precompile *job)
{
    return job->opts.stop ? *job->opts.stop : 0;
}

/* Under lock, and the job is not over. */
static void tell(struct precompile *job, ffa_precompile_event *event)
{
    event->struct_size = (uint32_t)sizeof *event;
    event->busy = (int32_t)(job->next - job->done);
    if (job->opts.event)
        job->opts.event(job->opts.user, event);
}

static void tell_done(struct precompile *job, int64_t index, ffa_status rc,
                      const ffa_kernel_info *info, const char *message, const char *log,
                      const struct worker *worker)
{
    ffa_precompile_event event = {
        .index = index,
        .status = rc,
        .info = rc == FFA_OK ? info : NULL,
        .message = message,
        .log = log ? log : "",
        .worker = (int32_t)worker->asked,
        .worker_signal = worker->signal,
        .worker_status = worker->exit_status,
    };

    if (job->opts.progress)
        job->opts.progress(job->opts.user, index, rc, event.info, message);
    tell(job, &event);
}

/* Under lock. */
static void account(struct precompile *job, int64_t index, ffa_status rc,
                    const ffa_kernel_info *info, const ffa_error *why)
{
    ffa_precompile_report *report = &job->report;

    job->done++;
    if (rc != FFA_OK) {
        report->failed++;
        if (report->first_failed < 0 || index < report->first_failed) {
            report->first_failed = index;
            job->first = *why;
        }
    } else if (info->layer == FFA_LAYER_COMPILED) {
        report->compiled++;
        report->spent_us += info->compile_us;
    } else {
        report->hit++;
        report->saved_us += info->compile_us;
    }
}

static void work(struct precompile *job, struct worker *worker)
{
    (void)pthread_mutex_lock(&job->lock);
    while (!job->is_over && !stop_wanted(job) && job->next < job->count) {
        int64_t index = job->next++;
        struct jit_request *request = &job->requests[index];
        struct resolved found;
        ffa_error why = { 0 };
        char *log = NULL;
        ffa_status rc;

        (void)pthread_mutex_unlock(&job->lock);
        worker_forget(worker);
        request->worker = worker;
        rc = context_resolve(&found, job->context, request, &log, &why);
        jit_request_finish(request);
        (void)pthread_mutex_lock(&job->lock);
        account(job, index, rc, &found.info, &why);
        if (!job->is_over)
            tell_done(job, index, rc, &found.info, why.message, log, worker);
        mem_free(log);
        (void)pthread_cond_broadcast(&job->changed);
    }
    (void)pthread_mutex_unlock(&job->lock);
}

static void *thread_main(void *argument)
{
    struct precompile *job = argument;
    ffa_context *context = job->context;
    struct worker worker = { .is_cut = &job->is_cut };

    work(job, &worker);
    worker_end(&worker);
    job_leave(job);
    context_leave(context); /* last: the context may be closed from here on */
    return NULL;
}

static int32_t thread_count(const ffa_precompile_opts *opts, int64_t count)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int64_t threads = opts->threads                 ? opts->threads
                      : cores < 1                   ? 1
                      : cores > THREADS_DEFAULT_MAX ? THREADS_DEFAULT_MAX
                                                    : cores;

    return (int32_t)(threads < count ? threads : count);
}

/* How many started; they take signals from nobody. */
static int32_t start(struct precompile *job, int32_t threads)
{
    pthread_attr_t attributes;
    int32_t started = 0;
    sigset_t all, before;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    (void)pthread_attr_init(&attributes);
    (void)pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    for (; started < threads; started++) {
        pthread_t thread;

        (void)pthread_mutex_lock(&job->lock);
        job->users++;
        (void)pthread_mutex_unlock(&job->lock);
        context_enter(job->context);
        if (fault_here(FAULT_ALLOC) || pthread_create(&thread, &attributes, thread_main, job)) {
            context_leave(job->context);
            job_leave(job);
            break;
        }
    }
    (void)pthread_attr_destroy(&attributes);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

/* Under lock: sleep until something is done, the deadline, the next tick or look at *stop. */
static void doze(struct precompile *job, int64_t deadline_us, int64_t tick_us)
{
    int64_t until_us = deadline_us;
    int64_t look_us = job->opts.stop ? clock_us() + 1000 * STOP_POLL_MS : INT64_MAX;

    until_us = tick_us < until_us ? tick_us : until_us;
    until_us = look_us < until_us ? look_us : until_us;
    if (until_us == INT64_MAX) {
        (void)pthread_cond_wait(&job->changed, &job->lock);
        return;
    }
    (void)pthread_cond_timedwait(
        &job->changed, &job->lock,
        &(struct timespec){ .tv_sec = (time_t)(until_us / 1000000),
                            .tv_nsec = (long)(until_us % 1000000) * 1000 });
}

/* Under lock: until all is done, the deadline has passed or the caller wants to stop. */
static void await_end(struct precompile *job, int64_t deadline_us)
{
    int64_t pause_us = job->opts.event && job->opts.tick_ms ? 1000 * job->opts.tick_ms : INT64_MAX;
    int64_t tick_us = pause_us == INT64_MAX ? INT64_MAX : clock_us();

    while (job->done < job->count) {
        int stop = stop_wanted(job);

        if (stop == FFA_PRECOMPILE_CUT || (stop && job->done == job->next) ||
            clock_us() >= deadline_us)
            break;
        if (clock_us() >= tick_us) {
            tell(job, &(ffa_precompile_event){
                          .index = -1, .message = "", .log = "", .worker_status = -1 });
            tick_us = clock_us() + pause_us;
        }
        doze(job, deadline_us, tick_us);
    }
}

/* Until the end; then the report. */
static ffa_status wait_for(struct precompile *job, int64_t started_us,
                           ffa_precompile_report *report, ffa_error *err)
{
    int64_t deadline_us =
        job->opts.deadline_ms ? started_us + job->opts.deadline_ms * 1000 : INT64_MAX;
    ffa_status rc = FFA_OK;
    int stop;

    (void)pthread_mutex_lock(&job->lock);
    await_end(job, deadline_us);
    stop = stop_wanted(job);
    job->is_over = true;
    if (job->opts.stop)
        atomic_store(&job->is_cut, true);
    job->report.unfinished = job->count - job->done;
    job->report.wall_us = clock_us() - started_us;
    *report = job->report;
    if (report->unfinished && stop)
        rc = error_fail(err, FFA_TIMEOUT, 0,
                        "precompile: stopped with %lld of %lld kernels unfinished",
                        (long long)report->unfinished, (long long)report->requested);
    else if (report->unfinished)
        rc = error_fail(err, FFA_TIMEOUT, 0,
                        "precompile: %lld of %lld kernels were not finished within %lld ms",
                        (long long)report->unfinished, (long long)report->requested,
                        (long long)job->opts.deadline_ms);
    else if (report->failed)
        rc = error_fail(err, job->first.status, job->first.native,
                        "precompile: %lld of %lld kernels failed; requests[%lld]: %s",
                        (long long)report->failed, (long long)report->requested,
                        (long long)report->first_failed, job->first.message);
    (void)pthread_mutex_unlock(&job->lock);
    return rc;
}

static ffa_status check(ffa_context *context, const ffa_compile_request *requests, int64_t count,
                        const ffa_precompile_opts *opts, ffa_error *err)
{
    if (!context || (count && !requests))
        return error_fail(err, FFA_INVALID, 0, "%s is NULL", context ? "requests" : "context");
    if (count < 0 || count > REQUESTS_MAX)
        return error_fail(err, FFA_INVALID, 0, "count is %lld, not in [0, %d]", (long long)count,
                          REQUESTS_MAX);
    if (opts->flags)
        return error_fail(err, FFA_UNSUPPORTED, 0, "flags is 0x%x, none is known", opts->flags);
    if (opts->threads > THREADS_MAX)
        return error_fail(err, FFA_INVALID, 0, "threads is %u, not in [0, %d]", opts->threads,
                          THREADS_MAX);
    if (opts->deadline_ms < 0 || opts->deadline_ms > INT32_MAX)
        return error_fail(err, FFA_INVALID, 0, "deadline_ms is %lld, not in [0, %d]",
                          (long long)opts->deadline_ms, INT32_MAX);
    if (opts->tick_ms < 0 || opts->tick_ms > INT32_MAX)
        return error_fail(err, FFA_INVALID, 0, "tick_ms is %lld, not in [0, %d]",
                          (long long)opts->tick_ms, INT32_MAX);
    return FFA_OK;
}

ffa_status ffa_precompile(ffa_context *context, const ffa_compile_request *requests, int64_t count,
                          const ffa_precompile_opts *opts_in, ffa_precompile_report *report,
                          ffa_error *err)
{
    ffa_precompile_report now = { .first_failed = -1 };
    int64_t started_us = clock_us();
    ffa_precompile_opts opts;
    struct precompile *job = NULL;
    ffa_status rc;

    FFA_TRY(opts_import(&opts, sizeof opts, opts_in, err));
    FFA_TRY(check(context, requests, count, &opts, err));
    FFA_TRY(job_create(&job, context, requests, count, &opts, err));
    if (count && start(job, thread_count(&opts, count)) == 0) {
        rc = error_nomem(err, "a compile thread");
        goto out;
    }
    rc = wait_for(job, started_us, &now, err);
out:
    if (job)
        job_leave(job);
    if (report && (rc == FFA_OK || job)) {
        ffa_error ignored;

        (void)opts_export(report, &now, sizeof now, &ignored);
    }
    return rc;
}

void context_precompile_begin(struct precompile **out, ffa_context *context,
                              const struct jit_spec *const *specs, int32_t count, const char *arch)
{
    const ffa_precompile_opts opts = FFA_PRECOMPILE_OPTS_INIT;
    struct precompile *job = job_new(context, count);

    *out = NULL;
    if (!job)
        return;
    job->opts = opts;
    for (int32_t i = 0; i < count; i++)
        jit_request_init(&job->requests[i], specs[i], arch);
    if (start(job, thread_count(&opts, count)) == 0)
        job_leave(job);
    else
        *out = job;
}

void context_precompile_end(struct precompile *job)
{
    if (!job)
        return;
    (void)pthread_mutex_lock(&job->lock);
    job->is_over = true;
    (void)pthread_mutex_unlock(&job->lock);
    job_leave(job);
}
