/* SPDX-License-Identifier: Apache-2.0 */
#include "support/suite.h"

#include <stdarg.h>
#include <stdio.h>

enum { SKIPPED = 77 };

static int skipped; /* tests, of this process */

static int run(Suite *suite, enum fork_status fork_status)
{
    SRunner *runner = srunner_create(suite);
    int ran, failed;

    if (fork_status == CK_NOFORK)
        srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, CK_NORMAL);
    ran = srunner_ntests_run(runner);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    if (ran == 0)
        fprintf(stderr, "no test ran: CK_RUN_SUITE or CK_RUN_CASE names none of this program\n");
    return failed || ran == 0 ? 1 : skipped == ran ? SKIPPED : 0;
}

void suite_skip(const char *format, ...)
{
    va_list args;

    skipped++;
    va_start(args, format);
    printf("skipped: ");
    vprintf(format, args);
    printf("\n");
    va_end(args);
}

int suite_run(Suite *suite)
{
    return run(suite, CK_FORK_GETENV);
}

int suite_run_here(Suite *suite)
{
    return run(suite, CK_NOFORK);
}
