/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors of other libraries: an ffa_tensor from a DLTensor, which PyTorch, JAX, NumPy, CuPy and
 * others hand out. Neither needs the other's header; both may be included. (DLPack, DMLC 2017.)
 */
#ifndef FFA_DLPACK_H
#define FFA_DLPACK_H

#include <ffa/status.h>
#include <ffa/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The layout of a DLTensor of all versions so far (0.x and 1.x), for callers without DLPack's
 * header. */
typedef struct ffa_dltensor {
    void *data;
    int32_t device_type; /* 1: CPU, 2: CUDA, 3: CUDA host, 13: CUDA managed */
    int32_t device_id;
    int32_t ndim;
    uint8_t dtype_code; /* 2: IEEE floating point, 4: bfloat16 */
    uint8_t dtype_bits;
    uint16_t dtype_lanes;
    int64_t *shape;   /* [ndim] */
    int64_t *strides; /* [ndim] in elements; NULL: contiguous */
    uint64_t byte_offset;
} ffa_dltensor;

/*
 * Fill *out with a tensor's address and strides, and with all that is known of it, so that calls
 * check it: tokens, heads, head_dim, dtype, batch.
 *
 *   shape                              as
 *   [tokens][heads][head_dim]          q, k, v, out and their gradients
 *   [batch][tokens][heads][head_dim]   the same, where the batch can be folded into the tokens
 *   [tokens][heads]                    lse and its gradient: head_dim 1
 *
 * Three dimensions are never a batch of lse: it is to be viewed as two, with the samples' tokens in
 * one. A tensor without elements gets data NULL. Strides may be 0, but the last one of three or
 * four must be 1; those over a dimension of 1 are ignored. The memory is the tensor's, and must
 * outlive the calls that use it. That the device is the context's, and a stream is waited for, is
 * the caller's care.
 *
 * out       its former value does not matter; on failure a tensor without data.
 * dltensor  a DLTensor or an ffa_dltensor; not a DLManagedTensorVersioned, but its dl_tensor.
 *
 * Fails with FFA_INVALID, naming the field, its value and what is needed: another device, dtype or
 * number of dimensions, sizes or strides below 0, more than 2^56 elements, rows that are not
 * contiguous, a batch that cannot be folded. Thread: any.
 */
FFA_API ffa_status ffa_tensor_from_dlpack(ffa_tensor *out, const void *dltensor, ffa_error *err);

#ifdef __cplusplus
}
#endif
#endif
