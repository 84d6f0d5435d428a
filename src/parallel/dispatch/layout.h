/* SPDX-License-Identifier: Apache-2.0
 *
 * Where each token lives: chunks, their ranks, and their rows in the ranks' packed buffers.
 */
#ifndef FFA_PARALLEL_DISPATCH_LAYOUT_H
#define FFA_PARALLEL_DISPATCH_LAYOUT_H

#include "parallel/dispatch/needs.h"

enum { CHUNKS_MAX = 1 << 20 };

struct layout {
    int64_t *bounds;      /* [count + 1]: chunk c has the tokens [bounds[c], bounds[c + 1]) */
    int64_t count;        /* chunks */
    int32_t *rank_of;     /* [count] */
    int64_t *local;       /* [count]: its first row in the rank's buffer */
    int64_t *rank_begin;  /* [ranks + 1]: into rank_chunks */
    int64_t *rank_chunks; /* [count]: by rank, ascending */
    int64_t *rank_tokens; /* [ranks] */
    int32_t ranks;
    bool is_replicated; /* every rank has all tokens, in order; one chunk, of rank 0 by name */
};

/* Tokens of a chunk where none are given: ceil(tokens / (8 * ranks)). */
int64_t chunk_tokens_default(int64_t tokens, int32_t ranks);
/* `size` rounded up to 128 where every rank still gets a chunk, else `size`. */
int64_t chunk_tokens_rounded(int64_t tokens, int32_t ranks, int64_t size);

/* Copies bounds; rank_of is zero until layout_index. */
ffa_status layout_init(struct layout *out, const struct parts *parts, int32_t ranks,
                       ffa_error *err);
ffa_status layout_copy(struct layout *out, const struct layout *from, ffa_error *err);
/* One chunk of `tokens` that every rank has. */
ffa_status layout_replicate(struct layout *out, int64_t tokens, int32_t ranks, ffa_error *err);
/* Derive everything else from rank_of. */
void layout_index(struct layout *layout);
void layout_finish(struct layout *layout);
struct parts layout_parts(const struct layout *layout);
/* The token ranges of a rank, adjacent chunks joined, into out [its chunks]; how many. */
int64_t layout_ranges(struct range *out, const struct layout *layout, int32_t rank);
/* Whether the rank has the tokens of the chunk. */
bool layout_has(const struct layout *layout, int32_t rank, int64_t chunk);
/* Row of a token in the buffer of the rank that has it. */
int64_t layout_row(const struct layout *layout, int64_t token);

#endif
