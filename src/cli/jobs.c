/* SPDX-License-Identifier: Apache-2.0
 *
 * How many compile workers run at once. Invariant: as many as cores, unless memory allows fewer,
 * both divided among the processes of a launch; a launcher that binds its processes to cores has
 * divided these already.
 */
#include "cli/jobs.h"

#include "base/available.h"

#include <sched.h>

int64_t jobs_auto(int64_t memory_bytes, int64_t processes)
{
    int64_t cores = sysconf(_SC_NPROCESSORS_ONLN);
    int64_t memory = available_memory();
    int64_t sharers = processes; /* of the cores */
    int64_t jobs;
    cpu_set_t mine;

    if (sched_getaffinity(0, sizeof mine, &mine) == 0 && CPU_COUNT(&mine) < cores) {
        cores = CPU_COUNT(&mine);
        sharers = 1;
    }
    jobs = cores / sharers;
    if (memory_bytes > 0 && memory / processes / memory_bytes < jobs)
        jobs = memory / processes / memory_bytes;
    return jobs < 1 ? 1 : jobs > JOBS_MAX ? JOBS_MAX : jobs;
}
