/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether the place of a store or a bundle is to be trusted. What is read there becomes code that
 * runs, so nobody but its user, root or, of a group's store, its group may be able to change it.
 * Invariant: files are looked at by name (lstat; stat for the folder of a bundle or of a link) and
 * never opened, since closing a descriptor would drop SQLite's locks (store.c). A store that is a
 * symbolic link is refused; the links that lead to a bundle are followed one by one, and the owner
 * and the folder of each are checked.
 */
#include "cache/store_internal.h"

#include <errno.h>
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

static ffa_status refuse(struct store *store, ffa_error *err, const char *what, const char *fix)
{
    return error_fail(err, FFA_CACHE, 0, "%s '%s' is not trusted: %s; %s", store_kind(store),
                      store->path, what, fix);
}

/* Whether this process is in a group. */
static bool is_in_group(gid_t group)
{
    int count = getgroups(0, NULL);
    gid_t *groups = count > 0 ? mem_array((size_t)count, sizeof *groups) : NULL;
    bool found = getegid() == group;

    count = groups ? getgroups(count, groups) : 0;
    for (int i = 0; i < count; i++)
        found = found || groups[i] == group;
    mem_free(groups);
    return found;
}

/* A folder or file is trusted when nobody but its user and root can change it; of a group's store,
 * nobody but the group. */
static ffa_status trust(struct store *store, const char *name, const struct stat *stat,
                        const char *kind, ffa_error *err)
{
    bool is_groups = store->of_group && stat->st_mode & S_IWGRP && is_in_group(stat->st_gid);
    char what[256];

    if (S_ISLNK(stat->st_mode)) {
        text_copy(what, "its %s is a symbolic link", kind);
        return refuse(store, err, what, "give the path it leads to");
    }
    if (stat->st_uid != geteuid() && stat->st_uid != 0 && !is_groups) {
        text_copy(what, "its %s belongs to user %u, this process runs as %u", kind,
                  (unsigned)stat->st_uid, (unsigned)geteuid());
        return refuse(store, err, what, "use a folder of your own, or change the owner");
    }
    if (stat->st_mode & S_IWOTH || (stat->st_mode & S_IWGRP && !is_groups)) {
        char fix[256];

        text_copy(what, "its %s can be written by others (mode %03o)", kind,
                  (unsigned)stat->st_mode & 0777);
        text_copy(fix, "chmod go-w '%s'", name);
        return refuse(store, err, what, fix);
    }
    return FFA_OK;
}

ffa_status store_file_trouble(struct store *store, const char *doing, const char *name,
                              ffa_error *err)
{
    return error_fail(err, FFA_CACHE, errno, "%s '%s': cannot %s '%s': %s", store_kind(store),
                      store->path, doing, name, strerror(errno));
}

static int look(const char *name, struct stat *stat)
{
    return fault_here(FAULT_FILE) ? (errno = EIO, -1) : lstat(name, stat);
}

/* As mkdir -p, with mode 0700. */
static ffa_status make_folder(struct store *store, ffa_error *err)
{
    char *name = mem_strdup(store->folder);
    bool is_made = false;
    ffa_status rc = FFA_OK;

    if (!name)
        return error_nomem(err, "a path");
    for (char *slash = name;;) {
        slash = strchr(slash + 1, '/');
        if (slash)
            *slash = '\0';
        is_made = mkdir(name, 0700) == 0;
        if ((!is_made && errno != EEXIST) || fault_here(FAULT_FILE)) {
            rc = store_file_trouble(store, "make the folder", name, err);
            break;
        }
        if (!slash)
            break;
        *slash = '/';
    }
    /* With the group's bit, so that what others make in it is the group's, too. */
    if (rc == FFA_OK && is_made && store->of_group && chmod(store->folder, 02770) != 0)
        rc = store_file_trouble(store, "hand to its group", store->folder, err);
    mem_free(name);
    return rc;
}

ffa_status store_check_place(struct store *store, struct stat *file, ffa_error *err)
{
    struct stat folder;
    ffa_status rc;

    if (look(store->folder, &folder) != 0) {
        if (errno != ENOENT)
            return store_file_trouble(store, "look at", store->folder, err);
        if (!store_is_maker(store))
            return error_fail(err, FFA_NOT_FOUND, ENOENT, "there is no store '%s'", store->path);
        FFA_TRY(make_folder(store, err));
        if (look(store->folder, &folder) != 0)
            return store_file_trouble(store, "look at", store->folder, err);
    }
    FFA_TRY(trust(store, store->folder, &folder, "folder", err));
    if (!S_ISDIR(folder.st_mode)) {
        rc = error_fail(err, FFA_CACHE, ENOTDIR, "store '%s': '%s' is no folder", store->path,
                        store->folder);
        goto out;
    }
    if (look(store->path, file) != 0) {
        rc = errno == ENOENT
                 ? error_fail(err, FFA_NOT_FOUND, ENOENT, "there is no store '%s'", store->path)
                 : store_file_trouble(store, "look at", store->path, err);
        goto out;
    }
    FFA_TRY(trust(store, store->path, file, "file", err));
    if (!S_ISREG(file->st_mode))
        rc = error_fail(err, FFA_CACHE, 0, "store '%s' is no regular file", store->path);
    /* Nothing was ever written: as good as absent. */
    else if (file->st_size == 0 && store_is_maker(store))
        rc = error_fail(err, FFA_NOT_FOUND, 0, "store '%s' is empty", store->path);
out:
    return rc;
}

ffa_status store_check_bundle_place(struct store *store, struct stat *file, char **target,
                                    ffa_error *err)
{
    enum { HOPS = 8 };
    char *name = mem_strdup(store->path), *folder = NULL;
    ffa_status rc = FFA_OK;

    *target = NULL;
    for (int hop = 0; rc == FFA_OK; hop++) {
        struct text next = { 0 };
        char link[4096];
        struct stat at;
        char *slash = name ? strrchr(name, '/') : NULL;
        ssize_t bytes;

        mem_free(folder);
        folder = mem_strdup(name);
        if (!name || !folder) {
            rc = error_nomem(err, "a path");
            break;
        }
        folder[slash == name ? 1 : slash - name] = '\0';
        if (look(name, file) != 0 || stat(folder, &at) != 0) {
            rc = errno == ENOENT ? error_fail(err, FFA_NOT_FOUND, ENOENT, "there is no bundle '%s'",
                                              store->path)
                                 : store_file_trouble(store, "look at", name, err);
            break;
        }
        FFA_TRY(trust(store, folder, &at, "folder", err));
        if (!S_ISLNK(file->st_mode))
            break;
        if (file->st_uid != geteuid() && file->st_uid != 0) {
            rc = refuse(store, err, "a link on the way to it belongs to another user",
                        "give the path it leads to");
            break;
        }
        bytes = readlink(name, link, sizeof link - 1);
        if (bytes < 0 || hop == HOPS) {
            errno = bytes < 0 ? errno : ELOOP;
            rc = store_file_trouble(store, "follow", name, err);
            break;
        }
        link[bytes] = '\0';
        text_add(&next, "%s%s%s", link[0] == '/' ? "" : folder, link[0] == '/' ? "" : "/", link);
        mem_free(name);
        name = text_take(&next);
    }
    if (rc == FFA_OK)
        FFA_TRY(trust(store, name, file, "file", err));
    if (rc == FFA_OK && !S_ISREG(file->st_mode))
        rc = error_fail(err, FFA_CACHE, 0, "bundle '%s' is no regular file", store->path);
    if (rc == FFA_OK) {
        *target = name;
        name = NULL;
    }
out:
    mem_free(folder);
    mem_free(name);
    return rc;
}
