/* SPDX-License-Identifier: Apache-2.0
 *
 * Zeroed and growing arrays with overflow checks and fault points: the only place where the
 * library allocates host memory, so that tests can make each allocation fail.
 */
#include "base/base.h"

void *mem_array(size_t count, size_t size)
{
    if (fault_here(FAULT_ALLOC))
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
    if ((uint64_t)wanted > SIZE_MAX / size || fault_here(FAULT_ALLOC))
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
