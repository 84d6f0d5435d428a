/* SPDX-License-Identifier: Apache-2.0
 *
 * attention_backward, clusters of two: two CTAs work on 64 keys each of the same tile (in a pair on
 * 128) and walk the same blocks of query rows. Each computes half the columns of dQ over the keys
 * of both. What each loads for the other, and of the other's K; which keys are whose. (dS for the
 * other CTA: backward_exchange.h, backward_pairs.h. The next work item for both:
 * backward_schedule.h.)
 */
#ifndef FFA_BACKWARD_CLUSTER_H
#define FFA_BACKWARD_CLUSTER_H

#include "backward_pieces.h"

namespace {

/* From this CTA's first key to the other's. */
FFA_DEVICE int keys_to_other()
{
    return cluster_rank() == 0 ? cta_keys : -cta_keys;
}

/* The warp has read what the producers of both CTAs may overwrite. */
FFA_DEVICE void release(uint32_t bar)
{
    mbarrier_arrive(bar);
    if (cluster > 1)
        mbarrier_arrive_at(bar, cluster_rank() ^ 1);
}

/* The first key of a tile, of both CTAs. block_begin: this CTA's. */
FFA_DEVICE int tile_begin(int block_begin)
{
    return cluster > 1 ? block_begin - (int)cluster_rank() * cta_keys : block_begin;
}

/* A tile's keys become this CTA's. The second CTA may have none. */
FFA_DEVICE void keys_divide(plan_tile &tile)
{
    const int before = (int)cluster_rank() * cta_keys;

    tile.begin += before;
    tile.count = min(max(tile.count - before, 0), cta_keys);
}

/* A block of rows: each CTA fetches every other panel for both. The slot is free in both when this
 * CTA's q_empty (dout_empty) has the arrivals of the consumer warps of both. */
template <int count>
FFA_DEVICE void load_rows_for_both(const void *map, uint32_t dst, uint32_t bar, int head, int row)
{
    for (int panel = (int)cluster_rank(); panel < count; panel += cluster)
        cp_async_bulk_tensor_3d_to(dst + panel * q_panel_bytes, map, bar, panel * 64, head, row,
                                   (1 << cluster) - 1);
}

/* The panels of the other CTA's K that this CTA's pieces of dQ need. */
FFA_DEVICE void load_other_k(const attention_backward_args &a, const shared_view &smem,
                             const backward_tile_slot *slot)
{
    for (int w = 0; w < kx_panels; ++w)
        cp_async_bulk_tensor_3d(smem.kx() + w * kv_panel_bytes, &a.k, smem.bars().k_full(),
                                piece_panel(w) * 64, slot->kv_head,
                                slot->tile.begin + keys_to_other());
}

}

#endif
