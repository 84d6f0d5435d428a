/* SPDX-License-Identifier: Apache-2.0
 *
 * pass_moves_build and pass_sums_build. Invariant: what a rank pulls, and what it adds up, follows
 * from its own plan: `receives` says where its keys come from, `sends` who has its keys, and
 * `stage_begins` where they lie there. Sums are added by ascending rank, so that a result does not
 * depend on when they came. Trick: a row goes to a rank once, so the copies that cover a row are
 * of different ranks, and in the order of ranks they are the order of its sum.
 */
#include "parallel/device/pass_tables.h"

#include <stdlib.h>

void pass_moves_finish(struct pass_moves *moves)
{
    mem_free(moves->copies);
    mem_free(moves->sends);
    mem_free(moves->sources);
    mem_free(moves->readers);
    *moves = (struct pass_moves){ 0 };
}

void pass_sums_finish(struct pass_sums *sums)
{
    mem_free(sums->copies);
    mem_free(sums->segments);
    mem_free(sums->received);
    mem_free(sums->owners);
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
    if (out->step_count > ARRIVAL_STAGES_MAX)
        return error_fail(err, FFA_UNSUPPORTED, 0, "the plan has %d stages, a pass has %d at most",
                          pass->step_count, ARRIVAL_STAGES_MAX - 1);
    out->sends = mem_array((size_t)count_sends(pass), sizeof *out->sends);
    if (!out->sends)
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

ffa_status pass_moves_build(struct pass_moves *out, const ffa_parallel_plan *plan, bool is_backward,
                            ffa_error *err)
{
    const struct plan_pass *pass = is_backward ? &plan->backward : &plan->forward;
    const size_t ranks = (size_t)plan->topology.rank_count;
    bool *is_known = mem_array(2 * ranks, sizeof *is_known);
    int64_t copies = 0;
    ffa_status rc = FFA_OK;

    *out = (struct pass_moves){ .stage_count = pass->stage_count + 1,
                                .own_rows = plan->keys.rank_tokens[plan->rank] };
    for (int32_t s = 1; s <= pass->stage_count; s++)
        copies += pass->phases[s].receives.count;
    out->copies = mem_array((size_t)copies, sizeof *out->copies);
    out->sources = mem_array(ranks, sizeof *out->sources);
    out->readers = mem_array(ranks, sizeof *out->readers);
    if (!is_known || !out->copies || !out->sources || !out->readers) {
        rc = error_nomem(err, "the moves of a pass");
        goto out;
    }
    out->window_rows = out->own_rows;
    for (int32_t s = 1; s <= pass->stage_count; s++) {
        add_copies(out, plan, &pass->phases[s].receives, out->window_rows, s);
        add_sources(out, is_known, s);
        out->window_rows += pass->phases[s].rows;
    }
    find_readers(out, pass, is_known + ranks, (int32_t)ranks);
    rc = add_sends(out, plan, pass, err);
out:
    mem_free(is_known);
    return rc;
}

/* ---- sums that come ---- */

/* own_rows [copies]: of the own keys, the first row of each copy. */
static void add_sums(struct pass_sums *out, const ffa_parallel_plan *plan, int64_t *own_rows)
{
    const struct plan_pass *pass = &plan->backward;
    const int32_t ranks = plan->topology.rank_count;

    for (int32_t s = 0; s < pass->step_count; s++)
        for (int32_t d = 0; d < ranks; d++)
            for (int64_t i = 0; i < pass->sends[s].count; i++) {
                const struct transfer_copy *send = &pass->sends[s].at[i];
                const int64_t begin =
                    pass->stage_begins[(int64_t)send->source * pass->step_count + s];

                if (distance(plan, send->source) != d)
                    continue;
                own_rows[out->copy_count] = send->source_row;
                out->copies[out->copy_count++] = (struct pass_copy){
                    .from = plan->keys.rank_tokens[send->source] + begin + send->row,
                    .to = out->received_rows,
                    .rows = send->rows,
                    .rank = send->source,
                    .stage = s + 1,
                };
                out->received_rows += send->rows;
            }
}

static int compare_rows(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

/* Where the sums of own keys change: ends [count], sorted, each once, from 0 to the own rows. */
static int64_t find_ends(int64_t *ends, const struct pass_sums *sums, const int64_t *own_rows,
                         int64_t own)
{
    int64_t count = 0, kept = 0;

    ends[count++] = 0;
    ends[count++] = own;
    for (int64_t i = 0; i < sums->copy_count; i++) {
        ends[count++] = own_rows[i];
        ends[count++] = own_rows[i] + sums->copies[i].rows;
    }
    qsort(ends, (size_t)count, sizeof *ends, compare_rows);
    for (int64_t i = 0; i < count; i++)
        if (kept == 0 || ends[i] != ends[kept - 1])
            ends[kept++] = ends[i];
    return kept;
}

static int64_t segment_of(const struct pass_sums *sums, int64_t row)
{
    int64_t low = 0, high = sums->segment_count;

    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;

        if (sums->segments[middle].row <= row)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Each segment's received rows: counted, then placed, rank after rank. */
static ffa_status place_received(struct pass_sums *out, const int64_t *own_rows, int32_t ranks,
                                 ffa_error *err)
{
    int64_t first = 0;

    for (int64_t i = 0; i < out->copy_count; i++)
        for (int64_t s = segment_of(out, own_rows[i]);
             s < out->segment_count && out->segments[s].row < own_rows[i] + out->copies[i].rows;
             s++)
            out->segments[s].count++;
    for (int64_t s = 0; s < out->segment_count; s++) {
        out->segments[s].first = (int)first;
        first += out->segments[s].count;
        out->segments[s].count = 0;
    }
    if (first > INT32_MAX)
        return error_fail(err, FFA_UNSUPPORTED, 0, "%lld parts of sums are more than 2^31 - 1",
                          (long long)first);
    out->received_count = first;
    out->received = mem_array((size_t)first, sizeof *out->received);
    if (!out->received)
        return error_nomem(err, "the sums of a pass");
    for (int32_t r = 0; r < ranks; r++)
        for (int64_t i = 0; i < out->copy_count; i++) {
            const struct pass_copy *copy = &out->copies[i];

            for (int64_t s = segment_of(out, own_rows[i]);
                 copy->rank == r && s < out->segment_count &&
                 out->segments[s].row < own_rows[i] + copy->rows;
                 s++) {
                struct row_segment *segment = &out->segments[s];

                out->received[segment->first + segment->count++] =
                    copy->to + segment->row - own_rows[i];
            }
        }
    return FFA_OK;
}

static ffa_status build_segments(struct pass_sums *out, const int64_t *own_rows, int64_t own,
                                 int32_t ranks, ffa_error *err)
{
    int64_t *ends = mem_array((size_t)(2 * out->copy_count + 2), sizeof *ends);
    int64_t count;
    ffa_status rc = FFA_OK;

    if (!ends) {
        rc = error_nomem(err, "the sums of a pass");
        goto out;
    }
    count = find_ends(ends, out, own_rows, own) - 1;
    out->segments = mem_array((size_t)count, sizeof *out->segments);
    if (!out->segments) {
        rc = error_nomem(err, "the sums of a pass");
        goto out;
    }
    out->segment_count = count;
    for (int64_t s = 0; s < count; s++)
        out->segments[s] =
            (struct row_segment){ .row = (int)ends[s], .rows = (int)(ends[s + 1] - ends[s]) };
    rc = place_received(out, own_rows, ranks, err);
out:
    mem_free(ends);
    return rc;
}

/* Whose keys each stage has, from the copies that brought them. */
static ffa_status find_owners(struct pass_sums *out, const struct pass_moves *moves, int32_t ranks,
                              ffa_error *err)
{
    bool *is_owner = mem_array((size_t)ranks, sizeof *is_owner);
    int32_t count = 0;

    out->owners = mem_array((size_t)ranks * (size_t)moves->stage_count, sizeof *out->owners);
    if (!is_owner || !out->owners) {
        mem_free(is_owner);
        return error_nomem(err, "the sums of a pass");
    }
    for (int32_t s = 0; s < ARRIVAL_STAGES_MAX; s++) {
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
    out->owner_begin[ARRIVAL_STAGES_MAX] = count;
    mem_free(is_owner);
    return FFA_OK;
}

/* Rank r's sums of all keys are the received rows [r * keys, + keys): those of rank 0 take the
 * place of own sums, the others are the sources of the only segment. */
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
    if (!out->copies || !out->segments || !out->received || !out->peers)
        return error_nomem(err, "the sums of a pass");
    for (int32_t d = 0; d < ranks; d++) { /* the next rank first, the own one last */
        const int32_t r = (plan->rank + 1 + d) % ranks;

        out->copies[d] = (struct pass_copy){ .to = r * keys, .rows = keys, .rank = r };
        if (r != plan->rank)
            out->peers[out->peer_count++] = r;
    }
    for (int32_t r = 1; r < ranks; r++)
        out->received[r - 1] = r * keys;
    out->segments[0] = (struct row_segment){ .rows = (int)keys, .count = ranks - 1 };
    out->segment_count = 1;
    out->copy_count = ranks;
    out->received_rows = ranks * keys;
    out->received_count = ranks - 1;
    return FFA_OK;
}

ffa_status pass_sums_build(struct pass_sums *out, const ffa_parallel_plan *plan,
                           const struct pass_moves *moves, ffa_error *err)
{
    const int64_t copies = count_sends(&plan->backward);
    int64_t *own_rows;
    ffa_status rc;

    *out = (struct pass_sums){ 0 };
    if (plan->keys.is_replicated && plan->topology.rank_count > 1 && moves->own_rows > 0)
        return build_replicated(out, plan, moves, err);
    own_rows = mem_array((size_t)copies, sizeof *own_rows);
    out->copies = mem_array((size_t)copies, sizeof *out->copies);
    if (!own_rows || !out->copies) {
        rc = error_nomem(err, "the sums of a pass");
        goto out;
    }
    add_sums(out, plan, own_rows);
    FFA_TRY(build_segments(out, own_rows, moves->own_rows, plan->topology.rank_count, err));
    rc = find_owners(out, moves, plan->topology.rank_count, err);
out:
    mem_free(own_rows);
    return rc;
}
