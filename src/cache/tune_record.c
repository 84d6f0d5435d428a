/* SPDX-License-Identifier: Apache-2.0
 *
 * A tuning session in memory. Samples stand in one order, whatever order they were taken in, so
 * that equal sessions are equal bytes, and one is found by halving.
 */
#include "cache/tune_store.h"

/* Sums and products of these stay far from the limits of their type. */
static const int64_t L2_BYTES_MAX = INT64_C(1) << 40, TIME_US_MAX = INT64_C(1) << 50;

const char *tune_state_text(enum tune_state state)
{
    static const char *const texts[TUNE_STATES] = { "pending", "compiled", "checked", "spilled",
                                                    "refused", "wrong",    "hung",    "died" };

    return texts[state];
}

void tune_record_finish(struct tune_record *record)
{
    mem_free(record->base_table);
    mem_free(record->masks);
    mem_free(record->configurations);
    mem_free(record->samples);
    *record = (struct tune_record){ 0 };
}

void tune_records_finish(struct tune_record *records, int32_t count)
{
    for (int32_t i = 0; records && i < count; i++)
        tune_record_finish(&records[i]);
    mem_free(records);
}

/* ---- checks ---- */

static bool is_digest(const char *text)
{
    return strlen(text) == DIGEST_TEXT - 1 && strspn(text, "0123456789abcdef") == DIGEST_TEXT - 1;
}

/* The first field that is not as sessions have it; NULL: none. */
static const char *bad_field(const struct tune_record *record)
{
    const struct {
        const char *name;
        int64_t value, min, max;
    } fields[] = {
        { "head_dim", record->head_dim, 8, 256 },
        { "head_dim_v", record->head_dim_v, 8, 256 },
        { "dtype", record->dtype, 1, 2 },
        { "heads_kv", record->heads_kv, 1, 65536 },
        { "heads_q", record->heads_q, record->heads_kv, 65536 },
        { "pack_heads", record->pack_heads, 0, TUNE_GROUP_MAX },
        { "sm_count", record->facts.sm_count, 1, TUNE_SMS_MAX },
        { "l2_bytes", record->facts.l2_bytes, 0, L2_BYTES_MAX },
        { "budget_us", record->budget_us, 0, TIME_US_MAX },
        { "spent_us", record->spent_us, 0, TIME_US_MAX },
        { "backward_tile_m", record->backward_tile_m, 0, 256 },
        { "backward_tile_n", record->backward_tile_n, 0, 256 },
        { "backward_cluster", record->backward_cluster, 0, 16 },
        { "is_deterministic", record->is_deterministic, 0, 1 },
        { "trying", record->trying, -1, record->configuration_count - 1 },
        { "mask_count", record->mask_count, 1, TUNE_MASKS_MAX },
        { "configuration_count", record->configuration_count, 1, TUNE_CONFIGURATIONS_MAX },
    };

    for (int i = 0; i < (int)(sizeof fields / sizeof *fields); i++)
        if (fields[i].value < fields[i].min || fields[i].value > fields[i].max)
            return fields[i].name;
    if (!is_digest(record->id))
        return "id";
    if (!is_digest(record->templates_digest))
        return "templates_digest";
    if (record->heads_q % record->heads_kv ||
        (record->pack_heads && record->pack_heads != record->heads_q / record->heads_kv))
        return "heads_q";
    if (tune_is_backward(record) && record->heads_q / record->heads_kv > TUNE_BACKWARD_GROUP_MAX)
        return "heads_q";
    if (tune_is_backward(record) != (record->backward_tile_n > 0) ||
        tune_is_backward(record) != (record->backward_cluster > 0))
        return "backward_tile_m";
    return record->base_table ? NULL : "base_table";
}

static bool is_tile(const struct tune_configuration *of)
{
    return of->consumers >= 1 && of->consumers <= 3 && of->tile_n % 16 == 0 && of->tile_n >= 64 &&
           of->tile_n <= 192 && !of->parts && !of->waves && !of->whole_heads && !of->is_unlocked;
}

/* Of kv heads that are not whole there are as many as a plan can remember: a power of two. */
static bool is_order(const struct tune_configuration *of, const struct tune_record *record)
{
    int32_t divided;

    if (of->whole_heads < 0 || of->whole_heads >= record->heads_kv || of->parts < 1)
        return false;
    divided = record->heads_kv - of->whole_heads;
    if (of->whole_heads && (of->parts == 1 || (divided & (divided - 1))))
        return false;
    return !of->consumers && !of->tile_n && record->heads_q / record->heads_kv % of->parts == 0 &&
           of->waves >= 1 && of->waves <= TUNE_WAVES_MAX &&
           (unsigned)of->is_unlocked <= (record->is_deterministic ? 0u : 1u);
}

/* Of a backward session one of its orders, or not known. */
static bool is_known_baseline(const struct tune_record *record, int32_t mask)
{
    const struct tune_baseline *of = &record->baselines[mask];
    const struct tune_configuration order = { .parts = of->parts,
                                              .waves = of->waves,
                                              .whole_heads = of->whole_heads };

    if (!of->parts)
        return !of->waves && !of->whole_heads;
    return tune_is_backward(record) && is_order(&order, record);
}

/* As sessions of its pass have it; the first one is the baseline, and no other. */
static bool is_configuration(const struct tune_record *record, int32_t index)
{
    const struct tune_configuration *of = &record->configurations[index];

    if ((unsigned)of->state >= TUNE_STATES)
        return false;
    if (index == 0)
        return tune_is_baseline(of) && !of->tile_n && !of->waves && !of->whole_heads &&
               !of->is_unlocked;
    return tune_is_backward(record) ? is_order(of, record) : is_tile(of);
}

ffa_status tune_record_check(const struct tune_record *record, ffa_error *err)
{
    const char *bad = bad_field(record);

    for (int32_t i = 0; !bad && i < record->mask_count; i++)
        if (!record->masks[i][0] || strchr(record->masks[i], '@')) /* it would name a file */
            bad = "masks";
        else if (!is_known_baseline(record, i))
            bad = "baselines";
    for (int32_t i = 0; !bad && i < record->configuration_count; i++)
        if (!is_configuration(record, i))
            bad = "configurations";
    for (int64_t i = 0; !bad && i < record->sample_count; i++) {
        const struct tune_sample *of = &record->samples[i];

        if (of->lap < 0 || of->lap >= TUNE_LAPS_MAX || of->mask < 0 ||
            of->mask >= record->mask_count || of->configuration < 0 ||
            of->configuration >= record->configuration_count || of->process < 0 ||
            of->process >= TUNE_PROCESSES_MAX || !(of->us > 0 && of->us < 1e12))
            bad = "samples";
    }
    if (!bad)
        return FFA_OK;
    return error_fail(err, FFA_CACHE, 0, "tune: session %.32s: %s has a value that no session has",
                      record->id, bad);
}

static int compare(const struct tune_sample *a, int32_t lap, int32_t mask, int32_t configuration)
{
    if (a->lap != lap)
        return a->lap < lap ? -1 : 1;
    if (a->mask != mask)
        return a->mask < mask ? -1 : 1;
    return (a->configuration > configuration) - (a->configuration < configuration);
}

/* The first sample that is not before this one. */
static int64_t find(const struct tune_record *record, int32_t lap, int32_t mask,
                    int32_t configuration)
{
    int64_t low = 0, high = record->sample_count;

    while (low < high) {
        const int64_t middle = low + (high - low) / 2;

        if (compare(&record->samples[middle], lap, mask, configuration) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool is_at(const struct tune_record *record, int64_t at, int32_t lap, int32_t mask,
                  int32_t configuration)
{
    return at < record->sample_count &&
           compare(&record->samples[at], lap, mask, configuration) == 0;
}

const struct tune_sample *tune_record_find(const struct tune_record *record, int32_t lap,
                                           int32_t mask, int32_t configuration)
{
    const int64_t at = find(record, lap, mask, configuration);

    return is_at(record, at, lap, mask, configuration) ? &record->samples[at] : NULL;
}

bool tune_record_add(struct tune_record *record, const struct tune_sample *sample)
{
    const int64_t at = find(record, sample->lap, sample->mask, sample->configuration);

    if (is_at(record, at, sample->lap, sample->mask, sample->configuration)) {
        record->samples[at] = *sample;
        return true;
    }
    if (!mem_grow((void **)&record->samples, &record->sample_capacity, record->sample_count + 1,
                  sizeof *record->samples))
        return false;
    memmove(&record->samples[at + 1], &record->samples[at],
            (size_t)(record->sample_count - at) * sizeof *record->samples);
    record->samples[at] = *sample;
    record->sample_count++;
    return true;
}
