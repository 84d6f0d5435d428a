/* SPDX-License-Identifier: Apache-2.0
 *
 * transfer_build: the ends of what ranks need, sorted, cut the key axis into pieces; between two
 * ends the set of receivers is constant. Invariant: pieces cover all keys, in order, each with one
 * owner and one set of receivers, and a receive buffer holds its pieces in the order of tokens.
 * Tricks: the set is a bit a rank, flipped at every end, so a walk over the sorted ends finds every
 * piece; tables by rank are counted, then filled.
 */
#include "parallel/plan/transfer.h"

/* ---- what ranks need ---- */

/* An end of a rank's need. */
struct event {
    int64_t at;
    int32_t rank;
    int32_t is_begin;
};

struct events {
    struct event *at;
    int64_t count, capacity;
};

static ffa_status add_event(struct events *events, struct event event, ffa_error *err)
{
    if (!mem_grow((void **)&events->at, &events->capacity, events->count + 1, sizeof *events->at))
        return error_nomem(err, "the needs of ranks");
    events->at[events->count++] = event;
    return FFA_OK;
}

/* By token; which of two at one token is first does not matter, the set is what counts. */
static int event_compare(const void *left, const void *right)
{
    const struct event *a = left, *b = right;

    if (a->at != b->at)
        return a->at < b->at ? -1 : 1;
    return (a->rank > b->rank) - (a->rank < b->rank);
}

/* Room for one rank's lists. */
struct scratch {
    struct range *wanted, *own, *left;
};

static ffa_status add_rank(struct events *events, struct scratch *s,
                           const struct transfer_input *in, int32_t rank, ffa_error *err)
{
    const struct layout *queries = in->queries;
    int64_t wanted = 0, own, left;
    ffa_status rc = FFA_OK;

    for (int64_t i = queries->rank_begin[rank]; i < queries->rank_begin[rank + 1]; i++) {
        const int64_t chunk = queries->rank_chunks[i];

        for (int64_t n = in->needs->begin[chunk]; n < in->needs->begin[chunk + 1]; n++)
            s->wanted[wanted++] = in->needs->ranges[n];
    }
    wanted = ranges_join(s->wanted, wanted);
    own = layout_ranges(s->own, in->keys, rank);
    left = ranges_without(s->left, s->wanted, wanted, s->own, own);
    for (int64_t i = 0; i < left; i++) {
        FFA_TRY(add_event(events, (struct event){ s->left[i].begin, rank, true }, err));
        FFA_TRY(add_event(events, (struct event){ s->left[i].end, rank, false }, err));
    }
out:
    return rc;
}

static ffa_status find_events(struct events *events, const struct transfer_input *in,
                              ffa_error *err)
{
    const size_t wanted = (size_t)in->needs->begin[in->needs->count];
    const size_t chunks = (size_t)in->keys->count;
    struct scratch s = { mem_array(wanted, sizeof *s.wanted), mem_array(chunks, sizeof *s.own),
                         mem_array(wanted + chunks, sizeof *s.left) };
    ffa_status rc = FFA_OK;

    if (!s.wanted || !s.own || !s.left) {
        rc = error_nomem(err, "the needs of ranks");
        goto out;
    }
    for (int32_t r = 0; r < in->topology.rank_count; r++)
        FFA_TRY(add_rank(events, &s, in, r, err));
    if (events->count > 0)
        qsort(events->at, (size_t)events->count, sizeof *events->at, event_compare);
out:
    mem_free(s.wanted);
    mem_free(s.own);
    mem_free(s.left);
    return rc;
}

/* ---- pieces: a walk over the keys and the sorted ends ---- */

struct walk {
    struct transfer *out;
    const struct transfer_input *in;
    uint64_t *active; /* a bit a rank */
    int64_t words;
    int64_t piece_capacity, receiver_capacity, receiver_count;
};

static ffa_status add_piece(struct walk *s, int64_t begin, int64_t end, int32_t owner,
                            ffa_error *err)
{
    struct transfer *out = s->out;
    struct transfer_piece *piece;
    int64_t most = s->receiver_count + s->in->topology.rank_count;

    if (!mem_grow((void **)&out->pieces, &s->piece_capacity, out->piece_count + 1,
                  sizeof *out->pieces) ||
        !mem_grow((void **)&out->receivers, &s->receiver_capacity, most, sizeof *out->receivers))
        return error_nomem(err, "pieces");
    piece = &out->pieces[out->piece_count++];
    *piece = (struct transfer_piece){ .begin = begin,
                                      .end = end,
                                      .source_row = layout_row(s->in->keys, begin),
                                      .receiver_begin = s->receiver_count,
                                      .owner = owner };
    for (int64_t w = 0; w < s->words; w++)
        for (uint64_t bits = s->active[w]; bits; bits &= bits - 1)
            out->receivers[s->receiver_count++] = (int32_t)(w * 64 + __builtin_ctzll(bits));
    piece->receiver_count = (int32_t)(s->receiver_count - piece->receiver_begin);
    return FFA_OK;
}

static ffa_status walk_keys(struct walk *s, const struct events *events, ffa_error *err)
{
    const struct layout *keys = s->in->keys;
    int64_t next = 0;
    ffa_status rc = FFA_OK;

    for (int64_t c = 0; c < keys->count;) {
        const int32_t owner = keys->rank_of[c];
        int64_t at = keys->bounds[c], end;

        while (c < keys->count && keys->rank_of[c] == owner)
            c++;
        end = keys->bounds[c];
        while (at < end) {
            int64_t until;

            for (; next < events->count && events->at[next].at <= at; next++)
                s->active[events->at[next].rank / 64] ^= UINT64_C(1)
                                                         << (events->at[next].rank % 64);
            until = next < events->count ? min64(end, events->at[next].at) : end;
            FFA_TRY(add_piece(s, at, until, owner, err));
            at = until;
        }
    }
out:
    return rc;
}

/* ---- tables by rank ---- */

static ffa_status build_tables(struct transfer *t, ffa_error *err)
{
    const int32_t ranks = t->topology.rank_count;
    int64_t receivers = 0;

    t->send_begin = mem_array((size_t)ranks + 1, sizeof *t->send_begin);
    t->receive_begin = mem_array((size_t)ranks + 1, sizeof *t->receive_begin);
    t->receive_rows = mem_array((size_t)ranks, sizeof *t->receive_rows);
    for (int64_t p = 0; p < t->piece_count; p++)
        receivers += t->pieces[p].receiver_count;
    t->sends = mem_array((size_t)t->piece_count, sizeof *t->sends);
    t->receives = mem_array((size_t)receivers, sizeof *t->receives);
    if (!t->send_begin || !t->receive_begin || !t->receive_rows || !t->sends || !t->receives)
        return error_nomem(err, "transfer tables");
    for (int64_t p = 0; p < t->piece_count; p++)
        t->send_begin[t->pieces[p].owner]++;
    for (int64_t i = 0; i < receivers; i++)
        t->receive_begin[t->receivers[i]]++;
    begins_from_counts(t->send_begin, ranks);
    begins_from_counts(t->receive_begin, ranks);
    for (int64_t p = 0; p < t->piece_count; p++) {
        const struct transfer_piece *piece = &t->pieces[p];

        t->sends[t->send_begin[piece->owner]++] = p;
        for (int32_t i = 0; i < piece->receiver_count; i++) {
            const int32_t rank = t->receivers[piece->receiver_begin + i];

            t->receives[t->receive_begin[rank]++] = (struct transfer_receive){
                .piece = p, .row = t->receive_rows[rank], .relay = piece->owner
            };
            t->receive_rows[rank] += piece->end - piece->begin;
        }
    }
    begins_move_back(t->send_begin, ranks);
    begins_move_back(t->receive_begin, ranks);
    return FFA_OK;
}

/* ---- relays ---- */

/* The receivers [from, to) of a piece share a node that is not the owner's. */
static void choose_relay(struct transfer *t, const int32_t *from, const int32_t *to,
                         int64_t *handed_on, const int64_t *cursor, int64_t rows)
{
    int32_t relay = *from;

    for (const int32_t *rank = from + 1; rank < to; rank++)
        if (handed_on[*rank] < handed_on[relay])
            relay = *rank;
    for (const int32_t *rank = from; rank < to; rank++)
        if (*rank != relay) {
            t->receives[cursor[*rank]].relay = relay;
            handed_on[relay] += rows;
        }
}

static ffa_status choose_relays(struct transfer *t, ffa_error *err)
{
    const int32_t ranks = t->topology.rank_count, width = t->topology.ranks_per_node;
    int64_t *handed_on = mem_array((size_t)ranks, sizeof *handed_on);
    int64_t *cursor = mem_array((size_t)ranks, sizeof *cursor);
    ffa_status rc = FFA_OK;

    if (!handed_on || !cursor) {
        rc = error_nomem(err, "relays");
        goto out;
    }
    memcpy(cursor, t->receive_begin, (size_t)ranks * sizeof *cursor);
    for (int64_t p = 0; p < t->piece_count; p++) {
        const struct transfer_piece *piece = &t->pieces[p];
        const int32_t *from = t->receivers + piece->receiver_begin;
        const int32_t *end = from + piece->receiver_count;

        while (from < end) {
            const int32_t *to = from;

            while (to < end && *to / width == *from / width)
                to++;
            if (*from / width != piece->owner / width)
                choose_relay(t, from, to, handed_on, cursor, piece->end - piece->begin);
            for (; from < to; from++)
                cursor[*from]++;
        }
    }
out:
    mem_free(handed_on);
    mem_free(cursor);
    return rc;
}

/* ---- all of it ---- */

ffa_status transfer_build(struct transfer *out, const struct transfer_input *in, ffa_error *err)
{
    struct walk walk = { .out = out, .in = in, .words = (in->topology.rank_count + 63) / 64 };
    struct events events = { 0 };
    ffa_status rc;

    *out = (struct transfer){ .topology = in->topology };
    walk.active = mem_array((size_t)walk.words, sizeof *walk.active);
    if (!walk.active) {
        rc = error_nomem(err, "pieces");
        goto out;
    }
    FFA_TRY(find_events(&events, in, err));
    FFA_TRY(walk_keys(&walk, &events, err));
    FFA_TRY(build_tables(out, err));
    FFA_TRY(choose_relays(out, err));
out:
    mem_free(events.at);
    mem_free(walk.active);
    if (rc != FFA_OK)
        transfer_finish(out);
    return rc;
}

void transfer_finish(struct transfer *transfer)
{
    mem_free(transfer->pieces);
    mem_free(transfer->receivers);
    mem_free(transfer->send_begin);
    mem_free(transfer->sends);
    mem_free(transfer->receive_begin);
    mem_free(transfer->receives);
    mem_free(transfer->receive_rows);
    *transfer = (struct transfer){ 0 };
}

/* ---- copies ---- */

/* The row of a piece in a receiver's buffer. */
static int64_t row_at(const struct transfer *t, int32_t rank, int64_t piece)
{
    int64_t low = t->receive_begin[rank], high = t->receive_begin[rank + 1];

    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;

        if (t->receives[middle].piece <= piece)
            low = middle;
        else
            high = middle;
    }
    return t->receives[low].row;
}

ffa_status transfer_copies_build(struct transfer_copies *out, const struct transfer *t,
                                 int32_t rank, enum transfer_route route, ffa_error *err)
{
    out->count = 0;
    for (int64_t i = t->receive_begin[rank]; i < t->receive_begin[rank + 1]; i++) {
        const struct transfer_receive *receive = &t->receives[i];
        const struct transfer_piece *piece = &t->pieces[receive->piece];
        struct transfer_copy copy = { piece->source_row, receive->row, piece->end - piece->begin,
                                      piece->owner, false };
        struct transfer_copy *last = out->count > 0 ? &out->at[out->count - 1] : NULL;

        if (route == TRANSFER_RELAYED && receive->relay != piece->owner) {
            copy.source = receive->relay;
            copy.source_row = row_at(t, receive->relay, receive->piece);
            copy.is_relayed = true;
        }
        if (last && last->source == copy.source && last->is_relayed == copy.is_relayed &&
            last->source_row + last->rows == copy.source_row) {
            last->rows += copy.rows;
            continue;
        }
        if (!mem_grow((void **)&out->at, &out->capacity, out->count + 1, sizeof *out->at))
            return error_nomem(err, "copies");
        out->at[out->count++] = copy;
    }
    return FFA_OK;
}

void transfer_copies_finish(struct transfer_copies *copies)
{
    mem_free(copies->at);
    *copies = (struct transfer_copies){ 0 };
}

/* ---- what a rank computes ---- */

void spans_add(struct spans *spans, struct span span)
{
    struct span *last = spans->count > 0 ? &spans->at[spans->count - 1] : NULL;

    if (last && last->end == span.begin && last->row + last->end - last->begin == span.row)
        last->end = span.end;
    else
        spans->at[spans->count++] = span;
}

ffa_status spans_cut(struct bands *out, const struct band *band, int64_t q_shift,
                     const struct spans *spans, ffa_error *err)
{
    int64_t low = 0, high = spans->count;
    ffa_status rc = FFA_OK;

    while (low < high) { /* the first span that ends behind the band's first key */
        const int64_t middle = low + (high - low) / 2;

        if (spans->at[middle].end <= band->k_begin)
            low = middle + 1;
        else
            high = middle;
    }
    for (int64_t i = low; i < spans->count && spans->at[i].begin < band->k_end; i++) {
        const struct span *span = &spans->at[i];
        struct band cut;

        if (!band_cut_k(&cut, band, span->begin, span->end))
            continue;
        cut = band_translate(&cut, q_shift, span->row - span->begin);
        FFA_TRY(bands_add(out, &cut, err));
    }
out:
    return rc;
}

static ffa_status split_chunks(struct transfer_split *out, const struct layout *queries,
                               const struct bands *bands, int32_t rank, const struct spans *own,
                               const struct spans *remote, ffa_error *err)
{
    int64_t first = 0;
    ffa_status rc = FFA_OK;

    for (int64_t i = queries->rank_begin[rank]; i < queries->rank_begin[rank + 1]; i++) {
        const int64_t chunk = queries->rank_chunks[i];
        const int64_t begin = queries->bounds[chunk], end = queries->bounds[chunk + 1];

        /* Bands ascend, and overlap in queries only where these are the same. */
        while (first < bands->count && bands->at[first].q_end <= begin)
            first++;
        for (int64_t b = first; b < bands->count && bands->at[b].q_begin < end; b++) {
            const int64_t shift = queries->local[chunk] - begin;
            struct band cut;

            if (!band_cut_q(&cut, &bands->at[b], begin, end))
                continue;
            FFA_TRY(spans_cut(&out->own, &cut, shift, own, err));
            FFA_TRY(spans_cut(&out->remote, &cut, shift, remote, err));
        }
    }
out:
    return rc;
}

ffa_status transfer_split_bands(struct transfer_split *out, const struct transfer *t,
                                const struct transfer_input *in, const struct bands *bands,
                                int32_t rank, ffa_error *err)
{
    const struct layout *keys = in->keys;
    const int64_t chunks = keys->rank_begin[rank + 1] - keys->rank_begin[rank];
    const int64_t receives = t->receive_begin[rank + 1] - t->receive_begin[rank];
    struct spans own = { mem_array((size_t)chunks, sizeof *own.at), 0 };
    struct spans remote = { mem_array((size_t)receives, sizeof *remote.at), 0 };
    ffa_status rc;

    if (!own.at || !remote.at) {
        rc = error_nomem(err, "the keys of a rank");
        goto out;
    }
    for (int64_t i = 0; i < chunks; i++) {
        const int64_t chunk = keys->rank_chunks[keys->rank_begin[rank] + i];

        spans_add(&own, (struct span){ keys->bounds[chunk], keys->bounds[chunk + 1],
                                       keys->local[chunk] });
    }
    for (int64_t i = 0; i < receives; i++) {
        const struct transfer_receive *receive = &t->receives[t->receive_begin[rank] + i];
        const struct transfer_piece *piece = &t->pieces[receive->piece];

        spans_add(&remote, (struct span){ piece->begin, piece->end, receive->row });
    }
    rc = split_chunks(out, in->queries, bands, rank, &own, &remote, err);
out:
    mem_free(own.at);
    mem_free(remote.at);
    return rc;
}

void transfer_split_finish(struct transfer_split *split)
{
    bands_finish(&split->own);
    bands_finish(&split->remote);
}

/* ---- figures ---- */

ffa_status transfer_measure(const struct transfer *t, const struct layout *keys,
                            ffa_dispatch_load *ranks, ffa_error *err)
{
    const int32_t width = t->topology.ranks_per_node;
    struct transfer_copies copies = { 0 };
    ffa_status rc = FFA_OK;

    for (int32_t r = 0; r < t->topology.rank_count; r++)
        ranks[r].tokens = keys->rank_tokens[r];
    for (int32_t r = 0; r < t->topology.rank_count; r++) {
        for (int64_t i = t->receive_begin[r]; i < t->receive_begin[r + 1]; i++) {
            const struct transfer_receive *receive = &t->receives[i];
            const struct transfer_piece *piece = &t->pieces[receive->piece];
            const int64_t rows = piece->end - piece->begin;
            const bool is_near = piece->owner / width == r / width;

            *(is_near ? &ranks[r].received_node : &ranks[r].received_network) += rows;
            *(is_near ? &ranks[piece->owner].sent_node : &ranks[piece->owner].sent_network) += rows;
            if (receive->relay != piece->owner)
                ranks[r].received_relayed += rows;
        }
        FFA_TRY(transfer_copies_build(&copies, t, r, TRANSFER_FLAT, err));
        ranks[r].fragments = copies.count;
    }
out:
    transfer_copies_finish(&copies);
    return rc;
}
