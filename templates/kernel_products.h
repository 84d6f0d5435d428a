/* SPDX-License-Identifier: Apache-2.0
 *
 * The two shapes of matrix product that both passes use, a sequence of wgmma steps of 16 each. They
 * are issued only: the caller fences before, and commits and waits after.
 */
#ifndef FFA_KERNEL_PRODUCTS_H
#define FFA_KERNEL_PRODUCTS_H

#include "wgmma.h"

template <int count> FFA_DEVICE void set_zero(float (&d)[count])
{
#pragma unroll
    for (int i = 0; i < count; ++i)
        d[i] = 0.0f;
}

/* d = A B^T of 64 x n, over `depth` columns, or d += A B^T with `accumulate`. A and B are in shared
 * memory, K-major, in panels of 64 columns that lie a_panel_bytes and b_panel_bytes apart. */
template <int n, int depth, int dtype, int a_panel_bytes, int b_panel_bytes>
FFA_DEVICE void product_shared(float (&d)[n / 2], uint64_t a, uint64_t b, int accumulate = 0)
{
#pragma unroll
    for (int step = 0; step < depth / 16; ++step)
        wgmma<n, dtype>::ss(d, descriptor_advance(a, step / 4 * a_panel_bytes + step % 4 * 32),
                            descriptor_advance(b, step / 4 * b_panel_bytes + step % 4 * 32),
                            step > 0 ? 1 : accumulate);
}

/* d = A B of 64 x n, over `depth` rows of B, or d += A B with `accumulate`. A is in registers, B in
 * shared memory, MN-major. */
template <int n, int depth, int dtype>
FFA_DEVICE void product_registers(float (&d)[n / 2], const uint32_t (&a)[depth / 4], uint64_t b,
                                  int accumulate)
{
#pragma unroll
    for (int step = 0; step < depth / 16; ++step)
        wgmma<n, dtype>::rs(d, a[4 * step], a[4 * step + 1], a[4 * step + 2], a[4 * step + 3],
                            descriptor_advance(b, step * 2048), step > 0 ? 1 : accumulate);
}

#endif
