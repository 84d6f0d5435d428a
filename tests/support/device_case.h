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

/* How much is done, from FFA_TEST_LEVEL: 2 the oracle evaluates all that it can, 1 (default)
 * samples of cases above 4e6 cells, 0 (the emulator, tests/emulator) above 4e5, and a twelfth of
 * the repetitions. */
extern int64_t full_cells;
extern int share; /* of repetitions, one in so many is run */

/* At level 0 the layouts get fewer heads, in the same groups. */
void level_read(struct attention_shape *layouts, int count);

/* Level 0: whether this case of many cells is not the one in so many that is run. */
bool passes_over(const ffa_mask *mask, int32_t heads);

/* A loop's step: `few` at level 0. */
int level_step(int few, int otherwise);

/* Iterations [begin, end) of a test, or this process's share of them: FFA_TEST_PART=I/N is the I-th
 * of N, from 0. */
void add_part(TCase *tcase, const TTest *test, int begin, int end);
/* All of a test's iterations, or likewise; at level 0 every `step`th. */
void add_loop(TCase *tcase, const TTest *test, int count, int step);

void must(ffa_status rc, const ffa_error *err, const char *what);

ffa_mask *parse(const char *text);
ffa_mask *mask_of(const struct mask_case *from);

/* All columns of a token, in so many heads. */
void write_row(const ffa_tensor *tensor, const struct attention_shape *shape, int64_t row,
               int32_t heads, double value);

#endif
