/* SPDX-License-Identifier: Apache-2.0
 *
 * The fields of a session, of a configuration and of a sample are lists, which writing and reading
 * go through, so that what is written reads back.
 */
#include "tune/tune_report.h"

#include "base/printable.h"
#include "choose/cost_table_json.h"
#include "tune/tune_stats.h"

#include <jansson.h>
#include <math.h>

static const char FORMAT[] = "libffa-tuning-sessions";
enum { VERSION = 4, SAMPLE_FIELDS = 10 };

/* ---- fields ---- */

enum kind { KIND_INT32, KIND_INT64, KIND_TEXT };

struct field {
    const char *name;
    enum kind kind;
    size_t offset, bytes;
};
#define FIELD(type, member, kind)                                                                  \
    {                                                                                              \
#member, kind, offsetof(type, member), sizeof(((type *)NULL)->member)                      \
    }
#define FACT(name, member, kind)                                                                   \
    {                                                                                              \
        name, kind, offsetof(struct tune_record, facts.member),                                    \
            sizeof(((struct tune_record *)NULL)->facts.member)                                     \
    }
#define COUNT(array) (sizeof(array) / sizeof *(array))

static const struct field session_fields[] = {
    FIELD(struct tune_record, id, KIND_TEXT),
    FIELD(struct tune_record, head_dim, KIND_INT32),
    FIELD(struct tune_record, head_dim_v, KIND_INT32),
    FIELD(struct tune_record, dtype, KIND_INT32),
    FIELD(struct tune_record, heads_q, KIND_INT32),
    FIELD(struct tune_record, heads_kv, KIND_INT32),
    FIELD(struct tune_record, pack_heads, KIND_INT32),
    FIELD(struct tune_record, arch, KIND_TEXT),
    FIELD(struct tune_record, backward_tile_m, KIND_INT32),
    FIELD(struct tune_record, backward_tile_n, KIND_INT32),
    FIELD(struct tune_record, backward_cluster, KIND_INT32),
    FIELD(struct tune_record, is_deterministic, KIND_INT32),
    FIELD(struct tune_record, lockstep_masks, KIND_INT64),
    FACT("device", name, KIND_TEXT),
    FACT("sm_count", sm_count, KIND_INT32),
    FACT("shared_bytes_block", shared_bytes_block, KIND_INT32),
    FACT("l2_bytes", l2_bytes, KIND_INT64),
    FIELD(struct tune_record, memory_bytes, KIND_INT64),
    FIELD(struct tune_record, power_limit_w, KIND_INT32),
    FIELD(struct tune_record, clock_max_mhz, KIND_INT32),
    FIELD(struct tune_record, driver, KIND_TEXT),
    FIELD(struct tune_record, templates_digest, KIND_TEXT),
    FIELD(struct tune_record, library_version, KIND_TEXT),
    FIELD(struct tune_record, budget_us, KIND_INT64),
    FIELD(struct tune_record, spent_us, KIND_INT64),
    FIELD(struct tune_record, started_s, KIND_INT64),
    FIELD(struct tune_record, ended_s, KIND_INT64),
    FIELD(struct tune_record, trying, KIND_INT32),
};

static const struct field configuration_fields[] = {
    FIELD(struct tune_configuration, consumers, KIND_INT32),
    FIELD(struct tune_configuration, tile_n, KIND_INT32),
    FIELD(struct tune_configuration, parts, KIND_INT32),
    FIELD(struct tune_configuration, waves, KIND_INT32),
    FIELD(struct tune_configuration, whole_heads, KIND_INT32),
    FIELD(struct tune_configuration, is_unlocked, KIND_INT32),
    FIELD(struct tune_configuration, kv_slots, KIND_INT32),
    FIELD(struct tune_configuration, registers, KIND_INT32),
    FIELD(struct tune_configuration, shared_bytes, KIND_INT32),
    FIELD(struct tune_configuration, spill_bytes, KIND_INT32),
    FIELD(struct tune_configuration, tries, KIND_INT32),
    FIELD(struct tune_configuration, key, KIND_TEXT),
    FIELD(struct tune_configuration, reason, KIND_TEXT),
};

/* ---- writing ---- */

/* Of at most `bytes` with its end: what is printable may be longer, and is to read back. */
static json_t *text_of(const char *text, size_t bytes)
{
    char shown[512];

    text_printable(shown, bytes < sizeof shown ? bytes : sizeof shown, text, "");
    return json_string(shown);
}

static void set_text(json_t *object, const char *name, const char *text)
{
    (void)json_object_set_new(object, name, text_of(text, SIZE_MAX));
}

static void set_int(json_t *object, const char *name, int64_t value)
{
    (void)json_object_set_new(object, name, json_integer(value));
}

/* Rounded: what is measured has no more digits. */
static void set_real(json_t *object, const char *name, double value, double digits)
{
    (void)json_object_set_new(
        object, name, isfinite(value) ? json_real(round(value * digits) / digits) : json_null());
}

static void set_fields(json_t *object, const struct field *fields, size_t count, const void *from)
{
    for (size_t i = 0; i < count; i++) {
        const char *at = (const char *)from + fields[i].offset;
        int32_t number;
        int64_t large;

        if (fields[i].kind == KIND_TEXT) {
            (void)json_object_set_new(object, fields[i].name, text_of(at, fields[i].bytes));
        } else if (fields[i].kind == KIND_INT32) {
            memcpy(&number, at, sizeof number);
            set_int(object, fields[i].name, number);
        } else {
            memcpy(&large, at, sizeof large);
            set_int(object, fields[i].name, large);
        }
    }
}

static json_t *configurations_of(const struct tune_record *record)
{
    json_t *list = json_array();

    for (int32_t i = 0; i < record->configuration_count; i++) {
        const struct tune_configuration *of = &record->configurations[i];
        json_t *object = json_object();

        set_fields(object, configuration_fields, COUNT(configuration_fields), of);
        set_text(object, "state", tune_state_text(of->state));
        (void)json_array_append_new(list, object);
    }
    return list;
}

static json_t *masks_of(const struct tune_record *record)
{
    json_t *list = json_array();

    for (int32_t i = 0; i < record->mask_count; i++)
        (void)json_array_append_new(list, text_of(record->masks[i], TUNE_MASK_BYTES));
    return list;
}

/* Takes the reference. */
static ffa_status take_text(json_t *object, char **json, ffa_error *err)
{
    *json = object ? json_dumps(object, JSON_INDENT(1)) : NULL;
    json_decref(object);
    return *json ? FFA_OK : error_nomem(err, "a report");
}

/* A session without its samples. */
static json_t *session_of(const struct tune_record *record)
{
    json_t *object = json_object();

    set_fields(object, session_fields, COUNT(session_fields), record);
    (void)json_object_set_new(object, "masks", masks_of(record));
    (void)json_object_set_new(object, "configurations", configurations_of(record));
    return object;
}

static json_t *preview_of(const struct tune_record *record, int64_t samples)
{
    json_t *object = session_of(record);

    (void)json_object_del(object, "id");
    (void)json_object_del(object, "trying");
    set_int(object, "samples", samples);
    return object;
}

ffa_status tune_preview_text(const struct tune_record *records, const int64_t *samples, int count,
                             char **json, ffa_error *err)
{
    json_t *object = preview_of(&records[0], samples[0]);

    if (count > 1)
        (void)json_object_set_new(object, "backward", preview_of(&records[1], samples[1]));
    return take_text(object, json, err);
}

/* Add a value on one line, or as it is indented; takes the reference. */
static void add_dumped(struct text *text, json_t *value, size_t flags, size_t without)
{
    char *dumped = value ? json_dumps(value, flags) : NULL;

    json_decref(value);
    if (dumped)
        text_add_bytes(text, dumped, strlen(dumped) - without);
    else
        text->failed = true;
    free(dumped);
}

/* Of a backward session: parts, waves and whole_heads of the baseline with each mask. */
static json_t *baselines_of(const struct tune_record *record)
{
    json_t *list = json_array();

    for (int32_t i = 0; i < record->mask_count; i++) {
        const struct tune_baseline *of = &record->baselines[i];

        (void)json_array_append_new(list,
                                    json_pack("[i,i,i]", of->parts, of->waves, of->whole_heads));
    }
    return list;
}

/* A line a sample: there are many. */
static void add_samples(struct text *text, const struct tune_record *record)
{
    text_add(text, ",\n \"samples\": [");
    for (int64_t i = 0; i < record->sample_count; i++) {
        const struct tune_sample *of = &record->samples[i];

        text_add(text, "%s\n  ", i ? "," : "");
        add_dumped(text,
                   json_pack("[i,i,i,i,i,f,i,i,i,i]", of->lap, of->mask, of->configuration,
                             of->place, of->calls, of->us, of->clock_mhz, of->power_w,
                             of->temperature_c, of->process),
                   0, 0);
    }
    text_add(text, "\n ]\n}");
}

ffa_status tune_samples_text(const struct tune_record *records, int32_t count, char **json,
                             ffa_error *err)
{
    const size_t end = sizeof "\n}" - 1; /* of an object */
    struct text text = { 0 };

    text_add(&text,
             "{\"format\": \"%s\", \"version\": %d,\n\"sample\": [\"lap\", \"mask\", "
             "\"configuration\", \"place\", \"calls\", \"us\", \"clock_mhz\", \"power_w\", "
             "\"temperature_c\", \"process\"],\n\"sessions\": [",
             FORMAT, VERSION);
    for (int32_t i = 0; i < count; i++) {
        json_t *session = session_of(&records[i]);

        (void)json_object_set_new(session, "base_table",
                                  json_loads(records[i].base_table, 0, NULL));
        if (tune_is_backward(&records[i]))
            (void)json_object_set_new(session, "baselines", baselines_of(&records[i]));
        text_add(&text, "%s\n", i ? "," : "");
        add_dumped(&text, session, JSON_INDENT(1), end);
        add_samples(&text, &records[i]);
    }
    text_add(&text, "\n]}\n");
    *json = text_take(&text);
    text_finish(&text);
    return *json ? FFA_OK : error_nomem(err, "a text of sessions");
}

/* ---- the report ---- */

static json_t *kernel_of(const struct tune_kernel *of)
{
    json_t *object = json_object();

    set_int(object, "tile_m", 64 * of->consumers);
    set_int(object, "tile_n", of->tile_n);
    set_int(object, "rank", of->rank);
    set_real(object, "begin", of->cost.begin, 1e3);
    set_real(object, "key", of->cost.key, 1e3);
    set_real(object, "residual", of->residual, 1e4);
    set_real(object, "relative", of->relative, 1e4);
    return object;
}

static json_t *case_of(const struct tune_group *group, const struct tune_case *of)
{
    json_t *object = json_object();

    set_text(object, "mask", of->mask);
    set_text(object, "dtype", of->dtype == 1 ? "bf16" : "fp16");
    set_int(object, "heads_q", of->heads_q);
    set_int(object, "heads_kv", of->heads_kv);
    set_int(object, "samples", of->samples);
    set_real(object, "baseline_us", of->baseline_us, 1e2);
    if (of->chosen >= 0) {
        set_real(object, "chosen_us", of->chosen_us, 1e2);
        set_int(object, "tile_m", 64 * group->kernels[of->chosen].consumers);
        set_int(object, "tile_n", group->kernels[of->chosen].tile_n);
        set_real(object, "gain", of->gain, 1e4);
        set_real(object, "noise", of->noise, 1e4);
    }
    return object;
}

static json_t *fit_of(const struct tune_group *of)
{
    json_t *object = json_object(), *cases = json_array(), *kernels = json_array();

    set_int(object, "head_dim", of->head_dim);
    set_int(object, "head_dim_v", of->head_dim_v);
    (void)json_object_set_new(object, "packed", json_boolean(of->is_packed));
    set_int(object, "sessions", of->session_count);
    (void)json_object_set_new(object, "published", json_boolean(of->is_published));
    set_text(object, "reason", of->reason);
    set_real(object, "gain", of->gain, 1e4);
    set_real(object, "noise", of->noise, 1e4);
    for (int32_t i = 0; i < of->case_count; i++)
        (void)json_array_append_new(cases, case_of(of, &of->cases[i]));
    for (int32_t i = 0; i < of->kernel_count; i++)
        (void)json_array_append_new(kernels, kernel_of(&of->kernels[i]));
    (void)json_object_set_new(object, "masks", cases);
    (void)json_object_set_new(object, "kernels", kernels);
    return object;
}

/* What each configuration took, whether or not anything was fitted. */
static json_t *times_of(const struct tune_record *record)
{
    json_t *list = json_array();

    for (int32_t k = 0; k < record->configuration_count; k++)
        for (int32_t m = 0; m < record->mask_count; m++) {
            const struct tune_median us = tune_median_us(record, m, k);
            const struct tune_median gain = tune_median_gain(record, m, k, INT32_MAX);
            json_t *object;

            if (!us.count)
                continue;
            object = json_object();
            set_int(object, "configuration", k);
            set_int(object, "mask", m);
            set_int(object, "samples", us.count);
            set_real(object, "us", us.value, 1e2);
            set_real(object, "gain", gain.value, 1e4);
            set_real(object, "noise", gain.noise, 1e4);
            (void)json_array_append_new(list, object);
        }
    return list;
}

static json_t *order_of(const struct backward_order *of, bool is_unlocked)
{
    json_t *object = json_object();

    set_int(object, "parts", of->parts);
    set_int(object, "waves", of->waves);
    set_int(object, "whole_heads", of->whole_heads);
    (void)json_object_set_new(object, "unlocked", json_boolean(is_unlocked));
    return object;
}

static json_t *order_time_of(const struct tune_order_time *of)
{
    json_t *object = order_of(&of->order.of, of->order.is_unlocked);

    (void)json_object_set_new(object, "final", json_boolean(of->is_final));
    set_real(object, "us", of->us, 1e2);
    set_real(object, "gain", of->gain, 1e4);
    set_real(object, "noise", of->noise, 1e4);
    return object;
}

static json_t *order_case_of(const struct tune_order_case *of)
{
    json_t *object = json_object(), *times = json_array();

    set_text(object, "mask", of->mask);
    set_int(object, "head_dim", of->head_dim);
    set_int(object, "head_dim_v", of->head_dim_v);
    set_text(object, "dtype", of->dtype == 1 ? "bf16" : "fp16");
    set_int(object, "heads_q", of->heads_q);
    set_int(object, "heads_kv", of->heads_kv);
    (void)json_object_set_new(object, "deterministic", json_boolean(of->is_deterministic));
    set_int(object, "samples", of->samples);
    set_real(object, "baseline_us", of->baseline_us, 1e2);
    (void)json_object_set_new(object, "chosen", order_of(&of->chosen, of->is_unlocked));
    (void)json_object_set_new(object, "fitted", order_of(&of->fitted, of->is_unlocked));
    set_real(object, "fitted_us", of->fitted_us, 1e2);
    set_real(object, "gain", of->fitted_gain, 1e4);
    set_real(object, "noise", of->fitted_noise, 1e4);
    for (int32_t i = 0; i < of->time_count; i++)
        (void)json_array_append_new(times, order_time_of(&of->times[i]));
    (void)json_object_set_new(object, "times", times);
    return object;
}

/* Those that were found to be others than before. */
static json_t *constants_of(const struct tune_orders *of)
{
    const struct tune_order_constant *constant;
    json_t *list = json_array();

    for (int32_t i = 0; (constant = tune_order_constant_at(i)) != NULL; i++) {
        const double before = tune_order_constant(&of->before, i);
        const double after = tune_order_constant(&of->costs, i);
        json_t *object;

        if (before >= after && before <= after)
            continue;
        object = json_object();
        set_text(object, "name", constant->name);
        (void)json_object_set_new(object, "before", json_real(before));
        (void)json_object_set_new(object, "after", json_real(after));
        (void)json_array_append_new(list, object);
    }
    return list;
}

static json_t *orders_of(const struct tune_orders *of)
{
    json_t *object = json_object(), *cases = json_array();

    set_int(object, "sessions", of->session_count);
    (void)json_object_set_new(object, "published", json_boolean(of->is_published));
    set_text(object, "reason", of->reason);
    set_real(object, "best_gain", of->best_gain, 1e4);
    set_real(object, "gain", of->gain, 1e4);
    set_real(object, "noise", of->noise, 1e4);
    (void)json_object_set_new(object, "constants", constants_of(of));
    for (int32_t c = 0; c < of->case_count; c++)
        (void)json_array_append_new(cases, order_case_of(&of->cases[c]));
    (void)json_object_set_new(object, "masks", cases);
    return object;
}

ffa_status tune_report_text(const struct tune_fit *fit, const struct tune_record *records,
                            int32_t count, char **json, ffa_error *err)
{
    json_t *root = json_object(), *sessions = json_array(), *fits = json_array();

    for (int32_t i = 0; i < count; i++) {
        json_t *session = session_of(&records[i]);

        set_int(session, "samples", records[i].sample_count);
        (void)json_object_set_new(session, "times", times_of(&records[i]));
        (void)json_array_append_new(sessions, session);
    }
    for (int32_t i = 0; i < fit->group_count; i++)
        (void)json_array_append_new(fits, fit_of(&fit->groups[i]));
    (void)json_object_set_new(root, "sessions", sessions);
    (void)json_object_set_new(root, "fits", fits);
    if (fit->orders.session_count)
        (void)json_object_set_new(root, "orders", orders_of(&fit->orders));
    return take_text(root, json, err);
}

/* ---- reading ---- */

static ffa_status fail(ffa_error *err, const char *name, const char *wanted)
{
    return error_fail(err, FFA_INVALID, 0, "tuning sessions: %s is missing, or not %s", name,
                      wanted);
}

static ffa_status read_field(void *to, const struct field *field, const json_t *object,
                             ffa_error *err)
{
    const json_t *value = json_object_get(object, field->name);
    char *at = (char *)to + field->offset;
    int64_t number;
    int32_t small;

    if (field->kind == KIND_TEXT) {
        if (!json_is_string(value) || json_string_length(value) >= field->bytes)
            return fail(err, field->name, "a text that sessions have");
        memcpy(at, json_string_value(value), json_string_length(value) + 1);
        return FFA_OK;
    }
    number = json_integer_value(value);
    if (!json_is_integer(value) ||
        (field->kind == KIND_INT32 && (number < INT32_MIN || number > INT32_MAX)))
        return fail(err, field->name, "a whole number that sessions have");
    small = (int32_t)number;
    if (field->kind == KIND_INT32)
        memcpy(at, &small, sizeof small);
    else
        memcpy(at, &number, sizeof number);
    return FFA_OK;
}

static ffa_status read_fields(void *to, const struct field *fields, size_t count,
                              const json_t *object, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    for (size_t i = 0; i < count && rc == FFA_OK; i++)
        rc = read_field(to, &fields[i], object, err);
    return rc;
}

static ffa_status read_state(struct tune_configuration *to, const json_t *object, ffa_error *err)
{
    const char *text = json_string_value(json_object_get(object, "state"));

    for (int i = 0; text && i < TUNE_STATES; i++)
        if (!strcmp(text, tune_state_text((enum tune_state)i))) {
            to->state = (enum tune_state)i;
            return FFA_OK;
        }
    return fail(err, "state", "a word such as 'checked'");
}

static ffa_status read_lists(struct tune_record *to, const json_t *object, ffa_error *err)
{
    const json_t *masks = json_object_get(object, "masks");
    const json_t *configurations = json_object_get(object, "configurations");
    ffa_status rc = FFA_OK;

    _Static_assert(TUNE_MASKS_MAX == 64 && TUNE_CONFIGURATIONS_MAX == 128, "the messages say so");
    if (!json_is_array(masks) || json_array_size(masks) > TUNE_MASKS_MAX)
        return fail(err, "masks", "a list of at most 64");
    if (!json_is_array(configurations) || json_array_size(configurations) > TUNE_CONFIGURATIONS_MAX)
        return fail(err, "configurations", "a list of at most 128");
    to->masks = mem_array(TUNE_MASKS_MAX, sizeof *to->masks);
    to->configurations = mem_array(TUNE_CONFIGURATIONS_MAX, sizeof *to->configurations);
    if (!to->masks || !to->configurations)
        return error_nomem(err, "a session");
    for (size_t i = 0; i < json_array_size(masks); i++) {
        const json_t *text = json_array_get(masks, i);

        if (!json_is_string(text) || json_string_length(text) >= TUNE_MASK_BYTES)
            return fail(err, "masks", "a list of texts");
        memcpy(to->masks[to->mask_count++], json_string_value(text), json_string_length(text) + 1);
    }
    for (size_t i = 0; i < json_array_size(configurations); i++) {
        const json_t *one = json_array_get(configurations, i);
        struct tune_configuration *at = &to->configurations[to->configuration_count++];

        FFA_TRY(read_fields(at, configuration_fields, COUNT(configuration_fields), one, err));
        FFA_TRY(read_state(at, one, err));
    }
out:
    return rc;
}

static ffa_status read_baselines(struct tune_record *to, const json_t *list, ffa_error *err)
{
    if (json_array_size(list) != (size_t)to->mask_count)
        return fail(err, "baselines", "a list of an order for each mask");
    for (int32_t i = 0; i < to->mask_count; i++) {
        const json_t *one = json_array_get(list, (size_t)i);
        int32_t numbers[3];

        for (size_t n = 0; n < COUNT(numbers); n++) {
            const json_t *value = json_array_get(one, n);
            const json_int_t number = json_integer_value(value);

            if (!json_is_integer(value) || number < 0 || number > INT32_MAX)
                return fail(err, "baselines", "a list of lists of three whole numbers");
            numbers[n] = (int32_t)number;
        }
        to->baselines[i] = (struct tune_baseline){ numbers[0], numbers[1], numbers[2] };
    }
    return FFA_OK;
}

static ffa_status read_sample(struct tune_record *to, json_t *list, json_int_t version,
                              ffa_error *err)
{
    static const char what[] = "a list of lists of ten numbers, up to version 3 of nine";
    const size_t count = version < 4 ? SAMPLE_FIELDS - 1 : SAMPLE_FIELDS; /* no process */
    int64_t numbers[SAMPLE_FIELDS] = { 0 };
    struct tune_sample sample;
    enum { US = 5 };

    if (!json_is_array(list) || json_array_size(list) != count ||
        !json_is_number(json_array_get(list, US)))
        return fail(err, "samples", what);
    for (size_t i = 0; i < count; i++) {
        const json_t *value = json_array_get(list, i);

        numbers[i] = json_integer_value(value);
        if (i != US && (!json_is_integer(value) || numbers[i] < 0 || numbers[i] > INT32_MAX))
            return fail(err, "samples", what);
    }
    sample = (struct tune_sample){ .lap = (int32_t)numbers[0],
                                   .mask = (int32_t)numbers[1],
                                   .configuration = (int32_t)numbers[2],
                                   .place = (int32_t)numbers[3],
                                   .calls = (int32_t)numbers[4],
                                   .us = json_number_value(json_array_get(list, US)),
                                   .clock_mhz = (int32_t)numbers[6],
                                   .power_w = (int32_t)numbers[7],
                                   .temperature_c = (int32_t)numbers[8],
                                   .process = (int32_t)numbers[9] };
    if (tune_record_find(to, sample.lap, sample.mask, sample.configuration))
        return fail(err, "samples", "a list that has each lap, mask and configuration once");
    return tune_record_add(to, &sample) ? FFA_OK : error_nomem(err, "a sample");
}

/* What an older version does not have: of version 1, head_dim_v was head_dim; up to version 2 all
 * sessions were forward ones. Up to version 3 nobody noted which process took a sample, and all
 * count as of one, nor the order of the baseline, which is not known. */
static void fill_in(json_t *session, json_int_t version)
{
    static const char *const of_session[] = { "backward_tile_m", "backward_tile_n",
                                              "backward_cluster", "is_deterministic",
                                              "lockstep_masks" };
    static const char *const of_configuration[] = { "parts", "waves", "whole_heads",
                                                    "is_unlocked" };
    json_t *one;
    size_t i;

    if (version == 1)
        (void)json_object_set(session, "head_dim_v", json_object_get(session, "head_dim"));
    for (size_t f = 0; version < 3 && f < COUNT(of_session); f++)
        set_int(session, of_session[f], 0);
    json_array_foreach(json_object_get(session, "configurations"), i, one)
    {
        for (size_t f = 0; version < 3 && f < COUNT(of_configuration); f++)
            set_int(one, of_configuration[f], 0);
    }
}

static ffa_status read_session(struct tune_record *to, json_t *object, json_int_t version,
                               ffa_error *err)
{
    const json_t *samples = json_object_get(object, "samples");
    struct cost_table table;
    char *text = NULL;
    ffa_status rc;

    if (json_is_object(object))
        fill_in(object, version);
    FFA_TRY(read_fields(to, session_fields, COUNT(session_fields), object, err));
    FFA_TRY(read_lists(to, object, err));
    if (tune_is_backward(to) && version >= 4)
        FFA_TRY(read_baselines(to, json_object_get(object, "baselines"), err));
    if (!json_is_array(samples) || !json_object_get(object, "base_table")) {
        rc = fail(err, json_is_array(samples) ? "base_table" : "samples",
                  json_is_array(samples) ? "a cost table" : "a list");
        goto out;
    }
    text = json_dumps(json_object_get(object, "base_table"), JSON_ENCODE_ANY);
    if (!text) {
        rc = error_nomem(err, "a session");
        goto out;
    }
    FFA_TRY(cost_table_read(&table, text, strlen(text), "base_table of a session", err));
    FFA_TRY(cost_table_write(&table, &to->base_table, err));
    for (size_t i = 0; i < json_array_size(samples); i++)
        FFA_TRY(read_sample(to, json_array_get(samples, i), version, err));
    rc = tune_record_check(to, err);
    if (rc == FFA_CACHE) /* of a file; this is a text */
        rc = error_fail(err, FFA_INVALID, 0, "%s", err ? err->message : "");
out:
    free(text);
    return rc;
}

ffa_status tune_samples_read(struct tune_record **out, int32_t *count, const char *text,
                             size_t bytes, ffa_error *err)
{
    json_error_t wrong;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &wrong);
    const json_t *sessions = json_object_get(root, "sessions");
    const char *format = json_string_value(json_object_get(root, "format"));
    const json_int_t version = json_integer_value(json_object_get(root, "version"));
    struct tune_record *records = NULL;
    size_t found = 0;
    ffa_status rc = FFA_OK;

    *out = NULL;
    *count = 0;
    if (!root)
        return error_fail(err, FFA_INVALID, 0, "tuning sessions: line %d: %.100s", wrong.line,
                          wrong.text);
    if (!format || strcmp(format, FORMAT) != 0)
        rc = fail(err, "format", "'libffa-tuning-sessions'");
    else if (version < 1 || version > VERSION)
        rc = fail(err, "version", "1 to 4, which this library reads");
    else if (!json_is_array(sessions))
        rc = fail(err, "sessions", "a list");
    FFA_TRY(rc);
    records = mem_array(json_array_size(sessions), sizeof *records);
    if (!records) {
        rc = error_nomem(err, "sessions");
        goto out;
    }
    while (found < json_array_size(sessions)) {
        found++;
        FFA_TRY(
            read_session(&records[found - 1], json_array_get(sessions, found - 1), version, err));
    }
    *out = records;
    *count = (int32_t)found;
    records = NULL;
out:
    tune_records_finish(records, (int32_t)found);
    json_decref(root);
    return rc;
}
