/* SPDX-License-Identifier: Apache-2.0
 *
 * Bands against counting cell by cell: area, cuts, tight bounds, translation; the rectangles and
 * windows of the reference planner; the normal form as bands.
 */
#include "mask/band.h"
#include "mask/mask.h"
#include "support/parallel_cases.h"
#include "support/suite.h"

#include <check.h>
#include <stdio.h>

enum { SIDE = 24 };

static bool band_has(const struct band *band, int64_t q, int64_t k)
{
    return band->q_begin <= q && q < band->q_end && band->k_begin <= k && k < band->k_end &&
           band->lo <= k - q && k - q <= band->hi;
}

/* The tight band around the cells of `band`, by looking at each; its area. */
static int64_t tight_by_cells(const struct band *band, struct band *tight)
{
    int64_t area = 0;

    *tight = (struct band){ INT64_MAX, INT64_MIN, INT64_MAX, INT64_MIN, INT64_MAX, INT64_MIN };
    for (int64_t q = 0; q < SIDE; q++)
        for (int64_t k = 0; k < SIDE; k++) {
            if (!band_has(band, q, k))
                continue;
            area++;
            tight->q_begin = q < tight->q_begin ? q : tight->q_begin;
            tight->q_end = q + 1 > tight->q_end ? q + 1 : tight->q_end;
            tight->k_begin = k < tight->k_begin ? k : tight->k_begin;
            tight->k_end = k + 1 > tight->k_end ? k + 1 : tight->k_end;
            tight->lo = k - q < tight->lo ? k - q : tight->lo;
            tight->hi = k - q > tight->hi ? k - q : tight->hi;
        }
    return area;
}

static void check_same(const struct band *got, const struct band *want, const char *what,
                       uint64_t seed)
{
    ck_assert_msg(!memcmp(got, want, sizeof *got),
                  "%s, seed %llu: [%lld,%lld)x[%lld,%lld) %lld..%lld, by cells "
                  "[%lld,%lld)x[%lld,%lld) %lld..%lld",
                  what, (unsigned long long)seed, (long long)got->q_begin, (long long)got->q_end,
                  (long long)got->k_begin, (long long)got->k_end, (long long)got->lo,
                  (long long)got->hi, (long long)want->q_begin, (long long)want->q_end,
                  (long long)want->k_begin, (long long)want->k_end, (long long)want->lo,
                  (long long)want->hi);
}

static struct band draw_band(struct rng *rng)
{
    struct band band = { .q_begin = rng_range(rng, 0, SIDE), .k_begin = rng_range(rng, 0, SIDE) };

    band.q_end = rng_range(rng, band.q_begin, SIDE);
    band.k_end = rng_range(rng, band.k_begin, SIDE);
    band.lo = rng_range(rng, 0, 2) ? rng_range(rng, -SIDE, SIDE) : BAND_LO_NONE;
    band.hi = rng_range(rng, 0, 2) ? rng_range(rng, -SIDE, SIDE) : BAND_HI_NONE;
    return band;
}

START_TEST(random_bands_against_their_cells)
{
    for (uint64_t seed = 1; seed <= 20000; seed++) {
        struct rng rng = { seed };
        const struct band band = draw_band(&rng);
        const int64_t begin = rng_range(&rng, 0, SIDE), end = rng_range(&rng, begin, SIDE);
        struct band want, got = band, open;
        int64_t area = tight_by_cells(&band, &want);

        ck_assert_msg(band_area(&band) == area, "seed %llu: area %lld, by cells %lld",
                      (unsigned long long)seed, (long long)band_area(&band), (long long)area);
        ck_assert_int_eq(band_shrink(&got), area > 0);
        if (area > 0)
            check_same(&got, &want, "shrink", seed);

        open = band;
        open.q_begin = open.q_begin > begin ? open.q_begin : begin;
        open.q_end = open.q_end < end ? open.q_end : end;
        area = tight_by_cells(&open, &want);
        ck_assert_int_eq(band_cut_q(&got, &band, begin, end), area > 0);
        if (area > 0)
            check_same(&got, &want, "cut in queries", seed);

        open = band;
        open.k_begin = open.k_begin > begin ? open.k_begin : begin;
        open.k_end = open.k_end < end ? open.k_end : end;
        area = tight_by_cells(&open, &want);
        ck_assert_int_eq(band_cut_k(&got, &band, begin, end), area > 0);
        if (area > 0) {
            check_same(&got, &want, "cut in keys", seed);
            open = band_translate(&got, 5, -3);
            ck_assert_int_eq(band_area(&open), area);
            ck_assert(band_has(&open, got.q_begin + 5, got.q_begin + got.lo - 3) ==
                      band_has(&got, got.q_begin, got.q_begin + got.lo));
        }
    }
}
END_TEST

START_TEST(slices_are_bands)
{
    for (uint64_t seed = 1; seed <= 5000; seed++) {
        struct rng rng = { seed };
        ffa_slice slice = { .q_begin = rng_range(&rng, 0, SIDE),
                            .k_begin = rng_range(&rng, 0, SIDE) };
        struct band band;
        bool is_band;

        slice.q_end = rng_range(&rng, slice.q_begin, SIDE);
        slice.k_end = rng_range(&rng, slice.k_begin, SIDE);
        slice.type = (int32_t)rng_range(&rng, 0, 3);
        is_band = band_from_slice(&band, &slice);
        ck_assert_int_eq(is_band, slice_area(&slice) > 0);
        for (int64_t q = 0; is_band && q < SIDE; q++)
            for (int64_t k = 0; k < SIDE; k++)
                if (band_has(&band, q, k) != slice_has(&slice, q, k))
                    ck_abort_msg("seed %llu: cell (%lld, %lld)", (unsigned long long)seed,
                                 (long long)q, (long long)k);
    }
}
END_TEST

/* The largest there are: 2^31 - 1 queries and keys. */
START_TEST(the_largest_areas_are_exact)
{
    const int64_t n = INT32_MAX;

    for (int32_t type = 0; type < 4; type++) {
        const ffa_slice slice = { 0, n, 0, n, type, 0 };
        struct band band;

        ck_assert(band_from_slice(&band, &slice));
        ck_assert_int_eq(band_area(&band), slice_area(&slice));
        ck_assert_int_eq(band_area(&(struct band){ 0, n, 0, 1, BAND_LO_NONE, BAND_HI_NONE }), n);
    }
}
END_TEST

START_TEST(rectangles_of_the_reference)
{
    json_t *root = parallel_cases_load();
    const json_t *list = json_object_get(root, "rectangles");

    ck_assert_uint_eq(json_array_size(list), 16);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i), *shrunk = json_object_get(entry, "shrunk");
        ffa_slice slice = { 0 };
        struct band band;
        int64_t q[2], k[2], d[2];

        (void)parallel_integers(json_object_get(entry, "q"), q, 2);
        (void)parallel_integers(json_object_get(entry, "k"), k, 2);
        slice = (ffa_slice){
            q[0], q[1], k[0], k[1], (int32_t)json_integer_value(json_object_get(entry, "type")), 0
        };
        ck_assert_int_eq(band_from_slice(&band, &slice), !json_object_get(entry, "empty"));
        if (!shrunk)
            continue;
        ck_assert_int_eq(band_area(&band), json_integer_value(json_object_get(entry, "area")));
        (void)parallel_integers(json_array_get(shrunk, 0), q, 2);
        (void)parallel_integers(json_array_get(shrunk, 1), k, 2);
        (void)parallel_integers(json_array_get(shrunk, 2), d, 2);
        check_same(&band, &(struct band){ q[0], q[1], k[0], k[1], d[0], d[1] }, "rectangle", i);
    }
    json_decref(root);
}
END_TEST

/* Disjoint, in order, the same cells as the mask, and no key left out between two rows. */
/* Cells of FlashAttention's window, counted; the reference's where it says it has the same. */
START_TEST(sliding_windows_of_the_reference)
{
    json_t *root = parallel_cases_load();
    const json_t *list = json_object_get(root, "sliding_window");
    int64_t same = 0;

    ck_assert_uint_eq(json_array_size(list), 32);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i);
        int64_t q[2], k[2], w[2], cells = 0;
        ffa_mask_shape shape;
        ffa_mask *mask;

        (void)parallel_integers(json_object_get(entry, "q"), q, 2);
        (void)parallel_integers(json_object_get(entry, "k"), k, 2);
        (void)parallel_integers(json_object_get(entry, "w"), w, 2);
        shape = (ffa_mask_shape){ q[1] - q[0], k[1] - k[0] };
        ck_assert_int_eq(ffa_mask_window(&mask, &shape, &(ffa_window){ w[0], w[1] }, NULL), FFA_OK);
        for (int64_t row = 0; row < shape.seqlen_q; row++)
            for (int64_t key = 0; key < shape.seqlen_k; key++) {
                const int64_t away = key - row - (shape.seqlen_k - shape.seqlen_q);

                cells += (w[0] < 0 || away >= -w[0]) && (w[1] < 0 || away <= w[1]);
            }
        ck_assert_int_eq(ffa_mask_area(mask, 0), cells);
        if (json_is_true(json_object_get(entry, "equals_fa_definition"))) {
            ck_assert_int_eq(json_integer_value(json_object_get(entry, "cells")), cells);
            same++;
        }
        ffa_mask_destroy(mask);
    }
    ck_assert_int_eq(same, 24);
    json_decref(root);
}
END_TEST

START_TEST(the_normal_form_as_bands)
{
    for (uint64_t seed = 1; seed <= 2000; seed++) {
        struct rng rng = { seed };
        ffa_mask *mask = parallel_random_mask(&rng, SIDE, 12);
        const ffa_slice_list list = ffa_mask_slices(mask, 0);
        struct bands bands = { 0 };
        int64_t area = 0;

        ck_assert_int_eq(bands_add_normal(&bands, &mask->lists[0].normal, NULL), FFA_OK);
        for (int64_t b = 0; b < bands.count; b++) {
            struct band tight = bands.at[b];

            area += band_area(&tight);
            ck_assert(band_shrink(&tight));
            check_same(&bands.at[b], &tight, "of the normal form", seed);
            ck_assert(b == 0 || bands.at[b - 1].q_begin < tight.q_begin ||
                      (bands.at[b - 1].q_begin == tight.q_begin &&
                       bands.at[b - 1].q_end == tight.q_end &&
                       bands.at[b - 1].k_begin < tight.k_begin));
        }
        ck_assert_int_eq(area, ffa_mask_area(mask, 0));
        for (int64_t q = 0; q < SIDE; q++)
            for (int64_t k = 0; k < SIDE; k++) {
                int64_t times = 0;
                bool wanted = false;

                for (int64_t b = 0; b < bands.count; b++)
                    times += band_has(&bands.at[b], q, k);
                for (int64_t i = 0; i < list.count; i++)
                    wanted = wanted || slice_has(&list.slices[i], q, k);
                if (times != wanted)
                    ck_abort_msg("seed %llu: cell (%lld, %lld) is in %lld bands",
                                 (unsigned long long)seed, (long long)q, (long long)k,
                                 (long long)times);
            }
        bands_finish(&bands);
        ffa_mask_destroy(mask);
    }
}
END_TEST

START_TEST(bands_without_memory)
{
    struct rng rng = { 3 };
    ffa_mask *mask = parallel_random_mask(&rng, SIDE, 12);
    struct bands bands = { 0 };
    ffa_error err = { FFA_OK, 0, "" };

    fault_arm(FAULT_ALLOC, 1);
    ck_assert_int_eq(bands_add_normal(&bands, &mask->lists[0].normal, &err), FFA_NOMEM);
    ck_assert_str_eq(err.message, "no memory for bands");
    fault_arm(FAULT_ALLOC, 0);
    bands_finish(&bands);
    ffa_mask_destroy(mask);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("band");
    TCase *tc = tcase_create("band");

    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, random_bands_against_their_cells);
    tcase_add_test(tc, slices_are_bands);
    tcase_add_test(tc, the_largest_areas_are_exact);
    tcase_add_test(tc, rectangles_of_the_reference);
    tcase_add_test(tc, sliding_windows_of_the_reference);
    tcase_add_test(tc, the_normal_form_as_bands);
    tcase_add_test(tc, bands_without_memory);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
