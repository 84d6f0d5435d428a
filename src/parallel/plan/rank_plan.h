/* SPDX-License-Identifier: Apache-2.0
 *
 * The plan of one rank, as its passes read it.
 *
 * A pass (forward, backward) has the phases
 *
 *     forward:   own, stage 1, .. stage n
 *     backward:  own first, stage 1, .. stage n, own last
 *
 * Stage s computes with rows that lie packed in a receive buffer; buffers are taken in turn. All
 * coordinates of a phase are local: query rows of the rank's own buffer, keys of its own buffer
 * (own phases) or of the stage's receive buffer.
 *
 * Ranks may have different numbers of stages. A rank serves others at their stage s in its step s;
 * sends has an entry for every step of the rank with most stages. The reduce of gradients follows
 * the same lists backwards: what a rank received at stage s goes back to (source, source_row), and
 * sends[s] is what comes in, by ascending rank.
 *
 * Where queries move instead of keys (moves), a stage's receive buffer holds rows of q (backward:
 * of q, dout, lse and delta), all keys are the rank's own, and what a stage computes, (out, lse) or
 * dq, goes back and is merged into the owner's.
 *
 * Where keys move, the forward phases are the stages of one pass over the same query rows
 * (tile/staged.h): query tiles are the same in each, a phase has those it works on, and their flags
 * say what comes before and after. A tile without work anywhere is written, as empty, by the own
 * phase. Where queries move, a phase has all its tiles; none merges, and all continue but those of
 * own rows that nobody else adds to.
 *
 * Key tiles where keys move: a stage's continue at the owner of their keys. Own tiles of keys that
 * another rank needs continue in the first phase, and merge in the last with what has come in by
 * then. Where queries move, all merge with what is there and continue.
 */
#ifndef FFA_PARALLEL_PLAN_RANK_PLAN_H
#define FFA_PARALLEL_PLAN_RANK_PLAN_H

#include "parallel/dispatch/dispatch.h"
#include "parallel/plan/overlap.h"
#include "parallel/plan/relays.h"
#include "parallel/plan/rounds.h"
#include "parallel/plan/transfer.h"
#include "tile/tile.h"

#include <ffa/parallel_plan.h>

struct plan_phase {
    int64_t rows;                    /* of the receive buffer; own phases: of the own buffer */
    struct transfer_copies receives; /* into the receive buffer, in the order of its rows */
    struct bands *lists;             /* [list_count]: local */
    struct tile_plan tiles;          /* forward */
    struct tile_plan key_tiles;      /* backward; own phases: some of the own keys' tiles */
    int64_t fetch_ns, compute_ns, reduce_ns;
};

struct plan_pass {
    struct plan_phase *phases; /* [phase_count] */
    int32_t phase_count;       /* 0: the pass is not planned */
    int32_t stage_count;       /* that receive */
    int64_t buffer_rows;       /* most rows of a receive buffer */
    int32_t step_count;        /* most stages of any rank */
    /* [step_count]: rows [source_row, +rows) of the own buffer go to rows [row, +rows) of the
     * receive buffer of rank `source`, at its stage step + 1; by rank, then in its order. */
    struct transfer_copies *sends;
    /* [rank_count][step_count]: where each stage of a rank begins in what it has room for, of
     * received rows: see stage_window_row. */
    int64_t *stage_begins;
    /* What crosses between nodes where each row does so once a node; empty in rounds, of one node,
     * of an outline, and where queries move or keys are replicated. */
    struct relays relays;
    int64_t half_rows;             /* in rounds: of each half of the ring; else 0 */
    int64_t copy_ns;               /* own keys into the window, before all else */
    int64_t cost_ns, uniform_ns;   /* modelled; of the reference's even split of the same rows */
    int64_t slowest_ns;            /* cost_ns of the slowest rank */
    int64_t work_ns, work_most_ns; /* compute without launches: of all ranks, of one at most */
};

struct ffa_parallel_plan {
    ffa_topology topology; /* resolved */
    int32_t rank;
    int32_t list_count;          /* of the mask: 1, or kv heads */
    int32_t moves;               /* FFA_PARALLEL_MOVE_KEYS or FFA_PARALLEL_MOVE_QUERIES */
    bool in_rounds;              /* passes over GPUs are a launch a stage (rounds.h) */
    struct rank_memory memory;   /* of the rank, where keys move */
    int64_t memory_most;         /* of any rank; 0: without a cap */
    bool is_outline;             /* tiles are counted, and not kept: no pass can be run */
    ffa_parallel_plan_opts opts; /* resolved; of the flags, those that change the plan */
    ffa_mask_shape shape;        /* of the whole mask */
    struct normal *normals;      /* [list_count]: of the whole mask */
    struct layout queries, keys;
    struct plan_pass forward, backward;
    ffa_parallel_rank *ranks; /* [rank_count] */
    int64_t area;
    int64_t received_rows, sent_rows;
    char digest[DIGEST_TEXT];
    int32_t references; /* atomic operations only */
};

/* What a plan is made from: all checked, opts resolved. */
struct rank_plan_source {
    ffa_topology topology;
    const struct layout *queries, *keys;
    const ffa_mask *mask;
    int32_t rank;
    ffa_parallel_plan_opts opts;
};

/* When each stage of a pass does what: times [phase_count]. */
void rank_plan_times(struct overlap_times *times, const ffa_parallel_plan *plan, bool is_backward);

ffa_status rank_plan_make(ffa_parallel_plan **out, const struct rank_plan_source *source,
                          ffa_error *err);

#endif
