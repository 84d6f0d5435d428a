/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/oracle_elements.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

static double read_bf16(uint16_t half)
{
    const uint32_t bits = (uint32_t)half << 16;
    float value;

    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

static double read_fp16(uint16_t half)
{
    const int exponent = half >> 10 & 31, mantissa = half & 1023;
    double size;

    if (exponent == 31) {
        size = mantissa ? NAN : INFINITY;
    } else if (exponent == 0) {
        size = mantissa * 0x1p-24;
    } else {
        const uint64_t bits = (uint64_t)(exponent - 15 + 1023) << 52 | (uint64_t)mantissa << 42;

        memcpy(&size, &bits, sizeof size);
    }
    return half & 0x8000 ? -size : size;
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

/* A stride of 0 is contiguous (attention.h). */
int64_t oracle_offset(const ffa_tensor *tensor, int64_t heads, int64_t dim, int64_t token,
                      int64_t head)
{
    const int64_t head_stride = tensor->head_stride ? tensor->head_stride : dim;
    const int64_t token_stride = tensor->token_stride ? tensor->token_stride : heads * dim;

    return token * token_stride + head * head_stride;
}

/* The library's scale is a float, the default, too. */
double oracle_scale(const struct oracle_case *test)
{
    const float scale = test->args->softmax_scale;

    return (double)(scale != 0.0f ? scale : (float)(1.0 / sqrt((double)test->head_dim)));
}

double oracle_dot(const double *a, const double *b, int32_t count)
{
    double sums[4] = { 0, 0, 0, 0 };
    int32_t i = 0;

    for (; i + 4 <= count; i += 4)
        for (int32_t l = 0; l < 4; l++)
            sums[l] += a[i + l] * b[i + l];
    for (; i < count; i++)
        sums[0] += a[i] * b[i];
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
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

void oracle_poison_one(ffa_dtype dtype, void *data, int64_t at)
{
    const uint64_t bits = poison_bits[dtype];
    const uint32_t bits32 = (uint32_t)bits;
    const uint16_t bits16 = (uint16_t)bits;
    const size_t bytes = bytes_of(dtype);
    const void *from = bytes == 8   ? (const void *)&bits
                       : bytes == 4 ? (const void *)&bits32
                                    : (const void *)&bits16;

    memcpy((char *)data + (size_t)at * bytes, from, bytes);
}

bool oracle_is_poison(ffa_dtype dtype, const void *data, int64_t at)
{
    uint64_t poison = 0, found = 0;

    oracle_poison_one(dtype, &poison, 0);
    memcpy(&found, (const char *)data + (size_t)at * bytes_of(dtype), bytes_of(dtype));
    return found == poison;
}
