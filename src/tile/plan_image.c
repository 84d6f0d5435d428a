/* SPDX-License-Identifier: Apache-2.0
 *
 * The layout of a plan's device image, and its bytes. Behind the header arrays follow one another
 * without gaps: records have 32 bytes, tickets 8 and stand last, so that every record is aligned to
 * its size as long as the buffer is, and begins at a whole number of records.
 */
#include "tile/plan_image.h"

#include "tile/tile_stages.h"

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
    struct plan_image image;
    int64_t end = sizeof(struct plan_header);

    image.splits_at = place(&end, forward->split_count, sizeof *forward->splits);
    image.forward = place_pass(&end, forward);
    image.backward = place_pass(&end, backward);
    image.tickets_at = place(&end, backward->ticket_count, sizeof *backward->tickets);
    image.bytes = end;
    return image;
}

ffa_status plan_image_check(const struct plan_image *image, ffa_error *err)
{
    if (image->bytes / PLAN_RECORD_BYTES > INT32_MAX)
        return error_fail(err, FFA_UNSUPPORTED, 0,
                          "the plan's device image has %lld bytes, at most %lld are possible",
                          (long long)image->bytes, (long long)PLAN_RECORD_BYTES * INT32_MAX);
    return FFA_OK;
}

static struct plan_header_pass header_pass(const struct plan_image_pass *pass,
                                           const struct tile_plan *plan)
{
    return (struct plan_header_pass){ .tile_count = (int)plan->tile_count,
                                      .tiles_at = (int)(pass->tiles_at / PLAN_RECORD_BYTES),
                                      .sweeps_at = (int)(pass->sweeps_at / PLAN_RECORD_BYTES),
                                      .bands_at = (int)(pass->bands_at / PLAN_RECORD_BYTES) };
}

static int lockstep_of(const struct tile_plan *backward)
{
    if (backward->is_unlocked)
        return 0;
    switch (backward->lockstep) {
    case TILE_LOCKSTEP_DESCENDING:
        return PLAN_LOCKSTEP | PLAN_LOCKSTEP_DESCENDING;
    case TILE_LOCKSTEP_ASCENDING:
        return PLAN_LOCKSTEP;
    default:
        return 0;
    }
}

static void write(void *to, const void *records, int64_t count, size_t record_bytes)
{
    if (count)
        memcpy(to, records, (size_t)count * record_bytes);
}

/* The tiles of all lists, group by group. */
static void write_groups(struct plan_tile *to, const struct tile_plan *plan)
{
    for (int32_t group = 0; group <= plan->stages.count; group++)
        for (int64_t t = 0; t < plan->tile_count; t++)
            if (tile_group_of(&plan->stages, plan->tiles[t].begin) == group)
                write(to++, &plan->tiles[t], 1, sizeof *to);
}

static void write_pass(const struct plan_image_pass *pass, void *to, const struct tile_plan *plan)
{
    if (plan->axis == TILE_OWNS_KEYS && plan->stages.count && plan->list_count > 1)
        write_groups(plan_image_tiles(pass, to), plan);
    else
        write(plan_image_tiles(pass, to), plan->tiles, plan->tile_count, sizeof *plan->tiles);
    write(plan_image_sweeps(pass, to), plan->sweeps, plan->sweep_count, sizeof *plan->sweeps);
    write(plan_image_bands(pass, to), plan->bands, plan->band_count, sizeof *plan->bands);
}

void plan_image_write(const struct plan_image *image, void *to, const struct tile_plan *forward,
                      const struct tile_plan *backward)
{
    const struct plan_header header = {
        .forward = header_pass(&image->forward, forward),
        .backward = header_pass(&image->backward, backward),
        .tickets_at = (int)(image->tickets_at / PLAN_RECORD_BYTES),
        .lockstep = lockstep_of(backward),
    };

    write(to, &header, 1, sizeof header);
    write(plan_image_splits(image, to), forward->splits, forward->split_count,
          sizeof *forward->splits);
    write_pass(&image->forward, to, forward);
    write_pass(&image->backward, to, backward);
    write(plan_image_tickets(image, to), backward->tickets, backward->ticket_count,
          sizeof *backward->tickets);
}
