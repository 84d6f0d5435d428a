/* SPDX-License-Identifier: Apache-2.0
 *
 * relay_parts_add: what the members of a node receive of one owner, cut where any of them begins or
 * ends, gives pieces with one set of members each. Invariant: the parts of an owner and a node
 * follow from the tables that all ranks have, and from nothing that was decided for another owner
 * or node, so a rank finds those that concern it without the others. Trick: relays take parts in
 * turn, from a different one on with each owner, and a piece is divided only as far as its share of
 * the whole asks for, so few parts are enough for equal shares.
 */
#include "parallel/plan/relays.h"

#include <stdlib.h>

enum { PART_ROWS_MIN = 64 }; /* smaller copies would take longer than they save */

/* Rows [begin, end) of the owner's buffer, as a member has them. */
struct member_span {
    int64_t begin, end;
    int64_t row; /* of its key window */
    int32_t stage;
};

/* Of one owner and one node. */
struct build {
    struct relay_parts *out;
    const struct rank_needs *needs;
    const struct stage_cut *cuts;
    int32_t owner, first, count; /* ranks [first, +count) of the node */
    struct member_span *spans;
    int64_t span_count, span_capacity;
    int64_t *span_begin; /* [count + 1] */
    int64_t *next;       /* [count]: the span of a member that is not behind the sweep */
    int64_t *ends;       /* [2 * span_count]: sorted, each once */
    int64_t end_count;
    int64_t rows; /* of all pieces */
    int64_t turn; /* of relays */
};

void relay_parts_finish(struct relay_parts *parts)
{
    mem_free(parts->at);
    mem_free(parts->members);
    *parts = (struct relay_parts){ 0 };
}

void relays_finish(struct relays *relays)
{
    relay_parts_finish(&relays->own);
    relay_parts_finish(&relays->received);
}

/* ---- what the members receive ---- */

static ffa_status add_span(struct build *b, const struct member_span *span, int64_t first,
                           ffa_error *err)
{
    struct member_span *last = b->span_count > first ? &b->spans[b->span_count - 1] : NULL;

    if (last && last->stage == span->stage && last->end == span->begin &&
        last->row + last->end - last->begin == span->row) {
        last->end = span->end;
        return FFA_OK;
    }
    if (!mem_grow((void **)&b->spans, &b->span_capacity, b->span_count + 1, sizeof *b->spans))
        return error_nomem(err, "the relays of a node");
    b->spans[b->span_count++] = *span;
    return FFA_OK;
}

/* Of one member: ascending, as its receives are by token. */
static ffa_status add_member(struct build *b, int32_t rank, ffa_error *err)
{
    const struct stage_cut *cut = &b->cuts[rank];
    const int64_t own = b->needs->keys->rank_tokens[rank], first = b->span_count;
    struct rank_receives receives = { 0 };
    ffa_status rc;

    FFA_TRY(rank_receives_from(&receives, b->needs, rank, b->owner, err));
    for (int64_t i = 0; i < receives.count; i++)
        for (int32_t s = 0; s < cut->count; s++) {
            struct rank_receive part;
            struct member_span span;

            if (!rank_receive_cut(&part, &receives.at[i], cut->begins[s], cut->ends[s]))
                continue;
            span = (struct member_span){
                .begin = part.source_row,
                .end = part.source_row + part.end - part.begin,
                .row = own + stage_window_row(cut, s) + part.row - cut->begins[s],
                .stage = s + 1,
            };
            FFA_TRY(add_span(b, &span, first, err));
        }
out:
    rank_receives_finish(&receives);
    return rc;
}

static ffa_status find_spans(struct build *b, ffa_error *err)
{
    int64_t kept = 0;
    ffa_status rc = FFA_OK;

    for (int32_t m = 0; m < b->count; m++) {
        FFA_TRY(add_member(b, b->first + m, err));
        b->span_begin[m + 1] = b->span_count;
    }
    b->ends = mem_array(2 * (size_t)b->span_count, sizeof *b->ends);
    if (!b->ends)
        return error_nomem(err, "the relays of a node");
    for (int64_t i = 0; i < b->span_count; i++) {
        b->ends[b->end_count++] = b->spans[i].begin;
        b->ends[b->end_count++] = b->spans[i].end;
    }
    if (b->end_count > 0)
        qsort(b->ends, (size_t)b->end_count, sizeof *b->ends, compare64);
    for (int64_t i = 0; i < b->end_count; i++)
        if (kept == 0 || b->ends[i] != b->ends[kept - 1])
            b->ends[kept++] = b->ends[i];
    b->end_count = kept;
out:
    return rc;
}

/* ---- pieces ---- */

static void rewind(struct build *b)
{
    memcpy(b->next, b->span_begin, (size_t)b->count * sizeof *b->next);
}

/* The span of a member that has the owner's row; NULL: it does not receive it. Rows ascend from
 * call to call. */
static const struct member_span *span_at(struct build *b, int32_t member, int64_t row)
{
    int64_t *i = &b->next[member];

    while (*i < b->span_begin[member + 1] && b->spans[*i].end <= row)
        ++*i;
    return *i < b->span_begin[member + 1] && b->spans[*i].begin <= row ? &b->spans[*i] : NULL;
}

static void count_rows(struct build *b)
{
    rewind(b);
    for (int64_t e = 0; e + 1 < b->end_count; e++)
        for (int32_t m = 0; m < b->count; m++)
            if (span_at(b, m, b->ends[e])) {
                b->rows += b->ends[e + 1] - b->ends[e];
                break;
            }
}

/* The members of the rows from `begin` on, appended to out->members. `part` gets what they say. */
static ffa_status add_members(struct build *b, struct relay_part *part, int64_t begin,
                              ffa_error *err)
{
    struct relay_parts *out = b->out;

    part->member_begin = out->member_count;
    for (int32_t m = 0; m < b->count; m++) {
        const struct member_span *span = span_at(b, m, begin);

        if (!span)
            continue;
        if (!mem_grow((void **)&out->members, &out->member_capacity, out->member_count + 1,
                      sizeof *out->members))
            return error_nomem(err, "the relays of a node");
        out->members[out->member_count++] = (struct relay_member){
            .row = span->row + begin - span->begin, .rank = b->first + m, .stage = span->stage
        };
        part->stage =
            part->member_count == 0 || span->stage < part->stage ? span->stage : part->stage;
        part->last = span->stage > part->last ? span->stage : part->last;
        part->member_count++;
    }
    return FFA_OK;
}

/* Members that have the part in its first stage: how many, or which is the nth. */
static int32_t candidates(const struct relay_parts *parts, const struct relay_part *part,
                          int64_t nth, int32_t *rank)
{
    const struct relay_member *members = parts->members + part->member_begin;
    int32_t count = 0;

    for (int32_t i = 0; i < part->member_count; i++)
        if (members[i].stage == part->stage && count++ == nth)
            *rank = members[i].rank;
    return count;
}

/* Rows [begin, end), of which every member has all or none. */
static ffa_status add_piece(struct build *b, int64_t begin, int64_t end, ffa_error *err)
{
    int64_t share, count = 1;
    ffa_status rc = FFA_OK;

    for (int64_t i = 0; i < count; i++) {
        struct relay_part part = { .owner = b->owner };
        int32_t able;

        part.source_row = begin + (end - begin) * i / count;
        FFA_TRY(add_members(b, &part, part.source_row, err));
        if (part.member_count == 0)
            goto out;
        able = candidates(b->out, &part, -1, &part.relay);
        if (i == 0) {
            share = max64(PART_ROWS_MIN, b->rows / able);
            count = min64(able, max64(1, (end - begin) / share));
        }
        part.rows = begin + (end - begin) * (i + 1) / count - part.source_row;
        (void)candidates(b->out, &part, (b->owner + b->turn++) % able, &part.relay);
        if (!mem_grow((void **)&b->out->at, &b->out->capacity, b->out->count + 1,
                      sizeof *b->out->at))
            return error_nomem(err, "the relays of a node");
        b->out->at[b->out->count++] = part;
    }
out:
    return rc;
}

ffa_status relay_parts_add(struct relay_parts *out, const struct rank_needs *needs,
                           const struct stage_cut *cuts, int32_t owner, int32_t node,
                           ffa_error *err)
{
    const int32_t width = needs->topology.ranks_per_node;
    const int32_t left = needs->topology.rank_count - node * width;
    struct build b = { .out = out,
                       .needs = needs,
                       .cuts = cuts,
                       .owner = owner,
                       .first = node * width,
                       .count = left < width ? left : width };
    ffa_status rc = FFA_OK;

    b.span_begin = mem_array((size_t)b.count + 1, sizeof *b.span_begin);
    b.next = mem_array((size_t)b.count, sizeof *b.next);
    if (!b.span_begin || !b.next) {
        rc = error_nomem(err, "the relays of a node");
        goto out;
    }
    FFA_TRY(find_spans(&b, err));
    count_rows(&b);
    rewind(&b);
    for (int64_t e = 0; e + 1 < b.end_count; e++)
        FFA_TRY(add_piece(&b, b.ends[e], b.ends[e + 1], err));
out:
    mem_free(b.spans);
    mem_free(b.span_begin);
    mem_free(b.next);
    mem_free(b.ends);
    return rc;
}

/* ---- those of one rank ---- */

const struct relay_member *relay_part_member(const struct relay_parts *parts,
                                             const struct relay_part *part, int32_t rank)
{
    for (int32_t i = 0; i < part->member_count; i++)
        if (parts->members[part->member_begin + i].rank == rank)
            return &parts->members[part->member_begin + i];
    return NULL;
}

/* Of the parts from `first` on, those that the rank is a member of stay. */
static void keep_members(struct relay_parts *parts, int64_t first, int64_t first_member,
                         int32_t rank)
{
    int64_t kept = first, members = first_member;

    for (int64_t i = first; i < parts->count; i++) {
        struct relay_part part = parts->at[i];

        if (!relay_part_member(parts, &part, rank))
            continue;
        memmove(parts->members + members, parts->members + part.member_begin,
                (size_t)part.member_count * sizeof *parts->members);
        part.member_begin = members;
        members += part.member_count;
        parts->at[kept++] = part;
    }
    parts->count = kept;
    parts->member_count = members;
}

ffa_status relays_build(struct relays *out, const struct rank_needs *needs,
                        const struct stage_cut *cuts, int32_t rank, ffa_error *err)
{
    const int32_t ranks = needs->topology.rank_count, width = needs->topology.ranks_per_node;
    const int32_t node = rank / width;
    ffa_status rc = FFA_OK;

    for (int32_t n = 0; n * width < ranks; n++)
        if (n != node)
            FFA_TRY(relay_parts_add(&out->own, needs, cuts, rank, n, err));
    for (int32_t r = 0; r < ranks; r++) {
        const int64_t first = out->received.count, member = out->received.member_count;

        if (rank_needs_is_near(needs, r, rank))
            continue;
        FFA_TRY(relay_parts_add(&out->received, needs, cuts, r, node, err));
        keep_members(&out->received, first, member, rank);
    }
out:
    return rc;
}
