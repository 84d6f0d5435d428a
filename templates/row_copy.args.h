/* SPDX-License-Identifier: Apache-2.0
 *
 * Launch arguments of row_copy, read by host (C17) and device (C++17). Pointers are device
 * addresses; strides count bytes.
 */
#ifndef FFA_ROW_COPY_ARGS_H
#define FFA_ROW_COPY_ARGS_H

#include "row_items.h"

enum {
    ROW_COPY_TENSORS_MAX = 4,
    ROW_COPY_BLOCKS = 6 /* of an SM: 96 KB of loads in flight, 40 registers a thread */
};

/* Rows [from, from + rows) go to [to, to + rows). In a table `before` is the sum of the rows of all
 * runs before this one. */
struct row_run {
    long long from, to, rows, before;
};

struct row_copy_tensor {
    const void *from; /* NULL: `fill`, or the index of each row of `from`, an int64 */
    void *to;
    long long from_token_bytes, from_head_bytes;
    long long to_token_bytes, to_head_bytes;
    struct row_items items;
    int vector_bytes; /* 16, 8, 4, 2 or 1; of what is filled at most 8 */
    int is_fill;
    unsigned long long fill; /* one element, as often as 8 bytes have it */
};

struct row_copy_args {
    struct row_copy_tensor tensors[ROW_COPY_TENSORS_MAX]; /* [count] */
    const struct row_run *runs;                           /* [run_count]; NULL: row r to row r */
    int run_count;
    int count;
};

#ifdef __cplusplus
static_assert(sizeof(row_copy_args) == 400, "host and device disagree");
#else
_Static_assert(sizeof(struct row_copy_args) == 400, "host and device disagree");
#endif

#endif
