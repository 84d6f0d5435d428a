/* SPDX-License-Identifier: Apache-2.0
 *
 * Enqueueing from a CUDA call, where the stream may be capturing.
 */
#ifndef FFA_EMULATOR_STREAM_CALLS_H
#define FFA_EMULATOR_STREAM_CALLS_H

#include "streams.h"

/* Append to the graph that the stream captures, or to its queue. A graph holds launches, host
 * functions, copies and fills, no other work. */
cudaError_t stream_call(cudaStream_t stream, const struct work *work);

#endif
