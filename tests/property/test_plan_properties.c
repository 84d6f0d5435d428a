/* SPDX-License-Identifier: Apache-2.0
 *
 * Tile plans of both passes against the slices they came from: every attended cell is computed
 * exactly once, and nothing else is. A failure prints the seed or the case, the tile and the row.
 * Backward plans also against the forward plan of the same mask, and the transposed normal form, of
 * which they are built, against the rule of the slices.
 */
#include "support/coverage.h"
#include "support/mask_cases.h"
#include "support/plan_fields.h"
#include "support/suite.h"

#include <check.h>
#include <stdio.h>

enum { SAME_WORK_MAX = 1 << 15, WORK_MAX = 1 << 20 };

static const int64_t cells_max[AXES] = { 1 << 22, 1 << 21 };
static const uint64_t random_masks[AXES] = { 3000, 1500 };

static const struct {
    int count;
    struct tile_options opts[4];
} shapes[AXES] = {
    { 4,
      { { 128, 128, false, false },
        { 128, 128, true, false },
        { 64, 80, false, false },
        { 192, 176, false, false } } },
    { 3, { { 64, 128, false, false }, { 64, 128, true, false }, { 80, 96, false, false } } },
};

/* Every key of a small mask; some of a large one. */
static int64_t step_of(const struct tile_plan *forward, const struct tile_plan *plan)
{
    const int64_t step = plan->shape.seqlen_k * (forward->band_count + 1) / SAME_WORK_MAX;

    return step < 1 ? 1 : step > 977 ? 977 : step;
}

/* The same cells as the forward plan of the mask. */
static void same_checked(const struct tile_plan *plan, const ffa_mask *mask,
                         const struct tile_options *opts, const char *name)
{
    struct coverage_text why = { "" };
    struct tile_plan forward;

    ck_assert_int_eq(tile_build(&forward, mask, TILE_OWNS_QUERIES, opts, NULL), FFA_OK);
    ck_assert_int_eq(forward.area, plan->area);
    ck_assert_msg(coverage_same(&forward, plan, step_of(&forward, plan), &why),
                  "%s, tile %d x %d, beside the forward plan: %s", name, opts->tile_m, opts->tile_n,
                  why.at);
    tile_finish(&forward);
}

/* Build, check the structure, execute in integers; `plan` stays for the caller. */
static void build_checked(struct tile_plan *plan, enum tile_axis axis, const ffa_mask *mask,
                          const ffa_slice_list *lists, const struct tile_options *opts,
                          const char *name)
{
    ffa_error err = { FFA_OK, 0, "" };
    struct coverage_text why = { "" };

    ck_assert_msg(tile_build(plan, mask, axis, opts, &err) == FFA_OK, "%s: %s", name, err.message);
    ck_assert_msg(tile_check(plan, &err) == FFA_OK, "%s: %s", name, err.message);
    ck_assert_msg(coverage_lines(plan, lists, &why), "%s, %s, tile %d x %d: %s", name,
                  axis_names[axis], opts->tile_m, opts->tile_n, why.at);
    if (mask->shape.seqlen_q <= cells_max[axis] / mask->shape.seqlen_k)
        ck_assert_msg(coverage_cells(plan, lists, &why), "%s, %s, tile %d x %d: %s", name,
                      axis_names[axis], opts->tile_m, opts->tile_n, why.at);
    if (axis == TILE_OWNS_KEYS)
        same_checked(plan, mask, opts, name);
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

/* Case by case modulo PARTS, so that they run as tests of their own; pass after pass. */
enum { PARTS = 4 };

/* Long masks repeat what shorter ones show. */
static bool is_left_out(enum tile_axis axis, int shape, const struct mask_case *test)
{
    return axis == TILE_OWNS_QUERIES ? shape > 1 && test->shape.seqlen_q > 20000
                                     : shape > 0 && test->shape.seqlen_k * test->count > WORK_MAX;
}

START_TEST(cases_are_covered_exactly_once)
{
    const enum tile_axis axis = (enum tile_axis)(_i / PARTS);
    struct mask_cases cases = mask_cases_load();

    for (int64_t i = _i % PARTS; i < cases.count; i += PARTS) {
        const struct mask_case *test = &cases.at[i];
        const ffa_slice_list list = { test->slices, test->count };
        ffa_mask *mask = mask_of(test);

        for (int s = 0; s < shapes[axis].count; s++) {
            struct tile_plan plan;

            if (is_left_out(axis, s, test))
                continue;
            build_checked(&plan, axis, mask, &list, &shapes[axis].opts[s], test->name);
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

/* Whether a line of the tiles' side attends one of the other side. */
static bool cell(enum tile_axis axis, const ffa_slice_list *list, int64_t line, int64_t other)
{
    const int64_t row = axis == TILE_OWNS_QUERIES ? line : other,
                  key = axis == TILE_OWNS_QUERIES ? other : line;

    for (int64_t s = 0; s < list->count; s++)
        if (slice_has(&list->slices[s], row, key))
            return true;
    return false;
}

/* By the definition in cut.h, cell by cell; backward with the sides exchanged. */
static bool document_ends(enum tile_axis axis, const ffa_slice_list *list, int64_t line,
                          int64_t next, int64_t others)
{
    for (int64_t o = 0; o < others; o++)
        if (cell(axis, list, line, o) && !cell(axis, list, next, o) &&
            !(o + 1 < others && cell(axis, list, line, o + 1) && cell(axis, list, next, o + 1)))
            return true;
    return false;
}

static bool attends(enum tile_axis axis, const ffa_slice_list *list, int64_t line, int64_t others)
{
    for (int64_t o = 0; o < others; o++)
        if (cell(axis, list, line, o))
            return true;
    return false;
}

/* No tile of list 0 has lines on both sides of a document's end. Returns how many ends there are.
 */
static int64_t check_documents(const struct tile_plan *plan, const ffa_slice_list *list,
                               const char *name)
{
    const int64_t others = tile_swept_length(plan);
    int64_t last = -1, ends = 0;

    for (int64_t line = 0; line < tile_own_length(plan); line++) {
        if (!attends(plan->axis, list, line, others))
            continue;
        if (last >= 0 && document_ends(plan->axis, list, last, line, others)) {
            ends++;
            for (int64_t t = plan->list_begin[0]; t < plan->list_begin[1]; t++) {
                const struct plan_tile tile = plan->tiles[t];

                ck_assert_msg(tile.begin > last || tile.begin + (int64_t)tile.count <= line,
                              "%s, %s: the tile %d+%d has %lld and %lld, of two documents", name,
                              axis_names[plan->axis], tile.begin, tile.count, (long long)last,
                              (long long)line);
            }
        }
        last = line;
    }
    return ends;
}

static const struct {
    const char *text;
    int64_t ends[AXES];  /* of documents */
    int64_t tiles[AXES]; /* of 64 rows, or keys */
} documents[] = {
    { "varlen-causal:100,30,64,1,1,200", { 5, 5 }, { 10, 10 } },
    { "varlen-full:100,30,64", { 2, 2 }, { 4, 4 } },
    { "causal:640", { 0, 0 }, { 10, 10 } },
    { "window:640,left=100,right=0", { 0, 0 }, { 10, 10 } },
    { "window:640,left=100,right=20", { 0, 0 }, { 10, 10 } },
    { "global-window:640,left=64,right=0,global=32", { 0, 1 }, { 10, 11 } },
    /* later keys have fewer rows */
    { "block-causal:500,140/block=100", { 1, 6 }, { 8 + 3, 5 * 2 + 2 + 1 } },
    /* the first document continues the prefix; all rows attend the prefix */
    { "shared-prefix:100,50,60,70", { 2, 3 }, { 3 + 1 + 2, 2 + 1 + 1 + 2 } },
    { "window:40,left=0,right=0", { 39, 39 }, { 40, 40 } }, /* each row a document */
};
enum { DOCUMENTS = sizeof documents / sizeof *documents };

START_TEST(documents_end_where_tiles_do)
{
    const enum tile_axis axis = (enum tile_axis)(_i / DOCUMENTS);
    const char *text = documents[_i % DOCUMENTS].text;
    const struct tile_options opts = { 64, 64, TILE_CUTS_ISOLATE, false };
    struct tile_plan plan;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_slice_list list;
    ffa_mask *mask;

    ck_assert_msg(ffa_mask_parse(&mask, text, &err) == FFA_OK, "%s", err.message);
    list = ffa_mask_slices(mask, 0);
    build_checked(&plan, axis, mask, &list, &opts, text);
    ck_assert_int_eq(check_documents(&plan, &list, text), documents[_i % DOCUMENTS].ends[axis]);
    ck_assert_int_eq(plan.tile_count, documents[_i % DOCUMENTS].tiles[axis]);
    tile_finish(&plan);
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

/* The same cells in blocks on a grid, and their tickets. */
static void tickets_checked(const ffa_mask *mask, const ffa_slice_list *lists,
                            struct tile_options opts, const char *name)
{
    struct coverage_text why = { "" };
    struct tile_plan plan;

    opts.on_grid = true;
    opts.cuts = TILE_CUTS_CHEAP;
    build_checked(&plan, TILE_OWNS_KEYS, mask, lists, &opts, name);
    ck_assert_msg(coverage_tickets(&plan, &why), "%s: %s", name, why.at);
    ck_assert_int_ge(plan.ticket_count, plan.sweep_count);
    ck_assert_int_le(plan.ticket_count, plan.block_count);
    tile_finish(&plan);
    opts.tile_n = 4; /* many tiles */
    build_checked(&plan, TILE_OWNS_KEYS, mask, lists, &opts, name);
    ck_assert_msg(coverage_tickets(&plan, &why), "%s, many tiles: %s", name, why.at);
    tile_finish(&plan);
}

static void cover_random(enum tile_axis axis, uint64_t seed)
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

    snprintf(name, sizeof name, "%s, seed %llu", axis_names[axis], (unsigned long long)seed);
    tests[0] = mask_case_random(&rng, axis == TILE_OWNS_QUERIES ? 400 : 300, 48);
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
    for (int32_t h = 0; axis == TILE_OWNS_KEYS && h < heads; h++)
        transpose_checked(mask, h, name);

    build_checked(&cut, axis, mask, lists, &opts, name);
    opts.cuts = TILE_CUTS_NONE;
    build_checked(&aligned, axis, mask, lists, &opts, name);
    ck_assert_int_eq(aligned.area, cut.area);
    ck_assert_msg(cost_of(&cut) <= cost_of(&aligned), "%s: cuts cost %lld, aligned tiles %lld",
                  name, (long long)cost_of(&cut), (long long)cost_of(&aligned));
    opts.cuts = TILE_CUTS_ISOLATE;
    build_checked(&isolated, axis, mask, lists, &opts, name);
    ck_assert_int_eq(isolated.area, cut.area);
    if (seed % 16 == 0)
        (void)check_documents(&isolated, &lists[0], name);
    if (axis == TILE_OWNS_KEYS)
        tickets_checked(mask, lists, opts, name);

    tile_finish(&cut);
    tile_finish(&aligned);
    tile_finish(&isolated);
    ffa_mask_destroy(mask);
    for (int32_t h = 0; h < heads; h++)
        free(tests[h].slices);
}

START_TEST(random_unions_are_covered_exactly_once)
{
    for (uint64_t seed = 1; seed <= random_masks[_i]; seed++)
        cover_random((enum tile_axis)_i, seed);
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
                build_checked(&plan, (enum tile_axis)_i, mask, &list, &opts, test.name);
                tile_finish(&plan);
                ffa_mask_destroy(mask);
            }
}
END_TEST

/* ---- efficiency: attended cells over cells of visited blocks ---- */

static const struct {
    const char *name;
    double least[AXES];
} efficiencies[] = {
    { "causal_8192", { .984, .984 } },
    { "sliding_window_causal_8192", { .889, .889 } },
    { "varlen_causal_8192", { .873, .913 } },
    { "varlen_full_8192", { .913, .935 } },
};
enum { EFFICIENCIES = sizeof efficiencies / sizeof *efficiencies };

START_TEST(few_cells_are_visited_in_vain)
{
    const enum tile_axis axis = (enum tile_axis)(_i / EFFICIENCIES);
    const double least = efficiencies[_i % EFFICIENCIES].least[axis];
    struct mask_cases cases = mask_cases_load();
    const struct mask_case *test = mask_cases_find(&cases, efficiencies[_i % EFFICIENCIES].name);
    const struct tile_options opts = { axis == TILE_OWNS_QUERIES ? 128 : 64, 128, false, false };
    struct tile_plan plan;
    ffa_mask *mask;
    double got;

    ck_assert_ptr_nonnull(test);
    mask = mask_of(test);
    ck_assert_int_eq(tile_build(&plan, mask, axis, &opts, NULL), FFA_OK);
    got = (double)plan.area / ((double)plan.block_count * opts.tile_m * opts.tile_n);
    printf("%s, %s: %.4f\n", test->name, axis_names[axis], got);
    ck_assert_msg(got >= least, "%s, %s: %.4f, at least %.4f", test->name, axis_names[axis], got,
                  least);
    tile_finish(&plan);
    ffa_mask_destroy(mask);
    mask_cases_free(&cases);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("plan properties");
    TCase *tc = tcase_create("plan properties");

    tcase_set_timeout(tc, 100);
    tcase_add_loop_test(tc, cases_are_covered_exactly_once, 0, AXES * PARTS);
    tcase_add_loop_test(tc, random_unions_are_covered_exactly_once, 0, AXES);
    tcase_add_loop_test(tc, sizes_around_a_tile, 0, AXES);
    tcase_add_loop_test(tc, documents_end_where_tiles_do, 0, AXES * DOCUMENTS);
    tcase_add_loop_test(tc, few_cells_are_visited_in_vain, 0, AXES * EFFICIENCIES);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
