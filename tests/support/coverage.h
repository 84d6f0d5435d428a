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

/* By key intervals of every row: any size. lists: [plan->list_count]. On false, *why says where. */
bool coverage_rows(const struct tile_plan *plan, const ffa_slice_list *lists,
                   struct coverage_text *why);
/* By a count for each cell: small masks; seqlen_q * seqlen_k bytes. */
bool coverage_cells(const struct tile_plan *plan, const ffa_slice_list *lists,
                    struct coverage_text *why);

/* Keys [lo, hi) of one row, by the rule of mask.h; false: none. */
bool coverage_slice_row(const ffa_slice *slice, int64_t row, int64_t *lo, int64_t *hi);

#endif
