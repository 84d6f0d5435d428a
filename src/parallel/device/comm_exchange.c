/* SPDX-License-Identifier: Apache-2.0
 *
 * The side of the communicator that sends over NCCL, of the transports exchange and relay: two
 * communicators of NCCL, one for keys and one for sums, and what ranks say to each other before a
 * call's data moves.
 *
 * Every rank sends 32 bytes, what it does in the call, to every other one, and its network stream
 * waits until all that it received is what it does itself: a word is equal to another one where
 * neither it nor its inverse is less. So ranks in different calls never exchange data of different
 * sizes, and the watchdog, which reads the same words, names the rank that differs, or that sent
 * nothing.
 *
 * Invariant: the communicators are ours alone. The caller's is split, and never aborted. Both are
 * connected, and all of NCCL's code is loaded, when creation returns, because either may wait for
 * the device, and later a kernel may keep the device busy while it waits for NCCL.
 */
#include "parallel/device/comm_device.h"

enum { CTAS = 2, SMALL_SMS = 16, LANES = WINDOW_COUNT };

struct comm_exchange {
    const struct nccl *nccl;
    struct nccl_comm *lanes[LANES]; /* of the network and of the reduce stream */
    struct gpu_event *follow[LANES], *sent[LANES];
    struct nccl_move *moves; /* [2 * rank_count]: of hellos and totals */
    int32_t max_ctas;
};

static struct gpu_stream *stream_of(const struct comm_device *comm, enum comm_window window)
{
    return window == WINDOW_ROWS ? comm->network : comm->reduce;
}

int32_t comm_device_sm_margin(const struct comm_device *comm, bool is_backward)
{
    return comm->exchange ? comm->exchange->max_ctas * (is_backward ? LANES : 1) : 0;
}

/* ---- creation ---- */

static ffa_status check_gpus(const struct comm_device *comm, ffa_error *err)
{
    int32_t rank, other;

    if (!comm_peer_shares_gpu(comm, &rank, &other))
        return FFA_OK;
    return error_fail(err, FFA_UNSUPPORTED, 0,
                      "ranks %d and %d share a GPU: NCCL takes one rank a GPU", rank, other);
}

static ffa_status open_library(struct comm_device *comm, ffa_error *err)
{
    ffa_error why = { FFA_OK, 0, "" };
    ffa_status rc;

    if (comm->bootstrap) {
        comm->exchange->nccl = comm_bootstrap_nccl(comm->bootstrap);
        return FFA_OK;
    }
    rc = nccl_open(&comm->exchange->nccl, comm->nccl_path, NULL, &why);
    if (rc == FFA_UNSUPPORTED && *comm->unreachable)
        return error_fail(err, rc, 0, "%s; and %.250s", comm->unreachable, why.message);
    return rc == FFA_OK ? rc : error_fail(err, rc, why.native, "%s", why.message);
}

/* What needs no other rank. */
static ffa_status make_own(struct comm_device *comm, ffa_error *err)
{
    const bool is_small = gpu_device_sm_count(comm->gpu) < SMALL_SMS;
    struct comm_exchange *exchange = mem_array(1, sizeof *exchange);
    ffa_status rc;

    comm->exchange = exchange;
    if (!exchange)
        return error_nomem(err, "the communicators of NCCL");
    exchange->max_ctas = comm->max_ctas ? comm->max_ctas : is_small ? 1 : CTAS;
    exchange->moves = mem_array(2 * (size_t)comm->comm.rank_count, sizeof *exchange->moves);
    if (!exchange->moves)
        return error_nomem(err, "the communicators of NCCL");
    FFA_TRY(check_gpus(comm, err));
    for (int i = 0; i < LANES; i++) {
        FFA_TRY(gpu_event_create(&exchange->follow[i], comm->gpu, false, err));
        FFA_TRY(gpu_event_create(&exchange->sent[i], comm->gpu, false, err));
    }
    rc = open_library(comm, err);
out:
    return rc;
}

/* From rank 0's id, or from the caller's communicator. */
static ffa_status make_first(struct comm_device *comm, const struct nccl_comm_opts *opts,
                             const unsigned char id[NCCL_ID_BYTES], ffa_error *err)
{
    struct comm_exchange *exchange = comm->exchange;

    if (comm->bootstrap)
        return nccl_comm_split(&exchange->lanes[0], comm_bootstrap_comm(comm->bootstrap), opts,
                               err);
    return nccl_comm_create(&exchange->lanes[0], exchange->nccl, comm->gpu, id, comm->comm.rank,
                            comm->comm.rank_count, opts, err);
}

static ffa_status make_lanes(struct comm_device *comm, ffa_error *err)
{
    const struct nccl_comm_opts opts = { .max_ctas = comm->exchange->max_ctas,
                                         .timeout_ms = comm->timeout_ms };
    unsigned char mine[NCCL_ID_BYTES] = { 0 };
    unsigned char(*ids)[NCCL_ID_BYTES] = NULL;
    ffa_error failure = { FFA_OK, 0, "" };
    ffa_status rc = FFA_OK;

    ids = mem_array((size_t)comm->comm.rank_count, sizeof *ids);
    if (!ids)
        rc = error_nomem(&failure, "the id of a communicator");
    else if (!comm->bootstrap && comm->comm.rank == 0)
        rc = nccl_id_make(mine, comm->exchange->nccl, &failure);
    FFA_TRY(comm_peer_agree(comm, rc, &failure, err));
    FFA_TRY(comm_peer_gather(comm, mine, ids, sizeof mine, err));
    rc = make_first(comm, &opts, ids[0], &failure);
    FFA_TRY(comm_peer_agree(comm, rc, &failure, err));
    rc = nccl_comm_split(&comm->exchange->lanes[1], comm->exchange->lanes[0], &opts, &failure);
    rc = comm_peer_agree(comm, rc, &failure, err);
out:
    mem_free(ids);
    return rc;
}

/* To and from all other ranks: `from` of this rank, and of rank r `to` + r * step bytes. */
static int64_t all_to_all(const struct comm_device *comm, void *from, void *to, int64_t step,
                          int64_t bytes)
{
    struct nccl_move *moves = comm->exchange->moves;
    int64_t count = 0;

    for (int32_t r = 0; r < comm->comm.rank_count; r++) {
        if (r == comm->comm.rank)
            continue;
        moves[count++] =
            (struct nccl_move){ .at = from, .bytes = bytes, .rank = r, .is_send = true };
        moves[count++] =
            (struct nccl_move){ .at = (char *)to + r * step, .bytes = bytes, .rank = r };
    }
    return count;
}

static uint64_t *hello_of(const struct comm_device *comm, int32_t rank)
{
    return comm_device_own(comm) + comm_block_hello(comm->comm.rank_count, rank);
}

static int64_t hello_moves(const struct comm_device *comm)
{
    const int64_t bytes = COMM_HELLO_WORDS * (int64_t)sizeof(uint64_t);

    return all_to_all(comm, hello_of(comm, comm->comm.rank), hello_of(comm, 0), bytes, bytes);
}

static ffa_status connect_lanes(struct comm_device *comm, ffa_error *err)
{
    const int64_t count = hello_moves(comm);
    ffa_status rc = FFA_OK;

    for (int i = 0; i < LANES; i++) {
        const ffa_stream stream = gpu_stream_handle(stream_of(comm, (enum comm_window)i));
        struct nccl_comm *lane = comm->exchange->lanes[i];

        FFA_TRY(nccl_exchange(lane, stream, comm->exchange->moves, count, err));
        FFA_TRY(nccl_comm_finish(lane, stream, comm->timeout_ms, err));
    }
out:
    return rc;
}

ffa_status comm_exchange_create(struct comm_device *comm, ffa_error *err)
{
    ffa_error failure = { FFA_OK, 0, "" };
    ffa_status rc = make_own(comm, &failure);

    FFA_TRY(comm_peer_agree(comm, rc, &failure, err));
    FFA_TRY(make_lanes(comm, err));
    rc = connect_lanes(comm, &failure);
    if (rc != FFA_OK)
        comm_exchange_abort(comm); /* others may wait in it, as this rank does in theirs */
    rc = comm_peer_agree(comm, rc, &failure, err);
out:
    return rc;
}

/* ---- what a call enqueues ---- */

/* Where the group is broken, NCCL was aborted: that is why it fails. */
static ffa_status explain(const struct comm_device *comm, ffa_status rc, ffa_error *err)
{
    if (rc == FFA_OK || atomic_load(&comm->broken) == FFA_OK)
        return rc;
    return comm_device_status(comm, err);
}

ffa_status comm_exchange_moves(struct comm_device *comm, enum comm_window window,
                               const struct nccl_move *moves, int64_t count, ffa_error *err)
{
    const ffa_status rc =
        nccl_exchange(comm->exchange->lanes[window], gpu_stream_handle(stream_of(comm, window)),
                      moves, count, err);

    return explain(comm, rc, err);
}

/* Waits for each rank's words, or writes them, GPU_VALUE_BATCH_MAX at a time. */
static ffa_status hello_values(struct comm_device *comm, ffa_stream stream, uint64_t word,
                               uint64_t inverse, bool is_wait, ffa_error *err)
{
    struct gpu_value_op ops[GPU_VALUE_BATCH_MAX];
    ffa_status rc = FFA_OK;
    int count = 0;

    for (int32_t r = 0; r < comm->comm.rank_count; r++) {
        uint64_t *hello = hello_of(comm, r);

        if (r == comm->comm.rank)
            continue;
        ops[count++] = (struct gpu_value_op){ &hello[0], word, is_wait };
        ops[count++] = (struct gpu_value_op){ &hello[1], inverse, is_wait };
        if (count < GPU_VALUE_BATCH_MAX)
            continue;
        FFA_TRY(gpu_value_batch(comm->gpu, stream, ops, count, err));
        count = 0;
    }
    rc = gpu_value_batch(comm->gpu, stream, ops, count, err);
out:
    return rc;
}

ffa_status comm_exchange_hello(struct comm_device *comm, const struct comm_call *call,
                               ffa_error *err)
{
    const ffa_stream stream = gpu_stream_handle(comm->network);
    uint64_t *mine = hello_of(comm, comm->comm.rank);
    const struct gpu_value_op writes[] = { { &mine[0], call->word, false },
                                           { &mine[1], ~call->word, false },
                                           { &mine[2], call->after, false } };
    ffa_status rc;

    FFA_TRY(gpu_value_batch(comm->gpu, stream, writes, 3, err));
    FFA_TRY(comm_exchange_moves(comm, WINDOW_ROWS, comm->exchange->moves, hello_moves(comm), err));
    rc = hello_values(comm, stream, call->word, ~call->word, true, err);
out:
    return rc;
}

ffa_status comm_exchange_sent(struct comm_device *comm, enum comm_window window, ffa_error *err)
{
    return gpu_event_record(comm->exchange->sent[window],
                            gpu_stream_handle(stream_of(comm, window)), err);
}

ffa_status comm_exchange_reclaim(struct comm_device *comm, enum comm_window window,
                                 ffa_stream stream, ffa_error *err)
{
    return gpu_event_wait(comm->exchange->sent[window], stream, err);
}

ffa_status comm_exchange_follow(struct comm_device *comm, enum comm_window window,
                                ffa_stream stream, ffa_error *err)
{
    struct gpu_event *event = comm->exchange->follow[window];
    ffa_status rc;

    FFA_TRY(gpu_event_record(event, stream, err));
    rc = gpu_event_wait(event, gpu_stream_handle(stream_of(comm, window)), err);
out:
    return rc;
}

ffa_status comm_exchange_totals(struct comm_device *comm, ffa_stream stream, float *all,
                                const float *mine, int32_t count, ffa_error *err)
{
    const int64_t step = COMM_TOTALS_MAX * (int64_t)sizeof(float);
    const size_t bytes = (size_t)count * sizeof *mine;
    void *to = (char *)all + comm->comm.rank * step;
    const void *from = mine;
    int64_t moves;
    ffa_status rc;

    assert(stream == gpu_stream_handle(comm->reduce));
    FFA_TRY(gpu_copy_batch(comm->gpu, stream, &to, &from, &bytes, 1, err));
    moves = all_to_all(comm, (void *)(uintptr_t)mine, all, step, (int64_t)bytes);
    rc = comm_exchange_moves(comm, WINDOW_SUMS, comm->exchange->moves, moves, err);
out:
    return rc;
}

/* ---- for the watchdog ---- */

ffa_status comm_exchange_status(const struct comm_device *comm, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    for (int i = 0; i < LANES && rc == FFA_OK; i++)
        rc = nccl_comm_status(comm->exchange->lanes[i], err);
    return rc;
}

void comm_exchange_abort(struct comm_device *comm)
{
    for (int i = 0; i < LANES; i++)
        if (comm->exchange->lanes[i])
            nccl_comm_close(comm->exchange->lanes[i], true);
}

/* Beyond the words of all calls that are enqueued, whatever they say. */
ffa_status comm_exchange_poison(struct comm_device *comm, ffa_error *err)
{
    const uint64_t word = comm->begun << COMM_DIGEST_BITS;

    return hello_values(comm, gpu_stream_handle(comm->watch), word + COMM_POISON,
                        ~word + COMM_POISON, false, err);
}

/* ---- the end ---- */

bool comm_exchange_finish(struct comm_device *comm)
{
    struct comm_exchange *exchange = comm->exchange;
    bool is_over = true;

    if (!exchange)
        return true;
    for (int i = 0; i < LANES; i++)
        if (exchange->lanes[i])
            nccl_comm_close(exchange->lanes[i], atomic_load(&comm->broken) != FFA_OK);
    for (int i = 0; i < LANES; i++) {
        is_over = nccl_comm_free(exchange->lanes[i], comm->timeout_ms) && is_over;
        gpu_event_destroy(exchange->follow[i]);
        gpu_event_destroy(exchange->sent[i]);
    }
    mem_free(exchange->moves);
    mem_free(exchange);
    comm->exchange = NULL;
    return is_over;
}
