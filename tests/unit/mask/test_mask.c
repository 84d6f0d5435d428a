/* SPDX-License-Identifier: Apache-2.0
 *
 * The mask object: what is accepted and refused, areas, the known cases, the report of a check.
 */
#include "mask/mask.h"
#include "support/rng.h"
#include "support/suite.h"

#include <check.h>
#include <jansson.h>
#include <stdio.h>

#define COUNT_OF(array) ((int)(sizeof(array) / sizeof *(array)))
#define TWO_TO_31 ((int64_t)1 << 31)

static const ffa_error no_error = { FFA_OK, 0, "" };

/* ---- create ---- */

static const struct {
    const char *name;
    ffa_mask_shape shape;
    ffa_slice slice;
    const char *want; /* what the message must have; NULL: accepted */
} create_cases[] = {
    { "one cell", { 1, 1 }, { 0, 1, 0, 1, 0, 0 }, NULL },
    { "no rows", { 4, 4 }, { 2, 2, 0, 4, 1, 0 }, NULL },
    { "no keys", { 4, 4 }, { 0, 4, 4, 4, 3, 0 }, NULL },
    { "padding is ignored", { 4, 4 }, { 0, 4, 0, 4, 3, 77 }, NULL },
    { "largest", { INT32_MAX, INT32_MAX }, { 0, INT32_MAX, 0, INT32_MAX, 0, 0 }, NULL },
    { "no queries", { 0, 4 }, { 0, 0, 0, 4, 0, 0 }, "seqlen_q is 0, not in [1, 2147483647]" },
    { "no keys at all", { 4, 0 }, { 0, 4, 0, 0, 0, 0 }, "seqlen_k is 0, not in [1, 2147483647]" },
    { "negative", { -4, 4 }, { 0, 0, 0, 4, 0, 0 }, "seqlen_q is -4" },
    { "2^31 queries", { TWO_TO_31, 4 }, { 0, 4, 0, 4, 0, 0 }, "seqlen_q is 2147483648" },
    { "2^31 keys", { 4, TWO_TO_31 }, { 0, 4, 0, 4, 0, 0 }, "seqlen_k is 2147483648" },
    { "negative q", { 4, 4 }, { -1, 4, 0, 4, 0, 0 }, "slice 0: q_begin is -1, not in [0, 4]" },
    { "negative k", { 4, 4 }, { 0, 4, -2, 4, 0, 0 }, "slice 0: k_begin is -2, not in [0, 4]" },
    { "long q", { 4, 5 }, { 0, 5, 0, 4, 0, 0 }, "slice 0: q_end is 5, not in [0, 4] (seqlen_q)" },
    { "long k", { 5, 4 }, { 0, 5, 0, 5, 0, 0 }, "slice 0: k_end is 5, not in [0, 4] (seqlen_k)" },
    { "reversed q", { 4, 4 }, { 3, 1, 0, 4, 0, 0 }, "slice 0: q_end is 1, less than q_begin, 3" },
    { "reversed k", { 4, 4 }, { 0, 4, 4, 2, 0, 0 }, "slice 0: k_end is 2, less than k_begin, 4" },
    { "beyond both", { 4, 4 }, { 9, 9, 0, 4, 0, 0 }, "slice 0: q_end is 9, not in [0, 4]" },
    { "extreme", { 4, 4 }, { INT64_MIN, INT64_MAX, 0, 4, 0, 0 }, "slice 0: q_begin is -92233720" },
    { "type 4", { 4, 4 }, { 0, 4, 0, 4, 4, 0 }, "slice 0: type is 4, not in [0, 3]" },
    { "type -1", { 4, 4 }, { 0, 4, 0, 4, -1, 0 }, "slice 0: type is -1, not in [0, 3]" },
};

START_TEST(create_checks_its_slices)
{
    const char *want = create_cases[_i].want;
    ffa_mask *mask = (ffa_mask *)&no_error;
    ffa_error err = no_error;
    ffa_status rc =
        ffa_mask_create(&mask, &create_cases[_i].shape, &create_cases[_i].slice, 1, &err);

    if (want) {
        ck_assert_int_eq(rc, FFA_INVALID);
        ck_assert_int_eq(err.status, FFA_INVALID);
        ck_assert_ptr_null(mask);
        ck_assert_msg(strstr(err.message, want) != NULL, "%s: got '%s', want '%s'",
                      create_cases[_i].name, err.message, want);
    } else {
        ck_assert_msg(rc == FFA_OK, "%s: %s", create_cases[_i].name, err.message);
        ck_assert_int_eq(ffa_mask_area(mask, 0), slice_area(&create_cases[_i].slice));
        ck_assert_int_eq(ffa_mask_slices(mask, 0).slices[0].pad_, 0);
    }
    ffa_mask_destroy(mask);
}
END_TEST

START_TEST(create_checks_its_arguments)
{
    ffa_mask_shape shape = { 4, 4 };
    ffa_slice good = { 0, 4, 0, 4, 1, 0 }, bad = { 0, 4, 0, 4, 9, 0 };
    ffa_slice_list lists[2] = { { &good, 1 }, { &bad, 1 } };
    ffa_error err = no_error;
    ffa_mask *mask;

    ck_assert_int_eq(ffa_mask_create(NULL, &shape, &good, 1, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "out is NULL");
    ck_assert_int_eq(ffa_mask_create(&mask, NULL, &good, 1, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "shape is NULL");
    ck_assert_int_eq(ffa_mask_create(&mask, &shape, NULL, 1, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "slices is NULL, but their count is 1");
    ck_assert_int_eq(ffa_mask_create(&mask, &shape, &good, -1, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "slice count is -1, not in [0, 67108864]");
    ck_assert_int_eq(ffa_mask_create(&mask, &shape, &good, INT64_MAX, NULL), FFA_INVALID);

    ck_assert_int_eq(ffa_mask_create_per_head(NULL, &shape, lists, 1, &err), FFA_INVALID);
    ck_assert_int_eq(ffa_mask_create_per_head(&mask, &shape, NULL, 1, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "lists is NULL");
    ck_assert_int_eq(ffa_mask_create_per_head(&mask, &shape, lists, 0, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "heads_kv is 0, not in [1, 1024]");
    ck_assert_int_eq(ffa_mask_create_per_head(&mask, &shape, lists, 1025, &err), FFA_INVALID);
    ck_assert_int_eq(ffa_mask_create_per_head(&mask, &shape, lists, 2, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "head 1, slice 0: type is 9, not in [0, 3]");
    lists[1] = (ffa_slice_list){ NULL, 3 };
    ck_assert_int_eq(ffa_mask_create_per_head(&mask, &shape, lists, 2, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "head 1, slices is NULL, but their count is 3");
    ck_assert_ptr_null(mask);
    ffa_mask_destroy(NULL);
}
END_TEST

START_TEST(facts_of_a_mask)
{
    ffa_mask_shape shape = { 8, 9 };
    ffa_slice a[2] = { { 0, 8, 0, 8, 1, 0 }, { 4, 8, 0, 9, 0, 0 } }, b = { 0, 8, 1, 9, 3, 0 };
    ffa_slice_list lists[3] = { { a, 2 }, { &b, 1 }, { NULL, 0 } };
    ffa_mask *mask;

    ck_assert_int_eq(ffa_mask_create_per_head(&mask, &shape, lists, 3, NULL), FFA_OK);
    a[0].k_end = 0; /* the mask has its own copy */
    ck_assert_int_eq(ffa_mask_seqlen_q(mask), 8);
    ck_assert_int_eq(ffa_mask_seqlen_k(mask), 9);
    ck_assert_int_eq(ffa_mask_head_count(mask), 3);
    ck_assert_int_eq(ffa_mask_slices(mask, 0).count, 2);
    ck_assert_int_eq(ffa_mask_slices(mask, 0).slices[0].k_end, 8);
    ck_assert_int_eq(ffa_mask_slices(mask, 2).count, 0);
    ck_assert_ptr_null(ffa_mask_slices(mask, 3).slices);
    ck_assert_ptr_null(ffa_mask_slices(mask, -1).slices);
    ck_assert_int_eq(ffa_mask_area(mask, 0), 10 + 36);
    ck_assert_int_eq(ffa_mask_area(mask, 1), 8);
    ck_assert_int_eq(ffa_mask_area(mask, 2), 0);
    ck_assert_int_eq(ffa_mask_area(mask, -1), 54);
    ck_assert_int_eq(ffa_mask_area(mask, 3), 0);
    ffa_mask_destroy(mask);

    ck_assert_int_eq(ffa_mask_seqlen_q(NULL), 0);
    ck_assert_int_eq(ffa_mask_seqlen_k(NULL), 0);
    ck_assert_int_eq(ffa_mask_head_count(NULL), 0);
    ck_assert_int_eq(ffa_mask_area(NULL, 0), 0);
    ck_assert_ptr_null(ffa_mask_slices(NULL, 0).slices);
}
END_TEST

START_TEST(sums_of_areas_saturate)
{
    ffa_mask_shape shape = { INT32_MAX, INT32_MAX };
    ffa_slice full = { 0, INT32_MAX, 0, INT32_MAX, 0, 0 };
    ffa_slice_list lists[3] = { { &full, 1 }, { &full, 1 }, { &full, 1 } };
    ffa_mask_report report = FFA_MASK_REPORT_INIT;
    ffa_mask *mask;

    ck_assert_int_eq(ffa_mask_create_per_head(&mask, &shape, lists, 3, NULL), FFA_OK);
    ck_assert_int_eq(ffa_mask_area(mask, 1), (int64_t)INT32_MAX * INT32_MAX);
    ck_assert_int_eq(ffa_mask_area(mask, -1), INT64_MAX);
    ck_assert_int_eq(ffa_mask_check(mask, &report, NULL), FFA_OK);
    ck_assert_int_eq(report.area, INT64_MAX);
    ck_assert_int_eq(report.overlap_head, -1);
    ffa_mask_destroy(mask);
}
END_TEST

START_TEST(create_survives_every_allocation_failing)
{
    ffa_mask_shape shape = { 100, 120 };
    ffa_slice slices[40];
    ffa_slice_list lists[2] = { { slices, 40 }, { slices, 20 } };
    ffa_mask *mask;
    ffa_status rc;

    for (int i = 0; i < 40; i++)
        slices[i] = (ffa_slice){ i * 2, i * 2 + 9, 10 + i, 40 + 2 * i, i % 4, 0 };
    for (long nth = 1;; nth++) {
        ffa_error err = no_error;

        mask = (ffa_mask *)&shape;
        fault_arm(FAULT_ALLOC, nth);
        rc = ffa_mask_create_per_head(&mask, &shape, lists, 2, &err);
        if (!fault_fired())
            break;
        ck_assert_int_eq(rc, FFA_NOMEM);
        ck_assert_str_ne(err.message, "");
        ck_assert_ptr_null(mask);
    }
    fault_arm(FAULT_ALLOC, 0);
    ck_assert_int_eq(rc, FFA_OK);
    ffa_mask_destroy(mask);
}
END_TEST

/* ---- areas ---- */

START_TEST(area_of_a_slice_is_its_cells)
{
    for (int64_t sq = 0; sq <= 9; sq++)
        for (int64_t sk = 0; sk <= 9; sk++) {
            ffa_slice slice = { 3, 3 + sq, 2, 2 + sk, _i, 0 };
            int64_t area = 0;

            for (int64_t row = 0; row < 14; row++)
                for (int64_t key = 0; key < 14; key++)
                    area += slice_has(&slice, row, key);
            ck_assert_int_eq(slice_area(&slice), area);
        }
}
END_TEST

START_TEST(known_cases_have_their_areas)
{
    json_error_t at;
    json_t *root = json_load_file(FFA_TEST_SOURCE_DIR "/tests/data/masks.json", 0, &at);
    json_t *cases = json_object_get(root, "cases");

    ck_assert_msg(root != NULL, "masks.json: line %d: %s", at.line, at.text);
    ck_assert_uint_ge(json_array_size(cases), 128);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        json_t *item = json_array_get(cases, i);
        const char *name = json_string_value(json_object_get(item, "name"));
        char *text = json_dumps(json_object_get(item, "mask"), JSON_COMPACT);
        ffa_error err = no_error;
        ffa_mask_report report = FFA_MASK_REPORT_INIT;
        ffa_mask *mask;

        ck_assert_msg(ffa_mask_parse_json(&mask, text, strlen(text), &err) == FFA_OK, "%s: %s",
                      name, err.message);
        ck_assert_msg(ffa_mask_area(mask, 0) == json_integer_value(json_object_get(item, "area")),
                      "%s: area is %lld", name, (long long)ffa_mask_area(mask, 0));
        ck_assert_int_eq(ffa_mask_check(mask, &report, &err), FFA_OK);
        ck_assert_int_eq(report.area, ffa_mask_area(mask, 0));
        ck_assert_msg(normal_check(&mask->lists[0].normal, &mask->shape, &err) == FFA_OK, "%s: %s",
                      name, err.message);
        ffa_mask_destroy(mask);
        free(text);
    }
    json_decref(root);
}
END_TEST

/* ---- normal_check ---- */

static struct normal_interval check_intervals[3];
static struct normal_segment check_segments[2];

/* Two segments: rows [0, 4) with [0, 2 + r) and [6, 9); rows [6, 8) with [1, 5). */
static struct normal normal_good(void)
{
    check_intervals[0] = (struct normal_interval){ 0, 2, 0, 1 };
    check_intervals[1] = (struct normal_interval){ 6, 9, 0, 0 };
    check_intervals[2] = (struct normal_interval){ 1, 5, 0, 0 };
    check_segments[0] = (struct normal_segment){ 0, 4, 0, 2, 0 };
    check_segments[1] = (struct normal_segment){ 6, 8, 2, 1, 0 };
    return (struct normal){ check_segments, 2, check_intervals, 3, 14 + 12 + 8 };
}

static const struct {
    const char *name;
    int32_t *field;
    int32_t value;
    const char *want;
} check_cases[] = {
    { "rows reversed", &check_segments[1].row_end, 6, "segment 1: its rows" },
    { "rows overlap", &check_segments[1].row_begin, 3, "segment 1: its rows" },
    { "rows beyond", &check_segments[1].row_end, 9, "segment 1: its rows" },
    { "no interval", &check_segments[0].interval_count, 0, "segment 0: its intervals" },
    { "too many", &check_segments[1].interval_count, 2, "segment 1: its intervals" },
    { "too few", &check_segments[0].interval_count, 1, "segment 1: its intervals" },
    { "step 2", &check_intervals[0].hi_step, 2, "segment 0: a step" },
    { "step -1", &check_intervals[2].lo_step, -1, "segment 1: a step" },
    { "before the keys", &check_intervals[2].lo, -1, "segment 1: an interval leaves the keys" },
    { "beyond the keys", &check_intervals[1].hi_step, 1, "segment 0: an interval leaves the keys" },
    { "empty", &check_intervals[2].lo, 5, "segment 1: an interval is empty" },
    { "touching in the last row", &check_intervals[1].lo, 5, "segment 0: two intervals touch" },
    { "another area", &check_intervals[1].lo, 7, "area is 34, its segments have 30" },
};

START_TEST(normal_check_finds)
{
    ffa_mask_shape shape = { 8, 9 };
    struct normal normal = normal_good();
    ffa_error err = no_error;

    ck_assert_int_eq(normal_check(&normal, &shape, &err), FFA_OK);
    normal.interval_count++;
    ck_assert_int_eq(normal_check(&normal, &shape, NULL), FFA_BUG);
    normal.interval_count--;
    *check_cases[_i].field = check_cases[_i].value;
    ck_assert_int_eq(normal_check(&normal, &shape, &err), FFA_BUG);
    ck_assert_msg(strstr(err.message, check_cases[_i].want) != NULL, "%s: got '%s'",
                  check_cases[_i].name, err.message);
}
END_TEST

/* ---- the report ---- */

static ffa_mask *mask_draw(struct rng *rng, int32_t heads, int64_t slices_max)
{
    ffa_mask_shape shape = { rng_range(rng, 1, 24), rng_range(rng, 1, 24) };
    ffa_slice slices[4][8];
    ffa_slice_list lists[4];
    ffa_mask *mask;

    for (int32_t h = 0; h < heads; h++) {
        lists[h] = (ffa_slice_list){ slices[h], rng_range(rng, 0, slices_max) };
        for (int64_t i = 0; i < lists[h].count; i++) {
            ffa_slice *s = &slices[h][i];

            s->q_begin = rng_range(rng, 0, shape.seqlen_q);
            s->q_end = rng_range(rng, s->q_begin, shape.seqlen_q);
            s->k_begin = rng_range(rng, 0, shape.seqlen_k);
            s->k_end = rng_range(rng, s->k_begin, shape.seqlen_k);
            s->type = (int32_t)rng_range(rng, 0, 3);
        }
    }
    ck_assert_int_eq(ffa_mask_create_per_head(&mask, &shape, lists, heads, NULL), FFA_OK);
    return mask;
}

static int cover(const ffa_mask *mask, int32_t head, int64_t row, int64_t key)
{
    ffa_slice_list list = ffa_mask_slices(mask, head);
    int count = 0;

    for (int64_t i = 0; i < list.count; i++)
        count += slice_has(&list.slices[i], row, key);
    return count;
}

/* The report of one list, cell by cell; the overlap is only its head. */
static void report_count(ffa_mask_report *out, const ffa_mask *mask, int32_t head)
{
    int64_t sq = ffa_mask_seqlen_q(mask), sk = ffa_mask_seqlen_k(mask);
    ffa_slice_list list = ffa_mask_slices(mask, head);

    for (int64_t row = 0; row < sq; row++) {
        int64_t attended = 0;

        for (int64_t key = 0; key < sk; key++) {
            int n = cover(mask, head, row, key);

            attended += n > 0;
            out->area_of_slices += n;
            if (n > 1 && out->overlap_head < 0)
                out->overlap_head = head;
        }
        out->area += attended;
        out->empty_rows += attended == 0;
    }
    for (int64_t key = 0; key < sk; key++) {
        bool is_attended = false;

        for (int64_t row = 0; row < sq; row++)
            is_attended = is_attended || cover(mask, head, row, key) > 0;
        out->unattended_keys += !is_attended;
    }
    for (int64_t i = 0; i < list.count; i++) {
        int64_t cells = 0;

        for (int64_t row = 0; row < sq; row++)
            for (int64_t key = 0; key < sk; key++)
                cells += slice_has(&list.slices[i], row, key);
        out->empty_slices += cells == 0;
    }
}

START_TEST(report_matches_the_cells)
{
    for (uint64_t seed = 0; seed < 2000; seed++) {
        struct rng rng = { seed };
        int32_t heads = (int32_t)rng_range(&rng, 1, 3);
        ffa_mask *mask = mask_draw(&rng, heads, seed % 2 ? 8 : 2);
        ffa_mask_report want = { .overlap_head = -1 }, got = FFA_MASK_REPORT_INIT;

        for (int32_t head = 0; head < heads; head++)
            report_count(&want, mask, head);
        ck_assert_int_eq(ffa_mask_check(mask, &got, NULL), FFA_OK);
        ck_assert_msg(
            got.area == want.area && got.area_of_slices == want.area_of_slices &&
                got.empty_rows == want.empty_rows && got.unattended_keys == want.unattended_keys &&
                got.empty_slices == want.empty_slices && got.overlap_head == want.overlap_head,
            "seed %llu", (unsigned long long)seed);
        if (got.overlap_head >= 0)
            ck_assert_msg(cover(mask, got.overlap_head, got.overlap_row, got.overlap_key) > 1,
                          "seed %llu: cell (%lld, %lld)", (unsigned long long)seed,
                          (long long)got.overlap_row, (long long)got.overlap_key);
        else
            ck_assert(got.overlap_row == -1 && got.overlap_key == -1);
        ffa_mask_destroy(mask);
    }
}
END_TEST

/* Callers of an older header have less room, and who forgot the size is told. */
START_TEST(report_is_as_long_as_its_caller_says)
{
    ffa_mask_shape shape = { 8, 8 };
    ffa_mask_report report, untouched;
    ffa_error err = no_error;
    ffa_mask *mask;

    memset(&report, 0x77, sizeof report);
    untouched = report;
    ck_assert_int_eq(ffa_mask_create(&mask, &shape, NULL, 0, NULL), FFA_OK);
    report.struct_size = 0;
    ck_assert_int_eq(ffa_mask_check(mask, &report, &err), FFA_INVALID);
    ck_assert_msg(strstr(err.message, "struct_size is 0, not in") != NULL, "%s", err.message);
    report.struct_size = offsetof(ffa_mask_report, empty_rows);
    ck_assert_int_eq(ffa_mask_check(mask, &report, NULL), FFA_OK);
    ck_assert_int_eq(report.overlap_head, -1);
    ck_assert_int_eq(report.area, 0);
    ck_assert_int_eq(report.empty_rows, untouched.empty_rows);
    ffa_mask_destroy(mask);
}
END_TEST

START_TEST(report_survives_every_allocation_failing)
{
    ffa_mask_shape shape = { 8, 8 };
    ffa_slice slices[3] = { { 0, 4, 0, 4, 0, 0 }, { 4, 8, 0, 4, 1, 0 }, { 3, 5, 3, 8, 0, 0 } };
    ffa_mask_report report = FFA_MASK_REPORT_INIT;
    ffa_mask *mask;
    ffa_status rc;

    ck_assert_int_eq(ffa_mask_create(&mask, &shape, slices, 3, NULL), FFA_OK);
    ck_assert_int_eq(ffa_mask_check(mask, NULL, NULL), FFA_INVALID);
    ck_assert_int_eq(ffa_mask_check(NULL, &report, NULL), FFA_INVALID);
    for (long nth = 1;; nth++) {
        fault_arm(FAULT_ALLOC, nth);
        rc = ffa_mask_check(mask, &report, NULL);
        if (!fault_fired())
            break;
        ck_assert_int_eq(rc, FFA_NOMEM);
        ck_assert_int_eq(report.area, 0);
    }
    fault_arm(FAULT_ALLOC, 0);
    ck_assert_int_eq(rc, FFA_OK);
    ck_assert_int_eq(report.overlap_row, 3);
    ck_assert_int_eq(report.overlap_key, 3);
    ffa_mask_destroy(mask);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("mask");
    TCase *tc = tcase_create("mask");

    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, create_checks_its_slices, 0, COUNT_OF(create_cases));
    tcase_add_test(tc, create_checks_its_arguments);
    tcase_add_test(tc, facts_of_a_mask);
    tcase_add_test(tc, sums_of_areas_saturate);
    tcase_add_test(tc, create_survives_every_allocation_failing);
    tcase_add_loop_test(tc, area_of_a_slice_is_its_cells, 0, 4);
    tcase_add_test(tc, known_cases_have_their_areas);
    tcase_add_loop_test(tc, normal_check_finds, 0, COUNT_OF(check_cases));
    tcase_add_test(tc, report_matches_the_cells);
    tcase_add_test(tc, report_is_as_long_as_its_caller_says);
    tcase_add_test(tc, report_survives_every_allocation_failing);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
