/* SPDX-License-Identifier: Apache-2.0
 *
 * Write whole files, so that no reader ever sees half of one.
 *
 * The content goes to a temporary file beside its destination, in the same folder and so on the
 * same file system, and rename() puts it in place. Until then what stood there is untouched, and a
 * failure removes the temporary file.
 */
#include "cli/file.h"

#include "base/printable.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

ffa_status cli_error(ffa_error *err, ffa_status status, int32_t native, const char *format, ...)
{
    char said[sizeof err->message];
    va_list args;

    if (!err)
        return status;
    err->status = status;
    err->native = native;
    va_start(args, format);
    (void)vsnprintf(said, sizeof said, format, args);
    va_end(args);
    text_printable(err->message, sizeof err->message, said, "");
    return status;
}

static ffa_status cannot(const char *doing, const char *path, ffa_error *err)
{
    return cli_error(err, FFA_IO, errno, "cannot %s '%s': %s", doing, path, strerror(errno));
}

static bool write_all(FILE *file, const struct file_part *parts, int count)
{
    for (int i = 0; i < count; i++)
        if (parts[i].bytes && fwrite(parts[i].at, 1, parts[i].bytes, file) != parts[i].bytes)
            return false;
    return fflush(file) == 0;
}

static ffa_status write_through(const char *path, const struct file_part *parts, int count,
                                ffa_error *err)
{
    FILE *file = fopen(path, "wb");
    bool done;

    if (!file)
        return cannot("open", path, err);
    done = write_all(file, parts, count);
    if (fclose(file) != 0 || !done)
        return cannot("write", path, err);
    return FFA_OK;
}

/* mkstemp creates with mode 0600. A file the user asked for gets the mode that open() would give.
 */
static void take_usual_mode(int fd)
{
    mode_t mask = umask(0);

    (void)umask(mask);
    (void)fchmod(fd, 0666 & ~mask);
}

ffa_status file_write_parts(const char *path, const struct file_part *parts, int count,
                            ffa_error *err)
{
    struct stat st;
    ffa_status rc = FFA_OK;
    char beside[4096];
    FILE *file = NULL;
    int fd;
    bool done;

    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return write_through(path, parts, count, err);
    if (snprintf(beside, sizeof beside, "%s.XXXXXX", path) >= (int)sizeof beside)
        return cli_error(err, FFA_INVALID, 0, "the file name is longer than %zu bytes",
                         sizeof beside - 8);
    fd = mkstemp(beside);
    if (fd < 0)
        return cannot("write", path, err);
    take_usual_mode(fd);
    file = fdopen(fd, "wb");
    if (!file) {
        rc = cannot("write", path, err);
        (void)close(fd);
        (void)unlink(beside);
        return rc;
    }
    done = write_all(file, parts, count);
    if (fclose(file) != 0 || !done || rename(beside, path) != 0) {
        rc = cannot("write", path, err);
        (void)unlink(beside);
    }
    return rc;
}

ffa_status file_write(const char *path, const void *at, size_t bytes, ffa_error *err)
{
    const struct file_part part = { at, bytes };

    return file_write_parts(path, &part, 1, err);
}

/* ---- reading ---- */

FILE *file_open(const char *path)
{
    FILE *file = fopen(path, "rb");
    struct stat st;

    if (!file || fstat(fileno(file), &st) != 0 || !S_ISDIR(st.st_mode))
        return file;
    (void)fclose(file);
    errno = EISDIR;
    return NULL;
}

/* ---- which file a path names ---- */

static bool is_one(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* The folder of a path, and the name in it; NULL: the folder cannot be looked at. */
static const char *look_at_folder(const char *path, struct stat *folder)
{
    const char *slash = strrchr(path, '/');
    const int bytes = slash ? (int)(slash - path) + 1 : 0;
    char text[4096] = ".";

    if (bytes >= (int)sizeof text)
        return NULL;
    if (slash)
        (void)snprintf(text, sizeof text, "%.*s", bytes, path);
    return stat(text, folder) == 0 ? path + bytes : NULL;
}

bool file_is_same(const char *a, const char *b)
{
    struct stat of_a, of_b;
    const bool has_a = stat(a, &of_a) == 0, has_b = stat(b, &of_b) == 0;
    const char *name_a, *name_b;

    if (has_a || has_b)
        return has_a && has_b && S_ISREG(of_a.st_mode) && is_one(&of_a, &of_b);
    name_a = look_at_folder(a, &of_a);
    name_b = look_at_folder(b, &of_b);
    return name_a && name_b && is_one(&of_a, &of_b) && strcmp(name_a, name_b) == 0;
}
