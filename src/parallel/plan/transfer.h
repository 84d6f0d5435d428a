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

#include "parallel/dispatch/layout.h"

#include <ffa/parallel_dispatch.h>

struct transfer_piece {
    int64_t begin, end; /* keys */
    int64_t source_row; /* in the owner's buffer */
    int64_t receiver_begin;
    int32_t owner, receiver_count;
};

struct transfer_receive {
    int64_t piece;
    int64_t row;   /* in the receive buffer */
    int32_t relay; /* who hands it over when routes go over relays: the owner, or a receiver */
    int32_t pad_;
};

struct transfer {
    ffa_topology topology; /* resolved */
    struct transfer_piece *pieces;
    int64_t piece_count;
    int32_t *receivers;     /* of piece p: [receiver_begin ..), ascending */
    int64_t *send_begin;    /* [ranks + 1]: into sends */
    int64_t *sends;         /* [pieces]: by owner, in the order of tokens */
    int64_t *receive_begin; /* [ranks + 1]: into receives */
    struct transfer_receive *receives;
    int64_t *receive_rows; /* [ranks]: rows of the receive buffer */
};

struct transfer_input {
    const struct layout *queries;
    const struct layout *keys;
    const struct needs *needs; /* of the query chunks */
    ffa_topology topology;     /* resolved */
};

ffa_status transfer_build(struct transfer *out, const struct transfer_input *in, ffa_error *err);
void transfer_finish(struct transfer *transfer);

/* Rows [source_row, +rows) of rank `source` to rows [row, +rows) of the receive buffer; adjacent
 * ones are joined. is_relayed: source_row is in the source's receive buffer. */
struct transfer_copy {
    int64_t source_row, row, rows;
    int32_t source;
    int32_t is_relayed;
};

struct transfer_copies {
    struct transfer_copy *at;
    int64_t count, capacity;
};

enum transfer_route { TRANSFER_FLAT, TRANSFER_RELAYED };

/* Replaces what out held. */
ffa_status transfer_copies_build(struct transfer_copies *out, const struct transfer *transfer,
                                 int32_t rank, enum transfer_route route, ffa_error *err);
void transfer_copies_finish(struct transfer_copies *copies);

/* Keys [begin, end) of a buffer that holds them from `row` on; ascending, apart. */
struct span {
    int64_t begin, end, row;
};

struct spans {
    struct span *at;
    int64_t count;
};

/* Append; keys next to each other in the sequence and in the buffer are one span. */
void spans_add(struct spans *spans, struct span span);
/* Append the parts of the band whose keys lie in spans, queries moved by q_shift, keys to their
 * rows. */
ffa_status spans_cut(struct bands *out, const struct band *band, int64_t q_shift,
                     const struct spans *spans, ffa_error *err);

/* What a rank computes of a list of bands, in local coordinates: query rows of its buffer; keys of
 * its own buffer (own) or of its receive buffer (remote). Appended; disjoint; together they have
 * the cells of the rank's rows. */
struct transfer_split {
    struct bands own, remote;
};

ffa_status transfer_split_bands(struct transfer_split *out, const struct transfer *transfer,
                                const struct transfer_input *in, const struct bands *bands,
                                int32_t rank, ffa_error *err);
void transfer_split_finish(struct transfer_split *split);

/* All fields but load, area and visited, for every rank: ranks [rank_count]. */
ffa_status transfer_measure(const struct transfer *transfer, const struct layout *keys,
                            ffa_dispatch_load *ranks, ffa_error *err);

#endif
