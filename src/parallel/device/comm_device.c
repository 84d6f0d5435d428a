/* SPDX-License-Identifier: Apache-2.0
 *
 * The communicator of GPUs: its life, and the calls that passes make on it.
 *
 * Invariant: whatever a call enqueues stands between its begin and its end, and a call begins only
 * while the group is whole, under the lock under which the group breaks. So once the group is
 * broken and the ends of the recorded calls have passed, nothing more of this rank touches another
 * rank's memory.
 *
 * Trick: each value that a stream waits for is noted in the call's record, so the watchdog finds
 * out who was waited for, and for what, by comparing the record with the flag block.
 */
#include "parallel/device/comm_device.h"

#include "base/digest.h"
#include "service/context.h"

#include <errno.h>
#include <time.h>
#include <unistd.h>

enum { TIMEOUT_MS = 60000 };
#define TIMEOUT_MS_MAX ((int64_t)1 << 40)
#define WINDOW_BYTES_MAX ((int64_t)1 << 46)

/* ---- the order of communicators ----
 *
 * One entry for each group of ranks and rank in this process, kept until the process ends, as a
 * communicator may come back. `last` is the last call of the rank on any communicator of the group,
 * `before` the last one before it on another communicator. */

struct comm_order {
    struct comm_order *next;
    uint64_t group;
    int32_t rank;
    uint64_t last_id, last, before;
};

static pthread_mutex_t order_lock = PTHREAD_MUTEX_INITIALIZER;
static struct comm_order *orders; /* under order_lock, as what the entries hold */

static struct comm_order *order_find(uint64_t group, int32_t rank)
{
    struct comm_order *o;

    pthread_mutex_lock(&order_lock);
    for (o = orders; o && (o->group != group || o->rank != rank);)
        o = o->next;
    if (!o && (o = mem_array(1, sizeof *o)) != NULL) {
        o->group = group;
        o->rank = rank;
        o->next = orders;
        orders = o;
    }
    pthread_mutex_unlock(&order_lock);
    return o;
}

/* What this call comes after: see comm_block_after. */
static uint64_t order_enter(const struct comm_device *comm, uint64_t call)
{
    struct comm_order *o = comm->order;
    uint64_t before;

    pthread_mutex_lock(&order_lock);
    if (o->last_id != comm->id) {
        o->before = o->last;
        o->last_id = comm->id;
    }
    o->last = comm->id << 32 | (uint32_t)call;
    before = o->before;
    pthread_mutex_unlock(&order_lock);
    return before;
}

void comm_order_forget(const struct comm_device *comm)
{
    struct comm_order *o = comm->order;

    if (!o)
        return;
    pthread_mutex_lock(&order_lock);
    o->last_id = 0;
    o->last = o->before = COMM_AFTER_UNKNOWN;
    pthread_mutex_unlock(&order_lock);
}

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

/* ---- calls ----
 *
 * What is enqueued is not enqueued under the lock: the driver may block where a stream that waits
 * has a full queue, and it is the watchdog, which takes the lock, that ends such a wait. */

/* The rank itself failed. Under the lock. */
static void break_by_own(struct comm_device *comm, const ffa_error *why)
{
    char message[sizeof why->message];

    text_copy(message, "rank %d failed: %.400s", comm->comm.rank, why->message);
    comm_device_break(comm, FFA_COMM, message);
}

static struct comm_call *call_of(struct comm_device *comm, uint64_t call)
{
    int32_t i = 0;

    while (i < COMM_CALLS_MAX && comm->calls[i].call != call)
        i++;
    assert(comm->calls[i].call == call);
    return &comm->calls[i];
}

/* Operations on words of the stream, enqueued as often as the batch is full. */
struct batch {
    struct comm_device *comm;
    ffa_stream stream;
    struct gpu_value_op ops[GPU_VALUE_BATCH_MAX];
    int count;
};

static ffa_status batch_flush(struct batch *batch, ffa_error *err)
{
    const int count = batch->count;

    batch->count = 0;
    return gpu_value_batch(batch->comm->gpu, batch->stream, batch->ops, count, err);
}

static ffa_status batch_add(struct batch *batch, uint64_t *at, uint64_t value, bool is_wait,
                            ffa_error *err)
{
    ffa_status rc = FFA_OK;

    if (batch->count == GPU_VALUE_BATCH_MAX)
        FFA_TRY(batch_flush(batch, err));
    batch->ops[batch->count++] = (struct gpu_value_op){ at, value, is_wait };
out:
    return rc;
}

static uint64_t word_of(uint64_t call, const char *words)
{
    const uint64_t mask = ((uint64_t)1 << COMM_DIGEST_BITS) - 1;

    return call << COMM_DIGEST_BITS | (digest_short(words, strlen(words)) & mask);
}

/* Under the lock. */
static ffa_status check_open(struct comm_device *comm, ffa_error *err)
{
    char message[64];

    if (comm->left_rank >= 0) {
        text_copy(message, "rank %d has left", comm->left_rank);
        comm_device_break(comm, FFA_COMM, message);
    }
    return comm_device_status(comm, err);
}

static struct comm_call *record_begin(struct comm_device *comm, int32_t rounds, const char *words)
{
    const uint64_t n = comm->comm.call += (uint64_t)rounds;
    struct comm_call *record = &comm->calls[++comm->begun % COMM_CALLS_MAX];

    if (comm_call_is_under_way(record))
        record = &comm->calls[COMM_CALLS_MAX];
    record->call = n;
    record->word = word_of(n, words);
    record->after = order_enter(comm, n);
    record->has_begun = record->has_ended = record->is_over = false;
    record->enqueued_us = clock_us();
    record->begun_us = 0;
    record->spoil_count = 0;
    text_copy(record->words, "%s", words);
    memset(record->waits, 0, (size_t)comm->comm.rank_count * sizeof *record->waits);
    return record;
}

/* Both of our streams wait for the caller's; then the fetch stream says what the call is. */
static ffa_status enqueue_begin(struct comm_device *comm, const struct comm_call *record,
                                ffa_stream stream, ffa_error *err)
{
    const int32_t n = comm->comm.rank_count, own = comm->comm.rank;
    struct batch batch = { .comm = comm, .stream = gpu_stream_handle(comm->fetch) };
    ffa_status rc;

    FFA_TRY(gpu_event_wait(comm->last, stream, err)); /* of another stream, it may be */
    FFA_TRY(gpu_event_record(record->begin, stream, err));
    FFA_TRY(gpu_event_wait(record->begin, gpu_stream_handle(comm->fetch), err));
    FFA_TRY(gpu_event_wait(record->begin, gpu_stream_handle(comm->reduce), err));
    for (int32_t r = 0; r < n; r++) {
        if (r == own)
            continue;
        FFA_TRY(batch_add(&batch, &comm->blocks[r][comm_block_after(n, own)], record->after, false,
                          err));
        FFA_TRY(batch_add(&batch, &comm->blocks[r][comm_block_words(n, own)], record->word, false,
                          err));
    }
    rc = batch_flush(&batch, err);
out:
    return rc;
}

ffa_status comm_device_begin(uint64_t *call, struct comm_device *comm, ffa_stream stream,
                             const char *words, ffa_error *err)
{
    return comm_device_begin_rounds(call, comm, 1, stream, words, err);
}

ffa_status comm_device_begin_rounds(uint64_t *call, struct comm_device *comm, int32_t rounds,
                                    ffa_stream stream, const char *words, ffa_error *err)
{
    ffa_error failure = { FFA_OK, 0, "" };
    struct comm_call *record = NULL;
    ffa_status rc;

    *call = 0;
    pthread_mutex_lock(&comm->lock);
    rc = check_open(comm, &failure);
    if (rc == FFA_OK)
        record = record_begin(comm, rounds, words);
    pthread_mutex_unlock(&comm->lock);
    FFA_TRY(rc);
    rc = enqueue_begin(comm, record, stream, &failure);
    pthread_mutex_lock(&comm->lock);
    record->has_begun = rc == FFA_OK;
    if (rc == FFA_OK)
        *call = record->call;
    else
        break_by_own(comm, &failure);
    record->call = *call;
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
out:
    if (rc != FFA_OK && err)
        *err = failure;
    return rc;
}

ffa_status comm_device_end(struct comm_device *comm, uint64_t call, ffa_stream stream,
                           ffa_error *err)
{
    struct comm_call *record = call_of(comm, call);
    ffa_error failure = { FFA_OK, 0, "" };
    ffa_status rc = gpu_event_record(record->end, stream, &failure);

    if (rc == FFA_OK)
        rc = gpu_event_record(comm->last, stream, &failure);
    pthread_mutex_lock(&comm->lock);
    record->has_ended = true;
    if (rc != FFA_OK)
        break_by_own(comm, &failure);
    pthread_mutex_unlock(&comm->lock);
    if (rc != FFA_OK && err)
        *err = failure;
    return rc;
}

void comm_device_abandon(struct comm_device *comm, uint64_t call, ffa_stream stream,
                         const ffa_error *why)
{
    struct comm_call *record = call_of(comm, call);

    /* What the call has put on our streams may use the caller's workspace: it ends with the call.
     */
    (void)gpu_event_record(comm->left[0], gpu_stream_handle(comm->fetch), NULL);
    (void)gpu_event_record(comm->left[1], gpu_stream_handle(comm->reduce), NULL);
    (void)gpu_event_wait(comm->left[0], stream, NULL);
    (void)gpu_event_wait(comm->left[1], stream, NULL);
    (void)gpu_event_record(record->end, stream, NULL);
    pthread_mutex_lock(&comm->lock);
    record->has_ended = true;
    break_by_own(comm, why);
    pthread_mutex_unlock(&comm->lock);
}

/* ---- flags ---- */

/* The word of a block that `from` writes. */
static int64_t word_at(int32_t n, int32_t from, const struct comm_flag *flag)
{
    switch (flag->channel) {
    case CHANNEL_ROWS_READY:
        return comm_block_rows_ready(n, from);
    case CHANNEL_ROWS_DONE:
        return comm_block_rows_done(n, from);
    case CHANNEL_SUMS_READY:
        return comm_block_sums_ready(n, from, flag->stage);
    case CHANNEL_TOTALS_READY:
        return comm_block_totals_ready(n, from);
    default:
        return comm_block_sums_done(n, from);
    }
}

static uint64_t value_of(uint64_t call, const struct comm_flag *flag)
{
    return call - (uint64_t)flag->behind;
}

static void note_wait(struct comm_call *record, const struct comm_flag *flag)
{
    struct comm_waits *waits = &record->waits[flag->rank];

    assert(flag->channel != CHANNEL_ROWS_DONE);
    if (flag->channel == CHANNEL_SUMS_DONE) /* it comes after those of earlier calls */
        waits->credits[WINDOW_SUMS] = value_of(record->call, flag);
    else if (flag->channel == CHANNEL_ROWS_READY)
        waits->rows_ready = true;
    else if (flag->channel == CHANNEL_TOTALS_READY)
        waits->totals_ready = true;
    else
        waits->sums_ready |= (uint16_t)(1u << flag->stage);
}

ffa_status comm_device_wait(struct comm_device *comm, uint64_t call, ffa_stream stream,
                            const struct comm_flag *flags, int32_t count, ffa_error *err)
{
    const int32_t n = comm->comm.rank_count;
    struct batch batch = { .comm = comm, .stream = stream };
    struct comm_call *record = call_of(comm, call);
    ffa_status rc = FFA_OK;

    pthread_mutex_lock(&comm->lock);
    for (int32_t i = 0; i < count; i++)
        note_wait(record, &flags[i]);
    pthread_mutex_unlock(&comm->lock);
    for (int32_t i = 0; i < count; i++)
        FFA_TRY(batch_add(&batch, &comm_device_own(comm)[word_at(n, flags[i].rank, &flags[i])],
                          value_of(call, &flags[i]), true, err));
    rc = batch_flush(&batch, err);
out:
    return rc;
}

ffa_status comm_device_signal(struct comm_device *comm, uint64_t call, ffa_stream stream,
                              const struct comm_flag *flags, int32_t count, ffa_error *err)
{
    const int32_t n = comm->comm.rank_count;
    struct batch batch = { .comm = comm, .stream = stream };
    ffa_status rc = FFA_OK;

    for (int32_t i = 0; i < count; i++) {
        uint64_t *block = comm->blocks[flags[i].rank];

        if (flags[i].channel == CHANNEL_ROWS_READY)
            comm->lent[WINDOW_ROWS][flags[i].rank] = call;
        FFA_TRY(
            batch_add(&batch, &block[word_at(n, comm->comm.rank, &flags[i])],
                      value_of(call, &flags[i]), false, err));
    }
    rc = batch_flush(&batch, err);
out:
    return rc;
}

void comm_device_lend_sums(struct comm_device *comm, uint64_t call, int32_t rank)
{
    comm->lent[WINDOW_SUMS][rank] = call;
}

ffa_status comm_device_reclaim(struct comm_device *comm, uint64_t call, enum comm_window window,
                               ffa_stream stream, ffa_error *err)
{
    static const enum comm_channel done[WINDOW_COUNT] = { CHANNEL_ROWS_DONE, CHANNEL_SUMS_DONE };
    const int32_t n = comm->comm.rank_count;
    struct batch batch = { .comm = comm, .stream = stream };
    struct comm_call *record = call_of(comm, call);
    ffa_status rc = FFA_OK;

    pthread_mutex_lock(&comm->lock);
    for (int32_t r = 0; r < n; r++)
        record->waits[r].credits[window] = comm->lent[window][r];
    pthread_mutex_unlock(&comm->lock);
    for (int32_t r = 0; r < n; r++) {
        const struct comm_flag flag = { done[window], r, 0 };
        const uint64_t lent = comm->lent[window][r];

        if (lent)
            FFA_TRY(
                batch_add(&batch, &comm_device_own(comm)[word_at(n, r, &flag)], lent, true, err));
        comm->lent[window][r] = 0;
    }
    rc = batch_flush(&batch, err);
out:
    return rc;
}

ffa_status comm_device_arrive(struct comm_device *comm, uint64_t value, ffa_stream stream,
                              int32_t stage, ffa_error *err)
{
    return gpu_write_value(
        comm->gpu, stream,
        &comm_device_own(comm)[comm_block_arrivals(comm->comm.rank_count, stage)], value, err);
}

void comm_device_spoil(struct comm_device *comm, uint64_t call, void *memory, int64_t bytes)
{
    struct comm_call *record = call_of(comm, call);

    pthread_mutex_lock(&comm->lock);
    if (bytes > 0 && record->spoil_count < COMM_SPOILS_MAX)
        record->spoils[record->spoil_count++] = (struct comm_spoil){ memory, bytes };
    pthread_mutex_unlock(&comm->lock);
}

/* ---- the table ---- */

static struct comm_device *device_of(ffa_comm *comm)
{
    return (struct comm_device *)(void *)comm;
}

static void device_free_all(struct comm_device *comm, bool is_safe)
{
    comm_peer_finish(comm, is_safe);
    for (int32_t i = 0; i <= COMM_CALLS_MAX; i++) {
        gpu_event_destroy(comm->calls[i].begin);
        gpu_event_destroy(comm->calls[i].end);
        mem_free(comm->calls[i].waits);
    }
    gpu_event_destroy(comm->last);
    gpu_event_destroy(comm->left[0]);
    gpu_event_destroy(comm->left[1]);
    gpu_event_destroy(comm->drained[0]);
    gpu_event_destroy(comm->drained[1]);
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
    FFA_TRY(gpu_event_create(&comm->last, comm->gpu, false, err));
    FFA_TRY(gpu_event_create(&comm->left[0], comm->gpu, false, err));
    FFA_TRY(gpu_event_create(&comm->left[1], comm->gpu, false, err));
    FFA_TRY(gpu_event_create(&comm->drained[0], comm->gpu, false, err));
    rc = gpu_event_create(&comm->drained[1], comm->gpu, false, err);
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
    FFA_TRY(gpu_stream_create(&comm->reduce, comm->gpu, -1, err));
    FFA_TRY(gpu_stream_create(&comm->watch, comm->gpu, -1, err));
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
    comm->left_rank = -1;
    atomic_init(&comm->broken, FFA_OK);
    return comm;
}

ffa_status ffa_comm_create_peer(ffa_comm **out, ffa_context *context, const ffa_peer_opts *opts,
                                ffa_error *err)
{
    ffa_error failure = { FFA_OK, 0, "" };
    struct comm_device *comm = NULL;
    ffa_peer_opts resolved;
    ffa_status rc;

    *out = NULL;
    FFA_TRY(resolve(&resolved, context, opts, err));
    comm = device_new(context, &resolved);
    if (!comm) {
        rc = error_nomem(err, "a communicator");
        goto out;
    }
    rc = make_own(comm, &failure);
    FFA_TRY(comm_peer_agree(comm, rc, &failure, err));
    FFA_TRY(comm_peer_join(comm, (const int64_t[]){ resolved.key_bytes, resolved.sum_bytes }, err));
    comm->order = order_find(comm->group, comm->comm.rank);
    rc = comm->order ? FFA_OK : error_nomem(&failure, "a communicator");
    if (rc == FFA_OK)
        rc = comm_watchdog_start(comm, &failure);
    FFA_TRY(comm_peer_agree(comm, rc, &failure, err));
    *out = &comm->comm;
    comm = NULL;
out:
    if (comm) {
        const bool is_safe = comm_watchdog_leave(comm);

        device_free_all(comm, is_safe);
    }
    return rc;
}
