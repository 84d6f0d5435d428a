/* SPDX-License-Identifier: Apache-2.0
 *
 * Chunks to ranks, all ranks equally many within one: the solvers that look at loads only.
 */
#ifndef FFA_PARALLEL_DISPATCH_SOLVE_H
#define FFA_PARALLEL_DISPATCH_SOLVE_H

#include "base/base.h"

struct solve_input {
    const int64_t *loads; /* [count], none negative, their sum at most 2^62 */
    int64_t count;        /* >= ranks */
    int32_t ranks;        /* >= 1 */
};

/* Limits of solve_exact. */
enum { SOLVE_EXACT_MAX = 24, SOLVE_EXACT_STEPS = 1 << 26 };

/* rank_of [count]: the answer. */
void solve_sequential(int32_t *rank_of, const struct solve_input *in);
void solve_zigzag(int32_t *rank_of, const struct solve_input *in);
/* Longest first (ties: the larger index first), to the rank of the least (load, rank) that may take
 * one more. MagiAttention's solver, to the last tie. */
ffa_status solve_min_heap(int32_t *rank_of, const struct solve_input *in, ffa_error *err);
/* The least possible largest load, by branch and bound from min-heap's; FFA_UNSUPPORTED beyond the
 * limits. */
ffa_status solve_exact(int32_t *rank_of, const struct solve_input *in, ffa_error *err);

/* The order of min-heap. order [count]. */
void solve_order(int64_t *order, const struct solve_input *in);
int64_t solve_largest_load(const int32_t *rank_of, const struct solve_input *in, int64_t *of_rank);

/* ---- ranks by load, of those that may take one more ---- */

struct rank_heap {
    int64_t *load;  /* [ranks] */
    int64_t *taken; /* [ranks]: chunks */
    int32_t *heap;  /* by (load, rank) */
    int32_t *at;    /* [ranks]: place in heap, or -1 */
    int32_t size, ranks;
    int64_t floor; /* chunks each rank takes */
    int64_t extra; /* ranks that may still take one above floor */
};

ffa_status rank_heap_init(struct rank_heap *heap, const struct solve_input *in, ffa_error *err);
/* `rank` must be in the heap. */
void rank_heap_take(struct rank_heap *heap, int32_t rank, int64_t load);
/* Chunks that the rank may still take, at most. */
int64_t rank_heap_room(const struct rank_heap *heap, int32_t rank);
void rank_heap_finish(struct rank_heap *heap);

#endif
