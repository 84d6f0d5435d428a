/* SPDX-License-Identifier: Apache-2.0
 *
 * .npy files: what is written is read again, what NumPy writes is read, and each kind of file that
 * cannot be read exactly is refused with its reason.
 */
#include "cli/npy.h"
#include "support/suite.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- writing and reading again ---- */

static const struct {
    const char *name;
    enum npy_type type;
    int32_t dims;
    int64_t shape[NPY_DIMS_MAX];
} trips[] = {
    { "bf16 tensor", NPY_UINT16, 3, { 5, 2, 8 } },
    { "fp16 tensor", NPY_FLOAT16, 3, { 1, 1, 64 } },
    { "fp32 lse", NPY_FLOAT32, 2, { 7, 3 } },
    { "fp64 tensor", NPY_FLOAT64, 3, { 2, 2, 2 } },
    { "one dimension", NPY_FLOAT32, 1, { 4 } },
    { "no dimension: one element", NPY_FLOAT32, 0, { 0 } },
    { "no elements", NPY_FLOAT32, 2, { 0, 9 } },
    { "four dimensions", NPY_UINT16, 4, { 2, 3, 4, 5 } },
};

static char path[64];

static void make_path(void)
{
    int fd;

    (void)snprintf(path, sizeof path, "/tmp/ffa-test-npy-XXXXXX");
    fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    (void)close(fd);
}

static void remove_path(void)
{
    (void)unlink(path);
}

START_TEST(what_is_written_is_read_again)
{
    struct npy array = { .type = trips[_i].type, .dims = trips[_i].dims, .count = 1 };
    struct npy again;
    ffa_error err = { FFA_OK, 0, "" };
    unsigned char *data;
    size_t bytes;

    memcpy(array.shape, trips[_i].shape, sizeof array.shape);
    for (int32_t d = 0; d < array.dims; d++)
        array.count *= array.shape[d];
    bytes = (size_t)array.count * npy_type_bytes(array.type);
    data = malloc(bytes + 1);
    for (size_t i = 0; i < bytes; i++)
        data[i] = (unsigned char)(i * 37 + 11);
    array.data = data;

    ck_assert_msg(npy_write(path, &array, &err) == FFA_OK, "%s: %s", trips[_i].name, err.message);
    ck_assert_msg(npy_read(&again, path, &err) == FFA_OK, "%s: %s", trips[_i].name, err.message);
    ck_assert_int_eq((int)again.type, (int)array.type);
    ck_assert_int_eq(again.count, array.count);
    ck_assert_int_eq(npy_expect(&again, path, array.shape, array.dims, "", &err), FFA_OK);
    if (bytes)
        ck_assert_mem_eq(again.data, data, bytes);
    npy_finish(&again);
    free(data);
}
END_TEST

START_TEST(a_failed_write_leaves_what_stood_there)
{
    const float value = 1.5f;
    struct npy array = { .type = NPY_FLOAT32, .dims = 1, .shape = { 1 }, .count = 1 };
    ffa_error err = { FFA_OK, 0, "" };

    array.data = (void *)(uintptr_t)&value;
    ck_assert_int_eq(npy_write("/tmp/ffa-no-such-folder/x.npy", &array, &err), FFA_IO);
    ck_assert_ptr_nonnull(strstr(err.message, "ffa-no-such-folder"));
}
END_TEST

/* ---- files as others write them ---- */

struct file {
    const char *name;
    const char *header; /* the dict, or NULL: `raw` is the whole file */
    const char *raw;
    size_t raw_bytes;
    int version;
    size_t data_bytes;
    const char *says; /* part of the message; NULL: it is read */
};

#define DICT(descr, order, shape)                                                                  \
    "{'descr': '" descr "', 'fortran_order': " order ", 'shape': " shape ", }"
#define RAW(text) NULL, text, sizeof text - 1, 0, 0

static const struct file files[] = {
    { "as NumPy writes it", DICT("<f4", "False", "(2, 3)"), NULL, 0, 1, 24, NULL },
    { "version 2", DICT("<f4", "False", "(2, 3)"), NULL, 0, 2, 24, NULL },
    { "other order of keys, double quotes, no last comma",
      "{\"shape\": (6,), \"descr\": \"<u2\", \"fortran_order\": False}", NULL, 0, 1, 12, NULL },
    { "version 3", DICT("<f4", "False", "(2, 3)"), NULL, 0, 3, 24, "version 3.0" },
    { "Fortran order", DICT("<f4", "True", "(2, 3)"), NULL, 0, 1, 24, "Fortran order" },
    { "big endian", DICT(">f4", "False", "(2, 3)"), NULL, 0, 1, 24, "'>f4', big endian" },
    { "integers", DICT("<i8", "False", "(3,)"), NULL, 0, 1, 24, "'<i8'" },
    { "complex", DICT("<c8", "False", "(3,)"), NULL, 0, 1, 24, "'<c8'" },
    { "structured", "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }", NULL, 0,
      1, 4, "structured" },
    { "truncated data", DICT("<f4", "False", "(2, 3)"), NULL, 0, 1, 23, "truncated" },
    { "no data", DICT("<f4", "False", "(2, 3)"), NULL, 0, 1, 0, "truncated" },
    { "too much data", DICT("<f4", "False", "(2, 3)"), NULL, 0, 1, 25, "25 bytes of data" },
    { "more elements than memory", DICT("<f4", "False", "(1000000000000, 1000)"), NULL, 0, 1, 0,
      "truncated" },
    { "elements overflow", DICT("<f4", "False", "(9223372036854775807, 9)"), NULL, 0, 1, 0,
      "2^60" },
    { "dimension overflows", DICT("<f4", "False", "(9223372036854775808,)"), NULL, 0, 1, 0,
      "2^63" },
    { "negative dimension", DICT("<f4", "False", "(-1,)"), NULL, 0, 1, 0, "a dimension" },
    { "five dimensions", DICT("<f4", "False", "(1, 1, 1, 1, 1)"), NULL, 0, 1, 4, "more than 4" },
    { "a key too many", "{'descr': '<f4', 'color': 1}", NULL, 0, 1, 4, "'color'" },
    { "a key too few", "{'descr': '<f4', 'shape': (1,), }", NULL, 0, 1, 4, "'fortran_order'" },
    { "no dict", "descr", NULL, 0, 1, 4, "'{' wanted" },
    { "open string", "{'descr: <f4}", NULL, 0, 1, 4, "a string" },
    { "text behind the dict", DICT("<f4", "False", "(1,)") " x", NULL, 0, 1, 4, "the end" },
    { "empty file", RAW(""), "does not begin" },
    { "another format", RAW("PK\003\004 and so on"), "does not begin" },
    { "ends in its length", RAW("\x93NUMPY\x01\x00v"), "inside its header" },
    { "ends in its header", RAW("\x93NUMPY\x01\x00v\x00{'descr'"), "inside its header" },
    { "header of 4 GiB", RAW("\x93NUMPY\x02\x00\xff\xff\xff\xff{"), "more than 65535" },
    { "zero inside the header", RAW("\x93NUMPY\x01\x00\x04\x00{\x00}\n"), "without zeros" },
};

static void write_file(const struct file *file)
{
    FILE *out = fopen(path, "wb");
    size_t bytes;

    ck_assert_ptr_nonnull(out);
    if (!file->header) {
        (void)fwrite(file->raw, 1, file->raw_bytes, out);
        (void)fclose(out);
        return;
    }
    bytes = strlen(file->header) + 1;
    (void)fwrite("\x93NUMPY", 1, 6, out);
    (void)fputc(file->version, out);
    (void)fputc(0, out);
    (void)fputc((int)(bytes & 255), out);
    (void)fputc((int)(bytes >> 8), out);
    for (int i = 1; file->version > 1 && i < 3; i++)
        (void)fputc(0, out);
    (void)fprintf(out, "%s\n", file->header);
    for (size_t i = 0; i < file->data_bytes; i++)
        (void)fputc(0, out);
    (void)fclose(out);
}

START_TEST(each_file_is_read_or_refused_with_its_reason)
{
    const struct file *file = &files[_i];
    ffa_error err = { FFA_OK, 0, "" };
    struct npy array;
    ffa_status rc;

    write_file(file);
    rc = npy_read(&array, path, &err);
    if (!file->says) {
        ck_assert_msg(rc == FFA_OK, "%s: %s", file->name, err.message);
        ck_assert_int_eq(array.count, 6);
    } else {
        ck_assert_msg(rc == FFA_INVALID, "%s: %s", file->name, ffa_status_text(rc));
        ck_assert_msg(strstr(err.message, file->says) != NULL, "%s: '%s' does not say '%s'",
                      file->name, err.message, file->says);
        ck_assert_msg(strstr(err.message, path) != NULL, "%s: '%s' does not name the file",
                      file->name, err.message);
        ck_assert_ptr_null(array.data);
    }
    npy_finish(&array);
}
END_TEST

START_TEST(a_missing_file_is_an_io_error)
{
    ffa_error err = { FFA_OK, 0, "" };
    struct npy array;

    ck_assert_int_eq(npy_read(&array, "/tmp/ffa-no-such-file.npy", &err), FFA_IO);
    ck_assert_ptr_nonnull(strstr(err.message, "ffa-no-such-file"));
    ck_assert_int_eq(npy_read(&array, "/tmp", &err), FFA_IO); /* a folder */
    ck_assert_ptr_nonnull(strstr(err.message, "Is a directory"));
}
END_TEST

START_TEST(a_wrong_shape_names_both)
{
    const int64_t wanted[3] = { 10, 8, 128 };
    struct npy array = { .type = NPY_FLOAT32, .dims = 2, .shape = { 10, 8 } };
    ffa_error err = { FFA_OK, 0, "" };

    ck_assert_int_eq(npy_expect(&array, "q.npy", wanted, 3, "[tokens][heads][head_dim]", &err),
                     FFA_INVALID);
    ck_assert_str_eq(err.message, "q.npy: the shape is (10, 8): [tokens][heads][head_dim] "
                                  "(10, 8, 128) wanted");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("npy");
    TCase *tc = tcase_create("npy");

    tcase_add_checked_fixture(tc, make_path, remove_path);
    tcase_add_loop_test(tc, what_is_written_is_read_again, 0, sizeof trips / sizeof *trips);
    tcase_add_test(tc, a_failed_write_leaves_what_stood_there);
    tcase_add_loop_test(tc, each_file_is_read_or_refused_with_its_reason, 0,
                        sizeof files / sizeof *files);
    tcase_add_test(tc, a_missing_file_is_an_io_error);
    tcase_add_test(tc, a_wrong_shape_names_both);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
