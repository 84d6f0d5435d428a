/* SPDX-License-Identifier: Apache-2.0
 *
 * The public API on the CPU backend, as a caller may misuse it: every NULL, every argument out of
 * its range, structs of older and newer headers, no memory. A failure has a status and a sentence,
 * leaves outputs alone, and the next call works. Then the answers, against the fp64 oracle.
 */
#include "attention/attention.h"
#include "oracle/oracle.h"
#include "support/attention_case.h"
#include "support/mask_cases.h"
#include "support/suite.h"

#include <check.h>
#include <ffa/ffa.h>
#include <math.h>
#include <stdio.h>

/* ---- one of everything ---- */

enum { ROWS = 40, KEYS = 50, HEADS_Q = 4, HEADS_KV = 2, DIM = 16 };
static const struct attention_shape common_shape = {
    { ROWS, KEYS }, FFA_BF16, HEADS_Q, HEADS_KV, DIM, LAYOUT_TOKENS,
};
static const int64_t out_bytes = (int64_t)ROWS * HEADS_Q * DIM * 2;

static ffa_context *context;
static ffa_mask *mask;
static ffa_kernels *kernels;
static ffa_plan *plan;
static struct attention_case test;
static ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;

static void must(ffa_status rc, const ffa_error *err)
{
    ck_assert_msg(rc == FFA_OK, "%s: %s", ffa_status_text(rc), err->message);
}

static void setup(void)
{
    struct rng rng = { 3 };
    ffa_error err = { FFA_OK, 0, "" };

    must(ffa_open(&context, FFA_DEVICE_CPU, NULL, &err), &err);
    must(ffa_mask_causal(&mask, &common_shape.mask, &err), &err);
    spec.dtype = FFA_BF16;
    spec.head_dim = DIM;
    must(ffa_kernels_create(&kernels, context, &spec, &err), &err);
    must(ffa_plan_create(&plan, kernels, mask, &err), &err);
    attention_case_init(&test, &common_shape, &rng);
    memset(test.memory[3], 0xa5, (size_t)out_bytes);
}

static void teardown(void)
{
    attention_case_finish(&test);
    ffa_plan_destroy(plan);
    ffa_kernels_destroy(kernels);
    ffa_mask_destroy(mask);
    ffa_close(context);
}

static uint64_t forward_calls(void)
{
    ffa_context_stats stats = FFA_CONTEXT_STATS_INIT;

    ck_assert_int_eq(ffa_context_stats_get(context, &stats, NULL), FFA_OK);
    return stats.forward_calls;
}

static void check_outputs_untouched(const char *name)
{
    const unsigned char *out = test.memory[3];
    const float *lse = test.memory[4];

    for (int64_t i = 0; i < out_bytes; i++)
        ck_assert_msg(out[i] == 0xa5, "%s: out was written", name);
    for (int64_t i = 0; i < ROWS * HEADS_Q; i++)
        ck_assert_msg(lse[i] == 0, "%s: lse was written", name);
}

/* ---- NULL ---- */

/* What calls write their results to; each is set before the call to something that is not NULL. */
static struct {
    ffa_context *context;
    ffa_mask *mask;
    ffa_kernels *kernels;
    ffa_plan *plan;
    ffa_compiled *compiled;
    ffa_cache *cache;
    void *memory;
    char *text;
} got;
static int64_t bytes;
static float ms;

static const ffa_mask_shape shape = { ROWS, KEYS };
static const ffa_window window = { 3, 0 };
static const int64_t bounds[] = { 0, ROWS };
static const ffa_documents docs = { .cu_q = bounds, .document_count = 1 };
static const ffa_documents no_bounds = { .document_count = 1 };
static const ffa_block_size block = { 16, 16 };
static const uint8_t keep[12] = { 1 };
static ffa_mask_report report = FFA_MASK_REPORT_INIT;
static ffa_cache_verdict verdict = FFA_CACHE_VERDICT_INIT;
static ffa_context_info context_info = FFA_CONTEXT_INFO_INIT;
static ffa_context_stats context_stats = FFA_CONTEXT_STATS_INIT;
static ffa_kernel_info kernel_info = FFA_KERNEL_INFO_INIT;
static ffa_plan_info plan_info = FFA_PLAN_INFO_INIT;
static ffa_cache_stats cache_stats = FFA_CACHE_STATS_INIT;
static ffa_compile_request request = FFA_COMPILE_REQUEST_INIT;

static int visit(void *user, const ffa_cache_entry *entry)
{
    (void)user;
    (void)entry;
    return 0;
}

/* The call fails as FFA_INVALID and says so; what it was to set is NULL, or as it was. */
#define BAD(call, says)                                                                            \
    do {                                                                                           \
        ffa_error err = { FFA_OK, 0, "" }, *const e = &err;                                        \
                                                                                                   \
        memset(&got, 0xee, sizeof got);                                                            \
        check_failure(#call, call, e, says);                                                       \
        check_got(#call);                                                                          \
    } while (0)

static void check_failure(const char *name, ffa_status rc, const ffa_error *err, const char *says)
{
    ck_assert_msg(rc == FFA_INVALID, "%s: %s", name, ffa_status_text(rc));
    ck_assert_msg(err->status == rc, "%s: the error's status is %d", name, (int)err->status);
    ck_assert_msg(strstr(err->message, says), "%s: '%s'", name, err->message);
}

/* Nothing half made is handed out. */
static void check_got(const char *name)
{
    void *all[8], *untouched;

    _Static_assert(sizeof all == sizeof got, "a pointer each");
    memcpy(all, &got, sizeof all);
    memset(&untouched, 0xee, sizeof untouched);
    for (int i = 0; i < 8; i++)
        ck_assert_msg(!all[i] || all[i] == untouched, "%s: result %d is %p", name, i, all[i]);
}

START_TEST(null_is_named)
{
    BAD(ffa_open(NULL, FFA_DEVICE_CPU, NULL, e), "out is NULL");
    BAD(ffa_context_info_get(NULL, &context_info, e), "context is NULL");
    BAD(ffa_context_info_get(context, NULL, e), "info is NULL");
    BAD(ffa_context_open_compiler(NULL, e), "context is NULL");
    BAD(ffa_context_stats_get(NULL, &context_stats, e), "context is NULL");
    BAD(ffa_context_stats_get(context, NULL, e), "stats is NULL");
    BAD(ffa_compile(NULL, context, &request, e), "out is NULL");
    BAD(ffa_compile(&got.compiled, NULL, &request, e), "context is NULL");
    BAD(ffa_compile(&got.compiled, context, NULL, e), "request is NULL");
    BAD(ffa_compile(&got.compiled, context, &request, e), "template_name is NULL");
    BAD(ffa_compiled_info(NULL, &kernel_info, e), "compiled is NULL");
    BAD(ffa_compile_command(context, &request, "t", "o", NULL, e), "out is NULL");
    BAD(ffa_compile_command(NULL, &request, "t", "o", &got.text, e), "context is NULL");
    BAD(ffa_compile_command(context, NULL, "t", "o", &got.text, e), "request is NULL");
    BAD(ffa_compile_command(context, &request, NULL, "o", &got.text, e), "templates_dir is NULL");
    BAD(ffa_compile_command(context, &request, "t", NULL, &got.text, e), "output is NULL");
    BAD(ffa_kernels_create(NULL, context, &spec, e), "out is NULL");
    BAD(ffa_kernels_create(&got.kernels, NULL, &spec, e), "context is NULL");
    BAD(ffa_kernels_create(&got.kernels, context, NULL, e), "spec is NULL");
    BAD(ffa_kernels_info(NULL, &kernel_info, e), "kernels is NULL");
    BAD(ffa_kernels_info(kernels, NULL, e), "info is NULL");
    BAD(ffa_plan_create(NULL, kernels, mask, e), "out is NULL");
    BAD(ffa_plan_create(&got.plan, NULL, mask, e), "kernels is NULL");
    BAD(ffa_plan_create(&got.plan, kernels, NULL, e), "mask is NULL");
    BAD(ffa_plan_create_with(NULL, kernels, mask, NULL, e), "out is NULL");
    BAD(ffa_plan_info_get(NULL, &plan_info, e), "plan is NULL");
    BAD(ffa_plan_info_get(plan, NULL, e), "info is NULL");
    BAD(ffa_plan_kernel(NULL, kernels, &kernel_info, e), "plan is NULL");
    BAD(ffa_plan_kernel(plan, NULL, &kernel_info, e), "kernels is NULL");
    BAD(ffa_plan_kernel(plan, kernels, NULL, e), "info is NULL");
    BAD(ffa_plan_upload(NULL, kernels, NULL, NULL, e), "plan is NULL");
    BAD(ffa_plan_upload(plan, NULL, NULL, NULL, e), "kernels is NULL");
    BAD(ffa_workspace_bytes(NULL, plan, &bytes, e), "kernels is NULL");
    BAD(ffa_workspace_bytes(kernels, NULL, &bytes, e), "plan is NULL");
    BAD(ffa_workspace_bytes(kernels, plan, NULL, e), "bytes is NULL");
    BAD(ffa_forward(NULL, plan, &test.args, NULL, e), "kernels is NULL");
    BAD(ffa_forward(kernels, NULL, &test.args, NULL, e), "plan is NULL");
    BAD(ffa_forward(kernels, plan, NULL, NULL, e), "args is NULL");
    BAD(ffa_attention(NULL, mask, &spec, &test.args, NULL, e), "context is NULL");
    BAD(ffa_attention(context, NULL, &spec, &test.args, NULL, e), "mask is NULL");
    BAD(ffa_attention(context, mask, NULL, &test.args, NULL, e), "spec is NULL");
    BAD(ffa_attention(context, mask, &spec, NULL, NULL, e), "args is NULL");
    BAD(ffa_device_alloc(NULL, context, 1, e), "out is NULL");
    BAD(ffa_device_alloc(&got.memory, NULL, 1, e), "context is NULL");
    BAD(ffa_device_alloc(&got.memory, context, -1, e), "bytes is -1, below 0");
    BAD(ffa_device_copy(NULL, &ms, &ms, 1, FFA_TO_DEVICE, e), "context is NULL");
    BAD(ffa_device_copy(context, NULL, &ms, 1, FFA_TO_DEVICE, e), "dst is NULL");
    BAD(ffa_device_copy(context, &ms, NULL, 1, FFA_FROM_DEVICE, e), "src is NULL");
    BAD(ffa_device_copy(context, &ms, &ms, -5, FFA_TO_DEVICE, e), "bytes is -5, below 0");
    BAD(ffa_device_copy(context, &ms, &ms, 1, (ffa_copy_direction)2, e),
        "direction is 2, not 0 or 1");
    BAD(ffa_device_fill(NULL, &ms, 0, 1, e), "context is NULL");
    BAD(ffa_device_fill(context, NULL, 0, 1, e), "dst is NULL");
    BAD(ffa_device_fill(context, &ms, 256, 1, e), "byte is 256, not in [0, 255]");
    BAD(ffa_device_fill(context, &ms, -1, 1, e), "byte is -1, not in [0, 255]");
    BAD(ffa_device_fill(context, &ms, 0, -1, e), "bytes is -1, below 0");
    BAD(ffa_device_synchronize(NULL, e), "context is NULL");
    BAD(ffa_device_time_begin(NULL, NULL, e), "context is NULL");
    BAD(ffa_device_time_end(NULL, NULL, &ms, e), "context is NULL");
    BAD(ffa_device_time_end(context, NULL, NULL, e), "ms is NULL");
    BAD(ffa_device_time_end(context, NULL, &ms, e), "the stopwatch was not started");
    BAD(ffa_mask_create(NULL, &shape, NULL, 0, e), "out is NULL");
    BAD(ffa_mask_create(&got.mask, NULL, NULL, 0, e), "shape is NULL");
    BAD(ffa_mask_create(&got.mask, &shape, NULL, 1, e), "slices is NULL, but their count is 1");
    BAD(ffa_mask_create_per_head(NULL, &shape, &(ffa_slice_list){ NULL, 0 }, 1, e), "out is NULL");
    BAD(ffa_mask_create_per_head(&got.mask, NULL, &(ffa_slice_list){ NULL, 0 }, 1, e),
        "shape is NULL");
    BAD(ffa_mask_create_per_head(&got.mask, &shape, NULL, 1, e), "lists is NULL");
    BAD(ffa_mask_create_per_head(&got.mask, &shape, &(ffa_slice_list){ NULL, 2 }, 1, e),
        "slices is NULL");
    BAD(ffa_mask_full(NULL, &shape, e), "out is NULL");
    BAD(ffa_mask_full(&got.mask, NULL, e), "shape is NULL");
    BAD(ffa_mask_causal(NULL, &shape, e), "out is NULL");
    BAD(ffa_mask_causal(&got.mask, NULL, e), "shape is NULL");
    BAD(ffa_mask_window(NULL, &shape, &window, e), "out is NULL");
    BAD(ffa_mask_window(&got.mask, NULL, &window, e), "shape is NULL");
    BAD(ffa_mask_window(&got.mask, &shape, NULL, e), "window is NULL");
    BAD(ffa_mask_varlen_full(NULL, &docs, e), "out is NULL");
    BAD(ffa_mask_varlen_full(&got.mask, NULL, e), "docs is NULL");
    BAD(ffa_mask_varlen_full(&got.mask, &no_bounds, e), "cu_q is NULL");
    BAD(ffa_mask_varlen_causal(NULL, &docs, e), "out is NULL");
    BAD(ffa_mask_varlen_causal(&got.mask, NULL, e), "docs is NULL");
    BAD(ffa_mask_varlen_window(NULL, &docs, &window, 0, e), "out is NULL");
    BAD(ffa_mask_varlen_window(&got.mask, NULL, &window, 0, e), "docs is NULL");
    BAD(ffa_mask_varlen_window(&got.mask, &docs, NULL, 0, e), "window is NULL");
    BAD(ffa_mask_block_causal(NULL, &docs, 4, e), "out is NULL");
    BAD(ffa_mask_block_causal(&got.mask, NULL, 4, e), "docs is NULL");
    BAD(ffa_mask_shared_prefix(NULL, &docs, e), "out is NULL");
    BAD(ffa_mask_shared_prefix(&got.mask, NULL, e), "docs is NULL");
    BAD(ffa_mask_shared_question(NULL, &docs, e), "out is NULL");
    BAD(ffa_mask_shared_question(&got.mask, NULL, e), "docs is NULL");
    BAD(ffa_mask_global_window(NULL, &shape, &window, 2, e), "out is NULL");
    BAD(ffa_mask_global_window(&got.mask, NULL, &window, 2, e), "shape is NULL");
    BAD(ffa_mask_global_window(&got.mask, &shape, NULL, 2, e), "window is NULL");
    BAD(ffa_mask_block_sparse(NULL, &shape, &block, keep, e), "out is NULL");
    BAD(ffa_mask_block_sparse(&got.mask, NULL, &block, keep, e), "shape is NULL");
    BAD(ffa_mask_block_sparse(&got.mask, &shape, NULL, keep, e), "block is NULL");
    BAD(ffa_mask_block_sparse(&got.mask, &shape, &block, NULL, e), "keep is NULL");
    BAD(ffa_mask_block_sparse_variable(NULL, bounds, 1, bounds, 1, keep, e), "out is NULL");
    BAD(ffa_mask_block_sparse_variable(&got.mask, NULL, 1, bounds, 1, keep, e), "cu_q is NULL");
    BAD(ffa_mask_block_sparse_variable(&got.mask, bounds, 1, NULL, 1, keep, e), "cu_k is NULL");
    BAD(ffa_mask_block_sparse_variable(&got.mask, bounds, 1, bounds, 1, NULL, e), "keep is NULL");
    BAD(ffa_mask_block_topk(NULL, &shape, &block, (const int32_t[3]){ 0 }, 1, e), "out is NULL");
    BAD(ffa_mask_block_topk(&got.mask, NULL, &block, (const int32_t[3]){ 0 }, 1, e),
        "shape is NULL");
    BAD(ffa_mask_block_topk(&got.mask, &shape, NULL, (const int32_t[3]){ 0 }, 1, e),
        "block is NULL");
    BAD(ffa_mask_block_topk(&got.mask, &shape, &block, NULL, 1, e), "index is NULL");
    BAD(ffa_mask_parse(NULL, "full:4", e), "out is NULL");
    BAD(ffa_mask_parse(&got.mask, NULL, e), "text is NULL");
    BAD(ffa_mask_parse_json(NULL, "{}", 2, e), "out is NULL");
    BAD(ffa_mask_parse_json(&got.mask, NULL, 2, e), "text is NULL");
    BAD(ffa_mask_to_json(NULL, &got.text, e), "mask is NULL");
    BAD(ffa_mask_to_json(mask, NULL, e), "out is NULL");
    BAD(ffa_mask_check(NULL, &report, e), "mask is NULL");
    BAD(ffa_mask_check(mask, NULL, e), "report is NULL");
    BAD(ffa_mask_svg(NULL, 0, 0, &got.text, e), "mask is NULL");
    BAD(ffa_mask_svg(mask, 0, 0, NULL, e), "out is NULL");
    BAD(ffa_mask_text_picture(NULL, 0, 0, &got.text, e), "mask is NULL");
    BAD(ffa_mask_text_picture(mask, 0, 0, NULL, e), "out is NULL");
    BAD(ffa_cache_open(NULL, "x", 0, e), "out is NULL");
    BAD(ffa_cache_open(&got.cache, NULL, 0, e), "path is NULL");
    BAD(ffa_cache_stats_get(NULL, &cache_stats, e), "cache is NULL");
    BAD(ffa_cache_list(NULL, NULL, visit, NULL, e), "cache is NULL");
    BAD(ffa_cache_cubin(NULL, "0", NULL, &got.memory, &(size_t){ 1 }, e), "cache is NULL");
    BAD(ffa_cache_cubin(NULL, "0", NULL, NULL, &(size_t){ 1 }, e), "out is NULL");
    BAD(ffa_cache_cubin(NULL, "0", NULL, &got.memory, NULL, e), "bytes is NULL");
    BAD(ffa_cache_verify(NULL, &verdict, visit, NULL, e), "cache is NULL");
    BAD(ffa_cache_remove(NULL, "0", NULL, e), "cache is NULL");
    BAD(ffa_cache_clear(NULL, NULL, e), "cache is NULL");
    check_outputs_untouched("NULL");
    ck_assert_uint_eq(forward_calls(), 0);
}
END_TEST

/* What takes NULL, takes it. And any `err` may be NULL. */
START_TEST(null_is_allowed)
{
    size_t size = 1;
    ffa_spec_row row;

    ffa_close(NULL);
    ffa_mask_destroy(NULL);
    ffa_kernels_destroy(NULL);
    ffa_plan_destroy(NULL);
    ffa_compiled_destroy(NULL);
    ffa_cache_close(NULL);
    ffa_free(NULL);
    ffa_device_free(NULL, NULL);
    ffa_device_free(context, NULL);
    ffa_templates_digest(NULL);
    ck_assert_ptr_null(ffa_compiled_cubin(NULL, &size));
    ck_assert_uint_eq(size, 0);
    ck_assert_ptr_null(ffa_compiled_cubin(NULL, NULL));
    ck_assert_str_eq(ffa_compiled_ptx(NULL), "");
    ck_assert_str_eq(ffa_compiled_log(NULL), "");
    ck_assert_str_eq(ffa_compiled_record(NULL), "");
    ck_assert_int_eq(ffa_mask_seqlen_q(NULL), 0);
    ck_assert_int_eq(ffa_mask_seqlen_k(NULL), 0);
    ck_assert_int_eq(ffa_mask_head_count(NULL), 0);
    ck_assert_int_eq(ffa_mask_area(NULL, 0), 0);
    ck_assert_ptr_null(ffa_mask_slices(NULL, 0).slices);
    ck_assert_ptr_null(ffa_template_name(-1));
    ck_assert_ptr_null(ffa_template_doc(ffa_template_count()));
    ck_assert_int_eq(ffa_template_row(0, 0, NULL), 0);
    ck_assert_int_eq(ffa_template_row(0, 99, &row), 0);
    ck_assert_int_eq(ffa_template_row(-1, 0, &row), 0);
    ck_assert_str_eq(ffa_status_text((ffa_status)99), "unknown status");
    ck_assert_str_eq(ffa_layer_text((ffa_layer)-1), "unknown");
    ck_assert_uint_eq(ffa_dtype_bytes((ffa_dtype)0), 0);
    ck_assert_int_eq(ffa_device_copy(context, NULL, NULL, 0, FFA_TO_DEVICE, NULL), FFA_OK);
    ck_assert_int_eq(ffa_device_fill(context, NULL, 0, 0, NULL), FFA_OK);

    ck_assert_int_eq(ffa_open(NULL, FFA_DEVICE_CPU, NULL, NULL), FFA_INVALID);
    ck_assert_int_eq(ffa_forward(NULL, plan, &test.args, NULL, NULL), FFA_INVALID);
    ck_assert_int_eq(ffa_attention(context, NULL, &spec, &test.args, NULL, NULL), FFA_INVALID);
    ck_assert_int_eq(ffa_mask_parse(&got.mask, "full", NULL), FFA_INVALID);
}
END_TEST

/* ---- arguments of a call ---- */

enum kind { I32, I64, F64, DATA };

static const struct {
    const char *name;
    size_t at;
    enum kind kind;
    int64_t number;
    double real;
    const char *says;
} bad_args[] = {
#define BAD_I32(field, value, says)                                                                \
    {                                                                                              \
#field " " #value, offsetof(ffa_forward_args, field), I32, value, 0, says                  \
    }
#define BAD_I64(field, value, says)                                                                \
    {                                                                                              \
#field " " #value, offsetof(ffa_forward_args, field), I64, value, 0, says                  \
    }
#define BAD_F64(field, value, says)                                                                \
    {                                                                                              \
#field " " #value, offsetof(ffa_forward_args, field), F64, 0, (double)(value), says        \
    }
#define BAD_DATA(field, shift, says)                                                               \
    {                                                                                              \
#field " " #shift, offsetof(ffa_forward_args, field), DATA, shift, 0, says                 \
    }
    BAD_I32(heads_kv, 0, "heads_kv is 0, not in [1, 65536]"),
    BAD_I32(heads_kv, -1, "heads_kv is -1, not in [1, 65536]"),
    BAD_I32(heads_kv, 65537, "heads_kv is 65537, not in [1, 65536]"),
    BAD_I32(heads_kv, INT32_MIN, "heads_kv is -2147483648, not in"),
    BAD_I32(heads_q, 0, "heads_q is 0, not a multiple of heads_kv = 2 in [1, 65536]"),
    BAD_I32(heads_q, 3, "heads_q is 3, not a multiple of heads_kv = 2 in [1, 65536]"),
    BAD_I32(heads_q, 1, "heads_q is 1, not a multiple of heads_kv = 2"),
    BAD_I32(heads_q, -4, "heads_q is -4, not a multiple"),
    BAD_I32(heads_q, 65538, "heads_q is 65538, not a multiple of heads_kv = 2 in [1, 65536]"),
    BAD_F64(softmax_scale, NAN, "softmax_scale is nan, not a finite number above 0"),
    BAD_F64(softmax_scale, -0.5, "softmax_scale is -0.5, not a finite number above 0"),
    BAD_F64(softmax_scale, INFINITY, "softmax_scale is inf, not a finite number above 0"),
    BAD_F64(softmax_scale, -INFINITY, "softmax_scale is -inf, not a finite number above 0"),
    BAD_I32(sm_margin, -1, "sm_margin is -1, not in [0, 2147483647]"),
    BAD_DATA(q.data, -1, "q: data is NULL"),
    BAD_DATA(k.data, -1, "k: data is NULL"),
    BAD_DATA(v.data, -1, "v: data is NULL"),
    BAD_DATA(out.data, -1, "out: data is NULL"),
    BAD_DATA(lse.data, -1, "lse: data is NULL"),
    BAD_DATA(q.data, 1, ", not 2-byte aligned"),
    BAD_DATA(out.data, 1, ", not 2-byte aligned"),
    BAD_DATA(lse.data, 2, ", not 4-byte aligned"),
    BAD_I64(q.token_stride, -8, "q: token_stride is -8, not in [0, 274877906944]"),
    BAD_I64(k.token_stride, -1, "k: token_stride is -1, not in [0, 274877906944] elements"),
    BAD_I64(v.head_stride, -16, "v: head_stride is -16, not in [0, 274877906944] elements"),
    BAD_I64(out.token_stride, -64, "out: token_stride is -64, not in [0, 274877906944] elements"),
    BAD_I64(lse.head_stride, -1, "lse: head_stride is -1, not in [0, 274877906944] elements"),
    BAD_I64(q.head_stride, ((int64_t)1 << 38) + 1, "q: head_stride is 274877906945, not in [0, "),
    BAD_I64(k.token_stride, INT64_MAX, "k: token_stride is 9223372036854775807, not in [0, "),
    BAD_I64(lse.token_stride, INT64_MIN + 1,
            "lse: token_stride is -9223372036854775807, not in [0, "),
    BAD_I64(out.token_stride, DIM, "out: token_stride 16 and head_stride 16 make its rows of 16"),
    BAD_I64(out.token_stride, HEADS_Q *DIM - 1, "rows of 16 overlap"),
    BAD_I64(out.head_stride, DIM - 1, "out: token_stride 64 and head_stride 15 make"),
    BAD_I64(lse.token_stride, HEADS_Q - 1, "lse: token_stride 3 and head_stride 1 make its rows"),
    BAD_I64(lse.head_stride, HEADS_Q, "lse: token_stride 4 and head_stride 4 make its rows"),
};

static void spoil(ffa_forward_args *args, int row)
{
    unsigned char *at = (unsigned char *)args + bad_args[row].at;
    const int32_t number = (int32_t)bad_args[row].number;
    unsigned char *data;

    switch (bad_args[row].kind) {
    case I32:
        memcpy(at, &number, sizeof number);
        break;
    case I64:
        memcpy(at, &bad_args[row].number, sizeof bad_args[row].number);
        break;
    case F64:
        memcpy(at, &bad_args[row].real, sizeof bad_args[row].real);
        break;
    case DATA:
        memcpy(&data, at, sizeof data);
        data = number < 0 ? NULL : data + number;
        memcpy(at, &data, sizeof data);
        break;
    }
}

START_TEST(forward_checks_its_arguments)
{
    const char *name = bad_args[_i].name, *says = bad_args[_i].says;
    ffa_forward_args args = test.args;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_status rc;

    spoil(&args, _i);
    rc = ffa_forward(kernels, plan, &args, NULL, &err);
    check_failure(name, rc, &err, says);
    err = (ffa_error){ FFA_OK, 0, "" };
    rc = ffa_attention(context, mask, &spec, &args, NULL, &err);
    check_failure(name, rc, &err, says);
    check_outputs_untouched(name);
    ck_assert_uint_eq(forward_calls(), 0);
    must(ffa_forward(kernels, plan, &test.args, NULL, &err), &err);
    ck_assert_uint_eq(forward_calls(), 1);
}
END_TEST

START_TEST(forward_checks_what_belongs_together)
{
    const ffa_slice_list lists[3] = { { NULL, 0 }, { NULL, 0 }, { NULL, 0 } };
    const ffa_mask_shape long_keys = { 4, INT32_MAX };
    ffa_attention_spec other_spec = spec;
    ffa_kernels *other_kernels = NULL;
    ffa_forward_args args = test.args;
    ffa_plan *other_plan = NULL;
    ffa_mask *other_mask = NULL;
    ffa_error err = { FFA_OK, 0, "" };

    /* A stream is a GPU's. */
    check_failure("stream", ffa_forward(kernels, plan, &args, (ffa_stream)(uintptr_t)64, &err),
                  &err, "stream is 0x40 on the CPU backend, must be NULL");
    check_failure("stream",
                  ffa_attention(context, mask, &spec, &args, (ffa_stream)(uintptr_t)64, &err), &err,
                  "stream is 0x40 on the CPU backend, must be NULL");

    /* A list of slices for each of three kv heads; the tensors have two. */
    must(ffa_mask_create_per_head(&other_mask, &shape, lists, 3, &err), &err);
    must(ffa_plan_create(&other_plan, kernels, other_mask, &err), &err);
    check_failure("lists", ffa_forward(kernels, other_plan, &args, NULL, &err), &err,
                  "heads_kv is 2, the mask has 3 lists");
    check_failure("lists", ffa_attention(context, other_mask, &spec, &args, NULL, &err), &err,
                  "heads_kv is 2, the mask has 3 lists");
    ffa_plan_destroy(other_plan);
    ffa_mask_destroy(other_mask);

    /* Tiles of other kernels. */
    other_spec.tile_m = 64;
    other_spec.tile_n = 32;
    must(ffa_kernels_create(&other_kernels, context, &other_spec, &err), &err);
    check_failure("tiles", ffa_forward(other_kernels, plan, &args, NULL, &err), &err,
                  "the plan has tiles of 128 x 128, the kernels of 64 x 32");
    ffa_kernels_destroy(other_kernels);

    /* Offsets that no address space holds. */
    must(ffa_mask_create(&other_mask, &long_keys, NULL, 0, &err), &err);
    must(ffa_plan_create(&other_plan, kernels, other_mask, &err), &err);
    args.k.token_stride = (int64_t)1 << 38;
    check_failure("extent", ffa_forward(kernels, other_plan, &args, NULL, &err), &err,
                  "k: token_stride is 274877906944, times 2147483647 over 72057594037927936");
    ffa_plan_destroy(other_plan);
    ffa_mask_destroy(other_mask);

    check_outputs_untouched("what belongs together");
    ck_assert_uint_eq(forward_calls(), 0);
}
END_TEST

/* The stride over one token or one head is never taken, and may be any number. */
START_TEST(strides_over_one_are_ignored)
{
    const struct attention_shape one = { { 1, 1 }, FFA_FP32, 1, 1, 8, LAYOUT_TOKENS };
    ffa_attention_spec one_spec = spec;
    struct attention_case single;
    ffa_mask *one_mask = NULL;
    struct rng rng = { 4 };
    ffa_error err = { FFA_OK, 0, "" };

    one_spec.dtype = FFA_FP32;
    one_spec.head_dim = 8;
    must(ffa_mask_full(&one_mask, &one.mask, &err), &err);
    attention_case_init(&single, &one, &rng);
    single.args.q.token_stride = -3;
    single.args.k.head_stride = INT64_MAX;
    single.args.out.token_stride = 1;
    single.args.lse.head_stride = INT64_MIN;
    must(ffa_attention(context, one_mask, &one_spec, &single.args, NULL, &err), &err);
    for (int32_t c = 0; c < 8; c++)
        ck_assert(((float *)single.memory[3])[c] == ((float *)single.memory[2])[c]);
    attention_case_finish(&single);
    ffa_mask_destroy(one_mask);
}
END_TEST

/* ---- specs ---- */

static const struct {
    const char *name;
    ffa_attention_spec spec; /* struct_size is set by the test */
    ffa_status want;
    const char *says; /* or "" */
} specs[] = {
    { "dtype 0", { .dtype = (ffa_dtype)0, .head_dim = 64 }, FFA_INVALID, "spec: dtype is missing" },
    { "dtype 5",
      { .dtype = (ffa_dtype)5, .head_dim = 64 },
      FFA_INVALID,
      "dtype is 5, not in [1, 4]" },
    { "head_dim 0", { .dtype = FFA_BF16 }, FFA_INVALID, "head_dim is 0, not a multiple of 8" },
    { "head_dim 7",
      { .dtype = FFA_BF16, .head_dim = 7 },
      FFA_INVALID,
      "head_dim is 7, not a multiple of 8" },
    { "head_dim 12",
      { .dtype = FFA_BF16, .head_dim = 12 },
      FFA_INVALID,
      "12, not a multiple of 8 in [8, 256]" },
    { "head_dim 264",
      { .dtype = FFA_BF16, .head_dim = 264 },
      FFA_INVALID,
      "264, not a multiple of 8 in [8, 256]" },
    { "head_dim -8", { .dtype = FFA_FP32, .head_dim = -8 }, FFA_INVALID, "head_dim is -8, not a" },
    { "tile_m -1",
      { .dtype = FFA_BF16, .head_dim = 64, .tile_m = -1 },
      FFA_INVALID,
      "tile_m is -1, not in [0, 1024]" },
    { "tile_m 1025",
      { .dtype = FFA_BF16, .head_dim = 64, .tile_m = 1025 },
      FFA_INVALID,
      "tile_m is 1025, not in [0, 1024]" },
    { "tile_n -1",
      { .dtype = FFA_BF16, .head_dim = 64, .tile_n = -1 },
      FFA_INVALID,
      "tile_n is -1, not in [0, 1024]" },
    { "tile_n 4096",
      { .dtype = FFA_BF16, .head_dim = 64, .tile_n = 4096 },
      FFA_INVALID,
      "tile_n is 4096, not in [0, 1024]" },
    { "flags",
      { .dtype = FFA_BF16, .head_dim = 64, .flags = 1u << 30 },
      FFA_UNSUPPORTED,
      "spec: flags is 0x40000000, known are 0x" },
    { "head_dim_v 12",
      { .dtype = FFA_BF16, .head_dim = 64, .head_dim_v = 12 },
      FFA_INVALID,
      "head_dim_v is 12, not a multiple of 8 in [8, 256] (or 0)" },
    { "head_dim_v -8",
      { .dtype = FFA_BF16, .head_dim = 64, .head_dim_v = -8 },
      FFA_INVALID,
      "head_dim_v is -8, not" },
    { "head_dim_v 264",
      { .dtype = FFA_BF16, .head_dim = 64, .head_dim_v = 264 },
      FFA_INVALID,
      "head_dim_v is 264" },
    { "split and stages",
      { .dtype = FFA_BF16, .head_dim = 64, .flags = FFA_SPEC_SPLIT | FFA_SPEC_STAGED },
      FFA_UNSUPPORTED,
      "FFA_SPEC_SPLIT with FFA_SPEC_STAGED" },
    { "parallel",
      { .dtype = FFA_BF16, .head_dim = 64, .flags = FFA_SPEC_PARALLEL | FFA_SPEC_BACKWARD },
      FFA_OK,
      "" },
    { "parallel and stages",
      { .dtype = FFA_BF16, .head_dim = 64, .flags = FFA_SPEC_PARALLEL | FFA_SPEC_STAGED },
      FFA_OK,
      "" },
    { "parallel and fp32 out",
      { .dtype = FFA_BF16, .head_dim = 64, .flags = FFA_SPEC_PARALLEL | FFA_SPEC_OUT_FP32 },
      FFA_UNSUPPORTED,
      "FFA_SPEC_PARALLEL with FFA_SPEC_OUT_FP32" },
    { "parallel and split",
      { .dtype = FFA_BF16, .head_dim = 64, .flags = FFA_SPEC_PARALLEL | FFA_SPEC_SPLIT },
      FFA_UNSUPPORTED,
      "FFA_SPEC_PARALLEL with FFA_SPEC_SPLIT" },
    { "parallel and fp32 gradients",
      { .dtype = FFA_BF16,
        .head_dim = 64,
        .flags = FFA_SPEC_PARALLEL | FFA_SPEC_BACKWARD | FFA_SPEC_GRAD_FP32 },
      FFA_UNSUPPORTED,
      "FFA_SPEC_PARALLEL with FFA_SPEC_GRAD_FP32" },
    { "split",
      { .dtype = FFA_BF16, .head_dim = 64, .flags = FFA_SPEC_SPLIT, .pack_heads = 2 },
      FFA_OK,
      "" },
    { "pack_heads -2",
      { .dtype = FFA_BF16, .head_dim = 64, .pack_heads = -2 },
      FFA_INVALID,
      "pack_heads is -2, not in [0, 64] or FFA_PACK_AUTO (-1)" },
    { "pack_heads 65",
      { .dtype = FFA_BF16, .head_dim = 64, .pack_heads = 65 },
      FFA_INVALID,
      "pack_heads is 65, not in [0, 64]" },
    { "pack_heads and heads",
      { .dtype = FFA_BF16, .head_dim = 64, .pack_heads = 4, .heads_q = 6, .heads_kv = 2 },
      FFA_INVALID,
      "spec: pack_heads is 4, heads_q / heads_kv is 3" },
    { "heads_q alone",
      { .dtype = FFA_BF16, .head_dim = 64, .heads_q = 6 },
      FFA_INVALID,
      "spec: heads_kv is 0, not in [1, 65536]" },
    { "heads_q 7",
      { .dtype = FFA_BF16, .head_dim = 64, .heads_q = 7, .heads_kv = 2 },
      FFA_INVALID,
      "spec: heads_q is 7, not a multiple of heads_kv = 2 in [1, 65536]" },
    { "split 1",
      { .dtype = FFA_BF16, .head_dim = 64, .split = 1 },
      FFA_INVALID,
      "spec: split is 1, not 0 or FFA_SPLIT_AUTO (-1)" },
    { "pad_", { .dtype = FFA_BF16, .head_dim = 64, .pad_ = 1 }, FFA_INVALID, "pad_ is 1, must" },
    { "all of auto",
      { .dtype = FFA_BF16,
        .head_dim = 64,
        .pack_heads = FFA_PACK_AUTO,
        .split = FFA_SPLIT_AUTO,
        .heads_q = 65536,
        .heads_kv = 1024 },
      FFA_OK,
      "" },
    { "head_dim_v alone", { .dtype = FFA_BF16, .head_dim = 192, .head_dim_v = 128 }, FFA_OK, "" },
    { "backward tile_n 1025",
      { .dtype = FFA_BF16, .head_dim = 64, .flags = FFA_SPEC_BACKWARD, .backward_tile_n = 1025 },
      FFA_INVALID,
      "backward_tile_n is 1025, not in [0, 1024]" },
    { "backward tile_m -1",
      { .dtype = FFA_BF16, .head_dim = 64, .flags = FFA_SPEC_BACKWARD, .backward_tile_m = -1 },
      FFA_INVALID,
      "spec: backward_tile_m is -1, not in [0, 1024]" },
    { "a tile of no pass",
      { .dtype = FFA_BF16, .head_dim = 64, .backward_tile_n = 64 },
      FFA_INVALID,
      "backward_tile_n is 64, flags has no FFA_SPEC_BACKWARD" },
    { "gradients of no pass",
      { .dtype = FFA_BF16, .head_dim = 64, .flags = FFA_SPEC_GRAD_FP32 },
      FFA_INVALID,
      "flags has FFA_SPEC_GRAD_FP32 without FFA_SPEC_BACKWARD" },
    { "order of no pass",
      { .dtype = FFA_BF16, .head_dim = 64, .flags = FFA_SPEC_DETERMINISTIC },
      FFA_INVALID,
      "flags has FFA_SPEC_DETERMINISTIC without FFA_SPEC_BACKWARD" },
    { "fp32 of fp64",
      { .dtype = FFA_FP64, .head_dim = 64, .flags = FFA_SPEC_BACKWARD | FFA_SPEC_GRAD_FP32 },
      FFA_INVALID,
      "flags has FFA_SPEC_GRAD_FP32, dtype is fp64" },
    { "a backward head_dim_v",
      { .dtype = FFA_BF16, .head_dim = 64, .flags = FFA_SPEC_BACKWARD, .head_dim_v = 32 },
      FFA_OK,
      "" },
    { "both passes",
      { .dtype = FFA_FP64,
        .head_dim = 8,
        .flags = FFA_SPEC_BACKWARD | FFA_SPEC_DETERMINISTIC,
        .backward_tile_m = 1,
        .backward_tile_n = 1 },
      FFA_OK,
      "" },
    { "smallest",
      { .dtype = FFA_FP64, .head_dim = 8, .flags = FFA_SPEC_DEBUG, .tile_m = 1, .tile_n = 1 },
      FFA_OK,
      "" },
    { "largest",
      { .dtype = FFA_FP16, .head_dim = 256, .tile_m = 1024, .tile_n = 1024 },
      FFA_OK,
      "" },
};

START_TEST(specs_are_checked)
{
    ffa_attention_spec given = specs[_i].spec;
    ffa_kernels *made = kernels;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_status rc;

    given.struct_size = (uint32_t)sizeof given;
    rc = ffa_kernels_create(&made, context, &given, &err);
    ck_assert_msg(rc == specs[_i].want, "%s: %s", specs[_i].name, err.message);
    ck_assert_msg(strstr(err.message, specs[_i].says), "%s: '%s'", specs[_i].name, err.message);
    ck_assert_int_eq(made != NULL, rc == FFA_OK);
    ffa_kernels_destroy(made);
    if (rc == FFA_OK)
        return;
    ck_assert_int_eq(ffa_attention(context, mask, &given, &test.args, NULL, &err), rc);
    check_outputs_untouched(specs[_i].name);
}
END_TEST

/* ---- structs of other headers ---- */

static ffa_status open_it(void *opts, ffa_error *err)
{
    ffa_context *opened = context;
    ffa_status rc = ffa_open(&opened, FFA_DEVICE_CPU, opts, err);

    ck_assert_int_eq(opened != NULL, rc == FFA_OK);
    ffa_close(opened);
    return rc;
}

static ffa_status command_it(void *given, ffa_error *err)
{
    char *command = (char *)given;
    ffa_status rc = ffa_compile_command(context, given, "t", "o", &command, err);

    ck_assert_int_eq(command != NULL, rc == FFA_OK);
    ffa_free(command);
    return rc;
}

static ffa_status compile_it(void *given, ffa_error *err)
{
    ffa_compile_request *wanted = given;
    ffa_compiled *compiled = given;
    ffa_status rc = ffa_compile(&compiled, context, wanted, err);

    /* An architecture there is none of: what is asked for is understood, not compiled. */
    ck_assert_ptr_null(compiled);
    return rc == FFA_UNSUPPORTED && strstr(err->message, "sm_70") ? FFA_OK : rc;
}

static ffa_status create_it(void *given, ffa_error *err)
{
    ffa_kernels *made = given;
    ffa_status rc = ffa_kernels_create(&made, context, given, err);

    ck_assert_int_eq(made != NULL, rc == FFA_OK);
    ffa_kernels_destroy(made);
    return rc;
}

static ffa_status attend_spec_it(void *given, ffa_error *err)
{
    return ffa_attention(context, mask, given, &test.args, NULL, err);
}

static ffa_status attend_args_it(void *given, ffa_error *err)
{
    return ffa_attention(context, mask, &spec, given, NULL, err);
}

static ffa_status forward_it(void *given, ffa_error *err)
{
    return ffa_forward(kernels, plan, given, NULL, err);
}

static ffa_context_opts some_opts = FFA_CONTEXT_OPTS_INIT;
static ffa_compile_request good_request = {
    .struct_size = (uint32_t)sizeof(ffa_compile_request),
    .template_name = "attention_forward",
};
static ffa_compile_request other_arch = {
    .struct_size = (uint32_t)sizeof(ffa_compile_request),
    .template_name = "attention_forward",
    .arch = "sm_70",
};

/* v0: the struct's size in the first version. */
static const struct {
    const char *name;
    const void *good;
    uint32_t v0, now;
    ffa_status (*call)(void *given, ffa_error *err);
} imports[] = {
    { "ffa_context_opts", &some_opts, 72, sizeof some_opts, open_it },
    { "ffa_context_opts, tag and flags", &some_opts, 8, sizeof some_opts, open_it },
    { "ffa_compile_request", &good_request, 40, sizeof good_request, command_it },
    { "ffa_compile_request, no arch", &good_request, 32, sizeof good_request, command_it },
    { "ffa_compile_request, other arch", &other_arch, 40, sizeof other_arch, compile_it },
    { "ffa_attention_spec", &spec, 24, sizeof spec, create_it },
    { "ffa_attention_spec, no tiles", &spec, 16, sizeof spec, create_it },
    { "ffa_attention_spec, one call", &spec, 24, sizeof spec, attend_spec_it },
    { "ffa_forward_args", &test.args, 368, sizeof test.args, forward_it },
    { "ffa_forward_args, no sinks", &test.args, 352, sizeof test.args, forward_it },
    { "ffa_forward_args, one call", &test.args, 368, sizeof test.args, attend_args_it },
};

static void import_as(int row, uint32_t size, int tail, ffa_status want, const char *says)
{
    union {
        unsigned char bytes[1024];
        uint32_t struct_size;
        max_align_t aligned;
    } given = { { 0 } };
    /* At the end of its memory, so that a sanitizer sees a byte read beyond. */
    const uint32_t room = size < 4 ? 4 : size > 1024 ? 1024 : size;
    unsigned char *exact = malloc(room);
    ffa_error err = { FFA_OK, 0, "" };
    ffa_status rc;

    ck_assert_ptr_nonnull(exact);
    memcpy(given.bytes, imports[row].good, imports[row].now);
    given.struct_size = size;
    if (size > imports[row].now && size <= 1024)
        given.bytes[size - 1] = (unsigned char)tail;
    memcpy(exact, given.bytes, room);
    rc = imports[row].call(exact, &err);
    ck_assert_msg(rc == want, "%s, size %u: %s (%s)", imports[row].name, size, ffa_status_text(rc),
                  err.message);
    if (want != FFA_OK)
        ck_assert_msg(strstr(err.message, says), "%s, size %u: %s", imports[row].name, size,
                      err.message);
    free(exact);
}

START_TEST(options_of_other_headers)
{
    const uint32_t now = imports[_i].now;

    import_as(_i, imports[_i].v0, 0, FFA_OK, "");
    import_as(_i, now, 0, FFA_OK, "");
    import_as(_i, now + 16, 0, FFA_OK, "");
    import_as(_i, now + 16, 1, FFA_UNSUPPORTED, "is newer than this library");
    import_as(_i, now + 1, 1, FFA_UNSUPPORTED, "is newer than this library");
    import_as(_i, 0, 0, FFA_INVALID, "struct_size is 0, not in [4, 16384]: start from the _INIT");
    import_as(_i, 3, 0, FFA_INVALID, "struct_size is 3, not in");
    import_as(_i, 0xeeeeeeee, 0, FFA_INVALID, "struct_size is 4008636142, not in [4, 16384]");
}
END_TEST

static ffa_status context_info_it(void *info, ffa_error *err)
{
    return ffa_context_info_get(context, info, err);
}

static ffa_status context_stats_it(void *info, ffa_error *err)
{
    return ffa_context_stats_get(context, info, err);
}

static ffa_status kernels_info_it(void *info, ffa_error *err)
{
    return ffa_kernels_info(kernels, info, err);
}

static ffa_status plan_info_it(void *info, ffa_error *err)
{
    return ffa_plan_info_get(plan, info, err);
}

static const struct {
    const char *name;
    uint32_t v0, now;
    ffa_status (*call)(void *info, ffa_error *err);
} exports[] = {
    { "ffa_context_info", 864, sizeof(ffa_context_info), context_info_it },
    { "ffa_context_info, four fields", 16, sizeof(ffa_context_info), context_info_it },
    { "ffa_context_stats", 80, sizeof(ffa_context_stats), context_stats_it },
    { "ffa_kernel_info", 184, sizeof(ffa_kernel_info), kernels_info_it },
    { "ffa_plan_info", 56, sizeof(ffa_plan_info), plan_info_it },
    { "ffa_plan_info, tiles", 16, sizeof(ffa_plan_info), plan_info_it },
    { "ffa_plan_info, tag", 4, sizeof(ffa_plan_info), plan_info_it },
};

static void export_as(int row, uint32_t size, ffa_status want)
{
    unsigned char given[2048], full[2048];
    ffa_error err = { FFA_OK, 0, "" };
    ffa_status rc;

    memset(given, 0xab, sizeof given);
    memset(full, 0, sizeof full);
    memcpy(given, &size, sizeof size);
    memcpy(full, &exports[row].now, sizeof size);
    ck_assert_int_eq(exports[row].call(full, &err), FFA_OK);
    rc = exports[row].call(given, &err);
    ck_assert_msg(rc == want, "%s, size %u: %s", exports[row].name, size, ffa_status_text(rc));
    ck_assert_msg(!memcmp(given, &size, sizeof size), "%s: the tag changed", exports[row].name);
    if (rc != FFA_OK) {
        ck_assert_msg(strstr(err.message, "struct_size is"), "%s", err.message);
        size = sizeof size;
    }
    /* What the caller has is filled, what a newer one has besides is 0, nothing behind it. */
    for (size_t i = sizeof size; i < sizeof given; i++)
        ck_assert_msg(given[i] == (i >= size ? 0xab : full[i]), "%s, size %u: byte %zu is %#x",
                      exports[row].name, size, i, given[i]);
}

START_TEST(results_for_other_headers)
{
    ck_assert_uint_ge(exports[_i].now, exports[_i].v0);
    export_as(_i, exports[_i].v0, FFA_OK);
    export_as(_i, exports[_i].now, FFA_OK);
    export_as(_i, exports[_i].now + 24, FFA_OK);
    export_as(_i, 0, FFA_INVALID);
    export_as(_i, 0xabababab, FFA_INVALID);
}
END_TEST

/* ---- answers ---- */

static const struct {
    const char *mask;
    struct attention_shape shape; /* without the tokens */
    uint32_t open_flags;
    int32_t tile_m, tile_n;
} answers[] = {
    { "causal:70x90", { { 0, 0 }, FFA_BF16, 8, 2, 64, LAYOUT_TOKENS }, 0, 0, 0 },
    { "varlen-causal:33,1,64,20", { { 0, 0 }, FFA_FP16, 4, 4, 32, LAYOUT_HEADS }, 0, 32, 16 },
    { "window:100,left=9,right=4", { { 0, 0 }, FFA_FP32, 6, 3, 24, LAYOUT_PADDED }, 0, 17, 5 },
    { "shared-prefix:30,20,40", { { 0, 0 }, FFA_FP64, 2, 1, 8, LAYOUT_HEADS }, 0, 0, 0 },
    { "full:1", { { 0, 0 }, FFA_BF16, 1, 1, 8, LAYOUT_PADDED }, FFA_OPEN_CPU_FP64, 0, 0 },
    { "causal:90x20", { { 0, 0 }, FFA_BF16, 3, 1, 40, LAYOUT_TOKENS }, FFA_OPEN_CPU_FP64, 16, 128 },
    { "{\"seqlen_q\":60,\"seqlen_k\":50,\"kv_heads\":[[[0,60,0,50,\"causal\"],[10,30,0,50,2]],"
      "[],[[0,20,0,50,\"bicausal\"],[0,60,7,9,\"full\"]]]}",
      { { 0, 0 }, FFA_BF16, 6, 3, 16, LAYOUT_PADDED },
      0,
      32,
      32 },
};

static void compare(const struct attention_case *done, const ffa_mask *of, const char *name)
{
    const struct oracle_tolerance tolerance = oracle_tolerance_of(done->shape.dtype);
    ffa_slice_list lists[8];
    struct oracle_case reference = { .shape = done->shape.mask,
                                     .lists = lists,
                                     .list_count = ffa_mask_head_count(of),
                                     .head_dim = done->shape.head_dim,
                                     .dtype = done->shape.dtype,
                                     .threads = 1,
                                     .args = &done->args };
    struct oracle_result want;
    struct oracle_report found;

    for (int32_t i = 0; i < reference.list_count; i++)
        lists[i] = ffa_mask_slices(of, i);
    ck_assert_int_eq(oracle_forward(&want, &reference, NULL), FFA_OK);
    oracle_compare(&found, &reference, &want, &tolerance);
    ck_assert_msg(found.passed, "%s: %s", name, found.reason);
    oracle_result_finish(&want);
}

START_TEST(attention_as_the_oracle)
{
    const char *text = answers[_i].mask;
    struct attention_shape of = answers[_i].shape;
    ffa_context_opts opts = FFA_CONTEXT_OPTS_INIT;
    ffa_attention_spec with = FFA_ATTENTION_SPEC_INIT;
    ffa_context *own = NULL;
    ffa_mask *drawn = NULL;
    struct attention_case call;
    struct rng rng = { 21 };
    ffa_error err = { FFA_OK, 0, "" };

    opts.flags = answers[_i].open_flags;
    opts.cpu_threads = 3;
    must(ffa_open(&own, FFA_DEVICE_CPU, &opts, &err), &err);
    must(*text == '{' ? ffa_mask_parse_json(&drawn, text, strlen(text), &err)
                      : ffa_mask_parse(&drawn, text, &err),
         &err);
    of.mask = (ffa_mask_shape){ ffa_mask_seqlen_q(drawn), ffa_mask_seqlen_k(drawn) };
    attention_case_init(&call, &of, &rng);
    if (of.layout == LAYOUT_TOKENS) { /* strides and scale by default */
        call.args.softmax_scale = 0;
        call.args.q.token_stride = call.args.q.head_stride = FFA_CONTIGUOUS;
        call.args.k.token_stride = call.args.v.head_stride = FFA_CONTIGUOUS;
        call.args.out.token_stride = call.args.out.head_stride = FFA_CONTIGUOUS;
        call.args.lse.token_stride = call.args.lse.head_stride = FFA_CONTIGUOUS;
    }
    with.dtype = of.dtype;
    with.head_dim = of.head_dim;
    with.tile_m = answers[_i].tile_m;
    with.tile_n = answers[_i].tile_n;
    for (int round = 0; round < 2; round++) { /* the second finds its kernels kept */
        must(ffa_attention(own, drawn, &with, &call.args, NULL, &err), &err);
        compare(&call, drawn, text);
    }
    attention_case_finish(&call);
    ffa_mask_destroy(drawn);
    ffa_close(own);
}
END_TEST

/* causal:300 in tiles of 128: 1 + 2 + 3 blocks, of which the three on the diagonal are masked, and
 * none is full of 44 rows only. */
/* Isolated documents cost tiles, and nothing else changes; unknown flags are refused. */
START_TEST(plans_have_options)
{
    ffa_plan_opts opts = FFA_PLAN_OPTS_INIT;
    ffa_plan_info info = FFA_PLAN_INFO_INIT, apart = FFA_PLAN_INFO_INIT;
    ffa_plan *made = NULL;
    ffa_mask *of = NULL;
    ffa_error err = { FFA_OK, 0, "" };

    must(ffa_mask_parse(&of, "varlen-causal:30,30,30", &err), &err);
    must(ffa_plan_create_with(&made, kernels, of, &opts, &err), &err);
    must(ffa_plan_info_get(made, &info, &err), &err);
    ffa_plan_destroy(made);
    opts.flags = FFA_PLAN_ISOLATE;
    must(ffa_plan_create_with(&made, kernels, of, &opts, &err), &err);
    must(ffa_plan_info_get(made, &apart, &err), &err);
    ck_assert_int_eq(apart.tile_count, 3);
    ck_assert_int_le(info.tile_count, apart.tile_count);
    ck_assert_int_eq(info.area, apart.area);
    ffa_plan_destroy(made);
    opts.flags = 1u << 31;
    ck_assert_int_eq(ffa_plan_create_with(&made, kernels, of, &opts, &err), FFA_UNSUPPORTED);
    ck_assert_ptr_null(made);
    ck_assert_ptr_nonnull(strstr(err.message, "flags is 0x80000000, known are 0x1"));
    opts.flags = 0;
    opts.heads_q = 4;
    ck_assert_int_eq(ffa_plan_create_with(&made, kernels, of, &opts, &err), FFA_INVALID);
    ck_assert_ptr_nonnull(strstr(err.message, "heads_q is 4, the kernels were made without"));
    opts.heads_q = 0;
    opts.backward_parts_max = -1;
    ck_assert_int_eq(ffa_plan_create_with(&made, kernels, of, &opts, &err), FFA_INVALID);
    ck_assert_ptr_nonnull(strstr(err.message, "backward_parts_max is -1, less than 0"));
    ffa_mask_destroy(of);
}
END_TEST

START_TEST(plans_tell_their_numbers)
{
    ffa_plan_info info = FFA_PLAN_INFO_INIT;
    ffa_plan *made = NULL;
    ffa_mask *of = NULL;
    ffa_error err = { FFA_OK, 0, "" };

    must(ffa_mask_parse(&of, "causal:300", &err), &err);
    must(ffa_plan_create(&made, kernels, of, &err), &err);
    must(ffa_plan_info_get(made, &info, &err), &err);
    ck_assert_int_eq(info.tile_m, 128);
    ck_assert_int_eq(info.tile_n, 128);
    ck_assert_int_eq(info.tile_count, 3);
    ck_assert_int_eq(info.sweep_count, 3);
    ck_assert_int_eq(info.block_count, 6);
    ck_assert_int_eq(info.partial_blocks, 3);
    ck_assert_int_eq(info.area, 300 * 301 / 2);
    ck_assert_int_eq(info.upload_bytes, 0); /* nothing to upload on the CPU */
    must(ffa_plan_upload(made, kernels, NULL, NULL, &err), &err);
    bytes = -1;
    must(ffa_workspace_bytes(kernels, made, &bytes, &err), &err);
    ck_assert_int_eq(bytes, 0);
    bytes = -1;
    ck_assert_int_eq(ffa_workspace_bytes(NULL, made, &bytes, &err), FFA_INVALID);
    ck_assert_int_eq(bytes, 0);
    ffa_plan_destroy(made);
    ffa_mask_destroy(of);
}
END_TEST

/* Kernels that say they are a GPU's, as far as planning looks at them. */
static struct ffa_kernels gpu_kernels(int32_t tile_m, int32_t tile_n)
{
    const struct device_facts facts = { .name = "NVIDIA H200", .sm_count = 132 };

    return (struct ffa_kernels){ .context = context,
                                 .device = choose_device_of(&facts),
                                 .forward = { { .kernel = (struct gpu_kernel *)(uintptr_t)1,
                                                .tile_m = tile_m,
                                                .tile_n = tile_n,
                                                .cost = { 318, 1 } } },
                                 .forward_count = 1 };
}

/* Which of two kernels a mask gets: one of wide blocks, or of narrow ones that cost more a key. */
static const struct {
    const char *mask;
    int32_t tile_m, tile_n;
} choices[] = {
    { "full:4096", 16, 128 },
    { "causal:4096", 16, 128 },
    { "causal:100", 16, 80 },                    /* 2 blocks of 80 at most, not 128 */
    { "window:4096,left=1023,right=0", 16, 80 }, /* 1039 keys: 13 blocks of 80, or 9 of 128 */
    { "varlen-full:8,9,8", 16, 80 },
    { "varlen-full:8,0,3,2048", 16, 128 },
};

/* Tiles of packed heads: of a document each, unless that leaves most of their rows empty. */
static const struct {
    const char *mask;
    int32_t tile_count, backward_tile_count;
} packed_counts[] = {
    { "varlen-full:100,90,130", 7 + 6 + 9, 3 }, /* 320 keys together, in tiles of 128 */
    { "varlen-causal:4096*1", 256, 32 },        /* not 4096 */
    { "varlen-full:8*8", 8, 1 },                /* few */
};

START_TEST(packed_documents_have_tiles)
{
    struct ffa_kernels gpu = gpu_kernels(16, 128);
    ffa_plan_info info = FFA_PLAN_INFO_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_plan *made = NULL;
    ffa_mask *of = NULL;

    gpu.pack_heads = 8;
    gpu.has_backward = true;
    gpu.backward[0] = (struct backward_kernel){ .tile_m = 64, .tile_n = 128, .cluster = 1 };
    gpu.backward_count = 1;
    must(ffa_mask_parse(&of, packed_counts[_i].mask, &err), &err);
    must(ffa_plan_create(&made, &gpu, of, &err), &err);
    must(ffa_plan_info_get(made, &info, &err), &err);
    ck_assert_int_eq(info.tile_count, packed_counts[_i].tile_count);
    ck_assert_int_eq(info.backward_tile_count, packed_counts[_i].backward_tile_count);
    ffa_plan_destroy(made);
    ffa_mask_destroy(of);
}
END_TEST

START_TEST(masks_choose_their_kernel)
{
    struct ffa_kernels gpu = gpu_kernels(16, 128);
    ffa_plan_info info = FFA_PLAN_INFO_INIT;
    ffa_kernel_info kernel = FFA_KERNEL_INFO_INIT;
    ffa_status rc;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_plan *made = NULL;
    ffa_mask *of = NULL;

    gpu.pack_heads = 8;
    gpu.forward[1] = gpu.forward[0];
    gpu.forward[1].tile_n = 80;
    gpu.forward[1].cost = (struct tile_cost){ 208, 1.073 };
    gpu.forward_count = 2;
    gpu.forward[0].info.registers = 128;
    gpu.forward[1].info.registers = 80;
    must(ffa_mask_parse(&of, choices[_i].mask, &err), &err);
    must(ffa_plan_create(&made, &gpu, of, &err), &err);
    must(ffa_plan_info_get(made, &info, &err), &err);
    ck_assert_int_eq(info.tile_m, choices[_i].tile_m);
    ck_assert_int_eq(info.tile_n, choices[_i].tile_n);
    must(ffa_plan_kernel(made, &gpu, &kernel, &err), &err);
    ck_assert_int_eq(kernel.registers, info.tile_n);
    gpu.forward_count = 1;
    rc = ffa_plan_kernel(made, &gpu, &kernel, &err);
    ck_assert_int_eq(rc, info.tile_n == 128 ? FFA_OK : FFA_INVALID);
    ffa_plan_destroy(made);
    ffa_mask_destroy(of);
}
END_TEST

/* What a spec with FFA_PACK_AUTO comes to: it shows in the plan, on the CPU, too. */
static const struct {
    const char *name;
    int32_t heads_q, heads_kv, asked, tile_m;
    int32_t want;
} packs[] = {
    { "a group of 4", 8, 2, FFA_PACK_AUTO, 0, 4 },
    { "each head alone", 8, 8, FFA_PACK_AUTO, 0, 1 },
    { "a group that leaves rows empty", 45, 1, FFA_PACK_AUTO, 0, 0 },
    { "a group of too many", 128, 1, FFA_PACK_AUTO, 0, 0 },
    { "heads that are not known", 0, 0, FFA_PACK_AUTO, 0, 0 },
    { "a tile that is asked for", 8, 2, FFA_PACK_AUTO, 64, 0 },
    { "none", 8, 2, 0, 0, 0 },
    { "as asked for", 45, 1, 45, 0, 45 },
};

START_TEST(packing_is_chosen)
{
    ffa_attention_spec with = FFA_ATTENTION_SPEC_INIT;
    ffa_plan_info info = FFA_PLAN_INFO_INIT;
    ffa_kernels *made = NULL;
    ffa_plan *of = NULL;
    ffa_error err = { FFA_OK, 0, "" };

    ck_assert_int_eq(with.pack_heads, FFA_PACK_AUTO);
    ck_assert_int_eq(with.split, FFA_SPLIT_AUTO);
    with.dtype = FFA_BF16;
    with.head_dim = 64;
    with.heads_q = packs[_i].heads_q;
    with.heads_kv = packs[_i].heads_kv;
    with.pack_heads = packs[_i].asked;
    with.tile_m = packs[_i].tile_m;
    must(ffa_kernels_create(&made, context, &with, &err), &err);
    must(ffa_plan_create(&of, made, mask, &err), &err);
    must(ffa_plan_info_get(of, &info, &err), &err);
    ck_assert_msg(info.pack_heads == packs[_i].want, "%s: %d", packs[_i].name, info.pack_heads);
    ck_assert_int_eq(info.split_heads, 0);
    ck_assert_int_eq(info.backward_parts, 0);
    ck_assert_str_eq(info.cost_table, "");
    ck_assert_str_eq(info.cost_digest, "");
    ck_assert_int_eq(info.cost_source, FFA_COST_NONE);
    ffa_plan_destroy(of);
    ffa_kernels_destroy(made);
}
END_TEST

/* forward_combine adds up the parts of all heads of a row, so a mask with a list for each kv head
 * stays whole, asked for or not. (It was split, and heads had parts that nobody wrote.) */
START_TEST(lists_are_not_split)
{
    const ffa_slice slice = { 0, 1, 0, 65536, FFA_SLICE_FULL, 0 };
    const ffa_slice_list lists[] = { { &slice, 1 }, { &slice, 1 } };
    const ffa_mask_shape size = { 1, 65536 };
    ffa_error err = { FFA_OK, 0, "" };

    for (int32_t count = 1; count <= 2; count++) {
        ffa_mask *of = NULL;

        must(ffa_mask_create_per_head(&of, &size, lists, count, &err), &err);
        for (int asked = 0; asked < 2; asked++) {
            struct ffa_kernels gpu = gpu_kernels(128, 128);
            ffa_plan_info info = FFA_PLAN_INFO_INIT;
            ffa_plan *made = NULL;

            gpu.may_split = !asked;
            gpu.is_split = asked;
            gpu.heads_q = gpu.heads_kv = 2;
            gpu.split[0] = gpu.forward[0];
            gpu.split_count = !asked;
            must(ffa_plan_create(&made, &gpu, of, &err), &err);
            must(ffa_plan_info_get(made, &info, &err), &err);
            ck_assert_int_eq(info.split_heads, count == 1 ? 2 : 0);
            ffa_plan_destroy(made);
        }
        ffa_mask_destroy(of);
    }
}
END_TEST

/* A spec that names heads is for calls of these heads, whatever was chosen by them. */
START_TEST(calls_have_the_heads_of_the_spec)
{
    const ffa_forward_args asked = test.args;
    ffa_attention_spec with = spec;
    ffa_kernels *made = NULL;
    ffa_plan *of = NULL;
    ffa_plan_opts opts = FFA_PLAN_OPTS_INIT;
    ffa_error err = { FFA_OK, 0, "" };

    with.heads_q = HEADS_Q;
    with.heads_kv = HEADS_KV;
    must(ffa_kernels_create(&made, context, &with, &err), &err);
    must(ffa_plan_create(&of, made, mask, &err), &err);
    test.args.heads_kv = test.args.heads_q;
    check_failure("heads", ffa_forward(made, of, &test.args, NULL, &err), &err,
                  "the kernels were made for heads_q");
    check_outputs_untouched("heads");
    test.args = asked;
    must(ffa_forward(made, of, &test.args, NULL, &err), &err);
    ffa_plan_destroy(of);
    opts.heads_q = 2 * HEADS_Q;
    check_failure("plan", ffa_plan_create_with(&of, made, mask, &opts, &err), &err,
                  "the kernels were made for heads_q");
    ffa_kernels_destroy(made);
}
END_TEST

/* Kernels of whole tiles, and others of a split: the mask and the heads decide. */
static const struct {
    const char *mask;
    int32_t heads_q;
    bool has_kernels, is_split;
} auto_splits[] = {
    { "full:128x65536", 8, true, true },
    { "full:128x65536", 8, false, false }, /* they could not be had */
    { "full:16384", 64, true, false },
    { "full:1x640", 1, true, false }, /* parts cost what they save */
    { "full:1x1024", 1, true, true },
    { "causal:4096", 4, true, false },
};

START_TEST(splits_are_chosen)
{
    struct ffa_kernels gpu = gpu_kernels(128, 128);
    ffa_plan_info info = FFA_PLAN_INFO_INIT;
    ffa_kernel_info kernel = FFA_KERNEL_INFO_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_plan *made = NULL;
    ffa_mask *of = NULL;

    gpu.may_split = true;
    gpu.head_dim = gpu.head_dim_v = 128;
    gpu.dtype = FFA_BF16;
    gpu.heads_q = gpu.heads_kv = auto_splits[_i].heads_q;
    gpu.forward[0].info.registers = 128;
    gpu.split[0] = gpu.forward[0];
    gpu.split[0].tile_n = 112;
    gpu.split[0].info.registers = 112;
    gpu.split_count = auto_splits[_i].has_kernels;
    must(ffa_mask_parse(&of, auto_splits[_i].mask, &err), &err);
    must(ffa_plan_create(&made, &gpu, of, &err), &err);
    must(ffa_plan_info_get(made, &info, &err), &err);
    must(ffa_plan_kernel(made, &gpu, &kernel, &err), &err);
    must(ffa_workspace_bytes(&gpu, made, &bytes, &err), &err);
    ck_assert_int_eq(info.split_heads, auto_splits[_i].is_split ? auto_splits[_i].heads_q : 0);
    ck_assert_int_eq(info.split_tiles > 0, auto_splits[_i].is_split);
    ck_assert_int_eq(info.tile_n, auto_splits[_i].is_split ? 112 : 128);
    ck_assert_int_eq(kernel.registers, info.tile_n);
    ck_assert_int_eq(bytes > 256, auto_splits[_i].is_split);
    ck_assert_int_ge(info.l2_heads_kv, 1);
    ck_assert_int_le(info.l2_heads_kv, gpu.heads_kv);
    ck_assert_str_eq(info.cost_table, "NVIDIA H200");
    ck_assert_uint_eq(strlen(info.cost_digest), 16);
    ck_assert_int_eq(strncmp(info.cost_digest, gpu.device.digest, 16), 0);
    ck_assert_int_eq(info.cost_source, FFA_COST_BUILT_IN);
    if (auto_splits[_i].is_split) { /* its parts share rows: not for the CPU backend */
        ffa_forward_args args = FFA_FORWARD_ARGS_INIT;

        args.heads_q = args.heads_kv = gpu.heads_q;
        gpu.forward[0].kernel = NULL;
        ck_assert_int_eq(ffa_forward(&gpu, made, &args, NULL, &err), FFA_INVALID);
        ck_assert_msg(strstr(err.message, "was split for a GPU"), "%s", err.message);
    }
    ffa_plan_destroy(made);
    ffa_mask_destroy(of);
}
END_TEST

/* Heads that a call of ffa_plan_create_with gives, to kernels that know none, whose split tiles
 * have other rows than the whole ones: the plan has the tiles of the one that it is for. */
static const struct {
    const char *mask;
    int32_t heads_q; /* 0: not given */
    int32_t split_m;
    bool is_split;
} asked_heads[] = {
    { "full:128x65536", 8, 64, true },  { "full:128x65536", 8, 192, true },
    { "full:128x65536", 0, 64, false }, { "full:16384", 64, 64, false },
    { "full:100x65536", 4, 64, true },
};

START_TEST(heads_asked_for_take_tiles_of_other_rows)
{
    struct ffa_kernels gpu = gpu_kernels(128, 128);
    ffa_plan_opts opts = FFA_PLAN_OPTS_INIT;
    ffa_plan_info info = FFA_PLAN_INFO_INIT;
    ffa_kernel_info kernel = FFA_KERNEL_INFO_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_plan *made = NULL;
    ffa_mask *of = NULL;
    int64_t rows = 0;
    int32_t want_m;

    gpu.may_split = true;
    gpu.head_dim = gpu.head_dim_v = 128;
    gpu.dtype = FFA_BF16;
    gpu.forward[0].info.registers = 128;
    gpu.split[0] = gpu.forward[0];
    gpu.split[0].tile_m = asked_heads[_i].split_m;
    gpu.split[0].tile_n = 112;
    gpu.split[0].info.registers = 112;
    gpu.split_count = 1;
    want_m = asked_heads[_i].is_split ? asked_heads[_i].split_m : 128;
    opts.heads_q = asked_heads[_i].heads_q;
    must(ffa_mask_parse(&of, asked_heads[_i].mask, &err), &err);
    must(ffa_plan_create_with(&made, &gpu, of, &opts, &err), &err);
    must(ffa_plan_info_get(made, &info, &err), &err);
    must(ffa_plan_kernel(made, &gpu, &kernel, &err), &err);
    ck_assert_int_eq(info.split_heads, asked_heads[_i].is_split ? opts.heads_q : 0);
    ck_assert_int_eq(info.tile_m, want_m);
    ck_assert_int_eq(info.tile_n, asked_heads[_i].is_split ? 112 : 128);
    ck_assert_int_eq(kernel.registers, info.tile_n);
    ck_assert_int_eq(made->forward.tile_m, want_m);
    for (int64_t t = 0; t < made->forward.tile_count; t++) {
        ck_assert_int_le(made->forward.tiles[t].count, want_m);
        if (t == 0 || made->forward.tiles[t].begin != made->forward.tiles[t - 1].begin)
            rows += made->forward.tiles[t].count;
    }
    ck_assert_int_ge(rows, ffa_mask_seqlen_q(of));
    if (asked_heads[_i].is_split) { /* and no other heads may be called with */
        ffa_forward_args args = FFA_FORWARD_ARGS_INIT;

        args.heads_q = args.heads_kv = 2 * opts.heads_q;
        ck_assert_int_eq(ffa_forward(&gpu, made, &args, NULL, &err), FFA_INVALID);
    }
    ffa_plan_destroy(made);
    ffa_mask_destroy(of);
}
END_TEST

/* A split that was not asked for fails as any plan does, and leaves nothing behind. */
START_TEST(a_chosen_split_may_find_no_memory)
{
    struct ffa_kernels gpu = gpu_kernels(128, 128);
    ffa_mask *of = NULL;
    ffa_error err = { FFA_OK, 0, "" };
    long nth = 1;

    gpu.may_split = true;
    gpu.heads_q = gpu.heads_kv = 8;
    gpu.split[0] = gpu.forward[0];
    gpu.split_count = 1;
    must(ffa_mask_parse(&of, "full:128x65536", &err), &err);
    for (;; nth++) {
        ffa_plan *made = NULL;
        ffa_status rc;

        fault_arm(FAULT_ALLOC, nth);
        rc = ffa_plan_create(&made, &gpu, of, &err);
        ffa_plan_destroy(made);
        if (!fault_fired())
            break;
        ck_assert_int_eq(rc, FFA_NOMEM);
    }
    fault_arm(FAULT_ALLOC, 0);
    ck_assert_int_gt(nth, 10);
    ffa_mask_destroy(of);
}
END_TEST

START_TEST(plans_of_a_gpu_have_an_image)
{
    struct ffa_kernels gpu = gpu_kernels(128, 128);
    const ffa_mask_shape too_many[] = { { INT32_MAX, 5 }, { 5, INT32_MAX - 1022 } };
    ffa_plan_info info = FFA_PLAN_INFO_INIT;
    ffa_plan *made = NULL;
    ffa_mask *of = NULL;
    ffa_error err = { FFA_OK, 0, "" };

    must(ffa_plan_create(&made, &gpu, mask, &err), &err);
    must(ffa_plan_info_get(made, &info, &err), &err);
    ck_assert_int_eq(info.image_bytes, info.upload_bytes);
    ck_assert_int_eq(info.capacity_bytes, 0);
    ck_assert_int_eq(info.upload_bytes,
                     64 + 32 * (made->forward.tile_count + made->forward.sweep_count +
                                made->forward.band_count));
    ck_assert_mem_eq(plan_image_tiles(&made->image.forward, made->image_data), made->forward.tiles,
                     32 * (size_t)made->forward.tile_count);
    ck_assert_mem_eq(plan_image_bands(&made->image.forward, made->image_data), made->forward.bands,
                     32 * (size_t)made->forward.band_count);
    check_failure("buffer", ffa_plan_upload(made, &gpu, NULL, NULL, &err), &err,
                  "buffer is (nil), not 16-byte aligned");
    check_failure("buffer", ffa_plan_upload(made, &gpu, (void *)(uintptr_t)24, NULL, &err), &err,
                  "buffer is 0x18, not 16-byte aligned");
    check_failure("a plan of the CPU's", ffa_plan_upload(plan, &gpu, (void *)16, NULL, &err), &err,
                  "made with kernels of the CPU backend");
    must(ffa_plan_upload(made, kernels, NULL, NULL, &err), &err); /* the CPU's: nothing to do */
    ffa_plan_destroy(made);

    for (int i = 0; i < 2; i++) {
        must(ffa_mask_create(&of, &too_many[i], NULL, 0, &err), &err);
        made = plan;
        ck_assert_int_eq(ffa_plan_create(&made, &gpu, of, &err), FFA_UNSUPPORTED);
        ck_assert_ptr_null(made);
        ck_assert_msg(strstr(err.message, i ? "seqlen_k is 2147482625, GPU kernels take at most "
                                              "2147482624"
                                            : "seqlen_q is 2147483647, GPU kernels take"),
                      "%s", err.message);
        ffa_mask_destroy(of);
    }
}
END_TEST

/* ---- the context's memory, on the host ---- */

START_TEST(device_calls_on_the_host)
{
    const unsigned char from[300] = { 1, 2, 3 };
    unsigned char to[300] = { 0 };
    void *memory = NULL, *none = NULL, *huge = &memory;
    ffa_error err = { FFA_OK, 0, "" };

    must(ffa_device_alloc(&memory, context, 300, &err), &err);
    ck_assert_uint_eq((uintptr_t)memory % 256, 0);
    must(ffa_device_alloc(&none, context, 0, &err), &err);
    ck_assert_ptr_nonnull(none);
    must(ffa_device_fill(context, memory, 255, 300, &err), &err);
    must(ffa_device_copy(context, to, memory, 300, FFA_FROM_DEVICE, &err), &err);
    for (int i = 0; i < 300; i++)
        ck_assert_uint_eq(to[i], 255);
    must(ffa_device_copy(context, memory, from, 300, FFA_TO_DEVICE, &err), &err);
    must(ffa_device_copy(context, to, memory, 300, FFA_FROM_DEVICE, &err), &err);
    ck_assert_mem_eq(to, from, 300);
    must(ffa_device_synchronize(context, &err), &err);
    ck_assert_int_eq(ffa_device_alloc(&huge, context, INT64_MAX, &err), FFA_NOMEM);
    ck_assert_ptr_null(huge);
    ck_assert_msg(strstr(err.message, "9223372036854775807 bytes"), "%s", err.message);
    ffa_device_free(context, none);
    ffa_device_free(context, memory);

    must(ffa_device_time_begin(context, NULL, &err), &err);
    must(ffa_device_time_end(context, NULL, &ms, &err), &err);
    ck_assert(ms >= 0 && ms < 10000);
    ms = 7;
    ck_assert_int_eq(ffa_device_time_end(context, NULL, &ms, &err), FFA_INVALID);
    ck_assert(ms == 0);
}
END_TEST

/* ---- devices there are none of ---- */

START_TEST(devices_that_are_not_there)
{
    static const int ordinals[] = { 0, 99, INT32_MAX };
    ffa_context_info info = FFA_CONTEXT_INFO_INIT;
    ffa_context *opened = NULL;
    ffa_error err = { FFA_OK, 0, "" };

    must(ffa_open(&opened, FFA_DEVICE_AUTO, NULL, &err), &err);
    must(ffa_context_info_get(opened, &info, &err), &err);
    ck_assert_str_eq(info.arch, "sm_90a");
    ck_assert_int_eq(info.device == FFA_DEVICE_CPU, strcmp(info.device_name, "cpu") == 0);
    ck_assert_int_ge(info.cpu_threads, 1);
    ck_assert_str_eq(info.store_path, "");
    ffa_close(opened);

    for (int i = info.device == FFA_DEVICE_CPU ? 0 : 1; i < 3; i++) {
        ffa_status rc;

        opened = context;
        rc = ffa_open(&opened, ordinals[i], NULL, &err);
        ck_assert_msg(rc == FFA_GPU || rc == FFA_INVALID || rc == FFA_UNSUPPORTED, "%s",
                      ffa_status_text(rc));
        ck_assert_ptr_null(opened);
        ck_assert_msg(strstr(err.message, "device"), "%s", err.message);
        ck_assert_int_eq(rc == FFA_GPU, err.native != 0);
    }
    fault_arm(FAULT_GPU, 1);
    opened = context;
    ck_assert_int_eq(ffa_open(&opened, 0, NULL, &err), FFA_GPU);
    ck_assert(fault_fired());
    ck_assert_ptr_null(opened);
    ck_assert_msg(strstr(err.message, "cannot count the CUDA devices"), "%s", err.message);
}
END_TEST

/* ---- no memory ---- */

static ffa_status fault_open(ffa_error *err)
{
    ffa_context_opts opts = FFA_CONTEXT_OPTS_INIT;

    opts.templates_dir = FFA_TEST_SOURCE_DIR "/templates";
    opts.nvrtc_path = opts.nccl_path = "/nowhere";
    return open_it(&opts, err);
}

static ffa_status fault_kernels(ffa_error *err)
{
    return create_it(&spec, err);
}

static ffa_status fault_plan(ffa_error *err)
{
    struct ffa_kernels gpu = gpu_kernels(16, 16);
    const ffa_slice slices[] = { { 0, 20, 0, 20, 1, 0 },
                                 { 5, 40, 30, 50, 2, 0 },
                                 { 3, 30, 25, 28, 0, 0 } };
    ffa_mask *of = NULL;
    ffa_plan *made = plan;
    ffa_status rc = ffa_mask_create(&of, &shape, slices, 3, err);

    if (rc == FFA_OK) {
        rc = ffa_plan_create(&made, &gpu, of, err);
        ck_assert_int_eq(made != NULL, rc == FFA_OK);
        ffa_plan_destroy(made);
    }
    ck_assert_int_eq(of != NULL, rc == FFA_OK || made == NULL);
    ffa_mask_destroy(of);
    return rc;
}

static ffa_status fault_forward(ffa_error *err)
{
    return ffa_forward(kernels, plan, &test.args, NULL, err);
}

/* In a context of its own, so that its kernels are made each time. */
static ffa_status fault_attention(ffa_error *err)
{
    ffa_context_opts opts = FFA_CONTEXT_OPTS_INIT;
    ffa_context *own = NULL;
    ffa_status rc;

    opts.cpu_threads = 2;
    rc = ffa_open(&own, FFA_DEVICE_CPU, &opts, err);
    if (rc == FFA_OK)
        rc = ffa_attention(own, mask, &spec, &test.args, NULL, err);
    ffa_close(own);
    return rc;
}

static ffa_status fault_alloc(ffa_error *err)
{
    void *memory = &memory;
    ffa_status rc = ffa_device_alloc(&memory, context, 10, err);

    ck_assert_int_eq(memory != NULL, rc == FFA_OK);
    ffa_device_free(context, memory);
    return rc;
}

static const struct {
    const char *name;
    ffa_status (*call)(ffa_error *err);
    long at_least; /* allocations that can fail */
} fault_calls[] = {
    { "ffa_open", fault_open, 8 },           { "ffa_kernels_create", fault_kernels, 1 },
    { "ffa_plan_create", fault_plan, 10 },   { "ffa_forward", fault_forward, 2 },
    { "ffa_attention", fault_attention, 8 }, { "ffa_device_alloc", fault_alloc, 1 },
};

START_TEST(any_allocation_may_fail)
{
    const char *name = fault_calls[_i].name;
    ffa_error err = { FFA_OK, 0, "" };
    long nth = 1;

    for (;; nth++) {
        ffa_status rc;
        bool fired;

        err = (ffa_error){ FFA_OK, 0, "" };
        fault_arm(FAULT_ALLOC, nth);
        rc = fault_calls[_i].call(&err);
        fired = fault_fired();
        fault_arm(FAULT_ALLOC, 0);
        if (!fired)
            break;
        ck_assert_msg(rc == FFA_NOMEM, "%s, %ld: %s", name, nth, ffa_status_text(rc));
        ck_assert_msg(strstr(err.message, "no memory"), "%s, %ld: '%s'", name, nth, err.message);
        ck_assert_int_eq(err.status, FFA_NOMEM);
        err = (ffa_error){ FFA_OK, 0, "" };
        must(fault_calls[_i].call(&err), &err);
    }
    ck_assert_msg(nth > fault_calls[_i].at_least, "%s: %ld allocations", name, nth - 1);
}
END_TEST

#define ROWS_OF(table) (int)(sizeof table / sizeof *table)

int main(void)
{
    Suite *suite = suite_create("api");
    TCase *tc = tcase_create("api");

    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, null_is_named);
    tcase_add_test(tc, null_is_allowed);
    tcase_add_loop_test(tc, forward_checks_its_arguments, 0, ROWS_OF(bad_args));
    tcase_add_test(tc, forward_checks_what_belongs_together);
    tcase_add_test(tc, strides_over_one_are_ignored);
    tcase_add_loop_test(tc, specs_are_checked, 0, ROWS_OF(specs));
    tcase_add_loop_test(tc, options_of_other_headers, 0, ROWS_OF(imports));
    tcase_add_loop_test(tc, results_for_other_headers, 0, ROWS_OF(exports));
    tcase_add_loop_test(tc, attention_as_the_oracle, 0, ROWS_OF(answers));
    tcase_add_test(tc, plans_tell_their_numbers);
    tcase_add_test(tc, plans_have_options);
    tcase_add_loop_test(tc, masks_choose_their_kernel, 0, ROWS_OF(choices));
    tcase_add_loop_test(tc, packed_documents_have_tiles, 0, ROWS_OF(packed_counts));
    tcase_add_test(tc, plans_of_a_gpu_have_an_image);
    tcase_add_loop_test(tc, packing_is_chosen, 0, ROWS_OF(packs));
    tcase_add_test(tc, calls_have_the_heads_of_the_spec);
    tcase_add_test(tc, lists_are_not_split);
    tcase_add_loop_test(tc, splits_are_chosen, 0, ROWS_OF(auto_splits));
    tcase_add_loop_test(tc, heads_asked_for_take_tiles_of_other_rows, 0, ROWS_OF(asked_heads));
    tcase_add_test(tc, a_chosen_split_may_find_no_memory);
    tcase_add_test(tc, device_calls_on_the_host);
    tcase_add_test(tc, devices_that_are_not_there);
    tcase_add_loop_test(tc, any_allocation_may_fail, 0, ROWS_OF(fault_calls));
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
