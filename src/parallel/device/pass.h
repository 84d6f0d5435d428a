/* SPDX-License-Identifier: Apache-2.0
 *
 * One rank's passes of a mask, made for its kernels: tile plans, tables, and where each lies in
 * the buffer that they are uploaded to.
 */
#ifndef FFA_PARALLEL_DEVICE_PASS_H
#define FFA_PARALLEL_DEVICE_PASS_H

#include "parallel/device/comm_device.h"
#include "parallel/device/pass_tables.h"

#include <ffa/parallel_pass.h>

struct ffa_parallel_pass {
    int32_t rank, rank_count;
    int64_t tokens_q, tokens_k; /* the rank's own */
    char digest[DIGEST_TEXT];   /* of the rank's plan: the same on all ranks */
    bool has_backward;
    ffa_plan *forward, *backward;
    struct pass_moves forward_moves, backward_moves;
    struct pass_sums sums;
    /* The buffer, in bytes from its begin: the images of both plans, then what `tables` holds. */
    int64_t forward_at, backward_at;
    int64_t owners_at, segments_at, received_at;
    int64_t totals_segment_at, totals_sources_at; /* of several ranks: of pass_totals_join */
    int64_t upload_bytes;
    unsigned char *tables; /* [upload_bytes - owners_at] */
    unsigned char *buffer; /* where it was uploaded last; not owned */
    /* Scratch of a call: one at a time. */
    void **to;                 /* [copies_most] */
    const void **from;         /* [copies_most] */
    size_t *bytes;             /* [copies_most] */
    struct comm_flag *flags;   /* [rank_count] */
    struct nccl_move *moves;   /* [all copies and sends of a pass] */
    struct gpu_event *reduced; /* the received sums are there; of kernels with FFA_SPEC_BACKWARD */
    /* Of several ranks: the rank's own totals are there, and those of all ranks. */
    struct gpu_event *totals_made, *totals_shared;
};

#endif
