/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows between the sequence and the ranks' buffers: dispatch, undispatch, reduce and roll in host
 * memory. Invariant: a rank's rows are runs of consecutive tokens, one a chunk, and every function
 * goes through them run by run. Sums have a fixed order, by ascending rank, rounded at every step
 * as a transport would round. Tensors are checked as those of a pass are (tensor/tensor.h).
 */
#include "base/half.h"
#include "parallel/dispatch/dispatch.h"
#include "tensor/tensor.h"

#include <ffa/parallel_rows.h>

/* ---- arguments ---- */

static const struct layout *layout_of(const ffa_dispatch *dispatch, int32_t side)
{
    return side == FFA_SIDE_KEYS ? dispatch_key_layout(dispatch) : &dispatch->layout;
}

static ffa_status check_side(const ffa_dispatch *dispatch, int32_t side, ffa_error *err)
{
    if (!dispatch)
        return error_fail(err, FFA_INVALID, 0, "rows: dispatch is NULL");
    if (side != FFA_SIDE_QUERIES && side != FFA_SIDE_KEYS)
        return error_fail(err, FFA_INVALID, 0, "rows: side is %d, not 0 or 1", side);
    return FFA_OK;
}

/* Position ids need no dtype, heads or head_dim. */
static ffa_status check_rank(const ffa_rows *rows, ffa_error *err)
{
    ffa_status rc;

    if (!rows)
        return error_fail(err, FFA_INVALID, 0, "rows is NULL");
    FFA_TRY(check_side(rows->dispatch, rows->side, err));
    if (rows->rank < 0 || rows->rank >= rows->dispatch->topology.rank_count)
        rc = error_fail(err, FFA_INVALID, 0, "rows: rank is %d, not in [0, %d)", rows->rank,
                        rows->dispatch->topology.rank_count);
out:
    return rc;
}

static ffa_status check_rows(const ffa_rows *rows, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(check_rank(rows, err));
    if (ffa_dtype_bytes((ffa_dtype)rows->dtype) == 0)
        rc = error_fail(err, FFA_INVALID, 0, "rows: dtype is %d, not in [1, 4]", rows->dtype);
    else if (rows->heads < 1)
        rc = error_fail(err, FFA_INVALID, 0, "rows: heads is %d, not 1 or more", rows->heads);
    else if (rows->head_dim < 1)
        rc = error_fail(err, FFA_INVALID, 0, "rows: head_dim is %lld, not 1 or more",
                        (long long)rows->head_dim);
    else if (rows->head_dim > TENSOR_STRIDE_MAX / rows->heads)
        rc = error_fail(err, FFA_INVALID, 0, "rows: head_dim is %lld, times %d heads over %lld",
                        (long long)rows->head_dim, rows->heads, (long long)TENSOR_STRIDE_MAX);
out:
    return rc;
}

/* Which of the function's tensors. */
struct role {
    const char *name;
    int32_t index; /* in an array of tensors, or -1 */
    bool is_output;
};

/* *out: the tensor with its strides resolved. */
static ffa_status view_init(ffa_tensor *out, const ffa_rows *rows, const ffa_tensor *tensor,
                            int64_t tokens, struct role role, ffa_error *err)
{
    char name[32];
    const struct tensor_rule rule = { .tensor = out,
                                      .name = name,
                                      .tokens = tokens,
                                      .heads = rows->heads,
                                      .head_dim = rows->head_dim,
                                      .dtype = (ffa_dtype)rows->dtype,
                                      .is_output = role.is_output };

    if (role.index >= 0)
        text_copy(name, "%s[%d]", role.name, role.index);
    else
        text_copy(name, "%s", role.name);
    if (!tensor)
        return error_fail(err, FFA_INVALID, 0, "%s is NULL", name);
    *out = *tensor;
    return tensors_check(&rule, 1, err);
}

static unsigned char *element(const ffa_rows *rows, const ffa_tensor *view, int64_t row,
                              int32_t head)
{
    const int64_t at = row * view->token_stride + head * view->head_stride;

    return (unsigned char *)view->data + at * (int64_t)ffa_dtype_bytes((ffa_dtype)rows->dtype);
}

static void copy_rows(const ffa_rows *rows, const ffa_tensor *to, int64_t to_row,
                      const ffa_tensor *from, int64_t from_row, int64_t count)
{
    const size_t bytes = (size_t)rows->head_dim * ffa_dtype_bytes((ffa_dtype)rows->dtype);

    for (int64_t r = 0; r < count; r++)
        for (int32_t h = 0; h < rows->heads; h++)
            memcpy(element(rows, to, to_row + r, h), element(rows, from, from_row + r, h), bytes);
}

/* ---- the rank's rows, range by range ---- */

struct run {
    int64_t token, row, count;
};

static int64_t run_count(const struct layout *layout, int32_t rank)
{
    return layout->is_replicated ? 1 : layout->rank_begin[rank + 1] - layout->rank_begin[rank];
}

static struct run run_at(const struct layout *layout, int32_t rank, int64_t i)
{
    const int64_t chunk =
        layout->is_replicated ? 0 : layout->rank_chunks[layout->rank_begin[rank] + i];

    return (struct run){ layout->bounds[chunk], layout->local[chunk],
                         layout->bounds[chunk + 1] - layout->bounds[chunk] };
}

ffa_status ffa_rows_position_ids(const ffa_rows *rows, int64_t *ids, ffa_error *err)
{
    const struct layout *layout;
    ffa_status rc;

    FFA_TRY(check_rank(rows, err));
    layout = layout_of(rows->dispatch, rows->side);
    if (!ids && layout->rank_tokens[rows->rank] > 0) {
        rc = error_fail(err, FFA_INVALID, 0, "ids is NULL");
        goto out;
    }
    for (int64_t i = 0; i < run_count(layout, rows->rank); i++) {
        const struct run run = run_at(layout, rows->rank, i);

        for (int64_t r = 0; r < run.count; r++)
            ids[run.row + r] = run.token + r;
    }
out:
    return rc;
}

static ffa_status move(const ffa_rows *rows, const ffa_tensor *whole, const ffa_tensor *local,
                       bool is_dispatch, ffa_error *err)
{
    const struct layout *layout;
    ffa_tensor all, own;
    ffa_status rc;

    FFA_TRY(check_rows(rows, err));
    layout = layout_of(rows->dispatch, rows->side);
    FFA_TRY(view_init(&all, rows, whole, layout->bounds[layout->count],
                      (struct role){ "whole", -1, !is_dispatch }, err));
    FFA_TRY(view_init(&own, rows, local, layout->rank_tokens[rows->rank],
                      (struct role){ "local", -1, is_dispatch }, err));
    for (int64_t i = 0; i < run_count(layout, rows->rank); i++) {
        const struct run run = run_at(layout, rows->rank, i);

        if (is_dispatch)
            copy_rows(rows, &own, run.row, &all, run.token, run.count);
        else
            copy_rows(rows, &all, run.token, &own, run.row, run.count);
    }
out:
    return rc;
}

ffa_status ffa_rows_dispatch(const ffa_rows *rows, const ffa_tensor *whole, const ffa_tensor *local,
                             ffa_error *err)
{
    return move(rows, whole, local, true, err);
}

ffa_status ffa_rows_undispatch(const ffa_rows *rows, const ffa_tensor *local,
                               const ffa_tensor *whole, ffa_error *err)
{
    return move(rows, whole, local, false, err);
}

/* ---- partial gradients ---- */

static double load(int32_t dtype, const unsigned char *at)
{
    uint16_t half;
    float single;
    double wide;

    switch (dtype) {
    case FFA_FP64:
        memcpy(&wide, at, sizeof wide);
        return wide;
    case FFA_FP32:
        memcpy(&single, at, sizeof single);
        return (double)single;
    default:
        memcpy(&half, at, sizeof half);
        return (double)(dtype == FFA_BF16 ? bf16_to_float(half) : fp16_to_float(half));
    }
}

static void store(int32_t dtype, unsigned char *at, double value)
{
    const float single = (float)value;
    uint16_t half;

    switch (dtype) {
    case FFA_FP64:
        memcpy(at, &value, sizeof value);
        return;
    case FFA_FP32:
        memcpy(at, &single, sizeof single);
        return;
    default:
        half = dtype == FFA_BF16 ? bf16_from_float(single) : fp16_from_float(single);
        memcpy(at, &half, sizeof half);
    }
}

static void reduce_row(const ffa_rows *rows, const ffa_tensor *local, int64_t row,
                       const ffa_tensor *wholes, int64_t token)
{
    const int64_t bytes = (int64_t)ffa_dtype_bytes((ffa_dtype)rows->dtype);

    for (int32_t h = 0; h < rows->heads; h++)
        for (int64_t e = 0; e < rows->head_dim; e++) {
            double sum = 0;

            for (int32_t r = 0; r < rows->dispatch->topology.rank_count; r++) {
                sum += load(rows->dtype, element(rows, &wholes[r], token, h) + e * bytes);
                if (rows->dtype != FFA_FP64)
                    sum = (double)(float)sum;
            }
            store(rows->dtype, element(rows, local, row, h) + e * bytes, sum);
        }
}

/* [rank_count] views of tensors that have the tokens of `rank`, or all tokens. *out: to be freed.
 */
static ffa_status views_init(ffa_tensor **out, const ffa_rows *rows, const ffa_tensor *tensors,
                             bool is_whole, const char *name, ffa_error *err)
{
    const struct layout *layout = layout_of(rows->dispatch, rows->side);
    const int32_t ranks = rows->dispatch->topology.rank_count;
    ffa_status rc = FFA_OK;

    if (!tensors)
        return error_fail(err, FFA_INVALID, 0, "%s is NULL", name);
    *out = mem_array((size_t)ranks, sizeof **out);
    if (!*out)
        return error_nomem(err, "the tensors of ranks");
    for (int32_t r = 0; r < ranks; r++)
        FFA_TRY(view_init(&(*out)[r], rows, &tensors[r],
                          is_whole ? layout->bounds[layout->count] : layout->rank_tokens[r],
                          (struct role){ name, r, false }, err));
out:
    return rc;
}

ffa_status ffa_rows_reduce(const ffa_rows *rows, const ffa_tensor *wholes, const ffa_tensor *local,
                           ffa_error *err)
{
    const struct layout *layout;
    ffa_tensor *all = NULL, own;
    ffa_status rc;

    FFA_TRY(check_rows(rows, err));
    layout = layout_of(rows->dispatch, rows->side);
    FFA_TRY(views_init(&all, rows, wholes, true, "wholes", err));
    FFA_TRY(view_init(&own, rows, local, layout->rank_tokens[rows->rank],
                      (struct role){ "local", -1, true }, err));
    for (int64_t i = 0; i < run_count(layout, rows->rank); i++) {
        const struct run run = run_at(layout, rows->rank, i);

        for (int64_t r = 0; r < run.count; r++)
            reduce_row(rows, &own, run.row + r, all, run.token + r);
    }
out:
    mem_free(all);
    return rc;
}

/* ---- roll ---- */

/* Visits the sources of a run's tokens, piece by piece: each in one chunk. */
struct roll {
    const struct layout *layout;
    int64_t tokens, shift; /* shift in [0, tokens) */
};

struct roll_piece {
    int32_t rank; /* the source */
    int64_t row, count;
};

static struct roll roll_init(const struct layout *layout, int64_t shift)
{
    const int64_t tokens = layout->bounds[layout->count];

    return (struct roll){ layout, tokens, (shift % tokens + tokens) % tokens };
}

/* The source of tokens [token, token + piece.count), at most `most`. */
static struct roll_piece roll_source(const struct roll *roll, int32_t rank, int64_t token,
                                     int64_t most)
{
    const struct parts parts = layout_parts(roll->layout);
    const int64_t from =
        token >= roll->shift ? token - roll->shift : token - roll->shift + roll->tokens;
    const int64_t chunk = parts_find(&parts, from);

    return (struct roll_piece){
        .rank = roll->layout->is_replicated ? rank : roll->layout->rank_of[chunk],
        .row = roll->layout->local[chunk] + from - parts.at[chunk],
        .count = min64(most, parts.at[chunk + 1] - from),
    };
}

ffa_status ffa_rows_roll(const ffa_rows *rows, int64_t shift, const ffa_tensor *locals,
                         const ffa_tensor *output, ffa_error *err)
{
    const struct layout *layout;
    ffa_tensor *from = NULL, to;
    struct roll roll;
    ffa_status rc;

    FFA_TRY(check_rows(rows, err));
    layout = layout_of(rows->dispatch, rows->side);
    FFA_TRY(views_init(&from, rows, locals, false, "locals", err));
    FFA_TRY(view_init(&to, rows, output, layout->rank_tokens[rows->rank],
                      (struct role){ "output", -1, true }, err));
    roll = roll_init(layout, shift);
    for (int64_t i = 0; i < run_count(layout, rows->rank); i++) {
        const struct run run = run_at(layout, rows->rank, i);

        for (int64_t done = 0; done < run.count;) {
            const struct roll_piece piece =
                roll_source(&roll, rows->rank, run.token + done, run.count - done);

            copy_rows(rows, &to, run.row + done, &from[piece.rank], piece.row, piece.count);
            done += piece.count;
        }
    }
out:
    mem_free(from);
    return rc;
}
