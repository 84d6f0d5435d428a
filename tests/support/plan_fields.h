/* SPDX-License-Identifier: Apache-2.0
 *
 * Any field of any record of a tile plan, for tests that move one and see who notices.
 */
#ifndef TESTS_PLAN_FIELDS_H
#define TESTS_PLAN_FIELDS_H

#include "tile/tile.h"

/* By enum tile_axis: "forward", "backward". */
enum { AXES = 2 };
extern const char *const axis_names[AXES];

enum plan_array {
    PLAN_TILES,
    PLAN_BLOCK_COUNTS,
    PLAN_ROWS, /* of backward plans */
    PLAN_SWEEPS,
    PLAN_BANDS,
    PLAN_TICKETS,
    PLAN_ARRAYS
};

/* Where a field is: the array and the offset in a record, for a table. */
#define TILE_FIELD(name) PLAN_TILES, offsetof(struct plan_tile, name)
#define ROWS_FIELD(name) PLAN_ROWS, offsetof(struct tile_rows, name)
#define SWEEP_FIELD(name) PLAN_SWEEPS, offsetof(struct plan_sweep, name)
#define BAND_FIELD(name) PLAN_BANDS, offsetof(struct plan_band, name)
#define TICKET_FIELD(name) PLAN_TICKETS, offsetof(struct plan_ticket, name)

/* The field at `offset` of record `index`; how many records there are. */
int32_t *plan_field(const struct tile_plan *plan, enum plan_array array, size_t offset,
                    int64_t index);
int64_t plan_records(const struct tile_plan *plan, enum plan_array array);

#endif
