/* SPDX-License-Identifier: Apache-2.0
 *
 * The picture of what ranks did: the lanes of each rank, one pass below the other, in the look of
 * the timelines that `ffa plan --svg` models. Invariant: both passes have one scale, and the same
 * spans give the same bytes. A tick in the compute lane is when a stage's keys were there.
 */
#include "cli/timeline.h"

#include "cli/file.h"
#include "cli/plan_svg.h"

#include <stdio.h>

enum {
    LANES = 3,
    TOP = 104,    /* of the first pass's title */
    TITLE = 12,   /* from a title to the first lane */
    BETWEEN = 12, /* ranks */
    SECTION = 40, /* between two passes */
    NARROW = 26,  /* pixels: a block too narrow for its number */
    WORD = 62,    /* the same of a word */
    WIDTH = 1104,
    MARGIN = 64,
    LEFT = MARGIN + 60,
    WIDE = WIDTH - MARGIN - LEFT
};

static const char wait_colour[] = "#dde2e9", publish_colour[] = "#8a94a3",
                  sums_colour[] = "#6b7583";

/* Of the whole picture. */
struct scale {
    int64_t longest; /* nanoseconds that fill the width */
    int32_t stages;
};

static void name_colour(char out[8], const ffa_parallel_span *span, const struct scale *scale)
{
    const char *colour = NULL;

    if (span->kind == FFA_PARALLEL_SPAN_WAIT)
        colour = wait_colour;
    else if (span->kind == FFA_PARALLEL_SPAN_PUBLISH || span->kind == FFA_PARALLEL_SPAN_KEEP)
        colour = publish_colour;
    else if (span->kind == FFA_PARALLEL_SPAN_SUMS || span->kind == FFA_PARALLEL_SPAN_TOTALS)
        colour = sums_colour;
    if (colour)
        (void)snprintf(out, 8, "%s", colour);
    else
        plan_svg_stage_colour(out, span->stage > 0 ? span->stage : 0, scale->stages);
}

/* ---- spans ---- */

/* What a viewer shows of the block under the pointer. */
static void add_title(struct svg *out, const ffa_parallel_span *span)
{
    const int64_t ns = timeline_ns(span->end_us) - timeline_ns(span->begin_us);
    const struct svg_unit unit = svg_unit_of(ns); /* its own: it may be far shorter than a pass */
    char time[32], bytes[32];

    svg_name_time(time, ns, &unit);
    svg_add(out, "<title>%s", timeline_kind_name(span->kind));
    if (span->stage >= 0)
        svg_add(out, ", stage %d", span->stage);
    if (span->rank >= 0)
        svg_add(out, ", rank %d", span->rank);
    svg_add(out, ", %s", time);
    if (span->bytes > 0) {
        svg_group_digits(bytes, span->bytes);
        svg_add(out, ", %s bytes", bytes);
    }
    svg_add(out, "</title>");
}

static void add_name(struct svg *out, const ffa_parallel_span *span, int64_t middle, int64_t y,
                     int64_t width)
{
    char number[16];

    if (span->kind == FFA_PARALLEL_SPAN_WAIT)
        return;
    (void)snprintf(number, sizeof number, "%d", span->stage);
    if (span->stage >= 0 && width >= NARROW * 100)
        svg_add_label(out, "w", middle / 100, y + 13, number);
    if (span->stage < 0 && width >= WORD * 100)
        svg_add_label(out, "w", middle / 100, y + 13, timeline_kind_name(span->kind));
}

/* y: of the rank's first lane. */
static void add_span(struct svg *out, const ffa_parallel_span *span, int64_t y,
                     const struct scale *scale)
{
    const int64_t from = svg_share(timeline_ns(span->begin_us), scale->longest, WIDE);
    const int64_t to = svg_share(timeline_ns(span->end_us), scale->longest, WIDE);
    const int64_t width = to - from > 50 ? to - from : 50;
    char colour[8];

    name_colour(colour, span, scale);
    y += (int64_t)span->lane * PLAN_SVG_LANE;
    svg_add(out, "<rect x=\"");
    svg_add_px(out, LEFT * 100 + from);
    svg_add(out, "\" y=\"%lld\" width=\"", (long long)y);
    svg_add_px(out, width);
    svg_add(out, "\" height=\"%d\" fill=\"%s\" stroke=\"#fff\" stroke-width=\".6\">",
            PLAN_SVG_LANE - 3, colour);
    add_title(out, span);
    svg_add(out, "</rect>\n");
    add_name(out, span, LEFT * 100 + (from + to) / 2, y, width);
}

static void add_tick(struct svg *out, const char *colour, int64_t x, int64_t y)
{
    svg_add(out, "<path stroke=\"%s\" stroke-width=\"2\" d=\"M", colour);
    svg_add_px(out, x);
    svg_add(out, " %lldv%d\"/>\n", (long long)(y - 4), PLAN_SVG_LANE);
}

static void add_arrival(struct svg *out, const ffa_parallel_span *span, int64_t y,
                        const struct scale *scale)
{
    char colour[8];

    plan_svg_stage_colour(colour, span->stage > 0 ? span->stage : 0, scale->stages);
    add_tick(out, colour, LEFT * 100 + svg_share(timeline_ns(span->end_us), scale->longest, WIDE),
             y);
}

/* ---- ranks and passes ---- */

/* Lanes that are drawn: a pass in which no rank reduces has two. */
static int lanes_of(const struct timeline *timeline, int pass)
{
    for (int32_t r = 0; r < timeline->count; r++)
        for (int32_t i = 0; i < timeline->ranks[r].passes[pass].count; i++)
            if (timeline->ranks[r].passes[pass].spans[i].lane == FFA_PARALLEL_LANE_REDUCE)
                return LANES;
    return LANES - 1;
}

static int64_t rank_height(int lanes)
{
    return (int64_t)lanes * PLAN_SVG_LANE + BETWEEN;
}

static void draw_rank(struct svg *out, const struct timeline_rank *rank, int pass, int lanes,
                      int64_t y, const struct scale *scale)
{
    const struct timeline_pass *p = &rank->passes[pass];
    char name[24];

    (void)snprintf(name, sizeof name, "rank %d", rank->rank);
    svg_add_label(out, "s e", MARGIN - 8, y + 13, name);
    for (int lane = 0; lane < lanes; lane++) {
        svg_add_label(out, "s", MARGIN, y + lane * PLAN_SVG_LANE + 13, timeline_lane_name(lane));
        svg_add(out, "<rect x=\"%d\" y=\"%lld\" width=\"%d\" height=\"%d\" fill=\"#f6f8fa\"/>\n",
                LEFT, (long long)(y + lane * PLAN_SVG_LANE), WIDE, PLAN_SVG_LANE - 3);
    }
    for (int32_t i = 0; i < p->count; i++)
        add_span(out, &p->spans[i], y, scale);
    for (int32_t i = 0; i < p->count; i++)
        if (timeline_is_arrival(&p->spans[i]))
            add_arrival(out, &p->spans[i], y, scale);
}

/* Where the next pass begins. */
static int64_t draw_pass(struct svg *out, const struct timeline *timeline, int pass, int64_t y,
                         const struct scale *scale)
{
    const struct svg_unit unit = svg_unit_of(scale->longest);
    const int lanes = lanes_of(timeline, pass);
    char title[96], time[32];

    svg_name_time(time, timeline_longest(timeline, pass), &unit);
    (void)snprintf(title, sizeof title, "%s: %s%s", pass ? "Backward" : "Forward", time,
                   timeline->count > 1 ? ", the slowest rank" : "");
    svg_add_label(out, "h", MARGIN, y, title);
    y += TITLE;
    for (int32_t r = 0; r < timeline->count; r++) {
        draw_rank(out, &timeline->ranks[r], pass, lanes, y, scale);
        y += rank_height(lanes);
    }
    plan_svg_axis(out, LEFT, WIDE, y + 4, scale->longest);
    return y + SECTION;
}

static int32_t last_stage(const struct timeline *timeline)
{
    int32_t last = 0;

    for (int32_t r = 0; r < timeline->count; r++)
        for (int pass = 0; pass < 2; pass++)
            for (int32_t i = 0; i < timeline->ranks[r].passes[pass].count; i++) {
                const int32_t stage = timeline->ranks[r].passes[pass].spans[i].stage;

                last = stage > last ? stage : last;
            }
    return last;
}

static int64_t add_key(struct svg *out, const char *colour, int64_t x, int64_t y, const char *name,
                       int64_t width)
{
    svg_add(out, "<rect x=\"%lld\" y=\"%lld\" width=\"11\" height=\"11\" fill=\"%s\"/>\n",
            (long long)x, (long long)y - 10, colour);
    svg_add_label(out, "s", x + 15, y, name);
    return x + width;
}

static void draw_legend(struct svg *out, const struct timeline *timeline, int64_t y)
{
    const int32_t stages = last_stage(timeline);
    int64_t x = MARGIN;
    char colour[8];

    plan_svg_stage_colour(colour, 0, stages);
    x = add_key(out, wait_colour, x, y, "wait", 54);
    x = add_key(out, publish_colour, x, y, "publish", 70);
    x = add_key(out, colour, x, y, "attention", 80);
    x = add_key(out, sums_colour, x, y, "sums, totals", 104);
    for (int32_t s = 1; s <= stages && x < WIDTH - MARGIN - 66; s++) {
        char name[24];

        (void)snprintf(name, sizeof name, "%sstage %d", s == 1 ? "copies: " : "", s);
        plan_svg_stage_colour(colour, s, stages);
        x = add_key(out, colour, x, y, name, s == 1 ? 120 : 66);
    }
}

static void draw_head(struct svg *out, const struct timeline *timeline, int64_t height)
{
    char line[160];

    plan_svg_open(out, WIDTH, height);
    (void)snprintf(line, sizeof line, "What %d rank%s did, and when", timeline->count,
                   timeline->count == 1 ? "" : "s");
    svg_add_label(out, "t", MARGIN, 28, line);
    svg_add_label(out, "s", MARGIN, 46,
                  "measured by events on each GPU; 0 is where the rank's own pass began; a tick is "
                  "when the keys of a stage were there");
    draw_legend(out, timeline, 70);
}

ffa_status timeline_svg(char **out, const struct timeline *timeline, ffa_error *err)
{
    const int64_t times[2] = { timeline_longest(timeline, 0), timeline_longest(timeline, 1) };
    const int64_t most = times[0] > times[1] ? times[0] : times[1];
    const struct scale scale = { most > 0 ? most : 1, last_stage(timeline) };
    int64_t height = TOP - 20, y = TOP;
    struct svg svg = { 0 };

    *out = NULL;
    for (int pass = 0; pass < 2; pass++)
        if (times[pass] > 0)
            height += TITLE + timeline->count * rank_height(lanes_of(timeline, pass)) + SECTION;
    draw_head(&svg, timeline, height);
    for (int pass = 0; pass < 2; pass++)
        if (times[pass] > 0)
            y = draw_pass(&svg, timeline, pass, y, &scale);
    svg_add(&svg, "</svg>\n");
    if (svg.failed) {
        svg_finish(&svg);
        return cli_error(err, FFA_NOMEM, 0, "no memory for a picture");
    }
    *out = svg.at;
    return FFA_OK;
}
