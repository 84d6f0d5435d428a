/* SPDX-License-Identifier: Apache-2.0
 *
 * Group cast and group reduce in host memory: the reference that transports are compared with.
 * Invariant: sums and merges go by ascending rank of the sender, each rounded to the dtype it is
 * kept in, so a transport that adds in the same order gets the same bits.
 */
#include "parallel/run/group.h"

#include <math.h>

/* ---- arguments ---- */

static ffa_status check_format(const ffa_group_format *format, ffa_error *err)
{
    if (format->dtype != FFA_FP32 && format->dtype != FFA_FP64)
        return error_fail(err, FFA_INVALID, 0, "format: dtype is %d, not FFA_FP32 or FFA_FP64",
                          format->dtype);
    if (format->heads < 1 || format->head_dim < 1 || format->head_dim > INT32_MAX)
        return error_fail(err, FFA_INVALID, 0, "format: %d heads of %lld elements", format->heads,
                          (long long)format->head_dim);
    return FFA_OK;
}

static ffa_status check_call(const ffa_group *group, const ffa_group_format *format,
                             const void *from, const void *to, ffa_error *err)
{
    const char *missing = !group    ? "group"
                          : !format ? "format"
                          : !from   ? "the list of sources"
                          : !to     ? "the list of targets"
                                    : NULL;

    if (missing)
        return error_fail(err, FFA_INVALID, 0, "%s is NULL", missing);
    return check_format(format, err);
}

static ffa_status check_buffer(const char *name, const char *part, int32_t rank, const void *buffer,
                               int64_t rows, ffa_error *err)
{
    if (buffer || rows == 0)
        return FFA_OK;
    return error_fail(err, FFA_INVALID, 0, "rank %d: the %s of its %s buffer of %lld rows is NULL",
                      rank, part, name, (long long)rows);
}

/* ---- cast ---- */

static void copy_rows(void *to, const void *from, const ffa_group_copy *copy, size_t row_bytes)
{
    memcpy((char *)to + (size_t)copy->output_row * row_bytes,
           (const char *)from + (size_t)copy->input_row * row_bytes,
           (size_t)copy->rows * row_bytes);
}

ffa_status ffa_group_cast_host(const ffa_group *group, const ffa_group_format *format,
                               const ffa_group_source *input, const ffa_group_target *output,
                               ffa_error *err)
{
    size_t lse_bytes, row_bytes;
    ffa_status rc;

    FFA_TRY(check_call(group, format, input, output, err));
    lse_bytes = (size_t)format->heads * (format->dtype == FFA_FP32 ? 4 : 8);
    row_bytes = lse_bytes * (size_t)format->head_dim;
    for (int32_t r = 0; r < group->rank_count; r++) {
        const ffa_group_size *size = &group->sizes[r];

        FFA_TRY(check_buffer("input", "data", r, input[r].data, size->input_rows, err));
        FFA_TRY(check_buffer("output", "data", r, output[r].data, size->output_rows, err));
    }
    for (int32_t r = 0; r < group->rank_count; r++)
        for (int64_t i = group->receives.begin[r]; i < group->receives.begin[r + 1]; i++) {
            const ffa_group_copy *copy = &group->receives.copies[i];

            copy_rows(output[r].data, input[copy->rank].data, copy, row_bytes);
            if (output[r].lse && input[copy->rank].lse)
                copy_rows(output[r].lse, input[copy->rank].lse, copy, lse_bytes);
        }
out:
    return rc;
}

/* ---- reduce ---- */

/* One text for both types. Each value is rounded to the type where it is kept, so that a transport
 * which adds in the same order gets the same bits. */
static double load(const void *at, int64_t index, int32_t dtype)
{
    return dtype == FFA_FP32 ? (double)((const float *)at)[index] : ((const double *)at)[index];
}

static void store(void *at, int64_t index, int32_t dtype, double value)
{
    if (dtype == FFA_FP32)
        ((float *)at)[index] = (float)value;
    else
        ((double *)at)[index] = value;
}

struct reduce {
    const ffa_group_format *format;
    const ffa_group_source *from;
    const ffa_group_target *to;
    int64_t *values; /* of each accumulator row, itself included; FFA_REDUCE_AVG */
};

static void add_row(const struct reduce *r, int64_t to_row, int64_t from_row)
{
    const int64_t elems = r->format->heads * r->format->head_dim;
    const int32_t dtype = r->format->dtype;

    for (int64_t e = 0; e < elems; e++)
        store(r->to->data, to_row * elems + e, dtype,
              load(r->to->data, to_row * elems + e, dtype) +
                  load(r->from->data, from_row * elems + e, dtype));
    if (r->values)
        r->values[to_row]++;
}

/* (out, lse) of one head row: the weights e^(lse - top) are at most 1, and 0 where lse is -inf. */
static void merge_head(const struct reduce *r, int64_t to, int64_t from)
{
    const int64_t dim = r->format->head_dim;
    const int32_t dtype = r->format->dtype;
    const double a = load(r->to->lse, to, dtype), b = load(r->from->lse, from, dtype);
    const double top = a > b ? a : b;
    double wa, wb, sum;

    if (b == -INFINITY)
        return;
    wa = a == -INFINITY ? 0 : exp(a - top);
    wb = exp(b - top);
    sum = wa + wb;
    for (int64_t e = 0; e < dim; e++) {
        const double mine = wa > 0 ? wa * load(r->to->data, to * dim + e, dtype) : 0;

        store(r->to->data, to * dim + e, dtype,
              (mine + wb * load(r->from->data, from * dim + e, dtype)) / sum);
    }
    store(r->to->lse, to, dtype, top + log(sum));
}

static void merge_row(const struct reduce *r, int64_t to_row, int64_t from_row)
{
    for (int32_t h = 0; h < r->format->heads; h++)
        merge_head(r, to_row * r->format->heads + h, from_row * r->format->heads + h);
}

/* Before the first value: an accumulator without keys holds nothing. */
static void clear_empty(const struct reduce *r, int64_t rows)
{
    const int64_t dim = r->format->head_dim;

    for (int64_t i = 0; i < rows * r->format->heads; i++)
        for (int64_t e = 0; e < dim && load(r->to->lse, i, r->format->dtype) == -INFINITY; e++)
            store(r->to->data, i * dim + e, r->format->dtype, 0);
}

static void divide(const struct reduce *r, int64_t rows)
{
    const int64_t elems = r->format->heads * r->format->head_dim;
    const int32_t dtype = r->format->dtype;

    for (int64_t row = 0; row < rows; row++)
        for (int64_t e = row * elems; e < (row + 1) * elems && r->values[row] > 1; e++)
            store(r->to->data, e, dtype, load(r->to->data, e, dtype) / (double)r->values[row]);
}

/* The sends of a rank name what comes back to it, by ascending rank. */
static ffa_status reduce_rank(const ffa_group *group, struct reduce *r, ffa_reduce_op op,
                              const ffa_group_source *partial, int32_t rank, ffa_error *err)
{
    const int64_t rows = group->sizes[rank].input_rows;

    r->values = NULL;
    if (op == FFA_REDUCE_AVG) {
        r->values = mem_array((size_t)rows, sizeof *r->values);
        if (!r->values)
            return error_nomem(err, "the counts of an average");
        for (int64_t row = 0; row < rows; row++)
            r->values[row] = 1;
    }
    if (op == FFA_REDUCE_LSE)
        clear_empty(r, rows);
    for (int64_t i = group->sends.begin[rank]; i < group->sends.begin[rank + 1]; i++) {
        const ffa_group_copy *copy = &group->sends.copies[i];

        r->from = &partial[copy->rank];
        for (int64_t row = 0; row < copy->rows; row++)
            (op == FFA_REDUCE_LSE ? merge_row : add_row)(r, copy->input_row + row,
                                                         copy->output_row + row);
    }
    if (r->values)
        divide(r, rows);
    mem_free(r->values);
    return FFA_OK;
}

ffa_status ffa_group_reduce_host(const ffa_group *group, const ffa_group_format *format,
                                 ffa_reduce_op op, const ffa_group_source *partial,
                                 const ffa_group_target *accumulator, ffa_error *err)
{
    struct reduce reduce = { .format = format };
    ffa_status rc;

    FFA_TRY(check_call(group, format, partial, accumulator, err));
    if (op != FFA_REDUCE_SUM && op != FFA_REDUCE_AVG && op != FFA_REDUCE_LSE)
        return error_fail(err, FFA_INVALID, 0, "op is %d, not in [0, %d]", (int)op, FFA_REDUCE_LSE);
    for (int32_t r = 0; r < group->rank_count; r++) {
        const ffa_group_size *size = &group->sizes[r];

        FFA_TRY(check_buffer("partial", "data", r, partial[r].data, size->output_rows, err));
        FFA_TRY(check_buffer("accumulator", "data", r, accumulator[r].data, size->input_rows, err));
        if (op != FFA_REDUCE_LSE)
            continue;
        FFA_TRY(check_buffer("partial", "lse", r, partial[r].lse, size->output_rows, err));
        FFA_TRY(check_buffer("accumulator", "lse", r, accumulator[r].lse, size->input_rows, err));
    }
    for (int32_t r = 0; r < group->rank_count; r++) {
        reduce.to = &accumulator[r];
        FFA_TRY(reduce_rank(group, &reduce, op, partial, r, err));
    }
out:
    return rc;
}
