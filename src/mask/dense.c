/* SPDX-License-Identifier: Apache-2.0
 *
 * A mask from a dense boolean array: each row is cut into runs of attended keys, and the runs of
 * consecutive rows go together as slices. Nothing but one row's runs is kept besides the slices.
 */
#include "mask/runs.h"

static ffa_status stride_check(int64_t stride, int64_t count, const char *name, ffa_error *err)
{
    const int64_t most = INT64_MAX / 4 / count;

    if (stride < 0 || stride > most)
        return error_fail(err, FFA_INVALID, 0, "%s is %lld, not in [0, %lld]", name,
                          (long long)stride, (long long)most);
    return FFA_OK;
}

static ffa_status dense_check(const ffa_dense_mask *dense, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(mask_check_shape(&dense->shape, err));
    if (dense->heads < 1 || dense->heads > HEADS_KV_MAX) {
        rc = error_fail(err, FFA_INVALID, 0, "heads is %d, not in [1, %d]", dense->heads,
                        HEADS_KV_MAX);
        goto out;
    }
    if (!dense->cells) {
        rc = error_fail(err, FFA_INVALID, 0, "cells is NULL");
        goto out;
    }
    FFA_TRY(stride_check(dense->row_stride, dense->shape.seqlen_q, "row_stride", err));
    if (dense->heads > 1)
        FFA_TRY(stride_check(dense->head_stride, dense->heads, "head_stride", err));
out:
    return rc;
}

/* One head. Rows are read once each; a row that is repeated, once in all. */
static ffa_status head_scan(struct slices *out, const ffa_dense_mask *dense, const uint8_t *cells,
                            ffa_error *err)
{
    const int64_t step = dense->row_stride ? 1 : dense->shape.seqlen_q;
    struct tracker tracker = { .out = out };
    struct row_runs runs = { 0 };
    ffa_status rc = FFA_OK;

    for (int64_t row = 0; row < dense->shape.seqlen_q; row += step) {
        runs.count = 0;
        FFA_TRY(
            row_runs_scan(&runs, cells + row * dense->row_stride, dense->shape.seqlen_k, 0, err));
        FFA_TRY(tracker_rows(&tracker, row, row + step, &runs, err));
    }
out:
    mem_free(runs.at);
    return tracker_finish(&tracker, rc, err);
}

ffa_status ffa_mask_from_dense(ffa_mask **out, const ffa_dense_mask *dense, ffa_error *err)
{
    struct slice_lists lists = { NULL, 0 };
    ffa_dense_mask own = { 0 };
    ffa_status rc;

    FFA_TRY(out_clear(out, err));
    if (!dense) {
        rc = error_fail(err, FFA_INVALID, 0, "dense is NULL");
        goto out;
    }
    FFA_TRY(opts_import(&own, sizeof own, dense, err));
    FFA_TRY(dense_check(&own, err));
    FFA_TRY(slice_lists_init(&lists, own.heads, err));
    for (int32_t head = 0; head < own.heads; head++)
        FFA_TRY(head_scan(&lists.at[head], &own,
                          own.cells + (own.heads > 1 ? head * own.head_stride : 0), err));
out:
    return slice_lists_to_mask(out, &own.shape, &lists, rc, err);
}
