/* SPDX-License-Identifier: Apache-2.0 */
#include "support/stage_case.h"

#include <stdlib.h>
#include <string.h>

static void must(ffa_status rc)
{
    if (rc != FFA_OK)
        abort();
}

void stage_case_init(struct stage_case *test, struct rng *rng, int64_t rows_max)
{
    ffa_slice all[STAGE_CASE_MAX * STAGE_CASE_SLICES], own[STAGE_CASE_SLICES];
    int64_t total = 0;

    *test = (struct stage_case){ .count = (int32_t)rng_range(rng, 1, STAGE_CASE_MAX) };
    test->shape.seqlen_q = rng_range(rng, 1, rows_max);
    for (int32_t s = 0; s < test->count; s++) {
        const ffa_mask_shape shape = { test->shape.seqlen_q, rng_range(rng, 1, rows_max) };
        const int64_t first = test->key_begin[s];
        int64_t count = rng_range(rng, 0, STAGE_CASE_SLICES);

        for (int64_t i = 0; i < count; i++) {
            own[i] = (ffa_slice){ 0 };
            own[i].q_begin = rng_range(rng, 0, shape.seqlen_q);
            own[i].q_end = rng_range(rng, own[i].q_begin, shape.seqlen_q);
            own[i].k_begin = rng_range(rng, 0, shape.seqlen_k);
            own[i].k_end = rng_range(rng, own[i].k_begin, shape.seqlen_k);
            own[i].type = (int32_t)rng_range(rng, 0, 3);
            all[total] = own[i];
            all[total].k_begin += first;
            all[total++].k_end += first;
        }
        must(ffa_mask_create(&test->masks[s], &shape, own, count, NULL));
        test->key_begin[s + 1] = first + shape.seqlen_k;
    }
    test->shape.seqlen_k = test->key_begin[test->count];
    must(ffa_mask_create(&test->whole, &test->shape, all, total, NULL));
}

void stage_case_finish(struct stage_case *test)
{
    for (int32_t s = 0; s < test->count; s++)
        ffa_mask_destroy(test->masks[s]);
    ffa_mask_destroy(test->whole);
    memset(test, 0, sizeof *test);
}
