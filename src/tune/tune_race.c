/* SPDX-License-Identifier: Apache-2.0
 *
 * A field is found by going through the heats from the first one, each with the samples of its laps
 * and those before. Where half of the budget is spent, in a backward session, whose first heat is
 * the longest, two thirds, heats end, and the final begins with the best so far; the final takes
 * laps until the budget is spent.
 */
#include "tune/tune_race.h"

#include <math.h>

enum { HEAT_LAPS = 2, HEAT_MASKS = 3, HEATS_MAX = 8, FINAL_FIELD = 6 /* besides the baseline */ };

/* ---- forward sessions: one field for all masks ---- */

static int32_t masks_of(const struct tune_record *record, int32_t heat)
{
    return min32(record->mask_count, HEAT_MASKS << heat);
}

/* All that may race, the baseline first. */
static int32_t all_of(const struct tune_record *record, int32_t field[TUNE_CONFIGURATIONS_MAX])
{
    int32_t count = 0;

    for (int32_t i = 0; i < record->configuration_count; i++)
        if (i == 0 || record->configurations[i].state == TUNE_CHECKED)
            field[count++] = i;
    return count;
}

/* How a configuration does beside the baseline, the mean over the masks of the logarithm of its
 * time; +infinity where one of them was not run. */
static double score_of(const struct tune_record *record, int32_t configuration, int32_t masks,
                       int32_t lap_end)
{
    double sum = 0;

    for (int32_t m = 0; m < masks; m++) {
        const struct tune_median gain = tune_median_gain(record, m, configuration, lap_end);

        if (!gain.count)
            return HUGE_VAL;
        sum -= log(1 + gain.value);
    }
    return sum / max32(1, masks);
}

/* Mark who is the fastest on one of the masks. */
static void mark_fastest(const struct tune_record *record, const int32_t *field, int32_t count,
                         int32_t masks, int32_t lap_end, bool *is_kept)
{
    for (int32_t m = 0; m < masks; m++) {
        double best_gain = 0;
        int32_t best = -1;

        for (int32_t i = 1; i < count; i++) {
            const struct tune_median gain = tune_median_gain(record, m, field[i], lap_end);

            if (gain.count && (best < 0 || gain.value > best_gain)) {
                best_gain = gain.value;
                best = i;
            }
        }
        if (best >= 0)
            is_kept[best] = true;
    }
}

/* Keep the best `most`, and who is the fastest on a mask, in the order that they have. */
static int32_t halve(const struct tune_record *record, int32_t *field, int32_t count, int32_t most,
                     int32_t masks, int32_t lap_end)
{
    double scores[TUNE_CONFIGURATIONS_MAX];
    bool is_kept[TUNE_CONFIGURATIONS_MAX] = { true }; /* the baseline */
    int32_t kept = 0;

    for (int32_t i = 1; i < count; i++)
        scores[i] = score_of(record, field[i], masks, lap_end);
    for (int32_t n = 0; n < most; n++) {
        int32_t best = 0;

        for (int32_t i = 1; i < count; i++)
            if (!is_kept[i] && (!best || scores[i] < scores[best]))
                best = i;
        if (best)
            is_kept[best] = true;
    }
    mark_fastest(record, field, count, masks, lap_end, is_kept);
    for (int32_t i = 0; i < count; i++)
        if (is_kept[i])
            field[kept++] = field[i];
    return kept;
}

/* Whether all of the field have run in a lap with a mask, in one process. */
static bool is_whole(const struct tune_record *record, int32_t lap, int32_t mask,
                     const int32_t *field, int32_t count)
{
    const struct tune_sample *first = tune_record_find(record, lap, mask, field[0]);

    for (int32_t i = 0; i < count; i++) {
        const struct tune_sample *own = tune_record_find(record, lap, mask, field[i]);

        if (!own || own->process != first->process)
            return false;
    }
    return true;
}

/* The first of the laps and masks that is not whole; false: all are. */
static bool find_open(const struct tune_record *record, struct tune_step *step, int32_t lap_end,
                      int32_t masks)
{
    for (; step->lap < lap_end; step->lap++)
        for (step->mask = 0; step->mask < masks; step->mask++)
            if (!is_whole(record, step->lap, step->mask, step->field, step->count))
                return true;
    return false;
}

/* Go through the heats. True: *step is open in one of them; else its field is that of the final. */
static bool find_heat(const struct tune_record *record, struct tune_step *step)
{
    *step = (struct tune_step){ 0 };
    step->count = all_of(record, step->field);
    for (; step->heat < HEATS_MAX && step->count - 1 > FINAL_FIELD; step->heat++) {
        const int32_t masks = masks_of(record, step->heat);
        const int32_t lap_end = HEAT_LAPS * (step->heat + 1);

        step->lap = HEAT_LAPS * step->heat;
        if (find_open(record, step, lap_end, masks)) {
            if (record->spent_us < record->budget_us / 2)
                return true;
            step->count = halve(record, step->field, step->count, FINAL_FIELD,
                                step->heat ? masks_of(record, step->heat - 1) : masks, lap_end);
            return false;
        }
        step->count = halve(record, step->field, step->count, max32(FINAL_FIELD, step->count / 2),
                            masks, lap_end);
    }
    return false;
}

/* ---- backward sessions: a field for each mask ---- */

/* All orders that differ on a mask. */
static int32_t all_of_mask(const struct tune_record *record, int32_t mask,
                           int32_t field[TUNE_CONFIGURATIONS_MAX])
{
    const int32_t count = all_of(record, field);
    int32_t kept = 0;

    for (int32_t i = 0; i < count; i++)
        if (!record->configurations[field[i]].is_unlocked || tune_has_lockstep(record, mask))
            field[kept++] = field[i];
    return kept;
}

/* How an order does beside the baseline in the heats so far, the mean of the logarithm of its time;
 * +infinity where it has not run. */
static double score_of_order(const struct tune_record *record, int32_t configuration, int32_t mask,
                             int32_t heats)
{
    double sum = 0;
    int32_t laps = 0;

    for (int32_t lap = 0; lap < heats; lap++) {
        const struct tune_sample *own = tune_record_find(record, lap, mask, configuration);
        const struct tune_sample *other = own ? tune_baseline_of(record, own) : NULL;

        if (other) {
            sum += log(own->us / other->us);
            laps++;
        }
    }
    return laps ? sum / laps : HUGE_VAL;
}

/* Keep the best `most` of those that have run, and the baseline, in the order that they have. */
static int32_t keep_orders(const struct tune_record *record, int32_t mask, int32_t *field,
                           int32_t count, int32_t most, int32_t heats)
{
    double scores[TUNE_CONFIGURATIONS_MAX];
    int32_t kept = 1;

    for (int32_t i = 1; i < count; i++)
        scores[i] = score_of_order(record, field[i], mask, heats);
    for (int32_t i = 1; i < count; i++) {
        int32_t better = 0;

        for (int32_t k = 1; k < count; k++)
            better += scores[k] < scores[i] || (scores[k] <= scores[i] && k < i);
        if (better < most && scores[i] < HUGE_VAL)
            field[kept++] = field[i];
    }
    return kept;
}

/* The field of a mask in a heat; that of the final in heat HEATS_MAX. A heat that the budget has
 * cut short leaves the best so far. */
static int32_t field_of_heat(const struct tune_record *record, int32_t mask, int32_t heat,
                             int32_t field[TUNE_CONFIGURATIONS_MAX])
{
    int32_t count = all_of_mask(record, mask, field);

    for (int32_t at = 0; at < heat && count - 1 > FINAL_FIELD; at++) {
        const int32_t half = max32(FINAL_FIELD, count / 2);

        count = keep_orders(record, mask, field, count,
                            is_whole(record, at, mask, field, count) ? half : FINAL_FIELD, at + 1);
    }
    return count;
}

/* Go through the heats. True: *step is open in one of them. */
static bool find_order_heat(const struct tune_record *record, struct tune_step *step)
{
    *step = (struct tune_step){ 0 };
    for (; step->heat < HEATS_MAX; step->heat++)
        for (step->mask = 0; step->mask < record->mask_count; step->mask++) {
            step->lap = step->heat;
            step->count = field_of_heat(record, step->mask, step->heat, step->field);
            if (step->count - 1 > FINAL_FIELD &&
                !is_whole(record, step->lap, step->mask, step->field, step->count))
                return tune_race_goes_on(record, step);
        }
    return false;
}

static bool find_order_final(const struct tune_record *record, struct tune_step *step)
{
    step->is_final = true;
    for (step->lap = TUNE_FINAL_LAP; step->lap < TUNE_FINAL_LAP_END; step->lap++)
        for (step->mask = 0; step->mask < record->mask_count; step->mask++) {
            step->count = field_of_heat(record, step->mask, HEATS_MAX, step->field);
            if (step->count > 1 &&
                !is_whole(record, step->lap, step->mask, step->field, step->count))
                return true;
        }
    return false;
}

static int64_t orders_left(const struct tune_record *record)
{
    int64_t all = 0;

    for (int32_t m = 0; m < record->mask_count; m++) {
        int32_t field[TUNE_CONFIGURATIONS_MAX];
        int32_t count = all_of_mask(record, m, field);

        for (; count - 1 > FINAL_FIELD; count = max32(FINAL_FIELD, count / 2) + 1)
            all += count;
        if (count > 1)
            all += (int64_t)TUNE_FINAL_LAPS * count;
    }
    return max64(0, all - record->sample_count);
}

/* ---- both ---- */

/* Whether this process has no sample with the mask yet. */
static bool is_new_to_process(const struct tune_record *record, int32_t mask)
{
    for (int64_t i = record->sample_count; i-- > 0;)
        if (record->samples[i].process == record->process && record->samples[i].mask == mask)
            return false;
    return true;
}

/* keeps_first: the baseline. */
static void turn(struct tune_step *step, bool keeps_first)
{
    const struct tune_step was = *step;
    const int32_t kept = keeps_first ? 1 : 0, count = step->count - kept;

    for (int32_t i = 0; i < count; i++)
        step->field[kept + i] = was.field[kept + (i + step->lap + step->mask) % count];
}

bool tune_race_goes_on(const struct tune_record *record, const struct tune_step *step)
{
    return !tune_is_backward(record) || step->is_final ||
           record->spent_us < record->budget_us / 3 * 2;
}

bool tune_race_next(const struct tune_record *record, struct tune_step *step)
{
    bool is_open =
        tune_is_backward(record) ? find_order_heat(record, step) : find_heat(record, step);

    if (!is_open && tune_is_backward(record)) {
        is_open = find_order_final(record, step);
    } else if (!is_open) {
        step->is_final = true;
        step->lap = TUNE_FINAL_LAP;
        is_open = find_open(record, step, TUNE_FINAL_LAP_END, record->mask_count);
    }
    /* In a heat, which may be cut short, others are compared with it; and it is known to be the
     * session's before any sample of another process makes room for one of this. */
    turn(step,
         tune_is_backward(record) && (!step->is_final || is_new_to_process(record, step->mask)));
    return is_open && step->count > 1 && record->spent_us < record->budget_us;
}

/* Samples of laps from this one on. */
static int64_t count_from(const struct tune_record *record, int32_t lap)
{
    int64_t at = record->sample_count;

    while (at > 0 && record->samples[at - 1].lap >= lap)
        at--;
    return record->sample_count - at;
}

int64_t tune_race_left(const struct tune_record *record)
{
    struct tune_step step;
    int64_t left = 0;
    int32_t count, from;

    if (tune_is_backward(record))
        return orders_left(record);
    (void)find_heat(record, &step);
    count = step.count;
    from = count - 1 > FINAL_FIELD ? HEAT_LAPS * step.heat : TUNE_FINAL_LAP;
    for (int32_t heat = step.heat; heat < HEATS_MAX && count - 1 > FINAL_FIELD; heat++) {
        left += (int64_t)count * HEAT_LAPS * masks_of(record, heat);
        count = max32(FINAL_FIELD + 1, count / 2);
    }
    left += (int64_t)count * TUNE_FINAL_LAPS * record->mask_count;
    return max64(0, left - count_from(record, from));
}

static enum tune_laps laps_of(int32_t lap)
{
    if (lap < TUNE_FINAL_LAP || lap >= TUNE_FINAL_LAP_END)
        return TUNE_LAPS_HEATS;
    return (lap - TUNE_FINAL_LAP) % 2 ? TUNE_LAPS_ODD : TUNE_LAPS_EVEN;
}

bool tune_race_has_final(const struct tune_record *record, int32_t mask, int32_t configuration)
{
    unsigned kinds = 0;
    int32_t laps = 0;

    for (int32_t lap = TUNE_FINAL_LAP; lap < TUNE_FINAL_LAP_END; lap++) {
        const struct tune_sample *own = tune_record_find(record, lap, mask, configuration);

        if (!own || !tune_baseline_of(record, own))
            continue;
        kinds |= laps_of(lap);
        laps++;
    }
    return laps >= TUNE_FINAL_LAPS_MIN && kinds == (TUNE_LAPS_EVEN | TUNE_LAPS_ODD);
}

struct tune_median tune_race_gain(const struct tune_record *record, int32_t mask,
                                  int32_t configuration, unsigned laps)
{
    struct tune_gain gains[TUNE_LAPS_MAX];
    double values[TUNE_LAPS_MAX];
    const int32_t all = tune_gains(record, mask, configuration, INT32_MAX, gains);
    int32_t count = 0;

    for (int32_t i = 0; i < all; i++)
        if (laps & laps_of(gains[i].lap))
            values[count++] = gains[i].value;
    return tune_median_of(values, count);
}
