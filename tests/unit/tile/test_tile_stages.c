/* SPDX-License-Identifier: Apache-2.0
 *
 * Stages of arriving keys: which stage and group a key is of, where an axis is cut, what is
 * refused.
 */
#include "support/suite.h"
#include "tile/tile_stages.h"

#include <check.h>

/* Own keys [0, 10), of which [2, 4) and [4, 7) come first; stage 1 is empty. */
static const struct tile_range first[] = { { 2, 4 }, { 4, 7 } };
static const struct tile_stages stages = {
    .count = 4, .ends = { 10, 10, 12, 20 }, .first = first, .first_count = 2
};

static const struct {
    int32_t key, stage, group;
} keys[] = {
    { 0, 0, 4 }, { 1, 0, 4 }, { 2, 0, 0 },  { 3, 0, 0 },  { 4, 0, 0 },  { 6, 0, 0 },
    { 7, 0, 4 }, { 9, 0, 4 }, { 10, 2, 2 }, { 11, 2, 2 }, { 12, 3, 3 }, { 19, 3, 3 },
};

START_TEST(keys_have_a_stage_and_a_group)
{
    const struct tile_stages none = { 0 };

    ck_assert_int_eq(tile_stage_of(&stages, keys[_i].key), keys[_i].stage);
    ck_assert_int_eq(tile_group_of(&stages, keys[_i].key), keys[_i].group);
    ck_assert_int_eq(tile_group_of(&none, keys[_i].key), 0);
}
END_TEST

static const struct {
    int32_t begin, end;
    bool crosses_stages, crosses_groups;
} ranges[] = {
    { 0, 2, false, false },   { 0, 3, false, true },   { 2, 4, false, false },
    { 3, 5, false, true },    { 4, 7, false, false },  { 6, 8, false, true },
    { 0, 10, false, true },   { 7, 10, false, false }, { 9, 11, true, true },
    { 10, 12, false, false }, { 11, 13, true, true },  { 12, 20, false, false },
    { 0, 20, true, true },
};

START_TEST(ranges_cross_stages_and_groups)
{
    ck_assert_int_eq(tile_crosses_stages(&stages, ranges[_i].begin, ranges[_i].end),
                     ranges[_i].crosses_stages);
    ck_assert_int_eq(tile_crosses_groups(&stages, ranges[_i].begin, ranges[_i].end),
                     ranges[_i].crosses_groups);
}
END_TEST

START_TEST(marks_ascend_each_once)
{
    const int32_t want[] = { 2, 4, 7, 10, 12 };
    struct tile_stages copy;
    int64_t count;
    int32_t *marks;

    ck_assert_int_eq(tile_stages_copy(&copy, &stages, NULL), FFA_OK);
    ck_assert_ptr_ne(copy.first, stages.first);
    ck_assert_int_eq(tile_stages_marks(&marks, &count, &copy, NULL), FFA_OK);
    ck_assert_int_eq(count, sizeof want / sizeof *want);
    ck_assert_mem_eq(marks, want, sizeof want);
    mem_free(marks);
    tile_stages_finish(&copy);
    ck_assert_ptr_null(copy.first);
}
END_TEST

static const struct {
    const char *name;
    struct tile_stages stages;
    int64_t keys;
    bool holds;
} cases[] = {
    { "one stage", { .count = 1, .ends = { 5 } }, 5, true },
    { "no key", { .count = 2, .ends = { 0, 0 } }, 0, true },
    { "no stage", { .count = 0 }, 0, false },
    { "too many", { .count = TILE_STAGES_MAX + 1 }, 0, false },
    { "other keys", { .count = 1, .ends = { 5 } }, 6, false },
    { "descending", { .count = 2, .ends = { 5, 4 } }, 4, false },
    { "negative", { .count = 2, .ends = { -1, 4 } }, 4, false },
    { "first of all", { .count = 1, .ends = { 7 }, .first = first, .first_count = 2 }, 7, true },
    { "first not own", { .count = 1, .ends = { 6 }, .first = first, .first_count = 2 }, 6, false },
};
enum { CASES = sizeof cases / sizeof *cases };

START_TEST(what_stages_are)
{
    ck_assert_msg(tile_stages_hold(&cases[_i].stages, cases[_i].keys) == cases[_i].holds, "%s",
                  cases[_i].name);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("stages of keys");
    TCase *tc = tcase_create("stages of keys");

    tcase_add_loop_test(tc, keys_have_a_stage_and_a_group, 0, sizeof keys / sizeof *keys);
    tcase_add_loop_test(tc, ranges_cross_stages_and_groups, 0, sizeof ranges / sizeof *ranges);
    tcase_add_test(tc, marks_ascend_each_once);
    tcase_add_loop_test(tc, what_stages_are, 0, CASES);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
