/* SPDX-License-Identifier: Apache-2.0
 *
 * What bench_parallel --calibrate measured, read from its file.
 */
#ifndef FFA_CLI_CALIBRATION_FILE_H
#define FFA_CLI_CALIBRATION_FILE_H

#include <ffa/ffa.h>

/* Owns what `rates` points at; all zero: there is none. */
struct calibration {
    ffa_calibration rates;
    ffa_link_rate *links;
    ffa_kernel_rate *kernels;
    char device[128];
    int32_t gpus;
};

/* Read a file. Fails with FFA_IO and FFA_INVALID, whose messages name the file and the place. For
 * calibration_finish whether or not it succeeds. */
ffa_status calibration_read(struct calibration *out, const char *path, ffa_error *err);
void calibration_finish(struct calibration *calibration);

/* The model of time of plans of `tokens` on `ranks`, in chunks of `chunk` (0: their default). A
 * calibration that was not read changes nothing. */
ffa_status calibration_apply(const struct calibration *calibration, ffa_parallel_plan_opts *opts,
                             int64_t tokens, int64_t ranks, int64_t chunk, ffa_error *err);

#endif
