/* SPDX-License-Identifier: Apache-2.0
 *
 * Who sends which keys to whom: every key a rank needs and does not own, once.
 *
 * The ends of all ranks' needs, sorted, cut the key axis into pieces, each with one owner and
 * one set of receivers (none, too: pieces cover all keys). A rank's receive buffer holds its pieces
 * in the order of tokens; its send buffer is its local buffer. Gradients go the same way back.
 *
 * Routes: flat, every receiver takes a piece from its owner; or over relays, where a piece crosses
 * the network once a node, to the receiver there that has handed on least so far (ties: the lower
 * rank), which hands it on inside the node. Units: tokens, and rows of buffers.
 * (Pieces by receiver set: MagiAttention's group cast. Relays: ours.)
 */
#ifndef FFA_PARALLEL_PLAN_TRANSFER_H
#define FFA_PARALLEL_PLAN_TRANSFER_H

#include "parallel/plan/rank_needs.h"

/* ---- pieces, one after another ---- */

struct transfer_piece {
    int64_t begin, end; /* keys */
    int64_t source_row; /* in the owner's buffer */
    int32_t owner, receiver_count;
    const int32_t *receivers; /* [receiver_count], ascending; until the next piece */
    const int32_t *relays;    /* [receiver_count]: who sends it to each where routes go over relays:
                               * the owner, or another receiver */
};

struct transfer_event;

/* A walk over all pieces, in the order of tokens. */
struct transfer_walk {
    const struct rank_needs *needs;
    struct transfer_event *events; /* ends of ranges, by token */
    int64_t event_count, next_event;
    uint64_t *active; /* a bit a rank: those that receive the key at `at` */
    int32_t *receivers, *relays;
    int64_t *handed_on; /* [ranks]: rows */
    int64_t chunk, at, owner_end;
};

ffa_status transfer_walk_init(struct transfer_walk *out, const struct rank_needs *needs,
                              ffa_error *err);
/* Begin anew. */
void transfer_walk_restart(struct transfer_walk *walk);
/* False: there is no further piece. */
bool transfer_walk_next(struct transfer_walk *walk, struct transfer_piece *piece);
void transfer_walk_finish(struct transfer_walk *walk);

/* ---- copies ---- */

/* Rows [source_row, +rows) of rank `source` to rows [row, +rows) of the receive buffer; adjacent
 * ones are joined. */
struct transfer_copy {
    int64_t source_row, row, rows;
    int32_t source;
};

struct transfer_copies {
    struct transfer_copy *at;
    int64_t count, capacity;
};

/* Append; rows that follow each other in both buffers are one copy. */
ffa_status transfer_copies_add(struct transfer_copies *copies, const struct transfer_copy *copy,
                               ffa_error *err);
void transfer_copies_finish(struct transfer_copies *copies);

/* ---- figures ---- */

/* All fields but load, area and visited, for every rank: ranks [rank_count]. */
ffa_status transfer_measure(const struct rank_needs *needs, ffa_dispatch_load *ranks,
                            ffa_error *err);

#endif
