/* SPDX-License-Identifier: Apache-2.0
 *
 * Elements of tensors, by the definition of their formats, and what is read of a case. Invariant:
 * nothing here is shared with the library, so a wrong conversion there is seen.
 */
#include "oracle/oracle_elements.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

static inline double read_bf16(uint16_t half)
{
    const uint32_t bits = (uint32_t)half << 16;
    float value;

    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

/* Taken for those of a double, the exponent and mantissa of a half give a number that is 2^1008
 * times too small, denormals included: 1008 = 1023 - 15 is the difference of the biases. */
static inline double read_fp16(uint16_t half)
{
    const uint64_t bits = (uint64_t)(half & 0x8000) << 48 | (uint64_t)(half & 0x7fff) << 42;
    double value;

    memcpy(&value, &bits, sizeof value);
    if ((half & 0x7c00) == 0x7c00)
        return copysign(half & 0x3ff ? NAN : INFINITY, value);
    return value * 0x1p1008;
}

double oracle_read(ffa_dtype dtype, const void *data, int64_t at)
{
    switch (dtype) {
    case FFA_BF16:
        return read_bf16(((const uint16_t *)data)[at]);
    case FFA_FP16:
        return read_fp16(((const uint16_t *)data)[at]);
    case FFA_FP32:
        return (double)((const float *)data)[at];
    case FFA_FP64:
        return ((const double *)data)[at];
    }
    return NAN;
}

/* The `count` elements from `at` on. */
static void read_line(ffa_dtype dtype, const void *data, int64_t at, int32_t count, double *to)
{
    switch (dtype) {
    case FFA_BF16:
        for (int32_t c = 0; c < count; c++)
            to[c] = read_bf16(((const uint16_t *)data)[at + c]);
        return;
    case FFA_FP16:
        for (int32_t c = 0; c < count; c++)
            to[c] = read_fp16(((const uint16_t *)data)[at + c]);
        return;
    case FFA_FP32:
        for (int32_t c = 0; c < count; c++)
            to[c] = (double)((const float *)data)[at + c];
        return;
    case FFA_FP64:
        memcpy(to, (const double *)data + at, (size_t)count * sizeof *to);
        return;
    }
    for (int32_t c = 0; c < count; c++)
        to[c] = NAN;
}

int64_t oracle_offset(const ffa_tensor *tensor, int64_t heads, int64_t dim, int64_t token,
                      int64_t head)
{
    const int64_t head_stride = tensor->head_stride == FFA_CONTIGUOUS ? dim : tensor->head_stride;
    const int64_t token_stride =
        tensor->token_stride == FFA_CONTIGUOUS ? heads * dim : tensor->token_stride;

    return token * token_stride + head * head_stride;
}

void oracle_read_row(const struct oracle_case *test, const ffa_tensor *tensor, int64_t heads,
                     int32_t dim, int64_t token, int64_t head, double *to)
{
    read_line(test->dtype, tensor->data, oracle_offset(tensor, heads, dim, token, head), dim, to);
}

double oracle_scale(const struct oracle_case *test)
{
    const double scale = test->args->softmax_scale;

    return scale != 0 ? scale : 1 / sqrt((double)test->head_dim);
}

int32_t oracle_threads(const struct oracle_case *test)
{
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);

    if (test->threads > 0)
        return test->threads < ORACLE_THREADS_MAX ? test->threads : ORACLE_THREADS_MAX;
    return cores < 1 ? 1 : cores < ORACLE_THREADS_MAX ? (int32_t)cores : ORACLE_THREADS_MAX;
}

int32_t oracle_value_dim(const struct oracle_case *test)
{
    return test->head_dim_v ? test->head_dim_v : test->head_dim;
}

ffa_dtype oracle_out_dtype(const struct oracle_case *test)
{
    return test->out_dtype ? test->out_dtype : test->dtype;
}

ffa_dtype oracle_lse_dtype(const struct oracle_case *test)
{
    if (test->lse_dtype)
        return test->lse_dtype;
    return test->dtype == FFA_FP64 ? FFA_FP64 : FFA_FP32;
}

double oracle_sink(const struct oracle_case *test, int32_t s, int32_t head)
{
    return oracle_read(oracle_lse_dtype(test), test->args->sink,
                       (int64_t)s * test->args->heads_q + head);
}

/* NaNs that no computation gives: quiet, with a payload. */
static const uint64_t poison_bits[] = {
    [FFA_BF16] = 0x7fdb,
    [FFA_FP16] = 0x7edb,
    [FFA_FP32] = 0x7fdbdbdb,
    [FFA_FP64] = 0x7ffbdbdbdbdbdbdb,
};

static size_t bytes_of(ffa_dtype dtype)
{
    return dtype == FFA_FP64 ? 8 : dtype == FFA_FP32 ? 4 : 2;
}

void oracle_poison_line(ffa_dtype dtype, void *data, int64_t at, int32_t count)
{
    const uint64_t bits = poison_bits[dtype];

    switch (bytes_of(dtype)) {
    case 8:
        for (int32_t c = 0; c < count; c++)
            ((uint64_t *)data)[at + c] = bits;
        return;
    case 4:
        for (int32_t c = 0; c < count; c++)
            ((uint32_t *)data)[at + c] = (uint32_t)bits;
        return;
    default:
        for (int32_t c = 0; c < count; c++)
            ((uint16_t *)data)[at + c] = (uint16_t)bits;
    }
}

bool oracle_is_poison(ffa_dtype dtype, const void *data, int64_t at)
{
    switch (bytes_of(dtype)) {
    case 8:
        return ((const uint64_t *)data)[at] == poison_bits[dtype];
    case 4:
        return ((const uint32_t *)data)[at] == poison_bits[dtype];
    default:
        return ((const uint16_t *)data)[at] == poison_bits[dtype];
    }
}
