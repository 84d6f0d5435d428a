/* SPDX-License-Identifier: Apache-2.0
 *
 * The watchdog: a thread of each rank that ends what would wait for ever, and says why.
 *
 * Every few milliseconds it asks which calls are over and reads the rank's own flag block. What
 * others said there, calls that differ, and calls that take too long break the group. Then it tells
 * the others, fills what the calls receive with NaN, and poisons flags: first those that kernels
 * and the caller's stream wait for, and a little later those of the fetch and reduce streams, whose
 * copies would put old rows over the NaN. It poisons until nothing of the rank is under way, as a
 * peer's late signal may take a poison away.
 *
 * Invariant: a rank writes to a peer's memory only while that peer cannot have freed it. A peer
 * frees its memory when every rank has left or said that it is quiet, and that word is the last
 * that a rank writes.
 */
#include "parallel/device/comm_device.h"

#include "gpu/gpu_poll.h"

#include <errno.h>
#include <signal.h>
#include <time.h>

enum {
    TICK_BUSY_US = 10000,
    TICK_IDLE_US = 50000,
    TICK_LEAVE_US = 1000,
    GRACE_US = 200000, /* from the poison of kernels to that of the fetch and reduce streams */
    SPOIL_BYTES = 1 << 20
};

/* ---- what has happened ---- */

static ffa_status read_block(struct comm_device *comm, ffa_error *err)
{
    return gpu_read(comm->gpu, gpu_stream_handle(comm->watch), comm->seen, comm_device_own(comm),
                    comm_block_count(comm->comm.rank_count) * (int64_t)sizeof *comm->seen, err);
}

/* Which calls have begun and ended. Under the lock. */
static ffa_status poll_calls(struct comm_device *comm, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    for (int32_t i = 0; i <= COMM_CALLS_MAX; i++) {
        struct comm_call *c = &comm->calls[i];
        bool is_past;

        if (!comm_call_is_under_way(c) || !c->has_begun)
            continue;
        if (!c->begun_us) {
            FFA_TRY(gpu_event_query(c->begin, &is_past, err));
            if (!is_past)
                continue;
            c->begun_us = clock_us();
        }
        if (!c->has_ended)
            continue;
        FFA_TRY(gpu_event_query(c->end, &c->is_over, err));
    }
out:
    return rc;
}

static bool any_under_way(const struct comm_device *comm)
{
    for (int32_t i = 0; i <= COMM_CALLS_MAX; i++)
        if (comm_call_is_under_way(&comm->calls[i]))
            return true;
    return false;
}

/* ---- telling the others ---- */

static bool may_tell(const struct comm_device *comm, int32_t rank)
{
    return comm_device_reaches(comm, rank) && rank != comm->comm.rank &&
           comm->said[rank] < COMM_PEER_QUIET;
}

/* The state word, behind the words in front of it [count]. */
static ffa_status say(struct comm_device *comm, int32_t rank, const uint64_t *words, int32_t count,
                      uint64_t state, ffa_error *err)
{
    const int32_t n = comm->comm.rank_count, own = comm->comm.rank;
    ffa_stream stream = gpu_stream_handle(comm->watch);
    struct gpu_value_op ops[GPU_VALUE_BATCH_MAX];
    uint64_t *block = comm->blocks[rank];
    ffa_status rc;

    assert(count <= GPU_VALUE_BATCH_MAX);
    for (int32_t i = 0; i < count; i++)
        ops[i] = (struct gpu_value_op){ &block[comm_block_reason(n, own) + i], words[i], false };
    FFA_TRY(gpu_value_batch(comm->gpu, stream, ops, count, err));
    FFA_TRY(gpu_write_value(comm->gpu, stream, &block[comm_block_state(n, own)], state, err));
    comm->said[rank] = state;
out:
    return rc;
}

static ffa_status say_broken(struct comm_device *comm, ffa_error *err)
{
    _Static_assert(sizeof comm->message <= (COMM_REASON_WORDS - 1) * sizeof(uint64_t), "cut");
    uint64_t words[COMM_REASON_WORDS] = { (uint64_t)atomic_load(&comm->broken) };
    ffa_status rc = FFA_OK;

    memcpy(words + 1, comm->message, sizeof comm->message);
    for (int32_t r = 0; r < comm->comm.rank_count; r++)
        if (may_tell(comm, r) && comm->said[r] < COMM_PEER_BROKEN)
            FFA_TRY(say(comm, r, words, COMM_REASON_WORDS, COMM_PEER_BROKEN, err));
out:
    return rc;
}

/* Whom this rank waits for: see comm_inspect.c. */
static ffa_status say_wait(struct comm_device *comm, uint64_t wait, ffa_error *err)
{
    const int32_t n = comm->comm.rank_count, own = comm->comm.rank;
    ffa_stream stream = gpu_stream_handle(comm->watch);
    ffa_status rc = FFA_OK;

    for (int32_t r = 0; r < n && wait != comm->said_wait; r++)
        if (may_tell(comm, r))
            FFA_TRY(gpu_write_value(comm->gpu, stream, &comm->blocks[r][comm_block_waits(n, own)],
                                    wait, err));
    comm->said_wait = wait;
out:
    return rc;
}

/* ---- releasing what waits ---- */

static ffa_status spoil(struct comm_device *comm, const struct comm_spoil *range, const void *nan,
                        ffa_error *err)
{
    ffa_status rc = FFA_OK;

    for (int64_t at = 0; at < range->bytes; at += SPOIL_BYTES)
        FFA_TRY(gpu_send(comm->gpu, gpu_stream_handle(comm->watch), (char *)range->memory + at, nan,
                         min64(SPOIL_BYTES, range->bytes - at), err));
out:
    return rc;
}

/* No call begins any more, so the records only lose what is over. Without memory for the NaN, the
 * results are unspecified without them. */
static ffa_status spoil_calls(struct comm_device *comm, ffa_error *err)
{
    void *nan = mem_array(1, SPOIL_BYTES);
    ffa_status rc = FFA_OK;

    comm->has_spoilt = true;
    if (!nan)
        goto out;
    memset(nan, 0xff, SPOIL_BYTES);
    for (int32_t i = 0; i <= COMM_CALLS_MAX; i++) {
        struct comm_spoil spoils[COMM_SPOILS_MAX];
        int32_t count;

        pthread_mutex_lock(&comm->lock);
        count = comm_call_is_under_way(&comm->calls[i]) ? comm->calls[i].spoil_count : 0;
        memcpy(spoils, comm->calls[i].spoils, sizeof spoils);
        pthread_mutex_unlock(&comm->lock);
        for (int32_t s = 0; s < count; s++)
            FFA_TRY(spoil(comm, &spoils[s], nan, err));
    }
out:
    mem_free(nan);
    return rc;
}

static ffa_status poison_words(struct comm_device *comm, int64_t begin, int64_t end, ffa_error *err)
{
    struct gpu_value_op ops[GPU_VALUE_BATCH_MAX];
    uint64_t *block = comm_device_own(comm);
    const uint64_t value = comm->comm.call + COMM_POISON;
    ffa_status rc = FFA_OK;

    while (begin < end) {
        int count = 0;

        for (; count < GPU_VALUE_BATCH_MAX && begin < end; begin++)
            ops[count++] = (struct gpu_value_op){ &block[begin], value, false };
        FFA_TRY(gpu_value_batch(comm->gpu, gpu_stream_handle(comm->watch), ops, count, err));
    }
out:
    return rc;
}

/* The grace is that of what the first poison released: it begins when that poison is written. */
static ffa_status poison(struct comm_device *comm, ffa_error *err)
{
    const int32_t n = comm->comm.rank_count;
    ffa_status rc;

    FFA_TRY(poison_words(comm, comm_block_rows_done(n, 0), comm_block_sums_ready(n, 0, 0), err));
    FFA_TRY(poison_words(comm, comm_block_sums_done(n, 0), comm_block_words(n, 0), err));
    if (!comm->broken_us) {
        FFA_TRY(gpu_stream_synchronize(comm->gpu, gpu_stream_handle(comm->watch), err));
        comm->broken_us = clock_us();
    }
    if (clock_us() - comm->broken_us < GRACE_US)
        goto out;
    FFA_TRY(poison_words(comm, comm_block_rows_ready(n, 0), comm_block_rows_done(n, 0), err));
    rc = poison_words(comm, comm_block_sums_ready(n, 0, 0), comm_block_sums_done(n, 0), err);
out:
    return rc;
}

/* Whether all calls are over, and our own streams are behind them. Under the lock. */
static ffa_status look_for_quiet(struct comm_device *comm, bool *is_quiet, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    *is_quiet = false;
    if (any_under_way(comm))
        goto out;
    for (int i = 0; i < COMM_STREAMS && !comm->is_draining; i++)
        FFA_TRY(gpu_event_record(comm->drained[i], gpu_stream_handle(comm_device_stream(comm, i)),
                                 err));
    comm->is_draining = true;
    *is_quiet = true;
    for (int i = 0; i < COMM_STREAMS && *is_quiet; i++)
        FFA_TRY(gpu_event_query(comm->drained[i], is_quiet, err));
out:
    return rc;
}

/* ---- the thread ---- */

static ffa_status release(struct comm_device *comm, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    if (!comm->broken_us)
        comm_order_forget(comm);
    if (comm->exchange)
        comm_exchange_abort(comm);
    FFA_TRY(say_broken(comm, err));
    if (!comm->has_spoilt)
        FFA_TRY(spoil_calls(comm, err));
    FFA_TRY(poison(comm, err));
    if (comm->exchange)
        rc = comm_exchange_poison(comm, err);
out:
    return rc;
}

/* To all once the group is broken, else to those that have left. */
static ffa_status say_quiet(struct comm_device *comm, bool is_broken, ffa_error *err)
{
    const int32_t n = comm->comm.rank_count;
    ffa_status rc = FFA_OK;

    for (int32_t r = 0; r < n; r++)
        if (may_tell(comm, r) &&
            (is_broken || comm_seen(comm, comm_block_state(n, r)) == COMM_PEER_LEFT))
            FFA_TRY(say(comm, r, NULL, 0, COMM_PEER_QUIET, err));
out:
    return rc;
}

/* Whether the rank's windows were given back, or whom they were lent to has left. */
static bool are_returned(const struct comm_device *comm)
{
    const int32_t n = comm->comm.rank_count;

    for (int32_t r = 0; r < n; r++) {
        const uint64_t rows = comm->lent[WINDOW_ROWS][r], sums = comm->lent[WINDOW_SUMS][r];
        const bool has_rows =
            !rows || comm_is_there(comm_seen(comm, comm_block_rows_done(n, r)), rows);
        const bool has_sums =
            !sums || comm_is_there(comm_seen(comm, comm_block_sums_done(n, r)), sums);

        if (comm_seen(comm, comm_block_state(n, r)) != COMM_PEER_LEFT && !(has_rows && has_sums))
            return false;
    }
    return true;
}

/* Break the group where it has to. Under the lock. */
static void look(struct comm_device *comm)
{
    char message[sizeof comm->message];
    ffa_error why = { FFA_OK, 0, "" };

    comm_inspect(comm);
    if (!comm->exchange || comm_exchange_status(comm, &why) == FFA_OK)
        return;
    text_copy(message, "rank %d failed: %.400s", comm->comm.rank, why.message);
    comm_device_break(comm, why.status, message);
}

static ffa_status tick(struct comm_device *comm, ffa_error *err)
{
    bool is_broken, is_closed, is_quiet = false;
    uint64_t wait = 0;
    ffa_status rc;

    FFA_TRY(read_block(comm, err));
    pthread_mutex_lock(&comm->lock);
    rc = poll_calls(comm, err);
    if (rc == FFA_OK && atomic_load(&comm->broken) == FFA_OK)
        look(comm);
    is_broken = atomic_load(&comm->broken) != FFA_OK;
    is_closed = comm->is_closed || comm->is_leaving;
    if (rc == FFA_OK && !is_broken)
        wait = comm_inspect_wait(comm);
    pthread_mutex_unlock(&comm->lock);
    if (rc == FFA_OK && !is_broken)
        rc = say_wait(comm, wait, err);
    if (rc == FFA_OK && is_broken && !comm->is_quiet)
        rc = release(comm, err);
    FFA_TRY(rc);
    if (!is_closed)
        goto out;
    pthread_mutex_lock(&comm->lock);
    rc = look_for_quiet(comm, &is_quiet, err);
    pthread_mutex_unlock(&comm->lock);
    comm->is_quiet = is_quiet;
    if (rc == FFA_OK && is_quiet)
        rc = say_quiet(comm, is_broken, err);
out:
    return rc;
}

/* Under the lock: sleep until something is said, or it is time to look again. */
static void sleep_a_while(struct comm_device *comm)
{
    const bool is_busy = any_under_way(comm) || comm->is_closed;
    const long us = comm->is_leaving             ? TICK_LEAVE_US
                    : is_busy && !comm->is_quiet ? TICK_BUSY_US
                                                 : TICK_IDLE_US;
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += us * 1000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    (void)pthread_cond_timedwait(&comm->changed, &comm->lock, &until);
}

/* Whether a rank that leaves can. Under the lock. */
static bool may_end(const struct comm_device *comm)
{
    if (!comm->is_leaving)
        return false;
    if (comm->has_failed || clock_us() - comm->leaving_us > comm->timeout_ms * 1000)
        return true;
    return comm->is_quiet && (atomic_load(&comm->broken) != FFA_OK || are_returned(comm));
}

static void *run_watchdog(void *user)
{
    struct comm_device *comm = user;
    ffa_error err = { FFA_OK, 0, "" };
    char message[sizeof err.message];
    ffa_status rc = gpu_capture_relax(comm->gpu, &err);

    pthread_mutex_lock(&comm->lock);
    while (!may_end(comm)) {
        sleep_a_while(comm);
        pthread_mutex_unlock(&comm->lock);
        if (rc == FFA_OK && !comm->has_failed)
            rc = tick(comm, &err);
        pthread_mutex_lock(&comm->lock);
        if (rc != FFA_OK && !comm->has_failed) {
            text_copy(message, "rank %d failed: %.400s", comm->comm.rank, err.message);
            comm_device_break(comm, rc, message);
            comm->has_failed = true;
        }
    }
    pthread_mutex_unlock(&comm->lock);
    return NULL;
}

/* Signals are for the program's own threads. */
ffa_status comm_watchdog_start(struct comm_device *comm, ffa_error *err)
{
    sigset_t all, before;
    int code;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    code = pthread_create(&comm->watchdog, NULL, run_watchdog, comm);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code)
        return error_fail(err, FFA_NOMEM, code, "cannot start the watchdog of a communicator");
    comm->has_watchdog = true;
    return FFA_OK;
}

/* ---- the end ---- */

static bool are_others_gone(struct comm_device *comm)
{
    const int32_t n = comm->comm.rank_count;

    for (int32_t r = 0; r < n; r++) {
        const uint64_t state = comm_seen(comm, comm_block_state(n, r));

        if (comm_device_reaches(comm, r) && r != comm->comm.rank && state != COMM_PEER_QUIET &&
            state != COMM_PEER_LEFT && !comm_peer_is_dead(comm, r))
            return false;
    }
    return true;
}

static bool wait_for_others(struct comm_device *comm)
{
    const int64_t begin_us = clock_us();
    const struct timespec pause = { .tv_nsec = TICK_LEAVE_US * 1000 };

    while (read_block(comm, NULL) == FFA_OK) {
        if (are_others_gone(comm))
            return true;
        if (clock_us() - begin_us > comm->timeout_ms * 1000)
            return false;
        (void)nanosleep(&pause, NULL);
    }
    return false;
}

static void stop_watchdog(struct comm_device *comm)
{
    pthread_mutex_lock(&comm->lock);
    comm->is_leaving = true;
    comm->leaving_us = clock_us();
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
    pthread_join(comm->watchdog, NULL);
}

bool comm_watchdog_leave(struct comm_device *comm)
{
    if (!comm->has_joined)
        return !comm->has_lost;
    if (comm->has_watchdog) {
        stop_watchdog(comm);
        if (comm->has_failed || !comm->is_quiet)
            return false;
    }
    for (int32_t r = 0; r < comm->comm.rank_count; r++)
        if (may_tell(comm, r) && say(comm, r, NULL, 0, COMM_PEER_LEFT, NULL) != FFA_OK)
            return false;
    return wait_for_others(comm);
}
