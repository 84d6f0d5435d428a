/* SPDX-License-Identifier: Apache-2.0
 *
 * The forward tile plan as it lies in memory, read by host (C17) and device (C++17).
 *
 * A plan is one buffer of three arrays: tiles, then sweeps, then bands. A tile owns the query rows
 * [row_begin, row_begin + row_count) and sweeps its key ranges one after another, in blocks of
 * tile_n keys that start at the sweep's own first key. In one sweep a row has at most one interval
 * of keys; the bands of the sweep give it. Every key of a sweep's range is attended by some row of
 * the tile. Rows without a band in a sweep attend nothing in it.
 *
 * Sweeps of a tile are consecutive, and so are the bands of all its sweeps.
 */
#ifndef FFA_TILE_PLAN_H
#define FFA_TILE_PLAN_H

struct plan_tile {
    int row_begin;
    int row_count;        /* 1 to tile_m */
    int sweep_begin;      /* index into sweeps */
    int sweep_count;      /* 0: the rows attend nothing, and are written as empty */
    int band_begin;       /* index into bands: first band of the first sweep */
    int band_count;       /* of all sweeps */
    int block_count;      /* tile_n blocks visited: the tile's weight */
    unsigned short list;  /* which list of slices: 0, or the kv head */
    unsigned short flags; /* PLAN_TILE_...; 0: all that the tile attends is here */
};

/* A tile of a pass in stages, each with some of its keys. */
enum {
    PLAN_TILE_MERGES = 1,    /* not the first: merge with what an earlier stage left */
    PLAN_TILE_CONTINUES = 2, /* not the last: leave an fp32 result for a later stage */
    PLAN_TILE_PART = 4 /* some of the keys of its rows: leave an fp32 result to be combined. In
                        * a device's plan block_count is its first row among those results */
};

/* A row whose keys were split among tiles: the results of its parts. */
struct plan_split {
    int token;
    int part_row; /* of part p: part_row + p * part_step */
    int parts;
    int part_step;
    int list;
    int pad_[3];
};

struct plan_sweep {
    int k_begin, k_end;       /* the union of its bands, in keys; not empty */
    int full_begin, full_end; /* keys that every row of the tile attends; empty: both k_begin */
    int band_begin;           /* relative to the tile's band_begin */
    int band_count;           /* >= 1; bands ascend in rows and are disjoint */
    int pad_[2];
};

/* Row r in [row_begin, row_end) attends [lo + lo_step * (r - row_begin), hi + hi_step * ...). */
struct plan_band {
    int row_begin, row_end; /* absolute rows, inside the tile */
    int lo, hi;             /* at row_begin */
    int lo_step, hi_step;   /* 0 or 1 */
    int pad_[2];
};

#endif
