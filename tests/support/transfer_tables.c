/* SPDX-License-Identifier: Apache-2.0 */
#include "support/transfer_tables.h"

#include <stdlib.h>

static void *grown(void *at, int64_t count, size_t size)
{
    void *more = realloc(at, (size_t)(count + 1) * size);

    if (!more)
        abort();
    return more;
}

static void *zeros(int64_t count, size_t size)
{
    void *at = calloc((size_t)count + 1, size);

    if (!at)
        abort();
    return at;
}

static void add_piece(struct transfer_tables *t, const struct transfer_piece *piece,
                      int64_t *receives)
{
    struct table_receive receive = { .piece = t->piece_count };

    t->pieces = grown(t->pieces, t->piece_count, sizeof *t->pieces);
    t->pieces[t->piece_count++] = (struct table_piece){ .begin = piece->begin,
                                                        .end = piece->end,
                                                        .source_row = piece->source_row,
                                                        .receiver_begin = *receives,
                                                        .owner = piece->owner,
                                                        .receiver_count = piece->receiver_count };
    t->send_begin[piece->owner]++;
    for (int32_t i = 0; i < piece->receiver_count; i++) {
        const int32_t rank = piece->receivers[i];

        t->receivers = grown(t->receivers, *receives, sizeof *t->receivers);
        t->receives = grown(t->receives, *receives, sizeof *t->receives);
        receive.row = t->receive_rows[rank];
        receive.relay = piece->relays[i];
        t->receivers[*receives] = rank;
        t->receives[(*receives)++] = receive; /* by piece, for now */
        t->receive_begin[rank]++;
        t->receive_rows[rank] += piece->end - piece->begin;
    }
}

static void sort_tables(struct transfer_tables *t, int32_t ranks, int64_t receives)
{
    struct table_receive *by_rank = zeros(receives, sizeof *by_rank);

    begins_from_counts(t->send_begin, ranks);
    begins_from_counts(t->receive_begin, ranks);
    t->sends = zeros(t->piece_count, sizeof *t->sends);
    for (int64_t p = 0; p < t->piece_count; p++)
        t->sends[t->send_begin[t->pieces[p].owner]++] = p;
    for (int64_t i = 0; i < receives; i++)
        by_rank[t->receive_begin[t->receivers[i]]++] = t->receives[i];
    begins_move_back(t->send_begin, ranks);
    begins_move_back(t->receive_begin, ranks);
    free(t->receives);
    t->receives = by_rank;
}

ffa_status transfer_tables_build(struct transfer_tables *out, const struct rank_needs_input *in,
                                 ffa_error *err)
{
    const int32_t ranks = in->topology.rank_count;
    struct transfer_walk walk;
    struct transfer_piece piece;
    int64_t receives = 0;
    ffa_status rc;

    *out = (struct transfer_tables){ .send_begin = zeros(ranks, sizeof *out->send_begin),
                                     .receive_begin = zeros(ranks, sizeof *out->receive_begin),
                                     .receive_rows = zeros(ranks, sizeof *out->receive_rows) };
    rc = rank_needs_build(&out->needs, in, err);
    if (rc == FFA_OK)
        rc = transfer_walk_init(&walk, &out->needs, err);
    if (rc != FFA_OK) {
        transfer_tables_finish(out);
        return rc;
    }
    while (transfer_walk_next(&walk, &piece))
        add_piece(out, &piece, &receives);
    transfer_walk_finish(&walk);
    sort_tables(out, ranks, receives);
    return FFA_OK;
}

void transfer_tables_finish(struct transfer_tables *tables)
{
    rank_needs_finish(&tables->needs);
    free(tables->pieces);
    free(tables->receivers);
    free(tables->send_begin);
    free(tables->sends);
    free(tables->receive_begin);
    free(tables->receives);
    free(tables->receive_rows);
    *tables = (struct transfer_tables){ 0 };
}

/* The row of a piece in a receiver's buffer. */
static int64_t row_at(const struct transfer_tables *t, int32_t rank, int64_t piece)
{
    for (int64_t i = t->receive_begin[rank]; i < t->receive_begin[rank + 1]; i++)
        if (t->receives[i].piece == piece)
            return t->receives[i].row;
    return -1;
}

int64_t transfer_tables_copies(struct table_copy *out, const struct transfer_tables *t,
                               int32_t rank, bool over_relays)
{
    int64_t count = 0;

    for (int64_t i = t->receive_begin[rank]; i < t->receive_begin[rank + 1]; i++) {
        const struct table_receive *receive = &t->receives[i];
        const struct table_piece *piece = &t->pieces[receive->piece];
        struct table_copy copy = { piece->source_row, receive->row, piece->end - piece->begin,
                                   piece->owner, 0 };
        struct table_copy *last = count > 0 ? &out[count - 1] : NULL;

        if (over_relays && receive->relay != piece->owner) {
            copy.source = receive->relay;
            copy.source_row = row_at(t, receive->relay, receive->piece);
            copy.is_relayed = true;
        }
        if (last && last->source == copy.source && last->is_relayed == copy.is_relayed &&
            last->source_row + last->rows == copy.source_row)
            last->rows += copy.rows;
        else
            out[count++] = copy;
    }
    return count;
}
