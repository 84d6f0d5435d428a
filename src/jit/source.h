/* SPDX-License-Identifier: Apache-2.0
 *
 * Template text: the files embedded in the library, or those of a folder, all read at once, and
 * the set of files one template reaches through #include "...". A compile is given that set and
 * nothing else, so the key, which covers the set, covers all the compiler can see.
 */
#ifndef FFA_JIT_SOURCE_H
#define FFA_JIT_SOURCE_H

#include "base/base.h"
#include "base/embedded.h"

enum {
    SOURCE_FILES_MAX = 256,
    SOURCE_BYTES_MAX = 1 << 20, /* a file */
    SOURCE_SET_MAX = 64         /* files of one template */
};

struct sources {
    const struct embedded_file *files; /* sorted by name */
    int count;
    struct embedded_file *owned; /* when read from a folder: files, and each name and text */
};

/* folder NULL: the embedded text. FFA_IO names the folder or file that cannot be read. */
ffa_status sources_open(struct sources *out, const char *folder, ffa_error *err);
void sources_finish(struct sources *sources);

/* What one template uses, sorted by name, its own file included. */
struct source_set {
    const struct embedded_file *at[SOURCE_SET_MAX];
    int count;
    const struct embedded_file *root;
};

/* The set of "<template_name>.cu". FFA_NOT_FOUND without that file; FFA_INVALID where a file that
 * was read from a folder fails include_check. A name that is no file of the templates is left to
 * the compiler, which finds none, or never reaches the line. */
ffa_status sources_collect(struct source_set *set, const struct sources *sources,
                           const char *template_name, ffa_error *err);

/* FFA_INVALID where the text includes, or asks for, a file by an absolute path, through a parent
 * folder, or by a macro. */
ffa_status include_check(const struct embedded_file *file, ffa_error *err);

#endif
