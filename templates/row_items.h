/* SPDX-License-Identifier: Apache-2.0
 *
 * How row_copy and row_reduce share out the rows of a launch's tensors, read by host (C17) and
 * device (C++17). An item is one vector (up to 16 bytes) of ROW_DEPTH rows: a thread loads all of
 * them before it stores the first. Items of a tensor are numbered by rows, then heads, then
 * vectors, so that the accesses of a warp are contiguous. A group is ROW_THREADS items, what a
 * block takes at a time; groups are numbered over all tensors of the launch.
 */
#ifndef FFA_ROW_ITEMS_H
#define FFA_ROW_ITEMS_H

enum {
    ROW_THREADS = 256,
    ROW_DEPTH = 4,
    ROW_SHIFT_MAX = 5,
};

struct row_items {
    long long count;
    int group_end; /* of this tensor; it begins where the tensor before ends */
    int rows;
    int heads;
    int vectors; /* of one head of a row; heads * vectors is below 2^31 */
    int shift;   /* an item's rows are 2^shift apart, so that narrow rows fill a warp's access */
    int pad_;
};

#ifdef __CUDACC__

struct row_item {
    int row, head, vector; /* row: the first of ROW_DEPTH */
};

FFA_DEVICE row_item row_item_find(const row_items &of, long long index)
{
    const unsigned width = (unsigned)of.heads * (unsigned)of.vectors;
    const unsigned long long rows = (unsigned long long)index / width;
    const unsigned within = (unsigned)((unsigned long long)index - rows * width);
    const unsigned head = of.heads == 1 ? 0 : within / (unsigned)of.vectors;
    const unsigned low = (unsigned)rows & ((1u << of.shift) - 1);

    return row_item{ (int)(((unsigned)(rows >> of.shift) * ROW_DEPTH << of.shift) + low), (int)head,
                     (int)(within - head * (unsigned)of.vectors) };
}

/* The last of `count` records that does not begin behind `row`, or record 0. Record i begins at
 * begin_of(i), ascending. */
template <typename function> FFA_DEVICE int row_record_find(int count, int row, function begin_of)
{
    int low = 0, high = count;

    while (high - low > 1) {
        const int middle = low + (high - low) / 2;
        if (begin_of(middle) <= row)
            low = middle;
        else
            high = middle;
    }
    return low;
}

#endif
#endif
