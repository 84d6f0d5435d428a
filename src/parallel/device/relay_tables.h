/* SPDX-License-Identifier: Apache-2.0
 *
 * What one rank's passes over GPUs move and add where each row crosses between nodes once a node
 * (parallel/plan/relays.h), as tables like those of pass_tables.h: from the rank's plan alone. The
 * rows of windows are the same.
 */
#ifndef FFA_PARALLEL_DEVICE_RELAY_TABLES_H
#define FFA_PARALLEL_DEVICE_RELAY_TABLES_H

#include "parallel/device/pass_tables.h"

/* stage 0: the own keys of `rank`; else what it relays of its stage `stage`. */
struct relay_flag {
    int32_t rank, stage;
};

/* Keys, of one pass. What a stage pulls stands in two parts: 2 * stage has own keys of ranks of the
 * node, 2 * stage + 1 what relays have received. */
struct relay_moves {
    struct pass_copy *pulls; /* from key windows of the node, in each part from the next rank on */
    int64_t *pull_begin;     /* [2 * stage_count + 1] */
    struct relay_flag *awaited; /* before the pulls of a part: those that are new with it */
    int32_t *awaited_begin;     /* [2 * stage_count + 1] */
    struct pass_copy *receives; /* from owners of other nodes, in the stages of this rank */
    int64_t *receive_begin;     /* [stage_count + 1] */
    struct pass_copy *sends;    /* own keys to relays of other nodes, in their stages */
    int64_t *send_begin;        /* [step_count + 1] */
    struct relay_flag *told; /* who pulls what this rank has of a stage: 0: own keys; else what it
                              * relays, of which it tells itself, too */
    int32_t *told_begin;     /* [stage_count + 1] */
    int32_t *sources;        /* whose key windows are pulled from, ascending */
    int32_t source_count;
};

/* What members of the node summed of rows that this rank relays, added to its own sums of them:
 * rows of its sum window from first_row on. */
struct relay_addend {
    int64_t first_row, rows;
    int64_t segment_begin, segment_end; /* of the table: rows are from first_row on */
    int32_t rank;
    int32_t step; /* the stage of `rank` that has the sums */
};

/* Sums, backward. */
struct relay_sums {
    /* Of the own keys: `copies` are those of ranks of the node, in their stages, and one a node of
     * relays, in the step with which the last member's sums are complete; segments and received
     * rows say how they are added. owners: whom the own kernel tells of the sums of a stage: owners
     * and relays of the node, this rank where it is the relay. The rest is not used. */
    struct pass_sums own;
    struct relay_addend *addends; /* by step, then by rank: the order in which they are added */
    int32_t addend_count;
    struct row_segment *segments; /* [segment_count]: of all addends, each of one source */
    int64_t *sources;             /* [segment_count]: rows of the addend's sum window */
    int64_t segment_count;
    struct pass_copy *sends; /* complete sums of the own sum window to owners of other nodes */
    int64_t *send_begin;     /* [step_count + 1] */
    int32_t *readers;        /* owners and relays that read the own sum window, ascending */
    int32_t reader_count;
    int32_t *givers; /* whose sum windows are read, ascending */
    int32_t giver_count;
};

/* Whether there are several nodes, and the plan has what crosses between them. */
bool relay_tables_wanted(const ffa_parallel_plan *plan);

/* For relay_moves_finish and relay_sums_finish, whether or not they succeed. moves: of the same
 * pass. FFA_NOMEM, FFA_UNSUPPORTED. */
ffa_status relay_moves_build(struct relay_moves *out, const ffa_parallel_plan *plan,
                             const struct pass_moves *moves, bool is_backward, ffa_error *err);
void relay_moves_finish(struct relay_moves *moves);
/* moves, sums: of the backward pass. */
ffa_status relay_sums_build(struct relay_sums *out, const ffa_parallel_plan *plan,
                            const struct pass_moves *moves, const struct pass_sums *sums,
                            ffa_error *err);
void relay_sums_finish(struct relay_sums *sums);

#endif
