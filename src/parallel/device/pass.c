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

static ffa_status make_plan(ffa_plan **out, const ffa_parallel_plan *plan,
                            const ffa_kernels *kernels, bool is_backward, ffa_error *err)
{
    struct rank_local local = { 0 };
    struct arriving_keys keys;
    ffa_status rc;

    FFA_TRY(rank_plan_local(&local, plan, is_backward, err));
    keys = (struct arriving_keys){ .shape = local.shape,
                                   .lists = local.lists,
                                   .list_count = local.list_count,
                                   .stage_count = local.stage_count,
                                   .stage_ends = local.stage_ends,
                                   .first = (const int64_t(*)[2])local.first,
                                   .first_count = local.first_count };
    rc = plan_create_arriving(out, kernels, &keys, is_backward, err);
out:
    rank_local_finish(&local);
    return rc;
}

static ffa_status check(const ffa_parallel_plan *plan, const ffa_kernels *kernels, ffa_error *err)
{
    if (!plan || !kernels)
        return error_fail(err, FFA_INVALID, 0, "ffa_parallel_pass_create: %s is NULL",
                          plan ? "kernels" : "plan");
    if (!kernels->is_parallel || !kernels_on_gpu(kernels))
        return error_fail(err, FFA_INVALID, 0,
                          "the kernels were made %s, a pass over GPUs needs both",
                          kernels->is_parallel ? "for the CPU" : "without FFA_SPEC_PARALLEL");
    if (plan->moves == FFA_PARALLEL_MOVE_QUERIES)
        return error_fail(err, FFA_UNSUPPORTED, 0,
                          "the plan moves queries; passes over GPUs move keys");
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

static int64_t upload_bytes_of(const ffa_plan *plan)
{
    return plan ? plan->image.bytes : 0;
}

/* Rank 0's totals and those of all others, by ascending rank. */
static void fill_totals(struct row_segment *segment, int64_t *sources, int32_t ranks)
{
    *segment = (struct row_segment){ .row = 0, .rows = 1, .first = 0, .count = ranks - 1 };
    for (int32_t r = 1; r < ranks; r++)
        sources[r - 1] = r;
}

static ffa_status make_buffer(ffa_parallel_pass *pass, ffa_error *err)
{
    const struct pass_sums *sums = &pass->sums;
    const int64_t owners = sums->owner_begin[ARRIVAL_STAGES_MAX] * (int64_t)sizeof(int32_t);
    const int64_t segments = sums->segment_count * (int64_t)sizeof *sums->segments;
    const int64_t received = sums->received_count * (int64_t)sizeof *sums->received;
    const bool has_totals = pass->rank_count > 1;
    const int64_t sources = (pass->rank_count - 1) * (int64_t)sizeof(int64_t);
    int64_t end = 0;
    unsigned char *tables;

    pass->forward_at = place(&end, upload_bytes_of(pass->forward));
    pass->backward_at = place(&end, upload_bytes_of(pass->backward));
    pass->owners_at = place(&end, owners);
    pass->segments_at = place(&end, segments);
    pass->received_at = place(&end, received);
    pass->totals_segment_at = place(&end, has_totals ? (int64_t)sizeof(struct row_segment) : 0);
    pass->totals_sources_at = place(&end, sources);
    pass->upload_bytes = end;
    pass->tables = tables = mem_array((size_t)(end - pass->owners_at), 1);
    if (!tables)
        return error_nomem(err, "the tables of a pass");
    if (owners)
        memcpy(tables, sums->owners, (size_t)owners);
    if (segments)
        memcpy(tables + (pass->segments_at - pass->owners_at), sums->segments, (size_t)segments);
    if (received)
        memcpy(tables + (pass->received_at - pass->owners_at), sums->received, (size_t)received);
    if (has_totals)
        fill_totals(
            (struct row_segment *)(void *)(tables + (pass->totals_segment_at - pass->owners_at)),
            (int64_t *)(void *)(tables + (pass->totals_sources_at - pass->owners_at)),
            pass->rank_count);
    return FFA_OK;
}

static int64_t most_copies(const ffa_parallel_pass *pass)
{
    const int64_t keys = max64(pass->forward_moves.copy_begin[pass->forward_moves.stage_count],
                               pass->backward_moves.copy_begin[pass->backward_moves.stage_count]);

    return max64(keys, pass->sums.copy_count);
}

/* Of a step, at the most; replicated sums go to and from all other ranks. */
static int64_t most_moves(const ffa_parallel_pass *pass)
{
    const struct pass_moves *const passes[] = { &pass->forward_moves, &pass->backward_moves };
    int64_t most = 2 * (int64_t)pass->rank_count;

    for (int i = 0; i < 2; i++)
        most = max64(most, passes[i]->copy_begin[passes[i]->stage_count] +
                               passes[i]->send_begin[passes[i]->step_count]);
    return most;
}

static ffa_status make_scratch(ffa_parallel_pass *pass, ffa_error *err)
{
    const size_t copies = (size_t)most_copies(pass);

    pass->to = mem_array(copies, sizeof *pass->to);
    pass->from = mem_array(copies, sizeof *pass->from);
    pass->bytes = mem_array(copies, sizeof *pass->bytes);
    pass->flags = mem_array((size_t)pass->rank_count, sizeof *pass->flags);
    pass->moves = mem_array((size_t)most_moves(pass), sizeof *pass->moves);
    return pass->to && pass->from && pass->bytes && pass->flags && pass->moves
               ? FFA_OK
               : error_nomem(err, "a pass");
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
    pass->tokens_q = plan->queries.rank_tokens[plan->rank];
    pass->tokens_k = plan->keys.rank_tokens[plan->rank];
    pass->has_backward = kernels->has_backward;
    text_copy(pass->digest, "%s", plan->digest);
    FFA_TRY(make_plan(&pass->forward, plan, kernels, false, err));
    FFA_TRY(pass_moves_build(&pass->forward_moves, plan, false, err));
    if (pass->has_backward) {
        FFA_TRY(make_plan(&pass->backward, plan, kernels, true, err));
        FFA_TRY(pass_moves_build(&pass->backward_moves, plan, true, err));
        FFA_TRY(pass_sums_build(&pass->sums, plan, &pass->backward_moves, err));
        FFA_TRY(gpu_event_create(&pass->reduced, kernels->context->gpu, false, err));
    }
    if (pass->rank_count > 1) {
        FFA_TRY(gpu_event_create(&pass->totals_made, kernels->context->gpu, false, err));
        FFA_TRY(gpu_event_create(&pass->totals_shared, kernels->context->gpu, false, err));
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
    ffa_plan_destroy(pass->forward);
    ffa_plan_destroy(pass->backward);
    pass_moves_finish(&pass->forward_moves);
    pass_moves_finish(&pass->backward_moves);
    pass_sums_finish(&pass->sums);
    mem_free(pass->tables);
    mem_free(pass->to);
    mem_free(pass->from);
    mem_free(pass->bytes);
    mem_free(pass->flags);
    mem_free(pass->moves);
    gpu_event_destroy(pass->reduced);
    gpu_event_destroy(pass->totals_made);
    gpu_event_destroy(pass->totals_shared);
    mem_free(pass);
}

/* ---- facts ---- */

static ffa_status check_heads(int32_t heads_q, int32_t heads_kv, ffa_error *err)
{
    const struct bounded fields[] = {
        { "heads_q", heads_q, 1, FFA_HEADS_MAX },
        { "heads_kv", heads_kv, 1, FFA_HEADS_MAX },
    };
    ffa_status rc = check_bounded(fields, sizeof fields / sizeof *fields, err);

    if (rc == FFA_OK && heads_q % heads_kv)
        rc = error_fail(err, FFA_INVALID, 0, "heads_q is %d, not a multiple of heads_kv, %d",
                        heads_q, heads_kv);
    return rc;
}

ffa_status ffa_parallel_pass_info_get(const ffa_parallel_pass *pass, const ffa_kernels *kernels,
                                      int32_t heads_q, int32_t heads_kv,
                                      ffa_parallel_pass_info *out, ffa_error *err)
{
    ffa_parallel_pass_info info = FFA_PARALLEL_PASS_INFO_INIT;
    int64_t columns;
    ffa_status rc;

    if (!pass || !kernels || !out)
        return error_fail(err, FFA_INVALID, 0, "ffa_parallel_pass_info_get: %s is NULL",
                          !pass      ? "pass"
                          : !kernels ? "kernels"
                                     : "out");
    FFA_TRY(check_heads(heads_q, heads_kv, err));
    columns = heads_kv * ((int64_t)kernels->head_dim + kernels->head_dim_v);
    info.upload_bytes = pass->upload_bytes;
    info.key_bytes = max64(pass->forward_moves.window_rows, pass->backward_moves.window_rows) *
                     columns * (int64_t)ffa_dtype_bytes(kernels->dtype);
    info.forward_stages = pass->forward_moves.stage_count - 1;
    info.received_rows = pass->forward_moves.window_rows - pass->forward_moves.own_rows;
    FFA_TRY(ffa_workspace_bytes(kernels, pass->forward, &info.forward_workspace_bytes, err));
    info.forward_workspace_bytes = (info.forward_workspace_bytes + 255) / 256 * 256 +
                                   pass_totals_bytes(pass, kernels, false, heads_q);
    if (pass->has_backward) {
        info.backward_stages = pass->backward_moves.stage_count - 1;
        info.sum_bytes = pass->backward_moves.window_rows * columns * (int64_t)sizeof(float);
        FFA_TRY(ffa_backward_workspace_bytes(kernels, pass->backward, heads_q, heads_kv,
                                             &info.backward_workspace_bytes, err));
        info.backward_workspace_bytes = (info.backward_workspace_bytes + 255) / 256 * 256 +
                                        pass_totals_bytes(pass, kernels, true, heads_q) +
                                        pass->sums.received_rows * columns * (int64_t)sizeof(float);
    }
    rc = opts_export(out, &info, sizeof info, err);
out:
    return rc;
}

/* ---- uploading ---- */

ffa_status ffa_parallel_pass_upload(ffa_parallel_pass *pass, const ffa_kernels *kernels,
                                    void *buffer, ffa_stream stream, ffa_error *err)
{
    unsigned char *const at = buffer;
    const int64_t tables = pass ? pass->upload_bytes - pass->owners_at : 0;
    ffa_status rc;

    if (!pass || !kernels)
        return error_fail(err, FFA_INVALID, 0, "ffa_parallel_pass_upload: %s is NULL",
                          pass ? "kernels" : "pass");
    if (!buffer || (uintptr_t)buffer % 256)
        return error_fail(err, FFA_INVALID, 0,
                          "ffa_parallel_pass_upload: buffer is %p, not 256-byte aligned", buffer);
    FFA_TRY(ffa_plan_upload(pass->forward, kernels, at + pass->forward_at, stream, err));
    if (pass->has_backward)
        FFA_TRY(ffa_plan_upload(pass->backward, kernels, at + pass->backward_at, stream, err));
    if (tables > 0)
        FFA_TRY(gpu_upload_enqueue(kernels->context->gpu, at + pass->owners_at, pass->tables,
                                   tables, stream, err));
    pass->buffer = buffer;
out:
    return rc;
}
