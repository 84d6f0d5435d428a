/* SPDX-License-Identifier: Apache-2.0
 *
 * Launch arguments of row_reduce, read by host (C17) and device (C++17). Pointers are device
 * addresses; strides count elements.
 */
#ifndef FFA_ROW_REDUCE_ARGS_H
#define FFA_ROW_REDUCE_ARGS_H

#include "device_limits.h"
#include "row_items.h"

enum { ROW_REDUCE_TENSORS_MAX = 2 };

/* Blocks of an SM: 64 KB of loads in flight and 64 registers a thread. A vector of eight columns,
 * or rows with weights, take 80 registers: 48 KB. Both together take 128: 32 KB. */
FFA_HOST_DEVICE int row_reduce_blocks(int input, int op)
{
    return 4 - (input != 3) - (op == 3);
}

/* To each of the own rows [row, row + rows) `count` received rows are added: to row + j the
 * received rows sources[first + i] + j, by ascending i. */
struct row_segment {
    int row, rows, first, count;
};

struct row_reduce_tensor {
    const void *own, *received; /* own NULL: zeros; sums only */
    void *out;
    long long own_token_stride, own_head_stride;
    long long received_token_stride, received_head_stride;
    long long out_token_stride, out_head_stride;
    struct row_items items;
    int columns; /* of a vector: those of 16 bytes of input, or 1 */
    int pad_;
};

/* The lse of an (out, lse) pair; natural logarithm. */
struct row_reduce_lse {
    const float *own, *received;
    float *out;
    long long own_token_stride, own_head_stride;
    long long received_token_stride, received_head_stride;
    long long out_token_stride, out_head_stride;
};

struct row_reduce_args {
    struct row_reduce_tensor tensors[ROW_REDUCE_TENSORS_MAX]; /* [count] */
    struct row_reduce_lse lse;                                /* op lse: of tensors[0] */
    const struct row_segment *segments; /* [segment_count], ascending and disjoint in `row`; NULL:
                                         * all rows, without received ones */
    const long long *sources;
    int segment_count;
    int count;
};

#ifdef __cplusplus
static_assert(sizeof(row_reduce_args) == 320, "host and device disagree");
#else
_Static_assert(sizeof(struct row_reduce_args) == 320, "host and device disagree");
#endif

#endif
