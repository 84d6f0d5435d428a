/* SPDX-License-Identifier: Apache-2.0
 *
 * What `ffa run` was asked, what it found out, and how it says that.
 */
#ifndef FFA_CLI_RUN_REPORT_H
#define FFA_CLI_RUN_REPORT_H

#include "cli/cli.h"
#include "cli/run_case.h"
#include "cli/run_process.h"

struct run_options {
    const char *mask;
    const char *heads;
    const char *dtype;
    const char *backend;
    const char *files[RUN_TENSORS];
    int64_t head_dim, head_dim_v;
    int64_t seed;
    int64_t repeat;
    int64_t sm_margin;
    int64_t parts_max;
    const char *backward_tile; /* NULL: chosen */
    int64_t device;            /* -1: the first a kernel exists for */
    int64_t sinks;
    double scale;           /* 0: 1 / sqrt(head_dim) */
    double softcap;         /* 0: none */
    const char *moves;      /* with --ranks: "keys", "queries" or "auto" */
    const char *memory;     /* with --ranks: a size */
    const char *transport;  /* with --ranks on GPUs: "auto", "pull", "exchange" or "relay" */
    const char *wire_dtype; /* with --ranks on GPUs: "bf16", "fp16" or "fp32" */
    /* Files. */
    const char *nccl, *timeline, *trace, *calibration;
    struct run_ranks_options ranks;
    struct run_process_options process;
    const char *rendezvous;        /* the folder where processes meet */
    struct rendezvous_place place; /* of this process; rank_count 0: it is not one of several */
    double timeout_s;              /* with --ranks on GPUs; NAN: the library's */
    bool wants_check, wants_time, wants_debug, wants_backward, wants_unpacked;
    bool wants_split, wants_whole; /* --split, --no-split */
    bool wants_isolation, wants_determinism, wants_dlse;
};

/* What calls of one pass took. */
struct run_time {
    float ms_first;
    float ms_median; /* of --repeat calls after a warm-up; the first call's without --time */
    float ms_min;
};

/* What a run found out. */
struct run_result {
    struct run_time forward, backward;
    struct oracle_report report;
    struct oracle_tolerance tolerance;
    double max_error; /* largest |got - want| of out */
    struct oracle_backward_report gradients;
    struct oracle_backward_tolerance gradients_tolerance;
    bool is_checked;
    bool is_same_again; /* deterministic: the gradients of a second call */
};

/* Print what a run found out. The exit status: CLI_FAILED where a check failed. */
int run_report(const struct cli *cli, const struct run_case *run, const struct run_options *options,
               const struct run_result *result);

#endif
