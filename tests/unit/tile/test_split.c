/* SPDX-License-Identifier: Apache-2.0
 *
 * Tiles split over their keys: each cell still computed once, and each row's parts all found again.
 */
#include "support/mask_cases.h"
#include "support/suite.h"
#include "tile/split.h"

#include <check.h>
#include <stdlib.h>

enum { ROUNDS = 150 };

/* How often each cell of list 0 is computed, by the keys of each row of each sweep. */
static void count_cells(const struct tile_plan *plan, uint8_t *cells)
{
    const int64_t keys = plan->shape.seqlen_k;

    for (int64_t t = plan->list_begin[0]; t < plan->list_begin[1]; t++) {
        const struct plan_tile *tile = &plan->tiles[t];

        for (int32_t s = 0; s < tile->sweep_count; s++) {
            const struct plan_sweep *sweep = &plan->sweeps[tile->sweep_begin + s];

            for (int32_t b = 0; b < sweep->band_count; b++) {
                const struct plan_band *band =
                    &plan->bands[tile->band_begin + sweep->band_begin + b];

                for (int64_t row = band->begin; row < band->end; row++) {
                    const int64_t d = row - band->begin;
                    const int64_t lo = band->lo + band->lo_step * d;
                    const int64_t hi = band->hi + band->hi_step * d;

                    for (int64_t k = lo > sweep->begin ? lo : sweep->begin;
                         k < (hi < sweep->end ? hi : sweep->end); k++)
                        cells[row * keys + k]++;
                }
            }
        }
    }
}

/* Each row of a split tile is in splits once, and its parts own the rows of results it names. How
 * many results there are. least: blocks of a part. */
static int64_t check_parts(const struct tile_plan *plan, int64_t least, int64_t most)
{
    int32_t *owners = calloc((size_t)plan->part_row_count + 1, sizeof *owners);
    int64_t parts = 0, listed = 0;

    ck_assert_ptr_nonnull(owners);
    for (int64_t t = 0; t < plan->tile_count; t++) {
        const struct plan_tile *tile = &plan->tiles[t];

        ck_assert_int_le(plan->block_counts[t], most);
        ck_assert(tile->flags & PLAN_TILE_PART || tile->part_row == 0);
        if (!(tile->flags & PLAN_TILE_PART))
            continue;
        ck_assert_int_ge(plan->block_counts[t], least);
        ck_assert(tile->sweep_count >= 1 || !plan->block_counts[t]);
        for (int32_t r = 0; r < tile->count; r++) {
            ck_assert_int_eq(owners[tile->part_row + r], 0);
            owners[tile->part_row + r] = 1 + tile->begin + r;
            parts++;
        }
    }
    ck_assert_int_le(parts, plan->part_row_count);
    for (int64_t i = 0; i < plan->split_count; i++)
        for (int32_t p = 0; p < plan->splits[i].parts; p++, listed++)
            ck_assert_int_eq(owners[plan->splits[i].part_row + p * plan->splits[i].part_step],
                             1 + plan->splits[i].token);
    ck_assert_int_eq(listed, parts);
    free(owners);
    return parts;
}

/* The plan of a random mask, split; parts_max as of tile_split_all, or 0: by tile_split. Every cell
 * is computed as often as before, at most once. Where is_whole, no part has a bound. */
static void split_random(struct tile_plan *plan, int64_t *most, int seed, int32_t parts_max,
                         bool is_whole)
{
    struct rng rng = { (uint64_t)seed };
    struct mask_case from = mask_case_random(&rng, 200, 12);
    const struct tile_options opts = { (int32_t)rng_range(&rng, 1, 4) * 16,
                                       (int32_t)rng_range(&rng, 1, 4) * 16, TILE_CUTS_CHEAP,
                                       false };
    const size_t count = (size_t)(from.shape.seqlen_q * from.shape.seqlen_k);
    uint8_t *before = calloc(count, 1), *after = calloc(count, 1);
    ffa_mask *mask;

    *most = is_whole ? INT64_MAX : rng_range(&rng, 1, 6);
    ck_assert_int_eq(ffa_mask_create(&mask, &from.shape, from.slices, from.count, NULL), FFA_OK);
    ck_assert_int_eq(tile_build(plan, mask, TILE_OWNS_QUERIES, &opts, NULL), FFA_OK);
    count_cells(plan, before);
    ck_assert_int_eq(parts_max ? tile_split_all(plan, *most, parts_max, NULL)
                               : tile_split(plan, *most, NULL),
                     FFA_OK);
    count_cells(plan, after);
    for (size_t c = 0; c < count; c++)
        ck_assert_msg(before[c] == after[c] && after[c] <= 1, "seed %d: cell %zu", seed, c);
    ffa_mask_destroy(mask);
    free(from.slices);
    free(before);
    free(after);
}

START_TEST(cells_are_computed_once)
{
    for (int i = 0; i < ROUNDS; i++) {
        int64_t blocks = 0, most;
        struct tile_plan plan;

        split_random(&plan, &most, i, 0, false);
        for (int64_t t = 0; t < plan.tile_count; t++) {
            blocks += plan.block_counts[t];
            ck_assert(!t || plan.block_counts[t] <= plan.block_counts[t - 1]);
        }
        ck_assert_int_eq(blocks, plan.block_count);
        ck_assert_int_eq(check_parts(&plan, 1, most), plan.part_row_count);
        tile_finish(&plan);
    }
}
END_TEST

/* Of a plan that is replayed all rows are split, into no more parts than there is room for. */
START_TEST(all_are_split_into_few_parts)
{
    for (int i = 0; i < ROUNDS; i++) {
        const int32_t parts_max = 1 + i % 4;
        struct tile_plan plan;
        int64_t most;

        split_random(&plan, &most, 1000 + i, parts_max, i % 5 == 0);
        ck_assert_int_eq(plan.split_count, plan.shape.seqlen_q);
        ck_assert_int_eq(plan.part_row_count, plan.shape.seqlen_q * parts_max);
        (void)check_parts(&plan, 0, INT64_MAX);
        for (int64_t s = 0; s < plan.split_count; s++)
            ck_assert(plan.splits[s].parts >= 1 && plan.splits[s].parts <= parts_max);
        for (int64_t t = 0; t < plan.tile_count; t++)
            ck_assert(plan.tiles[t].flags & PLAN_TILE_PART);
        tile_finish(&plan);
    }
}
END_TEST

/* _i: all of them. */
START_TEST(any_allocation_may_fail)
{
    const struct tile_options opts = { 16, 16, TILE_CUTS_CHEAP, false };
    ffa_mask *mask;
    long nth = 1;

    ck_assert_int_eq(ffa_mask_parse(&mask, "causal:300", NULL), FFA_OK);
    for (;; nth++) {
        struct tile_plan plan;
        ffa_error err = { FFA_OK, 0, "" };
        ffa_status rc;

        ck_assert_int_eq(tile_build(&plan, mask, TILE_OWNS_QUERIES, &opts, NULL), FFA_OK);
        fault_arm(FAULT_ALLOC, nth);
        rc = _i ? tile_split_all(&plan, 3, 2, &err) : tile_split(&plan, 3, &err);
        tile_finish(&plan);
        if (!fault_fired())
            break;
        ck_assert_int_eq(rc, FFA_NOMEM);
        ck_assert_str_ne(err.message, "");
    }
    fault_arm(FAULT_ALLOC, 0);
    ck_assert_int_gt(nth, 4);
    ffa_mask_destroy(mask);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("split");
    TCase *tc = tcase_create("split");

    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, cells_are_computed_once);
    tcase_add_test(tc, all_are_split_into_few_parts);
    tcase_add_loop_test(tc, any_allocation_may_fail, 0, 2);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
