/* SPDX-License-Identifier: Apache-2.0
 *
 * How many compile workers run at once. Invariant: as many as cores, unless memory allows fewer,
 * both divided among the processes of a launch; a launcher that binds its processes to cores has
 * divided these already.
 */
#include "cli/jobs.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The number after `name` in a file; INT64_MAX where there is none. */
static int64_t number_in(const char *path, const char *name)
{
    FILE *file = fopen(path, "re");
    char line[128];
    int64_t found = INT64_MAX;

    if (!file)
        return found;
    while (fgets(line, sizeof line, file)) {
        const char *digits = line + strlen(name);
        char *end;
        long long number;

        if (strncmp(line, name, strlen(name)) != 0)
            continue;
        number = strtoll(digits, &end, 10);
        if (end != digits)
            found = number;
        break;
    }
    (void)fclose(file);
    return found;
}

int64_t jobs_auto(int64_t memory_bytes, int64_t processes)
{
    int64_t available_kib = number_in("/proc/meminfo", "MemAvailable:");
    int64_t allowed = number_in("/sys/fs/cgroup/memory.max", "");
    int64_t cores = sysconf(_SC_NPROCESSORS_ONLN);
    int64_t memory = available_kib < INT64_MAX / 1024 ? available_kib * 1024 : INT64_MAX;
    int64_t sharers = processes; /* of the cores */
    int64_t jobs;
    cpu_set_t mine;

    if (sched_getaffinity(0, sizeof mine, &mine) == 0 && CPU_COUNT(&mine) < cores) {
        cores = CPU_COUNT(&mine);
        sharers = 1;
    }
    if (allowed < memory)
        memory = allowed;
    jobs = cores / sharers;
    if (memory_bytes > 0 && memory / processes / memory_bytes < jobs)
        jobs = memory / processes / memory_bytes;
    return jobs < 1 ? 1 : jobs > JOBS_MAX ? JOBS_MAX : jobs;
}
