/* SPDX-License-Identifier: Apache-2.0
 *
 * The fp64 oracle, backward: gradients of attention by their definition. With p the weights of one
 * row of one head and dp = v dout, delta = sum p dp (which is out . dout), and dlse the gradient of
 * the loss by the row's lse, whose derivative by a score is p, ds = p (dp - delta + dlse):
 *
 *   dq[row] = scale sum over keys of ds k,  dk[key] = scale sum over rows and heads of ds q,
 *   dv[key] = sum over rows and heads of p dout,
 *   dsink = sum over rows of e^(sink - lse) (dlse - delta).
 *
 * With a softcap c, ds is multiplied by its slope, 1 - (score / c)^2; with sinks, they are in lse.
 *
 * As oracle.h, it reads the public headers only. Only attended cells are ever looked at.
 */
#ifndef FFA_ORACLE_ORACLE_BACKWARD_H
#define FFA_ORACLE_ORACLE_BACKWARD_H

#include "oracle/oracle.h"

struct oracle_backward_case {
    /* q, k, v, heads, scale; `samples` are the rows of dq. out and lse are read with `use_out`
     * only: otherwise both come from a forward pass in fp64. */
    struct oracle_case forward;
    const struct oracle_sample *key_samples; /* keys and kv heads of dk, dv; NULL: all of them */
    int64_t key_sample_count;
    bool use_out;
    ffa_dtype grad_dtype; /* of dq, dk, dv; dout has that of q */
    ffa_tensor dout;      /* strides may be FFA_CONTIGUOUS */
    ffa_tensor dlse;      /* data NULL: none; not read of rows that attend nothing, sinks neither */
    ffa_tensor dq, dk, dv;
    void *dsink; /* [sink_count][heads_q]; NULL: not asked for; needs all rows of all heads */
};

/* One gradient, sample by sample; without samples, token by token and then head by head. */
struct oracle_gradient {
    int64_t count;
    double *at;       /* [count][head_dim, dv: head_dim_v]; dsink: [sink_count][heads_q] */
    double *terms;    /* [count]: L2 of the terms, added up as if nothing cancelled */
    uint8_t *touched; /* [count]: 0 where no cell is attended; the gradient is exactly 0 then */
};

struct oracle_gradients {
    struct oracle_gradient dq, dk, dv, dsink;
};

/* Without `use_out`, sampled keys need the forward pass of all rows of their heads.
 * Fails with FFA_NOMEM. Thread: any; starts threads of its own and joins them. */
ffa_status oracle_backward(struct oracle_gradients *out, const struct oracle_backward_case *test,
                           ffa_error *err);
void oracle_gradients_finish(struct oracle_gradients *gradients);

/* ---- comparison ---- */

struct oracle_backward_tolerance {
    double whole; /* |got - want| / |want| in L2, over all that is compared of a tensor */
    double head;  /* the same of one head */
    double line;  /* the same of one token of one head */
};

/*
 * Where values cancel (a row that attends one key has dq = 0), what is left is the error of the
 * terms: |want| counts as at least a quarter of the L2 of the terms, and that of a line as at least
 * a quarter of what the lines of its tensor have in the mean.
 *   bf16  p, ds and delta carry errors of 1.1e-3 in the mean, the result another: 8e-3.
 *   fp16  three bits more: 1.2e-3, and what weights below 2^-14 lose: of a row of n keys, 1/n each,
 *         multiples of 2^-24 are off by n 2^-24 / sqrt(12), rms. `keys`: the n of the longest row.
 *   fp32  sums of thousands of products, each rounded to 6e-8, dp - delta among them: 2e-5.
 *   fp64  the same at 1e-16: 1e-11.
 * A head may be twice, a line 4 times worse than the whole: few elements average less.
 */
struct oracle_backward_tolerance oracle_backward_tolerance_of(ffa_dtype dtype, int64_t keys);

struct oracle_backward_report {
    bool passed;
    int64_t compared;         /* lines: tokens x heads of every tensor */
    double dq, dk, dv, dsink; /* relative errors of the whole */
    double row, key, head;    /* the largest of a line of dq, of a line of dk or dv, of a head */
    int64_t nan_count;        /* elements that are NaN or Inf where the reference is finite */
    int64_t unwritten_count;  /* elements that still hold oracle_backward_poison's pattern */
    const char
        *bad_tensor;   /* the first line beyond a tolerance: "dq", "dk", "dv", "dsink", or NULL */
    int64_t bad_token; /* -1: none, or the whole */
    int32_t bad_head;
    int32_t pad_;
    char reason[160]; /* one line about it; "" if passed */
};

/* Compare dq, dk, dv, dsink of `test` with the reference of the same test. Where the reference is
 * NaN, so must be what is compared. Rows and keys without attended cells must be exactly 0. */
void oracle_backward_compare(struct oracle_backward_report *report,
                             const struct oracle_backward_case *test,
                             const struct oracle_gradients *want,
                             const struct oracle_backward_tolerance *tolerance);

/* Fill dq, dk, dv and dsink with a NaN pattern of its own, so that what is never written is seen.
 */
void oracle_backward_poison(const struct oracle_backward_case *test);

#endif
