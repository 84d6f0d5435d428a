/* SPDX-License-Identifier: Apache-2.0
 *
 * NCCL on the fake GPU: see fake_nccl.h. A send leaves a copy in the queue of its pair and goes on;
 * a receive waits. A group belongs to all ranks of a communicator and stays until the process ends.
 */
#include "support/fake_nccl.h"

#include "support/fake_gpu.h"

#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

enum { RANKS = 8 };

struct message {
    struct message *next;
    int64_t bytes;
    uint64_t words[];
};

struct fake_group {
    struct fake_group *next;
    int key;
    struct message *queues[RANKS][RANKS]; /* [from][to], the oldest first */
    bool has_failed;
};

struct nccl_comm {
    struct fake_group *group;
    struct gpu_device *device;
    int32_t rank, rank_count, splits;
    bool is_borrowed, is_closed;
    atomic_bool is_aborted;
    atomic_int under_way;
};

struct exchange {
    struct nccl_comm *comm;
    int64_t count;
    struct nccl_move moves[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fake_group *groups; /* under the lock, with what they hold */
static atomic_int keys = 1000;
static atomic_long aborted, destroyed;
static atomic_bool is_missing;

void fake_nccl_there(bool is_there)
{
    atomic_store(&is_missing, !is_there);
}

long fake_nccl_aborted(void)
{
    return atomic_load(&aborted);
}

long fake_nccl_destroyed(void)
{
    return atomic_load(&destroyed);
}

/* ---- communicators ---- */

static struct fake_group *group_of(int key)
{
    struct fake_group *group;

    pthread_mutex_lock(&lock);
    for (group = groups; group && group->key != key;)
        group = group->next;
    if (!group) {
        group = calloc(1, sizeof *group);
        ck_assert_ptr_nonnull(group);
        group->key = key;
        group->next = groups;
        groups = group;
    }
    pthread_mutex_unlock(&lock);
    return group;
}

static struct nccl_comm *comm_new(int key, struct gpu_device *device, int32_t rank, int32_t count)
{
    struct nccl_comm *comm = calloc(1, sizeof *comm);

    ck_assert_ptr_nonnull(comm);
    ck_assert_int_le(count, RANKS);
    comm->group = group_of(key);
    comm->device = device;
    comm->rank = rank;
    comm->rank_count = count;
    return comm;
}

void *fake_nccl_caller(int key, struct gpu_device *device, int32_t rank, int32_t rank_count)
{
    return comm_new(key, device, rank, rank_count);
}

void fake_nccl_caller_free(void *caller)
{
    free(caller);
}

ffa_status nccl_open(const struct nccl **out, const char *path, const void *foreign, ffa_error *err)
{
    static const char place[1];

    (void)path;
    (void)foreign;
    *out = NULL;
    if (atomic_load(&is_missing) || fault_here(FAULT_GPU))
        return error_fail(err, FFA_UNSUPPORTED, 0, "no NCCL >= 2.18.0");
    *out = (const struct nccl *)(const void *)place;
    return FFA_OK;
}

ffa_status nccl_comm_borrow(struct nccl_comm **out, const struct nccl *nccl,
                            struct gpu_device *device, void *foreign, ffa_error *err)
{
    const struct nccl_comm *theirs = foreign;

    (void)nccl;
    *out = NULL;
    if (theirs->device != device)
        return error_fail(err, FFA_INVALID, 0, "comm is of device %d, the context of device %d",
                          gpu_device_ordinal(theirs->device), gpu_device_ordinal(device));
    *out = comm_new(theirs->group->key, device, theirs->rank, theirs->rank_count);
    (*out)->is_borrowed = true;
    return FFA_OK;
}

int32_t nccl_comm_rank(const struct nccl_comm *comm)
{
    return comm->rank;
}

int32_t nccl_comm_rank_count(const struct nccl_comm *comm)
{
    return comm->rank_count;
}

ffa_status nccl_id_make(unsigned char id[NCCL_ID_BYTES], const struct nccl *nccl, ffa_error *err)
{
    const int key = atomic_fetch_add(&keys, 1000);

    (void)nccl;
    if (fault_here(FAULT_GPU))
        return error_fail(err, FFA_GPU, 1, "ncclGetUniqueId fails");
    memset(id, 0, NCCL_ID_BYTES);
    memcpy(id, &key, sizeof key);
    return FFA_OK;
}

ffa_status nccl_comm_create(struct nccl_comm **out, const struct nccl *nccl,
                            struct gpu_device *device, const unsigned char id[NCCL_ID_BYTES],
                            int32_t rank, int32_t rank_count, const struct nccl_comm_opts *opts,
                            ffa_error *err)
{
    int key;

    (void)nccl;
    *out = NULL;
    ck_assert_int_ge(opts->max_ctas, 1);
    if (fault_here(FAULT_GPU))
        return error_fail(err, FFA_GPU, 1, "ncclCommInitRankConfig fails");
    memcpy(&key, id, sizeof key);
    *out = comm_new(key, device, rank, rank_count);
    return FFA_OK;
}

ffa_status nccl_comm_split(struct nccl_comm **out, struct nccl_comm *from,
                           const struct nccl_comm_opts *opts, ffa_error *err)
{
    *out = NULL;
    ck_assert_int_ge(opts->max_ctas, 1);
    if (fault_here(FAULT_GPU))
        return error_fail(err, FFA_GPU, 1, "ncclCommSplit fails");
    *out = comm_new(from->group->key + ++from->splits, from->device, from->rank, from->rank_count);
    return FFA_OK;
}

ffa_status nccl_comm_status(struct nccl_comm *comm, ffa_error *err)
{
    bool has_failed;

    pthread_mutex_lock(&lock);
    has_failed = comm->group->has_failed;
    pthread_mutex_unlock(&lock);
    return has_failed ? error_fail(err, FFA_GPU, 5, "NCCL fails: sizes differ") : FFA_OK;
}

void nccl_comm_close(struct nccl_comm *comm, bool aborts)
{
    if (comm->is_borrowed || comm->is_closed)
        return;
    comm->is_closed = true;
    if (aborts)
        atomic_store(&comm->is_aborted, true);
    atomic_fetch_add(aborts ? &aborted : &destroyed, 1);
}

bool nccl_comm_free(struct nccl_comm *comm, int64_t timeout_ms)
{
    (void)timeout_ms;
    if (!comm)
        return true;
    while (atomic_load(&comm->under_way) > 0)
        usleep(100);
    free(comm);
    return true;
}

/* ---- what is enqueued ---- */

/* A watchdog may read the words. */
static void copy(void *to, const void *from, int64_t bytes)
{
    const int64_t words = bytes / (int64_t)sizeof(uint64_t);

    for (int64_t i = 0; i < words; i++)
        fake_gpu_store((uint64_t *)to + i, fake_gpu_load((const uint64_t *)from + i));
    memcpy((uint64_t *)to + words, (const uint64_t *)from + words, (size_t)bytes % 8);
}

static void send(struct nccl_comm *comm, const struct nccl_move *move)
{
    struct message *message = malloc(sizeof *message + (size_t)move->bytes + 8);
    struct message **at = &comm->group->queues[comm->rank][move->rank];

    ck_assert_ptr_nonnull(message);
    message->next = NULL;
    message->bytes = move->bytes;
    copy(message->words, move->at, move->bytes);
    pthread_mutex_lock(&lock);
    while (*at)
        at = &(*at)->next;
    *at = message;
    pthread_mutex_unlock(&lock);
}

/* Whether it is over: done, or never to be done. */
static bool receive(struct nccl_comm *comm, const struct nccl_move *move)
{
    struct message **queue = &comm->group->queues[move->rank][comm->rank], *message;
    bool is_over;

    pthread_mutex_lock(&lock);
    message = *queue;
    is_over = atomic_load(&comm->is_aborted);
    if (message && !is_over && message->bytes != move->bytes)
        comm->group->has_failed = true;
    if (message && !is_over && !comm->group->has_failed)
        *queue = message->next;
    else
        message = NULL;
    pthread_mutex_unlock(&lock);
    if (!message)
        return is_over;
    copy(move->at, message->words, move->bytes);
    free(message);
    return true;
}

static void run_exchange(void *user)
{
    struct exchange *exchange = user;
    struct nccl_comm *comm = exchange->comm;

    for (int64_t i = 0; i < exchange->count && !atomic_load(&comm->is_aborted); i++)
        if (exchange->moves[i].is_send)
            send(comm, &exchange->moves[i]);
    for (int64_t i = 0; i < exchange->count; i++)
        while (!exchange->moves[i].is_send && !receive(comm, &exchange->moves[i]))
            usleep(50);
    free(exchange);
    atomic_fetch_sub(&comm->under_way, 1);
}

ffa_status nccl_exchange(struct nccl_comm *comm, ffa_stream stream, const struct nccl_move *moves,
                         int64_t count, ffa_error *err)
{
    const size_t bytes = (size_t)count * sizeof *moves;
    struct exchange *exchange;

    if (count == 0)
        return FFA_OK;
    if (comm->is_aborted || fault_here(FAULT_GPU))
        return error_fail(err, FFA_GPU, 1, "ncclGroupEnd fails");
    exchange = malloc(sizeof *exchange + bytes);
    ck_assert_ptr_nonnull(exchange);
    exchange->comm = comm;
    exchange->count = count;
    memcpy(exchange->moves, moves, bytes);
    atomic_fetch_add(&comm->under_way, 1);
    fake_gpu_launch(stream, run_exchange, exchange);
    return FFA_OK;
}

ffa_status nccl_gather(struct nccl_comm *comm, ffa_stream stream, const void *mine, void *all,
                       int64_t bytes, ffa_error *err)
{
    struct nccl_move moves[2 * RANKS];
    int64_t count = 0;

    for (int32_t r = 0; r < comm->rank_count; r++) {
        moves[count++] = (struct nccl_move){ (void *)(uintptr_t)mine, bytes, r, true };
        moves[count++] = (struct nccl_move){ (char *)all + r * bytes, bytes, r, false };
    }
    return nccl_exchange(comm, stream, moves, count, err);
}

ffa_status nccl_comm_finish(struct nccl_comm *comm, ffa_stream stream, int64_t timeout_ms,
                            ffa_error *err)
{
    const int64_t until_us = clock_us() + timeout_ms * 1000;

    (void)stream;
    while (atomic_load(&comm->under_way) > 0 && clock_us() < until_us)
        usleep(100);
    if (atomic_load(&comm->under_way) > 0)
        return error_fail(err, FFA_TIMEOUT, 0, "NCCL has not finished within %lld ms on rank %d",
                          (long long)timeout_ms, comm->rank);
    return FFA_OK;
}
