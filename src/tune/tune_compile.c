/* SPDX-License-Identifier: Apache-2.0 */
#include "tune/tune_compile.h"

#include "tune/tune_space.h"

enum { REQUESTS_MAX = TUNE_CONFIGURATIONS_MAX + KERNEL_LIST_MAX /* the baseline has several */ };

enum tune_state tune_compiled_state(const struct tune_compiled *result, int32_t configuration,
                                    char reason[200])
{
    const bool spills = result->spill_bytes > 0 && configuration > 0;

    text_format(reason, 200, "%s", result->message);
    switch (result->status) {
    case FFA_OK:
        if (spills)
            text_format(reason, 200, "%d bytes of registers are spilled", result->spill_bytes);
        return spills ? TUNE_SPILLED : TUNE_COMPILED;
    case FFA_TIMEOUT:
        return TUNE_HUNG;
    case FFA_GPU:
        return TUNE_DIED;
    case FFA_COMPILE:
    case FFA_INVALID:
    case FFA_NOMEM: /* more than a worker may have */
        return TUNE_REFUSED;
    case FFA_UNSUPPORTED:
    case FFA_NOT_FOUND:
    case FFA_CACHE:
    case FFA_COMM:
    case FFA_BUG:
    case FFA_IO:
        break;
    }
    return TUNE_PENDING;
}

/* Which configuration a request of a precompile is of. */
struct compiling {
    tune_compiled_fn done;
    void *done_user;
    const int32_t *owners;                 /* [request] */
    int32_t open[TUNE_CONFIGURATIONS_MAX]; /* requests of a configuration */
    struct tune_compiled worst[TUNE_CONFIGURATIONS_MAX];
};

/* A configuration is done with its last request; what is told is the worst of them. */
static void request_done(void *user, const ffa_precompile_event *event)
{
    struct compiling *compiling = user;
    int32_t owner;
    struct tune_compiled *worst;

    if (event->index < 0 || !compiling->open[compiling->owners[event->index]])
        return;
    owner = compiling->owners[event->index];
    worst = &compiling->worst[owner];
    if (event->status != FFA_OK) {
        const struct tune_compiled failed = {
            .status = event->worker_signal ? FFA_GPU : event->status,
            .registers = -1,
            .shared_bytes = -1,
            .spill_bytes = -1,
            .key = "",
            .message = event->message,
        };

        compiling->done(compiling->done_user, owner, &failed);
        compiling->open[owner] = 0; /* the others do not matter */
        return;
    }
    worst->status = FFA_OK;
    worst->registers = max32(worst->registers, event->info->registers);
    worst->shared_bytes = max32(worst->shared_bytes, event->info->shared_bytes);
    worst->spill_bytes = max32(worst->spill_bytes, event->info->spill_bytes);
    worst->key = event->info->key;
    worst->message = "";
    if (--compiling->open[owner] == 0)
        compiling->done(compiling->done_user, owner, worst);
}

/* The requests of all configurations, one after the other. all, owners: [REQUESTS_MAX]. */
static ffa_status list_requests(const struct tune_compile_job *job, ffa_requests **lists,
                                ffa_compile_request *all, int32_t *owners, int64_t *found,
                                ffa_error *err)
{
    ffa_status rc = FFA_OK;

    for (int32_t i = 0; i < job->count; i++) {
        const ffa_attention_spec spec = tune_space_spec(job->record, job->which[i]);
        const ffa_compile_request *own;
        int64_t own_count;

        FFA_TRY(ffa_spec_requests_on(&lists[i], job->context, job->device, &spec, job->record->arch,
                                     err));
        own = ffa_requests_get(lists[i], &own_count);
        assert(*found + own_count <= REQUESTS_MAX);
        for (int64_t k = 0; k < own_count; k++) {
            all[*found] = own[k];
            owners[(*found)++] = job->which[i];
        }
    }
out:
    return rc;
}

ffa_status tune_compile(const struct tune_compile_job *job, tune_compiled_fn done, void *done_user,
                        ffa_error *err)
{
    ffa_requests *lists[TUNE_CONFIGURATIONS_MAX] = { NULL };
    ffa_compile_request all[REQUESTS_MAX] = { { 0 } };
    int32_t owners[REQUESTS_MAX];
    struct compiling compiling = { .done = done, .done_user = done_user, .owners = owners };
    ffa_precompile_opts opts = FFA_PRECOMPILE_OPTS_INIT;
    ffa_precompile_report report = FFA_PRECOMPILE_REPORT_INIT;
    int64_t found = 0;
    ffa_status rc;

    FFA_TRY(list_requests(job, lists, all, owners, &found, err));
    for (int64_t i = 0; i < found; i++)
        compiling.open[owners[i]]++;
    opts.event = request_done;
    opts.user = &compiling;
    opts.stop = job->stop;
    rc = ffa_precompile(job->context, all, found, &opts, &report, err);
    if (rc != FFA_OK && report.failed && !report.unfinished)
        rc = FFA_OK; /* those that failed were told of */
out:
    for (int32_t i = 0; i < job->count; i++)
        ffa_requests_destroy(lists[i]);
    return rc;
}
