/* SPDX-License-Identifier: Apache-2.0
 *
 * Distributed passes on the loopback transport against the dense fp64 oracle: masks of every type,
 * heads, sinks, caps, uneven lengths, idle ranks, any number of stages; seeds and threads that must
 * not matter; ranks that fail, differ, leave or are cancelled.
 */
#include "base/base.h"
#include "oracle/oracle_backward.h"
#include "parallel/run/comm.h"
#include "support/mask_cases.h"
#include "support/ranks.h"
#include "support/suite.h"

#include <check.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* ---- one problem ---- */

struct problem {
    struct attention_case test;
    struct attention_gradients gradients;
    ffa_mask *mask;
    ffa_slice_list lists[8];
    double sink[8 * 16]; /* room for either width */
    struct ranks_run run;
};

struct problem_shape {
    ffa_dtype dtype, sum_dtype;
    int32_t heads_q, heads_kv, head_dim, sinks;
    float softcap;
    bool forward_only;
};

static const struct problem_shape small = { FFA_FP64, FFA_FP64, 2, 1, 8, 0, 0, false };

/* Takes the mask. */
static void problem_init(struct problem *p, ffa_mask *mask, const struct problem_shape *shape,
                         uint64_t seed)
{
    const struct attention_shape attention = {
        .mask = { ffa_mask_seqlen_q(mask), ffa_mask_seqlen_k(mask) },
        .dtype = shape->dtype,
        .heads_q = shape->heads_q,
        .heads_kv = shape->heads_kv,
        .head_dim = shape->head_dim,
        .layout = LAYOUT_TOKENS,
    };
    struct rng rng = { seed };

    *p = (struct problem){ .mask = mask };
    attention_case_init(&p->test, &attention, &rng);
    attention_gradients_init(&p->gradients, &p->test, shape->dtype, &rng);
    for (int32_t i = 0; i < shape->sinks * shape->heads_q; i++)
        attention_put(p->sink, shape->sum_dtype, i, rng_bell(&rng));
    p->test.args.sink = p->sink;
    p->test.args.sink_count = shape->sinks;
    p->test.args.softcap = (double)shape->softcap;
    for (int32_t l = 0; l < ffa_mask_head_count(mask); l++)
        p->lists[l] = ffa_mask_slices(mask, l);
    p->run = (struct ranks_run){
        .test = &p->test,
        .gradients = shape->forward_only ? NULL : &p->gradients,
        .mask = mask,
        .dispatch = FFA_DISPATCH_OPTS_INIT,
        .plan = FFA_PARALLEL_PLAN_OPTS_INIT,
        .loopback = FFA_LOOPBACK_OPTS_INIT,
        .rank_count = 4,
        .sum_dtype = shape->sum_dtype,
        .wants_max = true,
        .wants_dsink = shape->sinks > 0,
        .has_dlse = seed % 2 && attention_sum_dtype(shape->dtype) == shape->sum_dtype,
    };
    p->run.dispatch.flags = FFA_DISPATCH_CHUNK_EXACT;
    p->run.plan.tile_m = p->run.plan.tile_n = 16;
    p->run.plan.backward_m = p->run.plan.backward_n = 16;
    p->run.plan.stage_rows_min = 1;
    p->run.loopback.delay = 3;
}

static void problem_finish(struct problem *p)
{
    ranks_finish(&p->run);
    ffa_mask_destroy(p->mask);
    attention_gradients_finish(&p->gradients);
    attention_case_finish(&p->test);
}

static void run(struct problem *p, const char *name)
{
    ranks_finish(&p->run);
    ranks_run_all(&p->run);
    for (int32_t r = 0; r < p->run.rank_count; r++)
        ck_assert_msg(p->run.status[r] == FFA_OK, "%s: rank %d: %s", name, r,
                      p->run.errors[r].message);
}

/* ---- comparison: the largest difference, relative to the largest value of the tensor. Where all
 * of them cancel (dq of rows with one key), terms of order 1 are what errors come from. ---- */

struct worst {
    double error, size;
};

static void look(struct worst *worst, double got, double want)
{
    const double error = got == want ? 0 : fabs(got - want);

    if (!(error <= worst->error)) /* NaN, too */
        worst->error = error;
    if (isfinite(want) && fabs(want) > worst->size)
        worst->size = fabs(want);
}

static void expect(const struct worst *worst, double limit, const char *name, const char *tensor)
{
    ck_assert_msg(worst->error <= limit * fmax(worst->size, 0.1), "%s: %s is off by %g of %g", name,
                  tensor, worst->error, worst->size);
}

static void compare_tensor(const struct problem *p, const ffa_tensor *got, const double *want,
                           int64_t rows, int32_t heads, double limit, const char *name,
                           const char *tensor)
{
    const int32_t dim = p->test.shape.head_dim;
    struct worst worst = { 0, 0 };

    for (int64_t t = 0; t < rows; t++)
        for (int32_t h = 0; h < heads; h++)
            for (int32_t c = 0; c < dim; c++)
                look(&worst, attention_read(got, p->test.shape.dtype, t, h, c),
                     want[(t * heads + h) * dim + c]);
    expect(&worst, limit, name, tensor);
}

static void compare_forward(struct problem *p, const struct oracle_case *test, double limit,
                            const char *name)
{
    const int64_t rows = p->test.shape.mask.seqlen_q;
    const int32_t heads = p->test.shape.heads_q;
    struct worst lse = { 0, 0 };
    struct oracle_result want;

    ck_assert_int_eq(oracle_forward(&want, test, NULL), FFA_OK);
    compare_tensor(p, &p->test.args.out, want.out, rows, heads, limit, name, "out");
    for (int64_t i = 0; i < rows * heads; i++)
        look(&lse, p->run.lse[i], want.lse[i]);
    expect(&lse, limit, name, "lse");
    for (int32_t h = 0; h < heads; h++) {
        double top = -INFINITY;

        for (int64_t t = 0; t < rows; t++)
            top = fmax(top, want.top[t * heads + h]);
        ck_assert_msg(p->run.max_logits[h] == top ||
                          fabs(p->run.max_logits[h] - top) <= (limit > 1e-8 ? 1e-5 : 1e-13),
                      "%s: max_logits[%d] is %g, not %g", name, h, p->run.max_logits[h], top);
    }
    oracle_result_finish(&want);
}

static void compare(struct problem *p, const char *name)
{
    const struct attention_shape *shape = &p->test.shape;
    const double limit = p->run.sum_dtype == FFA_FP64 ? 1e-12 : 1e-5;
    double dsink[8 * 16];
    const struct oracle_backward_case test = {
        .forward = { .shape = shape->mask,
                     .lists = p->lists,
                     .list_count = ffa_mask_head_count(p->mask),
                     .head_dim = shape->head_dim,
                     .dtype = shape->dtype,
                     .threads = 1,
                     .args = &p->test.args,
                     .lse_dtype = p->run.sum_dtype },
        .grad_dtype = shape->dtype,
        .dlse = p->run.has_dlse ? p->gradients.dlse : (ffa_tensor){ 0 },
        .dout = p->gradients.dout,
        .dq = p->gradients.dq,
        .dk = p->gradients.dk,
        .dv = p->gradients.dv,
        .dsink = p->run.wants_dsink ? dsink : NULL,
    };
    struct oracle_gradients want;
    struct worst sinks = { 0, 0 };

    compare_forward(p, &test.forward, limit, name);
    if (!p->run.gradients)
        return;
    ck_assert_int_eq(oracle_backward(&want, &test, NULL), FFA_OK);
    compare_tensor(p, &p->gradients.dq, want.dq.at, shape->mask.seqlen_q, shape->heads_q, limit,
                   name, "dq");
    compare_tensor(p, &p->gradients.dk, want.dk.at, shape->mask.seqlen_k, shape->heads_kv, limit,
                   name, "dk");
    compare_tensor(p, &p->gradients.dv, want.dv.at, shape->mask.seqlen_k, shape->heads_kv, limit,
                   name, "dv");
    for (int32_t i = 0; p->run.wants_dsink && i < p->test.args.sink_count * shape->heads_q; i++)
        look(&sinks, p->run.dsink[i], want.dsink.at[i]);
    expect(&sinks, limit, name, "dsink");
    oracle_gradients_finish(&want);
}

static ffa_mask *parse(const char *text)
{
    ffa_error err = { FFA_OK, 0, "" };
    ffa_mask *mask;

    ck_assert_msg(ffa_mask_parse(&mask, text, &err) == FFA_OK, "%s", err.message);
    return mask;
}

/* ---- named cases ---- */

static const struct {
    const char *name, *mask;
    int32_t ranks, per_node, heads_q, heads_kv, sinks;
    float softcap;
    int32_t algorithm, forward_stages, backward_stages, buffers;
    int64_t chunk;
} cases[] = {
    { "one rank", "causal:61", 1, 0, 2, 1, 1, 0, 0, 0, 0, 2, 16 },
    { "full, two ranks", "full:64", 2, 0, 2, 2, 0, 0, 0, 0, 0, 2, 8 },
    { "causal, zigzag", "causal:128", 4, 0, 2, 1, 0, 0, FFA_DISPATCH_ZIGZAG, 2, 2, 2, 16 },
    { "causal, all at once first", "causal:128", 4, 0, 2, 1, 0, 0, 0, -1, -1, 2, 16 },
    { "documents", "varlen-causal:50,3,70,9,40", 5, 0, 4, 2, 0, 0, 0, 0, 0, 2, 8 },
    { "documents, uneven chunks", "varlen-full:50,3,71,9,40", 3, 0, 3, 3, 2, 0, 0, 3, 3, 3, 7 },
    { "window", "window:150,left=20,right=5", 6, 3, 2, 1, 0, 3, 0, 0, 0, 2, 8 },
    { "block causal", "block-causal:96,40/block=16", 8, 4, 2, 2, 1, 0, 0, 2, 3, 2, 8 },
    { "shared question: owners of many", "shared-question:20,60,60", 7, 0, 2, 1, 0, 0, 0, 2, 2, 2,
      5 },
    { "global tokens", "global-window:120,left=8,right=0,global=6", 8, 2, 2, 1, 1, 2, 0, 0, 0, 3,
      5 },
    { "nobody needs another", "varlen-causal:16*4", 4, 0, 2, 2, 0, 0, FFA_DISPATCH_SEQUENTIAL, 0, 0,
      2, 16 },
    { "one token a rank", "causal:16", 16, 4, 2, 1, 1, 0, 0, 0, 0, 2, 1 },
    { "sixteen ranks, eight stages", "full:160", 16, 0, 2, 1, 0, 0, 0, 8, 8, 3, 5 },
    { "sixteen ranks, seven and five stages", "causal:240", 16, 8, 2, 2, 1, 1, 0, 7, 5, 2, 5 },
    { "four stages, three buffers", "causal:200", 8, 0, 4, 1, 0, 0, 0, 4, 4, 3, 5 },
    { "six stages, two buffers", "full:200", 8, 0, 2, 1, 0, 0, 0, 6, 6, 2, 5 },
};

static void run_case(int i, ffa_dtype dtype, int32_t moves)
{
    const struct problem_shape shape = { dtype, dtype,          cases[i].heads_q, cases[i].heads_kv,
                                         8,     cases[i].sinks, cases[i].softcap, false };
    struct problem p;

    problem_init(&p, parse(cases[i].mask), &shape, (uint64_t)i);
    p.run.rank_count = cases[i].ranks;
    p.run.ranks_per_node = cases[i].per_node;
    p.run.dispatch.algorithm = cases[i].algorithm;
    p.run.dispatch.chunk_tokens = cases[i].chunk;
    p.run.plan.forward_stages = cases[i].forward_stages;
    p.run.plan.backward_stages = cases[i].backward_stages;
    p.run.plan.buffers = cases[i].buffers;
    p.run.loopback.seed = (uint64_t)i;
    p.run.plan.moves = moves;
    p.run.threads = 1 + i % 2;
    p.run.passes = 1 + i % 3;
    run(&p, cases[i].name);
    for (int32_t r = 0; r < p.run.rank_count; r++)
        ck_assert_int_eq(p.run.moves[r], moves);
    compare(&p, cases[i].name);
    problem_finish(&p);
}

START_TEST(named_cases_in_fp64)
{
    run_case(_i, FFA_FP64, FFA_PARALLEL_MOVE_KEYS);
}
END_TEST

START_TEST(named_cases_in_fp32)
{
    run_case(_i, FFA_FP32, FFA_PARALLEL_MOVE_KEYS);
}
END_TEST

START_TEST(named_cases_with_queries_that_move)
{
    run_case(_i / 2, _i % 2 ? FFA_FP32 : FFA_FP64, FFA_PARALLEL_MOVE_QUERIES);
}
END_TEST

/* Inputs of one row for all tokens, for all heads, or for both; what moves and what does not. */
START_TEST(expanded_tensors)
{
    static const char *const names[] = { "q", "k", "v", "dout" };
    const int input = _i / 3 % 4, how = 1 + _i % 3; /* 1: along tokens, 2: along heads */
    const struct problem_shape shape = { FFA_FP64, FFA_FP64, 4, 2, 8, 0, 0, false };
    struct problem p;
    ffa_tensor *tensor;

    problem_init(&p, parse("causal:120"), &shape, (uint64_t)_i);
    tensor = input == 0   ? &p.test.args.q
             : input == 1 ? &p.test.args.k
             : input == 2 ? &p.test.args.v
                          : &p.gradients.dout;
    tensor->token_stride = how & 1 ? 0 : tensor->token_stride;
    tensor->head_stride = how & 2 ? 0 : tensor->head_stride;
    p.run.dispatch.chunk_tokens = 8;
    p.run.plan.moves = _i < 12 ? FFA_PARALLEL_MOVE_KEYS : FFA_PARALLEL_MOVE_QUERIES;
    run(&p, names[input]);
    compare(&p, names[input]);
    problem_finish(&p);
}
END_TEST

/* 0 to 8 stages give 0 to 8 stages, and the same result. */
START_TEST(any_number_of_stages)
{
    struct problem p;

    problem_init(&p, parse("full:144"), &small, 5);
    p.run.rank_count = 9;
    p.run.dispatch.chunk_tokens = 4;
    p.run.plan.forward_stages = p.run.plan.backward_stages = _i == 0 ? -1 : _i;
    run(&p, "stages");
    for (int32_t r = 0; r < 9; r++)
        ck_assert_int_eq(p.run.stages[r], _i == 0 ? 1 : _i);
    compare(&p, "stages");
    problem_finish(&p);
}
END_TEST

/* Slices of all types that overlap, one list a kv head. */
static ffa_mask *random_mask(struct rng *rng, int32_t lists)
{
    struct mask_case drawn[4];
    ffa_slice_list of[4];
    ffa_error err = { FFA_OK, 0, "" };
    ffa_mask_shape shape = { 96, 96 };
    ffa_mask *mask;

    for (int32_t l = 0; l < lists; l++) {
        drawn[l] = mask_case_random(rng, 96, 12);
        for (int64_t s = 0; s < drawn[l].count; s++) {
            ffa_slice *slice = &drawn[l].slices[s];

            ck_assert_int_le(slice->q_end, shape.seqlen_q);
            ck_assert_int_le(slice->k_end, shape.seqlen_k);
        }
        of[l] = (ffa_slice_list){ drawn[l].slices, drawn[l].count };
    }
    ck_assert_msg(ffa_mask_create_per_head(&mask, &shape, of, lists, &err) == FFA_OK, "%s",
                  err.message);
    for (int32_t l = 0; l < lists; l++)
        free(drawn[l].slices);
    return mask;
}

/* FFA_TEST_LEVEL 1 to 3. */
static int rounds(void)
{
    const char *level = getenv("FFA_TEST_LEVEL");

    return level && atoi(level) > 2 ? 1024 : level && atoi(level) == 2 ? 128 : 16;
}

START_TEST(random_masks)
{
    const ffa_dtype dtype = _i ? FFA_FP32 : FFA_FP64;

    for (int round = 0; round < rounds(); round++) {
        struct rng rng = { (uint64_t)(round * 2 + _i) };
        const int32_t lists = (int32_t)rng_range(&rng, 0, 3) == 0 ? 2 : 1;
        const int32_t group = (int32_t)rng_range(&rng, 1, 3);
        const struct problem_shape shape = { dtype,
                                             dtype,
                                             2 * group,
                                             2,
                                             (int32_t)rng_range(&rng, 1, 9),
                                             (int32_t)rng_range(&rng, 0, 2),
                                             rng_range(&rng, 0, 2) ? 0 : 2.5f,
                                             false };
        ffa_mask *mask = random_mask(&rng, lists);
        char name[64];
        struct problem p;

        (void)snprintf(name, sizeof name, "round %d", round);
        if (ffa_mask_area(mask, -1) == 0) {
            ffa_mask_destroy(mask);
            continue;
        }
        problem_init(&p, mask, &shape, (uint64_t)round);
        p.run.rank_count = (int32_t)rng_range(&rng, 1, 12);
        p.run.ranks_per_node = (int32_t)rng_range(&rng, 0, 4);
        p.run.dispatch.algorithm = (int32_t)rng_range(&rng, 0, 3);
        p.run.dispatch.chunk_tokens = rng_range(&rng, 1, 8);
        p.run.plan.forward_stages = (int32_t)rng_range(&rng, -1, 8);
        p.run.plan.backward_stages = (int32_t)rng_range(&rng, -1, 8);
        p.run.plan.buffers = (int32_t)rng_range(&rng, 2, 3);
        p.run.plan.moves = (int32_t)rng_range(&rng, 0, 2);
        p.run.loopback.seed = rng_next(&rng);
        p.run.loopback.delay = (int32_t)rng_range(&rng, 0, 20);
        run(&p, name);
        compare(&p, name);
        problem_finish(&p);
    }
}
END_TEST

/* ---- cross-attention ---- */

static const struct {
    const char *name, *mask;
    int32_t ranks, per_node, keys, sinks, stages;
    int64_t chunk, key_chunk;
} cross[] = {
    { "more keys", "full:60x140", 4, 0, FFA_KEYS_DISPATCHED, 1, 3, 5, 7 },
    { "more queries", "causal:150x40", 6, 2, FFA_KEYS_DISPATCHED, 0, 0, 5, 4 },
    { "fewer key chunks than ranks", "full:90x12", 8, 4, FFA_KEYS_DISPATCHED, 1, 2, 5, 3 },
    { "causal over more keys", "causal:64x200", 5, 0, FFA_KEYS_DISPATCHED, 2, 4, 4, 9 },
    { "replicated", "full:60x140", 4, 0, FFA_KEYS_REPLICATED, 1, 0, 5, 0 },
    { "replicated, causal", "causal:64x100", 7, 0, FFA_KEYS_REPLICATED, 0, 2, 3, 0 },
    { "replicated, one rank", "full:20x30", 1, 0, FFA_KEYS_REPLICATED, 1, 0, 5, 0 },
};

START_TEST(cross_attention)
{
    const int i = _i / 4;
    const ffa_dtype dtype = _i % 2 ? FFA_FP32 : FFA_FP64;
    const struct problem_shape shape = { dtype, dtype, 4, 2, 8, cross[i].sinks, 0, false };
    struct problem p;

    problem_init(&p, parse(cross[i].mask), &shape, (uint64_t)_i);
    p.run.rank_count = cross[i].ranks;
    p.run.ranks_per_node = cross[i].per_node;
    p.run.dispatch.keys = cross[i].keys;
    p.run.dispatch.chunk_tokens = cross[i].chunk;
    p.run.dispatch.key_chunk_tokens = cross[i].key_chunk;
    p.run.plan.moves = _i / 2 % 2 ? FFA_PARALLEL_MOVE_QUERIES : FFA_PARALLEL_MOVE_KEYS;
    p.run.plan.forward_stages = p.run.plan.backward_stages = cross[i].stages;
    p.run.loopback.seed = (uint64_t)_i;
    p.run.passes = 2;
    run(&p, cross[i].name);
    compare(&p, cross[i].name);
    problem_finish(&p);
}
END_TEST

/* ---- layers of several kinds on one dispatch, and ranks with nothing to do ---- */

START_TEST(masks_of_two_kinds_on_one_group)
{
    const struct problem_shape shape = { FFA_FP64, FFA_FP64, 4, 2, 8, 1, 0, false };
    ffa_mask *other = parse(_i % 2 ? "causal:120" : "window:120,left=9,right=0");
    struct problem p;

    problem_init(&p, parse(_i % 2 ? "varlen-full:30,50,40" : "causal:120"), &shape, (uint64_t)_i);
    p.run.rank_count = 6;
    p.run.dispatch.chunk_tokens = 4;
    p.run.other_mask = other;
    p.run.other_weight = 3;
    p.run.passes = 3;
    p.run.plan.forward_stages = p.run.plan.backward_stages = 3;
    p.run.plan.moves = _i / 2;
    p.run.loopback.delay = 15;
    run(&p, "two kinds");
    compare(&p, "two kinds");
    problem_finish(&p);
    ffa_mask_destroy(other);
}
END_TEST

/* Rank 0 computes all, with keys of rank 3; rank 1 has queries and keys of no use; or, with another
 * mask to dispatch by, nobody computes anything. */
START_TEST(ranks_with_no_work)
{
    const ffa_slice slice = { 2, 18, 0, 20, FFA_SLICE_BICAUSAL, 0 };
    const ffa_slice far = { 0, 20, 65, 80, FFA_SLICE_INVCAUSAL, 0 };
    const ffa_slice slices[] = { slice, far };
    const struct problem_shape shape = { FFA_FP64, FFA_FP64, 2, 2, 8, 1, 0, false };
    ffa_mask *mask, *other = parse("full:80");
    struct problem p;

    ck_assert_int_eq(
        ffa_mask_create(&mask, &(ffa_mask_shape){ 80, 80 }, slices, _i % 2 ? 0 : 2, NULL), FFA_OK);
    problem_init(&p, mask, &shape, 4);
    p.run.dispatch.algorithm = FFA_DISPATCH_SEQUENTIAL;
    p.run.dispatch.chunk_tokens = 20;
    p.run.other_mask = other;
    p.run.other_weight = 1;
    p.run.plan.moves = _i / 2;
    run(&p, "no work");
    compare(&p, "no work");
    problem_finish(&p);
    ffa_mask_destroy(other);
}
END_TEST

/* 16-bit tensors, summed in fp64: what is rounded is the output only. */
START_TEST(outputs_are_rounded_once)
{
    const struct problem_shape shape = { FFA_BF16, FFA_FP64, 2, 1, 16, 1, 0, true };
    struct problem p, whole;

    problem_init(&p, parse("causal:120"), &shape, 3);
    problem_init(&whole, parse("causal:120"), &shape, 3);
    p.run.rank_count = 6;
    p.run.dispatch.chunk_tokens = 5;
    p.run.plan.forward_stages = 4;
    whole.run.rank_count = 1;
    run(&p, "ranks");
    run(&whole, "whole");
    /* One sum in fp64 differs from another far below half a unit of bf16. */
    ck_assert_mem_eq(p.test.args.out.data, whole.test.args.out.data, (size_t)120 * 2 * 16 * 2);
    problem_finish(&p);
    problem_finish(&whole);
}
END_TEST

/* ---- what must not matter ---- */

START_TEST(seeds_and_threads_change_nothing)
{
    const struct problem_shape shape = { FFA_FP32, FFA_FP32, 4, 2, 8, 1, 0, false };
    struct problem first;

    problem_init(&first, parse("shared-question:30,50,64"), &shape, 11);
    first.run.rank_count = 8;
    first.run.dispatch.chunk_tokens = 6;
    first.run.plan.forward_stages = first.run.plan.backward_stages = 3;
    first.run.plan.moves = _i;
    run(&first, "first");
    for (uint64_t seed = 1; seed <= 6; seed++) {
        struct problem p;

        problem_init(&p, parse("shared-question:30,50,64"), &shape, 11);
        p.run.rank_count = 8;
        p.run.dispatch.chunk_tokens = 6;
        p.run.plan.forward_stages = p.run.plan.backward_stages = 3;
        p.run.plan.moves = _i;
        p.run.loopback.seed = seed;
        p.run.loopback.delay = (int32_t)(seed * seed * seed);
        p.run.threads = 1 + (int32_t)(seed % 3);
        run(&p, "again");
        ck_assert_mem_eq(p.test.args.out.data, first.test.args.out.data, (size_t)144 * 4 * 8 * 4);
        ck_assert_mem_eq(p.run.lse, first.run.lse, (size_t)144 * 4 * sizeof(double));
        ck_assert_mem_eq(p.gradients.dq.data, first.gradients.dq.data, (size_t)144 * 4 * 8 * 4);
        ck_assert_mem_eq(p.gradients.dk.data, first.gradients.dk.data, (size_t)144 * 2 * 8 * 4);
        ck_assert_mem_eq(p.gradients.dv.data, first.gradients.dv.data, (size_t)144 * 2 * 8 * 4);
        ck_assert_mem_eq(p.run.dsink, first.run.dsink, 4 * sizeof(double));
        ck_assert_mem_eq(p.run.max_logits, first.run.max_logits, 4 * sizeof(double));
        problem_finish(&p);
    }
    problem_finish(&first);
}
END_TEST

/* ---- trouble: nobody hangs, everybody hears why ---- */

static void problem_for_trouble(struct problem *p)
{
    problem_init(p, parse("full:96"), &small, 2);
    p->run.rank_count = 6;
    p->run.dispatch.chunk_tokens = 4;
    p->run.loopback.timeout_ms = 20000;
}

static void expect_all(const struct problem *p, ffa_status status, const char *part)
{
    for (int32_t r = 0; r < p->run.rank_count; r++) {
        ck_assert_msg(p->run.status[r] == status, "rank %d: %s: %s", r,
                      ffa_status_text(p->run.status[r]), p->run.errors[r].message);
        ck_assert_msg(strstr(p->run.errors[r].message, part), "rank %d: %s", r,
                      p->run.errors[r].message);
    }
}

START_TEST(plans_that_differ_are_found)
{
    ffa_mask *other = parse("causal:96");
    struct problem p;

    problem_for_trouble(&p);
    p.run.odd_mask = other;
    p.run.odd_rank = 3;
    ranks_run_all(&p.run);
    expect_all(&p, FFA_INVALID, "plans differ: rank 0 has ");
    expect_all(&p, FFA_INVALID, ", rank 3 has ");
    ffa_mask_destroy(other);
    problem_finish(&p);
}
END_TEST

/* Without asking first: the passes themselves find it. */
START_TEST(passes_that_differ_are_found)
{
    ffa_mask *other = parse("causal:96");
    struct problem p;

    problem_for_trouble(&p);
    p.run.odd_mask = other;
    p.run.odd_rank = 3;
    p.run.skips_agree = true;
    ranks_run_all(&p.run);
    expect_all(&p, FFA_INVALID, "ranks differ: rank ");
    ffa_mask_destroy(other);
    problem_finish(&p);
}
END_TEST

static bool all_but_one(struct ranks_run *run, int32_t rank)
{
    (void)run;
    return rank != 2;
}

static void expect_others(struct problem *p, int32_t rank, ffa_status status, const char *part)
{
    p->run.status[rank] = status;
    (void)snprintf(p->run.errors[rank].message, sizeof p->run.errors[rank].message, "%s", part);
    expect_all(p, status, part);
}

START_TEST(a_rank_that_never_comes_is_waited_for_in_vain)
{
    struct problem p;

    problem_for_trouble(&p);
    p.run.hook = all_but_one;
    p.run.skips_agree = _i;
    p.run.meeting_ranks = p.run.rank_count - 1;
    p.run.loopback.timeout_ms = 3000;
    ranks_run_all(&p.run);
    expect_others(&p, 2, FFA_TIMEOUT, "waited 3000 ms for rank 2");
    problem_finish(&p);
}
END_TEST

static bool one_leaves(struct ranks_run *run, int32_t rank)
{
    if (rank != 2)
        return true;
    ffa_comm_destroy(run->comms[rank]);
    run->comms[rank] = NULL;
    return false;
}

START_TEST(a_rank_that_leaves_is_missed)
{
    struct problem p;

    problem_for_trouble(&p);
    p.run.hook = one_leaves;
    p.run.skips_agree = _i;
    ranks_run_all(&p.run);
    expect_others(&p, 2, FFA_COMM, "rank 2 has left");
    problem_finish(&p);
}
END_TEST

/* Rank 2 does not run, but cancels while the others wait for it. */
static bool one_cancels(struct ranks_run *run, int32_t rank)
{
    const struct timespec pause = { 0, 50000000 };

    if (rank != 2)
        return true;
    (void)nanosleep(&pause, NULL);
    ffa_comm_cancel(run->comms[rank], "the user said so");
    return false;
}

START_TEST(a_cancelled_run_ends_everywhere)
{
    struct problem p;

    problem_for_trouble(&p);
    p.run.hook = one_cancels;
    p.run.skips_agree = _i;
    ranks_run_all(&p.run);
    expect_others(&p, 2, FFA_COMM, "cancelled at rank 2: the user said so");
    problem_finish(&p);
}
END_TEST

/* A bad argument of one rank is an error of its own to it, and the end of the group to others. */
START_TEST(a_bad_argument_of_one_rank)
{
    struct problem p;

    problem_for_trouble(&p);
    p.run.bad_rank = 4;
    p.run.skips_agree = true;
    ranks_run_all(&p.run);
    ck_assert_int_eq(p.run.status[4], FFA_INVALID);
    ck_assert_ptr_nonnull(strstr(p.run.errors[4].message, "heads_kv is 5000, not in [1, 1024]"));
    expect_others(&p, 4, FFA_COMM, "rank 4 failed: heads_kv is 5000, not in [1, 1024]");
    problem_finish(&p);
}
END_TEST

/* The nth transfer fails, wherever it is: one rank says so, the others that it failed. */
START_TEST(any_transfer_may_fail)
{
    long nth = 1;

    for (;; nth++) {
        int32_t failed = 0, told = 0;
        struct problem p;

        problem_for_trouble(&p);
        p.run.plan.forward_stages = p.run.plan.backward_stages = 2;
        fault_arm(FAULT_NETWORK, nth);
        ranks_run_all(&p.run);
        if (!fault_fired()) {
            fault_arm(FAULT_NETWORK, 0);
            for (int32_t r = 0; r < 6; r++)
                ck_assert_int_eq(p.run.status[r], FFA_OK);
            problem_finish(&p);
            break;
        }
        for (int32_t r = 0; r < 6; r++) {
            if (p.run.status[r] == FFA_OK)
                continue; /* it was done before */
            ck_assert_int_eq(p.run.status[r], FFA_COMM);
            failed += strncmp(p.run.errors[r].message, "cannot transfer", 15) == 0;
            told += strstr(p.run.errors[r].message, "failed: cannot transfer") != NULL;
        }
        ck_assert_int_eq(failed, 1);
        ck_assert_int_ge(told, 1);
        problem_finish(&p);
    }
    ck_assert_int_gt(nth, 12);
}
END_TEST

/* Every ninth allocation: of plans, groups, passes, whichever rank asks for it. */
START_TEST(any_allocation_may_fail)
{
    for (long nth = 1;; nth += 9) {
        int32_t short_of_memory = 0;
        struct problem p;

        problem_init(&p, parse("causal:48"), &small, 2);
        p.run.rank_count = 3;
        p.run.dispatch.chunk_tokens = 4;
        p.run.alloc_fault = nth;
        p.run.plan.moves = _i;
        ranks_run_all(&p.run);
        if (!fault_fired()) {
            fault_arm(FAULT_ALLOC, 0);
            for (int32_t r = 0; r < 3; r++)
                ck_assert_int_eq(p.run.status[r], FFA_OK);
            ck_assert_int_gt(nth, 100);
            problem_finish(&p);
            break;
        }
        for (int32_t r = 0; r < 3; r++) {
            short_of_memory += p.run.status[r] == FFA_NOMEM;
            ck_assert(p.run.status[r] == FFA_OK || p.run.status[r] == FFA_NOMEM ||
                      p.run.status[r] == FFA_COMM);
        }
        ck_assert_int_ge(short_of_memory, 1);
        problem_finish(&p);
    }
}
END_TEST

static struct {
    const char *name;
    int32_t dtype, sum_dtype, heads_q, heads_kv, head_dim, sinks;
    double softcap;
    const char *message;
    uintptr_t at; /* of sinks, or, where there are none, of max_logits */
    double scale;
} bad_args[] = {
    { "dtype", 9, 0, 2, 1, 8, 0, 0, "dtype is 9, not in [1, 4]", 0, 0 },
    { "sums", FFA_FP64, FFA_FP32, 2, 1, 8, 0, 0, "sum_dtype is 3, not in [4, 4]", 0, 0 },
    { "heads", FFA_FP32, 0, 3, 2, 8, 0, 0,
      "heads_q is 3, not a multiple of heads_kv = 2 in [1, 1024]", 0, 0 },
    { "head_dim", FFA_FP32, 0, 2, 1, 0, 0, 0, "head_dim is 0, not in [1, 1024]", 0, 0 },
    { "sinks", FFA_FP32, 0, 2, 1, 8, 9, 0, "sink_count is 9, not in [0, 8]", 0, 0 },
    { "no sinks", FFA_FP32, 0, 2, 1, 8, 2, 0, "sink is NULL, sink_count 2", 0, 0 },
    { "softcap", FFA_FP32, 0, 2, 1, 8, 0, -1, "softcap is -1, not finite and 0 or more", 0, 0 },
    { "softcap of no float", FFA_FP32, 0, 2, 1, 8, 0, 1e-60, "softcap is 1e-60: 0 as a float", 0,
      0 },
    { "data", FFA_FP32, 0, 2, 1, 8, 0, 0, "q: data is NULL, it has 64 rows", 0, 0 },
    { "a sink of half an element", FFA_FP64, 0, 2, 1, 8, 1, 0, "sink is 0x1004, not 8-byte aligned",
      0x1004, 0 },
    { "the largest score, likewise", FFA_FP32, FFA_FP64, 2, 1, 8, 0, 0,
      "max_logits is 0x1004, not 8-byte aligned", 0x1004, 0 },
    { "sums of four bytes", FFA_FP32, 0, 2, 1, 8, 1, 0, "q: data is NULL, it has 64 rows", 0x1004,
      0 },
    { "scale", FFA_FP32, 0, 2, 1, 8, 0, 0, "softmax_scale is -1, not finite and 0 or more", 0, -1 },
    { "scale of no float", FFA_FP32, 0, 2, 1, 8, 0, 0, "softmax_scale is 1e-60: 0 as a float", 0,
      1e-60 },
};

START_TEST(bad_arguments)
{
    const ffa_topology topology = { 1, 0 };
    ffa_mask *mask = parse("causal:64");
    const ffa_dispatch_mask one = { mask, 1 };
    ffa_parallel_args args = FFA_PARALLEL_ARGS_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_dispatch *dispatch;
    ffa_parallel_plan *plan;
    ffa_comm *comm;

    ck_assert_int_eq(ffa_dispatch_create(&dispatch, &one, 1, &topology, NULL, NULL), FFA_OK);
    ck_assert_int_eq(ffa_parallel_plan_create(&plan, dispatch, mask, 0, NULL, NULL), FFA_OK);
    ck_assert_int_eq(ffa_loopback_create(&comm, 1, NULL, NULL), FFA_OK);
    args.dtype = bad_args[_i].dtype;
    args.sum_dtype = bad_args[_i].sum_dtype;
    args.softmax_scale = bad_args[_i].scale;
    args.heads_q = bad_args[_i].heads_q;
    args.heads_kv = bad_args[_i].heads_kv;
    args.head_dim = bad_args[_i].head_dim;
    args.sink_count = bad_args[_i].sinks;
    args.softcap = bad_args[_i].softcap;
    if (bad_args[_i].sinks)
        args.sink = (const void *)bad_args[_i].at;
    else
        args.max_logits = (void *)bad_args[_i].at;
    ck_assert_int_eq(ffa_parallel_forward_host(plan, comm, &args, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, bad_args[_i].message);
    ck_assert_int_eq(ffa_parallel_forward_host(plan, comm, NULL, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "args is NULL");
    args.trace = (ffa_parallel_trace *)(void *)&err; /* not looked into */
    ck_assert_int_eq(ffa_parallel_forward_host(plan, comm, &args, &err), FFA_UNSUPPORTED);
    ck_assert_str_eq(err.message, "trace is given: passes on the CPU have none");
    ffa_comm_destroy(comm);
    ffa_parallel_plan_destroy(plan);
    ffa_dispatch_destroy(dispatch);
    ffa_mask_destroy(mask);
}
END_TEST

/* Plans and communicators that do not belong together. */
START_TEST(misfits)
{
    const ffa_topology topology = { 2, 0 };
    ffa_mask *mask = parse("causal:64");
    const ffa_dispatch_mask one = { mask, 1 };
    const ffa_parallel_args args = FFA_PARALLEL_ARGS_INIT;
    ffa_parallel_plan_opts forward = FFA_PARALLEL_PLAN_OPTS_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_dispatch *dispatch;
    ffa_parallel_plan *plan;
    ffa_comm *comms[3];

    forward.flags = FFA_PARALLEL_FORWARD_ONLY;
    ck_assert_int_eq(ffa_dispatch_create(&dispatch, &one, 1, &topology, NULL, NULL), FFA_OK);
    ck_assert_int_eq(ffa_parallel_plan_create(&plan, dispatch, mask, 2, NULL, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "rank is 2, not in [0, 2)");
    ck_assert_int_eq(ffa_parallel_plan_create(&plan, dispatch, mask, 1, &forward, NULL), FFA_OK);
    ck_assert_int_eq(ffa_loopback_create(comms, 2, NULL, NULL), FFA_OK);
    ck_assert_int_eq(ffa_parallel_forward_host(plan, NULL, &args, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "comm is NULL");
    ck_assert_int_eq(ffa_parallel_plan_agree(plan, comms[0], &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "the plan is of rank 1, the communicator of 0");
    ck_assert_int_eq(ffa_parallel_backward_host(plan, comms[1], &args, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "the plan was made with FFA_PARALLEL_FORWARD_ONLY");
    ffa_parallel_plan_destroy(plan);
    forward.flags = FFA_PARALLEL_OUTLINE;
    ck_assert_int_eq(ffa_parallel_plan_create(&plan, dispatch, mask, 1, &forward, NULL), FFA_OK);
    ck_assert_int_eq(ffa_parallel_forward_host(plan, comms[1], &args, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "the plan was made with FFA_PARALLEL_OUTLINE");
    ffa_parallel_plan_destroy(plan);
    ck_assert_int_eq(ffa_parallel_plan_create(&plan, dispatch, mask, 0, NULL, NULL), FFA_OK);
    ck_assert_int_eq(ffa_parallel_plan_agree(plan, comms[0], &err), FFA_COMM); /* broken */
    ck_assert_str_eq(err.message, "rank 0 failed: the plan is of rank 1, the communicator of 0");
    ffa_parallel_plan_destroy(plan);
    ck_assert_int_eq(ffa_parallel_plan_create(&plan, dispatch, mask, 1, NULL, NULL), FFA_OK);
    ffa_comm_destroy(comms[0]);
    ffa_comm_destroy(comms[1]);
    ck_assert_int_eq(ffa_loopback_create(comms, 3, NULL, NULL), FFA_OK);
    ck_assert_int_eq(ffa_parallel_forward_host(plan, comms[1], &args, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "the plan is for 2 ranks, the group has 3");
    for (int i = 0; i < 3; i++)
        ffa_comm_destroy(comms[i]);
    ffa_parallel_plan_destroy(plan);
    ffa_dispatch_destroy(dispatch);
    ffa_mask_destroy(mask);
}
END_TEST

/* A rank of a group that compares plans: both wait for each other. */
struct agreeing {
    const ffa_parallel_plan *plan;
    ffa_comm *comm;
    ffa_status rc;
    ffa_error err;
};

static void *agree(void *user)
{
    struct agreeing *rank = user;

    rank->rc = ffa_parallel_plan_agree(rank->plan, rank->comm, &rank->err);
    return NULL;
}

/* The same plan, but what its kernels choose would differ. */
START_TEST(ranks_with_other_cost_tables_are_told)
{
    const ffa_topology topology = { 2, 0 };
    ffa_mask *mask = parse("causal:64");
    const ffa_dispatch_mask one = { mask, 1 };
    ffa_dispatch *dispatch;
    ffa_parallel_plan *plans[2];
    ffa_comm *comms[2];

    ck_assert_int_eq(ffa_dispatch_create(&dispatch, &one, 1, &topology, NULL, NULL), FFA_OK);
    ck_assert_int_eq(ffa_loopback_create(comms, 2, NULL, NULL), FFA_OK);
    for (int r = 0; r < 2; r++)
        ck_assert_int_eq(ffa_parallel_plan_create(&plans[r], dispatch, mask, r, NULL, NULL),
                         FFA_OK);
    for (int is_same = 0; is_same < 2; is_same++) {
        struct agreeing ranks[2] = { { plans[0], comms[0], FFA_BUG, { FFA_OK, 0, "" } },
                                     { plans[1], comms[1], FFA_BUG, { FFA_OK, 0, "" } } };
        pthread_t other;

        text_copy(comms[0]->cost_digest, "300a44e164803539ec310d3f7d1a5a2b");
        text_copy(comms[1]->cost_digest, "%s",
                  is_same ? comms[0]->cost_digest : "c0ec15fc1760f1530000000000000000");
        ck_assert_int_eq(pthread_create(&other, NULL, agree, &ranks[1]), 0);
        agree(&ranks[0]);
        ck_assert_int_eq(pthread_join(other, NULL), 0);
        for (int r = 0; r < 2; r++) {
            ck_assert_int_eq(ranks[r].rc, is_same ? FFA_OK : FFA_INVALID);
            if (!is_same)
                ck_assert_str_eq(ranks[r].err.message,
                                 "cost tables differ: rank 0 has 300a44e164803539ec310d3f7d1a5a2b, "
                                 "rank 1 has c0ec15fc1760f1530000000000000000: give all ranks the "
                                 "same ones (cost_tables of ffa_context_opts)");
        }
    }
    for (int r = 0; r < 2; r++) {
        ffa_parallel_plan_destroy(plans[r]);
        ffa_comm_destroy(comms[r]);
    }
    ffa_dispatch_destroy(dispatch);
    ffa_mask_destroy(mask);
}
END_TEST

int main(void)
{
    const int count = (int)(sizeof cases / sizeof *cases);
    Suite *suite = suite_create("rank pass");
    TCase *tc = tcase_create("pipeline");

    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, named_cases_in_fp64, 0, count);
    tcase_add_loop_test(tc, named_cases_in_fp32, 0, count);
    tcase_add_loop_test(tc, named_cases_with_queries_that_move, 0, 2 * count);
    tcase_add_loop_test(tc, expanded_tensors, 0, 24);
    tcase_add_loop_test(tc, any_number_of_stages, 0, 9);
    tcase_add_loop_test(tc, random_masks, 0, 2);
    tcase_add_loop_test(tc, cross_attention, 0, 4 * (int)(sizeof cross / sizeof *cross));
    tcase_add_loop_test(tc, masks_of_two_kinds_on_one_group, 0, 4);
    tcase_add_loop_test(tc, ranks_with_no_work, 0, 4);
    tcase_add_test(tc, outputs_are_rounded_once);
    tcase_add_loop_test(tc, seeds_and_threads_change_nothing, FFA_PARALLEL_MOVE_KEYS,
                        FFA_PARALLEL_MOVE_QUERIES + 1);
    tcase_add_test(tc, plans_that_differ_are_found);
    tcase_add_test(tc, passes_that_differ_are_found);
    tcase_add_loop_test(tc, a_rank_that_never_comes_is_waited_for_in_vain, 0, 2);
    tcase_add_loop_test(tc, a_rank_that_leaves_is_missed, 0, 2);
    tcase_add_loop_test(tc, a_cancelled_run_ends_everywhere, 0, 2);
    tcase_add_test(tc, a_bad_argument_of_one_rank);
    tcase_add_test(tc, any_transfer_may_fail);
    tcase_add_loop_test(tc, any_allocation_may_fail, FFA_PARALLEL_MOVE_KEYS,
                        FFA_PARALLEL_MOVE_QUERIES + 1);
    tcase_add_loop_test(tc, bad_arguments, 0, (int)(sizeof bad_args / sizeof *bad_args));
    tcase_add_test(tc, misfits);
    tcase_add_test(tc, ranks_with_other_cost_tables_are_told);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
