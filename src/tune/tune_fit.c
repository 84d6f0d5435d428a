/* SPDX-License-Identifier: Apache-2.0
 *
 * Sessions are compared through the baseline, which each of them measures beside every
 * configuration: what is pooled over machines is the share of the baseline's time. So machines that
 * differ in speed, or that have measured different configurations, give one table. Costs are
 * rounded before they are used, so that the last bits of a sum decide nothing.
 *
 * A table's costs and kernels are found by all laps. What that gains is judged by cross-validation:
 * they are found anew by each half of the final's laps, and what those choose is timed by the other
 * half, where a kernel that was lucky in the first one is not.
 */
#include "tune/tune_fit.h"

#include "choose/cost_table_json.h"
#include "jit/jit.h"
#include "tune/tune_model.h"
#include "tune/tune_race.h"

#include <math.h>

enum { KERNELS_MAX = TUNE_CONFIGURATIONS_MAX, FEW_ITEMS = 16 };
static const double RESIDUAL_MAX = 0.2; /* of a kernel that may be chosen by its costs */
static const double BEGIN_MAX = 1e6;    /* keys: beyond that, times do not tell what a key takes */
static const double GAIN_MIN = 0.003;   /* below that, no gain is worth another table */

void tune_fit_finish(struct tune_fit *fit)
{
    for (int32_t i = 0; i < fit->fit_count; i++) {
        mem_free(fit->fits[i].cases);
        mem_free(fit->fits[i].kernels);
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

static bool is_in_final(const struct tune_record *record, int32_t configuration)
{
    for (int32_t m = 0; m < record->mask_count; m++)
        if (!tune_race_has_final(record, m, configuration))
            return false;
    return true;
}

/* ---- cases and times ---- */

/* Times and costs as some laps have them, by which a set of kernels is found. */
struct finding {
    unsigned found_by, judged_by; /* enum tune_laps; judged_by 0: nothing judges it */
    struct tune_kernel *kernels;  /* [kernel_count] */
    double *us;                   /* [case_count][KERNELS_MAX] in the laps that it is found by */
    double *judged_us;            /* [case_count][KERNELS_MAX] in the laps that judge */
    double *model_us;             /* [case_count][KERNELS_MAX] by the rounded costs */
};
enum { WHOLE /* what a table is made of */, HALVES, FINDINGS = HALVES + 2 };

static const struct finding findings_of_laps[FINDINGS] = {
    { .found_by = TUNE_LAPS_ALL },
    { .found_by = TUNE_LAPS_HEATS | TUNE_LAPS_EVEN, .judged_by = TUNE_LAPS_ODD },
    { .found_by = TUNE_LAPS_HEATS | TUNE_LAPS_ODD, .judged_by = TUNE_LAPS_EVEN },
};

/* A group under work: times of kernels in cases, and tiles of cases. */
struct work {
    const struct tune_record *const *records; /* [count] of this group, by id */
    int32_t count;
    const struct cost_table *base;
    struct choose_device device;
    struct tune_group *fit;
    int32_t *masks; /* [count][case_count]: which mask of a session with a final is a case; -1 */
    int32_t *owns;  /* [count][KERNELS_MAX]: which configuration of a session is a kernel; -1 */
    struct finding findings[FINDINGS]; /* the kernels of the first are the fit's */
    struct tile_plan *tiles;           /* [case_count][KERNELS_MAX] */
};

static int32_t place_of(int32_t c, int32_t kernel)
{
    return c * KERNELS_MAX + kernel;
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
static ffa_status find_cases(struct work *work, ffa_error *err)
{
    struct tune_group *fit = work->fit;
    int64_t capacity = 0;

    for (int32_t i = 0; i < work->count; i++)
        for (int32_t m = 0; is_in_final(work->records[i], 0) && m < work->records[i]->mask_count;
             m++) {
            const struct tune_case next = case_of(work->records[i], m);
            int32_t at = 0;

            while (at < fit->case_count && compare_cases(&fit->cases[at], &next) != 0)
                at++;
            if (at < fit->case_count)
                continue;
            if (!mem_grow((void **)&fit->cases, &capacity, at + 1, sizeof *fit->cases))
                return error_nomem(err, "the cases of a fit");
            fit->cases[fit->case_count++] = next;
        }
    if (fit->case_count)
        qsort(fit->cases, (size_t)fit->case_count, sizeof *fit->cases, by_case);
    return FFA_OK;
}

/* Whether the baseline has this kernel on every mask, as the table that the sessions began with has
 * no other: each session has then timed it, whatever tiles it was told to. */
static bool is_baseline(const struct work *work, int32_t consumers, int32_t tile_n)
{
    const struct cost_tile *tiles[COST_TILES_MAX];

    return choose_cost_tiles(tiles, work->base, work->fit->head_dim, work->fit->head_dim_v,
                             work->fit->is_packed) == 1 &&
           tiles[0]->consumers == consumers && tiles[0]->tile_n == tile_n;
}

/* The tiles that some session had in its final, and the baseline's, in a fixed order. */
static ffa_status find_kernels(struct work *work, ffa_error *err)
{
    struct tune_group *fit = work->fit;

    fit->kernels = mem_array(KERNELS_MAX, sizeof *fit->kernels);
    if (!fit->kernels)
        return error_nomem(err, "the kernels of a fit");
    for (int32_t consumers = 1; consumers <= 3; consumers++)
        for (int32_t tile_n = 64; tile_n <= 192; tile_n += 16) {
            bool is_there = is_baseline(work, consumers, tile_n);

            for (int32_t i = 0; i < work->count; i++)
                for (int32_t k = 1; k < work->records[i]->configuration_count; k++)
                    is_there |= work->records[i]->configurations[k].consumers == consumers &&
                                work->records[i]->configurations[k].tile_n == tile_n &&
                                is_in_final(work->records[i], k);
            if (is_there && fit->kernel_count < KERNELS_MAX)
                fit->kernels[fit->kernel_count++] =
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
static int32_t configuration_of(const struct work *work, const struct tune_record *record,
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

static void find_owns(struct work *work)
{
    for (int32_t i = 0; i < work->count; i++)
        for (int32_t k = 0; k < work->fit->kernel_count; k++)
            work->owns[i * KERNELS_MAX + k] =
                configuration_of(work, work->records[i], &work->fit->kernels[k]);
}

static int32_t mask_at(const struct work *work, int32_t session, int32_t c)
{
    return work->masks[session * work->fit->case_count + c];
}

static ffa_status find_masks(struct work *work, ffa_error *err)
{
    const struct tune_group *fit = work->fit;

    work->masks = mem_array((size_t)work->count * (size_t)fit->case_count, sizeof *work->masks);
    work->owns = mem_array((size_t)work->count * KERNELS_MAX, sizeof *work->owns);
    if (!work->masks || !work->owns)
        return error_nomem(err, "the sessions of a fit");
    for (int32_t i = 0; i < work->count; i++) {
        const struct tune_record *record = work->records[i];
        int32_t *masks = &work->masks[i * fit->case_count];

        for (int32_t c = 0; c < fit->case_count; c++)
            masks[c] = -1;
        for (int32_t m = 0; is_in_final(record, 0) && m < record->mask_count; m++) {
            const struct tune_case own = case_of(record, m);
            int32_t c = 0;

            while (compare_cases(&own, &fit->cases[c]) != 0)
                c++;
            masks[c] = m;
        }
    }
    return FFA_OK;
}

/* The baseline's time of each case: the geometric mean of the sessions' medians. */
static void pool_baseline(struct work *work)
{
    for (int32_t c = 0; c < work->fit->case_count; c++) {
        struct tune_case *of = &work->fit->cases[c];
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

/* A kernel in a case, pooled over the sessions that have both. sessions 0: none has. */
struct pooled {
    double share; /* of the baseline's time */
    double noise; /* of its gain */
    int32_t sessions;
};

static struct pooled pool(const struct work *work, int32_t c, int32_t kernel, unsigned laps)
{
    struct pooled out = { 0 };
    double logs = 0, squares = 0;

    for (int32_t i = 0; i < work->count; i++) {
        const int32_t mask = mask_at(work, i, c), own = work->owns[i * KERNELS_MAX + kernel];
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

static void pool_kernel(struct work *work, int32_t kernel)
{
    for (int32_t f = 0; f < FINDINGS; f++)
        for (int32_t c = 0; c < work->fit->case_count; c++) {
            const struct finding *to = &work->findings[f];
            const double baseline_us = work->fit->cases[c].baseline_us;

            to->us[place_of(c, kernel)] = baseline_us * pool(work, c, kernel, to->found_by).share;
            if (to->judged_by)
                to->judged_us[place_of(c, kernel)] =
                    baseline_us * pool(work, c, kernel, to->judged_by).share;
        }
}

/* Kernels that lack a case cannot be compared, nor be chosen for all masks. The others are sorted,
 * the fastest over all cases first. */
static void sort_whole(struct work *work)
{
    struct tune_group *fit = work->fit;
    int32_t kept = 0;

    for (int32_t k = 0; k < fit->kernel_count; k++) {
        bool is_whole = true;
        double sum = 0;

        for (int32_t c = 0; c < fit->case_count && is_whole; c++) {
            const struct pooled pooled = pool(work, c, k, TUNE_LAPS_ALL);

            is_whole = pooled.sessions > 0;
            sum += is_whole ? log(pooled.share) : 0;
        }
        if (!is_whole)
            continue;
        fit->kernels[kept] = fit->kernels[k];
        fit->kernels[kept++].relative = exp(sum / fit->case_count);
    }
    fit->kernel_count = kept;
    qsort(fit->kernels, (size_t)kept, sizeof *fit->kernels, by_relative);
    find_owns(work);
}

/* ---- the model ---- */

/* What runs each tile: packs of heads, or heads. */
static int32_t heads_of(const struct work *work, int32_t c)
{
    return work->fit->is_packed ? work->fit->cases[c].heads_kv : work->fit->cases[c].heads_q;
}

static ffa_status build_tiles(struct work *work, int32_t c, int32_t kernel, ffa_error *err)
{
    const struct tune_case *of = &work->fit->cases[c];
    const struct tune_kernel *from = &work->fit->kernels[kernel];
    const struct tile_candidate candidate = {
        .tile_m = 64 * from->consumers / (work->fit->is_packed ? of->heads_q / of->heads_kv : 1),
        .tile_n = from->tile_n,
        .cost = { work->base->packed_cost.begin, 1 },
    };
    const struct tile_query query = { .candidates = &candidate,
                                      .candidate_count = 1,
                                      .heads = heads_of(work, c),
                                      .is_packed = work->fit->is_packed };
    struct tile_choice choice;
    ffa_mask *mask = NULL;
    ffa_status rc;

    FFA_TRY(ffa_mask_parse(&mask, of->mask, err));
    rc = choose_tiles(&work->tiles[place_of(c, kernel)], &choice, mask, &query, &work->device, err);
out:
    ffa_mask_destroy(mask);
    return rc;
}

static bool are_few(const struct work *work, int32_t c, int32_t kernel)
{
    return work->tiles[place_of(c, kernel)].tile_count * heads_of(work, c) <=
           (int64_t)FEW_ITEMS * work->device.facts.sm_count;
}

static struct tune_timed timed_of(const struct work *work, const struct finding *by, int32_t c,
                                  int32_t kernel)
{
    return (struct tune_timed){ .tiles = &work->tiles[place_of(c, kernel)],
                                .heads = heads_of(work, c),
                                .us = by->us[place_of(c, kernel)] };
}

/* timed: room for all cases. */
static void fit_kernel(const struct work *work, struct finding *by, int32_t kernel,
                       struct tune_timed *timed)
{
    struct tune_kernel *to = &by->kernels[kernel];
    struct tune_costs found;

    for (int32_t c = 0; c < work->fit->case_count; c++)
        timed[c] = timed_of(work, by, c, kernel);
    found = tune_model_fit(&(struct tune_model){ .timed = timed,
                                                 .count = work->fit->case_count,
                                                 .begin = work->base->packed_cost.begin,
                                                 .device = &work->device });
    to->begin_us = found.tile.begin;
    to->key_us = found.tile.key;
    to->call_us = found.call;
    to->residual = found.residual;
}

/* ---- choosing kernels ---- */

/* A set of kernels, the first for all masks. */
struct set {
    int32_t at[TUNE_KERNELS_MAX];
    int32_t count;
};

/* The kernel of the set that a plan would be for: as choose_tiles compares them. */
static int32_t choice_of(const struct work *work, const struct finding *by, const struct set *set,
                         int32_t c)
{
    int32_t best = set->at[0];

    for (int32_t i = 1; i < set->count; i++) {
        const int32_t next = set->at[i];
        const bool is_same_rows =
            work->fit->kernels[next].consumers == work->fit->kernels[best].consumers;

        if ((is_same_rows || are_few(work, c, best)) &&
            by->model_us[place_of(c, next)] <
                (1 - work->base->worth) * by->model_us[place_of(c, best)])
            best = next;
    }
    return best;
}

/* The mean logarithm of the time of what is chosen, as a share of the baseline's. us: those of the
 * finding, or those that judge it. */
static double score_of(const struct work *work, const struct finding *by, const struct set *set,
                       const double *us)
{
    double sum = 0;

    for (int32_t c = 0; c < work->fit->case_count; c++)
        sum += log(us[place_of(c, choice_of(work, by, set, c))] / work->fit->cases[c].baseline_us);
    return sum / work->fit->case_count;
}

/* Whether a tile of a table is of the columns and the packing of a fit. */
static bool is_of(const struct cost_tile *tile, const struct tune_group *fit)
{
    return tile->head_dim == fit->head_dim && tile->head_dim_v == fit->head_dim_v &&
           (tile->packed != 0) == fit->is_packed;
}

/* Whether a kernel may be chosen by its costs. */
static bool is_modelled(const struct finding *by, int32_t kernel)
{
    return by->kernels[kernel].residual <= RESIDUAL_MAX;
}

/* What 1 of the costs takes. Other constants of the table are in the same unit, so it stays what it
 * was by a kernel of the base that was measured, one whose key costs 1 if there is any; else it is
 * a key of the fastest kernel. Of those that the model fits. */
static double unit_of(const struct work *work, const struct finding *by)
{
    const struct cost_table *base = work->base;
    bool is_kept = false;
    double unit = 0;

    for (int32_t k = 0; k < work->fit->kernel_count && unit <= 0; k++)
        if (is_modelled(by, k))
            unit = by->kernels[k].key_us;
    for (int32_t i = 0; i < base->tile_count; i++)
        for (int32_t k = 0; k < work->fit->kernel_count; k++) {
            const struct cost_tile *tile = &base->tiles[i];
            const struct tune_kernel *kernel = &by->kernels[k];

            if (!is_of(tile, work->fit) || !is_modelled(by, k) ||
                tile->consumers != kernel->consumers || tile->tile_n != kernel->tile_n ||
                (is_kept && tile->cost.key != 1))
                continue;
            unit = kernel->key_us / tile->cost.key;
            is_kept = true;
        }
    return unit;
}

static void round_costs(const struct work *work, struct finding *by)
{
    const double unit_us = unit_of(work, by);

    for (int32_t k = 0; k < work->fit->kernel_count && unit_us > 0; k++) {
        struct tune_kernel *kernel = &by->kernels[k];

        kernel->cost.begin = fmin(BEGIN_MAX, round(kernel->begin_us / unit_us));
        kernel->cost.key = fmax(0.001, round(1000 * kernel->key_us / unit_us) / 1000);
        for (int32_t c = 0; c < work->fit->case_count; c++) {
            const struct tune_timed timed = timed_of(work, by, c, k);

            by->model_us[place_of(c, k)] = tune_model_time(&timed, kernel->cost, &work->device);
        }
    }
}

/* Of the gain of what the set chooses in a case. */
static double noise_of(const struct work *work, const struct finding *by, const struct set *set,
                       int32_t c)
{
    return pool(work, c, choice_of(work, by, set, c), TUNE_LAPS_ALL).noise;
}

/* Of the mean over the cases, for what the set chooses. */
static double mean_noise(const struct work *work, const struct finding *by, const struct set *set)
{
    double squares = 0;

    for (int32_t c = 0; c < work->fit->case_count; c++) {
        const double noise = noise_of(work, by, set, c);

        squares += noise * noise;
    }
    return sqrt(squares) / max32(1, work->fit->case_count);
}

/* The set of so many kernels, in any order, by which what is chosen is fastest: plans compare them
 * in the order of the table. Of equal sets the first found: kernels are sorted. count: up to
 * TUNE_KERNELS_MAX, 3. */
static bool find_set(const struct work *work, const struct finding *by, struct set *best,
                     int32_t count)
{
    const int32_t kernels = work->fit->kernel_count;
    double least = HUGE_VAL;

    for (int32_t i = 0; i < kernels; i++)
        for (int32_t j = 0; j < (count > 1 ? kernels : 1); j++)
            for (int32_t k = 0; k < (count > 2 ? kernels : 1); k++) {
                const struct set next = { .at = { i, j, k }, .count = count };
                bool may_be = (count < 2 || i != j) && (count < 3 || (k != i && k != j));
                double score;

                for (int32_t n = 0; n < count; n++)
                    may_be = may_be && is_modelled(by, next.at[n]);
                if (!may_be)
                    continue;
                score = score_of(work, by, &next, by->us);
                if (score < least - 1e-9) {
                    least = score;
                    *best = next;
                }
            }
    return least < HUGE_VAL;
}

/* What the best set of so many kernels is good for: judged by the laps that it was not found by,
 * the mean of the halves. */
struct verdict {
    struct set set; /* by all laps */
    double score;   /* by score_of; HUGE_VAL: one of the halves finds no set */
    double noise;   /* of that, or of the set's own gain, if that is more */
    bool is_found;
};

static struct verdict judge(const struct work *work, int32_t count)
{
    const struct finding *whole = &work->findings[WHOLE];
    struct verdict out = { 0 };

    out.is_found = find_set(work, whole, &out.set, count);
    if (!out.is_found)
        return out;
    out.noise = mean_noise(work, whole, &out.set);
    for (int32_t f = HALVES; f < FINDINGS; f++) {
        const struct finding *by = &work->findings[f];
        struct set set;

        if (!find_set(work, by, &set, count)) {
            out.score = HUGE_VAL;
            break;
        }
        out.score += score_of(work, by, &set, by->judged_us) / (FINDINGS - HALVES);
        out.noise = fmax(out.noise, mean_noise(work, by, &set));
    }
    return out;
}

/* More kernels than one, if what they gain is beyond the noise: ties go to fewer. */
static struct verdict choose_set(const struct work *work)
{
    struct verdict best = judge(work, 1);

    for (int32_t count = 2; count <= TUNE_KERNELS_MAX && best.is_found && best.score < HUGE_VAL;
         count++) {
        const struct verdict next = judge(work, count);

        if (next.is_found && best.score - next.score > fmax(fmax(best.noise, next.noise), GAIN_MIN))
            best = next;
    }
    return best;
}

static void fill_cases(const struct work *work, const struct set *set)
{
    const struct finding *by = &work->findings[WHOLE];

    for (int32_t c = 0; c < work->fit->case_count; c++) {
        struct tune_case *of = &work->fit->cases[c];

        of->chosen = choice_of(work, by, set, c);
        of->chosen_us = by->us[place_of(c, of->chosen)];
        of->gain = of->baseline_us / of->chosen_us - 1;
        of->noise = noise_of(work, by, set, c);
    }
}

/* ---- the table ---- */

/* By columns, and packed heads first. */
static bool is_before(const struct cost_tile *tile, const struct tune_group *fit)
{
    if (tile->head_dim != fit->head_dim)
        return tile->head_dim < fit->head_dim;
    if (tile->head_dim_v != fit->head_dim_v)
        return tile->head_dim_v < fit->head_dim_v;
    return tile->packed && !fit->is_packed;
}

/* Exchange the tiles of a group. False: the table is full. */
static bool publish(struct cost_table *table, const struct tune_group *fit, const struct set *set,
                    double unit_us)
{
    struct cost_table next = *table;
    int32_t at = 0;

    next.tile_count = 0;
    for (int32_t i = 0; i < table->tile_count; i++)
        if (!is_of(&table->tiles[i], fit))
            next.tiles[next.tile_count++] = table->tiles[i];
    if (next.tile_count + set->count > COST_TILES_MAX)
        return false;
    while (at < next.tile_count && is_before(&next.tiles[at], fit))
        at++;
    memmove(&next.tiles[at + set->count], &next.tiles[at],
            (size_t)(next.tile_count - at) * sizeof *next.tiles);
    for (int32_t i = 0; i < set->count; i++) {
        const struct tune_kernel *kernel = &fit->kernels[set->at[i]];

        next.tiles[at + i] = (struct cost_tile){ .head_dim = fit->head_dim,
                                                 .head_dim_v = fit->head_dim_v,
                                                 .packed = fit->is_packed,
                                                 .consumers = kernel->consumers,
                                                 .tile_n = kernel->tile_n,
                                                 .cost = kernel->cost,
                                                 .unit_us = round(1e9 * unit_us) / 1e9 };
    }
    next.tile_count += set->count;
    *table = next;
    return true;
}

/* Choose, and publish if that is worth it. */
static void decide(struct work *work, struct cost_table *table)
{
    const struct finding *whole = &work->findings[WHOLE];
    struct tune_group *fit = work->fit;
    struct verdict verdict;

    for (int32_t f = 0; f < FINDINGS; f++)
        round_costs(work, &work->findings[f]);
    verdict = choose_set(work);
    if (!verdict.is_found) {
        text_copy(fit->reason, "no kernel's times are within %.0f %% of the model",
                  100 * RESIDUAL_MAX);
        return;
    }
    fill_cases(work, &verdict.set);
    if (verdict.score >= HUGE_VAL) {
        text_copy(fit->reason,
                  "by half of its laps no kernel's times are within %.0f %% of the "
                  "model: a larger budget goes on",
                  100 * RESIDUAL_MAX);
        return;
    }
    fit->gain = exp(-verdict.score) - 1;
    fit->noise = verdict.noise;
    if (fit->gain <= fmax(fit->noise, GAIN_MIN))
        text_copy(fit->reason, "the gain of %.2f %% is not above its noise of %.2f %%, or %.1f %%",
                  100 * fit->gain, 100 * fit->noise, 100 * GAIN_MIN);
    else if (score_of(work, whole, &verdict.set, whole->us) >= -GAIN_MIN)
        text_copy(fit->reason, "by all laps what is chosen is no faster by %.1f %%",
                  100 * GAIN_MIN);
    else if (!publish(table, fit, &verdict.set, unit_of(work, whole)))
        text_copy(fit->reason, "the table has no room for more than %d kernels", COST_TILES_MAX);
    else
        fit->is_published = true;
    for (int32_t i = 0; fit->is_published && i < verdict.set.count; i++)
        fit->kernels[verdict.set.at[i]].rank = i;
}

static ffa_status work_begin(struct work *work, ffa_error *err)
{
    const size_t places = (size_t)work->fit->case_count * KERNELS_MAX;

    work->tiles = mem_array(places, sizeof *work->tiles);
    for (int32_t f = 0; f < FINDINGS; f++) {
        struct finding *to = &work->findings[f];

        *to = findings_of_laps[f];
        to->kernels = f == WHOLE ? work->fit->kernels : mem_array(KERNELS_MAX, sizeof *to->kernels);
        to->us = mem_array(places, sizeof *to->us);
        to->judged_us = mem_array(places, sizeof *to->judged_us);
        to->model_us = mem_array(places, sizeof *to->model_us);
        if (!work->tiles || !to->kernels || !to->us || !to->judged_us || !to->model_us)
            return error_nomem(err, "a fit");
    }
    return FFA_OK;
}

static void work_finish(struct work *work)
{
    for (int32_t i = 0; work->tiles && i < work->fit->case_count * KERNELS_MAX; i++)
        tile_finish(&work->tiles[i]);
    mem_free(work->tiles);
    mem_free(work->masks);
    mem_free(work->owns);
    for (int32_t f = 0; f < FINDINGS; f++) {
        struct finding *of = &work->findings[f];

        if (f != WHOLE)
            mem_free(of->kernels);
        mem_free(of->us);
        mem_free(of->judged_us);
        mem_free(of->model_us);
    }
}

static ffa_status fit_kernels(struct work *work, ffa_error *err)
{
    struct tune_group *fit = work->fit;
    struct tune_timed *timed = mem_array((size_t)fit->case_count, sizeof *timed);
    ffa_status rc = FFA_OK;

    if (!timed)
        return error_nomem(err, "a fit");
    for (int32_t c = 0; c < fit->case_count; c++)
        for (int32_t k = 0; k < fit->kernel_count; k++)
            FFA_TRY(build_tiles(work, c, k, err));
    for (int32_t k = 0; k < fit->kernel_count; k++)
        pool_kernel(work, k);
    for (int32_t f = 0; f < FINDINGS; f++) {
        struct finding *by = &work->findings[f];

        if (f != WHOLE)
            memcpy(by->kernels, fit->kernels, (size_t)fit->kernel_count * sizeof *by->kernels);
        for (int32_t k = 0; k < fit->kernel_count; k++)
            fit_kernel(work, by, k, timed);
    }
out:
    mem_free(timed);
    return rc;
}

static ffa_status fit_group(struct work *work, struct cost_table *table, ffa_error *err)
{
    struct tune_group *fit = work->fit;
    ffa_status rc;

    fit->session_count = work->count;
    FFA_TRY(find_cases(work, err));
    FFA_TRY(find_kernels(work, err));
    if (fit->case_count) {
        FFA_TRY(find_masks(work, err));
        pool_baseline(work);
    }
    if (!fit->case_count || !fit->kernel_count) {
        text_copy(fit->reason, "no session has measured enough: a larger budget goes on");
        fit->kernel_count = 0;
        goto out;
    }
    find_owns(work);
    sort_whole(work);
    if (!fit->kernel_count) {
        text_copy(fit->reason,
                  "no tile was timed with all masks and heads of the sessions: time the same tiles "
                  "and masks, or fit the sessions apart");
        goto out;
    }
    FFA_TRY(work_begin(work, err));
    FFA_TRY(fit_kernels(work, err));
    decide(work, table);
out:
    work_finish(work);
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
    int64_t last_s = 0, samples = 0;

    for (int32_t i = 0; i < count; i++) {
        last_s = max64(last_s, records[i]->started_s);
        samples += records[i]->sample_count;
    }
    text_copy(table->origin,
              "tuned: %d sessions, %lld samples, the last of Unix time %lld, driver "
              "%.24s",
              count, (long long)samples, (long long)last_s, records[count - 1]->driver);
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
        while (at < out->fit_count && !is_in_group(&records[i], &out->fits[at]))
            at++;
        if (at < out->fit_count)
            continue;
        assert(at < TUNE_FITS_MAX);
        out->fits[out->fit_count++] =
            (struct tune_group){ .head_dim = jit_columns(records[i].head_dim),
                                 .head_dim_v = jit_columns(records[i].head_dim_v),
                                 .is_packed = records[i].pack_heads > 0 };
    }
    qsort(out->fits, (size_t)out->fit_count, sizeof *out->fits, by_columns);
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
    for (int32_t g = 0; g < out->fit_count; g++) {
        struct work work = { .records = own,
                             .base = &base,
                             .device = { .facts = sorted[0]->facts, .costs = &base },
                             .fit = &out->fits[g] };

        for (int32_t i = 0; i < count; i++)
            if (is_in_group(sorted[i], work.fit))
                own[work.count++] = sorted[i];
        FFA_TRY(fit_group(&work, &out->table, err));
        is_published |= work.fit->is_published;
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
