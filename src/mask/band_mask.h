/* SPDX-License-Identifier: Apache-2.0
 *
 * A mask made of bands, as those have it who plan a part of a mask: it has the normal forms that
 * tiles are made of, and no slices.
 */
#ifndef FFA_MASK_BAND_MASK_H
#define FFA_MASK_BAND_MASK_H

#include "mask/band.h"
#include "mask/mask.h"

/* The normal form of bands, which may overlap. For normal_finish.
 * Fails with FFA_NOMEM, FFA_UNSUPPORTED (as normal_build). */
ffa_status bands_normal(struct normal *out, const struct bands *bands, ffa_error *err);

/* The mask of one or more lists of bands inside the shape, either side of which may be 0. In the
 * caller's memory, for band_mask_finish whether or not it succeeds. lists [list_count]: read only
 * here. Fails as bands_normal does. */
ffa_status band_mask_init(ffa_mask *out, const ffa_mask_shape *shape, const struct bands *lists,
                          int32_t list_count, ffa_error *err);
void band_mask_finish(ffa_mask *mask);

#endif
