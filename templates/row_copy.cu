/* SPDX-License-Identifier: Apache-2.0
 *
 * row_copy: copies rows of up to four tensors, between any two layouts: K and V to the key window,
 * the rows of a rank out of a whole tensor (dispatch) and back, position ids. Or fills rows with
 * one element.
 *
 * The trick is bytes in flight: a thread loads one vector of each of ROW_DEPTH rows before it
 * stores any, and finds its place by one division for all of them. Vectors have 16 bytes where
 * addresses, strides and columns allow it; the host says how many. Rows of an item that are in
 * different runs, or past the end, go one by one.
 */
#include "ffa_device.h"
#include "row_copy.args.h"

namespace {

namespace spec {
#include "ffa_spec.h"

#include "row_copy.spec.def"
#undef FFA_SPEC
}

/* The run of a row. */
FFA_DEVICE row_run run_find(const row_copy_args &a, int row)
{
    if (!spec::runs)
        return row_run{ 0, 0, a.tensors[0].items.rows, 0 };
    const auto begin_of = [&](int i) { return a.runs[i].before; };
    return a.runs[row_record_find(a.run_count, row, begin_of)];
}

/* Copies `depth` vectors that are `from_step` bytes apart to where they are `to_step` apart. */
template <class Vector, int depth>
FFA_DEVICE void copy_vectors(const char *from, char *to, long long from_step, long long to_step)
{
    Vector vectors[depth];

#pragma unroll
    for (int i = 0; i < depth; ++i)
        vectors[i] = *(const Vector *)(from + i * from_step);
#pragma unroll
    for (int i = 0; i < depth; ++i)
        *(Vector *)(to + i * to_step) = vectors[i];
}

template <class Vector, int depth>
FFA_DEVICE void fill_vectors(char *to, long long to_step, unsigned long long fill)
{
#pragma unroll
    for (int i = 0; i < depth; ++i)
        *(Vector *)(to + i * to_step) = (Vector)fill;
}

template <int depth>
FFA_DEVICE void fill_rows(const row_copy_tensor &tensor, char *to, long long to_step)
{
    if (tensor.vector_bytes == 8)
        fill_vectors<unsigned long long, depth>(to, to_step, tensor.fill);
    else if (tensor.vector_bytes == 4)
        fill_vectors<uint32_t, depth>(to, to_step, tensor.fill);
    else if (tensor.vector_bytes == 2)
        fill_vectors<uint16_t, depth>(to, to_step, tensor.fill);
    else
        fill_vectors<unsigned char, depth>(to, to_step, tensor.fill);
}

/* A vector of each of `depth` rows of one run, from row `row` on. */
template <int depth>
FFA_DEVICE void copy_rows(const row_copy_tensor &tensor, const row_item &item, const row_run &run,
                          int row)
{
    const long long from_row = run.from + (row - run.before);
    const long long column = (long long)item.vector * tensor.vector_bytes;
    const char *from = (const char *)tensor.from + from_row * tensor.from_token_bytes +
                       item.head * tensor.from_head_bytes + column;
    char *to = (char *)tensor.to + (run.to + (row - run.before)) * tensor.to_token_bytes +
               item.head * tensor.to_head_bytes + column;
    const long long from_step = tensor.from_token_bytes << tensor.items.shift;
    const long long to_step = tensor.to_token_bytes << tensor.items.shift;

    if (tensor.is_fill)
        fill_rows<depth>(tensor, to, to_step);
    else if (!tensor.from)
#pragma unroll
        for (int i = 0; i < depth; ++i)
            *(long long *)(to + i * to_step) = from_row + (i << tensor.items.shift);
    else if (tensor.vector_bytes == 16)
        copy_vectors<uint4, depth>(from, to, from_step, to_step);
    else if (tensor.vector_bytes == 8)
        copy_vectors<uint2, depth>(from, to, from_step, to_step);
    else if (tensor.vector_bytes == 4)
        copy_vectors<uint32_t, depth>(from, to, from_step, to_step);
    else if (tensor.vector_bytes == 2)
        copy_vectors<uint16_t, depth>(from, to, from_step, to_step);
    else
        copy_vectors<unsigned char, depth>(from, to, from_step, to_step);
}

FFA_DEVICE void copy_item(const row_copy_args &a, const row_copy_tensor &tensor, long long index)
{
    const row_items &items = tensor.items;
    const row_item item = row_item_find(items, index);
    const int last = item.row + ((ROW_DEPTH - 1) << items.shift);

    if (item.row >= items.rows)
        return;
    const row_run run = run_find(a, item.row);
    if (last < items.rows && last - run.before < run.rows) {
        copy_rows<ROW_DEPTH>(tensor, item, run, item.row);
        return;
    }
#pragma unroll 1
    for (int row = item.row; row <= last && row < items.rows; row += 1 << items.shift)
        copy_rows<1>(tensor, item, run_find(a, row), row);
}

}

extern "C" __global__ void __launch_bounds__(ROW_THREADS, ROW_COPY_BLOCKS)
    row_copy(const __grid_constant__ row_copy_args a)
{
    int group = (int)blockIdx.x, begin = 0;

    for (int t = 0; t < a.count; ++t) {
        const row_copy_tensor &tensor = a.tensors[t];
        for (; group < tensor.items.group_end; group += (int)gridDim.x) {
            const long long index = (long long)(group - begin) * ROW_THREADS + threadIdx.x;
            if (index < tensor.items.count)
                copy_item(a, tensor, index);
        }
        begin = tensor.items.group_end;
    }
}
