/* SPDX-License-Identifier: Apache-2.0
 *
 * The clock of the command.
 */
#include "cli/clock.h"

#include <time.h>

int64_t cli_clock_us(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}
