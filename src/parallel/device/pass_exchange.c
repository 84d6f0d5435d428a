/* SPDX-License-Identifier: Apache-2.0
 *
 * The exchange transport: ranks send and receive over NCCL, straight from and into their windows.
 *
 *     fetch stream    hello (comm_exchange.c), the own keys are there, then for each step: one
 *                     group of this rank's sends and receives, arrivals
 *     reduce stream   backward, for each step: the own kernel's departure, one group of sums back
 *
 * A step is the nth stage of all ranks: a rank takes part in each, also where it has fewer stages
 * itself. A pair's sends and receives are the same list, in the same order, in the plans of both.
 *
 * Invariant: ranks cannot wait for one another in a circle. A rank's step on the fetch stream needs
 * nothing but hello, its own keys, and the steps before. A step on the reduce stream needs the own
 * kernel's stage, which needs steps of the fetch stream only. Both communicators have SMs of their
 * own beside the kernel (comm_device_sm_margin), and each runs its groups in the same order on all
 * ranks.
 *
 * No credits go from rank to rank: only this rank's own groups read its windows, so its next call
 * writes them after those groups (reclaim). Nobody writes this rank's window but its own receives,
 * which come after the begin of their call, behind all that read the rows of the call before. A
 * send ends when its receiver has the data, and the receiver's group is of the same call, so no
 * rank is more than a call ahead in a window of another.
 */
#include "parallel/device/pass_run.h"

static void add_move(struct pass_run *run, int64_t *count, void *at, int64_t bytes, int32_t rank,
                     bool is_send)
{
    run->pass->moves[(*count)++] =
        (struct nccl_move){ .at = at, .bytes = bytes, .rank = rank, .is_send = is_send };
}

static ffa_status mark_copies(struct pass_run *run, ffa_parallel_lane lane,
                              const struct pass_copy *copies, int64_t count, int64_t row_bytes,
                              ffa_error *err)
{
    const struct pass_mark mark = pass_run_mark_of(copies, count, row_bytes);

    return pass_run_mark(run, lane, FFA_PARALLEL_SPAN_COPY, &mark, err);
}

static ffa_status mark_wait(struct pass_run *run, ffa_parallel_lane lane, int32_t stage,
                            ffa_error *err)
{
    return pass_run_mark(run, lane, FFA_PARALLEL_SPAN_WAIT, &(struct pass_mark){ stage, -1, 0 },
                         err);
}

/* ---- keys ---- */

static ffa_status reclaim_keys(struct pass_run *run, ffa_error *err)
{
    return comm_exchange_reclaim(run->comm, WINDOW_ROWS, run->stream, err);
}

static ffa_status exchange_keys(struct pass_run *run, int32_t step, ffa_error *err)
{
    const struct pass_moves *moves = run->moves;
    const bool has_stage = step < moves->stage_count;
    const int64_t first = has_stage ? moves->copy_begin[step] : 0;
    const int64_t last = has_stage ? moves->copy_begin[step + 1] : 0;
    unsigned char *const window = pass_run_own_window(run, WINDOW_ROWS);
    const ffa_stream stream = gpu_stream_handle(run->comm->fetch);
    int64_t count = 0;
    ffa_status rc;

    for (int64_t i = moves->send_begin[step]; i < moves->send_begin[step + 1]; i++)
        add_move(run, &count, window + moves->sends[i].from * run->key_bytes,
                 moves->sends[i].rows * run->key_bytes, moves->sends[i].rank, true);
    for (int64_t i = first; i < last; i++)
        add_move(run, &count, window + moves->copies[i].to * run->key_bytes,
                 moves->copies[i].rows * run->key_bytes, moves->copies[i].rank, false);
    FFA_TRY(comm_exchange_moves(run->comm, WINDOW_ROWS, run->pass->moves, count, err));
    if (has_stage)
        FFA_TRY(comm_device_arrive(run->comm, run->call, stream, step, err));
    rc = mark_copies(run, FFA_PARALLEL_LANE_FETCH, moves->copies + first, last - first,
                     run->key_bytes, err);
out:
    return rc;
}

static ffa_status bring_keys(struct pass_run *run, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(comm_exchange_follow(run->comm, WINDOW_ROWS, run->stream, err));
    FFA_TRY(mark_wait(run, FFA_PARALLEL_LANE_FETCH, -1, err));
    for (int32_t step = 1; step < run->moves->step_count && !pass_run_has_kept(run); step++)
        FFA_TRY(exchange_keys(run, step, err));
    FFA_TRY(comm_exchange_sent(run->comm, WINDOW_ROWS, err));
    if (pass_run_has_sums(run))
        rc = comm_exchange_reclaim(run->comm, WINDOW_SUMS, run->stream, err);
out:
    return rc;
}

/* ---- sums ---- */

/* The kernel has finished the sums of its stage, and said so in this rank's own block. */
static ffa_status await_stage(struct pass_run *run, int32_t stage, ffa_error *err)
{
    const uint64_t *word = comm_device_own(run->comm) +
                           comm_block_sums_ready(run->pass->rank_count, run->pass->rank, stage);
    ffa_status rc;

    FFA_TRY(
        gpu_wait_value(run->comm->gpu, gpu_stream_handle(run->comm->reduce), word, run->call, err));
    rc = mark_wait(run, FFA_PARALLEL_LANE_REDUCE, stage, err);
out:
    return rc;
}

/* Of all readers: their copies of a step stand apart in the list, which is by reader. */
static void add_received(struct pass_run *run, int64_t *count, int32_t step, struct pass_mark *mark)
{
    const struct pass_sums *sums = run->sums;
    unsigned char *const to = pass_run_received_sums(run);

    for (int64_t i = 0; i < sums->copy_count; i++) {
        const struct pass_copy *copy = &sums->copies[i];

        if (copy->stage != step)
            continue;
        add_move(run, count, to + copy->to * run->wire_bytes, copy->rows * run->wire_bytes,
                 copy->rank, false);
        mark->stage = step;
        mark->bytes += copy->rows * run->wire_bytes;
    }
}

static ffa_status exchange_sums(struct pass_run *run, int32_t step, ffa_error *err)
{
    const struct pass_moves *moves = run->moves;
    const bool has_stage = step < moves->stage_count;
    const int64_t first = has_stage ? moves->copy_begin[step] : 0;
    const int64_t last = has_stage ? moves->copy_begin[step + 1] : 0;
    unsigned char *const sums = pass_run_sent_sums(run, run->pass->rank);
    struct pass_mark mark = { .stage = -1, .rank = -1 };
    int64_t count = 0;
    ffa_status rc;

    if (last > first)
        FFA_TRY(await_stage(run, step, err));
    for (int64_t i = first; i < last; i++)
        add_move(run, &count, sums + (moves->copies[i].to - moves->own_rows) * run->wire_bytes,
                 moves->copies[i].rows * run->wire_bytes, moves->copies[i].rank, true);
    add_received(run, &count, step, &mark);
    FFA_TRY(comm_exchange_moves(run->comm, WINDOW_SUMS, run->pass->moves, count, err));
    rc = pass_run_mark(run, FFA_PARALLEL_LANE_REDUCE, FFA_PARALLEL_SPAN_COPY, &mark, err);
out:
    return rc;
}

/* All ranks have all keys: each gets the sums of all, its own too. */
static ffa_status exchange_replicated(struct pass_run *run, ffa_error *err)
{
    const struct pass_sums *sums = run->sums;
    unsigned char *const window = pass_run_sent_sums(run, run->pass->rank);
    const ffa_stream stream = gpu_stream_handle(run->comm->reduce);
    int64_t count = 0;
    ffa_status rc = FFA_OK;

    FFA_TRY(comm_exchange_follow(run->comm, WINDOW_SUMS, run->stream, err));
    FFA_TRY(mark_wait(run, FFA_PARALLEL_LANE_REDUCE, 0, err));
    for (int64_t i = 0; i < sums->copy_count; i++) {
        const struct pass_copy *copy = &sums->copies[i];
        void *to = pass_run_received_sums(run) + copy->to * run->wire_bytes;
        const void *from = window;
        const size_t bytes = (size_t)(copy->rows * run->wire_bytes);

        if (copy->rank == run->pass->rank) {
            FFA_TRY(gpu_copy_batch(run->comm->gpu, stream, &to, &from, &bytes, 1, err));
            continue;
        }
        add_move(run, &count, window, (int64_t)bytes, copy->rank, true);
        add_move(run, &count, to, (int64_t)bytes, copy->rank, false);
    }
    FFA_TRY(comm_exchange_moves(run->comm, WINDOW_SUMS, run->pass->moves, count, err));
    rc = mark_copies(run, FFA_PARALLEL_LANE_REDUCE, sums->copies, sums->copy_count, run->wire_bytes,
                     err);
out:
    return rc;
}

static ffa_status bring_sums(struct pass_run *run, ffa_error *err)
{
    const struct pass_sums *sums = run->sums;
    const ffa_stream stream = gpu_stream_handle(run->comm->reduce);
    ffa_status rc = FFA_OK;

    if (sums->is_replicated)
        FFA_TRY(exchange_replicated(run, err));
    for (int32_t step = 1; step < run->moves->step_count; step++)
        FFA_TRY(exchange_sums(run, step, err));
    FFA_TRY(comm_exchange_sent(run->comm, WINDOW_SUMS, err));
    if (sums->copy_count > 0) {
        FFA_TRY(gpu_event_record(run->pass->reduced, stream, err));
        FFA_TRY(gpu_event_wait(run->pass->reduced, run->stream, err));
        rc = pass_run_mark_compute(run, FFA_PARALLEL_SPAN_WAIT, 0, err);
    }
out:
    return rc;
}

/* To this rank itself: see await_stage. */
static ffa_status tell_results(struct pass_run *run, int32_t stage, ffa_error *err)
{
    const struct comm_flag flag = { .channel = CHANNEL_SUMS_READY,
                                    .rank = run->pass->rank,
                                    .stage = stage };

    return comm_device_signal(run->comm, run->call, run->stream, &flag, 1, err);
}

const struct pass_transport pass_exchange = {
    .reclaim_keys = reclaim_keys,
    .bring_keys = bring_keys,
    .bring_sums = bring_sums,
    .tell_results = tell_results,
};
