/* SPDX-License-Identifier: Apache-2.0
 *
 * The files under the table, in the order they are looked up: the node's store, then the bundles.
 *
 * Invariant: the toolchain comes before the layer. A kernel of the compiler that is open answers
 * first, in whichever file it is; where there is none, the first file with a kernel of any other
 * toolchain answers, with its newest.
 */
#include "cache/cache.h"

ffa_status cache_open_bundles(struct kernel_cache *cache, const char *const *paths, int64_t count,
                              const struct log *log, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    if (count == 0)
        return FFA_OK;
    cache->bundles = mem_array((size_t)count, sizeof *cache->bundles);
    if (!cache->bundles)
        return error_nomem(err, "the bundles");
    for (int64_t i = 0; i < count; i++) {
        struct store_opts opts = { .path = paths[i], .mode = STORE_BUNDLE, .log = *log };

        FFA_TRY(store_open(&cache->bundles[i], &opts, err));
        cache->bundle_count++;
    }
out:
    return rc;
}

void cache_close_bundles(struct kernel_cache *cache)
{
    for (int64_t i = 0; i < cache->bundle_count; i++)
        store_close(cache->bundles[i]);
    mem_free(cache->bundles);
    cache->bundles = NULL;
    cache->bundle_count = 0;
}

static ffa_status find_in_order(const struct kernel_cache *cache, const struct store_query *query,
                                struct jit_kernel *out, ffa_layer *layer, ffa_error *err)
{
    ffa_status rc = store_find(cache->store, query, out, err);

    *layer = FFA_LAYER_STORE;
    for (int64_t i = 0; rc == FFA_NOT_FOUND && i < cache->bundle_count; i++) {
        *layer = FFA_LAYER_BUNDLE;
        rc = store_find(cache->bundles[i], query, out, err);
    }
    return rc;
}

ffa_status cache_find(const struct kernel_cache *cache, const struct store_query *query,
                      struct jit_kernel *out, ffa_layer *layer, ffa_error *err)
{
    struct store_query exact = *query;
    ffa_status rc = FFA_NOT_FOUND;

    exact.exact = true;
    if (!query->exact && *query->toolchain && cache->bundle_count)
        rc = find_in_order(cache, &exact, out, layer, err);
    return rc == FFA_NOT_FOUND ? find_in_order(cache, query, out, layer, err) : rc;
}

bool cache_has(const struct kernel_cache *cache, const struct store_query *query)
{
    bool is_there = store_has(cache->store, query);

    for (int64_t i = 0; !is_there && i < cache->bundle_count; i++)
        is_there = store_has(cache->bundles[i], query);
    return is_there;
}

int64_t cache_bundles_in_use(const struct kernel_cache *cache)
{
    int64_t count = 0;

    for (int64_t i = 0; i < cache->bundle_count; i++)
        count += store_check(cache->bundles[i], NULL) == FFA_OK;
    return count;
}

uint64_t cache_bad_count(const struct kernel_cache *cache)
{
    uint64_t count = store_bad_count(cache->store);

    for (int64_t i = 0; i < cache->bundle_count; i++)
        count += store_bad_count(cache->bundles[i]);
    return count;
}

uint64_t cache_error_count(const struct kernel_cache *cache)
{
    uint64_t count = store_error_count(cache->store);

    for (int64_t i = 0; i < cache->bundle_count; i++)
        count += store_error_count(cache->bundles[i]);
    return count;
}
