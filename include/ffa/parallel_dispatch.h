/* SPDX-License-Identifier: Apache-2.0
 *
 * Context parallelism: which rank computes which query rows.
 *
 * The query axis is cut into chunks; a dispatch gives each chunk to one rank, all ranks as many
 * chunks as the others within one, so that the largest load of a rank is small and ranks receive
 * few keys. A rank's local buffers hold its chunks in ascending order, packed; in self-attention
 * the keys and values of a chunk lie with its queries.
 *
 * Planning is pure and needs no communication: every rank that calls with the same arguments gets
 * the same integers, and the digest to compare. (Chunks, equal counts and the min-heap solver are
 * MagiAttention's; affinity, the swap search under a cap and weights of several masks are ours.)
 *
 * Units: tokens and cells (query, key). Ranges are half open.
 */
#ifndef FFA_PARALLEL_DISPATCH_H
#define FFA_PARALLEL_DISPATCH_H

#include <ffa/mask.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ffa_dispatch_algorithm {
    FFA_DISPATCH_AFFINITY = 0,   /* few received tokens within a slack of the load; the default */
    FFA_DISPATCH_MIN_HEAP = 1,   /* longest chunk first, to the least loaded rank */
    FFA_DISPATCH_SEQUENTIAL = 2, /* the first chunks to rank 0, and so on */
    FFA_DISPATCH_ZIGZAG = 3,     /* 0, 1, .. n-1, n-1, .. 1, 0, 0, 1, .. */
    FFA_DISPATCH_EXACT = 4       /* the least possible largest load; at most 24 chunks */
} ffa_dispatch_algorithm;

/* Ranks [n * ranks_per_node, (n + 1) * ranks_per_node) share node n; the last node may have fewer.
 */
typedef struct ffa_topology {
    int32_t rank_count;     /* 1 to 4096 */
    int32_t ranks_per_node; /* 0: all ranks share one node */
} ffa_topology;

/* One of the masks that share a dispatch, as in a model with layers of several kinds. */
typedef struct ffa_dispatch_mask {
    const ffa_mask *mask;
    int64_t weight; /* what a cell of it costs, e.g. layers with this mask; 0 counts as 1 */
} ffa_dispatch_mask;

/* Where keys and values live. */
typedef enum ffa_dispatch_keys {
    FFA_KEYS_WITH_QUERIES = 0, /* self-attention: with the queries of their chunk */
    FFA_KEYS_REPLICATED = 1,   /* cross-attention: every rank has all of them */
    FFA_KEYS_DISPATCHED = 2    /* cross-attention: in chunks of their own, by who attends them */
} ffa_dispatch_keys;

/* Bits of ffa_dispatch_opts.flags. */
#define FFA_DISPATCH_CHUNK_EXACT 1u   /* chunk_tokens as given, nothing rounded */
#define FFA_DISPATCH_BALANCE_TILES 2u /* load: cells of the tiles visited, not attended cells */

typedef struct ffa_dispatch_opts {
    uint32_t struct_size;
    int32_t algorithm; /* ffa_dispatch_algorithm */
    /* Tokens of a chunk, at most: ceil(tokens / (8 * ranks)) is taken where that is less or this is
     * 0, rounded up to 128 where every rank still gets a chunk. The last chunk may be shorter. */
    int64_t chunk_tokens;
    /* Or the chunks themselves: chunk c is [cu_chunks[c], cu_chunks[c + 1]), none empty, from 0 to
     * seqlen_q; [chunk_count + 1], read during the call. chunk_tokens must be 0 then. */
    const int64_t *cu_chunks;
    int64_t chunk_count;
    /* Affinity: how far the largest load may exceed the mean, in 1/1000 (0: 16, which with what
     * tiles waste stays below 2 % of time; at most 1000); always allowed is what min-heap reaches.
     */
    int32_t slack_permille;
    uint32_t flags;
    int64_t swap_max; /* affinity: swaps looked at, at most; 0: 64 a chunk; -1: none */
    /* ffa_dispatch_keys. Unless keys live with queries, there is nothing to be near to: affinity
     * answers with min-heap's solution. Key chunks go, as many to each rank within one, to the rank
     * that attends most of them; there may be fewer than ranks. */
    int32_t keys;
    int32_t pad_;
    int64_t key_chunk_tokens; /* FFA_KEYS_DISPATCHED: tokens of a key chunk; 0: ceil(keys /
                               * (8 * ranks)), rounded up to 128 where every rank still gets one */
} ffa_dispatch_opts;
#define FFA_DISPATCH_OPTS_INIT                                                                     \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_dispatch_opts)                                         \
    }
FFA_API void ffa_dispatch_opts_init(ffa_dispatch_opts *opts, size_t bytes);

/* Immutable. Thread: any number of threads may read one; one destroys it, last. */
typedef struct ffa_dispatch ffa_dispatch;

/*
 * Solve a dispatch. Cost: 0.02 ms by min-heap and 0.3 ms by affinity for 64k tokens of packed
 * documents and 8 ranks, 0.2 and 4 ms for 1M tokens and 64 ranks.
 *
 * out       receives the dispatch; NULL on failure. Owner: caller, ffa_dispatch_destroy().
 * masks     [mask_count], 1 to 64, all of one shape, with or without cells; seqlen_q == seqlen_k
 *           where keys live with queries; read during the call.
 * topology  how many ranks, and which share a node.
 * opts      NULL: all defaults.
 *
 * Fails with FFA_INVALID, naming the argument: a rank count outside its range or above the number
 * of chunks, masks of different shapes; FFA_UNSUPPORTED: more than 2^20
 * chunks, a load above 2^62, an exact solution of too many chunks, an option newer than this
 * library; FFA_NOMEM. Thread: any. Blocks: no.
 */
FFA_API ffa_status ffa_dispatch_create(ffa_dispatch **out, const ffa_dispatch_mask *masks,
                                       int32_t mask_count, const ffa_topology *topology,
                                       const ffa_dispatch_opts *opts, ffa_error *err);
FFA_API void ffa_dispatch_destroy(ffa_dispatch *dispatch);

typedef struct ffa_dispatch_chunk {
    uint32_t struct_size;
    int32_t rank;
    int64_t begin, end;  /* tokens */
    int64_t local_begin; /* row in the rank's buffer */
    int64_t load;        /* what was balanced: weighted cells */
    int64_t area;        /* weighted attended cells */
} ffa_dispatch_chunk;
#define FFA_DISPATCH_CHUNK_INIT                                                                    \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_dispatch_chunk)                                        \
    }
FFA_API void ffa_dispatch_chunk_init(ffa_dispatch_chunk *chunk, size_t bytes);

/* Chunks of queries of all ranks, in the order of tokens. The count is 0 for NULL; the other fails
 * with FFA_INVALID: a chunk the dispatch has not. */
FFA_API int64_t ffa_dispatch_chunk_count(const ffa_dispatch *dispatch);
FFA_API ffa_status ffa_dispatch_chunk_get(const ffa_dispatch *dispatch, int64_t index,
                                          ffa_dispatch_chunk *out, ffa_error *err);
/* Chunks of keys: those of the queries where keys live with them; one chunk of rank -1 where every
 * rank has all keys. load and area are 0 where keys live apart from queries. */
FFA_API int64_t ffa_dispatch_key_chunk_count(const ffa_dispatch *dispatch);
FFA_API ffa_status ffa_dispatch_key_chunk_get(const ffa_dispatch *dispatch, int64_t index,
                                              ffa_dispatch_chunk *out, ffa_error *err);
/* The chunks of queries of a rank, ascending, [*count], borrowed until destroy; NULL and 0 if there
 * is none.
 */
FFA_API const int64_t *ffa_dispatch_rank_chunks(const ffa_dispatch *dispatch, int32_t rank,
                                                int64_t *count);
/* Rows of a rank's buffers of queries and of keys; 0 for NULL or no such rank. */
FFA_API int64_t ffa_dispatch_query_rows(const ffa_dispatch *dispatch, int32_t rank);
FFA_API int64_t ffa_dispatch_key_rows(const ffa_dispatch *dispatch, int32_t rank);
/* 32 hexadecimal digits over arguments and result: equal on all ranks, or their inputs differ.
 * "" for NULL. Borrowed until destroy. */
FFA_API const char *ffa_dispatch_digest(const ffa_dispatch *dispatch);

/* One rank, or all of them. Received is the union of what the rank's rows attend over all masks,
 * less its own keys: each token once. Sent counts a token once for each rank that receives it. */
typedef struct ffa_dispatch_load {
    uint32_t struct_size;
    int32_t pad_;
    int64_t tokens; /* of keys */
    int64_t load, area,
        visited;              /* weighted cells: balanced, attended, of 128 x 128 tiles visited */
    int64_t received_node;    /* tokens from ranks of the same node */
    int64_t received_network; /* tokens from other nodes */
    int64_t sent_node, sent_network;
    int64_t received_relayed; /* of received_network, those another rank of the node hands on when a
                               * token crosses the network once a node */
    int64_t fragments;        /* copies that bring what is received, adjacent ones joined */
} ffa_dispatch_load;
#define FFA_DISPATCH_LOAD_INIT                                                                     \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_dispatch_load)                                         \
    }
FFA_API void ffa_dispatch_load_init(ffa_dispatch_load *load, size_t bytes);

/* total and most keep the fields and the size they have here. */
typedef struct ffa_dispatch_report {
    uint32_t struct_size;
    int32_t algorithm; /* the one that won: affinity may answer with min-heap's solution */
    int64_t chunk_count;
    ffa_dispatch_load total;  /* sums over ranks */
    ffa_dispatch_load most;   /* each field's largest over ranks */
    double load_imbalance;    /* most.load * ranks / total.load - 1 */
    double visited_imbalance; /* the same of `visited`: the modelled compute time */
    double swap_gain;         /* share of the modelled traffic that the swap search removed */
} ffa_dispatch_report;
#define FFA_DISPATCH_REPORT_INIT                                                                   \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_dispatch_report)                                       \
    }
FFA_API void ffa_dispatch_report_init(ffa_dispatch_report *report, size_t bytes);

/* What the dispatch costs. ranks: NULL, or [rank_count], filled; the struct_size of the first is
 * the distance between them. Takes about the time of create. Fails with FFA_INVALID, FFA_NOMEM;
 * FFA_UNSUPPORTED: all ranks together receive more than 2^28 chunks. Thread: any. */
FFA_API ffa_status ffa_dispatch_report_get(const ffa_dispatch *dispatch,
                                           ffa_dispatch_report *report, ffa_dispatch_load *ranks,
                                           ffa_error *err);

#ifdef __cplusplus
}
#endif
#endif
