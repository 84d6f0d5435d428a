/* SPDX-License-Identifier: Apache-2.0
 *
 * Which colour is whose in the picture of a plan. Invariant: no colour of a rank is one of a stage.
 * Ranks have hand-picked colours from magenta by red and yellow to green, neighbours far apart;
 * stages go from light blue to dark violet in the order of their arrival. Nobody tells 64 colours
 * apart, so many ranks share a few, and the rank that the plan is of stands out.
 */
#include "cli/plan_svg.h"

#include <stdio.h>

enum {
    RANK_COLOURS = 16, /* as many ranks have one each */
    GROUPS_MAX = 8     /* of more ranks */
};

const char plan_svg_other_colour[] = "#dde2e9";
static const char own_colour[] = "#37414f", plan_rank_colour[] = "#171c24";

int32_t plan_svg_ranks_a_colour(const struct plan_picture *picture,
                                const ffa_parallel_plan_info *info)
{
    const int32_t ranks = info->rank_count, node = picture->ranks_per_node;
    const int32_t least = (ranks + GROUPS_MAX - 1) / GROUPS_MAX;

    if (ranks <= RANK_COLOURS)
        return 1;
    return node < ranks ? (least + node - 1) / node * node : least;
}

const char *plan_svg_rank_colour(int32_t rank, int32_t ranks_a_colour, int32_t plan_rank)
{
    static const char *const colours[RANK_COLOURS] = { "#d1342f", "#f4b63f", "#2e8b3d", "#f08fb2",
                                                       "#8c5a2b", "#a8cf45", "#c2187a", "#f5793a",
                                                       "#0f6b4c", "#eaf04a", "#7d1128", "#7fd6a0",
                                                       "#b39a6b", "#556b1f", "#fbc9bd", "#e06fd0" };

    if (ranks_a_colour > 1 && rank == plan_rank)
        return plan_rank_colour;
    return colours[rank / ranks_a_colour % RANK_COLOURS];
}

/* Between three colours, the second in the middle. */
void plan_svg_stage_colour(char out[8], int32_t stage, int32_t stages)
{
    static const int32_t ends[3][3] = { { 58, 156, 206 }, { 36, 84, 196 }, { 122, 52, 168 } };
    const int32_t steps = stages > 1 ? stages - 1 : 1;
    const int32_t at = stage > 1 ? 2 * (stage - 1) : 0; /* of 2 * steps */
    const int32_t first = at >= steps, rest = at - first * steps;
    int32_t rgb[3];

    if (stage == 0) {
        (void)snprintf(out, 8, "%s", own_colour);
        return;
    }
    for (int c = 0; c < 3; c++)
        rgb[c] = ends[first][c] + (ends[first + 1][c] - ends[first][c]) * rest / steps;
    (void)snprintf(out, 8, "#%02x%02x%02x", (unsigned)rgb[0] & 255u, (unsigned)rgb[1] & 255u,
                   (unsigned)rgb[2] & 255u);
}

int32_t plan_svg_stages(const ffa_parallel_plan_info *info)
{
    return info->forward_stages > info->backward_stages ? info->forward_stages
                                                        : info->backward_stages;
}

/* ---- legends ---- */

/* Rows of squares with names, below a mask. */
struct legend {
    struct svg *out;
    int64_t left, x, y; /* of the first row's names; of the next square */
};

static void add_key(struct legend *legend, const char *colour, const char *name, int64_t width)
{
    if (legend->x + width > legend->left + PLAN_SVG_SIDE + 20) {
        legend->x = legend->left;
        legend->y += 18;
    }
    svg_add(legend->out, "<rect x=\"%lld\" y=\"%lld\" width=\"11\" height=\"11\" fill=\"%s\"/>\n",
            (long long)legend->x, (long long)legend->y - 10, colour);
    svg_add_label(legend->out, "s", legend->x + 15, legend->y, name);
    legend->x += width;
}

void plan_svg_legend_of_ranks(struct svg *out, const struct plan_picture *picture,
                              const ffa_parallel_plan_info *info, int64_t y)
{
    const int32_t each = plan_svg_ranks_a_colour(picture, info), ranks = info->rank_count;
    const int64_t left = PLAN_SVG_MARGIN + (each > 1 ? 44 : 36);
    struct legend legend = { out, left, left, y };
    char name[32];

    svg_add_label(out, "s", PLAN_SVG_MARGIN, y, each > 1 ? "ranks" : "rank");
    for (int32_t r = 0; r < ranks; r += each) {
        const int32_t last = r + each < ranks ? r + each - 1 : ranks - 1;

        (void)snprintf(name, sizeof name, last > r ? "%d-%d" : "%d", r, last);
        add_key(&legend, plan_svg_rank_colour(r, each, -1), name, each > 1 ? 80 : 39);
    }
    (void)snprintf(name, sizeof name, "rank %d", info->rank);
    if (each > 1)
        add_key(&legend, plan_rank_colour, name, 80);
}

void plan_svg_legend_of_stages(struct svg *out, const ffa_parallel_plan_info *info, int64_t y)
{
    const bool moves_queries = info->moves == FFA_PARALLEL_MOVE_QUERIES;
    struct legend legend = { out, PLAN_SVG_STAGES_LEFT, PLAN_SVG_STAGES_LEFT, y };
    const int32_t stages = plan_svg_stages(info);
    char colour[8], name[16];

    add_key(&legend, own_colour, moves_queries ? "its own queries" : "its own keys",
            moves_queries ? 122 : 104);
    if (moves_queries)
        add_key(&legend, plan_svg_other_colour, "other ranks", 92);
    for (int32_t s = 1; s <= stages; s++) {
        plan_svg_stage_colour(colour, s, stages);
        (void)snprintf(name, sizeof name, s == 1 ? "stage %d" : "%d", s);
        add_key(&legend, colour, name, s == 1 ? 72 : 39);
    }
}
