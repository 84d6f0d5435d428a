/* SPDX-License-Identifier: Apache-2.0
 *
 * The communicator of GPUs: its creation and its end, and the group's status. What passes do on it
 * is in comm_call.c.
 *
 * Invariant: the group breaks once, and its message does not change any more: it is written before
 * `broken`, under the lock, and read after it.
 */
#include "parallel/device/comm_device.h"

#include "service/context.h"

#include <time.h>

enum { TIMEOUT_MS = 60000 };
enum { CTAS_MAX = 64 }; /* that NCCL takes */
#define TIMEOUT_MS_MAX ((int64_t)1 << 40)
#define WINDOW_BYTES_MAX ((int64_t)1 << 46)

/* ---- the group's status ---- */

void comm_device_break(struct comm_device *comm, ffa_status status, const char *message)
{
    if (atomic_load(&comm->broken) == FFA_OK) {
        text_copy(comm->message, "%s", message);
        atomic_store(&comm->broken, (int)status);
    }
    comm->is_closed = true;
    pthread_cond_broadcast(&comm->changed);
}

void comm_device_cancel(struct comm_device *comm, ffa_status status, const char *message)
{
    pthread_mutex_lock(&comm->lock);
    comm_device_break(comm, status, message);
    pthread_mutex_unlock(&comm->lock);
}

/* The message does not change once `broken` is set. */
ffa_status comm_device_status(const struct comm_device *comm, ffa_error *err)
{
    const ffa_status broken = (ffa_status)atomic_load(&comm->broken);

    return broken == FFA_OK ? FFA_OK : error_fail(err, broken, 0, "%s", comm->message);
}

/* ---- the table ---- */

static struct comm_device *device_of(ffa_comm *comm)
{
    return (struct comm_device *)(void *)comm;
}

static void device_free_all(struct comm_device *comm, bool is_safe)
{
    is_safe = comm_exchange_finish(comm) && is_safe;
    comm_peer_finish(comm, is_safe);
    for (int32_t i = 0; i <= COMM_CALLS_MAX; i++) {
        gpu_event_destroy(comm->calls[i].begin);
        gpu_event_destroy(comm->calls[i].end);
        mem_free(comm->calls[i].waits);
    }
    for (int i = 0; i < COMM_STREAMS; i++) {
        gpu_event_destroy(comm->left[i]);
        gpu_event_destroy(comm->drained[i]);
    }
    if (comm->network != comm->fetch)
        gpu_stream_destroy(comm->network);
    gpu_stream_destroy(comm->fetch);
    gpu_stream_destroy(comm->reduce);
    gpu_stream_destroy(comm->watch);
    if (comm->has_lock) {
        pthread_cond_destroy(&comm->changed);
        pthread_mutex_destroy(&comm->lock);
    }
    mem_free(comm->seen);
    mem_free(comm->said);
    mem_free(comm->verdicts);
    comm_bootstrap_finish(comm->bootstrap, is_safe);
    mem_free(comm->nccl_path);
    mem_free(comm);
}

static void device_destroy(ffa_comm *comm)
{
    struct comm_device *c = device_of(comm);
    const bool is_safe = comm_watchdog_leave(c);

    comm_order_forget(c);
    device_free_all(c, is_safe);
}

static void device_cancel(ffa_comm *comm, ffa_status status, const char *message)
{
    comm_device_cancel(device_of(comm), status, message);
}

static ffa_status device_status(const ffa_comm *comm, ffa_error *err)
{
    return comm_device_status((const struct comm_device *)(const void *)comm, err);
}

static ffa_status device_gather(ffa_comm *comm, const void *mine, void *all, size_t bytes,
                                ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(comm_device_status(device_of(comm), err));
    rc = comm_peer_gather(device_of(comm), mine, all, bytes, err);
out:
    return rc;
}

/* The first that a pass on the host asks for. */
static ffa_status device_enter(ffa_comm *comm, uint64_t call, const char *words, ffa_error *err)
{
    (void)comm;
    (void)call;
    (void)words;
    return error_fail(err, FFA_INVALID, 0,
                      "the communicator is of GPUs: passes on the host take one of "
                      "ffa_loopback_create");
}

static ffa_status device_drain(ffa_comm *comm, ffa_error *err)
{
    return device_status(comm, err);
}

static ffa_status device_reserve(ffa_comm *comm, int64_t key_bytes, int64_t sum_bytes,
                                 ffa_error *err)
{
    const int64_t bytes[WINDOW_COUNT] = { key_bytes, sum_bytes };
    ffa_status rc;

    FFA_TRY(comm_device_status(device_of(comm), err));
    rc = comm_peer_reserve(device_of(comm), bytes, err);
out:
    return rc;
}

static const struct comm_ops device_ops = {
    .destroy = device_destroy,
    .drain = device_drain,
    .gather = device_gather,
    .enter = device_enter,
    .reserve = device_reserve,
    .status = device_status,
    .cancel = device_cancel,
};

struct comm_device *comm_device_of(ffa_comm *comm)
{
    return comm && comm->ops == &device_ops ? device_of(comm) : NULL;
}

ffa_transport ffa_comm_transport(const ffa_comm *comm)
{
    const struct comm_device *c = (const struct comm_device *)(const void *)comm;

    if (!comm || comm->ops != &device_ops)
        return FFA_TRANSPORT_AUTO;
    return comm_device_relays(c) ? FFA_TRANSPORT_RELAY
           : c->exchange         ? FFA_TRANSPORT_EXCHANGE
                                 : FFA_TRANSPORT_PULL;
}

/* ---- creation ---- */

static ffa_status resolve(ffa_peer_opts *out, ffa_context *context, const ffa_peer_opts *opts,
                          ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(opts_import(out, sizeof *out, opts, err));
    if (out->timeout_ms == 0)
        out->timeout_ms = TIMEOUT_MS;
    const struct bounded fields[] = {
        { "rank_count", out->rank_count, 1, COMM_RANKS_MAX },
        { "rank", out->rank, 0, (int64_t)out->rank_count - 1 },
        { "key_bytes", out->key_bytes, 0, WINDOW_BYTES_MAX },
        { "sum_bytes", out->sum_bytes, 0, WINDOW_BYTES_MAX },
        { "timeout_ms", out->timeout_ms, 1, TIMEOUT_MS_MAX },
        { "transport", out->transport, FFA_TRANSPORT_AUTO, FFA_TRANSPORT_RELAY },
        { "ranks_per_node", out->ranks_per_node, 0, COMM_RANKS_MAX },
        { "max_ctas", out->max_ctas, 0, CTAS_MAX },
    };
    FFA_TRY(check_bounded(fields, sizeof fields / sizeof *fields, err));
    if (!out->allgather)
        rc = error_fail(err, FFA_INVALID, 0, "allgather is NULL");
    else if (!context)
        rc = error_fail(err, FFA_INVALID, 0, "context is NULL");
out:
    return rc;
}

static ffa_status make_lock(struct comm_device *comm, ffa_error *err)
{
    pthread_condattr_t attributes;
    int failed = 1;

    if (pthread_condattr_init(&attributes) == 0) {
        if (pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC) == 0 &&
            pthread_mutex_init(&comm->lock, NULL) == 0) {
            failed = pthread_cond_init(&comm->changed, &attributes);
            if (failed)
                pthread_mutex_destroy(&comm->lock);
        }
        pthread_condattr_destroy(&attributes);
    }
    comm->has_lock = !failed;
    return failed ? error_nomem(err, "the lock of a communicator") : FFA_OK;
}

static ffa_status make_calls(struct comm_device *comm, ffa_error *err)
{
    const size_t n = (size_t)comm->comm.rank_count;
    ffa_status rc = FFA_OK;

    comm->seen = mem_array((size_t)comm_block_count(comm->comm.rank_count), sizeof *comm->seen);
    comm->said = mem_array(n, sizeof *comm->said);
    if (!comm->seen || !comm->said) {
        rc = error_nomem(err, "the watchdog of a communicator");
        goto out;
    }
    for (int32_t i = 0; i <= COMM_CALLS_MAX; i++) {
        struct comm_call *record = &comm->calls[i];

        record->waits = mem_array(n, sizeof *record->waits);
        if (!record->waits) {
            rc = error_nomem(err, "the calls of a communicator");
            goto out;
        }
        FFA_TRY(gpu_event_create(&record->begin, comm->gpu, false, err));
        FFA_TRY(gpu_event_create(&record->end, comm->gpu, false, err));
    }
    for (int i = 0; i < COMM_STREAMS; i++) {
        FFA_TRY(gpu_event_create(&comm->left[i], comm->gpu, false, err));
        FFA_TRY(gpu_event_create(&comm->drained[i], comm->gpu, false, err));
    }
out:
    return rc;
}

/* What needs no other rank. */
static ffa_status make_own(struct comm_device *comm, ffa_error *err)
{
    ffa_status rc;

    if (!comm->gpu) {
        rc = error_fail(err, FFA_UNSUPPORTED, 0,
                        "the context has no GPU: ranks on the CPU join by ffa_loopback_create");
        goto out;
    }
    FFA_TRY(make_lock(comm, err));
    FFA_TRY(gpu_stream_create(&comm->fetch, comm->gpu, -1, err));
    if (comm->transport == FFA_TRANSPORT_RELAY)
        FFA_TRY(gpu_stream_create(&comm->network, comm->gpu, -1, err));
    else
        comm->network = comm->fetch;
    FFA_TRY(gpu_stream_create(&comm->reduce, comm->gpu, -1, err));
    /* A hardware queue has streams of one priority: nobody's wait is to stand before a poison. */
    FFA_TRY(gpu_stream_create(&comm->watch, comm->gpu, GPU_PRIORITY_GREATEST, err));
    rc = make_calls(comm, err);
out:
    return rc;
}

static struct comm_device *device_new(ffa_context *context, const ffa_peer_opts *opts)
{
    struct comm_device *comm = mem_array(1, sizeof *comm);

    if (!comm)
        return NULL;
    /* First of all, as without it the other ranks cannot be told of any failure. */
    comm->verdicts = mem_array((size_t)opts->rank_count, sizeof *comm->verdicts);
    if (!comm->verdicts) {
        mem_free(comm);
        return NULL;
    }
    comm->comm.ops = &device_ops;
    comm->comm.rank = opts->rank;
    comm->comm.rank_count = opts->rank_count;
    comm->context = context;
    comm->gpu = context->gpu;
    comm->allgather = opts->allgather;
    comm->user = opts->user;
    comm->timeout_ms = opts->timeout_ms;
    comm->transport = opts->transport;
    comm->max_ctas = opts->max_ctas;
    comm->ranks_per_node = opts->ranks_per_node;
    comm->node_ranks = opts->rank_count;
    comm->is_mapped = true;
    comm->left_rank = -1;
    comm->neighbour = -1;
    atomic_init(&comm->broken, FFA_OK);
    return comm;
}

/* What needs other ranks. */
static ffa_status join(struct comm_device *comm, const ffa_peer_opts *opts, ffa_error *err)
{
    ffa_error failure = { FFA_OK, 0, "" };
    ffa_status rc = make_own(comm, &failure);

    if (rc == FFA_OK && opts->nccl_path && !(comm->nccl_path = mem_strdup(opts->nccl_path)))
        rc = error_nomem(&failure, "a communicator");
    FFA_TRY(comm_peer_agree(comm, rc, &failure, err));
    FFA_TRY(comm_peer_join(comm, (const int64_t[]){ opts->key_bytes, opts->sum_bytes }, err));
    if (comm_peer_exchanges(comm))
        FFA_TRY(comm_exchange_create(comm, err));
    comm->order = comm_order_find(comm->group, comm->comm.rank);
    rc = comm->order ? FFA_OK : error_nomem(&failure, "a communicator");
    if (rc == FFA_OK)
        rc = comm_watchdog_start(comm, &failure);
    rc = comm_peer_agree(comm, rc, &failure, err);
out:
    return rc;
}

ffa_status comm_device_create(ffa_comm **out, ffa_context *context, const ffa_peer_opts *opts,
                              struct comm_bootstrap *bootstrap, ffa_error *err)
{
    struct comm_device *comm = NULL;
    ffa_peer_opts resolved;
    ffa_status rc;

    FFA_TRY(resolve(&resolved, context, opts, err));
    comm = device_new(context, &resolved);
    if (!comm) {
        rc = error_nomem(err, "a communicator");
        goto out;
    }
    text_copy(comm->comm.cost_digest, "%s", context_choose_device(context).digest);
    comm->bootstrap = bootstrap;
    bootstrap = NULL;
    FFA_TRY(join(comm, &resolved, err));
    *out = &comm->comm;
    comm = NULL;
out:
    comm_bootstrap_finish(bootstrap, true);
    if (comm) {
        const bool is_safe = comm_watchdog_leave(comm);

        device_free_all(comm, is_safe);
    }
    return rc;
}

ffa_status ffa_comm_create_peer(ffa_comm **out, ffa_context *context, const ffa_peer_opts *opts,
                                ffa_error *err)
{
    *out = NULL;
    return comm_device_create(out, context, opts, NULL, err);
}
