/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans as objects, and the steps of making one. (Kernels: kernels.h.)
 */
#ifndef FFA_ATTENTION_ATTENTION_H
#define FFA_ATTENTION_ATTENTION_H

#include "attention/kernels.h"
#include "attention/plan_choice.h"
#include "tile/plan_image.h"

/* The backward tiles of the plan that others are like, as far as their order depends on them.
 * Shared by those plans. */
struct plan_reference {
    atomic_int owners;
    struct tile_plan backward; /* without arrays but those that choose/order.h reads */
};

/* What calls found last, and for which heads and SMs (plan_choice.c). */
struct plan_found {
    _Atomic uint64_t order;    /* plan_order */
    _Atomic uint64_t l2_heads; /* plan_l2_heads_kv */
};

struct ffa_plan {
    struct plan_choice choice;
    struct tile_plan forward;
    struct tile_plan backward;  /* zero of kernels without it */
    int32_t heads_in_mask;      /* 1, or heads_kv */
    int32_t split_heads;        /* query heads of the calls that it was split for; 0: it was not */
    int32_t split_parts_max;    /* of a tile, of a plan that is split and replayed; else 0 */
    int32_t stage, stage_count; /* of a pass in stages; 0 and 1: all in one */
    /* Of one pass over keys that arrive (arriving.h), all tiles in one launch. count 0: an ordinary
     * plan. */
    struct {
        int32_t count;
        int32_t stage_end[TILE_STAGES_MAX];
        int64_t stage_tiles[TILE_STAGES_MAX]; /* backward: key tiles of each stage, of all lists */
        /* Backward, of one list and several stages: groups of tiles, and the tiles up to the end of
         * each; else 0. */
        int32_t group_count, group_end[TILE_STAGES_MAX + 1];
        double first_share; /* of own keys' work, if that is divided by head group */
    } arriving;
    uint32_t flags;                   /* FFA_PLAN_..., as asked for */
    int64_t capacity_bytes;           /* of the buffer of a plan that is replayed; 0: it is not */
    struct plan_reference *reference; /* of such a plan; NULL: its own tiles */
    struct plan_image image;          /* of both; zero on the CPU */
    unsigned char *image_data;        /* [image.bytes], to be uploaded; NULL on the CPU */
    _Atomic(void *) buffer;           /* where it was uploaded last; not owned */
    atomic_int device;                /* and on which device */
    struct plan_found *found;
};

/* The parts of a backward workspace, as bytes from its begin (backward.c). */
struct backward_layout {
    int64_t stats_rows; /* a multiple of 4, with room for a block past the last row */
    int64_t dq_rows;    /* whole groups of BACKWARD_DQ_ROWS */
    struct backward_order order;
    int64_t stats_at, dq_at;
    int64_t semaphores_at;  /* the dq semaphores, where deterministic */
    int64_t counters_bytes; /* of the counter and the semaphores, which lie first */
    int64_t dk_at, dv_at;   /* partial sums: of parts > 1, and of staged and parallel kernels */
    int64_t bytes;
};
ffa_status backward_layout_make(struct backward_layout *out, const ffa_plan *plan,
                                const ffa_kernels *kernels, int32_t heads_q, int32_t heads_kv,
                                int32_t sm_count, ffa_error *err);

/* ---- the steps of making a plan ---- */

/* The caller's options: known flags, and no others. */
ffa_status plan_opts_import(ffa_plan_opts *out, const ffa_plan_opts *opts, ffa_error *err);
/* What the tiles of a plan are to be, forward and backward. */
struct tile_options plan_tile_options(const struct forward_kernel *kernel,
                                      const ffa_plan_opts *opts);
struct tile_options plan_backward_options(const ffa_kernels *kernels,
                                          const struct backward_kernel *kernel,
                                          const ffa_plan_opts *opts);
/* A plan without tiles, for ffa_plan_destroy. */
ffa_status plan_begin(ffa_plan **out, const ffa_kernels *kernels, const ffa_mask *mask,
                      ffa_error *err);
/* The device image of its tiles, for kernels of a GPU. */
ffa_status plan_complete(ffa_plan *plan, const ffa_kernels *kernels, ffa_error *err);

/* ---- plans that a CUDA graph replays (plan_replay.c) ---- */

/* That a plan of this mask can be what the options ask for. *opts then has the capacity, the flags,
 * the heads and the most parts of the plan that it is to be like. */
ffa_status plan_replay_check(ffa_plan_opts *opts, const ffa_kernels *kernels, const ffa_mask *mask,
                             ffa_error *err);
/* What fixes the order of the backward pass, of plans with a capacity. Follows the choice of
 * tiles. */
ffa_status plan_reference_take(ffa_plan *plan, const ffa_plan *like, ffa_error *err);
void plan_reference_release(struct plan_reference *reference);
/* The most tiles of a pass that may be in the plan's buffer when a launch runs. */
int64_t plan_tiles_most(const ffa_plan *plan, const struct tile_plan *tiles);
/* Blocks of a launch of `work` blocks' worth on `room` SMs: as many for any mask of a plan with a
 * capacity. */
int32_t plan_blocks(const ffa_plan *plan, int64_t work, int32_t room);

#endif
