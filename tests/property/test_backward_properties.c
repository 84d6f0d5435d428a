/* SPDX-License-Identifier: Apache-2.0
 *
 * Backward tile plans against the slices they came from, and against the forward plan of the same
 * mask: every attended cell is computed exactly once, and nothing else is. And the transposed
 * normal form, of which they are built, against the rule of the slices.
 */
#include "support/coverage.h"
#include "support/mask_cases.h"

#include <check.h>
#include <stdio.h>

enum { CELLS_MAX = 1 << 21, SAME_WORK_MAX = 1 << 15, WORK_MAX = 1 << 20, RANDOM_MASKS = 1500 };

static const struct tile_options shapes[] = {
    { 64, 128, false, false },
    { 64, 128, true, false },
    { 80, 96, false, false },
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

/* Every key of a small mask; some of a large one. */
static int64_t step_of(const struct tile_plan *forward, const struct backward_plan *plan)
{
    const int64_t step = plan->shape.seqlen_k * (forward->band_count + 1) / SAME_WORK_MAX;

    return step < 1 ? 1 : step > 977 ? 977 : step;
}

/* Build, check the structure, execute in integers; `plan` stays for the caller. */
static void build_checked(struct backward_plan *plan, const ffa_mask *mask,
                          const ffa_slice_list *lists, const struct tile_options *opts,
                          const char *name)
{
    ffa_error err = { FFA_OK, 0, "" };
    struct coverage_text why = { "" };
    struct tile_plan forward;

    ck_assert_msg(backward_build(plan, mask, opts, &err) == FFA_OK, "%s: %s", name, err.message);
    ck_assert_msg(backward_check(plan, &err) == FFA_OK, "%s: %s", name, err.message);
    ck_assert_msg(coverage_keys(plan, lists, &why), "%s, tile %d x %d: %s", name, opts->tile_m,
                  opts->tile_n, why.at);
    if (plan->shape.seqlen_q <= CELLS_MAX / plan->shape.seqlen_k)
        ck_assert_msg(coverage_backward_cells(plan, lists, &why), "%s, tile %d x %d: %s", name,
                      opts->tile_m, opts->tile_n, why.at);
    ck_assert_int_eq(tile_build(&forward, mask, opts, NULL), FFA_OK);
    ck_assert_int_eq(forward.area, plan->area);
    ck_assert_msg(coverage_same(&forward, plan, step_of(&forward, plan), &why),
                  "%s, tile %d x %d, beside the forward plan: %s", name, opts->tile_m, opts->tile_n,
                  why.at);
    tile_finish(&forward);
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
static int64_t cost_of(const struct backward_plan *plan)
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
            struct backward_plan plan;

            if (s > 0 && test->shape.seqlen_k * test->count > WORK_MAX)
                continue; /* long masks repeat what shorter ones show */
            build_checked(&plan, mask, &list, &shapes[s], test->name);
            ck_assert_msg(plan.area == test->area, "%s: area %lld, the file says %lld", test->name,
                          (long long)plan.area, (long long)test->area);
            backward_finish(&plan);
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

/* By the definition in cut.h with the sides exchanged, cell by cell: whether a row attends `key`
 * and not `next`, unless the row after it attends both. */
static bool document_ends(const ffa_slice_list *list, int64_t key, int64_t next, int64_t rows)
{
    for (int64_t row = 0; row < rows; row++)
        if (cell(list, row, key) && !cell(list, row, next) &&
            !(row + 1 < rows && cell(list, row + 1, key) && cell(list, row + 1, next)))
            return true;
    return false;
}

static bool is_attended(const ffa_slice_list *list, int64_t key, int64_t rows)
{
    for (int64_t row = 0; row < rows; row++)
        if (cell(list, row, key))
            return true;
    return false;
}

/* No tile of list 0 has keys on both sides of a document's end. Returns how many ends there are. */
static int64_t check_documents(const struct backward_plan *plan, const ffa_slice_list *list,
                               const char *name)
{
    const int64_t rows = plan->shape.seqlen_q;
    int64_t last = -1, ends = 0;

    for (int64_t key = 0; key < plan->shape.seqlen_k; key++) {
        if (!is_attended(list, key, rows))
            continue;
        if (last >= 0 && document_ends(list, last, key, rows)) {
            ends++;
            for (int64_t t = plan->list_begin[0]; t < plan->list_begin[1]; t++) {
                const struct backward_tile *tile = &plan->tiles[t];

                ck_assert_msg(tile->key_begin > last ||
                                  tile->key_begin + (int64_t)tile->key_count <= key,
                              "%s: the tile %d+%d has keys %lld and %lld, of two documents", name,
                              tile->key_begin, tile->key_count, (long long)last, (long long)key);
            }
        }
        last = key;
    }
    return ends;
}

static const struct {
    const char *text;
    int64_t ends;  /* of documents */
    int64_t tiles; /* of 64 keys */
} documents[] = {
    { "varlen-causal:100,30,64,1,1,200", 5, 2 + 1 + 1 + 1 + 1 + 4 },
    { "varlen-full:100,30,64", 2, 2 + 1 + 1 },
    { "causal:640", 0, 10 },
    { "window:640,left=100,right=20", 0, 10 },
    { "block-causal:500,140/block=100", 6, 5 * 2 + 2 + 1 }, /* later keys have fewer rows */
    { "shared-prefix:100,50,60,70", 3, 2 + 1 + 1 + 2 },     /* all rows attend the prefix */
    { "window:40,left=0,right=0", 39, 40 },                 /* each key a document */
};

START_TEST(documents_end_where_tiles_do)
{
    const struct tile_options opts = { 64, 64, TILE_CUTS_ISOLATE, false };
    struct backward_plan plan;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_slice_list list;
    ffa_mask *mask;

    ck_assert_msg(ffa_mask_parse(&mask, documents[_i].text, &err) == FFA_OK, "%s", err.message);
    list = ffa_mask_slices(mask, 0);
    build_checked(&plan, mask, &list, &opts, documents[_i].text);
    ck_assert_int_eq(check_documents(&plan, &list, documents[_i].text), documents[_i].ends);
    ck_assert_int_eq(plan.tile_count, documents[_i].tiles);
    backward_finish(&plan);
    ffa_mask_destroy(mask);
}
END_TEST

/* ---- random unions ---- */

static const int32_t sides[] = { 16, 32, 48, 64, 80, 96, 128, 176, 192 };
enum { SIDES = sizeof sides / sizeof *sides };

/* The normal form of the transposed mask, and transposed again the first one. */
static void transpose_checked(const ffa_mask *mask, int32_t list, const char *name)
{
    const struct normal *normal = &mask->lists[list].normal;
    const ffa_mask_shape turned_shape = { mask->shape.seqlen_k, mask->shape.seqlen_q };
    ffa_error err = { FFA_OK, 0, "" };
    struct normal turned, back;

    ck_assert_msg(normal_transpose(&turned, normal, &err) == FFA_OK, "%s: %s", name, err.message);
    ck_assert_msg(normal_check(&turned, &turned_shape, &err) == FFA_OK, "%s: %s", name,
                  err.message);
    ck_assert_int_eq(turned.area, normal->area);
    ck_assert_int_eq(normal_transpose(&back, &turned, NULL), FFA_OK);
    ck_assert_msg(normal_check(&back, &mask->shape, &err) == FFA_OK, "%s: %s", name, err.message);
    ck_assert_int_eq(back.area, normal->area);
    normal_finish(&turned);
    normal_finish(&back);
}

/* The same cells in blocks on a grid, and whose turn it is at each. */
static void turns_checked(const ffa_mask *mask, const ffa_slice_list *lists,
                          struct tile_options opts, const char *name)
{
    struct coverage_text why = { "" };
    struct backward_plan plan;

    opts.on_grid = true;
    opts.cuts = TILE_CUTS_CHEAP;
    build_checked(&plan, mask, lists, &opts, name);
    ck_assert_msg(coverage_turns(&plan, &why), "%s: %s", name, why.at);
    ck_assert_int_ge(plan.turn_count, plan.sweep_count);
    ck_assert_int_le(plan.turn_count, plan.block_count);
    backward_finish(&plan);
}

static void cover_random(uint64_t seed)
{
    struct rng rng = { seed };
    struct mask_case tests[3];
    ffa_slice_list lists[3];
    const int32_t heads = rng_range(&rng, 0, 9) ? 1 : 3;
    struct tile_options opts = { .tile_m = sides[rng_range(&rng, 0, SIDES - 1)],
                                 .tile_n = sides[rng_range(&rng, 0, SIDES - 1)] };
    struct backward_plan cut, aligned, isolated;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_mask *mask;
    char name[64];

    snprintf(name, sizeof name, "seed %llu", (unsigned long long)seed);
    tests[0] = mask_case_random(&rng, 300, 48);
    lists[0] = (ffa_slice_list){ tests[0].slices, tests[0].count };
    for (int32_t h = 1; h < heads; h++) {
        tests[h] = tests[0];
        tests[h].count = rng_range(&rng, 0, tests[0].count);
        lists[h] = (ffa_slice_list){ tests[h].slices, tests[h].count };
    }
    ck_assert_msg(ffa_mask_create_per_head(&mask, &tests[0].shape, lists, heads, &err) == FFA_OK,
                  "%s: %s", name, err.message);
    for (int32_t h = 0; h < heads; h++)
        transpose_checked(mask, h, name);

    build_checked(&cut, mask, lists, &opts, name);
    opts.cuts = TILE_CUTS_NONE;
    build_checked(&aligned, mask, lists, &opts, name);
    turns_checked(mask, lists, opts, name);
    ck_assert_msg(cost_of(&cut) <= cost_of(&aligned), "%s: cuts cost %lld, aligned tiles %lld",
                  name, (long long)cost_of(&cut), (long long)cost_of(&aligned));
    opts.cuts = TILE_CUTS_ISOLATE;
    build_checked(&isolated, mask, lists, &opts, name);
    if (seed % 16 == 0)
        (void)check_documents(&isolated, &lists[0], name);

    backward_finish(&cut);
    backward_finish(&aligned);
    backward_finish(&isolated);
    ffa_mask_destroy(mask);
    free(tests[0].slices);
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
    static const int64_t sizes[] = { 1, 2, 63, 64, 65, 127, 128, 129, 257 };
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
                struct backward_plan plan;

                snprintf(test.name, sizeof test.name, "type %d, %lld x %lld", type,
                         (long long)sizes[q], (long long)sizes[k]);
                mask = mask_of(&test);
                build_checked(&plan, mask, &list, &opts, test.name);
                backward_finish(&plan);
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
    { "varlen_causal_8192", .913 },
    { "varlen_full_8192", .935 },
};

START_TEST(few_cells_are_visited_in_vain)
{
    struct mask_cases cases = mask_cases_load();
    const struct mask_case *test = mask_cases_find(&cases, efficiencies[_i].name);
    const struct tile_options opts = { 64, 128, false, false };
    struct backward_plan plan;
    ffa_mask *mask;
    double got;

    ck_assert_ptr_nonnull(test);
    mask = mask_of(test);
    ck_assert_int_eq(backward_build(&plan, mask, &opts, NULL), FFA_OK);
    got = (double)plan.area / ((double)plan.block_count * 64 * 128);
    printf("%s: %.4f\n", test->name, got);
    ck_assert_msg(got >= efficiencies[_i].least, "%s: %.4f, at least %.4f", test->name, got,
                  efficiencies[_i].least);
    backward_finish(&plan);
    ffa_mask_destroy(mask);
    mask_cases_free(&cases);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("backward properties");
    TCase *tc = tcase_create("backward properties");
    SRunner *runner;
    int failed;

    tcase_set_timeout(tc, 100);
    tcase_add_loop_test(tc, cases_are_covered_exactly_once, 0, PARTS);
    tcase_add_loop_test(tc, documents_end_where_tiles_do, 0, sizeof documents / sizeof *documents);
    tcase_add_test(tc, random_unions_are_covered_exactly_once);
    tcase_add_test(tc, sizes_around_a_tile);
    tcase_add_loop_test(tc, few_cells_are_visited_in_vain, 0,
                        sizeof efficiencies / sizeof *efficiencies);
    suite_add_tcase(suite, tc);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
