/* SPDX-License-Identifier: Apache-2.0
 *
 * pass_moves_build and pass_sums_build. Invariant: what a rank pulls, and what it adds up, follows
 * from its own plan: `receives` says where its keys come from, `sends` who has its keys, and
 * `stage_begins` where they lie there. Sums are added by ascending rank, so that a result does not
 * depend on when they came. Trick: a row goes to a rank once, so the copies that cover a row are
 * of different ranks, and in the order of ranks they are the order of its sum.
 */
#include "parallel/device/pass_tables.h"

#include "parallel/plan/rank_plan_local.h"

#include <stdlib.h>

/* Of what moves. */
static const struct layout *moving(const ffa_parallel_plan *plan)
{
    return plan->moves == FFA_PARALLEL_MOVE_QUERIES ? &plan->queries : &plan->keys;
}

void pass_moves_finish(struct pass_moves *moves)
{
    mem_free(moves->stage_rows);
    mem_free(moves->copy_begin);
    mem_free(moves->source_begin);
    mem_free(moves->copies);
    mem_free(moves->sends);
    mem_free(moves->send_begin);
    mem_free(moves->sources);
    mem_free(moves->readers);
    *moves = (struct pass_moves){ 0 };
}

void pass_sums_finish(struct pass_sums *sums)
{
    mem_free(sums->kept_rows);
    mem_free(sums->copies);
    mem_free(sums->own_rows);
    mem_free(sums->segments);
    mem_free(sums->received);
    mem_free(sums->copy_begin);
    mem_free(sums->segment_begin);
    mem_free(sums->owners);
    mem_free(sums->owner_begin);
    mem_free(sums->peers);
    *sums = (struct pass_sums){ 0 };
}

/* How far after this rank another one stands: all ranks begin with different ones. */
static int32_t distance(const ffa_parallel_plan *plan, int32_t rank)
{
    const int32_t ranks = plan->topology.rank_count;

    return (rank - plan->rank - 1 + ranks) % ranks;
}

/* ---- keys that come ---- */

/* The copies of a stage, those of the next rank first. */
static void add_copies(struct pass_moves *out, const ffa_parallel_plan *plan,
                       const struct transfer_copies *receives, int64_t row, int32_t stage)
{
    const int32_t ranks = plan->topology.rank_count;
    int64_t at = out->copy_begin[stage];

    for (int32_t d = 0; d < ranks; d++)
        for (int64_t i = 0; i < receives->count; i++)
            if (distance(plan, receives->at[i].source) == d)
                out->copies[at++] = (struct pass_copy){ .from = receives->at[i].source_row,
                                                        .to = row + receives->at[i].row,
                                                        .rows = receives->at[i].rows,
                                                        .rank = receives->at[i].source,
                                                        .stage = stage };
    out->copy_begin[stage + 1] = at;
}

/* The ranks that a stage is the first to need. */
static void add_sources(struct pass_moves *out, bool *is_known, int32_t stage)
{
    int32_t count = out->source_begin[stage];

    for (int64_t i = out->copy_begin[stage]; i < out->copy_begin[stage + 1]; i++) {
        const int32_t rank = out->copies[i].rank;

        if (is_known[rank])
            continue;
        is_known[rank] = true;
        out->sources[count++] = rank;
    }
    out->source_begin[stage + 1] = count;
}

static int64_t count_sends(const struct plan_pass *pass)
{
    int64_t count = 0;

    for (int32_t s = 0; s < pass->step_count; s++)
        count += pass->sends[s].count;
    return count;
}

static ffa_status add_sends(struct pass_moves *out, const ffa_parallel_plan *plan,
                            const struct plan_pass *pass, ffa_error *err)
{
    const int32_t ranks = plan->topology.rank_count;
    int64_t at = 0;

    out->step_count = pass->step_count + 1;
    if (out->step_count > ARRIVAL_STAGES_MAX && !plan->in_rounds)
        return error_fail(err, FFA_UNSUPPORTED, 0, "the plan has %d stages, a pass has %d at most",
                          pass->step_count, ARRIVAL_STAGES_MAX - 1);
    out->sends = mem_array((size_t)count_sends(pass), sizeof *out->sends);
    out->send_begin = mem_array((size_t)out->step_count + 1, sizeof *out->send_begin);
    if (!out->sends || !out->send_begin)
        return error_nomem(err, "the moves of a pass");
    for (int32_t s = 0; s < pass->step_count; s++) {
        for (int32_t d = 0; d < ranks; d++)
            for (int64_t i = 0; i < pass->sends[s].count; i++) {
                const struct transfer_copy *send = &pass->sends[s].at[i];

                if (distance(plan, send->source) == d)
                    out->sends[at++] = (struct pass_copy){ .from = send->source_row,
                                                           .rows = send->rows,
                                                           .rank = send->source,
                                                           .stage = s + 1 };
            }
        out->send_begin[s + 2] = at;
    }
    return FFA_OK;
}

static void find_readers(struct pass_moves *out, const struct plan_pass *pass, bool *is_reader,
                         int32_t ranks)
{
    for (int32_t s = 0; s < pass->step_count; s++)
        for (int64_t i = 0; i < pass->sends[s].count; i++)
            is_reader[pass->sends[s].at[i].source] = true;
    for (int32_t r = 0; r < ranks; r++)
        if (is_reader[r])
            out->readers[out->reader_count++] = r;
}

static int32_t most_rounds(const ffa_parallel_plan *plan)
{
    const int32_t most = plan->forward.step_count > plan->backward.step_count
                             ? plan->forward.step_count
                             : plan->backward.step_count;

    return most > 1 ? most : 1;
}

ffa_status pass_moves_build(struct pass_moves *out, const ffa_parallel_plan *plan, bool is_backward,
                            ffa_error *err)
{
    const struct plan_pass *pass = is_backward ? &plan->backward : &plan->forward;
    const size_t ranks = (size_t)plan->topology.rank_count;
    bool *is_known = mem_array(2 * ranks, sizeof *is_known);
    int64_t copies = 0;
    ffa_status rc = FFA_OK;

    *out = (struct pass_moves){ .stage_count = pass->stage_count + 1,
                                .own_rows = moving(plan)->rank_tokens[plan->rank],
                                .in_rounds = plan->in_rounds,
                                .round_count = rank_plan_rounds(plan, is_backward),
                                .round_most = plan->in_rounds ? most_rounds(plan) : 1 };
    for (int32_t s = 1; s <= pass->stage_count; s++)
        copies += pass->phases[s].receives.count;
    out->stage_rows = mem_array((size_t)out->stage_count, sizeof *out->stage_rows);
    out->copy_begin = mem_array((size_t)out->stage_count + 1, sizeof *out->copy_begin);
    out->source_begin = mem_array((size_t)out->stage_count + 1, sizeof *out->source_begin);
    out->copies = mem_array((size_t)copies, sizeof *out->copies);
    out->sources = mem_array(ranks, sizeof *out->sources);
    out->readers = mem_array(ranks, sizeof *out->readers);
    if (!is_known || !out->stage_rows || !out->copy_begin || !out->source_begin || !out->copies ||
        !out->sources || !out->readers) {
        rc = error_nomem(err, "the moves of a pass");
        goto out;
    }
    out->window_rows = out->own_rows;
    for (int32_t s = 1; s <= pass->stage_count; s++) {
        out->stage_rows[s] =
            out->in_rounds ? out->own_rows + (s - 1) % 2 * pass->half_rows : out->window_rows;
        add_copies(out, plan, &pass->phases[s].receives, out->stage_rows[s], s);
        add_sources(out, is_known, s);
        out->window_rows = max64(out->window_rows, out->stage_rows[s] + pass->phases[s].rows);
    }
    if (out->round_count > 1)
        out->window_rows = out->own_rows + 2 * pass->half_rows;
    find_readers(out, pass, is_known + ranks, (int32_t)ranks);
    rc = add_sends(out, plan, pass, err);
out:
    mem_free(is_known);
    return rc;
}

/* ---- sums that come ---- */

/* Received rows lie one after the other, those of a step in rounds from 0 on. */
static void add_sums(struct pass_sums *out, const ffa_parallel_plan *plan,
                     const struct plan_pass *pass)
{
    const int32_t ranks = plan->topology.rank_count;
    int64_t to = 0;

    for (int32_t s = 0; s < pass->step_count; s++) {
        to = plan->in_rounds ? 0 : to;
        for (int32_t d = 0; d < ranks; d++)
            for (int64_t i = 0; i < pass->sends[s].count; i++) {
                const struct transfer_copy *send = &pass->sends[s].at[i];
                const int64_t begin =
                    pass->stage_begins[(int64_t)send->source * pass->step_count + s];

                if (distance(plan, send->source) != d)
                    continue;
                out->own_rows[out->copy_count] = send->source_row;
                out->copies[out->copy_count++] = (struct pass_copy){
                    .from = begin + send->row,
                    .to = to,
                    .rows = send->rows,
                    .rank = send->source,
                    .stage = s + 1,
                };
                to += send->rows;
            }
        out->received_rows = max64(out->received_rows, to);
        out->copy_begin[plan->in_rounds ? s + 1 : 1] = out->copy_count;
    }
}

/* The segments and received rows of one step. */
struct step {
    const struct pass_copy *copies; /* [copy_count] */
    const int64_t *own_rows;        /* of each copy */
    int64_t copy_count;
    struct row_segment *segments;
    int64_t segment_count;
};

/* Where the sums of own keys change: ends [count], sorted, each once, from 0 to the own rows. */
static int64_t find_ends(int64_t *ends, const struct step *step, int64_t own)
{
    int64_t count = 0, kept = 0;

    ends[count++] = 0;
    ends[count++] = own;
    for (int64_t i = 0; i < step->copy_count; i++) {
        ends[count++] = step->own_rows[i];
        ends[count++] = step->own_rows[i] + step->copies[i].rows;
    }
    qsort(ends, (size_t)count, sizeof *ends, compare64);
    for (int64_t i = 0; i < count; i++)
        if (kept == 0 || ends[i] != ends[kept - 1])
            ends[kept++] = ends[i];
    return kept;
}

static int64_t segment_of(const struct step *step, int64_t row)
{
    int64_t low = 0, high = step->segment_count;

    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;

        if (step->segments[middle].row <= row)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static bool is_in(const struct step *step, int64_t copy, int64_t segment)
{
    return segment < step->segment_count &&
           step->segments[segment].row < step->own_rows[copy] + step->copies[copy].rows;
}

/* The first segment behind each: how many received rows it has. */
static ffa_status count_received(struct step *step, int64_t *first, ffa_error *err)
{
    for (int64_t i = 0; i < step->copy_count; i++)
        for (int64_t s = segment_of(step, step->own_rows[i]); is_in(step, i, s); s++)
            step->segments[s].count++;
    for (int64_t s = 0; s < step->segment_count; s++) {
        if (*first + step->segments[s].count > INT32_MAX)
            return error_fail(err, FFA_UNSUPPORTED, 0, "%lld parts of sums are more than 2^31 - 1",
                              (long long)(*first + step->segments[s].count));
        step->segments[s].first = (int)*first;
        *first += step->segments[s].count;
        step->segments[s].count = 0;
    }
    return FFA_OK;
}

/* Each segment's received rows, rank after rank. */
static void place_received(const struct step *step, int64_t *received, int32_t ranks)
{
    for (int32_t r = 0; r < ranks; r++)
        for (int64_t i = 0; i < step->copy_count; i++)
            for (int64_t s = segment_of(step, step->own_rows[i]);
                 step->copies[i].rank == r && is_in(step, i, s); s++) {
                struct row_segment *segment = &step->segments[s];

                received[segment->first + segment->count++] =
                    step->copies[i].to + segment->row - step->own_rows[i];
            }
}

static struct step step_of(const struct pass_sums *sums, int32_t step)
{
    const int64_t first = sums->copy_begin[step];

    return (struct step){ .copies = sums->copies + first,
                          .own_rows = sums->own_rows + first,
                          .copy_count = sums->copy_begin[step + 1] - first,
                          .segments = sums->segments + sums->segment_begin[step],
                          .segment_count =
                              sums->segment_begin[step + 1] - sums->segment_begin[step] };
}

/* Segments that nobody summed anything of in their step go. */
static void drop_empty(struct pass_sums *out)
{
    int64_t at = 0, kept = 0;

    for (int32_t t = 0; t < out->step_count; t++) {
        for (; at < out->segment_begin[t + 1]; at++)
            if (out->segments[at].count > 0)
                out->segments[kept++] = out->segments[at];
        out->segment_begin[t + 1] = kept;
    }
}

static ffa_status build_step(struct pass_sums *out, int64_t own, int64_t *ends, int32_t step,
                             ffa_error *err)
{
    struct step of;
    int64_t count;

    out->segment_begin[step + 1] = out->segment_begin[step];
    of = step_of(out, step);
    count = find_ends(ends, &of, own) - 1;
    for (int64_t s = 0; s < count; s++)
        of.segments[s] =
            (struct row_segment){ .row = (int)ends[s], .rows = (int)(ends[s + 1] - ends[s]) };
    of.segment_count = count;
    out->segment_begin[step + 1] += count;
    return count_received(&of, &out->received_count, err);
}

ffa_status pass_sums_segment(struct pass_sums *out, int64_t own, bool in_rounds, int32_t ranks,
                             ffa_error *err)
{
    const size_t most = (size_t)(2 * out->copy_count + 2 * out->step_count);
    int64_t *ends = mem_array(most, sizeof *ends);
    ffa_status rc = FFA_OK;

    out->segments = mem_array(most, sizeof *out->segments);
    if (!ends || !out->segments) {
        rc = error_nomem(err, "the sums of a pass");
        goto out;
    }
    for (int32_t t = 0; t < out->step_count; t++)
        FFA_TRY(build_step(out, own, ends, t, err));
    out->received = mem_array((size_t)out->received_count, sizeof *out->received);
    if (!out->received) {
        rc = error_nomem(err, "the sums of a pass");
        goto out;
    }
    for (int32_t t = 0; t < out->step_count; t++) {
        const struct step of = step_of(out, t);

        place_received(&of, out->received, ranks);
    }
    if (in_rounds)
        drop_empty(out);
    out->segment_count = out->segment_begin[out->step_count];
out:
    mem_free(ends);
    return rc;
}

/* Whose keys each stage has, from the copies that brought them. */
static ffa_status find_owners(struct pass_sums *out, const struct pass_moves *moves, int32_t ranks,
                              ffa_error *err)
{
    const int32_t most =
        moves->stage_count > ARRIVAL_STAGES_MAX ? moves->stage_count : ARRIVAL_STAGES_MAX;
    bool *is_owner = mem_array((size_t)ranks, sizeof *is_owner);
    int32_t count = 0;

    out->owners = mem_array((size_t)ranks * (size_t)moves->stage_count, sizeof *out->owners);
    out->owner_begin = mem_array((size_t)most + 1, sizeof *out->owner_begin);
    if (!is_owner || !out->owners || !out->owner_begin) {
        mem_free(is_owner);
        return error_nomem(err, "the sums of a pass");
    }
    for (int32_t s = 0; s < most; s++) {
        out->owner_begin[s] = count;
        if (s >= moves->stage_count)
            continue;
        memset(is_owner, 0, (size_t)ranks * sizeof *is_owner);
        for (int64_t i = moves->copy_begin[s]; i < moves->copy_begin[s + 1]; i++)
            is_owner[moves->copies[i].rank] = true;
        for (int32_t r = 0; r < ranks; r++)
            if (is_owner[r])
                out->owners[count++] = r;
    }
    out->owner_begin[most] = out->owner_count = count;
    mem_free(is_owner);
    return FFA_OK;
}

/* Rank r's sums of all keys are the received rows [r * keys, + keys), and all of them are the
 * sources of the only segment: there are no own ones. */
static ffa_status build_replicated(struct pass_sums *out, const ffa_parallel_plan *plan,
                                   const struct pass_moves *moves, ffa_error *err)
{
    const int32_t ranks = plan->topology.rank_count;
    const int64_t keys = moves->own_rows;

    out->is_replicated = true;
    out->copies = mem_array((size_t)ranks, sizeof *out->copies);
    out->segments = mem_array(1, sizeof *out->segments);
    out->received = mem_array((size_t)ranks, sizeof *out->received);
    out->peers = mem_array((size_t)ranks, sizeof *out->peers);
    out->owner_begin = mem_array(ARRIVAL_STAGES_MAX + 1, sizeof *out->owner_begin);
    if (!out->copies || !out->segments || !out->received || !out->peers || !out->owner_begin)
        return error_nomem(err, "the sums of a pass");
    for (int32_t d = 0; d < ranks; d++) { /* the next rank first, the own one last */
        const int32_t r = (plan->rank + 1 + d) % ranks;

        out->copies[d] = (struct pass_copy){ .to = r * keys, .rows = keys, .rank = r };
        if (r != plan->rank)
            out->peers[out->peer_count++] = r;
    }
    for (int32_t r = 0; r < ranks; r++)
        out->received[r] = r * keys;
    out->segments[0] = (struct row_segment){ .rows = (int)keys, .count = ranks };
    out->segment_count = out->segment_begin[1] = 1;
    out->copy_count = out->copy_begin[1] = ranks;
    out->received_rows = ranks * keys;
    out->received_count = ranks;
    return FFA_OK;
}

ffa_status pass_sums_build(struct pass_sums *out, const ffa_parallel_plan *plan,
                           const struct pass_moves *moves, bool is_backward, ffa_error *err)
{
    const struct plan_pass *pass = is_backward ? &plan->backward : &plan->forward;
    const size_t copies = (size_t)count_sends(pass), ranks = (size_t)plan->topology.rank_count;
    ffa_status rc;

    *out = (struct pass_sums){ .step_count = moves->round_most };
    out->kept_rows = mem_array(ranks, sizeof *out->kept_rows);
    out->copy_begin = mem_array((size_t)out->step_count + 1, sizeof *out->copy_begin);
    out->segment_begin = mem_array((size_t)out->step_count + 1, sizeof *out->segment_begin);
    if (!out->kept_rows || !out->copy_begin || !out->segment_begin)
        return error_nomem(err, "the sums of a pass");
    if (plan->keys.is_replicated && ranks > 1 && moves->own_rows > 0)
        return build_replicated(out, plan, moves, err);
    memcpy(out->kept_rows, moving(plan)->rank_tokens, ranks * sizeof *out->kept_rows);
    out->copies = mem_array(copies, sizeof *out->copies);
    out->own_rows = mem_array(copies, sizeof *out->own_rows);
    if (!out->copies || !out->own_rows)
        return error_nomem(err, "the sums of a pass");
    add_sums(out, plan, pass);
    FFA_TRY(pass_sums_segment(out, moves->own_rows, plan->in_rounds, (int32_t)ranks, err));
    rc = find_owners(out, moves, plan->topology.rank_count, err);
out:
    return rc;
}
