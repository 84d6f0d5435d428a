/* SPDX-License-Identifier: Apache-2.0
 *
 * The structs of the first version, written down once more: a program compiled against them must
 * go on working. A field that moved, or one that became necessary, fails here.
 *
 * Structs grow at their end only: a new field changes nothing in this file.
 */
#include <ffa/ffa.h>
#include <stdio.h>
#include <string.h>

/* ---- the layout: (struct, field, offset) and (struct, size then) ---- */

#define AT(type, field, offset) _Static_assert(offsetof(type, field) == (offset), #type "." #field)
#define SIZE(type, bytes) _Static_assert(sizeof(type) >= (bytes), #type)

AT(ffa_context_opts, struct_size, 0);
AT(ffa_context_opts, flags, 4);
AT(ffa_context_opts, cache_path, 8);
AT(ffa_context_opts, cache_bytes_max, 16);
AT(ffa_context_opts, templates_dir, 24);
AT(ffa_context_opts, nvrtc_path, 32);
AT(ffa_context_opts, nccl_path, 40);
AT(ffa_context_opts, log, 48);
AT(ffa_context_opts, log_user, 56);
AT(ffa_context_opts, cpu_threads, 64);
SIZE(ffa_context_opts, 72);

AT(ffa_compile_request, flags, 4);
AT(ffa_compile_request, template_name, 8);
AT(ffa_compile_request, settings, 16);
AT(ffa_compile_request, setting_count, 24);
AT(ffa_compile_request, arch, 32);
SIZE(ffa_compile_request, 40);

AT(ffa_attention_spec, dtype, 4);
AT(ffa_attention_spec, head_dim, 8);
AT(ffa_attention_spec, flags, 12);
AT(ffa_attention_spec, tile_m, 16);
AT(ffa_attention_spec, tile_n, 20);
SIZE(ffa_attention_spec, 24);

AT(ffa_forward_args, heads_q, 4);
AT(ffa_forward_args, heads_kv, 8);
AT(ffa_forward_args, sm_margin, 12);
AT(ffa_forward_args, softmax_scale, 16);
AT(ffa_forward_args, softcap, 24);
AT(ffa_forward_args, q, 32);
AT(ffa_forward_args, k, 96);
AT(ffa_forward_args, v, 160);
AT(ffa_forward_args, out, 224);
AT(ffa_forward_args, lse, 288);
AT(ffa_forward_args, sink, 352);
AT(ffa_forward_args, sink_count, 360);
SIZE(ffa_forward_args, 368);

AT(ffa_kernel_info, registers, 4);
AT(ffa_kernel_info, cubin_bytes, 24);
AT(ffa_kernel_info, key, 52);
AT(ffa_context_info, device, 4);
AT(ffa_context_info, device_name, 16);
AT(ffa_plan_info, tile_m, 4);
AT(ffa_plan_info, upload_bytes, 48);

AT(ffa_mask_report, overlap_head, 4);
AT(ffa_mask_report, area, 24);
SIZE(ffa_mask_report, 64);
AT(ffa_dense_mask, cells, 24);
SIZE(ffa_dense_mask, 48);
AT(ffa_block_mask, kv, 40);
AT(ffa_block_mask, full, 88);
AT(ffa_block_mask, mask_mod, 136);
SIZE(ffa_block_mask, 152);

AT(ffa_dispatch_opts, algorithm, 4);
AT(ffa_dispatch_opts, chunk_tokens, 8);
AT(ffa_dispatch_opts, cu_chunks, 16);
AT(ffa_dispatch_opts, chunk_count, 24);
AT(ffa_dispatch_opts, slack_permille, 32);
AT(ffa_dispatch_opts, flags, 36);
AT(ffa_dispatch_opts, swap_max, 40);
SIZE(ffa_dispatch_opts, 48);
AT(ffa_parallel_plan_opts, tile_m, 4);
AT(ffa_parallel_plan_opts, stage_rows_min, 48);
AT(ffa_parallel_plan_opts, model, 56);
SIZE(ffa_parallel_plan_opts, 128);
AT(ffa_parallel_plan_info, tokens_q, 32);
AT(ffa_parallel_plan_info, backward_bytes, 184);
AT(ffa_parallel_plan_info, model, 192);
AT(ffa_dispatch_report, total, 16);
AT(ffa_dispatch_report, most, 104);
AT(ffa_dispatch_report, load_imbalance, 192);
AT(ffa_dispatch_load, tokens, 8);
_Static_assert(sizeof(ffa_dispatch_load) == 88, "the report has two of them");
AT(ffa_dispatch_chunk, rank, 4);
AT(ffa_dispatch_chunk, area, 40);
SIZE(ffa_dispatch_chunk, 48);
AT(ffa_parallel_rank, forward_stages, 4);
AT(ffa_parallel_rank, tokens_q, 16);
SIZE(ffa_parallel_rank, 72);
AT(ffa_parallel_stage, rows, 8);
SIZE(ffa_parallel_stage, 72);
AT(ffa_parallel_receive, source, 4);
AT(ffa_parallel_receive, rows, 24);
AT(ffa_parallel_cache_counts, hits, 8);
AT(ffa_parallel_cache_counts, entries, 32);
AT(ffa_group_copy, rank, 4);
AT(ffa_group_copy, rows, 24);
AT(ffa_group_size, input_rows, 8);
AT(ffa_group_size, received_rows, 32);
AT(ffa_sim_result, method, 4);
AT(ffa_sim_result, forward, 16);
AT(ffa_sim_result, why_not, 80);

/* No struct_size in these: they must not change at all. */
_Static_assert(sizeof(ffa_slice) == 40, "ffa_slice");
_Static_assert(sizeof(ffa_tensor) == 64, "ffa_tensor");
AT(ffa_tensor, head_stride, 16);
AT(ffa_tensor, tokens, 24);
AT(ffa_tensor, batch, 48);
AT(ffa_tensor, dtype, 56);
_Static_assert(sizeof(ffa_dltensor) == 48, "ffa_dltensor");
_Static_assert(sizeof(ffa_mask_shape) == 16, "ffa_mask_shape");
_Static_assert(sizeof(ffa_topology) == 8, "ffa_topology");
_Static_assert(sizeof(ffa_dispatch_mask) == 16, "ffa_dispatch_mask");
_Static_assert(sizeof(ffa_parallel_model) == 72, "ffa_parallel_model");
_Static_assert(sizeof(ffa_sim_pass) == 24, "ffa_sim_pass");
_Static_assert(sizeof(ffa_rows) == 32, "ffa_rows");
_Static_assert(sizeof(ffa_group_lists) == 56, "ffa_group_lists");
_Static_assert(sizeof(ffa_group_format) == 16, "ffa_group_format");
_Static_assert(sizeof(ffa_error) == 504, "ffa_error");

/* ---- the behaviour ---- */

static int failures;

static void expect(int holds, const char *what)
{
    if (holds)
        return;
    (void)printf("failed: %s\n", what);
    failures++;
}

/* Options as a first program had them, and one that has learnt more than the library knows. */
static void open_with(uint32_t struct_size, unsigned char tail, ffa_status want, const char *what)
{
    union {
        ffa_context_opts opts;
        unsigned char bytes[sizeof(ffa_context_opts) + 16];
    } given;
    ffa_context *context = NULL;
    ffa_error err = { FFA_OK, 0, "" };

    memset(&given, 0, sizeof given);
    given.opts.struct_size = struct_size;
    given.bytes[sizeof(ffa_context_opts) + 8] = tail;
    expect(ffa_open(&context, FFA_DEVICE_CPU, &given.opts, &err) == want, what);
    expect((context != NULL) == (want == FFA_OK), what);
    expect((err.message[0] != '\0') == (want != FFA_OK), what);
    ffa_close(context);
}

/* An older program's info struct ends after cpu_threads: what lies behind it is not touched. */
static void info_of_an_older_program(void)
{
    union {
        ffa_context_info info;
        unsigned char bytes[sizeof(ffa_context_info)];
    } got;
    ffa_context *context = NULL;

    memset(&got, 0xab, sizeof got);
    got.info.struct_size = 16;
    if (ffa_open(&context, FFA_DEVICE_CPU, NULL, NULL) != FFA_OK) {
        expect(0, "open with all defaults");
        return;
    }
    expect(ffa_context_info_get(context, &got.info, NULL) == FFA_OK, "info of an older size");
    expect(got.info.struct_size == 16, "struct_size is the caller's");
    expect(got.info.device == FFA_DEVICE_CPU, "fields the caller has are filled");
    expect(got.bytes[16] == 0xab, "memory behind the caller's struct is untouched");
    ffa_close(context);
}

int main(void)
{
    open_with(72, 0, FFA_OK, "the first version's size");
    open_with(8, 0, FFA_OK, "tag and flags only");
    open_with((uint32_t)sizeof(ffa_context_opts) + 16, 0, FFA_OK,
              "a newer program, nothing new set");
    open_with((uint32_t)sizeof(ffa_context_opts) + 16, 1, FFA_UNSUPPORTED, "a newer option set");
    open_with(0, 0, FFA_INVALID, "the tag was never set");
    info_of_an_older_program();
    return failures ? 1 : 0;
}
