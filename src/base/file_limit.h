/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes past the process's limit to the size of files (RLIMIT_FSIZE). Such a write fails with
 * EFBIG, and the system sends SIGXFSZ to the thread, which by default ends the process. Between
 * enter and leave, the calling thread gets the error only.
 */
#ifndef FFA_BASE_FILE_LIMIT_H
#define FFA_BASE_FILE_LIMIT_H

#include <stdbool.h>

/* Pairs may nest, also with those of other objects, and end in any order. Keep errno. */
void file_limit_enter(void);
void file_limit_leave(void);
/* Whether a write of this thread has met the limit since it entered. */
bool file_limit_was_met(void);

#endif
