/* SPDX-License-Identifier: Apache-2.0
 *
 * The plan of one rank: what it receives, what it computes, in which stages.
 *
 * A plan is made from a dispatch (parallel_dispatch.h), a mask and a rank; the dispatch may have
 * been made for this mask, for several (layers of different kinds: one plan each), or for another
 * mask of the same shape. Stage 0 is what the rank computes with its own rows; each further stage
 * computes with rows that arrive while the stage before it computes. Forward and backward have
 * stages of their own. Which rows make which stage is cut so that a modelled time is least; the
 * model is in integers and the same on every rank, so that ranks agree without a message.
 *
 * Planning is pure and needs no communication. ffa_parallel_plan_digest is the same on all ranks of
 * a mask: compare it to find ranks whose inputs differ. (Stages of group casts hidden behind
 * compute: MagiAttention. The exact cut, the order of the backward pass and the digest are ours.)
 *
 * Units: tokens, rows of buffers, nanoseconds of modelled time. Ranges are half open.
 */
#ifndef FFA_PARALLEL_PLAN_H
#define FFA_PARALLEL_PLAN_H

#include <ffa/parallel_dispatch.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What the model of time is told; 0 in a field takes its default, for H200s: rates that kernels
 * reach on long masks, a little below; batched pulls over NVLink while all GPUs of the host pull
 * (200 to 270 GB/s measured) and a round trip of stream flags (13 us measured); a network of 400
 * Gb/s, its latency assumed. A cell is one (query, key) pair of one query head: 2 (head_dim +
 * head_dim_v) operations forward, 6 head_dim + 4 head_dim_v backward, with the head_dim_v of the
 * options that the model is part of.
 *
 * The time of computing is
 *
 *     (cells visited + begin * rows) * operations a cell * query heads / gflops
 *
 * where `rows` are those that own tiles, query rows forward and keys backward, and `begin` is what
 * a tile costs besides its cells (forward_begin_keys, backward_begin_rows of the options): it is
 * loaded, stored, and waited for where nothing else is under way. Where sms is given, the last wave
 * of a forward launch comes on top, by its smallest tile. */
typedef struct ffa_parallel_model {
    int32_t heads_q;         /* 8 */
    int32_t heads_kv;        /* 1; divides heads_q */
    int32_t head_dim;        /* 128 */
    int32_t element_bytes;   /* 2: of q, k, v on the wire; gradients travel in fp32 inside a node */
    int64_t forward_gflops;  /* 600000: of a kernel on one rank, 10^9 operations a second */
    int64_t backward_gflops; /* 500000 */
    int64_t node_mbytes_s;   /* 250000: into one rank from its node, 10^6 bytes a second */
    int64_t network_mbytes_s;   /* 45000: into one rank from other nodes */
    int64_t node_latency_ns;    /* 13000: from asking for rows to computing with them */
    int64_t network_latency_ns; /* 30000 */
    int64_t launch_ns;          /* 5000: of each stage's compute */
} ffa_parallel_model;

/* Which rows travel between ranks. */
typedef enum ffa_parallel_moves {
    FFA_PARALLEL_MOVE_KEYS = 0,    /* keys and values to the rank of the query; gradients back */
    FFA_PARALLEL_MOVE_QUERIES = 1, /* queries to the rank of the key; (out, lse) pairs back, merged
                                    * there by log-sum-exp; for few queries of many keys */
    FFA_PARALLEL_MOVE_AUTO = 2     /* the one whose slowest rank is done first, by the model */
} ffa_parallel_moves;

/* Bits of ffa_parallel_plan_opts.flags. */
#define FFA_PARALLEL_FORWARD_ONLY 1u /* no backward stages: inference */
/* What a plan says, and nothing to run it with: tiles are counted and not kept, so that it takes
 * little memory on any mask. Passes refuse it with FFA_INVALID. Digests and saved bytes are those
 * of the same plan without this flag. */
#define FFA_PARALLEL_OUTLINE 2u
/* The plan of the rank whose passes together take longest by the model, the first of equals, and
 * not of the rank in the argument; ffa_parallel_plan_info says which. */
#define FFA_PARALLEL_SLOWEST_RANK 4u

typedef struct ffa_parallel_plan_opts {
    uint32_t struct_size;
    int32_t tile_m, tile_n; /* forward: query rows and keys of a tile; 0: 128, 128 */
    /* backward: query rows and keys of a tile, as of the kernels; 0: 64, 128. (GPU kernels have 128
     * keys, and 64 where head_dim_v alone is above 128.) */
    int32_t backward_m, backward_n;
    int32_t forward_stages; /* stages that receive: 0: as many as is best; n, up to 12: n, at most;
                             * -1: one stage of all that is received (MagiAttention's degree 0) */
    int32_t backward_stages;
    int32_t stages_max; /* of a free choice, 1 to 12; 0: 8 */
    int32_t buffers;    /* receive buffers that stages take in turn, 2 or 3; 0: 2 */
    uint32_t flags;
    int32_t moves; /* ffa_parallel_moves */
    /* > 0, up to 4096: SMs of each rank's device, for passes that are one launch fed by arrival
     * flags (ffa_parallel_pass_create). Forward, a work item then goes through all stages before
     * the next one begins, so that only the first wave of items hides what arrives: stages are cut
     * for that wave. 0: a launch a stage. */
    int32_t sms;
    int64_t stage_rows_min; /* rows of a stage, at least, unless there is only one; 0: 512 */
    ffa_parallel_model model;
    int32_t head_dim_v; /* of v and out, up to 1024; 0: model.head_dim */
    int32_t pad_end_;
    /* > 0: bytes of device memory that a rank's passes over GPUs may take together: both windows,
     * and the larger of the two workspaces; of no rank more. Where all that a rank receives does
     * not fit, passes are made in rounds: a launch a round, with the keys of one stage (of the
     * first round: with own keys, too), which lie in the two halves of a ring in turn. Sizes are
     * those of the model: heads, head_dim, element_bytes. Keys move. 0: no limit, one round. */
    int64_t memory_bytes;
    /* The model of time besides `model`, 0 in each: that takes no time. As many further keys as a
     * query row of a forward tile costs by itself, and further query rows as a key of a backward
     * tile does, up to 65536. A launch for each stage begins the tiles of all rows again; where
     * keys move, a backward pass has tiles of received keys. Where sms is given and none of these
     * and of the model's two rates, all five are those of H200s (docs/figures.md): 700000 and
     * 617000 gflops, 140 keys, 439 rows, 2000000 into the window. */
    int32_t forward_begin_keys, backward_begin_rows;
    /* 10^6 bytes a second: of own keys into the window of a pass over several GPUs, up to 10^9.
     * With it a pass also has the launch that copies them (model.launch_ns). */
    int64_t window_mbytes_s;
} ffa_parallel_plan_opts;
#define FFA_PARALLEL_PLAN_OPTS_INIT                                                                \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_parallel_plan_opts)                                    \
    }
FFA_API void ffa_parallel_plan_opts_init(ffa_parallel_plan_opts *opts, size_t bytes);

/* Immutable. Thread: any number of threads may read one; one destroys it, last. */
typedef struct ffa_parallel_plan ffa_parallel_plan;

/*
 * Plan one rank.
 *
 * out       receives the plan; NULL on failure. Owner: caller, ffa_parallel_plan_destroy(). It
 *           does not need the dispatch or the mask any longer.
 * dispatch  where rows live.
 * mask      of the dispatch's shape; it need not be one the dispatch was made for, and may attend
 *           nothing.
 * rank      0 to the dispatch's rank_count - 1.
 * opts      NULL: all defaults.
 *
 * Fails with FFA_INVALID, naming the argument, or the least memory_bytes that would do: own keys
 * and stages of the fewest rows; FFA_UNSUPPORTED: an option newer than this library, or all ranks
 * together receive more than 2^28 chunks; FFA_NOMEM. Thread: any. Blocks: no.
 */
FFA_API ffa_status ffa_parallel_plan_create(ffa_parallel_plan **out, const ffa_dispatch *dispatch,
                                            const ffa_mask *mask, int32_t rank,
                                            const ffa_parallel_plan_opts *opts, ffa_error *err);
FFA_API void ffa_parallel_plan_destroy(ffa_parallel_plan *plan);

/*
 * A dispatch by the model: of affinity's, min-heap's and zigzag's (opts->algorithm is ignored) the
 * one with which the slowest ranks are done first, both passes, summed over the masks by their
 * weights. Affinity trades a little balance for fewer rows, which is no gain where their transfer
 * is hidden anyway. Zigzag's has two chunks a rank, unless opts says how long chunks are. Where
 * affinity answers with min-heap's solution, that is the result. Ties: affinity's.
 * Zigzag's has to take a sixteenth less than the better of these two; but where that is min-heap's,
 * and not just about, zigzag's wins ties, unless FFA_PARALLEL_FORWARD_ONLY. Arguments, failures and
 * result as ffa_dispatch_create, and of ffa_parallel_plan_create, whose options plan_opts are.
 * Cost: about that of both for each of the three.
 */
FFA_API ffa_status ffa_dispatch_create_best(ffa_dispatch **out, const ffa_dispatch_mask *masks,
                                            int32_t mask_count, const ffa_topology *topology,
                                            const ffa_dispatch_opts *opts,
                                            const ffa_parallel_plan_opts *plan_opts,
                                            ffa_error *err);

/* 32 hexadecimal digits, equal on all ranks that plan the same mask, dispatch and options, whatever
 * their rank. "" for NULL. Borrowed until destroy. */
FFA_API const char *ffa_parallel_plan_digest(const ffa_parallel_plan *plan);

typedef struct ffa_parallel_plan_info {
    uint32_t struct_size;
    int32_t rank, rank_count;
    int32_t forward_stages, backward_stages; /* that receive; 0: all keys are the rank's own */
    int32_t steps;                           /* most stages that receive, of any rank and pass */
    int32_t moves; /* FFA_PARALLEL_MOVE_KEYS or FFA_PARALLEL_MOVE_QUERIES */
    int32_t pad_;
    int64_t tokens_q, tokens_k;       /* the rank's own */
    int64_t area;                     /* cells it computes, over all heads of the mask */
    int64_t received_rows, sent_rows; /* each row once for each rank that receives it */
    int64_t stage_rows;               /* most rows of a stage, of either pass */
    int64_t forward_ns, backward_ns;  /* modelled: this rank's passes */
    int64_t forward_slowest_ns, backward_slowest_ns; /* of the slowest rank */
    /* Compute without launches: of all ranks together, and of the one that has most. The modelled
     * efficiency of a pass is work / (ranks * slowest). */
    int64_t forward_work_ns, backward_work_ns;
    int64_t forward_work_most_ns, backward_work_most_ns;
    int64_t forward_uniform_ns, backward_uniform_ns; /* this rank's with stages cut evenly, as
                                                      * MagiAttention does */
    int64_t forward_compute_ns, backward_compute_ns; /* this rank's compute, with launches */
    /* Scratch of a call, in bytes, with the heads of opts.model: receive buffers, partial results
     * in fp32, and, backward, dq in fp32. */
    int64_t forward_bytes, backward_bytes;
    ffa_parallel_model model; /* as used, defaults filled in */
    int32_t head_dim_v;       /* likewise */
    /* Launches of a pass over GPUs, of the rank with most. Above 1, all ranks' kernels are made
     * with FFA_SPEC_STAGED. */
    int32_t rounds;
    /* Device memory of this rank's passes over GPUs, with the heads of the model, 0 where queries
     * move: the windows, and the larger workspace, at most (ffa_parallel_pass_info has what the
     * kernels take of it), received sums of backward among it. memory_bytes: all of these;
     * memory_most_bytes: of the rank with most, where opts.memory_bytes is given, else 0. */
    int64_t key_bytes, sum_bytes, received_sum_bytes, workspace_bytes;
    int64_t memory_bytes, memory_most_bytes;
} ffa_parallel_plan_info;
#define FFA_PARALLEL_PLAN_INFO_INIT                                                                \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_parallel_plan_info)                                    \
    }
FFA_API void ffa_parallel_plan_info_init(ffa_parallel_plan_info *info, size_t bytes);

FFA_API ffa_status ffa_parallel_plan_info_get(const ffa_parallel_plan *plan,
                                              ffa_parallel_plan_info *info, ffa_error *err);

/* One rank of the plan's group, by the model. */
typedef struct ffa_parallel_rank {
    uint32_t struct_size;
    int32_t forward_stages, backward_stages;
    int32_t pad_;
    int64_t tokens_q, tokens_k;
    int64_t received_rows;
    int64_t forward_ns, backward_ns;
    int64_t forward_work_ns, backward_work_ns; /* compute without launches */
} ffa_parallel_rank;
#define FFA_PARALLEL_RANK_INIT                                                                     \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_parallel_rank)                                         \
    }
FFA_API void ffa_parallel_rank_init(ffa_parallel_rank *rank, size_t bytes);
/* Fails with FFA_INVALID: a rank the group has not. */
FFA_API ffa_status ffa_parallel_plan_rank_get(const ffa_parallel_plan *plan, int32_t rank,
                                              ffa_parallel_rank *out, ffa_error *err);

/* One stage of a pass of the plan's own rank. Stage 0 is the own part, as far as it is computed
 * first; stage n + 1 of a backward pass, behind n that receive, the rest of it. Times by the model,
 * from the begin of the pass; begin and end are equal where nothing is to do. */
typedef struct ffa_parallel_stage {
    uint32_t struct_size;
    int32_t pad_;
    int64_t rows;   /* received */
    int64_t blocks; /* tiles of query rows and keys visited, for one query head of each list */
    int64_t fetch_begin_ns, fetch_end_ns;
    int64_t compute_begin_ns, compute_end_ns;
    int64_t reduce_begin_ns, reduce_end_ns;
} ffa_parallel_stage;
#define FFA_PARALLEL_STAGE_INIT                                                                    \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_parallel_stage)                                        \
    }
FFA_API void ffa_parallel_stage_init(ffa_parallel_stage *stage, size_t bytes);
/* is_backward: 0 or 1. Fails with FFA_INVALID: a stage the pass has not. */
FFA_API ffa_status ffa_parallel_plan_stage_get(const ffa_parallel_plan *plan, int32_t is_backward,
                                               int32_t stage, ffa_parallel_stage *out,
                                               ffa_error *err);

/* Rows [source_row, +rows) of the buffer of rank `source` arrive as rows [row, +rows) of a stage's
 * receive buffer: rows of keys and values, or of queries where these move. */
typedef struct ffa_parallel_receive {
    uint32_t struct_size;
    int32_t source;
    int64_t source_row, row, rows;
} ffa_parallel_receive;
#define FFA_PARALLEL_RECEIVE_INIT                                                                  \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_parallel_receive)                                      \
    }
FFA_API void ffa_parallel_receive_init(ffa_parallel_receive *receive, size_t bytes);
/* What a stage of the plan's own rank receives, in the order of the receive buffer, runs of rows
 * with one source joined. The count is 0 for NULL or a stage that receives nothing; the other fails
 * with FFA_INVALID: an index that is not below the count. */
FFA_API int64_t ffa_parallel_plan_receive_count(const ffa_parallel_plan *plan, int32_t is_backward,
                                                int32_t stage);
FFA_API ffa_status ffa_parallel_plan_receive_get(const ffa_parallel_plan *plan, int32_t is_backward,
                                                 int32_t stage, int64_t index,
                                                 ffa_parallel_receive *out, ffa_error *err);

/* ---- save and load ---- */

/*
 * Write a plan into memory: a version, what the plan was made from, and its digest. Loading plans
 * again from that, and compares digests, so that nothing in a file is trusted and a plan of another
 * planner is noticed.
 *
 * bytes  receives the memory, caller's, ffa_free(); NULL on failure.
 *
 * ffa_parallel_plan_save fails with FFA_INVALID, FFA_NOMEM; ffa_parallel_plan_load as
 * ffa_parallel_plan_create, and with FFA_INVALID, saying where, for bytes that are cut off, out of
 * bounds, of another version or of a planner that plans otherwise. Thread: any. Blocks: no.
 */
FFA_API ffa_status ffa_parallel_plan_save(const ffa_parallel_plan *plan, void **bytes,
                                          size_t *count, ffa_error *err);
FFA_API ffa_status ffa_parallel_plan_load(ffa_parallel_plan **out, const void *bytes, size_t count,
                                          ffa_error *err);

/* ---- a cache of dispatches and plans, by content ---- */

/* Holds the most recently used ones. Which ones it holds changes nothing but time, so ranks need
 * not agree about it. Thread: any number of threads may use one; one destroys it, last. */
typedef struct ffa_parallel_cache ffa_parallel_cache;

/* entries_max: dispatches and plans together, 1 to 65536; 0: 256. *out: caller's,
 * ffa_parallel_cache_destroy(), which leaves what was handed out alone. Fails with FFA_INVALID,
 * FFA_NOMEM. */
FFA_API ffa_status ffa_parallel_cache_create(ffa_parallel_cache **out, int32_t entries_max,
                                             ffa_error *err);
FFA_API void ffa_parallel_cache_destroy(ffa_parallel_cache *cache);

/* As ffa_dispatch_create and ffa_parallel_plan_create, unless there is one of the same content:
 * then that one, in less than a microsecond where the mask object was seen before. The caller
 * destroys what it is handed, as if it had made it. */
FFA_API ffa_status ffa_parallel_cache_dispatch(ffa_parallel_cache *cache, ffa_dispatch **out,
                                               const ffa_dispatch_mask *masks, int32_t mask_count,
                                               const ffa_topology *topology,
                                               const ffa_dispatch_opts *opts, ffa_error *err);
/* As ffa_dispatch_create_best, likewise. */
FFA_API ffa_status ffa_parallel_cache_best(ffa_parallel_cache *cache, ffa_dispatch **out,
                                           const ffa_dispatch_mask *masks, int32_t mask_count,
                                           const ffa_topology *topology,
                                           const ffa_dispatch_opts *opts,
                                           const ffa_parallel_plan_opts *plan_opts, ffa_error *err);
FFA_API ffa_status ffa_parallel_cache_plan(ffa_parallel_cache *cache, ffa_parallel_plan **out,
                                           const ffa_dispatch *dispatch, const ffa_mask *mask,
                                           int32_t rank, const ffa_parallel_plan_opts *opts,
                                           ffa_error *err);

typedef struct ffa_parallel_cache_counts {
    uint32_t struct_size;
    int32_t pad_;
    int64_t hits, misses, evictions;
    int64_t entries;
} ffa_parallel_cache_counts;
#define FFA_PARALLEL_CACHE_COUNTS_INIT                                                             \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_parallel_cache_counts)                                 \
    }
FFA_API void ffa_parallel_cache_counts_init(ffa_parallel_cache_counts *counts, size_t bytes);
/* Fails with FFA_INVALID. */
FFA_API ffa_status ffa_parallel_cache_counts_get(ffa_parallel_cache *cache,
                                                 ffa_parallel_cache_counts *out, ffa_error *err);

#ifdef __cplusplus
}
#endif
#endif
