/* SPDX-License-Identifier: Apache-2.0
 *
 * Timelines in the Trace Event Format: an object of "traceEvents", one a line. Invariant: text is
 * made of integers and of our own words, so it needs no escapes and does not depend on the locale.
 */
#include "cli/timeline.h"

#include "cli/file.h"
#include "cli/svg.h"

const char *timeline_lane_name(int32_t lane)
{
    static const char *const names[] = { "compute", "fetch", "reduce" };

    return lane >= 0 && lane < 3 ? names[lane] : "?";
}

const char *timeline_kind_name(int32_t kind)
{
    static const char *const names[] = { "wait", "publish", "copy", "attention",
                                         "sums", "totals",  "keep" };

    return kind >= 0 && kind < 7 ? names[kind] : "?";
}

const char *timeline_pass_name(int pass)
{
    return pass ? "backward" : "forward";
}

int64_t timeline_ns(double us)
{
    return (int64_t)(us * 1e3 + 0.5);
}

int64_t timeline_longest(const struct timeline *timeline, int pass)
{
    int64_t longest = 0;

    for (int32_t r = 0; r < timeline->count; r++) {
        const struct timeline_pass *p = &timeline->ranks[r].passes[pass];

        for (int32_t i = 0; i < p->count; i++) {
            const int64_t end = timeline_ns(p->spans[i].end_us);

            longest = end > longest ? end : longest;
        }
    }
    return longest;
}

bool timeline_is_arrival(const ffa_parallel_span *span)
{
    return span->lane == FFA_PARALLEL_LANE_FETCH && span->kind == FFA_PARALLEL_SPAN_COPY;
}

/* ---- events ---- */

static void begin_event(struct svg *out, bool *is_first)
{
    svg_add(out, *is_first ? "\n" : ",\n");
    *is_first = false;
}

/* Microseconds, of nanoseconds. */
static void add_time(struct svg *out, const char *key, int64_t ns)
{
    svg_add(out, ",\"%s\":%lld.%03lld", key, (long long)(ns / 1000), (long long)(ns % 1000));
}

/* What viewers call the process and its threads, in this order. */
static void add_names(struct svg *out, int32_t rank, bool *is_first)
{
    begin_event(out, is_first);
    svg_add(out,
            "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"rank %d\"}}",
            rank, rank);
    for (int32_t lane = 0; lane < 3; lane++) {
        begin_event(out, is_first);
        svg_add(out,
                "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,"
                "\"args\":{\"name\":\"%s\"}}",
                rank, lane, timeline_lane_name(lane));
    }
}

static void add_span(struct svg *out, const ffa_parallel_span *span, int32_t rank, int pass,
                     int64_t since)
{
    const int64_t begin = timeline_ns(span->begin_us), end = timeline_ns(span->end_us);

    svg_add(out, "{\"ph\":\"X\",\"name\":\"%s", timeline_kind_name(span->kind));
    if (span->stage >= 0)
        svg_add(out, " %d", span->stage);
    svg_add(out, "\",\"cat\":\"%s\",\"pid\":%d,\"tid\":%d", timeline_pass_name(pass), rank,
            span->lane);
    add_time(out, "ts", since + begin);
    add_time(out, "dur", end > begin ? end - begin : 0);
    svg_add(out, ",\"args\":{\"stage\":%d,\"rank\":%d,\"bytes\":%lld}}", span->stage, span->rank,
            (long long)span->bytes);
}

/* An instant in the compute lane. */
static void add_arrival(struct svg *out, const ffa_parallel_span *span, int32_t rank, int pass,
                        int64_t since)
{
    svg_add(out,
            "{\"ph\":\"i\",\"name\":\"stage %d is there\",\"cat\":\"%s\",\"pid\":%d,\"tid\":%d",
            span->stage, timeline_pass_name(pass), rank, (int)FFA_PARALLEL_LANE_COMPUTE);
    add_time(out, "ts", since + timeline_ns(span->end_us));
    svg_add(out, ",\"s\":\"t\"}");
}

ffa_status timeline_trace(char **out, const struct timeline *timeline, ffa_error *err)
{
    const int64_t since[2] = { 0, timeline_longest(timeline, 0) };
    struct svg text = { 0 };
    bool is_first = true;

    *out = NULL;
    svg_add(&text, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
    for (int32_t r = 0; r < timeline->count; r++)
        add_names(&text, timeline->ranks[r].rank, &is_first);
    for (int32_t r = 0; r < timeline->count; r++)
        for (int pass = 0; pass < 2; pass++) {
            const struct timeline_pass *p = &timeline->ranks[r].passes[pass];

            for (int32_t i = 0; i < p->count; i++) {
                begin_event(&text, &is_first);
                add_span(&text, &p->spans[i], timeline->ranks[r].rank, pass, since[pass]);
                if (!timeline_is_arrival(&p->spans[i]))
                    continue;
                begin_event(&text, &is_first);
                add_arrival(&text, &p->spans[i], timeline->ranks[r].rank, pass, since[pass]);
            }
        }
    svg_add(&text, "\n]}\n");
    if (text.failed) {
        svg_finish(&text);
        return cli_error(err, FFA_NOMEM, 0, "no memory for a trace");
    }
    *out = text.at;
    return FFA_OK;
}
