/* SPDX-License-Identifier: Apache-2.0
 *
 * Bars of all ranks, and the timelines of one. Invariant: lengths are shares of the longest, in
 * hundredths of a pixel.
 */
#include "cli/plan_svg.h"

#include <stdio.h>

enum {
    FEW_RANKS = 16, /* up to which every bar is numbered */
    NARROW = 26     /* pixels: a block too narrow for its number */
};

/* ---- bars ---- */

struct bars {
    const char *title;
    int64_t x, y; /* pixels */
    int64_t most, mean;
    bool is_time;
};

/* Of a rank: what is drawn full, and what its outline reaches. */
static int64_t bar_of(const struct plan_picture *picture, const struct bars *bars, int32_t rank,
                      bool is_outline)
{
    ffa_parallel_rank r = FFA_PARALLEL_RANK_INIT;

    (void)ffa_parallel_plan_rank_get(picture->plan, rank, &r, NULL);
    if (!bars->is_time)
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
    const int64_t x = bars->x * 100 + (int64_t)r * PLAN_SVG_SIDE * 100 / ranks;
    const int64_t width = PLAN_SVG_SIDE * 100 / ranks * 17 / 20;
    const int64_t full = svg_share(bar_of(picture, bars, r, false), bars->most, PLAN_SVG_BARS);
    const int64_t outline = svg_share(bar_of(picture, bars, r, true), bars->most, PLAN_SVG_BARS);
    struct svg path = { 0 };
    char colour[8], number[32];

    plan_svg_rank_colour(colour, r, ranks);
    if (outline > full) {
        svg_add_box(&path, x, bottom * 100 - outline, width, outline);
        svg_add_path(out, r == info->rank ? "#b9c1cc" : plan_svg_other_colour, &path);
    }
    svg_add_box(&path, x, bottom * 100 - full, width, full);
    svg_add_path(out, colour, &path);
    if (ranks <= FEW_RANKS || r % (ranks / 8) == 0 || r == info->rank) {
        (void)snprintf(number, sizeof number, "%d", r);
        svg_add_label(out, r == info->rank ? "m h" : "s m", (x + width / 2) / 100,
                      r == info->rank && ranks > FEW_RANKS ? bottom + 27 : bottom + 14, number);
    }
}

static void draw_bars(struct svg *out, const struct plan_picture *picture,
                      const ffa_parallel_plan_info *info, struct bars *bars)
{
    const int64_t bottom = bars->y + PLAN_SVG_BARS;
    char label[64], number[32];

    measure(bars, picture, info->rank_count);
    svg_add_label(out, "h", bars->x, bars->y - 12, bars->title);
    for (int32_t r = 0; r < info->rank_count; r++)
        draw_bar(out, picture, bars, info, r);
    svg_add(out, "<path stroke=\"#2b3440\" stroke-dasharray=\"4 3\" d=\"M%lld %lldh%d\"/>\n",
            (long long)bars->x,
            (long long)(bottom - svg_share(bars->mean, bars->most, PLAN_SVG_BARS) / 100),
            PLAN_SVG_SIDE);
    if (bars->is_time)
        svg_name_time(number, bars->most);
    else
        svg_group_digits(number, bars->most);
    (void)snprintf(label, sizeof label, "top %s", number);
    svg_add_label(out, "s e", bars->x + PLAN_SVG_SIDE, bars->y - 12, label);
}

void plan_svg_bars(struct svg *out, const struct plan_picture *picture,
                   const ffa_parallel_plan_info *info, int64_t y)
{
    struct bars time = { .title = "Modelled time by rank; grey: not computing",
                         .x = PLAN_SVG_MARGIN,
                         .y = y,
                         .is_time = true };
    struct bars rows = { .title = "Rows received by rank",
                         .x = PLAN_SVG_MARGIN + PLAN_SVG_SIDE + PLAN_SVG_GAP,
                         .y = y };

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
    if (width >= NARROW * 100)
        svg_add_label(out, "w", (x + width / 2) / 100, y + 13, name);
}

static void draw_stage(struct svg *out, const ffa_parallel_stage *stage, int32_t number, int64_t y,
                       int64_t longest)
{
    const int64_t left = PLAN_SVG_MARGIN + 60, width = PLAN_SVG_WIDTH - PLAN_SVG_MARGIN - left;
    const int64_t begins[] = { stage->fetch_begin_ns, stage->compute_begin_ns,
                               stage->reduce_begin_ns };
    const int64_t ends[] = { stage->fetch_end_ns, stage->compute_end_ns, stage->reduce_end_ns };
    char name[16];

    (void)snprintf(name, sizeof name, number == 0 ? "own" : "%d", number);
    for (int lane = 0; lane < 3; lane++) {
        const int64_t from = svg_share(begins[lane], longest, width);
        const int64_t to = svg_share(ends[lane], longest, width);

        if (ends[lane] > begins[lane])
            add_block(out, plan_svg_stage_colour(number), left * 100 + from,
                      y + lane * PLAN_SVG_LANE, to - from, name);
    }
}

void plan_svg_timeline(struct svg *out, const struct plan_picture *picture,
                       const ffa_parallel_plan_info *info, int32_t is_backward, int64_t y,
                       int64_t longest)
{
    const int64_t left = PLAN_SVG_MARGIN + 60, width = PLAN_SVG_WIDTH - PLAN_SVG_MARGIN - left;
    static const char *const lanes[] = { "fetch", "compute", "reduce" };
    const int32_t stages = is_backward ? info->backward_stages : info->forward_stages;
    ffa_parallel_stage stage = FFA_PARALLEL_STAGE_INIT;
    ffa_parallel_rank rank = FFA_PARALLEL_RANK_INIT;
    char title[160], total[32], work[32];

    (void)ffa_parallel_plan_rank_get(picture->plan, info->rank, &rank, NULL);
    svg_name_time(total, is_backward ? info->backward_ns : info->forward_ns);
    svg_name_time(work, is_backward ? rank.backward_work_ns : rank.forward_work_ns);
    (void)snprintf(title, sizeof title, "%s: %s, of which %s computing; %d stage%s",
                   is_backward ? "Backward" : "Forward", total, work, stages,
                   stages == 1 ? "" : "s");
    svg_add_label(out, "h", PLAN_SVG_MARGIN, y - 8, title);
    for (int lane = 0; lane < 3; lane++) {
        svg_add_label(out, "s", PLAN_SVG_MARGIN, y + lane * PLAN_SVG_LANE + 13, lanes[lane]);
        svg_add(out,
                "<rect x=\"%lld\" y=\"%lld\" width=\"%lld\" height=\"%d\" fill=\"#f6f8fa\"/>\n",
                (long long)left, (long long)(y + lane * PLAN_SVG_LANE), (long long)width,
                PLAN_SVG_LANE - 3);
    }
    /* Behind the last stage that receives, a backward pass has the rest of the own part. */
    for (int32_t s = 0; s <= stages + is_backward; s++)
        if (ffa_parallel_plan_stage_get(picture->plan, is_backward, s, &stage, NULL) == FFA_OK)
            draw_stage(out, &stage, s > stages ? 0 : s, y, longest);
}

void plan_svg_axis(struct svg *out, int64_t y, int64_t longest)
{
    const int64_t left = PLAN_SVG_MARGIN + 60, width = PLAN_SVG_WIDTH - PLAN_SVG_MARGIN - left;
    char label[32];

    for (int i = 0; i <= 4; i++) {
        svg_name_time(label, longest / 4 * i + longest % 4 * i / 4);
        svg_add_label(out, i == 4 ? "s e" : i == 0 ? "s" : "s m", left + width * i / 4, y, label);
    }
}
