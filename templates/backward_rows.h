/* SPDX-License-Identifier: Apache-2.0
 *
 * What backward_prepare and backward_finish share. Both go over the rows of heads. A thread has 16
 * bytes of a row of a 16-bit tensor, and four rows at a time, so that enough loads are in flight.
 */
#ifndef FFA_BACKWARD_ROWS_H
#define FFA_BACKWARD_ROWS_H

/* One block fills an SM: with so much shared memory, no second one fits beside it. So SMs that a
 * launch is told to leave free stay free. */
enum { BACKWARD_PASS_THREADS = 512, BACKWARD_PASS_SHARED_BYTES = 120 * 1024 };

#ifdef __CUDACC__

namespace pass {

constexpr int rows_in_flight = 4;

/* The rows of one head that a warp handles at a time. Where head_dim is no power of two, the last
 * lanes of a row are idle. */
template <int head_dim> struct shape {
    static constexpr int lanes = head_dim <= 64 ? 8 : head_dim <= 128 ? 16 : 32; /* of a row */
    static constexpr int rows = 32 / lanes * rows_in_flight;
    static_assert(head_dim <= 8 * lanes, "a warp holds whole rows");
};

/* An item is some rows of one head. Heads are innermost, as the heads of a token are contiguous in
 * most layouts. */
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
