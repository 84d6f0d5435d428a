/* SPDX-License-Identifier: Apache-2.0
 *
 * attention_forward: from O and the sums of a tile to out, lse and the largest scores. Sinks, what
 * earlier stages or calls left, and fp32 parts are merged here.
 */
#ifndef FFA_FORWARD_STORES_H
#define FFA_FORWARD_STORES_H

#include "forward_softmax.h"

namespace {

/* Adds the sinks to a row's sum; all threads of the row do the same. The shift is raised where a
 * sink is above it. Returns what O must be scaled with for the new shift. */
FFA_DEVICE float add_sinks(const attention_forward_args &a, int head, float &shift, float &sum)
{
    float next = shift;

    if (a.sink_count == 0)
        return 1.0f;
#pragma unroll 1
    for (int i = 0; i < a.sink_count; ++i)
        next = fmaxf(next, a.sink[i * a.call_heads_q + head] * log2e);
    if (next == neg_inf())
        return 1.0f;
    const float keep = ex2_approx(shift - next);
    sum *= keep;
#pragma unroll 1
    for (int i = 0; i < a.sink_count; ++i)
        sum += ex2_approx(fmaf(a.sink[i * a.call_heads_q + head], log2e, -next));
    shift = next;
    return keep;
}

/* How a row of this call is merged with what out and lse held: out = old * was + new * is. A row
 * with lse = -inf is empty, and its out is not read. */
struct row_merge {
    float was, is;
    float lse; /* of both, in log2 units */
};

FFA_DEVICE row_merge merge_row(float old_lse, float new_lse)
{
    const float top = fmaxf(old_lse, new_lse);
    if (top == neg_inf())
        return row_merge{ 0.0f, 0.0f, top };
    const float was = ex2_approx(old_lse - top), is = ex2_approx(new_lse - top);
    const float inverse = 1.0f / (was + is);
    return row_merge{ was * inverse, is * inverse, top + lg2_approx(was + is) };
}

/* What storing needs of a tile. It is copied, as the tile's slot may be another tile's by then. */
struct tile_rows {
    int row_begin, row_count; /* of a part: among the results of parts */
    int first;                /* the thread's first row, counted in the tile */
    int head, flags;
};

/* Where one of the thread's two rows goes. */
struct row_place {
    int token, head; /* of a part: its row among the results of parts */
    bool is_mine;    /* inside the tile */
    bool is_part;
};

FFA_DEVICE float *lse_of(const attention_forward_args &a, const row_place &at)
{
    if (spec::split && at.is_part)
        return a.part_lse + (long long)at.token * a.call_heads_q + at.head;
    return a.lse + (long long)at.token * a.lse_token_stride +
           (long long)at.head * a.lse_head_stride;
}

/* The fp32 row: what this call merges with, and what it leaves for the next stage or for
 * forward_combine. */
FFA_DEVICE float *partial_of(const attention_forward_args &a, const row_place &at)
{
    return a.partial + (long long)at.token * a.partial_token_stride +
           (long long)at.head * a.partial_head_stride;
}

/* The thread's row r: O becomes the row of out, with the sinks and what was there before. Returns
 * the natural lse. */
FFA_DEVICE float row_finish(const attention_forward_args &a, float (&o)[o_regs],
                            const softmax_state &st, int r, const row_place &at, int tile_flags,
                            int quad)
{
    float shift = st.shift[r], sum = st.sum[r], keep = 1.0f, was = 0.0f;
    bool merges = false;

    if (spec::out_fp32)
        merges = a.flags & FORWARD_ACCUMULATE;
    else if (spec::staged)
        merges = tile_flags & PLAN_TILE_MERGES;
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    /* Sinks are added by the first stage, and by forward_combine where a tile is split. */
    if ((!spec::staged || !merges) && (!spec::split || !at.is_part))
        keep = add_sinks(a, at.head, shift, sum);
    const bool is_empty = sum == 0.0f;
    float lse = is_empty ? neg_inf() : shift + lg2_approx(sum);
    float scale = keep / sum;

    if (has_partial) {
        const float old = merges && at.is_mine ? *lse_of(a, at) * log2e : neg_inf();
        const row_merge merge = merge_row(old, lse);
        scale *= merge.is;
        was = merge.was;
        lse = merge.lse;
    }
#pragma unroll
    for (int j = 0; j < head_dim_v / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e)
            o[j * 4 + r * 2 + e] = is_empty ? 0.0f : o[j * 4 + r * 2 + e] * scale;
    if (has_partial && was != 0.0f) {
        const float *row = partial_of(a, at) + quad * 2;
#pragma unroll
        for (int j = 0; j < head_dim_v / 8; ++j)
            if (j * 8 < a.head_dim_v) {
                const float2 value = ld_global_v2(row + j * 8);
                o[j * 4 + r * 2] = fmaf(was, value.x, o[j * 4 + r * 2]);
                o[j * 4 + r * 2 + 1] = fmaf(was, value.y, o[j * 4 + r * 2 + 1]);
            }
    }
    return lse * ln2;
}

FFA_DEVICE void row_store_fp32(const attention_forward_args &a, const float (&o)[o_regs], int r,
                               const row_place &at, int quad)
{
    float *row = partial_of(a, at) + quad * 2;

    if (at.is_mine)
#pragma unroll
        for (int j = 0; j < head_dim_v / 8; ++j)
            if (j * 8 < a.head_dim_v)
                *(float2 *)(row + j * 8) = make_float2(o[j * 4 + r * 2], o[j * 4 + r * 2 + 1]);
}

/* The four threads of a row exchange registers, so that each stores 16 bytes of 8 neighbouring
 * columns. */
FFA_DEVICE void row_store(const attention_forward_args &a, const float (&o)[o_regs], int r,
                          const row_place &at, int quad)
{
    const bool is_odd = quad & 1, is_high = quad & 2;
    uint16_t *row = (uint16_t *)a.out + (long long)at.token * a.out_token_stride +
                    (long long)at.head * a.out_head_stride + quad * 8;
#pragma unroll
    for (int g = 0; g < head_dim_v / 32; ++g) {
        uint32_t x[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int i = (g * 4 + j) * 4 + r * 2;
            x[j] = pack_half2<spec::dtype>(o[i], o[i + 1]);
        }
        const uint32_t r0 = __shfl_xor_sync(0xffffffffu, is_odd ? x[0] : x[1], 1);
        const uint32_t r1 = __shfl_xor_sync(0xffffffffu, is_odd ? x[2] : x[3], 1);
        const uint32_t y0 = is_odd ? r0 : x[0], y1 = is_odd ? x[1] : r0;
        const uint32_t y2 = is_odd ? r1 : x[2], y3 = is_odd ? x[3] : r1;
        const uint32_t z0 = __shfl_xor_sync(0xffffffffu, is_high ? y0 : y2, 2);
        const uint32_t z1 = __shfl_xor_sync(0xffffffffu, is_high ? y1 : y3, 2);
        if (at.is_mine && g * 32 + quad * 8 < a.head_dim_v)
            st_global_v4(row + g * 32, is_high ? z0 : y0, is_high ? z1 : y1, is_high ? y2 : z0,
                         is_high ? y3 : z1);
    }
}

/* Raises a head's largest logit. The host has set all bits of the array: a NaN, which both integer
 * orders below put under every number. */
FFA_DEVICE void raise_top(const attention_forward_args &a, int head, float top)
{
    top = top * scores_scale(a) * ln2 + 0.0f; /* + 0: no -0 */
    if (top >= 0.0f)
        atomicMax((int *)a.max_logits + head, __float_as_int(top));
    else
        atomicMin((unsigned *)a.max_logits + head, __float_as_uint(top));
}

/* The rows of a warp are of one head. Packed rows are each of its own head. */
FFA_DEVICE void store_tops(const attention_forward_args &a, const softmax_state &st,
                           const row_place (&at)[2], int lane)
{
    float top[2];

#pragma unroll
    for (int r = 0; r < 2; ++r) {
        top[r] = at[r].is_mine ? st.top[r] : neg_inf();
        top[r] = fmaxf(top[r], __shfl_xor_sync(0xffffffffu, top[r], 1));
        top[r] = fmaxf(top[r], __shfl_xor_sync(0xffffffffu, top[r], 2));
        if (spec::packed && at[r].is_mine && lane % 4 == 0)
            raise_top(a, at[r].head, top[r]);
    }
    if (!spec::packed) {
        float all = fmaxf(top[0], top[1]);
#pragma unroll
        for (int lanes = 4; lanes < 32; lanes *= 2)
            all = fmaxf(all, __shfl_xor_sync(0xffffffffu, all, lanes));
        if (lane == 0)
            raise_top(a, at[0].head, all);
    }
}

/* Writes the thread's two rows of out and lse. */
FFA_DEVICE void store_rows(const attention_forward_args &a, float (&o)[o_regs],
                           const softmax_state &st, const tile_rows &rows, int lane)
{
    const int quad = lane % 4;
    row_place at[2];
    float lse[2];

#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int row = rows.first + 8 * r, query = query_row(a, row);
        at[r] = row_place{ rows.row_begin + query,
                           spec::packed ? rows.head * a.pack + row - query * a.pack : rows.head,
                           row < rows.row_count * pack_of(a),
                           spec::split && rows.flags & PLAN_TILE_PART };
        lse[r] = row_finish(a, o, st, r, at[r], rows.flags, quad);
    }
    if (has_partial)
        __syncwarp(); /* the row's four threads have read its lse before one writes it */
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        if (spec::out_fp32 || (spec::staged && rows.flags & PLAN_TILE_CONTINUES) ||
            (spec::split && rows.flags & PLAN_TILE_PART))
            row_store_fp32(a, o, r, at[r], quad);
        else
            row_store(a, o, r, at[r], quad);
        if (at[r].is_mine && quad == 0)
            *lse_of(a, at[r]) = lse[r];
    }
    if (spec::max_logits)
        store_tops(a, st, at, lane);
}

}

#endif
