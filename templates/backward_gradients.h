/* SPDX-License-Identifier: Apache-2.0
 *
 * attention_backward: from scores to P and dS, in registers, and dS to shared memory.
 *
 * P is packed to the model's dtype at once, as dV needs it, and dS is made from the packed P.
 */
#ifndef FFA_BACKWARD_GRADIENTS_H
#define FFA_BACKWARD_GRADIENTS_H

#include "backward_mask.h"

namespace {

/* Shared memory is busy and takes hundreds of cycles to answer, so statistics are loaded ahead of
 * their use, where there are registers: lse before the products of the scores, which begin with it
 * where they may (attention_backward_adds_lse), and D behind those of dP. */
constexpr bool lse_early = is_specialised && !spec::softcap;
constexpr bool d_early = tile_m == 64 && !spec::softcap;

/* Registers for lse and D of the thread's columns. */
constexpr int lse_regs = lse_early ? tile_m / 8 : 1;
constexpr int d_regs = d_early ? tile_m / 8 : 1;

template <int count> FFA_DEVICE void stats_load(float2 (&x)[count], uint32_t at)
{
    if constexpr (count > 1) {
#pragma unroll
        for (int j = 0; j < count; ++j)
            x[j] = ld_shared_f32x2(at + 32 * j);
    }
}

/* Of the thread's columns 8 j and after: loaded before, or loaded now from `at`. */
template <int count> FFA_DEVICE float2 stats_get(const float2 (&x)[count], uint32_t at, int j)
{
    return count > 1 ? x[j] : ld_shared_f32x2(at + 32 * j);
}

/* Where a thread's part is in shared memory. stats_place: the offset, in a block's statistics, of
 * its first two query rows. ds_place: in slot 0, where its stmatrix begins: key lane % 16 of its
 * warp, unit lane / 16 (the swizzle: descriptor.h). */
FFA_DEVICE uint32_t stats_place()
{
    return threadIdx.x % 4 * 8;
}

FFA_DEVICE uint32_t ds_place(const shared_view &smem, int first_key)
{
    const uint32_t thread = threadIdx.x % 128, lane = thread % 32;
    const uint32_t key = (uint32_t)first_key + thread / 32 * 16 + lane % 16;

    return smem.ds(0) + key * 128 + ((lane / 16) ^ (key % 8)) * 16;
}

/* What the scores of a block begin with (attention_backward_adds_lse): -lse / scale of its rows, so
 * that P is the exponential of what they become, times the scale. */
FFA_DEVICE void scores_begin(float (&s)[s_regs], uint32_t stats)
{
    if constexpr (adds_lse) {
#pragma unroll
        for (int j = 0; j < tile_m / 8; ++j) {
            const float2 lse = ld_shared_f32x2(stats + 32 * j);
            s[4 * j] = s[4 * j + 2] = lse.x;
            s[4 * j + 1] = s[4 * j + 3] = lse.y;
        }
    }
}

/* Scores become P, in the model's dtype. Those that have not begun with their rows' lse are given
 * it. With a softcap, `slope` becomes P times the derivative of the capped score: dS is made from
 * it instead of P. */
FFA_DEVICE void make_p(uint32_t (&p)[p_regs], uint32_t (&slope)[p_regs], float (&s)[s_regs],
                       float2 (&rows_lse)[lse_regs], uint32_t stats,
                       const attention_backward_args &a)
{
#pragma unroll
    for (int j = 0; j < tile_m / 8; ++j) {
        const float2 lse = adds_lse ? float2{ 0, 0 } : stats_get(rows_lse, stats, j);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float x[2];
            if constexpr (spec::softcap) {
                float y[2];
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    /* tanh(t) = 1 - 2 / (1 + e^2t), as in the forward kernel; -inf stays masked. */
                    const float s_i = s[4 * j + 2 * r + e];
                    const float tanh =
                        fmaf(rcp_approx(1.0f + ex2_approx(s_i * a.cap_inner)), -2.0f, 1.0f);
                    x[e] = s_i == neg_inf()
                               ? 0.0f
                               : ex2_approx(fmaf(tanh, a.cap_outer, e ? -lse.y : -lse.x));
                    y[e] = x[e] * fmaf(-tanh, tanh, 1.0f);
                }
                slope[2 * j + r] = pack_half2<spec::dtype>(y[0], y[1]);
            } else {
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const float s_i = s[4 * j + 2 * r + e];
                    x[e] = ex2_approx(adds_lse ? s_i * a.scale_log2
                                               : fmaf(s_i, a.scale_log2, e ? -lse.y : -lse.x));
                }
            }
            p[2 * j + r] = pack_half2<spec::dtype>(x[0], x[1]);
        }
    }
}

FFA_DEVICE uint32_t ds_pack(uint32_t p, float dp0, float dp1, const float2 &d)
{
    const float2 x = unpack_half2<spec::dtype>(p);

    return pack_half2<spec::dtype>(x.x * (dp0 - d.x), x.y * (dp1 - d.y));
}

/* dS = P * (dP - D), packed. */
template <int count>
FFA_DEVICE void make_ds(uint32_t (&ds)[count], const uint32_t (&p)[count],
                        const float (&dp)[2 * count], const float2 (&rows_d)[d_regs],
                        uint32_t stats)
{
#pragma unroll
    for (int j = 0; j < tile_m / 8; ++j) {
        const float2 d = stats_get(rows_d, stats, j);
#pragma unroll
        for (int r = 0; r < 2; ++r)
            ds[2 * j + r] = ds_pack(p[2 * j + r], dp[4 * j + 2 * r], dp[4 * j + 2 * r + 1], d);
    }
}

/* dS to shared memory as [key][row], 64 rows a panel, where dQ reads it. `to`: the thread's place.
 */
FFA_DEVICE void store_ds(const uint32_t (&ds)[p_regs], uint32_t to)
{
#pragma unroll
    for (int j = 0; j < tile_m / 16; ++j) /* 16 query rows: units 2 j and 2 j + 1 of the key */
        stmatrix_x4((to ^ (j % 4 * 32)) + j / 4 * ds_panel_bytes, ds[4 * j], ds[4 * j + 1],
                    ds[4 * j + 2], ds[4 * j + 3]);
}

}

#endif
