/* SPDX-License-Identifier: Apache-2.0
 *
 * A walk over pieces, written down: pieces with their receivers, and what each rank sends and
 * receives. For small worlds; the library keeps no such tables.
 */
#ifndef TESTS_TRANSFER_TABLES_H
#define TESTS_TRANSFER_TABLES_H

#include "parallel/plan/transfer.h"

struct table_piece {
    int64_t begin, end; /* keys */
    int64_t source_row; /* in the owner's buffer */
    int64_t receiver_begin;
    int32_t owner, receiver_count;
};

struct table_receive {
    int64_t piece;
    int64_t row;   /* in the receive buffer, by token */
    int32_t relay; /* the owner, or another receiver */
    int32_t pad_;
};

struct transfer_tables {
    struct rank_needs needs;
    struct table_piece *pieces;
    int64_t piece_count;
    int32_t *receivers;     /* of piece p: [receiver_begin ..), ascending */
    int64_t *send_begin;    /* [ranks + 1]: into sends */
    int64_t *sends;         /* [pieces]: by owner, in the order of tokens */
    int64_t *receive_begin; /* [ranks + 1]: into receives */
    struct table_receive *receives;
    int64_t *receive_rows; /* [ranks]: rows of the receive buffer */
};

/* Fails as rank_needs_build and transfer_walk_init do; aborts without memory of its own. */
ffa_status transfer_tables_build(struct transfer_tables *out, const struct rank_needs_input *in,
                                 ffa_error *err);
void transfer_tables_finish(struct transfer_tables *tables);

/* Rows [source_row, +rows) of rank `source` to rows [row, +rows) of the receive buffer by token;
 * adjacent ones are joined. is_relayed: source_row is in the source's receive buffer. */
struct table_copy {
    int64_t source_row, row, rows;
    int32_t source;
    int32_t is_relayed;
};

/* The copies of a rank, flat or over relays, into out [receives of the rank]; how many. */
int64_t transfer_tables_copies(struct table_copy *out, const struct transfer_tables *tables,
                               int32_t rank, bool over_relays);

#endif
