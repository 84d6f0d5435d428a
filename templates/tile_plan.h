/* SPDX-License-Identifier: Apache-2.0
 *
 * The tile plan of either pass as it lies in memory, read by host (C17) and device (C++17).
 *
 * A tile owns a range of one axis of the mask and visits ranges of the other:
 *
 *              own axis     swept axis    block
 *   forward    query rows   keys          tile_n keys
 *   backward   keys         query rows    tile_m query rows
 *
 * A plan is an array of each kind of record. In device memory the records of both passes are in one
 * image, behind a header that says where they lie (plan_image.h). A tile owns [begin, begin +
 * count) and sweeps contiguous ranges of the other axis one after another, in blocks. The first
 * block starts at the sweep's first index. Backward kernels round that down to a multiple of 8
 * rows, so they may visit one block more than the plan counts. In one sweep an owned index has at
 * most one interval; the bands of the sweep give it. Each index of a sweep's range attends,
 * or is attended by, at least one owned index of the tile. Owned indices without a band in a sweep
 * attend nothing in it.
 *
 * Sweeps of a tile are consecutive, and so are the bands of all its sweeps.
 *
 * Ordered accumulation (backward, deterministic): the plan fixes the order in which tiles add to
 * dq. Blocks of all tiles then lie on one grid: they start at multiples of tile_m, and the first
 * block of a sweep may start before the sweep. A tile visits its sweeps from the last to the first,
 * and the blocks of a sweep from the last to the first. Take the tiles of a list in their order: a
 * visit adds to dq only after all earlier visits of the same block, and its ticket says how many
 * those are. Why descending: the tiles of a causal mask, taken longest first, then all begin at the
 * last block, and those of a window begin where no earlier tile adds. So a tile is one visit behind
 * the tile before it, however far apart they lie.
 */
#ifndef FFA_TILE_PLAN_H
#define FFA_TILE_PLAN_H

enum { PLAN_RECORD_BYTES = 32 }; /* of a tile, a sweep, a band; what an image is measured in */

/* The records of one pass in an image: how many tiles there are, and where each array begins, in
 * records from the begin of the image. */
struct plan_header_pass {
    int tile_count;
    int tiles_at, sweeps_at, bands_at;
};

/* The begin of an image: every count and offset that depends on the mask. A launch has the address
 * of the image and nothing else of the mask but its shape, so that a launch in a CUDA graph works
 * on whichever mask's image is there when it runs. */
struct plan_header {
    struct plan_header_pass forward, backward;
    int tickets_at; /* of the backward pass, in records of PLAN_RECORD_BYTES */
    int lockstep;   /* of the backward pass: PLAN_LOCKSTEP..., or 0 */
    int pad_[6];
};

enum {
    /* Backward: one wave goes through the query rows from the first to the last, the next one from
     * the last to the first. Of a block of rows, all heads of the head group come one after the
     * other. */
    PLAN_LOCKSTEP = 1,
    PLAN_LOCKSTEP_DESCENDING = 2 /* with it: the first wave begins at the last row */
};

struct plan_tile {
    int begin;            /* first owned index */
    int count;            /* owned indices: 1 to the tile's size */
    int sweep_begin;      /* index into sweeps */
    int sweep_count;      /* 0: attends nothing; its results are written as empty, or zeros */
    int band_begin;       /* index into bands: first band of the first sweep */
    int band_count;       /* of all sweeps */
    int part_row;         /* of a part (PLAN_TILE_PART): first row of its results; else 0 */
    unsigned short list;  /* which list of slices: 0, or the kv head */
    unsigned short flags; /* PLAN_TILE_...; 0: all that the tile attends is here */
};

/* A tile whose cells are not all in this plan. In a pass in stages each stage has some of them; an
 * owned range that a stage does not work on is in no tile of its plan. */
enum {
    PLAN_TILE_MERGES = 1,    /* not the first stage of the tile: merge with what is there */
    PLAN_TILE_CONTINUES = 2, /* not the last one: leave an fp32 result for a later stage */
    PLAN_TILE_PART = 4       /* one of several tiles that share these rows' keys: leave an fp32
                              * result from part_row on, to be combined */
};

struct plan_sweep {
    int begin, end;           /* of the swept axis: the union of its bands; not empty */
    int full_begin, full_end; /* attended with every owned index; empty: both `begin` */
    int band_begin;           /* relative to the tile's band_begin */
    int band_count;           /* >= 1; bands ascend in owned indices and are disjoint */
    int ticket_begin;         /* index into tickets; 0 of a plan without */
    int ticket_count;         /* >= 1; 0 of a plan without */
};

/* Owned index i in [begin, end) attends, or is attended by, the swept indices
 * [lo + lo_step * (i - begin), hi + hi_step * (i - begin)). */
struct plan_band {
    int begin, end;       /* inside the tile */
    int lo, hi;           /* at `begin` */
    int lo_step, hi_step; /* 0 or 1 */
    int pad_[2];
};

/* Ordered accumulation: a run of blocks of a sweep that are each visited after `before` other
 * visits. The run is from the block at `row` up to the run of the ticket before it, or to the end
 * of the sweep. Tickets stand in the order of visits. */
struct plan_ticket {
    int row; /* a multiple of tile_m; of the last ticket, where the first block starts */
    int before;
};

/* A query row whose keys were split among tiles: where the results of its parts are. */
struct plan_split {
    int token;
    int part_row; /* of part p: part_row + p * part_step */
    int parts;
    int part_step;
    int list;
    int pad_[3];
};

/* The owned indices [*first, *last) of a band that attend, or are attended by, the swept index
 * `at`; *first >= *last: none. In a sweep of several bands, the union over them. */
#ifdef __CUDACC__
__device__ __forceinline__
#else
static inline
#endif
    void
    plan_band_own(const struct plan_band *band, int at, int *first, int *last)
{
    /* With step 1, lo <= at up to the index begin + at - lo, and at < hi beyond begin + at - hi;
     * with step 0, for all indices or for none. */
    int from = band->begin, to = band->end;

    if (band->lo_step) {
        const int reach = at - band->lo + 1;

        to = reach < to - from ? from + reach : to;
    } else if (at < band->lo) {
        to = from;
    }
    if (at >= band->hi)
        from = band->hi_step ? from + (at - band->hi) + 1 : to;
    *first = from;
    *last = to;
}

#endif
