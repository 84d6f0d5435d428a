/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels of rows as an object: row_copy, and row_reduce of one dtype.
 */
#ifndef FFA_ATTENTION_ROW_KERNELS_H
#define FFA_ATTENTION_ROW_KERNELS_H

#include "attention/rows_device.h"

#include <ffa/row_kernels.h>

enum { REDUCE_OPS = FFA_REDUCE_LSE + 1 };

struct ffa_row_kernels {
    struct ffa_kernels copy;            /* context, row_copy and row_copy_runs; the rest is zero */
    ffa_dtype dtype, wire;              /* 0: nothing is reduced */
    struct gpu_kernel *ops[REDUCE_OPS]; /* dtype to dtype; NULL: not asked for */
    struct gpu_kernel *narrow, *widen;  /* dtype to wire, and back; NULL where they are the same */
};

/* What ops[op] is compiled for. */
struct row_reduce_types row_kernels_types(const ffa_row_kernels *kernels, ffa_reduce_op op);

#endif
