/* SPDX-License-Identifier: Apache-2.0
 *
 * Facts about places: who can change what is there, and on which file system it is.
 */
#ifndef FFA_CACHE_STORE_PLACE_H
#define FFA_CACHE_STORE_PLACE_H

#include "base/base.h"

#include <sys/stat.h>

/* "nfs" and the like for the type statfs() tells; NULL: none of the network's. */
const char *place_network_name(uint32_t type);
/* The same for an open folder; NULL, too, where nothing can be told. */
const char *place_network(int folder);

/* Whether a group that this process is in may write it. */
bool place_is_of_group(const struct stat *stat);
/* Whether nobody but this user and root can change it, or, with of_group, such a group. A link is
 * not trusted. */
bool place_is_trusted(const struct stat *stat, bool of_group);

/* "a FIFO" and the like. */
const char *place_kind(mode_t mode);
/* Whether a path is written as a URL is: "s3://bucket/name". */
bool place_is_url(const char *path);

#endif
