/* SPDX-License-Identifier: Apache-2.0
 *
 * Network file systems, by the type that statfs() tells. Their locks hold between the processes of
 * one node at best, and SQLite's rollback journals need locks that hold between all processes, so a
 * store there is only read unless the caller says otherwise.
 */
#include "cache/store_place.h"

#include <sys/vfs.h>

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

const char *place_network(const char *folder)
{
    struct statfs system;

    if (fault_here(FAULT_NETWORK))
        return "nfs";
    return statfs(folder, &system) == 0 ? place_network_name((uint32_t)system.f_type) : NULL;
}
