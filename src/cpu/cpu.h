/* SPDX-License-Identifier: Apache-2.0
 *
 * The CPU backend: executes the same tile plans as the GPU, multi-threaded, in fp32 or fp64. Its
 * arguments are structs of its own, checked and resolved by the caller, so that it knows no public
 * struct. A call blocks until it is done; any number of calls may run at once. It fails with
 * FFA_NOMEM only. The number of threads never changes a result.
 */
#ifndef FFA_CPU_CPU_H
#define FFA_CPU_CPU_H

#include "base/base.h"
#include "tile/tile.h"

#include <ffa/kernel.h>

/* Tokens by heads of a row of elements, in the caller's memory; the elements of a row are
 * contiguous. Strides count elements, and a stride of 0 is no default any more: it is 0. */
struct cpu_tensor {
    void *data;
    int64_t token_stride, head_stride;
};
/* Of any struct with these fields. */
#define CPU_TENSOR(from)                                                                           \
    ((struct cpu_tensor){ (from).data, (from).token_stride, (from).head_stride })

/* What a call of either pass reads and writes, all checked by the caller. */
struct cpu_args {
    int32_t heads_q, heads_kv;  /* a multiple of heads_kv, at least 1 */
    double softmax_scale;       /* not 0; rounded to float where the call accumulates in fp32 */
    double softcap;             /* 0: none; likewise */
    struct cpu_tensor q, k, v;  /* read; v of head_dim_v columns */
    struct cpu_tensor out, lse; /* forward: written; backward: read */
    const void *sink;           /* [sink_count][heads_q], of the call's lse_dtype */
    int32_t sink_count;
};
/* Of any public struct of arguments: they have the same names. */
#define CPU_ARGS(from)                                                                             \
    ((struct cpu_args){ .heads_q = (from).heads_q,                                                 \
                        .heads_kv = (from).heads_kv,                                               \
                        .softmax_scale = (from).softmax_scale,                                     \
                        .softcap = (from).softcap,                                                 \
                        .q = CPU_TENSOR((from).q),                                                 \
                        .k = CPU_TENSOR((from).k),                                                 \
                        .v = CPU_TENSOR((from).v),                                                 \
                        .out = CPU_TENSOR((from).out),                                             \
                        .lse = CPU_TENSOR((from).lse),                                             \
                        .sink = (from).sink,                                                       \
                        .sink_count = (from).sink_count })

struct cpu_forward {
    const struct tile_plan *plan;
    struct cpu_args args;
    ffa_dtype dtype; /* of q, k and v */
    int32_t head_dim;
    int32_t head_dim_v;  /* of v and out; 0: head_dim */
    int32_t threads;     /* >= 1 */
    bool fp64;           /* accumulate in fp64 (always so for FFA_FP64 tensors) */
    ffa_dtype out_dtype; /* 0: dtype */
    bool accumulate;     /* merge with what out and lse hold */
    ffa_dtype lse_dtype; /* of args.lse, args.sink and max_logits: FFA_FP32 or FFA_FP64; 0:
                          * FFA_FP64 for FFA_FP64 tensors, else FFA_FP32 */
    void *max_logits;    /* [heads_q], raised to the largest score of the call's cells; or NULL */

    /* One stage of a pass. Its tiles say by PLAN_TILE_MERGES and PLAN_TILE_CONTINUES what comes
     * before and after; what they leave for later is in sums or in `partial`, and a plan without
     * such tiles needs neither. Sinks enter in a tile's first stage. */
    void *sum_out;      /* [seqlen_q][heads_q][head_dim_v] float, or double with fp64: */
    void *sum_lse;      /* [seqlen_q][heads_q]: (out, lse) of the stages so far */
    int64_t sum_stride; /* elements from head to head, of both; 0: each is packed */
    const struct cpu_tensor *partial; /* out of the stages so far in this fp32 tensor (fp64 for
                                       * FFA_FP64), lse in args.lse; NULL: the sums are used */
};

ffa_status cpu_forward(const struct cpu_forward *call, ffa_error *err);
/* max_logits [heads] of no cells: -inf. */
void cpu_max_logits_init(void *max_logits, ffa_dtype lse_dtype, int32_t heads);

/* What a backward call does to dq of a block of query rows, as the flags of plan_tile say it of a
 * tile: PLAN_TILE_MERGES, PLAN_TILE_CONTINUES, or that it leaves them alone. */
enum { CPU_ROWS_UNTOUCHED = 128 };

/* args: as of the forward pass, whose out and lse it holds. Rows and keys without attended cells
 * get zeros. */
struct cpu_backward {
    const struct tile_plan *plan;
    struct cpu_args args;
    struct cpu_tensor dout;                           /* of `dtype` */
    struct cpu_tensor dlse;                           /* of lse_dtype; data NULL: none */
    struct cpu_tensor dq, dk, dv;                     /* of `grad_dtype` */
    const struct cpu_tensor *partial_dk, *partial_dv; /* added to dk and dv: fp32 (fp64 for
                                                       * FFA_FP64), or NULL */
    void *dsink;                                      /* [sink_count][heads_q], or NULL */
    ffa_dtype dtype, grad_dtype;
    ffa_dtype out_dtype; /* of args.out; 0: dtype */
    int32_t head_dim;
    int32_t head_dim_v;  /* of v, out, dout and dv; 0: head_dim */
    int32_t threads;     /* >= 1 */
    bool fp64;           /* accumulate in fp64 (always so for FFA_FP64 tensors) */
    ffa_dtype lse_dtype; /* of args.lse, args.sink, dlse and dsink: FFA_FP32 or FFA_FP64; 0:
                          * FFA_FP64 for FFA_FP64 tensors, else FFA_FP32 */
    void *delta;         /* of cpu_backward_delta; NULL: computed */
    bool accumulate;     /* add dq, dk and dv to what they hold */

    /* One stage of a pass: its keys, or its query rows, are some of all. Tiles say what the stage
     * does to dk and dv, row_flags what it does to dq. Sums are float, or double with fp64. */
    void *sum_dk, *sum_dv; /* [seqlen_k][heads_kv][head_dim, dv: head_dim_v], keys sum_stride
                              elements apart */
    int64_t sum_stride;
    const uint8_t *row_flags; /* [blocks of tile_m rows]; NULL: all 0 */
    void *sum_dq;             /* [seqlen_q][heads_q][head_dim] */
    /* Called before sum_dk or sum_dv (waits_for_rows: sum_dq) is read, by any thread, once a tile.
     * Returns when others have added all they add. False: they never will, and the call's results
     * are of no use. NULL: nobody adds. */
    bool (*wait)(void *user);
    void *user;
    bool waits_for_rows;
};

ffa_status cpu_backward(const struct cpu_backward *call, ffa_error *err);
/* delta [seqlen_q][heads_q], float or double: what all stages of a pass share. Reads args.out,
 * args.lse, dout and dlse: dlse is in delta, and nothing else looks at it. */
ffa_status cpu_backward_delta(const struct cpu_backward *call, void *delta, ffa_error *err);

#endif
