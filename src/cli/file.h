/* SPDX-License-Identifier: Apache-2.0
 *
 * Write whole files: beside their destination first, then renamed into place, so that no reader
 * ever sees half of one.
 */
#ifndef FFA_CLI_FILE_H
#define FFA_CLI_FILE_H

#include <ffa/status.h>
#include <stdbool.h>
#include <stdio.h>

/* Fill *err (if any) and return `status`. */
ffa_status cli_error(ffa_error *err, ffa_status status, int32_t native, const char *format, ...)
    FFA_PRINTF(4, 5);

/* One piece of a file. */
struct file_part {
    const void *at;
    size_t bytes;
};

/* Write the parts, one after the other, to `path`. A file that exists stays as it is until the new
 * content is complete. A path that is not a regular file (/dev/null, a pipe) is written directly.
 * Fails with FFA_IO, whose message names the path, and FFA_INVALID (a path that is too long). */
ffa_status file_write_parts(const char *path, const struct file_part *parts, int count,
                            ffa_error *err);
/* The same for content in one piece. */
ffa_status file_write(const char *path, const void *at, size_t bytes, ffa_error *err);

/* Open a file to read; NULL, and errno: no file, or a folder, which fopen() would open. */
FILE *file_open(const char *path);
/* Whether two paths name one file, which need not exist yet. What is not a regular file (/dev/null,
 * a pipe) is none. */
bool file_is_same(const char *a, const char *b);

#endif
