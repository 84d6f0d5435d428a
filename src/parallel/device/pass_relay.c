/* SPDX-License-Identifier: Apache-2.0
 *
 * The relay transport: over NCCL between nodes, each row once a node, by copy engines inside them.
 *
 *     caller's stream   the credits of a window, before it is written; rows_ready
 *     network stream    hello (comm_exchange.c), the own keys are there, then for each step: one
 *                       group of sends to relays and of what this rank relays; relayed
 *     fetch stream      for each stage: rows_ready of new owners of the node, copies; relayed of
 *                       new relays and of the own group, copies; arrivals; at the end rows_done
 *     reduce stream     backward, for each step: sums_ready of the node; copies of the own keys'
 *                       sums; launches that add what members summed of relayed rows; one group of
 *                       complete sums to owners; at the end sums_done
 *
 * A step is the nth stage of all ranks, as in pass_exchange.c. In a group of one node nothing
 * crosses, and pass_pull.c does all of it.
 *
 * Invariant: ranks cannot wait for one another in a circle. The network stream waits for groups
 * only, and each group for groups of the steps before, of any rank: a relay's first stage is no
 * later than that of any member, so what it relays in a stage comes with the group of that step.
 * Pulls of stage t wait for own keys of ranks of the node, and for groups of steps up to t. The
 * kernel waits for pulls. Step t of the reduce stream waits for kernels, which wait for no sums,
 * and for steps before t of the reduce streams; its launches need SMs, of which the kernel leaves
 * some free (comm_device_sm_margin).
 *
 * Sums of a relayed row are added by ascending stage of its members, in a stage by rank, to the
 * relay's own; the owner adds those of its node and one a node by ascending rank. So results have
 * the same bits in every run, and, backward, others than where every rank sends to the owner.
 *
 * Credits: a key window is read by ranks that were told rows_ready or relayed, until rows_done; a
 * sum window by owners and relays of the node, until sums_done. What NCCL reads of either is over
 * with the own groups (reclaim).
 */
#include "parallel/device/pass_run.h"

static const struct relay_moves *moves_of(const struct pass_run *run)
{
    return run->is_backward ? &run->pass->backward_relays : &run->pass->forward_relays;
}

static const struct relay_sums *sums_of(const struct pass_run *run)
{
    return &run->pass->relay_sums;
}

static bool is_near(const struct pass_run *run, int32_t rank)
{
    return comm_device_reaches(run->comm, rank);
}

static void add_move(struct pass_run *run, int64_t *count, void *at, int64_t bytes, int32_t rank,
                     bool is_send)
{
    run->pass->moves[(*count)++] =
        (struct nccl_move){ .at = at, .bytes = bytes, .rank = rank, .is_send = is_send };
}

static struct comm_flag flag_of(const struct relay_flag *flag)
{
    return (struct comm_flag){ .channel = flag->stage ? CHANNEL_RELAYED : CHANNEL_ROWS_READY,
                               .rank = flag->rank,
                               .stage = flag->stage };
}

/* ---- keys ---- */

static ffa_status reclaim_keys(struct pass_run *run, ffa_error *err)
{
    struct comm_batch batch;
    ffa_status rc;

    comm_batch_init(&batch, run->comm, run->stream);
    FFA_TRY(comm_batch_reclaim(&batch, &run->fetch, run->call, WINDOW_ROWS, err));
    FFA_TRY(comm_batch_flush(&batch, err));
    FFA_TRY(comm_batch_flush(&run->fetch, err));
    /* What this rank pulls may come where an earlier call had more own keys, and still sends. */
    FFA_TRY(
        comm_exchange_reclaim(run->comm, WINDOW_ROWS, gpu_stream_handle(run->comm->fetch), err));
    rc = comm_exchange_reclaim(run->comm, WINDOW_ROWS, run->stream, err);
out:
    return rc;
}

/* What the rank has of a stage is there, behind what is on the stream. */
static ffa_status tell(struct pass_run *run, ffa_stream stream, int32_t stage, ffa_error *err)
{
    const struct relay_moves *relays = moves_of(run);
    const int32_t first = relays->told_begin[stage];
    const int32_t count = relays->told_begin[stage + 1] - first;

    for (int32_t i = 0; i < count; i++)
        run->pass->flags[i] = flag_of(&relays->told[first + i]);
    return comm_device_signal(run->comm, run->call, stream, run->pass->flags, count, err);
}

/* One group of what crosses between nodes. */
static ffa_status cross(struct pass_run *run, int32_t step, ffa_error *err)
{
    const struct relay_moves *relays = moves_of(run);
    const bool has_stage = step < run->moves->stage_count;
    unsigned char *const window = pass_run_own_window(run, WINDOW_ROWS);
    int64_t count = 0;
    ffa_status rc;

    for (int64_t i = relays->send_begin[step]; i < relays->send_begin[step + 1]; i++)
        add_move(run, &count, window + relays->sends[i].from * run->key_bytes,
                 relays->sends[i].rows * run->key_bytes, relays->sends[i].rank, true);
    for (int64_t i = has_stage ? relays->receive_begin[step] : 0;
         has_stage && i < relays->receive_begin[step + 1]; i++)
        add_move(run, &count, window + relays->receives[i].to * run->key_bytes,
                 relays->receives[i].rows * run->key_bytes, relays->receives[i].rank, false);
    FFA_TRY(comm_exchange_moves(run->comm, WINDOW_ROWS, run->pass->moves, count, err));
    if (has_stage)
        rc = tell(run, gpu_stream_handle(run->comm->network), step, err);
out:
    return rc;
}

/* Part of a stage's pulls: see struct relay_moves. */
static ffa_status pull_part(struct pass_run *run, int32_t part, ffa_error *err)
{
    const struct relay_moves *relays = moves_of(run);
    const int32_t awaited = relays->awaited_begin[part];
    const int32_t flags = relays->awaited_begin[part + 1] - awaited;
    const int64_t first = relays->pull_begin[part], count = relays->pull_begin[part + 1] - first;
    const ffa_stream stream = gpu_stream_handle(run->comm->fetch);
    const ffa_parallel_pass *pass = run->pass;
    ffa_status rc;

    for (int32_t i = 0; i < flags; i++)
        pass->flags[i] = flag_of(&relays->awaited[awaited + i]);
    FFA_TRY(comm_device_wait(run->comm, run->call, stream, pass->flags, flags, err));
    if (flags > 0)
        FFA_TRY(pass_run_mark(
            run, FFA_PARALLEL_LANE_FETCH, FFA_PARALLEL_SPAN_WAIT,
            &(struct pass_mark){ part / 2, flags == 1 ? pass->flags->rank : -1, 0 }, err));
    for (int64_t i = 0; i < count; i++) {
        const struct pass_copy *copy = &relays->pulls[first + i];

        pass->to[i] = pass_run_own_window(run, WINDOW_ROWS) + copy->to * run->key_bytes;
        pass->from[i] = pass_run_window(run, WINDOW_ROWS, copy->rank) + copy->from * run->key_bytes;
        pass->bytes[i] = (size_t)(copy->rows * run->key_bytes);
    }
    rc = gpu_copy_batch(run->comm->gpu, stream, pass->to, pass->from, pass->bytes, count, err);
out:
    return rc;
}

/* Rows pulled from ranks of the node, and those that came to this rank over the network. */
static ffa_status fetch(struct pass_run *run, int32_t stage, ffa_error *err)
{
    const int64_t first = run->moves->copy_begin[stage];
    const struct pass_mark copied = pass_run_mark_of(
        run->moves->copies + first, run->moves->copy_begin[stage + 1] - first, run->key_bytes);
    ffa_status rc;

    FFA_TRY(pull_part(run, 2 * stage, err));
    FFA_TRY(pull_part(run, 2 * stage + 1, err));
    FFA_TRY(
        comm_device_arrive(run->comm, run->call, gpu_stream_handle(run->comm->fetch), stage, err));
    rc = pass_run_mark(run, FFA_PARALLEL_LANE_FETCH, FFA_PARALLEL_SPAN_COPY, &copied, err);
out:
    return rc;
}

static ffa_status reclaim_sums(struct pass_run *run, ffa_error *err)
{
    const struct relay_sums *sums = sums_of(run);
    struct comm_batch batch;
    ffa_status rc;

    comm_batch_init(&batch, run->comm, run->stream);
    FFA_TRY(comm_batch_reclaim(&batch, NULL, run->call, WINDOW_SUMS, err));
    FFA_TRY(comm_batch_flush(&batch, err));
    FFA_TRY(comm_exchange_reclaim(run->comm, WINDOW_SUMS, run->stream, err));
    for (int32_t i = 0; i < sums->reader_count; i++)
        comm_device_lend_sums(run->comm, run->call, sums->readers[i]);
out:
    return rc;
}

static ffa_status move_keys(struct pass_run *run, ffa_error *err)
{
    const struct relay_moves *relays = moves_of(run);
    ffa_status rc = FFA_OK;

    if (run->pass->sums.is_replicated || !run->pass->has_relays || pass_run_has_kept(run))
        goto out; /* nothing moves */
    FFA_TRY(tell(run, run->stream, 0, err));
    for (int32_t step = 1; step < run->moves->step_count; step++)
        FFA_TRY(cross(run, step, err));
    FFA_TRY(comm_exchange_sent(run->comm, WINDOW_ROWS, err));
    for (int32_t s = 1; s < run->moves->stage_count; s++)
        FFA_TRY(fetch(run, s, err));
    rc = comm_device_tell(run->comm, run->call, gpu_stream_handle(run->comm->fetch),
                          CHANNEL_ROWS_DONE, relays->sources, relays->source_count, err);
out:
    return rc;
}

static ffa_status bring_keys(struct pass_run *run, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(comm_exchange_follow(run->comm, WINDOW_ROWS, run->stream, err));
    FFA_TRY(move_keys(run, err));
    if (run->is_backward)
        rc = reclaim_sums(run, err);
out:
    return rc;
}

/* ---- sums ---- */

/* Whether the rank's own kernel tells it of its sums of the stage. */
static bool tells_itself(const struct pass_run *run, int32_t stage)
{
    const struct pass_sums *own = &sums_of(run)->own;

    for (int32_t i = own->owner_begin[stage]; i < own->owner_begin[stage + 1]; i++)
        if (own->owners[i] == run->pass->rank)
            return true;
    return false;
}

static bool gives(const struct relay_sums *sums, int32_t rank, int32_t step,
                  const struct pass_run *run)
{
    for (int64_t i = 0; i < sums->own.copy_count; i++)
        if (sums->own.copies[i].rank == rank && sums->own.copies[i].stage == step &&
            is_near(run, rank))
            return true;
    for (int32_t i = 0; i < sums->addend_count; i++)
        if (sums->addends[i].rank == rank && sums->addends[i].step == step)
            return true;
    return rank == run->pass->rank && tells_itself(run, step);
}

/* Kernels of the node, the own one too, have finished what the step reads of their sums. */
static ffa_status await_kernels(struct pass_run *run, int32_t step, ffa_error *err)
{
    int32_t count = 0;
    ffa_status rc;

    for (int32_t r = 0; r < run->pass->rank_count; r++)
        if (is_near(run, r) && gives(sums_of(run), r, step, run))
            run->pass->flags[count++] =
                (struct comm_flag){ .channel = CHANNEL_SUMS_READY, .rank = r, .stage = step };
    FFA_TRY(comm_device_wait(run->comm, run->call, gpu_stream_handle(run->comm->reduce),
                             run->pass->flags, count, err));
    rc = pass_run_mark(run, FFA_PARALLEL_LANE_REDUCE, FFA_PARALLEL_SPAN_WAIT,
                       &(struct pass_mark){ step, -1, 0 }, err);
out:
    return rc;
}

/* What ranks of the node summed of own keys. */
static ffa_status pull_sums(struct pass_run *run, int32_t step, struct pass_mark *mark,
                            ffa_error *err)
{
    const struct pass_sums *own = &sums_of(run)->own;
    const ffa_parallel_pass *pass = run->pass;
    int64_t count = 0;

    for (int64_t i = 0; i < own->copy_count; i++) {
        const struct pass_copy *copy = &own->copies[i];

        if (copy->stage != step || !is_near(run, copy->rank))
            continue;
        pass->to[count] = pass_run_received_sums(run) + copy->to * run->sum_bytes;
        pass->from[count] = pass_run_sent_sums(run, copy->rank) + copy->from * run->sum_bytes;
        pass->bytes[count] = (size_t)(copy->rows * run->sum_bytes);
        mark->bytes += copy->rows * run->sum_bytes;
        count++;
    }
    return gpu_copy_batch(run->comm->gpu, gpu_stream_handle(run->comm->reduce), pass->to,
                          pass->from, pass->bytes, count, err);
}

/* Of dk or dv: rows of the own sum window, to which those of the member's are added. */
static struct row_reduce_rows rows_of(const struct pass_run *run, const struct relay_addend *addend,
                                      bool is_v)
{
    const ffa_parallel_args *a = &run->args;
    const int64_t at = is_v ? (int64_t)a->heads_kv * a->head_dim * (int64_t)sizeof(float) : 0;
    const int32_t columns = is_v ? a->head_dim_v : a->head_dim;
    unsigned char *const own =
        pass_run_own_window(run, WINDOW_SUMS) + addend->first_row * run->sum_bytes + at;

    return (struct row_reduce_rows){
        .own = own,
        .received = pass_run_window(run, WINDOW_SUMS, addend->rank) + at,
        .out = own,
        .own_token_stride = run->columns,
        .own_head_stride = columns,
        .received_token_stride = run->columns,
        .received_head_stride = columns,
        .out_token_stride = run->columns,
        .out_head_stride = columns,
        .heads = a->heads_kv,
        .columns = columns,
    };
}

struct row_reduce_call pass_relay_addend(const struct pass_run *run, int32_t index)
{
    const ffa_parallel_pass *pass = run->pass;
    const struct relay_addend *addend = &pass->relay_sums.addends[index];

    return (struct row_reduce_call){
        .kernel = run->kernels->totals_sum,
        .types = { FFA_FP32, FFA_FP32, ROW_REDUCE_SUM },
        .tensors = { rows_of(run, addend, false), rows_of(run, addend, true) },
        .count = 2,
        .rows = addend->rows,
        .segments =
            (const struct row_segment *)(const void *)(pass->buffer + pass->addend_segments_at) +
            addend->segment_begin,
        .segment_count = (int32_t)(addend->segment_end - addend->segment_begin),
        .sources = (const int64_t *)(const void *)(pass->buffer + pass->addend_sources_at),
    };
}

static ffa_status add_members(struct pass_run *run, int32_t step, ffa_error *err)
{
    const struct relay_sums *sums = sums_of(run);
    ffa_status rc = FFA_OK;

    for (int32_t i = 0; i < sums->addend_count; i++) {
        const struct row_reduce_call call = pass_relay_addend(run, i);

        if (sums->addends[i].step == step)
            FFA_TRY(
                row_reduce_enqueue(run->kernels, &call, gpu_stream_handle(run->comm->reduce), err));
    }
out:
    return rc;
}

/* One group of sums that are complete with the step. */
static ffa_status cross_back(struct pass_run *run, int32_t step, struct pass_mark *mark,
                             ffa_error *err)
{
    const struct relay_sums *sums = sums_of(run);
    unsigned char *const window = pass_run_own_window(run, WINDOW_SUMS);
    int64_t count = 0;

    for (int64_t i = sums->send_begin[step]; i < sums->send_begin[step + 1]; i++)
        add_move(run, &count, window + sums->sends[i].from * run->sum_bytes,
                 sums->sends[i].rows * run->sum_bytes, sums->sends[i].rank, true);
    for (int64_t i = 0; i < sums->own.copy_count; i++) {
        const struct pass_copy *copy = &sums->own.copies[i];

        if (copy->stage != step || is_near(run, copy->rank))
            continue;
        add_move(run, &count, pass_run_received_sums(run) + copy->to * run->sum_bytes,
                 copy->rows * run->sum_bytes, copy->rank, false);
        mark->bytes += copy->rows * run->sum_bytes;
    }
    return comm_exchange_moves(run->comm, WINDOW_SUMS, run->pass->moves, count, err);
}

static ffa_status bring_step(struct pass_run *run, int32_t step, ffa_error *err)
{
    struct pass_mark mark = { .stage = step, .rank = -1 };
    ffa_status rc;

    FFA_TRY(await_kernels(run, step, err));
    FFA_TRY(pull_sums(run, step, &mark, err));
    FFA_TRY(add_members(run, step, err));
    FFA_TRY(cross_back(run, step, &mark, err));
    rc = pass_run_mark(run, FFA_PARALLEL_LANE_REDUCE, FFA_PARALLEL_SPAN_COPY, &mark, err);
out:
    return rc;
}

static ffa_status bring_sums(struct pass_run *run, ffa_error *err)
{
    const struct relay_sums *sums = sums_of(run);
    const ffa_stream stream = gpu_stream_handle(run->comm->reduce);
    ffa_status rc = FFA_OK;

    if (run->pass->sums.is_replicated)
        return pass_exchange.bring_sums(run, err);
    if (!run->pass->has_relays)
        return FFA_OK;
    for (int32_t step = 1; step < run->moves->step_count; step++)
        FFA_TRY(bring_step(run, step, err));
    FFA_TRY(comm_exchange_sent(run->comm, WINDOW_SUMS, err));
    FFA_TRY(comm_device_tell(run->comm, run->call, stream, CHANNEL_SUMS_DONE, sums->givers,
                             sums->giver_count, err));
    FFA_TRY(gpu_event_record(run->pass->reduced, stream, err));
    FFA_TRY(gpu_event_wait(run->pass->reduced, run->stream, err));
    rc = pass_run_mark_compute(run, FFA_PARALLEL_SPAN_WAIT, 0, err);
out:
    return rc;
}

const struct pass_transport pass_relay = {
    .reclaim_keys = reclaim_keys,
    .bring_keys = bring_keys,
    .bring_sums = bring_sums,
};
