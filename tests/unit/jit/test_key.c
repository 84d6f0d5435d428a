/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys: the same for the same request wherever it is made, another for any other request.
 */
#include "base/digest.h"
#include "choose/spec_choice.h"
#include "jit/source.h"
#include "support/suite.h"
#include "support/tmpdir.h"

#include <check.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#define TRIVIAL FFA_TEST_SOURCE_DIR "/tests/data/templates/trivial"

static const struct log silent = { 0 };
static const char *self;

struct made {
    char key[33];
    char *record;
};

/* No ck_assert: the other process is no test. */
static void must(ffa_status rc, const ffa_error *err)
{
    if (rc == FFA_OK)
        return;
    (void)fprintf(stderr, "%s\n", err->message);
    abort();
}

static struct made make(const char *folder, const char *const *settings, int count)
{
    struct jit_opts opts = { 0 };
    ffa_error err = { FFA_OK, 0, "" };
    struct made made = { .record = NULL };
    struct jit_request request;
    struct jit_spec spec;
    struct jit *jit;

    opts.templates_dir = folder;
    must(jit_create(&jit, &opts, &silent, &err), &err);
    must(jit_spec_init(&spec, "attention_forward", &err), &err);
    for (int i = 0; i < count; i++)
        must(jit_spec_set(&spec, settings[i], &err), &err);
    must(choose_spec(&spec, "sm_90a", &err), &err);
    jit_request_init(&request, &spec, "sm_90a");
    must(jit_request_complete(&request, jit, &err), &err);
    memcpy(made.key, request.key, sizeof made.key);
    made.record = request.record;
    request.record = NULL;
    jit_request_finish(&request);
    jit_destroy(jit);
    return made;
}

static void key_of(char out[33], const char *folder, const char *setting)
{
    struct made made = make(folder, &setting, setting ? 1 : 0);

    memcpy(out, made.key, 33);
    free(made.record);
}

/* What was made once is handed on, by the compile, too. */
START_TEST(request_is_completed_once)
{
    struct jit_opts opts = { .templates_dir = TRIVIAL, .nvrtc_path = "/nonexistent" };
    ffa_error err = { FFA_OK, 0, "" };
    struct jit_request request;
    struct jit_result result;
    struct source_set *sources;
    struct jit_spec spec;
    struct jit *jit;
    char *record;

    must(jit_create(&jit, &opts, &silent, &err), &err);
    must(jit_spec_init(&spec, "attention_forward", &err), &err);
    must(choose_spec(&spec, "sm_90a", &err), &err);
    jit_request_init(&request, &spec, "sm_90a");
    ck_assert_str_eq(request.key, "");
    must(jit_request_complete(&request, jit, &err), &err);
    ck_assert_uint_eq(strlen(request.key), 32);
    record = request.record;
    sources = request.sources;
    must(jit_request_complete(&request, jit, &err), &err);
    ck_assert_int_eq(jit_compile(jit, &request, false, &result, &err), FFA_UNSUPPORTED);
    jit_result_finish(&result);
    ck_assert_ptr_eq(request.record, record);
    ck_assert_ptr_eq(request.sources, sources);
    jit_request_finish(&request);
    jit_destroy(jit);
}
END_TEST

/* Without memory a request stays as it was, and can be completed later. */
START_TEST(request_without_memory)
{
    struct jit_opts opts = { .templates_dir = TRIVIAL };
    ffa_error err = { FFA_OK, 0, "" };
    struct jit_request request;
    struct jit_spec spec;
    struct jit *jit;
    ffa_status rc = FFA_NOMEM;
    long nth;

    must(jit_create(&jit, &opts, &silent, &err), &err);
    must(jit_spec_init(&spec, "attention_forward", &err), &err);
    must(choose_spec(&spec, "sm_90a", &err), &err);
    jit_request_init(&request, &spec, "sm_90a");
    for (nth = 1; nth < 100 && rc != FFA_OK; nth++) {
        fault_arm(FAULT_ALLOC, nth);
        rc = jit_request_complete(&request, jit, &err);
        fault_arm(FAULT_ALLOC, 0);
        if (rc == FFA_OK)
            break;
        ck_assert_int_eq(rc, FFA_NOMEM);
        ck_assert_str_eq(request.key, "");
        ck_assert_ptr_null(request.record);
        ck_assert_ptr_null(request.sources);
    }
    ck_assert_int_eq(rc, FFA_OK);
    ck_assert_int_gt(nth, 2);
    jit_request_finish(&request);
    jit_destroy(jit);
}
END_TEST

START_TEST(record_is_readable_and_has_no_place)
{
    struct made made = make(TRIVIAL, NULL, 0);

    ck_assert_uint_eq(strspn(made.key, "0123456789abcdef"), 32);
    ck_assert_ptr_nonnull(strstr(made.record, "template=attention_forward\n"));
    ck_assert_ptr_nonnull(strstr(made.record, "arch=sm_90a\n"));
    ck_assert_ptr_nonnull(strstr(made.record, "spec.debug=0\n"));
    ck_assert_ptr_nonnull(strstr(made.record, "text.fixture.h="));
    ck_assert_ptr_null(strstr(made.record, "unused.h"));
    ck_assert_ptr_null(strstr(made.record, "/"));
    ck_assert_ptr_null(strstr(made.record, "nvrtc"));
    free(made.record);
}
END_TEST

/* Settings in any order, said or left to the default. */
START_TEST(same_request_same_key)
{
    static const char *const one[] = { "head_dim=64", "dtype=fp16" };
    static const char *const other[] = { "dtype=2", "consumers=3", "head_dim=64", "kv_slots=2" };
    struct made a = make(TRIVIAL, one, 2), b = make(TRIVIAL, other, 4);

    ck_assert_str_eq(a.key, b.key);
    ck_assert_str_eq(a.record, b.record);
    free(a.record);
    free(b.record);
}
END_TEST

START_TEST(every_value_changes_the_key)
{
    static const char *const settings[] = { NULL,          "head_dim=64",  "dtype=fp16",
                                            "consumers=1", "tile_n=64",    "kv_slots=1",
                                            "debug=1",     "max_logits=1", "packed=1",
                                            "out_fp32=1",  "staged=1",     "head_dim_v=64",
                                            "softcap=1" };
    enum { COUNT = sizeof settings / sizeof *settings };
    char keys[COUNT][33];

    for (int i = 0; i < COUNT; i++) {
        key_of(keys[i], TRIVIAL, settings[i]);
        for (int j = 0; j < i; j++)
            ck_assert_str_ne(keys[i], keys[j]);
    }
}
END_TEST

/* Each byte of each used file, one at a time; then the same of a file no template includes. */
START_TEST(every_byte_of_used_text_changes_the_key)
{
    static const struct {
        const char *name;
        bool is_used;
    } files[] = { { "attention_forward.cu", true }, { "fixture.h", true }, { "unused.h", false } };
    char *folder = tmpdir_make();
    char before[33], after[33];

    tmpdir_copy_folder(TRIVIAL, folder);
    key_of(before, TRIVIAL, NULL);
    key_of(after, folder, NULL);
    ck_assert_str_eq(before, after);
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        char *path = tmpdir_path(folder, files[f].name);
        size_t bytes;
        char *text = tmpdir_read(path, &bytes);

        for (size_t i = 0; i < bytes; i++) {
            /* A changed #include leaves the file out: the key changes all the same. */
            text[i] ^= 1;
            tmpdir_write(path, text, bytes);
            key_of(after, folder, NULL);
            text[i] ^= 1;
            ck_assert_msg((strcmp(before, after) != 0) == files[f].is_used, "%s byte %zu",
                          files[f].name, i);
        }
        tmpdir_write(path, text, bytes);
        free(text);
        free(path);
    }
    tmpdir_remove(folder);
}
END_TEST

/* A name moved from one file to the next, a byte moved over a border: lengths are in the key. */
START_TEST(borders_count)
{
    char *folder = tmpdir_make();
    char *a = tmpdir_path(folder, "attention_forward.cu"), *b = tmpdir_path(folder, "b.h");
    char *c = tmpdir_path(folder, "c.h");
    char one[33], other[33];

    tmpdir_write_text(a, "#include \"b.h\"\n#include \"c.h\"\n");
    tmpdir_write_text(b, "xy");
    tmpdir_write_text(c, "z");
    key_of(one, folder, NULL);
    tmpdir_write_text(b, "x");
    tmpdir_write_text(c, "yz");
    key_of(other, folder, NULL);
    ck_assert_str_ne(one, other);
    free(a);
    free(b);
    free(c);
    tmpdir_remove(folder);
}
END_TEST

static const struct {
    const char *text;
    bool is_refused;
} include_cases[] = {
    { "#include \"x.h\"\n#include <stdint.h>\n#include <cuda/std/limits>\n", false },
    { "#include \"/etc/x.h\"\n", true },
    { "#include </etc/x.h>\n", true },
    { "#include \"../x.h\"\n", true },
    { "#include \"a/../../x.h\"\n", true },
    { "#include \"a..b/..x.h\"\n", false },
    { "#include \"..\"\n", true },
    { "# /* why */ include /* not */ \"/etc/x.h\"\n", true },
    { "/* a */ /* b\n */ #include \"/etc/x.h\"\n", true },
    { "#inc\\\nlude \"/e\\\ntc/x.h\"\n", true },
    { "%:include \"/etc/x.h\"\n", true },
    { "#import \"/etc/x.h\"\n#include_next <x.h>", true },
    { "#include_next </etc/x.h>\n", true },
    { "#define X \"/etc/x.h\"\n#include X\n", true },
    { "#if __has_include(\"/etc/x.h\")\n#endif\n", true },
    { "#if defined(__has_include) && __has_include(<stdint.h>)\n#endif\n", false },
    { "#if 0\n#include \"/etc/x.h\"\n#endif\n", true },
    { "// #include \"/etc/x.h\"\n", false },
    { "/*\n#include \"/etc/x.h\"\n*/\n", false },
    { "// goes on \\\n#include \"/etc/x.h\"\n", false },
    { "const char *a = \"/*\";\n#include \"/etc/x.h\"\n", true },
    { "const char a = '\"', b = '\\'';\n#include \"/etc/x.h\"\n", true },
    { "const char *a = \"\\\" /*\";\n#include \"/etc/x.h\"\n", true },
    /* To the compiler these strings end elsewhere than a plain reading has it. */
    { "auto a = R\"(\" /* )\";\n#include \"/etc/x.h\"\n/* */\n", true },
    { "auto a = u8R\"ab()\" /* )ab\";\n#include \"/etc/x.h\"\n/* */\n", true },
    { "auto a = R\"(\n#include \"/etc/x.h\"\n)\";\n", false },
    { "auto a = R\"(\\\n)\";\n#include \"/etc/x.h\"\n", true },
    { "auto a = \"a\"R\"(\" /**/;\n#include \"/etc/x.h\"\nauto b = \")\";\n", true },
    { "auto a = R/**/\"(\" /**/;\n#include \"/etc/x.h\"\nauto b = \")\";\n", true },
    { "int a = 1'0; auto b = \"'/*\";\n#include \"/etc/x.h\"\n/* */\n", true },
    { "#if 0\n1e+'a \"'/*\"\n#endif\n#include \"/etc/x.h\"\n/* */\n", true },
    { "#if 0\n1\\u00e4'a \"'/*\"\n#endif\n#include \"/etc/x.h\"\n/* */\n", true },
    { "int a = 1'000'000; /* 'b */ char c = u8'\"';\n#include \"x.h\"\n", false },
    { "#\finclude \"/etc/x.h\"\n", true },
    { "#\vinclude \"/etc/x.h\"\n", true },
    { "#include\f\"/etc/x.h\"\n", true },
    { "#define \\u00e4 \"/etc/x.h\"\n#include \\u00e4\n", true },
    { "#define $ \"/etc/x.h\"\n#include $\n", true },
    { "#define HAS __has_include\n#if HAS(\"/etc/x.h\")\n#endif\n", true },
    { "#if __has_include\f(\"/etc/x.h\")\n#endif\n", true },
    { "#if __has_include(\f\"/etc/x.h\")\n#endif\n", true },
    { "#if __has_include(<a/*b>)\n#endif\n#include \"/etc/x.h\"\n/* */\n", true },
    { "#if __has_include(<a\">) || 0 //\"/*\n#endif\n#include \"/etc/x.h\"\n/* */\n", true },
    { "#if __has_include(\"a\\\") || 0 //\"/*\n#endif\n#include \"/etc/x.h\"\n/* */\n", true },
    { "#ifdef __has_include\n#endif\n", false },
    { "int a; #include \"/etc/x.h\"\n", false }, /* no directive: the compiler refuses it */
};

START_TEST(includes_stay_inside_the_templates)
{
    const struct embedded_file file = { .name = "x.cu",
                                        .text = include_cases[_i].text,
                                        .bytes = strlen(include_cases[_i].text) };
    ffa_error err = { FFA_OK, 0, "" };
    ffa_status rc = include_check(&file, &err);

    ck_assert_msg(rc == (include_cases[_i].is_refused ? FFA_INVALID : FFA_OK), "%s: %s",
                  include_cases[_i].text, err.message);
    if (rc != FFA_OK)
        ck_assert_msg(strstr(err.message, "template 'x.cu' includes ") &&
                          strstr(err.message, "the key cannot cover it"),
                      "%s", err.message);
}
END_TEST

START_TEST(includes_are_followed)
{
    static const struct {
        const char *text;
        bool is_used;
    } lines[] = {
        { "#include \"x.h\"\n", true },
        { "  #  include   \"x.h\"  // why\n", true },
        { "\n\n\t#include\t\"x.h\"", true },
        { "#include <x.h>\n", false },
        { "//#include \"x.h\"\n", false },
        { "#include \"x.h\n", false },
        { "#include \"x.h.h\"\n", false },
        { "#includes\n\"x.h\"\n", false },
        { "#if 0\n#include \"x.h\"\n#endif\n", true },
        { "#include \"loop.h\"\n#include \"x.h\"\n", true },
    };
    char *folder = tmpdir_make();
    char *root = tmpdir_path(folder, "attention_forward.cu"), *x = tmpdir_path(folder, "x.h");
    char *loop = tmpdir_path(folder, "loop.h");

    tmpdir_write_text(x, "int x;\n");
    tmpdir_write_text(loop, "#include \"loop.h\"\n#include \"attention_forward.cu\"\n");
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        struct made made;

        tmpdir_write_text(root, lines[i].text);
        made = make(folder, NULL, 0);
        ck_assert_msg((strstr(made.record, "text.x.h=") != NULL) == lines[i].is_used, "%s",
                      lines[i].text);
        free(made.record);
    }
    free(root);
    free(x);
    free(loop);
    tmpdir_remove(folder);
}
END_TEST

/* The key another process computes, from elsewhere and with another HOME. */
static void key_elsewhere(char out[33], const char *folder, const char *work)
{
    int ends[2];
    pid_t child;
    int status;

    ck_assert_int_eq(pipe(ends), 0);
    child = fork();
    if (child == 0) {
        if (dup2(ends[1], 1) < 0 || chdir(work) != 0 || setenv("HOME", work, 1) != 0)
            _exit(9);
        (void)execl(self, self, "--key", folder, (char *)NULL);
        _exit(9);
    }
    (void)close(ends[1]);
    ck_assert_int_eq(read(ends[0], out, 32), 32);
    out[32] = '\0';
    (void)close(ends[0]);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
}

START_TEST(place_and_process_do_not_matter)
{
    char *folder = tmpdir_make();
    char here[33], there[33];

    tmpdir_copy_folder(TRIVIAL, folder);
    key_of(here, TRIVIAL, NULL);
    key_elsewhere(there, TRIVIAL, "/");
    ck_assert_str_eq(here, there);
    key_elsewhere(there, folder, folder);
    ck_assert_str_eq(here, there);
    tmpdir_remove(folder);
}
END_TEST

/* What `xxhsum -H2` prints: stores and their readers agree on the digits' order. */
START_TEST(digest_is_canonical)
{
    char digest[DIGEST_TEXT];

    digest_bytes("", 0, digest);
    ck_assert_str_eq(digest, "99aa06d3014798d86001c324468d497f");
}
END_TEST

int main(int argc, char **argv)
{
    Suite *suite;
    TCase *tc;
    int failed;

    if (argc == 3 && strcmp(argv[1], "--key") == 0) {
        char key[33];

        key_of(key, argv[2], NULL);
        (void)fputs(key, stdout);
        return 0;
    }
    self = realpath(argv[0], NULL);
    suite = suite_create("key");
    tc = tcase_create("key");
    tcase_add_test(tc, request_is_completed_once);
    tcase_add_test(tc, request_without_memory);
    tcase_add_test(tc, record_is_readable_and_has_no_place);
    tcase_add_test(tc, same_request_same_key);
    tcase_add_test(tc, every_value_changes_the_key);
    tcase_add_test(tc, every_byte_of_used_text_changes_the_key);
    tcase_add_test(tc, borders_count);
    tcase_add_test(tc, includes_are_followed);
    tcase_add_loop_test(tc, includes_stay_inside_the_templates, 0,
                        sizeof include_cases / sizeof *include_cases);
    tcase_add_test(tc, place_and_process_do_not_matter);
    tcase_add_test(tc, digest_is_canonical);
    tcase_set_timeout(tc, 60);
    suite_add_tcase(suite, tc);
    failed = suite_run(suite);
    free((char *)self);
    return failed;
}
