/* SPDX-License-Identifier: Apache-2.0
 *
 * What ranks did in a pass, and when: as a picture (timeline_svg.c), and in the Trace Event Format
 * that chrome://tracing and Perfetto read (timeline_trace.c). Times are those of each rank's own
 * pass: 0 is where it began there.
 */
#ifndef FFA_CLI_TIMELINE_H
#define FFA_CLI_TIMELINE_H

#include <ffa/ffa.h>
#include <stdbool.h>

/* As ffa_parallel_trace_get gave it: by lane. */
struct timeline_pass {
    ffa_parallel_span spans[FFA_PARALLEL_SPANS_MAX];
    int32_t count; /* 0: no such pass */
};

/* Without pointers: processes hand it to each other. */
struct timeline_rank {
    int32_t rank;
    struct timeline_pass passes[2]; /* forward, backward */
};

/* Borrowed. */
struct timeline {
    const struct timeline_rank *ranks;
    int32_t count;
};

/* *out: caller's, free(). FFA_NOMEM. */
ffa_status timeline_svg(char **out, const struct timeline *timeline, ffa_error *err);
/* JSON. A process is a rank, its threads are the lanes; backward passes begin where the longest
 * forward one ended. */
ffa_status timeline_trace(char **out, const struct timeline *timeline, ffa_error *err);

/* ---- between the files ---- */

const char *timeline_lane_name(int32_t lane);
const char *timeline_kind_name(int32_t kind);
const char *timeline_pass_name(int pass);
/* Of the time of a span, in nanoseconds. */
int64_t timeline_ns(double us);
/* The end of a pass that took longest, in nanoseconds; 0: no rank has it. */
int64_t timeline_longest(const struct timeline *timeline, int pass);
/* The end of such a span is when its stage can be computed with. */
bool timeline_is_arrival(const ffa_parallel_span *span);

#endif
