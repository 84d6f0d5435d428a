/* SPDX-License-Identifier: Apache-2.0
 *
 * attention_forward: which query row and head a row of a tile is.
 *
 * With packed heads, row i of a tile is query row i / pack and head i % pack of the kv head's query
 * heads. The tile's keys then serve all of them, and its rows attend nearly the same keys.
 */
#ifndef FFA_FORWARD_ROWS_H
#define FFA_FORWARD_ROWS_H

#include "forward_layout.h"

namespace {

/* Rows of a tile for each query row of the plan. */
FFA_DEVICE int pack_of(const attention_forward_args &a)
{
    return spec::packed ? a.pack : 1;
}

/* The query row of a row of the tile, counted from the tile's first. It multiplies, because a
 * division is slow. */
FFA_DEVICE int query_row(const attention_forward_args &a, int row)
{
    return spec::packed ? row * a.pack_inverse >> 16 : row;
}

/* Rows of a tile that a box of Q fills. */
FFA_DEVICE int pack_rows(const attention_forward_args &a)
{
    return query_row(a, tile_m) * a.pack;
}

/* The first of a consumer thread's two rows in the tile. */
FFA_DEVICE int tile_row()
{
    const int thread = thread_index() - 128;

    return thread / 32 * 16 + thread % 32 / 4;
}

}

#endif
