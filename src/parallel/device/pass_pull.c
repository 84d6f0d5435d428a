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
 * sums_ready of received keys, to their owners. Trick: what the fetch stream does with words
 * between two copies is one CUDA call, run->fetch.
 */
#include "parallel/device/pass_run.h"

/* from: where the rows of each rank begin. */
static ffa_status pull(struct pass_run *run,
                       unsigned char *(*from)(const struct pass_run *run, int32_t rank),
                       ffa_stream stream, unsigned char *to, const struct pass_copy *copies,
                       int64_t count, int64_t row_bytes, ffa_error *err)
{
    const ffa_parallel_pass *pass = run->pass;

    for (int64_t i = 0; i < count; i++) {
        pass->to[i] = to + copies[i].to * row_bytes;
        pass->from[i] = from(run, copies[i].rank) + copies[i].from * row_bytes;
        pass->bytes[i] = (size_t)(copies[i].rows * row_bytes);
    }
    return gpu_copy_batch(run->comm->gpu, stream, pass->to, pass->from, pass->bytes, count, err);
}

/* ---- keys ---- */

static ffa_status reclaim_keys(struct pass_run *run, ffa_error *err)
{
    struct comm_batch batch;
    ffa_status rc;

    comm_batch_init(&batch, run->comm, run->stream);
    FFA_TRY(comm_batch_reclaim(&batch, &run->fetch, run->call, WINDOW_ROWS, err));
    rc = comm_batch_flush(&batch, err);
out:
    return rc;
}

/* Before something is marked in the fetch stream: what it did with words until then. */
static ffa_status flush_traced(struct pass_run *run, ffa_error *err)
{
    return run->args.trace ? comm_batch_flush(&run->fetch, err) : FFA_OK;
}

static unsigned char *keys_of(const struct pass_run *run, int32_t rank)
{
    return pass_run_window(run, WINDOW_ROWS, rank);
}

/* flag, value: what says that the stage is there. */
static ffa_status fetch(struct pass_run *run, int32_t stage, int32_t flag, uint64_t value,
                        ffa_error *err)
{
    const struct pass_moves *moves = run->moves;
    const int64_t first = moves->copy_begin[stage], last = moves->copy_begin[stage + 1];
    const int32_t source = moves->source_begin[stage];
    const int32_t sources = moves->source_begin[stage + 1] - source;
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
    FFA_TRY(comm_batch_wait(&run->fetch, run->call, run->pass->flags, sources, err));
    FFA_TRY(comm_batch_flush(&run->fetch, err));
    if (sources > 0)
        FFA_TRY(pass_run_mark(run, FFA_PARALLEL_LANE_FETCH, FFA_PARALLEL_SPAN_WAIT, &waited, err));
    FFA_TRY(pull(run, keys_of, gpu_stream_handle(run->comm->fetch),
                 pass_run_own_window(run, WINDOW_ROWS), moves->copies + first, last - first,
                 run->key_bytes, err));
    FFA_TRY(comm_batch_arrive(&run->fetch, value, flag, err));
    FFA_TRY(flush_traced(run, err));
    rc = pass_run_mark(run, FFA_PARALLEL_LANE_FETCH, FFA_PARALLEL_SPAN_COPY, &copied, err);
out:
    return rc;
}

static ffa_status reclaim_sums(struct pass_run *run, struct comm_batch *batch, ffa_error *err)
{
    const struct pass_sums *sums = run->sums;
    ffa_status rc;

    FFA_TRY(comm_batch_reclaim(batch, NULL, run->call, WINDOW_SUMS, err));
    for (int32_t i = 0; i < run->moves->source_begin[run->moves->stage_count]; i++)
        comm_device_lend_sums(run->comm, run->call, run->moves->sources[i]);
    for (int32_t i = 0; i < sums->peer_count; i++)
        comm_device_lend_sums(run->comm, run->call, sums->peers[i]);
out:
    return rc;
}

/* Tell the readers of own rows, and wait for the own sum window. */
static ffa_status open_keys(struct pass_run *run, ffa_error *err)
{
    struct comm_batch batch;
    ffa_status rc;

    comm_batch_init(&batch, run->comm, run->stream);
    if (!pass_run_has_kept(run))
        FFA_TRY(comm_batch_tell(&batch, run->call, CHANNEL_ROWS_READY, run->moves->readers,
                                run->moves->reader_count, err));
    if (pass_run_has_sums(run))
        FFA_TRY(reclaim_sums(run, &batch, err));
    rc = comm_batch_flush(&batch, err);
out:
    return rc;
}

/* The sources may write their windows again. No keys come any more. */
static ffa_status tell_sources(struct pass_run *run, ffa_error *err)
{
    const struct pass_moves *moves = run->moves;
    ffa_status rc;

    if (!pass_run_has_kept(run))
        FFA_TRY(comm_batch_tell(&run->fetch, run->call, CHANNEL_ROWS_DONE, moves->sources,
                                moves->source_begin[moves->stage_count], err));
    rc = comm_batch_flush(&run->fetch, err);
out:
    return rc;
}

static ffa_status bring_keys(struct pass_run *run, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(open_keys(run, err));
    for (int32_t s = 1; s < run->moves->stage_count && !pass_run_has_kept(run); s++)
        FFA_TRY(fetch(run, s, s, run->call, err));
    rc = tell_sources(run, err);
out:
    return rc;
}

/* A round's keys are those of one stage, which is stage 1 of its launch. */
static ffa_status bring_round(struct pass_run *run, int32_t round, ffa_error *err)
{
    const ffa_stream stream = gpu_stream_handle(run->comm->fetch);
    ffa_status rc = FFA_OK;

    if (round >= 2)
        FFA_TRY(gpu_event_wait(run->pass->launched[round % 2], stream, err));
    if (round + 1 < run->moves->stage_count)
        FFA_TRY(fetch(run, round + 1, 1, pass_run_value(run, round), err));
    rc = round + 1 == run->moves->round_count ? tell_sources(run, err)
                                              : comm_batch_flush(&run->fetch, err);
out:
    return rc;
}

/* ---- sums ---- */

/* The sums of own keys that one reader made in one stage: copies [first, last). */
static ffa_status pull_sums(struct pass_run *run, int64_t first, int64_t last, ffa_error *err)
{
    const struct pass_copy *copies = run->sums->copies + first;
    const ffa_stream stream = gpu_stream_handle(run->comm->reduce);
    const bool in_rounds = run->pass->in_rounds;
    const struct comm_flag flag = { .channel = CHANNEL_SUMS_READY,
                                    .rank = copies->rank,
                                    .stage = in_rounds ? 1 : copies->stage,
                                    .behind =
                                        in_rounds ? pass_run_behind(run, copies->stage - 1) : 0 };
    const struct pass_mark waited = { .stage = copies->stage, .rank = copies->rank };
    const struct pass_mark copied = pass_run_mark_of(copies, last - first, run->wire_bytes);
    ffa_status rc;

    FFA_TRY(comm_device_wait(run->comm, run->call, stream, &flag, 1, err));
    FFA_TRY(pass_run_mark(run, FFA_PARALLEL_LANE_REDUCE, FFA_PARALLEL_SPAN_WAIT, &waited, err));
    FFA_TRY(pull(run, pass_run_sent_sums, stream, pass_run_received_sums(run), copies, last - first,
                 run->wire_bytes, err));
    rc = pass_run_mark(run, FFA_PARALLEL_LANE_REDUCE, FFA_PARALLEL_SPAN_COPY, &copied, err);
out:
    return rc;
}

/* No kernel tells anybody of own keys: the stream does, behind the launch, this rank itself too. */
static ffa_status signal_replicated(struct pass_run *run, ffa_error *err)
{
    const struct pass_sums *sums = run->sums;
    int32_t own = run->pass->rank;
    ffa_status rc;

    FFA_TRY(comm_device_tell(run->comm, run->call, run->stream, CHANNEL_SUMS_READY, sums->peers,
                             sums->peer_count, err));
    rc = comm_device_tell(run->comm, run->call, run->stream, CHANNEL_SUMS_READY, &own, 1, err);
out:
    return rc;
}

/* Copies [first, end), reader by reader. */
static ffa_status pull_copies(struct pass_run *run, int64_t first, int64_t end, ffa_error *err)
{
    const struct pass_copy *copies = run->sums->copies;
    ffa_status rc = FFA_OK;

    for (int64_t last = first; first < end; first = last) {
        while (last < end && copies[last].rank == copies[first].rank &&
               copies[last].stage == copies[first].stage)
            last++;
        FFA_TRY(pull_sums(run, first, last, err));
    }
out:
    return rc;
}

/* The readers may write their sum windows again. */
static ffa_status tell_summers(struct pass_run *run, ffa_error *err)
{
    const struct pass_sums *sums = run->sums;
    const int32_t *ranks = sums->is_replicated ? sums->peers : run->moves->readers;
    const int32_t count = sums->is_replicated ? sums->peer_count : run->moves->reader_count;

    return comm_device_tell(run->comm, run->call, gpu_stream_handle(run->comm->reduce),
                            CHANNEL_SUMS_DONE, ranks, count, err);
}

/* The caller's stream waits for what was pulled. */
static ffa_status await_sums(struct pass_run *run, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(gpu_event_record(run->pass->reduced, gpu_stream_handle(run->comm->reduce), err));
    rc = gpu_event_wait(run->pass->reduced, run->stream, err);
out:
    return rc;
}

static ffa_status pull_all_sums(struct pass_run *run, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(pull_copies(run, 0, run->sums->copy_count, err));
    FFA_TRY(tell_summers(run, err));
    FFA_TRY(await_sums(run, err));
    rc = pass_run_mark_compute(run, FFA_PARALLEL_SPAN_WAIT, 0, err);
out:
    return rc;
}

static ffa_status bring_sums(struct pass_run *run, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    if (run->sums->is_replicated)
        FFA_TRY(signal_replicated(run, err));
    if (run->sums->copy_count > 0)
        rc = pull_all_sums(run, err);
out:
    return rc;
}

/* To the owners of a stage's rows. */
static ffa_status tell_results(struct pass_run *run, int32_t stage, ffa_error *err)
{
    const struct pass_sums *sums = run->sums;
    const int32_t begin = sums->owner_begin[stage], end = sums->owner_begin[stage + 1];

    for (int32_t i = begin; i < end; i++)
        run->pass->flags[i - begin] = (struct comm_flag){ .channel = CHANNEL_SUMS_READY,
                                                          .rank = sums->owners[i],
                                                          .stage = stage };
    return comm_device_signal(run->comm, run->call, run->stream, run->pass->flags, end - begin,
                              err);
}

/* ---- sums in rounds ---- */

/* The launch of the round overwrites what the next but one before it left. */
static ffa_status reclaim_round(struct pass_run *run, int32_t round, ffa_error *err)
{
    const struct pass_sums *sums = run->sums;
    const int32_t begin = sums->owner_begin[round - 1], end = sums->owner_begin[round];

    for (int32_t i = begin; i < end; i++)
        run->pass->flags[i - begin] = (struct comm_flag){
            .channel = CHANNEL_SUMS_DONE,
            .rank = sums->owners[i],
            .behind = pass_run_behind(run, round - 2),
        };
    return comm_device_wait(run->comm, run->call, run->stream, run->pass->flags, end - begin, err);
}

/* Those who made sums in the step, once each: a step has a reader's copies one after another. */
static ffa_status tell_step(struct pass_run *run, int32_t step, ffa_error *err)
{
    const struct pass_sums *sums = run->sums;
    int32_t count = 0;

    for (int64_t i = sums->copy_begin[step]; i < sums->copy_begin[step + 1]; i++)
        if (i == sums->copy_begin[step] || sums->copies[i].rank != sums->copies[i - 1].rank)
            run->pass->flags[count++] = (struct comm_flag){
                .channel = CHANNEL_SUMS_DONE,
                .rank = sums->copies[i].rank,
                .behind = pass_run_behind(run, step),
            };
    return comm_device_signal(run->comm, run->call, gpu_stream_handle(run->comm->reduce),
                              run->pass->flags, count, err);
}

static ffa_status bring_step(struct pass_run *run, int32_t step, ffa_error *err)
{
    const struct pass_sums *sums = run->sums;
    const int64_t first = sums->copy_begin[step], last = sums->copy_begin[step + 1];
    ffa_status rc = FFA_OK;

    if (last > first) {
        FFA_TRY(gpu_event_wait(run->pass->added, gpu_stream_handle(run->comm->reduce), err));
        FFA_TRY(pull_copies(run, first, last, err));
        FFA_TRY(tell_step(run, step, err));
    }
    if (step + 1 == sums->step_count)
        FFA_TRY(tell_summers(run, err));
    if (last > first)
        rc = await_sums(run, err);
out:
    return rc;
}

static const struct pass_rounds rounds = {
    .open_keys = open_keys,
    .bring_keys = bring_round,
    .reclaim_sums = reclaim_round,
    .bring_sums = bring_step,
};

const struct pass_transport pass_pull = {
    .reclaim_keys = reclaim_keys,
    .bring_keys = bring_keys,
    .bring_sums = bring_sums,
    .tell_results = tell_results,
    .rounds = &rounds,
};
