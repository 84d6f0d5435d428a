/* SPDX-License-Identifier: Apache-2.0
 *
 * A GPU as a tuning session uses it: kernels by the public calls, times by events on a stream of
 * its own.
 */
#ifndef FFA_TUNE_TUNE_GPU_H
#define FFA_TUNE_TUNE_GPU_H

#include "service/context.h"
#include "tune/tune_device.h"

struct tune_gpu;

/* context: of a GPU, borrowed. *out: caller's, tune_gpu_close(). Fails with FFA_GPU, FFA_NOMEM.
 * Thread: one at a time. */
ffa_status tune_gpu_open(struct tune_gpu **out, ffa_context *context, int64_t run_timeout_ms,
                         ffa_error *err);
/* Where a kernel hangs or has taken the device down, what is on the device stays there: releasing
 * it would wait for ever. */
void tune_gpu_close(struct tune_gpu *gpu);
/* Borrows *gpu. */
struct tune_device tune_gpu_device(struct tune_gpu *gpu);
/* Fill in facts, memory, power limit, clock and driver of a record. */
void tune_gpu_describe(struct tune_gpu *gpu, struct tune_record *record);

#endif
