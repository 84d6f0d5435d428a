/* SPDX-License-Identifier: Apache-2.0
 *
 * Bars of all ranks, and the timelines of one. Invariant: lengths are shares of the longest, in
 * hundredths of a pixel.
 */
#include "cli/plan_svg.h"

#include <stdio.h>
#include <string.h>

enum {
    FEW_RANKS = 16,  /* up to which every bar is numbered */
    NARROW = 18,     /* pixels: a block too narrow for its number, */
    NARROW_WORD = 34 /* and for "own" */
};

/* ---- bars ---- */

struct bars {
    const char *title;
    int64_t y;           /* of the upper edge */
    int64_t width, each; /* of all; neighbours that share a colour */
    int64_t most, mean;
    const struct svg_unit *unit; /* NULL: rows */
};

/* Of a rank: what is drawn full, and what its outline reaches. */
static int64_t bar_of(const struct plan_picture *picture, const struct bars *bars, int32_t rank,
                      bool is_outline)
{
    ffa_parallel_rank r = FFA_PARALLEL_RANK_INIT;

    (void)ffa_parallel_plan_rank_get(picture->plan, rank, &r, NULL);
    if (!bars->unit)
        return r.received_rows;
    return is_outline ? r.forward_ns + r.backward_ns : r.forward_work_ns + r.backward_work_ns;
}

static void measure(struct bars *bars, const struct plan_picture *picture, int32_t ranks)
{
    int64_t sum = 0;

    for (int32_t r = 0; r < ranks; r++) {
        const int64_t full = bar_of(picture, bars, r, false);

        for (int outline = 0; outline < 2; outline++) {
            const int64_t height = bar_of(picture, bars, r, outline);

            bars->most = height > bars->most ? height : bars->most;
        }
        sum = full > INT64_MAX - sum ? INT64_MAX : sum + full;
    }
    bars->most = bars->most > 0 ? bars->most : 1;
    bars->mean = sum / ranks;
}

static void draw_bar(struct svg *out, const struct plan_picture *picture, const struct bars *bars,
                     const ffa_parallel_plan_info *info, int32_t r)
{
    const int32_t ranks = info->rank_count;
    const int64_t bottom = bars->y + PLAN_SVG_BARS;
    const int64_t x = PLAN_SVG_BARS_LEFT * 100 + r * bars->width * 100 / ranks;
    const int64_t width = bars->width * 100 / ranks * 17 / 20;
    const int64_t full = svg_share(bar_of(picture, bars, r, false), bars->most, PLAN_SVG_BARS);
    const int64_t outline = svg_share(bar_of(picture, bars, r, true), bars->most, PLAN_SVG_BARS);
    struct svg path = { 0 };
    char number[32];

    if (outline > full) {
        svg_add_box(&path, x, bottom * 100 - outline, width, outline);
        svg_add_path(out, plan_svg_other_colour, &path);
    }
    svg_add_box(&path, x, bottom * 100 - full, width, full);
    svg_add_path(out, plan_svg_rank_colour(r, (int32_t)bars->each, info->rank), &path);
    if (ranks <= FEW_RANKS || r % (ranks / 8) == 0) {
        (void)snprintf(number, sizeof number, "%d", r);
        svg_add_label(out, "s m", (x + width / 2) / 100, bottom + 15, number);
    }
    if (r == info->rank) {
        const int64_t middle = (x + width / 2) / 100;
        const int64_t least = PLAN_SVG_BARS_LEFT + 24, most = PLAN_SVG_RIGHT - 24;

        (void)snprintf(number, sizeof number, "rank %d", r);
        svg_add_label(out, "b m",
                      middle < least  ? least
                      : middle > most ? most
                                      : middle,
                      bottom + 31, number);
    }
}

static void name_height(char out[32], const struct bars *bars, int64_t height)
{
    if (bars->unit)
        svg_name_time(out, height, bars->unit);
    else
        svg_group_digits(out, height);
}

static void draw_bars(struct svg *out, const struct plan_picture *picture,
                      const ffa_parallel_plan_info *info, struct bars *bars)
{
    const int64_t bottom = bars->y + PLAN_SVG_BARS;
    char label[128], number[32];

    bars->width = PLAN_SVG_RIGHT - PLAN_SVG_BARS_LEFT;
    bars->each = plan_svg_ranks_a_colour(picture, info);
    measure(bars, picture, info->rank_count);
    svg_add_label(out, "h", PLAN_SVG_BARS_LEFT, bars->y - 26, bars->title);
    for (int32_t r = 0; r < info->rank_count; r++)
        draw_bar(out, picture, bars, info, r);
    svg_add(out, "<path stroke=\"#2b3440\" stroke-dasharray=\"4 3\" d=\"M%d %lldh%lld\"/>\n",
            PLAN_SVG_BARS_LEFT,
            (long long)(bottom - svg_share(bars->mean, bars->most, PLAN_SVG_BARS) / 100),
            (long long)bars->width);
    name_height(number, bars, bars->mean);
    (void)snprintf(label, sizeof label,
                   bars->unit ? "computing (dashed: mean, %s), grey: waiting" : "dashed: mean, %s",
                   number);
    svg_add_label(out, "s", PLAN_SVG_BARS_LEFT, bars->y - 8, label);
    name_height(number, bars, bars->most);
    (void)snprintf(label, sizeof label, "highest %s", number);
    svg_add_label(out, "s e", PLAN_SVG_RIGHT, bars->y - 26, label);
}

void plan_svg_bars(struct svg *out, const struct plan_picture *picture,
                   const ffa_parallel_plan_info *info, const struct svg_unit *unit)
{
    struct bars time = { .title = "Time of both passes", .y = PLAN_SVG_TOP, .unit = unit };
    struct bars rows = { .title = "Rows received",
                         .y = PLAN_SVG_TOP + PLAN_SVG_SIDE - PLAN_SVG_BARS };

    draw_bars(out, picture, info, &time);
    draw_bars(out, picture, info, &rows);
}

/* ---- timelines ---- */

static void add_block(struct svg *out, const char *colour, int64_t x, int64_t y, int64_t width,
                      const char *name)
{
    svg_add(out, "<rect x=\"");
    svg_add_px(out, x);
    svg_add(out, "\" y=\"%lld\" width=\"", (long long)y);
    svg_add_px(out, width > 50 ? width : 50);
    svg_add(out, "\" height=\"%d\" fill=\"%s\" stroke=\"#fff\" stroke-width=\".6\"/>\n",
            PLAN_SVG_LANE - 3, colour);
    if (width >= (strlen(name) > 2 ? NARROW_WORD : NARROW) * 100)
        svg_add_label(out, "w", (x + width / 2) / 100, y + 13, name);
}

static void draw_stage(struct svg *out, const ffa_parallel_stage *stage, int32_t number,
                       int32_t stages, int64_t y, int64_t longest)
{
    const int64_t left = PLAN_SVG_MARGIN + 60, width = PLAN_SVG_RIGHT - left;
    const int64_t begins[] = { stage->fetch_begin_ns, stage->compute_begin_ns,
                               stage->reduce_begin_ns };
    const int64_t ends[] = { stage->fetch_end_ns, stage->compute_end_ns, stage->reduce_end_ns };
    char name[16], colour[8];

    plan_svg_stage_colour(colour, number, stages);
    (void)snprintf(name, sizeof name, number == 0 ? "own" : "%d", number);
    for (int lane = 0; lane < 3; lane++) {
        const int64_t from = svg_share(begins[lane], longest, width);
        const int64_t to = svg_share(ends[lane], longest, width);

        if (ends[lane] > begins[lane])
            add_block(out, colour, left * 100 + from, y + lane * PLAN_SVG_LANE, to - from, name);
    }
}

int64_t plan_svg_timeline(struct svg *out, const struct plan_picture *picture,
                          const ffa_parallel_plan_info *info, int32_t is_backward, int64_t y,
                          int64_t longest)
{
    const int64_t left = PLAN_SVG_MARGIN + 60, width = PLAN_SVG_RIGHT - left;
    static const char *const lanes[] = { "fetch", "compute", "reduce" };
    const int count = is_backward || info->moves == FFA_PARALLEL_MOVE_QUERIES ? 3 : 2;
    const int32_t stages = is_backward ? info->backward_stages : info->forward_stages;
    const struct svg_unit unit = svg_unit_of(longest);
    ffa_parallel_stage stage = FFA_PARALLEL_STAGE_INIT;
    ffa_parallel_rank rank = FFA_PARALLEL_RANK_INIT;
    char title[192], total[32], work[32];

    (void)ffa_parallel_plan_rank_get(picture->plan, info->rank, &rank, NULL);
    svg_name_time(total, is_backward ? info->backward_ns : info->forward_ns, &unit);
    svg_name_time(work, is_backward ? rank.backward_work_ns : rank.forward_work_ns, &unit);
    (void)snprintf(title, sizeof title, "%s: %s on rank %d, of which %s computing; %d stage%s",
                   is_backward ? "Backward" : "Forward", total, info->rank, work, stages,
                   stages == 1 ? "" : "s");
    svg_add_label(out, "h", PLAN_SVG_MARGIN, y, title);
    y += 10;
    for (int lane = 0; lane < count; lane++) {
        svg_add_label(out, "s", PLAN_SVG_MARGIN, y + lane * PLAN_SVG_LANE + 13, lanes[lane]);
        svg_add(out,
                "<rect x=\"%lld\" y=\"%lld\" width=\"%lld\" height=\"%d\" fill=\"#f6f8fa\"/>\n",
                (long long)left, (long long)(y + lane * PLAN_SVG_LANE), (long long)width,
                PLAN_SVG_LANE - 3);
    }
    /* Behind the last stage that receives, a backward pass has the rest of the own part. */
    for (int32_t s = 0; s <= stages + is_backward; s++)
        if (ffa_parallel_plan_stage_get(picture->plan, is_backward, s, &stage, NULL) == FFA_OK)
            draw_stage(out, &stage, s > stages ? 0 : s, plan_svg_stages(info), y, longest);
    return y + count * PLAN_SVG_LANE;
}

void plan_svg_axis(struct svg *out, int64_t left, int64_t width, int64_t y, int64_t longest)
{
    const struct svg_unit unit = svg_unit_of(longest);
    char label[32];

    for (int i = 0; i <= 4; i++) {
        svg_name_time(label, longest / 4 * i + longest % 4 * i / 4, &unit);
        svg_add_label(out, i == 4 ? "s e" : i == 0 ? "s" : "s m", left + width * i / 4, y, label);
    }
}
