/* SPDX-License-Identifier: Apache-2.0
 *
 * Checked memory. Invariant: every allocation of the library goes through here or through text.c,
 * is checked for overflow, and can be made to fail by a fault point. Arrays grow by doubling, so
 * appending costs constant time on average. A large allocation that cannot fit fails at once: most
 * systems would grant it, and kill the process when it is written.
 */
#include "base/available.h"
#include "base/base.h"

/* Smaller allocations are not worth a look at the system: 16 MiB take 4 ms to write, the look 0.1.
 */
enum { LARGE_BYTES = 1 << 24 };

bool mem_fits(int64_t bytes)
{
    return bytes < LARGE_BYTES || bytes <= available_memory();
}

ffa_status mem_check(int64_t bytes, const char *what, ffa_error *err)
{
    const double gib = 1 << 30;
    int64_t available;

    if (bytes < LARGE_BYTES)
        return FFA_OK;
    available = available_memory();
    if (bytes <= available)
        return FFA_OK;
    return error_fail(err, FFA_NOMEM, 0,
                      "%s needs about %.2f GiB of memory, and %.2f GiB are available", what,
                      (double)bytes / gib, (double)available / gib);
}

static bool array_fits(size_t count, size_t size)
{
    return size == 0 || count < LARGE_BYTES / size || count > INT64_MAX / size ||
           mem_fits((int64_t)(count * size));
}

void *mem_array(size_t count, size_t size)
{
    if (fault_here(FAULT_ALLOC) || !array_fits(count, size))
        return NULL;
    return calloc(count ? count : 1, size ? size : 1);
}

bool mem_grow(void **at, int64_t *capacity, int64_t need, size_t size)
{
    int64_t wanted;
    void *grown;

    if (need <= *capacity)
        return true;
    wanted = *capacity > INT64_MAX / 2 ? need : *capacity * 2;
    if (wanted < need)
        wanted = need;
    if (wanted < 16)
        wanted = 16;
    if ((uint64_t)wanted > SIZE_MAX / size || fault_here(FAULT_ALLOC) ||
        !array_fits((size_t)(wanted - *capacity), size))
        return false;
    grown = realloc(*at, (size_t)wanted * size);
    if (!grown)
        return false;
    *at = grown;
    *capacity = wanted;
    return true;
}

char *mem_strdup(const char *text)
{
    size_t bytes;
    char *copy;

    if (!text)
        return NULL;
    bytes = strlen(text) + 1;
    copy = mem_array(bytes, 1);
    if (copy)
        memcpy(copy, text, bytes);
    return copy;
}
