/* SPDX-License-Identifier: Apache-2.0
 *
 * The backward tile plan as it lies in memory, read by host (C17) and device (C++17).
 *
 * It is the forward plan (tile_plan.h) with the sides exchanged. A plan is one buffer of three
 * arrays: tiles, then sweeps, then bands. A tile owns the keys [key_begin, key_begin + key_count)
 * and sweeps query rows, one range after another, in blocks of tile_m rows that start at the
 * sweep's own first row; the kernel starts at the multiple of 8 at or before it, which may take a
 * block more than the plan counts. In one sweep a key has at most one interval of rows; the bands
 * of the sweep give it. Every row of a sweep's range attends some key of the tile. Keys without a
 * band in a sweep are attended by no row of it.
 *
 * Sweeps of a tile are consecutive, and so are the bands of all its sweeps.
 *
 * A plan in turns gives the sums of dq an order. Blocks of all tiles lie on one grid there: they
 * start at multiples of tile_m, and the first of a sweep may start before it. Tiles visit their
 * sweeps from the last to the first, and the blocks of a sweep from the last to the first, and
 * each visit of a block, over all tiles of the list in their order, adds to dq after those before
 * it: the turns of the sweep count them. (Descending, because then the tiles of a causal mask,
 * longest first, all begin at the last block, and those of a window where no earlier one adds: a
 * tile lags the one before by what a turn takes, and not by their distance, too.)
 */
#ifndef FFA_BACKWARD_PLAN_H
#define FFA_BACKWARD_PLAN_H

struct backward_tile {
    int key_begin;
    int key_count;   /* 1 to tile_n */
    int sweep_begin; /* index into sweeps */
    int sweep_count; /* 0: no row attends the keys; their dk and dv are written as zeros */
    int band_begin;  /* index into bands: first band of the first sweep */
    int band_count;  /* of all sweeps */
    int block_count; /* tile_m blocks visited for one query head: the tile's weight */
    int list;        /* which list of slices: 0, or the kv head */
};

struct backward_sweep {
    int q_begin, q_end;       /* the union of its bands, in query rows; not empty */
    int full_begin, full_end; /* rows that attend every key of the tile; empty: both q_begin */
    int band_begin;           /* relative to the tile's band_begin */
    int band_count;           /* >= 1; bands ascend in keys and are disjoint */
    int turn_begin;           /* index into turns; 0 of a plan without */
    int turn_count;           /* >= 1; 0 of a plan without */
};

/* Of a sweep, in the order of visits: its blocks from the one at `row` up, those of the turns
 * before left out, are visited after `before` others of theirs. */
struct backward_turn {
    int row; /* a multiple of tile_m; of the last turn, where the first block starts */
    int before;
};

/* Key k in [key_begin, key_end) is attended by the query rows
 * [lo + lo_step * (k - key_begin), hi + hi_step * (k - key_begin)). */
struct backward_band {
    int key_begin, key_end; /* absolute keys, inside the tile */
    int lo, hi;             /* at key_begin */
    int lo_step, hi_step;   /* 0 or 1 */
    int pad_[2];
};

/* The keys [*begin, *end) of a band that query row `row` attends; *begin >= *end: none. For a
 * kernel that masks by rows; in a sweep of several bands, a row's keys are the union over them. */
#ifdef __CUDACC__
__device__ __forceinline__
#else
static inline
#endif
    void
    backward_band_keys(const struct backward_band *band, int row, int *begin, int *end)
{
    /* With step 1, lo <= row up to key key_begin + row - lo, and row < hi beyond key_begin + row -
     * hi; with step 0, for all keys or for none. */
    int first = band->key_begin, last = band->key_end;

    if (band->lo_step) {
        const int reach = row - band->lo + 1;

        last = reach < last - first ? first + reach : last;
    } else if (row < band->lo) {
        last = first;
    }
    if (row >= band->hi)
        first = band->hi_step ? first + (row - band->hi) + 1 : last;
    *begin = first;
    *end = last;
}

#endif
