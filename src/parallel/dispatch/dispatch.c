/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa_dispatch_create: arguments are checked, masks become bands, chunks are cut and weighed, and a
 * solver gives them to ranks. Invariant: integers only and no look at the clock, so every rank that
 * calls with the same arguments gets the same dispatch; the digest covers all that later steps
 * read. Cells are counted by bands cut at chunk bounds, so the cost depends on bands, not on
 * tokens.
 */
#include "parallel/dispatch/dispatch.h"

#include "mask/mask.h"
#include "parallel/dispatch/affinity.h"
#include "parallel/dispatch/dispatch_keys.h"

enum {
    KNOWN_FLAGS = FFA_DISPATCH_CHUNK_EXACT | FFA_DISPATCH_BALANCE_TILES,
    SLACK_DEFAULT = 16,
    SLACK_MAX = 1000,
    SWAPS_A_CHUNK = 64
};

/* ---- arguments ---- */

ffa_status topology_resolve(ffa_topology *out, const ffa_topology *topology, ffa_error *err)
{
    if (!topology)
        return error_fail(err, FFA_INVALID, 0, "topology is NULL");
    if (topology->rank_count < 1 || topology->rank_count > RANKS_MAX)
        return error_fail(err, FFA_INVALID, 0, "topology: rank_count is %d, not in [1, %d]",
                          topology->rank_count, RANKS_MAX);
    if (topology->ranks_per_node < 0)
        return error_fail(err, FFA_INVALID, 0, "topology: ranks_per_node is %d, not 0 or more",
                          topology->ranks_per_node);
    *out = *topology;
    if (out->ranks_per_node == 0 || out->ranks_per_node > out->rank_count)
        out->ranks_per_node = out->rank_count;
    return FFA_OK;
}

static ffa_status check_masks(const ffa_dispatch_mask *masks, int32_t mask_count, int32_t keys,
                              ffa_error *err)
{
    if (mask_count < 1 || mask_count > DISPATCH_MASKS_MAX)
        return error_fail(err, FFA_INVALID, 0, "mask_count is %d, not in [1, %d]", mask_count,
                          DISPATCH_MASKS_MAX);
    if (!masks)
        return error_fail(err, FFA_INVALID, 0, "masks is NULL");
    for (int32_t m = 0; m < mask_count; m++) {
        const ffa_mask *mask = masks[m].mask, *first = masks[0].mask;

        if (!mask)
            return error_fail(err, FFA_INVALID, 0, "masks[%d]: mask is NULL", m);
        if (masks[m].weight < 0)
            return error_fail(err, FFA_INVALID, 0, "masks[%d]: weight is %lld, not 0 or more", m,
                              (long long)masks[m].weight);
        if (keys == FFA_KEYS_WITH_QUERIES && mask->shape.seqlen_q != mask->shape.seqlen_k)
            return error_fail(err, FFA_INVALID, 0,
                              "masks[%d]: seqlen_q is %lld, seqlen_k %lld: chunks hold queries and "
                              "their keys",
                              m, (long long)mask->shape.seqlen_q, (long long)mask->shape.seqlen_k);
        if (mask->shape.seqlen_q != first->shape.seqlen_q)
            return error_fail(err, FFA_INVALID, 0, "masks[%d] has %lld tokens, masks[0] %lld", m,
                              (long long)mask->shape.seqlen_q, (long long)first->shape.seqlen_q);
    }
    return FFA_OK;
}

static ffa_status check_options(ffa_dispatch_opts *opts, ffa_error *err)
{
    if (opts->flags & ~(uint32_t)KNOWN_FLAGS)
        return error_fail(err, FFA_UNSUPPORTED, 0, "flags is 0x%x, known are 0x%x", opts->flags,
                          (unsigned)KNOWN_FLAGS);
    if (opts->algorithm < FFA_DISPATCH_AFFINITY || opts->algorithm > FFA_DISPATCH_EXACT)
        return error_fail(err, FFA_INVALID, 0, "algorithm is %d, not in [%d, %d]", opts->algorithm,
                          FFA_DISPATCH_AFFINITY, FFA_DISPATCH_EXACT);
    if (opts->chunk_tokens < 0)
        return error_fail(err, FFA_INVALID, 0, "chunk_tokens is %lld, not 0 or more",
                          (long long)opts->chunk_tokens);
    if (opts->cu_chunks && opts->chunk_tokens)
        return error_fail(err, FFA_INVALID, 0, "chunk_tokens is %lld, cu_chunks is given, too",
                          (long long)opts->chunk_tokens);
    if (!opts->cu_chunks != !opts->chunk_count || opts->chunk_count < 0)
        return error_fail(err, FFA_INVALID, 0, "chunk_count is %lld, cu_chunks is %s",
                          (long long)opts->chunk_count, opts->cu_chunks ? "given" : "NULL");
    if (opts->slack_permille < 0 || opts->slack_permille > SLACK_MAX)
        return error_fail(err, FFA_INVALID, 0, "slack_permille is %d, not in [0, %d]",
                          opts->slack_permille, SLACK_MAX);
    if (opts->swap_max < -1)
        return error_fail(err, FFA_INVALID, 0, "swap_max is %lld, not -1 or more",
                          (long long)opts->swap_max);
    if (opts->keys < FFA_KEYS_WITH_QUERIES || opts->keys > FFA_KEYS_DISPATCHED)
        return error_fail(err, FFA_INVALID, 0, "keys is %d, not in [%d, %d]", opts->keys,
                          FFA_KEYS_WITH_QUERIES, FFA_KEYS_DISPATCHED);
    if (opts->key_chunk_tokens < 0 ||
        (opts->key_chunk_tokens > 0 && opts->keys != FFA_KEYS_DISPATCHED))
        return error_fail(err, FFA_INVALID, 0, "key_chunk_tokens is %lld, keys is %d",
                          (long long)opts->key_chunk_tokens, opts->keys);
    if (opts->slack_permille == 0)
        opts->slack_permille = SLACK_DEFAULT;
    return FFA_OK;
}

/* ---- chunks ---- */

/* Tokens of a chunk, as the header defines it. */
static int64_t chunk_size(int64_t tokens, int32_t ranks, const ffa_dispatch_opts *opts)
{
    const int64_t automatic = chunk_tokens_default(tokens, ranks);
    const bool is_given = opts->chunk_tokens > 0;
    int64_t size = is_given && opts->chunk_tokens < automatic ? opts->chunk_tokens : automatic;

    if (opts->flags & FFA_DISPATCH_CHUNK_EXACT)
        return is_given ? opts->chunk_tokens : automatic;
    if ((tokens + size - 1) / size > CHUNKS_MAX)
        size = (tokens + CHUNKS_MAX - 1) / CHUNKS_MAX;
    return chunk_tokens_rounded(tokens, ranks, size);
}

static ffa_status check_given(const ffa_dispatch_opts *opts, int64_t tokens, ffa_error *err)
{
    const int64_t *cu = opts->cu_chunks;

    if (opts->chunk_count > CHUNKS_MAX)
        return error_fail(err, FFA_UNSUPPORTED, 0, "chunk_count is %lld, at most %d",
                          (long long)opts->chunk_count, CHUNKS_MAX);
    if (cu[0] != 0 || cu[opts->chunk_count] != tokens)
        return error_fail(err, FFA_INVALID, 0,
                          "cu_chunks goes from %lld to %lld, not from 0 to %lld", (long long)cu[0],
                          (long long)cu[opts->chunk_count], (long long)tokens);
    for (int64_t c = 0; c < opts->chunk_count; c++)
        if (cu[c] >= cu[c + 1])
            return error_fail(
                err, FFA_INVALID, 0,
                "cu_chunks[%lld] is %lld, cu_chunks[%lld] %lld: a chunk holds a token",
                (long long)c, (long long)cu[c], (long long)c + 1, (long long)cu[c + 1]);
    return FFA_OK;
}

static ffa_status cut_chunks(struct layout *out, int64_t tokens, int32_t ranks,
                             const ffa_dispatch_opts *opts, ffa_error *err)
{
    struct parts parts = { opts->cu_chunks, opts->chunk_count };
    int64_t *made = NULL;
    ffa_status rc;

    if (parts.at) {
        FFA_TRY(check_given(opts, tokens, err));
    } else {
        const int64_t size = chunk_size(tokens, ranks, opts);

        parts.count = (tokens + size - 1) / size;
        if (parts.count > CHUNKS_MAX) {
            rc = error_fail(err, FFA_UNSUPPORTED, 0,
                            "%lld tokens in chunks of %lld: %lld chunks, at most %d",
                            (long long)tokens, (long long)size, (long long)parts.count, CHUNKS_MAX);
            goto out;
        }
        made = mem_array((size_t)parts.count + 1, sizeof *made);
        if (!made) {
            rc = error_nomem(err, "chunks");
            goto out;
        }
        for (int64_t c = 0; c < parts.count; c++)
            made[c] = c * size;
        made[parts.count] = tokens;
        parts.at = made;
    }
    if (parts.count < ranks) {
        rc = error_fail(err, FFA_INVALID, 0, "topology: rank_count is %d, there are %lld chunks",
                        ranks, (long long)parts.count);
        goto out;
    }
    rc = layout_init(out, &parts, ranks, err);
out:
    mem_free(made);
    return rc;
}

/* ---- weights ---- */

static int64_t weight_of(const ffa_dispatch_mask *mask)
{
    return mask->weight ? mask->weight : 1;
}

static ffa_status build_lists(ffa_dispatch *d, const ffa_dispatch_mask *masks, int32_t mask_count,
                              ffa_error *err)
{
    int64_t count = 0;
    ffa_status rc = FFA_OK;

    for (int32_t m = 0; m < mask_count; m++)
        count += masks[m].mask->head_count;
    d->lists = mem_array((size_t)count, sizeof *d->lists);
    if (!d->lists)
        return error_nomem(err, "bands");
    for (int32_t m = 0; m < mask_count; m++)
        for (int32_t h = 0; h < masks[m].mask->head_count; h++)
            FFA_TRY(
                bands_add_normal(&d->lists[d->list_count++], &masks[m].mask->lists[h].normal, err));
out:
    return rc;
}

/* Where tiles begin: every VISITED_TILE rows of each chunk. at [*count + 1]. */
static ffa_status cut_tiles(int64_t **at, int64_t *count, const struct layout *layout,
                            ffa_error *err)
{
    int64_t tiles = 0;

    for (int64_t c = 0; c < layout->count; c++)
        tiles += (layout->bounds[c + 1] - layout->bounds[c] + VISITED_TILE - 1) / VISITED_TILE;
    *at = mem_array((size_t)tiles + 1, sizeof **at);
    if (!*at)
        return error_nomem(err, "tiles");
    *count = 0;
    for (int64_t c = 0; c < layout->count; c++)
        for (int64_t row = layout->bounds[c]; row < layout->bounds[c + 1]; row += VISITED_TILE)
            (*at)[(*count)++] = row;
    (*at)[*count] = layout->bounds[layout->count];
    return FFA_OK;
}

/* Cells of the tiles that a list's rows visit, as if each run of keys began a tile. */
static ffa_status add_visited(ffa_dispatch *d, const struct bands *list, int64_t weight,
                              const struct parts *tiles, ffa_error *err)
{
    struct needs needs = { 0 };
    int64_t chunk = 0;
    ffa_status rc;

    FFA_TRY(needs_build(&needs, list, 1, tiles, err));
    for (int64_t t = 0; t < tiles->count; t++) {
        int64_t blocks = 0, cells;

        while (d->layout.bounds[chunk + 1] <= tiles->at[t])
            chunk++;
        for (int64_t i = needs.begin[t]; i < needs.begin[t + 1]; i++)
            blocks +=
                (needs.ranges[i].end - needs.ranges[i].begin + VISITED_TILE - 1) / VISITED_TILE;
        if (__builtin_mul_overflow(blocks * VISITED_TILE * VISITED_TILE, weight, &cells) ||
            __builtin_add_overflow(d->visited[chunk], cells, &d->visited[chunk])) {
            rc = error_fail(err, FFA_UNSUPPORTED, 0, "a load above 2^62");
            goto out;
        }
    }
out:
    needs_finish(&needs);
    return rc;
}

static ffa_status check_sum(const int64_t *loads, int64_t count, const char *what, ffa_error *err)
{
    int64_t sum = 0;

    for (int64_t c = 0; c < count; c++)
        if (__builtin_add_overflow(sum, loads[c], &sum) || sum > INT64_MAX / 2)
            return error_fail(err, FFA_UNSUPPORTED, 0, "%s of all masks is a load above 2^62",
                              what);
    return FFA_OK;
}

static ffa_status weigh(ffa_dispatch *d, const ffa_dispatch_mask *masks, int32_t mask_count,
                        ffa_error *err)
{
    const struct parts chunks = layout_parts(&d->layout);
    struct parts tiles = { 0 };
    int64_t *tile_at = NULL, list = 0;
    ffa_status rc;

    d->area = mem_array((size_t)chunks.count, sizeof *d->area);
    d->visited = mem_array((size_t)chunks.count, sizeof *d->visited);
    if (!d->area || !d->visited) {
        rc = error_nomem(err, "the loads of chunks");
        goto out;
    }
    FFA_TRY(cut_tiles(&tile_at, &tiles.count, &d->layout, err));
    tiles.at = tile_at;
    for (int32_t m = 0; m < mask_count; m++)
        for (int32_t h = 0; h < masks[m].mask->head_count; h++, list++) {
            const int64_t weight = weight_of(&masks[m]);

            if (!needs_add_area(d->area, &d->lists[list], &chunks, weight)) {
                rc = error_fail(err, FFA_UNSUPPORTED, 0, "masks[%d]: a load above 2^62", m);
                goto out;
            }
            FFA_TRY(add_visited(d, &d->lists[list], weight, &tiles, err));
        }
    FFA_TRY(check_sum(d->area, chunks.count, "the area", err));
    FFA_TRY(check_sum(d->visited, chunks.count, "the visited area", err));
    rc = needs_build(&d->needs, d->lists, d->list_count, &chunks, err);
out:
    mem_free(tile_at);
    return rc;
}

/* ---- the solver ---- */

static ffa_status solve_by_affinity(ffa_dispatch *d, const struct solve_input *in,
                                    const ffa_dispatch_opts *opts, ffa_error *err)
{
    struct affinity_input input = { .solve = *in,
                                    .chunks = layout_parts(&d->layout),
                                    .needs = &d->needs,
                                    .ranks_per_node = d->topology.ranks_per_node,
                                    .slack_permille = opts->slack_permille,
                                    .swap_max = opts->swap_max };
    struct affinity_result result;
    ffa_status rc;

    if (opts->swap_max == 0)
        input.swap_max = SWAPS_A_CHUNK * in->count;
    FFA_TRY(solve_affinity(d->layout.rank_of, &result, &input, err));
    d->swap_gain = result.swap_gain;
    if (result.is_min_heap)
        d->algorithm = FFA_DISPATCH_MIN_HEAP;
out:
    return rc;
}

static ffa_status solve(ffa_dispatch *d, const ffa_dispatch_opts *opts, ffa_error *err)
{
    const struct solve_input in = { d->load, d->layout.count, d->topology.rank_count };
    ffa_status rc = FFA_OK;

    d->algorithm = opts->algorithm;
    switch (opts->algorithm) {
    case FFA_DISPATCH_MIN_HEAP:
        rc = solve_min_heap(d->layout.rank_of, &in, err);
        break;
    case FFA_DISPATCH_SEQUENTIAL:
        solve_sequential(d->layout.rank_of, &in);
        break;
    case FFA_DISPATCH_ZIGZAG:
        solve_zigzag(d->layout.rank_of, &in);
        break;
    case FFA_DISPATCH_EXACT:
        rc = solve_exact(d->layout.rank_of, &in, err);
        break;
    default:
        if (d->key_mode == FFA_KEYS_WITH_QUERIES) {
            rc = solve_by_affinity(d, &in, opts, err);
            break;
        }
        d->algorithm = FFA_DISPATCH_MIN_HEAP;
        rc = solve_min_heap(d->layout.rank_of, &in, err);
    }
    if (rc == FFA_OK)
        layout_index(&d->layout);
    return rc;
}

/* Keys that live apart from queries. chunk_tokens: of a chunk, at most; 0: chosen. */
static ffa_status place_keys(ffa_dispatch *d, int64_t key_tokens, int64_t chunk_tokens,
                             ffa_error *err)
{
    const struct key_dispatch in = { .queries = &d->layout,
                                     .needs = &d->needs,
                                     .key_tokens = key_tokens,
                                     .chunk_tokens = chunk_tokens };

    if (d->key_mode == FFA_KEYS_REPLICATED)
        return layout_replicate(&d->keys, key_tokens, d->topology.rank_count, err);
    return key_dispatch_solve(&d->keys, &in, err);
}

/* Everything a later step depends on. */
static void digest(ffa_dispatch *d)
{
    struct digest digest;

    digest_init(&digest);
    digest_text(&digest, "ffa dispatch 2");
    digest_number(&digest, d->topology.rank_count);
    digest_number(&digest, d->topology.ranks_per_node);
    digest_field(&digest, d->layout.bounds,
                 ((size_t)d->layout.count + 1) * sizeof *d->layout.bounds);
    digest_field(&digest, d->layout.rank_of, (size_t)d->layout.count * sizeof *d->layout.rank_of);
    digest_field(&digest, d->load, (size_t)d->layout.count * sizeof *d->load);
    digest_number(&digest, d->key_mode);
    digest_field(&digest, d->keys.bounds,
                 d->keys.bounds ? ((size_t)d->keys.count + 1) * sizeof *d->keys.bounds : 0);
    digest_field(&digest, d->keys.rank_of, (size_t)d->keys.count * sizeof *d->keys.rank_of);
    for (int64_t l = 0; l < d->list_count; l++)
        digest_field(&digest, d->lists[l].at, (size_t)d->lists[l].count * sizeof *d->lists[l].at);
    digest_final(&digest, d->digest);
}

ffa_status ffa_dispatch_create(ffa_dispatch **out, const ffa_dispatch_mask *masks,
                               int32_t mask_count, const ffa_topology *topology,
                               const ffa_dispatch_opts *opts_in, ffa_error *err)
{
    ffa_dispatch *d = NULL;
    ffa_dispatch_opts opts;
    ffa_status rc;

    if (!out)
        return error_fail(err, FFA_INVALID, 0, "out is NULL");
    *out = NULL;
    FFA_TRY(opts_import(&opts, sizeof opts, opts_in, err));
    FFA_TRY(check_options(&opts, err));
    FFA_TRY(check_masks(masks, mask_count, opts.keys, err));
    d = mem_array(1, sizeof *d);
    if (!d) {
        rc = error_nomem(err, "a dispatch");
        goto out;
    }
    d->references = 1;
    FFA_TRY(topology_resolve(&d->topology, topology, err));
    FFA_TRY(
        cut_chunks(&d->layout, masks[0].mask->shape.seqlen_q, d->topology.rank_count, &opts, err));
    FFA_TRY(build_lists(d, masks, mask_count, err));
    FFA_TRY(weigh(d, masks, mask_count, err));
    d->load = opts.flags & FFA_DISPATCH_BALANCE_TILES ? d->visited : d->area;
    d->key_mode = opts.keys;
    FFA_TRY(solve(d, &opts, err));
    if (opts.keys != FFA_KEYS_WITH_QUERIES)
        FFA_TRY(place_keys(d, masks[0].mask->shape.seqlen_k, opts.key_chunk_tokens, err));
    digest(d);
    *out = d;
    d = NULL;
out:
    ffa_dispatch_destroy(d);
    return rc;
}

void ffa_dispatch_destroy(ffa_dispatch *dispatch)
{
    if (!dispatch || __atomic_sub_fetch(&dispatch->references, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    layout_finish(&dispatch->layout);
    layout_finish(&dispatch->keys);
    for (int64_t l = 0; l < dispatch->list_count; l++)
        bands_finish(&dispatch->lists[l]);
    mem_free(dispatch->lists);
    needs_finish(&dispatch->needs);
    mem_free(dispatch->area);
    mem_free(dispatch->visited);
    mem_free(dispatch);
}

/* ---- facts ---- */

const struct layout *dispatch_key_layout(const ffa_dispatch *d)
{
    return d->key_mode == FFA_KEYS_WITH_QUERIES ? &d->layout : &d->keys;
}

int64_t ffa_dispatch_chunk_count(const ffa_dispatch *dispatch)
{
    return dispatch ? dispatch->layout.count : 0;
}

static ffa_status check_chunk(const ffa_dispatch *dispatch, int64_t index, int64_t count,
                              const ffa_dispatch_chunk *out, ffa_error *err)
{
    if (!dispatch || !out)
        return error_fail(err, FFA_INVALID, 0, "%s is NULL", dispatch ? "out" : "dispatch");
    if (index < 0 || index >= count)
        return error_fail(err, FFA_INVALID, 0, "index is %lld, not in [0, %lld)", (long long)index,
                          (long long)count);
    return FFA_OK;
}

/* load and area: NULL, or of all chunks. */
static ffa_status chunk_get(const struct layout *layout, int64_t index, const int64_t *load,
                            const int64_t *area, ffa_dispatch_chunk *out, ffa_error *err)
{
    const ffa_dispatch_chunk chunk = { .rank = layout->is_replicated ? -1 : layout->rank_of[index],
                                       .begin = layout->bounds[index],
                                       .end = layout->bounds[index + 1],
                                       .local_begin = layout->local[index],
                                       .load = load ? load[index] : 0,
                                       .area = area ? area[index] : 0 };

    return opts_export(out, &chunk, sizeof chunk, err);
}

ffa_status ffa_dispatch_chunk_get(const ffa_dispatch *dispatch, int64_t index,
                                  ffa_dispatch_chunk *out, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(check_chunk(dispatch, index, ffa_dispatch_chunk_count(dispatch), out, err));
    rc = chunk_get(&dispatch->layout, index, dispatch->load, dispatch->area, out, err);
out:
    return rc;
}

int64_t ffa_dispatch_key_chunk_count(const ffa_dispatch *dispatch)
{
    return dispatch ? dispatch_key_layout(dispatch)->count : 0;
}

ffa_status ffa_dispatch_key_chunk_get(const ffa_dispatch *dispatch, int64_t index,
                                      ffa_dispatch_chunk *out, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(check_chunk(dispatch, index, ffa_dispatch_key_chunk_count(dispatch), out, err));
    if (dispatch->key_mode == FFA_KEYS_WITH_QUERIES)
        rc = ffa_dispatch_chunk_get(dispatch, index, out, err);
    else
        rc = chunk_get(&dispatch->keys, index, NULL, NULL, out, err);
out:
    return rc;
}

const int64_t *ffa_dispatch_rank_chunks(const ffa_dispatch *dispatch, int32_t rank, int64_t *count)
{
    const struct layout *layout = dispatch ? &dispatch->layout : NULL;
    const bool is_known = layout && rank >= 0 && rank < layout->ranks;

    if (count)
        *count = is_known ? layout->rank_begin[rank + 1] - layout->rank_begin[rank] : 0;
    return is_known ? layout->rank_chunks + layout->rank_begin[rank] : NULL;
}

static int64_t rows_of(const struct layout *layout, int32_t rank)
{
    return rank >= 0 && rank < layout->ranks ? layout->rank_tokens[rank] : 0;
}

int64_t ffa_dispatch_query_rows(const ffa_dispatch *dispatch, int32_t rank)
{
    return dispatch ? rows_of(&dispatch->layout, rank) : 0;
}

int64_t ffa_dispatch_key_rows(const ffa_dispatch *dispatch, int32_t rank)
{
    return dispatch ? rows_of(dispatch_key_layout(dispatch), rank) : 0;
}

const char *ffa_dispatch_digest(const ffa_dispatch *dispatch)
{
    return dispatch ? dispatch->digest : "";
}
