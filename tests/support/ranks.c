/* SPDX-License-Identifier: Apache-2.0
 *
 * One attention problem, run by many ranks that are threads of this process.
 *
 * Each rank gets its own copy of the rows it owns, with strides of its own and outputs full of NaN.
 * The results are copied back row by row into the whole problem, where the caller compares them
 * with the oracle: a row that a rank did not write stays NaN.
 */
#include "support/ranks.h"

#include "base/base.h"
#include "parallel/dispatch/dispatch.h"

#include <check.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum local { Q, K, V, OUT, LSE, DOUT, DQ, DK, DV, DLSE, LOCALS };

struct rank {
    struct ranks_run *run;
    const ffa_dispatch *dispatch;
    int32_t rank;
    ffa_tensor tensors[LOCALS];
    void *max_logits, *dsink; /* of sum_dtype */
    pthread_t thread;
};

struct place {
    const struct layout *layout;
    ffa_tensor *whole;
    ffa_dtype dtype;
    int32_t heads, dim;
};

static struct place place_of(const struct rank *r, enum local which)
{
    struct ranks_run *run = r->run;
    struct attention_case *test = run->test;
    struct attention_gradients *g = run->gradients;
    const bool is_key = which == K || which == V || which == DK || which == DV;
    const bool is_sum = which == LSE || which == DLSE;
    ffa_tensor *const whole[] = { &test->args.q,
                                  &test->args.k,
                                  &test->args.v,
                                  &test->args.out,
                                  NULL,
                                  g ? &g->dout : NULL,
                                  g ? &g->dq : NULL,
                                  g ? &g->dk : NULL,
                                  g ? &g->dv : NULL,
                                  g ? &g->dlse : NULL };

    return (struct place){ is_key ? dispatch_key_layout(r->dispatch) : &r->dispatch->layout,
                           whole[which], is_sum ? run->sum_dtype : test->shape.dtype,
                           is_key ? test->shape.heads_kv : test->shape.heads_q,
                           is_sum ? 1 : test->shape.head_dim };
}

static int64_t rows_of(const struct layout *layout, int32_t rank)
{
    return layout->is_replicated ? layout->bounds[layout->count] : layout->rank_tokens[rank];
}

/* Copy a tensor row by row between the whole problem and the rank. */
static void copy(struct rank *r, enum local which, bool to_rank)
{
    const struct place p = place_of(r, which);
    const struct layout *layout = p.layout;

    for (int64_t c = 0; c < layout->count; c++) {
        if (!layout_has(layout, r->rank, c))
            continue;
        for (int64_t t = layout->bounds[c]; t < layout->bounds[c + 1]; t++) {
            const int64_t row = layout->local[c] + t - layout->bounds[c];

            for (int32_t h = 0; h < p.heads; h++)
                for (int32_t i = 0; i < p.dim; i++) {
                    if (which == LSE)
                        r->run->lse[t * p.heads + h] =
                            attention_read(&r->tensors[LSE], p.dtype, row, h, 0);
                    else if (to_rank)
                        attention_write(&r->tensors[which], p.dtype, row, h, i,
                                        attention_read(p.whole, p.dtype, t, h, i));
                    else
                        attention_write(p.whole, p.dtype, t, h, i,
                                        attention_read(&r->tensors[which], p.dtype, row, h, i));
                }
        }
    }
}

/* Allocate the rank's tensors, with strides that differ between ranks, but for those that are 0 in
 * the whole, and fill them with NaN. Then copy the inputs. */
static void allocate(struct rank *r)
{
    for (int which = 0; which < LOCALS; which++) {
        const struct place p = place_of(r, (enum local)which);
        const int64_t rows = rows_of(p.layout, r->rank), pad = r->rank % 3;
        const size_t bytes = (size_t)(rows + 1) * (size_t)(p.heads * (p.dim + pad) + pad) * 8;

        r->tensors[which] = (ffa_tensor){ .data = malloc(bytes),
                                          .token_stride = p.heads * (p.dim + pad) + pad,
                                          .head_stride = p.dim + pad };
        if (p.whole && p.whole->token_stride == 0)
            r->tensors[which].token_stride = 0;
        if (p.whole && p.whole->head_stride == 0)
            r->tensors[which].head_stride = 0;
        memset(r->tensors[which].data, 0xff, bytes);
    }
    r->max_logits = calloc((size_t)r->run->test->shape.heads_q, sizeof(double));
    r->dsink = calloc((size_t)r->run->test->shape.heads_q * 8, sizeof(double));
    copy(r, Q, true);
    copy(r, K, true);
    copy(r, V, true);
    if (r->run->gradients)
        copy(r, DOUT, true);
    if (r->run->gradients && r->run->has_dlse)
        copy(r, DLSE, true);
}

static ffa_parallel_args args_of(const struct rank *r)
{
    const struct attention_case *test = r->run->test;
    ffa_parallel_args args = FFA_PARALLEL_ARGS_INIT;

    args.heads_q = test->shape.heads_q;
    args.heads_kv = test->shape.heads_kv;
    args.head_dim = test->shape.head_dim;
    args.dtype = test->shape.dtype;
    args.sum_dtype = r->run->sum_dtype;
    args.softmax_scale = test->args.softmax_scale;
    args.softcap = test->args.softcap;
    args.sink = test->args.sink;
    args.sink_count = test->args.sink_count;
    args.threads = r->run->threads;
    args.q = r->tensors[Q];
    args.k = r->tensors[K];
    args.v = r->tensors[V];
    args.out = r->tensors[OUT];
    args.lse = r->tensors[LSE];
    args.dout = r->tensors[DOUT];
    args.dq = r->tensors[DQ];
    args.dk = r->tensors[DK];
    args.dv = r->tensors[DV];
    args.max_logits = r->run->wants_max ? r->max_logits : NULL;
    args.dsink = r->run->wants_dsink ? r->dsink : NULL;
    args.dlse = r->tensors[DLSE];
    if (!r->run->has_dlse)
        args.dlse.data = NULL;
    return args;
}

/* The passes of the other mask. `mask` then overwrites what they wrote. */
static ffa_status run_other(const struct rank *r, const ffa_parallel_args *args, ffa_error *err)
{
    struct ranks_run *run = r->run;
    ffa_parallel_plan *plan = NULL;
    ffa_status rc =
        ffa_parallel_plan_create(&plan, r->dispatch, run->other_mask, r->rank, &run->plan, err);

    if (rc == FFA_OK)
        rc = ffa_parallel_forward_host(plan, run->comms[r->rank], args, err);
    if (rc == FFA_OK && run->gradients)
        rc = ffa_parallel_backward_host(plan, run->comms[r->rank], args, err);
    ffa_parallel_plan_destroy(plan);
    return rc;
}

static void *run_rank(void *user)
{
    struct rank *r = user;
    struct ranks_run *run = r->run;
    ffa_error *err = &run->errors[r->rank];
    ffa_parallel_plan_info info = FFA_PARALLEL_PLAN_INFO_INIT;
    ffa_parallel_args args = args_of(r);
    ffa_parallel_plan *plan = NULL;
    ffa_status rc;

    if (run->hook && !run->hook(run, r->rank))
        return NULL;
    if (run->bad_rank && run->bad_rank == r->rank)
        args.heads_kv = 5000;
    rc = ffa_parallel_plan_create(
        &plan, r->dispatch, run->odd_mask && run->odd_rank == r->rank ? run->odd_mask : run->mask,
        r->rank, &run->plan, err);
    if (run->meeting_ranks)
        (void)pthread_barrier_wait(&run->meeting);
    if (rc != FFA_OK)
        ffa_comm_cancel(run->comms[r->rank], err->message);
    if (rc == FFA_OK)
        rc = ffa_parallel_plan_info_get(plan, &info, err);
    run->stages[r->rank] = info.forward_stages;
    run->moves[r->rank] = info.moves;
    if (rc == FFA_OK && !run->skips_agree)
        rc = ffa_parallel_plan_agree(plan, run->comms[r->rank], err);
    for (int32_t i = 0; i < (run->passes ? run->passes : 1) && rc == FFA_OK; i++) {
        if (run->other_mask)
            rc = run_other(r, &args, err);
        if (rc == FFA_OK)
            rc = ffa_parallel_forward_host(plan, run->comms[r->rank], &args, err);
        if (rc == FFA_OK && run->gradients)
            rc = ffa_parallel_backward_host(plan, run->comms[r->rank], &args, err);
    }
    run->status[r->rank] = rc;
    ffa_parallel_plan_destroy(plan);
    return NULL;
}

static void collect(struct rank *r)
{
    copy(r, OUT, false);
    copy(r, LSE, false);
    for (int which = DQ; r->run->gradients && which <= DV; which++)
        copy(r, (enum local)which, false);
    if (r->rank > 0)
        return;
    for (int32_t i = 0; i < r->run->test->shape.heads_q; i++)
        r->run->max_logits[i] = attention_get(r->max_logits, r->run->sum_dtype, i);
    for (int32_t i = 0; i < r->run->test->shape.heads_q * 8; i++)
        r->run->dsink[i] = attention_get(r->dsink, r->run->sum_dtype, i);
}

void ranks_run_all(struct ranks_run *run)
{
    const ffa_dispatch_mask masks[] = { { run->mask, 1 }, { run->other_mask, run->other_weight } };
    const ffa_topology topology = { run->rank_count, run->ranks_per_node };
    const size_t heads = (size_t)run->test->shape.heads_q;
    struct rank ranks[RANKS_HERE];
    ffa_error err = { FFA_OK, 0, "" };
    ffa_dispatch *dispatch;

    ck_assert_int_le(run->rank_count, RANKS_HERE);
    run->lse = calloc((size_t)run->test->shape.mask.seqlen_q * heads, sizeof *run->lse);
    run->max_logits = calloc(heads, sizeof *run->max_logits);
    run->dsink = calloc(heads * 8, sizeof *run->dsink);
    ck_assert_msg(ffa_dispatch_create(&dispatch, masks, run->other_mask ? 2 : 1, &topology,
                                      &run->dispatch, &err) == FFA_OK,
                  "%s", err.message);
    ck_assert_msg(ffa_loopback_create(run->comms, run->rank_count, &run->loopback, &err) == FFA_OK,
                  "%s", err.message);
    for (int32_t i = 0; i < run->rank_count; i++) {
        ranks[i] = (struct rank){ .run = run, .dispatch = dispatch, .rank = i };
        run->status[i] = FFA_OK;
        run->errors[i] = (ffa_error){ FFA_OK, 0, "" };
        allocate(&ranks[i]);
    }
    if (run->meeting_ranks)
        ck_assert_int_eq(pthread_barrier_init(&run->meeting, NULL, (unsigned)run->meeting_ranks),
                         0);
    if (run->alloc_fault)
        fault_arm(FAULT_ALLOC, run->alloc_fault);
    for (int32_t i = 0; i < run->rank_count; i++)
        ck_assert_int_eq(pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]), 0);
    for (int32_t i = 0; i < run->rank_count; i++)
        pthread_join(ranks[i].thread, NULL);
    if (run->meeting_ranks)
        (void)pthread_barrier_destroy(&run->meeting);
    for (int32_t i = 0; i < run->rank_count; i++) {
        if (run->status[i] == FFA_OK)
            collect(&ranks[i]);
        ffa_comm_destroy(run->comms[i]);
        for (int which = 0; which < LOCALS; which++)
            free(ranks[i].tensors[which].data);
        free(ranks[i].max_logits);
        free(ranks[i].dsink);
    }
    ffa_dispatch_destroy(dispatch);
}

void ranks_finish(struct ranks_run *run)
{
    free(run->lse);
    free(run->max_logits);
    free(run->dsink);
    run->lse = NULL;
    run->max_logits = run->dsink = NULL;
}
