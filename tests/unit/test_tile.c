/* SPDX-License-Identifier: Apache-2.0
 *
 * Tile plans by hand: small masks with the sweeps written out, order, cuts, the checker, faults.
 */
#include "support/mask_cases.h"
#include "tile/tile.h"

#include <check.h>
#include <stdio.h>

static void build(struct tile_plan *plan, const ffa_slice *slices, int64_t count,
                  ffa_mask_shape shape, struct tile_options opts)
{
    ffa_error err = { FFA_OK, 0, "" };
    ffa_mask *mask;

    ck_assert_msg(ffa_mask_create(&mask, &shape, slices, count, &err) == FFA_OK, "%s", err.message);
    ck_assert_msg(tile_build(plan, mask, &opts, &err) == FFA_OK, "%s", err.message);
    ck_assert_msg(tile_check(plan, &err) == FFA_OK, "%s", err.message);
    ffa_mask_destroy(mask);
}

/* ---- plans written out ---- */

/* One line a tile, in the order of work: rows, then each sweep "keys(full):rows lo+step hi+step".
 */
static void print_plan(const struct tile_plan *plan, char *text, size_t bytes)
{
    size_t used = 0;

    text[0] = 0;
    for (int64_t t = 0; t < plan->tile_count; t++) {
        const struct plan_tile *tile = &plan->tiles[t];

        used +=
            (size_t)snprintf(text + used, bytes - used, "%d+%d", tile->row_begin, tile->row_count);
        for (int32_t s = 0; s < tile->sweep_count; s++) {
            const struct plan_sweep *sweep = &plan->sweeps[tile->sweep_begin + s];

            used += (size_t)snprintf(text + used, bytes - used, " %d-%d(%d-%d)", sweep->k_begin,
                                     sweep->k_end, sweep->full_begin, sweep->full_end);
            for (int32_t b = 0; b < sweep->band_count; b++) {
                const struct plan_band *band =
                    &plan->bands[tile->band_begin + sweep->band_begin + b];

                used += (size_t)snprintf(text + used, bytes - used, ":%d-%d[%d/%d,%d/%d)",
                                         band->row_begin, band->row_end, band->lo, band->lo_step,
                                         band->hi, band->hi_step);
            }
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
    ffa_slice slices[6];
    const char *want;
} plans[] = {
    { "nothing attended", { 5, 7 }, { 4, 4, false, false }, 0, { { 0 } }, "0+4;4+1;" },
    { "full",
      { 5, 7 },
      { 4, 4, false, false },
      1,
      { { 0, 5, 0, 7, 0, 0 } },
      "0+4 0-7(0-7):0-4[0/0,7/0);4+1 0-7(0-7):4-5[0/0,7/0);" },
    { "causal: the second tile has more to do",
      { 8, 8 },
      { 4, 4, false, false },
      1,
      { { 0, 8, 0, 8, 1, 0 } },
      "4+4 0-8(0-5):4-8[0/0,5/1);0+4 0-4(0-1):0-4[0/0,1/1);" },
    { "two slices that make one causal line are one band",
      { 4, 4 },
      { 4, 4, false, false },
      2,
      { { 0, 2, 0, 2, 1, 0 }, { 2, 4, 0, 4, 1, 0 } },
      "0+4 0-4(0-1):0-4[0/0,1/1);" },
    { "tiny documents share a tile and a sweep",
      { 4, 4 },
      { 4, 4, false, false },
      3,
      { { 0, 1, 0, 1, 0, 0 }, { 1, 3, 1, 3, 0, 0 }, { 3, 4, 3, 4, 0, 0 } },
      "0+4 0-4(0-0):0-1[0/0,1/0):1-3[1/0,3/0):3-4[3/0,4/0);" },
    { "documents with a gap in the keys take a sweep each",
      { 4, 8 },
      { 4, 4, false, false },
      2,
      { { 0, 2, 0, 3, 0, 0 }, { 2, 4, 4, 8, 0, 0 } },
      "0+4 0-3(0-0):0-2[0/0,3/0) 4-8(4-4):2-4[4/0,8/0);" },
    { "a second interval of the same rows is a second sweep",
      { 4, 16 },
      { 4, 4, false, false },
      2,
      { { 0, 4, 0, 4, 0, 0 }, { 0, 4, 8, 16, 0, 0 } },
      "0+4 0-4(0-4):0-4[0/0,4/0) 8-16(8-16):0-4[8/0,16/0);" },
    { "intervals of different rows that overlap share sweeps",
      { 4, 16 },
      { 4, 4, false, false },
      4,
      { { 0, 2, 0, 4, 0, 0 }, { 0, 2, 8, 12, 0, 0 }, { 2, 4, 3, 8, 0, 0 }, { 2, 4, 12, 16, 0, 0 } },
      "0+4 0-8(3-4):0-2[0/0,4/0):2-4[3/0,8/0) 8-16(8-8):0-2[8/0,12/0):2-4[12/0,16/0);" },
    { "a cut at a document start saves a block: 6 + 4 rows, not 4 + 4 + 2",
      { 10, 10 },
      { 6, 4, false, false },
      2,
      { { 0, 6, 0, 6, 0, 0 }, { 6, 10, 6, 10, 0, 0 } },
      "0+6 0-6(0-6):0-6[0/0,6/0);6+4 6-10(6-10):6-10[6/0,10/0);" },
    { "cut in the middle of a tile",
      { 16, 16 },
      { 8, 4, false, false },
      2,
      { { 0, 4, 0, 4, 0, 0 }, { 4, 12, 4, 16, 0, 0 } },
      "4+8 4-16(4-16):4-12[4/0,16/0);0+4 0-4(0-4):0-4[0/0,4/0);12+4;" },
    { "the same without cuts",
      { 16, 16 },
      { 8, 4, true, false },
      2,
      { { 0, 4, 0, 4, 0, 0 }, { 4, 12, 4, 16, 0, 0 } },
      "0+8 0-16(0-0):0-4[0/0,4/0):4-8[4/0,16/0);8+8 4-16(4-4):8-12[4/0,16/0);" },
    { "rows without keys beside rows with keys",
      { 4, 4 },
      { 4, 4, true, false },
      1,
      { { 1, 3, 0, 4, 1, 0 } },
      "0+4 0-4(0-0):1-3[0/0,3/1);" },
};

START_TEST(plans_as_written)
{
    struct tile_plan plan;
    char got[1024];

    build(&plan, plans[_i].slices, plans[_i].count, plans[_i].shape, plans[_i].opts);
    print_plan(&plan, got, sizeof got);
    ck_assert_msg(!strcmp(got, plans[_i].want), "%s:\n got %s\nwant %s", plans[_i].name, got,
                  plans[_i].want);
    tile_finish(&plan);
}
END_TEST

START_TEST(lists_stand_one_after_another)
{
    const ffa_mask_shape shape = { 100, 100 };
    const ffa_slice causal = { 0, 100, 0, 100, 1, 0 }, full = { 0, 100, 0, 100, 0, 0 };
    const ffa_slice_list lists[] = { { &causal, 1 }, { &full, 1 }, { NULL, 0 } };
    const struct tile_options opts = { 16, 16, false, false };
    struct tile_plan plan;
    ffa_mask *mask;

    ck_assert_int_eq(ffa_mask_create_per_head(&mask, &shape, lists, 3, NULL), FFA_OK);
    ck_assert_int_eq(tile_build(&plan, mask, &opts, NULL), FFA_OK);
    ck_assert_int_eq(tile_check(&plan, NULL), FFA_OK);
    ck_assert_int_eq(plan.list_count, 3);
    for (int32_t l = 0; l < 3; l++)
        ck_assert_int_eq(plan.list_begin[l + 1] - plan.list_begin[l], 7);
    ck_assert_int_eq(plan.area, 5050 + 10000);
    ck_assert_int_eq(plan.block_count, 28 + 49);
    ck_assert_int_eq(plan.partial_blocks, 7 + 7); /* diagonal; the last 4 keys of each row */
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

    build(&plan, slices, 2, shape, (struct tile_options){ 16, 1, false, false });
    ck_assert_int_eq(plan.tiles[0].block_count, 40000);
    ck_assert_int_eq(plan.tiles[plan.tile_count - 1].block_count, 777);
    ck_assert_int_eq(plan.tiles[plan.tile_count - 1].row_begin, 40000 - 16);
    tile_finish(&plan);
}
END_TEST

START_TEST(large_numbers_do_not_wrap)
{
    const int64_t huge = INT32_MAX;
    const ffa_mask_shape shape = { 65, huge };
    const ffa_slice slices[] = { { 0, 65, 0, huge, 1, 0 } };
    struct tile_plan plan;

    build(&plan, slices, 1, shape, (struct tile_options){ 64, 128, false, false });
    ck_assert_int_eq(plan.tiles[0].block_count, 1 << 24);
    ck_assert_int_eq(plan.area, 65 * huge - 65 * 64 / 2);
    tile_finish(&plan);

    build(&plan, slices, 1, (ffa_mask_shape){ huge, huge },
          (struct tile_options){ 1 << 24, 1 << 20, false, false });
    ck_assert_int_eq(plan.tile_count, 128);
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
        build(&plan, drawn.slices, drawn.count, shape, opts);
        tile_finish(&plan);
        free(drawn.slices);
    }
}
END_TEST

/* ---- the checker sees every field ---- */

enum array { TILE, SWEEP, BAND };

#define FIELD(array, type, name)                                                                   \
    {                                                                                              \
#name, array, offsetof(struct type, name)                                                  \
    }

static const struct {
    const char *name;
    enum array array;
    size_t offset;
} fields[] = {
    FIELD(TILE, plan_tile, row_begin),    FIELD(TILE, plan_tile, row_count),
    FIELD(TILE, plan_tile, sweep_begin),  FIELD(TILE, plan_tile, sweep_count),
    FIELD(TILE, plan_tile, band_begin),   FIELD(TILE, plan_tile, band_count),
    FIELD(TILE, plan_tile, block_count),  FIELD(TILE, plan_tile, list),
    FIELD(SWEEP, plan_sweep, k_begin),    FIELD(SWEEP, plan_sweep, k_end),
    FIELD(SWEEP, plan_sweep, full_begin), FIELD(SWEEP, plan_sweep, full_end),
    FIELD(SWEEP, plan_sweep, band_begin), FIELD(SWEEP, plan_sweep, band_count),
    FIELD(BAND, plan_band, row_begin),    FIELD(BAND, plan_band, row_end),
    FIELD(BAND, plan_band, lo),           FIELD(BAND, plan_band, hi),
    FIELD(BAND, plan_band, lo_step),      FIELD(BAND, plan_band, hi_step),
};

static int32_t *field_of(struct tile_plan *plan, int field, int64_t index)
{
    char *base = fields[field].array == TILE    ? (char *)&plan->tiles[index]
                 : fields[field].array == SWEEP ? (char *)&plan->sweeps[index]
                                                : (char *)&plan->bands[index];

    return (int32_t *)(void *)(base + fields[field].offset);
}

START_TEST(any_field_off_by_one_is_found)
{
    static const ffa_slice slices[] = {
        { 0, 40, 0, 64, 1, 0 },   { 40, 90, 10, 80, 3, 0 },    { 40, 90, 90, 100, 0, 0 },
        { 95, 120, 0, 30, 2, 0 }, { 100, 120, 35, 100, 1, 0 },
    };
    struct tile_plan plan;
    int64_t counts[3];

    build(&plan, slices, 5, (ffa_mask_shape){ 130, 100 },
          (struct tile_options){ 32, 16, false, false });
    counts[TILE] = plan.tile_count;
    counts[SWEEP] = plan.sweep_count;
    counts[BAND] = plan.band_count;
    for (int64_t i = 0; i < counts[fields[_i].array]; i++)
        for (int32_t by = -1; by <= 1; by += 2) {
            int32_t *value = field_of(&plan, _i, i);
            ffa_error err = { FFA_OK, 0, "" };

            *value += by;
            ck_assert_msg(tile_check(&plan, &err) == FFA_BUG, "%s of %lld, %+d: not seen",
                          fields[_i].name, (long long)i, by);
            ck_assert_str_ne(err.message, "");
            *value -= by;
        }
    ck_assert_int_eq(tile_check(&plan, NULL), FFA_OK);
    tile_finish(&plan);
}
END_TEST

START_TEST(totals_are_checked)
{
    const ffa_slice slice = { 0, 100, 0, 100, 1, 0 };
    struct tile_plan plan;
    int64_t *totals[] = { &plan.block_count, &plan.partial_blocks, &plan.area, &plan.tile_count };

    build(&plan, &slice, 1, (ffa_mask_shape){ 100, 100 },
          (struct tile_options){ 32, 16, false, false });
    for (size_t i = 0; i < sizeof totals / sizeof *totals; i++) {
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
    ffa_slice slices[64];
    const ffa_mask_shape shape = { 700, 700 };
    const struct tile_options opts = { 16, 16, false, false };
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
        rc = tile_build(&plan, mask, &opts, &err);
        if (!fault_fired())
            break; /* every site was tried */
        ck_assert_int_eq(rc, FFA_NOMEM);
        ck_assert_ptr_null(plan.tiles);
        ck_assert_int_eq(plan.tile_count, 0);
        ck_assert_str_ne(err.message, "");
        ck_assert_int_lt(nth, 1000);
    }
    fault_arm(FAULT_ALLOC, 0);
    ck_assert_int_eq(rc, FFA_OK);
    tile_finish(&plan);
    ffa_mask_destroy(mask);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tile");
    TCase *tc = tcase_create("tile");
    SRunner *runner;
    int failed;

    tcase_add_loop_test(tc, plans_as_written, 0, sizeof plans / sizeof *plans);
    tcase_add_test(tc, lists_stand_one_after_another);
    tcase_add_test(tc, longest_first_then_lower_rows);
    tcase_add_test(tc, large_numbers_do_not_wrap);
    tcase_add_loop_test(tc, unions_at_the_end_of_the_numbers, 0, 2);
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
