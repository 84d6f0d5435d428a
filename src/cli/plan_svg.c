/* SPDX-License-Identifier: Apache-2.0
 *
 * The picture of a plan, written against public headers only. Invariant: the same plan gives the
 * same bytes, on every machine: integers throughout, and nothing of the time or the place.
 */
#include "cli/plan_svg.h"

#include "cli/file.h"

#include <stdio.h>

enum {
    HEAD_CHARACTERS = 80, /* of the mask's name */
    LEGEND = 62           /* height of the legends, up to three rows */
};

static const char style[] =
    "<style>text{font:13px system-ui,sans-serif;fill:#2b3440}.h{font-size:15px;font-weight:600}"
    ".t{font-size:21px;font-weight:600}.s{fill:#566170;font-size:12px}.e{text-anchor:end}"
    ".m{text-anchor:middle}.b{font-weight:600}"
    ".w{fill:#fff;font-size:12px;text-anchor:middle}</style>\n";

void plan_svg_open(struct svg *out, int64_t width, int64_t height)
{
    svg_add(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%lld\" height=\"%lld\" "
        "viewBox=\"0 0 %lld %lld\">\n%s<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
        (long long)width, (long long)height, (long long)width, (long long)height, style);
}

/* The mask by name, and on how many ranks it is. */
static void draw_title(struct svg *out, const struct plan_picture *picture, int32_t ranks)
{
    svg_add(out, "<text class=\"t\" x=\"%d\" y=\"36\">", PLAN_SVG_MARGIN);
    svg_add_text(out, picture->name, HEAD_CHARACTERS);
    svg_add(out, " on %d rank%s", ranks, ranks == 1 ? "" : "s");
    if (picture->ranks_per_node < ranks)
        svg_add(out, ", %d a node", picture->ranks_per_node);
    svg_add(out, "</text>\n");
}

static void draw_head(struct svg *out, const struct plan_picture *picture,
                      const ffa_parallel_plan_info *info)
{
    const int64_t queries = ffa_mask_seqlen_q(picture->mask);
    const int64_t key_count = ffa_mask_seqlen_k(picture->mask);
    char line[256], tokens[32], keys[32], area[32];

    draw_title(out, picture, info->rank_count);
    svg_group_digits(tokens, queries);
    svg_group_digits(area, ffa_mask_area(picture->mask, 0));
    svg_group_digits(keys, key_count);
    (void)snprintf(line, sizeof line,
                   "%s%s%s tokens, %s cells attended%s; %s move; rank %d is shown in detail%s",
                   tokens, queries == key_count ? "" : " x ", queries == key_count ? "" : keys,
                   area, ffa_mask_head_count(picture->mask) > 1 ? " (list 0)" : "",
                   info->moves == FFA_PARALLEL_MOVE_QUERIES ? "queries" : "keys", info->rank,
                   picture->is_slowest ? ": the slowest" : "");
    svg_add_label(out, "s", PLAN_SVG_MARGIN, 56, line);
    (void)snprintf(line, sizeof line,
                   "all times are modelled, none is measured: %d:%d heads of %d; plan %s",
                   info->model.heads_q, info->model.heads_kv, info->model.head_dim,
                   ffa_parallel_plan_digest(picture->plan));
    svg_add_label(out, "s", PLAN_SVG_MARGIN, 73, line);
}

/* All below the head; returns where it ends. */
static int64_t draw_passes(struct svg *out, const struct plan_picture *picture,
                           const ffa_parallel_plan_info *info)
{
    const int64_t left = PLAN_SVG_MARGIN + 60;
    const int64_t most =
        info->forward_ns > info->backward_ns ? info->forward_ns : info->backward_ns;
    const int64_t longest = most > 0 ? most : 1;
    const struct svg_unit unit = svg_unit_of(longest);
    ffa_parallel_stage stage = FFA_PARALLEL_STAGE_INIT;
    int64_t y = PLAN_SVG_TOP + PLAN_SVG_SIDE + 24;

    plan_svg_legend_of_ranks(out, picture, info, y);
    plan_svg_legend_of_stages(out, info, y);
    plan_svg_bars(out, picture, info, &unit);
    y = plan_svg_timeline(out, picture, info, 0, y + LEGEND, longest);
    if (ffa_parallel_plan_stage_get(picture->plan, 1, 0, &stage, NULL) == FFA_OK)
        y = plan_svg_timeline(out, picture, info, 1, y + 24, longest);
    plan_svg_axis(out, left, PLAN_SVG_RIGHT - left, y + 12, longest);
    svg_add_label(
        out, "s", left, y + 36,
        info->moves == FFA_PARALLEL_MOVE_QUERIES
            ? "fetch: queries arrive; compute: attention; reduce: outputs and gradients "
              "return to the owners of the queries"
            : "fetch: keys and values arrive; compute: attention; reduce: their gradients "
              "return to their owners");
    return y + 36;
}

ffa_status plan_svg(char **out, const struct plan_picture *picture, ffa_error *err)
{
    ffa_parallel_plan_info info = FFA_PARALLEL_PLAN_INFO_INIT;
    struct svg svg = { 0 }, body = { 0 };
    bool has_memory;
    int64_t end;
    ffa_status rc = ffa_parallel_plan_info_get(picture->plan, &info, err);

    *out = NULL;
    if (rc != FFA_OK)
        return rc;
    draw_head(&body, picture, &info);
    has_memory = plan_svg_masks(&body, picture, &info);
    end = draw_passes(&body, picture, &info);
    plan_svg_open(&svg, PLAN_SVG_WIDTH, end + 22);
    svg_add(&svg, "%s</svg>\n", body.at ? body.at : "");
    has_memory = has_memory && !body.failed && !svg.failed;
    svg_finish(&body);
    if (!has_memory) {
        svg_finish(&svg);
        return cli_error(err, FFA_NOMEM, 0, "no memory for a picture");
    }
    *out = svg.at;
    return FFA_OK;
}
