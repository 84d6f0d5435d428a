/* SPDX-License-Identifier: Apache-2.0
 *
 * Normal forms cut at keys, and masks made of bands: row by row the same keys as before.
 */
#include "mask/band_mask.h"
#include "support/mask_cases.h"
#include "support/suite.h"

#include <check.h>
#include <stdlib.h>

enum { ROUNDS = 800, TOKENS_HERE = 120, ENDS_MAX = 6 };

/* How many intervals have the key at the row. */
static int times(const struct normal *normal, int64_t row, int64_t key)
{
    int found = 0;

    for (int64_t s = 0; s < normal->segment_count; s++) {
        const struct normal_segment *segment = &normal->segments[s];
        const int64_t skip = row - segment->row_begin;

        if (row < segment->row_begin || row >= segment->row_end)
            continue;
        for (int32_t i = 0; i < segment->interval_count; i++) {
            const struct normal_interval *at = &normal->intervals[segment->interval_begin + i];

            found += key >= at->lo + at->lo_step * skip && key < at->hi + at->hi_step * skip;
        }
    }
    return found;
}

static void same_cells(const struct normal *a, const struct normal *b, ffa_mask_shape shape,
                       uint64_t seed)
{
    ck_assert_int_eq(a->area, b->area);
    for (int64_t q = 0; q < shape.seqlen_q; q++)
        for (int64_t k = 0; k < shape.seqlen_k; k++)
            ck_assert_msg(times(a, q, k) == times(b, q, k), "seed %llu, cell (%lld, %lld)",
                          (unsigned long long)seed, (long long)q, (long long)k);
}

static int32_t part_of(const int32_t *ends, int32_t count, int64_t key)
{
    int32_t part = 0;

    while (part < count && key >= ends[part])
        part++;
    return part;
}

/* By row: parts are not empty, ascend, and have keys between two ends only. */
static void check_parts(const struct normal *cut, const int32_t *ends, int32_t count, uint64_t seed)
{
    for (int64_t s = 0; s < cut->segment_count; s++) {
        const struct normal_segment *segment = &cut->segments[s];

        for (int64_t skip = 0; skip < segment->row_end - segment->row_begin; skip++) {
            int64_t before = 0;

            for (int32_t i = 0; i < segment->interval_count; i++) {
                const struct normal_interval *at = &cut->intervals[segment->interval_begin + i];
                const int64_t lo = at->lo + at->lo_step * skip, hi = at->hi + at->hi_step * skip;

                ck_assert_msg(lo >= before && lo < hi &&
                                  part_of(ends, count, lo) == part_of(ends, count, hi - 1),
                              "seed %llu, row %lld", (unsigned long long)seed,
                              (long long)(segment->row_begin + skip));
                before = hi;
            }
        }
    }
}

static int compare(const void *a, const void *b)
{
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;

    return (x > y) - (x < y);
}

START_TEST(cells_stay_and_no_interval_crosses_an_end)
{
    for (uint64_t seed = 1; seed <= ROUNDS; seed++) {
        struct rng rng = { seed };
        struct mask_case test = mask_case_random(&rng, TOKENS_HERE, 12);
        const int32_t count = (int32_t)rng_range(&rng, 0, ENDS_MAX);
        int32_t ends[ENDS_MAX] = { 0 };
        struct normal whole, cut;

        for (int32_t i = 0; i < count; i++)
            ends[i] = (int32_t)rng_range(&rng, 0, test.shape.seqlen_k);
        qsort(ends, (size_t)count, sizeof *ends, compare);
        ck_assert_int_eq(normal_build(&whole, test.slices, test.count, NULL), FFA_OK);
        ck_assert_int_eq(normal_cut(&cut, &whole, ends, count, NULL), FFA_OK);
        same_cells(&cut, &whole, test.shape, seed);
        check_parts(&cut, ends, count, seed);
        normal_finish(&whole);
        normal_finish(&cut);
        free(test.slices);
    }
}
END_TEST

START_TEST(a_mask_of_bands_is_the_mask)
{
    for (uint64_t seed = 1; seed <= ROUNDS / 4; seed++) {
        struct rng rng = { seed };
        struct mask_case test = mask_case_random(&rng, TOKENS_HERE, 12);
        struct bands lists[2] = { { 0 } }; /* the second without cells */
        struct normal whole;
        ffa_mask mask;

        ck_assert_int_eq(normal_build(&whole, test.slices, test.count, NULL), FFA_OK);
        ck_assert_int_eq(bands_add_normal(&lists[0], &whole, NULL), FFA_OK);
        ck_assert_int_eq(band_mask_init(&mask, &test.shape, lists, 2, NULL), FFA_OK);
        ck_assert_int_eq(mask.head_count, 2);
        ck_assert_int_eq(mask.shape.seqlen_k, test.shape.seqlen_k);
        ck_assert_int_eq(normal_check(&mask.lists[0].normal, &test.shape, NULL), FFA_OK);
        same_cells(&mask.lists[0].normal, &whole, test.shape, seed);
        ck_assert_int_eq(mask.lists[1].normal.segment_count, 0);
        band_mask_finish(&mask);
        bands_finish(&lists[0]);
        normal_finish(&whole);
        free(test.slices);
    }
}
END_TEST

/* A diagonal one key wide crosses an end between two rows: the parts of these rows stay apart. */
START_TEST(a_diagonal_is_not_joined_across_an_end)
{
    const ffa_slice diagonal = {
        .q_begin = 3, .q_end = 5, .k_begin = 3, .k_end = 5, .type = FFA_SLICE_BICAUSAL
    };
    const int32_t end = 4;
    struct normal whole, cut;

    ck_assert_int_eq(normal_build(&whole, &diagonal, 1, NULL), FFA_OK);
    ck_assert_int_eq(whole.segment_count, 1);
    ck_assert_int_eq(normal_cut(&cut, &whole, &end, 1, NULL), FFA_OK);
    ck_assert_int_eq(cut.segment_count, 2);
    ck_assert_int_eq(cut.intervals[0].hi, 4);
    ck_assert_int_eq(cut.intervals[1].lo, 4);
    normal_finish(&whole);
    normal_finish(&cut);
}
END_TEST

START_TEST(every_allocation_may_fail)
{
    const ffa_slice causal = {
        .q_begin = 0, .q_end = 9, .k_begin = 0, .k_end = 9, .type = FFA_SLICE_CAUSAL
    };
    const int32_t end = 4;
    struct bands bands = { 0 };
    struct normal whole, cut;
    ffa_mask mask;

    ck_assert_int_eq(normal_build(&whole, &causal, 1, NULL), FFA_OK);
    ck_assert_int_eq(bands_add_normal(&bands, &whole, NULL), FFA_OK);
    for (long nth = 1;; nth++) {
        ffa_status cuts, masks;

        fault_arm(FAULT_ALLOC, nth);
        cuts = normal_cut(&cut, &whole, &end, 1, NULL);
        ck_assert_int_eq(cuts, fault_fired() ? FFA_NOMEM : FFA_OK);
        normal_finish(&cut);
        fault_arm(FAULT_ALLOC, nth);
        masks = band_mask_init(&mask, &(ffa_mask_shape){ 9, 9 }, &bands, 1, NULL);
        ck_assert_int_eq(masks, fault_fired() ? FFA_NOMEM : FFA_OK);
        band_mask_finish(&mask);
        if (cuts == FFA_OK && masks == FFA_OK)
            break;
    }
    fault_arm(FAULT_ALLOC, 0);
    normal_finish(&whole);
    bands_finish(&bands);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("normal forms, cut");
    TCase *tc = tcase_create("normal forms, cut");

    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, cells_stay_and_no_interval_crosses_an_end);
    tcase_add_test(tc, a_mask_of_bands_is_the_mask);
    tcase_add_test(tc, a_diagonal_is_not_joined_across_an_end);
    tcase_add_test(tc, every_allocation_may_fail);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
