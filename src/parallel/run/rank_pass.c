/* SPDX-License-Identifier: Apache-2.0
 *
 * What the passes share: arguments checked and resolved, the rank's rows published, stages fetched,
 * partial results returned and added. Invariant: what a stage's buffer or a window slot held is
 * over before it is written again (a mark of LANE_COMPUTE, or a credit), and every failure breaks
 * the group, so that no rank waits for one that gave up. Trick: stages are fetched as far ahead as
 * buffers allow, before the stage that is computed next is waited for.
 */
#include "parallel/run/rank_pass.h"

#include "parallel/plan/parallel_opts.h"
#include "tensor/tensor.h"

#include <ffa/kernel.h>

#include <math.h>

enum { THREADS_MAX = 1024 };

/* ---- arguments ---- */

static ffa_status check_numbers(const ffa_parallel_args *args, const ffa_parallel_plan *plan,
                                ffa_error *err)
{
    const struct bounded fields[] = {
        { "head_dim", args->head_dim, 1, PARALLEL_HEAD_DIM_MAX },
        { "head_dim_v", args->head_dim_v, 1, PARALLEL_HEAD_DIM_MAX },
        { "dtype", args->dtype, FFA_BF16, FFA_FP64 },
        { "sum_dtype", args->sum_dtype, args->dtype == FFA_FP64 ? FFA_FP64 : FFA_FP32, FFA_FP64 },
        { "sink_count", args->sink_count, 0, FFA_SINKS_MAX },
        { "threads", args->threads, 1, THREADS_MAX },
    };
    ffa_status rc;

    FFA_TRY(check_heads("", args->heads_q, args->heads_kv, PARALLEL_HEADS_MAX, err));
    FFA_TRY(check_mask_lists("", plan->list_count, args->heads_kv, err));
    FFA_TRY(check_bounded(fields, sizeof fields / sizeof *fields, err));
    if (!(args->softmax_scale >= 0) || !isfinite(args->softmax_scale))
        return error_fail(err, FFA_INVALID, 0, "softmax_scale is %g, not finite and 0 or more",
                          args->softmax_scale);
    if (!(args->softcap >= 0) || !isfinite(args->softcap))
        return error_fail(err, FFA_INVALID, 0, "softcap is %g, not finite and 0 or more",
                          args->softcap);
    if (args->sum_dtype == FFA_FP32 && args->softcap > 0 &&
        ((float)args->softcap == 0.0f || isinf((float)args->softcap)))
        return error_fail(err, FFA_INVALID, 0, "softcap is %g: %g as a float", args->softcap,
                          (double)(float)args->softcap);
    if (args->sum_dtype == FFA_FP32 && args->softmax_scale > 0 &&
        ((float)args->softmax_scale == 0.0f || isinf((float)args->softmax_scale)))
        return error_fail(err, FFA_INVALID, 0, "softmax_scale is %g: %g as a float",
                          args->softmax_scale, (double)(float)args->softmax_scale);
    if (args->sink_count > 0 && !args->sink)
        return error_fail(err, FFA_INVALID, 0, "sink is NULL, sink_count %d", args->sink_count);
out:
    return rc;
}

/* What is no tensor: each of sum_dtype. */
static ffa_status check_alignment(const ffa_parallel_args *args, ffa_error *err)
{
    const struct {
        const char *name;
        const void *at;
    } all[] = { { "sink", args->sink },
                { "max_logits", args->max_logits },
                { "dsink", args->dsink } };
    const size_t bytes = ffa_dtype_bytes((ffa_dtype)args->sum_dtype);

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if ((uintptr_t)all[i].at % bytes)
            return error_fail(err, FFA_INVALID, 0, "%s is %p, not %zu-byte aligned", all[i].name,
                              all[i].at, bytes);
    return FFA_OK;
}

static ffa_status resolve_tensors(struct rank_pass *p, bool is_backward, ffa_error *err)
{
    ffa_parallel_args *a = &p->args;
    const int64_t rows = p->plan->queries.rank_tokens[p->plan->rank];
    const int64_t keys = p->plan->keys.rank_tokens[p->plan->rank];
    const int32_t hq = a->heads_q, hk = a->heads_kv, d = a->head_dim, dv = a->head_dim_v;
    const ffa_dtype dtype = (ffa_dtype)a->dtype, sum_dtype = (ffa_dtype)a->sum_dtype;
    const struct tensor_rule both[] = {
        { &a->q, "q", rows, hq, d, dtype, false, false },
        { &a->k, "k", keys, hk, d, dtype, false, false },
        { &a->v, "v", keys, hk, dv, dtype, false, false },
        { &a->out, "out", rows, hq, dv, dtype, false, !is_backward },
        { &a->lse, "lse", rows, hq, 1, sum_dtype, false, !is_backward },
    };
    const struct tensor_rule backward[] = {
        { &a->dout, "dout", rows, hq, dv, dtype, false, false },
        { &a->dq, "dq", rows, hq, d, dtype, false, true },
        { &a->dk, "dk", keys, hk, d, dtype, false, true },
        { &a->dv, "dv", keys, hk, dv, dtype, false, true },
        { a->dlse.data ? &a->dlse : NULL, "dlse", rows, hq, 1, sum_dtype, false, false },
    };
    ffa_status rc;

    FFA_TRY(tensors_check(both, sizeof both / sizeof *both, err));
    if (is_backward)
        rc = tensors_check(backward, sizeof backward / sizeof *backward, err);
out:
    return rc;
}

static ffa_status resolve(struct rank_pass *p, const ffa_parallel_args *args, bool is_backward,
                          ffa_error *err)
{
    ffa_parallel_args *a = &p->args;
    ffa_status rc;

    if (!args)
        return error_fail(err, FFA_INVALID, 0, "args is NULL");
    FFA_TRY(opts_import(a, sizeof *a, args, err));
    if (a->trace)
        return error_fail(err, FFA_UNSUPPORTED, 0, "trace is given: passes on the CPU have none");
    if (a->kept_keys)
        return error_fail(err, FFA_UNSUPPORTED, 0,
                          "kept_keys is given: passes on the CPU keep none");
    a->threads = a->threads ? a->threads : 1;
    a->head_dim_v = a->head_dim_v ? a->head_dim_v : a->head_dim;
    if (!a->sum_dtype)
        a->sum_dtype = a->dtype == FFA_FP64 ? FFA_FP64 : FFA_FP32;
    if (a->wire_dtype && a->wire_dtype != a->sum_dtype)
        return error_fail(err, FFA_UNSUPPORTED, 0,
                          "wire_dtype is %d: passes on the CPU send sums in sum_dtype, %d",
                          a->wire_dtype, a->sum_dtype);
    FFA_TRY(check_numbers(a, p->plan, err));
    FFA_TRY(check_alignment(a, err));
    if (a->softmax_scale == 0)
        a->softmax_scale = 1 / sqrt((double)a->head_dim);
    rc = resolve_tensors(p, is_backward, err);
out:
    return rc;
}

/* ---- opening and closing ---- */

static ffa_status check_group(const ffa_parallel_plan *plan, const ffa_comm *comm, ffa_error *err)
{
    if (!plan)
        return error_fail(err, FFA_INVALID, 0, "plan is NULL");
    if (plan->topology.rank_count != comm->rank_count)
        return error_fail(err, FFA_INVALID, 0, "the plan is for %d ranks, the group has %d",
                          plan->topology.rank_count, comm->rank_count);
    if (plan->rank != comm->rank)
        return error_fail(err, FFA_INVALID, 0, "the plan is of rank %d, the communicator of %d",
                          plan->rank, comm->rank);
    return FFA_OK;
}

/* Everything ranks must do alike. */
static ffa_status enter(struct rank_pass *p, bool is_backward, ffa_error *err)
{
    static const char *const names[] = { "", "bf16", "fp16", "fp32", "fp64" };
    const ffa_parallel_args *a = &p->args;
    char words[192], of_v[16] = "";

    if (a->head_dim_v != a->head_dim)
        text_copy(of_v, ":%d", a->head_dim_v);
    text_copy(words,
              "%s of plan %s, heads %d:%d x %d%s, %s in %s, scale %.17g, softcap %.17g, %d "
              "sinks%s%s",
              is_backward ? "backward" : "forward", p->plan->digest, a->heads_q, a->heads_kv,
              a->head_dim, of_v, names[a->dtype], names[a->sum_dtype], a->softmax_scale, a->softcap,
              a->sink_count, !is_backward && a->max_logits ? ", max" : "",
              is_backward && a->dsink ? ", dsink" : "");
    p->call = ++p->comm->call;
    return p->comm->ops->enter(p->comm, p->call, words, err);
}

ffa_status rank_pass_open(struct rank_pass *p, const ffa_parallel_plan *plan, ffa_comm *comm,
                          const ffa_parallel_args *args, bool is_backward, ffa_error *err)
{
    ffa_status rc;

    *p = (struct rank_pass){ .plan = plan, .comm = comm };
    FFA_TRY(check_group(plan, comm, err));
    p->pass = is_backward ? &plan->backward : &plan->forward;
    if (p->pass->phase_count == 0) {
        rc = error_fail(err, FFA_INVALID, 0, "the plan was made with FFA_PARALLEL_FORWARD_ONLY");
        goto out;
    }
    if (plan->is_outline) {
        rc = error_fail(err, FFA_INVALID, 0, "the plan was made with FFA_PARALLEL_OUTLINE");
        goto out;
    }
    FFA_TRY(resolve(p, args, is_backward, err));
    p->fp64 = p->args.sum_dtype == FFA_FP64;
    p->tokens = plan->queries.rank_tokens[plan->rank];
    p->element = (int64_t)ffa_dtype_bytes((ffa_dtype)p->args.dtype);
    p->sum_element = p->fp64 ? (int64_t)sizeof(double) : (int64_t)sizeof(float);
    rc = enter(p, is_backward, err);
out:
    return rc;
}

/* A rank that gives up must not be waited for. */
static void release_others(ffa_comm *comm, const ffa_error *why)
{
    char message[sizeof why->message];

    text_copy(message, "rank %d failed: %.400s", comm->rank, why->message);
    comm->ops->cancel(comm, FFA_COMM, message);
}

ffa_status rank_pass_close(struct rank_pass *p, ffa_comm *comm, ffa_status rc, const ffa_error *why,
                           ffa_error *err)
{
    ffa_error failure = *why;

    if (rc != FFA_OK) {
        release_others(comm, why);
        (void)comm->ops->drain(comm, NULL);
    } else {
        rc = comm->ops->drain(comm, &failure);
    }
    for (int32_t b = 0; b < STAGE_BUFFERS_MAX; b++)
        mem_free(p->buffers[b]);
    mem_free(p->is_source);
    mem_free(p->ranges);
    if (rc != FFA_OK && err)
        *err = failure;
    return rc;
}

/* ---- the rank's rows for others ---- */

enum { ROW_ALIGN = 8 }; /* the largest element: strides count elements */

static int64_t aligned(int64_t bytes)
{
    return (bytes + ROW_ALIGN - 1) / ROW_ALIGN * ROW_ALIGN;
}

void rank_pass_move(struct rank_pass *p, const ffa_tensor *tensor, int32_t heads, int32_t dim,
                    int64_t element)
{
    assert(p->moved_count < MOVED_MAX);
    p->moved[p->moved_count++] = (struct moved){ *tensor, heads, dim, element, p->row_bytes };
    p->row_bytes += aligned((int64_t)heads * dim * element);
}

static ffa_status allocate(struct rank_pass *p, ffa_error *err)
{
    p->is_source = mem_array((size_t)p->comm->rank_count, sizeof *p->is_source);
    if (!p->is_source)
        return error_nomem(err, "the sources of a rank");
    p->buffer_count =
        p->plan->opts.buffers < p->pass->stage_count ? p->plan->opts.buffers : p->pass->stage_count;
    for (int32_t b = 0; b < p->buffer_count; b++) {
        p->buffers[b] = mem_array((size_t)p->pass->buffer_rows, (size_t)p->row_bytes);
        if (!p->buffers[b])
            return error_nomem(err, "the buffers of stages");
    }
    return FFA_OK;
}

static void copy_rows(const struct rank_pass *p, char *to, const struct moved *moved)
{
    const ffa_tensor *t = &moved->tensor;
    const int64_t bytes = moved->dim * moved->element;

    for (int64_t row = 0; row < p->rows; row++)
        for (int32_t head = 0; head < moved->heads; head++)
            memcpy(to + row * p->row_bytes + moved->offset + head * bytes,
                   (const char *)t->data +
                       (row * t->token_stride + head * t->head_stride) * moved->element,
                   (size_t)bytes);
}

/* is_reader [ranks]: who fetches rows of this rank. False: nobody. */
static bool find_readers(const struct rank_pass *p, bool *is_reader)
{
    bool any = false;

    for (int32_t s = 0; s < p->pass->step_count; s++)
        for (int64_t i = 0; i < p->pass->sends[s].count; i++)
            any = is_reader[p->pass->sends[s].at[i].source] = true;
    return any;
}

ffa_status rank_pass_publish(struct rank_pass *p, ffa_error *err)
{
    const struct comm_ops *ops = p->comm->ops;
    const int32_t slot = (int32_t)(p->call % WINDOW_SLOTS);
    bool *is_reader = mem_array((size_t)p->comm->rank_count, sizeof *is_reader);
    void *window;
    ffa_status rc;

    if (!is_reader) {
        rc = error_nomem(err, "the readers of a rank");
        goto out;
    }
    FFA_TRY(allocate(p, err));
    if (!find_readers(p, is_reader))
        goto out;
    FFA_TRY(comm_reclaim(p->comm, WINDOW_ROWS, slot, err));
    FFA_TRY(
        ops->window(&window, p->comm, WINDOW_ROWS, slot, (size_t)(p->rows * p->row_bytes), err));
    for (int32_t m = 0; m < p->moved_count; m++)
        copy_rows(p, window, &p->moved[m]);
    for (int32_t r = 0; r < p->comm->rank_count; r++) {
        if (!is_reader[r])
            continue;
        comm_lend(p->comm, WINDOW_ROWS, slot, r, p->call);
        FFA_TRY(ops->signal(p->comm, LANE_COMPUTE, r, CHANNEL_ROWS_READY, p->call, err));
    }
out:
    mem_free(is_reader);
    return rc;
}

/* ---- stages ---- */

static struct comm_range *ranges_of(struct rank_pass *p, int64_t count)
{
    return mem_grow((void **)&p->ranges, &p->range_capacity, count, sizeof *p->ranges) ? p->ranges
                                                                                       : NULL;
}

static ffa_status wait_for_sources(struct rank_pass *p, const struct transfer_copies *copies,
                                   ffa_error *err)
{
    ffa_status rc = FFA_OK;

    for (int64_t i = 0; i < copies->count; i++) {
        const int32_t source = copies->at[i].source;

        if (p->is_source[source])
            continue;
        p->is_source[source] = true;
        FFA_TRY(p->comm->ops->wait(p->comm, LANE_FETCH, source, CHANNEL_ROWS_READY, p->call, err));
    }
out:
    return rc;
}

static ffa_status fetch(struct rank_pass *p, int32_t stage, ffa_error *err)
{
    const struct comm_ops *ops = p->comm->ops;
    const struct plan_phase *phase = &p->pass->phases[stage];
    const struct transfer_copies *copies = &phase->receives;
    const int64_t row_bytes = p->row_bytes;
    struct comm_transfer transfer = { .window = WINDOW_ROWS,
                                      .slot = (int32_t)(p->call % WINDOW_SLOTS),
                                      .count = copies->count,
                                      .target = p->buffers[(stage - 1) % p->buffer_count] };
    struct comm_range *ranges = ranges_of(p, copies->count);
    ffa_status rc;

    if (!ranges) {
        rc = error_nomem(err, "the ranges of a stage");
        goto out;
    }
    for (int64_t i = 0; i < copies->count; i++)
        ranges[i] = (struct comm_range){ .from = copies->at[i].source_row * row_bytes,
                                         .to = copies->at[i].row * row_bytes,
                                         .bytes = copies->at[i].rows * row_bytes,
                                         .rank = copies->at[i].source };
    transfer.ranges = ranges;
    if (stage > p->buffer_count)
        FFA_TRY(ops->await(p->comm, LANE_FETCH, LANE_COMPUTE, p->computed[stage - p->buffer_count],
                           err));
    FFA_TRY(
        ops->discard(p->comm, LANE_FETCH, transfer.target, (size_t)(phase->rows * row_bytes), err));
    FFA_TRY(wait_for_sources(p, copies, err));
    FFA_TRY(ops->pull(p->comm, LANE_FETCH, &transfer, err));
    for (int32_t r = 0; stage == p->pass->stage_count && r < p->comm->rank_count; r++)
        if (p->is_source[r])
            FFA_TRY(ops->signal(p->comm, LANE_FETCH, r, CHANNEL_ROWS_DONE, p->call, err));
    p->fetched[stage] = ops->record(p->comm, LANE_FETCH);
out:
    return rc;
}

/* Before the own phase all stages but one buffer's may come; then one more a phase. */
ffa_status rank_pass_advance(struct rank_pass *p, int32_t phase, ffa_error *err)
{
    const int32_t ahead = p->buffer_count > 1 ? p->buffer_count - 1 : 1;
    const int32_t first = phase == 0 ? 1 : phase + ahead;
    ffa_status rc = FFA_OK;

    for (int32_t s = first; s <= phase + ahead && s <= p->pass->stage_count; s++)
        FFA_TRY(fetch(p, s, err));
    if (phase > 0 && phase <= p->pass->stage_count)
        rc = p->comm->ops->await(p->comm, LANE_COMPUTE, LANE_FETCH, p->fetched[phase], err);
out:
    return rc;
}

void rank_pass_computed(struct rank_pass *p, int32_t phase)
{
    if (phase <= p->pass->stage_count)
        p->computed[phase] = p->comm->ops->record(p->comm, LANE_COMPUTE);
}

bool rank_pass_is_stage(const struct rank_pass *p, int32_t phase)
{
    return phase > 0 && phase <= p->pass->stage_count;
}

struct cpu_tensor rank_pass_arrived(const struct rank_pass *p, int32_t stage, int32_t which)
{
    const struct moved *moved = &p->moved[which];

    return (struct cpu_tensor){ (char *)p->buffers[(stage - 1) % p->buffer_count] + moved->offset,
                                p->row_bytes / moved->element, moved->dim };
}

struct cpu_args rank_pass_cpu_args(const struct rank_pass *p)
{
    return CPU_ARGS(p->args);
}

double rank_pass_sum_read(const struct rank_pass *p, const void *array, size_t at)
{
    return p->fp64 ? ((const double *)array)[at] : (double)((const float *)array)[at];
}

void rank_pass_sum_write(const struct rank_pass *p, void *array, size_t at, double value)
{
    if (p->fp64)
        ((double *)array)[at] = value;
    else
        ((float *)array)[at] = (float)value;
}

/* ---- partial results ---- */

static int32_t slot_of(int32_t stage)
{
    return (stage - 1) % WINDOW_SLOTS;
}

ffa_status rank_pass_results(struct rank_pass *p, int32_t stage, void **out, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(comm_reclaim(p->comm, WINDOW_SUMS, slot_of(stage), err));
    rc = p->comm->ops->window(out, p->comm, WINDOW_SUMS, slot_of(stage),
                              (size_t)(p->pass->phases[stage].rows * p->result_bytes), err);
out:
    return rc;
}

ffa_status rank_pass_signal_results(struct rank_pass *p, int32_t stage, ffa_error *err)
{
    ffa_comm *comm = p->comm;
    const struct transfer_copies *copies = &p->pass->phases[stage].receives;
    const uint64_t moment = comm_moment(p->call, stage);
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

/* The partial results of one rank's stage: copies [count] of one step's sends. */
static ffa_status take_in(struct rank_pass *p, int32_t stage, const struct transfer_copy *copies,
                          int64_t count, void *target, const struct comm_reduce *how,
                          ffa_error *err)
{
    const struct comm_ops *ops = p->comm->ops;
    const uint64_t moment = comm_moment(p->call, stage);
    struct comm_transfer transfer = {
        .window = WINDOW_SUMS, .slot = slot_of(stage), .count = count, .target = target
    };
    struct comm_range *ranges = ranges_of(p, count);
    ffa_status rc;

    if (!ranges) {
        rc = error_nomem(err, "the ranges of a reduce");
        goto out;
    }
    for (int64_t i = 0; i < count; i++)
        ranges[i] = (struct comm_range){ .from = copies[i].row * p->result_bytes,
                                         .to = copies[i].source_row * p->result_bytes,
                                         .bytes = copies[i].rows * p->result_bytes,
                                         .rank = copies[i].source };
    transfer.ranges = ranges;
    FFA_TRY(ops->wait(p->comm, LANE_REDUCE, copies->source, CHANNEL_SUMS_READY, moment, err));
    FFA_TRY(ops->reduce(p->comm, LANE_REDUCE, &transfer, how, err));
    rc = ops->signal(p->comm, LANE_REDUCE, copies->source, CHANNEL_SUMS_DONE, moment, err);
out:
    return rc;
}

ffa_status rank_pass_reduce(struct rank_pass *p, void *target, const struct comm_reduce *how,
                            uint64_t *mark, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(p->comm->ops->await(p->comm, LANE_REDUCE, LANE_COMPUTE, p->computed[0], err));
    for (int32_t s = 0; s < p->pass->step_count; s++) {
        const struct transfer_copies *sends = &p->pass->sends[s];

        for (int64_t i = 0, end; i < sends->count; i = end) {
            for (end = i + 1; end < sends->count && sends->at[end].source == sends->at[i].source;)
                end++;
            FFA_TRY(take_in(p, s + 1, sends->at + i, end - i, target, how, err));
        }
    }
    *mark = p->comm->ops->record(p->comm, LANE_REDUCE);
out:
    return rc;
}

/* ---- agreement ---- */

/* What ranks must have in common: all that decides what they send each other. */
struct common {
    char plan[40], costs[40]; /* digests */
};

static ffa_status compare_digests(const struct common *all, int32_t rank_count, ffa_error *err)
{
    for (int32_t r = 1; r < rank_count; r++) {
        if (strcmp(all[r].plan, all[0].plan) != 0)
            return error_fail(err, FFA_INVALID, 0, "plans differ: rank 0 has %s, rank %d has %s",
                              all[0].plan, r, all[r].plan);
        if (strcmp(all[r].costs, all[0].costs) != 0)
            return error_fail(err, FFA_INVALID, 0,
                              "cost tables differ: rank 0 has %s, rank %d has %s: give all ranks "
                              "the same ones (cost_tables of ffa_context_opts)",
                              all[0].costs, r, all[r].costs);
    }
    return FFA_OK;
}

ffa_status ffa_parallel_plan_agree(const ffa_parallel_plan *plan, ffa_comm *comm, ffa_error *err)
{
    ffa_error failure = { FFA_OK, 0, "" };
    struct common mine = { .plan = "" }, *all = NULL;
    ffa_status rc;

    if (!comm)
        return error_fail(err, FFA_INVALID, 0, "comm is NULL");
    FFA_TRY(check_group(plan, comm, &failure));
    all = mem_array((size_t)comm->rank_count, sizeof *all);
    if (!all) {
        rc = error_nomem(&failure, "digests");
        goto out;
    }
    text_copy(mine.plan, "%s", plan->digest);
    text_copy(mine.costs, "%s", comm->cost_digest);
    rc = comm->ops->gather(comm, &mine, all, sizeof *all, &failure);
out:
    if (rc == FFA_OK) {
        rc = compare_digests(all, comm->rank_count, err);
    } else {
        release_others(comm, &failure);
        if (err)
            *err = failure;
    }
    mem_free(all);
    return rc;
}
