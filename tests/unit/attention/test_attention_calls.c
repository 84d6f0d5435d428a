/* SPDX-License-Identifier: Apache-2.0
 *
 * What calls of both passes read and refuse of their tensors and workspaces, on the CPU backend:
 * expanded tensors, against copies of them and against the fp64 oracle; what the caller says it
 * knows of a tensor; the strides that calls begin with.
 */
#include "attention/arguments.h"
#include "oracle/oracle_backward.h"
#include "support/attention_case.h"
#include "support/suite.h"

#include <check.h>
#include <ffa/ffa.h>
#include <stdio.h>

#define ROWS_OF(table) (int)(sizeof table / sizeof *table)

enum { QUERIES = 40, KEYS = 50, HEADS_Q = 4, HEADS_KV = 2, DIM = 16 };

static ffa_context *context;

static void must(ffa_status rc, const ffa_error *err)
{
    ck_assert_msg(rc == FFA_OK, "%s: %s", ffa_status_text(rc), err->message);
}

static void setup(void)
{
    ffa_context_opts opts = FFA_CONTEXT_OPTS_INIT;
    ffa_error err = { FFA_OK, 0, "" };

    opts.cpu_threads = 2;
    must(ffa_open(&context, FFA_DEVICE_CPU, &opts, &err), &err);
}

static void teardown(void)
{
    ffa_close(context);
}

/* ---- a problem ---- */

struct problem {
    ffa_mask *mask;
    ffa_kernels *kernels;
    ffa_plan *plan;
    struct attention_case test;
    struct attention_gradients gradients;
    ffa_forward_args forward;
    ffa_backward_args backward;
};

static void problem_init(struct problem *p, ffa_dtype dtype)
{
    const struct attention_shape shape = { { QUERIES, KEYS }, dtype, HEADS_Q,
                                           HEADS_KV,          DIM,   LAYOUT_PADDED };
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;
    struct rng rng = { 31 };
    ffa_error err = { FFA_OK, 0, "" };

    *p = (struct problem){ 0 };
    must(ffa_mask_parse(&p->mask, "causal:40x50", &err), &err);
    attention_case_init(&p->test, &shape, &rng);
    attention_gradients_init(&p->gradients, &p->test, dtype, &rng);
    spec.dtype = dtype;
    spec.head_dim = DIM;
    spec.flags = FFA_SPEC_BACKWARD;
    spec.tile_m = spec.tile_n = spec.backward_tile_m = spec.backward_tile_n = 16;
    must(ffa_kernels_create(&p->kernels, context, &spec, &err), &err);
    must(ffa_plan_create(&p->plan, p->kernels, p->mask, &err), &err);
    p->forward = p->test.args;
    must(ffa_forward(p->kernels, p->plan, &p->forward, NULL, &err), &err);
    p->backward = attention_backward_args_of(&p->test, &p->gradients);
    p->backward.dlse = p->gradients.dlse;
}

static void problem_finish(struct problem *p)
{
    attention_gradients_finish(&p->gradients);
    attention_case_finish(&p->test);
    ffa_plan_destroy(p->plan);
    ffa_kernels_destroy(p->kernels);
    ffa_mask_destroy(p->mask);
}

/* ---- expanded tensors ---- */

static const struct {
    const char *name;
    size_t forward, backward; /* in the arguments; forward 0: it is written there, or not at all */
    bool is_key, is_lse;
} inputs[] = {
    { "q", offsetof(ffa_forward_args, q), offsetof(ffa_backward_args, q), false, false },
    { "k", offsetof(ffa_forward_args, k), offsetof(ffa_backward_args, k), true, false },
    { "v", offsetof(ffa_forward_args, v), offsetof(ffa_backward_args, v), true, false },
    { "out", 0, offsetof(ffa_backward_args, out), false, false },
    { "lse", 0, offsetof(ffa_backward_args, lse), false, true },
    { "dout", 0, offsetof(ffa_backward_args, dout), false, false },
    { "dlse", 0, offsetof(ffa_backward_args, dlse), false, true },
};

static ffa_tensor *tensor_at(void *args, size_t at)
{
    return (ffa_tensor *)(void *)((char *)args + at);
}

/* Results as they are read, one after another. */
static int64_t results_take(double *to, const struct problem *p, bool is_backward)
{
    const ffa_tensor *const forward[] = { &p->forward.out, &p->forward.lse };
    const ffa_tensor *const backward[] = { &p->backward.dq, &p->backward.dk, &p->backward.dv };
    const ffa_dtype dtype = p->test.shape.dtype;
    int64_t count = 0;

    for (int i = 0; i < (is_backward ? 3 : 2); i++) {
        const bool is_key = is_backward && i > 0, is_lse = !is_backward && i == 1;

        for (int64_t t = 0; t < (is_key ? KEYS : QUERIES); t++)
            for (int32_t h = 0; h < (is_key ? HEADS_KV : HEADS_Q); h++)
                for (int32_t c = 0; c < (is_lse ? 1 : DIM); c++)
                    to[count++] =
                        attention_read(is_backward ? backward[i] : forward[i],
                                       is_lse ? attention_sum_dtype(dtype) : dtype, t, h, c);
    }
    return count;
}

enum { RESULTS = (QUERIES + KEYS) * HEADS_Q * (DIM + 1) };

static int64_t run(double *results, struct problem *p, bool is_backward)
{
    ffa_error err = { FFA_OK, 0, "" };

    if (is_backward)
        must(ffa_backward(p->kernels, p->plan, &p->backward, NULL, &err), &err);
    else
        must(ffa_forward(p->kernels, p->plan, &p->forward, NULL, &err), &err);
    return results_take(results, p, is_backward);
}

/* A copy of a tensor, as large as it says it is. */
static ffa_tensor materialise(const struct problem *p, const ffa_tensor *from, int input,
                              void **memory)
{
    const ffa_dtype dtype =
        inputs[input].is_lse ? attention_sum_dtype(p->test.shape.dtype) : p->test.shape.dtype;
    const int64_t tokens = inputs[input].is_key ? KEYS : QUERIES;
    const int32_t heads = inputs[input].is_key ? HEADS_KV : HEADS_Q;
    const int32_t dim = inputs[input].is_lse ? 1 : DIM;
    ffa_tensor copy = FFA_TENSOR_INIT(NULL);

    attention_place(&copy, memory, LAYOUT_TOKENS, tokens, heads, dim,
                    (int64_t)ffa_dtype_bytes(dtype));
    for (int64_t t = 0; t < tokens; t++)
        for (int32_t h = 0; h < heads; h++)
            for (int32_t c = 0; c < dim; c++)
                attention_write(&copy, dtype, t, h, c, attention_read(from, dtype, t, h, c));
    return copy;
}

/* The same bits as with the copy, and not those of the tensor that was not expanded. */
static void check_expanded(struct problem *p, int input, int how, bool is_backward)
{
    ffa_tensor *tensor = is_backward ? tensor_at(&p->backward, inputs[input].backward)
                                     : tensor_at(&p->forward, inputs[input].forward);
    const ffa_tensor given = *tensor;
    double *whole = calloc(3 * RESULTS, sizeof *whole), *expanded = whole + RESULTS,
           *copied = expanded + RESULTS;
    void *memory;
    int64_t count;

    ck_assert_ptr_nonnull(whole);
    (void)run(whole, p, is_backward);
    if (how & 1)
        tensor->token_stride = 0;
    if (how & 2)
        tensor->head_stride = 0;
    (void)run(expanded, p, is_backward);
    *tensor = materialise(p, tensor, input, &memory);
    count = run(copied, p, is_backward);
    *tensor = given;
    ck_assert_msg(!memcmp(expanded, copied, (size_t)count * sizeof *copied),
                  "%s: expanded by %d, %s: not what its copy gives", inputs[input].name, how,
                  is_backward ? "backward" : "forward");
    ck_assert_msg(memcmp(expanded, whole, (size_t)count * sizeof *whole),
                  "%s: expanded by %d: the strides had no effect", inputs[input].name, how);
    free(memory);
    free(whole);
}

START_TEST(expanded_tensors_are_their_copies)
{
    static const ffa_dtype dtypes[] = { FFA_BF16, FFA_FP16, FFA_FP32, FFA_FP64 };
    const int input = _i / 3, how = 1 + _i % 3; /* 1: along tokens, 2: along heads */

    for (int d = 0; d < ROWS_OF(dtypes); d++) {
        struct problem p;

        problem_init(&p, dtypes[d]);
        if (inputs[input].forward)
            check_expanded(&p, input, how, false);
        check_expanded(&p, input, how, true);
        problem_finish(&p);
    }
}
END_TEST

/* As the gradient of a sum over out is: one number for all rows. */
START_TEST(an_expanded_gradient_as_the_oracle)
{
    static const ffa_dtype dtypes[] = { FFA_BF16, FFA_FP16, FFA_FP32, FFA_FP64 };
    const ffa_dtype dtype = dtypes[_i];
    const struct oracle_backward_tolerance tolerance = oracle_backward_tolerance_of(dtype, KEYS);
    struct oracle_backward_report report;
    struct oracle_backward_case test;
    struct oracle_gradients want;
    ffa_slice_list list;
    struct problem p;
    ffa_error err = { FFA_OK, 0, "" };

    problem_init(&p, dtype);
    p.backward.dout.token_stride = p.backward.dout.head_stride = 0;
    for (int32_t c = 0; c < DIM; c++)
        attention_write(&p.backward.dout, dtype, 0, 0, c, 1.0);
    list = ffa_mask_slices(p.mask, 0);
    test = (struct oracle_backward_case){ .forward = { .shape = { QUERIES, KEYS },
                                                       .lists = &list,
                                                       .list_count = 1,
                                                       .head_dim = DIM,
                                                       .dtype = dtype,
                                                       .args = &p.forward },
                                          .grad_dtype = dtype,
                                          .dout = p.backward.dout,
                                          .dlse = p.backward.dlse,
                                          .dq = p.backward.dq,
                                          .dk = p.backward.dk,
                                          .dv = p.backward.dv };
    oracle_backward_poison(&test);
    must(ffa_backward(p.kernels, p.plan, &p.backward, NULL, &err), &err);
    must(oracle_backward(&want, &test, &err), &err);
    oracle_backward_compare(&report, &test, &want, &tolerance);
    ck_assert_msg(report.passed, "%s", report.reason);
    oracle_gradients_finish(&want);
    problem_finish(&p);
}
END_TEST

/* ---- what is refused ---- */

enum field { TOKEN_STRIDE, HEAD_STRIDE, TOKENS, HEADS, HEAD_DIM, DTYPE, BATCH, BATCH_STRIDE };

static void set(ffa_tensor *tensor, enum field field, int64_t value)
{
    int64_t *const wide[] = { [TOKEN_STRIDE] = &tensor->token_stride,
                              [HEAD_STRIDE] = &tensor->head_stride,
                              [TOKENS] = &tensor->tokens,
                              [HEAD_DIM] = &tensor->head_dim,
                              [BATCH_STRIDE] = &tensor->batch_stride };

    if (field == HEADS)
        tensor->heads = (int32_t)value;
    else if (field == DTYPE)
        tensor->dtype = (int32_t)value;
    else if (field == BATCH)
        tensor->batch = (int32_t)value;
    else
        *wide[field] = value;
}

#define FORWARD(name) offsetof(ffa_forward_args, name), 0
#define BACKWARD(name) 0, offsetof(ffa_backward_args, name)
#define WRITTEN " is 0, which makes its rows overlap, and it is written; FFA_CONTIGUOUS says"

static const struct {
    size_t forward, backward;
    enum field field;
    int64_t value;
    enum field also; /* set to also_value where that is not 0 */
    int64_t also_value;
    const char *says; /* NULL: accepted */
} rows[] = {
    { FORWARD(out), TOKEN_STRIDE, 0, 0, 0, "out: token_stride" WRITTEN },
    { FORWARD(out), HEAD_STRIDE, 0, 0, 0, "out: head_stride" WRITTEN },
    { FORWARD(lse), TOKEN_STRIDE, 0, 0, 0, "lse: token_stride" WRITTEN },
    { BACKWARD(dq), TOKEN_STRIDE, 0, 0, 0, "dq: token_stride" WRITTEN },
    { BACKWARD(dk), HEAD_STRIDE, 0, 0, 0, "dk: head_stride" WRITTEN },
    { BACKWARD(dv), TOKEN_STRIDE, 0, 0, 0, "dv: token_stride" WRITTEN },
    { FORWARD(q), TOKENS, QUERIES, 0, 0, NULL },
    { FORWARD(q), TOKENS, QUERIES + 1, 0, 0, NULL },
    { FORWARD(q), TOKENS, QUERIES - 1, 0, 0, "q: tokens is 39, the call needs 40" },
    { FORWARD(k), TOKENS, -1, 0, 0, "k: tokens is -1, the call needs 50" },
    { FORWARD(lse), TOKENS, 8, 0, 0, "lse: tokens is 8, the call needs 40" },
    { BACKWARD(dv), TOKENS, QUERIES, 0, 0, "dv: tokens is 40, the call needs 50" },
    { FORWARD(q), HEADS, HEADS_Q, 0, 0, NULL },
    { FORWARD(v), HEADS, HEADS_Q, 0, 0, "v: heads is 4, the call needs 2" },
    { BACKWARD(dout), HEADS, 1, 0, 0, "dout: heads is 1, the call needs 4" },
    { FORWARD(v), HEAD_DIM, DIM, 0, 0, NULL },
    { FORWARD(lse), HEAD_DIM, 1, 0, 0, NULL },
    { FORWARD(v), HEAD_DIM, 64, 0, 0, "v: head_dim is 64, the call needs 16" },
    { BACKWARD(lse), HEAD_DIM, DIM, 0, 0, "lse: head_dim is 16, the call needs 1" },
    { BACKWARD(dlse), HEAD_DIM, DIM, 0, 0, "dlse: head_dim is 16, the call needs 1" },
    { FORWARD(k), DTYPE, FFA_BF16, 0, 0, NULL },
    { FORWARD(lse), DTYPE, FFA_FP32, 0, 0, NULL },
    { FORWARD(k), DTYPE, FFA_FP32, 0, 0, "k: dtype is 3 (fp32), the call takes 1 (bf16)" },
    { FORWARD(lse), DTYPE, FFA_BF16, 0, 0, "lse: dtype is 1 (bf16), the call takes 3 (fp32)" },
    { BACKWARD(dq), DTYPE, 9, 0, 0, "dq: dtype is 9 (unknown), the call takes 1 (bf16)" },
    { FORWARD(q), BATCH, 1, BATCH_STRIDE, 7, NULL }, /* one sample: no stride is taken */
    { FORWARD(q), BATCH, 2, BATCH_STRIDE, FFA_CONTIGUOUS, NULL },
    { FORWARD(q), BATCH, 2, BATCH_STRIDE, QUERIES / 2 * 112, NULL },
    { FORWARD(q), BATCH, 2, BATCH_STRIDE, QUERIES / 2 * 112 + 8,
      "q: batch_stride is 2248, a batch must be foldable into the tokens: 20 tokens a sample times "
      "a token_stride of 112" },
    { FORWARD(q), BATCH, 3, 0, 0, "q: batch is 3, not a divisor of its 40 tokens" },
    { FORWARD(q), BATCH, -2, 0, 0, "q: batch is -2, not a divisor of its 40 tokens" },
    { BACKWARD(dk), BATCH, 5, BATCH_STRIDE, 4, "dk: batch_stride is 4, a batch must be foldable" },
};

START_TEST(what_is_known_of_tensors_is_checked)
{
    struct problem p;
    ffa_tensor *tensor;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_status rc;

    problem_init(&p, FFA_BF16);
    tensor = rows[_i].forward ? tensor_at(&p.forward, rows[_i].forward)
                              : tensor_at(&p.backward, rows[_i].backward);
    set(tensor, rows[_i].field, rows[_i].value);
    if (rows[_i].also_value)
        set(tensor, rows[_i].also, rows[_i].also_value);
    rc = rows[_i].forward ? ffa_forward(p.kernels, p.plan, &p.forward, NULL, &err)
                          : ffa_backward(p.kernels, p.plan, &p.backward, NULL, &err);
    ck_assert_msg(rc == (rows[_i].says ? FFA_INVALID : FFA_OK), "row %d: %s", _i, err.message);
    if (rows[_i].says)
        ck_assert_msg(strstr(err.message, rows[_i].says), "'%s', not '%s'", err.message,
                      rows[_i].says);
    problem_finish(&p);
}
END_TEST

START_TEST(workspaces_are_checked)
{
    static const struct {
        uintptr_t data;
        int64_t bytes, needed;
        const char *says; /* NULL: accepted */
    } workspaces[] = {
        { 0, 0, 0, NULL },
        { 8, -1, 0, NULL }, /* nobody looks at it */
        { 16, 256, 256, NULL },
        { 4096, INT64_MAX, 256, NULL },
        { 0, 256, 256, "workspace is NULL, the call needs 256 bytes of it" },
        { 8, 256, 256, "workspace is 0x8, not 16-byte aligned" },
        { 16, 255, 256, "workspace_bytes is 255, the call needs 256" },
        { 16, -1, 1, "workspace_bytes is -1, the call needs 1" },
        { 16, 0, (int64_t)1 << 40, "workspace_bytes is 0, the call needs 1099511627776" },
    };

    for (int i = 0; i < ROWS_OF(workspaces); i++) {
        const struct workspace given = { (void *)workspaces[i].data, workspaces[i].bytes };
        ffa_error err = { FFA_OK, 0, "" };

        ck_assert_int_eq(workspace_check(&given, workspaces[i].needed, &err),
                         workspaces[i].says ? FFA_INVALID : FFA_OK);
        ck_assert_str_eq(err.message, workspaces[i].says ? workspaces[i].says : "");
    }
}
END_TEST

/* ---- what calls begin with ---- */

static void check_contiguous(const ffa_tensor *tensor)
{
    ck_assert_ptr_null(tensor->data);
    ck_assert_int_eq(tensor->token_stride, FFA_CONTIGUOUS);
    ck_assert_int_eq(tensor->head_stride, FFA_CONTIGUOUS);
    ck_assert_int_eq(tensor->tokens | tensor->head_dim | tensor->batch_stride | tensor->batch |
                         tensor->heads | tensor->dtype,
                     0);
}

START_TEST(arguments_begin_contiguous)
{
    const ffa_forward_args f = FFA_FORWARD_ARGS_INIT;
    const ffa_backward_args b = FFA_BACKWARD_ARGS_INIT;
    const ffa_parallel_args p = FFA_PARALLEL_ARGS_INIT;
    const ffa_tensor *const all[] = {
        &f.q,  &f.k,          &f.v,          &f.out,  &f.lse,  &f.partial, &b.q,
        &b.k,  &b.v,          &b.out,        &b.lse,  &b.dout, &b.dq,      &b.dk,
        &b.dv, &b.partial_dk, &b.partial_dv, &b.dlse, &p.dlse, &p.q,       &p.k,
        &p.v,  &p.out,        &p.lse,        &p.dout, &p.dq,   &p.dk,      &p.dv,
    };

    for (int i = 0; i < ROWS_OF(all); i++)
        check_contiguous(all[i]);
}
END_TEST

/* A program that was built with a newer header, which has one tensor more. */
START_TEST(a_newer_tensor_is_refused_where_it_is_given)
{
    const bool is_given = _i == 1;
    union {
        struct {
            ffa_backward_args args;
            ffa_tensor newer;
        } of;
        ffa_backward_args args;
    } program;
    struct problem p;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_status rc;

    problem_init(&p, FFA_FP32);
    memset(&program, 0, sizeof program);
    program.args = p.backward;
    program.args.struct_size = (uint32_t)sizeof program;
    ffa_tensor_init(&program.of.newer, is_given ? p.backward.dlse.data : NULL);
    rc = ffa_backward(p.kernels, p.plan, &program.args, NULL, &err);
    ck_assert_msg(rc == (is_given ? FFA_UNSUPPORTED : FFA_OK), "%s", err.message);
    problem_finish(&p);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("calls");
    TCase *tc = tcase_create("calls");

    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, expanded_tensors_are_their_copies, 0, 3 * ROWS_OF(inputs));
    tcase_add_loop_test(tc, an_expanded_gradient_as_the_oracle, 0, 4);
    tcase_add_loop_test(tc, what_is_known_of_tensors_is_checked, 0, ROWS_OF(rows));
    tcase_add_test(tc, workspaces_are_checked);
    tcase_add_test(tc, arguments_begin_contiguous);
    tcase_add_loop_test(tc, a_newer_tensor_is_refused_where_it_is_given, 0, 2);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
