/* SPDX-License-Identifier: Apache-2.0
 *
 * What every libcheck program ends with.
 */
#ifndef TESTS_SUITE_H
#define TESTS_SUITE_H

#include <check.h>

/* Run the suite, free it, and give main's exit status: 0, or 1 if a test failed or none ran (a
 * CK_RUN_CASE that names no case would otherwise pass). */
int suite_run(Suite *suite);
/* The same in this process: for programs that hold a GPU context, which does not survive fork(). 77
 * if every test that ran has called suite_skip(). */
int suite_run_here(Suite *suite);
/* Print why the running test does not test anything here. It returns behind that. */
void suite_skip(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
