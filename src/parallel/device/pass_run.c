/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa_parallel_forward and ffa_parallel_backward: one attention launch a pass, fed by arrival
 * flags. (In rounds, and where queries move, there are several: pass_rounds.c, pass_queries.c.)
 *
 *     caller's stream   reclaim, row_copy of k and v, launches, .. backward: row_reduce
 *     fetch stream      the transport: keys, stage by stage, each with its arrival flag
 *     reduce stream     the transport: sums of received keys to their owners
 *                       both passes, where there are totals: copies to all ranks, totals_ready
 *
 * Invariant: nothing here blocks the host, allocates or synchronises, and what can be refused is
 * refused before comm_device_open, while no other rank has heard of the call. Trick: all that a
 * launch waits for is enqueued before it, on streams of higher priority, so that it cannot stand
 * behind the launch wherever streams share a queue.
 */
#include "parallel/device/pass_run.h"

#include "tensor/tensor.h"

/* ---- arguments ---- */

static ffa_status check_objects(const struct pass_run *run, ffa_error *err)
{
    const ffa_parallel_pass *pass = run->pass;
    const ffa_comm *comm = &run->comm->comm;

    if (pass->rank_count != comm->rank_count || pass->rank != comm->rank)
        return error_fail(err, FFA_INVALID, 0,
                          "the pass is of rank %d of %d, the communicator of rank %d of %d",
                          pass->rank, pass->rank_count, comm->rank, comm->rank_count);
    if (run->kernels->context->gpu != run->comm->gpu)
        return error_fail(err, FFA_INVALID, 0,
                          "the kernels and the communicator are of two contexts");
    if (run->args.trace && !pass_trace_is_of(run->args.trace, run->comm->gpu))
        return error_fail(err, FFA_INVALID, 0,
                          "the trace and the communicator are of two contexts");
    if (run->is_backward && !pass->has_backward)
        return error_fail(err, FFA_INVALID, 0,
                          "the pass was made with kernels without FFA_SPEC_BACKWARD");
    if (!pass->buffer)
        return error_fail(err, FFA_INVALID, 0,
                          "the pass was not uploaded (ffa_parallel_pass_upload)");
    return FFA_OK;
}

/* Where ranks relay, who does follows from the nodes of the plan. */
static ffa_status check_nodes(const struct pass_run *run, ffa_error *err)
{
    const ffa_parallel_pass *pass = run->pass;

    if (!comm_device_relays(run->comm))
        return FFA_OK;
    if (pass->ranks_per_node != run->comm->node_ranks)
        return error_fail(err, FFA_INVALID, 0,
                          "the plan has %d ranks a node, the communicator, which relays, has %d",
                          pass->ranks_per_node, run->comm->node_ranks);
    if (run->transport == &pass_relay && pass->is_outline)
        return error_fail(err, FFA_INVALID, 0,
                          "the plan was made with FFA_PARALLEL_OUTLINE, and cannot be relayed");
    if (run->transport == &pass_relay && pass->moves_queries)
        return error_fail(err, FFA_UNSUPPORTED, 0, "the plan moves queries; ranks relay keys only");
    if (run->transport == &pass_relay && run->args.wire_dtype != FFA_FP32)
        return error_fail(err, FFA_UNSUPPORTED, 0,
                          "wire_dtype is %d, not fp32 (%d), in which ranks that relay add sums",
                          run->args.wire_dtype, FFA_FP32);
    return FFA_OK;
}

static ffa_status check_numbers(const struct pass_run *run, ffa_error *err)
{
    const ffa_parallel_args *a = &run->args;
    const ffa_kernels *kernels = run->kernels;
    const struct bounded fields[] = {
        { "heads_q", a->heads_q, 1, FFA_HEADS_MAX },
        { "heads_kv", a->heads_kv, 1, FFA_HEADS_MAX },
        { "head_dim", a->head_dim, kernels->head_dim, kernels->head_dim },
        { "head_dim_v", a->head_dim_v, kernels->head_dim_v, kernels->head_dim_v },
        { "dtype", a->dtype, kernels->dtype, kernels->dtype },
        { "sum_dtype", a->sum_dtype, FFA_FP32, FFA_FP32 },
        { "threads", a->threads, 0, 1024 },
        { "sm_margin", a->sm_margin, 0, INT32_MAX },
    };
    ffa_status rc = check_bounded(fields, sizeof fields / sizeof *fields, err);

    if (rc == FFA_OK && a->wire_dtype != FFA_FP32 && a->wire_dtype != (int32_t)kernels->dtype)
        rc = error_fail(err, FFA_INVALID, 0,
                        "wire_dtype is %d, not that of sums, fp32 (%d), or of the tensors, %d",
                        a->wire_dtype, FFA_FP32, (int32_t)kernels->dtype);
    return rc;
}

static ffa_status check_windows(const struct pass_run *run, ffa_error *err)
{
    const int64_t keys = run->moves->window_rows * run->key_bytes;
    const int64_t sums = pass_run_has_sums(run) ? run->moves->window_rows * run->sum_bytes : 0;
    const int32_t rank = run->comm->comm.rank;

    if (run->comm->window_bytes[WINDOW_ROWS][rank] < keys)
        return error_fail(err, FFA_INVALID, 0,
                          "the communicator's key window has %lld bytes, the pass needs %lld "
                          "(ffa_comm_reserve)",
                          (long long)run->comm->window_bytes[WINDOW_ROWS][rank], (long long)keys);
    if (run->comm->window_bytes[WINDOW_SUMS][rank] < sums)
        return error_fail(err, FFA_INVALID, 0,
                          "the communicator's sum window has %lld bytes, the pass needs %lld "
                          "(ffa_comm_reserve)",
                          (long long)run->comm->window_bytes[WINDOW_SUMS][rank], (long long)sums);
    return FFA_OK;
}

/* k, v, dk and dv are the rank's own rows; the others are checked with the launches, where these
 * take them as they are: not where queries move. */
static ffa_status check_tensors(struct pass_run *run, ffa_error *err)
{
    ffa_parallel_args *a = &run->args;
    const bool is_backward = run->is_backward, moves = run->pass->moves_queries;
    const ffa_dtype dtype = run->kernels->dtype;
    const int64_t rows = run->pass->tokens_k, queries = run->pass->tokens_q;
    const struct tensor_rule rules[] = {
        { &a->k, "k", rows, a->heads_kv, a->head_dim, dtype, true, false },
        { &a->v, "v", rows, a->heads_kv, a->head_dim_v, dtype, true, false },
        { is_backward ? &a->dk : NULL, "dk", rows, a->heads_kv, a->head_dim, dtype, true, true },
        { is_backward ? &a->dv : NULL, "dv", rows, a->heads_kv, a->head_dim_v, dtype, true, true },
        { moves ? &a->q : NULL, "q", queries, a->heads_q, a->head_dim, dtype, true, false },
        { moves ? &a->out : NULL, "out", queries, a->heads_q, a->head_dim_v, dtype, true,
          !is_backward },
        { moves ? &a->lse : NULL, "lse", queries, a->heads_q, 1, FFA_FP32, false, !is_backward },
        { moves && is_backward ? &a->dout : NULL, "dout", queries, a->heads_q, a->head_dim_v, dtype,
          true, false },
        { moves && is_backward ? &a->dq : NULL, "dq", queries, a->heads_q, a->head_dim, dtype, true,
          true },
    };

    return tensors_check(rules, sizeof rules / sizeof *rules, err);
}

static ffa_status check_workspace(struct pass_run *run, ffa_error *err)
{
    ffa_parallel_pass_info info = FFA_PARALLEL_PASS_INFO_INIT;
    int64_t needed;
    ffa_status rc;

    FFA_TRY(ffa_parallel_pass_info_get(run->pass, run->kernels, run->args.heads_q,
                                       run->args.heads_kv, &info, err));
    needed = run->is_backward ? info.backward_workspace_bytes : info.forward_workspace_bytes;
    run->received_at = needed;
    run->received_at -= pass_fp32_bytes(run->pass, run->kernels, run->args.heads_q,
                                        run->args.heads_kv, run->is_backward);
    run->totals_at = run->received_at - pass_totals_bytes(run->pass, run->kernels, run->is_backward,
                                                          run->args.heads_q);
    if (run->args.workspace_bytes < needed || (needed && !run->args.workspace))
        rc = error_fail(err, FFA_INVALID, 0, "workspace_bytes is %lld at %p, the call needs %lld",
                        (long long)run->args.workspace_bytes, run->args.workspace,
                        (long long)needed);
    else if (run->totals.count)
        run->totals.mine = (float *)(void *)((unsigned char *)run->args.workspace + run->totals_at);
out:
    return rc;
}

static ffa_status resolve(struct pass_run *run, const ffa_parallel_args *args, ffa_error *err)
{
    ffa_parallel_args *a = &run->args;
    ffa_status rc;

    FFA_TRY(opts_import(a, sizeof *a, args, err));
    a->head_dim_v = a->head_dim_v ? a->head_dim_v : a->head_dim;
    a->sum_dtype = a->sum_dtype ? a->sum_dtype : FFA_FP32;
    a->wire_dtype = a->wire_dtype ? a->wire_dtype : a->sum_dtype;
    FFA_TRY(check_objects(run, err));
    FFA_TRY(check_numbers(run, err));
    FFA_TRY(check_nodes(run, err));
    a->sm_margin = max32(a->sm_margin, comm_device_sm_margin(run->comm, pass_run_has_sums(run)));
    FFA_TRY(pass_totals_init(&run->totals, run->pass, run->kernels, a, run->is_backward, err));
    run->columns = a->heads_kv * ((int64_t)a->head_dim + a->head_dim_v);
    run->key_bytes = run->columns * (int64_t)ffa_dtype_bytes(run->kernels->dtype);
    run->sum_bytes = run->columns * (int64_t)sizeof(float);
    if (run->pass->moves_queries) {
        run->key_bytes = pass_queries_row_bytes(run->kernels, a->heads_q, run->is_backward);
        run->sum_bytes = pass_queries_result_bytes(run->kernels, a->heads_q, run->is_backward);
    }
    run->is_narrow = run->is_backward && a->wire_dtype != FFA_FP32;
    run->wire_bytes = run->is_narrow ? run->sum_bytes / 2 : run->sum_bytes;
    FFA_TRY(pass_kept_check(run, err));
    FFA_TRY(check_windows(run, err));
    FFA_TRY(check_tensors(run, err));
    rc = check_workspace(run, err);
out:
    return rc;
}

/* Everything that ranks must do alike. */
static ffa_status begin(struct pass_run *run, ffa_error *err)
{
    const ffa_parallel_args *a = &run->args;
    char words[COMM_WORDS_MAX];
    const struct comm_opening opening = {
        .stream = run->stream,
        .words = words,
        .name = run->is_backward ? "backward" : "forward",
        .publishes = run->pass->moves_queries ? "queries" : "keys",
        .rounds = run->moves->round_most,
        .fetch = &run->fetch,
        .leaves_reduce = !pass_run_has_sums(run) && run->totals.count == 0,
    };

    comm_batch_init(&run->fetch, run->comm, gpu_stream_handle(run->comm->fetch));
    text_copy(words,
              "%s of plan %s, %d rounds, heads %d:%d x %d:%d, dtype %d, wire %d, scale %.17g, "
              "softcap %.17g, totals %d, kept %d",
              opening.name, run->pass->digest, opening.rounds, a->heads_q, a->heads_kv, a->head_dim,
              a->head_dim_v, a->dtype, run->is_backward ? a->wire_dtype : 0, a->softmax_scale,
              a->softcap, run->totals.count, pass_run_has_kept(run));
    return comm_device_open(&run->call, run->comm, &opening, err);
}

struct pass_mark pass_run_mark_of(const struct pass_copy *copies, int64_t count, int64_t row_bytes)
{
    struct pass_mark mark = { .stage = -1, .rank = -1 };

    if (count > 0)
        mark = (struct pass_mark){ .stage = copies->stage, .rank = copies->rank };
    for (int64_t i = 0; i < count; i++) {
        mark.bytes += copies[i].rows * row_bytes;
        mark.rank = copies[i].rank == mark.rank ? mark.rank : -1;
    }
    return mark;
}

/* ---- the rank's own keys, for others and for itself ---- */

static struct row_copy_call own_keys(const struct pass_run *run)
{
    const ffa_parallel_args *a = &run->args;
    const int64_t element = (int64_t)ffa_dtype_bytes(run->kernels->dtype);
    unsigned char *const to = pass_run_own_window(run, WINDOW_ROWS);
    const int64_t v_at = (int64_t)a->heads_kv * a->head_dim;

    return (struct row_copy_call){
        .tensors = { { .from = a->k.data,
                       .to = to,
                       .from_token_stride = a->k.token_stride,
                       .from_head_stride = a->k.head_stride,
                       .to_token_stride = run->columns,
                       .to_head_stride = a->head_dim,
                       .heads = a->heads_kv,
                       .columns = a->head_dim,
                       .element_bytes = (int32_t)element },
                     { .from = a->v.data,
                       .to = to ? to + v_at * element : NULL,
                       .from_token_stride = a->v.token_stride,
                       .from_head_stride = a->v.head_stride,
                       .to_token_stride = run->columns,
                       .to_head_stride = a->head_dim_v,
                       .heads = a->heads_kv,
                       .columns = a->head_dim_v,
                       .element_bytes = (int32_t)element } },
        .count = 2,
        .rows = run->pass->tokens_k,
    };
}

static ffa_status publish(struct pass_run *run, const struct row_copy_call *own, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(run->transport->reclaim_keys(run, err));
    FFA_TRY(pass_run_mark_compute(run, FFA_PARALLEL_SPAN_WAIT, 0, err));
    if (own->rows > 0)
        FFA_TRY(row_copy_enqueue(run->kernels, own, run->stream, err));
    rc = pass_run_mark_compute(run, FFA_PARALLEL_SPAN_PUBLISH, own->rows * run->key_bytes, err);
out:
    return rc;
}

ffa_status pass_run_open_windows(struct pass_run *run, const struct row_copy_call *own,
                                 ffa_error *err)
{
    const struct pass_moves *moves = run->moves;
    ffa_status rc;

    if (moves->window_rows > moves->own_rows)
        comm_device_spoil(run->comm, run->call,
                          pass_run_own_window(run, WINDOW_ROWS) + moves->own_rows * run->key_bytes,
                          (moves->window_rows - moves->own_rows) * run->key_bytes);
    FFA_TRY(publish(run, own, err));
    if (!run->pass->in_rounds)
        FFA_TRY(run->transport->bring_keys(run, err));
    if (pass_run_has_kept(run))
        rc = pass_kept_restore(run, err);
out:
    return rc;
}

static ffa_status open_windows(struct pass_run *run, ffa_error *err)
{
    const struct row_copy_call keys = own_keys(run);

    return pass_run_open_windows(run, &keys, err);
}

/* Beyond the time-out of the communicator, whose watchdog knows who is waited for. */
enum { PATIENCE_MS = 10000 };

static int32_t patience_ms(const struct pass_run *run)
{
    return (int32_t)min64(run->comm->timeout_ms + PATIENCE_MS, INT32_MAX);
}

static struct arriving_call arriving_of(const struct pass_run *run)
{
    return (struct arriving_call){
        .patience_ms = patience_ms(run),
        .flags = comm_device_own(run->comm) + comm_block_arrivals(run->pass->rank_count, 0),
        .value = pass_run_value(run, run->round),
    };
}

/* Of the windows: where the keys of the launch begin. */
static int64_t first_row(const struct pass_run *run)
{
    return run->round > 0 ? run->moves->stage_rows[run->round + 1] : 0;
}

static ffa_tensor key_tensor(const struct pass_run *run, bool is_v)
{
    const ffa_parallel_args *a = &run->args;
    const int64_t at =
        first_row(run) * run->columns + (is_v ? (int64_t)a->heads_kv * a->head_dim : 0);
    unsigned char *const window =
        pass_run_own_window(run, WINDOW_ROWS); /* NULL where it has no rows */
    ffa_tensor tensor = FFA_TENSOR_INIT(
        window ? window + at * (int64_t)ffa_dtype_bytes(run->kernels->dtype) : NULL);

    tensor.token_stride = run->columns;
    tensor.head_stride = is_v ? a->head_dim_v : a->head_dim;
    return tensor;
}

/* ---- totals ---- */

static ffa_status share_totals(struct pass_run *run, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(pass_totals_share(&run->totals, run->pass, run->comm, run->call, err));
    if (run->totals.count > 0)
        rc = pass_run_mark(run, FFA_PARALLEL_LANE_REDUCE, FFA_PARALLEL_SPAN_TOTALS,
                           &(struct pass_mark){ -1, -1, 0 }, err);
out:
    return rc;
}

static ffa_status join_totals(const struct pass_run *run, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(pass_totals_join(&run->totals, run->pass, run->kernels, run->stream, err));
    if (run->totals.count > 0)
        rc = pass_run_mark_compute(run, FFA_PARALLEL_SPAN_TOTALS, 0, err);
out:
    return rc;
}

/* ---- forward ---- */

ffa_forward_args pass_run_forward_args(const struct pass_run *run)
{
    const ffa_parallel_args *a = &run->args;
    ffa_forward_args args = FFA_FORWARD_ARGS_INIT;

    args.heads_q = a->heads_q;
    args.heads_kv = a->heads_kv;
    args.sm_margin = a->sm_margin;
    args.softmax_scale = a->softmax_scale;
    args.softcap = a->softcap;
    args.max_logits = run->totals.count ? run->totals.mine : a->max_logits;
    args.workspace = a->workspace;
    args.workspace_bytes = run->totals_at;
    return args;
}

static ffa_forward_args forward_args_of(const struct pass_run *run)
{
    const ffa_parallel_args *a = &run->args;
    ffa_forward_args args = pass_run_forward_args(run);

    args.q = a->q;
    args.k = key_tensor(run, false);
    args.v = key_tensor(run, true);
    args.out = a->out;
    args.lse = a->lse;
    args.sink = a->sink;
    args.sink_count = a->sink_count;
    if (run->pass->forward.count > 1) { /* behind the rest of the workspace */
        args.partial = (ffa_tensor)FFA_TENSOR_INIT(pass_run_received_sums(run));
        args.partial.token_stride = (int64_t)a->heads_q * a->head_dim_v;
        args.partial.head_stride = a->head_dim_v;
    }
    return args;
}

ffa_status pass_run_attend(const struct pass_run *run, ffa_error *err)
{
    const struct arriving_call arriving = arriving_of(run);
    const ffa_forward_args args = forward_args_of(run);

    return forward_enqueue_arriving(run->kernels, run->pass->forward.at[run->round], &args,
                                    &arriving, run->stream, err);
}

static ffa_status run_forward(struct pass_run *run, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(open_windows(run, err));
    if (run->pass->in_rounds) {
        FFA_TRY(pass_rounds_forward(run, err));
    } else {
        FFA_TRY(pass_run_attend(run, err));
        FFA_TRY(pass_run_mark_compute(run, FFA_PARALLEL_SPAN_ATTENTION, 0, err));
        FFA_TRY(pass_kept_save(run, err));
    }
    FFA_TRY(pass_totals_made(&run->totals, run->pass, run->stream, err));
    FFA_TRY(share_totals(run, err));
    rc = join_totals(run, err);
out:
    return rc;
}

/* ---- backward ---- */

ffa_backward_args pass_run_backward_args(const struct pass_run *run)
{
    const ffa_parallel_args *a = &run->args;
    ffa_backward_args args = FFA_BACKWARD_ARGS_INIT;

    args.heads_q = a->heads_q;
    args.heads_kv = a->heads_kv;
    args.sm_margin = a->sm_margin;
    args.softmax_scale = a->softmax_scale;
    args.softcap = a->softcap;
    args.workspace = a->workspace;
    args.workspace_bytes = run->totals_at;
    return args;
}

static ffa_backward_args backward_args_of(const struct pass_run *run)
{
    const ffa_parallel_args *a = &run->args;
    ffa_backward_args args = pass_run_backward_args(run);

    args.q = a->q;
    args.k = key_tensor(run, false);
    args.v = key_tensor(run, true);
    args.out = a->out;
    args.lse = a->lse;
    args.dout = a->dout;
    args.dlse = a->dlse;
    args.dq = a->dq;
    args.sink = a->sink;
    args.sink_count = a->sink_count;
    args.dsink = run->totals.count ? run->totals.mine : a->dsink;
    return args;
}

/* owner_at: [3], written for a later round than the first; until the launch is enqueued. */
static struct arriving_call departing_of(const struct pass_run *run, int32_t *owner_at)
{
    const ffa_parallel_pass *pass = run->pass;
    struct arriving_call arriving = arriving_of(run);

    arriving.sums =
        (float *)(void *)(pass_run_own_window(run, WINDOW_SUMS) + first_row(run) * run->sum_bytes);
    if (run->is_narrow) {
        const int64_t kept = run->sums->kept_rows[pass->rank];
        const int64_t first = first_row(run) > kept ? first_row(run) : kept;

        arriving.narrow = (uint16_t *)(void *)(pass_run_sent_sums(run, pass->rank) +
                                               (first - kept) * run->wire_bytes);
        arriving.narrow_from = (int32_t)(first - first_row(run));
    }
    arriving.blocks = run->comm->blocks_device;
    arriving.owners = (const int32_t *)(const void *)(pass->buffer + run->sums->owners_at);
    arriving.owner_at = run->sums->owner_begin;
    if (run->round > 0) { /* stage 0 is empty */
        const int32_t *begin = &run->sums->owner_begin[run->round + 1];

        arriving.owners += begin[0];
        memcpy(owner_at, (const int32_t[]){ 0, 0, begin[1] - begin[0] }, 3 * sizeof *owner_at);
        arriving.owner_at = owner_at;
    }
    arriving.slot = (int32_t)comm_block_sums_ready(pass->rank_count, pass->rank, 0);
    return arriving;
}

ffa_status pass_run_differentiate(struct pass_run *run, ffa_error *err)
{
    int32_t owner_at[3];
    const ffa_backward_args args = backward_args_of(run);
    const struct arriving_call arriving = departing_of(run, owner_at);

    return backward_enqueue_arriving(run->kernels, run->pass->backward.at[run->round], &args,
                                     &arriving, run->stream, err);
}

struct row_reduce_rows pass_run_reduced(const struct pass_run *run, const ffa_tensor *out,
                                        bool is_v)
{
    const ffa_parallel_args *a = &run->args;
    const int64_t at = is_v ? (int64_t)a->heads_kv * a->head_dim * (int64_t)sizeof(float) : 0;

    return (struct row_reduce_rows){
        .own = run->sums->is_replicated ? NULL : pass_run_own_window(run, WINDOW_SUMS) + at,
        .received = pass_run_received_sums(run) + (run->is_narrow ? at / 2 : at),
        .out = out->data,
        .own_token_stride = run->columns,
        .own_head_stride = is_v ? a->head_dim_v : a->head_dim,
        .received_token_stride = run->columns,
        .received_head_stride = is_v ? a->head_dim_v : a->head_dim,
        .out_token_stride = out->token_stride,
        .out_head_stride = out->head_stride,
        .heads = a->heads_kv,
        .columns = is_v ? a->head_dim_v : a->head_dim,
    };
}

static struct row_reduce_call own_sums(const struct pass_run *run)
{
    const ffa_parallel_pass *pass = run->pass;

    if (pass->in_rounds)
        return pass_rounds_sums(run);
    return (struct row_reduce_call){
        .kernel = run->is_narrow ? run->kernels->narrow_reduce : NULL,
        .types = row_reduce_narrow_types(run->kernels, run->kernels->grad_dtype),
        .tensors = { pass_run_reduced(run, &run->args.dk, false),
                     pass_run_reduced(run, &run->args.dv, true) },
        .count = 2,
        .rows = pass->tokens_k,
        .segments =
            (const struct row_segment *)(const void *)(pass->buffer + run->sums->segments_at),
        .segment_count = (int32_t)run->sums->segment_count,
        .sources = (const int64_t *)(const void *)(pass->buffer + run->sums->received_at),
    };
}

static ffa_status add_sums(const struct pass_run *run, ffa_error *err)
{
    const struct row_reduce_call call = own_sums(run);

    return run->pass->tokens_k > 0 ? row_reduce_enqueue(run->kernels, &call, run->stream, err)
                                   : FFA_OK;
}

static ffa_status run_backward(struct pass_run *run, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(open_windows(run, err));
    if (run->pass->in_rounds) {
        FFA_TRY(pass_rounds_backward(run, err));
        FFA_TRY(pass_totals_made(&run->totals, run->pass, run->stream, err));
    } else {
        FFA_TRY(pass_run_mark_compute(run, FFA_PARALLEL_SPAN_WAIT, 0, err));
        FFA_TRY(pass_run_differentiate(run, err));
        FFA_TRY(pass_run_mark_compute(run, FFA_PARALLEL_SPAN_ATTENTION, 0, err));
        FFA_TRY(pass_totals_made(&run->totals, run->pass, run->stream, err));
        FFA_TRY(run->transport->bring_sums(run, err));
    }
    FFA_TRY(share_totals(run, err));
    FFA_TRY(add_sums(run, err));
    FFA_TRY(pass_run_mark_compute(run, FFA_PARALLEL_SPAN_SUMS, 0, err));
    rc = join_totals(run, err);
out:
    return rc;
}

/* ---- both, where queries move ---- */

static ffa_status run_queries(struct pass_run *run, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(pass_queries_compute(run, err));
    FFA_TRY(pass_totals_made(&run->totals, run->pass, run->stream, err));
    FFA_TRY(run->transport->bring_sums(run, err));
    FFA_TRY(share_totals(run, err));
    FFA_TRY(pass_queries_add(run, err));
    FFA_TRY(pass_run_mark_compute(run, FFA_PARALLEL_SPAN_SUMS, 0, err));
    rc = join_totals(run, err);
out:
    return rc;
}

static ffa_status run_moves(struct pass_run *run, ffa_error *err)
{
    if (run->pass->moves_queries)
        return run_queries(run, err);
    return run->is_backward ? run_backward(run, err) : run_forward(run, err);
}

/* ---- the calls ---- */

/* What the launches would refuse, before the other ranks hear of the call. */
static ffa_status check_forward(const struct pass_run *run, ffa_error *err)
{
    const struct arriving_call arriving = arriving_of(run);
    const ffa_forward_args args = forward_args_of(run);

    return forward_check_arriving(run->kernels, run->pass->forward.at[run->round], &args, &arriving,
                                  err);
}

static ffa_status check_backward(const struct pass_run *run, ffa_error *err)
{
    int32_t owner_at[3];
    const struct arriving_call arriving = departing_of(run, owner_at);
    const ffa_backward_args args = backward_args_of(run);

    return backward_check_arriving(run->kernels, run->pass->backward.at[run->round], &args,
                                   &arriving, err);
}

static ffa_status check_sums(const struct pass_run *run, ffa_error *err)
{
    const struct row_reduce_call sums = own_sums(run);
    ffa_status rc;

    FFA_TRY(row_reduce_check(run->kernels, &sums, err));
    for (int32_t t = 0; run->pass->in_rounds && t < run->sums->step_count; t++) {
        const struct row_reduce_call step = pass_rounds_step(run, t);

        FFA_TRY(row_reduce_check(run->kernels, &step, err));
    }
out:
    return rc;
}

static ffa_status check_launches(struct pass_run *run, ffa_error *err)
{
    const struct row_copy_call keys = own_keys(run);
    ffa_status rc = FFA_OK;

    if (run->pass->moves_queries)
        return pass_queries_check(run, err);
    for (int32_t r = 0; r < run->moves->round_count; r++) {
        run->round = r;
        FFA_TRY(run->is_backward ? check_backward(run, err) : check_forward(run, err));
    }
    run->round = 0;
    if (run->is_backward && run->pass->tokens_k > 0)
        FFA_TRY(check_sums(run, err));
    for (int32_t i = 0; run->is_backward && run->sums == &run->pass->relay_sums.own &&
                        i < run->pass->relay_sums.addend_count;
         i++) {
        const struct row_reduce_call addend = pass_relay_addend(run, i);

        FFA_TRY(row_reduce_check(run->kernels, &addend, err));
    }
    if (run->pass->tokens_k > 0)
        rc = row_copy_check(run->kernels, &keys, err);
out:
    return rc;
}

/* Ranks that relay in one node pull. */
static void choose_transport(struct pass_run *run)
{
    run->transport = comm_device_pulls(run->comm)    ? &pass_pull
                     : comm_device_relays(run->comm) ? &pass_relay
                                                     : &pass_exchange;
    run->sums = run->is_backward ? &run->pass->sums : &run->pass->forward_sums;
    if (run->is_backward && run->transport == &pass_relay && run->pass->has_relays)
        run->sums = &run->pass->relay_sums.own;
}

static ffa_status run_pass(struct pass_run *run, ffa_comm *comm, const ffa_parallel_args *args,
                           ffa_error *err)
{
    ffa_error failure = { FFA_OK, 0, "" };
    ffa_status rc;

    if (!run->pass || !run->kernels || !comm || !args)
        return error_fail(err, FFA_INVALID, 0, "%s is NULL",
                          !run->pass      ? "pass"
                          : !run->kernels ? "kernels"
                          : !comm         ? "comm"
                                          : "args");
    run->comm = comm_device_of(comm);
    if (!run->comm)
        return error_fail(err, FFA_INVALID, 0,
                          "the communicator is not of GPUs (ffa_comm_create_peer)");
    choose_transport(run);
    run->moves = run->is_backward ? &run->pass->backward_moves : &run->pass->forward_moves;
    FFA_TRY(resolve(run, args, err));
    FFA_TRY(check_launches(run, err));
    if (run->pass->in_rounds && !run->transport->rounds) {
        rc = error_fail(err, FFA_UNSUPPORTED, 0,
                        "the plan is in rounds (memory_bytes), which only ranks that pull can run; "
                        "these %s",
                        comm_device_relays(run->comm) ? "relay" : "exchange over NCCL");
        goto out;
    }
    FFA_TRY(gpu_stream_refuse_capture(run->comm->gpu, run->stream, "a pass of several ranks", err));
    FFA_TRY(begin(run, err));
    rc = pass_trace_begin(run->args.trace, run->comm, run->stream, &failure);
    if (rc == FFA_OK)
        rc = run_moves(run, &failure);
    if (rc == FFA_OK)
        rc = pass_trace_end(run->args.trace, &failure);
    if (rc == FFA_OK)
        rc = comm_device_end(run->comm, run->call, run->stream, &failure);
    if (rc != FFA_OK) {
        comm_device_abandon(run->comm, run->call, run->stream, &failure);
        if (err)
            *err = failure;
    }
out:
    return rc;
}

ffa_status ffa_parallel_forward(ffa_parallel_pass *pass, const ffa_kernels *kernels, ffa_comm *comm,
                                const ffa_parallel_args *args, ffa_stream stream, ffa_error *err)
{
    struct pass_run run = { .pass = pass, .kernels = kernels, .stream = stream };

    return run_pass(&run, comm, args, err);
}

ffa_status ffa_parallel_backward(ffa_parallel_pass *pass, const ffa_kernels *kernels,
                                 ffa_comm *comm, const ffa_parallel_args *args, ffa_stream stream,
                                 ffa_error *err)
{
    struct pass_run run = {
        .pass = pass, .kernels = kernels, .stream = stream, .is_backward = true
    };

    return run_pass(&run, comm, args, err);
}
