/* SPDX-License-Identifier: Apache-2.0
 *
 * key_dispatch_solve: a key chunk goes to a rank that attends much of it. Pairs of chunk and rank
 * are taken by how many tokens of the chunk the rank attends, most first (ties: the lower chunk,
 * then the lower rank), as long as the rank has room. Invariant: every rank takes floor(chunks /
 * ranks) chunks or one more, so buffers of keys are as long on all ranks within one chunk.
 */
#include "parallel/dispatch/dispatch_keys.h"

/* Pairs looked at, at most. Chunks of which no pair is left go to ranks in the order of tokens. */
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
static ffa_status add_rank(struct demands *demands, const struct layout *keys,
                           const struct key_dispatch *in, struct range *scratch, int32_t rank,
                           ffa_error *err)
{
    const struct layout *queries = in->queries;
    const struct needs *needs = in->needs;
    const struct parts parts = layout_parts(keys);
    int64_t count = 0;

    for (int64_t i = queries->rank_begin[rank]; i < queries->rank_begin[rank + 1]; i++) {
        const int64_t chunk = queries->rank_chunks[i];

        for (int64_t n = needs->begin[chunk]; n < needs->begin[chunk + 1]; n++)
            scratch[count++] = needs->ranges[n];
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

static ffa_status place(struct layout *keys, struct demands *demands, ffa_error *err)
{
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

/* Chunk c is [c * tokens, (c + 1) * tokens), the last one may be shorter. */
static ffa_status cut_chunks(struct layout *out, const struct key_dispatch *in, ffa_error *err)
{
    const int32_t ranks = in->queries->ranks;
    const int64_t tokens = in->chunk_tokens
                               ? in->chunk_tokens
                               : chunk_tokens_rounded(in->key_tokens, ranks,
                                                      chunk_tokens_default(in->key_tokens, ranks));
    struct parts parts = { .count = (in->key_tokens + tokens - 1) / tokens };
    int64_t *bounds;
    ffa_status rc;

    if (parts.count > CHUNKS_MAX)
        return error_fail(err, FFA_UNSUPPORTED, 0,
                          "key_chunk_tokens is %lld: %lld chunks, at most %d", (long long)tokens,
                          (long long)parts.count, CHUNKS_MAX);
    bounds = mem_array((size_t)parts.count + 1, sizeof *bounds);
    if (!bounds)
        return error_nomem(err, "the ranks of keys");
    for (int64_t c = 0; c < parts.count; c++)
        bounds[c] = c * tokens;
    bounds[parts.count] = in->key_tokens;
    parts.at = bounds;
    rc = layout_init(out, &parts, ranks, err);
    mem_free(bounds);
    return rc;
}

ffa_status key_dispatch_solve(struct layout *out, const struct key_dispatch *in, ffa_error *err)
{
    struct demands demands = { 0 };
    struct range *scratch = NULL;
    ffa_status rc;

    FFA_TRY(cut_chunks(out, in, err));
    scratch = mem_array((size_t)in->needs->begin[in->needs->count], sizeof *scratch);
    if (!scratch) {
        rc = error_nomem(err, "the ranks of keys");
        goto out;
    }
    for (int32_t r = 0; r < in->queries->ranks; r++)
        FFA_TRY(add_rank(&demands, out, in, scratch, r, err));
    FFA_TRY(place(out, &demands, err));
    layout_index(out);
out:
    mem_free(scratch);
    mem_free(demands.at);
    return rc;
}
