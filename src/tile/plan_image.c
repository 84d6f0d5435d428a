/* SPDX-License-Identifier: Apache-2.0
 *
 * The layout of a plan's device image, and its bytes. Arrays follow one another without gaps:
 * records have 32 bytes, tickets 8 and stand last, so that every record is aligned to its size as
 * long as the buffer is.
 */
#include "tile/plan_image.h"

/* Where the next array begins; *end: behind it. */
static int64_t place(int64_t *end, int64_t count, size_t record_bytes)
{
    const int64_t at = *end;

    *end += count * (int64_t)record_bytes;
    return at;
}

static struct plan_image_pass place_pass(int64_t *end, const struct tile_plan *plan)
{
    struct plan_image_pass pass;

    pass.tiles_at = place(end, plan->tile_count, sizeof *plan->tiles);
    pass.sweeps_at = place(end, plan->sweep_count, sizeof *plan->sweeps);
    pass.bands_at = place(end, plan->band_count, sizeof *plan->bands);
    return pass;
}

struct plan_image plan_image_layout(const struct tile_plan *forward,
                                    const struct tile_plan *backward)
{
    const int64_t least = sizeof(struct plan_tile);
    struct plan_image image;
    int64_t end = 0;

    image.forward = place_pass(&end, forward);
    image.backward = place_pass(&end, backward);
    image.splits_at = place(&end, forward->split_count, sizeof *forward->splits);
    image.tickets_at = place(&end, backward->ticket_count, sizeof *backward->tickets);
    image.bytes = end > least ? end : least;
    return image;
}

static void write(void *to, const void *records, int64_t count, size_t record_bytes)
{
    if (count)
        memcpy(to, records, (size_t)count * record_bytes);
}

static void write_pass(const struct plan_image_pass *pass, void *to, const struct tile_plan *plan)
{
    write(plan_image_tiles(pass, to), plan->tiles, plan->tile_count, sizeof *plan->tiles);
    write(plan_image_sweeps(pass, to), plan->sweeps, plan->sweep_count, sizeof *plan->sweeps);
    write(plan_image_bands(pass, to), plan->bands, plan->band_count, sizeof *plan->bands);
}

void plan_image_write(const struct plan_image *image, void *to, const struct tile_plan *forward,
                      const struct tile_plan *backward)
{
    write_pass(&image->forward, to, forward);
    write_pass(&image->backward, to, backward);
    write(plan_image_splits(image, to), forward->splits, forward->split_count,
          sizeof *forward->splits);
    write(plan_image_tickets(image, to), backward->tickets, backward->ticket_count,
          sizeof *backward->tickets);
}
