/* SPDX-License-Identifier: Apache-2.0
 *
 * Masks for tests: those of tests/data/masks.json, and random unions of slices.
 */
#ifndef TESTS_MASK_CASES_H
#define TESTS_MASK_CASES_H

#include "support/rng.h"
#include <ffa/mask.h>

struct mask_case {
    char name[64];
    ffa_mask_shape shape;
    ffa_slice *slices;
    int64_t count;
    int64_t area; /* as the file states it */
};

struct mask_cases {
    struct mask_case *at;
    int64_t count;
};

/* All cases of the file. Aborts where it cannot be read. */
struct mask_cases mask_cases_load(void);
void mask_cases_free(struct mask_cases *cases);
/* NULL if no case has the name. */
const struct mask_case *mask_cases_find(const struct mask_cases *cases, const char *name);

/* Up to `slices_max` slices of all types over at most `tokens_max` tokens: overlapping unions,
 * packed documents, windows, grids, single rows, gaps. The caller frees `slices`. */
struct mask_case mask_case_random(struct rng *rng, int64_t tokens_max, int64_t slices_max);

#endif
