/* SPDX-License-Identifier: Apache-2.0
 *
 * Backward tile plans by hand: small masks with the sweeps written out, order, cuts, the checker,
 * moved bounds, faults.
 */
#include "support/coverage.h"

#include <check.h>
#include <stdio.h>

static void build(struct backward_plan *plan, const ffa_slice *slices, int64_t count,
                  ffa_mask_shape shape, struct tile_options opts)
{
    ffa_error err = { FFA_OK, 0, "" };
    ffa_mask *mask;

    ck_assert_msg(ffa_mask_create(&mask, &shape, slices, count, &err) == FFA_OK, "%s", err.message);
    ck_assert_msg(backward_build(plan, mask, &opts, &err) == FFA_OK, "%s", err.message);
    ck_assert_msg(backward_check(plan, &err) == FFA_OK, "%s", err.message);
    ffa_mask_destroy(mask);
}

/* ---- plans written out ---- */

/* One line a tile, in the order of work: keys, then each sweep
 * "rows(full):keys lo+step hi+step". */
static void print_plan(const struct backward_plan *plan, char *text, size_t bytes)
{
    size_t used = 0;

    text[0] = 0;
    for (int64_t t = 0; t < plan->tile_count; t++) {
        const struct backward_tile *tile = &plan->tiles[t];

        used +=
            (size_t)snprintf(text + used, bytes - used, "%d+%d", tile->key_begin, tile->key_count);
        for (int32_t s = 0; s < tile->sweep_count; s++) {
            const struct backward_sweep *sweep = &plan->sweeps[tile->sweep_begin + s];

            used += (size_t)snprintf(text + used, bytes - used, " %d-%d(%d-%d)", sweep->q_begin,
                                     sweep->q_end, sweep->full_begin, sweep->full_end);
            for (int32_t b = 0; b < sweep->band_count; b++) {
                const struct backward_band *band =
                    &plan->bands[tile->band_begin + sweep->band_begin + b];

                used += (size_t)snprintf(text + used, bytes - used, ":%d-%d[%d/%d,%d/%d)",
                                         band->key_begin, band->key_end, band->lo, band->lo_step,
                                         band->hi, band->hi_step);
            }
        }
        used += (size_t)snprintf(text + used, bytes - used, ";");
        ck_assert_uint_lt(used, bytes);
    }
}

/* tile_m: query rows of a block; tile_n: keys of a tile. */
static const struct {
    const char *name;
    ffa_mask_shape shape;
    struct tile_options opts;
    int64_t count;
    ffa_slice slices[6];
    const char *want;
} plans[] = {
    { "nothing attended: tiles without sweeps",
      { 7, 5 },
      { 2, 4, false, false },
      0,
      { { 0 } },
      "0+4;4+1;" },
    { "full",
      { 7, 5 },
      { 2, 4, false, false },
      1,
      { { 0, 7, 0, 5, 0, 0 } },
      "0+4 0-7(0-7):0-4[0/0,7/0);4+1 0-7(0-7):4-5[0/0,7/0);" },
    { "causal: the first keys have more to do, and start at their own row",
      { 8, 8 },
      { 4, 4, false, false },
      1,
      { { 0, 8, 0, 8, 1, 0 } },
      "0+4 0-8(3-8):0-4[0/1,8/0);4+4 4-8(7-8):4-8[4/1,8/0);" },
    { "causal with more keys than rows: the first keys belong to all rows",
      { 2, 6 },
      { 4, 6, false, false },
      1,
      { { 0, 2, 0, 6, 1, 0 } },
      "0+6 0-2(1-2):0-5[0/0,2/0):5-6[1/0,2/0);" },
    { "inverse causal",
      { 4, 4 },
      { 4, 4, false, false },
      1,
      { { 0, 4, 0, 4, 2, 0 } },
      "0+4 0-4(0-1):0-4[0/0,1/1);" },
    { "the diagonal",
      { 4, 4 },
      { 4, 4, false, false },
      1,
      { { 0, 4, 0, 4, 3, 0 } },
      "0+4 0-4(0-0):0-4[0/1,1/1);" },
    { "a window: rows rise, then fall",
      { 4, 6 },
      { 4, 8, false, false },
      1,
      { { 0, 4, 0, 6, 3, 0 } },
      "0+6 0-4(0-0):0-3[0/0,1/1):3-6[1/1,4/0);" },
    { "tiny documents share a tile and a sweep",
      { 4, 4 },
      { 4, 4, false, false },
      3,
      { { 0, 1, 0, 1, 0, 0 }, { 1, 3, 1, 3, 0, 0 }, { 3, 4, 3, 4, 0, 0 } },
      "0+4 0-4(0-0):0-1[0/0,1/0):1-3[1/0,3/0):3-4[3/0,4/0);" },
    { "rows between two documents attend nothing: a sweep each",
      { 9, 4 },
      { 4, 4, false, false },
      2,
      { { 0, 3, 0, 2, 0, 0 }, { 5, 9, 2, 4, 0, 0 } },
      "0+4 0-3(0-0):0-2[0/0,3/0) 5-9(5-5):2-4[5/0,9/0);" },
    { "rows that attend other keys only are a gap, too",
      { 12, 8 },
      { 4, 4, true, false },
      3,
      { { 0, 4, 0, 4, 0, 0 }, { 4, 8, 4, 8, 0, 0 }, { 8, 12, 0, 4, 0, 0 } },
      "0+4 0-4(0-4):0-4[0/0,4/0) 8-12(8-12):0-4[8/0,12/0);4+4 4-8(4-8):4-8[4/0,8/0);" },
    { "cut at a document start",
      { 10, 10 },
      { 4, 6, false, false },
      2,
      { { 0, 4, 0, 4, 0, 0 }, { 4, 10, 4, 10, 0, 0 } },
      "4+6 4-10(4-10):4-10[4/0,10/0);0+4 0-4(0-4):0-4[0/0,4/0);" },
    { "the same without cuts",
      { 10, 10 },
      { 4, 6, true, false },
      2,
      { { 0, 4, 0, 4, 0, 0 }, { 4, 10, 4, 10, 0, 0 } },
      "0+6 0-10(0-0):0-4[0/0,4/0):4-6[4/0,10/0);6+4 4-10(4-10):6-10[4/0,10/0);" },
    { "keys without rows beside keys with rows",
      { 4, 4 },
      { 4, 4, true, false },
      1,
      { { 0, 4, 1, 3, 0, 0 } },
      "0+4 0-4(0-0):1-3[0/0,4/0);" },
};

START_TEST(plans_as_written)
{
    struct backward_plan plan;
    char got[1024];

    build(&plan, plans[_i].slices, plans[_i].count, plans[_i].shape, plans[_i].opts);
    print_plan(&plan, got, sizeof got);
    ck_assert_msg(!strcmp(got, plans[_i].want), "%s:\n got %s\nwant %s", plans[_i].name, got,
                  plans[_i].want);
    backward_finish(&plan);
}
END_TEST

/* ---- turns written out ---- */

/* One line a tile, in the order of work: keys, then each sweep in the order of visits, its turns
 * as row@before. */
static void print_turns(const struct backward_plan *plan, char *text, size_t bytes)
{
    size_t used = 0;

    text[0] = 0;
    for (int64_t t = 0; t < plan->tile_count; t++) {
        const struct backward_tile *tile = &plan->tiles[t];

        used +=
            (size_t)snprintf(text + used, bytes - used, "%d+%d", tile->key_begin, tile->key_count);
        for (int32_t s = tile->sweep_count - 1; s >= 0; s--) {
            const struct backward_sweep *sweep = &plan->sweeps[tile->sweep_begin + s];

            used += (size_t)snprintf(text + used, bytes - used, " %d-%d:", sweep->q_begin,
                                     sweep->q_end);
            for (int32_t i = 0; i < sweep->turn_count; i++)
                used += (size_t)snprintf(text + used, bytes - used, "%s%d@%d", i ? "," : "",
                                         plan->turns[sweep->turn_begin + i].row,
                                         plan->turns[sweep->turn_begin + i].before);
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
} turns[] = {
    { "nothing attended: no visits", { 7, 5 }, { 2, 4, false, true }, 0, { { 0 } }, "0+4;4+1;" },
    { "full: a turn a tile",
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
    { "two sweeps of a tile visit a block in turn, too: the last first",
      { 8, 4 },
      { 4, 4, TILE_CUTS_NONE, true },
      2,
      { { 0, 2, 0, 4, 0, 0 }, { 3, 8, 0, 4, 0, 0 } },
      "0+4 3-8:0@0 0-2:0@1;" },
};

START_TEST(turns_as_written)
{
    struct backward_plan plan;
    struct coverage_text why;
    char got[1024];

    build(&plan, turns[_i].slices, turns[_i].count, turns[_i].shape, turns[_i].opts);
    print_turns(&plan, got, sizeof got);
    ck_assert_msg(!strcmp(got, turns[_i].want), "%s:\n got %s\nwant %s", turns[_i].name, got,
                  turns[_i].want);
    ck_assert_msg(coverage_turns(&plan, &why), "%s: %s", turns[_i].name, why.at);
    backward_finish(&plan);
}
END_TEST

/* Each list has its own, being another kv head's. */
START_TEST(turns_of_lists_start_anew)
{
    const ffa_mask_shape shape = { 8, 8 };
    const ffa_slice full = { 0, 8, 0, 8, 0, 0 };
    const ffa_slice_list lists[] = { { &full, 1 }, { &full, 1 } };
    const struct tile_options opts = { .tile_m = 4, .tile_n = 4, .on_grid = true };
    struct backward_plan plan;
    ffa_mask *mask;
    char got[256];

    ck_assert_int_eq(ffa_mask_create_per_head(&mask, &shape, lists, 2, NULL), FFA_OK);
    ck_assert_int_eq(backward_build(&plan, mask, &opts, NULL), FFA_OK);
    ck_assert_int_eq(backward_check(&plan, NULL), FFA_OK);
    print_turns(&plan, got, sizeof got);
    ck_assert_str_eq(got, "0+4 0-8:0@0;4+4 0-8:0@1;0+4 0-8:0@0;4+4 0-8:0@1;");
    backward_finish(&plan);
    ffa_mask_destroy(mask);
}
END_TEST

/* A million tokens: a turn a tile of a causal mask, half a window's blocks for a tile in it. */
START_TEST(turns_are_few)
{
    const int64_t n = 1 << 20;
    const struct tile_options opts = { .tile_m = 64, .tile_n = 128, .on_grid = true };
    struct backward_plan plan;

    build(&plan, &(ffa_slice){ 0, n, 0, n, 1, 0 }, 1, (ffa_mask_shape){ n, n }, opts);
    ck_assert_int_eq(plan.tile_count, n / 128);
    ck_assert_int_eq(plan.turn_count, n / 128);
    backward_finish(&plan);
    build(&plan, &(ffa_slice){ 0, n, 0, n + 4096, 3, 0 }, 1, (ffa_mask_shape){ n, n + 4096 }, opts);
    ck_assert_int_le(plan.turn_count, 34 * plan.tile_count);
    ck_assert_int_ge(plan.turn_count, 32 * plan.tile_count);
    backward_finish(&plan);
}
END_TEST

START_TEST(lists_stand_one_after_another)
{
    const ffa_mask_shape shape = { 64, 100 };
    const ffa_slice causal = { 0, 64, 36, 100, 1, 0 }, full = { 0, 64, 0, 100, 0, 0 };
    const ffa_slice_list lists[] = { { &causal, 1 }, { &full, 1 }, { NULL, 0 } };
    const struct tile_options opts = { 32, 16, true, false };
    struct backward_plan plan;
    ffa_mask *mask;

    ck_assert_int_eq(ffa_mask_create_per_head(&mask, &shape, lists, 3, NULL), FFA_OK);
    ck_assert_int_eq(backward_build(&plan, mask, &opts, NULL), FFA_OK);
    ck_assert_int_eq(backward_check(&plan, NULL), FFA_OK);
    ck_assert_int_eq(plan.list_count, 3);
    for (int32_t l = 0; l < 3; l++)
        ck_assert_int_eq(plan.list_begin[l + 1] - plan.list_begin[l], 7);
    ck_assert_int_eq(plan.area, 64 * 65 / 2 + 6400);
    ck_assert_int_eq(plan.tiles[plan.list_begin[1]].block_count, 2);
    ck_assert_int_eq(plan.tiles[plan.list_begin[2]].sweep_count, 0);
    backward_finish(&plan);
    ffa_mask_destroy(mask);
}
END_TEST

START_TEST(longest_first_then_lower_keys)
{
    const ffa_slice slice = { 0, 1000, 0, 1000, 1, 0 };
    struct backward_plan plan;

    build(&plan, &slice, 1, (ffa_mask_shape){ 1000, 1000 },
          (struct tile_options){ 8, 16, false, false });
    for (int64_t i = 0; i < plan.tile_count; i++)
        ck_assert_int_eq(plan.tiles[i].key_begin, 16 * i);
    ck_assert_int_eq(plan.tiles[0].block_count, 125);
    backward_finish(&plan);
}
END_TEST

START_TEST(large_numbers_do_not_wrap)
{
    const int64_t huge = INT32_MAX;
    const ffa_slice slices[] = { { 0, huge, 0, 65, 2, 0 }, { huge - 65, huge, 0, 65, 1, 0 } };
    struct backward_plan plan;

    build(&plan, slices, 2, (ffa_mask_shape){ huge, 65 },
          (struct tile_options){ 128, 64, false, false });
    ck_assert_int_eq(plan.area, 65 * 66);
    ck_assert_int_eq(plan.sweep_count, 4);
    backward_finish(&plan);

    build(&plan, &(ffa_slice){ 0, huge, 0, huge, 1, 0 }, 1, (ffa_mask_shape){ huge, huge },
          (struct tile_options){ 1 << 20, 1 << 24, false, false });
    ck_assert_int_eq(plan.tile_count, 128);
    ck_assert_int_eq(plan.area, huge * (huge + 1) / 2);
    backward_finish(&plan);
}
END_TEST

/* ---- the checker, and the execution in integers, see every field ---- */

/* Every kind of bound occurs: both slopes, gaps, second sweeps, keys without rows, full blocks. */
static const ffa_slice many[] = {
    { 0, 100, 0, 50, FFA_SLICE_FULL, 0 },          { 20, 120, 50, 110, FFA_SLICE_CAUSAL, 0 },
    { 130, 150, 50, 110, FFA_SLICE_FULL, 0 },      { 10, 130, 110, 150, FFA_SLICE_INVCAUSAL, 0 },
    { 0, 160, 155, 200, FFA_SLICE_CAUSAL, 0 },     { 165, 180, 160, 190, FFA_SLICE_BICAUSAL, 0 },
    { 150, 165, 100, 130, FFA_SLICE_BICAUSAL, 0 },
};
static const ffa_slice_list many_list = { many, sizeof many / sizeof *many };
static const ffa_mask_shape many_shape = { 180, 200 };
static const struct tile_options many_opts = { 16, 32, false, false };

enum array { TILE, SWEEP, BAND, TURN, ARRAYS };

#define FIELD(array, type, name)                                                                   \
    {                                                                                              \
#name, array, offsetof(struct type, name)                                                  \
    }

static const struct {
    const char *name;
    enum array array;
    size_t offset;
} fields[] = {
    FIELD(TILE, backward_tile, key_begin),    FIELD(TILE, backward_tile, key_count),
    FIELD(TILE, backward_tile, sweep_begin),  FIELD(TILE, backward_tile, sweep_count),
    FIELD(TILE, backward_tile, band_begin),   FIELD(TILE, backward_tile, band_count),
    FIELD(TILE, backward_tile, block_count),  FIELD(TILE, backward_tile, list),
    FIELD(SWEEP, backward_sweep, q_begin),    FIELD(SWEEP, backward_sweep, q_end),
    FIELD(SWEEP, backward_sweep, full_begin), FIELD(SWEEP, backward_sweep, full_end),
    FIELD(SWEEP, backward_sweep, band_begin), FIELD(SWEEP, backward_sweep, band_count),
    FIELD(SWEEP, backward_sweep, turn_begin), FIELD(SWEEP, backward_sweep, turn_count),
    FIELD(BAND, backward_band, key_begin),    FIELD(BAND, backward_band, key_end),
    FIELD(BAND, backward_band, lo),           FIELD(BAND, backward_band, hi),
    FIELD(BAND, backward_band, lo_step),      FIELD(BAND, backward_band, hi_step),
    FIELD(BAND, backward_band, pad_),         FIELD(TURN, backward_turn, row),
    FIELD(TURN, backward_turn, before),
};

static int32_t *field_of(struct backward_plan *plan, int field, int64_t index)
{
    char *base = fields[field].array == TILE    ? (char *)&plan->tiles[index]
                 : fields[field].array == SWEEP ? (char *)&plan->sweeps[index]
                 : fields[field].array == BAND  ? (char *)&plan->bands[index]
                                                : (char *)&plan->turns[index];

    return (int32_t *)(void *)(base + fields[field].offset);
}

static void any_field_off_by_one(int field, bool in_turns)
{
    struct tile_options opts = many_opts;
    struct backward_plan plan;
    int64_t counts[ARRAYS];

    opts.on_grid = in_turns;
    build(&plan, many, many_list.count, many_shape, opts);
    ck_assert_int_eq(plan.turn_count > 0, in_turns);
    counts[TURN] = plan.turn_count;
    counts[TILE] = plan.tile_count;
    counts[SWEEP] = plan.sweep_count;
    counts[BAND] = plan.band_count;
    for (int64_t i = 0; i < counts[fields[field].array]; i++)
        for (int32_t by = -1; by <= 1; by += 2) {
            int32_t *value = field_of(&plan, field, i);
            ffa_error err = { FFA_OK, 0, "" };

            *value += by;
            ck_assert_msg(backward_check(&plan, &err) == FFA_BUG, "%s of %lld, %+d: not seen",
                          fields[field].name, (long long)i, by);
            ck_assert_str_ne(err.message, "");
            *value -= by;
        }
    ck_assert_int_eq(backward_check(&plan, NULL), FFA_OK);
    backward_finish(&plan);
}

START_TEST(any_field_off_by_one_is_found)
{
    any_field_off_by_one(_i, false);
    any_field_off_by_one(_i, true);
}
END_TEST

START_TEST(totals_are_checked)
{
    struct tile_options opts = many_opts;
    struct backward_plan plan;
    int64_t *totals[] = { &plan.block_count, &plan.partial_blocks, &plan.area, &plan.turn_count };

    opts.on_grid = true;
    build(&plan, many, many_list.count, many_shape, opts);
    for (size_t i = 0; i < sizeof totals / sizeof *totals; i++) {
        ++*totals[i];
        ck_assert_int_eq(backward_check(&plan, NULL), FFA_BUG);
        --*totals[i];
    }
    backward_finish(&plan);
}
END_TEST

/* ---- no memory ---- */

START_TEST(any_allocation_may_fail)
{
    ffa_slice slices[64];
    const ffa_mask_shape shape = { 700, 700 };
    const struct tile_options opts = { .tile_m = 16, .tile_n = 16, .on_grid = true };
    struct backward_plan plan;
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
        rc = backward_build(&plan, mask, &opts, &err);
        if (!fault_fired())
            break; /* every site was tried */
        ck_assert_int_eq(rc, FFA_NOMEM);
        ck_assert_ptr_null(plan.tiles);
        ck_assert_ptr_null(plan.turns);
        ck_assert_int_eq(plan.tile_count, 0);
        ck_assert_str_ne(err.message, "");
        ck_assert_int_lt(nth, 1000);
    }
    ck_assert_int_eq(rc, FFA_OK);
    for (long nth = 1;; nth++) {
        ffa_error err = { FFA_OK, 0, "" };

        fault_arm(FAULT_ALLOC, nth);
        rc = backward_check(&plan, &err);
        if (!fault_fired())
            break;
        ck_assert_int_eq(rc, FFA_NOMEM);
        ck_assert_str_ne(err.message, "");
    }
    fault_arm(FAULT_ALLOC, 0);
    ck_assert_int_eq(rc, FFA_OK);
    backward_finish(&plan);
    ffa_mask_destroy(mask);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("backward plan");
    TCase *tc = tcase_create("backward plan");
    SRunner *runner;
    int failed;

    tcase_add_loop_test(tc, plans_as_written, 0, sizeof plans / sizeof *plans);
    tcase_add_loop_test(tc, turns_as_written, 0, sizeof turns / sizeof *turns);
    tcase_add_test(tc, turns_of_lists_start_anew);
    tcase_add_test(tc, turns_are_few);
    tcase_add_test(tc, lists_stand_one_after_another);
    tcase_add_test(tc, longest_first_then_lower_keys);
    tcase_add_test(tc, large_numbers_do_not_wrap);
    tcase_add_loop_test(tc, any_field_off_by_one_is_found, 0, sizeof fields / sizeof *fields);
    tcase_add_test(tc, totals_are_checked);
    tcase_add_test(tc, any_allocation_may_fail);
    suite_add_tcase(suite, tc);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
