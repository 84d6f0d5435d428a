/* SPDX-License-Identifier: Apache-2.0
 *
 * A pass in rounds: a launch each, with the keys of one stage, in the two halves of a ring.
 *
 *     caller's stream   launch 0, launch 1, step 0, launch 2, step 1, .. the last step
 *     fetch stream      round 0, round 1; behind launch 0: round 2; behind launch 1: round 3; ..
 *     reduce stream     the sums of step 0; behind the addition of step 0: those of step 1; ..
 *
 * A step is what all ranks did in one round, as owners see it: sums of own keys that were received
 * are added to own ones, in fp32 in the sum window. While a round computes, the keys of the next
 * one come, and the sums of the last one go.
 *
 * Invariant: a rank waits in round r for what others enqueue before their round r, and each rank
 * enqueues round by round, so ranks cannot wait for one another in a circle, however many rounds
 * each has. Every sum is added by ascending step, then rank: the order is fixed.
 */
#include "parallel/device/pass_run.h"

static ffa_status mark_attention(const struct pass_run *run, ffa_error *err)
{
    return pass_run_mark_compute(run, FFA_PARALLEL_SPAN_ATTENTION, 0, err);
}

/* The keys of the first two rounds: both halves are free. */
static ffa_status begin(struct pass_run *run, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(run->transport->rounds->open_keys(run, err));
    for (int32_t r = 0; r < 2 && r < run->moves->round_count; r++)
        FFA_TRY(run->transport->rounds->bring_keys(run, r, err));
out:
    return rc;
}

/* Behind the launch of the round, its half takes the keys of the next but one. */
static ffa_status go_on(struct pass_run *run, int32_t round, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(gpu_event_record(run->pass->launched[round % 2], run->stream, err));
    if (round + 2 < run->moves->round_count)
        rc = run->transport->rounds->bring_keys(run, round + 2, err);
out:
    return rc;
}

ffa_status pass_rounds_forward(struct pass_run *run, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(begin(run, err));
    for (run->round = 0; run->round < run->moves->round_count; run->round++) {
        FFA_TRY(pass_run_attend(run, err));
        FFA_TRY(mark_attention(run, err));
        FFA_TRY(go_on(run, run->round, err));
    }
out:
    run->round = 0;
    return rc;
}

/* ---- sums ---- */

struct row_reduce_call pass_rounds_sums(const struct pass_run *run)
{
    struct row_reduce_call call = {
        .tensors = { pass_run_reduced(run, &run->args.dk, false),
                     pass_run_reduced(run, &run->args.dv, true) },
        .count = 2,
        .rows = run->pass->tokens_k,
    };

    call.tensors[0].received = call.tensors[1].received = NULL;
    return call;
}

struct row_reduce_call pass_rounds_step(const struct pass_run *run, int32_t step)
{
    const ffa_parallel_pass *pass = run->pass;
    const int64_t *begin = &pass->sums.segment_begin[step];
    struct row_reduce_call call = {
        .kernel = run->kernels->totals_sum,
        .types = { FFA_FP32, FFA_FP32, ROW_REDUCE_SUM },
        .tensors = { pass_run_reduced(run, &run->args.dk, false),
                     pass_run_reduced(run, &run->args.dv, true) },
        .count = 2,
        .rows = pass->tokens_k,
        .segments =
            (const struct row_segment *)(const void *)(pass->buffer + pass->sums_at.segments) +
            begin[0],
        .segment_count = (int32_t)(begin[1] - begin[0]),
        .sources = (const int64_t *)(const void *)(pass->buffer + pass->sums_at.received),
    };

    for (int t = 0; t < call.count; t++) { /* in place */
        struct row_reduce_rows *rows = &call.tensors[t];

        rows->out = (void *)(uintptr_t)rows->own;
        rows->out_token_stride = rows->own_token_stride;
        rows->out_head_stride = rows->own_head_stride;
    }
    return call;
}

static ffa_status add_step(struct pass_run *run, int32_t step, ffa_error *err)
{
    const struct pass_sums *sums = &run->pass->sums;
    const struct row_reduce_call call = pass_rounds_step(run, step);
    ffa_status rc;

    FFA_TRY(run->transport->rounds->bring_sums(run, step, err));
    if (sums->copy_begin[step] == sums->copy_begin[step + 1])
        goto out;
    FFA_TRY(pass_run_mark_compute(run, FFA_PARALLEL_SPAN_WAIT, 0, err));
    FFA_TRY(row_reduce_enqueue(run->kernels, &call, run->stream, err));
    FFA_TRY(gpu_event_record(run->pass->added, run->stream, err));
    rc = pass_run_mark_compute(run, FFA_PARALLEL_SPAN_SUMS, 0, err);
out:
    return rc;
}

ffa_status pass_rounds_backward(struct pass_run *run, ffa_error *err)
{
    const struct pass_moves *moves = run->moves;
    ffa_status rc;

    FFA_TRY(begin(run, err));
    for (int32_t t = 0; t <= moves->round_most; t++) {
        if (t < moves->round_count) {
            run->round = t;
            if (t >= 2)
                FFA_TRY(run->transport->rounds->reclaim_sums(run, t, err));
            FFA_TRY(pass_run_differentiate(run, err));
            FFA_TRY(mark_attention(run, err));
            FFA_TRY(go_on(run, t, err));
        }
        if (t >= 1)
            FFA_TRY(add_step(run, t - 1, err));
    }
out:
    run->round = 0;
    return rc;
}
