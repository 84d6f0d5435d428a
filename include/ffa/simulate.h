/* SPDX-License-Identifier: Apache-2.0
 *
 * A model of how long attention takes on many ranks: nothing here is measured.
 *
 * Computing costs time by the cells of the tiles visited, and by tiles (parallel_plan.h), a
 * transfer a latency and its bytes over the bandwidth of its link class (alpha and beta; Hockney
 * 1994), with one port in and one port out a rank and class: a rank that serves many is waited for.
 * The plan's ranks follow the stages the library plans for them. What others do on the same mask:
 *
 *   all-gather  keys and values of all ranks, once a node over the network, then everything is
 *               computed; chunks r and 2n-1-r (Llama 3, 2024)
 *   ring        contiguous chunks; each step computes with one rank's keys while they travel on,
 *               and no rank is ahead of another (Liu et al. 2023); masked blocks are skipped, not
 *               their transfer
 *   zigzag      the ring over chunks r and 2n-1-r
 *   ulysses     whole sequences of some heads: all-to-all before and after (Jacobs et al. 2023)
 *
 * Methods pay for their tiles alike: of query rows once a launch, which the rings have one of a
 * step; backward of the keys of parts (of ranks) that are attended, and in a ring's step of all
 * keys there. With sms, the last wave of a forward launch is paid for by its smallest tile, in a
 * ring's steps by a mean one, but for the first. Only the plan copies own keys into a window first.
 *
 * Left out: launch jitter, other traffic, imbalance of switches, the cost of planning.
 * Units: tokens, nanoseconds, bytes.
 */
#ifndef FFA_SIMULATE_H
#define FFA_SIMULATE_H

#include <ffa/parallel_plan.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ffa_sim_method {
    FFA_SIM_PLAN = 0,    /* as the library's passes: every receiver pulls from the owner */
    FFA_SIM_RELAYED = 1, /* the same plan, but each key crosses the network once a node, as
                          * FFA_TRANSPORT_RELAY does it: to one of the ranks that need it */
    FFA_SIM_ALL_GATHER = 2,
    FFA_SIM_RING = 3,
    FFA_SIM_ZIGZAG = 4,
    FFA_SIM_ULYSSES = 5
} ffa_sim_method;
enum { FFA_SIM_METHODS = 6 };

/* "plan", "relayed", "all-gather", "ring", "zigzag", "ulysses"; NULL for any other. */
FFA_API const char *ffa_sim_method_text(int32_t method);

typedef struct ffa_sim_pass {
    int64_t ns;         /* until the slowest rank is done */
    int64_t compute_ns; /* of the rank that computes longest */
    double efficiency;  /* time of one rank alone / (ranks * ns) */
} ffa_sim_pass;

/* ffa_sim_pass keeps the fields it has here. */
typedef struct ffa_sim_result {
    uint32_t struct_size;
    int32_t method;      /* ffa_sim_method */
    int32_t is_possible; /* 0: why_not says why, the rest is 0 */
    int32_t stages;      /* forward, most of any rank: of a plan, or of a ring */
    ffa_sim_pass forward, backward;
    int64_t node_bytes, network_bytes; /* forward, the most that one rank receives of each class */
    char why_not[104];
} ffa_sim_result;
#define FFA_SIM_RESULT_INIT                                                                        \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_sim_result)                                            \
    }
FFA_API void ffa_sim_result_init(ffa_sim_result *result, size_t bytes);

/* ffa_sim_opts.algorithm: the dispatch that ffa_dispatch_create_best makes. */
enum { FFA_SIM_BEST = -1 };

typedef struct ffa_sim_opts {
    uint32_t struct_size;
    int32_t algorithm;        /* of the plan's dispatch: ffa_dispatch_algorithm, or FFA_SIM_BEST */
    int64_t chunk_tokens;     /* of the dispatch; 0: its default, but at most 8192 chunks in all */
    ffa_parallel_model model; /* 0 in a field: the plan's default */
    int32_t head_dim_v;       /* of v and the output; 0: model.head_dim */
    /* As in ffa_parallel_plan_opts, all four below: of passes that are one launch; 0: a launch a
     * stage, and what each is 0 for there. */
    int32_t sms;
    int64_t memory_bytes; /* of the plan: as in ffa_parallel_plan_opts; 0: no limit */
    int32_t forward_begin_keys, backward_begin_rows;
    int64_t window_mbytes_s;
} ffa_sim_opts;
#define FFA_SIM_OPTS_INIT                                                                          \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_sim_opts)                                              \
    }
FFA_API void ffa_sim_opts_init(ffa_sim_opts *opts, size_t bytes);

/*
 * Model one forward and one backward pass by every method.
 *
 * out       [count], indexed by method; the struct_size of the first is the distance between them.
 * count     FFA_SIM_METHODS, as the caller knows it: 1 to that of the library.
 * resolved  NULL, or receives the options as they were used: defaults and chunk filled in.
 * mask      seqlen_q == seqlen_k; attends something.
 * topology  1 to 4096 ranks.
 * opts      NULL: all defaults.
 *
 * Fails with FFA_INVALID, naming the argument; FFA_UNSUPPORTED: an option newer than this library,
 * or all ranks together receive more than 2^28 chunks;
 * FFA_NOMEM. Thread: any. Blocks: milliseconds at 64 ranks, seconds at 4096.
 */
FFA_API ffa_status ffa_simulate(ffa_sim_result *out, int32_t count, ffa_sim_opts *resolved,
                                const ffa_mask *mask, const ffa_topology *topology,
                                const ffa_sim_opts *opts, ffa_error *err);

#ifdef __cplusplus
}
#endif
#endif
