/* SPDX-License-Identifier: Apache-2.0
 *
 * A pass in which queries move: a launch over own query rows, and one for each stage, over rows of
 * other ranks, all with own keys. Partial results go to the owners of the rows, who add them.
 *
 *     caller's stream   own rows to the key window, launch 0, .. for each stage: wait for its rows,
 *                       launch, tell owners; wait for received results, add them
 *     fetch stream      the transport: rows of queries, stage by stage
 *     reduce stream     the transport: partial results to their owners
 *
 * A row of the key window is q; backward q, dout, lse and delta. A row of the sum window is an fp32
 * out and its lse; backward dq, which travels in the dtype of wire_dtype. Backward, dk and dv of
 * own keys are sums in the workspace, which one launch after another adds to.
 *
 * Invariant: a launch waits for rows that others publish before their own first launch, and results
 * are waited for behind the last launch, so ranks cannot wait for one another in a circle. Results
 * are added by ascending rank to the rank's own. Sinks and dlse are of launch 0 alone: lse and
 * delta of a row hold them when it moves.
 */
#include "parallel/device/pass_run.h"

static int64_t rounded(int64_t bytes)
{
    return (bytes + 15) / 16 * 16;
}

int64_t pass_queries_row_bytes(const ffa_kernels *kernels, int32_t heads_q, bool is_backward)
{
    const int64_t columns = kernels->head_dim + (is_backward ? kernels->head_dim_v : 0);
    const int64_t numbers = is_backward ? 2 : 0; /* lse, delta */

    return rounded(heads_q * (columns * (int64_t)ffa_dtype_bytes(kernels->dtype) +
                              numbers * (int64_t)sizeof(float)));
}

int64_t pass_queries_result_bytes(const ffa_kernels *kernels, int32_t heads_q, bool is_backward)
{
    const int64_t columns = is_backward ? kernels->head_dim : kernels->head_dim_v + 1;

    return rounded(heads_q * columns * (int64_t)sizeof(float));
}

/* ---- rows in memory ---- */

/* [heads_q][columns] in rows that are row_bytes apart, of elements of so many bytes. data NULL:
 * there are no rows. */
static ffa_tensor tensor_of(unsigned char *data, int64_t at, int64_t row_bytes, int64_t element,
                            int64_t columns)
{
    ffa_tensor tensor = FFA_TENSOR_INIT(data ? data + at : NULL);

    tensor.token_stride = row_bytes / element;
    tensor.head_stride = columns;
    return tensor;
}

/* The rows of a phase in the key window. */
struct moved_rows {
    ffa_tensor q, dout, lse, delta;
};

static struct moved_rows rows_of(const struct pass_run *run, int32_t phase)
{
    const ffa_parallel_args *a = &run->args;
    const int64_t element = (int64_t)ffa_dtype_bytes(run->kernels->dtype);
    const int64_t number = (int64_t)sizeof(float), row = run->key_bytes;
    const int64_t dout_at = a->heads_q * a->head_dim * element;
    const int64_t lse_at = dout_at + a->heads_q * a->head_dim_v * element;
    unsigned char *const window = pass_run_own_window(run, WINDOW_ROWS);
    unsigned char *const data = window ? window + run->moves->stage_rows[phase] * row : NULL;

    return (struct moved_rows){
        .q = tensor_of(data, 0, row, element, a->head_dim),
        .dout = tensor_of(data, dout_at, row, element, a->head_dim_v),
        .lse = tensor_of(data, lse_at, row, number, 1),
        .delta = tensor_of(data, lse_at + a->heads_q * number, row, number, 1),
    };
}

/* What a phase makes: phase 0 has rows that stay, the others rows that travel. */
static unsigned char *results_of(const struct pass_run *run, int32_t phase)
{
    unsigned char *const window = pass_run_own_window(run, WINDOW_SUMS);

    if (!window || phase == 0)
        return window;
    return pass_run_sent_sums(run, run->pass->rank) +
           (run->moves->stage_rows[phase] - run->moves->own_rows) * run->wire_bytes;
}

/* The fp32 out and lse of rows of results. */
static ffa_tensor out_of(const struct pass_run *run, unsigned char *results)
{
    return tensor_of(results, 0, run->sum_bytes, (int64_t)sizeof(float), run->args.head_dim_v);
}

static ffa_tensor lse_of(const struct pass_run *run, unsigned char *results)
{
    const int64_t at = run->args.heads_q * (int64_t)run->args.head_dim_v * (int64_t)sizeof(float);

    return tensor_of(results, at, run->sum_bytes, (int64_t)sizeof(float), 1);
}

/* Backward: the sums of dk and dv of own keys. */
static float *own_sums(const struct pass_run *run)
{
    const int64_t received = run->sums->received_rows * run->sum_bytes;

    return (float *)(void *)(pass_run_received_sums(run) + (received + 255) / 256 * 256);
}

/* ---- launches ---- */

static struct arriving_call plain_call(const struct pass_run *run)
{
    return (struct arriving_call){ .value = run->call };
}

static ffa_forward_args forward_args_of(const struct pass_run *run, int32_t phase)
{
    const ffa_parallel_args *a = &run->args;
    unsigned char *const results = results_of(run, phase);
    ffa_forward_args args = pass_run_forward_args(run);

    args.q = phase ? rows_of(run, phase).q : a->q;
    args.k = a->k;
    args.v = a->v;
    args.out = (ffa_tensor)FFA_TENSOR_INIT(results); /* not written: all tiles are partial */
    args.partial = out_of(run, results);
    args.lse = lse_of(run, results);
    if (phase == 0) {
        args.sink = a->sink;
        args.sink_count = a->sink_count;
    }
    return args;
}

static ffa_backward_args backward_args_of(const struct pass_run *run, int32_t phase)
{
    const ffa_parallel_args *a = &run->args;
    const struct moved_rows rows = rows_of(run, phase);
    const bool is_wide = phase == 0 || !run->is_narrow;
    const int64_t element =
        is_wide ? (int64_t)sizeof(float) : (int64_t)ffa_dtype_bytes(run->kernels->dtype);
    ffa_backward_args args = pass_run_backward_args(run);

    args.q = phase ? rows.q : a->q;
    args.k = a->k;
    args.v = a->v;
    args.dout = phase ? rows.dout : a->dout;
    args.lse = phase ? rows.lse : a->lse;
    args.dq = tensor_of(results_of(run, phase), 0, is_wide ? run->sum_bytes : run->wire_bytes,
                        element, a->head_dim);
    if (phase == 0) {
        args.out = a->out;
        args.dlse = a->dlse;
        args.sink = a->sink;
        args.sink_count = a->sink_count;
        args.dsink = run->totals.count ? run->totals.mine : a->dsink;
    }
    return args;
}

/* No stage has owners: the stream tells them, behind the launch. */
static const int32_t no_owners[2] = { 0, 0 };

/* delta: of the phase, until the launch is enqueued. */
static struct arriving_call backward_call_of(const struct pass_run *run, int32_t phase,
                                             const ffa_tensor *delta)
{
    struct arriving_call call = plain_call(run);

    call.sums = own_sums(run);
    call.owner_at = no_owners;
    call.is_prepared = phase == 0;
    call.accumulates = phase > 0;
    call.has_wide_dq = phase == 0 || !run->is_narrow;
    call.delta = phase ? delta : NULL;
    return call;
}

static ffa_status launch_forward(const struct pass_run *run, int32_t phase, ffa_error *err)
{
    const struct arriving_call call = plain_call(run);
    const ffa_forward_args args = forward_args_of(run, phase);

    return forward_enqueue_arriving(run->kernels, run->pass->forward.at[phase], &args, &call,
                                    run->stream, err);
}

static ffa_status launch_backward(const struct pass_run *run, int32_t phase, ffa_error *err)
{
    const ffa_tensor delta = rows_of(run, phase).delta;
    const struct arriving_call call = backward_call_of(run, phase, &delta);
    const ffa_backward_args args = backward_args_of(run, phase);

    return backward_enqueue_arriving(run->kernels, run->pass->backward.at[phase], &args, &call,
                                     run->stream, err);
}

static ffa_status launch(const struct pass_run *run, int32_t phase, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(run->is_backward ? launch_backward(run, phase, err) : launch_forward(run, phase, err));
    rc = pass_run_mark_compute(run, FFA_PARALLEL_SPAN_ATTENTION, 0, err);
out:
    return rc;
}

/* ---- own rows, for others ---- */

static struct row_copy_rows copy_of(const ffa_tensor *from, const ffa_tensor *to, int32_t heads,
                                    int64_t columns, int64_t element)
{
    return (struct row_copy_rows){ .from = from->data,
                                   .to = to->data,
                                   .from_token_stride = from->token_stride,
                                   .from_head_stride = from->head_stride,
                                   .to_token_stride = to->token_stride,
                                   .to_head_stride = to->head_stride,
                                   .heads = heads,
                                   .columns = columns,
                                   .element_bytes = (int32_t)element };
}

/* delta: of own rows, backward. */
static struct row_copy_call own_rows(const struct pass_run *run, const ffa_tensor *delta)
{
    const ffa_parallel_args *a = &run->args;
    const struct moved_rows to = rows_of(run, 0);
    const int64_t element = (int64_t)ffa_dtype_bytes(run->kernels->dtype);
    const int64_t number = (int64_t)sizeof(float);
    struct row_copy_call copy = {
        .tensors = { copy_of(&a->q, &to.q, a->heads_q, a->head_dim, element) },
        .count = 1,
        .rows = run->pass->tokens_q,
    };

    if (!run->is_backward)
        return copy;
    copy.tensors[1] = copy_of(&a->dout, &to.dout, a->heads_q, a->head_dim_v, element);
    copy.tensors[2] = copy_of(&a->lse, &to.lse, a->heads_q, 1, number);
    copy.tensors[3] = copy_of(delta, &to.delta, a->heads_q, 1, number);
    copy.count = 4;
    return copy;
}

static ffa_status find_delta(ffa_tensor *out, const struct pass_run *run, ffa_error *err)
{
    const struct arriving_call call = backward_call_of(run, 0, NULL);
    const ffa_backward_args args = backward_args_of(run, 0);

    return backward_delta_find(out, run->kernels, run->pass->backward.at[0], &args, &call, err);
}

static ffa_status prepare(const struct pass_run *run, ffa_error *err)
{
    const struct arriving_call call = backward_call_of(run, 0, NULL);
    const ffa_backward_args args = backward_args_of(run, 0);

    return backward_prepare_moved(run->kernels, run->pass->backward.at[0], &args, &call,
                                  run->stream, err);
}

static ffa_status open_windows(struct pass_run *run, ffa_error *err)
{
    ffa_tensor delta = FFA_TENSOR_INIT(NULL);
    struct row_copy_call own;
    ffa_status rc;

    if (run->is_backward) {
        FFA_TRY(prepare(run, err));
        FFA_TRY(find_delta(&delta, run, err));
    }
    own = own_rows(run, &delta);
    FFA_TRY(pass_run_open_windows(run, &own, err));
    rc = pass_run_mark_compute(run, FFA_PARALLEL_SPAN_WAIT, 0, err);
out:
    return rc;
}

/* ---- results ---- */

/* Backward: dk and dv are complete. */
static struct row_reduce_call own_gradients(const struct pass_run *run)
{
    const ffa_parallel_args *a = &run->args;
    const float *const sums = own_sums(run);
    struct row_reduce_call call = { .count = 2, .rows = run->pass->tokens_k };

    for (int t = 0; t < 2; t++) {
        const ffa_tensor *out = t ? &a->dv : &a->dk;
        const int32_t columns = t ? a->head_dim_v : a->head_dim;

        call.tensors[t] = (struct row_reduce_rows){
            .own = sums + (t ? (int64_t)a->heads_kv * a->head_dim : 0),
            .out = out->data,
            .own_token_stride = run->columns,
            .own_head_stride = columns,
            .out_token_stride = out->token_stride,
            .out_head_stride = out->head_stride,
            .heads = a->heads_kv,
            .columns = columns,
        };
    }
    return call;
}

/* Own results with the received ones, to out or to dq. */
static struct row_reduce_call received_results(const struct pass_run *run)
{
    const ffa_parallel_args *a = &run->args;
    const unsigned char *const buffer = run->pass->buffer;
    const ffa_tensor *to = run->is_backward ? &a->dq : &a->out;
    const int32_t columns = run->is_backward ? a->head_dim : a->head_dim_v;
    const int64_t element =
        run->is_narrow ? (int64_t)ffa_dtype_bytes(run->kernels->dtype) : (int64_t)sizeof(float);

    return (struct row_reduce_call){
        .kernel = run->is_narrow ? run->kernels->narrow_reduce : NULL,
        .types = row_reduce_narrow_types(run->kernels, run->kernels->grad_dtype),
        .tensors = { { .own = results_of(run, 0),
                       .received = pass_run_received_sums(run),
                       .out = to->data,
                       .own_token_stride = run->sum_bytes / (int64_t)sizeof(float),
                       .own_head_stride = columns,
                       .received_token_stride = run->wire_bytes / element,
                       .received_head_stride = columns,
                       .out_token_stride = to->token_stride,
                       .out_head_stride = to->head_stride,
                       .heads = a->heads_q,
                       .columns = columns } },
        .count = 1,
        .rows = run->pass->tokens_q,
        .segments = (const struct row_segment *)(const void *)(buffer + run->sums->segments_at),
        .segment_count = (int32_t)run->sums->segment_count,
        .sources = (const int64_t *)(const void *)(buffer + run->sums->received_at),
    };
}

/* Forward: (out, lse) pairs. */
static struct row_reduce_call merge_of(const struct pass_run *run)
{
    const ffa_tensor own = lse_of(run, results_of(run, 0));
    const ffa_tensor received = lse_of(run, pass_run_received_sums(run));
    struct row_reduce_call call = received_results(run);

    call.kernel = run->kernels->merge;
    call.types = (struct row_reduce_types){ FFA_FP32, run->kernels->out_dtype, ROW_REDUCE_LSE, 0 };
    call.lse = (struct row_reduce_lse){ .own = own.data,
                                        .received = received.data,
                                        .out = run->args.lse.data,
                                        .own_token_stride = own.token_stride,
                                        .own_head_stride = own.head_stride,
                                        .received_token_stride = received.token_stride,
                                        .received_head_stride = received.head_stride,
                                        .out_token_stride = run->args.lse.token_stride,
                                        .out_head_stride = run->args.lse.head_stride };
    return call;
}

ffa_status pass_queries_add(const struct pass_run *run, ffa_error *err)
{
    const struct row_reduce_call call = run->is_backward ? received_results(run) : merge_of(run);

    return run->pass->tokens_q > 0 ? row_reduce_enqueue(run->kernels, &call, run->stream, err)
                                   : FFA_OK;
}

/* ---- the pass ---- */

/* The rows of a stage are there. */
static ffa_status await_rows(const struct pass_run *run, int32_t stage, ffa_error *err)
{
    const uint64_t *flag =
        comm_device_own(run->comm) + comm_block_arrivals(run->pass->rank_count, stage);
    ffa_status rc;

    FFA_TRY(gpu_wait_value(run->comm->gpu, run->stream, flag, run->call, err));
    rc = pass_run_mark_compute(run, FFA_PARALLEL_SPAN_WAIT, 0, err);
out:
    return rc;
}

ffa_status pass_queries_compute(struct pass_run *run, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(open_windows(run, err));
    FFA_TRY(launch(run, 0, err));
    for (int32_t s = 1; s < run->moves->stage_count; s++) {
        FFA_TRY(await_rows(run, s, err));
        FFA_TRY(launch(run, s, err));
        FFA_TRY(run->transport->tell_results(run, s, err));
    }
    if (run->is_backward && run->pass->tokens_k > 0) {
        const struct row_reduce_call gradients = own_gradients(run);

        rc = row_reduce_enqueue(run->kernels, &gradients, run->stream, err);
    }
out:
    return rc;
}

static ffa_status check_launch(const struct pass_run *run, int32_t phase, ffa_error *err)
{
    const ffa_tensor delta = rows_of(run, phase).delta;

    if (run->is_backward) {
        const struct arriving_call call = backward_call_of(run, phase, &delta);
        const ffa_backward_args args = backward_args_of(run, phase);

        return backward_check_arriving(run->kernels, run->pass->backward.at[phase], &args, &call,
                                       err);
    } else {
        const struct arriving_call call = plain_call(run);
        const ffa_forward_args args = forward_args_of(run, phase);

        return forward_check_arriving(run->kernels, run->pass->forward.at[phase], &args, &call,
                                      err);
    }
}

static ffa_status check_results(const struct pass_run *run, ffa_error *err)
{
    const struct row_reduce_call gradients = own_gradients(run);
    const struct row_reduce_call results = run->is_backward ? received_results(run) : merge_of(run);
    ffa_status rc = FFA_OK;

    if (run->is_backward && run->pass->tokens_k > 0)
        FFA_TRY(row_reduce_check(run->kernels, &gradients, err));
    if (run->pass->tokens_q > 0)
        rc = row_reduce_check(run->kernels, &results, err);
out:
    return rc;
}

ffa_status pass_queries_check(const struct pass_run *run, ffa_error *err)
{
    ffa_tensor delta = FFA_TENSOR_INIT(NULL);
    struct row_copy_call own;
    ffa_status rc;

    for (int32_t phase = 0; phase < run->moves->stage_count; phase++)
        FFA_TRY(check_launch(run, phase, err));
    FFA_TRY(check_results(run, err));
    if (run->is_backward)
        FFA_TRY(find_delta(&delta, run, err));
    own = own_rows(run, &delta);
    rc = row_copy_check(run->kernels, &own, err);
out:
    return rc;
}
