/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels that copy and add rows of tensors on a GPU: what ffa_parallel_rows (parallel_rows.h) and
 * ffa_group_device (group.h) run. Loaded once for a device, used by any number of both.
 */
#ifndef FFA_ROW_KERNELS_H
#define FFA_ROW_KERNELS_H

#include <ffa/context.h>
#include <ffa/kernel.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ffa_reduce_op {
    FFA_REDUCE_SUM = 0,
    FFA_REDUCE_AVG = 1, /* the accumulator counts as one of the values */
    FFA_REDUCE_LSE = 2  /* (out, lse) pairs of attention over disjoint keys; lse is needed */
} ffa_reduce_op;

/* Bits of ffa_row_kernels_opts.reduces. */
#define FFA_ROW_KERNELS_SUM (1u << FFA_REDUCE_SUM)
#define FFA_ROW_KERNELS_AVG (1u << FFA_REDUCE_AVG)
#define FFA_ROW_KERNELS_LSE (1u << FFA_REDUCE_LSE)

typedef struct ffa_row_kernels_opts {
    uint32_t struct_size;
    int32_t dtype; /* of rows that are added, FFA_BF16, FFA_FP16 or FFA_FP32; 0: none are */
    /* What rows are rounded to before they travel to where they are added: 0: dtype, or with
     * FFA_FP32 one of FFA_BF16 and FFA_FP16, for half the bytes. Sums are always made in fp32. */
    int32_t wire_dtype;
    uint32_t reduces; /* which reductions; 0 with dtype 0, and only then */
} ffa_row_kernels_opts;
#define FFA_ROW_KERNELS_OPTS_INIT                                                                  \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_row_kernels_opts)                                      \
    }
FFA_API void ffa_row_kernels_opts_init(ffa_row_kernels_opts *opts, size_t bytes);

/* Immutable. Thread: any number of threads may use one; one destroys it, last. */
typedef struct ffa_row_kernels ffa_row_kernels;

/*
 * Look up or compile, and load. Copies are of any dtype.
 *
 * out   receives the kernels; NULL on failure. Owner: caller, ffa_row_kernels_destroy(), after what
 *       was made with them and before the context is closed.
 * opts  NULL: copies only.
 *
 * Fails as ffa_kernels_create does; FFA_UNSUPPORTED: a context without a GPU. Thread: any. Blocks:
 * up to seconds while compiling.
 */
FFA_API ffa_status ffa_row_kernels_create(ffa_row_kernels **out, ffa_context *context,
                                          const ffa_row_kernels_opts *opts, ffa_error *err);
FFA_API void ffa_row_kernels_destroy(ffa_row_kernels *kernels); /* NULL is allowed */

#ifdef __cplusplus
}
#endif
#endif
