/* SPDX-License-Identifier: Apache-2.0
 *
 * Tile plans against the slices they came from: every attended cell is computed exactly once, and
 * nothing else is. A failure prints the seed or the case, the tile and the row.
 */
#include "support/coverage.h"
#include "support/mask_cases.h"

#include <check.h>
#include <stdio.h>

enum { CELLS_MAX = 1 << 22, RANDOM_MASKS = 3000 };

static const struct tile_options shapes[] = {
    { 128, 128, false, false },
    { 128, 128, true, false },
    { 64, 80, false, false },
    { 192, 176, false, false },
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

/* Build, check the structure, execute in integers; `plan` stays for the caller. */
static void build_checked(struct tile_plan *plan, const ffa_mask *mask, const ffa_slice_list *lists,
                          const struct tile_options *opts, const char *name)
{
    ffa_error err = { FFA_OK, 0, "" };
    struct coverage_text why = { "" };

    ck_assert_msg(tile_build(plan, mask, opts, &err) == FFA_OK, "%s: %s", name, err.message);
    ck_assert_msg(tile_check(plan, &err) == FFA_OK, "%s: %s", name, err.message);
    ck_assert_msg(coverage_rows(plan, lists, &why), "%s, tile %d x %d: %s", name, opts->tile_m,
                  opts->tile_n, why.at);
    if (plan->shape.seqlen_q <= CELLS_MAX / plan->shape.seqlen_k)
        ck_assert_msg(coverage_cells(plan, lists, &why), "%s, tile %d x %d: %s", name, opts->tile_m,
                      opts->tile_n, why.at);
}

static ffa_mask *mask_of(const struct mask_case *test)
{
    ffa_error err = { FFA_OK, 0, "" };
    ffa_mask *mask;

    ck_assert_msg(ffa_mask_create(&mask, &test->shape, test->slices, test->count, &err) == FFA_OK,
                  "%s: %s", test->name, err.message);
    return mask;
}

/* Blocks and tiles: what cutting minimises. */
static int64_t cost_of(const struct tile_plan *plan)
{
    return plan->block_count + plan->tile_count;
}

/* Case by case modulo PARTS, so that they run as tests of their own. */
enum { PARTS = 4 };

START_TEST(cases_are_covered_exactly_once)
{
    struct mask_cases cases = mask_cases_load();

    for (int64_t i = _i; i < cases.count; i += PARTS) {
        const struct mask_case *test = &cases.at[i];
        const ffa_slice_list list = { test->slices, test->count };
        ffa_mask *mask = mask_of(test);

        for (int32_t s = 0; s < SHAPES; s++) {
            struct tile_plan plan;

            if (s > 1 && test->shape.seqlen_q > 20000)
                continue; /* long masks repeat what shorter ones show */
            build_checked(&plan, mask, &list, &shapes[s], test->name);
            ck_assert_msg(plan.area == test->area, "%s: area %lld, the file says %lld", test->name,
                          (long long)plan.area, (long long)test->area);
            tile_finish(&plan);
        }
        ffa_mask_destroy(mask);
    }
    mask_cases_free(&cases);
}
END_TEST

/* ---- documents kept apart ---- */

static bool cell(const ffa_slice_list *list, int64_t row, int64_t key)
{
    for (int64_t s = 0; s < list->count; s++)
        if (slice_has(&list->slices[s], row, key))
            return true;
    return false;
}

/* By the definition in cut.h, cell by cell. */
static bool document_ends(const ffa_slice_list *list, int64_t row, int64_t next, int64_t keys)
{
    for (int64_t key = 0; key < keys; key++)
        if (cell(list, row, key) && !cell(list, next, key) &&
            !(key + 1 < keys && cell(list, row, key + 1) && cell(list, next, key + 1)))
            return true;
    return false;
}

static bool attends(const ffa_slice_list *list, int64_t row, int64_t keys)
{
    for (int64_t key = 0; key < keys; key++)
        if (cell(list, row, key))
            return true;
    return false;
}

/* No tile of list 0 has rows on both sides of a document's end. Returns how many ends there are. */
static int64_t check_documents(const struct tile_plan *plan, const ffa_slice_list *list,
                               const char *name)
{
    const int64_t keys = plan->shape.seqlen_k;
    int64_t last = -1, ends = 0;

    for (int64_t row = 0; row < plan->shape.seqlen_q; row++) {
        if (!attends(list, row, keys))
            continue;
        if (last >= 0 && document_ends(list, last, row, keys)) {
            ends++;
            for (int64_t t = plan->list_begin[0]; t < plan->list_begin[1]; t++) {
                const struct plan_tile *tile = &plan->tiles[t];

                ck_assert_msg(tile->row_begin > last ||
                                  tile->row_begin + (int64_t)tile->row_count <= row,
                              "%s: the tile %d+%d has rows %lld and %lld, of two documents", name,
                              tile->row_begin, tile->row_count, (long long)last, (long long)row);
            }
        }
        last = row;
    }
    return ends;
}

static const struct {
    const char *text;
    int64_t ends;  /* of documents */
    int64_t tiles; /* of 64 rows */
} documents[] = {
    { "varlen-causal:100,30,64,1,1,200", 5, 2 + 1 + 1 + 1 + 1 + 4 },
    { "varlen-full:100,30,64", 2, 2 + 1 + 1 },
    { "causal:640", 0, 10 },
    { "window:640,left=100,right=0", 0, 10 },
    { "window:640,left=100,right=20", 0, 10 },
    { "global-window:640,left=64,right=0,global=32", 0, 10 },
    { "block-causal:500,140/block=100", 1, 8 + 3 },
    { "shared-prefix:100,50,60,70", 2, 3 + 1 + 2 }, /* the first continues the prefix */
    { "window:40,left=0,right=0", 39, 40 },         /* each row a document */
};

START_TEST(documents_end_where_tiles_do)
{
    const struct tile_options opts = { 64, 64, TILE_CUTS_ISOLATE, false };
    struct tile_plan plan;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_slice_list list;
    ffa_mask *mask;

    ck_assert_msg(ffa_mask_parse(&mask, documents[_i].text, &err) == FFA_OK, "%s", err.message);
    list = ffa_mask_slices(mask, 0);
    build_checked(&plan, mask, &list, &opts, documents[_i].text);
    ck_assert_int_eq(check_documents(&plan, &list, documents[_i].text), documents[_i].ends);
    ck_assert_int_eq(plan.tile_count, documents[_i].tiles);
    tile_finish(&plan);
    ffa_mask_destroy(mask);
}
END_TEST

/* ---- random unions ---- */

static const int32_t sides[] = { 16, 32, 48, 64, 80, 96, 128, 176, 192 };
enum { SIDES = sizeof sides / sizeof *sides };

static void cover_random(uint64_t seed)
{
    struct rng rng = { seed };
    struct mask_case tests[3];
    ffa_slice_list lists[3];
    const int32_t heads = rng_range(&rng, 0, 9) ? 1 : 3;
    struct tile_options opts = { .tile_m = sides[rng_range(&rng, 0, SIDES - 1)],
                                 .tile_n = sides[rng_range(&rng, 0, SIDES - 1)] };
    struct tile_plan cut, aligned, isolated;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_mask *mask;
    char name[64];

    snprintf(name, sizeof name, "seed %llu", (unsigned long long)seed);
    tests[0] = mask_case_random(&rng, 400, 48);
    lists[0] = (ffa_slice_list){ tests[0].slices, tests[0].count };
    for (int32_t h = 1; h < heads; h++) {
        tests[h] = tests[0];
        tests[h].slices = calloc(16, sizeof *tests[h].slices);
        tests[h].count = rng_range(&rng, 0, tests[0].count < 16 ? tests[0].count : 16);
        for (int64_t i = 0; i < tests[h].count; i++)
            tests[h].slices[i] = tests[0].slices[rng_range(&rng, 0, tests[0].count - 1)];
        lists[h] = (ffa_slice_list){ tests[h].slices, tests[h].count };
    }
    ck_assert_msg(ffa_mask_create_per_head(&mask, &tests[0].shape, lists, heads, &err) == FFA_OK,
                  "%s: %s", name, err.message);

    build_checked(&cut, mask, lists, &opts, name);
    opts.cuts = TILE_CUTS_NONE;
    build_checked(&aligned, mask, lists, &opts, name);
    ck_assert_msg(cost_of(&cut) <= cost_of(&aligned), "%s: cuts cost %lld, aligned tiles %lld",
                  name, (long long)cost_of(&cut), (long long)cost_of(&aligned));
    ck_assert_int_eq(cut.area, aligned.area);
    opts.cuts = TILE_CUTS_ISOLATE;
    build_checked(&isolated, mask, lists, &opts, name);
    ck_assert_int_eq(isolated.area, aligned.area);
    if (seed % 16 == 0)
        (void)check_documents(&isolated, &lists[0], name);

    tile_finish(&cut);
    tile_finish(&aligned);
    tile_finish(&isolated);
    ffa_mask_destroy(mask);
    for (int32_t h = 0; h < heads; h++)
        free(tests[h].slices);
}

START_TEST(random_unions_are_covered_exactly_once)
{
    for (uint64_t seed = 1; seed <= RANDOM_MASKS; seed++)
        cover_random(seed);
}
END_TEST

/* ---- sizes around a tile ---- */

START_TEST(sizes_around_a_tile)
{
    static const int64_t sizes[] = { 1, 2, 63, 64, 65, 127, 128, 129, 255, 256, 257 };
    const struct tile_options opts = { 64, 64, false, false };

    for (size_t q = 0; q < sizeof sizes / sizeof *sizes; q++)
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
            for (int32_t type = 0; type < 4; type++) {
                ffa_slice slice = { 0, sizes[q], 0, sizes[k], type, 0 };
                struct mask_case test = { .shape = { sizes[q], sizes[k] },
                                          .slices = &slice,
                                          .count = 1 };
                const ffa_slice_list list = { &slice, 1 };
                ffa_mask *mask;
                struct tile_plan plan;

                snprintf(test.name, sizeof test.name, "type %d, %lld x %lld", type,
                         (long long)sizes[q], (long long)sizes[k]);
                mask = mask_of(&test);
                build_checked(&plan, mask, &list, &opts, test.name);
                tile_finish(&plan);
                ffa_mask_destroy(mask);
            }
}
END_TEST

/* ---- efficiency: attended cells over cells of visited blocks ---- */

static const struct {
    const char *name;
    double least;
} efficiencies[] = {
    { "causal_8192", .984 },
    { "sliding_window_causal_8192", .889 },
    { "varlen_causal_8192", .873 },
    { "varlen_full_8192", .913 },
};

START_TEST(few_cells_are_visited_in_vain)
{
    struct mask_cases cases = mask_cases_load();
    const struct mask_case *test = mask_cases_find(&cases, efficiencies[_i].name);
    const struct tile_options opts = { 128, 128, false, false };
    struct tile_plan plan;
    ffa_mask *mask;
    double got;

    ck_assert_ptr_nonnull(test);
    mask = mask_of(test);
    ck_assert_int_eq(tile_build(&plan, mask, &opts, NULL), FFA_OK);
    got = (double)plan.area / ((double)plan.block_count * 128 * 128);
    printf("%s: %.4f\n", test->name, got);
    ck_assert_msg(got >= efficiencies[_i].least, "%s: %.4f, at least %.4f", test->name, got,
                  efficiencies[_i].least);
    tile_finish(&plan);
    ffa_mask_destroy(mask);
    mask_cases_free(&cases);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tile properties");
    TCase *tc = tcase_create("tile properties");
    SRunner *runner;
    int failed;

    tcase_set_timeout(tc, 100);
    tcase_add_loop_test(tc, cases_are_covered_exactly_once, 0, PARTS);
    tcase_add_test(tc, random_unions_are_covered_exactly_once);
    tcase_add_test(tc, sizes_around_a_tile);
    tcase_add_loop_test(tc, documents_end_where_tiles_do, 0, sizeof documents / sizeof *documents);
    tcase_add_loop_test(tc, few_cells_are_visited_in_vain, 0,
                        sizeof efficiencies / sizeof *efficiencies);
    suite_add_tcase(suite, tc);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
