/* SPDX-License-Identifier: Apache-2.0
 *
 * Tile plans of both passes: pure C, deterministic, no GPU.
 *
 * A plan cuts one axis of the mask into tiles (query rows forward, keys backward), gives each tile
 * its sweeps over the other axis and their bands (tile_plan.h), and orders the tiles by work,
 * longest first (ties: lower index first); where keys arrive in stages, by groups of tiles first
 * (struct tile_stages). A backward plan is the forward plan of the transposed
 * mask, so both passes visit the same cells. Each index of the owned axis, of each list, is in
 * exactly one tile; but for a stage's plan (staged.h), where it may be in none, and a split one
 * (split.h), where it may be in several parts. Tiles of all lists stand in one array, list by list;
 * sweeps and bands stand in the order of lists, then of owned indices.
 */
#ifndef FFA_TILE_TILE_H
#define FFA_TILE_TILE_H

#include "mask/mask.h"
#include "tile_plan.h"

_Static_assert(sizeof(struct plan_header) == 2 * PLAN_RECORD_BYTES, "device layout");
_Static_assert(sizeof(struct plan_tile) == PLAN_RECORD_BYTES, "device layout");
_Static_assert(sizeof(struct plan_sweep) == PLAN_RECORD_BYTES, "device layout");
_Static_assert(sizeof(struct plan_band) == PLAN_RECORD_BYTES, "device layout");
_Static_assert(sizeof(struct plan_split) == 32, "device layout");
_Static_assert(sizeof(struct plan_ticket) == 8, "device layout");

enum tile_axis {
    TILE_OWNS_QUERIES, /* forward: tiles own query rows and sweep keys */
    TILE_OWNS_KEYS     /* backward: the reverse */
};

enum tile_cuts {
    TILE_CUTS_CHEAP = 0,  /* where fewer blocks are visited */
    TILE_CUTS_NONE = 1,   /* tiles stay aligned to their size: to measure what cuts bring */
    TILE_CUTS_ISOLATE = 2 /* at all document ends, and where fewer blocks are visited (cut.h) */
};

struct tile_options {
    int32_t tile_m, tile_n; /* query rows, keys: one of them of a tile, the other of a block */
    enum tile_cuts cuts;
    /* Blocks start at multiples of their size, not at a sweep's first index. Backward it also makes
     * the tickets of ordered accumulation. */
    bool on_grid;
};

enum { TILE_STAGES_MAX = 16 };

struct tile_range {
    int32_t begin, end;
};

/* Keys that arrive in stages, of a pass that is one launch: those of stage s are [ends[s - 1],
 * ends[s]), and stage 0 is there from the start.
 *
 * Forward, no sweep has keys of two stages, so that the sweeps of a tile stand by ascending stage.
 * Backward, no tile has. Tiles then form groups, which come one after another in a list: own keys
 * in `first`, each further stage, the other own keys. */
struct tile_stages {
    int32_t count;                  /* 0: all keys are there */
    int32_t ends[TILE_STAGES_MAX];  /* [count] ascending; the last is the number of keys */
    const struct tile_range *first; /* backward: [first_count] of own keys, ascending and apart */
    int64_t first_count;
};

/* Whether the tiles of a backward plan can go through the query rows in lockstep, whatever their
 * lengths: a wave of tiles in the direction given here, the next wave in the other one. */
enum tile_lockstep {
    TILE_LOCKSTEP_NONE,
    TILE_LOCKSTEP_DESCENDING, /* most tiles end together: from the last row to the first */
    TILE_LOCKSTEP_ASCENDING   /* most tiles begin together: from the first row to the last */
};

/* The query rows that a backward tile visits are in [begin, end); both 0: none. */
struct tile_rows {
    int32_t begin, end;
    int32_t partial_blocks; /* of the tile's blocks: not attended with every key of it */
};

struct tile_plan {
    ffa_mask_shape shape; /* of the mask */
    enum tile_axis axis;
    int32_t tile_m, tile_n; /* query rows, keys: one of them of a tile, the other of a block */
    enum tile_cuts cuts;    /* that it was built with; of tile_build and its like only */
    bool on_grid;
    bool is_stage;               /* of a pass in stages: owned indices may be in no tile */
    enum tile_lockstep lockstep; /* backward: that they can go in */
    bool is_unlocked;            /* and do not: as is chosen for the kernels (choose/order.h) */
    struct tile_rows *rows;      /* [tile_count] of a backward plan, else NULL */
    int32_t list_count;
    int32_t *list_begin; /* [list_count + 1]: list l has the tiles from list_begin[l] on */
    struct plan_tile *tiles;
    int32_t *block_counts; /* [tile_count]: blocks each tile visits, its weight in the order of
                            * work; backward for one query head */
    int64_t tile_count;
    struct plan_sweep *sweeps;
    int64_t sweep_count;
    struct plan_band *bands;
    int64_t band_count;
    int64_t block_count;    /* the sum of block_counts */
    int64_t partial_blocks; /* of those, not attended with every owned index of the tile */
    int64_t area;           /* attended cells, over all lists */
    /* Of a backward plan on a grid (ticket.h); else NULL and 0. */
    struct plan_ticket *tickets;
    int64_t ticket_count;
    struct tile_stages stages; /* of tile_build_arriving, `first` a copy; else zero */
    /* Of a split forward plan (split.h); else NULL and 0. */
    struct plan_split *splits; /* rows that were split */
    int64_t split_count;
    int64_t part_row_count; /* of all results */
};

/* Of a tile of a plan that can go in lockstep: the block of query rows where it ends (ascending:
 * begins) with those of its document; 0 of one without rows. */
static inline int32_t tile_document(const struct tile_plan *plan, int64_t tile)
{
    const struct tile_rows rows = plan->rows[tile];
    const bool has_end = plan->lockstep == TILE_LOCKSTEP_DESCENDING && rows.end > 0;

    return (has_end ? rows.end - 1 : rows.begin) / plan->tile_m;
}

/* How long a backward tile takes for one head, in blocks; a partial one takes 1 + `partial`. */
static inline double tile_time(const struct tile_plan *plan, int64_t tile, double partial)
{
    return plan->block_counts[tile] + (plan->rows ? partial * plan->rows[tile].partial_blocks : 0);
}

/* Owned indices of a tile, at most, and swept indices of a block. */
static inline int32_t tile_size(const struct tile_plan *plan)
{
    return plan->axis == TILE_OWNS_QUERIES ? plan->tile_m : plan->tile_n;
}

static inline int32_t tile_block_size(const struct tile_plan *plan)
{
    return plan->axis == TILE_OWNS_QUERIES ? plan->tile_n : plan->tile_m;
}

/* Length of the axis that tiles own, and of the one they sweep. */
static inline int64_t tile_own_length(const struct tile_plan *plan)
{
    return plan->axis == TILE_OWNS_QUERIES ? plan->shape.seqlen_q : plan->shape.seqlen_k;
}

static inline int64_t tile_swept_length(const struct tile_plan *plan)
{
    return plan->axis == TILE_OWNS_QUERIES ? plan->shape.seqlen_k : plan->shape.seqlen_q;
}

/* Fails with FFA_NOMEM, FFA_INVALID and FFA_UNSUPPORTED (too many tiles, sweeps, bands, tickets,
 * intervals). */
ffa_status tile_build(struct tile_plan *out, const ffa_mask *mask, enum tile_axis axis,
                      const struct tile_options *opts, ffa_error *err);
struct cut_list;
/* The same with tiles that begin where cuts [lists] says (NULL: where tile_build has them): plans
 * that share their tiles, as the stages of a pass do, are built with the same ones. An owned axis
 * of length 0 gives a plan without tiles. */
ffa_status tile_build_at(struct tile_plan *out, const ffa_mask *mask, enum tile_axis axis,
                         const struct tile_options *opts, const struct cut_list *cuts,
                         ffa_error *err);
/* What the plan of tile_build_at would visit, in the memory of one tile: *out has its block_count,
 * partial_blocks and area, and no tiles, sweeps, bands, tickets or lockstep. */
ffa_status tile_count(struct tile_plan *out, const ffa_mask *mask, enum tile_axis axis,
                      const struct tile_options *opts, const struct cut_list *cuts, ffa_error *err);
/* tile_build for keys that arrive in stages, of which there is at least one. Blocks are counted
 * with the cuts. */
ffa_status tile_build_arriving(struct tile_plan *out, const ffa_mask *mask, enum tile_axis axis,
                               const struct tile_options *opts, const struct tile_stages *stages,
                               ffa_error *err);
/* Both: with given cuts, of keys that arrive. */
ffa_status tile_build_arriving_at(struct tile_plan *out, const ffa_mask *mask, enum tile_axis axis,
                                  const struct tile_options *opts, const struct cut_list *cuts,
                                  const struct tile_stages *stages, ffa_error *err);
/* A stage's plan that is cut as `from` is, with no tile yet and room for as many as `from` has, but
 * for their sweeps and bands. For tile_finish; FFA_NOMEM. */
ffa_status tile_init_like(struct tile_plan *out, const struct tile_plan *from, ffa_error *err);
/* A copy of what the order of a backward pass is found from (choose/order.h): without arrays but
 * rows and block_counts. For tile_finish; FFA_NOMEM. */
ffa_status tile_copy_work(struct tile_plan *out, const struct tile_plan *from, ffa_error *err);
void tile_finish(struct tile_plan *plan);
/* Structural invariants of tile_plan.h, each with the tile named; FFA_BUG otherwise, FFA_NOMEM. */
ffa_status tile_check(const struct tile_plan *plan, ffa_error *err);

#endif
