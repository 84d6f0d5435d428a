/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows between the whole sequence and the ranks' buffers: on GPUs, and the host reference.
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
 * On GPUs the same functions are named ffa_parallel_rows_...: below.
 *
 * (Dispatch, undispatch, roll: MagiAttention.) Where keys are replicated every rank's local buffer
 * of keys is the whole.
 *
 * Tensors are as tensor.h says: start from FFA_TENSOR_INIT, a stride of 0 is for tensors that are
 * read. Tensors must not overlap, and data may be NULL where a rank has no rows. All fail with
 * FFA_INVALID, naming the argument. Thread: any. Blocks, on the host: until done.
 */
#ifndef FFA_PARALLEL_ROWS_H
#define FFA_PARALLEL_ROWS_H

#include <ffa/attention.h>
#include <ffa/comm.h>
#include <ffa/parallel_dispatch.h>
#include <ffa/row_kernels.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ffa_dispatch_side {
    FFA_SIDE_QUERIES = 0, /* q, out, lse, and their gradients; k, v, too, that live with queries */
    FFA_SIDE_KEYS = 1     /* k, v, and their gradients */
} ffa_dispatch_side;

/* ---- in host memory ---- */

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

/* ---- on GPUs ---- */

/*
 * The rows of one rank, as tables for a device: made once for a dispatch, used by all tensors.
 *
 * Calls only enqueue on a stream: no allocation, no synchronisation, no wait of the host. Tensors
 * are in memory of the kernels' device, aligned to their elements, and live until the call
 * completes. Two kinds of calls:
 *
 * Local ones need no other rank, and graphs can capture them. In a context-parallel step every rank
 * has the whole input, so dispatch is local.
 *
 * Collective ones take a communicator of GPUs (ffa_comm_create_peer), as passes do
 * (parallel_pass.h): all ranks make the same calls in the same order; rows travel through the key
 * windows, which ffa_parallel_rows_info_get says the bytes of, pulled by copy engines; a call
 * begins when the communicator's call before it has ended. What goes wrong after a call was
 * enqueued ffa_comm_status tells, and results of calls that were under way are then unspecified.
 * FFA_INVALID while the stream captures a graph.
 *
 * All fail with FFA_INVALID: an argument, named with its value and limit, and nothing was enqueued,
 * the group stays whole; FFA_GPU; collective ones also with FFA_COMM and FFA_TIMEOUT, of a broken
 * group, which FFA_GPU breaks, too. Thread: any; one call of an object at a time. Blocks: no.
 */
typedef struct ffa_parallel_rows ffa_parallel_rows;

typedef struct ffa_parallel_rows_opts {
    uint32_t struct_size;
    int32_t side; /* ffa_dispatch_side */
    int32_t rank;
    int32_t pad_;
    /* Of roll: any. Row of token t = that of t - shift, so the next token of each has shift -1. */
    int64_t shift;
    /* Documents of roll: document d is [cu_tokens[d], cu_tokens[d + 1]), from 0 to the tokens of
     * the side, ascending, empty ones allowed; [document_count + 1], read during the call. NULL:
     * the whole sequence is one. A roll stays within each document, cyclically. */
    const int64_t *cu_tokens;
    int64_t document_count;
} ffa_parallel_rows_opts;
#define FFA_PARALLEL_ROWS_OPTS_INIT                                                                \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_parallel_rows_opts)                                    \
    }
FFA_API void ffa_parallel_rows_opts_init(ffa_parallel_rows_opts *opts, size_t bytes);

/*
 * out      receives the object; NULL on failure. Owner: caller, ffa_parallel_rows_destroy() when
 * its calls are over. Does not need the dispatch. kernels  must outlive the object. opts     NULL:
 * rank 0, queries, no shift.
 *
 * Fails with FFA_INVALID; FFA_UNSUPPORTED: more than 2^31 - 1 rows, an option newer than this
 * library; FFA_NOMEM, FFA_GPU. Cost: linear in chunks and documents. Thread: any. Blocks: host
 * work. Needs no other rank.
 */
FFA_API ffa_status ffa_parallel_rows_create(ffa_parallel_rows **out, const ffa_dispatch *dispatch,
                                            const ffa_row_kernels *kernels,
                                            const ffa_parallel_rows_opts *opts, ffa_error *err);
FFA_API void ffa_parallel_rows_destroy(ffa_parallel_rows *rows); /* NULL is allowed */

/* What a row is: [heads][columns] elements. */
typedef struct ffa_row_format {
    int32_t element_bytes; /* 1, 2, 4 or 8 */
    int32_t heads;         /* >= 1 */
    int64_t columns;       /* >= 1; heads * columns * element_bytes is below 2^31 */
} ffa_row_format;

/* In bytes; windows: of this rank. */
typedef struct ffa_parallel_rows_info {
    uint32_t struct_size;
    int32_t pad_;
    int64_t whole_rows, local_rows; /* of tensors */
    int64_t upload_bytes;           /* of ffa_parallel_rows_upload's buffer */
    int64_t undispatch_bytes;       /* of the key window, for calls with the format */
    int64_t roll_bytes;
    int64_t reduce_bytes; /* 0 of kernels without FFA_ROW_KERNELS_SUM */
} ffa_parallel_rows_info;
#define FFA_PARALLEL_ROWS_INFO_INIT                                                                \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_parallel_rows_info)                                    \
    }
FFA_API void ffa_parallel_rows_info_init(ffa_parallel_rows_info *info, size_t bytes);
FFA_API ffa_status ffa_parallel_rows_info_get(const ffa_parallel_rows *rows,
                                              const ffa_row_format *format,
                                              ffa_parallel_rows_info *out, ffa_error *err);

/* Enqueue the copy of the tables to `buffer` (memory of the kernels' device, upload_bytes, 256-byte
 * aligned), which must stay until the last call has finished. Must precede the calls. As
 * ffa_plan_upload. Thread: one at a time per object. */
FFA_API ffa_status ffa_parallel_rows_upload(ffa_parallel_rows *rows, void *buffer,
                                            ffa_stream stream, ffa_error *err);

/* Local: the token in each row of the rank's buffer; ids [local_rows], device memory. */
FFA_API ffa_status ffa_parallel_rows_position_ids(const ffa_parallel_rows *rows, int64_t *ids,
                                                  ffa_stream stream, ffa_error *err);

/* Local: local[row] = whole[token]. Also the gradient of undispatch where every rank has all of it.
 */
FFA_API ffa_status ffa_parallel_rows_dispatch(const ffa_parallel_rows *rows,
                                              const ffa_row_format *format, const ffa_tensor *whole,
                                              const ffa_tensor *local, ffa_stream stream,
                                              ffa_error *err);
/* Local: local[row of token t] = whole[t - shift]: roll, then dispatch. fill: NULL, or what every
 * element of a row becomes whose source is outside its document, as the low element_bytes of it
 * (labels: what the loss ignores); read during the call. */
FFA_API ffa_status ffa_parallel_rows_dispatch_rolled(const ffa_parallel_rows *rows,
                                                     const ffa_row_format *format,
                                                     const ffa_tensor *whole,
                                                     const ffa_tensor *local, const uint64_t *fill,
                                                     ffa_stream stream, ffa_error *err);

/* Flags of ffa_parallel_rows_scatter. */
#define FFA_ROWS_CLEAR 1u /* tokens of other ranks become 0; else they stay as they are */
/* Local: whole[token] = local[row]: the gradient of dispatch, as far as the rank has it. */
FFA_API ffa_status ffa_parallel_rows_scatter(const ffa_parallel_rows *rows,
                                             const ffa_row_format *format, const ffa_tensor *local,
                                             const ffa_tensor *whole, uint32_t flags,
                                             ffa_stream stream, ffa_error *err);

/* Collective: whole = the rows of all ranks, on every rank. Also the whole gradient of dispatch. */
FFA_API ffa_status ffa_parallel_rows_undispatch(ffa_parallel_rows *rows, ffa_comm *comm,
                                                const ffa_row_format *format,
                                                const ffa_tensor *local, const ffa_tensor *whole,
                                                ffa_stream stream, ffa_error *err);
/* Collective: local[row] = the sum of all ranks' whole[token], by ascending rank in fp32, with the
 * same bits in every run: the gradient of undispatch where every rank has a part of it. Of kernels
 * with FFA_ROW_KERNELS_SUM, whose dtype the tensors have. */
FFA_API ffa_status ffa_parallel_rows_reduce(ffa_parallel_rows *rows, ffa_comm *comm,
                                            const ffa_row_format *format, const ffa_tensor *whole,
                                            const ffa_tensor *local, ffa_stream stream,
                                            ffa_error *err);
/* Collective: output[row of token t] = the row of token t - shift, from the ranks' local tensors.
 * fill: as of ffa_parallel_rows_dispatch_rolled; all ranks give one, or none. The gradient, without
 * fill, is the same with -shift. */
FFA_API ffa_status ffa_parallel_rows_roll(ffa_parallel_rows *rows, ffa_comm *comm,
                                          const ffa_row_format *format, const ffa_tensor *local,
                                          const ffa_tensor *output, const uint64_t *fill,
                                          ffa_stream stream, ffa_error *err);

#ifdef __cplusplus
}
#endif
#endif
