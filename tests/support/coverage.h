/* SPDX-License-Identifier: Apache-2.0
 *
 * Exact coverage: a tile plan is executed in integers, block by block as a kernel would, and must
 * compute each attended (query, key) cell exactly once and no other. What is attended comes from
 * the slices by the one rule of mask.h, row by row; no code of the library takes part.
 */
#ifndef TESTS_COVERAGE_H
#define TESTS_COVERAGE_H

#include "tile/tile.h"

struct coverage_text {
    char at[256];
};

/* By the intervals of every owned row (backward: key), which the bands give: any size. lists:
 * [plan->list_count]. On false, *why says where. */
bool coverage_lines(const struct tile_plan *plan, const ffa_slice_list *lists,
                    struct coverage_text *why);
/* By a count for each cell: small masks; seqlen_q * seqlen_k bytes. Forward a block's cells are
 * counted band by band; backward row by row, with the keys of each row (plan_band_own). */
bool coverage_cells(const struct tile_plan *plan, const ffa_slice_list *lists,
                    struct coverage_text *why);
/* Of a plan with ordered accumulation: the visits of each block of the grid, in the order of tiles,
 * have the tickets 0, 1, 2, ... */
bool coverage_tickets(const struct tile_plan *plan, struct coverage_text *why);
/* Whether both plans of one mask have the same rows at every `step`th key. */
bool coverage_same(const struct tile_plan *forward, const struct tile_plan *backward, int64_t step,
                   struct coverage_text *why);

/* Keys [lo, hi) of one row, by the rule of mask.h; false: none. */
bool coverage_slice_row(const ffa_slice *slice, int64_t row, int64_t *lo, int64_t *hi);

#endif
