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
/* The same in this process: for programs that hold a GPU context, which does not survive fork(). */
int suite_run_here(Suite *suite);

#endif
