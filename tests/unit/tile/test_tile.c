/* SPDX-License-Identifier: Apache-2.0
 *
 * Tile plans of both passes by hand: small masks with the sweeps written out, order, cuts, tickets,
 * the checker, moved bounds, faults.
 */
#include "support/coverage.h"
#include "support/mask_cases.h"
#include "support/plan_fields.h"
#include "support/rng.h"
#include "support/suite.h"

#include <check.h>
#include <math.h>
#include <stdio.h>

static void build(struct tile_plan *plan, enum tile_axis axis, const ffa_slice *slices,
                  int64_t count, ffa_mask_shape shape, struct tile_options opts)
{
    ffa_error err = { FFA_OK, 0, "" };
    ffa_mask *mask;

    ck_assert_msg(ffa_mask_create(&mask, &shape, slices, count, &err) == FFA_OK, "%s", err.message);
    ck_assert_msg(tile_build(plan, mask, axis, &opts, &err) == FFA_OK, "%s", err.message);
    ck_assert_msg(tile_check(plan, &err) == FFA_OK, "%s", err.message);
    ffa_mask_destroy(mask);
}

/* ---- plans written out ---- */

/* One line a tile, in the order of work: rows, then each sweep "keys(full):rows lo+step hi+step";
 * backward keys, then "rows(full):keys ...". */
static void print_plan(const struct tile_plan *plan, char *text, size_t bytes)
{
    size_t used = 0;

    text[0] = 0;
    for (int64_t t = 0; t < plan->tile_count; t++) {
        const struct plan_tile tile = plan->tiles[t];

        used += (size_t)snprintf(text + used, bytes - used, "%d+%d", tile.begin, tile.count);
        for (int32_t s = 0; s < tile.sweep_count; s++) {
            const struct plan_sweep sweep = plan->sweeps[tile.sweep_begin + s];

            used += (size_t)snprintf(text + used, bytes - used, " %d-%d(%d-%d)", sweep.begin,
                                     sweep.end, sweep.full_begin, sweep.full_end);
            for (int32_t i = 0; i < sweep.band_count; i++) {
                const struct plan_band band = plan->bands[tile.band_begin + sweep.band_begin + i];

                used +=
                    (size_t)snprintf(text + used, bytes - used, ":%d-%d[%d/%d,%d/%d)", band.begin,
                                     band.end, band.lo, band.lo_step, band.hi, band.hi_step);
            }
        }
        used += (size_t)snprintf(text + used, bytes - used, ";");
        ck_assert_uint_lt(used, bytes);
    }
}

/* tile_m: query rows of a tile, or of a block backward; tile_n: keys of a block, or of a tile. */
static const struct {
    enum tile_axis axis;
    const char *name;
    ffa_mask_shape shape;
    struct tile_options opts;
    int64_t count;
    ffa_slice slices[6];
    const char *want;
} plans[] = {
    { TILE_OWNS_QUERIES,
      "nothing attended",
      { 5, 7 },
      { 4, 4, false, false },
      0,
      { { 0 } },
      "0+4;4+1;" },
    { TILE_OWNS_QUERIES,
      "full",
      { 5, 7 },
      { 4, 4, false, false },
      1,
      { { 0, 5, 0, 7, 0, 0 } },
      "0+4 0-7(0-7):0-4[0/0,7/0);4+1 0-7(0-7):4-5[0/0,7/0);" },
    { TILE_OWNS_QUERIES,
      "causal: the second tile has more to do",
      { 8, 8 },
      { 4, 4, false, false },
      1,
      { { 0, 8, 0, 8, 1, 0 } },
      "4+4 0-8(0-5):4-8[0/0,5/1);0+4 0-4(0-1):0-4[0/0,1/1);" },
    { TILE_OWNS_QUERIES,
      "two slices that make one causal line are one band",
      { 4, 4 },
      { 4, 4, false, false },
      2,
      { { 0, 2, 0, 2, 1, 0 }, { 2, 4, 0, 4, 1, 0 } },
      "0+4 0-4(0-1):0-4[0/0,1/1);" },
    { TILE_OWNS_QUERIES,
      "tiny documents share a tile and a sweep",
      { 4, 4 },
      { 4, 4, false, false },
      3,
      { { 0, 1, 0, 1, 0, 0 }, { 1, 3, 1, 3, 0, 0 }, { 3, 4, 3, 4, 0, 0 } },
      "0+4 0-4(0-0):0-1[0/0,1/0):1-3[1/0,3/0):3-4[3/0,4/0);" },
    { TILE_OWNS_QUERIES,
      "documents with a gap in the keys take a sweep each",
      { 4, 8 },
      { 4, 4, false, false },
      2,
      { { 0, 2, 0, 3, 0, 0 }, { 2, 4, 4, 8, 0, 0 } },
      "0+4 0-3(0-0):0-2[0/0,3/0) 4-8(4-4):2-4[4/0,8/0);" },
    { TILE_OWNS_QUERIES,
      "a second interval of the same rows is a second sweep",
      { 4, 16 },
      { 4, 4, false, false },
      2,
      { { 0, 4, 0, 4, 0, 0 }, { 0, 4, 8, 16, 0, 0 } },
      "0+4 0-4(0-4):0-4[0/0,4/0) 8-16(8-16):0-4[8/0,16/0);" },
    { TILE_OWNS_QUERIES,
      "intervals of different rows that overlap share sweeps",
      { 4, 16 },
      { 4, 4, false, false },
      4,
      { { 0, 2, 0, 4, 0, 0 }, { 0, 2, 8, 12, 0, 0 }, { 2, 4, 3, 8, 0, 0 }, { 2, 4, 12, 16, 0, 0 } },
      "0+4 0-8(3-4):0-2[0/0,4/0):2-4[3/0,8/0) 8-16(8-8):0-2[8/0,12/0):2-4[12/0,16/0);" },
    { TILE_OWNS_QUERIES,
      "a cut at a document start saves a block: 6 + 4 rows, not 4 + 4 + 2",
      { 10, 10 },
      { 6, 4, false, false },
      2,
      { { 0, 6, 0, 6, 0, 0 }, { 6, 10, 6, 10, 0, 0 } },
      "0+6 0-6(0-6):0-6[0/0,6/0);6+4 6-10(6-10):6-10[6/0,10/0);" },
    { TILE_OWNS_QUERIES,
      "cut in the middle of a tile",
      { 16, 16 },
      { 8, 4, false, false },
      2,
      { { 0, 4, 0, 4, 0, 0 }, { 4, 12, 4, 16, 0, 0 } },
      "4+8 4-16(4-16):4-12[4/0,16/0);0+4 0-4(0-4):0-4[0/0,4/0);12+4;" },
    { TILE_OWNS_QUERIES,
      "the same without cuts",
      { 16, 16 },
      { 8, 4, true, false },
      2,
      { { 0, 4, 0, 4, 0, 0 }, { 4, 12, 4, 16, 0, 0 } },
      "0+8 0-16(0-0):0-4[0/0,4/0):4-8[4/0,16/0);8+8 4-16(4-4):8-12[4/0,16/0);" },
    { TILE_OWNS_QUERIES,
      "rows without keys beside rows with keys",
      { 4, 4 },
      { 4, 4, true, false },
      1,
      { { 1, 3, 0, 4, 1, 0 } },
      "0+4 0-4(0-0):1-3[0/0,3/1);" },
    { TILE_OWNS_KEYS,
      "nothing attended: tiles without sweeps",
      { 7, 5 },
      { 2, 4, false, false },
      0,
      { { 0 } },
      "0+4;4+1;" },
    { TILE_OWNS_KEYS,
      "full",
      { 7, 5 },
      { 2, 4, false, false },
      1,
      { { 0, 7, 0, 5, 0, 0 } },
      "0+4 0-7(0-7):0-4[0/0,7/0);4+1 0-7(0-7):4-5[0/0,7/0);" },
    { TILE_OWNS_KEYS,
      "causal: the first keys have more to do, and start at their own row",
      { 8, 8 },
      { 4, 4, false, false },
      1,
      { { 0, 8, 0, 8, 1, 0 } },
      "0+4 0-8(3-8):0-4[0/1,8/0);4+4 4-8(7-8):4-8[4/1,8/0);" },
    { TILE_OWNS_KEYS,
      "causal with more keys than rows: the first keys belong to all rows",
      { 2, 6 },
      { 4, 6, false, false },
      1,
      { { 0, 2, 0, 6, 1, 0 } },
      "0+6 0-2(1-2):0-5[0/0,2/0):5-6[1/0,2/0);" },
    { TILE_OWNS_KEYS,
      "inverse causal",
      { 4, 4 },
      { 4, 4, false, false },
      1,
      { { 0, 4, 0, 4, 2, 0 } },
      "0+4 0-4(0-1):0-4[0/0,1/1);" },
    { TILE_OWNS_KEYS,
      "the diagonal",
      { 4, 4 },
      { 4, 4, false, false },
      1,
      { { 0, 4, 0, 4, 3, 0 } },
      "0+4 0-4(0-0):0-4[0/1,1/1);" },
    { TILE_OWNS_KEYS,
      "a window: rows rise, then fall",
      { 4, 6 },
      { 4, 8, false, false },
      1,
      { { 0, 4, 0, 6, 3, 0 } },
      "0+6 0-4(0-0):0-3[0/0,1/1):3-6[1/1,4/0);" },
    { TILE_OWNS_KEYS,
      "tiny documents share a tile and a sweep",
      { 4, 4 },
      { 4, 4, false, false },
      3,
      { { 0, 1, 0, 1, 0, 0 }, { 1, 3, 1, 3, 0, 0 }, { 3, 4, 3, 4, 0, 0 } },
      "0+4 0-4(0-0):0-1[0/0,1/0):1-3[1/0,3/0):3-4[3/0,4/0);" },
    { TILE_OWNS_KEYS,
      "rows between two documents attend nothing: a sweep each",
      { 9, 4 },
      { 4, 4, false, false },
      2,
      { { 0, 3, 0, 2, 0, 0 }, { 5, 9, 2, 4, 0, 0 } },
      "0+4 0-3(0-0):0-2[0/0,3/0) 5-9(5-5):2-4[5/0,9/0);" },
    { TILE_OWNS_KEYS,
      "rows that attend other keys only are a gap, too",
      { 12, 8 },
      { 4, 4, true, false },
      3,
      { { 0, 4, 0, 4, 0, 0 }, { 4, 8, 4, 8, 0, 0 }, { 8, 12, 0, 4, 0, 0 } },
      "0+4 0-4(0-4):0-4[0/0,4/0) 8-12(8-12):0-4[8/0,12/0);4+4 4-8(4-8):4-8[4/0,8/0);" },
    { TILE_OWNS_KEYS,
      "cut at a document start",
      { 10, 10 },
      { 4, 6, false, false },
      2,
      { { 0, 4, 0, 4, 0, 0 }, { 4, 10, 4, 10, 0, 0 } },
      "4+6 4-10(4-10):4-10[4/0,10/0);0+4 0-4(0-4):0-4[0/0,4/0);" },
    { TILE_OWNS_KEYS,
      "the same without cuts",
      { 10, 10 },
      { 4, 6, true, false },
      2,
      { { 0, 4, 0, 4, 0, 0 }, { 4, 10, 4, 10, 0, 0 } },
      "0+6 0-10(0-0):0-4[0/0,4/0):4-6[4/0,10/0);6+4 4-10(4-10):6-10[4/0,10/0);" },
    { TILE_OWNS_KEYS,
      "keys without rows beside keys with rows",
      { 4, 4 },
      { 4, 4, true, false },
      1,
      { { 0, 4, 1, 3, 0, 0 } },
      "0+4 0-4(0-0):1-3[0/0,4/0);" },
};

START_TEST(plans_as_written)
{
    struct tile_plan plan;
    char got[1024];

    build(&plan, plans[_i].axis, plans[_i].slices, plans[_i].count, plans[_i].shape,
          plans[_i].opts);
    print_plan(&plan, got, sizeof got);
    ck_assert_msg(!strcmp(got, plans[_i].want), "%s, %s:\n got %s\nwant %s",
                  axis_names[plans[_i].axis], plans[_i].name, got, plans[_i].want);
    tile_finish(&plan);
}
END_TEST

/* ---- tickets written out ---- */

/* One line a tile, in the order of work: keys, then each sweep in the order of visits, its tickets
 * as row@before. */
static void print_tickets(const struct tile_plan *plan, char *text, size_t bytes)
{
    size_t used = 0;

    text[0] = 0;
    for (int64_t t = 0; t < plan->tile_count; t++) {
        const struct plan_tile *tile = &plan->tiles[t];

        used += (size_t)snprintf(text + used, bytes - used, "%d+%d", tile->begin, tile->count);
        for (int32_t s = tile->sweep_count - 1; s >= 0; s--) {
            const struct plan_sweep *sweep = &plan->sweeps[tile->sweep_begin + s];

            used +=
                (size_t)snprintf(text + used, bytes - used, " %d-%d:", sweep->begin, sweep->end);
            for (int32_t i = 0; i < sweep->ticket_count; i++)
                used += (size_t)snprintf(text + used, bytes - used, "%s%d@%d", i ? "," : "",
                                         plan->tickets[sweep->ticket_begin + i].row,
                                         plan->tickets[sweep->ticket_begin + i].before);
        }
        used += (size_t)snprintf(text + used, bytes - used, ";");
        ck_assert_uint_lt(used, bytes);
    }
}

static const struct {
    const char *name;
    ffa_mask_shape shape;
    struct tile_options opts;
    int64_t count;
    ffa_slice slices[4];
    const char *want;
} tickets[] = {
    { "nothing attended: no visits", { 7, 5 }, { 2, 4, false, true }, 0, { { 0 } }, "0+4;4+1;" },
    { "full: a ticket a tile",
      { 7, 9 },
      { 2, 4, false, true },
      1,
      { { 0, 7, 0, 9, 0, 0 } },
      "0+4 0-7:0@0;4+4 0-7:0@1;8+1 0-7:0@2;" },
    { "causal: all tiles before have every block of a tile",
      { 12, 12 },
      { 2, 4, false, true },
      1,
      { { 0, 12, 0, 12, 1, 0 } },
      "0+4 0-12:0@0;4+4 4-12:4@1;8+4 8-12:8@2;" },
    { "inverse causal: the last keys have most to do",
      { 12, 12 },
      { 2, 4, false, true },
      1,
      { { 0, 12, 0, 12, 2, 0 } },
      "8+4 0-12:0@0;4+4 0-8:0@1;0+4 0-4:0@2;" },
    { "a window: fewer come before the last rows",
      { 10, 13 },
      { 2, 4, TILE_CUTS_NONE, true },
      1,
      { { 0, 10, 0, 13, 3, 0 } },
      "4+4 1-8:0@0;8+4 5-10:8@0,4@1;0+4 0-4:0@1;12+1 9-10:8@1;" },
    { "a sweep starts inside a block, whose rows before it are another tile's",
      { 10, 8 },
      { 4, 4, TILE_CUTS_NONE, true },
      2,
      { { 0, 5, 0, 4, 0, 0 }, { 5, 10, 4, 8, 0, 0 } },
      "0+4 0-5:0@0;4+4 5-10:8@0,4@1;" },
    { "two sweeps of a tile visit a block one after the other: the last first",
      { 8, 4 },
      { 4, 4, TILE_CUTS_NONE, true },
      2,
      { { 0, 2, 0, 4, 0, 0 }, { 3, 8, 0, 4, 0, 0 } },
      "0+4 3-8:0@0 0-2:0@1;" },
};

START_TEST(tickets_as_written)
{
    struct tile_plan plan;
    struct coverage_text why;
    char got[1024];

    build(&plan, TILE_OWNS_KEYS, tickets[_i].slices, tickets[_i].count, tickets[_i].shape,
          tickets[_i].opts);
    print_tickets(&plan, got, sizeof got);
    ck_assert_msg(!strcmp(got, tickets[_i].want), "%s:\n got %s\nwant %s", tickets[_i].name, got,
                  tickets[_i].want);
    ck_assert_msg(coverage_tickets(&plan, &why), "%s: %s", tickets[_i].name, why.at);
    tile_finish(&plan);
}
END_TEST

/* Each list has its own, being another kv head's. */
START_TEST(tickets_of_lists_start_anew)
{
    const ffa_mask_shape shape = { 8, 8 };
    const ffa_slice full = { 0, 8, 0, 8, 0, 0 };
    const ffa_slice_list lists[] = { { &full, 1 }, { &full, 1 } };
    const struct tile_options opts = { .tile_m = 4, .tile_n = 4, .on_grid = true };
    struct tile_plan plan;
    ffa_mask *mask;
    char got[256];

    ck_assert_int_eq(ffa_mask_create_per_head(&mask, &shape, lists, 2, NULL), FFA_OK);
    ck_assert_int_eq(tile_build(&plan, mask, TILE_OWNS_KEYS, &opts, NULL), FFA_OK);
    ck_assert_int_eq(tile_check(&plan, NULL), FFA_OK);
    print_tickets(&plan, got, sizeof got);
    ck_assert_str_eq(got, "0+4 0-8:0@0;4+4 0-8:0@1;0+4 0-8:0@0;4+4 0-8:0@1;");
    /* Tiles of one wave belong to different heads and share no rows. */
    ck_assert_int_eq(plan.lockstep, TILE_LOCKSTEP_NONE);
    tile_finish(&plan);
    ffa_mask_destroy(mask);
}
END_TEST

/* Whether nine in ten blocks are of tiles that end, or begin, where fewer tiles pass. Tiles have 4
 * keys, blocks 2 rows. documents: where each tile of the plan ends (begins), if it goes in
 * lockstep.
 */
static const struct {
    const char *mask;
    enum tile_lockstep want;
    const char *documents;
} locksteps[] = {
    { "full:16", TILE_LOCKSTEP_DESCENDING, "7 7 7 7" },
    { "causal:16", TILE_LOCKSTEP_DESCENDING, "7 7 7 7" },
    { "@inverse_causal", TILE_LOCKSTEP_ASCENDING, "0 0 0 0" },
    /* Each ends two blocks before the next one. */
    { "window:40,left=7,right=0", TILE_LOCKSTEP_NONE, "" },
    { "window:40,left=4,right=0", TILE_LOCKSTEP_NONE, "" },
    { "window:40,left=1,right=0", TILE_LOCKSTEP_NONE, "" }, /* none passes, but each ends alone */
    { "varlen-causal:8,8", TILE_LOCKSTEP_DESCENDING, "3 7 3 7" },
    { "varlen-full:8,16", TILE_LOCKSTEP_DESCENDING, "11 11 11 11 3 3" },
    /* Documents that meet within a block of rows, and within a tile, which then ends with the later
     * one. */
    { "varlen-causal:15,17", TILE_LOCKSTEP_DESCENDING, "15 7 15 7 15 7 15 15" },
    { "varlen-causal:9,10,13", TILE_LOCKSTEP_DESCENDING, "15 9 15 4 9 15 4 15" },
    /* A prefix that all rows see has 4 tiles, each of the documents 2: where these end, more pass.
     */
    { "shared-prefix:16,8,8,8", TILE_LOCKSTEP_NONE, "" },
    { "shared-prefix:4,16,16", TILE_LOCKSTEP_DESCENDING, "17 9 17 9 17 9 17 9 17" },
    { "@nothing", TILE_LOCKSTEP_NONE, "" },
};

START_TEST(tiles_in_lockstep)
{
    const struct tile_options opts = { 2, 4, TILE_CUTS_NONE, false };
    const char *text = locksteps[_i].mask;
    struct tile_plan plan;
    struct text got = { 0 };
    ffa_mask *mask;

    if (*text == '@') {
        const ffa_mask_shape shape = { 16, 16 };
        const ffa_slice slice = { 0, 16, 0, 16, 2, 0 };

        ck_assert_int_eq(ffa_mask_create(&mask, &shape, &slice, text[1] == 'i', NULL), FFA_OK);
    } else {
        ck_assert_int_eq(ffa_mask_parse(&mask, text, NULL), FFA_OK);
    }
    ck_assert_int_eq(tile_build(&plan, mask, TILE_OWNS_KEYS, &opts, NULL), FFA_OK);
    ck_assert_msg(plan.lockstep == locksteps[_i].want, "%s: %d", text, plan.lockstep);
    for (int64_t t = 0; plan.lockstep != TILE_LOCKSTEP_NONE && t < plan.tile_count; t++)
        text_add(&got, "%s%d", t ? " " : "", tile_document(&plan, t));
    ck_assert_msg(!strcmp(got.at ? got.at : "", locksteps[_i].documents), "%s: %s", text, got.at);
    text_finish(&got);
    tile_finish(&plan);
    ffa_mask_destroy(mask);
}
END_TEST

/* A million tokens: a turn a tile of a causal mask, half a window's blocks for a tile in it. */
START_TEST(tickets_are_few)
{
    const int64_t n = 1 << 20;
    const struct tile_options opts = { .tile_m = 64, .tile_n = 128, .on_grid = true };
    struct tile_plan plan;

    build(&plan, TILE_OWNS_KEYS, &(ffa_slice){ 0, n, 0, n, 1, 0 }, 1, (ffa_mask_shape){ n, n },
          opts);
    ck_assert_int_eq(plan.tile_count, n / 128);
    ck_assert_int_eq(plan.ticket_count, n / 128);
    tile_finish(&plan);
    build(&plan, TILE_OWNS_KEYS, &(ffa_slice){ 0, n, 0, n + 4096, 3, 0 }, 1,
          (ffa_mask_shape){ n, n + 4096 }, opts);
    ck_assert_int_le(plan.ticket_count, 34 * plan.tile_count);
    ck_assert_int_ge(plan.ticket_count, 32 * plan.tile_count);
    tile_finish(&plan);
}
END_TEST

/* ---- lists, order, large numbers ---- */

START_TEST(lists_stand_one_after_another)
{
    static const struct {
        ffa_mask_shape shape;
        ffa_slice slices[2];
        struct tile_options opts;
        int64_t area, blocks, partial; /* 7 tiles a list */
    } cases[AXES] = {
        /* partial: the diagonal; the last 4 keys of each row */
        { { 100, 100 },
          { { 0, 100, 0, 100, 1, 0 }, { 0, 100, 0, 100, 0, 0 } },
          { 16, 16, false, false },
          5050 + 10000,
          28 + 49,
          7 + 7 },
        /* nobody attends the 36 keys before the square, which no block of it attends fully */
        { { 64, 100 },
          { { 0, 64, 36, 100, 1, 0 }, { 0, 64, 0, 100, 0, 0 } },
          { 32, 16, true, false },
          64 * 65 / 2 + 6400,
          8 + 14,
          8 + 0 },
    };
    const ffa_slice_list lists[] = { { &cases[_i].slices[0], 1 },
                                     { &cases[_i].slices[1], 1 },
                                     { NULL, 0 } };
    struct tile_plan plan;
    ffa_mask *mask;

    ck_assert_int_eq(ffa_mask_create_per_head(&mask, &cases[_i].shape, lists, 3, NULL), FFA_OK);
    ck_assert_int_eq(tile_build(&plan, mask, (enum tile_axis)_i, &cases[_i].opts, NULL), FFA_OK);
    ck_assert_int_eq(tile_check(&plan, NULL), FFA_OK);
    for (int32_t l = 0; l < 3; l++)
        ck_assert_int_eq(plan.list_begin[l + 1] - plan.list_begin[l], 7);
    ck_assert_int_eq(plan.tile_count, 21);
    ck_assert_int_eq(plan.area, cases[_i].area);
    ck_assert_int_eq(plan.block_count, cases[_i].blocks);
    ck_assert_int_eq(plan.partial_blocks, cases[_i].partial);
    ck_assert_int_eq(plan.tiles[plan.list_begin[2]].sweep_count, 0);
    tile_finish(&plan);
    ffa_mask_destroy(mask);
}
END_TEST

/* The order is a radix sort: more than one digit, and many ties. */
START_TEST(longest_first_then_lower_rows)
{
    const ffa_mask_shape shape = { 40000, 40000 };
    const ffa_slice slices[] = { { 0, 20000, 0, 40000, 1, 0 }, { 20000, 40000, 0, 777, 0, 0 } };
    struct tile_plan plan;

    build(&plan, TILE_OWNS_QUERIES, slices, 2, shape, (struct tile_options){ 16, 1, false, false });

    ck_assert_int_eq(plan.block_counts[0], 40000);
    ck_assert_int_eq(plan.block_counts[plan.tile_count - 1], 777);
    ck_assert_int_eq(plan.tiles[plan.tile_count - 1].begin, 40000 - 16);
    tile_finish(&plan);

    build(&plan, TILE_OWNS_KEYS, &(ffa_slice){ 0, 1000, 0, 1000, 1, 0 }, 1,
          (ffa_mask_shape){ 1000, 1000 }, (struct tile_options){ 8, 16, false, false });
    for (int64_t i = 0; i < plan.tile_count; i++)
        ck_assert_int_eq(plan.tiles[i].begin, 16 * i);
    ck_assert_int_eq(plan.block_counts[0], 125);
    tile_finish(&plan);
}
END_TEST

START_TEST(large_numbers_do_not_wrap)
{
    const int64_t huge = INT32_MAX;
    const ffa_slice wide = { 0, 65, 0, huge, 1, 0 };
    const ffa_slice tall[] = { { 0, huge, 0, 65, 2, 0 }, { huge - 65, huge, 0, 65, 1, 0 } };
    const ffa_slice square = { 0, huge, 0, huge, 1, 0 };
    struct tile_plan plan;

    build(&plan, TILE_OWNS_QUERIES, &wide, 1, (ffa_mask_shape){ 65, huge },
          (struct tile_options){ 64, 128, false, false });

    ck_assert_int_eq(plan.block_counts[0], 1 << 24);
    ck_assert_int_eq(plan.area, 65 * huge - 65 * 64 / 2);
    tile_finish(&plan);
    build(&plan, TILE_OWNS_QUERIES, &wide, 1, (ffa_mask_shape){ huge, huge },
          (struct tile_options){ 1 << 24, 1 << 20, false, false });
    ck_assert_int_eq(plan.tile_count, 128);
    tile_finish(&plan);

    build(&plan, TILE_OWNS_KEYS, tall, 2, (ffa_mask_shape){ huge, 65 },
          (struct tile_options){ 128, 64, false, false });
    ck_assert_int_eq(plan.area, 65 * 66);
    ck_assert_int_eq(plan.sweep_count, 4);
    tile_finish(&plan);
    build(&plan, TILE_OWNS_KEYS, &square, 1, (ffa_mask_shape){ huge, huge },
          (struct tile_options){ 1 << 20, 1 << 24, false, false });
    ck_assert_int_eq(plan.tile_count, 128);
    ck_assert_int_eq(plan.area, huge * (huge + 1) / 2);
    tile_finish(&plan);
}
END_TEST

/* Random unions moved up to the last key, or the last row, there can be. */
START_TEST(unions_at_the_end_of_the_numbers)
{
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct rng rng = { seed + 1000 * (uint64_t)_i };
        struct mask_case drawn = mask_case_random(&rng, 100, 12);
        const int64_t q_shift = _i ? INT32_MAX - drawn.shape.seqlen_q : 0;
        const int64_t k_shift = _i ? 0 : INT32_MAX - drawn.shape.seqlen_k;
        const ffa_mask_shape shape = { drawn.shape.seqlen_q + q_shift,
                                       drawn.shape.seqlen_k + k_shift };
        /* Cuts, and the same number of keys a block wherever they begin. */
        const struct tile_options opts = { _i ? 1 << 27 : 16, 16, seed % 4 == 0, false };
        struct tile_plan plan;

        for (int64_t i = 0; i < drawn.count; i++) {
            drawn.slices[i].q_begin += q_shift;
            drawn.slices[i].q_end += q_shift;
            drawn.slices[i].k_begin += k_shift;
            drawn.slices[i].k_end += k_shift;
        }
        if (_i && drawn.count > 1)
            drawn.count = 1; /* the checker walks the rows of a tile with more than a sweep */
        build(&plan, TILE_OWNS_QUERIES, drawn.slices, drawn.count, shape, opts);
        tile_finish(&plan);
        free(drawn.slices);
    }
}
END_TEST

/* ---- the checker sees every field ---- */

/* Every kind of bound occurs: both slopes, gaps, second sweeps, rows (keys, backward) of nothing,
 * full blocks. */
static const struct {
    ffa_mask_shape shape;
    struct tile_options opts;
    int64_t count;
    ffa_slice slices[7];
} many[AXES] = {
    { { 130, 100 },
      { 32, 16, false, false },
      5,
      { { 0, 40, 0, 64, 1, 0 },
        { 40, 90, 10, 80, 3, 0 },
        { 40, 90, 90, 100, 0, 0 },
        { 95, 120, 0, 30, 2, 0 },
        { 100, 120, 35, 100, 1, 0 } } },
    { { 180, 200 },
      { 16, 32, false, false },
      7,
      { { 0, 100, 0, 50, 0, 0 },
        { 20, 120, 50, 110, 1, 0 },
        { 130, 150, 50, 110, 0, 0 },
        { 10, 130, 110, 150, 2, 0 },
        { 0, 160, 155, 200, 1, 0 },
        { 165, 180, 160, 190, 3, 0 },
        { 150, 165, 100, 130, 3, 0 } } },
};

static const struct {
    const char *name;
    enum plan_array array;
    size_t offset;
    bool backward_only;
} fields[] = {
    { "row_begin", TILE_FIELD(begin), false },
    { "row_count", TILE_FIELD(count), false },
    { "sweep_begin", TILE_FIELD(sweep_begin), false },
    { "sweep_count", TILE_FIELD(sweep_count), false },
    { "band_begin", TILE_FIELD(band_begin), false },
    { "band_count", TILE_FIELD(band_count), false },
    { "block_count", PLAN_BLOCK_COUNTS, 0, false },
    { "rows_begin", ROWS_FIELD(begin), true },
    { "rows_end", ROWS_FIELD(end), true },
    { "partial_blocks", ROWS_FIELD(partial_blocks), true },
    { "part_row", TILE_FIELD(part_row), false },
    { "list", TILE_FIELD(list), false },
    { "k_begin", SWEEP_FIELD(begin), false },
    { "k_end", SWEEP_FIELD(end), false },
    { "full_begin", SWEEP_FIELD(full_begin), false },
    { "full_end", SWEEP_FIELD(full_end), false },
    { "band_begin", SWEEP_FIELD(band_begin), false },
    { "band_count", SWEEP_FIELD(band_count), false },
    { "ticket_begin", SWEEP_FIELD(ticket_begin), true },
    { "ticket_count", SWEEP_FIELD(ticket_count), true },
    { "row_begin", BAND_FIELD(begin), false },
    { "row_end", BAND_FIELD(end), false },
    { "lo", BAND_FIELD(lo), false },
    { "hi", BAND_FIELD(hi), false },
    { "lo_step", BAND_FIELD(lo_step), false },
    { "hi_step", BAND_FIELD(hi_step), false },
    { "pad_", BAND_FIELD(pad_), true },
    { "row", TICKET_FIELD(row), true },
    { "before", TICKET_FIELD(before), true },
};

static void any_field_off_by_one(enum tile_axis axis, int field, bool is_ordered)
{
    struct tile_options opts = many[axis].opts;
    struct tile_plan plan;

    opts.on_grid = is_ordered;
    build(&plan, axis, many[axis].slices, many[axis].count, many[axis].shape, opts);
    ck_assert_int_eq(plan.ticket_count > 0, is_ordered);
    for (int64_t i = 0; i < plan_records(&plan, fields[field].array); i++)
        for (int32_t by = -1; by <= 1; by += 2) {
            int32_t *value = plan_field(&plan, fields[field].array, fields[field].offset, i);
            ffa_error err = { FFA_OK, 0, "" };

            *value += by;
            ck_assert_msg(tile_check(&plan, &err) == FFA_BUG, "%s, %s of %lld, %+d: not seen",
                          axis_names[axis], fields[field].name, (long long)i, by);
            ck_assert_str_ne(err.message, "");
            *value -= by;
        }
    ck_assert_int_eq(tile_check(&plan, NULL), FFA_OK);
    tile_finish(&plan);
}

START_TEST(any_field_off_by_one_is_found)
{
    if (!fields[_i].backward_only)
        any_field_off_by_one(TILE_OWNS_QUERIES, _i, false);
    any_field_off_by_one(TILE_OWNS_KEYS, _i, false);
    any_field_off_by_one(TILE_OWNS_KEYS, _i, true);
}
END_TEST

START_TEST(totals_are_checked)
{
    const enum tile_axis axis = (enum tile_axis)_i;
    struct tile_options opts = many[axis].opts;
    struct tile_plan plan;
    int64_t *const totals[] = { &plan.block_count, &plan.partial_blocks, &plan.area,
                                axis == TILE_OWNS_KEYS ? &plan.ticket_count : &plan.tile_count };

    opts.on_grid = axis == TILE_OWNS_KEYS;
    build(&plan, axis, many[axis].slices, many[axis].count, many[axis].shape, opts);
    for (int i = 0; i < 4; i++) {
        ++*totals[i];
        ck_assert_int_eq(tile_check(&plan, NULL), FFA_BUG);
        --*totals[i];
    }
    tile_finish(&plan);
}
END_TEST

/* ---- no memory ---- */

START_TEST(any_allocation_may_fail)
{
    const enum tile_axis axis = (enum tile_axis)_i;
    ffa_slice slices[64];
    const ffa_mask_shape shape = { 700, 700 };
    const struct tile_options opts = { .tile_m = 16,
                                       .tile_n = 16,
                                       .on_grid = axis == TILE_OWNS_KEYS };
    struct tile_plan plan;
    ffa_mask *mask;
    ffa_status rc;

    for (int64_t i = 0; i < 64; i++)
        slices[i] = (ffa_slice){ i * 10,           i * 10 + 17,
                                 i * 7 % 200,      i * 7 % 200 + 90 + i * 5,
                                 (int32_t)(i % 4), 0 };
    ck_assert_int_eq(ffa_mask_create(&mask, &shape, slices, 64, NULL), FFA_OK);
    for (long nth = 1;; nth++) {
        ffa_error err = { FFA_OK, 0, "" };

        fault_arm(FAULT_ALLOC, nth);
        rc = tile_build(&plan, mask, axis, &opts, &err);
        if (!fault_fired())
            break; /* every site was tried */
        ck_assert_int_eq(rc, FFA_NOMEM);
        ck_assert_ptr_null(plan.tiles);
        ck_assert_ptr_null(plan.block_counts);
        ck_assert_ptr_null(plan.tickets);
        ck_assert_int_eq(plan.tile_count, 0);
        ck_assert_str_ne(err.message, "");
        ck_assert_int_lt(nth, 1000);
    }
    ck_assert_int_eq(rc, FFA_OK);
    for (long nth = 1;; nth++) {
        ffa_error err = { FFA_OK, 0, "" };

        fault_arm(FAULT_ALLOC, nth);
        rc = tile_check(&plan, &err);
        if (!fault_fired())
            break;
        ck_assert_int_eq(rc, FFA_NOMEM);
        ck_assert_str_ne(err.message, "");
    }
    fault_arm(FAULT_ALLOC, 0);
    ck_assert_int_eq(rc, FFA_OK);
    tile_finish(&plan);
    ffa_mask_destroy(mask);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("plan");
    TCase *tc = tcase_create("plan");

    tcase_set_timeout(tc, 60); /* a million tokens under a sanitizer */
    tcase_add_loop_test(tc, plans_as_written, 0, sizeof plans / sizeof *plans);
    tcase_add_loop_test(tc, tickets_as_written, 0, sizeof tickets / sizeof *tickets);
    tcase_add_test(tc, tickets_of_lists_start_anew);
    tcase_add_test(tc, tickets_are_few);
    tcase_add_loop_test(tc, tiles_in_lockstep, 0, sizeof locksteps / sizeof *locksteps);
    tcase_add_loop_test(tc, lists_stand_one_after_another, 0, AXES);
    tcase_add_test(tc, longest_first_then_lower_rows);
    tcase_add_test(tc, large_numbers_do_not_wrap);
    tcase_add_loop_test(tc, unions_at_the_end_of_the_numbers, 0, 2);
    tcase_add_loop_test(tc, any_field_off_by_one_is_found, 0, sizeof fields / sizeof *fields);
    tcase_add_loop_test(tc, totals_are_checked, 0, AXES);
    tcase_add_loop_test(tc, any_allocation_may_fail, 0, AXES);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
