/* SPDX-License-Identifier: Apache-2.0
 *
 * The device image of a plan: a header and the records of both passes in one buffer. Kernels find
 * the records by the header; on the host this is the one place that knows in which order they lie.
 *
 *   header     counts and offsets of the rest (struct plan_header)
 *   forward    splits, at the same place in all images: it is in a launch's arguments
 *   forward    tiles, sweeps, bands
 *   backward   tiles, sweeps, bands
 *   backward   tickets
 *
 * Behind its header the image has the records of tile_plan.h byte for byte as the host has them. Of
 * a backward plan with several lists and keys that arrive in stages, the tiles stand in another
 * order: group by group (struct tile_stages), in each list by list, so that work on a late stage of
 * one list does not come before work on early keys of the next. Tiles of a list keep their order.
 */
#ifndef FFA_TILE_PLAN_IMAGE_H
#define FFA_TILE_PLAN_IMAGE_H

#include "tile/tile.h"

/* Where the arrays of one pass begin, in bytes from the begin of the image. */
struct plan_image_pass {
    int64_t tiles_at, sweeps_at, bands_at;
};

struct plan_image {
    struct plan_image_pass forward, backward;
    int64_t splits_at;  /* of the forward pass */
    int64_t tickets_at; /* of the backward pass */
    int64_t bytes;      /* a multiple of 8: the header, at the least */
};

/* The layout for these two plans. A plan of a pass that is not planned is zero. */
struct plan_image plan_image_layout(const struct tile_plan *forward,
                                    const struct tile_plan *backward);
/* That the header's numbers hold the layout; FFA_UNSUPPORTED otherwise. */
ffa_status plan_image_check(const struct plan_image *image, ffa_error *err);
/* Write the header and the records of the plans that the layout was made for. to: [bytes]. */
void plan_image_write(const struct plan_image *image, void *to, const struct tile_plan *forward,
                      const struct tile_plan *backward);

/* The arrays in an image that begins at `at`, in host or device memory. Where the plan has none of
 * the records, the address is inside the image or just behind it. */
static inline struct plan_tile *plan_image_tiles(const struct plan_image_pass *pass, void *at)
{
    return (struct plan_tile *)(void *)((unsigned char *)at + pass->tiles_at);
}

static inline struct plan_sweep *plan_image_sweeps(const struct plan_image_pass *pass, void *at)
{
    return (struct plan_sweep *)(void *)((unsigned char *)at + pass->sweeps_at);
}

static inline struct plan_band *plan_image_bands(const struct plan_image_pass *pass, void *at)
{
    return (struct plan_band *)(void *)((unsigned char *)at + pass->bands_at);
}

static inline struct plan_split *plan_image_splits(const struct plan_image *image, void *at)
{
    return (struct plan_split *)(void *)((unsigned char *)at + image->splits_at);
}

static inline struct plan_ticket *plan_image_tickets(const struct plan_image *image, void *at)
{
    return (struct plan_ticket *)(void *)((unsigned char *)at + image->tickets_at);
}

#endif
