/* SPDX-License-Identifier: Apache-2.0
 *
 * A GPU without kernels, in place of what src/gpu has of streams, events, words, copies and peers:
 * each stream is a thread with a queue, device memory is memory of the host. A program that uses it
 * defines these functions itself, so the library's own are not linked.
 */
#ifndef TESTS_FAKE_GPU_H
#define TESTS_FAKE_GPU_H

#include "gpu/gpu_stream.h"

/* Devices 0 to 3. */
struct gpu_device *fake_gpu(int ordinal);

/* From now on device memory comes from pages that processes forked later have, too, at the same
 * addresses; `process`, 0 to 7: which share of them. Called once, and again in each child. */
void fake_gpu_share(int process);

/* Whether devices do not reach each other's memory; they do, unless this says otherwise. */
void fake_gpu_apart(bool is_so);
/* width: how many devices, one after another, reach each other; all, unless this says otherwise. */
void fake_gpu_node(int width);

/* What a launch would be: `work` runs in the order of the stream. */
void fake_gpu_launch(ffa_stream stream, void (*work)(void *user), void *user);

/* What a stream was created with. */
int fake_gpu_priority(const struct gpu_stream *stream);

/* Device memory that is not freed. */
long fake_gpu_allocated(void);

/* Allocations that were freed, in any process, while another process had them mapped. */
long fake_gpu_freed_mapped(void);

/* What a kernel does: an acquiring load and a releasing store. */
uint64_t fake_gpu_load(const uint64_t *at);
void fake_gpu_store(uint64_t *at, uint64_t value);

#endif
