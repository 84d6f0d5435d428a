/* SPDX-License-Identifier: Apache-2.0
 *
 * How SQLite opens the files of a store: by the very path it is given, which leads through an open
 * folder, and no file but regular ones.
 */
#ifndef FFA_CACHE_STORE_VFS_H
#define FFA_CACHE_STORE_VFS_H

#include <sqlite3.h>

/* The name for sqlite3_open_v2, registered until the matching store_vfs_drop; NULL: this SQLite has
 * no VFS for Unix. A URI with the parameter "descriptor=N" means the open file N, which nobody else
 * has, and which stays its owner's. Both are called under the lock of a store. */
const char *store_vfs_take(void);
void store_vfs_drop(void);

#endif
