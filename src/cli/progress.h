/* SPDX-License-Identifier: Apache-2.0
 *
 * Progress of a long session, on stderr: a bar on a terminal, else a line every ten seconds.
 */
#ifndef FFA_CLI_PROGRESS_H
#define FFA_CLI_PROGRESS_H

#include "cli/cli.h"

struct progress {
    const struct cli *cli;
    bool can_draw, has_colour;
    bool is_drawn;   /* a bar stands on the terminal's last line */
    int64_t last_us; /* when something was last said */
};

struct progress_counts {
    int64_t total, hit, built, failed;
    int workers;
    double eta_s; /* below 0: unknown */
};

void progress_init(struct progress *progress, const struct cli *cli);
/* How often it wants to be shown. */
int64_t progress_tick_us(const struct progress *progress);
void progress_show(struct progress *progress, const struct progress_counts *counts);
/* Take the bar away: something else is to be said, or the session is over. */
void progress_clear(struct progress *progress);

#endif
