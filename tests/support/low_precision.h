/* SPDX-License-Identifier: Apache-2.0
 *
 * The same mathematics in low precision: gradients of attention by plain operators, one after
 * another, as a framework without a fused kernel runs them. Each operator takes and gives tensors
 * of the model's dtype and sums in fp32: scores, scale, cap, softmax, P V; then their derivatives.
 * How far that is from the fp64 oracle is a measure for what a kernel may be off by.
 */
#ifndef TESTS_LOW_PRECISION_H
#define TESTS_LOW_PRECISION_H

#include "oracle/oracle_backward.h"

/* Errors of dq, dk and dv by plain operators in the dtype of `test` (bf16 or fp16; all rows and
 * keys), against `want`, the oracle's, made without use_out. What the test's outputs hold is not
 * read. */
struct oracle_backward_report low_precision_errors(const struct oracle_backward_case *test,
                                                   const struct oracle_gradients *want);

/* Whether a backend's errors are at most twice those: of each tensor, of its worst row and key, and
 * of the worst head. *why says what is not. */
bool low_precision_bounds(const struct oracle_backward_report *got,
                          const struct oracle_backward_report *low, char why[160]);

#endif
