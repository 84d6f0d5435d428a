/* SPDX-License-Identifier: Apache-2.0
 *
 * Backward tile plans: pure C, deterministic, no GPU.
 *
 * backward_build cuts the key axis into tiles of at most tile_n keys (at document starts, too,
 * where that lowers the visited blocks), gives each its sweeps over query rows and their bands, and
 * orders the tiles by work, longest first (ties: lower keys first). It is the forward plan of the
 * transposed mask, so both plans compute the same cells, and sweep.c, cut.c and check.c serve both.
 *
 * Each key of a list is in exactly one tile. A tile that no row attends has no sweeps.
 *
 * On a grid (tile_options.on_grid) the plan is one in turns (backward_plan.h): dq is to be added in
 * the order of tiles. Turns are few: one a sweep where the mask is full or causal, one each other
 * block at the most in a window.
 */
#ifndef FFA_TILE_BACKWARD_H
#define FFA_TILE_BACKWARD_H

#include "backward_plan.h"
#include "tile/tile.h"

_Static_assert(sizeof(struct backward_tile) == 32, "device layout");
_Static_assert(sizeof(struct backward_sweep) == 32, "device layout");
_Static_assert(sizeof(struct backward_band) == 32, "device layout");
_Static_assert(sizeof(struct backward_turn) == 8, "device layout");

/* Whether tiles go through the same rows at the same time, whatever their lengths are: the first
 * wave of them as said here, the next one back (attention_backward.cu). */
enum backward_step {
    BACKWARD_APART,      /* no: sweeps begin and end where they like */
    BACKWARD_FROM_LAST,  /* from the last row to the first, as their sweeps end at one row */
    BACKWARD_FROM_FIRST, /* the other way, as they begin at one row */
};

struct backward_plan {
    ffa_mask_shape shape;
    int32_t tile_m, tile_n; /* query rows of a block, keys of a tile */
    bool in_turns;
    enum backward_step in_step;
    int32_t list_count;
    int32_t *list_begin; /* [list_count + 1]: list l has the tiles from list_begin[l] on */
    struct backward_tile *tiles;
    int64_t tile_count;
    struct backward_sweep *sweeps;
    int64_t sweep_count;
    struct backward_band *bands;
    int64_t band_count;
    struct backward_turn *turns; /* NULL where not in turns */
    int64_t turn_count;
    int64_t block_count;    /* tile_m x tile_n blocks visited for one query head, over all lists */
    int64_t partial_blocks; /* of those, not tile_m rows that attend every key of the tile */
    int64_t area;           /* attended cells, over all lists */
};

/* opts: as of the kernel: tile_m query rows by tile_n keys; cuts are of tiles of keys.
 * Fails with FFA_NOMEM, FFA_INVALID and FFA_UNSUPPORTED (too many tiles, sweeps, bands, turns,
 * intervals). */
ffa_status backward_build(struct backward_plan *out, const ffa_mask *mask,
                          const struct tile_options *opts, ffa_error *err);
void backward_finish(struct backward_plan *plan);
/* Blocks of the grid that the query rows lie on: counters of turns for one query head. */
int64_t backward_grid_blocks(const struct backward_plan *plan);
/* Structural invariants of backward_plan.h, each with the tile named; FFA_BUG otherwise, FFA_NOMEM.
 */
ffa_status backward_check(const struct backward_plan *plan, ffa_error *err);

#endif
