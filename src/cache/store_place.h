/* SPDX-License-Identifier: Apache-2.0
 *
 * What kind of file system a store is on.
 */
#ifndef FFA_CACHE_STORE_PLACE_H
#define FFA_CACHE_STORE_PLACE_H

#include "base/base.h"

/* "nfs" and the like for the type statfs() tells; NULL: none of the network's. */
const char *place_network_name(uint32_t type);
/* The same for a folder; NULL, too, where nothing can be told. */
const char *place_network(const char *folder);

#endif
