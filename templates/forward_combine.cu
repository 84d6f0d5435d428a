/* SPDX-License-Identifier: Apache-2.0
 *
 * forward_combine: combines the parts (out, lse) of rows whose keys were split among tiles:
 *
 *   lse = log(sum over parts of e^lse_p + sum e^sink),  out = sum over parts of e^(lse_p - lse)
 * out_p
 *
 * One warp has one row of one head. Parts are added in their order, so that every run gives the
 * same bits. A part without keys has lse_p = -inf and out_p = 0.
 */
#include "ffa_device.h"
#include "forward_combine.args.h"
#include "ptx.h"

namespace {

namespace spec {
#include "ffa_spec.h"

#include "forward_combine.spec.def"
#undef FFA_SPEC
}

constexpr int warps = COMBINE_THREADS / 32;
constexpr int runs = 2; /* of 4 columns a lane: 256 columns a warp */

FFA_DEVICE float warp_max(float x)
{
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lanes));
    return x;
}

/* The largest of the parts' lse and the sinks. It only serves as a shift. */
FFA_DEVICE float find_top(const forward_combine_args &a, const plan_split &row, int head, int lane)
{
    float top = neg_inf();

    for (int p = lane; p < row.parts; p += 32)
        top = fmaxf(top,
                    a.part_lse[(long long)(row.part_row + p * row.part_step) * a.heads_q + head]);
    if (lane < a.sink_count)
        top = fmaxf(top, a.sink[(long long)lane * a.heads_q + head]);
    return warp_max(top);
}

FFA_DEVICE void combine(const forward_combine_args &a, const plan_split &row, int head, int lane)
{
    const float top = find_top(a, row, head, lane);
    const float shift = top == neg_inf() ? 0.0f : top * log2e;
    float4 sum[runs] = {};
    float weights = 0.0f;

#pragma unroll 4
    for (int p = 0; p < row.parts; ++p) {
        const long long at = (long long)(row.part_row + p * row.part_step) * a.heads_q + head;
        const float weight = ex2_approx(fmaf(a.part_lse[at], log2e, -shift));
        weights += weight;
#pragma unroll
        for (int i = 0; i < runs; ++i) {
            const int column = (i * 32 + lane) * 4;
            if (column >= a.head_dim_v)
                continue;
            const float4 part = *(const float4 *)(a.part_out + at * a.head_dim_v + column);
            sum[i].x = fmaf(weight, part.x, sum[i].x);
            sum[i].y = fmaf(weight, part.y, sum[i].y);
            sum[i].z = fmaf(weight, part.z, sum[i].z);
            sum[i].w = fmaf(weight, part.w, sum[i].w);
        }
    }
    for (int s = 0; s < a.sink_count; ++s)
        weights += ex2_approx(fmaf(a.sink[(long long)s * a.heads_q + head], log2e, -shift));
    const float scale = weights == 0.0f ? 0.0f : 1.0f / weights;
    uint16_t *out = (uint16_t *)a.out + (long long)row.token * a.out_token_stride +
                    (long long)head * a.out_head_stride;
#pragma unroll
    for (int i = 0; i < runs; ++i) {
        const int column = (i * 32 + lane) * 4;
        if (column < a.head_dim_v)
            *(uint2 *)(out + column) =
                make_uint2(pack_half2<spec::dtype>(sum[i].x * scale, sum[i].y * scale),
                           pack_half2<spec::dtype>(sum[i].z * scale, sum[i].w * scale));
    }
    if (lane == 0)
        a.lse[(long long)row.token * a.lse_token_stride + (long long)head * a.lse_head_stride] =
            weights == 0.0f ? neg_inf() : (shift + lg2_approx(weights)) * ln2;
}

}

extern "C" __global__ void __launch_bounds__(COMBINE_THREADS)
    forward_combine(const __grid_constant__ forward_combine_args a)
{
    const long long item = (long long)blockIdx.x * warps + threadIdx.x / 32;
    const long long row = item / a.heads_q;

    if (row < a.row_count)
        combine(a, a.rows[row], (int)(item - row * a.heads_q), (int)threadIdx.x % 32);
}
