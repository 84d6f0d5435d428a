/* SPDX-License-Identifier: Apache-2.0
 *
 * How many compile workers a machine is good for.
 */
#ifndef FFA_CLI_JOBS_H
#define FFA_CLI_JOBS_H

#include <stdint.h>

enum { JOBS_MAX = 1024 }; /* as ffa_precompile_opts.threads */

/* How many workers this machine has cores and memory for, of `memory_bytes` each, where as many
 * `processes` like this one run on it; at least 1. */
int64_t jobs_auto(int64_t memory_bytes, int64_t processes);

#endif
