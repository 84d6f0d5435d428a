/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of tensors in device memory: copies between layouts (row_copy), and received rows added to
 * own ones (row_reduce). Both calls enqueue one launch on a stream: they do not wait, allocate or
 * synchronise, and a graph can capture them. Thread: any. All fail with FFA_INVALID, naming the
 * argument, with FFA_UNSUPPORTED where the kernels were not loaded, and with FFA_GPU.
 */
#ifndef FFA_ATTENTION_ROWS_DEVICE_H
#define FFA_ATTENTION_ROWS_DEVICE_H

#include "attention/kernels.h"
#include "row_copy.args.h"
#include "row_reduce.args.h"

/* Loads row_copy, with a table of runs and without; nothing else. On failure nothing stays loaded.
 * May compile. */
ffa_status row_copy_load(struct ffa_kernels *kernels, ffa_error *err);
/* Loads row_copy; of kernels with a backward pass, row_reduce of fp32 sums to the gradients' dtype
 * and to fp32, of received ones in fp32 or in the tensors' dtype; of kernels with max_logits,
 * row_reduce of fp32 maxima. On failure nothing stays loaded. May compile. */
ffa_status rows_kernels_load(struct ffa_kernels *kernels, ffa_error *err);
void rows_kernels_unload(struct ffa_kernels *kernels);

/* ---- copies ---- */

/* Rows of [heads][columns] elements; strides count elements. `from` may have strides of 0; `to` is
 * written once, so its rows and heads must not overlap. `from` and `to` must not overlap. */
struct row_copy_rows {
    /* NULL: `fill` where is_fill, else the index of each row of `from`, as int64; heads and columns
     * are 1 then. */
    const void *from;
    void *to;
    int64_t from_token_stride, from_head_stride;
    int64_t to_token_stride, to_head_stride;
    int64_t columns;
    int32_t heads;
    int32_t element_bytes; /* 1, 2, 4 or 8 */
    bool is_fill;          /* every element is the low element_bytes of `fill` */
    uint64_t fill;
};

struct row_copy_call {
    struct row_copy_rows tensors[ROW_COPY_TENSORS_MAX]; /* [count] */
    int32_t count;
    int32_t run_count;
    int64_t rows; /* all rows of the runs; without a table, rows [0, rows) go to [0, rows) */
    const struct row_run *runs; /* device memory, [run_count]; NULL: no table */
};

/* Fills in `before` of each run of a table in host memory. Runs may be empty. Returns the sum of
 * their rows: what `rows` of a call with this table is. */
int64_t row_runs_finish(struct row_run *runs, int32_t run_count);

/* That row_copy_enqueue will find nothing wrong with the call; nothing is enqueued. */
ffa_status row_copy_check(const struct ffa_kernels *kernels, const struct row_copy_call *call,
                          ffa_error *err);
ffa_status row_copy_enqueue(const struct ffa_kernels *kernels, const struct row_copy_call *call,
                            ffa_stream stream, ffa_error *err);

/* ---- reductions ---- */

enum row_reduce_op {
    ROW_REDUCE_SUM = 1,
    ROW_REDUCE_AVG = 2, /* the sum divided by 1 + the number of received rows */
    ROW_REDUCE_LSE = 3, /* (out, lse) pairs */
    ROW_REDUCE_MAX = 4  /* the largest; NaN counts as -inf */
};

/* What a row_reduce kernel is compiled for: bf16, fp16 or fp32. received: 0: input; a sum of fp32
 * may have bf16 or fp16. */
struct row_reduce_types {
    ffa_dtype input, output;
    enum row_reduce_op op;
    ffa_dtype received;
};

/* Of kernels->narrow_reduce and kernels->narrow_sum. */
struct row_reduce_types row_reduce_narrow_types(const struct ffa_kernels *kernels,
                                                ffa_dtype output);

/* *out: caller's, gpu_kernel_unload(). May compile. */
ffa_status row_reduce_load(struct gpu_kernel **out, const struct ffa_kernels *kernels,
                           const struct row_reduce_types *types, ffa_error *err);

/* Rows of [heads][columns] elements; strides count elements. `out` may be `own` where dtype and
 * strides are the same. `received` may be NULL where no segment has sources, and `own` of a sum,
 * which begins with zeros then. */
struct row_reduce_rows {
    const void *own, *received;
    void *out;
    int64_t own_token_stride, own_head_stride;
    int64_t received_token_stride, received_head_stride;
    int64_t out_token_stride, out_head_stride;
    int64_t columns;
    int32_t heads;
};

struct row_reduce_call {
    const struct gpu_kernel *kernel; /* of row_reduce_load; NULL: that of the kernels, fp32 sums */
    struct row_reduce_types types;   /* those of `kernel`; not looked at without */
    struct row_reduce_rows tensors[ROW_REDUCE_TENSORS_MAX]; /* [count]; op lse: one */
    struct row_reduce_lse lse; /* op lse: [rows][heads]; its `out` is not its `own` */
    int32_t count;
    int32_t segment_count;
    int64_t rows; /* own rows that are looked at: [0, rows); a row of no segment is not written */
    const struct row_segment *segments; /* device memory, [segment_count]; ascending and disjoint;
                                         * NULL: all rows, without received ones (a cast) */
    const int64_t *sources;             /* device memory */
};

/* That row_reduce_enqueue will find nothing wrong with the call; nothing is enqueued. */
ffa_status row_reduce_check(const struct ffa_kernels *kernels, const struct row_reduce_call *call,
                            ffa_error *err);
/* To each row of a segment its sources are added in their order, in fp32: every run gives the same
 * bits. */
ffa_status row_reduce_enqueue(const struct ffa_kernels *kernels, const struct row_reduce_call *call,
                              ffa_stream stream, ffa_error *err);

#endif
