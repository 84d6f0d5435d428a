/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks that make context-parallel passes over GPUs: threads with the GPUs of this host, or shares
 * of one. Nothing is asserted on their threads: they leave what they saw in their rank.
 */
#ifndef TESTS_DEVICE_PASS_GROUP_H
#define TESTS_DEVICE_PASS_GROUP_H

#include "cuda_calls.h"
#include "gpu/nccl_library.h"
#include "support/bootstrap.h"

#include <ffa/ffa.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

enum {
    RANKS = 8,
    DEVICES = 8,
    TOKENS = 384,
    HEADS_Q = 2,
    HEADS_KV = 1,
    HEAD_DIM = 64,
    SETS = 2, /* masks, each with inputs of its own, which calls take in turns */
    CALLS = 2 * SETS,
    STAGES = 3,
    STAGE_NS = 1000, /* so that a plan has the stages that it is asked for */
    SMS_FREE = 4,
    PATIENT_MS = 3000, /* NCCL connects within it, and an aborted group ends */
    HEAD_START_MS = 20 /* in which a rank's GPU runs ahead, as far as it may */
};

enum tensor { Q, K, V, OUT, LSE, DOUT, DQ, DK, DV, TENSORS };
/* Those whose bits are the same in every run: OUT, LSE, DK, DV. */
enum { RESULTS = 4, FORWARD_RESULTS = 2 };

/* Of the devices that are used, [devices]. */
extern ffa_context *contexts[DEVICES];
extern ffa_kernels *group_kernels[DEVICES],
    *group_staged[DEVICES]; /* group_staged: where queries move */
extern int32_t devices;

struct group;

struct rank {
    struct group *group;
    struct bootstrap_end end;
    int32_t rank;
    ffa_context *context;
    const ffa_kernels *kernels;
    ffa_parallel_plan *plans[SETS];
    ffa_parallel_pass *passes[SETS];
    ffa_parallel_pass_info info; /* the most of all passes */
    int32_t stages[SETS][2];     /* that receive, forward and backward */
    ffa_comm *comm;
    const struct nccl *nccl; /* where the group has a communicator of the caller's: */
    nccl_handle caller;      /* that */
    bool is_alive;           /* it works after all calls */
    ffa_stream stream;
    int64_t rows[2]; /* of queries, of keys */
    void *inputs[SETS][TENSORS], *outputs[CALLS][TENSORS];
    void *uploads[SETS], *workspace;
    void *kept[CALLS];                    /* where the group keeps keys */
    struct cuda_counts forward, backward; /* of all calls */
    int most_calls[2];                    /* that they may enqueue */
    uint64_t digests[CALLS][RESULTS];     /* of results whose bits are the same in every run */
    int odd_call; /* the first whose results have other bits than those of its inputs before; 0 */
    ffa_status status;
    ffa_error err;
    pthread_t thread;
};

struct group {
    struct bootstrap *bootstrap;
    ffa_dispatch *dispatch;
    ffa_mask *masks[SETS];
    struct rank ranks[RANKS];
    int32_t count;
    bool is_sequential, is_replicated;
    bool is_narrow; /* sums travel in the tensors' dtype */
    bool moves_queries;
    bool keeps_keys;
    int32_t absent;     /* this rank makes no calls; -1: all do */
    int64_t timeout_ms; /* of calls */
    ffa_transport transport;
    int32_t ranks_per_node;       /* of plans, and of ranks that relay; 0: all */
    int32_t other_ranks_per_node; /* of the communicator, where it is to have others; else 0 */
    bool has_caller;              /* a communicator of NCCL, of the test's own */
    int32_t owners[TOKENS];       /* filled in by group_run: the rank of each token */
    atomic_int left;              /* ranks that have destroyed their communicator */
    atomic_int enqueued, ended;   /* ranks that have enqueued all their calls; ends of parts */
};

/* Of two causal masks, the second one leaves out the first keys. Where ranks have their tokens in
 * order, rank 0 needs nothing of those that read its keys, and runs ahead of them as far as they
 * let it. */
void group_run(struct group *group);
/* Whether the mask of a set attends the key. */
bool group_attends(int set, int32_t query, int32_t key);

/* That calls do not block, and launch as much as they should. */
void check_counts(const struct rank *r, int calls);

#endif
