/* SPDX-License-Identifier: Apache-2.0
 *
 * Communicators: groups of ranks, and the transports between them.
 *
 * A communicator is one rank's end of a group. The loopback transport lives in one process, a
 * thread a rank, over host memory: for tests, for machines without a GPU, and to see a plan run.
 * Transfers run beside the computation and complete in an order drawn from a seed; what they have
 * not written yet holds NaN.
 *
 * Groups of GPUs are of processes with a GPU each, threads of a process with a GPU each, or several
 * ranks on one GPU. Ranks that reach each other's memory, on one host, pull from each other's
 * windows with the copy engines. Ranks with a GPU each, also of several hosts, exchange over NCCL,
 * or relay: over NCCL between nodes, with the copy engines inside each.
 *
 * When a rank fails, is cancelled, leaves, or keeps another one waiting for too long, the group is
 * broken: every call of every rank returns, with one status and a sentence that names the rank. A
 * broken group can only be destroyed.
 */
#ifndef FFA_COMM_H
#define FFA_COMM_H

#include <ffa/context.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Thread: one call of a rank at a time; ffa_comm_cancel from any thread. */
typedef struct ffa_comm ffa_comm;

typedef struct ffa_loopback_opts {
    uint32_t struct_size;
    int32_t delay;      /* times a transfer may be passed over by others, 0 to 1000; 0: never */
    uint64_t seed;      /* of the order of transfers; results do not depend on it */
    int64_t timeout_ms; /* that one rank waits for another, 1 to 2^40; 0: 60000 */
} ffa_loopback_opts;
#define FFA_LOOPBACK_OPTS_INIT                                                                     \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_loopback_opts)                                         \
    }
FFA_API void ffa_loopback_opts_init(ffa_loopback_opts *opts, size_t bytes);

/*
 * Make a group of ranks in this process.
 *
 * out         [rank_count], receives the ends; all NULL on failure. Owner: caller, each by
 *             ffa_comm_destroy().
 * rank_count  1 to 256.
 * opts        NULL: all defaults.
 *
 * Fails with FFA_INVALID; FFA_UNSUPPORTED: an option newer than this library; FFA_NOMEM. Thread:
 * any. Blocks: no. The group has one thread of its own until its last end is destroyed.
 */
FFA_API ffa_status ffa_loopback_create(ffa_comm **out, int32_t rank_count,
                                       const ffa_loopback_opts *opts, ffa_error *err);

/*
 * A caller's way to hand bytes from every rank to every rank: a store, MPI, threads and a barrier.
 *
 * user   of the options.
 * mine   [bytes]. The same bytes count on all ranks.
 * all    [rank_count][bytes], receives what each rank gave as `mine`.
 *
 * Returns 0, or anything else where it failed. Blocks until all ranks have called; a bootstrap that
 * can fail or time out should, as nothing here ends its wait. Called only inside collective
 * functions, on the thread that called them, the nth call on one rank with the nth on all others.
 */
typedef int (*ffa_comm_allgather)(void *user, const void *mine, void *all, size_t bytes);

/* What brings rows from GPU to GPU. */
typedef enum ffa_transport {
    /* Pull where every rank reaches the memory of every other one, else exchange. */
    FFA_TRANSPORT_AUTO = 0,
    /* Ranks of one host pull from each other's windows with the copy engines: no SM is used. */
    FFA_TRANSPORT_PULL = 1,
    /* Ranks, of one host or several, send and receive over NCCL, which uses some SMs: passes leave
     * them free. One rank a GPU. */
    FFA_TRANSPORT_EXCHANGE = 2,
    /* Ranks of several nodes, one rank a GPU. Inside a node, whose ranks reach each other's memory,
     * they pull. A key that ranks of another node need crosses once, over NCCL, to one of them,
     * from which the others pull it; gradients are added there before they cross once. Plans are of
     * the same nodes (ranks_per_node of their topology). Never chosen by _AUTO. */
    FFA_TRANSPORT_RELAY = 3
} ffa_transport;

typedef struct ffa_peer_opts {
    uint32_t struct_size;
    int32_t rank, rank_count; /* 0 <= rank < rank_count; rank_count 1 to 256 */
    /* Relay: ranks [n * ranks_per_node, (n + 1) * ranks_per_node) are of node n, 0 to 256; each on
     * one host, which may have several nodes. 0: hosts are nodes, with as many ranks each, but for
     * the last one. Of the other transports it is not used. The same on all ranks. */
    int32_t ranks_per_node;
    ffa_comm_allgather allgather;
    void *user;
    /* Windows of this rank, each 0 to 2^46; ranks may differ. ffa_comm_reserve makes them larger.
     */
    int64_t key_bytes; /* its own keys and those it receives */
    int64_t sum_bytes; /* their gradients */
    /* That a call may take on the GPU, and that one rank waits for another, 1 to 2^40; 0: 60000 */
    int64_t timeout_ms;
    int32_t transport; /* ffa_transport; the same on all ranks, as max_ctas */
    /* Exchange and relay: SMs that NCCL takes at most, for keys and again for gradients, 1 to 64;
     * 0: 2. Forward passes leave as many SMs free, backward ones twice as many, beyond what
     * sm_margin says. More move faster, which a pass with much to compute does not need. */
    int32_t max_ctas;
    /* Exchange and relay: libnccl.so.2, 2.18 or newer. NULL: what the process has loaded, else
     * where the loader and NVIDIA's Python wheels have it. Read during the call. */
    const char *nccl_path;
} ffa_peer_opts;
#define FFA_PEER_OPTS_INIT                                                                         \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_peer_opts)                                             \
    }
FFA_API void ffa_peer_opts_init(ffa_peer_opts *opts, size_t bytes);

/*
 * Join a group of ranks on GPUs. Collective: every rank calls it, with its own context and rank,
 * and all of them succeed or fail.
 *
 * out      receives the rank's end; NULL on failure. Owner: caller, ffa_comm_destroy(), before the
 *          context is closed.
 * context  of the rank's GPU. Several ranks may use one GPU, each with its own context or all with
 *          one; such processes set CUDA_DEVICE_MAX_CONNECTIONS=32, so that the streams of different
 *          ranks share no hardware queue, and each rank's passes take a stream of its own: those of
 *          a process refuse the legacy default stream (NULL) where another of its ranks uses the
 *          same GPU. Ranks that share a GPU in one process are a group of that GPU alone: copies
 *          between two GPUs share a queue in any case.
 *
 * Fails with FFA_INVALID; FFA_UNSUPPORTED: a context without a GPU, an option newer than this
 * library, ranks of a process of which some share a GPU and others have another one, ranks that are
 * to pull, or for which there is no NCCL, and that do not reach each other's memory, ranks of a
 * node that are to relay and do not, ranks that exchange or relay and share a GPU; FFA_COMM: the
 * bootstrap failed, or another rank, which is named; FFA_GPU; FFA_NOMEM. Thread: any. Blocks: for
 * the other ranks. The rank has one thread of its own, the watchdog, until it is destroyed.
 */
FFA_API ffa_status ffa_comm_create_peer(ffa_comm **out, ffa_context *context,
                                        const ffa_peer_opts *opts, ffa_error *err);

typedef struct ffa_nccl_opts {
    uint32_t struct_size;
    int32_t transport; /* ffa_transport */
    void *comm;        /* ncclComm_t of the caller; its ranks are the group's */
    /* As in ffa_peer_opts. */
    int64_t key_bytes, sum_bytes;
    int64_t timeout_ms;
    int32_t max_ctas;
    int32_t ranks_per_node;
    const char *nccl_path; /* the library that `comm` is of; NULL: the only one in the process */
} ffa_nccl_opts;
#define FFA_NCCL_OPTS_INIT                                                                         \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_nccl_opts)                                             \
    }
FFA_API void ffa_nccl_opts_init(ffa_nccl_opts *opts, size_t bytes);

/*
 * Join a group of the ranks of a communicator of NCCL, which serves as the bootstrap. Collective,
 * as ffa_comm_create_peer, with every rank of `comm`.
 *
 * out      receives the rank's end; NULL on failure. Owner: caller, ffa_comm_destroy(), before the
 *          context is closed and before `comm` is destroyed.
 * context  of the GPU that `comm` is of.
 * opts     `comm` may be non-blocking. Collective functions of the group gather over it; where the
 *          transport is to exchange or to relay it is split in two, for keys and for gradients. It
 * is not used by passes, and never aborted: what breaks the group leaves it as it is. While a
 *          collective function runs, nothing else may be enqueued on it.
 *
 * Fails as ffa_comm_create_peer does, and with FFA_INVALID: comm is NULL, of another device, or of
 * an NCCL that cannot be told (two are loaded, or none, or nccl_path is another one);
 * FFA_UNSUPPORTED: NCCL is older than 2.18, or ranks that exchange or relay share a GPU; FFA_GPU:
 * NCCL failed, with its own words. A rank that fails before others have heard of it leaves those
 * waiting for timeout_ms. Thread: any. Blocks: for the other ranks.
 */
FFA_API ffa_status ffa_comm_create_nccl(ffa_comm **out, ffa_context *context,
                                        const ffa_nccl_opts *opts, ffa_error *err);

/* Which transport the group has: FFA_TRANSPORT_PULL, _EXCHANGE or _RELAY; _AUTO for the loopback
 * and NULL. */
FFA_API ffa_transport ffa_comm_transport(const ffa_comm *comm);

/*
 * Make windows of the rank at least so large. Collective, and all or none: where one rank fails,
 * all fail, and the windows stay what they were. Waits for all work of the device. The windows of
 * the loopback transport grow by themselves: nothing is done.
 *
 * Fails with FFA_INVALID, FFA_NOMEM, FFA_GPU, FFA_COMM (another rank failed, which is named; or the
 * group is broken), FFA_TIMEOUT.
 */
FFA_API ffa_status ffa_comm_reserve(ffa_comm *comm, int64_t key_bytes, int64_t sum_bytes,
                                    ffa_error *err);

/*
 * FFA_OK, or why the group is broken: FFA_TIMEOUT, FFA_COMM or FFA_GPU, and a sentence that names
 * the rank. What passes on GPUs return says that they were enqueued: ask this after the stream has
 * been synchronised, and before the results are used. Thread: any. Blocks: no.
 */
FFA_API ffa_status ffa_comm_status(const ffa_comm *comm, ffa_error *err);

/*
 * The rank leaves: ranks that wait for it, now or later, break the group. NULL is allowed.
 *
 * Blocks, with the peer transport: until the rank's calls are over, its peers have pulled what they
 * were lent, and none will touch its memory again, each at most the time-out. Memory that a peer
 * may still touch then is left allocated. Freeing the rest waits for all work of the device. Ranks
 * that exchange or relay also end their communicators of NCCL.
 */
FFA_API void ffa_comm_destroy(ffa_comm *comm);

/* -1 and 0 for NULL. */
FFA_API int32_t ffa_comm_rank(const ffa_comm *comm);
FFA_API int32_t ffa_comm_rank_count(const ffa_comm *comm);

/* Break the group with FFA_COMM; why: part of the message all ranks see, or NULL. Ranks that
 * exchange and do not reach each other's memory, and ranks of other nodes, find out by the
 * time-out. Thread: any, also while the rank is in a call. Blocks: no. */
FFA_API void ffa_comm_cancel(ffa_comm *comm, const char *why);

#ifdef __cplusplus
}
#endif
#endif
