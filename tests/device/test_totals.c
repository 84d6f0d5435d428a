/* SPDX-License-Identifier: Apache-2.0
 *
 * What ranks sum up together: max_logits, dsink, and dk and dv of replicated keys, of passes over
 * several ranks, threads that share one GPU, against those of one rank. All ranks must have the
 * same bits. Calls follow each other without a wait, each with another scale and its own outputs,
 * so that a vector of a call that gets into another one is seen. Exit 77 where there is no GPU.
 * FFA_TEST_STORE=PATH is a store for the kernels.
 */
#include "base/half.h"
#include "support/bootstrap.h"
#include "support/rng.h"
#include "support/suite.h"

#include <check.h>
#include <ffa/ffa.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    RANKS = 4,
    CALLS = 5,
    HEADS_Q = 4,
    HEADS_KV = 2,
    HEAD_DIM = 64,
    SINKS = 2,
    TOKENS = 90,
    REPLICATED = 70,     /* keys */
    SMS_FREE = 4,        /* of a GPU that ranks share: for copies between them */
    PATIENCE_MS = 250000 /* other processes may be at work on the GPU */
};

/* Ranks take keys in another order, so out differs by roundings, and with it what dsink is made of.
 */
static const float dsink_tolerance = 1e-2f;

static ffa_context *context;
static ffa_kernels *kernels, *staged; /* staged: where queries move */

enum kind { MOVED_KEYS, REPLICATED_KEYS, MOVED_QUERIES, KINDS };
enum tensor { Q, K, V, DOUT, OUT, LSE, DQ, DK, DV, TENSORS };

struct group {
    struct bootstrap *bootstrap;
    ffa_dispatch *dispatch;
    ffa_mask *mask;
    uint16_t *whole[DOUT + 1];
    float sink[SINKS][HEADS_Q];
    int32_t ranks;
    enum kind kind;
    const ffa_kernels *kernels;
};

/* Of replicated keys. */
enum { KEY_ELEMENTS = REPLICATED * HEADS_KV * HEAD_DIM };

struct rank {
    const struct group *group;
    struct bootstrap_end end;
    int32_t rank;
    ffa_parallel_plan *plan;
    ffa_parallel_pass *pass;
    ffa_parallel_pass_info info;
    ffa_comm *comm;
    ffa_stream stream;
    void *tensors[TENSORS], *sink, *max_logits, *dsink, *upload, *workspace;
    int64_t workspace_bytes;
    uint16_t found_keys[2][KEY_ELEMENTS]; /* dk and dv of the last call */
    float found_max[CALLS][HEADS_Q], found_dsink[CALLS][SINKS][HEADS_Q];
};

/* Ends the program: a rank is a thread, which libcheck cannot jump out of, and the others would
 * wait for it. */
static void ok(ffa_status rc, const ffa_error *err)
{
    if (rc == FFA_OK)
        return;
    fprintf(stderr, "%s\n", err->message);
    _Exit(1);
}

static void *device_new(int64_t bytes)
{
    ffa_error err = { FFA_OK, 0, "" };
    void *memory;

    ok(ffa_device_alloc(&memory, context, bytes, &err), &err);
    ok(ffa_device_fill(context, memory, 255, bytes, &err), &err);
    return memory;
}

/* ---- rows ---- */

static ffa_rows rows_of(const struct rank *r, enum tensor tensor)
{
    const bool is_key = tensor == K || tensor == V || tensor == DK || tensor == DV;

    return (ffa_rows){ .dispatch = r->group->dispatch,
                       .side = is_key ? FFA_SIDE_KEYS : FFA_SIDE_QUERIES,
                       .rank = r->rank,
                       .dtype = tensor == LSE ? FFA_FP32 : FFA_BF16,
                       .heads = is_key ? HEADS_KV : HEADS_Q,
                       .head_dim = tensor == LSE ? 1 : HEAD_DIM };
}

static int64_t bytes_of(const struct rank *r, enum tensor tensor)
{
    const ffa_rows rows = rows_of(r, tensor);
    const int64_t count = rows.side == FFA_SIDE_KEYS
                              ? ffa_dispatch_key_rows(rows.dispatch, rows.rank)
                              : ffa_dispatch_query_rows(rows.dispatch, rows.rank);

    return count * rows.heads * rows.head_dim * (tensor == LSE ? 4 : 2);
}

static void make_rows(struct rank *r)
{
    ffa_error err = { FFA_OK, 0, "" };

    for (int t = 0; t < TENSORS; t++) {
        const ffa_rows rows = rows_of(r, (enum tensor)t);
        const int64_t bytes = bytes_of(r, (enum tensor)t);
        void *local = malloc((size_t)bytes + 1);
        const ffa_tensor to = FFA_TENSOR_INIT(local);

        r->tensors[t] = device_new(bytes);
        if (t <= DOUT) {
            const ffa_tensor whole = FFA_TENSOR_INIT(r->group->whole[t]);

            ok(ffa_rows_dispatch(&rows, &whole, &to, &err), &err);
            ok(ffa_device_copy(context, r->tensors[t], local, bytes, FFA_TO_DEVICE, &err), &err);
        }
        free(local);
    }
    r->sink = device_new(sizeof r->group->sink);
    ok(ffa_device_copy(context, r->sink, r->group->sink, sizeof r->group->sink, FFA_TO_DEVICE,
                       &err),
       &err);
    r->max_logits = device_new(sizeof r->found_max);
    r->dsink = device_new(sizeof r->found_dsink);
}

/* ---- ranks ---- */

static void make_pass(struct rank *r)
{
    ffa_parallel_plan_opts opts = FFA_PARALLEL_PLAN_OPTS_INIT;
    ffa_error err = { FFA_OK, 0, "" };

    opts.forward_stages = opts.backward_stages = 1;
    opts.stage_rows_min = 1;
    opts.model.heads_q = HEADS_Q;
    opts.model.heads_kv = HEADS_KV;
    opts.model.head_dim = HEAD_DIM;
    opts.moves =
        r->group->kind == MOVED_QUERIES ? FFA_PARALLEL_MOVE_QUERIES : FFA_PARALLEL_MOVE_KEYS;
    ok(ffa_parallel_plan_create(&r->plan, r->group->dispatch, r->group->mask, r->rank, &opts, &err),
       &err);
    ok(ffa_parallel_pass_create(&r->pass, r->plan, r->group->kernels, &err), &err);
    r->info = (ffa_parallel_pass_info)FFA_PARALLEL_PASS_INFO_INIT;
    ok(ffa_parallel_pass_info_get(r->pass, r->group->kernels, HEADS_Q, HEADS_KV, &r->info, &err),
       &err);
    ok(ffa_device_stream_create(&r->stream, context, &err), &err);
    r->upload = device_new(r->info.upload_bytes);
    ok(ffa_parallel_pass_upload(r->pass, r->group->kernels, r->upload, r->stream, &err), &err);
    r->workspace_bytes = r->info.forward_workspace_bytes > r->info.backward_workspace_bytes
                             ? r->info.forward_workspace_bytes
                             : r->info.backward_workspace_bytes;
    r->workspace = device_new(r->workspace_bytes);
}

static void make_comm(struct rank *r)
{
    ffa_peer_opts opts = FFA_PEER_OPTS_INIT;
    ffa_error err = { FFA_OK, 0, "" };

    r->end.all = r->group->bootstrap;
    r->end.rank = r->rank;
    opts.key_bytes = r->info.key_bytes;
    opts.sum_bytes = r->info.sum_bytes;
    opts.timeout_ms = PATIENCE_MS;
    ok(bootstrap_join(&r->comm, context, &r->end, &opts, &err), &err);
}

static ffa_parallel_args args_of(const struct rank *r, int call)
{
    ffa_context_info info = FFA_CONTEXT_INFO_INIT;
    ffa_parallel_args args = FFA_PARALLEL_ARGS_INIT;

    (void)ffa_context_info_get(context, &info, NULL);
    args.heads_q = HEADS_Q;
    args.heads_kv = HEADS_KV;
    args.head_dim = HEAD_DIM;
    args.dtype = FFA_BF16;
    args.softmax_scale = 0.02 * (call + 1);
    args.q.data = r->tensors[Q];
    args.k.data = r->tensors[K];
    args.v.data = r->tensors[V];
    args.out.data = r->tensors[OUT];
    args.lse.data = r->tensors[LSE];
    args.dout.data = r->tensors[DOUT];
    args.dq.data = r->tensors[DQ];
    args.dk.data = r->tensors[DK];
    args.dv.data = r->tensors[DV];
    args.sink = r->sink;
    args.sink_count = SINKS;
    args.max_logits = (float *)r->max_logits + (ptrdiff_t)call * HEADS_Q;
    args.dsink = (float *)r->dsink + (ptrdiff_t)call * SINKS * HEADS_Q;
    args.sm_margin =
        r->group->ranks > 1 ? info.sm_count - (info.sm_count - SMS_FREE) / r->group->ranks : 0;
    args.workspace = r->workspace;
    args.workspace_bytes = r->workspace_bytes;
    return args;
}

static void *run_rank(void *user)
{
    struct rank *r = user;
    ffa_error err = { FFA_OK, 0, "" };

    make_rows(r);
    make_pass(r);
    make_comm(r);
    for (int i = 0; i < CALLS; i++) {
        const ffa_parallel_args args = args_of(r, i);

        ok(ffa_parallel_forward(r->pass, r->group->kernels, r->comm, &args, r->stream, &err), &err);
        ok(ffa_parallel_backward(r->pass, r->group->kernels, r->comm, &args, r->stream, &err),
           &err);
    }
    ok(ffa_device_stream_synchronize(context, r->stream, &err), &err);
    ok(ffa_comm_status(r->comm, &err), &err);
    ok(ffa_device_copy(context, r->found_max, r->max_logits, sizeof r->found_max, FFA_FROM_DEVICE,
                       &err),
       &err);
    ok(ffa_device_copy(context, r->found_dsink, r->dsink, sizeof r->found_dsink, FFA_FROM_DEVICE,
                       &err),
       &err);
    for (int i = 0; i < 2 && r->group->kind == REPLICATED_KEYS; i++)
        ok(ffa_device_copy(context, r->found_keys[i], r->tensors[i ? DV : DK],
                           sizeof r->found_keys[i], FFA_FROM_DEVICE, &err),
           &err);
    ffa_comm_destroy(r->comm);
    ffa_parallel_pass_destroy(r->pass);
    ffa_parallel_plan_destroy(r->plan);
    for (int t = 0; t < TENSORS; t++)
        ffa_device_free(context, r->tensors[t]);
    ffa_device_free(context, r->sink);
    ffa_device_free(context, r->max_logits);
    ffa_device_free(context, r->dsink);
    ffa_device_free(context, r->upload);
    ffa_device_free(context, r->workspace);
    ffa_device_stream_destroy(context, r->stream);
    return NULL;
}

/* The ranks' results; to be freed. */
static struct rank *group_run(int32_t count, enum kind kind)
{
    const bool is_replicated = kind == REPLICATED_KEYS;
    struct group group = { .ranks = count,
                           .bootstrap = bootstrap_new(count),
                           .kind = kind,
                           .kernels = kind == MOVED_QUERIES ? staged : kernels };
    ffa_dispatch_opts opts = FFA_DISPATCH_OPTS_INIT;
    struct rank *ranks = calloc((size_t)count, sizeof *ranks);
    const ffa_mask_shape shape = { TOKENS, is_replicated ? REPLICATED : TOKENS };
    const ffa_topology topology = { count, 0 };
    pthread_t threads[RANKS];
    struct rng rng = { 11 };
    ffa_error err = { FFA_OK, 0, "" };

    opts.keys = is_replicated ? FFA_KEYS_REPLICATED : FFA_KEYS_WITH_QUERIES;
    ok(ffa_mask_causal(&group.mask, &shape, &err), &err);
    ok(ffa_dispatch_create(&group.dispatch, &(ffa_dispatch_mask){ group.mask, 1 }, 1, &topology,
                           &opts, &err),
       &err);
    for (int t = 0; t <= DOUT; t++) {
        const int32_t row = (t == K || t == V ? HEADS_KV : HEADS_Q) * HEAD_DIM;

        group.whole[t] = malloc((size_t)(TOKENS * row) * sizeof **group.whole);
        for (int i = 0; i < TOKENS * row; i++)
            group.whole[t][i] = bf16_from_float((float)rng_bell(&rng));
    }
    for (int s = 0; s < SINKS; s++)
        for (int h = 0; h < HEADS_Q; h++)
            group.sink[s][h] = (float)rng_bell(&rng);
    for (int32_t r = 0; r < count; r++) {
        ranks[r].group = &group;
        ranks[r].rank = r;
        ck_assert_int_eq(pthread_create(&threads[r], NULL, run_rank, &ranks[r]), 0);
    }
    for (int32_t r = 0; r < count; r++)
        pthread_join(threads[r], NULL);
    for (int t = 0; t <= DOUT; t++)
        free(group.whole[t]);
    ffa_dispatch_destroy(group.dispatch);
    ffa_mask_destroy(group.mask);
    bootstrap_free(group.bootstrap);
    return ranks;
}

/* ---- tests ---- */

static void keys_check(const uint16_t *found, const uint16_t *expected)
{
    double error = 0, norm = 0;

    for (int i = 0; i < KEY_ELEMENTS; i++) {
        const double x = (double)bf16_to_float(expected[i]);
        const double difference = (double)bf16_to_float(found[i]) - x;

        error += difference * difference;
        norm += x * x;
    }
    ck_assert_double_gt(norm, 1);
    ck_assert_double_lt(sqrt(error / norm), 8e-3);
}

static float largest_difference(float a[SINKS][HEADS_Q], float b[SINKS][HEADS_Q])
{
    float largest = 0;

    for (int s = 0; s < SINKS; s++)
        for (int h = 0; h < HEADS_Q; h++)
            largest = fmaxf(largest, fabsf(a[s][h] - b[s][h]));
    return largest;
}

START_TEST(ranks_have_what_one_rank_has)
{
    const int32_t count = _i / KINDS + 1;
    const enum kind kind = (enum kind)(_i % KINDS);
    struct rank *one = group_run(1, kind), *ranks = group_run(count, kind);

    for (int32_t r = 1; r < count; r++) {
        ck_assert_mem_eq(ranks[r].found_max, ranks[0].found_max, sizeof one->found_max);
        ck_assert_mem_eq(ranks[r].found_dsink, ranks[0].found_dsink, sizeof one->found_dsink);
        ck_assert_mem_eq(ranks[r].found_keys, ranks[0].found_keys, sizeof one->found_keys);
    }
    for (int i = 0; i < 2 && kind == REPLICATED_KEYS; i++)
        keys_check(ranks[0].found_keys[i], one->found_keys[i]);
    for (int c = 0; c < CALLS; c++)
        for (int h = 0; h < HEADS_Q; h++) {
            ck_assert_float_eq_tol(ranks[0].found_max[c][h], one->found_max[c][h],
                                   1e-6f * fabsf(one->found_max[c][h]));
            for (int s = 0; s < SINKS; s++)
                ck_assert_float_eq_tol(ranks[0].found_dsink[c][s][h], one->found_dsink[c][s][h],
                                       dsink_tolerance);
        }
    /* Calls differ: one that got the totals of another would not pass. */
    for (int c = 1; c < CALLS; c++) {
        ck_assert_float_gt(one->found_max[c][0], 1.1f * one->found_max[c - 1][0]);
        ck_assert_float_gt(largest_difference(one->found_dsink[c], one->found_dsink[c - 1]),
                           2 * dsink_tolerance);
    }
    free(one);
    free(ranks);
}
END_TEST

static ffa_status open_all(ffa_error *err)
{
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;

    spec.dtype = FFA_BF16;
    spec.head_dim = HEAD_DIM;
    spec.flags = FFA_SPEC_PARALLEL | FFA_SPEC_BACKWARD | FFA_SPEC_MAX_LOGITS;
    if (ffa_kernels_create(&kernels, context, &spec, err) != FFA_OK)
        return err->status;
    spec.flags |= FFA_SPEC_STAGED;
    return ffa_kernels_create(&staged, context, &spec, err);
}

int main(void)
{
    Suite *suite = suite_create("totals");
    TCase *tc = tcase_create("ranks");
    ffa_context_opts opts = FFA_CONTEXT_OPTS_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    int rc;

    /* Streams of ranks that wait for each other never share a hardware queue. */
    (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    opts.cache_path = getenv("FFA_TEST_STORE");
    if (ffa_open(&context, 0, &opts, &err) != FFA_OK) {
        printf("skipped: no GPU that a kernel exists for: %s\n", err.message);
        return 77;
    }
    if (open_all(&err) != FFA_OK) {
        fprintf(stderr, "%s\n", err.message);
        ffa_kernels_destroy(kernels);
        ffa_close(context);
        return 1;
    }
    tcase_set_timeout(tc, 600);
    tcase_add_loop_test(tc, ranks_have_what_one_rank_has, KINDS, KINDS * RANKS);
    suite_add_tcase(suite, tc);
    rc = suite_run_here(suite);
    ffa_kernels_destroy(staged);
    ffa_kernels_destroy(kernels);
    ffa_close(context);
    return rc;
}
