/* SPDX-License-Identifier: Apache-2.0
 *
 * pass_kept_build, and what a pass does with keys that are kept. Invariant: both passes of a rank
 * receive the same keys, if in other stages, so each copy of the backward pass is made of rows that
 * copies of the forward pass have brought from the same rank.
 */
#include "parallel/device/pass_run.h"

#include <stdlib.h>

/* ---- the table ---- */

static int compare_sources(const void *left, const void *right)
{
    const struct pass_copy *a = left, *b = right;

    if (a->rank != b->rank)
        return a->rank < b->rank ? -1 : 1;
    return (a->from > b->from) - (a->from < b->from);
}

/* The forward copy that has the row, of copies [count] by rank and row. */
static const struct pass_copy *copy_with(const struct pass_copy *copies, int64_t count,
                                         int32_t rank, int64_t row)
{
    int64_t begin = 0, end = count;

    while (begin < end) {
        const int64_t middle = begin + (end - begin) / 2;
        const struct pass_copy *at = &copies[middle];

        if (at->rank < rank || (at->rank == rank && at->from + at->rows <= row))
            begin = middle + 1;
        else
            end = middle;
    }
    assert(begin < count && copies[begin].rank == rank && copies[begin].from <= row);
    return &copies[begin];
}

/* Runs of one backward copy. */
static void add_runs(struct pass_kept *out, const struct pass_copy *copy,
                     const struct pass_copy *sources, int64_t source_count, int64_t own_rows)
{
    for (int64_t row = 0; row < copy->rows;) {
        const struct pass_copy *from =
            copy_with(sources, source_count, copy->rank, copy->from + row);
        const int64_t skipped = copy->from + row - from->from;
        const int64_t rows = min64(copy->rows - row, from->rows - skipped);

        out->runs[out->run_count++] = (struct row_run){ .from = from->to + skipped - own_rows,
                                                        .to = copy->to + row,
                                                        .rows = rows };
        row += rows;
    }
}

ffa_status pass_kept_build(struct pass_kept *out, const struct pass_moves *forward,
                           const struct pass_moves *backward, ffa_error *err)
{
    const int64_t sources = forward->copy_begin[forward->stage_count];
    const int64_t copies = backward->copy_begin[backward->stage_count];
    struct pass_copy *by_source = mem_array((size_t)sources, sizeof *by_source);
    ffa_status rc = FFA_OK;

    *out = (struct pass_kept){ .rows = forward->window_rows - forward->own_rows };
    out->runs = mem_array((size_t)(sources + copies), sizeof *out->runs);
    if (!by_source || !out->runs) {
        rc = error_nomem(err, "the keys that a pass keeps");
        goto out;
    }
    if (sources + copies > INT32_MAX) {
        rc = error_fail(err, FFA_UNSUPPORTED, 0, "%lld ranges of keys are more than 2^31 - 1",
                        (long long)(sources + copies));
        goto out;
    }
    if (sources > 0) {
        memcpy(by_source, forward->copies, (size_t)sources * sizeof *by_source);
        qsort(by_source, (size_t)sources, sizeof *by_source, compare_sources);
    }
    for (int64_t i = 0; i < copies; i++)
        add_runs(out, &backward->copies[i], by_source, sources, forward->own_rows);
    (void)row_runs_finish(out->runs, out->run_count);
out:
    mem_free(by_source);
    return rc;
}

void pass_kept_finish(struct pass_kept *kept)
{
    mem_free(kept->runs);
    *kept = (struct pass_kept){ 0 };
}

/* ---- in a pass ---- */

/* Received rows of the key window and kept ones, k and v of all heads at once. */
static struct row_copy_call copy_of(const struct pass_run *run)
{
    const ffa_parallel_pass *pass = run->pass;
    unsigned char *const window = pass_run_own_window(run, WINDOW_ROWS);
    unsigned char *const received = window ? window + run->moves->own_rows * run->key_bytes : NULL;
    struct row_copy_call call = {
        .tensors = { { .from = run->is_backward ? run->args.kept_keys : received,
                       .to = run->is_backward ? window : run->args.kept_keys,
                       .from_token_stride = run->columns,
                       .from_head_stride = run->columns,
                       .to_token_stride = run->columns,
                       .to_head_stride = run->columns,
                       .columns = run->columns,
                       .heads = 1,
                       .element_bytes = (int32_t)ffa_dtype_bytes(run->kernels->dtype) } },
        .count = 1,
        .rows = pass->kept.rows,
    };

    if (run->is_backward) {
        call.runs = (const struct row_run *)(const void *)(pass->buffer + pass->kept.runs_at);
        call.run_count = pass->kept.run_count;
    }
    return call;
}

ffa_status pass_kept_check(const struct pass_run *run, ffa_error *err)
{
    const ffa_parallel_args *a = &run->args;
    const ffa_parallel_pass *pass = run->pass;
    const int64_t bytes = pass->kept.rows * run->key_bytes;
    const struct row_copy_call call = copy_of(run);

    if (!a->kept_keys)
        return FFA_OK;
    if (pass->in_rounds || pass->moves_queries)
        return error_fail(err, FFA_UNSUPPORTED, 0, "kept_keys is given, the plan %s",
                          pass->in_rounds ? "is in rounds" : "moves queries");
    if (!pass->has_backward)
        return error_fail(err, FFA_INVALID, 0,
                          "kept_keys is given, the kernels were made without FFA_SPEC_BACKWARD");
    if ((uintptr_t)a->kept_keys % 16)
        return error_fail(err, FFA_INVALID, 0, "kept_keys is %p, not 16-byte aligned",
                          a->kept_keys);
    if (a->kept_bytes < bytes)
        return error_fail(err, FFA_INVALID, 0, "kept_bytes is %lld, the pass keeps %lld",
                          (long long)a->kept_bytes, (long long)bytes);
    return call.rows > 0 ? row_copy_check(run->kernels, &call, err) : FFA_OK;
}

static ffa_status copy(const struct pass_run *run, ffa_error *err)
{
    const struct row_copy_call call = copy_of(run);
    ffa_status rc = FFA_OK;

    if (call.rows > 0)
        FFA_TRY(row_copy_enqueue(run->kernels, &call, run->stream, err));
    rc = pass_run_mark_compute(run, FFA_PARALLEL_SPAN_KEEP, call.rows * run->key_bytes, err);
out:
    return rc;
}

ffa_status pass_kept_save(const struct pass_run *run, ffa_error *err)
{
    return run->args.kept_keys ? copy(run, err) : FFA_OK;
}

ffa_status pass_kept_restore(const struct pass_run *run, ffa_error *err)
{
    struct comm_batch batch;
    ffa_status rc;

    comm_batch_init(&batch, run->comm, run->stream);
    FFA_TRY(copy(run, err));
    for (int32_t s = 1; s < run->moves->stage_count; s++)
        FFA_TRY(comm_batch_arrive(&batch, run->call, s, err));
    rc = comm_batch_flush(&batch, err);
out:
    return rc;
}
