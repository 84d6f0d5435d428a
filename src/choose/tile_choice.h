/* SPDX-License-Identifier: Apache-2.0
 *
 * What a forward plan is to be like, for a mask on a device: packed heads, which of several
 * kernels, tiles of one document each or across documents, tiles split over their keys, and how
 * many heads are worked on together.
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
    int32_t tile_m, tile_n; /* query rows of the plan, keys */
    struct tile_cost cost;
};

struct tile_query {
    const struct tile_candidate *candidates;
    int32_t candidate_count; /* >= 1; the first is for all masks */
    int32_t heads;           /* that run each tile; 0: not known, or not the same in all calls */
    enum tile_cuts cuts;     /* asked for; TILE_CUTS_CHEAP leaves documents apart to choose */
    const struct tile_stages *stages; /* of keys that arrive; NULL: all keys are there */
    bool is_packed;                   /* tiles of packed heads on a GPU */
};

struct tile_choice {
    int32_t candidate;   /* the index of the kernel that is expected to be the fastest */
    enum tile_cuts cuts; /* TILE_CUTS_ISOLATE: no tile has rows of two documents */
    double time; /* that the model says, of packed tiles or where kernels compete, else 0: keys of a
                  * tile of cost 1; with 0 heads of one */
};

/* Choose, and build the tiles in *out. Kernels of other rows than the first compete where its work
 * items are few: then they fill the device better, or worse. Fails as tile_build does. */
ffa_status choose_tiles(struct tile_plan *out, struct tile_choice *choice, const ffa_mask *mask,
                        const struct tile_query *query, const struct choose_device *device,
                        ffa_error *err);

/* What the model says of the tiles of one kernel: what choose_tiles compares, and tile_choice.time.
 * The tiles are of its tile_m. */
double choose_tiles_time(const struct tile_plan *tiles, const struct tile_candidate *kernel,
                         const struct tile_query *query, const struct choose_device *device);

/* ---- split ---- */

struct split_query {
    int32_t heads;  /* that run each tile */
    int32_t places; /* blocks of threads that each take one (tile, head) after another: SMs */
    bool is_asked; /* split wherever blocks even out; else where time is saved, and parts' costs are
                    * counted */
    double whole_time; /* tile_choice.time of the plan that is made otherwise; 0: as these tiles
                          take */
};

/* Blocks that a part may have, so that the places are done soonest. INT64_MAX: no split. */
int64_t choose_split(const struct tile_plan *plan, const struct split_query *query,
                     const struct cost_table *costs);

/* What choose_split compares, in keys: the times of whole tiles and of the best parts, of so many
 * blocks at most. */
struct split_times {
    double whole, parts;
    int64_t most; /* INT64_MAX: whole tiles leave no place idle, or parts are no shorter: there is
                   * no comparison, and the times are 0 */
};
struct split_times choose_split_times(const struct tile_plan *plan, const struct split_query *query,
                                      const struct cost_table *costs);

/* ---- L2 ---- */

/* Kv heads of an L2 group, 1 to heads_kv: as few groups as it takes for K and V of each, of so many
 * bytes a head, to stay in L2 while all query tiles read them, and these as equal as one size
 * allows. (A smaller last group would leave SMs idle.) */
int32_t choose_l2_heads(const struct choose_device *device, int64_t kv_head_bytes,
                        int32_t heads_kv);

#endif
