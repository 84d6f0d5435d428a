/* SPDX-License-Identifier: Apache-2.0
 *
 * Cost tables: the constants that were fitted to one device model.
 *
 * A table is plain data, one struct without pointers: a tuner may fill one, cost_table_json.h reads
 * and writes it. What
 * scales with a device (SMs, L2) is given with the device it was measured on, so that the functions
 * of this room scale it by the facts of the device at hand. On the measured device they return
 * exactly the table's values. Lookups return a table that lives as long as the process.
 */
#ifndef FFA_CHOOSE_COST_TABLE_H
#define FFA_CHOOSE_COST_TABLE_H

#include "base/base.h"
#include "base/device_facts.h"
#include "base/digest.h"
#include <ffa/choice.h>

/* What tiles of a forward kernel are expected to cost: `begin` to begin and end a tile, `key` each
 * key of its blocks; in keys of the kernel of the same head_dim whose `key` is 1. */
struct tile_cost {
    double begin, key;
};

/* A tile that plans may be for. */
struct cost_tile {
    int32_t head_dim, head_dim_v; /* columns that the kernel computes with, of q and k, and of v */
    int32_t packed;               /* 1: heads are packed; 0: they are apart */
    int32_t consumers, tile_n;
    struct tile_cost cost;
    double unit_us; /* what 1 of the cost takes, in microseconds; 0: not known */
};

enum { COST_TILES_MAX = 64 };

/* When each document of a packed plan gets tiles of its own. */
struct apart_costs {
    double tile_rows_max; /* tiles' rows, used or not, a query row: beyond that, costs decide */
    double cost_max;      /* then: as a multiple of what tiles across documents cost */
};

/* Tiles split over their keys. */
struct split_costs {
    int32_t part_blocks_min; /* what a part must have to be worth its merging */
    int32_t shares;        /* a part is one SM's share of the blocks, or a half .. 1/shares of it */
    int32_t idle_permille; /* fewer items than this share of the SMs leave the device idle */
    /* A split that nobody asked for must save this share of the time, in which a whole tile and a
     * part cost so many keys besides their own: to begin and end it; a part also to write its fp32
     * rows, and its share of the kernel that combines them. */
    int32_t whole_keys, part_keys;
    double saved_share_min;
};

/* How many kv heads a forward pass works on together (l2_heads.h). */
struct l2_costs {
    /* Items of equal work take times that differ by up to this share, either way: without it, items
     * of a causal mask pair up, long with short, as no device does. */
    double uneven;
    /* Of what tiles read again in another wave, L2 has kept all while K and V under work are up to
     * `kept` times l2_group_bytes, and nothing from `kept` + 1 times on; in between, linearly. */
    double kept;
    /* A key that is read from device memory takes as long as so many cells that one SM computes. */
    double key_cells;
    /* The share of a pass that it costs to take heads of l2_group_bytes in turn: SMs side by side
     * then read different ones, and L2 joins fewer of their requests. */
    double turns;
    double worth; /* the share that fewer heads have to save */
};

/* An L2 group of a backward pass has from 1 to so many waves of work items. */
enum { ORDER_WAVES_MAX = 4 };

/* The order of a backward pass (order.h). Times are in blocks of one query head. */
struct order_costs {
    double item_blocks; /* to begin and end an item */
    /* What a pass takes longer where all visits miss L2 and no SM is idle; and the share of visits,
     * times the share of SMs at work, that may miss and cost nothing (visits.h). */
    double miss_cost, miss_free;
    /* With ordered accumulation. */
    double item_blocks_ordered;    /* to begin and end an item, which also waits */
    double drift_ordered;          /* each further head of an item */
    double drift_ordered_lockstep; /* in lockstep, times the spread of tile lengths */
    double drift_heads;            /* heads that the drift was measured for, beyond the first */
    double alone_ordered;          /* an item of one head, times the spread */
    double misses;                 /* in lockstep: tiles that share no rows, where no SM is idle */
    /* Of an L2 group of so many waves, those of one first, as a share of the time: of masks that
     * cannot go in lockstep, which miss, and of those in lockstep, which wait. */
    double l2_misses[ORDER_WAVES_MAX], l2_waits[ORDER_WAVES_MAX];
    double sum_blocks; /* one key of a part's sums of dk and dv, written and read: in blocks of
                        * 64 rows x 128 keys on one SM of the measured device */
    double worth;      /* the share of the time that more parts have to save */
};

struct cost_table {
    char device[128]; /* the model it was fitted on, as the driver names it */
    int32_t sm_count; /* of that device */
    int64_t l2_bytes;
    char templates[40];     /* ffa_templates_digest() of the kernels it was fitted with; "": of a
                             * built-in table */
    char origin[160];       /* in words: session, date, driver; decides nothing */
    int64_t l2_group_bytes; /* K and V at work that L2 mostly keeps, on that device (l2_heads.c) */
    int32_t tile_count;
    /* Tiles of the same columns and packing are a group, the one for all masks first; their costs
     * are in one unit. Of heads apart without tiles here the architecture decides (spec_choice.h).
     */
    struct cost_tile tiles[COST_TILES_MAX];
    struct tile_cost packed_cost; /* of packed heads without tiles here */
    int32_t packed_rows_min;      /* of 128, that a packed group must fill */
    double worth; /* the share that another kernel than the first has to save: with few tiles, what
                   * the model leaves out is more */
    struct apart_costs apart;
    struct split_costs split;
    struct l2_costs l2;
    struct order_costs order;
};

/* The built-in table of the device with this name; else the default. NULL: the default. */
const struct cost_table *cost_table_find(const char *device);
/* The built-in tables, the default first; NULL past the last. */
const struct cost_table *cost_table_at(int32_t index);

/* A device as the functions of this room take it. */
struct choose_device {
    struct device_facts facts;
    const struct cost_table *costs;
    ffa_cost_source source;   /* why it has these */
    char digest[DIGEST_TEXT]; /* of them */
};

/* A device with a built-in table. cost_tables.h has those of a context. */
struct choose_device choose_device_of(const struct device_facts *facts);

#endif
