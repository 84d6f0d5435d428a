/* SPDX-License-Identifier: Apache-2.0
 *
 * SQLite's VFS for Unix with two functions exchanged.
 *
 * SQLite resolves all links of a path before it opens it, and would so turn
 * "/proc/thread-self/fd/N/name" back into a path by names, which others may exchange. Here a path
 * stays as it is. What is no regular file is not opened: SQLite would wait for the writer of a FIFO
 * without end. A new file has no name yet, so it is written through the descriptor that the URI's
 * parameter names.
 *
 * Invariant: the VFS is registered while a connection is open, since VACUUM looks it up by name,
 * and no longer, since the library may be unloaded. Its lock is taken under the lock of a store
 * only, which a fork waits for, so that a child never finds it locked.
 */
#include "cache/store_vfs.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* under lock: */
static const sqlite3_vfs *origin;
static sqlite3_vfs vfs;
static char name[40];
static int users;

static int keep_path(sqlite3_vfs *self, const char *path, int bytes, char *out)
{
    size_t need = strlen(path) + 1;

    (void)self;
    if (bytes < 0 || need > (size_t)bytes)
        return SQLITE_CANTOPEN;
    memcpy(out, path, need);
    return SQLITE_OK;
}

/* ---- a file that is open already ---- */

struct open_file {
    sqlite3_file base;
    int descriptor; /* its owner's, also after xClose */
};

static int descriptor_of(sqlite3_file *file)
{
    return ((struct open_file *)(void *)file)->descriptor;
}

static int keep_open(sqlite3_file *file)
{
    (void)file;
    return SQLITE_OK;
}

static int read_at(sqlite3_file *file, void *out, int bytes, sqlite3_int64 at)
{
    size_t want = (size_t)bytes, got = 0;

    while (got < want) {
        ssize_t now = pread(descriptor_of(file), (char *)out + got, want - got, at + (off_t)got);

        if (now < 0 && errno == EINTR)
            continue;
        if (now < 0)
            return SQLITE_IOERR_READ;
        if (now == 0)
            break;
        got += (size_t)now;
    }
    memset((char *)out + got, 0, want - got);
    return got == want ? SQLITE_OK : SQLITE_IOERR_SHORT_READ;
}

static int write_at(sqlite3_file *file, const void *from, int bytes, sqlite3_int64 at)
{
    size_t want = (size_t)bytes, put = 0;

    while (put < want) {
        ssize_t now =
            pwrite(descriptor_of(file), (const char *)from + put, want - put, at + (off_t)put);

        if (now < 0 && errno == EINTR)
            continue;
        if (now <= 0)
            return now == 0 || errno == ENOSPC || errno == EDQUOT ? SQLITE_FULL
                                                                  : SQLITE_IOERR_WRITE;
        put += (size_t)now;
    }
    return SQLITE_OK;
}

static int cut_to(sqlite3_file *file, sqlite3_int64 bytes)
{
    return ftruncate(descriptor_of(file), bytes) == 0 ? SQLITE_OK : SQLITE_IOERR_TRUNCATE;
}

static int sync_data(sqlite3_file *file, int flags)
{
    (void)flags;
    return fdatasync(descriptor_of(file)) == 0 ? SQLITE_OK : SQLITE_IOERR_FSYNC;
}

static int size_of(sqlite3_file *file, sqlite3_int64 *out)
{
    struct stat stat;

    if (fstat(descriptor_of(file), &stat) != 0)
        return SQLITE_IOERR_FSTAT;
    *out = stat.st_size;
    return SQLITE_OK;
}

/* Nobody else has the file. */
static int lock_nothing(sqlite3_file *file, int level)
{
    (void)file;
    (void)level;
    return SQLITE_OK;
}

static int is_reserved(sqlite3_file *file, int *out)
{
    (void)file;
    *out = 0;
    return SQLITE_OK;
}

static int control_nothing(sqlite3_file *file, int operation, void *argument)
{
    (void)file;
    (void)operation;
    (void)argument;
    return SQLITE_NOTFOUND;
}

static int say_nothing(sqlite3_file *file)
{
    (void)file;
    return 0; /* SQLite's defaults */
}

static const sqlite3_io_methods methods = {
    .iVersion = 1,
    .xClose = keep_open,
    .xRead = read_at,
    .xWrite = write_at,
    .xTruncate = cut_to,
    .xSync = sync_data,
    .xFileSize = size_of,
    .xLock = lock_nothing,
    .xUnlock = lock_nothing,
    .xCheckReservedLock = is_reserved,
    .xFileControl = control_nothing,
    .xSectorSize = say_nothing,
    .xDeviceCharacteristics = say_nothing,
};

/* ---- the VFS ---- */

static int open_regular(sqlite3_vfs *self, const char *path, sqlite3_file *file, int flags,
                        int *out_flags)
{
    struct stat stat;

    if (path && flags & SQLITE_OPEN_MAIN_DB && sqlite3_uri_int64(path, "descriptor", -1) >= 0) {
        ((struct open_file *)(void *)file)->descriptor =
            (int)sqlite3_uri_int64(path, "descriptor", -1);
        file->pMethods = &methods;
        if (out_flags)
            *out_flags = flags;
        return SQLITE_OK;
    }
    if (path && lstat(path, &stat) == 0 && !S_ISREG(stat.st_mode)) {
        file->pMethods = NULL;
        return SQLITE_CANTOPEN;
    }
    return origin->xOpen(self, path, file, flags, out_flags);
}

const char *store_vfs_take(void)
{
    const char *taken = NULL;

    (void)pthread_mutex_lock(&lock);
    if (!origin && (origin = sqlite3_vfs_find("unix")) != NULL) {
        vfs = *origin;
        /* Another copy of this library in the process has another address. */
        (void)snprintf(name, sizeof name, "ffa-%p", (void *)&vfs);
        vfs.zName = name;
        vfs.pNext = NULL;
        if (vfs.szOsFile < (int)sizeof(struct open_file))
            vfs.szOsFile = (int)sizeof(struct open_file);
        vfs.xFullPathname = keep_path;
        vfs.xOpen = open_regular;
    }
    if (origin && (users > 0 || sqlite3_vfs_register(&vfs, 0) == SQLITE_OK)) {
        users++;
        taken = name;
    }
    (void)pthread_mutex_unlock(&lock);
    return taken;
}

void store_vfs_drop(void)
{
    (void)pthread_mutex_lock(&lock);
    if (--users == 0)
        (void)sqlite3_vfs_unregister(&vfs);
    (void)pthread_mutex_unlock(&lock);
}
