/* SPDX-License-Identifier: Apache-2.0
 *
 * Forward tile plans: pure C, deterministic, no GPU.
 *
 * tile_build cuts the query axis into tiles of at most tile_m rows (at document starts, too, where
 * that lowers the visited blocks), gives each its sweeps and bands, and orders the tiles by work,
 * longest first (ties: lower row first). tiles of all lists stand in one array, list by list;
 * sweeps and bands stand in the order of lists, then rows.
 */
#ifndef FFA_TILE_TILE_H
#define FFA_TILE_TILE_H

#include "mask/mask.h"
#include "tile_plan.h"

_Static_assert(sizeof(struct plan_tile) == 32, "device layout");
_Static_assert(sizeof(struct plan_sweep) == 32, "device layout");
_Static_assert(sizeof(struct plan_band) == 32, "device layout");
_Static_assert(sizeof(struct plan_split) == 32, "device layout");

/* What one phase of a pass in phases does to a tile; 0: it leaves it alone. The first phase that
 * works on a tile does not read what is there, the last writes the result; between them lie
 * accumulators. */
enum { TILE_TOUCHED = 1, TILE_FIRST = 2, TILE_LAST = 4 };

enum tile_cuts {
    TILE_CUTS_CHEAP = 0,  /* where fewer blocks are visited */
    TILE_CUTS_NONE = 1,   /* tiles stay aligned to tile_m: to measure what cuts bring */
    TILE_CUTS_ISOLATE = 2 /* at all document ends, and where fewer blocks are visited (cut.h) */
};

struct tile_options {
    int32_t tile_m, tile_n;
    enum tile_cuts cuts;
    bool on_grid; /* blocks of keys start at multiples of tile_n, not at a sweep's first key */
};

struct tile_plan {
    ffa_mask_shape shape;
    int32_t tile_m, tile_n;
    bool on_grid;
    int32_t list_count;
    int32_t *list_begin; /* [list_count + 1]: list l has the tiles from list_begin[l] on */
    struct plan_tile *tiles;
    int64_t tile_count;
    struct plan_sweep *sweeps;
    int64_t sweep_count;
    struct plan_band *bands;
    int64_t band_count;
    int64_t block_count;    /* tile_m x tile_n blocks visited, over all lists */
    int64_t partial_blocks; /* of those, not tile_n keys that every row of the tile attends */
    int64_t area;           /* attended cells, over all lists */
    /* Of a split plan (split.h); else NULL and 0. */
    int32_t *part_rows;        /* [tile_count]: first row of each part's results */
    struct plan_split *splits; /* rows that were split */
    int64_t split_count;
    int64_t part_row_count; /* of all results */
};

ffa_status tile_build(struct tile_plan *out, const ffa_mask *mask, const struct tile_options *opts,
                      ffa_error *err);
struct cut_rows;
/* The same with tiles that begin where cuts [lists] says: plans that share their tiles, as the
 * stages of a distributed pass do, are built with the same ones. */
ffa_status tile_build_at(struct tile_plan *out, const ffa_mask *mask,
                         const struct tile_options *opts, const struct cut_rows *cuts,
                         ffa_error *err);
/* The same of the transposed mask: rows of the plan are keys, its keys are query rows. */
ffa_status tile_build_transposed(struct tile_plan *out, const ffa_mask *mask,
                                 const struct tile_options *opts, ffa_error *err);
void tile_finish(struct tile_plan *plan);
/* Structural invariants of tile_plan.h, each with the tile named; FFA_BUG otherwise. */
ffa_status tile_check(const struct tile_plan *plan, ffa_error *err);

#endif
