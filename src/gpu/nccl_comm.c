/* SPDX-License-Identifier: Apache-2.0
 *
 * Communicators of NCCL, and what is enqueued on them.
 *
 * Invariant: no call is inside NCCL with a communicator that is being closed, as closing frees it:
 * `lock` is held by a call, and by the closing thread before it begins. Only where a call stays in
 * NCCL for long does the abort begin beside it, which is what ends that call. Trick: a thread of
 * its own closes, because NCCL waits there for the device, and the caller, a watchdog, is the one
 * who releases what the device waits for.
 */
#include "gpu/nccl_library.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

enum {
    CONFIG_VERSION = 21805,
    PAUSE_NS = 50000,
    PATIENCE_US = 1000000, /* of an abort, for a call that is in NCCL */
    POLL_MS = 60000        /* of the caller's communicator, where it does not block */
};

#define CONFIG_MAGIC 0xcafebeefu

struct nccl_comm {
    const struct nccl *nccl;
    struct gpu_device *device;
    nccl_handle handle;
    int rank, rank_count;
    bool is_borrowed;
    pthread_mutex_t lock;
    pthread_t thread;
    bool has_thread, aborts;
    atomic_bool is_closed; /* no call begins any more */
    atomic_int users;      /* the owner, and the closing thread: the last one frees it */
    atomic_bool has_ended; /* the closing thread is done */
};

static void pause_shortly(void)
{
    const struct timespec pause = { .tv_nsec = PAUSE_NS };

    (void)nanosleep(&pause, NULL);
}

/* ---- failures ---- */

static ffa_status status_of(const struct nccl *nccl, nccl_handle handle, int code, const char *call,
                            ffa_error *err)
{
    const char *detail;

    if (fault_here(FAULT_GPU))
        code = 1;
    if (code == NCCL_SUCCESS)
        return FFA_OK;
    detail = nccl->ncclGetLastError(handle);
    return error_fail(err, FFA_GPU, code, "%s fails: %s%s%.300s", call,
                      nccl->ncclGetErrorString(code), detail && *detail ? ": " : "",
                      detail ? detail : "");
}

/* What a call comes to, where it may go on after it has returned. */
static int settle(const struct nccl *nccl, nccl_handle handle, int code, int64_t timeout_ms)
{
    const int64_t until_us = clock_us() + timeout_ms * 1000;

    while (code == NCCL_IN_PROGRESS && handle && clock_us() < until_us) {
        const int asked = nccl->ncclCommGetAsyncError(handle, &code);

        if (asked != NCCL_SUCCESS)
            return asked;
        if (code == NCCL_IN_PROGRESS)
            pause_shortly();
    }
    return code;
}

/* ---- the object ---- */

static ffa_status comm_new(struct nccl_comm **out, const struct nccl *nccl,
                           struct gpu_device *device, ffa_error *err)
{
    struct nccl_comm *comm = mem_array(1, sizeof *comm);

    *out = NULL;
    if (!comm || pthread_mutex_init(&comm->lock, NULL) != 0) {
        mem_free(comm);
        return error_nomem(err, "a communicator of NCCL");
    }
    comm->nccl = nccl;
    comm->device = device;
    atomic_init(&comm->is_closed, false);
    atomic_init(&comm->has_ended, false);
    atomic_init(&comm->users, 1);
    *out = comm;
    return FFA_OK;
}

static void comm_drop(struct nccl_comm *comm)
{
    if (atomic_fetch_sub(&comm->users, 1) != 1)
        return;
    pthread_mutex_destroy(&comm->lock);
    mem_free(comm);
}

int32_t nccl_comm_rank(const struct nccl_comm *comm)
{
    return comm->rank;
}

int32_t nccl_comm_rank_count(const struct nccl_comm *comm)
{
    return comm->rank_count;
}

ffa_status nccl_comm_borrow(struct nccl_comm **out, const struct nccl *nccl,
                            struct gpu_device *device, void *foreign, ffa_error *err)
{
    struct nccl_comm *comm = NULL;
    int ordinal = -1, code;
    ffa_status rc;

    *out = NULL;
    FFA_TRY(comm_new(&comm, nccl, device, err));
    comm->is_borrowed = true;
    comm->handle = foreign;
    code = settle(nccl, foreign, NCCL_IN_PROGRESS, POLL_MS);
    FFA_TRY(status_of(nccl, foreign, code, "ncclCommGetAsyncError of comm", err));
    code = nccl->ncclCommCuDevice(foreign, &ordinal);
    FFA_TRY(status_of(nccl, foreign, code, "ncclCommCuDevice", err));
    code = nccl->ncclCommUserRank(foreign, &comm->rank);
    FFA_TRY(status_of(nccl, foreign, code, "ncclCommUserRank", err));
    code = nccl->ncclCommCount(foreign, &comm->rank_count);
    FFA_TRY(status_of(nccl, foreign, code, "ncclCommCount", err));
    if (ordinal != device->ordinal) {
        rc = error_fail(err, FFA_INVALID, 0, "comm is of device %d, the context of device %d",
                        ordinal, device->ordinal);
        goto out;
    }
    *out = comm;
    comm = NULL;
out:
    if (comm)
        comm_drop(comm);
    return rc;
}

/* ---- our own ---- */

/* A cluster needs its SMs in one place, where a launch may have left only scattered ones. */
static struct nccl_config config_of(const struct nccl_comm_opts *opts)
{
    return (struct nccl_config){ .size = sizeof(struct nccl_config),
                                 .magic = CONFIG_MAGIC,
                                 .version = CONFIG_VERSION,
                                 .blocking = 1,
                                 .cga_cluster_size = 0,
                                 .min_ctas = 1,
                                 .max_ctas = opts->max_ctas,
                                 .net_name = NULL,
                                 .split_share = 0 };
}

ffa_status nccl_id_make(unsigned char id[NCCL_ID_BYTES], const struct nccl *nccl, ffa_error *err)
{
    struct nccl_id made = { { 0 } };
    const ffa_status rc =
        status_of(nccl, NULL, nccl->ncclGetUniqueId(&made), "ncclGetUniqueId", err);

    memcpy(id, made.bytes, sizeof made.bytes);
    return rc;
}

ffa_status nccl_comm_create(struct nccl_comm **out, const struct nccl *nccl,
                            struct gpu_device *device, const unsigned char id[NCCL_ID_BYTES],
                            int32_t rank, int32_t rank_count, const struct nccl_comm_opts *opts,
                            ffa_error *err)
{
    struct nccl_config config = config_of(opts);
    struct nccl_comm *comm = NULL;
    bool is_pushed = false;
    struct nccl_id made;
    ffa_status rc;
    int code;

    *out = NULL;
    memcpy(made.bytes, id, sizeof made.bytes);
    FFA_TRY(gpu_enter(device, &is_pushed, err));
    FFA_TRY(comm_new(&comm, nccl, device, err));
    comm->rank = rank;
    comm->rank_count = rank_count;
    code = nccl->ncclCommInitRankConfig(&comm->handle, rank_count, made, rank, &config);
    code = settle(nccl, comm->handle, code, opts->timeout_ms);
    FFA_TRY(status_of(nccl, NULL, code, "ncclCommInitRankConfig", err));
    *out = comm;
    comm = NULL;
out:
    gpu_leave(device, is_pushed);
    if (comm)
        comm_drop(comm);
    return rc;
}

ffa_status nccl_comm_split(struct nccl_comm **out, struct nccl_comm *from,
                           const struct nccl_comm_opts *opts, ffa_error *err)
{
    const struct nccl *nccl = from->nccl;
    struct nccl_config config = config_of(opts);
    struct nccl_comm *comm = NULL;
    bool is_pushed = false;
    ffa_status rc;
    int code;

    *out = NULL;
    FFA_TRY(gpu_enter(from->device, &is_pushed, err));
    FFA_TRY(comm_new(&comm, nccl, from->device, err));
    comm->rank = from->rank;
    comm->rank_count = from->rank_count;
    code = nccl->ncclCommSplit(from->handle, 0, from->rank, &comm->handle, &config);
    code = settle(nccl, from->handle, code, opts->timeout_ms);
    if (code == NCCL_SUCCESS && comm->handle)
        code = settle(nccl, comm->handle, NCCL_IN_PROGRESS, opts->timeout_ms);
    FFA_TRY(status_of(nccl, from->handle, code, "ncclCommSplit", err));
    *out = comm;
    comm = NULL;
out:
    gpu_leave(from->device, is_pushed);
    if (comm)
        comm_drop(comm);
    return rc;
}

ffa_status nccl_comm_status(struct nccl_comm *comm, ffa_error *err)
{
    int code = NCCL_SUCCESS, asked;
    ffa_status rc = FFA_OK;

    if (pthread_mutex_trylock(&comm->lock) != 0)
        return FFA_OK;
    if (!atomic_load(&comm->is_closed)) {
        asked = comm->nccl->ncclCommGetAsyncError(comm->handle, &code);
        code = asked != NCCL_SUCCESS ? asked : code == NCCL_IN_PROGRESS ? NCCL_SUCCESS : code;
        rc = status_of(comm->nccl, comm->handle, code, "NCCL", err);
    }
    pthread_mutex_unlock(&comm->lock);
    return rc;
}

/* ---- the end ---- */

/* Whether no call is in NCCL; false: one stays there. */
static bool take_turn(struct nccl_comm *comm)
{
    const int64_t until_us = clock_us() + PATIENCE_US;

    while (pthread_mutex_trylock(&comm->lock) != 0) {
        if (comm->aborts && clock_us() > until_us)
            return false;
        pause_shortly();
    }
    return true;
}

static void *run_close(void *user)
{
    struct nccl_comm *comm = user;
    const bool has_lock = take_turn(comm);
    bool is_pushed = false;

    (void)gpu_enter(comm->device, &is_pushed, NULL);
    if (comm->aborts)
        (void)comm->nccl->ncclCommAbort(comm->handle);
    else
        (void)comm->nccl->ncclCommDestroy(comm->handle);
    gpu_leave(comm->device, is_pushed);
    if (has_lock)
        pthread_mutex_unlock(&comm->lock);
    atomic_store(&comm->has_ended, true);
    comm_drop(comm);
    return NULL;
}

/* Without a thread the communicator stays as it is, and its operations with it. */
void nccl_comm_close(struct nccl_comm *comm, bool aborts)
{
    bool was_closed = false;

    if (comm->is_borrowed || !atomic_compare_exchange_strong(&comm->is_closed, &was_closed, true))
        return;
    comm->aborts = aborts;
    atomic_fetch_add(&comm->users, 1);
    if (pthread_create(&comm->thread, NULL, run_close, comm) == 0) {
        (void)pthread_detach(comm->thread);
        comm->has_thread = true;
    } else {
        atomic_fetch_sub(&comm->users, 1);
    }
}

bool nccl_comm_free(struct nccl_comm *comm, int64_t timeout_ms)
{
    const int64_t until_us = clock_us() + timeout_ms * 1000;
    bool is_over = true;

    if (!comm)
        return true;
    if (!comm->is_borrowed) {
        while (comm->has_thread && !atomic_load(&comm->has_ended) && clock_us() < until_us)
            pause_shortly();
        is_over = comm->has_thread && atomic_load(&comm->has_ended);
    }
    comm_drop(comm);
    return is_over;
}

/* ---- what is enqueued ---- */

static ffa_status enter(struct nccl_comm *comm, bool *is_pushed, ffa_error *err)
{
    ffa_status rc;

    pthread_mutex_lock(&comm->lock);
    rc = atomic_load(&comm->is_closed)
             ? error_fail(err, FFA_COMM, 0, "the communicator of NCCL was closed")
             : gpu_enter(comm->device, is_pushed, err);
    return rc;
}

static void leave(struct nccl_comm *comm, bool is_pushed)
{
    gpu_leave(comm->device, is_pushed);
    pthread_mutex_unlock(&comm->lock);
}

/* The group must be ended in any case. */
static ffa_status group(struct nccl_comm *comm, ffa_stream stream, const struct nccl_move *moves,
                        int64_t count, ffa_error *err)
{
    const struct nccl *nccl = comm->nccl;
    const char *call = "ncclGroupStart";
    int code = nccl->ncclGroupStart(), ended;

    if (code != NCCL_SUCCESS)
        return status_of(nccl, comm->handle, code, call, err);
    for (int64_t i = 0; i < count && code == NCCL_SUCCESS; i++) {
        const struct nccl_move *move = &moves[i];
        const size_t bytes = (size_t)move->bytes;

        call = move->is_send ? "ncclSend" : "ncclRecv";
        code = move->is_send ? nccl->ncclSend(move->at, bytes, NCCL_INT8, move->rank, comm->handle,
                                              (cudaStream_t)stream)
                             : nccl->ncclRecv(move->at, bytes, NCCL_INT8, move->rank, comm->handle,
                                              (cudaStream_t)stream);
    }
    ended = nccl->ncclGroupEnd();
    if (code == NCCL_SUCCESS || code == NCCL_IN_PROGRESS) {
        call = "ncclGroupEnd";
        code = settle(nccl, comm->handle, ended, POLL_MS);
    }
    return status_of(nccl, comm->handle, code, call, err);
}

ffa_status nccl_exchange(struct nccl_comm *comm, ffa_stream stream, const struct nccl_move *moves,
                         int64_t count, ffa_error *err)
{
    bool is_pushed = false;
    ffa_status rc;

    if (count == 0)
        return FFA_OK;
    FFA_TRY(enter(comm, &is_pushed, err));
    rc = group(comm, stream, moves, count, err);
out:
    leave(comm, is_pushed);
    return rc;
}

ffa_status nccl_gather(struct nccl_comm *comm, ffa_stream stream, const void *mine, void *all,
                       int64_t bytes, ffa_error *err)
{
    const struct nccl *nccl = comm->nccl;
    bool is_pushed = false;
    ffa_status rc;
    int code;

    FFA_TRY(enter(comm, &is_pushed, err));
    code = nccl->ncclAllGather(mine, all, (size_t)bytes, NCCL_INT8, comm->handle,
                               (cudaStream_t)stream);
    code = settle(nccl, comm->handle, code, POLL_MS);
    rc = status_of(nccl, comm->handle, code, "ncclAllGather", err);
out:
    leave(comm, is_pushed);
    return rc;
}

ffa_status nccl_comm_finish(struct nccl_comm *comm, ffa_stream stream, int64_t timeout_ms,
                            ffa_error *err)
{
    const int64_t until_us = clock_us() + timeout_ms * 1000;
    struct gpu_event *event = NULL;
    bool is_done = false;
    ffa_status rc;

    FFA_TRY(gpu_event_create(&event, comm->device, false, err));
    FFA_TRY(gpu_event_record(event, stream, err));
    for (;;) {
        FFA_TRY(gpu_event_query(event, &is_done, err));
        if (is_done)
            break;
        FFA_TRY(nccl_comm_status(comm, err));
        if (clock_us() > until_us) {
            rc = error_fail(err, FFA_TIMEOUT, 0, "NCCL has not finished within %lld ms on rank %d",
                            (long long)timeout_ms, comm->rank);
            goto out;
        }
        pause_shortly();
    }
out:
    gpu_event_destroy(event);
    return rc;
}
