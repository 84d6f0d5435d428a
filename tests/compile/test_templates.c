/* SPDX-License-Identifier: Apache-2.0
 *
 * Every template at the corners of its spec, compiled by NVRTC without a GPU: no spills, no
 * advisories of ptxas, registers within their limit. Also the nvcc command that `ffa compile
 * --print` prints.
 */
#include "device_limits.h"
#include "support/suite.h"
#include "support/tmpdir.h"
#include "support/watch.h"

#include <check.h>
#include <ffa/ffa.h>
#include <stdio.h>
#include <stdlib.h>

/* registers_max is what a thread may have at launch: 65,536 registers divided by the threads of a
 * block. setmaxnreg moves registers between warpgroups later. */
static const struct {
    const char *template_name;
    const char *settings[5]; /* up to the first NULL */
    int32_t registers_max;
    bool calls; /* it calls printf before a trap: ptxas serialises wgmma and has an advisory for it
                 */
} corners[] = {
    { "attention_forward", { "head_dim=64", "dtype=bf16", "debug=0" }, 128, false },
    { "attention_forward", { "head_dim=64", "dtype=fp16", "debug=0" }, 128, false },
    { "attention_forward", { "head_dim=128", "dtype=bf16", "debug=0" }, 168, false },
    { "attention_forward", { "head_dim=128", "dtype=fp16", "debug=0" }, 168, false },
    { "attention_forward", { "head_dim=64", "dtype=bf16", "softcap=1" }, 168, false },
    { "attention_forward", { "head_dim=128", "dtype=bf16", "softcap=1" }, 168, false },
    { "attention_forward", { "head_dim=64", "dtype=bf16", "out_fp32=1" }, 168, false },
    { "attention_forward", { "dtype=fp16", "out_fp32=1", "softcap=1" }, 168, false },
    { "attention_forward", { "head_dim=96", "dtype=bf16" }, 128, false },
    { "attention_forward", { "head_dim=192", "dtype=bf16" }, 168, false },
    { "attention_forward", { "head_dim=192", "head_dim_v=128", "dtype=bf16" }, 168, false },
    { "attention_forward", { "head_dim=256", "dtype=bf16" }, 168, false },
    { "attention_forward", { "head_dim=64", "head_dim_v=256" }, 168, false },
    { "attention_forward", { "head_dim=64", "max_logits=1" }, 168, false },
    { "attention_forward",
      { "head_dim=96", "max_logits=1", "softcap=1", "out_fp32=1" },
      168,
      false },
    { "attention_forward",
      { "head_dim=256", "max_logits=1", "softcap=1", "out_fp32=1" },
      168,
      false },
    { "attention_forward", { "head_dim=192", "staged=1", "softcap=1" }, 168, false },
    { "attention_forward",
      { "head_dim=256", "staged=1", "max_logits=1", "softcap=1" },
      168,
      false },
    { "attention_forward", { "head_dim=256", "debug=1" }, 168, true },
    { "attention_forward", { "split=1", "packed=1" }, 255, false },
    { "attention_forward", { "head_dim=64", "arrivals=1" }, 128, false },
    { "attention_forward", { "head_dim=128", "arrivals=1", "max_logits=1" }, 168, false },
    { "attention_forward", { "head_dim=256", "arrivals=1", "packed=1", "softcap=1" }, 255, false },
    { "attention_forward", { "head_dim=128", "arrivals=1", "staged=1", "packed=1" }, 255, false },
    { "attention_backward", { "head_dim=64", "arrivals=1", "dkv_fp32=1" }, 128, false },
    { "attention_backward",
      { "head_dim=128", "arrivals=1", "dkv_fp32=1", "softcap=1" },
      128,
      false },
    { "attention_backward",
      { "arrivals=1", "dkv_fp32=1", "head_dim=192", "head_dim_v=128" },
      168,
      false },
    { "attention_backward",
      { "head_dim=64", "arrivals=1", "dkv_fp32=1", "deterministic=1" },
      128,
      false },
    { "attention_backward",
      { "head_dim=128", "arrivals=1", "dkv_fp32=1", "deterministic=1" },
      128,
      false },
    { "attention_backward",
      { "head_dim=256", "arrivals=1", "dkv_fp32=1", "deterministic=1" },
      168,
      false },
    { "forward_combine", { "dtype=fp16" }, 64, false },
    { "attention_forward",
      { "head_dim=128", "packed=1", "max_logits=1", "softcap=1" },
      255,
      false },
    { "attention_forward", { "head_dim=64", "packed=1", "consumers=3", "tile_n=128" }, 128, false },
    { "attention_forward", { "head_dim=64", "packed=1", "consumers=3", "tile_n=96" }, 128, false },
    { "attention_forward", { "head_dim=96", "packed=1", "consumers=3", "tile_n=80" }, 128, false },
    { "attention_forward", { "head_dim=128", "packed=1", "consumers=2" }, 168, false },
    { "attention_forward", { "head_dim=128", "packed=1", "consumers=2", "tile_n=80" }, 168, false },
    { "attention_forward", { "head_dim=128", "packed=1", "consumers=3", "tile_n=80" }, 128, false },
    { "attention_forward",
      { "head_dim=128", "packed=1", "consumers=3", "tile_n=80", "arrivals=1" },
      128,
      false },
    { "attention_forward", { "head_dim=128", "packed=1", "consumers=1" }, 255, false },
    { "attention_forward", { "head_dim=96", "packed=1", "consumers=2", "tile_n=64" }, 168, false },
    { "attention_forward", { "head_dim=192", "packed=1", "consumers=2", "tile_n=64" }, 168, false },
    { "attention_forward", { "head_dim=192", "packed=1", "consumers=1", "tile_n=64" }, 255, false },
    { "attention_forward", { "head_dim=256", "packed=1", "consumers=2", "tile_n=80" }, 168, false },
    { "attention_forward", { "head_dim=96", "packed=1", "out_fp32=1", "softcap=1" }, 255, false },
    { "attention_forward", { "head_dim=64", "dtype=fp16", "debug=1" }, 168, true },
    { "attention_backward", { "head_dim=64", "dtype=bf16" }, 128, false },
    { "attention_backward", { "head_dim=64", "dtype=fp16" }, 128, false },
    { "attention_backward", { "head_dim=64", "dkv_fp32=1" }, 128, false },
    { "attention_backward", { "head_dim=128", "dtype=bf16" }, 128, false },
    { "attention_backward", { "head_dim=128", "dtype=fp16" }, 128, false },
    { "attention_backward", { "head_dim=128", "dtype=bf16", "dkv_fp32=1" }, 128, false },
    { "attention_backward", { "head_dim=128", "dtype=fp16", "dkv_fp32=1" }, 128, false },
    { "attention_backward", { "head_dim=128", "softcap=1" }, 128, false },
    { "attention_backward", { "head_dim=128", "softcap=1", "dkv_fp32=1" }, 128, false },
    { "attention_backward", { "head_dim=96", "dtype=bf16" }, 128, false },
    { "attention_backward", { "head_dim=96", "dtype=fp16", "dkv_fp32=1" }, 128, false },
    { "attention_backward", { "head_dim=96", "softcap=1", "dkv_fp32=1" }, 128, false },
    { "attention_backward", { "head_dim=96", "head_dim_v=64", "softcap=1" }, 128, false },
    { "attention_backward", { "head_dim=96", "softcap=1", "dtype=fp16" }, 128, false },
    { "attention_backward", { "head_dim=72", "softcap=1", "dtype=fp16" }, 128, false },
    { "attention_backward", { "head_dim=128", "head_dim_v=96", "softcap=1" }, 128, false },
    { "attention_backward", { "head_dim=128", "head_dim_v=64" }, 128, false },
    { "attention_backward", { "head_dim=40", "head_dim_v=24", "dtype=fp16" }, 128, false },
    { "attention_backward", { "head_dim=120", "softcap=1", "dkv_fp32=1" }, 128, false },
    { "attention_backward", { "head_dim=256", "dtype=bf16" }, 168, false },
    { "attention_backward", { "head_dim=256", "dtype=fp16", "dkv_fp32=1" }, 168, false },
    { "attention_backward", { "head_dim=256", "softcap=1", "dkv_fp32=1" }, 168, false },
    { "attention_backward", { "head_dim=192", "dtype=bf16" }, 168, false },
    { "attention_backward", { "head_dim=192", "head_dim_v=128", "dtype=fp16" }, 168, false },
    { "attention_backward", { "head_dim=136", "softcap=1", "dkv_fp32=1" }, 168, false },
    { "attention_backward", { "head_dim=40", "head_dim_v=256", "softcap=1" }, 168, false },
    { "attention_backward", { "head_dim=256", "head_dim_v=64", "dtype=bf16" }, 168, false },
    { "attention_backward", { "head_dim=40", "head_dim_v=256" }, 168, false },
    { "attention_backward", { "head_dim=192", "head_dim_v=256" }, 168, false },
    { "attention_backward", { "head_dim=256", "head_dim_v=128" }, 168, false },
    { "attention_backward", { "head_dim=96", "head_dim_v=64" }, 128, false },
    { "attention_backward", { "deterministic=1", "head_dim=96" }, 128, false },
    { "attention_backward", { "deterministic=1", "head_dim=128", "dtype=bf16" }, 128, false },
    { "attention_backward", { "deterministic=1", "head_dim=128", "dkv_fp32=1" }, 128, false },
    { "attention_backward", { "deterministic=1", "head_dim=128", "softcap=1" }, 128, false },
    { "attention_backward", { "cluster=2", "head_dim=128", "dtype=bf16" }, 128, false },
    { "attention_backward", { "cluster=2", "head_dim=128", "dkv_fp32=1" }, 128, false },
    { "attention_backward", { "cluster=2", "head_dim=104", "softcap=1" }, 128, false },
    { "attention_backward",
      { "cluster=2", "head_dim=128", "deterministic=1", "dtype=fp16" },
      128,
      false },
    { "attention_backward",
      { "cluster=2", "head_dim=128", "head_dim_v=64", "deterministic=1" },
      128,
      false },
    { "attention_backward", { "deterministic=1", "head_dim=64", "dtype=fp16" }, 128, false },
    { "attention_backward", { "deterministic=1", "head_dim=64", "softcap=1" }, 128, false },
    { "attention_backward",
      { "deterministic=1", "head_dim=96", "softcap=1", "dtype=fp16" },
      128,
      false },
    { "attention_backward", { "deterministic=1", "head_dim=192", "softcap=1" }, 168, false },
    { "attention_backward", { "deterministic=1", "head_dim=256", "dtype=bf16" }, 168, false },
    { "backward_prepare", { "head_dim=64", "dtype=bf16" }, 128, false },
    { "backward_prepare", { "head_dim=96", "dtype=fp16" }, 128, false },
    { "backward_prepare", { "head_dim=256", "head_dim_v=200", "out_fp32=1" }, 128, false },
    { "backward_prepare", { "head_dim=64", "dtype=fp16", "out_fp32=1" }, 128, false },
    { "backward_prepare", { "head_dim=128", "dtype=bf16", "out_fp32=1" }, 128, false },
    { "backward_prepare", { "head_dim=128", "dtype=fp16" }, 128, false },
    { "backward_finish", { "head_dim=64", "gradient=bf16" }, 128, false },
    { "backward_finish", { "head_dim=96", "gradient=fp16" }, 128, false },
    { "backward_finish", { "head_dim=192", "head_dim_v=128", "gradient=fp32" }, 128, false },
    { "backward_finish", { "head_dim=40", "head_dim_v=256", "gradient=bf16" }, 128, false },
    { "backward_finish", { "head_dim=64", "gradient=fp16" }, 128, false },
    { "backward_finish", { "head_dim=64", "gradient=fp32" }, 128, false },
    { "backward_finish", { "head_dim=128", "gradient=bf16" }, 128, false },
    { "backward_finish", { "head_dim=128", "gradient=fp16" }, 128, false },
    { "backward_finish", { "head_dim=128", "gradient=fp32" }, 128, false },
    { "row_copy", { "runs=0" }, 40, false },
    { "row_copy", { "runs=1" }, 40, false },
    { "row_reduce", { "output=bf16" }, 64, false },
    { "row_reduce", { "output=fp16" }, 64, false },
    { "row_reduce", { "op=avg", "output=fp32" }, 64, false },
    { "row_reduce", { "input=bf16", "output=bf16", "op=avg" }, 80, false },
    { "row_reduce", { "input=fp16", "output=fp32" }, 80, false },
    { "row_reduce", { "received=bf16", "output=bf16" }, 64, false },
    { "row_reduce", { "received=fp16", "output=fp32" }, 64, false },
    { "row_reduce", { "op=max", "output=fp32" }, 64, false },
    { "row_reduce", { "op=lse", "output=fp32" }, 80, false },
    { "row_reduce", { "op=lse", "input=fp16", "output=fp32" }, 128, false },
    { "row_reduce", { "op=lse", "input=bf16", "output=bf16" }, 128, false },
    /* The widest tiles that the register model lets through. */
    { "attention_forward", { "head_dim=64", "consumers=2", "tile_n=192" }, 168, false },
    { "attention_forward", { "head_dim=128", "consumers=1", "tile_n=192" }, 255, false },
    { "attention_forward", { "head_dim=128", "consumers=2", "tile_n=176" }, 168, false },
    { "attention_forward", { "head_dim=128", "consumers=3", "tile_n=80" }, 128, false },
    { "attention_forward", { "consumers=2", "tile_n=160", "softcap=1" }, 168, false },
    { "attention_forward",
      { "consumers=2", "tile_n=160", "staged=1", "max_logits=1" },
      168,
      false },
    { "attention_forward", { "head_dim=96", "consumers=2", "tile_n=176" }, 168, false },
    { "attention_forward", { "head_dim=192", "head_dim_v=96", "tile_n=144" }, 168, false },
    { "attention_forward", { "consumers=3", "head_dim_v=96", "tile_n=96" }, 128, false },
};
enum { CORNERS = sizeof corners / sizeof *corners };

static ffa_compile_request request_of(int corner)
{
    ffa_compile_request request = FFA_COMPILE_REQUEST_INIT;

    request.template_name = corners[corner].template_name;
    request.settings = corners[corner].settings;
    while (request.setting_count < 5 && corners[corner].settings[request.setting_count])
        request.setting_count++;
    request.flags = FFA_COMPILE_FORCE;
    request.arch = "sm_90a";
    return request;
}

static ffa_context *open_context(void)
{
    ffa_error err = { FFA_OK, 0, "" };
    ffa_context *context;

    ck_assert_msg(ffa_open(&context, FFA_DEVICE_CPU, NULL, &err) == FFA_OK, "%s", err.message);
    return context;
}

START_TEST(corner_is_clean)
{
    ffa_compile_request request = request_of(_i);
    ffa_kernel_info info = FFA_KERNEL_INFO_INIT;
    ffa_context *context = open_context();
    ffa_error err = { FFA_OK, 0, "" };
    ffa_compiled *compiled;

    ck_assert_msg(ffa_compile(&compiled, context, &request, &err) == FFA_OK, "%s", err.message);
    ck_assert_int_eq(ffa_compiled_info(compiled, &info, NULL), FFA_OK);
    printf(
        "%s %s %s %s %s: %d registers, %d spill bytes, %d advisories, %d bytes shared, %.0f ms\n",
        request.template_name, request.settings[0], request.settings[1], request.settings[2],
        request.settings[3] ? request.settings[3] : "", (int)info.registers, (int)info.spill_bytes,
        (int)info.advisory_count, (int)info.shared_bytes, (double)info.compile_us / 1e3);
    ck_assert_msg(info.registers >= 0 && info.spill_bytes >= 0, "ptxas reported nothing:\n%s",
                  ffa_compiled_log(compiled));
    ck_assert_int_le(info.registers, corners[_i].registers_max);
    ck_assert_msg(info.spill_bytes == 0, "%s", ffa_compiled_log(compiled));
    if (!corners[_i].calls)
        ck_assert_msg(info.advisory_count == 0, "%s", ffa_compiled_log(compiled));
    ck_assert_int_le(info.shared_bytes, SM90_SHARED_BYTES_MAX);
    ffa_compiled_destroy(compiled);
    ffa_close(context);
}
END_TEST

/* Every template has corners above. */
START_TEST(no_template_is_left_out)
{
    for (int32_t i = 0; i < ffa_template_count(); i++) {
        bool found = false;

        for (int c = 0; c < CORNERS; c++)
            found = found || strcmp(corners[c].template_name, ffa_template_name(i)) == 0;
        ck_assert_msg(found, "'%s' has no corners", ffa_template_name(i));
    }
}
END_TEST

START_TEST(nvcc_line_compiles)
{
    ffa_compile_request request = request_of(0);
    ffa_context *context = open_context();
    char *folder = tmpdir_make();
    char *output = tmpdir_path(folder, "out.cubin");
    char *command, *bytes;
    size_t count;

    ck_assert_int_eq(ffa_compile_command(context, &request, FFA_TEST_SOURCE_DIR "/templates",
                                         output, &command, NULL),
                     FFA_OK);
    ck_assert_msg(system(command) == 0, "%s", command);
    bytes = tmpdir_read(output, &count);
    ck_assert_uint_gt(count, 1000);
    ck_assert_mem_eq(bytes,
                     "\x7f"
                     "ELF",
                     4);
    free(bytes);
    ffa_free(command);
    ffa_close(context);
    free(output);
    tmpdir_remove(folder);
}
END_TEST

int main(void)
{
    Suite *suite;
    TCase *tc;

    if (!watch_has_nvrtc())
        return 77;
    suite = suite_create("templates");
    tc = tcase_create("templates");
    tcase_add_loop_test(tc, corner_is_clean, 0, CORNERS);
    tcase_add_test(tc, no_template_is_left_out);
    if (system("nvcc --version > /dev/null 2>&1") == 0)
        tcase_add_test(tc, nvcc_line_compiles);
    else
        printf("skipped: nvcc_line_compiles: there is no nvcc\n");
    tcase_set_timeout(tc, 120);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
