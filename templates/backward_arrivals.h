/* SPDX-License-Identifier: Apache-2.0
 *
 * attention_backward: tiles whose keys arrive during the launch, and whose gradients other ranks
 * wait for. All keys of a tile are of one stage.
 */
#ifndef FFA_BACKWARD_ARRIVALS_H
#define FFA_BACKWARD_ARRIVALS_H

#include "backward_cluster.h"

namespace {

/* Waits until the keys of a tile are there. The scheduler does it before it hands the tile on, as
 * the producers have no registers for it. It remembers nothing: a flag is read again for each tile.
 */
FFA_DEVICE void tile_wait(const attention_backward_args &a, const barriers &bars, int block_begin)
{
    if constexpr (spec::arrivals) {
        const int stage = stage_find(a.arrivals, tile_begin(block_begin));

        if (stage > 0)
            stage_wait(bars, a.arrivals, stage, at_arrival);
    }
}

/* The warp has stored its part of dK or dV, or of both. */
FFA_DEVICE void tile_departs(const attention_backward_args &a, int block_begin)
{
    if constexpr (spec::arrivals)
        gradients_depart(a.arrivals, a.departures, tile_begin(block_begin));
}

}

#endif
