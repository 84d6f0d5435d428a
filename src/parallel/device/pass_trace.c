/* SPDX-License-Identifier: Apache-2.0
 *
 * Spans of a pass from timed events. Invariant: a lane with n spans has n + 1 recorded events, and
 * span i lies between events i and i + 1; what has no room extends the lane's last span. Trick: an
 * event stands for its last record, so the end of a span moves by recording its event again.
 */
#include "parallel/device/pass_trace.h"

#include "service/context.h"

enum { LANES = 3 };

/* compute: at most 8 in a backward pass, where queries move more for each stage; fetch: wait and
 * copy of 15 stages. */
static const int32_t lane_spans[LANES] = { 24, 2 * (COMM_STAGES_MAX - 1), 74 };
static const int32_t lane_first[LANES] = { 0, 24, 54 };
_Static_assert(8 + 2 * (COMM_STAGES_MAX - 1) + 90 == FFA_PARALLEL_SPANS_MAX, "spans of all lanes");

struct ffa_parallel_trace {
    struct gpu_device *gpu; /* borrowed */
    struct gpu_event *events[FFA_PARALLEL_SPANS_MAX + LANES];
    ffa_parallel_span spans[FFA_PARALLEL_SPANS_MAX]; /* of a lane: from lane_first on; no times */
    int32_t counts[LANES];
    ffa_stream streams[LANES];
    bool is_recorded; /* a pass was begun */
};

/* Event i of a lane: 0 is its begin, i the end of its span i - 1. */
static struct gpu_event *event_of(const ffa_parallel_trace *trace, int32_t lane, int32_t i)
{
    return trace->events[lane_first[lane] + lane + i];
}

static struct gpu_event *last_of(const ffa_parallel_trace *trace, int32_t lane)
{
    return event_of(trace, lane, trace->counts[lane]);
}

/* ---- the object ---- */

ffa_status ffa_parallel_trace_create(ffa_parallel_trace **out, ffa_context *context, ffa_error *err)
{
    ffa_parallel_trace *trace = NULL;
    ffa_status rc;

    if (!out || !context)
        return error_fail(err, FFA_INVALID, 0, "%s is NULL", out ? "context" : "out");
    *out = NULL;
    if (!context->gpu)
        return error_fail(err, FFA_UNSUPPORTED, 0,
                          "the context has no GPU: passes on the CPU have no trace");
    trace = mem_array(1, sizeof *trace);
    if (!trace) {
        rc = error_nomem(err, "a trace");
        goto out;
    }
    trace->gpu = context->gpu;
    for (size_t i = 0; i < sizeof trace->events / sizeof *trace->events; i++)
        FFA_TRY(gpu_event_create(&trace->events[i], trace->gpu, true, err));
    *out = trace;
    trace = NULL;
    rc = FFA_OK;
out:
    ffa_parallel_trace_destroy(trace);
    return rc;
}

void ffa_parallel_trace_destroy(ffa_parallel_trace *trace)
{
    if (!trace)
        return;
    for (size_t i = 0; i < sizeof trace->events / sizeof *trace->events; i++)
        gpu_event_destroy(trace->events[i]);
    mem_free(trace);
}

bool pass_trace_is_of(const ffa_parallel_trace *trace, const struct gpu_device *gpu)
{
    return trace->gpu == gpu;
}

/* ---- recording ---- */

ffa_status pass_trace_begin(ffa_parallel_trace *trace, const struct comm_device *comm,
                            ffa_stream stream, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    if (!trace)
        return FFA_OK;
    trace->is_recorded = false;
    trace->streams[FFA_PARALLEL_LANE_COMPUTE] = stream;
    trace->streams[FFA_PARALLEL_LANE_FETCH] = gpu_stream_handle(comm->fetch);
    trace->streams[FFA_PARALLEL_LANE_REDUCE] = gpu_stream_handle(comm->reduce);
    for (int32_t lane = 0; lane < LANES; lane++) {
        trace->counts[lane] = 0;
        FFA_TRY(gpu_event_record(last_of(trace, lane), trace->streams[lane], err));
    }
    trace->is_recorded = true;
out:
    return rc;
}

ffa_status pass_trace_mark(ffa_parallel_trace *trace, ffa_parallel_lane lane,
                           ffa_parallel_span_kind kind, const struct pass_mark *mark,
                           ffa_error *err)
{
    ffa_parallel_span *span;

    if (!trace)
        return FFA_OK;
    if (trace->counts[lane] < lane_spans[lane]) {
        span = &trace->spans[lane_first[lane] + trace->counts[lane]++];
        *span = (ffa_parallel_span){ .struct_size = (uint32_t)sizeof *span,
                                     .lane = (int32_t)lane,
                                     .kind = (int32_t)kind,
                                     .stage = mark->stage,
                                     .rank = mark->rank,
                                     .bytes = mark->bytes };
    } else {
        span = &trace->spans[lane_first[lane] + trace->counts[lane] - 1];
        if (lane != FFA_PARALLEL_LANE_COMPUTE)
            span->kind = (int32_t)FFA_PARALLEL_SPAN_COPY;
        span->stage = span->rank = -1;
        span->bytes += mark->bytes;
    }
    return gpu_event_record(last_of(trace, (int32_t)lane), trace->streams[lane], err);
}

ffa_status pass_trace_end(ffa_parallel_trace *trace, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    for (int32_t lane = FFA_PARALLEL_LANE_FETCH; trace && lane < LANES; lane++)
        FFA_TRY(
            gpu_event_wait(last_of(trace, lane), trace->streams[FFA_PARALLEL_LANE_COMPUTE], err));
out:
    return rc;
}

/* ---- reading ---- */

static int32_t span_count(const ffa_parallel_trace *trace)
{
    int32_t count = 0;

    for (int32_t lane = 0; lane < LANES && trace->is_recorded; lane++)
        count += trace->counts[lane];
    return count;
}

static ffa_status check_over(const ffa_parallel_trace *trace, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    for (int32_t lane = 0; lane < LANES; lane++) {
        bool is_done = false;

        FFA_TRY(gpu_event_query(last_of(trace, lane), &is_done, err));
        if (!is_done)
            return error_fail(err, FFA_INVALID, 0,
                              "the pass is not over: synchronise its stream first");
    }
out:
    return rc;
}

/* From the begin of the pass; a lane may begin a little before the caller's stream. */
static ffa_status time_of(const ffa_parallel_trace *trace, int32_t lane, int32_t event, double *us,
                          ffa_error *err)
{
    float ms;
    const ffa_status rc = gpu_event_elapsed_ms(event_of(trace, FFA_PARALLEL_LANE_COMPUTE, 0),
                                               event_of(trace, lane, event), &ms, err);

    *us = ms > 0.0f ? (double)ms * 1e3 : 0.0;
    return rc;
}

static ffa_status read_lane(const ffa_parallel_trace *trace, int32_t lane, ffa_parallel_span *out,
                            ffa_error *err)
{
    double begin_us = 0.0;
    ffa_status rc;

    FFA_TRY(time_of(trace, lane, 0, &begin_us, err));
    for (int32_t i = 0; i < trace->counts[lane]; i++) {
        out[i] = trace->spans[lane_first[lane] + i];
        out[i].begin_us = begin_us;
        FFA_TRY(time_of(trace, lane, i + 1, &out[i].end_us, err));
        begin_us = out[i].end_us;
    }
out:
    return rc;
}

static ffa_status check_get(const ffa_parallel_trace *trace, const ffa_parallel_span *spans,
                            int32_t capacity, int32_t count, ffa_error *err)
{
    if (capacity < 0)
        return error_fail(err, FFA_INVALID, 0, "capacity is %d, not at least 0", capacity);
    if (capacity > 0 && !spans)
        return error_fail(err, FFA_INVALID, 0, "spans is NULL, capacity is %d", capacity);
    if (capacity > 0 && capacity < count)
        return error_fail(err, FFA_INVALID, 0, "capacity is %d, the pass has %d spans", capacity,
                          count);
    return count > 0 ? check_over(trace, err) : FFA_OK;
}

ffa_status ffa_parallel_trace_get(const ffa_parallel_trace *trace, ffa_parallel_span *spans,
                                  int32_t capacity, int32_t *count, ffa_error *err)
{
    ffa_parallel_span read[FFA_PARALLEL_SPANS_MAX];
    int32_t at = 0;
    ffa_status rc;

    if (!trace || !count)
        return error_fail(err, FFA_INVALID, 0, "%s is NULL", trace ? "count" : "trace");
    *count = span_count(trace);
    FFA_TRY(check_get(trace, spans, capacity, *count, err));
    if (capacity == 0 || *count == 0)
        goto out;
    for (int32_t lane = 0; lane < LANES; lane++) {
        FFA_TRY(read_lane(trace, lane, read + at, err));
        at += trace->counts[lane];
    }
    rc = opts_export_all(spans, at, read, sizeof *read, err);
out:
    return rc;
}
