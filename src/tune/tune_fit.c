/* SPDX-License-Identifier: Apache-2.0
 *
 * Each group of the sessions is fitted by itself (tune_times.h, tune_sets.h), and published if that
 * is worth it; a table starts as a copy of the one that the sessions began with.
 */
#include "tune/tune_fit.h"

#include "base/printable.h"
#include "choose/cost_table_json.h"
#include "jit/jit.h"
#include "tune/tune_sets.h"

#include <math.h>

void tune_fit_finish(struct tune_fit *fit)
{
    for (int32_t i = 0; i < fit->group_count; i++) {
        mem_free(fit->groups[i].cases);
        mem_free(fit->groups[i].kernels);
    }
    tune_orders_finish(&fit->orders);
    *fit = (struct tune_fit){ 0 };
}

/* ---- sessions ---- */

ffa_status tune_fit_check(const struct tune_record *records, int32_t count, ffa_error *err)
{
    for (int32_t i = 1; i < count; i++) {
        const struct tune_record *first = &records[0], *other = &records[i];

        if (strcmp(first->facts.name, other->facts.name) != 0)
            return error_fail(err, FFA_INVALID, 0,
                              "tune: session %.8s is of device '%.60s', session %.8s of '%.60s': "
                              "a table is of one device model",
                              first->id, first->facts.name, other->id, other->facts.name);
        if (strcmp(first->templates_digest, other->templates_digest) != 0)
            return error_fail(err, FFA_INVALID, 0,
                              "tune: session %.8s has templates digest %.32s, session %.8s %.32s: "
                              "their kernels are not the same",
                              first->id, first->templates_digest, other->id,
                              other->templates_digest);
        if (strcmp(first->base_table, other->base_table) != 0)
            return error_fail(err, FFA_INVALID, 0,
                              "tune: sessions %.8s and %.8s began with different cost tables: "
                              "their gains are over different choices",
                              first->id, other->id);
    }
    if (!count)
        return error_fail(err, FFA_INVALID, 0, "tune: there is no session to fit");
    return FFA_OK;
}

static int by_id(const void *a, const void *b)
{
    const struct tune_record *const *x = a, *const *y = b;

    return strcmp((*x)->id, (*y)->id);
}

/* ---- the table ---- */

/* By columns, and packed heads first. */
static bool is_before(const struct cost_tile *tile, const struct tune_group *group)
{
    if (tile->head_dim != group->head_dim)
        return tile->head_dim < group->head_dim;
    if (tile->head_dim_v != group->head_dim_v)
        return tile->head_dim_v < group->head_dim_v;
    return tile->packed && !group->is_packed;
}

/* Exchange the tiles of a group. False: the table is full. */
static bool publish(struct cost_table *table, const struct tune_group *group,
                    const struct tune_set *set, double unit_us)
{
    struct cost_table next = *table;
    int32_t at = 0;

    next.tile_count = 0;
    for (int32_t i = 0; i < table->tile_count; i++)
        if (!tune_is_of(&table->tiles[i], group))
            next.tiles[next.tile_count++] = table->tiles[i];
    if (next.tile_count + set->count > COST_TILES_MAX)
        return false;
    while (at < next.tile_count && is_before(&next.tiles[at], group))
        at++;
    memmove(&next.tiles[at + set->count], &next.tiles[at],
            (size_t)(next.tile_count - at) * sizeof *next.tiles);
    for (int32_t i = 0; i < set->count; i++) {
        const struct tune_kernel *kernel = &group->kernels[set->at[i]];

        next.tiles[at + i] = (struct cost_tile){ .head_dim = group->head_dim,
                                                 .head_dim_v = group->head_dim_v,
                                                 .packed = group->is_packed,
                                                 .consumers = kernel->consumers,
                                                 .tile_n = kernel->tile_n,
                                                 .cost = kernel->cost,
                                                 .unit_us = round(1e9 * unit_us) / 1e9 };
    }
    next.tile_count += set->count;
    *table = next;
    return true;
}

static void fill_cases(const struct tune_work *work, const struct tune_set *set)
{
    const struct tune_finding *by = &work->findings[TUNE_WHOLE];

    for (int32_t c = 0; c < work->group->case_count; c++) {
        struct tune_case *of = &work->group->cases[c];

        of->chosen = tune_set_choice(work, by, set, c);
        of->chosen_us = by->us[tune_place(c, of->chosen)];
        of->gain = of->baseline_us / of->chosen_us - 1;
        of->noise = tune_set_noise(work, by, set, c);
    }
}

/* Choose, and publish if that is worth it. */
static void decide(struct tune_work *work, struct cost_table *table)
{
    const struct tune_finding *whole = &work->findings[TUNE_WHOLE];
    struct tune_group *group = work->group;
    struct tune_verdict verdict;

    verdict = tune_sets_choose(work);
    if (!verdict.is_found) {
        text_copy(group->reason, "no kernel's times are within %.0f %% of the model",
                  100 * TUNE_RESIDUAL_MAX);
        return;
    }
    fill_cases(work, &verdict.set);
    if (verdict.score >= HUGE_VAL) {
        text_copy(group->reason,
                  "by half of its laps no kernel's times are within %.0f %% of the "
                  "model: a larger budget goes on",
                  100 * TUNE_RESIDUAL_MAX);
        return;
    }
    group->gain = exp(-verdict.score) - 1;
    group->noise = verdict.noise;
    if (group->gain <= fmax(group->noise, TUNE_GAIN_MIN))
        text_copy(group->reason,
                  "the gain of %.2f %% is not above its noise of %.2f %%, or %.1f %%",
                  100 * group->gain, 100 * group->noise, 100 * TUNE_GAIN_MIN);
    else if (tune_set_score(work, whole, &verdict.set, whole->us) >= -TUNE_GAIN_MIN)
        text_copy(group->reason, "by all laps, what is chosen is not faster by %.1f %%",
                  100 * TUNE_GAIN_MIN);
    else if (!publish(table, group, &verdict.set, tune_unit(work, whole)))
        text_copy(group->reason, "the table has no room for more than %d kernels", COST_TILES_MAX);
    else
        group->is_published = true;
    for (int32_t i = 0; group->is_published && i < verdict.set.count; i++)
        group->kernels[verdict.set.at[i]].rank = i;
}

static ffa_status fit_group(struct tune_work *work, struct cost_table *table, ffa_error *err)
{
    ffa_status rc;

    work->group->session_count = work->count;
    FFA_TRY(tune_times_find(work, err));
    if (!work->group->kernel_count)
        goto out;
    FFA_TRY(tune_sets_fit(work, err));
    decide(work, table);
out:
    tune_sets_finish(work);
    tune_times_finish(work);
    return rc;
}

/* The base may be of another model: what it has of L2 becomes as much of this one's. */
static void move_to_device(struct cost_table *table, const struct tune_record *record)
{
    if (!strcmp(table->device, record->facts.name))
        return;
    text_copy(table->device, "%s", record->facts.name);
    if (record->facts.l2_bytes) {
        table->l2_group_bytes =
            max64(1, (int64_t)((double)table->l2_group_bytes / (double)table->l2_bytes *
                               (double)record->facts.l2_bytes));
        table->l2_bytes = record->facts.l2_bytes;
    }
    /* A sum takes as long as before (order.c). */
    table->order.sum_blocks *= (double)table->sm_count / record->facts.sm_count;
    table->sm_count = record->facts.sm_count;
}

/* Where the table is from, without what differs from one order of the sessions to another. */
static void describe(struct cost_table *table, const struct tune_record *const *records,
                     int32_t count)
{
    const struct tune_record *last = records[0];
    int64_t samples = 0;
    char driver[25];

    for (int32_t i = 0; i < count; i++) {
        if (records[i]->started_s >= last->started_s)
            last = records[i];
        samples += records[i]->sample_count;
    }
    text_printable(driver, sizeof driver, last->driver, "");
    text_copy(table->origin,
              "tuned: %d sessions, %lld samples, the last of Unix time %lld, driver %s", count,
              (long long)samples, (long long)last->started_s, driver);
}

static bool is_in_group(const struct tune_record *record, const struct tune_group *group)
{
    return !tune_is_backward(record) && jit_columns(record->head_dim) == group->head_dim &&
           jit_columns(record->head_dim_v) == group->head_dim_v &&
           (record->pack_heads > 0) == group->is_packed;
}

static int by_columns(const void *a, const void *b)
{
    const struct tune_group *x = a, *y = b;

    if (x->head_dim != y->head_dim)
        return x->head_dim - y->head_dim;
    if (x->head_dim_v != y->head_dim_v)
        return x->head_dim_v - y->head_dim_v;
    return y->is_packed - x->is_packed;
}

/* The groups that the sessions are of, in the order of a table. */
static void find_groups(struct tune_fit *out, const struct tune_record *records, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        int32_t at = 0;

        if (tune_is_backward(&records[i]))
            continue;
        while (at < out->group_count && !is_in_group(&records[i], &out->groups[at]))
            at++;
        if (at < out->group_count)
            continue;
        assert(at < TUNE_TILE_GROUPS_MAX);
        out->groups[out->group_count++] =
            (struct tune_group){ .head_dim = jit_columns(records[i].head_dim),
                                 .head_dim_v = jit_columns(records[i].head_dim_v),
                                 .is_packed = records[i].pack_heads > 0 };
    }
    qsort(out->groups, (size_t)out->group_count, sizeof *out->groups, by_columns);
}

ffa_status tune_fit(struct tune_fit *out, const struct tune_record *records, int32_t count,
                    ffa_error *err)
{
    const struct tune_record **sorted = NULL, **own = NULL;
    bool is_published = false;
    struct cost_table base, moved;
    ffa_status rc;

    *out = (struct tune_fit){ 0 };
    FFA_TRY(tune_fit_check(records, count, err));
    FFA_TRY(cost_table_read(&base, records[0].base_table, strlen(records[0].base_table),
                            "of the session", err));
    out->table = base;
    sorted = mem_array((size_t)count, sizeof *sorted);
    own = mem_array((size_t)count, sizeof *own);
    if (!sorted || !own) {
        rc = error_nomem(err, "a fit");
        goto out;
    }
    for (int32_t i = 0; i < count; i++)
        sorted[i] = &records[i];
    qsort(sorted, (size_t)count, sizeof *sorted, by_id);
    find_groups(out, records, count);
    for (int32_t g = 0; g < out->group_count; g++) {
        struct tune_work work = { .records = own,
                                  .base = &base,
                                  .device = { .facts = sorted[0]->facts, .costs = &base },
                                  .group = &out->groups[g] };

        for (int32_t i = 0; i < count; i++)
            if (is_in_group(sorted[i], work.group))
                own[work.count++] = sorted[i];
        FFA_TRY(fit_group(&work, &out->table, err));
        is_published |= work.group->is_published;
    }
    moved = out->table;
    move_to_device(&moved, sorted[0]);
    FFA_TRY(tune_orders_fit(&out->orders, sorted, count, &moved, err));
    is_published |= out->orders.is_published;
    if (is_published) {
        out->table = moved;
        text_copy(out->table.templates, "%s", sorted[0]->templates_digest);
        describe(&out->table, sorted, count);
    }
out:
    if (rc != FFA_OK)
        tune_fit_finish(out);
    mem_free(sorted);
    mem_free(own);
    return rc;
}
