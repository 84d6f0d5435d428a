/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/data/parallel.json, and what tests of the context-parallel planner share.
 */
#ifndef TESTS_DIST_CASES_H
#define TESTS_DIST_CASES_H

#include "support/rng.h"
#include <ffa/mask.h>

#include <jansson.h>

/* The whole file; json_decref() when done. Aborts where it cannot be read. */
json_t *parallel_cases_load(void);

/* The integers of an array, in the caller's memory; their count, at most `max` or it aborts. */
int64_t parallel_integers(const json_t *array, int64_t *out, int64_t max);

/* The mask of an entry with "q", "k", and "types" or "type"; tokens 0: "seqlen", or the last row.
 * Aborts where it is none. */
ffa_mask *parallel_case_mask(const json_t *entry, int64_t tokens);

/* Slice i of such an entry. */
ffa_slice parallel_case_slice(const json_t *entry, size_t i);

/* A random mask of `tokens` queries and keys. */
ffa_mask *parallel_random_mask(struct rng *rng, int64_t tokens, int64_t slices_max);

#endif
