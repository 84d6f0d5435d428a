/* SPDX-License-Identifier: Apache-2.0
 *
 * A random pass in stages: a mask over the keys of each stage, and the one mask they make together
 * over all keys, stage after stage.
 */
#ifndef TESTS_STAGE_CASE_H
#define TESTS_STAGE_CASE_H

#include "support/rng.h"
#include <ffa/mask.h>

enum { STAGE_CASE_MAX = 4, STAGE_CASE_SLICES = 6 };

struct stage_case {
    int32_t count;
    ffa_mask_shape shape;                  /* of the whole */
    int64_t key_begin[STAGE_CASE_MAX + 1]; /* of each stage in the whole */
    ffa_mask *masks[STAGE_CASE_MAX];       /* keys counted from the stage's first */
    ffa_mask *whole;
};

/* 1 to STAGE_CASE_MAX stages of up to rows_max rows and keys. Some rows, and some stages, attend
 * nothing. */
void stage_case_init(struct stage_case *test, struct rng *rng, int64_t rows_max);
void stage_case_finish(struct stage_case *test);

#endif
