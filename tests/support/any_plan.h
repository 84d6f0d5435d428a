/* SPDX-License-Identifier: Apache-2.0
 *
 * A tile plan of either pass, for tests that both have to pass. A backward plan is a forward one
 * with the sides exchanged, so both are read in the words of tile_plan.h: a tile owns rows (keys,
 * of a backward plan) and sweeps keys (query rows).
 */
#ifndef TESTS_ANY_PLAN_H
#define TESTS_ANY_PLAN_H

#include "support/coverage.h"

enum pass { FORWARD, BACKWARD, PASSES };
extern const char *const pass_names[PASSES];

struct any_plan {
    enum pass pass;
    struct tile_plan forward; /* one of both is set */
    struct tile_plan backward;
};

/* opts: in the words of the pass: tile_m rows by tile_n keys; the tile is tile_n keys backward. */
ffa_status any_plan_build(struct any_plan *plan, enum pass pass, const ffa_mask *mask,
                          const struct tile_options *opts, ffa_error *err);
ffa_status any_plan_check(const struct any_plan *plan, ffa_error *err);
void any_plan_finish(struct any_plan *plan);

/* coverage_rows or coverage_keys; coverage_cells or coverage_backward_cells. */
bool any_plan_covers(const struct any_plan *plan, const ffa_slice_list *lists,
                     struct coverage_text *why);
bool any_plan_covers_cells(const struct any_plan *plan, const ffa_slice_list *lists,
                           struct coverage_text *why);

/* What both have; the arrays are the plan's own. */
struct any_facts {
    ffa_mask_shape shape; /* of the mask */
    int64_t lines;        /* that tiles share out: seqlen_q, or seqlen_k backward */
    int64_t tile_count, sweep_count, band_count;
    int64_t block_count, partial_blocks, area;
    const int32_t *list_begin;
};
struct any_facts any_plan_facts(const struct any_plan *plan);
struct plan_tile any_plan_tile(const struct any_plan *plan, int64_t index);
struct plan_sweep any_plan_sweep(const struct any_plan *plan, int64_t index);
struct plan_band any_plan_band(const struct any_plan *plan, int64_t index);

/* ---- fields, to be moved ---- */

enum plan_array { PLAN_TILES, PLAN_SWEEPS, PLAN_BANDS, PLAN_TURNS, PLAN_ARRAYS };

/* The field at `offset` of entry `index`; how many entries there are. */
int32_t *any_plan_field(struct any_plan *plan, enum plan_array array, size_t offset, int64_t index);
int64_t any_plan_entries(const struct any_plan *plan, enum plan_array array);

/* The offsets of a field that is called differently in both passes, for a table: [PASSES]. */
#define ANY_TILE(forward, backward)                                                                \
    PLAN_TILES,                                                                                    \
    {                                                                                              \
        offsetof(struct plan_tile, forward), offsetof(struct plan_tile, backward)                  \
    }
#define ANY_SWEEP(forward, backward)                                                               \
    PLAN_SWEEPS,                                                                                   \
    {                                                                                              \
        offsetof(struct plan_sweep, forward), offsetof(struct plan_sweep, backward)                \
    }
#define ANY_BAND(forward, backward)                                                                \
    PLAN_BANDS,                                                                                    \
    {                                                                                              \
        offsetof(struct plan_band, forward), offsetof(struct plan_band, backward)                  \
    }

#endif
