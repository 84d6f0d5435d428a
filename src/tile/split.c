/* SPDX-License-Identifier: Apache-2.0
 *
 * A part takes a run of the tile's blocks, counted over its sweeps. Sweeps are cut between blocks;
 * bands stay as they are, since they are absolute and shared by all parts.
 */
#include "tile/split.h"

#include "tile/sweep.h"

#include <stdlib.h>

enum { PARTS_MAX = 1024 };

int64_t tile_split_parts(const struct plan_tile *tile, int64_t most)
{
    const int64_t parts = ((int64_t)tile->block_count + most - 1) / most;

    return parts < 1 ? 1 : parts > PARTS_MAX ? PARTS_MAX : parts;
}

/* ---- building ---- */

struct part {
    struct plan_tile tile;
    int32_t part_row;
    int32_t order; /* among the parts and tiles of the list, before sorting */
};

struct split {
    struct tile_plan *plan;
    struct part *parts;
    int64_t part_count, part_capacity;
    int64_t sweep_capacity, split_capacity;
};

/* Append the sweeps of blocks [begin, end) of the tile, and the part of them. */
static ffa_status add_part(struct split *s, const struct plan_tile *tile, int64_t begin,
                           int64_t end, int32_t part_row, ffa_error *err)
{
    struct tile_plan *plan = s->plan;
    struct plan_tile part = *tile;
    int64_t first = 0;

    part.sweep_begin = (int32_t)plan->sweep_count;
    part.sweep_count = 0;
    part.block_count = (int32_t)(end - begin);
    part.flags |= PLAN_TILE_PART;
    for (int32_t i = 0; i < tile->sweep_count; i++) {
        struct plan_sweep sweep = plan->sweeps[tile->sweep_begin + i];
        const int64_t blocks = sweep_blocks(sweep.begin, sweep.end, plan->tile_n, false);
        const int64_t from = begin > first ? begin - first : 0;
        const int64_t to = end - first < blocks ? end - first : blocks;

        first += blocks;
        if (from >= to)
            continue;
        if (to < blocks)
            sweep.end = (int32_t)(sweep.begin + to * plan->tile_n);
        sweep.begin = (int32_t)(sweep.begin + from * plan->tile_n);
        if (plan->sweep_count == INT32_MAX ||
            !mem_grow((void **)&plan->sweeps, &s->sweep_capacity, plan->sweep_count + 1,
                      sizeof *plan->sweeps))
            return error_nomem(err, "the parts of tiles");
        plan->sweeps[plan->sweep_count++] = sweep;
        part.sweep_count++;
    }
    if (!mem_grow((void **)&s->parts, &s->part_capacity, s->part_count + 1, sizeof *s->parts))
        return error_nomem(err, "the parts of tiles");
    s->parts[s->part_count] = (struct part){ part, part_row, (int32_t)s->part_count };
    s->part_count++;
    return FFA_OK;
}

static ffa_status split_tile(struct split *s, const struct plan_tile *tile, int64_t parts,
                             ffa_error *err)
{
    struct tile_plan *plan = s->plan;
    const int64_t part_row = plan->part_row_count;
    ffa_status rc = FFA_OK;

    if (part_row + parts * tile->count > INT32_MAX)
        return error_fail(err, FFA_UNSUPPORTED, 0, "the parts of tiles have more than 2^31 rows");
    for (int64_t p = 0; p < parts; p++)
        FFA_TRY(add_part(s, tile, p * tile->block_count / parts,
                         (p + 1) * tile->block_count / parts, (int32_t)(part_row + p * tile->count),
                         err));
    if (!mem_grow((void **)&plan->splits, &s->split_capacity, plan->split_count + tile->count,
                  sizeof *plan->splits)) {
        rc = error_nomem(err, "the parts of tiles");
        goto out;
    }
    for (int32_t r = 0; r < tile->count; r++)
        plan->splits[plan->split_count++] = (struct plan_split){ .token = tile->begin + r,
                                                                 .part_row = (int32_t)part_row + r,
                                                                 .parts = (int32_t)parts,
                                                                 .part_step = tile->count,
                                                                 .list = tile->list };
    plan->part_row_count += parts * tile->count;
out:
    return rc;
}

static int by_work(const void *a, const void *b)
{
    const struct part *x = a, *y = b;

    if (x->tile.list != y->tile.list)
        return x->tile.list < y->tile.list ? -1 : 1;
    if (x->tile.block_count != y->tile.block_count)
        return x->tile.block_count > y->tile.block_count ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

static ffa_status take_parts(struct split *s, ffa_error *err)
{
    struct tile_plan *plan = s->plan;
    struct plan_tile *tiles = mem_array((size_t)s->part_count, sizeof *tiles);
    int32_t *rows = mem_array((size_t)s->part_count, sizeof *rows);

    if (!tiles || !rows) {
        mem_free(tiles);
        mem_free(rows);
        return error_nomem(err, "the parts of tiles");
    }
    qsort(s->parts, (size_t)s->part_count, sizeof *s->parts, by_work);
    for (int32_t l = 0; l <= plan->list_count; l++)
        plan->list_begin[l] = 0;
    for (int64_t i = 0; i < s->part_count; i++) {
        tiles[i] = s->parts[i].tile;
        rows[i] = s->parts[i].part_row;
        plan->list_begin[tiles[i].list + 1] = (int32_t)(i + 1);
    }
    mem_free(plan->tiles);
    plan->tiles = tiles;
    plan->part_rows = rows;
    plan->tile_count = s->part_count;
    return FFA_OK;
}

ffa_status tile_split(struct tile_plan *plan, int64_t most, ffa_error *err)
{
    struct split s = { .plan = plan, .sweep_capacity = plan->sweep_count };
    ffa_status rc = FFA_OK;

    assert(most >= 1 && !plan->part_rows);
    for (int64_t t = 0; t < plan->tile_count; t++) {
        const struct plan_tile tile = plan->tiles[t];
        const int64_t parts = tile_split_parts(&tile, most);

        if (parts > 1) {
            FFA_TRY(split_tile(&s, &tile, parts, err));
            continue;
        }
        if (!mem_grow((void **)&s.parts, &s.part_capacity, s.part_count + 1, sizeof *s.parts)) {
            rc = error_nomem(err, "the parts of tiles");
            goto out;
        }
        s.parts[s.part_count] = (struct part){ tile, 0, (int32_t)s.part_count };
        s.part_count++;
    }
    if (s.part_count > INT32_MAX) {
        rc = error_fail(err, FFA_INVALID, 0, "plan has more than %d tiles", INT32_MAX);
        goto out;
    }
    rc = take_parts(&s, err);
out:
    mem_free(s.parts);
    return rc;
}
