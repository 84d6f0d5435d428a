/* SPDX-License-Identifier: Apache-2.0
 *
 * tile_split: parts of the tiles that visit too many blocks. A part takes a run of the tile's
 * blocks, counted over its sweeps. Sweeps are cut between blocks. Bands are absolute: all parts of
 * a tile share its bands, which stay as they are.
 */
#include "tile/split.h"

#include "tile/sweep.h"

#include <stdlib.h>

int64_t tile_split_parts(int64_t blocks, int64_t most)
{
    const int64_t parts = blocks / most + (blocks % most > 0);

    return parts < 1 ? 1 : parts > TILE_PARTS_MAX ? TILE_PARTS_MAX : parts;
}

/* ---- building ---- */

/* A part, or a tile that stays whole. */
struct part {
    struct plan_tile tile;
    int32_t blocks;
    int32_t order; /* among the parts and tiles of the list, before sorting */
};

struct split {
    struct tile_plan *plan;
    struct part *parts;
    int64_t part_count, part_capacity;
    int64_t sweep_capacity, split_capacity;
};

static ffa_status keep_tile(struct split *s, const struct plan_tile *tile, int64_t blocks,
                            ffa_error *err)
{
    if (!mem_grow((void **)&s->parts, &s->part_capacity, s->part_count + 1, sizeof *s->parts))
        return error_nomem(err, "the parts of tiles");
    s->parts[s->part_count] = (struct part){ *tile, (int32_t)blocks, (int32_t)s->part_count };
    s->part_count++;
    return FFA_OK;
}

static struct plan_tile part_of(const struct plan_tile *tile, int32_t part_row)
{
    struct plan_tile part = *tile;

    part.part_row = part_row;
    part.flags |= PLAN_TILE_PART;
    return part;
}

/* Append the sweeps of blocks [begin, end) of the tile, and the part of them. */
static ffa_status add_part(struct split *s, const struct plan_tile *tile, int64_t begin,
                           int64_t end, int32_t part_row, ffa_error *err)
{
    struct tile_plan *plan = s->plan;
    struct plan_tile part = part_of(tile, part_row);
    int64_t first = 0;

    part.sweep_begin = (int32_t)plan->sweep_count;
    part.sweep_count = 0;
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
    return keep_tile(s, &part, end - begin, err);
}

static ffa_status rows_check(int64_t rows, ffa_error *err)
{
    if (rows > INT32_MAX)
        return error_fail(err, FFA_UNSUPPORTED, 0, "the parts of tiles have more than 2^31 rows");
    return FFA_OK;
}

static ffa_status split_tile(struct split *s, const struct plan_tile *tile, int64_t blocks,
                             int64_t parts, ffa_error *err)
{
    struct tile_plan *plan = s->plan;
    const int64_t part_row = plan->part_row_count;
    ffa_status rc = FFA_OK;

    FFA_TRY(rows_check(part_row + parts * tile->count, err));
    if (parts == 1) { /* its sweeps stay where they are */
        const struct plan_tile part = part_of(tile, (int32_t)part_row);

        FFA_TRY(keep_tile(s, &part, blocks, err));
    } else {
        for (int64_t p = 0; p < parts; p++)
            FFA_TRY(add_part(s, tile, p * blocks / parts, (p + 1) * blocks / parts,
                             (int32_t)(part_row + p * tile->count), err));
    }
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
    if (x->blocks != y->blocks)
        return x->blocks > y->blocks ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

static ffa_status take_parts(struct split *s, ffa_error *err)
{
    struct tile_plan *plan = s->plan;
    struct plan_tile *tiles = mem_array((size_t)s->part_count, sizeof *tiles);
    int32_t *block_counts = mem_array((size_t)s->part_count, sizeof *block_counts);

    if (!tiles || !block_counts) {
        mem_free(tiles);
        mem_free(block_counts);
        return error_nomem(err, "the parts of tiles");
    }
    qsort(s->parts, (size_t)s->part_count, sizeof *s->parts, by_work);
    for (int32_t l = 0; l <= plan->list_count; l++)
        plan->list_begin[l] = 0;
    for (int64_t i = 0; i < s->part_count; i++) {
        tiles[i] = s->parts[i].tile;
        block_counts[i] = s->parts[i].blocks;
        plan->list_begin[tiles[i].list + 1] = (int32_t)(i + 1);
    }
    mem_free(plan->tiles);
    mem_free(plan->block_counts);
    plan->tiles = tiles;
    plan->block_counts = block_counts;
    plan->tile_count = s->part_count;
    return FFA_OK;
}

/* parts_max 0: any number of parts; whole tiles stay as they are. */
static ffa_status split_tiles(struct tile_plan *plan, int64_t most, int32_t parts_max,
                              ffa_error *err)
{
    struct split s = { .plan = plan, .sweep_capacity = plan->sweep_count };
    ffa_status rc = FFA_OK;

    assert(most >= 1 && !plan->splits);
    for (int64_t t = 0; t < plan->tile_count; t++) {
        const int64_t blocks = plan->block_counts[t];
        int64_t parts = tile_split_parts(blocks, most);

        if (parts_max && parts > parts_max)
            parts = parts_max;
        if (parts > 1 || parts_max)
            FFA_TRY(split_tile(&s, &plan->tiles[t], blocks, parts, err));
        else
            FFA_TRY(keep_tile(&s, &plan->tiles[t], blocks, err));
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

ffa_status tile_split(struct tile_plan *plan, int64_t most, ffa_error *err)
{
    return split_tiles(plan, most, 0, err);
}

ffa_status tile_split_all(struct tile_plan *plan, int64_t most, int32_t parts_max, ffa_error *err)
{
    const int64_t rows = plan->shape.seqlen_q * plan->list_count;
    ffa_status rc;

    assert(parts_max >= 1 && parts_max <= TILE_PARTS_MAX);
    FFA_TRY(rows_check(rows * parts_max, err));
    FFA_TRY(split_tiles(plan, most, parts_max, err));
    assert(plan->split_count == rows && plan->part_row_count <= rows * parts_max);
    plan->part_row_count = rows * parts_max;
out:
    return rc;
}
