/* SPDX-License-Identifier: Apache-2.0
 *
 * Launch arguments and shared-memory size of attention_backward, read by host (C17) and device
 * (C++17). Pointers are device addresses; strides count elements.
 */
#ifndef FFA_ATTENTION_BACKWARD_ARGS_H
#define FFA_ATTENTION_BACKWARD_ARGS_H

#include "arrivals.h"
#include "device_limits.h"
#include "tensor_map.h"
#include "tile_plan.h"

/* In which order work items go through the heads. The query heads of a kv head are divided into
 * `parts`, each of which is a head group; those of the first whole_heads kv heads are not divided,
 * and are one head group each. Head groups are numbered by kv head and part. All items of kv heads
 * that are not divided come first: at the end of a pass the short items of the others leave no SM
 * idle. */
struct backward_item_order {
    int heads_kv;
    int group;       /* heads_q / heads_kv */
    int parts;       /* divides group */
    int whole_heads; /* 0 of a plan with a list for each kv head, and where keys arrive */
    int waves;       /* for backward_l2_groups_find, as is the next one */
    int at_a_time;   /* tiles that the launch works on together, at least 1 */
};

struct attention_backward_args {
    struct tensor_map q, dout; /* (column, head, row); boxes of 64 columns x 1 x tile_m */
    struct tensor_map k, v;    /* the same; boxes of 64 columns x 1 x a block's keys */
    /* [heads_q][2][stats_rows]: of lse what attention_backward_adds_lse says, an infinity that
     * makes P 0 where lse is -inf; then sum of out * dout. stats_rows is a multiple of 4, at least
     * tokens_q + tile_m; what lies past the tokens is not used. */
    const float *stats;
    /* Added to: the specialisation's head_dim columns in panels of 64, the last one of 32 where
     * that is what is left, each panel in groups of BACKWARD_DQ_ROWS rows and runs of 8 columns,
     * as wgmma's accumulators are: [heads_q][panels][dq_rows / 8][8 or 4][8 rows][8 columns].
     * dq_rows is tokens_q, rounded up to whole groups. */
    void *dq;
    void *dk, *dv;                   /* of part 0 */
    const struct plan_header *image; /* of the plan */
    int *counter;                    /* next work item; 0 before a launch */
    long long stats_rows;
    long long dq_head_stride, dq_rows;
    long long dk_token_stride, dk_head_stride;
    long long dv_token_stride, dv_head_stride;
    long long dk_part_stride, dv_part_stride; /* dkv_fp32: between the sums of parts */
    float scale_log2;                         /* softmax_scale * log2(e), > 0 */
    float scale;                              /* softmax_scale */
    int tile_items; /* work items of a tile: all head groups, or the parts where each kv head has a
                     * list */
    struct backward_item_order order;
    int flags;       /* BACKWARD_... */
    float cap_inner; /* 2 * log2(e) * softmax_scale / softcap */
    float cap_outer; /* softcap * log2(e) */
    int head_dim;    /* padded: columns of dk, */
    int head_dim_v;  /* and of dv */
    /* deterministic: the dq semaphores: visits so far of each block of the grid, counted for each
     * block of a cluster apart, 0 before a launch: [heads_q][cluster][blocks of tile_m rows]. */
    int *dq_semaphores;
    struct arrivals arrivals; /* read by kernels of the row `arrivals` */
    struct departures departures;
    /* Where keys arrive: the groups that tiles of one list stand in (own keys first, each stage,
     * the other own keys): group g ends at tile group_end[g]. own_heads: own keys are divided by
     * head group instead: all of them with so many come first, with the others last. 0: by tile. */
    int group_count, group_end[ARRIVAL_STAGES_MAX + 1];
    int own_heads;
    /* dkv_fp32: some of dK and dV are stored in the model's dtype, in narrow_dk and narrow_dv.
     * Where keys arrive, those of keys from narrow_from on, in rows that begin with that key
     * (INT_MAX: of none). Elsewhere those of kv heads that are not divided into parts. */
    int narrow_from;
    void *narrow_dk, *narrow_dv;
    long long narrow_dk_token_stride, narrow_dk_head_stride;
    long long narrow_dv_token_stride, narrow_dv_head_stride;
};

#ifdef __cplusplus
static_assert(sizeof(attention_backward_args) == 1088, "host and device disagree");
#else
_Static_assert(sizeof(struct attention_backward_args) == 1088, "host and device disagree");
#endif

enum {
    BACKWARD_LIST_PER_KV_HEAD = 1, /* a list of tiles for each kv head; else one for all */
    BACKWARD_ACCUMULATE = 2        /* dkv_fp32: dk and dv are added to what they hold */
};

/* Where keys arrive, work items are counted in groups, one after another, each with L2 groups of
 * its own: all heads are done with a stage before the next one begins. */
struct backward_group {
    int tile_begin, tile_count;
    int head_begin, head_count;
    int skip_at, skip; /* tiles from skip_at on, of this group, stand `skip` further */
    int item_begin;    /* its first work item */
};

/* The group of a work item, of a plan of one list with groups. heads: of the launch, head groups.
 */
FFA_HOST_DEVICE struct backward_group
backward_group_find(const struct attention_backward_args *args, int heads, int item)
{
    const int last = args->group_count - 1;
    const int own_first = args->group_end[0];
    const int received = args->group_end[last - 1] - own_first;
    struct backward_group found = { 0, 0, 0, 0, 0, 0, 0 };

    for (int g = 0;; g++) {
        const int is_own = args->own_heads && (g == 0 || g == last);
        const int end = args->group_end[g];

        found.tile_count = is_own ? args->group_end[last] - received : end - found.tile_begin;
        found.head_count = !is_own ? heads : g ? heads - args->own_heads : args->own_heads;
        if (is_own) {
            found.tile_begin = 0;
            found.head_begin = g ? args->own_heads : 0;
        }
        if (g == last || item - found.item_begin < found.tile_count * found.head_count) {
            found.skip_at = own_first;
            found.skip = is_own ? received : 0;
            return found;
        }
        found.item_begin += found.tile_count * found.head_count;
        found.tile_begin = end;
        found.head_begin = 0;
    }
}

/* How the work items of a plan with one list are grouped: what depends on its tiles. */
struct backward_l2_groups {
    int head_groups; /* of an L2 group */
    int waves;       /* lockstep: waves of an L2 group's work items */
    int wave_items;  /* and work items of a wave; the last may have fewer */
};

/* As many head groups as give about `order_waves` waves of `at_a_time` work items, of all
 * `head_groups` there are. */
FFA_HOST_DEVICE struct backward_l2_groups backward_l2_groups_find(int tile_count, int head_groups,
                                                                  int order_waves, int at_a_time)
{
    const int wanted = tile_count > 0 ? order_waves * at_a_time / tile_count : 1;
    const int group = wanted < 1 ? 1 : wanted < head_groups ? wanted : head_groups;
    const int items = tile_count * group;
    const int near = (items + at_a_time / 2) / at_a_time;
    const int waves = near > 1 ? near : 1;
    const struct backward_l2_groups found = { group, waves, (items + waves - 1) / waves };

    return found;
}

/* How many head groups there are, of a plan with one list. */
FFA_HOST_DEVICE int backward_head_groups(const struct backward_item_order *order)
{
    return order->whole_heads + (order->heads_kv - order->whole_heads) * order->parts;
}

enum {
    BACKWARD_INLINE_SWEEPS = 6, /* sweeps of a tile that its slot has room for */
    BACKWARD_INLINE_BANDS = 10, /* and bands (attention_backward_inline_bands) */
    BACKWARD_TILE_SLOTS = 2
};

/* The record of a tile in shared memory, from the scheduler to producers, sender and consumers. */
struct backward_tile_slot {
    struct plan_tile tile; /* as plan_tile_read has it, the block's keys; count -1: no more work */
    int kv_head;
    int head_begin; /* the query heads of its head group: [head_begin, head_end) */
    int head_end;
    int part;
    int heads_at_once; /* heads that visit the same block one after another: 1, or all */
    int is_descending; /* rows from the last to the first */
    int kv_parity;     /* of how many tiles before have loaded K and V */
    int pad_;
    struct plan_sweep sweeps[BACKWARD_INLINE_SWEEPS];
    struct plan_band bands[BACKWARD_INLINE_BANDS]; /* attention_backward_inline_bands of them */
};

/* A ticket whose visit may add to dq, in shared memory: the index of its dq semaphore, and the
 * value that passes it on. (32 bits are enough: it counts blocks of dq, of 16 KB and more.) */
struct backward_ticket_slot {
    unsigned semaphore;
    int next;
};

/* A block of query rows in flight, in shared memory, from the producer to the consumers. */
struct backward_block {
    int head;
    int row_begin; /* its first row that is of the sweep */
    int row_end;   /* of the sweep */
    int flags;     /* BACKWARD_BLOCK_... | sweep * BACKWARD_BLOCK_SWEEP */
};

/* Byte of `flags` in a backward_block. NVRTC has no offsetof; the host checks the number. */
enum { BACKWARD_BLOCK_FLAGS_AT = 12 };

enum {
    BACKWARD_BLOCK_LAST = 1, /* of its tile */
    BACKWARD_BLOCK_FULL = 2, /* every row attends every key of the tile: no mask */
    BACKWARD_BLOCK_CUT = 4,  /* it has rows outside the sweep */
    BACKWARD_BLOCK_SWEEP = 8
};

/* Rows of dq that lie together. A block of query rows begins at a multiple of them. */
enum { BACKWARD_DQ_ROWS = 8 };

enum {
    BACKWARD_DOUT_SLOTS = 2,  /* blocks of dout in flight, at most */
    BACKWARD_DS_SLOTS = 2,    /* blocks of dS: one being made, one being read */
    BACKWARD_TICKET_SLOTS = 3 /* deterministic: tickets that have come and are not yet passed on */
};

/* Wider heads than this have specialised consumers: one warpgroup has P and dv, the other dS and
 * dk. */
enum { BACKWARD_COLUMNS_MAX = 128 };

FFA_HOST_DEVICE int attention_backward_is_specialised(int head_dim, int head_dim_v)
{
    return head_dim > BACKWARD_COLUMNS_MAX || head_dim_v > BACKWARD_COLUMNS_MAX;
}

/* Warps that consume, and that count a tile's departure. */
enum { BACKWARD_CONSUMER_WARPS = 8 };

/* Keys of a CUDA block. */
FFA_HOST_DEVICE int attention_backward_cta_keys(int head_dim, int head_dim_v)
{
    return attention_backward_is_specialised(head_dim, head_dim_v) ? 64 : 128;
}

/* CUDA blocks of a cluster, unless a spec says so. Above 128 columns of q, two blocks share a tile,
 * as the 64 keys of one are few for what a block of query rows costs. */
FFA_HOST_DEVICE int attention_backward_cluster(int head_dim)
{
    return head_dim > BACKWARD_COLUMNS_MAX ? 2 : 1;
}

/* Whether two CTAs of 128 keys each may share a tile: a pair. The kernel then has 128 columns of
 * q, whose dQ is two panels: as many as the wider of the two, as the host pads them. */
FFA_HOST_DEVICE int attention_backward_may_pair(int head_dim, int head_dim_v)
{
    const int columns = head_dim > head_dim_v ? head_dim : head_dim_v;

    return columns > 96 && columns <= BACKWARD_COLUMNS_MAX;
}

FFA_HOST_DEVICE int attention_backward_is_pair(int head_dim, int head_dim_v, int cluster)
{
    return cluster > 1 && !attention_backward_is_specialised(head_dim, head_dim_v);
}

/* Keys of a tile of the plan: those of a cluster. */
FFA_HOST_DEVICE int attention_backward_tile_n(int head_dim, int head_dim_v, int cluster)
{
    return attention_backward_cta_keys(head_dim, head_dim_v) * cluster;
}

/* Warpgroups that make nothing but dQ: one; none where consumers are specialised, who make it. */
FFA_HOST_DEVICE int attention_backward_dq_warpgroups(int head_dim, int head_dim_v)
{
    return attention_backward_is_specialised(head_dim, head_dim_v) ? 0 : 1;
}

/* Threads of a CUDA block: a warpgroup that loads and sends, the consumers, and that of dQ. */
FFA_HOST_DEVICE int attention_backward_threads(int head_dim, int head_dim_v)
{
    return 128 + 32 * BACKWARD_CONSUMER_WARPS +
           128 * attention_backward_dq_warpgroups(head_dim, head_dim_v);
}

/* Blocks of q in flight. Where dK of a block is issued behind the next one's scores, its q is free
 * late: three. */
FFA_HOST_DEVICE int attention_backward_q_slots(int head_dim, int head_dim_v)
{
    return attention_backward_is_specialised(head_dim, head_dim_v) ? 2 : 3;
}

/* What the statistics have of a row's lse: what is added to its scores before they are scaled,
 * -lse / softmax_scale; or lse * log2(e), where consumers are specialised or there is a softcap. */
FFA_HOST_DEVICE int attention_backward_adds_lse(int head_dim, int head_dim_v, int softcap)
{
    return !attention_backward_is_specialised(head_dim, head_dim_v) && !softcap;
}

/* Senders. Where pieces of dQ come fast, each of the two has its own. Ordered accumulation has one,
 * as a ticket is of all pieces of a block, and so have kernels whose keys arrive, as a second one
 * would take registers from the scheduler. */
FFA_HOST_DEVICE int attention_backward_senders(int tile_m, int deterministic, int arrivals)
{
    return tile_m > 64 && !deterministic && !arrivals ? 2 : 1;
}

/* Slots for records of blocks, which are read after the block's Q slot is free. Specialised
 * consumers, 4: the record of block n is overwritten by that of n + 4, when the Q slot of n + 2 is
 * free. Before that the second warpgroup has copied its piece of n + 1, for which the sender gave
 * back one of n or later, and so has read record n. Others: when block n is loaded, dQ of block n -
 * 5 may be copied, and block n - 6 sent, in a pair n - 7, so at least 8; and as the slots of Q (3),
 * dO and dS (2) and their parities are found from the record's, a multiple of 6 and of 4. */
FFA_HOST_DEVICE int attention_backward_block_slots(int head_dim, int head_dim_v)
{
    return attention_backward_is_specialised(head_dim, head_dim_v) ? 4 : 12;
}

/* Places in shared memory for the warpgroups' pieces of dQ. At head_dim 256 there is room for one,
 * which they use alternately. */
FFA_HOST_DEVICE int attention_backward_dq_places(int head_dim)
{
    return head_dim > 192 ? 1 : 2;
}

/* Bands of a tile that its slot has room for. */
FFA_HOST_DEVICE int attention_backward_inline_bands(int cluster)
{
    return cluster > 1 ? 2 : BACKWARD_INLINE_BANDS;
}

FFA_HOST_DEVICE int attention_backward_slot_bytes(int cluster)
{
    return (int)sizeof(struct backward_tile_slot) -
           (BACKWARD_INLINE_BANDS - attention_backward_inline_bands(cluster)) *
               (int)sizeof(struct plan_band);
}

/* Columns in shared memory: whole panels of 64. */
FFA_HOST_DEVICE int attention_backward_columns(int head_dim)
{
    return (head_dim + 63) / 64 * 64;
}

/* Bytes up to a multiple of 1024, where the layout begins. In a pair there is no room for them: the
 * kernel traps if shared memory does not begin there. */
FFA_HOST_DEVICE int attention_backward_alignment(int is_pair)
{
    return is_pair ? 0 : 1024;
}

/* Panels of the other block's k that a block of a cluster has: one for each of its pieces of dQ. */
FFA_HOST_DEVICE int attention_backward_kx_panels(int is_pair)
{
    return is_pair ? 1 : 2;
}

FFA_HOST_DEVICE int attention_backward_bytes_with(int head_dim, int head_dim_v, int tile_m,
                                                  int cluster, int dout_slots, int deterministic)
{
    const int columns = attention_backward_columns(head_dim);
    const int columns_v = attention_backward_columns(head_dim_v);
    const int cta_keys = attention_backward_cta_keys(head_dim, head_dim_v);
    const int q_slots = attention_backward_q_slots(head_dim, head_dim_v);
    const int is_specialised = attention_backward_is_specialised(head_dim, head_dim_v);
    const int is_pair = attention_backward_is_pair(head_dim, head_dim_v, cluster);
    /* In a cluster of two a slot has the other block's dS, too, and P comes in the place of the
     * block's own; in a pair the other block's dS comes where dQ goes. Specialised consumers
     * without a cluster have a block for P. */
    const int ds_blocks =
        BACKWARD_DS_SLOTS * (is_pair ? 1 : cluster) + (is_specialised && cluster == 1 ? 1 : 0);

    return attention_backward_alignment(is_pair) + (columns + columns_v) * 2 * cta_keys /* k, v */ +
           /* panels of the other block's k */
           (cluster > 1 ? attention_backward_kx_panels(is_pair) * 64 * 2 * cta_keys : 0) +
           (q_slots * columns + dout_slots * columns_v) * 2 * tile_m /* q, dout */ +
           ds_blocks * 2 * tile_m * cta_keys /* dS, P */ +
           attention_backward_dq_places(head_dim) * 64 * 64 * 4 /* dq */ +
           q_slots * 2 * 4 * tile_m /* stats */ +
           attention_backward_block_slots(head_dim, head_dim_v) *
               (int)sizeof(struct backward_block) +
           8 * (4 * q_slots + 4 + 2 * BACKWARD_TILE_SLOTS + 2 * BACKWARD_DS_SLOTS + 2 * 2 +
                (is_specialised ? 1 : 0) + 1) +
           (cluster > 1 ? 8 * 3 : 0) /* the next item, for the second block */ +
           (is_pair ? 8 * BACKWARD_DS_SLOTS : 0) /* that the other block's dS has come */ +
           BACKWARD_TILE_SLOTS * attention_backward_slot_bytes(cluster) +
           (deterministic
                ? BACKWARD_TICKET_SLOTS * (2 * 8 + (int)sizeof(struct backward_ticket_slot))
                : 0);
}

/* Slots for dout: two, if they fit. */
FFA_HOST_DEVICE int attention_backward_dout_slots(int head_dim, int head_dim_v, int tile_m,
                                                  int cluster)
{
    return attention_backward_bytes_with(head_dim, head_dim_v, tile_m, cluster, BACKWARD_DOUT_SLOTS,
                                         1) <= SM90_SHARED_BYTES_MAX
               ? BACKWARD_DOUT_SLOTS
               : 1;
}

FFA_HOST_DEVICE int attention_backward_shared_bytes(int head_dim, int head_dim_v, int tile_m,
                                                    int cluster, int deterministic)
{
    return attention_backward_bytes_with(
        head_dim, head_dim_v, tile_m, cluster,
        attention_backward_dout_slots(head_dim, head_dim_v, tile_m, cluster), deterministic);
}

#endif
