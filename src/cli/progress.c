/* SPDX-License-Identifier: Apache-2.0
 *
 * A bar where the terminal can draw, redrawn in place; else a line every ten seconds. Invariant: a
 * bar is cleared before anything else is written to stderr.
 */
#include "cli/progress.h"

#include "cli/clock.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { LINE_US = 10 * 1000 * 1000, DRAW_US = 200 * 1000, BAR_COLUMNS = 24 };

void progress_init(struct progress *progress, const struct cli *cli)
{
    *progress = (struct progress){ .cli = cli, .last_us = cli_clock_us() };
    cli_find_terminal(&progress->can_draw, &progress->has_colour);
}

int64_t progress_tick_us(const struct progress *progress)
{
    return progress->can_draw ? DRAW_US : LINE_US / 10;
}

static void draw(const struct progress *progress, const struct progress_counts *counts)
{
    int64_t done = counts->hit + counts->built + counts->failed;
    int full = counts->total ? (int)(done * BAR_COLUMNS / counts->total) : BAR_COLUMNS;
    bool is_red = counts->failed > 0 && progress->has_colour;
    char bar[BAR_COLUMNS + 1];

    memset(bar, '-', BAR_COLUMNS);
    memset(bar, '#', (size_t)full);
    bar[BAR_COLUMNS] = '\0';
    (void)fprintf(stderr,
                  "\r\033[K[%s] %" PRId64 "/%" PRId64 "  hit %" PRId64 "  built %" PRId64
                  "  %sfailed %" PRId64 "%s  workers %d",
                  bar, done, counts->total, counts->hit, counts->built, is_red ? "\033[31m" : "",
                  counts->failed, is_red ? "\033[0m" : "", counts->workers);
    if (counts->eta_s >= 0)
        (void)fprintf(stderr, "  ETA %.0f s", ceil(counts->eta_s));
    (void)fflush(stderr);
}

static void say(const struct progress *progress, const struct progress_counts *counts)
{
    char eta[48] = "";

    if (counts->eta_s >= 0)
        (void)snprintf(eta, sizeof eta, ", about %.0f s left", ceil(counts->eta_s));
    cli_note(progress->cli,
             "%" PRId64 " of %" PRId64 ": hit %" PRId64 ", built %" PRId64 ", failed %" PRId64
             ", %d workers%s",
             counts->hit + counts->built + counts->failed, counts->total, counts->hit,
             counts->built, counts->failed, counts->workers, eta);
}

void progress_show(struct progress *progress, const struct progress_counts *counts)
{
    int64_t now = cli_clock_us();

    if (progress->can_draw) {
        draw(progress, counts);
        progress->is_drawn = true;
    } else if (now - progress->last_us >= LINE_US) {
        say(progress, counts);
        progress->last_us = now;
    }
}

void progress_clear(struct progress *progress)
{
    if (progress->is_drawn)
        (void)fputs("\r\033[K", stderr);
    progress->is_drawn = false;
}
