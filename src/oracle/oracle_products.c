/* SPDX-License-Identifier: Apache-2.0
 *
 * Inner products of one line with several, in the widest vectors that the machine has. Every width
 * adds in the same order (oracle_products_width.h).
 */
#include "oracle/oracle_elements.h"

#include <string.h>

enum { LANES = 8, FOUR = 4 };

#define ALWAYS static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 4")

#define VECTOR_BYTES 16
#define TARGET
#define NAME(name) name##_16
#include "oracle/oracle_products_width.h"

#if defined(__x86_64__)
#define VECTOR_BYTES 32
#define TARGET __attribute__((target("avx2")))
#define NAME(name) name##_32
#include "oracle/oracle_products_width.h"

#define VECTOR_BYTES 64
#define TARGET __attribute__((target("avx512f")))
#define NAME(name) name##_64
#include "oracle/oracle_products_width.h"

const struct oracle_products *oracle_products_of(int32_t bytes)
{
    if (bytes == 64 && __builtin_cpu_supports("avx512f"))
        return &products_64;
    if (bytes == 32 && __builtin_cpu_supports("avx2"))
        return &products_32;
    return bytes == 16 ? &products_16 : NULL;
}
#else
const struct oracle_products *oracle_products_of(int32_t bytes)
{
    return bytes == 16 ? &products_16 : NULL;
}
#endif

static const struct oracle_products *widest(void)
{
    const struct oracle_products *products = NULL;

    for (int32_t bytes = 64; !products; bytes /= 2)
        products = oracle_products_of(bytes);
    return products;
}

void oracle_dots(const double *line, const double *const *lines, int32_t count, int32_t dim,
                 double *products)
{
    widest()->dots(line, lines, count, dim, products);
}

void oracle_dots_squares(const double *line, const double *const *lines, int32_t count, int32_t dim,
                         double *products, double *squares)
{
    widest()->dots_squares(line, lines, count, dim, products, squares);
}

void oracle_add_lines(double *to, const double *factors, const double *const *lines, int32_t count,
                      int32_t dim)
{
    widest()->add(to, factors, lines, count, dim);
}

double oracle_dot(const double *a, const double *b, int32_t dim)
{
    double product;

    oracle_dots(a, &b, 1, dim, &product);
    return product;
}
