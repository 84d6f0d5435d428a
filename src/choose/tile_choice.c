/* SPDX-License-Identifier: Apache-2.0
 *
 * Choices of a forward plan. Each is a comparison of what two plans are expected to cost, with the
 * constants of a cost table; candidates are compared in a fixed order, so that the same mask, spec
 * and device give the same plan in every process.
 */
#include "choose/tile_choice.h"

#include "choose/makespan.h"
#include "tile/split.h"
#include "tile/sweep.h"

#include <math.h>

enum {
    TILE_ROWS = 128, /* of the tile that packing is judged by */
    FEW_ITEMS = 16   /* an SM: with more, what the last ones leave idle is below a sixteenth */
};

int32_t choose_pack_heads(const struct cost_table *costs, int32_t group)
{
    if (group < 1 || group > PACK_HEADS_MAX)
        return 0;
    return TILE_ROWS / group * group >= costs->packed_rows_min ? group : 0;
}

/* ---- tiles ---- */

int32_t choose_cost_tiles(const struct cost_tile *out[COST_TILES_MAX],
                          const struct cost_table *costs, int32_t columns, int32_t columns_v,
                          bool is_packed)
{
    int32_t count = 0;

    for (int32_t i = 0; i < costs->tile_count; i++) {
        const struct cost_tile *tile = &costs->tiles[i];

        if (tile->head_dim == columns && tile->head_dim_v == columns_v &&
            (tile->packed != 0) == is_packed)
            out[count++] = tile;
    }
    return count;
}

/* Keys of the blocks of a tile, with blocks of tile_n. */
static int64_t keys_of(const struct tile_plan *tiles, int64_t tile, int32_t tile_n)
{
    const struct plan_tile *of = &tiles->tiles[tile];
    int64_t blocks = 0;

    for (int32_t i = of->sweep_begin; i < of->sweep_begin + of->sweep_count; i++)
        blocks += sweep_blocks(tiles->sweeps[i].begin, tiles->sweeps[i].end, tile_n, false);
    return blocks * tile_n;
}

/* What the tiles would cost with this kernel. They may have been built for another one of the same
 * tile_m: their sweeps are counted in blocks of this one's tile_n. */
static double cost_of(const struct tile_plan *tiles, const struct tile_candidate *kernel)
{
    double cost = 0;

    assert(tiles->tile_m == kernel->tile_m);
    for (int64_t t = 0; t < tiles->tile_count; t++)
        cost += kernel->cost.begin + (double)keys_of(tiles, t, kernel->tile_n) * kernel->cost.key;
    return cost;
}

bool choose_are_few(const struct tile_plan *tiles, int32_t heads,
                    const struct choose_device *device)
{
    const int32_t places = device->facts.sm_count;

    return heads > 0 && places > 0 && places <= MAKESPAN_PLACES_MAX &&
           tiles->tile_count * heads <= (int64_t)FEW_ITEMS * places;
}

/* The time of a pass: few items one by one, of many their mean. */
double choose_tiles_time(const struct tile_plan *tiles, const struct tile_candidate *kernel,
                         const struct tile_query *query, const struct choose_device *device)
{
    struct makespan makespan = { .places = device->facts.sm_count };

    if (!choose_are_few(tiles, query->heads, device))
        return cost_of(tiles, kernel) * max32(1, query->heads) / max32(1, makespan.places);
    for (int64_t t = 0; t < tiles->tile_count; t++) {
        const double cost =
            kernel->cost.begin + (double)keys_of(tiles, t, kernel->tile_n) * kernel->cost.key;

        for (int32_t h = 0; h < query->heads; h++)
            makespan_take(&makespan, cost);
    }
    return makespan.last;
}

/* Whether tiles of one document each need no comparison: there are no more of them than SMs, or
 * enough of their rows are in use. */
static bool is_apart_cheap(const struct tile_plan *apart, const struct choose_device *device)
{
    return apart->tile_count <= device->facts.sm_count ||
           (double)(apart->tile_count * apart->tile_m) <=
               device->costs->apart.tile_rows_max *
                   (double)(apart->shape.seqlen_q * apart->list_count);
}

static ffa_status build_tiles(struct tile_plan *out, const ffa_mask *mask,
                              const struct tile_query *query, const struct tile_options *opts,
                              ffa_error *err)
{
    return query->stages
               ? tile_build_arriving(out, mask, TILE_OWNS_QUERIES, opts, query->stages, err)
               : tile_build(out, mask, TILE_OWNS_QUERIES, opts, err);
}

/* Packed rows are few, so that tiles of a document each fill the device better; unless documents
 * are so many and so short that most rows of their tiles are empty. */
static ffa_status build_apart(struct tile_plan *tiles, const ffa_mask *mask,
                              const struct tile_query *query, const struct tile_candidate *kernel,
                              struct tile_options *opts, const struct choose_device *device,
                              ffa_error *err)
{
    struct tile_plan together = { 0 };
    ffa_status rc;

    opts->cuts = TILE_CUTS_ISOLATE;
    FFA_TRY(build_tiles(tiles, mask, query, opts, err));
    if (is_apart_cheap(tiles, device))
        goto out;
    opts->cuts = TILE_CUTS_CHEAP;
    FFA_TRY(build_tiles(&together, mask, query, opts, err));
    if (cost_of(tiles, kernel) > device->costs->apart.cost_max * cost_of(&together, kernel)) {
        const struct tile_plan apart = *tiles;

        *tiles = together;
        together = apart;
    } else {
        opts->cuts = TILE_CUTS_ISOLATE;
    }
out:
    tile_finish(&together);
    return rc;
}

/* Build the tiles of a candidate, in *choice with their cuts and time. */
static ffa_status build_candidate(struct tile_plan *out, struct tile_choice *choice,
                                  const ffa_mask *mask, const struct tile_query *query,
                                  int32_t candidate, const struct choose_device *device,
                                  ffa_error *err)
{
    const struct tile_candidate *kernel = &query->candidates[candidate];
    struct tile_options opts = { .tile_m = kernel->tile_m,
                                 .tile_n = kernel->tile_n,
                                 .cuts = query->cuts };
    ffa_status rc = query->is_packed && opts.cuts == TILE_CUTS_CHEAP
                        ? build_apart(out, mask, query, kernel, &opts, device, err)
                        : build_tiles(out, mask, query, &opts, err);

    if (rc == FFA_OK)
        *choice = (struct tile_choice){ candidate, kernel->cost, opts.cuts, 0 };
    if (rc == FFA_OK && (query->candidate_count > 1 || query->is_packed || query->wants_time))
        choice->time = choose_tiles_time(out, kernel, query, device);
    return rc;
}

/* Take the candidate's tiles if they are better. Those of other rows are built for that; of the
 * same, keys alone are counted, and tiles with its tile_n are still to be built. */
static ffa_status try_candidate(struct tile_plan *best, struct tile_choice *choice,
                                const ffa_mask *mask, const struct tile_query *query,
                                int32_t candidate, const struct choose_device *device,
                                ffa_error *err)
{
    const struct tile_candidate *kernel = &query->candidates[candidate];
    struct tile_choice tried = { candidate, kernel->cost, choice->cuts, 0 };
    struct tile_plan other = { 0 };
    ffa_status rc = FFA_OK;

    if (kernel->tile_m == best->tile_m)
        tried.time = choose_tiles_time(best, kernel, query, device);
    else if (choose_are_few(best, query->heads, device))
        FFA_TRY(build_candidate(&other, &tried, mask, query, candidate, device, err));
    else
        goto out;
    if (tried.time >= (1 - device->costs->worth) * choice->time)
        goto out;
    *choice = tried;
    if (kernel->tile_m != best->tile_m) {
        const struct tile_plan was = *best;

        *best = other;
        other = was;
    }
out:
    tile_finish(&other);
    return rc;
}

ffa_status choose_tiles(struct tile_plan *out, struct tile_choice *choice, const ffa_mask *mask,
                        const struct tile_query *query, const struct choose_device *device,
                        ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(build_candidate(out, choice, mask, query, 0, device, err));
    for (int32_t i = 1; i < query->candidate_count; i++)
        FFA_TRY(try_candidate(out, choice, mask, query, i, device, err));
    if (out->tile_n != query->candidates[choice->candidate].tile_n) {
        const struct tile_options opts = { .tile_m = out->tile_m,
                                           .tile_n = query->candidates[choice->candidate].tile_n,
                                           .cuts = choice->cuts };

        tile_finish(out);
        rc = build_tiles(out, mask, query, &opts, err);
    }
out:
    if (rc != FFA_OK)
        tile_finish(out);
    return rc;
}

/* ---- split ---- */

/* What so many blocks of one tile cost. */
static double cost_of_blocks(const struct tile_plan *plan, const struct split_query *query,
                             int64_t blocks)
{
    return (double)(blocks * plan->tile_n) * (query->key > 0 ? query->key : 1);
}

/* How long the pass takes with parts of at most `most` blocks: each place (an SM) takes one item
 * after another, each as long as the longest part, with what a part costs besides its keys. */
static double time_of_parts(const struct tile_plan *plan, int64_t most,
                            const struct split_query *query, int32_t part_keys)
{
    int64_t items = 0, longest = 0;

    for (int64_t t = 0; t < plan->tile_count; t++) {
        const int64_t parts = tile_split_parts(plan->block_counts[t], most);
        const int64_t blocks = (plan->block_counts[t] + parts - 1) / parts;

        items += parts * query->heads;
        longest = max64(blocks, longest);
    }
    return (double)((items + query->places - 1) / query->places) *
           (cost_of_blocks(plan, query, longest) + part_keys);
}

/* Whole tiles take at least as long as the longest one, and at least as long as a place's share of
 * all blocks. A split that was asked for only has to even out the blocks: what a part costs does
 * not count. */
struct split_times choose_split_times(const struct tile_plan *plan, const struct split_query *query,
                                      const struct cost_table *costs)
{
    const struct split_costs *by = &costs->split;
    const int32_t part_keys = query->is_asked ? 0 : by->part_keys;
    int64_t total = 0, longest = 0, best = INT64_MAX, share;
    struct split_times times = { .most = INT64_MAX };
    double least = HUGE_VAL;

    for (int64_t t = 0; t < plan->tile_count; t++) {
        total += (int64_t)plan->block_counts[t] * query->heads;
        longest = max64(plan->block_counts[t], longest);
    }
    share = (total + query->places - 1) / query->places;
    if (plan->tile_count * query->heads * 1000 >= query->places * (int64_t)by->idle_permille &&
        longest <= share)
        return times;
    for (int64_t k = 1; k <= by->shares; k++) {
        const int64_t most = max64((share + k - 1) / k, by->part_blocks_min);
        const double time = time_of_parts(plan, most, query, part_keys);

        if (time < least) {
            least = time;
            best = most;
        }
    }
    if (best >= longest)
        return times;
    times.most = best;
    times.parts = least;
    times.whole = cost_of_blocks(plan, query, max64(longest, share)) + by->whole_keys;
    if (query->whole_time > 0)
        times.whole = fmin(times.whole, query->whole_time);
    return times;
}

int64_t choose_split(const struct tile_plan *plan, const struct split_query *query,
                     const struct cost_table *costs)
{
    const struct split_times times = choose_split_times(plan, query, costs);

    return query->is_asked || times.parts <= (1 - costs->split.saved_share_min) * times.whole
               ? times.most
               : INT64_MAX;
}
