/* SPDX-License-Identifier: Apache-2.0
 *
 * The function that a fuzz target defines: libFuzzer's entry. It aborts where a check fails.
 */
#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

#endif
