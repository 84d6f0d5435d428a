/* SPDX-License-Identifier: Apache-2.0
 *
 * Roll as tables: where the row of each token comes from, within the sequence or within documents.
 * Invariant: a piece is of one document, and its sources are consecutive tokens, all inside the
 * document or all of them from around its end. For the exchange a piece has one source chunk, too.
 */
#include "parallel/device/device_rows.h"

struct roll {
    int64_t shift;
    const int64_t *ends; /* [documents]: the end of each, ascending */
    int64_t documents;
};

struct roll_piece {
    int64_t token, from, count;
    bool is_outside; /* the source is from around the document's end */
};

/* The first of values [count], ascending, that is above x; count if none is. */
static int64_t first_above(const int64_t *values, int64_t count, int64_t x)
{
    int64_t low = 0, high = count;

    while (low < high) {
        const int64_t middle = low + (high - low) / 2;

        if (values[middle] > x)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* The longest piece that begins with `token` and ends by `end`. */
static struct roll_piece piece_at(const struct roll *roll, int64_t token, int64_t end)
{
    const int64_t document = first_above(roll->ends, roll->documents, token);
    const int64_t begin = document > 0 ? roll->ends[document - 1] : 0;
    const int64_t length = roll->ends[document] - begin, at = token - begin;
    const int64_t shift = roll->shift % length;
    const int64_t from = at - shift + (at < shift ? length : at - shift >= length ? -length : 0);

    return (struct roll_piece){
        .token = token,
        .from = begin + from,
        .count = min64(min64(end, roll->ends[document]) - token, length - from),
        .is_outside = roll->shift >= 0 ? at < roll->shift : at >= length + roll->shift,
    };
}

/* The pieces of own chunks, for the local calls. */
static ffa_status add_local(ffa_parallel_rows *rows, const struct places *places,
                            const struct roll *roll, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    for (int64_t i = places->rank_begin[rows->rank]; i < places->rank_begin[rows->rank + 1]; i++) {
        const int64_t chunk = places->rank_chunks[i], begin = places->begin[chunk];

        for (int64_t t = begin; t < places->begin[chunk + 1];) {
            const struct roll_piece piece = piece_at(roll, t, places->begin[chunk + 1]);
            const int64_t to = places->local[chunk] + t - begin;

            FFA_TRY(run_table_add(&rows->rolled, piece.from, to, piece.count, err));
            if (piece.is_outside)
                FFA_TRY(run_table_add(&rows->outside, to, to, piece.count, err));
            t += piece.count;
        }
    }
out:
    return rc;
}

/* ---- the exchange ---- */

struct roll_moves {
    struct move_list list;
    bool *is_reader;
};

/* A piece of a chunk of any rank, by the chunks of its sources. */
static ffa_status add_moves(struct roll_moves *out, const ffa_parallel_rows *rows,
                            const struct places *places, int64_t chunk,
                            const struct roll_piece *piece, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    for (int64_t done = 0; done < piece->count;) {
        const int64_t from = piece->from + done;
        const int64_t source = first_above(places->begin, places->count, from) - 1;
        const struct row_move move = {
            .from = places->local[source] + from - places->begin[source],
            .to = places->local[chunk] + piece->token + done - places->begin[chunk],
            .rows = min64(piece->count - done, places->begin[source + 1] - from),
            .rank = places->rank[source],
        };

        if (places->rank[chunk] == rows->rank)
            FFA_TRY(move_list_add(&out->list, &move, err));
        else if (move.rank == rows->rank)
            out->is_reader[places->rank[chunk]] = true;
        done += move.rows;
    }
out:
    return rc;
}

static int compare_moves(const void *a, const void *b)
{
    const struct row_move *x = a, *y = b;

    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    return (x->from > y->from) - (x->from < y->from);
}

static ffa_status build_exchange(ffa_parallel_rows *rows, const struct places *places,
                                 const struct roll *roll, ffa_error *err)
{
    struct roll_moves moves = { .is_reader = mem_array((size_t)places->rank_count, sizeof(bool)) };
    ffa_status rc = FFA_OK;

    if (!moves.is_reader) {
        rc = error_nomem(err, "the rows of a rank");
        goto out;
    }
    for (int64_t c = 0; c < places->count; c++)
        for (int64_t t = places->begin[c]; t < places->begin[c + 1];) {
            const struct roll_piece piece = piece_at(roll, t, places->begin[c + 1]);

            FFA_TRY(add_moves(&moves, rows, places, c, &piece, err));
            t += piece.count;
        }
    if (moves.list.count > 0)
        qsort(moves.list.moves, (size_t)moves.list.count, sizeof *moves.list.moves, compare_moves);
    rc = exchange_build(&rows->roll,
                        &(struct exchange_plan){ .rank = rows->rank,
                                                 .rank_count = rows->rank_count,
                                                 .published_rows = rows->local_rows,
                                                 .output_rows = rows->local_rows,
                                                 .moves = &moves.list,
                                                 .is_reader = moves.is_reader },
                        err);
out:
    move_list_finish(&moves.list);
    mem_free(moves.is_reader);
    return rc;
}

static ffa_status check_documents(const ffa_parallel_rows_opts *opts, int64_t tokens,
                                  ffa_error *err)
{
    if (!opts->cu_tokens && opts->document_count)
        return error_fail(err, FFA_INVALID, 0, "rows: cu_tokens is NULL, document_count is %lld",
                          (long long)opts->document_count);
    if (!opts->cu_tokens)
        return FFA_OK;
    if (opts->document_count < 1)
        return error_fail(err, FFA_INVALID, 0, "rows: document_count is %lld, not 1 or more",
                          (long long)opts->document_count);
    for (int64_t d = 0; d < opts->document_count; d++)
        if (opts->cu_tokens[d] > opts->cu_tokens[d + 1])
            return error_fail(err, FFA_INVALID, 0, "rows: cu_tokens goes from %lld to %lld",
                              (long long)opts->cu_tokens[d], (long long)opts->cu_tokens[d + 1]);
    if (opts->cu_tokens[0] != 0 || opts->cu_tokens[opts->document_count] != tokens)
        return error_fail(err, FFA_INVALID, 0, "rows: cu_tokens is [%lld, %lld], not [0, %lld]",
                          (long long)opts->cu_tokens[0],
                          (long long)opts->cu_tokens[opts->document_count], (long long)tokens);
    return FFA_OK;
}

ffa_status roll_build(ffa_parallel_rows *rows, const struct places *places,
                      const ffa_parallel_rows_opts *opts, ffa_error *err)
{
    const int64_t all = rows->tokens;
    struct roll roll = { .shift = opts->shift,
                         .ends = opts->cu_tokens ? opts->cu_tokens + 1 : &all,
                         .documents = opts->cu_tokens ? opts->document_count : 1 };
    ffa_status rc;

    FFA_TRY(check_documents(opts, rows->tokens, err));
    FFA_TRY(add_local(rows, places, &roll, err));
    rc = build_exchange(rows, places, &roll, err);
out:
    return rc;
}
