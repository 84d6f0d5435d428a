/* SPDX-License-Identifier: Apache-2.0
 *
 * rank_needs_build: what the chunks of each rank attend, joined, less the rank's own keys.
 * Invariant: a rank's ranges are ascending and apart, and no key of its own is in one. Trick: rows
 * before a key are counted over ranges, and those of the own node by a search in the node's keys,
 * so the place of any key among any rank's rows is found without a table of receives.
 */
#include "parallel/plan/rank_needs.h"

bool rank_needs_is_near(const struct rank_needs *needs, int32_t owner, int32_t rank)
{
    const int32_t width = needs->topology.ranks_per_node;

    return owner / width == rank / width;
}

/* ---- the keys of each node ---- */

static int32_t nodes_of(const ffa_topology *topology)
{
    return (topology->rank_count + topology->ranks_per_node - 1) / topology->ranks_per_node;
}

static ffa_status index_nodes(struct rank_needs *out, ffa_error *err)
{
    const struct layout *keys = out->keys;
    const int32_t nodes = nodes_of(&out->topology), width = out->topology.ranks_per_node;

    out->node_begin = mem_array((size_t)nodes + 1, sizeof *out->node_begin);
    out->node_keys = mem_array((size_t)keys->count, sizeof *out->node_keys);
    if (!out->node_begin || !out->node_keys)
        return error_nomem(err, "the keys of nodes");
    for (int64_t c = 0; c < keys->count; c++)
        out->node_begin[keys->rank_of[c] / width]++;
    begins_from_counts(out->node_begin, nodes);
    for (int64_t c = 0; c < keys->count; c++)
        out->node_keys[out->node_begin[keys->rank_of[c] / width]++] =
            (struct node_keys){ keys->bounds[c], keys->bounds[c + 1], 0 };
    begins_move_back(out->node_begin, nodes);
    for (int32_t n = 0; n < nodes; n++)
        for (int64_t i = out->node_begin[n] + 1; i < out->node_begin[n + 1]; i++) {
            const struct node_keys *last = &out->node_keys[i - 1];

            out->node_keys[i].before = last->before + last->end - last->begin;
        }
    return FFA_OK;
}

/* Keys of the rank's node before `key`. */
static int64_t near_before(const struct rank_needs *needs, int32_t rank, int64_t key)
{
    const int32_t node = rank / needs->topology.ranks_per_node;
    int64_t low = needs->node_begin[node], high = needs->node_begin[node + 1];
    const int64_t first = low;

    while (low < high) { /* the first chunk that begins at the key or behind it */
        const int64_t middle = low + (high - low) / 2;

        if (needs->node_keys[middle].begin < key)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == first)
        return 0;
    return needs->node_keys[low - 1].before + min64(key, needs->node_keys[low - 1].end) -
           needs->node_keys[low - 1].begin;
}

static int64_t near_between(const struct rank_needs *needs, int32_t rank, int64_t begin,
                            int64_t end)
{
    if (needs->topology.ranks_per_node == needs->topology.rank_count)
        return end - begin;
    return near_before(needs, rank, end) - near_before(needs, rank, begin);
}

int64_t rank_needs_row(const struct rank_needs *needs, int32_t rank, const struct rank_need *in,
                       int64_t key, bool is_near)
{
    const int64_t near = in->near + near_between(needs, rank, in->begin, key);

    return is_near ? near : needs->near_rows[rank] + in->row + key - in->begin - near;
}

/* ---- the ranges of each rank ---- */

/* Room for one rank's lists, and what all ranks have so far. */
struct build {
    struct rank_needs *out;
    const struct rank_needs_input *in;
    struct range *wanted, *own, *left;
    int64_t count, capacity;
    int64_t chunks; /* received by all ranks */
};

static ffa_status add_rank(struct build *b, int32_t rank, ffa_error *err)
{
    const struct layout *queries = b->in->queries;
    const struct parts chunks = layout_parts(b->in->keys);
    struct rank_needs *out = b->out;
    int64_t wanted = 0, own, left, row = 0, near = 0;

    for (int64_t i = queries->rank_begin[rank]; i < queries->rank_begin[rank + 1]; i++) {
        const int64_t chunk = queries->rank_chunks[i];

        for (int64_t n = b->in->needs->begin[chunk]; n < b->in->needs->begin[chunk + 1]; n++)
            b->wanted[wanted++] = b->in->needs->ranges[n];
    }
    wanted = ranges_join(b->wanted, wanted);
    own = layout_ranges(b->own, b->in->keys, rank);
    left = ranges_without(b->left, b->wanted, wanted, b->own, own);
    if (!mem_grow((void **)&out->at, &b->capacity, b->count + left, sizeof *out->at))
        return error_nomem(err, "the needs of ranks");
    for (int64_t i = 0; i < left; i++) {
        const struct range *range = &b->left[i];

        out->at[b->count++] = (struct rank_need){ range->begin, range->end, row, near };
        row += range->end - range->begin;
        near += near_between(out, rank, range->begin, range->end);
        b->chunks += parts_find(&chunks, range->end - 1) - parts_find(&chunks, range->begin) + 1;
    }
    out->begin[rank + 1] = b->count;
    out->rows[rank] = row;
    out->near_rows[rank] = near;
    if (b->chunks > RANK_NEEDS_CHUNKS_MAX)
        return error_fail(err, FFA_UNSUPPORTED, 0,
                          "%lld chunks of keys on %d ranks: the first %d of these receive %lld "
                          "chunks, all together at most %lld: choose larger chunks",
                          (long long)b->in->keys->count, b->in->topology.rank_count, rank + 1,
                          (long long)b->chunks, (long long)RANK_NEEDS_CHUNKS_MAX);
    return FFA_OK;
}

ffa_status rank_needs_build(struct rank_needs *out, const struct rank_needs_input *in,
                            ffa_error *err)
{
    const size_t wanted = (size_t)in->needs->begin[in->needs->count];
    const size_t chunks = (size_t)in->keys->count, ranks = (size_t)in->topology.rank_count;
    struct build b = { .out = out,
                       .in = in,
                       .wanted = mem_array(wanted, sizeof *b.wanted),
                       .own = mem_array(chunks, sizeof *b.own),
                       .left = mem_array(wanted + chunks, sizeof *b.left) };
    ffa_status rc;

    *out = (struct rank_needs){ .topology = in->topology,
                                .keys = in->keys,
                                .begin = mem_array(ranks + 1, sizeof *out->begin),
                                .rows = mem_array(ranks, sizeof *out->rows),
                                .near_rows = mem_array(ranks, sizeof *out->near_rows) };
    if (!b.wanted || !b.own || !b.left || !out->begin || !out->rows || !out->near_rows) {
        rc = error_nomem(err, "the needs of ranks");
        goto out;
    }
    FFA_TRY(index_nodes(out, err));
    for (int32_t r = 0; r < in->topology.rank_count; r++)
        FFA_TRY(add_rank(&b, r, err));
out:
    mem_free(b.wanted);
    mem_free(b.own);
    mem_free(b.left);
    if (rc != FFA_OK)
        rank_needs_finish(out);
    return rc;
}

void rank_needs_finish(struct rank_needs *needs)
{
    mem_free(needs->begin);
    mem_free(needs->at);
    mem_free(needs->rows);
    mem_free(needs->near_rows);
    mem_free(needs->node_begin);
    mem_free(needs->node_keys);
    *needs = (struct rank_needs){ 0 };
}

/* ---- what one rank receives ---- */

static ffa_status add_receive(struct rank_receives *out, const struct rank_needs *needs,
                              int32_t rank, const struct rank_need *need, int64_t chunk,
                              ffa_error *err)
{
    const struct layout *keys = needs->keys;
    const int64_t begin = max64(need->begin, keys->bounds[chunk]);
    const int32_t owner = keys->rank_of[chunk];
    const bool is_near = rank_needs_is_near(needs, owner, rank);

    if (!mem_grow((void **)&out->at, &out->capacity, out->count + 1, sizeof *out->at))
        return error_nomem(err, "the receives of a rank");
    out->at[out->count++] =
        (struct rank_receive){ .begin = begin,
                               .end = min64(need->end, keys->bounds[chunk + 1]),
                               .source_row = keys->local[chunk] + begin - keys->bounds[chunk],
                               .row = rank_needs_row(needs, rank, need, begin, is_near),
                               .owner = owner,
                               .is_near = is_near };
    return FFA_OK;
}

ffa_status rank_receives_build(struct rank_receives *out, const struct rank_needs *needs,
                               int32_t rank, ffa_error *err)
{
    const struct parts chunks = layout_parts(needs->keys);
    ffa_status rc = FFA_OK;

    for (int64_t i = needs->begin[rank]; i < needs->begin[rank + 1]; i++)
        for (int64_t c = parts_find(&chunks, needs->at[i].begin);
             c < chunks.count && chunks.at[c] < needs->at[i].end; c++)
            FFA_TRY(add_receive(out, needs, rank, &needs->at[i], c, err));
out:
    return rc;
}

ffa_status rank_receives_from(struct rank_receives *out, const struct rank_needs *needs,
                              int32_t rank, int32_t owner, ffa_error *err)
{
    const struct layout *keys = needs->keys;
    int64_t own = keys->rank_begin[owner], i = needs->begin[rank];
    ffa_status rc = FFA_OK;

    while (own < keys->rank_begin[owner + 1] && i < needs->begin[rank + 1]) {
        const int64_t chunk = keys->rank_chunks[own];
        const struct rank_need *need = &needs->at[i];

        if (need->begin < keys->bounds[chunk + 1] && keys->bounds[chunk] < need->end)
            FFA_TRY(add_receive(out, needs, rank, need, chunk, err));
        if (need->end <= keys->bounds[chunk + 1])
            i++;
        else
            own++;
    }
out:
    return rc;
}

void rank_receives_finish(struct rank_receives *receives)
{
    mem_free(receives->at);
    *receives = (struct rank_receives){ 0 };
}

bool rank_receive_cut(struct rank_receive *out, const struct rank_receive *receive, int64_t begin,
                      int64_t end)
{
    const int64_t skip = max64(begin - receive->row, 0);
    const int64_t rows = min64(receive->end - receive->begin, end - receive->row);

    *out = *receive;
    out->begin += skip;
    out->end = receive->begin + rows;
    out->source_row += skip;
    out->row += skip;
    return skip < rows;
}
