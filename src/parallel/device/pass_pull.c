/* SPDX-License-Identifier: Apache-2.0
 *
 * The pull transport: ranks pull from each other's windows with the copy engines.
 *
 *     caller's stream   the credits of a window, before it is written; rows_ready
 *     fetch stream      for each stage: rows_ready of new sources, copies, arrivals; rows_done
 *     reduce stream     backward, for each reader and stage: sums_ready, copies; sums_done
 *
 * Invariant: each wait is enqueued after everything of this rank that the waited-for ranks need
 * first, so that ranks cannot wait for one another in a circle. The backward kernel itself signals
 * sums_ready of received keys, to their owners.
 */
#include "parallel/device/pass_run.h"

static ffa_status signal_all(struct pass_run *run, ffa_stream stream, enum comm_channel channel,
                             const int32_t *ranks, int32_t count, ffa_error *err)
{
    for (int32_t i = 0; i < count; i++)
        run->pass->flags[i] = (struct comm_flag){ .channel = channel, .rank = ranks[i] };
    return comm_device_signal(run->comm, run->call, stream, run->pass->flags, count, err);
}

static ffa_status pull(struct pass_run *run, enum comm_window window, ffa_stream stream,
                       unsigned char *to, const struct pass_copy *copies, int64_t count,
                       int64_t row_bytes, ffa_error *err)
{
    const ffa_parallel_pass *pass = run->pass;

    for (int64_t i = 0; i < count; i++) {
        pass->to[i] = to + copies[i].to * row_bytes;
        pass->from[i] = pass_run_window(run, window, copies[i].rank) + copies[i].from * row_bytes;
        pass->bytes[i] = (size_t)(copies[i].rows * row_bytes);
    }
    return gpu_copy_batch(run->comm->gpu, stream, pass->to, pass->from, pass->bytes, count, err);
}

/* ---- keys ---- */

static ffa_status reclaim_keys(struct pass_run *run, ffa_error *err)
{
    return comm_device_reclaim(run->comm, run->call, WINDOW_ROWS, run->stream, err);
}

static ffa_status fetch(struct pass_run *run, int32_t stage, ffa_error *err)
{
    const struct pass_moves *moves = run->moves;
    const int64_t first = moves->copy_begin[stage], last = moves->copy_begin[stage + 1];
    const int32_t source = moves->source_begin[stage];
    const int32_t sources = moves->source_begin[stage + 1] - source;
    const ffa_stream stream = gpu_stream_handle(run->comm->fetch);
    struct pass_mark waited = { .stage = stage, .rank = -1 },
                     copied = { .stage = stage, .rank = -1 };
    ffa_status rc;

    if (sources == 1)
        waited.rank = moves->sources[source];
    if (last > first)
        copied = pass_run_mark_of(moves->copies + first, last - first, run->key_bytes);
    for (int32_t i = 0; i < sources; i++)
        run->pass->flags[i] =
            (struct comm_flag){ .channel = CHANNEL_ROWS_READY, .rank = moves->sources[source + i] };
    FFA_TRY(comm_device_wait(run->comm, run->call, stream, run->pass->flags, sources, err));
    if (sources > 0)
        FFA_TRY(pass_run_mark(run, FFA_PARALLEL_LANE_FETCH, FFA_PARALLEL_SPAN_WAIT, &waited, err));
    FFA_TRY(pull(run, WINDOW_ROWS, stream, pass_run_own_window(run, WINDOW_ROWS),
                 moves->copies + first, last - first, run->key_bytes, err));
    FFA_TRY(comm_device_arrive(run->comm, run->call, stream, stage, err));
    rc = pass_run_mark(run, FFA_PARALLEL_LANE_FETCH, FFA_PARALLEL_SPAN_COPY, &copied, err);
out:
    return rc;
}

/* Tell the readers; then all stages, and that the sources may write their windows again. */
static ffa_status bring_keys(struct pass_run *run, ffa_error *err)
{
    const struct pass_moves *moves = run->moves;
    ffa_status rc;

    FFA_TRY(
        signal_all(run, run->stream, CHANNEL_ROWS_READY, moves->readers, moves->reader_count, err));
    for (int32_t s = 1; s < moves->stage_count; s++)
        FFA_TRY(fetch(run, s, err));
    rc = signal_all(run, gpu_stream_handle(run->comm->fetch), CHANNEL_ROWS_DONE, moves->sources,
                    moves->source_begin[moves->stage_count], err);
out:
    return rc;
}

/* ---- sums ---- */

static ffa_status reclaim_sums(struct pass_run *run, ffa_error *err)
{
    const struct pass_sums *sums = &run->pass->sums;
    ffa_status rc;

    FFA_TRY(comm_device_reclaim(run->comm, run->call, WINDOW_SUMS, run->stream, err));
    for (int32_t i = 0; i < run->moves->source_begin[run->moves->stage_count]; i++)
        comm_device_lend_sums(run->comm, run->call, run->moves->sources[i]);
    for (int32_t i = 0; i < sums->peer_count; i++)
        comm_device_lend_sums(run->comm, run->call, sums->peers[i]);
out:
    return rc;
}

/* The sums of own keys that one reader made in one stage: copies [first, last). */
static ffa_status pull_sums(struct pass_run *run, int64_t first, int64_t last, ffa_error *err)
{
    const struct pass_copy *copies = run->pass->sums.copies + first;
    const ffa_stream stream = gpu_stream_handle(run->comm->reduce);
    const struct comm_flag flag = { .channel = CHANNEL_SUMS_READY,
                                    .rank = copies->rank,
                                    .stage = copies->stage };
    const struct pass_mark waited = { .stage = copies->stage, .rank = copies->rank };
    const struct pass_mark copied = pass_run_mark_of(copies, last - first, run->sum_bytes);
    ffa_status rc;

    FFA_TRY(comm_device_wait(run->comm, run->call, stream, &flag, 1, err));
    FFA_TRY(pass_run_mark(run, FFA_PARALLEL_LANE_REDUCE, FFA_PARALLEL_SPAN_WAIT, &waited, err));
    FFA_TRY(pull(run, WINDOW_SUMS, stream, pass_run_received_sums(run), copies, last - first,
                 run->sum_bytes, err));
    rc = pass_run_mark(run, FFA_PARALLEL_LANE_REDUCE, FFA_PARALLEL_SPAN_COPY, &copied, err);
out:
    return rc;
}

/* No kernel tells anybody of own keys: the stream does, behind the launch, this rank itself too. */
static ffa_status signal_replicated(struct pass_run *run, ffa_error *err)
{
    const struct pass_sums *sums = &run->pass->sums;
    int32_t own = run->pass->rank;
    ffa_status rc;

    FFA_TRY(signal_all(run, run->stream, CHANNEL_SUMS_READY, sums->peers, sums->peer_count, err));
    rc = signal_all(run, run->stream, CHANNEL_SUMS_READY, &own, 1, err);
out:
    return rc;
}

static ffa_status pull_all_sums(struct pass_run *run, ffa_error *err)
{
    const struct pass_sums *sums = &run->pass->sums;
    const ffa_stream stream = gpu_stream_handle(run->comm->reduce);
    const int32_t *ranks = sums->is_replicated ? sums->peers : run->moves->readers;
    const int32_t count = sums->is_replicated ? sums->peer_count : run->moves->reader_count;
    ffa_status rc = FFA_OK;

    for (int64_t first = 0, last = 0; first < sums->copy_count; first = last) {
        while (last < sums->copy_count && sums->copies[last].rank == sums->copies[first].rank &&
               sums->copies[last].stage == sums->copies[first].stage)
            last++;
        FFA_TRY(pull_sums(run, first, last, err));
    }
    FFA_TRY(signal_all(run, stream, CHANNEL_SUMS_DONE, ranks, count, err));
    FFA_TRY(gpu_event_record(run->pass->reduced, stream, err));
    FFA_TRY(gpu_event_wait(run->pass->reduced, run->stream, err));
    rc = pass_run_mark_compute(run, FFA_PARALLEL_SPAN_WAIT, 0, err);
out:
    return rc;
}

static ffa_status bring_sums(struct pass_run *run, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    if (run->pass->sums.is_replicated)
        FFA_TRY(signal_replicated(run, err));
    if (run->pass->sums.copy_count > 0)
        rc = pull_all_sums(run, err);
out:
    return rc;
}

const struct pass_transport pass_pull = {
    .reclaim_keys = reclaim_keys,
    .bring_keys = bring_keys,
    .reclaim_sums = reclaim_sums,
    .bring_sums = bring_sums,
};
