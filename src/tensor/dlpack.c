/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors from DLPack. Invariant: strides of the result are numbers, never FFA_CONTIGUOUS, and all
 * that may be unknown in an ffa_tensor is known, but for tensors without elements, which have no
 * data. Trick: every shape is first made one of four dimensions, with a batch of 1 before it and a
 * head_dim of 1 behind it where they are missing, so that each rule is written once.
 */
#include "tensor/tensor.h"

#include <ffa/dlpack.h>

_Static_assert(sizeof(void *) != 8 ||
                   (sizeof(ffa_dltensor) == 48 && offsetof(ffa_dltensor, device_type) == 8 &&
                    offsetof(ffa_dltensor, ndim) == 16 &&
                    offsetof(ffa_dltensor, dtype_code) == 20 &&
                    offsetof(ffa_dltensor, dtype_lanes) == 22 &&
                    offsetof(ffa_dltensor, shape) == 24 && offsetof(ffa_dltensor, strides) == 32 &&
                    offsetof(ffa_dltensor, byte_offset) == 40),
               "the layout of a DLTensor");

enum { BATCH, TOKENS, HEADS, HEAD_DIM, DIMS };

struct layout {
    int32_t first; /* of the four, the one that is the tensor's first */
    int64_t size[DIMS], stride[DIMS];
};

static ffa_status device_check(const ffa_dltensor *from, ffa_error *err)
{
    switch (from->device_type) {
    case 1:
    case 2:
    case 3:
    case 13:
        return FFA_OK;
    default:
        return error_fail(err, FFA_INVALID, 0,
                          "dlpack: device_type is %d, not that of the CPU (1), CUDA (2), CUDA host "
                          "(3) or CUDA managed memory (13)",
                          from->device_type);
    }
}

static ffa_status dtype_of(int32_t *out, const ffa_dltensor *from, ffa_error *err)
{
    static const struct {
        uint8_t code, bits;
        ffa_dtype dtype;
    } dtypes[] = {
        { 4, 16, FFA_BF16 }, { 2, 16, FFA_FP16 }, { 2, 32, FFA_FP32 }, { 2, 64, FFA_FP64 }
    };

    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (from->dtype_code == dtypes[i].code && from->dtype_bits == dtypes[i].bits &&
            from->dtype_lanes == 1) {
            *out = (int32_t)dtypes[i].dtype;
            return FFA_OK;
        }
    return error_fail(err, FFA_INVALID, 0,
                      "dlpack: dtype has code %d, %d bits and %d lanes, not those of bf16 (4, 16, "
                      "1), fp16 (2, 16, 1), fp32 (2, 32, 1) or fp64 (2, 64, 1)",
                      from->dtype_code, from->dtype_bits, from->dtype_lanes);
}

/* Sizes, and the strides of a contiguous tensor. */
static ffa_status sizes_of(struct layout *out, const ffa_dltensor *from, ffa_error *err)
{
    int64_t count = 1;

    if (from->ndim < 2 || from->ndim > 4)
        return error_fail(err, FFA_INVALID, 0,
                          "dlpack: ndim is %d, not 2 [tokens][heads], 3 [tokens][heads][head_dim] "
                          "or 4 [batch][tokens][heads][head_dim]",
                          from->ndim);
    if (!from->shape)
        return error_fail(err, FFA_INVALID, 0, "dlpack: shape is NULL");
    out->first = from->ndim == 4 ? BATCH : TOKENS;
    for (int32_t d = DIMS - 1; d >= 0; d--) {
        const int32_t i = d - out->first;
        const int64_t size = i >= 0 && i < from->ndim ? from->shape[i] : 1;

        if (size < 0 || (d != TOKENS && d != HEAD_DIM && size > INT32_MAX))
            return error_fail(
                err, FFA_INVALID, 0, "dlpack: shape[%d] is %lld, not in [0, %lld]", i,
                (long long)size,
                (long long)(d == TOKENS || d == HEAD_DIM ? TENSOR_EXTENT_MAX : INT32_MAX));
        if (size > TENSOR_EXTENT_MAX / count)
            return error_fail(err, FFA_INVALID, 0,
                              "dlpack: shape[%d] is %lld, times %lld elements over %lld", i,
                              (long long)size, (long long)count, (long long)TENSOR_EXTENT_MAX);
        out->size[d] = size;
        out->stride[d] = count;
        count *= max64(size, 1);
    }
    return FFA_OK;
}

/* A stride over one is never taken: it stays the contiguous one. */
static ffa_status strides_of(struct layout *out, const ffa_dltensor *from, ffa_error *err)
{
    for (int32_t i = 0; from->strides && i < from->ndim; i++) {
        const int32_t d = i + out->first;

        if (out->size[d] <= 1)
            continue;
        if (from->strides[i] < 0)
            return error_fail(err, FFA_INVALID, 0, "dlpack: strides[%d] is %lld, below 0", i,
                              (long long)from->strides[i]);
        if (d == HEAD_DIM && from->strides[i] != 1)
            return error_fail(err, FFA_INVALID, 0, "dlpack: strides[%d] is %lld, not 1: %s", i,
                              (long long)from->strides[i],
                              from->strides[i] ? "rows must be contiguous"
                                               : "the last dimension is expanded, materialise it");
        out->stride[d] = from->strides[i];
    }
    return FFA_OK;
}

/* The stride of the tokens of all samples. */
static ffa_status batch_fold(struct layout *layout, ffa_error *err)
{
    const int64_t tokens = layout->size[TOKENS];
    int64_t folded;

    if (layout->size[BATCH] <= 1 || tokens == 0)
        return FFA_OK;
    if (tokens == 1)
        layout->stride[TOKENS] = layout->stride[BATCH];
    if (__builtin_mul_overflow(tokens, layout->stride[TOKENS], &folded) ||
        folded != layout->stride[BATCH])
        return error_fail(err, FFA_INVALID, 0,
                          "dlpack: strides[0] is %lld, a batch must be foldable into the tokens: "
                          "%lld tokens times their stride of %lld",
                          (long long)layout->stride[BATCH], (long long)tokens,
                          (long long)layout->stride[TOKENS]);
    return FFA_OK;
}

ffa_status ffa_tensor_from_dlpack(ffa_tensor *out, const void *dltensor, ffa_error *err)
{
    const ffa_dltensor *from = dltensor;
    struct layout layout = { 0 };
    int32_t dtype = 0;
    bool is_empty = false;
    ffa_status rc;

    if (!out || !from)
        return error_fail(err, FFA_INVALID, 0, "ffa_tensor_from_dlpack: %s is NULL",
                          !out ? "out" : "dltensor");
    *out = (ffa_tensor)FFA_TENSOR_INIT(NULL);
    FFA_TRY(device_check(from, err));
    FFA_TRY(dtype_of(&dtype, from, err));
    FFA_TRY(sizes_of(&layout, from, err));
    FFA_TRY(strides_of(&layout, from, err));
    FFA_TRY(batch_fold(&layout, err));
    for (int32_t d = 0; d < DIMS; d++)
        is_empty |= layout.size[d] == 0;
    *out = (ffa_tensor){ .data = is_empty || !from->data ? NULL
                                                         : (char *)from->data + from->byte_offset,
                         .token_stride = layout.stride[TOKENS],
                         .head_stride = layout.stride[HEADS],
                         .tokens = layout.size[BATCH] * layout.size[TOKENS],
                         .head_dim = layout.size[HEAD_DIM],
                         .batch_stride = layout.stride[BATCH],
                         .batch = (int32_t)layout.size[BATCH],
                         .heads = (int32_t)layout.size[HEADS],
                         .dtype = dtype };
out:
    return rc;
}
