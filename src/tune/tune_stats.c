/* SPDX-License-Identifier: Apache-2.0 */
#include "tune/tune_stats.h"

#include <math.h>

/* Of a normal distribution, the standard deviation is so many times the median deviation, and the
 * median's standard error so many times that of the mean. */
static const double DEVIATION = 1.4826, MEDIAN_ERROR = 1.2533;

/* Of a median of `count` values: two standard errors. */
static double noise_from(double median_deviation, int32_t count)
{
    return 2 * DEVIATION * MEDIAN_ERROR * median_deviation / sqrt(count);
}

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
    struct tune_median out = { .count = count };

    if (!count)
        return out;
    qsort(values, (size_t)count, sizeof *values, by_value);
    out.value = middle(values, count);
    for (int32_t i = 0; i < count; i++)
        values[i] = fabs(values[i] - out.value);
    qsort(values, (size_t)count, sizeof *values, by_value);
    out.noise = noise_from(middle(values, count), count);
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

int32_t tune_gains(const struct tune_record *record, int32_t mask, int32_t configuration,
                   int32_t lap_end, struct tune_gain *gains)
{
    int32_t count = 0;

    for (int64_t i = 0; i < record->sample_count && record->samples[i].lap < lap_end; i++) {
        const struct tune_sample *own = &record->samples[i], *other;

        if (own->mask != mask || own->configuration != configuration)
            continue;
        other = tune_baseline_of(record, own);
        if (other)
            gains[count++] = (struct tune_gain){ own->lap, other->us / own->us - 1 };
    }
    return count;
}

struct tune_median tune_median_gain(const struct tune_record *record, int32_t mask,
                                    int32_t configuration, int32_t lap_end)
{
    struct tune_gain gains[TUNE_LAPS_MAX];
    double values[TUNE_LAPS_MAX];
    const int32_t count = tune_gains(record, mask, configuration, lap_end, gains);

    for (int32_t i = 0; i < count; i++)
        values[i] = gains[i].value;
    return tune_median_of(values, count);
}

double tune_noise_of(double *differences, int32_t difference_count, int32_t count)
{
    if (!difference_count || !count)
        return 0;
    for (int32_t i = 0; i < difference_count; i++)
        differences[i] = fabs(differences[i]) / sqrt(2);
    qsort(differences, (size_t)difference_count, sizeof *differences, by_value);
    return noise_from(middle(differences, difference_count), count);
}
