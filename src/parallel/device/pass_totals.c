/* SPDX-License-Identifier: Apache-2.0
 *
 * pass_totals_share and pass_totals_join. Invariant: each rank joins the same vectors, its own
 * among them as it was sent, in the same order, so all ranks get the same bits. Trick: to
 * row_reduce the vectors are rows of one tensor: rank 0's is the own row, the others are its
 * sources.
 */
#include "parallel/device/pass_totals.h"

int64_t pass_totals_bytes(const ffa_parallel_pass *pass, const ffa_kernels *kernels,
                          bool is_backward, int32_t heads_q)
{
    const int64_t most = is_backward               ? (int64_t)FFA_SINKS_MAX * heads_q
                         : kernels->has_max_logits ? heads_q
                                                   : 0;

    return pass->rank_count > 1 ? (most * (int64_t)sizeof(float) + 255) / 256 * 256 : 0;
}

static ffa_status check_max_logits(const ffa_parallel_args *args, const ffa_kernels *kernels,
                                   ffa_error *err)
{
    if ((args->max_logits != NULL) != kernels->has_max_logits)
        return error_fail(
            err, FFA_INVALID, 0, "max_logits is %s, the kernels were made %s FFA_SPEC_MAX_LOGITS",
            args->max_logits ? "given" : "NULL", kernels->has_max_logits ? "with" : "without");
    if ((uintptr_t)args->max_logits % sizeof(float))
        return error_fail(err, FFA_INVALID, 0, "max_logits is %p, not 4-byte aligned",
                          args->max_logits);
    return FFA_OK;
}

static ffa_status check_dsink(const ffa_parallel_args *args, ffa_error *err)
{
    const struct bounded fields[] = { { "sink_count", args->sink_count, 0, FFA_SINKS_MAX } };
    ffa_status rc;

    FFA_TRY(check_bounded(fields, sizeof fields / sizeof *fields, err));
    if (args->dsink && !args->sink_count)
        rc = error_fail(err, FFA_INVALID, 0, "dsink is given with a sink_count of 0");
    else if ((uintptr_t)args->dsink % sizeof(float))
        rc = error_fail(err, FFA_INVALID, 0, "dsink is %p, not 4-byte aligned", args->dsink);
out:
    return rc;
}

ffa_status pass_totals_init(struct pass_totals *out, const ffa_parallel_pass *pass,
                            const ffa_kernels *kernels, const ffa_parallel_args *args,
                            bool is_backward, ffa_error *err)
{
    int64_t count;
    ffa_status rc;

    *out = (struct pass_totals){ .to = is_backward ? args->dsink : args->max_logits,
                                 .is_max = !is_backward };
    FFA_TRY(is_backward ? check_dsink(args, err) : check_max_logits(args, kernels, err));
    if (!out->to || pass->rank_count == 1)
        goto out;
    count = args->heads_q * (is_backward ? (int64_t)args->sink_count : 1);
    if (count > COMM_TOTALS_MAX)
        rc = error_fail(err, FFA_INVALID, 0, "%s is given: it has %lld numbers, ranks join %d",
                        is_backward ? "dsink" : "max_logits", (long long)count, COMM_TOTALS_MAX);
    else
        out->count = (int32_t)count;
out:
    return rc;
}

ffa_status pass_totals_made(const struct pass_totals *totals, const ffa_parallel_pass *pass,
                            ffa_stream stream, ffa_error *err)
{
    return totals->count ? gpu_event_record(pass->totals_made, stream, err) : FFA_OK;
}

ffa_status pass_totals_share(struct pass_totals *totals, const ffa_parallel_pass *pass,
                             struct comm_device *comm, uint64_t call, ffa_error *err)
{
    const ffa_stream stream = gpu_stream_handle(comm->reduce);
    ffa_status rc = FFA_OK;

    if (totals->count == 0)
        goto out;
    FFA_TRY(gpu_event_wait(pass->totals_made, stream, err));
    FFA_TRY(comm_device_share_totals(&totals->all, comm, call, stream, totals->mine, totals->count,
                                     err));
    rc = gpu_event_record(pass->totals_shared, stream, err);
out:
    return rc;
}

ffa_status pass_totals_join(const struct pass_totals *totals, const ffa_parallel_pass *pass,
                            const ffa_kernels *kernels, ffa_stream stream, ffa_error *err)
{
    const unsigned char *buffer = pass->buffer;
    const struct row_reduce_call call = {
        .kernel = totals->is_max ? kernels->totals_max : kernels->totals_sum,
        .types = { FFA_FP32, FFA_FP32, totals->is_max ? ROW_REDUCE_MAX : ROW_REDUCE_SUM, 0 },
        .tensors = { { .own = totals->all,
                       .received = totals->all,
                       .out = totals->to,
                       .own_token_stride = COMM_TOTALS_MAX,
                       .received_token_stride = COMM_TOTALS_MAX,
                       .out_token_stride = COMM_TOTALS_MAX,
                       .columns = totals->count,
                       .heads = 1 } },
        .count = 1,
        .rows = 1,
        .segments = (const struct row_segment *)(const void *)(buffer + pass->totals_segment_at),
        .segment_count = 1,
        .sources = (const int64_t *)(const void *)(buffer + pass->totals_sources_at),
    };
    ffa_status rc = FFA_OK;

    if (totals->count == 0)
        goto out;
    FFA_TRY(gpu_event_wait(pass->totals_shared, stream, err));
    rc = row_reduce_enqueue(kernels, &call, stream, err);
out:
    return rc;
}
