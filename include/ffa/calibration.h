/* SPDX-License-Identifier: Apache-2.0
 *
 * What was measured on the GPUs of a host, and the model of time that follows from it.
 *
 * `bench_parallel --calibrate FILE` measures, and writes a file that the command reads with
 * --calibration. A program that has the numbers hands them over here, and gets the model that
 * ffa_parallel_plan_opts and ffa_sim_opts take. Units: bytes, 10^6 bytes and 10^9 operations a
 * second, nanoseconds.
 */
#ifndef FFA_CALIBRATION_H
#define FFA_CALIBRATION_H

#include <ffa/parallel_plan.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Into one GPU from the others of its host, all of them pulling, by batches of ranges of one
 * length: a range is rows that follow each other in the window of one owner. */
typedef struct ffa_link_rate {
    int64_t range_bytes; /* 1 or more */
    int64_t mbytes_s;    /* 1 to 10^9 */
} ffa_link_rate;

/* A pass of a kernel over a long mask, by its tile. */
typedef struct ffa_kernel_rate {
    int32_t is_backward;
    int32_t head_dim, head_dim_v; /* 1 to 1024 */
    int32_t tile_m, tile_n;       /* 1 to 1024 */
    /* What a tile costs besides its cells: forward_begin_keys or backward_begin_rows of
     * ffa_parallel_plan_opts, 0 to 65536; 0: it is in gflops */
    int32_t begin_tokens;
    int64_t gflops; /* 1 to 10^9: of cells, where begin_tokens says what tiles cost besides */
} ffa_kernel_rate;

typedef struct ffa_calibration {
    uint32_t struct_size;
    int32_t link_count, kernel_count; /* 0 to 4096 */
    int32_t sms;                      /* of a GPU, up to 4096; 0: not known */
    const ffa_link_rate *links;     /* [link_count], by range_bytes, ascending; read in the call */
    const ffa_kernel_rate *kernels; /* [kernel_count], in any order; read in the call */
    int64_t node_latency_ns;        /* as of the model, up to 10^9; 0: not measured */
    int64_t launch_ns;              /* likewise */
    int64_t window_mbytes_s;        /* as of ffa_parallel_plan_opts, up to 10^9; 0: not measured */
} ffa_calibration;
#define FFA_CALIBRATION_INIT                                                                       \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_calibration)                                           \
    }
FFA_API void ffa_calibration_init(ffa_calibration *calibration, size_t bytes);

/*
 * Fill in a model from what was measured. Fields that are not 0 stay, so what the caller knows
 * better wins; what was not measured stays 0, the default.
 *
 * model        heads_kv, head_dim and element_bytes are read (0: their defaults). forward_gflops
 * and backward_gflops become the rate of the fastest tile of the nearest head_dim and head_dim_v,
 * node_mbytes_s the rate of ranges of range_rows, between the two nearest that were measured;
 * node_latency_ns and launch_ns are taken over. A model has no begin of tiles: it is too fast
 * where the rates are of cells alone (ffa_parallel_plan_opts_calibrate has both).
 * head_dim_v   of v and out; 0: model's head_dim.
 * range_rows   rows of keys that follow each other in one owner's window, such as the tokens of a
 *              chunk; 1 or more.
 *
 * Fails with FFA_INVALID, naming the argument, its value and the limit, and leaves the model as it
 * was; FFA_UNSUPPORTED: a calibration newer than this library. Thread: any. Blocks: no.
 */
FFA_API ffa_status ffa_parallel_model_calibrate(ffa_parallel_model *model,
                                                const ffa_calibration *calibration,
                                                int32_t head_dim_v, int64_t range_rows,
                                                ffa_error *err);

/*
 * The same for all that options have of the model of time: opts->model with opts->head_dim_v, the
 * begin of the tiles that the rates are of, window_mbytes_s, and sms. Fields that are not 0 stay;
 * where a rate stays, the begin does, too, as the two were measured together. What a calibration
 * without begins leaves is the model of before, one rate a pass.
 *
 * Arguments and failures otherwise as above.
 */
FFA_API ffa_status ffa_parallel_plan_opts_calibrate(ffa_parallel_plan_opts *opts,
                                                    const ffa_calibration *calibration,
                                                    int64_t range_rows, ffa_error *err);

#ifdef __cplusplus
}
#endif
#endif
