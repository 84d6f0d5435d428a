/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls on the communicator of GPUs: their begin and end, and the flags between them.
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

/* ---- the order of communicators ----
 *
 * All ranks make their calls on several communicators in the same order, or wait for each other
 * without end: the watchdog compares what each call came after. There is an entry for each
 * (group of ranks, rank of this process), kept until the process ends, as the group may get another
 * communicator later. */

struct comm_order {
    struct comm_order *next;
    uint64_t group;
    int32_t rank;
    uint64_t last_id; /* the communicator of the rank's last call; 0: none yet, or forgotten */
    uint64_t last;    /* that call */
    uint64_t before;  /* the one before, on another communicator; 0: none, or COMM_AFTER_UNKNOWN */
};

static pthread_mutex_t order_lock = PTHREAD_MUTEX_INITIALIZER;
static struct comm_order *orders; /* under order_lock, as what the entries hold */

struct comm_order *comm_order_find(uint64_t group, int32_t rank)
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

/* A word that peers' watchdogs compare with their own. It has the number of the call beside the
 * content, so that one read of it never mixes two calls. */
static uint64_t word_of(uint64_t begun, uint64_t content)
{
    return begun << COMM_DIGEST_BITS | (content & COMM_DIGEST_MASK);
}

/* What this call comes after: see comm_block_after. */
static uint64_t order_enter(const struct comm_device *comm)
{
    const uint64_t begun = comm->begun;
    struct comm_order *o = comm->order;
    uint64_t before, content;

    pthread_mutex_lock(&order_lock);
    if (o->last_id != comm->id) {
        o->before = o->last;
        o->last_id = comm->id;
    }
    o->last = comm->id << 32 | (uint32_t)begun;
    before = o->before;
    pthread_mutex_unlock(&order_lock);
    content = before == COMM_AFTER_UNKNOWN ? COMM_DIGEST_MASK
              : before                     ? digest_short(&before, sizeof before)
                                           : 0;
    return word_of(begun, content);
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

ffa_status comm_batch_flush(struct comm_batch *batch, ffa_error *err)
{
    const int count = batch->count;

    batch->count = 0;
    return gpu_value_batch(batch->comm->gpu, batch->stream, batch->ops, count, err);
}

static ffa_status batch_add(struct comm_batch *batch, uint64_t *at, uint64_t value, bool is_wait,
                            ffa_error *err)
{
    ffa_status rc = FFA_OK;

    if (batch->count == GPU_VALUE_BATCH_MAX)
        FFA_TRY(comm_batch_flush(batch, err));
    batch->ops[batch->count++] = (struct gpu_value_op){ at, value, is_wait };
out:
    return rc;
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

/* Streams that wait for each other must not be one stream. */
static ffa_status check_stream(const struct comm_device *comm, ffa_stream stream, ffa_error *err)
{
    if (comm->neighbour < 0 || !gpu_stream_is_legacy(stream))
        return FFA_OK;
    return error_fail(err, FFA_INVALID, 0,
                      "stream is the legacy default stream, which rank %d shares with rank %d, of "
                      "the same process and device: each of them takes a stream of its own",
                      comm->comm.rank, comm->neighbour);
}

static struct comm_call *record_begin(struct comm_device *comm, const struct comm_opening *opening)
{
    const char *words = opening->words;
    const uint64_t n = comm->comm.call += (uint64_t)opening->rounds;
    struct comm_call *record = &comm->calls[++comm->begun % COMM_CALLS_MAX];

    if (comm_call_is_under_way(record))
        record = &comm->calls[COMM_CALLS_MAX];
    record->call = n;
    record->word = word_of(comm->begun, digest_short(words, strlen(words)));
    record->after = order_enter(comm);
    text_copy(record->name, "%s", opening->name);
    text_copy(record->publishes, "%s", opening->publishes);
    record->has_begun = record->has_ended = record->is_over = false;
    record->enqueued_us = clock_us();
    record->begun_us = 0;
    record->spoil_count = 0;
    text_copy(record->words, "%s", words);
    memset(record->waits, 0, (size_t)comm->comm.rank_count * sizeof *record->waits);
    for (int32_t r = 0; r < comm->comm.rank_count; r++)
        record->waits[r].hello = comm->exchange && r != comm->comm.rank;
    return record;
}

/* Into the blocks of all peers. */
static ffa_status tell_words(struct comm_batch *batch, const struct comm_call *record,
                             ffa_error *err)
{
    const struct comm_device *comm = batch->comm;
    const int32_t n = comm->comm.rank_count, own = comm->comm.rank;
    ffa_status rc = FFA_OK;

    for (int32_t r = 0; r < n; r++) {
        if (r == own)
            continue;
        FFA_TRY(batch_add(batch, &comm->blocks[r][comm_block_after(n, own)], record->after, false,
                          err));
        FFA_TRY(
            batch_add(batch, &comm->blocks[r][comm_block_words(n, own)], record->word, false, err));
    }
out:
    return rc;
}

/* The fetch or network stream says what the call is. */
static ffa_status enqueue_words(struct comm_device *comm, const struct comm_call *record,
                                struct comm_batch *fetch, ffa_error *err)
{
    struct comm_batch batch;
    ffa_status rc;

    if (comm->exchange)
        return comm_exchange_hello(comm, record, err);
    if (fetch)
        return tell_words(fetch, record, err);
    comm_batch_init(&batch, comm, gpu_stream_handle(comm->fetch));
    FFA_TRY(tell_words(&batch, record, err));
    rc = comm_batch_flush(&batch, err);
out:
    return rc;
}

/* The network stream may be the fetch stream. */
static bool takes_part(const struct comm_device *comm, int i, const struct comm_opening *opening)
{
    const struct gpu_stream *stream = comm_device_stream(comm, i);

    return stream == comm->reduce ? !opening->leaves_reduce : i == 0 || stream != comm->fetch;
}

/* Our streams wait for the caller's. */
static ffa_status enqueue_begin(struct comm_device *comm, const struct comm_call *record,
                                const struct comm_opening *opening, ffa_error *err)
{
    const ffa_stream stream = opening->stream;
    uint64_t id;
    ffa_status rc;

    FFA_TRY(gpu_stream_id(comm->gpu, stream, &id, err));
    if (comm->last && comm->last_stream != id) /* the end of the call before */
        FFA_TRY(gpu_event_wait(comm->last, stream, err));
    comm->last_stream = id;
    FFA_TRY(gpu_event_record(record->begin, stream, err));
    for (int i = 0; i < COMM_STREAMS; i++)
        if (takes_part(comm, i, opening))
            FFA_TRY(
                gpu_event_wait(record->begin, gpu_stream_handle(comm_device_stream(comm, i)), err));
    rc = enqueue_words(comm, record, opening->fetch, err);
out:
    return rc;
}

ffa_status comm_device_open(uint64_t *call, struct comm_device *comm,
                            const struct comm_opening *opening, ffa_error *err)
{
    ffa_error failure = { FFA_OK, 0, "" };
    struct comm_call *record = NULL;
    ffa_status rc;

    *call = 0;
    FFA_TRY(check_stream(comm, opening->stream, &failure));
    pthread_mutex_lock(&comm->lock);
    rc = check_open(comm, &failure);
    if (rc == FFA_OK)
        record = record_begin(comm, opening);
    pthread_mutex_unlock(&comm->lock);
    FFA_TRY(rc);
    rc = enqueue_begin(comm, record, opening, &failure);
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

    comm->last = record->end;
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
    for (int i = 0; i < COMM_STREAMS; i++) {
        (void)gpu_event_record(comm->left[i], gpu_stream_handle(comm_device_stream(comm, i)), NULL);
        (void)gpu_event_wait(comm->left[i], stream, NULL);
    }
    (void)gpu_event_record(record->end, stream, NULL);
    pthread_mutex_lock(&comm->lock);
    record->has_ended = true;
    break_by_own(comm, why);
    pthread_mutex_unlock(&comm->lock);
}

/* ---- flags ---- */

/* Where in a flag block of n ranks the word of this flag is that rank `from` writes. */
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
    case CHANNEL_RELAYED:
        return comm_block_relayed(n, from, flag->stage);
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
    else if (flag->channel == CHANNEL_RELAYED)
        waits->relayed |= (uint16_t)(1u << flag->stage);
    else
        waits->sums_ready |= (uint16_t)(1u << flag->stage);
}

ffa_status comm_batch_wait(struct comm_batch *batch, uint64_t call, const struct comm_flag *flags,
                           int32_t count, ffa_error *err)
{
    struct comm_device *comm = batch->comm;
    const int32_t n = comm->comm.rank_count;
    struct comm_call *record = call_of(comm, call);
    ffa_status rc = FFA_OK;

    pthread_mutex_lock(&comm->lock);
    for (int32_t i = 0; i < count; i++)
        if (flags[i].rank != comm->comm.rank) /* what it waits for then is another's */
            note_wait(record, &flags[i]);
    pthread_mutex_unlock(&comm->lock);
    for (int32_t i = 0; i < count; i++)
        FFA_TRY(batch_add(batch, &comm_device_own(comm)[word_at(n, flags[i].rank, &flags[i])],
                          value_of(call, &flags[i]), true, err));
out:
    return rc;
}

ffa_status comm_device_wait(struct comm_device *comm, uint64_t call, ffa_stream stream,
                            const struct comm_flag *flags, int32_t count, ffa_error *err)
{
    struct comm_batch batch;
    ffa_status rc;

    comm_batch_init(&batch, comm, stream);
    FFA_TRY(comm_batch_wait(&batch, call, flags, count, err));
    rc = comm_batch_flush(&batch, err);
out:
    return rc;
}

ffa_status comm_batch_signal(struct comm_batch *batch, uint64_t call, const struct comm_flag *flags,
                             int32_t count, ffa_error *err)
{
    struct comm_device *comm = batch->comm;
    const int32_t n = comm->comm.rank_count;
    ffa_status rc = FFA_OK;

    for (int32_t i = 0; i < count; i++) {
        uint64_t *block = comm->blocks[flags[i].rank];

        if (flags[i].channel == CHANNEL_ROWS_READY ||
            (flags[i].channel == CHANNEL_RELAYED && flags[i].rank != comm->comm.rank))
            comm->lent[WINDOW_ROWS][flags[i].rank] = call;
        FFA_TRY(batch_add(batch, &block[word_at(n, comm->comm.rank, &flags[i])],
                          value_of(call, &flags[i]), false, err));
    }
out:
    return rc;
}

ffa_status comm_device_signal(struct comm_device *comm, uint64_t call, ffa_stream stream,
                              const struct comm_flag *flags, int32_t count, ffa_error *err)
{
    struct comm_batch batch;
    ffa_status rc;

    comm_batch_init(&batch, comm, stream);
    FFA_TRY(comm_batch_signal(&batch, call, flags, count, err));
    rc = comm_batch_flush(&batch, err);
out:
    return rc;
}

ffa_status comm_batch_tell(struct comm_batch *batch, uint64_t call, enum comm_channel channel,
                           const int32_t *ranks, int32_t count, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    for (int32_t i = 0; i < count; i++)
        FFA_TRY(comm_batch_signal(
            batch, call, &(struct comm_flag){ .channel = channel, .rank = ranks[i] }, 1, err));
out:
    return rc;
}

ffa_status comm_device_tell(struct comm_device *comm, uint64_t call, ffa_stream stream,
                            enum comm_channel channel, const int32_t *ranks, int32_t count,
                            ffa_error *err)
{
    struct comm_batch batch;
    ffa_status rc;

    comm_batch_init(&batch, comm, stream);
    FFA_TRY(comm_batch_tell(&batch, call, channel, ranks, count, err));
    rc = comm_batch_flush(&batch, err);
out:
    return rc;
}

void comm_device_lend_sums(struct comm_device *comm, uint64_t call, int32_t rank)
{
    comm->lent[WINDOW_SUMS][rank] = call;
}

static ffa_status await_credits(struct comm_batch *batch, enum comm_window window, ffa_error *err)
{
    static const enum comm_channel done[WINDOW_COUNT] = { CHANNEL_ROWS_DONE, CHANNEL_SUMS_DONE };
    const struct comm_device *comm = batch->comm;
    const int32_t n = comm->comm.rank_count;
    ffa_status rc = FFA_OK;

    for (int32_t r = 0; r < n; r++) {
        const struct comm_flag flag = { .channel = done[window], .rank = r };
        const uint64_t lent = comm->lent[window][r];

        if (lent)
            FFA_TRY(
                batch_add(batch, &comm_device_own(comm)[word_at(n, r, &flag)], lent, true, err));
    }
out:
    return rc;
}

ffa_status comm_batch_reclaim(struct comm_batch *batch, struct comm_batch *also, uint64_t call,
                              enum comm_window window, ffa_error *err)
{
    struct comm_device *comm = batch->comm;
    const int32_t n = comm->comm.rank_count;
    struct comm_call *record = call_of(comm, call);
    ffa_status rc;

    pthread_mutex_lock(&comm->lock);
    for (int32_t r = 0; r < n; r++)
        record->waits[r].credits[window] = comm->lent[window][r];
    pthread_mutex_unlock(&comm->lock);
    FFA_TRY(await_credits(batch, window, err));
    if (also)
        FFA_TRY(await_credits(also, window, err));
    for (int32_t r = 0; r < n; r++)
        comm->lent[window][r] = 0;
out:
    return rc;
}

ffa_status comm_batch_arrive(struct comm_batch *batch, uint64_t value, int32_t stage,
                             ffa_error *err)
{
    const struct comm_device *comm = batch->comm;

    return batch_add(batch,
                     &comm_device_own(comm)[comm_block_arrivals(comm->comm.rank_count, stage)],
                     value, false, err);
}

ffa_status comm_device_arrive(struct comm_device *comm, uint64_t value, ffa_stream stream,
                              int32_t stage, ffa_error *err)
{
    struct comm_batch batch;
    ffa_status rc;

    comm_batch_init(&batch, comm, stream);
    FFA_TRY(comm_batch_arrive(&batch, value, stage, err));
    rc = comm_batch_flush(&batch, err);
out:
    return rc;
}

void comm_device_spoil(struct comm_device *comm, uint64_t call, void *memory, int64_t bytes)
{
    struct comm_call *record = call_of(comm, call);

    pthread_mutex_lock(&comm->lock);
    if (bytes > 0 && record->spoil_count < COMM_SPOILS_MAX)
        record->spoils[record->spoil_count++] = (struct comm_spoil){ memory, bytes };
    pthread_mutex_unlock(&comm->lock);
}
