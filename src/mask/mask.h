/* SPDX-License-Identifier: Apache-2.0
 *
 * The mask object: checked slices and their normal form, built together, immutable afterwards.
 */
#ifndef FFA_MASK_MASK_H
#define FFA_MASK_MASK_H

#include "mask/normal.h"

/* Limits: tokens of one side, slices of one list (2.5 GiB of them), lists of one mask. */
#define TOKENS_MAX ((int64_t)INT32_MAX)
#define SLICES_MAX ((int64_t)1 << 26)
enum { HEADS_KV_MAX = 1024 };

/* What a mask takes for each slice while it is built, where slices are disjoint: the copy, the
 * strip, its places in two lists, and a segment and an interval in arrays that grow by doubling. */
enum { MASK_SLICE_BYTES = 40 + 32 + 2 * 8 + 2 * (24 + 16) };

struct mask_list {
    ffa_slice *slices;
    int64_t count;
    struct normal normal;
};

struct ffa_mask {
    ffa_mask_shape shape;
    int32_t head_count;      /* 1: shared by all heads */
    struct mask_list *lists; /* [head_count] */
    /* Found out by whoever asks first, always the same: a digest of what the mask attends. Written
     * before has_content; both by atomic operations only. */
    uint64_t content[2];
    int32_t has_content;
    int32_t pad_;
};

/* FFA_INVALID, naming seqlen_q or seqlen_k with its limit. */
ffa_status mask_check_shape(const ffa_mask_shape *shape, ffa_error *err);
/* a + b, neither negative, at most INT64_MAX: areas of several lists or slices may be more. */
int64_t area_add(int64_t a, int64_t b);
/* "full", "causal", "invcausal", "bicausal"; NULL for any other type. */
const char *slice_type_name(int32_t type);

#endif
