/* SPDX-License-Identifier: Apache-2.0
 *
 * A private folder for a test, and what tests do with files in it. Every failure aborts with the
 * path.
 */
#include "support/tmpdir.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void need(int is_true, const char *what, const char *subject)
{
    if (is_true)
        return;
    fprintf(stderr, "cannot %s '%s'\n", what, subject);
    abort();
}

char *tmpdir_path(const char *folder, const char *name)
{
    size_t bytes = strlen(folder) + strlen(name) + 2;
    char *path = malloc(bytes);

    need(path != NULL, "name", name);
    (void)snprintf(path, bytes, "%s/%s", folder, name);
    return path;
}

char *tmpdir_make(void)
{
    const char *base = getenv("TMPDIR");
    char *folder = tmpdir_path(base && *base ? base : "/tmp", "ffa-test-XXXXXX");

    need(mkdtemp(folder) != NULL, "make folder", folder);
    return folder;
}

static int remove_one(const char *path, const struct stat *stat, int type, struct FTW *ftw)
{
    (void)stat;
    (void)type;
    (void)ftw;
    return remove(path);
}

void tmpdir_remove(char *folder)
{
    (void)nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free(folder);
}

void tmpdir_write(const char *path, const void *bytes, size_t count)
{
    FILE *file = fopen(path, "we");

    need(file != NULL, "write", path);
    need(fwrite(bytes, 1, count, file) == count, "write", path);
    need(fclose(file) == 0, "write", path);
}

void tmpdir_write_text(const char *path, const char *text)
{
    tmpdir_write(path, text, strlen(text));
}

char *tmpdir_read(const char *path, size_t *count)
{
    FILE *file = fopen(path, "re");
    long bytes;
    char *text;

    need(file != NULL && fseek(file, 0, SEEK_END) == 0, "read", path);
    bytes = ftell(file);
    need(bytes >= 0 && fseek(file, 0, SEEK_SET) == 0, "read", path);
    text = calloc((size_t)bytes + 1, 1);
    need(text != NULL && fread(text, 1, (size_t)bytes, file) == (size_t)bytes, "read", path);
    (void)fclose(file);
    *count = (size_t)bytes;
    return text;
}

void tmpdir_copy(const char *from, const char *to)
{
    size_t count;
    char *bytes = tmpdir_read(from, &count);

    tmpdir_write(to, bytes, count);
    free(bytes);
}

void tmpdir_copy_folder(const char *from, const char *to)
{
    DIR *dir = opendir(from);

    need(dir != NULL, "read", from);
    for (struct dirent *entry; (entry = readdir(dir));) {
        char *source, *target;

        if (entry->d_name[0] == '.')
            continue;
        source = tmpdir_path(from, entry->d_name);
        target = tmpdir_path(to, entry->d_name);
        tmpdir_copy(source, target);
        free(source);
        free(target);
    }
    (void)closedir(dir);
}

int tmpdir_lines(const char *path)
{
    size_t bytes;
    char *text;
    int lines = 0;

    if (access(path, F_OK) != 0)
        return 0;
    text = tmpdir_read(path, &bytes);
    for (size_t i = 0; i < bytes; i++)
        lines += text[i] == '\n';
    free(text);
    return lines;
}

bool tmpdir_has_unnamed_files(const char *folder)
{
    const int file = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

    if (file >= 0)
        (void)close(file);
    return file >= 0;
}
