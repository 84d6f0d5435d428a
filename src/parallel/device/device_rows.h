/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa_parallel_rows: the tables of a rank's rows.
 */
#ifndef FFA_PARALLEL_DEVICE_DEVICE_ROWS_H
#define FFA_PARALLEL_DEVICE_DEVICE_ROWS_H

#include "base/digest.h"
#include "parallel/device/exchange.h"

/* Which rank has which tokens, in which rows: a dispatch as its public functions tell it. */
struct places {
    int64_t count;       /* of chunks */
    int64_t *begin;      /* [count + 1] */
    int64_t *local;      /* [count]: the first row in the rank's buffer */
    int32_t *rank;       /* [count]; replicated: that of the object */
    int64_t *rank_begin; /* [rank_count + 1], into rank_chunks */
    int64_t *rank_chunks;
    int64_t *rank_rows; /* [rank_count] */
    int32_t rank_count;
    bool is_replicated; /* one chunk, which all ranks have */
};

struct ffa_parallel_rows {
    const ffa_row_kernels *kernels;
    int32_t rank, rank_count;
    int64_t tokens, local_rows;
    struct exchange undispatch, roll, reduce;
    struct run_table gather, scatter; /* whole to local, and back */
    struct run_table others;          /* of the whole: rows of other ranks, to themselves */
    struct run_table rolled;          /* whole to local */
    struct run_table outside;         /* local rows whose source is outside their document */
    char digest[DIGEST_TEXT];         /* of the dispatch and the options, but for the rank */
    unsigned char *image;             /* what is uploaded, [image_bytes] */
    int64_t image_bytes;
    unsigned char *buffer; /* of the upload; NULL: there was none */
};

/* device_roll.c: the roll of a rank's rows, as tables. opts: resolved and checked. */
ffa_status roll_build(ffa_parallel_rows *rows, const struct places *places,
                      const ffa_parallel_rows_opts *opts, ffa_error *err);

#endif
