/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients of attention by plain operators, one after another, as a framework without a fused
 * kernel computes them. Each operator takes and returns tensors of the model's dtype and sums in
 * fp32: scores, scale, softcap, softmax, P V; then their derivatives. Their distance from the fp64
 * oracle is the yardstick for the errors of a kernel.
 */
#ifndef TESTS_LOW_PRECISION_H
#define TESTS_LOW_PRECISION_H

#include "oracle/oracle_backward.h"

/* The errors of dq, dk and dv computed by plain operators in the dtype of `test` (bf16 or fp16),
 * over all rows and keys, against the oracle's `want`, which was computed without use_out. The
 * outputs of `test` are not read. */
struct oracle_backward_report low_precision_errors(const struct oracle_backward_case *test,
                                                   const struct oracle_gradients *want);

/* Whether the errors of a backend, `got`, are at most twice those of plain operators, `low`: of
 * each tensor, of the worst row, key and head. Otherwise `why` names the first that is not. */
bool low_precision_bounds(const struct oracle_backward_report *got,
                          const struct oracle_backward_report *low, char why[160]);

#endif
