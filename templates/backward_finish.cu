/* SPDX-License-Identifier: Apache-2.0
 *
 * backward_finish: the last kernel of a backward pass. It makes dq from its fp32 sum in the
 * workspace, dk and dv from the partial sums of parts (added in the order of the parts, and to sums
 * of other calls if there are any), and dsink,
 *
 *   dsink[s][h] = - sum over rows of e^(sink[s][h] - lse[row][h]) delta[row][h],
 *
 * which is added up in an order that does not depend on the grid. Nothing here is atomic.
 */
#include "backward_finish.args.h"
#include "ffa_device.h"

#include "backward_rows.h"
#include "ptx.h"

namespace {

namespace spec {
#include "ffa_spec.h"

#include "backward_finish.spec.def"
#undef FFA_SPEC
}

constexpr int head_dim = spec::head_dim;     /* of dq and dk */
constexpr int head_dim_v = spec::head_dim_v; /* of dv */
constexpr int head_dim_max = head_dim > head_dim_v ? head_dim : head_dim_v;
constexpr bool is_fp32 = spec::gradient == 3;
constexpr int lanes = pass::shape<head_dim_max>::lanes;
constexpr int warp_rows = pass::shape<head_dim_max>::rows;
constexpr int depth = pass::rows_in_flight;
static_assert(8 % depth == 0, "a lane's rows of dq are of one group");

/* ---- dq ---- */

/* Stores eight columns of a row, from element `at` of a gradient. */
FFA_DEVICE void store_columns(void *gradient, long long at, float4 low, float4 high,
                              bool accumulate)
{
    if (is_fp32) {
        float4 *to = (float4 *)((float *)gradient + at);
        const float4 zero = {};
        const float4 old_low = accumulate ? to[0] : zero, old_high = accumulate ? to[1] : zero;
        to[0] =
            float4{ old_low.x + low.x, old_low.y + low.y, old_low.z + low.z, old_low.w + low.w };
        to[1] = float4{ old_high.x + high.x, old_high.y + high.y, old_high.z + high.z,
                        old_high.w + high.w };
    } else {
        constexpr int dtype = is_fp32 ? 1 : spec::gradient;
        st_global_v4((uint16_t *)gradient + at, pack_half2<dtype>(low.x, low.y),
                     pack_half2<dtype>(low.z, low.w), pack_half2<dtype>(high.x, high.y),
                     pack_half2<dtype>(high.z, high.w));
    }
}

FFA_DEVICE float4 times(float scale, const float4 &x)
{
    return float4{ scale * x.x, scale * x.y, scale * x.z, scale * x.w };
}

/* dq of some rows. The sum is in panels of 64 columns (the last of 96 has 32), a panel in groups of
 * 8 rows, and a group in runs of 8 columns. A lane has one run of each of four rows. */
FFA_DEVICE void dq_rows(const backward_finish_args &a, const pass::item &item, int lane)
{
    const int row = item.row + lane / lanes * depth;
    const int column = lane % lanes * 8;
    const bool has_column = (8 * lanes == head_dim && !spec::padded) || column < a.head_dim;
    const int width = head_dim % 64 && column >= head_dim / 64 * 64 ? 32 : 64;
    const long long panel =
        (long long)a.dq_rows * ((long long)item.head * head_dim + column / 64 * 64);
    const float *from =
        a.dq_sum + panel + (long long)(row / 8) * (8 * width) + column % 64 * 8 + row % 8 * 8;
    float4 low[depth], high[depth];

#pragma unroll
    for (int i = 0; i < depth; ++i) {
        const bool has_row = row + i < a.tokens_q && has_column;
        const float4 *at = (const float4 *)(from + 8 * i);
        low[i] = has_row ? at[0] : float4{};
        high[i] = has_row ? at[1] : float4{};
    }
#pragma unroll
    for (int i = 0; i < depth; ++i)
        if (row + i < a.tokens_q && has_column)
            store_columns(a.dq,
                          (row + i) * a.dq_token_stride + item.head * a.dq_head_stride + column,
                          times(a.scale, low[i]), times(a.scale, high[i]),
                          is_fp32 && a.flags & FINISH_ACCUMULATE);
}

/* ---- dk, dv ---- */

struct parted {
    const float *parts, *more;
    void *to;
    long long token_stride, head_stride;
    long long more_token_stride, more_head_stride;
};

FFA_DEVICE void add(float4 &to, const float4 &more)
{
    to = float4{ to.x + more.x, to.y + more.y, to.z + more.z, to.w + more.w };
}

/* All lanes have eight columns of both dk and dv: no bounds to check. */
constexpr bool is_plain = 8 * lanes == head_dim && head_dim == head_dim_v && !spec::padded;

FFA_DEVICE void parted_rows(const backward_finish_args &a, const parted &p, int columns,
                            const pass::item &item, int lane)
{
    const int row = item.row + lane / lanes * depth;
    const int column = lane % lanes * 8;
    const bool has_columns = is_plain || column < columns;
    const long long part_stride = (long long)a.heads_kv * a.tokens_k * columns;
    const float *from = p.parts + ((long long)item.head * a.tokens_k + row) * columns + column;
    const float *more =
        p.more + row * p.more_token_stride + item.head * p.more_head_stride + column;
    float4 low[depth], high[depth];

#pragma unroll
    for (int i = 0; i < depth; ++i) {
        const bool has_more = p.more && row + i < a.tokens_k && has_columns;
        const float4 *at = (const float4 *)(more + i * p.more_token_stride);
        low[i] = has_more ? at[0] : float4{};
        high[i] = has_more ? at[1] : float4{};
    }
    for (int part = 0; part < a.parts; ++part, from += part_stride)
#pragma unroll
        for (int i = 0; i < depth; ++i)
            if (row + i < a.tokens_k && has_columns) {
                add(low[i], *(const float4 *)(from + i * columns));
                add(high[i], *(const float4 *)(from + i * columns + 4));
            }
#pragma unroll
    for (int i = 0; i < depth; ++i)
        if (row + i < a.tokens_k && has_columns)
            store_columns(p.to, (row + i) * p.token_stride + item.head * p.head_stride + column,
                          low[i], high[i], a.flags & FINISH_ACCUMULATE);
}

/* ---- dsink: one block for each head ---- */

FFA_DEVICE void dsink_head(const backward_finish_args &a, int head, float *shared)
{
    const float *lse = a.stats + (long long)head * 2 * a.stats_rows;
    const float *delta = lse + a.stats_rows;

    for (int s = 0; s < a.sink_count; ++s) {
        const float logit = a.sink[(long long)s * a.heads_q + head] * log2e;
        float sum = 0;

        for (int row = (int)threadIdx.x; row < a.tokens_q; row += BACKWARD_PASS_THREADS)
            sum += ex2_approx(logit - lse[row] * a.lse_unit) * delta[row];
#pragma unroll
        for (int step = 16; step; step /= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, step);
        if (threadIdx.x % 32 == 0)
            shared[threadIdx.x / 32] = sum;
        __syncthreads();
        if (threadIdx.x < 32) {
            sum = threadIdx.x < BACKWARD_PASS_THREADS / 32 ? shared[threadIdx.x] : 0.0f;
#pragma unroll
            for (int step = 16; step; step /= 2)
                sum += __shfl_xor_sync(0xffffffffu, sum, step);
            if (threadIdx.x == 0)
                a.dsink[(long long)s * a.heads_q + head] = -sum;
        }
        __syncthreads();
    }
}

}

extern "C" __global__ void __launch_bounds__(BACKWARD_PASS_THREADS, 1)
    backward_finish(const __grid_constant__ backward_finish_args a)
{
    extern __shared__ char shared_bytes[]; /* a float a warp, of BACKWARD_PASS_SHARED_BYTES */
    const int lane = (int)threadIdx.x % 32;
    const long long dq_count = pass::item_count(a.tokens_q, a.heads_q, warp_rows);
    const long long kv_count = a.parts ? pass::item_count(a.tokens_k, a.heads_kv, warp_rows) : 0;

    if (a.dsink)
        for (int head = (int)blockIdx.x; head < a.heads_q; head += (int)gridDim.x)
            dsink_head(a, head, (float *)shared_bytes);
    for (long long i = pass::warp_index(); i < dq_count + 2 * kv_count; i += pass::warp_count()) {
        if (i < dq_count) {
            dq_rows(a, pass::item_find(i, a.heads_q, warp_rows), lane);
            continue;
        }
        const bool is_v = i - dq_count >= kv_count;
        const parted p =
            is_v ? parted{ a.dv_parts,           a.dv_more,        a.dv,
                           a.dv_token_stride,    a.dv_head_stride, a.dv_more_token_stride,
                           a.dv_more_head_stride }
                 : parted{ a.dk_parts,           a.dk_more,        a.dk,
                           a.dk_token_stride,    a.dk_head_stride, a.dk_more_token_stride,
                           a.dk_more_head_stride };
        parted_rows(a, p,
                    is_plain ? head_dim
                    : is_v   ? a.head_dim_v
                             : a.head_dim,
                    pass::item_find(i - dq_count - (is_v ? kv_count : 0), a.heads_kv, warp_rows),
                    lane);
    }
}
