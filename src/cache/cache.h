/* SPDX-License-Identifier: Apache-2.0
 *
 * What a context keeps kernels in.
 */
#ifndef FFA_CACHE_CACHE_H
#define FFA_CACHE_CACHE_H

#include "cache/flight.h"
#include "cache/store.h"
#include "cache/table.h"

struct kernel_cache {
    struct table *table;
    struct store *store;
    struct store **bundles; /* [bundle_count], looked up in this order */
    int64_t bundle_count;
    struct flight *flight; /* NULL: memory only */
};

/* Only FFA_NOMEM fails; what cannot be used is one warning and one error counted. */
ffa_status cache_open_bundles(struct kernel_cache *cache, const char *const *paths, int64_t count,
                              const struct log *log, ffa_error *err);
void cache_close_bundles(struct kernel_cache *cache);
/* The store, then the bundles. As store_find; *layer is where it was found. */
ffa_status cache_find(const struct kernel_cache *cache, const struct store_query *query,
                      struct jit_kernel *out, ffa_layer *layer, ffa_error *err);
/* The same as store_has. */
bool cache_has(const struct kernel_cache *cache, const struct store_query *query);
int64_t cache_bundles_in_use(const struct kernel_cache *cache);
uint64_t cache_bad_count(const struct kernel_cache *cache);
uint64_t cache_error_count(const struct kernel_cache *cache);

#endif
