/* SPDX-License-Identifier: Apache-2.0
 *
 * Option structs across versions, errors, text, checked memory.
 */
#include "base/base.h"
#include "support/suite.h"

#include <check.h>

struct opts_v1 {
    uint32_t struct_size;
    uint32_t threads;
};

static const struct {
    const char *name;
    uint32_t words[4]; /* what the caller passes; words[0] is struct_size */
    ffa_status want;
    uint32_t threads; /* meaningful when want is FFA_OK */
} import_cases[] = {
    { "older caller, tag only", { 4, 9, 0, 0 }, FFA_OK, 0 },
    { "same vintage", { 8, 9, 0, 0 }, FFA_OK, 9 },
    { "newer caller, new field unset", { 16, 9, 0, 0 }, FFA_OK, 9 },
    { "newer caller, new field set", { 16, 9, 0, 1 }, FFA_UNSUPPORTED, 0 },
    { "tag never set", { 0, 9, 0, 0 }, FFA_INVALID, 0 },
    { "memory never initialised", { 0xcdcdcdcd, 9, 0, 0 }, FFA_INVALID, 0 },
};

START_TEST(import_follows_the_size_tag)
{
    struct opts_v1 got;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_status rc = opts_import(&got, sizeof got, import_cases[_i].words, &err);

    ck_assert_msg(rc == import_cases[_i].want, "%s: got %s (%s)", import_cases[_i].name,
                  ffa_status_text(rc), err.message);
    if (rc == FFA_OK)
        ck_assert_uint_eq(got.threads, import_cases[_i].threads);
    else
        ck_assert_str_ne(err.message, "");
}
END_TEST

START_TEST(export_writes_no_more_than_the_caller_has)
{
    struct opts_v1 from = { 8, 7 };
    uint32_t small[2] = { 4, 99 };

    ck_assert_int_eq(opts_export(small, &from, sizeof from, NULL), FFA_OK);
    ck_assert_uint_eq(small[0], 4);
    ck_assert_uint_eq(small[1], 99);
}
END_TEST

START_TEST(text_grows_and_fails_as_a_whole)
{
    struct text text = { 0 };
    char *taken;

    for (int i = 0; i < 1000; i++)
        text_add(&text, "%d,", i % 10);
    taken = text_take(&text);
    ck_assert_uint_eq(strlen(taken), 2000);
    free(taken);

    text_add(&text, "a");
    fault_arm(FAULT_ALLOC, 1);
    text_add(&text, "%0500d", 1);
    ck_assert(fault_fired());
    ck_assert_ptr_null(text_take(&text));
}
END_TEST

START_TEST(memory_checks_overflow)
{
    void *at = NULL;
    int64_t capacity = 0;

    ck_assert_ptr_null(mem_array(SIZE_MAX / 2, 4));
    ck_assert(!mem_grow(&at, &capacity, INT64_MAX / 2, 64));
    ck_assert_ptr_null(at);
    ck_assert(mem_grow(&at, &capacity, 3, 8));
    ck_assert_int_ge(capacity, 3);
    free(at);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("base");
    TCase *tc = tcase_create("base");

    tcase_add_loop_test(tc, import_follows_the_size_tag, 0,
                        sizeof import_cases / sizeof *import_cases);
    tcase_add_test(tc, export_writes_no_more_than_the_caller_has);
    tcase_add_test(tc, text_grows_and_fails_as_a_whole);
    tcase_add_test(tc, memory_checks_overflow);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
