/* SPDX-License-Identifier: Apache-2.0
 *
 * A private folder for a test, and what tests do with files in it.
 */
#ifndef TESTS_TMPDIR_H
#define TESTS_TMPDIR_H

#include <stdbool.h>
#include <stddef.h>

/* Make a folder (mode 0700) under $TMPDIR or /tmp. The name is the caller's, tmpdir_remove(). */
char *tmpdir_make(void);
/* Remove the folder with its content, and free the name. */
void tmpdir_remove(char *folder);

/* Whether its file system has O_TMPFILE. */
bool tmpdir_has_unnamed_files(const char *folder);

/* "<folder>/<name>"; caller frees. */
char *tmpdir_path(const char *folder, const char *name);
void tmpdir_write(const char *path, const void *bytes, size_t count);
void tmpdir_write_text(const char *path, const char *text);
/* The whole file, terminated; caller frees. */
char *tmpdir_read(const char *path, size_t *count);
/* How many lines the file has; 0: there is no such file. */
int tmpdir_lines(const char *path);
void tmpdir_copy(const char *from, const char *to);
/* Copy every file of a folder into another. */
void tmpdir_copy_folder(const char *from, const char *to);

#endif
