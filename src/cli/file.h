/* SPDX-License-Identifier: Apache-2.0
 *
 * Whole files: written beside their place and renamed, so that none is ever half there.
 */
#ifndef FFA_CLI_FILE_H
#define FFA_CLI_FILE_H

#include <ffa/status.h>

/* Fill *err (if any) and return `status`. */
ffa_status cli_error(ffa_error *err, ffa_status status, int32_t native, const char *format, ...)
    FFA_PRINTF(4, 5);

/* One piece of a file. */
struct file_part {
    const void *at;
    size_t bytes;
};

/* Write the parts, one after the other, to `path`; FFA_IO names it. What stood there stays whole
 * until the new content is. A path that is no regular file (/dev/null, a pipe) is written to. */
ffa_status file_write_parts(const char *path, const struct file_part *parts, int count,
                            ffa_error *err);
ffa_status file_write(const char *path, const void *at, size_t bytes, ffa_error *err);

#endif
