/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tiles of both passes are computed with: elements of any dtype, the bounds that bands
 * give, and the two products.
 * Included where REAL and its functions are defined. The loops run over tokens or over head_dim
 * without a reduction, so they vectorise without reassociation.
 */
#ifndef FFA_CPU_CPU_MATH_H
#define FFA_CPU_CPU_MATH_H

#include "base/half.h"
#include "tile/tile.h"
#include <ffa/kernel.h>

#include <math.h>

/* ---- elements ---- */

static void load(ffa_dtype dtype, const void *data, int64_t at, int32_t count, REAL *restrict to)
{
    switch (dtype) {
    case FFA_BF16:
        for (int32_t i = 0; i < count; i++)
            to[i] = bf16_to_float(((const uint16_t *)data)[at + i]);
        break;
    case FFA_FP16:
        for (int32_t i = 0; i < count; i++)
            to[i] = fp16_to_float(((const uint16_t *)data)[at + i]);
        break;
    case FFA_FP32:
        for (int32_t i = 0; i < count; i++)
            to[i] = ((const float *)data)[at + i];
        break;
    case FFA_FP64:
        for (int32_t i = 0; i < count; i++)
            to[i] = (REAL)((const double *)data)[at + i];
        break;
    }
}

static void store(ffa_dtype dtype, void *data, int64_t at, double value)
{
    switch (dtype) {
    case FFA_BF16:
        ((uint16_t *)data)[at] = bf16_from_float(float_to_odd(value));
        break;
    case FFA_FP16:
        ((uint16_t *)data)[at] = fp16_from_float(float_to_odd(value));
        break;
    case FFA_FP32:
        ((float *)data)[at] = (float)value;
        break;
    case FFA_FP64:
        ((double *)data)[at] = value;
        break;
    }
}

/* Of lse, and of what is of its dtype: `asked` by the caller of tensors of `dtype`. */
static ffa_dtype lse_dtype_of(ffa_dtype asked, ffa_dtype dtype)
{
    return asked ? asked : dtype == FFA_FP64 ? FFA_FP64 : FFA_FP32;
}

/* lse is stored in either width. */
static REAL load_lse(ffa_dtype dtype, const void *data, int64_t at)
{
    return dtype == FFA_FP64 ? (REAL)((const double *)data)[at] : (REAL)((const float *)data)[at];
}

/* ---- bands ---- */

/* Of each line of the tile (a row it owns, or a key) what it attends in the sweep: [begin, end),
 * empty where no band of the sweep has the line. begin, end [tile->count]. */
static void sweep_bounds(const struct tile_plan *plan, const struct plan_tile *tile,
                         const struct plan_sweep *sweep, int32_t *begin, int32_t *end)
{
    memset(begin, 0, (size_t)tile->count * sizeof *begin);
    memset(end, 0, (size_t)tile->count * sizeof *end);
    for (int32_t b = 0; b < sweep->band_count; b++) {
        const struct plan_band *band = &plan->bands[tile->band_begin + sweep->band_begin + b];
        const int32_t first = band->begin - tile->begin;
        const int32_t last = band->end - tile->begin;

        for (int32_t i = first > 0 ? first : 0; i < last && i < tile->count; i++) {
            begin[i] = band->lo + band->lo_step * (i - first);
            end[i] = band->hi + band->hi_step * (i - first);
        }
    }
}

/* ---- products ---- */

/* scores[from, to) = scale * q . keys */
static void score(const REAL *restrict q, const REAL *restrict keys, int32_t stride, int32_t dim,
                  int32_t from, int32_t to, REAL scale, REAL *restrict scores)
{
    int32_t c = 0;

    for (int32_t j = from; j < to; j++)
        scores[j] = 0;
    for (; c + 4 <= dim; c += 4) {
        const REAL *restrict k0 = keys + (int64_t)c * stride;
        const REAL *restrict k1 = k0 + stride;
        const REAL *restrict k2 = k1 + stride;
        const REAL *restrict k3 = k2 + stride;

        for (int32_t j = from; j < to; j++)
            scores[j] += (q[c] * k0[j] + q[c + 1] * k1[j]) + (q[c + 2] * k2[j] + q[c + 3] * k3[j]);
    }
    for (; c < dim; c++)
        for (int32_t j = from; j < to; j++)
            scores[j] += q[c] * keys[(int64_t)c * stride + j];
    for (int32_t j = from; j < to; j++)
        scores[j] *= scale;
}

static void cap_scores(REAL cap, int32_t from, int32_t to, REAL *restrict scores)
{
    for (int32_t j = from; j < to; j++)
        scores[j] = cap * REAL_TANH(scores[j] / cap);
}

/* out += weights[from, to) values */
static void gather(const REAL *restrict weights, const REAL *restrict values, int32_t dim,
                   int32_t from, int32_t to, REAL *restrict out)
{
    int32_t j = from;

    for (; j + 4 <= to; j += 4) {
        const REAL *restrict v0 = values + (int64_t)j * dim;
        const REAL *restrict v1 = v0 + dim;
        const REAL *restrict v2 = v1 + dim;
        const REAL *restrict v3 = v2 + dim;

        for (int32_t c = 0; c < dim; c++)
            out[c] += (weights[j] * v0[c] + weights[j + 1] * v1[c]) +
                      (weights[j + 2] * v2[c] + weights[j + 3] * v3[c]);
    }
    for (; j < to; j++)
        for (int32_t c = 0; c < dim; c++)
            out[c] += weights[j] * values[(int64_t)j * dim + c];
}

#endif
