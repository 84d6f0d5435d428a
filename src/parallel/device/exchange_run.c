/* SPDX-License-Identifier: Apache-2.0
 *
 * An exchange as a call of a communicator.
 *
 *     caller's stream   reclaim, publish, rows_ready, own ....... wait, take
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
    if (!comm_device_pulls(call->comm))
        return error_fail(err, FFA_UNSUPPORTED, 0,
                          "rows are pulled from other ranks' windows, and the communicator's "
                          "transport is %s",
                          comm_device_relays(call->comm)
                              ? "NCCL between nodes (FFA_TRANSPORT_RELAY)"
                              : "NCCL (FFA_TRANSPORT_EXCHANGE)");
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

static ffa_status publish(struct exchange_call *call, ffa_error *err)
{
    const struct exchange *x = call->exchange;
    struct comm_batch batch;
    ffa_status rc;

    comm_batch_init(&batch, call->comm, call->stream);
    FFA_TRY(comm_batch_reclaim(&batch, &call->fetch, call->call, WINDOW_ROWS, err));
    FFA_TRY(comm_batch_flush(&batch, err));
    FFA_TRY(enqueue_launches(call, call->publish, call->publish_count, err));
    FFA_TRY(
        comm_batch_tell(&batch, call->call, CHANNEL_ROWS_READY, x->readers, x->reader_count, err));
    FFA_TRY(comm_batch_flush(&batch, err));
    rc = gpu_event_record(x->published, call->stream, err);
out:
    return rc;
}

/* All copies from one source: copies [first, last). */
static ffa_status pull(struct exchange_call *call, const struct pass_copy *copies, int64_t first,
                       int64_t last, ffa_error *err)
{
    const struct exchange *x = call->exchange;
    const struct comm_flag ready = { .channel = CHANNEL_ROWS_READY, .rank = copies[first].rank };
    const ffa_stream stream = gpu_stream_handle(call->comm->fetch);
    const int64_t row_bytes = call->wire->row_bytes;
    const unsigned char *const from = call->comm->windows[WINDOW_ROWS][ready.rank];
    ffa_status rc;

    for (int64_t i = first; i < last; i++) {
        x->to[i] = (call->direct ? call->direct : call->window) + copies[i].to * row_bytes;
        x->from[i] = from + copies[i].from * row_bytes;
        x->bytes[i] = (size_t)(copies[i].rows * row_bytes);
    }
    FFA_TRY(comm_batch_wait(&call->fetch, call->call, &ready, 1, err));
    FFA_TRY(comm_batch_flush(&call->fetch, err));
    rc = gpu_copy_batch(call->comm->gpu, stream, x->to + first, x->from + first, x->bytes + first,
                        last - first, err);
out:
    return rc;
}

static ffa_status fetch(struct exchange_call *call, ffa_error *err)
{
    const struct exchange *x = call->exchange;
    const struct pass_copy *copies = call->direct ? x->direct : x->copies;
    const int64_t count = call->direct ? x->direct_count : x->copy_count;
    const ffa_stream stream = gpu_stream_handle(call->comm->fetch);
    ffa_status rc;

    FFA_TRY(comm_batch_flush(&call->fetch, err));
    FFA_TRY(gpu_event_wait(x->published, stream, err));
    for (int64_t first = 0, last = 0; first < count; first = last) {
        while (last < count && copies[last].rank == copies[first].rank)
            last++;
        FFA_TRY(pull(call, copies, first, last, err));
    }
    FFA_TRY(comm_batch_tell(&call->fetch, call->call, CHANNEL_ROWS_DONE, x->sources,
                            x->source_count, err));
    FFA_TRY(comm_batch_flush(&call->fetch, err));
    rc = gpu_event_record(x->fetched, stream, err);
out:
    return rc;
}

/* ---- the call ---- */

static ffa_status check(const struct exchange_call *call, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(check_launches(call, call->publish, call->publish_count, err));
    FFA_TRY(check_launches(call, call->own, call->own_count, err));
    FFA_TRY(check_launches(call, call->take, call->take_count, err));
    rc = gpu_stream_refuse_capture(call->comm->gpu, call->stream, "a call of several ranks", err);
out:
    return rc;
}

/* What the call receives, should it fail. */
static void spoil(const struct exchange_call *call)
{
    const struct exchange *x = call->exchange;
    const int64_t row_bytes = call->wire->row_bytes;
    const int64_t received = x->window_rows - x->published_rows;

    if (received > 0 && call->direct)
        comm_device_spoil(call->comm, call->call, call->direct, x->output_rows * row_bytes);
    else if (received > 0)
        comm_device_spoil(call->comm, call->call, call->window + x->published_rows * row_bytes,
                          received * row_bytes);
}

static ffa_status enqueue(struct exchange_call *call, ffa_error *err)
{
    const struct exchange *x = call->exchange;
    ffa_status rc;

    spoil(call);
    FFA_TRY(publish(call, err));
    FFA_TRY(fetch(call, err));
    FFA_TRY(enqueue_launches(call, call->own, call->own_count, err));
    FFA_TRY(gpu_event_wait(x->fetched, call->stream, err));
    FFA_TRY(enqueue_launches(call, call->take, call->take_count, err));
    rc = comm_device_end(call->comm, call->call, call->stream, err);
out:
    return rc;
}

static ffa_status begin(struct exchange_call *call, ffa_error *err)
{
    const struct comm_opening opening = { .stream = call->stream,
                                          .words = call->words,
                                          .name = call->name,
                                          .publishes = "rows",
                                          .rounds = 1,
                                          .fetch = &call->fetch,
                                          .leaves_reduce = true };

    comm_batch_init(&call->fetch, call->comm, gpu_stream_handle(call->comm->fetch));
    return comm_device_open(&call->call, call->comm, &opening, err);
}

ffa_status exchange_run(struct exchange_call *call, ffa_error *err)
{
    ffa_error failure = { FFA_OK, 0, "" };
    ffa_status rc;

    FFA_TRY(check(call, err));
    FFA_TRY(begin(call, err));
    rc = enqueue(call, &failure);
    if (rc != FFA_OK) {
        comm_device_abandon(call->comm, call->call, call->stream, &failure);
        if (err)
            *err = failure;
    }
out:
    return rc;
}
