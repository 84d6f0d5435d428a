/* SPDX-License-Identifier: Apache-2.0
 *
 * What the device tests of both passes share. Failures end the test.
 */
#ifndef FFA_TEST_DEVICE_CASE_H
#define FFA_TEST_DEVICE_CASE_H

#include "support/attention_case.h"
#include "support/mask_cases.h"

#include <check.h>
#include <ffa/ffa.h>
#include <stdbool.h>

/* FFA_TEST_LEVEL decides how much a test does:
 *   2  the oracle evaluates every row and key, up to its own limit
 *   1  (default) the oracle evaluates samples of cases above 4e6 cells
 *   0  (for tests/emulator) samples above 4e5 cells, and a twelfth of the repetitions */
extern int64_t full_cells; /* cells above which the oracle evaluates samples */
extern int level_share;    /* one repetition in this many runs; above 1 at level 0 only */

/* Read the level. At level 0 the layouts get fewer heads, with as many query heads to a kv head. */
void level_read(struct attention_shape *layouts, int count);

/* Whether level 0 leaves this case out: of those with many cells, one in level_share runs. */
bool is_left_out(const ffa_mask *mask, int32_t heads);

/* The step of a loop: `few` at level 0, else `otherwise`. */
int level_step(int few, int otherwise);

/* Add iterations [begin, end) of a test, or this process's part of them: with FFA_TEST_PART=I/N the
 * I-th of N, counted from 0. */
void add_part(TCase *tcase, const TTest *test, int begin, int end);
/* Add iterations [0, count) likewise; at level 0 every `step`th of them. */
void add_loop(TCase *tcase, const TTest *test, int count, int step);

/* Fail the test unless rc is FFA_OK, with the error's message. */
void must(ffa_status rc, const ffa_error *err, const char *what);

/* Of a plan for the mask, with a spec's kernels in a context of its own over this store. The test
 * fails where the store and the flags, FFA_OPEN_..., do not let it have them. */
ffa_plan_info info_with_store(const char *store, uint32_t flags, const ffa_attention_spec *spec,
                              const ffa_mask *mask);

ffa_mask *parse(const char *text);
ffa_mask *mask_of(const struct mask_case *from);

/* Write `value` to the head_dim columns of a token in heads [0, heads). */
void write_row(const ffa_tensor *tensor, const struct attention_shape *shape, int64_t row,
               int32_t heads, double value);

#endif
