/* SPDX-License-Identifier: Apache-2.0
 *
 * A libnccl.so.2 over the emulator's streams, with the functions that libffa calls, for ranks that
 * are threads or processes.
 *
 * A communicator is a file of shared memory, named by its unique id, with a mailbox for each pair
 * of ranks: bytes go through it piece by piece, so a stream is held up until the other side is
 * there. Invariant: each operation of a pair meets the operation that the other side enqueued at
 * the same place of its sequence; if kinds or sizes differ, that is printed, the communicator has
 * failed on all sides, and nothing goes on but by an abort. As with NCCL, an abort ends what is
 * under way on this rank only, and returns when the streams are through with it.
 */
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum { SUCCESS = 0, CUDA_ERROR = 1, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5 };
enum { RANKS = 16, PIECE = 16384, VERSION = 22703, JOIN_MS = 20000, ID_BYTES = 128 };
enum kind { NOTHING, SEND, GATHER };

struct id {
    char bytes[ID_BYTES];
};

struct config {
    size_t size;
    unsigned magic, version;
    int blocking, cga_size, ctas_min, ctas_max;
    const char *net_name;
    int split_share;
};

/* From one rank to another: full from when the sender has filled it until the receiver has read. */
struct mailbox {
    _Atomic uint32_t is_full;
    uint32_t kind;
    uint64_t total; /* bytes of the operation */
    uint64_t bytes; /* of this piece */
    char piece[PIECE];
};

struct shared {
    _Atomic int joined;
    _Atomic int failed;
    int devices[RANKS];
    struct mailbox boxes[RANKS][RANKS]; /* [from][to] */
};

struct comm {
    struct shared *shared;
    char name[ID_BYTES];
    int rank, count, device, splits;
    atomic_int under_way; /* groups that a stream has not done */
    atomic_bool is_aborted;
};

struct op {
    enum kind kind;
    bool is_send;
    int peer;
    char *at;
    size_t bytes, done;
    bool has_begun;
    struct comm *comm;
    cudaStream_t stream;
};

struct group {
    struct comm *comm;
    int count;
    struct op ops[];
};

enum { SHORT_BYTES = 64 }; /* what ranks say to each other before rows move */
enum { DELAY_MAX_US = 10000000 };
static _Atomic int64_t sent[RANKS][RANKS];

static _Thread_local struct op *pending;
static _Thread_local int pending_count, pending_capacity, depth;
static _Thread_local char message[256];

static int fail(int code, const char *text)
{
    (void)snprintf(message, sizeof message, "%s", text);
    return code;
}

static void pause_shortly(void)
{
    const struct timespec pause = { .tv_nsec = 30000 };

    (void)nanosleep(&pause, NULL);
}

static int64_t now_ms(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* ---- communicators ---- */

static struct shared *map(const char *name)
{
    const int fd = shm_open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    void *at = MAP_FAILED;

    if (fd >= 0 && ftruncate(fd, (off_t)sizeof(struct shared)) == 0)
        at = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0)
        (void)close(fd);
    return at == MAP_FAILED ? NULL : at;
}

static void comm_free(struct comm *comm)
{
    if (comm->shared)
        (void)munmap(comm->shared, sizeof *comm->shared);
    free(comm);
}

/* A GPU is one rank's: NCCL refuses two on one. */
static bool is_shared_device(const struct comm *comm)
{
    for (int a = 0; a < comm->count; a++)
        for (int b = 0; b < a; b++)
            if (comm->shared->devices[a] == comm->shared->devices[b])
                return true;
    return false;
}

static int join(struct comm **out, const char *name, int rank, int count)
{
    struct comm *comm = calloc(1, sizeof *comm);
    const int64_t until = now_ms() + JOIN_MS;

    *out = NULL;
    if (!comm || count > RANKS)
        return fail(SYSTEM_ERROR, "no memory, or too many ranks");
    (void)snprintf(comm->name, sizeof comm->name, "%s", name);
    comm->rank = rank;
    comm->count = count;
    (void)cudaGetDevice(&comm->device);
    comm->shared = map(name);
    if (!comm->shared) {
        comm_free(comm);
        return fail(SYSTEM_ERROR, "no shared memory");
    }
    comm->shared->devices[rank] = comm->device + 1;
    atomic_fetch_add(&comm->shared->joined, 1);
    while (atomic_load(&comm->shared->joined) < count && now_ms() < until)
        pause_shortly();
    if (atomic_load(&comm->shared->joined) < count || is_shared_device(comm)) {
        const bool is_missing = atomic_load(&comm->shared->joined) < count;

        comm_free(comm);
        return is_missing ? fail(SYSTEM_ERROR, "a rank has not come")
                          : fail(INVALID_USAGE, "Duplicate GPU detected");
    }
    if (rank == 0)
        (void)shm_unlink(name);
    *out = comm;
    return SUCCESS;
}

static bool is_config(const struct config *config)
{
    return !config || (config->magic == 0xcafebeefu && config->size >= sizeof *config &&
                       config->version >= 21800 && config->ctas_max >= 1);
}

EXPORT int ncclGetVersion(int *version)
{
    const char *set = getenv("FFA_EMULATOR_NCCL_VERSION");

    *version = set ? atoi(set) : VERSION;
    return SUCCESS;
}

EXPORT int ncclGetUniqueId(struct id *id)
{
    static atomic_int made;

    memset(id, 0, sizeof *id);
    (void)snprintf(id->bytes, sizeof id->bytes, "/ffa-emulated-nccl-%d-%d", (int)getpid(),
                   atomic_fetch_add(&made, 1));
    return SUCCESS;
}

EXPORT int ncclCommInitRankConfig(struct comm **out, int count, struct id id, int rank,
                                  const struct config *config)
{
    *out = NULL;
    if (!is_config(config) || rank < 0 || rank >= count)
        return fail(INVALID_ARGUMENT, "the config or the rank is wrong");
    id.bytes[ID_BYTES - 1] = '\0';
    return join(out, id.bytes, rank, count);
}

EXPORT int ncclCommInitRank(struct comm **out, int count, struct id id, int rank)
{
    return ncclCommInitRankConfig(out, count, id, rank, NULL);
}

/* All ranks have one colour, and keep their order. */
EXPORT int ncclCommSplit(struct comm *from, int colour, int key, struct comm **out,
                         const struct config *config)
{
    char name[ID_BYTES];

    *out = NULL;
    if (!is_config(config) || colour != 0 || key != from->rank)
        return fail(INVALID_ARGUMENT, "the config, the colour or the key is wrong");
    if ((size_t)snprintf(name, sizeof name, "%s.%d", from->name, from->splits++) >= sizeof name)
        return fail(SYSTEM_ERROR, "too many splits");
    return join(out, name, from->rank, from->count);
}

static void close_comm(struct comm *comm)
{
    while (atomic_load(&comm->under_way) > 0)
        pause_shortly();
    comm_free(comm);
}

EXPORT int ncclCommDestroy(struct comm *comm)
{
    close_comm(comm);
    return SUCCESS;
}

EXPORT int ncclCommAbort(struct comm *comm)
{
    atomic_store(&comm->is_aborted, true);
    close_comm(comm);
    return SUCCESS;
}

EXPORT int ncclCommGetAsyncError(const struct comm *comm, int *code)
{
    *code = atomic_load(&comm->shared->failed);
    return SUCCESS;
}

EXPORT int ncclCommCount(const struct comm *comm, int *count)
{
    *count = comm->count;
    return SUCCESS;
}

EXPORT int ncclCommCuDevice(const struct comm *comm, int *device)
{
    *device = comm->device;
    return SUCCESS;
}

EXPORT int ncclCommUserRank(const struct comm *comm, int *rank)
{
    *rank = comm->rank;
    return SUCCESS;
}

EXPORT const char *ncclGetErrorString(int code)
{
    return code == INVALID_USAGE      ? "invalid usage"
           : code == INVALID_ARGUMENT ? "invalid argument"
           : code == SUCCESS          ? "no error"
                                      : "unhandled error";
}

EXPORT const char *ncclGetLastError(const struct comm *comm)
{
    (void)comm;
    return message;
}

/* ---- operations, in a stream's thread ---- */

/* Bytes that ranks of this process have sent, of operations of more than SHORT_BYTES that are over,
 * but for gathers; for tests. */
EXPORT int64_t emulator_nccl_sent(int from, int to)
{
    return atomic_load(&sent[from][to]);
}

static void differ(const struct op *op, const struct mailbox *box, int from, int to)
{
    if (atomic_exchange(&op->comm->shared->failed, INVALID_USAGE) == SUCCESS)
        (void)fprintf(stderr,
                      "emulator: NCCL: rank %d sends %llu bytes%s, rank %d receives %zu%s\n", from,
                      (unsigned long long)box->total, box->kind == GATHER ? " of a gather" : "", to,
                      op->bytes, op->kind == GATHER ? " of a gather" : "");
}

/* Whether a piece went on. */
static bool send_piece(struct op *op)
{
    struct mailbox *box = &op->comm->shared->boxes[op->comm->rank][op->peer];
    const size_t left = op->bytes - op->done;

    if (atomic_load_explicit(&box->is_full, memory_order_acquire))
        return false;
    if (op->has_begun && left == 0) { /* the last piece was read */
        if (op->kind == SEND && op->bytes > SHORT_BYTES)
            atomic_fetch_add(&sent[op->comm->rank][op->peer], (int64_t)op->bytes);
        op->has_begun = false;
        op->done = SIZE_MAX;
        return true;
    }
    box->kind = op->kind;
    box->total = op->bytes;
    box->bytes = left < PIECE ? left : PIECE;
    memcpy(box->piece, op->at + op->done, box->bytes);
    op->done += box->bytes;
    op->has_begun = true;
    atomic_store_explicit(&box->is_full, 1, memory_order_release);
    return true;
}

static bool receive_piece(struct op *op)
{
    struct mailbox *box = &op->comm->shared->boxes[op->peer][op->comm->rank];

    if (!atomic_load_explicit(&box->is_full, memory_order_acquire))
        return false;
    if (box->kind != op->kind || box->total != op->bytes) {
        differ(op, box, op->peer, op->comm->rank);
        return false;
    }
    memcpy(op->at + op->done, box->piece, box->bytes);
    op->done += box->bytes;
    atomic_store_explicit(&box->is_full, 0, memory_order_release);
    if (op->done == op->bytes)
        op->done = SIZE_MAX;
    return true;
}

/* Whether an operation of the same pair and direction stands before it and is not done. */
static bool is_behind(const struct group *group, int i)
{
    for (int j = 0; j < i; j++)
        if (group->ops[j].done != SIZE_MAX && group->ops[j].peer == group->ops[i].peer &&
            group->ops[j].is_send == group->ops[i].is_send)
            return true;
    return false;
}

/* Of groups that move rows, before anything moves: FFA_EMULATOR_NCCL_DELAY_US. */
static void be_late(const struct group *group)
{
    const char *text = getenv("FFA_EMULATOR_NCCL_DELAY_US");
    char *end = NULL;
    const long us = text ? strtol(text, &end, 10) : 0;
    const struct timespec delay = { .tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000 };

    if (text && (!*text || *end || us < 0 || us > DELAY_MAX_US)) {
        (void)fprintf(stderr, "emulator: FFA_EMULATOR_NCCL_DELAY_US is '%s', not in [0, %d]\n",
                      text, DELAY_MAX_US);
        _exit(1);
    }
    for (int i = 0; us && i < group->count; i++)
        if (group->ops[i].bytes > SHORT_BYTES) {
            (void)nanosleep(&delay, NULL);
            return;
        }
}

static void run_group(void *user)
{
    struct group *group = user;
    struct comm *comm = group->comm;
    int left = group->count;

    be_late(group);
    while (left > 0 && !atomic_load(&comm->is_aborted)) {
        const bool has_failed = atomic_load(&comm->shared->failed) != SUCCESS;
        bool has_moved = false;

        for (int i = 0; i < group->count && !has_failed; i++) {
            struct op *op = &group->ops[i];

            if (op->done == SIZE_MAX || is_behind(group, i))
                continue;
            has_moved |= op->is_send ? send_piece(op) : receive_piece(op);
            left -= op->done == SIZE_MAX;
        }
        if (!has_moved)
            pause_shortly();
    }
    free(group);
    atomic_fetch_sub(&comm->under_way, 1);
}

/* ---- groups ---- */

static int enqueue(struct comm *comm, cudaStream_t stream)
{
    struct group *group = calloc(1, sizeof *group + (size_t)pending_count * sizeof *group->ops);
    int kept = 0;

    if (!group)
        return fail(SYSTEM_ERROR, "no memory");
    group->comm = comm;
    for (int i = 0; i < pending_count; i++)
        if (pending[i].comm == comm && pending[i].stream == stream)
            group->ops[group->count++] = pending[i];
        else
            pending[kept++] = pending[i];
    pending_count = kept;
    atomic_fetch_add(&comm->under_way, 1);
    if (cudaLaunchHostFunc(stream, run_group, group) == cudaSuccess)
        return SUCCESS;
    atomic_fetch_sub(&comm->under_way, 1);
    free(group);
    return fail(CUDA_ERROR, "the stream takes no work");
}

static int flush(void)
{
    int code = SUCCESS;

    while (pending_count > 0 && code == SUCCESS)
        code = enqueue(pending[0].comm, pending[0].stream);
    pending_count = 0;
    return code;
}

static int add(const struct op *op)
{
    if (!op->at || op->peer < 0 || op->peer >= op->comm->count)
        return fail(INVALID_ARGUMENT, "the buffer or the peer is wrong");
    if (pending_count == pending_capacity) {
        const int capacity = pending_capacity ? 2 * pending_capacity : 64;
        struct op *more = realloc(pending, (size_t)capacity * sizeof *more);

        if (!more)
            return fail(SYSTEM_ERROR, "no memory");
        pending = more;
        pending_capacity = capacity;
    }
    pending[pending_count++] = *op;
    return SUCCESS;
}

EXPORT int ncclGroupStart(void)
{
    depth++;
    return SUCCESS;
}

EXPORT int ncclGroupEnd(void)
{
    int code;

    if (--depth > 0)
        return SUCCESS;
    code = flush();
    free(pending);
    pending = NULL;
    pending_capacity = 0;
    return code;
}

/* libffa counts in bytes: type 0 is int8. */
static int one(const struct op *op, int type)
{
    int code = type == 0 ? SUCCESS : fail(INVALID_ARGUMENT, "the type is not int8");

    (void)ncclGroupStart();
    if (code == SUCCESS)
        code = add(op);
    {
        const int ended = ncclGroupEnd();

        return code == SUCCESS ? ended : code;
    }
}

EXPORT int ncclSend(const void *at, size_t count, int type, int peer, struct comm *comm,
                    cudaStream_t stream)
{
    return one(
        &(struct op){ SEND, true, peer, (char *)(uintptr_t)at, count, 0, false, comm, stream },
        type);
}

EXPORT int ncclRecv(void *at, size_t count, int type, int peer, struct comm *comm,
                    cudaStream_t stream)
{
    return one(&(struct op){ SEND, false, peer, at, count, 0, false, comm, stream }, type);
}

EXPORT int ncclAllGather(const void *mine, void *all, size_t count, int type, struct comm *comm,
                         cudaStream_t stream)
{
    int code = ncclGroupStart();

    for (int r = 0; r < comm->count && code == SUCCESS; r++) {
        struct op op = { GATHER, true, r, (char *)(uintptr_t)mine, count, 0, false, comm, stream };

        code = one(&op, type);
        op.is_send = false;
        op.at = (char *)all + (size_t)r * count;
        if (code == SUCCESS)
            code = one(&op, type);
    }
    {
        const int ended = ncclGroupEnd();

        return code == SUCCESS ? ended : code;
    }
}
