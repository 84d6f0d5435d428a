/* SPDX-License-Identifier: Apache-2.0
 *
 * Log lines and clocks. Invariant: without a sink nothing is formatted, and the library prints
 * nothing by itself. A line is one line, whatever the texts in it. Durations are read from the
 * clock that only goes forward.
 */
#include "base/base.h"
#include "base/printable.h"

#include <stdio.h>
#include <time.h>

void log_line(const struct log *log, ffa_log_level level, const char *module, const char *format,
              ...)
{
    char said[1024], line[1024];
    va_list args;

    if (!log || !log->fn)
        return;
    va_start(args, format);
    (void)vsnprintf(said, sizeof said, format, args);
    va_end(args);
    text_printable(line, sizeof line, said, "");
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
