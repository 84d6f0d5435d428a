/* SPDX-License-Identifier: Apache-2.0
 *
 * Where each token lives. Invariant: rank_of decides; everything else (local rows, chunks by rank,
 * tokens of ranks) is derived from it by layout_index, and a rank's chunks are packed in ascending
 * order.
 */
#include "parallel/dispatch/layout.h"

enum { CHUNKS_A_RANK = 8, CHUNK_ROUND = 128 };

int64_t chunk_tokens_default(int64_t tokens, int32_t ranks)
{
    const int64_t chunks = (int64_t)CHUNKS_A_RANK * ranks;

    return (tokens + chunks - 1) / chunks;
}

int64_t chunk_tokens_rounded(int64_t tokens, int32_t ranks, int64_t size)
{
    const int64_t rounded = (size + CHUNK_ROUND - 1) / CHUNK_ROUND * CHUNK_ROUND;

    return (tokens + rounded - 1) / rounded >= ranks ? rounded : size;
}

ffa_status layout_init(struct layout *out, const struct parts *parts, int32_t ranks, ffa_error *err)
{
    const size_t count = (size_t)parts->count;

    *out = (struct layout){ .bounds = mem_array(count + 1, sizeof *out->bounds),
                            .count = parts->count,
                            .rank_of = mem_array(count, sizeof *out->rank_of),
                            .local = mem_array(count, sizeof *out->local),
                            .rank_begin = mem_array((size_t)ranks + 1, sizeof *out->rank_begin),
                            .rank_chunks = mem_array(count, sizeof *out->rank_chunks),
                            .rank_tokens = mem_array((size_t)ranks, sizeof *out->rank_tokens),
                            .ranks = ranks };
    if (!out->bounds || !out->rank_of || !out->local || !out->rank_begin || !out->rank_chunks ||
        !out->rank_tokens) {
        layout_finish(out);
        return error_nomem(err, "chunks");
    }
    memcpy(out->bounds, parts->at, (count + 1) * sizeof *out->bounds);
    return FFA_OK;
}

ffa_status layout_copy(struct layout *out, const struct layout *from, ffa_error *err)
{
    const struct parts parts = layout_parts(from);
    const ffa_status rc = layout_init(out, &parts, from->ranks, err);

    if (rc != FFA_OK)
        return rc;
    memcpy(out->rank_of, from->rank_of, (size_t)from->count * sizeof *out->rank_of);
    out->is_replicated = from->is_replicated;
    layout_index(out);
    return FFA_OK;
}

ffa_status layout_replicate(struct layout *out, int64_t tokens, int32_t ranks, ffa_error *err)
{
    const int64_t bounds[2] = { 0, tokens };
    const struct parts parts = { bounds, 1 };
    const ffa_status rc = layout_init(out, &parts, ranks, err);

    if (rc != FFA_OK)
        return rc;
    out->is_replicated = true;
    layout_index(out);
    return FFA_OK;
}

void layout_index(struct layout *layout)
{
    memset(layout->rank_begin, 0, ((size_t)layout->ranks + 1) * sizeof *layout->rank_begin);
    memset(layout->rank_tokens, 0, (size_t)layout->ranks * sizeof *layout->rank_tokens);
    for (int64_t c = 0; c < layout->count; c++)
        layout->rank_begin[layout->rank_of[c]]++;
    begins_from_counts(layout->rank_begin, layout->ranks);
    for (int64_t c = 0; c < layout->count; c++) {
        const int32_t rank = layout->rank_of[c];

        layout->rank_chunks[layout->rank_begin[rank]++] = c;
        layout->local[c] = layout->rank_tokens[rank];
        layout->rank_tokens[rank] += layout->bounds[c + 1] - layout->bounds[c];
    }
    begins_move_back(layout->rank_begin, layout->ranks);
    for (int32_t r = 0; layout->is_replicated && r < layout->ranks; r++)
        layout->rank_tokens[r] = layout->bounds[layout->count];
}

void layout_finish(struct layout *layout)
{
    mem_free(layout->bounds);
    mem_free(layout->rank_of);
    mem_free(layout->local);
    mem_free(layout->rank_begin);
    mem_free(layout->rank_chunks);
    mem_free(layout->rank_tokens);
    *layout = (struct layout){ 0 };
}

struct parts layout_parts(const struct layout *layout)
{
    return (struct parts){ layout->bounds, layout->count };
}

int64_t layout_ranges(struct range *out, const struct layout *layout, int32_t rank)
{
    int64_t count = 0;

    if (layout->is_replicated) {
        out[0] = (struct range){ 0, layout->bounds[layout->count] };
        return 1;
    }
    for (int64_t i = layout->rank_begin[rank]; i < layout->rank_begin[rank + 1]; i++) {
        const int64_t chunk = layout->rank_chunks[i];

        if (count > 0 && out[count - 1].end == layout->bounds[chunk])
            out[count - 1].end = layout->bounds[chunk + 1];
        else
            out[count++] = (struct range){ layout->bounds[chunk], layout->bounds[chunk + 1] };
    }
    return count;
}

bool layout_has(const struct layout *layout, int32_t rank, int64_t chunk)
{
    return layout->is_replicated || layout->rank_of[chunk] == rank;
}

int64_t layout_row(const struct layout *layout, int64_t token)
{
    const struct parts parts = layout_parts(layout);
    const int64_t chunk = parts_find(&parts, token);

    return layout->local[chunk] + token - layout->bounds[chunk];
}
