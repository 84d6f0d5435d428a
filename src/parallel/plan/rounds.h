/* SPDX-License-Identifier: Apache-2.0
 *
 * Rounds: what a rank receives under a cap of memory.
 *
 * Without rounds a pass over GPUs has room for all that its rank receives: in the key window, in
 * the sum window, and, for what others summed of its own keys, in the workspace. In rounds there
 * are two halves of so many rows, which stages take in turn, and a launch a stage; the first
 * launch has own keys, too. Each rank begins with keys of the rank behind it, so that ranks mostly
 * receive from, and sum for, different owners in a round.
 *
 * All ranks have rounds, or none. Units: rows, bytes.
 */
#ifndef FFA_PARALLEL_PLAN_ROUNDS_H
#define FFA_PARALLEL_PLAN_ROUNDS_H

#include "parallel/plan/rank_needs.h"

#include <ffa/parallel_plan.h>

enum { ROUNDS_MAX = 128 }; /* of a rank */

/* What a rank's passes take of its device: see ffa_parallel_plan_info. */
struct rank_memory {
    int64_t window_rows;   /* own and received, of either window */
    int64_t received_sums; /* rows that others sum for it, of one round at most */
    int64_t key_bytes, sum_bytes;
    int64_t received_sum_bytes; /* of the workspace */
    int64_t workspace_bytes;    /* the larger one of the passes, at most */
};

static inline int64_t rank_memory_bytes(const struct rank_memory *memory)
{
    return memory->key_bytes + memory->sum_bytes + memory->workspace_bytes;
}

/* The rounds of one rank: stage s has a half of rows, the last ones fewer, from row
 * (s + first) % count * half_rows on. */
struct rank_rounds {
    int64_t half_rows;
    int32_t count; /* 0: it receives nothing */
    int32_t first;
};

/* The stage that has an ordered row; *end: behind the last row of its half. */
static inline int32_t rank_rounds_stage(const struct rank_rounds *rounds, int64_t row, int64_t *end)
{
    const int64_t half = row / rounds->half_rows;

    *end = (half + 1) * rounds->half_rows;
    return (int32_t)((half - rounds->first + rounds->count) % rounds->count);
}

struct rounds {
    int64_t stage_rows;         /* of a stage of any rank, at most; 0: no rounds */
    int64_t *first_rows;        /* [ranks]: a row of the stage that each rank begins with */
    struct rank_memory *memory; /* [ranks]. Both NULL: without a cap */
};

struct rounds_input {
    const struct layout *queries, *keys;
    const struct rank_needs *needs;
    const ffa_parallel_plan_opts *opts; /* resolved */
};

/* The most rows with which every rank obeys opts->memory_bytes. Fails with FFA_INVALID, naming the
 * least that would do; FFA_NOMEM. */
ffa_status rounds_find(struct rounds *out, const struct rounds_input *in, ffa_error *err);
void rounds_finish(struct rounds *rounds);
struct rank_rounds rounds_of(const struct rounds *rounds, const struct rounds_input *in,
                             int32_t rank);

/* Of a rank with this number of received rows that it has room for, and of sums of own keys. */
struct rank_memory rounds_memory(const struct rounds_input *in, int32_t rank, int64_t received_rows,
                                 int64_t received_sums, bool in_rounds);

#endif
