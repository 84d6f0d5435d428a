/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether the place of a store or a bundle is to be trusted. What is read there becomes code that
 * runs, so nobody but its user, root or, of a group's store, its group may be able to change it.
 *
 * Invariant: the folder that was checked is the folder that is used. It is opened first and looked
 * at by its descriptor, and all that is in it is reached through that. Files are looked at by name
 * and never opened, since closing a descriptor would drop SQLite's locks (store.c). A store that is
 * a symbolic link is refused; the links that lead to a bundle are followed one by one, and the
 * owner and the folder of each are checked.
 *
 * SQLite opens by path, and "/proc/thread-self/fd/N" is the path of a descriptor. Where /proc is
 * missing, a path by names is as good if nobody else can exchange a folder on it, so all are
 * checked.
 */
#include "base/tempfile.h"
#include "cache/store_internal.h"
#include "cache/store_place.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

const char *store_kind(const struct store *store)
{
    return store->mode == STORE_BUNDLE ? "bundle" : "store";
}

bool store_is_maker(const struct store *store)
{
    return store->mode == STORE_READWRITE || store->may_create;
}

ffa_status store_fail_network(const struct store *store, ffa_error *err)
{
    return error_fail(err, FFA_CACHE, 0,
                      "store '%s' is on a network file system (%s) and is only read; use a folder "
                      "on a local disk, or a bundle, or %s",
                      store->called, store->network,
                      store->mode == STORE_MAINTAIN ? "say FFA_CACHE_NETWORK (--network)"
                                                    : "set FFA_OPEN_NETWORK_STORE (--network)");
}

static ffa_status refuse(struct store *store, ffa_error *err, const char *what, const char *fix)
{
    return error_fail(err, FFA_CACHE, 0, "%s '%s' is not trusted: %s; %s", store_kind(store),
                      store->called, what, fix);
}

/* What to do about a mode. To take write permission from what others share would harm them. */
static void advise(char *out, size_t size, const char *name, const struct stat *stat)
{
    if (stat->st_mode & S_ISVTX || stat->st_uid != geteuid())
        text_format(out, size, "others share it: use a folder of your own");
    else if (strlen(name) < size - sizeof "chmod go-w ''")
        text_format(out, size, "chmod go-w '%s'", name);
    else
        text_format(out, size, "chmod go-w it");
}

/* A folder or file is trusted when nobody but its user and root can change it; of a group's store,
 * nobody but the group. */
static ffa_status trust(struct store *store, const char *name, const struct stat *stat,
                        const char *kind, ffa_error *err)
{
    bool is_groups = store->of_group && place_is_of_group(stat);
    char what[256], fix[256];

    if (S_ISLNK(stat->st_mode)) {
        text_copy(what, "its %s is a symbolic link", kind);
        return refuse(store, err, what, "give the path it leads to");
    }
    if (!S_ISDIR(stat->st_mode) && !S_ISREG(stat->st_mode))
        return error_fail(err, FFA_CACHE, 0, "%s '%s' is no regular file: it is %s",
                          store_kind(store), store->called, place_kind(stat->st_mode));
    if (place_is_trusted(stat, store->of_group))
        return FFA_OK;
    if (stat->st_uid != geteuid() && stat->st_uid != 0 && !is_groups) {
        text_copy(what, "its %s belongs to user %u, this process runs as %u", kind,
                  (unsigned)stat->st_uid, (unsigned)geteuid());
        return refuse(store, err, what, "use a folder of your own, or change the owner");
    }
    text_copy(what, "its %s can be written by others (mode %03o)", kind,
              (unsigned)stat->st_mode & (stat->st_mode & S_ISVTX ? 07777u : 0777u));
    advise(fix, sizeof fix, name, stat);
    return refuse(store, err, what, fix);
}

ffa_status store_file_trouble(struct store *store, const char *doing, const char *name,
                              ffa_error *err)
{
    char called[STORE_CALLED];

    store_call(called, name);
    return error_fail(err, errno == ENOMEM ? FFA_NOMEM : FFA_CACHE, errno,
                      "%s '%s': cannot %s '%s': %s", store_kind(store), store->called, doing,
                      called, strerror(errno));
}

/* ---- folders ---- */

void store_leave_place(struct store_place *place)
{
    if (place->folder >= 0)
        (void)close(place->folder);
    mem_free(place->opened);
    mem_free(place->name);
    *place = (struct store_place){ .folder = -1 };
}

char *store_place_path(const struct store_place *place, const char *ending)
{
    struct text path = { 0 };

    text_add(&path, "%s/%s%s", strcmp(place->opened, "/") == 0 ? "" : place->opened, place->name,
             ending);
    return text_take(&path);
}

/* Open a folder, or the link that is in its place, with no right but to pass through; -1 with
 * errno. `at`: where a relative name starts. */
static int open_folder(int at, const char *name, bool follow, struct stat *stat)
{
    int folder = fault_here(FAULT_FILE)
                     ? (errno = EIO, -1)
                     : descriptor_above_standard(
                           openat(at, name, O_PATH | O_CLOEXEC | (follow ? 0 : O_NOFOLLOW)));

    if (folder >= 0 && fstat(folder, stat) != 0) {
        int saved = errno;

        (void)close(folder);
        errno = saved;
        return -1;
    }
    return folder;
}

static int look(int folder, const char *name, struct stat *stat)
{
    return fault_here(FAULT_FILE) ? (errno = EIO, -1)
                                  : fstatat(folder, name, stat, AT_SYMLINK_NOFOLLOW);
}

/* A folder that was made on the way to a group's store: its group passes through. */
static bool let_group_pass(const struct store *store, const char *name)
{
    int folder = openat(store->start, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat stat;
    bool is_done = folder >= 0 && fstat(folder, &stat) == 0 &&
                   fchmod(folder, (stat.st_mode & 07777) | S_IXGRP) == 0;
    int saved = errno;

    if (folder >= 0)
        (void)close(folder);
    errno = saved;
    return is_done;
}

/* As mkdir -p, with mode 0700. */
static ffa_status make_folder(struct store *store, bool *is_made, ffa_error *err)
{
    char *name = mem_strdup(store->folder);
    ffa_status rc = FFA_OK;

    if (!name)
        return error_nomem(err, "a path");
    for (char *slash = name;;) {
        slash = strchr(slash + 1, '/');
        if (slash)
            *slash = '\0';
        *is_made = mkdirat(store->start, name, 0700) == 0;
        if ((!*is_made && errno != EEXIST) || fault_here(FAULT_FILE)) {
            rc = store_file_trouble(store, "make the folder", name, err);
            break;
        }
        if (!slash)
            break;
        if (*is_made && store->of_group && !let_group_pass(store, name)) {
            rc = store_file_trouble(store, "hand to its group", name, err);
            break;
        }
        *slash = '/';
    }
    mem_free(name);
    return rc;
}

/* With the group's bit, so that what others make in it is the group's, too. */
static ffa_status give_to_group(struct store *store, const struct stat *stat, ffa_error *err)
{
    int folder =
        openat(store->start, store->folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat now;
    ffa_status rc = FFA_OK;

    if (folder >= 0 && fstat(folder, &now) == 0 &&
        (now.st_ino != stat->st_ino || now.st_dev != stat->st_dev || now.st_uid != geteuid())) {
        errno = ESTALE;
        rc = store_file_trouble(store, "hand to its group", store->folder, err);
    } else if (folder < 0 || fchmod(folder, 02770) != 0) {
        rc = store_file_trouble(store, "hand to its group", store->folder, err);
    }
    if (folder >= 0)
        (void)close(folder);
    return rc;
}

/* Whether nobody else can exchange a folder on the way to `path`, which has no links: each belongs
 * to this user or root, and others may write none that is not sticky. */
static ffa_status check_ancestors(struct store *store, char *path, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    for (char *slash = path; slash && rc == FFA_OK; slash = strchr(slash + 1, '/')) {
        struct stat stat;
        char kept = slash[slash == path];

        slash[slash == path] = '\0';
        if (lstat(path, &stat) != 0) {
            rc = store_file_trouble(store, "look at", path, err);
        } else if ((stat.st_uid != 0 && stat.st_uid != geteuid()) ||
                   (!(stat.st_mode & S_ISVTX) && !place_is_trusted(&stat, store->of_group))) {
            char what[256];

            text_copy(what, "others can exchange folders in '%.140s', and there is no /proc", path);
            rc = refuse(store, err, what, "use a folder below your own, or mount /proc");
        }
        slash[slash == path] = kept;
    }
    return rc;
}

/* Without /proc: the folder's path by names, if that cannot lead elsewhere. */
static ffa_status open_by_names(struct store *store, ffa_error *err)
{
    bool is_bundle = store->follows_links;
    char *path = realpath(is_bundle ? store->path : store->folder, NULL);
    struct stat here, there;
    ffa_status rc = FFA_OK;

    if (path && is_bundle)
        strrchr(path, '/')[strrchr(path, '/') == path] = '\0';
    if (!path || fstat(store->place.folder, &here) != 0 || stat(path, &there) != 0 ||
        here.st_ino != there.st_ino || here.st_dev != there.st_dev) {
        rc = store_file_trouble(store, "find the folder of", store->path, err);
        goto out;
    }
    FFA_TRY(check_ancestors(store, path, err));
    store->place.opened = mem_strdup(path);
out:
    free(path);
    return rc;
}

/* Fill in what opens the folder; takes the descriptor, also where it fails. */
static ffa_status take_place(struct store *store, int folder, const char *name, ffa_error *err)
{
    struct store_place *place = &store->place;
    char path[32];
    ffa_status rc = FFA_OK;

    store_leave_place(place);
    place->folder = folder;
    place->name = mem_strdup(name);
    if (descriptor_path(path, folder))
        place->opened = mem_strdup(path);
    else
        FFA_TRY(open_by_names(store, err));
    if (!place->name || !place->opened)
        rc = error_nomem(err, "a path");
out:
    return rc;
}

/* ---- a store ---- */

static ffa_status enter_folder(struct store *store, ffa_error *err)
{
    int folder;
    bool is_made = false;
    struct stat stat;
    ffa_status rc = FFA_OK;

    folder = open_folder(store->start, store->folder, false, &stat);
    if (folder < 0 && errno == ENOENT) {
        if (!store_is_maker(store))
            return error_fail(err, FFA_NOT_FOUND, ENOENT, "there is no store '%s'", store->called);
        FFA_TRY(make_folder(store, &is_made, err));
        folder = open_folder(store->start, store->folder, false, &stat);
    }
    if (folder < 0)
        return store_file_trouble(store, "look at", store->folder, err);
    if (is_made && store->of_group)
        FFA_TRY(give_to_group(store, &stat, err));
    FFA_TRY(trust(store, store->folder, &stat, "folder", err));
    if (!S_ISDIR(stat.st_mode)) {
        rc = error_fail(err, FFA_CACHE, ENOTDIR, "store '%s': '%s' is no folder", store->called,
                        store->folder);
        goto out;
    }
    rc = take_place(store, folder, strrchr(store->path, '/') + 1, err);
    folder = -1;
out:
    if (folder >= 0)
        (void)close(folder);
    return rc;
}

/* SQLite would wait for the other end of a FIFO, and follow a link. */
static ffa_status check_companions(struct store *store, ffa_error *err)
{
    static const char *const endings[] = { "-journal", "-wal", "-shm" };
    const struct store_place *place = &store->place;

    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        struct text name = { 0 };
        struct stat stat;
        bool is_bad;

        text_add(&name, "%s%s", place->name, endings[i]);
        if (name.failed)
            return error_nomem(err, "a path");
        is_bad = fstatat(place->folder, name.at, &stat, AT_SYMLINK_NOFOLLOW) == 0 &&
                 !S_ISREG(stat.st_mode);
        text_finish(&name);
        if (is_bad)
            return error_fail(err, FFA_CACHE, 0,
                              "store '%s': '%s%s' is no regular file: it is %s; "
                              "remove it",
                              store->called, store->called, endings[i], place_kind(stat.st_mode));
    }
    return FFA_OK;
}

ffa_status store_enter_place(struct store *store, struct stat *file, ffa_error *err)
{
    ffa_status rc;

    store_leave_place(&store->place);
    FFA_TRY(enter_folder(store, err));
    if (look(store->place.folder, store->place.name, file) != 0)
        return errno == ENOENT
                   ? error_fail(err, FFA_NOT_FOUND, ENOENT, "there is no store '%s'", store->called)
                   : store_file_trouble(store, "look at", store->path, err);
    FFA_TRY(trust(store, store->path, file, "file", err));
    if (!S_ISREG(file->st_mode))
        rc = error_fail(err, FFA_CACHE, 0, "store '%s' is no regular file: it is %s", store->called,
                        place_kind(file->st_mode));
    else
        rc = check_companions(store, err);
    /* Nothing was ever written: as good as absent. */
    if (rc == FFA_OK && file->st_size == 0 && store_is_maker(store))
        rc = error_fail(err, FFA_NOT_FOUND, 0, "store '%s' is empty", store->called);
out:
    return rc;
}

/* ---- a bundle ---- */

/* What to call the folder of a hop: that of a relative link is not relative to anything that the
 * reader knows. */
static const char *call(const struct store *store, const char *name, const char *path, int folder,
                        char out[256])
{
    char opened[32];
    ssize_t bytes;

    if (*path == '/' || strcmp(name, store->path) == 0 || !descriptor_path(opened, folder))
        return path;
    bytes = readlink(opened, out, 255);
    if (bytes < 0)
        return path;
    out[bytes] = '\0';
    return out;
}

/* One hop: the folder of `name`, and what has the name in it. *folder: where a relative link
 * starts; replaced. */
static ffa_status hop_to(struct store *store, const char *name, int *folder, struct stat *file,
                         ffa_error *err)
{
    const char *slash = strrchr(name, '/');
    char *path = mem_strdup(slash ? name : "."), called[256];
    struct stat stat;
    int next;
    ffa_status rc = FFA_OK;

    if (!path)
        return error_nomem(err, "a path");
    if (slash)
        path[slash == name ? 1 : slash - name] = '\0';
    next = open_folder(*folder, path, true, &stat);
    if (*folder >= 0)
        (void)close(*folder);
    *folder = next;
    if (next < 0 || look(next, slash ? slash + 1 : name, file) != 0)
        rc = errno == ENOENT || errno == ENOTDIR
                 ? error_fail(err, FFA_NOT_FOUND, ENOENT, "there is no %s '%s'", store_kind(store),
                              store->called)
                 : store_file_trouble(store, "look at", name, err);
    else
        rc = trust(store, call(store, name, path, next, called), &stat, "folder", err);
    mem_free(path);
    return rc;
}

/* The text of a link in `folder`; the caller frees. */
static ffa_status read_link(struct store *store, int folder, const char *name, char **out,
                            ffa_error *err)
{
    const char *slash = strrchr(name, '/');
    char link[4096];
    ssize_t bytes = readlinkat(folder, slash ? slash + 1 : name, link, sizeof link - 1);

    if (bytes < 0)
        return store_file_trouble(store, "follow", name, err);
    link[bytes] = '\0';
    *out = mem_strdup(link);
    return *out ? FFA_OK : error_nomem(err, "a path");
}

ffa_status store_enter_bundle_place(struct store *store, struct stat *file, ffa_error *err)
{
    enum { HOPS = 8 };
    char *name = mem_strdup(store->path), *next;
    int folder =
        store->start >= 0 ? fcntl(store->start, F_DUPFD_CLOEXEC, STDERR_FILENO + 1) : AT_FDCWD;
    ffa_status rc = name ? FFA_OK : error_nomem(err, "a path");

    store_leave_place(&store->place);
    FFA_TRY(rc);
    for (int hop = 0;; hop++) {
        FFA_TRY(hop_to(store, name, &folder, file, err));
        if (!S_ISLNK(file->st_mode))
            break;
        if (file->st_uid != geteuid() && file->st_uid != 0) {
            rc = refuse(store, err, "a link on the way to it belongs to another user",
                        "give the path it leads to");
            goto out;
        }
        if (hop == HOPS) {
            errno = ELOOP;
            rc = store_file_trouble(store, "follow", name, err);
            goto out;
        }
        FFA_TRY(read_link(store, folder, name, &next, err));
        mem_free(name);
        name = next;
    }
    FFA_TRY(trust(store, store->path, file, "file", err));
    if (!S_ISREG(file->st_mode)) {
        rc = error_fail(err, FFA_CACHE, 0, "%s '%s' is no regular file: it is %s",
                        store_kind(store), store->called, place_kind(file->st_mode));
        goto out;
    }
    rc = take_place(store, folder, strrchr(name, '/') ? strrchr(name, '/') + 1 : name, err);
    folder = -1;
    if (rc == FFA_OK && store->mode != STORE_BUNDLE) /* a bundle has no journal */
        rc = check_companions(store, err);
out:
    if (folder >= 0)
        (void)close(folder);
    mem_free(name);
    return rc;
}
