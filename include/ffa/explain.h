/* SPDX-License-Identifier: Apache-2.0
 *
 * Why a plan is as it is: what was compared for a mask on a device, by which times, and what was
 * chosen. Needs no GPU.
 */
#ifndef FFA_EXPLAIN_H
#define FFA_EXPLAIN_H

#include <ffa/attention.h>
#include <ffa/choice.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What is asked. */
typedef struct ffa_explain_query {
    uint32_t struct_size;
    uint32_t plan_flags; /* FFA_PLAN_... */
    const ffa_attention_spec *spec;
    const ffa_mask *mask;
    const char *device; /* as for ffa_cost_table_get */
} ffa_explain_query;
#define FFA_EXPLAIN_QUERY_INIT                                                                     \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_explain_query)                                         \
    }
FFA_API void ffa_explain_query_init(ffa_explain_query *query, size_t bytes);

/* One of the alternatives of a pass. Told to a callback. */
typedef struct ffa_explain_candidate {
    uint32_t struct_size;
    int32_t is_backward;
    int32_t is_chosen;
    /* Forward. */
    int32_t tile_m, tile_n; /* query rows of the plan, keys; of both passes */
    int32_t consumers;      /* warpgroups of the kernel */
    int32_t is_apart;       /* each document has tiles of its own; of both passes */
    int32_t is_split;       /* tiles are split over their keys */
    int64_t tile_count;     /* parts of tiles count as tiles */
    /* Backward: the order. */
    int32_t parts, waves, l2_head_groups;
    int32_t whole_heads; /* kv heads that are not divided into parts */
    /* What the model says: forward in keys of a tile of cost 1 (of all heads on all SMs; of one
     * head where the spec has no heads), backward in blocks of one query head. Only the times of
     * one pass can be compared; that of is_split also with whole_time only. */
    double time;
    double us;         /* the same in microseconds; 0: the table does not know */
    double whole_time; /* of is_split: what the split is compared with */
} ffa_explain_candidate;

/* Called for each candidate, forward before backward; another value than 0 ends it. */
typedef int (*ffa_explain_fn)(void *user, const ffa_explain_candidate *candidate);

typedef struct ffa_explain_info {
    uint32_t struct_size;
    int32_t sm_count; /* of the device */
    int64_t l2_bytes;
    char device[128];
    char forward_why[200]; /* one sentence: what decided */
    char backward_why[200];
} ffa_explain_info;
#define FFA_EXPLAIN_INFO_INIT                                                                      \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_explain_info)                                          \
    }
FFA_API void ffa_explain_info_init(ffa_explain_info *info, size_t bytes);

/*
 * Make the plan of a mask as a GPU of the device model would, and tell what was compared. The
 * backward pass is told of specs with FFA_SPEC_BACKWARD, heads_q and heads_kv.
 *
 * plan   receives what was chosen: what ffa_plan_info_get says on such a device.
 * visit  NULL: nobody is told.
 * Fails as ffa_cost_table_get, ffa_spec_requests and ffa_plan_create do, and with FFA_INVALID (the
 * mask has several lists of slices, and not one for each of the spec's heads_kv). Thread: any.
 * Blocks: host work, a plan for each kernel and kind of cut.
 */
FFA_API ffa_status ffa_explain(ffa_context *context, const ffa_explain_query *query,
                               ffa_plan_info *plan, ffa_explain_info *info, ffa_explain_fn visit,
                               void *user, ffa_error *err);

#ifdef __cplusplus
}
#endif
#endif
