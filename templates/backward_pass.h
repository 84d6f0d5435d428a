/* SPDX-License-Identifier: Apache-2.0
 *
 * What the passes before and after attention_backward share: both go over rows of heads, 16 bytes
 * of a 16-bit tensor a thread, four rows at a time so that enough loads are in flight.
 */
#ifndef FFA_BACKWARD_PASS_H
#define FFA_BACKWARD_PASS_H

/* One block fills an SM: with so much shared memory asked for, no second one fits beside it, and
 * the SMs that a launch leaves free are free. */
enum { BACKWARD_PASS_THREADS = 512, BACKWARD_PASS_SHARED_BYTES = 120 * 1024 };

#ifdef __CUDACC__

namespace pass {

constexpr int rows_in_flight = 4;

/* The rows of one head that a warp takes at a time. Where head_dim is no power of two, the last
 * lanes of a row have nothing. */
template <int head_dim> struct shape {
    static constexpr int lanes = head_dim <= 64 ? 8 : head_dim <= 128 ? 16 : 32; /* of a row */
    static constexpr int rows = 32 / lanes * rows_in_flight;
    static_assert(head_dim <= 8 * lanes, "a warp holds whole rows");
};

/* Item -> (rows from `row` on, head): heads innermost, as tokens are contiguous in most layouts. */
struct item {
    int row, head;
};

FFA_DEVICE item item_find(long long index, int heads, int rows)
{
    return item{ (int)(index / heads) * rows, (int)(index % heads) };
}

FFA_DEVICE long long item_count(int tokens, int heads, int rows)
{
    return (long long)((tokens + rows - 1) / rows) * heads;
}

FFA_DEVICE int warp_index()
{
    return (int)(blockIdx.x * (BACKWARD_PASS_THREADS / 32) + threadIdx.x / 32);
}

FFA_DEVICE int warp_count()
{
    return (int)gridDim.x * (BACKWARD_PASS_THREADS / 32);
}

}

#endif
#endif
