/* SPDX-License-Identifier: Apache-2.0
 *
 * One case of bench_parallel: what is measured, and how it is made (parallel_case.c).
 */
#ifndef BENCH_PARALLEL_CASE_H
#define BENCH_PARALLEL_CASE_H

#include "cli/calibration_file.h"

#include <ffa/ffa.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>

enum { HEAD_DIM = 128, RANKS_MAX = 64, ROUNDS_MAX = 100, HOST_SAMPLES = 10, VARIANTS = 5 };

struct options {
    int32_t ranks, stages, rounds; /* ranks, rounds: 0 until they are chosen */
    int64_t tokens;                /* a rank; 0: the case's */
    const char *name, *json;
    const char *calibrate, *calibration; /* files: to write, to read */
    int heads_q, heads_kv;               /* 0: the case's */
    ffa_transport transport;             /* AUTO: between ranks of this process, pull */
    int32_t max_ctas;                    /* of ffa_peer_opts; 0: its default */
    int32_t ranks_per_node;              /* 0: all */
    bool is_quick;
};

enum kind { FULL, CAUSAL, PACKED_FULL, PACKED_CAUSAL, BLOCK_CAUSAL, WINDOW };

struct bench_case {
    enum kind kind;
    int32_t heads_q, heads_kv;
    int64_t tokens; /* a rank */
    bool is_quick;
};

/* One of the plans that are compared. Gathered: all that a rank needs arrives in one stage. */
enum { DISPATCH_BEST = -1 };
enum method { METHOD_PLAN, METHOD_RING, METHOD_ULYSSES };
struct variant {
    const char *name;
    int32_t algorithm; /* ffa_dispatch_algorithm, or DISPATCH_BEST */
    bool is_gathered;
    enum method method;
};
struct others; /* parallel_others.c */

enum tensor { Q, K, V, DOUT, OUT, DQ, DK, DV, LSE, TENSORS, INPUTS = DOUT + 1 };

/* One plan of one rank, and its rows on the rank's GPU. */
struct rank_plan {
    ffa_dispatch *dispatch;
    ffa_parallel_plan *plan;
    ffa_parallel_pass *pass;
    ffa_parallel_pass_info info;
    ffa_parallel_args args;
    struct others *others; /* of the methods that are not the library's */
    void *rows[TENSORS], *upload;
    double dispatch_ms, plan_ms, pass_ms; /* of making them */
    double model_ms[2];                   /* of the slowest rank: forward, backward */
    double share[2]; /* of all computing, what the rank that has most of it does, by the model */
    /* Of enqueueing one pass: the first calls of each series, as queues are not full yet. */
    double host_us[ROUNDS_MAX * HOST_SAMPLES];
    int host_count;
};

struct rank {
    int32_t rank;
    ffa_context *context; /* borrowed */
    ffa_kernels *kernels;
    ffa_comm *comm;
    ffa_stream stream;
    struct rank_plan plans[VARIANTS];
    double begin_ms, end_ms; /* of its last series */
    const void *mine;        /* what it brings to an allgather */
    pthread_t thread;
};

/* Of the whole's kernels; 0: chosen. */
struct tiles {
    int32_t m, n, backward_m, backward_n;
};

/* The whole mask, on the first rank's GPU. */
struct whole {
    ffa_kernels *kernels;
    ffa_plan *plan;
    ffa_forward_args forward;
    ffa_backward_args backward;
    void *rows[TENSORS], *upload;
};

struct bench {
    ffa_context *contexts[RANKS_MAX];
    int32_t gpus; /* that ranks run on */
    char device[128];
    FILE *json;
    struct calibration calibration; /* all zero: plans are by the defaults */
    bool is_wrong;                  /* a result differs */
    /* of a case */
    const struct bench_case *c;
    char name[64];
    int64_t tokens; /* of all ranks */
    ffa_mask *mask;
    uint16_t *inputs[INPUTS]; /* whole, on the host */
    struct whole whole;
    struct tiles tiles;
    struct rank ranks[RANKS_MAX];
    pthread_barrier_t meeting;
    /* of a pass; written by the first rank, between two meetings */
    int whole_calls, calls;                                      /* of a series */
    double whole_ms[ROUNDS_MAX], plans_ms[VARIANTS][ROUNDS_MAX]; /* of one call */
};

extern struct options options;
extern struct bench bench;
extern const struct variant variants[VARIANTS];

/* Ends the process. Other threads may be in calls: nothing is cleaned up. */
_Noreturn void fail(const char *what, const char *why);
/* Ends the process where the call failed. */
void must(ffa_status rc, const char *what, const ffa_error *err);
void *memory(size_t bytes);
double now_ms(void);
/* Sorts the samples. */
double median(double *samples, int count);
/* Wait until all ranks have come. */
void meet(void);
/* A thread, to be joined. */
void start(pthread_t *thread, void *(*run)(void *user), void *user);
/* Milliseconds of a call of the whole, in a series; and how many calls of `ms` make one. */
double whole_series(const struct rank *rank, bool is_backward, int calls);
int calls_of(double ms);

bool is_key(enum tensor tensor);
/* Elements, and bytes, of a token. */
int64_t columns(enum tensor tensor);
int64_t row_bytes(enum tensor tensor);
float from_bf16(uint16_t bits);
/* What selects the rank's rows of a tensor. */
ffa_rows rows_of(const struct rank_plan *plan, const struct rank *rank, enum tensor tensor);

/* The mask and the inputs of bench.c, bench.tokens long; for finish. */
void case_init(void);
void case_finish(void);
/* By the first rank. */
void whole_create(struct whole *whole, const struct rank *rank);
void whole_destroy(struct whole *whole, ffa_context *context);
/* By every rank at once, on a thread of its own. */
void rank_create(struct rank *rank);
void rank_destroy(struct rank *rank);

/* parallel_report.c: of the first rank. whole_ms: median of its rounds. */
void print_head(void);
void report_plan(int v, bool is_backward, double whole_ms);

/* parallel_others.c: what others do, of a plan that has its dispatch and its rows. others_pass
 * enqueues one pass on the rank's stream; all ranks do. Whether a method can do the case. */
void others_create(struct rank *rank, int v);
void others_destroy(struct rank *rank, int v);
void others_pass(struct rank *rank, int v, bool is_backward);
bool others_can(enum method method, bool is_backward);

/* parallel_calibrate.c: measure links and kernels, and write the file. */
void calibrate(const char *path);

#endif
