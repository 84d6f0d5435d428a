/* SPDX-License-Identifier: Apache-2.0
 *
 * run_gpu_rank_create makes what a rank needs on its GPU; run_gpu_rank_pass copies its rows there,
 * runs the calls back to back, and copies results back. Invariant: a rank that fails gives up the
 * meeting and breaks the group, so that no other one waits for it.
 */
#include "cli/run_gpu_rank.h"

#include "cli/cli.h"
#include "cli/clock.h"
#include "cli/file.h"

#include <stdlib.h>
#include <string.h>

enum { SHARED_SMS_FREE = 4 };

/* ---- making it ---- */

struct run_gpu_rank {
    struct run_gpu_rank_opts opts;
    ffa_context *context; /* borrowed */
    ffa_kernels *kernels;
    ffa_parallel_pass *pass;
    ffa_parallel_pass_info info;
    ffa_comm *comm;
    ffa_error gathering; /* why a gather of the communicator failed */
    ffa_stream stream;
    void *rows[RUN_TENSORS]; /* on the device */
    void *sink, *dsink, *upload, *workspace;
    void *kept; /* NULL: keys are not kept */
    int64_t workspace_bytes;
    int32_t sm_margin;
    ffa_parallel_trace *trace; /* NULL: not wanted */
    struct timeline_rank timeline;
};

static ffa_status make_kernels(struct run_gpu_rank *r, ffa_error *err)
{
    const struct run_shape *shape = r->opts.shape;
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;

    spec.dtype = shape->dtype;
    spec.head_dim = shape->head_dim;
    spec.head_dim_v = shape->head_dim_v;
    spec.pack_heads = shape->pack_heads;
    spec.heads_q = shape->heads_q;
    spec.heads_kv = shape->heads_kv;
    spec.flags = shape->spec_flags | (uint32_t)FFA_SPEC_PARALLEL |
                 (r->opts.is_staged ? (uint32_t)FFA_SPEC_STAGED : 0);
    return ffa_kernels_create(&r->kernels, r->context, &spec, err);
}

static ffa_status make_pass(struct run_gpu_rank *r, ffa_error *err)
{
    const struct run_shape *shape = r->opts.shape;
    ffa_status rc;

    r->info = (ffa_parallel_pass_info)FFA_PARALLEL_PASS_INFO_INIT;
    rc = ffa_parallel_pass_create(&r->pass, r->opts.plan, r->kernels, err);
    if (rc == FFA_OK)
        rc = ffa_parallel_pass_info_get(r->pass, r->kernels, shape->heads_q, shape->heads_kv,
                                        &r->info, err);
    if (rc == FFA_OK)
        rc = ffa_device_stream_create(&r->stream, r->context, err);
    if (rc == FFA_OK)
        rc = ffa_device_alloc(&r->upload, r->context, r->info.upload_bytes, err);
    if (rc == FFA_OK)
        rc = ffa_parallel_pass_upload(r->pass, r->kernels, r->upload, r->stream, err);
    r->workspace_bytes = r->info.forward_workspace_bytes > r->info.backward_workspace_bytes
                             ? r->info.forward_workspace_bytes
                             : r->info.backward_workspace_bytes;
    if (rc == FFA_OK)
        rc = ffa_device_alloc(&r->workspace, r->context, r->workspace_bytes, err);
    if (rc == FFA_OK && r->opts.keeps_keys) /* a byte more: of ranks that receive none, too */
        rc = ffa_device_alloc(&r->kept, r->context, r->info.kept_bytes + 1, err);
    return rc;
}

static int64_t row_bytes(const struct run_shape *shape, enum run_tensor tensor)
{
    const bool is_key = tensor == RUN_K || tensor == RUN_V || tensor == RUN_DK || tensor == RUN_DV;
    const bool is_value =
        tensor == RUN_V || tensor == RUN_OUT || tensor == RUN_DOUT || tensor == RUN_DV;

    if (tensor == RUN_LSE || tensor == RUN_DLSE)
        return shape->heads_q * (int64_t)sizeof(float);
    return (is_key ? shape->heads_kv : shape->heads_q) *
           (int64_t)(is_value ? shape->head_dim_v : shape->head_dim) *
           (int64_t)ffa_dtype_bytes(shape->dtype);
}

static int64_t sink_bytes(const struct run_gpu_rank *r)
{
    return (int64_t)r->opts.shape->sinks * r->opts.shape->heads_q * (int64_t)sizeof(float);
}

static ffa_status make_rows(struct run_gpu_rank *r, ffa_error *err)
{
    const struct run_shape *shape = r->opts.shape;
    ffa_status rc = FFA_OK;

    for (int i = 0; i < RUN_TENSORS && rc == FFA_OK; i++) {
        const int64_t bytes = r->opts.rows[i] * row_bytes(shape, (enum run_tensor)i);

        rc = ffa_device_alloc(&r->rows[i], r->context, bytes, err);
        if (rc == FFA_OK)
            rc = ffa_device_fill(r->context, r->rows[i], 255, bytes, err);
    }
    if (rc == FFA_OK && shape->sinks)
        rc = ffa_device_alloc(&r->sink, r->context, sink_bytes(r), err);
    if (rc == FFA_OK && r->opts.dsink)
        rc = ffa_device_alloc(&r->dsink, r->context, sink_bytes(r), err);
    if (rc == FFA_OK && r->opts.dsink)
        rc = ffa_device_fill(r->context, r->dsink, 255, sink_bytes(r), err);
    return rc;
}

static int gather(void *user, const void *mine, void *all, size_t bytes)
{
    struct run_gpu_rank *r = user;

    return r->opts.meeting->gather(r->opts.meeting, r->opts.rank, mine, all, bytes,
                                   &r->gathering) != FFA_OK;
}

static ffa_status make_comm(struct run_gpu_rank *r, ffa_error *err)
{
    ffa_peer_opts opts = FFA_PEER_OPTS_INIT;
    ffa_status rc;

    opts.rank = r->opts.rank;
    opts.rank_count = r->opts.ranks;
    opts.allgather = gather;
    opts.user = r;
    opts.key_bytes = r->info.key_bytes;
    opts.sum_bytes = r->info.sum_bytes;
    opts.timeout_ms = r->opts.timeout_ms;
    opts.transport = r->opts.transport;
    opts.ranks_per_node = r->opts.per_node;
    opts.nccl_path = r->opts.nccl;
    rc = ffa_comm_create_peer(&r->comm, r->context, &opts, err);
    if (rc == FFA_OK || r->gathering.status == FFA_OK)
        return rc;
    return cli_error(err, r->gathering.status, 0, "%s", r->gathering.message);
}

/* Ranks of one GPU share its SMs out, but for some that are left for copies between them. */
int32_t run_gpu_rank_sms(ffa_context *context, int32_t sharing)
{
    ffa_context_info info = FFA_CONTEXT_INFO_INIT;

    (void)ffa_context_info_get(context, &info, NULL);
    return sharing > 1 ? (info.sm_count - SHARED_SMS_FREE) / sharing : info.sm_count;
}

static int32_t margin_of(const struct run_gpu_rank *r)
{
    ffa_context_info info = FFA_CONTEXT_INFO_INIT;

    (void)ffa_context_info_get(r->context, &info, NULL);
    return info.sm_count - run_gpu_rank_sms(r->context, r->opts.sharing);
}

ffa_status run_gpu_rank_create(struct run_gpu_rank **out, const struct run_gpu_rank_opts *opts,
                               ffa_error *err)
{
    struct run_gpu_rank *r = calloc(1, sizeof *r);
    ffa_status rc = FFA_OK;

    *out = r;
    if (!r)
        rc = cli_error(err, FFA_NOMEM, 0, "no memory for a rank");
    if (rc == FFA_OK) {
        r->opts = *opts;
        r->context = opts->context;
        r->sm_margin = margin_of(r);
        rc = make_kernels(r, err);
    }
    if (rc == FFA_OK)
        rc = make_pass(r, err);
    if (rc == FFA_OK)
        rc = make_rows(r, err);
    if (rc == FFA_OK && opts->wants_spans)
        rc = ffa_parallel_trace_create(&r->trace, r->context, err);
    if (rc == FFA_OK)
        rc = make_comm(r, err);
    if (rc != FFA_OK)
        opts->meeting->give_up(opts->meeting, err);
    return rc;
}

void run_gpu_rank_destroy(struct run_gpu_rank *r)
{
    if (!r)
        return;
    ffa_comm_destroy(r->comm);
    ffa_parallel_trace_destroy(r->trace);
    ffa_parallel_pass_destroy(r->pass);
    for (int i = 0; i < RUN_TENSORS; i++)
        ffa_device_free(r->context, r->rows[i]);
    ffa_device_free(r->context, r->sink);
    ffa_device_free(r->context, r->dsink);
    ffa_device_free(r->context, r->upload);
    ffa_device_free(r->context, r->workspace);
    ffa_device_free(r->context, r->kept);
    ffa_device_stream_destroy(r->context, r->stream);
    ffa_kernels_destroy(r->kernels);
    free(r);
}

int32_t run_gpu_rank_transport(const struct run_gpu_rank *r)
{
    return (int32_t)ffa_comm_transport(r->comm);
}

ffa_parallel_pass_info run_gpu_rank_info(const struct run_gpu_rank *r)
{
    return r->info;
}

const struct timeline_rank *run_gpu_rank_timeline(const struct run_gpu_rank *r)
{
    return &r->timeline;
}

/* ---- a pass ---- */

static ffa_parallel_args args_of(const struct run_gpu_rank *r)
{
    const struct run_shape *shape = r->opts.shape;
    ffa_parallel_args args = FFA_PARALLEL_ARGS_INIT;

    args.heads_q = shape->heads_q;
    args.heads_kv = shape->heads_kv;
    args.head_dim = shape->head_dim;
    args.head_dim_v = shape->head_dim_v;
    args.dtype = shape->dtype;
    args.softmax_scale = r->opts.softmax_scale;
    args.softcap = r->opts.softcap;
    args.sink = r->sink;
    args.sink_count = shape->sinks;
    args.q.data = r->rows[RUN_Q];
    args.k.data = r->rows[RUN_K];
    args.v.data = r->rows[RUN_V];
    args.out.data = r->rows[RUN_OUT];
    args.lse.data = r->rows[RUN_LSE];
    args.dout.data = r->rows[RUN_DOUT];
    args.dlse.data = shape->has_dlse ? r->rows[RUN_DLSE] : NULL;
    args.dq.data = r->rows[RUN_DQ];
    args.dk.data = r->rows[RUN_DK];
    args.dv.data = r->rows[RUN_DV];
    args.dsink = r->dsink;
    args.wire_dtype = r->opts.wire_dtype;
    args.kept_keys = r->kept;
    args.kept_bytes = r->info.kept_bytes;
    args.sm_margin = r->sm_margin;
    args.workspace = r->workspace;
    args.workspace_bytes = r->workspace_bytes;
    return args;
}

static ffa_status copy_rows(struct run_gpu_rank *r, void *const rows[RUN_TENSORS],
                            const enum run_tensor *which, int count, bool to_device, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    for (int i = 0; i < count && rc == FFA_OK; i++) {
        const enum run_tensor t = which[i];
        const int64_t bytes = r->opts.rows[t] * row_bytes(r->opts.shape, t);

        if (bytes > 0)
            rc = ffa_device_copy(r->context, to_device ? r->rows[t] : rows[t],
                                 to_device ? rows[t] : r->rows[t], bytes,
                                 to_device ? FFA_TO_DEVICE : FFA_FROM_DEVICE, err);
    }
    return rc;
}

/* Of the last call. */
static ffa_status read_spans(struct run_gpu_rank *r, bool is_backward, ffa_error *err)
{
    struct timeline_pass *pass = &r->timeline.passes[is_backward];

    if (!r->trace)
        return FFA_OK;
    r->timeline.rank = r->opts.rank;
    ffa_parallel_span_init(pass->spans, sizeof *pass->spans);
    return ffa_parallel_trace_get(r->trace, pass->spans, FFA_PARALLEL_SPANS_MAX, &pass->count, err);
}

static ffa_status run_calls(struct run_gpu_rank *r, bool is_backward, int calls, ffa_error *err)
{
    ffa_parallel_args args = args_of(r);
    ffa_status rc = FFA_OK, status;

    for (int i = 0; i < calls && rc == FFA_OK; i++) {
        args.trace = i == calls - 1 ? r->trace : NULL;
        rc = is_backward
                 ? ffa_parallel_backward(r->pass, r->kernels, r->comm, &args, r->stream, err)
                 : ffa_parallel_forward(r->pass, r->kernels, r->comm, &args, r->stream, err);
    }
    status = ffa_device_stream_synchronize(r->context, r->stream, rc == FFA_OK ? err : NULL);
    if (rc == FFA_OK)
        rc = status;
    return rc == FFA_OK ? ffa_comm_status(r->comm, err) : rc;
}

ffa_status run_gpu_rank_pass(struct run_gpu_rank *r, void *const rows[RUN_TENSORS],
                             bool is_backward, int calls, int64_t *us, ffa_error *err)
{
    static const enum run_tensor forward_in[] = { RUN_Q, RUN_K, RUN_V };
    static const enum run_tensor forward_out[] = { RUN_OUT, RUN_LSE };
    static const enum run_tensor backward_in[] = { RUN_DOUT, RUN_DLSE };
    static const enum run_tensor backward_out[] = { RUN_DQ, RUN_DK, RUN_DV };
    int64_t since_us = 0;
    ffa_status rc = is_backward ? copy_rows(r, rows, backward_in, 2, true, err)
                                : copy_rows(r, rows, forward_in, 3, true, err);

    if (rc == FFA_OK && r->sink)
        rc = ffa_device_copy(r->context, r->sink, r->opts.sink, sink_bytes(r), FFA_TO_DEVICE, err);
    if (rc == FFA_OK)
        rc = run_meeting_start(r->opts.meeting, r->opts.rank, &since_us, err);
    if (rc == FFA_OK)
        rc = run_calls(r, is_backward, calls, err);
    *us = cli_clock_us() - since_us;
    if (rc == FFA_OK)
        rc = read_spans(r, is_backward, err);
    if (rc == FFA_OK)
        rc = run_meeting_most(r->opts.meeting, r->opts.rank, us, err);
    if (rc == FFA_OK)
        rc = is_backward ? copy_rows(r, rows, backward_out, 3, false, err)
                         : copy_rows(r, rows, forward_out, 2, false, err);
    if (rc == FFA_OK && is_backward && r->dsink)
        rc = ffa_device_copy(r->context, r->opts.dsink, r->dsink, sink_bytes(r), FFA_FROM_DEVICE,
                             err);
    if (rc != FFA_OK) {
        r->opts.meeting->give_up(r->opts.meeting, err);
        ffa_comm_cancel(r->comm, err->message);
    }
    return rc;
}
