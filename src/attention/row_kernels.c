/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa_row_kernels: which kernels of rows are loaded. Invariant: all that a call may need is loaded
 * here, so that calls neither compile nor load. Rows that travel in another dtype are cast before
 * and after by row_reduce without received rows, so that a reduction has one dtype.
 */
#include "attention/row_kernels.h"

#include "service/context.h"

struct row_reduce_types row_kernels_types(const ffa_row_kernels *kernels, ffa_reduce_op op)
{
    static const enum row_reduce_op ops[REDUCE_OPS] = { ROW_REDUCE_SUM, ROW_REDUCE_AVG,
                                                        ROW_REDUCE_LSE };

    return (struct row_reduce_types){ kernels->dtype, kernels->dtype, ops[op], 0 };
}

static bool is_half(int32_t dtype)
{
    return dtype == FFA_BF16 || dtype == FFA_FP16;
}

static ffa_status resolve(ffa_row_kernels_opts *out, const ffa_context *context,
                          const ffa_row_kernels_opts *opts, ffa_error *err)
{
    const uint32_t known = FFA_ROW_KERNELS_SUM | FFA_ROW_KERNELS_AVG | FFA_ROW_KERNELS_LSE;
    ffa_status rc;

    FFA_TRY(opts_import(out, sizeof *out, opts, err));
    if (!context)
        return error_fail(err, FFA_INVALID, 0, "row kernels: context is NULL");
    if (!context->gpu)
        return error_fail(err, FFA_UNSUPPORTED, 0,
                          "row kernels: the context has no GPU; rows in host memory are moved by "
                          "ffa_rows_dispatch and ffa_group_cast_host");
    if (out->reduces & ~known)
        return error_fail(err, FFA_UNSUPPORTED, 0, "row kernels: reduces is 0x%x, known are 0x%x",
                          out->reduces, known);
    if (out->dtype && out->dtype != FFA_FP32 && !is_half(out->dtype))
        return error_fail(err, FFA_INVALID, 0,
                          "row kernels: dtype is %d, not 0, bf16 (%d), fp16 (%d) or fp32 (%d)",
                          out->dtype, FFA_BF16, FFA_FP16, FFA_FP32);
    if (!out->dtype != !out->reduces)
        return error_fail(err, FFA_INVALID, 0, "row kernels: dtype is %d, reduces 0x%x", out->dtype,
                          out->reduces);
    if (out->wire_dtype && out->wire_dtype != out->dtype &&
        !(out->dtype == FFA_FP32 && is_half(out->wire_dtype)))
        return error_fail(err, FFA_INVALID, 0,
                          "row kernels: wire_dtype is %d with dtype %d: rows of fp32 alone travel "
                          "as bf16 or fp16",
                          out->wire_dtype, out->dtype);
    out->wire_dtype = out->wire_dtype ? out->wire_dtype : out->dtype;
out:
    return rc;
}

static ffa_status load(ffa_row_kernels *kernels, uint32_t reduces, ffa_error *err)
{
    const struct row_reduce_types narrow = { kernels->dtype, kernels->wire, ROW_REDUCE_SUM, 0 };
    const struct row_reduce_types widen = { kernels->wire, kernels->dtype, ROW_REDUCE_SUM, 0 };
    ffa_status rc;

    FFA_TRY(row_copy_load(&kernels->copy, err));
    for (int op = 0; op < REDUCE_OPS; op++) {
        const struct row_reduce_types types = row_kernels_types(kernels, (ffa_reduce_op)op);

        if (reduces >> op & 1)
            FFA_TRY(row_reduce_load(&kernels->ops[op], &kernels->copy, &types, err));
    }
    if (kernels->wire == kernels->dtype)
        goto out;
    FFA_TRY(row_reduce_load(&kernels->narrow, &kernels->copy, &narrow, err));
    rc = row_reduce_load(&kernels->widen, &kernels->copy, &widen, err);
out:
    return rc;
}

ffa_status ffa_row_kernels_create(ffa_row_kernels **out, ffa_context *context,
                                  const ffa_row_kernels_opts *opts, ffa_error *err)
{
    ffa_row_kernels *kernels = NULL;
    ffa_row_kernels_opts resolved;
    ffa_status rc;

    if (!out)
        return error_fail(err, FFA_INVALID, 0, "row kernels: out is NULL");
    *out = NULL;
    FFA_TRY(resolve(&resolved, context, opts, err));
    kernels = mem_array(1, sizeof *kernels);
    if (!kernels) {
        rc = error_nomem(err, "kernels of rows");
        goto out;
    }
    kernels->copy.context = context;
    kernels->dtype = (ffa_dtype)resolved.dtype;
    kernels->wire = (ffa_dtype)resolved.wire_dtype;
    FFA_TRY(load(kernels, resolved.reduces, err));
    *out = kernels;
    kernels = NULL;
out:
    ffa_row_kernels_destroy(kernels);
    return rc;
}

void ffa_row_kernels_destroy(ffa_row_kernels *kernels)
{
    if (!kernels)
        return;
    rows_kernels_unload(&kernels->copy);
    for (int op = 0; op < REDUCE_OPS; op++)
        gpu_kernel_unload(kernels->ops[op]);
    gpu_kernel_unload(kernels->narrow);
    gpu_kernel_unload(kernels->widen);
    mem_free(kernels);
}
