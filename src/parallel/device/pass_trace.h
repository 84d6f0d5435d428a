/* SPDX-License-Identifier: Apache-2.0
 *
 * When a pass did what: timed events in its streams (ffa_parallel_trace).
 *
 * A lane is one stream. A mark is an event behind what the lane did since its last mark, so that
 * the spans of a lane have no gaps. Nothing here blocks or allocates, and nothing is done where the
 * trace is NULL.
 */
#ifndef FFA_PARALLEL_DEVICE_PASS_TRACE_H
#define FFA_PARALLEL_DEVICE_PASS_TRACE_H

#include "parallel/device/comm_device.h"

#include <ffa/parallel_pass.h>

/* As in ffa_parallel_span. */
struct pass_mark {
    int32_t stage, rank;
    int64_t bytes;
};

/* Whether its events are of the device. */
bool pass_trace_is_of(const ffa_parallel_trace *trace, const struct gpu_device *gpu);

/* Forget the pass before. All lanes begin here: compute is `stream`, the others are the streams of
 * the communicator. */
ffa_status pass_trace_begin(ffa_parallel_trace *trace, const struct comm_device *comm,
                            ffa_stream stream, ffa_error *err);
/* The lane's stream did this since its last mark, or since the begin. */
ffa_status pass_trace_mark(ffa_parallel_trace *trace, ffa_parallel_lane lane,
                           ffa_parallel_span_kind kind, const struct pass_mark *mark,
                           ffa_error *err);
/* The caller's stream waits for the last marks of the others: whoever has synchronised it can read
 * all spans. */
ffa_status pass_trace_end(ffa_parallel_trace *trace, ffa_error *err);

#endif
