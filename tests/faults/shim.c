/* SPDX-License-Identifier: Apache-2.0
 *
 * A library to preload: the nth call of a kind fails.
 *
 *   - SHIM_CALL: open, read, write, fsync, ftruncate, rename, unlink, mkdir, fcntl, stat, link or
 *     chmod
 *   - SHIM_NTH: which call of a process fails, from 1; "7+": it and all after it
 *   - SHIM_ERRNO: with what; 0: a read or a write does half of it, others succeed
 *
 * Calls on the terminal's three descriptors are left alone, so that sentences arrive.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#define SHIM __attribute__((visibility("default")))

static atomic_long calls;
static long nth;
static bool and_later, is_read;
static int error;
static char kind[16];

__attribute__((constructor)) static void shim_begin(void)
{
    const char *call = getenv("SHIM_CALL"), *which = getenv("SHIM_NTH");
    const char *with = getenv("SHIM_ERRNO");
    char *end = NULL;

    if (!call || !which || !with || strlen(call) >= sizeof kind)
        return;
    memcpy(kind, call, strlen(call) + 1);
    nth = strtol(which, &end, 10);
    and_later = *end == '+';
    error = (int)strtol(with, NULL, 10);
    is_read = true;
}

/* Whether this call is to fail. */
static bool is_due(const char *call)
{
    long number;

    if (!is_read || strcmp(call, kind) != 0)
        return false;
    number = atomic_fetch_add(&calls, 1) + 1;
    return and_later ? number >= nth : number == nth;
}

static bool fails(const char *call)
{
    if (!is_due(call) || !error)
        return false;
    errno = error;
    return true;
}

/* What is called instead, found once a function. */
#define REAL(name)                                                                                 \
    static __typeof__(name) *real;                                                                 \
    if (!real) {                                                                                   \
        void *found = dlsym(RTLD_NEXT, #name);                                                     \
        memcpy(&real, &found, sizeof real);                                                        \
    }

#define OPEN(name)                                                                                 \
    SHIM int name(const char *path, int flags, ...)                                                \
    {                                                                                              \
        mode_t mode = 0;                                                                           \
        REAL(name)                                                                                 \
        if (flags & (O_CREAT | __O_TMPFILE)) {                                                     \
            va_list list;                                                                          \
            va_start(list, flags);                                                                 \
            mode = va_arg(list, mode_t);                                                           \
            va_end(list);                                                                          \
        }                                                                                          \
        return fails("open") ? -1 : real(path, flags, mode);                                       \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                                               \
    SHIM int name(int at, const char *path, int flags, ...)                                        \
    {                                                                                              \
        mode_t mode = 0;                                                                           \
        REAL(name)                                                                                 \
        if (flags & (O_CREAT | __O_TMPFILE)) {                                                     \
            va_list list;                                                                          \
            va_start(list, flags);                                                                 \
            mode = va_arg(list, mode_t);                                                           \
            va_end(list);                                                                          \
        }                                                                                          \
        return fails("open") ? -1 : real(at, path, flags, mode);                                   \
    }
OPENAT(openat)
OPENAT(openat64)

/* A transfer of `count` bytes that is due fails, or, with errno 0, does half of it. */
static bool transfer(const char *call, int file, size_t *count)
{
    if (file <= 2 || !is_due(call))
        return false;
    if (error) {
        errno = error;
        return true;
    }
    *count = *count > 1 ? *count / 2 : *count;
    return false;
}

SHIM ssize_t read(int file, void *to, size_t count)
{
    REAL(read)
    return transfer("read", file, &count) ? -1 : real(file, to, count);
}

SHIM ssize_t write(int file, const void *from, size_t count)
{
    REAL(write)
    return transfer("write", file, &count) ? -1 : real(file, from, count);
}

#define PREAD(name, type)                                                                          \
    SHIM ssize_t name(int file, void *to, size_t count, type at)                                   \
    {                                                                                              \
        REAL(name)                                                                                 \
        return transfer("read", file, &count) ? -1 : real(file, to, count, at);                    \
    }
PREAD(pread, off_t)
PREAD(pread64, off64_t)

#define PWRITE(name, type)                                                                         \
    SHIM ssize_t name(int file, const void *from, size_t count, type at)                           \
    {                                                                                              \
        REAL(name)                                                                                 \
        return transfer("write", file, &count) ? -1 : real(file, from, count, at);                 \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

#define CALL(call, name, parameters, arguments)                                                    \
    SHIM int name parameters                                                                       \
    {                                                                                              \
        REAL(name)                                                                                 \
        return fails(call) ? -1 : real arguments;                                                  \
    }
CALL("fsync", fsync, (int file), (file))
CALL("fsync", fdatasync, (int file), (file))
CALL("ftruncate", ftruncate, (int file, off_t bytes), (file, bytes))
CALL("ftruncate", ftruncate64, (int file, off64_t bytes), (file, bytes))
CALL("rename", rename, (const char *from, const char *to), (from, to))
CALL("rename", renameat, (int a, const char *from, int b, const char *to), (a, from, b, to))
CALL("unlink", unlink, (const char *path), (path))
CALL("unlink", unlinkat, (int at, const char *path, int flags), (at, path, flags))
CALL("mkdir", mkdir, (const char *path, mode_t mode), (path, mode))
CALL("mkdir", mkdirat, (int at, const char *path, mode_t mode), (at, path, mode))
CALL("stat", stat, (const char *path, struct stat *to), (path, to))
CALL("stat", fstat, (int file, struct stat *to), (file, to))
CALL("stat", lstat, (const char *path, struct stat *to), (path, to))
CALL("stat", stat64, (const char *path, struct stat64 *to), (path, to))
CALL("stat", fstat64, (int file, struct stat64 *to), (file, to))
CALL("stat", lstat64, (const char *path, struct stat64 *to), (path, to))
CALL("stat", fstatat, (int at, const char *path, struct stat *to, int flags), (at, path, to, flags))
CALL("link", link, (const char *from, const char *to), (from, to))
CALL("link", linkat, (int a, const char *from, int b, const char *to, int flags),
     (a, from, b, to, flags))
CALL("chmod", chmod, (const char *path, mode_t mode), (path, mode))
CALL("chmod", fchmod, (int file, mode_t mode), (file, mode))

/* The commands with a pointer or an int alike: one word. */
#define FCNTL(name)                                                                                \
    SHIM int name(int file, int command, ...)                                                      \
    {                                                                                              \
        va_list list;                                                                              \
        void *argument;                                                                            \
        REAL(name)                                                                                 \
        va_start(list, command);                                                                   \
        argument = va_arg(list, void *);                                                           \
        va_end(list);                                                                              \
        return fails("fcntl") ? -1 : real(file, command, argument);                                \
    }
FCNTL(fcntl)
FCNTL(fcntl64)
