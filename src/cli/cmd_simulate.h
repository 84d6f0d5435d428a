/* SPDX-License-Identifier: Apache-2.0
 *
 * What ffa simulate found, to be printed or drawn.
 */
#ifndef FFA_CLI_CMD_SIMULATE_H
#define FFA_CLI_CMD_SIMULATE_H

#include "cli/calibration_file.h"

enum { SIM_WORLDS_MAX = 32 };

/* One number of ranks. */
struct sim_world {
    int32_t ranks, nodes;
    ffa_sim_opts opts; /* as used */
    ffa_sim_result results[FFA_SIM_METHODS];
};

struct sim_study {
    const char *mask;
    int64_t tokens, area;
    int32_t ranks_per_node;
    struct sim_world worlds[SIM_WORLDS_MAX]; /* ascending in ranks */
    int count;
    struct calibration calibration; /* all zero: nothing is measured */
};

/* Efficiency over ranks, one panel a pass, one line a method. */
ffa_status simulate_svg(const struct sim_study *study, const char *path, ffa_error *err);

#endif
