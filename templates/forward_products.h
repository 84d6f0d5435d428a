/* SPDX-License-Identifier: Apache-2.0
 *
 * attention_forward: the matrix products S = Q K^T and O += P V, and what their operands need.
 */
#ifndef FFA_FORWARD_PRODUCTS_H
#define FFA_FORWARD_PRODUCTS_H

#include "forward_layout.h"
#include "kernel_products.h"

namespace {

/* Computes the scores of this warp's 16 rows again. Each warp decides for itself whether it needs
 * them, so this is mma.sync: wgmma would need all four warps. `q`: this warpgroup's rows of Q. */
FFA_DEVICE void scores_again(float (&s)[s_regs], uint32_t q, uint32_t k, int thread)
{
    const int lane = thread % 32;
    const int q_row = thread / 32 * 16 + lane % 16, q_half = lane / 16;
    const int k_row = lane / 16 * 8 + lane % 8, k_half = lane / 8 % 2;

#pragma unroll
    for (int i = 0; i < s_regs; ++i)
        s[i] = 0.0f;
#pragma unroll 1
    for (int step = 0; step < head_dim / 16; ++step) {
        const int chunk = step % 4 * 2;
        uint32_t a[4], b[4];
        ldmatrix_x4(a, q + step / 4 * q_panel_bytes + q_row * 128 +
                           ((chunk + q_half) ^ (q_row & 7)) * 16);
#pragma unroll
        for (int j = 0; j < tile_n / 16; ++j) {
            const int row = j * 16 + k_row;
            ldmatrix_x4(b, k + step / 4 * kv_panel_bytes + row * 128 +
                               ((chunk + k_half) ^ (row & 7)) * 16);
            mma_m16n8k16<spec::dtype>(s[8 * j], s[8 * j + 1], s[8 * j + 2], s[8 * j + 3], a, b[0],
                                      b[1]);
            mma_m16n8k16<spec::dtype>(s[8 * j + 4], s[8 * j + 5], s[8 * j + 6], s[8 * j + 7], a,
                                      b[2], b[3]);
        }
    }
}

/* P in the model's dtype: the accumulator layout of S is that of an A operand in registers. */
FFA_DEVICE void convert_p(uint32_t (&p)[p_regs], const float (&s)[s_regs])
{
#pragma unroll
    for (int i = 0; i < p_regs; ++i)
        p[i] = pack_half2<spec::dtype>(s[2 * i], s[2 * i + 1]);
}

/* Rows [tile_n - tail, tile_n) of a V block become 0: they are past the end of the sweep, and NaNs
 * there must not meet P = 0. Every warpgroup writes all of these rows. That is no race that
 * matters, as all write zeros. */
FFA_DEVICE void zero_tail(uint32_t v, int tail, int warpgroup, int thread)
{
    for (int i = (tile_n - tail) * 8 + thread; i < tile_n * 8; i += 128)
#pragma unroll
        for (int panel = 0; panel < v_panels; ++panel)
            st_shared_v4_zero(v + panel * kv_panel_bytes + i * 16);
    fence_proxy_async();
    warpgroup_sync(warpgroup);
}

/* Issues and commits S = Q K^T of the block at ring position `at`. */
FFA_DEVICE void scores_issue(float (&s)[s_regs], const shared_view &smem, uint64_t q,
                             const ring<kv_slots> &at)
{
    touch(s);
    asm volatile("" : "+l"(q)); /* derive each step's descriptor anew: kept, they cost registers */
    wgmma_fence();
    product_shared<tile_n, head_dim, spec::dtype, q_panel_bytes, kv_panel_bytes>(
        s, q, descriptor_k_major(smem.k(at.slot)));
    wgmma_commit();
}

/* Waits for V, and issues and commits O = P V of a tile's first block, O += P V of the others.
 * `tail`: rows of the block past the sweep's end. */
FFA_DEVICE void output_issue(float (&o)[o_regs], uint32_t (&p)[p_regs], const shared_view &smem,
                             const ring<kv_slots> &at, int tail, bool is_first, int warpgroup,
                             int thread)
{
    const barriers bars = smem.bars();

    wait(bars, bars.v_full(at.slot), at.parity, at_v_full);
    if (tail > 0)
        zero_tail(smem.v(at.slot), tail, warpgroup, thread);
    touch(o);
    touch(p);
    wgmma_fence();
    product_registers<head_dim_v, tile_n, spec::dtype>(
        o, p, descriptor_mn_major(smem.v(at.slot), kv_panel_bytes), !is_first);
    wgmma_commit();
}

}

#endif
