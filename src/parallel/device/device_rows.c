/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa_parallel_rows: dispatch, undispatch, roll and their gradients on GPUs. Invariant: tables are
 * all that depends on the dispatch, so that calls take tensors of any dtype and shape. Trick: each
 * collective call is an exchange; undispatch and roll differ by where rows belong. What a rank
 * publishes for the reduction stands by owner, so each owner pulls one range.
 */
#include "parallel/device/device_rows.h"

#include "service/context.h"
#include "tensor/tensor.h"

/* ---- where tokens are ---- */

static void places_finish(struct places *places)
{
    mem_free(places->begin);
    mem_free(places->local);
    mem_free(places->rank);
    mem_free(places->rank_begin);
    mem_free(places->rank_chunks);
    mem_free(places->rank_rows);
}

static ffa_status chunk_at(ffa_dispatch_chunk *out, const ffa_dispatch *dispatch, int32_t side,
                           int64_t index, ffa_error *err)
{
    *out = (ffa_dispatch_chunk)FFA_DISPATCH_CHUNK_INIT;
    return side == FFA_SIDE_KEYS ? ffa_dispatch_key_chunk_get(dispatch, index, out, err)
                                 : ffa_dispatch_chunk_get(dispatch, index, out, err);
}

/* Every rank has a chunk of queries. */
static ffa_status count_ranks(int32_t *count, const ffa_dispatch *dispatch, ffa_error *err)
{
    ffa_dispatch_chunk chunk;
    ffa_status rc = FFA_OK;

    *count = 0;
    for (int64_t i = 0; i < ffa_dispatch_chunk_count(dispatch); i++) {
        FFA_TRY(chunk_at(&chunk, dispatch, FFA_SIDE_QUERIES, i, err));
        *count = chunk.rank >= *count ? chunk.rank + 1 : *count;
    }
out:
    return rc;
}

static ffa_status places_alloc(struct places *out, const ffa_dispatch *dispatch, int32_t side,
                               ffa_error *err)
{
    size_t chunks, ranks;
    ffa_status rc;

    FFA_TRY(count_ranks(&out->rank_count, dispatch, err));
    out->count = side == FFA_SIDE_KEYS ? ffa_dispatch_key_chunk_count(dispatch)
                                       : ffa_dispatch_chunk_count(dispatch);
    chunks = (size_t)out->count;
    ranks = (size_t)out->rank_count;
    out->begin = mem_array(chunks + 1, sizeof *out->begin);
    out->local = mem_array(chunks, sizeof *out->local);
    out->rank = mem_array(chunks, sizeof *out->rank);
    out->rank_begin = mem_array(ranks + 1, sizeof *out->rank_begin);
    out->rank_chunks = mem_array(chunks, sizeof *out->rank_chunks);
    out->rank_rows = mem_array(ranks, sizeof *out->rank_rows);
    if (!out->begin || !out->local || !out->rank || !out->rank_begin || !out->rank_chunks ||
        !out->rank_rows)
        rc = error_nomem(err, "the rows of a rank");
out:
    return rc;
}

/* own: the rank that replicated rows are said to be of. */
static ffa_status places_init(struct places *out, const ffa_dispatch *dispatch, int32_t side,
                              int32_t own, ffa_error *err)
{
    ffa_dispatch_chunk chunk;
    ffa_status rc;

    FFA_TRY(places_alloc(out, dispatch, side, err));
    for (int64_t c = 0; c < out->count; c++) {
        FFA_TRY(chunk_at(&chunk, dispatch, side, c, err));
        out->is_replicated = chunk.rank < 0;
        out->rank[c] = chunk.rank < 0 ? own : chunk.rank;
        out->begin[c + 1] = chunk.end;
        out->local[c] = chunk.local_begin;
        if (out->rank[c] < out->rank_count) /* of one that is not there: refused later */
            out->rank_begin[out->rank[c]]++;
    }
    begins_from_counts(out->rank_begin, out->rank_count);
    for (int64_t c = 0; c < out->count; c++)
        if (out->rank[c] < out->rank_count)
            out->rank_chunks[out->rank_begin[out->rank[c]]++] = c;
    begins_move_back(out->rank_begin, out->rank_count);
    for (int32_t r = 0; r < out->rank_count; r++)
        out->rank_rows[r] = side == FFA_SIDE_KEYS ? ffa_dispatch_key_rows(dispatch, r)
                                                  : ffa_dispatch_query_rows(dispatch, r);
out:
    return rc;
}

/* ---- tables ---- */

static ffa_status build_local(ffa_parallel_rows *rows, const struct places *places, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    for (int64_t c = 0; c < places->count; c++) {
        const int64_t begin = places->begin[c], count = places->begin[c + 1] - begin;

        if (places->rank[c] != rows->rank) {
            FFA_TRY(run_table_add(&rows->others, begin, begin, count, err));
            continue;
        }
        FFA_TRY(run_table_add(&rows->gather, begin, places->local[c], count, err));
        FFA_TRY(run_table_add(&rows->scatter, places->local[c], begin, count, err));
    }
out:
    return rc;
}

/* Chunks of all ranks, rank after rank; of replicated rows the own ones. */
static ffa_status build_undispatch(ffa_parallel_rows *rows, const struct places *places,
                                   bool *is_reader, ffa_error *err)
{
    struct move_list list = { 0 };
    ffa_status rc = FFA_OK;

    for (int32_t r = 0; r < rows->rank_count; r++) {
        is_reader[r] = !places->is_replicated && rows->local_rows > 0;
        for (int64_t i = places->rank_begin[r]; i < places->rank_begin[r + 1]; i++) {
            const int64_t c = places->rank_chunks[i];
            const struct row_move move = { .from = places->local[c],
                                           .to = places->begin[c],
                                           .rows = places->begin[c + 1] - places->begin[c],
                                           .rank = r };

            FFA_TRY(move_list_add(&list, &move, err));
        }
    }
    rc = exchange_build(&rows->undispatch,
                        &(struct exchange_plan){ .rank = rows->rank,
                                                 .rank_count = rows->rank_count,
                                                 .published_rows = rows->local_rows,
                                                 .output_rows = rows->tokens,
                                                 .moves = &list,
                                                 .is_reader = is_reader },
                        err);
out:
    move_list_finish(&list);
    return rc;
}

/* What is published has the rows of rank 0 first, then those of rank 1, and so on; replicated rows
 * once, as they are. */
static ffa_status build_reduce(ffa_parallel_rows *rows, const struct places *places,
                               bool *is_reader, ffa_error *err)
{
    struct move_list list = { 0 };
    int64_t base = 0;
    ffa_status rc = FFA_OK;

    for (int32_t r = 0; r < rows->rank && !places->is_replicated; r++)
        base += places->rank_rows[r];
    for (int32_t r = 0; r < rows->rank_count; r++) {
        is_reader[r] = places->rank_rows[r] > 0;
        FFA_TRY(move_list_add(
            &list, &(struct row_move){ .from = base, .rows = rows->local_rows, .rank = r }, err));
    }
    rc = exchange_build(&rows->reduce,
                        &(struct exchange_plan){ .rank = rows->rank,
                                                 .rank_count = rows->rank_count,
                                                 .published_rows = rows->tokens,
                                                 .output_rows = rows->local_rows,
                                                 .moves = &list,
                                                 .is_reader = is_reader,
                                                 .is_added = true,
                                                 .skips_own = true },
                        err);
    FFA_TRY(rc);
    base = 0;
    for (int64_t i = 0; i < places->count && !places->is_replicated; i++) {
        const int64_t c = places->rank_chunks[i];
        const int64_t count = places->begin[c + 1] - places->begin[c];

        FFA_TRY(run_table_add(&rows->reduce.publish, places->begin[c], base, count, err));
        base += count;
    }
out:
    move_list_finish(&list);
    return rc;
}

static ffa_status build_image(ffa_parallel_rows *rows, ffa_error *err)
{
    struct upload upload = { 0 };
    ffa_status rc = FFA_OK;

    for (int round = 0; round < 2; round++) {
        if (round > 0) {
            rows->image_bytes = upload.end;
            rows->image = upload.bytes = mem_array((size_t)upload.end, 1);
            upload.end = 0;
            if (!rows->image) {
                rc = error_nomem(err, "the tables of rows");
                goto out;
            }
        }
        FFA_TRY(exchange_upload(&rows->undispatch, &upload, err));
        FFA_TRY(exchange_upload(&rows->roll, &upload, err));
        FFA_TRY(exchange_upload(&rows->reduce, &upload, err));
        FFA_TRY(upload_runs(&upload, &rows->gather, err));
        FFA_TRY(upload_runs(&upload, &rows->scatter, err));
        FFA_TRY(upload_runs(&upload, &rows->others, err));
        FFA_TRY(upload_runs(&upload, &rows->rolled, err));
        FFA_TRY(upload_runs(&upload, &rows->outside, err));
    }
out:
    return rc;
}

static void identify(ffa_parallel_rows *rows, const ffa_dispatch *dispatch,
                     const ffa_parallel_rows_opts *opts)
{
    struct digest digest;

    digest_init(&digest);
    digest_text(&digest, ffa_dispatch_digest(dispatch));
    digest_number(&digest, opts->side);
    digest_number(&digest, opts->shift);
    for (int64_t d = 0; opts->cu_tokens && d <= opts->document_count; d++)
        digest_number(&digest, opts->cu_tokens[d]);
    digest_final(&digest, rows->digest);
}

/* ---- the object ---- */

static ffa_status build(ffa_parallel_rows *rows, const ffa_dispatch *dispatch,
                        const ffa_parallel_rows_opts *opts, ffa_error *err)
{
    struct gpu_device *gpu = rows->kernels->copy.context->gpu;
    struct places places = { 0 };
    bool *is_reader = NULL;
    ffa_status rc;

    FFA_TRY(places_init(&places, dispatch, opts->side, opts->rank, err));
    const struct bounded fields[] = {
        { "rank", opts->rank, 0, (int64_t)places.rank_count - 1 },
    };
    FFA_TRY(check_bounded(fields, 1, err));
    is_reader = mem_array((size_t)places.rank_count, sizeof *is_reader);
    if (!is_reader) {
        rc = error_nomem(err, "the rows of a rank");
        goto out;
    }
    rows->rank = opts->rank;
    rows->rank_count = places.rank_count;
    rows->tokens = places.begin[places.count];
    rows->local_rows = places.rank_rows[opts->rank];
    identify(rows, dispatch, opts);
    FFA_TRY(build_local(rows, &places, err));
    FFA_TRY(build_undispatch(rows, &places, is_reader, err));
    FFA_TRY(build_reduce(rows, &places, is_reader, err));
    FFA_TRY(roll_build(rows, &places, opts, err));
    FFA_TRY(exchange_prepare(&rows->undispatch, gpu, err));
    FFA_TRY(exchange_prepare(&rows->reduce, gpu, err));
    FFA_TRY(exchange_prepare(&rows->roll, gpu, err));
    rc = build_image(rows, err);
out:
    places_finish(&places);
    mem_free(is_reader);
    return rc;
}

ffa_status ffa_parallel_rows_create(ffa_parallel_rows **out, const ffa_dispatch *dispatch,
                                    const ffa_row_kernels *kernels,
                                    const ffa_parallel_rows_opts *opts, ffa_error *err)
{
    ffa_parallel_rows_opts resolved;
    ffa_parallel_rows *rows = NULL;
    ffa_status rc;

    if (!out)
        return error_fail(err, FFA_INVALID, 0, "ffa_parallel_rows_create: out is NULL");
    *out = NULL;
    if (!dispatch || !kernels)
        return error_fail(err, FFA_INVALID, 0, "ffa_parallel_rows_create: %s is NULL",
                          dispatch ? "kernels" : "dispatch");
    FFA_TRY(opts_import(&resolved, sizeof resolved, opts, err));
    const struct bounded fields[] = {
        { "side", resolved.side, FFA_SIDE_QUERIES, FFA_SIDE_KEYS },
        { "rank", resolved.rank, 0, INT32_MAX },
    };
    FFA_TRY(check_bounded(fields, sizeof fields / sizeof *fields, err));
    rows = mem_array(1, sizeof *rows);
    if (!rows) {
        rc = error_nomem(err, "the rows of a rank");
        goto out;
    }
    rows->kernels = kernels;
    FFA_TRY(build(rows, dispatch, &resolved, err));
    *out = rows;
    rows = NULL;
out:
    ffa_parallel_rows_destroy(rows);
    return rc;
}

void ffa_parallel_rows_destroy(ffa_parallel_rows *rows)
{
    if (!rows)
        return;
    exchange_finish(&rows->undispatch);
    exchange_finish(&rows->roll);
    exchange_finish(&rows->reduce);
    run_table_finish(&rows->gather);
    run_table_finish(&rows->scatter);
    run_table_finish(&rows->others);
    run_table_finish(&rows->rolled);
    run_table_finish(&rows->outside);
    mem_free(rows->image);
    mem_free(rows);
}

ffa_status ffa_parallel_rows_upload(ffa_parallel_rows *rows, void *buffer, ffa_stream stream,
                                    ffa_error *err)
{
    ffa_status rc;

    if (!rows)
        return error_fail(err, FFA_INVALID, 0, "ffa_parallel_rows_upload: rows is NULL");
    if (!buffer || (uintptr_t)buffer % 256)
        return error_fail(err, FFA_INVALID, 0,
                          "ffa_parallel_rows_upload: buffer is %p, not 256-byte aligned", buffer);
    if (rows->image_bytes > 0)
        FFA_TRY(gpu_upload_enqueue(rows->kernels->copy.context->gpu, buffer, rows->image,
                                   rows->image_bytes, stream, err));
    else
        rc = FFA_OK;
    rows->buffer = buffer;
out:
    return rc;
}
