/* SPDX-License-Identifier: Apache-2.0
 *
 * What calls ask of the tensors that they are given.
 */
#ifndef FFA_TENSOR_TENSOR_H
#define FFA_TENSOR_TENSOR_H

#include "base/base.h"

#include <ffa/kernel.h>
#include <ffa/tensor.h>

/* No address space holds more, and offsets in elements and bytes stay far from 2^63. */
#define TENSOR_EXTENT_MAX ((int64_t)1 << 56)
/* The largest stride the copy engine takes is below 2^40 bytes. */
#define TENSOR_STRIDE_MAX ((int64_t)1 << 38)

struct tensor_rule {
    ffa_tensor *tensor; /* NULL: not given, or of no use to the call; not checked */
    const char *name;   /* for messages */
    int64_t tokens;     /* 0: data may be NULL */
    int64_t heads;
    int64_t head_dim; /* 1 for lse; heads * head_dim is at most TENSOR_EXTENT_MAX */
    ffa_dtype dtype;
    bool needs_alignment; /* moved by the copy engine or in 16-byte accesses */
    bool is_output;       /* rows must not overlap */
};

/* Fill in the strides of contiguous tensors, and of single tokens and heads; check all. Fails with
 * FFA_INVALID, naming the tensor, the field, its value and what the call needs. */
ffa_status tensors_check(const struct tensor_rule *rules, size_t count, ffa_error *err);

#endif
