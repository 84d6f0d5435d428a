/* SPDX-License-Identifier: Apache-2.0
 *
 * Medians of a session's samples, and how far they may be off. Thread: any.
 */
#ifndef FFA_TUNE_TUNE_STATS_H
#define FFA_TUNE_TUNE_STATS_H

#include "cache/tune_store.h"

struct tune_median {
    double value; /* 0: there is no sample */
    double noise; /* twice its standard error, estimated from the median deviation */
    int32_t count;
};

/* Of values [count], which are sorted. */
struct tune_median tune_median_of(double *values, int32_t count);
/* us of a configuration with a mask. */
struct tune_median tune_median_us(const struct tune_record *record, int32_t mask,
                                  int32_t configuration);
/* The sample of the baseline that one is compared with: of its lap and mask, and taken by the same
 * process, as what the device is like changes from one to the next. NULL: there is none. */
const struct tune_sample *tune_baseline_of(const struct tune_record *record,
                                           const struct tune_sample *sample);
/* The share by which a configuration is faster than the baseline in a lap: time of that / its own
 * - 1, so that a drift of the clock cancels out. */
struct tune_gain {
    int32_t lap;
    double value;
};
/* Of the laps below lap_end that have both, in their order. gains [TUNE_LAPS_MAX]: receives them.
 * Returns how many. */
int32_t tune_gains(const struct tune_record *record, int32_t mask, int32_t configuration,
                   int32_t lap_end, struct tune_gain *gains);
/* The median of these. */
struct tune_median tune_median_gain(const struct tune_record *record, int32_t mask,
                                    int32_t configuration, int32_t lap_end);

/* Two standard errors of the median of `count` values, from the differences of values that follow
 * one another in time, of any number of series [difference_count], which are sorted. */
double tune_noise_of(double *differences, int32_t difference_count, int32_t count);

#endif
