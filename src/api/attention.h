/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels and plans as objects.
 */
#ifndef FFA_API_ATTENTION_H
#define FFA_API_ATTENTION_H

#include "api/context.h"
#include "gpu/gpu.h"
#include "tile/tile.h"
#include <ffa/attention.h>

struct ffa_kernels {
    ffa_context *context; /* not owned */
    ffa_dtype dtype;
    int32_t head_dim, head_dim_v;
    int32_t tile_m, tile_n;
    bool has_softcap, has_max_logits;
    ffa_dtype out_dtype;
    struct gpu_kernel *forward; /* NULL on the CPU */
    ffa_kernel_info info;       /* of the forward kernel; zero on the CPU */
};

struct ffa_plan {
    struct tile_plan tiles;
    int32_t heads_in_mask; /* 1, or heads_kv */
    /* The device buffer: tiles, sweeps, bands, one after another. */
    unsigned char *image; /* NULL on the CPU */
    int64_t image_bytes;
    _Atomic(void *) buffer; /* where it was uploaded last; not owned */
    atomic_int device;      /* and on which device */
};

#endif
