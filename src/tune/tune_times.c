/* SPDX-License-Identifier: Apache-2.0 */
#include "tune/tune_times.h"

#include <math.h>

static bool is_in_final(const struct tune_record *record, int32_t configuration)
{
    for (int32_t m = 0; m < record->mask_count; m++)
        if (!tune_race_has_final(record, m, configuration))
            return false;
    return true;
}

static int compare_cases(const struct tune_case *a, const struct tune_case *b)
{
    if (a->dtype != b->dtype)
        return a->dtype - b->dtype;
    if (a->heads_q != b->heads_q)
        return a->heads_q - b->heads_q;
    if (a->heads_kv != b->heads_kv)
        return a->heads_kv - b->heads_kv;
    return strcmp(a->mask, b->mask);
}

static int by_case(const void *a, const void *b)
{
    return compare_cases(a, b);
}

static struct tune_case case_of(const struct tune_record *record, int32_t mask)
{
    struct tune_case out = { .dtype = record->dtype,
                             .heads_q = record->heads_q,
                             .heads_kv = record->heads_kv,
                             .chosen = -1 };

    text_copy(out.mask, "%s", record->masks[mask]);
    return out;
}

/* All cases of the sessions that reached their final, sorted, each once. */
static ffa_status find_cases(struct tune_work *work, ffa_error *err)
{
    struct tune_group *group = work->group;
    int64_t capacity = 0;

    for (int32_t i = 0; i < work->count; i++)
        for (int32_t m = 0; is_in_final(work->records[i], 0) && m < work->records[i]->mask_count;
             m++) {
            const struct tune_case next = case_of(work->records[i], m);
            int32_t at = 0;

            while (at < group->case_count && compare_cases(&group->cases[at], &next) != 0)
                at++;
            if (at < group->case_count)
                continue;
            if (!mem_grow((void **)&group->cases, &capacity, at + 1, sizeof *group->cases))
                return error_nomem(err, "the cases of a fit");
            group->cases[group->case_count++] = next;
        }
    if (group->case_count)
        qsort(group->cases, (size_t)group->case_count, sizeof *group->cases, by_case);
    return FFA_OK;
}

/* Whether the baseline has this kernel on every mask, as the table that the sessions began with has
 * no other: each session has then timed it, whatever tiles it was told to. */
static bool is_baseline(const struct tune_work *work, int32_t consumers, int32_t tile_n)
{
    const struct cost_tile *tiles[COST_TILES_MAX];

    return choose_cost_tiles(tiles, work->base, work->group->head_dim, work->group->head_dim_v,
                             work->group->is_packed) == 1 &&
           tiles[0]->consumers == consumers && tiles[0]->tile_n == tile_n;
}

/* The tiles that some session had in its final, and the baseline's, in a fixed order. */
static ffa_status find_kernels(struct tune_work *work, ffa_error *err)
{
    struct tune_group *group = work->group;

    group->kernels = mem_array(TUNE_CONFIGURATIONS_MAX, sizeof *group->kernels);
    if (!group->kernels)
        return error_nomem(err, "the kernels of a fit");
    for (int32_t consumers = 1; consumers <= 3; consumers++)
        for (int32_t tile_n = 64; tile_n <= 192; tile_n += 16) {
            bool is_there = is_baseline(work, consumers, tile_n);

            for (int32_t i = 0; i < work->count; i++)
                for (int32_t k = 1; k < work->records[i]->configuration_count; k++)
                    is_there |= work->records[i]->configurations[k].consumers == consumers &&
                                work->records[i]->configurations[k].tile_n == tile_n &&
                                is_in_final(work->records[i], k);
            if (is_there && group->kernel_count < TUNE_CONFIGURATIONS_MAX)
                group->kernels[group->kernel_count++] =
                    (struct tune_kernel){ .consumers = consumers, .tile_n = tile_n, .rank = -1 };
        }
    return FFA_OK;
}

static int by_relative(const void *a, const void *b)
{
    const struct tune_kernel *x = a, *y = b;

    if (x->relative != y->relative)
        return x->relative < y->relative ? -1 : 1;
    return x->consumers != y->consumers ? x->consumers - y->consumers : x->tile_n - y->tile_n;
}

/* The configuration of a session that has timed a kernel on all masks, or -1. */
static int32_t configuration_of(const struct tune_work *work, const struct tune_record *record,
                                const struct tune_kernel *kernel)
{
    if (!is_in_final(record, 0)) /* nothing to compare with */
        return -1;
    if (is_baseline(work, kernel->consumers, kernel->tile_n)) /* what else timed it, adds noise */
        return 0;
    for (int32_t k = 1; k < record->configuration_count; k++)
        if (record->configurations[k].consumers == kernel->consumers &&
            record->configurations[k].tile_n == kernel->tile_n && is_in_final(record, k))
            return k;
    return -1;
}

static void find_owns(struct tune_work *work)
{
    for (int32_t i = 0; i < work->count; i++)
        for (int32_t k = 0; k < work->group->kernel_count; k++)
            work->owns[i * TUNE_CONFIGURATIONS_MAX + k] =
                configuration_of(work, work->records[i], &work->group->kernels[k]);
}

static int32_t mask_at(const struct tune_work *work, int32_t session, int32_t c)
{
    return work->masks[session * work->group->case_count + c];
}

static ffa_status find_masks(struct tune_work *work, ffa_error *err)
{
    const struct tune_group *group = work->group;

    work->masks = mem_array((size_t)work->count * (size_t)group->case_count, sizeof *work->masks);
    work->owns = mem_array((size_t)work->count * TUNE_CONFIGURATIONS_MAX, sizeof *work->owns);
    if (!work->masks || !work->owns)
        return error_nomem(err, "the sessions of a fit");
    for (int32_t i = 0; i < work->count; i++) {
        const struct tune_record *record = work->records[i];
        int32_t *masks = &work->masks[i * group->case_count];

        for (int32_t c = 0; c < group->case_count; c++)
            masks[c] = -1;
        for (int32_t m = 0; is_in_final(record, 0) && m < record->mask_count; m++) {
            const struct tune_case own = case_of(record, m);
            int32_t c = 0;

            while (compare_cases(&own, &group->cases[c]) != 0)
                c++;
            masks[c] = m;
        }
    }
    return FFA_OK;
}

/* The baseline's time of each case: the geometric mean of the sessions' medians. */
static void pool_baseline(struct tune_work *work)
{
    for (int32_t c = 0; c < work->group->case_count; c++) {
        struct tune_case *of = &work->group->cases[c];
        double sum = 0;
        int32_t sessions = 0;

        for (int32_t i = 0; i < work->count; i++) {
            struct tune_median median;

            if (mask_at(work, i, c) < 0)
                continue;
            median = tune_median_us(work->records[i], mask_at(work, i, c), 0);
            sum += log(median.value);
            of->samples += median.count;
            sessions++;
        }
        of->baseline_us = exp(sum / sessions);
    }
}

struct tune_pooled tune_pool(const struct tune_work *work, int32_t c, int32_t kernel, unsigned laps)
{
    struct tune_pooled out = { 0 };
    double logs = 0, squares = 0;

    for (int32_t i = 0; i < work->count; i++) {
        const int32_t mask = mask_at(work, i, c),
                      own = work->owns[i * TUNE_CONFIGURATIONS_MAX + kernel];
        struct tune_median gain;

        if (mask < 0 || own < 0)
            continue;
        gain = tune_race_gain(work->records[i], mask, own, laps);
        logs -= log(1 + gain.value);
        squares += gain.noise * gain.noise;
        out.sessions++;
    }
    if (out.sessions) {
        out.share = exp(logs / out.sessions);
        out.noise = sqrt(squares) / out.sessions;
    }
    return out;
}

/* Kernels that lack a case cannot be compared, nor be chosen for all masks. The others are sorted,
 * the fastest over all cases first. */
static void sort_whole(struct tune_work *work)
{
    struct tune_group *group = work->group;
    int32_t kept = 0;

    for (int32_t k = 0; k < group->kernel_count; k++) {
        bool is_whole = true;
        double sum = 0;

        for (int32_t c = 0; c < group->case_count && is_whole; c++) {
            const struct tune_pooled pooled = tune_pool(work, c, k, TUNE_LAPS_ALL);

            is_whole = pooled.sessions > 0;
            sum += is_whole ? log(pooled.share) : 0;
        }
        if (!is_whole)
            continue;
        group->kernels[kept] = group->kernels[k];
        group->kernels[kept++].relative = exp(sum / group->case_count);
    }
    group->kernel_count = kept;
    qsort(group->kernels, (size_t)kept, sizeof *group->kernels, by_relative);
    find_owns(work);
}

ffa_status tune_times_find(struct tune_work *work, ffa_error *err)
{
    struct tune_group *group = work->group;
    ffa_status rc = FFA_OK;

    FFA_TRY(find_cases(work, err));
    FFA_TRY(find_kernels(work, err));
    if (group->case_count) {
        FFA_TRY(find_masks(work, err));
        pool_baseline(work);
    }
    if (!group->case_count || !group->kernel_count) {
        text_copy(group->reason, "no session has measured enough: a larger budget goes on");
        group->kernel_count = 0;
        goto out;
    }
    find_owns(work);
    sort_whole(work);
    if (!group->kernel_count)
        text_copy(group->reason,
                  "no tile was timed with all masks and heads of the sessions: time the same tiles "
                  "and masks, or fit the sessions apart");
out:
    return rc;
}

void tune_times_finish(struct tune_work *work)
{
    mem_free(work->masks);
    mem_free(work->owns);
}
