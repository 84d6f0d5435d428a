/* SPDX-License-Identifier: Apache-2.0
 *
 * One case of bench_parallel: what is measured, and how it is made (parallel_case.c).
 */
#ifndef BENCH_PARALLEL_CASE_H
#define BENCH_PARALLEL_CASE_H

#include "cli/calibration_file.h"
#include "cli/process_meeting.h"

#include <ffa/ffa.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>

enum { HEAD_DIM = 128, RANKS_MAX = 64, ROUNDS_MAX = 100, HOST_SAMPLES = 10, VARIANTS = 5 };

/* What ranks are. CHOSEN: processes where each has a GPU of its own. */
enum rank_kind { RANKS_CHOSEN, RANKS_THREADS, RANKS_PROCESSES };

struct options {
    int32_t ranks, stages, rounds; /* ranks, rounds: 0 until they are chosen */
    int32_t rank;                  /* of this process; -1: what a launcher says */
    const char *rendezvous;        /* where processes meet; NULL: this one is none of several */
    enum rank_kind kind;
    int32_t layers; /* that share a plan */
    int64_t tokens; /* a rank; 0: the case's */
    const char *name, *json;
    const char *calibrate, *calibration; /* files: to write, to read */
    int heads_q, heads_kv;               /* 0: the case's */
    ffa_transport transport;             /* AUTO: between ranks of this host, pull */
    int32_t max_ctas;                    /* of ffa_peer_opts; 0: its default */
    int32_t wire_dtype;                  /* of ffa_parallel_args */
    int32_t ranks_per_node;              /* 0: all */
    bool keeps_keys;                     /* kept_keys of ffa_parallel_args */
    bool is_quick;
};

/* DOCUMENTS: of bench.document tokens each, all their keys; for the calibration only. */
enum kind { FULL, CAUSAL, PACKED_FULL, PACKED_CAUSAL, BLOCK_CAUSAL, WINDOW, DOCUMENTS };

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
    /* Of threads: one a GPU, which ranks take in turn; of processes: the own one. */
    ffa_context *contexts[RANKS_MAX];
    int32_t context_count;
    int32_t gpus, sharing;             /* that ranks run on; ranks of one, at most */
    int32_t first, here;               /* ranks of this process: [first, first + here) */
    struct run_meeting *meeting;       /* of all ranks */
    struct process_meeting *processes; /* the same; NULL: ranks are threads */
    char device[128];
    FILE *json;
    struct calibration calibration; /* all zero: plans are by the defaults */
    bool is_wrong;                  /* a result differs */
    /* of a case */
    const struct bench_case *c;
    char name[64];
    int64_t tokens;   /* of all ranks */
    int64_t document; /* tokens of one, of DOCUMENTS */
    ffa_mask *mask;
    uint16_t *block; /* what all inputs are made of */
    struct whole whole;
    struct tiles tiles;
    struct rank ranks[RANKS_MAX]; /* those of this process */
    /* of a pass, of the first rank */
    int whole_calls, calls;                                      /* of a series */
    double whole_ms[ROUNDS_MAX], plans_ms[VARIANTS][ROUNDS_MAX]; /* of one call */
};

extern struct options options;
extern struct bench bench;
extern const struct variant variants[VARIANTS];

/* Ends the process, and with it the group. Other threads may be in calls: nothing is cleaned up. */
_Noreturn void fail(const char *what, const char *why);
/* The same where the call failed. */
void must(ffa_status rc, const char *what, const ffa_error *err);
void *memory(size_t bytes);
/* Bytes to allocate of memory that peers reach. Of other processes they do so by a handle, which
 * names whole blocks of the device's allocator, and of a smaller one what it was cut from. */
int64_t shared_bytes(int64_t bytes);
double now_ms(void);
/* Sorts the samples. */
double median(double *samples, int count);
/* What all ranks bring, by rank, into all [ranks][bytes]. */
void gather(int32_t rank, const void *mine, void *all, size_t bytes);
/* Wait until all ranks have come. */
void meet(int32_t rank);
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

/* The mask of bench.c, bench.tokens long, and what inputs are made of; for finish. */
void case_init(void);
void case_finish(void);
/* By the first rank. */
void whole_create(struct whole *whole, const struct rank *rank);
void whole_destroy(struct whole *whole, ffa_context *context);
/* By every rank at once, on a thread of its own. */
void rank_create(struct rank *rank);
void rank_destroy(struct rank *rank);

/* parallel_report.c. report_begin: the first rank prints the head of the table, of the first case,
 * before it measures. report_plan: all ranks report, the first one prints. whole_ms, of that:
 * median of its rounds. */
void report_begin(const struct rank *rank);
void report_plan(struct rank *rank, int v, bool is_backward, double whole_ms);

/* parallel_others.c: what others do, of a plan that has its dispatch and its rows; all ranks do the
 * same. others_leave: no more passes, and this rank reaches no other one's memory; others_destroy
 * when all have. others_pass enqueues one pass on the rank's stream. Whether a method can do the
 * case. */
void others_create(struct rank *rank, int v);
void others_leave(struct rank *rank, int v);
void others_destroy(struct rank *rank, int v);
void others_pass(struct rank *rank, int v, bool is_backward);
bool others_can(enum method method, bool is_backward);

/* parallel_launch.c: `ranks` processes of this program, with its arguments: the exit status of
 * them all, and why where it is not theirs. */
int launch_processes(char *const *argv, int32_t ranks);
/* This process meets the others, and knows from then on when one of them is lost. */
void join_processes(const struct rendezvous_place *place);
/* The exit status that all agree on. */
int leave_processes(int status);
/* Ends the process where another one is lost; else it returns. */
void end_if_lost(void);

/* parallel_calibrate.c: measure links and kernels, and write the file. */
void calibrate(const char *path);

#endif
