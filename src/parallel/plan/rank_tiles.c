/* SPDX-License-Identifier: Apache-2.0
 *
 * rank_tiles_add: a walk over the rank's rows and the bands they meet. Invariant: keys that two
 * pieces of a tile attend count once, as long as a tile attends no more than RANGES_MAX ranges; of
 * more, they may count twice.
 */
#include "parallel/plan/rank_tiles.h"

#include "mask/mask.h"
#include "parallel/plan/time_model.h"

enum { RANGES_MAX = 32 };

/* What the rows of one tile attend: disjoint ranges, in no order. */
struct tile_keys {
    struct range at[RANGES_MAX];
    int32_t count;
    int64_t more; /* keys of ranges for which there was no room */
};

static void keys_add(struct tile_keys *keys, struct range range)
{
    for (int32_t i = 0; i < keys->count; i++) {
        struct range *at = &keys->at[i];

        if (range.end < at->begin || at->end < range.begin)
            continue;
        range.begin = min64(range.begin, at->begin);
        range.end = max64(range.end, at->end);
        *at = keys->at[--keys->count];
        i = -1; /* the larger one may touch those that were passed */
    }
    if (keys->count < RANGES_MAX)
        keys->at[keys->count++] = range;
    else
        keys->more += range.end - range.begin;
}

static void keys_attended(struct tile_keys *keys, const struct bands *bands, int64_t begin,
                          int64_t end)
{
    for (int64_t b = bands_find(bands, begin); b < bands->count && bands->at[b].q_begin < end;
         b++) {
        struct band cut;

        if (band_cut_q(&cut, &bands->at[b], begin, end))
            keys_add(keys, (struct range){ cut.k_begin, cut.k_end });
    }
}

static void tile_end(struct rank_tiles *tiles, struct tile_keys *keys, int32_t tile_m)
{
    int64_t cells = keys->more;

    for (int32_t i = 0; i < keys->count; i++)
        cells += keys->at[i].end - keys->at[i].begin;
    cells *= tile_m;
    tiles->least = tiles->count ? min64(tiles->least, cells) : cells;
    tiles->cells = area_add(tiles->cells, cells);
    tiles->count++;
    keys->count = 0;
    keys->more = 0;
}

void rank_tiles_add(struct rank_tiles *tiles, const struct bands *bands, const struct layout *rows,
                    int32_t rank, int32_t tile_m)
{
    struct tile_keys keys = { .count = 0 };
    int64_t taken = 0;

    for (int64_t i = rows->rank_begin[rank]; i < rows->rank_begin[rank + 1]; i++) {
        const int64_t chunk = rows->rank_chunks[i], end = rows->bounds[chunk + 1];

        for (int64_t at = rows->bounds[chunk], step; at < end; at += step) {
            step = min64(tile_m - taken, end - at);
            keys_attended(&keys, bands, at, at + step);
            taken += step;
            if (taken == tile_m) {
                tile_end(tiles, &keys, tile_m);
                taken = 0;
            }
        }
    }
    if (taken)
        tile_end(tiles, &keys, tile_m);
}

int64_t rank_tiles_tail_ns(const ffa_parallel_plan_opts *opts, int64_t list_count, int64_t items,
                           int64_t least)
{
    const int64_t idle = (opts->sms - items % opts->sms) % opts->sms;
    const int64_t cells = least + model_begin_cells(opts, 1, opts->tile_m, false);

    /* The time of an item is that of its cells on one SM; the heads of a list share what all SMs
     * take for the list. */
    return model_scaled(model_compute_ns(opts, list_count, cells, false), idle,
                        max64(1, opts->model.heads_q / list_count));
}

int64_t rank_tiles_ns(const struct rank_tiles *tiles, const ffa_parallel_plan_opts *opts,
                      int64_t list_count, int64_t visited)
{
    const int64_t items = tiles->count * max64(1, opts->model.heads_q / list_count);

    return model_compute_ns(opts, list_count, tiles->cells, false) -
           model_compute_ns(opts, list_count, visited, false) +
           rank_tiles_tail_ns(opts, list_count, items, tiles->least);
}
