/* SPDX-License-Identifier: Apache-2.0
 *
 * Elements of tensors, by the definition of their formats, and the products the oracle is made of.
 * Invariant: nothing here is shared with the library, so a wrong conversion there is seen. Trick:
 * products are summed in a fixed number of lanes, so that every vector width adds in the same
 * order.
 */
#include "oracle/oracle_elements.h"

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

int64_t oracle_offset(const ffa_tensor *tensor, int64_t heads, int64_t dim, int64_t token,
                      int64_t head)
{
    const int64_t head_stride = tensor->head_stride == FFA_CONTIGUOUS ? dim : tensor->head_stride;
    const int64_t token_stride =
        tensor->token_stride == FFA_CONTIGUOUS ? heads * dim : tensor->token_stride;

    return token * token_stride + head * head_stride;
}

double oracle_scale(const struct oracle_case *test)
{
    const double scale = test->args->softmax_scale;

    return scale != 0 ? scale : 1 / sqrt((double)test->head_dim);
}

/* Sums in lanes: in vectors, of whatever width there is, the order is the same. (Sanitizers are not
 * there yet when a program chooses among clones.) */
typedef double lanes __attribute__((vector_size(64)));
enum { LANES = 8 };

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) &&                             \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define VECTORS __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define VECTORS
#endif

VECTORS
double oracle_dot(const double *a, const double *b, int32_t count)
{
    lanes sums = { 0 }, x, y;
    double sum = 0;
    int32_t i = 0;

    for (; i + LANES <= count; i += LANES) {
        memcpy(&x, a + i, sizeof x);
        memcpy(&y, b + i, sizeof y);
        sums += x * y;
    }
    for (; i < count; i++)
        sum += a[i] * b[i];
    for (int l = 0; l < LANES; l++)
        sum += sums[l];
    return sum;
}

VECTORS
double oracle_dot_squares(const double *a, const double *b, int32_t count, double *squares)
{
    lanes sums = { 0 }, more = { 0 }, x, y;
    double sum = 0;
    int32_t i = 0;

    *squares = 0;
    for (; i + LANES <= count; i += LANES) {
        memcpy(&x, a + i, sizeof x);
        memcpy(&y, b + i, sizeof y);
        x *= y;
        sums += x;
        more += x * x;
    }
    for (; i < count; i++) {
        sum += a[i] * b[i];
        *squares += a[i] * b[i] * (a[i] * b[i]);
    }
    for (int l = 0; l < LANES; l++) {
        sum += sums[l];
        *squares += more[l];
    }
    return sum;
}

VECTORS
void oracle_add(double *to, double factor, const double *from, int32_t count)
{
    lanes x, y;
    int32_t i = 0;

    for (; i + LANES <= count; i += LANES) {
        memcpy(&x, to + i, sizeof x);
        memcpy(&y, from + i, sizeof y);
        x += factor * y;
        memcpy(to + i, &x, sizeof x);
    }
    for (; i < count; i++)
        to[i] += factor * from[i];
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
