/* SPDX-License-Identifier: Apache-2.0
 *
 * A seeded generator for tests: splitmix64 (Steele et al. 2014).
 *
 * The integers are the same on every machine. So are the numbers of rng_bell(), which needs only
 * exact sums and one product; rng_normal() depends on the log and cos of libm.
 */
#ifndef TESTS_RNG_H
#define TESTS_RNG_H

#include <stdint.h>

struct rng {
    uint64_t state;
};

static inline uint64_t rng_next(struct rng *rng)
{
    uint64_t z = (rng->state += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Uniform in [low, high], both included. */
int64_t rng_range(struct rng *rng, int64_t low, int64_t high);
/* Standard normal. */
double rng_normal(struct rng *rng);
/* Nearly so, and quick: the sum of four uniform numbers, mean 0, variance 1, within 3.5. */
static inline double rng_bell(struct rng *rng)
{
    const uint64_t bits = rng_next(rng);
    const uint64_t sum =
        (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);

    return ((double)sum - 2.0 * 65535.0) * (1.7320508075688772 / 65535.0);
}

#endif
