/* SPDX-License-Identifier: Apache-2.0
 *
 * Costs are rounded before they are used, so that the last bits of a sum decide nothing.
 */
#include "tune/tune_sets.h"

#include "tune/tune_model.h"

#include <math.h>

static const double BEGIN_MAX = 1e6; /* keys: beyond that, times do not tell what a key takes */

static const struct tune_finding findings_of_laps[TUNE_FINDINGS] = {
    { .found_by = TUNE_LAPS_ALL },
    { .found_by = TUNE_LAPS_HEATS | TUNE_LAPS_EVEN, .judged_by = TUNE_LAPS_ODD },
    { .found_by = TUNE_LAPS_HEATS | TUNE_LAPS_ODD, .judged_by = TUNE_LAPS_EVEN },
};

/* ---- the model ---- */

/* What runs each tile: packs of heads, or heads. */
static int32_t heads_of(const struct tune_work *work, int32_t c)
{
    return work->group->is_packed ? work->group->cases[c].heads_kv : work->group->cases[c].heads_q;
}

static ffa_status build_tiles(struct tune_work *work, int32_t c, int32_t kernel, ffa_error *err)
{
    const struct tune_case *of = &work->group->cases[c];
    const struct tune_kernel *from = &work->group->kernels[kernel];
    const struct tile_candidate candidate = {
        .tile_m = 64 * from->consumers / (work->group->is_packed ? of->heads_q / of->heads_kv : 1),
        .tile_n = from->tile_n,
        .cost = { work->base->packed_cost.begin, 1 },
    };
    const struct tile_query query = { .candidates = &candidate,
                                      .candidate_count = 1,
                                      .heads = heads_of(work, c),
                                      .is_packed = work->group->is_packed };
    struct tile_choice choice;
    ffa_mask *mask = NULL;
    ffa_status rc;

    FFA_TRY(ffa_mask_parse(&mask, of->mask, err));
    rc = choose_tiles(&work->tiles[tune_place(c, kernel)], &choice, mask, &query, &work->device,
                      err);
out:
    ffa_mask_destroy(mask);
    return rc;
}

static struct tune_timed timed_of(const struct tune_work *work, const struct tune_finding *by,
                                  int32_t c, int32_t kernel)
{
    return (struct tune_timed){ .tiles = &work->tiles[tune_place(c, kernel)],
                                .heads = heads_of(work, c),
                                .us = by->us[tune_place(c, kernel)] };
}

/* timed: room for all cases. */
static void fit_kernel(const struct tune_work *work, struct tune_finding *by, int32_t kernel,
                       struct tune_timed *timed)
{
    struct tune_kernel *to = &by->kernels[kernel];
    struct tune_costs found;

    for (int32_t c = 0; c < work->group->case_count; c++)
        timed[c] = timed_of(work, by, c, kernel);
    found = tune_model_fit(&(struct tune_model){ .timed = timed,
                                                 .count = work->group->case_count,
                                                 .begin = work->base->packed_cost.begin,
                                                 .device = &work->device });
    to->begin_us = found.tile.begin;
    to->key_us = found.tile.key;
    to->call_us = found.call;
    to->residual = found.residual;
}

/* Whether a kernel may be chosen by its costs. */
static bool is_modelled(const struct tune_finding *by, int32_t kernel)
{
    return by->kernels[kernel].residual <= TUNE_RESIDUAL_MAX;
}

double tune_unit(const struct tune_work *work, const struct tune_finding *by)
{
    const struct cost_table *base = work->base;
    bool is_kept = false;
    double unit = 0;

    for (int32_t k = 0; k < work->group->kernel_count && unit <= 0; k++)
        if (is_modelled(by, k))
            unit = by->kernels[k].key_us;
    for (int32_t i = 0; i < base->tile_count; i++)
        for (int32_t k = 0; k < work->group->kernel_count; k++) {
            const struct cost_tile *tile = &base->tiles[i];
            const struct tune_kernel *kernel = &by->kernels[k];

            if (!tune_is_of(tile, work->group) || !is_modelled(by, k) ||
                tile->consumers != kernel->consumers || tile->tile_n != kernel->tile_n ||
                (is_kept && tile->cost.key != 1))
                continue;
            unit = kernel->key_us / tile->cost.key;
            is_kept = true;
        }
    return unit;
}

static void round_costs(const struct tune_work *work, struct tune_finding *by)
{
    const double unit_us = tune_unit(work, by);

    for (int32_t k = 0; k < work->group->kernel_count && unit_us > 0; k++) {
        struct tune_kernel *kernel = &by->kernels[k];

        kernel->cost.begin = fmin(BEGIN_MAX, round(kernel->begin_us / unit_us));
        kernel->cost.key = fmax(0.001, round(1000 * kernel->key_us / unit_us) / 1000);
        for (int32_t c = 0; c < work->group->case_count; c++) {
            const struct tune_timed timed = timed_of(work, by, c, k);

            by->model_us[tune_place(c, k)] = tune_model_time(&timed, kernel->cost, &work->device);
        }
    }
}

static void pool_times(struct tune_work *work, int32_t kernel)
{
    for (int32_t f = 0; f < TUNE_FINDINGS; f++)
        for (int32_t c = 0; c < work->group->case_count; c++) {
            const struct tune_finding *to = &work->findings[f];
            const double baseline_us = work->group->cases[c].baseline_us;

            to->us[tune_place(c, kernel)] =
                baseline_us * tune_pool(work, c, kernel, to->found_by).share;
            if (to->judged_by)
                to->judged_us[tune_place(c, kernel)] =
                    baseline_us * tune_pool(work, c, kernel, to->judged_by).share;
        }
}

static ffa_status begin(struct tune_work *work, ffa_error *err)
{
    const size_t places = (size_t)work->group->case_count * TUNE_CONFIGURATIONS_MAX;

    work->tiles = mem_array(places, sizeof *work->tiles);
    for (int32_t f = 0; f < TUNE_FINDINGS; f++) {
        struct tune_finding *to = &work->findings[f];

        *to = findings_of_laps[f];
        to->kernels = f == TUNE_WHOLE ? work->group->kernels
                                      : mem_array(TUNE_CONFIGURATIONS_MAX, sizeof *to->kernels);
        to->us = mem_array(places, sizeof *to->us);
        to->judged_us = to->judged_by ? mem_array(places, sizeof *to->judged_us) : NULL;
        to->model_us = mem_array(places, sizeof *to->model_us);
        if (!work->tiles || !to->kernels || !to->us || (to->judged_by && !to->judged_us) ||
            !to->model_us)
            return error_nomem(err, "a fit");
    }
    return FFA_OK;
}

void tune_sets_finish(struct tune_work *work)
{
    for (int32_t i = 0; work->tiles && i < work->group->case_count * TUNE_CONFIGURATIONS_MAX; i++)
        tile_finish(&work->tiles[i]);
    mem_free(work->tiles);
    for (int32_t f = 0; f < TUNE_FINDINGS; f++) {
        struct tune_finding *of = &work->findings[f];

        if (f != TUNE_WHOLE)
            mem_free(of->kernels);
        mem_free(of->us);
        mem_free(of->judged_us);
        mem_free(of->model_us);
    }
}

ffa_status tune_sets_fit(struct tune_work *work, ffa_error *err)
{
    struct tune_group *group = work->group;
    struct tune_timed *timed = mem_array((size_t)group->case_count, sizeof *timed);
    ffa_status rc = FFA_OK;

    if (!timed)
        return error_nomem(err, "a fit");
    FFA_TRY(begin(work, err));
    for (int32_t c = 0; c < group->case_count; c++)
        for (int32_t k = 0; k < group->kernel_count; k++)
            FFA_TRY(build_tiles(work, c, k, err));
    for (int32_t k = 0; k < group->kernel_count; k++)
        pool_times(work, k);
    for (int32_t f = 0; f < TUNE_FINDINGS; f++) {
        struct tune_finding *by = &work->findings[f];

        if (f != TUNE_WHOLE)
            memcpy(by->kernels, group->kernels, (size_t)group->kernel_count * sizeof *by->kernels);
        for (int32_t k = 0; k < group->kernel_count; k++)
            fit_kernel(work, by, k, timed);
        round_costs(work, by);
    }
out:
    mem_free(timed);
    return rc;
}

/* ---- choosing kernels ---- */

/* As choose_tiles compares them. */
int32_t tune_set_choice(const struct tune_work *work, const struct tune_finding *by,
                        const struct tune_set *set, int32_t c)
{
    int32_t best = set->at[0];

    for (int32_t i = 1; i < set->count; i++) {
        const int32_t next = set->at[i];
        const bool is_same_rows =
            work->group->kernels[next].consumers == work->group->kernels[best].consumers;

        if ((is_same_rows ||
             choose_are_few(&work->tiles[tune_place(c, best)], heads_of(work, c), &work->device)) &&
            by->model_us[tune_place(c, next)] <
                (1 - work->base->worth) * by->model_us[tune_place(c, best)])
            best = next;
    }
    return best;
}

double tune_set_score(const struct tune_work *work, const struct tune_finding *by,
                      const struct tune_set *set, const double *us)
{
    double sum = 0;

    for (int32_t c = 0; c < work->group->case_count; c++)
        sum += log(us[tune_place(c, tune_set_choice(work, by, set, c))] /
                   work->group->cases[c].baseline_us);
    return sum / work->group->case_count;
}

double tune_set_noise(const struct tune_work *work, const struct tune_finding *by,
                      const struct tune_set *set, int32_t c)
{
    return tune_pool(work, c, tune_set_choice(work, by, set, c), TUNE_LAPS_ALL).noise;
}

/* Of the mean over the cases, for what the set chooses, in the laps of the final: heats judge
 * nothing. */
static double mean_noise(const struct tune_work *work, const struct tune_finding *by,
                         const struct tune_set *set)
{
    double squares = 0;

    for (int32_t c = 0; c < work->group->case_count; c++) {
        const int32_t chosen = tune_set_choice(work, by, set, c);
        const double noise = tune_pool(work, c, chosen, TUNE_LAPS_EVEN | TUNE_LAPS_ODD).noise;

        squares += noise * noise;
    }
    return sqrt(squares) / max32(1, work->group->case_count);
}

/* The set of so many kernels, in any order, by which what is chosen is fastest: plans compare them
 * in the order of the table. Of equal sets the first found: kernels are sorted. count: up to
 * TUNE_KERNELS_MAX, 3. */
static bool find_set(const struct tune_work *work, const struct tune_finding *by,
                     struct tune_set *best, int32_t count)
{
    const int32_t kernels = work->group->kernel_count;
    double least = HUGE_VAL;

    for (int32_t i = 0; i < kernels; i++)
        for (int32_t j = 0; j < (count > 1 ? kernels : 1); j++)
            for (int32_t k = 0; k < (count > 2 ? kernels : 1); k++) {
                const struct tune_set next = { .at = { i, j, k }, .count = count };
                bool may_be = (count < 2 || i != j) && (count < 3 || (k != i && k != j));
                double score;

                for (int32_t n = 0; n < count; n++)
                    may_be = may_be && is_modelled(by, next.at[n]);
                if (!may_be)
                    continue;
                score = tune_set_score(work, by, &next, by->us);
                if (score < least - 1e-9) {
                    least = score;
                    *best = next;
                }
            }
    return least < HUGE_VAL;
}

/* The best set of so many kernels. */
static struct tune_verdict judge(const struct tune_work *work, int32_t count)
{
    const struct tune_finding *whole = &work->findings[TUNE_WHOLE];
    struct tune_verdict out = { 0 };

    out.is_found = find_set(work, whole, &out.set, count);
    if (!out.is_found)
        return out;
    out.noise = mean_noise(work, whole, &out.set);
    for (int32_t f = TUNE_HALVES; f < TUNE_FINDINGS; f++) {
        const struct tune_finding *by = &work->findings[f];
        struct tune_set set;

        if (!find_set(work, by, &set, count)) {
            out.score = HUGE_VAL;
            break;
        }
        out.score += tune_set_score(work, by, &set, by->judged_us) / (TUNE_FINDINGS - TUNE_HALVES);
        out.noise = fmax(out.noise, mean_noise(work, by, &set));
    }
    return out;
}

struct tune_verdict tune_sets_choose(const struct tune_work *work)
{
    struct tune_verdict best = judge(work, 1);

    for (int32_t count = 2; count <= TUNE_KERNELS_MAX && best.is_found && best.score < HUGE_VAL;
         count++) {
        const struct tune_verdict next = judge(work, count);

        if (next.is_found &&
            best.score - next.score > fmax(fmax(best.noise, next.noise), TUNE_GAIN_MIN))
            best = next;
    }
    return best;
}
