/* SPDX-License-Identifier: Apache-2.0
 *
 * One tile of one head, in fp32 and in fp64: cpu_forward_tile.h compiled twice.
 */
#ifndef FFA_CPU_CPU_FORWARD_H
#define FFA_CPU_CPU_FORWARD_H

#include "cpu/cpu.h"

/* Scratch of one thread; the real arrays are float or double. */
struct forward_scratch {
    void *memory;
    void *q, *out;        /* [tile_m][head_dim], [tile_m][head_dim_v] */
    void *keys;           /* [head_dim][tile_n]: transposed, so that loops over keys vectorise */
    void *values;         /* [tile_n][head_dim_v] */
    void *line;           /* [head_dim] */
    void *scores;         /* [tile_n] */
    void *top, *sum;      /* [tile_m]: running maximum, sum of exp(score - top) */
    int32_t *begin, *end; /* [tile_m]: keys of each row in the sweep */
};

/* Bytes of forward_scratch.memory, and its parts. */
size_t forward_bytes_f32(const struct cpu_forward *call);
size_t forward_bytes_f64(const struct cpu_forward *call);
void forward_place_f32(const struct cpu_forward *call, struct forward_scratch *scratch);
void forward_place_f64(const struct cpu_forward *call, struct forward_scratch *scratch);

void forward_tile_f32(const struct cpu_forward *call, const struct plan_tile *tile, int32_t head,
                      struct forward_scratch *scratch);
void forward_tile_f64(const struct cpu_forward *call, const struct plan_tile *tile, int32_t head,
                      struct forward_scratch *scratch);

#endif
