/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether a command has the memory for what it is asked.
 *
 * Systems grant memory that they do not have, and kill the process that writes it. So a command
 * asks what is available before it takes much, and one that only computes on the host also sets its
 * own limit (RLIMIT_DATA) to that: what was not foreseen fails with a sentence, too.
 */
#include "cli/fits.h"

#include "base/available.h"
#include "cli/file.h"

ffa_status cli_fits(int64_t bytes, const char *what, ffa_error *err)
{
    const double gib = 1 << 30;
    const int64_t available = available_memory();

    if (bytes <= available)
        return FFA_OK;
    return cli_error(err, FFA_NOMEM, 0,
                     "%s need about %.2f GiB of memory, and %.2f GiB are available", what,
                     (double)bytes / gib, (double)available / gib);
}

void cli_bound_memory(void)
{
    const int64_t available = available_memory();
    const uint64_t used = limit_data_bytes();
    struct rlimit limit;

    if (available == INT64_MAX || used == 0 || getrlimit(RLIMIT_DATA, &limit) != 0)
        return;
    if (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur > used + (uint64_t)available) {
        limit.rlim_cur = (rlim_t)(used + (uint64_t)available);
        (void)setrlimit(RLIMIT_DATA, &limit);
    }
}
