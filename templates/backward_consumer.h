/* SPDX-License-Identifier: Apache-2.0
 *
 * attention_backward: what the main loops of all consumers, and of the warpgroup of dQ, share: the
 * headers they are made of, and how a tile and the loop end. (The loops: attention_backward.cu; of
 * specialised consumers backward_specialised.h.)
 */
#ifndef FFA_BACKWARD_CONSUMER_H
#define FFA_BACKWARD_CONSUMER_H

#include "backward_arrivals.h"
#include "backward_dq.h"
#include "backward_gradients.h"
#include "backward_products.h"
#include "backward_stores.h"

namespace {

FFA_DEVICE bool is_warp_leader()
{
    return threadIdx.x % 32 == 0;
}

/* The warp has read the record. */
FFA_DEVICE void tile_release(const barriers &bars, const ring<tile_slots> &at)
{
    __syncwarp();
    if (is_warp_leader())
        mbarrier_arrive(bars.tile_empty(at.slot));
}

FFA_DEVICE void warp_finish(const barriers &bars)
{
    if (spec::debug && is_warp_leader())
        watch_finished(bars);
}

}

#endif
