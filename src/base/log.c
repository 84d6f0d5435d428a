/* SPDX-License-Identifier: Apache-2.0
 *
 * Log lines to the sink of a context, and the clocks. Without a sink a line costs one test.
 */
#include "base/base.h"

#include <stdio.h>
#include <time.h>

void log_line(const struct log *log, ffa_log_level level, const char *module, const char *format,
              ...)
{
    char line[1024];
    va_list args;

    if (!log || !log->fn)
        return;
    va_start(args, format);
    (void)vsnprintf(line, sizeof line, format, args);
    va_end(args);
    log->fn(log->user, level, module, line);
}

int64_t clock_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

int64_t clock_unix_s(void)
{
    return (int64_t)time(NULL);
}
