/* SPDX-License-Identifier: Apache-2.0
 *
 * From rows of cells to slices: what reads masks of other programs row by row.
 */
#ifndef FFA_MASK_RUNS_H
#define FFA_MASK_RUNS_H

#include "mask/slices.h"

/* Consecutive keys that a row attends. */
struct run {
    int64_t begin, end;
};

/* The runs of one row: ascending, not empty, apart. */
struct row_runs {
    struct run *at;
    int64_t count, capacity;
};

/* Runs of consecutive rows whose bounds go on: a slice that is not finished. */
struct track {
    int64_t q_begin, k_begin; /* of its first row */
    struct run last;          /* of its last row */
    int32_t begin_step;       /* keys a row that the bound moves: 0, 1, or -1 after one row */
    int32_t end_step;
};

struct tracks {
    struct track *at; /* by key */
    int64_t count, capacity;
};

/* Rows are given in ascending order, each once; a row that is not given attends nothing. */
struct tracker {
    struct slices *out;
    struct tracks open, next; /* next: of the row being read */
    int64_t row;              /* the last one */
};

/* Append a run that begins at or behind the end of the last one; touching ones are one run. */
ffa_status row_runs_add(struct row_runs *runs, int64_t begin, int64_t end, ffa_error *err);
/* Append the runs of non-zero cells; the first cell is key `key`. */
ffa_status row_runs_scan(struct row_runs *runs, const uint8_t *cells, int64_t count, int64_t key,
                         ffa_error *err);

/* Rows [begin, end) all have these runs. */
ffa_status tracker_rows(struct tracker *tracker, int64_t begin, int64_t end,
                        const struct row_runs *runs, ffa_error *err);
/* After the last row: finish all slices, and sort them by row and key. Frees what the tracker
 * has, whatever rc, the status so far, is. */
ffa_status tracker_finish(struct tracker *tracker, ffa_status rc, ffa_error *err);

#endif
