/* SPDX-License-Identifier: Apache-2.0
 *
 * Temporary files. Invariant: the file appears under its final name whole, or not at all.
 *
 * The trick is O_TMPFILE: the file has no name until linkat() gives it one, so that a kill leaves
 * nothing. Where the file system or /proc does not allow that, the file has a temporary name and is
 * locked with flock() as long as it is written: a file of such a name that nobody has locked was
 * left behind.
 *
 * Closing a descriptor drops all fcntl() locks of the process on the file. A published file may
 * already be open and locked by another thread, so only an O_PATH descriptor, whose closing drops
 * none, is open when the file gets its name.
 */
#include "base/tempfile.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    SUFFIX = 6,          /* characters after the prefix */
    STALE_S = 600,       /* what was written to later is not left behind */
    STALE_SURE_S = 86400 /* the same, where there are no locks to tell */
};

bool descriptor_path(char out[32], int file)
{
    struct stat here, there;

    /* "self" would be the first thread, which may have ended. */
    (void)snprintf(out, 32, "/proc/thread-self/fd/%d", file);
    if (!fault_here(FAULT_PROC) && fstat(file, &here) == 0 && stat(out, &there) == 0 &&
        here.st_dev == there.st_dev && here.st_ino == there.st_ino)
        return true;
    out[0] = '\0';
    return false;
}

int descriptor_above_standard(int file)
{
    int moved, saved;

    if (file < 0 || file > STDERR_FILENO)
        return file;
    moved = fcntl(file, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    saved = errno;
    (void)close(file);
    errno = saved;
    return moved;
}

static char *join(const char *folder, const char *prefix, const char *rest)
{
    struct text path = { 0 };

    text_add(&path, "%s%s%s%s", folder, *folder ? "/" : "", prefix, rest);
    return text_take(&path);
}

/* ---- making ---- */

static bool open_unnamed(struct tempfile *file)
{
    char path[32];

    file->file = descriptor_above_standard(
        openat(file->folder_fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    if (file->file < 0)
        return false;
    if (descriptor_path(path, file->file)) {
        file->path = mem_strdup(path);
        return true;
    }
    (void)close(file->file);
    file->file = -1;
    return false;
}

static bool open_named(struct tempfile *file)
{
    file->path = join(file->folder, file->prefix, "XXXXXX");
    if (!file->path) {
        errno = ENOMEM;
        return false;
    }
    file->file = mkostemp(file->path, O_CLOEXEC);
    if (file->file >= 0) {
        file->file = descriptor_above_standard(file->file);
        if (file->file < 0)
            (void)unlink(file->path);
    }
    if (file->file < 0) {
        mem_free(file->path);
        file->path = NULL;
        return false;
    }
    (void)flock(file->file, LOCK_EX | LOCK_NB);
    file->name = mem_strdup(strrchr(file->path, '/') + 1);
    if (!file->name) {
        (void)unlink(file->path);
        errno = ENOMEM;
    }
    return file->name != NULL;
}

static bool open_folder(struct tempfile *file, const char *folder)
{
    char path[32];

    file->folder_fd =
        fault_here(FAULT_FILE)
            ? (errno = EIO, -1)
            : descriptor_above_standard(open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (file->folder_fd < 0)
        return false;
    file->folder = mem_strdup(descriptor_path(path, file->folder_fd) ? path : folder);
    errno = ENOMEM;
    return file->folder != NULL;
}

bool tempfile_open(struct tempfile *out, const char *folder, const char *prefix)
{
    *out = (struct tempfile)TEMPFILE_NONE;
    out->prefix = mem_strdup(prefix);
    errno = ENOMEM;
    if (out->prefix && open_folder(out, folder) && (open_unnamed(out) || open_named(out))) {
        errno = ENOMEM;
        if (out->path)
            return true;
    }
    tempfile_discard(out);
    return false;
}

bool tempfile_set_mode(const struct tempfile *file, mode_t mode)
{
    return fchmod(file->file, mode) == 0;
}

/* ---- putting in place ---- */

/* Exchange the descriptor for one whose closing drops no locks. */
static bool hold_only(struct tempfile *file)
{
    char path[32];
    int held = open(file->path, O_PATH | O_CLOEXEC);

    if (held < 0)
        return false;
    (void)close(file->file);
    file->file = held;
    if (file->name)
        return true;
    mem_free(file->path);
    file->path = descriptor_path(path, held) ? mem_strdup(path) : NULL;
    if (!file->path)
        errno = path[0] ? ENOMEM : ENOENT;
    return file->path != NULL;
}

/* Give an unnamed file a temporary name: only a file with a name can replace another. */
static bool take_name(struct tempfile *file)
{
    enum { TRIES = 64 };

    for (uint32_t i = 0; i < TRIES && !file->name; i++) {
        uint32_t number = (uint32_t)clock_us() * 2654435761u + ((uint32_t)getpid() << 8) + i;
        char suffix[SUFFIX + 1];

        (void)snprintf(suffix, sizeof suffix, "%06x", (unsigned)(number & 0xffffffu));
        file->name = join("", file->prefix, suffix);
        if (!file->name) {
            errno = ENOMEM;
            return false;
        }
        if (linkat(AT_FDCWD, file->path, file->folder_fd, file->name, AT_SYMLINK_FOLLOW) == 0)
            return true;
        mem_free(file->name);
        file->name = NULL;
        if (errno != EEXIST)
            return false;
    }
    return false;
}

bool tempfile_publish(struct tempfile *file, const char *name, bool replace)
{
    if (fault_here(FAULT_FILE)) {
        errno = EIO;
        return false;
    }
    if (!hold_only(file))
        return false;
    if (!replace && !file->name)
        return linkat(AT_FDCWD, file->path, file->folder_fd, name, AT_SYMLINK_FOLLOW) == 0;
    if (!file->name && !take_name(file))
        return false;
    /* Some file systems have no links. Renaming there may replace a file made this instant. */
    if (!replace) {
        if (linkat(file->folder_fd, file->name, file->folder_fd, name, 0) == 0)
            return true; /* tempfile_discard removes the temporary name */
        if (errno == EEXIST)
            return false;
    }
    if (renameat(file->folder_fd, file->name, file->folder_fd, name) != 0)
        return false;
    mem_free(file->name);
    file->name = NULL;
    return true;
}

void tempfile_discard(struct tempfile *file)
{
    int saved = errno;

    if (file->name)
        (void)unlinkat(file->folder_fd, file->name, 0);
    if (file->file >= 0)
        (void)close(file->file);
    if (file->folder_fd >= 0)
        (void)close(file->folder_fd);
    mem_free(file->path);
    mem_free(file->folder);
    mem_free(file->name);
    mem_free(file->prefix);
    *file = (struct tempfile)TEMPFILE_NONE;
    errno = saved;
}

/* ---- what was left behind ---- */

static bool is_name_of(const char *name, const char *prefix)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    size_t bytes = strlen(prefix);

    return strncmp(name, prefix, bytes) == 0 && strlen(name + bytes) == SUFFIX &&
           strspn(name + bytes, letters) == SUFFIX;
}

/* Whether it is this user's, long unchanged, and nobody's by its lock; the lock is held then. */
static bool is_left_behind(int file, const struct stat *entry)
{
    time_t age = time(NULL) - entry->st_mtime;
    struct stat now;

    if (fstat(file, &now) != 0 || now.st_ino != entry->st_ino || now.st_dev != entry->st_dev ||
        now.st_uid != geteuid() || age <= STALE_S)
        return false;
    if (flock(file, LOCK_EX | LOCK_NB) == 0)
        return true;
    return errno != EWOULDBLOCK && age > STALE_SURE_S;
}

/* Remove this user's files of names that start with `inside` in an open folder; takes the
 * descriptor. */
static void empty_folder(int folder, const char *inside)
{
    DIR *dir = fdopendir(folder);

    if (!dir) {
        (void)close(folder);
        return;
    }
    for (struct dirent *entry; (entry = readdir(dir));) {
        struct stat stat;

        if (strncmp(entry->d_name, inside, strlen(inside)) == 0 &&
            fstatat(dirfd(dir), entry->d_name, &stat, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISREG(stat.st_mode) && stat.st_uid == geteuid())
            (void)unlinkat(dirfd(dir), entry->d_name, 0);
    }
    (void)closedir(dir);
}

/* inside: NULL for a file. */
static void reap_one(int folder, const char *name, const char *inside)
{
    struct stat entry;
    int file;

    if (fstatat(folder, name, &entry, AT_SYMLINK_NOFOLLOW) != 0 ||
        !(inside ? S_ISDIR(entry.st_mode) : S_ISREG(entry.st_mode)))
        return;
    if (!inside && entry.st_nlink > 1) {
        /* Its maker was killed between two names, and a store may be open under the other: it must
         * not be opened here. */
        if (entry.st_uid == geteuid() && time(NULL) - entry.st_mtime > STALE_S)
            (void)unlinkat(folder, name, 0);
        return;
    }
    file = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (file < 0)
        return;
    if (!is_left_behind(file, &entry)) {
        (void)close(file);
        return;
    }
    if (inside)
        empty_folder(file, inside);
    (void)unlinkat(folder, name, inside ? AT_REMOVEDIR : 0);
    if (!inside)
        (void)close(file);
}

static void reap(const char *folder, const char *prefix, const char *inside)
{
    int saved = errno;
    DIR *dir = opendir(folder);

    if (dir) {
        for (struct dirent *entry; (entry = readdir(dir));)
            if (is_name_of(entry->d_name, prefix))
                reap_one(dirfd(dir), entry->d_name, inside);
        (void)closedir(dir);
    }
    errno = saved;
}

void tempfile_reap(const char *folder, const char *prefix)
{
    reap(folder, prefix, NULL);
}

void tempfile_reap_folders(const char *folder, const char *prefix, const char *inside)
{
    reap(folder, prefix, inside);
}
