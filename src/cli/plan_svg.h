/* SPDX-License-Identifier: Apache-2.0
 *
 * The picture of a plan, as a slide: the mask by the rank that computes a cell, and one rank's part
 * of it by forward stage (plan_svg_mask.c); loads and received rows of all ranks, and timelines of
 * both passes (plan_svg_times.c); colours and legends (plan_svg_colours.c); the head (plan_svg.c).
 */
#ifndef FFA_CLI_PLAN_SVG_H
#define FFA_CLI_PLAN_SVG_H

#include "cli/svg.h"

#include <ffa/ffa.h>

enum {
    PLAN_SVG_WIDTH = 1280,
    PLAN_SVG_MARGIN = 72,
    PLAN_SVG_SIDE = 350, /* of a mask */
    PLAN_SVG_TOP = 128,  /* of the masks and the upper bars */
    PLAN_SVG_STAGES_LEFT = PLAN_SVG_MARGIN + PLAN_SVG_SIDE + 80, /* of the rank's mask */
    PLAN_SVG_BARS_LEFT = PLAN_SVG_STAGES_LEFT + PLAN_SVG_SIDE + 56,
    PLAN_SVG_RIGHT = PLAN_SVG_WIDTH - 40,
    PLAN_SVG_BARS = 118, /* height of the bars */
    PLAN_SVG_LANE = 20   /* height of a lane of a timeline */
};

/* What is drawn: a plan, and what it was made from. All borrowed. */
struct plan_picture {
    const char *name; /* of the mask, as the user wrote it */
    const ffa_mask *mask;
    const ffa_dispatch *dispatch;
    const ffa_parallel_plan *plan;
    int32_t ranks_per_node;
    bool is_slowest; /* the plan's rank was chosen because it is */
};

/* At most about 4 MB, list 0 of the mask. *out: caller's, free(). FFA_NOMEM. */
ffa_status plan_svg(char **out, const struct plan_picture *picture, ffa_error *err);

/* ---- between the files of the picture; info: the plan's ---- */

/* Both masks; false: no memory. */
bool plan_svg_masks(struct svg *out, const struct plan_picture *picture,
                    const ffa_parallel_plan_info *info);
/* Both charts of bars, one below the other. */
void plan_svg_bars(struct svg *out, const struct plan_picture *picture,
                   const ffa_parallel_plan_info *info, const struct svg_unit *unit);
/* One pass, its title at y; `longest`: nanoseconds that fill the width. Returns where it ends. */
int64_t plan_svg_timeline(struct svg *out, const struct plan_picture *picture,
                          const ffa_parallel_plan_info *info, int32_t is_backward, int64_t y,
                          int64_t longest);
/* Times below a timeline that is drawn from `left` on, `width` pixels wide. */
void plan_svg_axis(struct svg *out, int64_t left, int64_t width, int64_t y, int64_t longest);

/* The begin of a picture, with the styles of its texts. */
void plan_svg_open(struct svg *out, int64_t width, int64_t height);

/* ---- colours ---- */

/* How many neighbours share a colour: 1 for few ranks, else whole nodes where there are several. */
int32_t plan_svg_ranks_a_colour(const struct plan_picture *picture,
                                const ffa_parallel_plan_info *info);
/* Of a rank: reds, yellows, greens; where ranks share colours, the plan's rank is nearly black. */
const char *plan_svg_rank_colour(int32_t rank, int32_t ranks_a_colour, int32_t plan_rank);
/* Of own rows (stage 0), and of each of `stages` that receive: blues, the later the darker. */
void plan_svg_stage_colour(char out[8], int32_t stage, int32_t stages);
extern const char plan_svg_other_colour[];

/* Below the masks, the first row at y. */
void plan_svg_legend_of_ranks(struct svg *out, const struct plan_picture *picture,
                              const ffa_parallel_plan_info *info, int64_t y);
void plan_svg_legend_of_stages(struct svg *out, const ffa_parallel_plan_info *info, int64_t y);
/* Most stages of either pass. */
int32_t plan_svg_stages(const ffa_parallel_plan_info *info);

#endif
