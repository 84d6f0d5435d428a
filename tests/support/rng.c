/* SPDX-License-Identifier: Apache-2.0
 *
 * A seeded generator for tests: splitmix64 (Steele et al. 2014).
 *
 * The integers are the same on every machine. So are the numbers of rng_bell(), which needs only
 * exact sums and one product; rng_normal() depends on the log and cos of libm.
 */
#include "support/rng.h"

#include <assert.h>
#include <math.h>

uint64_t rng_next(struct rng *rng)
{
    uint64_t z = (rng->state += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

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

double rng_bell(struct rng *rng)
{
    const uint64_t bits = rng_next(rng);
    const double sum = (double)(bits & 0xffff) + (double)(bits >> 16 & 0xffff) +
                       (double)(bits >> 32 & 0xffff) + (double)(bits >> 48);

    return (sum - 2.0 * 65535.0) * (1.7320508075688772 / 65535.0);
}
