/* SPDX-License-Identifier: Apache-2.0
 *
 * The race of a tuning session: who runs next.
 *
 * Successive halving: a heat is a few laps over the first masks, and its slower half leaves; the
 * next heat has twice the masks; the final has all. In a lap each configuration of the field runs
 * once a mask, the baseline too, in an order that turns by one from lap to lap. Everything follows
 * from the record, so that a session that was killed goes on where it was.
 *
 * A backward session, whose orders are chosen mask by mask, has a field for each mask: a heat is
 * one lap of all masks, and the slower half of each mask's field leaves.
 *
 * A lap with a mask is of one process, so that all of its samples can be compared: one that lacks a
 * sample when a process begins, as it was interrupted or the field has changed since, is run again
 * whole. Thread: any.
 */
#ifndef FFA_TUNE_TUNE_RACE_H
#define FFA_TUNE_TUNE_RACE_H

#include "tune/tune_stats.h"

/* The final's laps have these numbers, however many heats there were. */
enum { TUNE_FINAL_LAP = 1024, TUNE_FINAL_LAPS = 15, TUNE_FINAL_LAPS_MIN = 3 };
enum { TUNE_FINAL_LAP_END = TUNE_FINAL_LAP + TUNE_FINAL_LAPS };

/* Who runs in a lap with a mask. */
struct tune_step {
    bool is_final;
    int32_t heat, lap, mask;
    int32_t count;                          /* of the field */
    int32_t field[TUNE_CONFIGURATIONS_MAX]; /* in the order of this lap */
};

/* The first step that is not whole. False: the race is over, or its budget is spent. */
bool tune_race_next(const struct tune_record *record, struct tune_step *step);
/* Whether the step's next sample is to be taken. A heat of a backward session ends in the middle of
 * a step where its share of the budget is spent: all orders with a long mask may take what is left.
 */
bool tune_race_goes_on(const struct tune_record *record, const struct tune_step *step);
/* Samples that are still to be taken, if nobody drops out. */
int64_t tune_race_left(const struct tune_record *record);
/* Laps that find something, or that judge what other laps have found. */
enum tune_laps {
    TUNE_LAPS_HEATS = 1,
    TUNE_LAPS_EVEN = 2, /* every second lap of the final, from the first */
    TUNE_LAPS_ODD = 4,  /* the others of the final */
    TUNE_LAPS_ALL = 7
};

/* Whether a configuration has enough laps of the final with a mask, beside the baseline: three, of
 * both halves. */
bool tune_race_has_final(const struct tune_record *record, int32_t mask, int32_t configuration);
/* The median gain of a configuration with a mask in some laps, an or of enum tune_laps. count 0:
 * there is none. */
struct tune_median tune_race_gain(const struct tune_record *record, int32_t mask,
                                  int32_t configuration, unsigned laps);

#endif
