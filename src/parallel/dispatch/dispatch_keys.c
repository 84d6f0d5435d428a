/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys that live apart from queries: on every rank, or in chunks of their own. A chunk goes to a
 * rank that attends much of it: pairs of chunk and rank are taken by how many tokens the rank
 * attends, most first (ties: the lower chunk, then rank), as long as the rank has room.
 */
#include "parallel/dispatch/dispatch.h"

enum { CHUNK_ROUND = 128 };
/* Pairs looked at, at most; beyond, what is left goes to ranks in the order of tokens. */
#define DEMANDS_MAX ((int64_t)1 << 24)

struct demand {
    int64_t tokens;
    int64_t chunk;
    int32_t rank;
    int32_t pad_;
};

struct demands {
    struct demand *at;
    int64_t count, capacity;
};

const struct layout *dispatch_key_layout(const ffa_dispatch *d)
{
    return d->key_mode == FFA_KEYS_WITH_QUERIES ? &d->layout : &d->keys;
}

static int demand_compare(const void *left, const void *right)
{
    const struct demand *a = left, *b = right;

    if (a->tokens != b->tokens)
        return a->tokens > b->tokens ? -1 : 1;
    if (a->chunk != b->chunk)
        return a->chunk < b->chunk ? -1 : 1;
    return (a->rank > b->rank) - (a->rank < b->rank);
}

static int64_t overlap(const struct range *range, int64_t begin, int64_t end)
{
    const int64_t from = range->begin > begin ? range->begin : begin;
    const int64_t to = range->end < end ? range->end : end;

    return to > from ? to - from : 0;
}

/* What one rank attends of each key chunk. */
static ffa_status add_rank(struct demands *demands, const ffa_dispatch *d, struct range *scratch,
                           int32_t rank, ffa_error *err)
{
    const struct layout *queries = &d->layout, *keys = &d->keys;
    const struct parts parts = layout_parts(keys);
    int64_t count = 0;

    for (int64_t i = queries->rank_begin[rank]; i < queries->rank_begin[rank + 1]; i++) {
        const int64_t chunk = queries->rank_chunks[i];

        for (int64_t n = d->needs.begin[chunk]; n < d->needs.begin[chunk + 1]; n++)
            scratch[count++] = d->needs.ranges[n];
    }
    count = ranges_join(scratch, count);
    for (int64_t i = 0; i < count; i++)
        for (int64_t c = parts_find(&parts, scratch[i].begin);
             c < keys->count && keys->bounds[c] < scratch[i].end; c++) {
            struct demand *last = demands->count > 0 ? &demands->at[demands->count - 1] : NULL;
            const int64_t tokens = overlap(&scratch[i], keys->bounds[c], keys->bounds[c + 1]);

            if (last && last->rank == rank && last->chunk == c) {
                last->tokens += tokens;
                continue;
            }
            if (demands->count == DEMANDS_MAX)
                return FFA_OK;
            if (!mem_grow((void **)&demands->at, &demands->capacity, demands->count + 1,
                          sizeof *demands->at))
                return error_nomem(err, "the ranks of keys");
            demands->at[demands->count++] = (struct demand){ tokens, c, rank, 0 };
        }
    return FFA_OK;
}

static ffa_status place(ffa_dispatch *d, struct demands *demands, ffa_error *err)
{
    struct layout *keys = &d->keys;
    const int64_t floor = keys->count / keys->ranks;
    int64_t extra = keys->count % keys->ranks;
    int64_t *taken = mem_array((size_t)keys->ranks, sizeof *taken);
    int32_t rank = 0;

    if (!taken)
        return error_nomem(err, "the ranks of keys");
    if (demands->count > 0)
        qsort(demands->at, (size_t)demands->count, sizeof *demands->at, demand_compare);
    for (int64_t c = 0; c < keys->count; c++)
        keys->rank_of[c] = -1;
    for (int64_t i = 0; i < demands->count; i++) {
        const struct demand *demand = &demands->at[i];

        if (keys->rank_of[demand->chunk] >= 0 || taken[demand->rank] >= floor + (extra > 0 ? 1 : 0))
            continue;
        extra -= taken[demand->rank]++ == floor;
        keys->rank_of[demand->chunk] = demand->rank;
    }
    for (int64_t c = 0; c < keys->count; c++) {
        if (keys->rank_of[c] >= 0)
            continue;
        while (taken[rank] >= floor + (extra > 0 ? 1 : 0))
            rank++;
        extra -= taken[rank]++ == floor;
        keys->rank_of[c] = rank;
    }
    mem_free(taken);
    return FFA_OK;
}

ffa_status dispatch_keys(ffa_dispatch *d, int64_t key_tokens, int64_t tokens, ffa_error *err)
{
    const int32_t ranks = d->topology.rank_count;
    const int64_t automatic = dispatch_chunk_tokens(key_tokens, ranks);
    struct parts parts = { 0 };
    struct demands demands = { 0 };
    struct range *scratch = NULL;
    int64_t *bounds = NULL;
    ffa_status rc = FFA_OK;

    if (d->key_mode == FFA_KEYS_REPLICATED)
        return layout_replicate(&d->keys, key_tokens, ranks, err);
    if (tokens == 0) {
        const int64_t rounded = (automatic + CHUNK_ROUND - 1) / CHUNK_ROUND * CHUNK_ROUND;

        tokens = (key_tokens + rounded - 1) / rounded >= ranks ? rounded : automatic;
    }
    parts.count = (key_tokens + tokens - 1) / tokens;
    if (parts.count > CHUNKS_MAX)
        return error_fail(err, FFA_UNSUPPORTED, 0,
                          "key_chunk_tokens is %lld: %lld chunks, at most %d", (long long)tokens,
                          (long long)parts.count, CHUNKS_MAX);
    bounds = mem_array((size_t)parts.count + 1, sizeof *bounds);
    scratch = mem_array((size_t)d->needs.begin[d->needs.count], sizeof *scratch);
    if (!bounds || !scratch) {
        rc = error_nomem(err, "the ranks of keys");
        goto out;
    }
    for (int64_t c = 0; c < parts.count; c++)
        bounds[c] = c * tokens;
    bounds[parts.count] = key_tokens;
    parts.at = bounds;
    FFA_TRY(layout_init(&d->keys, &parts, ranks, err));
    for (int32_t r = 0; r < ranks; r++)
        FFA_TRY(add_rank(&demands, d, scratch, r, err));
    FFA_TRY(place(d, &demands, err));
    layout_settle(&d->keys);
out:
    mem_free(bounds);
    mem_free(scratch);
    mem_free(demands.at);
    return rc;
}
