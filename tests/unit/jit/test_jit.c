/* SPDX-License-Identifier: Apache-2.0
 *
 * Specs, the compile report, NVRTC: on fixture templates, which compile in milliseconds.
 */
#include "choose/spec_choice.h"
#include "jit/compile_report.h"
#include "support/suite.h"
#include "support/tmpdir.h"
#include "support/watch.h"

#include <check.h>
#include <stdio.h>
#include <unistd.h>

#define FIXTURES FFA_TEST_SOURCE_DIR "/tests/data/templates/"

static const struct log silent = { 0 };
static bool has_nvrtc;

static struct jit *open_jit(const char *folder, const char *nvrtc_path)
{
    struct jit_opts opts = { 0 };
    ffa_error err = { FFA_OK, 0, "" };
    struct jit *jit;

    opts.templates_dir = folder;
    opts.nvrtc_path = nvrtc_path;
    ck_assert_msg(jit_create(&jit, &opts, &silent, &err) == FFA_OK, "%s", err.message);
    return jit;
}

static struct jit_spec resolved(void)
{
    struct jit_spec spec;

    ck_assert_int_eq(jit_spec_init(&spec, "attention_forward", NULL), FFA_OK);
    ck_assert_int_eq(choose_spec(&spec, "sm_90a", NULL), FFA_OK);
    return spec;
}

/* A request, and its compile. */
static ffa_status compile(struct jit *jit, const struct jit_spec *spec, bool want_ptx,
                          struct jit_result *out, ffa_error *err)
{
    struct jit_request request;
    ffa_status rc;

    jit_request_init(&request, spec, "sm_90a");
    rc = jit_compile(jit, &request, want_ptx, out, err);
    jit_request_finish(&request);
    return rc;
}

/* ---- specs ---- */

static const struct {
    const char *setting;
    ffa_status want;
    const char *says; /* in the message, or "row=value" afterwards */
} setting_cases[] = {
    { "head_dim=64", FFA_OK, "head_dim=64" },
    { "dtype=fp16", FFA_OK, "dtype=2" },
    { "dtype=bf16", FFA_OK, "dtype=1" },
    { "dtype=2", FFA_OK, "dtype=2" },
    { "consumers=0", FFA_OK, "consumers=0" }, /* the host chooses */
    { "head_dim_v=0", FFA_OK, "head_dim_v=0" },
    { "tile_n=48", FFA_INVALID, "tile_n is 48, not in [64, 192]" },
    { "tile_n=208", FFA_INVALID, "tile_n is 208, not in [64, 192]" },
    { "kv_slots=1", FFA_OK, "kv_slots=1" },
    { "head_dim=7", FFA_INVALID, "attention_forward: head_dim is 7, not in [8, 256]" },
    { "head_dim=0", FFA_INVALID, "head_dim is 0" },
    { "dtype=3", FFA_INVALID, "dtype is 3, not in [1, 2] (bf16=1, fp16=2)" },
    { "dtype=fp8", FFA_INVALID, "dtype is 'fp8', not a number (bf16=1, fp16=2)" },
    { "head_dim=", FFA_INVALID, "head_dim is '', not a number" },
    { "head_dim=12x", FFA_INVALID, "'12x'" },
    { "head_dim=99999999999", FFA_INVALID, "head_dim is 99999999999, not in [8, 256]" },
    { "head_dim=99999999999999999999", FFA_INVALID,
      "head_dim is 99999999999999999999, not in [8, 256]" },
    { "head_dim=-99999999999999999999", FFA_INVALID,
      "head_dim is -99999999999999999999, not in [8, 256]" },
    { "dtype=99999999999", FFA_INVALID, "dtype is 99999999999, not in [1, 2] (bf16=1, fp16=2)" },
    { "head_dim=128x", FFA_INVALID, "head_dim is '128x', not a number" },
    { "head_dim=bf16", FFA_INVALID, "'bf16'" },
    { "headdim=64", FFA_INVALID, "no setting 'headdim'; known: head_dim, head_dim_v, dtype" },
    { "=64", FFA_INVALID, "no setting ''" },
    { "head_dim", FFA_INVALID, "'head_dim' is not name=value" },
    { NULL, FFA_INVALID, "not name=value" },
};

START_TEST(setting_is_checked)
{
    ffa_error err = { FFA_OK, 0, "" };
    char values[256];
    struct jit_spec spec;
    ffa_status rc;

    ck_assert_int_eq(jit_spec_init(&spec, "attention_forward", NULL), FFA_OK);
    rc = jit_spec_set(&spec, setting_cases[_i].setting, &err);
    ck_assert_msg(rc == setting_cases[_i].want, "%s: %s", setting_cases[_i].setting, err.message);
    jit_spec_text(&spec, values, sizeof values);
    ck_assert_msg(strstr(rc == FFA_OK ? values : err.message, setting_cases[_i].says), "%s | %s",
                  values, err.message);
}
END_TEST

/* What src/choose fills in must be there; what is there is checked. */
static const struct {
    const char *settings[4];
    const char *says;
} unresolved[] = {
    { { NULL }, "attention_forward: consumers is 0: it was not chosen" },
    { { "consumers=2" }, "tile_n is 0: it was not chosen" },
    { { "consumers=2", "tile_n=128" }, "kv_slots is 0: it was not chosen" },
    { { "consumers=3", "tile_n=128", "kv_slots=2" }, "with 3 consumers there are" },
};

START_TEST(resolve_chooses_nothing)
{
    ffa_error err = { FFA_OK, 0, "" };
    struct jit_spec spec;

    ck_assert_int_eq(jit_spec_init(&spec, "attention_forward", NULL), FFA_OK);
    for (int i = 0; i < 4 && unresolved[_i].settings[i]; i++)
        ck_assert_int_eq(jit_spec_set(&spec, unresolved[_i].settings[i], NULL), FFA_OK);
    ck_assert_int_eq(jit_spec_resolve(&spec, "sm_90a", &err), FFA_INVALID);
    ck_assert_msg(strstr(err.message, unresolved[_i].says), "%s", err.message);
}
END_TEST

static const struct {
    const char *template_name;
    const char *settings[3];
    ffa_status want;
    const char *says;
} backward_cases[] = {
    { "attention_backward",
      { "head_dim=64" },
      FFA_OK,
      "head_dim=64 head_dim_v=64 padded=0 dtype=1 tile_m=128 consumers=2" },
    { "attention_backward", { "head_dim=128" }, FFA_OK, "head_dim=128 head_dim_v=128 padded=0" },
    { "attention_backward", { "head_dim=96" }, FFA_OK, "head_dim_v=96 padded=0 dtype=1 tile_m=64" },
    { "attention_backward", { "head_dim=8" }, FFA_OK, "head_dim=64 head_dim_v=64 padded=1" },
    { "attention_backward",
      { "head_dim=64", "head_dim_v=96" },
      FFA_OK,
      "head_dim=96 head_dim_v=96 padded=1" },
    { "attention_backward",
      { "head_dim=96", "head_dim_v=128" },
      FFA_OK,
      "head_dim=128 head_dim_v=128 padded=1" },
    { "attention_backward",
      { "head_dim=128", "head_dim_v=64" },
      FFA_OK,
      "head_dim=128 head_dim_v=64 padded=0 dtype=1 tile_m=64" },
    { "attention_backward",
      { "head_dim=128", "head_dim_v=96" },
      FFA_OK,
      "head_dim=128 head_dim_v=96 padded=0" },
    { "attention_backward",
      { "head_dim=128", "head_dim_v=96", "softcap=1" },
      FFA_OK,
      "head_dim=128 head_dim_v=128 padded=1" },
    { "attention_backward", { "head_dim=36" }, FFA_INVALID, "head_dim is 36, not a multiple of 8" },
    { "attention_backward",
      { "head_dim_v=4" },
      FFA_INVALID,
      "attention_backward: head_dim_v is 4, not in [8, 256]" },
    { "attention_backward", { "head_dim=264" }, FFA_INVALID, "head_dim is 264, not in [8, 256]" },
    { "attention_backward",
      { "head_dim=136" },
      FFA_OK,
      "head_dim=192 head_dim_v=192 padded=1 dtype=1 tile_m=64" },
    { "attention_backward",
      { "head_dim=192", "head_dim_v=128" },
      FFA_OK,
      "head_dim=192 head_dim_v=128 padded=0" },
    { "attention_backward",
      { "arrivals=1" },
      FFA_INVALID,
      "attention_backward: arrivals is 1, dkv_fp32 is 0" },
    { "attention_backward",
      { "arrivals=1", "dkv_fp32=1" },
      FFA_OK,
      "dkv_fp32=1 deterministic=0 arrivals=1" },
    { "attention_backward",
      { "head_dim=32", "head_dim_v=256" },
      FFA_OK,
      "head_dim=64 head_dim_v=256 padded=1 dtype=1 tile_m=64" },
    { "attention_backward",
      { "head_dim=256", "head_dim_v=96" },
      FFA_OK,
      "head_dim=256 head_dim_v=128 padded=1" },
    { "attention_backward",
      { "head_dim=40", "tile_m=64" },
      FFA_INVALID,
      "tile_m is 64, head_dim 64 and consumers 2 need 128" },
    { "attention_backward", { "head_dim=128" }, FFA_OK, "tile_m=64 consumers=2 cluster=1" },
    { "attention_backward",
      { "head_dim=64", "head_dim_v=104", "cluster=2" },
      FFA_OK,
      "head_dim=128 head_dim_v=128 padded=1 dtype=1 tile_m=64 consumers=2 cluster=2" },
    { "attention_backward",
      { "head_dim=96", "cluster=2" },
      FFA_INVALID,
      "cluster is 2, head_dim 96 and head_dim_v 96 need 1" },
    { "attention_backward",
      { "head_dim=128", "head_dim_v=192", "cluster=2" },
      FFA_INVALID,
      "cluster is 2, head_dim 128 and head_dim_v 192 need 1" },
    { "attention_backward",
      { "head_dim=192", "cluster=1" },
      FFA_INVALID,
      "cluster is 1, head_dim 192 and head_dim_v 192 need 2" },
    { "attention_backward",
      { "cluster=2", "arrivals=1", "dkv_fp32=1" },
      FFA_INVALID,
      "cluster is 2, head_dim 128 and head_dim_v 128 with arrivals need 1" },
    { "backward_prepare",
      { "head_dim=48", "head_dim_v=80" },
      FFA_OK,
      "head_dim=96 head_dim_v=96 padded=1" },
    { "backward_finish", { "head_dim=96" }, FFA_OK, "head_dim=96 head_dim_v=96 padded=0" },
    { "backward_finish", { "head_dim=12" }, FFA_INVALID, "backward_finish: head_dim is 12" },
};

/* Wide heads are worked on in clusters of two, and those of 128 if asked; what a block asks for
 * fits. */
static const struct {
    const char *settings[3];
    int32_t cluster;
} clusters[] = {
    { { "head_dim=8" }, 1 },
    { { "head_dim=128" }, 1 },
    { { "head_dim=128", "head_dim_v=256" }, 1 },
    { { "head_dim=128", "cluster=2" }, 2 },
    { { "head_dim=128", "cluster=2", "deterministic=1" }, 2 },
    { { "head_dim=104", "head_dim_v=64", "cluster=2" }, 2 },
    { { "head_dim=136" }, 2 },
    { { "head_dim=192", "head_dim_v=128" }, 2 },
    { { "head_dim=192", "deterministic=1" }, 2 },
    { { "head_dim=256" }, 2 },
    { { "head_dim=256", "head_dim_v=64", "deterministic=1" }, 2 },
    { { "head_dim=256", "deterministic=1" }, 2 },
};

START_TEST(wide_heads_are_for_clusters)
{
    const struct jit_arch *arch;
    struct jit_spec spec;

    ck_assert_int_eq(jit_arch_find(&arch, "sm_90a", NULL), FFA_OK);
    ck_assert_int_eq(jit_spec_init(&spec, "attention_backward", NULL), FFA_OK);
    for (int i = 0; i < 3 && clusters[_i].settings[i]; i++)
        ck_assert_int_eq(jit_spec_set(&spec, clusters[_i].settings[i], NULL), FFA_OK);
    ck_assert_int_eq(jit_spec_resolve(&spec, "sm_90a", NULL), FFA_OK);
    ck_assert_int_eq(jit_spec_cluster(&spec), clusters[_i].cluster);
    ck_assert_int_le(jit_spec_shared_bytes(&spec), arch->shared_bytes_max);
    ck_assert_int_eq(jit_spec_init(&spec, "backward_finish", NULL), FFA_OK);
    ck_assert_int_eq(jit_spec_cluster(&spec), 1);
}
END_TEST

START_TEST(backward_columns_are_padded)
{
    ffa_error err = { FFA_OK, 0, "" };
    struct jit_spec spec, again;
    char values[256];
    ffa_status rc = FFA_OK;

    ck_assert_int_eq(jit_spec_init(&spec, backward_cases[_i].template_name, NULL), FFA_OK);
    for (int i = 0; i < 3 && backward_cases[_i].settings[i] && rc == FFA_OK; i++)
        rc = jit_spec_set(&spec, backward_cases[_i].settings[i], &err);
    if (rc == FFA_OK)
        rc = jit_spec_resolve(&spec, "sm_90a", &err);
    ck_assert_msg(rc == backward_cases[_i].want, "%s", err.message);
    jit_spec_text(&spec, values, sizeof values);
    ck_assert_msg(strstr(rc == FFA_OK ? values : err.message, backward_cases[_i].says), "%s | %s",
                  values, err.message);
    if (rc != FFA_OK)
        return;
    again = spec;
    ck_assert_int_eq(jit_spec_resolve(&again, "sm_90a", NULL), FFA_OK);
    ck_assert_mem_eq(&again, &spec, sizeof spec);
}
END_TEST

START_TEST(arch_and_template_are_named)
{
    struct jit_spec spec = resolved();
    ffa_error err;

    ck_assert_int_eq(jit_spec_resolve(&spec, "sm_80", &err), FFA_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.message, "'sm_80'; supported: sm_90a"));
    ck_assert_int_eq(jit_spec_resolve(&spec, "", &err), FFA_INVALID);
    ck_assert_int_eq(jit_spec_resolve(&spec, NULL, &err), FFA_INVALID);
    ck_assert_int_eq(jit_spec_init(&spec, "nonsense", &err), FFA_INVALID);
    ck_assert_ptr_nonnull(strstr(err.message, "'nonsense'; known: attention_forward"));
    ck_assert_int_eq(jit_spec_init(&spec, NULL, &err), FFA_INVALID);
}
END_TEST

START_TEST(registry_is_listed)
{
    char digest[33] = "", again[33] = "";
    ffa_spec_row row;
    int rows = 0;

    ck_assert_int_ge(ffa_template_count(), 1);
    for (int32_t i = 0; i < ffa_template_count(); i++) {
        ck_assert_ptr_nonnull(ffa_template_name(i));
        ck_assert_ptr_nonnull(ffa_template_doc(i));
    }
    ck_assert_ptr_null(ffa_template_name(ffa_template_count()));
    ck_assert_ptr_null(ffa_template_name(-1));
    ck_assert_ptr_null(ffa_template_doc(-1));
    while (ffa_template_row(0, rows, &row)) {
        ck_assert_ptr_nonnull(row.name);
        ck_assert_ptr_nonnull(row.doc);
        ck_assert_int_le(row.min, row.max);
        rows++;
    }
    ck_assert_int_ge(rows, 1);
    ck_assert_int_eq(ffa_template_row(0, -1, &row), 0);
    ck_assert_int_eq(ffa_template_row(-1, 0, &row), 0);
    ck_assert_int_eq(ffa_template_row(0, 0, NULL), 0);
    ffa_templates_digest(digest);
    ffa_templates_digest(again);
    ck_assert_uint_eq(strspn(digest, "0123456789abcdef"), 32);
    ck_assert_str_eq(digest, again);
    ck_assert_str_eq(ffa_layer_text(FFA_LAYER_COMPILED), "compiled");
    ck_assert_str_eq(ffa_layer_text((ffa_layer)99), "unknown");
    ck_assert_uint_eq(ffa_dtype_bytes(FFA_BF16), 2);
    ck_assert_uint_eq(ffa_dtype_bytes(FFA_FP64), 8);
    ck_assert_uint_eq(ffa_dtype_bytes((ffa_dtype)99), 0);
}
END_TEST

/* ---- the report ---- */

#define ENTRY "ptxas info    : Compiling entry function 'k' for 'sm_90a'\n"

static const struct {
    const char *name, *log;
    struct report want;
} report_cases[] = {
    { "nothing at all", NULL, { -1, -1, -1, 0 } },
    { "no ptxas line", "warning: something\n", { -1, -1, -1, 0 } },
    { "clean",
      ENTRY "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
            "ptxas info    : Used 168 registers, used 7 barriers, 256 bytes smem\n",
      { 168, 256, 0, 0 } },
    { "no static shared memory", ENTRY "ptxas info    : Used 10 registers\n", { 10, 0, -1, 0 } },
    { "spills of a called function count",
      ENTRY "    0 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n"
            "ptxas info    : Used 32 registers\n"
            "ptxas info    : Function properties for g\n"
            "    0 bytes stack frame, 100 bytes spill stores, 4 bytes spill loads",
      { 32, 0, 124, 0 } },
    { "another kernel's registers do not",
      "ptxas info    : Compiling entry function 'kk' for 'sm_90a'\n"
      "ptxas info    : Used 99 registers, 64 bytes smem\n" ENTRY
      "ptxas info    : Used 11 registers, 32 bytes smem\n",
      { 11, 32, -1, 0 } },
    { "advisories, once a line",
      "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async is serialized\n"
      "ptxas info    : (C7508) 'setmaxnreg' ignored\n"
      "ptxas info    : (C7600) harmless\n" ENTRY "ptxas info    : Used 12 registers\n",
      { 12, 0, -1, 2 } },
};

START_TEST(report_reads_the_log)
{
    struct report got = report_read(report_cases[_i].log, "k");

    ck_assert_msg(memcmp(&got, &report_cases[_i].want, sizeof got) == 0, "%s: %d %d %d %d",
                  report_cases[_i].name, got.registers, got.shared_bytes, got.spill_bytes,
                  got.advisory_count);
}
END_TEST

START_TEST(first_error_is_short)
{
    char out[64];

    report_first_error("a.cu(1): warning: x\n  y\n\na.cu(7): error: no\n    f();\n    ^\n"
                       "a.cu(8): error: later\n",
                       out, sizeof out);
    ck_assert_str_eq(out, "a.cu(7): error: no | f();");
    report_first_error("all is well\n", out, sizeof out);
    ck_assert_str_eq(out, "");
    report_first_error(NULL, out, sizeof out);
    ck_assert_str_eq(out, "");
    report_first_error("a.cu(1): error: 1234567890123456789012345678901234567890123456789012345\n",
                       out, sizeof out);
    ck_assert_uint_eq(strlen(out), 63);
}
END_TEST

/* ---- compiling ---- */

START_TEST(compile_gives_cubin_report_and_ptx)
{
    struct jit *jit = open_jit(FIXTURES "trivial", NULL);
    struct jit_spec spec = resolved();
    struct jit_result first, second;
    ffa_error err = { FFA_OK, 0, "" };

    ck_assert_str_eq(jit_nvrtc_path(jit), "");
    ck_assert_str_eq(jit_toolchain(jit), "");
    ck_assert_msg(compile(jit, &spec, true, &first, &err) == FFA_OK, "%s", err.message);
    ck_assert_msg(compile(jit, &spec, false, &second, &err) == FFA_OK, "%s", err.message);
    ck_assert_int_gt(first.kernel.info.registers, 0);
    ck_assert_int_eq(first.kernel.info.spill_bytes, 0);
    ck_assert_int_eq(first.kernel.info.advisory_count, 0);
    ck_assert_int_eq(first.kernel.info.threads, 384);
    ck_assert_int_eq(first.kernel.info.shared_bytes, jit_spec_shared_bytes(&spec) + 256);
    ck_assert_int_gt(first.kernel.info.compile_us, 0);
    ck_assert_str_eq(first.kernel.info.arch, "sm_90a");
    ck_assert_ptr_nonnull(strstr(first.kernel.info.toolchain, jit_nvrtc_version(jit)));
    ck_assert_ptr_nonnull(strstr(first.ptx, ".entry attention_forward"));
    ck_assert_ptr_null(second.ptx);
    ck_assert_str_ne(jit_nvrtc_path(jit), "");
    ck_assert_uint_eq(first.kernel.cubin_bytes, second.kernel.cubin_bytes);
    ck_assert_mem_eq(first.kernel.cubin, second.kernel.cubin, first.kernel.cubin_bytes);

    /* A cut or scrambled file is told apart, and never read past its end. */
    for (size_t bytes = 0; bytes < first.kernel.cubin_bytes; bytes += 37) {
        void *cut = malloc(bytes + 1);

        memcpy(cut, first.kernel.cubin, bytes);
        if (bytes < 64)
            ck_assert(!report_has_entry(cut, bytes, "attention_forward"));
        else
            (void)report_has_entry(cut, bytes, "attention_forward");
        free(cut);
    }
    ck_assert(!report_has_entry(first.kernel.cubin, first.kernel.cubin_bytes, "attention_forwar"));
    jit_result_finish(&first);
    jit_result_finish(&second);
    jit_destroy(jit);
}
END_TEST

static const struct {
    const char *folder;
    ffa_status want;
    const char *says;
} compile_cases[] = {
    { "broken", FFA_COMPILE, "attention_forward (head_dim=128" },
    { "broken", FFA_COMPILE,
      "attention_forward.cu(4): error: identifier \"undeclared_thing\" is undefined | out[0] = "
      "undeclared_thing;" },
    { "no_entry", FFA_COMPILE, "no extern \"C\" kernel of that name" },
};

START_TEST(compile_error_shows_its_lines)
{
    char folder[512];
    struct jit_spec spec = resolved();
    struct jit_result result;
    struct jit *jit;
    ffa_error err = { FFA_OK, 0, "" };

    text_copy(folder, FIXTURES "%s", compile_cases[_i].folder);
    jit = open_jit(folder, NULL);
    ck_assert_int_eq(compile(jit, &spec, false, &result, &err), compile_cases[_i].want);
    ck_assert_msg(strstr(err.message, compile_cases[_i].says), "%s", err.message);
    ck_assert_str_ne(result.log, "");
    ck_assert_ptr_null(result.kernel.cubin);
    jit_result_finish(&result);
    jit_destroy(jit);
}
END_TEST

START_TEST(spill_is_reported)
{
    struct jit *jit = open_jit(FIXTURES "spill", NULL);
    struct jit_spec spec = resolved();
    struct jit_result result;

    ck_assert_int_eq(compile(jit, &spec, false, &result, NULL), FFA_OK);
    ck_assert_int_gt(result.kernel.info.spill_bytes, 0);
    jit_result_finish(&result);
    jit_destroy(jit);
}
END_TEST

/* NVRTC looks for "..." in the working folder unless told not to: such a file is in no key. */
START_TEST(working_folder_is_not_searched)
{
    char *work = tmpdir_make(), *templates = tmpdir_make();
    char *main_file = tmpdir_path(templates, "attention_forward.cu");
    char *stray = tmpdir_path(work, "stray.h");
    struct jit_spec spec = resolved();
    struct jit_result result;
    struct jit *jit;
    ffa_error err = { FFA_OK, 0, "" };

    tmpdir_write_text(main_file, "#include \"stray.h\"\n"
                                 "extern \"C\" __global__ void attention_forward() {}\n");
    tmpdir_write_text(stray, "#define STRAY 1\n");
    ck_assert_int_eq(chdir(work), 0);
    jit = open_jit(templates, NULL);
    ck_assert_int_eq(compile(jit, &spec, false, &result, &err), FFA_COMPILE);
    ck_assert_msg(strstr(err.message, "stray.h"), "%s", err.message);
    jit_result_finish(&result);
    jit_destroy(jit);
    free(main_file);
    free(stray);
    ck_assert_int_eq(chdir("/"), 0);
    tmpdir_remove(work);
    tmpdir_remove(templates);
}
END_TEST

START_TEST(missing_nvrtc_is_a_sentence)
{
    struct jit *jit = open_jit(FIXTURES "trivial", "/nonexistent/libnvrtc.so");
    struct jit_spec spec = resolved();
    struct jit_result result;
    ffa_error err = { FFA_OK, 0, "" };

    ck_assert_int_eq(compile(jit, &spec, false, &result, &err), FFA_UNSUPPORTED);
    ck_assert_msg(strstr(err.message, "no NVRTC >= 12.8") &&
                      strstr(err.message, "'/nonexistent/libnvrtc.so'"),
                  "%s", err.message);
    jit_result_finish(&result);
    jit_destroy(jit);
}
END_TEST

/* A library that opens but is no NVRTC. */
START_TEST(another_library_is_not_nvrtc)
{
    struct jit *jit = open_jit(FIXTURES "trivial", "libm.so.6");
    ffa_error err = { FFA_OK, 0, "" };

    ck_assert_int_eq(jit_open_compiler(jit, &err), FFA_UNSUPPORTED);
    ck_assert_msg(strstr(err.message, "lacks nvrtcVersion"), "%s", err.message);
    jit_destroy(jit);
}
END_TEST

START_TEST(old_nvrtc_is_refused)
{
    struct jit *jit = open_jit(FIXTURES "trivial", FFA_TEST_FAKE_NVRTC);
    ffa_error err = { FFA_OK, 0, "" };

    ck_assert_int_eq(jit_open_compiler(jit, &err), FFA_UNSUPPORTED);
    ck_assert_msg(strstr(err.message, "is 12.1, older than 12.8"), "%s", err.message);
    jit_destroy(jit);
}
END_TEST

START_TEST(templates_dir_must_be_readable)
{
    struct jit_opts opts = { 0 };
    char *empty = tmpdir_make();
    char *binary = tmpdir_path(empty, "a.cu");
    struct jit *jit;
    ffa_error err = { FFA_OK, 0, "" };

    opts.templates_dir = "/nonexistent/folder";
    ck_assert_int_eq(jit_create(&jit, &opts, &silent, &err), FFA_IO);
    ck_assert_ptr_null(jit);
    ck_assert_msg(strstr(err.message, "templates_dir '/nonexistent/folder'"), "%s", err.message);
    opts.templates_dir = empty;
    ck_assert_int_eq(jit_create(&jit, &opts, &silent, &err), FFA_IO);
    ck_assert_msg(strstr(err.message, "has no .cu"), "%s", err.message);
    tmpdir_write(binary, "a\0b", 3);
    ck_assert_int_eq(jit_create(&jit, &opts, &silent, &err), FFA_IO);
    ck_assert_msg(strstr(err.message, "zero byte"), "%s", err.message);
    free(binary);
    tmpdir_remove(empty);
}
END_TEST

static const struct {
    enum fault_kind kind;
    ffa_status want, or_else;
} fault_cases[] = {
    { FAULT_ALLOC, FFA_NOMEM, FFA_NOMEM },
    { FAULT_FILE, FFA_IO, FFA_UNSUPPORTED },       /* template text; NVRTC's own file */
    { FAULT_NVRTC, FFA_COMPILE, FFA_UNSUPPORTED }, /* at work; while it is opened */
};

START_TEST(every_failure_is_clean)
{
    struct jit_opts opts = { 0 };
    struct jit_spec spec = resolved();
    long nth;

    opts.templates_dir = FIXTURES "trivial";
    for (nth = 1; nth < 1000; nth++) {
        struct jit_result result = { 0 };
        struct jit *jit;
        ffa_error err = { FFA_OK, 0, "" };
        ffa_status rc;
        bool fired;

        fault_arm(fault_cases[_i].kind, nth);
        rc = jit_create(&jit, &opts, &silent, &err);
        if (rc == FFA_OK)
            rc = compile(jit, &spec, true, &result, &err);
        fired = fault_fired();
        fault_arm(fault_cases[_i].kind, 0);
        if (fired && rc != FFA_OK) {
            ck_assert_msg(rc == fault_cases[_i].want || rc == fault_cases[_i].or_else, "%ld: %s",
                          nth, err.message);
            ck_assert_str_ne(err.message, "");
            ck_assert_ptr_null(result.kernel.cubin);
        }
        jit_result_finish(&result);
        if (jit) { /* the next call works */
            rc = compile(jit, &spec, false, &result, &err);
            ck_assert_msg(rc == FFA_OK, "%ld: %s", nth, err.message);
            jit_result_finish(&result);
        }
        jit_destroy(jit);
        if (!fired)
            break;
    }
    ck_assert_int_gt(nth, 2);
    ck_assert_int_lt(nth, 1000);
}
END_TEST

static int count_of(size_t bytes, size_t row)
{
    return (int)(bytes / row);
}

int main(void)
{
    Suite *suite = suite_create("jit");
    TCase *spec = tcase_create("spec"), *report = tcase_create("report");
    TCase *compile = tcase_create("compile");

    tcase_add_loop_test(spec, setting_is_checked, 0,
                        count_of(sizeof setting_cases, sizeof *setting_cases));
    tcase_add_loop_test(spec, resolve_chooses_nothing, 0,
                        count_of(sizeof unresolved, sizeof *unresolved));
    tcase_add_loop_test(spec, wide_heads_are_for_clusters, 0, sizeof clusters / sizeof *clusters);
    tcase_add_loop_test(spec, backward_columns_are_padded, 0,
                        sizeof backward_cases / sizeof *backward_cases);
    tcase_add_test(spec, arch_and_template_are_named);
    tcase_add_test(spec, registry_is_listed);
    tcase_add_loop_test(report, report_reads_the_log, 0,
                        count_of(sizeof report_cases, sizeof *report_cases));
    tcase_add_test(report, first_error_is_short);
    tcase_add_test(compile, missing_nvrtc_is_a_sentence);
    tcase_add_test(compile, another_library_is_not_nvrtc);
    tcase_add_test(compile, old_nvrtc_is_refused);
    tcase_add_test(compile, templates_dir_must_be_readable);
    has_nvrtc = watch_has_nvrtc();
    if (has_nvrtc) {
        tcase_add_test(compile, compile_gives_cubin_report_and_ptx);
        tcase_add_loop_test(compile, compile_error_shows_its_lines, 0,
                            count_of(sizeof compile_cases, sizeof *compile_cases));
        tcase_add_test(compile, spill_is_reported);
        tcase_add_test(compile, working_folder_is_not_searched);
        tcase_add_loop_test(compile, every_failure_is_clean, 0,
                            count_of(sizeof fault_cases, sizeof *fault_cases));
    }
    tcase_set_timeout(compile, 60);
    suite_add_tcase(suite, spec);
    suite_add_tcase(suite, report);
    suite_add_tcase(suite, compile);
    return suite_run(suite);
}
