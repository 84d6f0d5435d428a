/* SPDX-License-Identifier: Apache-2.0
 *
 * Which rows cross the network for a node, and to whom.
 *
 * Rows of an owner that several ranks of another node receive cross once, to one of these, their
 * relay; the others, the members of the part, have them from the relay inside the node. A relay is
 * a rank that receives the rows itself, and in the earliest stage of any member, so it needs no
 * memory for others, and no rank waits for a stage of a relay that is later than its own. Where
 * several could be it, the rows are divided among them.
 *
 * Gradients go the same way back: the relay adds what the members summed of a part, and the owner
 * receives one sum a node. Units: rows of buffers.
 */
#ifndef FFA_PARALLEL_PLAN_RELAYS_H
#define FFA_PARALLEL_PLAN_RELAYS_H

#include "parallel/plan/stages.h"

/* Where a member has the rows of a part: rows [row, ..) of its key window, from its stage on. */
struct relay_member {
    int64_t row;
    int32_t rank;
    int32_t stage; /* from 1 */
};

/* Rows [source_row, +rows) of the owner's buffer. */
struct relay_part {
    int64_t source_row, rows;
    int64_t member_begin; /* into members: by rank, the relay too */
    int32_t member_count;
    int32_t owner, relay;
    int32_t stage; /* of the relay: in which the rows cross */
    int32_t last;  /* of all members: with which their sums are complete */
};

struct relay_parts {
    struct relay_part *at;
    int64_t count, capacity;
    struct relay_member *members;
    int64_t member_count, member_capacity;
};

/* The parts of `owner` that ranks of `node`, another one than the owner's, receive: appended, by
 * source row. cuts [ranks]: of the pass, not in rounds. Every rank finds the same parts.
 * FFA_NOMEM. */
ffa_status relay_parts_add(struct relay_parts *out, const struct rank_needs *needs,
                           const struct stage_cut *cuts, int32_t owner, int32_t node,
                           ffa_error *err);
void relay_parts_finish(struct relay_parts *parts);

/* What concerns one rank: parts of its own keys, by node; and those that it is a member of, by
 * owner. */
struct relays {
    struct relay_parts own, received;
};

/* For relays_finish whether or not it succeeds. */
ffa_status relays_build(struct relays *out, const struct rank_needs *needs,
                        const struct stage_cut *cuts, int32_t rank, ffa_error *err);
void relays_finish(struct relays *relays);
/* The rank's own entry; NULL: it is no member. */
const struct relay_member *relay_part_member(const struct relay_parts *parts,
                                             const struct relay_part *part, int32_t rank);

#endif
