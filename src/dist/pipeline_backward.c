/* SPDX-License-Identifier: Apache-2.0
 *
 * The backward pass of one rank: own key tiles that cover the first fetch; then the stages, whose
 * partial gradients go back to the owners of their rows while the next stage is computed; then the
 * other own key tiles, which take in what has come from others by then.
 *
 * An own tile that no other rank needs is written once, without sums. One that others need is
 * summed in sum_kv: what is computed early lies there before the first partial gradient is added,
 * and is written at the end; what is computed last adds and writes in one go. Where every rank has
 * all keys, there is nothing to fetch, and every rank adds up the sums of all.
 */
#include "dist/pipeline.h"

struct backward {
    struct pipeline pipeline;
    void *delta;                   /* [tokens][heads_q] */
    void *sum_dq;                  /* [tokens][heads_q][head_dim] */
    void *sum_kv;                  /* [own keys][2][heads_kv][head_dim] */
    uint8_t *needed;               /* [own keys]: of which other ranks compute gradients */
    uint8_t *tile_flags;           /* [most tiles of a phase], of the phase at hand */
    uint8_t *row_flags;            /* [phases + 1][row_blocks]; the last: nothing */
    struct backward_tile *settled; /* scratch: tiles of the first phase, without sweeps */
    float *dsink;                  /* of this rank */
    struct backward_plan nothing;  /* own tiles of a rank without keys */
    int64_t row_blocks;
    uint64_t reduced; /* ticket of LANE_REDUCE */
};

/* ---- which phase is the first, and the last, of what ---- */

static void mark_rows(uint8_t *flags, const struct backward_plan *plan)
{
    for (int64_t t = 0; t < plan->tile_count; t++)
        for (int32_t s = 0; s < plan->tiles[t].sweep_count; s++) {
            const struct backward_sweep *sweep = &plan->sweeps[plan->tiles[t].sweep_begin + s];

            for (int64_t b = sweep->q_begin / plan->tile_m; b <= (sweep->q_end - 1) / plan->tile_m;
                 b++)
                flags[b] = TILE_TOUCHED;
        }
}

/* Rows that attend nothing anywhere are the first phase's: their dq is 0. */
static void flag_rows(struct backward *b)
{
    const struct plan_pass *pass = b->pipeline.pass;

    for (int32_t p = 0; p < pass->phase_count; p++)
        mark_rows(b->row_flags + p * b->row_blocks, &pass->phases[p].key_tiles);
    for (int64_t i = 0; i < b->row_blocks; i++) {
        int32_t first = -1, last = 0;

        for (int32_t p = 0; p < pass->phase_count; p++)
            if (b->row_flags[p * b->row_blocks + i]) {
                first = first < 0 ? p : first;
                last = p;
            }
        first = first < 0 ? 0 : first;
        b->row_flags[first * b->row_blocks + i] |= TILE_TOUCHED | TILE_FIRST;
        b->row_flags[last * b->row_blocks + i] |= TILE_LAST;
    }
}

static void flag_tiles(struct backward *b, int32_t at)
{
    const struct plan_pass *pass = b->pipeline.pass;
    const struct backward_plan *plan = &pass->phases[at].key_tiles;

    for (int64_t t = 0; t < plan->tile_count; t++) {
        const struct backward_tile *tile = &plan->tiles[t];
        const bool is_own = at == 0 || at > pass->stage_count;
        const bool is_shared =
            is_own && memchr(b->needed + tile->key_begin, 1, (size_t)tile->key_count);

        if (!is_own || (at == 0 && is_shared))
            b->tile_flags[t] = TILE_TOUCHED | TILE_FIRST;
        else
            b->tile_flags[t] = (uint8_t)(TILE_TOUCHED | TILE_LAST | (is_shared ? 0 : TILE_FIRST));
    }
}

static bool is_replicated(const struct backward *b)
{
    return b->pipeline.plan->keys.is_replicated && b->pipeline.comm->rank_count > 1;
}

static ffa_status allocate(struct backward *b, ffa_error *err)
{
    const struct pipeline *p = &b->pipeline;
    const struct plan_pass *pass = p->pass;
    const int32_t tile_m = p->plan->opts.backward_m;
    const size_t rows = (size_t)(p->tokens * p->args.heads_q), element = (size_t)p->sum_element;
    const size_t keys = (size_t)pass->phases[0].rows, dim = (size_t)p->args.head_dim;
    int64_t tiles = 0;

    for (int32_t i = 0; i < pass->phase_count; i++)
        tiles = pass->phases[i].key_tiles.tile_count > tiles ? pass->phases[i].key_tiles.tile_count
                                                             : tiles;
    b->row_blocks = (p->tokens + tile_m - 1) / tile_m;
    b->delta = mem_array(rows, element);
    b->sum_dq = mem_array(rows * dim, element);
    b->sum_kv = mem_array(keys * (size_t)p->row_elements, element);
    b->needed = mem_array(keys, 1);
    b->tile_flags = mem_array((size_t)tiles, 1);
    b->row_flags = mem_array((size_t)(b->row_blocks * (pass->phase_count + 1)), 1);
    b->settled = mem_array((size_t)pass->phases[0].key_tiles.tile_count, sizeof *b->settled);
    if (p->args.dsink)
        b->dsink = mem_array((size_t)(p->args.sink_count * p->args.heads_q), sizeof *b->dsink);
    b->nothing = (struct backward_plan){
        .shape = { p->tokens, 0 },
        .tile_m = tile_m,
        .tile_n = p->plan->opts.backward_n,
        .list_count = p->plan->list_count,
        .list_begin = mem_array((size_t)p->plan->list_count + 1, sizeof(int32_t)),
    };
    if (!b->nothing.list_begin || !b->delta || !b->sum_dq || !b->sum_kv || !b->needed ||
        !b->tile_flags || !b->row_flags || !b->settled || (p->args.dsink && !b->dsink))
        return error_nomem(err, "the sums of a pass");
    for (int32_t s = 0; s < pass->step_count; s++)
        for (int64_t i = 0; i < pass->sends[s].count; i++)
            memset(b->needed + pass->sends[s].at[i].source_row, 1,
                   (size_t)pass->sends[s].at[i].rows);
    if (is_replicated(b))
        memset(b->needed, 1, keys);
    return FFA_OK;
}

/* ---- computing ---- */

static const struct backward_plan *own_tiles(const struct backward *b, int32_t at)
{
    return b->pipeline.pass->phases[at].rows > 0 ? &b->pipeline.pass->phases[at].key_tiles
                                                 : &b->nothing;
}

static struct cpu_backward call_of(struct backward *b, const struct backward_plan *plan,
                                   const ffa_forward_args *args)
{
    const struct pipeline *p = &b->pipeline;
    void *sum_kv = b->sum_kv;

    return (struct cpu_backward){ .plan = plan,
                                  .args = args,
                                  .dout = p->args.dout,
                                  .dq = p->args.dq,
                                  .dk = p->args.dk,
                                  .dv = p->args.dv,
                                  .dtype = (ffa_dtype)p->args.dtype,
                                  .grad_dtype = (ffa_dtype)p->args.dtype,
                                  .head_dim = p->args.head_dim,
                                  .threads = p->args.threads,
                                  .fp64 = p->fp64,
                                  .lse_dtype = (ffa_dtype)p->args.sum_dtype,
                                  .delta = b->delta,
                                  .tile_flags = b->tile_flags,
                                  .sum_dk = sum_kv,
                                  .sum_dv = (char *)sum_kv + p->row_elements / 2 * p->sum_element,
                                  .sum_stride = p->row_elements,
                                  .row_flags = b->row_flags,
                                  .sum_dq = b->sum_dq };
}

/* The last own tiles wait here, having computed, for the last partial gradients. */
static bool wait_for_reduces(void *user)
{
    const struct backward *b = user;
    ffa_comm *comm = b->pipeline.comm;

    return comm->ops->await(comm, LANE_COMPUTE, LANE_REDUCE, b->reduced, NULL) == FFA_OK;
}

static ffa_status compute_own(struct backward *b, int32_t at, ffa_error *err)
{
    const ffa_forward_args args = pipeline_args(&b->pipeline, at);
    struct cpu_backward call = call_of(b, own_tiles(b, at), &args);

    flag_tiles(b, at);
    call.row_flags = b->row_flags + at * b->row_blocks;
    if (at == 0) {
        call.dsink = b->dsink;
    } else {
        call.wait = wait_for_reduces;
        call.user = b;
    }
    return cpu_backward(&call, err);
}

/* Write what was summed of the tiles that were computed first and that others need. */
static ffa_status settle(struct backward *b, ffa_error *err)
{
    const ffa_forward_args args = pipeline_args(&b->pipeline, 0);
    struct backward_plan plan = *own_tiles(b, 0);
    struct cpu_backward call = call_of(b, &plan, &args);
    ffa_status rc = FFA_OK;

    if (!wait_for_reduces(b))
        return b->pipeline.comm->ops->drain(b->pipeline.comm, err);
    flag_tiles(b, 0);
    for (int64_t t = 0; t < plan.tile_count; t++) {
        b->settled[t] = plan.tiles[t];
        b->settled[t].sweep_count = 0;
        b->tile_flags[t] = b->tile_flags[t] & TILE_LAST ? 0 : TILE_TOUCHED | TILE_LAST;
    }
    plan.tiles = b->settled;
    call.row_flags = b->row_flags + b->pipeline.pass->phase_count * b->row_blocks;
    rc = cpu_backward(&call, err);
    return rc;
}

/* ---- stages ---- */

static int32_t slot_of(int32_t stage)
{
    return (stage - 1) % WINDOW_SLOTS;
}

/* Tell the owners of the stage's rows that their gradients are there. */
static ffa_status hand_over(struct backward *b, int32_t stage, ffa_error *err)
{
    ffa_comm *comm = b->pipeline.comm;
    const struct transfer_copies *copies = &b->pipeline.pass->phases[stage].receives;
    const uint64_t moment = comm_moment(b->pipeline.call, stage);
    ffa_status rc = FFA_OK;

    for (int64_t i = 0; i < copies->count; i++) {
        const int32_t owner = copies->at[i].source;

        if (comm->loans[WINDOW_SUMS][slot_of(stage)].until[owner] == moment)
            continue;
        comm_lend(comm, WINDOW_SUMS, slot_of(stage), owner, moment);
        FFA_TRY(comm->ops->signal(comm, LANE_COMPUTE, owner, CHANNEL_SUMS_READY, moment, err));
    }
out:
    return rc;
}

static ffa_status compute_stage(struct backward *b, int32_t stage, ffa_error *err)
{
    struct pipeline *p = &b->pipeline;
    const struct plan_phase *phase = &p->pass->phases[stage];
    const ffa_forward_args args = pipeline_args(p, stage);
    struct cpu_backward call = call_of(b, &phase->key_tiles, &args);
    ffa_status rc;

    FFA_TRY(comm_reclaim(p->comm, WINDOW_SUMS, slot_of(stage), err));
    FFA_TRY(p->comm->ops->window(&call.sum_dk, p->comm, WINDOW_SUMS, slot_of(stage),
                                 (size_t)(phase->rows * p->row_elements * p->sum_element), err));
    call.sum_dv = (char *)call.sum_dk + p->row_elements / 2 * p->sum_element;
    call.row_flags = b->row_flags + stage * b->row_blocks;
    flag_tiles(b, stage);
    FFA_TRY(cpu_backward(&call, err));
    rc = hand_over(b, stage, err);
out:
    return rc;
}

/* ---- what comes in ---- */

/* The partial gradients of one rank's stage: copies [count] of one step's sends. */
static ffa_status take_in(struct backward *b, int32_t stage, const struct transfer_copy *copies,
                          int64_t count, ffa_error *err)
{
    struct pipeline *p = &b->pipeline;
    const struct comm_ops *ops = p->comm->ops;
    const int64_t row_bytes = p->row_elements * p->sum_element;
    const uint64_t moment = comm_moment(p->call, stage);
    struct comm_transfer transfer = {
        .window = WINDOW_SUMS, .slot = slot_of(stage), .count = count, .target = b->sum_kv
    };
    struct comm_range *ranges = pipeline_ranges(p, count);
    ffa_status rc;

    if (!ranges) {
        rc = error_nomem(err, "the ranges of a reduce");
        goto out;
    }
    for (int64_t i = 0; i < count; i++)
        ranges[i] = (struct comm_range){ .from = copies[i].row * row_bytes,
                                         .to = copies[i].source_row * row_bytes,
                                         .bytes = copies[i].rows * row_bytes,
                                         .rank = copies[i].source };
    transfer.ranges = ranges;
    FFA_TRY(ops->wait(p->comm, LANE_REDUCE, copies->source, CHANNEL_SUMS_READY, moment, err));
    FFA_TRY(ops->reduce(p->comm, LANE_REDUCE, &transfer, (ffa_dtype)p->args.sum_dtype, err));
    rc = ops->signal(p->comm, LANE_REDUCE, copies->source, CHANNEL_SUMS_DONE, moment, err);
out:
    return rc;
}

/* By stage, then by ascending rank: the order of every sum. Begins once the own tiles that were
 * computed first are in the sums. */
static ffa_status take_in_all(struct backward *b, ffa_error *err)
{
    const struct plan_pass *pass = b->pipeline.pass;
    ffa_comm *comm = b->pipeline.comm;
    ffa_status rc;

    FFA_TRY(comm->ops->await(comm, LANE_REDUCE, LANE_COMPUTE, b->pipeline.computed[0], err));
    for (int32_t s = 0; s < pass->step_count; s++) {
        const struct transfer_copies *sends = &pass->sends[s];

        for (int64_t i = 0, end; i < sends->count; i = end) {
            for (end = i + 1; end < sends->count && sends->at[end].source == sends->at[i].source;)
                end++;
            FFA_TRY(take_in(b, s + 1, sends->at + i, end - i, err));
        }
    }
    b->reduced = comm->ops->record(comm, LANE_REDUCE);
out:
    return rc;
}

static void add_sums(const struct backward *b, const void *from, int64_t count)
{
    for (int64_t i = 0; i < count && b->pipeline.fp64; i++)
        ((double *)b->sum_kv)[i] += ((const double *)from)[i];
    for (int64_t i = 0; i < count && !b->pipeline.fp64; i++)
        ((float *)b->sum_kv)[i] += ((const float *)from)[i];
}

/* Every rank has all keys: the sums of all, by ascending rank. */
static ffa_status join_sums(struct backward *b, ffa_error *err)
{
    const struct pipeline *p = &b->pipeline;
    const int64_t count = p->pass->phases[0].rows * p->row_elements;
    const size_t bytes = (size_t)(count * p->sum_element);
    char *all = mem_array((size_t)p->comm->rank_count, bytes);
    ffa_status rc;

    assert(p->pass->stage_count == 0);
    if (!all)
        return error_nomem(err, "the gradients of all ranks");
    rc = p->comm->ops->gather(p->comm, b->sum_kv, all, bytes, err);
    if (rc == FFA_OK)
        memset(b->sum_kv, 0, bytes);
    for (int32_t r = 0; rc == FFA_OK && r < p->comm->rank_count; r++)
        add_sums(b, all + (size_t)r * bytes, count);
    mem_free(all);
    return rc;
}

static ffa_status join_dsink(const struct backward *b, ffa_error *err)
{
    const struct pipeline *p = &b->pipeline;
    const size_t count = (size_t)(p->args.sink_count * p->args.heads_q);
    float *all = mem_array((size_t)p->comm->rank_count * count, sizeof *all);
    ffa_status rc;

    if (!all)
        return error_nomem(err, "dsink of all ranks");
    rc = p->comm->ops->gather(p->comm, b->dsink, all, count * sizeof *all, err);
    for (size_t i = 0; rc == FFA_OK && i < count; i++) {
        double sum = 0;

        for (size_t r = 0; r < (size_t)p->comm->rank_count; r++)
            sum += (double)all[r * count + i];
        p->args.dsink[i] = (float)sum;
    }
    mem_free(all);
    return rc;
}

/* ---- the pass ---- */

static ffa_status run_pass(struct backward *b, ffa_error *err)
{
    struct pipeline *p = &b->pipeline;
    const int32_t stages = p->pass->stage_count;
    const ffa_forward_args args = pipeline_args(p, 0);
    const struct cpu_backward call = call_of(b, own_tiles(b, 0), &args);
    ffa_status rc;

    FFA_TRY(pipeline_publish(p, err));
    FFA_TRY(pipeline_advance(p, 0, err));
    FFA_TRY(cpu_backward_delta(&call, b->delta, err));
    FFA_TRY(compute_own(b, 0, err));
    pipeline_computed(p, 0);
    FFA_TRY(take_in_all(b, err));
    for (int32_t s = 1; s <= stages; s++) {
        FFA_TRY(pipeline_advance(p, s, err));
        FFA_TRY(compute_stage(b, s, err));
        pipeline_computed(p, s);
    }
    FFA_TRY(compute_own(b, stages + 1, err));
    if (is_replicated(b))
        FFA_TRY(join_sums(b, err));
    FFA_TRY(settle(b, err));
    if (b->dsink)
        rc = join_dsink(b, err);
out:
    return rc;
}

ffa_status ffa_dist_backward_host(const ffa_dist_plan *plan, ffa_comm *comm,
                                  const ffa_dist_args *args, ffa_error *err)
{
    ffa_error failure = { FFA_OK, 0, "" };
    struct backward b = { 0 };
    ffa_status rc;

    if (!comm)
        return error_fail(err, FFA_INVALID, 0, "comm is NULL");
    FFA_TRY(pipeline_open(&b.pipeline, plan, comm, args, true, &failure));
    FFA_TRY(allocate(&b, &failure));
    flag_rows(&b);
    rc = run_pass(&b, &failure);
out:
    rc = pipeline_close(&b.pipeline, comm, rc, &failure, err);
    mem_free(b.delta);
    mem_free(b.sum_dq);
    mem_free(b.sum_kv);
    mem_free(b.needed);
    mem_free(b.tile_flags);
    mem_free(b.row_flags);
    mem_free(b.settled);
    mem_free(b.nothing.list_begin);
    mem_free(b.dsink);
    return rc;
}
