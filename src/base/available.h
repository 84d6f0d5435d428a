/* SPDX-License-Identifier: Apache-2.0
 *
 * How much memory this process can still have.
 *
 * The answer is the least of what the machine has available, what each memory cgroup above the
 * process leaves, and what RLIMIT_AS and RLIMIT_DATA leave. A cgroup's file cache, and its kernel
 * caches of names and inodes, count as available, as they do in MemAvailable: the kernel takes them
 * back before it kills. What cannot be read does not limit. All inline, so that the command can use
 * it, too.
 */
#ifndef FFA_BASE_AVAILABLE_H
#define FFA_BASE_AVAILABLE_H

#include "base/limit.h"

#include <stdlib.h>
#include <string.h>

enum { AVAILABLE_PATH_MAX = 512 };

/* The number after `name` at the beginning of a line of a file; INT64_MAX where there is none. */
static inline int64_t available_number(const char *path, const char *name)
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

/* The names of one version of cgroups. */
struct available_cgroup {
    const char *line; /* what the line of /proc/self/cgroup has between its number and the path */
    const char *root;
    const char *limit, *use;
    const char *cache[3]; /* of memory.stat; the last may be NULL: version 1 does not say */
};

static inline int64_t available_in_folder(const struct available_cgroup *cgroup, const char *folder)
{
    char path[2 * AVAILABLE_PATH_MAX];
    int64_t limit, use;

    (void)snprintf(path, sizeof path, "%s%s/%s", cgroup->root, folder, cgroup->limit);
    limit = available_number(path, "");
    (void)snprintf(path, sizeof path, "%s%s/%s", cgroup->root, folder, cgroup->use);
    use = available_number(path, "");
    if (limit == INT64_MAX || use == INT64_MAX)
        return limit;
    (void)snprintf(path, sizeof path, "%s%s/memory.stat", cgroup->root, folder);
    for (int i = 0; i < 3 && cgroup->cache[i]; i++) {
        const int64_t cache = available_number(path, cgroup->cache[i]);

        use -= cache < use ? cache : 0;
    }
    return limit > use ? limit - use : 0;
}

/* The least that the cgroup at `folder` and those above it leave. Shortens `folder`. */
static inline int64_t available_upwards(const struct available_cgroup *cgroup, char *folder)
{
    int64_t least = INT64_MAX;

    folder[strcspn(folder, "\n")] = '\0';
    for (;;) {
        char *slash = strrchr(folder, '/');
        int64_t here;

        if (slash && !slash[1])
            *slash = '\0'; /* the root */
        here = available_in_folder(cgroup, folder);
        if (here < least)
            least = here;
        slash = strrchr(folder, '/');
        if (!slash)
            return least;
        *slash = '\0';
    }
}

static inline int64_t available_in_cgroups(void)
{
    static const struct available_cgroup versions[] = {
        { "::",
          "/sys/fs/cgroup",
          "memory.max",
          "memory.current",
          { "active_file ", "inactive_file ", "slab_reclaimable " } },
        { ":memory:",
          "/sys/fs/cgroup/memory",
          "memory.limit_in_bytes",
          "memory.usage_in_bytes",
          { "total_active_file ", "total_inactive_file ", NULL } },
    };
    FILE *file = fopen("/proc/self/cgroup", "re");
    char line[AVAILABLE_PATH_MAX];
    int64_t least = INT64_MAX;

    if (!file)
        return least;
    while (fgets(line, sizeof line, file))
        for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
            const char *rest = line + strspn(line, "0123456789");
            const size_t bytes = strlen(versions[i].line);
            int64_t here;

            if (strncmp(rest, versions[i].line, bytes) != 0)
                continue;
            here = available_upwards(&versions[i], line + (rest - line) + bytes);
            if (here < least)
                least = here;
        }
    (void)fclose(file);
    return least;
}

/* What a limit of the process leaves; `used` bytes count against it. */
static inline int64_t available_under(int resource, uint64_t used)
{
    struct rlimit limit;

    if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
        limit.rlim_cur > INT64_MAX)
        return INT64_MAX;
    return limit.rlim_cur > used ? (int64_t)(limit.rlim_cur - used) : 0;
}

/* Bytes; INT64_MAX where nothing says so. Reads a few files of /proc and /sys: about 100 us. */
static inline int64_t available_memory(void)
{
    const int64_t kib = available_number("/proc/meminfo", "MemAvailable:");
    const int64_t swap_kib = available_number("/proc/meminfo", "SwapFree:");
    const int64_t pages = available_number("/proc/self/statm", "");
    int64_t least[4] = { INT64_MAX, available_in_cgroups(), INT64_MAX, INT64_MAX };

    if (kib < INT64_MAX / 4096)
        least[0] = (kib + (swap_kib < INT64_MAX / 4096 ? swap_kib : 0)) * 1024;
    if (pages < INT64_MAX / 65536)
        least[2] = available_under(RLIMIT_AS, (uint64_t)(pages * sysconf(_SC_PAGESIZE)));
    least[3] = available_under(RLIMIT_DATA, limit_data_bytes());
    for (int i = 1; i < 4; i++)
        if (least[i] < least[0])
            least[0] = least[i];
    return least[0];
}

#endif
