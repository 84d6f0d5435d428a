/* SPDX-License-Identifier: Apache-2.0 */
#include "tune/tune_stats.h"

#include <math.h>

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double middle(const double *sorted, int32_t count)
{
    return (sorted[(count - 1) / 2] + sorted[count / 2]) / 2;
}

struct tune_median tune_median_of(double *values, int32_t count)
{
    /* Of a normal distribution, the standard deviation is 1.4826 times the median deviation, and
     * the median's standard error 1.2533 times that of the mean. */
    const double two_errors = 2 * 1.4826 * 1.2533;
    struct tune_median out = { .count = count };

    if (!count)
        return out;
    qsort(values, (size_t)count, sizeof *values, by_value);
    out.value = middle(values, count);
    for (int32_t i = 0; i < count; i++)
        values[i] = fabs(values[i] - out.value);
    qsort(values, (size_t)count, sizeof *values, by_value);
    out.noise = two_errors * middle(values, count) / sqrt(count);
    return out;
}

struct tune_median tune_median_us(const struct tune_record *record, int32_t mask,
                                  int32_t configuration)
{
    double values[TUNE_LAPS_MAX];
    int32_t count = 0;

    for (int64_t i = 0; i < record->sample_count; i++)
        if (record->samples[i].mask == mask && record->samples[i].configuration == configuration)
            values[count++] = record->samples[i].us;
    return tune_median_of(values, count);
}

const struct tune_sample *tune_baseline_of(const struct tune_record *record,
                                           const struct tune_sample *sample)
{
    const struct tune_sample *found = tune_record_find(record, sample->lap, sample->mask, 0);

    return found && found->process == sample->process ? found : NULL;
}

struct tune_median tune_median_gain(const struct tune_record *record, int32_t mask,
                                    int32_t configuration, int32_t lap_end)
{
    double values[TUNE_LAPS_MAX];
    int32_t count = 0;

    for (int64_t i = 0; i < record->sample_count && record->samples[i].lap < lap_end; i++) {
        const struct tune_sample *own = &record->samples[i], *other;

        if (own->mask != mask || own->configuration != configuration)
            continue;
        other = tune_baseline_of(record, own);
        if (other)
            values[count++] = other->us / own->us - 1;
    }
    return tune_median_of(values, count);
}
