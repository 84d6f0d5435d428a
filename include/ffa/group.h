/* SPDX-License-Identifier: Apache-2.0
 *
 * Group cast and group reduce: tables over arbitrary split lists, calls that run them on GPUs, and
 * a reference that runs them in host memory.
 *
 * Cast: every rank cuts the rows of its input buffer into pieces, and each piece goes to any number
 * of ranks, none too; every rank cuts the rows of its output buffer into pieces, and each comes
 * from one rank. What one rank sends another arrives in the order of its input: the rows of its
 * pieces for that rank, one after another, fill the pieces the other expects of it. So pieces may
 * be cut differently on both sides, as long as the sums agree.
 *
 * Reduce is the transpose: rows travel from the cast's output buffers (partial results) back to the
 * cast's input buffers (accumulators), which already hold a value and take in one of every rank the
 * row was cast to, in ascending order of ranks, whatever the order of the lists: the result is
 * reproducible. A reduce stated by itself, with one destination a piece and many sources a piece,
 * is this object with its lists exchanged: input_rows and dst are the reduce's output splits and
 * source lists, output_rows and src its input splits and destinations.
 *
 * (Group cast and group reduce: MagiAttention. One object for both directions, ascending order and
 * sums instead of equal cuts: ours.)
 *
 * Units: rows of buffers.
 */
#ifndef FFA_GROUP_H
#define FFA_GROUP_H

#include <ffa/comm.h>
#include <ffa/kernel.h>
#include <ffa/row_kernels.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What one rank casts. Pieces of 0 rows may stand anywhere, as padding; their ranks are ignored. */
typedef struct ffa_group_lists {
    const int64_t *input_rows;  /* [input_count], none negative */
    const int64_t *dst_begin;   /* [input_count + 1], from 0, non-decreasing: piece i goes to */
    const int32_t *dst;         /* dst[dst_begin[i]] .. dst[dst_begin[i + 1] - 1], no rank twice */
    const int64_t *output_rows; /* [output_count], none negative */
    const int32_t *src;         /* [output_count]: the rank each comes from */
    int64_t input_count;
    int64_t output_count;
} ffa_group_lists;

/* Immutable. Thread: any number of threads may read one; one destroys it, last. */
typedef struct ffa_group ffa_group;

/*
 * Build the tables of all ranks from the lists of all ranks. A rank may cast to itself.
 *
 * out    receives the group; NULL on failure. Owner: caller, ffa_group_destroy().
 * lists  [rank_count], read during the call; 1 <= rank_count <= 4096.
 *
 * Fails with FFA_INVALID, naming the rank and the piece: a rank outside the group, one that stands
 * twice in a piece, a negative count, two ranks whose sums differ; FFA_NOMEM. Cost: linear in the
 * lists. Thread: any. Blocks: no.
 */
FFA_API ffa_status ffa_group_create(ffa_group **out, const ffa_group_lists *lists,
                                    int32_t rank_count, ffa_error *err);
FFA_API void ffa_group_destroy(ffa_group *group);

/* Rows that move between two ranks (or inside one) in one piece. */
typedef struct ffa_group_copy {
    uint32_t struct_size;
    int32_t rank;       /* the other one */
    int64_t input_row;  /* first row in the source's input buffer */
    int64_t output_row; /* first row in the destination's output buffer */
    int64_t rows;
} ffa_group_copy;
#define FFA_GROUP_COPY_INIT                                                                        \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_group_copy)                                            \
    }
FFA_API void ffa_group_copy_init(ffa_group_copy *copy, size_t bytes);

/* Receives: what fills the rank's output buffer, in the order of its rows. Sends: what leaves the
 * rank's input buffer, by destination, then in the order of rows. Neighbours on both sides are one
 * copy. The sends of all ranks are the transpose of the receives of all. Counts are 0 for
 * a NULL group or a rank it has not; the others fail with FFA_INVALID: an index that is not below
 * the count. */
FFA_API int64_t ffa_group_receive_count(const ffa_group *group, int32_t rank);
FFA_API ffa_status ffa_group_receive_get(const ffa_group *group, int32_t rank, int64_t index,
                                         ffa_group_copy *out, ffa_error *err);
FFA_API int64_t ffa_group_send_count(const ffa_group *group, int32_t rank);
FFA_API ffa_status ffa_group_send_get(const ffa_group *group, int32_t rank, int64_t index,
                                      ffa_group_copy *out, ffa_error *err);

/* Rows of a rank's buffers. */
typedef struct ffa_group_size {
    uint32_t struct_size;
    int32_t pad_;
    int64_t input_rows, output_rows;
    int64_t sent_rows;     /* to other ranks, once for each */
    int64_t received_rows; /* from other ranks */
} ffa_group_size;
#define FFA_GROUP_SIZE_INIT                                                                        \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_group_size)                                            \
    }
FFA_API void ffa_group_size_init(ffa_group_size *size, size_t bytes);
/* Fails with FFA_INVALID: a rank the group has not. */
FFA_API ffa_status ffa_group_size_get(const ffa_group *group, int32_t rank, ffa_group_size *out,
                                      ffa_error *err);

/* ---- buffers ---- */

/* data [rows][heads][head_dim]; lse [rows][heads], natural logarithm, -inf: no keys. Packed. */
typedef struct ffa_group_format {
    /* In host memory FFA_FP32 or FFA_FP64, of data and lse. On GPUs of data alone, as lse is fp32:
     * any for casts (of other elements: one of as many bytes), that of the kernels for reductions.
     */
    int32_t dtype;
    int32_t heads;    /* >= 1 */
    int64_t head_dim; /* >= 1; for plain rows: heads 1, head_dim the elements of a row */
} ffa_group_format;

/* Buffers of one rank. lse may be NULL where none is moved; data where the rank has no rows. */
typedef struct ffa_group_source {
    const void *data;
    const void *lse;
} ffa_group_source;
typedef struct ffa_group_target {
    void *data;
    void *lse;
} ffa_group_target;

/* ---- the reference: buffers of all ranks in one process ---- */

/*
 * input [rank_count], output [rank_count]: as the group's buffers. lse is cast where a source and
 * its destination both have one. Inputs and outputs must not overlap.
 * Fails with FFA_INVALID, naming the rank whose buffer is NULL. Thread: any. Blocks: until done.
 */
FFA_API ffa_status ffa_group_cast_host(const ffa_group *group, const ffa_group_format *format,
                                       const ffa_group_source *input,
                                       const ffa_group_target *output, ffa_error *err);

/*
 * partial [rank_count]: as the group's output buffers; accumulator [rank_count]: as its input
 * buffers, read and written. Rows cast to nobody stay as they are. With FFA_REDUCE_LSE a value of
 * lse -inf takes no part, whatever its data holds; where all are -inf, out is 0.
 * Fails with FFA_INVALID, naming the rank whose buffer is NULL; FFA_NOMEM. Thread: any. Blocks:
 * until done.
 */
FFA_API ffa_status ffa_group_reduce_host(const ffa_group *group, const ffa_group_format *format,
                                         ffa_reduce_op op, const ffa_group_source *partial,
                                         const ffa_group_target *accumulator, ffa_error *err);

/* ---- on GPUs ---- */

/*
 * One rank's part of a group, as tables for a device: made once for a group, used by buffers of any
 * format. Calls are collective, over a communicator of GPUs (ffa_comm_create_peer), as passes are
 * (parallel_pass.h): all ranks make the same calls in the same order. Rows travel through the key
 * windows, pulled by copy engines, by source, from the next rank on.
 *
 * A call only enqueues on its stream: no allocation, no synchronisation, no wait of the host. It
 * begins when the communicator's call before it has ended. Buffers are in memory of the kernels'
 * device, aligned to their elements, and live until the call completes. What goes wrong after a
 * call was enqueued ffa_comm_status tells: results of calls that were under way are then
 * unspecified.
 */
typedef struct ffa_group_device ffa_group_device;

/*
 * out      receives the object; NULL on failure. Owner: caller, ffa_group_device_destroy() when its
 *          calls are over. Does not need the group.
 * kernels  must outlive the object; for ffa_group_reduce with its reductions.
 *
 * Fails with FFA_INVALID; FFA_UNSUPPORTED: more than 2^31 - 1 rows; FFA_NOMEM, FFA_GPU. Thread:
 * any. Blocks: host work. Needs no other rank.
 */
FFA_API ffa_status ffa_group_device_create(ffa_group_device **out, const ffa_group *group,
                                           int32_t rank, const ffa_row_kernels *kernels,
                                           ffa_error *err);
FFA_API void ffa_group_device_destroy(ffa_group_device *device); /* NULL is allowed */

/* Flags of a cast. */
#define FFA_GROUP_LSE 1u /* every row has its lse with it */

/* In bytes; windows: of this rank. */
typedef struct ffa_group_device_info {
    uint32_t struct_size;
    int32_t pad_;
    int64_t upload_bytes; /* of ffa_group_device_upload's buffer */
    int64_t cast_bytes;   /* of the key window, for calls with the format */
    int64_t reduce_bytes; /* 0 of kernels that do not reduce the dtype */
} ffa_group_device_info;
#define FFA_GROUP_DEVICE_INFO_INIT                                                                 \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_group_device_info)                                     \
    }
FFA_API void ffa_group_device_info_init(ffa_group_device_info *info, size_t bytes);
/* flags: FFA_GROUP_LSE for casts with lse and for FFA_REDUCE_LSE. Fails with FFA_INVALID. */
FFA_API ffa_status ffa_group_device_info_get(const ffa_group_device *device,
                                             const ffa_group_format *format, uint32_t flags,
                                             ffa_group_device_info *out, ffa_error *err);

/* Enqueue the copy of the tables to `buffer` (memory of the kernels' device, upload_bytes, 256-byte
 * aligned), which must stay until the last call has finished. Must precede the calls. As
 * ffa_plan_upload. Thread: one at a time per object. */
FFA_API ffa_status ffa_group_device_upload(ffa_group_device *device, void *buffer,
                                           ffa_stream stream, ffa_error *err);

/*
 * input, output: this rank's, which must not overlap. Without FFA_GROUP_LSE, lse is not looked at;
 * all ranks give the same flags. The gradient is ffa_group_reduce with FFA_REDUCE_SUM.
 *
 * Fails with FFA_INVALID: an argument, named with value and limit, a stream that captures a graph,
 * and nothing was enqueued, the group stays whole; FFA_COMM and FFA_TIMEOUT: the group is broken;
 * FFA_GPU: the group is broken then, too. Thread: any; one call of an object, and of a
 * communicator, at a time. Blocks: no.
 */
FFA_API ffa_status ffa_group_cast(ffa_group_device *device, ffa_comm *comm,
                                  const ffa_group_format *format, uint32_t flags,
                                  const ffa_group_source *input, const ffa_group_target *output,
                                  ffa_stream stream, ffa_error *err);

/*
 * partial: as the group's output buffer of this rank; accumulator: as its input buffer, read and
 * written. They must not overlap. As ffa_group_reduce_host: values join by ascending rank, in fp32,
 * and are rounded to dtype once; the same bits in every run. Every partial value is first rounded
 * to the kernels' wire_dtype, also where the rank casts to itself.
 *
 * Fails as ffa_group_cast does; FFA_INVALID: kernels without the op, or of another dtype.
 */
FFA_API ffa_status ffa_group_reduce(ffa_group_device *device, ffa_comm *comm,
                                    const ffa_group_format *format, ffa_reduce_op op,
                                    const ffa_group_source *partial,
                                    const ffa_group_target *accumulator, ffa_stream stream,
                                    ffa_error *err);

#ifdef __cplusplus
}
#endif
#endif
