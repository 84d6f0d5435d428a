/* SPDX-License-Identifier: Apache-2.0
 *
 * What a compile worker may take.
 */
#ifndef FFA_BASE_LIMIT_H
#define FFA_BASE_LIMIT_H

#include <stdint.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

/* Bytes of private writable memory, as RLIMIT_DATA counts them; 0 where it cannot be known. */
static inline uint64_t limit_data_bytes(void)
{
    FILE *file = fopen("/proc/self/statm", "re");
    unsigned long long pages = 0;

    if (!file)
        return 0;
    if (fscanf(file, "%*u %*u %*u %*u %*u %llu", &pages) != 1)
        pages = 0;
    (void)fclose(file);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* `bytes` more than the process has now (0: no limit). Where the kernel must choose somebody to
 * kill, it shall be the worker and not who waits for it. */
static inline void limit_memory(int64_t bytes)
{
    struct rlimit limit;
    FILE *file = fopen("/proc/self/oom_score_adj", "we");

    if (file) {
        (void)fputs("500", file);
        (void)fclose(file);
    }
    if (bytes > 0 && getrlimit(RLIMIT_DATA, &limit) == 0) {
        limit.rlim_cur = (rlim_t)(limit_data_bytes() + (uint64_t)bytes);
        if (limit.rlim_max != RLIM_INFINITY && limit.rlim_cur > limit.rlim_max)
            limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_DATA, &limit);
    }
}

#endif
