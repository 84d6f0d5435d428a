/* SPDX-License-Identifier: Apache-2.0
 *
 * What one rank's passes over GPUs move and add, as tables: from a rank's plan alone, before any
 * address is known. Rows are those of windows (comm_device.h): a rank's key window has its own
 * keys first, then what it receives, stage after stage; its sum window the same rows. Where queries
 * move (rank_plan.h), these are rows of queries, in both passes, and sums are partial results of
 * them; "keys" below are what moves then.
 */
#ifndef FFA_PARALLEL_DEVICE_PASS_TABLES_H
#define FFA_PARALLEL_DEVICE_PASS_TABLES_H

#include "attention/arriving.h"
#include "attention/rows_device.h"
#include "parallel/plan/rank_plan.h"

/* Rows [from, +rows) of a window of `rank` to rows [to, +rows) of this rank's memory. */
struct pass_copy {
    int64_t from, to, rows;
    int32_t rank;
    int32_t stage; /* of the rank that receives the keys */
};

/* Of one pass. Stage 0 is the rank's own keys.
 *
 * In rounds (rounds.h), round r has the keys of stage r + 1, and the first one own keys, too. The
 * rank has as many rounds as stages that receive, at least one; round_most is the most of any
 * rank's, and what others made of own keys in their round r is added in step r. */
struct pass_moves {
    int32_t stage_count;      /* with stage 0 */
    int64_t own_rows;         /* of keys */
    int64_t window_rows;      /* of the key window, and of the sum window */
    int64_t *stage_rows;      /* [stage_count]: of the window, where a stage begins */
    struct pass_copy *copies; /* of keys, by stage, then from the next rank on */
    int64_t *copy_begin;      /* [stage_count + 1] */
    int32_t *sources;         /* ranks that keys come from: those of a stage are new with it */
    int32_t *source_begin;    /* [stage_count + 1] */
    bool in_rounds;
    int32_t round_count, round_most; /* of the rank, and of any; 1 and 1 where not in rounds */
    /* What others receive of the own keys, by their stage, then from the next rank on: rows
     * [from, +rows), and `stage` is of `rank`, which receives them. */
    int32_t step_count;      /* most stages of any rank, with stage 0 */
    struct pass_copy *sends; /* [send_begin[step_count]] */
    int64_t *send_begin;     /* [step_count + 1] */
    int32_t *readers;        /* ranks that fetch from this one, ascending */
    int32_t reader_count;
};

/* Backward: sums of own keys that other ranks made. Replicated keys are own keys of all ranks: each
 * rank receives the sums of all ranks, its own too, and adds them by ascending rank, so that all
 * get the same bits. A sum window has the rows that stay, then those that travel, which may be of
 * another dtype. */
struct pass_sums {
    bool is_replicated; /* and there are several ranks */
    int64_t *kept_rows; /* [ranks]: of a sum window, that stay: own keys; replicated ones all go */
    /* From the travelling rows of sum windows into the received sums, by the reader's stage. */
    struct pass_copy *copies;
    int64_t *own_rows; /* [copy_count]: of own keys, where each copy begins; NULL: replicated */
    int64_t copy_count;
    int64_t received_rows; /* of one step, at most */
    /* Those of a step are ascending. They cover the own keys; in rounds those that somebody summed
     * in the step. */
    struct row_segment *segments;
    int64_t segment_count;
    int32_t step_count;
    int64_t *copy_begin, *segment_begin; /* [step_count + 1] */
    int64_t *received; /* rows of the received sums, by ascending rank in each segment */
    int64_t received_count;
    int32_t *peers; /* replicated: all other ranks */
    int32_t peer_count;
    int32_t *owners;      /* of the keys of each stage, ascending */
    int32_t *owner_begin; /* [stage_count + 1], and where fewer [ARRIVAL_STAGES_MAX + 1] */
    int32_t owner_count;
    int64_t owners_at, segments_at, received_at; /* in the buffer of the pass */
};

/* For pass_moves_finish and pass_sums_finish, whether or not they succeed. FFA_NOMEM. */
ffa_status pass_moves_build(struct pass_moves *out, const ffa_parallel_plan *plan, bool is_backward,
                            ffa_error *err);
void pass_moves_finish(struct pass_moves *moves);
/* moves: of the same pass. */
ffa_status pass_sums_build(struct pass_sums *out, const ffa_parallel_plan *plan,
                           const struct pass_moves *moves, bool is_backward, ffa_error *err);
void pass_sums_finish(struct pass_sums *sums);
/* Segments and received rows of sums that have copies, own_rows and room for the begins of each
 * step. own: rows of own keys. FFA_NOMEM, FFA_UNSUPPORTED. */
ffa_status pass_sums_segment(struct pass_sums *sums, int64_t own, bool in_rounds, int32_t ranks,
                             ffa_error *err);

#endif
