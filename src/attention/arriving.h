/* SPDX-License-Identifier: Apache-2.0
 *
 * One launch a pass over keys that arrive in stages: its plan, and its calls.
 *
 * The keys of a rank lie in one buffer, its key window: first its own, then those of each further
 * stage. A launch begins with what is there and waits for the others, stage by stage. So a plan of
 * arriving keys is the plan of a whole mask, the rank's query rows and all keys of its window, in
 * which nothing has keys of two stages, and in an order that works on early keys first.
 */
#ifndef FFA_ATTENTION_ARRIVING_H
#define FFA_ATTENTION_ARRIVING_H

#include "attention/attention.h"
#include "mask/band.h"

/* ---- the plan (plan_arriving.c) ---- */

/* What a plan of arriving keys is made from. All is read while the plan is made, and not later. */
struct arriving_keys {
    ffa_mask_shape shape;      /* query rows of the rank; keys, own and received. Either may be 0 */
    const struct bands *lists; /* [list_count]: inside the shape, disjoint */
    int32_t list_count;        /* 1, or a list for each kv head */
    int32_t stage_count;       /* 1 (own keys only) to TILE_STAGES_MAX */
    /* [stage_count] ascending: keys of stage s are [stage_ends[s - 1], stage_ends[s]). Equal ends
     * make an empty stage. The last one is shape.seqlen_k. */
    const int64_t *stage_ends;
    /* Backward: the own keys [begin, end) whose tiles come first; those of all other own keys come
     * last. [first_count], ascending and disjoint. */
    const int64_t (*first)[2];
    int64_t first_count;
};

/* The plan of one pass over keys that arrive: is_backward: it has backward tiles only, else forward
 * ones only. For ffa_plan_destroy; ffa_plan_upload works on it.
 *
 * Forward, every sweep has keys of one stage, and the sweeps of a tile stand by ascending stage.
 * The kernel is chosen among kernels->forward as ffa_plan_create does; tiles are not split.
 * Backward, every tile has keys of one stage. In a list tiles stand in groups: own keys in `first`,
 * each further stage, the other own keys; in a group, longest first. Tickets are of that order.
 *
 * Fails with FFA_INVALID (keys, or kernels without the pass or of a pass in stages), FFA_NOMEM and
 * FFA_UNSUPPORTED (too many keys, rows, or lists for the kernels). Thread: any. */
ffa_status plan_create_arriving(ffa_plan **out, const ffa_kernels *kernels,
                                const struct arriving_keys *keys, bool is_backward, ffa_error *err);

#endif
