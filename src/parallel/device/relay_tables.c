/* SPDX-License-Identifier: Apache-2.0
 *
 * relay_moves_build and relay_sums_build. Invariant: what goes from one rank to another, and what
 * one waits for from another, follows from parts that both have found (relays.c), and from copies
 * that the plans of both have; each list of a pair is in the order of the parts or copies, which is
 * the same on both sides.
 */
#include "parallel/device/relay_tables.h"

#include <stdlib.h>

void relay_moves_finish(struct relay_moves *moves)
{
    mem_free(moves->pulls);
    mem_free(moves->pull_begin);
    mem_free(moves->awaited);
    mem_free(moves->awaited_begin);
    mem_free(moves->receives);
    mem_free(moves->receive_begin);
    mem_free(moves->sends);
    mem_free(moves->send_begin);
    mem_free(moves->told);
    mem_free(moves->told_begin);
    mem_free(moves->sources);
    *moves = (struct relay_moves){ 0 };
}

void relay_sums_finish(struct relay_sums *sums)
{
    pass_sums_finish(&sums->own);
    mem_free(sums->addends);
    mem_free(sums->segments);
    mem_free(sums->sources);
    mem_free(sums->sends);
    mem_free(sums->send_begin);
    mem_free(sums->readers);
    mem_free(sums->givers);
    *sums = (struct relay_sums){ 0 };
}

bool relay_tables_wanted(const ffa_parallel_plan *plan)
{
    return plan->topology.ranks_per_node < plan->topology.rank_count && !plan->in_rounds &&
           !plan->is_outline && plan->moves == FFA_PARALLEL_MOVE_KEYS && !plan->keys.is_replicated;
}

static bool is_near(const ffa_parallel_plan *plan, int32_t rank)
{
    const int32_t width = plan->topology.ranks_per_node;

    return rank / width == plan->rank / width;
}

/* All ranks that are marked, into ranks; how many. */
static int32_t take_marked(int32_t *ranks, const bool *is_marked, int32_t count)
{
    int32_t kept = 0;

    for (int32_t r = 0; r < count; r++)
        if (is_marked[r])
            ranks[kept++] = r;
    return kept;
}

/* ---- keys ---- */

/* Of one pass of one rank. */
struct build {
    struct relay_moves *out;
    const ffa_parallel_plan *plan;
    const struct pass_moves *moves;
    const struct relays *relays;
    bool *is_marked; /* [ranks]: scratch */
    bool *is_known;  /* [ranks][stage_most + 1]: flags that were awaited */
    int32_t ranks, stage_most;
};

static const struct relay_member *member_of(const struct build *b, const struct relay_part *part)
{
    return relay_part_member(&b->relays->received, part, b->plan->rank);
}

/* Rank d after this one, of the ranks of the node alone; others: -1. */
static int32_t near_after(const struct build *b, int32_t d)
{
    const int32_t rank = (b->plan->rank + 1 + d) % b->ranks;

    return is_near(b->plan, rank) ? rank : -1;
}

static void add_near_pulls(const struct build *b, int32_t stage)
{
    struct relay_moves *out = b->out;
    int64_t at = out->pull_begin[(ptrdiff_t)2 * stage];

    for (int64_t i = b->moves->copy_begin[stage]; i < b->moves->copy_begin[stage + 1]; i++)
        if (is_near(b->plan, b->moves->copies[i].rank))
            out->pulls[at++] = b->moves->copies[i];
    out->pull_begin[(ptrdiff_t)2 * stage + 1] = at;
}

static void add_relayed_pulls(const struct build *b, int32_t stage)
{
    const struct relay_parts *parts = &b->relays->received;
    struct relay_moves *out = b->out;
    int64_t at = out->pull_begin[(ptrdiff_t)2 * stage + 1];

    for (int32_t d = 0; d < b->ranks; d++) {
        const int32_t rank = near_after(b, d);

        for (int64_t i = 0; rank >= 0 && rank != b->plan->rank && i < parts->count; i++) {
            const struct relay_part *part = &parts->at[i];
            const struct relay_member *own = member_of(b, part);

            if (part->relay == rank && own->stage == stage)
                out->pulls[at++] =
                    (struct pass_copy){ .from = relay_part_member(parts, part, rank)->row,
                                        .to = own->row,
                                        .rows = part->rows,
                                        .rank = rank,
                                        .stage = stage };
        }
    }
    out->pull_begin[(ptrdiff_t)2 * stage + 2] = at;
}

static void await(const struct build *b, int32_t rank, int32_t stage, int32_t *at)
{
    bool *is_known = &b->is_known[(ptrdiff_t)rank * (b->stage_most + 1) + stage];

    if (!*is_known)
        b->out->awaited[(*at)++] = (struct relay_flag){ rank, stage };
    *is_known = true;
}

/* The flags that the pulls of a stage wait for, and that of the stage's own receives. */
static void add_awaited(const struct build *b, int32_t stage)
{
    const struct relay_parts *parts = &b->relays->received;
    struct relay_moves *out = b->out;
    int32_t *begin = &out->awaited_begin[(ptrdiff_t)2 * stage];
    int32_t at = begin[0];

    for (int64_t i = out->pull_begin[(ptrdiff_t)2 * stage];
         i < out->pull_begin[(ptrdiff_t)2 * stage + 1]; i++)
        await(b, out->pulls[i].rank, 0, &at);
    begin[1] = at;
    for (int64_t i = 0; i < parts->count; i++)
        if (member_of(b, &parts->at[i])->stage == stage)
            await(b, parts->at[i].relay, parts->at[i].stage, &at);
    begin[2] = at;
}

static void add_receives(const struct build *b, int32_t stage)
{
    const struct relay_parts *parts = &b->relays->received;
    int64_t at = b->out->receive_begin[stage];

    for (int64_t i = 0; i < parts->count; i++)
        if (parts->at[i].relay == b->plan->rank && parts->at[i].stage == stage)
            b->out->receives[at++] = (struct pass_copy){ .from = parts->at[i].source_row,
                                                         .to = member_of(b, &parts->at[i])->row,
                                                         .rows = parts->at[i].rows,
                                                         .rank = parts->at[i].owner,
                                                         .stage = stage };
    b->out->receive_begin[stage + 1] = at;
}

static void add_sends(const struct build *b, int32_t step)
{
    const struct relay_parts *parts = &b->relays->own;
    int64_t at = b->out->send_begin[step];

    for (int64_t i = 0; i < parts->count; i++)
        if (parts->at[i].stage == step)
            b->out->sends[at++] = (struct pass_copy){ .from = parts->at[i].source_row,
                                                      .rows = parts->at[i].rows,
                                                      .rank = parts->at[i].relay,
                                                      .stage = step };
    b->out->send_begin[step + 1] = at;
}

/* Who pulls what this rank has of a stage. */
static void add_told(const struct build *b, int32_t stage)
{
    const struct relay_parts *parts = &b->relays->received;
    int32_t at = b->out->told_begin[stage];

    memset(b->is_marked, 0, (size_t)b->ranks * sizeof *b->is_marked);
    for (int32_t i = 0; stage == 0 && i < b->moves->reader_count; i++)
        b->is_marked[b->moves->readers[i]] = is_near(b->plan, b->moves->readers[i]);
    for (int64_t i = 0; stage > 0 && i < parts->count; i++)
        if (parts->at[i].relay == b->plan->rank && parts->at[i].stage == stage)
            for (int32_t m = 0; m < parts->at[i].member_count; m++)
                b->is_marked[parts->members[parts->at[i].member_begin + m].rank] = true;
    for (int32_t r = 0; r < b->ranks; r++)
        if (b->is_marked[r])
            b->out->told[at++] = (struct relay_flag){ r, stage };
    b->out->told_begin[stage + 1] = at;
}

static void find_sources(const struct build *b)
{
    const int32_t stages = b->moves->stage_count;

    memset(b->is_marked, 0, (size_t)b->ranks * sizeof *b->is_marked);
    for (int64_t i = 0; i < b->out->pull_begin[(ptrdiff_t)2 * stages]; i++)
        b->is_marked[b->out->pulls[i].rank] = true;
    b->out->source_count = take_marked(b->out->sources, b->is_marked, b->ranks);
}

static ffa_status alloc_moves(struct build *b, ffa_error *err)
{
    const size_t stages = (size_t)b->moves->stage_count, steps = (size_t)b->moves->step_count;
    const size_t parts = (size_t)b->relays->received.count, width = (size_t)b->ranks;
    const size_t copies = (size_t)b->moves->copy_begin[stages];
    struct relay_moves *out = b->out;

    out->pulls = mem_array(copies + parts, sizeof *out->pulls);
    out->pull_begin = mem_array(2 * stages + 1, sizeof *out->pull_begin);
    out->awaited = mem_array(width * steps + width, sizeof *out->awaited);
    out->awaited_begin = mem_array(2 * stages + 1, sizeof *out->awaited_begin);
    out->receives = mem_array(parts, sizeof *out->receives);
    out->receive_begin = mem_array(stages + 1, sizeof *out->receive_begin);
    out->sends = mem_array((size_t)b->relays->own.count, sizeof *out->sends);
    out->send_begin = mem_array(steps + 1, sizeof *out->send_begin);
    out->told = mem_array(width * stages, sizeof *out->told);
    out->told_begin = mem_array(stages + 1, sizeof *out->told_begin);
    out->sources = mem_array(width, sizeof *out->sources);
    b->is_marked = mem_array(width, sizeof *b->is_marked);
    b->is_known = mem_array(width * ((size_t)b->stage_most + 1), sizeof *b->is_known);
    return out->pulls && out->pull_begin && out->awaited && out->awaited_begin && out->receives &&
                   out->receive_begin && out->sends && out->send_begin && out->told &&
                   out->told_begin && out->sources && b->is_marked && b->is_known
               ? FFA_OK
               : error_nomem(err, "the relays of a pass");
}

ffa_status relay_moves_build(struct relay_moves *out, const ffa_parallel_plan *plan,
                             const struct pass_moves *moves, bool is_backward, ffa_error *err)
{
    struct build b = { .out = out,
                       .plan = plan,
                       .moves = moves,
                       .relays = is_backward ? &plan->backward.relays : &plan->forward.relays,
                       .ranks = plan->topology.rank_count,
                       .stage_most = moves->step_count };
    ffa_status rc;

    *out = (struct relay_moves){ 0 };
    FFA_TRY(alloc_moves(&b, err));
    add_told(&b, 0);
    for (int32_t s = 1; s < moves->stage_count; s++) {
        add_near_pulls(&b, s);
        add_relayed_pulls(&b, s);
        add_awaited(&b, s);
        add_receives(&b, s);
        add_told(&b, s);
    }
    for (int32_t s = 1; s < moves->step_count; s++)
        add_sends(&b, s);
    find_sources(&b);
out:
    mem_free(b.is_marked);
    mem_free(b.is_known);
    return rc;
}

/* ---- sums ---- */

/* What comes of own keys: inside the node as where every rank sends, between nodes of parts. */
static void add_copies(struct pass_sums *own, const ffa_parallel_plan *plan,
                       const struct pass_sums *flat)
{
    const struct relay_parts *parts = &plan->backward.relays.own;

    for (int64_t i = 0; i < flat->copy_count; i++)
        if (is_near(plan, flat->copies[i].rank)) {
            own->own_rows[own->copy_count] = flat->own_rows[i];
            own->copies[own->copy_count++] = flat->copies[i];
        }
    for (int64_t i = 0; i < parts->count; i++) {
        own->own_rows[own->copy_count] = parts->at[i].source_row;
        own->copies[own->copy_count++] = (struct pass_copy){ .rows = parts->at[i].rows,
                                                             .rank = parts->at[i].relay,
                                                             .stage = parts->at[i].last };
    }
    for (int64_t i = 0; i < own->copy_count; i++) {
        own->copies[i].to = own->received_rows;
        own->received_rows += own->copies[i].rows;
    }
    own->copy_begin[1] = own->copy_count;
}

/* Whom the own kernel tells, stage by stage. */
static void find_told(struct pass_sums *own, const ffa_parallel_plan *plan,
                      const struct pass_moves *moves, bool *is_told)
{
    const struct relay_parts *parts = &plan->backward.relays.received;
    const int32_t ranks = plan->topology.rank_count;

    for (int32_t s = 0; s < ARRIVAL_STAGES_MAX; s++) {
        memset(is_told, 0, (size_t)ranks * sizeof *is_told);
        for (int64_t i = s < moves->stage_count ? moves->copy_begin[s] : 0;
             s < moves->stage_count && i < moves->copy_begin[s + 1]; i++)
            is_told[moves->copies[i].rank] = is_near(plan, moves->copies[i].rank);
        for (int64_t i = 0; i < parts->count; i++)
            if (relay_part_member(parts, &parts->at[i], plan->rank)->stage == s)
                is_told[parts->at[i].relay] = true;
        own->owner_begin[s + 1] =
            own->owner_begin[s] + take_marked(own->owners + own->owner_begin[s], is_told, ranks);
    }
    own->owner_count = own->owner_begin[ARRIVAL_STAGES_MAX];
}

static ffa_status build_own(struct relay_sums *out, const ffa_parallel_plan *plan,
                            const struct pass_moves *moves, const struct pass_sums *flat,
                            bool *is_marked, ffa_error *err)
{
    const size_t copies = (size_t)(flat->copy_count + plan->backward.relays.own.count);
    const int32_t ranks = plan->topology.rank_count;
    struct pass_sums *own = &out->own;

    own->step_count = 1;
    own->kept_rows = mem_array((size_t)ranks, sizeof *own->kept_rows);
    own->copies = mem_array(copies, sizeof *own->copies);
    own->own_rows = mem_array(copies, sizeof *own->own_rows);
    own->copy_begin = mem_array(2, sizeof *own->copy_begin);
    own->segment_begin = mem_array(2, sizeof *own->segment_begin);
    own->owners = mem_array((size_t)ranks * ARRIVAL_STAGES_MAX, sizeof *own->owners);
    own->owner_begin = mem_array(ARRIVAL_STAGES_MAX + 1, sizeof *own->owner_begin);
    if (!own->kept_rows || !own->copies || !own->own_rows || !own->copy_begin ||
        !own->segment_begin || !own->owners || !own->owner_begin)
        return error_nomem(err, "the sums of a pass");
    memcpy(own->kept_rows, flat->kept_rows, (size_t)ranks * sizeof *own->kept_rows);
    add_copies(own, plan, flat);
    find_told(own, plan, moves, is_marked);
    return pass_sums_segment(own, moves->own_rows, false, ranks, err);
}

/* Rows of a member's sums, and where they are added. */
struct addend_rows {
    int64_t row, rows, source;
    int32_t rank, step;
};

static int compare_addends(const void *left, const void *right)
{
    const struct addend_rows *a = left, *b = right;

    if (a->step != b->step)
        return a->step < b->step ? -1 : 1;
    if (a->rank != b->rank)
        return a->rank < b->rank ? -1 : 1;
    return (a->row > b->row) - (a->row < b->row);
}

/* Of the parts that this rank relays, what all other members have: sorted; how many. */
static int64_t find_addends(struct addend_rows *rows, const ffa_parallel_plan *plan)
{
    const struct relay_parts *parts = &plan->backward.relays.received;
    int64_t count = 0;

    for (int64_t i = 0; i < parts->count; i++) {
        const struct relay_part *part = &parts->at[i];
        const struct relay_member *own = relay_part_member(parts, part, plan->rank);

        for (int32_t m = 0; part->relay == plan->rank && m < part->member_count; m++) {
            const struct relay_member *member = &parts->members[part->member_begin + m];

            if (member != own)
                rows[count++] = (struct addend_rows){ own->row, part->rows, member->row,
                                                      member->rank, member->stage };
        }
    }
    if (count > 0)
        qsort(rows, (size_t)count, sizeof *rows, compare_addends);
    return count;
}

/* The next rows of an addend, or the first ones of a new one. */
static void add_addend(struct relay_sums *out, const struct addend_rows *rows)
{
    struct relay_addend *last = out->addend_count > 0 ? &out->addends[out->addend_count - 1] : NULL;
    const int64_t at = out->segment_count++;

    if (!last || last->step != rows->step || last->rank != rows->rank) {
        last = &out->addends[out->addend_count++];
        *last = (struct relay_addend){
            .first_row = rows->row, .segment_begin = at, .rank = rows->rank, .step = rows->step
        };
    }
    last->rows = rows->row + rows->rows - last->first_row;
    last->segment_end = at + 1;
    out->segments[at] = (struct row_segment){ .row = (int)(rows->row - last->first_row),
                                              .rows = (int)rows->rows,
                                              .first = (int)at,
                                              .count = 1 };
    out->sources[at] = rows->source;
}

static ffa_status build_addends(struct relay_sums *out, const ffa_parallel_plan *plan,
                                ffa_error *err)
{
    const size_t most = (size_t)plan->backward.relays.received.member_count;
    struct addend_rows *rows = mem_array(most, sizeof *rows);
    int64_t count = 0;

    out->addends = mem_array(most, sizeof *out->addends);
    out->segments = mem_array(most, sizeof *out->segments);
    out->sources = mem_array(most, sizeof *out->sources);
    if (!rows || !out->addends || !out->segments || !out->sources) {
        mem_free(rows);
        return error_nomem(err, "the sums of a pass");
    }
    if (most <= INT32_MAX)
        count = find_addends(rows, plan);
    for (int64_t i = 0; i < count; i++)
        add_addend(out, &rows[i]);
    mem_free(rows);
    return most <= INT32_MAX
               ? FFA_OK
               : error_fail(err, FFA_UNSUPPORTED, 0, "%lld parts of sums are more than 2^31 - 1",
                            (long long)most);
}

static ffa_status build_sends(struct relay_sums *out, const ffa_parallel_plan *plan,
                              const struct pass_moves *moves, ffa_error *err)
{
    const struct relay_parts *parts = &plan->backward.relays.received;
    int64_t at = 0;

    out->sends = mem_array((size_t)parts->count, sizeof *out->sends);
    out->send_begin = mem_array((size_t)moves->step_count + 1, sizeof *out->send_begin);
    if (!out->sends || !out->send_begin)
        return error_nomem(err, "the sums of a pass");
    for (int32_t step = 0; step < moves->step_count; step++) {
        for (int64_t i = 0; i < parts->count; i++)
            if (parts->at[i].relay == plan->rank && parts->at[i].last == step)
                out->sends[at++] = (struct pass_copy){
                    .from = relay_part_member(parts, &parts->at[i], plan->rank)->row,
                    .rows = parts->at[i].rows,
                    .rank = parts->at[i].owner,
                    .stage = step
                };
        out->send_begin[step + 1] = at;
    }
    return FFA_OK;
}

/* Who reads the own sum window, and whose this rank reads. */
static ffa_status find_peers(struct relay_sums *out, const ffa_parallel_plan *plan, bool *is_marked,
                             ffa_error *err)
{
    const struct pass_sums *own = &out->own;
    const int32_t ranks = plan->topology.rank_count;

    out->readers = mem_array((size_t)ranks, sizeof *out->readers);
    out->givers = mem_array((size_t)ranks, sizeof *out->givers);
    if (!out->readers || !out->givers)
        return error_nomem(err, "the sums of a pass");
    memset(is_marked, 0, (size_t)ranks * sizeof *is_marked);
    for (int32_t i = 0; i < own->owner_count; i++)
        is_marked[own->owners[i]] = own->owners[i] != plan->rank;
    out->reader_count = take_marked(out->readers, is_marked, ranks);
    memset(is_marked, 0, (size_t)ranks * sizeof *is_marked);
    for (int64_t i = 0; i < own->copy_count; i++)
        is_marked[own->copies[i].rank] = is_near(plan, own->copies[i].rank);
    for (int32_t i = 0; i < out->addend_count; i++)
        is_marked[out->addends[i].rank] = true;
    out->giver_count = take_marked(out->givers, is_marked, ranks);
    return FFA_OK;
}

ffa_status relay_sums_build(struct relay_sums *out, const ffa_parallel_plan *plan,
                            const struct pass_moves *moves, const struct pass_sums *sums,
                            ffa_error *err)
{
    bool *is_marked = mem_array((size_t)plan->topology.rank_count, sizeof *is_marked);
    ffa_status rc = FFA_OK;

    *out = (struct relay_sums){ 0 };
    if (!is_marked) {
        rc = error_nomem(err, "the sums of a pass");
        goto out;
    }
    FFA_TRY(build_own(out, plan, moves, sums, is_marked, err));
    FFA_TRY(build_addends(out, plan, err));
    FFA_TRY(build_sends(out, plan, moves, err));
    rc = find_peers(out, plan, is_marked, err);
out:
    mem_free(is_marked);
    return rc;
}
