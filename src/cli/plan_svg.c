/* SPDX-License-Identifier: Apache-2.0
 *
 * The picture of a plan, written against public headers only. Invariant: the same plan gives the
 * same bytes, on every machine: integers throughout, and nothing of the time or the place.
 */
#include "cli/plan_svg.h"

#include "cli/file.h"

#include <stdio.h>

enum { STAGE_COLOURS = 8 };

const char plan_svg_other_colour[] = "#dde2e9";

static const char style[] =
    "<style>text{font:12px system-ui,sans-serif;fill:#2b3440}.h{font-size:14px;font-weight:600}"
    ".t{font-size:17px;font-weight:600}.s{fill:#6b7583;font-size:11px}.e{text-anchor:end}"
    ".m{text-anchor:middle}.w{fill:#fff;font-size:11px;text-anchor:middle}</style>\n";

void plan_svg_rank_colour(char out[8], int32_t rank, int32_t ranks)
{
    const int32_t hue = (int32_t)((int64_t)rank * 1530 / ranks); /* six edges of 255 steps */
    const int32_t edge = hue / 255, rise = hue % 255, fall = 255 - rise;
    const int32_t r[6] = { 255, fall, 0, 0, rise, 255 }, g[6] = { rise, 255, 255, fall, 0, 0 };
    const int32_t b[6] = { 0, 0, rise, 255, 255, fall };
    const int32_t low = rank % 2 ? 96 : 32, high = rank % 2 ? 232 : 196;

    (void)snprintf(out, 8, "#%02x%02x%02x", (unsigned)(low + r[edge] * (high - low) / 255) & 255u,
                   (unsigned)(low + g[edge] * (high - low) / 255) & 255u,
                   (unsigned)(low + b[edge] * (high - low) / 255) & 255u);
}

const char *plan_svg_stage_colour(int32_t stage)
{
    static const char *const colours[STAGE_COLOURS] = {
        "#2f7ed8", "#3ba55d", "#e8912d", "#c8415c", "#8456ce", "#1aa5a5", "#a0762b", "#5b6c8f"
    };

    return stage == 0 ? "#37414f" : colours[(stage - 1) % STAGE_COLOURS];
}

static void draw_legend(struct svg *out, const ffa_parallel_plan_info *info, int64_t y)
{
    int64_t x = PLAN_SVG_MARGIN + PLAN_SVG_SIDE + PLAN_SVG_GAP;

    for (int32_t s = 0; s <= info->forward_stages; s++) {
        char name[24];

        (void)snprintf(name, sizeof name, s == 0 ? "own" : "stage %d", s);
        svg_add(out, "<rect x=\"%lld\" y=\"%lld\" width=\"11\" height=\"11\" fill=\"%s\"/>\n",
                (long long)x, (long long)y - 10, plan_svg_stage_colour(s));
        svg_add_label(out, "s", x + 15, y, name);
        x += s == 0 ? 50 : 66;
        if (x > PLAN_SVG_WIDTH - PLAN_SVG_MARGIN - 60) {
            x = PLAN_SVG_MARGIN + PLAN_SVG_SIDE + PLAN_SVG_GAP;
            y += 16;
        }
    }
}

void plan_svg_open(struct svg *out, int64_t height)
{
    svg_add(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%lld\" "
            "viewBox=\"0 0 %d %lld\">\n%s<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
            PLAN_SVG_WIDTH, (long long)height, PLAN_SVG_WIDTH, (long long)height, style);
}

static void draw_head(struct svg *out, const struct plan_picture *picture,
                      const ffa_parallel_plan_info *info, int64_t height)
{
    const int64_t queries = ffa_mask_seqlen_q(picture->mask);
    const int64_t key_count = ffa_mask_seqlen_k(picture->mask);
    char line[256], tokens[32], keys[32], area[32];

    plan_svg_open(out, height);
    svg_group_digits(tokens, queries);
    svg_group_digits(area, info->area);
    svg_group_digits(keys, key_count);
    (void)snprintf(line, sizeof line, "%s%s%s tokens on %d rank%s, %d a node", tokens,
                   queries == key_count ? "" : " x ", queries == key_count ? "" : keys,
                   info->rank_count, info->rank_count == 1 ? "" : "s", picture->ranks_per_node);
    svg_add_label(out, "t", PLAN_SVG_MARGIN, 28, line);
    (void)snprintf(
        line, sizeof line,
        "times are modelled: %d:%d heads of %d%s; %s move; rank %d computes %s cells; plan %s",
        info->model.heads_q, info->model.heads_kv, info->model.head_dim,
        ffa_mask_head_count(picture->mask) > 1 ? ", list 0 drawn" : "",
        info->moves == FFA_PARALLEL_MOVE_QUERIES ? "queries" : "keys", info->rank, area,
        ffa_parallel_plan_digest(picture->plan));
    svg_add_label(out, "s", PLAN_SVG_MARGIN, 46, line);
}

ffa_status plan_svg(char **out, const struct plan_picture *picture, ffa_error *err)
{
    const int64_t legend = PLAN_SVG_TOP + PLAN_SVG_SIDE + 20, bars = legend + 62;
    const int64_t forward = bars + PLAN_SVG_BARS + 70, backward = forward + 3 * PLAN_SVG_LANE + 34;
    ffa_parallel_plan_info info = FFA_PARALLEL_PLAN_INFO_INIT;
    ffa_parallel_stage stage = FFA_PARALLEL_STAGE_INIT;
    struct svg svg = { 0 };
    bool has_backward, has_memory;
    int64_t longest, last;
    ffa_status rc = ffa_parallel_plan_info_get(picture->plan, &info, err);

    *out = NULL;
    if (rc != FFA_OK)
        return rc;
    has_backward = ffa_parallel_plan_stage_get(picture->plan, 1, 0, &stage, NULL) == FFA_OK;
    longest = info.forward_ns > info.backward_ns ? info.forward_ns : info.backward_ns;
    longest = longest > 0 ? longest : 1;
    last = has_backward ? backward : forward;
    draw_head(&svg, picture, &info, last + 3 * PLAN_SVG_LANE + 34);
    has_memory = plan_svg_masks(&svg, picture, &info);
    draw_legend(&svg, &info, legend);
    plan_svg_bars(&svg, picture, &info, bars);
    plan_svg_timeline(&svg, picture, &info, 0, forward, longest);
    if (has_backward)
        plan_svg_timeline(&svg, picture, &info, 1, backward, longest);
    plan_svg_axis(&svg, last + 3 * PLAN_SVG_LANE + 12, longest);
    svg_add(&svg, "</svg>\n");
    if (!has_memory || svg.failed) {
        svg_finish(&svg);
        return cli_error(err, FFA_NOMEM, 0, "no memory for a picture");
    }
    *out = svg.at;
    return FFA_OK;
}
