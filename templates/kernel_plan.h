/* SPDX-License-Identifier: Apache-2.0
 *
 * How kernels of both passes read a plan's image (tile_plan.h).
 *
 * The scheduler reads the header once and makes the indices of each tile's record count from the
 * begin of the image. So whoever has the record finds sweeps and bands by the image's address
 * alone.
 */
#ifndef FFA_KERNEL_PLAN_H
#define FFA_KERNEL_PLAN_H

#include "ffa_device.h"
#include "tile_plan.h"

/* The record at an index that counts from the begin of the image. */
template <typename record>
FFA_DEVICE const record &plan_record(const plan_header *image, long long index)
{
    static_assert(sizeof(record) == PLAN_RECORD_BYTES, "records of one size");
    return reinterpret_cast<const record *>(image)[index];
}

/* A tile of a pass, with indices that count from the begin of the image. */
FFA_DEVICE plan_tile plan_tile_read(const plan_header *image, const plan_header_pass &pass,
                                    int index)
{
    plan_tile tile = plan_record<plan_tile>(image, (long long)pass.tiles_at + index);

    tile.sweep_begin += pass.sweeps_at;
    tile.band_begin += pass.bands_at;
    return tile;
}

#endif
