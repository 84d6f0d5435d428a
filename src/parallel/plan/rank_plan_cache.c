/* SPDX-License-Identifier: Apache-2.0
 *
 * Dispatches and plans by content: a hash table of the most recently used ones. A key is a digest
 * of everything the object is made from; a mask's part of it is kept in the mask. Objects are made
 * without the lock: of two threads that make the same one, the second throws its own away.
 */
#include "mask/mask.h"
#include "parallel/plan/parallel_opts.h"
#include "parallel/plan/rank_plan.h"

#include <pthread.h>

enum { ENTRIES_DEFAULT = 256, ENTRIES_MAX = 65536 };

struct key {
    uint64_t at[2];
};

enum kind { KIND_DISPATCH = 1, KIND_PLAN = 2 };

struct entry {
    struct key key;
    void *object;
    int32_t kind;
    int32_t next;         /* of the bucket, or of the free ones; -1: none */
    int32_t older, newer; /* by use */
};

struct ffa_parallel_cache {
    pthread_mutex_t lock; /* guards all below */
    struct entry *entries;
    int32_t *buckets; /* [bucket_count]: entry, or -1 */
    int32_t bucket_count, entries_max;
    int32_t free, oldest, newest;
    ffa_parallel_cache_counts counts;
};

/* ---- keys ---- */

static struct key key_of(const void *bytes, size_t count)
{
    const XXH128_hash_t hash = XXH3_128bits(bytes, count);

    return (struct key){ { hash.low64, hash.high64 } };
}

static struct key mask_content(const ffa_mask *mask)
{
    ffa_mask *kept = (ffa_mask *)(uintptr_t)mask; /* only its content is written */
    struct digest digest;
    XXH128_hash_t hash;

    if (__atomic_load_n(&kept->has_content, __ATOMIC_ACQUIRE))
        return (struct key){ { __atomic_load_n(&kept->content[0], __ATOMIC_RELAXED),
                               __atomic_load_n(&kept->content[1], __ATOMIC_RELAXED) } };
    digest_init(&digest);
    digest_number(&digest, mask->shape.seqlen_q);
    digest_number(&digest, mask->shape.seqlen_k);
    for (int32_t l = 0; l < mask->head_count; l++) {
        const struct normal *normal = &mask->lists[l].normal;

        digest_field(&digest, normal->segments,
                     (size_t)normal->segment_count * sizeof *normal->segments);
        digest_field(&digest, normal->intervals,
                     (size_t)normal->interval_count * sizeof *normal->intervals);
    }
    hash = XXH3_128bits_digest(&digest.state);
    __atomic_store_n(&kept->content[0], hash.low64, __ATOMIC_RELAXED);
    __atomic_store_n(&kept->content[1], hash.high64, __ATOMIC_RELAXED);
    __atomic_store_n(&kept->has_content, 1, __ATOMIC_RELEASE);
    return (struct key){ { hash.low64, hash.high64 } };
}

/* ---- the table, under lock ---- */

static int32_t *bucket_of(ffa_parallel_cache *cache, const struct key *key)
{
    return &cache->buckets[key->at[0] & (uint64_t)(cache->bucket_count - 1)];
}

static void unlink_use(ffa_parallel_cache *cache, int32_t i)
{
    const struct entry *entry = &cache->entries[i];

    *(entry->older >= 0 ? &cache->entries[entry->older].newer : &cache->oldest) = entry->newer;
    *(entry->newer >= 0 ? &cache->entries[entry->newer].older : &cache->newest) = entry->older;
}

static void link_newest(ffa_parallel_cache *cache, int32_t i)
{
    cache->entries[i].older = cache->newest;
    cache->entries[i].newer = -1;
    *(cache->newest >= 0 ? &cache->entries[cache->newest].newer : &cache->oldest) = i;
    cache->newest = i;
}

static void reference(void *object, int32_t kind)
{
    int32_t *references = kind == KIND_PLAN ? &((ffa_parallel_plan *)object)->references
                                            : &((ffa_dispatch *)object)->references;

    __atomic_add_fetch(references, 1, __ATOMIC_RELAXED);
}

static void release(void *object, int32_t kind)
{
    if (kind == KIND_PLAN)
        ffa_parallel_plan_destroy(object);
    else
        ffa_dispatch_destroy(object);
}

static void *find(ffa_parallel_cache *cache, const struct key *key)
{
    for (int32_t i = *bucket_of(cache, key); i >= 0; i = cache->entries[i].next)
        if (cache->entries[i].key.at[0] == key->at[0] &&
            cache->entries[i].key.at[1] == key->at[1]) {
            unlink_use(cache, i);
            link_newest(cache, i);
            reference(cache->entries[i].object, cache->entries[i].kind);
            return cache->entries[i].object;
        }
    return NULL;
}

/* An entry to fill: an unused one, or else the oldest, whose object is handed out in *evicted to be
 * released. */
static int32_t take_entry(ffa_parallel_cache *cache, struct entry *evicted)
{
    int32_t i = cache->free, *at;

    evicted->object = NULL;
    if (i >= 0) {
        cache->free = cache->entries[i].next;
        cache->counts.entries++;
        return i;
    }
    i = cache->oldest;
    *evicted = cache->entries[i];
    unlink_use(cache, i);
    for (at = bucket_of(cache, &evicted->key); *at != i; at = &cache->entries[*at].next)
        ;
    *at = evicted->next;
    cache->counts.evictions++;
    return i;
}

/* *object is the caller's; the cache takes a reference of its own. Where another thread was first,
 * its object takes the place of *object. */
static void insert(ffa_parallel_cache *cache, const struct key *key, void **object, int32_t kind)
{
    struct entry evicted;
    void *theirs;
    int32_t i;

    (void)pthread_mutex_lock(&cache->lock);
    theirs = find(cache, key);
    if (theirs) {
        evicted = (struct entry){ .object = *object, .kind = kind };
        *object = theirs;
    } else {
        i = take_entry(cache, &evicted);
        cache->entries[i] = (struct entry){ .key = *key, .object = *object, .kind = kind };
        cache->entries[i].next = *bucket_of(cache, key);
        *bucket_of(cache, key) = i;
        link_newest(cache, i);
        reference(*object, kind);
    }
    (void)pthread_mutex_unlock(&cache->lock);
    if (evicted.object)
        release(evicted.object, evicted.kind);
}

static void *look_up(ffa_parallel_cache *cache, const struct key *key)
{
    void *object;

    (void)pthread_mutex_lock(&cache->lock);
    object = find(cache, key);
    *(object ? &cache->counts.hits : &cache->counts.misses) += 1;
    (void)pthread_mutex_unlock(&cache->lock);
    return object;
}

/* ---- the object ---- */

ffa_status ffa_parallel_cache_create(ffa_parallel_cache **out, int32_t entries_max, ffa_error *err)
{
    ffa_parallel_cache *cache;

    if (!out)
        return error_fail(err, FFA_INVALID, 0, "out is NULL");
    *out = NULL;
    if (entries_max < 0 || entries_max > ENTRIES_MAX)
        return error_fail(err, FFA_INVALID, 0, "entries_max is %d, not in [0, %d]", entries_max,
                          ENTRIES_MAX);
    cache = mem_array(1, sizeof *cache);
    if (!cache)
        return error_nomem(err, "a cache of plans");
    cache->entries_max = entries_max ? entries_max : ENTRIES_DEFAULT;
    cache->bucket_count = 1;
    while (cache->bucket_count < 2 * cache->entries_max)
        cache->bucket_count *= 2;
    cache->entries = mem_array((size_t)cache->entries_max, sizeof *cache->entries);
    cache->buckets = mem_array((size_t)cache->bucket_count, sizeof *cache->buckets);
    if (!cache->entries || !cache->buckets || pthread_mutex_init(&cache->lock, NULL) != 0) {
        mem_free(cache->entries);
        mem_free(cache->buckets);
        mem_free(cache);
        return error_nomem(err, "a cache of plans");
    }
    for (int32_t b = 0; b < cache->bucket_count; b++)
        cache->buckets[b] = -1;
    for (int32_t i = 0; i < cache->entries_max; i++)
        cache->entries[i].next = i + 1 < cache->entries_max ? i + 1 : -1;
    cache->oldest = cache->newest = -1;
    *out = cache;
    return FFA_OK;
}

void ffa_parallel_cache_destroy(ffa_parallel_cache *cache)
{
    if (!cache)
        return;
    for (int32_t i = cache->oldest; i >= 0; i = cache->entries[i].newer)
        release(cache->entries[i].object, cache->entries[i].kind);
    (void)pthread_mutex_destroy(&cache->lock);
    mem_free(cache->entries);
    mem_free(cache->buckets);
    mem_free(cache);
}

ffa_status ffa_parallel_cache_counts_get(ffa_parallel_cache *cache, ffa_parallel_cache_counts *out,
                                         ffa_error *err)
{
    ffa_parallel_cache_counts counts;

    if (!cache || !out)
        return error_fail(err, FFA_INVALID, 0, "%s is NULL", cache ? "out" : "cache");
    (void)pthread_mutex_lock(&cache->lock);
    counts = cache->counts;
    (void)pthread_mutex_unlock(&cache->lock);
    return opts_export(out, &counts, sizeof counts, err);
}

/* ---- dispatches ---- */

struct dispatch_key {
    int64_t kind, mask_count;
    ffa_topology topology;
    ffa_dispatch_opts opts; /* cu_chunks by content */
    struct key chunks;
    ffa_parallel_plan_opts plan; /* resolved, where the best one is made; else all 0 */
    struct {
        struct key content;
        int64_t weight;
    } masks[DISPATCH_MASKS_MAX];
};

/* False: the arguments are wrong in some way that ffa_dispatch_create names. */
static bool dispatch_key(struct key *out, const ffa_dispatch_mask *masks, int32_t mask_count,
                         const ffa_topology *topology, const ffa_dispatch_opts *opts,
                         const ffa_parallel_plan_opts *plan)
{
    struct dispatch_key key;

    if (mask_count < 1 || mask_count > DISPATCH_MASKS_MAX || !masks || !topology ||
        opts_import(&key.opts, sizeof key.opts, opts, NULL) != FFA_OK || key.opts.chunk_count < 0 ||
        key.opts.chunk_count > CHUNKS_MAX)
        return false;
    key.kind = KIND_DISPATCH;
    key.mask_count = mask_count;
    key.topology = *topology;
    key.opts.struct_size = 0;
    key.chunks = (struct key){ { 0 } };
    if (key.opts.cu_chunks && key.opts.chunk_count > 0)
        key.chunks = key_of(key.opts.cu_chunks,
                            ((size_t)key.opts.chunk_count + 1) * sizeof *key.opts.cu_chunks);
    key.opts.cu_chunks = NULL;
    key.plan = (ffa_parallel_plan_opts){ 0 };
    if (plan)
        memcpy(&key.plan, plan, sizeof key.plan);
    for (int32_t m = 0; m < mask_count; m++) {
        if (!masks[m].mask)
            return false;
        key.masks[m].content = mask_content(masks[m].mask);
        key.masks[m].weight = masks[m].weight;
    }
    *out = key_of(&key,
                  offsetof(struct dispatch_key, masks) + (size_t)mask_count * sizeof key.masks[0]);
    return true;
}

/* plan: resolved, of the best one; NULL: as opts say. */
static ffa_status cache_dispatch(ffa_parallel_cache *cache, ffa_dispatch **out,
                                 const ffa_dispatch_mask *masks, int32_t mask_count,
                                 const ffa_topology *topology, const ffa_dispatch_opts *opts,
                                 const ffa_parallel_plan_opts *plan, ffa_error *err)
{
    struct key key;
    void *object;
    ffa_status rc;
    const bool has_key = dispatch_key(&key, masks, mask_count, topology, opts, plan);

    if (has_key && (object = look_up(cache, &key)) != NULL) {
        *out = object;
        return FFA_OK;
    }
    rc = plan ? ffa_dispatch_create_best(out, masks, mask_count, topology, opts, plan, err)
              : ffa_dispatch_create(out, masks, mask_count, topology, opts, err);
    if (rc != FFA_OK || !has_key)
        return rc;
    object = *out;
    insert(cache, &key, &object, KIND_DISPATCH);
    *out = object;
    return FFA_OK;
}

ffa_status ffa_parallel_cache_dispatch(ffa_parallel_cache *cache, ffa_dispatch **out,
                                       const ffa_dispatch_mask *masks, int32_t mask_count,
                                       const ffa_topology *topology, const ffa_dispatch_opts *opts,
                                       ffa_error *err)
{
    if (!cache || !out)
        return error_fail(err, FFA_INVALID, 0, "%s is NULL", cache ? "out" : "cache");
    *out = NULL;
    return cache_dispatch(cache, out, masks, mask_count, topology, opts, NULL, err);
}

ffa_status ffa_parallel_cache_best(ffa_parallel_cache *cache, ffa_dispatch **out,
                                   const ffa_dispatch_mask *masks, int32_t mask_count,
                                   const ffa_topology *topology, const ffa_dispatch_opts *opts,
                                   const ffa_parallel_plan_opts *plan_opts, ffa_error *err)
{
    ffa_parallel_plan_opts plan;
    ffa_status rc;

    if (!cache || !out)
        return error_fail(err, FFA_INVALID, 0, "%s is NULL", cache ? "out" : "cache");
    *out = NULL;
    FFA_TRY(parallel_opts_resolve(&plan, plan_opts, err));
    rc = cache_dispatch(cache, out, masks, mask_count, topology, opts, &plan, err);
out:
    return rc;
}

/* ---- plans ---- */

struct plan_key {
    int64_t kind, rank;
    struct key mask;
    char dispatch[DIGEST_TEXT + 7]; /* its digest */
    ffa_parallel_plan_opts opts;    /* resolved */
};

ffa_status ffa_parallel_cache_plan(ffa_parallel_cache *cache, ffa_parallel_plan **out,
                                   const ffa_dispatch *dispatch, const ffa_mask *mask, int32_t rank,
                                   const ffa_parallel_plan_opts *opts, ffa_error *err)
{
    struct plan_key key = { .kind = KIND_PLAN, .rank = rank };
    struct key found;
    void *object;
    ffa_status rc = FFA_OK;

    if (!cache || !out)
        return error_fail(err, FFA_INVALID, 0, "%s is NULL", cache ? "out" : "cache");
    *out = NULL;
    if (!dispatch || !mask)
        return error_fail(err, FFA_INVALID, 0, "%s is NULL", dispatch ? "mask" : "dispatch");
    FFA_TRY(parallel_opts_resolve(&key.opts, opts, err));
    memcpy(key.dispatch, dispatch->digest, sizeof dispatch->digest);
    key.mask = mask_content(mask);
    found = key_of(&key, sizeof key);
    object = look_up(cache, &found);
    if (!object) {
        FFA_TRY(ffa_parallel_plan_create(out, dispatch, mask, rank, opts, err));
        object = *out;
        insert(cache, &found, &object, KIND_PLAN);
    }
    *out = object;
out:
    return rc;
}
