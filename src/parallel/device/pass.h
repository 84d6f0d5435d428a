/* SPDX-License-Identifier: Apache-2.0
 *
 * One rank's passes of a mask, made for its kernels: tile plans, tables, and where each lies in
 * the buffer that they are uploaded to.
 */
#ifndef FFA_PARALLEL_DEVICE_PASS_H
#define FFA_PARALLEL_DEVICE_PASS_H

#include "parallel/device/comm_device.h"
#include "parallel/device/pass_kept.h"
#include "parallel/device/pass_tables.h"
#include "parallel/device/relay_tables.h"

#include <ffa/parallel_pass.h>

/* The launches of a pass: one, or one a round, or one a phase where queries move. */
struct pass_plans {
    ffa_plan **at;  /* [count] */
    int64_t *bytes; /* [count]: where each image lies, from the begin of the buffer */
    int32_t count;
};

struct ffa_parallel_pass {
    int32_t rank, rank_count, ranks_per_node;
    int64_t tokens_q, tokens_k; /* the rank's own */
    int64_t received_rows;
    bool moves_queries;
    char digest[DIGEST_TEXT]; /* of the rank's plan: the same on all ranks */
    bool has_backward;
    bool in_rounds;                      /* of all ranks */
    struct pass_plans forward, backward; /* backward: count 0 of kernels without it */
    struct pass_moves forward_moves, backward_moves;
    struct pass_kept
        kept; /* empty where nothing can be: in rounds, of moved queries, forward only */
    struct pass_sums sums, forward_sums; /* backward; forward where queries move, else empty */
    /* Of several nodes, and such that they can relay; else what follows is empty. */
    bool has_relays;
    bool is_outline; /* of a plan that has none for this reason */
    struct relay_moves forward_relays, backward_relays;
    struct relay_sums relay_sums;
    /* The buffer, in bytes from its begin: the images of both plans, then what `tables` holds. */
    int64_t tables_at;
    int64_t addend_segments_at, addend_sources_at; /* of relay_sums */
    int64_t totals_segment_at, totals_sources_at;  /* of several ranks: of pass_totals_join */
    int64_t upload_bytes;
    unsigned char *tables; /* [upload_bytes - tables_at] */
    unsigned char *buffer; /* where it was uploaded last; not owned */
    /* Scratch of a call: one at a time. */
    void **to;                 /* [copies_most] */
    const void **from;         /* [copies_most] */
    size_t *bytes;             /* [copies_most] */
    struct comm_flag *flags;   /* [rank_count], of relays [rank_count][stages] */
    struct nccl_move *moves;   /* [all copies and sends of a pass] */
    struct gpu_event *reduced; /* the received sums are there, where a pass has some */
    /* In rounds: the launch that read a half of the ring is done; received sums were added. */
    struct gpu_event *launched[2], *added;
    /* Of several ranks: the rank's own totals are there, and those of all ranks. */
    struct gpu_event *totals_made, *totals_shared;
};

/* What a pass has in fp32 behind the rest of the workspace: backward received sums; forward in
 * rounds the out that launches merge with, [tokens_q][heads_q][head_dim_v]. Where queries move:
 * received results, and backward the sums of own keys behind them. */
int64_t pass_fp32_bytes(const ffa_parallel_pass *pass, const ffa_kernels *kernels, int32_t heads_q,
                        int32_t heads_kv, bool is_backward);

/* ---- where queries move (pass_queries.c) ---- */

/* Bytes of a row of the key window and of the sum window; multiples of 16. */
int64_t pass_queries_row_bytes(const ffa_kernels *kernels, int32_t heads_q, bool is_backward);
int64_t pass_queries_result_bytes(const ffa_kernels *kernels, int32_t heads_q, bool is_backward);

#endif
