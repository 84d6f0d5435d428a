/* SPDX-License-Identifier: Apache-2.0
 *
 * Device memory, and handles by which other processes map it.
 *
 * With FFA_EMULATOR_IPC each allocation is a file in memory of its own. A handle names it by
 * process and descriptor, and whoever opens it maps the file through /proc: so handles work between
 * processes of one user, while their owner lives, as those of CUDA do. As with CUDA, a process
 * cannot open its own, and memory that is freed stays with those who have it mapped.
 */
#include "memory.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ALIGNMENT = 256, BLOCK_BYTES = 2 << 20 /* what a device allocates at a time */ };

/* An allocation: of the heap, or a mapped file (fd >= 0). Or a mapped file of another process. */
struct mapping {
    struct mapping *next;
    void *at;
    size_t bytes;
    int fd;
    bool is_heap;
};

static bool is_own(const struct mapping *mapping)
{
    return mapping->is_heap || mapping->fd >= 0;
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct mapping *mappings; /* under the lock */

/* What cudaIpcMemHandle_t holds. */
struct handle {
    uint64_t bytes;
    int32_t process, fd;
};

/* NULL where there is no memory. */
static void *keep(struct mapping mapping)
{
    struct mapping *kept = calloc(1, sizeof *kept);

    if (!kept)
        return NULL;
    *kept = mapping;
    (void)pthread_mutex_lock(&lock);
    kept->next = mappings;
    mappings = kept;
    (void)pthread_mutex_unlock(&lock);
    if (is_own(kept)) {
        runtime_live_add(LIVE_ALLOCATIONS, 1);
        runtime_live_add(LIVE_BYTES, (int64_t)kept->bytes);
    }
    return kept->at;
}

static void *map(int fd, size_t bytes, int kept_fd)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (at == MAP_FAILED)
        return NULL;
    if (!keep((struct mapping){ .at = at, .bytes = bytes, .fd = kept_fd })) {
        (void)munmap(at, bytes);
        return NULL;
    }
    return at;
}

/* Whether it was allocated here; or mapped, of another process. */
static bool unmap(void *at, bool is_allocated)
{
    struct mapping **link = &mappings, *found;

    (void)pthread_mutex_lock(&lock);
    while (*link && ((*link)->at != at || is_own(*link) != is_allocated))
        link = &(*link)->next;
    found = *link;
    if (found)
        *link = found->next;
    (void)pthread_mutex_unlock(&lock);
    if (!found)
        return false;
    if (is_allocated) {
        runtime_live_add(LIVE_ALLOCATIONS, -1);
        runtime_live_add(LIVE_BYTES, -(int64_t)found->bytes);
    }
    if (found->is_heap)
        free(found->at);
    else
        (void)munmap(found->at, found->bytes);
    if (found->fd >= 0)
        (void)close(found->fd);
    free(found);
    return true;
}

void *memory_allocate(size_t bytes)
{
    void *memory = NULL;
    int fd;

    bytes += !bytes;
    if (!getenv("FFA_EMULATOR_IPC")) {
        if (posix_memalign(&memory, ALIGNMENT, bytes) != 0)
            return NULL;
        if (!keep((struct mapping){ .at = memory, .bytes = bytes, .fd = -1, .is_heap = true })) {
            free(memory);
            return NULL;
        }
        return memory;
    }
    fd = memfd_create("device memory", MFD_CLOEXEC);
    if (fd >= 0 && ftruncate(fd, (off_t)bytes) == 0)
        memory = map(fd, bytes, fd);
    if (fd >= 0 && !memory)
        (void)close(fd);
    return memory;
}

bool memory_free(void *memory)
{
    return unmap(memory, true);
}

bool memory_is_own(const void *memory)
{
    bool is_found = false;

    (void)pthread_mutex_lock(&lock);
    for (const struct mapping *m = mappings; m && !is_found; m = m->next)
        is_found = m->at == memory && is_own(m);
    (void)pthread_mutex_unlock(&lock);
    return is_found;
}

bool memory_holds(const void *address)
{
    bool is_held = false;

    (void)pthread_mutex_lock(&lock);
    for (const struct mapping *m = mappings; m && !is_held; m = m->next)
        is_held = (const char *)address >= (const char *)m->at &&
                  (const char *)address < (const char *)m->at + m->bytes;
    (void)pthread_mutex_unlock(&lock);
    return is_held;
}

/* ---- handles ---- */

/* Of whole blocks. A driver's handle of a part of one names the block, so that others would map
 * what lies before it: here there is none. */
EXPORT cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *out, void *memory)
{
    struct handle handle = { .process = (int32_t)getpid(), .fd = -1 };

    _Static_assert(sizeof handle <= sizeof *out, "what a handle holds");
    (void)pthread_mutex_lock(&lock);
    for (const struct mapping *m = mappings; m; m = m->next)
        if (m->at == memory && m->fd >= 0 && m->bytes % BLOCK_BYTES == 0) {
            handle.fd = m->fd;
            handle.bytes = m->bytes;
        }
    (void)pthread_mutex_unlock(&lock);
    memset(out, 0, sizeof *out);
    memcpy(out, &handle, sizeof handle);
    return runtime_done(handle.fd >= 0 ? cudaSuccess : cudaErrorNotSupported);
}

EXPORT cudaError_t cudaIpcOpenMemHandle(void **out, cudaIpcMemHandle_t from, unsigned flags)
{
    struct handle handle;
    char path[64];
    int fd;

    *out = NULL;
    memcpy(&handle, &from, sizeof handle);
    if (flags != cudaIpcMemLazyEnablePeerAccess || handle.process == (int32_t)getpid())
        return runtime_done(cudaErrorInvalidValue);
    (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", handle.process, handle.fd);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0) {
        *out = map(fd, handle.bytes, -1);
        (void)close(fd);
    }
    return runtime_done(*out ? cudaSuccess : cudaErrorMapBufferObjectFailed);
}

EXPORT cudaError_t cudaIpcCloseMemHandle(void *memory)
{
    return runtime_done(unmap(memory, false) ? cudaSuccess : cudaErrorInvalidValue);
}
