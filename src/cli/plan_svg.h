/* SPDX-License-Identifier: Apache-2.0
 *
 * The picture of a plan: the mask by the rank that computes a cell, and one rank's part of it by
 * forward stage (plan_svg_mask.c); loads and received rows of all ranks, and timelines of both
 * passes (plan_svg_times.c); the head and the legend (plan_svg.c).
 */
#ifndef FFA_CLI_PLAN_SVG_H
#define FFA_CLI_PLAN_SVG_H

#include "cli/svg.h"

#include <ffa/ffa.h>

enum {
    PLAN_SVG_MARGIN = 64,
    PLAN_SVG_SIDE = 440, /* of a mask */
    PLAN_SVG_GAP = 96,   /* between the left and the right column */
    PLAN_SVG_TOP = 92,   /* of the masks */
    PLAN_SVG_BARS = 130, /* height of the bars */
    PLAN_SVG_LANE = 20,  /* height of a lane of a timeline */
    PLAN_SVG_WIDTH =
        PLAN_SVG_MARGIN + PLAN_SVG_SIDE + PLAN_SVG_GAP + PLAN_SVG_SIDE + PLAN_SVG_MARGIN
};

/* What is drawn: a plan, and what it was made from. All borrowed. */
struct plan_picture {
    const ffa_mask *mask;
    const ffa_dispatch *dispatch;
    const ffa_parallel_plan *plan;
    int32_t ranks_per_node;
};

/* At most about 4 MB, list 0 of the mask. *out: caller's, free(). FFA_NOMEM. */
ffa_status plan_svg(char **out, const struct plan_picture *picture, ffa_error *err);

/* ---- between the files of the picture; info: the plan's ---- */

/* Both masks; false: no memory. */
bool plan_svg_masks(struct svg *out, const struct plan_picture *picture,
                    const ffa_parallel_plan_info *info);
/* Both charts of bars, their upper edge at y. */
void plan_svg_bars(struct svg *out, const struct plan_picture *picture,
                   const ffa_parallel_plan_info *info, int64_t y);
/* One pass; `longest`: nanoseconds that fill the width. */
void plan_svg_timeline(struct svg *out, const struct plan_picture *picture,
                       const ffa_parallel_plan_info *info, int32_t is_backward, int64_t y,
                       int64_t longest);
void plan_svg_axis(struct svg *out, int64_t y, int64_t longest);

/* The begin of a picture PLAN_SVG_WIDTH wide, with the styles of its texts. */
void plan_svg_open(struct svg *out, int64_t height);
/* Ranks around the colour circle, neighbours of different lightness. */
void plan_svg_rank_colour(char out[8], int32_t rank, int32_t ranks);
/* Of own rows (stage 0), and of each stage that receives. */
const char *plan_svg_stage_colour(int32_t stage);
extern const char plan_svg_other_colour[];

#endif
