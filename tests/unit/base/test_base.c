/* SPDX-License-Identifier: Apache-2.0
 *
 * Option structs across versions, errors, text, checked memory.
 */
#include "base/available.h"
#include "base/base.h"
#include "base/printable.h"
#include "support/suite.h"

#include <check.h>
#include <ffa/kernel.h>
#include <ffa/tensor.h>
#include <sys/stat.h>

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

/* What a newer header appends begins as its _INIT macro leaves it, tensors with their strides. */
struct opts_v2 {
    struct opts_v1 known;
    int64_t number;
    ffa_tensor tensor;
    int64_t last;
};

static const struct {
    const char *name;
    struct opts_v2 given; /* struct_size is set by the test */
    ffa_status want;
    const char *byte; /* that is named where it is refused */
} tail_cases[] = {
    { "nothing new set", { { 0, 9 }, 0, FFA_TENSOR_INIT(NULL), 0 }, FFA_OK, "" },
    { "a zeroed tensor", { { 0, 9 }, 0, { NULL, 0, 0, 0, 0, 0, 0, 0, 0, 0 }, 0 }, FFA_OK, "" },
    { "a tensor with data",
      { { 0, 9 }, 0, FFA_TENSOR_INIT((void *)&import_cases), 0 },
      FFA_UNSUPPORTED,
      "" },
    { "a stride that is no tensor's",
      { { 0, 9 }, FFA_CONTIGUOUS, FFA_TENSOR_INIT(NULL), 0 },
      FFA_UNSUPPORTED,
      "byte 15" },
    { "a tensor without data of a known dtype",
      { { 0, 9 }, 0, { .token_stride = FFA_CONTIGUOUS, .dtype = FFA_FP32 }, 0 },
      FFA_UNSUPPORTED,
      "byte 31" },
    { "what follows the tensor",
      { { 0, 9 }, 0, FFA_TENSOR_INIT(NULL), 1 },
      FFA_UNSUPPORTED,
      "byte 80" },
};

START_TEST(a_tensor_without_data_is_no_newer_option)
{
    struct opts_v2 given = tail_cases[_i].given;
    struct opts_v1 got;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_status rc;

    given.known.struct_size = (uint32_t)sizeof given;
    rc = opts_import(&got, sizeof got, &given, &err);
    ck_assert_msg(rc == tail_cases[_i].want, "%s: got %s (%s)", tail_cases[_i].name,
                  ffa_status_text(rc), err.message);
    if (rc == FFA_OK)
        ck_assert_uint_eq(got.threads, 9);
    else
        ck_assert_msg(strstr(err.message, tail_cases[_i].byte), "%s: %s", tail_cases[_i].name,
                      err.message);
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

static const struct {
    const char *name, *text, *keep, *want;
} printable_cases[] = {
    { "plain", "head_dim=128", "", "head_dim=128" },
    { "empty", "", "", "" },
    { "UTF-8",
      "stra\xc3\x9f"
      "e \xe2\x82\xac \xf0\x9f\x98\x80",
      "",
      "stra\xc3\x9f"
      "e \xe2\x82\xac \xf0\x9f\x98\x80" },
    { "an escape sequence", "\x1b[2J\x1b]0;x\a", "", "\\x1b[2J\\x1b]0;x\\x07" },
    { "a second line", "a\nevent=forged", "", "a\\x0aevent=forged" },
    { "a second line, kept", "a\nb\tc\rd", "\n\t", "a\nb\tc\\x0dd" },
    { "DEL", "\x7f", "", "\\x7f" },
    { "CSI as C1",
      "\xc2\x9b"
      "2J",
      "",
      "\\xc2\\x9b"
      "2J" },
    { "bytes of Latin-1",
      "stra\xdf"
      "e",
      "",
      "stra\\xdf"
      "e" },
    { "an overlong slash", "\xc0\xaf", "", "\\xc0\\xaf" },
    { "a surrogate", "\xed\xa0\x80", "", "\\xed\\xa0\\x80" },
    { "above Unicode", "\xf4\x90\x80\x80", "", "\\xf4\\x90\\x80\\x80" },
    { "cut inside a character", "a\xe2\x82", "", "a\\xe2\\x82" },
    { "right to left",
      "a\xe2\x80\xae"
      "b",
      "",
      "a\\xe2\\x80\\xae"
      "b" },
    { "a line separator", "\xe2\x80\xa8", "", "\\xe2\\x80\\xa8" },
};

START_TEST(text_is_made_printable)
{
    char out[64];

    text_printable(out, sizeof out, printable_cases[_i].text, printable_cases[_i].keep);
    ck_assert_msg(strcmp(out, printable_cases[_i].want) == 0, "%s: %s", printable_cases[_i].name,
                  out);
}
END_TEST

START_TEST(printable_text_is_cut_between_characters)
{
    char out[8] = "";

    text_printable(out, 5,
                   "ab\xe2\x82\xac"
                   "c",
                   "");
    ck_assert_str_eq(out, "ab");
    text_printable(out, 6,
                   "ab\xe2\x82\xac"
                   "c",
                   "");
    ck_assert_str_eq(out, "ab\xe2\x82\xac");
    text_printable(out, 4, "\x1b", "");
    ck_assert_str_eq(out, "");
}
END_TEST

static void keep_line(void *user, ffa_log_level level, const char *module, const char *line)
{
    (void)level;
    (void)module;
    text_format(user, 128, "%s", line);
}

START_TEST(messages_and_log_lines_are_one_line)
{
    ffa_error err;
    char line[128] = "";
    const struct log log = { keep_line, line };

    (void)error_fail(&err, FFA_IO, 0, "no '%s'", "a\nb\x1b[31m");
    ck_assert_str_eq(err.message, "no 'a\\x0ab\\x1b[31m'");
    log_line(&log, FFA_LOG_INFO, "base", "event=x path=%s", "a\nevent=compile");
    ck_assert_str_eq(line, "event=x path=a\\x0aevent=compile");
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

/* Leave the process so many bytes, by a limit of its own. */
static void leave(int64_t bytes)
{
    struct rlimit limit;

    ck_assert_int_eq(getrlimit(RLIMIT_DATA, &limit), 0);
    limit.rlim_cur = bytes < 0 ? limit.rlim_max : limit_data_bytes() + (uint64_t)bytes;
    ck_assert_int_eq(setrlimit(RLIMIT_DATA, &limit), 0);
}

static void write_file(const char *folder, const char *name, const char *content)
{
    char path[256];
    FILE *file;

    text_copy(path, "%s/%s", folder, name);
    file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(content, file), 0);
    ck_assert_int_eq(fclose(file), 0);
}

/* Cgroups as files: a limit of each level, less what is used, and file cache counts as free. */
START_TEST(cgroups_leave_the_least_of_their_levels)
{
    char root[] = "/tmp/ffa_base_XXXXXX";
    char a[64], b[64], folder[64], command[64];
    const struct available_cgroup cgroup = { "::",
                                             root,
                                             "memory.max",
                                             "memory.current",
                                             { "active_file ", "inactive_file ",
                                               "slab_reclaimable " } };

    ck_assert_ptr_nonnull(mkdtemp(root));
    text_copy(a, "%s/a", root);
    text_copy(b, "%s/a/b", root);
    ck_assert_int_eq(mkdir(a, 0700), 0);
    ck_assert_int_eq(mkdir(b, 0700), 0);

    text_copy(folder, "/a/b\n");
    ck_assert_int_eq(available_upwards(&cgroup, folder), INT64_MAX);
    write_file(b, "memory.max", "max\n");
    write_file(b, "memory.current", "5000\n");
    text_copy(folder, "/a/b\n");
    ck_assert_int_eq(available_upwards(&cgroup, folder), INT64_MAX);
    write_file(a, "memory.max", "9000\n");
    write_file(a, "memory.current", "6000\n");
    text_copy(folder, "/a/b\n");
    ck_assert_int_eq(available_upwards(&cgroup, folder), 3000);
    write_file(a, "memory.stat", "anon 3500\nactive_file 500\ninactive_file 2000\n");
    text_copy(folder, "/a/b\n");
    ck_assert_int_eq(available_upwards(&cgroup, folder), 5500);
    write_file(a, "memory.stat",
               "inactive_file 2000\nactive_file 500\nslab_reclaimable 300\nslab 900\n");
    text_copy(folder, "/a/b\n");
    ck_assert_int_eq(available_upwards(&cgroup, folder), 5800);
    write_file(b, "memory.max", "4000\n"); /* lowered below what is used */
    text_copy(folder, "/a/b\n");
    ck_assert_int_eq(available_upwards(&cgroup, folder), 0);
    write_file(root, "memory.max", "7000\n");
    text_copy(folder, "/\n");
    ck_assert_int_eq(available_upwards(&cgroup, folder), 7000);

    text_copy(command, "rm -r %s", root);
    ck_assert_int_eq(system(command), 0);
}
END_TEST

START_TEST(what_cannot_fit_is_refused_before_it_is_taken)
{
    const int64_t mib = 1 << 20;
    struct text text = { 0 };
    ffa_error err = { FFA_OK, 0, "" };
    int64_t capacity = 0;
    void *at = NULL;
    void *array;

    ck_assert_int_gt(available_memory(), 256 * mib);
    ck_assert_int_eq(mem_check(32 * mib, "it", NULL), FFA_OK);
    leave(200 * mib);
    ck_assert_int_le(available_memory(), 200 * mib);
    ck_assert_int_gt(available_memory(), 150 * mib);
    ck_assert(mem_fits(100 * mib));
    ck_assert(!mem_fits(INT64_MAX));
    ck_assert_int_eq(mem_check(300 * mib, "a mask", &err), FFA_NOMEM);
    ck_assert_msg(strstr(err.message, "a mask needs about 0.29 GiB of memory, and 0.") != NULL,
                  "%s", err.message);
    ck_assert_ptr_null(mem_array(300, (size_t)mib));
    ck_assert(!mem_grow(&at, &capacity, 300, (size_t)mib));
    ck_assert_int_eq(capacity, 0);
    array = mem_array(100, (size_t)mib);
    ck_assert_ptr_nonnull(array);
    leave(-1);
    mem_free(array);
    text_add(&text, "%s", "it goes on");
    ck_assert(!text.failed);
    text_finish(&text);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("base");
    TCase *tc = tcase_create("base");

    tcase_add_loop_test(tc, a_tensor_without_data_is_no_newer_option, 0,
                        sizeof tail_cases / sizeof *tail_cases);
    tcase_add_loop_test(tc, import_follows_the_size_tag, 0,
                        sizeof import_cases / sizeof *import_cases);
    tcase_add_test(tc, export_writes_no_more_than_the_caller_has);
    tcase_add_loop_test(tc, text_is_made_printable, 0,
                        sizeof printable_cases / sizeof *printable_cases);
    tcase_add_test(tc, printable_text_is_cut_between_characters);
    tcase_add_test(tc, messages_and_log_lines_are_one_line);
    tcase_add_test(tc, text_grows_and_fails_as_a_whole);
    tcase_add_test(tc, memory_checks_overflow);
    tcase_add_test(tc, cgroups_leave_the_least_of_their_levels);
    tcase_add_test(tc, what_cannot_fit_is_refused_before_it_is_taken);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
