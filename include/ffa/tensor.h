/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors: rows of elements, one for each token and head, in the caller's memory.
 */
#ifndef FFA_TENSOR_H
#define FFA_TENSOR_H

#include <ffa/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The stride of a contiguous tensor [tokens][heads][head_dim]: head_stride = head_dim, token_stride
 * = heads * head_dim, of the heads and the head_dim that the call has for the tensor. */
#define FFA_CONTIGUOUS INT64_MIN

/*
 * Strides count elements. The elements of a row are contiguous. A stride of 0 gives all tokens, or
 * all heads, the same row, as in an expanded gradient: it is for tensors that a call only reads,
 * and refused for those that it writes, whose rows must not overlap: heads lie within a token, or
 * tokens within a head. The stride over a single token or a single head is ignored. Data must be
 * aligned to its element; on a GPU the data of all tensors but lse and dlse must be 16-byte aligned
 * and their strides multiples of 16 bytes (8 elements of 16 bits).
 *
 * Below the strides is what the caller knows of the tensor. A call compares it with what it needs,
 * and fails with FFA_INVALID where they differ. 0: unknown, and not compared.
 */
typedef struct ffa_tensor {
    void *data;
    int64_t token_stride;
    int64_t head_stride;
    int64_t tokens; /* rows of a head that are there, over all samples; more than needed is fine */
    int64_t head_dim; /* elements of a row; 1 for lse and dlse */
    /* From sample to sample; compared where batch is above 1, and 0 is a stride then. Calls know no
     * samples, so a batch must be foldable into the tokens: tokens / batch * token_stride, for
     * which FFA_CONTIGUOUS stands, too. */
    int64_t batch_stride;
    int32_t batch; /* samples, a divisor of the tokens */
    int32_t heads;
    int32_t dtype; /* ffa_dtype */
    int32_t pad_;
} ffa_tensor;

/* A contiguous tensor at `pointer`, of which nothing else is known. */
#define FFA_TENSOR_INIT(pointer)                                                                   \
    {                                                                                              \
        .data = (pointer), .token_stride = FFA_CONTIGUOUS, .head_stride = FFA_CONTIGUOUS           \
    }
FFA_API void ffa_tensor_init(ffa_tensor *tensor, void *data);

#ifdef __cplusplus
}
#endif
#endif
