/* SPDX-License-Identifier: Apache-2.0
 *
 * The makespan of a mask is linear in `begin` and `key` as long as the same SM is the last one: the
 * two slopes are found by a small step of `begin`, least squares over the masks give new costs, and
 * a few such steps settle. What a call takes whatever its tiles is the third unknown; it is the
 * same for all kernels of a mask, so plans need not know it.
 */
#include "tune/tune_model.h"

#include <math.h>

enum { STEPS_MAX = 40 };

double tune_model_time(const struct tune_timed *timed, struct tile_cost cost,
                       const struct choose_device *device)
{
    const struct tile_candidate kernel = { timed->tiles->tile_m, timed->tiles->tile_n, cost };
    const struct tile_query query = { .heads = timed->heads };

    return choose_tiles_time(timed->tiles, &kernel, &query, device);
}

static double residual_of(const struct tune_model *model, const struct tune_costs *costs)
{
    double sum = 0;

    for (int32_t i = 0; i < model->count; i++)
        sum += fabs((costs->call + tune_model_time(&model->timed[i], costs->tile, model->device)) /
                        model->timed[i].us -
                    1);
    return sum / model->count;
}

/* Solves `count` equations of a symmetric positive system by elimination; the right-hand side is
 * the last column, and then the solution. false: the system is all but singular. */
static bool solve(double a[3][4], int count)
{
    for (int i = 0; i < count; i++) {
        if (!(a[i][i] > 0))
            return false;
        for (int r = 0; r < count; r++) {
            const double factor = a[r][i] / a[i][i], diagonal = a[r][r];

            for (int j = 0; r != i && j < 4; j++)
                a[r][j] -= factor * a[i][j];
            if (r > i && !(a[r][r] > 1e-9 * diagonal))
                return false;
        }
    }
    for (int i = 0; i < count; i++)
        a[i][3] /= a[i][i];
    return true;
}

/* Least squares of the relative error, with the slopes at `at`. `begin` and `key` stay positive,
 * and `call` is 0 where it came out below. */
static struct tune_costs step_from(const struct tune_model *model, struct tune_costs at)
{
    const double small = 1e-6;
    double sums[3][4] = { { 0 } };
    struct tune_costs out = at;

    for (int32_t i = 0; i < model->count; i++) {
        const struct tune_timed *timed = &model->timed[i];
        const struct tile_cost aside = { at.tile.begin * (1 + small), at.tile.key };
        const double us = timed->us, here = tune_model_time(timed, at.tile, model->device);
        const double begins =
            (tune_model_time(timed, aside, model->device) - here) / (at.tile.begin * small);
        const double row[4] = { begins / us, (here - begins * at.tile.begin) / at.tile.key / us,
                                1 / us, 1 };

        for (int r = 0; r < 3; r++)
            for (int j = 0; j < 4; j++)
                sums[r][j] += row[r] * row[j];
    }
    for (int unknowns = 3; unknowns >= 2; unknowns--) {
        double a[3][4];

        memcpy(a, sums, sizeof a);
        if (!solve(a, unknowns) || (unknowns == 3 && a[2][3] < 0))
            continue;
        out = (struct tune_costs){ { a[0][3], a[1][3] }, unknowns == 3 ? a[2][3] : 0, 0 };
        break;
    }
    out.tile.key = fmax(out.tile.key, 1e-3 * at.tile.key);
    out.tile.begin = fmax(out.tile.begin, out.tile.key);
    return out;
}

/* The best of a few steps. */
struct tune_costs tune_model_fit(const struct tune_model *model)
{
    struct tune_costs at = { { model->begin, 1 }, 0, 0 }, best = { .residual = HUGE_VAL };
    double scale = 0;

    for (int32_t i = 0; i < model->count; i++)
        scale += model->timed[i].us / tune_model_time(&model->timed[i], at.tile, model->device);
    at.tile.key = scale / model->count;
    at.tile.begin *= at.tile.key;
    for (int32_t i = 0; i < STEPS_MAX; i++) {
        const struct tune_costs was = at;

        at.residual = residual_of(model, &at);
        if (at.residual < best.residual)
            best = at;
        at = step_from(model, at);
        if (fabs(at.tile.begin - was.tile.begin) <= 1e-9 * was.tile.begin &&
            fabs(at.tile.key - was.tile.key) <= 1e-9 * was.tile.key)
            break;
    }
    return best;
}
