/* SPDX-License-Identifier: Apache-2.0
 *
 * The fp64 oracle: attention by its definition, to compare any backend with.
 *
 * It reads the public headers and nothing else of the library: no plan, no normal form, no backend,
 * no shared conversion. Whether a cell is attended is decided slice by slice by the one rule of
 * mask.h into one boolean a cell; softmax takes two passes, all in double.
 */
#ifndef FFA_ORACLE_ORACLE_H
#define FFA_ORACLE_ORACLE_H

#include <ffa/attention.h>

#include <stdbool.h>

/* One row of one query head. */
struct oracle_sample {
    int64_t row;
    int32_t head;
    int32_t pad_;
};

struct oracle_case {
    ffa_mask_shape shape;
    const ffa_slice_list *lists; /* [list_count] */
    int32_t list_count;          /* 1, or heads_kv */
    int32_t head_dim;
    ffa_dtype dtype;              /* of q, k and v */
    int32_t threads;              /* 0: one per core, at most 16 */
    const ffa_forward_args *args; /* host memory; strides and softmax_scale may be 0 (defaults) */
    const struct oracle_sample *samples; /* [sample_count]; NULL: every row of every head */
    int64_t sample_count;
    ffa_dtype out_dtype; /* of out; 0: dtype */
    int32_t head_dim_v;  /* of v and out; 0: head_dim */
    ffa_dtype lse_dtype; /* of lse, dlse, sinks, dsink and max_logits; 0: FFA_FP64 for FFA_FP64,
                          * else FFA_FP32 */
};

/* The reference, sample by sample; without samples, row by row and then head by head. */
struct oracle_result {
    int64_t count;
    double *out; /* [count][head_dim_v] */
    double *lse; /* [count]; -inf: the row attends nothing */
    double *top; /* [count]: the largest score, softcap applied, sinks left out; -inf likewise */
};

/* Fails with FFA_NOMEM. Thread: any; starts threads of its own and joins them. */
ffa_status oracle_forward(struct oracle_result *out, const struct oracle_case *test,
                          ffa_error *err);
void oracle_result_finish(struct oracle_result *result);

/* ---- comparison ---- */

struct oracle_tolerance {
    double out; /* |got - want| / |want| in L2, over everything that is compared */
    double row; /* the same of one row of one head */
    double lse; /* |got - want| / max(1, |want|) */
};

/*
 * What a correct backend that accumulates in fp32 (FFA_FP64: in fp64) stays within.
 *   bf16  half a unit of the output is 2^-9 = 2.0e-3 at most, 1.1e-3 in the mean, and weights
 *         rounded to bf16 for the second product add as much: 5e-3.
 *   fp16  three bits more: 7e-4.
 *   fp32  sums of up to head_dim, then of thousands of products, each rounded to 6e-8: 1e-5.
 *   fp64  the same at 1e-16, with room for other orders of summation: 1e-12.
 * A row may be 4 times worse than the whole: few elements average less. lse is stored in fp32
 * (FFA_FP64: in fp64) and is off by the error of one score's sum: 1e-3 for 16-bit inputs is far
 * above it and far below what a wrong key does to a short row; long rows need the counting test
 * (q = 0).
 */
struct oracle_tolerance oracle_tolerance_of(ffa_dtype dtype);

struct oracle_report {
    bool passed;
    int64_t compared;        /* rows x heads */
    double out, row, lse;    /* the largest errors found, as in oracle_tolerance */
    int64_t nan_count;       /* elements that are NaN or Inf where the reference is finite */
    int64_t unwritten_count; /* elements that still hold oracle_poison's pattern */
    double top;              /* of max_logits: |got - want| / max(1, |want|) */
    int64_t bad_row;         /* the first (row, head) beyond a tolerance, or -1 */
    int32_t bad_head;
    int32_t pad_;
    char reason[160]; /* one line about it; "" if passed */
};

/* Compare out and lse of test->args, and without samples max_logits if there, with the reference of
 * the same test. Where the reference is NaN, so must be what is compared. Rows that attend nothing
 * must be exactly 0 and -inf. */
void oracle_compare(struct oracle_report *report, const struct oracle_case *test,
                    const struct oracle_result *want, const struct oracle_tolerance *tolerance);

/* Fill out, lse and max_logits if there with a NaN pattern of its own, so that what is never
 * written is seen. */
void oracle_poison(const struct oracle_case *test);

/* ---- samples for large cases ---- */

/* Attended cells x query heads up to which all rows are computed. */
#define ORACLE_CELLS_MAX 100000000

/*
 * Up to `count` samples, ascending by head, then row: the first and last rows, rows at slice
 * bounds and at multiples of tile_m with both neighbours (drawn at random where there are too
 * many), the rest at random; of the first and last head and two others. The same for one seed.
 * *samples: caller's, free(). Returns how many; 0: no memory.
 */
int64_t oracle_samples(const struct oracle_case *test, int64_t tile_m, uint64_t seed, int64_t count,
                       struct oracle_sample **samples);
/* The same of keys and kv heads, for gradients: `row` is a key, tile_n its tile. */
int64_t oracle_key_samples(const struct oracle_case *test, int64_t tile_n, uint64_t seed,
                           int64_t count, struct oracle_sample **samples);

#endif
