/* SPDX-License-Identifier: Apache-2.0
 *
 * Tile plans of a pass in stages. Each stage has some of the pass's cells, in coordinates of its
 * own: the key buffer, or the query buffer, of the stage.
 *
 * Forward, the stages are of the same query rows, each with some of their keys. All stages have the
 * same query tiles. A stage's plan has the tiles that the stage works on, and no others, marked
 * with PLAN_TILE_MERGES and PLAN_TILE_CONTINUES; a tile that no stage works on is in the plan of
 * stage 0, unmarked, so that its results are written as empty.
 *
 * Backward, each key is one stage's: a stage's plan has the tiles of all its keys, unmarked.
 */
#ifndef FFA_TILE_STAGED_H
#define FFA_TILE_STAGED_H

#include "mask/band.h"
#include "tile/cut.h"

/* The cells that one stage works on: those of a mask, or of disjoint bands. */
struct stage_cells {
    const ffa_mask *mask;      /* not owned; NULL: */
    ffa_mask_shape shape;      /* either side may be 0 */
    const struct bands *lists; /* [list_count]; not owned */
    /* Forward: how the stage's keys arrive during its launch; NULL: they are there. */
    const struct tile_stages *arriving;
};

struct staged_options {
    int32_t list_count;
    /* The tiles of each pass; NULL: the pass is not wanted. */
    const struct tile_options *forward, *backward;
    /* Forward: where the query tiles of all stages begin, [list_count]. NULL: where those of the
     * stage with most cells do; isolated, wherever a tile of some stage begins. */
    const struct cut_list *cuts;
    /* Forward: each stage has query rows of its own. Tiles are chosen for each, all are in the
     * plan, unmarked, and cuts is not read. */
    bool has_own_rows;
    bool counts_only; /* what tile_count counts, of each stage; no tiles */
};

struct staged_plan {
    struct tile_plan forward, backward; /* zero: not wanted */
};

/* out [count], for staged_finish; zero on failure.
 * Fails with FFA_NOMEM, FFA_INVALID and FFA_UNSUPPORTED, as tile_build. */
ffa_status staged_build(struct staged_plan *out, const struct stage_cells *stages, int32_t count,
                        const struct staged_options *opts, ffa_error *err);
void staged_finish(struct staged_plan *plans, int32_t count);

/* Where query tiles of one list begin that are chosen for these cells; for cut_finish. The normal
 * form has `rows` rows. */
ffa_status staged_cuts(struct cut_list *out, const struct normal *normal, int32_t rows,
                       const struct tile_options *opts, ffa_error *err);

/* A plan that only writes what the tiles of `from` left for later: those that PLAN_TILE_CONTINUES,
 * without sweeps, which merge with that and do not continue. For tile_finish; FFA_NOMEM. */
ffa_status staged_rest(struct tile_plan *out, const struct tile_plan *from, ffa_error *err);

#endif
