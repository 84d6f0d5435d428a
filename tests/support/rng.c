/* SPDX-License-Identifier: Apache-2.0
 *
 * A seeded generator for tests: what is not drawn often enough to be in the header.
 */
#include "support/rng.h"

#include <assert.h>
#include <math.h>

int64_t rng_range(struct rng *rng, int64_t low, int64_t high)
{
    assert(low <= high);
    return low + (int64_t)(rng_next(rng) % (uint64_t)(high - low + 1));
}

double rng_normal(struct rng *rng)
{
    double u = ((double)(rng_next(rng) >> 11) + 1.0) * 0x1p-53;
    double v = (double)(rng_next(rng) >> 11) * 0x1p-53;

    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}
