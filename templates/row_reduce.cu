/* SPDX-License-Identifier: Apache-2.0
 *
 * row_reduce: adds received rows to own ones, in fp32 and in the order of a table, and casts. So
 * every run gives the same bits. Without received rows it is a cast. Rows of no segment are not
 * written. A sum without own rows is that of the received ones.
 *
 *   sum   out = own + sum of received
 *   avg   the same, divided by 1 + the number of received rows
 *   lse   lse = log(e^own_lse + sum of e^received_lse),  out = sum of e^(lse_i - lse) out_i
 *   max   out = the largest of own and received; NaN counts as -inf
 *
 * The trick is that of row_copy: a thread has one vector of each of ROW_DEPTH rows in flight. They
 * are of one segment; rows of an item that are not, or past the end, go one by one.
 */
#include "ffa_device.h"
#include "ptx.h"
#include "row_reduce.args.h"

namespace {

namespace spec {
#include "ffa_spec.h"

#include "row_reduce.spec.def"
#undef FFA_SPEC
}

constexpr bool is_lse = spec::op == 3, is_max = spec::op == 4;
constexpr int input_bytes = spec::input == 3 ? 4 : 2;
constexpr int received = spec::received ? spec::received : spec::input;
constexpr int received_bytes = received == 3 ? 4 : 2;
static_assert(spec::received == 0 || (spec::input == 3 && spec::op == 1),
              "rows of another dtype than own ones are added to fp32");

/* ---- vectors of columns ---- */

template <int bytes> struct word;
template <> struct word<16> {
    using type = uint4;
};
template <> struct word<8> {
    using type = uint2;
};
template <> struct word<4> {
    using type = uint32_t;
};
template <> struct word<2> {
    using type = uint16_t;
};
template <int columns> using input_word = typename word<columns * input_bytes>::type;
template <int columns> using received_word = typename word<columns * received_bytes>::type;

/* Of fp32, the others of `dtype`. */
template <int dtype> FFA_DEVICE void unpack(float (&to)[4], const uint4 &x)
{
    to[0] = __uint_as_float(x.x);
    to[1] = __uint_as_float(x.y);
    to[2] = __uint_as_float(x.z);
    to[3] = __uint_as_float(x.w);
}

template <int dtype> FFA_DEVICE void unpack(float (&to)[4], const uint2 &x)
{
    const float2 low = unpack_half2<dtype>(x.x), high = unpack_half2<dtype>(x.y);

    to[0] = low.x;
    to[1] = low.y;
    to[2] = high.x;
    to[3] = high.y;
}

template <int dtype> FFA_DEVICE void unpack(float (&to)[8], const uint4 &x)
{
    const uint32_t words[4] = { x.x, x.y, x.z, x.w };

#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 pair = unpack_half2<dtype>(words[i]);
        to[2 * i] = pair.x;
        to[2 * i + 1] = pair.y;
    }
}

template <int dtype> FFA_DEVICE void unpack(float (&to)[1], uint32_t x)
{
    to[0] = __uint_as_float(x);
}

template <int dtype> FFA_DEVICE void unpack(float (&to)[1], uint16_t x)
{
    to[0] = unpack_half2<dtype>(x).x;
}

/* unpack_half2 has no fp32. */
constexpr int half_of(int dtype)
{
    return dtype == 3 ? 1 : dtype;
}

/* Stores columns of a row, from element `at` of out. */
FFA_DEVICE void store(void *out, long long at, const float (&x)[1])
{
    if (spec::output == 3)
        ((float *)out)[at] = x[0];
    else
        ((uint16_t *)out)[at] = (uint16_t)pack_half2<half_of(spec::output)>(x[0], 0.0f);
}

FFA_DEVICE void store(void *out, long long at, const float (&x)[4])
{
    constexpr int dtype = half_of(spec::output);

    if (spec::output == 3)
        *(float4 *)((float *)out + at) = make_float4(x[0], x[1], x[2], x[3]);
    else
        *(uint64_t *)((uint16_t *)out + at) =
            pack_half2<dtype>(x[0], x[1]) | (uint64_t)pack_half2<dtype>(x[2], x[3]) << 32;
}

FFA_DEVICE void store(void *out, long long at, const float (&x)[8])
{
    constexpr int dtype = half_of(spec::output);

    if (spec::output == 3) {
        *(float4 *)((float *)out + at) = make_float4(x[0], x[1], x[2], x[3]);
        *(float4 *)((float *)out + at + 4) = make_float4(x[4], x[5], x[6], x[7]);
    } else {
        *(uint4 *)((uint16_t *)out + at) =
            make_uint4(pack_half2<dtype>(x[0], x[1]), pack_half2<dtype>(x[2], x[3]),
                       pack_half2<dtype>(x[4], x[5]), pack_half2<dtype>(x[6], x[7]));
    }
}

/* ---- received rows ---- */

/* The segment of a row. */
FFA_DEVICE row_segment segment_find(const row_reduce_args &a, const row_items &items, int row)
{
    if (!a.segments)
        return row_segment{ 0, items.rows, 0, 0 };
    const auto begin_of = [&](int i) { return a.segments[i].row; };
    return a.segments[row_record_find(a.segment_count, row, begin_of)];
}

/* A vector of each of the rows of an item, or of one of them. Element offsets from a tensor's
 * begin, and how far its rows are apart. */
struct place {
    long long at, step;
};

FFA_DEVICE place place_of(const row_item &item, long long row, int shift, long long token_stride,
                          long long head_stride, int column)
{
    return place{ row * token_stride + item.head * head_stride + column, token_stride << shift };
}

template <int element_bytes, typename type, int depth>
FFA_DEVICE void load(type (&words)[depth], const void *from, const place &at)
{
#pragma unroll
    for (int i = 0; i < depth; ++i)
        words[i] = *(const type *)((const char *)from + (at.at + i * at.step) * element_bytes);
}

/* ---- lse ---- */

/* The shift of each row: its largest lse in log2 units, or 0 where there are no keys. */
template <int depth>
FFA_DEVICE void find_shifts(float (&shifts)[depth], const row_reduce_args &a, const place &own,
                            const row_item &item, const row_segment &segment, int row, int shift)
{
#pragma unroll
    for (int i = 0; i < depth; ++i)
        shifts[i] = a.lse.own[own.at + i * own.step];
#pragma unroll 1
    for (int s = 0; s < segment.count; ++s) {
        const place at = place_of(item, a.sources[segment.first + s] + (row - segment.row), shift,
                                  a.lse.received_token_stride, a.lse.received_head_stride, 0);
#pragma unroll
        for (int i = 0; i < depth; ++i)
            shifts[i] = fmaxf(shifts[i], a.lse.received[at.at + i * at.step]);
    }
#pragma unroll
    for (int i = 0; i < depth; ++i)
        shifts[i] = shifts[i] == neg_inf() ? 0.0f : shifts[i] * log2e;
}

FFA_DEVICE float weight_of(float lse, float shift)
{
    return ex2_approx(fmaf(lse, log2e, -shift));
}

/* ---- sums ---- */

/* Adds a vector of each row, or takes the larger ones. A part without keys, whose weight is 0, may
 * hold anything. */
template <int dtype, int columns, typename type, int depth>
FFA_DEVICE void add(float (&sums)[depth][columns], const type (&words)[depth],
                    const float (&weights)[depth])
{
#pragma unroll
    for (int i = 0; i < depth; ++i) {
        float more[columns];
        unpack<dtype>(more, words[i]);
#pragma unroll
        for (int c = 0; c < columns; ++c)
            if (is_max)
                sums[i][c] = fmaxf(sums[i][c], more[c]);
            else if (!is_lse)
                sums[i][c] += more[c];
            else if (weights[i] != 0.0f)
                sums[i][c] = fmaf(weights[i], more[c], sums[i][c]);
    }
}

/* A vector of each of `depth` rows of one segment, from row `row` on. */
template <int columns, int depth>
FFA_DEVICE void reduce_rows(const row_reduce_args &a, const row_reduce_tensor &tensor,
                            const row_item &item, const row_segment &segment, int row)
{
    const int column = item.vector * columns, shift = tensor.items.shift;
    const place own =
        place_of(item, row, shift, tensor.own_token_stride, tensor.own_head_stride, column);
    const place own_lse =
        place_of(item, row, shift, a.lse.own_token_stride, a.lse.own_head_stride, 0);
    input_word<columns> words[depth] = {};
    received_word<columns> more[depth];
    float sums[depth][columns];
    float shifts[depth] = {}, weights[depth] = {}, totals[depth] = {};

    if (tensor.own)
        load<input_bytes>(words, tensor.own, own);
    if (is_lse) {
        find_shifts<depth>(shifts, a, own_lse, item, segment, row, shift);
#pragma unroll
        for (int i = 0; i < depth; ++i) {
            totals[i] = weights[i] = weight_of(a.lse.own[own_lse.at + i * own_lse.step], shifts[i]);
#pragma unroll
            for (int c = 0; c < columns; ++c)
                sums[i][c] = 0.0f;
        }
        add<half_of(spec::input)>(sums, words, weights);
    } else {
#pragma unroll
        for (int i = 0; i < depth; ++i) {
            unpack<half_of(spec::input)>(sums[i], words[i]);
#pragma unroll
            for (int c = 0; c < columns; ++c)
                if (is_max)
                    sums[i][c] = fmaxf(sums[i][c], neg_inf());
        }
    }
#pragma unroll 1
    for (int s = 0; s < segment.count; ++s) {
        const long long source = a.sources[segment.first + s] + (row - segment.row);
        load<received_bytes>(more, tensor.received,
                             place_of(item, source, shift, tensor.received_token_stride,
                                      tensor.received_head_stride, column));
        if (is_lse) {
            const place lse = place_of(item, source, shift, a.lse.received_token_stride,
                                       a.lse.received_head_stride, 0);
#pragma unroll
            for (int i = 0; i < depth; ++i) {
                weights[i] = weight_of(a.lse.received[lse.at + i * lse.step], shifts[i]);
                totals[i] += weights[i];
            }
        }
        add<half_of(received)>(sums, more, weights);
    }

    const place out =
        place_of(item, row, shift, tensor.out_token_stride, tensor.out_head_stride, column);
    const place out_lse =
        place_of(item, row, shift, a.lse.out_token_stride, a.lse.out_head_stride, 0);
#pragma unroll
    for (int i = 0; i < depth; ++i) {
        const float scale = totals[i] == 0.0f ? 0.0f : 1.0f / totals[i];
#pragma unroll
        for (int c = 0; c < columns; ++c)
            if (is_lse)
                sums[i][c] *= scale;
            else if (spec::op == 2)
                sums[i][c] = sums[i][c] / (float)(1 + segment.count);
        store(tensor.out, out.at + i * out.step, sums[i]);
        if (is_lse && item.vector == 0)
            a.lse.out[out_lse.at + i * out_lse.step] =
                totals[i] == 0.0f ? neg_inf() : (shifts[i] + lg2_approx(totals[i])) * ln2;
    }
}

template <int columns>
FFA_DEVICE void reduce_item(const row_reduce_args &a, const row_reduce_tensor &tensor,
                            long long index)
{
    const row_items &items = tensor.items;
    const row_item item = row_item_find(items, index);
    const int last = item.row + ((ROW_DEPTH - 1) << items.shift);

    if (item.row >= items.rows)
        return;
    const row_segment segment = segment_find(a, items, item.row);
    if (last < items.rows && item.row >= segment.row && last - segment.row < segment.rows) {
        reduce_rows<columns, ROW_DEPTH>(a, tensor, item, segment, item.row);
        return;
    }
#pragma unroll 1
    for (int row = item.row; row <= last && row < items.rows; row += 1 << items.shift) {
        const row_segment one = segment_find(a, items, row);
        if (row >= one.row && row - one.row < one.rows)
            reduce_rows<columns, 1>(a, tensor, item, one, row);
    }
}

}

extern "C" __global__ void __launch_bounds__(ROW_THREADS, row_reduce_blocks(spec::input, spec::op))
    row_reduce(const __grid_constant__ row_reduce_args a)
{
    int group = (int)blockIdx.x, begin = 0;

    for (int t = 0; t < a.count; ++t) {
        const row_reduce_tensor &tensor = a.tensors[t];
        for (; group < tensor.items.group_end; group += (int)gridDim.x) {
            const long long index = (long long)(group - begin) * ROW_THREADS + threadIdx.x;
            if (index >= tensor.items.count)
                continue;
            if (tensor.columns == 1)
                reduce_item<1>(a, tensor, index);
            else
                reduce_item<16 / input_bytes>(a, tensor, index);
        }
        begin = tensor.items.group_end;
    }
}
