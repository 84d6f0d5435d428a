/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels and plans as objects.
 */
#ifndef FFA_ATTENTION_ATTENTION_H
#define FFA_ATTENTION_ATTENTION_H

#include "choose/order.h"
#include "gpu/gpu.h"
#include "service/context.h"
#include "tile/plan_image.h"
#include <ffa/attention.h>

/* What a kernel's tiles are expected to cost: `begin` to begin and end one, `key` each key of its
 * blocks, in keys of the widest kernel. */
struct tile_cost {
    double begin, key;
};

/* A forward kernel and its tiles. */
struct forward_kernel {
    struct gpu_kernel *kernel; /* NULL on the CPU */
    ffa_kernel_info info;      /* zero there */
    int32_t tile_m, tile_n;    /* query rows of the plan, keys */
    struct tile_cost cost;
};

enum { FORWARD_KERNELS_MAX = 2 };

struct ffa_kernels {
    ffa_context *context; /* not owned */
    ffa_dtype dtype;
    int32_t head_dim, head_dim_v;
    int32_t pack_heads; /* 0: none */
    bool has_softcap, has_max_logits, is_staged, is_split;
    ffa_dtype out_dtype;
    struct forward_kernel forward[FORWARD_KERNELS_MAX]; /* of one tile_m: a plan is for one; the
                                                         * first is for all */
    int32_t forward_count;                              /* >= 1 */
    struct gpu_kernel *combine; /* of a split; NULL on the CPU, and without */
    bool has_backward;          /* then the rest is set, but for what is NULL on the CPU */
    int32_t backward_tile_m, backward_tile_n;
    int32_t backward_cluster; /* blocks that share a tile */
    int32_t
        dq_columns; /* of a row of the fp32 sum of dq: head_dim, padded as the kernels have it */
    ffa_dtype grad_dtype;
    bool is_deterministic; /* then plans are in turns */
    struct gpu_kernel *prepare, *finish;
    struct gpu_kernel *backward;      /* dk and dv in grad_dtype */
    struct gpu_kernel *backward_fp32; /* in fp32: for parts of a split; NULL: `backward` does it */
};

static inline bool kernels_on_gpu(const struct ffa_kernels *kernels)
{
    return kernels->forward[0].kernel != NULL;
}

struct ffa_plan {
    struct tile_plan forward;
    struct tile_plan backward;  /* zero of kernels without it */
    int32_t heads_in_mask;      /* 1, or heads_kv */
    int32_t split_heads;        /* query heads of the calls that it was split for; 0: it was not */
    int32_t stage, stage_count; /* of a pass in stages; 0 and 1: all in one */
    struct plan_image image;    /* of both; zero on the CPU */
    unsigned char *image_data;  /* [image.bytes], to be uploaded; NULL on the CPU */
    _Atomic(void *) buffer;     /* where it was uploaded last; not owned */
    atomic_int device;          /* and on which device */
    _Atomic uint64_t *order;    /* what backward_order_find said last, and was asked (backward.c) */
};

/* The parts of a backward workspace, as bytes from its begin (backward.c). */
struct backward_layout {
    int64_t stats_rows; /* a multiple of 4, with room for a block past the last row */
    int64_t dq_rows;    /* whole groups of BACKWARD_DQ_ROWS */
    struct backward_order order;
    int64_t stats_at, dq_at;
    int64_t turns_at, turns_bytes; /* counters of visits; 0 bytes: not deterministic */
    int64_t dk_at, dv_at; /* partial sums, where parts > 1, and of kernels of passes in stages */
    int64_t bytes;
};
ffa_status backward_layout_make(struct backward_layout *out, const ffa_plan *plan,
                                const ffa_kernels *kernels, int32_t heads_q, int32_t heads_kv,
                                int32_t sm_count, ffa_error *err);

/* ---- the steps of making a plan ---- */

/* The caller's options: known flags, and no others. */
ffa_status plan_wish_import(ffa_plan_opts *out, const ffa_plan_opts *opts, ffa_error *err);
/* What the tiles of a plan are to be, forward and backward. */
struct tile_options plan_tile_options(const struct forward_kernel *kernel,
                                      const ffa_plan_opts *wish);
struct tile_options plan_backward_options(const ffa_kernels *kernels, const ffa_plan_opts *wish);
/* A plan without tiles, for ffa_plan_destroy. */
ffa_status plan_begin(ffa_plan **out, const ffa_kernels *kernels, const ffa_mask *mask,
                      ffa_error *err);
/* The device image of its tiles, for kernels of a GPU. */
ffa_status plan_complete(ffa_plan *plan, const ffa_kernels *kernels, ffa_error *err);

#endif
