/* SPDX-License-Identifier: Apache-2.0
 *
 * Template text and the set of files one template reaches. Invariant: files are sorted by name,
 * both in the whole and in a set, so that a set hashes the same wherever it came from. A set is
 * found by reading the lines #include "..." of each file, in a list that grows while it is read.
 */
#include "jit/source.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct embedded_file *)a)->name, ((const struct embedded_file *)b)->name);
}

static bool is_template_file(const char *name)
{
    static const char *const endings[] = { ".cu", ".h", ".def" };
    size_t bytes = strlen(name);

    if (name[0] == '.')
        return false;
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        size_t ending = strlen(endings[i]);

        if (bytes > ending && strcmp(name + bytes - ending, endings[i]) == 0)
            return true;
    }
    return false;
}

/* A FIFO would be waited for, a device has no end. */
static FILE *open_file(const char *path)
{
    struct stat info;

    if (fault_here(FAULT_FILE)) {
        errno = EIO;
        return NULL;
    }
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode)) {
        errno = S_ISDIR(info.st_mode) ? EISDIR : EINVAL;
        return NULL;
    }
    return fopen(path, "re");
}

static ffa_status read_file(struct embedded_file *out, const char *folder, const char *name,
                            ffa_error *err)
{
    struct text path = { 0 };
    char *bytes = NULL;
    FILE *file = NULL;
    size_t count;
    ffa_status rc = FFA_OK;

    text_add(&path, "%s/%s", folder, name);
    bytes = mem_array((size_t)SOURCE_BYTES_MAX + 2, 1);
    out->name = mem_strdup(name);
    if (path.failed || !bytes || !out->name) {
        rc = error_nomem(err, "template text");
        goto out;
    }
    file = open_file(path.at);
    if (!file) {
        rc = error_fail(err, FFA_IO, errno, "cannot read template '%s': %s", path.at,
                        strerror(errno));
        goto out;
    }
    count = fread(bytes, 1, (size_t)SOURCE_BYTES_MAX + 1, file);
    if (ferror(file)) {
        rc = error_fail(err, FFA_IO, errno, "cannot read template '%s': %s", path.at,
                        strerror(errno));
        goto out;
    }
    if (count > SOURCE_BYTES_MAX || strlen(bytes) != count) {
        rc = error_fail(err, FFA_IO, 0,
                        "template '%s' is not text of at most %d bytes without a zero byte",
                        path.at, SOURCE_BYTES_MAX);
        goto out;
    }
    out->text = mem_array(count + 1, 1);
    if (!out->text) {
        rc = error_nomem(err, "template text");
        goto out;
    }
    memcpy((char *)out->text, bytes, count);
    out->bytes = count;
out:
    if (file)
        (void)fclose(file);
    mem_free(bytes);
    text_finish(&path);
    return rc;
}

static ffa_status read_folder(struct sources *out, const char *folder, ffa_error *err)
{
    DIR *dir = NULL;
    ffa_status rc = FFA_OK;

    out->owned = mem_array(SOURCE_FILES_MAX, sizeof *out->owned);
    if (!out->owned) {
        rc = error_nomem(err, "template text");
        goto out;
    }
    out->files = out->owned;
    dir = fault_here(FAULT_FILE) ? (errno = EIO, NULL) : opendir(folder);
    if (!dir) {
        rc = error_fail(err, FFA_IO, errno, "cannot read templates_dir '%s': %s", folder,
                        strerror(errno));
        goto out;
    }
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (!is_template_file(entry->d_name))
            continue;
        if (out->count == SOURCE_FILES_MAX) {
            rc = error_fail(err, FFA_IO, 0, "templates_dir '%s' has more than %d template files",
                            folder, SOURCE_FILES_MAX);
            goto out;
        }
        out->count++; /* before reading: a half-read file is freed, too */
        FFA_TRY(read_file(&out->owned[out->count - 1], folder, entry->d_name, err));
    }
    if (out->count == 0) {
        rc = error_fail(err, FFA_IO, 0, "templates_dir '%s' has no .cu, .h or .def file", folder);
        goto out;
    }
    qsort(out->owned, (size_t)out->count, sizeof *out->owned, by_name);
out:
    if (dir)
        (void)closedir(dir);
    return rc;
}

ffa_status sources_open(struct sources *out, const char *folder, ffa_error *err)
{
    ffa_status rc;

    *out = (struct sources){ .files = embedded_templates, .count = embedded_template_count };
    if (!folder)
        return FFA_OK;
    *out = (struct sources){ 0 };
    rc = read_folder(out, folder, err);
    if (rc != FFA_OK)
        sources_finish(out);
    return rc;
}

void sources_finish(struct sources *sources)
{
    for (int i = 0; sources->owned && i < sources->count; i++) {
        mem_free((char *)sources->owned[i].name);
        mem_free((char *)sources->owned[i].text);
    }
    mem_free(sources->owned);
    *sources = (struct sources){ 0 };
}

static const struct embedded_file *find(const struct sources *sources, const char *name)
{
    struct embedded_file wanted = { .name = name };

    return bsearch(&wanted, sources->files, (size_t)sources->count, sizeof *sources->files,
                   by_name);
}

/* The name in `#include "name"` if the line is one. */
static bool include_name(const char *line, char *name, size_t size)
{
    size_t bytes;

    line += strspn(line, " \t");
    if (*line++ != '#')
        return false;
    line += strspn(line, " \t");
    if (strncmp(line, "include", 7) != 0)
        return false;
    line += 7;
    line += strspn(line, " \t");
    if (*line++ != '"')
        return false;
    bytes = strcspn(line, "\"\n");
    if (line[bytes] != '"' || bytes == 0 || bytes >= size)
        return false;
    memcpy(name, line, bytes);
    name[bytes] = '\0';
    return true;
}

static ffa_status add(struct source_set *set, const struct embedded_file *file, ffa_error *err)
{
    for (int i = 0; i < set->count; i++)
        if (set->at[i] == file)
            return FFA_OK;
    if (set->count == SOURCE_SET_MAX)
        return error_fail(err, FFA_INVALID, 0, "template '%s' includes more than %d files",
                          set->root->name, SOURCE_SET_MAX);
    set->at[set->count++] = file;
    return FFA_OK;
}

static int by_pointed_name(const void *a, const void *b)
{
    return by_name(*(const struct embedded_file *const *)a,
                   *(const struct embedded_file *const *)b);
}

ffa_status sources_collect(struct source_set *set, const struct sources *sources,
                           const char *template_name, ffa_error *err)
{
    char name[128];
    ffa_status rc = FFA_OK;

    *set = (struct source_set){ 0 };
    text_copy(name, "%s.cu", template_name);
    set->root = find(sources, name);
    if (!set->root)
        return error_fail(err, FFA_NOT_FOUND, 0, "there is no template text '%s'", name);
    FFA_TRY(add(set, set->root, err));
    /* The set grows while it is read: what a file includes is read in its turn. */
    for (int i = 0; i < set->count; i++) {
        if (sources->owned)
            FFA_TRY(include_check(set->at[i], err));
        for (const char *line = set->at[i]->text; line; line = strchr(line, '\n')) {
            const struct embedded_file *file;

            line += *line == '\n';
            if (!include_name(line, name, sizeof name))
                continue;
            file = find(sources, name);
            if (file)
                FFA_TRY(add(set, file, err));
        }
    }
    qsort(set->at, (size_t)set->count, sizeof *set->at, by_pointed_name);
out:
    return rc;
}
