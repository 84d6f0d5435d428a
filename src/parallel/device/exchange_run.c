/* SPDX-License-Identifier: Apache-2.0
 *
 * An exchange as a call of a communicator.
 *
 *     caller's stream   reclaim, publish, rows_ready ............ wait, take
 *     fetch stream      wait for what is published here, then for each source: rows_ready, copies;
 *                       rows_done
 *
 * Invariant: nothing blocks the host, allocates or synchronises, and all that would be refused is
 * refused before the call begins. Rows are received where peers may still pull the rows of an
 * earlier call, so the fetch stream, too, is behind the reclaim.
 */
#include "parallel/device/exchange.h"

#include "service/context.h"

ffa_status exchange_open(struct exchange_call *call, ffa_comm *comm, ffa_error *err)
{
    const struct exchange *exchange = call->exchange;
    int64_t bytes;

    call->comm = comm_device_of(comm);
    if (!call->comm)
        return error_fail(err, FFA_INVALID, 0,
                          comm ? "the communicator is not of GPUs (ffa_comm_create_peer)"
                               : "comm is NULL");
    if (exchange->rank_count != comm->rank_count || exchange->rank != comm->rank)
        return error_fail(err, FFA_INVALID, 0,
                          "the rows are of rank %d of %d, the communicator of rank %d of %d",
                          exchange->rank, exchange->rank_count, comm->rank, comm->rank_count);
    if (call->kernels->copy.context->gpu != call->comm->gpu)
        return error_fail(err, FFA_INVALID, 0,
                          "the kernels and the communicator are of two contexts");
    if (call->comm->exchange)
        return error_fail(err, FFA_UNSUPPORTED, 0,
                          "rows are pulled from other ranks' windows, and the communicator's "
                          "transport is NCCL (FFA_TRANSPORT_EXCHANGE)");
    bytes = call->comm->window_bytes[WINDOW_ROWS][exchange->rank];
    if (bytes < call->room.bytes)
        return error_fail(err, FFA_INVALID, 0,
                          "the communicator's key window has %lld bytes, the call needs %lld "
                          "(ffa_comm_reserve)",
                          (long long)bytes, (long long)call->room.bytes);
    call->window = call->comm->windows[WINDOW_ROWS][exchange->rank];
    return FFA_OK;
}

/* ---- launches ---- */

static ffa_status check_launches(const struct exchange_call *call,
                                 const struct row_launch *launches, int count, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    for (int i = 0; i < count; i++)
        FFA_TRY(launches[i].is_reduce
                    ? row_reduce_check(&call->kernels->copy, &launches[i].as.reduce, err)
                    : row_copy_check(&call->kernels->copy, &launches[i].as.copy, err));
out:
    return rc;
}

static ffa_status enqueue_launches(const struct exchange_call *call,
                                   const struct row_launch *launches, int count, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    for (int i = 0; i < count; i++)
        FFA_TRY(
            launches[i].is_reduce
                ? row_reduce_enqueue(&call->kernels->copy, &launches[i].as.reduce, call->stream,
                                     err)
                : row_copy_enqueue(&call->kernels->copy, &launches[i].as.copy, call->stream, err));
out:
    return rc;
}

/* ---- the streams ---- */

static ffa_status signal_all(const struct exchange_call *call, ffa_stream stream,
                             enum comm_channel channel, const int32_t *ranks, int32_t count,
                             ffa_error *err)
{
    struct comm_flag *flags = call->exchange->flags;

    for (int32_t i = 0; i < count; i++)
        flags[i] = (struct comm_flag){ .channel = channel, .rank = ranks[i] };
    return comm_device_signal(call->comm, call->call, stream, flags, count, err);
}

static ffa_status publish(const struct exchange_call *call, ffa_error *err)
{
    const struct exchange *x = call->exchange;
    ffa_status rc;

    FFA_TRY(comm_device_reclaim(call->comm, call->call, WINDOW_ROWS, call->stream, err));
    FFA_TRY(enqueue_launches(call, call->publish, call->publish_count, err));
    FFA_TRY(signal_all(call, call->stream, CHANNEL_ROWS_READY, x->readers, x->reader_count, err));
    rc = gpu_event_record(x->published, call->stream, err);
out:
    return rc;
}

/* All copies from one source: copies [first, last). */
static ffa_status pull(const struct exchange_call *call, int64_t first, int64_t last,
                       ffa_error *err)
{
    const struct exchange *x = call->exchange;
    const struct comm_flag ready = { .channel = CHANNEL_ROWS_READY, .rank = x->copies[first].rank };
    const ffa_stream stream = gpu_stream_handle(call->comm->fetch);
    const int64_t row_bytes = call->wire->row_bytes;
    const unsigned char *const from = call->comm->windows[WINDOW_ROWS][ready.rank];
    ffa_status rc;

    for (int64_t i = first; i < last; i++) {
        x->to[i] = call->window + x->copies[i].to * row_bytes;
        x->from[i] = from + x->copies[i].from * row_bytes;
        x->bytes[i] = (size_t)(x->copies[i].rows * row_bytes);
    }
    FFA_TRY(comm_device_wait(call->comm, call->call, stream, &ready, 1, err));
    rc = gpu_copy_batch(call->comm->gpu, stream, x->to + first, x->from + first, x->bytes + first,
                        last - first, err);
out:
    return rc;
}

static ffa_status fetch(const struct exchange_call *call, ffa_error *err)
{
    const struct exchange *x = call->exchange;
    const ffa_stream stream = gpu_stream_handle(call->comm->fetch);
    ffa_status rc;

    FFA_TRY(gpu_event_wait(x->published, stream, err));
    for (int64_t first = 0, last = 0; first < x->copy_count; first = last) {
        while (last < x->copy_count && x->copies[last].rank == x->copies[first].rank)
            last++;
        FFA_TRY(pull(call, first, last, err));
    }
    FFA_TRY(signal_all(call, stream, CHANNEL_ROWS_DONE, x->sources, x->source_count, err));
    FFA_TRY(gpu_event_record(x->fetched, stream, err));
    rc = gpu_event_wait(x->fetched, call->stream, err);
out:
    return rc;
}

/* ---- the call ---- */

static ffa_status check(const struct exchange_call *call, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(check_launches(call, call->publish, call->publish_count, err));
    FFA_TRY(check_launches(call, call->take, call->take_count, err));
    rc = gpu_stream_refuse_capture(call->comm->gpu, call->stream, "a call of several ranks", err);
out:
    return rc;
}

static ffa_status enqueue(const struct exchange_call *call, ffa_error *err)
{
    const struct exchange *x = call->exchange;
    const int64_t received = x->window_rows - x->published_rows;
    ffa_status rc;

    if (received > 0)
        comm_device_spoil(call->comm, call->call,
                          call->window + x->published_rows * call->wire->row_bytes,
                          received * call->wire->row_bytes);
    FFA_TRY(publish(call, err));
    FFA_TRY(fetch(call, err));
    FFA_TRY(enqueue_launches(call, call->take, call->take_count, err));
    rc = comm_device_end(call->comm, call->call, call->stream, err);
out:
    return rc;
}

ffa_status exchange_run(struct exchange_call *call, ffa_error *err)
{
    ffa_error failure = { FFA_OK, 0, "" };
    ffa_status rc;

    FFA_TRY(check(call, err));
    FFA_TRY(comm_device_begin(&call->call, call->comm, call->stream, call->words, err));
    rc = enqueue(call, &failure);
    if (rc != FFA_OK) {
        comm_device_abandon(call->comm, call->call, call->stream, &failure);
        if (err)
            *err = failure;
    }
out:
    return rc;
}
