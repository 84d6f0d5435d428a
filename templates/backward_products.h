/* SPDX-License-Identifier: Apache-2.0
 *
 * attention_backward: the five matrix products of a block (dQ of specialised consumers:
 * backward_specialised.h). Each function issues and commits one product; its accumulators belong to
 * the tensor cores until wgmma_wait and touch().
 */
#ifndef FFA_BACKWARD_PRODUCTS_H
#define FFA_BACKWARD_PRODUCTS_H

#include "backward_layout.h"
#include "kernel_products.h"

namespace {

/* S = K Q^T, or dP = V dO^T, of this warpgroup's 64 keys. accumulate: 1 adds to what `s` holds. */
template <int columns>
FFA_DEVICE void keys_by_rows_issue(float (&s)[s_regs], uint32_t kv, uint32_t q, int accumulate = 0)
{
    const uint64_t a = descriptor_k_major(kv), b = descriptor_k_major(q);

    touch(s);
    wgmma_fence();
    product_shared<tile_m, columns, spec::dtype, kv_panel_bytes, q_panel_bytes>(s, a, b,
                                                                                accumulate);
    wgmma_commit();
}

/* A warpgroup's 64 keys of K or V as an operand in registers, of the first columns, 16 a step. Kept
 * over a tile, they need not be read from shared memory for each block. */
template <int steps> struct kept_keys {
    uint32_t a[steps][4];
};
template <> struct kept_keys<0> {
};

/* From shared memory, where the tile's K or V is ready. */
template <int steps> FFA_DEVICE void keys_keep(kept_keys<steps> &kept, uint32_t kv)
{
    const uint32_t thread = threadIdx.x % 128, lane = thread % 32;
    const uint32_t key = thread / 32 * 16 + lane % 16;

    if constexpr (steps > 0)
#pragma unroll
        for (int step = 0; step < steps; ++step)
            ldmatrix_x4(kept.a[step], kv + step / 4 * kv_panel_bytes + key * 128 +
                                          ((step % 4 * 2 + lane / 16) ^ (key % 8)) * 16);
}

/* The same, with the first steps of K or V from registers. `rows` makes what only 64 rows have
 * depend on the instance. */
template <int columns, int steps, int rows = tile_m>
FFA_DEVICE void keys_by_rows_issue(float (&s)[s_regs], kept_keys<steps> &kept, uint32_t kv,
                                   uint32_t q, int accumulate = 0)
{
    if constexpr (steps == 0) {
        keys_by_rows_issue<columns>(s, kv, q, accumulate);
    } else {
        const uint64_t a = descriptor_k_major(kv), b = descriptor_k_major(q);

        touch(s);
#pragma unroll
        for (int step = 0; step < steps; ++step)
            touch(kept.a[step]);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < columns / 16; ++step) {
            const uint64_t block = descriptor_advance(b, step / 4 * q_panel_bytes + step % 4 * 32);
            if (step < steps)
                wgmma<rows, spec::dtype>::rs_k(s, kept.a[step][0], kept.a[step][1], kept.a[step][2],
                                               kept.a[step][3], block, step > 0 ? 1 : accumulate);
            else
                wgmma<rows, spec::dtype>::ss(
                    s, descriptor_advance(a, step / 4 * kv_panel_bytes + step % 4 * 32), block,
                    step > 0 ? 1 : accumulate);
        }
        wgmma_commit();
    }
}

/* dV += P dO, or dK += dS Q. `rows`: dO or Q of the block. accumulate: 0 sets it instead. */
template <int columns>
FFA_DEVICE void gradient_issue(float (&g)[columns / 2], uint32_t (&p)[p_regs], uint32_t rows,
                               int accumulate = 1)
{
    const uint64_t b = descriptor_mn_major(rows, q_panel_bytes);

    touch(g);
    touch(p);
    wgmma_fence();
    product_registers<columns, tile_m, spec::dtype>(g, p, b, accumulate);
    wgmma_commit();
}

/* A piece of dQ = dS^T K, 64 rows x `columns`, over a block's keys. accumulate: 1 adds to it. */
template <int columns>
FFA_DEVICE void dq_issue(float (&dq)[columns / 2], uint32_t ds, uint32_t k, int accumulate = 0)
{
    const uint64_t a = descriptor_mn_major(ds, ds_panel_bytes);
    const uint64_t b = descriptor_mn_major(k, kv_panel_bytes);

    touch(dq);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < cta_keys / 16; ++step)
        wgmma<columns, spec::dtype>::ss_mn(dq, descriptor_advance(a, step * 2048),
                                           descriptor_advance(b, step * 2048),
                                           step > 0 ? 1 : accumulate);
    wgmma_commit();
}

}

#endif
