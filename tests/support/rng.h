/* SPDX-License-Identifier: Apache-2.0
 *
 * A seeded generator for tests (splitmix64, Steele et al. 2014): the same numbers everywhere.
 */
#ifndef TESTS_RNG_H
#define TESTS_RNG_H

#include <stdint.h>

struct rng {
    uint64_t state;
};

uint64_t rng_next(struct rng *rng);
/* Uniform in [low, high], both included. */
int64_t rng_range(struct rng *rng, int64_t low, int64_t high);
/* Standard normal. */
double rng_normal(struct rng *rng);
/* Nearly so, and quick: the sum of four uniform numbers, mean 0, variance 1, within 3.5. */
double rng_bell(struct rng *rng);

#endif
