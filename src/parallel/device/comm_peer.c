/* SPDX-License-Identifier: Apache-2.0
 *
 * Exchange and mapping: the ranks get to know each other, and reach each other's memory.
 *
 * Ranks of one process use each other's pointers, and their devices get access to each other.
 * Ranks of other processes open CUDA IPC handles. Invariant: what one rank frees, no rank has
 * mapped any more, as between the two there is an agreement of all. Every step that can fail on one
 * rank ends with such an agreement, so all ranks go on or none.
 */
#include "parallel/device/comm_device.h"

#include "base/digest.h"
#include "gpu/gpu_poll.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

/* Handles name whole allocations, and the driver puts small ones together. */
enum { SHARED_ALIGN = 2 << 20, SHARED_MAX = 1 + WINDOW_COUNT };

struct comm_process {
    char host[40]; /* the id of its boot; "": not known */
    uint64_t pid_space;
    int64_t pid;
    unsigned char uuid[16]; /* of the device */
    int32_t ordinal;        /* of the device, in the process */
    int32_t rank, rank_count;
    int32_t transport; /* as asked for */
    int32_t max_ctas;
    int32_t ranks_per_node; /* as asked for */
    uint64_t id;            /* of the communicator; rank 0's is taken */
};

/* Memory that a rank shows to the others. */
struct offer {
    uint64_t address;
    int64_t bytes;
    unsigned char handle[GPU_IPC_BYTES];
};

/* One kind of memory, of all ranks: 0 bytes, no memory. */
struct shared {
    void *at[COMM_RANKS_MAX];
    int64_t bytes[COMM_RANKS_MAX];
};

/* ---- agreement ---- */

ffa_status comm_peer_gather(struct comm_device *comm, const void *mine, void *all, size_t bytes,
                            ffa_error *err)
{
    char message[96];

    if (comm->allgather(comm->user, mine, all, bytes) == 0)
        return FFA_OK;
    comm->has_lost = true;
    text_copy(message, "the allgather of rank %d failed", comm->comm.rank);
    if (comm->has_lock)
        comm_device_cancel(comm, FFA_COMM, message);
    return error_fail(err, FFA_COMM, 0, "%s", message);
}

ffa_status comm_peer_agree(struct comm_device *comm, ffa_status rc, const ffa_error *why,
                           ffa_error *err)
{
    const int32_t n = comm->comm.rank_count;
    struct comm_verdict mine = { .status = (int32_t)rc };
    struct comm_verdict *all = comm->verdicts;
    ffa_status result;

    if (rc != FFA_OK) {
        mine.native = why->native;
        text_copy(mine.message, "%s", why->message);
    }
    result = comm_peer_gather(comm, &mine, all, sizeof mine, err);
    for (int32_t r = 0; result == FFA_OK && r < n; r++) {
        if (all[r].status == FFA_OK)
            continue;
        all[r].message[sizeof all[r].message - 1] = '\0';
        if (r == comm->comm.rank)
            result = error_fail(err, rc, mine.native, "%s", mine.message);
        else
            result = error_fail(err, FFA_COMM, all[r].native, "rank %d failed: %.400s", r,
                                all[r].message);
    }
    return result;
}

/* ---- who the ranks are ---- */

static void read_host(char *out, size_t bytes)
{
    const int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t got = 0;

    if (fd >= 0) {
        got = read(fd, out, bytes - 1);
        (void)close(fd);
    }
    out[got > 0 ? got : 0] = '\0';
}

static ffa_status introduce(struct comm_process *out, const struct comm_device *comm,
                            ffa_error *err)
{
    struct stat space;
    const int64_t seed[] = { clock_us(), clock_unix_s(), (int64_t)getpid(),
                             (int64_t)(uintptr_t)comm };

    memset(out, 0, sizeof *out);
    read_host(out->host, sizeof out->host);
    if (stat("/proc/self/ns/pid", &space) == 0)
        out->pid_space = (uint64_t)space.st_ino;
    out->pid = (int64_t)getpid();
    out->ordinal = gpu_device_ordinal(comm->gpu);
    out->rank = comm->comm.rank;
    out->rank_count = comm->comm.rank_count;
    out->transport = comm->transport;
    out->max_ctas = comm->max_ctas;
    out->ranks_per_node = comm->ranks_per_node;
    out->id = digest_short(seed, sizeof seed) | 1;
    return gpu_device_identity(comm->gpu, out->uuid, err);
}

static bool is_same_process(const struct comm_process *a, const struct comm_process *b)
{
    return a->pid == b->pid && a->pid_space == b->pid_space && strcmp(a->host, b->host) == 0;
}

static ffa_status check_ranks(struct comm_device *comm, ffa_error *err)
{
    const struct comm_process *mine = &comm->processes[comm->comm.rank];

    for (int32_t r = 0; r < comm->comm.rank_count; r++) {
        const struct comm_process *p = &comm->processes[r];

        if (p->rank != r || p->rank_count != mine->rank_count)
            return error_fail(err, FFA_INVALID, 0,
                              "allgather gives rank %d of %d in place %d of rank %d of %d", p->rank,
                              p->rank_count, r, mine->rank, mine->rank_count);
        if (p->transport != mine->transport || p->max_ctas != mine->max_ctas)
            return error_fail(err, FFA_INVALID, 0,
                              "rank %d has transport %d and max_ctas %d, rank %d has %d and %d", r,
                              p->transport, p->max_ctas, mine->rank, mine->transport,
                              mine->max_ctas);
        if (p->ranks_per_node != mine->ranks_per_node)
            return error_fail(err, FFA_INVALID, 0, "rank %d has ranks_per_node %d, rank %d has %d",
                              r, p->ranks_per_node, mine->rank, mine->ranks_per_node);
    }
    return FFA_OK;
}

static bool is_same_host(const char *a, const char *b)
{
    return !*a || !*b || strcmp(a, b) == 0;
}

ffa_status comm_peer_nodes(int32_t *node_ranks, const char *const *hosts, int32_t n, int32_t given,
                           ffa_error *err)
{
    int32_t width = given;

    *node_ranks = n;
    while (given == 0 && width < n && is_same_host(hosts[0], hosts[width]))
        width++;
    for (int32_t r = 1; r < n; r++) {
        const bool is_first = r % width == 0, is_same = is_same_host(hosts[r - 1], hosts[r]);

        if (!is_first && !is_same)
            return error_fail(
                err, FFA_INVALID, 0,
                "ranks %d and %d run on two hosts, and with %d ranks a node%s both are "
                "of node %d",
                r - 1, r, width, given ? "" : ", as on the first host,", r / width);
        if (is_first && is_same && given == 0)
            return error_fail(
                err, FFA_INVALID, 0,
                "ranks %d and %d run on one host, and with %d ranks a node, as on the "
                "first host, they are of two: give ranks_per_node",
                r - 1, r, width);
    }
    *node_ranks = width < n ? width : n;
    return FFA_OK;
}

static ffa_status find_nodes(struct comm_device *comm, ffa_error *err)
{
    const char *hosts[COMM_RANKS_MAX];

    for (int32_t r = 0; r < comm->comm.rank_count; r++)
        hosts[r] = comm->processes[r].host;
    return comm->transport == FFA_TRANSPORT_RELAY
               ? comm_peer_nodes(&comm->node_ranks, hosts, comm->comm.rank_count,
                                 comm->ranks_per_node, err)
               : FFA_OK;
}

/* Copies from one GPU to another stand in one queue, whichever stream of the process they are of:
 * of two ranks of one GPU, one's copies would wait behind the other's, and that for the first. */
static ffa_status check_sharing(const struct comm_device *comm, ffa_error *err)
{
    const int32_t n = comm->comm.rank_count;

    for (int32_t r = 0; r < n; r++) {
        const struct comm_process *p = &comm->processes[r];
        int32_t same = -1, other = -1;

        for (int32_t i = 0; i < n; i++) {
            const bool is_same_gpu = memcmp(p->uuid, comm->processes[i].uuid, sizeof p->uuid) == 0;

            if (i != r && is_same_gpu && is_same_process(p, &comm->processes[i]))
                same = i;
            else if (!is_same_gpu)
                other = i;
        }
        if (same >= 0 && other >= 0)
            return error_fail(err, FFA_UNSUPPORTED, 0,
                              "ranks %d and %d share a GPU, and rank %d has another one: ranks "
                              "share one GPU or have one each",
                              r, same, other);
    }
    return FFA_OK;
}

static ffa_status check_hosts(const struct comm_device *comm, ffa_error *err)
{
    const struct comm_process *mine = &comm->processes[comm->comm.rank];

    for (int32_t r = 0; r < comm->comm.rank_count; r++) {
        const struct comm_process *p = &comm->processes[r];

        if (comm_device_reaches(comm, r) && !is_same_host(p->host, mine->host))
            return error_fail(err, FFA_UNSUPPORTED, 0,
                              "rank %d runs on another host than rank %d: windows are of one host",
                              r, mine->rank);
    }
    return FFA_OK;
}

/* Peers on other devices of this process. */
static ffa_status enable_peers(struct comm_device *comm, ffa_error *err)
{
    const struct comm_process *mine = &comm->processes[comm->comm.rank];
    ffa_error why = { FFA_OK, 0, "" };
    ffa_status rc = FFA_OK;

    for (int32_t r = 0; r < comm->comm.rank_count; r++) {
        const struct comm_process *p = &comm->processes[r];

        if (!comm_device_reaches(comm, r) || !is_same_process(p, mine) ||
            p->ordinal == mine->ordinal)
            continue;
        rc = gpu_peer_enable(comm->gpu, p->ordinal, &why);
        if (rc != FFA_OK) {
            rc = error_fail(err, rc, why.native, "rank %d, device %d: %.400s", r, p->ordinal,
                            why.message);
            goto out;
        }
    }
out:
    return rc;
}

/* The lowest other rank on this process's device. */
static void find_neighbour(struct comm_device *comm)
{
    const struct comm_process *mine = &comm->processes[comm->comm.rank];

    for (int32_t r = comm->comm.rank_count - 1; r >= 0; r--) {
        const struct comm_process *p = &comm->processes[r];

        if (p != mine && is_same_process(p, mine) &&
            memcmp(p->uuid, mine->uuid, sizeof p->uuid) == 0)
            comm->neighbour = r;
    }
}

static void identify_group(struct comm_device *comm)
{
    struct digest digest;
    char text[DIGEST_TEXT];

    digest_init(&digest);
    for (int32_t r = 0; r < comm->comm.rank_count; r++) {
        const struct comm_process *p = &comm->processes[r];

        digest_text(&digest, p->host);
        digest_number(&digest, (int64_t)p->pid_space);
        digest_number(&digest, p->pid);
        digest_field(&digest, p->uuid, sizeof p->uuid);
    }
    digest_final(&digest, text);
    comm->group = digest_short(text, sizeof text);
    comm->id = comm->processes[0].id;
}

/* Whether a group whose ranks do not reach each other can be made. */
static bool may_exchange(const struct comm_device *comm)
{
    return !comm->has_joined && comm->is_mapped && comm->transport != FFA_TRANSPORT_PULL &&
           comm->transport != FFA_TRANSPORT_RELAY;
}

bool comm_peer_exchanges(const struct comm_device *comm)
{
    return comm->comm.rank_count > 1 &&
           (!comm->is_mapped || comm->transport == FFA_TRANSPORT_EXCHANGE ||
            comm->transport == FFA_TRANSPORT_RELAY);
}

/* Ranks that do not reach each other's memory exchange, where they may: nobody's is mapped then.
 * Collective; why: of `rc`. */
static ffa_status agree_on_reach(struct comm_device *comm, ffa_status rc, const ffa_error *why,
                                 ffa_error *err)
{
    ffa_error first = { FFA_OK, 0, "" };
    const ffa_status agreed = comm_peer_agree(comm, rc, why, &first);

    if (agreed != FFA_OK && !comm->has_lost && may_exchange(comm)) {
        comm->is_mapped = false;
        text_copy(comm->unreachable, "%.250s", first.message);
        return FFA_OK;
    }
    return agreed == FFA_OK ? FFA_OK : error_fail(err, agreed, first.native, "%s", first.message);
}

static ffa_status meet(struct comm_device *comm, ffa_error *err)
{
    ffa_error failure = { FFA_OK, 0, "" };
    struct comm_process mine;
    ffa_status rc;

    comm->processes = mem_array((size_t)comm->comm.rank_count, sizeof *comm->processes);
    rc = comm->processes ? introduce(&mine, comm, &failure)
                         : error_nomem(&failure, "the processes of a group");
    FFA_TRY(comm_peer_agree(comm, rc, &failure, err));
    FFA_TRY(comm_peer_gather(comm, &mine, comm->processes, sizeof mine, err));
    rc = check_ranks(comm, &failure);
    if (rc == FFA_OK)
        rc = check_sharing(comm, &failure);
    if (rc == FFA_OK)
        rc = find_nodes(comm, &failure);
    FFA_TRY(comm_peer_agree(comm, rc, &failure, err));
    rc = check_hosts(comm, &failure);
    if (rc == FFA_OK)
        rc = enable_peers(comm, &failure);
    FFA_TRY(agree_on_reach(comm, rc, &failure, err));
    find_neighbour(comm);
    identify_group(comm);
out:
    return rc;
}

bool comm_peer_shares_gpu(const struct comm_device *comm, int32_t *rank, int32_t *other)
{
    for (*rank = 0; *rank < comm->comm.rank_count; ++*rank)
        for (*other = *rank + 1; *other < comm->comm.rank_count; ++*other) {
            const struct comm_process *a = &comm->processes[*rank], *b = &comm->processes[*other];

            if (memcmp(a->uuid, b->uuid, sizeof a->uuid) == 0 && strcmp(a->host, b->host) == 0)
                return true;
        }
    return false;
}

bool comm_peer_is_dead(const struct comm_device *comm, int32_t rank)
{
    const struct comm_process *mine = &comm->processes[comm->comm.rank];
    const struct comm_process *p = &comm->processes[rank];

    return p->pid_space && p->pid_space == mine->pid_space && strcmp(p->host, mine->host) == 0 &&
           kill((pid_t)p->pid, 0) != 0 && errno == ESRCH;
}

/* ---- memory of all ranks ---- */

static bool is_mapped_by_ipc(const struct comm_device *comm, int32_t rank)
{
    return rank != comm->comm.rank &&
           !is_same_process(&comm->processes[rank], &comm->processes[comm->comm.rank]);
}

static void unmap_peers(struct comm_device *comm, struct shared *memory)
{
    for (int32_t r = 0; r < comm->comm.rank_count; r++) {
        if (r == comm->comm.rank)
            continue;
        if (memory->at[r] && is_mapped_by_ipc(comm, r))
            gpu_ipc_close(comm->gpu, memory->at[r]);
        memory->at[r] = NULL;
    }
}

/* The rank's own memory, zero, and what the others need to map it. */
static ffa_status make_offer(struct offer *offer, struct comm_device *comm, struct shared *memory,
                             ffa_error *err)
{
    const int32_t own = comm->comm.rank;
    const int64_t bytes = (memory->bytes[own] + SHARED_ALIGN - 1) / SHARED_ALIGN * SHARED_ALIGN;
    ffa_stream stream = gpu_stream_handle(comm->watch);
    bool is_shared = false;
    ffa_status rc = FFA_OK;

    if (memory->bytes[own] == 0)
        goto out;
    FFA_TRY(gpu_alloc(comm->gpu, &memory->at[own], bytes, err));
    FFA_TRY(gpu_fill_enqueue(comm->gpu, memory->at[own], 0, bytes, stream, err));
    FFA_TRY(gpu_stream_synchronize(comm->gpu, stream, err));
    offer->address = (uint64_t)(uintptr_t)memory->at[own];
    offer->bytes = memory->bytes[own];
    for (int32_t r = 0; r < comm->comm.rank_count; r++)
        is_shared = is_shared || (comm_device_reaches(comm, r) && is_mapped_by_ipc(comm, r));
    if (is_shared)
        rc = gpu_ipc_export(comm->gpu, memory->at[own], offer->handle, err);
    if (rc != FFA_OK && may_exchange(comm)) {
        memset(offer->handle, 0, sizeof offer->handle); /* peers fail to open it */
        rc = FFA_OK;
    }
out:
    return rc;
}

static ffa_status map_peer(struct comm_device *comm, struct shared *memory, int32_t rank,
                           const struct offer *offer, ffa_error *err)
{
    ffa_error why = { FFA_OK, 0, "" };
    ffa_status rc;

    memory->bytes[rank] = offer->bytes;
    if (offer->bytes == 0 || rank == comm->comm.rank || !comm_device_reaches(comm, rank))
        return FFA_OK;
    if (!is_mapped_by_ipc(comm, rank)) {
        memory->at[rank] = (void *)(uintptr_t)offer->address;
        return FFA_OK;
    }
    rc = gpu_ipc_open(comm->gpu, offer->handle, &memory->at[rank], &why);
    return rc == FFA_OK
               ? FFA_OK
               : error_fail(err, rc, why.native, "memory of rank %d: %.400s", rank, why.message);
}

/*
 * Allocate memories [count] of all ranks, bytes[own] of each, and map them. On failure, of any
 * rank, nothing is mapped and nothing allocated, unless the bootstrap failed: then a peer may have
 * the memory mapped, and it stays allocated.
 */
static ffa_status share(struct comm_device *comm, struct shared *memories, int count,
                        ffa_error *err)
{
    const int32_t n = comm->comm.rank_count, own = comm->comm.rank;
    ffa_error failure = { FFA_OK, 0, "" };
    struct offer mine[SHARED_MAX] = { 0 };
    struct offer(*all)[SHARED_MAX] = mem_array((size_t)n, sizeof *all);
    bool was_mapped;
    ffa_status rc = all ? FFA_OK : error_nomem(&failure, "the exchange of handles");

    for (int i = 0; rc == FFA_OK && i < count; i++)
        rc = make_offer(&mine[i], comm, &memories[i], &failure);
    FFA_TRY(comm_peer_agree(comm, rc, &failure, err));
    FFA_TRY(comm_peer_gather(comm, mine, all, sizeof mine, err));
    for (int i = 0; i < count; i++)
        for (int32_t r = 0; rc == FFA_OK && r < n; r++)
            rc = map_peer(comm, &memories[i], r, &all[r][i], &failure);
    was_mapped = comm->is_mapped;
    rc = agree_on_reach(comm, rc, &failure, err);
    if ((rc != FFA_OK || was_mapped != comm->is_mapped) && !comm->has_lost) {
        for (int i = 0; i < count; i++)
            unmap_peers(comm, &memories[i]);
        (void)comm_peer_agree(comm, FFA_OK, NULL, NULL);
    }
out:
    for (int i = 0; rc != FFA_OK && !comm->has_lost && i < count; i++)
        gpu_free(comm->gpu, memories[i].at[own]);
    mem_free(all);
    return rc;
}

/* ---- creation ---- */

/* What kernels write departures to: where ranks exchange, this rank's own stream waits for them;
 * where they relay, they tell ranks of their node. */
static ffa_status upload_blocks(struct comm_device *comm, ffa_error *err)
{
    const int64_t bytes = (int64_t)comm->comm.rank_count * (int64_t)sizeof *comm->blocks_device;
    ffa_stream stream = gpu_stream_handle(comm->watch);
    uint64_t *blocks[COMM_RANKS_MAX];
    void *memory;
    ffa_status rc;

    for (int32_t r = 0; r < comm->comm.rank_count; r++)
        blocks[r] = comm_peer_exchanges(comm) && comm->transport != FFA_TRANSPORT_RELAY
                        ? comm_device_own(comm)
                        : comm->blocks[r]; /* NULL: of another node */
    FFA_TRY(gpu_alloc(comm->gpu, &memory, bytes, err));
    comm->blocks_device = memory;
    FFA_TRY(gpu_send(comm->gpu, stream, memory, blocks, bytes, err));
    rc = gpu_stream_synchronize(comm->gpu, stream, err);
out:
    return rc;
}

static void windows_take(struct comm_device *comm, int window, const struct shared *memory,
                         int32_t rank)
{
    comm->windows[window][rank] = memory->at[rank];
    comm->window_bytes[window][rank] = memory->bytes[rank];
}

/* The joining failed on all ranks: each unmaps what is the others' before any of them frees its
 * own.
 */
static void forget_peers(struct comm_device *comm, struct shared *memories)
{
    for (int i = 0; i < SHARED_MAX; i++)
        unmap_peers(comm, &memories[i]);
    for (int32_t r = 0; r < comm->comm.rank_count; r++) {
        comm->blocks[r] = memories[WINDOW_COUNT].at[r];
        for (int w = 0; w < WINDOW_COUNT; w++)
            windows_take(comm, w, &memories[w], r);
    }
    (void)comm_peer_agree(comm, FFA_OK, NULL, NULL);
}

ffa_status comm_peer_join(struct comm_device *comm, const int64_t bytes[WINDOW_COUNT],
                          ffa_error *err)
{
    const int32_t n = comm->comm.rank_count, own = comm->comm.rank;
    struct shared *memories = mem_array(SHARED_MAX, sizeof *memories);
    ffa_error failure = { FFA_OK, 0, "" };
    ffa_status rc = memories ? FFA_OK : error_nomem(&failure, "the windows of ranks");

    FFA_TRY(comm_peer_agree(comm, rc, &failure, err));
    FFA_TRY(meet(comm, err));
    comm->block_bytes = comm_block_size(n) * (int64_t)sizeof(uint64_t);
    memories[WINDOW_COUNT].bytes[own] = comm->block_bytes;
    for (int w = 0; w < WINDOW_COUNT; w++)
        memories[w].bytes[own] = bytes[w];
    FFA_TRY(share(comm, memories, SHARED_MAX, err));
    for (int32_t r = 0; r < n; r++) {
        comm->blocks[r] = memories[WINDOW_COUNT].at[r];
        for (int w = 0; w < WINDOW_COUNT; w++)
            windows_take(comm, w, &memories[w], r);
    }
    rc = upload_blocks(comm, &failure);
    rc = comm_peer_agree(comm, rc, &failure, err);
    comm->has_joined = rc == FFA_OK;
    if (rc != FFA_OK && !comm->has_lost)
        forget_peers(comm, memories);
out:
    mem_free(memories);
    return rc;
}

/* ---- larger windows ---- */

/* Windows whose rank has asked for more than it has; the others keep theirs. */
struct growth {
    struct shared now[WINDOW_COUNT];              /* the new ones; bytes 0: stays */
    int64_t wanted[COMM_RANKS_MAX][WINDOW_COUNT]; /* by each rank */
};

static bool any_grows(const struct comm_device *comm, const struct growth *growth)
{
    for (int32_t r = 0; r < comm->comm.rank_count; r++)
        for (int w = 0; w < WINDOW_COUNT; w++)
            if (growth->wanted[r][w] > comm->window_bytes[w][r])
                return true;
    return false;
}

/* The new windows in the place of the old ones, which `growth` has after it. */
static void swap_windows(struct comm_device *comm, struct growth *growth)
{
    for (int w = 0; w < WINDOW_COUNT; w++)
        for (int32_t r = 0; r < comm->comm.rank_count; r++) {
            void *old = comm->windows[w][r];

            if (growth->now[w].bytes[r] == 0)
                continue;
            windows_take(comm, w, &growth->now[w], r);
            growth->now[w].at[r] = old;
        }
}

static ffa_status check_reserve(const int64_t bytes[WINDOW_COUNT], ffa_error *err)
{
    const struct bounded fields[] = {
        { "key_bytes", bytes[WINDOW_ROWS], 0, (int64_t)1 << 46 },
        { "sum_bytes", bytes[WINDOW_SUMS], 0, (int64_t)1 << 46 },
    };

    return check_bounded(fields, sizeof fields / sizeof *fields, err);
}

ffa_status comm_peer_reserve(struct comm_device *comm, const int64_t bytes[WINDOW_COUNT],
                             ffa_error *err)
{
    const int32_t own = comm->comm.rank;
    ffa_error failure = { FFA_OK, 0, "" };
    struct growth *growth = mem_array(1, sizeof *growth);
    ffa_status rc =
        growth ? check_reserve(bytes, &failure) : error_nomem(&failure, "the windows of ranks");

    if (rc == FFA_OK)
        rc = gpu_synchronize(comm->gpu, &failure);
    if (rc == FFA_OK)
        rc = comm_device_status(comm, &failure);
    FFA_TRY(comm_peer_agree(comm, rc, &failure, err));
    FFA_TRY(comm_peer_gather(comm, bytes, growth->wanted, sizeof *growth->wanted, err));
    if (!any_grows(comm, growth))
        goto out;
    for (int w = 0; w < WINDOW_COUNT; w++)
        if (bytes[w] > comm->window_bytes[w][own])
            growth->now[w].bytes[own] = bytes[w];
    FFA_TRY(share(comm, growth->now, WINDOW_COUNT, err));
    swap_windows(comm, growth);
    for (int w = 0; w < WINDOW_COUNT; w++)
        unmap_peers(comm, &growth->now[w]);
    FFA_TRY(comm_peer_agree(comm, FFA_OK, NULL, err));
    for (int w = 0; w < WINDOW_COUNT; w++)
        gpu_free(comm->gpu, growth->now[w].at[own]);
    /* Freeing waits for the device, on which ranks that share it must have no call yet. */
    rc = comm_peer_agree(comm, FFA_OK, NULL, err);
out:
    mem_free(growth);
    return rc;
}

/* ---- the end ---- */

void comm_peer_finish(struct comm_device *comm, bool is_safe)
{
    const int32_t own = comm->comm.rank;
    struct shared *memory = mem_array(1, sizeof *memory);

    is_safe = is_safe && !comm->has_lost;
    for (int i = 0; comm->processes && memory && i < SHARED_MAX; i++) {
        for (int32_t r = 0; r < comm->comm.rank_count; r++)
            memory->at[r] = i == WINDOW_COUNT ? comm->blocks[r] : comm->windows[i][r];
        if (is_safe)
            gpu_free(comm->gpu, memory->at[own]);
        unmap_peers(comm, memory);
    }
    if (is_safe && comm->gpu)
        gpu_free(comm->gpu, comm->blocks_device);
    mem_free(memory);
    mem_free(comm->processes);
}
