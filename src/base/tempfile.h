/* SPDX-License-Identifier: Apache-2.0
 *
 * A temporary file that becomes a name at the end: it is written without a name, or under a name of
 * its own where the file system knows no unnamed files, and is put in place when it is whole. A
 * process that is killed leaves nothing behind, or a file that tempfile_reap recognises.
 */
#ifndef FFA_BASE_TEMPFILE_H
#define FFA_BASE_TEMPFILE_H

#include "base/base.h"

#include <sys/types.h>

struct tempfile {
    char *path; /* opens the file: "/proc/thread-self/fd/N", or a path in the folder; NULL: none */
    char *folder; /* opens the folder */
    char *name;   /* in the folder; NULL while it has none */
    char *prefix; /* of its names */
    int folder_fd;
    int file; /* open for reading and writing until it is published */
};
/* What tempfile_discard does nothing for. */
#define TEMPFILE_NONE                                                                              \
    {                                                                                              \
        .folder_fd = -1, .file = -1                                                                \
    }

/* Make an empty file, mode 0600, on the file system of `folder`. The names that it may have start
 * with `prefix`, end in six letters or digits, and are in `folder`. It is written through `file`;
 * who opens `path` instead follows links, and closes before tempfile_publish. False with errno. */
bool tempfile_open(struct tempfile *out, const char *folder, const char *prefix);
bool tempfile_set_mode(const struct tempfile *file, mode_t mode);
/* Put it in place as `name` in the folder. `replace`: in place of what has the name; else false
 * with EEXIST when there is something. False with errno. From here on no descriptor is open whose
 * closing would drop the locks that this process holds on the file. */
bool tempfile_publish(struct tempfile *file, const char *name, bool replace);
/* Let go of it; what was not published is gone. Keeps errno. */
void tempfile_discard(struct tempfile *file);

/* Remove what killed processes left in `folder` under names of `prefix`: regular files of this
 * user, unchanged for ten minutes, that nobody has locked (flock). Best effort. */
void tempfile_reap(const char *folder, const char *prefix);
/* The same for folders: their files whose names start with `inside`, and them if they are empty
 * then. Others may have given a name of `prefix` to a folder of something else. */
void tempfile_reap_folders(const char *folder, const char *prefix, const char *inside);

/* "/proc/thread-self/fd/<file>" in `out`, if that leads to the open file; "" and false where /proc
 * is missing. */
bool descriptor_path(char out[32], int file);
/* The descriptor, moved above 0, 1 and 2 if it is one of them: a process that was started without
 * them prints to whatever they are, or opens them again. -1 with errno, closed, if it cannot be. */
int descriptor_above_standard(int file);

#endif
