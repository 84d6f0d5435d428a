/* SPDX-License-Identifier: Apache-2.0
 *
 * What a forward plan is to be like, for a mask on a device: packed heads, which of several
 * kernels, tiles of one document each or across documents, and tiles split over their keys.
 */
#ifndef FFA_CHOOSE_TILE_CHOICE_H
#define FFA_CHOOSE_TILE_CHOICE_H

#include "choose/cost_table.h"
#include "tile/tile.h"

/* ---- packing ---- */

enum { PACK_HEADS_MAX = 64 }; /* as many as the rows of a warpgroup, and a box of Q holds them */

/* How many query heads of a kv head are to share a tile, of the group = heads_q / heads_kv that it
 * has: all of them where they fill the rows of a tile well, else 0. */
int32_t choose_pack_heads(const struct cost_table *costs, int32_t group);

/* ---- tiles ---- */

/* Tiles for kernels with so many columns, of packed heads or of heads apart, best for all masks
 * first. Returns how many; 0: the table has none for them. */
int32_t choose_cost_tiles(const struct cost_tile *out[COST_TILES_MAX],
                          const struct cost_table *costs, int32_t columns, int32_t columns_v,
                          bool is_packed);

/* A kernel that a plan may be made for. */
struct tile_candidate {
    int32_t tile_m, tile_n; /* tile_m: rows of the mask, the kernel's divided by the packed heads */
    struct tile_cost cost;
};

struct tile_query {
    const struct tile_candidate *candidates;
    int32_t candidate_count; /* >= 1; the first is for all masks */
    int32_t heads;           /* that run each tile; 0: not known, or not the same in all calls */
    enum tile_cuts cuts;     /* asked for; TILE_CUTS_CHEAP leaves documents apart to choose */
    const struct tile_stages *stages; /* of keys that arrive; NULL: all keys are there */
    bool is_packed;                   /* tiles of packed heads on a GPU */
    bool wants_time; /* the time of one kernel of heads apart, too: its cost is a table's */
};

struct tile_choice {
    int32_t candidate;     /* the index of the kernel that is expected to be the fastest */
    struct tile_cost cost; /* of that kernel */
    enum tile_cuts cuts;   /* TILE_CUTS_ISOLATE: no tile has rows of two documents */
    double time; /* of the pass by the model, where the tiles are packed, kernels compete, or the
                  * query wants it; else 0. Its unit: the time of a key of a tile whose cost of a
                  * key is 1. Of one head where the heads are not known */
};

/* Choose, and build the tiles in *out. Kernels whose tiles have another number of rows than those
 * of the first are compared only where the first has few work items: there the number of tiles
 * decides how well they fill the device. Fails as tile_build does. */
ffa_status choose_tiles(struct tile_plan *out, struct tile_choice *choice, const ffa_mask *mask,
                        const struct tile_query *query, const struct choose_device *device,
                        ffa_error *err);

/* Whether tiles with so many heads are so few work items that it matters how they come out even:
 * then a kernel of other rows may be chosen. heads 0: not known, and not few. */
bool choose_are_few(const struct tile_plan *tiles, int32_t heads,
                    const struct choose_device *device);

/* The time of a pass with one kernel by the model: what choose_tiles compares, and
 * tile_choice.time. The tiles were built with its tile_m. */
double choose_tiles_time(const struct tile_plan *tiles, const struct tile_candidate *kernel,
                         const struct tile_query *query, const struct choose_device *device);

/* ---- split ---- */

struct split_query {
    int32_t heads;  /* that run each tile */
    int32_t places; /* CTAs, one an SM, each of which takes one (tile, head) after another */
    bool is_asked;  /* true: split wherever the parts even out the blocks of the CTAs. false: split
                     * where that saves time by the model, which counts what each part costs */
    double whole_time; /* tile_choice.time of the plan without a split; 0: that of these tiles */
    double key;        /* of the cost of these tiles' kernel; 0: 1 */
};

/* The most blocks of a part with which the CTAs are done soonest. INT64_MAX: no split. */
int64_t choose_split(const struct tile_plan *plan, const struct split_query *query,
                     const struct cost_table *costs);

/* What choose_split compares: the times of whole tiles and of the best parts, in the unit of
 * tile_choice.time. */
struct split_times {
    double whole, parts;
    int64_t most; /* blocks of a part. INT64_MAX: whole tiles leave no CTA idle, or parts would be
                   * no shorter; nothing is compared then, and the times are 0 */
};
struct split_times choose_split_times(const struct tile_plan *plan, const struct split_query *query,
                                      const struct cost_table *costs);

#endif
