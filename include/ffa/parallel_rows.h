/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows between the whole sequence and the ranks' buffers: the host reference.
 *
 * A whole tensor holds every token of a side in order; a local one the rows of one rank, as the
 * dispatch packs them. What a framework does with these, and with their gradients:
 *
 *     dispatch     local = its rows of the whole        ffa_rows_dispatch
 *       gradient   whole += the rows, of every rank     ffa_rows_undispatch
 *     undispatch   whole = the rows of every rank       ffa_rows_undispatch, of all ranks
 *       gradient   every rank has the whole gradient    ffa_rows_dispatch
 *       partial    every rank has a part of the sum     ffa_rows_reduce
 *     roll         row of token t = that of t - shift   ffa_rows_roll
 *       gradient   the same with -shift
 *
 * (Dispatch, undispatch, roll: MagiAttention.) Where keys are replicated every rank's local buffer
 * of keys is the whole.
 *
 * Tensors are as tensor.h says: start from FFA_TENSOR_INIT, a stride of 0 is for tensors that are
 * read. Tensors must not overlap, and data may be NULL where a rank has no rows. All fail with
 * FFA_INVALID, naming the argument. Thread: any. Blocks: until done.
 */
#ifndef FFA_PARALLEL_ROWS_H
#define FFA_PARALLEL_ROWS_H

#include <ffa/attention.h>
#include <ffa/parallel_dispatch.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ffa_dispatch_side {
    FFA_SIDE_QUERIES = 0, /* q, out, lse, and their gradients; k, v, too, that live with queries */
    FFA_SIDE_KEYS = 1     /* k, v, and their gradients */
} ffa_dispatch_side;

/* Which rows. */
typedef struct ffa_rows {
    const ffa_dispatch *dispatch;
    int32_t side; /* ffa_dispatch_side */
    int32_t rank;
    int32_t dtype;    /* ffa_dtype */
    int32_t heads;    /* >= 1; heads * head_dim is at most 2^38 */
    int64_t head_dim; /* >= 1; 1 for lse */
} ffa_rows;

/* The token in each row of the rank's buffer, ascending; ids [rows of the rank]. Rotary embeddings
 * and the like are applied to local rows by these. */
FFA_API ffa_status ffa_rows_position_ids(const ffa_rows *rows, int64_t *ids, ffa_error *err);

/* local[row] = whole[token]. */
FFA_API ffa_status ffa_rows_dispatch(const ffa_rows *rows, const ffa_tensor *whole,
                                     const ffa_tensor *local, ffa_error *err);
/* whole[token] = local[row]; tokens of other ranks stay as they are. */
FFA_API ffa_status ffa_rows_undispatch(const ffa_rows *rows, const ffa_tensor *local,
                                       const ffa_tensor *whole, ffa_error *err);
/* local[row] = sum of wholes[r][token], by ascending rank, in fp32 or in fp64 for FFA_FP64; wholes
 * [rank_count]. */
FFA_API ffa_status ffa_rows_reduce(const ffa_rows *rows, const ffa_tensor *wholes,
                                   const ffa_tensor *local, ffa_error *err);
/* output[row of token t] = row of token (t - shift) mod tokens, from the ranks' buffers locals
 * [rank_count]; output is of rows->rank. Any shift. */
FFA_API ffa_status ffa_rows_roll(const ffa_rows *rows, int64_t shift, const ffa_tensor *locals,
                                 const ffa_tensor *output, ffa_error *err);
#ifdef __cplusplus
}
#endif
#endif
