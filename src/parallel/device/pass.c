/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa_parallel_pass: what a rank's plan becomes for the kernels of a device. Invariant: it depends
 * on plan and kernels alone, on no communicator and no address, so making one needs no other rank.
 * Trick: the keys of a pass are one sequence to its kernel, the rank's own and then what arrives,
 * so each pass is an ordinary plan over a mask of the rank's own (arriving.h).
 */
#include "parallel/device/pass_totals.h"

#include "attention/attention.h"
#include "parallel/plan/rank_plan_local.h"

/* ---- the plans ---- */

static void plans_finish(struct pass_plans *plans)
{
    for (int32_t r = 0; plans->at && r < plans->count; r++)
        ffa_plan_destroy(plans->at[r]);
    mem_free(plans->at);
    mem_free(plans->bytes);
    *plans = (struct pass_plans){ 0 };
}

static struct arriving_keys keys_of(const struct rank_local *local)
{
    return (struct arriving_keys){ .shape = local->shape,
                                   .lists = local->lists,
                                   .list_count = local->list_count,
                                   .stage_count = local->stage_count,
                                   .stage_ends = local->stage_ends,
                                   .first = (const int64_t(*)[2])local->first,
                                   .first_count = local->first_count,
                                   .first_share = local->first_share };
}

static int32_t launches_of(const ffa_parallel_plan *plan, bool is_backward)
{
    if (plan->moves != FFA_PARALLEL_MOVE_QUERIES)
        return rank_plan_rounds(plan, is_backward);
    return 1 + (is_backward ? plan->backward.stage_count : plan->forward.stage_count);
}

static ffa_status make_plans(struct pass_plans *out, const ffa_parallel_plan *plan,
                             const ffa_kernels *kernels, bool is_backward, ffa_error *err)
{
    const bool moves_queries = plan->moves == FFA_PARALLEL_MOVE_QUERIES;
    const int32_t count = launches_of(plan, is_backward);
    struct rank_local *locals = mem_array((size_t)count, sizeof *locals);
    struct arriving_keys *keys = mem_array((size_t)count, sizeof *keys);
    ffa_status rc = FFA_OK;

    out->at = mem_array((size_t)count, sizeof *out->at);
    out->bytes = mem_array((size_t)count, sizeof *out->bytes);
    if (!locals || !keys || !out->at || !out->bytes) {
        rc = error_nomem(err, "the rounds of a pass");
        goto out;
    }
    for (int32_t r = 0; r < count; r++) {
        FFA_TRY(moves_queries ? rank_plan_moved(&locals[r], plan, is_backward, r, err)
                              : rank_plan_round(&locals[r], plan, is_backward, r, err));
        keys[r] = keys_of(&locals[r]);
    }
    FFA_TRY(moves_queries ? plan_create_moved(out->at, kernels, keys, count, is_backward, err)
                          : plan_create_rounds(out->at, kernels, keys, count, is_backward, err));
    out->count = count;
out:
    for (int32_t r = 0; locals && r < count; r++)
        rank_local_finish(&locals[r]);
    mem_free(locals);
    mem_free(keys);
    return rc;
}

static ffa_status check(const ffa_parallel_plan *plan, const ffa_kernels *kernels, ffa_error *err)
{
    if (!plan || !kernels)
        return error_fail(err, FFA_INVALID, 0, "ffa_parallel_pass_create: %s is NULL",
                          plan ? "kernels" : "plan");
    if (!kernels->is_parallel || !kernels_are_loaded(kernels))
        return error_fail(err, FFA_INVALID, 0,
                          "the kernels were made %s, a pass over GPUs needs both",
                          kernels->is_parallel ? "for the CPU" : "without FFA_SPEC_PARALLEL");
    if (plan->moves == FFA_PARALLEL_MOVE_QUERIES && !kernels->is_staged)
        return error_fail(err, FFA_INVALID, 0,
                          "the plan moves queries, the kernels were made without FFA_SPEC_STAGED");
    if (plan->in_rounds && !kernels->is_staged)
        return error_fail(err, FFA_INVALID, 0,
                          "the plan is in rounds (memory_bytes is %lld), the kernels were made "
                          "without FFA_SPEC_STAGED",
                          (long long)plan->opts.memory_bytes);
    if (kernels->has_backward && plan->backward.phase_count == 0)
        return error_fail(err, FFA_INVALID, 0,
                          "the kernels have FFA_SPEC_BACKWARD, the plan was made with "
                          "FFA_PARALLEL_FORWARD_ONLY");
    return FFA_OK;
}

/* ---- the buffer ---- */

static int64_t place(int64_t *end, int64_t bytes)
{
    const int64_t at = *end;

    *end += (bytes + 255) / 256 * 256;
    return at;
}

static void place_plans(int64_t *end, struct pass_plans *plans)
{
    for (int32_t r = 0; r < plans->count; r++)
        plans->bytes[r] = place(end, plans->at[r]->image.bytes);
}

/* Rank 0's totals and those of all others, by ascending rank. */
static void fill_totals(struct row_segment *segment, int64_t *sources, int32_t ranks)
{
    *segment = (struct row_segment){ .row = 0, .rows = 1, .first = 0, .count = ranks - 1 };
    for (int32_t r = 1; r < ranks; r++)
        sources[r - 1] = r;
}

/* A table in the buffer: where it lies, and from what it is copied. */
struct table {
    int64_t *at;
    const void *from;
    int64_t bytes;
};

enum { TABLES_MAX = 12 };

static int add_sums_tables(struct table *out, struct pass_sums *sums)
{
    out[0] = (struct table){ &sums->owners_at, sums->owners,
                             sums->owner_count * (int64_t)sizeof *sums->owners };
    out[1] = (struct table){ &sums->segments_at, sums->segments,
                             sums->segment_count * (int64_t)sizeof *sums->segments };
    out[2] = (struct table){ &sums->received_at, sums->received,
                             sums->received_count * (int64_t)sizeof *sums->received };
    return 3;
}

/* All but those of totals, which are behind them. */
static int find_tables(struct table *out, ffa_parallel_pass *pass)
{
    struct relay_sums *relays = &pass->relay_sums;
    int count = add_sums_tables(out, &pass->sums);

    count += add_sums_tables(out + count, &pass->forward_sums);
    count += add_sums_tables(out + count, &relays->own);
    out[count++] = (struct table){ &pass->kept.runs_at, pass->kept.runs,
                                   pass->kept.run_count * (int64_t)sizeof *pass->kept.runs };
    out[count++] = (struct table){ &pass->addend_segments_at, relays->segments,
                                   relays->segment_count * (int64_t)sizeof *relays->segments };
    out[count++] = (struct table){ &pass->addend_sources_at, relays->sources,
                                   relays->segment_count * (int64_t)sizeof *relays->sources };
    return count;
}

static unsigned char *table_at(const ffa_parallel_pass *pass, int64_t at)
{
    return pass->tables + (at - pass->tables_at);
}

static ffa_status make_buffer(ffa_parallel_pass *pass, ffa_error *err)
{
    const bool has_totals = pass->rank_count > 1;
    const int64_t sources = (pass->rank_count - 1) * (int64_t)sizeof(int64_t);
    struct table from[TABLES_MAX];
    const int count = find_tables(from, pass);
    int64_t end = 0;

    place_plans(&end, &pass->forward);
    place_plans(&end, &pass->backward);
    pass->tables_at = end;
    for (int i = 0; i < count; i++)
        *from[i].at = place(&end, from[i].bytes);
    pass->totals_segment_at = place(&end, has_totals ? (int64_t)sizeof(struct row_segment) : 0);
    pass->totals_sources_at = place(&end, sources);
    pass->upload_bytes = end;
    pass->tables = mem_array((size_t)(end - pass->tables_at), 1);
    if (!pass->tables)
        return error_nomem(err, "the tables of a pass");
    for (int i = 0; i < count; i++)
        if (from[i].bytes > 0)
            memcpy(table_at(pass, *from[i].at), from[i].from, (size_t)from[i].bytes);
    if (has_totals)
        fill_totals((struct row_segment *)(void *)table_at(pass, pass->totals_segment_at),
                    (int64_t *)(void *)table_at(pass, pass->totals_sources_at), pass->rank_count);
    return FFA_OK;
}

static int64_t copies_of(const struct pass_moves *moves)
{
    return moves->copy_begin ? moves->copy_begin[moves->stage_count] : 0;
}

static int64_t pulls_of(const ffa_parallel_pass *pass, bool is_backward)
{
    const struct relay_moves *relays = is_backward ? &pass->backward_relays : &pass->forward_relays;
    const struct pass_moves *moves = is_backward ? &pass->backward_moves : &pass->forward_moves;

    return relays->pull_begin ? relays->pull_begin[(ptrdiff_t)2 * moves->stage_count] : 0;
}

static int64_t most_copies(const ffa_parallel_pass *pass)
{
    return max64(max64(max64(copies_of(&pass->forward_moves), copies_of(&pass->backward_moves)),
                       max64(pulls_of(pass, false), pulls_of(pass, true))),
                 max64(max64(pass->sums.copy_count, pass->forward_sums.copy_count),
                       pass->relay_sums.own.copy_count));
}

/* Of keys, and of sums, which go the other way. */
static int64_t moves_of_relays(const ffa_parallel_pass *pass, bool is_backward)
{
    const struct relay_moves *relays = is_backward ? &pass->backward_relays : &pass->forward_relays;
    const struct pass_moves *moves = is_backward ? &pass->backward_moves : &pass->forward_moves;

    return relays->send_begin
               ? relays->send_begin[moves->step_count] + relays->receive_begin[moves->stage_count]
               : 0;
}

/* Of a step, at the most; replicated sums go to and from all other ranks. */
static int64_t most_moves(const ffa_parallel_pass *pass)
{
    const struct pass_moves *const passes[] = { &pass->forward_moves, &pass->backward_moves };
    int64_t most = 2 * (int64_t)pass->rank_count;

    for (int i = 0; i < 1 + pass->has_backward; i++) {
        most = max64(most, passes[i]->copy_begin[passes[i]->stage_count] +
                               passes[i]->send_begin[passes[i]->step_count]);
        most = max64(most, moves_of_relays(pass, i == 1));
    }
    return most;
}

/* Pulls wait for a rank's stages at once. */
static size_t most_flags(const ffa_parallel_pass *pass)
{
    return (size_t)pass->rank_count * (pass->has_relays ? ARRIVAL_STAGES_MAX : 1);
}

static ffa_status make_scratch(ffa_parallel_pass *pass, ffa_error *err)
{
    const size_t copies = (size_t)most_copies(pass);

    pass->to = mem_array(copies, sizeof *pass->to);
    pass->from = mem_array(copies, sizeof *pass->from);
    pass->bytes = mem_array(copies, sizeof *pass->bytes);
    pass->flags = mem_array(most_flags(pass), sizeof *pass->flags);
    pass->moves = mem_array((size_t)most_moves(pass), sizeof *pass->moves);
    return pass->to && pass->from && pass->bytes && pass->flags && pass->moves
               ? FFA_OK
               : error_nomem(err, "a pass");
}

static ffa_status make_relays(ffa_parallel_pass *pass, const ffa_parallel_plan *plan,
                              bool is_backward, ffa_error *err)
{
    struct relay_moves *relays = is_backward ? &pass->backward_relays : &pass->forward_relays;
    const struct pass_moves *moves = is_backward ? &pass->backward_moves : &pass->forward_moves;
    ffa_status rc = FFA_OK;

    if (!pass->has_relays)
        goto out;
    FFA_TRY(relay_moves_build(relays, plan, moves, is_backward, err));
    if (is_backward)
        rc = relay_sums_build(&pass->relay_sums, plan, moves, &pass->sums, err);
out:
    return rc;
}

/* ---- the object ---- */

ffa_status ffa_parallel_pass_create(ffa_parallel_pass **out, const ffa_parallel_plan *plan,
                                    const ffa_kernels *kernels, ffa_error *err)
{
    ffa_parallel_pass *pass = NULL;
    ffa_status rc;

    if (!out)
        return error_fail(err, FFA_INVALID, 0, "ffa_parallel_pass_create: out is NULL");
    *out = NULL;
    FFA_TRY(check(plan, kernels, err));
    pass = mem_array(1, sizeof *pass);
    if (!pass) {
        rc = error_nomem(err, "a pass");
        goto out;
    }
    pass->rank = plan->rank;
    pass->rank_count = plan->topology.rank_count;
    pass->ranks_per_node = plan->topology.ranks_per_node;
    pass->has_relays = relay_tables_wanted(plan);
    pass->is_outline = plan->is_outline;
    pass->tokens_q = plan->queries.rank_tokens[plan->rank];
    pass->tokens_k = plan->keys.rank_tokens[plan->rank];
    pass->has_backward = kernels->has_backward;
    pass->received_rows = plan->received_rows;
    text_copy(pass->digest, "%s", plan->digest);
    pass->in_rounds = plan->in_rounds;
    pass->moves_queries = plan->moves == FFA_PARALLEL_MOVE_QUERIES;
    FFA_TRY(make_plans(&pass->forward, plan, kernels, false, err));
    FFA_TRY(pass_moves_build(&pass->forward_moves, plan, false, err));
    if (pass->moves_queries)
        FFA_TRY(pass_sums_build(&pass->forward_sums, plan, &pass->forward_moves, false, err));
    FFA_TRY(make_relays(pass, plan, false, err));
    if (pass->has_backward) {
        FFA_TRY(make_plans(&pass->backward, plan, kernels, true, err));
        FFA_TRY(pass_moves_build(&pass->backward_moves, plan, true, err));
        FFA_TRY(pass_sums_build(&pass->sums, plan, &pass->backward_moves, true, err));
        FFA_TRY(make_relays(pass, plan, true, err));
        if (!pass->in_rounds && !pass->moves_queries)
            FFA_TRY(pass_kept_build(&pass->kept, &pass->forward_moves, &pass->backward_moves, err));
    }
    if (pass->has_backward || pass->moves_queries)
        FFA_TRY(gpu_event_create(&pass->reduced, kernels->context->gpu, false, err));
    if (pass->rank_count > 1) {
        FFA_TRY(gpu_event_create(&pass->totals_made, kernels->context->gpu, false, err));
        FFA_TRY(gpu_event_create(&pass->totals_shared, kernels->context->gpu, false, err));
    }
    if (pass->in_rounds) {
        FFA_TRY(gpu_event_create(&pass->launched[0], kernels->context->gpu, false, err));
        FFA_TRY(gpu_event_create(&pass->launched[1], kernels->context->gpu, false, err));
        FFA_TRY(gpu_event_create(&pass->added, kernels->context->gpu, false, err));
    }
    FFA_TRY(make_buffer(pass, err));
    FFA_TRY(make_scratch(pass, err));
    *out = pass;
    pass = NULL;
out:
    ffa_parallel_pass_destroy(pass);
    return rc;
}

void ffa_parallel_pass_destroy(ffa_parallel_pass *pass)
{
    if (!pass)
        return;
    plans_finish(&pass->forward);
    plans_finish(&pass->backward);
    pass_moves_finish(&pass->forward_moves);
    pass_moves_finish(&pass->backward_moves);
    pass_sums_finish(&pass->sums);
    pass_sums_finish(&pass->forward_sums);
    pass_kept_finish(&pass->kept);
    relay_moves_finish(&pass->forward_relays);
    relay_moves_finish(&pass->backward_relays);
    relay_sums_finish(&pass->relay_sums);
    mem_free(pass->tables);
    mem_free(pass->to);
    mem_free(pass->from);
    mem_free(pass->bytes);
    mem_free(pass->flags);
    mem_free(pass->moves);
    gpu_event_destroy(pass->reduced);
    gpu_event_destroy(pass->launched[0]);
    gpu_event_destroy(pass->launched[1]);
    gpu_event_destroy(pass->added);
    gpu_event_destroy(pass->totals_made);
    gpu_event_destroy(pass->totals_shared);
    mem_free(pass);
}

/* ---- facts ---- */

static int64_t whole_parts(int64_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

/* Of k and v of a row, or of dk and dv. */
static int64_t key_columns(const ffa_kernels *kernels, int32_t heads_kv)
{
    return heads_kv * ((int64_t)kernels->head_dim + kernels->head_dim_v);
}

static int64_t sum_row_bytes(const ffa_parallel_pass *pass, const ffa_kernels *kernels,
                             int32_t heads_q, int32_t heads_kv, bool is_backward)
{
    return pass->moves_queries ? pass_queries_result_bytes(kernels, heads_q, is_backward)
                               : key_columns(kernels, heads_kv) * (int64_t)sizeof(float);
}

int64_t pass_fp32_bytes(const ffa_parallel_pass *pass, const ffa_kernels *kernels, int32_t heads_q,
                        int32_t heads_kv, bool is_backward)
{
    const struct pass_sums *sums = is_backward ? &pass->sums : &pass->forward_sums;
    const int64_t received =
        sums->received_rows * sum_row_bytes(pass, kernels, heads_q, heads_kv, is_backward);
    int64_t bytes = received;

    if (pass->moves_queries && is_backward)
        bytes = whole_parts(received) +
                pass->tokens_k * key_columns(kernels, heads_kv) * (int64_t)sizeof(float);
    if (!is_backward && pass->in_rounds && pass->forward.count > 1)
        bytes =
            whole_parts(pass->tokens_q * heads_q * kernels->head_dim_v * (int64_t)sizeof(float));
    return bytes;
}

static ffa_status launch_bytes(int64_t *bytes, const ffa_parallel_pass *pass,
                               const ffa_kernels *kernels, int32_t heads_q, int32_t heads_kv,
                               bool is_backward, ffa_error *err)
{
    const struct pass_plans *plans = is_backward ? &pass->backward : &pass->forward;
    ffa_status rc = FFA_OK;

    *bytes = 0;
    for (int32_t i = 0; i < (pass->moves_queries ? plans->count : 1); i++) {
        int64_t more;

        FFA_TRY(is_backward ? ffa_backward_workspace_bytes(kernels, plans->at[i], heads_q, heads_kv,
                                                           &more, err)
                            : ffa_workspace_bytes(kernels, plans->at[i], &more, err));
        *bytes = max64(*bytes, more);
    }
out:
    return rc;
}

/* That of the launches, which all of a pass share, then totals, then what is in fp32. */
static ffa_status workspace_of(int64_t *bytes, const ffa_parallel_pass *pass,
                               const ffa_kernels *kernels, int32_t heads_q, int32_t heads_kv,
                               bool is_backward, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(launch_bytes(bytes, pass, kernels, heads_q, heads_kv, is_backward, err));
    *bytes = whole_parts(*bytes) + pass_totals_bytes(pass, kernels, is_backward, heads_q) +
             pass_fp32_bytes(pass, kernels, heads_q, heads_kv, is_backward);
out:
    return rc;
}

static int64_t key_row_bytes(const ffa_parallel_pass *pass, const ffa_kernels *kernels,
                             int32_t heads_q, int32_t heads_kv, bool is_backward)
{
    return pass->moves_queries
               ? pass_queries_row_bytes(kernels, heads_q, is_backward)
               : key_columns(kernels, heads_kv) * (int64_t)ffa_dtype_bytes(kernels->dtype);
}

ffa_status ffa_parallel_pass_info_get(const ffa_parallel_pass *pass, const ffa_kernels *kernels,
                                      int32_t heads_q, int32_t heads_kv,
                                      ffa_parallel_pass_info *out, ffa_error *err)
{
    ffa_parallel_pass_info info = FFA_PARALLEL_PASS_INFO_INIT;
    ffa_status rc;

    if (!pass || !kernels || !out)
        return error_fail(err, FFA_INVALID, 0, "ffa_parallel_pass_info_get: %s is NULL",
                          !pass      ? "pass"
                          : !kernels ? "kernels"
                                     : "out");
    FFA_TRY(check_heads("", heads_q, heads_kv, FFA_HEADS_MAX, err));
    info.upload_bytes = pass->upload_bytes;
    info.key_bytes = max64(
        pass->forward_moves.window_rows * key_row_bytes(pass, kernels, heads_q, heads_kv, false),
        pass->backward_moves.window_rows * key_row_bytes(pass, kernels, heads_q, heads_kv, true));
    if (pass->moves_queries)
        info.sum_bytes = pass->forward_moves.window_rows *
                         sum_row_bytes(pass, kernels, heads_q, heads_kv, false);
    info.forward_stages = pass->forward_moves.stage_count - 1;
    info.received_rows = pass->received_rows;
    info.rounds = pass->moves_queries ? 1 : pass->forward.count;
    FFA_TRY(
        workspace_of(&info.forward_workspace_bytes, pass, kernels, heads_q, heads_kv, false, err));
    if (pass->has_backward) {
        const int64_t row = sum_row_bytes(pass, kernels, heads_q, heads_kv, true);

        info.sum_bytes = max64(info.sum_bytes, pass->backward_moves.window_rows * row);
        info.received_sum_bytes = pass->sums.received_rows * row;
        info.backward_stages = pass->backward_moves.stage_count - 1;
        info.kept_bytes = pass->kept.rows * key_row_bytes(pass, kernels, heads_q, heads_kv, true);
        FFA_TRY(workspace_of(&info.backward_workspace_bytes, pass, kernels, heads_q, heads_kv, true,
                             err));
    }
    info.memory_bytes = info.key_bytes + info.sum_bytes +
                        max64(info.forward_workspace_bytes, info.backward_workspace_bytes);
    rc = opts_export(out, &info, sizeof info, err);
out:
    return rc;
}

/* ---- uploading ---- */

static ffa_status upload_plans(const struct pass_plans *plans, const ffa_kernels *kernels,
                               unsigned char *buffer, ffa_stream stream, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    for (int32_t r = 0; r < plans->count; r++)
        FFA_TRY(ffa_plan_upload(plans->at[r], kernels, buffer + plans->bytes[r], stream, err));
out:
    return rc;
}

ffa_status ffa_parallel_pass_upload(ffa_parallel_pass *pass, const ffa_kernels *kernels,
                                    void *buffer, ffa_stream stream, ffa_error *err)
{
    unsigned char *const at = buffer;
    const int64_t tables = pass ? pass->upload_bytes - pass->tables_at : 0;
    ffa_status rc;

    if (!pass || !kernels)
        return error_fail(err, FFA_INVALID, 0, "ffa_parallel_pass_upload: %s is NULL",
                          pass ? "kernels" : "pass");
    if (!buffer || (uintptr_t)buffer % 256)
        return error_fail(err, FFA_INVALID, 0,
                          "ffa_parallel_pass_upload: buffer is %p, not 256-byte aligned", buffer);
    FFA_TRY(upload_plans(&pass->forward, kernels, at, stream, err));
    FFA_TRY(upload_plans(&pass->backward, kernels, at, stream, err));
    if (tables > 0)
        FFA_TRY(gpu_upload_enqueue(kernels->context->gpu, at + pass->tables_at, pass->tables,
                                   tables, stream, err));
    pass->buffer = buffer;
out:
    return rc;
}
