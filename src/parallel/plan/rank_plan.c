/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa_parallel_plan_create and the facts of a plan: options are resolved (parallel_opts.c), tables
 * of all ranks are built (plan_tables.c), and this rank's phases are filled in (phases.c).
 * Invariant: the digest covers everything ranks must agree about, and nothing of this rank alone,
 * so it is the same on all ranks. A plan copies the mask's normal form and the layouts, so that it
 * outlives both, and so that it can be written to a file and planned again from there.
 */
#include "parallel/plan/rank_plan.h"

#include "mask/mask.h"
#include "parallel/plan/parallel_opts.h"
#include "parallel/plan/phases.h"

static ffa_status check_arguments(const ffa_dispatch *dispatch, const ffa_mask *mask, int32_t rank,
                                  ffa_error *err)
{
    const struct layout *keys;
    int64_t queries, key_count;

    if (!dispatch || !mask)
        return error_fail(err, FFA_INVALID, 0, "%s is NULL", dispatch ? "mask" : "dispatch");
    if (rank < 0 || rank >= dispatch->topology.rank_count)
        return error_fail(err, FFA_INVALID, 0, "rank is %d, not in [0, %d)", rank,
                          dispatch->topology.rank_count);
    keys = dispatch_key_layout(dispatch);
    queries = dispatch->layout.bounds[dispatch->layout.count];
    key_count = keys->bounds[keys->count];
    if (mask->shape.seqlen_q != queries || mask->shape.seqlen_k != key_count)
        return error_fail(err, FFA_INVALID, 0,
                          "mask has %lld queries and %lld keys, the dispatch %lld and %lld",
                          (long long)mask->shape.seqlen_q, (long long)mask->shape.seqlen_k,
                          (long long)queries, (long long)key_count);
    return FFA_OK;
}

/* ---- the digest, and facts of ranks ---- */

static void digest_cuts(struct digest *digest, const struct stage_cut *cuts, int32_t ranks)
{
    for (int32_t r = 0; cuts && r < ranks; r++) {
        digest_number(digest, cuts[r].count);
        digest_field(digest, cuts[r].ends, (size_t)cuts[r].count * sizeof *cuts[r].ends);
    }
}

static void digest_layout(struct digest *digest, const struct layout *layout)
{
    digest_field(digest, layout->bounds, ((size_t)layout->count + 1) * sizeof *layout->bounds);
    digest_field(digest, layout->rank_of, (size_t)layout->count * sizeof *layout->rank_of);
}

/* As of options that have no head_dim_v yet: it is in the digest where it is not head_dim. */
static void digest_opts(struct digest *digest, const ffa_parallel_plan_opts *opts)
{
    enum { BYTES = offsetof(ffa_parallel_plan_opts, head_dim_v) };
    ffa_parallel_plan_opts first = *opts;

    first.struct_size = BYTES;
    digest_field(digest, &first, BYTES);
    if (opts->head_dim_v != opts->model.head_dim)
        digest_number(digest, opts->head_dim_v);
    if (opts->memory_bytes)
        digest_number(digest, opts->memory_bytes);
    if (parallel_opts_have_tiles(opts)) {
        digest_text(digest, "tiles");
        digest_number(digest, opts->forward_begin_keys);
        digest_number(digest, opts->backward_begin_rows);
        digest_number(digest, opts->window_mbytes_s);
    }
}

/* Everything ranks must agree about. */
static void digest_plan(ffa_parallel_plan *plan, const struct plan_tables *w)
{
    struct digest digest;

    digest_init(&digest);
    digest_text(&digest, "ffa dist plan 1");
    digest_number(&digest, plan->topology.rank_count);
    digest_number(&digest, plan->topology.ranks_per_node);
    digest_opts(&digest, &plan->opts);
    digest_layout(&digest, &plan->queries);
    digest_layout(&digest, &plan->keys);
    digest_number(&digest, plan->keys.is_replicated);
    digest_number(&digest, plan->moves);
    for (int32_t l = 0; l < w->list_count; l++)
        digest_field(&digest, w->lists[l].at, (size_t)w->lists[l].count * sizeof *w->lists[l].at);
    digest_cuts(&digest, w->stages.forward, plan->topology.rank_count);
    digest_cuts(&digest, w->stages.backward, plan->topology.rank_count);
    digest_final(&digest, plan->digest);
}

/* Both passes together; the first of equals. */
static int32_t slowest_rank(const struct plan_tables *w, int32_t ranks)
{
    int64_t most = -1;
    int32_t slowest = 0;

    for (int32_t r = 0; r < ranks; r++) {
        const int64_t ns = stages_cost_ns(&w->stages, r);

        if (ns > most) {
            most = ns;
            slowest = r;
        }
    }
    return slowest;
}

static ffa_status find_ranks(ffa_parallel_plan *plan, const struct plan_tables *w, ffa_error *err)
{
    plan->ranks = mem_array((size_t)plan->topology.rank_count, sizeof *plan->ranks);
    if (!plan->ranks)
        return error_nomem(err, "the ranks of a plan");
    for (int32_t r = 0; r < plan->topology.rank_count; r++) {
        const struct stage_cut *forward = &w->stages.forward[r];
        const struct stage_cut none = { 0 };
        const struct stage_cut *backward = w->stages.backward ? &w->stages.backward[r] : &none;

        plan->ranks[r] = (ffa_parallel_rank){ .tokens_q = plan->queries.rank_tokens[r],
                                              .tokens_k = plan->keys.rank_tokens[r],
                                              .received_rows = w->rank_needs.rows[r],
                                              .forward_ns = forward->cost_ns,
                                              .backward_ns = backward->cost_ns,
                                              .forward_work_ns = forward->work_ns,
                                              .backward_work_ns = backward->work_ns,
                                              .forward_stages = forward->count,
                                              .backward_stages = backward->count };
    }
    return FFA_OK;
}

/* What the rank needs of its device. In rounds that of all ranks is known. */
static void find_memory(ffa_parallel_plan *plan, const struct plan_tables *w)
{
    const struct rounds *rounds = &w->stages.rounds;
    const struct rounds_input in = { &plan->queries, &plan->keys, &w->rank_needs, &plan->opts };
    const int32_t ranks = plan->topology.rank_count;
    const bool is_shared = plan->keys.is_replicated && ranks > 1;

    plan->in_rounds = rounds->stage_rows > 0;
    if (w->moves_queries)
        return;
    plan->memory = rounds_memory(
        &in, plan->rank, plan->received_rows,
        is_shared ? plan->keys.bounds[plan->keys.count] * ranks : plan->sent_rows, false);
    if (!rounds->memory)
        return;
    plan->memory = rounds->memory[plan->rank];
    for (int32_t r = 0; r < ranks; r++)
        plan->memory_most = max64(plan->memory_most, rank_memory_bytes(&rounds->memory[r]));
}

/* ---- the object ---- */

static ffa_status normal_copy(struct normal *out, const struct normal *from, ffa_error *err)
{
    *out = *from;
    out->segments = mem_array((size_t)from->segment_count, sizeof *out->segments);
    out->intervals = mem_array((size_t)from->interval_count, sizeof *out->intervals);
    if (!out->segments || !out->intervals)
        return error_nomem(err, "the mask of a plan");
    if (from->segment_count > 0)
        memcpy(out->segments, from->segments, (size_t)from->segment_count * sizeof *out->segments);
    if (from->interval_count > 0)
        memcpy(out->intervals, from->intervals,
               (size_t)from->interval_count * sizeof *out->intervals);
    return FFA_OK;
}

ffa_status rank_plan_make(ffa_parallel_plan **out, const struct rank_plan_source *source,
                          ffa_error *err)
{
    const ffa_mask *mask = source->mask;
    ffa_parallel_plan *plan = mem_array(1, sizeof *plan);
    const struct plan_tables_input in = { .topology = source->topology,
                                          .queries = source->queries,
                                          .keys = source->keys,
                                          .mask = mask,
                                          .opts = &source->opts };
    struct plan_tables tables = { 0 };
    int64_t slowest_ns;
    ffa_status rc;

    if (!plan)
        return error_nomem(err, "a plan");
    plan->references = 1;
    plan->topology = source->topology;
    plan->rank = source->rank;
    plan->opts = source->opts;
    plan->opts.flags &= PARALLEL_FLAGS_OF_PLAN;
    plan->is_outline = source->opts.flags & FFA_PARALLEL_OUTLINE;
    plan->shape = mask->shape;
    plan->normals = mem_array((size_t)mask->head_count, sizeof *plan->normals);
    if (!plan->normals) {
        rc = error_nomem(err, "the mask of a plan");
        goto out;
    }
    plan->list_count = mask->head_count;
    for (int32_t l = 0; l < mask->head_count; l++)
        FFA_TRY(normal_copy(&plan->normals[l], &mask->lists[l].normal, err));
    FFA_TRY(layout_copy(&plan->queries, source->queries, err));
    FFA_TRY(layout_copy(&plan->keys, source->keys, err));
    FFA_TRY(plan_tables_build(&tables, &in, &slowest_ns, err));
    plan->moves = tables.moves_queries ? FFA_PARALLEL_MOVE_QUERIES : FFA_PARALLEL_MOVE_KEYS;
    if (source->opts.flags & FFA_PARALLEL_SLOWEST_RANK)
        plan->rank = slowest_rank(&tables, plan->topology.rank_count);
    FFA_TRY(phases_build(plan, &tables, err));
    FFA_TRY(find_ranks(plan, &tables, err));
    plan->received_rows = tables.rank_needs.rows[plan->rank];
    find_memory(plan, &tables);
    digest_plan(plan, &tables);
    *out = plan;
    plan = NULL;
out:
    plan_tables_finish(&tables);
    ffa_parallel_plan_destroy(plan);
    return rc;
}

ffa_status ffa_parallel_plan_create(ffa_parallel_plan **out, const ffa_dispatch *dispatch,
                                    const ffa_mask *mask, int32_t rank,
                                    const ffa_parallel_plan_opts *opts, ffa_error *err)
{
    struct rank_plan_source source = { .mask = mask, .rank = rank };
    ffa_status rc;

    if (!out)
        return error_fail(err, FFA_INVALID, 0, "out is NULL");
    *out = NULL;
    FFA_TRY(check_arguments(dispatch, mask, rank, err));
    FFA_TRY(parallel_opts_resolve(&source.opts, opts, err));
    source.topology = dispatch->topology;
    source.queries = &dispatch->layout;
    source.keys = dispatch_key_layout(dispatch);
    rc = rank_plan_make(out, &source, err);
out:
    return rc;
}

void ffa_parallel_plan_destroy(ffa_parallel_plan *plan)
{
    if (!plan || __atomic_sub_fetch(&plan->references, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    phases_finish(&plan->forward, plan->list_count);
    phases_finish(&plan->backward, plan->list_count);
    for (int32_t l = 0; l < plan->list_count; l++)
        normal_finish(&plan->normals[l]);
    mem_free(plan->normals);
    mem_free(plan->ranks);
    layout_finish(&plan->queries);
    layout_finish(&plan->keys);
    mem_free(plan);
}

/* ---- facts ---- */

const char *ffa_parallel_plan_digest(const ffa_parallel_plan *plan)
{
    return plan ? plan->digest : "";
}

static int64_t compute_of(const struct plan_pass *pass)
{
    int64_t sum = 0;

    for (int32_t p = 0; p < pass->phase_count; p++)
        sum += pass->phases[p].compute_ns;
    return sum;
}

/* Bytes of a row of q or out (with an lse or delta, fp32), of `dim` columns, and of k and v
 * together, of so many bytes an element. */
static int64_t query_bytes(const ffa_parallel_plan_opts *opts, int64_t dim, int64_t element)
{
    return (int64_t)opts->model.heads_q * (dim * element + 4);
}

static int64_t key_bytes(const ffa_parallel_plan_opts *opts, int64_t element)
{
    return ((int64_t)opts->model.head_dim + opts->head_dim_v) * opts->model.heads_kv * element;
}

static int64_t scratch_bytes(const ffa_parallel_plan *plan, bool is_backward)
{
    const ffa_parallel_plan_opts *o = &plan->opts;
    const int64_t d = o->model.head_dim, dv = o->head_dim_v, bytes = o->model.element_bytes;
    const struct plan_pass *pass = is_backward ? &plan->backward : &plan->forward;
    const int64_t rows = pass->buffer_rows * plan->opts.buffers;
    const int64_t own_q = plan->queries.rank_tokens[plan->rank];
    const int64_t own_k = plan->keys.rank_tokens[plan->rank];
    const int64_t own = is_backward ? own_q * query_bytes(o, d, 4) + own_k * key_bytes(o, 4)
                                    : own_q * query_bytes(o, dv, 4);
    const int64_t dout = is_backward ? query_bytes(o, dv, bytes) : 0;

    if (pass->phase_count == 0)
        return 0;
    if (plan->moves == FFA_PARALLEL_MOVE_QUERIES)
        return own +
               rows * (query_bytes(o, d, bytes) + dout + query_bytes(o, is_backward ? d : dv, 4));
    return own + rows * (key_bytes(o, bytes) + (is_backward ? key_bytes(o, 4) : 0));
}

ffa_status ffa_parallel_plan_info_get(const ffa_parallel_plan *plan, ffa_parallel_plan_info *info,
                                      ffa_error *err)
{
    ffa_parallel_plan_info out = FFA_PARALLEL_PLAN_INFO_INIT;

    if (!plan || !info)
        return error_fail(err, FFA_INVALID, 0, "%s is NULL", plan ? "info" : "plan");
    out.rank = plan->rank;
    out.rank_count = plan->topology.rank_count;
    out.moves = plan->moves;
    out.forward_stages = plan->forward.stage_count;
    out.backward_stages = plan->backward.stage_count;
    out.steps = plan->forward.step_count > plan->backward.step_count ? plan->forward.step_count
                                                                     : plan->backward.step_count;
    out.tokens_q = plan->queries.rank_tokens[plan->rank];
    out.tokens_k = plan->keys.rank_tokens[plan->rank];
    out.area = plan->area;
    out.received_rows = plan->received_rows;
    out.sent_rows = plan->sent_rows;
    out.stage_rows = plan->forward.buffer_rows > plan->backward.buffer_rows
                         ? plan->forward.buffer_rows
                         : plan->backward.buffer_rows;
    out.forward_ns = plan->forward.cost_ns;
    out.backward_ns = plan->backward.cost_ns;
    out.forward_slowest_ns = plan->forward.slowest_ns;
    out.backward_slowest_ns = plan->backward.slowest_ns;
    out.forward_work_ns = plan->forward.work_ns;
    out.backward_work_ns = plan->backward.work_ns;
    out.forward_work_most_ns = plan->forward.work_most_ns;
    out.backward_work_most_ns = plan->backward.work_most_ns;
    out.forward_uniform_ns = plan->forward.uniform_ns;
    out.backward_uniform_ns = plan->backward.uniform_ns;
    out.forward_compute_ns = compute_of(&plan->forward);
    out.backward_compute_ns = compute_of(&plan->backward);
    out.forward_bytes = scratch_bytes(plan, false);
    out.backward_bytes = scratch_bytes(plan, true);
    out.model = plan->opts.model;
    out.head_dim_v = plan->opts.head_dim_v;
    out.rounds = plan->in_rounds ? out.steps : 1;
    out.key_bytes = plan->memory.key_bytes;
    out.sum_bytes = plan->memory.sum_bytes;
    out.received_sum_bytes = plan->memory.received_sum_bytes;
    out.workspace_bytes = plan->memory.workspace_bytes;
    out.memory_bytes = rank_memory_bytes(&plan->memory);
    out.memory_most_bytes = plan->memory_most;
    return opts_export(info, &out, sizeof out, err);
}

ffa_status ffa_parallel_plan_rank_get(const ffa_parallel_plan *plan, int32_t rank,
                                      ffa_parallel_rank *out, ffa_error *err)
{
    if (!plan || !out)
        return error_fail(err, FFA_INVALID, 0, "%s is NULL", plan ? "out" : "plan");
    if (rank < 0 || rank >= plan->topology.rank_count)
        return error_fail(err, FFA_INVALID, 0, "rank is %d, not in [0, %d)", rank,
                          plan->topology.rank_count);
    return opts_export(out, &plan->ranks[rank], sizeof *plan->ranks, err);
}

/* Those of a stage; NULL: there is none that receives. */
static const struct transfer_copies *receives_of(const ffa_parallel_plan *plan, int32_t is_backward,
                                                 int32_t stage)
{
    const struct plan_pass *pass = !plan ? NULL : is_backward ? &plan->backward : &plan->forward;

    return pass && stage > 0 && stage <= pass->stage_count ? &pass->phases[stage].receives : NULL;
}

int64_t ffa_parallel_plan_receive_count(const ffa_parallel_plan *plan, int32_t is_backward,
                                        int32_t stage)
{
    const struct transfer_copies *copies = receives_of(plan, is_backward, stage);

    return copies ? copies->count : 0;
}

ffa_status ffa_parallel_plan_receive_get(const ffa_parallel_plan *plan, int32_t is_backward,
                                         int32_t stage, int64_t index, ffa_parallel_receive *out,
                                         ffa_error *err)
{
    const struct transfer_copies *copies = receives_of(plan, is_backward, stage);
    ffa_parallel_receive receive = FFA_PARALLEL_RECEIVE_INIT;

    if (!plan || !out)
        return error_fail(err, FFA_INVALID, 0, "%s is NULL", plan ? "out" : "plan");
    if (!copies || index < 0 || index >= copies->count)
        return error_fail(err, FFA_INVALID, 0, "index is %lld, stage %d receives %lld runs of rows",
                          (long long)index, stage, (long long)(copies ? copies->count : 0));
    receive.source = copies->at[index].source;
    receive.source_row = copies->at[index].source_row;
    receive.row = copies->at[index].row;
    receive.rows = copies->at[index].rows;
    return opts_export(out, &receive, sizeof receive, err);
}

/* ---- the timeline ---- */

/* Everything is behind the copy into the window. */
static void times_shift(struct overlap_times *times, const struct plan_pass *pass)
{
    for (int32_t s = 0; s <= pass->stage_count; s++) {
        times[s].fetch_begin += pass->copy_ns;
        times[s].fetch_end += pass->copy_ns;
        times[s].compute_begin += pass->copy_ns;
        times[s].compute_end += pass->copy_ns;
        times[s].reduce_begin += pass->copy_ns;
        times[s].reduce_end += pass->copy_ns;
    }
}

/* Forward, of a pass that is one launch: the last stage ends with the pass. What the first wave
 * waits for and the last one leaves idle is drawn there. */
static void times_stretch(struct overlap_times *times, const struct plan_pass *pass)
{
    struct overlap_times *last = &times[pass->stage_count];

    last->compute_end = max64(last->compute_begin, pass->cost_ns);
    last->reduce_begin = last->reduce_end = last->compute_end;
}

void rank_plan_times(struct overlap_times *times, const ffa_parallel_plan *plan, bool is_backward)
{
    const struct plan_pass *pass = is_backward ? &plan->backward : &plan->forward;
    struct overlap_item items[OVERLAP_STAGES_MAX] = { { 0 } };
    struct overlap_input in = { .items = items,
                                .count = pass->stage_count,
                                .buffers = plan->opts.buffers,
                                .is_backward = is_backward && !plan->in_rounds };
    struct overlap_split split = { .count = pass->stage_count };

    in.own = pass->phases[0].compute_ns;
    if (is_backward)
        in.own += pass->phases[pass->phase_count - 1].compute_ns;
    for (int32_t s = 0; s < pass->stage_count; s++) {
        const struct plan_phase *phase = &pass->phases[s + 1];

        items[s] = (struct overlap_item){ .fetch = phase->fetch_ns,
                                          .compute = phase->compute_ns,
                                          .reduce = phase->reduce_ns };
        in.has_reduce = in.has_reduce || phase->reduce_ns > 0;
        split.ends[s] = s + 1;
    }
    (void)overlap_cost(&in, &split, times);
    times_shift(times, pass);
    if (is_backward) { /* the rest of the own part, behind the last stage */
        const int64_t begin = times[pass->stage_count].compute_end;
        const int64_t end =
            begin + in.own - (times[0].compute_end - pass->copy_ns); /* in rounds: nothing */

        times[pass->phase_count - 1] = (struct overlap_times){ begin, begin, begin, end, end, end };
    } else if (plan->opts.sms && !plan->in_rounds && plan->moves == FFA_PARALLEL_MOVE_KEYS) {
        times_stretch(times, pass);
    }
}

ffa_status ffa_parallel_plan_stage_get(const ffa_parallel_plan *plan, int32_t is_backward,
                                       int32_t stage, ffa_parallel_stage *out, ffa_error *err)
{
    struct overlap_times times[OVERLAP_STAGES_MAX + 2];
    const struct plan_pass *pass;
    const struct plan_phase *phase;
    ffa_parallel_stage made;

    if (!plan || !out)
        return error_fail(err, FFA_INVALID, 0, "%s is NULL", plan ? "out" : "plan");
    if (is_backward != 0 && is_backward != 1)
        return error_fail(err, FFA_INVALID, 0, "is_backward is %d, not 0 or 1", is_backward);
    pass = is_backward ? &plan->backward : &plan->forward;
    if (stage < 0 || stage >= pass->phase_count)
        return error_fail(err, FFA_INVALID, 0, "stage is %d, not in [0, %d)", stage,
                          pass->phase_count);
    rank_plan_times(times, plan, is_backward);
    phase = &pass->phases[stage];
    made = (ffa_parallel_stage){ .rows = stage > 0 && stage <= pass->stage_count ? phase->rows : 0,
                                 .blocks = is_backward ? phase->key_tiles.block_count
                                                       : phase->tiles.block_count,
                                 .fetch_begin_ns = times[stage].fetch_begin,
                                 .fetch_end_ns = times[stage].fetch_end,
                                 .compute_begin_ns = times[stage].compute_begin,
                                 .compute_end_ns = times[stage].compute_end,
                                 .reduce_begin_ns = times[stage].reduce_begin,
                                 .reduce_end_ns = times[stage].reduce_end };
    return opts_export(out, &made, sizeof made, err);
}
