/* SPDX-License-Identifier: Apache-2.0
 *
 * Launch arguments and shared-memory size of attention_forward, read by host (C17) and device
 * (C++17). Pointers are device addresses; strides count elements.
 */
#ifndef FFA_ATTENTION_FORWARD_ARGS_H
#define FFA_ATTENTION_FORWARD_ARGS_H

#include "arrivals.h"
#include "device_limits.h"
#include "tensor_map.h"
#include "tile_plan.h"

struct attention_forward_args {
    struct tensor_map q, k, v; /* (column, head, row); boxes of 64 columns x 1 (or pack) x rows */
    void *out;                 /* [tokens_q][call_heads_q][head_dim_v]; out_fp32: unused */
    float *lse;                /* [tokens_q][call_heads_q], natural log */
    const struct plan_header *image; /* of the plan */
    /* Work items taken, less the first one of each block. It is 0 before a launch of more work
     * items than blocks, and is neither read nor written by others. */
    int *counter;
    long long out_token_stride, out_head_stride;
    long long lse_token_stride, lse_head_stride;
    float scale_log2; /* softmax_scale * log2(e), > 0 */
    int tile_items;   /* work items of a tile: heads_q (one list), or group (a list a kv head) */
    int heads_q;
    int group;    /* heads_q / heads_kv */
    int l2_heads; /* query heads worked on together, so that their K and V stay in L2 */
    int flags;    /* FORWARD_... */
    int sink_count;
    const float *sink; /* [sink_count][call_heads_q], natural logarithm */
    float cap_inner;   /* 2 * log2(e) * softmax_scale / softcap */
    float cap_outer;   /* softcap * log2(e) */
    /* Of the shape of out. out_fp32: the output; staged: between stages; split: the rows of parts,
     * with an lse of their own. */
    float *partial;
    long long partial_token_stride, partial_head_stride;
    float *max_logits; /* [call_heads_q], all bits set before a launch that does not accumulate */
    int head_dim_v;    /* columns of out: the specialisation's, or fewer */
    int call_heads_q;  /* heads_q of the call: of a row of sink and of part_lse */
    /* packed: query heads of a kv head, which share a tile; heads_q and l2_heads above then
     * count kv heads, and group is 1. Q's boxes are 64 columns x pack x tile_m / pack. */
    int pack;
    int pack_inverse;         /* forward_pack_inverse(pack) */
    float *part_lse;          /* [part rows][heads of the call] */
    struct arrivals arrivals; /* read by kernels of the row `arrivals` */
    long long pad_[5];        /* to a multiple of 64 */
};

#ifdef __cplusplus
static_assert(sizeof(attention_forward_args) == 704, "host and device disagree");
#else
_Static_assert(sizeof(struct attention_forward_args) == 704, "host and device disagree");
#endif

enum {
    FORWARD_LIST_PER_KV_HEAD = 1, /* a list of tiles for each kv head; else one for all */
    FORWARD_ACCUMULATE = 2        /* out_fp32: merge with what partial and lse hold */
};

enum {
    FORWARD_INLINE_SWEEPS = 6, /* sweeps of a tile that its slot has room for */
    FORWARD_INLINE_BANDS = 10, /* and bands */
    FORWARD_TILE_SLOTS = 2
};

/* The record of a tile in shared memory, from the scheduler to the producer and the consumers. */
struct forward_tile_slot {
    struct plan_tile tile; /* as plan_tile_read has it; count 0: no more work */
    int head;
    int pad_[7];
    struct plan_sweep sweeps[FORWARD_INLINE_SWEEPS];
    struct plan_band bands[FORWARD_INLINE_BANDS];
};

/* i / pack = i * inverse >> 16 for a row i of a tile: exact, as the inverse is at most 1 too large,
 * and i * pack < 2^16. */
FFA_HOST_DEVICE int forward_pack_inverse(int pack)
{
    return 65536 / pack + 1;
}

/* Shared memory holds panels of 64 columns, each row one row of the 128-byte swizzle. */
enum { FORWARD_PANEL_BYTES = 128 };

FFA_HOST_DEVICE int attention_forward_panels(int head_dim)
{
    return (head_dim + 63) / 64;
}

FFA_HOST_DEVICE int attention_forward_shared_bytes(int head_dim, int head_dim_v, int tile_m,
                                                   int tile_n, int kv_slots, int q_slots)
{
    return 1024 /* alignment */ +
           FORWARD_PANEL_BYTES *
               (attention_forward_panels(head_dim) * (q_slots * tile_m + kv_slots * tile_n) +
                attention_forward_panels(head_dim_v) * kv_slots * tile_n) +
           8 * (4 * kv_slots + 2 * q_slots + 2 * FORWARD_TILE_SLOTS + 2) +
           FORWARD_TILE_SLOTS * (int)sizeof(struct forward_tile_slot);
}

/* Slots for the Q of a tile: two if they fit, so that the next tile's loads while this one ends. */
FFA_HOST_DEVICE int attention_forward_q_slots(int head_dim, int head_dim_v, int tile_m, int tile_n,
                                              int kv_slots)
{
    return attention_forward_shared_bytes(head_dim, head_dim_v, tile_m, tile_n, kv_slots, 2) <=
                   SM90_SHARED_BYTES_MAX
               ? 2
               : 1;
}

#endif
