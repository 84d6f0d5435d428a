/* SPDX-License-Identifier: Apache-2.0
 *
 * attention_backward, clusters of two: two blocks work on 64 keys each of the same tile and walk
 * the same blocks of query rows. Each computes half the columns of dQ over the keys of both.
 */
#ifndef FFA_BACKWARD_CLUSTER_H
#define FFA_BACKWARD_CLUSTER_H

#include "backward_layout.h"

namespace {

/* The panel of dQ that warpgroup w of this block works on. Of three panels, the first warpgroups
 * share the middle one. */
FFA_DEVICE int cluster_panel(int w)
{
    const int rank = (int)cluster_rank();

    return panels == 4 ? 2 * rank + w : w == 0 ? 1 : 2 * rank;
}

/* The first column of that panel that is this warpgroup's. */
FFA_DEVICE int cluster_column(int w)
{
    return panels == 3 && w == 0 ? (int)cluster_rank() * p_columns : 0;
}

/* From the block's first key to the other block's. */
FFA_DEVICE int keys_to_other()
{
    return cluster_rank() == 0 ? block_n : -block_n;
}

/* The warp has read what the producers of both blocks may overwrite. */
FFA_DEVICE void release(uint32_t bar)
{
    mbarrier_arrive(bar);
    if (cluster > 1)
        mbarrier_arrive_at(bar, cluster_rank() ^ 1);
}

}

#endif
