/* SPDX-License-Identifier: Apache-2.0
 *
 * Pieces and their receivers, one after another: the ends of what ranks need, sorted, cut the key
 * axis into pieces; between two ends the set of receivers is constant. Invariant: pieces cover all
 * keys, in order, each with one owner and one set of receivers. Trick: the set is a bit a rank,
 * flipped at every end. Nothing is kept of a piece but what its relays have handed on, so a walk
 * takes memory for ranges and not for pairs of piece and receiver.
 */
#include "parallel/plan/transfer.h"

/* An end of a rank's need. */
struct transfer_event {
    int64_t at;
    int32_t rank;
};

/* By token; which of two at one token is first does not matter, the set is what counts. */
static int event_compare(const void *left, const void *right)
{
    const struct transfer_event *a = left, *b = right;

    if (a->at != b->at)
        return a->at < b->at ? -1 : 1;
    return (a->rank > b->rank) - (a->rank < b->rank);
}

static int64_t words_of(const struct rank_needs *needs)
{
    return (needs->topology.rank_count + 63) / 64;
}

ffa_status transfer_walk_init(struct transfer_walk *out, const struct rank_needs *needs,
                              ffa_error *err)
{
    const size_t ranks = (size_t)needs->topology.rank_count;
    const size_t ranges = (size_t)needs->begin[ranks];

    *out =
        (struct transfer_walk){ .needs = needs,
                                .events = mem_array(2 * ranges, sizeof *out->events),
                                .active = mem_array((size_t)words_of(needs), sizeof *out->active),
                                .receivers = mem_array(ranks, sizeof *out->receivers),
                                .relays = mem_array(ranks, sizeof *out->relays),
                                .handed_on = mem_array(ranks, sizeof *out->handed_on) };
    if (!out->events || !out->active || !out->receivers || !out->relays || !out->handed_on) {
        transfer_walk_finish(out);
        return error_nomem(err, "pieces");
    }
    for (int32_t r = 0; r < needs->topology.rank_count; r++)
        for (int64_t i = needs->begin[r]; i < needs->begin[r + 1]; i++) {
            out->events[out->event_count++] = (struct transfer_event){ needs->at[i].begin, r };
            out->events[out->event_count++] = (struct transfer_event){ needs->at[i].end, r };
        }
    if (out->event_count > 0)
        qsort(out->events, (size_t)out->event_count, sizeof *out->events, event_compare);
    return FFA_OK;
}

void transfer_walk_restart(struct transfer_walk *walk)
{
    const size_t ranks = (size_t)walk->needs->topology.rank_count;

    memset(walk->active, 0, (size_t)words_of(walk->needs) * sizeof *walk->active);
    memset(walk->handed_on, 0, ranks * sizeof *walk->handed_on);
    walk->next_event = walk->chunk = walk->at = walk->owner_end = 0;
}

/* The receivers [from, to) share a node that is not the owner's. */
static void choose_relay(struct transfer_walk *walk, int32_t from, int32_t to, int64_t rows)
{
    int32_t relay = walk->receivers[from];

    for (int32_t i = from + 1; i < to; i++)
        if (walk->handed_on[walk->receivers[i]] < walk->handed_on[relay])
            relay = walk->receivers[i];
    walk->handed_on[relay] += rows * (to - from - 1);
    for (int32_t i = from; i < to; i++)
        if (walk->receivers[i] != relay)
            walk->relays[i] = relay;
}

static void find_receivers(struct transfer_walk *walk, struct transfer_piece *piece)
{
    const int64_t words = words_of(walk->needs);
    const int32_t width = walk->needs->topology.ranks_per_node;
    int32_t count = 0;

    for (int64_t w = 0; w < words; w++)
        for (uint64_t bits = walk->active[w]; bits; bits &= bits - 1) {
            walk->relays[count] = piece->owner;
            walk->receivers[count++] = (int32_t)(w * 64 + __builtin_ctzll(bits));
        }
    for (int32_t from = 0, to; from < count; from = to) {
        const int32_t node = walk->receivers[from] / width;

        for (to = from; to < count && walk->receivers[to] < (node + 1) * width;)
            to++;
        if (node != piece->owner / width)
            choose_relay(walk, from, to, piece->end - piece->begin);
    }
    piece->receiver_count = count;
    piece->receivers = walk->receivers;
    piece->relays = walk->relays;
}

/* Move to the chunk of the next key, and find where the chunks of its owner end that follow each
 * other. */
static void find_owner(struct transfer_walk *walk)
{
    const struct layout *keys = walk->needs->keys;
    int64_t last;

    while (keys->bounds[walk->chunk + 1] <= walk->at)
        walk->chunk++;
    if (walk->at < walk->owner_end)
        return;
    last = walk->chunk;
    while (last + 1 < keys->count && keys->rank_of[last + 1] == keys->rank_of[walk->chunk])
        last++;
    walk->owner_end = keys->bounds[last + 1];
}

bool transfer_walk_next(struct transfer_walk *walk, struct transfer_piece *piece)
{
    const struct layout *keys = walk->needs->keys;

    if (walk->at == keys->bounds[keys->count])
        return false;
    find_owner(walk);
    for (; walk->next_event < walk->event_count && walk->events[walk->next_event].at <= walk->at;
         walk->next_event++) {
        const int32_t rank = walk->events[walk->next_event].rank;

        walk->active[rank / 64] ^= UINT64_C(1) << (rank % 64);
    }
    *piece = (struct transfer_piece){ .begin = walk->at,
                                      .end = walk->owner_end,
                                      .source_row = keys->local[walk->chunk] + walk->at -
                                                    keys->bounds[walk->chunk],
                                      .owner = keys->rank_of[walk->chunk] };
    if (walk->next_event < walk->event_count)
        piece->end = min64(piece->end, walk->events[walk->next_event].at);
    walk->at = piece->end;
    find_receivers(walk, piece);
    return true;
}

void transfer_walk_finish(struct transfer_walk *walk)
{
    mem_free(walk->events);
    mem_free(walk->active);
    mem_free(walk->receivers);
    mem_free(walk->relays);
    mem_free(walk->handed_on);
    *walk = (struct transfer_walk){ 0 };
}

/* ---- copies ---- */

ffa_status transfer_copies_add(struct transfer_copies *copies, const struct transfer_copy *copy,
                               ffa_error *err)
{
    struct transfer_copy *last = copies->count > 0 ? &copies->at[copies->count - 1] : NULL;

    if (last && last->source == copy->source && last->source_row + last->rows == copy->source_row &&
        last->row + last->rows == copy->row) {
        last->rows += copy->rows;
        return FFA_OK;
    }
    if (!mem_grow((void **)&copies->at, &copies->capacity, copies->count + 1, sizeof *copies->at))
        return error_nomem(err, "copies");
    copies->at[copies->count++] = *copy;
    return FFA_OK;
}

void transfer_copies_finish(struct transfer_copies *copies)
{
    mem_free(copies->at);
    *copies = (struct transfer_copies){ 0 };
}

/* ---- figures ---- */

/* Where the rows that a rank has received last lie. */
struct last_row {
    int64_t end; /* source_row behind them */
    int32_t source;
};

static void measure_piece(ffa_dispatch_load *ranks, struct last_row *last,
                          const struct transfer_piece *piece, const struct rank_needs *needs)
{
    const int64_t rows = piece->end - piece->begin;
    ffa_dispatch_load *owner = &ranks[piece->owner];

    for (int32_t i = 0; i < piece->receiver_count; i++) {
        const int32_t r = piece->receivers[i];
        const bool is_near = rank_needs_is_near(needs, piece->owner, r);

        *(is_near ? &ranks[r].received_node : &ranks[r].received_network) += rows;
        *(is_near ? &owner->sent_node : &owner->sent_network) += rows;
        if (piece->relays[i] != piece->owner)
            ranks[r].received_relayed += rows;
        ranks[r].fragments +=
            last[r].source != piece->owner || last[r].end != piece->source_row || last[r].end == 0;
        last[r] = (struct last_row){ piece->source_row + rows, piece->owner };
    }
}

ffa_status transfer_measure(const struct rank_needs *needs, ffa_dispatch_load *ranks,
                            ffa_error *err)
{
    const int32_t rank_count = needs->topology.rank_count;
    struct last_row *last = mem_array((size_t)rank_count, sizeof *last);
    struct transfer_walk walk = { 0 };
    struct transfer_piece piece;
    ffa_status rc;

    if (!last) {
        rc = error_nomem(err, "pieces");
        goto out;
    }
    FFA_TRY(transfer_walk_init(&walk, needs, err));
    for (int32_t r = 0; r < rank_count; r++)
        ranks[r].tokens = needs->keys->rank_tokens[r];
    while (transfer_walk_next(&walk, &piece))
        measure_piece(ranks, last, &piece, needs);
out:
    mem_free(last);
    transfer_walk_finish(&walk);
    return rc;
}
