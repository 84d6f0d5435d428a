/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files that move kernels between stores: what a public ffa_cache is, and sorted
 * walks over its entries.
 */
#ifndef FFA_CACHE_BUNDLE_H
#define FFA_CACHE_BUNDLE_H

#include "cache/store_internal.h"

#include <ffa/bundle.h>

struct ffa_cache {
    struct store *store;
};

/* Take the lock, with the file open; FFA_CACHE, and no lock, when it is not in use. */
ffa_status cache_enter(ffa_cache *cache, ffa_error *err);
void cache_leave(ffa_cache *cache);
/* Under lock: what SQLite itself can tell of the file. */
ffa_status cache_check_structure(struct store *store, ffa_error *err);
ffa_status cache_check_writable(const struct store *store, ffa_error *err);
void cache_entry_of(ffa_cache_entry *entry, const struct store_row *row);

/* Entries that pass a filter, in the order of the manifest. Under the store's lock from open to
 * close. */
struct walk {
    struct store *store;
    sqlite3_stmt *statement;
    bool with_data;
    bool is_row; /* row is one */
    struct store_row row;
};
ffa_status walk_open(struct walk *walk, struct store *store, const ffa_bundle_filter *filter,
                     bool with_data, ffa_error *err);
ffa_status walk_next(struct walk *walk, ffa_error *err);
void walk_close(struct walk *walk);

ffa_status filter_import(ffa_bundle_filter *out, const ffa_bundle_filter *filter, ffa_error *err);
/* FFA_TIMEOUT where *stop is set. */
ffa_status filter_check_stop(const ffa_bundle_filter *filter, ffa_error *err);
/* Under lock: FFA_CACHE where the manifest of a bundle is missing or edited, its digest is not
 * `wanted` (NULL: any), or the kernels are not those it lists. A kernel that is damaged, by its own
 * hashes, is left to who reads it. */
ffa_status bundle_check(struct store *bundle, const char *wanted, ffa_error *err);
/* Both locks, in one order whichever comes first. FFA_INVALID when both are one file. */
ffa_status cache_lock_both(ffa_cache *a, ffa_cache *b, ffa_error *err);
void cache_unlock_both(ffa_cache *a, ffa_cache *b);

enum { SHA256_TEXT = 65 };
void sha256_text(const void *bytes, size_t count, char out[SHA256_TEXT]);

#endif
