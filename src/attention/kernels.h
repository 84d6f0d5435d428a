/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels as an object: the loaded kernels of one spec, or what the CPU backend needs of it.
 */
#ifndef FFA_ATTENTION_KERNELS_H
#define FFA_ATTENTION_KERNELS_H

#include "choose/l2_heads.h"
#include "choose/order.h"
#include "choose/tile_choice.h"
#include "gpu/gpu.h"
#include "service/context.h"
#include <ffa/attention.h>

/* A forward kernel and its tiles. */
struct forward_kernel {
    struct gpu_kernel *kernel; /* NULL on the CPU */
    ffa_kernel_info info;      /* zero there */
    int32_t tile_m, tile_n;    /* query rows of the plan, keys */
    struct tile_cost cost;
    double unit_us; /* what 1 of the cost takes; 0: not known */
};

/* A kernel of the gradients and its tiles. */
struct backward_kernel {
    struct gpu_kernel *kernel; /* dk and dv in grad_dtype, is_parallel: in fp32; NULL on the CPU */
    struct gpu_kernel *fp32;   /* in fp32: for several parts; NULL: `kernel` does it */
    int32_t tile_m, tile_n;    /* query rows a block, keys */
    int32_t cluster;           /* blocks that share a tile */
};

enum { FORWARD_KERNELS_MAX = 3, SPLIT_KERNELS_MAX = 1, BACKWARD_KERNELS_MAX = 2 };

/* The kernels of a spec, listed instead of loaded (spec_requests.c). */
enum { KERNEL_LIST_MAX = 16 };
struct kernel_list {
    const char *arch;                          /* that they are for */
    struct jit_spec asked[KERNEL_LIST_MAX];    /* what the spec says of it */
    struct jit_spec resolved[KERNEL_LIST_MAX]; /* with all choices made; no two are the same */
    int32_t count;
};

struct ffa_kernels {
    ffa_context *context;        /* not owned; NULL while kernels are listed */
    struct kernel_list *list;    /* NULL, or kernels are added to it, and none is loaded */
    struct choose_device device; /* zero, but for the default table, on the CPU */
    ffa_dtype dtype;
    int32_t head_dim, head_dim_v;
    int32_t pack_heads;        /* 0: none */
    int32_t heads_q, heads_kv; /* of all calls; 0: any */
    bool has_softcap, has_max_logits, is_staged;
    bool is_parallel; /* FFA_SPEC_PARALLEL */
    bool is_split;    /* FFA_SPEC_SPLIT: the forward kernels are those of a split */
    bool may_split; /* FFA_SPLIT_AUTO applies: `split` has those of a split, if they could be had */
    ffa_dtype out_dtype;
    /* A plan is for one of them; the first is for all masks. */
    struct forward_kernel forward[FORWARD_KERNELS_MAX];
    int32_t forward_count; /* >= 1 */
    /* Likewise, for plans that are split where may_split; 0: none is. */
    struct forward_kernel split[SPLIT_KERNELS_MAX];
    int32_t split_count;
    struct gpu_kernel *combine; /* of a split; NULL on the CPU, and without */
    bool has_backward;          /* then the rest is set, but for what is NULL on the CPU */
    /* A plan is for one of them; the first is for all masks. The second is of pairs of blocks. */
    struct backward_kernel backward[BACKWARD_KERNELS_MAX];
    int32_t backward_count;
    int32_t dq_columns; /* of a row of the fp32 sum of dq: head_dim, padded as the kernels
                         * have it */
    ffa_dtype grad_dtype;
    bool is_deterministic; /* then plans have tickets */
    struct gpu_kernel *prepare, *finish;
    struct gpu_kernel *finish_fp32; /* where queries may move: dq in fp32; NULL: `finish` does it */
    /* Of context-parallel passes (rows_device.h); NULL without, and on the CPU. */
    struct gpu_kernel *row_copy, *row_copy_runs, *row_reduce;
    struct gpu_kernel *totals_sum, *totals_max; /* row_reduce, fp32 to fp32 */
    /* Received sums in dtype, own ones in fp32: to grad_dtype; to fp32, of is_staged. */
    struct gpu_kernel *narrow_reduce, *narrow_sum;
    struct gpu_kernel *merge; /* (out, lse) pairs in fp32, to out_dtype; of is_staged */
};

static inline bool kernels_are_loaded(const struct ffa_kernels *kernels)
{
    return kernels->forward[0].kernel != NULL;
}

/* Whether plans for the kernels are a GPU's: the kernels are loaded, or only listed. */
static inline bool kernels_target_gpu(const struct ffa_kernels *kernels)
{
    return kernels_are_loaded(kernels) || kernels->list;
}

/* Query heads that a row of a tile is of: 1, but of packed kernels. */
static inline int32_t kernels_pack(const struct ffa_kernels *kernels)
{
    return kernels->pack_heads ? kernels->pack_heads : 1;
}

/* What runs each tile of a forward pass: heads of one list of the mask, or packs of them. */
static inline int32_t kernels_tile_heads(const struct ffa_kernels *kernels, int32_t heads_q,
                                         int32_t lists)
{
    return heads_q / (kernels_pack(kernels) * lists);
}

/* One row of a template's spec; value 0 leaves the template's default, or the choice to it. */
struct setting {
    const char *name;
    int32_t value;
};

/* Load a kernel on the context's device, compiled where it is in no layer; settings end with a NULL
 * name. *jit: its resolved spec. *out: caller's, gpu_kernel_unload(). */
ffa_status kernel_make(struct gpu_kernel **out, struct jit_spec *jit,
                       const struct ffa_kernels *kernels, const char *template_name,
                       const struct setting *settings, ffa_error *err);

/* All kernels that a spec may use on a GPU of this architecture, those of choices included. Opens
 * nothing. Fails as ffa_kernels_create does for the spec. */
ffa_status kernels_list(struct kernel_list *list, const ffa_attention_spec *spec, const char *arch,
                        const struct choose_device *device, ffa_error *err);

/* The same as kernels without code, for plans that are made to be looked at. They use `list` and
 * own nothing. */
ffa_status kernels_outline(struct ffa_kernels *out, struct kernel_list *list,
                           const ffa_attention_spec *spec, const char *arch,
                           const struct choose_device *device, ffa_error *err);

/* The forward kernels that plans may be for: of plans that are split over their keys, where there
 * are others for them, those. */
struct forward_list {
    const struct forward_kernel *kernels;
    int32_t count;
};
struct forward_list kernels_forward(const ffa_kernels *kernels, bool is_split);
/* The one of the list that has the plan's tiles; NULL: none has. */
const struct forward_kernel *kernels_forward_of(struct forward_list list,
                                                const struct tile_plan *tiles);
/* Whether there are kernels that take a plan that is split. */
bool kernels_take_splits(const ffa_kernels *kernels);
/* The kernel of these tiles, of kernels with a backward pass; NULL: none is. */
const struct backward_kernel *kernels_backward_of(const struct ffa_kernels *kernels, int32_t tile_m,
                                                  int32_t tile_n);
/* Key tiles that so many SMs work on together: a cluster works on one. */
int32_t kernels_backward_at_a_time(const struct backward_kernel *kernel, int32_t sm_count);
/* Of order_query. */
int64_t kernels_backward_row_bytes(const struct ffa_kernels *kernels);
/* Whether a pass may leave kv heads whole (choose/order.h). Partial sums of a pass in stages, and
 * gradients in fp32, are of all kv heads. */
bool kernels_can_leave_whole(const struct ffa_kernels *kernels);

#endif
