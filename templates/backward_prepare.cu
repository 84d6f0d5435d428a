/* SPDX-License-Identifier: Apache-2.0
 *
 * backward_prepare: computes what attention_backward needs of each row. delta = sum of out * dout
 * - dlse (FlashAttention-2, Dao 2023; dlse: the gradient by lse) and a multiple of lse
 * (attention_backward_adds_lse) go to `stats`; where queries move between ranks, delta
 * comes with them, and out and dout are not read. dq and what attention_backward counts in are set
 * to zero.
 *
 * A row without keys (lse = -inf) gets that infinity that makes its weights exp2(-inf) = 0, and a
 * delta of 0, whatever its out, dout and dlse hold.
 */
#include "backward_prepare.args.h"
#include "ffa_device.h"

#include "backward_rows.h"
#include "ptx.h"

namespace {

namespace spec {
#include "ffa_spec.h"

#include "backward_prepare.spec.def"
#undef FFA_SPEC
}

constexpr int head_dim = spec::head_dim;     /* of dq */
constexpr int head_dim_v = spec::head_dim_v; /* of out and dout */
constexpr int lanes = pass::shape<head_dim_v>::lanes;
constexpr int warp_rows = pass::shape<head_dim_v>::rows;
constexpr int depth = pass::rows_in_flight;
static_assert(lanes >= 2 && depth == 4, "two lanes store the statistics of four rows");
static_assert(warp_rows * head_dim % 128 == 0, "a warp sets whole steps of dq to zero");

FFA_DEVICE float dot(uint32_t a, uint32_t b)
{
    const float2 x = unpack_half2<spec::dtype>(a), y = unpack_half2<spec::dtype>(b);

    return x.x * y.x + x.y * y.y;
}

FFA_DEVICE float dot(float2 a, uint32_t b)
{
    const float2 x = unpack_half2<spec::dtype>(b);

    return a.x * x.x + a.y * x.y;
}

/* Eight columns of out. */
struct columns {
    uint4 half;
    float4 low, high; /* out_fp32 */
};

FFA_DEVICE columns out_load(const backward_prepare_args &a, long long at)
{
    columns c = {};
    if (spec::out_fp32) {
        const float4 *from = (const float4 *)((const float *)a.out + at);
        c.low = from[0];
        c.high = from[1];
    } else {
        c.half = *(const uint4 *)((const uint16_t *)a.out + at);
    }
    return c;
}

FFA_DEVICE float out_dot(const columns &c, const uint4 &d)
{
    if (spec::out_fp32)
        return dot(float2{ c.low.x, c.low.y }, d.x) + dot(float2{ c.low.z, c.low.w }, d.y) +
               dot(float2{ c.high.x, c.high.y }, d.z) + dot(float2{ c.high.z, c.high.w }, d.w);
    return dot(c.half.x, d.x) + dot(c.half.y, d.y) + dot(c.half.z, d.z) + dot(c.half.w, d.w);
}

FFA_DEVICE void zero_rows(const backward_prepare_args &a, const pass::item &item, int lane)
{
    const int rows = min(warp_rows, a.dq_rows - item.row);
    float4 *to = (float4 *)(a.dq + ((long long)item.head * a.dq_rows + item.row) * head_dim);

#pragma unroll
    for (int i = 0; i < warp_rows * head_dim / 4 / 32; ++i)
        if (i * 32 + lane < rows * (head_dim / 4))
            to[i * 32 + lane] = float4{ 0, 0, 0, 0 };
}

FFA_DEVICE void zero_counters(const backward_prepare_args &a)
{
    uint4 *to = (uint4 *)a.counters;
    const long long step = (long long)gridDim.x * BACKWARD_PASS_THREADS;

    for (long long i = (long long)blockIdx.x * BACKWARD_PASS_THREADS + threadIdx.x;
         i < a.counter_units; i += step)
        to[i] = uint4{ 0, 0, 0, 0 };
}

FFA_DEVICE void prepare_rows(const backward_prepare_args &a, const pass::item &item, int lane)
{
    const int row = item.row + lane / lanes * depth;
    const int column = lane % lanes * 8;
    columns out[depth];
    const bool has_columns =
        spec::padded ? column < a.head_dim_v : 8 * lanes == head_dim_v || column < head_dim_v;
    uint4 dout[depth];
    float lse[depth], dlse[depth], delta[depth];

#pragma unroll
    for (int i = 0; i < depth; ++i) {
        const long long at = row + i;
        out[i] = {};
        dout[i] = {};
        lse[i] = neg_inf();
        dlse[i] = 0.0f;
        if (at >= a.tokens_q)
            continue;
        if (has_columns && !a.has_delta) {
            out[i] = out_load(a, at * a.out_token_stride + item.head * a.out_head_stride + column);
            dout[i] = *(const uint4 *)((const uint16_t *)a.dout + at * a.dout_token_stride +
                                       item.head * a.dout_head_stride + column);
        }
        lse[i] = a.lse[at * a.lse_token_stride + item.head * a.lse_head_stride];
        if (a.dlse)
            dlse[i] = a.dlse[at * a.dlse_token_stride + item.head * a.dlse_head_stride];
    }
#pragma unroll
    for (int i = 0; i < depth; ++i) {
        delta[i] = out_dot(out[i], dout[i]);
#pragma unroll
        for (int step = lanes / 2; step; step /= 2)
            delta[i] += __shfl_xor_sync(0xffffffffu, delta[i], step);
        const bool is_empty = lse[i] == neg_inf();
        delta[i] = is_empty ? 0.0f : a.has_delta ? dlse[i] : delta[i] - dlse[i];
        lse[i] = (is_empty ? -neg_inf() : lse[i]) * a.lse_factor;
    }
    /* All lanes of a row have its sums. The first lane stores lse of the four rows, the second
     * their delta. Rows past the last one go to the padding of `stats`. */
    const int which = lane % lanes;
    if (which < 2 && row < a.tokens_q) {
        float4 *to = (float4 *)(a.stats + (item.head * 2ll + which) * a.stats_rows + row);
        *to = which ? float4{ delta[0], delta[1], delta[2], delta[3] }
                    : float4{ lse[0], lse[1], lse[2], lse[3] };
    }
}

}

extern "C" __global__ void __launch_bounds__(BACKWARD_PASS_THREADS, 1)
    backward_prepare(const __grid_constant__ backward_prepare_args a)
{
    const int lane = (int)threadIdx.x % 32;
    const long long count = pass::item_count(a.dq_rows, a.heads_q, warp_rows);

    zero_counters(a);
    for (long long i = pass::warp_index(); i < count; i += pass::warp_count()) {
        const pass::item item = pass::item_find(i, a.heads_q, warp_rows);
        prepare_rows(a, item, lane);
        zero_rows(a, item, lane);
    }
}
