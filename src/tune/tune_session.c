/* SPDX-License-Identifier: Apache-2.0
 *
 * What a session does is decided from its record alone (pending configurations, tune_race_next), so
 * that going on after a kill is no case of its own. Invariant: whatever may take the device down is
 * noted in the file before it begins; a process that ends meanwhile is counted against it.
 */
#include "tune/tune_session.h"

#include "tune/tune_compile.h"
#include "tune/tune_race.h"

enum { TRIES_MAX = 2 };

static bool is_stopped(const struct tune_session *session)
{
    return session->stop && *session->stop;
}

static ffa_status fail_stopped(ffa_error *err)
{
    return error_fail(err, FFA_TIMEOUT, 0, "tune: stopped; what was measured is kept");
}

/* ---- progress ---- */

static void tell(const struct tune_session *session, ffa_tune_phase phase, int32_t configuration,
                 int64_t done, int64_t total)
{
    const struct tune_record *record = session->record;
    ffa_tune_event event = { .struct_size = (uint32_t)sizeof event,
                             .phase = phase,
                             .is_backward = tune_is_backward(record),
                             .configuration = configuration,
                             .done = done,
                             .total = total,
                             .spent_ms = record->spent_us / 1000,
                             .budget_ms = record->budget_us / 1000 };

    if (!session->event)
        return;
    if (configuration >= 0) {
        const struct tune_configuration *of = &record->configurations[configuration];

        event.tile_m = 64 * of->consumers;
        event.tile_n = of->tile_n;
        event.parts = of->parts;
        event.waves = of->waves;
        event.whole_heads = of->whole_heads;
        event.is_unlocked = of->is_unlocked;
        event.state = tune_state_text(of->state);
        event.reason = of->reason;
    }
    session->event(session->user, &event);
}

/* ---- what becomes of a configuration ---- */

static ffa_status settle(struct tune_session *session, int32_t configuration, enum tune_state state,
                         const char *reason, ffa_error *err)
{
    struct tune_configuration *of = &session->record->configurations[configuration];

    of->state = state;
    if (reason != of->reason)
        text_copy(of->reason, "%s", reason);
    return tune_store_put_configuration(session->store, session->record, configuration, err);
}

/* Whether a failure is a configuration's own, and as what it ends. */
static bool is_own(ffa_status status, enum tune_state *state)
{
    switch (status) {
    case FFA_TIMEOUT:
        *state = TUNE_HUNG;
        return true;
    case FFA_GPU:
        *state = TUNE_DIED;
        return true;
    case FFA_COMPILE:
    case FFA_INVALID:
    case FFA_UNSUPPORTED:
    case FFA_NOT_FOUND:
        *state = TUNE_REFUSED;
        return true;
    case FFA_OK:
    case FFA_NOMEM:
    case FFA_CACHE:
    case FFA_COMM:
    case FFA_BUG:
    case FFA_IO:
        break;
    }
    return false;
}

/* After a call of the device that failed: note it, and go on if that can be. */
static ffa_status settle_failure(struct tune_session *session, int32_t configuration,
                                 ffa_status status, const ffa_error *why, ffa_error *err)
{
    enum tune_state state;
    ffa_status rc;

    if (!is_own(status, &state)) {
        /* The process is about to end, and not for what the configuration did. */
        (void)tune_store_try(session->store, session->record, -1, NULL);
        return error_fail(err, status, why->native, "%s", why->message);
    }
    FFA_TRY(settle(session, configuration, state, why->message, err));
    if (state != TUNE_REFUSED && !session->device->recover(session->device->user)) {
        session->must_restart = true;
        rc = error_fail(err, status, why->native,
                        "tune: the device cannot be used again in this process; resume the "
                        "session in a new one: %.300s",
                        why->message);
    } else if (configuration == 0) {
        rc =
            error_fail(err, FFA_UNSUPPORTED, why->native,
                       "tune: the baseline cannot be measured, so nothing can be compared with it: "
                       "%.300s",
                       why->message);
    }
out:
    return rc;
}

/* The process that ran the session before may have ended while a configuration was on the device.
 */
static ffa_status settle_trying(struct tune_session *session, ffa_error *err)
{
    struct tune_record *record = session->record;
    const int32_t trying = record->trying;
    struct tune_configuration *of;

    if (trying < 0)
        return FFA_OK;
    of = &record->configurations[trying];
    if (++of->tries < TRIES_MAX)
        return settle(session, trying, of->state, of->reason, err);
    return settle(session, trying, TUNE_DIED, "two processes in a row ended while it ran", err);
}

static ffa_status check_baseline(const struct tune_session *session, ffa_error *err)
{
    const struct tune_configuration *of = &session->record->configurations[0];

    if (of->state < TUNE_SPILLED)
        return FFA_OK;
    return error_fail(err, FFA_UNSUPPORTED, 0,
                      "tune: the baseline is %s, so nothing can be compared with it: %s",
                      tune_state_text(of->state), of->reason);
}

/* ---- compile ---- */

struct compiling {
    struct tune_session *session;
    int64_t done, total;
    ffa_status rc; /* the first failure that is of no configuration */
    ffa_error err;
};

/* What became of a configuration's kernels; in a backward session all have those of the baseline.
 */
static ffa_status settle_kernels(struct tune_session *session, int32_t configuration,
                                 enum tune_state state, const char *reason, ffa_error *err)
{
    const struct tune_configuration *of = &session->record->configurations[configuration];
    ffa_status rc = FFA_OK;

    if (!tune_is_backward(session->record))
        return settle(session, configuration, state, reason, err);
    /* The baseline last: while it is pending, they are compiled again. */
    for (int32_t i = session->record->configuration_count; i-- > 0 && rc == FFA_OK;) {
        struct tune_configuration *to = &session->record->configurations[i];

        if (to != of) {
            to->registers = of->registers;
            to->shared_bytes = of->shared_bytes;
            to->spill_bytes = of->spill_bytes;
            text_copy(to->key, "%s", of->key);
        }
        rc = settle(session, i, state, reason, err);
    }
    return rc;
}

static void compiled(void *user, int32_t configuration, const struct tune_compiled *result)
{
    struct compiling *compiling = user;
    struct tune_session *session = compiling->session;
    struct tune_configuration *of = &session->record->configurations[configuration];
    char reason[200];
    const enum tune_state state = tune_compiled_state(result, configuration, reason);
    ffa_error why = { FFA_OK, 0, "" };
    ffa_status rc;

    if (result->status == FFA_OK) {
        of->registers = result->registers;
        of->shared_bytes = result->shared_bytes;
        of->spill_bytes = result->spill_bytes;
        text_copy(of->key, "%s", result->key);
    }
    if (state == TUNE_PENDING)
        rc = error_fail(&why, result->status, 0, "%s", result->message);
    else
        rc = settle_kernels(session, configuration, state, reason, &why);
    if (compiling->rc == FFA_OK && rc != FFA_OK) {
        compiling->rc = rc;
        compiling->err = why;
    }
    tell(session, FFA_TUNE_COMPILE, configuration, ++compiling->done, compiling->total);
}

static ffa_status compile_all(struct tune_session *session, ffa_error *err)
{
    const struct tune_device *device = session->device;
    struct compiling compiling = { .session = session };
    const int32_t own = tune_is_backward(session->record) ? 1 : INT32_MAX;
    int32_t which[TUNE_CONFIGURATIONS_MAX], count = 0;
    ffa_status rc;

    for (int32_t i = 0; i < min32(own, session->record->configuration_count); i++)
        if (session->record->configurations[i].state == TUNE_PENDING)
            which[count++] = i;
    if (!count)
        return FFA_OK;
    compiling.total = count;
    tell(session, FFA_TUNE_COMPILE, -1, 0, count);
    rc = device->compile(device->user, session->record, which, count, session->stop, compiled,
                         &compiling, err);
    if (compiling.rc != FFA_OK)
        rc = error_fail(err, compiling.rc, compiling.err.native, "%s", compiling.err.message);
    if (rc == FFA_OK && is_stopped(session))
        rc = fail_stopped(err);
    return rc;
}

/* The device is about to have work of a configuration: a session that was over is so no more. */
static ffa_status begin_try(struct tune_session *session, int32_t configuration, ffa_error *err)
{
    session->record->ended_s = 0;
    return tune_store_try(session->store, session->record, configuration, err);
}

/* ---- check ---- */

static ffa_status check_one(struct tune_session *session, int32_t configuration, ffa_error *err)
{
    const struct tune_device *device = session->device;
    ffa_error why = { FFA_OK, 0, "" };
    char reason[200] = "";
    bool is_right = false;
    ffa_status rc, status;

    FFA_TRY(begin_try(session, configuration, err));
    status = device->prepare(device->user, session->record, configuration, &why);
    if (status == FFA_OK)
        status =
            device->check(device->user, session->record, configuration, &is_right, reason, &why);
    if (status != FFA_OK) {
        rc = settle_failure(session, configuration, status, &why, err);
    } else {
        session->record->configurations[configuration].tries = 0;
        rc = settle(session, configuration, is_right ? TUNE_CHECKED : TUNE_WRONG, reason, err);
    }
out:
    return rc;
}

static ffa_status check_all(struct tune_session *session, ffa_error *err)
{
    struct tune_record *record = session->record;
    int64_t done = 0, total = 0;
    ffa_status rc = FFA_OK;

    for (int32_t i = 0; i < record->configuration_count; i++)
        total += record->configurations[i].state == TUNE_COMPILED;
    for (int32_t i = 0; i < record->configuration_count && rc == FFA_OK; i++) {
        if (record->configurations[i].state != TUNE_COMPILED)
            continue;
        if (is_stopped(session))
            return fail_stopped(err);
        FFA_TRY(check_one(session, i, err));
        tell(session, FFA_TUNE_CHECK, i, ++done, total);
    }
    rc = check_baseline(session, err);
out:
    return rc;
}

/* ---- race ---- */

/* The next of the step's field that this process has no sample of, from `place` on; -1: none. */
static int32_t next_place(const struct tune_record *record, const struct tune_step *step,
                          int32_t place)
{
    for (; place < step->count; place++) {
        const struct tune_sample *own =
            tune_record_find(record, step->lap, step->mask, step->field[place]);

        if (!own || own->process != record->process)
            return place;
    }
    return -1;
}

/* It ran to its end: a process that ended before while it ran did so for another reason. */
static ffa_status forgive(struct tune_session *session, int32_t configuration, ffa_error *err)
{
    struct tune_configuration *of = &session->record->configurations[configuration];

    if (!of->tries)
        return FFA_OK;
    of->tries = 0;
    return settle(session, configuration, of->state, of->reason, err);
}

static bool has_baseline(const struct tune_record *record, int32_t mask)
{
    for (int64_t i = 0; i < record->sample_count; i++)
        if (record->samples[i].mask == mask && record->samples[i].configuration == 0)
            return true;
    return false;
}

/* Keep which order the baseline of a backward session is, so that its samples are always those of
 * that order; another library may choose another one. Where a file had samples before and no order,
 * it stays not known. */
static ffa_status keep_baseline(struct tune_session *session, int32_t mask,
                                const struct tune_baseline *now, ffa_error *err)
{
    struct tune_record *record = session->record;
    struct tune_baseline *known = &record->baselines[mask];

    if (!known->parts && !has_baseline(record, mask))
        *known = *now;
    if (!known->parts || (known->parts == now->parts && known->waves == now->waves &&
                          known->whole_heads == now->whole_heads))
        return FFA_OK;
    (void)tune_store_try(session->store, record, -1, NULL);
    return error_fail(err, FFA_INVALID, 0,
                      "tune: the baseline of session %.8s with mask '%.80s' is order %dx%d+%d, and "
                      "this library chooses %dx%d+%d: begin another session in another file",
                      record->id, record->masks[mask], known->parts, known->waves,
                      known->whole_heads, now->parts, now->waves, now->whole_heads);
}

/* Take the step's samples. One configuration that fails ends the step; the next one is without it.
 */
static ffa_status run_step(struct tune_session *session, const struct tune_step *step,
                           ffa_error *err)
{
    const struct tune_device *device = session->device;
    struct tune_record *record = session->record;
    int32_t place = next_place(record, step, 0);
    ffa_status rc;

    FFA_TRY(begin_try(session, step->field[place], err));
    while (place >= 0) {
        const int32_t configuration = step->field[place];
        int32_t next = next_place(record, step, place + 1);
        const int64_t began_us = device->now_us(device->user);
        struct tune_reading reading = { 0 };
        ffa_error why = { FFA_OK, 0, "" };
        struct tune_sample sample;
        ffa_status status;

        status = device->prepare(device->user, record, configuration, &why);
        if (status == FFA_OK)
            status = device->run(device->user, record, configuration, step->mask, &reading, &why);
        record->spent_us += device->now_us(device->user) - began_us;
        if (status != FFA_OK)
            return settle_failure(session, configuration, status, &why, err);
        FFA_TRY(forgive(session, configuration, err));
        if (configuration == 0 && tune_is_backward(record))
            FFA_TRY(keep_baseline(session, step->mask, &reading.order, err));
        if (is_stopped(session) || !tune_race_goes_on(record, step))
            next = -1;
        sample = (struct tune_sample){ .lap = step->lap,
                                       .mask = step->mask,
                                       .configuration = configuration,
                                       .place = place,
                                       .calls = reading.calls,
                                       .us = reading.us,
                                       .clock_mhz = reading.clock_mhz,
                                       .power_w = reading.power_w,
                                       .temperature_c = reading.temperature_c,
                                       .process = record->process };
        FFA_TRY(tune_store_put_sample(session->store, record, &sample,
                                      next < 0 ? -1 : step->field[next], err));
        if (is_stopped(session))
            return fail_stopped(err);
        place = next;
    }
out:
    return rc;
}

/* One more than those that have taken samples. */
static int32_t number_process(const struct tune_record *record)
{
    int32_t next = 0;

    for (int64_t i = 0; i < record->sample_count; i++)
        next = max32(next, record->samples[i].process + 1);
    return next;
}

static ffa_status race(struct tune_session *session, ffa_error *err)
{
    struct tune_record *record = session->record;
    struct tune_step step;
    ffa_status rc = FFA_OK;

    record->process = number_process(record);
    if (record->process >= TUNE_PROCESSES_MAX)
        return error_fail(err, FFA_INVALID, 0,
                          "tune: session %.8s has gone on in %d processes, the most that it can",
                          record->id, TUNE_PROCESSES_MAX);
    while (tune_race_next(record, &step)) {
        if (is_stopped(session))
            return fail_stopped(err);
        FFA_TRY(run_step(session, &step, err));
        tell(session, FFA_TUNE_RACE, -1, record->sample_count,
             record->sample_count + tune_race_left(record));
    }
out:
    return rc;
}

ffa_status tune_session_run(struct tune_session *session, ffa_error *err)
{
    struct tune_record *record = session->record;
    ffa_status rc;

    session->must_restart = false;
    FFA_TRY(settle_trying(session, err));
    FFA_TRY(check_baseline(session, err));
    FFA_TRY(compile_all(session, err));
    FFA_TRY(check_baseline(session, err));
    FFA_TRY(check_all(session, err));
    FFA_TRY(race(session, err));
    if (!record->ended_s)
        record->ended_s = clock_unix_s();
    rc = tune_store_put_times(session->store, record, err);
out:
    return rc;
}
