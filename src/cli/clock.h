/* SPDX-License-Identifier: Apache-2.0
 *
 * The clock of the command: the same for all processes of a host.
 */
#ifndef FFA_CLI_CLOCK_H
#define FFA_CLI_CLOCK_H

#include <stdint.h>

/* Microseconds of a clock that only goes forward. */
int64_t cli_clock_us(void);

#endif
