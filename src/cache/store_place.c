/* SPDX-License-Identifier: Apache-2.0
 *
 * Facts about places: who can change what is there, and on which file system it is.
 *
 * Invariant: nothing is opened or changed here. Network file systems are told by the type that
 * statfs() gives. Their locks hold between the processes of
 * one node at best, and SQLite's rollback journals need locks that hold between all processes, so a
 * store there is only read unless the caller says otherwise.
 */
#include "cache/store_place.h"

#include <ctype.h>
#include <sys/vfs.h>
#include <unistd.h>

static const struct {
    uint32_t type;
    const char *name;
} network_types[] = {
    { 0x00006969u, "nfs" },      { 0x0000517bu, "smb" },    { 0xff534d42u, "cifs" },
    { 0xfe534d42u, "smb2" },     { 0x0bd00bd0u, "lustre" }, { 0x47504653u, "gpfs" },
    { 0x00c36400u, "ceph" },     { 0x19830326u, "beegfs" }, { 0xaad7aaeau, "panfs" },
    { 0x5346414fu, "afs" },      { 0x6b414653u, "kafs" },   { 0x73757245u, "coda" },
    { 0x0000564cu, "ncp" },      { 0x01021997u, "9p" },     { 0x65735546u, "fuse" },
    { 0x20030528u, "orangefs" }, { 0x7461636fu, "ocfs2" },  { 0x01161970u, "gfs2" },
    { 0x013111a8u, "ibrix" },
};

const char *place_network_name(uint32_t type)
{
    for (size_t i = 0; i < sizeof network_types / sizeof *network_types; i++)
        if (network_types[i].type == type)
            return network_types[i].name;
    return NULL;
}

const char *place_network(int folder)
{
    struct statfs system;

    if (fault_here(FAULT_NETWORK))
        return "nfs";
    return fstatfs(folder, &system) == 0 ? place_network_name((uint32_t)system.f_type) : NULL;
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

bool place_is_of_group(const struct stat *stat)
{
    return stat->st_mode & S_IWGRP && is_in_group(stat->st_gid);
}

bool place_is_trusted(const struct stat *stat, bool of_group)
{
    bool is_groups = of_group && place_is_of_group(stat);

    if (S_ISLNK(stat->st_mode))
        return false;
    if (stat->st_uid != geteuid() && stat->st_uid != 0 && !is_groups)
        return false;
    return !(stat->st_mode & S_IWOTH) && (!(stat->st_mode & S_IWGRP) || is_groups);
}

const char *place_kind(mode_t mode)
{
    return S_ISREG(mode)    ? "a file"
           : S_ISDIR(mode)  ? "a folder"
           : S_ISLNK(mode)  ? "a symbolic link"
           : S_ISFIFO(mode) ? "a FIFO"
           : S_ISSOCK(mode) ? "a socket"
                            : "a device";
}

bool place_is_url(const char *path)
{
    size_t bytes = 0;

    while (isalnum((unsigned char)path[bytes]) ||
           (bytes && path[bytes] && strchr("+.-", path[bytes])))
        bytes++;
    return bytes && isalpha((unsigned char)path[0]) && strncmp(path + bytes, "://", 3) == 0;
}
