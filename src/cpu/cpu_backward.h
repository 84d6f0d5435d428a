/* SPDX-License-Identifier: Apache-2.0
 *
 * Parts of the backward pass, in fp32 and in fp64: cpu_backward_tile.h compiled twice.
 */
#ifndef FFA_CPU_CPU_BACKWARD_H
#define FFA_CPU_CPU_BACKWARD_H

#include "cpu/cpu.h"

/* Scratch of one thread; the arrays are float or double. m, n: tile_m rows, tile_n keys. Operands
 * lie there twice, so that loops over tokens and over head_dim both vectorise. */
struct gradient_scratch {
    void *memory;
    void *q, *dout;               /* [m][head_dim, dout: head_dim_v] */
    void *q_turned, *dout_turned; /* [head_dim, dout: head_dim_v][m] */
    void *k;                      /* [n][head_dim] */
    void *k_turned, *v_turned;    /* [head_dim, v: head_dim_v][n] */
    void *value;                  /* [head_dim_v]: a key's */
    void *sum_k, *sum_v;          /* [n][head_dim, v: head_dim_v]: dk and dv of the tile */
    void *sum_q;                  /* [m][head_dim]: dq of the rows */
    void *p, *ds;                 /* [m or n, the larger] */
    void *lse, *delta;            /* [m] */
    int32_t *begin, *end;         /* [n]: query rows of each key in the sweep */
};

/* Rows of a head that one item of dq has: tile_m from row_begin on, or fewer at the end. */
struct gradient_rows {
    int64_t row_begin, row_end;
    int32_t head;
};

#define GRADIENT_FUNCTIONS(real)                                                                   \
    size_t gradient_bytes_##real(const struct cpu_backward *call);                                 \
    size_t gradient_delta_bytes_##real(const struct cpu_backward *call);                           \
    void gradient_place_##real(const struct cpu_backward *call, struct gradient_scratch *scratch); \
    /* delta [seqlen_q][heads_q]: rowsum(out * dout) - dlse of the rows. */                        \
    void gradient_delta_##real(const struct cpu_backward *call, const struct gradient_rows *rows,  \
                               void *delta);                                                       \
    /* dk and dv of one tile of one kv head. */                                                    \
    void gradient_tile_##real(const struct cpu_backward *call, const struct plan_tile *tile,       \
                              int32_t kv_head, const void *delta,                                  \
                              struct gradient_scratch *scratch);                                   \
    /* dq of the rows. */                                                                          \
    void gradient_rows_##real(const struct cpu_backward *call, const struct gradient_rows *rows,   \
                              const void *delta, struct gradient_scratch *scratch);                \
    /* dsink of one query head. */                                                                 \
    void gradient_sink_##real(const struct cpu_backward *call, int32_t head, const void *delta);

GRADIENT_FUNCTIONS(f32)
GRADIENT_FUNCTIONS(f64)

#endif
